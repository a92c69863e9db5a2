"""Performs the effects of a `ServerCore`: answers, shards, posts, streams, dials, works.

    order -> ordered -> Ordered -> the core -> Answering -> the order's future
    Effect -> perform -> shard threads, connections -> WorkDone, StreamReported

Decides nothing, and never waits: what takes time runs in a thread of its own and comes back as an
event.  Owns the running shards and their unanswered posts.  Must not know how a shard gets its
socket, nor how to connect to another server: the process passes functions for both.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from snailps.errors import ClusterError, ConnectionLost, SnailError, WaitTimeout, explain
from snailps.node.background import in_thread
from snailps.node.effects import Answering, Effect, Event, Work, WorkDone
from snailps.server import effects, events
from snailps.server.events import Address
from snailps.shard.shard_thread import ShardThread
from snailps.transport import messages

log = logging.getLogger(__name__)
GONE = "the shard has stopped serving"

Start = Callable[[effects.StartShard], tuple[ShardThread, Address]]
"""Starts a shard; returns the shard and its endpoint."""
Connect = Callable[[effects.Dial, Callable[[], bool]], int]
"""``connect(dial, give_up)`` returns the descriptor of a connection to another server."""


class Performer:
    """Performs the effects of one server; one thread calls `perform`, any thread `ordered`."""

    def __init__(
        self,
        inbox: queue.SimpleQueue[Event],
        *,
        start: Start,
        connect: Connect,
        note: Callable[[messages.Message], None],
        close_listeners: Callable[[], None],
    ) -> None:
        self.shards: dict[int, ShardThread] = {}
        self._inbox, self._start, self._connect = inbox, start, connect
        self._calls: dict[int, Future[messages.Message]] = {}
        self._calls_lock = threading.Lock()
        self._last_call = 0
        self._not_started: dict[int, SnailError] = {}  # shard -> why
        self._posts: dict[int, Future[Any]] = {}  # unanswered posts
        self._given_up: set[int] = set()  # cancelled dials
        self._methods: Mapping[type[Effect], Callable[[Any], None]] = {
            Answering: self._answer,
            effects.Note: lambda effect: note(effect.message),
            effects.StartShard: self._start_shard,
            effects.StopShard: self._stop_shard,
            effects.CloseListeners: lambda effect: close_listeners(),
            effects.Post: self._post,
            effects.Withdraw: self._withdraw,
            effects.Dial: self._dial,
            effects.GiveUp: lambda effect: self._given_up.add(effect.dial),
            effects.CloseLink: lambda effect: os.close(effect.link),
            effects.Stream: self._stream,
            Work: self._work,
        }

    def ordered(self, message: messages.Message) -> Future[messages.Message]:
        """Pass an order of the master to the core; the future has its answer."""
        future: Future[messages.Message] = Future()
        with self._calls_lock:
            self._last_call += 1
            call = self._last_call
        self._calls[call] = future
        self._inbox.put(events.Ordered(call, message))
        return future

    def perform(self, wanted: Iterable[Effect]) -> None:
        for effect in wanted:
            self._methods[type(effect)](effect)

    def _answer(self, effect: Answering) -> None:
        future = self._calls.pop(effect.call)
        if isinstance(effect.answer, SnailError):
            future.set_exception(effect.answer)
        else:
            assert isinstance(effect.answer, messages.Message)
            future.set_result(effect.answer)

    def _start_shard(self, effect: effects.StartShard) -> None:
        try:
            shard, endpoint = self._start(effect)
        except Exception as error:
            if not isinstance(error, SnailError):
                log.exception("shard %d cannot be started", effect.number)
                error = ClusterError(f"shard {effect.number} cannot be started: {explain(error)}")
            self._not_started[effect.shard] = error
            self._inbox.put(WorkDone(effect.shard, error=error))
        else:
            self.shards[effect.shard] = shard
            self._inbox.put(WorkDone(effect.shard, endpoint))

    def _stop_shard(self, effect: effects.StopShard) -> None:
        shard = self.shards.pop(effect.shard, None)
        if shard is not None:  # frees its memory, which takes a while
            in_thread("snailps-hosting", shard.stop).add_done_callback(_say_why)

    def _post(self, effect: effects.Post) -> None:
        shard = self.shards.get(effect.shard)
        if shard is None:
            error = self._not_started.get(effect.shard) or ConnectionLost(GONE)
            self._inbox.put(WorkDone(effect.post, error=error))
            return
        future = shard.post(partial(effect.do, shard.shard), at_standby=effect.at_standby)
        self._posts[effect.post] = future
        future.add_done_callback(partial(self._done, effect.post))

    def _done(self, number: int, future: Future[Any]) -> None:
        self._posts.pop(number, None)
        if future.cancelled():
            error: BaseException | None = WaitTimeout("the shard did not begin this call in time")
        else:
            error = future.exception()
        result = future.result() if error is None else None
        self._inbox.put(WorkDone(number, result, error))

    def _withdraw(self, effect: effects.Withdraw) -> None:
        future = self._posts.get(effect.post)
        if future is not None:
            future.cancel()

    def _dial(self, effect: effects.Dial) -> None:
        def connect() -> None:
            try:
                link = self._connect(effect, lambda: effect.dial in self._given_up)
                done = WorkDone(effect.dial, link)
            except Exception as error:
                if not isinstance(error, SnailError):
                    log.exception("cannot connect to the standby of shard %d", effect.number)
                    error = ClusterError(explain(error))
                done = WorkDone(effect.dial, error=error)
            self._given_up.discard(effect.dial)
            self._inbox.put(done)

        def begun(future: Future[None]) -> None:  # an error: no thread could be started
            if (error := future.exception()) is not None:
                self._inbox.put(WorkDone(effect.dial, error=error))

        in_thread("snailps-hosting", connect).add_done_callback(begun)

    def _stream(self, effect: effects.Stream) -> None:
        def report(state: str, why: str) -> None:
            trouble = "" if state == "ready" else why or state
            self._inbox.put(events.StreamReported(effect.stream, trouble))

        def begun(future: Future[None]) -> None:
            if (error := future.exception()) is not None:
                report("lost", explain(error))

        shard = self.shards.get(effect.shard)
        if shard is None:
            os.close(effect.link)
            report("lost", GONE)
            return
        shard.back_up(
            effect.link, sync=effect.sync, paced=effect.paced, resume=effect.resume, report=report
        ).add_done_callback(begun)

    def _work(self, effect: Work) -> None:
        future = in_thread(f"snailps-work-{effect.number}", effect.run)
        future.add_done_callback(partial(self._done, effect.number))


def _say_why(future: Future[Any]) -> None:
    """Log the error of a stop: nothing waits for it."""
    if (error := future.exception()) is not None:
        log.error("a shard could not be stopped, and keeps its memory: %s", explain(error))
