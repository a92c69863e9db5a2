"""snailps.fasttext: each method answers as the official package's does on the same file."""

import copy
import gzip
import inspect
import io
import pickle
import sys
import traceback
import types

import numpy as np
import official_fasttext
import pytest

import snailps.fasttext as fasttext
from snailps.errors import DataError, ModelFileError, ParameterError
from snailps.fasttext import arguments, training, util
from snailps.fasttext.model import Model
from snailps.vectors.fasttext_bin import BinHeader, read_bin, write_bin
from snailps.vectors.files import load
from snailps.vectors.label_meter import Meter
from snailps.vectors.words import to_bytes, tokens_of

WORDS = ["größe", "w1", "w12", "</s>", "", "a", "日本", "unknownword"]
LINES = [
    "w1 w2 w3",
    "größe unknownword",
    "",
    "zzz",
    "__label__0 w4",
    " w1\tw2\r w3 ",
    "__label__z w9",
]


class OldNumpy(types.ModuleType):
    """NumPy for the official package of 2020, which calls ``np.array(copy=False)``."""

    def __getattr__(self, name):
        return getattr(np, name)

    def array(self, values, copy=None, **options):
        return np.array(values, **options)


def write_labelled(path):
    rng = np.random.default_rng(5)
    lines = []
    for number in range(300):
        label = number % 3
        words = [f"w{label * 10 + k}" for k in rng.integers(0, 14, rng.integers(1, 9))]
        also = ["__label__x"] if number % 7 == 0 else []
        lines.append(" ".join([f"__label__{label}", *also, *words, *["größe"] * (number % 5 == 0)]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """kind -> (the official package's model, ours of the same file, the training text)."""
    official = official_fasttext.module()
    folder = tmp_path_factory.mktemp("names")
    text = write_labelled(folder / "text")
    few = {"dim": 6, "epoch": 3, "minCount": 1, "thread": 1, "verbose": 0}
    classifier = {**few, "lr": 0.3, "minn": 2, "maxn": 3, "wordNgrams": 2, "bucket": 500}
    models = {
        "classifier": official.train_supervised(str(text), **classifier),
        "words": official.train_unsupervised(str(text), **few, minn=2, maxn=3, bucket=400),
        "word2vec": official.train_unsupervised(str(text), **few, maxn=0),
    }
    made = {}
    for kind, model in models.items():
        path = folder / f"{kind}.bin"
        made[kind] = official_fasttext.saved(model, path), fasttext.load_model(path), text
    pruned = models["classifier"]
    pruned.quantize(cutoff=300, qnorm=True)
    path = folder / "pruned.ftz"
    made["pruned"] = official_fasttext.saved(pruned, path), fasttext.load_model(path), text
    return made


@pytest.fixture(autouse=True)
def _old_numpy(monkeypatch):
    inner = sys.modules.get("fasttext.FastText")
    if inner is not None:
        monkeypatch.setattr(inner, "np", OldNumpy("numpy"))


def same(theirs, ours, tolerance):
    if isinstance(theirs, np.ndarray):
        assert isinstance(ours, np.ndarray)
        assert ours.shape == theirs.shape
        if len(theirs):  # an empty list is float64 there, whatever it would hold
            assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, atol=tolerance, rtol=0)
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, abs=tolerance, nan_ok=True)
    elif isinstance(theirs, (list, tuple)):
        assert type(ours) is type(theirs)
        assert len(ours) == len(theirs)
        for one, other in zip(theirs, ours, strict=True):
            same(one, other, tolerance)
    else:
        assert ours == theirs


def asks(kind):
    """Name -> a question to a model."""
    questions = {
        "words": lambda m: (m.get_words(include_freq=True), m.get_words(), m.words),
        "labels": lambda m: (m.get_labels(include_freq=True), m.get_labels(), m.labels),
        "dimension": lambda m: m.get_dimension(),
        "is_quantized": lambda m: m.is_quantized(),
        "lines": lambda m: [m.get_line(line) for line in LINES] + [m.get_line(LINES)],
        "vectors": lambda m: [(m.get_word_vector(word), m[word], word in m) for word in WORDS],
        "ids": lambda m: [m.get_word_id(word) for word in WORDS],
        "neighbours": lambda m: [m.get_nearest_neighbors(word, 4) for word in WORDS[:3]],
        "analogies": lambda m: [
            m.get_analogies(a, "w2", "w13", k=3) for a in ("w1", "unknownword")
        ],
        # Of a model of words fastText takes a label's number for that of a row.
        "sentences": lambda m: [
            m.get_sentence_vector(line)
            for line in LINES
            if kind in ("classifier", "pruned") or "__label__0" not in line
        ],
        "row": lambda m: m.get_input_vector(3),
        "arguments": lambda m: [
            getattr(m.f.getArgs(), name)
            for name in ("dim", "ws", "epoch", "minCount", "neg", "bucket", "minn", "maxn", "t")
        ],
    }
    if kind != "pruned":
        questions |= {
            "subwords": lambda m: [m.get_subwords(word) for word in WORDS],
            "matrices": lambda m: (m.get_input_matrix(), m.get_output_matrix()),
        }
    if kind in ("classifier", "words"):
        questions["subword ids"] = lambda m: [m.get_subword_id(word) for word in ("<w1", "ö")]
    return questions


@pytest.mark.parametrize("kind", ["classifier", "pruned", "words", "word2vec"])
def test_model_answers_as_the_official_package_on_the_same_file(pairs, kind):
    theirs, ours, _ = pairs[kind]
    for name, ask in asks(kind).items():
        try:
            same(ask(theirs), ask(ours), 1e-6)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.parametrize("kind", ["classifier", "pruned"])
def test_predictions_are_the_official_ones_but_for_the_hundred_thousandth_it_adds(pairs, kind):
    theirs, ours, text = pairs[kind]
    for line in LINES:
        for k, threshold in ((1, 0.0), (3, 0.0), (-1, 0.3)):
            same(theirs.predict(line, k, threshold), ours.predict(line, k, threshold), 2e-5)
            native = theirs.f.predict(line + "\n", k, threshold, "strict")
            same(native, ours.f.predict(line + "\n", k, threshold, "strict"), 2e-5)
    for k, threshold in ((1, 0.0), (2, 0.0), (-1, 0.2)):
        labels, chances = ours.predict(LINES, k, threshold)
        single = [ours.predict(line, k, threshold) for line in LINES]
        assert labels == [list(names) for names, _ in single]
        assert [row.tolist() for row in chances] == [row.tolist() for _, row in single]
        assert {row.dtype for row in chances} == {np.dtype(np.float32)}
    assert ours.predict([]) == ([], [])
    for k, threshold in ((1, 0.0), (2, 0.0), (-1, 0.3)):
        same(theirs.test(str(text), k, threshold), ours.test(text, k, threshold), 1e-12)


def test_meter_is_the_official_one(pairs):
    theirs, ours, text = pairs["classifier"]
    for k in (2, -1):
        expected, meter = theirs.get_meter(str(text), k), ours.get_meter(text, k)
        for label in (None, "__label__1", "__label__x"):
            if label:
                same(expected.score_vs_true(label), meter.score_vs_true(label), 2e-5)
            same(expected.precision_recall_curve(label), meter.precision_recall_curve(label), 1e-9)
            for share in (0, 0.4, 0.9, 1):
                for name in ("precision_at_recall", "recall_at_precision"):
                    ask = getattr(expected, name)(share, label), getattr(meter, name)(share, label)
                    assert ask[1] == pytest.approx(ask[0])
    with pytest.raises(DataError, match="expected one of the model's 4"):
        meter.score_vs_true("__label__nobody")
    empty = Meter(["a"], [])
    assert [len(column) for column in empty.precision_recall_curve()] == [0, 0]
    assert empty.precision_at_recall(0.5) == 0


def test_scores_of_labels(pairs):
    _, ours, text = pairs["classifier"]
    scores, (lines, precision, recall) = ours.test_label(text), ours.test(text)
    assert set(scores) == set(ours.labels)
    counts = dict(zip(*ours.get_labels(include_freq=True), strict=True))
    right = sum(counts[label] * score["recall"] for label, score in scores.items())
    assert right / sum(counts.values()) == pytest.approx(recall)
    assert lines == 300
    assert right / lines == pytest.approx(precision)
    assert np.isnan(fasttext.load_model(ours_path(ours, text)).test(empty_file(text))[1])


def ours_path(model, text):
    model.save_model(text.with_name("again"))
    return text.with_name("again")


def empty_file(text):
    path = text.with_name("empty")
    path.write_text("words without labels\n")
    return path


@pytest.mark.parametrize("kind", ["classifier", "pruned", "words"])
def test_saved_and_pickled_models_are_the_same_bytes(pairs, kind, tmp_path):
    _, ours, _ = pairs[kind]
    original = ours_path(ours, tmp_path / "text").read_bytes()
    for number, twin in enumerate([pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)]):
        twin.save_model(tmp_path / str(number))  # a name without an ending, as in fastText
        assert (tmp_path / str(number)).read_bytes() == original
        same(ours.get_sentence_vector("w1 größe"), twin.get_sentence_vector("w1 größe"), 0)


def test_subwords_of_a_pruned_model_are_those_that_have_rows(pairs):
    theirs, ours, _ = pairs["pruned"]
    for word in WORDS:
        texts, rows = ours.get_subwords(word)
        assert rows.tolist() == theirs.get_subwords(word)[1].tolist()
        assert len(texts) == len(rows)
        assert set(texts) <= set(theirs.get_subwords(word)[0])
        if len(rows):
            mean = np.mean([ours.get_input_vector(row) for row in rows], axis=0)
            np.testing.assert_allclose(mean, ours.get_word_vector(word), atol=1e-6)


@pytest.mark.parametrize("kind", ["classifier", "words"])
def test_matrices_that_were_set_are_used_and_saved(pairs, kind, tmp_path):
    theirs, ours, _ = pairs[kind]
    ours = copy.copy(ours)
    inputs, outputs = ours.get_input_matrix(), ours.get_output_matrix()
    for model in (theirs, ours):
        model.set_matrices(inputs[:, :4] * 2, outputs[:, :4])
    try:
        ours.save_model(tmp_path / "set.bin")
        for model in (ours, fasttext.load_model(tmp_path / "set.bin")):
            assert model.get_dimension() == 4
            same(theirs["w1"], model["w1"], 1e-6)
            if kind == "classifier":
                same(theirs.predict("w1 w2"), model.predict("w1 w2"), 2e-5)
    finally:
        theirs.set_matrices(inputs, outputs)
    for wrong in ((inputs[1:], outputs), (inputs, outputs[:, :2]), (inputs[0], outputs)):
        with pytest.raises(DataError, match="set_matrices: expected"):
            ours.set_matrices(*wrong)


def test_fewer_dimensions_keep_the_largest_variance(tmp_path):
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(40, 3)).astype(np.float32) * np.float32([1, 30, 5])
    header = BinHeader(3, min_count=1)
    words = [b"w%d" % number for number in range(40)]
    write_bin(tmp_path / "m.bin", header, words, [1] * 40, [rows], [rows])
    model = util.reduce_model(fasttext.load_model(tmp_path / "m.bin"), 1)
    assert model.get_dimension() == 1
    assert abs(np.corrcoef(model.get_input_matrix()[:, 0], rows[:, 1])[0, 1]) > 0.999
    with pytest.raises(DataError, match="target_dim: expected 1 to 1, got 2"):
        util.reduce_model(model, 2)


def test_util_test_and_nearest_neighbour():
    labels = [["a"], ["b", "c"], ["c"]]
    assert util.test([["a"], ["b"], ["a"]], labels) == (2 / 3, 2 / 4)
    assert util.test([["a", "b"], ["b", "c"], ["a", "c"]], labels, k=2) == (4 / 6, 4 / 4)
    vectors = np.array([[0.0, 2.0], [3.0, 0.0], [1.0, 1.0]])
    products = np.empty(3)
    assert util.find_nearest_neighbor(np.array([1.0, 0.1]), vectors, {1}, products) == 2
    assert products.tolist() == pytest.approx([0.2, 3, 1.1])
    with pytest.raises(DataError, match="all 3 rows are banned"):
        util.find_nearest_neighbor(np.array([1.0, 0.1]), vectors, {0, 1, 2})


def test_published_vectors_are_fetched_whole_or_not_at_all(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    answers = [gzip.compress(b"model"), gzip.compress(b"x" * 5000)[:20]]
    monkeypatch.setattr("urllib.request.urlopen", lambda address: io.BytesIO(answers.pop(0)))
    assert util.download_model("xx") == "cc.xx.300.bin"
    assert (tmp_path / "cc.xx.300.bin").read_bytes() == b"model"
    assert util.download_model("xx") is None
    assert "if_exists='ignore'" in capsys.readouterr().out
    assert util.download_model("xx", if_exists="ignore") == "cc.xx.300.bin"
    with pytest.raises(DataError, match="cannot be fetched"):
        util.download_model("yy")
    with pytest.raises(DataError, match="code of a language"):
        util.download_model("../x")
    assert [path.name for path in tmp_path.iterdir()] == ["cc.xx.300.bin"]


def test_tokens_are_fasttexts():
    assert fasttext.tokenize("ka lo\n\nmi\t\0x") == ["ka", "lo", "</s>", "</s>", "mi", "x"]
    assert fasttext.tokenize("") == fasttext.tokenize(" ") == []
    assert tokens_of(to_bytes("a\r\n")) == [b"a", b"</s>"]


def test_mistakes_are_value_errors_that_say_what_to_do(pairs, tmp_path):
    _, words, text = pairs["words"]
    _, classifier, _ = pairs["classifier"]
    _, pruned, _ = pairs["pruned"]
    for ask in (words.predict, words.test, words.get_meter):
        with pytest.raises(DataError, match="train one with train_supervised"):
            ask(text)
    for ask in (classifier.predict, classifier.get_sentence_vector, classifier.get_line):
        with pytest.raises(ValueError, match="one line at a time: remove"):
            ask("two\nlines")
    with pytest.raises(ValueError, match="remove"):
        classifier.predict(["one", "two\nlines"])
    for wrong in (b"w1", [b"w1"], None, ["w1", None], [1], 5, {"w1": 1}, [["w1"]]):
        with pytest.raises(DataError, match="expected a str"):
            classifier.predict(wrong)
        with pytest.raises(DataError, match="expected a str"):
            classifier.get_line(wrong)
    for line in ("w1", ["w1"]):
        with pytest.raises(ValueError, match="k: expected"):
            classifier.predict(line, k=0)
        with pytest.raises(ValueError, match="threshold: expected"):
            classifier.predict(line, threshold=float("nan"))
    with pytest.raises(DataError, match="quantised"):
        pruned.get_input_matrix()
    with pytest.raises(DataError, match="ind: expected 0 to"):
        classifier.get_input_vector(10**6)
    with pytest.raises(ValueError, match=r"ind: expected 0 to .*, got 1\.5"):
        classifier.get_input_vector(1.5)
    with pytest.raises(DataError, match="no n-grams"):
        pairs["word2vec"][1].get_subword_id("ab")
    with pytest.raises(ModelFileError, match="no such file"):
        fasttext.load_model(tmp_path / "none.bin")
    with pytest.raises(ValueError, match=r"expected a \.bin or \.ftz, got labelled text"):
        fasttext.load_model(text)


def test_labels_that_are_no_utf8_are_decoded_as_asked(tmp_path):
    header = BinHeader(1, min_count=1, loss="softmax", model="supervised")
    rows, outputs = np.float32([[1], [2]]), np.float32([[3], [0]])
    write_bin(
        tmp_path / "m.bin", header, [b"</s>", b"\xff"], [1, 1], [rows], [outputs],
        [b"__label__\xe9", b"__label__b"], [1, 1],
    )  # fmt: skip
    model = fasttext.load_model(tmp_path / "m.bin")
    for ask in (lambda **how: model.predict("x", **how), lambda **how: model.predict(["x"], **how),
                model.get_labels, model.get_words):  # fmt: skip
        with pytest.raises(UnicodeDecodeError):
            ask()
        assert "�" in str(ask(on_unicode_error="replace"))


def test_arguments_are_fasttexts_by_place_by_name_and_by_alias():
    official = official_fasttext.module().FastText
    theirs, ours = official.unsupervised_default, arguments.unsupervised_default
    assert {**ours, "thread": None} == {**theirs, "thread": None}
    made = training.supervised("text", 0.7, 20, epoch=3, min_count=2, word_ngrams=2, thread=1)
    assert made.parameters == {
        "dim": 20, "lr": 0.7, "epochs": 3, "loss": "softmax", "min_count": 2, "maxn": 0,
        "seed": 0, "verbose": "auto", "workers": 1, "word_ngrams": 2, "min_count_label": 0,
        "label": "__label__", "pretrained": "", "bucket": 2_000_000, "normalize": "",
    }  # fmt: skip
    assert made.args["loss"] is fasttext.FastText.loss_name.softmax
    assert (made.args["lr"], made.args["wordNgrams"], made.args["thread"]) == (0.7, 2, 1)
    made = training.unsupervised("text", "cbow", ws=3, t=1e-3, minn=0, maxn=4, verbose=0)
    assert made.parameters == {
        "dim": 100, "lr": 0.05, "epochs": 5, "loss": "ns", "min_count": 5, "minn": 1, "maxn": 4,
        "seed": 0, "verbose": False, "workers": None, "model": "cbow", "window": 3,
        "negatives": 5, "sample": 1e-3, "pretrained": "", "bucket": 2_000_000, "normalize": "",
    }  # fmt: skip
    without = training.unsupervised("text", minn=4, maxn=3)
    assert without.parameters["maxn"] == 0
    assert without.args["bucket"] == 0
    assert training.supervised("text", loss="ns", neg=9).parameters["negatives"] == 9
    for job in (made, without, training.supervised("text", label="@")):
        job.estimator(**job.parameters)._checked()  # names and types are the estimator's
    signature = inspect.signature(fasttext.train_supervised)
    assert list(signature.parameters)[:3] == ["input", "lr", "dim"]


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({}, TypeError, "expected input"),
        ({"input": "t", "lrate": 1}, TypeError, "unknown argument 'lrate'"),
        ({"input": "t", "minCount": 1, "min_count": 1}, TypeError, "given twice"),
        ({"input": "t", "loss": "x"}, ParameterError, "expected one of hs, ns, softmax, ova"),
        (
            {"input": "t", "autotuneValidationFile": "v", "autotuneMetric": "f2"},
            ParameterError,
            "autotuneMetric: expected f1",
        ),
        (
            {"input": "t", "autotuneValidationFile": "v", "autotuneDuration": True},
            ParameterError,
            "autotuneDuration: expected a whole number",
        ),
        (
            {"input": "t", "autotuneValidationFile": "v", "autotuneDuration": 0},
            ParameterError,
            "autotuneDuration: expected a whole number",
        ),
        (
            {"input": "t", "autotuneValidationFile": "v", "autotuneModelSize": "2X"},
            ParameterError,
            "autotuneModelSize: expected a number of bytes",
        ),
    ],
)
def test_arguments_that_do_not_work_are_refused_by_name(wrong, error, says):
    with pytest.raises(error, match=says):
        training.supervised(**wrong)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"epoch": 0}, "train_supervised: epoch: expected"),
        ({"minCount": -1}, "train_supervised: minCount: expected"),
        ({"wordNgrams": 100}, "train_supervised: wordNgrams: expected"),
        ({"loss": "ns", "neg": 0}, "train_supervised: neg: expected"),
        ({"thread": "2"}, "train_supervised: thread: expected"),
        ({"thread": 0}, "train_supervised: thread: expected"),
        ({"lr": "0.5"}, "train_supervised: lr: expected"),
    ],
)
def test_errors_of_values_name_fasttexts_argument(wrong, says, tmp_path):
    text = write_labelled(tmp_path / "text")
    with pytest.raises(ParameterError, match=says):
        fasttext.train_supervised(str(text), **wrong)


def test_a_path_that_is_not_there_is_not_taken_for_a_text():
    with pytest.raises(DataError, match=r"no file, folder, glob or URL \(seen from [^)]*\)$"):
        fasttext.train_unsupervised("none.txt")


def test_zero_means_no_pairs_of_words_and_all_words_as_in_fasttext():
    parameters = training.supervised("text", wordNgrams=0, minCount=0).parameters
    assert (parameters["word_ngrams"], parameters["min_count"]) == (1, 1)


@pytest.mark.parametrize(("minn", "maxn"), [(0, 0), (2, 4), (3, 30)])
def test_vector_of_a_word_is_the_mean_of_its_rows_to_the_bit(tmp_path, minn, maxn):
    rng, words = np.random.default_rng(1), [b"</s>", b"one", "größer".encode(), b"x" * 900]
    bucket = 50 * (maxn > 0)
    rows = rng.normal(size=(len(words) + bucket, 7)).astype(np.float32)
    outputs = np.zeros((len(words), 7), np.float32)
    header = BinHeader(dim=7, bucket=bucket, minn=minn, maxn=maxn)
    write_bin(tmp_path / "m.bin", header, words, [4, 3, 2, 1], [rows], [outputs])
    model = fasttext.load_model(str(tmp_path / "m.bin"))
    vectors = load(tmp_path / "m.bin")
    for word in ("one", "größer", "x" * 900, "</s>", "ones", "", "\udcff"):
        numbers = vectors.row_numbers(word)
        total = np.zeros(7, np.float32)
        for number in numbers:
            total += rows[number]
        total *= np.float32(1 / max(1, len(numbers)))
        assert model.get_word_vector(word).tobytes() == total.tobytes()


def test_arguments_of_a_search_are_fasttexts():
    made = training.supervised(
        "t", 0.3, min_count=2, word_ngrams=2, bucket=1000, thread=2,
        autotuneValidationFile="v", autotuneMetric="precisionAtRecall:30:__label__a:b",
        autotunePredictions=3, autotuneDuration=60, autotuneModelSize="2M",
    ).autotune  # fmt: skip
    assert made.fixed == {"lr", "word_ngrams", "bucket"}
    assert str(made.metric) == "precision-at-recall:0.3:__label__a:b"
    assert (made.validation, made.predictions, made.size) == ("v", 3, 2_000_000)
    assert (made.effort.seconds, made.effort.threads) == (60, 2)
    made = training.supervised("t", autotuneValidationFile="v").autotune
    assert (made.fixed, str(made.metric), made.effort.seconds, made.size) == (set(), "f1", 300, 0)


@pytest.mark.parametrize(
    ("given", "parameters", "fixed"),
    [
        ({"bucket": 1000}, {"bucket": 1000}, {"bucket"}),
        ({"bucket": 1000, "maxn": 3}, {"bucket": 1000, "maxn": 3, "minn": 1}, {"bucket", "maxn"}),
        ({"wordNgrams": 2}, {"word_ngrams": 2}, {"word_ngrams"}),
        ({"epoch": 3, "dim": 7}, {"epochs": 3, "dim": 7}, {"epochs", "dim"}),
        # As in fastText: without a shortest n-gram there are none.
        ({"minn": 0}, {"maxn": 0}, {"minn", "maxn"}),
        ({"minn": 2, "maxn": 4}, {"minn": 2, "maxn": 4}, {"minn", "maxn"}),
        ({"loss": "ns", "neg": 9}, {"loss": "ns", "negatives": 9}, set()),
        ({"label": "T_", "minCount": 3}, {"label": "T_", "min_count": 3}, set()),
        ({"minCountLabel": 2, "normalize": "lower"},
         {"min_count_label": 2, "normalize": "lower"}, set()),
    ],
)  # fmt: skip
def test_search_keeps_what_is_given(given, parameters, fixed):
    made = training.supervised("t", autotuneValidationFile="v", **given)
    assert {name: made.parameters[name] for name in parameters} == parameters
    assert made.autotune.fixed == fixed
    if "bucket" not in given:
        assert made.parameters.get("bucket") in (None, 2_000_000)


def test_unknown_names_and_arguments_say_what_was_meant(tmp_path):
    with pytest.raises(TypeError, match=r"unknown argument 'epochs'; did you mean epoch\?"):
        fasttext.train_supervised("t", epochs=3)
    with pytest.raises(TypeError, match="unknown argument 'zzz'; it has input, lr"):
        fasttext.train_supervised("t", zzz=3)
    with pytest.raises(
        AttributeError, match="no attribute 'train_superwised'; did you mean train_s"
    ):
        fasttext.train_superwised  # noqa: B018
    with pytest.raises(AttributeError) as mistake:
        fasttext.train_superwised  # noqa: B018
    printed = "".join(traceback.format_exception_only(mistake.value))
    assert printed.lower().count("did you mean") == 1  # Python adds its own to some
    with pytest.raises(AttributeError, match=r"'snailps.fasttext' has no attribute 'qqqqq'$"):
        fasttext.qqqqq  # noqa: B018
    header, rows = BinHeader(dim=2, loss="softmax", model="supervised"), np.ones((1, 2), np.float32)
    write_bin(tmp_path / "m", header, [b"a"], [1], [rows], [rows], [b"__label__x"], [1])
    model = fasttext.load_model(tmp_path / "m")
    with pytest.raises(AttributeError, match=r"'predicts'; did you mean predict\?"):
        model.predicts  # noqa: B018
    assert not hasattr(model, "lr")
    assert not hasattr(fasttext, "__path__x")


def test_compiled_object_has_all_arguments_of_fasttexts(tmp_path):
    official = pytest.importorskip("fasttext", reason="fasttext is not installed")
    (tmp_path / "t").write_text("__label__a x y\n__label__b z y\n" * 20)
    theirs = official.train_supervised(str(tmp_path / "t"), verbose=0, dim=4, epoch=1, seed=7)
    theirs.save_model(str(tmp_path / "m.bin"))
    args = official.load_model(str(tmp_path / "m.bin")).f.getArgs()
    ours = fasttext.load_model(tmp_path / "m.bin").f.getArgs()
    for name in dir(args):
        if not name.startswith("_") and name not in ("setManual", "thread", "loss", "model"):
            assert getattr(ours, name) == getattr(args, name), name
    made = training.supervised(tmp_path / "t", seed=7, dim=4)
    assert (made.args["seed"], made.args["input"]) == (7, str(tmp_path / "t"))
    model = fasttext.FastText._FastText.of_bin(read_bin(tmp_path / "m.bin"), made.args)
    assert model.f.getArgs().seed == 7
    assert not hasattr(model, "seed")  # as fastText's, whose object has it inside alone


def test_a_duration_without_a_file_is_warned_of():
    with pytest.warns(UserWarning, match="autotuneDuration, autotuneMetric: no effect without"):
        made = training.supervised("t", autotuneDuration=9, autotuneMetric="f1")
    assert made.autotune is None


@pytest.mark.parametrize("wrong", [{"lr": "1"}, {"thread": -1}, {"epoch": -1}, {"epoch": "5"}])
def test_quantize_names_the_argument_that_is_wrong(wrong, tmp_path):
    path = tmp_path / "model.bin"
    header, rows = BinHeader(dim=2, loss="softmax", model="supervised"), np.ones((1, 2), np.float32)
    write_bin(path, header, [b"a"], [1], [rows], [rows], [b"__label__x"], [1])
    with pytest.raises(DataError, match=f"quantize: {next(iter(wrong))}: expected a number"):
        fasttext.load_model(str(path)).quantize(**wrong)


def test_remarks_on_a_training_name_fasttexts_argument():
    made = training.supervised("text")
    trainer = made.estimator(**made.parameters)
    (remark,) = trainer._remarks_on({"loss_falls": 0.1, "epochs": 5})
    assert isinstance(remark, Warning)
    assert str(remark).endswith("(epoch=10)")


def test_names_of_old_versions_say_what_took_their_place():
    for name in ("cbow", "skipgram", "supervised"):
        with pytest.raises(TypeError, match="train_"):
            getattr(fasttext, name)("text", "model")
    with pytest.raises(ParameterError, match="negative sampling"):
        training.unsupervised("text", loss="softmax")
    with pytest.raises(TypeError, match="at most 22 arguments"):
        training.unsupervised(*range(23))


def test_quantize_in_place_gives_a_model_that_the_official_package_opens(pairs, tmp_path):
    _, opened, text = pairs["classifier"]
    model, path = copy.deepcopy(opened), tmp_path / "m.ftz"
    model.quantize(str(text), cutoff=300, qnorm=True, retrain=True, lr=0.1, thread=1)
    assert model.is_quantized()
    model.save_model(path)
    theirs, again = official_fasttext.module().load_model(str(path)), fasttext.load_model(path)
    assert theirs.is_quantized()
    for ours in (model, again):
        for word in WORDS:
            same(theirs.get_word_vector(word), ours.get_word_vector(word), 1e-6)
        for line in LINES:
            expected = [label for _, label in theirs.f.predict(line + "\n", 1, 0.0, "strict")]
            assert list(ours.predict(line)[0]) == expected
    with pytest.raises(ValueError, match="expected the path of a labelled text"):
        copy.deepcopy(opened).quantize(retrain=True)
    with pytest.raises(ValueError, match=r"snailps\.quantize"):
        pairs["words"][1].quantize()


def test_an_empty_path_is_not_the_current_folder():
    for train in (fasttext.train_supervised, fasttext.train_unsupervised):
        with pytest.raises(ValueError, match=f"{train.__name__}: input: expected the path of a"):
            train("")


def test_errors_of_a_damaged_classifier_name_its_file(tmp_path):
    header = BinHeader(dim=2, model="supervised", loss="softmax", word_ngrams=2)  # without buckets
    rows = np.zeros((1, 2), np.float32)
    write_bin(tmp_path / "m.bin", header, [b"w"], [1], [rows], [rows], [b"__label__a"], [1])
    with pytest.raises(ValueError, match=r"m\.bin: damaged header"):
        fasttext.load_model(tmp_path / "m.bin")


def test_a_model_without_a_file_says_what_makes_one():
    empty = Model()
    assert repr(empty) == "<fastText model: empty>"
    assert not hasattr(empty, "lr")
    for use in (lambda: empty.predict("a"), lambda: empty.words, empty.get_dimension):
        with pytest.raises(ValueError, match="the model is empty: expected one of load_model"):
            use()
