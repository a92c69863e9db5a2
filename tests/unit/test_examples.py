"""data.examples: LIBSVM and LIBFFM against a slow twin, numbers, malformed lines, messages."""

import gzip
import locale
import random
import struct
from contextlib import closing
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pytest
from cases import examples
from hypothesis import example, given
from hypothesis import strategies as st
from twins import sparse as twin

from snailps.data._examples import EntryReader, Examples, rows_that_repeat
from snailps.data.examples import ExampleReader
from snailps.errors import ConfigError, DataError
from snailps.files.blocks import InputFile, cut, expand, read_block
from snailps.files.scratch import Scratch

NUMBERS = st.sampled_from(
    [b"1", b"0", b"-1", b"+1", b"0.5", b"-.25", b"3.", b"1e3", b"1E-3", b"1e+2", b"123456.789",
     b"0.1234567890123456789", b"16777217", b"123456789012345678901234567890", b"1e-46", b"1e38",
     b"00000000001.50000000000", b"3.4028235e38", b"0e99999999999", b"1234567.12345678"]
)  # fmt: skip
NO_NUMBERS = st.sampled_from(
    [b"", b"-", b"+-1", b".", b"1e", b"1e+", b"nan", b"inf", b"-Infinity", b"0x10", b"1_0", b"1,5",
     b"--1", b"1.2.3", b"3.5e38", b"1e39", b"1e999999999999", b"\xff", b"1\0"]
)  # fmt: skip
WHOLES = st.one_of(
    st.integers(0, 2**63 + 5).map(lambda i: b"%d" % i),
    st.sampled_from([b"0", b"007", b"2147483647", b"2147483648", b"18446744073709551616",
                     b"-1", b"+1", b"1.0", b"x", b"", b"99999999999999999999999999"]),
)  # fmt: skip
PIECES = st.one_of(
    st.tuples(WHOLES, NUMBERS).map(b":".join),
    st.tuples(st.sampled_from([b"0", b"39"]), WHOLES, NUMBERS).map(b":".join),
    st.tuples(WHOLES, NO_NUMBERS).map(b":".join),
    NUMBERS,
    st.sampled_from([b"qid:3", b"qid:", b"qid:x", b"#", b"# 1:1", b"1:2#", b"\r", b"", b"1::2"]),
)
BLANKS = st.sampled_from([b" ", b"  ", b"\t", b" \t "])
ENDS = st.sampled_from([b"\n", b"\r\n", b" \n", b"\n\n", b" \r\n", b"\n \t\n"])


@st.composite
def texts(draw):
    """Texts of which most lines are good, and some nearly so."""
    parts = []
    for _ in range(draw(st.integers(0, 5))):
        parts.append(draw(st.sampled_from([b"", b"", b" "])) + draw(NUMBERS | NO_NUMBERS))
        width = draw(st.sampled_from([1, 2]))
        for _ in range(draw(st.integers(0, 4))):
            good = [b"%d" % draw(st.integers(0, 10**9)) for _ in range(width)]
            entry = b":".join([*good, draw(NUMBERS)])
            parts.append(draw(BLANKS) + draw(st.sampled_from([entry, entry, draw(PIECES)])))
        parts.append(draw(ENDS))
    text = b"".join(parts)
    return text[: draw(st.integers(0, len(text)))] if draw(st.booleans()) else text


def plain(found: Examples):
    """The examples as the twin gives them."""
    assert (found.labels.dtype, found.values.dtype) == (np.float64, np.float32)
    assert (found.ptr.dtype, found.keys.dtype, found.fields.dtype) == (
        np.int64,
        np.uint64,
        np.int32,
    )
    assert found.ptr[0] == 0
    assert found.ptr[-1] == len(found.keys) == len(found.values)
    assert len(found.fields) in (0, len(found.keys))
    rows = []
    for i, label in enumerate(found.labels):
        part = slice(found.ptr[i], found.ptr[i + 1])
        rows.append((label, *(array[part].tolist() for array in found[2:5])))
    return bits(rows)


def bits(rows):
    """Floats by their bits: -0 is not 0."""
    return [
        (struct.pack("<d", label), keys, [struct.pack("<f", value) for value in values], fields)
        for label, keys, values, fields in rows
    ]


def check(text, format, **more):
    """Both ways of treating malformed lines agree with the twin."""
    expected, bad = twin.examples_of(text, format, hash_bits=more.get("hash_bits", 0))
    found = ExampleReader(format, on_bad_line="skip", **more).read(text)
    assert plain(found) == bits(expected)
    assert found.bad == len(bad)
    stopping = ExampleReader(format, **more)
    if bad:
        with pytest.raises(DataError, match=rf"^the text, line {bad[0]}, column "):
            stopping.read(text)
    else:
        assert plain(stopping.read(text)) == bits(expected)


LABELS = [
    b"16777217", b"-16777217", b"20240131001", b"20240131002", b"9007199254740991", b"0.1",
    b"1e-60", b"9e9", b"0.99999999", b"1.0", b"-0", b"+7", b"1.6777217e7", b"3e38", b"00000000012",
]  # fmt: skip


@pytest.mark.parametrize("build", ["", "none"])
@pytest.mark.parametrize("tail", [b" 3:1", b"", b" 3:1:1"])
def test_reader_gives_labels_as_the_nearest_doubles(build, tail):
    text = b"".join(label + tail + b"\n" for label in LABELS) * 9
    reader = EntryReader(tail.count(b":") == 2, 0, False, build=build)
    found, fault = reader.read(text)
    assert fault is None
    assert found.labels.tobytes() == np.array([*map(float, LABELS)] * 9).tobytes()


def test_reader_of_a_table_gives_labels_as_the_nearest_doubles():
    text = b"".join(b'"%s",1\n' % label for label in [*LABELS, b"true"])
    found = ExampleReader("csv", columns="y:label, a:numeric").read(text)
    assert found.labels.tolist() == [*map(float, LABELS), 1.0]


@pytest.mark.parametrize("format", ["libsvm", "libffm"])
@given(text=texts(), hash_bits=st.sampled_from([0, 0, 1, 22, 62]))
@example(b"1", 0)
@example(b"1 ", 0)
@example(b"\r", 0)
@example(b"1 1:1\r1 2:2\n", 0)
@example(b"1 qid:18446744073709551615 1:1\n", 0)
@examples(40)
def test_reader_any_text_agrees_with_twin(format, text, hash_bits):
    check(text, format, hash_bits=hash_bits)


@pytest.mark.parametrize("format", ["libsvm", "libffm"])
def test_reader_every_truncation_of_a_text_agrees_with_twin(format):
    field = b"3:" if format == "libffm" else b""
    text = (
        b"# head\r\n+1 qid:2 %s9223372036854775807:-1.25e-3 \t%s4:.5 # tail\n\n"
        b"-1\r\n0.5 %s1:1 %s123456789:12345678.87654321\n" % ((field,) * 4)
    )
    for end in range(len(text) + 1):
        check(text[:end], format)


def test_reader_known_libsvm_gives_known_examples():
    text = (
        b"# a comment line\r\n+1 3:1 11:0.5 # one behind an example\r\n\n-1\n"
        b"0.5 qid:7 9223372036854775807:-1e-3\t0:.5\r\n3 5:1 5:2 2:0"
    )
    found = ExampleReader("libsvm").read(text)
    assert found.labels.tolist() == [1, -1, 0.5, 3]
    assert found.ptr.tolist() == [0, 2, 2, 4, 6]
    assert found.keys.tolist() == [3, 11, 2**63 - 1, 0, 5, 2]
    assert found.values.tolist() == [1, 0.5, np.float32(-1e-3), 0.5, 3, 0]
    assert (len(found.fields), found.bad) == (0, 0)


def test_reader_known_libffm_gives_known_examples():
    found = ExampleReader("libffm").read(b"1 0:3:1 2147483647:11:0.5\n0 7:3:-2\n")
    assert found.labels.tolist() == [1, 0]
    assert found.ptr.tolist() == [0, 2, 3]
    assert found.keys.tolist() == [3, 11, 3]
    assert found.fields.tolist() == [0, 2147483647, 7]
    assert found.values.tolist() == [1, 0.5, -2]


def test_reader_a9a_has_its_known_counts(data_dir):
    found = ExampleReader("auto").read((data_dir / "a9a" / "a9a").read_bytes())
    assert (len(found.labels), len(found.keys)) == (32561, 451592)
    assert int((found.labels == 1).sum()) == 7841
    assert (found.values == 1).all()
    assert (int(found.keys.min()), int(found.keys.max())) == (1, 123)


# ---- numbers ----


def values_of(numbers):
    text = b"".join(b"0 1:%s\n" % number for number in numbers)
    return ExampleReader("libsvm").read(text).values


@given(
    st.lists(
        st.tuples(
            st.text("0123456789", max_size=24),
            st.text("0123456789", max_size=24),
            st.integers(-70, 40) | st.none(),
        ),
        min_size=1,
        max_size=20,
    )
)
@examples(40)
def test_reader_any_decimal_gives_the_nearest_float32(parts):
    numbers, expected = [], []
    for whole, fraction, power in parts:
        number = f"{whole or '0'}.{fraction}" + ("" if power is None else f"e{power}")
        try:
            expected.append(twin.real(number.encode()))
        except twin.Malformed:
            continue
        numbers.append(number.encode())
    if numbers:
        found = values_of(numbers)
        assert found.tobytes() == np.array(expected, np.float32).tobytes()


@given(st.lists(st.integers(0, 0x7F7FFFFF), min_size=1, max_size=50))
@examples(40)
def test_reader_printed_float32_comes_back(patterns):
    floats = np.array(patterns, np.uint32).view(np.float32)
    for form in ("%.9g", "%.17g", "%.25e"):
        assert values_of([(form % float(f)).encode() for f in floats]).tobytes() == floats.tobytes()
    shortest = [str(f).encode() for f in floats]
    assert values_of(shortest).tobytes() == floats.tobytes()


def test_reader_middles_between_float32_round_to_even():
    """Exact middles, and what lies so little above them that no double can tell."""
    rng = random.Random(3)
    numbers, expected = [], []
    for _ in range(2000):
        low = np.uint32(rng.randrange(0x0A000000, 0x7F000000)).view(np.float32)
        high = np.nextafter(low, np.float32(np.inf))
        middle = (float(low) + float(high)) / 2
        digits = f"{Decimal(middle):f}"
        digits += "" if "." in digits else ".0"
        numbers += [digits, digits + "0" * 30 + "1"]
        expected += [low if int(low.view(np.uint32)) % 2 == 0 else high, high]
    found = values_of([number.encode() for number in numbers])
    assert found.tolist() == [float(f) for f in expected]


def test_reader_numbers_do_not_depend_on_the_locale():
    before = locale.setlocale(locale.LC_NUMERIC)
    try:
        for name in ("de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "nl_NL.UTF-8"):
            try:
                locale.setlocale(locale.LC_NUMERIC, name)
                break
            except locale.Error:
                continue
        else:
            pytest.skip("this machine has no locale with a decimal comma")
        assert values_of(
            [b"0.1234567890123456789012345", b"1.00000005960464477539062501"]
        ).tolist() == [np.float32(0.12345679), np.float32(1.0000001)]
    finally:
        locale.setlocale(locale.LC_NUMERIC, before)


# ---- malformed lines ----

MALFORMED = [
    ("libsvm", b"x 1:1", 1, "a label", "'x'"),
    ("libsvm", b"nan 1:1", 1, "a label", "'nan'"),
    ("libsvm", b"1,3 1:1", 2, "a label", "',3'"),
    ("libsvm", b"1:1 2:1", 2, "a label", "':1'"),
    ("libsvm", b"1#c", 2, "a label", "'#c'"),
    ("libsvm", b"1 a:1", 3, "index:value", "'a:1'"),
    ("libsvm", b"1 :1", 3, "index:value", "':1'"),
    ("libsvm", b"1 -1:1", 3, "index:value", "'-1:1'"),
    ("libsvm", b"1 9223372036854775808:1", 3, "below 2^63", "'9223372036854775808:1'"),
    ("libsvm", b"1 18446744073709551617:1", 3, "below 2^63", "'18446744073709551617:1'"),
    ("libsvm", b"1 1", 4, "a colon", "nothing"),
    ("libsvm", b"1 1 2:1", 4, "a colon", "nothing"),
    ("libsvm", b"1 1:", 5, "a finite number", "nothing"),
    ("libsvm", b"1 1: 2:1", 5, "a finite number", "nothing"),
    ("libsvm", b"1 1:nan", 5, "a finite number", "'nan'"),
    ("libsvm", b"1 1:-inf", 5, "a finite number", "'-inf'"),
    ("libsvm", b"1 1:1e39", 5, "a finite number", "'1e39'"),
    ("libsvm", b"1 1:0x1p3", 6, "then a blank", "'x1p3'"),
    ("libsvm", b"1 1:1:1", 6, "then a blank", "':1'"),
    ("libsvm", b"1 1:1;", 6, "then a blank", "';'"),
    ("libsvm", b"1 1:1\0", 6, "then a blank", "'\\\\x00'"),
    ("libsvm", b"1 1:1\r2 2:2", 6, "then a blank", r"'\\r2'"),
    ("libsvm", b"1 qid:x 1:1", 7, "a whole number after qid:", "'x'"),
    ("libsvm", b"1 1:1 qid:3", 7, "index:value", "'qid:3'"),
    ("libsvm", b"1 " + b"y" * 50, 3, "index:value", "'" + "y" * 40 + r"\.\.\.'"),
    ("libffm", b"1 x:1:1", 3, "field:index:value", "'x:1:1'"),
    ("libffm", b"1 2147483648:1:1", 3, r"below 2\^31", "'2147483648:1:1'"),
    ("libffm", b"1 1", 4, "a colon and an index", "nothing"),
    ("libffm", b"1 1:x:1", 5, "index:value", "'x:1'"),
    ("libffm", b"1 1:1", 6, "a colon and a value", "nothing"),
    ("libffm", b"1 1:1:z", 7, "a finite number", "'z'"),
]


ENDINGS = (b"\n", b"\r\n", b"\n" + b"1\n" * 20)


@pytest.mark.parametrize(
    ("format", "line", "column", "expected", "got", "ending"),
    [(*row, b"") for row in MALFORMED] + [(*MALFORMED[0], ending) for ending in ENDINGS],
)
def test_reader_malformed_line_says_where_and_what(format, line, column, expected, got, ending):
    text = b"1\n\n# c\n" + line + ending
    expected = expected.replace("2^", r"2\^")
    what = rf"^the text, line 4, column {column}: expected .*{expected}.*, got {got}\. Correct"
    with pytest.raises(DataError, match=what):
        ExampleReader(format).read(text)
    skipping = ExampleReader(format, on_bad_line="skip")
    found = skipping.read(text)
    assert found.bad == 1
    assert len(found.labels) == 1 + ending.count(b"1")
    assert skipping.first_bad.startswith(f"the text, line 4, column {column}: expected ")


@pytest.mark.parametrize(
    ("columns", "rows", "where"),
    [
        ("", b"0 1:1\n# c\n-2 1:1\n-3 1:1\n", ""),
        ("a:categorical, y:label", b"a,y\nb,0\nc,-2\n", " in column y"),
    ],
)
def test_reader_of_label_below_the_least_names_its_line(columns, rows, where):
    assert len(ExampleReader(columns=columns).read(rows).labels) > 1
    with pytest.raises(
        DataError, match=rf"line 3, .*: expected a label of at least 0{where}, got '-2'"
    ):
        ExampleReader(columns=columns, label_min=0).read(rows)


def test_reader_skipping_keeps_the_first_reason_and_counts_a_text():
    reader = ExampleReader("libsvm", on_bad_line="skip")
    assert reader.first_bad == ""
    assert reader.read(b"1 1:1\nx\n1 y\n", "a.txt").bad == 2
    assert reader.read(b"1 z\n", "b.txt").bad == 1
    assert reader.first_bad == "a.txt, line 2, column 1: expected a label, a number such as -1, " \
                               "0.5 or 3, got 'x'"  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
def test_reader_malformed_line_behind_a_block_start_has_its_number_in_the_file(tmp_path, packed):
    content = b"".join(b"1 %d:1\n" % i for i in range(500)) + b"bad\n" + b"0\n" * 50
    path = tmp_path / ("f.txt.gz" if packed else "f.txt")
    path.write_bytes(gzip.compress(content) if packed else content)
    with closing(Scratch(str(tmp_path / "scratch"), 0)) as scratch:
        seen = 0
        for block in cut(expand([str(path)], scratch), 97):
            data = read_block(block.path, block.start, block.stop, unit="line", scratch=scratch)
            if b"bad" in data:
                seen += 1
                with pytest.raises(DataError, match=r"f\.txt(\.gz)?, line 501, column 1: "):
                    ExampleReader("libsvm").read(data, block.path, block.start)
        assert seen == 1


def test_reader_malformed_line_of_a_file_that_is_gone_counts_in_the_block():
    with pytest.raises(DataError, match=r"/no/such, line 2 of the block at byte 1,234, column 1: "):
        ExampleReader("libsvm").read(b"1\nx\n", "/no/such", 1234)


@pytest.mark.parametrize("block_bytes", [1, 7, 64, 1000, 10**6])
@pytest.mark.parametrize("packed", [False, True])
def test_reader_blocks_of_files_add_up_to_the_files(tmp_path, packed, block_bytes):
    rng = random.Random(block_bytes)
    texts = []
    for number in range(3):
        lines = [
            b"%d " % rng.choice([0, 1])
            + b" ".join(b"%d:%d" % (rng.randrange(99), i) for i in range(rng.randrange(5)))
            for _ in range(40)
        ]
        texts.append(rng.choice([b"\n", b"\r\n"]).join(lines) + rng.choice([b"", b"\n"]))
        path = tmp_path / "in" / f"{number}.svm{'.gz' if packed else ''}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(texts[-1]) if packed else texts[-1])
    reader = ExampleReader("libsvm")
    with closing(Scratch(str(tmp_path / "scratch"), 0)) as scratch:
        sources: list[InputFile] = expand([str(tmp_path / "in")], scratch)
        rows = []
        for block in cut(sources, block_bytes):
            data = read_block(block.path, block.start, block.stop, unit="line", scratch=scratch)
            rows += plain(reader.read(data, block.path, block.start))
    assert rows == [row for text in texts for row in plain(reader.read(text))]


# ---- settings ----


@pytest.mark.parametrize(
    ("text", "format"),
    [
        (b"1 3:1 4:2\n", "libsvm"),
        (b"1 3:1:2\n", "libffm"),
        (b"# c\n\n1\n-1 # 3:4:5\n0 qid:2 1:0.5\n", "libsvm"),
        (b"1\n0\n1 2:3:4", "libffm"),
    ],
)
def test_reader_auto_takes_the_format_of_the_first_line_that_shows_it(text, format):
    reader = ExampleReader("auto")
    assert plain(reader.read(text)) == plain(ExampleReader(format).read(text))
    assert reader.format == format


def test_reader_auto_decides_once_and_not_by_lines_without_entries():
    reader = ExampleReader("auto")
    assert reader.read(b"1\n0\n").labels.tolist() == [1, 0]
    assert reader.format == "auto"
    with pytest.raises(DataError, match="a label"):
        reader.read(b"word\n")
    reader.read(b"1 1:2:3\n")
    with pytest.raises(DataError, match="column 6: expected a colon and a value"):
        reader.read(b"1 1:2\n")


def test_reader_byte_order_mark_is_left_out_at_the_start_only():
    reader = ExampleReader("libsvm")
    assert reader.read(b"\xef\xbb\xbf1 1:1\n").labels.tolist() == [1]
    with pytest.raises(DataError, match="line 1, column 1: expected a label"):
        reader.read(b"\xef\xbb\xbfx 1:1\n")


@pytest.mark.parametrize(
    ("format", "more", "what"),
    [
        ("svm", {}, "format: expected one of auto, libsvm"),
        ("libsvm", {"hash_bits": 63}, "hash_bits: expected 0 to 62"),
        ("libsvm", {"hash_bits": -1}, "hash_bits"),
        ("libsvm", {"on_bad_line": "ignore"}, "on_bad_line: expected stop or skip"),
        ("libsvm", {"columns": "a:label"}, "columns: expected none"),
        ("csv", {}, "expected columns"),
        ("tsv", {"columns": " "}, "expected columns"),
    ],
)
def test_reader_senseless_setting_is_refused(format, more, what):
    with pytest.raises(ConfigError, match=what):
        ExampleReader(format, **more)


def test_reader_hash_bits_known_answer():
    """SplitMix64's first output from state 0 is the hash of key 0."""
    assert twin.hash_key(0) == 0xE220A8397B1DCDAF
    found = ExampleReader("libsvm", hash_bits=8).read(b"1 0:1\n")
    assert found.keys.tolist() == [0xE2]


@pytest.mark.parametrize("format", ["libsvm", "libffm"])
def test_index_that_a_line_repeats_is_the_sum_of_its_values(format):
    """By hand, wherever the line has it; another field is another entry, and rows stay apart."""
    lines = {
        "libsvm": b"1 3:1 3:2\n0\n1 2:1 1:5 2:.5 7:1 2:1\n0 7:1\n1 7:4 8:1\n",
        "libffm": b"1 0:3:1 0:3:2\n0\n1 1:2:1 0:1:5 1:2:.5 2:7:1 1:2:1\n"
        b"0 0:7:1 1:7:2\n1 0:7:4 0:8:1\n",
    }  # fmt: skip
    read = ExampleReader(format).read(lines[format])
    rows = [
        list(zip(read.keys[a:b].tolist(), read.values[a:b].tolist(), strict=True))
        for a, b in pairwise(read.ptr.tolist())
    ]
    fourth = [(7, 1)] if format == "libsvm" else [(7, 1), (7, 2)]
    assert rows == [[(3, 3)], [], [(2, 2.5), (1, 5), (7, 1)], fourth, [(7, 4), (8, 1)]]
    assert len(read.fields) == (len(read.keys) if format == "libffm" else 0)
    for text in (b"", b"1\n", b"1 5:1\n" if format == "libsvm" else b"1 0:5:1\n"):
        assert len(ExampleReader(format).read(text).labels) == text.count(b"\n")


@pytest.mark.parametrize("with_fields", [False, True])
@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=9), max_size=9))
@examples(60)
def test_rows_that_repeat_a_key_are_found_in_any_order(with_fields, rows):
    entries = [entry for row in rows for entry in row]
    repeats = rows_that_repeat(
        np.cumsum([0, *map(len, rows)]),
        np.array([key << 60 | key for _, key in entries], np.uint64),
        np.array([field for field, _ in entries] if with_fields else [], np.int32),
    )
    of = (lambda entry: entry) if with_fields else (lambda entry: entry[1])
    wanted = [len({of(entry) for entry in row}) < len(row) for row in rows]
    if not (entries or not with_fields):
        wanted = [False] * len(rows)
    assert repeats.tolist() == (wanted if any(wanted) else [])
