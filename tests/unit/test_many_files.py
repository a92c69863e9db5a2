"""Inputs of very many small files: a block has no more of them than its lease can list."""

import random
from types import SimpleNamespace

import pytest

from snailps.files.blocks import InputFile
from snailps.files.joined import Joined
from snailps.pieces import FILES_MAX, Layout, Piece
from snailps.transport import messages

SCRATCH = SimpleNamespace(version=lambda path: "1790000000000000000-123456789")


def joined_of(sizes, name="/data/corpus/2026/part-{:06d}.txt"):
    sources = [InputFile(name.format(number), size) for number, size in enumerate(sizes)]
    random.Random(1).shuffle(sources)
    return Joined(sources, SCRATCH, by_file=False)


def leased(joined, start, stop):
    """The bytes of a lease of a block, which every peer takes."""
    layout = Layout("", joined.source.bytes, tuple(joined.files(start, stop)))
    piece = Piece(joined.source.path, start, stop)
    lease = messages.Leased(0, piece, progress=(0.0, 0.1), layout=layout)
    body = messages.encode(lease)
    assert messages.decode(body) == lease
    return len(body)


@pytest.mark.parametrize(
    ("sizes", "most_blocks"),
    [
        ([500] * 10_000, 5),
        ([500] * 135_000, 64),  # did not fit, at 128 bytes a file
        ([1] * 10_000 + [1 << 22] * 20, 40),  # tiny ones in a corner
        ([1 << 22] * 3 + [7] * 4100, 40),
    ],
)
def test_blocks_of_many_files_have_few_each_and_are_the_whole_input(sizes, most_blocks):
    joined = joined_of(sizes)
    total, seen, at = sum(sizes), set(), 0
    blocks = list(joined.cut(64 << 20))
    for start, stop in blocks:
        assert start == at
        at = stop
        files = joined.files(start, stop)
        assert 0 < len(files) <= FILES_MAX
        seen |= {file.path for file in files}
    assert (at, len(seen)) == (total, len(sizes))
    assert len(blocks) <= most_blocks
    assert leased(joined, *blocks[0]) < 2 << 20


def test_names_as_long_as_names_may_be_make_smaller_blocks():
    name = "/" + "ü" * 4000 + "/{:06d}"
    joined = joined_of([500] * 300, name)
    blocks = list(joined.cut(64 << 20))
    assert max(leased(joined, *block) for block in blocks) < 4 << 20
    assert len(blocks) == 4


def test_few_files_are_cut_evenly():
    joined = joined_of([1000] * 50)
    assert list(joined.cut(20_000)) == [(0, 16_666), (16_666, 33_333), (33_333, 50_000)]
