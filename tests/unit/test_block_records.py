"""master.leases.records: the states of a block, and what checkpoints and journal keep of them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snailps.master.leases.records import (
    OUTCOME,
    TRANSITIONS,
    BlockRecords,
    BlockResult,
    BlockState,
)


def trained(records, number, node, **result):
    records.lease(number, node)
    records.finish(number, BlockResult(**result))


def test_transitions_that_are_not_in_the_table_raise():
    assert set(TRANSITIONS) == set(BlockState)
    records = BlockRecords(3)
    records.lease(0, 1)
    with pytest.raises(AssertionError, match="block 0 does not go from LEASED to LEASED"):
        records.lease(0, 2)
    with pytest.raises(AssertionError, match="block 1 does not go from WAITING to DONE"):
        records.finish(1, BlockResult())
    records.finish(0, BlockResult())
    with pytest.raises(AssertionError, match="block 0 does not go from DONE to WAITING"):
        records.release(0)
    with pytest.raises(AssertionError, match="block 0 does not go from DONE to LEASED"):
        records.lease(0, 1)


def test_counted_block_is_its_workers_until_its_part_is_merged_or_it_is_given_back():
    records = BlockRecords(3)
    for number in range(3):
        records.lease(number, 7)
        records.count(number)
    assert (records.holder(1), records.leased, records.is_counted(1)) == (7, 3, True)
    assert records.release(0) == 7
    records.merge(1)
    assert (records.is_waiting(0), records.held_by(7), records.merging) == (True, [2], 1)
    records.merge_failed(1)
    assert (records.held_by(7), records.is_counted(1)) == ([1, 2], False)


def test_durable_are_only_blocks_that_their_own_worker_has_durable():
    records = BlockRecords(10)
    for number, node in ((0, 1), (1, 2), (4, 1), (2, 2)):
        trained(records, number, node, units=100 + number, loss=1.5, examples=7.0)
    records.lease(3, 1)
    records.make_durable([0, 1, 3, 9, -1, 77], 1)  # 1 is another's, the others are not done
    found = records.durable()
    assert found.dtype == OUTCOME
    assert found["units"].tolist() == [100, 0, 0, 0, 0]
    records.make_all_durable(2)
    assert records.durable()["units"].tolist() == [100, 101, 102, 0, 0]
    records.make_all_durable(2)
    assert records.durable()["loss"].tolist() == [1.5, 1.5, 1.5, 0, 0]


def test_records_resume_with_those_of_an_earlier_run_as_far_as_there_are_blocks():
    records = BlockRecords(10)
    trained(records, 3, 1, units=5, loss=0.5, examples=5.0, bad_lines=2, lr=0.1)
    records.make_all_durable(1)
    again = BlockRecords(4)
    again.resume(records.durable())
    assert (again.durable() == records.durable()).all()
    assert (again.finished, again.done().tolist()) == (1, [3])
    assert again.result(3)[:4] == (5, 0.5, 5.0, 2)
    assert math.isnan(again.result(3).lr)  # checkpoints do not have it
    exact = BlockRecords(4)
    exact.resume(records.known())
    assert exact.result(3).lr == 0.1
    shorter = BlockRecords(2)
    shorter.resume(records.durable())
    assert len(shorter.durable()) == 2
    assert shorter.finished == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["lease", "finish", "release", "make_durable", "make_all_durable", "known"]
            ),
            st.integers(0, 11),
            st.integers(1, 3),
        ),
        max_size=60,
    )
)
def test_records_after_any_transitions_agree_with_a_plain_model(actions):
    records, model = BlockRecords(8, first=4), {}
    for action, number, node in actions:
        state, holder = model.get(number, ("waiting", 0))
        if action == "lease" and number >= 4 and state == "waiting":
            records.lease(number, node)
            model[number] = ("leased", node)
        elif action == "finish" and state == "leased":
            records.finish(number, BlockResult(units=number))
            model[number] = ("done", holder)
        elif action == "release" and state == "leased":
            assert records.release(number) == holder
            del model[number]
        elif action == "make_durable":
            records.make_durable([number], node)
            if (state, holder) == ("done", node):
                model[number] = ("durable", node)
        elif action == "make_all_durable":
            records.make_all_durable(node, [number])
            for n, (s, h) in model.items():
                if (s, h) == ("done", node) and n != number:
                    model[n] = ("durable", node)
        else:
            records.known()
    states = {n: s for n, (s, _) in model.items()}
    done = sorted(n for n, s in states.items() if s in ("done", "durable"))
    assert records.done().tolist() == done
    assert records.finished == len(done)
    leased = {n: h for n, (s, h) in model.items() if s == "leased"}
    assert {n: records.holder(n) for n in range(14) if records.holder(n)} == leased
    assert records.leased == len(leased)
    assert {n for h in records.holders() for n in records.held_by(h)} == set(leased)
    assert records.waiting(0, 99) == [n for n in range(4, 12) if n not in states]
    assert records.not_done(0, 99) == [n for n in range(4, 12) if n not in done]
    assert records.last == max(states, default=-1)
    known = records.known()
    assert (np.flatnonzero(known["state"]) + 4).tolist() == done
    assert [n for n in done if known["state"][n - 4] == BlockState.DURABLE] == sorted(
        n for n, s in states.items() if s == "durable"
    )
    assert all(known["units"][n - 4] == n for n in done)


def test_next_not_done_steps_over_long_runs(monkeypatch):
    monkeypatch.setattr("snailps.master.leases.records._LOOK", 7)
    known = np.zeros(100, OUTCOME)
    known["state"][:90] = BlockState.DURABLE
    known["state"][40] = 0
    records = BlockRecords(95)
    records.resume(known)
    assert records.next_not_done(0, 95) == 40
    assert records.next_not_done(41, 95) == 90
    assert records.next_not_done(41, 80) == 80
