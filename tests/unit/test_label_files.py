"""vectors.label_files and `snailps predict --input`: a line of output for each line of files."""

import bz2
import gzip
import io
import json
import lzma
import stat

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from snailps.cli.labelling import LinesProgress
from snailps.cli.main import app_for
from snailps.data._float_text import label_lines
from snailps.errors import DataError
from snailps.files import file_kinds
from snailps.vectors.fasttext_bin import BinHeader, write_bin
from snailps.vectors.label_files import LabelWriter, read_texts
from snailps.vectors.label_prediction import LabelModel

LINES = ["up up", "down", "", "other", "up down down", "größe up"]
RAW = "\n".join(LINES) + "\n"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A classifier that knows up and down."""
    found = tmp_path_factory.mktemp("labels") / "m.bin"
    inputs = np.array([[0, 0], [3, 0], [0, 2]], np.float32)
    outputs = np.array([[2, -2], [-2, 2]], np.float32)
    header = BinHeader(dim=2, model="supervised", loss="softmax", min_count=1)
    labels = [b"__label__plus", b"__label__minus"]
    write_bin(
        found, header, [b"</s>", b"up", b"down"], [3, 2, 1], [inputs], [outputs], labels, [2, 1]
    )
    return found


def run(*words, code=0, stdin=None):
    with_input = {"input": stdin} if stdin is not None else {}
    done = CliRunner().invoke(app_for(["predict", *map(str, words)]), ["predict", *map(str, words)],
                              **with_input)  # fmt: skip
    assert done.exit_code == code, (done.output, done.exception)
    return done


def wanted(path, lines=LINES, k=1):
    return [
        "\t".join(f"{one.label}\t{np.float32(one.probability)!s}" for one in line) or "-\t-"
        for line in LabelModel(path).predict(lines, k)
    ]


@pytest.mark.parametrize("k", [1, 2])
def test_each_line_of_a_file_has_a_line(path, tmp_path, k):
    (tmp_path / "t.txt").write_text(RAW)
    found = run(path, "--input", tmp_path / "t.txt", "-k", k).stdout
    assert found.splitlines() == wanted(path, k=k)
    assert found.splitlines()[0].startswith("__label__plus\t0.9")


def test_threshold_leaves_a_dash_in_the_place_of_a_label(path, tmp_path):
    (tmp_path / "t.txt").write_text("up\nother\n")
    found = run(path, "--input", tmp_path / "t.txt", "--threshold", ".9").stdout
    assert found.splitlines()[1] == "-\t-"
    assert found.splitlines()[0].startswith("__label__plus")


def test_files_patterns_packed_ones_tables_and_standard_input_are_read_in_order(path, tmp_path):
    (tmp_path / "a1.txt").write_text(RAW.removesuffix("\n"))
    (tmp_path / "a2.txt.gz").write_bytes(gzip.compress(RAW.encode()))
    rows = "".join(json.dumps({"other": 1, "body": text}) + "\n" for text in LINES)
    (tmp_path / "b.jsonl").write_text(rows)
    pq.write_table(pa.table({"body": LINES, "n": range(6)}), tmp_path / "c.parquet")
    texts = run(path, "--input", tmp_path / "a*", "--input", "-", stdin=RAW).stdout
    tables = run(
        path, "--input", tmp_path / "b.jsonl", "--input", tmp_path / "c.parquet", "--column", "body"
    ).stdout
    assert texts.splitlines() == 3 * wanted(path)
    assert tables.splitlines() == 2 * wanted(path)


def test_lines_and_rows_without_a_text_have_a_dash_each(path, tmp_path):
    rows = b'{"body": "up"}\n\n{"body": null}\n  \r\n{"n": 1}\n{"body": "down"}'
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + rows)
    (tmp_path / "b.jsonl").write_bytes(b"")
    texts = ["up", None, None, None, None, "down"]
    names = ["a.jsonl", "b.jsonl"]
    for kind in (pa.string(), pa.large_binary(), pa.dictionary(pa.int8(), pa.string())):
        names.append(f"{len(names)}.parquet")
        column = pa.array(texts, pa.string()).cast(kind)
        pq.write_table(pa.table({"body": column}), tmp_path / names[-1])
    options = [word for name in names for word in ("--input", tmp_path / name)]
    found = run(path, *options, "--column", "body").stdout.splitlines()
    up, down = wanted(path, ["up", "down"])
    assert found == 4 * [up, *4 * ["-\t-"], down]
    run(path, *options[:2], "--column", "body", "--format", "parquet", "--output", tmp_path / "o")
    assert [bool(row) for row in pq.read_table(tmp_path / "o")["labels"].to_pylist()] == [
        text is not None for text in texts
    ]


def test_output_is_a_file_of_any_format_that_is_not_replaced_unasked(path, tmp_path):
    (tmp_path / "t.txt").write_text(RAW)
    options = (path, "--input", tmp_path / "t.txt", "--output", tmp_path / "out")
    run(*options, "--format", "jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    best = LabelModel(path).predict(LINES)
    assert [row["labels"] for row in rows] == [[one.label for one in line] for line in best]
    assert run(*options, code=1).exception is not None
    run(*options, "--format", "parquet", "--overwrite", "-k", "2")
    table = pq.read_table(tmp_path / "out").to_pylist()
    assert [row["labels"] for row in table] == [
        [one.label for one in line] for line in LabelModel(path).predict(LINES, 2)
    ]
    assert len(table[0]["probabilities"]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give a TEXT, or --input FILE"),
        (("up", "--input", "t.txt"), "give either a TEXT to label, or --input"),
        (("--output", "o"), "give either a TEXT to label, or --input"),
        (("t.txt", "--output", "o"), "did you mean --input t.txt?"),
        (("--input", "t.txt", "--format", "parquet"), "needs --output FILE"),
        (("--input", "t.txt", "--json"), "labels files by a classifier"),
        (("--input", "t.txt", "--metrics"), "labels files by a classifier"),
        (("--input", "t.txt", "--column", "body"), "t.txt is no table, but column is set"),
        (("--input", "none.txt"), "none.txt does not exist"),
        (("--input", "t.jsonl", "--column", "text"), "has no column 'text', but body"),
        (("--input", "n.parquet", "--column", "n"), "column 'n': expected a column of texts"),
        (("--input", "-", "--column", "body"), "standard input is lines of text"),
        (("--input", "five.jsonl", "--column", "body"), "line 3, got 5"),
        (("--input", "t.txt", "--output", "o.parquet"), "add --format parquet"),
        (("--input", "t.txt", "--output", "o.tsv.gz"), "written uncompressed"),
        (("--input", "t.txt", "--output", "-", "--format", "parquet"), "needs --output FILE"),
        (("up", "--format", "jsonl"), "are for --input FILE"),
        (("up", "--threads", "3"), "are for --input FILE"),
        (("up", "--label-column", "kind"), "--label-column is for --metrics"),
        (("--input", "IN", "--label-column", "kind"), "--label-column is for --metrics"),
        (("--input", "bad.gz"), "cannot unpack"),
    ],
)
def test_what_cannot_be_labelled_is_refused_with_the_next_step(
    path, tmp_path, monkeypatch, words, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text(RAW)
    (tmp_path / "t.jsonl").write_text('{"body": "up"}\n')
    (tmp_path / "five.jsonl").write_text('{"body": "up"}\n\n{"body": 5}\n')
    (tmp_path / "bad.gz").write_bytes(gzip.compress(RAW.encode())[:-20])
    pq.write_table(pa.table({"body": ["up", None], "n": [1, 2]}), tmp_path / "n.parquet")
    assert said in str(run(path, *words, code=1).exception)


def test_name_of_a_file_is_labelled_as_a_text_with_a_hint(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "up").write_text(RAW)
    for text, hint in (("up", "--input up labels the lines of the file"), (300 * "down ", "")):
        done = run(path, text)
        assert done.stdout.startswith("1\t__label__")
        assert hint in done.stderr
        assert bool(hint) == bool(done.stderr)


def test_column_may_come_late_in_the_first_lines_of_json(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"a": 1}\n' * 17_000 + '{"body": "up"}\n')
    pieces = list(read_texts(str(tmp_path / "t.jsonl"), "body"))
    assert sum(piece.lines for piece in pieces) == 17_001


def test_endless_line_is_refused_before_it_fills_the_memory(path, tmp_path, monkeypatch):
    monkeypatch.setattr(file_kinds, "UNIT_BYTES_MAX", 1 << 20)
    raw = b"up\n" * 400_000 + b"down " * 500_000
    (tmp_path / "t.txt.gz").write_bytes(gzip.compress(raw))
    said = str(run(path, "--input", str(tmp_path / "t.txt.gz"), code=1).exception)
    assert "t.txt.gz, from byte 1,048,578 on, has a line of more than 1,048,576 bytes" in said


def test_dash_as_output_is_standard_output(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text(RAW)
    assert run(path, "--input", "t.txt", "--output", "-").stdout.splitlines() == wanted(path)
    assert not (tmp_path / "-").exists()


def test_output_is_never_what_is_read(path, tmp_path):
    (tmp_path / "t.txt").write_text(RAW)
    (tmp_path / "link").symlink_to(tmp_path / "t.txt")
    for output in (tmp_path / "t.txt", tmp_path / "link", path):
        done = run(path, "--input", tmp_path / "t.txt", "--output", output, "--overwrite", code=1)
        assert "is read here, too" in str(done.exception)
    assert (tmp_path / "t.txt").read_text() == RAW
    assert run(path, "--input", tmp_path / "t.txt").stdout.splitlines() == wanted(path)


@pytest.mark.parametrize("packed", [bz2.compress, lzma.compress])
def test_damaged_stream_behind_a_whole_one_leaves_no_file(path, tmp_path, packed):
    whole = packed(RAW.encode() * 1000)
    (tmp_path / "a").write_bytes(whole + whole[:8] + b"damaged" + whole[15:])
    (tmp_path / "a").rename(tmp_path / ("a.bz2" if packed is bz2.compress else "a.xz"))
    done = run(path, "--input", tmp_path / "a.*", "--output", tmp_path / "out", code=1)
    assert "cannot unpack" in str(done.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", ["tsv", "jsonl", "parquet"])
def test_numbers_that_are_none_give_a_line_without_a_label(tmp_path, form):
    inputs = np.array([[np.nan, 0], [np.inf, 0], [0, 3e38]], np.float32)
    header = BinHeader(dim=2, model="supervised", loss="softmax", min_count=1)
    write_bin(
        tmp_path / "m.bin", header, [b"</s>", b"up", b"down"], [3, 2, 1], [inputs],
        [np.eye(2, dtype=np.float32) * 9], [b"__label__a", b"__label__b"], [2, 1],
    )  # fmt: skip
    (tmp_path / "t.txt").write_text("up\n\ndown up\n")
    run(tmp_path / "m.bin", "--input", tmp_path / "t.txt", "--format", form, "-k", 2,
        "--output", tmp_path / "out")  # fmt: skip
    if form == "tsv":
        assert (tmp_path / "out").read_text() == "-\t-\n" * 3
    elif form == "jsonl":
        rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
        assert rows == [{"labels": [], "probabilities": []}] * 3
    else:
        assert pq.read_table(tmp_path / "out")["labels"].to_pylist() == [[]] * 3
    model = LabelModel(tmp_path / "m.bin")
    assert model.predict(["up", "down"], 2) == [[], []]
    assert model.predict("up") == [[]]
    assert model.predict_arrow(["up"])["label"].to_pylist() == [None]


def test_output_keeps_the_mode_of_the_file_in_its_place(path, tmp_path):
    (tmp_path / "t.txt").write_text(RAW)
    (tmp_path / "out").write_bytes(b"")
    (tmp_path / "out").chmod(0o600)
    run(path, "--input", tmp_path / "t.txt", "--output", tmp_path / "out", "--overwrite")
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o600
    assert len((tmp_path / "out").read_text().splitlines()) == len(LINES)


def test_failed_output_leaves_no_file(path, tmp_path):
    (tmp_path / "bad.gz").write_bytes(gzip.compress(RAW.encode() * 10_000)[:-20])
    run(path, "--input", tmp_path / "bad.gz", "--output", tmp_path / "out", code=1)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["bad.gz"]


def test_labels_that_are_no_text_are_written_as_they_are():
    file = io.BytesIO()
    writer = LabelWriter(file, [b"__label__\xff"], "tsv", 0.0)
    found = np.array([[0], [-1]], np.int32)
    chances = np.array([[0.25], [np.nan]], np.float32)
    writer.write(found, chances)
    assert file.getvalue() == b"__label__\xff\t0.25\n-\t-\n"
    assert writer.lines == 2


@pytest.mark.parametrize("odd", [b"__label__a\tb", b"__label__\n", b"\r__label__a"])
def test_label_that_would_end_its_cell_is_refused_in_lines_and_kept_in_json(odd):
    labels, file = [b"__label__ok", odd], io.BytesIO()
    with pytest.raises(DataError, match="has a tab or the end of a line"):
        LabelWriter(file, labels, "tsv", 0.0)
    writer = LabelWriter(file, labels, "jsonl", 0.0)
    writer.write(np.array([[1], [0]], np.int32), np.ones((2, 1), np.float32))
    first, second = file.getvalue().splitlines()
    assert json.loads(first)["labels"] == [odd.decode()]
    assert json.loads(second)["labels"] == ["__label__ok"]


def test_probabilities_of_lines_are_the_shortest_text_of_their_float32():
    labels = [b"", b"a", b"longer than a number of five digits"]
    rng = np.random.default_rng(5)
    best = rng.integers(-1, 3, (500, 3), np.int32)
    chances = (10.0 ** rng.uniform(-12, 0, (500, 3))).astype(np.float32)
    chances[0], chances[1], chances[2] = 0, 1, np.nan
    best[3], chances[4:6] = -1, [1e-38, 1e-5, 9.99995e-5]
    for threshold in (0.0, 1e-4, 1.1):
        lines = bytes(label_lines(labels, best, chances, threshold)).split(b"\n")
        assert lines.pop() == b""
        for line, some, likely in zip(lines, best, chances, strict=True):
            pairs = [(labels[x], p) for x, p in zip(some.tolist(), likely, strict=True)
                     if x >= 0 and p >= threshold]  # fmt: skip
            assert (
                line == b"-\t-"
                if not pairs
                else line.split(b"\t")[::2] == [label for label, _ in pairs]
            )
            for text, (_, p) in zip(line.decode().split("\t")[1::2], pairs, strict=False):
                assert np.float32(text) == p
                digits = [part.split("e")[0].replace(".", "").strip("0") for part in (text, str(p))]
                assert p < 1e-17 or digits[0] == digits[1]
    assert bytes(label_lines(labels, best[:0], chances[:0], 0.0)) == b""
    for wrong in ((best + 3, chances), (best, chances[:5])):
        with pytest.raises(ValueError, match="label"):
            label_lines(labels, *wrong, 0.0)


def test_progress_tells_lines_and_of_plain_files_what_is_left(tmp_path, monkeypatch):
    for name in ("a.txt", "b.txt", "c.txt.gz"):
        (tmp_path / name).write_bytes(b"x" * 1000)
    now = [10.0]
    monkeypatch.setattr("snailps.cli.labelling.time.monotonic", lambda: now[0])
    progress = LinesProgress([str(tmp_path / name) for name in ("a.txt", "b.txt", "c.txt.gz")])
    progress.writer = LabelWriter(io.BytesIO(), [], "tsv", 0.0)
    progress.writer.lines = 50
    progress.note("a.txt", None)
    progress.note("a.txt", 600)
    now[0] += 10
    assert progress.line() == "50 lines, 5 a second, file 1 of 3, 20%, 40 s left"
    progress.note("b.txt", None)
    progress.note("b.txt", 300)
    assert "50%" in progress.line()
    packed = LinesProgress([str(tmp_path / "c.txt.gz")])
    packed.note("c.txt.gz", None)
    packed.note("c.txt.gz", 0)
    packed.note("c.txt.gz", 5000)
    now[0] += 10
    assert packed.line() == "0 lines, 0 a second"


def test_parquet_of_a_failed_run_says_one_error_and_refuses_labels_that_are_no_text(
    path, tmp_path, capsys, recwarn
):
    (tmp_path / "t.jsonl").write_text('{"body": "up"}\n{"body": 5}\n')
    found = run(path, "--input", tmp_path / "t.jsonl", "--column", "body", "--format", "parquet",
                "--output", tmp_path / "o", code=1)  # fmt: skip
    assert "line 2, got 5" in str(found.exception)
    assert not (tmp_path / "o").exists()
    with pytest.raises(DataError, match="is no UTF-8"):
        LabelWriter(io.BytesIO(), [b"__label__\xff"], "parquet", 0.0)


def test_rows_of_parquet_come_in_large_groups(path, tmp_path, monkeypatch):
    monkeypatch.setattr("snailps.vectors.texts.PIECE_BYTES", 50)
    (tmp_path / "t.txt").write_text("up down\n" * 5000)
    run(path, "--input", tmp_path / "t.txt", "--format", "parquet", "--output", tmp_path / "o")
    assert pq.ParquetFile(tmp_path / "o").metadata.num_row_groups == 1
