"""Pieces of work in threads, their results in order.

    items, function -> in_order -> function(item) of each, a few items ahead of who takes them

The function is meant to release the GIL.  Threads live as long as the iteration: none is left for
a process that is forked, which begins iterations of its own.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

from snailps.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Iterator[Result]:
    """Results of `function`; at most `threads` of them are under way, and as many wait.

    One item is no work for a thread of its own.  DataError: a process that was forked meanwhile
    goes on with it.
    """
    items = iter(items)
    first = list(islice(items, min(threads, 2)))
    items = chain(first, items)
    if len(first) < 2:
        yield from map(function, items)
        return
    process = os.getpid()
    for result in _in_threads(function, items, threads):
        yield result
        if os.getpid() != process:
            raise DataError("this was begun in the process that was forked: begin it anew here")


def _in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Iterator[Result]:
    under_way: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, "snailps-piece") as pool:
        for item in items:
            under_way.append(pool.submit(function, item))
            if len(under_way) > 2 * threads:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
