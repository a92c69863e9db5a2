"""Tables in memory of libraries that are not known here: one door, by name, for all data.

Stand-ins offer what the libraries do: Arrow's stream (duckdb, ibis, nanoarrow) or array (arro3), a
frame inside (narwhals), a graph to compute (Dask), `to_pandas`.  The libraries themselves are tried
where they are installed.
"""

import contextlib
import warnings
from pathlib import Path

import numpy as np
import pytest
from door import fit_here, of_fit

import snailps
from snailps import write_matrix
from snailps.data.columns import ColumnKind, columns_of
from snailps.data.elements import elements_of, is_missing, native, table_of, whole
from snailps.data.example_files import example_files
from snailps.data.matrices import matrix_of
from snailps.data.matrix_sources import rows_source
from snailps.data.name_rows import NameRows
from snailps.data.spool import spool_text
from snailps.data.table_files import complete, label_kind, read_rows
from snailps.errors import DataError
from snailps.estimators.validation import labels_of, targets_of, weights_of
from snailps.vectors.texts import pieces_of

pa, pd, pl = (pytest.importorskip(name) for name in ("pyarrow", "pandas", "polars"))
dataset = pytest.importorskip("pyarrow.dataset").dataset
WORDS = ["north wind", "south", "east wind", "west"]
NUMBERS = {"b": [1.0, 2.0, 3.0, 4.0], "a": [5, 6, 7, 8]}
TABLE = pa.table({"text": WORDS, **NUMBERS})


class Stream:
    """As duckdb's relations and ibis' tables: Arrow's stream, made anew each time."""

    def __init__(self, table):
        self.table, self.asked = table, 0

    @property
    def columns(self):
        return self.table.column_names

    def __arrow_c_stream__(self, requested_schema=None):
        self.asked += 1
        return self.table.__arrow_c_stream__(requested_schema)

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("NumPy was asked")

    def __getattr__(self, name):  # a column, as of ibis
        raise AttributeError(name)


class Array:
    """As arro3's: Arrow's array of one piece."""

    def __init__(self, data):
        self.data = data

    def __arrow_c_array__(self, requested_schema=None):
        return self.data.__arrow_c_array__(requested_schema)


class Wrapped:
    """As narwhals': a frame of another library within."""

    def __init__(self, frame):
        self.frame, self.columns = frame, list(frame.columns)

    def to_native(self):
        return self.frame

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("NumPy was asked")


class Graph:
    """As Dask's: computed when it is asked; NumPy and iterators get the names of its columns."""

    def __init__(self, frame):
        self.frame, self.columns = frame, list(frame.columns)

    def __dask_graph__(self):
        return {}

    def compute(self):
        return self.frame

    def __iter__(self):
        return iter(self.columns)


class Pandas:
    def __init__(self, frame):
        self.frame = frame

    def to_pandas(self):
        return self.frame


class NoGraph(Pandas):
    """As xarray's: it may have a graph to compute, and has none."""

    def __dask_graph__(self):
        return None


class Unknown:
    """A table that offers nothing but NumPy's array."""

    columns = ("a", "b")

    def __array__(self, dtype=None, copy=None):
        return np.ones((4, 2))

    def __len__(self):
        return 4


def forms(table):
    frame = table.to_pandas()
    found = {
        "stream": Stream(table),
        "array": Array(table.to_batches()[0]),
        "reader": table.to_reader(),
        "dataset": dataset(table),
        "narwhals of polars": Wrapped(pl.from_arrow(table)),
        "narwhals of a stream": Wrapped(Stream(table)),
        "graph": Graph(frame),
        "no graph": NoGraph(frame),
        "pandas": Pandas(frame),
        "lazy polars": pl.from_arrow(table).lazy(),
    }
    with contextlib.suppress(ImportError):
        import narwhals

        found["narwhals"] = narwhals.from_native(pl.from_arrow(table))
    with contextlib.suppress(ImportError):
        import duckdb

        found["duckdb"] = duckdb.from_arrow(table)
    with contextlib.suppress(ImportError):
        import dask.dataframe

        found["dask"] = dask.dataframe.from_pandas(frame, npartitions=2)
    with contextlib.suppress(ImportError):
        import ibis

        found["ibis"] = ibis.memtable(frame)
    return found


FORMS = [*forms(TABLE)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Fitted on columns b, a."""
    with pytest.MonkeyPatch.context() as patch:
        fit_here(patch, tmp_path_factory.mktemp("model"))
        kind = snailps.LogisticRegression(verbose=False)
        return kind.fit(TABLE.select(["b", "a"]).to_pandas(), [0, 1, 0, 1])


def values_of(matrix):
    matrix.source.write_as(dense=True)
    (piece,) = matrix.source.pieces()
    return piece.values.reshape(matrix.rows, matrix.columns).tolist()


@pytest.mark.parametrize("form", FORMS)
def test_columns_are_known_by_name(form, model):
    numbers = TABLE.select(["b", "a"])
    matrix = matrix_of(forms(numbers)[form], numeric=True)
    assert matrix.names.tolist() == ["b", "a"]
    assert values_of(matrix) == [[1, 5], [2, 6], [3, 7], [4, 8]]
    assert matrix_of(forms(TABLE)[form], numeric=False).by_name  # it has texts
    assert list(elements_of(forms(TABLE)[form], "text").values) == WORDS
    with spool_text(forms(TABLE.select(["text"]))[form]) as spooled:
        assert Path(spooled.path).read_text().split("\n")[:-1] == WORDS
    (piece,) = NameRows(forms(TABLE)[form], ("user", "item"), "b", valued=True).pieces()
    assert (piece.names, piece.values.tolist()) == ([WORDS, ["5", "6", "7", "8"]], [1, 2, 3, 4])
    right = model.predict_proba(numbers.to_pandas())
    np.testing.assert_array_equal(model.predict_proba(forms(numbers)[form]), right)
    with pytest.raises(DataError, match="feature names should match"):
        model.predict(forms(TABLE.select(["a", "b"]))[form])


@pytest.mark.parametrize("form", FORMS)
def test_column_is_read_where_one_is_expected(form):
    """As labels, numbers to learn, weights, texts; a table has to have just one."""
    one = TABLE.select(["b"])
    assert targets_of(forms(one)[form], "X").tolist() == [1, 2, 3, 4]
    assert labels_of(forms(one)[form], "X")[0].tolist() == [1, 2, 3, 4]
    assert weights_of(forms(one)[form], 4).tolist() == [1, 2, 3, 4]
    texts = forms(TABLE.select(["text"]))[form]
    assert b"".join(bytes(piece.data) for piece in pieces_of(texts)).replace(b"\n", b"") == (
        "".join(WORDS).encode()
    )
    with pytest.raises(DataError, match=r"y: say which column of an? .* it has 'text', 'b', 'a'"):
        labels_of(forms(TABLE)[form], "X")


def coded(values):
    """Columns of these values as codes of a dictionary, or as runs, in pyarrow, pandas, polars."""
    plain, compute = pa.array(values), pytest.importorskip("pyarrow.compute")
    codes, distinct = plain.dictionary_encode(), plain.unique()
    places = distinct.to_pylist()
    null_inside = pa.DictionaryArray.from_arrays([places.index(v) for v in values], distinct)
    yield from (codes, null_inside, compute.run_end_encode(plain))
    for column in (codes, null_inside, compute.run_end_encode(plain)):
        yield pa.chunked_array([column])
    yield pa.chunked_array([codes[:1], codes[1:]])
    yield from (pd.Series(values, dtype="category"), pd.Categorical(values))
    yield pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([codes])))
    if isinstance(values[0], str):
        views = pa.DictionaryArray.from_arrays(codes.indices, codes.dictionary.cast("string_view"))
        yield pa.chunked_array([views])
        yield from (
            pl.Series(values, dtype=kind) for kind in (pl.Categorical, pl.Enum(places[::2]))
        )


def test_null_among_codes_is_missing(tmp_path):
    """pyarrow's `ChunkedArray.to_numpy` gives it the dictionary's last value."""
    names, numbers = ["a", None, "b", "b"], [1.5, None, 2.0, 2.0]
    for column in coded(names):
        with pytest.raises(DataError, match="is missing"):
            labels_of(column, "X")
        with pytest.raises(DataError, match=r"no text|expected a line of text"):
            list(pieces_of(column))
        assert [None if is_missing(v) else v for v in elements_of(column).values] == names
    for column in coded(numbers):
        for read in (lambda y: labels_of(y, "X"), lambda y: targets_of(y, "X"),
                     lambda w: weights_of(w, 4)):  # fmt: skip
            with pytest.raises(DataError):
                read(column)
        for options in ({"y": column}, {"y": [0, 1, 0, 1], "sample_weight": column}):
            with pytest.raises(DataError):
                write_matrix(tmp_path / "m", np.eye(4), **options)
    for column in (pa.array(numbers), *coded(numbers)):
        if "pyarrow" in type(column).__module__:
            table = table_of(pa.table({"n": column}))
            found = table.column("n").numbers(0, 4)
            np.testing.assert_array_equal(found, [1.5, np.nan, 2.0, 2.0])
            # scikit-learn's warning of a table as y comes where a test before has loaded it.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with pytest.raises(DataError, match="contains NaN"):
                    targets_of(pa.table({"n": column}), "X")


def test_columns_of_other_libraries_are_columns():
    column = TABLE["text"]
    for data in (Stream(column), Array(column.chunk(0)), Pandas(column.to_pandas())):
        assert list(elements_of(data).values) == WORDS
    numbers = Array(TABLE["b"].combine_chunks())
    assert targets_of(numbers, "X").tolist() == weights_of(numbers, 4).tolist() == [1, 2, 3, 4]


def test_stream_is_asked_for_once_where_two_columns_of_it_are_read(monkeypatch, tmp_path):
    """What is computed twice may come in another order."""
    table = pa.table({"text": WORDS * 9, "label": ["n", "s", "e", "w"] * 9})
    kind, data = snailps.TextClassifier(dim=4), Stream(table)
    expected = of_fit(monkeypatch, tmp_path, kind, WORDS * 9, table["label"])
    assert of_fit(monkeypatch, tmp_path, kind, data, "label", column="text") == expected
    assert data.asked == 1
    assert (
        of_fit(monkeypatch, tmp_path, kind, table.to_reader(), "label", column="text") == expected
    )
    fit_here(monkeypatch, tmp_path)
    model = kind.fit(table, "label", column="text")
    assert 0 <= model.score(data, "label") <= 1
    assert data.asked == 2
    assert model.predict(data).tolist() == model.predict(WORDS * 9).tolist()


def test_unknown_table_is_refused_by_its_type():
    """NumPy would take its columns by place."""
    refused = r"Unknown \(of .*test_foreign_tables\) is a table of an unknown library"
    for read in (
        lambda: matrix_of(Unknown(), numeric=True),
        lambda: elements_of(Unknown()),
        lambda: labels_of(Unknown(), "X"),
        lambda: weights_of(Unknown(), 4),
        lambda: write_matrix("nowhere", Unknown()),
    ):
        with pytest.raises(DataError, match=refused):
            read()
    with pytest.raises(
        DataError, match=r"X: expected one table, got a list of 1, .* a RecordBatch: .*from_batch"
    ):
        matrix_of(list(TABLE.to_reader()), numeric=True)
    for nothing in (object(), None, {"a": [1]}):
        with pytest.raises(DataError, match=r"X: expected a matrix, .*got an? "):
            matrix_of(nothing, numeric=True)


def test_what_can_only_be_iterated_over_is_no_table():
    class Corpus:
        """A reader of texts with an attribute of that name."""

        def __init__(self):
            self.columns = ("text",)

        def __iter__(self):
            return iter(("a b", "c"))

    assert list(elements_of(Corpus()).values) == ["a b", "c"]


def test_what_numpy_defines_is_an_array():
    class Tensor:
        """As of PyTorch: an array of another library, without names."""

        def __array__(self, dtype=None, copy=None):
            return np.arange(6.0).reshape(3, 2)

    for data in (Tensor(), [[0, 1], [2, 3], [4, 5]]):
        assert native(data) is data
        assert values_of(matrix_of(data, numeric=True)) == [[0, 1], [2, 3], [4, 5]]


def test_errors_of_a_library_name_its_type():
    class Broken(Stream):
        def __arrow_c_stream__(self, requested_schema=None):
            raise RuntimeError("the connection is closed")

    refused = "X: a Broken cannot be read: RuntimeError: the connection is closed"
    with pytest.raises(DataError, match=refused):
        matrix_of(Broken(TABLE), numeric=True)


def test_known_tables_are_not_copied():
    for data in (TABLE, TABLE.to_pandas(), pl.from_arrow(TABLE), np.ones(3), TABLE["b"]):
        assert whole(data) is data
    assert table_of(whole(Stream(TABLE))).columns == ["text", "b", "a"]


@pytest.mark.parametrize(
    "values", [[3, 1, None, 3], [2.5, 1.0, None, 2.5], [True, False, None, True]]
)
def test_categories_of_numbers_are_categories_in_memory_and_in_files(tmp_path, values):
    """The same keys: in pandas, pyarrow, Parquet, Feather and Arrow; beside a column of numbers."""
    frame = pd.DataFrame({"c": pd.Categorical(values), "n": [1, 2, 3, 4]})
    table = pa.Table.from_pandas(frame, preserve_index=False)
    frame.to_parquet(tmp_path / "pandas.parquet")
    frame.to_feather(tmp_path / "pandas.feather")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(table.replace_schema_metadata(None), tmp_path / "arrow.parquet")
    # As fastparquet writes: pandas' description alone.
    plain = table.set_column(0, "c", pa.array(values)).replace_schema_metadata(None)
    path = tmp_path / "described.parquet"
    with parquet.ParquetWriter(path, plain.schema, store_schema=False) as out:
        out.write_table(plain)
        out.add_key_value_metadata({"pandas": table.schema.metadata[b"pandas"].decode()})
    with (
        pa.OSFile(str(tmp_path / "x.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as o,
    ):
        o.write_table(table)
    entries = []
    for data in (frame, table):
        matrix = rows_source(data)
        (piece,) = matrix.pieces()
        entries.append((piece.keys.tolist(), piece.values.tolist(), piece.ptr.tolist()))
    for path in sorted(tmp_path.iterdir()):
        declared = complete([str(path)], [], "")
        assert declared == ("c:categorical", "n:numeric"), path
        columns = columns_of(declared, needs_label=False)
        ((piece, _),) = read_rows(str(path), columns)
        entries.append((piece.keys.tolist(), piece.values.tolist(), piece.ptr.tolist()))
    assert len(entries) == 7
    assert all(found == entries[0] for found in entries), entries


@pytest.mark.parametrize("ending", ["parquet", "feather"])
def test_label_of_categories_of_numbers_is_its_number(tmp_path, ending):
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "y": pd.Categorical([7, 9, 7, 9])})
    path = str(tmp_path / f"a.{ending}")
    getattr(frame, f"to_{ending}")(path)
    assert label_kind([path], "y") is ColumnKind.NUMERIC
    examples = example_files([path], label="y")
    list(examples.pieces())
    assert examples.labels().tolist() == [7, 9, 7, 9]
