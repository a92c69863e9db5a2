"""Words as bytes and as text: files and models have bytes, users see str.

bytes -> to_text -> str, with lone surrogates for what is not UTF-8 -> to_bytes -> the same bytes
list of bytes -> Words -> a sequence of str
word -> ngrams -> its n-grams of characters     text -> tokens_of -> words
mapping of bytes to numbers -> WordNumbers -> a mapping of str to numbers
an unknown word and known words -> close_spellings -> did_you_mean: the end of a message
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import overload

from snailps.data.word_counts import END_OF_LINE
from snailps.errors import DataError

SPELLING_WORDS = 20_000
"""How many of the most frequent words are compared with an unknown one, in some 50 ms."""
SPELLING_LENGTHS = 2
"""Largest difference in length, in characters, of words that are compared."""


def to_bytes(word: str | bytes) -> bytes:
    """Encode a word, the inverse of `to_text`; DataError: a surrogate that it never makes."""
    if isinstance(word, bytes):
        return word
    if not isinstance(word, str):
        raise DataError(f"expected a text, got {word!r:.60}")
    try:
        return word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{word!r:.60} is no text: character {error.start:,}, {word[error.start]!r}, is half "
            "of a pair (a lone surrogate)"
        ) from None


def to_text(word: bytes) -> str:
    """Decode a word; bytes that are not UTF-8 become lone surrogates, as in `os.fsdecode`."""
    return word.decode("utf-8", "surrogateescape")


def tokens_of(text: bytes) -> list[bytes]:
    """Split a text as fastText does: words, and ``</s>`` for each newline.

    >>> tokens_of(b"north wind\\n")
    [b'north', b'wind', b'</s>']
    """
    tokens: list[bytes] = []
    for number, line in enumerate(text.replace(b"\0", b" ").split(b"\n")):
        tokens += ([END_OF_LINE] if number else []) + line.split()
    return tokens


def ngrams(word: bytes, minn: int, maxn: int) -> Iterator[bytes]:
    """Yield the n-grams of `minn` to `maxn` characters of a word in brackets, as fastText does.

    `data._subwords.subword_ids` has the row of each.  A bracket alone is no n-gram.

    >>> list(ngrams(b"ab", 1, 2))
    [b'<a', b'a', b'ab', b'b', b'b>']
    """
    text = b"<" + word + b">"
    ends = [place for place, byte in enumerate(text) if byte & 0xC0 != 0x80] + [len(text)]
    characters = len(ends) - 1
    for first in range(characters):
        for last in range(first + max(minn, 1), min(first + maxn, characters) + 1):
            if last - first > 1 or 0 < first < characters - 1:
                yield text[ends[first] : ends[last]]


def close_spellings(
    text: str, often: Iterable[str], every: Container[str], k: int = 3
) -> list[str]:
    """Return up to `k` names spelt nearly like `text`, other upper or lower case first.

    Case is looked up in `every` name; spellings are compared with `often`, the frequent names.
    """
    cased = [form for form in (text.lower(), text.title(), text.upper()) if form in every]
    # Lengths in characters, because in most alphabets a character takes several bytes.
    near = [name for name in often if abs(len(name) - len(text)) <= SPELLING_LENGTHS]
    suggestions = dict.fromkeys(cased + difflib.get_close_matches(text, near, n=k))
    suggestions.pop(text, None)
    return list(suggestions)[:k]


def did_you_mean(close: Sequence[str]) -> str:
    """Return the end of a message about an unknown name, from close spellings."""
    return f"; did you mean {' or '.join(close)}?" if close else "; check its spelling and case"


def one_line(text: str | bytes) -> bytes:
    """Return the bytes of one line without its newline; DataError: several lines."""
    raw = to_bytes(text)
    line = raw[:-1] if raw.endswith(b"\n") else raw
    if b"\n" in line:
        raise DataError(
            "expected one line of text, got several: give them one by one, as text.splitlines() "
            "has them"
        )
    return line


class Words(Sequence[str]):
    """The words of a model as str, in the order of its rows; each is decoded on access."""

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


class WordNumbers(Mapping[str, int]):
    """A mapping from str to row numbers: a view of a mapping from bytes.

    `form` gives a word as it is looked up, so a word has a number in each spelling that the model
    takes for it; iteration has the words of the rows.
    """

    __slots__ = ("_form", "_numbers")

    def __init__(
        self, numbers: Mapping[bytes, int], form: Callable[[str], bytes] = to_bytes
    ) -> None:
        self._numbers, self._form = numbers, form

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, word: str) -> int:
        try:
            return self._numbers[self._form(word)]
        except (KeyError, AttributeError, DataError):
            raise KeyError(word) from None

    def __iter__(self) -> Iterator[str]:
        return map(to_text, self._numbers)

    def __repr__(self) -> str:
        shown = ", ".join(f"{word!r}: {self[word]}" for word in islice(self, 3))
        return f"<{len(self):,} words: {{{shown}{', ...' if len(self) > 3 else ''}}}>"
