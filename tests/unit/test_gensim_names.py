"""vectors.gensim_names: the results of gensim's KeyedVectors with the same words and vectors."""

import contextlib
import platform

import numpy as np
import pytest

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


@pytest.mark.filterwarnings("ignore:Call to deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("most_similar_cosmul", (["w1", "w2"], ["w3"], 7)),
        ("most_similar_cosmul", ("w1",)),
        ("most_similar_cosmul", ("w1", "w2", 3)),
        ("most_similar_cosmul", (["w1", VECTOR], [VECTOR * 2, "w9"], 5)),
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
    if name == "most_similar_cosmul":
        assert [word for word, _ in ours] == [word for word, _ in theirs]
        ours, theirs = ([score for _, score in found] for found in (ours, theirs))
    if name in ("closer_than", "rank", "most_similar_to_given"):
        assert ours == theirs
    else:
        np.testing.assert_allclose(ours, theirs, atol=2e-6, rtol=2e-6)


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
