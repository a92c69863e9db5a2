"""Data of Python libraries, read as columns: tables, arrays, lists, generators.

    data of any library -> native -> the same in a library that is known here; whole: in memory
    DataFrame, Table, dict of lists -> table_of -> DataTable: columns by name, each a LibraryColumn
    data, column -> elements_of -> Elements(values, count, name), a stream

Owns how each library's columns are read fast: a piece at a time, by its own conversion.  Calls only
methods of the objects, so no library is imported for its users' data; pyarrow is, where an object
offers itself as Arrow data.  Must not know files.
"""

from __future__ import annotations

import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.dataclass import dataclass
from snailps.errors import ConfigError, DataError, SnailError
from snailps.files.extras import optional_module

NUMBERS = (int, float, np.integer, np.floating, np.bool_, Decimal)
"""Types of numbers and truth values in Python and NumPy."""
ARROW_NUMBER = re.compile(r"u?int[0-9]+|halffloat|float|double|bool|decimal[0-9]*\(.*\)")
_ARROW_RUNS = re.compile(r"run_end_encoded<")
ARROW_CODES = re.compile(r"dictionary<values=u?(int|float|double|bool).*")
_ARROW_TEXT = ("string", "large_string", "string_view", "binary", "large_binary")
PIECE = 1 << 14
"""Elements converted at a time."""
_BATCH = 1024
"""Rows that a Hugging Face dataset is asked for at a time."""


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements in order, to be iterated over once; `count` is None if unknown.

    Messages call the whole `name` (``a list of 12 elements``, ``column 'text' of a DataFrame``),
    and one element `row` (``element``, ``row``).  The first one is number `first`: 1 for rows of
    files, as for lines; 0 in memory, as an index has it.
    """

    values: Iterable[Any]
    count: int | None
    name: str
    row: str = "element"
    digits: int = 53
    """Bits of the significand of its floats: they cannot hold every larger whole number."""
    first: int = 0

    def at(self, number: int) -> str:
        """Words for an element, counted from 0, for messages."""
        return f"{self.row} {self.first + number:,} of {self.name}"


_DIGITS = {"bfloat16": 8, "float16": 11, "halffloat": 11, "float32": 24, "float": 24}
"""Bits of a float type's significand, by the name in NumPy, pyarrow or PyTorch, in lower case."""


def digits_of(data: Any) -> int:
    """Bits of the significand of the floats in an array, column or scalar; 53 for other types."""
    dtype = getattr(data, "dtype", None) or getattr(data, "type", None)
    if isinstance(dtype, np.dtype):
        dtype = dtype.name
    name = str(dtype).lower().removesuffix("[pyarrow]").removeprefix("torch.")
    return _DIGITS.get(name, 53)


def elements_of(data: Any, column: str = "", *, what: str = "the data") -> Elements:
    """The elements of any container, as a stream.

    Parameters
    ----------
    data : object
        A list, tuple, range, generator or other iterable; a NumPy array; a Series or DataFrame of
        pandas or polars; an Array, ChunkedArray, Table, RecordBatch, RecordBatchReader or Dataset
        of pyarrow; a Hugging Face dataset, streamed or not; a dict of columns; what `native` makes
        one of these.
    column : str
        Column of a table; may be left out if there is only one.
    what : str
        What the caller calls the data, for messages.

    Raises
    ------
    DataError
        A path or a single text, data without order, or no such column.
    """
    data = native(data, what)
    if isinstance(data, (str, os.PathLike)):
        raise DataError(
            f"{what}: expected a list or the like, got the {_kind(data)} {str(data)!r:.60}, which "
            "would be the path of a file. Put text into a list: [text]"
        )
    if isinstance(data, (bytes, bytearray, memoryview)):
        raise DataError(f"{what}: expected a list of texts, got {a_kind(data)}: put it into a list")
    if (table := table_of(data)) is not None:
        name = _only(table.columns, column, a_kind(data), what)
        chosen = table.column(name)
        of_column = f"column {name!r} of a {_kind(data)}"
        return Elements(_sliced(chosen), len(chosen), of_column, "row", digits_of(chosen.data))
    library = library_of(data)
    reader = _COLUMNS.get(library)
    if reader is not None and hasattr(data, reader.mark):
        _no_column(column, a_kind(data), what)
        of_data = f"{a_kind(data)} of {len(data):,}"
        return Elements(_sliced(reader(data)), len(data), of_data, "row", digits_of(data))
    if library == "numpy" and hasattr(data, "dtype") and hasattr(data, "tolist"):
        return _of_numpy(data, column, what)
    if is_stream(data):
        name = _only(list(data.schema.names), column, a_kind(data), what)
        reader = data.scanner(columns=[name]).to_reader() if hasattr(data, "scanner") else data
        values = (value for batch in reader for value in _sliced(_ArrowColumn(batch.column(name))))
        return Elements(values, None, f"column {name!r} of {a_kind(data)}", "row")
    if library == "datasets" and (isinstance(data, Mapping) or hasattr(data, "iter")):
        return _of_datasets(data, column, what)
    if isinstance(data, Mapping):
        name = _column(list(data), column, "a dict of columns", what)
        inner = elements_of(data[name], what=what)
        of_dict = f"column {name!r} of a dict"
        return Elements(inner.values, inner.count, of_dict, "row", inner.digits)
    if isinstance(data, Set):
        raise DataError(f"{what}: expected elements in order, got {a_kind(data)}: give a list")
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
    return Elements(values, count, name, digits=digits_of(data))


def a_kind(value: object) -> str:
    """The type of a value with an article, for messages: ``a list``, ``an int``."""
    kind = type(value).__name__
    return f"{'an' if kind[:1].lower() in 'aeio' else 'a'} {kind}"


def is_missing(value: Any) -> bool:
    """Whether a value is missing: None, a float NaN, pandas' NA or NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value


def refuse_masked(data: Any, what: str) -> None:
    """DataError: a masked array (`numpy.ma`) that hides elements.

    NumPy's functions, and the loops in C, would read what is hidden.
    """
    if type(data) is np.ndarray or not isinstance(data, np.ndarray):
        return
    if np.any(hidden := getattr(data, "mask", False)):
        raise DataError(
            f"{what}: expected an array without hidden elements, got a masked one that hides "
            f"{np.count_nonzero(hidden):,}: give filled(value), or leave such rows out"
        )


_BUILT_IN = (
    str, bytes, bytearray, memoryview, os.PathLike, list, tuple, range, Mapping, Set,
)  # fmt: skip
_PLAIN = frozenset((str, bytes, list, tuple, np.ndarray))
"""Types of most calls.  A predict of one text would spend a tenth of its time on asking them what
they offer."""
_NAMES = ("columns", "column_names", "__dataframe__")
"""Attributes of objects that have columns by name."""
_AT_ONCE = ("__getitem__", "__array__", "__dataframe__")
"""Attributes of objects that can be read otherwise than by iterating."""


def native(data: Any, what: str = "X") -> Any:
    """Convert a table of another library to one that is known here; return other data unchanged.

    By the first thing that its type offers: ``to_native`` (narwhals); a computation (Dask, polars'
    LazyFrame); an Arrow stream or array (duckdb, ibis, arro3, nanoarrow, ...); ``to_pandas``.
    DataError: a table that offers none of these.  NumPy would read its columns by place, whatever
    they are called, and the model would learn from the wrong ones.
    """
    if isinstance(data, _BUILT_IN):
        return data
    kind, library = type(data), library_of(data)
    if library == "polars" and hasattr(kind, "collect"):
        return _converted(data, data.collect, what)
    if library:
        return data
    if hasattr(kind, "to_native"):
        return native(data.to_native(), what)
    if hasattr(kind, "__dask_graph__") and data.__dask_graph__() is not None:
        return native(_converted(data, data.compute, what), what)
    if hasattr(kind, "__arrow_c_stream__") or hasattr(kind, "__arrow_c_array__"):
        return _converted(data, lambda: _of_arrow(data), what)
    if hasattr(kind, "to_pandas"):
        return _converted(data, data.to_pandas, what)
    is_named = any(hasattr(kind, name) or name in getattr(data, "__dict__", ()) for name in _NAMES)
    # A user's class that can only be iterated over gives rows, whatever attributes it has.
    only_rows = hasattr(kind, "__iter__") and not any(hasattr(kind, name) for name in _AT_ONCE)
    if is_named and not only_rows:
        raise DataError(
            f"{what}: {a_kind(data)} (of {kind.__module__}) is a table of an unknown library, and "
            "has neither __arrow_c_stream__ nor to_pandas: give a DataFrame of pandas or polars, "
            "or a pyarrow.Table"
        )
    return data


def whole(data: Any, what: str = "X") -> Any:
    """`native` data in memory: readers and datasets of tables are read to their end."""
    if type(data) in _PLAIN:
        return data
    data = native(data, what)
    # A column of a Hugging Face dataset is a sequence, and already one of values.
    if library_of(data) == "datasets" and not isinstance(data, Sequence):
        return arrow_of(data)
    if not is_stream(data):
        return data
    return _converted(data, getattr(data, "read_all", None) or data.to_table, what)


def is_stream(data: Any) -> bool:
    """Whether data is a RecordBatchReader or Dataset of pyarrow: its rows are still to be read."""
    return library_of(data) == "pyarrow" and (
        hasattr(data, "read_next_batch") or (hasattr(data, "to_table") and hasattr(data, "schema"))
    )


def column_of(data: Any, what: str, *, keep_codes: bool = False) -> Any:
    """`whole` data that is meant to be one column, `decoded` unless `keep_codes`.

    If conversion made a table of it, the only column of the table; DataError if it has several.
    """
    converted = whole(data, what)
    table = None if converted is data else table_of(converted)
    if table is not None:
        converted = table.column(_only(table.columns, "", a_kind(data), what)).data
    return converted if keep_codes else decoded(converted)


def decoded(column: Any) -> Any:
    """An Arrow column in which each row has its own value, in place of a code or a run.

    pyarrow's own conversion to NumPy gives a null among codes the dictionary's last value, and has
    none for runs.  A Table gets such columns; data that is none is returned unchanged.
    """
    kind = str(getattr(column, "type", ""))
    is_arrow = library_of(column) == "pyarrow"
    if is_arrow and hasattr(column, "column_names"):
        return column.from_arrays([*map(decoded, column.columns)], names=column.column_names)
    if is_arrow and kind.startswith("dictionary<"):
        arrow = optional_module("pyarrow", "reading codes", "pyarrow")
        try:
            return column.cast(column.type.value_type)
        except arrow.ArrowException:  # pyarrow cannot cast codes of views
            return arrow.array(column.to_pylist(), column.type.value_type)
    if is_arrow and kind.startswith("run_end_encoded<"):
        compute = optional_module("pyarrow.compute", "reading runs", "pyarrow")
        return decoded(compute.run_end_decode(column))
    return column


def _of_arrow(data: Any) -> Any:
    """An object that offers an Arrow stream or array, as a Table, or a ChunkedArray if a column."""
    try:
        arrow = optional_module("pyarrow", f"reading {a_kind(data)}", "snailps[data]")
    except ConfigError:
        if not hasattr(type(data), "to_pandas"):
            raise
        return data.to_pandas()
    array = arrow.chunked_array(data)
    return arrow.Table.from_struct_array(array) if arrow.types.is_struct(array.type) else array


def _converted(data: Any, convert: Callable[[], Any], what: str) -> Any:
    """The result of a library's own conversion; any error of it becomes DataError."""
    try:
        return convert()
    except SnailError:
        raise
    except Exception as error:
        raise DataError(
            f"{what}: {a_kind(data)} cannot be read: {type(error).__name__}: {error}"
        ) from error


def library_of(data: Any) -> str:
    """The known library that an object's class, or a base class, belongs to; empty: none."""
    names = (cls.__module__.partition(".")[0] for cls in type(data).__mro__)
    return next((name for name in names if name in _LIBRARIES), "")


class LibraryColumn(ABC):
    """A column of some library, which converts ranges of rows to Python values or to an array."""

    mark = ""
    """An attribute by which a column of the library is recognised."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    @abstractmethod
    def is_numeric(self) -> bool:
        """Whether the column has numbers or truth values."""

    def has_codes(self) -> bool:
        """Whether its type says that its numbers are categories."""
        return False

    def is_null(self) -> bool:
        """Whether it has neither values nor a type that would say what they are."""
        return False

    @abstractmethod
    def numbers(self, first: int, last: int) -> NDArray[Any]:
        """Rows `first` to before `last` as an array, NaN for missing values.

        If a value is no number, an array of objects, or the library's error.
        """

    @abstractmethod
    def values(self, first: int, last: int) -> list[Any]:
        """Rows `first` to before `last` as Python values, None or NaN for missing ones."""


class ListColumn(LibraryColumn):
    """A list of Python values."""

    def is_numeric(self) -> bool:
        return all(isinstance(value, NUMBERS) or is_missing(value) for value in self.data)

    def numbers(self, first: int, last: int) -> NDArray[Any]:
        numbers = [math.nan if value is None else value for value in self.data[first:last]]
        if all(isinstance(number, NUMBERS) for number in numbers):
            try:
                return np.array(numbers, np.float64)
            except OverflowError:  # integers of more than 308 digits
                return np.array([_float(number) for number in numbers], np.float64)
        return objects_of(numbers)

    def values(self, first: int, last: int) -> list[Any]:
        values: list[Any] = self.data[first:last]
        return values


class _PandasColumn(LibraryColumn):
    mark = "tolist"

    def is_numeric(self) -> bool:
        """By the type; of objects by the values.

        `pandas.read_csv` makes objects of truth values with missing ones; decimals, and what some
        databases return, are objects too.
        """
        dtype = self.data.dtype
        if dtype.name == "object":
            return _kind_of_objects(self.data) in _PANDAS_NUMBERS
        is_number = getattr(dtype, "kind", "O") in "biuf" and dtype.name != "category"
        return is_number or _is_decimal(dtype)

    def is_null(self) -> bool:
        return self.data.dtype.name == "object" and _kind_of_objects(self.data) == "empty"

    def has_codes(self) -> bool:
        dtype = self.data.dtype
        return dtype.name == "category" and dtype.categories.dtype.kind in "biuf"

    def numbers(self, first: int, last: int) -> NDArray[Any]:
        part = self.data.iloc[first:last]
        kind = _kind_of_objects(part) if part.dtype.name == "object" else ""
        if kind == "boolean":
            part = part.astype("boolean")
        elif kind in _PANDAS_NUMBERS or _is_decimal(part.dtype):
            return _floats_of(part.tolist())
        if isinstance(part.dtype, np.dtype) or getattr(part.dtype, "kind", "O") not in "biuf":
            return np.asarray(part.to_numpy())  # texts stay texts
        return np.asarray(part.to_numpy(np.float64, na_value=np.nan))

    def values(self, first: int, last: int) -> list[Any]:
        values: list[Any] = getattr(self.data, "iloc", self.data)[first:last].tolist()
        return values


_PANDAS_NUMBERS = ("boolean", "integer", "floating", "mixed-integer-float", "decimal")


def _is_decimal(dtype: Any) -> bool:
    return str(getattr(dtype, "pyarrow_dtype", "")).startswith("decimal")


def _kind_of_objects(series: Any) -> str:
    from pandas.api.types import infer_dtype

    return str(infer_dtype(series, skipna=True))


def _floats_of(values: Iterable[Any]) -> NDArray[np.float64]:
    numbers = [math.nan if is_missing(value) else _float(value) for value in values]
    return np.array(numbers, np.float64)


class _PolarsColumn(LibraryColumn):
    mark = "to_list"

    def is_numeric(self) -> bool:
        return bool(self.data.dtype.is_numeric() or str(self.data.dtype) == "Boolean")

    def is_null(self) -> bool:
        return str(self.data.dtype) == "Null"

    def numbers(self, first: int, last: int) -> NDArray[Any]:
        part = self.data.slice(first, last - first)
        if part.null_count() or part.dtype.is_decimal():
            return _floats_of(part.to_list())
        return np.asarray(part.to_numpy())

    def values(self, first: int, last: int) -> list[Any]:
        values: list[Any] = self.data.slice(first, last - first).to_list()
        return values


class _ArrowColumn(LibraryColumn):
    mark = "to_pylist"

    def is_numeric(self) -> bool:
        kind = self.data.type
        kind = kind.value_type if _ARROW_RUNS.match(str(kind)) else kind
        return bool(ARROW_NUMBER.fullmatch(str(kind)))

    def is_null(self) -> bool:
        return str(self.data.type) == "null"

    def has_codes(self) -> bool:
        return ARROW_CODES.match(str(self.data.type)) is not None

    def _array(self, first: int, last: int) -> NDArray[Any]:
        options = {} if hasattr(self.data, "chunks") else {"zero_copy_only": False}
        part = decoded(self.data.slice(first, last - first))
        return np.asarray(part.to_numpy(**options))

    def numbers(self, first: int, last: int) -> NDArray[Any]:
        array = self._array(first, last)
        if array.dtype == object:  # truth values with nulls
            return _floats_of(array)
        return array

    def values(self, first: int, last: int) -> list[Any]:
        if str(self.data.type) in _ARROW_TEXT:  # a tenth of the time of `to_pylist`
            values: list[Any] = self._array(first, last).tolist()
        else:
            values = self.data.slice(first, last - first).to_pylist()
        return values


_COLUMNS: dict[str, type[LibraryColumn]] = {
    "pandas": _PandasColumn, "polars": _PolarsColumn, "pyarrow": _ArrowColumn,
}  # fmt: skip
_LIBRARIES = (*_COLUMNS, "numpy", "scipy", "datasets")


@dataclass(frozen=True, slots=True)
class DataTable:
    """A table: column names, number of rows, and a `LibraryColumn` by name.

    Messages call it `name`.
    """

    columns: Sequence[Any]
    rows: int
    name: str
    column: Callable[[Any], LibraryColumn]


def table_of(data: Any) -> DataTable | None:
    """A DataFrame (pandas, polars), Table or RecordBatch (pyarrow) as a DataTable; None: no table.

    The only place that decides what a table in memory is.
    """
    library = library_of(data)
    if library == "pyarrow" and hasattr(data, "schema") and hasattr(data, "column"):
        names, get = list(data.schema.names), data.column
    elif library in ("pandas", "polars") and hasattr(data, "columns"):
        names, get = list(data.columns), data.__getitem__
    else:
        return None
    kind = _COLUMNS[library]
    name = f"a {_kind(data)} of {len(names):,} columns"
    return DataTable(names, len(data), name, lambda column: kind(get(column)))


def table_of_lists(columns: Mapping[Any, list[Any]], name: str) -> DataTable:
    """A table of lists of equal length; `name` is for messages."""
    rows = len(next(iter(columns.values()))) if columns else 0
    return DataTable(list(columns), rows, name, lambda column: ListColumn(columns[column]))


def arrow_of(dataset: Any) -> Any:
    """A Hugging Face `Dataset` as a pyarrow Table; most of it stays in its memory-mapped files."""
    if isinstance(dataset, Mapping):
        raise DataError(f"X: {_several_datasets(dataset)}")
    if not isinstance(dataset, Sized):
        raise DataError(
            f"X: {a_kind(dataset)} is a stream, whose columns are not known before it is read: "
            "load it without streaming, or train on its Parquet files with label_column"
        )
    sized: Any = dataset
    return sized.with_format("arrow")[:]


def _several_datasets(data: Mapping[Any, Any]) -> str:
    return f"{a_kind(data)} has several datasets: choose one of {', '.join(map(repr, data))}"


def objects_of(values: Sequence[Any]) -> NDArray[np.object_]:
    """A one-dimensional array of objects, even if all of them are lists of equal length."""
    objects = np.empty(len(values), object)
    objects[:] = values
    return objects


def _float(value: Any) -> float:
    """The nearest float; infinite beyond its range."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _of_numpy(data: Any, column: str, what: str) -> Elements:
    refuse_masked(data, what)
    if data.ndim == 0:
        raise DataError(f"{what}: expected an array with elements, got one of shape ()")
    _no_column(column, "an array", what)
    pieces = (data[begin : begin + PIECE].tolist() for begin in range(0, len(data), PIECE))
    name = f"an array of {data.dtype} and shape {data.shape}"
    return Elements(chain.from_iterable(pieces), len(data), name, digits=digits_of(data))


def _of_datasets(data: Any, column: str, what: str) -> Elements:
    """Elements of a `Dataset`, or of an `IterableDataset`, whose columns may be unknown."""
    if isinstance(data, Mapping):
        raise DataError(f"{what}: {_several_datasets(data)}")
    names = getattr(data, "column_names", None)
    if names or not column:
        column = _column(list(names or []), column, f"a {_kind(data)}", what)

    def values() -> Iterator[Any]:
        chosen = data.select_columns([column]) if hasattr(data, "select_columns") else data
        for batch in chosen.iter(batch_size=_BATCH):
            yield from _plain(batch[column])

    return Elements(values(), _length(data), f"column {column!r} of a {_kind(data)}", "row")


def _plain(values: Any) -> Iterable[Any]:
    """The Python values of a batch, whatever format the dataset was set to."""
    for convert in ("to_pylist", "to_list", "tolist"):
        if hasattr(values, convert):
            plain: Iterable[Any] = getattr(values, convert)()
            return plain
    return values if isinstance(values, Iterable) else [values]


def mapping_of(value: Any) -> Any:
    """A value, or the dict that it stands for: pyarrow and pandas give a map of Arrow as a list of
    pairs.  `DataError`: a key is there twice."""
    if not (isinstance(value, list) and value and all(map(_is_pair, value))):
        return value
    pairs = dict(value)
    if len(pairs) < len(value):
        keys = [key for key, _ in value]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise DataError(f"expected each key of a map once, got {twice!r:.60} twice")
    return pairs


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2


def _sliced(column: LibraryColumn) -> Iterator[Any]:
    """All values of a column, converted `PIECE` at a time."""
    for begin in range(0, len(column), PIECE):
        yield from column.values(begin, min(begin + PIECE, len(column)))


def _column(names: Sequence[Any], column: str, whose: str, what: str) -> Any:
    """The name of the column to read: `column`, or the only one."""
    if column != "":  # not by truth: pandas may call a column 0
        if column in names:
            return column
        raise DataError(f"{what}: {whose} has no column {column!r}; it has {shown_names(names)}")
    if len(names) == 1:
        return names[0]
    raise DataError(
        f"{what}: say which column of {whose} to read, column=...; it has {shown_names(names)}"
    )


def _only(names: Sequence[Any], column: str, whose: str, what: str) -> Any:
    """`_column`; DataError if several columns have that name."""
    name = _column(names, column, whose, what)
    if names.count(name) > 1:
        raise DataError(f"{what}: {whose} has several columns {name!r}: rename all but one")
    return name


def _no_column(column: str, whose: str, what: str) -> None:
    """DataError: a column is named of data that has none."""
    if column:
        raise DataError(
            f"{what}: column={column!r} names a column of a table, but {whose} has none"
        )


def _length(data: Any) -> int | None:
    try:
        return len(data) if isinstance(data, Sized) else None
    except TypeError:  # has __len__, which refuses: a streamed dataset, say
        return None


def _kind(value: object) -> str:
    return type(value).__name__


def shown_names(names: Sequence[Any]) -> str:
    """Up to eight names for a message, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:8])
    return (shown or "none") + (f" and {len(names) - 8} more" if len(names) > 8 else "")
