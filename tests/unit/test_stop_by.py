"""`stop_by`: which figure of the tests after each epoch decides, for each model that has them."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from snailps.data._labelled import Lines
from snailps.data._text import WordCounter
from snailps.data.vocabulary import Vocabulary
from snailps.errors import ConfigError, DataError
from snailps.master.job.epoch_figures import EpochFigures
from snailps.models.classifier import Classifier
from snailps.models.classifier.held_out import Scored, figures_of
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.embeddings.mf import MatrixFactorization
from snailps.models.embeddings.settings import MfSettings
from snailps.models.mlp import Mlp, MlpSettings
from snailps.models.sparse.linear import Linear, LinearSettings
from snailps.models.sparse.metrics import Classes, Counts, Real, YesNo
from snailps.models.stopping import decided_by, figure_of
from snailps.vectors.label_metrics import Metric
from snailps.vectors.label_scores import Ranking

LABELS = ("__label__ham", "__label__spam")


def part_of(truth, chances, **weights):
    """Lines of one word and one label, with the probabilities of both labels."""
    ones = np.arange(len(truth) + 1, dtype=np.int64)
    none = np.empty(0, np.float32)
    more = {"line_weights": none, "label_weights": none, "rests": none, **weights}
    lines = Lines(ones, np.zeros(len(truth), np.int32), ones, np.int32(truth), 0, 0, **more)
    chances = np.float32(chances)
    return Scored(lines, chances.argmax(1).astype(np.int32), chances)


def figures(settings, *parts):
    words = [label.encode() for label in LABELS]
    vocabulary = Vocabulary(words, np.array([7, 1]), 8)
    return figures_of(iter(parts), vocabulary, replace(settings, validation=("v",)))


# Seven of eight are ham; one is spam, which the model gives .4, and one ham gets .6.
TRUTH = [0] * 7 + [1]
CHANCES = [[0.9, 0.1]] * 6 + [[0.4, 0.6], [0.6, 0.4]]


@pytest.mark.parametrize(
    ("stop_by", "name", "value"),
    [
        ("", "f1_at_1", 6 / 8),
        ("f1", "f1_at_1", 6 / 8),
        ("accuracy", "precision_at_1", 6 / 8),
        # ham: 6 of 7 guesses and of 7 lines; spam: none.
        ("macro-f1", "macro_f1_at_1", (6 / 7 + 0) / 2),
        ("f1:spam", "f1:spam", 0.0),
        ("f1:__label__ham", "f1:__label__ham", 6 / 7),
        # At a recall of 1 the threshold is .4: two lines have it.
        ("precision-at-recall:1:spam", "precision-at-recall:1:spam", 1 / 2),
        ("recall-at-precision:.9:ham", "recall-at-precision:.9:ham", 6 / 7),
        ("loss", "loss", -(6 * np.log(0.9) + np.log(0.4) + np.log(0.4)) / 8),
    ],
)
def test_figures_of_a_classifier_that_may_decide_are_those_by_hand(stop_by, name, value):
    s = ClassifierSettings(held_out=0.1, stop_after=2, stop_by=stop_by)
    half = len(TRUTH) // 2
    parts = part_of(TRUTH[:half], CHANCES[:half]), part_of(TRUTH[half:], CHANCES[half:])
    found = figures(replace(s, held_out=0.0), *parts)
    assert found[name] == pytest.approx(value, abs=1e-6)
    validation = decided_by(
        stop_by, {stop_by: (name, "higher")} if stop_by else {"f1": (name, "higher")},
        lambda results: found, 2,
    )  # fmt: skip
    assert next(iter(validation.test(None))) == name
    assert Classifier.validation(s).better == ("lower" if stop_by == "loss" else "higher")


def test_weights_count_in_the_figures_that_read_them():
    weights = {"line_weights": np.float32([1] * 7 + [3])}
    s = ClassifierSettings(stop_by="macro-f1", stop_after=1, soft_labels=True)
    found = figures(s, part_of(TRUTH, CHANCES, **weights))
    assert found["precision_at_1"] == pytest.approx(6 / 10)
    # ham: 6 of 9 weights that are guessed, and 6 of 7 that are there.
    assert found["macro_f1_at_1"] == pytest.approx((2 * 6 / (9 + 7)) / 2, abs=1e-6)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        # Spam of weight 3 at .4, above it a ham of weight 1.
        ("precision-at-recall:1:spam", 3 / 4),
        # Six hams at .9; then spam of weight 3 at .6, and the last ham.
        ("recall-at-precision:.9:ham", 6 / 7),
        ("precision-at-recall:.9:ham", 7 / 10),
        # All guesses: 6 right at .9, a 1 and a 3 wrong at .6, both right at .4.
        ("precision-at-recall:1", 10 / 14),
        ("recall-at-precision:.7", 1.0),
        ("recall-at-precision:.8", 6 / 10),
    ],
)
def test_weights_count_at_a_recall_and_a_precision(metric, value):
    weights = {"line_weights": np.float32([1] * 7 + [3])}
    s = ClassifierSettings(stop_by=metric, stop_after=1, held_out=0.1, soft_labels=True)
    s.validate(lambda name: name)
    assert figures(replace(s, held_out=0.0), part_of(TRUTH, CHANCES, **weights))[
        metric
    ] == pytest.approx(value, abs=1e-6)


METRICS = [
    f"{name}:{level}{label}"
    for name in ("precision-at-recall", "recall-at-precision")
    for level in (0.3, 0.5, 0.7, 1.0)
    for label in ("", ":l1")
]


@pytest.mark.parametrize("unit", [1.0, 1 / 8, 0.1])
def test_weight_of_n_is_the_line_n_times(unit):
    rng = np.random.default_rng(3)
    truth, times = rng.integers(0, 3, 80), rng.integers(0, 4, 80)
    chances = (rng.integers(1, 20, (80, 3)) / 20).astype(np.float32)  # many are equal
    names = [f"l{number}" for number in range(3)]

    def answers(truth, chances, **weights):
        lines = part_of(truth, chances, **weights).lines
        order = np.argsort(-chances, axis=1, kind="stable").astype(np.int32)
        return [(lines, (order, np.take_along_axis(chances, order, 1)))]

    def thresholds(truth, chances, **weights):
        ranked = Ranking(3)
        ranked.add(part_of(truth, chances, **weights).lines, chances)
        ranked.again()
        ranked.add(part_of(truth, chances, **weights).lines, chances)
        found = [
            *ranked.thresholds([b"a", b"b", b"c"], precision=0.4),
            *ranked.thresholds([b"a", b"b", b"c"], recall=0.5),
        ]
        found.sort(key=lambda one: one.label)
        return found, np.hstack((*ranked.of_all(0.5), *ranked.of_labels(0.5)))

    weighed = {"line_weights": np.float32(times * unit)}
    often = truth.repeat(times), chances.repeat(times, axis=0)
    # float32 weights are a share of 2^-24 off, and shares of their sums at most twice that.
    bound = 0.0 if unit != 0.1 else 2.0**-23
    for metric in map(Metric.of, METRICS):
        value = metric.value(names, answers(truth, chances, **weighed))
        assert value == pytest.approx(metric.value(names, answers(*often)), rel=bound, abs=0)
    by_weight, curves = thresholds(truth, chances, **weighed)
    by_lines, curves_of_lines = thresholds(*often)
    np.testing.assert_allclose(curves, curves_of_lines, rtol=bound or 1e-14)
    for one, other in zip(by_weight, by_lines, strict=True):
        assert one.threshold == other.threshold
        assert one.precision == pytest.approx(other.precision, rel=bound, abs=0)
        assert one.recall == pytest.approx(other.recall, rel=bound, abs=0)
    of_label = {
        name: int((truth == number).sum()) for number, name in enumerate((b"a", b"b", b"c"))
    }
    assert {one.label: one.lines for one in by_weight} == of_label
    for one in by_weight:
        assert one.predicted == (chances[:, b"abc".index(one.label)] >= one.threshold).sum()


def test_rare_label_is_learnt_on_where_it_decides():
    """What a report of spam showed: accuracy is best before the model knows that there is spam."""
    epochs = [([[0.9, 0.1]] * 8, 7 / 8), (CHANCES, 6 / 8), ([[0.4, 0.6]] * 8, 1 / 8)]
    best = {}
    for by in ("f1", "f1:spam"):
        tests = EpochFigures(stop_after=3)
        s = ClassifierSettings(held_out=0.1, stop_after=3, stop_by=by)
        for number, (chances, _) in enumerate(epochs, 1):
            found = figures(replace(s, held_out=0.0), part_of(TRUTH, chances))
            name, better = figure_of(by, {by: ("f1_at_1" if by == "f1" else by, "higher")})
            assert better == "higher"
            tests.add({"epoch": number, name: found[name], **found}, "", number / 3)
        best[by] = tests.best_test["epoch"]
    assert best == {"f1": 1, "f1:spam": 3}


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"stop_by": "f2", "stop_after": 1, "held_out": 0.1}, "stop_by: expected f1, .*got 'f2'"),
        ({"stop_by": "f1", "held_out": 0.1}, "stop_by: expected stop_after as well"),
        ({"stop_by": "f1", "stop_after": 1}, "stop_after: expected held_out"),
        ({"stop_by": "macro-f1:x", "stop_after": 1, "held_out": 0.1}, "stop_by: expected f1"),
        ({"stop_by": "precision-at-recall:2", "stop_after": 1, "held_out": 0.1}, "stop_by: expec"),
    ],
)
def test_what_a_classifier_cannot_stop_by_is_refused(settings, error):
    with pytest.raises(ConfigError, match=error):
        ClassifierSettings(**settings).validate(lambda name: name)


@pytest.mark.parametrize("of_one", ["f1", "precision-at-recall:.5", "recall-at-precision:.5"])
@pytest.mark.parametrize(
    ("label", "error"),
    [
        # In the form in which the label is given: as in memory, or as in a file.
        ("hm", r"no label 'hm'; did you mean 'ham'\. It has 3: .*'ham'.*'salt water'"),
        ("__label__hm", r"no label '__label__hm'; did you mean '__label__ham'\. It has 3: '__la"),
        ("eggs", r"no label 'eggs'\. It has 3: "),
        ("ham", None),
        ("salt water", None),
        ("salt%20%water", None),
        ("__label__spam", None),
    ],
)
def test_label_that_the_text_lacks_is_refused_before_the_training(tmp_path, of_one, label, error):
    path = tmp_path / "valid.txt"
    path.write_bytes(b"__label__ham egg\n")
    s = ClassifierSettings(stop_by=f"{of_one}:{label}", stop_after=1, validation=(str(path),))
    surveyor = Classifier.surveyor(s)
    counter = WordCounter()
    counter.count(b"__label__ham egg\n__label__spam tin egg\n__label__salt%20%water sea egg\n" * 9)
    surveyor.add(bytes(8) + counter.dump())
    with pytest.raises(DataError, match=f"^stop_by: .*{error}") if error else nullcontext():
        surveyor.result()


@pytest.mark.parametrize(
    ("judge", "names"),
    [
        (YesNo, {"loss": "lower", "accuracy": "higher", "auc": "higher"}),
        (Real, {"loss": "lower", "rmse": "lower", "mae": "lower"}),
        (Counts, {"loss": "lower", "rmse": "lower", "mae": "lower"}),
        (Classes, {"loss": "lower", "accuracy": "higher"}),
    ],
)
def test_figures_that_compare_epochs_are_those_that_a_judge_has(judge, names):
    made = judge()
    scores = np.float64([[1.0], [-1.0], [0.5]]) if judge is not Classes else np.eye(3)
    made.add(np.float64([1, 0, 0]), scores)
    assert {name: better for name, (_, better) in judge.compared.items()} == names
    assert {name for name, _ in judge.compared.values()} <= made.figures().keys()
    loss, _ = judge.compared["loss"]
    assert next(name for name in made.figures() if name != "examples") == loss


@pytest.mark.parametrize(
    ("cls", "settings", "names"),
    [
        (Linear, LinearSettings(held_out=0.1), ("loss", "accuracy", "auc")),
        (Mlp, MlpSettings(validation=("v",)), ("accuracy", "loss")),
        (MatrixFactorization, MfSettings(held_out=0.1, loss="squared"), ("rmse", "loss")),
        (MatrixFactorization, MfSettings(held_out=0.1, loss="als", top=5), ("ndcg", "recall")),
    ],
)
def test_every_model_with_stop_after_takes_its_figures_and_refuses_others(cls, settings, names):
    for name in names:
        validation = cls.validation(replace(settings, stop_after=2, stop_by=name))
        lower = name in ("loss", "rmse", "mae")
        assert validation.better == ("lower" if lower else "higher")
    with pytest.raises(ConfigError, match="stop_by: expected a figure of this model's tests, "):
        cls.validation(replace(settings, stop_after=2, stop_by="macro-f1"))
    with pytest.raises(ConfigError, match="stop_by: expected stop_after as well"):
        replace(settings, stop_by=names[0]).validate(lambda name: name)


def test_figure_that_cannot_be_computed_ends_the_job_with_its_name():
    validation = decided_by("auc", YesNo.compared, lambda results: {"log_loss": 0.5}, 1)
    with pytest.raises(DataError, match="stop_by: the lines to test on have no auc"):
        validation.test(None)
    usual = decided_by("", YesNo.compared, lambda results: {"auc": 0.9, "log_loss": 0.5}, 1)
    assert [*usual.test(None)] == ["log_loss", "auc"]
    assert usual.better == "lower"


@pytest.mark.parametrize("text", ["macro-f1", "accuracy", "f1:a:b", "recall-at-precision:0.5:x"])
def test_metric_is_read_and_written_alike(text):
    assert str(Metric.of(text)) == text
