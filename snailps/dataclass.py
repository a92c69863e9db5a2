"""`dataclasses.dataclass`, which takes a quarter of the time: what each process makes as it starts.

    class -> dataclass(frozen, slots, eq) -> the class, as the standard library makes it

The library compiles six functions a class.  A master makes 170 classes, a worker 100: that was
half of what they import beside NumPy.  Here `__init__` alone is compiled; the other functions are
made, not compiled, and fields and slots are the library's, as are classes derived from such ones.
What it offers beyond `frozen`, `slots`, `eq` and fields with defaults is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, asdict, field, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["asdict", "dataclass", "field", "fields", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type | None = None, *, frozen: bool = False, slots: bool = False, eq: bool = True
    ) -> Any:
        """Make a class of fields, as `dataclasses.dataclass` with these arguments."""

        def made(cls: type) -> type:
            return _made(cls, frozen, slots, eq)

        return made if cls is None else made(cls)


def _made(cls: type, frozen: bool, slots: bool, eq: bool) -> type:
    if any(map(dataclasses.is_dataclass, cls.__mro__[1:])):
        return dataclasses.dataclass(frozen=frozen, slots=slots, eq=eq)(cls)
    own = set(vars(cls))
    cls.__doc__ = cls.__doc__ or cls.__name__  # else the library writes a signature, slowly
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    params: Any = vars(cls)["__dataclass_params__"]
    params.frozen, params.eq = frozen, eq
    members = fields(cls)
    functions = {"__init__": _initializer(cls, members, frozen), "__repr__": _shown(members)}
    if eq:
        values = _getter([one.name for one in members if one.compare])
        functions["__eq__"] = _equality(values)
        if frozen:
            functions["__hash__"] = lambda self: hash(values(self))
        elif "__hash__" not in own:
            cls.__hash__ = None  # type: ignore[assignment]
    if frozen:
        functions |= _frozen(cls, members, slots)
    for name, function in functions.items():
        if name not in own:
            function.__name__, function.__qualname__ = name, f"{cls.__qualname__}.{name}"
            setattr(cls, name, function)
    return cls


# --- its functions --------------------------------------------------------------------------------


def _initializer(cls: type, members: tuple[Field[Any], ...], frozen: bool) -> Callable[..., None]:
    """The function that is compiled."""
    scope: dict[str, Any] = {"put": object.__setattr__, "missing": MISSING}
    arguments, body = ["self"], []
    for number, one in enumerate(members):
        name, value = one.name, one.name
        if one.kw_only:
            raise TypeError(f"{cls.__name__}.{name}: kw_only is not offered here")
        if one.default is not MISSING:
            scope[f"d{number}"] = one.default
            default = f"d{number}"
        elif one.default_factory is not MISSING:
            scope[f"d{number}"] = one.default_factory
            default = "missing"
            value = f"d{number}() if {name} is missing else {name}"
        else:
            default = ""
        if one.init:
            arguments.append(f"{name}={default}" if default else name)
        elif not default:
            continue
        else:
            value = f"d{number}()" if default == "missing" else default
        setter = getattr(getattr(cls, name, None), "__set__", None)
        if not frozen:
            body.append(f"self.{name} = {value}")
        elif setter:
            scope[f"s{number}"] = setter
            body.append(f"s{number}(self, {value})")
        else:
            body.append(f"put(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    exec(f"def __init__({', '.join(arguments)}):\n  " + "\n  ".join(body or ["pass"]), scope)
    found: Callable[..., None] = scope["__init__"]
    found.__annotations__ = {one.name: one.type for one in members if one.init} | {"return": None}
    found.__module__ = cls.__module__
    return found


def _getter(names: list[str]) -> Callable[[Any], Any]:
    """A function of an instance: what its fields have."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _equality(values: Callable[[Any], Any]) -> Callable[[Any, object], Any]:
    def equal(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return equal


def _shown(members: tuple[Field[Any], ...]) -> Callable[[Any], str]:
    names = [one.name for one in members if one.repr]

    def shown(self: Any) -> str:
        words = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({words})"

    return shown


def _frozen(
    cls: type, members: tuple[Field[Any], ...], slots: bool
) -> dict[str, Callable[..., Any]]:
    """Make methods that refuse changes; with slots, those that copies and pickles need instead."""
    names = [one.name for one in members]

    def assign(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    found: dict[str, Callable[..., Any]] = {"__setattr__": assign, "__delattr__": delete}
    if slots:

        def state(self: Any) -> list[Any]:
            return [getattr(self, name) for name in names]

        def set_state(self: Any, state: list[Any]) -> None:
            for name, value in zip(names, state, strict=True):
                object.__setattr__(self, name, value)

        found |= {"__getstate__": state, "__setstate__": set_state}
    return found
