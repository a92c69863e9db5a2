"""The status of a master over a connection of its own, for commands that look on.

address, Trust -> StatusLine.look -> Status
"""

from __future__ import annotations

from concurrent.futures import Future

from snailps.config import parse_addr
from snailps.errors import ProtocolError
from snailps.node.status import Status
from snailps.outward import outward
from snailps.transport import messages
from snailps.transport.control import ControlClient, Trust, visit

DIAL_S = 1.0


class StatusLine:
    """A connection for repeated requests, opened by the first; each has a time limit."""

    def __init__(self, address: str, trust: Trust) -> None:
        self._trust = trust
        self._address = parse_addr(address, "master_addr")
        self._control: ControlClient | None = None
        self._asked: Future[messages.Message] | None = None

    def look(self, limit_s: float) -> Status:
        """The answer to this request, or to an earlier one that timed out.

        A `WaitTimeout` of an open connection means: try again; any other error, that the master has
        closed it.
        """
        if self._control is None:
            self._control = visit(self._address, max(limit_s, DIAL_S), self._trust)
        if self._asked is None:
            self._asked = self._control.call_async(messages.Ask("status"))
        answer = self._control.result(self._asked, limit_s, "Ask")
        self._asked = None
        if not isinstance(answer, messages.Report):
            raise ProtocolError(f"expected a Report, got {type(answer).__name__}")
        return outward(answer.data)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the connection; the next `look` opens another one."""
        if self._control is not None:
            self._control.close()
        self._control = self._asked = None
