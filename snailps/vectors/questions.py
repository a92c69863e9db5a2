"""Questions of a search: words, vectors and lists of both, made into vectors.

    word, vector, list of both (perhaps with weights) -> mean_query -> one unit vector, its words
    many of them -> query_matrix -> float32[q, dim]

Vectors of words come from the caller's function.  Must not know rows or searches.
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
    """A vector at length 1; a zero vector stays zero."""
    norm = np.float32(np.linalg.norm(vector))
    return np.divide(vector, norm, dtype=np.float32) if norm > 0 else vector


def mean_query(
    positive: Any, negative: Any, vector: VectorOf, dim: int
) -> tuple[Float32, list[bytes]]:
    """The unit mean of a question's items, float32[dim], and the words in it.

    Words have length 1, vectors their own; negative items and weights are subtracted.
    """
    total = np.zeros(dim, np.float32)
    weights = 0.0
    words: list[bytes] = []
    for given, sign in ((positive, 1.0), (negative, -1.0)):
        for one in _items(given):
            item, weight = _weighted(one, sign)
            found = vector_of(item, vector, dim)
            if isinstance(item, (str, bytes)):
                words.append(to_bytes(item))
                found = unit(found)
            total += np.float32(weight) * found
            weights += abs(weight)
    if not weights:
        raise DataError(
            "expected a word or a vector to search for, got none: "
            "wv.most_similar('king') or wv.most_similar(['king', 'woman'], ['man'])"
        )
    return unit(total / np.float32(weights)), words


def query_matrix(queries: Any, vector: VectorOf, dim: int) -> Float32:
    """Queries of any form as float32[q, dim]; errors are those of `mean_query`."""
    items = _items(queries)
    if any(isinstance(item, (str, bytes)) for item in items):
        return np.stack([vector_of(item, vector, dim) for item in items])
    if not isinstance(queries, np.ndarray) or queries.ndim != 2:
        queries = items or np.empty((0, dim))
    return _checked(queries, 2, dim)


def vector_of(item: Any, vector: VectorOf, dim: int) -> Float32:
    """The vector of a word, or a vector after a check."""
    if isinstance(item, (str, bytes)):
        return vector(item)
    return _checked(item, 1, dim)


def _items(given: Any) -> list[Any]:
    """The items of a question: one word, one vector, or what a list of them holds."""
    if given is None:
        return []
    if isinstance(given, (str, bytes)):
        return [given]
    if hasattr(given, "__array__"):  # NumPy's arrays, columns of pandas, tensors
        array = np.asarray(given)
        return [array] if array.ndim == 1 and array.dtype.kind in "fiu" else list(array)
    if not isinstance(given, Iterable):
        raise DataError(f"expected a word, a vector, or a list of both, got {given!r}")
    items = list(given)
    return [items] if items and isinstance(items[0], Real) else items


def _weighted(item: Any, sign: float) -> tuple[Any, float]:
    """An item of a question and its weight: that of a pair, else `sign`."""
    pair = isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], Real)
    if pair and not isinstance(item[0], Real):
        return item[0], float(item[1])
    return item, sign


def _checked(given: Any, ndim: int, dim: int) -> Float32:
    """An array of vectors of `dim` finite values, as float32."""
    try:
        array = np.asarray(given, dtype=np.float32)
    except (TypeError, ValueError):
        raise DataError(f"expected words or vectors of {dim} numbers, got {given!r:.80}") from None
    if array.ndim != ndim or array.shape[-1] != dim:
        raise DataError(
            f"expected a vector of {dim} numbers, got an array of shape "
            f"{list(array.shape)}: is it of another model?"
        )
    if not np.isfinite(array).all():
        raise DataError("a vector to search for has values that are not finite")
    return array
