"""Trains a classifier's rows in memory, after the rows of rare features were left out.

    BinModel with full rows, labelled text -> retrained -> BinModel with changed rows

The text is read once for each epoch, and once before to know its length; memory does not grow with
it.  A thread alone gives the same bits at each run; several train the same rows without locks.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from snailps import kernels
from snailps.data._labelled import NO_WEIGHTS
from snailps.data.arguments import whole_number
from snailps.dataclass import dataclass, replace
from snailps.errors import DataError
from snailps.models.classifier.lines import Floats, Steps, begin
from snailps.models.classifier.outputs import output_rows
from snailps.models.classifier.weights import weighed
from snailps.vectors.fasttext_bin import BinModel
from snailps.vectors.label_prediction import line_reader
from snailps.vectors.labelled_lines import LabelledLines

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
    size = training.epochs * sum(map(len, given.texts()))
    done, trained = 0, 0.0
    with ThreadPoolExecutor(threads, "snailps-retrain") as pool:
        for _ in range(training.epochs):
            for piece in given.texts():
                lines = reader.read(piece)
                lines = weighed(lines, NO_WEIGHTS, header.loss, are_soft=given.are_soft)
                if model.pruned is not None:
                    lines = model.pruned.keep(lines, len(model.words))
                line_num = len(lines.label_ptr) - 1
                # The text may have grown since it was measured: no rate is below 0.
                rates = [training.lr * max(0.0, 1 - at / size) for at in (done, done + len(piece))]
                needed = of_loss.of(lines, training.seed + done)
                outputs = needed.at(needed.rows)
                lines = lines._replace(labels=outputs.labels)
                steps = Steps(
                    header.dim,
                    header.loss,
                    header.negatives,
                    (rates[0], rates[1]),
                    training.seed + done,
                )
                tasks = begin(pool.submit, threads, rows, lines, outputs, (0, line_num), steps)
                trained += sum(task.result()[1] for task in tasks)
                done += len(piece)
                training.progress(min(1.0, done / size))
    if not trained:
        raise DataError(
            f"{given.where}: no line has both a label of the model, such as "
            f"{model.labels[0].decode(errors='replace')}, and a word that it knows"
        )
    if not all(np.isfinite(matrix).all() for matrix in rows):
        raise DataError(f"retrain: the training diverged at the rate {training.lr:g}: lower lr")
    of_words, of_labels = (matrix[:, : header.dim].copy() for matrix in rows)
    return replace(model, input=of_words, output=of_labels)


def _padded(rows: Any, dim: int) -> Floats:
    matrix = kernels.padded(len(rows), dim)
    matrix[:, :dim] = rows
    return matrix
