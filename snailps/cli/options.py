"""Options that several commands have, and the settings that they give.

    -c FILE, environment, --set KEY=VALUE -> read_config -> RawConfig

Imports no model and no process, so that a command that needs neither starts at once.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from snailps.config import ClusterSettings, RawConfig


def settings_like(incomplete: str) -> list[str]:
    """Completions of the name of a setting: ``checkpoint_dir=``."""
    from snailps.cli.settings import documented_classes
    from snailps.config.fields import settings_of

    names = {
        name
        for _, cls in documented_classes()
        for name, setting in settings_of(cls).items()
        if not setting.hidden
    }
    return [f"{name}=" for name in sorted(names) if name.startswith(incomplete)]


def runs_like(incomplete: str) -> list[tuple[str, str]]:
    """Completions of the number of a run, with its title; newest first."""
    from snailps.cli.jobs import title_of
    from snailps.node.run_registry import RunRegistry

    runs = reversed(RunRegistry().runs())
    found = [(str(run.number), title_of(run)) for run in runs]
    return [pair for pair in found if pair[0].startswith(incomplete)]


ConfigOption = Annotated[
    Path | None,
    typer.Option("-c", "--config", metavar="FILE", help="A .conf file; see docs/settings.md."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="One setting; overrides all other sources.",
        autocompletion=settings_like,
    ),
]
DocumentFdOption = Annotated[int, typer.Option("--document-fd", hidden=True)]
JsonLogOption = Annotated[
    Path | None,
    typer.Option("--json-log", metavar="FILE", help="File that gets a JSON record every 5 s."),
]
TensorboardOption = Annotated[
    Path | None,
    typer.Option(
        "--tensorboard", metavar="DIR", help="Folder for TensorBoard: curves, norms, vectors."
    ),
]
FreshOption = Annotated[
    bool,
    typer.Option("--fresh", help="Start anew, even if this job has a checkpoint.", metavar=""),
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace result files that exist.", metavar="")
]


def read_config(path: Path | None, overrides: Sequence[str] | None) -> RawConfig:
    """Settings as the user gave them, not yet typed."""
    return RawConfig.load(path, environ=os.environ, overrides=overrides or ())


def command_line(words: Sequence[str]) -> str:
    """The command with these words, as a user types it to continue the run: not anew."""
    return shlex.join(["snailps", *(word for word in words if word != "--fresh")])


def doors_of(address: str, settings: ClusterSettings) -> list[str]:
    """Options with which another command connects to this master."""
    given = {"master_addr": address, "secret_file": settings.secret_file, "tls": settings.tls}
    return [word for key, value in given.items() if value for word in ("--set", f"{key}={value}")]


def connection_settings(raw: RawConfig) -> ClusterSettings:
    """The settings of connections; models are imported only to check other keys."""
    if not raw.entries:
        return ClusterSettings()
    from snailps.cli.common import known_classes

    return raw.build(ClusterSettings, also_known=known_classes(raw))
