"""What the cores of master and server share: the queue of effects, answers, ticks, background work.

part of a core -> EffectQueue.work(run, then) -> Work -> process.py calls it in a thread
-> WorkDone -> EffectQueue.done -> then
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from snailps.dataclass import dataclass
from snailps.errors import SnailError
from snailps.transport import messages
from snailps.transport.control.encoded import Encoded

Reply = messages.Message | Encoded | SnailError


class Effect:
    """A core's request to its process, which performs each kind by a table."""

    __slots__ = ()


class Event:
    """A message to a core, which handles each kind by a table."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time has passed; the master has one at least every 50 ms."""


@dataclass(frozen=True, slots=True)
class Answering(Effect):
    """The answer to a call."""

    call: int
    answer: Reply


@dataclass(frozen=True, slots=True)
class Work(Effect):
    """Work that takes long or waits for a disk: `run` is called in a thread, and `WorkDone`
    follows. Works of one lane run one after the other, in order; without a lane a work begins at
    once."""

    number: int
    run: Callable[[], Any]
    lane: str = ""


@dataclass(frozen=True, slots=True)
class WorkDone(Event):
    """Result or error of a `Work`, or of a call that a core posted."""

    work: int
    result: Any = None
    error: BaseException | None = None


OnDone = Callable[[WorkDone, float], None]


def ignored(done: WorkDone, now: float) -> None:
    """Nothing waits for the result of this work."""


class EffectQueue:
    """Collects the effects of an event, and keeps the callbacks of results to come."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._works: dict[int, OnDone] = {}
        self._last = 0

    def take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def number(self) -> int:
        """Return a new number for an effect; the event that answers it has the same."""
        self._last += 1
        return self._last

    def expect(self, then: OnDone) -> int:
        """Return a new number for an effect whose result `then` gets."""
        number = self.number()
        self._works[number] = then
        return number

    def put(self, effect: Effect) -> None:
        self._effects.append(effect)

    def reply(self, call: int, answer: Reply) -> None:
        self._effects.append(Answering(call, answer))

    def work(self, run: Callable[[], Any], then: OnDone, lane: str = "") -> int:
        """Have `run` called in a thread; `then` gets its result. Return the work's number."""
        number = self.expect(then)
        self._effects.append(Work(number, run, lane))
        return number

    def disown(self, work: int) -> None:
        """Ignore the result of a work."""
        self._works.pop(work, None)

    def done(self, event: WorkDone, now: float) -> None:
        then = self._works.pop(event.work, None)
        if then is not None:
            then(event, now)
