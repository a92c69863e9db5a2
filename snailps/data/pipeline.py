"""Pipelines: stages that pass items through bounded queues to takers.

    source -> queue -> stage -> queue -> ... -> stage -> a queue per taker -> Pipeline.take(i)

A stage turns an iterator of items into an iterator of items, in its own thread.  Queues are
bounded, so a stage that is ahead waits, and **nothing is dropped**.  The last stage's items are
handed out round-robin, so that the distribution does not depend on speed.  An error of a stage
reaches every taker.  A source that repeats its input marks each repetition with a `Lap`: a stage
that makes nothing of the whole input fails instead of blocking its takers for ever.  Must not know
what items are.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from snailps.errors import DataError, MisuseError, SnailError

Runs = Callable[[Iterator[Any]], Iterator[Any]]
POLL_S = 0.1
"""Interval at which a stage that waits on a queue checks whether the pipeline is closed."""
BOUND = 8
"""Default number of items that may wait in front of a stage or a taker."""
LAPS = 3
"""Repetitions of the whole input after which a stage without output fails."""
JOIN_S = 5.0
"""Longest wait of `close` for a stage."""


class Stage:
    """A stage of a pipeline: subclass it and write `__call__` as a generator.

    Attributes
    ----------
    gathers : bool
        The stage may need the whole input more than `LAPS` times before its first output.

    Notes
    -----
    A stage is called once, in its own thread, so its state needs no lock.

    Examples
    --------
    >>> class LongWords(Stage):
    ...     def __call__(self, items):
    ...         for words in items:
    ...             yield b" ".join(word for word in words.split() if len(word) > 3)
    >>> list(LongWords()([b"the snail crosses", b"the sea"]))
    [b'snail crosses', b'']
    """

    gathers = False

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        """Turn items in order into items in order, any number for each."""
        raise NotImplementedError(f"{type(self).__name__} has no __call__()")


class Lap:
    """An item that stages never see: the source has yielded its whole input and starts again."""


class _LastItem:
    """The last item: the input has ended, or a stage failed."""

    def __init__(
        self, stage: str = "", error: BaseException | None = None, trace: str = ""
    ) -> None:
        self.stage, self.error, self.trace = stage, error, trace


class _Closed(Exception):
    """Ends a thread that waits on a queue of a closed pipeline."""


_Queue = queue.Queue[Any]


class Pipeline:
    """Running stages; `close` ends them.

    The first stage is the source and gets an empty iterator.  Up to `bound` items wait in front of
    each stage and each taker.  Each item goes to one taker; each taker may be another thread.
    """

    def __init__(self, stages: Sequence[Runs], takers: int = 1, bound: int = BOUND) -> None:
        if not stages or takers < 1 or bound < 1:
            raise MisuseError(
                "a pipeline needs at least one stage, one taker and a bound of 1; got "
                f"{len(stages)} stages, {takers} takers, bound {bound}"
            )
        self._stop = threading.Event()
        between = [_Queue(bound) for _ in range(len(stages) - 1)]
        self._outs = [_Queue(bound) for _ in range(takers)]
        self._running = [
            threading.Thread(
                target=_run,
                args=(
                    stage,
                    between[place - 1] if place else None,
                    [between[place]] if place < len(between) else self._outs,
                    self._stop,
                ),
                name=f"snailps-{stage_name(stage)}",
                daemon=True,
            )
            for place, stage in enumerate(stages)
        ]
        for running in self._running:
            running.start()

    def take(self, taker: int = 0, give_up: Callable[[], bool] = lambda: False) -> Any:
        """Wait for the next item of a taker; None once it has had all its items.

        DataError: a stage failed.  MisuseError: the pipeline was closed, or `give_up`, called at
        intervals, returned True.
        """
        while True:
            try:
                item = self._outs[taker].get(timeout=POLL_S)
            except queue.Empty:
                if self._stop.is_set() or give_up():
                    raise MisuseError(
                        "the pipeline was closed while a taker waited for its next item"
                    ) from None
                continue
            if isinstance(item, Lap):
                continue
            if not isinstance(item, _LastItem):
                return item
            with contextlib.suppress(queue.Full):
                self._outs[taker].put(item, block=False)  # so that the next call ends as well
            if item.error is None:
                return None
            if isinstance(item.error, SnailError):
                raise item.error
            raise DataError(f"stage {item.stage} of a pipeline failed: {item.error}\n{item.trace}")

    def close(self) -> None:
        """End all stages and drop queued items; may be called again."""
        self._stop.set()
        for out in self._outs:  # a stage may be waiting for room
            with contextlib.suppress(queue.Empty):
                while True:
                    out.get(block=False)
        for running in self._running:
            running.join(JOIN_S)
        self._running = []

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stage_name(stage: Runs) -> str:
    return getattr(stage, "__name__", type(stage).__name__)


def _run(stage: Runs, into: _Queue | None, outs: Sequence[_Queue], stop: threading.Event) -> None:
    """The thread of a stage: items in, items out round-robin; at the end, its outcome to all."""
    produced = 0
    # A failure of an earlier stage.  It is passed on even if this stage swallows the exception by
    # which it learns of it: takers must not mistake a failure for the end of the input.
    before: _LastItem | None = None

    def items() -> Iterator[Any]:
        """The stage's input without laps, which go straight to the next stage."""
        nonlocal before
        taken = laps = 0
        for item in _items(into, stop) if into is not None else iter(()):
            if isinstance(item, _LastItem):
                before = item
                raise _StageFailed
            if not isinstance(item, Lap):
                taken += 1
                yield item
                continue
            laps += 1
            if laps >= LAPS and taken and not (produced or getattr(stage, "gathers", False)):
                raise DataError(
                    f"stage {stage_name(stage)} of a pipeline was given the whole input {laps} "
                    f"times, {taken} items, and has made nothing of it"
                )
            for out in outs:
                _put(out, item, stop)

    try:
        try:
            for item in stage(items()):
                if isinstance(item, Lap):
                    for out in outs:
                        _put(out, item, stop)
                    continue
                _put(outs[produced % len(outs)], item, stop)
                produced += 1
            end = _LastItem()
        except _Closed:
            raise
        except BaseException as error:  # SystemExit too: the next stages wait for an outcome
            end = _LastItem(stage_name(stage), error, traceback.format_exc())
        for out in outs:
            _put(out, before or end, stop)
    except _Closed:
        pass


class _StageFailed(Exception):
    """Raised inside a stage's iteration: an earlier stage failed."""


def _items(into: _Queue, stop: threading.Event) -> Iterator[Any]:
    """The items of a queue; the `_LastItem` itself only if it carries an error."""
    while True:
        try:
            item = into.get(timeout=POLL_S)
        except queue.Empty:
            if stop.is_set():
                raise _Closed from None
            continue
        if isinstance(item, _LastItem):
            if item.error is not None:
                yield item
            return
        yield item


def _put(out: _Queue, item: Any, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            out.put(item, timeout=POLL_S)
            return
        except queue.Full:
            continue
    raise _Closed
