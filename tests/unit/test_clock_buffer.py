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

from snailps import kernels
from snailps.errors import ConfigError, SnailError
from snailps.store._store import SLOTS_MAX, ShardStore
from snailps.store.route import fragment_of
from snailps.transport import frame

FRAG_NUM, DIM = 8, 3
ADD, SGD, ADAGRAD, ADAM = rows_twin.ADD, rows_twin.SGD, rows_twin.ADAGRAD, rows_twin.ADAM
AVERAGE = rows_twin.AVERAGE


def make_store(access=ADD, dim=DIM, hyper=(0.5, 1e-6, 0.9, 0.999), frag_num=FRAG_NUM):
    store = ShardStore(frag_num, kernels.row_ops())
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


def test_sums_are_in_the_order_of_the_slots_and_not_in_another():
    store = make_store()
    run_clock(store, (2, 0, 3, 1))
    model = twin.Slots()
    for slot in range(4):
        for keys, values in parts_of(slot):
            model.stage(0, slot, 1, keys.tolist(), values)
        model.seal(0, slot, 4, 1)
    backwards = {}
    for slot in reversed(range(4)):
        for keys, values in parts_of(slot):
            for key, value in zip(keys.tolist(), values, strict=True):
                backwards[key] = backwards[key] + value if key in backwards else value.copy()
    keys = [key for key, _ in model.applied[0]]
    found = store.pull(0, u64(keys))
    assert np.array_equal(found, np.array([value for _, value in model.applied[0]]))
    assert not np.array_equal(found, np.array([backwards[key] for key in keys]))


def test_rows_come_into_being_by_slot_push_and_key_of_the_request():
    store = make_store(frag_num=1)
    store.stage(0, 0, 1, 1, u64([9, 3, 9, 5]), np.ones((4, DIM)))
    store.stage(0, 0, 0, 1, u64([7, 3]), np.ones((2, DIM)))
    store.stage(0, 0, 0, 1, u64([1, 7]), np.ones((2, DIM)))
    store.seal(0, 1, 2, 1)
    store.seal(0, 0, 2, 1)
    assert store.keys(0).tolist() == [7, 3, 1, 9, 5]


def test_each_row_is_handed_to_its_access_method_once_a_clock():
    store = make_store(ADAM)
    for slot in range(3):
        store.stage(0, 0, slot, 1, u64([1, 1]), np.ones((2, DIM)))
        store.seal(0, slot, 3, 1)
    once = make_store(ADAM)
    once.push(0, 1, 1, u64([1]), np.full((1, DIM), 6.0))
    assert np.array_equal(store.pull(0, u64([1]), True), once.pull(0, u64([1]), True))
    assert store.pull(0, u64([1]), True)[0, -1] == 1  # steps


def test_average_closes_its_round_with_the_clock():
    store = make_store(AVERAGE, dim=2)
    store.push(0, 9, 1, u64([5]), np.array([[1, 1, 0]]))  # a row without weight
    for slot, (value, weight) in enumerate([(1.0, 3.0), (5.0, 1.0)]):
        weighted = np.array([[value * weight, -value * weight, weight]])
        store.stage(0, 0, slot, 1, u64([4]), weighted)
        store.seal(0, slot, 2, 1)
    assert store.pull(0, u64([4, 5])).tolist() == [[2.0, -2.0], [0.0, 0.0]]
    assert not store.pull(0, u64([4, 5]), True)[:, 2:].any()


def test_differences_of_state_are_summed_and_added_once():
    store = make_store(ADAGRAD)
    whole = np.arange(12, dtype=np.float32).reshape(2, 6)
    store.stage(0, 0, 0, 1, u64([1, 2]), whole, True)
    store.stage(0, 0, 1, 1, u64([2, 1]), whole, True)
    store.stage(0, 0, 1, 1, u64([2]), np.ones((1, DIM)))
    store.seal(0, 1, 2, 1)
    store.seal(0, 0, 2, 1)
    once = make_store(ADAGRAD)
    both = whole + whole[::-1]
    once.push(0, 1, 1, u64([1, 2]), both, True)
    once.push(0, 1, 2, u64([2]), np.ones((1, DIM)))
    assert np.array_equal(store.pull(0, u64([1, 2]), True), once.pull(0, u64([1, 2]), True))


def test_rows_wider_than_a_gathering_are_applied():
    dim = 40_000
    store = make_store(dim=dim, frag_num=1)
    for slot in range(2):
        store.stage(0, 0, slot, 1, u64([slot, 5, 9 - slot]), np.full((3, dim), slot + 1.0))
        store.seal(0, slot, 2, 1)
    assert store.pull(0, u64([0, 5, 9, 1, 8]))[:, -1].tolist() == [1, 3, 1, 2, 2]


# --- who counts ----------------------------------------------------------------------------------


def test_first_sealed_incarnation_counts_and_others_are_dropped():
    store = make_store()
    keys = u64([1, 2])
    store.stage(0, 0, 0, 7, keys, np.full((2, DIM), 100.0))  # killed before its seal
    store.stage(0, 0, 0, 8, keys, np.ones((2, DIM)))
    assert store.seal(0, 0, 2, 8) is False
    assert not store.stage(0, 0, 0, 7, keys, np.full((2, DIM), 100.0))
    assert not store.seal(0, 0, 2, 7)
    assert store.clock_stats()["parts_dropped"] == 1
    assert store.seal(0, 1, 2, 7) is True
    assert np.array_equal(store.pull(0, keys), np.ones((2, DIM)))
    assert store.clock_stats()["staged_bytes"] == 0


def test_seal_again_and_contribution_to_a_past_clock_have_no_effect():
    store = make_store()
    store.stage(0, 0, 0, 1, u64([1]), np.ones((1, DIM)))
    assert store.seal(0, 0, 2, 1) is False
    assert store.seal(0, 0, 2, 1) is False
    assert store.seal(0, 1, 2, 1) is True
    assert store.seal(0, 1, 2, 1) is False
    assert store.stage(0, 0, 1, 1, u64([1]), np.ones((1, DIM))) is False
    assert store.clock_state() == {"clock": 1, "slots": 0, "sealed": [], "staged_bytes": 0}
    assert np.all(store.pull(0, u64([1])) == 1)


def test_what_has_no_place_is_refused():
    store = make_store()
    ones = np.ones((1, DIM))
    store.stage(0, 0, 2, 1, u64([1]), ones)
    with pytest.raises(SnailError, match="this is clock 0"):
        store.stage(0, 1, 0, 1, u64([1]), ones)
    with pytest.raises(SnailError, match="this is clock 0"):
        store.seal(1, 0, 2, 1)
    with pytest.raises(SnailError, match="2 slots are not what other seals or pushes said"):
        store.seal(0, 0, 2, 1)
    store.seal(0, 0, 3, 1)
    with pytest.raises(SnailError, match="4 slots are not"):
        store.seal(0, 1, 4, 1)
    with pytest.raises(SnailError, match="takes nothing"):
        store.stage(0, 0, 3, 1, u64([1]), ones)
    with pytest.raises(SnailError, match="takes nothing"):
        store.stage(0, 0, 0, 1, u64([1]), ones)
    with pytest.raises(SnailError, match=r"expected values of shape \(1, 3\)"):
        store.stage(0, 0, 1, 1, u64([1]), np.ones((1, 4)))
    with pytest.raises(ConfigError):
        store.stage(0, 0, SLOTS_MAX, 1, u64([1]), ones)
    with pytest.raises(ConfigError):
        store.seal(0, 3, 3, 1)
    store.set_clock(0)
    with pytest.raises(SnailError, match="takes no differences"):
        make_store(ADAM).stage(0, 0, 0, 1, u64([1]), np.ones((1, 3 * DIM + 1)), True)


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


def test_limit_of_staged_bytes_refuses_and_keeps_the_slot_from_being_sealed():
    store = make_store()
    store.limit_staged(4000)
    store.stage(0, 0, 0, 1, u64(range(50)), np.ones((50, DIM)))
    with pytest.raises(SnailError, match="bytes staged, limit 4,000"):
        store.stage(0, 0, 0, 1, u64(range(50)), np.ones((50, DIM)))
    with pytest.raises(SnailError, match="a push to it was refused"):
        store.seal(0, 0, 1, 1)
    store.stage(0, 0, 0, 2, u64(range(5)), np.ones((5, DIM)))  # somebody who fits may do it
    assert store.seal(0, 0, 1, 2)
    assert np.all(store.pull(0, u64(range(5))) == 1)
    assert not store.pull(0, u64([7])).any()


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


def test_set_clock_forgets_all_and_gives_the_memory_back():
    store = make_store()
    run_clock(store, (0, 1, 3), slots=5)
    assert store.clock_state()["sealed"] == [0, 1, 3]
    store.set_clock(4)
    assert store.clock_state() == {"clock": 4, "slots": 0, "sealed": [], "staged_bytes": 0}
    run_clock(store, (0, 1, 2), clock=4, slots=3)
    fresh = make_store()
    fresh.set_clock(4)
    run_clock(fresh, (2, 1, 0), clock=4, slots=3)
    assert table_of(store)[0] == table_of(fresh)[0]
    assert table_of(store)[1].tobytes() == table_of(fresh)[1].tobytes()


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


def test_clock_closed_early_has_exactly_the_slots_named():
    store = make_store()
    store.set_clock(0, early=True)
    for slot in (3, 0, 2):
        store.stage(0, 0, slot, 1, *parts_of(slot)[0])
        store.seal(0, slot, 4, 1)
    store.stage(0, 0, 1, 1, *parts_of(1)[0])  # not sealed in time
    assert store.close_clock(0, [3, 0])["sealed"] == [0, 2, 3]
    model = twin.Slots()
    for slot in (0, 3):
        model.stage(0, slot, 1, parts_of(slot)[0][0].tolist(), parts_of(slot)[0][1])
        model.seal(0, slot, 4, 1)
    model.close([0, 3])
    assert store.clock_stats()["staged_bytes"] == 0
    keys, values = zip(*model.applied[0], strict=True)
    assert store.rows(0) == len(keys)
    assert np.array_equal(store.pull(0, u64(keys)), np.array(values))
    assert store.seal(0, 1, 4, 1) is False  # too late, and told so by nothing
    assert store.close_clock(0, [1])["clock"] == 1  # as is a second order


def test_clock_that_is_closed_by_command_does_not_end_with_its_last_seal():
    store = make_store()
    store.set_clock(0, early=True)
    assert run_clock(store, (1, 0), slots=2) == [False, False]
    assert store.rows(0) == 0
    store.close_clock(0, [0, 1])
    other = make_store()
    run_clock(other, (0, 1), slots=2)
    assert table_of(store)[1].tobytes() == table_of(other)[1].tobytes()


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


def test_clock_without_any_seal_can_be_closed():
    store = make_store()
    store.stage(0, 0, 0, 1, u64([1]), np.ones((1, DIM)))
    assert store.close_clock(0, []) == {
        "clock": 0, "slots": 0, "sealed": [], "staged_bytes": store_bytes(1)
    }  # fmt: skip
    assert store.clock_state() == {"clock": 1, "slots": 0, "sealed": [], "staged_bytes": 0}
    assert store.rows(0) == 0


def store_bytes(keys):
    """What a part of so many keys of one fragment takes."""
    other = make_store()
    other.stage(0, 0, 0, 1, u64([1] * keys), np.ones((keys, DIM)))
    return other.clock_stats()["staged_bytes"]


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


def test_limit_of_slots_is_that_of_the_frame():
    assert SLOTS_MAX == frame.SLOTS_MAX
