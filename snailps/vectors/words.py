"""Words as bytes and as text: inside they are bytes, users see text.

bytes -> to_text -> str, with lone surrogates for what is not UTF-8 -> to_bytes -> the same bytes
list of bytes -> Words -> a sequence of str
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from snailps.errors import DataError


def to_bytes(word: str | bytes) -> bytes:
    """The bytes of a word; the inverse of `to_text`."""
    return word if isinstance(word, bytes) else word.encode("utf-8", "surrogateescape")


def to_text(word: bytes) -> str:
    """A word as text; bytes that are not UTF-8 become lone surrogates, as in `os.fsdecode`."""
    return word.decode("utf-8", "surrogateescape")


def one_line(text: str | bytes) -> bytes:
    """The bytes of a line, without its end.

    Raises
    ------
    DataError
        It is more than one line.
    """
    raw = to_bytes(text)
    line = raw[:-1] if raw.endswith(b"\n") else raw
    if b"\n" in line:
        raise DataError(
            "expected one line of text, got several: give them one by one, as in "
            "[wv.sentence_vector(line) for line in text.splitlines()]"
        )
    return line


class Words(Sequence[str]):
    """The words of a model as text, in the order of its rows; they are decoded when asked for."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Sequence[bytes]) -> None:
        self._raw = raw

    def __len__(self) -> int:
        return len(self._raw)

    @overload
    def __getitem__(self, which: int) -> str: ...
    @overload
    def __getitem__(self, which: slice) -> list[str]: ...
    def __getitem__(self, which: int | slice) -> str | list[str]:
        if isinstance(which, slice):
            return [to_text(word) for word in self._raw[which]]
        return to_text(self._raw[which])

    def __iter__(self) -> Iterator[str]:
        return map(to_text, self._raw)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, (str, bytes)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3]))
        return f"<{len(self):,} words: {shown}{', ...' if len(self) > 3 else ''}>"
