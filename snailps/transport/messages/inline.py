"""Values of several fields in a message: their fields travel among the message's own.

    terms: Annotated[Terms | None, OneOf(Step, Partition)]     value -> write -> fields of the JSON
                                                               checked fields -> read -> value

A value is a frozen dataclass, declared once and used by whoever makes, sends and reads it.  A field
has the same name in the message, a default, and an annotated shape; `Inline` takes the shapes of a
class that knows no messages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_type_hints

from snailps.transport.messages.validation import Misfit, Shape


class Inline:
    """The fields of a value of this class."""

    def __init__(self, kind: type, **shapes: Shape) -> None:
        hints = get_type_hints(kind, include_extras=True)
        self.kind = kind
        self.shapes: dict[str, Shape] = {}
        self.defaults: dict[str, Any] = {}
        self._check = getattr(kind, "check", None)
        for field in dataclasses.fields(kind):
            shape = shapes.get(field.name) or hints[field.name].__metadata__[0]
            self.shapes[field.name], self.defaults[field.name] = shape, field.default

    def write(self, value: Any) -> dict[str, Any]:
        return {name: getattr(value, name) for name in self.shapes}

    def read(self, fields: Mapping[str, Any]) -> Any:
        """Make the value of a message's checked fields; Misfit: its own check refuses them."""
        value = self.kind(*[fields.get(name, default) for name, default in self.defaults.items()])
        if self._check is not None:
            self._check(value)
        return value


class OneOf:
    """The fields of a value of one of these classes, or of none.

    A message has the fields of all classes; a field that the value's class lacks has its default.
    The first field that only one class has identifies the class: with its default there is no value
    of that class.
    """

    def __init__(self, *kinds: type) -> None:
        self._kinds = {kind: Inline(kind) for kind in kinds}
        self.shapes: dict[str, Shape] = {}
        self.defaults: dict[str, Any] = {}
        self._tags: dict[str, Inline] = {}
        for kind in self._kinds.values():
            shared = kind.defaults.keys() & self.defaults.keys()
            assert all(self.defaults[name] == kind.defaults[name] for name in shared)
            self.shapes |= kind.shapes
            self.defaults |= kind.defaults
        for kind in self._kinds.values():
            others = [other.shapes for other in self._kinds.values() if other is not kind]
            tag = next(name for name in kind.shapes if not any(name in other for other in others))
            self._tags[tag] = kind

    def write(self, value: Any) -> dict[str, Any]:
        if value is None:
            return dict(self.defaults)
        return self.defaults | self._kinds[type(value)].write(value)

    def read(self, fields: Mapping[str, Any]) -> Any:
        """Make the value of a message's checked fields; Misfit: they fit no class, or two."""
        present = {
            name for name, default in self.defaults.items() if fields.get(name, default) != default
        }
        if not present:
            return None
        for tag, kind in self._tags.items():
            if tag in present and present <= kind.shapes.keys():
                return kind.read(fields)
        names = " or ".join(kind.__name__ for kind in self._kinds)
        raise Misfit(f"the fields of one {names}", sorted(present), f".{min(present)}")
