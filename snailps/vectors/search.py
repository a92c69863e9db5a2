"""Nearest-neighbour search: exact, or approximate by a graph that is built on request.

    unit rows + unit queries -> nearest_rows -> numbers, cosines       blocked matrix products
    unit rows -> NeighbourIndex -> search -> the same, approximately   usearch, an extra

Owns the order of ties (lower row number first) and the bound on memory.  Must not know words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from snailps.errors import ConfigError
from snailps.files.extras import optional_module

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]

_SCORES_MAX = 1 << 22
"""Scores of one matrix product, 16 MiB, so that they are searched while still in the cache."""
_QUERIES_TOGETHER = 1024
_SAMPLE = 1000
"""Queries by which an index's recall is measured."""


def nearest_rows(matrix: Float32, queries: Float32, k: int) -> tuple[Int32, Float32]:
    """Find the `k` rows (1 to n) with the largest product with each query, best first.

    float32[n, dim], float32[q, dim] -> int32[q, k], float32[q, k]; equal scores in ascending order
    of row numbers.  Queries must be finite.  Takes some 40 MiB besides the results.
    """
    numbers = np.empty((len(queries), k), np.int32)
    scores = np.empty((len(queries), k), np.float32)
    together = max(1, min(_QUERIES_TOGETHER, _SCORES_MAX // k))
    for first in range(0, len(queries), together):
        batch = slice(first, first + together)
        numbers[batch], scores[batch] = _nearest(matrix, queries[batch], k)
    return numbers, scores


def _nearest(matrix: Float32, queries: Float32, k: int) -> tuple[Int32, Float32]:
    """Answer as many queries as fit one product.

    Of each block only scores above the k-th best so far are sorted: about k x ln(n / block) per
    query in all, so sorting costs little beside the products.
    """
    q = len(queries)
    step = max(_SCORES_MAX // q, k)
    numbers = np.empty((q, 0), np.int32)
    scores = np.empty((q, 0), np.float32)
    for first in range(0, len(matrix), step):
        products = queries @ matrix[first : first + step].T
        if scores.shape[1] == k:  # equal scores: the earlier row, with the lower number, stays
            better = products > scores[:, -1:]
        elif products.shape[1] > k:
            better = products >= np.partition(products, -k, axis=1)[:, [-k]]
        else:
            better = np.ones(products.shape, np.bool_)
        row, column = np.nonzero(better)
        if len(row) == 0:
            continue
        best_so_far = np.repeat(np.arange(q), scores.shape[1])
        row = np.concatenate((best_so_far, row))
        number = np.concatenate((numbers.reshape(-1), (column + first).astype(np.int32)))
        score = np.concatenate((scores.reshape(-1), products[better]))
        order = np.lexsort((number, -score, row))
        # Each query has at least `width` candidates here, so its first `width` are its best.
        starts = np.searchsorted(row[order], np.arange(q))
        width = min(k, first + products.shape[1])
        chosen = order[starts[:, None] + np.arange(width)]
        numbers, scores = number[chosen], score[chosen]
    return numbers, scores


def nearest_to(
    matrix: Float32, query: Float32, k: int, banned: Sequence[int]
) -> tuple[list[int], list[float]]:
    """Find up to `k` unit rows with the largest cosine to one vector, without the `banned` rows.

    Scores equal fastText's to the last bit, because the product is divided by the query's length
    afterwards.  A query of (nearly) length 0 is scored by products, as there.
    """
    scores = matrix @ query
    norm = float(np.linalg.norm(query))
    if norm >= 1e-8:
        scores /= np.float32(norm)
    scores[list(banned)] = -np.inf
    k = min(k, len(scores))
    best = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
    # By score; equal scores by row number, which is by frequency.
    best = best[np.lexsort((best, -scores[best]))][:k]
    best = best[scores[best] != -np.inf]
    return best.tolist(), scores[best].tolist()


class IndexReport(NamedTuple):
    """Size and recall of an index.

    Attributes
    ----------
    words : int
    recall : float
        Share of the `measured_at` exact nearest neighbours that a search finds, 0 to 1: mean over
        up to 1,000 random words.
    measured_at : int
        Neighbours per word at which the recall was measured.
    mb : float
        Memory of the index in MB, without the vectors.
    """

    words: int
    recall: float
    measured_at: int
    mb: float

    def __repr__(self) -> str:
        return (
            f"IndexReport({self.words:,} words, recall {self.recall:.3f} at {self.measured_at}, "
            f"{self.mb:,.0f} MB)"
        )


class NeighbourIndex:
    """A graph of rows (HNSW) that finds most of the nearest rows without comparing all.

    `matrix` has rows of length 1 and is not copied.  `connectivity`: links per row;
    `expansion_build`, `expansion`: candidates while it is built and searched; `threads` 0: all.

    Malkov, Yashunin, "Efficient and robust approximate nearest neighbor search using Hierarchical
    Navigable Small World graphs", 2016.
    """

    def __init__(
        self,
        matrix: Float32,
        *,
        connectivity: int,
        expansion_build: int,
        expansion: int,
        threads: int,
    ) -> None:
        for name, value, least in (
            ("connectivity", connectivity, 2),
            ("expansion_build", expansion_build, 1),
            ("expansion", expansion, 1),
            ("threads", threads, 0),
        ):
            if value < least:
                raise ConfigError(f"{name}: expected at least {least}, got {value}")
        usearch = optional_module("usearch.index", "an index of neighbours", "snailps[index]")
        self._matrix = matrix
        self._index: Any = usearch.Index(
            ndim=matrix.shape[1],
            metric="ip",
            dtype="f32",
            connectivity=connectivity,
            expansion_add=expansion_build,
            expansion_search=expansion,
        )
        self._index.add(np.arange(len(matrix), dtype=np.uint64), matrix, threads=threads)

    def search(self, queries: Float32, k: int) -> tuple[Int32, Float32]:
        """Find near rows; a nearer one may be missed, but the scores of the answers are exact."""
        numbers = np.empty((len(queries), k), np.int32)
        scores = np.empty((len(queries), k), np.float32)
        # `_search` gathers k rows per query, which bounds the batch.
        together = max(1, min(_QUERIES_TOGETHER, _SCORES_MAX // (k * self._matrix.shape[1])))
        for first in range(0, len(queries), together):
            batch = queries[first : first + together]
            numbers[first : first + len(batch)], scores[first : first + len(batch)] = self._search(
                batch, k
            )
        return numbers, scores

    def _search(self, queries: Float32, k: int) -> tuple[Int32, Float32]:
        # usearch answers a single query in another form: one query more makes it always a batch.
        batch = np.concatenate((queries, queries[:1]))
        matches = self._index.search(batch, k)
        counts = np.asarray(matches.counts)[: len(queries)]
        numbers = np.asarray(matches.keys)[: len(queries)].astype(np.int64)
        short = np.flatnonzero(counts < k)  # the graph found too few: searched exactly below
        numbers[short] = 0
        scores = np.einsum("qd,qkd->qk", queries, self._matrix[numbers])
        if len(short):
            numbers[short], scores[short] = nearest_rows(self._matrix, queries[short], k)
        order = np.lexsort((numbers, -scores), axis=1)
        best = np.take_along_axis(numbers, order, axis=1).astype(np.int32)
        return best, np.take_along_axis(scores, order, axis=1)

    def report(self, k: int = 10) -> IndexReport:
        """Measure size, and recall among the `k` nearest rows of a fixed sample."""
        n = len(self._matrix)
        k = min(k, n)
        sample = np.random.default_rng(0).choice(n, min(_SAMPLE, n), replace=False)
        queries = self._matrix[np.sort(sample)]
        exact, _ = nearest_rows(self._matrix, queries, k)
        approximate, _ = self.search(queries, k)
        hits = sum(len(np.intersect1d(a, b)) for a, b in zip(exact, approximate, strict=True))
        return IndexReport(n, hits / exact.size, k, self._index.memory_usage / 1e6)
