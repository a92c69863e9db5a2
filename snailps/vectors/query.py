"""Queries of a set of word vectors: vector, neighbours, similarity, analogy.

    words + rows (word rows, then n-gram rows) -> Vectors -> numbers and words

Owns the counterparts of fastText's ``get_word_vector``, ``get_nearest_neighbors``,
``get_analogies`` and ``get_sentence_vector``, and of gensim's ``most_similar`` and
``doesnt_match``, with the same results.  Must not know formats of files, training or printing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from snailps.data._labelled import KeptGrams
from snailps.data._subwords import floret_ids, subword_ids
from snailps.data.extras import optional_module
from snailps.data.word_counts import END_OF_LINE
from snailps.errors import DataError, ModelFileError, UnknownWord
from snailps.vectors.fasttext_bin import BinModel
from snailps.vectors.quantised import QuantisedRows
from snailps.vectors.questions import Query, mean_query, query_matrix, unit, vector_of
from snailps.vectors.saving import save_vectors
from snailps.vectors.search import IndexReport, NeighbourIndex, nearest_rows, nearest_to
from snailps.vectors.words import (
    SPELLING_WORDS,
    WordNumbers,
    Words,
    close_spellings,
    did_you_mean,
    one_line,
    to_bytes,
    to_text,
)

if TYPE_CHECKING:
    import pandas
    from gensim.models import KeyedVectors
    from matplotlib.axes import Axes

log = logging.getLogger(__name__)

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
# The end-of-line token: an ordinary word in every list, but not suggested as a spelling.
_EOS = END_OF_LINE.decode()
# Rows gathered at a time when word vectors are composed: 2**16 rows of dim 100 are 26 MB.
_GATHER_ROWS = 1 << 16
# Values of words' units that are kept while sentences are averaged: 64 MB.
_UNIT_VALUES = 1 << 24
_Units = dict[bytes, Float32 | None]


class Neighbour(NamedTuple):
    """A word and its cosine similarity to the query, -1 to 1."""

    word: str
    score: float


class Vectors:
    """Word vectors: a mapping of words to vectors, with searches for near ones.

    `snailps.load` makes one from a file.

    Parameters
    ----------
    words : sequence of str or bytes, n of them
        If a word occurs twice, its first row is kept, with a warning, as in gensim.
    rows : float32[n, dim] or float32[n + bucket, dim]
        One row per word, followed by one per n-gram bucket if the model has subwords.  Kept, not
        copied; may be a memory map, of which only accessed rows are read, or `QuantisedRows`.
    minn, maxn, bucket : int
        Subword settings of the model; ``maxn = 0`` means none.
    hashes : int
        Of floret: rows of each word and n-gram among those of the buckets; 0: fastText's.
    pruned : KeptGrams, optional
        Of a pruned model: which n-gram rows were kept; `rows` has no others.

    Attributes
    ----------
    words : Sequence[str]
        In the order of the rows, normally most frequent first.  Bytes that are not UTF-8 become
        lone surrogates, as in `os.fsdecode`.
    dim : int
    has_subwords : bool
        Whether words that were never seen have a vector.

    Notes
    -----
    A word's vector is the mean of its own row and its n-gram rows, summed in that order.  The
    first search composes and normalises all n vectors once (4 x n x dim bytes, kept), and so does
    `vectors` of a model with subwords.  Reading from several threads is safe; what is kept may
    then be computed twice.

    References
    ----------
    Bojanowski, Grave, Joulin, Mikolov, "Enriching Word Vectors with Subword Information", 2017.

    Examples
    --------
    >>> rows = np.array([[0, 2], [3, 0], [0, -1], [1, 1]], dtype=np.float32)
    >>> wv = Vectors(["north", "east", "south", "northeast"], rows)
    >>> wv
    Vectors(4 words, dim 2)
    >>> wv["east"]
    array([3., 0.], dtype=float32)
    >>> wv[["north", "south"]].shape
    (2, 2)
    >>> "west" in wv, len(wv), list(wv)[:2]
    (False, 4, ['north', 'east'])
    >>> wv["norht"]
    Traceback (most recent call last):
    ...
    snailps.errors.UnknownWord: the word 'norht' is not in the model, ...did you mean north...?
    """

    def __init__(
        self,
        words: Sequence[str] | Sequence[bytes],
        rows: Float32 | QuantisedRows,
        *,
        minn: int = 0,
        maxn: int = 0,
        bucket: int = 0,
        hashes: int = 0,
        pruned: KeptGrams | None = None,
    ) -> None:
        self._raw = [to_bytes(word) for word in words]
        self.has_subwords = bucket > 0 and (hashes > 0 or (maxn > 0 and maxn >= minn))
        grams = 0
        if self.has_subwords:
            grams = bucket if pruned is None else len(pruned)
        expected = len(self._raw) + grams
        if not isinstance(rows, QuantisedRows):
            rows = np.asarray(rows, np.float32)
        if rows.ndim != 2 or len(rows) < expected or not self._raw:
            raise ModelFileError(
                f"expected at least one word and {expected} rows for {len(self._raw)} words and "
                f"{bucket} buckets, got an array of shape {list(rows.shape)}"
            )
        if len(self.index) < len(self._raw):
            del self.index
            rows = self._first_rows(rows, grams)
        self.dim = int(rows.shape[1])
        self._rows = rows
        self._subwords = (minn, maxn, bucket)
        self._hashes = hashes
        self._pruned = pruned
        self._model: BinModel | None = None
        self._near: NeighbourIndex | None = None

    def _first_rows(self, rows: Float32 | QuantisedRows, grams: int) -> Float32:
        """Leave out the later rows of words that occur again; a copy of the others."""
        n, first = len(self._raw), dict[bytes, int]()
        for number, word in enumerate(self._raw):
            first.setdefault(word, number)
        again = next(number for number, word in enumerate(self._raw) if first[word] != number)
        word = self._raw[again]
        log.warning(
            "%s of %s rows repeat a word: each word keeps its first row, and the others are left "
            "out; the first repeated word is %r, in rows %s and %s",
            f"{n - len(first):,}", f"{n:,}", to_text(word), f"{first[word] + 1:,}",
            f"{again + 1:,}",
        )  # fmt: skip
        self._raw = list(first)
        return rows[np.concatenate([[*first.values()], np.arange(n, n + grams)])]

    @classmethod
    def of_model(cls, model: BinModel) -> Vectors:
        """The vectors of a .bin file's words; those of a classifier are its inputs."""
        header = model.header
        vectors = cls(
            model.words,
            model.input,
            minn=header.minn,
            maxn=header.maxn,
            bucket=header.bucket,
            hashes=header.hashes,
            pruned=model.pruned,
        )
        vectors._model = model if len(vectors) == len(model.words) else None
        return vectors

    def __getstate__(self) -> dict[str, Any]:
        """For copies and other processes: with the rows, without an index and `save` as .bin."""
        state = {**self.__dict__, "_model": None, "_near": None}
        state.pop("index", None)  # made again when a word is asked for
        return state

    def __repr__(self) -> str:
        minn, maxn, _ = self._subwords
        subwords = f", subwords {minn} to {maxn}" if self.has_subwords else ""
        quantised = ", quantised" if isinstance(self._rows, QuantisedRows) else ""
        return f"Vectors({len(self):,} words, dim {self.dim}{subwords}{quantised})"

    def __len__(self) -> int:
        return len(self._raw)

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def __contains__(self, word: object) -> bool:
        """Whether a word is one of the model's; others may have a vector by their subwords."""
        return isinstance(word, (str, bytes)) and to_bytes(word) in self.index

    def __getitem__(self, words: str | bytes | Iterable[str | bytes]) -> Float32:
        """The vector of a word, float32[dim], or of several, float32[k, dim]; copies.

        Raises
        ------
        UnknownWord
            A `DataError` and a `KeyError`: the model does not have a word and cannot compose it.
        """
        if isinstance(words, (str, bytes)):
            return self.vector(words)
        if not isinstance(words, Iterable):
            raise DataError(
                f"expected a word or a list of words, got {words!r}; rows by number are "
                "wv.vectors[number], their words wv.words[number]"
            )
        found = [self.vector(word) for word in words]
        return np.stack(found) if found else np.empty((0, self.dim), np.float32)

    @property
    def words(self) -> Words:
        """All words as text; see the class."""
        return Words(self._raw)

    @property
    def raw_words(self) -> Sequence[bytes]:
        """All words as they are in the file: what writers of files take."""
        return self._raw

    @property
    def index_to_key(self) -> Words:
        """gensim's name of `words`."""
        return self.words

    @property
    def key_to_index(self) -> WordNumbers:
        """gensim's mapping of each word to its row."""
        return WordNumbers(self.index)

    @property
    def vector_size(self) -> int:
        """gensim's name of `dim`."""
        return self.dim

    @cached_property
    def vectors(self) -> Float32:
        """The vectors of all words in order, float32[n, dim], read-only.

        A view of the mapped file where that has them as they are (a model without subwords);
        else composed once and kept.
        """
        n = len(self._raw)
        if isinstance(self._rows, QuantisedRows) or self.has_subwords:
            matrix = np.empty((n, self.dim), np.float32)
            done = 0
            for chunk in self.chunks():
                matrix[done : done + len(chunk)] = chunk
                done += len(chunk)
        else:
            matrix = self._rows[:n].view()
        matrix.flags.writeable = False
        return matrix

    @cached_property
    def index(self) -> dict[bytes, int]:
        """Number of the row of each word, by its bytes; by text: `key_to_index`."""
        return dict(zip(self._raw, range(len(self._raw)), strict=True))

    @cached_property
    def normalised(self) -> Float32:
        """All word vectors at length 1, float32[n, dim]; a zero vector stays zero.

        Raises
        ------
        ModelFileError
            A vector holds NaN or an infinity.
        """
        matrix = np.empty((len(self._raw), self.dim), dtype=np.float32)
        done = 0
        for chunk in self.chunks():
            norms = np.sqrt(np.einsum("ij,ij->i", chunk, chunk))
            if not np.isfinite(norms).all():
                bad = done + int(np.argmin(np.isfinite(norms)))
                raise _not_finite(to_text(self._raw[bad]))
            norms[norms == 0] = 1
            np.divide(chunk, norms[:, None], out=matrix[done : done + len(chunk)])
            done += len(chunk)
        return matrix

    def chunks(self) -> Iterator[Float32]:
        """The vectors of all words in order, as float32[k, dim] pieces of bounded size.

        Input of `files.write_vec`, so that a .bin is converted to a .vec in little memory.
        """
        if not self.has_subwords or "vectors" in self.__dict__:
            rows = self.__dict__.get("vectors", self._rows)
            step = max(1, _GATHER_ROWS * 100 // self.dim)
            for start in range(0, len(self._raw), step):
                # A copy: rows of a mapped file are not aligned, which slows every later step.
                yield np.array(rows[start : min(start + step, len(self._raw))])
            return
        parts: list[Int32] = []
        gathered = 0
        for number, word in enumerate(self._raw):
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
        UnknownWord
            The model does not have the word and cannot compose it; suggests close spellings.
        """
        if not isinstance(word, (str, bytes)):
            raise DataError(f"expected a word, as str or bytes, got {word!r}")
        raw = to_bytes(word)
        number = self.index.get(raw)
        if number is None:
            return self._mean(self._unknown_ids(raw))
        return self._mean(self._known_ids(number, raw))

    def get_vector(self, word: str | bytes, norm: bool = False) -> Float32:
        """gensim's name of `vector`; with `norm` at length 1."""
        return unit(self.vector(word)) if norm else self.vector(word)

    def most_similar(
        self,
        positive: Query | Iterable[Query | tuple[Query, float]] = (),
        negative: Query | Iterable[Query | tuple[Query, float]] = (),
        *,
        topn: int = 10,
        restrict_vocab: int | Collection[str | bytes] | None = None,
    ) -> list[Neighbour]:
        """The words nearest to some words or vectors and far from others, best first.

        Parameters
        ----------
        positive, negative : a word, a vector float32[dim], or a list of both
            Words enter at length 1, vectors at their own.  An item of a list may be a pair of one
            of these and its weight, which counts as it is among the negative ones, too.
        topn : int
            Words wanted, at least 1.
        restrict_vocab : int or collection of words, optional
            Answer only with the so many first (most frequent) words, or only with these words;
            those that the model lacks are passed over.

        Returns
        -------
        list of Neighbour
            Word and cosine, -1 to 1.  Words of the question are no answers.

        Raises
        ------
        UnknownWord
            A word has no vector.
        DataError
            Nothing was asked, a vector is of another length or not finite, `topn` is below 1, or
            `restrict_vocab` leaves no word.

        Notes
        -----
        The results are those of gensim's `KeyedVectors.most_similar`.  2 x n x dim operations; an
        index (`build_index`) is used unless the vocabulary is restricted.

        Examples
        --------
        >>> rows = np.array([[0, 2], [3, 0], [0, -1], [1, 1]], dtype=np.float32)
        >>> wv = Vectors(["north", "east", "south", "northeast"], rows)
        >>> wv.most_similar("north", topn=1)
        [Neighbour(word='northeast', score=0.70710...)]
        >>> [word for word, _ in wv.most_similar(["north", "east"], ["south"])]
        ['northeast']
        >>> wv.most_similar(np.array([1, -9]), topn=1, restrict_vocab=["east", "south"])[0].word
        'south'
        """
        query, asked = mean_query(positive, negative, self.vector, self.dim)
        banned = [self.index[word] for word in dict.fromkeys(asked) if word in self.index]
        numbers, scores = self._search(query[None], topn, len(banned), restrict_vocab)
        found = zip(numbers[0].tolist(), scores[0].tolist(), strict=True)
        answers = [(number, score) for number, score in found if number not in banned]
        return [Neighbour(to_text(self._raw[i]), score) for i, score in answers[:topn]]

    def nearest(self, queries: Float32 | Iterable[Query], topn: int = 10) -> tuple[Int32, Float32]:
        """The words nearest to each of many queries.

        Parameters
        ----------
        queries : float[q, dim], or a list of q words and vectors
        topn : int
            Words wanted per query, at least 1; k below is the smaller of this and n.

        Returns
        -------
        numbers : int32[q, k]
            Of the words, nearest first: ``wv.words[number]``.  A word is its own nearest one.
        scores : float32[q, k]
            Cosines, -1 to 1; equal ones by rising number.

        Raises
        ------
        UnknownWord, DataError
            As `most_similar`.

        Notes
        -----
        Matrix products of bounded size: 2 x q x n x dim operations, some 40 MB of memory besides
        the normalised vectors and the results.

        Examples
        --------
        >>> wv = Vectors(["north", "east", "south"], np.float32([[0, 2], [3, 0], [0, -1]]))
        >>> numbers, scores = wv.nearest([[1.0, 2.0], [2.0, -1.0]], topn=2)
        >>> [[wv.words[i] for i in row] for row in numbers]
        [['north', 'east'], ['east', 'south']]
        """
        matrix = query_matrix(queries, self.vector, self.dim)
        norms = np.linalg.norm(matrix, axis=1)
        norms[norms == 0] = 1
        return self._search(matrix / norms[:, None], topn, 0, None)

    def neighbours(self, word: str | bytes, k: int = 10) -> list[Neighbour]:
        """The `k` words nearest by cosine, best first, without the word itself.

        Raises
        ------
        DataError
            See `vector`; or `k` below 1.
        """
        return self._neighbours(self.vector(word), k, [word])

    def similarity(self, a: Query, b: Query) -> float:
        """Cosine of two words' vectors (or of vectors), -1 to 1; 0 if one of them is zero.

        Raises
        ------
        UnknownWord
            A word has no vector.
        ModelFileError
            A word's vector holds NaN or an infinity.

        Examples
        --------
        >>> wv = Vectors(["north", "east", "south"], np.float32([[0, 2], [3, 0], [0, -1]]))
        >>> wv.similarity("north", "south"), wv.similarity("east", [1, 0])
        (-1.0, 1.0)
        """
        first, second = (vector_of(one, self.vector, self.dim) for one in (a, b))
        norms = float(np.linalg.norm(first)) * float(np.linalg.norm(second))
        if not np.isfinite(norms):
            word = b if np.isfinite(np.linalg.norm(first)) else a
            raise _not_finite(to_text(word) if isinstance(word, bytes) else str(word))
        return float(first @ second) / norms if norms > 0 else 0.0

    def doesnt_match(self, words: Iterable[str | bytes]) -> str:
        """The word that fits the others least: the farthest from the mean of their unit vectors.

        Raises
        ------
        UnknownWord
            A word has no vector.  (gensim passes over such words with a warning.)
        DataError
            There are no words.

        Examples
        --------
        >>> rows = np.array([[0, 2], [3, 0], [0, -1], [1, 1]], dtype=np.float32)
        >>> wv = Vectors(["north", "east", "south", "northeast"], rows)
        >>> wv.doesnt_match(["north", "northeast", "east", "south"])
        'south'
        """
        asked = [words] if isinstance(words, (str, bytes)) else list(words)
        if not asked:
            raise DataError("expected some words of which one does not match, got none")
        units = np.stack([unit(self.vector(word)) for word in asked])
        scores = (units @ unit(units.mean(axis=0))).tolist()
        texts = [to_text(to_bytes(word)) for word in asked]
        return min(zip(scores, texts, strict=True))[1]

    def sentence_vector(self, text: str | bytes) -> Float32:
        """The mean of the unit vectors of a line's words, float32[dim].

        Words without a vector, and zero vectors, are left out; zeros if none is left.  The numbers
        are those of the official package's ``get_sentence_vector`` for word vectors.

        Raises
        ------
        DataError
            The text has more than one line.

        Examples
        --------
        >>> wv = Vectors(["north", "east", "south"], np.float32([[0, 2], [3, 0], [0, -1]]))
        >>> wv.sentence_vector("north by east")
        array([0.5, 0.5], dtype=float32)
        """
        return self._sentence_vector(text, {})

    def sentence_vectors(self, texts: Iterable[str | bytes]) -> Float32:
        """`sentence_vector` of each text, float32[n, dim]; composes a word's vector once.

        Raises
        ------
        DataError
            A text has more than one line, or `texts` is a single one.

        Examples
        --------
        >>> wv = Vectors(["north", "east", "south"], np.float32([[0, 2], [3, 0], [0, -1]]))
        >>> wv.sentence_vectors(["north by east", "nowhere"])
        array([[0.5, 0.5],
               [0. , 0. ]], dtype=float32)
        """
        if isinstance(texts, (str, bytes)):
            raise DataError(f"expected a list of sentences, got one: [{texts!r:.60}]")
        units: _Units = {}
        found = [self._sentence_vector(text, units) for text in texts]
        return np.stack(found) if found else np.empty((0, self.dim), np.float32)

    def _sentence_vector(self, text: str | bytes, units: _Units) -> Float32:
        """The mean of a line's `units`: of words, to which new ones are added, None without one."""
        total = np.zeros(self.dim, np.float32)
        count = 0
        for word in one_line(text).split():
            if word not in units:
                if len(units) * self.dim >= _UNIT_VALUES:
                    units.clear()
                units[word] = self._unit_of(word)
            unit_of_word = units[word]
            if unit_of_word is not None:
                total += unit_of_word
                count += 1
        total /= np.float32(max(count, 1))
        return total

    def _unit_of(self, word: bytes) -> Float32 | None:
        """A word's vector at length 1; None if it has none, or zeros; looks for no spellings."""
        number = self.index.get(word)
        if number is not None:
            vector = self._mean(self._known_ids(number, word))
        elif self.has_subwords and len(ids := self._gram_ids(word)):
            vector = self._mean(ids)
        else:
            return None
        norm = np.linalg.norm(vector)
        return vector / norm if norm > 0 else None

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
        return self._neighbours(query, k, [a, b, c])

    def close_spellings(self, word: str | bytes, k: int = 3) -> list[str]:
        """Up to `k` known words that are spelt nearly like `word`, other upper/lower case first."""
        often = (known for known in map(to_text, self._raw[:SPELLING_WORDS]) if known != _EOS)
        return close_spellings(to_text(to_bytes(word)), often, self, k)

    def build_index(
        self,
        *,
        connectivity: int = 16,
        expansion_build: int = 128,
        expansion: int = 128,
        threads: int = 0,
    ) -> IndexReport:
        """Builds a graph by which `most_similar` and `nearest` search faster, and nearly as well.

        Until then, and after `drop_index`, the search is exact.  Needs ``snailps[index]``.

        Parameters
        ----------
        connectivity : int
            Links of a word, at least 2.  More: better recall, more memory.
        expansion_build, expansion : int
            Candidates while the graph is built, and while it is searched, at least 1.  More:
            better recall, slower.
        threads : int
            For building; 0: one per core.

        Returns
        -------
        IndexReport
            With the recall, measured on words of the model.  Scores stay exact.

        Raises
        ------
        ConfigError
            usearch is not installed, or a number is too small.

        Notes
        -----
        Worth its time for many queries of some 100,000 words and more: the exact search takes 6 ns
        a word and query at dim 100 on one core (32 ns for a query alone), building the graph
        0.1 ms a word.  Memory: a second copy of the normalised vectors, and 28 x connectivity
        bytes a word.  With more than one thread the graph is another one each time.
        """
        self._near = NeighbourIndex(
            self.normalised,
            connectivity=connectivity,
            expansion_build=expansion_build,
            expansion=expansion,
            threads=threads,
        )
        return self._near.report()

    def drop_index(self) -> None:
        """Searches are exact again, and the memory of the index is free."""
        self._near = None

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame of n rows, named by the words, and dim columns of float32; a copy.

        Needs pandas.
        """
        pandas = optional_module("pandas", "to_pandas", "pandas")
        # Of objects: other types of text refuse lone surrogates.
        names = pandas.Index(list(self.words), dtype=object, name="word")
        return pandas.DataFrame(np.array(self.vectors), index=names)

    def to_gensim(self) -> KeyedVectors:
        """gensim's KeyedVectors with the same words and vectors, and the counts if known; a copy.

        It has the words of the model only: no vectors by subwords for others.  Needs gensim.
        """
        gensim = optional_module("gensim.models", "to_gensim", "gensim")
        vectors = gensim.KeyedVectors(self.dim)
        words = [*self.words]
        vectors.add_vectors(words, self.vectors)
        if self._model is not None:
            for word, count in zip(words, self._model.counts.tolist(), strict=True):
                vectors.set_vecattr(word, "count", count)
        return vectors

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file of the format that its name ends in.

        ``.npz``: words (with blanks, too) and vectors at full precision; ``.vec``: text with five
        digits; ``.bin``: fastText's, with subwords, of vectors that were loaded from such a file.

        Raises
        ------
        ModelFileError
            Another ending, a folder that is missing or full, a word that the format cannot hold,
            or a .bin of vectors without the rest of a fastText model.
        """
        save_vectors(path, self._raw, self.chunks(), self.dim, self._model)

    def plot(
        self,
        words: str | Iterable[str] | None = None,
        *,
        count: int = 60,
        ax: Axes | None = None,
        labels: bool = True,
    ) -> Axes:
        """A map of words: the plane in which their unit vectors differ most (PCA).

        Parameters
        ----------
        words : str or list of str, optional
            What is shown: a word and those nearest to it, or these words; left out: the most
            frequent words.
        count : int
            Number of words where they are not given, 2 to 1,000.
        ax : matplotlib Axes, optional
            Where to draw; a new figure if left out.
        labels : bool
            Whether words are written beside their points.

        Returns
        -------
        matplotlib Axes
            With the shares of the variance in the labels of its axes.

        Raises
        ------
        UnknownWord
            A word has no vector.
        ConfigError
            matplotlib is not installed: ``pip install 'snailps[plot]'``.
        DataError
            There are fewer than two words.

        Examples
        --------
        >>> ax = wv.plot("king", count=30)  # doctest: +SKIP
        >>> ax.figure.savefig("king.png")  # doctest: +SKIP
        """
        from snailps.vectors.word_map import draw_map

        if not 2 <= count <= 1000:
            raise DataError(f"count: expected 2 to 1,000 words, got {count}")
        if words is None:
            names = [word for word in self.words[: count + 1] if word != _EOS][:count]
        elif isinstance(words, str):
            names = [words, *(word for word, _ in self.most_similar(words, topn=count - 1))]
        else:
            names = list(dict.fromkeys(words))
        if len(names) < 2:
            raise DataError(f"a map needs at least two words, got {len(names)}")
        units = np.stack([unit(self.vector(word)) for word in names])
        return draw_map(names, units, ax, labels)

    def _neighbours(self, query: Float32, k: int, banned: Iterable[str | bytes]) -> list[Neighbour]:
        """The `k` words nearest to a vector, without some."""
        if not isinstance(k, Integral) or k < 1:
            raise DataError(f"expected a number of neighbours of at least 1, got {k}")
        bans = [self.index[raw] for raw in map(to_bytes, banned) if raw in self.index]
        found = zip(*nearest_to(self.normalised, query, k, bans), strict=True)
        return [Neighbour(to_text(self._raw[number]), score) for number, score in found]

    def _search(
        self,
        queries: Float32,
        topn: int,
        more: int,
        restrict: int | Collection[str | bytes] | None,
    ) -> tuple[Int32, Float32]:
        """Numbers and cosines of the `topn + more` words (or all) nearest to unit queries."""
        if not isinstance(topn, Integral) or topn < 1:
            raise DataError(f"topn: expected at least 1 neighbour, got {topn}")
        k = topn + more
        if restrict is None and self._near is not None:
            return self._near.search(queries, min(k, len(self._raw)))
        matrix = self.normalised
        if restrict is None:
            return nearest_rows(matrix, queries, min(k, len(matrix)))
        if isinstance(restrict, (int, np.integer)):
            if restrict < 1:
                raise DataError(f"restrict_vocab: expected at least 1 word, got {restrict}")
            first = matrix[:restrict]
            return nearest_rows(first, queries, min(k, len(first)))
        if isinstance(restrict, (str, bytes)):
            raise DataError(
                f"restrict_vocab: expected a number or a list of words, got {restrict!r}"
            )
        known = {self.index[raw] for raw in map(to_bytes, restrict) if raw in self.index}
        if not known:
            raise DataError(
                f"restrict_vocab: none of its {len(restrict):,} words is in the model; check "
                "their spelling and case"
            )
        rows = np.array(sorted(known), np.int32)
        numbers, scores = nearest_rows(matrix[rows], queries, min(k, len(rows)))
        return rows[numbers], scores

    def _known_ids(self, number: int, word: bytes) -> Int32:
        """Rows whose mean is the vector of a word of the model: its own, then its n-grams'."""
        own = np.array([number], dtype=np.int32)
        if not self.has_subwords:
            return own
        if self._hashes and number:  # floret leaves the own row of the first word alone
            return self._gram_ids(word)
        return np.concatenate([own, self._gram_ids(word)])

    def _gram_ids(self, word: bytes) -> Int32:
        """Rows of a word's n-grams, in floret's mode of the word, too."""
        if self._hashes:
            return floret_ids(word, *self._subwords, self._hashes, len(self._raw))
        ids = subword_ids(word, *self._subwords, len(self._raw))
        if self._pruned is None:
            return ids
        first = np.int32(len(self._raw))
        rows = self._pruned.rows(ids - first) + first
        kept: Int32 = rows[rows >= first]
        return kept

    def _unknown_ids(self, raw: bytes) -> Int32:
        """Rows of the n-grams of a word that the model never saw."""
        if self.has_subwords:
            ids = self._gram_ids(raw)
            if len(ids):
                return ids
            letters = max(self._subwords[0], 1)
            reason = f"is not in the model, and has no n-grams of {letters} or more letters"
            if self._pruned is not None:
                reason += " that were kept when the model was pruned"
        else:
            reason = "is not in the model, which has no subwords to compose it from"
        hint = did_you_mean(self.close_spellings(raw))
        raise UnknownWord(f"the word {to_text(raw)!r} {reason}{hint}")

    def _mean(self, ids: npt.NDArray[np.int32]) -> Float32:
        """Mean of some rows, float32[dim]; added one after the other, as in `_means`."""
        total: Float32 = np.add.reduce(np.asarray(self._rows[ids]), axis=0, dtype=np.float32)
        total *= np.float32(1.0 / max(len(ids), 1))
        return total

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
        sums *= (1.0 / np.maximum(lengths[order], 1)).astype(np.float32)[:, None]
        means = np.empty_like(sums)
        means[order] = sums
        return means


def _not_finite(word: str) -> ModelFileError:
    """The error for a word whose vector has NaN or an infinity."""
    return ModelFileError(
        f"the vector of {word!r} is not finite: the training diverged or the file is damaged; "
        "train again with a lower learning rate"
    )
