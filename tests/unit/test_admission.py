"""data._admission: counts that are never too low, verdicts from elsewhere."""

import numpy as np
import pytest
from cases import examples
from hypothesis import given
from hypothesis import strategies as st
from twins import sparse as twin

from snailps.data._admission import Admission, Admitted
from snailps.errors import DataError


def counted(keys, min_count=3, keys_expected=100):
    admission = Admission(min_count, keys_expected)
    admission.count(np.asarray(keys, np.uint64))
    return admission


def twin_counters(keys, lines):
    """The counters, key by key."""
    counters = np.zeros(lines * 64, int)
    for key in keys:
        h = twin.hash_key(key)
        line = (h >> 32) * lines >> 32
        places = [64 * line + 16 * j + (h >> 4 * j) % 16 for j in range(4)]
        least = min(counters[places])
        for place in places:
            counters[place] += counters[place] == least < 255
    return counters


def admit(admission, keys):
    return Admitted(admission.verdict()).admit(keys)


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 40), max_size=300), st.integers(1, 4))
@examples(50)
def test_admission_verdict_agrees_with_the_twin(keys, min_count):
    admission = counted(keys, min_count, keys_expected=30)
    bits = np.unpackbits(np.frombuffer(admission.verdict(), np.uint8, offset=16), bitorder="little")
    counters = twin_counters(keys, admission.lines)
    assert bits.tolist() == (counters >= min_count).astype(int).tolist()
    assert admission.counted == len(keys)


@given(
    st.lists(st.lists(st.integers(0, 60), max_size=200), min_size=1, max_size=4),
    st.integers(1, 8),
    st.sampled_from([1, 5, 1000]),
)
@examples(50)
def test_admission_of_keys_counted_in_parts_never_refuses_a_frequent_one(
    parts, min_count, keys_expected
):
    whole = Admission(min_count, keys_expected)
    for keys in parts:
        whole.count(np.asarray(keys, np.uint64))
    keys, counts = np.unique(np.concatenate(parts).astype(np.uint64), return_counts=True)
    assert admit(whole, keys)[counts >= min_count].all()
    assert whole.counted == counts.sum()
    if keys_expected == 1000:  # hardly anything shares a counter
        assert (admit(whole, keys) != (counts >= min_count)).sum() <= 2


@pytest.mark.parametrize(("load", "most"), [(1, 0.0005), (2, 0.002), (4, 0.03)])
def test_admission_rare_keys_pass_as_seldom_as_said(load, most):
    n = 200_000
    rng = np.random.default_rng(load)
    keys = rng.choice(1 << 62, n * load, replace=False).astype(np.uint64)
    frequent, rare = keys[: n // 10], keys[n // 10 :]
    admission = Admission(3, n)
    admission.count(rng.permutation(np.concatenate([np.repeat(frequent, 3), rare])))
    assert admit(admission, frequent).all()
    assert admit(admission, rare).mean() < most


def test_admission_saturates_and_stays_admitted():
    keys = np.full(1000, 7, np.uint64)
    assert admit(counted(keys, min_count=255), keys[:1]).all()
    assert not admit(counted(keys[:254], min_count=255), keys[:1]).any()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda part: part[:-1],
        lambda part: part + b"\0",
        lambda part: part[:15],
        lambda part: b"",
        lambda part: b"SNAD" + part[4:],
        lambda part: part[:12] + b"\0\0\0\0",
    ],
)
def test_admitted_spoilt_verdict_is_refused(spoil):
    with pytest.raises(DataError, match="cannot read counts of features"):
        Admitted(spoil(counted([1, 2]).verdict()))


@pytest.mark.parametrize(("min_count", "keys"), [(0, 5), (256, 5), (-1, 5), (2, 0)])
def test_admission_senseless_setting_is_refused(min_count, keys):
    with pytest.raises(ValueError, match="expected"):
        Admission(min_count, keys)
