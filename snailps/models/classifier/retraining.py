"""Trains a classifier's rows in memory, after the rows of rare features were left out.

    BinModel with full rows, labelled text -> retrained -> BinModel with changed rows

Lines are trained in a drawn order, another one in each epoch, as in a training: a file may be
sorted by label.  They are kept as numbers of features, up to 1 GiB.  Of a longer text each epoch
has several rounds, and each round reads it again and takes the lines that were drawn for it.  A
thread alone gives the same bits at each run; several train the same rows without locks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from snailps import kernels
from snailps.data._labelled import NO_WEIGHTS, Lines
from snailps.data.arguments import whole_number
from snailps.dataclass import dataclass, replace
from snailps.errors import DataError
from snailps.models.classifier.held_out import lines_between
from snailps.models.classifier.lines import (
    Floats,
    LineSteps,
    begin,
    in_order,
    joined,
    spans,
    stepped,
    steps_of,
)
from snailps.models.classifier.outputs import output_rows
from snailps.models.classifier.weights import weighed
from snailps.vectors.fasttext_bin import BinModel
from snailps.vectors.label_prediction import line_reader
from snailps.vectors.labelled_lines import LabelledLines, warn_of_weights

FEATURES_MAX = 1 << 28
"""Features of the lines that are in memory at a time, of 4 bytes each."""
LR = 0.05
"""fastText's learning rate of a retraining."""


@dataclass(frozen=True, slots=True)
class Retraining:
    """A further training on a text; the learning rate falls from `lr` to 0 over all epochs.

    Attributes
    ----------
    lines : LabelledLines
    epochs : int
    lr : float
    seed : int
    threads : int
        0: one per core.
    progress : callable
        Called with the share that is done, 0 to 1.
    """

    lines: LabelledLines
    epochs: int = 5
    lr: float = LR
    seed: int = 0
    threads: int = 0
    progress: Callable[[float], object] = lambda share: None


def retrained(model: BinModel, training: Retraining) -> BinModel:
    """Train all rows of a classifier on a text; its words, n-grams and labels stay.

    Raises
    ------
    DataError
        A parameter is out of range, or no line of the text has a label of the model.
    """
    header = model.header
    whole_number(training.epochs, 1, "retrain: expected a whole number of epochs, at least 1")
    if not 0 < training.lr < np.inf:
        raise DataError(f"retrain: expected a learning rate above 0, got {training.lr}")
    given = training.lines
    reader = line_reader(model, given.model.reader_prefix, weighed=given.weighed)
    rows = _padded(model.input, header.dim), _padded(model.output, header.dim)
    of_loss = output_rows(header.loss, model.label_counts, header.negatives)
    threads = training.threads or kernels.cores()

    def read() -> Iterator[Lines]:
        for piece in given.texts():
            lines = reader.read(piece)
            lines = weighed(lines, NO_WEIGHTS, header.loss, are_soft=given.are_soft)
            yield lines if model.pruned is None else model.pruned.keep(lines, len(model.words))

    done, trained = 0, 0.0
    with ThreadPoolExecutor(threads, "snailps-retrain") as pool:
        for lines, size in _shuffled(read, training.epochs, training.seed, header.loss):
            for span in spans(lines.feature_ptr, len(lines.label_ptr) - 1):
                seed = training.seed + done
                of_span = lines_between(lines, *span)
                ends = done, done + span[1] - span[0]
                # The text may have grown since it was measured: no rate is below 0.
                rates = [training.lr * max(0.0, 1 - at / size) for at in ends]
                needed = of_loss.of(of_span, seed)
                outputs = needed.at(needed.rows)
                of_span = of_span._replace(labels=outputs.labels)
                steps = LineSteps(
                    header.dim, header.loss, header.negatives, (rates[0], rates[1]), seed
                )
                all_lines = 0, len(of_span.label_ptr) - 1
                tasks = begin(pool.submit, threads, rows, of_span, outputs, all_lines, steps)
                trained += sum(task.result()[1] for task in tasks)
                done = ends[1]
                training.progress(min(1.0, done / size))
    if not trained:
        raise DataError(
            f"{given.where}: no line has both a label of the model, such as "
            f"{model.labels[0].decode(errors='replace')}, and a word that it knows"
        )
    warn_of_weights(given)
    if not all(np.isfinite(matrix).all() for matrix in rows):
        raise DataError(f"retrain: the training diverged at the rate {training.lr:g}: lower lr")
    of_words, of_labels = (matrix[:, : header.dim].copy() for matrix in rows)
    return replace(model, input=of_words, output=of_labels)


def _shuffled(
    read: Callable[[], Iterator[Lines]], epochs: int, seed: int, loss: str
) -> Iterator[tuple[Lines, int]]:
    """Yield the lines of all epochs, each epoch in an order of its own, and how many steps they
    take in all.
    """
    parts: list[Lines] = []
    features = steps = 0
    for part in read():
        features += len(part.features)
        of_weights = steps_of(part, loss)
        steps += _size(part) if of_weights is None else len(of_weights)
        if features <= FEATURES_MAX:
            parts.append(part)
    if not steps:
        return
    rounds = max(1, math.ceil(features / FEATURES_MAX))
    whole = joined(parts) if rounds == 1 else None
    parts.clear()
    for epoch in range(epochs):
        for number in range(rounds):
            if whole is None:
                draws = np.random.default_rng((seed, epoch))  # the same ones in each round
                parts = [
                    in_order(part, np.flatnonzero(drawn).astype(np.uint32))
                    for part in read()
                    for drawn in [draws.integers(rounds, size=_size(part)) == number]
                ]
            some = joined(parts) if whole is None else whole
            if _size(some):
                yield stepped(some, loss, shuffle=seed + epoch * rounds + number), epochs * steps


def _size(lines: Lines) -> int:
    return len(lines.label_ptr) - 1


def _padded(rows: Any, dim: int) -> Floats:
    matrix = kernels.padded(len(rows), dim)
    matrix[:, :dim] = rows
    return matrix
