"""Finds and runs a command by its name, and turns its end into an exit code.

0 done · 1 failed · 2 wrong usage, input or setting · 3 stopped because another process failed ·
130 interrupted.  A `SnailError` is one line on standard error; any other exception is a bug and
keeps its traceback.
"""

from __future__ import annotations

import errno
import gc
import importlib
import inspect
import json
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from snailps._version import __version__
from snailps.cli import COMPLETE, PATHS
from snailps.cli.conversions import spare_conversions
from snailps.cli.help import HELP_ALL, HelpInGroups
from snailps.cli.usage import UsageError, usage_line
from snailps.config.fields import current_folder
from snailps.errors import EXIT_INTERRUPTED, EXIT_WRONG, SnailError
from snailps.local import LAUNCHED

_PANELS = {
    "Train": ("demo", "train", "autotune", "fedavg", "local"),
    "Processes of a cluster": (
        "master",
        "server",
        "worker",
        "checkpoint",
        "cluster",
        "status",
        "jobs",
        "ui",
        "doctor",
        "tls",
        "completion",
    ),
    "Ask a model": (
        "nn",
        "similarity",
        "analogy",
        "vector",
        "dump",
        "predict",
        "recommend",
        "filter",
        "test",
        "eval",
        "quantize",
        "calibrate",
    ),
}  # fmt: skip
COMMANDS = {name: panel for panel, names in _PANELS.items() for name in names}
"""Command -> help panel.  A command is the module of its name, unless `_MODULES` has another."""
_MODULES = dict.fromkeys(("nn", "similarity", "analogy", "vector", "dump"), "ask")

_ON_ONE_SCREEN = ("local", "master", "server", "worker", "demo")
_CODES = (
    "Exit codes: 0 done; 1 failed; 2 wrong usage, input or setting; 3 stopped because another "
    "process failed; 130 interrupted."
)


def app_for(words: Sequence[str] = ()) -> typer.Typer:
    """Make the command ``snailps``, with a single command if `words` begin with its name.

    Importing and describing all the others would double the start-up time of a process.
    """
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="snailps: a parameter server for plain CPU machines.",
        epilog=_CODES,
    )
    app.callback()(_options)
    first = words[0] if words else ""
    for name in () if first == "--version" else (first,) if first in COMMANDS else COMMANDS:
        place = _MODULES.get(name, name)
        module = importlib.import_module(f"snailps.cli.{place}")
        command = getattr(module, f"{place}_{name}" if name in _MODULES else "command", None)
        if command is not None:
            kind = HelpInGroups if name in _ON_ONE_SCREEN else None
            app.command(name, cls=kind, rich_help_panel=COMMANDS[name])(command)
        else:
            group = module.app_for(words[1:]) if name == "train" else module.app
            app.add_typer(group, name=name, rich_help_panel=COMMANDS[name])
    _join_help_lines(app)
    return app


def _join_help_lines(app: typer.Typer) -> None:
    """Join the lines of each paragraph of a help text: the terminal wraps them."""
    for command in app.registered_commands:
        text = command.help or inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _join_help_lines(group.typer_instance)


def _show_version(wanted: bool) -> None:
    if wanted:
        from snailps.abi import builds

        typer.echo(f"snailps {__version__}, kernels {builds.chosen()}")
        raise typer.Exit()


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            metavar="",
            help="Print version and build of the kernels.",
        ),
    ] = False,
) -> None:
    pass


_SPREAD = ("--train", "--benchmarks", *(f"--{key.replace('_', '-')}" for key in PATHS))


_PREDICT_FLAGS = ("--json", "--metrics", "--overwrite")
_REFUSED_BY_SYSTEM = (
    errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EROFS,
)  # fmt: skip
"""Errors of a path that a user named, not of the program: `Path.exists` raises some of them, too,
before Python 3.14."""


def spread_inputs(words: list[str]) -> list[str]:
    """Rewrite ``--input a b c`` to ``--input a --input b --input c``: Typer takes one value each.

    In ``predict --input a MODEL --input b c`` the first word that belongs to no option is the
    model; only after it may an option take several words.
    """
    result: list[str] = []
    spreading, may_spread = "", words[:1] != ["predict"]
    for index, word in enumerate(words):
        if word == "--":  # after it are words of another command
            return result + words[index:]
        if not may_spread:
            before = words[index - 1]
            is_taken = before[:1] == "-" and "=" not in before and before not in _PREDICT_FLAGS
            may_spread = index > 0 and word[:1] != "-" and not is_taken
        elif word in _SPREAD:
            spreading = word
        elif word.startswith("-"):
            spreading = ""
        elif spreading and words[index - 1] != spreading:
            result.append(spreading)
        result.append(word)
    return result


def main() -> None:
    try:
        words = spread_inputs(sys.argv[1:])
        if COMPLETE in os.environ:  # a shell asks for completions
            importlib.import_module("typer.completion").completion_init()
        if len(words) == 3 and words[1] == LAUNCHED:
            code = _run_launched(words[0], words[2])
        else:
            end = words.index("--") if "--" in words else len(words)
            context = {"all": HELP_ALL in words[:end]}
            words[:end] = ["--help" if word == HELP_ALL else word for word in words[:end]]
            command = typer.main.get_command(app_for(words))
            spare_conversions(command)
            gc.freeze()
            gc.enable()
            code = command(args=words, prog_name="snailps", standalone_mode=False, obj=context)
        sys.exit(code if isinstance(code, int) else 0)
    except UsageError as error:
        sys.exit(_end_wrong(error, words))
    except typer.Abort:
        sys.exit(EXIT_INTERRUPTED)
    except SnailError as error:
        typer.echo(f"snailps: error: {error}", err=True)
        sys.exit(error.exit_code)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and str(error) != "can't start new thread":
            raise
        what = str(error) or "out of memory"
        limits = (
            "free some memory, or raise the limits of memory (ulimit -v) and processes (ulimit -u)"
        )
        typer.echo(f"snailps: error: {what}: {limits}", err=True)
        sys.exit(1)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not current_folder():
            typer.echo(
                "snailps: error: the current folder was removed: go to another one, or name all "
                "paths from / on",
                err=True,
            )
            sys.exit(EXIT_WRONG)
        if error.errno in _REFUSED_BY_SYSTEM and error.filename:
            why = f"cannot use {os.fsdecode(error.filename)}: {error.strerror}"
            typer.echo(f"snailps: error: {why}: correct the path, or its permissions", err=True)
            sys.exit(EXIT_WRONG)
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT):
            raise
        if error.errno != errno.EPIPE:
            where = error.filename or "standard output, or a file"
            typer.echo(f"snailps: error: cannot write {where}: {error.strerror}", err=True)
        # The buffer cannot be written: without this, Python would report that again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _run_launched(role: str, arguments: str) -> int:
    """Run a process of a cluster with its launcher's JSON arguments; return the exit code."""
    command = importlib.import_module(f"snailps.cli.{role}").command
    gc.freeze()
    gc.enable()
    try:
        command(**json.loads(arguments))
    except typer.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, EOFError):
        raise typer.Abort from None
    return 0


def _end_wrong(error: Exception, words: Sequence[str]) -> int:
    """Print a mistake in the command line as one line; without any words print the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]
    else:
        typer.echo(f"snailps: error: {usage_line(error, words)}", err=True)
    return EXIT_WRONG
