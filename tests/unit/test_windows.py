"""data/windows.py: what each stage makes, and that no window is lost or made twice."""

import gzip
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snailps.data.windows import (
    PIECE_BYTES,
    Batcher,
    KnownWords,
    Tokenizer,
    WordReader,
    letters_only,
    share_of_input,
)
from snailps.errors import DataError
from snailps.files.blocks import InputFile, expand
from snailps.files.scratch import Scratch

TEXT = (
    b"Call me Ishmael. Some years ago--never mind how long precisely--\nhaving little or no money"
)


def windows_of(ids, window):
    return [tuple(ids[i : i + window]) for i in range(len(ids) - window + 1)]


@pytest.mark.parametrize(
    ("stage", "item", "said"),
    [
        (Tokenizer(), "text", "Tokenizer of a pipeline: expected a text, bytes from .* got 'text'"),
        (Tokenizer(), np.zeros(2, np.int32), "Tokenizer of a pipeline: expected a text, bytes"),
        (
            KnownWords([b"a"]),
            "a b",
            "Filter of a pipeline: expected words with a blank between, bytes",
        ),
        (Batcher(3, 2), b"a b c", r"Batcher of a pipeline: expected numbers of words, an array in"),
        (Batcher(3, 2), [1, 2, 3], r"array int32 \(n,\) from the stage before it, got \[1, 2, 3\]"),
        (Batcher(3, 2), np.zeros(5), "Batcher"),
        (Batcher(3, 2), np.zeros(5, np.int64), "Batcher"),
        (Batcher(3, 2), np.zeros((5, 1), np.int32), "Batcher"),
    ],
)
def test_item_that_is_not_of_the_stage_before_is_named(stage, item, said):
    with pytest.raises(DataError, match=f"stage .*{said}"):
        list(stage(iter([item])))


def test_letters_only_keeps_ascii_letters_in_lower_case():
    assert letters_only(b"Moby-DICK;\tor, The Wh\xc3\xa9le 9") == b"moby dick  or  the wh  le  "


def test_tokenizer_parts_words_at_everything_but_letters():
    pieces = list(Tokenizer()(iter([b"Call me: Ishmael's", b" 12 ", b"", b"Some\nyears"])))
    assert pieces == [b"call me ishmael s", b"some years"]


def test_filter_leaves_out_unknown_words_and_keeps_order():
    words = [b"years", b"call", b"ago"]
    ids = list(KnownWords(words)(iter([b"call me ishmael", b"some", b"years ago call"])))
    assert [piece.tolist() for piece in ids] == [[1], [0, 2, 1]]
    assert ids[0].dtype == np.int32


def test_filter_of_more_words_than_a_sentence_has_makes_numbers_only():
    (ids,) = KnownWords([b"a"])(iter([b"a " * 5000]))
    assert ids.tolist() == [0] * 5000


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    window=st.sampled_from([3, 5]),
    bs=st.integers(1, 9),
    shuffle=st.sampled_from([0, 1, 7, 40]),
)
def test_batcher_puts_every_window_into_one_batch(pieces, window, bs, shuffle):
    ids = np.arange(sum(pieces), dtype=np.int32)
    parts = np.split(ids, np.cumsum(pieces)[:-1])
    batches = list(Batcher(window, bs, shuffle, seed=5)(iter(parts)))
    found = [tuple(row) for batch in batches for row in batch.tolist()]
    expected = windows_of(ids.tolist(), window)
    assert sorted(found) == expected
    assert all(batch.dtype == np.int32 and batch.flags.c_contiguous for batch in batches)
    assert all(len(batch) == bs for batch in batches[:-1])
    if not shuffle:
        assert found == expected


def test_batcher_with_shuffle_mixes_by_seed():
    ids = np.arange(500, dtype=np.int32)

    def run(seed):
        return np.concatenate(list(Batcher(5, 16, 200, seed)(iter([ids])))).tolist()

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert run(1) != windows_of(ids.tolist(), 5)


def test_reader_gives_the_text_pass_after_pass(tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(TEXT))
    scratch = Scratch(str(tmp_path / "scratch"), 0)
    sources = expand([str(path)], scratch)
    scratch.close()
    blocks = share_of_input(sources, 0, 1)
    reader = WordReader(blocks, 2, str(tmp_path / "scratch"))
    assert b"".join(reader(iter(()))) == TEXT * 2


def test_filter_of_text_without_a_known_word_refuses_once_all_of_it_has_gone_by(tmp_path):
    (tmp_path / "text").write_bytes(TEXT)
    reader = WordReader(share_of_input([InputFile(str(tmp_path / "text"), len(TEXT))], 0, 1))
    items = KnownWords([b"whale"], len(TEXT))(Tokenizer()(reader(iter(()))))
    with pytest.raises(DataError, match=r"'call me ishmael some.*another text"):
        next(items)
    known = KnownWords([b"ishmael"], len(TEXT))(Tokenizer()(reader(iter(()))))
    assert [next(known).tolist() for _ in range(4)] == [[0]] * 4


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("sizes", [[90], [40, 50], [10, 3 * PIECE_BYTES + 5, 77]])
def test_share_of_input_covers_every_byte_once(count, sizes):
    sources = [InputFile(f"/{n}", size) for n, size in enumerate(sizes)]
    blocks = [block for index in range(count) for block in share_of_input(sources, index, count)]
    for source in sources:
        edges = [(b.start, b.stop) for b in blocks if b.path == source.path]
        assert edges[0][0] == 0
        assert edges[-1][1] == source.bytes
        assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))
        assert all(0 < stop - start <= PIECE_BYTES for start, stop in edges)


def test_share_of_input_with_a_file_each_gives_each_its_file():
    sources = [InputFile("/small", 5), InputFile("/large", 500)]
    assert [b.path for b in share_of_input(sources, 0, 2)] == ["/small"]
    assert [b.path for b in share_of_input(sources, 1, 2)] == ["/large"]


def test_share_of_input_with_more_pipelines_than_bytes_refuses():
    with pytest.raises(DataError, match="fewer pipelines"):
        share_of_input([InputFile("/a", 2)], 0, 3)


def test_halves_read_by_two_readers_are_the_words_of_the_text(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(TEXT)
    sources = [InputFile(str(path), len(TEXT))]
    halves = [
        b" ".join(Tokenizer()(WordReader(share_of_input(sources, i, 2), 1)(iter(())))).split()
        for i in range(2)
    ]
    assert halves[0] + halves[1] == letters_only(TEXT).split()
    assert halves[0]
    assert halves[1]
