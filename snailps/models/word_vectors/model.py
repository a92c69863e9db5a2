"""fastText and word2vec: word vectors, with or without subwords, from plain text.

    survey: words -> counts -> Vocabulary            (once, merged at the master)
    prepare: bytes -> word ids -> keys -> PULL       (next block, beside the training)
    train: local rows -> kernel threads -> one delta a row -> PUSH
    export: tables -> .bin, .vec, .npz

One model: skip-gram or CBOW, negative sampling or NCE, with subwords (`maxn` > 0: fastText) or
without (word2vec).  `kernels.train_pairs` and `train_words` compute, `local_sgd` pulls and pushes;
this module determines which rows a block needs.

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

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import repeat
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.rotation import Rotation
from snailps.api.tables import Rows, Table
from snailps.api.worker import Block, Results
from snailps.config import JobSettings
from snailps.data._subwords import subwords_csr
from snailps.data._text import WordCounter
from snailps.data.vocabulary import Vocabulary
from snailps.models.local_sgd import (
    Contention,
    Copies,
    Floats,
    Keys,
    LocalSgd,
    RowLayout,
)
from snailps.models.ngram_rows import pack_vocabulary, unpack_vocabulary
from snailps.models.text_model import BLOCK_BYTES_MAX, BUCKET_KEY, TextModel
from snailps.models.word_vectors.block_size import (
    NOISE_POWER,
    check_block,
    draw,
    fit_block,
    pool_size,
    tokens_per_byte,
)
from snailps.models.word_vectors.cbow import CbowTrainer
from snailps.models.word_vectors.contention import WordContention, steps_a_word
from snailps.models.word_vectors.export import file_sizes, neighbours, word_rows, write_files
from snailps.models.word_vectors.rotation import RotationTrainer, SkipGramTrainer, Tenancy
from snailps.models.word_vectors.settings import ADAGRAD_EPS, WordVectorSettings
from snailps.models.word_vectors.shared_text import IDS_END, cut_text, put_slice, text_table
from snailps.models.word_vectors.skip_gram import BUNDLE, RUN_WORDS, deal_centres, longest_run
from snailps.models.word_vectors.sole_part import (
    Piece,
    SoleCbowTrainer,
    SoleSkipGramTrainer,
    SoleTrainer,
)
from snailps.models.word_vectors.warm_start import adopt, count_on, put_model, put_vectors
from snailps.models.word_vectors.word_parts import (
    chunks_of,
    chunks_of_sole,
    chunks_that_fit,
    keeps_all_rows,
    most_parts,
    parts_by_words,
)

BUCKETS_MARKED = 1 << 24
MOVING_STEPS = 30.0
"""Where nothing rotates: expected steps of the other workers on a row, in the time of a block, from
which it is pulled again when the block begins: some five of its words in their text.  8 workers, 1
epoch of 17 M words: loss of held-out text 2.198 at 6 and at 30, 4.3 without pulling any again."""
ADAGRAD_LR, ADAGRAD_LR_SUBWORDS = 0.3, 0.7
"""Default rates of AdaGrad; they fall to 0 as that of plain steps does.  Rows of subwords get so
many gradients that their sums of squares would make the steps of a lower rate too short."""
PART_WINDOWS = 50
"""Least length of a thread's part of a block, in windows: at most 2% of its pairs are cut."""
LOSS_DIVERGED = 4.0
"""Mean loss of a block or visit, in that of untrained rows, from which the training has diverged:
rows may then grow huge and stay finite.  3 MB of text, words: below 0.9 with lr 0.05, between 9 and
20 with 0.2."""
PAIRS_JUDGED = 1000
"""Least pairs that a mean loss says so much of."""
SLICES = 16
"""Slices of an epoch's text for each worker, at least."""
SLICE_BYTES_SOLE = BLOCK_BYTES_MAX // 2
"""Most bytes of a slice of the only worker."""
ENCODED_BYTES = 1 << 16
"""Of a slice's text, encoded by a thread at a time: some .4 ms."""
SEED_MASK = (1 << 64) - 1

Ints = NDArray[np.int32]


@dataclass(slots=True)
class _Batch:
    """A prepared block: its words and rows numbered locally, and its pulls."""

    tokens: Ints
    raw_words: int
    bag_ptr: NDArray[np.int64]
    bag_rows: Ints
    noise: Ints
    noise_logit: Floats
    contention: WordContention | None
    steps: tuple[Floats, ...]
    elsewhere: tuple[Floats, ...]
    copies: Copies | None


class WordVectors(TextModel):
    """fastText / word2vec as a parameter-server model; see the module's docstring."""

    optimizers = ("auto", "add", "adagrad")
    Settings = WordVectorSettings
    settings: WordVectorSettings
    unit: ClassVar[Literal["line", "word"]] = "word"
    blocks_an_epoch = 80
    """8 workers, 1 epoch of 17 M words without subwords, loss of held-out text and analogies: 2.219
    and .113 at 40, 2.197 and .134 at 80, 2.193 and .148 at 160; one worker 2.181 and .152.  Bytes a
    word grow from about 600 at 40 to 960 at 80."""

    def tables(self) -> Sequence[Table]:
        """Input rows (words, then buckets) start at +-1/dim, output rows at zero, as fastText's."""
        s = self.settings
        make = partial(Table, dim=s.dim, wire=s.wire)
        if s.optimizer == "adagrad":
            make = partial(make, access="adagrad", lr=s.lr, eps=ADAGRAD_EPS)
        text = (text_table(),) if self._may_rotate(s) else ()
        return (
            make("input", init="uniform", scale=1.0 / s.dim, seed=s.seed),
            make("output"),
            *text,
        )

    @classmethod
    def model_name(cls, settings: JobSettings) -> str:
        """As its command."""
        return "fasttext" if getattr(settings, "maxn", 0) else "word2vec"

    @classmethod
    def block_bytes(cls, settings: JobSettings, total_bytes: int, workers: int) -> int:
        """A slice to deal for workers that rotate: `SLICES` an epoch and worker.

        One worker has smaller slices of a long text, as two have, so that a chunk has some for
        others that join; of a short one each costs a 20th of its encoding.
        """
        assert isinstance(settings, WordVectorSettings)
        if not cls._may_rotate(settings, workers):
            return super().block_bytes(settings, total_bytes, workers)
        most = SLICE_BYTES_SOLE if workers == 1 else BLOCK_BYTES_MAX
        return max(512, min(most, total_bytes // (SLICES * workers)))

    @staticmethod
    def _may_rotate(settings: WordVectorSettings, workers: int = 2) -> bool:
        if workers == 1 and settings.model == "cbow" and settings.maxn:
            return False
        return settings.consistency == "async" and not settings.max_steps

    @classmethod
    def summarize(cls, settings: JobSettings, counter: WordCounter) -> bytes:
        """The vocabulary, and how many rows its n-grams have."""
        assert isinstance(settings, WordVectorSettings)
        if settings.continue_from:
            vocabulary = count_on(settings, counter)
        else:
            min_count, max_size = settings.min_count, settings.max_vocab
            vocabulary = Vocabulary.from_counter(counter, min_count, max_size)
        return pack_vocabulary(settings, vocabulary)

    @classmethod
    def fit_block(
        cls, settings: JobSettings, block_bytes: int, total_bytes: int, summary: bytes
    ) -> int:
        """Smaller blocks where the rows of one would not fit into `worker_memory`."""
        assert isinstance(settings, WordVectorSettings)
        settings, vocabulary = unpack_vocabulary(settings, summary)
        size = fit_block(vocabulary, settings, block_bytes, total_bytes)
        if not cls._may_rotate(settings):  # else a block is a slice to deal: its rows are not used
            check_block(vocabulary, settings, size, total_bytes)
        return size

    @classmethod
    def adopt(cls, settings: JobSettings, explicit: Callable[[str], str | None]) -> JobSettings:
        """Takes dim, model and subwords from the file that the training starts from.

        With `optimizer: adagrad`, sets the default rate of AdaGrad unless `lr` is set.
        """
        assert isinstance(settings, WordVectorSettings)
        adopted = adopt(settings, explicit)
        if adopted.optimizer == "adagrad" and explicit("lr") is None:
            return replace(adopted, lr=ADAGRAD_LR_SUBWORDS if adopted.maxn else ADAGRAD_LR)
        return adopted

    @classmethod
    def loader(cls, settings: JobSettings) -> Callable[[Results], None] | None:
        """Sets the rows from `continue_from` or `pretrained`."""
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
    def landmarks(cls, results: Results, count: int) -> tuple[Sequence[str], Rows] | None:
        """The most frequent words but the end of a line, with their vectors."""
        assert isinstance(results.settings, WordVectorSettings)
        s, vocabulary = unpack_vocabulary(results.settings, results.summary)
        words = vocabulary.words[: count + 1]
        rows = np.concatenate([np.array(some, np.float32) for some in word_rows(results, s, words)])
        kept = [i for i, word in enumerate(words) if word != b"</s>"][:count]
        return [words[i].decode("utf-8", "replace") for i in kept], rows[kept]

    @classmethod
    def rotation(
        cls, settings: JobSettings, total_bytes: int, workers: int, summary: bytes
    ) -> Rotation | None:
        """None for a text of so few words that a part's are no sample of all negatives.

        Nor does one worker with CBOW and subwords rotate: in the order of the text windows share
        the sums of their bags, which takes a third less time.
        """
        assert isinstance(settings, WordVectorSettings)
        settings, vocabulary = unpack_vocabulary(settings, summary)
        if not cls._may_rotate(settings, workers) or len(vocabulary) >= IDS_END:
            return None
        kept = vocabulary.counts.astype(np.float64) * vocabulary.keep_probability(settings.sample)
        by_words = parts_by_words(kept)
        if by_words < 2:
            return None
        tokens = tokens_per_byte(vocabulary, total_bytes) * total_bytes
        parts = min(most_parts(tokens, workers), by_words)
        sharers = min(workers, parts)
        sole = chunks_of_sole(vocabulary, settings, tokens) if workers == 1 else 0
        if sole:
            return Rotation(sole, parts)
        chunks = chunks_of(vocabulary, settings, tokens, sharers)
        return Rotation(chunks_that_fit(vocabulary, settings, tokens, chunks, sharers), parts)

    # --- at a worker -------------------------------------------------------------------------

    def setup(self) -> None:
        """Unpacks the vocabulary and what follows from it."""
        self.settings, self.vocabulary = unpack_vocabulary(self.settings, self.summary)
        s = self.settings
        self._lexicon = self.vocabulary.lexicon
        self._keep = self.vocabulary.keep_probability(s.sample)
        noise = self.vocabulary.noise(NOISE_POWER)
        self._noise_sum = np.cumsum(noise)
        self._noise_log = np.log(noise * s.negatives) if s.loss == "nce" else None
        logit = np.zeros(1) if self._noise_log is None else self._noise_log
        at_first = np.logaddexp(0, logit) + s.negatives * np.logaddexp(0, -logit)
        self._loss_untrained = float((noise * at_first).sum() / noise.sum())
        self._contention: tuple[int, WordContention] | None = None  # for so many workers
        squares = s.optimizer == "adagrad"
        self.sgd = LocalSgd(self, RowLayout.padded(s.dim, 1 + squares, split=True), state=squares)

    def contention(self, workers: int) -> WordContention | None:
        """Estimates for so many workers, made when they are first needed; None for one worker.

        Takes a second for a large vocabulary with subwords, so it is for `prepare`, which runs
        beside the training.  Skip-gram that rotates has no use for them.
        """
        if workers == 1:
            return None
        if self._contention is None or self._contention[0] != workers:
            self._contention = workers, WordContention(self.vocabulary, self.settings, workers)
        return self._contention[1]

    def noise_logit(self, words: NDArray[Any] | slice) -> Floats:
        """What the scores of output rows are above those of the model (NCE); empty without."""
        if self._noise_log is None:
            return np.zeros(0, np.float32)
        return self._noise_log[words].astype(np.float32)

    def deal(self, block: Block) -> Mapping[str, float]:
        """Encodes a slice of a chunk for all workers."""
        if block.chunk == 0 and self.workers == 1 and self._sole is not None:
            self._sole.begin()
        ids, words = self._encoded(block)
        put_slice(self, block.chunk, block.slice, ids, words)
        return {}

    def _encoded(self, block: Block) -> tuple[Ints, int]:
        """Ids and words of a slice, of which threads encode parts.

        The parts depend on the text alone: a slice that is dealt twice is the same.
        """
        parts = list(cut_text(block.data, ENCODED_BYTES))
        seeds = [(block.seed + at * 0x9E3779B97F4A7C15) & SEED_MASK for at in range(len(parts))]
        encoded = list(self._encoders.map(self._lexicon.encode, parts, repeat(self._keep), seeds))
        return np.concatenate([ids for ids, _ in encoded]), sum(words for _, words in encoded)

    @cached_property
    def _encoders(self) -> ThreadPoolExecutor:
        """Threads of their own: in those of the kernels a slice would wait for pieces of text."""
        return ThreadPoolExecutor(self.threads, "snailps-encode")

    def finish(self) -> None:
        """Waits for the last pushes."""
        for name in ("_rotating", "_sole"):
            if self.__dict__.get(name) is not None:
                self.__dict__[name].close()
        if "_encoders" in self.__dict__:
            self._encoders.shutdown()
        super().finish()

    @cached_property
    def run(self) -> int:
        """Bundles of a word that are trained one after the other."""
        kept = self.vocabulary.counts.astype(np.float64) * self._keep
        most = np.sort(np.argsort(-kept, kind="stable")[:RUN_WORDS])
        bag_ptr, bag_rows, _ = self.bags(most)
        return longest_run(kept[most], bag_ptr, bag_rows, self.threads)

    @cached_property
    def _rotating(self) -> SkipGramTrainer | CbowTrainer:
        return SkipGramTrainer(self) if self.settings.model == "skipgram" else CbowTrainer(self)

    @cached_property
    def _sole(self) -> SoleSkipGramTrainer | SoleCbowTrainer | None:
        """Of chunks of one part; None if memory has no room for all rows."""
        if not keeps_all_rows(self.vocabulary, self.settings):
            return None
        is_cbow = self.settings.model == "cbow"
        return SoleCbowTrainer(self) if is_cbow else SoleSkipGramTrainer(self)

    def _trainer_of(self, block: Block) -> RotationTrainer[Any] | SoleTrainer[Any]:
        """Of a tenancy.  Where a chunk has more or fewer parts, those of before are done."""
        if block.parts == 1 and self._sole is not None:
            used: RotationTrainer[Any] | SoleTrainer[Any] = self._sole
            other = "_rotating"
        else:
            used, other = self._rotating, "_sole"
        if self.__dict__.get(other) is not None:
            self.__dict__[other].free()
        return used

    def prepare(self, block: Block) -> _Batch | Tenancy | Piece[Any] | None:
        """Numbers the block's words and rows locally and starts to pull the rows."""
        if block.part >= 0:
            return self._trainer_of(block).prepare(block)
        tokens, raw_words = self._lexicon.encode(block.data, self._keep, block.seed)
        words = len(self.vocabulary)
        seen = np.zeros(words, np.bool_)
        seen[tokens[tokens >= 0]] = True
        present = np.flatnonzero(seen)
        if len(present) == 0:
            none = np.zeros(0, np.int32)
            zero = np.zeros(1, np.int64)
            no_rows = np.zeros(0, np.float32)
            return _Batch(none, raw_words, zero, none, none, no_rows, None, (), (), None)
        pool = pool_size(len(tokens))
        drawn = draw(self._noise_sum, pool, block.seed)
        seen[drawn] = True
        seen[present] = False
        output_words = np.concatenate((present, np.flatnonzero(seen)))
        place = np.full(words + 1, -1, np.int32)  # the last one maps token -1 to itself
        place[output_words] = np.arange(len(output_words), dtype=np.int32)
        bag_ptr, bag_rows, input_keys = self.bags(present)
        output_keys = output_words.astype(np.uint64)
        logit = self.noise_logit(output_words)
        local_tokens = place[tokens]
        steps: tuple[()] | tuple[Floats, Floats] = ()
        elsewhere: tuple[Floats, ...] = ()
        moving: dict[str, NDArray[np.int64]] = {}
        contention = self.contention(self.workers)
        if contention is not None:
            steps = self._steps(
                local_tokens, bag_ptr, bag_rows, place[drawn], len(input_keys), len(output_keys)
            )
            kept = int(np.count_nonzero(tokens >= 0))
            if block.clock >= 0:  # what this worker saw before must not matter
                elsewhere = contention.steps_beside(kept, input_keys, output_keys, steps)
            else:
                contention.saw(kept, input_keys, output_keys, steps)
                elsewhere = contention.steps_elsewhere(kept, input_keys, output_keys)
                for table, expected in zip(("input", "output"), elsewhere, strict=True):
                    moving[table] = np.flatnonzero(expected >= MOVING_STEPS)
        copies = self.sgd.pull({"input": input_keys, "output": output_keys}, moving)
        return _Batch(
            local_tokens,
            raw_words,
            bag_ptr,
            bag_rows,
            place[drawn],
            logit,
            contention,
            steps,
            elsewhere,
            copies,
        )

    def train(self, block: Block) -> Mapping[str, float]:
        """Trains on local copies of the rows and pushes what changed."""
        if block.part >= 0:
            return self._trainer_of(block).train(block)
        s = self.settings
        batch: _Batch = block.prepared
        lr_start, lr_stop = self._rates(block)
        figures = {"units": float(batch.raw_words), "lr": lr_stop}
        if batch.copies is None:
            return figures
        local = self.sgd.load(batch.copies)
        part_num = min(self.threads, max(1, len(batch.tokens) // (PART_WINDOWS * s.window)))
        submit = self.sgd.pool.submit
        if s.model == "skipgram":
            resident = deal_centres(batch.tokens, len(batch.bag_ptr) - 1, part_num, block.seed)
            done = [
                submit(self._train_pairs, block, local, resident, part) for part in range(part_num)
            ]
        else:
            # A part loses the contexts across its edges, so it must be long against the window.
            parts = np.array_split(batch.tokens, part_num)
            done = [
                submit(self._train_words, block, local, part, number)
                for number, part in enumerate(parts)
            ]
        results = [task.result() for task in done]
        self._push(batch.copies, self._contentions(batch, local, lr_start))
        figures |= self.judged(results)
        return figures

    def judged(self, results: Sequence[tuple[float, int]], finite: bool = True) -> dict[str, float]:
        """Loss and examples of a block or visit, from those of its parts; no number if it diverged.

        Parameters
        ----------
        results : sequence of tuple
            Loss and pairs of each part.
        finite : bool
            Whether its rows are; pushes of others were refused.
        """
        loss, pairs = sum(loss for loss, _ in results), sum(count for _, count in results)
        if pairs >= PAIRS_JUDGED and loss > LOSS_DIVERGED * self._loss_untrained * pairs:
            loss = math.inf
        return {"loss": float(loss) if finite else math.nan, "examples": float(pairs)}

    def _rates(self, block: Block) -> tuple[float, float]:
        """Learning rate at the begin and at the end of a block."""
        begin, end = block.progress
        return self.settings.lr * (1.0 - begin), self.settings.lr * (1.0 - end)

    def _train_pairs(
        self,
        block: Block,
        local: Mapping[str, tuple[Floats, ...]],
        resident: NDArray[np.uint16] | None,
        part: int,
    ) -> tuple[float, int]:
        """Skip-gram, in one thread: sorts and trains the pairs of the centres of one part."""
        s = self.settings
        batch: _Batch = block.prepared
        inputs, outputs, squares = _rows(local)
        lr_start, lr_stop = self._rates(block)
        centres, starts, contexts, _ = kernels.sort_pairs(
            batch.tokens, s.window, block.seed, BUNDLE, run=self.run, resident=resident, part=part
        )
        return kernels.train_pairs(
            inputs,
            outputs,
            s.dim,
            centres,
            starts,
            contexts,
            batch.bag_ptr,
            batch.bag_rows,
            batch.noise,
            batch.noise_logit,
            negatives=s.negatives,
            lr_start=lr_start,
            lr_stop=lr_stop,
            seed=(block.seed + 1 + part) & SEED_MASK,
            squares=squares,
            eps=ADAGRAD_EPS,
        )

    def _train_words(
        self, block: Block, local: Mapping[str, tuple[Floats, ...]], text: Ints, number: int
    ) -> tuple[float, int]:
        """CBOW, in one thread: trains a part of the text."""
        s = self.settings
        batch: _Batch = block.prepared
        inputs, outputs, squares = _rows(local)
        lr_start, lr_stop = self._rates(block)
        return kernels.train_words(
            inputs,
            outputs,
            s.dim,
            np.ascontiguousarray(text),
            batch.bag_ptr,
            batch.bag_rows,
            batch.noise,
            batch.noise_logit,
            window=s.window,
            negatives=s.negatives,
            lr_start=lr_start,
            lr_stop=lr_stop,
            seed=(block.seed + number) & SEED_MASK,
            squares=squares,
            eps=ADAGRAD_EPS,
        )

    def _push(self, copies: Copies, contentions: Mapping[str, Contention]) -> None:
        """Pushes the deltas of a block, scaled if there are contentions."""

        def share(table: str, _trained: tuple[Floats, ...], deltas: Floats) -> None:
            contentions[table].scale(deltas[:, : self.settings.dim])  # squares add up as they are

        self.sgd.push(copies, share if contentions else None)

    def _contentions(
        self, batch: _Batch, local: Mapping[str, tuple[Floats, ...]], rate: float
    ) -> dict[str, Contention]:
        """Table -> how to scale the deltas of a block, if several workers train; else nothing."""
        if batch.contention is None:
            return {}
        curvatures = batch.contention.curvatures_of(
            batch.tokens,
            batch.bag_ptr,
            batch.bag_rows,
            batch.noise,
            batch.noise_logit,
            [rows for rows, *_ in local.values()],
        )
        found = {}
        for table, own, others, curvature in zip(
            local, batch.steps, batch.elsewhere, curvatures, strict=True
        ):
            root = np.float32(1)
            for squares in local[table][1:]:
                # AdaGrad's step on a row is one of the rate divided by its root, on average.
                root = np.sqrt(squares[:, : self.settings.dim].mean(1)) + np.float32(ADAGRAD_EPS)
            found[table] = Contention(own / root, others / root, np.float32(rate) * curvature)
        return found

    def bags(self, present: NDArray[np.int64]) -> tuple[NDArray[np.int64], Ints, Keys]:
        """Local bags of the present words: which of the pulled input rows make up each."""
        s = self.settings
        if s.maxn == 0:
            own = np.arange(len(present) + 1, dtype=np.int64)
            return own, own[:-1].astype(np.int32), present.astype(np.uint64)
        words = self.vocabulary.words.take(present)
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
        of_input, of_output = steps_a_word(s)
        counts = np.bincount(tokens[tokens >= 0], minlength=len(bag_ptr) - 1)
        weights = np.repeat(counts * of_input, np.diff(bag_ptr))
        inputs = np.bincount(bag_rows, weights, input_num)
        uses = len(tokens) * of_output * s.negatives / len(noise)
        outputs = np.bincount(noise, minlength=output_num) * uses
        outputs[: len(counts)] += counts * of_output
        return inputs.astype(np.float32), outputs.astype(np.float32)

    # --- at the master -----------------------------------------------------------------------

    @classmethod
    def result_files(cls, settings: JobSettings) -> Sequence[str]:
        """A file of each format."""
        assert isinstance(settings, WordVectorSettings)
        return [f"{settings.output}.{name}" for name in settings.formats]

    @classmethod
    def file_sizes(cls, settings: JobSettings, summary: bytes) -> Mapping[str, int]:
        """A file of each format."""
        assert isinstance(settings, WordVectorSettings)
        return file_sizes(*unpack_vocabulary(settings, summary))

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        """Writes the model in the formats asked for."""
        return write_files(results)


def _rows(
    local: Mapping[str, tuple[Floats, ...]],
) -> tuple[Floats, Floats, tuple[Floats, Floats] | None]:
    """Input rows, output rows, and AdaGrad's sums of both, if there are any."""
    (inputs, *input_squares), (outputs, *output_squares) = local["input"], local["output"]
    return inputs, outputs, (input_squares[0], output_squares[0]) if input_squares else None
