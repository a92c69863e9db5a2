"""Queries of a set of word vectors: vector, neighbours, similarity, analogy.

    words + rows (word rows, then n-gram rows) -> Vectors -> numbers and words

Owns the counterparts of fastText's ``get_word_vector``, ``get_nearest_neighbors`` and
``get_analogies``, with the same results.  Must not know files, training or printing.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from snailps.data._subwords import subword_ids
from snailps.errors import DataError, ModelFileError

Float32 = npt.NDArray[np.float32]

# The end-of-line token: an ordinary word in every list, but not suggested as a spelling.
_EOS = b"</s>"
# Rows gathered at a time when word vectors are composed: 2**16 rows of dim 100 are 26 MB.
_GATHER_ROWS = 1 << 16
# Words searched for close spellings, most frequent first: some 50 ms.
_SPELLING_WORDS = 20_000


class Neighbour(NamedTuple):
    """A word and its cosine similarity to the query, -1 to 1."""

    word: str
    score: float


def to_bytes(word: str | bytes) -> bytes:
    """The bytes of a word; the inverse of `to_text`."""
    return word if isinstance(word, bytes) else word.encode("utf-8", "surrogateescape")


def to_text(word: bytes) -> str:
    """A word as text; bytes that are not UTF-8 become lone surrogates, as in `os.fsdecode`."""
    return word.decode("utf-8", "surrogateescape")


class Vectors:
    """Word vectors, for queries.

    Parameters
    ----------
    words : sequence of bytes, n of them
        If a word occurs twice, its first row counts.
    rows : float32[n, dim] or float32[n + bucket, dim]
        One row per word, followed by one per n-gram bucket if the model has subwords.  Kept, not
        copied; may be a memory map, of which only accessed rows are read.
    minn, maxn, bucket : int
        Subword settings of the model; ``maxn = 0`` means none.

    Attributes
    ----------
    words : list of bytes
    dim : int
    has_subwords : bool
        Whether words that were never seen have a vector.

    Notes
    -----
    A word's vector is the mean of its own row and its n-gram rows, summed in that order.  The
    first neighbour query composes and normalises all n vectors once (4 x n x dim bytes, kept).
    Reading from several threads is safe; the first query may then be computed twice.

    References
    ----------
    Bojanowski, Grave, Joulin, Mikolov, "Enriching Word Vectors with Subword Information", 2017.
    """

    def __init__(
        self,
        words: Sequence[bytes],
        rows: Float32,
        *,
        minn: int = 0,
        maxn: int = 0,
        bucket: int = 0,
    ) -> None:
        self.words = list(words)
        self.has_subwords = bucket > 0 and maxn > 0 and maxn >= minn
        expected = len(self.words) + (bucket if self.has_subwords else 0)
        if rows.ndim != 2 or len(rows) < expected or not self.words:
            raise ModelFileError(
                f"expected at least one word and {expected} rows for {len(self.words)} words and "
                f"{bucket} buckets, got an array of shape {list(rows.shape)}"
            )
        self.dim = int(rows.shape[1])
        self._rows = rows
        self._subwords = (minn, maxn, bucket)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return isinstance(word, (str, bytes)) and to_bytes(word) in self.index

    @cached_property
    def index(self) -> dict[bytes, int]:
        """Number of the (first) row of each word."""
        last_wins = zip(reversed(self.words), range(len(self.words) - 1, -1, -1), strict=True)
        return dict(last_wins)

    @cached_property
    def normalised(self) -> Float32:
        """All word vectors at length 1, float32[n, dim]; a zero vector stays zero.

        Raises
        ------
        ModelFileError
            A vector holds NaN or an infinity.
        """
        matrix = np.empty((len(self.words), self.dim), dtype=np.float32)
        done = 0
        for chunk in self.chunks():
            norms = np.sqrt(np.einsum("ij,ij->i", chunk, chunk))
            if not np.isfinite(norms).all():
                bad = done + int(np.argmin(np.isfinite(norms)))
                raise ModelFileError(
                    f"the vector of {to_text(self.words[bad])!r} is not finite: the training "
                    "diverged or the file is damaged; train again with a lower learning rate"
                )
            norms[norms == 0] = 1
            np.divide(chunk, norms[:, None], out=matrix[done : done + len(chunk)])
            done += len(chunk)
        return matrix

    def chunks(self) -> Iterator[Float32]:
        """The vectors of all words in order, as float32[k, dim] pieces of bounded size.

        Input of `files.write_vec`, so that a .bin is converted to a .vec in little memory.
        """
        if not self.has_subwords:
            step = max(1, _GATHER_ROWS * 100 // self.dim)
            for start in range(0, len(self.words), step):
                # A copy: rows of a mapped file are not aligned, which slows every later step.
                yield np.array(self._rows[start : min(start + step, len(self.words))])
            return
        parts: list[npt.NDArray[np.int32]] = []
        gathered = 0
        for number, word in enumerate(self.words):
            parts.append(self._known_ids(number, word))
            gathered += len(parts[-1])
            if gathered >= _GATHER_ROWS:
                yield self._means(parts)
                parts, gathered = [], 0
        if parts:
            yield self._means(parts)

    def vector(self, word: str | bytes) -> Float32:
        """The vector of a word, float32[dim], a copy.

        Raises
        ------
        DataError
            The model does not have the word and cannot compose it; suggests close spellings.
        """
        raw = to_bytes(word)
        number = self.index.get(raw)
        if number is None:
            return self._mean(self._unknown_ids(raw))
        return self._mean(self._known_ids(number, raw))

    def neighbours(self, word: str | bytes, k: int = 10) -> list[Neighbour]:
        """The `k` words nearest by cosine, best first, without the word itself.

        Raises
        ------
        DataError
            See `vector`; or `k` below 1.
        """
        return self._nearest(self.vector(word), k, [word])

    def similarity(self, a: str | bytes, b: str | bytes) -> float:
        """Cosine of two words' vectors, -1 to 1; 0 if one of them is zero."""
        first, second = self.vector(a), self.vector(b)
        norms = float(np.linalg.norm(first)) * float(np.linalg.norm(second))
        return float(first @ second) / norms if norms > 0 else 0.0

    def analogy(
        self, a: str | bytes, b: str | bytes, c: str | bytes, k: int = 10
    ) -> list[Neighbour]:
        """The `k` words nearest to ``a - b + c``, best first, without the three.

        Each of the three vectors is normalised first, as the official package does.
        So ``analogy("berlin", "germany", "france")`` asks for paris.
        """
        query = np.zeros(self.dim, dtype=np.float32)
        for word, sign in ((a, 1.0), (b, -1.0), (c, 1.0)):
            vector = self.vector(word)
            # The tiny number is the official package's guard against zero vectors.
            query += vector * np.float32(sign / (float(np.linalg.norm(vector)) + 1e-8))
        return self._nearest(query, k, [a, b, c])

    def close_spellings(self, word: str | bytes, k: int = 3) -> list[str]:
        """Up to `k` known words that are spelt nearly like `word`, other upper/lower case first."""
        text = to_text(to_bytes(word))
        cased = [form for form in (text.lower(), text.title(), text.upper()) if form in self]
        near = [
            to_text(known)
            for known in self.words[:_SPELLING_WORDS]
            if abs(len(known) - len(text)) <= 2 and known != _EOS
        ]
        found = dict.fromkeys(cased + difflib.get_close_matches(text, near, n=k))
        found.pop(text, None)
        return list(found)[:k]

    def _nearest(self, query: Float32, k: int, banned: Iterable[str | bytes]) -> list[Neighbour]:
        if k < 1:
            raise DataError(f"expected a number of neighbours of at least 1, got {k}")
        scores = self.normalised @ query
        norm = float(np.linalg.norm(query))
        if norm >= 1e-8:
            scores /= np.float32(norm)
        bans = {to_bytes(word) for word in banned}
        for ban in bans:
            if ban in self.index:
                scores[self.index[ban]] = -np.inf
        k = min(k, len(scores))
        best = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
        # By score; equal scores in order of frequency.
        best = best[np.lexsort((best, -scores[best]))][:k]
        return [
            Neighbour(to_text(self.words[number]), float(scores[number]))
            for number in best.tolist()
            if scores[number] != -np.inf
        ]

    def _known_ids(self, number: int, word: bytes) -> npt.NDArray[np.int32]:
        """Rows whose mean is the vector of a word of the model: its own, then its n-grams'."""
        own = np.array([number], dtype=np.int32)
        if not self.has_subwords:
            return own
        return np.concatenate([own, subword_ids(word, *self._subwords, len(self.words))])

    def _unknown_ids(self, word: bytes) -> npt.NDArray[np.int32]:
        """Rows of the n-grams of a word that the model never saw."""
        if self.has_subwords:
            ids = subword_ids(word, *self._subwords, len(self.words))
            if len(ids):
                return ids
            letters = max(self._subwords[0], 1)
            reason = f"is not in the model, and has no n-grams of {letters} or more letters"
        else:
            reason = "is not in the model, which has no subwords to compose it from"
        close = self.close_spellings(word)
        hint = f"; did you mean {' or '.join(close)}?" if close else "; check its spelling and case"
        raise DataError(f"the word {to_text(word)!r} {reason}{hint}")

    def _mean(self, ids: npt.NDArray[np.int32]) -> Float32:
        """Mean of some rows, float32[dim]."""
        return self._means([ids]).reshape(-1)

    def _means(self, ids: Sequence[npt.NDArray[np.int32]]) -> Float32:
        """Mean of each group of rows, float32[len(ids), dim].

        Rows are added one after the other, longest groups first so that those with a j-th row are
        always a prefix: the same order, and so the same rounding, as in the official package.
        """
        lengths = np.array([len(group) for group in ids])
        order = np.argsort(-lengths, kind="stable")
        starts = np.concatenate([[0], np.cumsum(lengths)])[order]
        flat = np.concatenate(ids)
        sums = np.zeros((len(ids), self.dim), dtype=np.float32)
        for position in range(int(lengths.max())):
            having = int(np.count_nonzero(lengths > position))
            sums[:having] += self._rows[flat[starts[:having] + position]]
        sums *= (1.0 / lengths[order]).astype(np.float32)[:, None]
        means = np.empty_like(sums)
        means[order] = sums
        return means
