"""Vectors of a graph's nodes: node2vec by random walks and the word-vector kernels.

    lines "node node" -> Graph (CSR) -> walks, sentences of nodes -> snailps.Word2Vec -> vectors

    python examples/node2vec.py edges.txt --output out/nodes.vec

Walks are made in this process while the cluster reads them.  `p` and `q` are node2vec's: a small
`p` goes back more often, a small `q` goes farther away; both 1 is DeepWalk.

References
----------
A. Grover, J. Leskovec, "node2vec: scalable feature learning for networks", KDD 2016.  B. Perozzi et
al., "DeepWalk", KDD 2014.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import snailps

WALKERS = 10_000
"""Walks that are made at once."""


class Graph:
    """An undirected graph: neighbours of node v are ``neighbours[ptr[v]:ptr[v + 1]]``, ascending.

    Parameters
    ----------
    edges : list of (str, str)
    """

    def __init__(self, edges: list[tuple[str, str]]) -> None:
        self.names, ends = np.unique(np.array(edges, str).ravel(), return_inverse=True)
        a, b = ends.reshape(-1, 2).T
        self._count = len(self.names)
        # Each edge both ways, once, as one number: sorted by its first node.
        self._pairs = np.unique(np.concatenate([a * self._count + b, b * self._count + a]))
        firsts, self._neighbours = np.divmod(self._pairs, self._count)
        self._ptr = np.searchsorted(firsts, np.arange(self._count + 1))

    def walks(self, each: int, length: int, p: float, q: float, seed: int) -> Iterator[list[str]]:
        """`each` walks of `length` nodes from every node, in random order."""
        random = np.random.default_rng(seed)
        for _ in range(each):
            starts = random.permutation(self._count)
            for some in np.array_split(starts, -(-self._count // WALKERS)):
                yield from self.names[self._walk(some, length, p, q, random)].tolist()

    def _walk(
        self, starts: np.ndarray, length: int, p: float, q: float, random: np.random.Generator
    ) -> np.ndarray:
        """Walks from these nodes, (walkers, length); every node has a neighbour."""
        path = np.empty((len(starts), length), np.int64)
        path[:, 0] = starts
        most = max(1.0, 1 / p, 1 / q)
        for step in range(1, length):
            here, before = path[:, step - 1], path[:, max(0, step - 2)]
            waiting = np.arange(len(starts))
            while len(waiting):  # a drawn neighbour is taken with its weight over the largest one
                at, came = here[waiting], before[waiting]
                degree = self._ptr[at + 1] - self._ptr[at]
                drawn = (random.random(len(at)) * degree).astype(np.int64)
                to = self._neighbours[self._ptr[at] + drawn]
                weight = np.where(self._adjacent(came, to), 1.0, 1 / q)
                weight[to == came] = 1 / p
                if step == 1:
                    weight[:] = most
                taken = random.random(len(at)) * most < weight
                path[waiting[taken], step] = to[taken]
                waiting = waiting[~taken]
        return path

    def _adjacent(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Whether there is an edge between each two nodes."""
        pairs = a * self._count + b
        at = np.minimum(np.searchsorted(self._pairs, pairs), len(self._pairs) - 1)
        return self._pairs[at] == pairs


def read_edges(path: str | Path) -> list[tuple[str, str]]:
    """Edges of a text with two nodes a line; what follows them is ignored, and lines with #."""
    lines = (line.split() for line in Path(path).read_text(encoding="utf-8").splitlines())
    return [(cells[0], cells[1]) for cells in lines if len(cells) > 1 and cells[0][0] != "#"]


def fit(
    edges: list[tuple[str, str]],
    *,
    dim: int = 64,
    each: int = 10,
    length: int = 40,
    p: float = 1.0,
    q: float = 1.0,
    epochs: int = 3,
    workers: int = 1,
    seed: int = 1,
) -> snailps.Vectors:
    """Vectors of the nodes of a graph.

    Parameters
    ----------
    edges : list of (str, str)
        Names without white space.
    dim : int
    each, length : int
        Walks from each node, and nodes of a walk.
    p, q : float
        Above 0.
    epochs, workers, seed : int
    """
    model = snailps.Word2Vec(
        dim=dim, window=5, negatives=5, min_count=1, sample=1.0, epochs=epochs, workers=workers,
        seed=seed, verbose=False,
    )  # fmt: skip
    return model.fit(Graph(edges).walks(each, length, p, q, seed)).wv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("edges", help="text with two nodes a line")
    parser.add_argument("--output", default="nodes.vec")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("-p", type=float, default=1.0)
    parser.add_argument("-q", type=float, default=1.0)
    parser.add_argument("--walks", type=int, default=10)
    parser.add_argument("--length", type=int, default=40)
    parser.add_argument("--workers", type=int, default=1)
    o = parser.parse_args()
    vectors = fit(
        read_edges(o.edges), dim=o.dim, each=o.walks, length=o.length, p=o.p, q=o.q,
        workers=o.workers,
    )  # fmt: skip
    nodes = [
        name for name in vectors.words if name != "</s>"
    ]  # the end of a walk has a vector, too
    with open(o.output, "w", encoding="utf-8") as file:
        file.write(f"{len(nodes)} {o.dim}\n")
        for name in nodes:
            file.write(f"{name} {' '.join(f'{x:.6g}' for x in vectors[name])}\n")


if __name__ == "__main__":
    main()
