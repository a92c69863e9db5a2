"""Command lines that are read without Typer: as Typer reads them, or not at all."""

import importlib
import inspect
from typing import Annotated

import pytest
import typer

from snailps.cli import train
from snailps.cli.plain_words import plain_arguments

COMMANDS = {
    name: importlib.import_module(f"snailps.cli.{name}").command
    for name in ("local", "master", "server", "worker")
}
COMMANDS |= {name: train.command_of(name) for name in ("fasttext", "logistic")}
PLAIN = {
    "local": [
        "-c a.conf",
        "--config a.conf --servers 2 --workers 3 --set a=b --set c=d -v --json --ui",
        "-c a.conf --set=a=-1 --fresh --overwrite --json-log=x.json --tensorboard t",
    ],
    "master": [
        "",
        "-c a.conf --set a=b --ready-fd 5 --json --called snailps",
        "--session --ends-with-driver --ready-fd 7",
    ],
    "server": ["", "-c s.conf --address-fd 9 --set a=b"],
    "worker": ["--set a=b --set a=c", "-c first.conf -c last.conf"],
    "fasttext": [
        "--input a --input b --output c --epochs 3 --dim=16",
        "--output out --sample 1e-4 --servers 64 --minn 2 --set x=y",
    ],
    "logistic": ["--train a --test b --l1 2 -v", "--input a --test x --test y"],
}
NOT_PLAIN = {
    "local": [
        "",  # no file
        "-c",
        "-c a.conf --servers 0",
        "-c a.conf --servers 65",
        "-c a.conf --servers two",
        "-c a.conf --servers +2",
        "-c a.conf --servers=",
        "-c a.conf --json=1",
        "-c a.conf -vx",
        "-c a.conf more",
        "-c a.conf -- more",
        "-c a.conf --help",
        "-c a.conf --servrs 2",
        "-c a.conf --set -x",
        "-ca.conf",
    ],
    "fasttext": ["--input -", "--no-json", "--epochs"],
}


def read_by_typer(command, words):
    """Keyword arguments that Typer calls a command with."""
    found = {}

    def record(**given):
        found.update(given)

    record.__signature__ = inspect.signature(command, eval_str=True)
    record.__annotations__ = {
        name: one.annotation for name, one in record.__signature__.parameters.items()
    }
    app = typer.Typer(add_completion=False)
    app.command("it")(record)
    app(args=words, standalone_mode=False)
    return found


def without_empty(given):
    """Lists that were not given are None, or empty: that differs from one Typer to the next."""
    return {key: None if value == [] else value for key, value in given.items()}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_words_are_read_as_typer_reads_them(name):
    for line in PLAIN[name]:
        found = plain_arguments(COMMANDS[name], line.split())
        assert found is not None, line
        assert without_empty(found) == without_empty(read_by_typer(COMMANDS[name], line.split()))


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_words_with_another_reading_are_left_to_typer(name):
    for line in NOT_PLAIN[name]:
        assert plain_arguments(COMMANDS[name], line.split()) is None, line


@pytest.mark.parametrize(
    "hint",
    [
        int,  # no option
        Annotated[int, typer.Argument()],
        Annotated[bool, typer.Option()],  # has --no-value, too
        Annotated[bool, typer.Option("--value/--other")],
        Annotated[float, typer.Option("--value")],
        Annotated[int, typer.Option("--value", envvar="VALUE")],
        Annotated[int, typer.Option("--value", callback=lambda value: value + 1)],
        Annotated[int, typer.Option("--value", clamp=True, max=3)],
        Annotated[int, typer.Option("--value", count=True)],
        Annotated[int | str, typer.Option("--value")],
    ],
)
def test_options_with_rules_of_their_own_are_left_to_typer(hint):
    def command(value=None):
        pass

    command.__annotations__["value"] = hint
    assert plain_arguments(command, []) is None
