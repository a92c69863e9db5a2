"""vectors.gensim_names: the results of gensim's KeyedVectors with the same words and vectors."""

import contextlib
import itertools
import platform

import numpy as np
import pytest
import rounding

with contextlib.suppress(ImportError):  # now, as it takes longer than a test may
    import gensim  # noqa: F401

from snailps.errors import DataError, ModelFileError, UnknownWord
from snailps.vectors.files import load
from snailps.vectors.query import Vectors

platform.platform()  # gensim asks for it; the first time it starts a process

VECTOR = np.float32([1, -2, 0.5, 0, 3])


@pytest.fixture(scope="module")
def both():
    pytest.importorskip("gensim", reason="gensim is not installed")
    rows = np.random.default_rng(4).normal(size=(60, 5)).astype(np.float32)
    wv = Vectors([f"w{number}" for number in range(60)], rows)
    return wv, wv.to_gensim()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("most_similar_to_given", ("w1", ["w5", "w8", "w13"])),
        ("closer_than", ("w1", "w7")),
        ("closer_than", ("w1", "w1")),
        ("rank", ("w4", "w9")),
        ("distance", ("w4", "w9")),
        ("distances", ("w4",)),
        ("distances", (VECTOR, ["w9", "w1"])),
        ("n_similarity", (["w1", "w2", "w3"], ["w4"])),
        ("get_vector", ("w7", True)),
    ],
)
def test_results_are_gensims(both, name, arguments):
    ours, theirs = (getattr(model, name)(*arguments) for model in both)
    if name in ("closer_than", "rank", "most_similar_to_given"):
        assert ours == theirs
    else:
        # A cosine, and 1 minus it; before it a mean of words whose sum is shorter than they are.
        words = arguments[0] if name == "n_similarity" else ["w0"]
        rows = both[0].vectors[[int(word[1:]) for word in words]].astype(float)
        shorter = np.linalg.norm(rows, axis=1).sum() / np.linalg.norm(rows.sum(0))
        bound = rounding.of_cosines(5) + rounding.gamma(2) + rounding.gamma(len(words)) * shorter
        np.testing.assert_allclose(ours, theirs, atol=2 * bound, rtol=0)


@pytest.mark.parametrize(
    ("name", "question"),
    [("similar_by_word", "w4"), ("similar_by_key", "w4"), ("similar_by_vector", VECTOR)],
)
@pytest.mark.parametrize("more", [(), (3,), (3, 20)])
def test_similar_words_are_gensims(both, name, question, more):
    ours, theirs = (getattr(model, name)(question, *more) for model in both)
    assert [word for word, _ in ours] == [word for word, _ in theirs]
    bound = 2 * rounding.of_cosines(5)
    np.testing.assert_allclose([s for _, s in ours], [s for _, s in theirs], atol=bound, rtol=0)


def test_similar_by_a_words_own_vector_finds_the_word(both):
    ours, theirs = (model.similar_by_vector(model["w4"], 1) for model in both)
    assert ours[0][0] == theirs[0][0] == "w4"


@pytest.mark.filterwarnings("ignore:Call to deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("positive", "negative"),
    [
        (["w1", "w2"], ["w3"]),
        ("w1", []),
        ("w1", "w2"),
        (["w1", VECTOR], [VECTOR * 2, "w9"]),
    ],
)
def test_products_of_similarities_are_gensims(both, positive, negative):
    """Both are as near to the exact products as float32 allows, and so is their order."""
    exact, bound = products_of_similarities(both[0], positive, negative)
    for model in both:
        scores = dict(model.most_similar_cosmul(positive, negative, 60))
        assert scores.keys() == exact.keys()
        for word, score in scores.items():
            assert abs(score - exact[word]) <= bound[word]
        for word, lower in itertools.pairwise(scores):
            assert exact[word] - exact[lower] >= -(bound[word] + bound[lower])
    ours, theirs = (model.most_similar_cosmul(positive, negative, 7) for model in both)
    assert len(ours) == len(theirs) == 7


def products_of_similarities(wv, *asked):
    """3CosMul of all other words in float64, and how far off float32 may be."""
    asked = [item if isinstance(item, (list, tuple)) else [item] for item in asked]
    rows = wv.vectors.astype(float)
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    products, errors = [], []
    for items in asked:
        factors, off = [np.ones(60)], np.zeros(60)
        for item in items:
            term = rows[int(item[1:])] if isinstance(item, str) else item.astype(float)
            factor = (1 + rows @ term) / 2
            # Relative to the factor, which may be near 0: that of the cosine and of two operations.
            cosines = rounding.of_cosines(5) * np.linalg.norm(term) / 2
            off += (cosines + rounding.gamma(2)) / np.abs(factor)
            factors.append(factor)
        products.append(np.prod(factors, axis=0))
        errors.append(off + rounding.gamma(len(items)))
    divisor = products[1] + 1e-6
    off = errors[0] + errors[1] * np.abs(products[1] / divisor) + rounding.gamma(2)
    scores = products[0] / divisor
    said = {item for items in asked for item in items if isinstance(item, str)}
    others = [word for word in wv.words if word not in said]
    numbers = [int(word[1:]) for word in others]
    bounds = np.abs(scores) * off / (1 - off)
    return dict(zip(others, scores[numbers], strict=True)), dict(
        zip(others, bounds[numbers], strict=True)
    )


def test_products_of_similarities_within_the_first_words(both):
    """gensim 4.4 takes the argument, and ignores it (findings)."""
    ours, _ = both
    every = [pair for pair in ours.most_similar_cosmul("w1", "w2", 60) if int(pair[0][1:]) < 20]
    assert ours.most_similar_cosmul("w1", "w2", 60, restrict_vocab=20) == every
    assert len(every) == 18


def test_word2vecs_files_are_read_by_both(both, tmp_path):
    from gensim.models import KeyedVectors

    ours, _ = both
    for name, binary in (("v.bin", True), ("v.vec", False)):
        ours.save_word2vec_format(tmp_path / name, binary=binary)
        theirs = KeyedVectors.load_word2vec_format(str(tmp_path / name), binary=binary)
        assert theirs.index_to_key == list(ours.words)
        digits = 0 if binary else 1e-4
        np.testing.assert_allclose(theirs.vectors, ours.vectors, rtol=digits)
        np.testing.assert_array_equal(load(tmp_path / name).vectors, theirs.vectors)
    with pytest.raises(ModelFileError, match="newline"):
        Vectors(["a\nb"], VECTOR[None]).save_word2vec_format(tmp_path / "x", binary=True)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("name", "arguments", "error", "says"),
    [
        ("most_similar_cosmul", (), DataError, "expected a word or a vector"),
        ("most_similar_cosmul", ("w1", (), 0), DataError, "topn: expected at least 1"),
        ("most_similar_to_given", ("w1", []), DataError, "keys_list: expected some words"),
        ("n_similarity", (["w1"], []), DataError, "got an empty one"),
        ("n_similarity", (["w1", "nobody"], ["w2"]), UnknownWord, "'nobody' is not in the model"),
        ("closer_than", ("w1", "nobody"), UnknownWord, "'nobody' is not in the model"),
        ("distances", ("nobody",), UnknownWord, "'nobody' is not in the model"),
    ],
)
def test_wrong_questions_say_so(name, arguments, error, says):
    wv = Vectors(["w1", "w2"], np.eye(2, 5, dtype=np.float32))
    with pytest.raises(error, match=says):
        getattr(wv, name)(*arguments)
