"""The base class of models, and its loading.

    class MyModel(snailps.Worker): Settings, tables(), train(block)   ->  worker_class: a:MyModel

Owns the methods that a model overrides; pulls and pushes are in `model_tables.py`.  A model gets
settings, blocks and NumPy arrays, never a socket, a lease or another worker.  `worker/process.py`
calls its methods, `master/job/job.py` the class methods that concern the job as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from snailps.api.block import Block
from snailps.api.class_loading import load_named
from snailps.api.counting import Counted
from snailps.api.model_tables import ModelTables
from snailps.api.passes import EPOCHS, Passes
from snailps.api.results import Results, write_tables
from snailps.api.rotation import Checkouts, Rotation
from snailps.api.tables import Rows, Table, Tensor
from snailps.config import JobSettings, settings_of
from snailps.config.consistency import steps_of
from snailps.config.fields import with_fields
from snailps.data.blocks import Source
from snailps.data.input_files import InputFiles
from snailps.data.reading import Reading
from snailps.errors import ConfigError
from snailps.transport.client._client import Forward, Pending
from snailps.transport.frame import BATCHES_BYTES

__all__ = [
    "BATCHES_BYTES",
    "Block",
    "Checkouts",
    "Forward",
    "Pending",
    "Results",
    "Rotation",
    "SurveyPart",
    "Surveyor",
    "Worker",
    "load_class",
]


class Surveyor(Protocol):
    """Merges the results of a first pass over the input; runs at the master."""

    def add(self, part: bytes) -> None:
        """Takes the result of one `Worker.survey`, or of one `SurveyPart.take`."""

    def result(self) -> bytes:
        """The summary, which every worker gets as `Worker.summary`."""


class SurveyPart(Protocol):
    """Merges the surveys of a worker's blocks, so that they travel to the master together.

    The summary must not depend on which blocks are in which part, nor on the order of parts.
    """

    @property
    def size_bytes(self) -> int:
        """About how many bytes `take` would return."""

    def add(self, block: Block) -> None:
        """Examines a block."""

    def take(self) -> bytes:
        """The part, for `Surveyor.add`; what is added from now on is in the next one."""


class Worker(ModelTables):
    """A model.  Subclass it, declare its tables, and train a block at a time.

    Parameters
    ----------
    settings : JobSettings
        An instance of the class's `Settings`.
    threads : int
        Number of threads that it may train with.

    Attributes
    ----------
    workers : int
        Workers of the job, this one included, updated between blocks; with ``consistency: bsp``
        `micro_batches`, because that many blocks are trained from the same rows.
    prefetch : int
        Blocks that are leased and prepared ahead, at least 1; `setup` may raise it.
    narrow_rows : bool
        With `wire: auto`, have rows of ``add`` and ``sgd`` travel as float16 on any network, as
        int8 on a slow one: for a model that moves so many that sending them takes the processor
        longer than rounding.
    slowest : int
        With ``consistency: ssp``: blocks that the slowest worker has finished, as last reported.

    Notes
    -----
    Only `train` must be written.  The order of calls in a worker: `tables`, [`survey` of leased
    blocks], `setup`, then `prepare` and `train` for each leased block, then `finish`.  `prepare`
    of the next block runs in another thread while `train` works on the current one.  Class methods
    are given an instance of the class's own `Settings`: annotate it so.
    """

    Settings: ClassVar[type[JobSettings]] = JobSettings
    """Settings of the model: a frozen dataclass derived from `JobSettings`.

    Fields of the class itself are settings, too: ``width: int = 8`` is ``self.width``.
    """

    unit: ClassVar[Literal["line", "word"]] = "line"
    """Unit that blocks must not split."""

    counts: ClassVar[Literal["examples", "words"]] = "examples"
    """Unit of `units` in the result of `train`, for messages and figures."""

    loss_bound: ClassVar[float] = math.inf
    """Multiple of the first block's mean loss (or of 1, if that is more) beyond which the training
    has diverged, and ends the job as a loss of NaN does; infinite: any finite loss may be right."""

    completed: ClassVar[tuple[str, ...]] = ()
    """Settings that `adopt` completes: a worker's own file may have them as they were before."""

    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Makes settings of the class's own plain fields, ``width: int = 8``."""
        super().__init_subclass__()
        if "owes" in vars(cls):  # until 0.1
            raise TypeError(f"{cls.__name__}.owes is called unpushed now")
        if isinstance(cls.Settings, type) and issubclass(cls.Settings, JobSettings):
            settings, own = with_fields(cls.Settings, cls, _TAKEN)
            if own:  # else a mixin's would hide those of the class beside it
                cls.Settings = settings
                cls._fields = (*cls._fields, *own)

    def __init__(self, settings: JobSettings, threads: int = 1) -> None:
        super().__init__()
        self.settings = settings
        for name in self._fields:
            setattr(self, name, getattr(settings, name))
        self.threads = threads
        self.workers = 1
        self.prefetch = 1
        self.summary = b""
        self.slowest = 0

    # --- overridden by the model -----------------------------------------------------------

    def tables(self) -> Sequence[Table | Tensor]:
        """The tables and tensors it needs.  All workers must declare the same."""
        return ()

    def setup(self) -> None:
        """Called once before the first block; tables, `settings` and `summary` are available."""

    def survey(self, block: Block) -> bytes:
        """Examines a block before training; only called if `surveyor` is overridden."""
        raise NotImplementedError

    def survey_part(self) -> SurveyPart | None:
        """Make the part that examines blocks in the place of `survey`, and merges them here.

        None (the default): what `survey` returns travels to the master block by block.
        """
        return None

    def prepare(self, block: Block) -> Any:
        """Prepares the next block (parse it, `pull_async` its rows) while another one trains.

        Runs in another thread: it may use `settings`, `summary` and pulls, but nothing that
        `train` changes.  The result is `block.prepared`.
        """
        return None

    def train(self, block: Block) -> Mapping[str, float]:
        """Trains on a block.

        Returns
        -------
        mapping
            ``units`` (examples or words in the block) and any of ``loss`` (sum of losses) with
            ``examples`` (number of losses), ``lr``, ``count NAME`` (added up for `counted`) and
            ``bad_lines`` (lines skipped as malformed, in the first epoch).  Other numbers are
            ignored.  A ``loss`` that is not finite fails the job.
        """
        raise NotImplementedError(f"{type(self).__name__} has no train()")

    def encode(self, block: Block) -> Mapping[str, float]:
        """Stores a block of a chunk where every worker reads it; only called in a `rotation`.

        Runs in the thread that prepares, beside `train`: it may use `settings`, `summary`, pulls
        and pushes, but nothing that `train` changes.  All its pushes are acknowledged when it
        returns.  Of three chunks at most the blocks are in use: those of chunk k may replace those
        of chunk ``k - 3``.  One may be encoded twice, by different workers and partly the first
        time, so what it writes must not depend on what is there.

        Returns
        -------
        mapping
            ``bad_lines``, if any; may be empty.  Units and losses are those of the partitions.
        """
        raise NotImplementedError(f"{type(self).__name__} has a rotation, but no encode()")

    def workers_changed(self) -> None:
        """Called between two blocks when others have come or gone; `workers` is their number.

        `prepare` may be running, and blocks that it prepared before will still be trained.
        """

    def finish(self) -> None:
        """Called once after the last block; push remaining deltas here."""

    @property
    def unpushed(self) -> int:
        """How many of the last blocks that `train` has returned for are not completely pushed yet.

        A model that pushes every few blocks overrides it: no checkpoint includes such a block.
        True: all since it was last False.
        """
        return False

    @classmethod
    def surveyor(cls, settings: Any) -> Surveyor | None:
        """An object that merges the results of `survey`; None (the default): no survey."""
        return None

    @classmethod
    def reading(cls, settings: Any) -> Reading:
        """Choose how tables in the input are read: Parquet, Arrow, JSON lines, CSV with a header.

        The default: the column that the setting or field ``column`` names, a line a row; tables
        are refused if there is none, or if it is empty.
        """
        column = getattr(settings, "column", "")
        if cls.unit == "word" or column:
            return Reading("text", column=column)
        return Reading()

    @classmethod
    def adopt(cls, settings: Any, explicit: Callable[[str], str | None]) -> JobSettings:
        """The settings, completed from a file that they name; called first, at the master.

        Parameters
        ----------
        explicit : callable
            Name of a setting -> where the user set it, or None.

        Raises
        ------
        SnailError
            The file cannot be read, or contradicts a setting of the user.
        """
        completed: JobSettings = settings
        return completed

    @classmethod
    def measure(cls, settings: Any, files: InputFiles) -> JobSettings:
        """The settings, completed by the input; called at the master, when its files are found.

        `surveyor`, `loader` and `passes` get the result.  It must not depend on the format in which
        the input has its examples.

        Parameters
        ----------
        settings : JobSettings
        files : InputFiles
            May be read: `InputFiles.lines`, or `scratch.open(path)` of each of `sources`, of a
            table or packed file the content that is trained.

        Raises
        ------
        SnailError
            The input cannot be read, or does not fit the settings.
        """
        completed: JobSettings = settings
        return completed

    @classmethod
    def loader(cls, settings: Any) -> Callable[[Results], None] | None:
        """A function that sets initial rows, at the master, between survey and training.

        None (the default): rows begin as `tables` declares.  Only for models with a `surveyor`.
        """
        return None

    @classmethod
    def inspector(
        cls, settings: Any
    ) -> Callable[[Results], Mapping[str, Sequence[tuple[str, float]]]] | None:
        """A function that inspects the model during training and at its end, at the master.

        Its result is shown and logged: for each name a few other names with figures.
        None (the default): no inspection.
        """
        return None

    @classmethod
    def rotation(
        cls, settings: Any, total_bytes: int, workers: int, summary: bytes
    ) -> Rotation | None:
        """How the training rotates rows among workers; None (the default): ordinary blocks.

        Asked at the master when the training begins, of a job that `rotates`; it must return
        quickly.  Blocks are then given to `encode`, and `prepare` and `train` get partitions
        (`Block.part`, `Block.checkouts`).

        Parameters
        ----------
        settings : JobSettings
        total_bytes : int
            Of the input, of one epoch.
        workers : int
        summary : bytes
            Of the survey; empty without one.
        """
        return None

    @classmethod
    def passes(cls, settings: Any, files: InputFiles) -> Passes:
        """Epochs of a job whose setting `epochs` is ``auto``; asked at the master, quickly.

        Parameters
        ----------
        settings : JobSettings
        files : InputFiles
            As in `measure`; `files.total_bytes` counts one epoch.
        """
        return Passes(EPOCHS, EPOCHS)

    @classmethod
    def counted(cls, settings: Any, counts: Mapping[str, float], units: int) -> Counted:
        """Judge what workers have counted; called at the master, after an epoch and at the end.

        Parameters
        ----------
        settings : JobSettings
        counts : mapping of str to float
            Sums of the metrics of `train` whose names begin with ``count ``, by the rest of these.
            Not called without any.
        units : int
            Of the same blocks.
        """
        return Counted(settings)

    @classmethod
    def constant_loss(cls, settings: Any) -> float:
        """Mean loss of the best model that does not look at its examples; 0: not known."""
        return 0.0

    @classmethod
    def model_name(cls, settings: Any) -> str:
        """Name the job for a status: the class's name, unless overridden."""
        return cls.__name__

    @classmethod
    def rounds(cls, settings: Any) -> int:
        """Maximum number of rounds; 0 (the default): an ordinary job on blocks of its input.

        In rounds the input is not cut into blocks.  Each worker trains one block per round, without
        bytes (`Block.clock` is the round, `Block.index` the worker whose data to use), from the
        rows at the start of the round; all pushes are applied once, when the round ends.
        """
        return 0

    @classmethod
    def fraction(cls, settings: Any) -> float:
        """Share of the workers that take part in a round, drawn for each round: up to 1."""
        return 1.0

    @classmethod
    def deadline(cls, settings: Any) -> float:
        """Seconds after which a round ends without unfinished workers.  0: it waits for all."""
        return 0.0

    @classmethod
    def after_round(cls, results: Results, round_: int) -> Mapping[str, Any]:
        """Inspects the model after a round (0 is the first), at the master; may write files.

        ``results.figures`` has ``train_s``, seconds of training so far, and ``workers``.

        Returns
        -------
        mapping
            Figures of the round, kept with those of the run.  `target_loss` is compared with
            ``loss``, if present; a ``loss`` that is not finite ends the job as failed.

        Notes
        -----
        Workers train the next round meanwhile, from the same rows; it is applied once this has
        returned, and not at all if `target_loss` is reached.
        """
        return {}

    @classmethod
    def rotates(cls, settings: Any) -> bool:
        """Whether its schedule lets a job have a `rotation`."""
        shared = steps_of(settings).rows_may_stay and settings.assign != "own"
        return shared and not settings.max_steps

    @classmethod
    def clocked(cls, settings: Any) -> bool:
        """Whether blocks are contributions to common steps: ``bsp``, or a job in rounds."""
        return steps_of(settings).are_sums or cls.rounds(settings) > 0

    @classmethod
    def judge(cls, results: Results) -> Mapping[str, Any]:
        """Figures of the finished model for the run's, at the master; called without output too.

        Numbers, text, paths, and lists and dicts of these; NumPy's scalars and small arrays become
        plain ones. So with what `export` and `after_round` return; anything else fails the job.
        """
        return {}

    @classmethod
    def expires(cls, settings: Any) -> int:
        """Units after which rows that no push touched are deleted.  0 (the default): never.

        Applies to tables declared with ``track="touch"``; accurate to within a quarter.
        """
        return 0

    @classmethod
    def check(cls, settings: Any) -> None:
        """Raise `ConfigError` for contradicting settings; at the master, before the job starts."""

    @classmethod
    def too_many(cls, settings: Any, others: int) -> str:
        """Say why a worker beside `others` learns less than a single one, and what to use instead.

        Empty, the default: it learns as much; always empty for 0 others.  The master asks: a job
        does not begin with too many workers, and one that joins later is taken with a warning.
        """
        return ""

    @classmethod
    def block_bytes(cls, settings: Any, total_bytes: int, workers: int) -> int:
        """Size of a block: all workers together hold a twentieth of an epoch; 1 MiB at most.

        At least 1 KiB, or a tenth of an epoch.
        """
        least = min(1024, -(-total_bytes // 10))
        return max(least, min(1 << 20, total_bytes // (20 * workers)))

    @classmethod
    def shuffles(cls, settings: Any) -> bool:
        """Whether the order of the input is none: its blocks are drawn, anew in each epoch.

        Then each block is spread over its file (`data.blocks.strands`), and a model should draw
        the order of its lines from `Block.seed`.  False (the default): blocks as they are cut, in
        their order.
        """
        return False

    @classmethod
    def pieces(
        cls, settings: Any, sources: Sequence[Source], workers: int
    ) -> Sequence[tuple[str, int, int]] | None:
        """The blocks of an epoch as path, start, stop, for input that is not cut by size.

        None (the default): files are cut by `block_bytes`, between lines or words.
        """
        return None

    @classmethod
    def fit_block(cls, settings: Any, block_bytes: int, total_bytes: int, summary: bytes) -> int:
        """Size of a block in training, given the survey's summary; unchanged by default.

        Only called if there is a survey and the user has not set `block_bytes`.
        """
        return block_bytes

    @classmethod
    def result_files(cls, settings: Any) -> Sequence[str]:
        """Paths of the files that `export` will write: they are not replaced unasked.

        The default is ``OUTPUT.npz``; of a class with an `export` of its own, nothing.
        """
        own = cls.export.__func__ is not Worker.export.__func__  # type: ignore[attr-defined]
        return () if own else (f"{settings.output}.npz",)

    @classmethod
    def landmarks(cls, results: Results, count: int) -> tuple[Sequence[str], Rows] | None:
        """Up to `count` named rows for a map of the model, during training, at the master.

        Called beside the master's loop while a live page is open.  None (the default): nothing in
        this model has a name.
        """
        return None

    @classmethod
    def file_sizes(cls, settings: Any, summary: bytes) -> Mapping[str, int]:
        """About how many bytes the files have that `export` will write, by path, in its order.

        Asked between survey and training: a job whose files have no room on the disk is refused
        before it trains.  Empty (the default): nothing is known.
        """
        return {}

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        """Writes the finished model, at the master; returns figures to add to the run's.

        The default writes ``OUTPUT.npz`` with ``NAME.keys`` and ``NAME.rows`` of every table.
        """
        path = Path(f"{results.settings.output}.npz")
        write_tables(path, results)
        return {"files": [str(path)]}


_TAKEN = {*dir(Worker), "settings", "threads", "workers", "prefetch", "summary", "slowest"}
"""Names that mean something else in a model."""


def load_class(path: str, origin: str) -> type[Worker]:
    """The model that ``package.module:Class`` names; `origin`: where the user wrote it."""
    cls = load_named(path, f"{origin}: worker_class: {path}", Worker)
    check_class(cls, f"{origin}: worker_class: {path}")
    return cls


def check_class(cls: type[Worker], where: str) -> None:
    """Refuse a model whose settings class is not valid."""
    try:
        if not (isinstance(cls.Settings, type) and issubclass(cls.Settings, JobSettings)):
            raise TypeError(
                f"{cls.__name__}.Settings must be a class derived from snailps.JobSettings, got "
                f"{cls.Settings!r:.80}"
            )
        settings_of(cls.Settings)
    except (TypeError, NameError) as error:
        raise ConfigError(f"{where}: {error}") from None
