"""Stand-ins for parts of the master's core: an outbox that records, a job with a clock."""

from types import SimpleNamespace

import pytest

from snailps.config import MasterSettings
from snailps.master.context import Context
from snailps.master.effects import Outbox
from snailps.master.job.beginning import begin_survey, begin_training, end_survey, prepare
from snailps.master.job.controller import JobController
from snailps.master.job.ending import end_pass, figures_of
from snailps.master.job.job import Job
from snailps.master.job.present import JobHooks
from snailps.master.job.record import JobRecord
from snailps.master.life import COMMAND
from snailps.master.member import Member
from snailps.master.phases import Reach, Work
from snailps.node.effects import WorkDone


class TestOutbox(Outbox):
    """Records orders, messages and facts; calls are functions of the test, which get the answer.

    Attributes
    ----------
    orders : list of (peer, message, on_answer)
    sent : list of (peer, message)
    facts : list of (kind, data)
    works : list of (run, then)
    """

    __test__ = False

    def __init__(self):
        super().__init__(kept=True)
        self.orders, self.sent, self.facts, self.works = [], [], [], []

    def reply(self, call, answer):
        call(answer)

    def order(self, peer, message, on_answer):
        self.orders.append((peer, message, on_answer))

    def send(self, peer, message):
        self.sent.append((peer, message))

    def journal(self, kind, data):
        self.facts.append((kind, data))

    def work(self, run, then, lane=""):
        self.works.append((run, then))
        return len(self.works)

    def do_works(self, now=0.0):
        """Runs the pending works, and hands their results on."""
        while self.works:
            run, then = self.works.pop(0)
            try:
                done = WorkDone(0, run())
            except Exception as error:
                done = WorkDone(0, None, error)
            then(done, now)


def context_of(out, *, settings=None, cluster_id=7, begun=0.0, life=COMMAND):
    return Context(settings or MasterSettings(), out, cluster_id, begun, life)


def controller_of(members, out, shard_orders, past=None, expel=pytest.fail, **hooks):
    """A job's controller among stand-ins; `hooks`: what is done where it asks for that."""
    asked = dict.fromkeys(("fail_job", "export_cancelled", "job_ended"), pytest.fail)
    return JobController(
        context_of(out),
        SimpleNamespace(files=None, reader=SimpleNamespace(looks=())),
        members,
        SimpleNamespace(stopping=False),
        shard_orders,
        SimpleNamespace(sum=lambda counter: 0, never_pushed=list),
        JobHooks(**{**asked, **hooks}),
        expel,
        past,
    )


def worker_of(number):
    """A worker that has trained a block."""
    place = ("host", number, number)
    return Member(number, "worker", *place, [], reach=Reach.READY, work=Work.TRAINING)


class TimedJob:
    """A job, and the functions that begin, end and record it, with the time of a test's clock."""

    def __init__(self, raw, also_known=(), clock=lambda: 0.0):
        job = Job(raw, also_known, clock())
        vars(self).update(seconds=clock, job=job, record=JobRecord(job))

    def __getattr__(self, name):
        return getattr(self.job, name)

    def __setattr__(self, name, value):
        setattr(self.job, name, value)

    @property
    def progress(self):
        return self.job.progress(self.seconds())

    @property
    def elapsed_s(self):
        return self.job.clock.elapsed_s(self.seconds())

    def prepare(self, workers):
        prepare(self.job, workers)

    def begin_pass(self, name, nodes=(), snapshot=None, plan=None):
        if name == "survey":
            begin_survey(self.job, self.seconds())
        else:
            begin_training(self.job, self.seconds(), nodes, snapshot, plan)

    def end_survey(self):
        end_survey(self.job)

    def end_pass(self):
        end_pass(self.job, self.seconds())

    def dump(self, **named):
        return self.record.dump(self.seconds(), **named)

    def lease(self, node, back=False):
        return self.job.lease(node, self.seconds(), back)

    def done(self, message, node):
        if message.pass_ != self.job.pass_ or message.pass_ != "survey":
            return self.job.done(message, node, self.seconds())
        numbers = [*message.numbers, message.number]
        if not self.job.schedule.survey.merge(numbers, node):
            return False
        try:
            self.job.survey.merge.add(message.number, message.blob)
        except Exception:
            for number in numbers:
                self.job.schedule.survey.failed(number)
            raise
        self.job.merged(message, self.seconds())
        return True

    def replay(self, message, node):
        return self.record.replay(message, node, self.seconds())

    def rate(self):
        return self.job.metrics.rate(self.job.clock.pass_begun, self.seconds())

    def limit_reached(self):
        return self.job.limit_reached(self.seconds())

    def figures(self, nodes):
        return figures_of(self.job, nodes, self.seconds())
