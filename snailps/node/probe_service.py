"""Answers doctors: peers, facts of this host, connecting back, round trips and bandwidth.

    Examine -> connect to the doctor, facts -> Report    Probe -> time or bytes    Examined -> kept

The master and every doctor have one. It connects only to the endpoint that a doctor declares, and
answers in its owner's loop.
"""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from snailps._version import __version__
from snailps.abi import loops
from snailps.dataclass import dataclass, field
from snailps.errors import ProtocolError, SnailError
from snailps.node.background import in_thread
from snailps.node.checks import Finding, check_reach
from snailps.transport import messages
from snailps.transport.frame import VERSION

PROBE_BYTES = 1 << 20
VISITORS_MAX = 4096
BACKS_MAX = 64
"""Connections to doctors in progress; further requests are refused with "try again"."""

Reply = Callable[[messages.Message | SnailError], None]


@dataclass(slots=True)
class Visitor:
    """A doctor that connected, and its findings once it is done."""

    facts: dict[str, Any]
    endpoint: tuple[str, int]
    findings: list[Any] | None = None
    here: bool = True


@dataclass(slots=True)
class ProbeService:
    what: str  # ``master`` or ``doctor``
    measures: bool  # receive and send blobs; a running master does neither
    clock: Callable[[], float] = time.time  # seconds since 1970
    # more addresses that a doctor should reach: pairs of a name and [host, port]
    others: Callable[[], list[list[Any]]] = list
    # name of a file in the checkpoint folder, which other hosts should see; empty: none
    token: str = ""
    address: tuple[str, int] = ("", 0)  # where this service listens
    # doctors that connected, by connection
    visitors: dict[object, Visitor] = field(default_factory=dict)
    _backs: list[tuple[Future[Finding], Reply, list[list[Any]]]] = field(default_factory=list)

    def handle(self, who: object, message: messages.Message, reply: Reply | None) -> bool:
        """Handle a message of connection `who` (any object); False if not for this service."""
        if isinstance(message, messages.Examine) and reply is not None:
            self._examine(who, message, reply)
        elif isinstance(message, messages.Probe) and reply is not None:
            if not 0 <= message.size <= PROBE_BYTES * self.measures:
                raise ProtocolError(f"Probe: no {message.size:,} bytes are sent here")
            if message.size:
                reply(messages.Content(os.urandom(message.size)))
            else:
                done = sum(visitor.findings is not None for visitor in self.visitors.values())
                reply(messages.Report({"time": self.clock(), "examined": done}))
        elif isinstance(message, messages.Examined):
            if who in self.visitors:
                self.visitors[who].findings = message.findings
        else:
            return False
        return True

    def step(self) -> None:
        """Answer the doctors to which a connection was tried."""
        for back in [back for back in self._backs if back[0].done()]:
            self._backs.remove(back)
            future, reply, peers = back
            if (error := future.exception()) is not None:
                trouble = f"connecting back cannot be tried: {error!r}"
            else:
                trouble = "" if future.result().level == "ok" else future.result().text
            facts = {**facts_of_host(self.clock), "token": self.token}
            reply(messages.Report({"what": self.what, "back": trouble, "peers": peers, **facts}))

    def _examine(self, who: object, message: messages.Examine, reply: Reply) -> None:
        endpoint = (message.endpoint[0], message.endpoint[1])
        if len(self._backs) >= BACKS_MAX or len(self.visitors) >= VISITORS_MAX:
            raise ProtocolError("Examine: too many doctors at once; try again")
        peers = [
            [f"the doctor of {visitor.facts.get('host', '?')}", list(visitor.endpoint)]
            for connection, visitor in self.visitors.items()
            if visitor.here and connection is not who
        ]
        self.visitors[who] = Visitor(message.facts, endpoint)
        name = f"{message.facts.get('host', '?')} from {socket.gethostname()}"
        future = in_thread("snailps-back", lambda: check_reach(endpoint, name))
        self._backs.append((future, reply, [*peers, *self.others()]))

    def forget(self, who: object) -> None:
        """Note that a connection is closed; a doctor keeps the findings that came by it."""
        if who in self.visitors and self.measures:
            self.visitors[who].here = False
        else:
            self.visitors.pop(who, None)


def facts_of_host(clock: Callable[[], float] = time.time) -> dict[str, Any]:
    """Facts of this host, for comparison with other hosts."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "version": __version__,
        "wire": VERSION,
        "python": platform.python_version(),
        "kernels": loops.BUILD,
        "time": clock(),
    }
