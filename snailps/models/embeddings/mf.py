"""Matrix factorisation: ratings with biases, or rankings of pairs of users and items.

    lines "user item [value]" -> RatingTrainer | EmbeddingWorker -> kernels -> differences
    tables, hold-out lines -> RMSE, or recall, NDCG, ... of each user's list   -> OUTPUT.npz

    ranges of names -> RangeTrainer -> solved rows                                  (`loss: als`)

Users are names of kind 0, items of kind 1.  With ``loss: squared`` a row is [bias, factors], and
rating = mean + both biases + product of the factors; (rating - mean) / deviation is trained, both
from the survey, and `in_units` converts the finished rows.  Otherwise a row is the factors, and
each pair is ranked before drawn items.  `rotation` moves the rows of ratings, `worker` those of
rankings, and of ratings with clocks or `max_steps`; `least_squares` solves those of `als`.
After Y. Koren et al., "Matrix factorization techniques for recommender systems", IEEE Computer 42
(2009), and S. Rendle et al., "BPR", UAI 2009.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.abi.quota import memory
from snailps.api.export_progress import TESTING, ExportProgress
from snailps.api.passes import Passes
from snailps.api.range_passes import PassRange, RangePasses
from snailps.api.rotation import Rotation
from snailps.api.tables import Rows, Table
from snailps.api.traits import Ranged
from snailps.api.validation import Validation
from snailps.api.worker import Block, Results
from snailps.config import JobSettings
from snailps.data.encoding import Encoding
from snailps.data.name_columns import Columns, Counted, NameColumns, Names, sizes_in
from snailps.dataclass import replace
from snailps.errors import DataError
from snailps.files.blocks import files_of
from snailps.files.input_files import InputFiles
from snailps.models.block_trainer import Rates, Span
from snailps.models.embeddings import files, least_squares, ranking, warm_start
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
from snailps.models.rows import Ids
from snailps.models.shared_settings import refuse_untested
from snailps.models.stopping import Figures, decided_by

log = logging.getLogger(__name__)

LOSSES = {"softmax": 2, "pairwise": 3}
"""Numbers of losses in `kernels.train_triples`."""
USER, ITEM = 0, 1
TESTED, SAMPLE, REPEATED = "tested lines", "sample of them", "repeated"
"""What the class keeps in `Results.memo`."""
SAMPLE_SCORES, SAMPLE_USERS, SAMPLE_LINES = 1 << 23, 100, 1 << 16
"""Scores of the lists of the users that a ranking is tested on during the training, about; fewest
users; most lines."""
MEAN_BITS = 20
"""The mean of values is rounded to this many binary digits below their deviation."""
Lists = tuple[int, Ids]
"""First user of a block, and the items of each of its users: see `ranking.top_lists`."""
NO_RELATIONS = np.zeros(0, np.int32)


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

    @property
    def init(self) -> str:
        if self.settings.predicts:
            return "factors"
        return "normal" if self.settings.solves else "uniform"

    @property
    def draws(self) -> bool:
        return not self.settings.predicts

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
        if self.settings.solves:
            self._solver = RangeTrainer(self, self.settings, self._names)
            return
        super().setup()
        self._encoding = encoding_of(self._names, self.settings)

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
        if len(lines) and not len(lines.values) and (why := _values_needed(self.settings)):
            raise DataError(_without_values("input", block.path, why))
        return lines

    def learnt(self, lines: Columns) -> Columns:
        return selected(self.settings, lines)

    def values_of(self, values: NDArray[np.float64]) -> Floats:
        if self.settings.weighs:
            return values.astype(np.float32)
        if ranks(self.settings):
            return np.zeros(0, np.float32)
        return self._encoding.labels_of(values).astype(np.float32)

    def train_part(
        self, batch: LineBatch, rows: Floats, part: Span, rates: Rates, seed: int
    ) -> float:
        s = self.settings
        users, items = batch.places
        if s.predicts:
            loss = kernels.train_ratings(
                rows,
                s.row_dim,
                users,
                items,
                batch.values,
                **self.of_part(part, rates),
            )
            return loss * self._encoding.deviation**2
        return kernels.train_triples(
            rows,
            s.dim,
            users,
            NO_RELATIONS,
            items,
            batch.noise,
            relation=0,
            metric=0,
            loss=LOSSES[s.loss],
            shared=s.shared,
            negatives=s.negatives,
            side=1,
            normalize=False,
            margin=0.0,
            temperature=0.0,
            seed=seed,
            **self.of_part(part, rates),
        )

    def curvature(self, rows: Floats) -> float:
        """Squares of the other factor, and 1 of a bias; of a logistic loss a quarter."""
        squares = float(np.square(rows, dtype=np.float32).sum(1).mean())
        return 1 + squares if self.settings.predicts else 0.25 * squares

    @classmethod
    def surveyor(cls, settings: EmbeddingSettings) -> NameSurveyor:
        assert isinstance(settings, MfSettings)
        known = partial(warm_start.known_names, cls, settings)
        if not ranks(settings):
            return RatingSurveyor(len(cls.kinds), known, cls.held_out(settings))
        surveyor = WeightSurveyor if settings.weighs else ChoiceSurveyor
        return surveyor(settings, len(cls.kinds), known)

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
        return (
            encoded_rows(rows, Encoding.of_text(settings.encoding)) if settings.encoding else rows
        )

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
        if why := _values_needed(settings):
            cls._check_values(cls.columns_of(settings), "input", settings.input, why)
            if settings.predicts:
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
        if TESTED not in results.memo:
            results.exporting.plan([1.0] * (bool(s.test) + bool(ranks(s) or not s.test)) + [2.0])
        names, tested = cls._tested(results)
        test = tested.lines
        counts = {"unknown": test.unknown}
        if held_out is not None:
            counts["held_out"] = len(test)
        if not len(test) or (ranks(s) and test.unknown == len(test)):
            return {"test": counts}
        users, items = (
            as_written(cls.rows_of_kind(results, names, kind), names, s) for kind in (USER, ITEM)
        )
        if ranks(s):
            judged = partial(_counted, results.exporting)
            figures = list_figures(users, items, test.ids, tested.seen, s.top, judged)
        else:
            predicted = ratings(encoding_of(names, s).centre, users, items, test.ids)
            figures = rating_figures(predicted, test.values)
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
        figures: Figures = {"rmse": ("rmse", "lower"), "loss": ("rmse", "lower")}
        if ranks(settings):
            shown = ("ndcg", "recall")
            figures = {name: (f"{name}_at_{settings.top}", "higher") for name in shown}
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
        memo = results.memo
        if SAMPLE not in memo:
            names, tested = cls._tested(results)
            items = len(names.names[ITEM])
            fits = SAMPLE_SCORES // max(1, items)
            users_max = max(SAMPLE_USERS, fits) if ranks(s) else SAMPLE_LINES
            sample = tested.sample(users_max, SAMPLE_LINES, s.seed)
            memo[SAMPLE] = items, encoding_of(names, s), sample.of_users()
        items, encoding, (users, sample) = memo[SAMPLE]
        if not len(users):
            return {}
        user_rows = results.pull(TABLE, users.astype(np.uint64))
        item_rows = cls.first_rows(results, ITEM, items)
        if ranks(s):
            figures = list_figures(user_rows, item_rows, sample.lines.ids, sample.seen, s.top)
            shown = [f"ndcg_at_{s.top}", f"recall_at_{s.top}"]
        else:
            rows = in_units(user_rows, encoding), in_units(item_rows, encoding)
            predicted = ratings(encoding.centre, *rows, sample.lines.ids)
            figures, shown = rating_figures(predicted, sample.lines.values), ["rmse"]
        return {name: round(figures[name], 5) for name in shown if name in figures}

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
        reading = LineReading(
            cls.columns_asked(s), cls.columns_of(s), cls.kind_of_column, partial(selected, s),
            ranks(s),
        )  # fmt: skip
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
        for rows in super().finished(results, names, kind):
            yield as_written(rows, names, s)

    @classmethod
    def others(cls, results: Results, names: Names) -> Mapping[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {}
        s: Any = results.settings
        if s.solves:
            arrays["solver"] = least_squares.solver_of(s, names)
            if (known := least_squares.known_lines(results, s, names)) is not None:
                arrays |= known.arrays()
                results.memo[REPEATED] = known.repeated()
        return {"mean": np.array([encoding_of(names, results.settings).centre]), **arrays}

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
        """Settings with the encoding of ratings, which a continued training needs."""
        s = results.settings
        assert isinstance(s, MfSettings)
        return s if ranks(s) else replace(s, encoding=encoding_of(names, s).text)


class RatingSurveyor(NameSurveyor):
    """Counts names; warns of ratings that are all equal, from which no user or item differs."""

    def result(self) -> bytes:
        """All names, the most frequent first."""
        if self.values.number > 1 and not self.values.squares:
            log.warning(
                "loss squared: all %s values are %g, so that all predictions are, too: if lines are"
                " choices, set loss: als",
                f"{self.values.number:,.0f}", self.values.mean,
            )  # fmt: skip
        return super().result()


class RankingSurveyor(NameSurveyor):
    """Refuses more names than the master can test, where rows are solved."""

    def __init__(
        self, settings: Any, kinds: int, known: Callable[[], Sequence[Counted]] = list
    ) -> None:
        super().__init__(kinds, known, HeldOutRule.of(settings))
        self._settings, self._tests = settings, bool(settings.test or HeldOutRule.of(settings))

    def result(self) -> bytes:
        """All names, the most frequent first."""
        whole = super().result()
        if self._settings.solves and self._tests:  # the file that is continued has rows, too
            users, items = sizes_in(whole)
            least_squares.check_memory(self._settings, users, items, *memory())
        return whole


class ChoiceSurveyor(RankingSurveyor):
    """Counts names; reports which values are not used, and refuses an input without choices."""

    def result(self) -> bytes:
        """All names, the most frequent first."""
        if self.values.number and not self.values.most:
            raise DataError(
                f"input: none of its {self.values.number:,.0f} values is above 0: a ranking learns "
                "what was chosen. Leave the values out if each line is a choice"
            )
        if unused := self.values.unused:
            log.warning("%s", unused)
        return super().result()


SIZES = (0.1, 10.0)
"""Root mean squares of weights for which the rule of `a0` and `l2` was measured, about."""
SIZE_MOST = 1e6


class WeightSurveyor(RankingSurveyor):
    """Refuses weights that a solve in float32 does not bear, and an input without choices, unless
    the training continues a model, whose file has some."""

    def result(self) -> bytes:
        """All names, the most frequent first."""
        size = self.values.size
        if not (self.values.most or self._settings.continue_from):
            raise DataError(
                f"input: weights: values: none of {self.values.number:,.0f} values is above 0, so "
                "that no pair is to be 1. Values below 0 are pairs that are to be 0"
            )
        if not 1 / SIZE_MOST <= size <= SIZE_MOST:
            raise DataError(
                f"input: weights: values: expected weights of about 1, {1 / SIZE_MOST:g} to "
                f"{SIZE_MOST:g}, got a root mean square of {size:.3g}: divide all by their mean"
            )
        if not SIZES[0] <= size <= SIZES[1]:
            log.warning(
                "weights: values: the root mean square of all values is %.3g, and a0 and l2 are "
                "chosen for weights of about 1: divide the values by their mean, or set both",
                size,
            )
        return super().result()


def selected(settings: Any, lines: Columns) -> Columns:
    """The lines that a training with these settings learns from."""
    if settings.predicts:
        return lines
    return lines.weighted() if settings.weighs else lines.choices()


def _values_needed(settings: Any) -> str:
    """Why lines must have values, and what to do; "" if they need none."""
    if settings.weighs:
        return (
            "weights: values takes the weight of a line from its value. Add a third column, or set "
            "weights: one"
        )
    if ranks(settings):
        return ""
    return "loss squared predicts values. Set loss: als, softmax or pairwise, which rank items"


def _without_values(name: str, path: str, why: str) -> str:
    return f"{name}: {path}: lines of users and items without values: {why}"


def ranks(settings: Any) -> bool:
    """Whether the model ranks items, instead of predicting values."""
    return not settings.predicts


def encoding_of(names: Names, settings: Any = None) -> Encoding:
    """Mean and deviation of all values; 0 and 1 if there are none; the settings' own come first.

    Rounded (`MEAN_BITS`), because the last digits depend on the order of the survey's parts.
    """
    if settings is not None and settings.encoding:
        return Encoding.of_text(settings.encoding)
    values = names.values
    if not values.number:
        return Encoding()
    deviation = float(np.float32(values.deviation))
    if not deviation:
        return Encoding(centre=values.mean)
    part = 2.0 ** (np.floor(np.log2(deviation)) - MEAN_BITS)
    return Encoding(centre=round(values.mean / part) * part, deviation=deviation)


def in_units(rows: Rows, encoding: Encoding) -> Rows:
    """Convert rows [bias, factors] of encoded values to rows of values as written."""
    return rows * _scales(rows, encoding)


def as_written(rows: Rows, names: Names, settings: MfSettings) -> Rows:
    """Rows from servers as a model's file has them: `in_units` where values are predicted."""
    return in_units(rows, encoding_of(names, settings)) if settings.predicts else rows


def encoded_rows(rows: Rows, encoding: Encoding) -> Rows:
    """The inverse of `in_units`, to the last digit."""
    return rows / _scales(rows, encoding)


def _scales(rows: Rows, encoding: Encoding) -> Floats:
    scales = np.full(rows.shape[1], encoding.deviation**0.5, np.float32)
    scales[0] = encoding.deviation
    return scales


def ratings(mean: float, users: Rows, items: Rows, pairs: NDArray[np.int32]) -> NDArray[np.float64]:
    """Predicted values (n,) of pairs (2, n); -1 is an unknown name, without bias and factors."""
    found = np.full(pairs.shape[1], mean)
    step = 1 << 16
    for at in range(0, pairs.shape[1], step):
        of, to = pairs[:, at : at + step]
        u = np.where((of >= 0)[:, None], users[of], 0)
        v = np.where((to >= 0)[:, None], items[to], 0)
        product = np.einsum("ij,ij->i", u[:, 1:], v[:, 1:])
        found[at : at + step] += u[:, 0] + v[:, 0] + product
    return found


def rating_figures(found: NDArray[np.float64], values: NDArray[np.float64]) -> dict[str, float]:
    """Root of the mean squared error, and mean absolute error, of predicted values."""
    if not len(values):
        return {}
    errors = found - values
    return {
        "rmse": float(np.sqrt(np.square(errors, dtype=np.float64).mean())),
        "mean_absolute_error": float(np.abs(errors, dtype=np.float64).mean()),
    }


def _counted(progress: ExportProgress, lists: Iterable[Lists], users: int) -> Iterable[Lists]:
    """Count the users whose lists are made, as a stage of a test."""
    return progress.count(f"{TESTING}: lists", users, "users", lists, lambda block: len(block[1]))


def list_figures(
    users: Rows,
    items: Rows,
    pairs: NDArray[np.int32],
    seen: NDArray[np.int32],
    top: int,
    counted: Callable[[Iterable[Lists], int], Iterable[Lists]] = lambda lists, users: lists,
) -> dict[str, float]:
    """Judge each user's list of `top` best items, without `seen` pairs, by held-out `pairs`.

    A user's relevant items are those in `pairs`, each once, but not in `seen`; -1 in `pairs` is an
    unknown name.  Means over the users who have any: recall is hits / min(top, relevant);
    precision, hits / top; MAP, the sum of the precision at each hit / min(top, relevant); NDCG, the
    discounted gain / that of a perfect list.  Coverage is the share of all items that their lists
    have.  ``users`` counts these users, ``users_without`` users of `pairs` without a relevant item,
    ``seen`` pairs that are left out because `seen` has them.  Without a user to judge there is no
    figure but ``seen``.  ``counted(lists, users)`` passes lists on, and may count them.
    """
    pairs = pairs[:, pairs[0] >= 0]
    asked, of = np.unique(pairs[0], return_inverse=True)
    place = np.full(len(users), -1, np.int32)
    place[asked] = np.arange(len(asked), dtype=np.int32)
    named = pairs[1] >= 0
    was_seen = named & np.isin(_pair(pairs, len(items)), _pair(seen, len(items)))
    new = named & ~was_seen
    truth = np.unique(of[new].astype(np.int64) * len(items) + pairs[1][new])
    counts = np.bincount(truth // max(1, len(items)), minlength=len(asked))
    judged = counts > 0
    left_out: dict[str, float] = {"seen": int(was_seen.sum())}
    if not judged.any():
        return left_out
    seen = seen[:, place[seen[0]] >= 0]
    places = np.arange(1, top + 1)
    gains = 1 / np.log2(places + 1)
    best = np.concatenate([[0.0], np.cumsum(gains)])
    recall, precision, average, ndcg = np.zeros((4, len(asked)))
    listed = np.zeros(len(items), bool)
    made = ranking.top_lists(users[asked], items, top, place[seen[0]], seen[1])
    for first, lists in counted(made, len(asked)):
        here, length = np.arange(first, first + len(lists)), lists.shape[1]
        hits = np.isin(here[:, None] * len(items) + lists, truth) & (lists >= 0)
        perfect = np.minimum(counts[here], length)
        recall[here] = hits.sum(1) / np.maximum(perfect, 1)
        precision[here] = hits.sum(1) / top
        at_hits = np.where(hits, hits.cumsum(1) / places[:length], 0.0)
        average[here] = at_hits.sum(1) / np.maximum(perfect, 1)
        ndcg[here] = hits @ gains[:length] / np.maximum(best[perfect], 1e-9)
        chosen = lists[judged[here]]
        listed[chosen[chosen >= 0]] = True
    return {
        f"recall_at_{top}": float(recall[judged].mean()),
        f"ndcg_at_{top}": float(ndcg[judged].mean()),
        f"precision_at_{top}": float(precision[judged].mean()),
        f"map_at_{top}": float(average[judged].mean()),
        f"coverage_at_{top}": float(listed.mean()),
        "users": int(judged.sum()),
        "users_without": int((~judged).sum()),
        **left_out,
    }


def _pair(pairs: NDArray[np.int32], items: int) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = pairs[0].astype(np.int64) * items + pairs[1]
    return numbers
