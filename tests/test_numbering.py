"""data._numbering: different keys in the order of their first appearance, and rows."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snailps.data.examples import KeyNumbers, number_keys

KEYS = st.one_of(
    st.integers(0, 30), st.integers(0, 2**64 - 1), st.integers(0, 9).map(lambda i: i << 60)
)


def check(number, keys):
    keys = np.asarray(keys, np.uint64)
    unique, rows = number(keys)
    assert (unique.dtype, rows.dtype) == (np.uint64, np.int32)
    assert unique.tolist() == list(dict.fromkeys(keys.tolist()))
    assert (unique[rows] == keys).all()
    assert len(rows) == len(keys)


@given(st.lists(st.lists(KEYS, max_size=80), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_numbers_any_batches_one_after_another_agree_with_a_dictionary(batches):
    numbers = KeyNumbers()
    for keys in batches:
        check(numbers.number, keys)
        check(number_keys, keys)


@pytest.mark.parametrize("n", [2047, 2048, 2049, 4096, 100_000])
@pytest.mark.parametrize("step", [1, 1 << 32, 0x9E3779B97F4A7C15, 1 << 11])
def test_numbers_batches_that_outgrow_the_table_keep_their_order(n, step):
    numbers = KeyNumbers()
    keys = np.arange(n, dtype=np.uint64) * np.uint64(step)
    check(numbers.number, np.concatenate([keys, keys[::-1]]))
    check(numbers.number, keys[::3].copy())


def test_numbers_keys_stay_valid_when_the_next_batch_is_numbered():
    numbers = KeyNumbers()
    unique, rows = numbers.number(np.array([5, 6, 5], np.uint64))
    numbers.number(np.array([9, 9, 9], np.uint64))
    assert (unique.tolist(), rows.tolist()) == ([5, 6], [0, 1, 0])


def test_number_keys_in_several_threads_do_not_disturb_each_other():
    rng = np.random.default_rng(1)
    batches = [rng.integers(0, 50_000, 40_000).astype(np.uint64) for _ in range(4)]
    wrong = []

    def work(keys):
        for _ in range(5):
            unique, rows = number_keys(keys)
            if len(unique) != len(np.unique(keys)) or (unique[rows] != keys).any():
                wrong.append(1)

    threads = [threading.Thread(target=work, args=(keys,)) for keys in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)
