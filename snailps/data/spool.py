"""Writes text from Python objects into a scratch file of this process, once.

    list, array, column, generator [, labels] -> spool_text -> Spooled: a file, one unit per line

A unit is a text or a list of words.  On a local cluster the file is a job's input like any other;
for a remote one the driver serves it.  Must not know sockets or blocks.
"""

from __future__ import annotations

import operator
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from snailps.data._labelled import WEIGHT_MAX, WeightError, without_weights
from snailps.data.columns import as_float
from snailps.data.elements import Elements, a_kind, elements_of, is_missing, native
from snailps.data.vocabulary import LABEL_PREFIX
from snailps.errors import DataError
from snailps.files.file_kinds import SEPARATORS
from snailps.files.host_cache import HostCache, ScratchFile

WRITE_BYTES = 1 << 20
OnProgress = Callable[[int, int | None], object]

_WORD_ENDS = SEPARATORS.decode()
_WORD_END = re.compile(f"[{_WORD_ENDS}]")
_RARE_ENDS = [end.encode() for end in _WORD_ENDS if end not in " \n"]
_CODEC = ("utf-8", "surrogateescape")
_END = object()
_EXPECTED = "expected str or a list of str"


class Spooled:
    """A scratch file with a driver's data, `units` elements; a context manager that removes it.

    `name` describes the data, for messages: ``a list of 1,000``.  The file is removed by `close`,
    when the object is collected, or when the process ends; if it is killed, by the next process
    that uses the folder.
    """

    def __init__(self, file: ScratchFile, units: int, name: str) -> None:
        self.path, self.bytes = str(file.path), file.bytes
        self.units, self.name = units, name
        self._close = weakref.finalize(self, file.keep().close)

    def close(self) -> None:
        """Remove the file; may be called again."""
        self._close()

    def __enter__(self) -> Spooled:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Spooled({self.name}: {self.units:,} units, {self.bytes:,} bytes in {self.path})"


def spool_text(
    data: Any,
    folder: str = "",
    *,
    labels: Any = None,
    weights: Any = None,
    has_weights: bool = False,
    label_prefix: str = LABEL_PREFIX.decode(),
    bytes_max: int = 0,
    column: str = "",
    on_progress: OnProgress | None = None,
    on_bytes: Callable[[int], object] | None = None,
) -> Spooled:
    """Write texts (str or bytes) or lists of words into a scratch file, one per line, in order.

    Parameters
    ----------
    data : object
        Anything that `elements_of` reads.
    folder, bytes_max
        As in `spool_rows`.
    labels : object, optional
        A label, or a list of labels, for each unit; or the name of a column, if `data` is a table.
        Lines then have fastText's form.
    weights : object, optional
        A number from 0 to `WEIGHT_MAX` for each unit, as for labels.
    has_weights : bool
        The text is read by `_labelled.LineReader` with weights, as it must be with `weights`; a
        unit's labels may then be a mapping from labels to weights.
    label_prefix : str
        Before each label.
    column : str
        Column of the texts, if `data` is a table.
    on_progress : callable, optional
        Called with the units so far and of all (None: unknown), about once a MiB and at the end.
    on_bytes : callable, optional
        Called as often, with the bytes so far.

    Raises
    ------
    DataError
        No element, a unit that is no text, a word of a list with a blank in it, or another number
        of labels than of units.

    Notes
    -----
    A newline in a unit becomes a blank.  Empty and blank words of a list are left out.  Bytes are
    written as they are, also those of strings that `os.fsdecode` made of invalid UTF-8.
    """
    data = native(data)
    texts = elements_of(data, column)
    label_elements = None
    if labels is not None:
        is_column = isinstance(labels, str)
        label_elements = (
            elements_of(data, labels) if is_column else elements_of(labels, what="labels")
        )
        if texts.count is not None and label_elements.count not in (None, texts.count):
            raise _miscounted(texts, label_elements)
    heads = None
    if label_elements is not None:
        of_units = None if weights is None else elements_of(weights, what="weights")
        heads = LineHeads(label_elements, label_prefix, of_units, ":" * has_weights)
    with HostCache(folder, bytes_max).new_file(f"writing {texts.name}") as file:
        units = 0
        for piece, units in SpooledText(texts, heads).pieces():
            file.write(piece)
            if on_progress is not None:
                on_progress(units, texts.count)
            if on_bytes is not None:
                on_bytes(file.bytes)
        if units == 0:
            raise DataError(f"the data is empty: expected texts, but {texts.name} has no element")
        return Spooled(file, units, texts.name)


class SpooledText:
    """The text that `spool_text` writes.

    Takes one text, then its label, one after the other: both may come from one generator.  Checks a
    piece as a whole, and looks at its units one by one only if it may hold a separator too many:
    the loop over units is the hot one.
    """

    def __init__(self, elements: Elements, heads: LineHeads | None = None) -> None:
        self._elements, self._heads = elements, heads
        self._units: list[Any] = []
        """Units of the piece; `_lines` has their lines, `_labelled` the labels before each."""
        self._lines: list[str] = []
        self._labelled: list[str] = []
        self._first = 0
        """Number of the piece's first unit."""

    def pieces(self) -> Iterator[tuple[bytes, int]]:
        """Whole lines, about `WRITE_BYTES` at a time, and the number of units so far."""
        heads = self._heads
        units, lines, join = self._units, self._lines, " ".join
        size = 0
        for number, element in enumerate(self._elements.values):
            kind = type(element)
            if kind is str:
                line = element
            elif kind is list or kind is tuple:
                try:  # separators within words are looked for in the whole piece
                    line = join(element)
                except TypeError:
                    line = self._joined(number, element)
            else:
                line = self._line(number, element)
            if heads is not None:
                self._labelled.append(heads.next(number, self._elements))
            units.append(element)
            lines.append(line)
            size += len(line) + 1
            if size >= WRITE_BYTES:
                yield self._piece(), self._first
                size = 0
        if heads is not None:
            heads.end(self._first + len(lines), self._elements)
        if lines:
            yield self._piece(), self._first

    def _piece(self) -> bytes:
        """The bytes of the units so far, checked; begins a new piece."""
        lines = self._lines
        data = self._encoded()
        if self._is_odd(data):
            for place, element in enumerate(self._units):
                line = self._line(self._first + place, element)
                lines[place] = line.replace("\n", " ")
            data = self._encoded()
        if self._heads is not None:
            self._refuse_labels_in(data, self._heads.prefix)
            lines[:] = map(operator.add, self._labelled, lines)
            data = self._encoded()
        self._first += len(lines)
        for piece_list in (lines, self._labelled, self._units):
            piece_list.clear()
        return data

    def _is_odd(self, data: bytes) -> bool:
        """Whether a unit may hold a newline, or a word of a list a separator.

        Counts newlines and blanks: there is one newline per unit, and one blank less than words in
        each list, unless something is odd.
        """
        values = np.frombuffer(data, np.uint8)  # ten times as fast as bytes.count
        if np.count_nonzero(values == ord("\n")) > len(self._lines):
            return True
        lists = [unit for unit in self._units if type(unit) is list or type(unit) is tuple]
        if not lists:
            return False
        if len(lists) < len(self._units) or any(end in data for end in _RARE_ENDS):
            return True
        blanks = sum(map(len, lists)) - len(lists) + lists.count([]) + lists.count(())
        return bool(np.count_nonzero(values == ord(" ")) != blanks)

    def _encoded(self) -> bytes:
        """The lines as bytes; DataError, with the unit: a lone surrogate."""
        try:
            return ("\n".join(self._lines) + "\n").encode(*_CODEC)
        except UnicodeEncodeError:
            for number, line in enumerate(self._lines, self._first):
                try:
                    line.encode(*_CODEC)
                except UnicodeEncodeError as error:
                    raise DataError(
                        f"{self._elements.at(number)} is no text: character {error.start:,}, "
                        f"{line[error.start]!r}, is half of a pair (a lone surrogate)"
                    ) from None
            raise

    def _line(self, number: int, element: Any) -> str:
        """The line of any unit, checked; slow."""
        if isinstance(element, str):
            return str(element)
        if isinstance(element, (bytes, bytearray, memoryview)):
            return bytes(element).decode(*_CODEC)
        if hasattr(element, "dtype") and hasattr(element, "tolist"):  # a NumPy array or number
            element = element.tolist()
        if isinstance(element, Sequence) and not isinstance(element, range):
            return self._joined(number, element)
        where = self._elements.at(number)
        if is_missing(element):
            raise DataError(f"{where} is missing ({element!r}): leave such rows out, or fill them")
        raise DataError(f"{where} is {a_kind(element)}: {_EXPECTED}")

    def _joined(self, number: int, element: Sequence[Any]) -> str:
        """The line of a list of words, checked; slow."""
        words = []
        for place, word in enumerate(element):
            if isinstance(word, (bytes, bytearray)):
                word = bytes(word).decode(*_CODEC)
            if not isinstance(word, str):
                raise DataError(
                    f"{self._elements.at(number)} is {a_kind(element)} whose item {place:,} is "
                    f"{a_kind(word)}: {_EXPECTED}"
                )
            word = word.strip(_WORD_ENDS)
            if _WORD_END.search(word):
                raise DataError(
                    f"{self._elements.at(number)} has a blank or another separator within word "
                    f"{place:,}, {word!r:.60}: it would be read as several words. Give the text as "
                    "one str, or put another character in its place"
                )
            if word:
                words.append(word)
        return " ".join(words)

    def _refuse_labels_in(self, data: bytes, prefix: str) -> None:
        """DataError: a word of a text that would be read as a label."""
        if prefix.encode(*_CODEC) not in data:
            return
        for number, line in enumerate(self._lines, self._first):
            for word in _WORD_END.split(line):
                if word.startswith(prefix):
                    raise DataError(
                        f"{self._elements.at(number)} has the word {word!r:.60}, which would be "
                        "read as a label: give labels apart or in the texts, not both"
                    )


class LineHeads:
    """The beginning of each unit's line: its weight, if it has one, and its labels.

    `ends` is written after a label that has no weight: ``:`` in a text that is read with weights,
    so that no end of a label is taken for one.  `are_soft`: labels may end with their own weights.
    """

    def __init__(
        self,
        labels: Elements,
        prefix: str,
        weights: Elements | None = None,
        ends: str = "",
        *,
        are_soft: bool = False,
    ) -> None:
        self.prefix, self._are_soft = prefix, are_soft
        self._labels, self._weights, self._ends = labels, weights, ends
        self._next_labels = iter(labels.values)
        self._next_weights = None if weights is None else iter(weights.values)
        self._heads: dict[Any, str] = {}
        """By type and label, the word of it."""

    def next(self, number: int, units: Elements) -> str:
        """The beginning of the next line: each word with a blank; `number` of the unit."""
        label = next(self._next_labels, _END)
        if label is _END:
            raise _miscounted(units, self._labels, number)
        if self._next_weights is None:
            return self._head(number, label)
        assert self._weights is not None
        weight = next(self._next_weights, _END)
        if weight is _END:
            raise _miscounted(units, self._weights, number, "weight")
        written = weight_text(weight, self._weights, number)
        return f"{self.prefix}:{written} {self._head(number, label)}"

    def end(self, number: int, units: Elements) -> None:
        """DataError: there are more labels, or weights, than the `number` of units."""
        if next(self._next_labels, _END) is not _END:
            raise _miscounted(units, self._labels, number)
        if self._next_weights is not None and next(self._next_weights, _END) is not _END:
            assert self._weights is not None
            raise _miscounted(units, self._weights, number, "weight")

    def _head(self, number: int, label: Any) -> str:
        """The words of a unit's labels."""
        key = type(label), label  # with the type, since 1 and True are equal
        try:
            return self._heads[key]
        except KeyError:
            head = self._heads[key] = self._word_of(number, label)
            return head
        except TypeError:  # not hashable: a list of labels, or labels with weights
            if isinstance(label, Mapping):
                if not (self._ends or self._are_soft):
                    raise DataError(
                        f"{self._labels.at(number)} is {a_kind(label)}: expected a label. Weights "
                        "of labels are read with soft_labels: true"
                    ) from None
                return "".join(
                    self._word_of(number, item, f":{weight_text(weight, self._labels, number)}")
                    for item, weight in label.items()
                    if weight is not None  # of a struct, whose rows have all fields
                )
            return "".join(self._word_of(number, item) for item in _several(label))

    def _word_of(self, number: int, label: Any, ends: str | None = None) -> str:
        """The prefixed word of a label, or of each of several; `number` of the unit, for errors."""
        where = self._labels.at(number)
        if hasattr(label, "dtype") and hasattr(label, "tolist"):
            label = label.tolist()
        if isinstance(label, (tuple, frozenset)):
            return "".join(self._word_of(number, item) for item in _several(label))
        if is_missing(label):
            raise DataError(f"{where} is missing ({label!r}): leave such rows out, or fill them")
        if not isinstance(label, (str, int)):
            raise DataError(f"{where} is {a_kind(label)}: expected a str, an int or a list of them")
        text = str(label)
        if not text or _WORD_END.search(text):
            raise DataError(
                f"{where} is {text!r:.60}: expected a label without blanks, since it becomes one "
                "word of a line"
            )
        if self._are_soft:
            try:
                without_weights(f"{self.prefix}{text}\n".encode(*_CODEC), self.prefix.encode())
            except WeightError as error:
                raise DataError(f"{where}: {error}") from None
        return f"{self.prefix}{text}{self._ends if ends is None else ends} "


def weight_text(weight: Any, weights: Elements, number: int) -> str:
    """Write a weight so that it is read as the same float32; DataError: it is none."""
    try:
        value = as_float(weight)
    except (TypeError, ValueError, OverflowError):
        value = -1.0
    if not 0 <= value <= WEIGHT_MAX:
        raise DataError(
            f"{weights.at(number)} has the weight {weight!r:.60}: expected a number from 0 to "
            f"{WEIGHT_MAX:,.0f}"
        )
    return f"{np.float32(value):.9g}"


def _several(labels: Any) -> list[Any]:
    """The labels of one unit; a set's are sorted, since its own order differs between processes."""
    return sorted(labels, key=str) if isinstance(labels, Set) else list(labels)


def _miscounted(
    data: Elements, labels: Elements, units: int | None = None, what: str = "label"
) -> DataError:
    """Make the error for another number of labels, or weights, than of elements."""
    elements = units if data.count is None else data.count
    got = "another number" if labels.count is None else f"{labels.count:,}"
    return DataError(
        f"expected a {what} for each element: got {got} of them for {elements:,} elements"
    )
