"""`TextClassifier` without a cluster: labels, probabilities, files; jobs are made up."""

import contextlib
import gzip
import inspect
import itertools
import pickle
import tracemalloc
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import snailps
from snailps.api.export_progress import ExportProgress
from snailps.data._labelled import without_weights
from snailps.data._text import WordCounter
from snailps.data.label_words import label_of, word_of
from snailps.data.vocabulary import Vocabulary
from snailps.errors import ConfigError, DataError, ModelFileError, ParameterError
from snailps.estimators import base
from snailps.estimators import text as of_texts
from snailps.estimators.jobs import FinishedJob
from snailps.estimators.labels import classes_of, soft_labels_of, values_of
from snailps.models.classifier import Classifier, ClassifierSettings, warm_start
from snailps.models.classifier.model import unpack_summary
from snailps.vectors.fasttext_bin import BinHeader, write_bin

TextClassifier = snailps.TextClassifier
TEXTS = ["good film", "bad film", "dull"]


# --- labels -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "word"),
    [
        ("sport", "sport"), (3, "3"), (True, "True"), (-1.5, "-1.5"), ("", "%%"),
        ("New York", "New%20%York"), ("a\tb\n", "a%09%b%0A%"), ("100%", "100%25%"),
        ("%20%", "%25%20%25%"), ("no\u00a0break", "no%A0%break"),
    ],
)  # fmt: skip
def test_word_of_a_label_has_no_blanks_and_leads_back(label, word):
    assert word_of(label) == word
    assert label_of("__label__" + word) == str(label)


def test_values_are_python_values_of_one_kind():
    assert values_of(np.array([1, 0])) == [1, 0]
    assert values_of(("a", "b")) == ["a", "b"]
    assert values_of("y", {"x": ["t"], "y": ["a"]}) == ["a"]
    for given, text in [
        (None, "y: expected a label for each text, got none"),
        (["a", None], "element 1 of .* is missing"),
        (["a", 1], "labels of one type"),
        ([["a"], ["b"]], "element 0 of .* is a list: expected one label a text"),
    ]:
        with pytest.raises(DataError, match=text):
            values_of(given)


def test_classes_are_sorted_and_of_one_kind():
    assert classes_of([2, 1, 2], [7]).tolist() == [1, 2, 7]
    hashes = [7, (1 << 63) + 1, (1 << 63) + 2]
    assert (classes_of(hashes).dtype, classes_of(hashes).tolist()) == (np.uint64, hashes)
    with pytest.raises(DataError, match="holds all labels from -1 to 9223372036854775809"):
        classes_of([(1 << 63) + 1, -1])
    with pytest.raises(DataError, match="give them as str"):
        classes_of([0.5, (1 << 53) + 1])
    with pytest.raises(DataError, match="expected labels like 7, which the model has; got 'a'"):
        classes_of(["a"], [7])


# --- fitting, with jobs that are made up ----------------------------------------------------------


class Jobs:
    """In the place of `run_job`: a model that has one row a word, with its label's column."""

    def __init__(self, folder):
        self.folder, self.asked, self.texts = folder, [], []
        self.figures = {"words": 1}

    @contextlib.contextmanager
    def __call__(self, worker_class, settings, given, monitor, **_):
        path = given[0] if isinstance(given, list) else given.path
        lines = Path(path).read_text().splitlines()
        self.asked.append((worker_class, settings))
        self.texts.append(lines)
        if settings.get("soft_labels"):
            words = without_weights(Path(path).read_bytes(), b"__label__")[0]
            lines = [
                f"{label} {line[line.rindex('__label__') :].partition(' ')[2].strip()}"
                for line in words.decode().splitlines()
                for label in line.split()
                if label.startswith("__label__")
            ]
        if "continue_from" in settings:
            old = snailps.load(settings["continue_from"])
            lines = [f"{label.decode()} old" for label in old.labels] + lines
        labels = list(dict.fromkeys(line.split()[0].encode() for line in lines))
        words = list(dict.fromkeys(w.encode() for line in lines for w in line.split()[1:]))
        rows = np.zeros((len(words), len(labels)), np.float32)
        for line in lines:
            for word in line.split()[1:]:
                rows[words.index(word.encode()), labels.index(line.split()[0].encode())] += 1
        own = len(settings.get("label", ""))
        header = BinHeader(
            dim=len(labels), model="supervised", loss="softmax", min_count=1, prefix=own
        )
        ones = np.ones(len(words), np.int64)
        counts = np.arange(len(labels), 0, -1)
        file = Path(self.folder, "made.bin")
        eye = 9 * np.eye(len(labels), dtype=np.float32)
        write_bin(file, header, words, ones, [rows], [eye], labels, counts)
        monitor.finish({"words": 1}, [{"epoch": 1, "loss": 1.0, "words_per_s": 1.0}])
        yield FinishedJob(dict(self.figures), [file])
        file.unlink()


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    made = Jobs(tmp_path)
    monkeypatch.setattr(base, "run_job", made)
    return made


@pytest.mark.parametrize("labels", [["yes it is", "no", "no"], [1, 0, 0], [True, False, False]])
def test_fit_learns_labels_of_any_kind(jobs, labels):
    model = TextClassifier(dim=2)
    assert model.fit(TEXTS, labels) is model
    assert model.classes_.tolist() == sorted(set(labels))
    assert model.predict(TEXTS).tolist() == labels
    assert model.score(TEXTS, labels) == 1.0
    chances = model.predict_proba([["good"], "good bad", "unheard"])
    assert chances.shape == (3, 2)
    assert chances.sum(axis=1) == pytest.approx(1)
    first = model.classes_.tolist().index(labels[0])
    assert chances[2][first] == pytest.approx(2 / 3)  # of the labels, the first came more often
    assert jobs.asked[0] == ("snailps.models.classifier:Classifier", {"dim": 2})
    assert jobs.texts[0][0] == f"__label__{word_of(labels[0])} good film"
    assert "good" in model.wv


def test_rows_stay_with_their_texts_whatever_these_hold(jobs):
    model = TextClassifier(dim=2).fit(TEXTS, ["yes", "no", "no"])
    texts = ["good </s> bad", "bad\ngood bad", "dull\u2028", "", ["</s>", "good"], "good\x85 good"]
    alone = np.concatenate([model.predict_proba([text]) for text in texts])
    np.testing.assert_array_equal(model.predict_proba(texts), alone)
    found = model.predict(texts).tolist()
    assert found == [model.predict([text])[0] for text in texts]
    assert found[:2] == ["yes", "no"]
    assert model.score(texts, found) == 1.0


def test_fit_of_texts_with_line_ends_has_a_line_a_text(jobs):
    TextClassifier(dim=2).fit(["good </s> bad\nfilm", "bad\n"], ["yes", "no"])
    assert jobs.texts == [["__label__yes good </s> bad film", "__label__no bad "]]


def test_fit_of_a_file_takes_its_labels(jobs, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("__label__b good\n__label__50%off bad\n")
    model = TextClassifier(dim=2).fit(file)
    assert model.classes_.tolist() == ["50%off", "b"]
    assert model.predict(["bad"]).tolist() == ["50%off"]
    with pytest.raises(DataError, match="y: expected none with the path"):
        model.fit(file, ["a", "b"])


def test_search_over_fits_of_many_epochs_is_told_once_what_costs(jobs, monkeypatch, caplog):
    monkeypatch.setattr(of_texts, "long_fits", itertools.count(1))
    jobs.figures = {"epochs": 300}
    for number in range(2 * of_texts.MANY_FITS):
        TextClassifier(epochs=3).fit(TEXTS, [1, 0, 0])  # as it was chosen
        TextClassifier().fit(TEXTS, [1, 0, 0])
        told = [record.message for record in caplog.records if "epochs='auto'" in record.message]
        assert len(told) == (number + 1 >= of_texts.MANY_FITS)
    assert "In a search of parameters set epochs, such as 30, or call autotune" in told[0]


def test_partial_fit_holds_out_what_fit_did_or_is_refused(jobs):
    model = TextClassifier(dim=2, held_out=0.1, seed=7).fit(TEXTS, [1, 0, 0])
    model.partial_fit(TEXTS, [1, 0, 0])
    assert jobs.asked[-1][1]["seed"] == 7
    model.set_params(seed=8)
    with pytest.raises(ParameterError, match="seed: the fitted model has 7, got 8"):
        model.partial_fit(TEXTS, [1, 0, 0])
    model.set_params(held_out=0.0).partial_fit(TEXTS, [1, 0, 0])
    model.set_params(seed=9, held_out=0.1).partial_fit(TEXTS, [1, 0, 0])  # held none out before


@pytest.mark.parametrize("says", [True, False])
def test_partial_fit_continues_a_file_with_a_prefix_of_its_own(jobs, tmp_path, says):
    eye, labels = 9 * np.eye(2, dtype=np.float32), [b"T_a", b"T_b"]
    header = BinHeader(dim=2, model="supervised", loss="softmax", prefix=2 * says)
    write_bin(tmp_path / "m.bin", header, [b"up", b"down"], [2, 1], [eye], [eye], labels, [2, 1])
    model = TextClassifier.load(tmp_path / "m.bin")
    start = "" if says else "T_"  # of a file that does not say it nobody knows where it ends
    assert model.classes_.tolist() == [f"{start}a", f"{start}b"]
    model.partial_fit(["new", "up"], [f"{start}c", f"{start}a"])
    assert jobs.texts[-1] == ["T_c new", "T_a up"]
    assert jobs.asked[-1][1]["label"] == "T_"
    if says:
        assert model.classes_.tolist() == ["a", "b", "c"]
        assert model.predict(["new"]).tolist() == ["c"]
    else:
        with pytest.raises(DataError, match="y: expected labels that begin with 'T_'"):
            TextClassifier.load(tmp_path / "m.bin").partial_fit(["new"], ["c"])


def test_partial_fit_adds_labels_and_keeps_the_words_of_the_others(jobs):
    model = TextClassifier(dim=2).fit(TEXTS, [1, 0, 0])
    model.partial_fit(["odd"], [7])
    assert model.classes_.tolist() == [0, 1, 7]
    assert model.predict(["odd"]).tolist() == [7]
    settings = jobs.asked[1][1]
    assert set(settings) == {"continue_from", "negatives", "min_count"}
    assert [one["epoch"] for one in model.history_] == [1, 2]
    model.set_params(dim=3)  # as the job that is made up has it
    with pytest.raises(DataError, match="expected labels like"):
        model.partial_fit(["odd"], ["seven"])
    model.set_params(dim=9)
    with pytest.raises(ParameterError, match="TextClassifier: dim: the fitted model has 3, got 9"):
        model.partial_fit(["odd"], [7])


def test_first_vectors_are_for_a_fit_and_not_for_its_continuation(jobs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = TextClassifier(pretrained="v.vec").fit(TEXTS, [1, 0, 0])
    assert jobs.asked[-1][1]["pretrained"] == str(tmp_path / "v.vec")
    model.partial_fit(["odd"], [7])  # whatever dim the file had
    assert "pretrained" not in jobs.asked[-1][1]
    assert model.set_params(pretrained=Path("w.vec")).fit(TEXTS, [1, 0, 0])
    assert jobs.asked[-1][1]["pretrained"] == str(tmp_path / "w.vec")
    with pytest.raises(ParameterError, match="pretrained: expected the path of a file of word"):
        TextClassifier(pretrained=3).fit(TEXTS, [1, 0, 0])


def test_model_goes_through_files_and_pickle(jobs, tmp_path):
    model = TextClassifier(dim=2).fit(TEXTS, [1, 0, 0])
    other = pickle.loads(pickle.dumps(model))
    assert other.predict(TEXTS).tolist() == [1, 0, 0]
    model.save(tmp_path / "c.bin")
    loaded = TextClassifier.load(tmp_path / "c.bin", lr=0.2)
    assert (loaded.dim, loaded.loss, loaded.lr) == (2, "softmax", 0.2)
    assert loaded.predict(TEXTS).tolist() == ["1", "0", "0"]
    packed = tmp_path / "c.bin.gz"
    packed.write_bytes(gzip.compress((tmp_path / "c.bin").read_bytes()))
    assert TextClassifier.load(packed).predict(TEXTS).tolist() == ["1", "0", "0"]
    assert snailps.load(tmp_path / "c.bin").predict("good")[0][0].label == "__label__1"
    with pytest.raises(ModelFileError, match=r"expected a name that ends in .bin"):
        model.save(tmp_path / "c.npz")
    with pytest.raises(ModelFileError, match="holds a classifier, not word vectors"):
        snailps.FastText.load(tmp_path / "c.bin")


def test_wrong_data_is_refused(jobs):
    model = TextClassifier(dim=2)
    for X, y, text in [
        (TEXTS, None, "y: expected a label for each text"),
        (TEXTS, [1, 0], "a label for each"),
        (["__label__x good"], ["a"], "would be read as a label"),
    ]:
        with pytest.raises(DataError, match=text):
            model.fit(X, y)
    model.fit(TEXTS, [1, 0, 0])
    with pytest.raises(DataError, match=r"expected a list of texts, got one text"):
        model.predict("good film")
    with pytest.raises(DataError, match="expected 3 labels, one a text; got 1"):
        model.score(TEXTS, [1])


def test_weights_of_texts_are_written_before_their_labels(jobs):
    model = TextClassifier(dim=2)
    model.fit(TEXTS, ["a:1", "b", "b"], [0.5, 1 / 3, 1e6])
    heads = ["__label__:0.5 __label__a:1:", "__label__:0.333333343 __label__b:",
             "__label__:1000000 __label__b:"]  # fmt: skip
    want = [f"{head} {text}" for head, text in zip(heads, TEXTS, strict=True)]
    assert jobs.texts[0] == want
    assert jobs.asked[0][1] == {"dim": 2, "soft_labels": True}
    assert model.classes_.tolist() == ["a:1", "b"]
    model.fit(iter(TEXTS), ["a:1", "b", "b"], sample_weight=2)
    assert [line.split()[0] for line in jobs.texts[1]] == ["__label__:2"] * 3
    table = {"text": TEXTS, "label": ["a:1", "b", "b"], "weight": [0.5, 1 / 3, 1e6]}
    model.fit(table, "label", "weight", column="text")
    assert jobs.texts[2] == want
    model.partial_fit(TEXTS, ["a:1", "b", "b"], sample_weight=[0.5, 1 / 3, 1e6])
    assert jobs.texts[3] == want
    model.fit(TEXTS, ["a:1", "b", "b"])
    assert jobs.texts[4][0] == f"__label__a:1 {TEXTS[0]}"
    assert "soft_labels" not in jobs.asked[4][1]


SOFT = [{"x": 0.75, "y": 0.25}, {"y": 1}, {"x": 0, "y": 2}]


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (SOFT, None),
        (np.array([[0.75, 0.25], [0, 1], [0, 2]]), ["x", "y"]),
        (np.array([[0.75, 0.25], [0, 1], [0, 2]], np.float32), np.array(["x", "y"])),
    ],
)
def test_soft_labels_are_mappings_or_a_matrix(jobs, y, classes):
    model = TextClassifier(dim=2).fit(TEXTS, y, classes=classes)
    heads = ["__label__x:0.75 __label__y:0.25", "__label__y:1", "__label__y:2"]
    assert jobs.texts[0] == [f"{head} {text}" for head, text in zip(heads, TEXTS, strict=True)]
    assert jobs.asked[0][1] == {"dim": 2, "soft_labels": True}
    assert model.classes_.tolist() == ["x", "y"]


def test_columns_of_soft_labels_have_names_or_numbers(jobs):
    frame = pytest.importorskip("pandas").DataFrame({"x": [0.5, 1, 0], "y": [0.5, 0, 1]})
    assert TextClassifier(dim=2).fit(TEXTS, frame).classes_.tolist() == ["x", "y"]
    assert TextClassifier(dim=2).fit(TEXTS, frame.to_numpy()).classes_.tolist() == [0, 1]
    assert TextClassifier(dim=2).fit(TEXTS, iter(SOFT)).classes_.tolist() == ["x", "y"]
    for classes, labels in ((["y", "x"], ["x", "y"]), (["u", "v"], ["u", "v"])):
        soft = soft_labels_of(frame, classes)  # in another order: by name
        assert [*soft.rows] == [{labels[0]: 0.5, labels[1]: 0.5}, {labels[0]: 1}, {labels[1]: 1}]
    with pytest.raises(DataError, match="weights of labels, numbers: got an array of <U1"):
        soft_labels_of(np.array([["1", "0"]]))
    frame.columns = ["x", "x"]
    with pytest.raises(DataError, match="another label for each column, got 'x' twice"):
        TextClassifier(dim=2).fit(TEXTS, frame)


@pytest.mark.parametrize("form", ["array", "chunks", "column", "arrow series", "objects"])
def test_maps_of_arrow_are_soft_labels(form):
    arrow = pytest.importorskip("pyarrow")
    kind = arrow.map_(arrow.string(), arrow.float64())
    y = arrow.array([[("a", 0.5), ("b", 0.25)], [("b", 1.0)]], kind)
    X = None
    if form == "chunks":
        y = arrow.chunked_array([y[:1], y[1:]])
    elif form == "column":
        X, y = arrow.table({"y": y}), "y"
    elif form != "array":
        pandas = pytest.importorskip("pandas")
        y = pandas.Series(
            y.to_pylist() if form == "objects" else y,
            dtype=(object if form == "objects" else pandas.ArrowDtype(kind)),
        )
    soft = soft_labels_of(y, None, X)
    assert (soft.labels, soft.texts) == (["a", "b"], 2)
    assert [*soft.rows] == [{"a": 0.5, "b": 0.25}, {"b": 1.0}]


def test_map_of_arrow_without_labels_or_with_one_twice_is_refused():
    arrow = pytest.importorskip("pyarrow")
    kind = arrow.map_(arrow.string(), arrow.float64())
    for rows, what in (
        ([[], [("a", 1.0)]], "element 0 has no label of a weight above 0"),
        ([[("a", 1.0)], [("b", 1.0), ("b", 2.0)]], "element 1: expected each key .* 'b' twice"),
    ):
        with pytest.raises(DataError, match=what):
            soft_labels_of(arrow.array(rows, kind))


@pytest.mark.parametrize(
    "y",
    [
        [np.array(["a", "b"]), np.array(["a"]), np.array(["b"])],
        [np.array(["a"]), np.array(["a", "b"]), np.array([])],
        [[("a", "b", "c")], [("a",)], [()]],
    ],
)
def test_rows_that_are_neither_labels_nor_maps_are_refused(jobs, y):
    with pytest.raises(DataError, match=r"y: element 0 .*is an? .*: expected one label a text"):
        TextClassifier(dim=2).fit(TEXTS, y)


def test_soft_labels_of_another_length_are_counted_in_the_error(jobs):
    for y in (SOFT[:2], np.ones((2, 2))):
        with pytest.raises(DataError, match="for each element: got 2 of them for 3 elements"):
            TextClassifier(dim=2).fit(TEXTS, y)


SOFT_MATRIX = np.array([[0.75, 0.25], [0, 1], [0, 2]])


@pytest.mark.parametrize(
    "form",
    ["objects", "Series", "polars", "arrow", "csr", "repeated", "column", "structs"],
)
def test_soft_labels_come_in_any_container(form):
    if form == "objects":
        y = np.array(SOFT, object)
    elif form in ("Series", "column"):
        y = pytest.importorskip("pandas").Series(SOFT)
    elif form == "polars":
        y = pytest.importorskip("polars").DataFrame(SOFT_MATRIX, schema=["x", "y"])
    elif form in ("arrow", "structs"):
        y = pytest.importorskip("pyarrow").table(dict(zip("xy", SOFT_MATRIX.T, strict=True)))
        y = y.to_struct_array() if form == "structs" else y
    elif form == "csr":
        y = pytest.importorskip("scipy.sparse").csr_matrix(SOFT_MATRIX)
    elif form == "repeated":  # 0.5 + 0.25 at one place
        places = [0, 0, 1, 1, 1], [0, 3, 4, 5]
        values = [0.5, 0.25, 0.25, 1, 2]
        y = pytest.importorskip("scipy.sparse").csr_array((values, *places))
    classes = ["x", "y"] if form in ("csr", "repeated") else None
    X = y.to_frame("y") if form == "column" else None
    soft = soft_labels_of("y" if form == "column" else y, classes, X)
    assert (soft.labels, soft.texts) == (["x", "y"], 3)
    assert list(soft.rows) == [{"x": 0.75, "y": 0.25}, {"y": 1.0}, {"y": 2.0}]


def test_probabilities_take_no_memory_of_python_objects():
    sparse = pytest.importorskip("scipy.sparse")
    dense = np.full((2_000, 50), 0.02, np.float32)
    dense[:, 7] = 0
    wide = sparse.random_array((2_000, 20_000), density=5e-4, rng=np.random.default_rng(1))
    wide = sparse.hstack([wide, np.ones((2_000, 1))], "csr")
    for matrix in (dense, wide):  # as objects 16 MB, as an array 320 MB
        names = [*range(matrix.shape[1])]
        tracemalloc.start()
        try:
            soft = soft_labels_of(matrix, names)
            assert sum(1 for _ in soft.rows) == soft.texts == 2_000
            assert tracemalloc.get_traced_memory()[1] < 10e6
        finally:
            tracemalloc.stop()
        used = np.flatnonzero(np.asarray((matrix != 0).sum(axis=0)).ravel())
        assert soft.labels == used.tolist()


def test_class_weight_is_a_setting_of_the_job(jobs):
    model = TextClassifier(dim=2, class_weight={"salt water": 3, "absent": 2})
    model.fit(TEXTS, ["salt water", "y", "y"])
    assert jobs.asked[0][1]["class_weights"] == ["__label__salt%20%water=3.0"]
    model.set_params(class_weight="balanced").fit(TEXTS, [1, 0, 0])
    assert jobs.asked[1][1]["class_weights"] == ["balanced"]
    model.set_params(class_weight={True: 2.5, False: 1}).fit(TEXTS, [True, False, False])
    assert jobs.asked[2][1]["class_weights"] == ["__label__True=2.5"]


def test_weights_of_files_are_columns(jobs, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,label,weight\ngood film,x,2\n")
    model = TextClassifier(dim=2, class_weight={"x": 3})
    model.fit(str(path), "label", "weight", column="text")
    settings = jobs.asked[0][1]
    assert (settings["weight_column"], settings["class_weights"]) == ("weight", ["x=3"])
    with pytest.raises(DataError, match="sample_weight: expected the name of the column"):
        model.fit(str(path), "label", [1.0], column="text")
    text = tmp_path / "t.txt"
    text.write_text("__label__x good\n")
    with pytest.raises(DataError, match=r"a line of text has its weight itself"):
        model.fit(str(text), sample_weight=[1.0])


@pytest.mark.parametrize(
    ("y", "weights", "text"),
    [
        (["a", "b", "b"], [1, -1, 1], "sample_weight: expected finite numbers of at least 0"),
        (["a", "b", "b"], [1, 1], r"sample_weight: expected shape \(3,\)"),
        (["a", "b", "b"], [0, 0, 0], "all weights are zero"),
        (
            ["a", "b", "b"],
            [1, 1, 2e6],
            "has the weight 2000000.0: expected a number from 0 to 1,000",
        ),
        ([{"x": 1}, "y", {"x": 1}], None, "element 1 is a str: expected a mapping from labels"),
        ([{"x": 1}, {"x": -1}, {"x": 1}], None, "element 1 gives label 'x' the weight -1"),
        ([{"x": 1}, {"x": float("nan")}, {}], None, "element 1 gives label 'x' the weight nan"),
        ([{"x": 1}, {"x": "1"}, {"x": 1}], None, "element 1 gives label 'x' the weight '1'"),
        ([{"x": 1}, {"x": 0}, {"x": 1}], None, "element 1 has no label of a weight above 0"),
        ([{"x": 1}, {None: 1}, {"x": 1}], None, "a label of element 1 is missing"),
        (np.ma.masked_equal(np.ones((3, 2)), 1), None, "without hidden elements"),
        (np.ones((2, 2)), None, "a label for each"),
    ],
)
def test_wrong_weights_are_refused(jobs, y, weights, text):
    with pytest.raises(DataError, match=text):
        TextClassifier(dim=2).fit(TEXTS, y, weights)


def test_wrong_class_weight_and_classes_are_refused(jobs):
    y = [1, 0, 0]
    for wrong, text in [
        ("even", "expected a dict from labels"),
        ({2: 1}, "no class 2 in y"),
        ({1: -1}, "expected finite numbers of at least 0"),
    ]:
        with pytest.raises(DataError, match=f"TextClassifier: class_weight: {text}"):
            TextClassifier(dim=2, class_weight=wrong).fit(TEXTS, y)
    with pytest.raises(DataError, match="classes: expected a label for each of the 2 columns"):
        TextClassifier(dim=2).fit(TEXTS, np.ones((3, 2)), classes=["x"])


def test_signature_has_no_prefix_of_labels():
    names = inspect.signature(TextClassifier).parameters
    assert {"word_ngrams", "min_count_label"} <= set(names)
    assert not {"label", "continue_from"} & set(names)


# --- a job that goes on -------------------------------------------------------------------------


@pytest.fixture
def before(tmp_path):
    """A classifier's file."""
    path = tmp_path / "before.bin"
    header = BinHeader(dim=2, model="supervised", loss="ova", minn=2, maxn=3, bucket=5)
    rows = np.arange(14, dtype=np.float32).reshape(7, 2)
    write_bin(path, header, [b"good", b"bad"], np.array([3, 2]), [rows],
              [rows[:1]], [b"__label__a"], np.array([4]))  # fmt: skip
    return path


def test_adopt_takes_the_shape_of_the_file(before):
    adopted = Classifier.adopt(ClassifierSettings(continue_from=str(before)), lambda name: None)
    found = (adopted.dim, adopted.loss, adopted.minn, adopted.maxn, adopted.bucket)
    assert found == (2, "ova", 2, 3, 5)
    assert (adopted.negatives, adopted.min_count) == (5, 5)  # the file's, and no default
    assert Classifier.adopt(ClassifierSettings(), lambda name: None) == ClassifierSettings()
    with pytest.raises(ConfigError, match=r"here: dim: expected 2, as in .*; got 100"):
        Classifier.adopt(ClassifierSettings(continue_from=str(before)), lambda name: "here")


def test_adopt_refuses_word_vectors(tmp_path):
    path = tmp_path / "words.bin"
    one = np.zeros((1, 2), np.float32)
    write_bin(path, BinHeader(dim=2), [b"good"], np.array([3]), [one], [one])
    with pytest.raises(ConfigError, match=r"expected a classifier, got word vectors \(skipgram\)"):
        Classifier.adopt(ClassifierSettings(continue_from=str(path)), lambda name: None)


def test_summary_has_old_words_and_labels_first(before):
    counter = WordCounter()
    counter.count(b"__label__b fine good\n__label__a fine\n")
    settings = ClassifierSettings(continue_from=str(before))
    words, labels = unpack_summary(Classifier.summarize(settings, counter))
    assert [bytes(word) for word in words.words] == [b"good", b"bad", b"</s>", b"fine"]
    assert words.counts.tolist() == [4, 2, 2, 2]
    assert [bytes(word) for word in labels.words] == [b"__label__a", b"__label__b"]
    assert labels.counts.tolist() == [5, 1]


def test_a_batch_without_the_weighted_class_goes_on(jobs):
    """Classes of the model count, and those that `classes` names, as for linear models."""
    model = TextClassifier(dim=3, class_weight={"rare": 5}).fit(TEXTS, ["x", "y", "rare"])
    model.partial_fit(TEXTS[:2], ["x", "y"])
    assert jobs.asked[-1][1]["class_weights"] == ["__label__rare=5.0"]
    named = TextClassifier(dim=2, class_weight={"rare": 5, "x": 2})
    named.partial_fit(TEXTS[:2], ["x", "y"], classes=["rare", "x", "y"])
    assert jobs.asked[-1][1]["class_weights"] == ["__label__x=2.0"]  # the text has no other
    with pytest.raises(DataError, match="no class 'rare' in y"):
        TextClassifier(dim=2, class_weight={"rare": 5}).fit(TEXTS[:2], ["x", "y"])


@pytest.mark.parametrize("soft", [False, True])
def test_a_class_that_is_named_has_a_column_before_it_has_a_text(jobs, tmp_path, soft):
    y = [{"x": 1.0}, {"y": 1.0}] if soft else ["x", "y"]
    model = TextClassifier(dim=2).partial_fit(TEXTS[:2], y, classes=["rare", "x", "y"])
    assert model.classes_.tolist() == ["rare", "x", "y"]
    chances = model.predict_proba([*TEXTS[:2], "unheard"])
    assert chances[:, 0].tolist() == [0, 0, 0]
    assert chances.sum(1) == pytest.approx(1)
    assert model.predict(TEXTS[:2]).tolist() == ["x", "y"]
    model.partial_fit(TEXTS[:1], ["x"])  # still named
    assert model.classes_.tolist() == ["rare", "x", "y"]
    model.save(tmp_path / "m.bin")
    loaded = TextClassifier.load(tmp_path / "m.bin", classes=["y", "x", "rare"])
    assert loaded.predict_proba(TEXTS[:1]).tolist() == model.predict_proba(TEXTS[:1]).tolist()
    model.partial_fit(TEXTS[2:], ["rare"])
    assert model.classes_.tolist() == ["rare", "x", "y"]
    assert model.predict_proba(TEXTS[2:])[0, 0] > 0
    model.fit(TEXTS[:2], ["x", "y"])
    assert model.classes_.tolist() == ["x", "y"]
    with pytest.raises(DataError, match=r"label 'z' is not among classes, \['x', 'y'\]"):
        model.partial_fit(TEXTS[:1], ["z"], classes=["x", "y"])


class Tables:
    """In the place of `Results`: keeps what is put."""

    def __init__(self, settings):
        self.settings, self.put = settings, {}
        self.exporting = ExportProgress()

    def puts(self, table, pieces):
        for keys, rows in pieces:
            for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
                self.put[table, key] = row


def test_rows_of_the_file_are_put_where_the_model_has_them(before):
    counter = WordCounter()
    counter.count(b"__label__b fine good\n")
    settings = ClassifierSettings(continue_from=str(before), bucket=5, minn=2, maxn=3, dim=2)
    words, labels = warm_start.count_on(settings, counter)
    tables = Tables(settings)
    warm_start.put_model(tables, settings, words, labels)
    assert tables.put["input", 1] == [2, 3]
    assert tables.put["input", (1 << 40) + 4] == [12, 13]
    assert tables.put["output", 0] == [0, 1]
    assert tables.put["output", 1] == [0, 1]  # of the new label: the mean of the old rows
    assert len(tables.put) == 9
    other = Vocabulary(words.words[1:], words.counts[1:], 9)
    with pytest.raises(ModelFileError, match="changed while its text was counted"):
        warm_start.put_model(tables, settings, other, labels)


def test_continued_model_says_that_its_calibration_was_of_the_earlier_one(jobs, tmp_path, caplog):
    path = tmp_path / "m.bin"
    TextClassifier(dim=2).fit(TEXTS, ["yes", "no", "no"]).save(path)
    TextClassifier.load(path).partial_fit(TEXTS, ["yes", "no", "no"])  # warnings are errors here
    third_wrong = ["yes", "no", "no"] * 14 + ["no", "yes", "yes"] * 6
    assert snailps.calibrate(path, (TEXTS * 20, third_wrong)).temperature > 1
    goes_on = ClassifierSettings(continue_from=str(path), dim=2, validation=("v.txt",))
    for calibrate in (True, False):
        assert not caplog.records
        warm_start.adopt(replace(goes_on, calibrate=calibrate), {"seed": "--seed"}.get)
    assert "m.bin.json is of the earlier model: the one that is trained now is" in caplog.text
    model = TextClassifier.load(path)
    with pytest.warns(UserWarning, match="calibration is of the earlier model: from here on prob"):
        model.partial_fit(TEXTS, ["yes", "no", "no"])


def test_validation_of_a_search_is_refused_before_it_begins():
    texts, labels = ["a b", "c d"], ["x", "y"]
    with pytest.raises(DataError, match=r"validation: .* a pair of texts and labels.*; got a list"):
        TextClassifier().autotune(texts, labels, validation=texts)
    with pytest.raises(DataError, match="y: a list_iterator can be read only once: give a list"):
        TextClassifier().autotune(texts, iter(labels), validation=(texts, labels))
    for name, value in (("stop_after", 2), ("calibrate", True)):
        with pytest.raises(ParameterError, match=r"set held_out to .* leave validation out"):
            TextClassifier(**{name: value}).autotune(texts, labels, validation=(texts, labels))


@pytest.mark.parametrize("fixed", [{}, {"epochs": 7}])
def test_search_gives_advice_on_the_epochs_only_where_they_were_given(jobs, fixed):
    jobs.figures = {"words": 1, "loss_falls": 0.2, "epochs": 7}
    texts, labels = TEXTS * 10, ["yes", "no", "no"] * 10
    model = TextClassifier(**fixed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.autotune(texts, labels, validation=(texts, labels), trials=2)
    said = [warning for warning in caught if "more would help" in str(warning.message)]
    assert len(said) == len(fixed)
    assert model.figures_["loss_falls"] == 0.2


def test_search_within_a_size_gives_the_model_quantised_to_it(jobs, tmp_path):
    texts = [f"w{number} w{number + 1} {'good' if number % 2 else 'bad'}" for number in range(600)]
    labels = ["no", "yes"] * 300
    fixed = {"dim": 4, "maxn": 0, "word_ngrams": 1}
    model, options = TextClassifier(**fixed), {"validation": (texts, labels), "trials": 1}
    model.autotune(texts, labels, size="10K", **options)
    model.save(tmp_path / "m.bin")
    model.quantized_.save(tmp_path / "m.ftz")
    sizes = [(tmp_path / name).stat().st_size for name in ("m.ftz", "m.bin")]
    assert sizes[0] <= 10 << 10 < sizes[1]
    small = snailps.load(tmp_path / "m.ftz")
    words = [best.label for (best,) in small.predict(["good", "bad"])]
    assert words == ["__label__yes", "__label__no"]
    other = pickle.loads(pickle.dumps(model))
    assert other.quantized_.predict(["good", "bad"]) == small.predict(["good", "bad"])
    other.quantized_.save(tmp_path / "other.ftz")
    assert (tmp_path / "other.ftz").read_bytes() == (tmp_path / "m.ftz").read_bytes()
    model.fit(texts, labels)
    assert not hasattr(model, "quantized_")
    few = TextClassifier(**fixed).autotune(texts[:40], labels[:40], size=1 << 20, **options)
    few.quantized_.save(tmp_path / "few.bin")  # as it is: it has too few rows
    other = pickle.loads(pickle.dumps(few))
    assert other.quantized_.labels == few.quantized_.labels
    with pytest.raises(DataError, match="size: expected at least"):
        model.autotune(texts, labels, size=100, **options)
    with pytest.raises(ConfigError, match=r"size: expected a number of bytes .* got 'big'"):
        model.autotune(texts, labels, size="big", **options)


def test_training_that_ended_before_its_first_block_warns(jobs):
    jobs.figures = {"words": 0, "ended_by": "max_seconds", "blocks": 0}
    said = "nothing was trained: no block was finished before max_seconds ended"
    with pytest.warns(UserWarning, match=said):
        TextClassifier(dim=2).fit(TEXTS, ["yes", "no", "no"])
