"""Looks of a training: which hook asks for which, when they are due, and what becomes of them."""

from types import SimpleNamespace

import pytest

from snailps.api.validation import Validation
from snailps.api.worker import Worker
from snailps.config import JobSettings
from snailps.errors import ConfigError
from snailps.master.job.inspection import SHARE_MAX, Tenths
from snailps.master.job.job import Inspected, Job, JobClock
from snailps.master.job.model_class import looks_of
from snailps.node.effects import WorkDone

TESTED = {"test": lambda results: {"rmse": 1}}
INSPECTED = {"test": lambda results: {"cat": [(3, 0.5)]}}


class WithTester(Worker):
    @classmethod
    def tester(cls, settings):
        return TESTED["test"]


class WithInspector(Worker):
    @classmethod
    def inspector(cls, settings):
        return INSPECTED["test"]


class WithInspectorAndTester(WithInspector, WithTester):
    """Both beside the training."""


class WithBoth(WithInspectorAndTester):
    @classmethod
    def validation(cls, settings):
        return Validation(TESTED["test"], 2, "lower")


class WithRounds(WithBoth):
    @classmethod
    def after_round(cls, results, round_):
        return {"loss": round_}


def looks_at(cls, rounds=0):
    model = SimpleNamespace(cls=cls, rounds=SimpleNamespace(number=rounds))
    return looks_of(model, JobSettings())


@pytest.mark.parametrize(
    ("cls", "rounds", "expected"),
    [
        (Worker, 0, []),
        (Worker, 3, []),
        (WithTester, 0, [(("begin", "tenth"), False, 0, "higher")]),
        (WithInspector, 0, [(("tenth", "end"), False, 0, "higher")]),
        (
            WithBoth,
            0,
            [(("tenth", "end"), False, 0, "higher"), (("begin", "epoch"), True, 2, "lower")],
        ),
        (
            WithRounds,
            3,
            [
                (("tenth", "end"), False, 0, "higher"),
                (("begin", "tenth"), False, 0, "higher"),
                (("round",), True, 0, "higher"),
            ],
        ),
    ],
)
def test_each_hook_of_a_class_is_a_look(cls, rounds, expected):
    looks = looks_at(cls, rounds)
    assert [(look.when, look.strict, look.keeps, look.better) for look in looks] == expected


def test_looks_see_plain_figures_by_the_number_of_their_moment():
    near, tested, after = (look.what(None, 3) for look in looks_at(WithRounds, 3))
    assert (near, tested, after) == ({"cat": [("3", 0.5)]}, {"rmse": 1.0}, {"loss": 3})
    assert type(tested["rmse"]) is float


def test_validation_that_is_none_is_refused():
    class Odd(Worker):
        @classmethod
        def validation(cls, settings):
            return 3

    expected = r"Odd.validation returned 3: expected a snailps.api.validation.Validation"
    with pytest.raises(ConfigError, match=expected):
        looks_at(Odd)


class Watch:
    """A training of 100 s whose inspections take some seconds; `calls` has when each began."""

    def __init__(self, cls, took_s=0.0):
        self.now, self.took_s, self.calls = 0.0, took_s, []
        self.job = SimpleNamespace(
            settings=JobSettings(), inspected=Inspected(),
            progress=lambda now: now / 100, clock=JobClock(0.0, 0.0),
        )  # fmt: skip
        self.job.looked = lambda *seen: Job.looked(self.job, *seen)
        self.looks = looks_at(cls)
        present = SimpleNamespace(reading=lambda: None)
        self.tenths = Tenths(self.job, self.looks, self, present, self)

    def look(self, job, looks, number, reading):
        assert number == round(self.now) // 10
        self.calls.append((round(self.now), [self.looks.index(look) for look in looks]))
        return [{"rmse": self.now} if "begin" in look.when else {"cat": []} for look in looks]

    def work(self, run, then):
        then(WorkDone(1, run()), self.now + self.took_s)
        return 0

    def train(self):
        for _ in range(100):
            self.tenths.step(self.now)
            self.now += 1


def test_model_is_tested_after_each_tenth_and_reads_its_data_at_the_start():
    watch = Watch(WithTester)
    watch.train()
    assert watch.calls == [(at, [0]) for at in range(0, 100, 10)]
    tests = [(0.0 + at, {"progress": at / 100, "rmse": at}) for at in range(10, 100, 10)]
    assert list(watch.job.inspected.tests) == tests  # not those of the untrained model


def test_model_that_is_not_tested_is_not_looked_at_before_a_tenth_is_trained():
    watch = Watch(WithInspector)
    watch.train()
    assert watch.calls == [(at, [0]) for at in range(10, 100, 10)]


def test_looks_of_the_same_moment_share_a_reading():
    watch = Watch(WithInspectorAndTester)
    watch.train()
    assert watch.calls == [(0, [1]), *((at, [0, 1]) for at in range(10, 100, 10))]


@pytest.mark.parametrize("took_s", [1.0, 2.0, 10.0])
def test_inspections_take_a_small_share_of_the_training(took_s):
    watch = Watch(WithTester, took_s)
    watch.train()
    took = took_s * (len(watch.calls) - 1)
    assert took <= SHARE_MAX * 100 + took_s
    assert len(watch.calls) > 1


def test_what_an_earlier_master_has_looked_at_is_not_due_again():
    watch = Watch(WithTester)
    watch.now = 34.0
    watch.tenths.resume(watch.now)
    watch.train()
    assert [at for at, _ in watch.calls] == [*range(40, 140, 10)]


def test_neighbours_seen_last_stay_beside_figures():
    job = SimpleNamespace(inspected=Inspected())
    Job.looked(job, [{"cat": [("dog", 0.5)]}, {}])
    Job.looked(job, [{"rmse": 0.5}], 7.0, 0.3)
    Job.looked(job, [{"rmse": 9.0}], 8.0)  # as the training begins
    assert job.inspected == Inspected(
        {"cat": [("dog", 0.5)]}, ((7.0, {"progress": 0.3, "rmse": 0.5}),)
    )
