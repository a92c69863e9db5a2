"""Base class of models of sparse examples: a block's rows, with their state, trained locally.

    survey (only with min_count): features of a block -> counts -> one filter, merged at the master
    prepare: bytes -> Batch -> PULL of its rows with state       (next block, during the training)
    train: copies of the rows -> kernel threads (Hogwild) -> deltas with state -> PUSH

Rows are in table `TABLE`: `dim` weights, then the state of the optimizer.  The optimizer runs at
the worker, and the deltas that it pushes add up (sgd, adagrad, ftrl).  A subclass defines what a
row means and what a step does: `tables`, `train_part`, `scores`.  `local_sgd.LocalSgd` moves the
rows; the only worker of a job caches them (`row_cache`) while there is room.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from snailps import kernels
from snailps.api.tables import Table
from snailps.api.worker import Block, Results, Surveyor, Worker
from snailps.config import JobSettings
from snailps.data._admission import Admission, Admitted
from snailps.data._examples import Examples
from snailps.data._key_numbering import number_keys
from snailps.errors import DataError
from snailps.models.local_sgd import Copies, LocalSgd, RowLayout
from snailps.models.row_cache import (
    CACHE_BYTES,
    KEY_BYTES,
    CachedRows,
    Found,
    KeyPlaces,
    RowCache,
)
from snailps.models.sparse import evaluate
from snailps.models.sparse.batch import (
    BIAS_KEY,
    Batch,
    Floats,
    batch_reader,
    check_classes,
    joined,
    whole,
)
from snailps.models.sparse.delta_shares import Shares
from snailps.models.sparse.settings import (
    METHODS,
    ClassesSettings,
    SparseSettings,
    check_method,
)

log = logging.getLogger(__name__)

TABLE = "weights"
BLOCK_BYTES_MAX = 16 << 20
"""Some 60,000 examples of 39 features, 5 rows an example; 6.3 at 8 MiB and 3.9 at 32 MiB, where
numbers of features and copies of rows no longer fit in the cores' caches."""
PUSH_BLOCKS = 4
"""Blocks from push to push of cached rows.  Clicks with 39 features: 290,000 rows a block, 580,000
every four."""
EPS = 1e-8
"""Epsilon of AdaGrad, the default of tables."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
RATE_LEAST = 1e-9
"""Least rate: kernels divide by it."""


@dataclass(slots=True)
class Prepared:
    """A prepared block: its examples, and its rows, either copies being pulled or cached ones.

    Only with cached rows there may be several batches, whose places are those of the cache.
    """

    batches: list[Batch]
    copies: Copies | None
    cached: CachedRows | None = None


class SparseWorker(Worker):
    """Base class of models of sparse examples; see the module's docstring."""

    _has_told = False  # of a malformed line
    _row_cache: RowCache | None = None

    Settings: ClassVar[type[JobSettings]] = SparseSettings
    settings: SparseSettings
    unit: ClassVar[Literal["line", "word"]] = "line"
    counts: ClassVar[Literal["examples", "words"]] = "examples"
    falling: ClassVar[tuple[str, ...]] = ("sgd",)
    """Methods whose step size falls over the job; ftrl's is the table's."""

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
        """Trains on examples from `part[0]` to before `part[1]`; called by several threads at once.

        Parameters
        ----------
        batch : Batch
        rows : numpy.ndarray
            float32 (keys, dim + state), contiguous: changed in place.
        part : (int, int)
        rates : (float, float)
            Step sizes before and after it.
        shared : bool
            Whether other threads write to `rows`, too.

        Returns
        -------
        loss, weight
            Sums over its examples, before each step.
        """

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
            Result of `extras`.
        """

    @classmethod
    def stored_scores(cls, results: Results, batch: Batch, extras: Mapping[str, Floats]) -> Floats:
        """The same with the servers' rows, at the master."""
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
        """Refuses unsupported optimizers, and hold-out files with a malformed beginning."""
        assert isinstance(settings, SparseSettings)
        why = "whose workers run the optimiser and push differences of weights and state"
        check_method(settings, METHODS, f"{cls.__name__}, {why}")
        evaluate.check_input(cls, settings)

    @classmethod
    def check_batch(cls, settings: JobSettings, batch: Batch, where: str) -> None:
        """Refuses examples that the model cannot train on; called before and during the job.

        Raises
        ------
        DataError
        """
        if isinstance(settings, ClassesSettings):
            check_classes(batch, settings.classes, where)

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
        """Number of examples after which an unused row is deleted."""
        assert isinstance(settings, SparseSettings)
        return int(settings.expire_after * 1e6)

    @classmethod
    def surveyor(cls, settings: JobSettings) -> Surveyor | None:
        """Counts features if `min_count` is above 1."""
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
        """Declaration of `TABLE`: rows of `dim` weights, options from the settings."""
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
        """Makes the reader, the local-SGD runtime and, for an only worker, the row cache."""
        _keep_memory()
        s = self.settings
        _, table = self._find(TABLE)
        layout = self.row_layout(table)
        self.shares = Shares(
            s,
            self.workers,
            s.loss,
            table.dim,
            stride=layout.stride,
            outputs=table.dim,
            eps=EPS,
        )
        # An only worker has no stale rows, so a pull may start two blocks ahead.
        self.prefetch = 2 if self.workers == 1 else 1
        self._reader = batch_reader(
            s,
            threads=self.threads,
            bias=self.has_bias(s),
            admitted=Admitted(self.summary) if self.summary else None,
        )
        # Filters need a block's distinct keys, and servers delete rows that expire.
        self._caching = self.alone and not self.summary and not s.expire_after
        # Besides the pushes of prefetched blocks a pull may lack one of rows that were cached.
        behind = self.prefetch + self._caching
        derive = None
        if s.method == "ftrl":
            derive = partial(
                kernels.ftrl_weights, outputs=table.dim, lr=s.lr, l1=s.l1, l2=s.l2, beta=s.beta
            )
        self.sgd = LocalSgd(self, layout, state=True, behind=behind, derive=derive)
        self._row_cache = None
        if self._caching:
            room = CACHE_BYTES // (4 * layout.trained_width + KEY_BYTES)
            self._row_cache = RowCache(self.sgd, TABLE, KeyPlaces(room), push_blocks=PUSH_BLOCKS)

    def row_layout(self, table: Table) -> RowLayout:
        """Layout of rows that `train_part` takes: packed, unless overridden."""
        return RowLayout(table.dim, 1 + table.state_floats // table.dim, table.dim)

    def workers_changed(self) -> None:
        """Adapts the shares; pushes and drops cached rows when there are other workers."""
        self.shares = replace(self.shares, workers=self.workers)
        if self.workers > 1:
            self.prefetch = 1
            self._push_cached()
            self.sgd.wait()
            self._caching, self._row_cache = False, None

    @property
    def owes(self) -> bool:
        """Whether cached rows have changed since the last push."""
        return self._row_cache is not None and self._row_cache.changed

    def prepare(self, block: Block) -> Prepared:
        """Parses the block, numbers its features, starts to pull their rows with their state."""
        cache = self._row_cache
        if self._caching and cache is not None:
            prepared = self._prepare_cached(block, cache)
        else:
            prepared = self._with_copies(self._reader.read(block.data, block.path, block.start))
        for batch in prepared.batches:
            self._look_at(batch, block)
        return prepared

    def _look_at(self, batch: Batch, block: Block) -> None:
        """Checks a block's examples, logs the first line that was left out, drops the text."""
        self.check_batch(self.settings, batch, f"{block.path}, bytes from {block.start:,}")
        if batch.bad and not self._has_told:
            self._has_told = True
            log.warning("%s. Left out, as others like it will be", self._reader.first_bad)
        block._data = None  # the largest thing here

    def _prepare_cached(self, block: Block, cache: RowCache) -> Prepared:
        """The same with cached rows, if there is room for the new ones."""

        def find(examples: Examples) -> tuple[Examples, Found]:
            return examples, cache.find(examples.keys)

        pieces = self._reader.pieces(block.data, find, block.path, block.start)
        block._data = None
        bias = cache.find(np.full(int(self.has_bias(self.settings)), BIAS_KEY, np.uint64))
        cached = cache.ask([*(found for _, found in pieces), bias])
        if cached is None:
            self._caching = False  # from now on like one of several workers
            examples = joined([examples for examples, _ in pieces])
            return self._with_copies(self._reader.numbered(examples, block.path))
        at = int(bias.places[0]) if len(bias.places) else -1
        batches = [
            self._reader.placed(examples, found.places, at, block.path)
            for examples, found in pieces
        ]
        return Prepared(batches, None, cached)

    def _with_copies(self, batch: Batch) -> Prepared:
        """The batch, and the pull of its rows started."""
        if len(batch) == 0:
            return Prepared([batch], None)
        return Prepared([batch], self.sgd.pull({TABLE: batch.keys}))

    def train(self, block: Block) -> Mapping[str, float]:
        """Trains on cached rows, or on local copies whose deltas it pushes."""
        prepared: Prepared = block.prepared
        batches, cached, cache = prepared.batches, prepared.cached, self._row_cache
        rates = self.rates(block)
        units = sum(len(batch) for batch in batches)
        bad = sum(batch.bad for batch in batches)
        metrics = {"units": float(units), "lr": rates[1], "bad_lines": float(bad)}
        if cached is not None and cache is not None:
            loss, weight = self._train_batches(batches, cache.ready(cached), rates)
            if cached.closes:
                self._push_cached()
            return {**metrics, "loss": loss, "examples": weight} if units else metrics
        if cached is not None:  # another worker has joined since
            cached.abandon()
            prepared = self._with_copies(self._own_numbering(batches, cached))
        self._push_cached()
        if prepared.copies is None:  # nothing to learn from
            return metrics
        (batch,) = prepared.batches
        ((rows,),) = self.sgd.load(prepared.copies).values()
        loss, weight = self._train_batches([batch], rows, rates)

        def share(_table: str, trained: tuple[Floats, ...], deltas: Floats) -> None:
            step = self.shares.step(batch, deltas, rates[0])
            counts = self.shares.counts(batch, len(deltas))
            self.sgd.in_threads(partial(self.shares.scale, step), *trained, deltas, counts)

        self.sgd.push(prepared.copies, share if self.workers > 1 else None)
        return {**metrics, "loss": loss, "examples": weight}

    @staticmethod
    def _own_numbering(batches: Sequence[Batch], cached: CachedRows) -> Batch:
        """A block's batches as one, with places among its own keys instead of the cache's."""
        batch = whole(batches)
        used = np.zeros(cached.row_num, np.bool_)
        used[batch.places] = True
        if batch.bias >= 0:
            used[batch.bias] = True
        place = np.cumsum(used, dtype=np.int32) - 1
        bias = int(place[batch.bias]) if batch.bias >= 0 else -1
        keys = cached.keys[: cached.row_num][used]
        return replace(batch, places=place[batch.places], keys=keys, bias=bias)

    def _push_cached(self) -> None:
        """Starts to push the changes of cached rows, if there are any."""
        if self._row_cache is not None and self._row_cache.changed:
            self.sgd.push_rows({TABLE: self._row_cache.changes()})

    def rates(self, block: Block) -> tuple[float, float]:
        """Step sizes before and after a block: they fall to 0 if the method is in `falling`."""
        lr = self.settings.lr
        if self.settings.method not in self.falling:
            return lr, lr
        before, after = block.progress
        return max(RATE_LEAST, lr * (1 - before)), max(RATE_LEAST, lr * (1 - after))

    def finish(self) -> None:
        """Pushes what is left and waits for it."""
        self._push_cached()
        self.sgd.close()
        self._reader.close()

    def _train_batches(
        self, batches: Sequence[Batch], rows: Floats, rates: tuple[float, float]
    ) -> tuple[float, float]:
        """Trains on a block's batches with all threads; loss, weight."""
        parts = [
            (batch, part)
            for batch in batches
            for part in itertools.pairwise(batch.edges(-(-self.threads // len(batches))))
        ]
        tasks = [
            # All parts run at once, so each has the rates of the whole block.
            self.sgd.pool.submit(self.train_part, batch, rows, part, rates, shared=len(parts) > 1)
            for batch, part in parts
        ]
        results = [task.result() for task in tasks]
        return sum(loss for loss, _ in results), sum(weight for _, weight in results)


class _Counting:
    """Merges the workers' feature counts into a filter."""

    def __init__(self, settings: SparseSettings) -> None:
        features = settings.expected_features
        if settings.hash_bits:
            features = min(features, 1 << min(settings.hash_bits, 30))
        self._filter = Admission(settings.min_count, features)

    def add(self, part: bytes) -> None:
        """Adds a result of `SparseWorker.survey`."""
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
        """The filter."""
        return self._filter.verdict()


def _keep_memory() -> None:
    """Configures glibc to reuse freed memory: arrays of all blocks are about as large.

    Otherwise the kernel clears 100 MB of pages and more for each block: 7 % of all CPU time.
    """
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # its maximum
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        mallopt(_M_ARENA_MAX, 1)  # other arenas are too small for such arrays
