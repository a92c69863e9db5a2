"""Queries of a search: turns words, vectors and lists of both into vectors.

    word, vector, list of both (perhaps with weights) -> mean_query -> one unit vector, its words
    q words or vectors -> query_matrix -> float32[q, dim]

The caller passes the function that maps a word to its vector.  Must not know rows or searches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from snailps.errors import DataError
from snailps.vectors.words import to_bytes

Float32 = npt.NDArray[np.float32]
Query: TypeAlias = "str | bytes | Float32 | Sequence[float]"
"""A word, or a vector of dim numbers."""
VectorOf: TypeAlias = "Callable[[str | bytes], Float32]"
"""The vector of a word, float32[dim]."""


def unit(vector: Float32) -> Float32:
    """Scale a vector to length 1; a zero vector stays zero."""
    norm = np.float32(np.linalg.norm(vector))
    return np.divide(vector, norm, dtype=np.float32) if norm > 0 else vector


def mean_query(
    positive: Any, negative: Any, vector: VectorOf, dim: int
) -> tuple[Float32, list[bytes]]:
    """Return the weighted mean of a query's items, float32[dim] of length 1, and its words.

    Words are scaled to length 1, vectors are not.  Negative items have weight -1 unless they come
    with their own.
    """
    total = np.zeros(dim, np.float32)
    weights = 0.0
    words: list[bytes] = []
    for side, sign in ((positive, 1.0), (negative, -1.0)):
        for element in query_items(side):
            item, weight = _weighted(element, sign)
            item_vector = vector_of(item, vector, dim)
            if isinstance(item, (str, bytes)):
                words.append(to_bytes(item))
                item_vector = unit(item_vector)
            total += np.float32(weight) * item_vector
            weights += abs(weight)
    if not weights:
        raise DataError(
            "expected a word or a vector to search for, got none: "
            "wv.most_similar('king') or wv.most_similar(['king', 'woman'], ['man'])"
        )
    return unit(total / np.float32(weights)), words


def query_matrix(queries: Any, vector: VectorOf, dim: int) -> Float32:
    """Convert q queries of any form to float32[q, dim]; raises the errors of `mean_query`."""
    items = query_items(queries)
    if any(isinstance(item, (str, bytes)) for item in items):
        return np.stack([vector_of(item, vector, dim) for item in items])
    if not isinstance(queries, np.ndarray) or queries.ndim != 2:
        queries = items or np.empty((0, dim))
    return _checked(queries, 2, dim)


def vector_of(item: Any, vector: VectorOf, dim: int) -> Float32:
    """Return the vector of a word, or check a vector."""
    if isinstance(item, (str, bytes)):
        return vector(item)
    return _checked(item, 1, dim)


def query_items(query: Any) -> list[Any]:
    """Return the items of a query: one word, one vector, or the elements of a list."""
    if query is None:
        return []
    if isinstance(query, (str, bytes)):
        return [query]
    if hasattr(query, "__array__"):  # NumPy's arrays, columns of pandas, tensors
        array = np.asarray(query)
        return [array] if array.ndim == 1 and array.dtype.kind in "fiu" else list(array)
    if not isinstance(query, Iterable):
        raise DataError(f"expected a word, a vector, or a list of both, got {query!r}")
    items = list(query)
    return [items] if items and isinstance(items[0], Real) else items


def _weighted(item: Any, sign: float) -> tuple[Any, float]:
    """Split an item into word or vector and weight; without a weight it is `sign`."""
    pair = isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], Real)
    if pair and not isinstance(item[0], Real):
        return item[0], float(item[1])
    return item, sign


def _checked(vectors: Any, ndim: int, dim: int) -> Float32:
    """Convert one vector or a matrix of them to float32; each must have `dim` finite values."""
    try:
        array = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError):
        raise DataError(
            f"expected words or vectors of {dim} numbers, got {vectors!r:.80}"
        ) from None
    if array.ndim != ndim or array.shape[-1] != dim:
        raise DataError(
            f"expected a vector of {dim} numbers, got an array of shape "
            f"{list(array.shape)}: is it of another model?"
        )
    if not np.isfinite(array).all():
        raise DataError("a vector to search for has values that are not finite")
    return array
