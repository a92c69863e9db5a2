"""Short trainings of a classifier in memory, each judged on lines that were held out.

    settings -> trained_texts, `held_out.held_out_texts` -> Text: both in memory, counted once
    Text, settings of features   -> Examples: lines of both, read once for trials that share them
    Examples, Trial              -> trained -> rows -> predictions on the held-out lines

A trial has one thread and a seed, so it gives the same bits at each run, whatever runs beside it.
Its rows start like a job's.  Must not know which trials are made, or what their scores mean.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.tables import Table
from snailps.data._key_numbering import WordNumbers
from snailps.data._labelled import KeptGrams, Lines
from snailps.data._shuffling import drawn_order
from snailps.data.in_order import in_order as answers_in_order
from snailps.data.vocabulary import Vocabulary
from snailps.models.classifier.held_out import (
    input_keys,
    line_reader,
    lines_between,
    reading_of,
    split_of,
)
from snailps.models.classifier.lines import (
    Floats,
    LineSteps,
    begin,
    in_order,
    joined,
    spans,
    stepped,
)
from snailps.models.classifier.model import Classifier, part_of, surveyor_of, unpack_summary
from snailps.models.classifier.outputs import Ints, Outputs, output_rows
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.classifier.weights import factors_in, weighed
from snailps.models.ngram_rows import surveyed
from snailps.models.row_bounds import LOSS_BOUND, are_bounded
from snailps.models.tested_texts import texts_of
from snailps.models.text_model import BUCKET_KEY, normal_form_of
from snailps.vectors.fasttext_bin import BinHeader, BinModel
from snailps.vectors.labelling import labelling_of

LINES_UNTRAINED = 1 << 8
"""Lines by which the loss of untrained rows is measured."""
PIECE_BYTES = 1 << 20
"""Bytes of the input that a thread reads at a time."""
KEPT_EXAMPLES = 4
"""Sets of features whose lines are kept."""
ANSWER_SCORES = 1 << 22
"""Scores of held-out lines computed at a time."""
READ = ("word_ngrams", "minn", "maxn", "bucket", "min_count", "min_count_label")
"""Settings on which the features of a line depend."""


class Stopped(Exception):
    """The training was told to stop."""


class Diverged(Exception):
    """The loss of the training is beyond what a job goes on with."""


class TrialLines(NamedTuple):
    """Lines of both texts; their features are places in `keys`, of rows of the table "input"."""

    settings: ClassifierSettings
    train: Lines
    held_out: Lines
    keys: NDArray[np.uint64]
    words: Vocabulary
    labels: Vocabulary

    @property
    def features(self) -> int:
        """Features of an epoch."""
        return len(self.train.features)


def trained_texts(settings: ClassifierSettings) -> Iterator[bytes]:
    """Yield whole lines of the input, without those that are held out."""
    s, split = settings, split_of(settings)
    for text, _, _ in texts_of(
        s.input, s.scratch_dir, s.scratch_bytes, reading=reading_of(s), block_bytes=PIECE_BYTES
    ):
        yield text if split is None else split.trained(text)


class TrialText:
    """A labelled text and a held-out one, in memory.

    Parameters
    ----------
    settings : ClassifierSettings
        Values of the settings that trials do not change.
    train, held_out : sequence of bytes
        Pieces of whole lines.
    threads : int
        Threads that read lines.

    Raises
    ------
    DataError
        The text has no words or no labels.
    """

    def __init__(
        self,
        settings: ClassifierSettings,
        train: Sequence[bytes],
        held_out: Sequence[bytes],
        threads: int,
    ) -> None:
        self._settings, self._train, self._held_out = settings, train, held_out
        self._threads = threads
        part = part_of(settings, lambda block: b"")
        normal = normal_form_of(settings.normalize, settings.label.encode())
        for piece in train:
            part.count(normal(piece))
        self._counts = part.take()
        self._lock = threading.Lock()
        self._read = lru_cache(KEPT_EXAMPLES)(self._read_once)

    @property
    def train(self) -> Sequence[bytes]:
        """Pieces of the training text."""
        return self._train

    @property
    def held_out(self) -> Sequence[bytes]:
        """Pieces of the held-out text."""
        return self._held_out

    @property
    def lines(self) -> int:
        """Lines of the training text."""
        return sum(piece.count(b"\n") for piece in self._train)

    def examples(self, settings: ClassifierSettings) -> TrialLines:
        """Read the lines with the features of `settings`, unless they are kept from before."""
        with self._lock:  # trials that share features wait for the first of them
            return self._read(*(getattr(settings, name) for name in READ))

    def _read_once(self, *values: Any) -> TrialLines:
        s = replace(self._settings, **dict(zip(READ, values, strict=True)), output="")
        surveyor = surveyor_of(s, partial(Classifier.summarize, s))
        surveyor.add(self._counts)
        s, summary = surveyed(s, surveyor.result())
        words, labels = unpack_summary(summary)
        reader, factors = line_reader(s, words, labels), factors_in(summary)[0]

        def trained(piece: bytes) -> Lines:
            return weighed(reader.read(piece), factors, s.loss, are_soft=s.soft_labels)

        # Held-out lines have the weights of the text, and none of classes, as in every other test.
        train, held_out = (
            joined(list(answers_in_order(read, pieces, self._threads)))
            for read, pieces in ((trained, self._train), (reader.read, self._held_out))
        )
        used, of_train, of_held_out = WordNumbers(reader.space).number(
            train.features, held_out.features
        )
        return TrialLines(
            s,
            train._replace(features=of_train),
            held_out._replace(features=of_held_out),
            input_keys(used, len(words)),
            words,
            labels,
        )


def trained(
    examples: TrialLines, s: ClassifierSettings, epochs: float, pool: Executor,
    stop: threading.Event, share: float = 1.0,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Train rows from their first values by one thread of `pool`; the rate falls to 0.

    Parameters
    ----------
    epochs : float
        Above 0; with a fraction the last epoch has some of the lines.
    share : float
        What is trained of that; the rate falls as if all were.

    Returns
    -------
    float32[features, stride], float32[labels, stride]

    Raises
    ------
    Stopped
        `stop` was set.
    Diverged
        The loss of some lines is what ends a job.
    """
    inputs = kernels.padded(len(examples.keys), s.dim)
    outputs = kernels.padded(len(examples.labels), s.dim)
    first = Table("input", s.dim, init="uniform", scale=1.0 / s.dim, seed=s.seed)
    values = np.empty((min(len(inputs), 1 << 16), s.dim), np.float32)
    for start in range(0, len(inputs), len(values)):
        keys = examples.keys[start : start + len(values)]
        first.fill_first(keys, values[: len(keys)])
        inputs[start : start + len(keys), : s.dim] = values[: len(keys)]
    of_loss = output_rows(s.loss, examples.labels.counts, s.negatives)
    train = stepped(examples.train, s.loss, shuffle=None)
    number = len(train.label_ptr) - 1
    total, done = epochs * number, 0

    def mean_loss(lines: Lines, part: Outputs, span: tuple[int, int], steps: LineSteps) -> float:
        tasks = begin(pool.submit, 1, (inputs, outputs), lines, part, span, steps)
        loss, weight = np.sum([task.result() for task in tasks], axis=0)
        return float(loss / weight) if weight else 0.0

    most = 0.0
    while done < total * share:
        left = round(total * share - done)
        seed = s.seed + 1 + done
        some = max(1, min(number, left))
        lines = in_order(train, drawn_order(seed, number)[:some])
        needed = of_loss.of(lines, seed)
        part = needed.at(needed.rows)
        lines = lines._replace(labels=part.labels)
        for start, end in spans(lines.feature_ptr, len(lines.label_ptr) - 1):
            if stop.is_set():
                raise Stopped
            rates = [s.lr * max(0.0, 1 - (done + at) / total) for at in (start, end)]
            steps = LineSteps(s.dim, s.loss, s.negatives, (rates[0], rates[1]), seed)
            if not most:  # a job ends far above the loss of its first block (`loss_watch`)
                span = 0, min(end, LINES_UNTRAINED)
                untrained = mean_loss(lines, part, span, steps._replace(rates=(0.0, 0.0)))
                most = LOSS_BOUND * max(1.0, untrained)
            if not mean_loss(lines, part, (start, end), steps) <= most:  # NaN, too
                raise Diverged
        done += number
    if not (are_bounded(inputs) and are_bounded(outputs)):
        raise Diverged
    return inputs, outputs


def as_model(examples: TrialLines, s: ClassifierSettings, rows: tuple[Floats, Floats]) -> BinModel:
    """Make a model of trained rows; n-grams that neither text has are left out of it."""
    inputs, outputs = (matrix[:, : s.dim] for matrix in rows)
    words, read = examples.words, examples.settings
    order = np.argsort(examples.keys)
    of_words = int(np.searchsorted(examples.keys, BUCKET_KEY, sorter=order))
    grams = order[of_words:]
    matrix = np.zeros((len(words) + len(grams), s.dim), np.float32)
    matrix[examples.keys[order[:of_words]]] = inputs[order[:of_words]]
    matrix[len(words) :] = inputs[grams]
    buckets = (examples.keys[grams] - np.uint64(BUCKET_KEY)).astype(np.int32)
    pairs = np.stack((buckets, np.arange(len(grams), dtype=np.int32)), axis=1)
    header = BinHeader(
        dim=s.dim,
        bucket=read.buckets,
        minn=s.minn if s.maxn else 0,
        maxn=s.maxn,
        epochs=s.epochs,
        min_count=s.min_count,
        negatives=s.negatives,
        word_ngrams=s.word_ngrams,
        loss=s.loss,
        model="supervised",
        tokens=words.tokens,
        normalize=s.normalize,
        prefix=s.prefix_bytes,
    )
    return BinModel(
        header,
        words.words,
        words.counts,
        list(examples.labels.words),
        matrix,
        np.ascontiguousarray(outputs),
        mmap.mmap(-1, 1),
        examples.labels.counts,
        KeptGrams(pairs),
    )


def predicted(
    rows: tuple[Floats, Floats], s: ClassifierSettings, examples: TrialLines, k: int
) -> Iterator[tuple[Lines, tuple[Ints, Floats]]]:
    """Yield held-out lines with numbers and probabilities of their `k` best labels (-1: all)."""
    (inputs, outputs), lines = rows, examples.held_out
    k = len(outputs) if k < 0 else min(k, len(outputs))
    labelling = labelling_of(s.loss, examples.labels.counts)(
        np.ascontiguousarray(inputs[:, : s.dim]), outputs, s.dim
    )
    number = len(lines.label_ptr) - 1
    step = max(1, ANSWER_SCORES // k)
    for start in range(0, number, step):
        part = lines_between(lines, start, min(number, start + step))
        yield part, labelling.best(part.feature_ptr, part.features, k)
