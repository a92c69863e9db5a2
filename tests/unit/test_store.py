"""store._store: the rows of one shard, known answers and what is refused."""

import numpy as np
import pytest
from stores import NORMAL, TOP, UNIFORM, ZEROS, keys_of, make_store, some_keys
from twins import store as twin

from snailps import kernels
from snailps.errors import ConfigError, SnailError
from snailps.store._store import ShardStore
from snailps.store.route import fragment_of

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
