"""Threads that are late, as on a machine with too much to do; seeded, and without its load.

    Thread.start and its body, Event.set and wait, put and get of queues -> sleep behind them

A thread is late at a third of these, by up to so many milliseconds; a Timer is as its thread and
its Event are.  It sleeps at most half of its time, or a queue of 10,000 would take ten minutes.
"""

import os
import queue
import random
import threading
import time

SHARE = 1 / 3
FREE_S = 1.0
"""What a thread may sleep at once, before half of its time is its limit."""

_sleep, _now = time.sleep, time.monotonic
_mine = threading.local()
_draw = random.Random()
_late_s = 0.0
_pause = False


def _late():
    """Sleeps, or not."""
    if _pause or _draw.random() >= SHARE:
        return
    if not hasattr(_mine, "begun"):
        _mine.begun, _mine.slept = _now(), 0.0
    seconds = _draw.random() * _late_s
    if _mine.slept + seconds <= FREE_S + (_now() - _mine.begun) / 2:
        _mine.slept += seconds
        _sleep(seconds)


def pause(wanted):
    """Has no thread be late for now: pytest between two tests, which takes five of these a test."""
    global _pause
    _pause = wanted


def _behind(function):
    """The function, and then, perhaps, a pause."""

    def late(*arguments, **named):
        try:
            return function(*arguments, **named)
        finally:
            _late()

    return late


class _SimpleQueue(queue.SimpleQueue):
    put, get = _behind(queue.SimpleQueue.put), _behind(queue.SimpleQueue.get)


def install(seed, most_ms):
    """Has all threads of this process, and of those that it forks, be late."""
    global _late_s
    _late_s = most_ms / 1000
    _draw.seed(seed)
    os.register_at_fork(after_in_child=lambda: _draw.seed(seed + os.getpid()))
    body = threading.Thread._bootstrap_inner

    def late_body(thread):
        run = thread.run

        def late_run():
            _late()
            run()

        thread.run = late_run
        try:
            body(thread)
        finally:
            del thread.run

    threading.Thread._bootstrap_inner = late_body
    threading.Thread.start = _behind(threading.Thread.start)
    for owner, names in ((threading.Event, ("set", "wait")), (queue.Queue, ("put", "get"))):
        for name in names:
            setattr(owner, name, _behind(getattr(owner, name)))
    queue.SimpleQueue = _SimpleQueue
