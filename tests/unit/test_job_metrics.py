"""master.job.metrics: what a pass has come to, block by block, at once, after another master."""

import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from snailps.master.job.metrics import PassMetrics

BLOCK = st.tuples(
    st.integers(0, 3), st.integers(0, 99), st.sampled_from([math.nan, 0.5, 2.25]),
    st.sampled_from([0.0, 2.0, 3.0]),
)  # fmt: skip


@given(blocks=st.lists(BLOCK, max_size=40), before=st.lists(BLOCK, max_size=4))
def test_blocks_counted_at_once_are_as_if_counted_one_by_one(blocks, before):
    singly, at_once = PassMetrics(2), PassMetrics(2)
    for block in before:
        singly.count(*block), at_once.count(*block)
    for block in blocks:
        singly.count(*block)
    columns = [np.array(column) for column in zip(*blocks, strict=True)] or [np.zeros(0, int)] * 4
    at_once.count_all(*columns)
    assert at_once.snapshot() == singly.snapshot()


def test_tally_resumed_stands_where_the_other_one_did():
    first, second = PassMetrics(1), PassMetrics()
    for at in range(20):
        first.count(at // 10, at, at / 3, 2.0)
        first.took(at / 7)
    first.bad_lines, first.lr = 3, 0.25
    second.resume(json.loads(json.dumps(first.snapshot())))
    assert second.snapshot() == first.snapshot()
    assert (second.loss, second.block_s) == (first.loss, first.block_s)
    assert second.loss_by_epoch() == first.loss_by_epoch()
