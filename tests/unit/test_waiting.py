"""waiting.py: a wait ends when what it waits for comes, and at once when it no longer can."""

import queue
import threading

import pytest
import waiting
from waiting import InVain, acquired, got, happens, joined, until


def test_until_returns_what_was_found():
    found = iter(["", 0, "here"])
    assert until(lambda: next(found)) == "here"


def test_until_says_how_things_are_when_the_time_is_up():
    with pytest.raises(InVain, match=r"^3 of 4: has not come in 0.01 s$"):
        until(lambda: False, lambda: "3 of 4", limit_s=0.01)


def test_until_ends_with_the_reason_but_takes_what_came_last():
    state = {"came": False}

    def over():
        state["came"] = True  # between a look and the end of what it comes from
        return "its server has ended"

    assert until(lambda: state["came"], over=over)
    with pytest.raises(InVain, match=r"^a reply: its server has ended$"):
        until(lambda: False, "a reply", over=lambda: "its server has ended")


def test_until_asks_watchers(monkeypatch):
    monkeypatch.setattr(waiting, "watchers", [lambda: "", lambda: "all have ended"])
    with pytest.raises(InVain, match="all have ended"):
        until(lambda: False)


def test_dead_thread_ends_waits_with_its_error(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    waiting.note_threads()
    event, thread = threading.Event(), threading.Thread(target=lambda: 1 / 0, name="the sender")
    thread.start()
    thread.join()
    try:
        with pytest.raises(InVain, match=r"a mark: the sender has died of ZeroDivisionError"):
            happens(event, "a mark")
    finally:
        waiting.forget_threads()
    event.set()
    happens(event)


def test_items_semaphores_and_ends_of_threads_are_waited_for():
    items, semaphore = queue.SimpleQueue(), threading.Semaphore(0)
    thread = threading.Thread(target=lambda: (items.put(7), semaphore.release()))
    thread.start()
    assert got(items) == 7
    acquired(semaphore)
    joined(thread)
