"""Traits of a model: what it may do beyond training blocks, like a survey, a rotation or rounds.

    class MyModel(snailps.Worker): surveyor(), survey()  -> MyModel has the trait `Surveyed`
    trait_of(MyModel, Surveyed) -> MyModel               trait_of(MyModel, InRounds) -> InRounds

A trait is a few methods that belong together, each with a default.  **A class that writes one of a
trait's methods has the trait** (`complete`); naming the trait among the bases tells readers and
type checkers.  A job calls `trait_of`, and gets the class or the defaults.  The master calls class
methods, workers the others.
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
from snailps.api.validation import Validation
from snailps.config import JobSettings
from snailps.config.consistency import steps_of
from snailps.files.blocks import InputFile
from snailps.files.input_files import InputFiles
from snailps.files.reading import Reading

T = TypeVar("T")


class Surveyor(Protocol):
    """Merges the results of the survey, at the master."""

    def add(self, part: bytes) -> None:
        """Add the result of one `Surveyed.survey`, or of one `SurveyPart.take`."""

    def result(self) -> bytes:
        """Make the summary, which every worker gets as `Worker.summary`."""


class SurveyPart(Protocol):
    """Merges the results of a worker's blocks, so that they travel to the master together.

    The summary must not depend on which blocks are in which part, nor on the order of the parts.
    """

    @property
    def size_bytes(self) -> int:
        """About how many bytes `take` would return now."""

    def add(self, block: Block) -> None:
        """Examine a block."""

    def take(self) -> bytes:
        """Return the part, for `Surveyor.add`, and start another."""


class Adopted:
    """Settings that are completed from a file that they name, or from the input."""

    __slots__ = ()

    completed: ClassVar[tuple[str, ...]] = ()
    """Settings that `adopt` or `measure` changes: a worker's own settings may differ in them."""

    @classmethod
    def adopt(cls, settings: Any, explicit: Callable[[str], str | None]) -> JobSettings:
        """Complete the settings from a file that they name; called first of all, at the master.

        Parameters
        ----------
        settings : JobSettings
        explicit : callable
            Maps the name of a setting to the place where the user has set it, or to None.

        Raises
        ------
        SnailError
            The file cannot be read, or contradicts a setting of the user.
        """
        completed: JobSettings = settings
        return completed

    @classmethod
    def measure(cls, settings: Any, files: InputFiles) -> JobSettings:
        """Complete the settings by the input; called at the master, once its files are found.

        All later calls get the result.  It must not depend on the format of the input: the same
        examples in another format must give the same settings.

        Parameters
        ----------
        settings : JobSettings
        files : InputFiles
            May be read: `InputFiles.lines`, or ``scratch.open(path)`` of each of `sources`, which
            gives the text that is trained, also for a table or a packed file.

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

        Default: the column that the setting ``column`` names, a line a row.  Without that setting,
        or if it is empty, tables are refused.
        """
        column = getattr(settings, "column", "")
        if cls.unit == "word" or column:
            return Reading("text", column=column)
        return Reading()

    @classmethod
    def passes(cls, settings: Any, files: InputFiles) -> Passes:
        """Choose the epochs of a job with ``epochs: auto``; the master waits for the answer.

        Parameters
        ----------
        settings : JobSettings
        files : InputFiles
            As in `measure`; `files.total_bytes` counts one epoch.
        """
        return Passes(EPOCHS, EPOCHS)

    @classmethod
    def block_bytes(cls, settings: Any, total_bytes: int, workers: int) -> int:
        """Choose the bytes of a block.

        Default: all workers together hold a twentieth of an epoch; at most 1 MiB, at least 1 KiB or
        a tenth of an epoch.
        """
        least = min(1024, -(-total_bytes // 10))
        return max(least, min(1 << 20, total_bytes // (20 * workers)))

    @classmethod
    def fit_block(cls, settings: Any, block_bytes: int, total_bytes: int, summary: bytes) -> int:
        """Choose the bytes of a block once the summary is known; default: `block_bytes` as it is.

        Only called after a survey, and only if the user has not set `block_bytes`.
        """
        return block_bytes

    @classmethod
    def shuffles(cls, settings: Any) -> bool:
        """Whether the order of the input means nothing, so that each epoch draws its blocks anew.

        If so, a block consists of strands from all over its file (`files.blocks.strands`), and a
        model should draw the order of its lines from `Block.seed`.  Default: no, blocks are cut and
        leased in the order of the input.
        """
        return False

    @classmethod
    def pieces(
        cls, settings: Any, sources: Sequence[InputFile], workers: int
    ) -> Sequence[tuple[str, int, int]] | None:
        """List the blocks of an epoch as (path, start, stop), for input that is not cut by size.

        None (the default): files are cut by `block_bytes`, between lines or words.
        """
        return None


class Surveyed:
    """A first pass over the input; all workers get its summary, which may also set first rows."""

    __slots__ = ()

    @classmethod
    def surveyor(cls, settings: Any) -> Surveyor | None:
        """Make the object that merges the results of `survey`; None (the default): no survey."""
        return None

    def survey(self, block: Block) -> bytes:
        """Examine a block before the training; only called if there is a `surveyor`."""
        raise NotImplementedError

    def survey_part(self) -> SurveyPart | None:
        """Make a part that examines blocks instead of `survey`, and merges their results here.

        None (the default): the result of each `survey` travels to the master by itself.
        """
        return None

    @classmethod
    def loader(cls, settings: Any) -> Callable[[Results], None] | None:
        """Give a function that sets first rows, at the master, between survey and training.

        None (the default): rows start as `tables` declares.  Only for models with a `surveyor`.
        """
        return None


class Rotated:
    """Training in a rotation: rows move from worker to worker, so that no row has two writers."""

    __slots__ = ()

    @classmethod
    def rotates(cls, settings: Any) -> bool:
        """Whether the schedule of a job allows a `rotation`."""
        shared = steps_of(settings).rows_may_stay and settings.assign != "own"
        return shared and not settings.max_steps

    @classmethod
    def rotation(
        cls, settings: Any, total_bytes: int, workers: int, summary: bytes
    ) -> Rotation | None:
        """Choose how the training rotates rows among workers; None (the default): ordinary blocks.

        Called at the master when the training of a job that `rotates` starts; the master waits for
        the answer.  With a rotation blocks go to `encode`, and `prepare` and `train` get partitions
        (`Block.part`, `Block.checkouts`).

        Parameters
        ----------
        settings : JobSettings
        total_bytes : int
            Bytes of the input in one epoch.
        workers : int
            Workers of the job now; others may join.
        summary : bytes
            Result of the survey; empty without one.
        """
        return None

    def encode(self, block: Block) -> Mapping[str, float]:
        """Store a block of a chunk in a table that every worker reads; only called in a `rotation`.

        Runs in the thread that prepares, beside `train`: it may use `settings`, `summary`, pulls
        and pushes, but nothing that `train` changes.  Its pushes need not be waited for: the block
        is reported when all are acknowledged.  Blocks of three chunks are in use at most, so the
        blocks of chunk k may replace the blocks of chunk ``k - 3``.  A block may be encoded twice,
        by different workers, and the first time in part: what this writes must not depend on what
        is there.

        Returns
        -------
        mapping
            ``bad_lines``, if any; may be empty.  Units and losses come from the partitions.
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
        should be `assign`, or of integers, as it may be trained twice where a worker is lost.

        Parameters
        ----------
        settings : JobSettings
        summary : bytes
            Of the survey; empty without one.
        """
        return None


class Gathered:
    """Pushes that hold several blocks, by a model that must know how many workers train."""

    __slots__ = ()

    @property
    def unpushed(self) -> int:
        """How many of the last trained blocks are not completely pushed yet.

        For a model that pushes every few blocks: no checkpoint includes such a block, and if the
        worker is lost, others train it again.  True: all blocks since it was last False.
        """
        return False

    def push_all(self) -> None:
        """Push all that was trained, before the model is tested at the end of an epoch.

        Called between two blocks, in a job with `Reported.validation`.  `prepare` may be running
        meanwhile.  Afterwards `unpushed` is False.
        """

    def workers_changed(self) -> None:
        """React to workers that have come or gone; called between two blocks, `workers` is set.

        `prepare` may be running meanwhile, and blocks it has prepared before are still trained.
        The number may be the same: one worker has replaced another.
        """


class InRounds:
    """Training in rounds: each worker trains on its own data, all from the same rows.

    The input is not cut into blocks.  In each round a worker trains one block without bytes, from
    the rows at the start of the round; `Block.clock` is the round, `Block.index` says whose data to
    use.  All pushes are applied at once, when the round ends.
    """

    __slots__ = ()

    @classmethod
    def rounds(cls, settings: Any) -> int:
        """Most rounds of the job; 0 (the default): an ordinary job on blocks of its input."""
        return 0

    @classmethod
    def fraction(cls, settings: Any) -> float:
        """Share of the workers drawn for each round, above 0 and up to 1 (the default)."""
        return 1.0

    @classmethod
    def deadline(cls, settings: Any) -> float:
        """Seconds after which a round ends without workers that have not finished; 0: it waits."""
        return 0.0

    @classmethod
    def after_round(cls, results: Results, round_: int) -> Mapping[str, Any]:
        """Inspect the model after a round (0 is the first), at the master; may write files.

        ``results.figures`` has ``train_s`` (seconds of training so far), ``workers``, and ``parts``
        (how many workers contributed to the round; 0: not known, after a takeover).

        Returns
        -------
        mapping
            Figures of the round, shown and stored with the run's.  A ``loss`` is compared
            with `target_loss`; one that is NaN or infinite fails the job.

        Notes
        -----
        Workers train the next round meanwhile, from the same rows.  Their pushes are applied once
        this has returned, and not at all if `target_loss` is reached.
        """
        return {}


class Limited:
    """Limits of a training: how many workers train, how far the loss may grow, how old rows get."""

    __slots__ = ()

    loss_bound: ClassVar[float] = math.inf
    """Multiple of the first block's mean loss (of 1 if that is smaller) beyond which the training
    has diverged: the job fails, as with a loss of NaN.  Infinite: any finite loss may be right."""

    @classmethod
    def workers_at_once(cls, settings: Any, files: InputFiles) -> Concurrency:
        """Choose how many workers train at a time; default: all.  The master waits for the answer.

        Several workers train on rows that are a little old.  Where the input is small, or steps are
        long, they learn less than one worker would.  Workers beyond the limit wait until another
        leaves.  Not called with ``consistency: bsp`` or in rounds.

        Parameters
        ----------
        settings : JobSettings
        files : InputFiles
            As in `measure`; `InputFiles.lines` counts lines.
        """
        return Concurrency()

    @classmethod
    def expires(cls, settings: Any) -> int:
        """Units of training after which a row without a push is deleted; 0 (the default): never.

        Applies to tables declared with ``track="touch"``, and is exact to within a quarter.
        """
        return 0


class Reported:
    """What a job reports: counts, looks at the model, sizes of the files to come."""

    __slots__ = ()

    counts: ClassVar[Literal["examples", "words"]] = "examples"
    """What ``units`` in the result of `train` counts, for messages and figures."""

    @classmethod
    def constant_loss(cls, settings: Any) -> float:
        """Mean loss of the best model that ignores its examples; 0 (the default): not known."""
        return 0.0

    @classmethod
    def counted(cls, settings: Any, counts: Mapping[str, float], units: int) -> Counted:
        """Judge what workers have counted, after each epoch and at the end.

        Only called if `train` has returned metrics ``count NAME``.

        Parameters
        ----------
        settings : JobSettings
        counts : mapping of str to float
            The sum of each such metric over all blocks, by NAME.
        units : int
            Units of the same blocks.
        """
        return Counted(settings)

    @classmethod
    def inspector(
        cls, settings: Any
    ) -> Callable[[Results], Mapping[str, Sequence[tuple[str, float]]]] | None:
        """Give a function that inspects the model at the master, during the training and after it.

        Its result is shown and logged: for each name a few other names with figures, such as the
        nearest neighbours of a word.  Called like `tester`.  None (the default): no inspection.
        """
        return None

    @classmethod
    def tester(cls, settings: Any) -> Callable[[Results], Mapping[str, float]] | None:
        """Give a function that tests the model at the master, during the training.

        Its figures, the most telling one first, are shown beside the loss, and logged.  It should
        look at a sample: after each tenth of the training it is called again, unless that would
        take more than a twentieth of the time.  It is first called when the training begins, for
        it to read its data, which ``Results.memo`` may keep; those figures are not shown.  None
        (the default): the model is not tested before its end.
        """
        return None

    @classmethod
    def validation(cls, settings: Any) -> Validation | None:
        """Give how the model is tested after each epoch, while all workers wait, and when the
        figures end the training.  None (the default): it is not.

        Unlike a `tester` it sees the rows of a whole epoch, as `export` would write them.  Models
        in rounds have `InRounds.after_round` instead.
        """
        return None

    @classmethod
    def landmarks(cls, results: Results, count: int) -> tuple[Sequence[str], Rows] | None:
        """Give up to `count` names with their rows, for the live page's map of the model.

        Called during the training, beside the master's loop, while a page is open.  None (the
        default): nothing in this model has a name.
        """
        return None

    @classmethod
    def file_sizes(cls, settings: Any, summary: bytes) -> Mapping[str, int]:
        """Estimate the bytes of each file `export` will write, by path, in the order of writing.

        Called between survey and training: a job whose files do not fit on the disk fails before it
        trains.  Empty (the default): not known.
        """
        return {}


TRAITS: tuple[type[Any], ...] = (
    Adopted, Cut, Surveyed, Rotated, Ranged, InRounds, Gathered, Limited, Reported,
)  # fmt: skip
NAMES = {trait: [name for name in vars(trait) if not name.startswith("_")] for trait in TRAITS}
"""The methods and attributes of each trait that a model may write."""


def trait_of(cls: type[Any], trait: type[T]) -> type[T]:
    """Give the class itself if it has the trait, else the trait with its defaults."""
    return cls if issubclass(cls, trait) else trait


def complete(cls: type[Any]) -> None:
    """Give a class each trait of which it writes a method, and so the trait's other methods."""
    traits = [trait for trait in TRAITS if not issubclass(cls, trait)]
    if written := tuple(trait for trait in traits if any(hasattr(cls, n) for n in NAMES[trait])):
        cls.__bases__ += written


def is_clocked(cls: type[Any], settings: Any) -> bool:
    """Whether a job's blocks are contributions to common steps: with bsp, and in rounds."""
    return steps_of(settings).are_sums or trait_of(cls, InRounds).rounds(settings) > 0
