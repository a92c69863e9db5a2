"""What takes seconds or hundreds of megabytes: in this process, but too large for tests/unit."""

import gzip

import numpy as np
import pytest
from shards import ADD, ZEROS, Shards
from test_fewer_bytes import pull, push, u64

from snailps.data._text import WordCounter
from snailps.data.columns import columns_by_name
from snailps.data.formats.table import open_table
from snailps.data.table_files import text_of
from snailps.data.vocabulary import Vocabulary
from snailps.files.blocks import cut, expand, read_block
from snailps.files.reading import Reading
from snailps.files.scratch import Scratch


def test_from_counter_wikipedia_in_blocks_has_published_counts(data_dir, tmp_path):
    """The whole way of issue 2, item 7, on 100 MB that are one line: blocks, counts, merge."""
    scratch = Scratch(str(tmp_path / "scratch"), 1 << 27)
    sources = expand([str(data_dir / "words" / "text8like.txt.gz")], scratch)
    total = WordCounter()
    for block in cut(sources, 8_000_000):
        counter = WordCounter()
        counter.count(read_block(block.path, block.start, block.stop, unit="word", scratch=scratch))
        total.merge(counter.dump())
    scratch.close()
    scratch.clean()
    assert (total.tokens, len(total)) == (16_900_062, 222_393)
    assert len(Vocabulary.from_counter(total, 5)) == 68_050


def test_feedback_goes_on_when_its_memory_was_full():
    with Shards(1) as one:
        dim = 65_536  # 1,024 residues of such rows are all that is kept
        one.add_table(1, dim, ADD, ZEROS)
        client = one.client()
        value = np.zeros((1, dim), np.float32)
        value[0, :2] = 1.0, 0.003
        for start in range(0, 1100, 100):
            keys = np.arange(start, start + 100, dtype=np.uint64)
            push(client, keys, np.broadcast_to(value, (100, dim)), "int8")
        for key in range(5000, 5003):
            for _ in range(20):
                push(client, u64([key]), value, "int8")
            assert abs(pull(client, u64([key]), dim)[0, 1] - 0.06) < 1 / 127


@pytest.mark.long
def test_rows_of_a_table_beyond_31_bits_are_read(tmp_path):
    """Between its two rows there are two thousand million blank ones, which pack well."""
    path = tmp_path / "far.csv.gz"
    with path.open("wb") as file:
        file.write(gzip.compress(b"y,a,note\n1,2.5,first\n"))
        blank = gzip.compress(b"\n" * (1 << 26), 1)
        for _ in range(33):
            file.write(blank)
        file.write(gzip.compress(b"0,7.5,last\n"))
    assert b"".join(text_of(Reading("text", column="note"), str(path))) == b"first\nlast\n"
    with open_table(str(path)) as table:
        features = columns_by_name(["a:numeric"], "")
        pieces = [(piece.values.tolist(), y) for piece, y in table.pieces(features, "y") if y]
    assert pieces == [([2.5], ["1"]), ([7.5], ["0"])]
