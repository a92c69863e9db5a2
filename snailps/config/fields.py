"""Owns the declaration of a setting, its parser (text to value) and its format (value to text).

    dim: int = setting(100, help=..., when=..., low=1)  -> settings_of(cls)["dim"] -> Setting
    Setting.parse: text, origin -> value or ConfigError        Setting.format: value -> text

Must not know files, precedence or any particular setting.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from snailps.config.quoting import quote, split_list, unquote
from snailps.dataclass import dataclass
from snailps.errors import ConfigError

T = TypeVar("T")
S = TypeVar("S", bound="Settings")
Check = Callable[[str, str], str]
Case = Mapping[str, Collection[Any]]
"""Condition on other settings: attribute -> values, one of which it must have; all must hold."""
Kind = typing.Literal["int", "float", "bool", "str", "list"]

_METADATA = "snailps.setting"
_KINDS: dict[Any, Kind] = {
    int: "int", float: "float", bool: "bool", str: "str", tuple[str, ...]: "list",
}  # fmt: skip
_TYPES: dict[Kind, Any] = {
    "int": int, "float": (int, float), "bool": bool, "str": str, "list": tuple,
}  # fmt: skip
_NAMED_KINDS: dict[str, Any] = {
    "int": int, "float": float, "bool": bool, "str": str, "tuple[str, ...]": tuple[str, ...],
}  # fmt: skip
"""Kinds by annotations that are still text (``from __future__ import annotations``)."""
_BOOLS = {"true": True, "yes": True, "on": True, "1": True}
_BOOLS |= {"false": False, "no": False, "off": False, "0": False}
_BYTE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_BYTES_MAX = (1 << 63) - 1
"""What a size of a file can be."""
_GOT_CHARS_MAX = 80
_SHOWN = {"method": "optimizer"}
"""Attribute that `read_if` may name -> the setting that users know it by."""


@dataclass(frozen=True)
class Alias:
    """Another name under which a setting is accepted.

    `convert` maps (text, origin) to the text of the setting, or to None if that value leaves the
    setting alone; `note` says in documentation and notice what differs under this name.
    """

    name: str
    convert: Callable[[str, str], str | None] | None = None
    note: str = ""


def setting(
    default: T,
    *,
    help: str,
    when: str,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: Iterable[str] | None = None,
    aliases: Iterable[str | Alias] = (),
    check: Check | None = None,
    auto: bool = False,
    automatic: int = 0,
    hidden: bool = False,
    read_if: Case | Sequence[Case] = (),
) -> T:
    """Declare a field of a `Settings` dataclass.

    Parameters
    ----------
    default : int, float, bool, str or tuple of str
        Value if the setting is not assigned.
    help, when : str
        What the setting does; when to change it.  ``--help`` shows the first sentence of `help`,
        cut at about fifty characters.
    unit : str
        ``"bytes"`` on an int also accepts 64K, 16M and 2G (powers of 1024); ``"s"`` means seconds;
        ``"path"`` on a str expands ``~``; any other text only informs readers.
    low, high : number, optional
        Range of a number, both ends included.
    choices : iterable of str, optional
        The accepted values of a str; a ``Literal`` annotation says the same.
    aliases : iterable of str or Alias
        Other names that are accepted, with a notice.
    check : callable, optional
        Maps (value, origin) of a str to its normal form, or raises `ConfigError` with a message
        that begins with origin.  Must accept its own results.
    auto : bool
        Accept ``auto`` for a number.
    automatic : int
        Value that stands for ``auto`` in a `Settings` object; outside the range if `low` is given.
    hidden : bool
        Set by the program, never by users: no option, in no document.
    read_if : mapping or sequence of mappings
        The job reads this setting only if another one has one of these values, such as
        ``{"loss": ("margin",)}``; several mappings are alternatives.  A value other than the
        default that the job does not read is refused.

    Returns
    -------
    dataclasses.Field
        Has the type of the default for type checkers, which see ``dim: int = setting(100, ...)``.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from snailps.config import JobSettings
    >>> @dataclass(frozen=True)
    ... class Mine(JobSettings):
    ...     width: int = setting(8, help="Columns.", when="More for larger data.", low=1)
    >>> Mine(width=16).width
    16
    """
    if not help or not when:
        raise TypeError("a setting needs both help= and when=")
    declared = Setting(
        name="",
        kind="str",
        default=default,
        help=help,
        when=when,
        unit=unit,
        low=low,
        high=high,
        choices=tuple(choices or ()),
        aliases=tuple(Alias(a) if isinstance(a, str) else a for a in aliases),
        check=check,
        auto=auto,
        automatic=automatic,
        hidden=hidden,
        read_if=(read_if,) if isinstance(read_if, Mapping) else tuple(read_if),
    )
    field: Any = dataclasses.field(default=default, metadata={_METADATA: declared})
    return typing.cast(T, field)


class Settings:
    """Base of all settings classes: frozen, slotted dataclasses of `setting` fields."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        """Refuse ``epochs = 3`` without a type: a dataclass would silently ignore it."""
        super().__init_subclass__()
        inherited = getattr(cls, "__dataclass_fields__", {})
        for name in inherited.keys() & vars(cls).keys() - inspect.get_annotations(cls).keys():
            value = vars(cls)[name]
            # A field of `make_dataclass` has its type only afterwards, from Python 3.14 on.
            if not isinstance(value, types.MemberDescriptorType | dataclasses.Field):
                raise _plain(cls, name, inherited[name].type, value)

    def validate(self, where: Callable[[str], str]) -> None:
        """Refuse values that contradict each other; `RawConfig.build` calls it.

        `where`: name of a setting -> origin of its value, and the name, to begin a message with.
        An override calls ``Base.validate(self, where)``: a bare ``super()`` fails in slotted
        dataclasses before Python 3.14.
        """


@dataclass(frozen=True)
class Setting:
    """A declared setting; `settings_of` adds its name, kind and the choices of a ``Literal``."""

    name: str
    kind: Kind
    default: Any
    help: str
    when: str
    unit: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    aliases: tuple[Alias, ...]
    check: Check | None
    auto: bool = False
    automatic: int = 0
    hidden: bool = False
    read_if: tuple[Case, ...] = ()

    def is_read(self, settings: Any) -> bool:
        """Whether a job with this settings object reads this setting."""
        return not self.read_if or any(
            all(getattr(settings, name) in values for name, values in case.items())
            for case in self.read_if
        )

    @property
    def about(self) -> str:
        """The help text, and with which values of other settings this one is read."""
        cases = [_case_text(case, "`{}: {}`") for case in self.read_if]
        return self.help + (f" Only with {', or '.join(cases)}." if cases else "")

    @property
    def readers(self) -> list[str]:
        """The settings that decide whether a job reads this one, as users call them."""
        names = dict.fromkeys(name for case in self.read_if for name in case)
        return [_SHOWN.get(name, name) for name in names]

    def unread_text(self, settings: Any) -> str:
        """Say why a job with these settings does not read this one, and which jobs do."""
        names = dict.fromkeys(name for case in self.read_if for name in case)
        here = _case_text({name: (getattr(settings, name),) for name in names})
        needed = ", or ".join(_case_text(_without_auto(case)) for case in self.read_if)
        return f"has no effect with {here}: it needs {needed}"

    def parse(self, text: str, origin: str) -> Any:
        """Parse and check `text`; a `ConfigError` has origin, setting, expected value and text."""
        if self.unit in ("path", "paths") and "\0" in text:
            raise self._refusal(text, origin, "no path has a NUL character")
        try:
            if self.kind == "list":
                return tuple(split_list(text))
            plain = unquote(text)
            if self.auto and plain.lower() == "auto":
                return self.automatic
            value: Any = _PARSERS[self.kind](plain, self.unit)
        except ValueError as error:
            raise self._refusal(text, origin, str(error)) from None
        if self.kind in ("int", "float") and not self.allows(value):
            raise self._refusal(text, origin)
        if self.choices and value not in self.choices:
            raise self._refusal(text, origin)
        if self.unit == "path":
            value = home_expanded(value)
        if self.check is not None:
            value = self.check(value, self.place(origin))
        return value

    def format(self, value: Any) -> str:
        """Text that `parse` turns back into exactly `value`."""
        return "auto" if self.auto and value == self.automatic else format_value(value)

    @property
    def expected(self) -> str:
        """The accepted values, to follow "expected" in a sentence."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        noun = {
            "int": "a whole number",
            "float": "a number",
            "bool": "true or false (or yes/no, on/off, 1/0)",
            "str": "text",
            "list": "a comma separated list",
        }[self.kind]
        if self.unit == "bytes":
            noun = "a number of bytes such as 65536, 64K, 16M or 2G"
        elif self.unit and self.kind in ("int", "float"):
            noun += f" ({'seconds' if self.unit == 's' else self.unit})"
        return ("auto, or " if self.auto else "") + noun + self.range

    @property
    def range(self) -> str:
        """The range, to end a phrase: `` from 1 to 8``, `` of at least 1``, or empty."""
        if self.low is not None and self.high is not None:
            return f" from {self._number(self.low)} to {self._number(self.high)}"
        if self.low is not None:
            return f" of at least {self._number(self.low)}"
        return f" of at most {self._number(self.high)}" if self.high is not None else ""

    def _number(self, value: float) -> str:
        """Write a bound of bytes as users do: 1G, not 1073741824."""
        if self.unit == "bytes" and value:
            for letter, size in sorted(_BYTE_UNITS.items(), key=lambda unit: -unit[1]):
                if value % size == 0:
                    return f"{int(value) // size}{letter}"
        return str(value)

    def allows(self, value: float) -> bool:
        """Whether a number lies in the range."""
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def _refusal(self, text: str, origin: str, why: str = "") -> ConfigError:
        got = repr(text) if text.strip() else "nothing"
        if len(got) > _GOT_CHARS_MAX:
            got = got[:_GOT_CHARS_MAX] + "..."
        ending = f" ({why})" if why else ""
        return ConfigError(f"{self.place(origin)}: expected {self.expected}; got {got}{ending}")

    def place(self, origin: str) -> str:
        """Name origin and setting of a value, to begin a message with; the setting only once."""
        if origin.startswith(f"--set {self.name}="):
            return f"--set {self.name}"
        return origin if origin == f"--{self.name.replace('_', '-')}" else f"{origin}: {self.name}"


_described: WeakKeyDictionary[type, Mapping[str, Setting]] = WeakKeyDictionary()


def settings_of(cls: type[Settings]) -> Mapping[str, Setting]:
    """Return all settings of a class by name, inherited ones first, in order of declaration.

    Cached, because a starting process asks dozens of times.  `TypeError` for a mistake in the
    class.
    """
    if not (isinstance(cls, type) and issubclass(cls, Settings) and dataclasses.is_dataclass(cls)):
        raise TypeError(f"{cls!r} is not a dataclass derived from snailps.config.Settings")
    if cls not in _described:
        _refuse_plain(cls)
        hints = typing.get_type_hints(cls)
        described = {
            field.name: _named(cls, field, hints[field.name]) for field in dataclasses.fields(cls)
        }
        _described[cls] = types.MappingProxyType(described)
    return _described[cls]


def _refuse_plain(cls: Any) -> None:
    """Raise `TypeError` for settings of a class that is no dataclass, or without a default."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for base in cls.__mro__:
        if not issubclass(base, Settings):
            continue
        declared = {
            name: hint
            for name, hint in inspect.get_annotations(base).items()
            if "ClassVar" not in str(hint)
        }
        if declared and "__dataclass_fields__" not in vars(base):
            raise TypeError(
                f"{base.__name__} has settings ({', '.join(declared)}) but is not a dataclass: "
                "put @dataclass(frozen=True, slots=True) before the class"
            )
        for name in declared:
            if _METADATA not in fields[name].metadata and (
                fields[name].default is dataclasses.MISSING
            ):
                raise _plain(base, name, fields[name].type, fields[name].default)


def _without_auto(case: Case) -> Case:
    """Leave `auto` out: its choice is known by now, so setting it again changes nothing."""
    return {
        name: values if "auto" not in values else tuple(v for v in values if v != "auto") or values
        for name, values in case.items()
    }


def _case_text(case: Case, form: str = "{}: {}") -> str:
    """Write a condition on settings as words, each pair in a `form`."""
    words = []
    for name, values in case.items():
        shown = " or ".join(map(str, values))
        if isinstance(values, range):
            shown = f"at least {values.start}"
        words.append(form.format(_SHOWN.get(name, name), shown))
    return " and ".join(words)


def _plain(cls: type, name: str, hint: Any, default: object) -> TypeError:
    shown = hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))
    value = "DEFAULT" if default is dataclasses.MISSING else repr(default)
    return TypeError(
        f"{cls.__name__}.{name} is a plain field, not a setting: declare it as "
        f'{name}: {shown} = snailps.setting({value}, help="...", when="...")'
    )


def _of_plain(cls: type, field: dataclasses.Field[Any]) -> Setting:
    """Declare a field ``dim: int = 8``; an inherited setting gets this default."""
    for base in cls.__mro__[1:]:
        inherited = getattr(base, "__dataclass_fields__", {}).get(field.name)
        if inherited is not None and _METADATA in inherited.metadata:
            setting_of_base: Setting = inherited.metadata[_METADATA]
            return dataclasses.replace(setting_of_base, default=field.default)
    owner = cls.__name__
    return Setting(
        name="", kind="str", default=field.default, help=f"Of {owner}.", when="As it needs.",
        unit="", low=None, high=None, choices=(), aliases=(), check=None,
    )  # fmt: skip


def _named(cls: type, field: dataclasses.Field[Any], hint: Any) -> Setting:
    declared: Setting = field.metadata.get(_METADATA) or _of_plain(cls, field)
    choices = declared.choices
    if typing.get_origin(hint) is typing.Literal:
        choices, hint = typing.get_args(hint), str
    kind = _KINDS.get(hint)
    if kind is None or (choices and kind != "str") or not all(isinstance(c, str) for c in choices):
        raise TypeError(
            f"{cls.__name__}.{field.name}: a setting is an int, float, bool, str, "
            f"tuple[str, ...] or a Literal of strings, not {hint!r}"
        )
    if _METADATA not in field.metadata and not isinstance(field.default, _TYPES[kind]):
        raise TypeError(
            f"{cls.__name__}.{field.name}: its default {field.default!r:.80} is no {kind}"
        )
    return dataclasses.replace(
        declared, name=field.name, kind=kind, default=field.default, choices=choices
    )


def with_fields(base: type[S], owner: type, but: Collection[str]) -> tuple[type[S], list[str]]:
    """Subclass `base` with the fields ``width: int = 8`` of `owner`; return it and their names.

    Ignores fields of other types, without a value, with a leading underscore or in `but`.
    """
    new_fields: list[tuple[str, Any, Any]] = []
    for name, hint in inspect.get_annotations(owner).items():
        kind = _NAMED_KINDS.get(hint, hint) if isinstance(hint, str) else hint
        is_known = name in vars(owner) and isinstance(kind, Hashable) and kind in _KINDS
        if is_known and not (name.startswith("_") or name in but):
            new_fields.append((name, kind, dataclasses.field(default=vars(owner)[name])))
    if not new_fields:
        return base, []
    made = dataclasses.make_dataclass(
        f"{owner.__name__}Settings", new_fields, bases=(base,), frozen=True, slots=True
    )
    made.__module__ = owner.__module__
    return made, [name for name, _, _ in new_fields]


def format_value(value: Any) -> str:
    """Write a value of any kind of setting; takes lists as well as tuples."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quote(value) if value else ""
    if isinstance(value, (list, tuple)):
        return ", ".join(quote(str(item)) for item in value)
    return float.__repr__(value) if isinstance(value, float) else str(value)


GONE = "a folder that was removed"


def current_folder(removed: str = "") -> str:
    """The current folder; `removed` if it was removed, as folders for temporary files are."""
    try:
        return os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return removed


def home_expanded(path: str) -> str:
    """Expand ``~`` or ``~user`` at the start of a path; unchanged if there is no such user."""
    return os.path.expanduser(path)  # noqa: PTH111 (pathlib's raises for an unknown user)


def parse_bool(text: str, unit: str = "") -> bool:
    """Parse true, yes, on, 1 and their opposites, in any case of letters."""
    try:
        return _BOOLS[text.lower()]
    except KeyError:
        raise ValueError("") from None


def _parse_int(text: str, unit: str) -> int:
    if unit == "bytes":
        match = re.fullmatch(r"([0-9]{1,19})\s*([KMG]?)", text.upper())
        if match is None:
            raise ValueError("")
        size = int(match[1]) * _BYTE_UNITS[match[2]]
        if size > _BYTES_MAX:
            raise ValueError("too large")
        return size
    if not re.fullmatch(r"[+-]?[0-9](_?[0-9]){0,30}", text):
        raise ValueError("")
    return int(text)


def bytes_of(text: str, where: str) -> int:
    """Parse a number of bytes; empty: 0.  ConfigError, which names `where`: it is none."""
    try:
        return _parse_int(text.strip() or "0", "bytes")
    except ValueError:
        raise ConfigError(
            f"{where}: expected a number of bytes such as 65536, 64K, 16M or 2G, got {text!r:.80}"
        ) from None


def _parse_float(text: str, unit: str) -> float:
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        raise ValueError("")
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("too large")
    return value


_PARSERS: dict[Kind, Callable[[str, str], Any]] = {
    "int": _parse_int, "float": _parse_float, "bool": parse_bool, "str": lambda text, unit: text,
}  # fmt: skip
