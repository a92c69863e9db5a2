"""Python data as a stream of elements: lists, arrays, columns of tables, generators.

    data, column -> elements_of -> Elements(values, count, name)

Owns the fast way to read each library's containers: a piece at a time, by its own conversion.
Imports no library: only an object of a library has its methods called.  No text, no files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set, Sized
from dataclasses import dataclass
from typing import Any

from snailps.errors import DataError

PIECE = 1 << 14
"""Elements converted together."""
_BATCH = 1024


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements in order, once; `count` is None if unknown.

    Messages call the whole `name` (``a list of 12 elements``, ``column 'text' of a DataFrame``) and
    one of them `row` (``element``, ``row``).
    """

    values: Iterable[Any]
    count: int | None
    name: str
    row: str = "element"

    def at(self, number: int) -> str:
        return f"{self.row} {number:,} of {self.name}"


def elements_of(data: Any, column: str = "", *, what: str = "the data") -> Elements:
    """Read any container; `column` selects one of a table with several, `what` is for messages.

    Takes lists, tuples, ranges, generators and other iterables; NumPy arrays; Series and DataFrames
    of pandas and polars; Arrays, ChunkedArrays, Tables, RecordBatches and RecordBatchReaders of
    pyarrow; Hugging Face's datasets, streamed or not; dicts of columns.
    """
    if isinstance(data, (str, os.PathLike)):
        raise DataError(
            f"{what}: expected a list or the like, got the {_kind(data)} {str(data)!r:.60}, "
            "which is taken as the path of a file. Put text into a list: [text]"
        )
    if isinstance(data, (bytes, bytearray, memoryview)):
        raise DataError(f"{what}: expected a list of texts, got {a_kind(data)}: put it into a list")
    library = type(data).__module__.partition(".")[0]
    reader = _LIBRARIES.get(library)
    found = reader(data, column, what) if reader is not None else None
    if found is not None:
        return found
    if isinstance(data, Mapping):
        name = _column(list(data), column, "a dict of columns", what)
        inner = elements_of(data[name], what=what)
        return Elements(inner.values, inner.count, f"column {name!r} of a dict", "row")
    if isinstance(data, Set):
        raise DataError(f"{what}: {a_kind(data)} has no order: give a list")
    if column:
        raise DataError(
            f"{what}: column={column!r} names a column of a table, but {a_kind(data)} has none"
        )
    try:
        values = iter(data)
    except TypeError:
        raise DataError(
            f"{what}: expected a list, an array, a column or a generator, got {a_kind(data)}"
        ) from None
    count = _length(data)
    name = a_kind(data) + ("" if count is None else f" of {count:,}")
    return Elements(values, count, name)


def a_kind(value: object) -> str:
    """The type of a value with its article, for messages: ``a list``, ``an int``."""
    kind = type(value).__name__
    return f"{'an' if kind[:1].lower() in 'aeio' else 'a'} {kind}"


def is_missing(value: Any) -> bool:
    """Whether a value is None, a float NaN, or pandas' NA or NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value


def _of_numpy(data: Any, column: str, what: str) -> Elements | None:
    if not hasattr(data, "dtype") or not hasattr(data, "tolist"):
        return None
    if data.ndim == 0:
        raise DataError(f"{what}: expected an array with elements, got one of shape ()")
    _no_column(column, "an array", what)
    name = f"an array of {data.dtype} and shape {data.shape}"
    return Elements(_sliced(len(data), lambda a, b: data[a:b].tolist()), len(data), name)


def _of_pandas(data: Any, column: str, what: str) -> Elements | None:
    if hasattr(data, "columns"):
        name = _column(list(data.columns), column, "a DataFrame", what)
        chosen = data[name]
        if hasattr(chosen, "columns"):
            raise DataError(f"{what}: the DataFrame has several columns {name!r}")
        return _renamed(_of_pandas(chosen, "", what), name, "a DataFrame")
    if not hasattr(data, "tolist"):
        return None
    _no_column(column, f"a {_kind(data)}", what)
    rows = getattr(data, "iloc", data)
    values = _sliced(len(data), lambda a, b: rows[a:b].tolist())
    return Elements(values, len(data), f"a {_kind(data)} of {len(data):,}", "row")


def _of_polars(data: Any, column: str, what: str) -> Elements | None:
    if hasattr(data, "collect"):
        raise DataError(f"{what}: a LazyFrame has no rows yet: call its collect()")
    if hasattr(data, "columns"):
        name = _column(list(data.columns), column, "a DataFrame", what)
        return _renamed(_of_polars(data[name], "", what), name, "a DataFrame")
    if not hasattr(data, "to_list"):
        return None
    _no_column(column, "a Series", what)
    values = _sliced(len(data), lambda a, b: data.slice(a, b - a).to_list())
    return Elements(values, len(data), f"a Series of {len(data):,}", "row")


def _of_pyarrow(data: Any, column: str, what: str) -> Elements | None:
    if hasattr(data, "schema") and hasattr(data, "read_next_batch"):
        name = _column(list(data.schema.names), column, "a RecordBatchReader", what)
        values = (value for batch in data for value in _arrow_values(batch.column(name)))
        return Elements(values, None, f"column {name!r} of a RecordBatchReader", "row")
    if hasattr(data, "schema") and hasattr(data, "column"):
        name = _column(list(data.schema.names), column, f"a {_kind(data)}", what)
        return _renamed(_of_pyarrow(data.column(name), "", what), name, f"a {_kind(data)}")
    chunks = getattr(data, "chunks", [data])
    if not hasattr(data, "to_pylist"):
        return None
    _no_column(column, a_kind(data), what)
    values = (value for chunk in chunks for value in _arrow_values(chunk))
    return Elements(values, len(data), f"{a_kind(data)} of {len(data):,}", "row")


def _arrow_values(array: Any) -> Iterator[Any]:
    # For strings NumPy takes a tenth of the time of `to_pylist`.
    texts = str(array.type) in ("string", "large_string", "string_view", "binary", "large_binary")

    def values(begin: int, end: int) -> Iterable[Any]:
        piece = array.slice(begin, end - begin)
        found: list[Any] = (
            piece.to_numpy(zero_copy_only=False).tolist() if texts else piece.to_pylist()
        )
        return found

    return _sliced(len(array), values)


def _of_datasets(data: Any, column: str, what: str) -> Elements | None:
    """Elements of a `Dataset`, or of an `IterableDataset`, whose columns may be unknown."""
    if isinstance(data, Mapping):
        raise DataError(
            f"{what}: {a_kind(data)} has several datasets: choose one of "
            f"{', '.join(map(repr, data))}"
        )
    if not hasattr(data, "iter"):
        return None
    names = getattr(data, "column_names", None)
    if names or not column:
        column = _column(list(names or []), column, f"a {_kind(data)}", what)

    def values() -> Iterator[Any]:
        chosen = data.select_columns([column]) if hasattr(data, "select_columns") else data
        for batch in chosen.iter(batch_size=_BATCH):
            yield from _plain(batch[column])

    return Elements(values(), _length(data), f"column {column!r} of a {_kind(data)}", "row")


def _plain(values: Any) -> Iterable[Any]:
    """Python's own values of a batch, in any format of the dataset."""
    for convert in ("to_pylist", "to_list", "tolist"):
        if hasattr(values, convert):
            found: Iterable[Any] = getattr(values, convert)()
            return found
    return values if isinstance(values, Iterable) else [values]


_LIBRARIES: dict[str, Callable[[Any, str, str], Elements | None]] = {
    "numpy": _of_numpy,
    "pandas": _of_pandas,
    "polars": _of_polars,
    "pyarrow": _of_pyarrow,
    "datasets": _of_datasets,
}


def _sliced(count: int, values: Callable[[int, int], Iterable[Any]]) -> Iterator[Any]:
    for begin in range(0, count, PIECE):
        yield from values(begin, min(begin + PIECE, count))


def _renamed(column: Elements | None, name: str, of: str) -> Elements:
    assert column is not None
    return Elements(column.values, column.count, f"column {name!r} of {of}", "row")


def _column(names: list[Any], column: str, of: str, what: str) -> Any:
    if column:
        if column in names:
            return column
        raise DataError(f"{what}: {of} has no column {column!r}; it has {_shown(names)}")
    if len(names) == 1:
        return names[0]
    raise DataError(f"{what}: say which column of {of} to read, column=...; it has {_shown(names)}")


def _no_column(column: str, of: str, what: str) -> None:
    if column:
        raise DataError(f"{what}: column={column!r} names a column of a table, but {of} has none")


def _length(data: Any) -> int | None:
    try:
        return len(data) if isinstance(data, Sized) else None
    except TypeError:  # a class whose __len__ fails
        return None


def _kind(value: object) -> str:
    return type(value).__name__


def _shown(names: list[Any]) -> str:
    shown = ", ".join(repr(name) for name in names[:8])
    return (shown or "none") + (f" and {len(names) - 8} more" if len(names) > 8 else "")
