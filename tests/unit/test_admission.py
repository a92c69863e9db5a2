"""data._admission: counts that are never too low, merging, bytes from elsewhere."""

import numpy as np
import pytest
from cases import examples
from hypothesis import given
from hypothesis import strategies as st
from twins import sparse as twin

from snailps.data.examples import Admission, Admitted
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


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 40), max_size=300))
@examples(50)
def test_admission_counters_agree_with_the_twin(keys):
    admission = counted(keys, keys_expected=30)
    dense = np.zeros(admission.lines * 64, int)
    part = admission.dump()
    assert part[:4] == b"SNAD"
    n = int.from_bytes(part[24:32], "little")
    if n == len(dense):
        dense[:] = np.frombuffer(part, np.uint8, offset=32)
    else:
        dense[np.frombuffer(part, "<u4", n, 32)] = np.frombuffer(part, np.uint8, n, 32 + 4 * n)
    assert dense.tolist() == twin_counters(keys, admission.lines).tolist()
    assert admission.counted == len(keys)


@given(
    st.lists(st.lists(st.integers(0, 60), max_size=200), min_size=1, max_size=4),
    st.integers(1, 8),
    st.sampled_from([1, 5, 1000]),
)
@examples(50)
def test_admission_of_merged_parts_never_refuses_a_frequent_key(parts, min_count, keys_expected):
    whole = Admission(min_count, keys_expected)
    for keys in parts:
        whole.merge(counted(keys, min_count, keys_expected).dump())
    keys, counts = np.unique(np.concatenate(parts).astype(np.uint64), return_counts=True)
    assert whole.admit(keys)[counts >= min_count].all()
    assert whole.counted == counts.sum()
    if keys_expected == 1000:  # hardly anything shares a counter
        assert (whole.admit(keys) != (counts >= min_count)).sum() <= 2


@pytest.mark.parametrize(("load", "most"), [(1, 0.0005), (2, 0.002), (4, 0.03)])
def test_admission_rare_keys_pass_as_seldom_as_said(load, most):
    n = 200_000
    rng = np.random.default_rng(load)
    keys = rng.choice(1 << 62, n * load, replace=False).astype(np.uint64)
    frequent, rare = keys[: n // 10], keys[n // 10 :]
    admission = Admission(3, n)
    admission.count(rng.permutation(np.concatenate([np.repeat(frequent, 3), rare])))
    assert admission.admit(frequent).all()
    assert admission.admit(rare).mean() < most


def test_admission_saturates_and_stays_admitted():
    keys = np.full(1000, 7, np.uint64)
    admission = counted(keys, min_count=255)
    admission.merge(admission.dump())
    admission.merge(counted(keys[:3], min_count=255).dump())
    assert admission.admit(keys[:1]).all()
    assert not counted(keys[:254], min_count=255).admit(keys[:1]).any()


def test_admission_cleared_admits_nothing():
    admission = counted(range(50), min_count=1)
    admission.clear()
    assert not admission.admit(np.arange(50, dtype=np.uint64)).any()
    assert admission.counted == 0


@pytest.mark.parametrize("keys", [range(3), range(5000)], ids=["sparse", "dense"])
def test_admission_dump_comes_back(keys):
    one = counted(keys, 2, 300)
    assert (len(one.dump()) == 32 + 64 * one.lines) == (len(keys) > 3)
    other = Admission(2, 300)
    other.merge(one.dump())
    assert other.dump() == one.dump()


@pytest.mark.parametrize("keys", [range(3), range(5000)], ids=["sparse", "dense"])
def test_admission_every_truncation_of_a_dump_is_refused(keys):
    part = counted(keys, 2, 300).dump()
    other = Admission(2, 300)
    empty = other.dump()
    for end in [*range(min(len(part), 60)), *range(60, len(part), 97)]:
        with pytest.raises(DataError, match="cannot read counts of features"):
            other.merge(part[:end])
    assert other.dump() == empty


@pytest.mark.parametrize(
    "spoil",
    [
        lambda part: b"X" + part[1:],
        lambda part: part[:4] + b"\2" + part[5:],
        lambda part: part[:24] + b"\1" + part[25:],
        lambda part: part[:24] + b"\xff" * 8 + part[32:],
        lambda part: part[:16] + b"\xff" * 8 + part[24:],
        lambda part: part + b"\0",
        lambda part: part[: 32 + 4 * 11] + b"\xff\xff\xff\xff" + part[32 + 4 * 12 :],
        lambda part: part[:36] + part[32:36] + part[40:],
        lambda part: counted([1], 3, 300).dump(),
        lambda part: counted([1], 2, 1000).dump(),
    ],
)
def test_admission_spoilt_dump_is_refused(spoil):
    part = counted([1, 2, 3], 2, 300).dump()
    assert (part[24], len(part)) == (12, 32 + 12 * 5)
    other = Admission(2, 300)
    with pytest.raises(DataError, match=r"\(\d+ bytes\): .*same version"):
        other.merge(spoil(part))
    assert other.dump() == Admission(2, 300).dump()


@given(st.lists(st.integers(0, 99), max_size=400), st.integers(1, 5))
@examples(50)
def test_admitted_answers_as_the_filter_it_is_from(keys, min_count):
    admission = counted(keys, min_count, keys_expected=40)
    asked = np.arange(200, dtype=np.uint64)
    part = admission.verdict()
    assert len(part) == 16 + 8 * admission.lines
    assert Admitted(part).admit(asked).tolist() == admission.admit(asked).tolist()
    assert Admitted(part).admit(asked[:0]).shape == (0,)


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
