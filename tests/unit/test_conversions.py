"""Values that snailps converts itself: they are Typer's own, and need no pydantic."""

import sys

import pytest
import typer

from snailps.cli import main as cli
from snailps.cli import train
from snailps.cli.conversions import spare_conversions

TEXTS = ("", "3", "03", "-1", "900", " 3", "1_0", "0.5", "1e3", "nan", "yes", "bash", "BASH", "/")


def command_of(*words):
    return typer.main.get_command(cli.app_for(words))


def leaves(command, context):
    """All commands below one, each with its context."""
    if not hasattr(command, "commands"):
        yield command, context
    for name, inner in getattr(command, "commands", {}).items():
        yield from leaves(inner, type(context)(inner, parent=context, info_name=name))


def outcome(parameter, context, value):
    try:
        found = parameter.process_value(context, value)
    except Exception as error:
        return type(error), str(error)
    return type(found), repr(found)


@pytest.mark.parametrize("words", [("train", "classifier"), ("train", "mf"), ()], ids=str)
def test_each_value_of_each_parameter_is_as_typer_converts_it(words):
    ours, theirs = command_of(*words), command_of(*words)
    spare_conversions(ours)
    context = typer.Context
    pairs = zip(leaves(ours, context(ours)), leaves(theirs, context(theirs)), strict=True)
    seen = set()
    for (our, our_context), (their, their_context) in pairs:
        parameters = zip(our.get_params(our_context), their.get_params(their_context), strict=True)
        for mine, typers in parameters:
            if (mine.name, str(mine.default)) in seen or typers.name == "help":
                continue
            seen.add((mine.name, str(mine.default)))
            is_list = typers.multiple or typers.nargs == -1
            for value in (None, typers.default, *TEXTS):
                given = [value, "b"] if is_list and value is not None else value
                answers = [
                    outcome(*each, given) for each in ((mine, our_context), (typers, their_context))
                ]
                assert answers[0] == answers[1], (our.name, mine.name, given)


def test_parameters_of_a_typer_with_other_names_are_converted_by_typer():
    class Parameter:
        type_descriptor = object()

        def process_value(self, context, value):
            return f"{value} by Typer"

    class Command:
        def get_params(self, context):
            return [Parameter()]

    command = Command()
    spare_conversions(command)
    [parameter] = command.get_params(None)
    assert parameter.process_value(None, "3") == "3 by Typer"


def test_training_command_is_read_without_pydantic(monkeypatch, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a b\n")
    given = {}
    monkeypatch.setattr(train, "train", lambda name, options: given.update(options) or 0)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pydantic"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pydantic", None)  # an import of it fails
    monkeypatch.delitem(sys.modules, "typer._adapters", raising=False)
    words = f"train classifier --train {text} b --output o --workers 2 --set dim=3 --epochs 4"
    monkeypatch.setattr(sys, "argv", ["snailps", *words.split()])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    assert (given["input"], given["workers"], given["epochs"]) == ([str(text), "b"], 2, "4")
    assert given["sets"] == ["dim=3"]
    assert given["as_json"] is False
