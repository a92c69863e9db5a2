"""vectors.calibrating, vectors.calibration and their command: known answers, files, doors."""

import copy
import gzip
import json
import math
import pickle

import numpy as np
import pyarrow as pa
import pytest
from cases import each
from sklearn.calibration import calibration_curve
from sklearn.metrics import precision_recall_curve
from typer.testing import CliRunner

import snailps
import snailps.fasttext
from snailps.cli.main import app_for
from snailps.errors import ConfigError, DataError, ModelFileError
from snailps.filtering.expression import parse
from snailps.vectors import calibrating
from snailps.vectors.calibration import Calibration, path_beside, read_calibration
from snailps.vectors.fasttext_bin import BinHeader, write_bin
from snailps.vectors.label_prediction import LabelModel, evaluate_labels
from snailps.vectors.label_scores import Bins
from snailps.vectors.words import to_text

LABELS = [b"__label__a", b"__label__b", b"__label__c"]
WORDS = [b"</s>", *(b"w%d" % number for number in range(40))]


def write_model(path, loss="softmax", seed=3, rows=0):
    """A model without training: of each word the scores of the labels are drawn."""
    random = np.random.default_rng(seed)
    inputs = 4 * random.normal(size=(len(WORDS) + rows, 3)).astype(np.float32)
    outputs = np.eye(3, dtype=np.float32)
    words = [*WORDS, *(b"x%d" % number for number in range(rows))]
    header = BinHeader(dim=3, model="supervised", loss=loss)
    counts = np.ones(len(words), np.int64)
    write_bin(path, header, words, counts, [inputs], [outputs], LABELS, [3, 2, 1])
    return path


def write_lines(path, model, temperature, lines=3000, seed=5):
    """Lines whose labels are drawn by the model's probabilities at a temperature."""
    random = np.random.default_rng(seed)
    texts = [" ".join(f"w{n}" for n in random.integers(0, 40, 2)) for _ in range(lines)]
    asked = LabelModel(model).best_and_hidden(["\n".join([*texts, ""]).encode()])
    hidden = np.concatenate([vectors for _, (_, vectors) in asked])  # the scores of the labels
    if LabelModel(model).loss == "softmax":
        chances = np.exp(hidden / temperature)
        chances /= chances.sum(1, keepdims=True)
        drawn = [random.choice(3, p=row) for row in chances]
    else:  # the best label as often as it says, else another one
        best = hidden.argmax(1)
        is_right = random.random(lines) < 1 / (1 + np.exp(-hidden.max(1) / temperature))
        drawn = np.where(is_right, best, (best + random.integers(1, 3, lines)) % 3)
    path.write_text(
        "".join(
            f"{LABELS[label].decode()} {text}\n" for label, text in zip(drawn, texts, strict=True)
        )
    )
    return path


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "m.bin")


@pytest.fixture
def lines(tmp_path, model):
    return write_lines(tmp_path / "lines.txt", model, 2.5)


@pytest.fixture
def small(tmp_path):
    """Few lines, for what does not depend on how good a fit is."""
    path = write_model(tmp_path / "m.bin")
    return path, write_lines(tmp_path / "lines.txt", path, 2.5, lines=120)


def run(*arguments):
    return CliRunner().invoke(app_for(), [str(argument) for argument in arguments])


# --- definitions ---------------------------------------------------------------------------------


def test_expected_calibration_error_of_known_bins():
    bins = Bins()
    assert bins.error is None
    # Two lines in the bin from 12/15 to 13/15, one of them right; one that is sure and right.
    bins.add(np.array([0.82, 0.86, 1.0]), np.array([True, False, True]))
    assert bins.error == pytest.approx((abs(1 - 0.82 - 0.86) + 0) / 3)
    bins.add(np.array([0.0]), np.array([True]))
    assert bins.error == pytest.approx((0.68 + 1) / 4)


def test_expected_calibration_error_is_that_of_scikit_learns_curve():
    random = np.random.default_rng(6)
    chances = random.random(500) ** 0.3
    right = random.random(500) < chances**2
    bins = Bins()
    for part in (slice(0, 200), slice(200, 500)):
        bins.add(chances[part], right[part])
    shares, means = calibration_curve(right, chances, n_bins=Bins.NUMBER)
    lines, _ = np.histogram(chances, np.linspace(0, 1, Bins.NUMBER + 1))
    expected = (np.abs(shares - means) * lines[lines > 0]).sum() / 500
    assert bins.error == pytest.approx(expected)


def test_lines_count_in_bins_with_their_weights():
    weighed, repeated = Bins(), Bins()
    weighed.add(np.array([0.9, 0.3]), np.array([3.0, 0.5]), np.array([3.0, 2.0]))
    repeated.add(np.array([0.9] * 6 + [0.3] * 4), np.array([True] * 7 + [False] * 3))
    assert weighed.error == pytest.approx(repeated.error)


def test_edges_of_bins_belong_to_the_lower_one():
    one, other = Bins(), Bins()
    one.add(np.array([1 / 15, 1 / 15 + 1e-9]), np.array([True, False]))
    assert one.error == pytest.approx((14 / 15 + 1 / 15) / 2)  # apart
    other.add(np.array([1 / 15, 0.01]), np.array([True, False]))
    assert other.error == pytest.approx(abs(1 - 1 / 15 - 0.01) / 2)  # together


@pytest.mark.parametrize("loss", ["softmax", "ova"])
def test_temperature_that_drew_the_labels_is_found(tmp_path, loss):
    model = write_model(tmp_path / "m.bin", loss)
    lines = write_lines(tmp_path / "lines.txt", model, 2.5)
    report = snailps.calibrate(model, lines)
    assert report.temperature == pytest.approx(2.5, rel=0.12)
    assert report.calibration_error_after < 0.03 < 0.1 < report.calibration_error_before
    assert report.thresholds == []
    scores = evaluate_labels(LabelModel(model), lines)
    assert report.lines == scores.lines
    assert scores.calibration_error == pytest.approx(report.calibration_error_after, abs=1e-5)
    assert scores.uncalibrated_error == pytest.approx(report.calibration_error_before, abs=1e-5)


def test_probabilities_are_those_of_scores_divided_by_the_temperature(small):
    model, lines = small
    temperature = snailps.calibrate(model, lines).temperature
    hidden = LabelModel(model).sentence_vector("w1 w2")
    expected = np.exp(hidden / temperature) / np.exp(hidden / temperature).sum()
    assert LabelModel(model).probabilities(["w1 w2"])[0] == pytest.approx(expected, rel=1e-5)


def test_temperature_of_many_lines_is_fitted_on_some(model, lines, monkeypatch):
    whole = snailps.calibrate(model, lines)
    assert (whole.lines, whole.sampled) == (3000, 3000)
    monkeypatch.setattr(calibrating, "LINES_MAX", 1000)
    some = snailps.calibrate(model, lines)
    assert (some.lines, some.sampled) == (3000, 750)  # every fourth one
    assert some.temperature == pytest.approx(whole.temperature, rel=0.15)
    assert some.temperature != whole.temperature
    done = run("calibrate", model, lines, "--overwrite")
    assert "on 750 of 3,000 lines" in done.stderr


@each("wanted", [{"precision": 0.8}, {"recall": 0.9}, {"precision": 0.999}, {"recall": 1.0}])
def test_thresholds_are_the_best_of_scikit_learns_curve(small, wanted):
    model, lines = small
    report = snailps.calibrate(model, lines, **wanted)
    texts = [line.split(" ", 1) for line in lines.read_text().splitlines()]
    chances = LabelModel(model).probabilities([text for _, text in texts])
    for entry in report.thresholds:
        label = LABELS.index(entry.label)
        has = np.array([name == entry.label.decode() for name, _ in texts])
        precision, recall, threshold = precision_recall_curve(has, chances[:, label])
        reached, best = (precision, recall) if "precision" in wanted else (recall, precision)
        (share,) = wanted.values()
        points = [(best[i], threshold[i]) for i in range(len(threshold)) if reached[i] >= share]
        expected = max(points, default=(0, None))
        if not expected[0]:
            assert (entry.threshold, entry.predicted) == (None, None)
            continue
        assert (best[np.flatnonzero(threshold == entry.threshold)[0]]) == expected[0]
        said = chances[:, label] >= np.float32(entry.threshold)
        assert entry.lines == has.sum()
        assert entry.predicted == said.sum()
        assert entry.precision == pytest.approx(has[said].mean())
        assert entry.recall == pytest.approx((has & said).sum() / has.sum())


# --- doors ---------------------------------------------------------------------------------------


def test_thresholds_hold_wherever_the_model_is_asked(small, tmp_path):
    path, lines = small
    report = snailps.calibrate(path, lines, precision=0.8)
    least = {entry.label.decode(): entry.threshold for entry in report.thresholds}
    model = LabelModel(path)
    assert model.calibration.thresholds == least
    texts = ["w1 w2", "w3", "w4 w5 w6", "w7 w8"]
    every = model.predict(texts, 3, 0.0)
    assert {len(line) for line in every} == {3}
    kept = [[p for p in line if p.probability >= (least[p.label] or 2)] for line in every]
    assert 0 < sum(map(len, kept)) < 12
    assert model.predict(texts, 3) == kept
    assert [model.predict(text, 3)[0] for text in texts] == kept
    assert [p.label for line in model.predict([b"w1 w2"], 3) for p in line] == [
        p.label.encode() for p in kept[0]
    ]
    arrow = model.predict_arrow(pa.array(texts), 3).to_pydict()
    assert arrow["labels"] == [[p.label for p in line] for line in kept]
    asked = tmp_path / "asked.txt"
    asked.write_text("".join(f"{text}\n" for text in texts))
    for form in ("tsv", "jsonl"):
        out = run("predict", path, "--input", asked, "-k", 3, "--format", form).stdout
        assert out.count("__label__") == sum(map(len, kept))
        out = run("predict", path, "--input", asked, "-k", 3, "--threshold", 0).stdout
        assert out.count("__label__") == 12
    piped = run("predict", path, "w1 w2", "-k", 3).stdout
    assert piped.count("__label__") == len(kept[0])
    scores = evaluate_labels(model, lines, k=-1)
    assert sum(entry.predicted for entry in scores.labels) == sum(
        entry.predicted or 0 for entry in report.thresholds
    )
    assert evaluate_labels(model, lines, k=-1, threshold=0.0).precision == pytest.approx(1 / 3)


def test_calibration_goes_with_copies_of_the_model(tmp_path):
    path = write_model(tmp_path / "m.bin", rows=300)
    lines = write_lines(tmp_path / "lines.txt", path, 2.5, lines=120)
    snailps.calibrate(path, lines, precision=0.8)
    model = LabelModel(path)
    wanted = model.predict("w1 w2", 3, 0.0)
    model.save(tmp_path / "saved.bin")
    snailps.quantize(path, tmp_path / "q.ftz", dsub=1)
    theirs = snailps.fasttext.load_model(path)
    theirs.save_model(tmp_path / "theirs.bin")
    for copied in ("saved.bin", "q.ftz", "theirs.bin"):
        assert LabelModel(tmp_path / copied).calibration == model.calibration
    assert pickle.loads(pickle.dumps(model)).predict("w1 w2", 3, 0.0) == wanted
    estimator = snailps.TextClassifier.load(path)
    again = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(
        again.predict_proba(["w1 w2"]), estimator.predict_proba(["w1 w2"])
    )
    for fasttext in (theirs, copy.deepcopy(theirs), snailps.fasttext.load_model(path)):
        labels, chances = fasttext.predict("w1 w2", 3)
        assert [*labels] == [p.label for p in wanted[0]]
        assert chances == pytest.approx([p.probability for p in wanted[0]], abs=2e-5)
    theirs.set_matrices(theirs.get_input_matrix(), 2 * theirs.get_output_matrix())
    theirs.save_model(tmp_path / "changed.bin")
    assert not path_beside(tmp_path / "changed.bin").exists()


def test_model_in_gzip_is_calibrated_by_the_bytes_that_it_unpacks_to(small, tmp_path, caplog):
    path, lines = small
    packed = tmp_path / "packed.bin.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    report = snailps.calibrate(packed, lines)
    assert report.path == str(tmp_path / "packed.bin.json")
    assert LabelModel(packed).calibration.temperature == report.temperature != 1
    assert not caplog.messages


def test_filter_knows_the_thresholds_and_starts_anew_when_they_change(small, tmp_path):
    path, lines = small
    snailps.calibrate(path, lines, precision=0.8)
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": f"w{n} w{n + 1}"}) + "\n" for n in range(30)))
    keep = 'm["__label__a"] >= m.threshold'
    settings = {
        "column": "text",
        "models": {"m": path},
        "keep": keep,
        "keep_scores": tmp_path / "s",
    }
    done = snailps.filter(texts, output=tmp_path / "out", **settings)
    model = LabelModel(path)
    least = model.calibration.thresholds["__label__a"]
    chances = model.probabilities([f"w{n} w{n + 1}" for n in range(30)])[:, 0]
    assert 0 < done["kept"] == (chances >= np.float32(least)).sum() < 30
    assert len(done["models"]["m"]["calibration"]) == 64
    path_beside(path).unlink()
    with pytest.raises(ConfigError, match="no thresholds: snailps calibrate makes some"):
        snailps.filter(texts, output=tmp_path / "out", **settings)
    settings["keep"] = f'm["__label__a"] >= {least}'
    plain = snailps.filter(texts, output=tmp_path / "other", **settings)
    chances = LabelModel(path).probabilities([f"w{n} w{n + 1}" for n in range(30)])[:, 0]
    assert plain["kept"] == (chances >= np.float32(least)).sum() != done["kept"]


@each(
    "condition, error",
    [
        ("m.threshold >= .5", "expected it beside m"),
        ("m.p >= m.threshold", "expected it beside m"),
        ('m["a"] >= n.threshold', "of another model"),
        ('n["a"] >= n.threshold', "model n has no thresholds"),
        ('m["b"] >= m.threshold', 'no threshold of m["b"] reached'),
    ],
)
def test_threshold_in_a_condition_is_of_the_label_beside_it(condition, error):
    labels = {"m": ["a", "b"], "n": ["a"]}
    thresholds = {"m": {"a": 0.7, "b": None}, "n": {}}
    found = parse('m.threshold <= m["a"]', labels, thresholds).clauses[0].bounds
    assert [bound for _, bound in found] == [pytest.approx(0.7)]
    with pytest.raises(ConfigError, match=error.replace("[", r"\[")):
        parse(condition, labels, thresholds)


# --- labels that are judged one by one ----------------------------------------------------------


def drawn(path, scores, labels_of, loss="ova", seed=7):
    """A model of words with these scores (n, 3), and a line of each, with the labels drawn."""
    words = [b"</s>", *(b"w%d" % number for number in range(len(scores)))]
    inputs = np.concatenate((np.zeros((1, 3)), 2 * np.asarray(scores))).astype(np.float32)
    header = BinHeader(dim=3, model="supervised", loss=loss)
    counts = np.ones(len(words), np.int64)
    model = path / "drawn.bin"
    write_bin(model, header, words, counts, [inputs], [np.eye(3, dtype="f4")], LABELS, [3, 2, 1])
    lines = path / "drawn.txt"
    random = np.random.default_rng(seed)
    with lines.open("w") as file:
        for number, row in enumerate(scores):
            names = " ".join(LABELS[label].decode() for label in labels_of(row, random))
            file.write(f"{names} w{number}\n")
    return model, lines


def several(slope, shift):
    """Each label by itself, with the probability of its score times `slope` and the shift."""

    def labels_of(row, random):
        chosen = np.flatnonzero(random.random(3) < 1 / (1 + np.exp(-slope * row - shift)))
        return chosen if len(chosen) else [int(np.argmax(row))]

    return labels_of


@pytest.mark.parametrize("loss", ["ova", "ns"])
def test_scale_and_shift_that_drew_several_labels_a_line_are_found(tmp_path, loss):
    """A temperature alone cannot move 1/2: a score of 0 has the probability .73 here."""
    scores = np.random.default_rng(2).normal(0, 3, (3000, 3))
    model, lines = drawn(tmp_path, scores, several(0.5, 1.0), loss)
    report = snailps.calibrate(model, lines)
    # Standard errors of the two are .01 and .03 with 9,000 pairs.
    assert 1 / report.temperature == pytest.approx(0.5, abs=0.05)
    assert report.shift == pytest.approx(1.0, abs=0.15)
    assert not report.apart
    calibrated = LabelModel(model)
    assert calibrated.calibration.shift == calibrated.calibration.shift_of_others == report.shift
    chances = calibrated.probabilities(["w5"])[0]
    want = 1 / (1 + np.exp(-scores[5] / report.temperature - report.shift))
    assert chances == pytest.approx(want, abs=1e-5)
    for texts in ("w5", ["w5"]):  # one line alone, and the general way
        ((*best,),) = calibrated.predict(texts, k=3)
        assert [entry.probability for entry in best] == pytest.approx(sorted(want)[::-1], abs=1e-5)
    assert report.calibration_error_after < report.calibration_error_before
    assert json.loads(path_beside(model).read_text())["format"] == "snailps calibration 2"
    done = run("test", model, lines)
    assert f"{report.calibration_error_after:.4f}" in done.stdout + done.stderr


def ranks(chances, pairs):
    """Recall at precision .8 of all pairs of a line and a label, by falling probability."""
    precision, recall, _ = precision_recall_curve(pairs.ravel(), chances.ravel())
    return recall[precision >= 0.8].max()


@pytest.mark.parametrize("loss", ["softmax", "ova", "ns"])
def test_lines_of_several_labels_lose_no_recall_at_a_precision(tmp_path, loss):
    """Softmax shares 1 among two labels: each half is right, so a temperature would make the best 1
    and the second 0."""
    random = np.random.default_rng(3)
    has = random.random((400, 3)) < 0.5
    has[np.arange(400), random.integers(0, 3, 400)] = True
    scores = random.normal(0, 4, (400, 3)) + 12 * has
    model, lines = drawn(tmp_path, scores, several(0.5, -3.0), loss)
    split = [line.split() for line in lines.read_text().splitlines()]
    texts = [line[-1] for line in split]
    truth = np.array(
        [
            [name.decode() in line.split() for name in LABELS]
            for line in lines.read_text().splitlines()
        ]
    )
    assert (truth.sum(1) > 1).mean() > 0.2
    before = LabelModel(model).probabilities(texts)
    report = snailps.calibrate(model, lines)
    after = LabelModel(model).probabilities(texts)
    assert ranks(after, truth) >= ranks(before, truth)
    assert report.apart == (loss == "softmax")
    assert report.calibration_error_after < report.calibration_error_before
    # As many labels as lines have, within Platt's targets, which move 1 / n of them.
    assert after.sum() == pytest.approx(truth.sum(), rel=0.02)


@pytest.mark.parametrize("loss", ["ova", "ns"])
def test_best_labels_of_several_have_a_shift_of_their_own_where_one_shift_is_no_good(
    tmp_path, loss
):
    """A line's best label is right far more often than another one of its score: by one shift the
    probabilities of best labels are farther from the truth than before."""
    scores = np.random.default_rng(6).normal(0, 1.5, (1500, 3))
    shifts = np.where(scores == scores.max(1, keepdims=True), 1.0, -2.5)

    def labels_of(row, random):
        own = shifts[np.flatnonzero((scores == row).all(1))[0]]
        return several(1.0, own)(row, random)

    model, lines = drawn(tmp_path, scores, labels_of, loss)
    labels = [line.split()[:-1] for line in lines.read_text().splitlines()]
    best = [LABELS[place].decode() for place in scores.argmax(1)]
    right = sum(label in line for label, line in zip(best, labels, strict=True))
    assert sum(len(line) > 1 for line in labels) > 0.1 * len(labels)
    report = snailps.calibrate(model, lines)
    assert report.path
    assert report.calibration_error_after < report.calibration_error_before
    chances = LabelModel(model).probabilities([f"w{number}" for number in range(1500)])
    assert (chances.argmax(1) == scores.argmax(1)).all()
    # Platt's targets move a mean by 1 / n.
    assert chances.max(1).sum() == pytest.approx(right, abs=2)
    assert chances.sum() == pytest.approx(sum(map(len, labels)), abs=4)


@pytest.mark.parametrize("loss", ["ova", "ns"])
def test_other_labels_of_lines_with_one_label_add_up_to_what_they_are(tmp_path, loss):
    """The best label says how often it is right, and all together are one label a line."""
    scores = np.random.default_rng(4).normal(-1.5, 1.5, (2000, 3))

    def labels_of(row, random):
        shares = np.exp(1.3 * row)
        return [random.choice(3, p=shares / shares.sum())]

    model, lines = drawn(tmp_path, scores, labels_of, loss)
    report = snailps.calibrate(model, lines)
    assert report.calibration_error_after < 0.05 < report.calibration_error_before
    texts = [f"w{number}" for number in range(2000)]
    best, chances = LabelModel(model).best_and_probabilities(texts)
    assert chances.sum(1).mean() == pytest.approx(1, abs=0.01)
    assert (best == scores.argmax(1)).all()
    assert (chances.argmax(1) == best).all()


@pytest.mark.parametrize("loss", ["softmax", "ova", "ns"])
def test_thirty_lines_that_are_all_right_make_nothing_certain(tmp_path, loss):
    """Platt's target of 30 right lines is 31/32; a word that says little stays doubtful."""
    gap = 1.5 if loss == "softmax" else 1.0
    scores = [[gap, -gap * (loss != "softmax"), -9.0], [-gap * (loss != "softmax"), gap, -9.0]] * 15
    model, lines = drawn(
        tmp_path, [*scores, [0.1, 0.0, -9.0]], lambda row, random: [int(np.argmax(row))], loss
    )
    lines.write_text("".join(lines.read_text().splitlines(keepends=True)[:30]))
    snailps.calibrate(model, lines)
    sure, doubtful = LabelModel(model).probabilities(["w0", "w30"])
    assert sure.max() == pytest.approx(31 / 32, abs=1e-3)
    assert doubtful.max() < 0.9


@pytest.mark.parametrize(
    ("loss", "advice"),
    [
        ("ova", "Give more lines, or leave it out"),
        ("softmax", "Lines have several labels, among which softmax shares one probability"),
        ("softmax, one label", "Give more lines, or leave it out"),
    ],
)
def test_nothing_is_written_where_the_error_would_rise_and_that_is_said(
    tmp_path, caplog, monkeypatch, loss, advice
):
    scores, labels_of = np.random.default_rng(2).normal(0, 3, (300, 3)), several(1.0, 0.0)
    if "one" in loss:
        labels_of = lambda row, random: [int(np.argmax(row))]  # noqa: E731
    model, lines = drawn(tmp_path, scores, labels_of, loss.partition(",")[0])
    worse = Calibration(9.0, shift=-2.0, shift_of_others=-2.0)
    monkeypatch.setattr(calibrating._LabelledSample, "calibration", lambda sample: worse)
    done = run("calibrate", model, lines)
    assert "nothing was written" in done.stderr
    assert "would raise the calibration error on its own 300 lines from" in caplog.text
    assert advice in caplog.text
    assert not path_beside(model).exists()
    report = snailps.calibrate(model, lines, precision=0.8)  # thresholds of what there is
    assert (report.temperature, report.shift) == (1.0, 0.0)
    assert LabelModel(model).calibration.thresholds
    assert report.calibration_error_after == report.calibration_error_before


@pytest.mark.parametrize("loss", ["softmax", "ova", "ns"])
def test_few_lines_calibrate_nothing(tmp_path, caplog, loss):
    """One wrong line gave a temperature of 64: all labels alike."""
    scores = np.random.default_rng(2).normal(0, 3, (20, 3))
    model, lines = drawn(tmp_path, scores, lambda row, random: [int(np.argmin(row))], loss)
    text = lines.read_text().splitlines(keepends=True)
    for few in (1, 5, 19):
        lines.write_text("".join(text[:few]))
        assert snailps.calibrate(model, lines).path == ""
        assert "at least 20 labelled lines for a calibration" in caplog.text
        assert f"got {few}: probabilities stay as trained" in caplog.text
        assert not path_beside(model).exists()
    lines.write_text("".join(text))
    assert snailps.calibrate(model, lines).temperature > 1


def test_a_calibration_of_an_older_release_goes_on(small):
    path, lines = small
    snailps.calibrate(path, lines)
    values = json.loads(path_beside(path).read_text())
    assert values["format"] == "snailps calibration 1"
    assert "shift" not in values
    assert LabelModel(path).calibration.temperature == values["temperature"]


# --- the file ------------------------------------------------------------------------------------


def test_calibration_of_another_model_is_not_used_and_a_warning_says_so(small, caplog):
    path, lines = small
    before = LabelModel(path).predict("w1")
    snailps.calibrate(path, lines)
    assert LabelModel(path).predict("w1") != before
    other = write_model(path, seed=4)
    assert LabelModel(other).calibration == Calibration()
    (record,) = caplog.records
    assert "m.bin.json belongs to another model than" in record.getMessage()


@each(
    "values, error",
    [
        (b"{", "damaged: Expecting"),
        (b"[]", "expected an object"),
        ({"format": "snailps calibration 3"}, "use a newer snailps"),
        ({"temperature": 0}, r"temperature: expected 1e-06 to 1e\+06, got 0"),
        ({"temperature": 1e-300}, "temperature: expected 1e-06"),
        ({"temperature": math.nan}, "temperature: expected 1e-06"),
        ({"shift": math.inf}, r"shift: expected -1e\+06 to 1e\+06, got inf"),
        ({"shift_of_others": "0"}, "shift: expected"),
        ({"apart": 1}, "apart: expected true or false, got 1"),
        ({"temperature": True}, "temperature: expected 1e-06"),
        ({"thresholds": [1]}, "expected thresholds and about as objects"),
        ({"thresholds": {"__label__a": 2}}, "threshold of '__label__a': expected 0 to 1, got 2"),
        ({"thresholds": {"__label__a": 0.5}}, "a threshold for each label of the model"),
    ],
)
def test_damaged_file_is_refused_with_what_to_do(small, values, error):
    path, lines = small
    snailps.calibrate(path, lines)
    beside = path_beside(path)
    text = values
    if isinstance(values, dict):
        text = json.dumps(json.loads(beside.read_text()) | values).encode()
    beside.write_bytes(text)
    with pytest.raises(ModelFileError, match=f"{error}.*run snailps calibrate again, or remove"):
        LabelModel(path)


def test_file_of_someone_else_is_left_alone(model):
    path_beside(model).write_text('{"license": "MIT"}')
    assert LabelModel(model).calibration == Calibration()
    assert read_calibration(model, model.read_bytes(), LABELS) is None


def test_labels_that_are_no_utf8_keep_their_thresholds(tmp_path):
    path = tmp_path / "m.bin"
    header = BinHeader(dim=1, model="supervised", loss="ova")
    rows = [np.array([[2.0], [-2.0]], np.float32)], [np.ones((1, 1), np.float32)]
    write_bin(path, header, [b"</s>", b"x"], [1, 1], *rows, [b"__label__\xff"], [1])
    lines = tmp_path / "lines.txt"
    lines.write_bytes(b"__label__\xff x\n" * 3 + b"__label__\xff\n")
    (entry,) = snailps.calibrate(path, lines, recall=1.0).thresholds
    assert LabelModel(path).calibration.thresholds == {to_text(entry.label): entry.threshold}


# --- mistakes ------------------------------------------------------------------------------------


def test_mistakes_are_refused_and_write_nothing(small, tmp_path):
    path, lines = small
    with pytest.raises(DataError, match=r"a precision or a recall .*, got both"):
        snailps.calibrate(path, lines, precision=0.5, recall=0.5)
    for share in (0, 1.5, float("nan")):
        with pytest.raises(DataError, match="precision: expected a share, above 0 to 1"):
            snailps.calibrate(path, lines, precision=share)
    other = tmp_path / "other.txt"
    other.write_text("__label__zz w1\n")
    with pytest.raises(DataError, match="none of its 1 lines has both a label and a word"):
        snailps.calibrate(path, other)
    tree = write_model(tmp_path / "hs.bin", "hs")
    with pytest.raises(ModelFileError, match="expected the loss softmax, ova or ns, got hs"):
        snailps.calibrate(tree, lines)
    assert not path_beside(path).exists()
    assert not path_beside(tree).exists()


def test_command_prints_thresholds_and_does_not_replace_them_unasked(small):
    path, lines = small
    done = run("calibrate", path, lines, "--precision", ".8")
    assert done.exit_code == 0
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == [
        entry.label.decode() for entry in snailps.calibrate(path, lines, precision=0.8).thresholds
    ]
    assert {len(row) for row in rows} == {6}
    assert "temperature 2." in done.stderr
    assert f"wrote {path}.json" in done.stderr
    refused = run("calibrate", path, lines)
    assert isinstance(refused.exception, ConfigError)
    assert "add --overwrite; to keep it, calibrate a copy" in str(refused.exception)
    again = json.loads(run("calibrate", path, lines, "--overwrite", "--json").stdout)
    assert again["thresholds"] == []
    assert again["calibration_error_after"] < again["calibration_error_before"]
    tested = run("test", path, lines)
    assert "expected calibration error: 0." in tested.stderr
    assert "before calibration" in tested.stderr
    with pytest.raises(ConfigError, match="read three times"):
        raise run("calibrate", path, "-", "--overwrite").exception


@pytest.mark.parametrize("loss", ["softmax", "ova"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_model_of_rows_that_are_not_finite_is_judged_by_nothing(loss, value, tmp_path):
    """Counting these lines as wrong ones would give figures of a model that says nothing."""
    path, text = tmp_path / "m.bin", tmp_path / "text"
    inputs, outputs = np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)
    inputs[1] = value
    header = BinHeader(dim=3, model="supervised", loss=loss)
    write_bin(
        path, header, [b"w0", b"w1", b"w2"], [3, 2, 1], [inputs], [outputs], LABELS, [3, 2, 1]
    )
    text.write_text("__label__a w0\n__label__b w1\n__label__c w2\n", encoding="utf-8")
    for judge in (calibrating.calibrate, lambda *paths: evaluate_labels(LabelModel(path), text)):
        with pytest.raises(DataError, match="of 1 of 3 lines are not finite: the training"):
            judge(path, text)
    assert not path_beside(path).exists()


def test_huge_scores_are_calibrated_without_a_warning(tmp_path):
    path, text = tmp_path / "m.bin", tmp_path / "text"
    inputs = np.float32(2e38) * np.array([[1, -1, 0], [-1, 1, 0], [0, 0, 1]], np.float32)
    header = BinHeader(dim=3, model="supervised", loss="softmax")
    outputs = np.eye(3, dtype=np.float32)
    write_bin(
        path, header, [b"w0", b"w1", b"w2"], [3, 2, 1], [inputs], [outputs], LABELS, [3, 2, 1]
    )
    text.write_text("__label__a w0\n__label__b w1\n__label__a w2\n", encoding="utf-8")
    assert calibrating.calibrate(path, text).calibration_error_before == pytest.approx(1 / 3)


def test_weight_of_n_is_the_line_n_times_by_the_commands_too(tmp_path):
    rng = np.random.default_rng(5)
    drawn_label = lambda row, random: [random.choice(3, p=np.exp(row) / np.exp(row).sum())]  # noqa: E731
    model, lines = drawn(tmp_path, rng.normal(0, 1, (90, 3)), drawn_label)
    times = rng.integers(0, 4, 90)
    rows = [(n, *line.rsplit(" ", 1)) for n, line in enumerate(lines.read_text().splitlines())]
    often, weighed = tmp_path / "often.txt", tmp_path / "weighed.csv"
    often.write_text("".join(f"{labels} {word}\n" * times[n] for n, labels, word in rows))
    texts = [f'{word},"{labels}",{times[n] / 8}\n' for n, labels, word in rows]
    weighed.write_text("text,label,weight\n" + "".join(texts).replace("__label__", ""))
    columns = {"column": "text", "label_column": "label", "weight_column": "weight"}
    options = [word for key, name in columns.items() for word in (f"--{key}", name)]
    options = [word.replace("_", "-") for word in options]
    found = [
        json.loads(run("test", model, *args, "--at-recall", ".8", "--json").stdout)
        for args in ([often], [weighed, *options])
    ]
    for name in ("precision_at_recall", "threshold", "average_precision", "f1"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-12)
    plain, by_weight = (
        snailps.calibrate(model, file, precision=0.6, **more)
        for file, more in ((often, {}), (weighed, columns))
    )
    assert [
        (one.label, one.precision, one.recall)
        for one in sorted(plain.thresholds, key=lambda one: one.label)
    ] == [
        (one.label, one.precision, one.recall)
        for one in sorted(by_weight.thresholds, key=lambda one: one.label)
    ]
