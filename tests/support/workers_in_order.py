"""Workers that train together, one at a time in a set order: each run gives the same numbers.

An order chooses who goes on.  The trainers are the product's: kernels, called for a piece of a
worker's range at a time, and rotating workers, each in a thread that stops before it opens its
partition, before each checkout and after each turn of one.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from rotating import MemoryWorker, blocks_of_chunk
from waiting import LIMIT_S, acquired

from snailps.models.rotation import trainer
from snailps.models.rotation.input_exchange import InputExchange
from snailps.models.rotation.trainer import _LeaseTraining

States = Sequence[str]
"""Of each worker: "new", "turn" (stopped between two), "blocked" (waits for a part), "done"."""
Order = Callable[[States], Sequence[int]]
"""Which workers make a step each, one after the other, before it is asked again."""


def _live(states: States) -> list[int]:
    return [at for at, state in enumerate(states) if state != "done"]


def in_turns(states: States) -> list[int]:
    """One partition after the other."""
    return _live(states)[:1]


def lockstep(states: States) -> list[int]:
    """Gives each worker a turn, like that many idle cores."""
    return _live(states)


def stalled(states: States) -> list[int]:
    """Stalls the last worker after it opened its partition, until all others need its part."""
    last = len(states) - 1
    if states[last] == "new":
        return [last]
    going = [at for at in _live(states) if at != last]
    return going if any(states[at] != "blocked" for at in going) else _live(states)


def seeded(seed: int) -> Order:
    """Draws the worker of each turn."""
    generator = random.Random(seed)
    return lambda states: [generator.choice(_live(states))]


ORDERS = {"lockstep": lockstep, "stalled": stalled, "random": seeded(1)}
"""Besides that in which one trains after the other."""

Spans = Sequence[tuple[int, int]]
"""Of each worker, the first of its range and that behind the last."""


def train_pieces(
    train: Callable[[int, int, int], Any],
    arrays: Sequence[np.ndarray],
    spans: Spans,
    size: int,
    order: Order,
    derive: Callable[[], None] = lambda: None,
) -> list[Any]:
    """What `train(worker, first, last)` returned for each piece of each worker's range.

    Workers that an order names together all begin with the same arrays, and what they change is
    added up: as threads do that see what others write a piece late.  `derive` then makes anew what
    in the arrays is no sum.
    """
    unfinished = [list(range(first, last, size)) for first, last in spans]
    states, returned = ["new"] * len(spans), []
    while any(unfinished):
        before = [array.copy() for array in arrays]
        after = [array.copy() for array in arrays]
        for worker in order(states):
            first = unfinished[worker].pop(0)
            returned.append(train(worker, first, min(first + size, spans[worker][1])))
            states[worker] = "turn" if unfinished[worker] else "done"
            for array, begun, sums in zip(arrays, before, after, strict=True):
                sums += array - begun
                array[:] = begun
        for array, sums in zip(arrays, after, strict=True):
            array[:] = sums
        derive()
    return returned


class Steps:
    """A thread that runs only while `advance` waits for it."""

    def __init__(self, work: Callable[[Steps], Any]) -> None:
        self.state = "new"
        self._error: BaseException | None = None
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[Steps], Any]) -> None:
        assert self._go.acquire(timeout=LIMIT_S)
        try:
            work(self)
        except BaseException as error:
            self._error = error
        self.state = "done"
        self._stopped.release()

    def stop(self, state: str) -> None:
        """Called by the thread: stops until it is to go on."""
        self.state = state
        self._stopped.release()
        assert self._go.acquire(timeout=LIMIT_S)

    def advance(self) -> None:
        """Lets the thread run to its next stop."""
        if self.state != "done":
            self._go.release()
            acquired(self._stopped, "the next stop of a worker")
        if self._error:
            raise self._error


class _Lazily:
    """Replaces an executor: work is done by the thread that asks for the result."""

    def submit(self, function: Callable[..., Any], *args: Any) -> _Lazily:
        """Remembers the work."""
        self._work = lambda: function(*args)
        return self

    def done(self) -> bool:
        """No."""
        return False

    def result(self) -> Any:
        """Does it."""
        return self._work()


class AtOnce:
    """Replaces an executor: work is done at once."""

    def submit(self, function: Callable[..., Any], *args: Any, **named: Any) -> Future[Any]:
        """Does the work."""
        future: Future[Any] = Future()
        future.set_result(function(*args, **named))
        return future

    def shutdown(self) -> None:
        """There is nothing to wait for."""


class _NoWait:
    """Replaces the condition on which a worker waits for a part."""

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...
    def notify_all(self) -> None:
        """Does nothing: a worker that waits is asked again in any case."""

    def wait(self, _: float) -> bool:
        """Lets others go on."""
        _running().stop("blocked")
        return True


_current: list[Steps] = []


def _running() -> Steps:
    return _current[-1]


def losses_in_order(
    workers: list[MemoryWorker], texts: list[list[bytes]], order: Order, epochs: int = 1
) -> list[float]:
    """Loss of each chunk over all its workers, while an order decides who goes on.

    No time passes for the trainers, as after some seconds they would push rows once more.
    """
    total, losses = epochs * len(texts), []
    exchange, check_out = InputExchange.exchange, _LeaseTraining._check_out

    def exchange_and_stop(self: InputExchange, number: int) -> None:
        exchange(self, number)
        _running().stop("turn")

    def lease(worker: MemoryWorker, block: Any, figures: list[dict[str, float]]) -> Any:
        def work(steps: Steps) -> None:
            block.prepared = worker.prepare(block)
            rotating = worker.rotating
            with (
                patch.object(rotating, "ahead", _Lazily()),
                patch.object(rotating, "behind", AtOnce()),
                patch.object(worker.sgd, "pool", AtOnce()),
            ):
                figures.append(dict(worker.train(block)))

        return work

    def check_out_later(self: Any) -> Any:
        _running().stop("turn")
        return check_out(self)

    with (
        patch.object(trainer, "time", SimpleNamespace(monotonic=lambda: 0.0)),
        patch.object(InputExchange, "exchange", exchange_and_stop),
        patch.object(_LeaseTraining, "_check_out", check_out_later),
    ):
        for chunk in range(total):
            shares = (0.999 * chunk / total, 0.999 * (chunk + 1) / total)  # not to the end
            blocks = blocks_of_chunk(workers, texts[chunk % len(texts)], chunk, shares)
            blocks[0].checkouts.shared.changed = _NoWait()  # type: ignore[attr-defined]
            figures: list[dict[str, float]] = []
            all_steps = [
                Steps(lease(worker, block, figures))
                for worker, block in zip(workers, blocks, strict=True)
            ]
            while any(steps.state != "done" for steps in all_steps):
                for at in order([steps.state for steps in all_steps]):
                    _current[:] = [all_steps[at]]
                    all_steps[at].advance()
            examples = sum(partition["examples"] for partition in figures)
            losses.append(sum(partition["loss"] for partition in figures) / max(1, examples))
    return losses
