"""Text from Python objects, written once into one scratch file of this process.

    list, array, column, generator [, labels] -> spool_text -> Spooled: a file with a unit a line

A unit is a text or a list of words.  On a local cluster the file is a job's input as any other; on
a remote one the driver serves it.  No sockets, no blocks.
"""

from __future__ import annotations

import operator
import re
import weakref
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import numpy as np

from snailps.data.elements import Elements, a_kind, elements_of, is_missing, native
from snailps.data.host_cache import HostCache, ScratchFile
from snailps.data.vocabulary import LABEL_PREFIX
from snailps.data.word_counts import SEPARATORS
from snailps.errors import DataError

WRITE_BYTES = 1 << 20
OnProgress = Callable[[int, int | None], object]

_WORD_ENDS = SEPARATORS.decode()
_WORD_END = re.compile(f"[{_WORD_ENDS}]")
_RARE_ENDS = [end.encode() for end in _WORD_ENDS if end not in " \n"]
_CODEC = ("utf-8", "surrogateescape")
_END = object()
_EXPECTED = "expected str or a list of str"


class Spooled:
    """A file with a driver's data, of `units` elements; a context manager that removes it.

    `name` describes the data, for messages: ``a list of 1,000``.  `close`, the end of the object or
    of the process remove the file; if the process is killed, the next user of the folder does.
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
    bytes_max: int = 0,
    column: str = "",
    on_progress: OnProgress | None = None,
    on_bytes: Callable[[int], object] | None = None,
) -> Spooled:
    """Write texts (str or bytes) or lists of words into one file, a unit a line, in order.

    `data` is anything that `elements_of` reads; `labels` has a label for each unit, or a list of
    them, or names a column where `data` is a table: lines are then fastText's.  `folder`,
    `bytes_max` are as in `spool_rows`.  ``on_progress(units, units_total or None)`` and
    `on_bytes`, with the bytes so far, are called about once a MiB and at the end.

    A newline in a unit becomes a blank.  Words of a list that are empty or blank are left out; one
    that has a blank within is refused.  Bytes, and strings that `os.fsdecode` makes of bytes that
    are no UTF-8, are written as they are.
    """
    data = native(data)
    found = elements_of(data, column)
    own = None
    if labels is not None:
        named = isinstance(labels, str)
        own = elements_of(data, labels) if named else elements_of(labels, what="labels")
        if found.count is not None and own.count not in (None, found.count):
            raise _miscounted(found, own)
    with HostCache(folder, bytes_max).new_file(f"writing {found.name}") as file:
        units = 0
        for piece, units in SpooledText(found, own, LABEL_PREFIX.decode()).pieces():
            file.write(piece)
            if on_progress is not None:
                on_progress(units, found.count)
            if on_bytes is not None:
                on_bytes(file.bytes)
        if units == 0:
            raise DataError(f"the data is empty: {found.name} has no element")
        return Spooled(file, units, found.name)


class SpooledText:
    """The text that `spool_text` writes; a label is taken behind its text, one by one."""

    def __init__(self, elements: Elements, labels: Elements | None, prefix: str) -> None:
        self._elements, self._labels, self._prefix = elements, labels, prefix
        self._known: dict[Any, str] = {}  # type and label -> beginning of its line
        # Of a piece: units, their lines, the labels before each.
        self._units: list[Any] = []
        self._lines: list[str] = []
        self._labelled: list[str] = []
        self._first = 0

    def pieces(self) -> Iterator[tuple[bytes, int]]:
        """Bytes of whole lines, about `WRITE_BYTES`, and the units so far."""
        labels = None if self._labels is None else iter(self._labels.values)
        units, lines, join = self._units, self._lines, " ".join
        size = 0
        for number, element in enumerate(self._elements.values):
            kind = type(element)
            if kind is str:
                line = element
            elif kind is list or kind is tuple:
                try:  # separators are looked for in the whole piece: this loop is the hot one
                    line = join(element)
                except TypeError:
                    line = self._joined(number, element)
            else:
                line = self._line(number, element)
            if labels is not None:
                self._labelled.append(self._label(number, labels))
            units.append(element)
            lines.append(line)
            size += len(line) + 1
            if size >= WRITE_BYTES:
                yield self._piece(), self._first
                size = 0
        if labels is not None and next(labels, _END) is not _END:
            assert self._labels is not None
            raise _miscounted(self._elements, self._labels, self._first + len(lines))
        if lines:
            yield self._piece(), self._first

    def _piece(self) -> bytes:
        lines = self._lines
        data = self._encoded()
        if self._is_odd(data):
            for place, element in enumerate(self._units):
                line = self._line(self._first + place, element)
                lines[place] = line.replace("\n", " ")
            data = self._encoded()
        if self._labels is not None:
            self._refuse_labels_in(data)
            lines[:] = map(operator.add, self._labelled, lines)
            data = self._encoded()
        self._first += len(lines)
        for kept in (lines, self._labelled, self._units):
            kept.clear()
        return data

    def _is_odd(self, data: bytes) -> bool:
        """Whether a unit may have a newline, or a word of a list a separator."""
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
        """Any unit; slow."""
        if isinstance(element, str):
            return str(element)
        if isinstance(element, (bytes, bytearray, memoryview)):
            return bytes(element).decode(*_CODEC)
        if hasattr(element, "dtype") and hasattr(element, "tolist"):  # a NumPy array or number
            element = element.tolist()
        if isinstance(element, Sequence) and not isinstance(element, range):
            return self._joined(number, element)
        at = self._elements.at(number)
        if is_missing(element):
            raise DataError(f"{at} is missing ({element!r}): leave such rows out, or fill them")
        raise DataError(f"{at} is {a_kind(element)}: {_EXPECTED}")

    def _joined(self, number: int, element: Sequence[Any]) -> str:
        """A list of words; slow."""
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
                    "one str, or join the word by another character"
                )
            if word:
                words.append(word)
        return " ".join(words)

    def _label(self, number: int, labels: Iterator[Any]) -> str:
        """The beginning of a unit's line: its labels, and a blank."""
        assert self._labels is not None
        label = next(labels, _END)
        if label is _END:
            raise _miscounted(self._elements, self._labels, number)
        key = type(label), label  # 1 and True are equal
        try:
            return self._known[key]
        except KeyError:
            known = self._known[key] = self._word_of(number, label)
            return known
        except TypeError:  # not hashable: several
            return "".join(self._word_of(number, one) for one in _several(label))

    def _word_of(self, number: int, label: Any) -> str:
        assert self._labels is not None
        at = self._labels.at(number)
        if hasattr(label, "dtype") and hasattr(label, "tolist"):
            label = label.tolist()
        if isinstance(label, (tuple, frozenset)):
            return "".join(self._word_of(number, one) for one in _several(label))
        if is_missing(label):
            raise DataError(f"{at} is missing ({label!r}): leave such rows out, or fill them")
        if not isinstance(label, (str, int)):
            raise DataError(f"{at} is {a_kind(label)}: expected a str, an int or a list of them")
        text = str(label)
        if not text or _WORD_END.search(text):
            raise DataError(f"{at} is {text!r:.60}: a label is one word of a line, without blanks")
        return f"{self._prefix}{text} "

    def _refuse_labels_in(self, data: bytes) -> None:
        """Refuse a word of a text that would be read as a label."""
        if self._prefix.encode(*_CODEC) not in data:
            return
        for number, line in enumerate(self._lines, self._first):
            for word in _WORD_END.split(line):
                if word.startswith(self._prefix):
                    raise DataError(
                        f"{self._elements.at(number)} has the word {word!r:.60}, which would be "
                        "read as a label: give labels apart or in the texts, not both"
                    )


def _several(labels: Any) -> list[Any]:
    """Labels of one unit; those of a set in an order that does not depend on the process."""
    return sorted(labels, key=str) if isinstance(labels, Set) else list(labels)


def _miscounted(data: Elements, labels: Elements, units: int | None = None) -> DataError:
    have = units if data.count is None else data.count
    got = "another number" if labels.count is None else f"{labels.count:,}"
    return DataError(f"expected a label for each element: got {got} of them for {have:,} elements")
