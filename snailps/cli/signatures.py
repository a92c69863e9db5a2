"""Makes the options of a command of the Python function that does its work.

    signature: order, defaults     ┐
    docstring: types, help, bounds ┴-> options_of -> the function's options, then the command's

A parameter is described once, in the numpydoc section of its function.  ``at least 1`` or ``0 to
1`` in the line of its type bounds the option too.  Knows no command.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

import snailps
from snailps.cli.options import TEXT_OPTIONS

_REQUIRED = inspect.Parameter.empty
_KINDS: dict[str, tuple[Any, str]] = {
    "path": (Path, "FILE"),
    "str": (str, "TEXT"),
    "bool": (bool, ""),
    "int": (int, "N"),
    "float": (float, "NUMBER"),
}
"""First word of a documented type -> type of the option, and what stands for its value."""


class _Documented(NamedTuple):
    kind: str
    text: str


def options_of(
    place: str, *, without: tuple[str, ...] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the parameters of the function at ``module:name``, but those in `without`.

    The command receives their values as ``**values``.  A parameter that the command declares itself
    replaces the function's, in its place; its others come last.  A method's `self` is the command's
    `model`.
    """
    module, _, name = place.partition(":")

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        declared = {
            name: parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in inspect.signature(command).parameters.items()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        }
        defaults, documented = _read(module, name)
        written = {
            name: name.upper() if default is _REQUIRED else _flag(name)
            for name, default in defaults.items()
        }
        defaults = {"model" if name == "self" else name: value for name, value in defaults.items()}
        parameters = {
            name: declared.get(name) or _parameter(name, default, documented.get(name), written)
            for name, default in defaults.items()
            if name not in without
        }
        parameters |= declared

        @functools.wraps(command)
        def with_options(**values: Any) -> None:
            command(**values)

        # Typer reads signature and annotations: both must show the function's parameters.
        with_options.__signature__ = inspect.Signature([*parameters.values()])  # type: ignore[attr-defined]
        with_options.__annotations__ = {
            name: parameter.annotation for name, parameter in parameters.items()
        }
        return with_options

    return decorate


def _read(module: str, name: str) -> tuple[dict[str, Any], dict[str, _Documented]]:
    """Read a function's defaults and documented parameters from its source.

    Importing it would load NumPy and the models, and ``--help`` would take twice the time.
    """
    source = Path(snailps.__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    text = source.read_text(encoding="utf-8")
    owner, _, name = name.rpartition(".")
    begin = text.index(f"\nclass {owner}") if owner else 0
    # Only this signature and docstring: parsing all of a long module takes some milliseconds.
    head = re.compile(rf'^ *def {name}\(.*?""".*?"""', re.DOTALL | re.MULTILINE).search(text, begin)
    if head is None:
        raise LookupError(f"{source}: no function {name} with a docstring")
    function = ast.parse(textwrap.dedent(head[0])).body[0]
    assert isinstance(function, ast.FunctionDef)
    of = function.args
    defaults: dict[str, Any] = dict.fromkeys((arg.arg for arg in of.args), _REQUIRED)
    defaults |= zip([*defaults][len(defaults) - len(of.defaults) :], of.defaults, strict=True)
    # Typer's ``...`` is an option that must be given.
    options = zip(of.kwonlyargs, of.kw_defaults, strict=True)
    defaults |= {arg.arg: value or ast.Constant(...) for arg, value in options}
    return defaults, _documented(ast.get_docstring(function) or "")


def _documented(doc: str) -> dict[str, _Documented]:
    """Read the parameters' section of a numpydoc docstring."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w+\n-+$|\Z)", doc, re.DOTALL | re.MULTILINE)
    entry = r"^(\S[^:\n]*?)(?: : (.*))?\n((?:[ \n].*\n?)*)"
    return {
        name: _Documented(match[2] or "", " ".join(match[3].split()))
        for match in re.finditer(entry, section[1] if section else "", re.MULTILINE)
        for name in match[1].split(", ")
    }


def _parameter(
    name: str, default: Any, documented: _Documented | None, written: Mapping[str, str]
) -> inspect.Parameter:
    """Make the argument or option of a function's parameter."""
    value = ast.literal_eval(default) if isinstance(default, ast.expr) else default
    if name in TEXT_OPTIONS:
        annotation = TEXT_OPTIONS[name]
    elif documented is None:
        raise LookupError(f"the docstring describes no parameter {name}: add it, or declare it")
    else:
        kind, metavar = _kind(documented.kind)
        if kind is Path and value == "":
            kind = str  # an empty path would be the current folder
        details = {"help": _for_terminal(documented.text, written), **_bounds(documented.kind)}
        if value is _REQUIRED:
            info = typer.Argument(**details)
        else:
            flag = _flag(name)
            if kind is bool and value is None:
                flag, metavar = f"{flag}/--no-{flag[2:]}", None
            shown = kind is not bool and value not in (None, "", ...)
            info = typer.Option(flag, metavar=metavar, show_default=shown, **details)
        annotation = Annotated[kind | None if value is None else kind, info]
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=_REQUIRED if value is ... else value,
        annotation=annotation,
    )


def _kind(text: str) -> tuple[Any, str | None]:
    """Return the type of an option, and what stands for its value: ``[stop|skip]``."""
    if text.startswith("{"):
        choices = re.findall(r'"(.*?)"', text)
        return str, f"[{'|'.join(choices)}]"
    if text.startswith("path of a folder"):
        return Path, "FOLDER"
    return _KINDS[re.split(r"\W", text)[0]]


def _bounds(kind: str) -> dict[str, Any]:
    """Read the bounds of a number from the line of its type."""
    if match := re.search(r"\bat least (-?\d+)", kind):
        return {"min": int(match[1])}
    if match := re.search(r"\b(\d+) to (\d+)", kind):
        return {"min": float(match[1]), "max": float(match[2])}
    return {}


def _flag(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"


def _for_terminal(text: str, written: Mapping[str, str]) -> str:
    """Write the parameters that a text names as the command line does."""
    text = re.sub(r"(?<!`)`(\w+)`(?!`)", lambda name: written.get(name[1], name[0]), text)
    return text.replace("``", "`")
