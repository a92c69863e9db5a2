"""Sends classes of a notebook or script to other processes: as source, made into a module there.

    class in a cell -> source_of -> pieces (file, line, text) -> encode -> bytes
    bytes -> decode -> define -> a module that has the class, under a name made of its source

Owns what travels with a class: the functions and classes of the notebook that it uses as source,
modules as imports, plain values as literals.  Nothing is pickled, and nothing of a cell is executed
but these definitions.  Errors name the cell's own file and lines.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import hashlib
import inspect
import json
import linecache
import math
import symtable
import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from snailps.errors import ConfigError, explain, frames_of, with_frames

VALUE_CHARS_MAX = 1 << 16
_PRELUDE = "<imports of the session>"


class Code(NamedTuple):
    """Some lines of a file."""

    file: str
    line: int
    text: str


def is_local_class(cls: type) -> bool:
    """Whether no other process can import the class: it is defined in a script or a cell."""
    module = sys.modules.get(cls.__module__)
    return cls.__module__ == "__main__" or getattr(module, "__file__", None) is None


def source_of(cls: type) -> list[Code]:
    """The pieces that define a class in an empty module; ConfigError if there is no such source."""
    if "." in cls.__qualname__:
        raise ConfigError(
            f"{cls.__qualname__} is defined inside a function or class: define it at the top of a "
            "cell or file"
        )
    return _Collector(cls).pieces()


def encode(pieces: list[Code]) -> bytes:
    return json.dumps(pieces).encode()


def decode(source: bytes) -> list[Code]:
    """Decode what `encode` made; `ConfigError` for any other bytes."""
    try:
        return [Code(str(file), int(line), str(text)) for file, line, text in json.loads(source)]
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the source of a class cannot be read: {error}") from None


def module_name(source: bytes) -> str:
    """Name the module that `define` makes of a source: equal sources, equal names."""
    return f"session_{hashlib.sha256(source).hexdigest()[:16]}"


def define(source: bytes) -> None:
    """Make the module of a source, unless this process has it already.

    Executes the source: only where ``accept_source`` is set.  `ConfigError` shows lines that fail.
    """
    name = module_name(source)
    if name in sys.modules:
        return
    pieces = decode(source)
    module = sys.modules[name] = types.ModuleType(name)
    _show_lines(pieces)
    try:
        for file, line, text in pieces:
            tree = ast.increment_lineno(ast.parse(text, file), line - 1)
            exec(compile(tree, file, "exec", _FLAGS, dont_inherit=True), vars(module))
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        text = f"the class of the session cannot be defined: {explain(error)}"
        raise ConfigError(with_frames(text, frames_of(error))) from None


_FLAGS = __future__.annotations.compiler_flag
"""Annotations stay text: the types they name need not be there."""


def _show_lines(pieces: list[Code]) -> None:
    """Let tracebacks show the lines of pieces."""
    files: dict[str, list[str]] = {}
    for file, line, text in pieces:
        lines, own = files.setdefault(file, []), text.splitlines(keepends=True)
        lines += ["\n"] * (line - 1 + len(own) - len(lines))
        lines[line - 1 : line - 1 + len(own)] = own
    for file, lines in files.items():
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)


class _Collector:
    """Follows the names that a class uses through its module."""

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self._module = cls.__module__
        self._names: dict[str, Any] = vars(sys.modules[cls.__module__])
        self._prelude: dict[str, str] = {}
        self._found: dict[str, Code | None] = {}
        self._order: list[Code] = []

    def pieces(self) -> list[Code]:
        """Collect all pieces, in an order in which they can be executed."""
        self._define(self._cls.__name__, self._cls, "")
        prelude = "".join(f"{line}\n" for line in self._prelude.values())
        return [Code(_PRELUDE, 1, prelude), *self._order]

    def _define(self, name: str, value: Any, asked_in: str) -> None:
        """Add a class or function of the module, after everything that it uses."""
        if name in self._found:
            return
        self._found[name] = None
        file, line, text = _piece_of(value, name, asked_in)
        for used in dict.fromkeys(_used_names(text, file)):
            if used not in self._found and used in self._names and not self._is_builtin(used):
                self._add(used, self._names[used], file)
        shown = file[1:-1] if file.startswith("<") and file.endswith(">") else file
        self._order.append(Code(shown, line, text))
        if value.__name__ != name:
            self._order.append(Code(_PRELUDE, 1, f"{name} = {value.__name__}\n"))

    def _is_builtin(self, name: str) -> bool:
        """Whether a name means the same in every process: Python's own, or IPython's in its place.

        A notebook may hide Python's own: ``def sum(...)``, ``from tqdm import tqdm as range``.
        """
        if not hasattr(builtins, name):
            return False
        value = self._names[name]
        homes = (getattr(value, "__module__", None), type(value).__module__)
        ipythons = any(str(home).partition(".")[0] == "IPython" for home in homes)
        return name.startswith("__") or value is getattr(builtins, name) or ipythons

    def _add(self, name: str, value: Any, asked_in: str) -> None:
        if name in self._prelude:
            return
        if isinstance(value, types.ModuleType):
            self._prelude[name] = f"import {value.__name__} as {name}"
            return
        home, own = str(getattr(value, "__module__", "")), getattr(value, "__name__", name)
        bare = inspect.unwrap(value) if callable(value) else value
        is_own = isinstance(bare, (type, types.FunctionType)) and bare.__module__ == self._module
        if is_own and (bare is value or own == name):  # a decorator stands at the definition
            self._define(name, bare, asked_in)
            return
        for attribute in (own, name) if home in sys.modules and home != self._module else ():
            if getattr(sys.modules[home], attribute, None) is value:
                self._prelude[name] = f"from {home} import {attribute} as {name}"
                return
        text = _literal(value)
        if not text:
            kind = type(value).__name__
            raise ConfigError(
                f"{self._cls.__name__} uses {name}, which is a {kind} of this notebook or script "
                "and does not travel to the workers: make it a setting, or read it in setup()"
            )
        self._prelude[name] = f"{name} = {text}"


def _literal(value: Any) -> str:
    """Write a value as a Python literal; empty if it is long, or another value."""
    if type(value) is float and not math.isfinite(value):
        return f"float({str(value)!r})"
    if not _is_small(value):
        return ""
    text = repr(value)
    try:
        same = len(text) <= VALUE_CHARS_MAX and bool(ast.literal_eval(text) == value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ""
    return text if same else ""


def _is_small(value: Any) -> bool:
    """Whether a value may be short as text; found without making a text of a corpus."""
    chars_left, values = VALUE_CHARS_MAX, [value]
    while values:
        element = values.pop()
        kind = type(element)
        if kind in (str, bytes, list, tuple, set, frozenset, dict):
            chars_left -= len(element)
        else:
            chars_left -= element.bit_length() // 4 if kind is int else 1
        if chars_left < 0:
            return False
        if kind is dict:
            values += [*element.keys(), *element.values()]
        elif kind in (list, tuple, set, frozenset):
            values += element
    return True


def _used_names(text: str, file: str) -> Iterator[str]:
    """Yield the global names that a definition uses."""
    tables = [symtable.symtable(text, file, "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            outer = table.get_type() in ("module", "class")  # Settings = Settings
            if symbol.is_referenced() and (outer or symbol.is_global()):
                yield symbol.get_name()


def _piece_of(value: Any, name: str, asked_in: str) -> Code:
    """Get the source of a class or function; `ConfigError` if no file or cell has it."""
    codes = [value.__code__] if isinstance(value, types.FunctionType) else list(_codes_of(value))
    line = codes[0].co_firstlineno if codes else getattr(value, "__firstlineno__", 0)
    files = [codes[0].co_filename] if codes else _candidates(asked_in)
    for file in files:
        lines = linecache.getlines(file)
        node = _node_at("".join(lines), value.__name__, line)
        if node is not None and node.end_lineno is not None:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            return Code(file, first, textwrap.dedent("".join(lines[first - 1 : node.end_lineno])))
    raise ConfigError(
        f"the source of {name} is not known here: define it in a notebook, in IPython or in a "
        "file, say mymodel.py, and import it from there"
    )


_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _node_at(text: str, name: str, line: int) -> _Definition | None:
    """Find the definition of a name that includes `line`; with line 0, the last definition."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return None
    found = None
    while body:
        node = body.pop(0)
        if isinstance(node, ast.If | ast.Try | ast.With):  # at the top of a file all the same
            body[:0] = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt)]
        elif isinstance(node, _Definition) and node.name == name:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if not line or first <= line <= (node.end_lineno or 0):
                found = node
    return found


def _codes_of(cls: type) -> Iterator[types.CodeType]:
    """Yield the code of a class's own methods, not of methods that a decorator has made."""
    for member in vars(cls).values():
        function = getattr(member, "__func__", getattr(member, "fget", member))
        if isinstance(function, types.FunctionType) and function.__module__ == cls.__module__:
            code = inspect.unwrap(function).__code__
            # "<string>" is the file of methods that dataclasses make; in a `python -c` of Python
            # 3.13 it even has lines.
            if code.co_filename != "<string>" and linecache.getlines(code.co_filename):
                yield code


def _candidates(asked_in: str) -> list[str]:
    """List files in which a class without methods may be defined, the likeliest first."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    cells = [file for file, entry in linecache.cache.items() if len(entry) > 1 and entry[1] is None]
    return list(dict.fromkeys([*filter(None, [asked_in, main]), *reversed(cells)]))
