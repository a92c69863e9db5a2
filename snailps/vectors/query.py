"""Queries of word vectors: vector, neighbours, similarity, analogy, sentence vector.

    words + rows (word rows, then n-gram rows) -> Vectors -> numbers and words

Owns the counterparts of fastText's ``get_word_vector``, ``get_nearest_neighbors``,
``get_analogies`` and ``get_sentence_vector``, and of gensim's ``most_similar`` and
``doesnt_match``; their results are the same.  Must not know file formats, training or printing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from snailps.data._labelled import KeptGrams
from snailps.data._normaliser import Normaliser
from snailps.data._subwords import floret_ids, subword_ids
from snailps.data.arguments import whole_number
from snailps.data.normal_forms import normal_parts
from snailps.data.vocabulary import LABEL_PREFIX
from snailps.data.word_counts import END_OF_LINE
from snailps.errors import DataError, ModelFileError, UnknownWord
from snailps.files.extras import optional_module
from snailps.vectors._one_line import OneWord
from snailps.vectors.fasttext_bin import BinModel
from snailps.vectors.gensim_names import GensimNames
from snailps.vectors.quantised import QuantisedRows
from snailps.vectors.questions import Query, mean_query, query_matrix, unit, vector_of
from snailps.vectors.saving import save_vectors
from snailps.vectors.search import IndexReport, NeighbourIndex, nearest_rows, nearest_to
from snailps.vectors.words import (
    SPELLING_WORDS,
    Words,
    close_spellings,
    did_you_mean,
    ngrams,
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
# The end-of-line token is a word like any other, except that it is never suggested as a spelling.
_EOS = END_OF_LINE.decode()
# Rows gathered at a time when word vectors are composed: 2**16 rows of dim 100 are 26 MB.
_GATHER_ROWS = 1 << 16
# Cached values of unit vectors while sentences are averaged: 64 MB.
_UNIT_VALUES = 1 << 24
_Units = dict[bytes, Float32 | None]


class Neighbour(NamedTuple):
    """A word and its cosine similarity to the query, -1 to 1."""

    word: str
    score: float


class Vectors(GensimNames):
    """Word vectors: a mapping from words to vectors, with nearest-neighbour search.

    `snailps.load` opens one from a file.

    Parameters
    ----------
    words : sequence of n str or bytes
        If a word occurs twice, its first row counts and a warning is logged, as in gensim.
    rows : float32[n, dim] or float32[n + bucket, dim]
        One row per word, followed by one per n-gram bucket if the model has subwords.  Not copied:
        it may be a memory map, of which only accessed rows are read, or `QuantisedRows`.
    minn, maxn, bucket : int
        Subwords: n-grams of `minn` to `maxn` characters, hashed to `bucket` rows; ``maxn=0``: none.
    hashes : int
        For floret's models: bucket rows summed per word and n-gram, 1 to 4; 0: a fastText model.
    pruned : KeptGrams, optional
        For a pruned model: the n-grams whose rows it has.
    normalize : str
        Normal form of the words of every query: parts separated by commas, such as ``nfkc,lower``
        (the setting of that name).  A word of the vocabulary stays as it is.

    Attributes
    ----------
    words : Sequence[str]
        In the order of the rows, normally most frequent first.  Bytes that are not UTF-8 become
        lone surrogates, as in `os.fsdecode`.
    dim : int
        Length of a vector.
    has_subwords : bool
        Whether a word outside the vocabulary has a vector.
    normalize : str
        Parts of the normal form of queries; empty: none.

    Notes
    -----
    A word's vector is the mean of its own row and its n-gram rows, summed in that order.  The
    first search composes and normalises all n vectors and caches them (4 x n x dim bytes);
    `vectors` does the same for a model with subwords.  Queries from several threads are safe; the
    worst that can happen is that two threads compute a cached value twice.

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
        normalize: str = "",
    ) -> None:
        self._raw = [to_bytes(word) for word in words]
        try:
            self.normalize = normal_parts(normalize)
        except ValueError as error:
            raise DataError(f"normalize: {error}; got {normalize!r:.80}") from None
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
        """Return a copy of the rows with only the first row of each word."""
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
        """Make vectors of a .bin file's words; for a classifier, the vectors of its input words."""
        header = model.header
        vectors = cls(
            model.words,
            model.input,
            minn=header.minn,
            maxn=header.maxn,
            bucket=header.bucket,
            hashes=header.hashes,
            pruned=model.pruned,
            normalize=header.normalize,
        )
        vectors._model = model if len(vectors) == len(model.words) else None
        return vectors

    def __getstate__(self) -> dict[str, Any]:
        """For copy and pickle: with the rows, without index; a copy cannot be saved as .bin."""
        state = {**self.__dict__, "_model": None, "_near": None}
        for name in ("index", "_one", "_normaliser"):  # made again on first access
            state.pop(name, None)
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
        """Whether a word is in the vocabulary; others may still have a vector by subwords."""
        return isinstance(word, (str, bytes)) and self.number(word) >= 0

    def __getitem__(self, words: str | bytes | Iterable[str | bytes]) -> Float32:
        """Return the vector of a word, float32[dim], or of k words, float32[k, dim]; a copy.

        Raises
        ------
        UnknownWord
            A word is not in the vocabulary and has no n-gram vectors.  It is a `DataError` and a
            `KeyError`.
        """
        if isinstance(words, (str, bytes)):
            return self.vector(words)
        if not isinstance(words, Iterable):
            raise DataError(
                f"expected a word or a list of words, got {words!r}; rows by number are "
                "wv.vectors[number], their words wv.words[number]"
            )
        vectors = [self.vector(word) for word in words]
        return np.stack(vectors) if vectors else np.empty((0, self.dim), np.float32)

    @property
    def words(self) -> Words:
        """All n words as str, in the order of the rows; decoded on access."""
        return Words(self._raw)

    @property
    def raw_words(self) -> Sequence[bytes]:
        """All n words as the bytes in the file, in the order of the rows."""
        return self._raw

    @cached_property
    def vectors(self) -> Float32:
        """The vectors of all words in order, float32[n, dim], read-only.

        Without subwords it is a view of the file or array; else it is composed on first access and
        cached (4 x n x dim bytes).
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
        """Row number of each word, by its bytes; `key_to_index` is the same by str."""
        return dict(zip(self._raw, range(len(self._raw)), strict=True))

    @cached_property
    def _normaliser(self) -> Normaliser:
        return Normaliser(self.normalize, label_prefix=LABEL_PREFIX)

    def normal_form(self, text: bytes) -> bytes:
        """Return a text in the normal form of the model (setting `normalize`)."""
        return self._normaliser.of(text) if self.normalize else text

    def query_form(self, word: str | bytes) -> bytes:
        """Return a word as the model looks it up, as bytes: a word of the vocabulary as it is, any
        other in its normal form."""
        raw = to_bytes(word)
        return raw if not self.normalize or raw in self.index else self._normaliser.of(raw)

    def number(self, word: str | bytes) -> int:
        """Return the row number of a word, or -1."""
        return self.index.get(self.query_form(word), -1)

    @cached_property
    def normalised(self) -> Float32:
        """All word vectors scaled to length 1, float32[n, dim]; a zero vector stays zero.

        Computed on first access and cached.

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
        """Yield the vectors of all words in order, as float32[k, dim] pieces of bounded size.

        Writers of files use it, so that a .bin of any size is converted in little memory.
        """
        if not self.has_subwords or "vectors" in self.__dict__:
            rows = self.__dict__.get("vectors", self._rows)
            step = max(1, _GATHER_ROWS * 100 // self.dim)
            for start in range(0, len(self._raw), step):
                # Copied, because rows of a mapped file are unaligned, which slows every use.
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
        """Return the vector of a word, float32[dim]; a copy.

        Raises
        ------
        UnknownWord
            The word is not in the vocabulary and has no n-gram vectors; the text suggests close
            spellings.
        DataError
            `word` is no str or bytes.
        """
        if not isinstance(word, (str, bytes)):
            raise DataError(f"expected a word, as str or bytes, got {word!r}")
        raw = self.query_form(word)
        if raw not in self.index and not len(self._row_numbers(raw)):
            raise self._unknown(raw)
        return self._word_vector(raw)

    def word_vector(self, word: str | bytes) -> Float32:
        """Return the vector of a word, float32[dim], or zeros for one without row and n-grams."""
        return self._word_vector(self.query_form(word))

    def _word_vector(self, raw: bytes) -> Float32:
        if self._one is None:
            return self.mean(self._row_numbers(raw))
        return self._one.vector(self.index.get(raw, -1), raw)

    def row_numbers(self, word: str | bytes) -> Int32:
        """Return the numbers of the rows whose mean is a word's vector, int32[k].

        Its own row, if it is in the vocabulary, then the rows of its n-grams: fastText's ids.
        Empty for a word that has no vector; it is not an error here.
        """
        return self._row_numbers(self.query_form(word))

    def _row_numbers(self, raw: bytes) -> Int32:
        number = self.index.get(raw)
        if number is not None:
            return self._known_ids(number, raw)
        return self._gram_ids(raw) if self.has_subwords else np.empty(0, np.int32)

    def subwords(self, word: str | bytes) -> tuple[list[bytes], Int32]:
        """Return a word and its n-grams as bytes, and the number of the row of each, int32[k].

        The rows are the same as in `row_numbers`; n-grams whose rows a pruned model lacks are left
        out.

        Examples
        --------
        >>> wv = Vectors(["ab"], np.zeros((9, 2), np.float32), minn=3, maxn=3, bucket=8)
        >>> wv.subwords("ab")
        ([b'ab', b'<ab', b'ab>'], array([0, 5, 5], dtype=int32))
        """
        raw = self.query_form(word)
        number = self.index.get(raw)
        words = [raw] if number is not None and not (self._hashes and number) else []
        grams: Iterable[bytes] = ()
        if self.has_subwords and raw != END_OF_LINE:
            grams = ngrams(raw, *self._subwords[:2])
            if self._hashes:
                whole = b"<" + raw + b">"
                grams = (gram for gram in (whole, *grams) for _ in range(self._hashes))
            elif self._pruned is not None:
                grams = compress(
                    grams, self._pruned.rows(subword_ids(raw, *self._subwords, 0)) >= 0
                )
        return [*words, *grams], self._row_numbers(raw)

    def most_similar(
        self,
        positive: Query | Iterable[Query | tuple[Query, float]] = (),
        negative: Query | Iterable[Query | tuple[Query, float]] = (),
        *,
        topn: int = 10,
        restrict_vocab: int | Collection[str | bytes] | None = None,
    ) -> list[Neighbour]:
        """Find the words nearest to the mean of some words or vectors, minus others.

        Parameters
        ----------
        positive, negative : a word, a vector float32[dim], or a list of both
            Words are scaled to length 1, vectors are not.  An item of a list may be a pair (word or
            vector, weight); a weight is used as it is, in `negative` too.
        topn : int
            Number of words, at least 1.
        restrict_vocab : int or collection of words, optional
            A number searches only that many words, the first (most frequent) ones.  A collection
            searches only its words, of which unknown ones are ignored.

        Returns
        -------
        list of Neighbour
            Word and cosine, -1 to 1, best first, without the words of the query.

        Raises
        ------
        UnknownWord
            A word has no vector.
        DataError
            The query is empty, a vector has another length or is not finite, `topn` is below 1, or
            `restrict_vocab` has no word of the vocabulary.

        Notes
        -----
        The results equal gensim's `KeyedVectors.most_similar`.  It takes 2 x n x dim operations,
        or far fewer with an index (`build_index`), which is used unless `restrict_vocab` is set.

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
        banned = self._known_numbers(asked)
        numbers, scores = self._search(query[None], topn, len(banned), restrict_vocab)
        nearest = zip(numbers[0].tolist(), scores[0].tolist(), strict=True)
        answers = [(number, score) for number, score in nearest if number not in banned]
        return [Neighbour(to_text(self._raw[i]), score) for i, score in answers[:topn]]

    def nearest(self, queries: Float32 | Iterable[Query], topn: int = 10) -> tuple[Int32, Float32]:
        """Find the words nearest to each of q queries.

        Parameters
        ----------
        queries : float[q, dim], or a list of q words and vectors
        topn : int
            Number of words per query, at least 1; k below is the smaller of `topn` and n.

        Returns
        -------
        numbers : int32[q, k]
            Row numbers, nearest first; the word is ``wv.words[number]``.  A word that is asked
            for is its own nearest neighbour, unlike in `most_similar`.
        scores : float32[q, k]
            Cosines, -1 to 1; equal scores in ascending order of numbers.

        Raises
        ------
        UnknownWord, DataError
            As in `most_similar`.

        Notes
        -----
        Matrix products of bounded size: 2 x q x n x dim operations, and some 40 MB of memory
        besides the normalised vectors and the results.

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

    def neighbours(self, word: Query, k: int = 10) -> list[Neighbour]:
        """Find the `k` words nearest to a word or vector by cosine, best first, without `word`.

        Scores equal fastText's ``get_nearest_neighbors`` to the last bit; `most_similar` equals
        gensim.  An index is not used.

        Raises
        ------
        UnknownWord
            As in `vector`.
        DataError
            `k` is below 1.
        """
        banned = [word] if isinstance(word, (str, bytes)) else []
        return self._neighbours(vector_of(word, self.vector, self.dim), k, banned)

    def similarity(self, a: Query, b: Query) -> float:
        """Return the cosine of two words or vectors, -1 to 1; 0 if one of them is zero.

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
        first, second = (vector_of(item, self.vector, self.dim) for item in (a, b))
        norms = float(np.linalg.norm(first)) * float(np.linalg.norm(second))
        if not np.isfinite(norms):
            word = b if np.isfinite(np.linalg.norm(first)) else a
            raise _not_finite(to_text(word) if isinstance(word, bytes) else str(word))
        return float(first @ second) / norms if norms > 0 else 0.0

    def doesnt_match(self, words: Iterable[str | bytes]) -> str:
        """Return the word that fits least: the farthest from the mean of all unit vectors.

        Raises
        ------
        UnknownWord
            A word has no vector.  (gensim ignores such words with a warning.)
        DataError
            `words` is empty.

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
        """Return the mean of the unit vectors of a line's words, float32[dim].

        Words without a vector and zero vectors are left out; if no word remains, the result is
        zero.  The numbers equal fastText's ``get_sentence_vector`` for word vectors.

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
        """Return the `sentence_vector` of n texts, float32[n, dim]; each word is composed once.

        Raises
        ------
        DataError
            A text has more than one line, or `texts` is a single str.

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
        vectors = [self._sentence_vector(text, units) for text in texts]
        return np.stack(vectors) if vectors else np.empty((0, self.dim), np.float32)

    def _sentence_vector(self, text: str | bytes, units: _Units) -> Float32:
        """Average a line's unit vectors; `units` caches them, with None for a word without one."""
        total = np.zeros(self.dim, np.float32)
        count = 0
        for word in self.normal_form(one_line(text)).split():
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
        """Return a word's unit vector; None if it has none or a zero vector.

        Unlike `vector` it never looks for close spellings, which takes milliseconds a word.
        """
        rows = self._row_numbers(word)
        if not len(rows):
            return None
        vector = self.mean(rows)
        norm = np.linalg.norm(vector)
        return vector / norm if norm > 0 else None

    def analogy(self, a: Query, b: Query, c: Query, k: int = 10) -> list[Neighbour]:
        """Find the `k` words nearest to ``a - b + c``, best first, without the three.

        ``analogy("berlin", "germany", "france")`` asks for paris.  The three words or vectors are
        scaled to length 1 first, as in fastText.

        Raises
        ------
        UnknownWord
            As in `vector`.
        DataError
            `k` is below 1.
        """
        query = np.zeros(self.dim, dtype=np.float32)
        for word, sign in ((a, 1.0), (b, -1.0), (c, 1.0)):
            vector = vector_of(word, self.vector, self.dim)
            # fastText's own guard against zero vectors; without it scores differ in the last bit.
            query += vector * np.float32(sign / (float(np.linalg.norm(vector)) + 1e-8))
        words = [word for word in (a, b, c) if isinstance(word, (str, bytes))]
        return self._neighbours(query, k, words)

    def close_spellings(self, word: str | bytes, k: int = 3) -> list[str]:
        """Return up to `k` words spelt nearly like `word`, other upper or lower case first.

        Only the 20,000 most frequent words are compared, which takes some 50 ms.
        """
        often = (text for text in map(to_text, self._raw[:SPELLING_WORDS]) if text != _EOS)
        return close_spellings(to_text(to_bytes(word)), often, self, k)

    def build_index(
        self,
        *,
        connectivity: int = 16,
        expansion_build: int = 128,
        expansion: int = 128,
        threads: int = 0,
    ) -> IndexReport:
        """Build an approximate index (HNSW) for `most_similar` and `nearest`.

        Without it, and after `drop_index`, the search is exact.  Needs ``snailps[index]``.

        Parameters
        ----------
        connectivity : int
            Links per word, at least 2.  More links give better recall and take more memory.
        expansion_build, expansion : int
            Candidates while the graph is built, and while it is searched, at least 1.  More
            candidates give better recall and slower answers.
        threads : int
            Threads that build the graph; 0: one per core.

        Returns
        -------
        IndexReport
            Size, and the recall measured on words of the model.  The scores of the words that a
            search finds are exact.

        Raises
        ------
        ConfigError
            usearch is not installed, or a number is too small.

        Notes
        -----
        Worth it for many queries of 100,000 words or more: building takes 0.1 ms per word, the
        exact search 6 ns per word and query at dim 100 on one core (32 ns for a single query).
        The index takes a second copy of the normalised vectors and 28 x connectivity bytes per
        word.  With more than one thread each build gives a slightly different graph.
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
        """Free the index; searches are exact again."""
        self._near = None

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame of n rows, indexed by word, and dim float32 columns; a copy.

        Raises
        ------
        ConfigError
            pandas is not installed.
        """
        pandas = optional_module("pandas", "to_pandas", "pandas")
        # Python objects, because pandas' types of text refuse lone surrogates.
        names = pandas.Index(list(self.words), dtype=object, name="word")
        return pandas.DataFrame(np.array(self.vectors), index=names)

    def to_gensim(self) -> KeyedVectors:
        """Return gensim's KeyedVectors with the same words, vectors and, if known, counts; a copy.

        It has no subwords, so words outside the vocabulary have no vector there, and no
        `normalize`: ask it for words in that form.

        Raises
        ------
        ConfigError
            gensim is not installed.
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
        """Write the vectors in the format that the ending of `path` names.

        ``.npz``: words, which may have blanks, and float32 vectors.  ``.vec``: text with five
        significant digits, which cannot keep `normalize`; a warning says so.  ``.bin``: fastText's
        format with subwords, only for vectors that were loaded from a .bin or come from a fitted
        estimator.

        Raises
        ------
        ModelFileError
            Unknown ending, a file that cannot be written, a word that the format cannot hold, or a
            .bin of vectors that lack the rest of a fastText model.
        """
        save_vectors(path, self._raw, self.chunks(), self.dim, self._model, self.normalize)

    def plot(
        self,
        words: str | Iterable[str] | None = None,
        *,
        count: int = 60,
        ax: Axes | None = None,
        labels: bool = True,
    ) -> Axes:
        """Plot a map of words: their unit vectors on the plane of largest variance (PCA).

        Parameters
        ----------
        words : str or list of str, optional
            A str: the word and its nearest neighbours.  A list: these words.  By default the most
            frequent words.
        count : int
            Number of words unless `words` is a list, 2 to 1,000.
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.
        labels : bool
            Whether to write the words beside their points.

        Returns
        -------
        matplotlib Axes
            Its axes are labelled with their shares of the variance.

        Raises
        ------
        UnknownWord
            A word has no vector.
        ConfigError
            matplotlib is not installed: ``pip install 'snailps[plot]'``.
        DataError
            Fewer than two words, or `count` is out of range.

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
        """Find the `k` words nearest to a vector, without the words in `banned`."""
        k = whole_number(k, 1, "expected a number of neighbours of at least 1")
        bans = self._known_numbers(banned)
        nearest = zip(*nearest_to(self.normalised, query, k, bans), strict=True)
        return [Neighbour(to_text(self._raw[number]), score) for number, score in nearest]

    def _search(
        self,
        queries: Float32,
        topn: int,
        more: int,
        restrict: int | Collection[str | bytes] | None,
    ) -> tuple[Int32, Float32]:
        """Find the `topn + more` words nearest to unit queries: numbers and cosines.

        `more` is the number of words that the caller will leave out of the answer.
        """
        k = whole_number(topn, 1, "topn: expected at least 1 neighbour") + more
        if restrict is None and self._near is not None:
            return self._near.search(queries, min(k, len(self._raw)))
        matrix = self.normalised
        if restrict is None:
            return nearest_rows(matrix, queries, min(k, len(matrix)))
        if isinstance(restrict, (str, bytes)):
            raise DataError(
                f"restrict_vocab: expected a number or a list of words, got {restrict!r}"
            )
        if not isinstance(restrict, Iterable):
            expected = "restrict_vocab: expected at least 1 word, or a list of words"
            first = matrix[: whole_number(restrict, 1, expected)]
            return nearest_rows(first, queries, min(k, len(first)))
        allowed = self._known_numbers(restrict)
        if not allowed:
            raise DataError(
                f"restrict_vocab: none of its {len(restrict):,} words is in the model; check "
                "their spelling and case"
            )
        rows = np.array(sorted(allowed), np.int32)
        numbers, scores = nearest_rows(matrix[rows], queries, min(k, len(rows)))
        return rows[numbers], scores

    def _known_numbers(self, words: Iterable[str | bytes]) -> list[int]:
        """Return the row numbers of the words that are in the vocabulary, each once."""
        numbers = dict.fromkeys(map(self.number, words))
        return [number for number in numbers if number >= 0]

    @cached_property
    def _one(self) -> OneWord | None:
        """What sums a word's rows fast; None: they are quantised, pruned or of floret."""
        rows = self._rows
        if isinstance(rows, QuantisedRows) or self._pruned is not None or self._hashes:
            return None
        if rows.strides != (4 * rows.shape[1], 4):
            return None
        minn, maxn, bucket = self._subwords if self.has_subwords else (0, 0, 0)
        return OneWord(rows, minn, maxn, bucket, len(self._raw))

    def _known_ids(self, number: int, word: bytes) -> Int32:
        """Return the rows whose mean is a word's vector: its own row, then its n-gram rows."""
        word_row = np.array([number], dtype=np.int32)
        if not self.has_subwords:
            return word_row
        # floret hashes words too, so they have no rows of their own, except word 0.
        if self._hashes and number:
            return self._gram_ids(word)
        return np.concatenate([word_row, self._gram_ids(word)])

    def _gram_ids(self, word: bytes) -> Int32:
        """Return the rows of a word's n-grams; for floret's mode also of the word."""
        if self._hashes:
            return floret_ids(word, *self._subwords, self._hashes, len(self._raw))
        ids = subword_ids(word, *self._subwords, len(self._raw))
        if self._pruned is None:
            return ids
        first = np.int32(len(self._raw))
        rows = self._pruned.rows(ids - first) + first
        unpruned: Int32 = rows[rows >= first]  # -1: the n-gram's row was pruned
        return unpruned

    def _unknown(self, raw: bytes) -> UnknownWord:
        """Make the error for a word outside the vocabulary without rows of n-grams."""
        if self.has_subwords:
            letters = max(self._subwords[0], 1)
            reason = f"is not in the model, and has no n-grams of {letters} or more letters"
            if self._pruned is not None:
                reason += " that the pruned model still has"
        else:
            reason = "is not in the model, which has no subwords to compose it from"
        hint = did_you_mean(self.close_spellings(raw))
        return UnknownWord(f"the word {to_text(raw)!r} {reason}{hint}")

    def mean(self, rows: npt.NDArray[np.int32]) -> Float32:
        """Average rows by their numbers, float32[dim]; zeros for none.

        Summed in order, so that it equals the rows of `vectors` to the bit.
        """
        total: Float32 = np.add.reduce(np.asarray(self._rows[rows]), axis=0, dtype=np.float32)
        total *= np.float32(1.0 / max(len(rows), 1))
        return total

    def _means(self, ids: Sequence[npt.NDArray[np.int32]]) -> Float32:
        """Average each group of rows, float32[len(ids), dim].

        Position by position: the first rows of all groups are added, then the second, and so on.
        Groups are ordered by falling length, so the groups that have a j-th row are a prefix.  Each
        group is thus summed in its own order, which gives the same rounding as fastText.
        """
        lengths = np.array([len(group) for group in ids])
        order = np.argsort(-lengths, kind="stable")
        starts = np.concatenate([[0], np.cumsum(lengths)])[order]
        flat = np.concatenate(ids)
        sums = np.zeros((len(ids), self.dim), dtype=np.float32)
        for position in range(int(lengths.max())):
            groups = int(np.count_nonzero(lengths > position))
            sums[:groups] += self._rows[flat[starts[:groups] + position]]
        sums *= (1.0 / np.maximum(lengths[order], 1)).astype(np.float32)[:, None]
        means = np.empty_like(sums)
        means[order] = sums
        return means


def _not_finite(word: str) -> ModelFileError:
    """Make the error for a word whose vector has NaN or an infinity."""
    return ModelFileError(
        f"the vector of {word!r} is not finite: the training diverged or the file is damaged; "
        "train again with a lower learning rate"
    )
