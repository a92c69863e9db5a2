"""Vectors as an object: subscripts, searches as gensim's, batches, conversions, a map."""

import copy
import os
import pickle
from types import SimpleNamespace

import docstrings
import numpy as np
import official_fasttext
import pytest

import snailps
from snailps.errors import ConfigError, DataError, ModelFileError, UnknownWord
from snailps.estimators import loading
from snailps.files import extras
from snailps.vectors import query
from snailps.vectors.files import load
from snailps.vectors.query import Vectors
from snailps.vectors.saving import write_npz
from snailps.vectors.search import NeighbourIndex, nearest_rows
from snailps.vectors.text_files import write_vec
from snailps.vectors.word_map import principal_plane

COMPASS = {"north": [0, 2], "east": [3, 0], "south": [0, -1], "northeast": [1, 1]}


@pytest.fixture
def compass():
    return Vectors(list(COMPASS), np.array(list(COMPASS.values()), np.float32))


@pytest.fixture(scope="module")
def drawn():
    """300 words of dim 9, some of them longer than others."""
    random = np.random.default_rng(7)
    rows = random.normal(size=(300, 9)) * random.uniform(0.1, 5, (300, 1))
    return Vectors([f"w{n}" for n in range(300)], rows.astype(np.float32))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """(our Vectors, the official model) with subwords."""
    path, model = official_fasttext.train(tmp_path_factory.mktemp("both"))
    return load(path), model


# --- as a mapping -------------------------------------------------------------------------------


def test_subscript_with_a_word_or_several_gives_copies(compass):
    assert compass["east"].tolist() == [3, 0]
    assert compass[b"east"].dtype == np.float32
    found = compass[np.array(["east", "north"])]
    assert found.tolist() == [[3, 0], [0, 2]]
    assert compass[[]].shape == (0, 2)
    assert compass[iter(("south",))].shape == (1, 2)
    found[:] = 9
    assert compass["east"].tolist() == [3, 0]


def test_subscript_of_unknown_word_is_a_key_error_with_spellings(compass):
    with pytest.raises(KeyError, match="did you mean north") as caught:
        compass["norht"]
    assert isinstance(caught.value, DataError)
    assert str(caught.value).startswith("the word 'norht' is not in the model")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(UnknownWord, match="'west'"):
        compass[["north", "west"]]


@pytest.mark.parametrize("wrong", [3, None, [3], 1.5])
def test_subscript_that_is_no_word_says_what_to_write(compass, wrong):
    with pytest.raises(DataError, match=r"expected a word.*got (3|None|1\.5)"):
        compass[wrong]


def test_subscript_of_unknown_word_is_composed_of_subwords(both):
    ours, theirs = both
    assert "kalomiro" not in ours
    np.testing.assert_array_equal(ours["kalomiro"], theirs.get_word_vector("kalomiro"))


def test_length_iteration_and_words_are_of_text():
    wv = Vectors([b"\xff", "größe".encode(), b"a"], np.eye(3, dtype=np.float32))
    assert len(wv) == 3
    assert list(wv) == wv.words == ["\udcff", "größe", "a"]
    assert wv.words[1] == "größe"
    assert wv.words[1:] == ["größe", "a"]
    assert wv.words != ["größe"]
    assert "größe" in wv
    assert b"\xff" in wv
    assert 3 not in wv
    assert wv.raw_words == [b"\xff", "größe".encode(), b"a"]
    assert repr(wv.words) == "<3 words: '\\udcff', 'größe', 'a'>"


def test_gensims_names_are_there(compass):
    assert compass.index_to_key == compass.words
    assert compass.key_to_index["south"] == 2
    assert dict(compass.key_to_index) == {word: number for number, word in enumerate(COMPASS)}
    assert "west" not in compass.key_to_index
    assert 3 not in compass.key_to_index
    with pytest.raises(KeyError, match="west"):
        compass.key_to_index["west"]
    assert repr(compass.key_to_index).startswith("<4 words: {'north': 0, 'east': 1")
    assert compass.vector_size == 2
    assert compass.get_vector("east").tolist() == [3, 0]
    assert compass.get_vector("east", norm=True).tolist() == [1, 0]


def test_repr_has_sizes_and_subwords(both, compass):
    assert repr(compass) == "Vectors(4 words, dim 2)"
    assert repr(both[0]) == f"Vectors({len(both[0])} words, dim 16, subwords 3 to 6)"
    many = Vectors([b"%d" % n for n in range(1234)], np.ones((1234, 1), np.float32))
    assert repr(many) == "Vectors(1,234 words, dim 1)"


# --- all vectors --------------------------------------------------------------------------------


def test_vectors_are_composed_once_and_cannot_be_written(both):
    ours, theirs = both
    np.testing.assert_array_equal(
        ours.vectors, [theirs.get_word_vector(word) for word in theirs.get_words()]
    )
    assert ours.vectors is ours.vectors
    np.testing.assert_array_equal(np.concatenate(list(ours.chunks())), ours.vectors)
    with pytest.raises(ValueError, match="read-only"):
        ours.vectors[0] = 1


@pytest.mark.parametrize("kind", ["bin", "npz"])
def test_vectors_of_files_with_plain_rows_are_mapped(tmp_path, kind):
    path, _ = official_fasttext.train(tmp_path, maxn=0)
    if kind == "npz":
        load(path).save(tmp_path / "m.npz")
        path = tmp_path / "m.npz"
    wv = load(path)
    base = wv.vectors
    while isinstance(base, np.ndarray):
        base = base.base
    assert type(base.obj if isinstance(base, memoryview) else base).__name__ == "mmap"
    os.unlink(path)  # noqa: PTH108 - the mapping holds the file
    assert np.isfinite(wv.vectors).all()
    assert not wv.vectors.flags.writeable
    np.testing.assert_array_equal(wv.vectors[3], wv[wv.words[3]])


# --- searches -----------------------------------------------------------------------------------


def slow_most_similar(wv, terms, topn, allowed):
    """gensim's definition: terms are (weight, word or vector)."""
    units = wv.vectors / np.linalg.norm(wv.vectors, axis=1, keepdims=True)
    query = sum(
        weight * (units[wv.words[:].index(item)] if isinstance(item, str) else np.array(item))
        for weight, item in terms
    )
    scores = units @ (query / np.linalg.norm(query))
    asked = {item for _, item in terms if isinstance(item, str)}
    order = [i for i in np.argsort(-scores) if i in allowed and wv.words[i] not in asked]
    return [(wv.words[i], scores[i]) for i in order[:topn]]


def assert_same(found, expected):
    assert [word for word, _ in found] == [word for word, _ in expected]
    np.testing.assert_allclose([s for _, s in found], [s for _, s in expected], atol=1e-5)


VECTOR = np.arange(9, dtype=np.float32) - 3


@pytest.mark.parametrize(
    ("positive", "negative", "terms"),
    [
        ("w3", (), [(1, "w3")]),
        (b"w3", None, [(1, "w3")]),
        (["w3", "w8"], "w5", [(1, "w3"), (1, "w8"), (-1, "w5")]),
        (("w3", "w3"), [], [(1, "w3"), (1, "w3")]),
        ((), ["w9"], [(-1, "w9")]),
        (VECTOR, (), [(1, VECTOR)]),
        (VECTOR.tolist(), (), [(1, VECTOR)]),
        (np.stack([VECTOR, VECTOR**2]), (), [(1, VECTOR), (1, VECTOR**2)]),
        ([VECTOR, "w2"], [VECTOR * 3], [(1, VECTOR), (1, "w2"), (-3, VECTOR)]),
        ([("w3", 0.25), "w8"], [("w5", -2)], [(0.25, "w3"), (1, "w8"), (-2, "w5")]),
    ],
)
def test_most_similar_is_gensims(drawn, positive, negative, terms):
    expected = slow_most_similar(drawn, terms, 7, range(300))
    assert_same(drawn.most_similar(positive, negative, topn=7), expected)
    expected = slow_most_similar(drawn, terms, 7, range(40))
    assert_same(drawn.most_similar(positive, negative, topn=7, restrict_vocab=40), expected)
    few = {"w200", "w3", "w90", "absent"}
    expected = slow_most_similar(drawn, terms, 7, {200, 3, 90})
    assert_same(drawn.most_similar(positive, negative, topn=7, restrict_vocab=few), expected)


def test_most_similar_of_more_words_than_there_are_gives_all_others(compass):
    assert len(compass.most_similar("north", topn=99)) == 3
    assert len(compass.most_similar("north", topn=99, restrict_vocab=2)) == 1
    assert len(compass.most_similar("north", restrict_vocab=np.int64(3))) == 2
    assert compass.most_similar("north", restrict_vocab=["north"]) == []


def test_most_similar_of_unknown_word_with_subwords_is_the_official_one(both):
    ours, theirs = both
    found = [(word, score) for score, word in theirs.get_nearest_neighbors("kalomiro", k=8)]
    np.testing.assert_allclose(
        [s for _, s in ours.most_similar("kalomiro", topn=8)], [s for _, s in found], atol=1e-5
    )


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((), {}, "expected a word or a vector to search for"),
        (("west",), {}, "'west' is not in the model"),
        (([1.0, 2.0, 3.0],), {}, r"expected a vector of 2 numbers, got .* shape \[3\]"),
        (([np.nan, 1.0],), {}, "not finite"),
        (([["a"]],), {}, "expected words or vectors of 2 numbers"),
        ((7,), {}, "expected a word, a vector, or a list of both, got 7"),
        (("north",), {"topn": 0}, "topn: expected at least 1 neighbour, got 0"),
        (("north",), {"topn": None}, "topn: expected at least 1 neighbour, got None"),
        (("north",), {"topn": True}, "topn: expected at least 1 neighbour, got True"),
        (("north",), {"topn": np.ones(2, int)}, r"topn: expected at least 1 neighbour, got array"),
        (("north",), {"restrict_vocab": True}, "restrict_vocab: .* got True"),
        (("north",), {"restrict_vocab": 2.0}, "restrict_vocab: .* got 2.0"),
        (("north",), {"restrict_vocab": 0}, "expected at least 1 word, or a list of words, got 0"),
        (("north",), {"restrict_vocab": "east"}, "restrict_vocab: expected a number or a list"),
        (("north",), {"restrict_vocab": ["x", "y"]}, "none of its 2 words is in the model"),
    ],
)
def test_most_similar_with_a_wrong_question_says_so(compass, arguments, options, message):
    with pytest.raises(DataError, match=message):
        compass.most_similar(*arguments, **options)


@pytest.mark.parametrize("scores_max", [1, 700, 1 << 22])
def test_nearest_in_blocks_is_a_sort(drawn, monkeypatch, scores_max):
    monkeypatch.setattr("snailps.vectors.search._SCORES_MAX", scores_max)
    monkeypatch.setattr("snailps.vectors.search._QUERIES_TOGETHER", 7)
    queries = np.random.default_rng(3).normal(size=(20, 9)).astype(np.float32)
    units = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    for k in (1, 5, 300):
        numbers, scores = drawn.nearest(queries, topn=k)
        assert (numbers.dtype, scores.dtype) == (np.int32, np.float32)
        assert numbers.shape == scores.shape == (20, k)
        exact = units @ drawn.normalised.T
        np.testing.assert_allclose(scores, -np.sort(-exact, axis=1)[:, :k], atol=1e-6)
        np.testing.assert_allclose(np.take_along_axis(exact, numbers, 1), scores, atol=1e-6)


@pytest.mark.parametrize("scores_max", [1, 30, 1 << 22])
def test_nearest_rows_with_equal_scores_come_by_number(monkeypatch, scores_max):
    monkeypatch.setattr("snailps.vectors.search._SCORES_MAX", scores_max)
    matrix = np.tile(np.eye(2, dtype=np.float32), (20, 1))
    numbers, scores = nearest_rows(matrix, np.float32([[1, 0], [0, 0]]), 4)
    assert numbers.tolist() == [[0, 2, 4, 6], [0, 1, 2, 3]]
    assert scores.tolist() == [[1, 1, 1, 1], [0, 0, 0, 0]]


def test_nearest_takes_words_and_vectors_and_no_queries(compass):
    numbers, scores = compass.nearest(["east", [0.0, 9.0]], topn=1)
    assert numbers.tolist() == [[1], [0]]
    assert scores.tolist() == [[1], [1]]
    assert compass.nearest([])[0].shape == (0, 4)
    assert compass.nearest(np.empty((0, 2)), topn=3)[1].shape == (0, 3)
    assert compass.nearest("east", topn=2)[0].shape == (1, 2)
    with pytest.raises(DataError, match="expected a vector of 2 numbers"):
        compass.nearest(np.ones((3, 5)))


def test_similarity_takes_words_and_vectors(compass):
    assert compass.similarity("north", [0, -3]) == -1
    assert compass.similarity(np.array([1, 1]), "northeast") == pytest.approx(1)


def test_doesnt_match_finds_the_farthest(compass):
    assert compass.doesnt_match(["north", "east", "northeast", "south"]) == "south"
    assert compass.doesnt_match(["north"]) == "north"
    with pytest.raises(DataError, match="got none"):
        compass.doesnt_match([])
    with pytest.raises(UnknownWord, match="'west'"):
        compass.doesnt_match(["west", "north"])


def test_sentence_vector_is_the_official_one(both):
    ours, theirs = both
    for text in ["ka lo mi", "日本 ka qu zz", "", "x", " \tka  ka\x0bka ", "kalomiro"]:
        expected = theirs.get_sentence_vector(text)
        np.testing.assert_allclose(ours.sentence_vector(text), expected, atol=1e-6)
    np.testing.assert_array_equal(ours.sentence_vector("ka lo\n"), ours.sentence_vector(b"ka lo"))


def test_sentence_vectors_are_those_of_the_single_ones(both, monkeypatch):
    ours, _ = both
    texts = ["ka lo mi", b"ka", "", "qu ka qu", "\u65e5\u672c ka", "kalomiro"]
    expected = np.stack([ours.sentence_vector(text) for text in texts])
    np.testing.assert_array_equal(ours.sentence_vectors(iter(texts)), expected)
    monkeypatch.setattr(query, "_UNIT_VALUES", 2 * ours.dim)  # of two words
    np.testing.assert_array_equal(ours.sentence_vectors(texts), expected)
    assert ours.sentence_vectors([]).shape == (0, ours.dim)
    with pytest.raises(DataError, match="expected a list of sentences, got one"):
        ours.sentence_vectors("ka lo")


def test_sentence_vectors_compose_a_word_once_and_look_for_no_spellings(compass, monkeypatch):
    asked = []
    monkeypatch.setattr(Vectors, "mean", lambda self, ids: asked.append(ids) or self._rows[ids][0])
    monkeypatch.setattr(Vectors, "close_spellings", lambda *_: pytest.fail("50 ms a word"))
    found = compass.sentence_vectors(["north by east", "north by north"] * 10)
    assert found.shape == (20, 2)
    assert len(asked) == 2


def test_sentence_vector_leaves_out_unknown_words_and_refuses_lines(compass):
    assert compass.sentence_vector("north by south by east").tolist() == pytest.approx([1 / 3, 0])
    assert compass.sentence_vector("nowhere").tolist() == [0, 0]
    with pytest.raises(DataError, match="expected one line"):
        compass.sentence_vector("north\nsouth")


# --- an index -----------------------------------------------------------------------------------


def test_index_finds_what_the_exact_search_finds(drawn):
    wv = Vectors(drawn.words, drawn.vectors)
    exact = [wv.most_similar(["w3", "w4"]), wv.nearest(["w9", VECTOR], topn=5)]
    report = wv.build_index(threads=1)
    assert report.words == 300
    assert report.recall > 0.95
    assert "recall" in repr(report)
    assert_same(wv.most_similar(["w3", "w4"]), exact[0])
    for found, expected in zip(wv.nearest(["w9", VECTOR], topn=5), exact[1], strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert len(wv.most_similar("w1", topn=1000)) == 299
    assert wv.nearest(["w1"], topn=1000)[0].shape == (1, 300)
    wv.drop_index()
    assert wv.most_similar(["w3", "w4"]) == exact[0]


class OddIndex:
    """usearch's Index as far as it is called; finds all but row 1, the last of a batch no more."""

    memory_usage = 4_000_000

    def __init__(self, **options):
        assert options["ndim"] == 9

    def add(self, keys, matrix, threads):
        assert keys.tolist() == list(range(300))
        self.matrix = np.delete(matrix, 1, axis=0)
        self.keys = np.delete(keys, 1)

    def search(self, queries, k):
        order = np.argsort(-(queries @ self.matrix.T), axis=1)[:, :k][:, ::-1]
        counts = np.full(len(queries), min(k, 299))
        counts[len(queries) // 2] = 1
        return SimpleNamespace(keys=self.keys[order], counts=counts)


def test_index_that_finds_too_few_or_in_another_order_is_completed(drawn, monkeypatch):
    monkeypatch.setattr(
        "snailps.vectors.search.optional_module", lambda *names: SimpleNamespace(Index=OddIndex)
    )
    wv = Vectors(drawn.words, drawn.vectors)
    exact = wv.nearest(wv.vectors[:40], topn=3)
    report = wv.build_index()
    assert 0.9 < report.recall < 1
    assert repr(report).startswith("IndexReport(300 words, recall 0.9")
    numbers, scores = wv.nearest(wv.vectors[:40], topn=3)
    found = ~(exact[0] == 1).any(axis=1)
    assert found[20]
    np.testing.assert_array_equal(numbers[found], exact[0][found])
    np.testing.assert_allclose(scores[found], exact[1][found], atol=1e-6)
    np.testing.assert_allclose(
        scores, np.take_along_axis(wv.normalised[:40] @ wv.normalised.T, numbers, 1), atol=1e-6
    )
    assert len(wv.most_similar("w5", topn=2)) == 2


class CountingRows(np.ndarray):
    """Rows that note how many are taken at a time."""

    most = 0

    def __getitem__(self, which):
        if isinstance(which, np.ndarray):
            CountingRows.most = max(CountingRows.most, which.size)
        return super().__getitem__(which).view(np.ndarray)


def test_index_gathers_a_bounded_number_of_rows(drawn, monkeypatch):
    monkeypatch.setattr(
        "snailps.vectors.search.optional_module", lambda *names: SimpleNamespace(Index=OddIndex)
    )
    monkeypatch.setattr("snailps.vectors.search._SCORES_MAX", 9 * 50 * 4)
    settings = {"connectivity": 16, "expansion_build": 128, "expansion": 128, "threads": 0}
    index = NeighbourIndex(drawn.normalised.view(CountingRows), **settings)
    numbers, _ = index.search(drawn.normalised[:40], 50)
    assert 50 <= CountingRows.most <= 4 * 50
    assert numbers.shape == (40, 50)


def test_index_with_a_wrong_setting_says_so(drawn):
    with pytest.raises(ConfigError, match="connectivity: expected at least 2, got 1"):
        drawn.build_index(connectivity=1)


# --- other libraries ----------------------------------------------------------------------------


def test_to_pandas_has_rows_named_by_words(compass):
    frame = compass.to_pandas()
    assert frame.shape == (4, 2)
    assert frame.loc["east"].tolist() == [3, 0]
    assert frame.index.name == "word"


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (Vectors.to_pandas, "to_pandas needs pandas, .*: pip install pandas$"),
        (Vectors.to_gensim, "to_gensim needs gensim, .*: pip install gensim$"),
        (Vectors.build_index, r"needs usearch, .*: pip install 'snailps\[index\]'$"),
        (Vectors.plot, r"needs matplotlib, .*: pip install 'snailps\[plot\]'$"),
    ],
)
def test_missing_package_is_named_with_what_installs_it(compass, monkeypatch, ask, message):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])

    monkeypatch.setattr(extras.importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=message):
        ask(compass)


def test_package_that_does_not_load_says_why(monkeypatch):
    def broken(name):
        raise ImportError("libm.so.9: cannot open shared object file")

    monkeypatch.setattr(extras.importlib, "import_module", broken)
    with pytest.raises(ConfigError, match=r"cannot be loaded \(libm\.so\.9.*install it again"):
        extras.optional_module("pandas", "to_pandas", "pandas")


# --- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["npz", "vec", "bin"])
def test_save_then_load_gives_the_same_vectors(both, tmp_path, ending):
    ours, _ = both
    path = tmp_path / f"m.{ending}"
    ours.save(path)
    again = load(path)
    assert again.words == ours.words
    np.testing.assert_allclose(again.vectors, ours.vectors, rtol=6e-5, atol=1e-8)
    assert again.has_subwords == (ending == "bin")


def test_save_bin_gives_the_bytes_that_were_read(tmp_path):
    path, _ = official_fasttext.train(tmp_path)
    load(path).save(tmp_path / "again.bin")
    assert (tmp_path / "again.bin").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("m.txt", r"expected a name that ends in \.npz .*, got \.txt"),
        ("m", "got no ending"),
        ("m.bin", r"a \.bin holds a whole fastText model"),
    ],
)
def test_save_by_an_ending_that_cannot_be_says_what_can(compass, tmp_path, name, message):
    with pytest.raises(ModelFileError, match=message):
        compass.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_save_words_with_blanks_as_npz_only(tmp_path):
    (tmp_path / "glove.txt").write_text(", 1.5 2\nat name@domain.com 0.5 3\n. . . 1 2\n")
    wv = load(tmp_path / "glove.txt")
    wv.save(tmp_path / "m.npz")
    assert load(tmp_path / "m.npz").words == [",", "at name@domain.com", ". . ."]
    for ending in ("vec", "bin"):
        with pytest.raises(ModelFileError, match=r"a \.npz may hold words with blanks|whole fast"):
            wv.save(tmp_path / f"m.{ending}")
    with pytest.raises(ModelFileError, match=r"word 1 is 'b\\n'.*must not be empty and has no new"):
        Vectors(["a", "b\n"], np.eye(2)).save(tmp_path / "m.npz")


def test_writers_and_save_give_the_same_bytes(compass, tmp_path):
    compass.save(tmp_path / "a.npz")
    write_npz(tmp_path / "b.npz", compass.raw_words, compass.chunks(), 2)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    compass.save(tmp_path / "a.vec")
    write_vec(tmp_path / "b.vec", compass.raw_words, compass.chunks(), 2)
    assert (tmp_path / "a.vec").read_bytes() == (tmp_path / "b.vec").read_bytes()


def test_copies_and_pickles_keep_the_vectors(both):
    ours, _ = both
    for again in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        np.testing.assert_array_equal(again["kalomiro"], ours["kalomiro"])
        np.testing.assert_array_equal(again.vectors, ours.vectors)
        with pytest.raises(ModelFileError, match="a whole fastText model"):
            again.save("m.bin")


# --- a map --------------------------------------------------------------------------------------


def test_principal_plane_of_known_points():
    # Points of a rectangle in a turned plane: the long side is the first component.
    corners = np.array([[-2, -1], [-2, 1], [2, -1], [2, 1]], np.float32)
    turned = corners @ np.float32([[0.6, 0, 0.8], [0, 1, 0]]) + np.float32([5, 6, 7])
    points, shares = principal_plane(turned)
    np.testing.assert_allclose(np.abs(points), np.abs(corners), atol=1e-6)
    np.testing.assert_allclose(shares, [0.8, 0.2], atol=1e-6)
    again, _ = principal_plane(turned)
    np.testing.assert_array_equal(points, again)


def test_principal_plane_of_equal_or_one_dimensional_points_is_finite():
    points, shares = principal_plane(np.ones((3, 4), np.float32))
    assert not points.any()
    assert shares.tolist() == [0, 0]
    points, shares = principal_plane(np.float32([[1], [3]]))
    np.testing.assert_allclose(np.sort(points, axis=0), [[-1, 0], [1, 0]])
    assert shares.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (["north"], {}, "at least two words, got 1"),
        (None, {"count": 1}, "count: expected 2 to 1,000 words, got 1"),
        (["north", "west"], {}, "'west' is not in the model"),
    ],
)
def test_plot_of_too_few_words_says_so(compass, words, options, message):
    with pytest.raises(DataError, match=message):
        compass.plot(words, **options)


class Drawing:
    """What a map calls of matplotlib's Axes."""

    def __init__(self):
        self.texts, self.points, self.labels = [], 0, []

    def scatter(self, x, y, **options):
        self.points += len(x)

    def annotate(self, text, point, **options):
        assert np.isfinite(point).all()
        self.texts.append(text)

    def set_xlabel(self, text):
        self.labels.append(text)

    set_ylabel = set_xlabel

    def grid(self, **options):
        pass


def test_plot_draws_each_word(compass):
    ax = Drawing()
    assert compass.plot(["north", "south", "north"], ax=ax) is ax
    assert (ax.texts, ax.points) == (["north", "south"], 2)
    assert ax.labels[0] == "first component, 100% of the variance"
    assert compass.plot("north", count=3, ax=Drawing()).texts == ["north", "northeast", "east"]
    assert compass.plot(ax=Drawing()).texts == list(COMPASS)
    bare = compass.plot(ax=Drawing(), labels=False)
    assert (bare.texts, bare.points) == ([], 4)


def test_plot_of_odd_words_writes_what_can_be_drawn():
    odd = Vectors(["</s>", "$x", "\udcff"], np.eye(3, dtype=np.float32))
    assert odd.plot(ax=Drawing()).texts == [r"\$x", "?"]


# --- documents ----------------------------------------------------------------------------------


def test_names_are_public():
    assert snailps.load is loading.load
    assert snailps.Vectors is Vectors
    assert snailps.LabelModel.__name__ == "LabelModel"


def test_examples_of_the_page_run(repo_root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    docstrings.run_page((repo_root / "docs/python.md").read_text(encoding="utf-8"))
