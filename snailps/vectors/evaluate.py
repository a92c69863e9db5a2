"""Scores of word vectors: similarity judgements and analogies.

    Vectors + lines `word<TAB>word<TAB>score`  -> evaluate_similarity -> Spearman correlation
    Vectors + word2vec's question lines         -> evaluate_analogies  -> share answered right

Owns the two file formats and the protocol, gensim's: words that differ in case are one, of which
the first in the model counts; out-of-vocabulary items are skipped and counted.  Must not know where
vectors or files come from, nor how scores are printed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from snailps.data.file_kinds import HEAD_BYTES, refuse_foreign
from snailps.dataclass import dataclass
from snailps.errors import DataError
from snailps.vectors.query import Vectors
from snailps.vectors.words import to_bytes, to_text

log = logging.getLogger(__name__)

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
OovRule: TypeAlias = Literal["skip", "subword"]

# Questions and words of one matrix product: large enough for BLAS to run at full speed, and the
# scores (1,024 x 4,096 float32, 16 MB) are searched while they are still in the cache.
_QUESTIONS_TOGETHER = 1024
_WORDS_TOGETHER = 4096


class Pair(NamedTuple):
    """Two words, and how similar people find them (any scale)."""

    first: str
    second: str
    score: float


@dataclass(frozen=True, slots=True)
class SimilarityResult:
    """Outcome of a similarity file; `spearman` is None if fewer than two pairs differ.

    Of the `oov` pairs, `skipped` because a word has no vector, in the order of the file.
    """

    spearman: float | None
    pairs: int
    oov: int
    skipped: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class SectionResult:
    """One section of an analogy file: `correct` of `asked` questions; `oov` were `skipped`."""

    name: str
    accuracy: float | None
    correct: int
    asked: int
    oov: int
    skipped: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class AnalogyResult:
    """Outcome of an analogy file and of its sections; shares are None if nothing was asked.

    `oov`: questions skipped because a word is not in the vocabulary.
    """

    accuracy: float | None
    correct: int
    asked: int
    oov: int
    sections: tuple[SectionResult, ...]


def similarity_file(path: str | os.PathLike[str]) -> list[Pair]:
    """Read lines of ``word<TAB>word<TAB>score`` (or separated by blanks).

    Empty lines and lines that begin with ``#`` are skipped, and so are names of columns in the
    first line.
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
    """Rank correlation between cosines and people's judgements; as gensim's `evaluate_word_pairs`.

    A pair with a word outside the vocabulary is skipped and counted; with `oov` "subword" it is
    scored if the model can compose a vector for the word.  "skip" makes models with and without
    subwords comparable; "subword" is what the fastText paper does for rare words.
    """
    cosines, judgements = [], []
    skipped: list[tuple[str, ...]] = []
    pairs = similarity_file(path)
    numbers = _cased(vectors.raw_words)
    for first, second, score in pairs:
        known = [numbers.get(word.upper()) for word in (first, second)]
        if None in known and not (oov == "subword" and vectors.has_subwords):
            skipped.append((first, second))
            continue
        asked = [
            vectors.raw_words[number] if number is not None else to_bytes(word.lower())
            for word, number in zip((first, second), known, strict=True)
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
    """Number of the first word of each spelling, in capital letters as gensim's."""
    numbers: dict[str, int] = {}
    for number, word in enumerate(words):
        numbers.setdefault(to_text(word).upper(), number)
    return numbers


def spearman(first: npt.NDArray[np.floating], second: npt.NDArray[np.floating]) -> float | None:
    """Spearman's rank correlation of two float[n]; equal values share their mean rank.

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
    """Share of questions ``a b c d`` for which d is the word nearest to ``b - a + c`` (3CosAdd).

    Of word2vec's format; `restrict`: only so many first (most frequent) words are questions and
    answers, 0: all.  Vectors have length 1; a, b and c in any case are not candidates, and d is in
    any case.  Memory is the normalised matrix plus some 20 MB.  As gensim's
    `evaluate_word_analogies`.

    Mikolov, Yih, Zweig, "Linguistic Regularities in Continuous Space Word Representations", 2013.
    """
    if restrict < 0:
        raise DataError(f"expected a number of words to restrict to of 0 or more, got {restrict}")
    size = min(restrict or len(vectors), len(vectors))
    names, sections, questions = read_analogies(path)
    # A word outside the vocabulary, or beyond `restrict`, gets a number excluded by `asked`.
    listed = vectors.raw_words[:size]
    number = _cased(listed)
    ids = np.array(
        [[number.get(word.upper(), size) for word in question] for question in questions],
        dtype=np.int64,
    )
    first = np.array([number[to_text(word).upper()] for word in listed], dtype=np.int64)
    section = np.array(sections, dtype=np.int64)
    asked = ids.max(axis=1) < size
    right = np.zeros(len(ids), dtype=bool)
    found = analogy_answers(vectors.normalised[:size], ids[asked], first)
    right[asked] = (found >= 0) & (first[found] == ids[asked, 3])
    results = []
    for i, name in enumerate(names):
        here = section == i
        skipped = tuple(questions[at] for at in np.flatnonzero(here & ~asked).tolist())
        correct, count = int(right[here].sum()), int(asked[here].sum())
        accuracy = correct / count if count else None
        results.append(SectionResult(name, accuracy, correct, count, len(skipped), skipped))
    correct, count = int(right.sum()), int(asked.sum())
    return AnalogyResult(
        correct / count if count else None, correct, count, len(asked) - count, tuple(results)
    )


def analogy_answers(matrix: Float32, questions: Int64, first_of: Int64) -> Int64:
    """For each question (a, b, c, _), the row of `matrix` nearest to b - a + c, but none of them.

    `first_of`: of each row, the first one of the same word in any case; questions are such rows.
    The query's length does not change which row is nearest, so it is not normalised.
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
        # Row and question of what is no answer: a, b and c, and these in another case.
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
    """Numbers from each of `begin` on, so many of each, one range after the other."""
    starts = np.repeat(begin - np.cumsum(number) + number, number)
    return starts + np.arange(len(starts))


def read_analogies(
    path: str | os.PathLike[str],
) -> tuple[list[str], list[int], list[tuple[str, ...]]]:
    """Names of the sections, the section of each question, and the questions."""
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
    """Rank of each value, from 1; a run of equal values shares the mean of its ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: npt.NDArray[np.float64] = (last - (counts - 1) / 2)[place.reshape(-1)]
    return ranks


def _lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Numbered lines of a text file, without their ends, empty ones and comments."""
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
