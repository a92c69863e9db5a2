"""data.huffman: fastText's tree, paths in it, rows of a tree that has grown."""

import heapq
import itertools

import numpy as np
import pytest

from snailps import kernels
from snailps.data.huffman import COUNT_MAX, Tree
from snailps.errors import DataError


def falling(leaves, seed=0):
    counts = np.random.default_rng(seed).zipf(1.2, leaves) % 10_000 + 1
    return np.sort(counts)[::-1].astype(np.int64)


def paths_by_hand(tree):
    """Each leaf's turns, from the leaf up and then turned round."""
    above = {int(c): (j, s) for j, both in enumerate(tree.children) for s, c in enumerate(both)}
    ways = []
    for leaf in range(tree.size):
        way, node = [], leaf
        while node in above:
            parent, side = above[node]
            way.append(2 * parent + side)
            node = tree.size + parent
        ways.append(way[::-1])
    return ways


def ways_of(paths):
    return [paths.turns[a:b].tolist() for a, b in itertools.pairwise(paths.ptr)]


def test_known_tree():
    """The two rarest first; of equal counts the leaf waits for the inner node."""
    tree = Tree.of(np.array([4, 2, 1, 1]))
    assert tree.children.tolist() == [[3, 2], [4, 1], [5, 0]]
    assert ways_of(tree.paths()) == [[5], [4, 3], [4, 2, 1], [4, 2, 0]]
    assert tree.paths().top[:8].tolist() == [2, 1, -1, 0, -1, -1, -1, -1]


@pytest.mark.parametrize("leaves", [1, 2, 3, 64, 999])
def test_tree_costs_as_little_as_any_and_paths_lead_to_its_leaves(leaves):
    counts = falling(leaves)
    tree = Tree.of(counts)
    paths = tree.paths()
    assert ways_of(paths) == paths_by_hand(tree)
    heap, least = counts.tolist(), 0
    heapq.heapify(heap)
    while len(heap) > 1:
        both = heapq.heappop(heap) + heapq.heappop(heap)
        least += both
        heapq.heappush(heap, both)
    assert np.diff(paths.ptr) @ counts == least
    paths.checked(max(1, leaves - 1))


def test_paths_of_some_leaves_have_the_places_of_their_rows():
    paths = Tree.of(falling(500)).paths()
    leaves = np.array([499, 3, 77, 3])
    rows, some = paths.of(leaves)
    assert (np.diff(rows) > 0).all()
    assert rows[some.rows].tolist() == paths.rows_of(leaves).tolist()
    assert ways_of(some) == [
        [2 * int(np.searchsorted(rows, turn >> 1)) + turn % 2 for turn in ways_of(paths)[leaf]]
        for leaf in leaves
    ]
    kept = np.random.default_rng(1).permutation(len(rows) + 5)[: len(rows)].astype(np.int32)
    placed = some.at(kept)
    assert placed.rows.tolist() == kept[some.rows].tolist()
    placed.checked(len(rows) + 5)
    assert set(placed.top[placed.top >= 0]) <= set(kept.tolist())
    assert placed.top[0] == kept[-1]  # the root is last


def test_a_tree_of_one_leaf_has_an_empty_path_and_a_row():
    rows, paths = Tree.of(np.array([7])).paths().of(np.array([0, 0]))
    assert (len(rows), paths.ptr.tolist(), len(paths.turns)) == (1, [0, 0, 0], 0)


@pytest.mark.parametrize("counts", [[-1, 0], [COUNT_MAX], [COUNT_MAX // 2] * 2])
def test_counts_that_no_text_has_are_refused(counts):
    with pytest.raises(DataError, match="sum is below"):
        Tree.of(np.array(counts))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"turns": [5, 4, 3, 4, 2, 1, 4, 2, 6]}, "turns must lie"),
        ({"turns": [5, 4, 1, 4, 2, 1, 4, 2, 0]}, "top must have the rows"),
        ({"top": [2]}, "top must have 63"),
        ({"ptr": [0, 1, 3, 6, 10]}, "ptr must start"),
    ],
)
def test_paths_that_lead_astray_are_refused(change, what):
    paths = Tree.of(np.array([4, 2, 1, 1])).paths()
    given = {"ptr": paths.ptr, "turns": paths.turns, "top": paths.top}
    for name, values in change.items():
        given[name] = np.array(values, given[name].dtype)
    with pytest.raises(ValueError, match=what):
        kernels.checked_paths(*given.values(), 3)


def log_chances(tree, rows, hidden):
    """log P of each leaf."""
    scores = rows @ hidden
    return np.array(
        [
            -sum(np.log1p(np.exp(scores[turn >> 1] * (1 - 2 * (turn % 2)))) for turn in way)
            for way in ways_of(tree.paths())
        ]
    )


def test_rows_of_the_same_tree_stay_as_they_are():
    tree = Tree.of(falling(300))
    rows = np.random.default_rng(2).normal(size=(299, 5)).astype(np.float32)
    np.testing.assert_allclose(tree.regrown(rows, tree, np.arange(300)), rows, atol=1e-5)


def test_rows_of_a_grown_tree_prefer_the_same_leaves():
    """Near 0 the odds of two sides of a node change with the hidden vector as before."""
    rng = np.random.default_rng(3)
    before, after = Tree.of(falling(40, 1)), Tree.of(falling(44, 2))
    leaf_of = rng.permutation(44)[:40]
    rows = rng.normal(size=(39, 5)).astype(np.float32)
    grown = before.regrown(rows, after, leaf_of)
    step, sides = 1e-3, [(set(), set()) for _ in range(43)]
    for leaf, way in enumerate(ways_of(after.paths())):
        for turn in way:
            sides[turn >> 1][turn % 2].add(leaf)
    for direction in np.eye(5):
        odds = []
        for sign in (-1, 1):
            chances = np.zeros(44)
            chances[leaf_of] = np.exp(log_chances(before, rows, sign * step * direction))
            odds.append([[chances[list(leaves)].sum() for leaves in both] for both in sides])
        with np.errstate(divide="ignore", invalid="ignore"):
            left, right = (np.log(np.array(odds)[..., side]) for side in range(2))
            slopes = ((right - left)[1] - (right - left)[0]) / (2 * step)
        expected = np.where(np.isfinite(slopes), slopes, 0)
        np.testing.assert_allclose(grown @ direction, expected, atol=1e-3)
