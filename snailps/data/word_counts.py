"""The byte layout in which counted words travel between nodes, and its validation.

    words' bytes, ends, counts, tokens -> pack -> bytes -> unpack -> the same, checked

Word counts of a block (`_text.WordCounter.dump`) and a whole vocabulary (`vocabulary.Vocabulary`)
share it under two magics.  Little endian, no padding:

    magic   4 bytes     says which of the two it is
    version uint32      1
    words   uint64      n
    tokens  uint64      all tokens read, including those of words that are not listed
    bytes   uint64      length of `text`
    counts  n x int64   each > 0
    ends    n x uint64  word i is text[ends[i - 1] : ends[i]], word 0 begins at 0
    text    bytes       the words, one after another

The bytes come from another process: every length, sum and word is checked.  Must not know the order
of words, or sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from snailps.errors import DataError
from snailps.files.file_kinds import SEPARATORS

if TYPE_CHECKING:
    from numpy.typing import NDArray

VERSION = 1
END_OF_LINE = b"</s>"
"""The word that stands for a newline."""
HEADER_BYTES = 32
_PIECE = 1 << 20
"""Bytes searched for separators at a time: NumPy widens each to 8 bytes."""


class UnpackedWords(NamedTuple):
    """Counted words as views of the bytes that were unpacked."""

    counts: NDArray[np.int64]
    ends: NDArray[np.uint64]
    text: NDArray[np.uint8]
    tokens: int


def pack(
    magic: bytes,
    counts: NDArray[np.int64],
    ends: NDArray[np.uint64],
    text: bytes | NDArray[np.uint8],
    tokens: int,
) -> bytes:
    """Counted words in the layout above; `magic` has 4 bytes."""
    head = np.array([len(counts), tokens, len(text)], dtype="<u8").tobytes()
    version = VERSION.to_bytes(4, "little")
    numbers = counts.astype("<i8", copy=False), ends.astype("<u8", copy=False)
    words = text if isinstance(text, bytes) else text.data
    return b"".join((magic, version, head, *(array.data for array in numbers), words))


def unpack(magic: bytes, part: bytes, *, complete: bool) -> UnpackedWords:
    """Read and check what `pack` wrote; DataError: malformed.

    `complete`: counts have to add up to `tokens`, else to at most that number.
    """
    if len(part) < HEADER_BYTES:
        raise _refusal(part, f"expected a header of {HEADER_BYTES} bytes")
    expected = magic + VERSION.to_bytes(4, "little")
    if bytes(part[:8]) != expected:
        raise _refusal(part, f"expected them to begin with {expected!r}, got {bytes(part[:8])!r}")
    words, tokens, text_bytes = (int(n) for n in np.frombuffer(part, "<u8", 3, 8))
    needed = HEADER_BYTES + 16 * words + text_bytes
    if needed != len(part):
        raise _refusal(part, f"{words} words of {text_bytes} bytes in all need {needed} bytes")
    counts = np.frombuffer(part, "<i8", words, HEADER_BYTES)
    ends = np.frombuffer(part, "<u8", words, HEADER_BYTES + 8 * words)
    text = np.frombuffer(part, np.uint8, text_bytes, HEADER_BYTES + 16 * words)
    last = int(ends[-1]) if words else 0
    # Compared, not subtracted: unsigned differences wrap round.
    if last != text_bytes or (words and ends[0] == 0) or (ends[1:] <= ends[:-1]).any():
        raise _refusal(part, "the words do not fill their bytes")
    # Summed as float first: an int64 sum could wrap round to the right number.
    if (counts <= 0).any() or float(counts.sum(dtype=np.float64)) > 2.0**62 or tokens > 2**62:
        raise _refusal(part, "a count is not between 1 and 2^62")
    counted = int(counts.sum())
    if counted > tokens or (complete and counted != tokens):
        raise _refusal(part, f"the counts add up to {counted}, the tokens are {tokens}")
    separators = np.frombuffer(SEPARATORS, np.uint8)
    firsts = range(0, len(text), _PIECE)
    if any(np.isin(text[first : first + _PIECE], separators).any() for first in firsts):
        raise _refusal(part, "a word has a separator in it")
    return UnpackedWords(counts, ends, text, tokens)


def _refusal(part: bytes, what: str) -> DataError:
    return DataError(
        f"cannot read word counts ({len(part)} bytes): {what}. "
        "Check that all nodes run the same version of snailps"
    )
