"""estimators.embeddings without a cluster: the job is made up, questions and figures are exact."""

import contextlib
import datetime
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest

import snailps
from snailps.config import RawConfig
from snailps.data.name_columns import NameCounts, Names
from snailps.errors import DataError, ModelFileError, NotFitted, ParameterError
from snailps.estimators import base
from snailps.estimators.jobs import FinishedJob
from snailps.models.embeddings import files, kge, mf
from snailps.models.embeddings.settings import MfSettings

# "next" adds 1 on a line: TransE with these rows has no error.
TRIPLES = [("a", "next", "b"), ("b", "next", "c"), ("c", "next", "d")]
PLACES = {"a": 0, "b": 1, "c": 2, "d": 3, "next": 1}
RATINGS = [(1, 10, 3.5), (1, 20, 5.5), (2, 20, 5.0)]


class Jobs:
    """In the place of `run_job`: a name's row is its place, a user's or item's its number / 10."""

    def __init__(self, folder):
        self.folder, self.asked, self.lines = folder, [], []

    @contextlib.contextmanager
    def __call__(self, worker_class, settings, given, monitor, **_):
        cls = kge.KnowledgeGraph if worker_class.endswith("Graph") else mf.MatrixFactorization
        path = given[0] if isinstance(given, list) else given.path
        data = Path(path).read_bytes()
        columns = cls.columns.read(data, path, 0, data)
        self.asked.append((worker_class, settings))
        self.lines = Path(path).read_text().splitlines()
        counts = NameCounts(2)
        for kind, names in zip(cls.kind_of_column, columns.names, strict=True):
            counts.add(kind, names)
        names = Names(counts.dump())
        own = RawConfig.from_mapping({**settings, "worker_class": worker_class}, "a test").build(
            cls.Settings
        )
        if isinstance(own, MfSettings):
            own = own.decided(lines=len(self.lines))
        width = cls.row_dim(own)
        arrays = {"mean": np.float32([3])}
        for kind, some in zip(cls.kinds, names.names, strict=True):
            texts = [name.decode() for name in some]
            places = [PLACES[text] if text in PLACES else int(text) / 10 for text in texts]
            arrays[kind] = files.packed_names(some)
            arrays[f"{kind}.rows"] = np.zeros((len(some), width), np.float32)
            arrays[f"{kind}.rows"][:, -1] = places
        files.write(str(self.folder / "made.npz"), own, arrays)
        monitor.finish({"train_loss": 1.0}, [{"epoch": 1, "loss": 1.0}])
        yield FinishedJob({"train_loss": 1.0}, [self.folder / "made.npz"])


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    made = Jobs(tmp_path)
    monkeypatch.setattr(base, "run_job", made)
    return made


@pytest.fixture
def graph(jobs):
    return snailps.KnowledgeGraph(model="transe", dim=2, epochs=1).fit(TRIPLES)


def test_graph_answers_scores_and_ranks(graph, jobs):
    settings = {"model": "transe", "dim": 2, "epochs": 1, "keep_state": "always"}
    assert jobs.asked == [(graph.worker_class, settings)]
    assert jobs.lines == [",".join(row) for row in TRIPLES]
    assert graph.tails("a", "next", topn=1) == [("b", 0.0)]
    assert graph.tails("a", "next", topn=2, without=["b", "c"]) == [("a", -1.0), ("d", -2.0)]
    assert graph.heads("next", "b", topn=1) == graph.heads("next", "b", k=1) == [("a", 0.0)]
    assert graph.tails("a", "next", 1) == graph.tails("a", "next", k=1) == [("b", 0.0)]
    assert len(graph.most_similar("a", k=2)) == len(graph.most_similar("a", topn=2)) == 2
    with pytest.raises(DataError, match="topn: expected none beside k"):
        graph.tails("a", "next", k=1, topn=1)
    assert graph.predict([*TRIPLES, ("a", "next", "d")]).tolist() == [0, 0, 0, -2]
    assert graph.rank(TRIPLES).tolist() == [[1, 1]] * 3
    assert graph.rank([("a", "next", "d")]).tolist() == [[4, 4]]
    # The better ones are true, too.
    assert graph.rank([("a", "next", "d")], known=TRIPLES).tolist() == [[3, 3]]
    assert [name for name, _ in graph.most_similar("c", 2)] == ["b", "d"]
    assert graph.graph_.entities == ["b", "c", "a", "d"]
    assert graph.history_ == [{"epoch": 1, "loss": 1.0}]


def test_graph_evaluation_counts_unknown_names_and_leaves_them_out(graph):
    figures = graph.evaluate([*TRIPLES[:2], ("a", "next", "z")], known=TRIPLES)
    assert (figures["mrr"], figures["hits_at_1"], figures["unknown"]) == (1.0, 1.0, 1)
    with pytest.raises(
        DataError, match="row 2 of a list: KnowledgeGraph: 'z' is none of its 4 ent"
    ):
        graph.predict([*TRIPLES[:2], ("a", "next", "z")])
    with pytest.raises(DataError, match=r"^KnowledgeGraph: 'z' is none of its 4 entities"):
        graph.tails("z", "next")


def test_graph_is_fitted_on_files_and_asked_with_files(jobs, tmp_path):
    path = tmp_path / "triples.txt"
    path.write_text("".join("\t".join(row) + "\n" for row in TRIPLES))
    graph = snailps.KnowledgeGraph(model="transe", dim=2).fit(str(path))
    assert graph.evaluate(path)["mrr"] == 1.0
    assert graph.predict([path]).tolist() == [0, 0, 0]
    with pytest.raises(DataError, match=r"columns: expected none with a file, .*head relat"):
        graph.fit(path, columns=["a", "b", "c"])
    with pytest.raises(DataError, match="y: expected none with a file, got 'c'"):
        snailps.MatrixFactorization().fit(path, "c")
    path.write_text("\na\tnext\tb\nb\tnext\tz\n")
    for ask in (graph.rank, graph.predict):
        with pytest.raises(
            DataError, match=r"triples\.txt, line 3: KnowledgeGraph: 'z' is none of"
        ):
            ask(path)
    with pytest.raises(DataError, match="is no file, folder, glob or URL"):
        graph.fit("missing.txt")


def test_names_that_were_whole_numbers_come_back_as_such(jobs, tmp_path):
    model = snailps.MatrixFactorization(dim=1).fit(np.array(RATINGS))
    assert jobs.lines == ["1,10,3.5", "1,20,5.5", "2,20,5.0"]
    assert model.factors_.items == [20, 10]
    # 3 + .1 x 2
    assert model.recommend(1, topn=5) == [(20, pytest.approx(3.2)), (10, pytest.approx(3.1))]
    assert model.recommend("1", topn=5, without=[20]) == [(10, pytest.approx(3.1))]
    assert model.recommend(1, k=1) == model.recommend(1, topn=1) == [(20, pytest.approx(3.2))]
    assert model.audience(20, k=1) == model.audience(20, topn=1)
    assert model.most_similar(20, k=1) == model.most_similar(20, topn=1)
    assert model.predict([(1, 20), (7, 7)]).tolist() == [pytest.approx(3.2), 3]
    model.save(tmp_path / "ratings.npz")
    assert snailps.load(tmp_path / "ratings.npz").recommend(1, 1)[0][0] == 20
    again = snailps.MatrixFactorization.load(tmp_path / "ratings.npz", epochs=3)
    assert (again.dim, again.epochs, again.history_) == (1, 3, [])
    assert again.recommend(2, 1) == model.recommend(2, 1)
    assert pickle.loads(pickle.dumps(model)).recommend(2, 1) == model.recommend(2, 1)


def test_users_and_items_of_the_same_names_are_kept_apart(jobs):
    model = snailps.MatrixFactorization(dim=1).fit([(1, 2, 3.0), (2, 1, 3.0), (3, 1, 3.0)])
    assert model.most_similar(1, 5) == [(2, pytest.approx(1.0))]
    assert [name for name, _ in model.most_similar(1, 5, of="users")] == [2, 3]
    with pytest.raises(DataError, match="has users and items, no 'films'"):
        model.most_similar(1, of="films")


def test_evaluation_of_ratings_and_of_lists(jobs, tmp_path):
    rated = snailps.MatrixFactorization(dim=1).fit(RATINGS)
    figures = rated.evaluate([(1, 20), (9, 9)], [4.2, 3.0])
    assert figures["rmse"] == pytest.approx(np.sqrt(0.5))
    assert (figures["mean_absolute_error"], figures["unknown"]) == (pytest.approx(0.5), 1)
    (tmp_path / "pairs.txt").write_text("1 20\n")
    for pairs, whose in (([(1, 20)], "y"), (tmp_path / "pairs.txt", "pairs.txt")):
        with pytest.raises(DataError, match=f"{whose}: expected the values of pairs"):
            rated.evaluate(pairs)
    listed = snailps.MatrixFactorization(dim=1, loss="softmax", top=1).fit(
        [(1, 10), (1, 20), (2, 10), (2, 30)]
    )
    assert listed.evaluate([(1, 30), (2, 20), (8, 10)])["recall_at_1"] == 0.5
    assert listed.evaluate([(1, 30), (2, 20)], seen=[(2, 30)])["recall_at_1"] == 1.0
    with pytest.raises(DataError, match=r"row 1 of a list: .*'8' is none of its 2 users"):
        listed.predict([(1, 10), (8, 10)])


def test_values_are_needed_by_the_squared_loss_only(jobs):
    with pytest.raises(DataError, match="loss='squared' predicts values, and X has none"):
        snailps.MatrixFactorization(loss="squared").fit([(1, 2)])
    with pytest.raises(DataError, match="weights='values' takes the weights of rows from values"):
        snailps.MatrixFactorization(loss="als", weights="values").fit([(1, 2)])
    for loss in ("pairwise", "auto"):
        snailps.MatrixFactorization(loss=loss).fit([(1, 2)])
        assert jobs.lines == ["1,2"]


def test_rankings_learn_and_are_judged_by_entries_above_0(jobs):
    sparse = pytest.importorskip("scipy.sparse")
    model = snailps.MatrixFactorization(dim=1, loss="softmax", top=1)
    entries = ([1.0, 0, 1, 0, 1], ([1, 1, 1, 2, 2], [10, 20, 40, 10, 30]))
    for given in (
        (sparse.csr_matrix(entries, shape=(3, 50)),),
        ([(1, 10), (1, 20), (1, 40), (2, 10), (2, 30)], np.array([1, 0, 1, 0, 1])),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.fit(*given)
        assert jobs.lines == ["1,10", "1,40", "2,30"]
    # The best item of both is 40, which one of them has chosen, and one has not.
    held_out = ([(1, 40), (1, 10), (2, 40), (2, 30)], [1, 0, 0, 2])
    assert model.evaluate(*held_out)["recall_at_1"] == 0.5
    seen = sparse.csr_matrix(([1, 0], ([2, 1], [40, 40])), shape=(3, 50))
    assert model.evaluate(*held_out, seen=seen)["recall_at_1"] == 1
    with pytest.warns(UserWarning, match="1 entries of values below 0 are left out"):
        model.fit([(1, 10), (2, 20)], [1, -1])
    assert jobs.lines == ["1,10"]
    with pytest.warns(UserWarning, match="values from 2 to 5 count as one choice each"):
        model.fit([(1, 10, 5), (2, 20, 2)])
    with pytest.raises(DataError, match="has no rows of a value above 0"):
        model.fit([(1, 10, 0)])


@pytest.mark.parametrize("by", [{"held_out": 0.5, "held_out_by": "time"}, {"held_out_from": "5"}])
def test_rows_in_memory_are_held_out_by_their_times(jobs, by):
    days = ["1970-01-01", "1970-01-01T00:01:00Z", 90]
    rated = [(user, item) for user, item, _ in RATINGS]
    model = snailps.MatrixFactorization(dim=1, **by).fit(RATINGS, times=days)
    assert jobs.lines == ["1,10,3.5,0.0", "1,20,5.5,60.0", "2,20,5.0,90.0"]
    assert jobs.asked[-1][1]["time_column"] == 4
    model.partial_fit(rated, times=[datetime.datetime(1970, 1, 2), datetime.date(1970, 1, 3), 9.5])
    assert jobs.lines == ["1,10,86400.0", "1,20,172800.0", "2,20,9.5"]
    assert jobs.asked[-1][1]["time_column"] == 3
    table = {
        "who": [1, 2],
        "film": [10, 20],
        "when": np.array(["1970-01-02", "1970-01-03"], "M8[D]"),
    }
    snailps.MatrixFactorization(dim=1, loss="als", **by).fit(table, times="when")
    assert jobs.lines == ["1,10,86400.0", "2,20,172800.0"]
    chosen = snailps.MatrixFactorization(dim=1, loss="als", **by)
    chosen.fit(rated, [1, 0, 1], times=days)
    assert jobs.lines == ["1,10,0.0", "2,20,90.0"]


def test_times_that_do_not_fit_the_rows_are_refused(jobs):
    model = snailps.MatrixFactorization(dim=1, held_out=0.5, held_out_by="user_time")
    with pytest.raises(DataError, match=r"rows of a list have none, .*: give times="):
        model.fit(RATINGS)
    for times, message in (
        ([1, 2], "a time for each row of X, got 2"),
        ([1, 2, 3, 4], "a time for each row of X, got more than 3"),
        ([1, None, 3], "a number or a date; in element 1 of a list of 3 it is None"),
        ([1, "soon", 3], "a number or a date; in element 1 of a list of 3 it is 'soon'"),
        ("when", "a table that has 'when', got a list"),
    ):
        with pytest.raises(DataError, match=f"times: expected {message}"):
            model.fit(RATINGS, times=times)
    with pytest.warns(UserWarning, match="times have no effect"):
        snailps.MatrixFactorization(dim=1).fit(RATINGS, times=[1, 2, 3])
    assert jobs.lines == ["1,10,3.5", "1,20,5.5", "2,20,5.0"]


def test_entries_of_a_sparse_matrix_are_not_held_out_by_an_order(jobs):
    sparse = pytest.importorskip("scipy.sparse")
    entries = sparse.coo_matrix(([1.0, 5], ([2, 1], [9, 8])))
    for by in ("user_order", "user_time"):
        model = snailps.MatrixFactorization(dim=1, held_out=1, held_out_by=by)
        with pytest.raises(DataError, match=r"sparse matrix have no order|rows of .* have none"):
            model.fit(entries)


def test_columns_of_a_table_are_chosen_and_found_again(jobs):
    table = {"stars": [4.0, 2.0], "film": ["8", "9"], "who": ["1", "2"]}
    model = snailps.MatrixFactorization(dim=1).fit(table, "stars", columns=["who", "film"])
    assert jobs.lines == ["1,8,4.0", "2,9,2.0"]
    assert model.factors_.users == ["1", "2"]
    assert model.predict(table).tolist() == pytest.approx([3.08, 3.18])


def test_answers_stand_beside_the_entries_of_a_sparse_matrix(jobs):
    sparse = pytest.importorskip("scipy.sparse")
    pairs = [(2, 9), (1, 8), (2, 9), (1, 9)]
    twice = sparse.coo_matrix(([1.0, 5, 2, 0], tuple(zip(*pairs, strict=True))), shape=(3, 10))
    model = snailps.MatrixFactorization(dim=1).fit(twice)
    assert jobs.lines == ["1,8,5.0", "1,9,0.0", "2,9,3.0"]
    expected = model.predict(pairs).tolist()
    assert len({*expected}) == 3
    for asked in (twice, twice.tocsc().tocoo(), twice.tocsr()):
        same = list(zip(asked.tocoo().row.tolist(), asked.tocoo().col.tolist(), strict=True))
        assert model.predict(asked).tolist() == model.predict(same).tolist()
    assert model.predict(twice).tolist() == expected


@pytest.mark.parametrize("how", [{"y": "stars"}, {"columns": ["who", "film", "stars"]}])
def test_columns_of_fit_are_found_by_name_in_any_order_and_after_load(jobs, tmp_path, how):
    table = {"stars": [4.0, 2.0], "who": ["1", "2"], "film": ["8", "9"]}
    fitted = snailps.MatrixFactorization(dim=1).fit(table, **how)
    fitted.save(tmp_path / "m.npz")
    loaded = snailps.MatrixFactorization.load(tmp_path / "m.npz")
    pairs = {"note": ["", None], "film": table["film"], "who": table["who"]}
    for model in (fitted, loaded, pickle.loads(pickle.dumps(fitted))):
        assert model.predict(table).tolist() == pytest.approx([3.08, 3.18])
        assert model.predict(pairs).tolist() == pytest.approx([3.08, 3.18])
        assert model.evaluate(table) == model.evaluate(pairs, table["stars"])
        assert model.evaluate(table, "stars")["unknown"] == 0


def test_columns_without_that_of_values_leave_the_next_to_be_it(jobs, tmp_path):
    table = {"who": ["1", "2"], "film": ["8", "9"]}
    model = snailps.MatrixFactorization(dim=1).fit(table, [4.0, 2.0])
    turned = {"film": ["8", "9"], "stars": [4.0, 2.0], "who": ["1", "2"]}
    assert model.evaluate(turned) == model.evaluate(table, [4.0, 2.0])
    wide = {**turned, "title": ["a", "b"]}  # which of the others it is is not guessed
    assert model.predict(wide).tolist() == model.predict(table).tolist()
    with pytest.raises(DataError, match="y"):
        model.evaluate(wide)
    numbered = {0: ["1", "2"], 1: ["8", "9"]}  # names that are no text are not saved
    model = snailps.MatrixFactorization(dim=1).fit(numbered, [4.0, 2.0])
    assert model.predict(dict(reversed(numbered.items()))).tolist() == pytest.approx([3.08, 3.18])
    model.save(tmp_path / "m.npz")
    assert snailps.MatrixFactorization.load(tmp_path / "m.npz").factors_.columns == ()


def test_triples_are_found_by_the_names_of_their_columns_after_load(jobs, tmp_path):
    table = dict(zip(("tail", "rel", "head"), zip(*TRIPLES, strict=True), strict=True))
    table = {name: list(table[name]) for name in ("head", "tail", "rel")}
    table["head"], table["tail"] = table["tail"], table["head"]
    graph = snailps.KnowledgeGraph(model="transe", dim=2, epochs=1)
    graph.fit(table, columns=["head", "rel", "tail"]).save(tmp_path / "g.npz")
    loaded = snailps.KnowledgeGraph.load(tmp_path / "g.npz")
    assert loaded.evaluate(table) == graph.evaluate(TRIPLES)
    assert loaded.evaluate(table)["unknown"] == 0


def test_what_is_wrong_is_told_before_a_job_begins(jobs, tmp_path):
    for made in (snailps.KnowledgeGraph(), snailps.MatrixFactorization()):
        with pytest.raises(NotFitted, match="needs a fitted model"):
            made.most_similar("a")
        with pytest.raises(NotFitted, match="save needs a fitted model"):
            made.save(tmp_path / "x.npz")
    with pytest.raises(ParameterError, match="dim: expected an even number with model rotate"):
        snailps.KnowledgeGraph(dim=3).fit(TRIPLES)
    with pytest.raises(ParameterError, match="did you mean 'dim'"):
        snailps.KnowledgeGraph(embedding_dim=3)
    with pytest.raises(ParameterError, match="did you mean 'dim'"):
        snailps.MatrixFactorization(n_factors=3)
    with pytest.raises(DataError, match="columns: expected a list of names"):
        snailps.KnowledgeGraph().fit({"a": []}, columns="abc")
    assert jobs.asked == []


def test_files_of_other_models_are_refused(graph, tmp_path):
    graph.save(tmp_path / "graph.npz")
    with pytest.raises(ModelFileError, match=r"expected the \.npz of a matrix factorisation"):
        snailps.MatrixFactorization.load(tmp_path / "graph.npz")
    with pytest.raises(ModelFileError):
        graph.save(tmp_path / "missing" / "graph.npz")


def test_times_of_files_are_no_values_of_rows_in_memory(jobs):
    """`time_column: 3` says what lines of files are; rows in memory have their times beside."""
    model = snailps.MatrixFactorization(dim=1, loss="als", time_column=3)
    with pytest.raises(DataError, match=r"time_column: 3 says .*: give pairs and times="):
        model.fit(RATINGS)
    model = snailps.MatrixFactorization(dim=1, time_column=5).fit(RATINGS)
    assert jobs.asked[-1][1]["time_column"] == 4
