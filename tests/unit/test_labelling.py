"""kernels._labelling: labels of lines, in each build, against a plain twin."""

import numpy as np
import pytest
import rounding
from twins import labels as twin

from snailps import kernels
from snailps.kernels._labelling import Labelling

BUILDS = kernels.builds_available()
ROWS = 90


def unaligned(rows):
    """The same rows, a byte behind an address that they would have."""
    room = np.zeros(rows.nbytes + 64, np.uint8)
    skip = -room.ctypes.data % 64 + 1
    room[skip : skip + rows.nbytes] = rows.ravel().view(np.uint8)
    return room[skip : skip + rows.nbytes].view(np.float32).reshape(rows.shape)


def tree(labels, rng):
    """Children of inner nodes of any tree."""
    free, children = list(range(labels)), []
    for inner in range(labels - 1):
        pair = [free.pop(rng.integers(len(free))) for _ in range(2)]
        children.append(pair)
        free.append(labels + inner)
    return np.array(children, np.int32).reshape(-1, 2)


def padded(outputs):
    made = kernels.padded(*outputs.shape)
    made[:, : outputs.shape[1]] = outputs
    return made


class Case:
    """A classifier, and lines of some features, or none."""

    def __init__(self, labels=7, dim=12, lines=40, way="softmax", seed=1):
        rng = self.rng = np.random.default_rng(seed)
        self.dim, self.softmax = dim, way == "softmax"
        self.inputs = rng.normal(size=(ROWS, dim)).astype(np.float32)
        self.outputs = rng.normal(size=(labels, dim)).astype(np.float32)
        self.children = tree(labels, rng) if way == "tree" else None
        sizes = rng.integers(0, 30, lines)
        sizes[::7] = 0
        self.ptr = np.concatenate(([0], np.cumsum(sizes)))
        self.features = rng.integers(0, ROWS, self.ptr[-1]).astype(np.int32)

    def labelling(self, build, inputs=None):
        given = unaligned(self.inputs) if inputs is None else inputs
        return Labelling(
            kernels.load(build), given, padded(self.outputs), self.dim, self.softmax, self.children
        )

    def chances(self, inputs=None):
        hidden = twin.hidden_of(self.inputs if inputs is None else inputs, self.ptr, self.features)
        found = twin.chances_of(hidden, self.outputs, self.softmax, self.children)
        found[np.diff(self.ptr) == 0] = np.nan
        return found

    def bounds(self, inputs=None, steps=0):
        """How far the probabilities of each line may be off, and the entries of its mean row, whose
        rows take so many steps."""
        rows = np.abs(self.inputs if inputs is None else inputs)
        sizes = twin.hidden_of(rows, self.ptr, self.features)
        counts = np.diff(self.ptr) + steps
        way = "softmax" if self.softmax else "each"
        depth = 1 if self.children is None else max(1, len(self.children))
        chances = [
            rounding.of_chances(size, count, self.outputs, way, depth)
            for size, count in zip(sizes, counts, strict=True)
        ]
        means = sizes * np.array([rounding.gamma(count + 1) for count in counts])[:, None]
        return np.array(chances).reshape(-1, 1), means


def assert_within(found, wanted, bound):
    """As numpy's `assert_allclose`, with a bound for each entry."""
    np.testing.assert_allclose(
        (found - wanted) / bound, np.where(wanted == wanted, 0, np.nan), atol=1
    )


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("way", ["softmax", "each", "tree"])
@pytest.mark.parametrize(
    ("labels", "dim", "lines"),
    [(1, 1, 3), (2, 5, 1), (7, 16, 17), (65, 100, 16), (130, 33, 50), (7, 12, 0)],
)
def test_probabilities_and_the_best_are_those_of_the_twin(build, way, labels, dim, lines):
    case = Case(labels, dim, lines, way)
    made, wanted = case.labelling(build), case.chances()
    found_best, found = made.chances(case.ptr, case.features)
    bounds, of_means = case.bounds()
    assert_within(found, wanted, bounds)
    one, chance = (answer[:, 0] for answer in made.best(case.ptr, case.features, 1))
    np.testing.assert_array_equal(found_best, one)
    known = np.flatnonzero(one >= 0)
    np.testing.assert_array_equal(found[known, one[known]], chance[known])
    hidden = made.hidden(case.ptr, case.features)
    means = twin.hidden_of(case.inputs, case.ptr, case.features)
    assert (np.abs(hidden - means) <= of_means).all()
    for k in (1, 3, labels + 2, 40):
        best, chances = made.best(case.ptr, case.features, k)
        assert best.shape == chances.shape == (lines, k)
        for line in range(lines):
            if case.ptr[line] == case.ptr[line + 1]:
                assert (best[line] == -1).all()
                assert np.isnan(chances[line]).all()
                continue
            n = min(k, labels)
            assert (best[line, n:] == -1).all()
            assert len(set(best[line, :n].tolist())) == n
            own = wanted[line]
            assert_within(chances[line, :n], own[best[line, :n]], bounds[line])
            assert_within(chances[line, :n], np.sort(own)[::-1][:n], bounds[line])


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("dim", [1, 6, 11])
@pytest.mark.parametrize("lengths", [False, True])
def test_quantised_rows_are_put_together_from_their_centroids(build, dim, lengths):
    case, width = Case(dim=dim), 2
    parts = -(-dim // width)
    codes = case.rng.integers(0, 256, (ROWS, parts)).astype(np.uint8)
    centroids = case.rng.normal(size=256 * dim).astype(np.float32)
    norm_codes = case.rng.integers(0, 256, ROWS).astype(np.uint8)
    norms = case.rng.random(256).astype(np.float32)
    columns = []
    for part in range(parts):
        size = min(width, dim - part * width)
        first = 256 * width * part
        table = centroids[first : first + 256 * size].reshape(256, size)
        columns.append(table[codes[:, part]])
    rows = np.concatenate(columns, axis=1)
    if lengths:
        rows = rows * norms[norm_codes][:, None]
    given = (codes, centroids, width, *((norm_codes, norms) if lengths else (None, None)))
    made = case.labelling(build, given)
    _, found = made.chances(case.ptr, case.features)
    assert_within(found, case.chances(rows), case.bounds(rows, steps=1)[0])  # times the length


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("way", ["softmax", "each", "tree"])
def test_answer_of_a_line_does_not_depend_on_those_beside_it(build, way):
    case = Case(labels=9, dim=37, lines=45, way=way)
    made = case.labelling(build)
    whole = made.best(case.ptr, case.features, 4)
    for first, last in ((0, 1), (5, 6), (3, 29), (44, 45)):
        ptr = case.ptr[first : last + 1]
        some = made.best(ptr - ptr[0], case.features[ptr[0] : ptr[-1]], 4)
        np.testing.assert_array_equal(some[0], whole[0][first:last])
        np.testing.assert_array_equal(some[1], whole[1][first:last])


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("way", ["softmax", "each", "tree"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_numbers_that_are_none_give_no_label_or_one_with_a_probability(build, way, value):
    case = Case(labels=5, dim=4, lines=20, way=way)
    case.inputs[::2] = value
    best, chances = case.labelling(build).best(case.ptr, case.features, 2)
    assert ((best == -1) == np.isnan(chances)).all()
    assert ((best >= -1) & (best < 5)).all()
    known = chances[best >= 0]
    assert ((known >= 0) & (known <= 1)).all()


@pytest.mark.parametrize("build", BUILDS)
def test_of_equal_labels_the_first_ones_are_chosen(build):
    case = Case(labels=6, dim=3)
    case.outputs[:] = case.outputs[0]
    best, _ = case.labelling(build).best(case.ptr, case.features, 3)
    has = np.diff(case.ptr) > 0
    assert (best[has] == [0, 1, 2]).all()


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("labels", [5, 40])
def test_of_probabilities_that_round_to_one_the_highest_score_is_the_best(build, labels):
    case = Case(labels=labels, dim=1, lines=20, way="each")
    case.inputs[:] = 1
    case.outputs[:, 0] = 20 + np.arange(labels)
    made = case.labelling(build)
    best, chances = made.chances(case.ptr, case.features)
    has = np.diff(case.ptr) > 0
    assert (chances[has] == 1).all()
    assert (best == np.where(has, labels - 1, -1)).all()
    for k in (1, 3, labels):
        wanted = np.arange(labels)[::-1][:k]
        assert (made.best(case.ptr, case.features, k)[0][has] == wanted).all()


def test_arrays_that_do_not_fit_are_refused():
    case = Case(labels=3, dim=4)
    made = case.labelling("base")
    ptr, features = np.array([0, 2], np.int64), np.array([0, 1], np.int32)
    for bad in ([1, 2], [0, 3], [0, 2, 1], []):
        with pytest.raises(ValueError, match="ptr must rise"):
            made.best(np.array(bad, np.int64), features, 1)
    for bad in ([0, ROWS], [-1, 0]):
        with pytest.raises(ValueError, match="features must lie in 0"):
            made.best(ptr, np.array(bad, np.int32), 1)
    with pytest.raises(ValueError, match="k must be at least 1"):
        made.best(ptr, features, 0)
    base, rows = kernels.load("base"), case.inputs
    with pytest.raises(ValueError, match="inputs must be float32"):
        Labelling(base, rows[:, :3], padded(case.outputs), 4, True)
    with pytest.raises(ValueError, match="outputs must be of kernels"):
        Labelling(base, rows, padded(case.outputs)[:, 1:17].copy(), 20, True)
    codes, centroids = np.zeros((ROWS, 2), np.uint8), np.zeros(256 * 4, np.float32)
    for given in (
        (codes, centroids[:-1], 2, None, None),
        (codes, centroids, 1, None, None),
        (codes, centroids, 4, None, None),
        (codes, centroids, 2, codes[:5, 0].copy(), np.zeros(256, np.float32)),
        (codes, centroids, 2, codes[:, 0].copy(), None),
    ):
        with pytest.raises(ValueError, match=r"rows of 4 columns|lengths must be"):
            Labelling(base, given, padded(case.outputs), 4, True)


@pytest.mark.parametrize(
    "children", [[[0, 1]], [[0, 1], [1, 3]], [[0, 4], [1, 2]], [[0, 3], [1, 2]], [[0, 1], [2, -3]]]
)
def test_children_that_make_no_tree_are_refused(children):
    case = Case(labels=3, dim=4)
    with pytest.raises(ValueError, match="one tree of 3 labels"):
        Labelling(
            kernels.load("base"), case.inputs, padded(case.outputs), 4, False,
            np.array(children, np.int32),
        )  # fmt: skip


@pytest.mark.parametrize("build", BUILDS)
def test_one_label_is_the_first_of_several_where_some_scores_are_no_numbers(build):
    case = Case(labels=3, dim=2, way="each")
    case.outputs[0] = np.nan
    made = case.labelling(build)
    one, several = (made.best(case.ptr, case.features, k) for k in (1, 2))
    np.testing.assert_array_equal(one[0][:, 0], several[0][:, 0])
    np.testing.assert_array_equal(one[1][:, 0], several[1][:, 0])


def tree_of(*scores):
    """A tree of one path: node i decides by its score, times the hidden value 1, for a label."""
    labels = len(scores) + 1
    children = [[0, 1]] + [[node + 1, labels + node - 1] for node in range(1, labels - 1)]
    outputs = np.array([*scores, 0.0], np.float32)[:, None]
    inputs, ptr = np.ones((1, 1), np.float32), np.array([0, 1])
    made = Labelling(
        kernels.load("base"), inputs, padded(outputs), 1, False, np.array(children, np.int32)
    )
    return made, ptr, np.zeros(1, np.int32)


def test_unlikely_labels_of_a_tree_have_exact_probabilities():
    """The root turns left, to label 2, with a score of 20; 0 is 150 times as likely as 1."""
    made, ptr, features = tree_of(-5.0, -20.0)
    want = [1 / (1 + np.exp(20)) / (1 + np.exp(-5)), 1 / (1 + np.exp(20)) / (1 + np.exp(5))]
    best, chances = made.best(ptr, features, 3)
    assert best[0].tolist() == [2, 0, 1]
    np.testing.assert_allclose(chances[0], [1 / (1 + np.exp(-20)), *want], rtol=2e-6)
    _, every = made.chances(ptr, features)
    np.testing.assert_allclose(every[0], [*want, 1 / (1 + np.exp(-20))], rtol=2e-6)


@pytest.mark.parametrize("k", [4, 40])
def test_labels_of_a_tree_whose_probabilities_are_0_as_floats_are_in_their_order(k):
    """Label 0 has about exp(-1300), label 1 exp(-1360): no double holds them."""
    made, ptr, features = tree_of(-60.0, -650.0, -650.0, -0.5)
    best, chances = made.best(ptr, features, k)
    assert best[0, :4].tolist() == [4, 3, 2, 0]
    assert chances[0, 2:4].tolist() == [0, 0]
    assert made.best(ptr, features, 5)[0].tolist() == [[4, 3, 2, 0, 1]]


@pytest.mark.parametrize("build", BUILDS)
def test_a_shift_moves_the_best_label_and_others_each_by_their_own(build):
    case = Case(labels=7, dim=12, lines=40, way="each")
    made = Labelling(
        kernels.load(build), case.inputs, padded(case.outputs), 12, False, shift=2, others=-1
    )
    hidden = twin.hidden_of(case.inputs, case.ptr, case.features)
    scores = hidden @ case.outputs.T
    best, found = made.chances(case.ptr, case.features)
    shifts = np.where(np.arange(7) == best[:, None], 2, -1)
    want = 1 / (1 + np.exp(-scores - shifts))
    some = np.diff(case.ptr) > 0
    np.testing.assert_allclose(found[some], want[some], atol=2e-6)
    order, chances = made.best(case.ptr, case.features, 3)
    np.testing.assert_allclose(
        chances[some], np.take_along_axis(want[some], order[some].astype(int), 1), atol=2e-6
    )
    assert (order[some] == np.argsort(-scores[some], kind="stable")[:, :3]).all()


@pytest.mark.parametrize("build", BUILDS)
def test_labels_of_a_softmax_are_judged_apart_by_the_odds_of_their_shares(build):
    case = Case(labels=7, dim=12, lines=40)
    made = Labelling(
        kernels.load(build), case.inputs, padded(case.outputs), 12, True,
        shift=0.5, others=0.5, apart=True, slope=0.7,
    )  # fmt: skip
    shares = case.chances().astype(np.float64)
    want = 1 / (1 + np.exp(-0.7 * np.log(shares / (1 - shares)) - 0.5))
    _, found = made.chances(case.ptr, case.features)
    np.testing.assert_allclose(found, want, atol=3e-6)
    order, chances = made.best(case.ptr, case.features, 2)
    some = order[:, 0] >= 0
    np.testing.assert_allclose(
        chances[some], np.take_along_axis(want[some], order[some].astype(int), 1), atol=3e-6
    )
