"""What models of sparse examples have in common: a block's rows, with their state, trained locally.

    survey (only with min_count): features of a block -> counts -> one filter, merged at the master
    prepare: bytes -> Batch -> PULL of its rows with state      (next block, beside the training)
    train: copies of the rows -> kernel threads (Hogwild) -> differences with state -> PUSH

Rows lie in table `TABLE`, `dim` weights and the state of the optimiser behind them; it runs here,
and what is pushed adds up (sgd, adagrad, ftrl).  What a row means and what a step is, a subclass
says: `tables`, `train_part`, `scores`.  Prefetched rows may lack own differences, which are added
when they arrive.  A worker keeps rows (`kept`) while it is the only one and has room for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from snailps import kernels
from snailps.api.tables import Table
from snailps.api.worker import Block, Pending, Results, Surveyor, Worker
from snailps.config import JobSettings
from snailps.data.examples import Admission, Admitted, Examples, number_keys, reader_of
from snailps.errors import DataError
from snailps.models.local_sgd import Shelf
from snailps.models.sparse import evaluate
from snailps.models.sparse.batch import BIAS_KEY, Batch, BatchReader, Floats, joined
from snailps.models.sparse.delta_shares import Shares
from snailps.models.sparse.settings import METHODS, SparseSettings, check_method
from snailps.models.sparse.write_back_cache import Asked, Found, WriteBackCache

log = logging.getLogger(__name__)

TABLE = "weights"
BLOCK_BYTES_MAX = 16 << 20
"""Some 60,000 examples of 39 features, 5 rows an example; 6.3 at 8 MiB and 3.9 at 32 MiB, where
numbers of features and copies of rows no longer fit in the cores' caches."""
EPS = 1e-8
"""AdaGrad's, as tables have it unless they say otherwise."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
RATE_LEAST = 1e-9
"""Where a rate falls to 0: kernels divide by it."""


@dataclass(slots=True)
class Prepared:
    """A block made ready: its examples, and the pull of their rows under way, or rows kept.

    Only where rows are kept may there be several batches, which then have the same rows.
    """

    batches: list[Batch]
    pull: Pending | None
    asked: Asked | None = None


class SparseWorker(Worker):
    """A model of sparse examples; see the module's docstring for what a subclass adds."""

    _has_told = False  # of a malformed line
    _row_cache: WriteBackCache | None = None

    Settings: ClassVar[type[JobSettings]] = SparseSettings
    settings: SparseSettings
    unit: ClassVar[Literal["line", "word"]] = "line"
    counts: ClassVar[Literal["examples", "words"]] = "examples"

    # --- to be written by the model --------------------------------------------------------

    @abstractmethod
    def tables(self) -> Sequence[Table]:
        """`TABLE`, by `table`, and whatever else the model has."""

    @abstractmethod
    def train_part(
        self,
        batch: Batch,
        rows: Floats,
        part: tuple[int, int],
        rates: tuple[float, float],
        *,
        shared: bool,
        seed: int,
    ) -> tuple[float, float]:
        """Trains on examples from `part[0]` to before `part[1]`; called by several threads at once.

        Parameters
        ----------
        batch : Batch
        rows : numpy.ndarray
            float32 (keys, dim + state), contiguous: changed in place.
        part : (int, int)
        rates : (float, float)
            Step size before and behind it.
        shared : bool
            Whether other threads write `rows`, too.
        seed : int

        Returns
        -------
        loss, weight
            Sums over its examples, before each step.
        """

    @classmethod
    @abstractmethod
    def loss_of(cls, settings: JobSettings) -> str:
        """``logistic``, ``squared`` or ``multinomial``: what predictions are judged by."""

    @classmethod
    @abstractmethod
    def scores(
        cls, settings: JobSettings, rows: Floats, batch: Batch, extras: Mapping[str, Floats]
    ) -> Floats:
        """Scores of a batch, float32 (n, outputs), before any link function.

        Parameters
        ----------
        settings : SparseSettings
        rows : numpy.ndarray
            float32 (keys, dim): of `batch.keys`, weights only.
        batch : Batch
        extras : mapping
            What `extras` found.
        """

    @classmethod
    def stored_scores(cls, results: Results, batch: Batch, extras: Mapping[str, Floats]) -> Floats:
        """The same with the rows as the servers have them, at the master."""
        return cls.scores(results.settings, results.pull(TABLE, batch.keys), batch, extras)

    @classmethod
    def has_bias(cls, settings: JobSettings) -> bool:
        """Whether every example has a constant feature, a row of key `BIAS_KEY`."""
        return True

    @classmethod
    def extras(cls, results: Results) -> Mapping[str, Floats]:
        """Arrays that the finished model has besides its rows, by name; they go into its file."""
        return {}

    # --- at the master -----------------------------------------------------------------------

    @classmethod
    def check(cls, settings: JobSettings) -> None:
        """Refuses optimisers that do not fit, and files that do not begin as they should."""
        assert isinstance(settings, SparseSettings)
        why = "whose workers run the optimiser and push differences of weights and state"
        check_method(settings, METHODS, f"{cls.__name__}, {why}")
        evaluate.check_input(cls, settings)

    @classmethod
    def check_batch(cls, settings: JobSettings, batch: Batch, where: str) -> None:
        """Refuses examples that the model cannot train on; called before the job, and in it.

        Raises
        ------
        DataError
        """

    @classmethod
    def block_bytes(cls, settings: JobSettings, total_bytes: int, workers: int) -> int:
        """A tenth of an epoch; several workers, each with a block at work and one prefetched,
        hold a fortieth together.  At most 16 MiB.

        5 M clicks, 4 workers: log loss .40806 at a twentieth, .40749 at a fortieth and .40733 at an
        eightieth, in 6.5, 6.8 and 7.2 s; one worker .40743.
        """
        share = total_bytes // 10 if workers == 1 else total_bytes // (80 * workers)
        return max(512, min(BLOCK_BYTES_MAX, share))

    @classmethod
    def expires(cls, settings: JobSettings) -> int:
        """Examples after which a row that none of them touched is deleted."""
        assert isinstance(settings, SparseSettings)
        return int(settings.expire_after * 1e6)

    @classmethod
    def surveyor(cls, settings: JobSettings) -> Surveyor | None:
        """Counts features, where rare ones are to be left out."""
        assert isinstance(settings, SparseSettings)
        return _Counting(settings) if settings.min_count > 1 else None

    @classmethod
    def judge(cls, results: Results) -> Mapping[str, Any]:
        """Figures of the finished model on the hold-out files, as `test`."""
        assert isinstance(results.settings, SparseSettings)
        if not results.settings.test:
            return {}
        return {"test": evaluate.evaluate(cls, results)}

    # --- at a worker -------------------------------------------------------------------------

    def table(self, dim: int, **options: Any) -> Table:
        """Declaration of `TABLE`: rows of `dim` weights, with what the settings say of them."""
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
        """Features of a block with their counts."""
        reader = batch_reader(self.settings)
        examples = reader.parse(block.data, block.path, block.start)
        keys, places = number_keys(examples.keys)
        counts = np.minimum(np.bincount(places, minlength=len(keys)), self.settings.min_count)
        return keys.tobytes() + counts.astype(np.uint8).tobytes()

    def setup(self) -> None:
        """Makes threads, room for rows, and the reader."""
        _keep_memory()
        s = self.settings
        _, table = self._find(TABLE)
        width = table.dim + table.state_floats
        self._dim = table.dim
        self.shares = Shares(
            s,
            self.workers,
            self.loss_of(s),
            table.dim,
            stride=table.dim,
            outputs=table.dim,
            eps=EPS,
        )
        self._pool = ThreadPoolExecutor(self.threads, "snailps-train")
        self._bases = Shelf(lambda n: np.empty((n, width), np.float32))
        self._locals = Shelf(lambda n: np.empty((n, width), np.float32))
        # A lone worker need not fear stale rows, and then pulls have a block's training to arrive.
        self.prefetch = 2 if self.workers == 1 else 1
        self._pushes: list[Pending] = []  # the last ones, oldest first; see `_arrived`
        self._reader = batch_reader(
            s,
            threads=self.threads,
            bias=self.has_bias(s),
            admitted=Admitted(self.summary) if self.summary else None,
        )
        self._row_cache: WriteBackCache | None = None
        # Filters look at a block's different keys, and servers delete rows that expire.
        self._keeps = self.alone and not self.summary and not s.expire_after
        self._behind = self.prefetch + self._keeps  # pushes that a pull may lack; see `_arrived`
        if self._keeps:
            self._row_cache = WriteBackCache(
                self,
                TABLE,
                dim=table.dim,
                parts=width // table.dim,
                stride=self.stride(),
                in_threads=self.in_threads,
                load=self.load_rows,
                take=self._bases.take,
            )

    def workers_changed(self) -> None:
        """Shares go by it; what is kept is pushed once others change rows, too."""
        self.shares = replace(self.shares, workers=self.workers)
        if self.workers > 1:
            self.prefetch = 1
            self._push_kept()
            for push in self._pushes:
                push.wait()
            self._keeps, self._row_cache = False, None

    @property
    def owes(self) -> bool:
        """Whether rows that are kept have changed since the last push."""
        return self._row_cache is not None and self._row_cache.changed

    def stride(self) -> int:
        """Floats from each array of a trained row to the next; see `load_rows`."""
        return self._dim

    def prepare(self, block: Block) -> Prepared:
        """Parses the block, numbers its features, starts to pull their rows with their state."""
        kept = self._row_cache
        if self._keeps and kept is not None:
            prepared = self._prepare_kept(block, kept)
        else:
            prepared = self._asked_for(self._reader.read(block.data, block.path, block.start))
        for batch in prepared.batches:
            self._look_at(batch, block)
        return prepared

    def _look_at(self, batch: Batch, block: Block) -> None:
        """Checks a block's examples, tells of the first line that was left out, drops the text."""
        self.check_batch(self.settings, batch, f"{block.path}, bytes from {block.start:,}")
        if batch.bad and not self._has_told:
            self._has_told = True
            log.warning("%s. Left out, as others like it will be", self._reader.first_bad)
        block._data = None  # the text has been read, and is the largest thing here

    def _prepare_kept(self, block: Block, kept: WriteBackCache) -> Prepared:
        """The same with rows that are kept, if there is room for the new ones."""

        def find(examples: Examples) -> tuple[Examples, Found]:
            return examples, kept.find(examples.keys)

        pieces = self._reader.pieces(block.data, find, block.path, block.start)
        block._data = None
        bias = kept.find(np.full(int(self.has_bias(self.settings)), BIAS_KEY, np.uint64))
        asked = kept.ask([*(found for _, found in pieces), bias])
        if asked is None:
            self._keeps = False  # from here on as several workers do
            examples = joined([examples for examples, _ in pieces])
            return self._asked_for(self._reader.numbered(examples, block.path))
        at = int(bias.places[0]) if len(bias.places) else -1
        batches = [
            self._reader.placed(examples, found.places, at, block.path)
            for examples, found in pieces
        ]
        return Prepared(batches, None, asked)

    def _asked_for(self, batch: Batch) -> Prepared:
        """The batch, and the pull of its rows started."""
        if len(batch) == 0:
            return Prepared([batch], None)
        rows = self._bases.take(len(batch.keys))
        return Prepared([batch], self.pull_async(TABLE, batch.keys, rows, state=True, ahead=True))

    def train(self, block: Block) -> Mapping[str, float]:
        """Trains on local copies of the rows and pushes what changed."""
        prepared: Prepared = block.prepared
        if prepared.asked is not None and self._row_cache is None:  # another worker has come since
            if prepared.asked.pull is not None:
                prepared.asked.pull.abandon()
            prepared = self._asked_for(prepared.asked.apart(prepared.batches))
        batches = prepared.batches
        rates = self.rates(block)
        units = sum(len(batch) for batch in batches)
        bad = sum(batch.bad for batch in batches)
        metrics = {"units": float(units), "lr": rates[1], "bad_lines": float(bad)}
        if prepared.asked is not None and self._row_cache is not None:
            rows = self._row_cache.ready(prepared.asked)
            loss, weight = self._train_batches(batches, rows, rates, block.seed)
            if prepared.asked.closes:
                self._push_kept()
            return {**metrics, "loss": loss, "examples": weight} if units else metrics
        self._push_kept()
        if prepared.pull is None:  # nothing to learn from
            return metrics
        (batch,) = batches
        base = self._arrived(prepared.pull)
        rows = self._locals.take(len(base))
        self.in_threads(self.load_rows, base, rows)
        loss, weight = self._train_batches(batches, rows, rates, block.seed)
        self.in_threads(self.take_difference, rows, base)  # from here on the base is what changed
        if self.workers > 1:
            step = self.shares.step(batch, base, rates[0])
            counts = self.shares.counts(batch, len(rows))
            self.in_threads(partial(self.shares.scale, step), rows, base, counts)
        self._locals.give(rows)
        for push in self._pushes:  # the last had all of this block's training to arrive
            push.wait()
        self._pushes.append(self.push_async(TABLE, batch.keys, base, state=True))
        return {**metrics, "loss": loss, "examples": weight}

    def _push_kept(self) -> None:
        """Starts to push what changed in rows that are kept, if anything did."""
        changes = self._row_cache.changes() if self._row_cache is not None else None
        if changes is None:
            return
        for push in self._pushes:
            push.wait()
        self._settle(self._behind)
        keys, differences = changes
        self._pushes.append(self.push_async(TABLE, keys, differences, state=True))

    def rates(self, block: Block) -> tuple[float, float]:
        """Step size before and behind a block: falling for sgd, else the optimiser's own matter."""
        lr = self.settings.lr
        if self.settings.method != "sgd":
            return lr, lr
        before, after = block.progress
        return max(RATE_LEAST, lr * (1 - before)), max(RATE_LEAST, lr * (1 - after))

    def load_rows(self, base: Floats, rows: Floats) -> None:
        """Makes rows to train of rows as pulled; called by several threads, each with a part.

        A model whose kernel wants another layout overrides this, `stride` and `take_difference`,
        and makes `_locals` and `shares` anew in its `setup`.
        """
        np.copyto(rows, base)

    def take_difference(self, rows: Floats, base: Floats) -> None:
        """``base = rows - base``: what training changed; called as `load_rows` is."""
        np.subtract(rows, base, out=base)

    def finish(self) -> None:
        """Pushes what is left and waits for it."""
        self._push_kept()
        self._settle(0)
        self._pool.shutdown()
        self._reader.close()

    def in_threads(self, function: Callable[..., object], *arrays: Floats) -> None:
        """Calls a row-wise function on row ranges, a thread each."""
        edges = np.linspace(0, len(arrays[0]), self.threads + 1).astype(int).tolist()
        tasks = [
            self._pool.submit(function, *(array[a:b] for array in arrays))
            for a, b in itertools.pairwise(edges)
        ]
        for task in tasks:
            task.result()

    def _train_batches(
        self, batches: Sequence[Batch], rows: Floats, rates: tuple[float, float], seed: int
    ) -> tuple[float, float]:
        """Trains on a block's batches with all threads; loss, weight."""
        parts = [
            (batch, part)
            for batch in batches
            for part in itertools.pairwise(batch.edges(-(-self.threads // len(batches))))
        ]
        tasks = [
            self._pool.submit(
                self.train_part,
                batch,
                rows,
                (first, last),
                # A thread's part falls as the whole does: they all run at once.
                rates,
                shared=len(parts) > 1,
                seed=(seed + number) & ((1 << 64) - 1),
            )
            for number, (batch, (first, last)) in enumerate(parts)
        ]
        results = [task.result() for task in tasks]
        return sum(loss for loss, _ in results), sum(weight for _, weight in results)

    def _arrived(self, pull: Pending) -> Floats:
        """Rows that were pulled, with what own pushes added since they were read.

        The pull was called when the training of the block `prefetch` before this one had begun, and
        thus all pushes were done but that of the block before that one.  So they lack at most that
        one and the `prefetch` that followed, and what was kept until there was no more room.
        """
        base = pull.wait()
        corrected = 0
        for push in self._pushes:
            corrected += self.correct(pull, push)
        self._settle(self._behind)
        if corrected and self.settings.method == "ftrl":
            s = self.settings
            self.in_threads(
                lambda rows: kernels.ftrl_weights(
                    rows, outputs=self._dim, lr=s.lr, l1=s.l1, l2=s.l2, beta=s.beta
                ),
                base,
            )
        return base

    def _settle(self, kept: int) -> None:
        """Waits for all pushes but the newest `kept`, and takes their arrays back."""
        while len(self._pushes) > kept:
            self._bases.give(self._pushes.pop(0).wait())


class _Counting:
    """Merges the workers' counts of features into one filter."""

    def __init__(self, settings: SparseSettings) -> None:
        features = settings.expected_features
        if settings.hash_bits:
            features = min(features, 1 << min(settings.hash_bits, 30))
        self._filter = Admission(settings.min_count, features)

    def add(self, part: bytes) -> None:
        """Takes what `SparseWorker.survey` returned."""
        if len(part) % 9:
            raise DataError(f"a survey's part of {len(part):,} bytes is no list of 9 byte entries")
        n = len(part) // 9
        keys = np.frombuffer(part, np.uint64, n)
        counts = np.frombuffer(part, np.uint8, n, 8 * n)
        while len(keys):
            self._filter.count(keys)
            more = counts > 1
            keys, counts = keys[more], counts[more] - 1

    def result(self) -> bytes:
        """The filter."""
        return self._filter.verdict()


def batch_reader(
    settings: SparseSettings,
    *,
    threads: int = 1,
    bias: bool = False,
    admitted: Admitted | None = None,
) -> BatchReader:
    """The reader that the settings ask for."""
    reader = reader_of(
        settings.format,
        columns=settings.columns,
        hash_bits=settings.hash_bits,
        on_bad_line=settings.on_bad_line,
    )
    weights = [float(number) for number in settings.class_weights]
    return BatchReader(reader, threads=threads, bias=bias, class_weights=weights, admitted=admitted)


def _keep_memory() -> None:
    """Tells glibc to use freed memory again: every block's arrays are as large as the last one's.

    Otherwise each block has the system clear 100 MB and more of pages: 7 % of all CPU time.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the most that it takes
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        mallopt(_M_ARENA_MAX, 1)  # other arenas cannot hold such arrays
