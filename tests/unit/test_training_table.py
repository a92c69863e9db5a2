"""What a classifier learns, by loss, weights and way of training, beside probabilities by hand.

A text of one word has the shares of its labels' weights, whoever trains it: {softmax, hs, ns, ova}
x {weights of lines, of classes, soft labels, several labels, a normal form} x {a training, a
further one, `partial_fit` of a file and of memory, a retraining}; tests after an epoch and
calibrations have the figures of these.
"""

import contextlib
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from emulated import trained

import snailps
from snailps.estimators import base
from snailps.estimators.jobs import FinishedJob
from snailps.models.classifier.retraining import Retraining, retrained
from snailps.vectors.fasttext_bin import read_bin
from snailps.vectors.label_prediction import LabelModel
from snailps.vectors.labelled_lines import labelled_lines

LOSSES = ["softmax", "hs", "ns", "ova"]
NEGATIVES = 2
TIMES = 50


@dataclass
class Form:
    """A text: lines with a weight, and of each label one or None."""

    lines: list
    settings: dict = field(default_factory=dict)
    factors: dict = field(default_factory=dict)
    word: str = "a"

    @property
    def weighed(self):
        return self.settings.get("soft_labels") == "true"

    @property
    def text(self):
        made = []
        for of_line, labels in self.lines:
            words = [f"__label__:{of_line}"] if of_line != 1 else []
            words += [
                f"__label__{name}" + (f":{weight}" if weight is not None else "")
                for name, weight in labels.items()
            ]
            made.append(" ".join([*words, self.word]) + "\n")
        return "".join(made) * TIMES

    def shares(self, loss, *, classes=True):
        """Probabilities of x and y, by hand."""
        factors = self.factors.get(loss == "ova", self.factors) if classes else {}
        yes, no = dict.fromkeys("xy", 0.0), dict.fromkeys("xy", 0.0)
        for of_line, labels in self.lines:
            default = 1 if loss == "ova" else 1 / len(labels)
            for name in "xy":
                weight = labels.get(name, 0) if name in labels else 0
                weight = default if weight is None else weight
                yes[name] += of_line * weight * factors.get(name, 1)
                no[name] += of_line * max(0, 1 - weight)
        if loss != "ova":
            other = NEGATIVES if loss == "ns" else 1  # each step of x has as many of y as a no
            no = {"x": other * yes["y"], "y": other * yes["x"]}
        return np.array([yes[name] / (yes[name] + no[name]) for name in "xy"])


SOFT = {"soft_labels": "true"}
SEVERAL = [(1, {"x": None, "y": None}), (1, {"x": None}), (1, {"x": None}), (1, {"y": None})]
FORMS = {
    "one label": Form([(1, {"x": None})] * 3 + [(1, {"y": None})]),
    "weights of lines": Form([(3, {"x": None}), (1, {"y": None})], SOFT),
    "weights below 1": Form([(0.75, {"x": None}), (0.25, {"y": None})] * 2, SOFT),
    "weights of classes": Form(
        [(1, {"x": None}), (1, {"y": None})], {"class_weights": "x=3"}, {"x": 3}
    ),
    "soft labels": Form([(1, {"x": 0.75, "y": 0.25})] * 2, SOFT),
    "several labels": Form(SEVERAL),
    "several and weights": Form([(2, SEVERAL[0][1]), *SEVERAL[1:]], SOFT),
    # Sums of x and y are 2.5 and 1.5, with `ova` 3 and 2.
    "several and balanced": Form(
        SEVERAL, {"class_weights": "balanced"},
        {False: {"x": 2 / 2.5, "y": 2 / 1.5}, True: {"x": 2.5 / 3, "y": 2.5 / 2}},
    ),
    "soft and classes": Form(
        [(1, {"x": 0.5, "y": 0.5})] * 2, SOFT | {"class_weights": "x=3"}, {"x": 3}
    ),
    "normal form": Form(
        [(1, {"x": None})] * 3 + [(1, {"y": None})], {"normalize": "lower"}, word="A"
    ),
}  # fmt: skip


def cells(losses):
    """A loss and a form; most of them are `long`, one of four is not."""
    return [
        pytest.param(
            loss, name, marks=[pytest.mark.long] if (row + column) % 4 else [], id=f"{loss}-{name}"
        )
        for row, loss in enumerate(losses)
        for column, name in enumerate(FORMS)
    ]


def train(folder, name, form, loss, **more):
    """The model's file, and the figures of its test on its own lines after the last epoch."""
    source = folder / "text"
    source.write_text(form.text)
    job = {
        "worker_class": "snailps.models.classifier:Classifier", "input": str(source), "dim": "4",
        "output": str(folder / name), "epochs": "12", "lr": "0.5", "maxn": "0", "loss": loss,
        "validation": str(source), **form.settings, **more,
    }  # fmt: skip
    if loss == "ns":
        job["negatives"] = str(NEGATIVES)
    with trained(job, 1) as (cls, results):
        cls.export(results)
        return folder / f"{name}.bin", cls.validation(results.settings).test(results)


def chances(path):
    model = LabelModel(path)
    found = dict(zip(model.labels, model.probabilities(["a"])[0].tolist(), strict=True))
    return np.array([found[b"__label__x"], found[b"__label__y"]])


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    """In the place of `run_job`: trains in this process; the settings that jobs were given."""
    asked = []

    @contextlib.contextmanager
    def run(worker_class, settings, source, monitor, **_):
        asked.append(settings)
        path = source[0] if isinstance(source, list) else source.path
        job = {
            "worker_class": worker_class, "input": str(path),
            "output": str(tmp_path / f"job{len(asked)}"), **settings,
        }  # fmt: skip
        with trained(job, 1) as (cls, results):
            files = cls.export(results)["files"]
        monitor.finish({"train_loss": 1.0}, [{"epoch": 1, "loss": 1.0}])
        yield FinishedJob({"train_loss": 1.0}, files)

    monkeypatch.setattr(base, "run_job", run)
    return asked


def estimator(form, loss):
    classes = form.settings.get("class_weights")
    more = {"negatives": NEGATIVES} if loss == "ns" else {}
    return snailps.TextClassifier(
        dim=4, lr=0.5, maxn=0, loss=loss, soft_labels=form.weighed, verbose=False,
        normalize=form.settings.get("normalize", ""),
        class_weight={"x": 3} if classes == "x=3" else classes, **more,
    )  # fmt: skip


def assert_has_shares(model, form, loss):
    """Estimators have the probabilities of a text add up to 1, whatever the loss."""
    by_hand = form.shares(loss)
    found = model.predict_proba([form.word])[0]
    assert found == pytest.approx(by_hand / by_hand.sum(), abs=0.03)


def loss_by_hand(form, loss, p):
    """The loss of a test, by the weights of the text: of labels, or of lines and all labels."""
    total = terms = 0.0
    for of_line, labels in form.lines:
        weights = {name: of_line * (1 if w is None else w) for name, w in labels.items()}
        total -= sum(weight * np.log(p["xy".index(name)]) for name, weight in weights.items())
        terms += sum(weights.values())
        if loss in ("ns", "ova"):
            total -= sum(
                (of_line - min(of_line, weights.get(name, 0))) * np.log(1 - p["xy".index(name)])
                for name in "xy"
            )
            terms += of_line - sum(weights.values())
    return total / terms


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("loss", LOSSES)
def test_probabilities_are_those_by_hand(tmp_path, loss, name):
    form = FORMS[name]
    path, figures = train(tmp_path, "m", form, loss)
    p = chances(path)
    assert p == pytest.approx(form.shares(loss), abs=0.03)
    assert figures["loss"] == pytest.approx(loss_by_hand(form, loss, p), abs=1e-4)


@pytest.mark.parametrize(("loss", "name"), cells(LOSSES))
def test_a_further_training_and_a_retraining_stay_there(tmp_path, loss, name):
    form = FORMS[name]
    path, _ = train(tmp_path, "first", form, loss, epochs="4")
    again, _ = train(tmp_path, "m", form, loss, continue_from=str(path), epochs="12")
    assert chances(again) == pytest.approx(form.shares(loss), abs=0.03)
    model = read_bin(path)
    full = replace(model, input=np.array(model.input[:]), output=np.array(model.output[:]))
    lines = labelled_lines(LabelModel.of_model(full), tmp_path / "text", soft_labels=form.weighed)
    after = retrained(full, Retraining(lines, epochs=16, lr=0.5, threads=1))
    found = LabelModel.of_model(after)
    p = dict(zip(found.labels, found.probabilities(["a"])[0].tolist(), strict=True))
    got = [p[b"__label__x"], p[b"__label__y"]]
    # A retraining has no weights of classes.
    assert got == pytest.approx(form.shares(loss, classes=False), abs=0.03)


@pytest.mark.parametrize(("loss", "name"), cells(["softmax", "ns", "ova"]))
def test_a_calibration_never_raises_the_error_on_its_own_lines(tmp_path, loss, name):
    form = FORMS[name]
    path, _ = train(tmp_path, "m", form, loss, epochs="2", lr="0.2")
    report = snailps.calibrate(path, tmp_path / "text", soft_labels=form.weighed)
    assert report.calibration_error_after <= report.calibration_error_before
    assert bool(report.path) == (LabelModel(path).calibration.changes_probabilities)


@pytest.mark.parametrize(("loss", "name"), cells(LOSSES))
def test_partial_fits_of_a_file_lead_to_the_shares_by_hand(tmp_path, jobs, loss, name):
    """The first call has 4 epochs, the second one goes on with 12."""
    form = FORMS[name]
    (tmp_path / "text.txt").write_text(form.text)
    model = estimator(form, loss)
    for epochs in (4, 12):
        model.partial_fit(str(tmp_path / "text.txt"), epochs=epochs)
    assert ["continue_from" in settings for settings in jobs] == [False, True]
    assert list(model.classes_) == ["x", "y"]
    assert_has_shares(model, form, loss)


IN_MEMORY = [name for name in FORMS if not name.startswith("several")]
"""Forms that Python says; several labels of a text are in files alone."""


@pytest.mark.parametrize(("loss", "name"), [cell for cell in cells(LOSSES)
                                            if cell.values[1] in IN_MEMORY])  # fmt: skip
def test_partial_fits_of_labels_in_memory_lead_to_the_shares_by_hand(jobs, loss, name):
    form = FORMS[name]
    weights = [of_line for of_line, _ in form.lines] * TIMES
    labels = [dict(labels) for _, labels in form.lines] * TIMES
    if all(None in of_line.values() for of_line in labels):
        labels = [next(iter(of_line)) for of_line in labels]
    given = {} if set(weights) == {1} else {"sample_weight": weights}
    model = estimator(form, loss).set_params(soft_labels=False)
    for epochs in (4, 12):
        model.partial_fit([form.word] * len(labels), labels, epochs=epochs, **given)
    assert_has_shares(model, form, loss)
