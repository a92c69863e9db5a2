"""Options of commands that come of a function's signature and docstring."""

import pytest
import typer
from typer.testing import CliRunner

from snailps.cli import signatures

SOURCE = '''
class Other:
    def ask(self, wrong: int) -> None:
        """Not this one."""


class Asked:
    def ask(self, text: str, k: int = 2, *, share: float | None = None, folder: str = "",
            how: str = "stop", wide: bool | None = None, fast: bool = False, seen=print) -> None:
        """Ask.

        Parameters
        ----------
        text : str, or list of str
            What is asked; `k` answers, as ``snailps nn``.
        k : int, at least 1
            Answers.
        share : float, 0 to 1, optional
            Share of
            `text`.
        folder : path of a folder, optional
            Where.
        how : {"stop", "skip"}
            What is done.
        wide, fast : bool
            Which.

        Returns
        -------
        k : int
            Not an option.
        """
'''


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """A command of `Asked.ask`, and the list of the values with which it was called."""
    (tmp_path / "asking.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.setattr(signatures.snailps, "__file__", str(tmp_path / "__init__.py"))
    calls = []

    @signatures.options_of("snailps.asking:Asked.ask", without=("seen",))
    def command(model: str, times: int = 1, **values):
        calls.append({"model": model, "times": times, **values})

    app = typer.Typer()
    app.command()(command)
    return app, calls


def test_values_have_the_types_and_defaults_of_the_function(asked):
    app, calls = asked
    CliRunner().invoke(app, ["m.bin", "why"], catch_exceptions=False)
    CliRunner().invoke(
        app, ["m.bin", "why", "-k", "3", "--share", ".5", "--folder", "f", "--no-wide", "--fast"]
    )
    defaults = {"share": None, "folder": "", "how": "stop", "wide": None, "fast": False}
    first = {"model": "m.bin", "times": 1, "text": "why", "k": 2}
    assert calls[0] == {**first, **defaults}
    given = {"k": 3, "share": 0.5, "folder": "f", "wide": False, "fast": True}
    assert calls[1] == {**first, **defaults, **given}


@pytest.mark.parametrize("words", [["-k", "0"], ["--share", "1.5"], ["--seen", "x"]])
def test_bounds_are_those_of_the_docstring(asked, words):
    app, calls = asked
    assert CliRunner().invoke(app, ["m.bin", "why", *words]).exit_code == 2
    assert calls == []


def test_help_is_the_docstring_with_names_of_options(asked):
    app, _ = asked
    options = {option.name: option for option in typer.main.get_command(app).params}
    assert [*options][:3] == ["model", "text", "k"]
    assert options["text"].help == "What is asked; -k answers, as `snailps nn`."
    assert options["share"].help == "Share of TEXT."
    assert options["folder"].metavar == "FOLDER"
    assert options["how"].metavar == "[stop|skip]"


def test_function_that_is_gone_is_named(asked):
    with pytest.raises(LookupError, match="no function nowhere"):
        signatures.options_of("snailps.asking:nowhere")(lambda: None)
