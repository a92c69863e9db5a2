"""vectors.label_prediction and its commands: the official package's models and ours."""

import functools
import gc
import json
import os
import pickle
import random
import re
import sys
import weakref

import numpy as np
import official_fasttext
import pyarrow as pa
import pytest
import rounding
from typer.testing import CliRunner

import snailps
from snailps.cli.main import app_for
from snailps.errors import ConfigError, DataError, ModelFileError
from snailps.vectors import fasttext_bin, files, label_prediction, texts
from snailps.vectors.fasttext_bin import BinHeader, read_bin, write_bin
from snailps.vectors.label_prediction import LabelModel, evaluate_labels
from snailps.vectors.words import to_text

KINDS = {
    "softmax": {"loss": "softmax"},
    "ova": {"loss": "ova"},
    "ns": {"loss": "ns"},
    "ngrams": {"wordNgrams": 3, "bucket": 5000},
    "characters": {"minn": 2, "maxn": 4, "bucket": 300},
    "both": {"wordNgrams": 2, "minn": 3, "maxn": 3, "bucket": 2000, "loss": "ova"},
}
UNSEEN = ["", "completely unseen words", "日本 größer", "ka lo </s> mi", "__label__l1 ka"]


def write_labelled(path, lines=600, labels=6, seed=2):
    """Lines whose words hint at their labels, one to three a line, some lines without any."""
    rng = np.random.default_rng(seed)
    names = official_fasttext.SYLLABLES
    with path.open("w", encoding="utf-8") as file:
        for number in range(lines):
            own = rng.choice(labels, rng.integers(1, 4), replace=False) if number % 50 else []
            hints = [names[label] + names[(label + 1) % 10] for label in own for _ in range(3)]
            words = [*hints, *("".join(rng.choice(names, rng.integers(1, 3))) for _ in range(6))]
            rng.shuffle(words)
            file.write(" ".join([*(f"__label__l{k}" for k in own), *words]) + "\n")
    return path


@pytest.fixture(scope="session")
def officials(tmp_path_factory):
    """What gives `official` of a kind: each is trained once a process, in whatever order."""

    @functools.cache
    def of(kind):
        folder = tmp_path_factory.mktemp(kind)
        text = write_labelled(folder / "text")
        wanted = {"dim": 12, "epoch": 5, "lr": 0.5, "thread": 1, "verbose": 0}
        model = official_fasttext.module().train_supervised(str(text), **{**wanted, **KINDS[kind]})
        return text, folder / "m.bin", official_fasttext.saved(model, folder / "m.bin")

    return of


@pytest.fixture(params=KINDS)
def official(request, officials):
    """(path of the text, path of the .bin, the package's own model) of one kind."""
    return officials(request.param)


def assert_same_predictions(ours, theirs, lines):
    exact = ours.loss == "softmax"
    sizes = np.abs(theirs.get_input_matrix()).max(0)
    features = max(len(line.encode()) for line in lines) * 4  # of characters, words, n-grams
    way = "softmax" if exact else "each"
    bound = 2 * rounding.of_chances(sizes, features, theirs.get_output_matrix(), way)
    bound += 0 if exact else rounding.of_table()
    found = ours.predict("".join(f"{line}\n" for line in lines).encode(), k=len(ours.labels))
    assert len(found) == len(lines)
    for line, mine in zip(lines, found, strict=True):
        # Not `predict`, which the package's Python side breaks with NumPy 2.
        pairs = theirs.f.predict(line + "\n", -1, 0.0, "strict")
        expected = {label: chance for chance, label in pairs}
        assert {p.label.decode() for p in mine} == set(expected)
        for label, chance in mine:
            other = expected[label.decode()] - 1e-5
            assert chance == pytest.approx(other, abs=bound)
        if exact:
            assert [p.label.decode() for p in mine] == list(expected)


def test_predict_with_model_of_official_package_says_the_same(official):
    text, path, theirs = official
    lines = [line for line in text.read_text(encoding="utf-8").splitlines()[:100] if line]
    lines += [line for line in UNSEEN if "</s>" not in line]
    assert_same_predictions(LabelModel(path), theirs, lines)


def test_evaluate_with_model_of_official_package_agrees(official):
    text, path, theirs = official
    for k in (1, 2):
        ours = evaluate_labels(LabelModel(path), text, k)
        lines, precision, recall = theirs.test(str(text), k=k)
        assert ours.lines == lines == 588
        assert ours.skipped == 12
        assert ours.precision == pytest.approx(precision, abs=0.004)
        assert ours.recall == pytest.approx(recall, abs=0.004)
    one = evaluate_labels(LabelModel(path), text)
    if LabelModel(path).loss != "softmax":
        return  # answers that its table of the logistic function makes equal are in chance order
    by_label = theirs.test_label(str(text))
    lines = [line for line in text.read_text(encoding="utf-8").splitlines() if "__label__" in line]
    said = [theirs.f.predict(line + "\n", 1, 0.0, "strict")[0][1] for line in lines]
    for entry in one.labels:
        label = entry.label.decode()
        assert entry.precision == pytest.approx(by_label[label]["precision"])
        # The package's own recall of a label is NaN: counted here, from what it says.
        has = [label in line.split() for line in lines]
        right = sum(mine and own == label for mine, own in zip(has, said, strict=True))
        assert (entry.lines, entry.recall) == (sum(has), pytest.approx(right / sum(has)))
        # Its F1 is without lines that have the label: twice the precision.


def test_write_bin_of_what_was_read_gives_official_bytes(official, tmp_path):
    _, path, _ = official
    model = read_bin(path)
    counts = official_label_counts(path, len(model.labels))
    write_bin(
        tmp_path / "again.bin", model.header, model.words, model.counts, [model.input],
        [model.output], model.labels, counts,
    )  # fmt: skip
    assert (tmp_path / "again.bin").read_bytes() == path.read_bytes()


def official_label_counts(path, labels):
    """From the text beside it."""
    words = (path.parent / "text").read_text(encoding="utf-8").split()
    return sorted((words.count(f"__label__l{k}") for k in range(labels)), reverse=True)


@pytest.mark.parametrize("labels", [1, 2, 3, 8])
def test_model_with_hierarchical_softmax_predicts_as_the_official_one(tmp_path, labels):
    text = write_labelled(tmp_path / "text", 200, max(labels, 3))
    if labels < 3:
        lines = text.read_text(encoding="utf-8").replace("__label__l2", "").splitlines()
        kept = [line.replace("__label__l1", "") if labels == 1 else line for line in lines]
        text.write_text("\n".join(kept) + "\n", encoding="utf-8")
    model = official_fasttext.module().train_supervised(
        str(text), dim=4, thread=1, verbose=0, loss="hs", lr=1.0
    )
    model.save_model(str(tmp_path / "m.bin"))
    ours = LabelModel(tmp_path / "m.bin")
    assert len(ours.labels) == labels
    lines = text.read_text(encoding="utf-8").splitlines()[:50]
    lines += [line for line in UNSEEN if "</s>" not in line]
    found = ours.predict("".join(f"{line}\n" for line in lines).encode(), k=labels)
    for line, mine in zip(lines, found, strict=True):
        expected = {name: p for p, name in model.f.predict(line + "\n", -1, 0.0, "strict")}
        for label, chance in mine:
            # fastText adds 1e-5 at each turn.
            assert chance == pytest.approx(expected[label.decode()], abs=1e-4)
        assert not mine or sum(chance for _, chance in mine) == pytest.approx(1, abs=1e-5)


def test_only_label_of_a_model_has_the_official_probability(tmp_path):
    text = tmp_path / "text"
    text.write_text("__label__a ka lo\n" * 20, encoding="utf-8")
    for loss in ("ova", "softmax", "hs"):
        model = official_fasttext.module().train_supervised(
            str(text), dim=4, thread=1, verbose=0, loss=loss, lr=0.001
        )
        model.save_model(str(tmp_path / "m.bin"))
        ((expected, _),) = model.f.predict("ka lo\n", 1, 0.0, "strict")
        ((found,),) = LabelModel(tmp_path / "m.bin").predict("ka lo")
        assert found.probability == pytest.approx(expected - 1e-5, abs=2e-6 + rounding.of_table())
        assert (found.probability < 0.9) == (loss == "ova")


def test_damaged_model_is_refused_or_answers_with_labels_and_probabilities(official):
    _, path, _ = official
    whole, drawn = path.read_bytes(), random.Random(7)
    odd = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 10**9]
    for number in range(150):
        raw = bytearray(whole)
        if number % 3 == 0:
            at = drawn.randrange(0, 100, 4)
            raw[at : at + 4] = drawn.choice(odd).to_bytes(4, "little")
        elif number % 3 == 1:
            raw = raw[: drawn.randrange(len(raw))]
        else:
            for _ in range(drawn.randint(1, 4)):
                raw[drawn.randrange(len(raw))] = drawn.randrange(256)
        (path.parent / "damaged.bin").write_bytes(raw)
        try:
            model = LabelModel(path.parent / "damaged.bin")
        except ModelFileError:
            continue
        best, chances = model.predict_arrays(["ka lo", "", "ka </s> mi", "ka " * 300], 3)
        assert ((best == -1) == np.isnan(chances)).all()
        assert ((best >= -1) & (best < len(model.labels))).all()
        assert ((chances >= 0) & (chances <= 1) | np.isnan(chances)).all()


@pytest.mark.parametrize("counts", [[10**16, 10**16], [10**15, 1]])
def test_model_with_damaged_counts_of_labels_is_refused(tmp_path, counts):
    rows = np.ones((2, 3), np.float32)
    header = BinHeader(dim=3, model="supervised", loss="hs")
    write_bin(tmp_path / "m.bin", header, [b"a"], [1], [rows[:1]], [rows], [b"x", b"y"], counts)
    with pytest.raises(ModelFileError, match="damaged counts of labels"):
        LabelModel(tmp_path / "m.bin")


@pytest.mark.parametrize("loss", ["hs", "softmax"])
def test_model_without_labels_is_refused(tmp_path, loss):
    rows = np.ones((1, 3), np.float32)
    path = tmp_path / "m.bin"
    write_bin(path, BinHeader(dim=3, loss=loss), [b"a"], [1], [rows], [rows])
    whole = bytearray(path.read_bytes())
    whole[36:40] = (3).to_bytes(4, "little")  # now a classifier
    path.write_bytes(whole)
    with pytest.raises(ModelFileError, match=r"without labels|damaged"):
        LabelModel(path)


def test_sentence_and_word_vectors_are_the_official_ones(official):
    _, path, theirs = official
    ours = LabelModel(path)
    for line in ["ka lo mi", "kaka größer", "", "completely unseen", "ka lo </s> mi"]:
        np.testing.assert_allclose(
            ours.sentence_vector(line), theirs.get_sentence_vector(line), atol=1e-6
        )
    word = ours.wv.words[2]
    np.testing.assert_allclose(ours.wv[word], theirs.get_word_vector(word), atol=1e-7)
    with pytest.raises(DataError, match="expected one line"):
        ours.sentence_vector("ka\nlo")
    assert repr(ours).startswith(f"LabelModel({len(ours.labels)} labels, ")


def test_model_of_word_vectors_is_refused_in_a_sentence(tmp_path):
    rows = np.ones((1, 3), np.float32)
    write_bin(tmp_path / "m.bin", BinHeader(dim=3), [b"a"], [1], [rows], [rows])
    with pytest.raises(ModelFileError, match="not a classifier"):
        LabelModel(tmp_path / "m.bin")


def test_write_bin_of_a_supervised_model_without_labels_refuses(tmp_path):
    header, rows = BinHeader(dim=3, model="supervised", loss="softmax"), np.ones((1, 3), np.float32)
    with pytest.raises(ModelFileError, match="expected a supervised model's labels"):
        write_bin(tmp_path / "m.bin", header, [b"a"], [1], [rows], [rows])


# --- a model whose answers can be worked out ---------------------------------------------------

WORDS = [b"</s>", b"up", b"down"]
LABELS = [b"__label__plus", b"__label__minus", b"__label__null"]


@pytest.fixture
def small(tmp_path):
    """Scores: 4 for plus by `up`, 4 for minus by `down`, divided by the number of features."""
    header = BinHeader(dim=2, loss="softmax", model="supervised", tokens=20)
    inputs = np.array([[0, 0], [2, 0], [0, 2]], np.float32)
    outputs = np.array([[2, 0], [0, 2], [0, 0]], np.float32)
    path = tmp_path / "small.bin"
    write_bin(path, header, WORDS, [5, 4, 3], [inputs], [outputs], LABELS, [3, 2, 1])
    return path


def run(*arguments, **options):
    return CliRunner().invoke(app_for(), [str(argument) for argument in arguments], **options)


def test_model_that_is_dropped_gives_its_file_back_at_once(small):
    """Not only when cycles are collected: a model may have gigabytes."""
    model = LabelModel(small)
    model.predict("x")
    gone = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert gone() is None
    finally:
        gc.enable()


def test_predict_small_model_gives_known_probabilities(small):
    # `up` and </s>: the mean has a score of 2 for plus and 0 for the others.
    (found,) = LabelModel(small).predict(b"up", k=5)
    e = float(np.exp(2))
    assert [p.label for p in found] == LABELS
    assert [p.probability for p in found] == pytest.approx([e / (e + 2), *[1 / (e + 2)] * 2])


@pytest.mark.parametrize("labels", [3, 40])
def test_best_label_of_probabilities_that_round_to_one_is_the_same_at_each_door(tmp_path, labels):
    names = [b"__label__%c%02d" % (97 + at % 3, at) for at in range(labels)]
    header = BinHeader(dim=1, loss="ova", model="supervised")
    outputs = 20 + np.arange(labels, dtype=np.float32)[:, None]
    path, ones = tmp_path / "ova.bin", [1] * labels
    inputs = np.float32([[0], [2]])
    write_bin(path, header, [b"</s>", b"good"], [1, 1], [inputs], [outputs], names, ones)
    model, best = LabelModel(path), to_text(names[-1])
    assert (model.probabilities(["good"]) == 1).all()
    for k in (1, 2, labels):
        found = [label for label, _ in model.predict(["good"], k)[0]]
        assert found == [to_text(name) for name in names[::-1][:k]]
    assert model.predict("good")[0][0].label == best
    estimator = snailps.TextClassifier.load(path, loss="ova")
    assert estimator.predict(["good"]).tolist() == [best.removeprefix("__label__")]
    text = tmp_path / "t.txt"
    text.write_text("good\n")
    for more in ("", f' and q["{to_text(names[0])}"] >= 0'):
        figures = snailps.filter(
            text, output=tmp_path / "o", models={"q": path}, keep=f'q.top == "{best}"{more}',
            overwrite=True,
        )  # fmt: skip
        assert figures["kept"] == 1


def test_minn_above_maxn_is_no_n_grams_as_for_fasttext(tmp_path, small):
    header = BinHeader(
        dim=2, loss="softmax", model="supervised", tokens=20, minn=5, maxn=2, bucket=100
    )
    inputs = np.vstack([[[0, 0], [2, 0], [0, 2]], np.full((100, 2), 9)]).astype(np.float32)
    outputs = np.array([[2, 0], [0, 2], [0, 0]], np.float32)
    path = tmp_path / "m.bin"
    write_bin(path, header, WORDS, [5, 4, 3], [inputs], [outputs], LABELS, [3, 2, 1])
    assert LabelModel(path).predict(b"up", k=3) == LabelModel(small).predict(b"up", k=3)


def test_predict_threshold_and_unknown_words_leave_lines_empty(small):
    model = LabelModel(small)
    assert [len(line) for line in model.predict(b"up\ndown\n\n", k=3, threshold=0.5)] == [1, 1, 0]
    assert model.predict(b"") == model.predict([b""])
    with pytest.raises(
        DataError, match=r"k: expected a whole number of labels .*, at least 1, or -1 .*, got 0"
    ):
        model.predict(b"up", k=0)


def test_predict_takes_text_and_lists_and_answers_in_kind(small):
    model = LabelModel(small)
    expected = [[(label.decode(), p) for label, p in line] for line in model.predict(b"up\ndown")]
    assert model.predict("up\ndown\n") == expected
    assert model.predict(["up", "down\n"]) == expected
    assert model.predict(line for line in ("up", b"down")) == expected
    assert model.predict(np.array(["up", "down"])) == expected
    assert model.predict([b"up", b"down"]) == model.predict(b"up\ndown\n")
    assert model.predict([]) == []
    assert model.predict("") == model.predict([""]) == model.predict("\n")
    assert len(model.predict_arrays("")[0]) == len(model.probabilities(b"")) == 1
    assert model.predict(["", "\udcff"], k=3) == model.predict("\n\udcff", k=3)
    assert model.predict("up")[0][0].label == "__label__plus"
    with pytest.raises(DataError, match="expected a line of text as item 1, got 3"):
        model.predict(["up", 3])
    with pytest.raises(DataError, match=r"expected lines of text, .*, got None"):
        model.predict(None)


ODD_TEXTS = [
    "up </s> down",
    "down </s> </s>",
    "</s> up",
    "up\ndown\n",
    "up\0down",
    "up\rdown",
    "up\x0bdown\x0cup",
    *(f"up{end}down" for end in "\x1c\x1d\x1e\x85\u2028\u2029"),
    "",
    " \t ",
    "\n\n",
    "\udcff",
    "down " * 10_000,
]


def test_predict_gives_each_text_its_row_whatever_it_holds(small, caplog):
    model = LabelModel(small)
    alone = [model.predict([text], k=3) for text in ODD_TEXTS]
    assert [len(found) for found in alone] == [1] * len(ODD_TEXTS)
    caplog.clear()
    assert model.predict(ODD_TEXTS, k=3) == [found[0] for found in alone]
    assert [record.getMessage()[:43] for record in caplog.records] == [
        "the texts: 2 words were not read: they come"
    ]
    assert model.predict(["up </s> down"]) == model.predict(["up"])
    together = model.probabilities(ODD_TEXTS)
    assert together.shape == (len(ODD_TEXTS), len(LABELS))
    pieces = np.concatenate(list(model.probability_pieces(iter(ODD_TEXTS))))
    np.testing.assert_array_equal(pieces, together)


def test_probabilities_of_pieces_tell_unread_words_once(small, monkeypatch, caplog):
    monkeypatch.setattr(label_prediction, "_SCORES_MAX", 2 * len(LABELS))
    assert len(list(LabelModel(small).probability_pieces(["up </s> down"] * 5))) == 3
    (record,) = caplog.records
    assert "5 words were not read" in record.getMessage()


def test_predict_of_half_a_pair_is_refused_by_its_character(small):
    with pytest.raises(DataError, match=r"character 3, '\\ud800', is half of a pair"):
        LabelModel(small).predict(["up \ud800"])


def test_predict_of_a_reader_that_loses_a_line_is_an_error(small, monkeypatch):
    model = LabelModel(small)
    read = model._read
    monkeypatch.setattr(model, "_read", lambda text, _: read(text.partition(b"\n")[2]))
    with pytest.raises(DataError, match="a row for each of 2 lines of text, got 1"):
        model.predict(["up", "down"])


def test_evaluate_of_an_end_token_within_a_line_counts_one_line(small, tmp_path, caplog):
    (tmp_path / "t.txt").write_text("__label__plus up </s> __label__minus down\n" * 3)
    scores = evaluate_labels(LabelModel(small), tmp_path / "t.txt")
    assert (scores.lines, scores.skipped, scores.precision) == (3, 0, 1.0)
    (record,) = caplog.records
    assert "t.txt: 6 words were not read" in record.getMessage()


def test_predict_command_of_end_tokens_numbers_lines_and_warns_once(small, caplog):
    result = run("predict", small, "-", input="up </s> down\n" * 20_000)
    assert result.stdout.splitlines()[-1].startswith("20000\t__label__plus\t")
    assert len(caplog.records) == 1


def test_evaluate_small_model_gives_known_scores(small, tmp_path):
    text = tmp_path / "t.txt"
    text.write_text(
        "__label__plus up\n__label__minus __label__plus down\n__label__minus up\n"
        "__label__other up\nup\n__label__null\n__label__null __label__null down"
    )
    scores = evaluate_labels(LabelModel(small), text)
    # The line of `null` alone has </s>, and with it a tie of all labels, which plus wins.
    assert (scores.lines, scores.skipped) == (5, 2)
    assert scores.precision == pytest.approx(2 / 5)
    assert scores.recall == pytest.approx(2 / 6)
    told = {entry.label: entry for entry in scores.labels}
    plus, null = told[LABELS[0]], told[LABELS[2]]
    assert (plus.lines, plus.recall) == (2, 0.5)
    assert (null.lines, null.predicted, null.precision, null.recall) == (2, 0, None, 0.0)


@pytest.fixture(scope="module", params=["softmax", "ova"])
def judged(request, tmp_path_factory):
    """A model, 300 lines of some labels, which are of five of its six, and the truth."""
    folder, rng = tmp_path_factory.mktemp("judged"), np.random.default_rng(0)
    words = [b"</s>", *(b"w%d" % n for n in range(20))]
    labels = [b"__label__%d" % n for n in range(6)]
    inputs, outputs = (rng.normal(size=(n, 4)).astype(np.float32) * 2 for n in (21, 6))
    header = BinHeader(dim=4, loss=request.param, model="supervised")
    write_bin(folder / "m", header, words, [1] * 21, [inputs], [outputs], labels, [1] * 6)
    truth = np.zeros((300, 6), int)
    truth[np.arange(300)[:, None], rng.integers(0, 5, (300, 2))] = 1
    texts = [" ".join(f"w{n}" for n in row) for row in rng.integers(0, 20, (300, 3))]
    named = [" ".join(f"__label__{n}" for n in np.flatnonzero(row)) for row in truth]
    lines = [f"{label} {text}\n" for label, text in zip(named, texts, strict=True)]
    (folder / "t.txt").write_text("".join(lines))
    return LabelModel(folder / "m"), folder / "t.txt", truth, texts


def test_ranking_does_not_depend_on_how_lines_are_cut(judged, monkeypatch):
    model, path, *_ = judged
    whole = evaluate_labels(model, path, ranking=True, recall=0.5)
    monkeypatch.setattr(label_prediction, "_SCORES_MAX", 60)
    assert evaluate_labels(model, path, ranking=True, recall=0.5) == whole
    plain = evaluate_labels(model, path)
    assert (plain.precision, plain.average_precision) == (whole.precision, None)
    with pytest.raises(DataError, match="recall: expected a share of lines, above 0 to 1, got 0"):
        evaluate_labels(model, path, recall=0)


@pytest.mark.parametrize("kind", ["labels", "words", "npz"])
def test_copied_model_stays_when_its_file_is_written_over(small, tmp_path, kind):
    path = small
    if kind == "npz":
        path = tmp_path / "m.npz"
        snailps.load(small).wv.save(path)
    if kind == "labels":
        model = snailps.load(path, mapped=False)
        other = pickle.loads(pickle.dumps(model))
        before = model.predict(["up"])
        os.truncate(path, 10)
        assert model.predict(["up"]) == other.predict(["up"]) == before
        return
    vectors = files.load(path, mapped=False)
    before = vectors["up"]
    os.truncate(path, 10)
    assert (vectors["up"] == before).all()


def test_model_that_changes_while_it_is_copied_is_refused(small, monkeypatch):
    real = os.fstat
    calls = iter(range(10))

    def stat(number):
        if next(calls) == 2:  # after the copy: its length, before, after
            os.utime(small, (1, 1))
        return real(number)

    monkeypatch.setattr(fasttext_bin.os, "fstat", stat)
    with pytest.raises(ModelFileError, match="was changed while it was read: read it again"):
        LabelModel(small, mapped=False)


@pytest.mark.parametrize("threshold", [0.9, float(np.float32(0.9)), 0.7, 0.1])
def test_threshold_keeps_the_same_labels_at_each_door(tmp_path, threshold):
    score = np.float32(np.log(threshold / (1 - threshold)))
    path = tmp_path / "m"
    for step in range(-40, 41):  # near a probability that is the threshold's float32
        outputs = np.array([[score]], np.float32) * np.float32(1 + step * 2e-8)
        header = BinHeader(dim=1, loss="ova", model="supervised")
        one = np.ones((1, 1), np.float32)
        write_bin(path, header, [b"w"], [1], [one], [outputs], [b"__label__a"], [1])
        model = LabelModel(path)
        chance = model.probabilities(["w"])[0, 0]
        wanted = bool(chance >= np.float32(threshold))
        (tmp_path / "t").write_text("__label__a w\n")
        assert bool(evaluate_labels(model, tmp_path / "t", 1, threshold).recall) == wanted
        assert bool(model.predict("w", 1, threshold)[0]) == wanted
        assert bool(model.predict(["w", "w"], 1, threshold)[1]) == wanted
        (label,) = model.predict_arrow(["w"], threshold=threshold)["label"].to_pylist()
        assert (label is not None) == wanted


@pytest.mark.parametrize("prefix", ["#", "x", "tag/", "__label__"])
def test_evaluate_reads_columns_of_labels_with_the_prefix_of_the_model(tmp_path, prefix):
    from pyarrow import parquet, table

    path, eye = tmp_path / "m", np.eye(2, dtype=np.float32)
    labels = [f"{prefix}{name}".encode() for name in ("good", "gone%20%away")]
    header = BinHeader(dim=2, loss="softmax", model="supervised")
    write_bin(path, header, [b"up", b"down"], [2, 1], [3 * eye], [eye], labels, [2, 1])
    rows = {"text": ["up", "down", "up"], "kind": ["good", "gone away", "other"]}
    parquet.write_table(table(rows), tmp_path / "t.parquet")
    found = evaluate_labels(
        LabelModel(path), tmp_path / "t.parquet", column="text", label_column="kind"
    )
    assert (found.lines, found.skipped, found.precision) == (2, 1, 1.0)
    for text, kind in (("up", "good"), ("down", "gone%20away")):  # a column in names of folders
        folder = tmp_path / "parts" / f"kind={kind}"
        folder.mkdir(parents=True)
        parquet.write_table(table({"text": [text]}), folder / "p.parquet")
    found = evaluate_labels(
        LabelModel(path), tmp_path / "parts", column="text", label_column="kind"
    )
    assert (found.lines, found.skipped, found.precision) == (2, 0, 1.0)


def test_evaluate_counts_texts_with_the_weights_of_a_column(small, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,kind,weight\nup,plus,3\ndown,minus,0\ndown,plus,1\nup,a:1,9\n")
    columns = {"column": "text", "label_column": "kind", "weight_column": "weight"}
    found = evaluate_labels(LabelModel(small), path, **columns)
    assert (found.lines, found.skipped, found.precision, found.recall) == (3, 1, 0.75, 0.75)
    assert [(one.lines, one.predicted) for one in found.labels] == [(2, 1), (1, 2), (0, 0)]
    path.write_text("text,kind,weight\nup,plus,0\ndown,minus,0\n")
    found = evaluate_labels(LabelModel(small), path, **columns, recall=0.5)
    assert (found.lines, found.precision, found.average_precision) == (2, None, None)
    for weight in ("-1", "1_0"):
        path.write_text(f"text,kind,weight\nup,plus,{weight}\n")
        with pytest.raises(DataError, match=rf"row 1 of column 'weight' .* the weight '{weight}'"):
            evaluate_labels(LabelModel(small), path, **columns)
    with pytest.raises(DataError, match="weight_column: expected label_column as well"):
        evaluate_labels(LabelModel(small), path, column="text", weight_column="weight")
    with pytest.raises(DataError, match="label_column: expected column as well"):
        evaluate_labels(LabelModel(small), path, label_column="kind")
    with pytest.raises(DataError, match="weight_column: expected another column"):
        evaluate_labels(LabelModel(small), path, **{**columns, "weight_column": "kind"})


def test_evaluate_without_a_line_that_counts_or_a_file_says_so(small, tmp_path):
    (tmp_path / "t.txt").write_text("up\ndown\n")
    with pytest.raises(DataError, match=r"none of its 2 lines .*; its labels look like '__label__"):
        evaluate_labels(LabelModel(small), tmp_path / "t.txt")
    with pytest.raises(DataError, match=r"input not found: .*missing does not exist"):
        evaluate_labels(LabelModel(small), tmp_path / "missing")


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.jsonl.gz"])
def test_evaluate_reads_tables_as_the_training_does(small, tmp_path, name):
    import gzip

    from pyarrow import csv, parquet, table

    columns = {"text": ["up", "down", "up"], "kind": ["plus", "minus", "minus"]}
    if name == "t.parquet":
        parquet.write_table(table(columns), tmp_path / name)
    elif name == "t.csv":
        csv.write_csv(table(columns), tmp_path / name)
    else:
        rows = "".join(json.dumps(row) + "\n" for row in table(columns).to_pylist())
        (tmp_path / name).write_bytes(gzip.compress(rows.encode()))
    (tmp_path / "t.txt").write_text("__label__plus up\n__label__minus down\n__label__minus up\n")
    model = LabelModel(small)
    found = evaluate_labels(model, tmp_path / name, column="text", label_column="kind")
    assert found == evaluate_labels(model, tmp_path / "t.txt")
    with pytest.raises(DataError, match="but column is set"):
        evaluate_labels(model, tmp_path / "t.txt", column="text")


def test_predict_command_prints_a_row_a_label(small):
    result = run("predict", small, "up", "-k", 2)
    assert result.exit_code == 0, result.output
    assert result.stdout == "1\t__label__plus\t0.786986\n1\t__label__minus\t0.10650697\n"
    for line, (_, p) in zip(result.stdout.splitlines(), LabelModel(small).predict("up", 2)[0],
                            strict=True):  # fmt: skip
        assert np.float32(line.split("\t")[2]) == p


def test_predict_command_of_standard_input_numbers_its_lines(small):
    result = run("predict", small, "-", "--threshold", "0.5", input="up\n\ndown down")
    assert result.stdout == "1\t__label__plus\t0.786986\n2\t-\t-\n3\t__label__minus\t0.8779887\n"


@pytest.mark.parametrize("text", ["", "sideways"])
def test_line_without_a_known_word_has_the_labels_of_its_end_at_each_door(small, text):
    ((found,),) = LabelModel(small).predict([text])
    assert found == ("__label__plus", pytest.approx(1 / 3))
    row = "1\t__label__plus\t0.33333334\n"
    assert run("predict", small, text).stdout == row
    assert run("predict", small, "-", input=f"{text}\n").stdout == row


def test_test_command_prints_all_and_each_label(small, tmp_path):
    text = tmp_path / "t.txt"
    text.write_text("__label__plus up\n__label__minus up\n")
    result = run("test", small, text)
    assert result.stdout == (
        "all\t2\t2\t0.5\t0.5\t0.5\n"
        "macro\t-\t-\t0.25\t0.5\t0.3333333333333333\n"
        f"__label__plus\t1\t2\t0.5\t1.0\t{2 / 3}\n"
        "__label__minus\t1\t0\t-\t0.0\t0.0\n"
        "__label__null\t0\t0\t-\t-\t-\n"
    )
    ranked = run("test", small, text, "-k", -1, "--average-precision", "--at-recall", 0.9)
    assert [len(line.split("\t")) for line in ranked.stdout.splitlines()] == [9] * 5
    figures = json.loads(run("test", small, text, "--at-recall", 0.9, "--json").stdout)
    assert (figures["at_recall"], figures["precision_at_recall"]) == (0.9, 1 / 3)
    figures = json.loads(run("test", small, text, "--json").stdout)
    assert (figures["lines"], figures["precision"], figures["k"]) == (2, 0.5, 1)
    assert figures["labels"][0]["label"] == "__label__plus"


def test_answers_do_not_depend_on_threads_or_on_what_holds_the_texts(official, monkeypatch):
    monkeypatch.setattr(texts, "PIECE_BYTES", 100)
    _, path, _ = official
    model, rng = LabelModel(path), np.random.default_rng(1)
    names = official_fasttext.SYLLABLES
    lines = [" ".join(rng.choice(names, rng.integers(0, 9))) for _ in range(300)]
    best, chances = model.predict_arrays(lines, 2, threads=1)
    assert best.dtype == np.int32
    assert chances.dtype == np.float32
    assert best.shape == chances.shape == (300, 2)
    for other, threads in (
        (lines, 3), (iter(lines), 2), ("\n".join(lines) + "\n", 4), (pa.array(lines), 0),
        (pa.chunked_array([lines[:7], lines[7:]]), 2),
    ):  # fmt: skip
        found = model.predict_arrays(other, 2, threads=threads)
        np.testing.assert_array_equal(found[0], best)
        np.testing.assert_array_equal(found[1], chances)
    named = [[(model.labels[b].decode(), p) for b, p in zip(*pair, strict=True)]
             for pair in zip(best.tolist(), chances.tolist(), strict=True)]  # fmt: skip
    assert model.predict(lines, 2) == named


LINES = [
    "ka lo", "ka  lo\tmi\r", "ka\0lo", "unseen", " ", "ka </s>", "ka </s> mi lo", "__label__l1 ka",
    "__label__ ka", "日本 größer ka", "ka " * 900, "x" * 3000, "a" * 1990, "ka\x0blo\x0cmi", "</s>",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:12])
def test_one_line_has_the_answer_that_it_has_in_a_list(official, line):
    _, path, _ = official
    model = LabelModel(path)
    for k, threshold in ((1, 0.0), (3, 0.2), (8, 0.0), (20, 0.0)):
        assert model.predict(line, k, threshold) == model.predict([line], k, threshold)
        raw = line.encode() + b"\xff\x80"
        assert model.predict(raw, k, threshold) == model.predict([raw], k, threshold)


@pytest.mark.parametrize("empty", [[], pa.array([], pa.string()), iter([])])
def test_no_texts_have_no_answers(small, empty):
    model = LabelModel(small)
    best, chances = model.predict_arrays(empty, 5)
    assert best.shape == chances.shape == (0, len(model.labels))
    assert model.predict(empty) == []
    assert model.predict_arrow(empty).to_pydict() == {"label": [], "probability": []}
    assert model.probabilities(empty).shape == (0, len(model.labels))


def test_table_of_arrow_has_the_answers_of_lists(official, monkeypatch):
    _, path, _ = official
    model = LabelModel(path)
    lines = pa.chunked_array([["ka lo", "mi", ""], ["nö ta vi"]])
    wanted = model.predict(lines.to_pylist(), 3)
    flat = model.predict_arrow(lines)
    assert flat["label"].type == pa.dictionary(pa.int32(), pa.string())
    assert flat["label"].to_pylist() == [line[0].label for line in wanted]
    assert flat["probability"].to_pylist() == [line[0].probability for line in wanted]
    lists = model.predict_arrow(lines, 3, threads=2).to_pydict()
    both = zip(lists["labels"], lists["probabilities"], strict=True)
    assert [list(zip(*line, strict=True)) for line in both] == wanted
    least = sorted(line[0].probability for line in wanted)[2]
    few = model.predict_arrow(lines, threshold=least)
    assert few["label"].null_count == few["probability"].null_count == 2
    assert [[one.label for one in line] for line in model.predict(lines, 3, least)] == (
        model.predict_arrow(lines, 3, least)["labels"].to_pylist()
    )
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="predict_arrow needs pyarrow"):
        model.predict_arrow(["ka"])


def test_any_k_means_all_labels_and_threads_are_none_or_more(small):
    model = LabelModel(small)
    assert model.predict("up", 10**10) == model.predict(["up"], 10**10)
    assert len(model.predict("up", 10**10)[0]) == len(model.labels)
    assert model.predict("up", -1) == model.predict(["up"], -1) == model.predict("up", 10**10)
    for text in ("up", ["up"], ["up"] * 3):
        for ask in (model.predict, model.predict_arrays, model.predict_arrow):
            for k in (0, -2, 1.5, "1", np.nan):
                with pytest.raises(DataError, match="k: expected a whole number of labels"):
                    ask(text, k)
            for threads in (-1, 1.5, "1", None):
                with pytest.raises(DataError, match="threads: expected 0"):
                    ask(text, 1, threads=threads)
            assert len(ask(text, np.int64(1), threads=np.int32(0))) == len(ask(text, 1, threads=1))


@pytest.mark.parametrize(
    "given",
    [np.array("up"), np.array(b"up"), np.array([["up"]]), {"text": ["up"]}, pa.scalar("up")],
)
def test_what_has_no_row_of_texts_is_refused(small, given):
    model = LabelModel(small)
    for ask in (model.predict, model.predict_arrays, model.predict_arrow, model.probabilities):
        with pytest.raises(DataError, match=r"expected lines of text, .*, got "):
            ask(given)


# --- normal form -------------------------------------------------------------------------------


NORMAL = "nfkc,lower,digits,urls"
WRITTEN = ["UP 12", "Ｕｐ http://x.org/up", "DOWN", "Größe me@x.org", "", "up " * 900, "</S> UP"]
READ = ["up 00", "up <url>", "down", "größe <email>", "", "up " * 900, "</S> up"]


@pytest.fixture
def normal(tmp_path):
    """Two models of the same rows: one whose texts have a normal form, one of texts as they are."""
    words = [b"</s>", b"up", b"down", b"00", b"<url>", "größe".encode(), b"<email>"]
    random = np.random.default_rng(3)
    inputs = random.normal(size=(len(words) + 50, 4)).astype(np.float32)
    outputs = random.normal(size=(3, 4)).astype(np.float32)
    for name, parts in (("plain", ""), ("normal", NORMAL)):
        header = BinHeader(
            dim=4, model="supervised", loss="softmax", minn=2, maxn=3, bucket=50, normalize=parts
        )
        write_bin(
            tmp_path / f"{name}.bin", header, words, [1] * 7, [inputs], [outputs], LABELS, [1] * 3
        )
    return tmp_path / "normal.bin", tmp_path / "plain.bin"


def test_texts_of_a_model_with_a_normal_form_are_read_in_it_wherever_they_come_from(
    normal, tmp_path
):
    model, plain = map(LabelModel, normal)
    wanted = plain.predict(READ, 3)
    assert model.predict(WRITTEN, 3) == wanted
    assert model.predict(pa.array(WRITTEN), 3) == wanted
    assert model.predict("\n".join(WRITTEN), 3) == wanted
    assert [model.predict(text, 3)[0] for text in WRITTEN] == wanted
    assert pickle.loads(pickle.dumps(model)).predict(WRITTEN, 3) == wanted
    assert model.normal_form(b"UP 1") == b"up 0"
    np.testing.assert_array_equal(model.probabilities(WRITTEN), plain.probabilities(READ))
    np.testing.assert_array_equal(model.sentence_vector("UP"), plain.sentence_vector("up"))
    lines, output = tmp_path / "lines.txt", []
    for path, text in zip(normal, (WRITTEN, READ), strict=True):
        lines.write_text("".join(f"__label__plus {line}\n" for line in text), encoding="utf-8")
        output.append(run("predict", path, "--input", lines, "-k", 3).stdout)
        output.append(evaluate_labels(LabelModel(path), lines))
    assert output[:2] == output[2:]
    assert len(output[0].splitlines()) == len(WRITTEN)


@pytest.mark.parametrize("labels", [["#A", "#B"], ["#A"], ["__label__A", "__label__Ab"]])
def test_labels_of_another_prefix_keep_their_form(tmp_path, labels):
    header = BinHeader(dim=2, model="supervised", loss="softmax", normalize="lower")
    rows, number = np.eye(2, dtype=np.float32), len(labels)
    names = [label.encode() for label in labels]
    path = tmp_path / "m.bin"
    write_bin(path, header, [b"up", b"down"], [2, 1], [rows], [rows[:number]], names, [1] * number)
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"{label} UP Label\n" for label in labels))
    scores = evaluate_labels(LabelModel(path), lines)
    assert (scores.lines, scores.skipped) == (number, 0)


def test_normal_form_is_in_the_file_and_fasttext_reads_that(normal, tmp_path):
    path, plain = normal
    header = read_bin(path).header
    assert (header.normalize, header.sample) == (NORMAL, 1e-4)
    assert read_bin(plain).header.normalize == ""
    LabelModel(path).save(tmp_path / "again.bin")
    assert (tmp_path / "again.bin").read_bytes() == path.read_bytes()
    dumped = run("dump", path, "args").stdout
    assert f"normalize\t{NORMAL}" in dumped
    ours = snailps.fasttext.load_model(path)
    assert ours.get_line("UP 3") == (["up", "0", "</s>"], [])
    assert ours.predict("UP 12")[0] == ours.predict("up 00")[0]
    theirs = official_fasttext.module().load_model(str(path))
    assert theirs.f.getArgs().t == pytest.approx(1e-4, rel=1e-8)
    for written, line in zip(WRITTEN, READ[:4], strict=False):
        (best,) = LabelModel(path).predict(written)[0]
        ((chance, label),) = theirs.f.predict(line + "\n", 1, 0.0, "strict")
        assert (best.label, best.probability) == (label, pytest.approx(chance - 1e-5, abs=2e-6))
    theirs.save_model(str(tmp_path / "theirs.bin"))
    assert read_bin(tmp_path / "theirs.bin").header.normalize == NORMAL


def test_normal_form_of_a_newer_version_is_refused(normal):
    path, _ = normal
    data = bytearray(path.read_bytes())
    data[56] |= 0x80  # the first byte of `t`, with the parts
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="normal form that this version does not know"):
        LabelModel(path)


@pytest.mark.parametrize("loss", ["softmax", "ova", "hs"])
@pytest.mark.parametrize("bad", [(np.nan, np.nan), (np.inf, -np.inf), (np.inf, 0), (0, -np.inf)])
def test_rows_that_are_not_finite_are_no_text_without_known_words(tmp_path, caplog, loss, bad):
    """An estimator, which has no answer `no label`, would give the most frequent one."""
    path, header = tmp_path / "m.bin", BinHeader(dim=4, loss=loss, model="supervised")
    words, labels = [b"</s>", b"a", b"b"], [b"__label__x", b"__label__y"]
    inputs, outputs = np.ones((3, 4), np.float32), np.array([[1, 2, 3, 4], [0] * 4], np.float32)
    inputs[1, :2] = bad
    write_bin(path, header, words, [5, 3, 2], [inputs], [outputs], labels, [3, 2])
    model, wanted = LabelModel(path), r"m\.bin: expected finite rows, and words of the texts have"
    assert model.predict("b")[0][0].label == "__label__x"
    assert not caplog.text
    for text in ("a b", ["a b"], b"a b\n"):
        assert model.predict(text) == [[]]
    assert len(caplog.messages) == 1
    assert re.search(wanted, caplog.messages[0])
    estimator = snailps.TextClassifier.load(path)
    for ask in (estimator.predict, estimator.predict_proba):
        assert len(ask(["b", "unseen"])) == 2
        with pytest.raises(ModelFileError, match=wanted):
            ask(["b", "a"])
    outputs[1, :2] = bad
    write_bin(path, header, words, [5, 3, 2], [np.ones_like(inputs)], [outputs], labels, [3, 2])
    with pytest.raises(ModelFileError, match=r"m\.bin: expected finite rows, and labels have"):
        LabelModel(path)
