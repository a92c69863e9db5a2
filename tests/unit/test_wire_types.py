"""Rows as they travel: every build against the NumPy twin, to the bit, and known answers."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probes import probes_of
from twins import wire as twin

from snailps.abi import loops
from snailps.abi.loops import WIRE_TYPES

BUILDS = {build: probes_of(build) for build in loops.builds_available()}
FLOAT16, INT8 = WIRE_TYPES["float16"], WIRE_TYPES["int8"]
FLOAT32_MAX = np.finfo(np.float32).max
INF, NAN = np.inf, np.nan
builds = pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
wires = pytest.mark.parametrize("wire", WIRE_TYPES.values(), ids=WIRE_TYPES)


def bits(x: np.ndarray) -> np.ndarray:
    """uint32 of float32, all NaNs of a sum or product alike: which one comes out is the CPU's."""
    return np.where(np.isnan(x), np.uint32(0x7FC00000), x.view(np.uint32))


def row(*numbers: float) -> np.ndarray:
    return np.array([numbers], np.float32)


def wide_row(build, wire: int, *numbers: float) -> list[float]:
    """What arrives when `numbers` are sent."""
    packed = build.narrow_rows(wire, row(*numbers))
    return build.widen_rows(wire, packed, len(numbers))[0].tolist()


def any_bits(n: int, floats: int, seed: int = 5) -> np.ndarray:
    """Rows of random bit patterns: every exponent, subnormals, inf and NaN."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 1 << 32, (n, floats), dtype=np.uint32).view(np.float32)


def mixed(n: int, floats: int, seed: int = 6) -> np.ndarray:
    """Finite rows, each of its own magnitude, from subnormal to nearly the largest."""
    rng = np.random.default_rng(seed)
    sizes = 2.0 ** rng.uniform(-149, 126, (n, 1))
    return (rng.normal(0, 1, (n, floats)) * sizes).clip(-FLOAT32_MAX, FLOAT32_MAX).astype("f4")


def assert_as_twin(build, wire: int, rows: np.ndarray) -> None:
    packed = build.narrow_rows(wire, rows)
    np.testing.assert_array_equal(packed, twin.narrow(wire, rows))
    wide = build.widen_rows(wire, packed, rows.shape[1])
    np.testing.assert_array_equal(bits(wide), bits(twin.widen(wire, packed)))


def assert_owing_as_twin(build, wire: int, rows: np.ndarray, residues: np.ndarray) -> None:
    packed, owed = twin.narrow_owing(wire, rows, residues)
    got = residues.copy()
    np.testing.assert_array_equal(build.narrow_owing_rows(wire, rows, got), packed)
    np.testing.assert_array_equal(got.view(np.uint32), owed.view(np.uint32))


# ---- every build, to the bit ---------------------------------------------------------------------


@builds
def test_widen_rows_of_every_float16_gives_numpys_value(build):
    patterns = np.arange(1 << 16, dtype=np.uint16)
    wide = build.widen_rows(FLOAT16, patterns.view(np.uint8).reshape(1, -1), 1 << 16)[0]
    with np.errstate(invalid="ignore"):  # of signalling NaNs, on arm64
        expected = patterns.view(np.float16).astype(np.float32)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(wide[number].view(np.uint32), expected[number].view(np.uint32))
    quiet = patterns[~number].astype(np.uint32)
    expected_nan = (quiet & 0x8000) << 16 | 0x7FC00000 | (quiet & 0x3FF) << 13
    np.testing.assert_array_equal(wide[~number].view(np.uint32), expected_nan)


@builds
def test_narrow_rows_of_every_widened_half_gives_it_back(build):
    patterns = np.arange(1 << 16, dtype=np.uint16)
    packed = patterns.view(np.uint8).reshape(1, -1)
    wide = build.widen_rows(FLOAT16, packed, 1 << 16)
    quiet = np.isnan(wide[0]) * np.uint16(0x200)
    back = build.narrow_rows(FLOAT16, wide).view(np.uint16)[0]
    np.testing.assert_array_equal(back, patterns | quiet)


@builds
def test_narrow_rows_around_every_tie_agrees_with_the_twin(build):
    halves = np.arange(0x7BFF + 1, dtype=np.uint16)
    values = twin.widen(FLOAT16, halves.view(np.uint8).reshape(1, -1))[0]
    ties = (values[:-1].astype("f8") + values[1:]) / 2
    ties = ties.astype(np.float32)
    around = np.concatenate(
        [ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(INF))]
    )
    rows = np.concatenate([around, -around]).astype(np.float32)
    rows = rows[: len(rows) // 251 * 251].reshape(-1, 251)
    assert_as_twin(build, FLOAT16, rows)
    # A tie goes to the even neighbour; this needs no twin.
    got = build.narrow_rows(FLOAT16, ties[: len(ties) // 2 * 2].reshape(-1, 2)).view(np.uint16)
    assert not (got & 1).any()


@builds
@wires
@pytest.mark.parametrize("floats", [1, 23, 300])
def test_narrow_and_widen_rows_of_any_bits_agree_with_the_twin(build, wire, floats):
    assert_as_twin(build, wire, any_bits(6_000 // floats, floats))
    assert_as_twin(build, wire, mixed(6_000 // floats, floats))


@builds
@wires
@pytest.mark.parametrize("floats", [3, 23])
def test_narrow_owing_rows_of_any_bits_agree_with_the_twin(build, wire, floats):
    rows = any_bits(5_000 // floats, floats)
    residues = any_bits(*rows.shape, seed=8)
    residues[~np.isfinite(residues)] = 0  # none is ever left behind
    assert_owing_as_twin(build, wire, rows, residues)
    rows = mixed(*rows.shape)
    assert_owing_as_twin(build, wire, rows, rows[:, ::-1] / np.float32(256))
    assert_owing_as_twin(build, wire, rows, (1 - 2 * rows.clip(-9e4, 9e4)))


@builds
@wires
def test_narrow_rows_of_the_longest_row_agrees_with_the_twin(build, wire):
    assert_as_twin(build, wire, mixed(2, 65_536))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(width=32), min_size=1, max_size=70),
    st.floats(-1e5, 1e5, width=32),
    st.sampled_from(list(WIRE_TYPES.values())),
)
def test_wire_types_with_any_floats_agree_in_every_build(numbers, residue, wire):
    rows = row(*numbers)
    for build in BUILDS.values():
        assert_as_twin(build, wire, rows)
        assert_owing_as_twin(build, wire, rows, np.full_like(rows, residue))


# ---- known answers -------------------------------------------------------------------------------


AT_THE_EDGE = {  # sent -> arrives
    1 + 2.0**-11: 1.0,  # ties: down to even, up to even
    1 + 3 * 2.0**-11: 1 + 2.0**-9,
    2.0**-25: 0.0,
    3 * 2.0**-25: 2.0**-23,
    2.0**-14 - 2.0**-26: 2.0**-14,  # the last subnormal rounds to a normal
    65_504.0: 65_504.0,
    65_520.0: 65_504.0,
    -1e38: -65_504.0,
    INF: INF,
    -INF: -INF,
}


@builds
@pytest.mark.parametrize("places", [1, 21], ids="x{}".format)
def test_narrow_rows_at_the_edge_of_float16_holds_and_rounds(build, places):
    got = {sent: wide_row(build, FLOAT16, *[sent] * places) for sent in AT_THE_EDGE}
    assert got == {sent: [arrives] * places for sent, arrives in AT_THE_EDGE.items()}


@builds
@wires
def test_narrow_rows_with_nan_keeps_it_visible(build, wire):
    wide = np.array(wide_row(build, wire, 1.0, NAN, *[2.0] * 18))
    assert np.isnan(wide[1])
    assert np.isnan(wide).all() == (wire == INT8)


@builds
def test_narrow_rows_of_int8_writes_scale_and_multiples(build):
    packed = build.narrow_rows(INT8, row(127, -1, 0.5, 1.5, -2.5, 0, -127))
    assert packed[0, :4].view(np.float32) == 1
    assert packed[0, 4:].view(np.int8).tolist() == [127, -1, 0, 2, -2, 0, -127]


@builds
@pytest.mark.parametrize("numbers", [[0.0, -0.0, 0.0], [1e-40, -1e-37, 0.0]])
def test_narrow_rows_of_int8_next_to_zero_has_scale_zero(build, numbers):
    packed = build.narrow_rows(INT8, row(*numbers))
    assert not packed.any()
    residues = np.zeros((1, 3), np.float32)
    assert not build.narrow_owing_rows(INT8, row(*numbers), residues).any()
    np.testing.assert_array_equal(residues, row(*numbers))


@builds
def test_narrow_rows_of_int8_that_was_widened_gives_the_same_bytes(build):
    rows = mixed(500, 37)
    packed = build.narrow_rows(INT8, rows)
    wide = build.widen_rows(INT8, packed, 37)
    assert np.isfinite(wide).all()
    np.testing.assert_array_equal(build.narrow_rows(INT8, wide), packed)


@builds
def test_narrow_rows_of_int8_with_the_largest_float_stays_finite(build):
    wide = wide_row(build, INT8, float(FLOAT32_MAX), -float(FLOAT32_MAX), 0.0)
    np.testing.assert_allclose(wide, [FLOAT32_MAX, -FLOAT32_MAX, 0], rtol=2**-16)


@builds
@wires
def test_narrow_rows_of_usual_weights_is_within_the_stated_error(build, wire):
    rows = np.random.default_rng(2).normal(0, 0.1, (200, 100)).astype(np.float32)
    error = np.abs(build.widen_rows(wire, build.narrow_rows(wire, rows), 100) - rows)
    largest = np.abs(rows).max(axis=1, keepdims=True)
    bound = {
        0: np.zeros_like(rows),
        FLOAT16: np.maximum(np.abs(rows) * 2.0**-11, 2.0**-25),
        INT8: largest / 127 / 2 + np.abs(rows) * 2.0**-16,
    }[wire]
    assert (error <= bound).all()
    assert (error.max() > 0) == (wire != 0)


# ---- error feedback ------------------------------------------------------------------------------


@builds
def test_narrow_owing_rows_beyond_float16_sends_the_rest_later(build):
    residues = np.zeros((1, 17), np.float32)
    arrived = []
    for pushed in (100_000.0, 0.0, 0.0):
        packed = build.narrow_owing_rows(FLOAT16, row(*[pushed] * 17), residues)
        arrived.append(build.widen_rows(FLOAT16, packed, 17)[0, [0, 16]].tolist())
    assert arrived == [[65_504.0] * 2, [34_496.0] * 2, [0.0] * 2]
    assert not residues.any()


@builds
@wires
def test_narrow_owing_rows_over_many_pushes_loses_nothing(build, wire):
    # Multiples of 2^-14 below 4: every sum, here and there, is exact.
    pushes = np.random.default_rng(4).integers(-600, 600, (400, 5, 21)) / np.float32(1 << 14)
    residues = np.zeros((5, 21), np.float32)
    arrived = np.zeros((5, 21))
    for rows in pushes.astype(np.float32):
        packed = build.narrow_owing_rows(wire, rows, residues)
        arrived += build.widen_rows(wire, packed, 21)
    np.testing.assert_allclose(arrived + residues, pushes.sum(axis=0, dtype="f8"), atol=2e-7)
    assert np.abs(residues).max() < 600 / (1 << 14) / 100


@builds
@wires
def test_narrow_owing_rows_that_are_not_finite_owe_nothing(build, wire):
    for bad in (INF, -INF, NAN):
        residues = np.full((1, 20), 0.25, np.float32)
        residues[0, 19] = bad
        packed = build.narrow_owing_rows(wire, row(bad, *[1 / 3] * 19), residues)
        assert not np.isfinite(build.widen_rows(wire, packed, 20)[0, [0, 19]]).any()
        assert np.isfinite(residues).all()
        assert residues[0, [0, 19]].tolist() == [0, 0]


# ---- what may be pushed --------------------------------------------------------------------------

GOOD = [0.0, -0.0, 1e-45, -1e-39, 1.0, -65504.0, 65535.9, FLOAT32_MAX, -FLOAT32_MAX]
BAD = [INF, -INF, NAN, -NAN, np.uint32(0x7F800001).view(np.float32)]  # the last: it signals


def assert_found_as_twin(build, rows: np.ndarray) -> None:
    for wire in WIRE_TYPES.values():
        packed = build.narrow_rows(wire, rows)
        assert build.finite_rows(wire, packed, rows.shape[1]) == twin.finite(
            wire, packed, rows.shape[1]
        )
        assert build.fitting_rows(wire, rows) == twin.fitting(wire, rows)


@builds
def test_finite_rows_of_every_length_find_a_bad_value_at_every_place(build):
    rng = np.random.default_rng(3)
    for length in range(71):
        good = rng.choice(np.array(GOOD, np.float32), (1, max(length, 1)))[: length or None]
        assert build.finite_rows(0, good.view(np.uint8), good.size) == good.size
        for place in range(length):
            rows = good.copy()
            rows[0, place] = BAD[place % len(BAD)]
            assert build.finite_rows(0, rows.view(np.uint8), length) == place
            assert build.fitting_rows(0, rows) == place
            halves = np.zeros((1, length), np.float16)
            with np.errstate(invalid="ignore"):  # arm64 reports the cast of a NaN, x86 does not
                halves[0, place] = BAD[place % len(BAD)]
            assert build.finite_rows(FLOAT16, halves.view(np.uint8), length) == place


@builds
@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("begin", [0, 1, 2, 8, 36, 60, 63])
def test_finite_rows_at_any_address_find_a_bad_value_in_each_stream(build, kind, begin):
    length, size = 700, np.dtype(kind).itemsize
    room = np.zeros(64 + length * size + 64, np.uint8)
    first = -room.ctypes.data % 64 + begin
    rows = room[first : first + length * size]
    room[:first] = room[first + len(rows) :] = 0xFF  # NaN on both sides, which is not looked at
    bad = np.frombuffer(np.array(NAN, kind).tobytes(), np.uint8)
    assert build.finite_rows(WIRE_TYPES[kind], rows[None], length) == length
    for place in range(length):
        rows[size * place : size * (place + 1)] = bad
        assert build.finite_rows(WIRE_TYPES[kind], rows[None], length) == place
        rows[size * place : size * (place + 1)] = 0


@builds
@pytest.mark.parametrize("bad", BAD, ids=["inf", "-inf", "nan", "-nan", "signalling"])
@pytest.mark.parametrize("place", [0, 2047, 2048, 4096, 6999])
def test_finite_rows_find_the_first_of_several_in_long_rows(build, bad, place):
    rows = np.full((7, 1000), FLOAT32_MAX, np.float32)
    rows.reshape(-1)[[place, 6999]] = bad
    assert_found_as_twin(build, rows)
    assert build.fitting_rows(0, rows) == place


@builds
@settings(max_examples=50, deadline=None)
@given(
    n=st.integers(1, 5),
    floats=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
    wild=st.booleans(),
)
def test_finite_rows_of_any_bits_are_as_the_twin_finds(build, n, floats, seed, wild):
    assert_found_as_twin(build, (any_bits if wild else mixed)(n, floats, seed))


@builds
def test_fitting_rows_with_gaps_look_at_rows_alone(build):
    wide = np.full((5, 12), NAN, np.float32)
    wide[:, :7] = 1
    assert build.fitting_rows(0, wide[:, :7]) == 35
    wide[3, 6] = INF
    assert build.fitting_rows(0, wide[:, :7]) == 27
    one = np.broadcast_to(np.array([1, INF], np.float32), (4, 2))
    assert build.fitting_rows(0, one) == 1


@builds
def test_finite_rows_of_int8_know_a_scale_whose_products_are_too_large(build):
    packed = np.zeros((2, 7), np.uint8)
    packed[1, :4] = np.frombuffer(np.float32(FLOAT32_MAX / 101).tobytes(), np.uint8)
    packed[1, 4:] = np.array([100, -99, 1], np.int8).view(np.uint8)
    assert build.finite_rows(INT8, packed, 3) == twin.finite(INT8, packed, 3) == 6
    packed[1, 5] = np.int8(-103).view(np.uint8)
    assert build.finite_rows(INT8, packed, 3) == twin.finite(INT8, packed, 3) == 4


@wires
def test_finite_rows_that_are_none_have_no_bad_value(wire):
    none = np.zeros((0, 6), np.float32)
    build = probes_of()
    assert build.finite_rows(wire, build.narrow_rows(wire, none), 6) == 0
    assert build.fitting_rows(wire, none) == 0


# ---- the C table and the doors -------------------------------------------------------------------


def table(build) -> list:
    """The functions behind the capsule: narrow, widen and narrow_owing by type; None for type 2."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    start = pointer(loops.Kernels(build.capsule).wire_ops(), b"snailps.wire_ops")
    two = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
    three = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_uint32)
    places = (ctypes.c_void_p * 12).from_address(start)
    kinds = [two] * 8 + [three] * 4
    return [place and kind(place) for kind, place in zip(kinds, places, strict=True)]


@builds
@wires
def test_wire_ops_at_any_address_fill_exactly_one_row(build, wire):
    ops = table(build)
    for floats in (*range(1, 40), 100):
        rows = mixed(1, floats, seed=floats) + np.float32(0)  # no -0: with a residue of 0 it is 0
        packed = build.narrow_rows(wire, rows)
        wide = build.widen_rows(wire, packed, floats)
        for skip in (0, 1, 3):
            frame = np.full(packed.size + 8, 0xAA, np.uint8)
            spot = frame[skip:].ctypes.data
            ops[wire](rows.ctypes.data, spot, floats)
            np.testing.assert_array_equal(frame[skip : skip + packed.size], packed[0])
            back = np.full(floats + 2, 7, np.float32)
            ops[4 + wire](spot, back[1:].ctypes.data, floats)
            np.testing.assert_array_equal(back, [7, *wide[0], 7])
            again = np.full(packed.size + 8, 0xAA, np.uint8)
            residue = np.zeros(floats + 2, np.float32)
            residue[[0, -1]] = 7
            at = residue[1:].ctypes.data
            ops[8 + wire](rows.ctypes.data, at, again[skip:].ctypes.data, floats)
            np.testing.assert_array_equal(again, frame)
            np.testing.assert_array_equal(residue, [7, *(rows - wide)[0], 7])
            assert (np.delete(frame, np.s_[skip : skip + packed.size]) == 0xAA).all()


@wires
def test_wire_rows_with_no_rows_are_empty(wire):
    none = np.zeros((0, 6), np.float32)
    build = probes_of()
    packed = build.narrow_rows(wire, none)
    assert packed.shape == (0, {0: 24, FLOAT16: 12, INT8: 10}[wire])
    assert build.narrow_owing_rows(wire, none, none.copy()).shape == packed.shape
    assert build.widen_rows(wire, packed, 6).shape == (0, 6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda k, x: k.narrow_rows(4, x), r"wire must be 0, 1 or 3 .*got 4"),
        (lambda k, x: k.narrow_rows(2, x), r"wire must be 0, 1 or 3 .*got 2"),
        (lambda k, x: k.narrow_rows(-1, x), r"wire must be 0, 1 or 3 .*got -1"),
        (lambda k, x: k.narrow_rows(1, x[:, :0].copy()), r"1 to 65536 floats, got 0"),
        (lambda k, x: k.widen_rows(3, x.view("u1"), 7), r"11 bytes a row .*got 24"),
        (lambda k, x: k.widen_rows(1, x.view("u1"), 65_537), r"got 65537"),
        (lambda k, x: k.narrow_owing_rows(1, x, x[:1].copy()), r"residues \(1 x 6\).*\(2 x 6\)"),
        (lambda k, x: k.narrow_owing_rows(1, x, x), r"residues must not be rows"),
    ],
)
def test_wire_rows_that_do_not_fit_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(probes_of(), np.zeros((2, 6), np.float32))
