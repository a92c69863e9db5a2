"""`JobController` with stand-ins for job and members: how long blocks are waited for at the end."""

from types import SimpleNamespace

import pytest
from master_parts import TestOutbox, controller_of, worker_of

from snailps.api.export_progress import ExportProgress
from snailps.master.job.export import CANCEL_S
from snailps.master.job.job import JobClock
from snailps.master.job.stop_rules import StopRules
from snailps.master.leases import BspSchedule, Entries
from snailps.master.leases.late_workers import DROP_S
from snailps.master.phases import JobPhase
from snailps.pieces import Piece
from snailps.transport import messages

MICRO_BATCHES = 4


def test_course_logs_how_far_an_export_is(stepped, now, caplog):
    controller, *_ = stepped
    controller.exporting.export.begin(now.s - 9)
    told = controller.exporting.export.progress = ExportProgress(lambda: now.s)
    told.plan([1.0])
    told.begin("reading table w", 100, "fragments")
    told.add(20)
    with caplog.at_level("INFO"):
        for _ in range(30):
            now.s += 1
            assert not controller.exporting.export.step(now.s)
            told.add(1)
    assert [record.message for record in caplog.records] == [
        "exporting 20%: reading table w, 20 of 100 fragments, 4 s left",
        "exporting 30%: reading table w, 30 of 100 fragments, 26 s left",
        "exporting 40%: reading table w, 40 of 100 fragments, 31 s left",
    ]


def test_cancelled_export_that_does_not_end_is_left_behind(now):
    failed, nodes = [], SimpleNamespace(nodes=lambda *roles: [])
    controller = controller_of(nodes, TestOutbox(), None, export_cancelled=failed.append)
    controller.leases.job, controller.present.phase = SimpleNamespace(), JobPhase.EXPORTING
    told = controller.exporting.export.begin(now.s)
    controller.exporting.export.cancel(now.s)
    assert told.cancelled
    now.s += CANCEL_S
    controller.step(now.s)
    assert not failed
    now.s += 1
    controller.step(now.s)
    verdict = "interrupted while saving the model, 0% done; nothing was saved"
    assert failed == [verdict]


@pytest.fixture
def now():
    """The time."""
    return SimpleNamespace(s=100.0)


def expel(member, why, now, after=""):
    member.was_missed(why)


def answers(out, now, **told):
    """Workers answer what the master asks them."""
    orders, out.orders = out.orders, []
    for _, _, on_answer in orders:
        on_answer(messages.Report(told), now)


@pytest.fixture
def stepped(now):
    """A course in a training by steps, its book, and what one step of the master's loop is."""
    worker = worker_of(1)
    nodes = SimpleNamespace(all={1: worker}, nodes=lambda *roles: [], returning=False)
    rows = SimpleNamespace(busy=False, moving=False, open=lambda kind: False)
    controller = controller_of(nodes, out := TestOutbox(), rows, expel=expel)
    controller.ended_jobs.newest = 1
    blocks = [Piece("in", n, n + 1) for n in range(40)]
    book = BspSchedule(Entries(blocks), micro_batches=MICRO_BATCHES, nodes=[1])
    controller.leases.job = SimpleNamespace(
        schedule=book, pass_="train", progress=lambda now: 0.0, rules=StopRules(),
        model=SimpleNamespace(clocked=True, expires=0), clock=JobClock(0.0, 0.0),
        settings=SimpleNamespace(consistency="bsp"),
        done=lambda message, node, now: book.done(message.number, node),
        withdraw_checkouts=lambda: None,
        metrics=SimpleNamespace(units=0),
        end_early=lambda why: book.close(3 * MICRO_BATCHES),
    )  # fmt: skip
    return (
        controller,
        book,
        lambda: controller.training.step(controller.job, [worker], now.s),
        worker,
        out,
    )


def test_steps_that_are_left_when_a_training_ends_early_are_trained_however_long_that_takes(
    stepped, now
):
    controller, book, step, worker, _ = stepped
    controller.training.end_early(controller.job, "target_loss", now.s)
    for number in range(3 * MICRO_BATCHES):
        assert book.take(1).number == number
        now.s += DROP_S - 1  # all together take longer than one may
        step()
        controller.leases.done(
            worker, messages.Done("train", number, 1, 1.0, {}), lambda answer: None, now.s
        )
    assert (book.finished, worker.dropped) == (3 * MICRO_BATCHES, False)


def test_block_of_a_step_that_does_not_end_is_given_up(stepped, now):
    """What it has pushed does not matter: a step is applied with all of its slots, or never."""
    controller, book, step, worker, out = stepped
    controller.training.end_early(controller.job, "interrupt", now.s)
    book.take(1)
    step()
    answers(out, now.s, moved_bytes=0, half_pushed=True)
    now.s += DROP_S - 1
    step()
    answers(out, now.s, moved_bytes=0, half_pushed=True)
    assert not worker.dropped
    now.s += 2
    step()
    answers(out, now.s, moved_bytes=0, half_pushed=True)
    assert worker.dropped
    assert worker.missed == "21 s at its last blocks, and none of them pushed"
    assert book.over
