"""Shapes of a message's fields: ranges, lengths and nested forms, declared beside the field.

    pid: Annotated[int, Whole(0, 1 << 32)]      value from JSON -> check -> the value, or Misfit

A shape takes whatever JSON can hold, and raises only `Misfit`.  The message gets its result: a
whole number in a float's place becomes a float, a text for people is cut to its length.  Must not
know any message; `codec.py` applies the shapes of a message's fields.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Protocol

from snailps.config.addresses import PORT_MAX, host_fault

SHOWN_CHARS = 60
"""Characters of a wrong value in an error, at most."""
NAME_CHARS_MAX = 256
WORDS_CHARS_MAX = 1 << 16
TRACE_CHARS_MAX = 1 << 17
PATH_CHARS_MAX = 1 << 16
SETTING_CHARS_MAX = 1 << 20
"""Most characters of a setting, such as `input` with many files, in any message."""
ITEMS_MAX = 1 << 20
DEPTH_MAX = 16
COUNT_MAX = 1 << 53
"""Counts are added up as floats, too, which are exact for whole numbers up to this one."""
SHARDS_MAX = 1 << 16
TABLES_MAX = 4096
PARTS_MAX = 1 << 16
"""Output partitions of a chunk."""

_LONE = re.compile("[\ud800-\udfff]")
_LONE_IN_PATH = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # \udc80 to \udcff: bytes of no UTF-8
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


class Misfit(ValueError):
    """A value does not have its shape; `path` says where in the field."""

    def __init__(self, expected: str, got: object, path: str = "") -> None:
        super().__init__(expected)
        self.expected, self.got, self.path = expected, shown(got), path

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}expected {self.expected}, got {self.got}"

    def inside(self, step: str) -> Misfit:
        """Extend `path` by `step`, one level further out."""
        self.path = step + self.path
        return self


class Shape(Protocol):
    def check(self, value: Any) -> Any:
        """Return the value that the message gets; raises Misfit."""


def shown(value: object) -> str:
    """Describe a wrong value in a few words, however large or deep it is."""
    if isinstance(value, str):
        return repr(value) if len(value) <= SHOWN_CHARS else f"{value[:SHOWN_CHARS]!r}..."
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, list):
        return f"a list of {len(value):,}"
    if isinstance(value, dict):
        return f"an object of {len(value):,} fields"
    if type(value) is int and value.bit_length() > 128:
        return f"a whole number of {value.bit_length():,} bits"
    return repr(value)


class Whole:
    """A whole number from `low` to `high`."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def check(self, value: Any) -> int:
        """Refuses floats and bools."""
        if type(value) is int and self.low <= value <= self.high:
            return value
        raise Misfit(f"a whole number from {self.low} to {self.high}", value)


class Number:
    """A number from `low` to `high`; infinity and NaN only without `finite`."""

    def __init__(
        self, low: float = -math.inf, high: float = math.inf, *, finite: bool = True
    ) -> None:
        self.low, self.high, self.finite = low, high, finite

    def check(self, value: Any) -> float:
        """Converts whole numbers to floats."""
        if type(value) is int and -COUNT_MAX * COUNT_MAX <= value <= COUNT_MAX * COUNT_MAX:
            value = float(value)
        if type(value) is float:
            if self.low <= value <= self.high and (not self.finite or math.isfinite(value)):
                return value
            if not self.finite and math.isnan(value):
                return value
        what = "a number" if self.low == -math.inf else f"a number of at least {self.low:g}"
        what += "" if self.high == math.inf else f" and at most {self.high:g}"
        raise Misfit(what, value)


class Flag:
    def check(self, value: Any) -> bool:
        if type(value) is bool:
            return value
        raise Misfit("true or false", value)


class Raw:
    """The bytes after the JSON."""

    def __init__(self, longest: int = 1 << 28) -> None:
        self.longest = longest

    def check(self, value: Any) -> bytes:
        if type(value) is bytes and len(value) <= self.longest:
            return value
        raise Misfit(f"at most {self.longest:,} bytes", value)


class Name:
    """A short text without control characters, which programs compare."""

    def check(self, value: Any) -> str:
        if type(value) is str and len(value) <= NAME_CHARS_MAX and not _UNPRINTABLE.search(value):
            return value
        raise Misfit(f"a text of at most {NAME_CHARS_MAX} characters, all printable", value)


class Choice:
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def check(self, value: Any) -> str:
        if type(value) is str and value in self.words:
            return value
        raise Misfit(" or ".join(self.words), value)


class Words:
    """A text for people, cut if it is too long; lone surrogates are escaped."""

    def __init__(self, longest: int = WORDS_CHARS_MAX) -> None:
        self.longest = longest

    def check(self, value: Any) -> str:
        """Refuses no text: it may be the only explanation of a failure."""
        if type(value) is not str:
            raise Misfit("a text", value)
        text: str = value[: self.longest]
        return text.encode("utf-8", "backslashreplace").decode() if _LONE.search(text) else text


class Path:
    """A path, or a text with paths; bytes that are not UTF-8 are surrogates, like in Python."""

    def __init__(self, longest: int = PATH_CHARS_MAX) -> None:
        self.longest = longest

    def check(self, value: Any) -> str:
        if (
            type(value) is str
            and len(value) <= self.longest
            and "\0" not in value
            and not _LONE_IN_PATH.search(value)
        ):
            return value
        raise Misfit(f"a path of at most {self.longest:,} characters", value)


class Host:
    """A name or address that a socket may be asked to connect to."""

    def check(self, value: Any) -> str:
        if type(value) is not str:
            raise Misfit("a host", value)
        if fault := host_fault(value):
            raise Misfit(f"a host ({fault})", value)
        return value


class ListOf:
    """A list of up to `longest` items of one shape."""

    def __init__(self, item: Shape, longest: int = ITEMS_MAX) -> None:
        self.item, self.longest = item, longest

    def check(self, value: Any) -> list[Any]:
        """Checks the length before any item."""
        if type(value) is not list or len(value) > self.longest:
            raise Misfit(f"a list of at most {self.longest:,}", value)
        check, checked = self.item.check, []
        try:
            for item in value:
                checked.append(check(item))
        except Misfit as error:
            raise error.inside(f"[{len(checked)}]") from None
        return checked


class TupleOf(ListOf):
    """A list of up to `longest` items of one shape, as a tuple."""

    def check(self, value: Any) -> Any:
        return tuple(super().check(value))


class Row:
    """A list with one item of each of these shapes."""

    def __init__(self, *items: Shape) -> None:
        self.items = items

    def check(self, value: Any) -> list[Any]:
        if type(value) is not list or len(value) != len(self.items):
            raise Misfit(f"a list of {len(self.items)}", value)
        checked: list[Any] = []
        try:
            for shape, item in zip(self.items, value, strict=True):
                checked.append(shape.check(item))
        except Misfit as error:
            raise error.inside(f"[{len(checked)}]") from None
        return checked


class MapOf:
    """An object with any names and values of one shape; values in `named` have shapes of their
    own."""

    def __init__(
        self, item: Shape, longest: int = 1024, named: Mapping[str, Shape] | None = None
    ) -> None:
        self.item, self.longest, self.named = item, longest, dict(named or {})

    def check(self, value: Any) -> dict[str, Any]:
        if type(value) is not dict or len(value) > self.longest:
            raise Misfit(f"an object of at most {self.longest:,} fields", value)
        checked = {}
        for key, item in value.items():
            try:
                checked[_KEY.check(key)] = self.named.get(key, self.item).check(item)
            except Misfit as error:
                raise error.inside(f"[{shown(key)}]") from None
        return checked


class Struct:
    """An object with these fields; with `open` it may have others, of any content."""

    def __init__(
        self,
        required: Mapping[str, Shape],
        optional: Mapping[str, Shape] | None = None,
        *,
        open: bool = False,
    ) -> None:
        self.required, self.optional, self.open = dict(required), dict(optional or {}), open

    def check(self, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Misfit("an object", value)
        checked = dict(value) if self.open else {}
        present = 0
        for fields, needed in ((self.required, True), (self.optional, False)):
            for name, shape in fields.items():
                if name not in value:
                    if needed:
                        raise Misfit(f"a field {name!r}", value)
                    continue
                present += 1
                try:
                    checked[name] = shape.check(value[name])
                except Misfit as error:
                    raise error.inside(f".{name}") from None
        if not self.open and present < len(value):
            unknown = next(iter(value.keys() - self.required.keys() - self.optional.keys()))
            raise Misfit("no field " + shown(unknown), value)
        return checked


class Maybe:
    """A shape, or null."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def check(self, value: Any) -> Any:
        return None if value is None else self.shape.check(value)


class Plain:
    """Anything that JSON can hold, of at most `depth` levels, with whole numbers of 64 bits."""

    def __init__(self, depth: int = DEPTH_MAX) -> None:
        self.depth = depth

    def check(self, value: Any) -> Any:
        return self._look(value, self.depth)

    def _look(self, value: Any, levels: int) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is float:
            return value
        if kind is str:
            return _WORDS.check(value)
        if kind is int:
            return WORD64.check(value)
        if levels == 0:
            raise Misfit(f"at most {self.depth} levels", value)
        if kind is list:
            return [self._look(item, levels - 1) for item in value]
        if kind is dict:
            return {_KEY.check(key): self._look(item, levels - 1) for key, item in value.items()}
        raise Misfit("a value of JSON", value)


_KEY, _WORDS, WORD64 = Name(), Words(SETTING_CHARS_MAX), Whole(-(1 << 63), (1 << 64) - 1)

FLAG, COUNT, U16 = Flag(), Whole(0, COUNT_MAX), Whole(0, SHARDS_MAX - 1)
U32, U63, U64 = (Whole(0, (1 << bits) - 1) for bits in (32, 63, 64))
CLOCK_OR_NONE = Whole(-1, (1 << 63) - 1)
PART, PART_OR_NONE, SIZE = Whole(0, PARTS_MAX), Whole(-1, PARTS_MAX), Whole(1, 1 << 16)
SECONDS = Number(0.0, 1e9)
PORT = Whole(1, PORT_MAX)
ENDPOINT = Row(Host(), PORT)
SCALAR = Plain(0)
TEXTS = MapOf(Path(SETTING_CHARS_MAX))
FIGURES_SHAPE = MapOf(Number(-COUNT_MAX, COUNT_MAX))
METRICS = MapOf(
    Number(finite=False),
    named={"examples": Number(0.0, COUNT_MAX), "bad_lines": Number(0.0, COUNT_MAX)},
)
"""Metrics of a block: a loss may be NaN, of a training that diverged."""

Bool = Annotated[bool, FLAG]
Shard = Annotated[int, U16]
Shards = Annotated[list[Any], ListOf(U16, SHARDS_MAX)]
Id32 = Annotated[int, U32]
Id64 = Annotated[int, U64]
Natural = Annotated[int, U63]
Clock = Annotated[int, U63]
ClockOrNone = Annotated[int, CLOCK_OR_NONE]
Part = Annotated[int, PART]
PartOrNone = Annotated[int, PART_OR_NONE]
Count = Annotated[int, COUNT]
Seconds = Annotated[float, SECONDS]
Cores = Annotated[float, Number(0.001, COUNT_MAX)]
Label = Annotated[str, Name()]
Text = Annotated[str, Words()]
Trace = Annotated[str, Words(TRACE_CHARS_MAX)]
Location = Annotated[str, Path()]
HostName = Annotated[str, Host()]
Port = Annotated[int, PORT]
Endpoint = Annotated[list[Any], ENDPOINT]
Endpoints = Annotated[list[Any], ListOf(ENDPOINT, SHARDS_MAX)]
Object = Annotated[dict[str, Any], MapOf(Plain(DEPTH_MAX - 1))]
Facts = Annotated[dict[str, Any], MapOf(SCALAR, 64)]
Texts = Annotated[dict[str, Any], TEXTS]
Figures = Annotated[dict[str, float], FIGURES_SHAPE]
Metrics = Annotated[dict[str, float], METRICS]
Blob = Annotated[bytes, Raw()]
Table = MapOf(SCALAR, 64)
"""A table declaration, as `api.tables.Table` writes it; that class checks its fields."""
NUMBERED_TABLES = ListOf(Row(U32, Table), TABLES_MAX)
NumberedTables = Annotated[list[Any], NUMBERED_TABLES]
