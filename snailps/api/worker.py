"""The base class that users subclass, and how a process finds that subclass.

    class MyModel(snailps.Worker): Settings, tables(), train(block)   ->  worker_class: a:MyModel

It owns what a model may say of itself; what it uses, pulls and pushes, is `model_tables.py`'s.  A
model sees settings, blocks and NumPy arrays.  It never sees a socket, a lease or another worker;
`worker/process.py` drives it, `master/job/job.py` asks its class methods at the master for what
concerns the job as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from snailps.api.block import Block
from snailps.api.class_loading import load_named
from snailps.api.model_tables import ModelTables
from snailps.api.results import Results
from snailps.api.tables import Table, Tensor
from snailps.config import JobSettings, settings_of
from snailps.data.blocks import Source
from snailps.errors import ConfigError
from snailps.transport.client._client import Forward, Pending
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


class Surveyor(Protocol):
    """Merges what workers found in a first pass over the input; lives at the master."""

    def add(self, part: bytes) -> None:
        """Takes what one `Worker.survey` returned."""

    def result(self) -> bytes:
        """What every worker gets, as `Worker.summary`."""


class Worker(ModelTables):
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
        super().__init__()
        self.settings = settings
        self.threads = threads
        self.workers = 1
        self.prefetch = 1
        self.summary = b""
        self.slowest = 0

    @property
    def alone(self) -> bool:
        """This worker is the only one: pulled rows stay valid until `workers_changed`."""
        return self.workers == 1 and not self._clocked

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

    @property
    def owes(self) -> bool:
        """Whether `train` has ended for blocks of which it has not pushed all yet.

        A model that pushes every few blocks overrides it: no checkpoint counts such a block.
        """
        return False

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
            Name of a setting -> where the user set it, or None.

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

        Of tables declared with ``track="touch"``; how long is kept to within a quarter.
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
        from snailps.api.table_export import write_tables

        path = Path(f"{results.settings.output}.npz")
        write_tables(path, results)
        return {"files": [str(path)]}


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
    cls = load_named(path, f"{origin}: worker_class: {path}", Worker)
    check_class(cls, f"{origin}: worker_class: {path}")
    return cls


def check_class(cls: type[Worker], where: str) -> None:
    """Refuses a model whose class of settings cannot be read.

    Raises
    ------
    ConfigError
        Says which field is wrong, and how to declare it.
    """
    try:
        if not (isinstance(cls.Settings, type) and issubclass(cls.Settings, JobSettings)):
            raise TypeError(
                f"{cls.__name__}.Settings has to be a class derived from snailps.JobSettings, got "
                f"{cls.Settings!r:.80}"
            )
        settings_of(cls.Settings)
    except (TypeError, NameError) as error:
        raise ConfigError(f"{where}: {error}") from None
