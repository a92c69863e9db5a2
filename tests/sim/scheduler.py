"""Virtual time: one heap of events, one source of randomness, processes that die and stall.

    World.run -> the next event -> Process -> what it does -> more events
    generator -> Task -> Future -> ...            what would be a thread in a real process

It owns the order in which things happen, and their trace.  Two runs of one seed have the same
events in the same order: nothing here looks at a clock, at addresses of objects, or at hashes of
strings.
"""

from __future__ import annotations

import heapq
import random
import zlib
from collections import deque

LOOK_EVENTS = 16
"""Between two looks whether the run is over."""
RECENT = 60
"""Events that a failure shows."""


class Stuck(Exception):
    """The run took more events or time than any run should."""


class Future:
    """A result that comes later."""

    __slots__ = ("callbacks", "done", "error", "value")

    def __init__(self):
        self.done, self.value, self.error, self.callbacks = False, None, None, []

    def set(self, value=None):
        """Sets the result, once."""
        self._end(value, None)

    def fail(self, error):
        """Sets the error, once."""
        self._end(None, error)

    def _end(self, value, error):
        if self.done:
            return
        self.done, self.value, self.error = True, value, error
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback(self)

    def then(self, callback):
        """Calls back once the future is done."""
        if self.done:
            callback(self)
        else:
            self.callbacks.append(callback)


class Process:
    """A process of the cluster; its events are dropped once it has died.

    Attributes
    ----------
    host : str
        The network knows processes by their host; each process has one of its own.
    alive, stalled_until : bool, float
        Events of a dead process are dropped, those of a stalled one wait.
    hurt : str
        The fault that it had; empty for a healthy process, which nobody may give up.
    """

    def __init__(self, world, name, host):
        self.world, self.name, self.host = world, name, host
        self.alive, self.stalled_until, self.hurt = True, 0.0, ""
        self.code = None
        self.on_death = []

    def __repr__(self):
        return self.name

    @property
    def runs(self):
        """Whether the process is alive and not stalled."""
        return self.alive and self.stalled_until <= self.world.now

    def after(self, delay, do, *args):
        """Calls `do` after a delay if the process lives then; the event, for `cancel`."""
        return self.world.after(delay, do, *args, process=self)

    def spawn(self, generator):
        """Runs a generator that yields futures, or seconds to sleep."""
        return Task(self, generator)

    def say(self, text):
        """Adds a line to the trace."""
        self.world.say(self.name, text)

    def die(self, why):
        """Ends at once, as kill -9 or exit does."""
        if not self.alive:
            return
        self.say(f"ends: {why}")
        self.alive = False
        callbacks, self.on_death = self.on_death, []
        for callback in callbacks:
            callback()

    def exit(self, code, why):
        """Exits with a code."""
        self.code = code
        self.die(f"exit {code}, {why}")


class Task(Future):
    """Drives a generator of a process, as a thread would run."""

    __slots__ = ("generator", "process")

    def __init__(self, process, generator):
        super().__init__()
        self.process, self.generator = process, generator
        self._step(None, None)

    def _step(self, value, error):
        while self.process.alive:
            try:
                if error is None:
                    wanted = self.generator.send(value)
                else:
                    wanted = self.generator.throw(error)
            except StopIteration as stop:
                self.set(stop.value)
                return
            except Exception as failure:
                if not self.callbacks:
                    raise
                self.fail(failure)
                return
            if isinstance(wanted, Future):
                if not wanted.done:
                    wanted.callbacks.append(self._resume)
                    return
                value, error = wanted.value, wanted.error
            else:
                self.process.after(wanted, self._step, None, None)
                return

    def _resume(self, future):
        self._step(future.value, future.error)


class World:
    """The events of one run, in order.

    Parameters
    ----------
    seed : int
        The number from which everything is drawn.
    trace : callable, optional
        Called with each line of the trace.
    rng : random.Random, optional
        Draws instead of a generator made from the seed.
    """

    def __init__(self, seed, trace=None, rng=None):
        self.seed, self.rng, self.now = seed, rng or random.Random(seed), 1000.0
        self.events = 0
        self.recent = deque(maxlen=RECENT)
        self.digest = 0
        self._trace = trace
        self._heap = []
        self._serial = 0

    def after(self, delay, do, *args, process=None):
        """Calls `do` after a delay."""
        return self.at(self.now + delay, do, *args, process=process)

    def at(self, when, do, *args, process=None):
        """Calls `do` at a time."""
        self._serial += 1
        event = [when, self._serial, process, do, args]
        heapq.heappush(self._heap, event)
        return event

    @staticmethod
    def cancel(event):
        """Takes an event back."""
        event[3] = None

    def say(self, who, text):
        """Adds a line to the trace, and to its digest."""
        line = (self.now, who, text)
        self.digest = zlib.crc32(f"{self.now!r} {who} {text}".encode(), self.digest)
        self.recent.append(line)
        if self._trace is not None:
            self._trace(shown(line))

    def run(self, until, events_max):
        """Runs until a condition holds or no event is left.

        Raises
        ------
        Stuck
            The condition does not hold after `events_max` events.
        """
        heap = self._heap
        while heap:
            if self.events % LOOK_EVENTS == 0 and until():
                return
            event = heapq.heappop(heap)
            when, _, process, do, args = event
            if do is None:
                continue
            if process is not None:
                if not process.alive:
                    continue
                if process.stalled_until > when:
                    event[0] = process.stalled_until
                    heapq.heappush(heap, event)
                    continue
            self.now = when
            self.events += 1
            if self.events > events_max:
                raise Stuck(f"{events_max:,} events")
            if process is None or process.alive:
                do(*args)


def shown(line):
    """A line of the trace as text."""
    now, who, text = line
    return f"{now - 1000.0:10.4f}  {who:<10} {text}"


def first_of(*futures):
    """A future of the index of whichever is done first."""
    made = Future()
    for index, future in enumerate(futures):
        future.then(lambda _, index=index: made.set(index))
    return made
