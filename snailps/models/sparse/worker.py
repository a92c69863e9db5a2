"""Base class of models of sparse examples: a block's rows, with their state, trained locally.

    survey (only with min_count): features of a block -> counts -> one filter, merged at the master
    prepare: bytes -> Batch -> PULL of its new rows with state   (next block, during the training)
    train: rows -> kernel threads (Hogwild) -> deltas with state -> PUSH

Rows are in table `TABLE`: `dim` weights, then the state of the optimiser, which runs at the worker;
the deltas that it pushes add up (sgd, adagrad, ftrl).  A subclass defines what a row means and
what a step does: `tables`, `train_part`, `scores`.  A worker keeps its rows and exchanges them
(`shared_rows`); with bsp, ssp and `expire_after` it trains copies, pulled and pushed with every
block (`local_sgd`).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.passes import EPOCHS, Passes
from snailps.api.tables import Table
from snailps.api.worker import Block, Results, Surveyor, Worker
from snailps.config import JobSettings
from snailps.data._admission import Admission, Admitted
from snailps.data._examples import Examples
from snailps.data._key_numbering import number_keys
from snailps.data.encoding import Encoding
from snailps.data.reading import Reading
from snailps.errors import DataError
from snailps.models.local_sgd import Copies, LocalSgd, RowLayout
from snailps.models.packed_tables import NoSurvey, put_tables
from snailps.models.shared_rows import DRIFT, STEPS_MIN, Found, KeptRows, SharedRows
from snailps.models.sparse import evaluate
from snailps.models.sparse.batch import (
    BIAS_KEY,
    PIECE_BYTES,
    TABLE,
    Batch,
    Floats,
    Keys,
    batch_reader,
    check_classes,
)
from snailps.models.sparse.delta_shares import Shares, motion_of, set_step
from snailps.models.sparse.sample import encoded
from snailps.models.sparse.seen_blocks import SeenBlocks
from snailps.models.sparse.settings import (
    METHODS,
    ClassesSettings,
    SparseSettings,
    check_method,
)

log = logging.getLogger(__name__)

BLOCK_BYTES_MAX = 16 << 20
"""Some 60,000 examples of 39 features; copies of more rows would not fit in the caches."""
BLOCK_BYTES_KEPT = 4 << 20
"""The same of kept rows, which travel by rounds: smaller blocks take less memory."""
BLOCK_BYTES_ALONE = 8 << 20
"""The same of an only worker: each block costs master and worker some 3 ms of Python."""
ROUND_BLOCKS = 4
"""Blocks of a round of kept rows, at least; a worker that dies loses what it had not pushed."""
ROUND_EXAMPLES = 250_000
"""Examples of a round; log loss and traffic by this and the next: docs/design/shared-rows.md."""
ROUND_PART = 1 / 40
"""Part of an epoch that a round is."""
ROUND_PART_FTRL = 1 / 16
"""The same with FTRL, whose sums add up exactly."""
ROUND_PART_ALONE = 3 / 16
"""The same of an only worker; of more epochs than `EPOCHS` as large a part of all of them."""
ROUND_EXAMPLES_ALONE = 1_000_000
"""`ROUND_EXAMPLES` of an only worker: about a second's work."""
ROUND_WORKERS = 8
"""From this many workers a round is a part of each worker's share of an epoch, as it is with 8."""
ENOUGH_BYTES = 64 << 20
"""Bytes of all epochs of a small input: about a second's work."""
ENOUGH_BYTES_FALLING = 4 << 20
"""The same where the step size falls over the job, which has no other end."""
BLOCK_BYTES_SMALL = 1 << 20
"""Bytes below which the lease of a block costs more than a tenth of its training."""
ENTRIES_A_THREAD = 1 << 12
"""Fewer entries are trained before another thread has woken."""
SAMPLE = 1 << 16
"""Entries of a block whose steps are counted, at most: a counted one costs half a step."""
EPS = 1e-8
"""Epsilon of AdaGrad, the default of tables."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
RATE_LEAST = 1e-9
"""Least rate: kernels divide by it."""


@dataclass(slots=True)
class Prepared:
    """A prepared block: examples, and their rows, either copies being pulled or kept ones.

    Only with kept rows there may be several batches, whose places are those of the kept rows.
    """

    batches: list[Batch]
    copies: Copies | None = None
    kept: KeptRows | None = None


class SparseWorker(Worker):
    """Base class of models of sparse examples; see the module's docstring."""

    _has_told = False  # whether a malformed line was reported
    _has_begun = False  # whether it was given a block
    shared_rows: SharedRows | None = None
    _bias_mean: Floats | None = None
    """Change of the bias's packed row by an example, in the previous block."""

    Settings: ClassVar[type[JobSettings]] = SparseSettings
    settings: SparseSettings
    unit: ClassVar[Literal["line", "word"]] = "line"
    counts: ClassVar[Literal["examples", "words"]] = "examples"
    completed: ClassVar[tuple[str, ...]] = ("columns", "encoding")
    falling: ClassVar[tuple[str, ...]] = ("sgd",)
    """Methods whose step size falls over the job; ftrl's is the table's."""
    drift: ClassVar[float] = DRIFT

    # --- to be written by the model --------------------------------------------------------

    @abstractmethod
    def tables(self) -> Sequence[Table]:
        """`TABLE`, made by `table`, and other tables of the model."""

    @abstractmethod
    def train_part(
        self,
        batch: Batch,
        rows: Floats,
        part: tuple[int, int],
        rates: tuple[float, float],
        *,
        shared: bool,
    ) -> tuple[float, float]:
        """Train `rows` (keys, dim + state) in place on examples ``range(*part)``; loss, weight.

        Called by several threads at once; `shared`: they write to the same rows.  `rates` are the
        step sizes before and after the part; loss and weight are sums, losses those before each
        step.
        """

    @classmethod
    @abstractmethod
    def scores(
        cls, settings: JobSettings, rows: Floats, batch: Batch, extras: Mapping[str, Floats]
    ) -> Floats:
        """Scores (n, outputs) of a batch before any link; `rows` are weights of `batch.keys`."""

    @classmethod
    def stored_scores(cls, results: Results, batch: Batch, extras: Mapping[str, Floats]) -> Floats:
        """Like `scores`, with the servers' rows, at the master."""
        return cls.scores(results.settings, results.pull(TABLE, batch.keys), batch, extras)

    @classmethod
    def has_bias(cls, settings: JobSettings) -> bool:
        """Whether every example has a constant feature, a row of key `BIAS_KEY`."""
        return True

    @classmethod
    def has_constant(cls, settings: JobSettings) -> bool:
        """Whether a constant can be added to all scores."""
        return cls.has_bias(settings)

    @classmethod
    def constant_loss(cls, settings: JobSettings) -> float:
        """Loss of the best constant score on a sample of labels; of targets half their variance."""
        assert isinstance(settings, SparseSettings)
        encoding = Encoding.of_text(settings.encoding)
        if settings.loss == "squared" and not encoding.is_plain_target:
            return encoding.deviation**2 / 2
        return encoding.constant

    @classmethod
    def extras(cls, results: Results) -> Mapping[str, Floats]:
        """Arrays that the model in training has besides its rows, by name."""
        return {}

    @classmethod
    def farthest(cls, settings: JobSettings) -> float:
        """`farthest` of `Encoding.measured`: how far from 0 columns are centred; 0: none is."""
        return 0.0

    @classmethod
    def centred_rows(cls, results: Results) -> Floats:
        """Rows of the centred columns, as they were trained."""
        assert isinstance(results.settings, SparseSettings)
        keys = Encoding.of_text(results.settings.encoding).centred_keys
        if len(keys) == 0:
            return np.empty((0, results.tables[TABLE].dim), np.float32)
        return results.pull(TABLE, keys)

    @classmethod
    def decoded(cls, settings: JobSettings, keys: Keys, rows: Floats, centred: Floats) -> Floats:
        """Rows (n, dim) of the finished model, for values and targets as they are written.

        The default is for rows of weights: times the factors of values and targets; the bias less
        what `centred` rows have added, and with the mean of targets.
        """
        assert isinstance(settings, SparseSettings)
        encoding = Encoding.of_text(settings.encoding)
        made: Floats = rows * factors_of(settings, keys)[:, None]
        constant = cls.constant_of(encoding, centred)
        made[keys == BIAS_KEY] = rows[keys == BIAS_KEY] + constant
        made *= np.float32(encoding.deviation)
        made[keys == BIAS_KEY] += np.float32(encoding.centre)
        return made

    @classmethod
    def constant_of(cls, encoding: Encoding, centred: Floats) -> Any:
        """What centres add to the scores, float64 (outputs,), or a number."""
        return -(encoding.offsets @ centred)

    @classmethod
    def decoded_extras(cls, results: Results) -> dict[str, NDArray[Any]]:
        """Arrays of the finished model's file besides its rows.

        ``intercept``, float64 (1,), of models of targets: added to scores without a bias, whose row
        has no room for all digits of a large mean.
        """
        settings = results.settings
        assert isinstance(settings, SparseSettings)
        if settings.loss != "squared":
            return dict(cls.extras(results))
        encoding, constant = Encoding.of_text(settings.encoding), 0.0
        if cls.has_bias(settings):
            constant = float(results.pull(TABLE, np.array([BIAS_KEY], np.uint64))[0, 0])
            constant += float(np.ravel(cls.constant_of(encoding, cls.centred_rows(results)))[0])
        intercept = np.array([constant * encoding.deviation + encoding.centre])
        return {**cls.extras(results), "intercept": intercept}

    # --- at the master -----------------------------------------------------------------------

    @classmethod
    def reading(cls, settings: JobSettings) -> Reading:
        assert isinstance(settings, SparseSettings)
        return settings.reading()

    @classmethod
    def adopt(cls, settings: JobSettings, explicit: Callable[[str], str | None]) -> JobSettings:
        """Declare all columns of an input of tables; encode labels and values by a sample."""
        assert isinstance(settings, SparseSettings)
        declared = evaluate.with_columns(settings)
        return encoded(
            declared,
            has_constant=cls.has_constant(declared),
            is_drawn=cls.shuffles(declared),
            farthest=cls.farthest(declared),
        )

    @classmethod
    def check(cls, settings: JobSettings) -> None:
        """Refuse unsupported optimisers, and hold-out files with a malformed beginning."""
        assert isinstance(settings, SparseSettings)
        why = "whose workers run the optimiser and push differences of weights and state"
        check_method(settings, METHODS, f"{cls.__name__}, {why}")
        evaluate.check_input(cls, settings)

    @classmethod
    def check_batch(cls, settings: JobSettings, batch: Batch, where: str) -> None:
        """Refuse examples that the model cannot train on; called before and during the job."""
        if isinstance(settings, ClassesSettings):
            check_classes(batch, settings.classes, where)

    @classmethod
    def shuffles(cls, settings: JobSettings) -> bool:
        assert isinstance(settings, SparseSettings)
        return settings.draws_order

    @classmethod
    def block_bytes(cls, settings: JobSettings, total_bytes: int, workers: int) -> int:
        """A tenth of an epoch, for several workers a twentieth of each one's share.

        Where that is less than what pays for a lease, up to a fifth of a worker's share, and all of
        it if there are 20 epochs; the job makes it a tenth of an epoch at most, or more if it has
        many.  Copies of rows grow stale, so a block of those is an eightieth of the share.
        """
        assert isinstance(settings, SparseSettings)
        keeps = cls.keeps_rows(settings)
        most = BLOCK_BYTES_KEPT if keeps else BLOCK_BYTES_MAX
        most = BLOCK_BYTES_ALONE if keeps and workers == 1 else most
        share = total_bytes // (10 if workers == 1 else 20 * workers)
        if keeps:
            parts = max(1, min(5, 20 // settings.epochs)) * workers
            share = max(share, min(BLOCK_BYTES_SMALL, total_bytes // parts))
        elif workers > 1:
            share = total_bytes // (80 * workers)
        return max(512, min(most, share))

    @classmethod
    def passes(cls, settings: JobSettings, total_bytes: int) -> Passes:
        """Small inputs get as many epochs as `ENOUGH_BYTES` allows, while the loss falls."""
        assert isinstance(settings, SparseSettings)
        ends = settings.method not in cls.falling
        enough_bytes = ENOUGH_BYTES if ends else ENOUGH_BYTES_FALLING
        return Passes.by_size(total_bytes, enough_bytes, ends=ends)

    @classmethod
    def keeps_rows(cls, settings: SparseSettings) -> bool:
        """Whether workers keep their rows from block to block.

        bsp and ssp define which steps of others a block's rows have, and a kept row would not show
        that the servers delete it.
        """
        return settings.consistency == "async" and not settings.expire_after

    @classmethod
    def expires(cls, settings: JobSettings) -> int:
        """Number of examples after which an unused row is deleted."""
        assert isinstance(settings, SparseSettings)
        return int(settings.expire_after * 1e6)

    @classmethod
    def surveyor(cls, settings: JobSettings) -> Surveyor | None:
        """Counts features if `min_count` is above 1."""
        assert isinstance(settings, SparseSettings)
        if settings.min_count > 1:
            return _Counting(settings)
        return NoSurvey() if settings.continue_from else None

    @classmethod
    def loader(cls, settings: JobSettings) -> Callable[[Results], None] | None:
        assert isinstance(settings, SparseSettings)
        return put_tables if settings.continue_from else None

    @classmethod
    def judge(cls, results: Results) -> Mapping[str, Any]:
        """Metrics of the finished model on the hold-out files, as `test`."""
        assert isinstance(results.settings, SparseSettings)
        if not results.settings.test:
            return {}
        return {"test": evaluate.evaluate(cls, results)}

    # --- at a worker -------------------------------------------------------------------------

    def table(self, dim: int, **options: Any) -> Table:
        s = self.settings
        own: dict[str, Any] = {
            "access": s.method,
            "lr": s.lr,
            "l1": s.l1,
            "l2": s.l2,
            "beta": s.beta,
        }
        own |= {"seed": s.seed, "track": "touch" if s.expire_after else "", "wire": s.wire}
        if s.method != "ftrl":
            own |= {"l1": 0.0, "l2": 0.0}
        return Table(TABLE, dim, **own | options)

    def survey(self, block: Block) -> bytes:
        if self.settings.min_count == 1:
            return b""
        reader = batch_reader(self.settings)
        examples = reader.parse_block(block)
        keys, places = number_keys(examples.keys)
        counts = np.minimum(np.bincount(places, minlength=len(keys)), self.settings.min_count)
        return keys.tobytes() + counts.astype(np.uint8).tobytes()

    def setup(self) -> None:
        _keep_memory()
        s = self.settings
        _, table = self._find(TABLE)
        layout = self.row_layout(table)
        self.shares = self.make_shares(table, layout)
        keeps = self.keeps_rows(s)
        self.prefetch = 2 if keeps else 1
        self._reader = batch_reader(
            s,
            threads=self.threads,
            bias=self.has_bias(s),
            admitted=Admitted(self.summary) if self.summary else None,
            trains=True,
        )
        self._loss_unit = loss_unit(s)
        derive = None
        if s.method == "ftrl":
            derive = partial(kernels.ftrl_weights, outputs=table.dim, lr=s.lr, l1=s.l1, beta=s.beta)
        self.sgd = LocalSgd(self, layout, state=True, derive=derive)
        self.shared_rows = None
        self._seen = SeenBlocks(s.epochs)
        if keeps:
            self.shared_rows = SharedRows(
                self.sgd,
                TABLE,
                motion_of(self.shares),
                round_blocks=ROUND_BLOCKS,
                steps_min=max(STEPS_MIN, layout.width / 2),  # wide rows cost more to exchange
                drift=self.drift,
                fill_first=_fill_zeros if table.init == "zeros" else None,
            )

    def make_shares(self, table: Table, layout: RowLayout) -> Shares:
        """Scaling of deltas; all numbers of a row are weights of outputs, unless overridden."""
        s, dim = self.settings, table.dim
        return Shares(s, self.workers, s.loss, dim, stride=layout.stride, outputs=dim, eps=EPS)

    def row_layout(self, table: Table) -> RowLayout:
        """Layout of rows that `train_part` takes: packed, unless overridden."""
        return RowLayout(table.dim, 1 + table.state_floats // table.dim, table.dim)

    def workers_changed(self) -> None:
        self.shares = replace(self.shares, workers=self.workers)
        if self.shared_rows is not None:
            self.shared_rows.workers = self.workers

    @property
    def owes(self) -> bool:
        return self.shared_rows is not None and self.shared_rows.owes

    def prepare(self, block: Block) -> Prepared:
        """Parse the block, number its features, start to pull rows with their state."""
        if self.shared_rows is not None:
            prepared = self._prepare_kept(block, self.shared_rows)
        else:
            prepared = self._with_copies(self._in_order(self._reader.read_block(block), block))
        for batch in prepared.batches:
            self._look_at(batch, block)
        return prepared

    def _in_order(self, batch: Batch, block: Block) -> Batch:
        return batch.drawn(block.seed) if self.settings.draws_order else batch

    def _look_at(self, batch: Batch, block: Block) -> None:
        """Check a block's examples, log the first malformed line, drop the text."""
        where = block.path if block.place else f"{block.path}, bytes from {block.start:,}"
        self.check_batch(self.settings, batch, where)
        if batch.bad and not self._has_told:
            self._has_told = True
            log.warning("%s. Left out, as others like it will be", self._reader.first_bad)
        block._data = None  # the largest thing here

    def _prepare_kept(self, block: Block, shared: SharedRows) -> Prepared:
        """Like `prepare`, with kept rows; a block that was seen is neither read nor parsed."""
        if not self._has_begun and not (block.first and self.loader(self.settings) is None):
            shared.begin_known()
        self._has_begun = True
        seen = self._seen.find(block, shared.numbering)
        if seen is not None:
            units = sum(len(batch) for batch in seen)
            kept = shared.ask(list(_found_again(seen, shared)), self._round_part(block, units))
            return Prepared([self._in_order(batch, block) for batch in seen], kept=kept)
        prepared = self._placed(block, shared)
        self._seen.keep(block, shared.numbering, prepared.batches)
        return prepared

    def _placed(self, block: Block, shared: SharedRows) -> Prepared:
        """Read a block and give its features places among the kept rows."""
        if self.summary:  # the filter needs a block's distinct keys
            batch = self._in_order(self._reader.read_block(block), block)
            found = shared.find(batch.keys)
            kept = shared.ask([found], self._round_part(block, len(batch)))
            bias = int(found.places[batch.bias]) if batch.bias >= 0 else -1
            return Prepared(
                [replace(batch, places=found.places[batch.places], bias=bias)], None, kept
            )

        def find(examples: Examples) -> tuple[Examples, Found]:
            examples = self._reader.encoded(examples)
            return examples, shared.find(examples.keys)

        parts = block.open_parts(PIECE_BYTES) if self._reader.knows_format(block) else None
        if parts is not None:
            with contextlib.closing(parts):
                pieces = self._reader.pieces_of(parts, find)
        elif block.read_texts is None:
            pieces = self._reader.pieces(block.data, find, block.path, block.start, block.place)
        else:  # of one file each: together, to be drawn together
            pieces = [find(self._reader.parse_block(block))]
        block._data = None
        of_bias = shared.find(np.full(int(self.has_bias(self.settings)), BIAS_KEY, np.uint64))
        examples = sum(len(examples.labels) for examples, _ in pieces)
        kept = shared.ask(
            [*(found for _, found in pieces), of_bias], self._round_part(block, examples)
        )
        at = int(of_bias.places[0]) if len(of_bias.places) else -1
        batches = [
            self._in_order(self._reader.placed(examples, found.places, at, block.path), block)
            for examples, found in pieces
        ]
        return Prepared(batches, kept=kept)

    def _round_part(self, block: Block, examples: int) -> float:
        before, after = block.progress
        epochs = self.settings.epochs
        of_epoch = (after - before) * (min(EPOCHS, epochs) if self.workers == 1 else epochs)
        part = ROUND_PART_FTRL if self.settings.method == "ftrl" else ROUND_PART
        part *= min(1.0, ROUND_WORKERS / self.workers)
        if self.workers == 1:
            return max(of_epoch / ROUND_PART_ALONE, examples / ROUND_EXAMPLES_ALONE)
        return max(of_epoch / part, examples / ROUND_EXAMPLES)

    def _with_copies(self, batch: Batch) -> Prepared:
        if len(batch) == 0:
            return Prepared([batch])
        return Prepared([batch], self.sgd.pull({TABLE: batch.keys}))

    def train(self, block: Block) -> Mapping[str, float]:
        """Train on kept rows, or on local copies whose deltas are pushed."""
        prepared: Prepared = block.prepared
        batches = prepared.batches
        rates = self.rates(block)
        units = sum(len(batch) for batch in batches)
        bad = sum(batch.bad for batch in batches)
        metrics = {"units": float(units), "lr": rates[1], "bad_lines": float(bad)}
        if prepared.kept is not None:
            loss, weight = self._train_kept(batches, prepared.kept, rates)
            told = {"loss": loss * self._loss_unit, "examples": weight}
            return {**metrics, **told} if units else metrics
        if prepared.copies is None:  # nothing to learn from
            return metrics
        (batch,) = prepared.batches
        ((rows,),) = self.sgd.load(prepared.copies).values()
        loss, weight = self._train_batches([batch], rows, rates)
        loss *= self._loss_unit

        def share(_table: str, trained: tuple[Floats, ...], deltas: Floats) -> None:
            step = self.shares.step(batch, trained[0], deltas, rates[0])
            counts = self.shares.counts(batch, len(deltas))
            self.sgd.in_threads(partial(self.shares.scale, step), *trained, deltas, counts)

        self.sgd.push(prepared.copies, share if self.workers > 1 else None)
        return {**metrics, "loss": loss, "examples": weight}

    def _train_kept(
        self, batches: Sequence[Batch], kept: KeptRows, rates: tuple[float, float]
    ) -> tuple[float, float]:
        shared = self.shared_rows
        assert shared is not None
        rows = shared.ready(kept)
        units = sum(len(batch) for batch in batches)
        loss = weight = 0.0
        if self.workers == 1:
            loss, weight = self._train_batches(batches, rows, rates)
            shared.exchange(units)
        elif units:
            bias = slice(max(0, batches[0].bias), batches[0].bias + 1)  # its row, or none
            moved = np.zeros(rows.shape[1], np.float32)  # of the bias, by this worker
            seen = None if self._bias_mean is None else self._bias_mean * np.float32(units)
            set_step(shared.motion, self.shares.step_of(batches, seen, rates[0]))
            self._count(batches, units, shared)
            done = 0
            for batch in batches:
                first = 0
                while first < len(batch):
                    last = min(len(batch), first + shared.span())
                    at = (done + first) / units, (done + last) / units
                    span_rates = (
                        rates[0] + (rates[1] - rates[0]) * at[0],
                        rates[0] + (rates[1] - rates[0]) * at[1],
                    )
                    before = rows[bias].copy()
                    of_span = self._train_span(batch, rows, (first, last), span_rates)
                    moved += (rows[bias] - before).sum(0)
                    loss, weight = loss + of_span[0], weight + of_span[1]
                    shared.exchange(last - first)
                    first = last
                done += len(batch)
            if bias.stop and self.shares.counts_steps(rows[bias][0]):  # else as it was before
                layout = self.sgd.layout
                parts = moved.reshape(layout.parts, layout.stride)[:, : layout.dim]
                self._bias_mean = parts.ravel() / np.float32(units)
        if kept.closes:
            shared.close_round()
        return loss, weight

    @staticmethod
    def _count(batches: Sequence[Batch], units: int, shared: SharedRows) -> None:
        """Count steps on rows in a sample of a block: the beginning of each batch."""
        entries = sum(len(batch.places) for batch in batches)
        share = min(1.0, SAMPLE / max(1, entries))
        places, examples = [], 0
        for batch in batches:
            some = int(np.ceil(len(batch) * share))
            places.append(batch.places_of_first(some))
            examples += some
        if batches[0].bias >= 0:
            places.append(np.full(examples, batches[0].bias, np.int32))
        shared.saw(np.concatenate(places), examples, examples / units)

    def _train_span(
        self,
        batch: Batch,
        rows: Floats,
        span: tuple[int, int],
        rates: tuple[float, float],
    ) -> tuple[float, float]:
        """Train on examples ``range(*span)`` with all threads; loss, weight."""
        if self.threads == 1:
            return self.train_part(batch, rows, span, rates, shared=False)
        edges = batch.edges(self.threads, *span)
        parts = list(itertools.pairwise(edges))
        tasks = [
            self.sgd.pool.submit(self.train_part, batch, rows, part, rates, shared=len(parts) > 1)
            for part in parts
        ]
        results = [task.result() for task in tasks]
        return sum(loss for loss, _ in results), sum(weight for _, weight in results)

    def rates(self, block: Block) -> tuple[float, float]:
        """Step sizes before and after a block: they fall to 0 if the method is in `falling`."""
        lr = self.settings.lr
        if self.settings.method not in self.falling:
            return lr, lr
        before, after = block.progress
        return max(RATE_LEAST, lr * (1 - before)), max(RATE_LEAST, lr * (1 - after))

    def finish(self) -> None:
        if self.shared_rows is not None:
            self.shared_rows.flush()
        self.sgd.close()
        self._reader.close()

    def _train_batches(
        self, batches: Sequence[Batch], rows: Floats, rates: tuple[float, float]
    ) -> tuple[float, float]:
        """Train on a block's batches with as many threads as pay; loss, weight."""
        entries = sum(len(batch.places) for batch in batches)
        threads = max(1, min(self.threads, entries // ENTRIES_A_THREAD))
        parts = [
            (batch, part)
            for batch in batches
            for part in itertools.pairwise(batch.edges(-(-threads // len(batches))))
        ]
        # Parts run at once, or nearly so: each has the rates of the whole block.
        if threads == 1 or len(parts) == 1:  # a thread more would have to be woken
            results = [
                self.train_part(batch, rows, part, rates, shared=False) for batch, part in parts
            ]
        else:
            tasks = [
                self.sgd.pool.submit(self.train_part, batch, rows, part, rates, shared=True)
                for batch, part in parts
            ]
            results = [task.result() for task in tasks]
        return sum(loss for loss, _ in results), sum(weight for _, weight in results)


def loss_unit(settings: SparseSettings) -> float:
    """Factor of the loss of encoded targets that makes it the loss of the targets."""
    return Encoding.of_text(settings.encoding).deviation ** 2


def factors_of(settings: SparseSettings, keys: Keys) -> Floats:
    """Factors of features' values in the training, float32 (n,); of the bias 1."""
    factors = Encoding.of_text(settings.encoding).factors_of(keys)
    return np.where(keys == BIAS_KEY, np.float32(1), factors)


class _Counting:
    def __init__(self, settings: SparseSettings) -> None:
        features = settings.expected_features
        if settings.hash_bits:
            features = min(features, 1 << min(settings.hash_bits, 30))
        self._filter = Admission(settings.min_count, features)

    def add(self, part: bytes) -> None:
        """Add a result of `SparseWorker.survey`."""
        if len(part) % 9:
            raise DataError(
                f"a survey's part of {len(part):,} bytes is not a list of 9-byte entries"
            )
        n = len(part) // 9
        keys = np.frombuffer(part, np.uint64, n)
        counts = np.frombuffer(part, np.uint8, n, 8 * n)
        while len(keys):
            self._filter.count(keys)
            more = counts > 1
            keys, counts = keys[more], counts[more] - 1

    def result(self) -> bytes:
        return self._filter.verdict()


def _found_again(batches: Sequence[Batch], shared: SharedRows) -> Iterator[Found]:
    """Places of batches whose numbering is still that of the kept rows."""
    bias = np.array([batches[0].bias], np.int32)
    for places in (*(batch.places for batch in batches), bias[bias >= 0]):
        found = shared.find_again(shared.numbering, places)
        assert found is not None
        yield found


def _fill_zeros(_keys: Keys, rows: Floats) -> None:
    """First values of rows that begin with zeros, and so does their state."""
    rows[:] = 0


def _keep_memory() -> None:
    """Configure glibc to reuse freed memory, as arrays of all blocks are about as large.

    Otherwise the kernel clears 100 MB of pages for each block: 7 % of all CPU time.
    """
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # its maximum
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        mallopt(_M_ARENA_MAX, 1)  # other arenas are too small for such arrays
