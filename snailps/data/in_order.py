"""Work in threads, with results in the order of the items.

    items, function -> in_order -> function(item) of each item, a few ahead of the consumer

Meant for functions that release the GIL.  The threads live as long as the iteration: a process that
forks between two iterations has none that the child would miss.
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
    """Results of `function` for each item, in order, from `threads` threads.

    At most twice `threads` items are taken ahead of the consumer, which bounds memory.  A single
    item, or a single thread, is worked on by the caller.  DataError: a child that was forked during
    the iteration goes on with it, and has none of the threads.
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
            raise DataError(
                "this iteration was begun before the process was forked: begin a new one here"
            )


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
