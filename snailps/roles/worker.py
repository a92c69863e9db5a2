"""The base class that users subclass, and how a process finds that subclass.

    class MyModel(snailps.Worker): Settings, tables(), train(block)   ->  worker_class: a:MyModel

A model sees settings, blocks, and pull / push on NumPy arrays.  It never sees a socket, a lease or
another worker; `roles/worker_process.py` drives it, `roles/job.py` asks its class methods at the
master for what concerns the job as a whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from snailps.config import JobSettings
from snailps.data.blocks import Source
from snailps.errors import MisuseError
from snailps.roles.loading import load_named
from snailps.roles.moment import Moment, Moments
from snailps.roles.tables import Table, Tensor
from snailps.roles.wires import Wires
from snailps.transport._client import Client, Forward, Pending
from snailps.transport.frame import BATCHES_BYTES

__all__ = [
    "BATCHES_BYTES",
    "Block",
    "Forward",
    "Pending",
    "Results",
    "Surveyor",
    "Worker",
    "load_class",
]

Keys = NDArray[np.uint64]
Rows = NDArray[np.float32]


@dataclass(slots=True)
class Block:
    """A piece of input that this worker has on lease.

    Attributes
    ----------
    number : int
        Number of the lease, unique in its pass.
    path : str
        File it is a part of.
    start, stop : int
        Bytes of that file; a line or word belongs to the block that its first byte lies in.
    epoch : int
        0 for the first.
    seed : int
        uint64 of this block in this epoch: use it, and a block is repeatable.
    progress : tuple of float
        Share of the whole training before and after this block, 0 to 1: what a falling learning
        rate goes by.
    prepared : object
        What `Worker.prepare` returned for this block.
    clock, slot, slots : int
        With ``consistency: bsp`` and in rounds: this block is contribution `slot` of `slots` to
        step `clock`, and sees rows as they are before that step.  Else -1, 0 and 1.
    index : int
        In rounds: which of the job's workers this contribution is asked of, 0 to `workers` - 1, so
        that each can have data of its own.  Else -1.
    """

    number: int
    path: str
    start: int
    stop: int
    epoch: int
    seed: int
    progress: tuple[float, float]
    read: Callable[[], bytes]
    prepared: Any = None
    clock: int = -1
    slot: int = 0
    slots: int = 1
    index: int = -1
    _data: bytes | None = None
    _pulls: list[Pending] = field(default_factory=list)

    @property
    def data(self) -> bytes:
        """The bytes of its lines or words, read once."""
        if self._data is None:
            self._data = self.read()
        return self._data


class Surveyor(Protocol):
    """Merges what workers found in a first pass over the input; lives at the master."""

    def add(self, part: bytes) -> None:
        """Takes what one `Worker.survey` returned."""

    def result(self) -> bytes:
        """What every worker gets, as `Worker.summary`."""


class Results:
    """The model as the master sees it, before, during or after training: settings, summary, tables.

    Attributes
    ----------
    settings : JobSettings
    summary : bytes
        Of the survey; empty without one.
    figures : dict
        Figures of the run, for reading.
    """

    def __init__(
        self,
        settings: JobSettings,
        summary: bytes,
        figures: Mapping[str, Any],
        client: Client,
        numbers: Mapping[str, int],
        tables: Mapping[str, Table],
        shards: Sequence[Sequence[int]],
    ) -> None:
        self.settings, self.summary, self.figures = settings, summary, figures
        self._client, self._numbers, self._shards = client, numbers, shards
        self.tables = tables

    def pull(self, table: str, keys: Keys) -> Rows:
        """Rows of these keys, float32 (n, dim); keys that were never pushed: their first value."""
        rows = np.empty((len(keys), self.tables[table].dim), np.float32)
        self._client.pull(self._numbers[table], keys, rows)
        return rows

    def forward(
        self, table: str, ptr: NDArray[np.int64], keys: Keys, values: Rows | None = None
    ) -> Rows:
        """Product of sparse examples with a table, as `Worker.forward`, at the shards."""
        dim = self.tables[table].dim
        number = self._numbers[table]
        return self._client.forward_async(number, ptr, keys, values, dim, keep=False).wait()

    def put(self, table: str, keys: Keys, rows: Rows) -> None:
        """Makes the rows of these keys equal to `rows`, whatever they were; before the training.

        Parameters
        ----------
        table : str
            Of access method ``add``.
        keys : numpy.ndarray
            uint64 (n,), each once.
        rows : numpy.ndarray
            float32 (n, dim), finite.

        Notes
        -----
        A server adds what is pushed.  So the first value is taken away, which leaves exactly 0,
        and the row added to that: ``x + (row - x)`` would be off by rounding.  Rows that are so
        already cost a pull only and are not stored.
        """
        if self.tables[table].access != "add":
            raise MisuseError(f"table {table!r}: put() needs access 'add'")
        self.tables[table].check_width(rows, self.tables[table].dim)
        found = self.pull(table, keys)
        other = np.flatnonzero((found != rows).any(axis=1))
        keys, number = keys[other], self._numbers[table]
        if found[other].any():
            self._client.push_async(number, keys, -found[other], False, False).wait()
        self._client.push_async(number, keys, rows[other], False, False).wait()

    def scan(self, table: str) -> Iterator[tuple[Keys, Rows]]:
        """Every stored row, in pieces of up to 1 MiB: keys uint64 (n,), rows float32 (n, dim)."""
        for shard, fragments in enumerate(self._shards):
            yield from self._client.scan(
                self._numbers[table], self.tables[table].dim, fragments, shard
            )


class Worker:
    """A model.  Subclass it, say which tables it has, and train a block at a time.

    Parameters
    ----------
    settings : JobSettings
        An instance of the class's `Settings`.
    threads : int
        Threads that it may train with.

    Attributes
    ----------
    workers : int
        Workers of the job, this one included, as told before the block that trains; with
        ``consistency: bsp`` `micro_batches`, because so many blocks are trained from the same rows.
    prefetch : int
        Blocks that are leased and prepared ahead, at least 1; `setup` may raise it.
    slowest : int
        With ``consistency: ssp``: blocks that the slowest worker has finished, as last told.

    Notes
    -----
    Only `train` must be written.  The order of calls in a worker: `tables`, [`survey` of leased
    blocks], `setup`, then `prepare` and `train` for each leased block, then `finish`.  `prepare`
    of the next block runs in a thread of its own while `train` works on the current one.
    """

    Settings: ClassVar[type[JobSettings]] = JobSettings
    """Settings of the model: a frozen dataclass derived from `JobSettings`."""

    unit: ClassVar[Literal["line", "word"]] = "line"
    """What a block must not cut in two."""

    counts: ClassVar[Literal["examples", "words"]] = "examples"
    """What `units` in the result of `train` counts, for messages and figures."""

    def __init__(self, settings: JobSettings, threads: int = 1) -> None:
        self.settings = settings
        self.threads = threads
        self.workers = 1
        self.prefetch = 1
        self.summary = b""
        self.slowest = 0
        self._clocked = False
        self._moments = Moments()
        self._client: Client | None = None
        self._wires: Wires | None = None
        self._tables: dict[str, tuple[int, Table]] = {}
        self._tensors: dict[str, Tensor] = {}

    # --- to be written by the model --------------------------------------------------------

    def tables(self) -> Sequence[Table | Tensor]:
        """The tables and tensors it needs.  All workers must declare them equally."""
        return ()

    def setup(self) -> None:
        """Called once before the first block, with tables, `settings` and `summary` in place."""

    def survey(self, block: Block) -> bytes:
        """Looks at a block before training; only called if `surveyor` is overridden."""
        raise NotImplementedError

    def prepare(self, block: Block) -> Any:
        """Gets the next block ready (parse it, `pull_async` its rows) while another one trains.

        Runs in a thread of its own: it may use `settings`, `summary`, pulls, and nothing that
        `train` changes.  The result is `block.prepared`.
        """
        return None

    def train(self, block: Block) -> Mapping[str, float]:
        """Trains on a block.

        Returns
        -------
        mapping
            ``units`` (examples or words in the block) and any of ``examples`` with ``loss`` (sum
            of losses and how many they are), ``lr``, ``bad_lines`` (left out as malformed; of the
            first epoch); other numbers are not kept.  A ``loss`` that is not finite ends the job
            as failed.
        """
        raise NotImplementedError(f"{type(self).__name__} has no train()")

    def workers_changed(self) -> None:
        """Called between two blocks when `workers` is another number than before them.

        `prepare` may be running, and blocks that it made ready before are still to be trained.
        """

    def finish(self) -> None:
        """Called once after the last block; push what is left here."""

    @classmethod
    def surveyor(cls, settings: JobSettings) -> Surveyor | None:
        """Merges the parts that `survey` returns; None (the default): no survey."""
        return None

    @classmethod
    def adopt(cls, settings: JobSettings, explicit: Callable[[str], str | None]) -> JobSettings:
        """The settings with what follows from a file that they name; at the master, before all.

        Parameters
        ----------
        explicit : callable
            Name of a setting -> where the user set it, None where nobody did.

        Raises
        ------
        SnailError
            The file cannot be read, or contradicts a setting that the user made.
        """
        return settings

    @classmethod
    def loader(cls, settings: JobSettings) -> Callable[[Results], None] | None:
        """Puts the rows that the tables begin with, at the master, between survey and training.

        None (the default): all rows begin as `tables` says.  Only for models with a `surveyor`.
        """
        return None

    @classmethod
    def inspector(
        cls, settings: JobSettings
    ) -> Callable[[Results], Mapping[str, Sequence[tuple[str, float]]]] | None:
        """Looks at the model now and then during the training, and at its end, at the master.

        What it returns is shown and logged: for each name a few other names with figures.
        None (the default): there is nothing to look at.
        """
        return None

    @classmethod
    def rounds(cls, settings: JobSettings) -> int:
        """Most rounds of a job in rounds; 0 (the default): an ordinary job, blocks of its input.

        In rounds the input is not cut into blocks.  Each worker trains one block a round, without
        bytes (`Block.clock` is the round, `Block.index` says whose data it is), from the rows as
        the round found them; what all of them pushed is applied once, when the round ends.
        """
        return 0

    @classmethod
    def fraction(cls, settings: JobSettings) -> float:
        """Share of the workers that take part in a round, drawn anew each time: up to 1."""
        return 1.0

    @classmethod
    def deadline(cls, settings: JobSettings) -> float:
        """Seconds after which a round ends without those still at work.  0: it waits for all."""
        return 0.0

    @classmethod
    def after_round(cls, results: Results, round_: int) -> Mapping[str, Any]:
        """Looks at the model after a round (0 is the first), at the master; may write files.

        ``results.figures`` has ``train_s``, seconds of training so far, and ``workers``.

        Returns
        -------
        mapping
            Figures of the round, kept with those of the run.  `target_loss` is compared with
            ``loss``, where it is there; a ``loss`` that is not finite ends the job as failed.

        Notes
        -----
        The next round begins when it returns.
        """
        return {}

    @classmethod
    def clocked(cls, settings: JobSettings) -> bool:
        """Whether blocks are contributions to common steps: ``bsp``, or a job in rounds."""
        return settings.consistency == "bsp" or cls.rounds(settings) > 0

    @classmethod
    def judge(cls, results: Results) -> Mapping[str, Any]:
        """Figures of the finished model to add to the run's, at the master, output or none."""
        return {}

    @classmethod
    def expires(cls, settings: JobSettings) -> int:
        """Units after which rows that no push touched are deleted.  0 (the default): never.

        Of tables declared with ``track="touch"``; how long is kept to within an eighth.
        """
        return 0

    @classmethod
    def check(cls, settings: JobSettings) -> None:
        """Refuses settings that do not fit each other, at the master, before anything starts.

        Raises
        ------
        ConfigError
        """

    @classmethod
    def block_bytes(cls, settings: JobSettings, total_bytes: int, workers: int) -> int:
        """Size of a block: all workers together hold a twentieth of an epoch; 1 MiB at most."""
        return max(1024, min(1 << 20, total_bytes // (20 * workers)))

    @classmethod
    def pieces(
        cls, settings: JobSettings, sources: Sequence[Source], workers: int
    ) -> Sequence[tuple[str, int, int]] | None:
        """The blocks of an epoch as path, start, stop, for input that has its own way of being cut.

        None (the default): files are cut by `block_bytes`, between lines or words.
        """
        return None

    @classmethod
    def fit_block(
        cls, settings: JobSettings, block_bytes: int, total_bytes: int, summary: bytes
    ) -> int:
        """Size of a block in training, once the survey is known; the default leaves it as it was.

        Only asked where there is a survey and the user has not set `block_bytes`.
        """
        return block_bytes

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        """Writes the finished model, at the master; returns figures to add to the run's.

        The default writes ``OUTPUT.npz`` with ``NAME.keys`` and ``NAME.rows`` of every table.
        """
        from snailps.roles.backup import write_tables

        path = Path(f"{results.settings.output}.npz")
        write_tables(path, results)
        return {"files": [str(path)]}

    # --- to be used by the model -----------------------------------------------------------

    def pull(
        self,
        table: str,
        keys: Keys,
        out: Rows | None = None,
        *,
        state: bool = False,
        held: Keys | None = None,
    ) -> Rows:
        """Rows of `keys` as they are now.

        Parameters
        ----------
        table : str
        keys : numpy.ndarray
            uint64 (n,); repeated keys are allowed.
        out : numpy.ndarray, optional
            float32 (n, dim) to be filled; rows contiguous, their stride free.
        state : bool
            The optimiser's state behind the weights: rows are ``dim + Table.state_floats`` wide.
        held : numpy.ndarray, optional
            uint64 (n,), for tables with ``track="version"``: numbers that an earlier pull left
            here for what `out` holds, 0 where it holds nothing.  Rows that have not changed since
            do not travel and stay as they are; the numbers become those of now.

        Returns
        -------
        numpy.ndarray
            float32 (n, dim).
        """
        if self._clocked:
            self._moments.now("pull", preparing=False)
            return self.pull_async(table, keys, out, state=state, held=held).wait()
        number, out, wire = self._pulled(table, keys, out, state, held)
        return self._client.pull(number, keys, out, state, wire, held)  # type: ignore[union-attr]

    def pull_async(
        self,
        table: str,
        keys: Keys,
        out: Rows | None = None,
        *,
        state: bool = False,
        held: Keys | None = None,
        ahead: bool = False,
    ) -> Pending:
        """Starts a pull; ``.wait()`` gives the rows.

        With `ahead` it may overtake own pushes that are still on their way: `correct` the rows
        with each of them.  In a job with clocks it gets the rows as the block's step finds them,
        whatever is on its way: it waits at the servers until that step has begun.

        Raises
        ------
        MisuseError
            Wrong shape, or `held` without `out` or for a table without versions.
        """
        number, out, wire = self._pulled(table, keys, out, state, held)
        if not self._clocked:
            return self._client.pull_async(  # type: ignore[union-attr]
                number, keys, out, state, wire, held, ahead
            )
        moment = self._moments.now("pull_async")
        pull = self._client.pull_async(  # type: ignore[union-attr]
            number, keys, out, state, wire, held, False, clock=moment.clock
        )
        moment.pulls.append(pull)
        return pull

    def _pulled(
        self, table: str, keys: Keys, out: Rows | None, state: bool, held: Keys | None
    ) -> tuple[int, Rows, int]:
        """Number of the table, where the rows go, and as what they travel."""
        number, declared = self._find(table)
        width = declared.dim + declared.state_floats if state else declared.dim
        if held is not None and (out is None or "version" not in declared.track):
            raise MisuseError(
                f"table {table!r}: a pull of changes needs the rows held, as `out`, and a table "
                'declared with track="version"'
            )
        if out is None:
            out = np.empty((len(keys), width), np.float32)
        declared.check_width(out, width)
        return number, out, self._wires.of_pull(declared, state)  # type: ignore[union-attr]

    def push(self, table: str, keys: Keys, values: Rows, *, state: bool = False) -> None:
        """Hands `values` to the table's access method, row by row; returns once it is done.

        Parameters
        ----------
        table : str
        keys : numpy.ndarray
            uint64 (n,).  The values of a repeated key count as their sum.
        values : numpy.ndarray
            float32 (n, dim); (n, dim + 1) for access method ``average``.
        state : bool
            `values` are differences of weights and state, (n, dim + state_floats): the optimiser
            ran here, on rows pulled with their state.  For ``add``, ``sgd``, ``adagrad``, ``ftrl``.

        Raises
        ------
        MisuseError
            Wrong shape, or the table's state does not add up.
        """
        if self._clocked:
            self.push_async(table, keys, values, state=state).wait()
            return
        arguments = self._pushed(table, keys, values, state)
        self._client.push(*arguments)  # type: ignore[union-attr]

    def push_async(self, table: str, keys: Keys, values: Rows, *, state: bool = False) -> Pending:
        """Starts a push; `values` must not change until ``.wait()`` has returned."""
        arguments = self._pushed(table, keys, values, state)
        if not self._clocked:
            return self._client.push_async(*arguments)  # type: ignore[union-attr]
        moment = self._moments.now("push_async", preparing=False)
        return self._client.push_async(  # type: ignore[union-attr]
            *arguments, clock=moment.clock, slot=moment.slot
        )

    def forward(
        self,
        table: str,
        ptr: NDArray[np.int64],
        keys: Keys,
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
            uint64 (nnz,); may repeat, in any order.
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
        wire = self._wires.of_pull(declared)  # type: ignore[union-attr]
        return self._client.forward_async(  # type: ignore[union-attr]
            number, ptr, keys, values, declared.dim, wire, keep
        )

    def backward(self, forward: Forward, gradient: Rows) -> Pending:
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
            Travels as the table's wire type, scaled.

        Raises
        ------
        MisuseError
            Another shape, or a batch that was not kept or has gone back.
        """
        return self._client.backward_async(  # type: ignore[union-attr]
            forward, gradient, forward.wire
        )

    @property
    def shards(self) -> int:
        """How many shards the tables are spread over."""
        return len(self._client.names)  # type: ignore[union-attr]

    def _pushed(
        self, table: str, keys: Keys, values: Rows, state: bool
    ) -> tuple[int, Keys, Rows, bool, bool, int, bool]:
        number, declared = self._find(table)
        merge = declared.check_push(values, state)
        wire, feedback = self._wires.of_push(declared, state)  # type: ignore[union-attr]
        return number, keys, values, state, merge, wire, feedback

    def pull_tensor(self, name: str) -> NDArray[np.float32]:
        """A whole tensor as it is now, float32 of its shape."""
        tensor = self._find_tensor(name)
        return tensor.from_rows(self.pull(name, tensor.keys()))

    def push_tensor(self, name: str, values: NDArray[Any]) -> None:
        """Hands an array of the tensor's shape to its access method; returns once it is done."""
        tensor = self._find_tensor(name)
        self.push(name, tensor.keys(), tensor.to_rows(values))

    def correct(self, pull: Pending, push: Pending, base: Rows | None = None) -> int:
        """Adds to prefetched rows what an own push added after they were read (access ``add``).

        In a job with clocks there is nothing to add: rows are those of the block's step.
        """
        if self._clocked:
            return 0
        corrected: int = self._client.correct(pull, push, base)  # type: ignore[union-attr]
        return corrected

    @property
    def owes(self) -> bool:
        """Whether `train` has ended for blocks of which it has not pushed all yet.

        A model that pushes every few blocks overrides it: no checkpoint counts such a block.
        """
        return False

    @property
    def alone(self) -> bool:
        """Nobody else changes the tables: what was pulled stays true until `workers_changed`."""
        return self.workers == 1 and not self._clocked

    def _at(
        self, block: Block, *, preparing: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Pulls and pushes belong to this block, where there are clocks."""
        return self._moments.at(Moment(block.clock, block.slot, preparing, block._pulls))

    def _find_tensor(self, name: str) -> Tensor:
        try:
            return self._tensors[name]
        except KeyError:
            known = ", ".join(sorted(self._tensors)) or "none"
            raise MisuseError(f"no tensor {name!r} was declared; declared: {known}") from None

    def _find(self, table: str) -> tuple[int, Table]:
        try:
            return self._tables[table]
        except KeyError:
            known = ", ".join(sorted(self._tables)) or "none"
            raise MisuseError(f"no table {table!r} was declared; declared: {known}") from None

    def _connect(
        self,
        client: Client,
        wires: Wires,
        tables: Mapping[str, tuple[int, Table]],
        tensors: Mapping[str, Tensor] = MappingProxyType({}),
        clocked: bool = False,
    ) -> None:
        self._clocked = clocked
        self._client, self._wires = client, wires
        self._tables, self._tensors = dict(tables), dict(tensors)


def load_class(path: str, origin: str) -> type[Worker]:
    """The model that ``package.module:Class`` names.

    Parameters
    ----------
    path : str
    origin : str
        Where the user wrote it, for messages.

    Raises
    ------
    ConfigError
        It cannot be imported or is no `Worker`; says how to make it importable.
    """
    return load_named(path, f"{origin}: worker_class: {path}", Worker)
