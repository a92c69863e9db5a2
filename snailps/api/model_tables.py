"""The tables of a model as it uses them: pulls, pushes, products with examples.

    keys -> pull, forward -> rows, Z        values, dL/dZ -> push, backward -> access methods

It owns how a call finds its table, its wire type and, where there are clocks, its step.  It knows
no block's contents, no lease and no mathematics; `worker.py` derives the base class of models.
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
    """The tables that a model has declared, once it is connected to their shards."""

    def __init__(self) -> None:
        self._clocked = False
        self._clock_slots = CurrentClockSlots()
        self._client: Client | None = None
        self._wire_choice: WireChoice | None = None
        self._tables: dict[str, tuple[int, Table]] = {}
        self.route_epoch = 0
        """Grows when a shard is served by another server, which may lack what was pushed."""
        self.narrow_rows = False
        """With `wire: auto`, have rows of ``add`` and ``sgd`` travel as float16 on any network, as
        int8 on a slow one: for a model that moves so many that sending them takes the processor
        longer than rounding."""

    def pull(
        self,
        table: str,
        keys: AnyKeys,
        out: Rows | None = None,
        *,
        state: bool = False,
    ) -> Rows:
        """Rows of `keys` as they are now.

        Parameters
        ----------
        table : str
        keys : numpy.ndarray
            uint64 (n,), or any other integers from 0 on, in an array or a list; repeated keys are
            allowed.
        out : numpy.ndarray, optional
            float32 (n, dim) to be filled; rows contiguous, their stride free.
        state : bool
            The optimiser's state behind the weights: rows are ``dim + Table.state_floats`` wide.

        Returns
        -------
        numpy.ndarray
            float32 (n, dim).
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
        """Starts a pull; ``.wait()`` gives the rows.

        With `ahead` it may overtake own pushes that are still on their way: `correct` the rows
        with each of them.  In a job with clocks it gets the rows as the block's step finds them,
        whatever is on its way: it waits at the servers until that step has begun.

        Raises
        ------
        MisuseError
            Wrong shape.
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
        """Number of the table, its keys, where the rows go, and as what they travel."""
        number, declared = self._find(table)
        wanted = declared.keys(keys)
        width = declared.dim + declared.state_floats if state else declared.dim
        if out is None:
            out = np.empty((len(wanted), width), np.float32)
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
        """Hands `values` to the table's access method, row by row; returns once it is done.

        Parameters
        ----------
        table : str
        keys : numpy.ndarray
            As of `pull`.  The values of a repeated key count as their sum.
        values : numpy.ndarray
            float32 (n, dim), or numbers that become float32; (n, dim + 1) for access method
            ``average``.
        state : bool
            `values` are differences of weights and state, (n, dim + state_floats): the optimiser
            ran here, on rows pulled with their state.  For ``add``, ``sgd``, ``adagrad``,
            ``rowwise_adagrad``, ``ftrl``.
        lr_scale : float
            This push's step size as a multiple of `Table.lr`, 0 or more: a schedule's value.  For
            ``sgd``, ``momentum``, ``adagrad``, ``rowwise_adagrad``, ``adam``.  Where there are
            clocks, the same in all pushes to a table in a clock.

        Raises
        ------
        MisuseError
            Wrong shape, or the table's state does not add up, or it has no step size to scale.
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
        """Starts a `push`; `values` must not change until ``.wait()`` has returned."""
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
        """Puts `values` in the place of rows: pretrained ones, or rows with their state.

        Each counts exactly once and is at the standby when this returns, like a push.

        Parameters
        ----------
        table : str
        keys : numpy.ndarray
            As of `pull`.  Of a repeated key the last value counts.
        values : numpy.ndarray
            Weights, float32 (n, dim): the optimiser's state begins anew.  Or weights and state, as
            a pull with `state` gives them, (n, dim + state_floats).

        Raises
        ------
        MisuseError
            Wrong shape, or there are clocks (consistency: bsp, or rounds).
        NotFinite
            As of `push`.
        """
        if self._clocked:
            raise MisuseError("assign() does not work with clocks (consistency: bsp, or rounds)")
        number, declared = self._find(table)
        wanted, rows = declared.keys(keys), declared.values(values)
        whole = declared.dim + declared.state_floats
        state = whole != declared.dim and rows.ndim == 2 and rows.shape[1] == whole
        declared.check_width(rows, whole if state else declared.dim)
        if len(rows) != len(wanted):
            raise MisuseError(f"table {table!r}: {len(wanted)} keys and {len(rows)} rows")
        self._client.push_async(  # type: ignore[union-attr]
            number, wanted, rows, state, feedback=False, assign=True
        ).wait()

    def forward(
        self,
        table: str,
        ptr: NDArray[np.int64],
        keys: AnyKeys,
        values: Rows | None = None,
        *,
        keep: bool = True,
    ) -> Forward:
        """Starts the product of sparse examples with a table, at its shards: no row travels.

        ``Z[i] = sum of values[k] * W[keys[k]], k in ptr[i]..ptr[i + 1] - 1``; ``.wait()`` gives Z,
        float32 (m, dim).  It sees what was pushed, and went back, before this call.

        Parameters
        ----------
        table : str
            Of any built-in access method but ``average``.
        ptr : numpy.ndarray
            int64 (m + 1,), from 0 on.
        keys : numpy.ndarray
            Any integers from 0 on, (nnz,); may repeat, in any order.
        values : numpy.ndarray, optional
            float32 (nnz,); None: all are 1.
        keep : bool
            `backward` will follow.  Each shard keeps up to 8 such batches of this worker, and up
            to `BATCHES_BYTES`: 4 bytes a value of Z and 16 an entry.

        Raises
        ------
        MisuseError
            Arrays of another type or shape.

        Notes
        -----
        Two batches under way at once use the network best: start the next one's `forward` before
        waiting for this one's.  It then lacks this one's step, as it would with prefetched rows.
        """
        if self._clocked:
            raise MisuseError(
                "forward() does not work with clocks (consistency: bsp, or rounds): pull the rows"
            )
        number, declared = self._find(table)
        wire = self._wire_choice.of_product(declared, self.shards)  # type: ignore[union-attr]
        return self._client.forward_async(  # type: ignore[union-attr]
            number, ptr, declared.keys(keys), values, declared.dim, wire, keep
        )

    def backward(self, forward: Forward, gradient: Rows, *, lr_scale: float = 1.0) -> Pending:
        """Starts the way back of a batch: the shards step the rows that it touched.

        Each row's gradient is summed over the whole batch and handed to the table's access method
        once, in the order of this worker's pushes and exactly once, also if a server forgot the
        batch meanwhile.

        Parameters
        ----------
        forward : Forward
            What `forward` returned, waited for.
        gradient : numpy.ndarray
            float32 (m, dim), C-contiguous: dL/dZ.  Must not change until ``.wait()`` has returned.
            Travels as Z did, scaled.
        lr_scale : float
            As of `push`; a table that has no step size to scale refuses the batch.

        Raises
        ------
        MisuseError
            Another shape, or a batch that was not kept or has gone back.
        NotFinite
            As of `push`.
        RemoteError
            By ``.wait()``: keys and gradients of one fragment take more than 4 MB.
        """
        return self._client.backward_async(  # type: ignore[union-attr]
            forward, gradient, forward.wire, lr_scale
        )

    @contextlib.contextmanager
    def corked(self) -> Iterator[None]:
        """Inside, this thread's asynchronous calls are sent together: when it waits, or at the end.

        For a loop that pulls, pushes and waits: each shard gets several requests in one packet.
        Calls of other threads, such as `prepare`'s, are sent at once.  A wait sends what is held
        also if its answer is there already.
        """
        self._client.cork()  # type: ignore[union-attr]
        try:
            yield
        finally:
            self._client.uncork()  # type: ignore[union-attr]

    @property
    def shards(self) -> int:
        """How many shards the tables are spread over."""
        return len(self._client.names)  # type: ignore[union-attr]

    def _pushed(
        self, table: str, keys: AnyKeys, values: Any, state: bool, lr_scale: float
    ) -> tuple[int, Keys, Rows, bool, bool, int, bool, bool]:
        number, declared = self._find(table)
        rows = declared.values(values)
        merge = declared.check_push(rows, state, lr_scale)
        wire, feedback = self._wire_choice.of_push(  # type: ignore[union-attr]
            declared, state, narrow=self.narrow_rows
        )
        coarse = declared.access == "add"  # what it rounds away is nothing beside the row
        return number, declared.keys(keys), rows, state, merge, wire, feedback, coarse

    def correct(self, pull: Pending, push: Pending, base: Rows | None = None) -> int:
        """Adds to prefetched rows what an own push added after they were read (access ``add``).

        In a job with clocks there is nothing to add: rows are those of the block's step.
        """
        if self._clocked:
            return 0
        corrected: int = self._client.correct(pull, push, base)  # type: ignore[union-attr]
        return corrected

    def _at(
        self, block: Block, *, preparing: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Pulls and pushes belong to this block, where there are clocks."""
        return self._clock_slots.at(ClockSlot(block.clock, block.slot, preparing, block._pulls))

    def _find(self, table: str) -> tuple[int, Table]:
        try:
            return self._tables[table]
        except KeyError:
            known = ", ".join(sorted(self._tables)) or "none"
            raise MisuseError(f"no table {table!r} was declared; declared: {known}") from None

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
