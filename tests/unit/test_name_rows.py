"""data.name_rows: rows of names of any container, and their lines."""

from pathlib import Path

import numpy as np
import pytest

from snailps.data.name_columns import NameColumns
from snailps.data.name_rows import NameRows, spool_names
from snailps.errors import DataError

TRIPLE = ("head", "relation", "tail")
PAIR = ("user", "item")


def read(data, expected=PAIR, values=None, **options):
    """Names, values, and whether names were whole numbers."""
    pieces = list(NameRows(data, expected, values, **options).pieces())
    names = [[name for piece in pieces for name in piece.names[at]] for at in range(len(expected))]
    return names, np.concatenate([piece.values for piece in pieces]).tolist(), pieces[0].whole


FRAME = {"who": ["a", "b"], "what": [7, 8], "how": [1.5, 2.0], "when": [0, 0]}


def frames():
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    pyarrow = pytest.importorskip("pyarrow")
    return [FRAME, pandas.DataFrame(FRAME), polars.DataFrame(FRAME), pyarrow.table(FRAME)]


def test_rows_of_lists_arrays_and_generators_are_alike():
    rows = [("1", "x", "2"), ("2", "y", "1")]
    for data in (rows, [list(row) for row in rows], np.array(rows), (row for row in rows)):
        assert read(data, TRIPLE) == ([["1", "2"], ["x", "y"], ["2", "1"]], [], (False,) * 3)


def test_whole_numbers_are_names_of_their_digits():
    expected = ([["1", "20"], ["5", "6"]], [0.5, 2.5], (True, True))
    rows = [(1, 5, 0.5), (20, 6, 2.5)]
    assert read(rows, valued=True) == expected
    assert read(np.array(rows), valued=True) == expected
    assert read([row[:2] for row in rows], values=[0.5, 2.5], valued=True) == expected
    names, _, whole = read([(np.int32(3), "a"), ("b", b"c")])
    assert (names, whole) == ([["3", "b"], ["a", "c"]], (False, False))


@pytest.mark.parametrize(("kind", "digits"), [("float64", 53), ("float32", 24), ("float16", 11)])
def test_floats_beyond_their_digits_are_no_names(kind, digits):
    rows = np.array([[(1 << digits) - 1, 5, 0.5], [1, 5, 0.5]], kind)
    assert read(rows, valued=True)[0][0] == [str((1 << digits) - 1), "1"]
    rows[0, 0] = 1 << digits
    said = f"user: .* has {1 << digits}, a float of {digits} bits of digits"
    with pytest.raises(DataError, match=said):
        read(rows, valued=True)
    pandas = pytest.importorskip("pandas")
    with pytest.raises(DataError, match=said):
        read(pandas.DataFrame(rows, columns=["a", "b", "c"]), valued=True)
    with pytest.raises(DataError, match=said):
        read([tuple(row) for row in rows], valued=True)


@pytest.mark.parametrize(("kind", "digits"), [("float32", 24), ("float16", 11), ("bfloat16", 8)])
def test_floats_of_tensors_have_digits_too(kind, digits):
    class Tensor(list):
        """As rows of a tensor of PyTorch, which are Python's floats."""

        dtype = f"torch.{kind}"

    assert read(Tensor([((1 << digits) - 1.0, 5.0)]))[0][0] == [str((1 << digits) - 1)]
    with pytest.raises(DataError, match=f"a float of {digits} bits of digits"):
        read(Tensor([(1.0 * (1 << digits), 5.0)]))


def test_tables_have_names_and_values_by_column():
    for frame in frames():
        assert read(frame, valued=True) == ([["a", "b"], ["7", "8"]], [1.5, 2.0], (False, True))
        assert read(frame, values="when", valued=True)[1] == [0, 0]
        assert read(frame, values=[3, 4], valued=True)[1] == [3, 4]
        chosen = {"columns": ("what", "who"), "valued": True}
        assert read(frame, **chosen) == ([["7", "8"], ["a", "b"]], [], (True, False))
        with pytest.raises(DataError, match="got no column 'whom' in"):
            read(frame, columns=("who", "whom"), valued=True)


@pytest.mark.parametrize("form", ["coo", "coo twice", "csr twice", "csc", "lil", "dok"])
def test_a_sparse_matrix_has_the_same_rows_in_each_format(form):
    """Entries that have one place are added, as by SciPy: a log of events is such a matrix."""
    sparse = pytest.importorskip("scipy.sparse")
    plain = sparse.csr_array([[0.0, 4.0, 1.0], [2.0, 0.0, 3.0]])
    halves = (np.repeat(plain.data / 2, 2), np.repeat(plain.indices, 2), plain.indptr * 2)
    matrix = {
        "coo": lambda: sparse.coo_array(plain.toarray().T).T,
        "coo twice": lambda: sparse.csr_array(halves, shape=plain.shape).tocoo(),
        "csr twice": lambda: sparse.csr_array(halves, shape=plain.shape),
        "csc": plain.tocsc,
        "lil": plain.tolil,
        "dok": plain.todok,
    }[form]()
    entries = matrix.nnz
    (piece,) = NameRows(matrix, PAIR, valued=True).pieces()
    assert piece.names == [["0", "0", "1", "1"], ["1", "2", "0", "2"]]
    assert piece.values.tolist() == [4.0, 1.0, 2.0, 3.0]
    assert matrix.nnz == entries, "the caller's matrix was changed"


def test_sparse_matrices_have_entries_as_rows():
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.csr_matrix(([2.0, 3.0], ([0, 4], [1, 0])), shape=(5, 2))
    assert read(matrix, valued=True) == ([["0", "4"], ["1", "0"]], [2.0, 3.0], (True, True))
    with pytest.raises(DataError, match="got a sparse matrix"):
        NameRows(matrix, TRIPLE)
    with pytest.raises(DataError, match="entries are the values"):
        read(matrix, values=[1, 2], valued=True)


@pytest.mark.parametrize(
    ("data", "options", "text"),
    [
        ([("a", "b"), ("c",)], {}, r"rows of user item, all alike; element 1 .* is \('c',\)"),
        ([("a", "b", 1)], {}, "expected rows of user item, all alike"),
        (["ab", "cd"], {}, "element 0 of a list of 2 is 'ab'"),
        ([("a", None)], {}, r"item: .* element 0 of a list of 1 it is missing \(None\)"),
        ([("a", float("nan"))], {}, "item: .* is missing"),
        ([("a", 1.5)], {}, r"item: expected a text or a whole number; .* is a float \(1.5\)"),
        ([("a", True)], {}, r"is a bool \(True\)"),
        ([("a", "b", "x")], {"valued": True}, r"values: expected numbers, got \['x'\]"),
        ([("a", "b", float("inf"))], {"valued": True}, "values: expected finite numbers; .* inf"),
        ([("a", "b"), ("c", "d")], {"values": [1]}, "a value for each row of X, got 1"),
        ([("a", "b")], {"values": [1, 2]}, "expected a value for each row of X, got more than 1"),
        ({"a": ["x"], "b": ["y"]}, {"values": [1, 2]}, "a value for each row"),
        (
            [("a", "b")],
            {"columns": ("a", "b")},
            "columns: expected a table to choose columns of, got a list",
        ),
        ({"a": ["x"]}, {}, r"expected columns user item; got 1 of \['a'\]"),
    ],
)
def test_wrong_rows_are_refused_with_their_place(data, options, text):
    with pytest.raises(DataError, match=text):
        read(data, **options)


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"what": [7, None]}, "item: .* row 1 of column 'what' of "),
        ({"how": [float("inf"), 2.0]}, "values: .* row 0 of column 'how' of "),
        ({"how": ["high", 2.0]}, "values: .* row 0 of column 'how' of "),
    ],
)
def test_errors_name_the_column_that_they_are_in(changed, place):
    with pytest.raises(DataError, match=place):
        read({**FRAME, **changed}, columns=("who", "what", "how"), valued=True)


def test_spooled_rows_are_read_as_they_were_given(tmp_path):
    rows = [(" new york", 'b "c"', 0.1), ("é ", "d,e", -3)] * 20_000
    data = NameRows(rows, PAIR, valued=True)
    spooled, whole, values = spool_names(data, str(tmp_path))
    with spooled:
        data = Path(spooled.path).read_bytes()
        found = NameColumns(PAIR, valued=True).read(data, "x", 0, data)
    assert (spooled.units, whole, values.number) == (40_000, (False, False), 40_000)
    assert found.names == [[b" new york", "é ".encode()] * 20_000, [b'b "c"', b"d,e"] * 20_000]
    assert found.values.tolist() == [0.1, -3.0] * 20_000
    assert not list(tmp_path.glob("*.spool"))


@pytest.mark.parametrize("name", ["", " ", "a\tb", "a\nb", "a\r"])
def test_names_that_cannot_be_part_of_a_line_are_refused(tmp_path, name):
    with pytest.raises(DataError, match="expected text without tabs and newlines, not empty"):
        spool_names(NameRows([("u", name)], PAIR), str(tmp_path))
    assert not list(tmp_path.glob("*.spool"))


def test_no_rows_are_refused(tmp_path):
    with pytest.raises(DataError, match="X: a list has no rows"):
        spool_names(NameRows([], PAIR), str(tmp_path))


def test_a_name_with_half_a_pair_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"has a name with '\\ud800', half of a pair"):
        spool_names(NameRows([("a\ud800", "b")], ("user", "item")), str(tmp_path))
