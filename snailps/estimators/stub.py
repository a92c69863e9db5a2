"""``python -m snailps.estimators.stub > snailps/estimators/__init__.pyi``: typed constructors.

    classes of the package -> stub -> text of ``__init__.pyi``

The constructors are made of settings when the classes are, which type checkers do not see.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Literal, Union, get_args, get_origin

import snailps.estimators
from snailps.estimators.base import Estimator
from snailps.estimators.parameters import OWN, type_of

_HEAD = '''\
"""Constructors of the estimators, with their parameters.

Written by `python -m snailps.estimators.stub`; a test checks that it is current.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

'''


def stub(classes: Iterable[type[Estimator]]) -> str:
    """The text of ``__init__.pyi``."""
    found = sorted(classes, key=lambda cls: (cls.__module__, cls.__name__))
    homes = sorted({cls.__module__.rpartition(".")[2] for cls in found})
    names = "".join(f'    "{name}",\n' for name in sorted(cls.__name__ for cls in found))
    head = _HEAD + "".join(f"from snailps.estimators import {home} as _{home}\n" for home in homes)
    head += "from snailps.local.session import Cluster\n"
    head += f"\n__all__ = [\n{names}]\n"
    return head + "".join(f"\n{_class(cls)}" for cls in found)


def _class(cls: type[Estimator]) -> str:
    types = {name: _text(type_of(one)) for name, one in cls.parameters.by_name.items()}
    own = {**cls.parameters.extra, **OWN}
    types |= {name: str(getattr(kind, "__name__", kind)) for name, (kind, _) in own.items()}
    home = cls.__module__.rpartition(".")[2]
    lines = [f"class {cls.__name__}(_{home}.{cls.__name__}):"]
    lines += [f"    {name}: {text}" for name, text in types.items()]
    lines += ["    def __init__(", "        self,", "        *,"]
    lines += [
        f"        {name}: {text} = {_value(cls.parameters.defaults[name])},"
        for name, text in types.items()
    ]
    return "\n".join([*lines, "    ) -> None: ...", ""])


def _text(kind: Any) -> str:
    """A type as it is written."""
    if get_origin(kind) is Literal:
        return f"Literal[{', '.join(_value(choice) for choice in get_args(kind))}]"
    if get_origin(kind) is Union:
        return " | ".join(_text(one) for one in get_args(kind))
    text = kind.__name__ if isinstance(kind, type) else str(kind)
    return text.removeprefix("collections.abc.")


def _value(value: object) -> str:
    """A default as it is written."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def estimator_classes() -> list[type[Estimator]]:
    """All estimators of the package."""
    return [getattr(snailps.estimators, name) for name in snailps.estimators.__all__]


if __name__ == "__main__":
    sys.stdout.write(stub(estimator_classes()))
