"""Work beside the master's loop: lanes keep their order, errors and results come back."""

import threading

import pytest
from processes import LIMIT_S
from waiting import until

from snailps.master.background_tasks import BackgroundTasks
from snailps.node.effects import Work


def ended(works, count):
    """What has come to its end, once so many have."""
    found = []
    until(lambda: found.extend(works.ended()) or len(found) >= count, "the end of works")
    return found


def test_works_of_a_lane_run_in_order_and_others_beside_them():
    works, go_on, order = BackgroundTasks(), threading.Event(), []
    works.begin(Work(1, lambda: order.append(go_on.wait(LIMIT_S)), "fetch"))
    works.begin(Work(2, lambda: order.append("second"), "fetch"))
    works.begin(Work(3, lambda: "beside", ""))
    (beside,) = ended(works, 1)
    assert (beside.work, beside.result, beside.error) == (3, "beside", None)
    assert works.has("fetch")
    assert not order
    go_on.set()
    assert [one.work for one in ended(works, 2)] == [1, 2]
    assert order == [True, "second"]
    assert not works.has("fetch")


def test_error_of_a_work_is_handed_on_and_its_lane_goes_on():
    works = BackgroundTasks()
    works.begin(Work(1, lambda: 1 / 0, "checkpoint"))
    works.begin(Work(2, lambda: 5, "checkpoint"))
    first, second = ended(works, 2)
    assert isinstance(first.error, ZeroDivisionError)
    assert second.result == 5


def test_first_error_is_raised_where_it_is_waited_for():
    works = BackgroundTasks()
    works.begin(Work(1, lambda: 1 / 0, ""))
    with pytest.raises(ZeroDivisionError):
        works.wait_first(LIMIT_S)


def test_end_waits_for_a_whole_lane_and_for_no_hanging_work():
    works, go_on, done = BackgroundTasks(), threading.Event(), []
    works.begin(Work(1, lambda: go_on.wait(LIMIT_S), ""))
    for number in (2, 3):
        works.begin(Work(number, lambda: done.append(1), "checkpoint"))
    works.wait_all(LIMIT_S, "checkpoint")
    assert len(done) == 2
    works.wait_all(0.01)
    go_on.set()
    works.wait_all(LIMIT_S)
    assert not works.ended()


def test_end_of_a_work_wakes_the_loop():
    awake = threading.Event()
    works = BackgroundTasks(awake.set)
    works.begin(Work(1, lambda: 5, ""))
    assert awake.wait(LIMIT_S)
    assert [one.result for one in works.ended()] == [5]
