"""Drop-in `dataclass` that builds classes many times as fast: class creation dominates start-up.

    class -> dataclass(frozen, slots, eq) -> the class that the standard library would make

The library compiles six functions for each class.  A master builds 170 such classes and a worker
100, which took half of their import time beside NumPy.  This one compiles only `__init__`, and that
when the first object is made or the signature is asked for: most processes make objects of a few of
the classes that they import.  The other methods are closures, and are there when a class with slots
is made anew: each one that is set on a class later costs a walk over all special methods.  The
library builds what is rare, and raises its own errors: classes with class variables, init-only
variables or defaults without a hash, and frozen classes beside others.  Arguments other than
`frozen`, `slots` and `eq`, and fields with `kw_only`, are refused.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING, Field, FrozenInstanceError, asdict, field, fields, replace
from operator import attrgetter
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

__all__ = ["asdict", "dataclass", "field", "fields", "replace"]

_FIELDS, _PARAMS = "__dataclass_fields__", "__dataclass_params__"
_RARE = ("ClassVar", "InitVar", "KW_ONLY")


@dataclasses.dataclass(init=False, repr=False, eq=False)
class _SampleClass:
    """A class of the library, to see what it gives to each."""

    field: int


_KIND = fields(_SampleClass)[0]._field_type  # type: ignore[attr-defined]
_OF_LIBRARY = {name: value for name, value in vars(_SampleClass).items() if name == "__replace__"}

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
    own_fields = _own_fields(cls, frozen)
    if own_fields is None:
        return dataclasses.dataclass(frozen=frozen, slots=slots, eq=eq)(cls)
    declared = set(vars(cls))  # methods that the class writes itself are never replaced
    if "__eq__" in declared and vars(cls).get("__hash__") is None:
        declared.discard("__hash__")  # Python has set it to None
    all_fields: dict[str, Field[Any]] = {}
    for base in cls.__mro__[-1:0:-1]:
        all_fields |= vars(base).get(_FIELDS, {})
    all_fields |= own_fields
    members = tuple(member for member in all_fields.values() if _kind_of(member) == "_FIELD")
    made: list[type] = []  # the class, once it is there
    initialize, signature = _late_initializer(cls.__name__, made, members, frozen)
    functions: dict[str, Any] = {"__init__": initialize, "__repr__": _shown(members)}
    if eq:
        values = _getter([member.name for member in members if member.compare])
        functions["__eq__"] = _equality(values)
        functions["__hash__"] = (lambda self: hash(values(self))) if frozen else None
    if frozen:
        functions |= _frozen(made, members, slots)
    for name in functions.keys() - declared:
        if function := functions[name]:
            function.__name__, function.__qualname__ = name, f"{cls.__qualname__}.{name}"
    if "__init__" not in declared:
        functions["__signature__"] = signature
    functions["__match_args__"] = tuple(member.name for member in members if member.init)
    attributes = _OF_LIBRARY | functions
    attributes = {name: value for name, value in attributes.items() if name not in declared}
    attributes |= {_FIELDS: all_fields, _PARAMS: _params(frozen, slots, eq)}
    if not cls.__doc__:
        attributes["__doc__"] = cls.__name__
    for name, member in own_fields.items():
        if isinstance(vars(cls).get(name), Field):
            if member.default is MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, member.default)
    if slots:
        cls = _with_slots(cls, tuple(member.name for member in members), attributes)
    else:
        for name, value in attributes.items():
            setattr(cls, name, value)
    if type(cls) is not type:
        abc.update_abstractmethods(cls)
    made.append(cls)
    return cls


def _kind_of(member: Any) -> str:
    """What the library calls a member: a field, or the value of a class or of an initializer."""
    return str(member._field_type.name)


def _own_fields(cls: type, frozen: bool) -> dict[str, Field[Any]] | None:
    """Make the fields that a class declares; None if the library is to build it, or to refuse."""
    for base in cls.__mro__[1:]:
        if _PARAMS in vars(base) and vars(base)[_PARAMS].frozen is not frozen:
            return None
        if "_FIELD_INITVAR" in map(_kind_of, vars(base).get(_FIELDS, {}).values()):
            return None
    own_fields = {}
    annotations = inspect.get_annotations(cls)
    for name, kind in annotations.items():
        text = kind if isinstance(kind, str) else repr(kind)
        if any(word in text for word in _RARE):
            return None
        member: Any = getattr(cls, name, MISSING)
        if not isinstance(member, Field):
            is_slot = isinstance(member, MemberDescriptorType)  # of a base
            member = field(default=MISSING if is_slot else member)
        if member.default is not MISSING and type(member.default).__hash__ is None:
            return None
        member.name, member.type = name, kind
        member._field_type = _KIND
        if member.kw_only is MISSING:
            member.kw_only = False
        own_fields[name] = member
    named = {name for name, value in vars(cls).items() if isinstance(value, Field)}
    is_complete = named <= own_fields.keys()
    return own_fields if is_complete and "__slots__" not in vars(cls) else None


def _with_slots(cls: type, names: tuple[str, ...], attributes: dict[str, Any]) -> type:
    """Make the class anew: slots cannot be added to it."""
    taken: set[str] = set()
    for base in cls.__mro__[1:-1]:
        slots = vars(base).get("__slots__", ())
        taken |= {slots} if isinstance(slots, str) else {*slots}
    without = {*names, "__dict__", "__weakref__"}
    body = {name: value for name, value in vars(cls).items() if name not in without} | attributes
    body["__slots__"] = tuple(name for name in names if name not in taken)
    body["__qualname__"] = cls.__qualname__
    return type(cls)(cls.__name__, cls.__bases__, body)


@functools.cache
def _params(frozen: bool, slots: bool, eq: bool) -> Any:
    """What the library keeps of the decorator's arguments."""
    params = copy.copy(vars(_SampleClass)[_PARAMS])
    params.frozen, params.eq = frozen, eq
    with suppress(AttributeError):  # Python 3.12 has them all
        params.slots = slots
    return params


# --- its functions --------------------------------------------------------------------------------


class _Signature:
    """``cls.__signature__``: compiles `__init__` first, which has no arguments until then."""

    def __init__(self, made: list[type], finish: Callable[[], Callable[..., None]]) -> None:
        self._made, self._finish = made, finish

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        self._finish()
        # A subclass may have an `__init__` of its own, an instance a `__call__`.
        if instance is not None or owner is not self._made[0]:
            raise AttributeError("__signature__")
        # Stays when it has answered: hypothesis reads it twice.
        initializer = inspect.signature(owner.__init__)  # type: ignore[misc]
        return initializer.replace(parameters=[*initializer.parameters.values()][1:])


def _late_initializer(
    title: str, made: list[type], members: tuple[Field[Any], ...], frozen: bool
) -> tuple[Callable[..., None], _Signature]:
    """Make an `__init__` that replaces itself by the compiled one, and the signature until then."""
    has_default = False
    for member in members:
        if member.kw_only:
            raise TypeError(f"{title}.{member.name}: kw_only is not offered here")
        is_optional = member.default is not MISSING or member.default_factory is not MISSING
        if member.init and has_default and not is_optional:
            raise TypeError(f"non-default argument {member.name!r} follows default argument")
        has_default = has_default or (member.init and is_optional)

    def finish() -> Callable[..., None]:
        [cls] = made
        compiled = _initializer(cls, members, frozen)
        if vars(cls)["__init__"] is initialize:  # and no function that replaces it for a while
            cls.__init__ = compiled  # type: ignore[misc]
        return compiled

    def initialize(self: Any, *values: Any, **named: Any) -> None:
        finish()(self, *values, **named)

    return initialize, _Signature(made, finish)


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
    made: list[type], members: tuple[Field[Any], ...], slots: bool
) -> dict[str, Callable[..., Any]]:
    """Make methods that refuse changes, and with slots those that copies and pickles then need."""
    names = [member.name for member in members]

    def assign(self: Any, name: str, value: Any) -> None:
        if type(self) is made[0] or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is made[0] or name in names:
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
