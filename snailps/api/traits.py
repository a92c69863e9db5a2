"""Traits of a model beside the training of its blocks: a survey, a rotation, rounds, reports.

    class MyModel(snailps.Worker): surveyor(), survey()  -> MyModel has the trait `Surveyed`
    trait_of(MyModel, Surveyed) -> MyModel               trait_of(MyModel, InRounds) -> InRounds

A trait is a few methods that are asked together, each with a default.  **A class that writes one
of a trait's methods has the trait** (`complete`); naming it among the bases says so to readers and
type checkers.  A job asks `trait_of` and gets the class, or the defaults.  Class methods are called
at the master.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from snailps.api.block import Block
from snailps.api.concurrency import Concurrency
from snailps.api.counting import Counted
from snailps.api.passes import EPOCHS, Passes
from snailps.api.range_passes import RangePasses
from snailps.api.results import Results
from snailps.api.rotation import Rotation
from snailps.api.tables import Rows
from snailps.config import JobSettings
from snailps.config.consistency import steps_of
from snailps.data.blocks import Source
from snailps.data.input_files import InputFiles
from snailps.data.reading import Reading

T = TypeVar("T")


class Surveyor(Protocol):
    """Merges the results of a first pass over the input; runs at the master."""

    def add(self, part: bytes) -> None:
        """Takes the result of one `Surveyed.survey`, or of one `SurveyPart.take`."""

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


class Adopted:
    """Settings that are completed by a file that they name, or by the input."""

    __slots__ = ()

    completed: ClassVar[tuple[str, ...]] = ()
    """Settings that `adopt` completes: a worker's own file may have them as they were before."""

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


class Cut:
    """How the input is read and cut into blocks, and how often it is trained."""

    __slots__ = ()

    unit: ClassVar[Literal["line", "word"]] = "line"
    """Unit that blocks must not split."""

    @classmethod
    def reading(cls, settings: Any) -> Reading:
        """Choose how tables in the input are read: Parquet, Arrow, ORC, JSON lines, CSV.

        The default: the column that the setting or field ``column`` names, a line a row; tables
        are refused if there is none, or if it is empty.
        """
        column = getattr(settings, "column", "")
        if cls.unit == "word" or column:
            return Reading("text", column=column)
        return Reading()

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
    def block_bytes(cls, settings: Any, total_bytes: int, workers: int) -> int:
        """Size of a block: all workers together hold a twentieth of an epoch; 1 MiB at most.

        At least 1 KiB, or a tenth of an epoch.
        """
        least = min(1024, -(-total_bytes // 10))
        return max(least, min(1 << 20, total_bytes // (20 * workers)))

    @classmethod
    def fit_block(cls, settings: Any, block_bytes: int, total_bytes: int, summary: bytes) -> int:
        """Size of a block in training, given the survey's summary; unchanged by default.

        Only called if there is a survey and the user has not set `block_bytes`.
        """
        return block_bytes

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


class Surveyed:
    """A first pass over the input, whose summary all workers get; first rows that are set by it."""

    __slots__ = ()

    @classmethod
    def surveyor(cls, settings: Any) -> Surveyor | None:
        """An object that merges the results of `survey`; None (the default): no survey."""
        return None

    def survey(self, block: Block) -> bytes:
        """Examines a block before training; only called if there is a `surveyor`."""
        raise NotImplementedError

    def survey_part(self) -> SurveyPart | None:
        """Make the part that examines blocks in the place of `survey`, and merges them here.

        None (the default): what `survey` returns travels to the master block by block.
        """
        return None

    @classmethod
    def loader(cls, settings: Any) -> Callable[[Results], None] | None:
        """A function that sets initial rows, at the master, between survey and training.

        None (the default): rows begin as `tables` declares.  Only for models with a `surveyor`.
        """
        return None


class Rotated:
    """Training in a rotation: rows move from worker to worker, and no two write one."""

    __slots__ = ()

    @classmethod
    def rotates(cls, settings: Any) -> bool:
        """Whether its schedule lets a job have a `rotation`."""
        shared = steps_of(settings).rows_may_stay and settings.assign != "own"
        return shared and not settings.max_steps

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


class Ranged:
    """Training in passes over ranges of names: each pass waits for the one before."""

    __slots__ = ()

    @classmethod
    def range_passes(cls, settings: Any, summary: bytes) -> RangePasses | None:
        """How the training goes over ranges; None (the default): over the blocks of its input.

        Asked at the master when the training begins; it must return quickly, and depend on these
        arguments alone.  `prepare` and `train` then get each block of the input once, in pass 0,
        then ranges, whose blocks have no bytes: `Block.terms` is a `PassRange`.  Pushes of a range
        should be `assign`, as it may be trained twice where a worker is lost.

        Parameters
        ----------
        settings : JobSettings
        summary : bytes
            Of the survey; empty without one.
        """
        return None


class Gathered:
    """Pushes of several blocks together, by a model whose rows depend on how many train them."""

    __slots__ = ()

    @property
    def unpushed(self) -> int:
        """How many of the last blocks that `train` has returned for are not completely pushed yet.

        A model that pushes every few blocks overrides it: no checkpoint includes such a block.
        True: all since it was last False.
        """
        return False

    def workers_changed(self) -> None:
        """Called between two blocks when others have come or gone; `workers` is their number.

        `prepare` may be running, and blocks that it prepared before will still be trained.
        """


class InRounds:
    """Training in rounds: each worker trains data of its own, all from the same rows.

    The input is not cut into blocks.  Each worker trains one block a round, without bytes
    (`Block.clock` is the round, `Block.index` the worker whose data to use), from the rows at the
    start of the round; all pushes are applied once, when the round ends.
    """

    __slots__ = ()

    @classmethod
    def rounds(cls, settings: Any) -> int:
        """Maximum number of rounds; 0 (the default): an ordinary job on blocks of its input."""
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


class Limited:
    """Limits of a training: of its workers, of its loss, of the age of rows."""

    __slots__ = ()

    loss_bound: ClassVar[float] = math.inf
    """Multiple of the first block's mean loss (or of 1, if that is more) beyond which the training
    has diverged, and ends the job as a loss of NaN does; infinite: any finite loss may be right."""

    @classmethod
    def workers_at_once(cls, settings: Any, files: InputFiles) -> Concurrency:
        """How many workers train at a time; the default: all.  Asked at the master, quickly.

        Several workers learn from old rows; where the input is small, or steps are long, less than
        one does.  The others wait for one that leaves.  Not asked with ``consistency: bsp`` or in
        rounds.

        Parameters
        ----------
        settings : JobSettings
        files : InputFiles
            As in `measure`; `InputFiles.lines` counts lines.
        """
        return Concurrency()

    @classmethod
    def expires(cls, settings: Any) -> int:
        """Units after which rows that no push touched are deleted.  0 (the default): never.

        Applies to tables declared with ``track="touch"``; accurate to within a quarter.
        """
        return 0


class Reported:
    """What a job reports: what it has counted, a look at the model, files to come."""

    __slots__ = ()

    counts: ClassVar[Literal["examples", "words"]] = "examples"
    """Unit of `units` in the result of `train`, for messages and figures."""

    @classmethod
    def constant_loss(cls, settings: Any) -> float:
        """Mean loss of the best model that does not look at its examples; 0: not known."""
        return 0.0

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
    def inspector(
        cls, settings: Any
    ) -> Callable[[Results], Mapping[str, Sequence[tuple[str, float]]]] | None:
        """A function that inspects the model during training and at its end, at the master.

        Its result is shown and logged: for each name a few other names with figures.
        None (the default): no inspection.
        """
        return None

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


TRAITS: tuple[type[Any], ...] = (
    Adopted, Cut, Surveyed, Rotated, Ranged, InRounds, Gathered, Limited, Reported,
)  # fmt: skip
NAMES = {trait: [name for name in vars(trait) if not name.startswith("_")] for trait in TRAITS}
"""What a model may write of each trait."""


def trait_of(cls: type[Any], trait: type[T]) -> type[T]:
    """The class where it has the trait, else the trait's defaults."""
    return cls if issubclass(cls, trait) else trait


def complete(cls: type[Any]) -> None:
    """Give a class the traits of which it writes a method, and so their other methods."""
    traits = [trait for trait in TRAITS if not issubclass(cls, trait)]
    if written := tuple(trait for trait in traits if any(hasattr(cls, n) for n in NAMES[trait])):
        cls.__bases__ += written
