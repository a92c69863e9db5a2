"""Texts of any library as pieces of whole lines, each for a thread.

    str, bytes               -> pieces of lines
    list, generator, column  -> joined, an item a line -> pieces of lines
    Arrow (a column's own memory, whichever library has it) -> pieces of offsets into it

Newlines within an item are blanks.  What a text means is `data._labelled`'s.  pyarrow is imported
for Arrow alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps.errors import DataError
from snailps.vectors.extras import optional_module
from snailps.vectors.words import to_bytes

PIECE_BYTES = 1 << 17
"""Of a text, what a thread answers at once: its features are in the second cache meanwhile."""
BATCH_BYTES = 1 << 24
"""What is joined of a generator before it is answered."""
ROWS_MAX = 1 << 16
"""Rows of a piece; empty ones have no bytes."""


class Piece(NamedTuple):
    """Whole lines: `data`, bytes, by its newlines, or a line between two `offsets` each."""

    data: Any
    offsets: NDArray[np.int64] | None
    lines: int


def pieces_of(texts: object) -> Iterator[list[Piece]]:
    """Pieces of texts, a batch that fits memory at a time; of a text that is given whole one batch.

    DataError: not texts, or an item that is none.
    """
    if isinstance(texts, (str, bytes)):
        raw = to_bytes(texts)
        yield list(_cut(raw + b"\n" * (bool(raw) and not raw.endswith(b"\n"))))
    elif is_arrow(texts):
        for chunk in _chunks(texts):
            yield list(_rows(chunk))
    elif isinstance(texts, Iterable):
        yield from map(list, map(_cut, _joined(texts)))
    else:
        raise DataError(
            f"expected lines of text, as str, bytes or a list of them, got {texts!r:.80}"
        )


def is_arrow(texts: object) -> bool:
    """Whether these are a column in Arrow's memory: pyarrow's, polars', pandas' of such a dtype."""
    return any(hasattr(texts, name) for name in ("__arrow_c_array__", "__arrow_c_stream__"))


def are_bytes(texts: object) -> bool:
    """Whether labels are to be bytes: the texts are."""
    if isinstance(texts, (list, tuple)):
        return bool(texts) and all(isinstance(text, bytes) for text in texts)
    return isinstance(texts, bytes)


def _cut(raw: bytes) -> Iterator[Piece]:
    """Pieces of whole lines; of no text one."""
    first = 0
    while len(raw) - first > 2 * PIECE_BYTES:
        end = raw.find(b"\n", first + PIECE_BYTES) + 1
        if end in (0, len(raw)):
            break
        yield Piece(raw[first:end], None, raw.count(b"\n", first, end))
        first = end
    yield Piece(raw[first:] if first else raw, None, raw.count(b"\n", first))


def _joined(texts: Iterable[object]) -> Iterator[bytes]:
    """An item a line; at least one batch."""
    lines: list[bytes] = []
    size, any_yet = 0, False
    for number, text in enumerate(texts):
        if not isinstance(text, (str, bytes)):
            raise DataError(f"expected a line of text as item {number}, got {text!r:.80}")
        raw = to_bytes(text)
        lines.append(raw.replace(b"\n", b" ") if b"\n" in raw else raw)
        size += len(raw) + 1
        if size >= BATCH_BYTES:
            yield b"\n".join(lines) + b"\n"
            lines, size, any_yet = [], 0, True
    if lines or not any_yet:
        yield b"\n".join(lines) + b"\n" * bool(lines)


def _chunks(texts: object) -> Iterator[Any]:
    """Arrow arrays of texts that have offsets; DataError: another type, or a row without a text."""
    arrow = optional_module("pyarrow", "a column in Arrow's memory", "snailps[data]")
    done = 0
    try:
        column = arrow.chunked_array(texts)
    except (TypeError, ValueError, arrow.ArrowException) as error:
        raise DataError(
            f"expected one column of texts, got {type(texts).__name__}: {error}"
        ) from None
    kinds = arrow.types
    is_text = kinds.is_string, kinds.is_large_string, kinds.is_string_view, kinds.is_binary, \
        kinds.is_large_binary, kinds.is_binary_view  # fmt: skip
    values = column.type.value_type if kinds.is_dictionary(column.type) else column.type
    if not any(kind(values) for kind in is_text):
        raise DataError(f"expected a column of texts, got one of {column.type}")
    for chunk in column.chunks:
        if chunk.null_count:
            row = done + chunk.is_null().index(True).as_py()
            raise DataError(
                f"row {row:,} has no text (null): leave such rows out, or give them an empty one"
            )
        done += len(chunk)
        yield chunk if _offset_type(chunk) else chunk.cast(arrow.large_binary())


def _offset_type(chunk: Any) -> type | None:
    """Of a type whose rows lie one behind the other."""
    return {"string": np.int32, "binary": np.int32, "large_string": np.int64,
            "large_binary": np.int64}.get(str(chunk.type))  # fmt: skip


def _rows(chunk: Any) -> Iterator[Piece]:
    _, offsets, data = chunk.buffers()
    if not len(chunk):
        return
    all_offsets = np.frombuffer(offsets, _offset_type(chunk))
    ends = all_offsets[chunk.offset : chunk.offset + len(chunk) + 1]
    letters = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    first = 0
    while first < len(chunk):
        last = int(np.searchsorted(ends, int(ends[first]) + PIECE_BYTES, "right")) - 1
        last = min(max(last, first + 1), first + ROWS_MAX, len(chunk))
        some = ends[first : last + 1].astype(np.int64)
        yield Piece(letters[some[0] : some[-1]], some - some[0], last - first)
        first = last
