"""The kernels against their NumPy twins, against each other's builds and against calculus."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from first_rows import first_row
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow import assert_rounded_alike, narrow_builds
from probes import probes_of
from twins import kernels as twin
from workers_in_order import ORDERS, train_pieces

from snailps import kernels
from snailps.abi import builds as choice
from snailps.errors import ConfigError

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
BUILDS = kernels.builds_available()
builds = pytest.mark.parametrize("build", BUILDS)
SETTINGS = {"window": 5, "negatives": 5, "lr_start": 0.05, "lr_stop": 0.01, "seed": 7}


class Toy:
    """Small random arrays for one training call."""

    def __init__(self, words=40, tokens=300, dim=20, subwords=0, extra=6, seed=3, nce=False):
        rng = np.random.default_rng(seed)
        self.dim, self.words = dim, words
        self.inputs = kernels.padded(words + 50, dim)
        self.inputs[:, :dim] = rng.uniform(-0.5, 0.5, (words + 50, dim))
        self.outputs = kernels.padded(words + extra, dim)
        self.outputs[:, :dim] = rng.uniform(-0.5, 0.5, (words + extra, dim))
        self.tokens = rng.integers(0, words, tokens).astype(np.int32)
        self.tokens[rng.random(tokens) < 0.06] = -1
        sizes = rng.integers(0, subwords + 1, words) if subwords else np.zeros(words, int)
        self.bag_ptr = np.concatenate([[0], np.cumsum(sizes + 1)]).astype(np.int64)
        self.bag_rows = np.concatenate(
            [[w, *rng.integers(words, words + 50, n)] for w, n in enumerate(sizes)]
        ).astype(np.int32)
        self.noise = rng.integers(0, words + extra, 500).astype(np.int32)
        self.logit = np.zeros(words + extra, np.float32)
        if nce:
            self.logit[:] = rng.uniform(-3, 0, words + extra)

    def arguments(self):
        return (self.inputs.copy(), self.outputs.copy(), self.dim, self.tokens, self.bag_ptr,
                self.bag_rows, self.noise, self.logit)  # fmt: skip

    def train(self, build=kernels.BUILD, **changed):
        """(inputs, outputs, loss, examples) after one call on copies."""
        inputs, outputs = (kernels.padded(len(x), self.dim) for x in (self.inputs, self.outputs))
        inputs[:], outputs[:] = self.inputs, self.outputs
        rest = self.arguments()[2:]
        loss, count = kernels.load(build).train_words(inputs, outputs, *rest, **SETTINGS | changed)
        return inputs, outputs, loss, count

    def twin(self, **changed):
        return twin.train_words(*self.arguments(), **SETTINGS | changed)


def assert_close(got, want, dim):
    np.testing.assert_allclose(got[0][:, :dim], want[0], atol=2e-5)
    np.testing.assert_allclose(got[1][:, :dim], want[1], atol=2e-5)
    assert got[2] == pytest.approx(want[2], rel=1e-5)
    assert got[3] == want[3]


# ---- stored rows ---------------------------------------------------------------------------------


@builds
@given(
    scale=st.floats(2**-10, 8, width=32),
    seed=st.integers(0, 2**64 - 1),
    key=st.integers(0, 2**64 - 1),
    dim=st.integers(1, 200),
)
def test_init_uniform_any_row_equals_twin_bit_for_bit(build, scale, seed, key, dim):
    got = first_row(kernels.load(build), 1, scale, seed, key, dim)
    np.testing.assert_array_equal(got, twin.init_row(1, scale, seed, key, dim))


@builds
def test_init_uniform_widest_row_fills_its_range(build):
    row = first_row(kernels.load(build), 1, 0.25, 1, 2, 65536)
    np.testing.assert_array_equal(row, twin.init_row(1, 0.25, 1, 2, 65536))
    assert row.min() >= -0.25
    assert row.max() < 0.25
    assert abs(row.mean()) < 0.002
    assert row.std() == pytest.approx(0.25 / 3**0.5, rel=0.01)


@builds
def test_init_normal_widest_row_has_moments_of_normal(build):
    row = first_row(kernels.load(build), 2, 3.0, 5, 6, 65536)
    np.testing.assert_allclose(row, twin.init_row(2, 3.0, 5, 6, 65536), atol=2e-5)
    z = row / 3
    assert abs(z.mean()) < 0.02
    assert z.std() == pytest.approx(1, abs=0.02)
    assert (z**3).mean() == pytest.approx(0, abs=0.06)
    assert (z**4).mean() == pytest.approx(3, abs=0.15)


@builds
@pytest.mark.parametrize("kind", [0, 1, 2, 3])
def test_init_rows_are_those_of_each_key(build, kind):
    keys, out = np.array([3, 1 << 40, 0], np.uint64), np.full((3, 21), 9, np.float32)
    one = kernels.load(build)
    one.init_rows(kind, 0.5, 7, keys, out)
    wanted = [first_row(one, kind, 0.5, 7, key, 21) for key in keys]
    np.testing.assert_array_equal(out, wanted)
    with pytest.raises(ValueError, match="3 rows"):
        one.init_rows(kind, 0.5, 7, keys, out[:2])
    with pytest.raises(ValueError, match="kind"):
        one.init_rows(5, 0.5, 7, keys, out)


@builds
@pytest.mark.parametrize("dim", [1, 2, 9, 100])
def test_init_factors_are_normal_behind_a_zero(build, dim):
    row = first_row(kernels.load(build), 3, 0.5, 5, 6, dim)
    np.testing.assert_allclose(row, twin.init_row(3, 0.5, 5, 6, dim), atol=1e-5)
    np.testing.assert_array_equal(row[1:], first_row(kernels.load(build), 2, 0.5, 5, 6, dim)[1:])
    assert row[0] == 0
    assert row[1:].all()


HYPER = np.array([0.1, 1e-6, 0.9, 0.999, 0.05, 0.01, 1.0, 0], np.float32)
ADD, SGD, ADAGRAD, ADAM, FTRL, AVERAGE, MOMENTUM, ROWWISE = range(8)
STATE = {ADAGRAD: 1, ADAM: 2, FTRL: 2, AVERAGE: 1, MOMENTUM: 1}  # times dim


def state_of(access, dim):
    return STATE.get(access, 0) * dim + (access in (ADAM, AVERAGE, ROWWISE))


def some_row(access, dim, rng):
    """A row as it may stand in a store."""
    row = rng.uniform(0.1, 1, dim + state_of(access, dim)).astype(np.float32)
    if access == ADAM:
        row[-1] = 7
    if access == FTRL:
        row[dim : 2 * dim] -= 0.5
        row[:dim] = twin.ftrl_weights(HYPER, row[dim : 2 * dim], row[2 * dim :])
    return row


STEPS = [(build, 37) for build in BUILDS] + [(kernels.BUILD, 1)]


@pytest.mark.parametrize("access", range(8))
@pytest.mark.parametrize(("build", "dim"), STEPS)
def test_apply_row_equals_twin(build, access, dim):
    rng = np.random.default_rng(access)
    row = some_row(access, dim, rng)
    for _ in range(5):
        value = rng.normal(size=dim + (access == AVERAGE)).astype(np.float32)
        want = twin.apply_row(access, HYPER, row, value)
        probes_of(build).apply_row(access, HYPER, row, value)
        np.testing.assert_allclose(row, want, rtol=2e-6, atol=2e-6)


@builds
@pytest.mark.parametrize("access", [ADD, SGD, ADAGRAD, ADAM, FTRL, MOMENTUM, ROWWISE])
def test_add_state_row_equals_twin(build, access):
    dim = 37
    rng = np.random.default_rng(access)
    row = some_row(access, dim, rng)
    delta = rng.uniform(0, 1, len(row)).astype(np.float32)
    want = twin.add_state_row(access, HYPER, row, delta, dim)
    probes_of(build).add_state_row(access, HYPER, row, delta, dim)
    np.testing.assert_allclose(row, want, rtol=2e-6, atol=2e-6)


@builds
def test_add_state_row_of_what_does_not_add_up_is_refused(build):
    row = np.zeros(4 + state_of(AVERAGE, 4), np.float32)
    with pytest.raises(ValueError, match="no state that adds up"):
        probes_of(build).add_state_row(AVERAGE, HYPER, row, row.copy(), 4)


@builds
@pytest.mark.parametrize("access", [ADAGRAD, ADAM, ROWWISE])
def test_apply_zero_gradient_to_a_new_row_changes_no_weight(build, access):
    row, zeros = np.zeros(10 + state_of(access, 10), np.float32), np.zeros(10, np.float32)
    probes_of(build).apply_row(access, HYPER, row, zeros)
    assert not row[:-1].any()
    assert row[-1] == (access == ADAM)  # the step counts all the same


G = np.array([3, -0.001, 200, 0.5])
ANY = np.nan
KNOWN_STEPS = {
    # Both corrections cancel at t = 1: w = -lr g / (|g| + eps), whatever the betas.
    "adam, one": (
        ADAM, [0.1, 1e-6, 0.9, 0.999], [0] * 13,
        [(G, [*(-0.1 * G / (abs(G) + 1e-6)), *[ANY] * 8, 1])],
    ),
    # beta1 = beta2 = 1/2, eps = 0: m = 7/4, v = 19/4, corrections 3/4.
    "adam": (
        ADAM, [0.5, 0, 0.5, 0.5], [0] * 4,
        [([1], [-0.5, ANY, ANY, 1]), ([3], [-0.5 - 7 / 6 / (19 / 3) ** 0.5, 1.75, 4.75, 2])],
    ),
    # eps = 0: the means of squares are 25 and 100.
    "rowwise": (
        ROWWISE, [0.5], [0] * 5,
        [([6, 8, 0, 0], [-0.6, -0.8, 0, 0, 25]),
         ([0, 0, 12, 16], [ANY, ANY, -6 / 125**0.5, -8 / 125**0.5, 125])],
    ),
    # beta1 = 1/2: v = 4, 4, 2, and w = 1 - 1, - 1, - 1/2.
    "momentum": (
        MOMENTUM, [0.25, 0, 0.5], [1, 0], [([4], [0, 4]), ([2], [-1, 4]), ([0], [-1.5, 2])],
    ),
    # alpha 1/2, beta 1, l1 1, l2 1/2; roots are 3 and 5.  z = 3: w = -(3 - 1) / ((1 + 3) / 0.5).
    # Then 33/8 - 1/8 (L2), sigma = (5 - 3) / 0.5 = 4: z = 3 + 4 + 1, w = -(8 - 1) / 12.
    "ftrl": (
        FTRL, [0.5, 0, 0, 0, 1, 0.5, 1], [0] * 3,
        [([3], [-0.25, 3, 9]), ([4.125], [-7 / 12, 8, 25])],
    ),
    "average": (AVERAGE, [], [7, 8, 1, 2, 3], [([10, 20, 30], [7, 8, 11, 22, 33])]),
}  # fmt: skip


@builds
@pytest.mark.parametrize("kind", KNOWN_STEPS)
def test_apply_row_known_answers(build, kind):
    access, rates, row, steps = KNOWN_STEPS[kind]
    hyper, row = np.array([*rates, *[0] * (8 - len(rates))], np.float32), np.array(row, np.float32)
    for value, wanted in steps:
        probes_of(build).apply_row(access, hyper, row, np.array(value, np.float32))
        np.testing.assert_allclose(row, np.where(np.isnan(wanted), row, wanted), rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 16_382, 16_383, 16_384, 40_000])
@pytest.mark.parametrize("beta2", [0.999, 0.9999])
def test_apply_adam_late_step_equals_twin(steps, beta2):
    """Corrections of the first 16,384 steps of a row are looked up, later ones computed."""
    rng = np.random.default_rng(1)
    hyper = np.array([0.1, 1e-6, 0.9, beta2, 0, 0, 0, 0], np.float32)
    row = some_row(ADAM, 5, rng)
    row[-1] = steps
    value = rng.normal(size=5).astype(np.float32)
    want = twin.apply_row(ADAM, hyper, row, value)
    probes_of().apply_row(ADAM, hyper, row, value)
    np.testing.assert_allclose(row, want, rtol=2e-6, atol=2e-6)


@builds
def test_apply_ftrl_small_sums_stay_exactly_zero(build):
    row = np.zeros(3 * 20, np.float32)
    probes_of(build).apply_row(FTRL, HYPER, row, np.linspace(-0.05, 0.05, 20, dtype=np.float32))
    assert not row[:20].any()
    assert row[20:40].any()
    probes_of(build).apply_row(FTRL, HYPER, row, np.zeros(20, np.float32))
    assert np.isfinite(row).all()


@builds
@given(
    weights=st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=20),
    l1=st.floats(0, 2, width=32),
)
def test_init_state_of_ftrl_leaves_the_weights_what_they_are(build, weights, l1):
    """z is chosen so that a step of nothing, which computes w anew, changes nothing."""
    dim = len(weights)
    hyper = HYPER.copy()
    hyper[4] = l1
    row = np.array([*weights, *[np.nan] * (2 * dim)], np.float32)
    probes_of(build).init_state_row(FTRL, hyper, row, dim)
    probes_of(build).add_state_row(FTRL, hyper, row, np.zeros(3 * dim, np.float32), dim)
    np.testing.assert_allclose(row[:dim], weights, rtol=1e-5, atol=1e-6)


@builds
@pytest.mark.parametrize("access", [ADAGRAD, ADAM, AVERAGE, MOMENTUM])
def test_init_state_of_the_others_is_zero(build, access):
    row = np.full(5 + state_of(access, 5), 3, np.float32)
    probes_of(build).init_state_row(access, HYPER, row, 5)
    assert row.tolist() == [3.0] * 5 + [0.0] * state_of(access, 5)


@pytest.mark.parametrize(
    ("access", "row", "hyper"),
    [
        (7, 4, 8),
        (6, 4, 8),
        (2, 4, 8),
        (0, 5, 8),
        (1, 4, 4),
        (-1, 4, 8),
        (3, 12, 8),
        (4, 13, 8),
        (5, 8, 8),
    ],
)
def test_apply_row_wrong_sizes_are_refused(access, row, hyper):
    with pytest.raises(ValueError, match="must"):
        probes_of().apply_row(
            access, np.zeros(hyper, np.float32), np.zeros(row, np.float32), np.zeros(4, np.float32)
        )


# ---- word vectors --------------------------------------------------------------------------------


@builds
@pytest.mark.parametrize(("subwords", "nce"), [(0, True), (0, False), (6, False)])
def test_train_words_one_thread_equals_twin(build, subwords, nce):
    toy = Toy(subwords=subwords, nce=nce)
    got = toy.train(build)
    assert_close(got, toy.twin(), toy.dim)
    assert got[0].shape[1] > toy.dim
    assert not any(rows[:, toy.dim :].any() for rows in got[:2])


@builds
@pytest.mark.parametrize("window", [1, 5, 40])
def test_train_words_carries_sums_of_bags_into_the_next_group_only_if_asked(build, window):
    toy = Toy(subwords=6)
    rate = {"window": window, "lr_start": 0.01, "lr_stop": 0.005}
    carried, summed = (toy.train(build, carry=carry, **rate) for carry in (True, False))
    assert_close(carried, toy.twin(carry=True, **rate), toy.dim)
    assert_close(summed, toy.twin(carry=False, **rate), toy.dim)
    assert abs(carried[0] - summed[0]).max() > 1e-4  # more than rounding
    assert carried[2] == pytest.approx(summed[2], rel=1e-2)


@builds
@settings(max_examples=20, deadline=None)
@given(
    words=st.integers(1, 30),
    tokens=st.integers(0, 80),
    dim=st.integers(1, 70),
    window=st.integers(1, 20),
    negatives=st.integers(1, 20),
    subwords=st.integers(0, 4),
    seed=st.integers(0, 2**64 - 1),
)
def test_train_words_any_shape_equals_twin(
    build, words, tokens, dim, window, negatives, subwords, seed
):
    toy = Toy(words, tokens, dim, subwords, seed=seed % 1000)
    # A low rate: one word in every place of a wide window would make the vectors explode, and
    # rounding with them.
    changed = {"window": window, "negatives": negatives, "seed": seed}
    changed["reach_min"] = 1 + seed % window
    changed |= {"lr_start": 2e-3, "lr_stop": 1e-3}
    assert_close(toy.train(build, **changed), toy.twin(**changed), dim)


@builds
@pytest.mark.parametrize(
    ("subwords", "nce", "window"), [(0, True, 5), (0, False, 2), (6, False, 5)]
)
def test_train_words_with_targets_equals_twin(build, subwords, nce, window):
    toy = Toy(subwords=subwords, nce=nce)
    rng = np.random.default_rng(5)
    words = np.flatnonzero(toy.tokens >= 0)
    chosen = rng.permutation(words)[:100].astype(np.int32)  # in any order, each with any row
    targets = chosen, rng.permutation(len(toy.outputs)).astype(np.int32)[toy.tokens[chosen]]
    changed = {"targets": targets, "window": window}
    assert_close(toy.train(build, **changed), toy.twin(**changed), toy.dim)


@builds
@pytest.mark.parametrize("subwords", [0, 3])
@pytest.mark.parametrize("words", [1, 3])
def test_train_words_more_repeats_than_a_group_may_have_equals_twin(build, words, subwords):
    toy = Toy(words, tokens=300, subwords=subwords)
    changed = {"lr_start": 2e-3, "lr_stop": 1e-3}
    assert_close(toy.train(build, **changed), toy.twin(**changed), toy.dim)


def test_train_words_with_all_places_as_targets_is_the_order_of_the_text():
    toy = Toy()
    at = np.flatnonzero(toy.tokens >= 0).astype(np.int32)
    rate = {"lr_start": 0.05, "lr_stop": 0.05}
    got = toy.train(targets=(at, toy.tokens[at]), **rate)
    assert_close(got, [x[:, : toy.dim] if np.ndim(x) else x for x in toy.train(**rate)], toy.dim)


@builds
@pytest.mark.parametrize("of", ["text", "targets", "adagrad"])
@pytest.mark.parametrize("subwords", [0, 6])
def test_train_words_an_entry_of_weight_3_is_three_equal_rows(build, of, subwords):
    toy, three = Toy(subwords=subwords), Toy(subwords=subwords)
    heavy = np.arange(0, len(toy.inputs), 2)  # each has two copies behind all other rows
    n, times = len(toy.inputs), np.where(toy.bag_rows % 2, 1, 3)
    three.inputs = kernels.padded(n + 2 * len(heavy), toy.dim)
    three.inputs[:] = np.concatenate([toy.inputs, *[toy.inputs[heavy]] * 2])
    copies = np.repeat(toy.bag_rows, times)
    which = np.arange(len(copies)) - np.repeat(times.cumsum() - times, times)
    three.bag_rows = (copies + (which > 0) * (n + copies // 2 - copies)).astype(np.int32)
    three.bag_rows[which == 2] += len(heavy)
    three.bag_ptr = np.concatenate([[0], times.cumsum()])[toy.bag_ptr]
    at = np.flatnonzero(toy.tokens >= 0)[::3].astype(np.int32)
    changed = {"targets": (at, toy.tokens[at])} if of == "targets" else {}

    def trained(toy, **changed):
        squares = [kernels.padded(len(x), toy.dim) for x in (toy.inputs, toy.outputs)]
        if of == "adagrad":
            changed |= {"squares": tuple(squares), "eps": 0.1}
        return *toy.train(build, **changed), *squares

    got = trained(toy, weights=times.astype(np.float32), **changed)
    want = trained(three, **changed)
    assert got[3] == want[3]
    assert got[2] == pytest.approx(want[2], rel=1e-5)
    for one, other in zip((*got[:2], *got[4:]), (*want[:2], *want[4:]), strict=True):
        np.testing.assert_allclose(one, other[: len(one)], atol=2e-5)
    for copy in (0, 1):  # what makes them one row: all three have learnt the same
        rows = want[0][n + copy * len(heavy) :][: len(heavy)]
        np.testing.assert_allclose(rows, want[0][heavy], atol=2e-5)


def test_train_words_with_weights_that_do_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"weights must be as many as bag_rows \(40\), got 39"):
        Toy().train(weights=np.ones(39, np.float32))


@pytest.mark.parametrize(
    ("places", "rows"), [([0, 300], [1, 1]), ([-1], [1]), ([0], [46]), ([0], [-1]), ([0, 1], [1])]
)
def test_train_words_with_targets_that_do_not_fit_is_refused(places, rows):
    with pytest.raises(ValueError, match="targets must be"):
        Toy().train(targets=(np.array(places, np.int32), np.array(rows, np.int32)))


def trained_with_adagrad(toy, build=kernels.BUILD, begin=0.0, **changed):
    """(inputs, outputs, loss, examples, squares of inputs, of outputs), and the twin's."""
    inputs, outputs, *squares = (
        kernels.padded(len(x), toy.dim) for x in (toy.inputs, toy.outputs) * 2
    )
    inputs[:], outputs[:] = toy.inputs, toy.outputs
    for one in squares:
        one[:, : toy.dim] = begin
    settings = {**SETTINGS, "eps": 0.1, **changed}
    want = twin.train_words_adagrad(*toy.arguments(), **settings, squares=squares)
    loss, count = kernels.load(build).train_words(
        inputs, outputs, *toy.arguments()[2:], **settings, squares=tuple(squares)
    )
    return (inputs, outputs, loss, count, *squares), want


@builds
@pytest.mark.parametrize("subwords", [0, 6])
@pytest.mark.parametrize(("dim", "begin"), [(20, 0.0), (32, 0.5), (101, 0.0)])
def test_train_words_with_adagrad_equals_twin(build, subwords, dim, begin):
    toy = Toy(subwords=subwords, dim=dim)
    got, want = trained_with_adagrad(toy, build, begin)
    assert_close(got, want, dim)
    for sums, theirs, rows in zip(got[4:], want[4:], got[:2], strict=True):
        np.testing.assert_allclose(sums[:, :dim], theirs, rtol=1e-4, atol=1e-6)
        assert (sums[:, :dim] >= begin).all()
        assert not sums[:, dim:].any()
        assert not rows[:, dim:].any()


@builds
def test_train_words_with_adagrad_and_targets_steps_for_each_window(build):
    toy = Toy(words=20, tokens=30, subwords=0)
    toy.tokens[:] = -1
    toy.tokens[0::3], toy.tokens[1::3] = np.arange(10), np.arange(10, 20)  # sentences of two words
    at = np.flatnonzero(toy.tokens >= 0).astype(np.int32)
    rate = {"lr_start": 0.05, "lr_stop": 0.05}
    want, _ = trained_with_adagrad(toy, build, **rate)  # each word is in one window only
    rows = [kernels.padded(len(x), toy.dim) for x in (toy.inputs, toy.outputs) * 2]
    rows[0][:], rows[1][:] = toy.inputs, toy.outputs
    loss, count = kernels.load(build).train_words(
        *rows[:2], *toy.arguments()[2:], **SETTINGS | rate, eps=0.1, squares=tuple(rows[2:]),
        targets=(at, toy.tokens[at]),
    )  # fmt: skip
    assert (loss, count) == (pytest.approx(want[2]), want[3])
    for one, other in zip(rows, (*want[:2], *want[4:]), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_train_words_with_adagrad_leaves_what_has_no_gradient():
    toy = Toy(words=30, tokens=90)
    toy.outputs[:] = 0  # so that hidden vectors have no gradient in the first group
    toy.tokens = np.repeat(np.arange(30), 3).astype(np.int32)
    toy.tokens[1::3] = toy.tokens[2::3] = -1
    (inputs, outputs, loss, count, *squares), _ = trained_with_adagrad(toy, eps=1e-8)
    assert (loss, count) == (0, 0)
    assert not squares[0].any()
    assert not squares[1].any()
    np.testing.assert_array_equal(inputs, toy.inputs)
    assert not outputs.any()


@pytest.mark.parametrize(
    ("squares", "eps", "words"),
    [
        (((3, 20), None), 0.1, "squares must have the shapes"),
        ((None, (46, 64)), 0.1, "squares must have the shapes"),
        ((None, None), 0.0, "eps must be above 0"),
    ],
)
def test_train_words_with_squares_that_do_not_fit_is_refused(squares, eps, words):
    toy = Toy()
    shapes = [
        shape or (len(rows), 20)
        for shape, rows in zip(squares, (toy.inputs, toy.outputs), strict=True)
    ]
    given = tuple(kernels.padded(*shape) for shape in shapes)
    rows = tuple(kernels.padded(len(x), 20) for x in (toy.inputs, toy.outputs))
    with pytest.raises(ValueError, match=words):
        kernels.train_words(*rows, *toy.arguments()[2:], **SETTINGS, squares=given, eps=eps)


def test_train_words_one_group_follows_numeric_gradient():
    toy = Toy(words=12, tokens=12, dim=6, subwords=3, nce=True)
    toy.tokens[:] = np.random.default_rng(1).permutation(12)  # no word twice: one group
    toy.tokens[5] = -1
    rate = 1e-3
    _, outputs, loss, _ = toy.train(lr_start=rate, lr_stop=rate)
    first = next(twin.groups(toy.tokens, 5, toy.noise, 7, slots=True))
    bag = twin.bags(toy.bag_ptr, toy.bag_rows)

    def stated(a, b):
        return twin.group_loss(a, b, *first[1:], bag, toy.logit, 5)

    a = toy.inputs[:, :6].astype(float)
    b = toy.outputs[:, :6].astype(float)
    assert loss == pytest.approx(stated(a, b), rel=1e-5)
    for row, column in [(first[1][0][1][0], 2), (first[2][0], 0), (first[2][5], 5)]:
        up, down = b.copy(), b.copy()
        up[row, column] += 1e-5
        down[row, column] -= 1e-5
        slope = (stated(a, up) - stated(a, down)) / 2e-5
        assert outputs[row, column] - b[row, column] == pytest.approx(-rate * slope, abs=1e-6)
    # Inputs get the whole gradient of the hidden vector, not its share of the mean: with bags of
    # one row and one input word the two are the same.
    alone = Toy(words=12, tokens=14, dim=6, nce=True)
    alone.tokens[:] = -1
    alone.tokens[:2] = 3, 4
    got = alone.train(lr_start=rate, lr_stop=rate)[0]
    first = next(twin.groups(alone.tokens, 5, alone.noise, 7))

    def lone_loss(x):
        return twin.group_loss(x, b, *first[1:], lambda w: ([w], [1.0]), alone.logit, 5)

    a, b = alone.inputs[:, :6].astype(float), alone.outputs[:, :6].astype(float)
    for row, column in [(3, 0), (4, 5)]:
        up, down = a.copy(), a.copy()
        up[row, column] += 1e-5
        down[row, column] -= 1e-5
        slope = (lone_loss(up) - lone_loss(down)) / 2e-5
        assert got[row, column] - a[row, column] == pytest.approx(-rate * slope, abs=1e-6)


@pytest.mark.parametrize(
    "tokens",
    [[], [0], [-1], [-1, -1, 2, -1], [-1] * 40, [t for w in range(30) for t in (w, -1, -1)], None],
)
def test_train_words_no_context_changes_nothing(tokens):
    """With the ends of sentences between words, too, and where no word is a target (None)."""
    toy, none = Toy(), np.zeros(0, np.int32)
    toy.tokens = toy.tokens if tokens is None else np.array(tokens, np.int32)
    inputs, outputs, loss, count = toy.train(targets=(none, none) if tokens is None else None)
    assert (loss, count) == (0, 0)
    np.testing.assert_array_equal(inputs, toy.inputs)
    np.testing.assert_array_equal(outputs, toy.outputs)


def test_train_words_noise_only_the_target_has_no_negative():
    toy = Toy(words=1, tokens=50, extra=0)
    toy.tokens[:] = 0
    toy.noise = np.zeros(1, np.int32)
    got = toy.train()
    assert_close(got, toy.twin(), toy.dim)
    score = toy.inputs[0] @ toy.outputs[0]
    assert got[1][0] @ got[0][0] > score


def bursts(lines=2000):
    """A corpus of few words that come in bursts: 20 topics of 10 words, 20 tokens a line."""
    rng = np.random.default_rng(0)
    tokens = np.repeat(rng.integers(0, 20, lines), 20) * 10 + rng.integers(0, 10, lines * 20)
    tokens[::20] = -1
    return tokens.astype(np.int32)


@pytest.mark.parametrize("order", ORDERS)
def test_train_words_of_two_workers_on_one_table_learns(order):
    toy = Toy(words=200, dim=32)
    toy.tokens = tokens = bursts()
    toy.outputs[:] = 0
    before = toy.train(lr_start=0, lr_stop=0)
    _, _, dim, _, *rest = toy.arguments()

    def train(worker, first, last):
        changed = {"seed": first + worker, "lr_start": 0.015, "lr_stop": 0.015}
        kernels.train_words(
            toy.inputs, toy.outputs, dim, tokens[first:last], *rest, **SETTINGS | changed
        )

    both = [(0, len(tokens))] * 2
    train_pieces(train, (toy.inputs, toy.outputs), both, 20 * 100, ORDERS[order])
    after = toy.train(lr_start=0, lr_stop=0)
    assert after[3] == before[3]
    assert after[2] < 0.3 * before[2]


@pytest.mark.parametrize("tokens", [bursts(), (np.arange(40_000) // 4 * 7 % 200).astype(np.int32)])
def test_train_words_few_words_in_bursts_do_not_diverge(tokens):
    toy = Toy(words=200, dim=32)
    toy.tokens = tokens
    toy.outputs[:] = 0
    before = toy.train(lr_start=0, lr_stop=0)
    for seed in range(4):
        toy.inputs, toy.outputs, _, _ = toy.train(lr_stop=0.05, seed=seed)
    after = toy.train(lr_start=0, lr_stop=0)
    assert after[2] < 0.3 * before[2]


WRONG = {
    "tokens": lambda a: a.__setitem__(3, np.array([0, 40], np.int32)),
    "noise": lambda a: a.__setitem__(6, np.array([99], np.int32)),
    "empty": lambda a: a.__setitem__(6, np.zeros(0, np.int32)),
    "bag_rows": lambda a: a.__setitem__(5, np.full(40, 1000, np.int32)),
    "bag_ptr": lambda a: a.__setitem__(4, np.zeros(41, np.int64)),
    "noise_logit": lambda a: a.__setitem__(7, np.zeros(3, np.float32)),
    "dim": lambda a: a.__setitem__(2, 33),
    "stride": lambda a: a.__setitem__(0, np.zeros((90, 20), np.float32)),
}


@pytest.mark.parametrize("name", WRONG)
def test_train_words_array_that_does_not_fit_is_refused(name):
    toy = Toy()
    arguments = [toy.inputs, toy.outputs, *toy.arguments()[2:]]
    WRONG[name](arguments)
    with pytest.raises(ValueError, match="must"):
        kernels.train_words(*arguments, **SETTINGS)


@pytest.mark.parametrize(
    "changed",
    [{"window": 0}, {"window": 257}, {"reach_min": 0}, {"reach_min": 6}, {"negatives": 0}],
)
def test_train_words_setting_out_of_range_is_refused(changed):
    with pytest.raises(ValueError, match=r"must|negatives"):
        Toy().train(**changed)


@builds
def test_score_probe_error_is_within_what_is_stated(build):
    x = np.linspace(-40, 40, 200_001).astype(np.float32)
    sigmoid, loss = probes_of(build).score_probe(x)
    bounded = np.clip(x.astype(float), -30, 30)
    np.testing.assert_allclose(sigmoid, 1 / (1 + np.exp(-bounded)), atol=3e-7)
    np.testing.assert_allclose(loss, np.logaddexp(0, -bounded), atol=1e-6, rtol=3e-6)


# ---- row arithmetic ------------------------------------------------------------------------------


@builds
def test_row_helpers_equal_numpy(build):
    rng = np.random.default_rng(0)
    k = kernels.load(build)
    dim, new = 21, kernels.padded(9, 21)
    new[:, :dim] = rng.normal(size=(9, dim))
    out = rng.normal(size=(9, dim)).astype(np.float32)

    copy = kernels.padded(9, dim)
    copy[:] = 5
    k.copy_rows(out, copy)
    np.testing.assert_array_equal(copy[:, :dim], out)
    assert not copy[:, dim:].any()

    pointers, rows = np.array([0, 1, 4, 4]), np.array([2, 5, 5, 8], np.int32)
    means = np.empty((3, dim), np.float32)
    k.bag_means(new, pointers, rows, means)
    np.testing.assert_allclose(means[0], new[2, :dim])
    np.testing.assert_allclose(means[1], new[[5, 5, 8], :dim].mean(0), rtol=1e-5, atol=1e-6)
    assert not means[2].any()


def test_row_helpers_misfits_are_refused():
    rows, narrow = kernels.padded(4, 8), np.zeros((3, 8), np.float32)
    with pytest.raises(ValueError, match=r"0\.\.3"):
        kernels.bag_means(rows, np.array([0, 1]), np.array([4], np.int32), narrow[:1])
    with pytest.raises(ValueError, match="as many rows"):
        kernels.copy_rows(narrow, rows)


@pytest.mark.parametrize(("n", "dim"), [(0, 3), (1, 1), (5, 16), (7, 100), (20_000, 100)])
def test_padded_is_aligned_zero_and_writable(n, dim):
    rows = kernels.padded(n, dim)
    assert rows.shape == (n, -(-dim // 16) * 16)
    assert n == 0 or rows.ctypes.data % 64 == 0
    assert not rows.any()
    rows[:] = 1


@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="this kernel has no huge pages")
def test_padded_large_array_may_have_huge_pages():
    if "[never]" in HUGE_PAGES.read_text():
        pytest.skip("huge pages are switched off here")
    rows = kernels.padded(20_000, 100)
    address = rows.ctypes.data
    assert address % kernels.HUGE_PAGE == 0
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if "-" in name and not name.endswith(":"):
            begin, end = (int(x, 16) for x in name.split("-"))
            inside = begin <= address < end
        elif inside and name == "THPeligible:":
            assert rest == ["1"]  # 0 for shared memory, on most systems
            return
    pytest.fail("the mapping was not found")


# ---- choice of the build -------------------------------------------------------------------------


def test_builds_available_starts_with_the_chosen_and_ends_with_base():
    assert BUILDS[-1] == "base"
    assert kernels.BUILD in BUILDS
    assert "snailps.row_ops" in repr(kernels.row_ops())


def test_import_leaves_subnormal_numbers_alone():
    # -ffast-math at link time would make the whole process flush them to zero.
    assert np.float32(1e-40) * np.float32(0.5) > 0


def test_load_build_that_cannot_run_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(choice, "cpu_flags", lambda: frozenset({"sse2", "avx2", "fma"}))
    with pytest.raises(ConfigError, match="avx512f"):
        kernels.load("avx512")
    with pytest.raises(ConfigError, match="f16c"):
        kernels.load("avx2")
    with pytest.raises(ConfigError, match="expected one of"):
        kernels.load("sse5")


@pytest.mark.parametrize("step", [1, -1])  # a bag is the row of its own number, or is not
def test_train_words_bags_that_were_checked_train_alike(step):
    toy = Toy()
    toy.bag_rows = toy.bag_rows[::step].copy()
    bags = kernels.checked_bags(toy.bag_ptr, toy.bag_rows, len(toy.inputs))
    for got, want in zip(toy.train(bags=bags), toy.train(), strict=True):
        np.testing.assert_array_equal(got, want)


def test_train_words_without_logits_trains_as_with_zeros():
    toy, none = Toy(), Toy()
    none.logit = none.logit[:0]
    for got, want in zip(none.train(), toy.train(), strict=True):
        np.testing.assert_array_equal(got, want)


def test_train_words_bags_other_than_those_checked_are_checked():
    toy = Toy()
    bags = kernels.checked_bags(toy.bag_ptr, toy.bag_rows, len(toy.inputs))
    for place, wrong in (
        (4, np.zeros_like(toy.bag_ptr)),
        (5, np.full_like(toy.bag_rows, 1000)),
        (0, toy.inputs[:20]),  # fewer rows than they were checked for
    ):
        arguments = [toy.inputs, toy.outputs, *toy.arguments()[2:]]
        arguments[place] = wrong
        with pytest.raises(ValueError, match="bag_"):
            kernels.train_words(*arguments, **SETTINGS, bags=bags)


def test_checked_bags_that_are_wrong_are_refused():
    ptr, rows = np.array([0, 2, 3]), np.array([0, 4, 1], np.int32)
    kernels.checked_bags(ptr, rows, 5)
    kernels.checked_bags(np.zeros(1, np.int64), rows[:0], 0)  # of no words
    for wrong in ((ptr, rows, 4), (ptr, rows[:2], 5), (np.array([0, 2, 2]), rows, 5)):
        with pytest.raises(ValueError, match="bag_"):
            kernels.checked_bags(*wrong)
    with pytest.raises(ValueError, match="read-only"):
        ptr[1] = 9  # the kernels would write there
    with pytest.raises(ValueError, match="read-only"):
        rows[1] = 9
    with pytest.raises(TypeError, match="checked_bags"):
        kernels.CheckedBags()


@narrow_builds
@pytest.mark.parametrize("dim", [1, 17, 32, 100, 177])
@pytest.mark.parametrize("subwords", [0, 4])
def test_train_words_with_narrow_products_makes_the_same_steps(build, dim, subwords):
    toy = Toy(dim=dim, subwords=subwords)
    assert_rounded_alike(toy, build, dim)
