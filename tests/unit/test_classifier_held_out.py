"""models.classifier.held_out: which lines are held out, their probabilities and figures."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from connected import block_of, connected, flush, in_order, results_of, train

import snailps
from snailps.data._text import WordCounter, split_lines
from snailps.errors import ConfigError, DataError
from snailps.models.classifier import held_out
from snailps.models.classifier.held_out import figures_of, held_out_texts, scored, split_of
from snailps.models.classifier.model import Classifier, unpack_summary
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.ngram_rows import surveyed
from snailps.vectors.fasttext_bin import BinHeader, write_bin
from snailps.vectors.label_prediction import LabelModel, evaluate_labels

WORDS = ("cat", "dog", "saw", "hammer")


def lines_of(count=400, seed=1):
    rng = np.random.default_rng(seed)
    for first, second in rng.integers(0, 4, (count, 2)).tolist():
        label = "pet" if first < 2 else "tool"
        yield f"__label__{label} the {WORDS[first]} and {second}{first}\n".encode()


TEXT = b"".join(lines_of())
SMALL = ClassifierSettings(dim=8, bucket=1000, held_out=0.3, maxn=0, lr=0.5, seed=4)


def summary_of(settings, text):
    surveyor, part = Classifier.surveyor(settings), Classifier(settings).survey_part()
    part.add(block_of(text))
    surveyor.add(part.take())
    return surveyor.result()


@pytest.fixture
def make():
    with connected(Classifier) as made:

        def make(settings, text=TEXT):
            return in_order(made(settings, summary=summary_of(settings, text)))

        yield make


def trained_model(make, settings, text=TEXT):
    model = make(settings, text)
    for number in range(4):
        train(model, text, number)
    flush(model)
    return model


def parts_of(model, texts=None):
    s, summary = surveyed(model.settings, model.summary)
    return s, *unpack_summary(summary), texts


# --- which lines ------------------------------------------------------------------------------


def test_lines_are_on_one_side_each_in_their_order_and_equal_ones_together():
    lines = [b"%d\n" % (i % 150) for i in range(1000)] + [b"without a newline"]
    trained, held = split_lines(b"".join(lines), 7, 1 << 63)
    of_trained, of_held = trained.splitlines(), held.splitlines()
    assert Counter(of_trained) + Counter(of_held) == Counter(b"".join(lines).splitlines())
    assert not set(of_trained) & set(of_held)
    assert of_trained == [line.rstrip() for line in lines if line.rstrip() in of_trained]
    assert 50 < len(set(of_held)) < 100


@pytest.mark.parametrize("text", [b"", b"\n", b"\n\na\n", b"a", b"a\nb"])
def test_short_texts_are_split_without_loss(text):
    for seed in range(5):
        trained, held = split_lines(text, seed, 1 << 63)
        assert sorted(trained + held) == sorted(text)


def test_a_line_has_its_side_with_and_without_a_newline_and_in_any_block():
    split = split_of(SMALL)
    lines = TEXT.splitlines(keepends=True)
    alone = b"".join(map(split.held, lines))
    assert alone == split.held(TEXT)
    assert [split.held(line.rstrip()) != b"" for line in lines] == [
        split.held(line) != b"" for line in lines
    ]
    assert split.trained(TEXT) + split.held(TEXT) != TEXT


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_share_of_different_lines_is_the_setting(share):
    lines = b"".join(b"line %d\n" % i for i in range(20_000))
    split = split_of(replace(SMALL, held_out=share))
    held = len(split.held(lines).splitlines()) / 20_000
    assert abs(held - share) < 4 * (share * (1 - share) / 20_000) ** 0.5
    assert split_of(replace(SMALL, held_out=0.0)) is None


def test_training_is_bit_for_bit_that_of_a_text_without_the_held_out_lines(make):
    rest = split_of(SMALL).trained(TEXT)
    assert 0 < len(rest) < len(TEXT)
    models = trained_model(make, SMALL), trained_model(make, replace(SMALL, held_out=0.0), rest)
    assert models[0].summary == models[1].summary
    keys = np.arange(len(unpack_summary(models[0].summary)[0]), dtype=np.uint64)
    rows = [results_of(model).pull("input", keys) for model in models]
    assert (rows[0] == rows[1]).all()


def test_held_out_texts_are_those_of_the_files_or_the_lines_that_are_not_trained(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(TEXT)
    settings = replace(SMALL, input=(str(path),))
    assert b"".join(held_out_texts(settings)) == split_of(SMALL).held(TEXT)
    settings = replace(SMALL, held_out=0.0, validation=(str(path),))
    assert b"".join(held_out_texts(settings)) == TEXT
    assert list(held_out_texts(replace(SMALL, held_out=0.0))) == []


def test_servers_have_the_rows_of_an_epoch_once_all_is_pushed(make):
    model = make(replace(SMALL, held_out=0.0))
    for number in range(2):
        train(model, TEXT, number, progress=(number / 6, (number + 1) / 6))
    assert model.unpushed
    model.push_all()
    assert not model.unpushed
    keys = np.arange(len(unpack_summary(model.summary)[0]), dtype=np.uint64)
    kept = model.rows[0].kept
    local = kept.rows[kept.numbers.find(keys)[0], :8].copy()
    np.testing.assert_allclose(model.pull("input", keys), local, rtol=1e-6, atol=1e-7)
    train(model, TEXT, 3, progress=(0.3, 0.5))  # of the same period: rows are sent once more
    local = kept.rows[kept.numbers.find(keys)[0], :8].copy()
    flush(model)
    np.testing.assert_allclose(model.pull("input", keys), local, rtol=1e-6, atol=1e-7)


# --- probabilities and figures ----------------------------------------------------------------


@pytest.mark.parametrize("loss", ["softmax", "ova", "ns"])
@pytest.mark.parametrize("more", [{}, {"word_ngrams": 2}])
def test_probabilities_and_figures_are_those_of_the_exported_model(make, tmp_path, loss, more):
    path = tmp_path / "valid"
    path.write_bytes(b"".join(lines_of(60, 9)) + b"__label__other the cat\nno label\n\n")
    settings = replace(SMALL, held_out=0.0, validation=(str(path),), loss=loss, **more)
    model = trained_model(make, replace(settings, output=str(tmp_path / "m")))
    results = results_of(model, model.summary)
    Classifier.export(results)
    opened = LabelModel(tmp_path / "m.bin")
    s, words, labels, _ = parts_of(model)
    parts = list(scored(results, s, words, labels))
    chances = np.concatenate([part.chances for part in parts])
    expected = opened.probabilities(path.read_bytes().splitlines())
    np.testing.assert_allclose(chances, expected, rtol=2e-6)
    scores = evaluate_labels(opened, path)
    figures = figures_of(parts, labels, s)
    assert figures["f1_at_1"] == pytest.approx(scores.f1, abs=1e-6)
    assert figures["precision_at_1"] == pytest.approx(scores.precision, abs=1e-6)
    assert figures["recall_at_1"] == pytest.approx(scores.recall, abs=1e-6)
    assert next(iter(figures)) == "f1_at_1"


def test_loss_is_the_mean_of_minus_log_p_and_of_ova_the_sum_of_all_labels(make):
    text = b"__label__pet the cat\n__label__tool __label__pet the saw\n"
    for loss in ("softmax", "ova"):
        model = trained_model(make, replace(SMALL, held_out=0.0, loss=loss))
        s, words, labels, _ = parts_of(model)
        (part,) = scored(results_of(model, model.summary), s, words, labels, [text])
        pet, tool = (
            list(labels.words).index(label) for label in (b"__label__pet", b"__label__tool")
        )
        p = part.chances.astype(float)
        if loss == "softmax":
            expected = -np.log([p[0, pet], p[1, pet], p[1, tool]]).mean()
        else:
            of_lines = [p[0, pet], 1 - p[0, tool], p[1, pet], p[1, tool]]
            expected = -np.log(of_lines).sum() / 2
        assert figures_of([part], labels, s)["loss"] == pytest.approx(expected, abs=2e-6)


def test_figures_of_weighed_lines_are_those_of_repeated_ones(make):
    weighed = (
        b"__label__pet:3 the cat\n__label__:2 __label__tool the dog\n__label__:0 __label__pet a\n"
    )
    plain = b"__label__pet the cat\n" * 3 + b"__label__tool the dog\n" * 2
    for loss in ("softmax", "ova", "hs"):
        model = trained_model(make, replace(SMALL, held_out=0.0, loss=loss))
        s, words, labels, _ = parts_of(model)
        figures = [
            figures_of(scored(results, s, words, labels, [text]), labels, s)
            for s, text in ((replace(s, soft_labels=True), weighed), (s, plain))
            for results in [results_of(model, model.summary)]
        ]
        if loss == "ova":  # a label's weight is none of the other labels
            figures = [{**one, "loss": 0} for one in figures]
        assert figures[0] == pytest.approx(figures[1], abs=2e-6)
        assert 0 < figures[0]["f1_at_1"] < 1


def test_loss_of_soft_labels_is_their_cross_entropy(make):
    text = b"__label__pet:0.75 __label__tool:0.25 the cat\n__label__:3 __label__pet the saw\n"
    for loss in ("softmax", "ova"):
        model = trained_model(make, replace(SMALL, held_out=0.0, loss=loss))
        s, words, labels, _ = parts_of(model)
        s = replace(s, soft_labels=True)
        (part,) = scored(results_of(model, model.summary), s, words, labels, [text])
        pet, tool = (
            list(labels.words).index(label) for label in (b"__label__pet", b"__label__tool")
        )
        targets = np.zeros((2, 2))
        targets[:, pet], targets[:, tool] = (0.75, 1), (0.25, 0)
        p = part.chances.astype(float)
        terms = -targets * np.log(p)
        if loss == "ova":
            terms -= (1 - targets) * np.log(1 - p)
        expected = (terms.sum(1) @ [1, 3]) / 4
        assert figures_of([part], labels, s)["loss"] == pytest.approx(expected, abs=2e-6)


def test_lines_are_read_once_if_they_fit_and_again_if_not(make, tmp_path, monkeypatch):
    path = tmp_path / "valid"
    path.write_bytes(TEXT)
    model = trained_model(make, replace(SMALL, held_out=0.0, validation=(str(path),)))
    s, words, labels, _ = parts_of(model)
    results = results_of(model, model.summary)
    first = figures_of(scored(results, s, words, labels), labels, s)
    path.write_bytes(b"__label__tool the cat\n")
    assert figures_of(scored(results, s, words, labels), labels, s) == first
    results.memo.clear()
    monkeypatch.setattr(held_out, "KEPT_FEATURES", 2)
    for text in (TEXT, b"".join(lines_of(200))):
        path.write_bytes(text)
        parts = list(scored(results, s, words, labels))
        assert sum(len(part.best) for part in parts) == text.count(b"\n")


def test_lines_without_a_known_label_are_counted_once_and_refused_if_there_are_no_others(
    make, caplog
):
    model = trained_model(make, replace(SMALL, held_out=0.0))
    s, words, labels, _ = parts_of(model)
    results = results_of(model, model.summary)

    def figures(*texts, **more):
        return figures_of(scored(results, s, words, labels, texts), labels, s, **more)

    figures(b"__label__pet the cat\n__label__unknown the cat\n", warns=True)
    (record,) = caplog.records
    assert "1 of 2 held-out lines do not count" in record.getMessage()
    with pytest.raises(DataError, match="none of 1 held-out lines has both a label and a word"):
        figures(b"__label__unknown the cat\n")
    with pytest.raises(DataError, match="held_out: expected a line to test on, got none"):
        figures()


# --- mistakes ---------------------------------------------------------------------------------


def test_files_of_validation_are_checked_before_the_training(tmp_path, caplog):
    path, other = tmp_path / "text", tmp_path / "other"
    path.write_bytes(TEXT)
    settings = replace(SMALL, held_out=0.0, input=(str(path),), validation=(str(other),))
    with pytest.raises(DataError, match=r"validation: .*other"):
        Classifier.check(settings)
    other.write_bytes(b"")
    with pytest.raises(DataError, match=r"validation: .*other is empty"):
        Classifier.check(settings)
    other.write_bytes(b"no label here\n")
    with pytest.raises(DataError, match=r"validation: .*begins with __label__"):
        Classifier.check(settings)
    other.write_bytes(b"the cat " * 20_000 + b"__label__pet\n")
    Classifier.check(settings)  # where a first line is very long nothing is known yet
    assert not caplog.records
    (link := tmp_path / "link").symlink_to(path)
    for same in (path, link, tmp_path / "." / "link"):
        caplog.clear()
        Classifier.check(replace(settings, validation=(str(same),)))
        (record,) = caplog.records
        assert f"validation: {same} is also in the input" in record.getMessage()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("text,kind\nthe cat,pet\n", r"validation: .*valid\.csv has no column 'weight'"),
        ("text,kind,weight\nthe cat,pet,-1\n", r"validation: row 1 of column 'weight' of .*csv"),
        ("text,kind,weight\n", r"validation: .*valid\.csv: expected rows with texts and labels"),
    ],
)
def test_table_of_validation_is_checked_before_the_training(tmp_path, text, what):
    path = tmp_path / "valid.csv"
    path.write_text(text)
    settings = replace(
        SMALL, held_out=0.0, input=("train.csv",), validation=(str(path),), column="text",
        label_column="kind", weight_column="weight",
    )  # fmt: skip
    with pytest.raises(DataError, match=what):
        Classifier.check(settings)


def test_wrong_weight_in_a_validation_file_is_refused_with_its_line(tmp_path):
    path, before = tmp_path / "valid", b"__label__pet:0.5 the cat\n" * 4000
    settings = replace(SMALL, held_out=0.0, validation=(str(path),), soft_labels=True)
    path.write_bytes(b"__label__pet the cat\n__label__pet:x the cat\n")
    with pytest.raises(DataError, match=r"validation: .*valid, line 2: expected a weight from 0"):
        Classifier.check(settings)
    path.write_bytes(before + b"__label__pet:x the cat\n" + before)
    Classifier.check(settings)  # it looks at the first lines
    with pytest.raises(DataError, match=r"valid, line 4001: .* got '__label__pet:x'"):
        list(held_out_texts(settings))


@pytest.mark.parametrize(
    ("line", "is_soft", "warns"),
    [
        (b"__label__:2 __label__pet the cat\n", False, True),
        (b"__label__:2 __label__pet the cat\n", True, False),
        (b"__label__pet the cat\n", False, False),
    ],
)
def test_weights_of_validation_lines_that_are_not_read_are_warned_of(
    tmp_path, caplog, line, is_soft, warns
):
    path = tmp_path / "valid"
    path.write_bytes(line)
    settings = replace(SMALL, held_out=0.0, validation=(str(path),), soft_labels=is_soft)
    surveyor, part = Classifier.surveyor(settings), Classifier(settings).survey_part()
    part.add(block_of(b"__label__pet the cat\n__label__bird a bird\n"))
    surveyor.add(part.take())
    surveyor.result()
    assert ("'__label__:2' looks like a label with a weight" in caplog.text) is warns


def test_lines_that_all_weigh_0_are_refused(make):
    model = trained_model(make, replace(SMALL, held_out=0.0, soft_labels=True))
    s, words, labels, _ = parts_of(model)
    parts = scored(
        results_of(model, model.summary), s, words, labels, [b"__label__pet:0 the cat\n"]
    )
    with pytest.raises(DataError, match=r"a weight above 0 .*, got 0 for all 1 held-out lines"):
        figures_of(parts, labels, s)


def test_two_kinds_of_validation_lines_are_refused():
    with pytest.raises(ConfigError, match="held_out: expected 0 with validation"):
        replace(SMALL, validation=("x",)).validate(lambda name: name)


# --- calibration --------------------------------------------------------------------------------


def test_finished_model_is_calibrated_on_the_held_out_lines_as_by_the_command(
    make, tmp_path, caplog
):
    path, output = tmp_path / "valid", tmp_path / "m"
    noise = b"".join(lines_of(60, 9)).replace(b"__label__tool", b"__label__pet", 9)
    path.write_bytes(noise)
    settings = replace(
        SMALL, held_out=0.0, validation=(str(path),), calibrate=True, output=str(output)
    )
    assert Classifier.result_files(settings) == (f"{output}.bin", f"{output}.bin.json")
    model = trained_model(make, settings)
    results = results_of(model, model.summary)
    figures = Classifier.export(results)
    assert figures["files"] == [f"{output}.bin", f"{output}.bin.json"]
    assert figures["calibration_error"] < figures["uncalibrated_error"]
    calibration = LabelModel(f"{output}.bin").calibration
    assert calibration.temperature == figures["temperature"] != 1
    report = snailps.calibrate(f"{output}.bin", path)
    assert report.temperature == figures["temperature"]
    path.write_bytes(b"__label__other the cat\n")
    figures = Classifier.export(results)
    assert figures["files"] == [f"{output}.bin"]
    assert figures["not_calibrated"].startswith("held-out lines: none of its 1 lines")
    assert "is not calibrated: held-out lines: none of its 1 lines" in caplog.text


def test_calibration_counts_lines_by_their_weights(make, tmp_path):
    path, output, reports = tmp_path / "valid", tmp_path / "m", []
    lines = [*lines_of(60, 9)]
    wrong = [line.replace(b"__label__tool", b"__label__pet", 1) for line in lines[:20]]
    texts = {True: [b"__label__:3 " + line for line in wrong], False: wrong * 3}
    for soft, first in texts.items():
        path.write_bytes(b"".join([*first, *lines[20:]]))
        settings = replace(
            SMALL, held_out=0.0, validation=(str(path),), calibrate=True, output=str(output),
            soft_labels=soft,
        )  # fmt: skip
        model = trained_model(make, settings)
        reports.append(held_out.calibrated(replace(settings, bucket=1000), export_of(model)))
    assert reports[0] == pytest.approx(reports[1], rel=1e-4)
    path.write_bytes(b"__label__:0 __label__pet the cat\n")
    failed = held_out.calibrated(replace(settings, soft_labels=True), f"{output}.bin")
    assert "and a weight above 0" in failed["not_calibrated"]


def export_of(model):
    (path, *_) = Classifier.export(results_of(model, model.summary))["files"]
    return path


def test_calibration_is_refused_with_the_tree_of_a_file_that_goes_on(tmp_path):
    path, rows = tmp_path / "tree.bin", np.zeros((2, 8), np.float32)
    labels = [b"__label__a", b"__label__b"]
    header = BinHeader(dim=8, loss="hs", model="supervised")
    write_bin(path, header, [b"a", b"b"], [2, 1], [rows], [rows], labels, [2, 1])
    settings = replace(SMALL, calibrate=True, continue_from=str(path))
    with pytest.raises(ConfigError, match=r"tree\.bin: calibrate: expected false with loss hs"):
        Classifier.adopt(settings, lambda name: None)


def test_continued_classifier_is_warned_of_lines_that_it_may_have_seen(tmp_path, caplog):
    path, rows = tmp_path / "m.bin", np.zeros((2, 8), np.float32)
    header = BinHeader(dim=8, loss="softmax", model="supervised")
    write_bin(path, header, [b"a"], [2], [rows[:1]], [rows], [b"__label__a", b"__label__b"], [2, 1])
    goes_on = replace(SMALL, continue_from=str(path))
    Classifier.adopt(goes_on, {"seed": "--seed", "held_out": "--held-out"}.get)
    Classifier.adopt(replace(goes_on, held_out=0.0), lambda name: None)
    assert not caplog.text
    Classifier.adopt(goes_on, lambda name: None)
    assert "m.bin does not say which lines were held out of it" in caplog.text
    assert "(now 4)" in caplog.text


def test_a_share_that_leaves_no_line_to_train_is_refused():
    with pytest.raises(DataError, match=r"held_out: expected lines that are trained, got none: 0"):
        Classifier.summarize(replace(SMALL, held_out=0.9), WordCounter())


def test_calibration_asks_for_held_out_lines():
    with pytest.raises(
        ConfigError, match=r"calibrate: expected held_out, such as 0\.1, or, of a c"
    ):
        replace(SMALL, held_out=0.0, calibrate=True).validate(lambda name: name)
    with pytest.raises(ConfigError, match="calibrate: expected false with loss hs"):
        replace(SMALL, calibrate=True, loss="hs").validate(lambda name: name)


@pytest.mark.parametrize(
    ("given", "text", "error"),
    [
        ({"held_out": 1e-9}, TEXT, "held_out: expected a line to test on, got none: .*, or none"),
        ({}, b"__label__fish the cat\n", "validation: none of 1 held-out lines has both a label"),
        ({"soft_labels": True}, b"__label__pet:0 the cat\n", "validation: expected a weight abo"),
    ],
)
def test_lines_that_measure_nothing_are_refused_before_the_training(tmp_path, given, text, error):
    path = tmp_path / "lines.txt"
    path.write_bytes(text)
    name = "input" if "held_out" in given else "validation"
    settings = replace(SMALL, **{"held_out": 0.0, name: (str(path),), **given})
    with pytest.raises(DataError, match=f"^{error}"):
        summary_of(settings, TEXT)
    path.write_bytes(text + TEXT)
    summary_of(replace(settings, held_out=0.3 if name == "input" else 0.0), TEXT)
