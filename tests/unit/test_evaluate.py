"""Scores: known answers, and a plain twin for the batched analogies."""

import numpy as np
import pytest

from snailps.errors import DataError, ModelFileError
from snailps.vectors import evaluate
from snailps.vectors.evaluate import (
    SectionResult,
    SimilarityResult,
    evaluate_analogies,
    evaluate_similarity,
    similarity_file,
    spearman,
)
from snailps.vectors.query import Vectors


def file_of(tmp_path, text, name="f.txt"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("first", "second", "rho"),
    [
        ([1, 2, 3], [10, 20, 90], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 2, 2, 3], [1, 2, 3, 4], 4.5 / np.sqrt(4.5 * 5)),
        ([1, 2, 3, 4, 5], [5, 6, 7, 8, 7], 8 / np.sqrt(95)),
        ([1, 1], [1, 2], None),
        ([1], [1], None),
        ([], [], None),
    ],
)
def test_spearman_known_values(first, second, rho):
    found = spearman(np.array(first, dtype=float), np.array(second, dtype=float))
    assert found == (None if rho is None else pytest.approx(rho, abs=1e-12))


def test_similarity_file_takes_tabs_or_blanks_and_names_of_columns(tmp_path):
    text = "Old\tNew\t1.5\n\nÉTÉ hiver 7\r\n"
    for names in ("", "Word 1\tWord 2\tHuman (mean)\n", "a b c\n"):
        path = file_of(tmp_path, f"\ufeff# comment\n{names}{text}")
        assert similarity_file(path) == [("Old", "New", 1.5), ("ÉTÉ", "hiver", 7.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tb\t1\na\tb\n", "line 2: expected 'word<TAB>word<TAB>score'"),
        ("a\tb\t1\na\tb\tx\n", "line 2: .* got the score 'x', which is no finite number"),
        ("a\tb\tnan\na\tb\t1\n", "line 1: .* got the score 'nan', which is no finite number"),
        ("a\tb\tx\na\tb\ty\n", "line 2: .* got the score 'y', which is no finite number"),
        ("a\tb\t1\na\tb\tnan\n", "line 2: .*'nan'"),
        ("a\tb\tinf\n", "line 1: .*'inf'"),
        ("a\tb\tx\n", "got none"),
        ("a\t\t1\n", "line 1"),
        ("\n", "got none"),
    ],
)
def test_similarity_file_malformed_names_the_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        similarity_file(file_of(tmp_path, text))
    with pytest.raises(DataError, match="cannot be read: No such file"):
        similarity_file(tmp_path / "missing")


def line_words():
    """Words on a circle, 30 degrees apart: the cosine falls with the distance of the letters."""
    angles = np.deg2rad(30.0 * np.arange(5))
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    return Vectors([b"a", b"b", b"c", b"d", b"e"], rows)


def test_evaluate_similarity_counts_what_it_skips(tmp_path):
    path = file_of(tmp_path, "A\tB\t9\na\tc\t8\na\td\t1\na\te\t2\na\tzebra\t5\n")
    result = evaluate_similarity(line_words(), path)
    assert result == SimilarityResult(pytest.approx(0.8), pairs=4, oov=1, skipped=(("a", "zebra"),))


@pytest.mark.parametrize("line", ["a odd 1", "odd a 1"])
def test_evaluate_similarity_of_a_vector_that_is_not_finite_is_model_error(tmp_path, line):
    path = tmp_path / "pairs.txt"
    path.write_text(f"a b 2\n{line}\n")
    vectors = Vectors(["a", "b", "odd"], np.float32([[1, 0], [1, 1], [np.nan, 1]]))
    with pytest.raises(ModelFileError, match="the vector of 'odd' is not finite"):
        evaluate_similarity(vectors, path)


def test_evaluate_similarity_by_subwords_scores_unknown_words_that_have_some(tmp_path):
    rows = np.random.default_rng(0).normal(size=(2 + 100, 8)).astype(np.float32)
    vectors = Vectors([b"walking", b"talking"], rows, minn=4, maxn=5, bucket=100)
    path = file_of(tmp_path, "walking\ttalking\t3\nwalks\ttalks\t2\nx\twalking\t1\n")
    assert evaluate_similarity(vectors, path).pairs == 1
    assert evaluate_similarity(vectors, path).oov == 2
    by_subwords = evaluate_similarity(vectors, path, oov="subword")
    assert (by_subwords.pairs, by_subwords.oov) == (2, 1)  # "<x>" has no n-gram of 4


def test_evaluate_analogies_known_answers_by_section(tmp_path):
    rows = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 1], [1, -1, 0]], dtype=np.float32)
    words = [b"king", b"queen", b"man", b"woman", b"other"]
    path = file_of(
        tmp_path,
        ": family\nMan Woman King Queen\nking queen man other\n: second part\n"
        "man woman king prince\n: empty\n",
    )
    result = evaluate_analogies(Vectors(words, rows), path)
    assert result.accuracy == 0.5
    assert (result.correct, result.asked, result.oov) == (1, 2, 1)
    assert result.sections == (
        SectionResult("family", 0.5, 1, 2, 0, ()),
        SectionResult("second part", None, 0, 0, 1, (("man", "woman", "king", "prince"),)),
        SectionResult("empty", None, 0, 0, 0, ()),
    )


def plain_answers(matrix, questions, first_of):
    """One question at a time, by the definition."""
    answers = []
    for a, b, c, _ in questions:
        scores = matrix @ (matrix[b] - matrix[a] + matrix[c])
        scores[np.isin(first_of, [a, b, c])] = -np.inf
        answers.append(int(np.argmax(scores)))
    return answers


@pytest.mark.parametrize(("questions", "words"), [(1, 1), (7, 10), (100, 64), (1024, 4096)])
def test_answers_in_blocks_of_any_size_are_the_plain_ones(monkeypatch, questions, words):
    draw = np.random.default_rng(5)
    matrix = draw.normal(size=(131, 12)).astype(np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    first_of = np.arange(131)
    first_of[90:] = draw.integers(0, 30, 41)  # other cases of some of the first words
    asked = draw.integers(0, 90, size=(60, 4))
    monkeypatch.setattr(evaluate, "_QUESTIONS_TOGETHER", questions)
    monkeypatch.setattr(evaluate, "_WORDS_TOGETHER", words)
    found = evaluate.analogy_answers(matrix, asked, first_of).tolist()
    assert found == plain_answers(matrix, asked, first_of)


def test_evaluate_analogies_restricted_asks_only_frequent_words(tmp_path):
    rows = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    vectors = Vectors([b"a", b"b", b"c", b"d", b"e", b"f"], rows)
    path = file_of(tmp_path, "a b c d\na b c e\n")
    result = evaluate_analogies(vectors, path, restrict=4)
    assert (result.asked, result.oov) == (1, 1)
    assert result.correct == 1  # d is the only word left
    assert result.sections[0].name == ""
    assert evaluate_analogies(vectors, path, restrict=999).asked == 2
    with pytest.raises(DataError, match="0 or more, got -1"):
        evaluate_analogies(vectors, path, restrict=-1)


@pytest.mark.parametrize(
    ("text", "message"),
    [(": s\na b c\n", "line 2: expected ': section' or four words"), (": s\n", "got none")],
)
def test_evaluate_analogies_malformed_file_names_the_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        evaluate_analogies(line_words(), file_of(tmp_path, text))


def test_evaluate_analogies_whole_question_file_counts_its_sections(data_dir):
    path = data_dir / "words" / "questions-words.txt"
    names, sections, questions = evaluate.read_analogies(path)
    assert (len(names), len(questions)) == (14, 19544)
    words = sorted({word.encode() for question in questions[:506] for word in question})
    rows = np.random.default_rng(2).normal(size=(len(words), 10)).astype(np.float32)
    result = evaluate_analogies(Vectors(words, rows), path)
    assert result.sections[0].asked == sections.count(0) == 506
    assert result.asked + result.oov == 19544
