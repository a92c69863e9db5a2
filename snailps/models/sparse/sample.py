"""Reads a sample of the input before the training: its labels, and how large its values are.

    sources, copies -> pieces spread over all of them -> Examples -> Encoding, in the settings
    sources whose labels have `LABELS_BYTES` -> all their labels

Reads what is trained: for tables, packed files and URLs, the copies that the job has made.  A small
input is read whole.  A piece that cannot be read is left out here: the worker that trains it
reports the error.  Knows no rows and no workers.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.data._examples import Examples
from snailps.data.encoding import Encoding, shown
from snailps.data.examples import ExampleReader
from snailps.dataclass import dataclass, replace
from snailps.errors import DataError, SnailError
from snailps.files.blocks import InputFile, cut, is_matrix_file, read_block, read_head
from snailps.files.input_files import InputFiles
from snailps.files.matrix_file import labels_of_matrix, size_of_labels
from snailps.files.unpacking import is_url
from snailps.models.class_weights import balanced
from snailps.models.losses import LOSSES
from snailps.models.sparse.batch import classes_of, weighed
from snailps.models.sparse.settings import SparseSettings

log = logging.getLogger(__name__)

PIECES = 64
PIECE_BYTES = 16 << 10
"""About 250 examples of 14 features, or 40 of 100."""
LABELS_BYTES = 32 << 20
"""Most bytes in which all labels of an input are read; of a larger input, blocks are drawn."""
TENTH_MIN = 10
"""Least examples that show whether labels are sorted."""
EXACT = 1 << 24
"""Whole numbers up to here are exact in float32."""
Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]
S = TypeVar("S", bound=SparseSettings)


@dataclass(frozen=True, slots=True)
class SampledExamples:
    """Examples from places all over an input, in its order; no piece is empty.

    Examples of weight 0 are left out, unless all have weight 0.
    """

    pieces: list[Examples]
    is_whole: bool

    def entries(self) -> tuple[NDArray[np.uint64], Floats]:
        keys = [np.empty(0, np.uint64), *(piece.keys for piece in self.pieces)]
        values = [np.empty(0, np.float32), *(piece.values for piece in self.pieces)]
        return np.concatenate(keys), np.concatenate(values)

    def labelled(self) -> tuple[Doubles, Floats]:
        return _labelled([(piece.labels, piece.weights) for piece in self.pieces])


def _labelled(pieces: Sequence[tuple[Doubles, Floats]]) -> tuple[Doubles, Floats]:
    """Join labels and weights of examples with a weight above 0; without weights, all are 1."""
    labels = np.concatenate([np.empty(0), *(labels for labels, _ in pieces)])
    if not any(len(weights) for _, weights in pieces):
        return labels, np.empty(0, np.float32)
    weights = np.concatenate(
        [own if len(own) else np.ones(len(some), np.float32) for some, own in pieces]
    )
    return labels[weights > 0], weights[weights > 0]


def sample_of(settings: SparseSettings, files: InputFiles) -> SampledExamples:
    """Sample pieces at equal distances over all files; a small input is read whole."""
    edges = list(itertools.accumulate((source.bytes for source in files.sources), initial=0))
    total = edges[-1]
    whole = [(0, total)]
    if total > PIECES * PIECE_BYTES:
        starts = [(total - PIECE_BYTES) * place // (PIECES - 1) for place in range(PIECES)]
        whole = [(start, start + PIECE_BYTES) for start in starts]
    found, is_whole, reader, path = list[Examples](), len(whole) == 1, _reader(settings), ""
    for source, start, stop in _in_files(files.sources, edges, whole):
        read = False
        with contextlib.suppress(SnailError):
            if source.path != path and settings.text_columns:
                reader.learn_format(read_head(source.path, files.scratch))
            path = source.path
            data = read_block(path, start, stop, unit="line", scratch=files.scratch)
            examples = reader.read(data, path, start)
            found += [examples] * (len(examples.labels) > 0)
            read = not examples.bad
        is_whole = is_whole and read
    counted = [piece for piece in map(weighed, found) if len(piece.labels)]
    return SampledExamples(counted or found, is_whole and bool(found))


def _in_files(
    sources: Sequence[InputFile], edges: Sequence[int], ranges: Sequence[tuple[int, int]]
) -> Iterator[tuple[InputFile, int, int]]:
    """The files of ranges of all bytes, with the range in each."""
    for first, last in ranges:
        at = bisect_right(edges, first) - 1
        while at < len(sources) and edges[at] < last:
            begin = edges[at]
            start, stop = max(first, begin) - begin, min(last, edges[at + 1]) - begin
            if start < stop:
                yield sources[at], start, stop
            at += 1


def _reader(settings: SparseSettings) -> ExampleReader:
    return ExampleReader(
        settings.format,
        columns=settings.text_columns,
        hash_bits=settings.hash_bits,
        on_bad_line="skip",
        side=settings.side(is_held=False),
    )


def all_labels(
    settings: SparseSettings, files: InputFiles, most_bytes: int | None = None
) -> tuple[Doubles, Floats] | None:
    """`SampledExamples.labelled` of all examples; None if more than `most_bytes`, by
    default `LABELS_BYTES`, would be read, or some are left out.
    """
    reader, found = _reader(settings), list[tuple[Doubles, Floats]]()
    bytes_left = LABELS_BYTES if most_bytes is None else most_bytes
    try:
        for source in files.sources:
            with files.scratch.open(source.path) as file:
                # Rows have a side by their keys and values: all of them are read.
                if is_matrix := is_matrix_file(file) and not settings.held_out:
                    bytes_left -= size_of_labels(file, source.path)
                    if bytes_left >= 0:
                        found.append(labels_of_matrix(file, source.path))
            bytes_left -= 0 if is_matrix else source.bytes
            if bytes_left < 0:
                return None
            for at in [] if is_matrix else cut([source], 8 << 20):
                data = read_block(at.path, at.start, at.stop, unit="line", scratch=files.scratch)
                examples = reader.read(data, at.path, at.start)
                if examples.bad:  # what is left out may have others
                    return None
                found.append((examples.labels, examples.weights))
    except (SnailError, OSError):  # reported where it is trained
        return None
    labels, weights = _labelled(found)
    return (labels, weights) if np.isfinite(labels).all() else None


def encoded(
    settings: S,
    files: InputFiles,
    *,
    has_constant: bool,
    is_drawn: bool = True,
    farthest: float = 0.0,
) -> S:
    """The settings with the encoding of the input's labels and values, by a sample.

    An `encoding` that is set stays: its labels, or all of it where training is continued.  Where
    `class_weights` are to be balanced, they become numbers, too.  Unless the order `is_drawn`, warn
    where labels of the beginning differ from the rest.  A `DataError` if labels do not fit the
    loss.
    """
    encoding = Encoding.of_text(settings.encoding)
    # A continued model's encoding is measured, and its input may yet have nothing to learn.
    if encoding.is_measured and not (settings.is_balanced or settings.continue_from):
        return settings
    sample = sample_of(settings, files)
    if not sample.pieces:
        if settings.held_out:
            raise DataError(
                f"held_out: expected examples that are trained, got none: {settings.held_out:g} of "
                "the input's lines are held out. Hold out fewer, or give more lines"
            )
        raise DataError(
            "input: expected examples, got none: all lines are blank, comments or malformed. Look "
            "at what writes the input: a filter may have dropped every line"
        )
    every = sample.labelled() if sample.is_whole else all_labels(settings, files)
    labels, weights = sample.labelled() if every is None else every
    if len(labels) == 0:  # all have weight 0
        if every is None:
            return settings
        raise DataError(
            "input: expected an example with a weight above 0, got none: nothing would be learnt"
        )
    if encoding.is_measured:
        return _balanced(settings, encoding, labels, weights, is_whole=every is not None)
    # What is fetched is not spread over other files.
    if not is_drawn or (
        len(files.sources) > 1 and any(is_url(source.path) for source in files.sources)
    ):
        _look_at_order(sample)
    examples = sum(len(piece.labels) for piece in sample.pieces)
    if settings.min_count > examples:  # a column may be left out, and has no row then
        farthest = 0.0
    keys, values = sample.entries()
    encoding = encoding.measured(keys, values, examples, farthest=farthest)
    classes = settings.class_num
    if not classes:
        if encoding.is_plain_target:
            encoding = LOSSES[settings.loss].encoded(encoding, labels, weights, has_constant)
    else:
        known, _ = np.unique(labels, return_counts=True)  # without it imports `numpy.ma`
        if not encoding.labels:
            try:
                told = _classes(known, len(labels), classes, is_whole=every is not None)
            except DataError as error:
                if not settings.held_out:
                    raise
                raise DataError(f"{error}, without the {settings.held_out:g} held out") from None
            encoding = replace(encoding, labels=told)
        if not settings.class_weights:
            encoding = replace(encoding, constant=entropy(labels, weights, known))
    if not encoding.keeps_values:
        log.info(
            "values: %d columns have a factor of their own, others %g; %d of these columns are "
            "centred", len(encoding.keys), encoding.factor, len(encoding.centred_keys),
        )  # fmt: skip
    if min(1, encoding.factors_of(keys).min(initial=1)) * EXACT < 1:
        log.warning(
            "a column has values above %s, which float32 cannot distinguish: if they are ids, "
            "declare the column as name:categorical or name:ignore",
            f"{EXACT:,}",
        )
    settings = replace(settings, encoding=encoding.text)
    return _balanced(settings, encoding, labels, weights, is_whole=every is not None)


def _balanced(
    settings: S, encoding: Encoding, labels: Doubles, weights: Floats, *, is_whole: bool
) -> S:
    """The settings with numbers for `class_weights: balanced`, by the labels with a weight above 0;
    unchanged without it.
    """
    if not settings.is_balanced:
        return settings
    classes = classes_of(encoding, labels, "input", weights)
    sums = np.bincount(classes, weights if len(weights) else None, settings.class_num)
    if len(sums) > settings.class_num:
        raise DataError(
            f"input: label {classes.max()} is no class: with loss {settings.loss} classes are 0 to "
            f"{settings.class_num - 1}"
        )
    factors = tuple(f"{factor:.6g}" for factor in balanced(sums).tolist())
    of_what = "all" if is_whole else "a sample of"
    log.info("class_weights, by %s %s labels: %s", of_what, f"{len(labels):,}", ", ".join(factors))
    of_input = replace(Encoding.of_text(settings.encoding), is_balanced=True)
    return replace(settings, class_weights=factors, encoding=of_input.text)


def _look_at_order(sample: SampledExamples) -> None:
    """Warn if the mean label of the first tenth is far from that of the rest."""
    labels = np.concatenate([piece.labels for piece in sample.pieces])
    tenth = len(labels) // 10
    if tenth < TENTH_MIN:
        return
    first, rest, spread = labels[:tenth].mean(), labels[tenth:].mean(), labels.std()
    if abs(first - rest) > spread * max(0.5, 5 / tenth**0.5):
        log.warning(
            "the labels of the first tenth of the input have a mean of %.3g, the others %.3g: if "
            "they are sorted, set shuffle: true, and mix the lines of files that are fetched",
            first, rest,
        )  # fmt: skip


def entropy(labels: Doubles, weights: Floats, known: Doubles) -> float:
    """Log loss of the shares of the labels, which are the `known` ones."""
    sums = np.bincount(np.searchsorted(known, labels), weights if len(weights) else None)
    shares = sums / sums.sum()
    return float(-shares @ np.log(shares))


def _classes(known: Doubles, count: int, classes: int, *, is_whole: bool) -> tuple[float, ...]:
    """The labels of `classes` classes, or of yes and no; empty if labels are class numbers.

    `known` are the different ones of `count` labels.
    """
    found = known.tolist()
    if classes == 2 and len(found) == 1:
        (one,) = found
        if is_whole:
            raise DataError(
                f"input: expected labels of two classes, got one only: all {count:,} are {one:g}"
            )
        log.warning("all labels of a sample of %s examples are %g", f"{count:,}", one)
        return (one, 1.0) if one <= 0 else (one - 1.0, one)
    if len(found) > classes:
        raise DataError(
            f"input: expected labels of {classes} classes, got {len(found):,} different ones: "
            f"{shown(found)}. For other classes set loss: multinomial and their number as classes, "
            "for numbers loss: squared"
        )
    if len(found) == classes:
        return tuple(found)
    if all(label == int(label) for label in found) and min(found) >= 1 and max(found) == classes:
        return tuple(float(label) for label in range(1, classes + 1))
    return ()
