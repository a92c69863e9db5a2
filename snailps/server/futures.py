"""Combines futures without blocking.

    futures of shards -> settled, gather -> one future          future -> then -> another one

Continuations run in the thread that completes the last future, so they must not block either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def then(future: Future[T], follow: Callable[[T], U]) -> Future[U]:
    """A future of `follow(result)`; an error is passed on."""
    made: Future[U] = Future()

    def done(future: Future[T]) -> None:
        try:
            made.set_result(follow(future.result()))
        except BaseException as error:
            made.set_exception(error)

    future.add_done_callback(done)
    return made


def settled(futures: Sequence[Future[T]]) -> Future[Sequence[Future[T]]]:
    """A future of the same futures, done once each has its result or error."""
    made: Future[Sequence[Future[T]]] = Future()
    lock = threading.Lock()
    left = len(futures)

    def done(_: Future[T]) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            made.set_result(futures)

    if not futures:
        made.set_result(futures)
    for future in futures:
        future.add_done_callback(done)
    return made


def gather(futures: Sequence[Future[T]]) -> Future[list[T]]:
    """All results in order, or the first error in order, once all are done."""
    return then(settled(futures), lambda ended: [future.result() for future in ended])
