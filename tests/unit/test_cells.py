"""Cells of CSV and TSV: beside Python's csv module, in blocks cut anywhere, read in any pieces."""

import csv
import io
import random
from itertools import pairwise

import pytest

from snailps.data._examples import RowReader, first_row, rows_end
from snailps.data.columns import ColumnKind, DeclaredColumn
from snailps.data.examples import ExampleReader
from snailps.data.formats import separated
from snailps.data.formats.table import TableFile, open_table
from snailps.errors import DataError
from snailps.files.blocks import read_block
from snailps.files.scratch import Scratch

PIECES = ("a", "7", "word", '"', '""', ",", " ", "\t", "\r", "\n", "\r\n", "ä", "x" * 9, "'", ";")


def texts(rng, columns, rows, pieces):
    """Rows of cells; none has blanks at its ends, which csv keeps in cells without quotes."""
    made = []
    for _ in range(rows):
        cells = ["".join(rng.choices(pieces, k=rng.randrange(4))) for _ in range(columns)]
        if rng.random() < 0.02:
            cells[0] = "long " * 20_000 + "end"
        made.append([cell.strip(" ") or rng.choice(("", "z")) for cell in cells])
    return made


def written(rng, rows, *, end, blank=""):
    """CSV in which cells that need quotes have them, others now and then."""
    lines = []
    for row in rows:
        cells = []
        for cell in row:
            if any(one in cell for one in '",\r\n') or rng.random() < 0.2:
                cell = '"' + cell.replace('"', '""') + '"'
            cells.append(cell)
        if cells == [""]:  # else an empty line
            cells = ['""']
        lines.append(",".join(blank + cell + blank for cell in cells) + end)
    return "".join(lines)


def cells_of(path, names):
    """Rows of cells of a table, as its batches have them."""
    rows = []
    with open_table(path) as table:
        for batch in table.batches(names):
            columns = (batch.column(name).values(0, batch.rows) for name in names)
            rows += zip(*columns, strict=True)
    return [list(row) for row in rows]


def of_text(data, columns, format="csv", **options):
    reader = ExampleReader(
        format, columns=[DeclaredColumn(f"c{at}", ColumnKind.TEXT) for at in range(columns)],
        needs_labels=False, **options,
    )  # fmt: skip
    found = reader.read(data, "x")
    return [list(row) for row in zip(*found.cells, strict=True)]


@pytest.mark.parametrize("seed", range(12))
def test_cells_of_any_csv_are_those_of_pythons_parser(tmp_path, monkeypatch, seed):
    rng = random.Random(seed)
    names = [f"n {at}" for at in range(rng.randint(1, 5))]
    rows = texts(rng, len(names), 60, PIECES)
    rows[-1][-1] = "last"
    end = rng.choice(("\n", "\r\n"))
    text = written(rng, [names, *rows], end=end)
    text = text.removesuffix(end) if seed % 3 else text
    expected = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    assert expected == [names, *rows]
    spaced = written(rng, [names, *rows], end=end, blank=" ")
    rows = [[cell or None for cell in row] for row in rows]  # an empty cell is a missing text
    path = tmp_path / "x.csv"
    for made in (text, "\ufeff" + text, spaced):
        path.write_bytes(made.encode())
        for size in (rng.randint(1, 9), 64, 1000, 1 << 16):
            monkeypatch.setattr(separated.SeparatedFile, "first_bytes", size)
            monkeypatch.setattr(TableFile, "batch_bytes", size)
            assert cells_of(str(path), names) == rows


@pytest.mark.parametrize("format", ["csv", "tsv"])
@pytest.mark.parametrize("seed", range(4))
def test_cells_are_the_same_in_blocks_cut_anywhere(tmp_path, format, seed):
    rng = random.Random(seed)
    plain = [piece for piece in PIECES if piece not in ("\n", "\r\n", "\r")]
    rows = texts(rng, 3, 12, plain if format == "csv" else [p for p in plain if p != "\t"])
    end = rng.choice(("\n", "\r\n"))
    if format == "csv":
        text = written(rng, rows, end=end)
    else:
        text = "".join("\t".join(row) + end for row in rows)
    data = text.encode()
    assert of_text(data, 3, format) == [[cell.encode() for cell in row] for row in rows]
    path = tmp_path / f"x.{format}.txt"
    path.write_bytes(data)
    scratch = Scratch(str(tmp_path / "scratch"), 0)
    for blocks in (2, 3, 7, 50, 100):
        edges = [0, *sorted(rng.choices(range(len(data)), k=blocks - 1)), len(data)]
        found = []
        for start, stop in pairwise(edges):
            part = read_block(str(path), start, stop, unit="line", scratch=scratch)
            found += of_text(part, 3, format) if part else []
        assert found == of_text(data, 3, format)


def test_newline_in_quotes_is_refused_wherever_a_block_is_cut(tmp_path):
    data = b'1,a\n2,"b\nc"\n3,d\n'
    path = tmp_path / "x.txt"
    path.write_bytes(data)
    scratch = Scratch(str(tmp_path / "scratch"), 0)

    def read(*edges):
        for start, stop in pairwise(edges):
            part = read_block(str(path), start, stop, unit="line", scratch=scratch)
            ExampleReader("csv", columns="y:label, c:categorical").read(part, str(path), start)

    for at in range(1, len(data)):
        with pytest.raises(DataError, match="line 2, column 3: expected a closing quote on the"):
            read(0, at, len(data))


@pytest.mark.parametrize(
    ("data", "cells"),
    [
        (b'a,"b",c\n', [b"a", b"b", b"c"]),
        (b' a , "b, c" ,"d""e"\r\n', [b"a", b"b, c", b'd"e']),
        (b'"two\nlines",x\n', [b"two\nlines", b"x"]),
        (b'in"side,a\rb\n', [b'in"side', b"a\rb"]),
    ],
)
def test_first_row_of_csv(data, cells):
    assert first_row(data + b"next,row\n", b",", 2) == (cells, len(data))
    assert first_row(data[:-1], b",", 2) == (cells, len(data) - 1)


def test_first_row_that_is_not_closed_or_not_there():
    assert first_row(b'a,"b\n', b",", 2)[0] == [b"a"]
    assert first_row(b"", b",", 2) == ([b""], 0)


@pytest.mark.parametrize(
    ("data", "separator", "cells"),
    [(b"a  b c \r\n", b" ", [b"a", b"b", b"c"]), (b'"a\tb c"\n', b"\t", [b'"a', b'b c"'])],
)
def test_first_row_of_other_separators_has_no_quotes(data, separator, cells):
    assert first_row(data, separator, 0) == (cells, len(data))


@pytest.mark.parametrize("quotes", [1, 2])
def test_rows_end_of_every_beginning_of_a_text_is_behind_a_row(quotes):
    data = b'a,"b\nc, ""d""\n"\n"x"y,"\nz,"e"\n'
    ends = [len(b'a,"b\nc, ""d""\n"\n'), len(b'a,"b\nc, ""d""\n"\n"x"y,"\n'), len(data)]
    for size in range(len(data) + 1):
        found = rows_end(data[:size], b",", quotes)
        expected = max([0, *(end for end in ends if end <= size)])
        assert found == (expected if quotes == 2 else data[:size].rfind(b"\n") + 1)


def test_skipped_row_ends_where_its_last_cell_does(tmp_path):
    data = b'1,"a"\nx,"b\n5,c"\n1,"d"x\n2,e,"f\ng"\n3,h\n'
    reader = ExampleReader(
        "csv", columns="y:label, c:categorical", on_bad_line="skip", whole_rows=True
    )
    found = reader.read(data)
    assert (found.labels.tolist(), found.bad) == ([1, 3], 3)
    assert "line 2, column 1" in reader.first_bad


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_any_bytes_are_the_same_in_one_text_and_in_two(seed):
    """Malformed ones, too: with every separator, with quotes or without, cut at any row's end."""
    rng = random.Random(seed)
    pieces = [*(piece.encode() for piece in PIECES), b'"', b'","', b"\0", b"\xff"]
    kinds = (ColumnKind.TEXT, ColumnKind.CATEGORICAL, ColumnKind.NUMERIC, ColumnKind.IGNORE)
    for _ in range(150):
        data = b"".join(rng.choices(pieces, k=rng.randrange(60)))
        separator, quotes = rng.choice((b",", b"\t", b" ")), rng.choice((0, 1, 2))
        columns = [DeclaredColumn(f"c{at}", rng.choice(kinds)) for at in range(rng.randint(1, 4))]
        reader = RowReader(columns, separator, quotes, 0, skip=True)
        end = rows_end(data[: rng.randint(0, len(data))], separator, quotes)
        (whole, fault), *parts = (reader.read(part) for part in (data, data[:end], data[end:]))
        (first, _), (second, _) = parts
        joined = [a + b for a, b in zip(first.cells, second.cells, strict=True)]
        assert joined == list(whole.cells)
        assert first.keys.tolist() + second.keys.tolist() == whole.keys.tolist()
        assert first.bad + second.bad == whole.bad
        assert (fault is None) == (whole.bad == 0)
