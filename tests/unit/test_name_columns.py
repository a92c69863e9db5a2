"""data.name_columns: lines of names, their counts, their numbers."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from snailps.data._text import NameTable
from snailps.data.name_columns import NameColumns, NameCounts, Names, ValueMoments
from snailps.data.packed_words import PackedWords
from snailps.errors import DataError
from snailps.files.blocks import read_block, read_head
from snailps.files.driver_files import PREFIX, is_driver_file
from snailps.files.scratch import Scratch

TRIPLES = NameColumns(("head", "relation", "tail"))
RATINGS = NameColumns(("user", "item"), valued=True)


def read(columns, data, start=0, head=None):
    return columns.read(data, "x", start, data if head is None else head)


@pytest.mark.parametrize(
    "data",
    [
        b"a\tlikes\tb\nb\tis in\tc d\n",
        b"a\tlikes\tb\r\nb\tis in\tc d\r\n",
        b"\na\tlikes\tb\n\nb\tis in\tc d",
    ],
)
def test_read_of_triples_by_tabs_keeps_spaces_in_names(data):
    found = read(TRIPLES, data)
    assert found.names == [[b"a", b"b"], [b"likes", b"is in"], [b"b", b"c d"]]
    assert len(found) == 2
    assert len(found.values) == 0


@pytest.mark.parametrize("data", [b"a,r,b\nc,r,d\n", b"a r b\nc  r d\n", b"a, r ,b\n\n c,r,d\n"])
def test_read_of_triples_by_commas_or_spaces(data):
    assert read(TRIPLES, data).names == [[b"a", b"c"], [b"r", b"r"], [b"b", b"d"]]


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b'"Doe, J.",r,"say ""b"""\n a ," r",b\n',
         [[b"Doe, J.", b"a"], [b"r", b" r"], [b'say "b"', b"b"]]),
        (b'"Doe\tr\t"b"@en\n', [[b'"Doe'], [b"r"], [b'"b"@en']]),
        (b"\xef\xbb\xbfa\tr\tb\n", [[b"a"], [b"r"], [b"b"]]),
        (b"Pa,ris likes b\nc likes  d\n", [[b"Pa,ris", b"c"], [b"likes"] * 2, [b"b", b"d"]]),
        (b"  a r b \r\n \nc r d\n", [[b"a", b"c"], [b"r"] * 2, [b"b", b"d"]]),
        (b"head\trelation\ttail\n", [[b"head"], [b"relation"], [b"tail"]]),
    ],
)  # fmt: skip
def test_cells_of_names_are_those_of_csv_or_of_lines_without_quotes(data, names):
    assert read(TRIPLES, data).names == names


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (TRIPLES, [b"a likes b"] * 3 + [b"Paris,Texas likes b", b"x,y,z is c", b"c likes d"] * 2),
        (TRIPLES, [b"a\tlikes\tb", b"x, y\tis in, or\ta, b", b"c d\tis\te f"] * 3),
        (TRIPLES, [b"a,likes,b", b'"c\td",likes,"x, y"', b" e , f\tg\th , i"] * 3),
        (RATINGS, [b"user item rating"] + [b"u i 3", b"Doe,John,3 x 5", b"1,2,3 y 4"] * 3),
        (RATINGS, [b"", b"user\titem\tn\ttime"] + [b"u, v\ti\t3\t9", b"no\tname\t1\t2"] * 3),
    ],
)
def test_columns_are_those_of_the_first_line_in_blocks_cut_anywhere(tmp_path, columns, lines):
    path = tmp_path / "x.txt"
    path.write_bytes(b"\n".join(lines) + b"\n")
    size, scratch = path.stat().st_size, Scratch(str(tmp_path / "scratch"), 0)
    head = read_head(str(path), scratch)

    def columns_of(*edges):
        names, values = [[] for _ in columns.expected], []
        for start, stop in pairwise(edges):
            data = read_block(str(path), start, stop, unit="line", scratch=scratch)
            found = columns.read(data, str(path), start, head)
            for all_of, some in zip(names, found.names, strict=True):
                all_of += some
            values += found.values.tolist()
        return names, values

    whole = columns_of(0, size)
    assert len(whole[0][0]) == sum(map(bool, lines)) - columns.valued
    for at in range(1, size):
        assert columns_of(0, at, size) == whole
    assert columns_of(*range(0, size, 7), size) == whole


def test_line_that_is_not_as_the_first_is_refused_in_blocks_cut_anywhere(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"a likes b\nc,likes,d\ne likes f\n")
    size, scratch = path.stat().st_size, Scratch(str(tmp_path / "scratch"), 0)

    def read_all(*edges):
        for start, stop in pairwise(edges):
            data = read_block(str(path), start, stop, unit="line", scratch=scratch)
            TRIPLES.read(data, str(path), start, read_head(str(path), scratch))

    for at in range(1, size):
        with pytest.raises(DataError, match=r"x\.txt, line 2, column 10: expected 3 col.* got 1"):
            read_all(0, at, size)


def test_read_of_ratings_takes_values_and_ignores_times_and_a_head():
    data = b"user,item,rating,time\nu1,i1,3.5,9\nu2,i1,4,8\n"
    found = read(RATINGS, data)
    assert found.names == [[b"u1", b"u2"], [b"i1", b"i1"]]
    np.testing.assert_array_equal(found.values, np.float32([3.5, 4]))
    assert len(read(RATINGS, b"u1 i1\nu2 i2\n").values) == 0


@pytest.mark.parametrize(
    ("columns", "data", "start", "message"),
    [
        (
            TRIPLES,
            b"a\tb\n",
            0,
            r"x: expected lines of head relation tail, .*got 2 columns in",
        ),
        (
            TRIPLES,
            b"a\tr\tb\na\tb\n",
            7,
            "x, line 2 of .* at byte 7, .*expected 3 col.* got 2",
        ),
        (TRIPLES, b"a\tr\tb\na\tr\tb\tc\nd\n", 0, "line 2, .*expected 3 columns, got 4"),
        (
            TRIPLES,
            b"\r\n\na\tr\tb\n\na\tb\n",
            0,
            "line 5, .*expected 3 col.* got 2.*by its first line the file has",
        ),
        (
            TRIPLES,
            b'a,r,b\na,"r,b\n',
            0,
            "line 2, column 3: expected a closing quote",
        ),
        (RATINGS, b"user,item,rating\n", 99, "byte 99, .*in column value, got 'rating'"),
        (RATINGS, b"u,i,1\nu,i,much\n", 0, "line 2, .*in column value, got 'much'"),
        (RATINGS, b"user,item,n\n\nu,i,much\n", 0, "line 3, .*in column value, got 'much'"),
        (RATINGS, b"u,i,1\n,,\nu,i,1e39\n", 0, "line 2, .*in column value, got nothing"),
        (RATINGS, b"u,i,1\nu,i,1e39\n", 0, "line 2, .*in column value, got '1e39'"),
        (RATINGS, b"u,i,1\nu,i,inf\n", 0, "in column value, got 'inf'"),
        (RATINGS, b"u,i,inf\nu,i,1\n", 0, "line 1, .*in column value, got 'inf'"),
        (RATINGS, b"u\n", 0, r"expected lines of user item \[value\]"),
    ],
)
def test_read_refuses_other_lines(columns, data, start, message):
    head = {RATINGS: b"u,i,1", TRIPLES: b"a\tr\tb"}[columns] if start else data
    with pytest.raises(DataError, match=message):
        read(columns, data, start, head)


def test_read_of_nothing_is_empty():
    assert len(read(TRIPLES, b"\n \n")) == 0
    assert len(read(TRIPLES, b"\n\n", 7, b"a r b")) == 0


def test_numbers_depend_on_counts_alone_and_not_on_parts():
    whole, parts = NameCounts(2), NameCounts(2)
    names = [b"b", b"a", b"b", b"c", b"a", b"b"]
    whole.add(0, names)
    whole.add(1, [b"r"])
    whole.add_values(np.float32([1, 2]))
    for some in (names[4:], names[:4]):
        part = NameCounts(2)
        part.add(0, some)
        parts.merge(part.dump())
    part = NameCounts(2)
    part.add(1, [b"r"])
    part.add_values(np.float32([1, 2]))
    parts.merge(part.dump())
    assert parts.dump() == whole.dump()
    found = Names(whole.dump())
    assert found.names == [[b"b", b"a", b"c"], [b"r"]]
    assert found.counts[0].tolist() == [3, 2, 1]
    assert (found.values.number, found.values.mean, found.values.deviation) == (2, 1.5, 0.5)
    assert found.numbers(0, [b"c", b"x", b"b"]).tolist() == [2, -1, 0]


def test_moments_of_values_are_those_of_the_whole_at_any_mean():
    random = np.random.default_rng(1)
    for mean in (0.0, 3.0, 2e7, 1.7e9):
        values = mean + random.normal(size=1000)
        parts = sum(
            (ValueMoments.of(part) for part in np.split(values, (1, 10, 10, 600))), ValueMoments()
        )
        assert parts.number == 1000
        assert parts.mean == pytest.approx(values.mean(), abs=1e-12, rel=1e-15)
        assert parts.deviation == pytest.approx(values.std(), rel=1e-6)
    equal = ValueMoments.of(np.full(3, 0.1)) + ValueMoments() + ValueMoments.of(np.full(4, 0.1))
    assert (equal.number, equal.mean, equal.deviation) == (7, 0.1, 0)


@pytest.mark.parametrize(
    ("columns", "data", "text"),
    [
        (TRIPLES, b"a\tr\tb\nc\tr\t\n", "x, line 2: expected a name as tail.*'c' 'r' ''"),
        (TRIPLES, b"a,r,b\n\n ,r,b\n", "x, line 3: expected a name as head.*'' 'r' 'b'"),
        (RATINGS, b"user,item,n\nu,i,3\nu,,2\n", "x, line 3: expected a name as item"),
        (RATINGS, b"u\ti\t1\nu\t  \t1\n", "x, line 2: expected a name as item"),
    ],
)
def test_empty_name_is_refused_with_its_line(columns, data, text):
    with pytest.raises(DataError, match=text):
        columns.read(data, "x", 0, data)
    assert len(columns.read(data, "x", 0, data, may_lack=True)) == 2


def test_first_line_without_a_value_is_no_line_of_names():
    with pytest.raises(DataError, match=r"x, line 1, .*expected a label, a number"):
        RATINGS.read(b"u,i,\nu,j,3\n", "x", 0, b"u,i,\nu,j,3\n")


def test_rankings_learn_from_values_above_0():
    data = b"u,a,1\nu,b,0\nv,a,-2\nv,c,0.5\n"
    found = RATINGS.read(data, "x", 0, data)
    assert found.choices().names == [[b"u", b"v"], [b"a", b"c"]]
    assert found.choices().values.tolist() == [1, 0.5]
    pairs = RATINGS.read(b"u,a\n", "x", 0, b"u,a\n")
    assert pairs.choices() is pairs
    assert ValueMoments.of(found.values).unused == (
        "1 entries of values below 0 are left out and values from 0.5 to 1 count as one choice each"
        ": a ranking learns what was chosen; loss squared learns values"
    )
    assert ValueMoments.of(np.array([0.0, 1, 1])).unused == ValueMoments().unused == ""


def test_names_of_other_bytes_are_refused():
    whole = NameCounts(1)
    whole.add(0, [b"a", b"bc"])
    dumped = whole.dump()
    for cut in (3, 20, len(dumped) - 9, len(dumped) - 1):
        with pytest.raises(DataError, match="no list of names"):
            Names(dumped[:cut])


def any_names(number, seed):
    """Names of up to 40 bytes, of which many are alike in their first bytes."""
    rng = np.random.default_rng(seed)
    heads = [rng.integers(0, 256, size, np.uint8).tobytes() for size in (0, 1, 7, 8, 9, 15, 16, 32)]
    tails = [rng.integers(0, 256, rng.integers(0, 9), np.uint8).tobytes() for _ in range(200)]
    tails += [bytes(size) for size in range(10)]
    heads, tails = (
        [some[at] for at in rng.integers(len(some), size=number)] for some in (heads, tails)
    )
    return [head + tail for head, tail in zip(heads, tails, strict=True)]


def test_names_of_any_bytes_are_counted_and_numbered_as_in_a_dictionary():
    parts = [any_names(3000, 1), [], any_names(500, 2), [b"a b", b"a\tb", b"a\nb", b"", b"a b"]]
    table, expected = NameTable(), Counter()
    for part in parts:
        table.add(PackedWords.of(part))
        expected.update(part)
    known = list(expected)  # in order of first appearance
    assert table.names() == known
    assert table.counts().tolist() == list(expected.values())
    asked = [*parts[2], b"unknown", *parts[0], b"a  b"]
    numbers = {name: number for number, name in enumerate(known)}
    assert table.numbers(asked).tolist() == [numbers.get(name, -1) for name in asked]
    packed = PackedWords.of(asked)
    assert table.numbers(packed[100:200]).tolist() == table.numbers(asked).tolist()[100:200]


def test_counts_of_names_add_up():
    table = NameTable()
    names = [b"%d" % number for number in range(5000)]
    table.add(names, np.arange(5000))
    table.add(names[::-1], np.full(5000, 3))
    assert table.names() == names
    assert table.counts().tolist() == list(range(3, 5003))
    with pytest.raises(ValueError, match="expected 5000 counts, got 2"):
        table.add(names, np.arange(2))


def test_survey_of_parts_is_that_of_the_whole_and_sorts_ties_by_bytes():
    names = any_names(4000, 3)
    names = [name for name in names if b"\n" not in name]
    whole, merged = NameCounts(2), NameCounts(2)
    whole.add(0, names)
    whole.add(1, names[:10])
    for first in range(0, len(names), 700):
        part = NameCounts(2)
        part.add(0, names[first : first + 700])
        if first == 0:
            part.add(1, names[:10])
        merged.merge(part.dump())
    assert merged.dump() == whole.dump()
    assert abs(whole.size_bytes - len(whole.dump())) < 100
    known = sorted(Counter(names).items(), key=lambda entry: (-entry[1], entry[0]))
    found = Names(whole.dump())
    assert found.names[0] == [name for name, _ in known]
    assert found.counts[0].tolist() == [count for _, count in known]


def test_parts_that_are_no_survey_are_refused():
    counts = NameCounts(2)
    counts.add(0, [b"a", b"b"])
    with pytest.raises(DataError, match="no list of names and counts: 2 kinds, not 3"):
        NameCounts(3).merge(counts.dump())
    with pytest.raises(DataError, match="no list of names and counts: a name comes twice"):
        Names(counts.dump().replace(b"a\nb", b"a\na")).numbers(0, [b"a"])


# --- titles of columns ------------------------------------------------------------------------

PAIRS = NameColumns(("user", "item"), valued=True)
UNREAD_TIMES = NameColumns(("user", "item"), valued=True, time=3, reads_times=False)


@pytest.mark.parametrize(
    ("columns", "first", "rest", "are_titles"),
    [
        (PAIRS, b"user_id,item_id", b"1,10\n2,20\n", True),
        (PAIRS, b"user_id,item_id", b"ann,jaws\n", True),
        (PAIRS, b"customer,product", b"1,10\n2,20\n", True),
        (PAIRS, b"customer\tproduct", b"1\t10\r\n2\t-20\r\n", True),
        (PAIRS, b"customer::product", b"1::10\n2::20\n", True),
        (PAIRS, b"User", b"1,10\n", None),  # one column: refused
        (PAIRS, b"customer,product", b"ann,jaws\n", False),  # names like others
        (PAIRS, b"customer,product", b"1,jaws\n2,heat\n", False),
        (PAIRS, b"customer,product", b"1,10\n2,x\n", False),
        (PAIRS, b"7,product", b"1,10\n2,20\n", False),
        (PAIRS, b"user,item", b"", False),  # nothing follows
        (UNREAD_TIMES, b"user,item,when", b"ann,jaws,2024-05-31\n", True),
        (UNREAD_TIMES, b"user_id,item_id", b"1,2\n", True),
        (UNREAD_TIMES, b"ann,jaws,2024-05-30", b"ann,jaws,2024-05-31\n", False),
        (TRIPLES, b"head,relation,tail", b"ann,likes,jaws\n", True),
        (TRIPLES, b"Head_ID\tRelation\tTail_ID", b"1\tlikes\t2\n", True),
        (TRIPLES, b"from,what,to", b"1,likes,2\n3,likes,2\n", True),
        (TRIPLES, b"from,what,to", b"1,2,3\n", True),
        (TRIPLES, b"ann,likes,jaws", b"bob,likes,heat\n", False),
    ],
)
def test_first_line_that_names_the_columns_is_no_line_of_names(columns, first, rest, are_titles):
    end = b"\r\n" if b"\r" in rest else b"\n"
    data = first + end + rest
    if are_titles is None:
        with pytest.raises(DataError, match="expected lines of user item"):
            read(columns, data)
        return
    names = [cell.strip() for cell in first.replace(b"::", b",").replace(b"\t", b",").split(b",")]
    found = read(columns, data)
    assert len(found) == rest.count(b"\n") + (not are_titles)
    assert (found.names[0][0] == names[0]) is not are_titles
    later = read(columns, rest or data, start=len(first) + len(end), head=data)
    assert len(later) == (rest or data).count(b"\n")  # a later block has no titles


def test_titles_are_the_same_for_each_block_and_head(tmp_path):
    path = tmp_path / "pairs.csv"
    for odd in (0, 300, 1000):  # the line that has names which are no numbers; 0: none
        lines = [b"%d,%d\n" % (n, n) for n in range(10_000)]
        lines[odd:odd] = [b"x,y\n"] * (odd > 0)
        path.write_bytes(b"customer,product\n" + b"".join(lines))
        with Scratch("", 0) as scratch:
            data, head = path.read_bytes(), read_head(str(path), scratch)
        assert len(head) < 5000
        counts = {
            len(PAIRS.read(data[:size], str(path), 0, known)) - data[:size].count(b"\n")
            for size in (17, data.index(b"\n", 200) + 1, len(data))
            for known in (head, data)
        }
        assert counts == ({0} if odd == 300 else {-1})  # 300 is among the lines that decide


def test_rows_of_a_driver_have_no_titles():
    path = f"{PREFIX}none/1/2"
    assert is_driver_file(path)
    assert len(PAIRS.read(b"user,item\n1,2\n", path, 0, b"user,item\n1,2\n")) == 2


def test_times_that_are_not_read_are_no_values():
    read_times = NameColumns(("user", "item"), valued=True, time=3)
    data = b"u,i,1700000000\nv,j,1700000001\n"
    for columns in (read_times, UNREAD_TIMES):
        found = read(columns, data)
        assert len(found.values) == 0
        assert [list(column) for column in found.names] == [[b"u", b"v"], [b"i", b"j"]]
    assert len(read(read_times, data).times) == 2
    assert len(read(UNREAD_TIMES, data).times) == 0
    assert len(read(UNREAD_TIMES, b"u,i\nv,j\n")) == 2  # other files may lack them
    rated = read(
        NameColumns(("user", "item"), valued=True, time=4, reads_times=False), b"u,i,3,x\n"
    )
    assert rated.values.tolist() == [3]
