"""What the commands that start processes share: reading settings, logging, one-line endings.

    file, environment, --set -> RawConfig -> a role's settings        Node -> exit code

It knows every settings class there is, so that one file may hold the settings of all roles.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from snailps import models
from snailps.config import (
    ClusterSettings,
    JobSettings,
    MasterSettings,
    RawConfig,
    ServerSettings,
    WorkerSettings,
)
from snailps.config.fields import Settings, format_value, settings_of
from snailps.errors import ConfigError, SnailError
from snailps.roles.node import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STOPPED, Node
from snailps.roles.worker import load_class

log = logging.getLogger("snailps")
S = TypeVar("S", bound=ClusterSettings)

ConfigOption = Annotated[
    Path | None, typer.Option("-c", "--config", help="A .conf file; see docs/settings.md.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting, over all else."),
]
AddressFdOption = Annotated[
    int, typer.Option("--address-fd", hidden=True, help="Where the master's address is told.")
]
JsonLogOption = Annotated[
    Path | None, typer.Option("--json-log", help="File that gets a JSON record every 5 s.")
]

FreshOption = Annotated[
    bool,
    typer.Option("--fresh", help="Begin anew, even where a checkpoint of this job is.", metavar=""),
]


def fresh_override(fresh: bool) -> list[str]:
    """``--fresh`` as the ``--set`` that it is short for."""
    return ["fresh=true"] if fresh else []


def address_override(descriptor: int) -> list[str]:
    """The master's address, once it is told at a descriptor; ends where none is told."""
    if descriptor < 0:
        return []
    with os.fdopen(descriptor) as told:
        address = told.read()
    if not address:  # whoever started us has given up, and says why
        raise typer.Exit(EXIT_STOPPED)
    return [f"master_addr={address}"]


def json_log_override(path: Path | None) -> list[str]:
    """``--json-log PATH`` as the ``--set`` that it is short for."""
    return [] if path is None else [f"json_log={format_value(str(path))}"]


def read_config(path: Path | None, overrides: Sequence[str] | None) -> RawConfig:
    """Settings as the user gave them, not yet typed."""
    return RawConfig.load(path, environ=os.environ, overrides=overrides or ())


def known_classes(raw: RawConfig) -> tuple[type[Settings], ...]:
    """Every class whose keys may stand in a file of this job: roles, models, the user's model."""
    classes: list[type[Settings]] = [MasterSettings, ServerSettings, WorkerSettings, JobSettings]
    classes += models.SETTINGS.values()
    entry = raw.explicit("worker_class", JobSettings)
    if entry is not None and entry.value:
        classes.append(load_class(entry.value, entry.origin).Settings)
    return tuple(classes)


def role_settings(raw: RawConfig, cls: type[S], *, name: str) -> S:
    """A role's settings, with logging set up and notices given."""
    known: tuple[type[Settings], ...]
    try:
        known = known_classes(raw)
    except ConfigError:
        # Only the master and the workers must be able to import the model; a server need not.
        if cls is not ServerSettings:
            raise
        known = (MasterSettings, WorkerSettings, JobSettings, *models.SETTINGS.values())
        names = {key for one in [*known, ServerSettings] for key in settings_of(one)}
        raw = RawConfig(entry for entry in raw.entries if entry.key in names)
    settings = raw.build(cls, also_known=known)
    set_up_logging(settings.log_level, name)
    for notice in raw.notices:
        log.warning("%s", notice)
    return settings


def set_up_logging(level: str, name: str) -> None:
    """Log lines go to standard error: time, who, what."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {name}: %(message)s", "%H:%M:%S"))
    root = logging.getLogger("snailps")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False


def run_node(node: Node, run: Any) -> None:
    """Runs a server or worker to its end and exits with its code; the reason on one line."""
    node.catch_signals()
    try:
        code = run()
    except (KeyboardInterrupt, SnailError):
        # A signal in the middle of joining: whatever that broke is no error of its own.
        if not node.ended.is_set() or node.verdict.code != EXIT_INTERRUPTED:
            raise
        code = EXIT_INTERRUPTED
    text = node.verdict.text
    if code == EXIT_INTERRUPTED:
        typer.echo(f"snailps: {node.name}: {text}", err=True)
    elif code == EXIT_FAILED:
        typer.echo(f"snailps: error: {node.name}: {text}", err=True)
    elif code == EXIT_STOPPED:
        log.info("%s stopped by the master: %s", node.name, text)
    elif text:
        log.info("%s: %s", node.name, text)
    raise typer.Exit(code)
