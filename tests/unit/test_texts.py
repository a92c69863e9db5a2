"""vectors.texts: texts of every kind as pieces, which say the same as a list of them."""

import itertools
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from snailps.errors import DataError
from snailps.vectors import texts as module
from snailps.vectors.texts import pieces_of

TEXTS = ["a cat", "", "größe\nnext", "日本 x", "z" * 70, "end "]
LINES = [text.replace("\n", " ").encode() for text in TEXTS]


def lines_of(texts):
    """Lines of all pieces."""
    found = []
    for piece in pieces_of(texts):
        if piece.offsets is None:
            lines = piece.data.split(b"\n")
            assert lines.pop() == b""
        else:
            data = bytes(piece.data)
            ends = piece.offsets.tolist()
            lines = [data[a:b].replace(b"\n", b" ") for a, b in itertools.pairwise(ends)]
        assert len(lines) == piece.lines
        found += lines
    return found


ARROW = pa.array(["before", *TEXTS, "behind"])
KINDS = {
    "list": TEXTS,
    "bytes": [text.encode() for text in TEXTS],
    "tuple": tuple(TEXTS),
    "array": np.array(TEXTS, object),
    "fixed": np.array(TEXTS[:5]),
    "pandas": pd.Series(TEXTS),
    "pandas in arrow": pd.Series(TEXTS, dtype=pd.ArrowDtype(pa.large_string())),
    "polars": pl.Series(TEXTS),
    "arrow": pa.array(TEXTS),
    "slice": ARROW[1:-1],
    "chunked": pa.chunked_array([ARROW[1:3], pa.array([], pa.string()), ARROW[3:-1]]),
    "large": pa.array(TEXTS, pa.large_string()),
    "view": pa.array(TEXTS, pa.string_view()),
    "binary": pa.array([text.encode() for text in TEXTS]),
    "dictionary": pa.array(TEXTS).dictionary_encode(),
    "categorical": pl.Series(TEXTS, dtype=pl.Categorical),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("piece_bytes", [1, 10, 1 << 17])
def test_each_kind_has_the_same_lines(kind, piece_bytes, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(module, "READ_BYTES", 4 * piece_bytes)
    monkeypatch.setattr(module, "ITEMS", 2)
    assert lines_of(KINDS[kind]) == LINES[: len(KINDS[kind])]
    assert lines_of(iter(TEXTS)) == LINES


def test_rows_without_a_byte_are_cut_by_their_number(monkeypatch):
    monkeypatch.setattr(module, "ROWS_MAX", 3)
    for texts in ([""] * 8, "\n" * 8, pa.array([""] * 8)):
        assert [piece.lines for piece in pieces_of(texts)] == [3, 3, 2]
        assert [piece.lines for piece in pieces_of(texts, rows=2)] == [2, 2, 2, 2]


@pytest.mark.parametrize("text", ["", "a", "a\n", "a\nb", "\n\n", "a\n\nb\n"])
def test_text_is_read_by_its_newlines(text):
    wanted = text.removesuffix("\n").encode().split(b"\n")
    assert lines_of(text) == lines_of(text.encode()) == wanted


@pytest.mark.parametrize(
    "texts", [[], iter([]), pa.array([], pa.string()), pl.Series([], dtype=str)]
)
def test_no_texts_are_no_lines(texts):
    assert lines_of(texts) == []


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (5, "expected lines of text, as str"),
        (["a", None], "item 1, got None"),
        ((n for n in (b"a", "b", 3)), "item 2, got 3"),
        (pa.array(["a", None]), r"row 1 has no text \(null\)"),
        (pa.chunked_array([["a", "b"], ["c", None]]), "row 3 has no text"),
        (pa.DictionaryArray.from_arrays([0, 1], ["a", None]), "row 1 has no text"),
        (pa.array([None, None]), "row 0 has no text"),
        (pa.array([1, 2]), "a column of texts, got one of int64"),
        (pa.array([["a"], ["b"]]), "got one of list"),
        (pa.table({"a": ["x"], "b": ["y"]}), "a column of texts, got one of struct"),
        (["\ud800"], "half of a pair"),
        (["a"] * 9 + ["b\nc", [1], "d"], r"item 10, got \[1\]"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(texts, words):
    with pytest.raises(DataError, match=words):
        list(pieces_of(texts))


@pytest.mark.parametrize(
    ("texts", "are_bytes"),
    [
        (b"a", True), ("a", False), ([b"a", b"b"], True), ([b"a", "b"], False), ([], False),
        (iter([b"a"]), True), (np.array([b"a"]), True), (pd.Series([b"a"]), True),
        (pa.array([b"a"]), True), (pa.array(["a"]), False),
        (pa.array([b"a"], pa.binary_view()), True),
    ],
)  # fmt: skip
def test_pieces_know_whether_their_texts_are_bytes(texts, are_bytes):
    assert all(piece.are_bytes == are_bytes for piece in pieces_of(texts))


def test_column_without_pyarrow_is_gone_through(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert lines_of(pl.Series(TEXTS)) == LINES


def test_long_column_is_cut_in_time_that_grows_with_it(monkeypatch):
    """Each piece had all offsets copied to another type."""
    column, seen = pa.array(["x" * 40] * 40_000), []
    frombuffer = np.frombuffer

    class Watched(np.ndarray):
        def searchsorted(self, value, *more):
            seen.append(value.dtype == self.dtype)
            return np.asarray(self).searchsorted(value, *more)

    monkeypatch.setattr(module.np, "frombuffer", lambda *a: frombuffer(*a).view(Watched))
    assert sum(piece.lines for piece in pieces_of(column)) == 40_000
    assert seen
    assert all(seen)
