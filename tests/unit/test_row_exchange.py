"""kernels._row_exchange: what is pushed of kept rows, against its NumPy twin."""

from functools import partial

import numpy as np
import pytest
from cases import examples
from hypothesis import given
from hypothesis import strategies as st
from twins import row_exchange as twin

from snailps import kernels
from snailps.kernels._row_exchange import (
    QUIET_MAX,
    DriftEstimate,
    RowExchange,
    load_columns,
    merge_columns,
    move_changed,
    subtract_columns,
)
from snailps.models.local_sgd import RowLayout
from snailps.models.sparse.delta_shares import Shares
from snailps.models.sparse.fm import FmSettings
from snailps.models.sparse.linear import LinearSettings

ROWS = 40
EXAMPLES = 100
STEP, FACTOR_STEP = 0.4, 1.2
EVERY = np.arange(ROWS, dtype=np.int32)
KEYS = np.arange(ROWS, dtype=np.uint64) * np.uint64(977)


class Case:
    """Rows of a model that were trained for a while, here and in the twin."""

    def __init__(self, model, method, padded, seed, workers=8):
        self.rng, self.workers = np.random.default_rng(seed), workers
        if model == "plain":
            self.dim, parts = 5, 1
            self.estimate = DriftEstimate(1, self.dim, far=10.0)
            self.estimate.a_step = 0.3
            estimate = twin.Curvature(0.3, 10.0)
        else:
            own = {"optimizer": method, "lr": 0.1, "l2": 0.01}
            settings = FmSettings(factors=4, **own) if model == "fm" else LinearSettings(**own)
            self.dim = settings.dim if model == "fm" else 3
            parts = {"sgd": 1, "adagrad": 2, "ftrl": 3}[method]
            outputs = 1 if model == "fm" else self.dim
            self.estimate = Shares(settings, self.dim, outputs=outputs, eps=1e-6).estimate
            self.estimate.a_step, self.estimate.a_factor_step = STEP, FACTOR_STEP
            estimate = twin.SparseDrift(settings, self.dim, outputs, 1e-6, STEP, FACTOR_STEP)
        derive = None
        if method == "ftrl" and model != "plain":
            derive = self.derive = partial(
                kernels.ftrl_weights, outputs=self.dim, lr=0.1, l1=settings.l1, beta=1.0
            )
        self.layout = RowLayout.padded(self.dim, parts) if padded else RowLayout(
            self.dim, parts, self.dim
        )  # fmt: skip
        self.rows = self.layout.make(ROWS)
        self.kept = RowExchange(self.rows, self.dim, parts)
        start = np.abs(self.rng.normal(size=(ROWS, self.layout.width))).astype(np.float32)
        if derive is not None:
            derive(start)
        self.kept.load(EVERY, KEYS, start, 0.0)
        self.counts = self.rng.integers(0, 30, ROWS)
        self.kept.count(np.repeat(EVERY, self.counts), EXAMPLES, 0.75)
        self.twin = twin.RowExchange(start.copy(), start.copy(), estimate, derive, self.dim)

    def packed(self):
        out = np.zeros((ROWS, self.layout.width), np.float32)
        kernels.subtract_parts(self.rows, out, self.layout.dim, self.layout.parts)
        return out

    def train(self):
        """The same steps here and there; sums of squares only grow."""
        steps = np.abs(self.rng.normal(size=self.twin.rows.shape)).astype(np.float32)
        self.twin.rows += steps
        if self.twin.derive is not None:
            self.twin.derive(self.twin.rows)
        self.layout.load(self.twin.rows, self.rows)

    def send(self, now, since):
        keys, deltas = np.empty(ROWS, np.uint64), np.empty_like(self.twin.rows)
        places = self.rng.permutation(ROWS).astype(np.int32)
        given, at = self.kept.send(
            self.estimate, places, keys, deltas, workers=self.workers, now=now, giving=True
        )
        np.testing.assert_array_equal(keys, KEYS[places])
        whole = np.zeros_like(deltas)
        whole[places[at]] = given
        frequency = (self.counts / EXAMPLES).astype(np.float32)
        counts, base = frequency * np.float32(since), self.twin.base.copy()
        expected, given_up = self.twin.send(counts, np.minimum(frequency, 1), self.workers)
        base[places] += deltas  # equal to the bit: whether an answer brings a change is compared
        self.twin.base = base
        close = partial(np.testing.assert_allclose, rtol=2e-3, atol=2e-4)
        close(deltas, expected[places])
        close(whole, given_up)
        return places, given, at, given_up


def check_against_twin(case):
    now = 0.0
    for since in (30.0, 200.0, 1.0):
        case.train()
        now += since
        places, given, at, given_up = case.send(now, since)
        others = case.rng.normal(size=case.twin.base.shape).astype(np.float32)
        others[:, case.dim :] = np.abs(others[:, case.dim :])
        others[case.rng.random(ROWS) < 0.5] = 0
        answers = case.twin.base + others
        if case.twin.derive is not None:
            case.twin.derive(answers)
        case.kept.merge(case.estimate, places, answers[places], given, at)
        case.twin.merge(answers, given_up)
        np.testing.assert_allclose(case.packed(), case.twin.rows, rtol=5e-3, atol=2e-3)
        case.layout.load(case.twin.rows, case.rows)


@examples(10)
@given(st.integers(0, 1000), st.sampled_from([1, 2, 8]), st.booleans())
@pytest.mark.parametrize("method", ["sgd", "adagrad", "ftrl"])
@pytest.mark.parametrize("model", ["linear", "fm"])
def test_exchange_of_sparse_rows_equals_twin(model, method, seed, workers, padded):
    check_against_twin(Case(model, method, padded, seed, workers))


@examples(10)
@given(st.integers(0, 1000), st.sampled_from([1, 2, 8]))
def test_exchange_of_rows_without_state_equals_twin(seed, workers):
    check_against_twin(Case("plain", "sgd", True, seed, workers))


def test_expected_steps_of_others_are_not_pushed_and_the_answer_replaces_them():
    rows = np.zeros((3, 4), np.float32)
    estimate = DriftEstimate(1, 4, far=10.0)
    exchange = RowExchange(rows, 4, 1)
    places = np.arange(3, dtype=np.int32)
    exchange.load(places, KEYS[:3], np.ones((3, 4), np.float32), 0.0)
    rows += 8  # the steps of four workers
    assert exchange.since(places[:2], 12.0).tolist() == [12, 12]
    exchange.expect(places, np.array([0.75, 0.5, 0], np.float32), 12.0)
    keys, deltas = np.empty(3, np.uint64), np.empty((3, 4), np.float32)
    exchange.send(estimate, places, keys, deltas, workers=1, now=12.0, giving=False)
    assert deltas[:, 0].tolist() == [2, 4, 8]
    assert exchange.since(places, 13.0).tolist() == [1, 1, 1]
    rows += 1  # meanwhile
    answers = np.full((3, 4), 20, np.float32)
    exchange.merge(estimate, places, answers, deltas[:0], places[:0])
    assert (rows == 21).all()


def test_steps_of_others_are_expected_of_rows_without_state_that_have_bases():
    places, shares = np.arange(2, dtype=np.int32), np.ones(2, np.float32)
    with pytest.raises(ValueError, match="no bases"):
        RowExchange(np.zeros((2, 4), np.float32), 4, 1, bases=False).expect(places, shares, 0.0)
    for parts, given_shares in ((2, shares), (1, shares[:1])):
        exchange = RowExchange(np.zeros((2, 4 * parts), np.float32), 4, parts)
        with pytest.raises(ValueError, match="rows without state and a share"):
            exchange.expect(places, given_shares, 0.0)


@examples(10)
@given(st.integers(0, 1000), st.sampled_from([2, 8]), st.booleans())
@pytest.mark.parametrize("method", ["sgd", "adagrad", "ftrl"])
@pytest.mark.parametrize("model", ["linear", "fm"])
def test_deltas_of_copies_are_reduced_as_in_the_twin(model, method, seed, workers, padded):
    case = Case(model, method, padded, seed, workers)
    case.train()
    counts = case.counts.astype(np.float32)
    rows, found = case.packed(), case.twin.rows - case.twin.base
    expected, times = found.copy(), counts[:, None]
    own = case.twin.estimate.steps(rows, expected, times)
    others = np.maximum(times - 1, 0) / np.maximum(times, 1) * np.float32(workers - 1)
    case.twin.estimate.scale(rows, expected, twin.share_of_delta(own, own * others))
    case.estimate.scale(workers - 1, case.rows, found, counts)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4)


def kept_rows(n=4):
    rows = np.zeros((n, 1), np.float32)
    kept = RowExchange(rows, 1, 1)
    kept.load(EVERY[:n], KEYS[:n], rows.copy(), 0.0)
    estimate = DriftEstimate(1, 1, far=10.0)
    estimate.a_step = 0.1
    return rows, kept, estimate


def test_interval_is_drift_of_all_workers_or_least_own_steps():
    _, kept, estimate = kept_rows()
    kept.count(np.repeat(EVERY[:3], (100, 10, 1)), 100, 0.75)
    np.testing.assert_array_equal(kept.frequent(4, 5.0), [0, 1])
    intervals, last = kept.intervals(
        estimate, EVERY[:2], workers=4, drift=2.0, steps_min=3, now=0.0
    )
    np.testing.assert_allclose(intervals, [5, 50], rtol=1e-5)
    intervals, _ = kept.intervals(estimate, EVERY[:2], workers=4, drift=0.1, steps_min=3, now=0.0)
    np.testing.assert_allclose(intervals, [3, 30], rtol=1e-5)
    np.testing.assert_array_equal(last, [0, 0])


def test_interval_of_factors_is_their_drift_by_the_sums_of_all_steps_so_far():
    """.1 / 4 a step for each of two columns whose sums are 16: steps so far went 2 x .1 x 4."""
    rows = np.tile(np.float32([0, 0, 16, 16]), (2, 1))
    kept = RowExchange(rows, 2, 2)
    kept.load(EVERY[:2], KEYS[:2], rows.copy(), 0.0)
    estimate = DriftEstimate(2, 2, far=10.0)
    estimate.a_factor_step = 0.1
    kept.count(np.repeat(EVERY[:2], (100, 1)), 100, 0.75)
    asked = {"workers": 4, "drift": 3.0, "steps_min": 0.5, "now": 400.0}
    intervals, _ = kept.intervals(estimate, EVERY[:2], **asked, factor_drift=0.2)
    np.testing.assert_allclose(intervals, [100, 100], rtol=1e-5)
    intervals, _ = kept.intervals(estimate, EVERY[:2], **asked, factor_drift=1e-9)
    np.testing.assert_allclose(intervals, [0.5, 50], rtol=1e-5)
    intervals, _ = kept.intervals(estimate, EVERY[:2], **asked)
    assert intervals.min() > 1e8


def test_counts_of_earlier_blocks_weigh_less():
    _, kept, _ = kept_rows()
    for _ in range(300):  # so many that weights grow beyond their bound
        kept.count(EVERY[:1], 2, 0.75)
    assert kept.examples == pytest.approx(8)
    np.testing.assert_allclose(kept.counted(EVERY[:2]), [4, 0], rtol=1e-4)
    kept.count(EVERY[1:2], 2, 0.75, np.float32([0.5]))
    np.testing.assert_allclose(kept.counted(EVERY[:2]), [3, 0.5], rtol=1e-4)


@pytest.mark.parametrize(("steps", "own"), [(10, {}), (1, {"others_least": 1.0})], ids=str)
def test_steps_of_adagrad_at_many_workers_add_up_to_those_of_one(steps, own):
    """Steps of gradient 1 at each of 8 workers, from nothing: as far as all in turns."""
    rows = np.zeros((1, 2), np.float32)
    kept = RowExchange(rows, 1, 2)
    kept.load(EVERY[:1], KEYS[:1], rows.copy(), 0.0)
    estimate = DriftEstimate(2, 1, outputs=1, far=10.0, **own)
    estimate.a_step = 1e-6  # flat: shares are 1
    kept.count(np.repeat(EVERY[:1], steps), 100, 0.75)
    rows[0] = 2 * np.sqrt(steps), steps
    keys, deltas = np.zeros(1, np.uint64), np.zeros((1, 2), np.float32)
    kept.send(estimate, EVERY[:1], keys, deltas, workers=8, now=100.0, giving=True)
    assert 8 * deltas[0, 0] == pytest.approx(2 * np.sqrt(8 * steps), rel=0.06)
    assert deltas[0, 1] == steps
    np.testing.assert_allclose(rows, deltas, rtol=1e-4)  # nothing is left to be pushed


@pytest.mark.parametrize("before", [0, 10**9 + 35, (1 << 32) - 20, 10**10 + 606])
def test_share_of_a_delta_is_the_same_after_so_many_examples(before):
    rows = np.zeros((1, 1), np.float32)
    kept, estimate = RowExchange(rows, 1, 1), DriftEstimate(1, 1, outputs=1, far=10.0)
    estimate.a_step = 0.05
    kept.load(EVERY[:1], KEYS[:1], rows.copy(), before)
    kept.count(np.zeros(100, np.int32), 100, 0.75)
    rows += 1
    keys, deltas = np.zeros(1, np.uint64), np.zeros((1, 1), np.float32)
    kept.send(estimate, EVERY[:1], keys, deltas, workers=8, now=before + 50, giving=False)
    assert deltas[0, 0] == pytest.approx(0.1388349, rel=1e-5)  # of 50 steps
    wanted = {"workers": 8, "drift": 3.0, "steps_min": 4, "now": before + 70}
    assert kept.intervals(estimate, EVERY[:1], **wanted)[1] == before + 50


def sent(kept, estimate, places):
    n = len(places)
    arrays = np.zeros(n, np.uint64), np.zeros((n, 1), np.float32)
    kept.send(estimate, places, *arrays, workers=2, now=1.0, giving=True)


def test_row_is_stale_from_a_push_without_an_answer_until_it_is_asked_for():
    _, kept, estimate = kept_rows()
    assert [len(array) for array in kept.stale(EVERY[:4])] == [0, 0]
    sent(kept, estimate, EVERY[1:4])
    kept.asked(EVERY[3:4])
    places, keys = kept.stale(EVERY[:4])
    np.testing.assert_array_equal(places, [1, 2])
    np.testing.assert_array_equal(keys, KEYS[1:3])
    assert len(kept.stale(EVERY[:4])[0]) == 0


def merged(kept, estimate, rows, places):
    """Answers by which nothing was changed."""
    nothing, none = np.zeros((0, 1), np.float32), np.zeros(0, np.int32)
    kept.merge(estimate, places, rows[places], nothing, none)


def stale_of_uses(rows, kept, estimate, uses):
    """Which rows were stale at each use, and were pulled as they are."""
    pulled = []
    for _ in range(uses):
        sent(kept, estimate, EVERY[: len(rows)])
        stale, _ = kept.stale(EVERY[: len(rows)])
        pulled.append(stale)
        if len(stale):
            merged(kept, estimate, rows, stale)
    return pulled


def test_row_that_comes_back_as_expected_is_stale_more_and_more_rarely():
    pulled = np.flatnonzero([len(stale) for stale in stale_of_uses(*kept_rows(1), 40)])
    assert np.diff(pulled)[-1] == 1 << QUIET_MAX
    assert len(pulled) < 10


def test_quiet_rows_are_stale_in_turns_and_each_of_them_within_eight_uses():
    """With the number of the round one used in each fourth round was stale always, or never."""
    pulled = stale_of_uses(*kept_rows(16), 60)
    often = np.bincount(np.concatenate(pulled[-16:]), minlength=16)
    np.testing.assert_array_equal(often, 2)
    assert max(len(one) for one in pulled[-16:]) < 16


def test_quiet_row_is_stale_at_once_for_a_worker_that_is_left_alone():
    rows, kept, estimate = kept_rows(1)
    stale_of_uses(rows, kept, estimate, 20)
    merged(kept, estimate, rows, EVERY[:1])
    sent(kept, estimate, EVERY[:1])
    assert len(kept.stale(EVERY[:1])[0]) == 0
    assert len(kept.stale(EVERY[:1], quiet_too=True)[0]) == 1


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("parts", [1, 3])
def test_rows_without_bases_are_subtracted_from_and_get_themselves_as_bases(padded, parts):
    rng = np.random.default_rng(4)
    layout = RowLayout.padded(5, parts) if padded else RowLayout(5, parts, 5)
    rows = layout.make(ROWS)
    kept = RowExchange(rows, 5, parts, bases=False)
    start, trained = rng.normal(size=(2, ROWS, 5 * parts)).astype(np.float32)
    kept.load(EVERY, KEYS, start, 0.0)
    layout.load(trained, rows)
    places = rng.permutation(ROWS)[:25].astype(np.int32)
    np.testing.assert_array_equal(kept.keys(places), KEYS[places])
    deltas = start[places].copy()
    kept.subtract(places, deltas)
    np.testing.assert_array_equal(deltas, trained[places] - start[places])
    estimate = DriftEstimate(1, 5, far=10.0) if parts == 1 else DriftEstimate(4, 5, far=1.0)
    with pytest.raises(ValueError, match="no bases"):
        kept.send(estimate, places, KEYS[:25], deltas, workers=1, now=1.0, giving=False)
    with pytest.raises(ValueError, match="no bases"):
        kept.merge(estimate, places, deltas, deltas[:0], places[:0])
    layout.load(start, rows)
    kept.keep_bases(ROWS)
    assert kept.stale(places)[0].tolist() == places.tolist()
    layout.load(trained, rows)
    keys, sent = np.empty(25, np.uint64), np.empty_like(deltas)
    kept.send(estimate, places, keys, sent, workers=1, now=1.0, giving=False)
    np.testing.assert_array_equal(keys, KEYS[places])
    np.testing.assert_array_equal(sent, deltas)


@pytest.mark.parametrize(("places", "width"), [([4], 1), ([-1], 1), ([0, 1], 1), ([0], 2)], ids=str)
def test_places_out_of_range_and_arrays_that_do_not_fit_are_refused(places, width):
    _, kept, estimate = kept_rows()
    places = np.array(places, np.int32)
    keys, deltas = np.zeros(1, np.uint64), np.zeros((1, width), np.float32)
    with pytest.raises(ValueError, match="must"):
        kept.send(estimate, places, keys, deltas, workers=2, now=1.0, giving=False)
    with pytest.raises(ValueError, match="must"):
        kept.merge(estimate, places, deltas, deltas[:0], places[:0])
    with pytest.raises(ValueError, match="must"):
        kept.subtract(places, deltas)


def test_motion_of_other_rows_is_refused():
    _, kept, _ = kept_rows()
    with pytest.raises(ValueError, match="the estimate is of 3 parts of 1"):
        kept.intervals(
            DriftEstimate(4, 1, far=1.0), EVERY[:1], workers=2, drift=1.0, steps_min=1, now=0.0
        )
    with pytest.raises(ValueError, match="method must be"):
        DriftEstimate(3, 1, far=1.0)


@pytest.mark.parametrize("at", [[1, 0], [1, 1], [-1, 0], [0, 3]], ids=str)
def test_what_was_given_up_is_refused_unless_its_places_rise(at):
    """Later ones were ignored."""
    rows, kept, estimate = kept_rows(3)
    given = np.ones((2, 1), np.float32)
    with pytest.raises(ValueError, match="given_at must rise"):
        kept.merge(estimate, EVERY[:3], rows.copy(), given, np.array(at, np.int32))
    kept.merge(estimate, EVERY[:3], rows.copy(), given, np.array([0, 2], np.int32))
    np.testing.assert_array_equal(rows, [[-1], [0], [-1]])


# --- rows that count no steps ---------------------------------------------------------------------


@pytest.mark.parametrize("with_shares", [True, False])
def test_columns_of_rows_travel_as_by_numpy(with_shares):
    rng = np.random.default_rng(1)
    rows, bases = rng.random((50, 8), np.float32), rng.random((50, 10), np.float32)
    places = rng.permutation(50)[:30]
    shares = rng.random(30, np.float32) if with_shares else None
    now, before = rows[places, :5].copy(), bases.copy()
    packed = np.zeros((30, 10), np.float32)
    subtract_columns(rows, places, packed, 5, 5, bases, shares)
    wanted = (now - before[places, 5:]) * (1 if shares is None else shares[:, None])
    np.testing.assert_array_equal(packed[:, 5:], wanted)
    assert not packed[:, :5].any()
    before[places, 5:] = now
    np.testing.assert_array_equal(bases, before)
    rows += 1  # trained while they were on their way
    answer = rng.random((30, 10), np.float32)
    expected = rows[places, :5] + (answer[:, 5:] - before[places, 5:])
    merge_columns(rows, places, bases, answer, 5, 5)
    np.testing.assert_array_equal(rows[places, :5], expected)
    np.testing.assert_array_equal(bases[places, 5:], answer[:, 5:])
    others = np.setdiff1d(np.arange(50), places)
    np.testing.assert_array_equal(bases[others], before[others])
    load_columns(rows, places, answer, 0, 5)
    np.testing.assert_array_equal(rows[places, :5], answer[:, :5])
    subtract_columns(rows, places, answer, 0, 5)  # without bases: less what is there
    assert not answer[:, :5].any()


@pytest.mark.parametrize(
    ("places", "first", "dim"),
    [([0, 5], 0, 4), ([-1, 0], 0, 4), ([0, 1], 5, 4), ([0, 1], -1, 4), ([0], 0, 4), ([0, 1], 0, 7)],
)
def test_columns_that_do_not_fit_are_refused(places, first, dim):
    rows, bases = np.zeros((5, 6), np.float32), np.zeros((5, 8), np.float32)
    packed, at = np.zeros((2, 8), np.float32), np.array(places)
    with pytest.raises(ValueError, match=r"places must lie in|packed rows"):
        load_columns(rows, at, packed, first, dim)
    with pytest.raises(ValueError, match=r"places must lie in|packed rows"):
        subtract_columns(rows, at, packed, first, dim, bases)
    with pytest.raises(ValueError, match=r"places must lie in|packed rows"):
        merge_columns(rows, at, bases, packed, first, dim)


def test_bases_and_shares_that_do_not_fit_are_refused():
    rows, packed, at = np.zeros((5, 6), np.float32), np.zeros((2, 8), np.float32), np.arange(2)
    with pytest.raises(ValueError, match=r"expected bases of \(5, 8\)"):
        subtract_columns(rows, at, packed, 0, 4, np.zeros((4, 8), np.float32))
    with pytest.raises(ValueError, match=r"expected bases of \(5, 8\)"):
        merge_columns(rows, at, np.zeros((5, 7), np.float32), packed, 0, 4)
    with pytest.raises(ValueError, match="expected 2 shares, got 3"):
        subtract_columns(
            rows, at, packed, 0, 4, np.zeros((5, 8), np.float32), np.ones(3, np.float32)
        )


def test_changed_rows_move_to_the_front_in_their_order() -> None:
    rng = np.random.default_rng(1)
    for kept in (0.0, 0.3, 1.0):
        deltas = np.zeros((40, 5), np.float32)
        some = np.flatnonzero(rng.random(40) < kept)
        deltas[some, rng.integers(0, 5, len(some))] = rng.normal(size=len(some))
        deltas[some[:1], 4] = np.nan
        before = deltas.copy()
        places = move_changed(deltas)
        np.testing.assert_array_equal(places, some)
        np.testing.assert_array_equal(deltas[: len(some)], before[some])
