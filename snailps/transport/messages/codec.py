"""Control bodies: a message's fields as JSON, then raw bytes.

    Frame.body -> decode -> Message (validated, frozen)        Message -> encode -> Frame.body

A body is a uint32 length, that many bytes of JSON, then raw bytes (the message's `blob`, if it has
one).  The JSON object has the message's name under "is", and its fields.  An unknown name, a
missing or unknown field, or a value without the shape declared at its field raises ProtocolError.
This is the only validation: handlers rely on it.  Nothing is ever unpickled.  Must not know any
message, nor sockets, clocks or threads.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

from snailps.dataclass import dataclass
from snailps.errors import MisuseError, ProtocolError
from snailps.transport.messages.inline import Inline, OneOf
from snailps.transport.messages.validation import Misfit, Shape, shown

JSON_BYTES_MAX = 16 << 20
"""Largest JSON part of a control body, bytes; large data goes into the raw part."""
CONTAINERS_MAX = 1 << 18
"""Most lists and objects in the JSON: each takes 100 bytes of memory for 2 bytes of JSON."""

REGISTRY: dict[str, type[Message]] = {}
"""Messages by name."""
M = TypeVar("M", bound="type[Message]")


class Message:
    """Base of all control messages."""

    __slots__ = ()

    def check(self) -> None:
        """Check relations between fields, after each has its shape; raises Misfit."""


@dataclass(frozen=True, slots=True)
class _Spec:
    by: tuple[str, ...]
    answers: tuple[str, ...]
    report: Shape | Callable[[Any], Shape] | None
    shapes: dict[str, Shape]  # of the fields of the JSON and of the blob
    names: tuple[str, ...]  # of the fields of the message
    values: dict[str, Inline | OneOf]  # fields of the message that are several fields of the JSON
    required: tuple[str, ...]
    checks: bool


SPECS: dict[type[Message], _Spec] = {}


def message(
    *,
    by: str,
    answers: str = "",
    report: Shape | Callable[[Any], Shape] | None = None,
) -> Callable[[M], M]:
    """Make a frozen dataclass a message that bodies may name.

    `by`: roles that send it, separated by spaces; "anyone" need not be registered.  `answers`:
    messages that may answer it; none: a note, or an answer itself.  `report`: shape of a `Report`
    that answers it, or a callable that gives the shape for a message.
    """

    def register(cls: M) -> M:
        hints = get_type_hints(cls, include_extras=True)
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        shapes: dict[str, Shape] = {}
        values: dict[str, Inline | OneOf] = {}
        for f in fields:
            shape = hints[f.name].__metadata__[0]
            if isinstance(shape, Inline | OneOf):
                values[f.name] = shape
                shapes |= shape.shapes
            else:
                shapes[f.name] = shape
        required = tuple(
            f.name
            for f in fields
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        )
        checks = cls.check is not Message.check
        SPECS[cls] = _Spec(
            tuple(by.split()),
            tuple(answers.split()),
            report,
            shapes,
            tuple(f.name for f in fields),
            values,
            required,
            checks,
        )
        REGISTRY[cls.__name__] = cls
        return cls

    return register


def encode(message: Message) -> bytes:
    """Make the body of a message: JSON, then its blob.  MisuseError: `decode` would refuse it."""
    name = type(message).__name__
    fields = _fields_of(message)
    blob: bytes = fields.pop("blob", b"")
    try:
        text = json.dumps({"is": name, **fields}, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise MisuseError(f"{name} cannot be sent: {error}") from error
    if len(text) > JSON_BYTES_MAX:
        raise MisuseError(f"{name} has {len(text):,} bytes of JSON, limit {JSON_BYTES_MAX:,}")
    if _has_many_containers(text):
        raise MisuseError(f"{name} has more than {CONTAINERS_MAX:,} lists of JSON")
    return len(text).to_bytes(4, "little") + text + blob


def _fields_of(message: Message) -> dict[str, Any]:
    spec = SPECS[type(message)]
    if not spec.values:
        return {name: getattr(message, name) for name in spec.shapes}
    fields: dict[str, Any] = {}
    for name in spec.names:
        if name in spec.values:
            fields |= spec.values[name].write(getattr(message, name))
        else:
            fields[name] = getattr(message, name)
    return fields


def _has_many_containers(text: bytes) -> bool:
    # Brackets within strings count, too, so a text of many is refused wrongly. To find them apart
    # would take parsing, which is what the limit is to come before.
    return len(text) > CONTAINERS_MAX and text.count(b"[") + text.count(b"{") > CONTAINERS_MAX


def decode(body: bytes) -> Message:
    """Read the message in a body; ProtocolError says what is wrong; no other error is raised."""
    if len(body) < 4:
        raise ProtocolError(f"control body of {len(body)} bytes, at least 4 expected", "message")
    text_bytes = int.from_bytes(body[:4], "little")
    if text_bytes > min(JSON_BYTES_MAX, len(body) - 4):
        raise ProtocolError(
            f"control body of {len(body):,} bytes states {text_bytes:,} bytes of JSON", "message"
        )
    text = body[4 : 4 + text_bytes]
    if _has_many_containers(text):
        raise ProtocolError(f"control body of more than {CONTAINERS_MAX:,} lists", "message")
    try:
        fields = json.loads(text.decode())
    except (ValueError, RecursionError, MemoryError) as error:
        raise ProtocolError(f"control body is no JSON: {error}", "message") from None
    if not isinstance(fields, dict):
        raise ProtocolError("control body is no JSON object", "message")
    name = fields.pop("is", None)
    cls = REGISTRY.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ProtocolError(f"unknown control message {shown(name)}", "message")
    return _made(cls, fields, body[4 + text_bytes :])


def _made(cls: type[Message], fields: dict[str, Any], blob: bytes) -> Message:
    name, spec = cls.__name__, SPECS[cls]
    if "blob" in fields:  # it could be any value there, where handlers rely on bytes
        raise ProtocolError(f"{name} has its raw bytes in the JSON", "message")
    if "blob" in spec.shapes:
        fields["blob"] = blob
    elif blob:
        raise ProtocolError(f"{name} carries {len(blob):,} raw bytes, none expected", "message")
    for field in spec.required:
        if field not in fields:
            raise ProtocolError(f"{name} lacks its field {field!r}", "message")
    # Refused, and not skipped: the sender relies on what this side would not do.
    if not fields.keys() <= spec.shapes.keys():
        unknown = ", ".join(map(shown, sorted(fields.keys() - spec.shapes.keys())[:3]))
        raise ProtocolError(f"{name} has unknown fields [{unknown}]", "message")
    checked = {}
    for field, value in fields.items():
        try:
            checked[field] = spec.shapes[field].check(value)
        except Misfit as error:
            text = f"{name}.{field}{error.path}: expected {error.expected}, got {error.got}"
            raise ProtocolError(text, "message") from None
    try:
        if spec.values:
            values = {field: value.read(checked) for field, value in spec.values.items()}
            checked = {field: checked[field] for field in spec.names if field in checked} | values
        message = cls(**checked)
        if spec.checks:
            message.check()
    except Misfit as error:
        raise ProtocolError(f"{name}{error.path}: {error.expected}", "message") from None
    return message


def check_speaker(message: Message, role: str) -> None:
    """Raise ProtocolError if `role` may not send the message; `role` is empty before Register."""
    by = SPECS[type(message)].by
    if role in by or "anyone" in by:
        return
    name = type(message).__name__
    if not role:
        raise ProtocolError(f"{name} before Register", "message")
    raise ProtocolError(f"{name} from a {role}: only {' or '.join(by)} may send it", "message")


@dataclass(frozen=True, slots=True)
class Answers:
    """Which messages may answer a call, and the shape of a `Report` among them."""

    asked: str
    names: tuple[str, ...]
    report: Shape | None

    @classmethod
    def of(cls, asked: Message) -> Answers:
        spec = SPECS[type(asked)]
        report = spec.report(asked) if callable(spec.report) else spec.report
        return cls(type(asked).__name__, spec.answers, report)

    def checked(self, answer: Message) -> Message:
        """Return the answer, checked; ProtocolError: it does not answer this call."""
        name = type(answer).__name__
        if name not in self.names:
            wanted = " or ".join(self.names) or "nothing"
            raise ProtocolError(f"{self.asked} is answered by {wanted}, got {name}", "message")
        if name != "Report" or self.report is None:
            return answer
        try:
            return type(answer)(self.report.check(answer.data))  # type: ignore[call-arg, attr-defined]
        except Misfit as error:
            text = f"Report on {self.asked}{error.path}: expected {error.expected}, got {error.got}"
            raise ProtocolError(text, "message") from None
