"""Control bodies: a message's fields as JSON, then raw bytes.

    Frame.body -> decode -> Message (validated, frozen)        Message -> encode -> Frame.body

A body is a uint32 length, that many bytes of JSON, then raw bytes (the message's `blob`, where it
has one).  The JSON object holds the message's name under "is" and its fields; unknown names,
missing or unknown fields and wrong types are the peer's error.  Nothing is ever unpickled.  It
knows no message; no sockets, clocks or threads here.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, TypeVar, get_type_hints

from snailps.errors import MisuseError, ProtocolError

JSON_BYTES_MAX = 16 << 20
"""Largest JSON part of a control body, bytes; large things travel as the raw part."""

REGISTRY: dict[str, type[Message]] = {}
"""All messages by name."""
_FIELD_TYPES: dict[str, dict[str, Any]] = {}
M = TypeVar("M", bound="type[Message]")


class Message:
    """Base of all control messages."""

    __slots__ = ()


def message(cls: M) -> M:
    """Makes a frozen dataclass a message that bodies may name."""
    REGISTRY[cls.__name__] = cls
    return cls


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
    cls = REGISTRY.get(name) if isinstance(name, str) else None
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
