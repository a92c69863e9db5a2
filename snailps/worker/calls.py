"""A worker's calls to the master, from any of its threads; each ends when the process ends.

    message -> ask -> answer        message -> ask_async -> Future -> result -> answer
    error -> give_up -> Failed, the end of the process

Owns how long an answer may take, and the one report of a failure.  Of the connection it knows
`Control` alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Protocol

from snailps.errors import (
    EXIT_FAILED,
    EXIT_WRONG,
    ConnectionLost,
    SnailError,
    WaitTimeout,
    explain,
    frames_of,
    trace_of,
)
from snailps.transport import messages
from snailps.transport._awake import awake_s
from snailps.worker.user_code import Ended

log = logging.getLogger(__name__)
Heard = Callable[[messages.Message], None]
"""Called with an answer in the thread that reads it, before any later message is read."""


class Control(Protocol):
    """The connection to the master, which another master may take over meanwhile."""

    @property
    def away(self) -> bool:
        """Whether there is no master at present; calls are repeated to the next one."""

    def call_async(self, message: messages.Message, heard: Heard) -> Future[messages.Message]: ...

    def note(self, message: messages.Message) -> None: ...


class MasterCalls:
    """The calls of a worker process; ``end(code, text)`` ends the process and sets `ended`."""

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
        """Call the master, and wait for the answer; see `result`."""
        return self.result(self.ask_async(message, heard), message, timeout_s)

    def ask_async(
        self, message: messages.Message, heard: Heard = lambda answer: None
    ) -> Future[messages.Message]:
        """Call the master; `result` waits for the answer."""
        return self._control.call_async(message, heard)

    def result(
        self,
        future: Future[messages.Message],
        message: messages.Message,
        timeout_s: float | None,
    ) -> messages.Message:
        """Wait for the answer to a call.

        Seconds without a master do not count as `timeout_s` (None: no limit), since its follower
        may take any time to start.

        Raises
        ------
        Ended
            The process ends, whatever the answer would have been.
        WaitTimeout
            A master is there, and has not answered within `timeout_s`.
        """
        begin = awake_s()
        while not self._ended.is_set():
            if not future.done():
                wait({future}, 0.2)
            if future.done():
                # A lost connection is usually the first sign of an end whose Stop follows at once:
                # the verdict in it says more than "connection lost".
                if isinstance(future.exception(), ConnectionLost) and self._ended.wait(1.0):
                    break
                return future.result()
            if self._control.away:
                begin = awake_s()
            if timeout_s is not None and awake_s() - begin > timeout_s:
                raise WaitTimeout(
                    f"the master has not answered {type(message).__name__} for "
                    f"{timeout_s:g} s: look at its log"
                )
        raise Ended

    def go_on(self) -> None:
        """Raise `Ended` if the process ends."""
        if self._ended.is_set():
            raise Ended

    def give_up(self, error: Exception) -> None:
        """End the process as failed, and report the reason to the master; the first call counts.

        Several threads may fail by the same cause, each with an error of its own.
        """
        if self._ended.is_set():
            return
        cause = error.__cause__ or error
        if not isinstance(cause, SnailError):
            log.error("%s\n%s", explain(error), trace_of(cause))
            log.debug("with the lines of snailps", exc_info=cause)
        code = error.exit_code if isinstance(error, SnailError) else EXIT_FAILED
        self._end(code, explain(error))  # before the note: Stop may answer it at once
        self.note(messages.Failed(explain(error), frames_of(cause), code == EXIT_WRONG))
