"""store._store: the rows of one shard, against a plain Python model and known answers."""

import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from twins import store as twin

from snailps import kernels
from snailps.errors import ConfigError, SnailError
from snailps.store._store import ShardStore
from snailps.store.route import fragment_of

ZEROS, UNIFORM, NORMAL = 0, 1, 2
TOP = 2**64 - 1
STATM = Path("/proc/self/statm")


def make_store(
    frag_num=1, dim=4, access=twin.ADD, init=ZEROS, scale=0.5, seed=7, hyper=None, track=0
):
    """A store that owns every fragment and has table 0."""
    store = ShardStore(frag_num, kernels.row_ops())
    store.own(range(frag_num))
    store.add_table(0, dim, access, init, scale, seed, hyper or (0.5, 1e-6, 0, 0), track)
    return store


def keys_of(*keys):
    return np.array(keys, np.uint64)


def some_keys(count, seed=1):
    """Different keys, 0 and 2^64 - 1 among them."""
    drawn = np.random.default_rng(seed).integers(1, TOP, 2 * count, dtype=np.uint64)
    return np.concatenate([keys_of(0, TOP), np.unique(drawn)])[:count]


def scan_all(store, table_id, fragment, max_rows):
    cursor, keys, rows = 0, [], []
    while True:
        cursor, more_keys, more_rows = store.scan(table_id, fragment, cursor, max_rows)
        if not len(more_keys):
            return keys, rows
        keys += more_keys.tolist()
        rows += list(more_rows)


# --- the model -----------------------------------------------------------------------------------

FRAG_NUM = 4
POOL = [0, 1, 2, TOP, TOP - 1, 2**63, 2**32, 2**32 - 1, *range(1000, 1030)]
KEYS = st.lists(st.sampled_from(POOL) | st.integers(0, TOP), max_size=40)
FRAGMENTS = st.integers(0, FRAG_NUM - 1)
INCARNATIONS = st.sampled_from([0, 1, 2, 77, TOP])
TABLES = st.integers(0, 5)
HYPER = (0.125, 1e-6, 0.5, 0.75, 0.25, 0.5, 1.0, 0.0)
# Table id -> the settings it is declared with: one of every access method and initialiser.
SHAPES = {
    0: (1, twin.ADD, ZEROS, 0.0, 1, HYPER, 0),
    1: (5, twin.SGD, UNIFORM, 0.25, 2, HYPER, 1),
    2: (3, twin.ADAGRAD, NORMAL, 1.0, TOP, HYPER, 2),
    3: (100, twin.ADD, UNIFORM, 0.5, 3, HYPER, 3),
    4: (4, twin.ADAM, UNIFORM, 0.5, 3, HYPER, 3),
    5: (2, twin.FTRL, UNIFORM, 0.5, 3, HYPER, 0),
}


class StoreMachine(RuleBasedStateMachine):
    """Whatever is done to a ShardStore and to the model, both answer the same."""

    def __init__(self):
        super().__init__()
        self.store = ShardStore(FRAG_NUM, kernels.row_ops())
        self.model = twin.StoreModel(FRAG_NUM, kernels.init_row)
        self.copies = {}  # (table, state) -> {key: (number, row)}: what one asker holds

    @rule(table=TABLES)
    def declare(self, table):
        self.store.add_table(table, *SHAPES[table])
        self.model.add_table(table, *SHAPES[table])

    @rule(fragments=st.lists(FRAGMENTS))
    def own(self, fragments):
        self.store.own(fragments)
        self.model.own(fragments)

    @rule()
    def own_all(self):
        self.own(range(FRAG_NUM))

    @rule(fragment=FRAGMENTS)
    def disown(self, fragment):
        if fragment in self.model.rows:
            self.store.disown(fragment)
            self.model.disown(fragment)
        else:
            with pytest.raises(SnailError, match="not owned"):
                self.store.disown(fragment)

    def push_both(self, table, incarnation, seq, keys, state=False):
        dim, access = SHAPES[table][:2]
        width = dim + twin.state_floats(access, dim) if state else dim
        # Small multiples of 1/8: sums and products stay exact in float32.
        values = (np.arange(len(keys) * width) % 17 - 8).astype(np.float32) / 8
        values = values.reshape(len(keys), width)
        if state:
            values[:, dim:] **= 2  # sums of squares only grow
        try:
            expected = self.model.push(table, incarnation, seq, keys, values, state)
        except twin.NotOwned:
            with pytest.raises(SnailError, match="not owned"):
                self.store.push(table, incarnation, seq, keys_of(*keys), values, state)
        else:
            found = self.store.push(table, incarnation, seq, keys_of(*keys), values, state)
            assert found == expected

    @rule(table=TABLES, incarnation=INCARNATIONS, seq=st.integers(1, 30), keys=KEYS)
    def push(self, table, incarnation, seq, keys):
        if table in self.model.tables:
            self.push_both(table, incarnation, seq, keys)

    @rule(table=TABLES, incarnation=INCARNATIONS, seq=st.integers(1, 30), keys=KEYS)
    def push_state(self, table, incarnation, seq, keys):
        if table in self.model.tables and SHAPES[table][1] != twin.ADAM:
            self.push_both(table, incarnation, seq, keys, state=True)

    @rule(tick=st.integers(0, 20))
    def set_tick(self, tick):
        self.store.set_tick(tick)
        self.model.tick = tick

    @rule(table=TABLES, keys=KEYS)
    def delete(self, table, keys):
        if table not in self.model.tables:
            return
        try:
            expected = self.model.delete(table, keys)
        except twin.NotOwned:
            with pytest.raises(SnailError, match="not owned"):
                self.store.delete(table, keys_of(*keys))
        else:
            assert self.store.delete(table, keys_of(*keys)) == expected

    @rule(table=TABLES, start=st.integers(0, 2000), step=st.integers(1, 4))
    def delete_many(self, table, start, step):
        if table in self.model.tables and len(self.model.rows) == FRAG_NUM:
            keys = range(start, start + 300, step)
            expected = self.model.delete(table, keys)
            assert self.store.delete(table, keys_of(*keys)) == expected

    @rule(table=TABLES, before=st.integers(0, 21))
    def expire(self, table, before):
        if table in self.model.tables and SHAPES[table][6] & 1:
            assert self.store.expire(table, before) == self.model.expire(table, before)

    @rule(
        table=TABLES, seq=st.integers(1, 60), start=st.integers(0, 2000), count=st.integers(1, 300)
    )
    def push_many(self, table, seq, start, count):
        """Enough keys for indices and slabs to grow, each twice."""
        if table in self.model.tables and len(self.model.rows) == FRAG_NUM:
            self.push_both(table, 5, seq, [*range(start, start + count)] * 2)

    @rule(table=TABLES, keys=KEYS)
    def pull(self, table, keys):
        if table not in self.model.tables:
            with pytest.raises(SnailError, match="no table"):
                self.store.pull(table, keys_of(*keys))
            return
        try:
            expected = self.model.pull(table, keys)
        except twin.NotOwned:
            with pytest.raises(SnailError, match="not owned"):
                self.store.pull(table, keys_of(*keys))
            return
        self.store.fetch(table, keys_of(*keys))
        near = {"rtol": 1e-4, "atol": 1e-5}
        np.testing.assert_allclose(self.store.pull(table, keys_of(*keys)), expected, **near)
        whole = self.model.pull(table, keys, state=True)
        np.testing.assert_allclose(self.store.pull(table, keys_of(*keys), True), whole, **near)
        self.tracked(table, keys)
        for fragment in self.model.rows:
            own = [k for k in keys if twin.fragment_of(k, FRAG_NUM) == fragment]
            found = self.store.pull_fragment(table, fragment, keys_of(*own))
            np.testing.assert_array_equal(found, self.store.pull(table, keys_of(*own)))

    @rule(table=TABLES, keys=KEYS, state=st.booleans(), forgets=st.integers(1, 9))
    def pull_changed(self, table, keys, state, forgets):
        """An asker's copies are kept right by what is sent to it, whatever happened meanwhile."""
        if table not in self.model.tables or not SHAPES[table][6] & 2:
            return
        asker = self.copies.setdefault((table, state), {})
        for key in keys[::forgets]:
            asker.pop(key, None)
        held = [asker[key][0] if key in asker else 0 for key in keys]
        try:
            expected = self.model.pull_changed(table, keys, held, state)
        except twin.NotOwned:
            with pytest.raises(SnailError, match="not owned"):
                self.store.pull_changed(table, keys_of(*keys), keys_of(*held), state)
            return
        found = self.store.pull_changed(table, keys_of(*keys), keys_of(*held), state)
        assert found[0].tolist() == expected[0]
        assert found[1].tolist() == expected[1]
        np.testing.assert_allclose(found[2], expected[2], rtol=1e-4, atol=1e-5)
        for key, row in zip(np.array(keys)[found[1]].tolist(), found[2], strict=True):
            asker[key] = (0, row)
        for key, number in zip(keys, found[0].tolist(), strict=True):
            asker[key] = (number, asker[key][1])
        whole = self.store.pull(table, keys_of(*keys), state)
        for key, row in zip(keys, whole, strict=True):
            np.testing.assert_array_equal(asker[key][1], row)

    def tracked(self, table, keys):
        rows = [self.model.row(table, key) for key in keys]
        for bit, name, door in ((1, "touch", "touched"), (2, "version", "versions")):
            if SHAPES[table][6] & bit:
                found = getattr(self.store, door)(table, keys_of(*keys)).tolist()
                assert found == [getattr(row, name) if row else 0 for row in rows]
            else:
                with pytest.raises(SnailError, match=f"does not track {name}"):
                    getattr(self.store, door)(table, keys_of(*keys))

    @rule(fragment=FRAGMENTS, incarnation=INCARNATIONS, seq=st.integers(0, 40))
    def set_mark(self, fragment, incarnation, seq):
        if fragment in self.model.marks:
            self.store.set_mark(fragment, incarnation, seq)
            present = self.model.marks[fragment].get(incarnation, 0)
            if seq > present:
                self.model.marks[fragment][incarnation] = seq

    @precondition(lambda self: self.model.tables and self.model.rows)
    @rule(max_rows=st.integers(1, 50))
    def scan(self, max_rows):
        for table in self.model.tables:
            for fragment in self.model.rows:
                keys, rows = scan_all(self.store, table, fragment, max_rows)
                assert sorted(keys) == sorted(self.model.keys_of(table, fragment))
                if keys:
                    np.testing.assert_array_equal(self.store.pull(table, keys_of(*keys)), rows)
                    np.testing.assert_allclose(
                        rows, self.model.pull(table, keys), rtol=1e-4, atol=1e-5
                    )

    @invariant()
    def sums_agree(self):
        assert self.store.fragments().tolist() == sorted(self.model.rows)
        for fragment, marks in self.model.marks.items():
            assert self.store.marks(fragment) == marks
            for incarnation in (0, 1, TOP):
                assert self.store.mark(fragment, incarnation) == marks.get(incarnation, 0)
        stats = self.store.stats()
        assert set(stats["tables"]) == set(self.model.tables)
        for table in self.model.tables:
            keys = [k for f in sorted(self.model.rows) for k in self.model.keys_of(table, f)]
            assert sorted(self.store.keys(table).tolist()) == sorted(keys)
            if SHAPES[table][6] & 2:
                for fragment in self.model.rows:
                    expected = self.model.versions.get((table, fragment), 0)
                    assert self.store.version(table, fragment) == expected
            assert self.store.rows(table) == stats["tables"][table]["rows"] == len(keys)


TestStoreAgainstModel = StoreMachine.TestCase
TestStoreAgainstModel.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True
)


# --- first values --------------------------------------------------------------------------------


@pytest.mark.parametrize("init", [ZEROS, UNIFORM, NORMAL])
def test_store_first_values_do_not_depend_on_order_or_batch(init):
    keys = some_keys(500)
    left, right = (make_store(8, 10, init=init) for _ in range(2))
    expected = np.stack([kernels.init_row(init, 0.5, 7, int(key), 10) for key in keys])
    zeros = np.zeros((len(keys), 10), np.float32)
    left.push(0, 1, 1, keys, zeros)
    for seq, start in enumerate(range(499, -1, -7), start=1):
        some = keys[max(start - 6, 0) : start + 1][::-1]
        right.push(0, 1, seq, some, zeros[: len(some)])
    assert left.rows(0) == right.rows(0) == 500
    for store in (left, right, make_store(8, 10, init=init)):
        np.testing.assert_array_equal(store.pull(0, keys), expected)


def test_store_pull_of_missing_keys_creates_nothing():
    store = make_store(4, 8, init=NORMAL)
    before = store.bytes
    keys = some_keys(1000)
    np.testing.assert_array_equal(store.pull(0, keys), store.pull(0, keys))
    assert (store.rows(0), store.bytes) == (0, before)


# --- access methods ------------------------------------------------------------------------------


def test_store_push_add_known_answer_with_duplicates():
    store = make_store(dim=2)
    keys = keys_of(0, TOP, 0, 0)
    values = [[1, 2], [10, 20], [0.5, 0.25], [0.5, 0.25]]
    assert store.push(0, 1, 1, keys, values) == 4
    assert store.pull(0, keys).tolist() == [[2, 2.5], [10, 20], [2, 2.5], [2, 2.5]]
    assert store.rows(0) == 2


def test_store_push_sgd_known_answer():
    store = make_store(dim=2, access=twin.SGD, hyper=(0.5, 0, 0, 0))
    store.push(0, 1, 1, keys_of(3), [[4, -2]])
    store.push(0, 1, 2, keys_of(3), [[1, 1]])
    assert store.pull(0, keys_of(3)).tolist() == [[-2.5, 0.5]]


def test_store_push_adagrad_known_answer():
    """Gradients 3, then 4: w = -lr (3 / 3 + 4 / 5); sums of squares live beside the weights."""
    store = make_store(dim=1, access=twin.ADAGRAD, hyper=(0.5, 0, 0, 0))
    store.push(0, 1, 1, keys_of(3), [[3]])
    assert store.pull(0, keys_of(3)).tolist() == [[-0.5]]
    store.push(0, 1, 2, keys_of(3), [[4]])
    np.testing.assert_allclose(store.pull(0, keys_of(3)), [[-0.9]], rtol=1e-6)


def test_store_state_of_row_in_reused_memory_starts_at_zero():
    store = make_store(dim=3, access=twin.ADAGRAD, hyper=(0.5, 0, 0, 0))
    keys = some_keys(2000)
    ones = np.ones((2000, 3), np.float32)
    store.push(0, 1, 1, keys, ones)
    store.disown(0)
    store.own([0])
    assert store.push(0, 1, 1, keys[::-1], ones) == 2000
    np.testing.assert_array_equal(store.pull(0, keys), -0.5 * ones)


# --- marks ---------------------------------------------------------------------------------------


def test_store_push_repeated_seq_has_no_effect():
    store = make_store(8, 1)
    keys = some_keys(100)
    ones = np.ones((100, 1), np.float32)
    assert store.push(0, 9, 5, keys, ones) == 100
    assert store.push(0, 9, 5, keys, ones) == 0
    assert store.push(0, 9, 4, keys, ones) == 0
    assert store.push(0, 8, 1, keys, ones) == 100
    np.testing.assert_array_equal(store.pull(0, keys), 2 * ones)


def test_store_push_skips_only_fragments_that_have_it():
    store = make_store(8, 1)
    keys = np.arange(100, dtype=np.uint64)
    fragments = fragment_of(keys, 8)
    store.set_mark(3, 9, 5)
    assert store.push(0, 9, 5, keys, np.ones((100, 1))) == (fragments != 3).sum()
    np.testing.assert_array_equal(store.pull(0, keys)[:, 0], fragments != 3)


def test_store_marks_of_thousands_of_incarnations_are_kept():
    store = make_store(2)
    who = np.random.default_rng(2).permutation(5000) * 2**40
    for number, incarnation in enumerate(who.tolist(), start=1):
        store.set_mark(1, incarnation, number)
    assert store.marks(1) == {w: i for i, w in enumerate(who.tolist(), start=1)}
    assert store.mark(1, 3) == 0
    assert store.marks(0) == {}
    store.disown(1)
    store.own([1])
    assert store.marks(1) == {}


# --- deletion, ticks, versions, rounds -----------------------------------------------------------


def crowded_keys(count, buckets, home):
    """Keys whose place in an index of so many buckets is `home`, so that they overflow."""
    drawn = np.random.default_rng(home).integers(0, TOP, count * buckets * 3, dtype=np.uint64)
    low = np.array([twin.hash_key(key) & (buckets - 1) for key in drawn.tolist()])
    return drawn[low == home][:count]


@pytest.mark.parametrize("home", [0, 13, 31])
def test_store_delete_from_overflowing_buckets_keeps_every_other_key(home):
    """Runs of full buckets, also round the end of the index: gaps are closed again and again."""
    rng = np.random.default_rng(home)
    crowd = crowded_keys(60, 32, home)
    near = crowded_keys(40, 32, (home + 2) % 32)
    keys = np.concatenate([crowd, near, some_keys(100, seed=1000)])
    assert len(np.unique(keys)) == 200
    store = make_store(1, 1)
    numbers = np.arange(len(keys), dtype=np.float32)[:, None]
    store.push(0, 1, 1, keys, numbers)
    left = np.ones(len(keys), bool)
    for seq in range(2, 400):
        i = rng.integers(len(keys))
        if left[i]:
            assert store.delete(0, keys[i : i + 1]) == 1
        else:
            assert store.push(0, 1, seq, keys[i : i + 1], numbers[i : i + 1]) == 1
        left[i] = not left[i]
        expected = np.where(left[:, None], numbers, 0)
        np.testing.assert_array_equal(store.pull(0, keys), expected)
        assert sorted(store.keys(0).tolist()) == sorted(keys[left].tolist())


def test_store_deleted_key_reads_as_at_first_and_its_slot_is_used_again():
    store = make_store(1, 3, twin.ADAGRAD, UNIFORM, track=3)
    keys = some_keys(1000)
    ones = np.ones((1000, 3), np.float32)
    first = store.pull(0, keys, state=True)
    store.push(0, 1, 1, keys, ones)
    full = store.bytes
    changes = 1
    for seq in range(2, 12):
        gone = keys[seq::10]
        assert store.delete(0, gone) == len(gone)
        assert store.delete(0, gone) == 0
        np.testing.assert_array_equal(store.pull(0, gone, state=True), first[seq::10])
        assert not store.versions(0, gone).any()
        store.push(0, 1, seq, gone, ones[: len(gone)])
        assert (store.versions(0, gone) == store.version(0, 0)).all()
        changes += 1 + len(gone)
        assert store.version(0, 0) == changes
        assert (store.rows(0), store.bytes) == (1000, full)
    whole = store.pull(0, keys, state=True)
    np.testing.assert_array_equal(whole[:, 3:], ones)


def test_store_bytes_of_deleted_rows_serve_other_fragments():
    store = make_store(2, 50)
    keys = some_keys(40_000)
    owner = fragment_of(keys, 2)
    for seq in range(1, 7):
        mine = keys[owner == seq % 2]
        store.push(0, 1, seq, mine, np.ones((len(mine), 50)))
        if seq == 1:
            once = store.bytes
        assert store.delete(0, mine) == len(mine)
        assert store.rows(0) == 0
        assert store.scan(0, seq % 2)[1].tolist() == []
    assert store.bytes < 1.1 * once


def test_store_scan_sees_rows_that_stay_once_while_others_come_and_go():
    store = make_store(1, 1)
    stay, go = np.arange(3000, dtype=np.uint64), np.arange(3000, 6000, dtype=np.uint64)
    rng = np.random.default_rng(5)
    mixed = rng.permutation(np.concatenate([stay, go]))
    store.push(0, 1, 1, mixed, mixed[:, None].astype(np.float32))
    cursor, seen, rows = 0, [], []
    for seq in range(2, 10**6):
        store.delete(0, go[seq % 30 :: 30])
        fresh = np.arange(20, dtype=np.uint64) + np.uint64(seq * 10_000)
        store.push(0, 1, seq, fresh, fresh[:, None].astype(np.float32))
        cursor, some, some_rows = store.scan(0, 0, cursor, 100)
        if not len(some):
            break
        seen += some.tolist()
        rows += some_rows[:, 0].tolist()
    assert [key for key, row in zip(seen, rows, strict=True) if np.float32(key) != row] == []
    assert sorted(key for key in seen if key < 3000) == stay.tolist()
    assert len(seen) == len(set(seen))


def test_store_key_that_equals_the_mark_of_a_free_slot_is_no_ghost():
    """A deleted row's key place holds a small number, which is an ordinary key elsewhere."""
    store = make_store(1, 1)
    keys = np.arange(40, dtype=np.uint64)
    store.push(0, 1, 1, keys, keys[:, None].astype(np.float32))
    store.delete(0, keys[5:35])
    assert sorted(store.keys(0).tolist()) == [*range(5), *range(35, 40)]
    assert sorted(scan_all(store, 0, 0, 3)[0]) == [*range(5), *range(35, 40)]


def test_store_versions_count_changes_of_a_table_in_a_fragment():
    store = make_store(2, 1, track=2)
    keys = np.arange(100, dtype=np.uint64)
    owner = fragment_of(keys, 2)
    ones = np.ones((100, 1), np.float32)
    assert (store.version(0, 0), store.versions(0, keys).any()) == (0, False)
    store.push(0, 1, 1, keys, ones)
    store.push(0, 1, 1, keys, ones)  # a repetition is no push
    store.push(0, 1, 2, keys[owner == 1], ones[owner == 1])
    store.pull(0, keys)
    assert (store.version(0, 0), store.version(0, 1)) == (1, 2)
    assert np.array_equal(store.versions(0, keys), 1 + owner)
    store.delete(0, keys)
    store.push(0, 1, 3, keys, ones)
    rows = np.bincount(owner.astype(int))[owner.astype(int)]
    assert np.array_equal(store.versions(0, keys), 2 + owner + rows)  # goes on where it was


def test_store_expire_forgets_what_no_push_touched():
    store = make_store(4, 2, track=1)
    keys = some_keys(4000)
    for tick, part in ((3, keys), (7, keys[:1000]), (2**32 - 1, keys[:10])):
        store.set_tick(tick)
        store.push(0, tick, 1, part, np.ones((len(part), 2), np.float32))
    assert store.expire(0, 3) == 0
    assert store.expire(0, 7, [1]) == (fragment_of(keys[1000:], 4) == 1).sum()
    assert store.expire(0, 7) == (fragment_of(keys[1000:], 4) != 1).sum()
    assert sorted(store.keys(0).tolist()) == sorted(keys[:1000].tolist())
    assert store.touched(0, keys).tolist() == [2**32 - 1] * 10 + [7] * 990 + [0] * 3000
    assert store.expire(0, 2**32 - 1) == 990
    with pytest.raises(ConfigError, match="tick"):
        store.set_tick(2**32)


def test_store_tracking_costs_four_and_eight_bytes_a_row():
    sizes = []
    for track in (0, 1, 2, 3):
        store = make_store(1, 64, track=track)
        store.push(0, 1, 1, some_keys(20_000), np.ones((20_000, 64)))
        sizes.append(store.bytes)
        assert store.stats()["tables"][0]["row_bytes"] == 20_000 * 256
    extra = [(size - sizes[0]) / 20_000 for size in sizes[1:]]
    assert extra == pytest.approx([4, 8, 12], abs=4)


def test_store_what_a_table_does_not_have_is_refused():
    store = make_store()
    for call in (
        lambda: store.touched(0, keys_of(1)),
        lambda: store.versions(0, keys_of(1)),
        lambda: store.version(0, 0),
        lambda: store.expire(0, 1),
    ):
        with pytest.raises(SnailError, match="does not track"):
            call()
    with pytest.raises(SnailError, match="no rounds"):
        store.close_round(0)
    with pytest.raises(SnailError, match="takes no differences"):
        make_store(access=twin.ADAM).push(0, 1, 1, keys_of(1), np.zeros((1, 13)), state=True)


def test_store_close_round_of_an_average_leaves_other_tables_alone():
    store = make_store(4, 2, twin.AVERAGE, UNIFORM, track=2)
    store.add_table(1, 2, twin.AVERAGE, ZEROS, 0, 1, ())
    keys = some_keys(500)
    values = np.repeat([[6, 9, 3]], 500, 0).astype(np.float32)
    for table in (0, 1):
        store.push(table, 1, 1 + table, keys, values)
    store.delete(0, keys[:100])
    assert store.close_round(0) == 400
    assert store.pull(0, keys[100:]).tolist() == [[2, 3]] * 400
    assert not store.pull(1, keys).any()
    owner = fragment_of(keys, 4)
    gone = np.bincount(owner[:100].astype(int), minlength=4)[owner[100:].astype(int)]
    assert np.array_equal(store.versions(0, keys[100:]), 2 + gone)


# --- only what changed ---------------------------------------------------------------------------


def test_store_pull_changed_known_answer():
    store = make_store(1, 2, init=UNIFORM, track=2)
    keys = keys_of(5, 6, 7, 8)
    first = store.pull(0, keys)
    numbers, changed, rows = store.pull_changed(0, keys, keys_of(0, 0, 0, 0))
    assert (numbers.tolist(), changed.tolist()) == ([1] * 4, [True] * 4)
    np.testing.assert_array_equal(rows, first)

    store.push(0, 1, 1, keys_of(6, 8), np.ones((2, 2)))
    numbers, changed, rows = store.pull_changed(0, keys, numbers)
    assert (numbers.tolist(), changed.tolist()) == ([2] * 4, [False, True, False, True])
    np.testing.assert_array_equal(rows, first[[1, 3]] + 1)

    numbers, changed, rows = store.pull_changed(0, keys, numbers)
    assert (numbers.tolist(), changed.any(), rows.shape) == ([2] * 4, False, (0, 2))

    assert store.delete(0, keys_of(6)) == 1
    numbers, changed, rows = store.pull_changed(0, keys, numbers)
    # 8 has a row that did not change; 5 and 7 have none, and a row was deleted somewhere.
    assert (numbers.tolist(), changed.tolist()) == ([3] * 4, [True, True, True, False])
    np.testing.assert_array_equal(rows, first[:3])
    assert not store.pull_changed(0, keys, numbers)[1].any()


def test_store_pull_changed_sends_duplicates_and_keys_in_any_order():
    store = make_store(16, 3, track=2)
    keys = some_keys(1000)
    values = np.repeat(np.arange(1000, dtype=np.float32)[:, None], 3, axis=1)
    store.push(0, 1, 1, keys, values)
    numbers = store.pull_changed(0, keys, np.zeros(1000))[0]
    store.push(0, 1, 2, keys[::3], values[::3])
    order = np.random.default_rng(4).integers(0, 1000, 3001)
    _, changed, rows = store.pull_changed(0, keys[order], numbers[order])
    np.testing.assert_array_equal(changed, order % 3 == 0)
    np.testing.assert_array_equal(rows, 2 * values[order[changed]])


def test_store_pull_changed_after_fragment_was_dropped_sends_what_was_there():
    """An asker from before is told that rows are gone, and no number comes twice."""
    store = make_store(1, 1, track=2)
    keys = np.arange(50, dtype=np.uint64)
    store.push(0, 1, 1, keys, np.ones((50, 1)))
    before = store.pull_changed(0, keys, np.zeros(50))[0]
    store.disown(0)
    store.own([0])
    store.push(0, 2, 1, keys[:10], np.full((10, 1), 7))
    numbers, changed, rows = store.pull_changed(0, keys, before)
    assert changed.all()
    assert (numbers > before).all()
    np.testing.assert_array_equal(rows[:, 0], np.where(keys < 10, 7, 0))


def test_store_pull_changed_at_a_fragments_new_place_goes_on_with_its_numbers():
    left, right = (make_store(1, 1, track=2) for _ in range(2))
    keys = np.arange(50, dtype=np.uint64)
    for seq in range(1, 6):
        left.push(0, 1, seq, keys[:40], np.ones((40, 1)))
    held = left.pull_changed(0, keys, np.zeros(50))[0]
    left.delete(0, keys[:5])
    right.raise_version(0, 0, left.version(0, 0))
    right.raise_version(0, 0, 1)  # never lowers
    right.push(0, 1, 1, keys[5:40], left.pull(0, keys[5:40]))
    numbers, changed, rows = right.pull_changed(0, keys, held)
    assert changed.all()  # what was put anew counts as changed; what is absent may be deleted
    np.testing.assert_array_equal(rows, left.pull(0, keys))
    assert not right.pull_changed(0, keys, numbers)[1].any()
    with pytest.raises(ConfigError, match="version"):
        right.raise_version(0, 0, 2**64 - 1)


def test_store_pull_changed_refuses_what_it_cannot_answer():
    with pytest.raises(SnailError, match="does not track version"):
        make_store().pull_changed(0, keys_of(1), keys_of(0))
    with pytest.raises(SnailError, match="does not track version"):
        make_store().raise_version(0, 0, 1)
    store = make_store(track=3)
    with pytest.raises(SnailError, match="a number for each of 2 keys"):
        store.pull_changed(0, keys_of(1, 2), keys_of(0))
    numbers, changed, rows = store.pull_changed(0, keys_of(), keys_of(), state=True)
    assert (numbers.shape, changed.shape, rows.shape) == ((0,), (0,), (0, 4))


# --- growth, memory, scans -----------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "access"), [(1, twin.ADD), (7, twin.ADAGRAD), (100, twin.ADD)])
def test_store_one_fragment_with_many_rows_keeps_each(dim, access):
    store = make_store(1, dim, access, hyper=(1.0, 0, 0, 0))
    keys = some_keys(150_000)
    numbers = np.arange(1, len(keys) + 1, dtype=np.float32)
    for seq, start in enumerate(range(0, len(keys), 10_000), start=1):
        part = slice(start, start + 10_000)
        store.push(0, 1, seq, keys[part], np.repeat(numbers[part, None], dim, axis=1))
    order = np.random.default_rng(3).permutation(len(keys))
    # AdaGrad's first step is lr x sign.
    expected = numbers[order] if access == twin.ADD else np.full(len(keys), -1, np.float32)
    for column in (0, dim - 1):
        np.testing.assert_array_equal(store.pull(0, keys[order])[:, column], expected)
    np.testing.assert_array_equal(store.keys(0), keys)
    missing = some_keys(1000, seed=99)[2:]
    assert not store.pull(0, missing).any()


def test_store_rows_longer_than_a_chunk_are_kept():
    store = make_store(1, 70_001)
    values = np.arange(4, dtype=np.float32)[:, None] + np.arange(70_001, dtype=np.float32)
    store.push(0, 1, 1, keys_of(0, 1, 2, TOP), values)
    np.testing.assert_array_equal(store.pull(0, keys_of(TOP, 2, 1, 0)), values[::-1])
    assert store.bytes < 1.1 * values.nbytes


# Rows a fragment: what 10 million rows give 1,024 fragments, and the worst moments of growth,
# just after an index doubled.
@pytest.mark.parametrize("rows_per_fragment", [3400, 6700, 9766, 13400])
@pytest.mark.parametrize(("dim", "access"), [(100, twin.ADD), (50, twin.ADAGRAD)])
def test_store_bytes_of_large_table_stay_within_bound(rows_per_fragment, dim, access):
    frag_num = 8
    store = make_store(frag_num, dim, access)
    keys = some_keys(rows_per_fragment * frag_num)
    for seq, start in enumerate(range(0, len(keys), 5000), start=1):
        some = keys[start : start + 5000]
        store.push(0, 1, seq, some, np.zeros((len(some), dim)))
    row_bytes = store.stats()["tables"][0]["row_bytes"]
    assert row_bytes == len(keys) * 400
    assert store.bytes <= 1.15 * row_bytes


def test_store_bytes_of_small_table_in_many_fragments_stay_small():
    store = make_store(1024, 8)
    keys = some_keys(2000)
    assert store.bytes < 100_000
    store.push(0, 1, 1, keys, np.zeros((2000, 8)))
    assert store.bytes < 700_000


def test_store_bytes_of_dropped_fragments_serve_new_ones():
    store = make_store(16, 20)
    keys = some_keys(30_000)
    values = np.ones((len(keys), 20), np.float32)
    store.push(0, 1, 1, keys, values)
    full = store.bytes
    for _ in range(5):
        for fragment in range(16):
            store.disown(fragment)
        assert store.rows(0) == 0
        store.own(range(16))
        store.push(0, 1, 1, keys, values)
        np.testing.assert_array_equal(store.pull(0, keys), values)
    assert store.bytes < 1.15 * full


@pytest.mark.skipif(not STATM.exists(), reason="reads Linux's /proc/self/statm")
def test_store_dropped_while_its_next_memory_is_made_gives_back_all():
    """Stores end at different moments of the thread that touches their next region."""
    mapped = []
    for _ in range(2):
        for count in range(20_000, 60_000, 2_000):
            store = make_store(4, 50)
            store.push(0, 1, 1, some_keys(count), np.ones((count, 50), np.float32))
            del store
        mapped.append(int(STATM.read_text().split()[0]) * resource.getpagesize())
    assert mapped[1] < mapped[0] + (8 << 20)  # 20 regions of 2 MiB or more, were they kept


def test_store_scan_sees_each_row_once_while_rows_are_added():
    store = make_store(2, 3)
    keys = some_keys(6000)
    values = np.repeat(np.arange(6000, dtype=np.float32)[:, None], 3, axis=1)
    mine = fragment_of(keys, 2) == 1
    cursor, seen, rows = 0, [], []
    for seq, start in enumerate(range(0, 6000, 50), start=1):
        part = slice(start, start + 50)
        store.push(0, 1, seq, keys[part], values[part])
        cursor, some, some_rows = store.scan(0, 1, cursor, 20)
        seen += some.tolist()
        rows += some_rows.tolist()
    while len(some):
        cursor, some, some_rows = store.scan(0, 1, cursor, 999)
        seen += some.tolist()
        rows += some_rows.tolist()
    assert seen == keys[mine].tolist()
    assert rows == values[mine].tolist()


def test_store_without_memory_reports_it_and_keeps_its_rows():
    """In a process of its own, under a limit on address space."""
    script = """
        import resource
        import numpy as np
        from snailps import kernels
        from snailps.store._store import ShardStore

        store = ShardStore(4, kernels.row_ops())
        store.own(range(4))
        store.add_table(0, 100, 0, 1, 0.5, 7, (0, 0, 0, 0))
        keys = np.arange(1000, dtype=np.uint64)
        ones = np.ones((1000, 100), np.float32)
        step = np.uint64(1000)
        store.push(0, 1, 1, keys, ones)
        first = store.pull(0, keys)
        pages = int(open("/proc/self/statm").read().split()[0])
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (48 << 20), limits[1]))
        seq = 1
        try:
            while True:
                seq += 1
                store.push(0, 1, seq, keys + np.uint64(seq - 1) * step, ones)
        except MemoryError as error:
            text = str(error)
        rows = store.rows(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        assert "no memory for a row of table 0" in text, text
        assert 50_000 < rows < 200_000, rows
        assert np.array_equal(store.pull(0, keys), first)
        found = store.keys(0)
        assert len(np.unique(found)) == len(found) == rows
        fresh = ShardStore(4, kernels.row_ops())
        fresh.own(range(4))
        fresh.add_table(0, 100, 0, 1, 0.5, 7, (0, 0, 0, 0))
        assert np.array_equal(store.pull(0, found), fresh.pull(0, found) + 1)
        assert store.push(0, 1, seq + 1, keys, ones) == 1000
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr


# --- what is refused -----------------------------------------------------------------------------


def test_store_add_table_again_is_fine_if_equal_and_an_error_if_not():
    store = make_store(dim=4)
    store.add_table(0, 4, twin.ADD, ZEROS, 0.5, 7, (0.5, 1e-6, 0, 0))
    with pytest.raises(ConfigError, match="declared again with"):
        store.add_table(0, 5, twin.ADD, ZEROS, 0.5, 7, (0.5, 1e-6, 0, 0))
    assert store.pull(0, keys_of(1)).shape == (1, 4)


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        (0, -1, "table id"),
        (0, 65536, "table id"),
        (1, 0, "dim"),
        (1, 2**25, "dim"),
        (2, 8, "access method"),
        (3, 4, "initialiser"),
        (4, float("nan"), "finite"),
        (5, -1, "seed"),
        (5, 2**64, "seed"),
        (6, (0,) * 9, "at most 8 hyper-parameters"),
        (6, (1, 2, 3, float("inf")), "finite"),
        (7, 4, "track"),
        (8, -1, "state_floats"),
    ],
)
def test_store_add_table_out_of_range_is_a_config_error(place, value, complaint):
    arguments = [9, 4, twin.ADD, ZEROS, 0.5, 7, (0, 0, 0, 0), 0, 0]
    arguments[place] = value
    store = make_store()
    with pytest.raises(ConfigError, match=complaint):
        store.add_table(*arguments)
    assert list(store.stats()["tables"]) == [0]


def test_store_frag_num_out_of_range_is_a_config_error():
    for frag_num in (0, 2**20 + 1):
        with pytest.raises(ConfigError, match="frag_num"):
            ShardStore(frag_num, kernels.row_ops())


def test_store_foreign_capsule_is_refused():
    with pytest.raises(ValueError, match="PyCapsule"):
        ShardStore(1, object())


def test_store_wrong_requests_are_errors_and_change_nothing():
    store = make_store(4, 2)
    with pytest.raises(SnailError, match="no table 70000"):
        store.pull(70_000, keys_of(1))
    with pytest.raises(SnailError, match=r"expected values of shape \(1, 2\)"):
        store.push(0, 1, 1, keys_of(1), [[1, 2, 3]])
    with pytest.raises(ConfigError, match="seq"):
        store.push(0, 1, 0, keys_of(1), [[1, 2]])
    with pytest.raises(SnailError, match="cannot be owned"):
        store.own([1, 4])
    with pytest.raises(SnailError, match="not owned"):
        store.scan(0, 4)
    stray = int(fragment_of(keys_of(1), 4)[0] + 1) % 4
    with pytest.raises(SnailError, match="does not belong"):
        store.pull_fragment(0, stray, keys_of(1))
    store.disown(stray)
    everything = np.arange(100, dtype=np.uint64)
    with pytest.raises(SnailError, match=f"fragment {stray} is not owned"):
        store.push(0, 1, 1, everything, np.ones((100, 2)))
    with pytest.raises(SnailError, match=f"fragment {stray} is not owned"):
        store.pull(0, everything)
    assert store.rows(0) == 0
    assert store.stats()["marks"] == 0


def test_store_empty_requests_are_answered():
    store = make_store(4, 3)
    assert store.pull(0, keys_of()).shape == (0, 3)
    assert store.pull_fragment(0, 0, keys_of()).shape == (0, 3)
    assert store.push(0, 1, 1, keys_of(), np.empty((0, 3))) == 0
    assert store.stats() == {
        "rows": 0,
        "bytes": store.bytes,
        "fragments": 4,
        "marks": 0,
        "tables": {0: {"dim": 3, "rows": 0, "row_bytes": 0}},
    }
