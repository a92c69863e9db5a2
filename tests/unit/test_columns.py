"""data.columns and CSV/TSV of data.examples: declarations, cells against a slow twin, messages."""

import numpy as np
import pytest
from cases import examples
from hypothesis import example, given
from hypothesis import strategies as st
from test_examples import bits, plain
from twins import sparse as twin

from snailps.data._examples import hash_bytes
from snailps.data.columns import ColumnKind, DeclaredColumn, as_float, columns_of, is_number
from snailps.data.examples import ExampleReader
from snailps.data.name_columns import times_of
from snailps.errors import ConfigError, DataError

DECLARED = (
    "y:label, a:numeric, b:numeric log, c:numeric bucket 10 20.5 50, d:numeric log bucket 1 2, "
    "no:ignore, e:categorical, f:hashed 3"
)
TWINS = [
    ("y", "label", None),
    ("a", "numeric", (False, ())),
    ("b", "numeric", (True, ())),
    ("c", "numeric", (False, (10, 20.5, 50))),
    ("d", "numeric", (True, (1, 2))),
    ("no", "ignore", None),
    ("e", "categorical", None),
    ("f", "hashed", 3),
]
NUMBERS = st.sampled_from([b"1", b"", b" 20.5 ", b"-3", b"1e3", b'"7.5"', b" ", b"49.999999"])
WORDS = st.one_of(
    st.sampled_from([b"x", b"", b" two words ", b'"quoted, ""cell"""', b'""', b'"  "', b"NA",
                     b"exactly8", b"nine byte", b'"' + b"q" * 30 + b'"', b'in"side', b"\xff\0"]),
    st.binary(max_size=20).map(lambda b: b.translate(None, b'\n",\t')),
)  # fmt: skip
ODD = st.sampled_from([b"x", b"nan", b'"open', b'"a"b', b"1,1", b"1\t1", b'"1" ', b"\r", b'"'])
ENDS = st.sampled_from([b"\n", b"\r\n", b"\n\n", b" \n", b"\n\r\n"])


@st.composite
def tables(draw):
    """Rows of the columns above, most of them good, and their separator."""
    separator = draw(st.sampled_from([b",", b"\t"]))
    rows = []
    for _ in range(draw(st.integers(0, 4))):
        cells = [draw(st.sampled_from([b"1", b"-1", b"0.5"]))]
        cells += [draw(NUMBERS) for _ in range(4)]
        cells += [draw(WORDS) for _ in range(3)]
        if draw(st.integers(0, 3)) == 0:
            cells[draw(st.integers(0, 7))] = draw(ODD)
        if draw(st.integers(0, 9)) == 0:
            cells = cells[: draw(st.integers(0, 7))]
        rows.append(separator.join(cells) + draw(ENDS))
    text = b"".join(rows)
    cut = draw(st.integers(0, len(text))) if draw(st.integers(0, 3)) == 0 else len(text)
    return text[:cut], {b",": "csv", b"\t": "tsv"}[separator]


def check(text, format, hash_bits=0):
    """Both ways of treating malformed lines agree with the twin."""
    expected, bad = twin.examples_of(text, format, columns=TWINS, hash_bits=hash_bits)
    more = {"columns": DECLARED, "hash_bits": hash_bits}
    found = ExampleReader(format, on_bad_line="skip", **more).read(text)
    assert plain(found) == bits(expected)
    assert found.bad == len(bad)
    assert len(found.fields) == len(found.keys)
    if bad:
        with pytest.raises(DataError, match=rf"^the text, line {bad[0]}, column "):
            ExampleReader(format, **more).read(text)
    else:
        assert plain(ExampleReader(format, **more).read(text)) == bits(expected)


@given(table=tables(), hash_bits=st.sampled_from([0, 0, 1, 20, 62]))
@example((b"", "csv"), 0)
@example((b"1,,,,,,,", "csv"), 0)
@example((b'1,"1","1","1","1","1","1","1"', "csv"), 0)
@example((b"1\t\t\t\t\t\t\t\r", "tsv"), 0)
@examples(60)
def test_reader_any_table_agrees_with_twin(table, hash_bits):
    check(*table, hash_bits)


@pytest.mark.parametrize("format", ["csv", "tsv"])
def test_reader_every_truncation_of_a_table_agrees_with_twin(format):
    text = (
        b'1,2.5, -3 ,20.5,7,"what, ""ever""",a word,"z""z and a long one"\r\n\n'
        b"0,,,,,,,\n-1,1e3,0,9.99,0,x,exactly8,exactly8+exactly8\n"
    )
    text = text.replace(b",", b"\t") if format == "tsv" else text
    for end in range(len(text) + 1):
        check(text[:end], format)


def test_reader_known_table_gives_known_examples():
    found = ExampleReader("csv", columns=DECLARED).read(
        b'1,2.5,-3,20.5,0,zzz, Berlin ,"say ""hi"""\n0,,,9,,,,\n'
    )
    assert found.labels.tolist() == [1, 0]
    assert found.ptr.tolist() == [0, 6, 7]
    assert found.fields.tolist() == [0, 1, 2, 3, 4, 5, 2]
    log = np.float32(-np.log1p(3.0))
    assert found.values.tolist() == [2.5, log, 1, 1, 1, 1, 1]

    def key(name, cell):
        return hash_bytes(hash_bytes(0, name), cell) >> 1

    bucket = hash_bytes(hash_bytes(0, b"f"), b'say "hi"') >> 61
    assert found.keys.tolist() == [
        key(b"a", b""), key(b"b", b""), key(b"c", b"2"), key(b"d", b"0"), key(b"e", b"Berlin"),
        key(b"f", bucket.to_bytes(8, "little")), key(b"c", b"0"),
    ]  # fmt: skip


def test_hash_bytes_known_answers():
    """By hand: a chunk, its length on the seed, SplitMix64's finaliser; what must not be mixed."""
    assert hash_bytes(0, b"") == twin.mix64(0) == 0
    assert hash_bytes(0, b"a") == twin.mix64(0x9E3779B97F4A7C15 ^ 0x61)
    assert hash_bytes(7, b"exactly8!") == twin.hash_text(7, b"exactly8!")
    texts = [b"a", b"a\0", b"a\0\0\0\0\0\0\0", b"a" * 8, b"a" * 8 + b"\0", b"a" * 16]
    assert len({hash_bytes(1, text) for text in texts}) == len(texts)


def test_reader_hashed_column_stays_below_its_keys_and_uses_them_all():
    text = b"".join(b"1,v%d\n" % i for i in range(2000))
    found = ExampleReader("csv", columns="y:label, v:hashed 5").read(text)
    assert len(np.unique(found.keys)) == 32


def test_reader_global_hash_bits_fold_every_kind_of_key():
    text = b"".join(b"1,%d,%d,0,0,,v%d,w%d\n" % (i, i, i, i) for i in range(500))
    found = ExampleReader("csv", columns=DECLARED, hash_bits=6).read(text)
    assert int(found.keys.max()) < 64
    wide = ExampleReader("csv", columns=DECLARED).read(text)
    assert (wide.keys >> np.uint64(57) == found.keys).all()
    assert int(wide.keys.max()) < 2**63


# ---- headers, and which format ----


@pytest.mark.parametrize("header", [b"y,a,b\n", b'"y", a ,b\r\n', b"\xef\xbb\xbfy,a,b\n", b"y,a,b"])
def test_reader_header_at_the_start_of_a_file_is_left_out(header):
    reader = ExampleReader("csv", columns="y:label, a:numeric, b:categorical")
    rest = b"1,2,3\n" if header.endswith(b"\n") else b""
    assert len(reader.read(header + rest).labels) == len(rest) // 6
    with pytest.raises(DataError, match="expected a label"):
        reader.read(header + rest, "", 10)


def test_reader_header_of_other_names_is_a_malformed_line():
    reader = ExampleReader("csv", columns="y:label, a:numeric")
    with pytest.raises(
        DataError, match=r"line 1, column 1: expected a label.* in column y, got 'y'"
    ):
        reader.read(b"y,other\n1,2\n")


def test_reader_line_numbers_count_the_header():
    reader = ExampleReader("tsv", columns="y:label, a:numeric")
    with pytest.raises(DataError, match="line 3, column 3: "):
        reader.read(b"y\ta\n1\t2\n1\tx\n")


@pytest.mark.parametrize(
    ("text", "format"), [(b"1,2\n", "csv"), (b"1\t2\n", "tsv"), (b"\n\n1\t2,5\n", "tsv")]
)
def test_reader_auto_with_columns_tells_tsv_by_its_tabs(text, format):
    reader = ExampleReader("auto", columns="y:label, a:categorical")
    assert len(reader.read(text).labels) == 1
    assert reader.format == format


def test_reader_auto_with_columns_is_told_by_the_first_line_of_the_file_alone():
    reader = ExampleReader("auto", columns="y:label, a:categorical, b:categorical")
    later = b"1,x\ty\tz\tt,Rome\n"
    with pytest.raises(DataError, match=r"f.txt: expected its first line, .* set format to csv"):
        reader.read(later, "f.txt", 100)
    assert reader.learn_format(b"0,x\ty,Oslo")
    assert (reader.format, len(reader.read(later, "f.txt", 100).labels)) == ("csv", 1)
    header = b"y\ta\tb\n1\tx,y,z\tOslo\n"
    assert (len(reader.read(header, "g.txt").labels), reader.format) == (1, "tsv")


# ---- malformed lines ----

MALFORMED = [
    (b"x,1,a", 1, "a label.* in column y", "'x'"),
    (b",1,a", 1, "a label.* in column y", "nothing"),
    (b"1,one,a", 3, "a finite number.* in column n", "'one'"),
    (b"1, 2 3 ,a", 4, "a finite number.* in column n", "'2 3'"),
    (b"1,inf,a", 3, "a finite number.* in column n", "'inf'"),
    (b"1,1e99,a", 3, "a finite number.* in column n", "'1e99'"),
    (b'1,"2x",a', 4, "a finite number.* in column n", "'2x'"),
    (b"1,2", 4, "3 columns", "2"),
    (b"1", 2, "3 columns", "1"),
    (b" ", 2, "a label|3 columns", ""),
    (b"1,2,a,b", 6, "3 columns", "4"),
    (b'1,2,"a,b",c', 10, "3 columns", "4"),
    (b'1,2,"a', 5, "a closing quote.* in column c", "'\"a'"),
    (b'1,2,"a"b', 5, "a closing quote.* in column c", "'\"a\"b'"),
]


ENDINGS = (b"\n", b"\r\n", b"\n" + b"1,1,b\n" * 20)


@pytest.mark.parametrize(
    ("line", "column", "expected", "got", "ending"),
    [(*row, b"") for row in MALFORMED] + [(*MALFORMED[-1], ending) for ending in ENDINGS],
)
def test_reader_malformed_row_says_where_and_what(line, column, expected, got, ending):
    columns = "y:label, n:numeric, c:categorical"
    text = b"1,,\n\n" + line + ending
    with pytest.raises(DataError, match=rf"line 3, column {column}: expected ({expected}).*{got}"):
        ExampleReader("csv", columns=columns).read(text)
    found = ExampleReader("csv", columns=columns, on_bad_line="skip").read(text)
    assert (found.bad, len(found.labels)) == (1, 1 + ending.count(b"b"))


# ---- declarations ----


def test_columns_of_every_kind():
    assert columns_of(DECLARED) == (
        DeclaredColumn("y", ColumnKind.LABEL),
        DeclaredColumn("a", ColumnKind.NUMERIC),
        DeclaredColumn("b", ColumnKind.NUMERIC, log=True),
        DeclaredColumn("c", ColumnKind.BUCKET, bounds=(10, 20.5, 50)),
        DeclaredColumn("d", ColumnKind.BUCKET, log=True, bounds=(1, 2)),
        DeclaredColumn("no", ColumnKind.IGNORE),
        DeclaredColumn("e", ColumnKind.CATEGORICAL),
        DeclaredColumn("f", ColumnKind.HASHED, bits=3),
    )


def test_columns_of_ranges_lists_and_newlines():
    columns = columns_of("label:label\nI1..I3:numeric log, odd:name:categorical\n")
    assert [column.name for column in columns] == ["label", "I1", "I2", "I3", "odd:name"]
    assert [column.log for column in columns] == [False, True, True, True, False]
    assert columns_of(["y:label", " c9..c11 : hashed 4 "])[1:] == tuple(
        DeclaredColumn(name, ColumnKind.HASHED, bits=4) for name in ("c9", "c10", "c11")
    )
    assert columns_of("2..4:numeric, y:label")[0].name == "2"


@pytest.mark.parametrize(
    ("declared", "what"),
    [
        ("a", "expected name:kind, got 'a'"),
        ("a:", "expected name:kind"),
        (":label", "expected name:kind"),
        ("a:numeric", "exactly one column of kind label, got none"),
        ("a:label, b:label", "exactly one column of kind label, got a and b"),
        ("a:label, b:ignore, b:numeric", "every name once, got 'b'"),
        ("a:label, b:number", "expected label, ignore"),
        ("a:label x", "expected label, ignore"),
        ("a:label, b:hashed", "expected label, ignore"),
        ("a:label, b:hashed 0", "1 to 62 bits"),
        ("a:label, b:hashed 63", "1 to 62 bits"),
        ("a:label, b:numeric bucket", "expected label, ignore"),
        ("a:label, b:numeric bucket log 3", "expected numbers after bucket"),
        ("a:label, b:numeric bucket 3 2", "ascending finite bounds"),
        ("a:label, b:numeric bucket 3 3", "ascending finite bounds"),
        ("a:label, b:numeric bucket nan", "ascending finite bounds"),
        ("a:label, b:numeric bucket 1 inf", "ascending finite bounds"),
        ("a:label, b:numeric log log", "expected label, ignore"),
        ("a:label, c9..c1:ignore", "ascending range"),
    ],
)
def test_columns_of_what_cannot_be_read_is_refused(declared, what):
    with pytest.raises(ConfigError, match=what):
        columns_of(declared)


@pytest.mark.parametrize("text", ["1_0", "1_000.5", "1e1_0", "\uff11", "0x10", "", "one"])
def test_cells_that_only_python_reads_are_no_numbers(text):
    for cell in (text, text.encode()):
        assert not is_number(cell)
        with pytest.raises(ValueError):
            as_float(cell)
        assert not len(times_of([b"7", text.encode()]))
    assert [as_float(cell) for cell in (" 1.5 ", b"1e1", 3, np.float32(0.5))] == [1.5, 10, 3, 0.5]
