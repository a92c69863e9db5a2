"""The tables of a model as the model uses them: pulls, pushes, products with examples.

    keys -> pull, forward -> rows, Z        values, dL/dZ -> push, backward -> access methods

Owns how a call finds its table, its wire type and, in a job with clocks, its step.  Knows no
block's content, no lease and no mathematics; `worker.py` derives the base class of models.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from snailps.api.block import Block, ClockSlot, CurrentClockSlots
from snailps.api.tables import AnyKeys, Keys, Rows, Table
from snailps.api.traits import InRounds, trait_of
from snailps.api.wire_choice import WireChoice
from snailps.config.consistency import steps_of
from snailps.errors import MisuseError
from snailps.transport.client._client import Client, Forward, Pending


class ModelTables:
    """Calls on the tables that a model has declared, from any of its threads.

    Usable once the worker has declared the tables: from `survey` and `setup` on.
    """

    _own_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that are plain fields of the model's class, or of its bases."""

    @classmethod
    def clocked(cls, settings: Any) -> bool:
        """Whether blocks are contributions to common steps; default: with bsp, and in rounds."""
        return steps_of(settings).are_sums or trait_of(cls, InRounds).rounds(settings) > 0

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
        """With `wire: auto`: send rows of ``add`` and ``sgd`` as float16 on any network, as int8 on
        a slow one.  For a model that moves so many rows that sending takes more processor time
        than rounding."""

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
            Name of a declared table.
        keys : numpy.ndarray
            uint64 (n,), or any other integers from 0 on, in an array or a list; may repeat.
        out : numpy.ndarray, optional
            float32 (n, dim) to be filled; each row contiguous, with any stride between rows.
        state : bool
            Append the optimiser's state to the weights: rows of ``dim + Table.state_floats``.

        Returns
        -------
        numpy.ndarray
            float32 (n, dim), or `out`.  A key that was never pushed has its first value.

        Raises
        ------
        MisuseError
            No such table, keys that are no integers from 0 on, or `out` of another shape.
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
        """Start a pull; ``.wait()`` gives the rows.

        With `ahead` the pull may overtake this worker's pushes that are still under way: `correct`
        the rows with each of them.  In a job with clocks, pulls wait at the servers until the
        block's step has begun, and read the rows as that step finds them, `ahead` or not.

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
        """Check a pull: the table's number, its keys, the array for the rows, their wire type."""
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
        """Have the table's access method change rows by `values`; returns when it is acknowledged.

        A push is applied exactly once, also if its server is lost meanwhile.

        Parameters
        ----------
        table : str
            Name of a declared table.
        keys : numpy.ndarray
            As in `pull`.  The values of a repeated key count as their sum.
        values : numpy.ndarray
            float32 (n, dim), or numbers that become float32; (n, dim + 1) for access method
            ``average``.
        state : bool
            `values` are differences of weights and state, (n, dim + state_floats): the optimiser
            ran here, on rows pulled with their state.  For ``add``, ``sgd``, ``adagrad``,
            ``rowwise_adagrad``, ``ftrl``.
        lr_scale : float
            Step size of this push as a multiple of `Table.lr`, 0 or more, for a schedule.  For
            ``sgd``, ``momentum``, ``adagrad``, ``rowwise_adagrad``, ``adam``.  In a job with
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
        """Replace rows by `values`: pretrained weights, or rows with their state.

        Applied exactly once, and at the standby when this returns, like a push.

        Parameters
        ----------
        table : str
            Name of a declared table.
        keys : numpy.ndarray
            As in `pull`.  The last value of a repeated key counts.
        values : numpy.ndarray
            Weights, float32 (n, dim): the optimiser's state starts anew.  Or weights and state, as
            a pull with `state` gives them, (n, dim + state_floats).

        Raises
        ------
        MisuseError
            Wrong shape, or a job with clocks (consistency: bsp, or rounds).
        NotFinite
            As in `push`.
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
        """Start the product of sparse examples with a table, at its shards: no row travels.

        ``Z[i] = sum of values[k] * W[keys[k]], k in ptr[i]..ptr[i + 1] - 1``; ``.wait()`` gives Z,
        float32 (m, dim).  It reads rows after this worker's earlier pushes and `backward`.

        Parameters
        ----------
        table : str
            Name of a declared table, of any built-in access method but ``average``.
        ptr : numpy.ndarray
            int64 (m + 1,), starting at 0.
        keys : numpy.ndarray
            Integers from 0 on, (nnz,); may repeat, in any order.
        values : numpy.ndarray, optional
            float32 (nnz,); None: all are 1.
        keep : bool
            True: `backward` will follow.  Each shard keeps up to 8 such batches of this worker, and
            up to `BATCHES_BYTES`: 4 bytes a value of Z and 16 an entry.

        Raises
        ------
        MisuseError
            Arrays of another type or shape, or a job with clocks.

        Notes
        -----
        Two batches at a time use the network best: start the `forward` of the next batch before
        waiting for this one's.  It then lacks this batch's step, like a pull ahead.
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
        """Start the way back of a batch: the shards step the rows that it has read.

        Each row's gradient is summed over the whole batch, and given to the table's access method
        exactly once, in the order of this worker's pushes, also if a server has lost the batch
        meanwhile.

        Parameters
        ----------
        forward : Forward
            What `forward` returned, after its ``.wait()``.
        gradient : numpy.ndarray
            float32 (m, dim), C-contiguous: dL/dZ.  Must not change until ``.wait()`` has returned.
            Travels in the type of Z, scaled.
        lr_scale : float
            As in `push`; a table without a step size to scale refuses the batch.

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
        """Hold this thread's asynchronous calls, to send them together when it waits or at the end.

        For a loop that pulls, pushes and waits: each shard gets several requests in one packet.
        Calls of other threads, like those in `prepare`, are sent at once.  A wait sends what is
        held even if its own answer is there already.
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
        wire, feedback = self._wire_choice.of_push(  # type: ignore[union-attr]
            declared, state, narrow=self.narrow_rows
        )
        coarse = declared.access == "add"  # a delta's rounding is small beside the row
        return number, declared.keys(keys), rows, state, merge, wire, feedback, coarse

    def correct(self, pull: Pending, push: Pending, base: Rows | None = None) -> int:
        """Add to the rows of a pull what this worker's `push` added after they were read.

        For access method ``add``, after a pull `ahead`.  Returns how many rows were changed: none
        in a job with clocks, where pulls read the rows of the block's step.
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
