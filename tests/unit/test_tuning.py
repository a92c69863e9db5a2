"""The search of a classifier's settings: what is tried, by what it is judged, how it ends."""

import itertools
import json
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from snailps.cli import autotune
from snailps.cli.main import app_for
from snailps.errors import DataError
from snailps.estimators.quantizing import shrinks_to
from snailps.models.classifier import tuning
from snailps.models.classifier.search import KEPT, TUNED, Judged, Search, Trial
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.classifier.tuning import Effort, Tuner, sampled
from snailps.vectors.fasttext_bin import BinHeader, write_bin
from snailps.vectors.label_metrics import Metric
from snailps.vectors.label_prediction import LabelModel, evaluate_labels

LABELS = 3


def write_text(path, lines, seed):
    """Lines whose label is the order of two words: single words say nothing of it."""
    rng = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as file:
        for label, *others in rng.integers(0, (LABELS, 40, 40), (lines, 3)).tolist():
            pair = [f"a{label}", f"b{label}"] if label else ["b0", "a0"]
            pair = ["x", "y"] if label == 1 else ["y", "x"] if label == 2 else pair
            file.write(f"__label__l{label} w{others[0]} {' '.join(pair)} w{others[1]}\n")
    return str(path)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    train = write_text(folder / "train.txt", 600, 1)
    return ClassifierSettings(
        input=(train,), validation=(write_text(folder / "valid.txt", 300, 2),), seed=5
    )


def trials_of(tuning):
    return [(one.number, one.epochs, one.score, dict(one.settings)) for one in tuning.trials]


def test_a_seed_gives_the_same_trials_scores_and_settings(texts):
    effort = Effort(600, 12, threads=2)
    first, again = (Tuner(texts, {}, Metric(), effort=effort).run() for _ in range(2))
    assert trials_of(first) == trials_of(again)
    assert first.settings == again.settings
    assert first.ended == "trials"
    assert len(first.trials) == 12
    other = Tuner(replace(texts, seed=6), {}, Metric(), effort=effort).run()
    assert trials_of(other) != trials_of(first)


def test_pairs_of_words_are_found_where_only_they_tell(texts):
    tuning = Tuner(texts, {}, Metric(), effort=Effort(600, 12)).run()
    assert tuning.score == 1.0
    assert tuning.settings["word_ngrams"] > 1
    of_words = [one.score for one in tuning.trials if one.settings["word_ngrams"] == 1]
    assert max(of_words) < 0.8


@pytest.mark.parametrize("loss", ["ova", "ns", "hs"])
def test_other_losses_are_tried_as_they_are_trained(texts, loss):
    fixed = {"word_ngrams": 2, "maxn": 0, "minn": 0}
    s = replace(texts, loss=loss, **fixed)
    assert Tuner(s, fixed, Metric(), effort=Effort(600, 3)).run().score > 0.9


def test_fixed_settings_keep_their_value(texts):
    fixed = {"word_ngrams": 1, "maxn": 0, "minn": 0, "dim": 24}
    tuning = Tuner(replace(texts, **fixed), fixed, Metric(), effort=Effort(600, 10)).run()
    assert all({**one.settings, **fixed} == one.settings for one in tuning.trials)
    assert len({one.settings["lr"] for one in tuning.trials}) > 2
    assert tuning.score < 0.8


@pytest.mark.parametrize("fixed", [{"maxn": 3}, {"minn": 5}, {"maxn": 0}, {"epochs": 7, "lr": 0.3}])
def test_other_settings_go_with_fixed_ones(fixed):
    search = Search(replace(ClassifierSettings(), **fixed), fixed, lines=1000, width=1)
    seen = []

    def judge(rung):
        for trial in rung:
            s = trial.settings
            assert s.maxn == 0 or 1 <= s.minn <= s.maxn
        seen.extend(rung)
        return [Judged(trial, trial.number % 7 / 7) for trial in rung]

    search.run(judge, lambda: len(seen) < 60)
    assert all(
        getattr(trial.settings, name) == value for trial in seen for name, value in fixed.items()
    )


def test_a_rung_hands_on_its_best_third_for_longer(texts):
    rungs = []

    def judge(rung):
        rungs.append(rung)
        return [Judged(trial, 1 / trial.settings.lr) for trial in rung]

    Search(texts, {}, lines=10_000, width=1).run(judge, lambda: len(rungs) < 3)
    sizes = [len(rung) for rung in rungs]
    assert sizes[1:] == [-(-size // KEPT) for size in sizes[:-1]]
    assert [rung[0].epochs for rung in rungs] == [7.0, 20.0, 60.0]
    assert rungs[2][0].is_whole
    assert not rungs[1][0].is_whole
    assert rungs[2][0].settings.lr == min(trial.settings.lr for trial in rungs[0])


def test_later_brackets_change_the_best(texts):
    rungs = []

    def judge(rung):
        rungs.append(rung)
        return [Judged(trial, None if trial.number % 2 else 0.5) for trial in rung]

    Search(texts, {}, lines=10_000, width=9).run(judge, lambda: len(rungs) < 5)
    tried = [trial.settings for trial in rungs[0]]
    assert len(rungs[0]) >= 9
    assert len(rungs[3]) == 9
    assert not set(tried) & {trial.settings for trial in rungs[3]}


def test_the_best_trial_is_trained_as_long_as_it_was_or_longer_if_that_is_not_known(texts):
    def judged(number, epochs, score):
        return Judged(Trial(number, replace(texts, epochs=30), epochs), score)

    short, longer, whole = judged(1, 3.0, 0.5), judged(2, 10.0, 0.8), judged(3, 30.0, 0.7)
    assert longer.to_train([short, longer, whole]).epochs == 10
    assert longer.to_train([short, longer]).epochs == 30
    assert whole.to_train([short, longer, whole]).epochs == 30
    assert judged(4, 0.3, 0.9).to_train([whole, judged(4, 0.3, 0.9)]).epochs == 30


def test_trials_are_judged_by_models_within_a_size(texts):
    fixed = {"dim": 16, "word_ngrams": 2, "maxn": 0, "minn": 0}
    s, sizes, effort = replace(texts, **fixed), [], Effort(600, 2, 1)

    def shrink(model, pieces):
        small = shrinks_to(23_500, 1)(model, pieces)
        sizes.append((len(model.input), len(small.input)))
        return small

    assert Tuner(s, fixed, Metric(), 0, effort, shrink).run().score > 0.5
    assert [small < whole for whole, small in sizes] == [True, True]

    def forget(model, pieces):
        return replace(model, output=np.zeros_like(model.output))

    assert Tuner(s, fixed, Metric(), 0, effort, forget).run().score < 0.5
    with pytest.raises(DataError, match=r"autotune: size: expected at least [0-9,]+ bytes"):
        Tuner(s, fixed, Metric(), 0, effort, shrinks_to(2_000, 1)).run()


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"seconds": "5"}, "seconds"),
        ({"seconds": None}, "seconds"),
        ({"trials": 1.5}, "trials"),
        ({"trials": "3"}, "trials"),
        ({"threads": 257}, "threads"),
        ({"threads": -1}, "threads"),
    ],
)
def test_an_effort_that_is_no_number_in_its_range_is_refused(values, what):
    with pytest.raises(
        DataError, match=f"^{what}: expected .*, got {next(iter(values.values()))!r}"
    ):
        Effort(**values)


@pytest.mark.parametrize("predictions", [-2, 1.5, "1"])
def test_predictions_that_are_no_number_of_labels_are_refused(texts, predictions):
    with pytest.raises(DataError, match="predictions: expected a whole number of labels"):
        Tuner(texts, {}, Metric(), predictions)


def test_a_trial_without_memory_ends_no_search(texts, monkeypatch):
    def trained(examples, settings, *args):
        if settings.word_ngrams > 1:
            raise MemoryError
        return train(examples, settings, *args)

    train = tuning.trained
    monkeypatch.setattr(tuning, "trained", trained)
    found = Tuner(texts, {}, Metric(), effort=Effort(600, 8, 2)).run()
    assert {one.score is None for one in found.trials if one.settings["word_ngrams"] > 1} == {True}
    assert found.settings["word_ngrams"] == 1
    with pytest.raises(DataError, match="a training needs more memory than there is"):
        Tuner(replace(texts, word_ngrams=2), {"word_ngrams"}, Metric(), effort=Effort(600, 2)).run()


def test_a_time_that_no_system_can_wait_is_a_limit_like_any_other(texts):
    assert Tuner(texts, {}, Metric(), effort=Effort(1e300, 1)).run().ended == "trials"


@pytest.mark.parametrize("name", ["pretrained", "continue_from"])
def test_rows_of_a_file_are_refused_before_the_search(texts, name):
    with pytest.raises(DataError, match=f"^{name}: a search starts all trials from random rows"):
        Tuner(replace(texts, **{name: "vectors.vec"}), {}, Metric())


def test_a_setting_that_is_auto_is_chosen(texts):
    automatic = replace(texts, lr=0.0, epochs=0, minn=0, maxn=-1)
    tuning = Tuner(automatic, TUNED, Metric(), effort=Effort(600, 3)).run()
    assert all(one.settings["lr"] > 0 and one.settings["epochs"] > 0 for one in tuning.trials)
    assert all(one.settings["maxn"] >= 0 for one in tuning.trials)
    assert {one.settings["dim"] for one in tuning.trials} == {automatic.dim}


def test_weights_are_refused_where_they_would_not_count(texts):
    soft = replace(texts, soft_labels=True)
    with pytest.raises(DataError, match="expected no size where texts or labels have weights"):
        Tuner(soft, {}, Metric(), shrink=shrinks_to(10_000, 1))


@pytest.mark.parametrize(
    ("lines", "more", "right"),
    [
        # All lines are alike, so every model says `a`: half of them are right.
        ("__label__a x\n__label__b x\n", {"class_weights": ("b=9",)}, 1 / 2),
        ("__label__a x\n__label__b x\n", {"class_weights": ("b=9",), "soft_labels": True}, 1 / 2),
        # One of two labels is found by a guess that is right.
        ("__label__a __label__b x\n", {}, 2 / 3),
        ("__label__a __label__b x\n", {"soft_labels": True}, 2 / 3),
        # Of a weight of 4 the guess has 3.
        ("__label__a:.75 __label__b:.25 x\n", {"soft_labels": True}, 3 / 4),
        ("__label__:3 __label__a x\n__label__b x\n", {"soft_labels": True}, 3 / 4),
    ],
)
def test_f1_of_a_trial_is_that_of_every_other_test(tmp_path, lines, more, right):
    train, valid = tmp_path / "train", tmp_path / "valid"
    train.write_text("__label__a x\n" * 180 + "__label__b x\n" * 20)
    valid.write_text(lines * 20)
    s = ClassifierSettings(
        input=(str(train),), validation=(str(valid),), dim=16, lr=0.01, epochs=4, maxn=0, **more
    )
    if "class_weights" in more:  # else all lines would be `b` by weight
        train.write_text("__label__a x\n" * 950 + "__label__b x\n" * 50)
    fixed = {"dim", "lr", "epochs", "maxn", "word_ngrams"}
    found = Tuner(s, fixed, Metric(), effort=Effort(600, 1, 1)).run()
    assert found.score == pytest.approx(right)


def alike(tmp_path):
    for name, shares in (("train", (900, 100)), ("valid", (50, 50))):
        a, b = shares
        (tmp_path / name).write_text("__label__a x\n" * a + "__label__b x\n" * b)
    paths = {"input": (str(tmp_path / "train"),), "validation": (str(tmp_path / "valid"),)}
    return ClassifierSettings(**paths, dim=16, epochs=4, maxn=0, seed=1)


def test_settings_whose_whole_training_diverges_are_not_chosen(tmp_path, monkeypatch):
    s, fixed = alike(tmp_path), {"dim", "epochs", "maxn"}
    wild = Tuner(replace(s, lr=4.0), {*fixed, "lr"}, Metric(), effort=Effort(600, 8, 1))
    with pytest.raises(DataError, match="every training diverged: give a lower lr"):
        wild.run()
    # A short trial may go well where the whole training does not: all of these have one score.
    found = Tuner(s, fixed, Metric(), effort=Effort(600, 8, 1)).run()
    assert found.settings["lr"] < 1
    assert max(one.settings["lr"] for one in found.trials if one.score == found.score) > 1
    # Of a single trial, which diverges, the rate is halved.
    first = Tuner(s, {*fixed, "word_ngrams"}, Metric(), effort=Effort(600, 1, 1)).run()
    assert first.settings["lr"] < first.trials[0].settings["lr"] / 1.9
    shares = []
    train = tuning.trained

    def trained(examples, s, epochs, pool, stop, share=1.0):
        shares.append(share)
        return train(examples, s, epochs, pool, stop, share)

    monkeypatch.setattr(tuning, "trained", trained)
    monkeypatch.setattr(tuning, "VISITS", 2000)
    Tuner(s, fixed, Metric(), effort=Effort(600, 1, 1)).run()
    assert shares[:2] == [1.0, 0.5]  # of 4,000 visits


def test_loss_that_is_large_before_the_training_does_not_end_it(tmp_path):
    labels = 200  # of which each has a loss of its own: 139 in all
    for name in ("train", "valid"):
        lines = "".join(f"__label__{i} w{i}\n" for i in range(labels))
        (tmp_path / name).write_text(lines * 2)
    paths = {"input": (str(tmp_path / "train"),), "validation": (str(tmp_path / "valid"),)}
    s = ClassifierSettings(**paths, dim=16, epochs=4, maxn=0, loss="ova", lr=0.1)
    fixed = {"dim", "epochs", "maxn", "lr"}
    assert Tuner(s, fixed, Metric(), effort=Effort(600, 1, 1)).run().score is not None


@pytest.mark.parametrize("metric", ["f1", "f1:l1"])
def test_f1_of_all_labels_is_refused_because_all_trials_have_it(texts, metric):
    with pytest.raises(DataError, match=r"\(-k\) with f1, got -1: where each line gets all labels"):
        Tuner(texts, {}, Metric.of(metric), -1)
    with pytest.raises(
        DataError, match=r"expected fewer predictions .* than the input has labels, 3"
    ):
        Tuner(texts, {}, Metric.of(metric), LABELS, Effort(600, 1)).run()
    Tuner(texts, {}, Metric.of("precision-at-recall:.5"), -1)


def test_model_that_is_too_small_to_be_quantised_counts_as_it_is(texts):
    fixed = {"dim": 16, "word_ngrams": 1, "maxn": 0, "minn": 0}
    s, effort = replace(texts, **fixed), Effort(600, 1, 1)
    plain = Tuner(s, fixed, Metric(), 0, effort).run().score
    assert Tuner(s, fixed, Metric(), 0, effort, shrinks_to(100_000, 1)).run().score == plain
    with pytest.raises(DataError, match=r"autotune: size: the model has .* rows"):
        Tuner(s, fixed, Metric(), 0, effort, shrinks_to(1_000, 1)).run()


def test_few_lines_are_gone_over_more_often_and_many_in_part():
    def first_epochs(lines):
        rungs = []
        Search(ClassifierSettings(), {}, lines, 1).run(
            lambda rung: rungs.append(rung) or [], lambda: not rungs
        )
        return rungs[0][0].epochs, rungs[0][0].settings.epochs

    assert first_epochs(100) == (11, 100)
    assert first_epochs(10_000_000) == (4 / 9, 4)


def test_an_interrupt_keeps_the_best(texts):
    tuner = Tuner(texts, {}, Metric(), effort=Effort(600, threads=2))
    over = threading.Event()

    def interrupt():
        while not over.wait(0.01):
            if tuner.progress.trials >= 5:
                tuner.interrupt()
                return

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        tuning = tuner.run()
    finally:
        over.set()
        thread.join()
    assert tuning.ended == "interrupted"
    assert tuning.score == max(one.score for one in tuning.trials)


def test_an_interrupt_before_the_first_trial_says_that_nothing_is_trained(
    texts, trainings, monkeypatch, capsys
):
    def ended(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "trained", ended)
    with pytest.raises(KeyboardInterrupt):
        autotune.command([*texts.input], [*texts.validation], "m", trials=1)
    assert "interrupted before a trial was completed: nothing is trained" in capsys.readouterr().err
    assert not trainings


def test_no_trial_in_time_is_an_error(texts):
    with pytest.raises(DataError, match=r"no trial was completed in 0\.0001 s: give more time"):
        Tuner(texts, {}, Metric(), effort=Effort(0.0001)).run()


def test_progress_says_how_long_the_final_training_takes(texts):
    tuner, effort = Tuner(texts, {}, Metric(), effort=Effort(600, 3)), Effort(600, 3)
    assert tuner.progress.line(effort).startswith("0 of 3 trials, 6")
    tuner.run()
    tuner.progress.final_s = 7.4
    line = tuner.progress.line(effort)
    assert line.startswith("3 of 3 trials, best ")
    assert line.endswith(" s left at most, then the final training of some 7 s")


def test_time_ends_a_search(texts, monkeypatch):
    clock = SimpleNamespace(monotonic=partial(next, itertools.count()))  # a second a look
    monkeypatch.setattr(tuning, "time", clock)
    ended = Tuner(texts, {}, Metric(), effort=Effort(60, threads=1)).run()
    assert ended.ended == "time"
    assert ended.trials


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"validation": ()}, "give validation"),
        ({"label": "__other__"}, "validation: .* no word that begins with __other__"),
    ],
)
def test_texts_that_cannot_judge_are_refused(texts, settings, text):
    with pytest.raises(DataError, match=text):
        Tuner(replace(texts, **settings), {}, Metric(), effort=Effort(60, 2)).run()


def test_validation_without_known_labels_is_refused(texts, tmp_path):
    path = tmp_path / "other.txt"
    path.write_text("__label__unknown x y\n")
    with pytest.raises(DataError, match="none of the 1 lines of validation has both"):
        Tuner(replace(texts, validation=(str(path),)), {}, Metric(), effort=Effort(60, 2)).run()


def test_a_share_of_the_input_judges_without_a_file(texts):
    s = replace(texts, validation=(), held_out=0.3)
    assert Tuner(s, {}, Metric(), effort=Effort(600, 8)).run().score > 0.9


@pytest.mark.parametrize(
    "values", [{"seconds": 0}, {"seconds": float("nan")}, {"trials": -1}, {"threads": -1}]
)
def test_an_effort_out_of_range_is_refused(values):
    with pytest.raises(DataError, match=next(iter(values))):
        Effort(**values)


def test_a_long_text_is_sampled_evenly():
    pieces = [bytes([number]) * 10 for number in range(100)]
    kept = sampled(pieces, 260)
    assert [piece[0] for piece in kept] == list(range(0, 100, 4))
    assert sampled(pieces, 1000) == pieces


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("f1", Metric()),
        ("f1:__label__a:b", Metric("f1", 0.0, "__label__a:b")),
        ("precision-at-recall:0.3", Metric("precision-at-recall", 0.3)),
        ("recall-at-precision:.9:__label__a", Metric("recall-at-precision", 0.9, "__label__a")),
    ],
)
def test_metrics_are_read_and_written(text, metric):
    assert Metric.of(text) == metric
    assert Metric.of(str(metric)) == metric


@pytest.mark.parametrize("metric", ["f1", "precision-at-recall:0.5"])
def test_label_of_a_metric_may_lack_its_prefix(model, metric):
    opened = LabelModel(model)
    names = [label.decode() for label in opened.labels]
    text = b"".join(f"{name} x y\n".encode() for name in names for _ in range(3))

    def value(label):
        measured = Metric.of(f"{metric}:{label}")
        return measured.value(names, opened.answers([text], -1, "text"))

    assert value("l1") == value("__label__l1")
    with pytest.raises(DataError, match=r"metric: the input has no label 'l99'"):
        value("l99")


@pytest.mark.parametrize(
    ("metric", "line", "error"),
    [
        ("f1:l11", "__label__l1 x", r"^metric: the input has no label 'l11'; did you mean 'l1'"),
        ("f1", "__label__new x", "^none of the 1 lines of validation has both a label and a w"),
    ],
)
def test_what_no_trial_can_measure_is_refused_before_the_first(
    texts, tmp_path, monkeypatch, metric, line, error
):
    monkeypatch.setattr(tuning, "trained", None)
    (tmp_path / "valid.txt").write_text(f"{line}\n")
    base = replace(texts, validation=(str(tmp_path / "valid.txt"),), maxn=0, minn=0)
    with pytest.raises(DataError, match=error):
        Tuner(base, {"maxn", "minn"}, Metric.of(metric), effort=Effort(600, 1)).run()


def test_validation_lines_that_all_weigh_0_cannot_judge(model):
    opened = LabelModel(model)
    names = [label.decode() for label in opened.labels]
    lines = opened.reading(b"__label__", weighed=True).answers([b"__label__l1:0 x\n"], 1, "text")
    with pytest.raises(DataError, match="expected a weight above 0"):
        Metric.of("f1").value(names, lines)


@pytest.mark.parametrize(
    "text", ["", "f2", "precision-at-recall", "precision-at-recall:30", "recall-at-precision:x:l"]
)
def test_other_metrics_are_refused(text):
    with pytest.raises(DataError, match="metric: expected f1"):
        Metric.of(text)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of random rows, which mistakes most labels."""
    words = [b"x", b"y", b"w1", b"w2", b"w3"]
    rng = np.random.default_rng(3)
    rows, outputs = (rng.normal(size=(count, 4)).astype(np.float32) for count in (5, LABELS))
    labels = [f"__label__l{number}".encode() for number in range(LABELS)]
    path = tmp_path_factory.mktemp("model") / "model.bin"
    header = BinHeader(dim=4, loss="softmax", model="supervised")
    write_bin(path, header, words, [5, 4, 3, 2, 1], [rows], [outputs], labels, [3, 2, 1])
    return path


def test_f1_of_small_weights_is_that_of_their_shares(model):
    opened = LabelModel(model)
    names = [label.decode() for label in opened.labels]
    best = opened.predict("x")[0][0].label
    other = next(name for name in names if name != best)
    reader = opened.reading(b"__label__", weighed=True)
    text = f"{best} __label__:0.03 x\n{other} __label__:0.01 x\n".encode()
    assert Metric.of("f1").value(names, reader.answers([text], 1, "text")) == pytest.approx(0.75)


def test_texts_with_weights_of_a_column_are_searched_as_without_if_all_are_one(texts, tmp_path):
    tables = {}
    for name, (source,) in (("input", texts.input), ("validation", texts.validation)):
        rows = [line.split(" ", 1) for line in Path(source).read_text().splitlines()]
        table = "w,l,t\n" + "".join(f"1,{label[9:]},{text}\n" for label, text in rows)
        (tmp_path / f"{name}.csv").write_text(table)
        tables[name] = (f"{tmp_path}/{name}.csv",)
    settings = ClassifierSettings(**tables, column="t", label_column="l", seed=5)
    plain, weighed = (
        Tuner(s, {}, Metric(), effort=Effort(600, 4)).run()
        for s in (settings, replace(settings, weight_column="w"))
    )
    assert trials_of(plain) == trials_of(weighed)


def test_figures_are_those_of_the_test_command(texts, model):
    opened, (path,) = LabelModel(model), texts.validation
    names = [label.decode() for label in opened.labels]
    scores = evaluate_labels(opened, path, recall=0.6)

    def value(text, k):
        return Metric.of(text).value(names, opened.answers([Path(path).read_bytes()], k, path))

    assert value("f1", 1) == pytest.approx(scores.f1)
    for score in scores.labels:
        label = score.label.decode()
        assert value(f"f1:{label}", 1) == pytest.approx(score.f1)
        at_recall = value(f"precision-at-recall:0.6:{label}", -1)
        assert at_recall == pytest.approx(score.precision_at_recall)
    assert value("precision-at-recall:0.6", -1) == pytest.approx(scores.precision_at_recall)
    assert value("recall-at-precision:0.01", -1) == 1.0
    with pytest.raises(DataError, match="metric: the input has no label '__label__z'"):
        value("f1:__label__z", 1)


@pytest.mark.parametrize(
    ("setting", "is_validated"),
    [("seed=5", False), ("stop_after=2", True), ("calibrate=true", True)],
)
def test_final_training_has_the_validation_lines_where_a_setting_needs_them(
    texts, setting, is_validated, tmp_path, monkeypatch
):
    trained = {}
    monkeypatch.setattr(autotune, "train", lambda name, options: trained.update(options) or 0)
    autotune.command(
        [*texts.input], [*texts.validation], f"{tmp_path}/m", trials=1, sets=[setting, "dim=16"]
    )
    assert trained.get("validation") == ([*texts.validation] if is_validated else None)
    sets = [setting, "dim=16", "held_out=0.2"]
    autotune.command([*texts.input], None, f"{tmp_path}/m", trials=1, sets=sets)
    assert ("held_out=0.2" in trained["sets"]) == is_validated
    assert trained.get("held_out") == (None if is_validated else "0")


@pytest.fixture
def trainings(monkeypatch):
    """Options of each final training, which is not run."""
    trained = []
    monkeypatch.setattr(autotune, "train", lambda name, options: trained.append(options) or 0)
    return trained


def test_final_training_has_what_was_chosen_where_a_setting_is_auto(texts, trainings, tmp_path):
    sets = ["epochs=auto", "lr=auto", "maxn=auto", "dim=16"]
    autotune.command([*texts.input], [*texts.validation], f"{tmp_path}/m", trials=1, sets=sets)
    (options,) = trainings
    assert options["sets"] == ["dim=16"]
    assert int(options["epochs"]) > 0
    assert float(options["lr"]) > 0
    assert int(options["maxn"]) >= 0


def test_trials_read_the_environment_like_the_final_training(
    texts, trainings, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("SNAILPS_DIM", "48")
    autotune.command([*texts.input], [*texts.validation], f"{tmp_path}/m", trials=1, as_json=True)
    tuning = json.loads(capsys.readouterr().out)
    assert [one["settings"]["dim"] for one in tuning["trials"]] == [48]
    assert "dim" not in trainings[0]


def test_output_is_checked_before_the_search_wherever_it_is_set(texts, trainings, tmp_path):
    def tune(output, *sets):
        return CliRunner().invoke(
            app_for(["autotune"]),
            ["autotune", "--input", *texts.input, "--validation", *texts.validation, "--output",
             str(output), "--trials", "1", *(word for text in sets for word in ("--set", text))],
            standalone_mode=False,
        ).exception  # fmt: skip

    (tmp_path / "other.bin").write_bytes(b"a model")
    assert "other.bin exists" in str(tune(tmp_path / "m", f"output={tmp_path}/other"))
    assert "a folder is needed there" in str(tune(tmp_path / "other.bin" / "m"))
    assert not trainings
    assert not [*tmp_path.glob("m*")]


def test_command_refuses_the_file_of_a_cluster():
    """Trials run on this machine: a file that names others is never ignored."""
    done = CliRunner().invoke(app_for(["autotune"]), ["autotune", "-c", "cluster.conf"])
    assert done.exit_code == 2
    assert "-c" in done.stderr
