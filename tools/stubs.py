"""Types of what type checkers cannot read: compiled modules, and constructors of estimators.

    *.pyx, *.pxd -> Cython's parser -> signatures, first lines of docstrings -> *.pyi beside them
    estimators, imported -> parameters of each -> snailps/estimators/__init__.pyi

setup.py calls `write_compiled`, then runs this file on what it has compiled; so does `make lint`.
A C type says what a parameter is; where it does not suffice, the .pyx has an annotation, or
``# type: T`` behind an attribute.  Annotations may name, without an import, what `KNOWN` has, and
classes of snailps with their module in front.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

KNOWN = {
    "typing": "Any Final NamedTuple TypeVar", "numpy.typing": "ArrayLike NDArray",
    "collections.abc": "Callable Iterable Iterator Mapping Sequence",
    "typing_extensions": "Buffer", "concurrent.futures": "Future", "dataclasses": "dataclass",
}  # fmt: skip
SIZED = {f"{kind}{bits}_t": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
ELEMENTS = {"float": "float32", "double": "float64", **SIZED}
TYPES = {"double": "float", "bint": "bool", "list": "list[Any]", "dict": "dict[Any, Any]"}
TYPES |= dict.fromkeys((*SIZED, "size_t", "Py_ssize_t"), "int")
RETURNED = {"__init__": "None", "__len__": "int"}
PACKAGED = re.compile(r"\b(snailps(?:\.\w+)+)\.(\w+)")


def write_compiled(package: Path) -> None:
    """Write the stub of each .pyx that is newer than its stub."""
    for source in package.rglob("*.pyx"):
        if source.name.startswith("_kernels_"):
            continue  # a copy
        stub, made_of = source.with_suffix(".pyi"), (source, source.with_suffix(".pxd"), __file__)
        changed = max(Path(one).stat().st_mtime for one in made_of if Path(one).exists())
        if not stub.exists() or stub.stat().st_mtime <= changed:
            stub.write_text(Module(source).text(), encoding="utf-8")


class Module:
    def __init__(self, source: Path) -> None:
        self._imports: dict[str, str] = {}
        self._exports: set[str] = set()
        self._declared: dict[str, list[str]] = {}  # by class: what its .pxd says
        header = source.with_suffix(".pxd")
        for node in self._parse(header) if header.exists() else ():
            if type(node).__name__ == "CClassDefNode":
                self._declared[node.class_name] = list(self._members(node))
        self._nodes = list(self._parse(source))

    def text(self) -> str:
        body = "\n".join(line for node in self._nodes for line in self._statement(node))
        given = [(module, name) for module, names in KNOWN.items() for name in names.split()]
        code = re.sub(r'""".*?"""', "", body)
        given += PACKAGED.findall(code)
        known = {name: f"from {module} import {name}" for module, name in given}
        known |= {"np": "import numpy as np", "socket": "import socket", **self._imports}
        body, code = PACKAGED.sub(r"\2", body), PACKAGED.sub(r"\2", code)
        used = {*re.findall(r"(?<![\w.])[A-Za-z]\w*", code), *self._exports}
        return "\n".join([*sorted(known[name] for name in used & known.keys()), body, ""])

    def _parse(self, path: Path) -> Iterator[Any]:
        from Cython.Compiler.TreeFragment import parse_from_strings

        text = path.read_text(encoding="utf-8")
        self._lines = text.splitlines()
        level = {".pxd": "module_pxd", ".pyx": "module"}[path.suffix]
        for node in _statements(parse_from_strings(path.stem, text, level=level)):
            self._take_import(node)
            yield node

    def _take_import(self, node: Any) -> None:
        """Remember which module of the package a class is of."""
        if type(node).__name__ == "FromCImportStatNode":
            module, again = node.module_name, False
            names = [(name, alias or name) for _, name, alias in node.imported_names]
        elif type(node).__name__ == "FromImportStatNode":
            module = node.module.module_name.value
            again = module.rpartition(".")[2].startswith("_")  # of a compiled module: re-exported
            names = [(name, target.name) for name, target in node.items]
        else:
            return
        for name, alias in names:
            if module.startswith("snailps.") and name[0].isupper() and not name.isupper():
                shown = name if name == alias and not again else f"{name} as {alias}"
                self._imports[alias] = f"from {module} import {shown}"
                self._exports |= {alias} if again else set()

    def _statement(self, node: Any) -> Iterator[str]:
        kind = type(node).__name__
        if kind in ("CClassDefNode", "PyClassDefNode"):
            yield from self._class(node)
        elif kind == "DefNode":
            yield from self._function(node)
        elif kind == "SingleAssignmentNode" and type(node.lhs).__name__ == "NameNode":
            yield from self._constant(node.lhs.name, node.lhs.annotation, node.rhs)

    def _class(self, node: Any) -> Iterator[str]:
        name = getattr(node, "class_name", None) or node.name
        if name.startswith("_"):
            return
        shown = [_shown(one.decorator) for one in node.decorators or ()]
        yield from ("", *(f"@{one}" for one in shown if not one.startswith("cython.")))
        bases = ", ".join(_shown(base) for base in node.bases.args) if node.bases else ""
        yield f"class {name}({bases}):" if bases else f"class {name}:"
        members = [*_docstring(node.doc), *self._declared.get(name, ()), *self._members(node)]
        yield from (f"    {line}" for line in members or ["..."])

    def _members(self, node: Any) -> Iterator[str]:
        nodes = _statements(node)
        constructed = any(getattr(one, "name", "") == "__init__" for one in nodes)
        for one in nodes:
            kind = type(one).__name__
            if kind == "CVarDefNode" and one.visibility in ("public", "readonly"):
                yield from self._attributes(one)
            elif kind == "DefNode" and not (constructed and one.name == "__cinit__"):
                yield from self._function(one, method=True)
            elif kind == "SingleAssignmentNode" and one.lhs.annotation:
                yield f"{one.lhs.name}: {one.lhs.annotation.string.value} = ..."
            elif kind == "ExprStatNode" and getattr(one.expr, "annotation", None):
                yield f"{one.expr.name}: {one.expr.annotation.string.value}"

    def _attributes(self, node: Any) -> Iterator[str]:
        for one in node.declarators:
            said = re.search(r"# type: (.*?)(?:  #.*)?$", self._lines[one.pos[1] - 1])
            kind = said[1] if said else _type(node.base_type)
            if node.visibility == "readonly":
                yield from ("@property", f"def {one.name}(self) -> {kind}: ...")
            else:
                yield f"{one.name}: {kind}"

    def _constant(self, name: str, annotation: Any, value: Any) -> Iterator[str]:
        if annotation:
            yield f"{name}: {annotation.string.value}"
        elif type(value).__name__ == "SimpleCallNode" and _shown(value.function) == "TypeVar":
            yield f"{name} = {_shown(value)}"
        elif name.isupper() and not name.startswith("_") and (literal := _literal(value)):
            yield f"{name}: {type(ast.literal_eval(literal)).__name__}"

    def _function(self, node: Any, *, method: bool = False) -> Iterator[str]:
        name = "__init__" if node.name == "__cinit__" else node.name
        returned = RETURNED.get(name, "")
        if name.startswith("_") and not returned:
            return
        for decorator in node.decorators or ():
            shown = _shown(decorator.decorator)
            yield f"@{shown}"
            returned = "None" if shown.endswith(".setter") else returned
        if node.return_type_annotation:
            returned = node.return_type_annotation.string.value
        parameters = ["self"] if method else []
        for one in node.args[len(parameters) :]:
            if one.kw_only and "*" not in parameters:
                parameters.append("*")
            parameters.append(_parameter(one))
        yield f"def {name}({', '.join(parameters)}){f' -> {returned}' if returned else ''}:"
        yield from (f"    {line}" for line in list(_docstring(node.doc)) or ["..."])


def _statements(node: Any) -> list[Any]:
    return getattr(node.body, "stats", [node.body])


def _shown(node: Any) -> str:
    from Cython.CodeWriter import ExpressionWriter

    return str(ExpressionWriter().write(node))


def _literal(node: Any) -> str:
    """A value as it is written, if it is a literal."""
    with suppress(SyntaxError, ValueError, AttributeError):
        ast.literal_eval(text := _shown(node))
        return text
    return ""


def _docstring(doc: Any) -> Iterator[str]:
    """The first paragraph, in one line."""
    if doc:
        text = " ".join(str(doc).strip().partition("\n\n")[0].split())
        yield f'"""{text} """'.replace('. """', '."""')


def _parameter(node: Any) -> str:
    name, kind = node.declarator.name, _type(node.base_type)
    if not name:  # the parser takes a name alone for a type
        name, kind = node.base_type.name, ""
    if node.annotation:
        kind = node.annotation.string.value
    elif kind and type(node.default).__name__ == "NoneNode":
        kind += " | None"
    text = f"{name}: {kind}" if kind else name
    return f"{text} = {_literal(node.default) or '...'}" if node.default else text


def _type(node: Any) -> str:
    """The Python type of a C type."""
    if type(node).__name__ != "MemoryViewSliceTypeNode":
        return TYPES.get(node.name, node.name)
    element = node.base_type_node
    constant = getattr(element, "base_type", None)
    if constant and constant.name == "uint8_t" and len(node.axes) == 1:
        return "Buffer"  # text
    return f"NDArray[np.{ELEMENTS[(constant or element).name]}]"


def estimators() -> str:
    """The stub of snailps.estimators, from the classes themselves."""
    import snailps.estimators as package
    from snailps.estimators.parameters import OWN, type_of

    lines = [
        "import os",
        "from collections.abc import Callable, Mapping, Sequence",
        "from typing import Any, Literal",
        "from snailps.local.session import Cluster",
    ]
    for cls in (getattr(package, name) for name in package.__all__):
        types = {name: _written(type_of(one)) for name, one in cls.parameters.by_name.items()}
        types |= {name: kind for name, (kind, _) in {**cls.parameters.extra, **OWN}.items()}
        defaults = cls.parameters.defaults
        home = cls.__module__
        lines += [f"import {home}", f"class {cls.__name__}({home}.{cls.__name__}):"]
        lines += [f"    {name}: {kind}" for name, kind in types.items()]
        parameters = [f"{name}: {kind} = {defaults[name]!r}" for name, kind in types.items()]
        lines += [f"    def __init__(self, *, {', '.join(parameters)}) -> None: ..."]
    lines += [f"__all__ = {package.__all__}", ""]
    return "\n".join(lines)


def _written(kind: Any) -> str:
    """A type as annotations have it."""
    if get_origin(kind) in (Union, UnionType):
        return " | ".join(_written(one) for one in get_args(kind))
    text = kind.__name__ if type(kind) is type else str(kind)
    return text.removeprefix("collections.abc.").removeprefix("typing.")


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    write_compiled(folder / "snailps")
    sys.path.insert(0, str(folder))
    (folder / "snailps/estimators/__init__.pyi").write_text(estimators(), encoding="utf-8")
