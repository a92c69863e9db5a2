"""What a user's class returns becomes plain values, or an error with class, method and key."""

import datetime
import json
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from snailps import JobSettings, Worker, setting
from snailps.api.plain_values import ELEMENTS_MAX, plain_figures, plain_number
from snailps.api.traits import InRounds
from snailps.cli.view import ending_of
from snailps.config import RawConfig
from snailps.config.fields import format_value
from snailps.dataclass import dataclass
from snailps.errors import ClusterError, NotFinite
from snailps.master.job.beginning import begin_training, prepare
from snailps.master.job.job import Inspected, Job
from snailps.master.job.model_class import ByInput, looks_of
from snailps.master.job.model_reader import ModelReader
from snailps.master.services import ModelAccess
from snailps.transport.security.trust import OPEN


class Model(Worker, InRounds):
    pass


PLAIN = [
    (np.float32(0.5), 0.5), (np.float16(2), 2.0), (np.float64(0.1), 0.1), (np.longdouble(2), 2.0),
    (np.int64(3), 3), (np.uint8(3), 3), (np.bool_(True), True), (np.str_("a"), "a"),
    (np.array(2.5), 2.5), (np.arange(3), [0, 1, 2]), (np.ones((2, 1)), [[1.0], [1.0]]),
    (Path("a/b"), "a/b"), ([Path("a"), (1, None)], ["a", [1, None]]), (range(2), [0, 1]),
    (Fraction(1, 2), 0.5), ({1: 2, np.int64(3): np.int8(4)}, {"1": 2, "3": 4}),
    (math.inf, math.inf), (True, True), ("a", "a"), (None, None), ({"a": {}}, {"a": {}}),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), PLAIN, ids=repr)
def test_value_of_a_figure_is_plain(value, expected):
    figures = plain_figures(Model, "judge", {"auc": value, "other": [value]})
    assert figures == {"auc": expected, "other": [expected]}
    assert json.loads(json.dumps(figures)) == figures
    assert type(figures["auc"]) is type(expected) or isinstance(value, str)


ODD = [
    (object(), r"\['auc'\] is object"), ({1, 2}, r"\['auc'\] is set"), (b"a", "is bytes"),
    (np.complex64(1), "is complex"), (datetime.date(2026, 1, 1), "is datetime.date"),
    (np.datetime64("2026-01-01"), "is datetime.date"), (Decimal("1.5"), "is decimal.Decimal"),
    (np.zeros(ELEMENTS_MAX + 1), "is numpy.ndarray of 10,001 elements, limit 10,000"),
    ({"deep": [1, {"x": print}]}, r"\['auc'\]\['deep'\]\[1\]\['x'\] is builtin"),
    ({(1, 2): 3}, r"\['auc'\] is under the key \(1, 2\) \(tuple\)"),
    ("a" * (5 << 20), "have 5,2.* bytes of JSON, limit 4,194,304"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "words"), ODD, ids=[words for _, words in ODD])
def test_other_value_is_an_error_with_class_method_key_and_type(value, words):
    with pytest.raises(ClusterError, match=rf"^Model\.judge: .*{words}"):
        plain_figures(Model, "judge", {"auc": value})


def test_figures_that_are_no_mapping_or_hold_themselves_are_refused():
    circle = []
    circle.append(circle)
    with pytest.raises(ClusterError, match=r"^Model\.judge returned NoneType: expected a mapping"):
        plain_figures(Model, "judge", None)
    with pytest.raises(ClusterError, match=r"^Model\.judge: its figures cannot be written"):
        plain_figures(Model, "judge", {"a": circle})


def test_figures_of_a_trait_that_the_class_lacks_are_plain():
    """TensorBoard looks at a model without an inspector, too."""
    assert plain_figures(Model, "inspector", {}) == {}


def test_number_of_a_class_method_is_plain_or_named():
    assert type(plain_number(Model, "rounds", np.int64(5), int)) is int
    assert type(plain_number(Model, "fraction", np.float32(5.5), int)) is int
    assert type(plain_number(Model, "fraction", np.float32(0.5), float)) is float
    for value in ("5", None, math.nan, [5]):
        with pytest.raises(ClusterError, match=r"^Model\.rounds: expected a whole number, got "):
            plain_number(Model, "rounds", value, int)


def test_settings_of_numpy_numbers_travel_as_python_writes_them():
    texts = [format_value(value) for value in (np.float64(0.1), np.int64(3), np.bool_(True))]
    assert texts == ["0.1", "3", "True"]  # in any case of letters


@dataclass(frozen=True, slots=True)
class Settings(JobSettings):
    rate: float = setting(0.0, help="A rate.", when="Never.")


class OfNumPy(Worker):
    """Answers all that a job asks with NumPy's numbers, and paths."""

    Settings = Settings

    @classmethod
    def adopt(cls, settings, explicit):
        values = {"rate": np.float32(0.5), "seed": np.int64(7), "epochs": np.int32(2)}
        return Settings(**{name: getattr(settings, name) for name in ("input",)}, **values)

    @classmethod
    def expires(cls, settings):
        return np.int64(9)

    @classmethod
    def pieces(cls, settings, sources, workers):
        source = sources[0]
        return [(Path(source.path), np.int64(0), np.int64(source.bytes))]


def test_job_of_a_class_that_answers_in_numpy_numbers_has_plain_ones(tmp_path):
    (path := tmp_path / "in.txt").write_text("a b c\n")
    raw = RawConfig.from_mapping({"worker_class": f"{__name__}:OfNumPy", "input": str(path)}, "x")
    job = Job(raw)
    prepare(job, 1)
    settings = job.settings
    assert [type(n) for n in (settings.rate, settings.seed, settings.epochs)] == [float, int, int]
    (block,) = job.input.blocks
    assert (block.path, block.start, block.stop) == (str(path), 0, 6)
    assert [type(place) for place in (block.path, block.start, block.stop)] == [str, int, int]
    assert (job.model.expires, type(job.model.expires)) == (9, int)
    begin_training(job, 0.0, [1])
    json.dumps([job.start_message(1).settings, *job.lease(1, 0.0).layout.files])


class Readers(ModelReader):
    """Reads tables that are not there."""

    def __init__(self):
        super().__init__(1.0, OPEN, 7)

    def _results(self, job, reading, progress=None):
        exporting = SimpleNamespace(check=lambda: None)
        return SimpleNamespace(figures={}, exporting=exporting), lambda: None


class Judged(Worker):
    judged, written = {}, []

    @classmethod
    def judge(cls, results):
        return cls.judged

    @classmethod
    def export(cls, results):
        cls.written.append("model")
        return {"files": [Path("out.npz")], "rows": np.int64(5)}

    @classmethod
    def after_round(cls, results, round_):
        return {"loss": np.float32(0.5)}

    @classmethod
    def inspector(cls, settings):
        return lambda results: {np.str_("cat"): [(np.int64(3), np.float32(0.5))]}


LOOKS = looks_of(SimpleNamespace(cls=Judged, rounds=SimpleNamespace(number=0)), JobSettings())
READING = ModelAccess(iter([1]), {}, {})


def export(judged, output="out"):
    Judged.judged, Judged.written = judged, []
    job = SimpleNamespace(
        model=SimpleNamespace(cls=Judged, by_input=ByInput(looks=LOOKS)),
        settings=SimpleNamespace(output=output), inspected=Inspected(),
    )  # fmt: skip
    job.looked = lambda seen: Job.looked(job, seen)
    progress = SimpleNamespace(check=lambda: None, cancelled=False)
    return Readers().export(job, READING, progress)


def test_figures_of_the_end_of_a_round_and_of_an_inspection_are_plain():
    figures = export({"auc": np.float32(0.5)})
    for name in ("test_s", "export_s"):
        figures.pop(name)
    assert json.loads(json.dumps(figures)) == {
        "auc": 0.5, "judged": ["auc"], "files": ["out.npz"], "rows": 5,
        "validation": {"cat": [["3", 0.5]]},
    }  # fmt: skip
    (look,) = ByInput(looks=LOOKS).at("round")
    job = SimpleNamespace(model=SimpleNamespace(cls=Judged))
    (after,) = Readers().look(job, [look], 0, READING, stays=True)
    assert (after, type(after["loss"])) == ({"loss": 0.5}, float)


def test_figure_of_a_user_that_is_called_judged_keeps_its_value():
    figures = export({"judged": 1.5})
    assert figures["judged"] == 1.5
    assert "judged 1.5" in str(ending_of(figures))


def test_odd_figure_of_judge_is_an_error_after_the_model_is_written():
    place = r"Judged\.judge \(.*test_plain_values\.py, line \d+\): "
    with pytest.raises(ClusterError, match=rf"{place}.*is object.* is written to out$"):
        export({"auc": object()})
    assert Judged.written == ["model"]


def test_test_loss_that_is_a_numpy_nan_writes_nothing():
    with pytest.raises(NotFinite, match="the training has diverged, and nothing is written"):
        export({"test": {"loss": np.float32(np.nan)}})
    assert not Judged.written
