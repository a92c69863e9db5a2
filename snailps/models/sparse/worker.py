"""Base class of models of sparse examples: trains the rows of a block locally, with their state.

    survey (only with min_count): features of a block -> counts -> one filter, merged at the master
    prepare: bytes -> Batch -> PULL of its new rows with state   (next block, during the training)
    train: rows -> kernel threads (Hogwild) -> deltas with state -> PUSH

Rows are in table `TABLE`: `dim` weights, then the state of the optimizer, which runs at the worker;
the deltas of sgd, adagrad and ftrl add up.  Owns how a block becomes batches, and how their steps
are counted.  A subclass defines what a row means and what a step does: `tables`, `train_part`,
`scores`.  A worker keeps its rows and exchanges them; with bsp, ssp and `expire_after` it trains
copies (`block_trainer`).  `model.SparseModel` has what the master asks.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from snailps import kernels
from snailps.api.concurrency import COUNTED_FOR, Concurrency
from snailps.api.counting import Counted
from snailps.api.passes import EPOCHS, Passes, share_of_new
from snailps.api.row_updates import RowUpdate
from snailps.api.tables import Table
from snailps.api.traits import Adopted, Reported, Surveyor
from snailps.api.validation import Validation
from snailps.api.worker import Block, Results
from snailps.config import JobSettings
from snailps.config.consistency import steps_of
from snailps.data._admission import Admission, Admitted
from snailps.data._examples import Examples
from snailps.data._key_numbering import number_keys
from snailps.data.examples import ExampleReader, entries_in
from snailps.errors import DataError
from snailps.files.blocks import expand
from snailps.files.input_files import InputFiles
from snailps.files.reading import Reading
from snailps.files.scratch import Scratch
from snailps.models.block_trainer import Prepared, Rates, Span, Sums
from snailps.models.copied_rows import CopiedRows
from snailps.models.exchange_times import DRIFT, STEPS_MIN, ExchangeRule
from snailps.models.kept_rows import KeptRows
from snailps.models.local_sgd import LocalSgd, RowLayout
from snailps.models.losses import LOSSES
from snailps.models.pace import Pace, of_workers
from snailps.models.packed_tables import NoSurvey, opened, read_packed
from snailps.models.rows import RowPlaces, Rows, Scale, Trained
from snailps.models.seen_blocks import SeenBlocks
from snailps.models.sparse import evaluate, warm_start
from snailps.models.sparse.batch import (
    BIAS_KEY,
    PIECE_BYTES,
    TABLE,
    Batch,
    Floats,
    Keys,
    batch_reader,
)
from snailps.models.sparse.clipping import counts_of, judged
from snailps.models.sparse.delta_shares import Shares
from snailps.models.sparse.export import stored_rows, write_npz
from snailps.models.sparse.model import SparseModel, loss_unit
from snailps.models.sparse.sample import encoded
from snailps.models.sparse.settings import (
    METHODS,
    TESTED_LEAST,
    SparseSettings,
    check_method,
)

log = logging.getLogger(__name__)

BLOCK_BYTES_MAX = 16 << 20
"""About 60,000 examples of 39 features; copies of more rows would not fit in the caches."""
BLOCK_BYTES_ALONE = 8 << 20
"""Most bytes of a single worker's block: each costs master and worker some 3 ms of Python."""
PERIOD_BLOCKS = 4
"""Least blocks of a push period; a worker that dies loses what it has not pushed."""
PERIOD_EXAMPLES = 250_000
"""Examples of a period; log loss and traffic by this and the next: docs/lab/shared-rows.md."""
PERIOD_PART = 1 / 40
"""Part of an epoch that a period is."""
PERIOD_PART_FTRL = 1 / 16
"""Part of an epoch that a period is with FTRL, whose sums add up exactly."""
PERIOD_PART_ALONE = 3 / 16
"""Part of an epoch (of training / `EPOCHS` if that is more) in a single worker's period."""
PERIOD_EXAMPLES_ALONE = 1_000_000
"""`PERIOD_EXAMPLES` of a single worker: about a second's work."""
PERIOD_WORKERS = 8
"""Workers beyond which a period shrinks as a worker's share of an epoch does."""
ENOUGH = 8 << 20
"""Entries and labels of all epochs of a small input: about a second's work."""
ENOUGH_FALLING = 512 << 10
"""`ENOUGH` where the step size falls over the job: no loss ends such a job early."""
EXAMPLES_A_WORKER = 200
"""Examples of an epoch that each worker needs: with fewer, several learn less than one.  Squared
losses explain .05 less of the variance where each of several workers has 100 lines, .13 where it
has 75, and up to .04 where it has 150."""
BLOCK_BYTES_SMALL = 1 << 20
"""Bytes below which the lease of a block costs more than a tenth of its training."""
ENTRIES_A_THREAD = 1 << 12
"""Least entries for each thread: fewer are trained before another thread has woken."""
TESTED_SHARE, TESTED_EPOCHS = 0.1, 10
"""Share of examples that is held out to decide the epochs of a model that learns by heart, and the
epochs without a better figure after which it ends."""
SAMPLE = 1 << 16
"""Most entries of a block whose steps are counted: to count one costs half a step."""
EPS = 1e-8
"""AdaGrad's epsilon, the default of tables."""
RATE_LEAST = 1e-9
"""Least rate, because kernels divide by it."""


class SparseWorker(SparseModel, Adopted, Reported):
    """Base class of models of sparse examples; see the module's docstring."""

    _has_reported = False  # whether a malformed line has been logged
    _bias_mean: Floats | None = None
    """Change of the bias's packed row by an example, in the previous block."""
    _bias_moved: Floats | None = None
    """Change of the bias's trained row in this block, by own steps; None: not counted."""

    row_updates: ClassVar[Mapping[str, RowUpdate]] = {
        "gradient of the loss": RowUpdate.STEP,
        "l2 of sgd and adagrad, of each example's features": RowUpdate.STEP,
        "l1 and l2 of ftrl: weights follow from the sums": RowUpdate.READ,
    }
    unit: ClassVar[Literal["line", "word"]] = "line"
    counts: ClassVar[Literal["examples", "words"]] = "examples"
    completed: ClassVar[tuple[str, ...]] = (
        "columns", "encoding", "loss", "classes", "class_weights",
    )  # fmt: skip
    falling: ClassVar[tuple[str, ...]] = ("sgd",)
    """Methods whose step size falls over the job; FTRL's follows from its sums."""
    learns_by_heart: ClassVar[bool] = False
    """Whether its rows can tell single examples apart, so that many epochs learn few by heart."""
    drift: ClassVar[float] = DRIFT
    growth_least: ClassVar[float] = 1 / 8
    """`ExchangeRule.growth_least` with FTRL: what many examples have settled, a few more do not
    move."""
    rare_steps: ClassVar[float] = 1.0
    """`ExchangeRule.rare_steps` with FTRL."""

    # --- to be written by the model --------------------------------------------------------

    @abstractmethod
    def tables(self) -> Sequence[Table]:
        """Declare `TABLE`, by `table`, and the model's other tables."""

    @abstractmethod
    def train_part(
        self, batch: Batch, rows: Floats, part: Span, rates: Rates, *, shared: bool
    ) -> Sums:
        """Train `rows` (keys, dim + state) in place on examples ``range(*part)``.

        Returns the sums of losses, each before its step, and of weights.  Several threads call it
        at once; with `shared` they write the same rows.  `rates` are the step sizes before and
        after the part.
        """

    @classmethod
    def has_constant(cls, settings: JobSettings) -> bool:
        """Whether the model can add a constant to all scores."""
        return cls.has_bias(settings)

    @classmethod
    def counted(cls, settings: SparseSettings, counts: Mapping[str, float], units: int) -> Counted:
        """Have predictions clip values as the training did; refuse a job that clipped many."""
        return judged(settings, counts, units)

    @classmethod
    def farthest(cls, settings: Any) -> float:
        """`farthest` of `Encoding.measured`: how far from 0 columns are centred; 0: none."""
        return 0.0

    # --- at the master -----------------------------------------------------------------------

    @classmethod
    def reading(cls, settings: SparseSettings) -> Reading:
        return settings.reading()

    @classmethod
    def adopt(cls, settings: SparseSettings, explicit: Callable[[str], str | None]) -> JobSettings:
        """Take the settings of a continued model; declare all columns of an input of tables, and
        the classes of labels that are texts.
        """
        begun = warm_start.adopt(cls, settings, explicit)
        named = evaluate.with_names(evaluate.with_columns(begun), explicit)
        return cls._whole_if_few(named, explicit)

    @classmethod
    def measure(cls, settings: SparseSettings, files: InputFiles) -> JobSettings:
        """Encode labels and values by a sample of the input; check all files by that encoding."""
        tested = cls._tested_on_few(settings, files)
        if tested is not settings:
            # Nobody asked for this test, so lines of which none can be held out are all trained.
            with contextlib.suppress(DataError):
                measured = cls._measured(tested, files)
                log.info(
                    "epochs: auto: a tenth of the examples is held out, and decides how many are "
                    "trained; epochs: N trains on all of them"
                )
                return measured
        return cls._measured(settings, files)

    @classmethod
    def _measured(cls, settings: SparseSettings, files: InputFiles) -> JobSettings:
        measured = encoded(
            warm_start.with_labels(cls, settings, files),
            files,
            has_constant=cls.has_constant(settings),
            is_drawn=cls.shuffles(settings),
            farthest=cls.farthest(settings),
        )
        evaluate.check_input(cls, measured)
        evaluate.check_tested(cls, measured, files)
        return measured

    @classmethod
    def check(cls, settings: Any) -> None:
        """Refuse optimizers that do not fit, and hold-out files with malformed first lines."""
        why = "whose workers run the optimizer and push differences of weights and state"
        check_method(settings, METHODS, f"{cls.__name__}, {why}")
        evaluate.check(cls, settings)

    @classmethod
    def shuffles(cls, settings: SparseSettings) -> bool:
        return settings.draws_order

    @classmethod
    def pace(cls, settings: SparseSettings, workers: int) -> Pace:
        """Blocks and periods; copied rows grow stale, so blocks are an eightieth of a share."""
        few, epochs = max(1, min(5, 20 // settings.epochs)), settings.epochs
        if not cls.keeps_rows(settings):
            return of_workers(workers, Pace(10, BLOCK_BYTES_MAX), Pace(80, BLOCK_BYTES_MAX))
        alone = PERIOD_PART_ALONE / min(EPOCHS, epochs)
        part = PERIOD_PART_FTRL if settings.method == "ftrl" else PERIOD_PART
        part *= min(1.0, PERIOD_WORKERS / workers) / epochs
        return of_workers(
            workers,
            Pace(10, BLOCK_BYTES_ALONE, BLOCK_BYTES_SMALL, few, alone, PERIOD_EXAMPLES_ALONE),
            Pace(20, BLOCK_BYTES_MAX, BLOCK_BYTES_SMALL, few, part, PERIOD_EXAMPLES),
        )

    @classmethod
    def passes(cls, settings: SparseSettings, files: InputFiles) -> Passes:
        """Small inputs get the epochs that `ENOUGH` allows, while the loss falls."""
        ends = settings.method not in cls.falling
        enough = ENOUGH if ends else ENOUGH_FALLING
        numbers = entries_in(files, cls._counting(settings), enough // EPOCHS)
        of_numbers = LOSSES[settings.loss].degree > 0
        return Passes.by_size(
            numbers,
            enough,
            ends=ends,
            relative=of_numbers,
            share=share_of_new(settings, files),
            by_heart=cls.learns_by_heart,
        )

    @classmethod
    def workers_at_once(cls, settings: SparseSettings, files: InputFiles) -> Concurrency:
        """A worker for every `EXAMPLES_A_WORKER` examples."""
        each = EXAMPLES_A_WORKER
        most = COUNTED_FOR * each
        examples = entries_in(files, cls._counting(settings), most, labels_only=True)
        return Concurrency.by_size(examples, each, "examples")

    @classmethod
    def _tested_on_few(cls, settings: SparseSettings, files: InputFiles) -> SparseSettings:
        """Hold a tenth of a small input out, to end `epochs: auto` of a model that learns by heart.

        Not where lines decide already, or the training ends by something else, nor of so few lines
        that a tenth of them decides nothing.
        """
        s = settings
        ends = s.epochs or s.max_steps or s.max_seconds or s.target_loss
        is_tested = s.held_out or s.validation or s.stop_after
        if not cls.learns_by_heart or ends or is_tested or s.continue_from or not cls.keeps_rows(s):
            return s
        reader = cls._counting(s)
        examples = entries_in(files, reader, TESTED_LEAST, labels_only=True)
        most = ENOUGH if s.method not in cls.falling else ENOUGH_FALLING
        if examples < TESTED_LEAST or entries_in(files, reader, most // EPOCHS) >= most // EPOCHS:
            return s
        return replace(s, held_out=TESTED_SHARE, stop_after=TESTED_EPOCHS)

    @classmethod
    def _whole_if_few(
        cls, settings: SparseSettings, explicit: Callable[[str], str | None]
    ) -> SparseSettings:
        """Train all of a few lines with which a model goes on, whose file alone holds lines out."""
        s = settings
        is_asked = explicit("held_out") is not None or s.stop_after
        if is_asked or not (s.continue_from and s.held_out and s.input):
            return s
        whole = replace(s, held_out=0.0)
        # What cannot be read is reported by the checks that follow.
        with (
            contextlib.suppress(DataError),
            Scratch(s.scratch_dir, s.scratch_bytes, tables=s.reading()) as scratch,
        ):
            files, reader = InputFiles(expand(s.input, scratch), scratch), cls._counting(whole)
            if entries_in(files, reader, TESTED_LEAST, labels_only=True) < TESTED_LEAST:
                log.info(
                    "held_out: %g, of %s, is not taken over: fewer than %s examples are all "
                    "trained, and not tested. Set held_out to test on some of them",
                    s.held_out, s.continue_from, f"{TESTED_LEAST:,}",
                )  # fmt: skip
                return whole
        return s

    @staticmethod
    def _counting(settings: SparseSettings) -> ExampleReader:
        """What reads the examples that are trained, to count them."""
        return ExampleReader(
            settings.format,
            columns=settings.text_columns,
            hash_bits=settings.hash_bits,  # rows have a side by their keys
            on_bad_line="skip",
            side=settings.side(is_held=False),
        )

    @classmethod
    def keeps_rows(cls, settings: SparseSettings) -> bool:
        """Whether workers keep their rows from block to block.

        Not with bsp and ssp, which define the steps of others that a block's rows have, nor with
        `expire_after`: a kept row would not notice that servers have deleted it.
        """
        return steps_of(settings).rows_may_stay and not settings.expire_after

    @classmethod
    def expires(cls, settings: SparseSettings) -> int:
        """Examples after which an unused row is deleted."""
        return int(settings.expire_after * 1e6)

    @classmethod
    def surveyor(cls, settings: SparseSettings) -> Surveyor | None:
        """Count features if `min_count` is above 1."""
        if settings.min_count > 1:
            return _Counting(settings)
        return NoSurvey() if settings.continue_from else None

    @classmethod
    def loader(cls, settings: SparseSettings) -> Callable[[Results], None] | None:
        return partial(warm_start.put, cls) if settings.continue_from else None

    @classmethod
    def result_files(cls, settings: Any) -> Sequence[str]:
        return (f"{settings.output}.npz",)

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        s = results.settings
        with stored_rows(cls, results) as stored:
            path = write_npz(f"{s.output}.npz", results, stored, cls.decoded_extras(results))
        of_no_bias = 0 if cls.has_bias(s) else len(stored.bias)
        return {"files": [path], "features": stored.features + of_no_bias}

    @classmethod
    def judge(cls, results: Results) -> Mapping[str, Any]:
        """Evaluate the finished model on the hold-out files; the metrics are ``test``."""
        assert isinstance(results.settings, SparseSettings)
        if not results.settings.test:
            return {}
        return {"test": evaluate.evaluate(cls, results, results.settings.test)}

    @classmethod
    def validation(cls, settings: SparseSettings) -> Validation | None:
        return evaluate.validation_of(cls, settings)

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
        examples = batch_reader(self.settings, trains=True).parse_block(block)
        keys, places = number_keys(examples.keys)
        counts = np.minimum(np.bincount(places, minlength=len(keys)), self.settings.min_count)
        return keys.tobytes() + counts.astype(np.uint8).tobytes()

    def setup(self) -> None:
        s = self.settings
        _, table = self._find(TABLE)
        layout = self.row_layout(table)
        self.shares = self.make_shares(table)
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
        self._seen = SeenBlocks[list[Batch]](s.epochs)
        self.rows = (CopiedRows(self.sgd, TABLE),)
        if self.keeps_rows(s):
            self.prefetch = 2
            kept = KeptRows(
                self.sgd,
                TABLE,
                self.shares.estimate,
                rule=ExchangeRule(
                    steps_min=max(STEPS_MIN, layout.width / 2),  # wide rows cost more to exchange
                    drift=self.drift,
                    # With AdaGrad and SGD the first steps on a row are long, and several workers
                    # make them: their rows must not wait.
                    growth_least=self.growth_least if s.method == "ftrl" else 0.0,
                    rare_steps=(
                        0.0 if s.method != "ftrl" or s.saves_checkpoints else self.rare_steps
                    ),
                ),
                period_blocks=PERIOD_BLOCKS,
                fill_first=_fill_zeros if table.init == "zeros" else None,
            )
            self.rows = (kept,)

    def make_shares(self, table: Table) -> Shares:
        """Make the scaling of deltas; by default all numbers of a row are weights of outputs."""
        return Shares(self.settings, table.dim, outputs=table.dim, eps=EPS)

    def row_layout(self, table: Table) -> RowLayout:
        """Choose the layout of rows for `train_part`; by default they are packed."""
        return RowLayout(table.dim, 1 + table.state_floats // table.dim, table.dim)

    def prepare(self, block: Block) -> Prepared:
        """Parse a block, number its features, and start to pull their rows with state.

        A block of an earlier epoch that is still in memory is neither read nor parsed.
        """
        (rows,) = self.rows
        seen = self._seen.find(block, rows.numbering)
        if seen is not None:
            bias = np.array([seen[0].bias], np.int32)
            places = [*(batch.places for batch in seen), bias[bias >= 0]]
            asked = self.ask(block, [[*map(rows.find_again, places)]], _examples_of(seen))
            batches = [self._in_order(batch, block) for batch in seen]
        else:
            batches, asked = self._placed(block, rows)
            if rows.keeps:
                size = sum(batch.nbytes for batch in batches)
                self._seen.keep(block, batches, size, rows.numbering)
        for batch in batches:
            self._look_at(batch, block)
        units, bad = _examples_of(batches), sum(batch.bad for batch in batches)
        metrics = {
            "units": float(units),
            "bad_lines": float(bad),
            **counts_of([batch.beyond for batch in batches]),
        }
        return Prepared(batches, units, metrics, asked)

    def _in_order(self, batch: Batch, block: Block) -> Batch:
        return batch.drawn(block.seed) if self.settings.draws_order else batch

    def _look_at(self, batch: Batch, block: Block) -> None:
        """Check a block's examples, log the first malformed line, free the text."""
        where = block.path if block.place else f"{block.path}, bytes from {block.start:,}"
        self.check_batch(self.settings, batch, where)
        if batch.bad and not self._has_reported:
            self._has_reported = True
            log.warning("%s. This and other malformed lines are left out", self._reader.first_bad)
        block._data = None  # frees the text, the largest thing here

    def _placed(self, block: Block, rows: Rows) -> tuple[list[Batch], tuple[Any, ...]]:
        """Read a block, and give its features places among the rows."""
        if self.summary or not rows.keeps:  # the filter needs a block's distinct keys
            batch = self._in_order(self._reader.read_block(block), block)
            if not (len(batch) or rows.keeps):
                return [batch], ()
            found = rows.find(batch.keys)
            asked = self.ask(block, [[found]], len(batch))
            bias = int(found.places[batch.bias]) if batch.bias >= 0 else -1
            return [replace(batch, places=found.places[batch.places], bias=bias)], asked

        def find(examples: Examples) -> tuple[Examples, Keys, RowPlaces]:
            examples, beyond = self._reader.encoded(examples)
            return examples, beyond, rows.find(examples.keys)

        parts = block.open_parts(PIECE_BYTES) if self._reader.knows_format(block) else None
        if parts is not None:
            with contextlib.closing(parts):
                pieces = self._reader.pieces_of(parts, find)
        elif block.read_texts is None:
            pieces = self._reader.pieces(block.data, find, block.path, block.start, block.place)
        else:  # texts of several files: joined, so that their examples are drawn together
            pieces = [find(self._reader.parse_block(block))]
        block._data = None
        of_bias = rows.find(np.full(int(self.has_bias(self.settings)), BIAS_KEY, np.uint64))
        number = sum(len(examples.labels) for examples, _, _ in pieces)
        asked = self.ask(block, [[*(found for _, _, found in pieces), of_bias]], number)
        at = int(of_bias.places[0]) if len(of_bias.places) else -1
        batches = [
            self._in_order(
                self._reader.placed(examples, found.places, at, block.path, beyond), block
            )
            for examples, beyond, found in pieces
        ]
        return batches, asked

    def step(
        self, batch: Sequence[Batch], rows: Sequence[Trained], span: Span, rates: Rates, seed: int
    ) -> Sums:
        """Train a span, with as many threads as are worth waking."""
        ((trained,),) = rows
        parts, bias = self._parts(batch, span), _bias_of(batch)
        before = trained[bias].copy()
        # Parts run at the same time, so each has the rates of the whole span.
        at_once = self.threads > 1 and len(parts) > 1
        train = partial(self.train_part, rates=rates, shared=at_once)
        if at_once:
            sums = self.results_of(
                [self.sgd.start(train, one, trained, part) for one, part in parts]
            )
        else:
            sums = [self.sgd.run(train, one, trained, part) for one, part in parts]
        if self._bias_moved is not None:
            self._bias_moved += (trained[bias] - before).sum(0)
        return sum(loss for loss, _ in sums), sum(weight for _, weight in sums)

    def _parts(self, batches: Sequence[Batch], span: Span) -> list[tuple[Batch, Span]]:
        """Split a span of the batches' examples into parts for threads."""
        ends = np.cumsum([len(batch) for batch in batches]).tolist()
        of_span = [
            (batch, max(0, span[0] - end + len(batch)), min(len(batch), span[1] - end + len(batch)))
            for batch, end in zip(batches, ends, strict=True)
        ]
        of_span = [(batch, first, last) for batch, first, last in of_span if first < last]
        entries = sum(len(batch.places) for batch in batches) * (span[1] - span[0]) // ends[-1]
        threads = max(1, min(self.threads, entries // ENTRIES_A_THREAD))
        return [
            (batch, part)
            for batch, first, last in of_span
            for part in itertools.pairwise(batch.edges(-(-threads // len(of_span)), first, last))
        ]

    def of_part(self, batch: Batch, part: Span, rates: Rates) -> dict[str, Any]:
        """Make the arguments of each kernel: examples, step sizes, loss, optimizer."""
        s, steps = self.settings, {"lr_start": rates[0], "lr_stop": rates[1]}
        examples = {"first": part[0], "last": part[1], "order": batch.order, "bias": batch.bias}
        how = {"loss": LOSSES[s.loss].code, "method": METHODS[s.method]}
        return {**examples, **steps, **how, "l1": s.l1, "l2": s.l2, "beta": s.beta}

    def judged(
        self, batch: Sequence[Batch], rows: Sequence[Trained], sums: Sums
    ) -> Mapping[str, float]:
        ((trained,),) = rows
        bias, layout = _bias_of(batch), self.sgd.layout
        moved, self._bias_moved = self._bias_moved, None
        # Else the mean of the block before stays.
        if moved is not None and bias.stop and self._shows_steps(trained[bias][0]):
            parts = moved.reshape(layout.parts, layout.stride)[:, : layout.dim]
            self._bias_mean = parts.ravel() / np.float32(_examples_of(batch))
        return {"loss": sums[0] * self._loss_unit, "examples": sums[1]}

    def scales(
        self, batch: Sequence[Batch], rows: Sequence[Trained], rate: float
    ) -> Sequence[Scale | None]:
        def scale(trained: Trained, deltas: Floats) -> None:
            (one,) = batch
            seen = one.bias >= 0 and self._shows_steps(trained[0][one.bias])
            self.shares.measure(batch, deltas[one.bias] if seen else None, rate)
            shared = partial(self.shares.estimate.scale, self.workers - 1)
            self.sgd.in_threads(shared, *trained, deltas, one.counts(len(deltas)))

        return [scale]

    def _shows_steps(self, bias: Floats) -> bool:
        """Whether single steps still show in the sums of squares of the bias's trained row."""
        return self.shares.shows_steps(bias[-self.sgd.layout.stride :])

    def count_steps(self, batch: Sequence[Batch], rows: Sequence[Trained], rate: float) -> None:
        """Count steps on rows in a sample of the block: the first examples of each batch."""
        (shared,), ((trained,),) = self.rows, rows
        units = _examples_of(batch)
        self._bias_moved = np.zeros(trained.shape[1], np.float32)
        seen = None if self._bias_mean is None else self._bias_mean * np.float32(units)
        self.shares.measure(batch, seen, rate)
        entries = sum(len(one.places) for one in batch)
        share = min(1.0, SAMPLE / max(1, entries))
        places, examples = [], 0
        for one in batch:
            sampled = int(np.ceil(len(one) * share))
            places.append(one.places_of_first(sampled))
            examples += sampled
        if batch[0].bias >= 0:
            places.append(np.full(examples, batch[0].bias, np.int32))
        shared.saw(np.concatenate(places), examples, examples / units)

    def rates(self, block: Block) -> tuple[float, float]:
        """Step sizes before and after a block; they fall to 0 if the method is in `falling`."""
        lr = self.settings.lr
        if self.settings.method not in self.falling:
            return lr, lr
        before, after = block.progress
        return max(RATE_LEAST, lr * (1 - before)), max(RATE_LEAST, lr * (1 - after))

    def finish(self) -> None:
        super().finish()
        self._reader.close()


class _Counting:
    def __init__(self, settings: SparseSettings) -> None:
        self._settings, features = settings, settings.expected_features
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
        """Make the filter, which also admits all features of a continued model."""
        if self._settings.continue_from:
            known = read_packed(opened(self._settings))
            for _ in range(self._settings.min_count if TABLE in known else 0):
                self._filter.count(known[TABLE].keys)
        return self._filter.verdict()


def _examples_of(batches: Sequence[Batch]) -> int:
    return sum(len(batch) for batch in batches)


def _bias_of(batches: Sequence[Batch]) -> slice:
    """The place of the bias's row, as a slice; empty without a bias."""
    return slice(max(0, batches[0].bias), batches[0].bias + 1)


def _fill_zeros(_keys: Keys, rows: Floats) -> None:
    """Fill in first values of rows whose weights and state start at zero."""
    rows[:] = 0
