"""Read a sample of the input before the training: the labels, and how large values are.

    files -> pieces spread over them -> Examples -> Encoding, in the settings   (master)
    files of `LABELS_BYTES` -> all their labels

A small input is read whole.  A piece that cannot be read is left out: its error is reported where
it is trained.  No rows, no workers.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.data._examples import Examples
from snailps.data.blocks import Source, cut, files_of, head_of, read_block
from snailps.data.driver_files import is_driver_file
from snailps.data.encoding import Encoding, shown
from snailps.data.examples import ExampleReader
from snailps.data.file_kinds import is_pipe
from snailps.data.scratch import Scratch
from snailps.data.unpacking import is_packed, is_url
from snailps.dataclass import dataclass, replace
from snailps.errors import DataError, SnailError
from snailps.models.losses import LOSSES
from snailps.models.sparse.settings import SparseSettings

log = logging.getLogger(__name__)

PIECES = 16
PIECE_BYTES = 64 << 10
"""Some 1,000 examples of 14 features, or 150 of 100."""
LABELS_BYTES = 32 << 20
"""Inputs up to this size have all their labels read; blocks of larger ones are drawn."""
TENTH_MIN = 10
"""Examples that show whether labels are sorted, at least."""
EXACT = 1 << 24
"""Whole numbers up to here are exact in float32."""
S = TypeVar("S", bound=SparseSettings)


@dataclass(frozen=True, slots=True)
class Sample:
    """Examples from places of an input, in its order; no piece is empty."""

    pieces: list[Examples]
    is_whole: bool

    def entries(self) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
        keys = [np.empty(0, np.uint64), *(piece.keys for piece in self.pieces)]
        values = [np.empty(0, np.float32), *(piece.values for piece in self.pieces)]
        return np.concatenate(keys), np.concatenate(values)

    def labelled(self) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Labels and weights of the examples that have a weight; no weights: 1."""
        labels = np.concatenate([piece.labels for piece in self.pieces])
        if not all(len(piece.weights) for piece in self.pieces):
            return labels, np.empty(0, np.float32)
        weights = np.concatenate([piece.weights for piece in self.pieces])
        return labels[weights > 0], weights[weights > 0]


def sample_of(settings: SparseSettings) -> Sample:
    paths = files_of(settings.input)
    places = np.unique(np.linspace(0, len(paths) - 1, PIECES).astype(int)).tolist()
    each = PIECES // len(places)
    found, is_whole = [], len(places) == len(paths)
    with Scratch(settings.scratch_dir, settings.scratch_bytes) as scratch:
        reader = _reader(settings)
        for path in (paths[place] for place in places):
            read = False
            with contextlib.suppress(SnailError):
                for examples, is_last in _of_file(settings, reader, path, each, scratch):
                    found += [examples] * (len(examples.labels) > 0)
                    is_whole, read = is_whole and is_last and not examples.bad, True
            is_whole = is_whole and read
    return Sample(found, is_whole and bool(found))


def _reader(settings: SparseSettings) -> ExampleReader:
    return ExampleReader(
        settings.format,
        columns=settings.text_columns,
        hash_bits=settings.hash_bits,
        on_bad_line="skip",
    )


def all_labels(settings: SparseSettings) -> NDArray[np.float64] | None:
    """Labels of all examples that have a weight; None if the input is large or not local."""
    paths, reading = files_of(settings.input), settings.reading()
    if any(
        reading.takes(path) or is_packed(path) or is_url(path) or is_driver_file(path)
        for path in paths
    ):
        return None
    sources = [Source(path, Path(path).stat().st_size) for path in paths]
    if sum(source.bytes for source in sources) > LABELS_BYTES:
        return None
    reader, found = _reader(settings), [np.empty(0)]
    try:
        with Scratch(settings.scratch_dir, settings.scratch_bytes) as scratch:
            for at in cut(sources, 8 << 20):
                data = read_block(at.path, at.start, at.stop, unit="line", scratch=scratch)
                examples = reader.read(data, at.path, at.start)
                if examples.bad:  # what is left out may have others
                    return None
                has_weight = examples.weights > 0 if len(examples.weights) else slice(None)
                found.append(examples.labels[has_weight])
    except SnailError:  # reported where it is trained
        return None
    return np.concatenate(found)


def _of_file(
    settings: SparseSettings, reader: ExampleReader, path: str, pieces: int, scratch: Scratch
) -> Iterator[tuple[Examples, bool]]:
    """Some examples of a file, and whether they are all of it."""
    reading = settings.reading()
    if reading.takes(path):
        from snailps.data.table_files import first_examples

        yield first_examples(path, reading, settings.hash_bits)
        return
    if is_packed(path) or is_url(path) or is_pipe(path):  # a pipe is refused where it is read
        yield reader.read(head_of(path), path), False
        return
    with scratch.open(path) as file:
        size = file.seek(0, os.SEEK_END)
    if size <= pieces * PIECE_BYTES:
        yield reader.read(read_block(path, 0, size, unit="line", scratch=scratch), path), True
        return
    for place in range(pieces):
        start = (size - PIECE_BYTES) * place // max(1, pieces - 1)
        data = read_block(path, start, start + PIECE_BYTES, unit="line", scratch=scratch)
        if data:
            yield reader.read(data, path, start), False


def encoded(settings: S, *, has_constant: bool, is_drawn: bool = True, farthest: float = 0.0) -> S:
    """The settings with the encoding of the input's labels and values, by a sample.

    An `encoding` that is set stays: its labels, or all of it where training is continued.  Unless
    the order `is_drawn`, warn where labels of the beginning differ from the rest.  A `DataError` if
    labels do not fit the loss.
    """
    encoding = Encoding.of_text(settings.encoding)
    if not settings.input or encoding.is_measured:
        return settings
    sample = sample_of(settings)
    if not sample.pieces:
        return settings
    labels, weights = sample.labelled()
    if len(labels) == 0:  # all have weight 0
        return settings
    # What is fetched is not spread over other files.
    if not is_drawn or (len(sample.pieces) > 1 and any(map(is_url, settings.input))):
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
    elif not encoding.labels:
        every = labels if sample.is_whole else all_labels(settings)
        known = labels if every is None else every
        encoding = replace(encoding, labels=_classes(known, classes, is_whole=every is not None))
    if classes and not settings.class_weights:
        encoding = replace(encoding, constant=_entropy(labels, weights))
    if not encoding.keeps_values:
        log.info(
            "values: those of %d columns have an own factor, others %g; %d of these columns are "
            "centred", len(encoding.keys), encoding.factor, len(encoding.centred_keys),
        )  # fmt: skip
    if min(1, encoding.factors_of(keys).min(initial=1)) * EXACT < 1:
        log.warning(
            "a column has values above %s, which float32 does not tell apart: if they are ids, "
            "declare it as name:categorical or name:ignore",
            f"{EXACT:,}",
        )
    return replace(settings, encoding=encoding.text)


def _look_at_order(sample: Sample) -> None:
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


def _entropy(labels: NDArray[np.float64], weights: NDArray[np.float32]) -> float:
    """Log loss of the shares of the labels."""
    numbers = np.unique(labels, return_inverse=True)[1].ravel()
    shares = np.bincount(numbers, weights if len(weights) else None) / (
        weights.sum() or len(labels)
    )
    return float(-shares @ np.log(shares))


def _classes(labels: NDArray[np.float64], classes: int, *, is_whole: bool) -> tuple[float, ...]:
    """The labels of `classes` classes, or of yes and no; empty if labels are class numbers."""
    found = np.unique(labels).tolist()
    if classes == 2 and len(found) == 1:
        (one,) = found
        if is_whole:
            raise DataError(
                "input: expected labels of two classes, got one only: all "
                f"{len(labels):,} are {one:g}"
            )
        log.warning("all labels of a sample of %s examples are %g", f"{len(labels):,}", one)
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
