"""The tables of a model as the model uses them: pulls, pushes, products with examples.

    keys -> pull, forward -> rows, Z        values, dL/dZ -> push, backward -> access methods

Owns how a call finds its table, its wire type and, in a job with clocks, its step.  Knows no
block's content, no lease and no mathematics; `worker.py` derives the base class of models.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.block import Block, ClockSlot, CurrentClockSlots
from snailps.api.tables import AnyKeys, Keys, Rows, Table
from snailps.api.wire_choice import WireChoice
from snailps.errors import MisuseError
from snailps.transport.client._client import Client, Forward, Pending


class ModelTables:
    """Calls on the tables that a model has declared, from any of its threads.

    Usable once the worker has declared the tables: from `survey` and `setup` on.
    """

    def __init__(self) -> None:
        self._clocked = False
        self._clock_slots = CurrentClockSlots()
        self._client: Client | None = None
        self._wire_choice: WireChoice | None = None
        self._tables: dict[str, tuple[int, Table]] = {}
        self.route_epoch = 0
        """Grows whenever another server takes over a shard; it may lack the last pushes, with
        ``replication: async``."""
        self.narrow_rows = False
        """With ``wire`` auto, send rows of ``add`` and ``sgd`` as float16 on any network, as int8
        on a slow one.  For a model that moves so many rows that sending takes more processor time
        than rounding."""
        self.narrow_deltas = False
        """With `narrow_rows`, push what would travel as float16 as int8, on a fast network without
        adding what was rounded to the next push: that would keep a copy of each row.  For a model
        whose rows take many steps between two pushes."""

    def pull(
        self,
        table: str,
        keys: AnyKeys,
        out: Rows | None = None,
        *,
        state: bool = False,
    ) -> Rows:
        """Read the rows of keys as they are now.

        Parameters
        ----------
        table : str
        keys : integers from 0 on, (n,)
            May repeat.
        out : (n, dim) of `Table.dtype`, optional
            Is filled and returned; rows contiguous, with any stride between them.
        state : bool
            Append the optimizer's state: rows of ``dim + Table.state_floats``.

        Returns
        -------
        (n, dim) of `Table.dtype`
            A key that was never pushed has its first value.

        Raises
        ------
        MisuseError
            No such table, keys that are not such integers, or `out` of another shape.
        """
        if self._clocked:
            self._clock_slots.now("pull", preparing=False)
            return self.pull_async(table, keys, out, state=state).wait()
        number, wanted, out, wire = self._pulled(table, keys, out, state)
        return self._client.pull(number, wanted, out, state, wire)  # type: ignore[union-attr]

    def pull_async(
        self,
        table: str,
        keys: AnyKeys,
        out: Rows | None = None,
        *,
        state: bool = False,
        ahead: bool = False,
    ) -> Pending:
        """Start a `pull`; ``.wait()`` gives the rows.

        With `ahead` it may overtake this worker's pushes under way: `correct` the rows with each.
        In a job with clocks it waits for the block's step, and reads the rows as the step finds
        them.
        """
        number, wanted, out, wire = self._pulled(table, keys, out, state)
        if not self._clocked:
            return self._client.pull_async(  # type: ignore[union-attr]
                number, wanted, out, state, wire, ahead
            )
        moment = self._clock_slots.now("pull_async")
        pull = self._client.pull_async(  # type: ignore[union-attr]
            number, wanted, out, state, wire, False, clock=moment.clock
        )
        moment.pulls.append(pull)
        return pull

    def _pulled(
        self, table: str, keys: AnyKeys, out: Rows | None, state: bool
    ) -> tuple[int, Keys, Rows, int]:
        """Check a pull: the table's number, its keys, the array for the rows, their wire type."""
        number, declared = self._find(table)
        wanted = declared.keys(keys)
        width = declared.dim + declared.state_floats if state else declared.dim
        if out is None:
            out = declared.empty(len(wanted), state)
        declared.check_width(out, width)
        wire = self._wire_choice.of_pull(declared, state, narrow=self.narrow_rows)  # type: ignore[union-attr]
        return number, wanted, out, wire

    def push(
        self,
        table: str,
        keys: AnyKeys,
        values: Any,
        *,
        state: bool = False,
        lr_scale: float = 1.0,
    ) -> None:
        """Change rows by the table's access method, exactly once; returns when acknowledged.

        Parameters
        ----------
        table : str
        keys : integers from 0 on, (n,)
            The values of a repeated key count as their sum; of integers each counts.
        values : numbers (n, dim)
            Become float32; (n, dim + 1) for access method ``average``.  For a table of integers:
            integers that its type holds.
        state : bool
            `values` are differences of weights and state, (n, dim + state_floats), where the
            optimizer ran here.  For ``add``, ``sgd``, ``adagrad``, ``rowwise_adagrad``, ``ftrl``.
        lr_scale : float
            Multiple of `Table.lr`, 0 or more.  For ``sgd``, ``momentum``, ``adagrad``,
            ``rowwise_adagrad``, ``adam``.  With clocks, one for all pushes to a table in a clock.

        Raises
        ------
        MisuseError
            No such table, a wrong shape, or an access method that takes no `state` or `lr_scale`.
        NotFinite
            A value is NaN or infinite, unless `Table.finite` is False; nothing was applied.
        """
        if self._clocked:
            self.push_async(table, keys, values, state=state, lr_scale=lr_scale).wait()
            return
        arguments = self._pushed(table, keys, values, state, lr_scale)
        self._client.push(*arguments, lr_scale=lr_scale)  # type: ignore[union-attr]

    def push_async(
        self,
        table: str,
        keys: AnyKeys,
        values: Any,
        *,
        state: bool = False,
        lr_scale: float = 1.0,
    ) -> Pending:
        """Start a `push`; `values` must not change until ``.wait()`` has returned."""
        arguments = self._pushed(table, keys, values, state, lr_scale)
        if not self._clocked:
            return self._client.push_async(  # type: ignore[union-attr]
                *arguments, lr_scale=lr_scale
            )
        moment = self._clock_slots.now("push_async", preparing=False)
        return self._client.push_async(  # type: ignore[union-attr]
            *arguments, clock=moment.clock, slot=moment.slot, lr_scale=lr_scale
        )

    def assign(self, table: str, keys: AnyKeys, values: Any) -> None:
        """Replace rows by `values`, exactly once; returns when acknowledged.

        Parameters
        ----------
        table : str
        keys : integers from 0 on, (n,)
            The last value of a repeated key counts.
        values : numbers (n, dim)
            The optimizer's state starts anew; or weights and state, (n, dim + state_floats), as a
            pull with `state` gives them.

        Raises
        ------
        MisuseError
            Wrong shape, or a job with clocks (consistency: bsp, or rounds).
        NotFinite
            As in `push`.
        """
        self.assign_async(table, keys, values).wait()

    def assign_async(self, table: str, keys: AnyKeys, values: Any) -> Pending:
        """Start an `assign`; `values` must not change until ``.wait()`` has returned."""
        if self._clocked:
            raise MisuseError("assign() does not work with clocks (consistency: bsp, or rounds)")
        number, declared = self._find(table)
        wanted, rows = declared.keys(keys), declared.values(values)
        whole = declared.dim + declared.state_floats
        state = whole != declared.dim and rows.ndim == 2 and rows.shape[1] == whole
        declared.check_width(rows, whole if state else declared.dim)
        if len(rows) != len(wanted):
            raise MisuseError(f"table {table!r}: {len(wanted)} keys and {len(rows)} rows")
        return self._client.push_async(  # type: ignore[union-attr]
            number, wanted, rows, state, feedback=False, assign=True
        )

    def forward(
        self,
        table: str,
        ptr: NDArray[np.int64],
        keys: AnyKeys,
        values: Rows | None = None,
        *,
        keep: bool = True,
    ) -> Forward:
        """Start the product of sparse examples with a table, at its shards: no row travels.

        ``Z[i] = sum of values[k] * W[keys[k]], k in ptr[i]..ptr[i + 1] - 1``; ``.wait()`` gives Z,
        float32 (m, dim).  It reads rows after this worker's earlier pushes and `backward`.

        Parameters
        ----------
        table : str
            Of floats, and any built-in access method but ``average``.
        ptr : int64 (m + 1,)
            Starts at 0.
        keys : integers from 0 on, (nnz,)
            May repeat, in any order.
        values : float32 (nnz,), optional
            None: all are 1.
        keep : bool
            `backward` will follow.  A shard keeps up to 8 batches of this worker, and up to
            `BATCHES_BYTES`: 4 bytes a value of Z and 16 an entry.

        Raises
        ------
        MisuseError
            Arrays of another type or shape, or a job with clocks.

        Notes
        -----
        To use the network best, start the next `forward` before waiting for this one.  It then
        lacks this batch's step, like a pull ahead.
        """
        if self._clocked:
            raise MisuseError(
                "forward() does not work with clocks (consistency: bsp, or rounds): pull the rows"
            )
        number, declared = self._find(table)
        declared.check_floats("forward()")
        wire = self._wire_choice.of_product(declared, self.shards)  # type: ignore[union-attr]
        return self._client.forward_async(  # type: ignore[union-attr]
            number, ptr, declared.keys(keys), values, declared.dim, wire, keep
        )

    def backward(self, forward: Forward, gradient: Rows, *, lr_scale: float = 1.0) -> Pending:
        """Start the way back of a batch: the shards step the rows that it has read.

        Each row's gradient, summed over the batch, goes to the table's access method exactly once,
        in the order of this worker's pushes.

        Parameters
        ----------
        forward : Forward
            From `forward`, after its ``.wait()``.
        gradient : float32 (m, dim), C-contiguous
            dL/dZ; must not change until ``.wait()`` has returned.  Travels in the type of Z.
        lr_scale : float
            As in `push`.

        Raises
        ------
        MisuseError
            Another shape, or a batch that was not kept or has gone back already.
        NotFinite
            As in `push`.
        RemoteError
            From ``.wait()``: keys and gradients of one fragment take more than 4 MB.
        """
        return self._client.backward_async(  # type: ignore[union-attr]
            forward, gradient, forward.wire, lr_scale
        )

    @contextlib.contextmanager
    def corked(self) -> Iterator[None]:
        """Hold this thread's asynchronous calls until it waits, or to the end of the context.

        For a loop that pulls, pushes and waits: each shard gets several requests in one packet.
        """
        self._client.cork()  # type: ignore[union-attr]
        try:
            yield
        finally:
            self._client.uncork()  # type: ignore[union-attr]

    @property
    def shards(self) -> int:
        """Number of shards that the tables are spread over."""
        return len(self._client.names)  # type: ignore[union-attr]

    def _pushed(
        self, table: str, keys: AnyKeys, values: Any, state: bool, lr_scale: float
    ) -> tuple[int, Keys, Rows, bool, bool, int, bool, bool]:
        number, declared = self._find(table)
        rows = declared.values(values)
        merge = declared.check_push(rows, state, lr_scale)
        if declared.access == "average" and not self._clocked:  # no step ends, so no row changes
            raise MisuseError(
                f"table {table!r} has access 'average': only a job in rounds or with "
                "consistency: bsp can push to it; assign() sets its rows"
            )
        wire, feedback = self._wire_choice.of_push(  # type: ignore[union-attr]
            declared, state, narrow=self.narrow_rows, narrower=self.narrow_deltas
        )
        coarse = declared.access == "add"  # a delta's rounding is small beside the row
        return number, declared.keys(keys), rows, state, merge, wire, feedback, coarse

    def correct(self, pull: Pending, push: Pending, base: Rows | None = None) -> int:
        """Add to the rows of a pull `ahead` what this worker's `push` has added since.

        For access method ``add``.  Returns how many rows were changed: 0 in a job with clocks.
        """
        if self._clocked:
            return 0
        corrected: int = self._client.correct(pull, push, base)  # type: ignore[union-attr]
        return corrected

    def _at(
        self, block: Block, *, preparing: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Inside, pulls and pushes belong to the step of this block, in a job with clocks."""
        return self._clock_slots.at(ClockSlot(block.clock, block.slot, preparing, block._pulls))

    def _find(self, table: str) -> tuple[int, Table]:
        try:
            return self._tables[table]
        except KeyError:
            declared = ", ".join(sorted(self._tables)) or "none"
            raise MisuseError(f"no table {table!r} was declared; declared: {declared}") from None

    def _connect(
        self,
        client: Client,
        wire_choice: WireChoice,
        tables: Mapping[str, tuple[int, Table]],
        clocked: bool = False,
    ) -> None:
        self._clocked = clocked
        self._client, self._wire_choice = client, wire_choice
        self._tables = dict(tables)
        client.know_tables({n: (name, table.finite) for name, (n, table) in tables.items()})
