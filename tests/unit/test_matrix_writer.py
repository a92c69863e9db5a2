"""data.matrix_writer and what it reads: files of Python's matrices, tables and dicts."""

import importlib
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from test_matrix_file import rows_of

from snailps.data import feature_rows, matrix_sources, matrix_writer
from snailps.data._examples import RowReader, hash_bytes
from snailps.data.columns import ColumnKind, DeclaredColumn
from snailps.data.example_files import example_files
from snailps.data.examples import ExampleReader, examples_of
from snailps.data.feature_rows import dense_piece
from snailps.data.matrix_sources import rows_source
from snailps.data.matrix_writer import spool_matrix, spool_rows, write_matrix
from snailps.errors import DataError
from snailps.files.matrix_file import (
    Flags,
    Header,
    read_header,
    read_matrix_block,
)

FLOAT_TYPES = ["f4", "f8", "i8", "u1", "?"]


def read(path, **options):
    return ExampleReader(**options).read(path.read_bytes(), str(path))


def header_of(path):
    data = path.read_bytes()
    return read_header(data, len(data), str(path))


def matrix(rows, columns, seed=0, type_="f8", index="i4"):
    rng = np.random.default_rng(seed)
    found = sparse.random(rows, columns, 0.3, "csr", random_state=rng)
    found.data = np.ceil(found.data * 5).astype(type_)
    found.indices, found.indptr = found.indices.astype(index), found.indptr.astype(index)
    return found


def expected_rows(csr, labels, fields=None):
    """What a file of a CSR matrix has to have, row by row."""
    found = []
    for row in range(csr.shape[0]):
        a, b = csr.indptr[row], csr.indptr[row + 1]
        keys = csr.indices[a:b].tolist()
        own = [0] * len(keys) if fields is None else [fields[key] for key in keys]
        values = csr.data[a:b].astype(np.float32).tolist()
        found.append((float(labels[row]), keys, values, own))
    return found


# --- matrices ------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", FLOAT_TYPES)
@pytest.mark.parametrize("index", ["i4", "i8"])
def test_csr_of_each_type_is_written_as_it_is(tmp_path, monkeypatch, type_, index):
    monkeypatch.setattr(matrix_sources, "PIECE_ENTRIES", 7)
    x, y = matrix(30, 12, type_=type_, index=index), np.arange(30) % 3
    written = write_matrix(tmp_path / "a.mx", x, y)
    assert rows_of(read(tmp_path / "a.mx")) == expected_rows(x, y)
    assert (written.units, written.entries) == (30, x.nnz)
    assert written.bytes == (tmp_path / "a.mx").stat().st_size
    assert header_of(tmp_path / "a.mx").labels == 1


@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 99), st.integers(1, 20))
def test_any_csr_comes_back(tmp_path_factory, rows, columns, seed, piece):
    path = tmp_path_factory.getbasetemp() / "any.mx"
    x, y = matrix(rows, columns, seed), np.random.default_rng(seed).normal(size=rows)
    before, matrix_sources.PIECE_ENTRIES = matrix_sources.PIECE_ENTRIES, piece
    try:
        write_matrix(path, x, y)
    finally:
        matrix_sources.PIECE_ENTRIES = before
    assert rows_of(read(path)) == expected_rows(x, y)


@pytest.mark.parametrize("kind", ["csc", "coo", "lil", "csr_array"])
def test_other_sparse_matrices_are_converted(tmp_path, kind):
    x = matrix(9, 5)
    made = sparse.csr_array(x) if kind == "csr_array" else x.asformat(kind)
    write_matrix(tmp_path / "a", made, np.ones(9))
    assert rows_of(read(tmp_path / "a")) == expected_rows(x, np.ones(9))


def test_slice_of_a_csr_with_pointers_from_elsewhere(tmp_path):
    """Pointers need not begin with 0."""
    x = matrix(10, 5)
    part = sparse.csr_matrix((4, 5))
    part.indptr, part.indices, part.data = x.indptr[3:8].copy(), x.indices, x.data
    write_matrix(tmp_path / "a", part, np.zeros(4))
    assert rows_of(read(tmp_path / "a")) == expected_rows(x[3:7], np.zeros(4))


def test_values_that_are_all_1_are_left_out(tmp_path):
    x = matrix(20, 8)
    x.data[:] = 1
    write_matrix(tmp_path / "a", x, np.ones(20))
    assert Flags.VALUES not in header_of(tmp_path / "a").flags
    assert rows_of(read(tmp_path / "a")) == expected_rows(x, np.ones(20))


def test_more_columns_than_32_bits_have_wide_keys(tmp_path):
    x = sparse.csr_matrix(
        (np.ones(1), np.array([1 << 40]), np.array([0, 1])), shape=(1, (1 << 40) + 1)
    )
    write_matrix(tmp_path / "a", x, [1])
    assert read(tmp_path / "a").keys.tolist() == [1 << 40]


def test_fields_of_columns_are_those_of_their_entries(tmp_path):
    x, fields = matrix(20, 6), [0, 0, 1, 1, 2, 5]
    write_matrix(tmp_path / "a", x, np.zeros(20), fields=fields)
    assert rows_of(read(tmp_path / "a")) == expected_rows(x, np.zeros(20), fields)


@pytest.mark.parametrize("type_", FLOAT_TYPES)
def test_array_is_written_without_its_zeros(tmp_path, type_):
    x = matrix(30, 12).toarray().astype(type_)
    write_matrix(tmp_path / "a", x, np.zeros(30))
    assert rows_of(read(tmp_path / "a")) == expected_rows(sparse.csr_matrix(x), np.zeros(30))


@pytest.mark.parametrize("type_", ["f2", "f4", ">f4", "f8", "g", "i8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_array_with_whole_and_empty_rows_is_written_as_its_csr(tmp_path, monkeypatch, type_, order):
    monkeypatch.setattr(matrix_sources, "PIECE_ENTRIES", 22)
    x = np.arange(1, 45).reshape(11, 4)
    x[[0, 3, 10]] = 0
    x[[1, 4, 4, 9], [3, 0, 2, 1]] = 0
    array = np.asarray(x, type_, order=order)
    array.flags.writeable = False
    write_matrix(tmp_path / "a", array, np.zeros(11))
    assert rows_of(read(tmp_path / "a")) == expected_rows(sparse.csr_matrix(x), np.zeros(11))


@pytest.mark.parametrize("type_", ["i8", "u8"])
def test_whole_numbers_of_an_array_are_rounded_once_as_those_of_its_csr(tmp_path, type_):
    # As float64 the first one would become a tie, which goes to the even 2^60.
    x = np.array([[(1 << 60) + (1 << 36) + 1, 0, 1], [0, (1 << 24) + 1, (1 << 62) - 1]], type_)
    write_matrix(tmp_path / "a", x, np.zeros(2))
    assert rows_of(read(tmp_path / "a")) == expected_rows(sparse.csr_matrix(x), np.zeros(2))


@pytest.mark.parametrize("type_", ["f4", "f8", "u1", "i4"])
def test_dense_array_keeps_all_values(tmp_path, monkeypatch, type_):
    monkeypatch.setattr(matrix_sources, "PIECE_ENTRIES", 11)
    x = np.arange(40).reshape(8, 5).astype(type_)
    write_matrix(tmp_path / "a", x, np.arange(8), dense=True)
    header = header_of(tmp_path / "a")
    values = header.array((tmp_path / "a").read_bytes(), "values")
    assert values.tolist() == x.ravel().tolist()
    assert values.dtype == (np.uint8 if type_ == "u1" else np.float32)


def test_file_without_labels_has_none(tmp_path):
    write_matrix(tmp_path / "a", matrix(3, 3))
    assert header_of(tmp_path / "a").labels == 0
    assert read(tmp_path / "a", needs_labels=False).labels.tolist() == [0, 0, 0]
    with pytest.raises(DataError, match="a has no labels: write the file again, with y"):
        read(tmp_path / "a")


def test_progress_tells_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(matrix_sources, "PIECE_ENTRIES", 8)
    told = []
    write_matrix(
        tmp_path / "a", np.eye(20), np.zeros(20), on_progress=lambda *one: told.append(one)
    )
    assert told[-1] == (20, 20)
    assert len(told) > 3


def test_failed_writing_leaves_the_file_that_was_there(tmp_path):
    (tmp_path / "a").write_text("mine")
    with pytest.raises(DataError):
        write_matrix(tmp_path / "a", np.full((3, 3), np.nan), np.zeros(3))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "mine"


@pytest.mark.parametrize("x", [np.eye(3), [{"a": 1}, {"b": "c", "a": 2}, {}]], ids=["known", "not"])
def test_spooled_file_is_that_which_write_matrix_writes_and_goes(tmp_path, x):
    write_matrix(tmp_path / "a", x, [1, 0, 1])
    with spool_rows(rows_source(x), [1, 0, 1], str(tmp_path / "scratch")) as spooled:
        assert Path(spooled.path).read_bytes() == (tmp_path / "a").read_bytes()
        assert (spooled.bytes, spooled.units) == ((tmp_path / "a").stat().st_size, 3)
        assert len(list((tmp_path / "scratch").glob("*.spool"))) == 1
    assert list((tmp_path / "scratch").glob("*.spool")) == []


def test_spool_matrix_takes_what_write_matrix_takes(tmp_path):
    """A name of docs/python.md."""
    x, options = np.eye(3), {"sample_weight": [1, 2, 0], "fields": [2, 0, 1]}
    write_matrix(tmp_path / "a", x, [1, 0, 1], **options)
    steps = []
    with spool_matrix(
        x, [1, 0, 1], str(tmp_path / "scratch"), on_progress=lambda *of: steps.append(of), **options
    ) as spooled:
        assert Path(spooled.path).read_bytes() == (tmp_path / "a").read_bytes()
    assert steps[-1] == (3, 3)


@pytest.mark.parametrize("x", [np.ones((40, 40)), [{"a": 1}] * 400], ids=["known", "not"])
def test_spooling_beyond_the_scratch_limit_is_refused(tmp_path, x):
    with pytest.raises(DataError, match=r"bytes of scratch are left \(scratch_bytes\) beside"):
        spool_rows(rows_source(x), np.ones(len(x)), str(tmp_path / "scratch"), bytes_max=4000)
    assert list((tmp_path / "scratch").glob("*.spool")) == []


def test_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(DataError, match=r"cannot write .*none/a: No such file"):
        write_matrix(tmp_path / "none" / "a", np.eye(3), np.zeros(3))


def broken_csr(**arrays):
    x = matrix(6, 5)
    for name, value in arrays.items():
        setattr(x, name, np.asarray(value))
    return x


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.eye(3), [1, 0], "y: expected 3 labels, as many as X has rows, got 2"),
        (np.eye(3), [1, 0, np.nan], "y: label 2 has value NaN"),
        (np.eye(3), ["a", "b", "c"], "y: expected numbers, got <U1: number the classes"),
        (np.eye(3), np.array([1, None, 2]), "y: label 1 is None: expected numbers"),
        (np.eye(3), np.ones((3, 2)), "y: expected one axis, got shape"),
        (np.zeros((0, 3)), None, "has no rows"),
        (np.ones(3), None, "expected an array of two axes, .* got shape"),
        (np.ones((3, 2, 2)), None, "expected an array of two axes"),
        (np.array([["a"]]), None, "expected numbers, got an array of <U1"),
        (np.array([[1, 2], [3, np.nan]]), None, "row 1, column 1 has value NaN"),
        (np.array([[1e39]]), None, "row 0, column 0 has value inf.*float32"),
        (np.array([[1, 0, 2], [0, 0, -np.inf]]), None, "row 1, column 2 has value -inf"),
        (matrix(3, 3).astype(complex), None, "expected numbers, got complex128"),
        (broken_csr(indptr=[0, 1, 2, 1, 3, 4, 5]), None, "row pointers"),
        (broken_csr(indptr=[0, 1, 2, 3, 4, 5, 99]), None, "row pointers end at entry 99"),
        (broken_csr(indices=np.full(20, 5, np.int32)), None, "column numbers from 0 to 4, got 5"),
        (broken_csr(indices=np.full(20, -1, np.int32)), None, "column numbers from 0 to 4, got -1"),
        (broken_csr(data=np.full(20, np.inf)), None, "X: row 0 has value inf"),
        ("clicks.svm", None, "expected a scipy.sparse matrix.*got builtins.str"),
        (iter([{}]), None, "expected a scipy.sparse matrix.*list of dicts"),
        ([1, 2], None, r"element 0 is 1 \(int\): expected a dict"),
        ([{"a": [1]}], None, r"element 0 has \[1\] \(list\) for 'a'"),
        ([{"a": 1}, {"b": 1e40}], None, r"element 1 has the value 1e\+40"),
        ([{"a": 1 + 2j}], None, r"element 0 has .1.2j. .complex. for 'a'"),
        ([{"a": 10**400}], None, "element 0 has the value inf"),
        ([{3: 1}], None, "element 0 has the name 3: expected a str"),
        ([{"a": "\ud800"}], None, "lone surrogate"),
        ([], None, "has no rows"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_what_are_no_examples_is_refused_and_told(tmp_path, x, y, message):
    with pytest.raises(DataError, match=message):
        write_matrix(tmp_path / "a", x, y)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": [0, 1]}, "fields: expected a number from 0 on for each of 3 columns"),
        ({"fields": [0, 1, -1]}, "fields: expected a number from 0 on"),
        ({"fields": [0, 1, 1 << 31]}, "below 2.31"),
        ({"label": "y"}, "label: .* has no column names"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, options, message):
    with pytest.raises(DataError, match=message):
        write_matrix(tmp_path / "a", np.eye(3), **options)


# --- names ---------------------------------------------------------------------------------------

CSV = "1,31,Berlin,0\n0,,Łódź,2.5\n1,44.5,,-3\n0,0,Berlin,\n"
COLUMNS = "clicked:label, age:numeric, city:categorical, score:numeric"


def table(kind):
    """The same as `CSV`."""
    module = importlib.import_module(kind)
    columns = {
        "clicked": [1, 0, 1, 0],
        "age": [31.0, None, 44.5, 0.0],
        "city": ["Berlin", "Łódź", None, "Berlin"],
        "score": [0.0, 2.5, -3.0, None],
    }
    return module.table(columns) if kind == "pyarrow" else module.DataFrame(columns)


@pytest.mark.parametrize("hash_bits", [0, 10])
@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_table_becomes_what_its_csv_becomes(tmp_path, monkeypatch, kind, hash_bits):
    monkeypatch.setattr(feature_rows, "PIECE_CELLS", 7)
    written = write_matrix(tmp_path / "a", table(kind), label="clicked")
    text = ExampleReader("csv", columns=COLUMNS, hash_bits=hash_bits).read(CSV.encode())
    assert rows_of(read(tmp_path / "a", hash_bits=hash_bits)) == rows_of(text)
    assert (written.units, written.entries) == (4, len(text.keys))


class FakeDataset:
    """What Hugging Face's Dataset offers."""

    __module__ = "datasets.arrow_dataset"

    def __init__(self, table):
        self._table = table

    def __len__(self):
        return self._table.num_rows

    def with_format(self, name):
        assert name == "arrow"
        return self

    def __getitem__(self, rows):
        return self._table


def test_dataset_of_hugging_face_is_its_table(tmp_path):
    write_matrix(tmp_path / "a", FakeDataset(table("pyarrow")), label="clicked")
    write_matrix(tmp_path / "b", table("pyarrow"), label="clicked")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("bases", "message"),
    [
        ((dict,), "a Streamed has several datasets: choose one of 'train'"),
        ((object,), "without streaming, or train on its Parquet files with label_column"),
    ],
)
def test_other_datasets_of_hugging_face_are_refused(tmp_path, bases, message):
    streamed = type("Streamed", bases, {"__module__": "datasets.iterable_dataset"})()
    if isinstance(streamed, dict):
        streamed["train"] = None
    with pytest.raises(DataError, match=message):
        write_matrix(tmp_path / "a", streamed, label="y")


def test_columns_of_other_pandas_types_are_numbers_or_texts(tmp_path):
    import pandas

    frame = pandas.DataFrame(
        {
            "whole": pandas.array([1, None, 3], "Int64"),
            "yes": [True, False, True],
            "maybe": pandas.array([True, None, False], "boolean"),
            "kind": pandas.Categorical(["a", None, "b"]),
            "text": pandas.array(["x", None, "y"], "string"),
        }
    )
    write_matrix(tmp_path / "a", frame, pandas.Series([1, 0, 1]))
    columns = "y:label,whole:numeric,yes:numeric,maybe:numeric,kind:categorical,text:categorical"
    text = b"1,1,1,1,a,x\n0,,0,,,\n1,3,1,0,b,y\n"
    expected = ExampleReader("csv", columns=columns).read(text)
    assert rows_of(read(tmp_path / "a")) == rows_of(expected)


def test_table_of_numbers_may_be_dense(tmp_path):
    import pandas

    frame = pandas.DataFrame({"a": [1, 2], "y": [0, 1], "b": [0.5, 3]})
    write_matrix(tmp_path / "a", frame, label="y", dense=True)
    header, data = header_of(tmp_path / "a"), (tmp_path / "a").read_bytes()
    assert header.array(data, "values").tolist() == [1, 0.5, 2, 3]
    assert header.array(data, "labels").tolist() == [0, 1]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"a": [1, 2]}, {"label": "y"}, "has no column 'y': a"),
        ({"y": [1, 2]}, {"label": "y"}, "no column of features"),
        ({"a": ["x", 3]}, {}, r"column 'a', row 1 is 3 \(int\): expected a str or a missing"),
        ({"a": [1, math.inf]}, {}, "column 'a', row 1 is inf"),
        ({0: [1, 2]}, {}, "column names of type str, got 0"),
        ({"a": [1, 2]}, {"fields": [0]}, "fields: expected none"),
        ({"a": ["x", "y"]}, {"dense": True}, "column 'a': expected numbers"),
        ({"a": [1, None]}, {"dense": True}, "column 'a', row 1 is missing"),
    ],
)
def test_table_that_has_no_examples_is_refused(tmp_path, columns, options, message):
    import pandas

    with pytest.raises(DataError, match=message):
        write_matrix(tmp_path / "a", pandas.DataFrame(columns), **options)


def test_table_with_a_column_twice_is_refused(tmp_path):
    import pandas

    frame = pandas.DataFrame([[1, 2, 3]], columns=["a", "b", "b"])
    with pytest.raises(DataError, match="every column once, got 'b' more than once"):
        write_matrix(tmp_path / "a", frame)


def test_times_and_lists_in_columns_are_refused(tmp_path):
    import pandas

    frame = pandas.DataFrame({"when": pandas.to_datetime(["2026-01-01"])})
    with pytest.raises(DataError, match="column 'when', row 0 is Timestamp"):
        write_matrix(tmp_path / "a", frame)


def test_dicts_become_what_csv_becomes(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_rows, "PIECE_CELLS", 3)
    rows = [
        {"age": 31, "city": "Berlin", "score": 0},
        {"age": None, "city": "Łódź", "score": 2.5},
        {"age": np.float32(44.5), "score": -3, "city": math.nan},
        {"age": 0, "city": "Berlin"},
    ]
    write_matrix(tmp_path / "a", rows, [1, 0, 1, 0])
    csv = rows_of(ExampleReader("csv", columns=COLUMNS).read(CSV.encode()))
    assert [row[:3] for row in rows_of(read(tmp_path / "a"))] == [row[:3] for row in csv]


@pytest.mark.parametrize("kind", ["pandas", "dicts"])
@pytest.mark.parametrize(
    ("a", "b", "csv"),
    [(["", "x"], ["", ""], b"1,,\n0,x,\n"), ([" Berlin ", " "], [" ", ""], b"1, Berlin ,\n0, ,\n")],
    ids=["empty", "stripped"],
)
def test_texts_are_those_of_cells(tmp_path, kind, a, b, csv):
    x = [{"a": np.str_(one), "b": other} for one, other in zip(a, b, strict=True)]
    if kind == "pandas":
        x = pytest.importorskip("pandas").DataFrame(x)
    write_matrix(tmp_path / "a", x, [1, 0])
    expected = ExampleReader("csv", columns="y:label, a:categorical, b:categorical").read(csv)
    assert [row[:3] for row in rows_of(read(tmp_path / "a"))] == [
        row[:3] for row in rows_of(expected)
    ]


def test_dicts_without_entries_are_rows(tmp_path):
    write_matrix(tmp_path / "a", [{}, {"a": 1}, {}], [1, 2, 3])
    assert read(tmp_path / "a").ptr.tolist() == [0, 0, 1, 1]


@given(st.lists(st.text(max_size=400) | st.none(), min_size=1, max_size=20))
def test_texts_of_any_length_hash_as_in_csv(texts):
    reader = RowReader([DeclaredColumn("a", ColumnKind.CATEGORICAL)], b",", 0, 0, skip=False)
    found, odd = reader.of_columns([texts], len(texts), None)
    broken = next(
        (
            at
            for at, text in enumerate(texts)
            if text and any("\ud800" <= c <= "\udfff" for c in text)
        ),
        None,
    )
    assert odd == (None if broken is None else (broken, 0))
    bare = [(text or "").strip(" ") for text in texts[:broken]]
    assert np.diff(found.ptr).tolist() == [bool(text) for text in bare]
    seed = hash_bytes(0, b"a")
    assert found.keys.tolist() == [hash_bytes(seed, text.encode()) >> 1 for text in bare if text]


def test_values_that_float32_has_not_become_zeros(tmp_path):
    written = write_matrix(tmp_path / "a", np.array([[1e-50, 2.0], [0, 1e-60]]), [1, 0])
    assert written.entries == 3
    assert read(tmp_path / "a").values.tolist() == [0, 2, 0]


def test_entries_that_come_twice_are_summed(tmp_path):
    twice = sparse.csr_matrix(([1.0, 2, 4], [2, 2, 0], [0, 2, 3]), shape=(2, 3))
    write_matrix(tmp_path / "a", twice, [1, 0])
    found = read(tmp_path / "a")
    assert (found.keys.tolist(), found.values.tolist()) == ([2, 0], [3, 4])
    assert twice.nnz == 3
    write_matrix(tmp_path / "b", sparse.vstack([twice, twice])[2:], [1, 0])
    assert read(tmp_path / "b").keys.tolist() == [2, 0]


def test_weights_come_back(tmp_path):
    write_matrix(tmp_path / "a", np.eye(3), [1, 0, 1], sample_weight=[0, 2, 0.5])
    assert read(tmp_path / "a").weights.tolist() == [0, 2, 0.5]
    write_matrix(tmp_path / "b", [{"a": 1}, {}], [1, 0], sample_weight=[3, 4])
    assert read(tmp_path / "b").weights.tolist() == [3, 4]
    write_matrix(tmp_path / "c", np.eye(3), [1, 0, 1])
    assert len(read(tmp_path / "c").weights) == 0
    for wrong in ([1, 2], [1, -1, 1], [1, np.nan, 1], np.ones((3, 2)), ["a"] * 3):
        with pytest.raises(DataError, match="sample_weight: "):
            write_matrix(tmp_path / "d", np.eye(3), [1, 0, 1], sample_weight=wrong)


def test_neighbours_of_the_file_stay(tmp_path):
    names = ["train.part", "train.labels", "train.ptr", "train.keys", "train.values"]
    for name in names:
        (tmp_path / name).write_text("mine")
    write_matrix(tmp_path / "train", [{"a": 1}, {"b": "c"}], [1, 0])
    assert {path.name for path in tmp_path.iterdir()} == {"train", *names}
    assert all((tmp_path / name).read_text() == "mine" for name in names)


def test_sparse_matrix_may_be_dense(tmp_path, monkeypatch):
    monkeypatch.setattr(matrix_sources, "PIECE_ENTRIES", 4)
    x = matrix(7, 3)
    write_matrix(tmp_path / "a", x, np.zeros(7), dense=True)
    write_matrix(tmp_path / "b", x.toarray(), np.zeros(7), dense=True)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_options_that_contradict_each_other_are_refused(tmp_path):
    pandas = pytest.importorskip("pandas")
    for x in (np.eye(3), matrix(3, 3)):
        with pytest.raises(DataError, match="fields: expected none with dense=True"):
            write_matrix(tmp_path / "a", x, dense=True, fields=[0, 1, 2])
    with pytest.raises(DataError, match="y: expected none with label='b'"):
        write_matrix(tmp_path / "a", pandas.DataFrame({"a": [1], "b": [0]}), [1], label="b")


def test_full_disk_is_told_with_the_folder(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(matrix_writer.os, "pwrite", full)
    with pytest.raises(DataError, match=r"cannot write to .*scratch .* free\): No space left"):
        spool_rows(rows_source(np.eye(3)), [1, 0, 1], str(tmp_path / "scratch"))
    assert list((tmp_path / "scratch").glob("*.spool")) == []


@pytest.mark.parametrize(
    ("labels", "wide"),
    [
        ([0, 1, 16_777_216, 2], False),
        ([0.5, -1, 2.0**100, 7], False),
        ([16_777_216, 16_777_217, 20_240_131_001, 20_240_131_002], True),
        ([0.1, 0.2, 0.3, 1e-9], True),
    ],
)
@pytest.mark.parametrize("dense", [False, True])
def test_labels_are_kept_exactly_and_small_where_float32_has_room(tmp_path, labels, wide, dense):
    x = np.arange(8.0).reshape(4, 2)
    write_matrix(tmp_path / "a.mx", x, labels, dense=dense)
    data = (tmp_path / "a.mx").read_bytes()
    header = read_header(data, len(data), "a.mx")
    assert (Flags.WIDE_LABELS in header.flags) == wide
    assert (
        header.array(data, "labels").tolist()
        == np.array(labels, np.float64 if wide else np.float32).tolist()
    )
    found = example_files([str(tmp_path / "a.mx")])
    assert sum(piece.rows for piece in found.pieces()) == 4
    assert found.labels().tolist() == (labels if wide else np.float32(labels).tolist())
    if not dense:
        assert examples_of(data, "a.mx").labels.tolist() == found.labels().tolist()
        with (tmp_path / "a.mx").open("rb") as file:  # blocks of the file have them, too
            edges = [0, len(data) // 3, len(data)]
            blocks = [read_matrix_block(file, "a.mx", [cut], len(data)) for cut in pairwise(edges)]
        parts = [examples_of(block, "a.mx").labels for block in blocks if block]
        assert np.concatenate(parts).tolist() == found.labels().tolist()


def test_labels_beyond_float32_are_refused(tmp_path):
    with pytest.raises(DataError, match="label 1 has value inf: expected finite numbers within"):
        write_matrix(tmp_path / "a.mx", np.ones((2, 1)), [1.0, 1e300])
    header = Header(Flags.WIDE_LABELS, 1, 1, 0, 5)
    data = header.pack() + np.array([1e300]).tobytes() + bytes(56) + bytes(64)
    with pytest.raises(DataError, match=r"row 0 has label 1e\+300: expected finite ones within"):
        examples_of(data, "a.mx")


def test_index_that_a_row_repeats_is_the_sum_of_its_values():
    """By hand: 3:1 3:2 is 3:3, as in scipy; other rows keep their values."""
    ptr, keys = np.array([0, 3, 3, 5]), np.array([3, 0, 3, 1, 2], np.uint32)
    piece = dense_piece(ptr, keys, np.array([1, 5, 2, 7, 8], np.float32), 4)
    assert piece.values.reshape(3, 4).tolist() == [[5, 0, 0, 3], [0] * 4, [0, 7, 8, 0]]
