"""fastText's supervised mode: labels for lines of text, from the mean of their words' vectors.

    survey: words, labels -> counts -> two vocabularies      (once, merged at the master)
    prepare: bytes -> features and labels -> keys -> PULL    (next block, beside the training)
    train: label rows -> PULL; local rows -> kernel threads -> one delta a row -> PUSH
    export: tables -> .bin, which the official fasttext package loads

The arithmetic is `kernels.train_labels`, the features are `data._labelled`'s; here is which rows a
block needs.  Keys: word i is key i of table "input", hash bucket b (n-grams of words and of
characters) is key ``BUCKET_KEY + b``; label k is key k of table "output".

References
----------
A. Joulin, E. Grave, P. Bojanowski, T. Mikolov, "Bag of tricks for efficient text classification",
EACL 2017.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.tables import Table
from snailps.api.worker import Block, Pending, Results, Surveyor
from snailps.config import JobSettings
from snailps.data._labelled import LineReader, Lines, number_rows
from snailps.data._text import WordCounter
from snailps.data.vocabulary import Vocabulary
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.local_sgd import BUCKET_KEY, Contention, Copies, Floats, LocalSgd, key_ranges
from snailps.models.row_cache import Lent, RowCache
from snailps.vectors import BinHeader, write_bin

NOISE_POWER = 0.5
"""fastText draws negatives by the square root of a label's count."""
LOSSES = {"softmax": 0, "ova": 1, "ns": 2}
"""Numbers of the losses in `kernels.train_labels`."""
PLACES_MAX = 1 << 26
"""Largest number of features that a table of places is kept for, 4 bytes each."""
SEEN_BYTES_MAX = 128 << 20
"""Features kept as numbers from epoch to epoch, the first blocks' until it is full: 4 bytes for
each feature of the text, against 0.02 us for reading it again."""
CURVATURE = 2.0
"""Of an input row's loss, a gradient; see `local_sgd.share_of_delta`.  8 workers, package
descriptions, rates .1 and 1: accuracy .693 and divergence without scaling, .696 and .699 (with a
loss of 1e18) at 0.1, .700 and .804 at 1, .698 and .807 at 3; one worker .709 and .808."""
EXCHANGE_LINES = 64
"""Lines of a block after which one of several workers takes label rows anew.  All lines move all
of them, so that sums of whole blocks' deltas go much too far.  4 workers, rate .1: accuracy .612 to
.681 with one exchange a block and any scaling, .705 with one every 64 lines and none, .703 every 16
lines; one worker .709."""


class _Counting:
    """Merges the workers' counts into the vocabulary and the labels."""

    def __init__(self, settings: ClassifierSettings) -> None:
        self._settings = settings
        self._counter = WordCounter()

    def add(self, part: bytes) -> None:
        self._counter.merge(part)

    def result(self) -> bytes:
        s = self._settings
        prefix = s.label.encode()
        labels = Vocabulary.labels_from_counter(self._counter, s.min_count_label, prefix)
        words = Vocabulary.from_counter(self._counter, s.min_count, label_prefix=prefix)
        return pack_summary(words, labels)


def pack_summary(words: Vocabulary, labels: Vocabulary) -> bytes:
    """Both vocabularies as one summary."""
    first = words.to_bytes()
    return len(first).to_bytes(8, "little") + first + labels.to_bytes()


def unpack_summary(summary: bytes) -> tuple[Vocabulary, Vocabulary]:
    """Words and labels of a summary.

    Raises
    ------
    DataError
        It is none.
    """
    size = 8 + int.from_bytes(summary[:8], "little")
    return Vocabulary.from_bytes(summary[8:size]), Vocabulary.from_bytes(summary[size:])


@dataclass(slots=True)
class _Batch:
    """A block made ready: its lines in local numbers, and the pull of its input rows under way.

    `rows` are those of the input and output table at the only worker, else copies of input rows.
    """

    lines: Lines
    noise: NDArray[np.int32]
    output_keys: NDArray[np.uint64]
    steps: tuple[Floats, ...]
    rows: Copies | tuple[Lent, Lent]


class Classifier(LocalSgd):
    """fastText's supervised mode as a parameter-server model; see the module's docstring."""

    Settings = ClassifierSettings
    settings: ClassifierSettings
    unit: ClassVar[Literal["line", "word"]] = "line"
    counts: ClassVar[Literal["examples", "words"]] = "words"

    def tables(self) -> Sequence[Table]:
        """Input rows start at +-1/dim, label rows at zero, as fastText's."""
        s = self.settings
        return (
            Table("input", s.dim, init="uniform", scale=1.0 / s.dim, seed=s.seed, wire=s.wire),
            Table("output", s.dim, wire=s.wire),
        )

    @classmethod
    def surveyor(cls, settings: JobSettings) -> Surveyor | None:
        """Counts words and labels."""
        assert isinstance(settings, ClassifierSettings)
        return _Counting(settings)

    def survey(self, block: Block) -> bytes:
        """Counts of a block."""
        counter = WordCounter()
        counter.count(block.data)
        return counter.dump()

    # --- at a worker -------------------------------------------------------------------------

    def setup(self) -> None:
        """Unpacks the vocabularies and what follows from them."""
        s = self.settings
        words, labels = unpack_summary(self.summary)
        self._words, self._labels = len(words), len(labels)
        self._reader = LineReader(
            words.words,
            labels.words,
            label_prefix=s.label.encode(),
            word_ngrams=s.word_ngrams,
            minn=s.minn,
            maxn=s.maxn,
            bucket=s.bucket,
        )
        self._noise_sum = np.cumsum(labels.noise(NOISE_POWER))
        space = self._reader.space
        self._places = np.full(space, -1, np.int32) if space <= PLACES_MAX else None
        self._seen: dict[tuple[str, int, int], tuple[Lines, NDArray[np.int32]]] = {}
        self._seen_bytes = 0
        self.set_up_copies(s.dim)
        self._row_cache: tuple[RowCache, RowCache] | None = None
        if self.alone and self._places is not None:
            self._row_cache = (
                RowCache(self, "input", s.dim, space, self._in_threads),
                RowCache(self, "output", s.dim, len(labels), self._in_threads),
            )

    def prepare(self, block: Block) -> _Batch | Lines:
        """Numbers the block's features and labels locally and starts to pull its input rows."""
        lines, used = self._read(block)
        if len(lines.features) == 0 or len(lines.labels) == 0:
            return lines
        input_keys = used.astype(np.uint64)
        input_keys[used >= self._words] += np.uint64(BUCKET_KEY - self._words)
        label_ids, labels, noise = self._outputs(lines, block.seed)
        lines = lines._replace(labels=labels)
        output_keys = label_ids.astype(np.uint64)
        kept = self._row_cache
        if kept is not None:
            inputs, outputs = kept
            lent = (inputs.ask(used, input_keys), outputs.ask(label_ids, output_keys))
            return _Batch(lines, noise, output_keys, (), lent)
        copies = self.pull_copies({"input": input_keys})
        return _Batch(lines, noise, output_keys, self._steps(lines, len(used)), copies)

    def train(self, block: Block) -> Mapping[str, float]:
        """Trains on local copies of the rows and pushes what changed."""
        batch: _Batch | Lines = block.prepared
        rates = [self.settings.lr * (1.0 - share) for share in block.progress]
        if isinstance(batch, Lines):  # nothing to learn from
            return {"units": float(batch.tokens), "lr": rates[1]}
        lines = batch.lines
        if (
            isinstance(batch.rows, tuple) and self._row_cache is None
        ):  # another worker has come since
            keys = batch.rows[0].keys
            for lent in batch.rows:
                if lent.pull is not None:
                    lent.pull.abandon()
            batch.rows = self.pull_copies({"input": keys})
            batch.steps = self._steps(lines, len(keys))
        if isinstance(batch.rows, Copies):
            (inputs,) = self.load_copies(batch.rows)
            # Within a step of bsp rows stay as they are, however often they are pulled.
            exchanging = block.clock < 0
            loss, examples = self._train_exchanging(
                batch, inputs, rates, block.seed, exchanging=exchanging
            )
            others = [own * np.float32(self.workers - 1) for own in batch.steps]
            self.push_copies(
                batch.rows,
                [
                    Contention(own, theirs, rates[0] * CURVATURE)
                    for own, theirs in zip(batch.steps, others, strict=True)
                ],
            )
        else:
            loss, examples = self._train_kept(batch, batch.rows, rates, block.seed)
        return {
            "units": float(lines.tokens),
            "lr": rates[1],
            "loss": loss,
            "examples": float(examples),
        }

    def _train_kept(
        self, batch: _Batch, lent: tuple[Lent, Lent], rates: Sequence[float], seed: int
    ) -> tuple[float, int]:
        """Trains a block at the only worker."""
        assert self._row_cache is not None
        inputs, outputs = (kept.lend(one) for kept, one in zip(self._row_cache, lent, strict=True))
        line_num = len(batch.lines.label_ptr) - 1
        done = self._train_lines(batch, inputs, outputs, (0, line_num), rates, seed)
        for kept, one in zip(self._row_cache, lent, strict=True):
            kept.settle(one)
        return done

    def workers_changed(self) -> None:
        """Others change rows, too, from now on: what is kept is pushed, and no longer true."""
        if self._row_cache is not None and not self.alone:
            self._push_kept()
            self._row_cache = None

    def finish(self) -> None:
        """Waits for the last pushes."""
        self._push_kept()
        LocalSgd.finish(self)

    def _push_kept(self) -> None:
        """Waits until all that was taught to rows that are kept has arrived."""
        for kept in self._row_cache or ():
            kept.wait()

    def _train_exchanging(
        self,
        batch: _Batch,
        inputs: Floats,
        rates: Sequence[float],
        seed: int,
        *,
        exchanging: bool = True,
    ) -> tuple[float, int]:
        """Trains a block, with label rows pushed and pulled every few lines, both at once; or
        once for all lines, where not `exchanging`.

        The push before the last is done when the last begins, so the last is all that a pull can
        lack; pulls also go ahead of the input rows' deltas of the block before.
        """
        loss, examples = 0.0, 0
        push: Pending | None = None
        line_num = len(batch.lines.label_ptr) - 1
        edges = [0, line_num]
        if exchanging:
            edges = self._exchanges(line_num, len(batch.output_keys))
        rate_at = np.interp(edges, (0, edges[-1]), rates).tolist()
        for at, lines in enumerate(itertools.pairwise(edges)):
            pull = self.pull_async("output", batch.output_keys, ahead=True)
            base = pull.wait()
            if push is not None:
                self.correct(pull, push)
            outputs = kernels.padded(*base.shape)
            kernels.copy_rows(base, outputs)
            done = self._train_lines(batch, inputs, outputs, lines, rate_at[at : at + 2], seed)
            loss, examples = loss + done[0], examples + done[1]
            if push is not None:
                push.wait()
            delta = outputs[:, : base.shape[1]] - base
            push = self.push_async("output", batch.output_keys, delta)
        if push is not None:
            push.wait()
        return loss, examples

    def _exchanges(self, line_num: int, output_num: int) -> list[int]:
        """Lines at which label rows are pushed and pulled anew."""
        lines = EXCHANGE_LINES
        if self.settings.loss == "ns":  # few rows a line: not before most of them were touched
            lines = max(lines, output_num // (1 + self.settings.negatives))
        pieces = max(1, line_num // lines)
        return [line_num * at // pieces for at in range(pieces + 1)]

    def _train_lines(
        self,
        batch: _Batch,
        inputs: Floats,
        outputs: Floats,
        span: tuple[int, int],
        rates: Sequence[float],
        seed: int,
    ) -> tuple[float, int]:
        """Trains lines from `span[0]` to before `span[1]` with all threads; loss, lines."""
        s = self.settings
        lines = batch.lines
        first, last = span
        # Parts about equal in features; where the rate falls, every part falls as the whole does.
        ptr = lines.feature_ptr
        wanted = np.linspace(float(ptr[first]), float(ptr[last]), self.threads + 1)[1:-1]
        inner = np.clip(np.searchsorted(ptr, wanted), first, last)
        edges = sorted({first, *inner.tolist(), last})
        tasks = [
            self._pool.submit(
                kernels.train_labels,
                inputs,
                outputs,
                s.dim,
                lines.feature_ptr,
                lines.features,
                lines.label_ptr,
                lines.labels,
                batch.noise,
                loss=LOSSES[s.loss],
                negatives=s.negatives if len(batch.noise) else 0,
                shared=len(edges) > 2,
                lr_start=rates[0],
                lr_stop=rates[1],
                seed=(seed + begin) & ((1 << 64) - 1),
                first=begin,
                last=end,
            )
            for begin, end in itertools.pairwise(edges)
        ]
        results = [task.result() for task in tasks]
        return sum(loss for loss, _ in results), sum(count for _, count in results)

    def _read(self, block: Block) -> tuple[Lines, NDArray[np.int32]]:
        """A block's lines, with features as places among the different ones, and these."""
        name = (block.path, block.start, block.stop)
        if name in self._seen:  # in an epoch before
            return self._seen[name]
        lines = self._reader.read(block.data)
        if self._places is not None:
            used, rows = number_rows(lines.features, self._places), lines.features
        else:
            used, places = np.unique(lines.features, return_inverse=True)
            rows = places.astype(np.int32)
        read = lines._replace(features=rows), used
        self._seen_bytes += rows.nbytes + used.nbytes + lines.feature_ptr.nbytes
        if self._seen_bytes <= SEEN_BYTES_MAX:
            self._seen[name] = read
        return read

    def _outputs(
        self, lines: Lines, seed: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """Labels whose rows a block needs, its own labels as places among them, and its noise."""
        none = np.zeros(0, np.int32)
        if self.settings.loss != "ns":
            return np.arange(self._labels, dtype=np.int32), lines.labels, none
        if self._labels > 1:
            rng = np.random.default_rng(seed)
            draws = self.settings.negatives * (len(lines.label_ptr) - 1)
            at = np.searchsorted(self._noise_sum, rng.random(draws) * self._noise_sum[-1])
            none = at.astype(np.int32)
        used, places = np.unique(np.concatenate((lines.labels, none)), return_inverse=True)
        places = places.astype(np.int32)
        own = len(lines.labels)
        return used.astype(np.int32), places[:own].copy(), places[own:].copy()

    def _steps(self, lines: Lines, input_num: int) -> tuple[Floats, ...]:
        """About how many gradients each input row will get; a line's is divided by its length."""
        lengths = np.diff(lines.feature_ptr)
        share = np.repeat(1 / np.maximum(lengths, 1), lengths)
        return (np.bincount(lines.features, share, input_num).astype(np.float32),)

    # --- at the master -----------------------------------------------------------------------

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        """Writes the .bin; rows travel in pieces."""
        s = results.settings
        assert isinstance(s, ClassifierSettings)
        words, labels = unpack_summary(results.summary)
        header = BinHeader(
            dim=s.dim,
            bucket=s.buckets,
            minn=s.minn if s.maxn else 0,
            maxn=s.maxn,
            epochs=s.epochs,
            min_count=s.min_count,
            negatives=s.negatives,
            word_ngrams=s.word_ngrams,
            loss=s.loss,
            model="supervised",
            tokens=words.tokens,
        )
        path = f"{s.output}.bin"
        told, what = results.exporting, f"writing {path}"
        told.plan([len(words) + s.buckets, len(labels)])
        inputs = key_ranges(results, "input", (0, len(words)), (BUCKET_KEY, s.buckets))
        outputs = key_ranges(results, "output", (0, len(labels)))
        write_bin(
            path,
            header,
            words.words,
            words.counts,
            told.count(what, len(words) + s.buckets, "rows", inputs),
            told.count(what, len(labels), "rows", outputs),
            labels.words,
            labels.counts,
        )
        return {"files": [path], "vocabulary": len(words), "labels": len(labels)}
