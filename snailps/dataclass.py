"""Drop-in `dataclass` that builds classes many times as fast: class creation dominates start-up.

    class -> dataclass(frozen, slots, eq) -> the class that the standard library would make

The library compiles six functions for each class.  A master builds 170 such classes and a worker
100, which took half of their import time beside NumPy.  This one compiles only `__init__`, and that
when the first object is made or the signature is asked for: most processes make objects of a few of
the classes that they import.  The other methods are closures.  Fields and slots come from the
library, and a class that derives from a dataclass is built by the library altogether.  Arguments
other than `frozen`, `slots` and `eq`, and fields with `kw_only`, are refused.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from contextlib import suppress
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
        """Turn a class with annotated fields into a dataclass, like `dataclasses.dataclass`."""

        def decorate(cls: type) -> type:
            return _build(cls, frozen, slots, eq)

        return decorate if cls is None else decorate(cls)


def _build(cls: type, frozen: bool, slots: bool, eq: bool) -> type:
    if any(map(dataclasses.is_dataclass, cls.__mro__[1:])):
        return dataclasses.dataclass(frozen=frozen, slots=slots, eq=eq)(cls)
    declared = set(vars(cls))  # methods that the class writes itself are never replaced
    cls.__doc__ = cls.__doc__ or cls.__name__  # else the library writes a signature, slowly
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    params: Any = vars(cls)["__dataclass_params__"]
    params.frozen, params.eq = frozen, eq
    members = fields(cls)
    initialize, signature = _late_initializer(cls, members, frozen)
    functions = {"__init__": initialize, "__repr__": _shown(members)}
    if eq:
        values = _getter([member.name for member in members if member.compare])
        functions["__eq__"] = _equality(values)
        if frozen:
            functions["__hash__"] = lambda self: hash(values(self))
        elif "__hash__" not in declared:
            cls.__hash__ = None  # type: ignore[assignment]
    if frozen:
        functions |= _frozen(cls, members, slots)
    if "__init__" not in declared:
        cls.__signature__ = signature  # type: ignore[attr-defined]
    for name, function in functions.items():
        if name not in declared:
            function.__name__, function.__qualname__ = name, f"{cls.__qualname__}.{name}"
            setattr(cls, name, function)
    return cls


# --- its functions --------------------------------------------------------------------------------


class _Signature:
    """``cls.__signature__`` until `__init__` is compiled."""

    def __init__(self, cls: type, finish: Callable[[], Callable[..., None]]) -> None:
        self._cls, self._finish = cls, finish

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        self._finish()
        if owner is not self._cls:  # a subclass, which may have an `__init__` of its own
            raise AttributeError("__signature__")
        return inspect.signature(owner)


def _late_initializer(
    cls: type, members: tuple[Field[Any], ...], frozen: bool
) -> tuple[Callable[..., None], _Signature]:
    """Make an `__init__` that replaces itself by the compiled one, and the signature until then."""
    has_default = False
    for member in members:
        if member.kw_only:
            raise TypeError(f"{cls.__name__}.{member.name}: kw_only is not offered here")
        is_optional = member.default is not MISSING or member.default_factory is not MISSING
        if member.init and has_default and not is_optional:
            raise TypeError(f"non-default argument {member.name!r} follows default argument")
        has_default = has_default or (member.init and is_optional)

    def finish() -> Callable[..., None]:
        compiled = _initializer(cls, members, frozen)
        if vars(cls)["__init__"] is initialize:  # and no function that replaces it for a while
            cls.__init__ = compiled  # type: ignore[misc]
        with suppress(AttributeError):  # another thread may have deleted it
            del cls.__signature__  # type: ignore[attr-defined]
        return compiled

    def initialize(self: Any, *values: Any, **named: Any) -> None:
        finish()(self, *values, **named)

    return initialize, _Signature(cls, finish)


def _initializer(cls: type, members: tuple[Field[Any], ...], frozen: bool) -> Callable[..., None]:
    """Compile `__init__`: it runs for every object, and a closure over the fields is slower."""
    scope: dict[str, Any] = {"put": object.__setattr__, "missing": MISSING}
    arguments, body = ["self"], []
    for number, member in enumerate(members):
        name, value = member.name, member.name
        if member.default is not MISSING:
            scope[f"d{number}"] = member.default
            default = f"d{number}"
        elif member.default_factory is not MISSING:
            scope[f"d{number}"] = member.default_factory
            default = "missing"
            value = f"d{number}() if {name} is missing else {name}"
        else:
            default = ""
        if member.init:
            arguments.append(f"{name}={default}" if default else name)
        elif not default:
            continue
        else:
            value = f"d{number}()" if default == "missing" else default
        setter = getattr(getattr(cls, name, None), "__set__", None)
        if not frozen:
            body.append(f"self.{name} = {value}")
        elif setter:
            # A slot's own setter does not pass by the frozen class's `__setattr__`, and is faster.
            scope[f"s{number}"] = setter
            body.append(f"s{number}(self, {value})")
        else:
            body.append(f"put(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    exec(f"def __init__({', '.join(arguments)}):\n  " + "\n  ".join(body or ["pass"]), scope)
    initializer: Callable[..., None] = scope["__init__"]
    annotations = {member.name: member.type for member in members if member.init}
    initializer.__annotations__ = annotations | {"return": None}
    initializer.__module__ = cls.__module__
    initializer.__qualname__ = f"{cls.__qualname__}.__init__"
    return initializer


def _getter(names: list[str]) -> Callable[[Any], Any]:
    """Make a function that returns the values of these fields of an instance, as a tuple."""
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
    names = [member.name for member in members if member.repr]

    def shown(self: Any) -> str:
        words = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({words})"

    return shown


def _frozen(
    cls: type, members: tuple[Field[Any], ...], slots: bool
) -> dict[str, Callable[..., Any]]:
    """Make methods that refuse changes, and with slots those that copies and pickles then need."""
    names = [member.name for member in members]

    def assign(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    methods: dict[str, Callable[..., Any]] = {"__setattr__": assign, "__delattr__": delete}
    if slots:

        def state(self: Any) -> list[Any]:
            return [getattr(self, name) for name in names]

        def set_state(self: Any, state: list[Any]) -> None:
            for name, value in zip(names, state, strict=True):
                object.__setattr__(self, name, value)

        methods |= {"__getstate__": state, "__setstate__": set_state}
    return methods
