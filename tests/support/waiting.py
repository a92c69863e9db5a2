"""Waits of tests: until a condition holds, or until it can no longer come to hold.

    until(found, what) -> the first true value that `found` returns
    copied(cluster): each shard has a whole standby
    event, queue, thread, semaphore, descriptor -> happens, got, joined, acquired, readable
    run_all(*work): a thread for each, until all have ended
    InVain <- at once: why it can no longer come; after LIMIT_S: what it waited for

A wait is in vain if the caller says so (`over`), if a thread of this test has died of an error, or
if a function given to `watch` says so: processes.py asks whether all processes of the test have
ended.
"""

import select
import threading
from time import monotonic, sleep

LIMIT_S = 120.0
"""Of last resort: no test passes or fails by it, unless something hangs."""
PAUSE_S = 0.005

watchers = []
_died = []  # of this test's threads, those that an error has ended
_earlier = set()  # threads of tests before this one


class InVain(AssertionError):
    """A condition has not come to hold, or can no longer."""


def watch(reason):
    """Has each wait call `reason`: why nothing can come any more, or an empty string."""
    watchers.append(reason)
    return reason


def until(found, what="it", *, over=lambda: "", limit_s=LIMIT_S):
    """Waits until `found` returns something true, and returns that.

    `what` names it in words, or is a function that describes the state.  `over` returns why it can
    no longer come; `found` is called once more then, as it may have come at the last moment.
    """
    end = monotonic() + limit_s
    while True:
        why = over() or next(filter(None, (reason() for reason in watchers)), "")
        if not why and monotonic() > end:
            why = f"has not come in {limit_s:g} s"
        if result := found():
            return result
        if why:
            raise InVain(f"{what() if callable(what) else what}: {why}")
        sleep(PAUSE_S)


def copied(cluster):
    """Waits until each shard of a local cluster or session has a complete standby."""

    def states():
        return [shard["state"] for shard in cluster.status()["shards"]]

    until(lambda: {*states()} == {"ready"}, lambda: f"a standby of each shard: {states()}")


def happens(event, what="an event"):
    """Waits for an event, or for anything whose wait() returns whether it is over."""
    until(lambda: event.wait(10 * PAUSE_S), what)


def readable(descriptor, what="something to read"):
    """Waits until a descriptor is readable, as that of a process is when it has ended."""
    until(lambda: select.select([descriptor], [], [], 10 * PAUSE_S)[0], what)


def acquired(semaphore, what="a semaphore"):
    """Takes a semaphore."""
    until(lambda: semaphore.acquire(timeout=10 * PAUSE_S), what)


def got(queue, what="an item of a queue"):
    """The next item of a queue."""
    until(lambda: not queue.empty(), what)
    return queue.get()


def joined(*threads):
    """Waits until threads have ended."""
    for thread in threads:
        thread.join(10 * PAUSE_S)
        until(lambda thread=thread: not thread.is_alive(), f"the end of {thread.name}")


def run_all(*work):
    """Runs functions in a thread each; raises the error of one of them."""
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,), daemon=True) for function in work]
    for thread in threads:
        thread.start()
    joined(*threads)
    if errors:
        raise errors[0]


def _why_threads_died():
    return "; ".join(_died)


watch(_why_threads_died)


def forget_threads():
    """Begins a test: threads that died before it belong to earlier tests."""
    _died.clear()
    _earlier.clear()
    _earlier.update(threading.enumerate())


def note_threads():
    """Notes errors that end threads, before the former hook gets them."""
    before = threading.excepthook

    def note(args):
        name = args.thread.name if args.thread else "a thread"
        if args.thread not in _earlier:
            _died.append(f"{name} has died of {args.exc_value!r}")
        before(args)

    threading.excepthook = note
