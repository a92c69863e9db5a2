"""Rows of files as examples: the same rows as those of matrices and tables in memory."""

import json
import os
import threading

import numpy as np
import pytest

from snailps import write_matrix
from snailps.data import feature_rows
from snailps.data.columns import MISSING
from snailps.data.elements import table_of
from snailps.data.example_files import example_files
from snailps.data.feature_rows import TableRows
from snailps.data.formats.table import TableFile
from snailps.data.matrix_sources import rows_source
from snailps.data.matrix_writer import Draft
from snailps.errors import DataError
from snailps.files.matrix_file import Flags, read_header

CSV = "a,b,city,y\n1,0,Rome,yes\n,2.5,,no\n3,4,Oslo,yes\n"
NUMBERS = "a,b,y\n1,0,2\n-1,2.5,1.5\n3,4,-7\n"
LINES = "1 0:1 7:0.5\n-1 3:2 # none\n1\n"


@pytest.fixture
def write(tmp_path):
    def made(name, text):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return made


def rows_of(source):
    """Each row as (key, value, field) entries, and all labels."""
    rows = []
    for piece in source.pieces():
        if piece.ptr is None:
            rows += piece.values.reshape(piece.rows, -1).tolist()
            continue
        fields = piece.fields if piece.fields is not None else np.zeros(piece.entries)
        values = piece.values if piece.values is not None else np.ones(piece.entries)
        for first, last in zip(piece.ptr[:-1], piece.ptr[1:], strict=True):
            part = slice(first, last)
            entries = (piece.keys[part], values[part], fields[part])
            rows.append(list(zip(*(one.tolist() for one in entries), strict=True)))
    return rows


def of_frame(frame):
    return rows_of(rows_source(frame))


def test_table_with_texts_has_features_by_name(write):
    pandas = pytest.importorskip("pandas")
    found = example_files([write("x.csv", CSV)], "y")
    assert (found.by_name, found.names, found.columns) == (True, ["a", "b", "city"], 0)
    assert found.declared == ("a:numeric", "b:numeric", "city:categorical", "y:label")
    frame = pandas.DataFrame(
        {"a": [1, np.nan, 3], "b": [0, 2.5, 4], "city": ["Rome", None, "Oslo"]}
    )
    assert rows_of(found) == of_frame(frame)
    assert found.labels().tolist() == ["yes", "no", "yes"]
    lines = '{"a": 1, "b": 0, "city": "Rome", "y": "yes"}\n{"b": 2.5, "y": "no"}\n'
    other = example_files([write("x.jsonl", lines)], "y")
    assert rows_of(other) == of_frame(frame)[:2]
    assert other.labels().tolist() == ["yes", "no"]


def test_table_of_numbers_has_columns_by_number(write):
    found = example_files([write("x.csv", NUMBERS)], "y")
    assert (found.by_name, found.names, found.columns) == (False, ["a", "b"], 2)
    assert rows_of(found) == [[(0, 1, 0)], [(0, -1, 0), (1, 2.5, 0)], [(0, 3, 0), (1, 4, 0)]]
    assert found.labels().tolist() == [2, 1.5, -7]
    found.write_as(fields=np.array([4, 9]))
    assert rows_of(found)[1] == [(0, -1, 4), (1, 2.5, 9)]
    found = example_files([write("x.csv", NUMBERS)], "y")
    found.write_as(dense=True)
    assert rows_of(found) == [[1, 0], [-1, 2.5], [3, 4]]


def test_parquet_has_labels_of_any_type(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for labels in ([3, 1, 3], [True, False, True], ["x", "y", "x"], [0.5, 2, 1]):
        table = pa.table({"a": [1.0, 2.0, None], "y": labels})
        parquet.write_table(table, tmp_path / "x.parquet")
        found = example_files([str(tmp_path / "x.parquet")], "y")
        assert rows_of(found) == [[(0, 1, 0)], [(0, 2, 0)], []]
        assert found.labels().tolist() == labels


@pytest.mark.parametrize("words", [("true", "false"), ("True", "False"), ("TRUE", "FALSE")])
def test_truth_of_csv_is_a_number_as_in_a_frame(write, words):
    pandas = pytest.importorskip("pandas")
    yes, no = words
    path = write("x.csv", f"a,b,city,y\n{yes},1,Rome,{no}\n,2,Oslo,{yes}\n{no},3,Rome,{no}\n")
    found = example_files([path], "y")
    assert found.declared == ("a:numeric", "b:numeric", "city:categorical", "y:label")
    frame = pandas.DataFrame(
        {"a": [True, None, False], "b": [1.0, 2, 3], "city": ["Rome", "Oslo", "Rome"]}
    )
    assert rows_of(found) == of_frame(frame)
    labels = found.labels()
    assert (labels.dtype.kind, labels.tolist()) == ("b", [False, True, False])


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [3, 0, 4, 1, 2]])
def test_truth_that_is_missing_in_whole_pieces_is_that_of_the_others(monkeypatch, order):
    pandas = pytest.importorskip("pandas")
    monkeypatch.setattr(feature_rows, "PIECE_CELLS", 4)  # two rows a piece
    frame = pandas.DataFrame(
        {"city": ["x"] * 5, "flag": np.array([None, None, None, True, False], object)}
    ).iloc[order]
    source = rows_source(frame)
    assert source.declared == ("city:categorical", "flag:numeric")
    counts = [piece.entries for piece in source.pieces()]
    assert (len(counts), sum(counts)) == (3, 5 + 2)


def test_truth_in_a_column_of_numbers_is_zero_or_one(write):
    found = example_files([write("x.csv", "a,y\n0.5,True\nTrue,2\n")], "y")
    assert rows_of(found) == [[(0, 0.5, 0)], [(0, 1, 0)]]
    assert found.labels().tolist() == [1, 2]


@pytest.mark.parametrize("missing", sorted(MISSING))
def test_missing_numbers_of_csv_make_no_entry_as_in_a_frame(write, missing):
    pandas = pytest.importorskip("pandas")
    path = write("x.csv", f"a,b,y\n1,{missing},0\n{missing},2,1\n")
    found = example_files([path], "y")
    assert found.declared == ("a:numeric", "b:numeric", "y:label")
    frame = pandas.DataFrame({"a": [1, None], "b": [None, 2]})
    read = pandas.read_csv(path, usecols=["a", "b"], na_values=[r"\N"])  # else a text
    assert frame.equals(read)
    assert rows_of(found) == [[(0, 1, 0)], [(1, 2, 0)]]
    buckets = example_files([path], "y", ["a:numeric bucket 0 9"])
    assert [len(row) for row in rows_of(buckets)] == [1, 1]
    words = example_files([write("z.csv", f"a,y\n{missing},1\nRome,0\n")], "y")
    assert words.declared[0] == "a:categorical"
    assert [len(row) for row in rows_of(words)] == [1, 1]  # a name may be NA


@pytest.mark.parametrize("cell", ["inf", "-Infinity"])
def test_infinite_number_of_csv_is_refused(write, cell):
    path = write("x.csv", f"a,y\n1,0\n{cell},1\n")
    with pytest.raises(
        DataError, match=f"line 3, .*expected a finite number.*got '{cell}'"
    ) as told:
        rows_of(example_files([path], "y"))
    assert "on_bad_line" not in str(told.value)  # no parameter of estimators


def test_pipe_of_a_table_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "x.csv")
    with pytest.raises(DataError, match=r"regular file.*x\.csv.*write what a pipe has"):
        example_files([str(tmp_path / "x.csv")], "y")


@pytest.mark.parametrize(
    ("begin", "name"),
    [(b"\x89PNG\r\n\x1a\n", "a PNG image"), ("a,y\n1,2\n".encode("utf-16"), "UTF-16 text")],
)
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_table_that_is_another_file_is_refused_by_its_name(write, begin, name, ending):
    with pytest.raises(DataError, match=f"is no text, but {name}"):
        example_files([write(f"x.{ending}", begin * 20)], "y")


def test_declarations_win_and_go_for_tables_in_memory(write):
    pandas = pytest.importorskip("pandas")
    path = write("x.csv", NUMBERS)
    found = example_files([path], "y", ["a:categorical"])
    assert found.declared == ("a:categorical", "b:numeric", "y:label")
    frame = pandas.DataFrame({"b": [0.0, 2.5, 4], "a": [1, -1, 3]})
    table = table_of(frame)
    memory = TableRows(table, declared=found.declared)
    assert rows_of(memory) == rows_of(found)
    ignored = example_files([path], "y", ["a:ignore"])
    assert ignored.names == ["b"]


def test_model_decides_on_names_and_passes_over_others(write):
    path = write("x.csv", CSV)
    found = example_files([path], names=["b", "a"], others=True, needs_labels=False)
    assert rows_of(found)[2] == [(1, 3, 0), (0, 4, 0)]
    with pytest.raises(DataError, match="has columns that the model"):
        rows_of(example_files([path], names=["b", "a"], needs_labels=False))
    with pytest.raises(DataError, match="has no column 'c'"):
        rows_of(example_files([path], names=["c"], others=True, needs_labels=False))


@pytest.mark.parametrize(
    ("name", "text", "label", "message"),
    [
        (
            "x.csv",
            CSV,
            "",
            "is a table: expected the name of the column that has the labels, one of 'a'",
        ),
        ("x.csv", CSV, "z", "has no column 'z'"),
        (
            "x.csv",
            "a;y\n1;0\n",
            "y",
            "Cells of .csv are separated by ',', of .tsv by tabs; got ';'",
        ),
        ("x.tsv", "a,y\n1,0\n", "y", "of .tsv by tabs; got ','"),
        ("x.svm", LINES, "y", "is no table: each line or row begins with its label"),
        ("x.svm", b"\x89PNG\r\n\x1a\n" + bytes(80), "", "PNG"),
        ("x.csv", "a,y\n1,2\n1,x\n", "y", None),
        ("x.svm", "1 a:b\n", "", "line 1"),
    ],
)
def test_wrong_files_are_refused(write, name, text, label, message):
    path = write(name, text)
    if message is None:
        assert example_files([path], label).label == "y"
        return
    with pytest.raises(DataError, match=message):
        rows_of(example_files([path], label))


def test_text_among_numbers_of_labels_is_told_with_its_row(write):
    text = "a,y\n" + "1,2\n" * 10_000 + "1,x\n"
    with pytest.raises(DataError, match=r"column 'y', row 10,001 is 'x': expected a number"):
        rows_of(example_files([write("x.csv", text)], "y"))


@pytest.mark.parametrize("labels", [[0, 1], ["0", "1"]])
def test_labels_of_files_of_several_formats_are_those_of_each(write, tmp_path, labels):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"x": [1, 1], "y": labels})
    lines = write("a.jsonl", '{"x": 1, "y": 1}\n{"x": 1, "y": 0}\n')
    cells, path = write("b.csv", "x,y\n1,0\n1,1\n"), str(tmp_path / "c.parquet")
    parquet.write_table(table, path)
    found = example_files([lines, cells, path], "y")
    rows_of(found)
    assert found.labels().tolist() == [1, 0, 0, 1, 0, 1]
    found = example_files([path, cells], "y")
    rows_of(found)
    assert found.labels().tolist() == labels * 2


def test_texts_beside_numbers_as_labels_are_refused_with_both_files(write, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    words, numbers = str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")
    parquet.write_table(pa.table({"x": [1, 1], "y": ["no", "yes"]}), words)
    parquet.write_table(pa.table({"x": [1, 1], "y": [1, 0]}), numbers)
    with pytest.raises(DataError, match=r"'y': .*texts in .*a\.parquet and numbers in .*b\."):
        rows_of(example_files([words, numbers], "y"))
    with pytest.raises(DataError, match=r"a\.parquet: .*row 1 is 'no': .*rows of .*b\."):
        rows_of(example_files([numbers, words], "y"))


def test_labels_that_are_missing_in_a_whole_file_are_missing(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    paths = []
    for name, labels in {"a": [1, 0], "b": [None, None]}.items():
        paths.append(str(tmp_path / f"{name}.parquet"))
        parquet.write_table(pa.table({"x": [1, 1], "y": labels}), paths[-1])
    found = example_files(paths, "y")
    rows_of(found)
    assert np.isnan(found.labels()).tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    ("odd", "label"),
    [
        ('3, "u,w", yes', "yes"),
        ('3, "u,""w,z" , no', "no"),
        ("3, u\rw, yes", "yes"),
        ('3, "two\nlines", yes', "yes"),
        ('3, u, "yes, or no"', "yes, or no"),
        ("3, u, yes, no", None),
        ("3, u", None),
    ],
)
def test_labels_are_cells_of_the_rows_that_features_are_of(write, monkeypatch, odd, label):
    monkeypatch.setattr(TableFile, "head_rows", 4)
    rows = '1, "u", yes\n2, v, no\n' * 2
    found = example_files([write("x.csv", f"a,b,y\n{rows}{odd}\n{rows}")], "y")
    if label is None:
        with pytest.raises(DataError, match=r"x\.csv, line 6, column \d+: expected 3 columns, got"):
            rows_of(found)
        return
    assert [len(row) for row in rows_of(found)] == [2] * 9
    assert found.labels().tolist() == [*["yes", "no"] * 2, label, *["yes", "no"] * 2]


def test_names_that_json_lines_have_later_are_refused(write, monkeypatch):
    monkeypatch.setattr(TableFile, "head_rows", 2)
    path = write("x.jsonl", '{"a": 1, "y": 0}\n' * 2 + '{"b": 5, "y": 1}\n')
    with pytest.raises(DataError, match="row 3 has 'b', which the first 2 rows lack: declare"):
        rows_of(example_files([path], "y"))
    found = example_files([path], "y", ["b:numeric"])
    assert (found.names, rows_of(found)) == (["a", "b"], [[(0, 1, 0)], [(0, 1, 0)], [(1, 5, 0)]])
    ignored = example_files([path], "y", ["b:ignore"])
    assert [len(row) for row in rows_of(ignored)] == [1, 1, 0]
    model = example_files([path], names=["a"], others=True, needs_labels=False)
    assert [len(row) for row in rows_of(model)] == [1, 1, 0]


@pytest.mark.parametrize("name", ["age ", " a", "a 1..a 3", "", "'a'", "a:b", "a,b", "'", "a\nb"])
@pytest.mark.parametrize("value", [2, "Rome"])
def test_column_may_have_any_name(write, name, value):
    row = json.dumps({name: value, "y": 1})
    first = example_files([write("x.jsonl", row)], "y")
    declared = [one for one in first.declared if one != "y:label"]
    again = example_files([write("x.jsonl", row)], "y", declared, names=[name])
    assert first.names == again.names == [name]
    assert rows_of(first) == rows_of(again) != [[]]
    ignored = example_files([write("x.jsonl", f'{row[:-1]}, "b": 1}}')], "y", declared)
    assert ignored.names == [name, "b"]


def test_lines_have_labels_and_keys(write):
    found = example_files([write("x.svm", LINES)])
    assert rows_of(found) == [[(0, 1, 0), (7, 0.5, 0)], [(3, 2, 0)], []]
    assert found.labels().tolist() == [1, -1, 1]
    assert not found.is_counted
    found.count_columns()
    found.write_as(dense=True)
    assert rows_of(found)[1] == [0, 0, 0, 2, 0, 0, 0, 0]


@pytest.mark.parametrize("first", ["", "0\n", "# comment\n" * 99, "\n", "0 qid:3\n"])
def test_fields_of_libffm_are_kept_and_counted(write, first):
    found = example_files([write("x.ffm", f"{first}1 2:0:1 5:7:0.5\n0 1:3:2")])
    assert found.has_fields
    assert rows_of(found)[-2:] == [[(0, 1, 2), (7, 0.5, 5)], [(3, 2, 1)]]
    assert found.field_num == 6


def test_pipe_is_read_once_from_its_beginning(tmp_path):
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)

    def fill():
        with open(pipe, "w") as file:
            file.write(LINES)

    writer = threading.Thread(target=fill)
    found = example_files([pipe])
    writer.start()
    assert len(rows_of(found)) == 3
    writer.join()
    with pytest.raises(DataError, match="is a pipe"):
        found.count_columns()


@pytest.mark.parametrize("dense", [False, True])
def test_matrix_files_give_what_was_written(tmp_path, dense):
    x = np.array([[0, 1], [2, 0], [3, 4]], np.float32)
    path = str(tmp_path / "x.mx")
    write_matrix(path, x, [1, 0, 1], sample_weight=[1, 2, 3], dense=dense)
    found = example_files([path])
    assert rows_of(found) == [[(1, 1, 0)], [(0, 2, 0)], [(0, 3, 0), (1, 4, 0)]]
    assert found.labels().tolist() == [1, 0, 1]
    assert found.weights().tolist() == [1, 2, 3]
    found.write_as(dense=True)
    assert rows_of(found) == x.tolist()


def test_bytes_of_matrix_files_are_numbers(tmp_path):
    x = np.array([[255, 51]], np.uint8)
    write_matrix(tmp_path / "x.mx", x, [1], dense=True)
    found = example_files([str(tmp_path / "x.mx")])
    found.write_as(dense=True)
    assert rows_of(found)[0] == [255, 51]


def test_draft_gets_labels_and_weights_at_the_end(write, tmp_path):
    source = example_files([write("x.csv", NUMBERS)], "y")
    with Draft(source, str(tmp_path / "scratch")) as draft:
        assert draft.rows == 3
        with pytest.raises(DataError, match="expected 3 labels"):
            draft.finish([1, 0])
        spooled = draft.finish([1, 0, 1], [0.5, 1, 2])
    with spooled, open(spooled.path, "rb") as file:
        data = file.read()
    header = read_header(data, len(data), "x")
    assert (header.rows, header.nonzeros, header.columns) == (3, 5, 2)
    assert header.array(data, "labels").tolist() == [1, 0, 1]
    assert header.array(data, "weights").tolist() == [0.5, 1, 2]
    assert header.array(data, "keys").tolist() == [0, 0, 1, 0, 1]
    assert Flags.WEIGHTS in header.flags
    assert list((tmp_path / "scratch").glob("*.spool")) == []


def test_draft_that_is_not_finished_leaves_nothing(write, tmp_path):
    with Draft(example_files([write("x.svm", LINES)]), str(tmp_path / "scratch")):
        assert list((tmp_path / "scratch").glob("*.spool"))
    assert list((tmp_path / "scratch").glob("*.spool")) == []


@pytest.mark.parametrize("name", ["a.libsvm", "a.csv", "a.parquet", "a.jsonl"])
def test_labels_of_files_are_exact_up_to_2_to_the_53(write, tmp_path, name):
    ids = [16_777_216, 16_777_217, 20_240_131_001, 20_240_131_002, 2**53 - 1]
    label = "y"
    if name == "a.libsvm":
        path, label = write(name, "".join(f"{one} 1:1\n" for one in ids)), ""
    elif name == "a.csv":
        path = write(name, "x,y\n" + "".join(f"1,{one}\n" for one in ids))
    elif name == "a.jsonl":
        path = write(name, "".join(f'{{"x": 1, "y": {one}}}\n' for one in ids))
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        path = str(tmp_path / name)
        parquet.write_table(pytest.importorskip("pyarrow").table({"x": [1.0] * 5, "y": ids}), path)
    found = example_files([path], label)
    assert sum(piece.rows for piece in found.pieces()) == len(ids)
    assert found.labels().tolist() == ids


def test_regression_targets_of_lines_keep_their_small_variation(write):
    found = example_files([write("a.libsvm", "1700000000.25 1:1\n1700000000.5 1:1\n")])
    list(found.pieces())
    assert np.ptp(found.labels()) == 0.25


@pytest.mark.parametrize("names", [("with.mx", "without.mx"), ("without.mx", "with.mx")])
def test_model_without_fields_takes_files_with_and_without(tmp_path, names):
    x = np.eye(3)
    write_matrix(tmp_path / "with.mx", x, [0, 1, 0], fields=[0, 1, 1])
    write_matrix(tmp_path / "without.mx", x, [0, 1, 0])
    found = example_files([str(tmp_path / name) for name in names])
    found.leave_out_fields()
    assert not found.has_fields
    assert rows_of(found) == 2 * [[(at, 1.0, 0.0)] for at in range(3)]
