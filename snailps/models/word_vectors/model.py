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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.config import JobSettings
from snailps.data._subwords import subwords_csr
from snailps.data._text import Lexicon, WordCounter
from snailps.data.vocabulary import Vocabulary
from snailps.errors import ConfigError
from snailps.models.word_vectors.deltas import CURVATURE, Shelf, share_of_delta
from snailps.models.word_vectors.export import BUCKET_KEY, write_files
from snailps.models.word_vectors.look import neighbours
from snailps.models.word_vectors.settings import WordVectorSettings
from snailps.models.word_vectors.start import adopt, count_on, put_model, put_vectors
from snailps.roles.tables import Table
from snailps.roles.worker import Block, Pending, Results, Surveyor, Worker

NOISE_POWER = 0.5
"""fastText draws negatives by the square root of their count (word2vec: 0.75)."""
NOISE_POOL_MIN = 20_000
NOISE_REUSE = 4
"""How often the kernel uses each noise word drawn for a block, on average.  Drawing fewer pulls
fewer rows, but gives rare words many pushes at once: on 17 M words (dim 100, 80 blocks) WS-353,
SimLex and analogies were .666 .297 .270 at 55 uses, .669 .298 .286 at 11, .680 .307 .289 at 4 and
.684 .312 .295 at 1; a second run differs by about .01."""
BUCKETS_MARKED = 1 << 24
PART_WINDOWS = 50
"""Least length of a thread's part of a block, in windows: at most 2% of its pairs are cut."""
BLOCK_BYTES_MAX = 6 << 20
"""A million words of English: larger blocks pull fewer rows a word, but take memory twice over."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Keys = NDArray[np.uint64]


class _Counting:
    """Merges the workers' word counts into the vocabulary."""

    def __init__(self, settings: WordVectorSettings) -> None:
        self._settings = settings
        self._counter = WordCounter()

    def add(self, part: bytes) -> None:
        self._counter.merge(part)

    def result(self) -> bytes:
        s = self._settings
        if s.continue_from:
            return count_on(s, self._counter).to_bytes()
        return Vocabulary.from_counter(self._counter, s.min_count, s.max_vocab).to_bytes()


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
    def adopt(cls, settings: JobSettings, explicit: Callable[[str], str | None]) -> JobSettings:
        """Takes dim, model and subwords from the file that the training begins with."""
        assert isinstance(settings, WordVectorSettings)
        return adopt(settings, explicit)

    @classmethod
    def loader(cls, settings: JobSettings) -> Callable[[Results], None] | None:
        """Puts the rows of that file."""
        assert isinstance(settings, WordVectorSettings)
        if settings.continue_from:
            return put_model
        return put_vectors if settings.pretrained else None

    @classmethod
    def inspector(
        cls, settings: JobSettings
    ) -> Callable[[Results], Mapping[str, Sequence[tuple[str, float]]]] | None:
        """Neighbours of `validation_words`."""
        assert isinstance(settings, WordVectorSettings)
        return neighbours if settings.validation_words else None

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
        self._bases = Shelf(lambda n: np.empty((n, s.dim), np.float32))
        self._locals = Shelf(lambda n: kernels.padded(n, s.dim))
        self._pushes: list[tuple[Pending, Pending]] = []  # the last two blocks', oldest first

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
        # Rows come in while the last block's deltas go out; `train` makes up for what they lack.
        pulls = (
            self.pull_async("input", input_keys, self._bases.take(len(input_keys)), ahead=True),
            self.pull_async("output", output_keys, self._bases.take(len(output_keys)), ahead=True),
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
            for pushes in self._pushes:
                self.correct(pull, pushes[at])
        self._settle(1)  # no later pull can lack the older one
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
        self._pushes.append(
            (
                self.push_async("input", batch.input_keys, bases[0]),
                self.push_async("output", batch.output_keys, bases[1]),
            )
        )
        figures["loss"] = sum(loss for loss, _ in results)
        figures["examples"] = float(sum(count for _, count in results))
        return figures

    def finish(self) -> None:
        """Waits for the last pushes and takes their arrays back."""
        self._settle(0)
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

    def _settle(self, kept: int) -> None:
        """Waits for all pushes but the newest `kept`, and takes their arrays back."""
        while len(self._pushes) > kept:
            for push in self._pushes.pop(0):
                self._bases.give(push.wait())

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
        """Writes the model in the formats asked for."""
        return write_files(results)


def _scale(rows: Floats, factor: Floats) -> None:
    rows *= factor


def _subtract(new: Floats, base: Floats) -> None:
    """``base = new - base``: what training changed."""
    np.subtract(new, base, out=base)
