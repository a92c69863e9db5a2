"""vectors.texts: texts of every kind as pieces, which say the same as a list of them."""

import itertools

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from snailps.errors import DataError
from snailps.vectors import texts as module
from snailps.vectors.texts import are_bytes, pieces_of

TEXTS = ["a cat", "", "größe\nnext", "日本 x", "z" * 70, "end "]
LINES = [text.replace("\n", " ").encode() for text in TEXTS]


def lines_of(texts):
    """Lines of all pieces."""
    found = []
    for batch in pieces_of(texts):
        for piece in batch:
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
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("piece_bytes", [1, 10, 1 << 17])
def test_each_kind_has_the_same_lines(kind, piece_bytes, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(module, "BATCH_BYTES", 4 * piece_bytes)
    assert lines_of(KINDS[kind]) == LINES[: len(KINDS[kind])]
    assert lines_of(iter(TEXTS)) == LINES


def test_rows_without_a_byte_are_cut_by_their_number(monkeypatch):
    monkeypatch.setattr(module, "ROWS_MAX", 3)
    (batch,) = pieces_of(pa.array([""] * 8))
    assert [piece.lines for piece in batch] == [3, 3, 2]


@pytest.mark.parametrize("text", ["", "a", "a\n", "a\nb", "\n\n", "a\n\nb\n"])
def test_text_is_read_by_its_newlines(text):
    wanted = text.removesuffix("\n").encode().split(b"\n") if text else []
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
        (pa.array([1, 2]), "a column of texts, got one of int64"),
        (pa.array([["a"], ["b"]]), "got one of list"),
        (pa.table({"a": ["x"], "b": ["y"]}), "a column of texts, got one of struct"),
        (["\ud800"], "half of a pair"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(texts, words):
    with pytest.raises(DataError, match=words):
        list(pieces_of(texts))


def test_labels_are_bytes_where_the_texts_are():
    assert are_bytes(b"a")
    assert are_bytes([b"a", b"b"])
    assert not are_bytes([b"a", "b"])
    assert not are_bytes([])
    assert not are_bytes("a")
