"""Owns pipelines: stages that hand items on through bounded queues, and who gets the results.

    source -> queue -> stage -> queue -> ... -> stage -> a queue each taker -> Pipeline.take(i)

A stage turns an iterator of items into an iterator of items: a `Stage`, or any generator function
of one argument.  Each runs in a thread or a process of its own.  Queues are bounded, so a stage
that is ahead waits for the next one, and **nothing is dropped**: every item that goes into a queue
comes out of it, in order.  The last stage's items are dealt in turn, item k to taker k mod takers,
so that who gets what does not depend on who is quick.  An error of a stage reaches every taker.  A
source that begins again and again says so with a `Lap`: a stage that makes nothing of all that is
there would else be waited for in vain.
What the items are (text, words, batches) is not known here; see windows.py.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol

from snailps.errors import DataError, MisuseError, SnailError, place_of

Kind = Literal["threads", "processes"]
Runs = Callable[[Iterator[Any]], Iterator[Any]]
POLL_S = 0.1
"""How soon a stage that waits on a queue sees that the pipeline is closed."""
LAPS = 3
"""Times that a stage may be given all there is, and make nothing of it."""
JOIN_S = 5.0
"""A stage that has not ended so long after `close` is left behind (a thread) or ended."""


class Stage:
    """A stage of a pipeline.  Subclass it and write `__call__` as a generator.

        class LongWords(snailps.Stage):
            def __call__(self, items):
                for words in items:
                    yield b" ".join(word for word in words.split() if len(word) > 3)

    Attributes
    ----------
    gathers : bool
        It may need the whole input more than `LAPS` times before it makes its first item.

    Notes
    -----
    What a stage keeps between two items is its own: it is called once, in the thread or process
    that it runs in.  For processes it is pickled before that.
    """

    gathers = False

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        """Items in order -> items in order; any number of them for each that comes in."""
        raise NotImplementedError(f"{type(self).__name__} has no __call__()")


class Lap:
    """An item that no stage sees: a source has given everything once, and begins again."""


class _End:
    """The last item: all is said, or a stage failed."""

    def __init__(
        self, stage: str = "", error: BaseException | None = None, trace: str = ""
    ) -> None:
        self.stage, self.error, self.trace = stage, error, trace


class _Closed(Exception):
    """The pipeline is closed: whoever waits on a queue stops."""


class _Queue(Protocol):
    """What queue.Queue and multiprocessing.Queue share."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None: ...
    def get(self, block: bool = True, timeout: float | None = None) -> Any: ...


class _Flag(Protocol):
    def is_set(self) -> bool: ...
    def set(self) -> None: ...


class _Pickling:
    """A queue between processes that pickles in `put`, where the stage that made an item hears of
    it; the queue's own thread would drop what cannot be pickled.

    Parameters
    ----------
    inner : multiprocessing.Queue
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._inner.put(pickle.dumps(item, pickle.HIGHEST_PROTOCOL), block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        return pickle.loads(self._inner.get(block, timeout))

    def cancel_join_thread(self) -> None:
        self._inner.cancel_join_thread()


class Pipeline:
    """Stages at work, from when it is made until `close`.

    Parameters
    ----------
    stages : sequence of Stage or callable
        Iterator of items -> iterator of items; the first gets an empty one and is the source.
    takers : int
        How many take results, each its own; at least 1.
    bound : int
        Items that may wait in front of each stage and of each taker.
    kind : str
        "threads", or "processes": stages and items are then pickled, and travel between processes
        of this program on this machine only.

    Notes
    -----
    Memory: up to `bound` items in each of ``len(stages) - 1 + takers`` queues, and one in each
    stage's hands.  Threads may call `take` of different takers at once.
    """

    def __init__(
        self, stages: Sequence[Runs], takers: int = 1, bound: int = 8, kind: Kind = "threads"
    ) -> None:
        if not stages or takers < 1 or bound < 1:
            raise MisuseError(
                "a pipeline needs at least one stage, one taker and a bound of 1; got "
                f"{len(stages)} stages, {takers} takers, bound {bound}"
            )
        self._end: _End | None = None
        self._outs: list[_Queue] = []
        self._stop: _Flag
        self._running: list[Any] = []
        if kind == "processes":
            context = multiprocessing.get_context("spawn")
            self._stop = context.Event()
            make: Callable[[], Any] = lambda: _Pickling(context.Queue(bound))  # noqa: E731
            start: Callable[..., Any] = context.Process
        else:
            self._stop = threading.Event()
            make = lambda: queue.Queue(bound)  # noqa: E731
            start = threading.Thread
        # Kept: a process that starts still has to find the semaphores of its queues.
        self._between = between = [make() for _ in range(len(stages) - 1)]
        self._outs = [make() for _ in range(takers)]
        for at, stage in enumerate(stages):
            into = between[at - 1] if at else None
            out = [between[at]] if at < len(between) else self._outs
            self._running.append(
                start(
                    target=_run_in_process if kind == "processes" else _run,
                    args=(stage, into, out, self._stop),
                    name=f"snailps-{stage_name(stage)}",
                    daemon=True,
                )
            )
        for running in self._running:
            running.start()

    def take(self, taker: int = 0, give_up: Callable[[], bool] = lambda: False) -> Any:
        """The next item for a taker; waits for it.  None once the taker has had all its items.

        Parameters
        ----------
        taker : int
        give_up : callable
            Asked now and then while waiting; true ends the wait.

        Raises
        ------
        DataError
            A stage failed; the message names it and says why.
        MisuseError
            The pipeline was closed, or the wait given up.
        """
        while True:
            try:
                item = self._outs[taker].get(timeout=POLL_S)
            except queue.Empty:
                if self._stop.is_set() or give_up():
                    raise MisuseError(
                        "the pipeline was closed while its result was waited for"
                    ) from None
                self._check_alive()
                continue
            if isinstance(item, Lap):
                continue
            if not isinstance(item, _End):
                return item
            with contextlib.suppress(queue.Full):
                self._outs[taker].put(item, block=False)  # the next call sees it, too
            if item.error is None:
                return None
            if isinstance(item.error, SnailError):
                raise item.error
            raise DataError(f"stage {item.stage} of a pipeline failed: {item.error}\n{item.trace}")

    def _check_alive(self) -> None:
        """A process that died without a word would be waited for in vain."""
        for running in self._running:
            code = getattr(running, "exitcode", None)
            if code not in (None, 0):
                raise DataError(
                    f"the process of {running.name} ended with code {code}: it was killed, or its "
                    "module cannot be imported by a new process (a stage must not be defined in a "
                    "script's main module without an `if __name__ == '__main__'`)"
                )

    def close(self) -> None:
        """Ends all stages; what is in the queues is gone.  More calls do nothing."""
        self._stop.set()
        for out in self._outs:  # a stage may wait for room
            with contextlib.suppress(queue.Empty):
                while True:
                    out.get(block=False)
        for running in self._running:
            running.join(JOIN_S)
            if running.is_alive() and hasattr(running, "terminate"):
                running.terminate()
                running.join(JOIN_S)
        self._running = []

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stage_name(stage: Runs) -> str:
    """What to call a stage in messages."""
    return getattr(stage, "__name__", type(stage).__name__)


def _run(stage: Runs, into: _Queue | None, outs: Sequence[_Queue], stop: _Flag) -> None:
    """A stage's life: items in, items out in turn, and to everybody behind it how it ended."""
    given = 0

    def items() -> Iterator[Any]:
        """What comes in; laps go on to whoever is behind this stage."""
        taken = laps = 0
        for item in _items(into, stop) if into is not None else iter(()):
            if not isinstance(item, Lap):
                taken += 1
                yield item
                continue
            laps += 1
            if laps >= LAPS and taken and not (given or getattr(stage, "gathers", False)):
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
                _put(outs[given % len(outs)], item, stop)
                given += 1
            end = _End()
        except _Failed as failed:
            end = failed.end
        except _Closed:
            raise
        except BaseException as error:  # SystemExit, too: who waits behind it has to hear of it
            end = _End(stage_name(stage), _portable(error), traceback.format_exc())
        for out in outs:
            _put(out, end, stop)
    except _Closed:
        pass


def _portable(error: BaseException) -> BaseException:
    """The error, if it can go from process to process; else one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}{place_of(error)}")
    return error


def _run_in_process(stage: Runs, into: _Queue | None, outs: Sequence[Any], stop: _Flag) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever made the pipeline ends it
    _run(stage, into, outs, stop)
    for end in (*outs, into):
        if end is not None and stop.is_set():
            end.cancel_join_thread()  # nobody reads what is left


class _Failed(Exception):
    """A stage in front of this one failed."""

    def __init__(self, end: _End) -> None:
        super().__init__()
        self.end = end


def _items(into: _Queue, stop: _Flag) -> Iterator[Any]:
    while True:
        try:
            item = into.get(timeout=POLL_S)
        except queue.Empty:
            if stop.is_set():
                raise _Closed from None
            continue
        if isinstance(item, _End):
            if item.error is not None:
                raise _Failed(item)
            return
        yield item


def _put(out: _Queue, item: Any, stop: _Flag) -> None:
    while not stop.is_set():
        try:
            out.put(item, timeout=POLL_S)
            return
        except queue.Full:
            continue
    raise _Closed
