"""The command ``snailps`` and its exit codes.

0 done · 1 failed · 2 a setting or an option is wrong · 3 stopped because another process failed ·
130 interrupted.  A `SnailError` is one line on standard error; anything else is a bug of ours and
keeps its traceback.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from snailps._version import __version__
from snailps.cli import (
    analogy,
    checkpoint,
    demo,
    eval,
    fedavg,
    local,
    master,
    nn,
    predict,
    server,
    similarity,
    status,
    test,
    train,
    vector,
    worker,
)
from snailps.errors import SnailError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="snailps: a parameter server for plain CPU machines.",
)
app.command("demo", rich_help_panel="Train")(demo.command)
app.add_typer(train.app, name="train", rich_help_panel="Train")
app.add_typer(fedavg.app, name="fedavg", rich_help_panel="Train")
app.command("local", rich_help_panel="Train")(local.command)
app.command("master", rich_help_panel="Processes of a cluster")(master.command)
app.command("server", rich_help_panel="Processes of a cluster")(server.command)
app.command("worker", rich_help_panel="Processes of a cluster")(worker.command)
app.add_typer(checkpoint.app, name="checkpoint", rich_help_panel="Processes of a cluster")
app.command("status", rich_help_panel="Processes of a cluster")(status.command)
app.command("nn", rich_help_panel="Ask a model")(nn.command)
app.command("similarity", rich_help_panel="Ask a model")(similarity.command)
app.command("analogy", rich_help_panel="Ask a model")(analogy.command)
app.command("vector", rich_help_panel="Ask a model")(vector.command)
app.command("predict", rich_help_panel="Ask a model")(predict.command)
app.command("test", rich_help_panel="Ask a model")(test.command)
app.command("eval", rich_help_panel="Ask a model")(eval.command)


def _show_version(wanted: bool) -> None:
    if wanted:
        from snailps import kernels

        typer.echo(f"snailps {__version__}, kernels {kernels.BUILD}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            metavar="",
            help="Version and build.",
        ),
    ] = False,
) -> None:
    pass


_SPREAD = ("--train", *(f"--{key.replace('_', '-')}" for key in train.PATHS))


def spread_inputs(words: list[str]) -> list[str]:
    """``--input a b c`` as ``--input a --input b --input c``: options take one value each."""
    result: list[str] = []
    spreading = ""
    for at, word in enumerate(words):
        if word in _SPREAD:
            spreading = word
        elif word.startswith("-"):
            spreading = ""
        elif spreading and words[at - 1] != spreading:
            result.append(spreading)
        result.append(word)
    return result


def main() -> None:
    """Entry point."""
    try:
        app(args=spread_inputs(sys.argv[1:]), prog_name="snailps")
    except SnailError as error:
        typer.echo(f"snailps: error: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)
