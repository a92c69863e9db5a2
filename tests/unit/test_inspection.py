"""`Inspection`: when a model is inspected and tested, and what becomes of it."""

from types import SimpleNamespace

import pytest

from snailps.api.traits import Reported, trait_of
from snailps.api.worker import Worker
from snailps.config import JobSettings
from snailps.master.job.inspection import SHARE_MAX, Inspection
from snailps.master.job.job import Inspected, JobClock
from snailps.master.job.model_class import ByInput
from snailps.master.services import InspectionResult
from snailps.node.effects import WorkDone


class WithTester(Worker):
    @classmethod
    def tester(cls, settings):
        return lambda results: {"rmse": 1.0}


class Watch:
    """A training of 100 s whose inspections take some seconds; `calls` has when each began."""

    def __init__(self, cls, took_s=0.0):
        self.now, self.took_s, self.calls = 0.0, took_s, []
        self.job = SimpleNamespace(
            settings=JobSettings(), inspected=Inspected(),
            model=SimpleNamespace(
                cls=cls,
                by_input=ByInput(tester=trait_of(cls, Reported).tester(JobSettings())),
            ),
            progress=lambda now: now / 100, clock=JobClock(0.0, 0.0),
        )  # fmt: skip
        registry = SimpleNamespace(tables={})
        members = SimpleNamespace(reserve=range, table_registry=registry)
        self.inspection = Inspection(members, self, self)
        self.inspection.begin()

    def inspect(self, job, reading, *, inspects, tests):
        self.calls.append((round(self.now), inspects, tests))
        return InspectionResult(self.took_s, {"rmse": self.now})

    def work(self, run, then):
        then(WorkDone(1, run()), self.now + self.took_s)
        return 0

    def train(self):
        for _ in range(100):
            self.inspection.step(self.job, {}, self.now)
            self.now += 1


def test_model_is_tested_after_each_tenth_and_reads_its_data_at_the_start():
    watch = Watch(WithTester)
    watch.train()
    assert watch.calls == [(at, at > 0, True) for at in range(0, 100, 10)]
    tests = [(0.0 + at, {"progress": at / 100, "rmse": at}) for at in range(10, 100, 10)]
    assert list(watch.job.inspected.tests) == tests  # not those of the untrained model


def test_model_that_is_not_tested_is_not_inspected_before_a_tenth_is_trained():
    watch = Watch(Worker)
    watch.train()
    assert [at for at, _, _ in watch.calls] == [*range(10, 100, 10)]


@pytest.mark.parametrize("took_s", [1.0, 2.0, 10.0])
def test_inspections_take_a_small_share_of_the_training(took_s):
    watch = Watch(WithTester, took_s)
    watch.train()
    took = took_s * (len(watch.calls) - 1)
    assert took <= SHARE_MAX * 100 + took_s
    assert len(watch.calls) > 1


def test_another_job_begins_without_the_seconds_of_the_first():
    watch = Watch(WithTester, 10.0)
    watch.train()
    watch.inspection.begin()
    watch.now = 0.0
    watch.inspection.step(watch.job, {}, 0.0)
    assert watch.calls[-1] == (0, False, True)
