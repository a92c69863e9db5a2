"""Options that several commands have, and the settings that they give.

    -c FILE, environment, --set KEY=VALUE -> read_config -> RawConfig

Imports no model and no process, so that a command that needs neither starts at once.
"""

from __future__ import annotations

import functools
import inspect
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from snailps.config import ClusterSettings, RawConfig
from snailps.config.fields import format_value
from snailps.outward import without_secrets


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


SHORT: dict[str, Any] = {
    "json_log": JsonLogOption, "tensorboard": TensorboardOption, "fresh": FreshOption,
    "overwrite": OverwriteOption,
}  # fmt: skip
"""Options that are short for a ``--set``, by the setting."""


def short_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `SHORT`, after `as_json`; it finds them in its `sets`."""

    @functools.wraps(command)
    def with_sets(**given: Any) -> None:
        short = {name: value for name in SHORT if (value := given.pop(name, None))}
        texts = [f"{k}={format_value(v if v is True else str(v))}" for k, v in short.items()]
        command(**{**given, "sets": [*(given.get("sets") or []), *texts]})

    hints = get_type_hints(command, include_extras=True)
    parameters = [
        one.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, one in inspect.signature(command).parameters.items()
    ]
    at = 1 + [one.name for one in parameters].index("as_json")
    parameters[at:at] = [
        parameters[at - 1].replace(
            name=name, annotation=kind, default=False if kind.__origin__ is bool else None
        )
        for name, kind in SHORT.items()
    ]
    with_sets.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_sets.__annotations__ = {one.name: one.annotation for one in parameters}
    return with_sets


def read_config(path: Path | None, overrides: Sequence[str] | None) -> RawConfig:
    """Settings as the user gave them, not yet typed."""
    return RawConfig.load(path, environ=os.environ, overrides=overrides or ())


def command_line(words: Sequence[str]) -> str:
    """The command with these words, as a user types it to continue the run: not anew."""
    kept = (without_secrets(word) for word in words if word != "--fresh")
    return shlex.join(["snailps", *kept])


def doors_of(address: str, settings: ClusterSettings) -> list[str]:
    """Options with which another command connects to this master."""
    given = {"master_addr": address, "secret_file": settings.secret_file, "tls": settings.tls}
    return [word for key, value in given.items() if value for word in ("--set", f"{key}={value}")]


def connection_settings(raw: RawConfig) -> ClusterSettings:
    """The settings of connections; models are imported only to check other keys."""
    if not raw.entries:
        return ClusterSettings()
    from snailps.cli.known_classes import known_classes

    return raw.build(ClusterSettings, also_known=known_classes(raw))
