"""Figures of labelled lines: one definition, by every door that tests, calibrates or retrains."""

import json

import numpy as np
import pytest

import snailps
import snailps.fasttext
from snailps.data.vocabulary import Vocabulary
from snailps.errors import DataError, ModelFileError
from snailps.models.classifier.held_out import Scored, figures_of
from snailps.models.classifier.retraining import Retraining, retrained
from snailps.models.classifier.settings import ClassifierSettings
from snailps.vectors.calibration import path_beside
from snailps.vectors.fasttext_bin import BinHeader, read_bin, write_bin
from snailps.vectors.label_metrics import Metric
from snailps.vectors.label_prediction import LabelModel, evaluate_labels
from snailps.vectors.labelled_lines import labelled_lines

LOSSES = ("softmax", "hs", "ns", "ova")


def write_model(path, loss="softmax", prefix="__label__", normalize="", names="ab"):
    """A model for which `up` has the first label, `down` the second one."""
    eye = np.eye(2, dtype=np.float32)
    outputs = np.array([[1, -1], [0, 0]], np.float32) if loss == "hs" else eye
    own = 0 if prefix == "__label__" else len(prefix)
    header = BinHeader(
        dim=2, loss=loss, model="supervised", min_count=1, normalize=normalize, prefix=own
    )
    labels = [f"{prefix}{name}".encode() for name in names]
    write_bin(path, header, [b"up", b"down"], [2, 1], [3 * eye], [outputs], labels, [2, 1])
    return path


CASES = {
    # lines; weights are read; lines, skipped, precision, recall, by hand
    "plain": ("P.a up\nP.b down\nP.b up\nP.zz up\n", False, 3, 1, 2 / 3, 2 / 3),
    # A line of weight 2 counts as two lines.
    "weights": ("P.:2 P.a up\nP.b down\nP.b up\n", True, 3, 0, 3 / 4, 3 / 4),
    # A guess of a line of weight 1 is right by .75.
    "soft labels": ("P.a:.75 P.b:.25 up\nP.b down\n", True, 2, 0, 1.75 / 2, 1.75 / 2),
    "several labels": ("P.a P.b up\nP.b down\n", False, 2, 0, 1.0, 2 / 3),
    "own prefix": ("P.a P.up up\nP.b P.down P.up down\nP.zz up\n", False, 2, 1, 1.0, 1.0),
    "normalize": ("P.a UP\nP.b Down\nP.b uP\n", False, 3, 0, 2 / 3, 2 / 3),
}


def of_rows(text, prefix):
    """The texts of lines, and of each a mapping from its labels to weights, and its weight."""
    texts, labels, weights = [], [], []
    for line in text.splitlines():
        words = [word.removeprefix(prefix) for word in line.split() if word.startswith(prefix)]
        parts = [word.partition(":") for word in words]
        weights.append(next((float(weight) for name, _, weight in parts if not name), 1.0))
        labels.append({name: float(weight or 1) for name, _, weight in parts if name})
        texts.append(" ".join(word for word in line.split() if not word.startswith(prefix)))
    return texts, labels, weights


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("case", CASES)
def test_figures_are_those_by_hand_by_every_door(tmp_path, loss, case):
    text, soft, lines, skipped, precision, recall = CASES[case]
    prefix = "T_" if case == "own prefix" else "__label__"
    text = text.replace("P.", prefix)
    normalize = "lower" if case == "normalize" else ""
    path = write_model(tmp_path / "m.bin", loss, prefix, normalize)
    file = tmp_path / "t.txt"
    file.write_text(text)
    model = LabelModel(path)
    f1 = 2 * precision * recall / (precision + recall)

    def check(scores):
        assert (scores.lines, scores.skipped) == (lines, skipped)
        figures = (scores.precision, scores.recall, scores.f1)
        assert figures == pytest.approx((precision, recall, f1))

    check(evaluate_labels(model, file, soft_labels=soft))
    check(model.evaluate(text.splitlines(), soft_labels=soft))
    texts, labels, weights = of_rows(text, prefix)
    names = [[*row] for row in labels] if not soft else labels
    rows = [
        {"text": text, "y": y, "weight": weight}
        for text, y, weight in zip(texts, names, weights, strict=True)
    ]
    table = tmp_path / "t.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"column": "text", "label_column": "y", "weight_column": "weight"}
    check(evaluate_labels(model, table, **columns, soft_labels=soft))
    if set(weights) == {1.0}:
        check(evaluate_labels(model, (texts, names)))
    # What a trial of `autotune` is judged by, and a test after an epoch.
    read = labelled_lines(model, file, soft_labels=soft)
    answers = [*read.model.answers(read.texts(), 1, "lines")]
    assert Metric().value(["a", "b"], iter(answers)) == pytest.approx(f1)
    ((of_lines, (best, _)),) = answers
    parts = [Scored(of_lines, best[:, 0], read.model.probabilities(text.splitlines()))]
    vocabulary = Vocabulary(read_bin(path).labels, np.array([2, 1]), 3)
    settings = ClassifierSettings(loss=loss, validation=("t",), soft_labels=soft)
    figures = figures_of(parts, vocabulary, settings)
    assert figures["f1_at_1"] == pytest.approx(f1, abs=1e-6)
    assert figures["precision_at_1"] == pytest.approx(precision, abs=1e-6)
    if not soft:
        tested = snailps.fasttext.load_model(path).test(file)
        assert tested == (lines, pytest.approx(precision), pytest.approx(recall))
    if loss != "hs":
        report = snailps.calibrate(path, file, soft_labels=soft)
        assert (report.lines, report.skipped) == (lines, skipped)
        error = evaluate_labels(model, file, soft_labels=soft).calibration_error
        assert report.calibration_error_before == pytest.approx(error, abs=1e-6)


@pytest.mark.parametrize("names", ["ab", ["xa", "xb"], ["only"]])
@pytest.mark.parametrize("normalize", ["", "nfkc,lower"])
def test_prefix_of_the_training_comes_with_the_file(tmp_path, names, normalize):
    eye, prefix = np.eye(2, dtype=np.float32)[: len(names)], b"T_"
    header = BinHeader(
        dim=2, loss="softmax", model="supervised", normalize=normalize, prefix=len(prefix)
    )
    labels = [prefix + name.encode() for name in names]
    path = tmp_path / "m.bin"
    write_bin(path, header, [b"up"], [1], [eye[:1]], [eye], labels, [1] * len(labels))
    assert LabelModel(path).prefix == prefix
    header = read_bin(path).header
    assert (header.prefix, header.normalize, header.sample) == (2, normalize, 1e-4)
    # `T_new` is a label, if an unknown one, and no word.
    fasttext = snailps.fasttext.load_model(path)
    assert fasttext.get_line(f"T_new {labels[0].decode()} up") == (
        ["up", "</s>"], [labels[0].decode()],
    )  # fmt: skip


@pytest.mark.parametrize("normalize", ["", "lower"])
def test_file_that_does_not_say_its_prefix_is_read_as_before(tmp_path, normalize):
    eye = np.eye(2, dtype=np.float32)
    header = BinHeader(dim=2, loss="softmax", model="supervised", normalize=normalize)
    for names, prefix in (("T_a T_b", b"T_"), ("__label__a __label__ab", b"__label__")):
        labels = [name.encode() for name in names.split()]
        path = tmp_path / "m.bin"
        write_bin(path, header, [b"up"], [1], [eye[:1]], [eye], labels, [1, 1])
        assert (read_bin(path).header.prefix, LabelModel(path).prefix) == (0, prefix)
        assert read_bin(path).header.sample == 1e-4


def test_bare_labels_of_another_program_take_no_words_for_labels(tmp_path):
    eye = np.eye(2, dtype=np.float32)
    header = BinHeader(dim=2, loss="softmax", model="supervised")
    write_bin(
        tmp_path / "m",
        header,
        [b"early", b"late"],
        [2, 1],
        [3 * eye],
        [eye],
        [b"en", b"es"],
        [2, 1],
    )
    model = LabelModel(tmp_path / "m")
    assert model.prefix == b"__label__"
    assert [best.label for (best,) in model.predict(["early", "late"])] == ["en", "es"]


def test_long_prefix_is_not_kept_and_the_file_stays_readable(tmp_path):
    header = BinHeader(dim=2, loss="softmax", model="supervised", prefix=226)
    row = np.ones((1, 2), np.float32)
    write_bin(tmp_path / "m.bin", header, [b"up"], [1], [row], [row], [b"x" * 300], [1])
    assert read_bin(tmp_path / "m.bin").header.prefix == 0


@pytest.mark.parametrize("door", ["test", "calibrate", "retrain"])
def test_weights_that_are_not_read_are_warned_of_where_no_line_is_left_out(tmp_path, caplog, door):
    """Each line has a label of the model beside its weight, or both were left out."""
    path = write_model(tmp_path / "m.bin")
    lines = ["__label__:5 __label__a up", "__label__b down", "__label__:0.5 __label__a down"]

    def read(lines):
        if door == "test":
            evaluate_labels(LabelModel(path), lines)
        elif door == "calibrate":
            calibrate_of(path)(lines)
        else:
            text = labelled_lines(LabelModel(path), lines)
            retrained(read_bin(path), Retraining(text, 1, 0.1))

    read(lines[1:2])
    assert "weight" not in caplog.text
    read(lines)
    assert "all its lines count 1. '__label__:5' looks like a label with a weight" in caplog.text


def test_lines_with_weights_that_are_not_read_are_left_out_with_a_word(tmp_path, caplog):
    path = write_model(tmp_path / "m.bin")
    lines = ["__label__a:0.75 __label__b:0.25 up", "__label__b down"]
    assert evaluate_labels(LabelModel(path), lines).skipped == 1
    assert "looks like a label with a weight: weights are read with soft_labels" in caplog.text
    for door in (lambda lines: evaluate_labels(LabelModel(path), lines), calibrate_of(path)):
        with pytest.raises(DataError, match=r"none of its 1 lines .* \(--soft-labels\)"):
            door(lines[:1])


def calibrate_of(path):
    return lambda lines: snailps.calibrate(path, lines)


def test_calibrate_takes_frames_lists_arrow_and_pairs(tmp_path):
    import pandas
    import pyarrow

    path = write_model(tmp_path / "m.bin")
    texts, labels = ["up", "down", "up", "down"] * 5, ["a", "b", "a", "a"] * 5
    file = tmp_path / "t.txt"
    pairs = [f"__label__{label} {text}" for text, label in zip(texts, labels, strict=True)]
    file.write_text("\n".join(pairs) + "\n")
    expected = snailps.calibrate(path, file)
    frame = pandas.DataFrame({"text": texts, "y": labels})
    columns = {"column": "text", "label_column": "y"}
    for data, more in (
        (pairs, {}),
        ((texts, labels), {}),
        ((frame["text"], frame["y"]), {}),
        ((text for text in pairs), {}),
        (frame, columns),
        (pyarrow.Table.from_pandas(frame), columns),
        (pyarrow.Table.from_pandas(frame).to_reader(), columns),
    ):
        assert snailps.calibrate(path, data, **more) == expected
    for data, error in (
        ((texts, labels[1:]), "expected a label for each element"),
        ((texts, np.ones((20, 2))), "one label a text"),
        ((texts, labels, labels), "a pair of texts and labels"),
        ([], "the data is empty"),
        (None, "expected"),
    ):
        with pytest.raises(DataError, match=error):
            snailps.calibrate(path, data)


def test_calibration_never_replaces_a_file_of_another_program(tmp_path):
    path = write_model(tmp_path / "m.bin")
    path_beside(path).write_text('{"license": "MIT"}')
    lines = ["__label__a up", "__label__b up"]
    with pytest.raises(ModelFileError, match=r"m\.bin\.json: expected a calibration or no file"):
        snailps.calibrate(path, lines)
    assert path_beside(path).read_text() == '{"license": "MIT"}'
    path_beside(path).unlink()
    snailps.calibrate(path, lines)
    snailps.calibrate(path, lines)
