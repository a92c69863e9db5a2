"""``snailps completion``: prints the script by which a shell completes snailps' command lines.

    shell -> a script in its language on standard output, which asks snailps for completions

Typer completes commands and options; names of settings after ``--set`` come from `settings_like`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from snailps.cli import COMPLETE


def command(
    shell: Annotated[
        Literal["bash", "zsh", "fish"],
        typer.Argument(metavar="bash|zsh|fish", help="Your shell."),
    ],
) -> None:
    """Print a script that makes the shell complete snailps' commands, options and settings.

    bash: put eval "$(snailps completion bash)" into ~/.bashrc. zsh: the same with zsh, in ~/.zshrc.
    fish: snailps completion fish > ~/.config/fish/completions/snailps.fish

    For example: snailps completion bash
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    typer.echo(get_completion_script(prog_name="snailps", complete_var=COMPLETE, shell=shell))
