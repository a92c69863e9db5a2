"""kernels.sort_pairs and train_pairs against their NumPy twins, in every build."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow import assert_rounded_alike, narrow_builds
from twins import kernels as twin
from workers_in_order import ORDERS, train_pieces

from snailps import kernels

BUILDS = kernels.builds_available()
builds = pytest.mark.parametrize("build", BUILDS)
SETTINGS = {"negatives": 5, "lr_start": 0.05, "lr_stop": 0.01, "seed": 7}


def text(words=40, tokens=300, ends=0.06, seed=3):
    """A text whose low numbers are frequent."""
    rng = np.random.default_rng(seed)
    made = (words * rng.random(tokens) ** 2).astype(np.int32)
    made[rng.random(tokens) < ends] = -1
    return made


def bundles_of(sorted_pairs):
    """Lists of (centre, contexts) for each output partition."""
    return [listed(*sorted_pairs.take(part)) for part in range(len(sorted_pairs.pairs))]


def listed(centres, starts, contexts):
    """(centre, contexts) of each bundle."""
    ends = zip(centres, pairwise(starts), strict=True)
    return [(int(centre), contexts[a:b].tolist()) for centre, (a, b) in ends]


def pairs_of(bundles):
    """How often each pair occurs."""
    return Counter((centre, context) for centre, around in bundles for context in around)


# ---- sorting -------------------------------------------------------------------------------------


@builds
@settings(max_examples=40, deadline=None)
@given(
    words=st.integers(1, 30),
    tokens=st.integers(0, 90),
    ends=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    window=st.integers(1, 20),
    most=st.integers(1, 20),
    run=st.integers(1, 9),
    workers=st.integers(1, 3),
    parts=st.integers(1, 5),
    seed=st.integers(0, 2**64 - 1),
)
def test_sort_pairs_any_text_equals_twin(
    build, words, tokens, ends, window, most, run, workers, parts, seed
):
    made = text(words, tokens, ends, seed % 1000)
    rng = np.random.default_rng(seed % 999)
    parted = {
        "inputs": rng.integers(0, workers, words),
        "part": int(rng.integers(0, workers)),
        "outputs": rng.integers(0, parts, words),
        "parts": parts,
    }
    some = parted | {
        "without": rng.permutation(parts)[: (parts > 1) * rng.integers(0, parts + 1)].tolist()
    }
    for more in ({}, parted, some):
        more |= {"run": run, "reach_min": 1 + seed % window}
        pairs = kernels.load(build).sort_pairs(made, window, seed, most, **more)
        got = bundles_of(pairs)
        assert got == twin.sort_pairs(made, window, seed, most, **more)
        counted = Counter(centre for bundles in got for centre, _ in bundles)
        assert pairs.bundles.tolist() == [counted[word] for word in pairs.words.tolist()]


@builds
def test_sort_pairs_are_those_of_the_text(build):
    made = text(tokens=2000)
    pairs = kernels.load(build).sort_pairs(made, 5, 11)
    wanted = Counter(
        (centre, context) for centre, around in twin.windows(made, 5, 11) for context in around
    )
    assert pairs.pairs.tolist() == [wanted.total()]
    assert pairs_of(bundles_of(pairs)[0]) == wanted
    taken = kernels.load(build).sort_pairs(made, 5, 11).take(0)
    assert tuple(array.dtype for array in taken) == (np.int32, np.int64, np.int32)


@builds
@pytest.mark.parametrize("kind", [np.uint16, np.uint8, np.int64])
def test_sort_pairs_of_all_parts_are_disjoint_and_whole(build, kind):
    rng = np.random.default_rng(1)
    made = text(tokens=3000)
    inputs, outputs = rng.integers(0, 4, 40).astype(kind), rng.integers(0, 8, 40).astype(kind)
    whole = pairs_of(bundles_of(kernels.sort_pairs(made, 5, 3))[0])
    found = Counter()
    for part in range(4):
        sorted_pairs = kernels.load(build).sort_pairs(
            made, 5, 3, inputs=inputs, part=part, outputs=outputs, parts=8
        )
        for number, bundles in enumerate(bundles_of(sorted_pairs)):
            assert all(inputs[centre] == part for centre, _ in bundles)
            assert all(outputs[word] == number for _, around in bundles for word in around)
            found += pairs_of(bundles)
    assert found == whole


def near_in_spans(made, inputs, part, window, span):
    """As `near` finds them of a text that is read some tokens at a time."""
    found, begin = [], 0
    for last in [*range(span, len(made), span), len(made)]:
        first = max(0, begin - window)
        found.append(
            kernels.near(
                made[first:last], inputs, part, window,
                first=first, skip=begin - first, last=last == len(made),
            )
        )  # fmt: skip
        begin = max(begin, last - window)
    return (np.concatenate(some) for some in zip(*found, strict=True))


@builds
@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(0, 200),
    ends=st.sampled_from([0.0, 0.1, 0.5]),
    window=st.integers(1, 12),
    workers=st.integers(1, 30),
    span=st.integers(1, 90),
    seed=st.integers(0, 2**64 - 1),
)
def test_sort_pairs_of_what_is_near_a_part_are_those_of_the_text(
    build, tokens, ends, window, workers, span, seed
):
    made, rng = text(30, tokens, ends, seed % 1000), np.random.default_rng(seed % 999)
    more = {
        "inputs": rng.integers(0, workers, 30), "part": int(rng.integers(0, workers)),
        "outputs": rng.integers(0, 3, 30), "parts": 3, "run": 2,
    }  # fmt: skip
    few, origins = near_in_spans(made, more["inputs"], more["part"], window, span)
    assert len(few) <= len(made) + len(made) // span + 1
    kept = few >= 0
    np.testing.assert_array_equal(few[kept], made[origins[kept]])
    own = np.flatnonzero((made >= 0) & (more["inputs"][made] == more["part"]))
    far = [at for at in range(len(made)) if not (abs(own - at) <= window).any()]
    assert not set(far) & set(origins[kept].tolist())
    whole = kernels.load(build).sort_pairs(made, window, seed, 5, **more)
    same = kernels.load(build).sort_pairs(few, window, seed, 5, origins=origins, **more)
    assert bundles_of(same) == bundles_of(whole)
    assert same.bundles.tolist() == whole.bundles.tolist()


def test_near_refuses_what_does_not_fit():
    tokens, inputs = np.array([0, 1], np.int32), np.zeros(2, np.uint16)
    for words, more in (
        ("window must be 1 to", {"window": 0}),
        ("tokens must lie in -1..0", {"inputs": inputs[:1]}),
        ("skip must be 0 to 2, got 3", {"skip": 3}), ("places must be below", {"first": 2**31 - 1}),
    ):  # fmt: skip
        asked = {"inputs": inputs, "part": 0, "window": 2} | more
        with pytest.raises(ValueError, match=words):
            kernels.near(tokens, **asked)
    with pytest.raises(ValueError, match="origins must be 2, got 1"):
        kernels.sort_pairs(tokens, 2, 1, origins=tokens[:1])


def test_sort_pairs_tells_how_many_pairs_a_part_has_that_is_left_out():
    made, outputs = text(tokens=3000), np.arange(40) % 4
    whole = kernels.sort_pairs(made, 5, 3, outputs=outputs, parts=4)
    rest = kernels.sort_pairs(made, 5, 3, outputs=outputs, parts=4, without=[3, 0])
    bundles = bundles_of(whole)
    counts = [pairs_of(one).total() for one in bundles]
    assert whole.pairs.tolist() == rest.pairs.tolist() == counts
    assert bundles_of(rest) == [[], bundles[1], bundles[2], []]


@builds
@pytest.mark.parametrize("most", [1, 2, 6, 12, 1000])
def test_sort_pairs_bundles_are_as_few_and_as_equal_as_can_be(build, most):
    made = text(tokens=3000)
    [bundles] = bundles_of(kernels.load(build).sort_pairs(made, 5, 3, most))
    sizes = {}
    for centre, around in bundles:
        sizes.setdefault(centre, []).append(len(around))
    for of in sizes.values():
        assert len(of) == -(-sum(of) // most)
        assert max(of) <= most
        assert max(of) - min(of) <= 1
        assert min(of) >= 1


def test_sort_pairs_order_and_windows_follow_the_seed():
    made = text(tokens=2000)
    one, same, other = (bundles_of(kernels.sort_pairs(made, 5, seed))[0] for seed in (3, 3, 4))
    assert one == same
    assert pairs_of(one) != pairs_of(other)
    centres = [centre for centre, _ in one]
    assert (np.diff(centres) < 0).mean() > 0.3  # not sorted by word


def test_sort_pairs_of_whole_windows_are_all_within_reach():
    made = np.arange(40, dtype=np.int32)
    pairs = pairs_of(bundles_of(kernels.sort_pairs(made, 4, 5, reach_min=4))[0])
    assert set(pairs) == {(a, b) for a in range(40) for b in range(40) if 0 < abs(a - b) <= 4}


def test_sort_pairs_reach_is_uniform():
    made = np.arange(60_000, dtype=np.int32) % 1000
    centres, starts, _ = kernels.sort_pairs(made, 4, 5, most=1 << 20).take(0)
    assert len(centres) == 1000
    assert starts[-1] / len(made) == pytest.approx(5, abs=0.03)
    alone = np.full(90_000, -1, np.int32)
    alone[::9] = 1
    alone[1::9], alone[2::9], alone[3::9], alone[4::9] = 2, 3, 4, 5
    [bundles] = bundles_of(kernels.sort_pairs(alone, 4, 5, most=1 << 20))
    counts = Counter(dict(bundles)[1])
    for word, share in ((2, 1), (3, 0.75), (4, 0.5), (5, 0.25)):
        assert counts[word] / 10_000 == pytest.approx(share, abs=0.02)


@builds
@pytest.mark.parametrize("tokens", [[], [0], [-1], [-1, -1, 2, -1], [-1] * 40, [0, -1] * 9])
def test_sort_pairs_without_context_are_none(build, tokens):
    made = np.array(tokens, np.int32)
    for more in ({}, {"inputs": np.zeros(3, int), "outputs": np.zeros(3, int), "parts": 7}):
        pairs = kernels.load(build).sort_pairs(made, 5, 1, **more)
        assert pairs.pairs.tolist() == [0] * more.get("parts", 1)
        assert not pairs.bundles.any()
        for part in range(len(pairs.pairs)):
            centres, starts, contexts = pairs.take(part)
            assert (len(centres), starts.tolist(), len(contexts)) == (0, [0], 0)


def test_sort_pairs_of_no_words_at_all():
    none = np.zeros(0, np.uint16)
    made = np.full(3, -1, np.int32)
    pairs = kernels.sort_pairs(made, 5, 1, inputs=none, outputs=none, parts=2)
    assert bundles_of(pairs) == [[], []]
    assert len(pairs.words) == len(pairs.bundles) == 0


def test_sort_pairs_centres_that_are_nobodys_are_left_out():
    assert bundles_of(kernels.sort_pairs(text(), 5, 1, inputs=np.full(40, 3), part=2)) == [[]]


def test_sorted_pairs_of_a_part_are_taken_once():
    pairs = kernels.sort_pairs(text(), 5, 1, outputs=np.arange(40) % 4, parts=4)
    assert len(pairs.take(2)[0])
    with pytest.raises(ValueError, match="part 2 has been taken"):
        pairs.take(2)
    for part in (-1, 4):
        with pytest.raises(ValueError, match=rf"part must lie in 0\.\.3, got {part}"):
            pairs.take(part)
    with pytest.raises(TypeError, match="sort_pairs"):
        type(pairs)()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"window": 0}, "window must be 1 to"),
        ({"window": 257}, "window must be 1 to"),
        ({"reach_min": 6}, r"reach_min must be 1 to window \(5\)"),
        ({"most": 0}, "most must be 1"),
        ({"run": 0}, "run must be 1 to 1024"),
        ({"parts": 0}, "parts must be 1"),
        ({"parts": 2}, "outputs must have the part"),
        ({"inputs": np.zeros(39, int)}, r"tokens must lie in -1\.\.38"),
        ({"inputs": np.zeros(40, int), "outputs": np.zeros(41, int)}, "a part for each of 40"),
        ({"inputs": np.zeros(40)}, "whole numbers"),
        ({"inputs": np.zeros((40, 1), int)}, "whole numbers"),
        ({"inputs": np.full(40, -1)}, r"0\.\.65535"),
        ({"outputs": np.full(40, 4), "parts": 4}, r"0\.\.3"),
        ({"without": [0]}, "without must be empty"),
        (
            {"outputs": np.zeros(40, int), "parts": 4, "without": [1, 4]},
            r"without must lie in 0\.\.3",
        ),
    ],
)
def test_sort_pairs_argument_that_does_not_fit_is_refused(changed, words):
    given = {"window": 5, "most": 12} | changed
    made = text()
    made[0] = 39
    with pytest.raises(ValueError, match=words):
        kernels.sort_pairs(made, given.pop("window"), 1, **given)


@pytest.mark.parametrize("tokens", [[0, -2], [5, -5]])
def test_sort_pairs_token_below_minus_one_is_refused(tokens):
    with pytest.raises(ValueError, match="tokens must lie"):
        kernels.sort_pairs(np.array(tokens, np.int32), 5, 1)


# ---- training ------------------------------------------------------------------------------------


class Toy:
    """Small random arrays and sorted pairs for one training call."""

    def __init__(self, words=40, tokens=300, dim=20, subwords=0, extra=6, seed=3, nce=False,
                 most=12, run=1, window=5):  # fmt: skip
        rng = np.random.default_rng(seed)
        self.dim = dim
        self.inputs = kernels.padded(words + 50, dim)
        self.inputs[:, :dim] = rng.uniform(-0.5, 0.5, (words + 50, dim))
        self.outputs = kernels.padded(words + extra, dim)
        self.outputs[:, :dim] = rng.uniform(-0.5, 0.5, (words + extra, dim))
        made = text(words, tokens, seed=seed)
        self.pairs = kernels.sort_pairs(made, window, seed, most, run=run).take(0)
        sizes = rng.integers(0, subwords + 1, words)
        self.bag_ptr = np.concatenate([[0], np.cumsum(sizes + 1)]).astype(np.int64)
        self.bag_rows = np.concatenate(
            [[w, *rng.integers(words, words + 50, n)] for w, n in enumerate(sizes)]
        ).astype(np.int32)
        self.noise = rng.integers(0, words + extra, 500).astype(np.int32)
        self.logit = np.zeros(words + extra, np.float32)
        if nce:
            self.logit[:] = rng.uniform(-3, 0, words + extra)

    def bundles(self):
        return listed(*self.pairs)

    def rest(self):
        return self.bag_ptr, self.bag_rows, self.noise, self.logit

    def copies(self, begin=None):
        made = []
        for rows in (self.inputs, self.outputs):
            copy = kernels.padded(len(rows), self.dim)
            copy[:] = rows
            if begin is not None:
                copy[:] = 0
                copy[:, : self.dim] = begin
            made.append(copy)
        return made

    def train(self, build=kernels.BUILD, pairs=None, **changed):
        """(inputs, outputs, loss, pairs) after one call on copies."""
        inputs, outputs = self.copies()
        loss, count = kernels.load(build).train_pairs(
            inputs, outputs, self.dim, *(pairs or self.pairs), *self.rest(), **SETTINGS | changed
        )
        return inputs, outputs, loss, count

    def twin(self, **changed):
        given = (self.inputs, self.outputs, self.dim, self.bundles(), *self.rest())
        return twin.train_pairs(*given, **SETTINGS | changed)


def assert_close(got, want, dim):
    np.testing.assert_allclose(got[0][:, :dim], want[0], atol=2e-5)
    np.testing.assert_allclose(got[1][:, :dim], want[1], atol=2e-5)
    assert got[2] == pytest.approx(want[2], rel=1e-5)
    assert got[3] == want[3]


@builds
@pytest.mark.parametrize("run", [1, 8])
@pytest.mark.parametrize(("subwords", "nce"), [(0, False), (0, True), (6, False), (6, True)])
def test_train_pairs_one_thread_equals_twin(build, subwords, nce, run):
    toy = Toy(tokens=800, most=4, run=run, subwords=subwords, nce=nce)
    assert_close(toy.train(build), toy.twin(), toy.dim)


@builds
@pytest.mark.parametrize("squares", [False, True])
def test_train_pairs_with_weights_equals_twin(build, squares):
    toy = Toy(tokens=800, most=4, run=8, subwords=6)
    weights = np.random.default_rng(8).integers(1, 5, len(toy.bag_rows)).astype(np.float32)
    changed = {"weights": weights}
    if squares:
        changed |= {"squares": tuple(toy.copies(0.0)), "eps": 0.1}
    want = toy.twin(**changed)
    assert_close(toy.train(build, **changed), want, toy.dim)
    assert want[2] != pytest.approx(toy.twin()[2], rel=1e-3)  # weights do count


@builds
@settings(max_examples=25, deadline=None)
@given(
    words=st.integers(1, 30),
    tokens=st.integers(0, 80),
    dim=st.integers(1, 70),
    window=st.integers(1, 20),
    most=st.integers(1, 40),
    run=st.integers(1, 6),
    negatives=st.integers(1, 20),
    subwords=st.integers(0, 4),
    lanes=st.integers(1, 16),
    seed=st.integers(0, 2**64 - 1),
)
def test_train_pairs_any_shape_equals_twin(
    build, words, tokens, dim, window, most, run, negatives, subwords, lanes, seed
):
    toy = Toy(words, tokens, dim, subwords, seed=seed % 1000, most=most, run=run, window=window)
    # A low rate: with one word in every place the vectors would explode, and rounding with them.
    changed = {"negatives": negatives, "seed": seed, "lr_start": 2e-3, "lr_stop": 1e-3}
    changed["lanes"] = lanes
    assert_close(toy.train(build, **changed), toy.twin(**changed), dim)


@builds
@pytest.mark.parametrize("subwords", [0, 6])
@pytest.mark.parametrize(("dim", "begin"), [(20, 0.0), (32, 0.5), (101, 0.0)])
def test_train_pairs_with_adagrad_equals_twin(build, subwords, dim, begin):
    toy = Toy(subwords=subwords, dim=dim)
    squares = tuple(toy.copies(begin))
    want = toy.twin(squares=squares, eps=0.1)
    got = toy.train(build, squares=squares, eps=0.1)
    assert_close(got, want, dim)
    for sums, theirs, rows in zip(squares, want[4:], got[:2], strict=True):
        np.testing.assert_allclose(sums[:, :dim], theirs, rtol=1e-4, atol=1e-6)
        assert not sums[:, dim:].any()
        assert not rows[:, dim:].any()


@builds
@pytest.mark.parametrize("around", [[1] * 12, [1, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 1, 2, 3, 4],
                                    [1, 2, 3, 1], list(range(40)), [5]])  # fmt: skip
def test_train_pairs_contexts_that_repeat_in_a_bundle_step_in_turn(build, around):
    toy = Toy()
    bundles = [(0, around), (3, around), (0, around[::-1])]
    toy.pairs = (
        np.array([centre for centre, _ in bundles], np.int32),
        np.cumsum([0, *(len(around) for _, around in bundles)]),
        np.concatenate([around for _, around in bundles]).astype(np.int32),
    )
    assert_close(toy.train(build), toy.twin(), toy.dim)


def test_train_pairs_one_group_follows_numeric_gradient():
    toy = Toy(words=12, dim=6, nce=True)
    centres = np.arange(12, dtype=np.int32)
    around = np.random.default_rng(2).permutation(18).astype(np.int32)  # each row met once
    toy.pairs = centres, np.array([0, 4, *range(5, 16)]), around[:15]
    rate = 1e-3
    inputs, outputs, loss, _ = toy.train(lr_start=rate, lr_stop=rate)
    shared = twin.draw_noise(toy.noise, 7, 0, twin.SHARED)
    a, b = toy.inputs[:, :6].astype(float), toy.outputs[:, :6].astype(float)

    def stated(a, b):
        return twin.pairs_loss(a, b, toy.bundles(), shared, lambda w: [w], toy.logit, 5)

    # A context's row has taken its step as noise before: a difference of the rate's second order.
    assert loss == pytest.approx(stated(a, b), rel=1e-3)
    checked = [(inputs, a, 0, row) for row in (0, 5, 11)]
    checked += [(outputs, b, 1, row) for row in (around[0], around[14], shared[0], shared[5])]
    for got, rows, side, row in checked:
        for column in (0, 5):
            moved = [[a.copy(), b.copy()] for _ in range(2)]
            moved[0][side][row, column] += 1e-5
            moved[1][side][row, column] -= 1e-5
            slope = (stated(*moved[0]) - stated(*moved[1])) / 2e-5
            step = got[row, column] - rows[row, column]
            assert step == pytest.approx(-rate * slope, abs=3e-6, rel=2e-3)


def test_train_pairs_all_builds_agree_to_rounding():
    toy = Toy(words=60, tokens=2000, dim=100, subwords=5)
    first, *others = [toy.train(build) for build in BUILDS]
    for other in others:
        np.testing.assert_allclose(other[0], first[0], atol=2e-5)
        np.testing.assert_allclose(other[1], first[1], atol=2e-5)
        assert other[2] == pytest.approx(first[2], rel=1e-5)
        assert other[3] == first[3]


def test_train_pairs_same_seed_repeats_other_seed_differs():
    toy = Toy()
    one, same, other = toy.train(), toy.train(), toy.train(seed=8)
    np.testing.assert_array_equal(one[0], same[0])
    np.testing.assert_array_equal(one[1], same[1])
    assert not np.array_equal(one[0], other[0])


def test_train_pairs_ranges_of_bundles_are_slices():
    toy = Toy()
    centres, starts, contexts = toy.pairs
    rows = toy.copies()
    changed = {"lr_start": 0.02, "lr_stop": 0.02}
    counts = [
        kernels.train_pairs(
            *rows, toy.dim, centres[a:b], starts[a : b + 1], contexts, *toy.rest(),
            **SETTINGS | changed,
        )[1]
        for a, b in ((0, 40), (40, len(centres)))
    ]  # fmt: skip
    assert counts == [starts[40], starts[-1] - starts[40]]
    first, second = Toy(), Toy()
    first.pairs = centres[:40], starts[:41], contexts
    second.pairs = centres[40:], starts[40:] - starts[40], contexts[starts[40] :]
    second.inputs, second.outputs = first.train(**changed)[:2]
    np.testing.assert_array_equal(rows[0], second.train(**changed)[0])
    np.testing.assert_array_equal(rows[1], second.train(**changed)[1])


@builds
def test_train_pairs_none_change_nothing(build):
    toy = Toy()
    none = np.zeros(0, np.int32)
    for pairs in ((none, np.zeros(1, np.int64), none), (none, np.full(1, 3), toy.pairs[2])):
        inputs, outputs, loss, count = toy.train(build, pairs)
        assert (loss, count) == (0, 0)
        np.testing.assert_array_equal(inputs, toy.inputs)
        np.testing.assert_array_equal(outputs, toy.outputs)


@builds
def test_train_pairs_noise_that_is_the_context_does_not_count(build):
    toy = Toy(words=2)
    toy.pairs = np.zeros(1, np.int32), np.array([0, 3]), np.array([1, 1, 0], np.int32)
    toy.noise = np.ones(1, np.int32)
    got = toy.train(build)
    assert_close(got, toy.twin(), toy.dim)
    toy.pairs = np.zeros(1, np.int32), np.array([0, 2]), np.array([1, 1], np.int32)
    got = toy.train(build)
    assert got[1][1] @ got[0][0] > toy.inputs[0] @ toy.outputs[1]


def bursts(lines=2000):
    """A corpus of few words that come in bursts: 20 topics of 10 words, 20 tokens a line."""
    rng = np.random.default_rng(0)
    tokens = np.repeat(rng.integers(0, 20, lines), 20) * 10 + rng.integers(0, 10, lines * 20)
    tokens[::20] = -1
    return tokens.astype(np.int32)


FEW = [bursts(), (np.arange(40_000) // 4 * 7 % 200).astype(np.int32)]


@pytest.mark.parametrize("tokens", FEW)
def test_train_pairs_few_words_in_bursts_do_not_diverge(tokens):
    toy = Toy(words=200, dim=32)
    toy.outputs[:] = 0
    toy.pairs = kernels.sort_pairs(tokens, 5, 0).take(0)
    before = toy.train(lr_start=0, lr_stop=0)
    for seed in range(4):
        toy.pairs = kernels.sort_pairs(tokens, 5, seed).take(0)
        toy.inputs, toy.outputs, _, _ = toy.train(lr_stop=0.05, seed=seed)
    toy.pairs = kernels.sort_pairs(tokens, 5, 0).take(0)
    after = toy.train(lr_start=0, lr_stop=0)
    assert after[2] < 0.3 * before[2]


@pytest.mark.parametrize("order", ORDERS)
def test_train_pairs_of_two_workers_on_one_table_learns(order):
    toy = Toy(words=200, dim=32)
    toy.outputs[:] = 0
    centres, starts, contexts = toy.pairs = kernels.sort_pairs(bursts(), 5, 1).take(0)
    before = toy.train(lr_start=0, lr_stop=0)
    half = len(centres) // 2

    def train(_, a, b):
        kernels.train_pairs(
            toy.inputs, toy.outputs, toy.dim, centres[a:b], starts[a : b + 1], contexts,
            *toy.rest(), negatives=5, lr_start=0.015, lr_stop=0.015, seed=a,
        )  # fmt: skip

    for _ in range(2):
        spans = (0, half), (half, len(centres))
        train_pieces(train, (toy.inputs, toy.outputs), spans, half // 20, ORDERS[order])
    after = toy.train(lr_start=0, lr_stop=0)
    assert after[3] == before[3]
    assert after[2] < 0.3 * before[2]


WRONG = {
    "dim": (2, 33),
    "stride": (0, np.zeros((90, 20), np.float32)),
    "centres": (3, np.array([40] * 3, np.int32)),
    "starts": (4, np.array([0, 1, 2])),
    "falling": (4, np.array([0, 2, 1, 3])),
    "below": (4, np.array([-1, 1, 2, 3])),
    "beyond": (4, np.array([0, 1, 2, 5])),
    "contexts": (5, np.array([1, 99, 2, 3], np.int32)),
    "bag_ptr": (6, np.zeros(41, np.int64)),
    "bag_rows": (7, np.full(40, 1000, np.int32)),
    "noise": (8, np.array([99], np.int32)),
    "empty": (8, np.zeros(0, np.int32)),
    "noise_logit": (9, np.zeros(3, np.float32)),
}


@pytest.mark.parametrize("name", WRONG)
def test_train_pairs_array_that_does_not_fit_is_refused(name):
    toy = Toy()
    pairs = np.array([1, 2, 3], np.int32), np.array([0, 1, 2, 4]), np.arange(4, dtype=np.int32)
    arguments = [toy.inputs, toy.outputs, toy.dim, *pairs, *toy.rest()]
    place, wrong = WRONG[name]
    arguments[place] = wrong
    with pytest.raises(ValueError, match="must"):
        kernels.train_pairs(*arguments, **SETTINGS)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"negatives": 0}, "negatives must be at least 1"),
        ({"lanes": 17}, "lanes must be 1 to 16"),
        ({"squares": (kernels.padded(3, 20), kernels.padded(46, 20))}, "squares must have the"),
        ({"squares": (kernels.padded(90, 20), kernels.padded(46, 20)), "eps": 0}, "eps must be"),
    ],
)
def test_train_pairs_setting_out_of_range_is_refused(changed, words):
    with pytest.raises(ValueError, match=words):
        Toy().train(**changed)


def test_train_pairs_bags_that_were_checked_train_alike():
    toy = Toy()
    bags = kernels.checked_bags(toy.bag_ptr, toy.bag_rows, len(toy.inputs))
    for got, want in zip(toy.train(bags=bags), toy.train(), strict=True):
        np.testing.assert_array_equal(got, want)


def test_train_pairs_without_logits_trains_as_with_zeros():
    toy, none = Toy(), Toy()
    none.logit = none.logit[:0]
    for got, want in zip(none.train(), toy.train(), strict=True):
        np.testing.assert_array_equal(got, want)


def test_train_pairs_bags_other_than_those_checked_are_checked():
    toy = Toy()
    bags = kernels.checked_bags(toy.bag_ptr, toy.bag_rows, len(toy.inputs))
    for place, wrong in (
        (6, np.zeros_like(toy.bag_ptr)),
        (7, np.full_like(toy.bag_rows, 1000)),
        (0, toy.inputs[:20]),  # fewer rows than they were checked for
    ):
        arguments = [toy.inputs, toy.outputs, toy.dim, *toy.pairs, *toy.rest()]
        arguments[place] = wrong
        with pytest.raises(ValueError, match="bag_"):
            kernels.train_pairs(*arguments, **SETTINGS, bags=bags)


@narrow_builds
@pytest.mark.parametrize("dim", [1, 2, 15, 16, 17, 33, 64, 100, 177])
@pytest.mark.parametrize("subwords", [0, 6])
def test_train_pairs_with_narrow_products_makes_the_same_steps(build, dim, subwords):
    toy = Toy(dim=dim, subwords=subwords, most=4, run=3)
    assert_rounded_alike(toy, build, dim)


@narrow_builds
def test_train_pairs_with_narrow_products_and_adagrad_makes_the_same_steps(build):
    toy = Toy(dim=40, subwords=3)
    state = lambda: {"squares": tuple(toy.copies(0.5))}  # noqa: E731
    assert_rounded_alike(toy, build, 40, state, eps=0.1)


def test_train_pairs_narrow_products_are_refused_where_there_are_none():
    assert kernels.load("base").narrow_products() == "none"
    with pytest.raises(ValueError, match="bfloat16"):
        Toy().train("base", narrow=True)
