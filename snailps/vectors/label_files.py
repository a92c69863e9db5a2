"""Labels every line of files: text or tables, compressed or not, local or at a URL.

    file, column -> read_texts -> pieces -> LabelModel -> LabelWriter -> a line for each line

The output has a line for each input line (or row of a table), in the same order, so `paste` can put
both side by side.  Memory is a few pieces.  Must not know commands or terminals.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from snailps.data._float_text import label_lines
from snailps.data.elements import DataTable
from snailps.data.packed_words import PackedWords
from snailps.errors import DataError, shown_bytes
from snailps.files.extras import optional_module
from snailps.files.reading import Reading
from snailps.files.unpacking import read_errors
from snailps.vectors.label_arrow import label_names, label_table
from snailps.vectors.texts import ROWS_MAX, WholeLines, pieces_of
from snailps.vectors.words import to_text

if TYPE_CHECKING:
    from snailps.vectors.label_prediction import LabelModel

Format = Literal["tsv", "jsonl", "parquet"]


def read_texts(
    path: str, column: str = "", file: IO[bytes] | None = None, rows: int = ROWS_MAX
) -> Iterator[WholeLines]:
    """Yield pieces of up to `rows` lines of a file or URL, or texts of a table's `column`.

    `file` is read instead of the path, as plain text.  A row without a text and a blank line of
    JSON lines still count as lines, without labels: `WholeLines.missing`.
    """
    from snailps.data.formats.table import no_column, open_table, table_errors
    from snailps.data.formats.text import TextFile

    if file is not None or not Reading("text", column=column).takes(path):
        with read_errors(path), TextFile(path, file=file) as text:
            for lines in text.lines():
                yield from pieces_of(lines, rows=rows)
        return
    with open_table(path, once=True, has_blanks=True) as table, table_errors(path):
        done = 1
        if table.is_complete and column not in table.names:
            raise no_column(path, column, table.names)
        batches: Iterator[DataTable] = table.rows()
        if table.is_complete:
            batches = table.batches([column])
        for batch in batches:
            if done == 1 and batch.columns and column not in batch.columns:
                raise no_column(path, column, batch.columns)
            try:
                yield from _pieces(batch.column(column).data, rows, table.row, done)
            except DataError as error:
                raise DataError(f"{path}: column {column!r}: {error}") from None
            done += batch.rows


def _pieces(texts: Any, rows: int, what: str, first: int) -> Iterator[WholeLines]:
    """Yield pieces of a list or an Arrow column, whose items may be missing."""
    from snailps.data.formats.table import raw_text

    if isinstance(texts, list):
        yield from _with_missing(list(map(raw_text, texts)), rows, what, first)
    elif texts.null_count:
        yield from _with_missing(_listed(texts), rows, what, first)
    else:
        yield from pieces_of(texts, rows=rows, what=what, first=first)


def _with_missing(texts: Sequence[Any], rows: int, what: str, first: int) -> Iterator[WholeLines]:
    """Yield pieces of texts that may be None."""
    is_missing = np.fromiter((text is None for text in texts), bool, len(texts))
    if is_missing.any():
        texts = [b"" if text is None else text for text in texts]
    done = 0
    for piece in pieces_of(texts, rows=rows, what=what, first=first):
        in_piece = is_missing[done : done + piece.lines]
        yield piece._replace(missing=in_piece) if in_piece.any() else piece
        done += piece.lines


def _listed(column: Any) -> list[Any]:
    """Convert an Arrow column to a list of bytes (if it can be cast), with None for null."""
    with suppress(TypeError, ValueError, NotImplementedError):
        column = column.cast("large_binary")
    return list(column.to_pylist())


class LabelWriter:
    """Writes the labels of each line as a line or row.

    `tsv`: label, probability, label, probability, ... separated by tabs, or two `-` for a line
    without labels.  `jsonl`: an object with two lists.  `parquet`: two columns of lists.
    Probabilities are printed with enough digits to read the same float32 back.

    Raises DataError for a label that the format cannot hold.
    """

    def __init__(
        self, file: IO[bytes], labels: Sequence[bytes], form: Format, threshold: float | None
    ) -> None:
        self._file, self._threshold = file, float(np.float32(threshold or 0))
        self.has_threshold = threshold is not None
        self._labels: Any = labels
        self._write: Callable[[NDArray[np.int32], NDArray[np.float32]], None]
        self._parquet: Any = None
        self._waiting: list[Any] = []
        self.lines = 0
        if form == "parquet":
            self._begin_parquet()
        elif form == "jsonl":
            self._write, self._labels = self._write_jsonl, [json.dumps(to_text(x)) for x in labels]
        else:
            self._write, self._labels = self._write_tsv, PackedWords.of(labels)
            if odd := [label for label in labels if not {*label}.isdisjoint(b"\t\n\r")]:
                raise DataError(
                    f"label {shown_bytes(odd[0])} has a tab or the end of a line, which separate "
                    "labels and lines in --format tsv: write jsonl or parquet"
                )

    def write(self, best: NDArray[np.int32], chances: NDArray[np.float32]) -> None:
        """Write the labels of some lines, as `LabelModel.predict_arrays` returns them."""
        if len(best):
            self._write(best, chances)
            self.lines += len(best)

    def close(self) -> None:
        """Finish the file; Parquet has its metadata at the end."""
        if self._parquet is not None:
            self._write_group()
            self._parquet.close()

    def abandon(self) -> None:
        """Write nothing more, not even when pyarrow's writer is destroyed."""
        if self._parquet is not None:
            self._parquet.is_open = False

    def _write_tsv(self, best: NDArray[np.int32], chances: NDArray[np.float32]) -> None:
        self._file.write(label_lines(self._labels, best, chances, self._threshold))

    def _write_jsonl(self, best: NDArray[np.int32], chances: NDArray[np.float32]) -> None:
        for line in zip(best.tolist(), chances, strict=True):
            both = [(x, p) for x, p in zip(*line, strict=True) if x >= 0 and p >= self._threshold]
            names = ", ".join(self._labels[label] for label, _ in both)
            likely = ", ".join(str(p) for _, p in both)
            text = f'{{"labels": [{names}], "probabilities": [{likely}]}}\n'
            self._file.write(text.encode())

    def _begin_parquet(self) -> None:
        arrow = self._arrow = optional_module("pyarrow", "--format parquet", "snailps[data]")
        parquet = optional_module("pyarrow.parquet", "--format parquet", "snailps[data]")
        self._write, self._labels = self._write_parquet, label_names(arrow, self._labels)
        texts, numbers = arrow.list_(arrow.string()), arrow.list_(arrow.float32())
        self._schema = arrow.schema([("labels", texts), ("probabilities", numbers)])
        self._parquet = parquet.ParquetWriter(self._file, self._schema)

    def _write_parquet(self, best: NDArray[np.int32], chances: NDArray[np.float32]) -> None:
        table = label_table(best, chances, self._threshold, self._labels, is_flat=False)
        self._waiting.append(table.cast(self._schema))
        if sum(map(len, self._waiting)) >= ROWS_MAX:
            self._write_group()

    def _write_group(self) -> None:
        empty = self._schema.empty_table()
        self._parquet.write(self._arrow.concat_tables([empty, *self._waiting]))
        self._waiting = []


def label_files(
    model: LabelModel,
    paths: Sequence[str],
    writer: LabelWriter,
    k: int,
    *,
    column: str = "",
    threads: int = 0,
    note: Callable[[str, int | None], None] = lambda path, size: None,
) -> None:
    """Write the `k` best labels of each line of files and URLs (``-``: standard input), in order.

    A writer without a threshold gets the labels that reach those of the model.

    `note(path, None)` is called as a file is begun, then `note(path, bytes)` with the bytes of
    text labelled since the last call.
    """
    rows = ROWS_MAX // model.number_of(k)
    for path in paths:
        note(path, None)
        file = sys.stdin.buffer if path == "-" else None

        missing: deque[NDArray[np.bool_] | None] = deque()

        def noted(
            path: str = path, file: IO[bytes] | None = file, missing: deque[Any] = missing
        ) -> Iterator[WholeLines]:
            for piece in read_texts(path, column, file, rows):
                missing.append(piece.missing)
                yield piece
                note(path, len(piece.data))

        answers = model.best_of(noted(), k, threads, thresholds=not writer.has_threshold)
        for best, chances in answers:
            # `best_of` answers pieces in order, so this is the piece that `noted` put first.
            if (is_missing := missing.popleft()) is not None:
                best[is_missing], chances[is_missing] = -1, np.nan
            writer.write(best, chances)
    writer.close()
