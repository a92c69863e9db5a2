"""What takes seconds or hundreds of megabytes: in this process, but too large for tests/unit."""

import numpy as np
from shards import ADD, ZEROS, Shards
from test_fewer_bytes import pull, push, u64

from snailps.data._text import WordCounter
from snailps.data.blocks import cut, expand, read_block
from snailps.data.scratch import Scratch
from snailps.data.vocabulary import Vocabulary


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
