"""The verdict: each way in which counts can be wrong is told apart, and the push is named."""

import numpy as np
import pytest

from faults.counting import TABLE, CountedSettings, Notes, Plan, judge

PUSHES = 20


@pytest.fixture
def plan():
    return Plan.of(CountedSettings(worker_class="", input=(), shared=5, own=3, shards=2))


@pytest.fixture
def made(tmp_path, plan):
    """Pushes 0 to 18 acknowledged, 19 in flight and applied; rows by key, to be spoilt."""
    (tmp_path / "notes").mkdir()
    notes = Notes(tmp_path / "notes")
    rows = dict.fromkeys(range(5), PUSHES)
    for push in range(PUSHES):
        notes.note("s", push, push // 10)
        if push < PUSHES - 1:
            notes.note("a", push)
        rows |= dict.fromkeys(plan.own(notes.process, push)[0].tolist(), 1)
    return notes, rows


def verdict_of(tmp_path, plan, rows, scale=None):
    keys = np.array(list(rows), np.uint64)
    values = np.repeat(np.array(list(rows.values()), np.float32)[:, None], 4, axis=1)
    if scale is not None:
        values[scale, 1] += 1
    np.savez(tmp_path / "out.npz", **{f"{TABLE}.keys": keys, f"{TABLE}.rows": values})
    return judge(tmp_path / "notes", tmp_path / "out.npz", plan)


def faults(verdict):
    return {name for name in verdict.FAULTS if getattr(verdict, name)}


def shard_keys(plan, notes, push, shard):
    keys, at = plan.own(notes.process, push)
    return keys[at == shard].tolist()


def test_judge_exact_counts_are_good(tmp_path, plan, made):
    verdict = verdict_of(tmp_path, plan, made[1])
    assert verdict.good
    assert (verdict.acknowledged, verdict.in_flight, verdict.applied) == (PUSHES - 1, 1, 1)


@pytest.mark.parametrize("at_shard", [0, 1])
def test_judge_push_in_flight_applied_at_one_shard_only_is_good(tmp_path, plan, made, at_shard):
    notes, rows = made
    for key in shard_keys(plan, notes, PUSHES - 1, at_shard):
        del rows[key]
    for key in range(5):
        rows[key] -= int(plan.shards_of(np.array([key], np.uint64))[0]) == at_shard
    assert verdict_of(tmp_path, plan, rows).good


def test_judge_acknowledged_push_that_is_not_there_is_lost(tmp_path, plan, made):
    notes, rows = made
    for key in shard_keys(plan, notes, 7, 0):
        del rows[key]
    verdict = verdict_of(tmp_path, plan, rows)
    assert faults(verdict) == {"lost", "wrong"}  # the shared sums say what it did not take away
    assert "push 7 of process" in verdict.lost[0]


def test_judge_push_that_counts_twice_is_doubled(tmp_path, plan, made):
    notes, rows = made
    for key in shard_keys(plan, notes, 7, 1):
        rows[key] = 2
    verdict = verdict_of(tmp_path, plan, rows)
    assert "doubled" in faults(verdict)
    assert "push 7 of process" in verdict.doubled[0]


def test_judge_half_of_a_push_in_flight_is_torn(tmp_path, plan, made):
    notes, rows = made
    del rows[shard_keys(plan, notes, PUSHES - 1, 1)[0]]
    assert faults(verdict_of(tmp_path, plan, rows)) == {"torn"}


def test_judge_half_of_a_row_is_torn(tmp_path, plan, made):
    assert faults(verdict_of(tmp_path, plan, made[1], scale=9)) == {"torn"}


def test_judge_push_unanswered_to_one_that_ended_well_is_told(tmp_path, plan, made):
    notes, rows = made
    notes.note("e", PUSHES)
    assert faults(verdict_of(tmp_path, plan, rows)) == {"unanswered"}


def test_judge_push_begun_after_its_worker_was_given_up_is_undead(tmp_path, plan, made):
    notes, rows = made
    tables = verdict_of(tmp_path, plan, rows) and tmp_path / "out.npz"
    assert judge(tmp_path / "notes", tables, plan, {notes.pid: float("inf")}).good
    assert faults(judge(tmp_path / "notes", tables, plan, {notes.pid: 0.0})) == {"undead"}


def test_judge_pull_that_lacks_what_was_acknowledged_is_stale(tmp_path, plan, made):
    notes, rows = made
    notes.note("v", 3, 2.0, 3)
    assert faults(verdict_of(tmp_path, plan, rows)) == {"stale"}


def test_judge_wrong_sum_and_strange_key_are_told(tmp_path, plan, made):
    _, rows = made
    rows[3] += 1
    rows[77] = 1
    verdict = verdict_of(tmp_path, plan, rows)
    assert faults(verdict) == {"wrong"}
    assert "shared key 3" in str(verdict)
    assert "77" in str(verdict)


def test_judge_half_written_note_does_not_count(tmp_path, plan, made):
    _, rows = made
    with open(next((tmp_path / "notes").iterdir()), "a") as file:
        file.write("a 19")
    verdict = verdict_of(tmp_path, plan, rows)
    assert verdict.good
    assert verdict.in_flight == 1
