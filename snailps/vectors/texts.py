"""Cuts texts of any library into pieces of whole lines, each small enough for one thread.

    str, bytes               -> pieces of lines
    list, generator, column  -> joined, one line per item -> pieces of lines
    Arrow column of any library -> pieces of offsets into its memory, without a copy

Newlines within an item become blanks, so that each item is one line.  pyarrow is imported only for
Arrow columns; without it they are read item by item.  Must not know what a line means
(`data._labelled`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps.data.elements import column_of, decoded
from snailps.errors import DataError
from snailps.files.file_kinds import READ_BYTES
from snailps.vectors.words import to_bytes

PIECE_BYTES = 1 << 17
"""Bytes of a piece, so that its features stay in the L2 cache of the thread that answers it."""
ITEMS = 32
"""Items taken from a generator before their size is added up."""
ROWS_MAX = 1 << 16
"""Most lines of a piece: empty lines have no bytes that would limit it."""


class WholeLines(NamedTuple):
    """Whole lines: `data` is split at its newlines, or at `offsets`, int64[lines + 1], if given.

    `are_bytes`: the user's texts are bytes, so labels must be bytes too.  `missing`: which lines
    stand for rows without a text.
    """

    data: Any
    offsets: NDArray[np.int64] | None
    lines: int
    are_bytes: bool
    missing: NDArray[np.bool_] | None = None


def pieces_of(
    texts: object, *, rows: int = ROWS_MAX, what: str = "item", first: int = 0
) -> Iterator[WholeLines]:
    """Yield pieces of up to `rows` texts, in order; an empty text is an empty line.

    For messages: `what` an item is called, and the number of the `first` one.
    """
    rows = max(1, min(rows, ROWS_MAX))
    texts = column_of(texts, "texts", keep_codes=True)  # `_plain_parts` decodes some rows at a time
    is_row = getattr(texts, "ndim", 1) == 1 and not isinstance(texts, Mapping)
    if isinstance(texts, (str, bytes)):
        raw = to_bytes(texts)
        raw += b"\n" * (not raw.endswith(b"\n"))
        yield from _cut(raw, rows, isinstance(texts, bytes))
    elif (arrow := _arrow_of(texts)) is not None:
        for chunk in _chunks(arrow, texts, what, first):
            yield from _rows(chunk, rows)
    elif is_row and isinstance(texts, Iterable):
        for joined, are_bytes in _joined(texts, what, first):
            yield from _cut(joined, rows, are_bytes)
    else:
        raise DataError(
            f"expected lines of text, as str, bytes or a list of them, got {texts!r:.80}"
        )


def _arrow_of(texts: object) -> Any:
    """Return pyarrow if the texts are an Arrow column (of pyarrow, polars, sometimes pandas)."""
    if not any(hasattr(texts, name) for name in ("__arrow_c_array__", "__arrow_c_stream__")):
        return None
    try:
        return importlib.import_module("pyarrow")
    except ImportError:
        if isinstance(texts, Iterable):
            return None
        raise


def _cut(raw: bytes, rows: int, are_bytes: bool) -> Iterator[WholeLines]:
    """Yield pieces of whole lines; at least one, even for an empty text."""
    first = 0
    while True:
        end = len(raw)
        if end - first > 2 * PIECE_BYTES:
            end = raw.find(b"\n", first + PIECE_BYTES) + 1 or end
        lines = _newlines(raw, first, end)
        if lines > rows:
            breaks = np.flatnonzero(np.frombuffer(raw, np.uint8, end - first, first) == 10)
            end, lines = first + int(breaks[rows - 1]) + 1, rows
        yield WholeLines(
            raw if (first, end) == (0, len(raw)) else raw[first:end], None, lines, are_bytes
        )
        first = end
        if first >= len(raw):
            return


def _joined(texts: Iterable[object], what: str, first: int) -> Iterator[tuple[bytes, bool]]:
    """Yield batches of items as lines, and whether all items are bytes; at least one batch."""
    items: Iterator[Any] = iter(texts)
    done = 0
    while True:
        batch: list[Any] = []
        size = 0
        while size < READ_BYTES and (taken := list(islice(items, ITEMS))):
            batch += taken
            try:
                size += sum([len(text) for text in taken])
            except TypeError:  # an item that is no text: end the batch, `_lines` refuses it
                size = READ_BYTES
        if batch or not done:
            yield _lines(batch, what, first + done)
        done += len(batch)
        if size < READ_BYTES:
            return


def _lines(batch: list[Any], what: str, first: int) -> tuple[bytes, bool]:
    """Join items into lines; return whether all are bytes.  DataError: an item is no text.

    Joins all at once, then counts the newlines: only if an item had one are items joined singly.
    """
    kinds = set(map(type, batch))
    raw = b""
    with suppress(UnicodeEncodeError):
        if all(issubclass(kind, str) for kind in kinds):
            raw = "\n".join([*batch, ""]).encode("utf-8", "surrogateescape")
        elif all(issubclass(kind, bytes) for kind in kinds):
            raw = b"\n".join([*batch, b""])
    if _newlines(raw, 0, len(raw)) != len(batch):
        lines = [_line(text, what, number) for number, text in enumerate(batch, first)]
        raw = b"\n".join([*lines, b""])
    return raw, bool(batch) and all(issubclass(kind, bytes) for kind in kinds)


def _newlines(raw: bytes, first: int, end: int) -> int:
    """Count newlines, for short lines ten times as fast as `raw.count`."""
    letters = np.frombuffer(raw, np.uint8)[first:end]
    return sum(
        int(np.count_nonzero(letters[start : start + PIECE_BYTES] == ord("\n")))
        for start in range(0, len(letters), PIECE_BYTES)
    )


def _line(text: object, what: str, number: int) -> bytes:
    if not isinstance(text, (str, bytes)):
        raise DataError(f"expected a line of text as {what} {number:,}, got {text!r:.80}")
    return to_bytes(text).replace(b"\n", b" ")


def _chunks(arrow: Any, texts: object, what: str, first: int) -> Iterator[Any]:
    """Yield Arrow arrays of texts with offsets; DataError: another type, or a null."""
    try:
        column = arrow.chunked_array(texts)
    except (TypeError, ValueError, arrow.ArrowException) as error:
        kind = type(texts).__name__
        raise DataError(f"expected one column of texts, got {kind}: {error}") from None
    kinds = arrow.types
    has_codes = kinds.is_dictionary(column.type) or kinds.is_run_end_encoded(column.type)
    values = column.type.value_type if has_codes else column.type
    is_bytes = any(
        kind(values) for kind in (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view)
    )
    is_text = any(
        kind(values) for kind in (kinds.is_string, kinds.is_large_string, kinds.is_string_view)
    )
    if not (is_text or is_bytes or kinds.is_null(values)):
        raise DataError(f"expected a column of texts, got one of {column.type}")
    plain = arrow.large_binary() if is_bytes else arrow.large_string()
    for chunk in column.chunks:
        row, count = first, len(chunk)
        for part in _plain_parts(chunk, plain):
            if part.null_count:
                missing = row + part.is_null().index(True).as_py()
                raise DataError(
                    f"{'row' if what == 'item' else what} {missing:,} has no text (null): leave "
                    "such rows out, or give them an empty one"
                )
            row += len(part)
            yield part
        first += count


def _plain_parts(chunk: Any, plain: Any) -> Iterator[Any]:
    """Yield a chunk as it is if its texts are contiguous; else convert it, some rows at a time."""
    if _offset_type(chunk) is not None:
        yield chunk
        return
    for first in range(0, len(chunk), ROWS_MAX):
        yield decoded(chunk.slice(first, ROWS_MAX)).cast(plain)


def _offset_type(chunk: Any) -> type | None:
    """Return the type of a chunk's offsets; None: its texts are not contiguous."""
    return {"string": np.int32, "binary": np.int32, "large_string": np.int64,
            "large_binary": np.int64}.get(str(chunk.type))  # fmt: skip


def _rows(chunk: Any, rows: int) -> Iterator[WholeLines]:
    _, offsets, data = chunk.buffers()
    if not len(chunk):
        return
    kind = _offset_type(chunk)
    assert kind is not None
    ends: NDArray[Any] = np.frombuffer(offsets, kind)[chunk.offset : chunk.offset + len(chunk) + 1]
    letters = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    are_bytes, first = str(chunk.type).endswith("binary"), 0
    while first < len(chunk):
        # In the type of `ends`: for another type `searchsorted` would copy the whole array.
        most = kind(min(int(ends[first]) + PIECE_BYTES, int(ends[-1])))
        last = int(ends.searchsorted(most, "right")) - 1
        last = min(max(last, first + 1), first + rows, len(chunk))
        bounds = ends[first : last + 1].astype(np.int64)
        yield WholeLines(
            letters[bounds[0] : bounds[-1]], bounds - bounds[0], last - first, are_bytes
        )
        first = last
