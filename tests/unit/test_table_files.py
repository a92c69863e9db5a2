"""data.table_files: Parquet, JSON lines, CSV with a header -> text of a column, or examples."""

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zstandard

from snailps.cli import train
from snailps.config import RawConfig
from snailps.data import table_files
from snailps.data._examples import hash_bytes
from snailps.data.columns import columns_by_name, declaration_of
from snailps.data.encoding import Encoding
from snailps.data.examples import ExampleReader
from snailps.data.formats import separated
from snailps.data.formats.table import TableFile, open_table
from snailps.data.table_files import check_table, complete, read_rows, text_of
from snailps.errors import ConfigError, DataError
from snailps.files.blocks import cut, expand, read_block
from snailps.files.formats import format_of
from snailps.files.reading import Reading
from snailps.files.scratch import Scratch
from snailps.models.classifier import ClassifierSettings
from snailps.models.sparse.evaluate import with_columns, with_names
from snailps.models.sparse.linear import LinearSettings

FORMATS = ("parquet", "jsonl", "csv", "tsv", "csv.gz", "jsonl.xz", "parquet.zst", "orc")
ROWS = [
    {"clicked": 1, "age": 31, "city": "Berlin", "note": "one, two"},
    {"clicked": 0, "age": 44, "city": None, "note": "three"},
    {"clicked": 1, "age": 5, "city": "Paris", "note": 'say "four"'},
]
DECLARED = ("clicked:label", "age:numeric", "city:categorical", "note:categorical")


def written(folder, ending, rows=ROWS, name="x"):
    """A table of these rows."""
    import csv
    import io
    import lzma

    path = folder / f"{name}.{ending}"
    names = list(rows[0])
    if "parquet" in ending:
        import pyarrow as arrow
        from pyarrow import parquet

        columns = {one: [row.get(one) for row in rows] for one in names}
        made = io.BytesIO()
        parquet.write_table(arrow.table(columns), made, row_group_size=2)
        data = made.getvalue()
    elif ending == "orc":
        import pyarrow as arrow
        from pyarrow import orc

        made = io.BytesIO()
        orc.write_table(arrow.table({one: [row.get(one) for row in rows] for one in names}), made)
        data = made.getvalue()
    elif "jsonl" in ending:
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    elif ending == "tsv":
        lines = [names, *([str("" if v is None else v) for v in row.values()] for row in rows)]
        data = "".join("\t".join(line) + "\n" for line in lines).encode()
    else:
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        data = text.getvalue().encode()
    pack = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstandard.ZstdCompressor().compress}
    packed = pack.get(ending.rpartition(".")[2])
    path.write_bytes(packed(data) if packed else data)
    return str(path)


@pytest.fixture
def scratch_of(tmp_path):
    """Makes scratches for readings."""
    made = []

    def make(reading):
        made.append(Scratch(str(tmp_path / "scratch"), 1 << 24, tables=reading))
        return made[-1]

    yield make
    for scratch in made:
        scratch.close()


def read(path, reading, scratch_of, blocks=1):
    """The blocks of a table, joined if it is text."""
    scratch = scratch_of(reading)
    sources = expand([path], scratch)
    size = -(-sources[0].bytes // blocks)
    return [
        read_block(block.path, block.start, block.stop, unit="line", scratch=scratch)
        for block in cut(sources, size)
    ]


def examples_of(path, reading, scratch_of, blocks=1, **options):
    reader = ExampleReader(**options)
    rows = []
    for data in read(path, reading, scratch_of, blocks):
        found = reader.read(data, path)
        for row in range(len(found.labels)):
            span = slice(found.ptr[row], found.ptr[row + 1])
            entries = zip(
                found.keys[span].tolist(), found.values[span].tolist(),
                found.fields[span].tolist(), strict=True,
            )  # fmt: skip
            rows.append((float(found.labels[row]), list(entries)))
    return rows


def key(name, text=""):
    return hash_bytes(hash_bytes(0, name.encode()), text.encode()) >> 1


AGE = key("age")
EXPECTED = [
    (1.0, [(AGE, 31.0, 0), (key("city", "Berlin"), 1.0, 1), (key("note", "one, two"), 1.0, 2)]),
    (0.0, [(AGE, 44.0, 0), (key("note", "three"), 1.0, 2)]),
    (1.0, [(AGE, 5.0, 0), (key("city", "Paris"), 1.0, 1), (key("note", 'say "four"'), 1.0, 2)]),
]  # fmt: skip


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a/x.PARQUET", "parquet"), ("s3://b/x.csv.gz", "csv"), ("x.ndjson.zst", "jsonl"),
        ("x.txt", None), ("x.json", None), ("csv", None),
    ],
)  # fmt: skip
def test_format_of(path, found):
    assert format_of(path) == found


@pytest.mark.parametrize(
    ("reading", "path", "found"),
    [
        (Reading("text"), "x.csv", False),
        (Reading(), "x.jsonl", False),
        (Reading("text", column="text"), "x.csv", True),
        (Reading("examples", label_column="y"), "x.jsonl.gz", True),
        (Reading("examples"), "x.csv", False),
        (Reading(), "x.csv", False),
    ],
)
def test_reading_takes_files_as_tables_if_a_column_is_named(reading, path, found):
    assert reading.takes(path) is found


@pytest.mark.parametrize(
    ("reading", "path", "message"),
    [
        (Reading("text", column="text"), "x.txt", r"is no table, but column is set \(text\)"),
        (Reading("examples", label_column="y"), "x.svm", "no table, but label_column is set"),
        (Reading("text"), "x.parquet", "set column to the name of the column that has the texts"),
        (Reading("examples"), "x.parquet", "set label_column to the name .* that has the labels"),
        (Reading("text"), "x.jsonl.gz", "has JSON lines: set column to the name"),
        (Reading("examples"), "x.ndjson", "has JSON lines: set label_column to the name"),
        (Reading(), "x.parquet", "this model reads no tables"),
    ],
)
def test_reading_refuses_what_the_settings_do_not_fit(reading, path, message):
    with pytest.raises(DataError, match=message):
        reading.takes(path)


# --- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", FORMATS)
def test_text_of_a_column(tmp_path, scratch_of, ending):
    path = written(tmp_path, ending)
    found = read(path, Reading("text", column="note"), scratch_of, blocks=2)
    assert b"".join(found) == b'one, two\nthree\nsay "four"\n'


@pytest.mark.parametrize("ending", FORMATS)
def test_text_with_labels_of_a_column(tmp_path, scratch_of, ending):
    rows = [{"text": "a calm sea", "kind": "salt water"}, {"text": "a lake", "kind": "fresh"}]
    reading = Reading("text", column="text", label_column="kind", label_prefix="__label__")
    found = read(written(tmp_path, ending, rows), reading, scratch_of)
    assert found == [b"__label__salt%20%water a calm sea\n__label__fresh a lake\n"]


@pytest.mark.parametrize("form", ["jsonl", "struct", "map"])
def test_labels_of_a_row_may_be_a_mapping_to_weights(tmp_path, form):
    path = str(tmp_path / ("t.jsonl" if form == "jsonl" else "t.parquet"))
    rows = [{"a b": 0.75, "c": 0.25}, {"c": 2}]
    if form == "jsonl":
        lines = [json.dumps({"text": "x", "kind": row}) for row in rows]
        Path(path).write_text("\n".join(lines) + "\n")
    else:
        arrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet")
        kind = arrow.map_(arrow.string(), arrow.float64()) if form == "map" else None
        items = [list(row.items()) for row in rows] if form == "map" else rows
        table = arrow.table({"text": ["x", "x"], "kind": arrow.array(items, kind)})
        arrow.parquet.write_table(table, path)
    reading = Reading("text", column="text", label_column="kind", soft_labels=True)
    assert b"".join(text_of(reading, path)).decode().splitlines() == [
        "__label__a%20%b:0.75 __label__c:0.25 x",
        "__label__c:2 x",
    ]
    with pytest.raises(DataError, match=r"row 1 of column 'kind' .* is a dict.*soft_labels: true"):
        list(text_of(replace(reading, soft_labels=False), path))


def test_map_with_a_label_twice_is_refused(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    kind = arrow.array([[("a", 0.5), ("a", 0.25)]], arrow.map_(arrow.string(), arrow.float64()))
    path = str(tmp_path / "t.parquet")
    arrow.parquet.write_table(arrow.table({"text": ["x"], "kind": kind}), path)
    reading = Reading("text", column="text", label_column="kind", soft_labels=True)
    with pytest.raises(DataError, match="expected each key of a map once, got 'a' twice"):
        list(text_of(reading, path))


def test_text_of_lists_of_words(tmp_path, scratch_of):
    path = written(tmp_path, "parquet", [{"words": ["a", "b"]}, {"words": ["c"]}])
    assert read(path, Reading("text", column="words"), scratch_of) == [b"a b\nc\n"]


def test_quoted_cell_may_have_newlines_and_be_long(tmp_path, scratch_of):
    path = tmp_path / "x.csv"
    path.write_text('\ufefftext,id\n"two\nlines",1\n' + "long " * 60_000 + ",2\n")
    (found,) = read(str(path), Reading("text", column="text"), scratch_of)
    assert found.startswith(b"two lines\nlong long")
    assert found.count(b"\n") == 2


@pytest.mark.parametrize(
    ("ending", "rows", "message"),
    [
        ("csv", ROWS, "has no column 'words'; it has 'clicked', 'age', 'city', 'note'"),
        ("parquet", [{"words": None}, {"words": "b"}], "row 1 of column 'words' of .*is missing"),
        ("jsonl", [{"words": 7}], "row 1 of column 'words' of .* is an int"),
    ],
)
def test_text_that_is_none_is_refused(tmp_path, scratch_of, ending, rows, message):
    path = written(tmp_path, ending, rows)
    with pytest.raises(DataError, match=message):
        read(path, Reading("text", column="words"), scratch_of)
    assert not list((tmp_path / "scratch").glob("*.spool"))


def test_tables_read_otherwise_are_other_copies(tmp_path, scratch_of):
    path = written(tmp_path, "csv")
    notes = scratch_of(Reading("text", column="note")).local(path)
    cities = scratch_of(Reading("text", column="age")).local(path)
    assert notes != cities
    assert scratch_of(Reading("text", column="note")).local(path) == notes


def test_copy_of_packed_parquet_counts_and_goes(tmp_path, scratch_of):
    path = written(tmp_path, "parquet.gz")
    reading = Reading("text", column="note")
    copy = scratch_of(reading).local(path)
    assert {file.name for file in copy.parent.iterdir()} == {copy.name}
    small = Scratch(str(tmp_path / "other"), 100, tables=reading)
    with pytest.raises(DataError, match="its content"):
        small.local(path)
    assert {file.name for file in (tmp_path / "other").iterdir()} == set()


@pytest.mark.parametrize(
    "reading",
    [
        Reading("text", column="note"),
        Reading("examples", label_column="clicked", columns=DECLARED),
    ],
)
def test_copy_on_a_full_disk_is_data_error_and_leaves_nothing(
    tmp_path, scratch_of, monkeypatch, reading
):
    def full(*_):
        raise OSError(28, "No space left on device")

    path = written(tmp_path, "csv")
    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(DataError, match=r"cannot write to .*scratch .*No space left"):
        scratch_of(reading).local(path)
    assert list((tmp_path / "scratch").iterdir()) == []


# --- examples ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("blocks", [1, 3])
def test_examples_of_each_format_are_the_same(tmp_path, scratch_of, ending, blocks):
    rows = [{**row, "note": row["note"].replace('"', "'")} for row in ROWS]
    expected = [*EXPECTED[:2], (1.0, [*EXPECTED[2][1][:2], (key("note", "say 'four'"), 1.0, 2)])]
    path = written(tmp_path, ending, rows)
    assert complete([path], (), "clicked") == DECLARED
    reading = Reading("examples", label_column="clicked", columns=DECLARED)
    assert examples_of(path, reading, scratch_of, blocks) == expected


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv", "tsv"])
@pytest.mark.parametrize("names", [(), ("no", "yes")], ids=["numbers", "texts"])
def test_a_column_of_weights_is_no_feature(tmp_path, scratch_of, ending, names):
    rows = [
        {"y": names[y] if names else y, "a": float(a), "w": w}
        for y, a, w in ((1, 3, 0.5), (0, 4, 2.0), (1, 5, 0.0))
    ]
    path = written(tmp_path, ending, rows)
    declared = complete([path], (), "y", "w")
    assert declared == (
        "y:label", "a:numeric", "w:ignore",
    ) if not names else declared[1:] == ("a:numeric", "w:ignore")  # fmt: skip
    reading = Reading(
        "examples", label_column="y", weight_column="w", columns=declared, label_names=names
    )
    (data,) = read(path, reading, scratch_of, 1)
    found = ExampleReader().read(data, path)
    assert found.labels.tolist() == [1, 0, 1]
    assert found.weights.tolist() == [0.5, 2, 0]
    assert (found.keys.tolist(), found.values.tolist()) == ([key("a")] * 3, [3, 4, 5])


@pytest.mark.parametrize(
    ("ending", "cell"), [("csv", "-1"), ("csv", "x"), ("csv", ""), ("jsonl", None)]
)
@pytest.mark.parametrize("names", [(), ("no", "yes")], ids=["numbers", "texts"])
def test_a_cell_that_is_no_weight_is_refused_with_its_row(
    tmp_path, scratch_of, ending, cell, names
):
    rows = [{"y": names[1] if names else 1, "a": 3.0, "w": w} for w in (1.0, cell)]
    path = written(tmp_path, ending, rows)
    declared = ("y:label", "a:numeric", "w:ignore")
    reading = Reading(
        "examples", label_column="y", weight_column="w", columns=declared, label_names=names
    )
    with pytest.raises(DataError, match=r"(row 2|line 3)\b.* expected a weight, a finite") as wrong:
        read(path, reading, scratch_of, 1)
    assert "What columns are" not in str(wrong.value)


@pytest.mark.parametrize("names", [(), ("no", "yes")], ids=["numbers", "texts"])
def test_a_row_without_weight_is_left_out_with_its_label(tmp_path, scratch_of, names):
    rows = [
        {"y": names[y] if names else y, "a": float(a), "w": w}
        for y, a, w in ((1, 3, 0.5), (0, 4, ""), (1, 5, 2.0), (0, 6, 1.0))
    ]
    path = written(tmp_path, "csv", rows)
    reading = Reading(
        "examples",
        label_column="y",
        weight_column="w",
        columns=("y:label", "a:numeric", "w:ignore"),
        label_names=names,
        on_bad_line="skip",
    )
    (data,) = read(path, reading, scratch_of, 1)
    examples = ExampleReader().read(data, path)
    assert examples.labels.tolist() == [1, 1, 0]
    assert examples.weights.tolist() == [0.5, 2, 1]
    assert examples.values.tolist() == [3, 5, 6]


def test_a_weight_beyond_float32_is_refused_as_the_table_has_it(tmp_path, scratch_of):
    path = written(tmp_path, "parquet", [{"y": 1, "a": 3.0, "w": w} for w in (1.0, 1e40)])
    reading = Reading(
        "examples",
        label_column="y",
        weight_column="w",
        columns=("y:label", "a:numeric", "w:ignore"),
    )
    with pytest.raises(DataError, match=r"row 2 is 1e\+40: expected a weight"):
        read(path, reading, scratch_of, 1)


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_declared_columns_are_those_of_csv(tmp_path, scratch_of, ending):
    """Each kind of column, of numbers and of texts: what the loops of CSV make is the measure."""
    declared = (
        "y:label", "a:numeric log", "b:numeric bucket 0 2.5 10", "c:categorical", "d:hashed 3",
        "e:hashed 3", "f:ignore", "g:numeric log bucket 1 2",
    )  # fmt: skip
    rng = np.random.default_rng(0)
    rows = [
        {
            "y": int(rng.integers(2)), "a": float(rng.normal(0, 9)),
            "b": float(rng.integers(-5, 15)),
            "c": int(rng.integers(-3, 3)), "d": f"w{rng.integers(50)}", "e": int(rng.integers(90)),
            "f": "x", "g": None if rng.random() < 0.2 else float(rng.normal(0, 20)),
        }
        for _ in range(200)
    ]  # fmt: skip
    reading = Reading("examples", label_column="y", columns=declared)
    of_table = examples_of(written(tmp_path, ending, rows), reading, scratch_of)
    of_csv = examples_of(written(tmp_path, "csv", rows), reading, scratch_of)
    assert of_table == of_csv
    assert len(of_csv) == 200
    folded = examples_of(written(tmp_path, ending, rows), reading, scratch_of, hash_bits=10)
    assert [key for _, row in folded for key, _, _ in row] == [
        key >> 53 for _, row in of_csv for key, _, _ in row
    ]


def test_columns_in_another_order_keep_their_fields(tmp_path, scratch_of):
    rows = [{"city": row["city"], "clicked": row["clicked"], "age": row["age"]} for row in ROWS]
    declared = ("clicked:label", "age:numeric", "city:categorical")
    reading = Reading("examples", label_column="clicked", columns=declared)
    fields = {
        ending: [
            {key: field for key, _, field in row}
            for _, row in examples_of(written(tmp_path, ending, rows), reading, scratch_of)
        ]
        for ending in ("csv", "jsonl")
    }
    assert fields["csv"] == fields["jsonl"]
    assert fields["csv"][0] == {key("age"): 0, key("city", "Berlin"): 1}


def test_pandas_index_in_csv_is_no_feature(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(",age,y\n0,31,1\n1,44,0\n")
    assert complete([str(path)], (), "y") == ("unnamed_1:ignore", "age:numeric", "y:label")


def test_declarations_win_over_what_is_inferred(tmp_path):
    path = written(tmp_path, "csv")
    found = complete([path], ("note:ignore", "age:numeric log bucket 10 30"), "clicked")
    assert found == (
        "clicked:label", "age:numeric log bucket 10 30", "city:categorical", "note:ignore"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ending", "rows", "declared", "message"),
    [
        ("csv", ROWS, ("none:ignore",), "has no column 'none'"),
        ("csv", [{"age": 1}], (), "has no column 'clicked'"),
        ("jsonl", [{"clicked": 1, "x": [1]}], (), "column 'x' has a list"),
        ("jsonl", [{"clicked": 1, "x": 1}, {"x": "a"}], (), "both numbers and texts"),
        ("parquet", [{"clicked": 1, "x": [1]}], (), "column 'x' has type list"),
        ("csv", [{"clicked": 1}], (), "no column of features"),
    ],
)
def test_tables_that_cannot_be_declared_are_refused(tmp_path, ending, rows, declared, message):
    with pytest.raises(DataError, match=message):
        complete([written(tmp_path, ending, rows)], declared, "clicked")


@pytest.mark.parametrize(
    ("ending", "rows", "message"),
    [
        ("csv", [{"y": 1, "a": "x"}], r"line 2, column 3: expected a finite.*NAME:categorical"),
        ("jsonl", [{"y": 1, "a": 1}, {"y": 0, "a": "x"}], "column 'a', row 2 is 'x' .*: expected"),
        ("parquet", [{"y": 1, "a": "x"}], "column 'a', row 1 is 'x' .*: expected a number"),
        ("jsonl", [{"y": None, "a": 1}], "column 'y', row 1 is missing: expected a label"),
        ("jsonl", [{"y": "yes", "a": 1}], "column 'y', row 1 is 'yes' .*: expected a number as"),
        ("jsonl", [{"y": 1, "a": 1, "b": 2}], "has columns that the first file lacks: 'b'"),
        ("csv", [{"y": 1, "a": 1, "b": 2}], "has columns that the first file lacks: 'b'"),
        ("csv", [{"y": 1}], "has no column 'a'"),
        ("jsonl", [{"y": 1, "a": 1e39}], "within float32's range"),
    ],
)  # fmt: skip
def test_examples_that_do_not_fit_are_refused(tmp_path, scratch_of, ending, rows, message):
    reading = Reading("examples", label_column="y", columns=("y:label", "a:numeric"))
    with pytest.raises(DataError, match=message):
        examples_of(written(tmp_path, ending, rows), reading, scratch_of)


def test_malformed_lines_of_csv_are_left_out_if_they_may(tmp_path, scratch_of, caplog):
    path = tmp_path / "x.csv"
    path.write_text('y,a\n1,2\n1,"2\n,x"\n0,3\n')
    columns = complete([str(path)], ("a:numeric",), "y")
    reading = Reading("examples", label_column="y", columns=columns, on_bad_line="skip")
    assert [label for label, _ in examples_of(str(path), reading, scratch_of)] == [1.0, 0.0]
    assert "1 malformed lines were left out" in caplog.text


@pytest.mark.parametrize("blocks", [1, 3])
def test_quoted_cell_of_examples_may_go_on_over_lines(tmp_path, scratch_of, blocks):
    rows = [{"y": 1, "a": "two\nlines, or\r\nthree"}, {"y": 0, "a": "x"}, {"y": 1, "a": 'q"\n'}]
    reading = Reading("examples", label_column="y", columns=("y:label", "a:categorical"))
    of_csv = examples_of(written(tmp_path, "csv", rows), reading, scratch_of, blocks)
    assert of_csv == examples_of(written(tmp_path, "jsonl", rows), reading, scratch_of)
    assert [label for label, _ in of_csv] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_labels_may_be_missing_for_predictions(tmp_path, scratch_of, ending):
    path = written(tmp_path, ending, [{"a": 1}, {"a": 2}])
    columns = ("y:label", "a:numeric")
    with pytest.raises(DataError, match="has no column 'y'"):
        check_table(path, Reading("examples", label_column="y", columns=columns))
    reading = Reading("examples", label_column="y", columns=columns, needs_labels=False)
    check_table(path, reading)
    found = examples_of(path, reading, scratch_of, needs_labels=False)
    assert [row for _, row in found] == [[(key("a"), 1.0, 0)], [(key("a"), 2.0, 0)]]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.parquet", b"PAR1 but not for long", "cannot read .*x.parquet"),
        ("x.jsonl", b'{"a": 1}\n{"a": \n', "line 2: no JSON"),
        ("x.jsonl", b"[1]\n", r"^/.*/x\.jsonl, line 1: expected an object"),
        ("x.jsonl", b"\n", "is empty: expected a JSON object"),
        ("x.csv", b"1,2\n3,4\n", "expected names of columns in the first line; got '1,2'"),
        ("x.csv", b"a,a\n3,4\n", "'a' twice"),
        ("x.csv", b"a,y\n3\n", "line 2, column 2: expected 2 columns, got 1"),
        ("x.csv", b"a,y\r3,4\r", "expected names of columns in the first line"),
        ("x.csv", b'a,"y"x\n3,4\n', "names of columns in the first line; got 'a,\"y\"x'"),
        ("x.csv", b'a,"y\n3,4\n', "expected names of columns in the first line"),
        ("x.csv", b"l\xe4nge,y\n1,0\n", r"a column, 'l.xe4nge', is not UTF-8: convert the file"),
        ("x.csv", b'a,y\n3,"4\n5,6\n', "line 2, column 3: expected a closing quote, then"),
        ("x.csv.gz", b"no gzip", "cannot unpack"),
    ],
)
def test_damaged_table_is_data_error(tmp_path, scratch_of, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message):
        read(str(tmp_path / name), Reading("text", column="a"), scratch_of)


@pytest.mark.parametrize(
    "data", [b"no gzip", gzip.compress(b'{"y": 1, "a": 2}\n' * 99)[:-9]], ids=["none", "cut"]
)
def test_damaged_packed_json_lines_of_examples_are_data_error(tmp_path, data):
    """A job's copy has no other guard than the table's own."""
    (tmp_path / "x.jsonl.gz").write_bytes(data)
    reading = Reading("examples", label_column="y", columns=("y:label", "a:numeric"))
    with pytest.raises(DataError, match="cannot unpack"):
        check_table(str(tmp_path / "x.jsonl.gz"), reading)
    with (
        Scratch(str(tmp_path / "scratch"), 0, tables=reading) as scratch,
        pytest.raises(DataError, match="cannot unpack"),
    ):
        scratch.local(str(tmp_path / "x.jsonl.gz"))


@pytest.mark.parametrize("depth", [100, 950, 100_000])
@pytest.mark.parametrize("begin", ["", '{"a": '])
def test_deeply_nested_line_of_json_is_data_error(tmp_path, scratch_of, begin, depth):
    path = tmp_path / "x.jsonl"
    path.write_text(begin + "[" * depth + "]" * depth + "}" * bool(begin) + "\n")
    readings = [
        Reading("text", column="a"),
        Reading("examples", label_column="y", columns=("y:label", "a:numeric"), needs_labels=False),
        Reading("examples", label_column="a", columns=("a:label", "y:numeric")),
    ]
    for reading in readings:
        with pytest.raises(DataError, match=r"x\.jsonl"):
            read(str(path), reading, scratch_of)
    with pytest.raises(DataError, match=r"x\.jsonl"):
        complete([str(path)], (), "")


def test_texts_of_long_cells_do_not_depend_on_other_readers(tmp_path):
    import csv

    limit = csv.field_size_limit()
    first, second = (str(tmp_path / name) for name in ("a.csv", "b.csv"))
    Path(first).write_text("text\nshort\n")
    long = "x" * (limit + 1)
    Path(second).write_text("text\n" + "short words\n" * 120_000 + long + "\n")
    reading = Reading("text", column="text")
    texts = [text_of(reading, path) for path in (first, second)]
    heads = [next(text) for text in texts]
    assert list(texts[0]) == []
    assert (heads[1] + b"".join(texts[1])).endswith(b"words\n" + long.encode() + b"\n")
    assert csv.field_size_limit() == limit


def test_name_that_json_lines_have_later_is_refused_or_declared(tmp_path, scratch_of, monkeypatch):
    monkeypatch.setattr(TableFile, "head_rows", 3)
    path = written(tmp_path, "jsonl", [{"a": 1, "y": 0}] * 3 + [{"b": 5, "y": 1}] * 2)
    declared = complete([path], (), "y")
    assert declared == ("a:numeric", "y:label")
    with pytest.raises(DataError, match=r"row 4 has 'b', .*: declare it in columns, as b:num"):
        examples_of(path, Reading("examples", label_column="y", columns=declared), scratch_of)
    declared = complete([path], ("b:numeric",), "y")
    assert declared == ("a:numeric", "y:label", "b:numeric")
    found = examples_of(path, Reading("examples", label_column="y", columns=declared), scratch_of)
    assert [len(row) for _, row in found] == [1] * 5
    short = written(tmp_path, "jsonl", [{"a": 1, "y": 0}] * 2, name="short")
    with pytest.raises(DataError, match="has no column 'b'"):
        complete([short], ("b:numeric",), "y")


def test_long_rows_of_json_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(TableFile, "head_bytes", 1000)
    monkeypatch.setattr(TableFile, "batch_bytes", 500)
    path = written(tmp_path, "jsonl", [{"a": "x" * 80}] * 40)
    with open_table(path) as table:
        assert table.has_more
        assert [batch.rows for batch in table.batches(["a"])] == [6, 6, 6, 6, 6, 6, 4]


def test_long_rows_of_parquet_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    import pyarrow as arrow
    from pyarrow import parquet

    monkeypatch.setattr(TableFile, "batch_bytes", 1000)
    rows = {"a": [f"{at:0100}" for at in range(20)], "b": range(20)}
    path = str(tmp_path / "x.parquet")
    parquet.write_table(arrow.table(rows), path, use_dictionary=False, compression="none")
    for name, sizes in (("a", [8, 8, 4]), ("b", [20])):
        with open_table(path) as table:
            assert [batch.rows for batch in table.batches([name])] == sizes


def test_column_that_parquet_has_twice_is_refused_where_it_is_read(tmp_path):
    import pyarrow as arrow
    from pyarrow import parquet

    path = str(tmp_path / "x.parquet")
    parquet.write_table(arrow.table([["a"], ["b"], ["c"]], ["x", "x", "y"]), path)
    with open_table(path) as table:
        (batch,) = table.batches(["y"])
        assert batch.column("y").values(0, 1) == ["c"]
        with pytest.raises(DataError, match=r"x.parquet has 2 columns 'x': rename one"):
            list(table.batches(["x"]))


def test_parquet_without_pyarrow_names_the_extra(tmp_path, scratch_of, monkeypatch):
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    for name in [one for one in sys.modules if one.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"needs pyarrow, .*pip install 'snailps\[data\]'"):
        read(str(tmp_path / "x.parquet"), Reading("text", column="a"), scratch_of)


# --- declarations and settings -------------------------------------------------------------------


@pytest.mark.parametrize(
    "declared",
    ["a:label", "a:ignore", "a:numeric", "a:numeric log", "a:numeric bucket 1 2.5",
     "a:numeric log bucket 0.1 3", "a:categorical", "a:hashed 12"],
)  # fmt: skip
def test_declaration_of_a_column_leads_back(declared):
    (column,) = columns_by_name((declared,), "a" if "label" in declared else "y")
    again = columns_by_name((declaration_of(column),), "a" if "label" in declared else "y")
    assert again == (column,)


@pytest.mark.parametrize(
    ("declared", "message"),
    [("a:label", "a is declared as label, but label_column is y"), ("y:numeric", "got numeric")],
)
def test_declarations_that_contradict_the_label_are_refused(declared, message):
    with pytest.raises(ConfigError, match=message):
        columns_by_name((declared,), "y")


def settings_of(cls=LinearSettings, **values):
    return RawConfig.from_mapping(values, "job.conf:{key}").build(cls)


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        (LinearSettings, {"label_column": "y", "format": "csv"}, "expected auto with label_column"),
        (LinearSettings, {"label_column": "y", "columns": "a:label"}, "declared as label"),
        (LinearSettings, {"label_column": "y", "formats": "liblinear"}, "set hash_bits"),
        (ClassifierSettings, {"label_column": "y"}, "label_column: expected `column` as well"),
    ],
)
def test_settings_of_tables_that_do_not_fit_are_refused(cls, values, message):
    with pytest.raises(ConfigError, match=message):
        settings_of(cls, **values)


def test_columns_are_completed_by_the_first_file_and_shown(tmp_path, caplog):
    caplog.set_level("INFO")
    path = written(tmp_path, "csv")
    settings = settings_of(input=path, label_column="clicked", columns="note:ignore")
    found = with_columns(settings)
    assert found.columns == (*DECLARED[:3], "note:ignore")
    columns = "clicked:label, age:numeric, city:categorical"
    assert f"columns, inferred from {path}: {columns}" in caplog.text
    assert with_columns(found) == found
    text = ", ".join(found.columns)
    assert settings_of(input=path, columns=text, label_column="clicked") == found


def test_train_shows_what_columns_are(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train, "run_local", lambda *args, **named: 0)
    rows = [{"y": 1, "age": 3, "city": "Oslo"}, {"y": 0, "age": 1, "city": "Rome"}]
    path = written(tmp_path, "csv", rows)
    given = {
        "input": [path], "output": "out", "label_column": "y", "columns": "age:numeric bucket 1",
        "servers": 1, "workers": 1, "as_json": False, "json_log": None,
    }  # fmt: skip
    assert train.train("logistic", given) == 0
    shown = "columns: y:label, age:numeric bucket 1, city:categorical  (--columns overrides)\n"
    assert capsys.readouterr().err == shown


def late_table(folder, name, cells):
    """A table of a label and a column `x` with these cells; None: missing."""
    name, ending = name.split(".")
    return str(written(folder, ending, [{"y": n % 2, "x": x} for n, x in enumerate(cells)], name))


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
@pytest.mark.parametrize(
    ("later", "kind"), [([2.5, 3], "numeric"), (["Rome"], "categorical"), ([], "numeric")]
)
@pytest.mark.parametrize("apart", [False, True])
def test_column_that_is_empty_at_first_is_decided_by_its_first_values(
    tmp_path, monkeypatch, ending, later, kind, apart
):
    monkeypatch.setattr(TableFile, "head_rows", 10)
    monkeypatch.setattr(TableFile, "batch_bytes", 64)
    monkeypatch.setattr(separated.SeparatedFile, "first_bytes", 64)
    empty, after = [None] * 30, [*later, None]
    parts = [empty, [None, *after]] if apart else [[*empty, *after]]
    paths = [late_table(tmp_path, f"{at}.{ending}", part) for at, part in enumerate(parts)]
    assert complete(paths, (), "y") == ("y:label", f"x:{kind}")


def test_column_without_a_type_is_decided_by_other_files(tmp_path):
    null = late_table(tmp_path, "0.parquet", [None, None])
    assert complete([null], (), "y") == ("y:label", "x:numeric")
    texts = late_table(tmp_path, "1.parquet", [None, "Rome"])
    assert complete([null, texts], (), "y") == ("y:label", "x:categorical")
    numbers = late_table(tmp_path, "2.csv", [None, 3])
    assert complete([null, numbers, texts], (), "y") == ("y:label", "x:numeric")


def test_column_without_a_value_is_looked_for_in_a_limited_number_of_files(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "LOOKED_FILES", 3)
    parts = [[None]] * 9 + [["Rome"]]
    paths = [late_table(tmp_path, f"{at}.csv", part) for at, part in enumerate(parts)]
    assert complete(paths[-4:], (), "y") == ("y:label", "x:categorical")
    assert complete(paths, (), "y") == ("y:label", "x:numeric")


def test_text_of_a_column_that_had_no_value_as_far_as_it_was_looked_for_is_refused(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(TableFile, "head_rows", 10)
    monkeypatch.setattr(TableFile, "batch_bytes", 64)
    monkeypatch.setattr(separated.SeparatedFile, "first_bytes", 64)
    monkeypatch.setattr(table_files, "LOOKED_BYTES", 64)
    path = late_table(tmp_path, "x.csv", [None] * 99 + ["Rome"])
    columns = complete([path], (), "y")
    assert columns == ("y:label", "x:numeric")
    rows = read_rows(path, columns_by_name(columns, "y"), "y")
    with pytest.raises(DataError, match=r"line 101, .*in column x, got 'Rome'.*NAME:categorical"):
        list(rows)


@pytest.mark.parametrize(
    ("ending", "labels"), [("csv", ["1", "0"]), ("jsonl", [1, 0]), ("csv", ["yes", "no"])]
)
def test_labels_that_begin_late_are_of_the_kind_of_the_first_ones(
    tmp_path, monkeypatch, ending, labels
):
    monkeypatch.setattr(TableFile, "head_rows", 10)
    monkeypatch.setattr(TableFile, "batch_bytes", 64)
    monkeypatch.setattr(separated.SeparatedFile, "first_bytes", 64)
    rows = [{"y": label, "a": at} for at, label in enumerate([None] * 30 + labels)]
    given = LinearSettings(input=(written(tmp_path, ending, rows),), label_column="y")
    settings = with_names(with_columns(given), {}.get)
    expected = ("no", "yes") if "yes" in labels else ()
    assert Encoding.of_text(settings.encoding).names == expected


def test_rows_of_csv_without_a_label_that_is_a_text_are_left_out_on_request(
    tmp_path, scratch_of, caplog
):
    rows = [{"y": label, "a": at or None} for at, label in enumerate(["yes", None, "no", None])]
    path = written(tmp_path, "csv", rows)
    given = LinearSettings(input=(path,), label_column="y", on_bad_line="skip")
    settings = with_names(with_columns(given), {}.get)
    data = scratch_of(settings.reading()).local(path).read_bytes()
    found = ExampleReader().read(data)
    assert (found.labels.tolist(), found.values.tolist()) == ([1, 0], [2])
    assert "2 malformed lines were left out: they have no y" in caplog.text


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "csv.gz"])
def test_labels_that_are_texts_are_the_classes_of_all_files(tmp_path, scratch_of, ending):
    rows = [{"y": name, "a": at} for at, name in enumerate(["yes", "no", "yes"])]
    more = [{"y": name, "a": at} for at, name in enumerate(["no", "maybe, so"])]
    paths = [written(tmp_path, ending, rows), written(tmp_path, ending, more, "more")]
    given = LinearSettings(input=tuple(paths), label_column="y")
    settings = with_names(with_columns(given), {}.get)
    encoding = Encoding.of_text(settings.encoding)
    assert (settings.loss, settings.classes) == ("multinomial", 3)
    assert (encoding.names, encoding.labels) == (("maybe, so", "no", "yes"), (0, 1, 2))
    assert with_names(settings, {}.get) == settings
    for path, numbers in zip(paths, ([2, 1, 2], [1, 0]), strict=True):
        data = scratch_of(settings.reading()).local(path).read_bytes()
        assert ExampleReader().read(data).labels.tolist() == numbers
    other = written(tmp_path, ending, [*rows, {"y": "never", "a": 1}], "other")
    with pytest.raises(DataError, match=r"column 'y', row 4 is 'never': expected a label, one of"):
        scratch_of(settings.reading()).local(other)
    missing = written(tmp_path, ending, [{"y": None, "a": 1}, *rows], "missing")
    with pytest.raises(DataError, match=r"column 'y', row 1 is missing: expected a label, one of"):
        scratch_of(settings.reading()).local(missing)
    for wrong, why in (
        ({"loss": "squared"}, "has texts: .* expects numbers"),
        ({"loss": "multinomial", "classes": 2}, "of 2 classes in column 'y', got 3: 'maybe, so'"),
    ):
        with pytest.raises(DataError, match=why):
            with_names(with_columns(replace(given, **wrong)), wrong.get)
    with pytest.raises(DataError, match="of 2 classes"):
        with_names(with_columns(given), {"loss": "here"}.get)


def test_csv_with_names_of_columns_is_no_text_unless_one_is_named(tmp_path):
    file = tmp_path / "reviews.csv"
    file.write_bytes(b'\xef\xbb\xbf"text",stars\r\n"good, very",5\r\n')

    def opened(reading):
        return expand([str(file)], Scratch(str(tmp_path / "scratch"), 1 << 20, tables=reading))

    with pytest.raises(DataError, match=r"reviews\.csv has names of columns .*column='text'"):
        opened(Reading("text"))
    assert opened(Reading("text", column="text"))
    assert opened(Reading())  # a model of one's own that reads lines


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "some words, then\nothers, too\n"), ("a.csv", "one,two\nand no comma\n"),
        ("a.csv", "word\nword\n"), ("a.tsv", "text,stars\ngood,5\n"), ("a.csv", "a,b"),
        ("a.txt", "text,stars\ngood,5\n"), ("a.csv", ""),
    ],
)  # fmt: skip
def test_text_with_commas_is_no_table(name, text):
    Reading("text").refuse_header(text.encode(), name)
