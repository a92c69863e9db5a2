"""Control-plane messages: what master, servers, workers and drivers say to each other.

    Frame.body -> decode -> Message (validated, frozen)        Message -> encode -> Frame.body

A body is a uint32 length, that many bytes of JSON, then raw bytes (the message's `blob`, where it
has one).  The JSON object holds the message's name under "is" and its fields; unknown names,
missing or unknown fields and wrong types are the peer's error.  Nothing is ever unpickled.  No
sockets, clocks or threads here.

Who says what (a *call* is answered, a *note* is not):

    anyone -> master   Ask>Report  Examine>Report  Probe>Content|Report
                       Examined
    node   -> master   Register>Welcome  Rejoin>Welcome  Declare>Declared  Lease>Leased
                       Fetch>Content  Summarise>Summary|Again  Done>Ok|Enough  Settled  Finished
                       Failed  Leaving  Bye  Saved  Loaded
    driver -> master   Submit>Ok  Shutdown>Ok  Drain>Ok
    master -> node     TakeRoute>Ok  MakeTables>Ok  Expire>Report  Ask>Report  Start  Stop
                       Freeze>Report  Save>Ok  StopSaving>Ok  Load>Ok
    master -> worker   CameBack  Slowest  Workers
    master -> server   SetClock>Report  CloseClock>Report  Fence>Report
                       HostStandby>Report  BackUp>Ok  Alone>Ok  Promote>Ok  Yield>Ok  DropShard>Ok
                       KeepShards>Ok
    server -> master   Backed  Unbacked  Yielded
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_type_hints

from snailps.errors import MisuseError, ProtocolError

JSON_BYTES_MAX = 16 << 20
"""Largest JSON part of a control body, bytes; large things travel as the raw part."""

_REGISTRY: dict[str, type[Message]] = {}
_FIELD_TYPES: dict[str, dict[str, Any]] = {}
M = TypeVar("M", bound="type[Message]")


class Message:
    """Base of all control messages."""

    __slots__ = ()


def _message(cls: M) -> M:
    _REGISTRY[cls.__name__] = cls
    return cls


@_message
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


@_message
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


@_message
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


@_message
@dataclass(frozen=True, slots=True)
class TakeRoute(Message):
    """The route of an epoch (store.route.Route.to_dict); answered when the node can use it."""

    route: dict[str, Any]


@_message
@dataclass(frozen=True, slots=True)
class MakeTables(Message):
    """Table declarations with their numbers, for servers."""

    tables: list[Any]


@_message
@dataclass(frozen=True, slots=True)
class Expire(Message):
    """Shards note that it is `tick` now, and delete rows that no push touched since `before`.

    Of tables that track touches; the Report has their number as ``expired``.  Like all orders that
    change rows it names `shards`, which the server must serve; the Report has those under ``done``.
    """

    tick: int
    before: int
    shards: list[Any] = field(default_factory=list)


@_message
@dataclass(frozen=True, slots=True)
class Freeze(Message):
    """Shards keep their rows as they are when a clock begins, until they are saved.

    `clock` -1 is the present one, which the Report has for each shard under ``clocks``; else it is
    the present or the next one.
    """

    clock: int = -1


@_message
@dataclass(frozen=True, slots=True)
class Save(Message):
    """A server writes its fragments into the folder of a checkpoint; `Saved` says how it went.

    With a `clock` of at least 0 as they are when that clock begins: `Freeze` came before.
    """

    number: int
    folder: str
    clock: int = -1


@_message
@dataclass(frozen=True, slots=True)
class StopSaving(Message):
    """A server drops the checkpoint or the loading that it is at, if any; its clocks go on."""


@_message
@dataclass(frozen=True, slots=True)
class Saved(Message):
    """A server has written its fragments: its files (FileEntry.to_dict), or why it could not."""

    number: int
    files: list[Any]
    text: str = ""


@_message
@dataclass(frozen=True, slots=True)
class Load(Message):
    """A server takes the rows of its fragments from a checkpoint; `Loaded` says how it went.

    `tables` are pairs of a table's number in the checkpoint and here.
    """

    number: int
    folder: str
    tables: list[Any]


@_message
@dataclass(frozen=True, slots=True)
class Loaded(Message):
    """A server has its rows, so many, or why it has not."""

    number: int
    rows: int
    text: str = ""


@_message
@dataclass(frozen=True, slots=True)
class SetClock(Message):
    """Shards begin at `clock` and forget what is staged: a job begins.

    `early`: a clock ends with `CloseClock` alone, maybe without some of its slots; otherwise with
    the last seal.
    """

    clock: int
    early: bool = False
    shards: list[Any] = field(default_factory=list)


@_message
@dataclass(frozen=True, slots=True)
class CloseClock(Message):
    """Exactly these slots of `clock` count: shards apply them now and drop the others.

    They must be sealed at every shard: whoever sealed them has been answered by all.  The Report
    has under ``shards`` what each had: its ``clock`` (higher: applied already, and left alone),
    ``slots`` and the list ``sealed``.
    """

    clock: int
    slots: list[Any]
    shards: list[Any] = field(default_factory=list)


@_message
@dataclass(frozen=True, slots=True)
class Fence(Message):
    """Shards refuse whatever comes from this incarnation: its work is given to others.

    From `clock` 0 on: except for that slot, which it has pushed whole.  Each shard seals it in its
    place, for it may have sealed it at some of them.
    """

    incarnation: int
    clock: int = -1
    slot: int = 0
    slots: int = 1
    shards: list[Any] = field(default_factory=list)


@_message
@dataclass(frozen=True, slots=True)
class Declare(Message):
    """A worker or driver names the tables that it wants; equal names must be declared equally."""

    tables: list[Any]


@_message
@dataclass(frozen=True, slots=True)
class Declared(Message):
    """Numbers of the declared tables, in the order asked."""

    numbers: list[Any]


@_message
@dataclass(frozen=True, slots=True)
class Start(Message):
    """Every node has the route: here is the job, in settings that are strings."""

    number: int
    worker_class: str
    settings: dict[str, Any]
    workers: int
    survey: bool


@_message
@dataclass(frozen=True, slots=True)
class Lease(Message):
    """A worker wants its next block of a pass ("survey", "train"); parks while others may fail.

    With `back` only one that has come back, and the answer comes at once: -1 where there is none.
    """

    pass_: str
    back: bool = False


@_message
@dataclass(frozen=True, slots=True)
class Leased(Message):
    """A block, or with `number` -1 the end of the pass.

    `progress` is the share of all training that comes before this block and after it, 0 to 1;
    `clock`, `slot`, `slots` and `index` are those of `roles.worker.Block`.
    """

    number: int
    path: str = ""
    start: int = 0
    stop: int = 0
    epoch: int = 0
    seed: int = 0
    progress: list[Any] = field(default_factory=list)
    clock: int = -1
    slot: int = 0
    slots: int = 1
    index: int = -1


@_message
@dataclass(frozen=True, slots=True)
class CameBack(Message):
    """A block of an early clock is free again: whoever waits for that clock should lease it."""


@_message
@dataclass(frozen=True, slots=True)
class Slowest(Message):
    """The slowest worker, and its clock: how many of its blocks it has finished."""

    clock: int
    node: int


@_message
@dataclass(frozen=True, slots=True)
class Workers(Message):
    """One has come or gone in the middle of a job: so many workers are at it now."""

    workers: int


@_message
@dataclass(frozen=True, slots=True)
class Fetch(Message):
    """A worker cannot open the path of its block and wants the bytes."""

    number: int
    pass_: str
    unit: str


@_message
@dataclass(frozen=True, slots=True)
class Content(Message):
    """Bytes of a block."""

    blob: bytes


@_message
@dataclass(frozen=True, slots=True)
class Done(Message):
    """A block is finished: what it held, how it went, and a survey's part."""

    pass_: str
    number: int
    units: int
    seconds: float
    metrics: dict[str, float]
    blob: bytes = b""


@_message
@dataclass(frozen=True, slots=True)
class Settled(Message):
    """Blocks of the training that are finished and all of whose pushes are acknowledged by now."""

    numbers: list[Any]


@_message
@dataclass(frozen=True, slots=True)
class Summarise(Message):
    """A worker waits for the merged survey."""


@_message
@dataclass(frozen=True, slots=True)
class Summary(Message):
    """The merged survey (a vocabulary, say)."""

    blob: bytes


@_message
@dataclass(frozen=True, slots=True)
class Again(Message):
    """Answer to Summarise in the place of Summary: the survey was lost, take part in it again."""


@_message
@dataclass(frozen=True, slots=True)
class Enough(Message):
    """Answer to Done in the place of Ok: the training is to end, train on no further block."""


@_message
@dataclass(frozen=True, slots=True)
class Finished(Message):
    """A worker has no block left and every push acknowledged."""

    figures: dict[str, float]


@_message
@dataclass(frozen=True, slots=True)
class Failed(Message):
    """A node cannot go on; `trace` is for the log."""

    text: str
    trace: str = ""


@_message
@dataclass(frozen=True, slots=True)
class Leaving(Message):
    """A node was asked to leave (SIGTERM)."""

    why: str


@_message
@dataclass(frozen=True, slots=True)
class Stop(Message):
    """The end; `failed` says that it is not the normal one, `text` why."""

    failed: bool
    text: str


@_message
@dataclass(frozen=True, slots=True)
class Bye(Message):
    """Last word of a node: its figures."""

    figures: dict[str, float]


@_message
@dataclass(frozen=True, slots=True)
class Ask(Message):
    """What is going on?  `what` is "status" (master) or "stats" (server, worker)."""

    what: str


@_message
@dataclass(frozen=True, slots=True)
class Report(Message):
    """Answer to Ask."""

    data: dict[str, Any]


@_message
@dataclass(frozen=True, slots=True)
class Examine(Message):
    """A doctor says what there is to know of its host, and asks the same (docs/wire_format.md).

    Whoever is asked connects to the doctor's `endpoint` [host, port] before it answers.
    """

    endpoint: list[Any]
    facts: dict[str, Any]


@_message
@dataclass(frozen=True, slots=True)
class Examined(Message):
    """A doctor is done: what it found."""

    findings: list[Any]


@_message
@dataclass(frozen=True, slots=True)
class Probe(Message):
    """Measures the way: takes a blob, and is answered by a Content of `size` bytes.

    With `size` 0 it is a Report: ``time``, seconds since 1970, and how many were ``examined`` here.
    """

    size: int
    blob: bytes = b""


@_message
@dataclass(frozen=True, slots=True)
class Submit(Message):
    """A driver gives a waiting cluster its job, in settings that are strings."""

    settings: dict[str, Any]


@_message
@dataclass(frozen=True, slots=True)
class Shutdown(Message):
    """A driver ends the cluster."""


@_message
@dataclass(frozen=True, slots=True)
class Ok(Message):
    """Done as asked."""


@_message
@dataclass(frozen=True, slots=True)
class HostStandby(Message):
    """A server makes a standby of a shard, with these tables; the Report has its ``endpoint``."""

    shard: int
    tables: list[Any]


@_message
@dataclass(frozen=True, slots=True)
class BackUp(Message):
    """A primary copies itself to the standby at this address, and lets it follow from then on.

    `copy` numbers the standby; `Backed` says that it has all, `Unbacked` that it is out of reach.
    With `sync` pushes are acknowledged once it has them.
    """

    shard: int
    copy: int
    host: str
    port: int
    sync: bool


@_message
@dataclass(frozen=True, slots=True)
class Backed(Message):
    """A primary's standby has all of it."""

    shard: int
    copy: int


@_message
@dataclass(frozen=True, slots=True)
class Unbacked(Message):
    """A primary cannot reach its standby; what this one lacks is not acknowledged until `Alone`."""

    shard: int
    copy: int
    text: str


@_message
@dataclass(frozen=True, slots=True)
class Alone(Message):
    """A primary has no standby: the one it had will never be promoted."""

    shard: int


@_message
@dataclass(frozen=True, slots=True)
class Promote(Message):
    """A standby is the primary from now on; or one that has yielded is again."""

    shard: int
    epoch: int


@_message
@dataclass(frozen=True, slots=True)
class Yield(Message):
    """A primary hands over to its standby and serves no more; `Yielded` says how it went."""

    shard: int
    limit_s: float


@_message
@dataclass(frozen=True, slots=True)
class Yielded(Message):
    """A primary has yielded, or serves on, for the reason in `text`."""

    shard: int
    text: str = ""


@_message
@dataclass(frozen=True, slots=True)
class DropShard(Message):
    """A server forgets a shard that it has, if it has it."""

    shard: int


@_message
@dataclass(frozen=True, slots=True)
class KeepShards(Message):
    """A server forgets all shards that it has but these: what an earlier master wanted is over."""

    shards: list[Any]


@_message
@dataclass(frozen=True, slots=True)
class Drain(Message):
    """A server is to leave, and its shards to move; answered when it has, or with the reason."""

    server: int


def encode(message: Message) -> bytes:
    """Body of a message: JSON, then its blob.

    Raises
    ------
    MisuseError
        The JSON part is over the limit.
    """
    fields = {f.name: getattr(message, f.name) for f in dataclasses.fields(message)}  # type: ignore[arg-type]
    blob: bytes = fields.pop("blob", b"")
    text = json.dumps({"is": type(message).__name__, **fields}, separators=(",", ":")).encode()
    if len(text) > JSON_BYTES_MAX:
        raise MisuseError(
            f"{type(message).__name__} has {len(text):,} bytes of JSON, limit {JSON_BYTES_MAX:,}"
        )
    return len(text).to_bytes(4, "little") + text + blob


def decode(body: bytes) -> Message:
    """Message of a body.

    Raises
    ------
    ProtocolError
        Not a message that this version knows; says what was wrong with it.
    """
    if len(body) < 4:
        raise ProtocolError(f"control body of {len(body)} bytes, at least 4 expected", "message")
    text_bytes = int.from_bytes(body[:4], "little")
    if text_bytes > min(JSON_BYTES_MAX, len(body) - 4):
        raise ProtocolError(
            f"control body of {len(body):,} bytes states {text_bytes:,} bytes of JSON", "message"
        )
    try:
        fields = json.loads(body[4 : 4 + text_bytes])
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"control body is no JSON: {error}", "message") from None
    if not isinstance(fields, dict):
        raise ProtocolError("control body is no JSON object", "message")
    name = fields.pop("is", None)
    cls = _REGISTRY.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ProtocolError(f"unknown control message {name!r}", "message")
    return cls(**_checked(cls, fields, body[4 + text_bytes :]))


def _checked(cls: type[Message], fields: dict[str, Any], blob: bytes) -> dict[str, Any]:
    name = cls.__name__
    types = _FIELD_TYPES.get(name)
    if types is None:
        types = _FIELD_TYPES[name] = get_type_hints(cls)
    known = dataclasses.fields(cls)  # type: ignore[arg-type]
    if "blob" in fields:
        raise ProtocolError(f"{name} has its raw bytes in the JSON", "message")
    if any(f.name == "blob" for f in known):
        fields["blob"] = blob
    elif blob:
        raise ProtocolError(f"{name} carries {len(blob):,} raw bytes, none expected", "message")
    for f in known:
        if f.name not in fields:
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
                raise ProtocolError(f"{name} lacks its field {f.name!r}", "message")
            continue
        value, wanted = fields[f.name], types[f.name]
        origin = getattr(wanted, "__origin__", wanted)
        if origin is float and type(value) is int:
            fields[f.name] = float(value)
        elif type(value) is not origin:
            raise ProtocolError(
                f"{name}.{f.name}: expected {origin.__name__}, got {type(value).__name__}",
                "message",
            )
        if wanted == dict[str, float] and not all(
            type(item) in (int, float) for item in value.values()
        ):
            raise ProtocolError(f"{name}.{f.name}: expected numbers, got {value!r:.200}", "message")
    unknown = fields.keys() - {f.name for f in known}
    if unknown:
        raise ProtocolError(f"{name} has unknown fields {sorted(unknown)}", "message")
    return fields
