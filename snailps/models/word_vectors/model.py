"""fastText and word2vec: learns word vectors, with or without subwords, from plain text.

    survey: words -> counts -> Vocabulary            (once, merged at the master)
    prepare: bytes -> word ids -> keys -> PULL       (next block, beside the training)
    train: local rows -> kernel threads -> one delta a row -> PUSH
    export: tables -> .bin, .vec, .npz

One model: skip-gram or CBOW, negative sampling or NCE, with subwords (`maxn` > 0: fastText) or
without (word2vec).  Owns how a job is cut (blocks, or a rotation), and which rows a block needs.
`kernels.train_pairs` and `train_words` compute, `local_sgd` pulls and pushes.

Keys: word i of the vocabulary is key i of the tables "input" and "output"; subword bucket b is key
``BUCKET_KEY + b`` of "input", so that a vocabulary may grow without moving a bucket.

T. Mikolov et al., "Distributed representations of words and phrases and their compositionality",
NIPS 2013.  P. Bojanowski et al., "Enriching word vectors with subword information", TACL 2017.
A. Mnih, Y. W. Teh, "A fast and simple algorithm for training neural probabilistic language models",
ICML 2012.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from snailps.abi.key_hash import GOLDEN, MASK64
from snailps.api.concurrency import Concurrency
from snailps.api.rotation import Rotation
from snailps.api.tables import Rows, Table
from snailps.api.traits import Adopted, Reported, Rotated, SurveyPart
from snailps.api.worker import Block, Results
from snailps.config import JobSettings
from snailps.data._text import WordCounter
from snailps.data.vocabulary import Vocabulary
from snailps.data.word_counts import END_OF_LINE
from snailps.dataclass import dataclass, replace
from snailps.files.input_files import InputFiles
from snailps.models.block_trainer import Prepared, Rates, Span, Sums
from snailps.models.copied_rows import CopiedRows
from snailps.models.local_sgd import Contention, Floats
from snailps.models.ngram_rows import pack_vocabulary, unpack_vocabulary
from snailps.models.rotation.trainer import PreparedLease
from snailps.models.rows import Scale, Trained
from snailps.models.text_model import BLOCK_BYTES_MAX, TextModel, WordPart, normal_form_of
from snailps.models.word_vectors.block_size import (
    check_block,
    fit_block,
    tokens_per_byte,
)
from snailps.models.word_vectors.cbow import CbowTrainer
from snailps.models.word_vectors.contention import WordContention, steps_a_word
from snailps.models.word_vectors.examples import Bags, ExampleGroups, train
from snailps.models.word_vectors.export import file_sizes, neighbours, word_rows, write_files
from snailps.models.word_vectors.outputs import Targets
from snailps.models.word_vectors.partitions import most_parts, parts_by_words
from snailps.models.word_vectors.plan import (
    checkouts_of_one,
    chunks_enough,
    chunks_of,
    keeps_all_rows,
    words_alone,
)
from snailps.models.word_vectors.rotation import WordTrainer
from snailps.models.word_vectors.row_classes import classes_in
from snailps.models.word_vectors.settings import ADAGRAD_EPS, WordVectorSettings
from snailps.models.word_vectors.shared_text import IDS_END, cut_text, put_block, text_table
from snailps.models.word_vectors.skip_gram import SkipGramTrainer
from snailps.models.word_vectors.warm_start import adopt, count_on, put_vectors, put_words
from snailps.models.word_vectors.word_rows import WordRows

MOVING_STEPS = 30.0
"""A row on which other workers make this many steps during a block is pulled again when the block
starts."""
TEXT_BLOCKS = 8
"""Blocks of an epoch's text for each worker."""
TEXT_BLOCK_BYTES_MAX = BLOCK_BYTES_MAX // 2
"""Most bytes of such a block, so that a chunk of one worker has blocks for others that join."""
BYTES_A_WORKER = 100_000
"""Bytes of an epoch that each worker needs in a job that does not rotate: with less text several
workers learn less than one."""
TREE_PARTS = 1
"""Partitions of a rotation with a tree, because each context steps on its root."""
ENCODED_BYTES = 1 << 16
"""Bytes of a block's text that a thread encodes at a time, in about .4 ms."""

Ints = NDArray[np.int32]


@dataclass(slots=True)
class _WordBatch:
    """A block's words and rows, by local numbers."""

    tokens: Ints
    examples: ExampleGroups
    bags: Bags
    targets: Targets
    contention: WordContention | None
    steps: tuple[Floats, ...]
    elsewhere: tuple[Floats, ...]


class WordVectors(WordRows, Adopted, Rotated, Reported):
    """fastText / word2vec as a parameter-server model; see the module's docstring."""

    optimizers = ("add", "adagrad")
    Settings = WordVectorSettings
    unit: ClassVar[Literal["line", "word"]] = "word"
    paces = TextModel.paces[0], replace(TextModel.paces[1], blocks=80)

    def tables(self) -> Sequence[Table]:
        """Input rows (words, then buckets) start within +-1/dim, output rows at zero."""
        s = self.settings
        make = partial(Table, dim=s.dim, wire=s.wire)
        if s.optimizer == "adagrad":
            make = partial(make, access="adagrad", lr=s.rate, eps=ADAGRAD_EPS)
        text = (text_table(),) if self.rotates(s) else ()
        return (
            make("input", init="uniform", scale=1.0 / s.dim, seed=s.seed),
            make("output"),
            *text,
        )

    @classmethod
    def model_name(cls, settings: JobSettings) -> str:
        return "fasttext" if getattr(settings, "maxn", 0) else "word2vec"

    @classmethod
    def block_bytes(cls, settings: WordVectorSettings, total_bytes: int, workers: int) -> int:
        """In a rotation, a block is only encoded: `TEXT_BLOCKS` an epoch and worker."""
        if not cls._rotates_rows(settings, workers):
            return super().block_bytes(settings, total_bytes, workers)
        return max(512, min(TEXT_BLOCK_BYTES_MAX, total_bytes // (TEXT_BLOCKS * workers)))

    @classmethod
    def _rotates_rows(cls, settings: WordVectorSettings, workers: int) -> bool:
        """Whether no row has two writers."""
        return cls.rotates(settings) and (settings.loss != "hs" or workers <= TREE_PARTS)

    @classmethod
    def summarize(cls, settings: WordVectorSettings, counter: WordCounter) -> bytes:
        """Make the vocabulary, with the number of rows for its n-grams."""
        if settings.continue_from:
            vocabulary = count_on(settings, counter)
        else:
            min_count, max_size = settings.min_count, settings.max_vocab
            vocabulary = Vocabulary.from_counter(counter, min_count, max_size)
        return pack_vocabulary(settings, vocabulary)

    @classmethod
    def fit_block(
        cls, settings: WordVectorSettings, block_bytes: int, total_bytes: int, summary: bytes
    ) -> int:
        """Smaller blocks where a block's rows would not fit into `worker_memory`."""
        settings, vocabulary = unpack_vocabulary(settings, summary)
        size = fit_block(vocabulary, settings, block_bytes, total_bytes)
        if not cls.rotates(settings):  # in a rotation blocks are only encoded
            check_block(vocabulary, settings, size, total_bytes)
        return size

    @classmethod
    def workers_at_once(cls, settings: WordVectorSettings, files: InputFiles) -> Concurrency:
        """A worker for each `BYTES_A_WORKER`; in a rotation `most_parts` limits them."""
        if cls.rotates(settings):
            return Concurrency()
        return Concurrency.by_size(files.total_bytes, BYTES_A_WORKER, "bytes")

    @classmethod
    def adopt(
        cls, settings: WordVectorSettings, explicit: Callable[[str], str | None]
    ) -> JobSettings:
        """Take dim, model and subwords from the file that the training starts from."""
        return adopt(settings, explicit)

    @classmethod
    def loader(cls, settings: WordVectorSettings) -> Callable[[Results], None] | None:
        """Set first rows from `continue_from` or `pretrained`."""
        if settings.continue_from:
            return put_words
        return put_vectors if settings.pretrained else None

    @classmethod
    def inspector(
        cls, settings: WordVectorSettings
    ) -> Callable[[Results], Mapping[str, Sequence[tuple[str, float]]]] | None:
        """Find neighbours of `validation_words`."""
        return neighbours if settings.validation_words else None

    @classmethod
    def landmarks(cls, results: Results, count: int) -> tuple[Sequence[str], Rows] | None:
        """The most frequent words, without the end of a line, with their vectors."""
        assert isinstance(results.settings, WordVectorSettings)
        s, vocabulary = unpack_vocabulary(results.settings, results.summary)
        words = vocabulary.words[: count + 1]
        classes = classes_in(results.settings, results.summary)  # a page asks every few seconds
        pieces = word_rows(results, s, classes, words)
        rows = np.concatenate([np.array(piece, np.float32) for piece in pieces])
        named = [i for i, word in enumerate(words) if word != END_OF_LINE][:count]
        return [words[i].decode("utf-8", "replace") for i in named], rows[named]

    @classmethod
    def rotation(
        cls, settings: WordVectorSettings, total_bytes: int, workers: int, summary: bytes
    ) -> Rotation | None:
        """None if there are too few words: a partition's must be a sample of all negatives.

        With a tree a single worker has all rows, or the training does not rotate.
        """
        settings, vocabulary = unpack_vocabulary(settings, summary)
        if not cls._rotates_rows(settings, workers) or len(vocabulary) >= IDS_END:
            return None
        tokens = tokens_per_byte(vocabulary, total_bytes) * total_bytes
        if settings.loss == "hs":
            if not keeps_all_rows(vocabulary, settings):
                return None
            chunks = chunks_of(vocabulary, settings, tokens, TREE_PARTS)
            pieces = checkouts_of_one(vocabulary, settings, tokens / chunks)
            return Rotation(chunks, TREE_PARTS, pieces)
        kept = vocabulary.counts.astype(np.float64) * vocabulary.keep_probability(settings.sample)
        by_words = parts_by_words(kept)
        if by_words < 2:
            return None
        chunks = chunks_enough(settings, tokens) if words_alone(settings) else 1
        parts = min(most_parts(tokens / chunks, workers), by_words)
        chunks = chunks_of(vocabulary, settings, tokens, min(workers, parts))
        return Rotation(chunks, parts, checkouts_of_one(vocabulary, settings, tokens / chunks))

    # --- at a worker -------------------------------------------------------------------------

    def survey_part(self) -> SurveyPart:
        normal = normal_form_of(self.settings.normalize)
        return WordPart(lambda block: normal(block.data))

    def setup(self) -> None:
        super().setup()
        self._normal_form = normal_form_of(self.settings.normalize)
        self._lexicon = self.vocabulary.lexicon
        self.rows = self._copied = (
            CopiedRows(self.sgd, "input"),
            CopiedRows(self.sgd, "output"),
        )

    def encode(self, block: Block) -> Mapping[str, float]:
        """Encode a block of a chunk for all workers."""
        ids, words = self._encoded(block)
        put_block(self, block.chunk, block.chunk_index, ids, words)
        return {}

    def _encoded(self, block: Block) -> tuple[Ints, int]:
        """Encode a block's text, in parts by several threads; returns ids and the number of words.

        The parts depend on the text alone, so that a block encoded twice is the same.
        """
        parts = list(cut_text(block.data, ENCODED_BYTES))
        seeds = [(block.seed + at * GOLDEN) & MASK64 for at in range(len(parts))]
        encoded = list(self._encoders.map(self._ids_of, parts, seeds))
        return np.concatenate([ids for ids, _ in encoded]), sum(words for _, words in encoded)

    def _ids_of(self, text: bytes, seed: int) -> tuple[Ints, int]:
        """Encode a text in its normal form; `seed` draws the occurrences that are kept."""
        return self._lexicon.encode(self._normal_form(text), self.keep, seed)

    @cached_property
    def _encoders(self) -> ThreadPoolExecutor:
        """Threads for encoding: in the kernels' threads, training would wait for pieces of text."""
        return ThreadPoolExecutor(self.threads, "snailps-encode")

    def finish(self) -> None:
        """End the threads, and push what is left."""
        if "rotating" in self.__dict__:
            self.rotating.close()
        if "_encoders" in self.__dict__:
            self._encoders.shutdown()
        super().finish()

    @cached_property
    def rotating(self) -> WordTrainer:
        return SkipGramTrainer(self) if self.settings.model == "skipgram" else CbowTrainer(self)

    def prepare(self, block: Block) -> Prepared | PreparedLease:
        """Number a block's words and rows, and start to pull the rows; or prepare a partition."""
        if block.part >= 0:
            return self.rotating.prepare(block)
        tokens, raw_words = self._ids_of(block.data, block.seed)
        words = len(self.vocabulary)
        seen = np.zeros(words, np.bool_)
        seen[tokens[tokens >= 0]] = True
        present = np.flatnonzero(seen)
        metrics = {"units": float(raw_words)}
        if len(present) == 0:
            return Prepared(None, 0, metrics)
        output_rows, targets = self.outputs.of_block(present, len(tokens), block.seed)
        place = np.full(words + 1, -1, np.int32)  # the last one maps token -1 to itself
        place[present] = np.arange(len(present), dtype=np.int32)
        bags, input_keys = self.bags(present)
        output_keys = output_rows.astype(np.uint64)
        tokens = place[tokens]
        steps: tuple[()] | tuple[Floats, Floats] = ()
        elsewhere: tuple[Floats, ...] = ()
        moving: list[NDArray[np.int64] | None] = [None, None]
        contention = self.contention(self.workers)
        if contention is not None:
            steps = self._steps(
                tokens, bags.ptr, bags.rows, targets, len(input_keys), len(output_keys)
            )
            kept = int(np.count_nonzero(tokens >= 0))
            if block.clock >= 0:  # a step must not depend on what this worker saw before
                elsewhere = contention.steps_beside(kept, input_keys, output_keys, steps)
            else:
                contention.saw(kept, input_keys, output_keys, steps)
                elsewhere = contention.steps_elsewhere(kept, input_keys, output_keys)
                moving = [np.flatnonzero(expected >= MOVING_STEPS) for expected in elsewhere]
        asked = tuple(
            rows.ask([rows.find(keys)], moving=again)
            for rows, keys, again in zip(
                self._copied, (input_keys, output_keys), moving, strict=True
            )
        )
        examples = self.rotating.examples(tokens, block.seed)
        batch = _WordBatch(tokens, examples, bags, targets, contention, steps, elsewhere)
        return Prepared(batch, len(examples), metrics, asked)

    def train(self, block: Block) -> Mapping[str, float]:
        return self.rotating.train(block) if block.part >= 0 else super().train(block)

    def rates(self, block: Block) -> Rates:
        begin, end = map(self.rotating.rate, block.progress)
        return begin, end

    def step(
        self, batch: _WordBatch, rows: Sequence[Trained], span: Span, rates: Rates, seed: int
    ) -> Sums:
        inputs, outputs = rows
        seed += self.settings.model == "skipgram"  # `seed` itself drew windows
        tasks = train(
            self.sgd, self.settings, batch.examples, span, inputs, batch.bags, outputs,
            batch.targets, rates, seed,
        )  # fmt: skip
        results = self.results_of(tasks)
        return sum(loss for loss, _ in results), sum(count for _, count in results)

    def judged(self, batch: Any, rows: Sequence[Trained], sums: Sums) -> Mapping[str, float]:
        return self.figures_of([sums])

    def scales(
        self, batch: _WordBatch, rows: Sequence[Trained], rate: float
    ) -> Sequence[Scale | None]:
        """Scale by the steps of this worker and of others; AdaGrad's squares add up as they are."""
        if batch.contention is None:
            return [None, None]
        curvatures = batch.contention.curvatures_of(
            batch.tokens, batch.bags, batch.targets, [weights for weights, *_ in rows]
        )
        return [
            self._scale(trained, own, others, np.float32(rate) * curvature)
            for trained, own, others, curvature in zip(
                rows, batch.steps, batch.elsewhere, curvatures, strict=True
            )
        ]

    def _scale(self, trained: Trained, own: Floats, others: Floats, curvature: Floats) -> Scale:
        root = np.float32(1)
        for squares in trained[1:]:
            # AdaGrad's step on a row is one of the rate divided by its root, on average.
            root = np.sqrt(squares[:, : self.settings.dim].mean(1)) + np.float32(ADAGRAD_EPS)
        contention = Contention(own / root, others / root, curvature)
        return lambda _trained, deltas: contention.scale(deltas[:, : self.settings.dim])

    def _steps(
        self,
        tokens: Ints,
        bag_ptr: NDArray[np.int64],
        bag_rows: Ints,
        targets: Targets,
        input_num: int,
        output_num: int,
    ) -> tuple[Floats, Floats]:
        """Estimate how many gradients each input and output row gets from this block."""
        s = self.settings
        of_input, of_output = steps_a_word(s)
        counts = np.bincount(tokens[tokens >= 0], minlength=len(bag_ptr) - 1)
        weights = np.repeat(counts * of_input, np.diff(bag_ptr))
        inputs = np.bincount(bag_rows, weights, input_num)
        outputs = targets.steps(
            counts * of_output, len(tokens) * of_output, s.negatives, output_num
        )
        return inputs.astype(np.float32), outputs

    # --- at the master -----------------------------------------------------------------------

    @classmethod
    def result_files(cls, settings: WordVectorSettings) -> Sequence[str]:
        """One file for each format."""
        return [f"{settings.output}.{name}" for name in settings.formats]

    @classmethod
    def file_sizes(cls, settings: WordVectorSettings, summary: bytes) -> Mapping[str, int]:
        return file_sizes(*unpack_vocabulary(settings, summary))

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        """Write the model in each of its `formats`."""
        return write_files(results)
