"""``snailps.quantize``: a small, quantised file of a fastText model.

    .bin -> pruned (cutoff) -> trained on (retrain) -> quantised -> .ftz

Owns the order of these steps.  `vectors.quantising` chooses rows and trains codebooks,
`models.classifier.retraining` trains rows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from snailps import kernels
from snailps.config.output import refuse_sources
from snailps.data.arguments import whole_number
from snailps.data.packed_words import PackedWords
from snailps.dataclass import dataclass
from snailps.errors import DataError, ModelFileError
from snailps.files.atomic import check_target
from snailps.vectors.fasttext_bin import BinModel, bin_bytes
from snailps.vectors.files import open_bin
from snailps.vectors.label_prediction import LabelModel
from snailps.vectors.labelled_lines import LabelledLines, labelled_lines
from snailps.vectors.quantising import (
    Codebooks,
    pruned,
    quantised,
    rows_within,
    without_unused,
)
from snailps.vectors.saving import save_model

if TYPE_CHECKING:
    from snailps.models.classifier.retraining import Retraining

Path_: TypeAlias = "str | os.PathLike[str]"
Pieces: TypeAlias = "Callable[[], Iterable[bytes]]"


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """Sizes of a model before and after it was quantised.

    Attributes
    ----------
    path : str
        The quantised file.
    bytes_before, bytes_after : int
        Sizes of both files; of a .gz its unpacked size.
    rows_before, rows_after : int
        Input rows: of words and n-grams.
    seconds : float
    """

    path: str
    bytes_before: int
    bytes_after: int
    rows_before: int
    rows_after: int
    seconds: float


def quantize(
    model: Path_,
    output: Path_,
    *,
    dsub: int = 2,
    qnorm: bool | None = None,
    qout: bool = False,
    cutoff: int = 0,
    size: int = 0,
    retrain: Any = "",
    epochs: int = 5,
    lr: float = 0.05,
    column: str = "",
    label_column: str = "",
    weight_column: str = "",
    soft_labels: bool = False,
    seed: int = 0,
    threads: int = 0,
    progress: Callable[[str, float], object] = lambda step, share: None,
) -> QuantizeReport:
    """Write a quantised copy of a classifier or of word vectors, a fraction of its size.

    fastText and `snailps.load` open the file.  It answers queries and predicts; no training goes on
    with it, so keep the .bin.

    Parameters
    ----------
    model : path
        Model file: the .bin of a classifier or of word vectors (fastText's and floret's too).
    output : path
        The new file; its name ends in .ftz.
    dsub : int, at least 1
        Numbers of a row that share a byte.  2: an eighth of the size of the rows.
    qnorm : bool, optional
        Quantise the lengths of rows apart from their directions, by one more byte a row.  By
        default only for word vectors.
    qout : bool
        Quantise a classifier's label rows too; needs at least 256 labels.
    cutoff : int, at least 0
        Number of input rows to keep: of a classifier the row of ``</s>`` and the longest rows; of
        word vectors all words and the longest rows of n-grams.  0: all rows; of word vectors
        without the n-grams that no word of the model has, if that makes the file smaller.
    size : int
        Largest size of a classifier's file, in bytes, which chooses `cutoff`.  0: no bound.
    retrain : path, pair of texts and labels, table, or list of str, optional
        Labelled lines on which a classifier is trained on after `cutoff` or `size`.
    epochs : int, at least 1
        Epochs of `retrain`.
    lr : float
        Learning rate at the start of `retrain`; it falls to 0.
    column, label_column, weight_column : str
        Columns of texts, labels and weights of texts, where `retrain` is a table.
    soft_labels : bool
        Whether labels in lines of `retrain` may have weights, as in ``__label__a:0.75``.
    seed : int, at least 0
        Seed of the codebooks' sample and of `retrain`.
    threads : int, at least 0
        0: one per core.  The file does not depend on it, except with `retrain`.
    progress : callable, optional
        Called with the step, "retrain" or "quantize", and the share of it that is done, 0 to 1.

    Returns
    -------
    QuantizeReport

    Raises
    ------
    DataError
        A parameter is out of range, or does not suit the model.
    ModelFileError
        The file is missing, damaged, quantised already or no fastText model, or `output` cannot be
        written.

    Notes
    -----
    Product quantisation, as fastText's ``quantize``: a row is cut into parts of `dsub` numbers, and
    each part is replaced by the nearest of 256 centroids, found by k-means.  Word vectors lose
    their output rows, which no query needs.

    References
    ----------
    Joulin et al., "FastText.zip: Compressing text classification models", 2016.

    Examples
    --------
    >>> snailps.quantize("sections.bin", "sections.ftz", qnorm=True)  # doctest: +SKIP
    QuantizeReport(path='sections.ftz', bytes_before=..., bytes_after=..., ...)
    """
    began = time.perf_counter()
    if os.path.splitext(output)[1] != ".ftz":  # noqa: PTH122
        raise ModelFileError(f"{output}: expected a name that ends in .ftz, of a quantised model")
    text = [retrain] if isinstance(retrain, str | os.PathLike) else []
    refuse_sources([output], [model, *text])
    check_target(Path(os.path.realpath(output)))
    full = open_bin(model, "the .bin of a classifier or of word vectors")
    is_classifier = full.header.model == "supervised"
    # What cannot be read as a classifier would be a .ftz that nobody reads.
    classifier = LabelModel.of_model(full, model) if is_classifier else None
    if qnorm is None:
        qnorm = not is_classifier
    training = None
    if not isinstance(retrain, str) or retrain:
        from snailps.models.classifier.retraining import Retraining

        if not (cutoff or size) or classifier is None:
            raise DataError(
                "retrain: only a classifier whose rows were reduced by cutoff or size is trained "
                "on: leave it out, or set cutoff"
            )
        lines = labelled_lines(
            classifier, retrain, column=column, label_column=label_column,
            weight_column=weight_column, soft_labels=soft_labels,
        )  # fmt: skip
        training = Retraining(
            lines,
            epochs,
            lr,
            seed,
            threads,
            partial(progress, "retrain"),
        )
    codebooks = Codebooks(dsub, qnorm, seed, threads, partial(progress, "quantize"))
    try:
        done = quantized(full, codebooks, qout=qout, cutoff=cutoff, size=size, training=training)
    except ModelFileError as error:
        raise ModelFileError(f"{os.fsdecode(model)}: {error}") from None
    save_model(output, done)
    return QuantizeReport(
        os.fsdecode(output),
        len(full.mapped),
        os.path.getsize(output),  # noqa: PTH202
        len(full.input),
        len(done.input),
        time.perf_counter() - began,
    )


def quantized(
    model: BinModel,
    codebooks: Codebooks,
    *,
    qout: bool = False,
    cutoff: int = 0,
    size: int = 0,
    training: Retraining | None = None,
) -> BinModel:
    """Prune, train on and quantise an opened model; `quantize` describes steps and errors.

    `training` is for a classifier that loses rows.
    """
    whole_number(cutoff, 0, "cutoff: expected a number of rows, or 0 for all")
    whole_number(size, 0, "size: expected a number of bytes, or 0 for no bound")
    is_classifier = model.header.model == "supervised"
    if size:
        if cutoff or qout or not is_classifier:
            raise DataError(
                "size: only for classifiers, and without cutoff and qout: leave these out, or size"
            )
        cutoff = rows_within(model, codebooks, size)
        training = training if cutoff else None
    if cutoff:
        model = pruned(model, cutoff)
    elif not is_classifier:
        model = without_unused(model, codebooks.width)
    if training:
        from snailps.models.classifier.retraining import retrained

        model = retrained(model, training)
    return quantised(model, codebooks, outputs=qout)


def shrinks_to(size: int, seed: int, threads: int = 1) -> Callable[[BinModel, Pieces], BinModel]:
    """Return what makes a model as small as ``quantize(qnorm=True, size=size, retrain=...)`` does.

    Its second argument gives the pieces of the text to retrain on, from the start at each call.  A
    model with too few rows to quantise stays as it is, if its file has that size.
    """

    def shrunk(model: BinModel, pieces: Pieces) -> BinModel:
        from snailps.models.classifier.retraining import Retraining

        # A trial's model lacks the n-grams of no line, which the file will have.
        rows = len(model.words) + model.header.bucket + len(model.labels)
        words = [PackedWords.of(words) for words in (model.words, model.labels)]
        is_small = bin_bytes(words, rows, model.header.dim) <= size
        if len(model.input) < kernels.CENTROIDS and is_small:
            return model
        lines = LabelledLines(LabelModel.of_model(model), "the input", pieces)
        training = Retraining(lines, seed=seed, threads=threads)
        codebooks = Codebooks(norms=True, seed=seed, threads=threads)
        return quantized(model, codebooks, size=size, training=training)

    return shrunk
