"""The names of gensim's ``KeyedVectors`` that `Vectors` answers to.

    wv.n_similarity, rank, closer_than, distances, ... -> searches of `Vectors` -> gensim's results

Only names, and the few definitions that `Vectors` has no other name for.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from snailps.data.arguments import whole_number
from snailps.errors import DataError
from snailps.vectors.questions import Query, query_items, unit, vector_of
from snailps.vectors.saving import warn_of_normal_form, write_word2vec
from snailps.vectors.text_files import write_vec
from snailps.vectors.words import WordNumbers, Words

Float32 = npt.NDArray[np.float32]
_TINY = 1e-6
"""gensim adds it to the divisor of `most_similar_cosmul`."""


class _Queried(Protocol):
    """What the names below use of `Vectors`."""

    dim: int
    normalize: str

    @property
    def words(self) -> Words: ...
    @property
    def raw_words(self) -> Iterable[bytes]: ...
    @property
    def index(self) -> dict[bytes, int]: ...
    @property
    def normalised(self) -> Float32: ...
    def vector(self, word: str | bytes, /) -> Float32: ...
    def number(self, word: str | bytes, /) -> int: ...
    def query_form(self, word: str | bytes, /) -> bytes: ...
    def chunks(self) -> Iterator[Float32]: ...
    def similarity(self, a: Query, b: Query, /) -> float: ...
    def distances(self, word_or_vector: Query, other_words: Collection[str] = (), /) -> Float32: ...
    def closer_than(self, key1: str, key2: str, /) -> list[str]: ...
    def most_similar(
        self, positive: Any, *, topn: int, restrict_vocab: int | None
    ) -> Sequence[tuple[str, float]]: ...


class GensimNames:
    """A base of `Vectors`."""

    @property
    def index_to_key(self: _Queried) -> Words:
        """gensim's name for `words`."""
        return self.words

    @property
    def key_to_index(self: _Queried) -> WordNumbers:
        """gensim's mapping from a word to its row number."""
        return WordNumbers(self.index, self.query_form)

    @property
    def vector_size(self: _Queried) -> int:
        """gensim's name for `dim`."""
        return self.dim

    def get_vector(self: _Queried, word: str | bytes, norm: bool = False) -> Float32:
        """gensim's name for `vector`; `norm` scales the vector to length 1."""
        return unit(self.vector(word)) if norm else self.vector(word)

    def similar_by_word(
        self: _Queried, word: str | bytes, topn: int = 10, restrict_vocab: int | None = None
    ) -> Sequence[tuple[str, float]]:
        """gensim's name for `most_similar` of one word."""
        return self.most_similar([word], topn=topn, restrict_vocab=restrict_vocab)

    similar_by_key = similar_by_word

    def similar_by_vector(
        self: _Queried, vector: Float32, topn: int = 10, restrict_vocab: int | None = None
    ) -> Sequence[tuple[str, float]]:
        """gensim's name for `most_similar` of one vector, float32[dim]; no word is left out."""
        return self.most_similar([vector], topn=topn, restrict_vocab=restrict_vocab)

    def distance(self: _Queried, w1: str, w2: str) -> float:
        """Return 1 - `similarity`."""
        return 1 - self.similarity(w1, w2)

    def distances(
        self: _Queried, word_or_vector: Query, other_words: Collection[str] = ()
    ) -> Float32:
        """Return 1 - cosine of a word or vector and each of `other_words`; by default of all words.

        Returns
        -------
        float32[k]
        """
        query = unit(vector_of(word_or_vector, self.vector, self.dim))
        if not len(other_words):
            units = self.normalised
        else:
            units = np.stack([unit(self.vector(word)) for word in other_words])
        distances: Float32 = np.float32(1) - units @ query
        return distances

    def closer_than(self: _Queried, key1: str, key2: str) -> list[str]:
        """Return the words nearer to `key1` than `key2` is, in the order of the rows."""
        distances = self.distances(key1)
        row1, row2 = self.number(key1), self.number(key2)
        limit = self.distances(key1, [key2])[0] if row2 < 0 else distances[row2]
        nearer = np.flatnonzero(distances < limit).tolist()
        return [self.words[number] for number in nearer if number != row1]

    def rank(self: _Queried, key1: str, key2: str) -> int:
        """Return which neighbour of `key1` the word `key2` is; 1: the nearest."""
        return len(self.closer_than(key1, key2)) + 1

    def n_similarity(self: _Queried, ws1: Collection[str], ws2: Collection[str]) -> float:
        """Return the cosine of the mean vectors of two lists of words, -1 to 1.

        Raises
        ------
        UnknownWord
            A word has no vector.  (gensim ignores such words.)
        DataError
            A list is empty.
        """
        if not len(ws1) or not len(ws2):
            raise DataError("n_similarity: expected two lists of words, got an empty one")
        first, second = (np.mean([self.vector(word) for word in ws], axis=0) for ws in (ws1, ws2))
        return self.similarity(first, second)

    def most_similar_to_given(self: _Queried, key1: str, keys_list: Iterable[str]) -> str:
        """Return the word of a list that is nearest to `key1`; the first of equal ones."""
        keys = list(keys_list)
        if not keys:
            raise DataError("keys_list: expected some words, got none")
        return max(keys, key=lambda key: self.similarity(key1, key))

    def most_similar_cosmul(
        self: _Queried,
        positive: Query | Iterable[Query] = (),
        negative: Query | Iterable[Query] = (),
        topn: int = 10,
        restrict_vocab: int | None = None,
    ) -> list[tuple[str, float]]:
        """Find words by the product of similarities (3CosMul): no single term dominates.

        Parameters
        ----------
        positive, negative : a word, a vector float32[dim], or a list of both
        topn : int
            Number of words, at least 1.
        restrict_vocab : int, optional
            Search only the first, most frequent words.

        Returns
        -------
        list of (str, float)
            Best first, without the words of the query.  The score is the product of
            (1 + cosine) / 2 over `positive`, divided by the same product over `negative`.

        Raises
        ------
        UnknownWord, DataError
            As in `most_similar`.

        References
        ----------
        Levy, Goldberg, "Linguistic Regularities in Sparse and Explicit Word Representations", 2014.
        """
        wanted, unwanted = query_items(positive), query_items(negative)
        if not wanted:
            raise DataError("most_similar_cosmul: expected a word or a vector, got none")
        if restrict_vocab is not None:
            expected = "restrict_vocab: expected at least 1 word"
            restrict_vocab = whole_number(restrict_vocab, 1, expected)
        topn = whole_number(topn, 1, "topn: expected at least 1 word")
        matrix = self.normalised[:restrict_vocab]
        scores = np.ones(len(matrix), np.float32)
        divisor = np.ones(len(matrix), np.float32)
        for items, product in ((wanted, scores), (unwanted, divisor)):
            for item in items:
                term = vector_of(item, self.vector, self.dim)
                # Words have length 1, vectors their own, as in gensim.
                term = unit(term) if isinstance(item, (str, bytes)) else term
                product *= (1 + matrix @ term) / 2
        scores /= divisor + np.float32(_TINY)
        asked = {self.number(item) for item in wanted + unwanted if isinstance(item, (str, bytes))}
        best = np.argsort(-scores, kind="stable")[: topn + len(asked)].tolist()
        answers = [(self.words[row], float(scores[row])) for row in best if row not in asked]
        return answers[:topn]

    def save_word2vec_format(
        self: _Queried, fname: str | os.PathLike[str], *, binary: bool = False
    ) -> None:
        """Write word2vec's text (a .vec, five digits) or, with `binary`, its binary (all digits).

        Neither keeps `normalize`; a warning says so.

        Raises
        ------
        ModelFileError
            The file cannot be written, or cannot hold a word.
        """
        warn_of_normal_form(fname, self.normalize)
        write = write_word2vec if binary else write_vec
        write(fname, [*self.raw_words], self.chunks(), self.dim)
