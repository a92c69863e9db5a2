"""Lines that a classifier is not trained on: which ones, their probabilities, and figures of these.

    settings -> split_of -> HeldOut.trained: the lines of a block that are counted and trained
    settings -> held_out_texts: the other lines of the input, or of `validation`, at the master
    results, texts -> scored -> Scored: lines, their best labels, probabilities of all labels
    Scored ... -> figures_of -> precision, recall, F1, loss

Which lines of the input are held out, `data/held_out.py` decides.  Rows are pulled from the
servers, at any moment of a training.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.results import Results
from snailps.data._labelled import LineReader, Lines
from snailps.data.held_out import HeldOut
from snailps.data.label_words import like_weights
from snailps.data.vocabulary import Vocabulary
from snailps.errors import DataError, SnailError, shown_bytes
from snailps.files.blocks import head_of, test_files
from snailps.files.reading import Reading
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.classifier.weights import refuse_wrong
from snailps.models.stopping import Figures
from snailps.models.tested_texts import texts_of, warn_of_trained
from snailps.models.text_model import BUCKET_KEY, key_ranges
from snailps.vectors.calibrating import calibrate_on
from snailps.vectors.label_metrics import ACCURACY, F1, LOSS, MACRO_F1, Metric
from snailps.vectors.label_scores import LabelScoreSums, labelled, scores_of
from snailps.vectors.labelled_lines import HEAD_BYTES, LabelledLines
from snailps.vectors.labelling import ONE_LABEL, labelling_of
from snailps.vectors.words import to_text

log = logging.getLogger(__name__)

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

PIECE_BYTES = 1 << 18
"""Bytes of text whose rows are pulled together."""
SCORES_MAX = 1 << 22
"""Probabilities computed at a time: 16 MiB."""
HEADS_MAX = 100
"""Files whose first lines are examined before the training."""
LOOKED_AT = 256 << 20
"""Most bytes of files in which a line to measure is looked for before the training: it costs as
much as unpacking them, and larger ones have some."""
_READ = "held-out lines"
"""In `Results.memo`: the reader of lines, and all pieces if they are few."""
KEPT_FEATURES = 1 << 24
"""Most features of held-out lines that stay in memory, 64 MiB; else the lines are read anew."""


def split_of(settings: ClassifierSettings) -> HeldOut | None:
    """The lines that the settings hold out; None: all are trained."""
    weighed = settings.label.encode() if settings.has_weights else b""
    return HeldOut.of(settings.held_out, settings.seed, weighed)


class Scored(NamedTuple):
    """Held-out lines by the present rows.

    `lines.labels` are places in the vocabulary of labels; labels that it lacks are left out.
    `best` is the label with the highest score of each line, int32 (n,), -1 for a line without
    features.  `chances` are the probabilities of all labels, float32 (n, labels).
    """

    lines: Lines
    best: Ints
    chances: Floats


def has_held_out(settings: ClassifierSettings) -> bool:
    """Whether there are lines to test on during the training."""
    return bool(settings.validation or settings.held_out)


def held_out_texts(settings: ClassifierSettings) -> Iterator[bytes]:
    """Yield whole held-out lines with their labels: of the files `validation`, or of the input."""
    s, split = settings, split_of(settings)
    if not has_held_out(s):
        return
    paths = s.validation or s.input
    reading = reading_of(s)
    for text, path, start in texts_of(
        paths, s.scratch_dir, s.scratch_bytes, reading=reading, block_bytes=PIECE_BYTES
    ):
        if s.validation and s.has_weights:  # the survey has examined the lines of the input
            refuse_wrong(text, s.label.encode(), path, start)
        yield text if split is None else split.held(text)


def reading_of(settings: ClassifierSettings) -> Reading:
    """How tables of the input and of `validation` are read."""
    return Reading(
        "text",
        column=settings.column,
        label_column=settings.label_column,
        label_prefix=settings.label,
        weight_column=settings.weight_column,
        soft_labels=settings.soft_labels,
    )


def check(settings: ClassifierSettings) -> None:
    """Refuse files of `validation` that are missing or empty, tables that lack a column, and first
    lines without labels or with wrong weights; warn of files that are trained, too.  Called before
    the training.
    """
    s, reading = settings, reading_of(settings)
    if not s.validation:
        return
    try:
        paths = test_files(s.validation)
        have_lines = len(paths) > HEADS_MAX
        for path in paths[:HEADS_MAX]:
            if reading.takes(path):
                from snailps.data.table_files import text_of

                # Has its columns, and weights of first rows.
                have_lines |= any(text_of(reading, path))
                continue
            have_lines = True
            head = head_of(path)  # empty if the first line is very long
            if s.has_weights:
                refuse_wrong(head, s.label.encode(), path, 0)
            if head and s.label.encode() not in head:
                raise DataError(
                    f"{path}: expected labelled lines, and its first ones have no word that begins "
                    f"with {s.label}. Set label to your prefix, or give another file"
                )
        if not have_lines:
            raise DataError(f"{paths[0]}: expected rows with texts and labels, got none")
    except DataError as error:
        raise DataError(f"validation: {error}") from None
    warn_of_trained(s.validation, s.input)


def check_tested(settings: ClassifierSettings, words: Vocabulary, labels: Vocabulary) -> None:
    """Refuse a label in `stop_by` that the trained lines lack, and lines to test on that have
    nothing to measure.  Called before the training, once it is known what the trained lines have;
    `settings` are those of `ngram_rows.surveyed`.
    """
    s = settings
    if not (has_held_out(s) and (s.validation or s.input)):
        return
    with _of_stop_by():
        Metric.of(s.stop_by or F1).check([to_text(label) for label in labels.words])
    if _size(s.validation or s.input) > LOOKED_AT:
        return
    reader, sums = line_reader(s, words, labels), LabelScoreSums(len(labels))
    is_first = True
    for text in held_out_texts(s):
        if is_first and s.validation and not (s.has_weights or s.label_column):
            _warn_of_weights(bytes(text[:HEAD_BYTES]), {*labels.words}, s.label.encode())
        is_first = False
        lines = reader.read(text)
        none = np.zeros((len(lines.label_ptr) - 1, 1))
        sums.add(lines, none.astype(np.int32), none.astype(np.float32), 0.0)
        if sums.gold.any():
            return
    _refuse_unmeasured(s, sums, labels)


def _warn_of_weights(text: bytes, labels: Set[bytes], prefix: bytes) -> None:
    """Warn if lines of validation have weights, which neither they nor the trained lines count."""
    unknown = (word for word in text.split() if word not in labels)
    for word in like_weights(unknown, labels, prefix):
        log.warning(
            "validation: all lines count 1. %s looks like a label with a weight: weights are read "
            "with soft_labels (--soft-labels true)",
            shown_bytes(word),
        )
        return


def _size(paths: Sequence[str]) -> int:
    """Bytes of the files that are on this machine."""
    total = 0
    for path in test_files(paths):
        with suppress(OSError, ValueError):
            total += os.path.getsize(path)  # noqa: PTH202
    return total


@contextmanager
def _of_stop_by() -> Iterator[None]:
    """Name `stop_by` in errors of a metric."""
    try:
        yield
    except DataError as error:
        raise DataError(f"stop_by: {str(error).removeprefix('metric: ')}") from None


def _refuse_unmeasured(
    settings: ClassifierSettings, sums: LabelScoreSums, labels: Vocabulary
) -> None:
    """Raise a DataError if the lines to test on have nothing to measure."""
    what, advice = "held_out", "hold out more lines, or none"
    if settings.validation:
        what, advice = "validation", "give other files"
    if not sums.lines + sums.skipped:
        raise DataError(
            f"{what}: expected a line to test on, got none: of equal lines all are trained or all "
            f"held out; {advice}"
        )
    if not sums.lines:
        raise DataError(
            f"{what}: none of {sums.skipped:,} held-out lines has both a label and a word of the "
            f"trained lines, whose labels are like {shown_bytes(labels.words[0])}: {advice}"
        )
    if not sums.gold.any():
        raise DataError(
            f"{what}: expected a weight above 0 of a text or a label, got 0 for all {sums.lines:,} "
            f"held-out lines: there is nothing to measure; {advice}"
        )


def calibrated(settings: ClassifierSettings, path: str) -> Mapping[str, Any]:
    """Calibrate a finished model file on the held-out lines; return its figures.

    If these lines are gone by now, the model is kept as it is, and `not_calibrated` says why: the
    command then ends with a code of its own.
    """
    s = settings
    try:
        report = calibrate_on(
            path,
            lambda model: LabelledLines(
                model.reading(prefix=s.label.encode(), weighed=s.has_weights),
                "held-out lines",
                partial(held_out_texts, s),
                s.soft_labels,
                s.has_weights,
            ),
        )
    except SnailError as error:
        log.warning("%s is not calibrated: %s. Run snailps calibrate", path, error)
        return {"not_calibrated": str(error)}
    shift = {"shift": report.shift} if report.shift else {}
    return {
        "temperature": report.temperature,
        **shift,
        "calibration_error": report.calibration_error_after,
        "uncalibrated_error": report.calibration_error_before,
    }


def line_reader(settings: ClassifierSettings, words: Vocabulary, labels: Vocabulary) -> LineReader:
    """The reader of a classifier's lines; `settings` are those of `ngram_rows.surveyed`."""
    return LineReader(
        words.words,
        labels.words,
        label_prefix=settings.label.encode(),
        word_ngrams=settings.word_ngrams,
        minn=settings.minn,
        maxn=settings.maxn,
        bucket=settings.bucket,
        normalize=settings.normalize,
        weighed=settings.has_weights,
    )


def input_keys(features: Ints, words: int) -> NDArray[np.uint64]:
    """Keys of features in table ``input``, of a vocabulary of `words`."""
    keys = features.astype(np.uint64)
    keys[features >= words] += np.uint64(BUCKET_KEY - words)
    return keys


def scored(
    results: Results,
    settings: ClassifierSettings,
    words: Vocabulary,
    labels: Vocabulary,
    texts: Iterable[bytes] | None = None,
) -> Iterator[Scored]:
    """Yield the held-out lines of a job with their probabilities by the rows that servers have now.

    Parameters
    ----------
    results : Results
    settings : ClassifierSettings
        The finished ones: with ``auto`` decided (`ngram_rows.surveyed`).
    words, labels : Vocabulary
        Of the survey.
    texts : iterable of bytes, optional
        Other labelled lines in their place.
    """
    outputs = kernels.padded(len(labels), settings.dim)
    first = 0
    for rows in key_ranges(results, "output", (0, len(labels))):
        outputs[first : first + len(rows), : settings.dim] = rows
        first += len(rows)
    pieces = (
        _kept_pieces(results, settings, words, labels)
        if texts is None
        else _pieces(line_reader(settings, words, labels), texts, len(labels))
    )
    labelling_by = labelling_of(settings.loss, labels.counts)
    # The rows of the next piece are pulled while those of one are used.
    of_lines, of_features = itertools.tee(pieces)
    keys = (input_keys(features, len(words)) for _, features in of_features)
    for (lines, _), inputs in zip(of_lines, results.pulls("input", keys), strict=True):
        labelling = labelling_by(inputs, outputs, settings.dim)
        yield Scored(lines, *labelling.chances(lines.feature_ptr, lines.features))


def _pieces(
    reader: LineReader, texts: Iterable[bytes], labels: int
) -> Iterator[tuple[Lines, Ints]]:
    """Yield lines in pieces: their features are places in the array of features beside them."""
    step = max(1, SCORES_MAX // max(1, labels))
    for text in texts:
        read = reader.read(text)
        line_num = len(read.label_ptr) - 1
        for first in range(0, line_num, step):
            lines = lines_between(read, first, min(line_num, first + step))
            features, places = np.unique(lines.features, return_inverse=True)
            yield lines._replace(features=places.astype(np.int32)), features


def lines_between(lines: Lines, first: int, last: int) -> Lines:
    """Cut the lines `first` to `last` - 1 out of a text's."""
    feature_ptr, label_ptr = lines.feature_ptr[first : last + 1], lines.label_ptr[first : last + 1]
    return lines._replace(
        feature_ptr=feature_ptr - feature_ptr[0],
        features=lines.features[feature_ptr[0] : feature_ptr[-1]],
        label_ptr=label_ptr - label_ptr[0],
        labels=lines.labels[label_ptr[0] : label_ptr[-1]],
        line_weights=lines.line_weights[first:last],
        label_weights=lines.label_weights[label_ptr[0] : label_ptr[-1]],
        rests=lines.rests[label_ptr[0] : label_ptr[-1]],
    )


def _kept_pieces(
    results: Results, settings: ClassifierSettings, words: Vocabulary, labels: Vocabulary
) -> Iterable[tuple[Lines, Ints]]:
    """The pieces of the job's held-out lines, read once if they fit in memory."""
    reader, kept = results.memo.get(_READ, (None, None))
    if kept is not None:
        return list(kept)
    if reader is None:
        reader = line_reader(settings, words, labels)
    pieces = _pieces(reader, held_out_texts(settings), len(labels))
    some, size = [], 0
    for piece in pieces:
        some.append(piece)
        size += len(piece[0].features) + len(piece[1])
        if size > KEPT_FEATURES:
            results.memo[_READ] = reader, None
            return _pieces(reader, held_out_texts(settings), len(labels))
    results.memo[_READ] = reader, some
    return some


def figures_of(
    parts: Iterable[Scored],
    labels: Vocabulary,
    settings: ClassifierSettings,
    *,
    warns: bool = False,
) -> Mapping[str, float]:
    """Figures of held-out lines, the most telling one first.

    F1, precision and recall are those of ``snailps test`` with one label a line.  `loss` is, with
    softmax or a tree, the mean of -log p over the labels of the lines; else the mean over lines of
    the sum of the logistic losses of all labels; both by weight.  `warns`: log how many lines do
    not count.

    Raises
    ------
    DataError
        No line has both a label and a word that the training text has, or all of them weigh 0.
    """
    sums, loss, terms = LabelScoreSums(len(labels)), 0.0, 0.0
    metric, meter = Metric.of(settings.stop_by or F1), None
    if metric.level:
        parts = list(parts)
        ranked = (np.argsort(-chances, axis=1, kind="stable") for _, _, chances in parts)
        meter = [
            (lines, (order.astype(np.int32), np.take_along_axis(chances, order, 1)))
            for order, (lines, _, chances) in zip(ranked, parts, strict=True)
        ]
    for lines, best, chances in parts:
        top = np.take_along_axis(chances, np.maximum(best, 0)[:, None].astype(np.int64), 1)
        sums.add(lines, best[:, None], top, 0.0)
        truth = labelled(lines, len(labels))
        of_lines, of_labels = np.divmod(truth.pairs, len(labels))
        right = np.maximum(chances[of_lines, of_labels], np.float32(1e-38))
        weights = truth.every_weight.pairs
        loss -= float(np.log(right, dtype=np.float64) @ weights)
        if settings.loss in ONE_LABEL:
            terms += float(weights.sum())
        else:
            line_weights = lines.line_weights if truth.weights else np.ones(len(truth.has))
            wrong = np.maximum(1 - chances[truth.has].astype(np.float64), 1e-9)
            missed = np.maximum(1 - right.astype(np.float64), 1e-9)
            loss -= float(np.log(wrong).sum(1) @ line_weights[truth.has])
            # A label of weight t is a yes of weight t, and a no of what is missing to 1.
            loss += float(np.log(missed) @ np.minimum(weights, line_weights[of_lines]))
            terms += float(line_weights[truth.has].sum())
    if sums.skipped and warns:
        log.warning(
            "%s of %s held-out lines do not count: they have no label, or no word, of the trained "
            "lines",
            f"{sums.skipped:,}", f"{sums.lines + sums.skipped:,}",
        )  # fmt: skip
    _refuse_unmeasured(settings, sums, labels)
    scores = scores_of(labels.words, sums, 1, None, None)
    figures = {
        "f1_at_1": scores.f1 or 0.0,
        "precision_at_1": scores.precision or 0.0,
        "recall_at_1": scores.recall or 0.0,
        "loss": loss / terms if terms else 0.0,
    }
    if (name := figures_for(settings).get(settings.stop_by, ("loss",))[0]) not in figures:
        names = [to_text(label) for label in labels.words]
        with _of_stop_by():
            figures[name] = metric.value(names, meter) if meter else metric.of_sums(sums, names)
    return {name: round(value, 6) for name, value in figures.items()}


def figures_for(settings: ClassifierSettings) -> Figures:
    """The figures of `figures_of` by which epochs may be compared, by their name in `stop_by`."""
    by = settings.stop_by
    return {
        F1: ("f1_at_1", "higher"),
        LOSS: ("loss", "lower"),
        ACCURACY: ("precision_at_1", "higher"),
        MACRO_F1: ("macro_f1_at_1", "higher"),
        **({by: (by, "higher")} if ":" in by else {}),
    }
