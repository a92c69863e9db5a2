"""Matrix factorisation: ratings with biases, or rankings of pairs of users and items.

    lines "user item [value]" -> RatingTrainer | EmbeddingWorker -> kernels -> differences
    tables, hold-out lines -> RMSE, or recall, NDCG, ... of each user's list   -> OUTPUT.npz

    ranges of names -> RangeTrainer -> solved rows                                  (`loss: als`)

Users are names of kind 0, items of kind 1.  `factor_losses` has what a loss decides: this class
asks it, and owns who moves the rows: `rotation` those of ratings, `worker` those of rankings, and
of ratings with clocks or `max_steps`; `least_squares` solves those of `als`.
After Y. Koren et al., "Matrix factorization techniques for recommender systems", IEEE Computer 42
(2009), and S. Rendle et al., "BPR", UAI 2009.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.export_progress import ExportProgress
from snailps.api.passes import Passes
from snailps.api.range_passes import PassRange, RangePasses
from snailps.api.rotation import Rotation
from snailps.api.tables import Rows, Table
from snailps.api.traits import Ranged
from snailps.api.validation import Validation
from snailps.api.worker import Block, Results
from snailps.config import JobSettings
from snailps.data.name_columns import Columns, NameColumns, Names
from snailps.dataclass import replace
from snailps.errors import DataError
from snailps.files.blocks import files_of
from snailps.files.input_files import InputFiles
from snailps.models.block_trainer import Rates, Span
from snailps.models.embeddings import files, least_squares, warm_start
from snailps.models.embeddings.factor_losses import (
    SAMPLE_LINES,
    FactorLoss,
    encoding_of,
    loss_of,
)
from snailps.models.embeddings.held_out import HeldOutRule, HeldOutSplit
from snailps.models.embeddings.least_squares import KnownLines, RangeTrainer
from snailps.models.embeddings.lines_tested import LineReading, LinesTested
from snailps.models.embeddings.rotating import RotatingWorker
from snailps.models.embeddings.rotation import LINES, RatingTrainer, rotation_of
from snailps.models.embeddings.settings import SMALL_LINES, EmbeddingSettings, MfSettings
from snailps.models.embeddings.warm_start import Arrays
from snailps.models.embeddings.worker import (
    TABLE,
    EmbeddingWorker,
    LineBatch,
    NameSurveyor,
)
from snailps.models.local_sgd import Floats, RowLayout
from snailps.models.packed_tables import refuse_other_split
from snailps.models.rotation import shared_blocks
from snailps.models.shared_settings import refuse_untested
from snailps.models.stopping import decided_by

log = logging.getLogger(__name__)

USER, ITEM = 0, 1
TESTED, SAMPLE, REPEATED = "tested lines", "sample of them", "repeated"
"""What the class keeps in `Results.memo`."""


def _without_values(name: str, path: str, why: str) -> str:
    return f"{name}: {path}: lines of users and items without values: {why}"


class MatrixFactorization(RotatingWorker, Ranged):
    """Matrix factorisation; see the module's docstring."""

    Settings = MfSettings
    settings: MfSettings
    columns = NameColumns(("user", "item"), valued=True)
    kinds = ("users", "items")
    kind_of_column = (USER, ITEM)
    noise_kind = ITEM

    @classmethod
    def row_dim(cls, settings: EmbeddingSettings) -> int:
        assert isinstance(settings, MfSettings)
        return settings.row_dim

    @cached_property
    def loss(self) -> FactorLoss:
        return loss_of(self.settings)

    @property
    def init(self) -> str:
        return self.loss.init

    @property
    def draws(self) -> bool:
        return self.loss.ranks

    @classmethod
    def may_rotate(cls, settings: MfSettings, total_bytes: int = 0, workers: int = 1) -> bool:
        """Ratings may; rankings may not: their items must meet items of other partitions."""
        return settings.predicts and cls.rotates(settings)

    @classmethod
    def rotation(
        cls, settings: MfSettings, total_bytes: int, workers: int, summary: bytes
    ) -> Rotation | None:
        """None if a worker has no memory for the rows."""
        if not cls.may_rotate(settings):
            return None
        layout = RowLayout.padded(settings.row_dim, 1 + (settings.method == "adagrad"))
        return rotation_of(Names(summary), 4 * layout.trained_width, workers)

    @classmethod
    def range_passes(cls, settings: MfSettings, summary: bytes) -> RangePasses | None:
        return least_squares.passes_of(settings, Names(summary)) if settings.solves else None

    @classmethod
    def passes(cls, settings: JobSettings, files: InputFiles) -> Passes:
        assert isinstance(settings, MfSettings)
        if settings.solves:
            return least_squares.epochs_of(settings)
        return super().passes(settings, files)

    def tables(self) -> Sequence[Table]:
        """The rows, and the lines of ratings that rotate, or what solves need."""
        if self.settings.solves:
            # A doctor asks before the input is counted: for the most that they may be.
            return least_squares.tables(self.settings.decided(lines=0))
        lines = (shared_blocks.table(LINES),) if self.may_rotate(self.settings) else ()
        return (*super().tables(), *lines)

    def setup(self) -> None:
        """Take mean and deviation of all values from the survey."""
        self._encoding = encoding_of(self._names, self.settings)
        if self.settings.solves:
            self._solver = RangeTrainer(self, self.settings, self._names)
            return
        super().setup()

    def trainer(self) -> RatingTrainer:
        return RatingTrainer(self, self._names)

    def prepare(self, block: Block) -> Any:
        if isinstance(block.terms, PassRange):
            return self._solver.prepare(block)
        return super().prepare(block)

    def train(self, block: Block) -> Mapping[str, float]:
        if isinstance(block.terms, PassRange):
            return self._solver.train(block)
        return super().train(block)

    def finish(self) -> None:
        if self.settings.solves:
            self._solver.close()
            return
        super().finish()

    @classmethod
    def held_out(cls, settings: Any) -> HeldOutRule | None:
        return HeldOutRule.of(settings)

    @classmethod
    def columns_of(cls, settings: Any) -> NameColumns:
        held_out = HeldOutRule.of(settings)
        reads_times = held_out is not None and held_out.reads_times
        return replace(cls.columns, time=settings.time_column, reads_times=reads_times)

    @classmethod
    def columns_asked(cls, settings: Any) -> NameColumns:
        """The columns of other files, such as `test`: as the input has them, without times."""
        return replace(cls.columns, time=settings.time_column, reads_times=False)

    def read(self, block: Block) -> Columns:
        """Read lines; refuse those without the values that are needed, in a file that `check` has
        not looked at, as it was not among the first."""
        lines = super().read(block)
        if len(lines) and not len(lines.values) and (why := self.loss.needs_values):
            raise DataError(_without_values("input", block.path, why))
        return lines

    def learnt(self, lines: Columns) -> Columns:
        return self.loss.selected(lines)

    def values_of(self, values: NDArray[np.float64]) -> Floats:
        return self.loss.encoded(values, self._encoding)

    def train_part(
        self, batch: LineBatch, rows: Floats, part: Span, rates: Rates, seed: int
    ) -> float:
        return self.loss.train(rows, batch, self._encoding, seed, self.of_part(part, rates))

    def curvature(self, rows: Floats) -> float:
        return self.loss.curvature(float(np.square(rows, dtype=np.float32).sum(1).mean()))

    @classmethod
    def surveyor(cls, settings: EmbeddingSettings) -> NameSurveyor:
        assert isinstance(settings, MfSettings)
        known = partial(warm_start.known_names, cls, settings)
        return loss_of(settings).surveyor(len(cls.kinds), known)

    @classmethod
    def lines_in(cls, settings: Any, arrays: Arrays) -> Sequence[NDArray[np.int64]]:
        """Lines whose rows are solved are trained again, or their rows would forget them."""
        if settings.solves and (known := least_squares.lines_in_file(settings, arrays)):
            return known.counts(len(arrays[files.rows_of("items")]))
        return super().lines_in(settings, arrays)

    @classmethod
    def put_others(cls, results: Results, arrays: Arrays) -> None:
        """Write the lines of the file to the table of lines; warn where it lacks them."""
        s, names = results.settings, cls.names(results)
        assert isinstance(s, MfSettings)
        if not s.solves:
            return
        known = least_squares.lines_in_file(s, arrays)
        if known is None:
            sizes = (len(arrays[files.rows_of(kind)]) for kind in cls.kinds)
            if text := least_squares.forgetting(names, *sizes):
                log.warning("%s: %s", s.continue_from, text)
        blocks = least_squares.blocks_of_file(s, names, known)
        results.put_packed(least_squares.LINES, blocks)

    @classmethod
    def adopt(cls, settings: Any, explicit: Callable[[str], str | None]) -> JobSettings:
        """Take the settings of a continued model, then choose what ``loss: auto`` means.

        It is `squared` if the lines of the input have values that differ, unless these are weights
        (``weights: values``); else `als`, whose ``dim: auto`` depends on the number of lines.
        """
        adopted: Any = warm_start.adopt(cls, settings, explicit)
        if adopted.loss == "auto":
            why = "weights: values"
            if adopted.weights == "one":
                why = files.choices_say(cls.columns_of(adopted), adopted)
            if "all values" in why:
                log.info("loss: auto is als: %s", why)
            adopted = replace(adopted, loss="als" if why else "squared")
        chosen: JobSettings = adopted if adopted.solves else adopted.decided(lines=0)
        return chosen

    @classmethod
    def measure(cls, settings: MfSettings, files: InputFiles) -> JobSettings:
        """The number of lines, held-out ones too, decides what ``dim: auto`` is."""
        return settings.decided(0 if settings.dim else files.lines(SMALL_LINES + 1))

    @classmethod
    def in_units_of(cls, before: Any, adopted: Any, explicit: Callable[[str], str | None]) -> Any:
        warm_start.needs_encoding(before, adopted.continue_from)
        if not adopted.solves:  # else the file has its lines, which no figure counts
            draws = {before.held_out_by, adopted.held_out_by} & {"line", "user"}
            decide = ("held_out_by", "seed") if draws else ("held_out_by",)
            refuse_other_split(adopted, before, explicit, decide)
        return adopted

    @classmethod
    def as_trained(cls, settings: MfSettings, rows: Rows) -> Rows:
        return loss_of(settings).as_trained(rows)

    @classmethod
    def model_name(cls, settings: JobSettings) -> str:
        return "mf"

    @classmethod
    def check(cls, settings: MfSettings) -> None:
        """Refuse malformed lines, and lines without the values that are learnt, or are weights."""
        if settings.solves:
            files.check_heads(cls.columns_of(settings), "input", settings.input)
            least_squares.check(settings)
        else:
            EmbeddingWorker.check.__func__(cls, settings)  # type: ignore[attr-defined]
        files.check_heads(cls.columns_asked(settings), "test", settings.test)
        if cls.held_out(settings) is None:
            refuse_untested(settings, str, ("held_out", "test"))
        by = settings.held_out_by
        if by != "line" and cls.held_out(settings) is None and not settings.continue_from:
            log.warning(
                "held_out_by: %s has no effect with held_out: 0: all lines are trained. Set "
                "held_out, as to 0.1 for a tenth of the lines",
                by,
            )
        loss = loss_of(settings)
        if why := loss.needs_values:
            cls._check_values(cls.columns_of(settings), "input", settings.input, why)
            if not loss.ranks:
                cls._check_values(cls.columns_asked(settings), "test", settings.test, why)

    @classmethod
    def _check_values(cls, columns: NameColumns, name: str, paths: Sequence[str], why: str) -> None:
        """Refuse files whose first lines have no values."""
        if paths:
            for path in files_of(paths)[: files.HEADS_MAX]:
                head = files.head_lines(columns, path)
                lines = columns.read(head, path, 0, head)
                if len(lines) and not len(lines.values):
                    raise DataError(_without_values(name, path, why))

    @classmethod
    def judge(cls, results: Results) -> Mapping[str, Any]:
        s = results.settings
        assert isinstance(s, MfSettings)
        held_out = cls.held_out(s)
        if not s.test and held_out is None:
            return {}
        loss = loss_of(s)
        if TESTED not in results.memo:
            results.exporting.plan([1.0] * (bool(s.test) + bool(loss.ranks or not s.test)) + [2.0])
        names, tested = cls._tested(results)
        test = tested.lines
        counts = {"unknown": test.unknown}
        if held_out is not None:
            counts["held_out"] = len(test)
        if not len(test) or (loss.ranks and test.unknown == len(test)):
            return {"test": counts}
        encoding = encoding_of(names, s)
        users, items = (
            loss.as_written(cls.rows_of_kind(results, names, kind), encoding)
            for kind in (USER, ITEM)
        )
        figures = loss.figures(users, items, tested, encoding, results.exporting)
        return {"test": figures | counts}

    @classmethod
    def tester(cls, settings: MfSettings) -> Callable[[Results], Mapping[str, float]] | None:
        """Test on the lines of some users, the same ones during the whole training."""
        return cls._test if settings.test or cls.held_out(settings) is not None else None

    @classmethod
    def validation(cls, settings: MfSettings) -> Validation | None:
        """With `stop_after` it is tested after each epoch; else beside the training."""
        if not settings.stop_after:
            return None
        figures = loss_of(settings).deciding
        return decided_by(settings.stop_by, figures, cls._validated, settings.stop_after)

    @classmethod
    def _validated(cls, results: Results) -> Mapping[str, float]:
        figures = cls._test(results)
        if not figures:
            raise DataError(
                "stop_after: none of the lines to test on has a figure: their users were not "
                "trained, or their pairs were. Give other test files, or leave stop_after out"
            )
        return figures

    @classmethod
    def _test(cls, results: Results) -> Mapping[str, float]:
        s = results.settings
        assert isinstance(s, MfSettings)
        memo, loss = results.memo, loss_of(s)
        if SAMPLE not in memo:
            names, tested = cls._tested(results)
            items = len(names.names[ITEM])
            sample = tested.sample(loss.users_tested(items), SAMPLE_LINES, s.seed)
            memo[SAMPLE] = items, encoding_of(names, s), sample.of_users()
        items, encoding, (users, sample) = memo[SAMPLE]
        if not len(users):
            return {}
        user_rows = loss.as_written(results.pull(TABLE, users.astype(np.uint64)), encoding)
        item_rows = loss.as_written(cls.first_rows(results, ITEM, items), encoding)
        figures = loss.figures(user_rows, item_rows, sample, encoding)
        return {name: round(figures[name], 5) for name in loss.shown if name in figures}

    @classmethod
    def _tested(cls, results: Results) -> tuple[Names, LinesTested]:
        """Read the names and the lines to test on, once for a job if they are not too many."""
        if TESTED in results.memo:
            names, tested = results.memo[TESTED]
            return names, tested
        s = results.settings
        assert isinstance(s, MfSettings)
        names = cls.names(results)
        tested = cls._read_tested(s, names, results.exporting)
        if tested.seen.shape[1] + len(tested.lines) <= least_squares.KNOWN_MAX:
            results.memo[TESTED] = names, tested
        return names, tested

    @classmethod
    def _read_tested(cls, s: MfSettings, names: Names, progress: ExportProgress) -> LinesTested:
        """Read the lines to test on, and what lists leave out: pairs of this training and of the
        model that it continues."""
        loss = loss_of(s)
        reading = LineReading(
            cls.columns_asked(s), cls.columns_of(s), cls.kind_of_column, loss.selected, loss.ranks
        )
        split = HeldOutSplit.of(cls.held_out(s), names.rest)
        tested = LinesTested.read(reading, s, names, split, progress)
        if s.continue_from:
            arrays = warm_start.arrays_of(cls, s)
            if (before := KnownLines.in_file(arrays, s.continue_from)) is not None:
                pairs = np.stack(before.pairs())  # its names have the same numbers here
                tested = replace(tested, seen=np.concatenate([tested.seen, pairs], axis=1))
        return tested

    @classmethod
    def finished(cls, results: Results, names: Names, kind: int) -> Iterator[Rows]:
        s = results.settings
        assert isinstance(s, MfSettings)
        loss, encoding = loss_of(s), encoding_of(names, s)
        for rows in super().finished(results, names, kind):
            yield loss.as_written(rows, encoding)

    @classmethod
    def others(cls, results: Results, names: Names) -> Mapping[str, NDArray[Any]]:
        s: Any = results.settings
        arrays = loss_of(s).arrays(names)
        if s.solves and (known := least_squares.known_lines(results, s, names)) is not None:
            arrays |= known.arrays()
            results.memo[REPEATED] = known.repeated()
        return arrays

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        """Write the model; of a solved one also name the settings that `auto` may have chosen, and
        count lines of a pair that an earlier line has."""
        figures, s = super().export(results), results.settings
        assert isinstance(s, MfSettings)
        if not s.solves:
            return figures
        weights = least_squares.Weights.of(s, cls.names(results))
        chosen = {"dim": s.dim, "a0": weights.a0, "l2": weights.l2, "epochs": s.epochs}
        repeated = {name: results.memo[name] for name in (REPEATED,) if results.memo.get(name)}
        return {**figures, **repeated, "chosen": chosen}

    @classmethod
    def written(cls, results: Results, names: Names) -> JobSettings:
        s = results.settings
        assert isinstance(s, MfSettings)
        return loss_of(s).written(encoding_of(names, s))
