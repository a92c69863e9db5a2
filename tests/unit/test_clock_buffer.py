"""store._store: contributions to clocks, against a plain twin and known answers."""

import itertools
from functools import partial

import numpy as np
import pytest
from cases import examples
from hypothesis import given
from hypothesis import strategies as st
from twins import slots as twin
from twins import store as rows_twin

from snailps.abi import loops
from snailps.abi.key_hash import fragment_of
from snailps.errors import SnailError
from snailps.store._store import ShardStore

FRAG_NUM, DIM = 8, 3
ADD, SGD, ADAGRAD, ADAM = rows_twin.ADD, rows_twin.SGD, rows_twin.ADAGRAD, rows_twin.ADAM
AVERAGE = rows_twin.AVERAGE


def make_store(access=ADD, dim=DIM, hyper=(0.5, 1e-6, 0.9, 0.999), frag_num=FRAG_NUM):
    store = ShardStore(frag_num, loops.row_ops())
    store.own(range(frag_num))
    store.add_table(0, dim, access, 0, 0.0, 7, hyper)
    return store


def u64(keys):
    return np.array(list(keys), np.uint64)


def parts_of(slot, seed=0, width=DIM, keys_max=40):
    """Two pushes of a slot, values of very different size: their sum depends on its order."""
    rng = np.random.default_rng([seed, slot])
    made = []
    for _ in range(2):
        keys = rng.integers(0, keys_max, 30).astype(np.uint64)
        values = rng.normal(size=(30, width)) * 10.0 ** rng.integers(-3, 8, (30, 1))
        made.append((keys, values.astype(np.float32)))
    return made


def table_of(store, table=0):
    """Keys in the order in which they came into being, and their rows."""
    keys = store.keys(table)
    return keys.tolist(), store.pull(table, keys, True)


def run_clock(store, order, clock=0, slots=4, seed=0, incarnation=1, width=DIM):
    """Stages and seals slots in an order, their parts in turns."""
    pushes = {slot: parts_of(slot, seed, width) for slot in range(slots)}
    for turn in range(2):
        for slot in order:
            store.stage(0, clock, slot, incarnation, *pushes[slot][turn])
    return [store.seal(clock, slot, slots, incarnation) for slot in order]


# --- order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("access", [ADD, SGD, ADAGRAD, ADAM])
def test_slots_in_every_order_of_arrival_give_the_same_bits(access):
    wanted = None
    for order in itertools.permutations(range(4)):
        store = make_store(access)
        for clock in range(2):
            assert run_clock(store, order, clock, seed=clock) == [False] * 3 + [True]
        keys, rows = table_of(store)
        if wanted is None:
            wanted = keys, rows.tobytes()
        assert (keys, rows.tobytes()) == wanted


def test_rows_come_into_being_by_slot_push_and_key_of_the_request():
    store = make_store(frag_num=1)
    store.stage(0, 0, 1, 1, u64([9, 3, 9, 5]), np.ones((4, DIM)))
    store.stage(0, 0, 0, 1, u64([7, 3]), np.ones((2, DIM)))
    store.stage(0, 0, 0, 1, u64([1, 7]), np.ones((2, DIM)))
    store.seal(0, 1, 2, 1)
    store.seal(0, 0, 2, 1)
    assert store.keys(0).tolist() == [7, 3, 1, 9, 5]


def test_rows_wider_than_a_gathering_are_applied():
    dim = 40_000
    store = make_store(dim=dim, frag_num=1)
    for slot in range(2):
        store.stage(0, 0, slot, 1, u64([slot, 5, 9 - slot]), np.full((3, dim), slot + 1.0))
        store.seal(0, slot, 2, 1)
    assert store.pull(0, u64([0, 5, 9, 1, 8]))[:, -1].tolist() == [1, 3, 1, 2, 2]


# --- who counts ----------------------------------------------------------------------------------


def test_words_say_which_slots_a_clock_lacks():
    store = make_store()
    assert store.waits_for() == ""
    store.set_clock(17)
    for slot in (0, 2):
        store.seal(17, slot, 4, 1)
    assert store.waits_for() == "slots 1, 3 of clock 17"
    store.seal(17, 1, 4, 1)
    assert store.waits_for() == "slot 3 of clock 17"
    store.seal(17, 3, 4, 1)
    store.seal(18, 11, 20, 1)
    assert store.waits_for() == "slots 0, 1, 2, 3, 4, 5, 6, 7 and 11 others of clock 18"


# --- memory --------------------------------------------------------------------------------------


def test_slots_summed_so_far_take_the_room_of_one():
    store = make_store()
    keys, values = u64(range(500)), np.ones((500, DIM))
    store.stage(0, 0, 0, 1, keys, values)
    one = store.clock_stats()["staged_bytes"]
    assert 500 * (40 + 4 * DIM) <= one <= 500 * (40 + 4 * DIM) + 512
    store.seal(0, 0, 9, 1)
    for slot in range(1, 8):
        store.stage(0, 0, slot, 1, keys, values)
        assert store.clock_stats()["staged_bytes"] == 2 * one
        store.seal(0, slot, 9, 1)
        assert store.clock_stats()["staged_bytes"] == one
    assert store.seal(0, 8, 9, 1)
    assert store.clock_stats()["staged_bytes"] == 0
    assert np.all(store.pull(0, keys) == 8)


def test_slot_that_was_refused_to_two_is_sealed_by_nobody():
    store = make_store()
    store.limit_staged(0)
    for who in (1, 2):
        with pytest.raises(SnailError, match="limit 0"):
            store.stage(0, 0, 0, who, u64([1]), np.ones((1, DIM)))
    for who in (1, 2, 3):
        with pytest.raises(SnailError, match="a push to it was refused"):
            store.seal(0, 0, 1, who)
    store.set_clock(0)
    assert store.seal(0, 0, 1, 1)


def test_memory_of_parts_is_used_again_and_holds_nothing_of_the_past():
    store = make_store()
    for clock in range(30):
        n = 1 + clock % 3 * 1000  # sizes of their own
        for slot in range(2):
            values = np.full((n, DIM), (clock + 1) * (slot + 1), np.float32)
            store.stage(0, clock, slot, 1, u64(range(n)), values)
            store.stage(0, clock, slot, 2, u64(range(n)), -values)
            store.seal(clock, slot, 2, 1)
    assert store.clock_stats()["staged_bytes"] == 0
    rows = store.pull(0, u64([0, 1500, 2000]))
    wanted = [3 * sum(c + 1 for c in range(30) if c % 3 >= least) for least in (0, 2, 2)]
    assert rows[:, 0].tolist() == wanted


def test_fragment_that_is_gone_is_left_out():
    store = make_store()
    keys = u64(range(40))
    store.stage(0, 0, 0, 1, keys, np.ones((40, DIM)))
    gone = int(fragment_of(keys[:1], FRAG_NUM)[0])
    store.disown(gone)
    assert store.seal(0, 0, 1, 1)
    left = keys[fragment_of(keys, FRAG_NUM) != gone]
    assert sorted(store.keys(0).tolist()) == left.tolist()


# --- clocks closed early -------------------------------------------------------------------------


def test_clock_is_not_closed_with_other_slots_than_can_be():
    store = make_store()
    store.stage(0, 0, 0, 1, u64([1]), np.ones((1, DIM)))
    store.seal(0, 0, 3, 1)
    with pytest.raises(SnailError, match=r"only \[0\] are sealed"):
        store.close_clock(0, [0, 1])
    with pytest.raises(SnailError, match="without slot 0, which is summed already"):
        store.close_clock(0, [])
    with pytest.raises(SnailError, match="this is clock 0"):
        store.close_clock(1, [])
    assert store.clock_state()["sealed"] == [0]
    store.close_clock(0, [0])
    assert store.pull(0, u64([1])).tolist() == [[1.0] * DIM]


# --- against the twin ----------------------------------------------------------------------------

STEP = st.one_of(
    st.tuples(
        st.just("stage"), st.integers(-1, 1), st.integers(0, 4), st.integers(1, 3),
        st.lists(st.integers(0, 12), max_size=6), st.integers(0, 2**32 - 1),
    ),
    st.tuples(
        st.just("seal"), st.integers(-1, 1), st.integers(0, 3), st.integers(2, 4),
        st.integers(1, 3),
    ),
)  # fmt: skip


@examples(40)
@given(steps=st.lists(STEP, max_size=60))
def test_any_course_of_things_gives_what_the_twin_gives(steps):
    store, model = make_store(), twin.Slots()
    for step in steps:
        clock = max(model.clock + step[1], 0)
        if step[0] == "stage":
            _, _, slot, who, keys, seed = step
            rng = np.random.default_rng(seed)
            values = (rng.normal(size=(len(keys), DIM)) * 1e4 ** rng.random()).astype(np.float32)
            wanted = model.stage(clock, slot, who, keys, values)
            call = partial(store.stage, 0, clock, slot, who, u64(keys), values)
        else:
            _, _, slot, slots, who = step
            slot = min(slot, slots - 1)
            wanted = model.seal(clock, slot, slots, who)
            call = partial(store.seal, clock, slot, slots, who)
        if wanted is None:
            with pytest.raises(SnailError):
                call()
        else:
            assert call() is wanted
        assert store.clock_state()["clock"] == model.clock
        assert store.clock_state()["sealed"] == sorted(model.sealed)
    rows = {}
    for sums in model.applied:
        for key, value in sums:
            rows[key] = rows[key] + value if key in rows else value
    found = store.pull(0, u64(rows))
    assert np.array_equal(found, np.array(list(rows.values()), np.float32).reshape(-1, DIM))
    by_fragment = sorted(rows, key=lambda key: fragment_of(u64([key]), FRAG_NUM)[0])
    assert store.keys(0).tolist() == by_fragment
