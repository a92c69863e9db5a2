"""Which rows a table makes and keeps (`snailps.store.core._retention`): admission by count, a
limit, the same in a copy."""

import json

import numpy as np
import pytest
from replicas import Replicas, assert_equal, dump
from stores import keys_of, scan_all, sections_of, some_keys
from waiting import got

from snailps.abi import loops
from snailps.api.tables import Table
from snailps.errors import CheckpointError
from snailps.store._store import ShardStore
from snailps.store.checkpoint._sections import put_section, read_section


def made(
    frag_num=1, admit_after=0, admit_bytes=1 << 16, rows_max=0, age_max=0, dim=3, access="add"
):
    """A store that owns all fragments, and has such a table as number 0."""
    store = ShardStore(frag_num, loops.row_ops())
    store.own(range(frag_num))
    table = Table(
        "t", dim, access, init="uniform", lr=0.1, admit_after=admit_after, admit_bytes=admit_bytes,
        rows_max=rows_max, age_max=age_max,
    )  # fmt: skip
    store.add_table(0, *table.store_arguments())
    return store


class Pusher:
    """Pushes of ones, each with its number."""

    def __init__(self, store, dim=3):
        self.store, self.dim, self.seq = store, dim, 0

    def __call__(self, keys):
        self.seq += 1
        keys = np.asarray(keys, np.uint64)
        self.store.push(0, 1, self.seq, keys, np.ones((len(keys), self.dim), np.float32))


def stats(store):
    return store.stats()["tables"][0]


def keys_in(store):
    return set(store.keys(0).tolist())


# --- admission -----------------------------------------------------------------------------------


@pytest.mark.parametrize("admit_after", [2, 3, 100])
def test_row_is_made_by_the_push_that_says_so_and_only_that_one_counts(admit_after):
    store = made(admit_after=admit_after)
    push, first = Pusher(store), store.pull(0, keys_of(5))
    for _ in range(admit_after - 1):
        push([5])
        assert store.rows(0) == 0
        assert np.array_equal(store.pull(0, keys_of(5)), first)
    push([5])
    assert np.array_equal(store.pull(0, keys_of(5)), first + 1)
    push([5])
    assert np.array_equal(store.pull(0, keys_of(5)), first + 1 + 1)
    assert stats(store)["refused"] == admit_after - 1
    assert stats(store)["made"] == 1


@pytest.mark.parametrize("admit_after", [0, 1])
def test_table_that_admits_at_once_has_no_counts(admit_after):
    store = made(admit_after=admit_after)
    Pusher(store)(range(100))
    assert (store.rows(0), stats(store)["refused"]) == (100, 0)


@pytest.mark.parametrize("frag_num", [1, 4, 12])
def test_counts_take_no_more_memory_than_was_allowed(frag_num):
    store = made(frag_num, admit_after=2, admit_bytes=frag_num << 16)
    plain = made(frag_num)
    for one in (store, plain):
        Pusher(one)(some_keys(1000))
    assert store.rows(0) < 100  # by collisions
    assert stats(store)["bytes"] - stats(plain)["bytes"] <= frag_num << 16


def test_no_key_waits_longer_than_it_must_while_counts_are_whole():
    """2 x 3,000 counted pushes; a part of four halves its counts after 2,048."""
    store, keys = made(4, admit_after=3, admit_bytes=1 << 16), some_keys(3000)
    push = Pusher(store)
    push(keys)
    push(keys)
    few = store.rows(0)
    push(keys)
    assert keys_in(store) == set(keys.tolist())
    assert few < 100  # collisions admit a key early


def test_keys_that_come_once_are_seldom_admitted_and_take_bounded_memory():
    store = made(8, admit_after=2, admit_bytes=1 << 18)
    push = Pusher(store)
    for seed in range(10):
        push(some_keys(20_000, seed + 10)[2:])
    rows = store.rows(0)
    assert rows < 0.02 * 200_000
    assert stats(store)["refused"] == 199_980 - rows
    counts = 8 * (1 << 15)
    assert stats(store)["bytes"] < 2 * counts + rows * 60 + 8 * 1024


def test_counts_fade():
    store = made(admit_after=2, admit_bytes=64)  # 64 cells, halved after 8 counted pushes
    push = Pusher(store)
    push([1])
    push(some_keys(9, 3)[2:])  # seven others: the eighth counted push halves all
    before = store.rows(0)
    push([1])
    assert 1 not in keys_in(store)
    push([1])
    assert 1 in keys_in(store)
    assert store.rows(0) == before + 1


def test_difference_of_state_waits_for_admission_as_a_gradient_does():
    store = made(admit_after=2, access="adagrad")
    for seq in (1, 2):
        delta = np.ones((1, 6), np.float32)
        store.push(0, 1, seq, keys_of(9), delta, state=True)
    assert store.pull(0, keys_of(9), state=True)[0, 3:].tolist() == [1, 1, 1]


def test_clock_counts_as_one_push_of_a_key():
    store, first = made(admit_after=2), made().pull(0, keys_of(1))
    for clock in range(3):
        for slot in (0, 1):
            store.stage(0, clock, slot, 1, keys_of(1), np.ones((1, 3), np.float32))
            store.seal(clock, slot, 2, 1)
    assert np.array_equal(store.pull(0, keys_of(1)), first + 4)


# --- the limit -----------------------------------------------------------------------------------


class Reference:
    """One part with a limit: keys by the number of their last push."""

    def __init__(self, limit):
        self.limit, self.last, self.number = limit, {}, 0

    def push(self, keys):
        for key in keys:
            if key not in self.last and len(self.last) >= self.limit:
                oldest = sorted(self.last, key=self.last.__getitem__)
                for gone in oldest[: max(self.limit // 16, 1)]:
                    del self.last[gone]
            self.number += 1
            self.last[key] = self.number


@pytest.mark.parametrize("limit", [1, 2, 17, 64, 500])
def test_least_recently_pushed_rows_go(limit):
    """Batches with keys whose rows go in the same batch, and come again in it."""
    store, reference = made(rows_max=limit), Reference(limit)
    push, rng = Pusher(store), np.random.default_rng(limit)
    for n in rng.integers(1, 200, 60).tolist():
        keys = (rng.zipf(1.2, n) % (3 * limit + 2)).tolist()
        keys = list(dict.fromkeys(keys))
        push(keys)
        reference.push(keys)
        assert keys_in(store) == reference.last.keys()
        assert store.rows(0) <= limit
    assert stats(store)["made"] - stats(store)["evicted"] == store.rows(0)
    assert stats(store)["evicted"] > 0


def test_row_that_went_begins_anew():
    store = made(rows_max=2)
    push, first = Pusher(store), store.pull(0, keys_of(1))
    for key in (1, 1, 2, 3):
        push([key])
    assert keys_in(store) == {2, 3}
    assert np.array_equal(store.pull(0, keys_of(1)), first)
    push([1])
    assert np.array_equal(store.pull(0, keys_of(1)), first + 1)


def test_limit_is_shared_by_fragments_and_memory_stays():
    store = made(16, rows_max=16_000)
    push = Pusher(store)
    for seed in range(3):
        push(some_keys(20_000, seed))
    full = stats(store)["bytes"]
    for seed in range(3, 12):
        push(some_keys(20_000, seed))
    assert 15_000 < store.rows(0) <= 16_000
    assert stats(store)["bytes"] == full


def test_rows_with_holes_are_limited_as_well():
    store = made(rows_max=100)
    push, keys = Pusher(store), some_keys(200)
    push(keys[:100])
    store.delete(0, keys[10:60])
    push(keys[100:])
    assert store.rows(0) <= 100
    expected = set(keys[106:].tolist())
    assert expected <= keys_in(store)
    assert {key for key, _ in zip(*scan_all(store, 0, 0, 9), strict=True)} == keys_in(store)


# --- the age -------------------------------------------------------------------------------------


class Ages:
    """One part whose rows outlive a number of pushes: keys by the number of their last push."""

    def __init__(self, age, limit):
        self.age, self.swept = age, 0
        self.rows = Reference(limit)

    def push(self, keys):
        rows = self.rows
        for key in keys:
            rows.push([key])
            if rows.number - self.swept >= max(self.age // 2, 1):
                self.swept = rows.number
                oldest = rows.number - self.age
                rows.last = {key: last for key, last in rows.last.items() if last > oldest}


@pytest.mark.parametrize("limit", [0, 60])
@pytest.mark.parametrize("age", [1, 2, 30, 301])
def test_rows_that_no_push_touched_for_an_age_go(age, limit):
    """Batches in which rows expire and come again; with a limit besides, too."""
    store, reference = made(age_max=age, rows_max=limit), Ages(age, limit or 10**9)
    push, rng = Pusher(store), np.random.default_rng(age)
    for n in rng.integers(1, 200, 40).tolist():
        keys = list(dict.fromkeys((rng.zipf(1.2, n) % 400).tolist()))
        push(keys)
        reference.push(keys)
        assert keys_in(store) == reference.rows.last.keys()
    found = stats(store)
    assert found["made"] - found["evicted"] - found["expired"] == store.rows(0)
    assert (found["expired"] > 0) == (limit == 0 or age < limit)


def test_age_is_shared_by_fragments_and_pulls_do_not_count():
    store = made(4, age_max=4_000)
    push, keys = Pusher(store), some_keys(2_000)
    push(keys[:500])
    for turn in range(20):
        push(keys[500 + 50 * turn : 1_000 + 50 * turn])
        store.pull(0, keys[:500])
    assert not keys_in(store) & set(keys[:500].tolist())
    assert keys_in(store) >= set(keys[1_450:1_950].tolist())


# --- copies --------------------------------------------------------------------------------------


def settings():
    return {
        "frag_num": 4,
        "admit_after": 2,
        "admit_bytes": 1 << 12,
        "rows_max": 400,
        "age_max": 1500,
    }


def tables_in(store):
    """The bytes of all tables, fragment by fragment; marks are a cluster's own."""
    found = []
    for section in sections_of(store):
        about = read_section(section)
        end = max((one.counts_at + one.counts_bytes for one in about.tables), default=0)
        found.append(section[32 + 16 * about.marks : end].tobytes())
    return found


def test_store_put_from_a_checkpoint_makes_and_keeps_the_same_rows():
    one, two = made(**settings()), made(**settings())
    push = Pusher(one)
    rng = np.random.default_rng(4)
    for _ in range(30):
        push(np.unique(rng.integers(0, 1500, 100)))
    for section in sections_of(one):
        put_section(two, section, {0: 0})
    assert tables_in(two) == tables_in(one)
    again = Pusher(two)
    again.seq = push.seq
    for _ in range(30):
        keys = np.unique(rng.integers(0, 1500, 100))
        push(keys)
        again(keys)
    assert keys_in(one) == keys_in(two)
    every = np.array(sorted(keys_in(one)), np.uint64)
    assert np.array_equal(one.pull(0, every), two.pull(0, every))


def test_checkpoint_of_a_table_with_counts_is_taken_by_one_without_and_back():
    counts, plain = made(admit_after=2), made()
    push = Pusher(counts)
    push(range(50))
    push(range(40))
    for section in sections_of(counts):
        assert put_section(plain, section, {0: 0}) == counts.rows(0) >= 40
    assert keys_in(plain) == keys_in(counts)
    other = made(admit_after=3)
    for section in sections_of(plain):
        put_section(other, section, {0: 0})
    assert keys_in(other) == keys_in(counts)


def test_section_with_damaged_counts_is_refused():
    store, other = made(admit_after=2), made(admit_after=2)
    Pusher(store)([1])
    (section,) = sections_of(store)
    at = 32 + 16 + 48
    assert int.from_bytes(section[at + 8 : at + 12], "little") == (1 << 16) - 64  # cells
    section[at + 12] = 1
    with pytest.raises(CheckpointError, match="counts of table 0"):
        put_section(other, section, {0: 0})


def test_standby_made_amid_pushes_and_promoted_makes_and_keeps_the_same_rows():
    table = Table(
        "t", 3, "adagrad", lr=0.1, admit_after=2, admit_bytes=1 << 13, rows_max=2000, age_max=9000
    )
    rng = np.random.default_rng(8)
    pushes = [np.unique(rng.integers(0, 6000, 700)).astype(np.uint64) for _ in range(40)]

    def run(cluster, fail):
        cluster.declare(table)
        client = cluster.client()
        for number, keys in enumerate(pushes):
            client.push_async(1, keys, np.full((len(keys), 3), 0.5, np.float32))
            if fail and number == 15:
                run.made = cluster.back_up(ready=False)
            if fail and number == 30:
                client.flush()
                assert got(cluster.told, "a standby that is ready") == ("ready", "")
                cluster.settle()
                assert_equal(dump(cluster.threads[0]), dump(run.made[0]))
                cluster.promote(run.made)
        client.flush()
        return dump(cluster.threads[0])

    with Replicas(frag_num=16) as one, Replicas(frag_num=16) as two:
        assert_equal(run(one, False), run(two, True))


# --- declarations --------------------------------------------------------------------------------


def test_table_of_an_earlier_checkpoint_has_no_retention():
    data = Table("t", 3).to_dict()
    for field in ("admit_after", "admit_bytes", "rows_max", "age_max"):
        del data[field]
    assert Table.from_dict(json.loads(json.dumps(data))) == Table("t", 3)


def test_table_with_another_limit_is_another_table():
    store = made(rows_max=5)
    with pytest.raises(Exception, match="declared again"):
        store.add_table(0, *Table("t", 3, init="uniform", lr=0.1, rows_max=6).store_arguments())
    with pytest.raises(Exception, match="declared again"):
        store.add_table(
            0, *Table("t", 3, init="uniform", lr=0.1, rows_max=5, age_max=9).store_arguments()
        )
