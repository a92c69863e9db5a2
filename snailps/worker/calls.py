"""A worker's calls to the master, from any of its threads; they stop when the process ends.

    message -> MasterCalls.ask -> answer        message -> begin -> Future -> result -> answer
    error -> give_up -> Failed, the end of the process

Knows the connection by three names: `call_async`, `note`, `away`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Protocol

from snailps.errors import (
    EXIT_FAILED,
    ConnectionLost,
    SnailError,
    WaitTimeout,
    explain,
    frames_of,
    trace_of,
)
from snailps.transport import messages
from snailps.worker.user_code import Ended

log = logging.getLogger(__name__)
Heard = Callable[[messages.Message], None]
"""Called with an answer in the thread that reads it, before any later message is read."""


class Control(Protocol):
    """The connection to the master."""

    @property
    def away(self) -> bool: ...

    def call_async(self, message: messages.Message, heard: Heard) -> Future[messages.Message]: ...

    def note(self, message: messages.Message) -> None: ...


class MasterCalls:
    """The calls of one job; `end` decides that the process ends, which sets `ended`."""

    def __init__(
        self, control: Control, ended: threading.Event, end: Callable[[int, str], None]
    ) -> None:
        self._control, self._ended, self._end = control, ended, end
        self.note = control.note

    def ask(
        self,
        message: messages.Message,
        timeout_s: float | None,
        heard: Heard = lambda answer: None,
    ) -> messages.Message:
        """The answer to a call; time without a master does not count.  Ended: the process ends."""
        return self.result(self.begin(message, heard), message, timeout_s)

    def begin(
        self, message: messages.Message, heard: Heard = lambda answer: None
    ) -> Future[messages.Message]:
        return self._control.call_async(message, heard)

    def result(
        self,
        future: Future[messages.Message],
        message: messages.Message,
        timeout_s: float | None,
    ) -> messages.Message:
        """The answer to a call that was begun, as `ask` waits for it."""
        begin = time.monotonic()
        while not self._ended.is_set():
            if not future.done():
                wait({future}, 0.2)
            if future.done():
                if isinstance(future.exception(), ConnectionLost) and self._ended.wait(1.0):
                    break
                return future.result()
            if self._control.away:
                begin = time.monotonic()
            if timeout_s is not None and time.monotonic() - begin > timeout_s:
                raise WaitTimeout(
                    f"the master has not answered {type(message).__name__} for "
                    f"{timeout_s:g} s: look at its log"
                )
        raise Ended

    def go_on(self) -> None:
        """Ended: the process ends."""
        if self._ended.is_set():
            raise Ended

    def give_up(self, error: Exception) -> None:
        """Report to the master, once, why this worker failed, and end it."""
        if self._ended.is_set():
            return
        cause = error.__cause__ or error
        if not isinstance(cause, SnailError):
            log.error("%s\n%s", explain(error), trace_of(cause))
            log.debug("with the lines of snailps", exc_info=cause)
        self._end(EXIT_FAILED, explain(error))  # first: the master's Stop may be very quick
        self.note(messages.Failed(explain(error), frames_of(cause)))
