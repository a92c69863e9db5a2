"""Evaluation of word vectors: similarity judgements and analogies.

    Vectors + lines `word<TAB>word<TAB>score`  -> evaluate_similarity -> Spearman correlation
    Vectors + word2vec's question lines         -> evaluate_analogies  -> share answered right

Owns the two file formats and gensim's protocol: words that differ only in case are the same word,
for which the first (most frequent) in the model counts; items with words outside the vocabulary are
skipped and counted.  Must not know where vectors come from, or how scores are printed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from snailps.dataclass import dataclass
from snailps.errors import DataError
from snailps.files.file_kinds import HEAD_BYTES, refuse_foreign
from snailps.vectors.query import Vectors
from snailps.vectors.words import to_bytes, to_text

log = logging.getLogger(__name__)

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
OovRule: TypeAlias = Literal["skip", "subword"]

# Questions and words of one matrix product: large enough for BLAS to run at full speed, small
# enough that the scores (1,024 x 4,096 float32, 16 MB) are searched while still in the cache.
_QUESTIONS_TOGETHER = 1024
_WORDS_TOGETHER = 4096


class Pair(NamedTuple):
    """Two words, and how similar people judge them to be (on any scale)."""

    first: str
    second: str
    score: float


@dataclass(frozen=True, slots=True)
class SimilarityResult:
    """Result for a similarity file.

    `spearman` is None with fewer than two different scores on a side.  `pairs` were scored; `oov`
    were not, because a word has no vector: `skipped` lists them in the order of the file.
    """

    spearman: float | None
    pairs: int
    oov: int
    skipped: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class SectionResult:
    """Result for a section of an analogy file: `correct` of `asked` questions.

    `oov` questions were `skipped`, because a word is not in the vocabulary.  `accuracy` is None if
    no question was asked.
    """

    name: str
    accuracy: float | None
    correct: int
    asked: int
    oov: int
    skipped: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class AnalogyResult:
    """Result for an analogy file: the sums and shares of its `sections`."""

    accuracy: float | None
    correct: int
    asked: int
    oov: int
    sections: tuple[SectionResult, ...]


def similarity_file(path: str | os.PathLike[str]) -> list[Pair]:
    """Read lines of ``word<TAB>word<TAB>score`` (or separated by blanks).

    Skips empty lines, lines that begin with ``#``, and a first line with names of columns.
    """
    pairs: list[Pair] = []
    has_names = False
    for number, line in _lines(path):
        parts = [part.strip() for part in (line.split("\t") if "\t" in line else line.split())]
        if len(parts) != 3 or not (parts[0] and parts[1]):
            raise DataError(
                f"{path}, line {number}: expected 'word<TAB>word<TAB>score', got a line of "
                f"{len(parts)} fields; is it a similarity file?"
            )
        try:
            score = float(parts[2])
        except ValueError:
            if not pairs and not has_names:
                log.info("%s, line %d: names of columns: %s", path, number, ", ".join(parts))
                has_names = True
                continue
            score = float("nan")
        if not np.isfinite(score):
            raise DataError(
                f"{path}, line {number}: expected 'word<TAB>word<TAB>score', got the score "
                f"{parts[2]!r:.60}, which is no finite number"
            )
        pairs.append(Pair(parts[0], parts[1], score))
    if not pairs:
        raise DataError(f"{path}: expected lines of 'word<TAB>word<TAB>score', got none")
    return pairs


def evaluate_similarity(
    vectors: Vectors,
    path: str | os.PathLike[str],
    oov: OovRule = "skip",
) -> SimilarityResult:
    """Compute the rank correlation between cosines and people's judgements.

    The result equals gensim's `evaluate_word_pairs`.  `oov` decides about a pair with a word
    outside the vocabulary: "skip" leaves it out, so that models with and without subwords are
    comparable; "subword" scores it if the model can compose the word, as in the fastText paper.
    """
    cosines, judgements = [], []
    skipped: list[tuple[str, ...]] = []
    pairs = similarity_file(path)
    numbers = _cased(vectors.raw_words)
    for first, second, score in pairs:
        rows = [numbers.get(_upper(vectors, word)) for word in (first, second)]
        if None in rows and not (oov == "subword" and vectors.has_subwords):
            skipped.append((first, second))
            continue
        asked = [
            vectors.raw_words[number] if number is not None else to_bytes(word.lower())
            for word, number in zip((first, second), rows, strict=True)
        ]
        try:
            cosines.append(vectors.similarity(*asked))
        except DataError:  # too short for a single n-gram
            skipped.append((first, second))
            continue
        judgements.append(score)
    rho = spearman(np.array(cosines), np.array(judgements))
    return SimilarityResult(rho, len(cosines), len(skipped), tuple(skipped))


def _cased(words: Sequence[bytes]) -> dict[str, int]:
    """Map each word in upper case, as gensim does, to the number of the first such word."""
    numbers: dict[str, int] = {}
    for number, word in enumerate(words):
        numbers.setdefault(to_text(word).upper(), number)
    return numbers


def _upper(vectors: Vectors, word: str) -> str:
    """Return a word of a question in the model's normal form, and in upper case."""
    return to_text(vectors.normal_form(to_bytes(word))).upper()


def spearman(first: npt.NDArray[np.floating], second: npt.NDArray[np.floating]) -> float | None:
    """Compute Spearman's rank correlation of two float[n]; equal values share their mean rank.

    None with fewer than two different values on a side.
    """
    if len(first) < 2:
        return None
    a, b = _mean_ranks(first), _mean_ranks(second)
    a -= a.mean()
    b -= b.mean()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm > 0 else None


def evaluate_analogies(
    vectors: Vectors, path: str | os.PathLike[str], restrict: int = 0
) -> AnalogyResult:
    """Compute the share of questions ``a b c d`` where d is nearest to ``b - a + c`` (3CosAdd).

    The file has word2vec's format.  `restrict` limits questions and answers to that many words, the
    first (most frequent) ones; 0: all.  Vectors are scaled to length 1.  a, b and c,
    in upper or lower case, are never answers; d is right in either case.  The result equals
    gensim's `evaluate_word_analogies`.  Memory is the normalised matrix and some 20 MB.

    Mikolov, Yih, Zweig, "Linguistic Regularities in Continuous Space Word Representations", 2013.
    """
    if restrict < 0:
        raise DataError(f"expected a number of words to restrict to of 0 or more, got {restrict}")
    size = min(restrict or len(vectors), len(vectors))
    names, sections, questions = read_analogies(path)
    # A word outside the vocabulary, or beyond `restrict`, gets the number `size`, so its question
    # is not `asked`.
    listed = vectors.raw_words[:size]
    number = _cased(listed)
    ids = np.array(
        [[number.get(_upper(vectors, word), size) for word in question] for question in questions],
        dtype=np.int64,
    )
    first = np.array([number[to_text(word).upper()] for word in listed], dtype=np.int64)
    section = np.array(sections, dtype=np.int64)
    asked = ids.max(axis=1) < size
    right = np.zeros(len(ids), dtype=bool)
    answers = analogy_answers(vectors.normalised[:size], ids[asked], first)
    right[asked] = (answers >= 0) & (first[answers] == ids[asked, 3])
    results = []
    for i, name in enumerate(names):
        here = section == i
        skipped = tuple(questions[j] for j in np.flatnonzero(here & ~asked).tolist())
        correct, count = int(right[here].sum()), int(asked[here].sum())
        accuracy = correct / count if count else None
        results.append(SectionResult(name, accuracy, correct, count, len(skipped), skipped))
    correct, count = int(right.sum()), int(asked.sum())
    return AnalogyResult(
        correct / count if count else None, correct, count, len(asked) - count, tuple(results)
    )


def analogy_answers(matrix: Float32, questions: Int64, first_of: Int64) -> Int64:
    """Return for each question (a, b, c, _) the row nearest to b - a + c other than the three.

    `first_of` maps a row to the first row of the same word in any case; questions name such rows.
    The query is not normalised, because its length does not change which row is nearest.
    """
    again = np.flatnonzero(first_of != np.arange(len(first_of)))  # rows of another case
    again = again[np.argsort(first_of[again], kind="stable")]
    of_again = first_of[again]
    answers = np.empty(len(questions), dtype=np.int64)
    for start in range(0, len(questions), _QUESTIONS_TOGETHER):
        part = questions[start : start + _QUESTIONS_TOGETHER]
        queries = matrix[part[:, 1]] - matrix[part[:, 0]] + matrix[part[:, 2]]
        rows = np.arange(len(part))
        asked = part[:, :3].reshape(-1)
        begin, end = (np.searchsorted(of_again, asked, side) for side in ("left", "right"))
        number = end - begin
        # Rows that are no answers, with their question: a, b and c, and their other cases.
        banned = np.concatenate([asked, again[_ranges(begin, number)]])
        of_question = np.repeat(rows, 3)
        of_banned = np.concatenate([of_question, np.repeat(of_question, number)])
        best = np.full(len(part), -np.inf, dtype=np.float32)
        answer = np.full(len(part), -1, dtype=np.int64)
        for first in range(0, len(matrix), _WORDS_TOGETHER):
            scores = queries @ matrix[first : first + _WORDS_TOGETHER].T
            here = (banned >= first) & (banned < first + scores.shape[1])
            scores[of_banned[here], banned[here] - first] = -np.inf
            place = scores.argmax(axis=1)
            score = scores[rows, place]
            better = score > best
            best[better] = score[better]
            answer[better] = place[better] + first
        answers[start : start + len(part)] = answer
    return answers


def _ranges(begin: Int64, number: Int64) -> Int64:
    """Concatenate the ranges ``begin[i]`` to ``begin[i] + number[i]``, without a loop in Python."""
    starts = np.repeat(begin - np.cumsum(number) + number, number)
    return starts + np.arange(len(starts))


def read_analogies(
    path: str | os.PathLike[str],
) -> tuple[list[str], list[int], list[tuple[str, ...]]]:
    """Read names of sections, the section of each question, and the questions."""
    names: list[str] = []
    sections: list[int] = []
    questions: list[tuple[str, ...]] = []
    for number, line in _lines(path):
        if line.startswith(":"):
            names.append(line[1:].strip())
            continue
        words = tuple(line.split())
        if len(words) != 4:
            raise DataError(
                f"{path}, line {number}: expected ': section' or four words, got "
                f"{len(words)} words; is it an analogy file?"
            )
        if not names:
            names.append("")
        sections.append(len(names) - 1)
        questions.append(words)
    if not questions:
        raise DataError(f"{path}: expected lines of four words, got none")
    return names, sections, questions


def _mean_ranks(values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Rank values from 1; equal values share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: npt.NDArray[np.float64] = (last - (counts - 1) / 2)[place.reshape(-1)]
    return ranks


def _lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file with their numbers, without empty lines and comments."""
    try:
        with open(path, "rb") as file:
            refuse_foreign(file.read(HEAD_BYTES), str(path), text=True)
            file.seek(0)
            for number, raw in enumerate(file, 1):
                line = to_text(raw).strip("\ufeff\r\n ")
                if line and not line.startswith("#"):
                    yield number, line
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read: {error.strerror or error}; check the path"
        ) from error
