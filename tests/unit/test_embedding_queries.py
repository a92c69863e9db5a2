"""models.embeddings.queries and files: what a model's file answers."""

import os
from dataclasses import replace

import numpy as np
import pytest

import snailps
from snailps.cli.main import app_for
from snailps.errors import ConfigError, DataError, ModelFileError, UnknownWord
from snailps.estimators.loading import embedding_of
from snailps.models.embeddings import files
from snailps.models.embeddings.settings import KgeSettings, MfSettings

KGE, MF = (
    "snailps.models.embeddings.kge:KnowledgeGraph",
    "snailps.models.embeddings.mf:MatrixFactorization",
)


def written(path, settings, **kinds):
    """The file of a model of {kind: (names, rows)}, and of a mean."""
    arrays = {"mean": np.float32([kinds.pop("mean")])} if "mean" in kinds else {}
    for kind, (names, rows) in kinds.items():
        arrays |= {kind: files.packed_names(names), f"{kind}.rows": np.asarray(rows, np.float32)}
    cls = KGE if isinstance(settings, KgeSettings) else MF
    files.write(str(path), replace(settings, worker_class=cls, output="x"), arrays)
    return path


@pytest.fixture
def graph(tmp_path):
    """Entities on a line at 0, 1, 2 and 5; "next" adds 1."""
    return snailps.load(written(
        tmp_path / "graph.npz", KgeSettings(model="transe", dim=2),
        entities=([b"zero", b"one", b"two", b"f\xc3\xbcnf"], [[0, 0], [1, 0], [2, 0], [5, 0]]),
        relations=([b"next"], [[1, 0]]),
    ))  # fmt: skip


def test_graph_model_scores_and_ranks(graph):
    assert graph.entities == ["zero", "one", "two", "fünf"]
    assert graph.score("zero", "next", "one") == 0
    assert graph.score("zero", "next", "fünf") == -4
    assert graph.tails("one", "next", 2) == [("two", 0.0), ("one", -1.0)]
    assert [name for name, _ in graph.heads("next", "two")] == ["one", "zero", "two", "fünf"]
    assert graph.neighbours("two", 2) == [("one", 1.0), ("fünf", 1.0)]
    assert "transe, 4 entities" in repr(graph)


def test_graph_model_answers_lines(graph):
    lines = b"zero\tnext\t?\n?\tnext\tone\nzero\tnext\tone\n"
    assert list(graph.answers([lines], 1)) == [[("one", 0.0)], [("zero", 0.0)], [("one", 0.0)]]


def test_relations_of_rotate_are_as_similar_as_their_turns(tmp_path):
    """A phase of 1 is half a turn, as `scale` is 1; columns 2 and 3 of a relation are not used.

    "same" is "next" and a whole turn more; "back" turns by a quarter and minus a quarter, so that
    cosines of its turns to those of "next", 0 and a half, are 0 and 0.
    """
    rotate = snailps.load(written(
        tmp_path / "r.npz", KgeSettings(model="rotate", dim=4, scale=1.0),
        entities=([b"a", b"b"], [[1, 0, 0, 1], [0, 1, 1, 0]]),
        relations=(
            [b"next", b"same", b"back", b"far"],
            [[0, 1, 5, -5], [2, -1, 0, 9], [0.5, -0.5, 1, 1], [1, 0, 0, 0]],
        ),
    ))  # fmt: skip
    assert rotate.score("a", "next", "b") == pytest.approx(rotate.score("a", "same", "b"), abs=1e-6)
    assert rotate.similarity("next", "same") == pytest.approx(1, abs=1e-6)
    assert rotate.similarity("next", "back") == pytest.approx(0, abs=1e-6)
    assert rotate.similarity("next", "far") == pytest.approx(-1, abs=1e-6)
    assert [name for name, _ in rotate.neighbours("next", kind="relations")] == [
        "same", "back", "far",
    ]  # fmt: skip


def test_equal_rows_are_equal_answers_of_which_the_more_frequent_is_first(tmp_path):
    """Wherever they are: a product with a matrix sums in an order that depends on the place."""
    row = np.random.default_rng(3).normal(0, 1, 37).astype(np.float32)
    names = [b"i%d" % number for number in range(23)]
    model = snailps.load(written(
        tmp_path / "m.npz", MfSettings(dim=37, loss="softmax"), mean=0.0,
        users=([b"u"], [row[::-1]]), items=(names, np.repeat(row[None], 23, axis=0)),
    ))  # fmt: skip
    asked = [model.recommend("u", 23), model.neighbours("i0", 23, "items")]
    assert [[name for name, _ in best] for best in asked] == [
        [name.decode() for name in names], [name.decode() for name in names[1:]],
    ]  # fmt: skip


@pytest.mark.parametrize("step", [1, 2, 9])
def test_each_line_has_its_answer_wherever_lines_are_blank(graph, step):
    """In any pieces: of lines that are read together."""
    lines = [b"\n", b"zero\tnext\t?\n", b"\n", b"\r\n", b"three\tnext\t?\n", b"?\tnext\tone"]
    pieces = [b"".join(lines[at : at + step]) for at in range(0, len(lines), step)]
    found = list(graph.answers(pieces, 1))
    assert [found[at] for at in (0, 2, 3)] == [None] * 3
    assert (found[1], found[5], len(found)) == ([("one", 0.0)], [("zero", 0.0)], 6)
    assert isinstance(found[4], UnknownWord)


def test_line_of_names_of_columns_and_blank_lines_have_no_answer(ratings):
    pieces = [b"user,item,rating\n\nu,j,1\n", b"u,?,1\n"]
    assert list(ratings.answers(pieces, 1)) == [None, None, [("j", 5.5)], [("j", 5.5)]]


def test_malformed_line_is_named_by_its_place_in_the_file(graph, tmp_path):
    path = tmp_path / "asked.txt"
    path.write_bytes(b"zero\tnext\t?\n\nzero\tnext\n")
    pieces = [b"zero\tnext\t?\n\n", b"zero\tnext\n"]
    with pytest.raises(DataError, match=r"asked\.txt, line 3"):
        list(graph.answers(pieces, 1, str(path)))


def test_unknown_name_gets_those_spelt_like_it(graph):
    with pytest.raises(UnknownWord, match=r"'Zero' is none of its 4 entities; did you mean zero\?"):
        graph.tails("Zero", "next")
    with pytest.raises(UnknownWord, match=r"; did you mean next\?"):
        graph.heads("nxt", "one")
    with pytest.raises(UnknownWord, match=r"4 entities and 1 relations; did you mean one\?"):
        graph.neighbours("onee")
    with pytest.raises(UnknownWord, match="; check its spelling and case"):
        graph.score("zero", "next", "something else")


def test_names_that_answers_leave_out_are_a_list_of_known_ones(graph, ratings):
    for ask in (
        lambda without: graph.tails("zero", "next", without=without),
        lambda without: ratings.recommend("u", without=without),
    ):
        for wrong in ("one", b"one", 5):
            with pytest.raises(DataError, match="without: expected a list of names, got"):
                ask(wrong)
    with pytest.warns(UserWarning, match=r"'onee' is none of its 4 entities; did you mean one\?"):
        found = graph.tails("zero", "next", without=["onee", "two"])
    assert [name for name, _ in found] == ["one", "zero", "fünf"]


def test_known_triples_and_pairs_are_left_out(graph, ratings):
    known = [("zero", "next", "one"), ("one", "next", "two"), ("zero", "before", "fünf")]
    assert [name for name, _ in graph.tails("zero", "next", known=known)] == ["zero", "two", "fünf"]
    assert "zero" not in [name for name, _ in graph.heads("next", "one", known=known)]
    assert ratings.recommend("u", seen=[("u", "j"), ("v", "i")]) == [("i", 3.5)]


def test_line_with_an_unknown_name_does_not_end_the_answers(graph):
    unknown, known = graph.answers([b"three\tnext\t?\nzero\tnext\t?\n"], 1)
    assert "'three' is none of its 4 entities" in str(unknown)
    assert known == [("one", 0.0)]


@pytest.mark.parametrize("several", [["u"], ("u", "v"), np.array(["u"])])
def test_question_about_one_name_refuses_several(graph, ratings, several):
    with pytest.raises(DataError, match="expected one name of its users"):
        ratings.predict(several, "i")  # it was the rating of an unknown user
    with pytest.raises(DataError, match="expected one name of its items"):
        ratings.predict("u", several)
    with pytest.raises(DataError, match="expected one name of its entities"):
        graph.score("one", "next", several)


def test_graph_model_refuses_unknown_names(graph):
    with pytest.raises(DataError, match="'three' is none of its 4 entities"):
        graph.tails("three", "next")
    with pytest.raises(DataError, match="'before' is none of its 1 relations"):
        graph.tails("one", "before")


def test_graph_model_refuses_a_negative_number_of_answers(graph):
    assert graph.tails("one", "next", k=0) == []
    with pytest.raises(DataError, match="k: expected at least 0 answers, got -1"):
        graph.tails("one", "next", k=-1)


@pytest.fixture
def ratings(tmp_path):
    """Mean 3, biases of a user .5, of items 0 and 1, product 1 with the second item."""
    return snailps.load(written(
        tmp_path / "ratings.npz", MfSettings(dim=1), mean=3,
        users=([b"u"], [[0.5, 1]]), items=([b"i", b"j"], [[0, 0], [1, 1]]),
    ))  # fmt: skip


def test_factor_model_predicts_ratings(ratings):
    assert ratings.predict("u", "j") == 5.5
    assert ratings.predict("u", "new") == 3.5
    assert ratings.predict("new", "new") == 3
    assert ratings.recommend("u") == [("j", 5.5), ("i", 3.5)]
    assert ratings.recommend("u", without=["j"]) == [("i", 3.5)]
    assert list(ratings.answers([b"u ?\nu i\n"], 1)) == [[("j", 5.5)], [("i", 3.5)]]


def test_factor_model_of_rankings_scores_by_products(tmp_path):
    model = snailps.load(written(
        tmp_path / "pairs.npz", MfSettings(dim=2, loss="softmax"),
        users=([b"u"], [[1, 2]]), items=([b"i", b"j"], [[1, 0], [0, 1]]),
    ))  # fmt: skip
    assert model.recommend("u", 5) == [("j", 2.0), ("i", 1.0)]
    assert model.predict("u", "i") == 1
    with pytest.raises(DataError, match="none of its 1 users"):
        model.recommend("new")


@pytest.mark.parametrize("name", ["nosuch", ""])
def test_questions_of_a_file_that_cannot_be_read_are_a_line(tmp_path, graph, name):
    words = ["predict", str(tmp_path / "graph.npz"), str(tmp_path / name)]
    with pytest.raises(DataError, match="cannot read"):
        app_for(words)(words, standalone_mode=False)


@pytest.mark.parametrize("option", ["--input", "--output"])
def test_predict_of_names_refuses_options_of_a_classifier_with_the_next_step(
    graph, tmp_path, option
):
    words = ["predict", str(tmp_path / "graph.npz"), option, "asked.txt"]
    with pytest.raises(ConfigError, match=r"snailps predict .*graph\.npz FILE prints"):
        app_for(words)(words, standalone_mode=False)


def test_predict_of_names_refuses_a_threshold(graph, tmp_path):
    (tmp_path / "asked.txt").write_text("zero\tnext\t?\n")
    words = [
        "predict",
        str(tmp_path / "graph.npz"),
        str(tmp_path / "asked.txt"),
        "--threshold",
        "1",
    ]
    with pytest.raises(ConfigError, match=r"labels of texts, and .* has names"):
        app_for(words)(words, standalone_mode=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--known", "gone.txt"], "--known gone.txt: input not found"),
        (["--only", "empty.txt"], "--only .*empty.txt: expected the names of items, one a line"),
    ],
)
def test_recommend_names_the_option_whose_file_is_wrong(ratings, tmp_path, words, message):
    (tmp_path / "empty.txt").write_text("\n")
    option, name = words
    name = name if name.startswith("gone") else str(tmp_path / name)
    command = ["recommend", ratings.path, option, name]
    with pytest.raises(ConfigError, match=message):
        app_for(command)(command, standalone_mode=False)


def test_files_of_other_models_are_none_and_damaged_ones_are_refused(tmp_path, graph):
    assert embedding_of(tmp_path / "missing.npz") is None
    (tmp_path / "text.npz").write_text("no archive")
    assert embedding_of(tmp_path / "text.npz") is None
    written(
        tmp_path / "damaged.npz", KgeSettings(dim=2),
        entities=([b"a"], np.zeros(3)), relations=([b"r"], np.zeros((1, 2))),
    )  # fmt: skip
    with pytest.raises(ModelFileError, match=r"the \.npz of a knowledge graph, .* got .*entities"):
        snailps.load(tmp_path / "damaged.npz")


LATIN = ["andré", "andrè", "jürgen"]


@pytest.fixture
def latin(tmp_path):
    """Users whose names are no UTF-8, and one whose name is; each has the value of its place."""
    users = [name.encode("latin-1") for name in LATIN] + ["andré".encode()]
    written(
        tmp_path / "latin.npz", MfSettings(dim=1, loss="softmax"),
        users=(users, [[0], [1], [2], [3]]), items=([b"jaws"], [[1]]),
    )  # fmt: skip
    return users, snailps.load(tmp_path / "latin.npz")


def test_names_that_are_no_utf8_keep_their_rows(latin):
    users, model = latin
    assert [os.fsencode(name) for name in model.users] == users
    for place, name in enumerate(users):
        assert model.predict(os.fsdecode(name), "jaws") == place
    assert model.numbers("users", list(map(os.fsdecode, users))).tolist() == [0, 1, 2, 3]
    lines = b"".join(name + b"\tjaws\n" for name in users)
    assert [best for ((_, best),) in model.answers([lines], 1)] == [0, 1, 2, 3]


def test_names_that_are_no_utf8_are_saved_as_they_were(latin, tmp_path):
    users, model = latin
    model.save(tmp_path / "again.npz")
    with np.load(tmp_path / "again.npz") as arrays:
        assert arrays["users"].tobytes().split(b"\n") == users


def test_estimator_of_names_that_are_no_utf8_scores_lines_by_their_own_rows(latin, tmp_path):
    users, _ = latin
    estimator = snailps.MatrixFactorization.load(tmp_path / "latin.npz")
    path = tmp_path / "asked.tsv"
    path.write_bytes(b"".join(name + b"\tjaws\n" for name in users))
    assert estimator.predict(path).tolist() == [0, 1, 2, 3]


def test_only_name_of_a_kind_that_is_empty_is_read_again(tmp_path):
    model = snailps.load(written(
        tmp_path / "empty.npz", KgeSettings(dim=2, model="distmult"),
        entities=([b"a", b""], np.ones((2, 2))), relations=([b""], np.ones((1, 2))),
    ))  # fmt: skip
    assert (model.entities, model.relations) == (["a", ""], [""])
    assert model.score("a", "", "") == 2


@pytest.mark.parametrize("whole", [[1, 0], [1], [[1], [0]]])
@pytest.mark.usefixtures("latin")
def test_names_that_should_be_whole_numbers_and_are_not_are_refused(tmp_path, whole):
    with np.load(tmp_path / "latin.npz") as arrays:
        np.savez(tmp_path / "odd.npz", **arrays, whole=np.array(whole, np.uint8))
    with pytest.raises(ModelFileError, match=r"odd\.npz"):
        snailps.load(tmp_path / "odd.npz")


def test_questions_about_several_names_are_answered_by_a_list_for_each(tmp_path, graph):
    model = snailps.load(written(
        tmp_path / "pairs.npz", MfSettings(dim=2, loss="softmax"),
        users=([b"u", b"7"], [[1, 2], [2, 1]]), items=([b"i", b"j"], [[1, 0], [0, 1]]),
    ))  # fmt: skip
    for several in (["u", "7"], ("u", 7), np.array(["u", "7"]), iter(["u", 7])):
        assert model.recommend(several, 1) == [[("j", 2.0)], [("i", 2.0)]]
    assert model.recommend([], 1) == []
    seen = iter([("u", "j"), (7, "i"), ("u", "i")])
    assert model.recommend(["u", 7], without=iter([]), seen=seen) == [[], [("j", 1.0)]]
    assert model.recommend(["u", 7], without=iter(["j"])) == [[("i", 1.0)], [("i", 2.0)]]
    assert model.audience(["i", "j"], 1) == [[("7", 2.0)], [("u", 2.0)]]
    assert model.neighbours(["i", "j"]) == [model.neighbours("i"), model.neighbours("j")]
    assert graph.neighbours(["two", "one"], 2) == [
        graph.neighbours("two", 2), graph.neighbours("one", 2),
    ]  # fmt: skip
    with pytest.raises(UnknownWord, match="'nobody' is none of its 2 users"):
        model.recommend(["u", "nobody"])
    estimator = snailps.MatrixFactorization.load(tmp_path / "pairs.npz")
    assert estimator.recommend(["u", 7], 1, seen=[("u", "j")]) == [[("i", 1.0)], [("i", 2.0)]]
    assert estimator.audience(["i"], 1) == [[("7", 2.0)]]
    assert estimator.most_similar(["i"]) == [estimator.most_similar("i")]


def test_lists_in_parquet_have_whole_numbers_where_all_names_are(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    written(
        tmp_path / "m.npz", MfSettings(dim=1, loss="softmax"),
        users=([b"7", b"8"], [[1], [2]]), items=([b"1", b"01"], [[1], [0]]),
    )  # fmt: skip
    words = ["recommend", str(tmp_path / "m.npz"), "--format", "parquet", "-k", "1"]
    words += ["--output", str(tmp_path / "lists.parquet")]
    app_for(words)(words, standalone_mode=False)
    table = parquet.read_table(tmp_path / "lists.parquet")
    assert list(map(str, table.schema.types)) == ["int64", "string", "float"]  # "01" is no number
    assert table.to_pydict() == {"user": [7, 8], "item": ["1", "1"], "value": [1.0, 2.0]}
