"""Base class of embeddings of names: numbers the names of lines, trains and exchanges their rows.

    survey: bytes -> names of each column -> counts -> names by number        (merged at the master)
    prepare: bytes -> numbers (kept for later epochs) -> shuffled -> places of rows -> PULL
    train: rows -> kernel threads (Hogwild) -> deltas with state -> PUSH

All rows are in table `TABLE`: name i of kind j is key ``j * KIND_KEY + i`` (`keys_of`).  The
optimizer runs at the worker, and the deltas of weights and state add up.  Rows are kept and
exchanged by rate; with bsp and ssp a block trains copies (`block_trainer`); ratings rotate
(`rotation`).  Owns names and their keys, negatives, and the model's file; a subclass declares the
columns and calls its kernel (`columns`, `kinds`, `train_part`).
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from snailps.abi.key_hash import MASK64
from snailps.abi.memory import release_memory
from snailps.api.passes import Passes, share_of_new
from snailps.api.row_updates import RowUpdate
from snailps.api.tables import Rows, Table
from snailps.api.traits import Adopted, Reported, SurveyPart, is_clocked
from snailps.api.worker import Block, Results
from snailps.config import JobSettings
from snailps.config.consistency import steps_of
from snailps.data._text import NameTable
from snailps.data.name_columns import (
    Columns,
    Counted,
    NameColumns,
    NameCounts,
    Names,
    ValueMoments,
    refuse_other_text,
)
from snailps.dataclass import dataclass
from snailps.errors import DataError
from snailps.files.input_files import InputFiles
from snailps.files.model_file import Pieces
from snailps.files.reading import Reading
from snailps.kernels._row_exchange import DriftEstimate
from snailps.models.block_trainer import BlockTrainer, Prepared, Rates, Span, Sums
from snailps.models.copied_rows import CopiedRows
from snailps.models.embeddings import files, warm_start
from snailps.models.embeddings.held_out import (
    DrawnLines,
    HeldOutRule,
    HeldOutSplit,
    LineKeys,
    draws_of,
)
from snailps.models.embeddings.settings import METHODS, EmbeddingSettings
from snailps.models.exchange_times import SPAN_MIN, ExchangeRule
from snailps.models.kept_rows import FAR, KeptRows
from snailps.models.local_sgd import (
    Contention,
    Floats,
    Keys,
    LocalSgd,
    RowLayout,
)
from snailps.models.pace import Pace, of_workers
from snailps.models.packed_tables import STATE_BYTES_AUTO
from snailps.models.row_bounds import are_bounded
from snailps.models.rows import Ids, Scale, Trained, distinct
from snailps.models.seen_blocks import SeenBlocks
from snailps.models.shared_settings import check_optimizer

TABLE = "rows"
PULLED_BYTES = 4 << 20
"""Bytes of rows that the master pulls at a time; it has three such pieces."""
KIND_KEY = 1 << 40
"""Distance between the keys of two kinds: most names of a kind."""
ENOUGH_BYTES = 16 << 20
"""Bytes that a small input is trained on in all its epochs together, with `epochs: auto`."""
BLOCK_BYTES_MAX = 4 << 20
BLOCK_BYTES_SMALL = 256 << 10
"""Bytes below which the lease of a block costs more than a tenth of its training."""
LINES_BYTES = 256 << 20
"""Memory of numbered lines that a worker keeps for later epochs."""
NOISE_USES = 4
"""How often a candidate is drawn as a negative, on average, where not all names are candidates."""
NOISE_MIN = 4096
PERIOD_LINES = 250_000
PERIOD_LINES_ALONE = 1 << 20
PERIOD_PART = 1 / 4
"""Largest part of an epoch in a push period: a worker that dies loses what it learnt in one."""
FACTOR_STEP = 0.3
"""Curvature of a step on a row with AdaGrad, relative to its sum of squared gradients."""
RULE = ExchangeRule(
    growth=0.03, growth_of_all=0.08, factor_drift_of_all=1.6, steps_min=0.5, stale=0.0
)
"""Half a step at least: a rare row is pulled again between two steps of this worker.  No span is
longer because exchanges cost much.  This and the next one: docs/lab/shared-rows.md."""
OTHERS_LEAST = 4.0
"""`DriftEstimate.others_least`: AdaGrad's steps are shortened as if each other worker had made at
least this many for each step of this one."""
RATE_LEAST = 1e-9
CHECKED = 1024
"""Lines of a block, or of all checkouts of a lease, whose rows are checked for values beyond
`ROW_BOUND`."""
ROWS_A_LINE = 16
"""With ssp, copied rows are exchanged after a line for every `ROWS_A_LINE` rows of the block: where
rows have many lines, copies would be too old at the end of a block."""
SAMPLE = 1 << 15
"""Most lines of a block whose steps are counted."""

Numbers = NDArray[np.int64]
_NO_NAMES = np.zeros(0, np.int32)
NO_LINES = LineKeys(_NO_NAMES, _NO_NAMES, np.zeros(0, np.uint64), np.zeros(0), np.zeros(0))


@dataclass(slots=True)
class NumberedLines:
    """The numbered lines of a block: distinct keys, places (columns, n), values (n,) or empty."""

    keys: Keys
    places: Ids
    values: Floats

    def __len__(self) -> int:
        return len(self.places[0])

    @property
    def size_bytes(self) -> int:
        return self.keys.nbytes + self.places.nbytes + self.values.nbytes


@dataclass(slots=True)
class LineBatch:
    """Places (columns, n) of the rows of n lines; negatives are drawn from the places `noise`.

    `side` of a triple is replaced: 1 the tail, -1 the head, 0 one that is drawn for each group.
    """

    places: Ids
    values: Floats
    noise: Ids
    side: int = 0

    def __len__(self) -> int:
        return len(self.places[0])


class NameSurveyor:
    """Counts names; ``known()`` gives the names of each kind that a continued model has, with the
    lines of each that are trained again."""

    def __init__(
        self,
        kinds: int,
        known: Callable[[], Sequence[Counted]] = list,
        held_out: HeldOutRule | None = None,
    ) -> None:
        self._counts, self._known, self._held_out = NameCounts(kinds), known, held_out
        self._lines = None if held_out is None or held_out.is_rule else DrawnLines(held_out)

    def add(self, part: bytes) -> None:
        names = self._counts.merge(part)
        if self._lines is not None:
            self._lines.add(names, self._counts)

    @property
    def counted(self) -> list[int]:
        """Number of names of each kind in the lines."""
        return list(map(len, self._counts.counts))

    @property
    def values(self) -> ValueMoments:
        return self._counts.values

    def result(self) -> bytes:
        """Give all names: known names in their order, then others, the most frequent first; then
        what is held out, if the survey decides it.

        DataError: no line is left to train.
        """
        if not any(self.counted):
            held_out = self._held_out
            raise DataError(
                held_out.none_left
                if held_out is not None and held_out.is_rule
                else "input: expected lines of names, got none: a first line that names the columns"
                " is not trained"
            )
        if self._lines is None:
            return self._counts.dump(self._known())
        counts, split = self._lines.decide(self._counts)
        return counts.dump(self._known()) + split.dump()


class NamePart:
    """Counts the names of a worker's blocks; lists their lines if the survey decides which are held
    out."""

    def __init__(self, model: EmbeddingWorker) -> None:
        self._model, self._held_out = model, model.held_out(model.settings)
        self._lists_lines = self._held_out is not None and not self._held_out.is_rule
        self._counts, self._lines = NameCounts(len(model.kinds)), list[LineKeys]()

    @property
    def size_bytes(self) -> int:
        return self._counts.size_bytes + sum(lines.size_bytes for lines in self._lines)

    def add(self, block: Block) -> None:
        refuse_other_text(block.data, block.path, block.start)
        lines = self._model.read(block)
        columns = self._model.learnt(lines)
        if self._held_out is not None and self._held_out.is_rule:
            columns = self._held_out.split.trained(columns)
        for names, kind in zip(columns.names, self._model.kind_of_column, strict=True):
            self._counts.add(kind, names)
        if self._lists_lines:
            self._lines.append(self._keys(columns, block.number))
        # Predicted values: of the lines that are trained. Others are counted for warnings.
        predicts = self._model.settings.predicts
        self._counts.add_values(columns.values if predicts else lines.values)

    def _keys(self, lines: Columns, block: int) -> LineKeys:
        assert self._held_out is not None
        users, items = (
            self._counts.counts[kind].numbers(names).astype(np.int32)
            for names, kind in zip(lines.names, self._model.kind_of_column, strict=True)
        )
        order = lines.times
        if self._held_out.by == "user_order":
            order = np.arange(len(lines), dtype=np.float64) + block * 2.0**32
        values = lines.values if self._model.settings.predicts else NO_LINES.values
        return LineKeys(users, items, draws_of(lines, self._held_out.seed), order, values)

    def take(self) -> bytes:
        """The counts; counting begins anew."""
        part, counts = self._counts.dump(), self._counts.counts
        if self._lists_lines:
            users, items = map(_places_in_dump, counts)
            lines = LineKeys.joined(self._lines or [NO_LINES])
            part += lines.numbered(users, items).dump()
        self._counts, self._lines = NameCounts(len(counts)), []
        return part


def _places_in_dump(table: NameTable) -> Numbers:
    """The place of each name of a table in `NameCounts.dump`."""
    order = table.names().order(table.counts())
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


class EmbeddingWorker(BlockTrainer, warm_start.Continued, Adopted, Reported):
    """Base class of embeddings of names; see the module's docstring."""

    Settings: ClassVar[type[JobSettings]] = EmbeddingSettings
    settings: EmbeddingSettings
    unit: ClassVar[Literal["line", "word"]] = "line"
    counts: ClassVar[Literal["examples", "words"]] = "examples"
    table: ClassVar[str] = TABLE
    row_updates: ClassVar[Mapping[str, RowUpdate]] = {
        "gradient of the loss": RowUpdate.STEP,
        "l2, of each line's rows": RowUpdate.STEP,
    }
    columns: ClassVar[NameColumns]
    kind_of_column: ClassVar[tuple[int, ...]]
    noise_kind: ClassVar[int] = 0
    """The kind of names that negatives are drawn from."""

    # --- to be written by the model --------------------------------------------------------

    @classmethod
    @abstractmethod
    def row_dim(cls, settings: EmbeddingSettings) -> int:
        """Floats of a row."""

    @abstractmethod
    def train_part(
        self, batch: LineBatch, rows: Floats, part: Span, rates: Rates, seed: int
    ) -> float:
        """Train lines ``range(*part)``; returns the sum of losses, each before its step.

        Several threads call it at once, on the same rows.
        """

    @abstractmethod
    def curvature(self, rows: Floats) -> float:
        """Estimate the curvature of a line's loss along one of its rows, from a sample of rows."""

    def projection(self) -> Callable[[Keys, Floats], None] | None:
        """A function that changes packed rows in place where they are read; None: they stay."""
        return None

    def others_least(self) -> float:
        """`DriftEstimate.others_least`."""
        return OTHERS_LEAST

    @classmethod
    def held_out(cls, settings: Any) -> HeldOutRule | None:
        """What is held out of the input; default: nothing."""
        return None

    @classmethod
    def columns_of(cls, settings: Any) -> NameColumns:
        """The columns of the input; default: `columns`."""
        return cls.columns

    def learnt(self, lines: Columns) -> Columns:
        """Select the lines that are trained; default: all."""
        return lines

    def values_of(self, values: NDArray[np.float64]) -> Floats:
        """Encode values of lines for the training."""
        return values.astype(np.float32)

    @property
    def init(self) -> str:
        return "uniform"

    @property
    def draws(self) -> bool:
        return True

    # --- at the master -----------------------------------------------------------------------

    @classmethod
    def check(cls, settings: Any) -> None:
        """Refuse optimizers whose deltas do not add up, and malformed first lines."""
        why = f"{cls.__name__}, whose workers run the optimizer and push differences"
        check_optimizer(settings, METHODS, why)
        files.check_heads(cls.columns_of(settings), "input", settings.input)

    @classmethod
    def reading(cls, settings: Any) -> Reading:
        return files.reading_of(cls.columns_of(settings))

    @classmethod
    def pace(cls, settings: EmbeddingSettings, workers: int) -> Pace:
        small, part = BLOCK_BYTES_SMALL // 2, PERIOD_PART / settings.epochs
        return of_workers(
            workers,
            Pace(10, BLOCK_BYTES_MAX, BLOCK_BYTES_SMALL, period_examples=PERIOD_LINES_ALONE),
            Pace(20, BLOCK_BYTES_MAX, small, 4, part, PERIOD_LINES),
        )

    @classmethod
    def passes(cls, settings: JobSettings, files: InputFiles) -> Passes:
        """Small inputs get the epochs that `ENOUGH_BYTES` allows; all are trained: rates fall."""
        share = share_of_new(settings, files)
        return Passes.by_size(files.total_bytes, ENOUGH_BYTES, ends=False, share=share)

    @classmethod
    def adopt(
        cls, settings: EmbeddingSettings, explicit: Callable[[str], str | None]
    ) -> JobSettings:
        """Take the settings of a continued model."""
        adopted: JobSettings = warm_start.adopt(cls, settings, explicit)
        return adopted

    @classmethod
    def loader(cls, settings: Any) -> Callable[[Results], None] | None:
        return partial(warm_start.put, cls) if settings.continue_from else None

    @classmethod
    def surveyor(cls, settings: EmbeddingSettings) -> NameSurveyor:
        known = partial(warm_start.known_names, cls, settings)
        return NameSurveyor(len(cls.kinds), known, cls.held_out(settings))

    @classmethod
    def names(cls, results: Results) -> Names:
        return Names(results.summary)

    @classmethod
    def rows_of_kind(cls, results: Results, names: Names, kind: int) -> Rows:
        return cls.first_rows(results, kind, len(names.names[kind]))

    @classmethod
    def pieces_of_kind(cls, results: Results, kind: int, count: int) -> Iterator[Rows]:
        """Read the rows of the first `count` names of a kind, in pieces float32 (n, dim)."""
        return results.pulls(TABLE, cls._pieces_of_keys(results, kind, count))

    @classmethod
    def first_rows(cls, results: Results, kind: int, count: int) -> Rows:
        """Read the rows of the first `count` names of a kind, float32 (count, dim)."""
        return _whole(cls.pieces_of_kind(results, kind, count), count)

    @classmethod
    def keys_of(cls, kind: int, numbers: NDArray[np.integer[Any]]) -> Keys:
        """Keys of names of a kind, given their numbers."""
        keys: Keys = numbers.astype(np.uint64) + np.uint64(kind * KIND_KEY)
        return keys

    @classmethod
    def keys_of_kind(cls, kind: int, count: int) -> Keys:
        """Keys of the first `count` names of a kind."""
        return cls.keys_of(kind, np.arange(count))

    @classmethod
    def _pieces_of_keys(cls, results: Results, kind: int, count: int) -> Iterator[Keys]:
        keys = cls.keys_of_kind(kind, count)
        step = max(1, PULLED_BYTES // (4 * results.tables[TABLE].dim))
        return (keys[at : at + step] for at in range(0, len(keys), step))

    @classmethod
    def _state_of_kind(cls, results: Results, kind: int, count: int) -> Pieces:
        """Read the optimizer's state of the first `count` names of a kind, float32 (count, dim)."""
        table = results.tables[TABLE]
        pieces = cls._pieces_of_keys(results, kind, count)
        states = (rows[:, table.dim :] for _, rows in results.packed(TABLE, pieces))
        return Pieces(np.float32, (count, table.state_floats), states)

    @classmethod
    def _keeps_state(cls, results: Results, names: Names) -> bool:
        s: Any = results.settings
        table = results.tables[TABLE]
        size = 4 * (table.dim + table.state_floats) * sum(map(len, names.names))
        fits = s.keep_state == "auto" and size <= STATE_BYTES_AUTO
        return table.state_floats > 0 and (s.keep_state == "always" or fits)

    @classmethod
    def finished(cls, results: Results, names: Names, kind: int) -> Iterator[Rows]:
        """Compute the file's rows of a kind, in pieces float32 (n, dim), for values as written."""
        return cls.pieces_of_kind(results, kind, len(names.names[kind]))

    @classmethod
    def others(cls, results: Results, names: Names) -> Mapping[str, NDArray[Any]]:
        """Give further arrays for the model's file."""
        return {}

    @classmethod
    def written(cls, results: Results, names: Names) -> JobSettings:
        """Give the settings for the model's file."""
        return results.settings

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        s, names = results.settings, cls.names(results)
        arrays: dict[str, NDArray[Any] | Pieces] = dict(cls.others(results, names))
        keeps_state = cls._keeps_state(results, names)
        for kind, name in enumerate(cls.kinds):
            count = len(names.names[kind])
            arrays[name] = files.packed_names(names.names[kind])
            rows = cls.finished(results, names, kind)
            arrays[files.rows_of(name)] = Pieces(
                np.float32, (count, results.tables[TABLE].dim), rows
            )
            if keeps_state:
                arrays[files.state_of(name)] = cls._state_of_kind(results, kind, count)
        path = files.write(f"{s.output}.npz", cls.written(results, names), arrays)
        results.exporting.wrote(path)
        counts = {name: len(names.names[kind]) for kind, name in enumerate(cls.kinds)}
        return {"files": [path], **counts}

    @classmethod
    def landmarks(cls, results: Results, count: int) -> tuple[Sequence[str], Rows] | None:
        """The most frequent names of the first kind."""
        names = cls.names(results).names[0][:count]
        keys = np.arange(len(names), dtype=np.uint64)
        return [name.decode("utf-8", "replace") for name in names], results.pull(TABLE, keys)

    @classmethod
    def result_files(cls, settings: JobSettings) -> Sequence[str]:
        return (f"{settings.output}.npz",)

    # --- at a worker -------------------------------------------------------------------------

    def tables(self) -> Sequence[Table]:
        """Declare one table, for all kinds of names."""
        s = self.settings
        scale = s.first_scale  # type: ignore[attr-defined]
        own: dict[str, Any] = {"access": s.method, "lr": s.rate, "wire": s.wire, "seed": s.seed}
        if s.method == "adagrad":
            own["eps"] = s.eps
        return (Table(TABLE, self.row_dim(s), init=self.init, scale=scale, **own),)

    def survey_part(self) -> SurveyPart:
        return NamePart(self)

    def read(self, block: Block) -> Columns:
        columns = self.columns_of(self.settings)
        return columns.read(block.data, block.path, block.start, block.head())

    @cached_property
    def split(self) -> HeldOutSplit | None:
        """What is held out of the training; None: nothing."""
        return HeldOutSplit.of(self.held_out(self.settings), self._names.rest)

    @cached_property
    def _names(self) -> Names:
        """Names of the survey, until `forget_names`."""
        return Names(self.summary)

    def forget_names(self) -> None:
        """Free the names, some 150 bytes each, and the survey's text of them, once all lines are
        numbered."""
        if self.__dict__.pop("_names", None) is not None:
            self.summary = b""
            release_memory()

    def setup(self) -> None:
        s = self.settings
        self._seen = SeenBlocks[NumberedLines](s.epochs, LINES_BYTES)
        dim = self.row_dim(s)
        parts = 1 + (s.method == "adagrad")
        layout = RowLayout.padded(dim, parts)
        self.method = METHODS[s.method]
        self.sgd = LocalSgd(self, layout, state=True, project=self.projection())
        self.estimate = DriftEstimate(
            self.method,
            dim,
            far=FAR,
            least=s.eps if parts > 1 else 0.0,
            others_least=self.others_least(),
        )
        self.span_least = s.shared
        # With clocks, a step reads its rows once.
        apart = None if is_clocked(type(self), s) else lines_apart
        self.rows = (CopiedRows(self.sgd, TABLE, apart=apart),)
        if steps_of(s).rows_may_stay:
            self.prefetch = 2
            self.rows = (
                KeptRows(
                    self.sgd,
                    TABLE,
                    self.estimate,
                    rule=RULE,
                ),
            )

    def prepare(self, block: Block) -> Prepared:
        """Number a block's lines, draw candidates for negatives, and start to pull rows."""
        lines = self._lines(block)
        n = len(lines)
        metrics = {"units": float(n)}
        if n == 0:
            return Prepared(None, 0, metrics)
        random = np.random.default_rng(block.seed)
        order = random.permutation(n)
        places = lines.places.take(order, axis=1)
        values = lines.values[order] if len(lines.values) else lines.values
        noise = self._candidates(n, random) if self.draws else np.zeros(0, np.uint64)
        (rows,) = self.rows
        found = [rows.find(lines.keys), rows.find(noise)]
        asked = self.ask(block, [found], n)
        batch = LineBatch(found[0].places.take(places), values, found[1].places)
        return Prepared(batch, n, metrics, asked)

    def _lines(self, block: Block) -> NumberedLines:
        """Get a block's numbered lines, from memory if it was read in an earlier epoch."""
        seen = self._seen.find(block)
        if seen is not None:
            return seen
        ids, values = self.numbered(block)
        keys, places, at = [], [np.zeros(0, np.int32)] * len(ids), 0
        for kind in range(len(self.kinds)):
            here = [i for i, of in enumerate(self.kind_of_column) if of == kind]
            used, numbered = distinct([ids[i] for i in here], len(self._names.names[kind]))
            for i, found in zip(here, numbered, strict=True):
                places[i] = found + np.int32(at)
            keys.append(self.keys_of(kind, used))
            at += len(used)
        lines = NumberedLines(np.concatenate(keys), np.array(places, np.int32), values)
        self._seen.keep(block, lines, lines.size_bytes)
        return lines

    def numbered(self, block: Block) -> tuple[list[Numbers], Floats]:
        """Number the names in each column of a block, and encode its values."""
        columns = self.learnt(self.read(block))
        if self.split is not None:
            columns = self.split.trained(columns)
        block._data = None
        pairs = zip(self.kind_of_column, columns.names, strict=True)
        ids = [self._names.numbers(kind, names) for kind, names in pairs]
        if len(columns) and min(int(numbers.min()) for numbers in ids) < 0:
            raise DataError(
                f"{block.path}, bytes from {block.start:,}: has names that the survey has not "
                "seen: the file has changed since"
            )
        return ids, self.values_of(columns.values)

    def _candidates(self, lines: int, random: np.random.Generator) -> Keys:
        """Draw the keys from which a block's negatives come: all, or as many as it can use."""
        names = len(self._names.names[self.noise_kind])
        s = self.settings
        drawn = -(-lines // s.shared) * s.negatives
        wanted = max(NOISE_MIN, drawn // NOISE_USES)
        drawn_all = 2 * wanted >= names
        ids = np.arange(names) if drawn_all else np.unique(random.integers(0, names, wanted))
        return self.keys_of(self.noise_kind, ids)

    def of_part(self, part: Span, rates: Rates) -> dict[str, Any]:
        """Make the arguments of each kernel: lines, step sizes, optimizer."""
        s, steps = self.settings, {"lr_start": rates[0], "lr_stop": rates[1]}
        lines = {"first": part[0], "last": part[1]}
        return {"method": self.method, "l2": s.decay, "eps": s.eps, **steps, **lines}

    def rates(self, block: Block) -> Rates:
        begin, end = map(self.rate, block.progress)
        return begin, end

    def rate(self, progress: float) -> float:
        """Step size at a progress of the training, 0 to 1."""
        s = self.settings
        return max(RATE_LEAST, s.rate * (1 - (1 - s.lr_end) * progress))

    def step(
        self, batch: LineBatch, rows: Sequence[Trained], span: Span, rates: Rates, seed: int
    ) -> Sums:
        ((trained,),) = rows
        results = self.results_of(self.begin(batch, trained, span, rates, seed))
        return sum(loss for loss, _ in results), float(span[1] - span[0])

    def begin(
        self, batch: LineBatch, trained: Floats, span: Span, rates: Rates, seed: int
    ) -> list[Future[Sums]]:
        """Start to train lines of a batch, a range in each thread."""
        parts = max(1, min(self.threads, (span[1] - span[0]) // (4 * self.settings.shared)))
        edges = np.linspace(span[0], span[1], parts + 1).astype(int).tolist()

        def train(part: Span, seed: int) -> Sums:
            return self.train_part(batch, trained, part, rates, seed & MASK64), part[1] - part[0]

        return [
            self.sgd.start(train, part, seed + span[0] + number)
            for number, part in enumerate(itertools.pairwise(edges))
        ]

    def judged(self, batch: LineBatch, rows: Sequence[Trained], sums: Sums) -> Mapping[str, float]:
        """The loss is NaN if rows have diverged, because clipped scores may hide that."""
        ((trained,),) = rows
        weights = trained[batch.places[:, -CHECKED:], : self.sgd.layout.dim]
        return {"loss": sums[0] if are_bounded(weights) else float("nan"), "examples": sums[1]}

    def count_steps(self, batch: LineBatch, rows: Sequence[Trained], rate: float) -> None:
        """Count steps on rows in a sample of the block, and measure how far a step goes."""
        (shared,), ((trained,),) = self.rows, rows
        sample = trained[batch.places[:, :CHECKED].ravel(), : self.sgd.layout.dim]
        self.estimate.a_step = rate * self.curvature(sample)
        self.estimate.a_factor_step = rate * FACTOR_STEP
        lines = min(len(batch), SAMPLE)
        places = [batch.places[:, :lines].ravel()]
        weights = [np.ones(len(places[0]), np.float32)]
        if len(batch.noise):  # all negatives together weigh as much as one end of each line
            places.append(batch.noise)
            weights.append(np.full(len(batch.noise), lines / len(batch.noise), np.float32))
        shared.saw(
            np.concatenate(places), lines, lines / len(batch), weights=np.concatenate(weights)
        )

    def scales(
        self, batch: LineBatch, rows: Sequence[Trained], rate: float
    ) -> Sequence[Scale | None]:
        return [partial(self._scale, batch, rate)]

    def _scale(self, batch: LineBatch, rate: float, trained: Trained, deltas: Floats) -> None:
        dim = self.sgd.layout.dim
        own = np.bincount(batch.places.ravel(), minlength=len(deltas)).astype(np.float32)
        if len(batch.noise):
            own[batch.noise] += np.float32(len(batch) / len(batch.noise))
        (rows,) = trained
        root = np.float32(1)
        if self.method == METHODS["adagrad"]:
            stride = self.sgd.layout.stride
            root = np.sqrt(rows[:, stride : stride + dim].mean(1)) + np.float32(self.settings.eps)
        curvature = np.float32(rate * self.curvature(rows[:CHECKED, :dim]))
        own /= root
        weights = np.ascontiguousarray(deltas[:, :dim])
        Contention(own, own * np.float32(self.workers - 1), curvature).scale(weights)
        deltas[:, :dim] = weights


def _whole(pieces: Iterable[Floats], count: int) -> Floats:
    """Join pieces of `count` rows in all, copying each once."""
    whole, done = np.zeros((count, 0), np.float32), 0
    for piece in pieces:
        if not done:
            whole = np.empty((count, piece.shape[1]), np.float32)
        whole[done : done + len(piece)] = piece
        done += len(piece)
    return whole


def lines_apart(rows: int) -> int:
    """Lines between two exchanges of a block with this many copied rows."""
    return max(SPAN_MIN, rows // ROWS_A_LINE)
