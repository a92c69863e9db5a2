"""Questions to vectors: the official package's answers, and models small enough to know them."""

import numpy as np
import official_fasttext
import pytest

from snailps.errors import DataError, ModelFileError
from snailps.vectors.files import load
from snailps.vectors.query import Neighbour, Vectors
from snailps.vectors.text_files import write_vec
from snailps.vectors.words import to_bytes, to_text

COMPASS = {"north": [0, 2], "east": [3, 0], "south": [0, -1], "northeast": [1, 1], "zero": [0, 0]}


def compass():
    words = [word.encode() for word in COMPASS]
    return Vectors(words, np.array(list(COMPASS.values()), dtype=np.float32))


@pytest.fixture(scope="module", params=[{}, {"minn": 1, "maxn": 3}, {"maxn": 0}, {"model": "cbow"}])
def both(request, tmp_path_factory):
    """(our Vectors, the official model) of the same file."""
    path, model = official_fasttext.train(tmp_path_factory.mktemp("both"), **request.param)
    return load(path), model


def test_vector_of_known_words_is_the_official_one(both):
    ours, theirs = both
    for word in theirs.get_words():
        np.testing.assert_array_equal(ours.vector(word), theirs.get_word_vector(word))


def test_vector_of_unknown_words_is_the_official_one_or_an_error(both):
    ours, theirs = both
    for word in ["kalomiro", "éé日", "x", "zzz"]:
        assert word not in ours
        if ours.has_subwords and len(theirs.get_subwords(word)[0]) > 0:
            np.testing.assert_array_equal(ours.vector(word), theirs.get_word_vector(word))
        else:
            with pytest.raises(DataError, match="not in the model"):
                ours.vector(word)


def test_chunks_give_every_vector_in_order(both, monkeypatch):
    ours, theirs = both
    monkeypatch.setattr("snailps.vectors.query._GATHER_ROWS", 100)
    chunks = list(ours.chunks())
    assert not ours.has_subwords or len(chunks) > 3
    expected = [theirs.get_word_vector(word) for word in theirs.get_words()]
    np.testing.assert_array_equal(np.concatenate(chunks), expected)


def assert_same_answers(found, expected):
    np.testing.assert_allclose([s for _, s in found], [s for s, _ in expected], atol=1e-5)
    # Words whose scores differ by less than rounding may stand in either order, and the last one
    # may have such a word after it.
    scores = np.array([score for score, _ in expected])
    for place, (ours, (_, theirs)) in enumerate(zip(found[:-1], expected[:-1], strict=True)):
        if np.sum(np.abs(scores - scores[place]) < 1e-5) == 1:
            assert ours.word == theirs


def test_neighbours_are_the_official_ones(both):
    ours, theirs = both
    unknown = ["kalomiro"] if ours.has_subwords else []
    for word in [*theirs.get_words()[:20], *unknown]:
        assert_same_answers(ours.neighbours(word, 13), theirs.get_nearest_neighbors(word, k=13))


def test_analogy_is_the_official_one(both):
    ours, theirs = both
    words = theirs.get_words()
    for a, b, c in [words[1:4], words[10:13], (words[5], words[5], words[9])]:
        assert_same_answers(ours.analogy(a, b, c, 8), theirs.get_analogies(a, b, c, k=8))


def test_similarity_is_the_official_neighbours_score(both):
    ours, theirs = both
    word = theirs.get_words()[3]
    for score, other in theirs.get_nearest_neighbors(word, k=5):
        assert ours.similarity(word, other) == pytest.approx(score, abs=1e-5)


def test_vec_of_a_bin_gives_the_same_neighbours(both, tmp_path):
    ours, theirs = both
    write_vec(tmp_path / "m.vec", ours.raw_words, ours.chunks(), ours.dim)
    text = load(tmp_path / "m.vec")
    word = theirs.get_words()[7]
    scores = [score for _, score in text.neighbours(word)]
    np.testing.assert_allclose(scores, [s for _, s in ours.neighbours(word)], atol=1e-4)


def test_neighbours_of_known_points_are_sorted_by_angle():
    assert compass().neighbours("north", 3) == [
        Neighbour("northeast", pytest.approx(0.5**0.5)),
        Neighbour("east", 0.0),
        Neighbour("zero", 0.0),
    ]


def test_neighbours_more_than_there_are_gives_all_others():
    assert len(compass().neighbours("zero", 100)) == 4
    for few in (0, 2.5):
        with pytest.raises(DataError, match=f"at least 1, got {few}"):
            compass().neighbours("zero", few)


def test_analogy_of_known_points_leaves_its_words_out():
    # east/3 - northeast/|ne| + north/2 points to the upper right, where northeast is banned.
    found = compass().analogy("east", "northeast", "north", 5)
    assert {word for word, _ in found} == {"south", "zero"}


def test_neighbours_with_equal_scores_come_in_order_of_the_words():
    names = [b"w%d" % number for number in range(50)]
    vectors = Vectors(names, np.ones((50, 4), dtype=np.float32))
    assert [word for word, _ in vectors.neighbours("w2", 4)] == ["w0", "w1", "w3", "w4"]


def test_similarity_of_known_points_is_the_cosine():
    vectors = compass()
    assert vectors.similarity("north", "south") == -1
    assert vectors.similarity(b"east", "northeast") == pytest.approx(0.5**0.5)
    assert vectors.similarity("east", "zero") == 0


def test_vector_returned_may_be_changed_by_its_owner():
    vectors = compass()
    vectors.vector("north")[:] = 9
    assert vectors.vector("north").tolist() == [0, 2]
    assert vectors.vector("north").dtype == np.float32


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("North", "the word 'North' is not in the model, .*did you mean north"),
        ("esat", "did you mean east"),
        ("xylophone", "check its spelling and case"),
    ],
)
def test_vector_of_unknown_word_without_subwords_suggests(word, message):
    with pytest.raises(DataError, match=message):
        compass().vector(word)


def test_unknown_word_of_another_alphabet_suggests():
    vectors = Vectors(["стрела", "東京都"], np.eye(2))
    assert vectors.close_spellings("стрел") == ["стрела"]
    assert vectors.close_spellings("東京部") == ["東京都"]


def test_vectors_with_repeated_word_use_its_first_row():
    vectors = Vectors([b"a", b"b", b"a"], np.array([[1], [2], [3]], dtype=np.float32))
    assert vectors.vector("a").tolist() == [1]
    assert vectors.words == ["a", "b"]


def test_vectors_with_a_word_of_bad_bytes_find_it_by_text_and_bytes():
    vectors = Vectors([b"\xff\xfe", b"b"], np.eye(2, dtype=np.float32))
    name = vectors.neighbours("b", 1)[0].word
    assert to_bytes(name) == b"\xff\xfe"
    assert to_text(b"\xff\xfe") == name
    assert name in vectors
    np.testing.assert_array_equal(vectors.vector(name), vectors.vector(b"\xff\xfe"))


def test_neighbours_of_a_model_with_nan_names_the_word():
    rows = np.ones((3, 2), dtype=np.float32)
    rows[1, 1] = np.nan
    with pytest.raises(ModelFileError, match="vector of 'b' is not finite"):
        Vectors([b"a", b"b", b"c"], rows).neighbours("a")


@pytest.mark.parametrize(
    ("words", "shape", "settings"),
    [
        ([], (0, 3), {}),
        ([b"a"], (3,), {}),
        ([b"a", b"b"], (1, 3), {}),
        ([b"a"], (5, 3), {"minn": 3, "maxn": 6, "bucket": 5}),
    ],
)
def test_vectors_with_rows_that_do_not_fit_are_refused(words, shape, settings):
    with pytest.raises(ModelFileError, match="expected at least one word"):
        Vectors(words, np.zeros(shape, dtype=np.float32), **settings)
