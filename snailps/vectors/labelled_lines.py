"""Labelled lines of files or from memory, as a classifier's training reads them.

    path, frame, list, (texts, labels) + model -> labelled_lines -> LabelledLines
    LabelledLines -> `evaluate_labels`, calibrating, retraining

Code that judges or trains an existing model takes its lines from here, so that a label, a weight or
a prefix means the same to all.  Must not know what is done with the lines.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from snailps.data.elements import a_kind, elements_of, whole
from snailps.data.label_words import like_weights, prefix_of
from snailps.data.spool import Spooled, spool_text
from snailps.data.vocabulary import LABEL_PREFIX
from snailps.dataclass import dataclass, field
from snailps.errors import DataError, shown_bytes
from snailps.files.blocks import files_of
from snailps.files.reading import Reading
from snailps.files.unpacking import read_errors
from snailps.vectors.words import to_text

log = logging.getLogger(__name__)

M = TypeVar("M", bound="Reads")
HEAD_BYTES = 1 << 16
"""Bytes in which labels with weights are looked for."""


class Reads(Protocol):
    """A model that reads labelled lines: `label_prediction.LabelModel`, which imports this."""

    labels: list[bytes]
    prefix: bytes

    @property
    def says_prefix(self) -> bool:
        """Whether `prefix` is the training's for certain."""

    def reading(self: M, prefix: bytes = b"", *, weighed: bool = False) -> M:
        """Return the model with another reader."""

    def labels_in(self, text: bytes) -> int:
        """Count known labels."""


@dataclass(frozen=True, slots=True)
class LabelledLines:
    """Labelled lines, and the model with a reader for them.

    Attributes
    ----------
    model : LabelModel
    where : str
        What the lines are, for errors.
    source : callable
        Yields whole lines, from the start at each call.
    are_soft : bool
        Labels of a line may have weights.
    weighed : bool
        They may, or lines may.
    """

    model: Any
    where: str
    source: Callable[[], Iterable[bytes]]
    are_soft: bool = False
    weighed: bool = False
    heads: list[bytes] = field(default_factory=list)
    """The first piece, once it was read: standard input cannot be read again."""

    def texts(self) -> Iterator[bytes]:
        """Yield whole lines."""
        for piece in self.source():
            if not self.heads:
                self.heads.append(bytes(piece[:HEAD_BYTES]))
            yield piece


def labelled_lines(
    model: Reads,
    source: Any,
    *,
    column: str = "",
    label_column: str = "",
    weight_column: str = "",
    soft_labels: bool = False,
) -> LabelledLines:
    """Read labelled lines for a model.

    `source` is a path (file, folder, glob or URL), a pair of texts and labels, a table with the
    columns `column`, `label_column` and perhaps `weight_column`, or a list of lines that begin with
    their labels.  A label may be a list of labels, or a mapping from labels to weights; in text
    `soft_labels` says that labels may end with their weights.
    """
    if weight_column and not label_column:
        raise DataError("weight_column: expected label_column as well, the column of labels")
    if weight_column and weight_column in (column, label_column):
        raise DataError(
            "weight_column: expected another column than column and label_column, got "
            f"{weight_column}"
        )
    if not isinstance(source, (str, os.PathLike)):
        return _in_memory(model, source, column, label_column, weight_column, soft_labels)
    where, prefix = os.fsdecode(source), model.prefix.decode(errors="surrogateescape")
    if label_column:
        if not column:
            raise DataError("label_column: expected column as well, the column of texts")
        if not model.says_prefix:
            prefix = _prefix_for(model, where, column, label_column)
    reading = Reading(
        "text",
        column=column,
        label_column=label_column,
        label_prefix=prefix,
        weight_column=weight_column,
        soft_labels=soft_labels,
    )
    weighed = soft_labels or bool(weight_column)
    reader = model.reading(prefix=os.fsencode(prefix), weighed=weighed)
    return LabelledLines(reader, where, partial(_text_in, where, reading), soft_labels, weighed)


def _in_memory(
    model: Reads, data: Any, column: str, label_column: str, weight_column: str, soft: bool
) -> LabelledLines:
    from snailps.data.table_files import label_words

    texts, labels, weights = data, None, None
    if isinstance(data, tuple):
        if len(data) != 2:
            raise DataError(f"expected a pair of texts and labels, got {len(data)} items")
        texts, labels = data
        if label_column:
            raise DataError("label_column: expected none with a pair of texts and labels")
        if getattr(labels, "ndim", 1) != 1:
            raise DataError(
                f"labels: expected one label a text, a list of them, or a mapping from labels to "
                f"weights; got {a_kind(labels)} of {labels.ndim} axes"
            )
    if label_column:
        texts = whole(data)
        labels = [*elements_of(texts, label_column).values]
        if weight_column:
            weights = [*elements_of(texts, weight_column).values]
    if labels is not None:
        labels = [label_words(label) for label in elements_of(labels, what="labels").values]
        soft = soft or any(isinstance(label, Mapping) for label in labels)
    weighed = soft or weights is not None
    spooled = spool_text(
        texts,
        labels=labels,
        weights=weights,
        has_weights=weighed,
        label_prefix=to_text(model.prefix),
        column=column,
    )
    reader = model.reading(weighed=weighed)
    return LabelledLines(reader, spooled.name, partial(_text_of, spooled), soft, weighed)


def _text_of(spooled: Spooled) -> Iterator[bytes]:
    """Yield the lines of a scratch file, which lasts as long as someone may call this."""
    yield from labelled_text(spooled.path)


def _prefix_for(model: Reads, where: str, column: str, label_column: str) -> str:
    """Return the prefix that a training put before labels of a column, if its file does not say it.

    It is the prefix with which most labels of the first lines are labels of the model.
    """
    usual, common = LABEL_PREFIX.decode(), to_text(prefix_of(model.labels))
    if common == usual:
        return usual
    counts = {usual: -1}
    for size in range(len(common), 0, -1):
        prefix = common[:size]
        reading = Reading("text", column=column, label_column=label_column, label_prefix=prefix)
        with suppress(DataError):  # a short prefix may also begin words of the texts
            text = next(iter(_text_in(where, reading)), b"")
            counts[prefix] = model.reading(prefix=os.fsencode(prefix)).labels_in(text)
    return max(counts, key=lambda prefix: counts[prefix])


def labelled_text(where: str) -> Iterator[bytes]:
    """Yield whole lines of files of text."""
    yield from _text_in(where, Reading("text"))


def _text_in(where: str, reading: Reading) -> Iterator[bytes]:
    from snailps.data.formats.text import TextFile
    from snailps.data.table_files import text_of

    for path in files_of([where]):
        if reading.takes(path):
            yield from text_of(reading, path)
            continue
        with read_errors(path), TextFile(path) as text:
            yield from text.lines()


def weights_hint(lines: LabelledLines) -> str:
    """Advise to read weights, if the first lines have labels that are known without their ends."""
    if lines.are_soft:
        return ""
    labels = {*lines.model.labels}
    unknown = (word for word in b"".join(lines.heads).split() if word not in labels)
    for word in like_weights(unknown, labels, lines.model.prefix):
        return (
            f". {shown_bytes(word)} looks like a label with a weight: weights are read with "
            "soft_labels (--soft-labels)"
        )
    return ""


def warn_of_weights(lines: LabelledLines) -> None:
    """Warn if lines that have been read have weights, which nobody asked to read."""
    if hint := weights_hint(lines):
        log.warning("%s: all its lines count 1%s", lines.where, hint)
