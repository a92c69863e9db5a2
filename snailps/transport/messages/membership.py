"""What is said of belonging: joining, the route, the end; what anyone may ask.

    anyone -> master   Ask>Report  Examine>Report  Probe>Content|Report
                       Examined
    node   -> master   Register>Welcome  Rejoin>Welcome
                       Failed  Leaving  Bye
    master -> node     TakeRoute>Ok  Ask>Report  Stop

It knows no job and no row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from snailps.transport.messages.body import Message, message


@message
@dataclass(frozen=True, slots=True)
class Register(Message):
    """A node asks to belong to the cluster.

    `endpoints` lists a server's shards as [host, port].
    """

    role: str
    host: str
    pid: int
    cores: int
    endpoints: list[Any] = field(default_factory=list)


@message
@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """The node belongs: its number, its incarnation, the number of this life of the cluster.

    `patience_s`: how long it looks for the master again when that is lost; 0: it ends then.
    """

    node: int
    incarnation: int
    job: int
    frag_num: int
    interval_s: float
    timeout_s: float
    patience_s: float = 0.0


@message
@dataclass(frozen=True, slots=True)
class Rejoin(Message):
    """A node whose master was lost tells the one that took over where it stands.

    `job` to `endpoints` are what Welcome and Register said; `epoch` is that of its route (0: none),
    `leaving` why it was about to leave, `state` what its role adds (docs/wire_format.md).
    """

    job: int
    node: int
    incarnation: int
    role: str
    host: str
    pid: int
    cores: int
    endpoints: list[Any]
    epoch: int
    leaving: str
    state: dict[str, Any]


@message
@dataclass(frozen=True, slots=True)
class TakeRoute(Message):
    """The route of an epoch (store.route.Route.to_dict); answered when the node can use it."""

    route: dict[str, Any]


@message
@dataclass(frozen=True, slots=True)
class Failed(Message):
    """A node cannot go on; `trace` is for the log."""

    text: str
    trace: str = ""


@message
@dataclass(frozen=True, slots=True)
class Leaving(Message):
    """A node was asked to leave (SIGTERM)."""

    why: str


@message
@dataclass(frozen=True, slots=True)
class Stop(Message):
    """The end; `failed` says that it is not the normal one, `text` why."""

    failed: bool
    text: str


@message
@dataclass(frozen=True, slots=True)
class Bye(Message):
    """Last word of a node: its figures."""

    figures: dict[str, float]


@message
@dataclass(frozen=True, slots=True)
class Ok(Message):
    """Done as asked."""


@message
@dataclass(frozen=True, slots=True)
class Ask(Message):
    """What is going on?  `what` is "status" (master) or "stats" (server, worker)."""

    what: str


@message
@dataclass(frozen=True, slots=True)
class Report(Message):
    """Answer to Ask."""

    data: dict[str, Any]


@message
@dataclass(frozen=True, slots=True)
class Examine(Message):
    """A doctor says what there is to know of its host, and asks the same (docs/wire_format.md).

    Whoever is asked connects to the doctor's `endpoint` [host, port] before it answers.
    """

    endpoint: list[Any]
    facts: dict[str, Any]


@message
@dataclass(frozen=True, slots=True)
class Examined(Message):
    """A doctor is done: what it found."""

    findings: list[Any]


@message
@dataclass(frozen=True, slots=True)
class Probe(Message):
    """Measures the way: takes a blob, and is answered by a Content of `size` bytes.

    With `size` 0 it is a Report: ``time``, seconds since 1970, and how many were ``examined`` here.
    """

    size: int
    blob: bytes = b""


@message
@dataclass(frozen=True, slots=True)
class Content(Message):
    """Bytes of a block."""

    blob: bytes
