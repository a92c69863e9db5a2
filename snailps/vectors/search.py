"""Nearest rows of a matrix: exact, or by a graph that is built on request.

    unit rows + unit queries -> nearest_rows -> numbers, cosines       blocked matrix products
    unit rows -> NeighbourIndex -> search -> the same, approximately   usearch, an extra

Owns ties (the lower number first) and the bound on memory.  Must not know words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from snailps.data.extras import optional_module
from snailps.errors import ConfigError

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]

_SCORES_MAX = 1 << 22
"""Scores of one matrix product, 16 MiB: they are searched while they are still in the cache."""
_QUERIES_TOGETHER = 1024
_SAMPLE = 1000
"""Queries that measure an index's recall."""


def nearest_rows(matrix: Float32, queries: Float32, k: int) -> tuple[Int32, Float32]:
    """The `k` rows (1 to n) with the largest product with each finite query, best first.

    float32[n, dim], float32[q, dim] -> int32[q, k], float32[q, k]; equal scores by rising number.
    Memory: some 40 MiB besides the results.
    """
    numbers = np.empty((len(queries), k), np.int32)
    scores = np.empty((len(queries), k), np.float32)
    together = max(1, min(_QUERIES_TOGETHER, _SCORES_MAX // k))
    for at in range(0, len(queries), together):
        some = slice(at, at + together)
        numbers[some], scores[some] = _nearest(matrix, queries[some], k)
    return numbers, scores


def _nearest(matrix: Float32, queries: Float32, k: int) -> tuple[Int32, Float32]:
    """`nearest_rows` for queries that fit one product.

    Only scores above the k-th best so far survive a block: k x ln(n / block) of a query in all.
    """
    q = len(queries)
    step = max(_SCORES_MAX // q, k)
    numbers = np.empty((q, 0), np.int32)
    scores = np.empty((q, 0), np.float32)
    for first in range(0, len(matrix), step):
        found = queries @ matrix[first : first + step].T
        if scores.shape[1] == k:  # a later row wins only with a higher score
            better = found > scores[:, -1:]
        elif found.shape[1] > k:
            better = found >= np.partition(found, -k, axis=1)[:, [-k]]
        else:
            better = np.ones(found.shape, np.bool_)
        row, column = np.nonzero(better)
        if len(row) == 0:
            continue
        kept = np.repeat(np.arange(q), scores.shape[1])
        row = np.concatenate((kept, row))
        number = np.concatenate((numbers.reshape(-1), (column + first).astype(np.int32)))
        score = np.concatenate((scores.reshape(-1), found[better]))
        order = np.lexsort((number, -score, row))
        # The first k of each query: every one has at least k, or all that there are.
        starts = np.searchsorted(row[order], np.arange(q))
        width = min(k, first + found.shape[1])
        chosen = order[starts[:, None] + np.arange(width)]
        numbers, scores = number[chosen], score[chosen]
    return numbers, scores


def nearest_to(
    matrix: Float32, query: Float32, k: int, banned: Sequence[int]
) -> tuple[list[int], list[float]]:
    """Up to `k` rows of unit length with the largest cosine to one vector, without `banned` rows.

    Scores equal fastText's to the last bit: the product first, the length last; a query of (nearly)
    length 0 is scored by products.
    """
    scores = matrix @ query
    norm = float(np.linalg.norm(query))
    if norm >= 1e-8:
        scores /= np.float32(norm)
    scores[list(banned)] = -np.inf
    k = min(k, len(scores))
    best = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
    # By score; equal scores in order of frequency.
    best = best[np.lexsort((best, -scores[best]))][:k]
    best = best[scores[best] != -np.inf]
    return best.tolist(), scores[best].tolist()


class IndexReport(NamedTuple):
    """Size and recall of an index.

    Attributes
    ----------
    words : int
    recall : float
        Share of the `measured_at` exact nearest neighbours that it finds, 0 to 1: the mean of up
        to 1,000 words drawn from all.
    measured_at : int
        Neighbours per word that the recall was measured with.
    mb : float
        Memory of the index in MB, besides the vectors.
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
    """A graph of rows (HNSW) that finds most of the nearest ones without a look at all.

    The `matrix`, rows of length 1, is kept, not copied.  `connectivity`: links of a row;
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
        """Find nearest rows, of which some may be missed for farther ones; scores are exact."""
        numbers = np.empty((len(queries), k), np.int32)
        scores = np.empty((len(queries), k), np.float32)
        # The rows found are gathered: k of them a query.
        together = max(1, min(_QUERIES_TOGETHER, _SCORES_MAX // (k * self._matrix.shape[1])))
        for at in range(0, len(queries), together):
            some = queries[at : at + together]
            numbers[at : at + len(some)], scores[at : at + len(some)] = self._search(some, k)
        return numbers, scores

    def _search(self, queries: Float32, k: int) -> tuple[Int32, Float32]:
        # One query more, so that the answer always is one of a batch.
        batch = np.concatenate((queries, queries[:1]))
        matches = self._index.search(batch, k)
        counts = np.asarray(matches.counts)[: len(queries)]
        numbers = np.asarray(matches.keys)[: len(queries)].astype(np.int64)
        short = np.flatnonzero(counts < k)
        numbers[short] = 0
        scores = np.einsum("qd,qkd->qk", queries, self._matrix[numbers])
        if len(short):
            numbers[short], scores[short] = nearest_rows(self._matrix, queries[short], k)
        order = np.lexsort((numbers, -scores), axis=1)
        best = np.take_along_axis(numbers, order, axis=1).astype(np.int32)
        return best, np.take_along_axis(scores, order, axis=1)

    def report(self, k: int = 10) -> IndexReport:
        """Measures the recall."""
        n = len(self._matrix)
        k = min(k, n)
        sample = np.random.default_rng(0).choice(n, min(_SAMPLE, n), replace=False)
        queries = self._matrix[np.sort(sample)]
        exact, _ = nearest_rows(self._matrix, queries, k)
        found, _ = self.search(queries, k)
        hits = sum(len(np.intersect1d(a, b)) for a, b in zip(exact, found, strict=True))
        return IndexReport(n, hits / exact.size, k, self._index.memory_usage / 1e6)
