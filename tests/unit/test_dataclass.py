"""snailps.dataclass: each answer is the standard library's; what it does not offer is refused."""

import copy
import dataclasses
import inspect
import pickle
import sys
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from typing import ClassVar

import pytest

from snailps.dataclass import dataclass

FORMS = [
    {"frozen": frozen, "slots": slots, "eq": eq}
    for frozen in (False, True)
    for slots in (False, True)
    for eq in (False, True)
]


INHERITS_SLOTS = sys.version_info >= (3, 11)
"""Before, the library gives a class the slots of its parents again."""


def declared():
    """A class of each kind that the package has."""

    class Empty:
        pass

    class Point:
        """A point."""

        x: int
        y: float = 1.5
        names: list = field(default_factory=list)
        key: str = field(default="secret", repr=False, compare=False)

    class Derived:
        a: int
        twice: int = field(init=False)
        thrice: int = field(init=False, default=3)
        made: list = field(init=False, default_factory=list)

        def __post_init__(self):
            object.__setattr__(self, "twice", 2 * self.a)

    class Own:
        a: int

        def __repr__(self):
            return "mine"

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 7

    return {
        Empty: [((), {})],
        Point: [((1,), {}), ((1, 2.5), {"names": [3]}), ((), {"x": 4, "key": "other"})],
        Derived: [((5,), {})],
        Own: [((1,), {}), ((), {"a": 2})],
    }


def result(function, *args, **named):
    try:
        return function(*args, **named)
    except Exception as error:
        return type(error)


def answers(make, form):
    """All that is asked of each class, by what was asked."""
    found = {}
    for cls, calls in declared().items():
        made = make(**form)(cls)
        found[cls.__name__] = {
            "signature": list(inspect.signature(made).parameters),
            "fields": [one.name for one in fields(made)],
            "match": made.__match_args__,
            "slots": getattr(made, "__slots__", None),
            "too many": result(made, 1, 2, 3, 4, 5, 6, 7),
            "unknown": result(made, wrong=1),
        }
        for at, (args, named) in enumerate(calls):
            others = [made(*more, **other) for more, other in calls]
            found[cls.__name__, at] = of_one(made(*args, **named), made(*args, **named), others)
    return found


def of_one(one, same, others):
    """What is asked of an instance, which another one is equal to; it is changed."""
    hashed = result(hash, one)
    found = {
        "repr": repr(one).rpartition(".")[2],
        "dict": asdict(one),
        "equal": [one == other for other in others],
        "same": (one == same, one != same, one == 1),
        "hash": hashed if isinstance(hashed, type) else hashed == hash(same),
        "copy": asdict(copy.copy(one)),
        "deep copy": asdict(copy.deepcopy(one)),
        "replaced": result(lambda: asdict(replace(one, x=9))),
        # Of a class that is frozen and has slots, the library says TypeError, with other words.
        "other": isinstance(result(setattr, one, "other", 1), type),
    }
    for each in fields(one):
        found["set", each.name] = result(setattr, one, each.name, 8)
        found["deleted", each.name] = result(delattr, one, each.name)
    return found


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_class_answers_as_the_one_of_the_standard_library(form):
    wanted, found = answers(dataclasses.dataclass, form), answers(dataclass, form)
    assert found == wanted


@dataclass(frozen=True, slots=True)
class Parent:
    """Of this module, so that it can be pickled."""

    a: int
    b: list = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Child(Parent):
    c: str = "c"


class Plain(Parent):
    """An ordinary class that a frozen one has below it."""


def test_frozen_class_with_slots_is_pickled_and_has_its_parents_fields():
    child = Child(1, [2], "d")
    assert pickle.loads(pickle.dumps(child)) == child
    assert [one.name for one in fields(Child)] == ["a", "b", "c"]
    assert Child(1) != Parent(1)
    with pytest.raises(FrozenInstanceError, match="'a'"):
        child.a = 2


def test_ordinary_subclass_has_attributes_of_its_own_but_its_fields_stay():
    plain = Plain(1)
    plain.other = 2
    del plain.other
    with pytest.raises(FrozenInstanceError):
        plain.a = 2
    with pytest.raises(FrozenInstanceError):
        del plain.a


@pytest.mark.parametrize("make", [dataclass, dataclasses.dataclass])
def test_frozen_class_is_derived_from_by_frozen_ones_alone(make):
    """As settings of a user's model are, by the standard library's decorator."""

    @make(frozen=True)
    class More(Parent):
        d: int = 4

    assert More(1).d == 4
    with pytest.raises(FrozenInstanceError):
        More(1).d = 5
    with pytest.raises(TypeError, match="non-frozen"):

        @make
        class Open(Parent):
            d: int = 4


def test_initializer_is_compiled_once_and_by_the_first_object():
    made = dataclass(next(cls for cls in declared() if cls.__name__ == "Point"))
    late = made.__init__
    made(1)
    compiled = made.__init__
    made(2)
    assert compiled is not late
    assert made.__init__ is compiled


def test_subclass_has_the_signature_of_its_own_initializer():
    class Named(dataclass(next(iter(declared())))):
        def __init__(self, name):
            self.name = name

    assert list(inspect.signature(Named).parameters) == ["name"]


def test_subclass_without_initializer_has_the_inherited_signature():
    class Named(dataclass(next(cls for cls in declared() if cls.__name__ == "Point"))):
        pass

    assert next(iter(inspect.signature(Named).parameters)) == "x"


def test_signature_is_there_each_time_it_is_read():
    made = dataclass(next(cls for cls in declared() if cls.__name__ == "Point"))
    before, after = made.__signature__, made.__signature__
    assert before == after == inspect.signature(made)
    with pytest.raises(AttributeError, match="__signature__"):  # as of any object
        _ = made(1).__signature__


def test_initializer_that_replaces_a_late_one_stays(monkeypatch):
    made = dataclass(next(cls for cls in declared() if cls.__name__ == "Point"))
    late, calls = made.__init__, []

    def counted(self, *values):
        calls.append(values)
        late(self, *values)

    with monkeypatch.context() as patch:
        patch.setattr(made, "__init__", counted)
        assert [made(1), made(2)] == [made(1), made(2)]
    assert calls == [(1,), (2,)] * 2
    assert made(3).x == 3


def test_factory_makes_a_value_an_instance():
    assert Parent(1).b is not Parent(1).b


def test_default_before_a_field_without_one_is_refused():
    with pytest.raises(TypeError, match="'b' follows"):

        @dataclass
        class Wrong:
            a: int = 1
            b: int


def test_fields_that_are_only_named_are_refused():
    with pytest.raises(TypeError, match=r"Wrong\.a: kw_only"):

        @dataclass
        class Wrong:
            a: int = field(kw_only=True)


def lineage(make, form):
    """A class with a value of the class, and classes that derive from it."""

    @make(**form)
    class Base:
        shared: ClassVar[int] = 3
        a: int
        b: list = field(default_factory=list)

        def twice(self):
            return 2 * self.a

    @make(**form)
    class Derived(Base):
        b: str = "b"
        c: float = field(default=0.5, compare=False)

        def __eq__(self, other):
            return type(other) is type(self) and self.a == other.a

    @make(**form)
    class Last(Derived):
        shared: ClassVar[int] = 4
        a: int = 1
        d: int = field(init=False, default=7)

        def __post_init__(self):
            object.__setattr__(self, "c", 9.5)

    class Plain(Last):
        pass

    return Base, Derived, Last, Plain


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_derived_class_answers_as_the_one_of_the_standard_library(form):
    found = {}
    for make in (dataclass, dataclasses.dataclass):
        for cls in lineage(make, form):
            base, same, other = (cls(a) for a in (1, 1, 2))
            found.setdefault(cls.__name__, []).append({
                "signature": str(inspect.signature(cls)),
                "fields": [(each.name, each.default, each.type) for each in fields(cls)],
                "match": cls.__match_args__,
                "slots": vars(cls).get("__slots__") if INHERITS_SLOTS else None,
                "instance": hasattr(base, "__dict__"),
                "class": [str(vars(cls).get(name)) for name in ("shared", "d")],
                "named": result(lambda cls=cls: asdict(cls(a=5, b="x"))),
                **of_one(base, same, [same, other]),
                "method": other.twice(),
                "doc": cls.__doc__ is not None or cls.__name__ == "Plain",
            })  # fmt: skip
    for name, (ours, theirs) in found.items():
        assert ours == theirs, name


def test_derived_class_is_compiled_as_late_as_any():
    @dataclass(frozen=True, slots=True)
    class More(Parent):
        d: int = 4

    late = More.__init__
    assert More(3).d == 4
    assert More.__init__ is not late


@pytest.mark.parametrize("make", [dataclass, dataclasses.dataclass])
def test_mistakes_of_declarations_are_refused_as_by_the_library(make):
    with pytest.raises(ValueError, match="mutable default"):

        @make
        class Shared:
            a: list = []  # noqa: RUF012

    with pytest.raises(TypeError, match="no type annotation"):

        @make
        class Untyped:
            a = field(default=3)

    with pytest.raises(TypeError, match="__slots__"):

        @make(slots=True)
        class Twice:
            __slots__ = ("a",)
            a: int
