"""Messages of membership: joining, the route, the end; and questions that any peer may ask.

    anyone -> master   Ask>Report  Examine>Report  Probe>Content|Report
                       Examined
    node   -> master   Register>Welcome  Rejoin>Welcome
                       Leaving  Bye
    worker -> master   Failed
    master -> node     TakeRoute>Ok  Ask>Report  Stop

Must not know jobs or rows.
"""

from __future__ import annotations

from typing import Annotated, Any

from snailps.dataclass import dataclass, field
from snailps.transport.messages.codec import Message, message
from snailps.transport.messages.validation import (
    COUNT,
    ENDPOINT,
    FIGURES_SHAPE,
    ITEMS_MAX,
    METRICS,
    PART,
    PARTS_MAX,
    SECONDS,
    SHARDS_MAX,
    SIZE,
    U16,
    U32,
    U63,
    WORD64,
    Blob,
    Bool,
    Choice,
    Cores,
    Endpoint,
    Endpoints,
    Facts,
    Figures,
    Flag,
    Id32,
    Id64,
    Label,
    ListOf,
    MapOf,
    Maybe,
    Misfit,
    Name,
    Natural,
    Number,
    Object,
    Plain,
    Raw,
    Row,
    Seconds,
    Shape,
    Struct,
    Text,
    Trace,
    Whole,
    Words,
)

_ROLE = Choice("server", "worker", "driver")
_REPORTED = Struct(
    {"number": U63, "units": COUNT, "seconds": SECONDS, "metrics": METRICS}, {"whole": Flag()}
)
_PARTITION_LEASE = Struct(
    {
        "number": U63,
        "parts": PART,
        "sizes": ListOf(SIZE, PARTS_MAX),
        "had": ListOf(PART, PARTS_MAX),
        "holds": ListOf(PART, PARTS_MAX),
    }
)
_STANDING: dict[str, Shape] = {
    "server": Struct({"standbys": ListOf(Row(U16, U63, Words()), SHARDS_MAX)}),
    "worker": Struct(
        {
            "started": Flag(),
            "held": ListOf(Row(Name(), U63)),
            "reported": ListOf(_REPORTED),
            "not_durable": ListOf(U63, ITEMS_MAX),
            "finished": Maybe(FIGURES_SHAPE),
        },
        {"partitions": ListOf(_PARTITION_LEASE)},
    ),
    "driver": Struct({}),
}
"""`Rejoin.state` of each role."""
_AMOUNT = Number(-1e300, 1e300)
_TABLE_STATS = Struct(
    {"rows": WORD64, "row_bytes": WORD64},
    {
        "name": Name(),
        **dict.fromkeys(("bytes", "made", "refused", "evicted", "expired"), WORD64),
    },
    open=True,
)
_SHARD_STATS = Struct(
    {
        "shard": U16,
        "pulls": WORD64,
        "pushes": WORD64,
        "replica": Struct({"seeded": _AMOUNT}, {"lag_bytes": WORD64, "lag_s": _AMOUNT}, open=True),
    },
    {
        **dict.fromkeys(("fragments", "rows", "bytes", "connections", "parked", "clock"), WORD64),
        "waits_for": Maybe(Words()),
        "tables": MapOf(_TABLE_STATS, ITEMS_MAX),
    },
    open=True,
)
_STATS = Struct(
    {},
    {
        "shards": ListOf(_SHARD_STATS, SHARDS_MAX),
        "peak_rss_mb": _AMOUNT,
        "saved_bytes": WORD64,
        "moved_bytes": WORD64,
        "half_pushed": Flag(),
        "at": Words(),
        "waits": ListOf(Row(Words(), Words(), _AMOUNT), 1024),
        "metrics": Words(),
        "usage": Struct({"cpu_s": _AMOUNT, "time_s": _AMOUNT, "rss_bytes": WORD64}, {}, open=True),
    },
    open=True,
)
_EXAMINED = Struct(
    {
        "what": Name(),
        "back": Words(),
        "peers": ListOf(Row(Words(), ENDPOINT)),
        **dict.fromkeys(("host", "version", "kernels"), Words()),
    },
    {"token": Name()},
    open=True,
)
_PROBED = Struct({"time": _AMOUNT, "examined": U32}, open=True)

_STATUS = Plain()


def _asked(ask: Ask) -> Shape:
    """Shape of the `Report` on an `Ask`: status is for people, counters are used."""
    return _STATS if ask.what == "stats" else _STATUS


def _check_endpoints(role: str, endpoints: list[Any]) -> None:
    if (role == "server") != bool(endpoints):
        text = f"servers have endpoints and others have none, got a {role} with {len(endpoints)}"
        raise Misfit(text, endpoints)


@message(by="anyone", answers="Welcome")
@dataclass(frozen=True, slots=True)
class Register(Message):
    """A node asks to belong to the cluster. `endpoints` lists a server's shards as [host, port].

    `cores`: that it may keep busy.
    """

    role: Annotated[str, _ROLE]
    host: Label
    pid: Id32
    cores: Cores
    endpoints: Endpoints = field(default_factory=list)

    def check(self) -> None:
        _check_endpoints(self.role, self.endpoints)


@message(by="master")
@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """Answer to Register: the numbers of the node, its incarnation and the cluster.

    `patience_s`: how long the node looks for a lost master; 0: it ends at once.
    """

    node: Id32
    incarnation: Id64
    job: Id64
    frag_num: Annotated[int, Whole(1, 1 << 20)]
    interval_s: Seconds
    timeout_s: Seconds
    patience_s: Seconds = 0.0


GIVEN_UP = "given-up"
"""Code of the refusal of a `Rejoin` whose sender the cluster goes on without."""


@message(by="anyone", answers="Welcome")
@dataclass(frozen=True, slots=True)
class Rejoin(Message):
    """Report a node's state to the master that took over.

    `job` to `endpoints`: as in Welcome and Register.  `epoch`: of its route, 0 without one.
    `leaving`: why it is about to leave, empty if it is not.  `state`: of its role
    (docs/wire_format.md).
    """

    job: Id64
    node: Id32
    incarnation: Id64
    role: Annotated[str, _ROLE]
    host: Label
    pid: Id32
    cores: Cores
    endpoints: Endpoints
    epoch: Id32
    leaving: Label
    state: Object

    def check(self) -> None:
        _check_endpoints(self.role, self.endpoints)
        try:
            _STANDING[self.role].check(self.state)
        except Misfit as error:
            text = f"expected {error.expected}, got {error.got}"
            raise Misfit(text, self.state, f".state{error.path}") from None


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class TakeRoute(Message):
    """The route of an epoch (store.route.Route.to_dict); answered when the node can use it."""

    route: Object


@message(by="worker")
@dataclass(frozen=True, slots=True)
class Failed(Message):
    """A worker cannot go on; `trace` has the lines of a user's code that led there.

    `is_wrong`: the input or a setting is wrong, so the same job would fail again.
    """

    text: Text
    trace: Trace = ""
    is_wrong: Bool = False


@message(by="server worker")
@dataclass(frozen=True, slots=True)
class Leaving(Message):
    """A node got SIGTERM and wants to leave, or SIGINT or SIGHUP and wants the job to end."""

    why: Label


@message(by="master")
@dataclass(frozen=True, slots=True)
class Stop(Message):
    """Order a node to end; `failed`: because of an error, which `text` names.

    `again`: its process starts anew, for the next job of the session.
    """

    failed: Bool
    text: Text
    again: Bool = False


@message(by="server worker driver")
@dataclass(frozen=True, slots=True)
class Bye(Message):
    """The last message of a node, with its figures."""

    figures: Figures


@message(by="anyone")
@dataclass(frozen=True, slots=True)
class Ok(Message):
    """The call is executed."""


@message(by="anyone", answers="Report", report=_asked)
@dataclass(frozen=True, slots=True)
class Ask(Message):
    """Ask for a report.

    `what` is "stats" to a server or worker; to the master "status", "history" (of the training),
    "settings", "tables" (number and declaration of each), "job" (number and settings of the newest
    one), "log" (its last lines) or "map" (places of the model's named rows in a plane).
    """

    what: Label


@message(by="anyone")
@dataclass(frozen=True, slots=True)
class Report(Message):
    data: Object


@message(by="anyone", answers="Report", report=_EXAMINED)
@dataclass(frozen=True, slots=True)
class Examine(Message):
    """Report a doctor's facts about its host, and ask for the receiver's (docs/wire_format.md).

    The receiver connects to the doctor's `endpoint` [host, port] before it answers.
    """

    endpoint: Endpoint
    facts: Facts


@message(by="anyone")
@dataclass(frozen=True, slots=True)
class Examined(Message):
    """Report the findings of a doctor that has finished."""

    findings: Annotated[list[Any], ListOf(MapOf(Words(), 8), 4096)]


@message(by="anyone", answers="Report Content", report=_PROBED)
@dataclass(frozen=True, slots=True)
class Probe(Message):
    """Measure the connection: takes a blob, answered by a Content of `size` bytes.

    With `size` 0 it is a Report: ``time``, seconds since 1970, and how many were ``examined`` here.
    """

    size: Natural
    blob: Annotated[bytes, Raw(1 << 20)] = b""


@message(by="anyone")
@dataclass(frozen=True, slots=True)
class Content(Message):
    blob: Blob
