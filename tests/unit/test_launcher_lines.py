"""The lines of a session's processes: shown, held while a quiet job runs, dropped if it fails."""

import pytest

from snailps.local.launcher import HELD_MAX, ChildLines


@pytest.fixture
def shown():
    return []


@pytest.fixture
def lines(shown):
    made = ChildLines(lambda name, line: shown.append((name, line)))
    made.may_hold = True
    return made


def test_held_lines_are_shown_in_order_when_the_job_is_done(lines, shown):
    lines.hold()
    lines.take("worker 1", "a")
    lines.take("server 1", "b")
    assert shown == []
    lines.release()
    lines.take("worker 1", "c")
    assert shown == [("worker 1", "a"), ("server 1", "b"), ("worker 1", "c")]


def test_lines_of_a_failed_job_are_dropped_those_that_come_later_too(lines, shown):
    lines.hold()
    lines.take("worker 1", "a")
    lines.drop()
    lines.take("worker 1", "b")
    lines.release()
    lines.take("worker 1", "c")
    assert shown == [("worker 1", "c")]


def test_newest_lines_are_held(lines, shown):
    lines.hold()
    for number in range(HELD_MAX + 1):
        lines.take("worker 1", str(number))
    lines.release()
    assert len(shown) == HELD_MAX
    assert shown[-1] == ("worker 1", str(HELD_MAX))


def test_lines_with_a_log_are_never_held(lines, shown):
    lines.may_hold = False
    lines.hold()
    lines.take("worker 1", "a")
    lines.drop()
    lines.take("worker 1", "b")
    assert shown == [("worker 1", "a"), ("worker 1", "b")]


def test_lines_that_cannot_be_shown_are_taken_nevertheless():
    def show(name, line):
        raise ValueError("I/O operation on closed file.")

    lines = ChildLines(show)
    lines.take("worker 1", "a")
    lines.may_hold = True
    lines.hold()
    lines.take("worker 1", "b")
    lines.release()
    lines.take("worker 1", "c")
