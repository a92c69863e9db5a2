"""master.job.metrics: metrics of a pass, block by block, at once, and under another master."""

import json
import math

import numpy as np
import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from snailps.master.job.metrics import FLAT, FLAT_EPOCHS, PassMetrics
from snailps.master.leases.records import RECORD, BlockResult

BLOCK = st.tuples(
    st.integers(0, 3), st.integers(0, 99), st.sampled_from([math.nan, 0.5, 2.25]),
    st.sampled_from([0.0, 2.0, 3.0]), st.integers(0, 2),
)  # fmt: skip


def count(metrics, blocks):
    for epoch, *result in blocks:
        metrics.count(epoch, BlockResult(*result))


@given(blocks=st.lists(BLOCK, max_size=40), before=st.lists(BLOCK, max_size=4))
def test_blocks_counted_at_once_are_as_if_counted_one_by_one(blocks, before):
    singly, at_once = PassMetrics(), PassMetrics()
    for metrics in (singly, at_once):
        count(metrics, before)
    count(singly, blocks)
    epochs = np.array([epoch for epoch, *_ in blocks], np.int64)
    records = np.array([(1, 0, *result, math.nan) for _, *result in blocks], RECORD)
    at_once.count_all(epochs, records)
    assert at_once.snapshot() == singly.snapshot()


def test_last_learning_rate_that_was_reported_counts():
    metrics = PassMetrics()
    for lr in (0.5, 0.25, math.nan):
        metrics.count(0, BlockResult(units=1, lr=lr))
    assert metrics.lr == 0.25
    for lr in (0.125, math.nan):
        metrics.count_checkout(3, 0, BlockResult(units=1, lr=lr))
    assert metrics.lr == 0.125


def test_metrics_resumed_are_those_of_the_snapshot():
    first, second = PassMetrics(), PassMetrics()
    for at in range(20):
        first.count(at // 10, BlockResult(at, at / 3, 2.0, 1, 0.25))
        first.took(at / 7)
    second.resume(json.loads(json.dumps(first.snapshot())))
    assert second.snapshot() == first.snapshot()
    assert (second.loss, second.block_s) == (first.loss, first.block_s)
    assert second.loss_by_epoch() == first.loss_by_epoch()


def losses_of(*means):
    metrics = PassMetrics()
    for epoch, mean in enumerate(means):
        if mean is not None:
            metrics.count(epoch, BlockResult(units=2, loss=2 * mean, examples=2.0))
    return metrics


FALLEN = [1.0, 0.6, 0.5]


@each(
    "means, flat",
    [
        ([*FALLEN, *[0.5] * FLAT_EPOCHS], True),
        ([*FALLEN, *[0.5] * (FLAT_EPOCHS - 1)], False),  # with the first of them it fell
        ([1.0] * FLAT_EPOCHS, False),
        ([1.0 - 0.01 * epoch for epoch in range(20)], False),
        ([1.0 - 0.1 * FLAT * epoch for epoch in range(20)], True),
        ([1e6, *[1.0 - 0.01 * epoch for epoch in range(20)]], True),  # of the first one's loss
        ([*FALLEN, *[0.5, 0.7, 0.9, 0.7, 0.49]], False),  # back at last
        ([*FALLEN, *[0.5] * FLAT_EPOCHS, None], False),  # of that nothing is known
    ],
)
def test_loss_is_flat_if_the_last_epochs_have_not_brought_it_down(means, flat):
    metrics = losses_of(*means, 0.1)
    assert metrics.is_flat(len(means)) == flat


def test_loss_of_numbers_is_flat_by_itself_however_large_the_first_one_was():
    losses = [1e6 * 0.5**epoch for epoch in range(20)]
    assert losses_of(*losses, 1.0).is_flat(len(losses))
    assert not losses_of(*losses, 1.0).is_flat(len(losses), relative=True)
    losses += [1000.0 - 0.1 * FLAT * epoch for epoch in range(20)]
    assert losses_of(*losses, 1.0).is_flat(len(losses), relative=True)
    losses = [5.0, 1.0, *[0.0] * 10]  # nothing is left to learn
    assert losses_of(*losses, 1.0).is_flat(len(losses), relative=True)


@each(
    "means, share",
    [([2.0], 0), ([2.0, 1.0], 0.5), ([2.0, 1.985], 0), ([1.0, 2.0], 0), ([2.0, None], 0)],
)
def test_loss_falls_by_the_share_of_the_last_epoch(means, share):
    assert losses_of(*means).falling() == share


@each("constant, share", [(0.0, 0), (1.0, 0), (0.5, 0.2)])
def test_loss_that_is_nothing_beside_a_constants_does_not_fall(constant, share):
    """Of targets that are learnt to seven digits: an epoch more gains nothing."""
    assert losses_of(1.0, 1e-4, 8e-5).falling(constant) == pytest.approx(share)
