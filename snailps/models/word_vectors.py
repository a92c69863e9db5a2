"""fastText and word2vec: word vectors, with or without subwords, from plain text.

    survey: words -> counts -> Vocabulary            (once, merged at the master)
    prepare: bytes -> word ids -> keys -> PULL       (next block, beside the training)
    train: local rows -> kernel threads -> one delta a row -> PUSH
    export: tables -> .bin, .vec, .npz

One model: skip-gram or CBOW, negative sampling or NCE, with subwords (`maxn` > 0: fastText) or
without (word2vec).  The arithmetic is `kernels.train_words`; here is which rows a block needs and
how they come and go.

Keys: word i of the vocabulary is key i of the tables "input" and "output"; subword bucket b is key
``BUCKET_KEY + b`` of "input", so that a vocabulary may grow without moving a bucket.

References
----------
T. Mikolov et al., "Distributed representations of words and phrases and their compositionality",
NIPS 2013.  P. Bojanowski et al., "Enriching word vectors with subword information", TACL 2017.
A. Mnih, Y. W. Teh, "A fast and simple algorithm for training neural probabilistic language models",
ICML 2012.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.config import JobSettings, setting
from snailps.data._subwords import subwords_csr
from snailps.data._text import Lexicon, WordCounter
from snailps.data.vocabulary import Vocabulary
from snailps.errors import ConfigError
from snailps.roles.tables import Table
from snailps.roles.worker import Block, Pending, Results, Surveyor, Worker
from snailps.vectors import BinHeader, write_bin, write_npz, write_vec

BUCKET_KEY = 1 << 40
NOISE_POWER = 0.5
"""fastText draws negatives by the square root of their count (word2vec: 0.75)."""
NOISE_POOL_MIN = 20_000
NOISE_REUSE = 4
"""How often the kernel uses each noise word drawn for a block, on average.  Drawing fewer pulls
fewer rows, but gives rare words many pushes at once: on 17 M words (dim 100, 80 blocks) WS-353,
SimLex and analogies were .666 .297 .270 at 55 uses, .669 .298 .286 at 11, .680 .307 .289 at 4 and
.684 .312 .295 at 1; a second run differs by about .01."""
BUCKETS_MARKED = 1 << 24
CURVATURE = 0.1
"""Of a row's loss, a gradient; see `share_of_delta`.  2 workers, 17 M words, subwords: WS-353,
SimLex, analogies .540 .253 .450 without scaling, .594 .295 .470 at 0.01, .600 .304 .484 at 0.1,
.593 .303 .487 at 0.3; one worker .614 .310 .474."""
EXPORT_ROWS = 50_000
PART_WINDOWS = 50
"""Least length of a thread's part of a block, in windows: at most 2% of its pairs are cut."""
BLOCK_BYTES_MAX = 6 << 20
"""A million words of English: larger blocks pull fewer rows a word, but take memory twice over."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Keys = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class WordVectorSettings(JobSettings):
    """Settings of fastText and word2vec; the defaults are fastText's."""

    dim: int = setting(
        100,
        help="Length of a word's vector.",
        when="200 to 300 for corpora of a thousand million words.",
        low=1,
        high=4096,
        aliases=["len_vec"],
    )
    model: Literal["skipgram", "cbow"] = setting(
        "skipgram",
        help="Predict the context from a word, or a word from its context.",
        when="`cbow` is faster and a little worse on rare words.",
    )
    loss: Literal["ns", "nce"] = setting(
        "ns",
        help="Negative sampling, or noise-contrastive estimation (scores minus log of k q(w)).",
        when="`nce` where the scores themselves should estimate probabilities.",
    )
    window: int = setting(
        5,
        help="Farthest context word; each centre draws its own reach from 1 to this.",
        when="Smaller for syntax, larger for topics.",
        unit="words",
        low=1,
        high=256,
    )
    negatives: int = setting(
        5,
        help="Noise words for each true one.",
        when="10 to 20 for small corpora.",
        unit="words",
        low=1,
        high=1000,
        aliases=["negative"],
    )
    lr: float = setting(
        0.05,
        help="Learning rate at the beginning; it falls to 0 in a straight line over the job.",
        when="Lower when the loss jumps.",
        low=1e-6,
        high=10.0,
        aliases=["learning_rate"],
    )
    sample: float = setting(
        1e-4,
        help="Words more frequent than this are thinned out (fastText's `-t`). 0: keep all.",
        when="1e-5 for very large corpora.",
        low=0.0,
        high=1.0,
    )
    min_count: int = setting(
        5,
        help="Words that occur less often are left out.",
        when="1 for tiny texts.",
        unit="occurrences",
        low=1,
        high=1 << 40,
    )
    max_vocab: int = setting(
        0,
        help="Most words to keep, the most frequent ones. 0: no limit.",
        when="Memory is short.",
        unit="words",
        low=0,
        high=1 << 31,
    )
    minn: int = setting(
        3,
        help="Shortest subword.",
        when="With `maxn`.",
        unit="characters",
        low=0,
        high=32,
    )
    maxn: int = setting(
        6,
        help="Longest subword. 0: no subwords (word2vec).",
        when="0 for word2vec, or for languages whose words have no parts.",
        unit="characters",
        low=0,
        high=32,
    )
    bucket: int = setting(
        2_000_000,
        help="Rows that subwords are hashed to.",
        when="Smaller for small vocabularies and small files.",
        unit="rows",
        low=1,
        high=1 << 30,
    )
    formats: tuple[str, ...] = setting(
        ("bin", "vec"),
        help="Result files: `bin` (fastText's, knows subwords), `vec` (text), `npz` (NumPy).",
        when="`bin` takes dim x bucket x 4 bytes; leave it out if nobody needs unknown words.",
    )

    def validate(self, where: Callable[[str], str]) -> None:
        """Refuse subword lengths that cannot be, and formats that do not exist."""
        JobSettings.validate(self, where)
        if self.maxn and not 1 <= self.minn <= self.maxn:
            raise ConfigError(
                f"{where('minn')}: minn: expected 1 to maxn ({self.maxn}, from {where('maxn')}), "
                f"got {self.minn}; for no subwords at all set maxn: 0"
            )
        for name in self.formats:
            if name not in ("bin", "vec", "npz"):
                raise ConfigError(
                    f"{where('formats')}: formats: expected bin, vec or npz, got {name!r}"
                )


class _Counting:
    """Merges the workers' word counts into the vocabulary."""

    def __init__(self, settings: WordVectorSettings) -> None:
        self._settings = settings
        self._counter = WordCounter()

    def add(self, part: bytes) -> None:
        self._counter.merge(part)

    def result(self) -> bytes:
        vocabulary = Vocabulary.from_counter(
            self._counter, self._settings.min_count, self._settings.max_vocab
        )
        return vocabulary.to_bytes()


class _Shelf:
    """Row arrays kept for the next block: a fresh one costs a page fault every 4 KiB."""

    def __init__(self, make: Callable[[int], Floats]) -> None:
        self._make = make
        self._free: list[Floats] = []
        self._lent: dict[int, Floats] = {}
        self._lock = threading.Lock()

    def take(self, n: int) -> Floats:
        """An array of `n` rows; what is in it is left from before."""
        with self._lock:
            fitting = [array for array in self._free if len(array) >= n]
            if fitting:
                whole = min(fitting, key=len)
                self._free = [array for array in self._free if array is not whole]
            else:
                self._free = self._free[1:]  # too small for today's blocks
                whole = self._make(n + n // 8)
            view = whole[:n]
            self._lent[id(view)] = whole
            return view

    def give(self, view: Floats) -> None:
        """Takes an array back."""
        with self._lock:
            self._free.append(self._lent.pop(id(view)))


@dataclass(slots=True)
class _Batch:
    """A block made ready: local numbering of its words and rows, and its pulls under way."""

    tokens: Ints
    raw_words: int
    bag_ptr: NDArray[np.int64]
    bag_rows: Ints
    noise: Ints
    noise_logit: Floats
    input_keys: Keys
    output_keys: Keys
    steps: tuple[Floats, ...]
    pulls: tuple[Pending, Pending] | None


class WordVectors(Worker):
    """fastText / word2vec as a parameter-server model; see the module's docstring."""

    Settings = WordVectorSettings
    settings: WordVectorSettings
    unit: ClassVar[Literal["line", "word"]] = "word"
    counts: ClassVar[Literal["examples", "words"]] = "words"

    def tables(self) -> Sequence[Table]:
        """Input rows (words, then buckets) start at +-1/dim, output rows at zero, as fastText's."""
        s = self.settings
        return (
            Table("input", s.dim, init="uniform", scale=1.0 / s.dim, seed=s.seed, wire=s.wire),
            Table("output", s.dim, wire=s.wire),
        )

    @classmethod
    def surveyor(cls, settings: JobSettings) -> Surveyor | None:
        """Counts words."""
        assert isinstance(settings, WordVectorSettings)
        return _Counting(settings)

    def survey(self, block: Block) -> bytes:
        """Word counts of a block."""
        counter = WordCounter()
        counter.count(block.data)
        return counter.dump()

    @classmethod
    def check(cls, settings: JobSettings) -> None:
        """Deltas of local SGD are added up: no other access method fits."""
        if settings.optimizer not in ("auto", "add"):
            raise ConfigError(
                f"optimizer: {settings.optimizer} does not fit word vectors, whose workers push "
                "differences: leave it at auto"
            )

    @classmethod
    def block_bytes(cls, settings: JobSettings, total_bytes: int, workers: int) -> int:
        """A tenth of an epoch; several workers, each with a block at work and one prefetched,
        hold a twentieth together.  At most 6 MiB.
        """
        share = total_bytes // 10 if workers == 1 else total_bytes // (40 * workers)
        return max(512, min(BLOCK_BYTES_MAX, share))

    # --- at a worker -------------------------------------------------------------------------

    def setup(self) -> None:
        """Unpacks the vocabulary and what follows from it."""
        s = self.settings
        self.vocabulary = Vocabulary.from_bytes(self.summary)
        self._lexicon = Lexicon(self.vocabulary.words)
        self._keep = self.vocabulary.keep_probability(s.sample)
        noise = self.vocabulary.noise(NOISE_POWER)
        self._noise_sum = np.cumsum(noise)
        self._noise_log = np.log(noise * s.negatives) if s.loss == "nce" else None
        self._pool = ThreadPoolExecutor(self.threads, "snailps-train")
        self._bases = _Shelf(lambda n: np.empty((n, s.dim), np.float32))
        self._locals = _Shelf(lambda n: kernels.padded(n, s.dim))
        self._pushes: tuple[Pending, Pending] | None = None

    def prepare(self, block: Block) -> _Batch:
        """Numbers the block's words and rows locally and starts to pull the rows."""
        tokens, raw_words = self._lexicon.encode(block.data, self._keep, block.seed)
        words = len(self.vocabulary)
        rng = np.random.default_rng(block.seed)
        seen = np.zeros(words, np.bool_)
        seen[tokens[tokens >= 0]] = True
        present = np.flatnonzero(seen)
        if len(present) == 0:
            none = np.zeros(0, np.int32)
            zero = np.zeros(1, np.int64)
            no_keys = np.zeros(0, np.uint64)
            no_rows = np.zeros(0, np.float32)
            return _Batch(none, raw_words, zero, none, none, no_rows, no_keys, no_keys, (), None)
        picks = len(tokens) * kernels.SHARED // kernels.GROUP
        pool = max(NOISE_POOL_MIN, picks // NOISE_REUSE)
        drawn = np.searchsorted(self._noise_sum, rng.random(pool) * self._noise_sum[-1])
        seen[drawn] = True
        seen[present] = False
        output_words = np.concatenate((present, np.flatnonzero(seen)))
        place = np.full(words + 1, -1, np.int32)  # the last one maps token -1 to itself
        place[output_words] = np.arange(len(output_words), dtype=np.int32)
        bag_ptr, bag_rows, input_keys = self._bags(present)
        output_keys = output_words.astype(np.uint64)
        logit = np.zeros(len(output_words), np.float32)
        if self._noise_log is not None:
            logit[:] = self._noise_log[output_words]
        pulls = (
            self.pull_async("input", input_keys, self._bases.take(len(input_keys))),
            self.pull_async("output", output_keys, self._bases.take(len(output_keys))),
        )
        local_tokens = place[tokens]
        return _Batch(
            local_tokens,
            raw_words,
            bag_ptr,
            bag_rows,
            place[drawn],
            logit,
            input_keys,
            output_keys,
            self._steps(
                local_tokens,
                bag_ptr,
                bag_rows,
                place[drawn],
                len(input_keys),
                len(output_keys),
            ),
            pulls,
        )

    def train(self, block: Block) -> Mapping[str, float]:
        """Trains on local copies of the rows and pushes what changed."""
        s = self.settings
        batch: _Batch = block.prepared
        lr_start, lr_stop = (s.lr * (1.0 - share) for share in block.progress)
        figures = {"units": float(batch.raw_words), "lr": lr_stop}
        if batch.pulls is None:
            return figures
        bases: list[Floats] = []
        for at, pull in enumerate(batch.pulls):
            bases.append(pull.wait())
            if self._pushes is not None:
                self.correct(pull, self._pushes[at])
        self._settle()
        local = [self._padded(base) for base in bases]
        # A part loses the contexts across its edges, so it must be long against the window.
        part_num = min(self.threads, max(1, len(batch.tokens) // (PART_WINDOWS * s.window)))
        parts = np.array_split(batch.tokens, part_num)
        done = [
            self._pool.submit(
                kernels.train_words,
                local[0],
                local[1],
                s.dim,
                np.ascontiguousarray(part),
                batch.bag_ptr,
                batch.bag_rows,
                batch.noise,
                batch.noise_logit,
                model=0 if s.model == "skipgram" else 1,
                window=s.window,
                negatives=s.negatives,
                lr_start=lr_start,
                lr_stop=lr_stop,
                seed=(block.seed + number) & ((1 << 64) - 1),
            )
            for number, part in enumerate(parts)
        ]
        results = [task.result() for task in done]
        for new, base, steps in zip(local, bases, batch.steps, strict=True):
            self._in_threads(_subtract, new[:, : s.dim], base)
            self._locals.give(new)
            if self.workers > 1:
                share = share_of_delta(steps * (lr_start * CURVATURE), self.workers)
                self._in_threads(_scale, base, share[:, None])
        self._pushes = (
            self.push_async("input", batch.input_keys, bases[0]),
            self.push_async("output", batch.output_keys, bases[1]),
        )
        figures["loss"] = sum(loss for loss, _ in results)
        figures["examples"] = float(sum(count for _, count in results))
        return figures

    def finish(self) -> None:
        """Waits for the last pushes and takes their arrays back."""
        self._settle()
        self._pool.shutdown()

    def _bags(self, present: NDArray[np.int64]) -> tuple[NDArray[np.int64], Ints, Keys]:
        """Local bags of the present words: which of the pulled input rows make up each."""
        s = self.settings
        if s.maxn == 0:
            own = np.arange(len(present) + 1, dtype=np.int64)
            return own, own[:-1].astype(np.int32), present.astype(np.uint64)
        words = [self.vocabulary.words[i] for i in present.tolist()]
        bag_ptr, subwords = subwords_csr(words, s.minn, s.maxn, s.bucket)
        ids = subwords.astype(np.int64)
        rows: NDArray[Any]
        used: NDArray[Any]
        if s.bucket > BUCKETS_MARKED:
            used, rows = np.unique(ids, return_inverse=True)
        else:  # a table of marks is several times faster than sorting
            seen = np.zeros(len(words) + s.bucket, np.bool_)
            seen[ids] = True
            used = np.flatnonzero(seen)
            place = np.empty(len(seen), np.int32)
            place[used] = np.arange(len(used), dtype=np.int32)
            rows = place[ids]
        keys = np.where(
            used < len(words),
            present[np.minimum(used, len(words) - 1)],
            used - len(words) + BUCKET_KEY,
        ).astype(np.uint64)
        return bag_ptr, rows.astype(np.int32), keys

    def _steps(
        self,
        tokens: Ints,
        bag_ptr: NDArray[np.int64],
        bag_rows: Ints,
        noise: Ints,
        input_num: int,
        output_num: int,
    ) -> tuple[Floats, Floats]:
        """About how many gradients each input and output row will get from this block."""
        s = self.settings
        contexts = s.window + 1  # of a random window, both sides, on average
        pairs = np.bincount(tokens[tokens >= 0], minlength=len(bag_ptr) - 1) * contexts
        inputs = np.bincount(bag_rows, np.repeat(pairs, np.diff(bag_ptr)), input_num)
        uses = len(tokens) * contexts * s.negatives / len(noise)
        outputs = np.bincount(noise, minlength=output_num) * uses
        outputs[: len(pairs)] += pairs
        return inputs.astype(np.float32), outputs.astype(np.float32)

    def _settle(self) -> None:
        """Waits for the last pushes and takes their arrays back."""
        if self._pushes is not None:
            for push in self._pushes:
                self._bases.give(push.wait())
            self._pushes = None

    def _padded(self, base: Floats) -> Floats:
        rows = self._locals.take(len(base))
        self._in_threads(kernels.copy_rows, base, rows)
        return rows

    def _in_threads(self, function: Callable[..., None], *arrays: Floats) -> None:
        """Calls a row-wise kernel on row ranges, a thread each."""
        edges = np.linspace(0, len(arrays[0]), self.threads + 1).astype(int).tolist()
        tasks = [
            self._pool.submit(function, *(array[a:b] for array in arrays))
            for a, b in itertools.pairwise(edges)
        ]
        for task in tasks:
            task.result()

    # --- at the master -----------------------------------------------------------------------

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        """Writes the model in the formats asked for; rows travel in pieces."""
        s = results.settings
        assert isinstance(s, WordVectorSettings)
        vocabulary = Vocabulary.from_bytes(results.summary)
        words = vocabulary.words
        files = []
        for name in s.formats:
            path = f"{s.output}.{name}"
            if name == "vec":
                write_vec(path, words, _vectors(results, s, words), s.dim)
            elif name == "npz":
                chunks = _vectors(results, s, words)
                write_npz(path, words, chunks, s.dim, counts=vocabulary.counts)
            else:
                _write_bin(path, results, s, vocabulary)
            files.append(path)
        return {"files": files, "vocabulary": len(words)}


def share_of_delta(steps: Floats, workers: int) -> Floats:
    """Part of a row's delta to push when `workers` train on it at once.

    Think of a row's loss as a bowl: n steps of curvature h and rate r bring the row to a share
    ``c = exp(-h r n)`` of its distance from the minimum.  Workers that start from one copy all go
    ``1 - c`` of the way; their sum would go too far, while doing the same steps in turns goes
    ``1 - c^workers``.  So each pushes ``(1 - c^workers) / (workers (1 - c))`` of its delta: all of
    it for a rarely touched row, its share of a mean for one that has arrived.

    Parameters
    ----------
    steps : numpy.ndarray
        float32 (n,): ``h r n`` of each row, 0 or more.
    workers : int
        At least 1.

    Returns
    -------
    numpy.ndarray
        float32 (n,), from ``1 / workers`` to 1.
    """
    left = np.exp(-np.maximum(steps, 1e-3))
    share: Floats = ((1 - left**workers) / (workers * (1 - left))).astype(np.float32)
    return share


def _scale(rows: Floats, factor: Floats) -> None:
    rows *= factor


def _subtract(new: Floats, base: Floats) -> None:
    """``base = new - base``: what training changed."""
    np.subtract(new, base, out=base)


def _write_bin(path: str, results: Results, s: WordVectorSettings, vocabulary: Vocabulary) -> None:
    buckets = s.bucket if s.maxn else 0
    header = BinHeader(
        dim=s.dim,
        bucket=buckets,
        minn=s.minn if s.maxn else 0,
        maxn=s.maxn,
        window=s.window,
        epochs=s.epochs,
        min_count=s.min_count,
        negatives=s.negatives,
        loss="ns",
        model=s.model,
        sample=s.sample,
        tokens=vocabulary.tokens,
    )
    words = len(vocabulary)
    write_bin(
        path,
        header,
        vocabulary.words,
        vocabulary.counts,
        _ranges(results, "input", (0, words), (BUCKET_KEY, buckets)),
        _ranges(results, "output", (0, words)),
    )


def _ranges(results: Results, table: str, *ranges: tuple[int, int]) -> Iterator[Floats]:
    """Rows of key ranges (first, count), in pieces."""
    for first, count in ranges:
        for at in range(0, count, EXPORT_ROWS):
            size = min(EXPORT_ROWS, count - at)
            yield results.pull(table, np.arange(size, dtype=np.uint64) + np.uint64(first + at))


def _vectors(results: Results, s: WordVectorSettings, words: Sequence[bytes]) -> Iterator[Floats]:
    """Vectors of all words, in pieces: the mean of a word's row and its subwords' rows."""
    step = 5_000 if s.maxn else EXPORT_ROWS
    for at in range(0, len(words), step):
        piece = words[at : at + step]
        first = np.uint64(at)
        if s.maxn == 0:
            yield results.pull("input", np.arange(len(piece), dtype=np.uint64) + first)
            continue
        bag_ptr, ids = subwords_csr(piece, s.minn, s.maxn, s.bucket)
        used, rows = np.unique(ids, return_inverse=True)
        used = used.astype(np.uint64)
        n = np.uint64(len(piece))
        keys = np.where(used < n, used + first, used - n + np.uint64(BUCKET_KEY))
        out = np.empty((len(piece), s.dim), np.float32)
        pulled = kernels.padded(len(keys), s.dim)
        kernels.copy_rows(results.pull("input", keys), pulled)
        kernels.bag_means(pulled, bag_ptr, rows.astype(np.int32), out)
        yield out
