"""Weights of a classifier's lines, labels and classes, from a file to a model's probabilities."""

from dataclasses import replace

import numpy as np
import pytest
from connected import block_of
from emulated import trained

from snailps.config import RawConfig
from snailps.data._labelled import NO_WEIGHTS, LineReader, Lines
from snailps.errors import ConfigError, DataError
from snailps.models.class_weights import balanced, class_weights_in
from snailps.models.classifier.lines import MEAN_STEPS, stepped, steps_of
from snailps.models.classifier.model import Classifier, unpack_summary
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.classifier.weights import (
    UNIT,
    LabelSums,
    factors_in,
    weighed,
    weights_of_lines,
)
from snailps.vectors.label_prediction import LabelModel

SOFT = ClassifierSettings(dim=8, soft_labels=True)
THIRDS = b"__label__x:0.75 __label__y:0.25 a\n"


def learned(path, text, ending="txt", workers=1, **settings):
    """Probability of the first label, by name, for the text "a", after a whole training."""
    source = path / f"text.{ending}"
    source.write_bytes(text)
    job = {
        "worker_class": "snailps.models.classifier:Classifier", "input": str(source), "dim": "4",
        "output": str(path / "m"), "epochs": "30", "lr": "0.5", "maxn": "0", **settings,
    }  # fmt: skip
    with trained(job, workers) as (cls, results):
        cls.export(results)
    model = LabelModel(path / "m.bin")
    (row,) = model.probabilities(["a"])
    return dict(zip(model.labels, row.tolist(), strict=True))[min(model.labels)]


PLAIN = b"__label__x a\n" * 3 + b"__label__y a\n"
CSV = b"text,label,weight\n" + b"a,x,3\na,y,1\n" * 100


@pytest.mark.parametrize(
    ("text", "settings", "want"),
    [
        (PLAIN * 50, {}, 0.75),
        (THIRDS * 200, {"soft_labels": "true"}, 0.75),
        (b"__label__x:3 a\n__label__y:1 a\n" * 100, {"soft_labels": "true"}, 0.75),
        (b"__label__:3 __label__x a\n__label__y a\n" * 100, {"soft_labels": "true"}, 0.75),
        (b"__label__:0 __label__y a\n" * 100 + PLAIN * 50, {"soft_labels": "true"}, 0.75),
        (CSV, {"column": "text", "label_column": "label", "weight_column": "weight"}, 0.75),
        (PLAIN * 50, {"class_weights": "balanced"}, 0.5),
        (PLAIN * 50, {"class_weights": "y=9"}, 0.25),
        (PLAIN * 50, {"class_weights": "__label__x=2, y=2"}, 0.75),
        (THIRDS * 200, {"soft_labels": "true", "class_weights": "balanced"}, 0.5),
    ],
)
@pytest.mark.parametrize("loss", ["softmax", "ova", "hs"])
def test_weights_give_the_probabilities_that_they_say(tmp_path, text, settings, want, loss):
    """With `ova` a class weight multiplies the yes of a label alone: 1/2 of 3/4 : 1/4 is 2 : 1."""
    ending = "csv" if b"," in text else "txt"
    odds = {"__label__x=2, y=2": 6.0, "balanced": 2.0}.get(settings.get("class_weights", ""))
    if loss == "ova" and odds:
        want = odds / (1 + odds)
    if loss == "ova" and settings.get("class_weights") == "y=9":
        want = 0.75
    assert learned(tmp_path, text, ending, loss=loss, **settings) == pytest.approx(want, abs=0.03)


@pytest.mark.parametrize(
    ("plain", "weighed_text", "settings"),
    [
        (PLAIN * 40, b"__label__x:3 a\n__label__y a\n" * 40, {"soft_labels": "true"}),
        (PLAIN * 40, b"__label__x:0.75 __label__y:0.25 a\n" * 160, {"soft_labels": "true"}),
        (
            PLAIN * 40,
            b"text,label,weight\n" + b"a,x,3\na,y,1\n" * 40,
            {"column": "text", "label_column": "label", "weight_column": "weight"},
        ),
    ],
)
def test_negative_sampling_with_weights_learns_what_repeated_lines_do(
    tmp_path, plain, weighed_text, settings
):
    ending = "csv" if b"," in weighed_text else "txt"
    want = learned(tmp_path, plain, loss="ns")
    assert learned(tmp_path, weighed_text, ending, loss="ns", **settings) == pytest.approx(
        want, abs=0.03
    )


@pytest.mark.parametrize("consistency", ["async", "ssp", "bsp"])
@pytest.mark.parametrize("loss", ["softmax", "ova"])
def test_three_workers_learn_the_same_probabilities(tmp_path, consistency, loss):
    settings = {"soft_labels": "true", "loss": loss, "consistency": consistency}
    text = b"__label__:2 __label__x:0.75 __label__y:0.25 a\n" * 300
    got = learned(tmp_path, text, workers=3, block_bytes="2000", **settings)
    assert got == pytest.approx(0.75, abs=0.03)


def test_steps_of_bsp_have_the_same_bits_whoever_trains_them(tmp_path):
    text = b"__label__x:0.75 __label__y:3 a b\n__label__:2 __label__y b\n" * 100
    settings = {
        "soft_labels": "true", "class_weights": "balanced", "consistency": "bsp",
        "block_bytes": "500", "epochs": "3",
    }  # fmt: skip
    files = []
    for workers in (1, 3):
        learned(tmp_path, text, workers=workers, **settings)
        files.append((tmp_path / "m.bin").read_bytes())
    assert files[0] == files[1]


def test_weights_are_off_unless_they_are_asked_for(tmp_path):
    """Labels have colons themselves: those of a column too, beside weights of lines."""
    learned(tmp_path, b"__label__a:0.5 a\n__label__b:0.5 a\n")
    assert LabelModel(tmp_path / "m.bin").labels == [b"__label__a:0.5", b"__label__b:0.5"]
    columns = {"column": "text", "label_column": "label", "weight_column": "weight"}
    learned(tmp_path, b"text,label,weight\na,p:80,3\na,p:,1\n", "csv", **columns)
    assert LabelModel(tmp_path / "m.bin").labels == [b"__label__p:", b"__label__p:80"]
    learned(tmp_path, b"text,label,weight\na,p:80,3\na,q:1,1\n", "csv", soft_labels="1", **columns)
    assert LabelModel(tmp_path / "m.bin").labels == [b"__label__p", b"__label__q"]


@pytest.mark.parametrize("number", ["-1", "nan", "1e7", "", "high"])
def test_column_of_weights_names_the_row_that_has_none(tmp_path, number):
    text = f"text,label,weight\na,x,1\na,y,{number}\n".encode()
    with pytest.raises(DataError, match=r"row 2 of column 'weight' of .*text\.csv.*(0 to|missing)"):
        learned(tmp_path, text, "csv", column="text", label_column="label", weight_column="weight")


@pytest.mark.parametrize("label", ["x:-2", "x:high"])
def test_wrong_weight_of_a_label_in_a_table_is_refused_with_its_row(tmp_path, label):
    text = f"text,label\na,x:2\na,{label}\n".encode()
    how = {"column": "text", "label_column": "label", "soft_labels": "true"}
    with pytest.raises(DataError, match=r"row 2 of column 'label' of .*: expected a weight from 0"):
        learned(tmp_path, text, "csv", **how)


def test_survey_names_file_and_line_of_a_wrong_weight(tmp_path):
    text = b"__label__x:0.5 a\n" * 30 + b"__label__x:-2 b\n"
    for held_out in ("0", "0.3", "0.7"):  # a line on either side
        with pytest.raises(DataError, match=r"text\.txt, line 31: expected a weight from 0 to"):
            learned(tmp_path, text, soft_labels="true", block_bytes="100", held_out=held_out)


def surveyed(texts, settings=SOFT):
    surveyor = Classifier.surveyor(settings)
    for text in texts:
        part = Classifier(settings).survey_part()
        part.add(block_of(text))
        taken = part.take()
        assert len(taken) <= part.size_bytes + len(text) * 64
        surveyor.add(taken)
    return surveyor.result()


def test_survey_counts_labels_without_their_weights():
    words, labels = unpack_summary(
        surveyed([b"__label__x:0.1 __label__:3 a\n__label__x:0.2 a b\n"])
    )
    assert labels.words == [b"__label__x"]
    assert labels.counts.tolist() == [2]
    assert words.words == [b"</s>", b"a", b"b"]
    assert words.tokens == 7


def test_balanced_is_by_the_sum_of_weights_and_the_same_in_any_order():
    texts = [b"__label__x:0.1 a\n__label__y b\n", b"__label__:0.3 __label__x:3 __label__y:0 c\n"]
    settings = replace(SOFT, class_weights=("balanced",))
    factors, _ = factors_in(surveyed(texts, settings))
    again, _ = factors_in(surveyed(texts[::-1], settings))
    np.testing.assert_array_equal(factors, again)
    np.testing.assert_allclose(factors, [2 / (2 * 1.0), 2 / (2 * 1.0)], rtol=1e-6)
    plain = replace(SOFT, soft_labels=False, class_weights=("balanced",))
    factors, _ = factors_in(surveyed([PLAIN], plain))
    np.testing.assert_allclose(factors, [4 / (2 * 3), 4 / (2 * 1)])


def test_balanced_is_as_in_scikit_learn():
    from sklearn.utils.class_weight import compute_class_weight

    y = np.random.default_rng(3).integers(0, 5, 200) ** 2
    classes, counts = np.unique(y, return_counts=True)
    want = compute_class_weight("balanced", classes=classes, y=y)
    np.testing.assert_allclose(balanced(counts), want)
    # A class of an earlier training, without examples now, changes nothing of the others.
    np.testing.assert_allclose(balanced(np.append(counts, 0))[:-1], want)


def test_sums_too_large_to_be_added_exactly_are_refused():
    sums = LabelSums()
    sums.add([b"x"], np.array([2.0**37]))
    with pytest.raises(DataError, match="add up to more than"):
        sums.add([b"x"], np.array([2.0**37 + 1]))
    assert sums.of([b"y", b"x"]).tolist() == [0, 2.0**37]
    again = LabelSums()
    again.merge(sums.dump())
    assert again.of([b"x"]).tolist() == [2.0**37]
    tiny = LabelSums()
    tiny.add([b"x", b"z"], np.array([1 / UNIT, 0.0]))
    again.merge(tiny.dump())
    assert again.of([b"x", b"z"]).tolist() == [2.0**37 + 1 / UNIT, 0]


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"class_weights": "x"}, r"--class-weights: expected balanced, or LABEL"),
        ({"class_weights": "x=-1"}, "expected numbers from 0 to"),
        ({"class_weights": "x=nan"}, "expected numbers from 0 to"),
        ({"class_weights": "=1"}, "expected balanced, or LABEL"),
        ({"class_weights": "balanced, x=1"}, "expected balanced, or LABEL.*, got 'balanced, x=1'"),
        ({"class_weights": "x=1, y=2, x=3"}, "expected one number for 'x', got two"),
        ({"weight_column": "w"}, "expected `label_column` as well"),
        (
            {"column": "t", "label_column": "w", "weight_column": "w"},
            "expected another column than column and label_column, got w",
        ),
    ],
)
def test_settings_of_weights_that_cannot_be_are_refused(values, what):
    with pytest.raises(ConfigError, match=what):
        RawConfig.from_mapping(values, "--{key}").build(ClassifierSettings)


@pytest.mark.parametrize(
    ("texts", "what"),
    [
        (["z=2"], r"the input has no label 'z'\. It has 2: '[xy]', '[xy]'"),
        (["__label__xx=2"], r"no label '__label__xx'; did you mean '__label__x'\. It has 2: '__la"),
        (["x=0", "y=0"], "above 0"),
        (["x=2", "__label__x=3"], "expected one number for '__label__x', got two"),
    ],
)
def test_class_weights_that_do_not_fit_the_text_are_refused(texts, what):
    with pytest.raises(ConfigError, match=what):
        surveyed([PLAIN], replace(SOFT, soft_labels=False, class_weights=tuple(texts)))


def test_text_whose_weights_are_all_0_is_refused():
    for text in (b"__label__:0 __label__x a\n", b"__label__x:0 __label__y:0 a\n"):
        with pytest.raises(DataError, match="a weight above 0 of a text or a label, got 0 for all"):
            surveyed([text])


def test_labels_of_class_weights_may_have_blanks_commas_and_signs():
    assert class_weights_in(["a=b=2"]) == {"a=b": 2.0}
    text = b"__label__salt%20%water a\n__label__y a\n"
    settings = RawConfig.from_mapping({"class_weights": "salt water=3"}, "x").build(
        ClassifierSettings
    )
    factors, _ = factors_in(surveyed([text], settings))
    assert sorted(factors.tolist()) == [1, 3]


# ---- how they combine ----


def lines_of(text):
    labels = [b"__label__x", b"__label__y"]
    return LineReader([b"a"], labels, label_prefix=b"__label__", weighed=True).read(text)


def test_weights_of_line_label_and_class_are_multiplied():
    lines = lines_of(b"__label__:2 __label__x:0.5 __label__y a\n__label__y a\n__label__z a\n")
    factors = np.array([1, 10], np.float32)
    got = weighed(lines, factors, "softmax", are_soft=True)
    assert got.line_weights.tolist() == [2, 1, 1]
    assert got.label_weights.tolist() == [0.5, 0.5 * 10, 10]  # a label without one has its share
    assert not len(got.rests)
    assert weights_of_lines(got, "softmax").tolist() == [2 * 5.5, 10, 0]


def test_weights_of_one_versus_rest_leave_a_rest_that_classes_do_not_change():
    lines = lines_of(b"__label__:2 __label__x:0.25 __label__y a\n__label__y:3 a\n")
    got = weighed(lines, np.array([4, 1], np.float32), "ova", are_soft=True)
    assert got.label_weights.tolist() == [1, 1, 3]
    assert got.rests.tolist() == [0.75, 0, 0]
    assert weights_of_lines(got, "ova").tolist() == [2, 1]


def test_lines_without_weights_of_labels_and_classes_are_trained_on_one_label_that_is_drawn():
    got = weighed(
        lines_of(b"__label__:2 __label__x __label__y a\n"), NO_WEIGHTS, "ns", are_soft=False
    )
    assert not len(got.label_weights)
    assert weights_of_lines(got, "ns").tolist() == [2]
    plain = Lines(got.feature_ptr, got.features, got.label_ptr, got.labels, 3, 0)
    assert weights_of_lines(plain, "ns").tolist() == [1]


# ---- a weight of n is the line n times ----

LOSSES = ["softmax", "hs", "ns", "ova"]


def as_repeated(weighed_text, repeated_text, loss, factors=NO_WEIGHTS, *, shuffle=7):
    """The steps of a text with weights, and of the text whose lines are repeated."""
    found = []
    for text in (weighed_text, repeated_text):
        lines = weighed(lines_of(text), factors, loss, are_soft=True)
        found.append(stepped(lines, loss, shuffle=shuffle))
    return found


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shuffle", [7, None])
def test_a_line_of_a_whole_weight_is_trained_as_that_many_lines(loss, shuffle):
    """They are spread over the block, too, not one after the other."""
    line, other = b"__label__:5 __label__x:0.75 __label__y:0.25 a\n", b"__label__y a a\n"
    got, want = as_repeated(
        line + other, line.replace(b":5", b":1") * 5 + other, loss, shuffle=shuffle
    )
    for name in ("feature_ptr", "features", "label_ptr", "labels", "line_weights", "label_weights"):
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name))
    assert got.rests.tolist() == want.rests.tolist()
    assert len(got.label_ptr) == 7


@pytest.mark.parametrize(
    ("text", "factors", "loss", "want"),
    [
        (b"__label__:2.5 __label__x a\n", [], "softmax", [2.5 / 3] * 3),
        (b"__label__:0.5 __label__x a\n__label__:2 __label__y a\n", [], "ns", [0.5, 1, 1]),
        (b"__label__:0 __label__x a\n__label__:2 __label__y a\n", [], "hs", [0, 1, 1]),
        (b"__label__x a\n", [4, 1], "hs", [0.25] * 4),  # times 4 of the class
        (b"__label__x __label__y a\n", [3, 1], "ns", [0.5] * 2),  # halves of 3 and 1 are 2
        (b"__label__x __label__y a\n", [3, 1], "ova", [1 / 3] * 3),  # its largest yes is 3
        (b"__label__x:0.5 __label__y:0.25 a\n", [], "ova", [1]),
        (b"__label__x:0.5 __label__y:0.25 a\n", [2, 8], "softmax", [1 / 3] * 3),
    ],
)
def test_no_step_of_a_line_weighs_more_than_1(text, factors, loss, want):
    lines = weighed(lines_of(text), np.array(factors, np.float32), loss, are_soft=True)
    got = stepped(lines, loss, shuffle=None)
    assert got.line_weights.tolist() == pytest.approx(want)


def test_lines_of_weights_that_are_all_large_take_a_bounded_number_of_steps():
    lines = weighed(
        lines_of(b"__label__:1000 __label__x a\n" * 50), NO_WEIGHTS, "ns", are_soft=True
    )
    steps = steps_of(lines, "ns")
    assert MEAN_STEPS * 50 / 2 < len(steps) <= MEAN_STEPS * 50
    got = stepped(lines, "ns", shuffle=3)
    assert got.line_weights.sum() == pytest.approx(50_000)
    assert (
        steps_of(weighed(lines_of(b"__label__x a\n"), NO_WEIGHTS, "ns", are_soft=True), "ns")
        is None
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_weights_of_30_learn_what_the_lines_30_times_do(tmp_path, loss):
    """With `ns` and `ova` long steps overshot: .42 instead of .74, or rows without bound."""
    random = np.random.default_rng(3)
    lines = []
    for _ in range(600):
        label = int(min(random.exponential(4), 9))
        words = [f"k{label if random.random() > 0.3 else random.integers(10)}" for _ in range(3)]
        lines.append((label, " ".join([*words, *(f"the{n}" for n in random.integers(0, 9, 3))])))
    heavy = random.random(600) < 0.03
    asked = [text for _, text in lines[:300]]
    right = []
    for form in ("__label__:{n} __label__{label} {text}\n", "__label__{label} {text}\n"):
        is_weighed = "{n}" in form
        text = "".join(
            form.format(n=30 if is_heavy else 1, label=label, text=text)
            * (30 if is_heavy and not is_weighed else 1)
            for (label, text), is_heavy in zip(lines, heavy, strict=True)
        )
        (tmp_path / "text.txt").write_text(text)
        job = {
            "worker_class": "snailps.models.classifier:Classifier", "loss": loss, "lr": "0.5",
            "input": str(tmp_path / "text.txt"), "output": str(tmp_path / "m"), "dim": "8",
            "epochs": "5", "maxn": "0", "soft_labels": str(is_weighed).lower(),
        }  # fmt: skip
        with trained(job, 1) as (cls, results):
            cls.export(results)
        best = LabelModel(tmp_path / "m.bin").predict(asked)
        names = [f"__label__{label}" for label, _ in lines[:300]]
        right.append(np.mean([row[0].label == name for row, name in zip(best, names, strict=True)]))
    assert right[1] > 0.6
    # Half of the lines that differ may be right here and wrong there: two standard deviations.
    assert abs(right[0] - right[1]) < 2 * (0.25 / 300) ** 0.5


# ---- balanced ----


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("soft", [False, True])
def test_balanced_gives_labels_of_lines_with_several_the_same_sum(loss, soft):
    """100 lines of x alone, 100 of y and z: sums are 100, 50, 50; with `ova` each label has 1."""
    texts = [b"__label__x a\n" * 100 + b"__label__y __label__z b\n" * 100]
    settings = replace(SOFT, soft_labels=soft, class_weights=("balanced",), loss=loss)
    summary = surveyed(texts, settings)
    factors, _ = factors_in(summary)
    labels = [bytes(word) for word in unpack_summary(summary)[1].words]
    reader = LineReader([b"a", b"b"], labels, label_prefix=b"__label__", weighed=soft)
    lines = weighed(reader.read(texts[0]), factors, loss, are_soft=soft)
    sums = np.bincount(lines.labels, lines.label_weights)
    np.testing.assert_allclose(sums, 100 if loss == "ova" else 200 / 3, rtol=1e-6)
