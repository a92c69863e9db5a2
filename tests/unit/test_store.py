"""store._store: the rows of one shard, known answers and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from first_rows import first_row
from stores import NORMAL, TOP, UNIFORM, ZEROS, keys_of, make_store, marks_of, some_keys
from twins import store as twin

from snailps.abi import loops
from snailps.abi.key_hash import fragment_of
from snailps.errors import ConfigError, NotFinite, SnailError
from snailps.store._store import ShardStore

# --- first values --------------------------------------------------------------------------------


@pytest.mark.parametrize("init", [ZEROS, UNIFORM, NORMAL])
def test_store_first_values_do_not_depend_on_order_or_batch(init):
    keys = some_keys(500)
    left, right = (make_store(8, 10, init=init) for _ in range(2))
    expected = np.stack([first_row(loops, init, 0.5, 7, key, 10) for key in keys])
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


def test_store_marks_of_thousands_of_incarnations_are_kept():
    store = make_store(2)
    who = np.random.default_rng(2).permutation(5000) * 2**40
    keys = some_keys(10)
    key = keys[fragment_of(keys, 2) == 1][:1]
    for number, incarnation in enumerate(who.tolist(), start=1):
        store.push(0, incarnation, number, key, [[0] * 4])
    expected = {w: i for i, w in enumerate(who.tolist(), start=1)}
    assert marks_of(store) == {0: {}, 1: expected}
    store.disown(1)
    store.own([1])
    assert marks_of(store) == {0: {}, 1: {}}


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
        (2, 15, "access method"),
        (3, 5, "initialiser"),
        (4, float("nan"), "finite"),
        (5, -1, "seed"),
        (5, 2**64, "seed"),
        (6, (0,) * 9, "at most 8 hyper-parameters"),
        (6, (1, 2, 3, float("inf")), "finite"),
        (7, 2, "track"),
        (8, (101, 0, 0, 0), "admit_after"),
        (8, (0, -1, 0, 0), "admit_bytes"),
        (8, (0, 0, -1, 0), "rows_max"),
        (8, (0, 0, 0, -1), "age_max"),
        (10, -1, "state_floats"),
    ],
)
def test_store_add_table_out_of_range_is_a_config_error(place, value, complaint):
    arguments = [9, 4, twin.ADD, ZEROS, 0.5, 7, (0, 0, 0, 0), 0, (0, 0, 0, 0), True, 0]
    arguments[place] = value
    store = make_store()
    with pytest.raises(ConfigError, match=complaint):
        store.add_table(*arguments)
    assert list(store.stats()["tables"]) == [0]


def test_store_frag_num_out_of_range_is_a_config_error():
    for frag_num in (0, 2**20 + 1):
        with pytest.raises(ConfigError, match="frag_num"):
            ShardStore(frag_num, loops.row_ops())


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
    assert store.push(0, 1, 1, keys_of(), np.empty((0, 3))) == 0
    assert store.stats() == {
        "rows": 0,
        "bytes": store.bytes,
        "fragments": 4,
        "marks": 0,
        "tables": {
            0: {
                "dim": 3,
                "rows": 0,
                "row_bytes": 0,
                "bytes": 4 * 64,
                "made": 0,
                "refused": 0,
                "evicted": 0,
                "expired": 0,
            }
        },
    }


# --- tables that go -------------------------------------------------------------------------------


def test_dropped_tables_leave_their_memory_to_others():
    store = ShardStore(8, loops.row_ops())
    store.own(range(8))
    keys, taken = some_keys(4000), []
    for job in range(12):
        numbers = [1 + 2 * job, 2 + 2 * job]
        dim = (60, 7, 3)[job % 3]
        for number in numbers:
            store.add_table(number, dim, twin.ADD, ZEROS, 0, 0, [])
        for first in range(0, len(keys), 500):  # rows of both tables come in turn
            part = keys[first : first + 500]
            for number in numbers:
                values = np.full((len(part), dim), number, np.float32)
                store.push(number, number, first + 1, part, values)
        for number in numbers:
            assert (store.pull(number, keys) == number).all()
        taken.append(store.bytes)
        store.drop_tables([*numbers, 999])
        assert store.stats()["rows"] == 0
    assert max(taken) <= 1.25 * max(taken[:3])
    store.drop_tables([1])  # a second time
    with pytest.raises(SnailError, match="no table 1 in this shard"):
        store.pull(1, keys)


def test_dropped_table_takes_what_is_staged_of_it_along():
    store = ShardStore(4, loops.row_ops())
    store.own(range(4))
    keys = some_keys(20)
    for number in (1, 2):
        store.add_table(number, 3, twin.ADD, ZEROS, 0, 0, [])
        for slot in (0, 1, 2):
            assert store.stage(number, 0, slot, 5 + slot, keys, np.ones((20, 3)))
    store.seal(0, 0, 3, 5)  # its values are sums by now
    before = store.clock_state()["staged_bytes"]
    store.drop_tables([1])
    assert store.clock_state()["staged_bytes"] == before / 2
    for slot in (1, 2):
        store.seal(0, slot, 3, 5 + slot)
    assert store.clock_state() == {"clock": 1, "slots": 0, "sealed": [], "staged_bytes": 0}
    assert (store.pull(2, keys) == 3).all()


def test_store_refuses_values_that_are_not_finite_unless_declared_otherwise():
    store = make_store()
    values = np.array([[1.0, np.nan, 2.0, 3.0]], np.float32)
    store.add_table(7, 4, twin.ADD, ZEROS, 0.5, 7, ())
    store.add_table(8, 4, twin.ADD, ZEROS, 0.5, 7, (), finite=False)
    for change in (
        lambda t: store.push(t, 1, 1, [5], values),
        lambda t: store.stage(t, 0, 0, 1, [5], values),
    ):
        with pytest.raises(NotFinite, match="table 7: expected finite values"):
            change(7)
        assert change(8)
    with pytest.raises(ConfigError, match="exists with"):
        store.add_table(8, 4, twin.ADD, ZEROS, 0.5, 7, ())


def test_memory_of_many_regions_is_few_maps_of_the_process():
    """A process may have 65,530 of them, and a large shard has more regions."""

    def maps():
        return len(Path("/proc/self/maps").read_text().splitlines())

    store = ShardStore(64, loops.row_ops())
    store.own(range(64))
    store.add_table(1, 1 << 19, 0, ZEROS, 0.0, 1, ())
    before = maps()
    for key in range(40):  # of 2 MiB each, for which no region of the usual size has room
        store.push(1, 1, key + 1, np.array([key], np.uint64), np.ones((1, 1 << 19), np.float32))
    assert store.bytes > 80 << 20
    assert maps() - before < 20
