"""Huffman trees of hierarchical softmax, as fastText builds them.

    counts that fall -> Tree.of -> children of each inner node
    tree -> Tree.paths -> turns from the root down to each leaf -> Paths.of: of some leaves

A leaf is a word, or a label.  At each inner node of its path the row of that node decides whether a
hidden vector goes left or right, so a leaf of n costs about log n rows in the place of n.  A file
stores counts and rows alone: who reads it builds the same tree.

F. Morin, Y. Bengio, "Hierarchical probabilistic neural network language model", AISTATS 2005.
T. Mikolov et al., "Efficient estimation of word representations in vector space", 2013.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.errors import DataError

Ints = NDArray[np.int32]

COUNT_MAX = 10**15
"""All counts are below it: fastText's mark of an inner node that is not made yet."""


class Paths(NamedTuple):
    """The way to each leaf, from the root down."""

    ptr: NDArray[np.int64]
    turns: Ints
    """Of leaf i from ``ptr[i]`` to ``ptr[i + 1] - 1``: 2 r, with r the row of an inner node, if the
    left child is next; 2 r + 1, if the right one is."""
    top: Ints
    """Rows of the nodes of the upper levels, int32 (kernels.TOP,), numbered as in a heap: 0 is the
    root, 2 i + 1 and 2 i + 2 are the children of i.  -1: there is none."""

    def of(self, leaves: NDArray[np.integer[Any]]) -> tuple[Ints, Paths]:
        """The inner nodes on the paths of some leaves, ascending, and these paths by their places.

        At least one node is returned, so that there is a row.
        """
        sizes = self.ptr[leaves + 1] - self.ptr[leaves]
        ptr = np.zeros(len(leaves) + 1, np.int64)
        np.cumsum(sizes, out=ptr[1:])
        turns = self.turns[np.repeat(self.ptr[leaves] - ptr[:-1], sizes) + np.arange(ptr[-1])]
        used, places = np.unique(turns >> 1, return_inverse=True)
        local_turns = (2 * places.reshape(-1) + (turns & 1)).astype(np.int32)
        at = np.minimum(np.searchsorted(used, self.top), max(0, len(used) - 1))
        top = np.full_like(self.top, -1)
        if len(used):
            met = used[at] == self.top
            top[met] = at[met]
        return used if len(used) else np.zeros(1, np.int32), Paths(ptr, local_turns, top)

    def at(self, places: Ints) -> Paths:
        """The same paths, where row r is at ``places[r]``."""
        turns = 2 * places[self.turns >> 1] + (self.turns & 1)
        top = np.where(self.top < 0, np.int32(-1), places[self.top])
        return Paths(self.ptr, turns, top)

    @property
    def rows(self) -> Ints:
        """The row of each turn."""
        return self.turns >> 1

    def rows_of(self, leaves: NDArray[np.integer[Any]]) -> Ints:
        """The rows of some leaves' paths, one path after the other."""
        sizes = self.ptr[leaves + 1] - self.ptr[leaves]
        ends = sizes.cumsum()
        at = np.repeat(self.ptr[leaves] - ends + sizes, sizes) + np.arange(sizes.sum())
        rows: Ints = self.turns[at] >> 1
        return rows

    def checked(self, row_num: int) -> kernels.CheckedPaths:
        """The paths for kernels that train `row_num` rows; the arrays become read-only."""
        return kernels.checked_paths(self.ptr, self.turns, self.top, row_num)


class Tree:
    """A binary tree whose leaves, `size` of them, are numbered from 0, by falling counts.

    ``children[j]``, int32 (size - 1, 2), are the left and the right child of inner node j: below
    `size` a leaf, else inner node ``child - size``.  Children come before their parents, so the
    root is last.
    """

    def __init__(self, children: Ints) -> None:
        self.children = children
        self.size = len(children) + 1

    @classmethod
    def of(cls, counts: NDArray[np.int64]) -> Tree:
        """Build fastText's tree; ties are broken as there, because files store only counts.

        Where `counts` do not fall, as in files that another program has continued, it is still the
        tree that fastText builds, but a deeper one.

        Raises
        ------
        DataError
            A count is below 0, or their sum is not below `COUNT_MAX`.
        """
        if not 0 <= counts.min(initial=0) <= counts.sum(dtype=np.float64) < COUNT_MAX:
            raise DataError(f"expected counts of 0 or more whose sum is below {COUNT_MAX:.0e}")
        leaves = len(counts)
        sizes = [*counts.tolist(), *[COUNT_MAX] * (leaves - 1)]
        children = []
        leaf, node = leaves - 1, leaves
        for made in range(leaves, 2 * leaves - 1):
            if leaf >= 0 and sizes[leaf] < sizes[node]:
                left, leaf = leaf, leaf - 1
            else:
                left, node = node, node + 1
            if leaf >= 0 and sizes[leaf] < sizes[node]:
                right, leaf = leaf, leaf - 1
            else:
                right, node = node, node + 1
            sizes[made] = sizes[left] + sizes[right]
            children.append((left, right))
        return cls(np.array(children, np.int32).reshape(-1, 2))

    def paths(self) -> Paths:
        """The paths of all leaves; row j belongs to inner node j."""
        leaves, root = self.size, 2 * self.size - 2
        parents, sides = np.zeros(root + 1, np.int32), np.zeros(root + 1, np.int32)
        for side in range(2):
            parents[self.children[:, side]] = np.arange(leaves - 1, dtype=np.int32)
            sides[self.children[:, side]] = side
        depths = np.zeros(root + 1, np.int64)
        for depth, level in enumerate(self._levels()):
            depths[self.children[level]] = depth + 1
        ptr = np.zeros(leaves + 1, np.int64)
        np.cumsum(depths[:leaves], out=ptr[1:])
        turns = np.empty(ptr[-1], np.int32)
        below, places = np.arange(leaves), ptr[1:] - 1
        while len(below := below[(inside := below != root)]):
            places = places[inside]
            turns[places] = 2 * parents[below] + sides[below]
            below, places = parents[below] + leaves, places - 1
        return Paths(ptr, turns, self._top())

    def _levels(self) -> list[NDArray[np.int64]]:
        """Inner nodes by depth, the root first."""
        levels, nodes = [], np.arange(self.size - 2, self.size - 1)[self.size < 2 :]
        while len(nodes):
            levels.append(nodes)
            children = self.children[nodes].reshape(-1).astype(np.int64)
            nodes = children[children >= self.size] - self.size
        return levels

    def _top(self) -> Ints:
        top = np.full(kernels.TOP, -1, np.int32)
        if self.size > 1:
            top[0] = self.size - 2
        for number in range(kernels.TOP // 2):
            if top[number] >= 0:
                below = self.children[top[number]] - self.size
                top[2 * number + 1 : 2 * number + 3] = np.maximum(below, -1)
        return top

    def regrown(
        self, rows: NDArray[np.float32], tree: Tree, leaf_of: NDArray[np.integer[Any]]
    ) -> NDArray[np.float32]:
        """Rows for the inner nodes of another `tree` with the same leaves, and new ones.

        The probability of a leaf is a product of logistic functions.  Its logarithm has, at hidden
        vector 0, the gradient ``sum of +-row / 2`` along the path, and its value there is 2^-depth.
        A node decides between the leaves on its right and on its left, so its row is the difference
        of their mean gradients, weighted by these probabilities.  For the same tree that is the
        same row; a node that has only new leaves on a side gets zeros.

        Parameters
        ----------
        rows : float32 (leaves - 1, dim)
            Trained rows of this tree's inner nodes.
        tree : Tree
        leaf_of : int (leaves,)
            The leaf in `tree` of each leaf of this one.
        """
        dim = rows.shape[1]
        slopes = np.zeros((2 * self.size - 1, dim), np.float32)
        chances = np.ones(2 * self.size - 1)
        for level in self._levels():
            for side, sign in enumerate((-0.5, 0.5)):
                child = self.children[level, side]
                slopes[child] = slopes[level + self.size] + np.float32(sign) * rows[level]
                chances[child] = chances[level + self.size] / 2
        means = np.zeros((2 * tree.size - 1, dim), np.float32)
        masses = np.zeros(2 * tree.size - 1)
        means[leaf_of], masses[leaf_of] = slopes[: self.size], chances[: self.size]
        grown = np.zeros((tree.size - 1, dim), np.float32)
        for level in reversed(tree._levels()):
            left, right = tree.children[level].T
            mass = masses[left] + masses[right]
            share = np.divide(masses[right], mass, out=np.zeros_like(mass), where=mass > 0)
            share = share.astype(np.float32)[:, None]
            masses[level + tree.size] = mass
            means[level + tree.size] = (1 - share) * means[left] + share * means[right]
            both = (masses[left] > 0) & (masses[right] > 0)
            grown[level] = np.where(both[:, None], means[right] - means[left], 0)
        return grown
