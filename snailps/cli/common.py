"""What the commands that run a process of a cluster share: its settings, its log, its exit code.

    file, environment, --set -> RawConfig -> a role's settings        Node -> exit code

Imports every settings class, because one file may hold the settings of all roles.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from snailps import models
from snailps._version import __version__
from snailps.api.worker import load_class
from snailps.cli import json_lines
from snailps.cli.known_classes import known_classes
from snailps.cli.options import read_config
from snailps.config import (
    CheckpointSettings,
    ClusterSettings,
    Document,
    JobSettings,
    MasterSettings,
    RawConfig,
    ServerSettings,
    WorkerSettings,
)
from snailps.config.fields import Settings, current_folder, settings_of
from snailps.errors import EXIT_INTERRUPTED, EXIT_STOPPED, FAILURES, ConfigError, SnailError
from snailps.node.phrases import NAME_MARK, process_name
from snailps.outward import outward

if TYPE_CHECKING:
    from snailps.server.process import Server
    from snailps.worker.process import WorkerProcess

log = logging.getLogger("snailps")
LOG_TIME = "%Y-%m-%d %H:%M:%S %z"
S = TypeVar("S", bound=ClusterSettings)


def read_document(
    config: Path | None, overrides: Sequence[str] | None, document_fd: int
) -> Document:
    """Read settings and secret from the launcher's pipe, or without a launcher from the sources.

    Ends the process if the launcher's pipe ends before the document does.
    """
    if document_fd < 0:
        return Document(read_config(config, overrides), b"")
    with os.fdopen(document_fd, "rb") as pipe:
        data = pipe.read()
    try:
        return Document.load(data)
    except ValueError:  # incomplete: the launcher has given up, and reports the reason itself
        raise typer.Exit(EXIT_STOPPED) from None


_ROLES: dict[type[Settings], str] = {
    MasterSettings: "master",
    ServerSettings: "server",
    WorkerSettings: "worker",
}


def remarks(raw: RawConfig, reader: str, own: Iterable[type[Settings]]) -> list[tuple[bool, str]]:
    """Collect (important, sentence) for settings with old names, without effect, or not read."""
    return [(True, notice) for notice in raw.notices] + raw.unread(reader, own)


def role_settings(
    raw: RawConfig, cls: type[S], *, launched: bool = False, session: bool = False
) -> S:
    """Build a role's settings, set up logging, and log remarks on settings.

    A process that is `launched` by snailps logs no remarks: its launcher has done so, once for all
    processes.  The master of a `session` reads the settings of checkpoints, but not of a job.
    """
    raw_before = raw
    known: Iterable[type[Settings]]
    try:
        known = known_classes(raw)
    except ConfigError:
        # The model cannot be imported here.  A server does not need it: it drops the keys that
        # may be the model's, instead of refusing them as unknown.
        if cls is not ServerSettings:
            raise
        known = (MasterSettings, WorkerSettings, JobSettings, *models.SETTINGS.values())
        names = {
            key for known_class in [*known, ServerSettings] for key in settings_of(known_class)
        }
        raw = RawConfig(entry for entry in raw.entries if entry.key in names)
    settings = raw.build(cls, also_known=known)
    role = _ROLES[cls]
    set_up_logging(settings.log_level, role)
    read_here: list[type[Settings]] = [cls]
    if session:
        read_here.append(CheckpointSettings)
    elif cls is MasterSettings:
        read_here.append(JobSettings)
        entry = raw.explicit("worker_class", JobSettings)
        if entry is not None and entry.value:
            read_here.append(load_class(entry.value, entry.origin).Settings)
            raw.build(read_here[-1], also_known=known)  # for its notices about aliases
    if not launched:
        raw_before.notices = raw.notices
        reader = f"{'the' if cls is MasterSettings else 'a'} {role}"
        for important, text in remarks(raw_before, reader, read_here):
            log.log(logging.WARNING if important else logging.INFO, "%s", text)
    return settings


def log_as_set(raw: RawConfig, name: str, *, stdout: bool = False) -> None:
    """With `log_format: json`, make all further output of this process JSON lines.

    Call it before settings are built, so that errors in them are JSON, too.
    """
    entry = raw.explicit("log_format", ClusterSettings)
    if entry is not None and entry.value == "json":
        json_lines.begin(name, stdout=stdout)


def hide_reported() -> None:
    """Drop warnings that the launcher also gets as events of the status, and shows."""
    root = logging.getLogger("snailps")
    if root.level >= logging.WARNING:
        for handler in root.handlers:
            handler.addFilter(lambda record: not getattr(record, "reported", False))


class _LogFormatter(logging.Formatter):
    """Format log lines without secrets in addresses and control characters in texts of peers."""

    def format(self, record: logging.LogRecord) -> str:
        return str(outward(super().format(record)))


def log_begin(name: str) -> None:
    """Log the begin of this process: a log file may have earlier runs."""
    log.info(
        "%s begins: snailps %s, process %d on %s", name, __version__, os.getpid(),
        socket.gethostname(),
    )  # fmt: skip


def log_end(name: str, code: int, why: str = "") -> None:
    log.info("%s ends with exit code %d%s", name, code, why and f": {why}")


def set_up_logging(level: str, name: str) -> None:
    """Write log lines to standard error: date, time, zone, process, message.

    After `log_as_set` they are JSON objects.
    """
    handler = json_lines.handler()
    if handler is None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_LogFormatter(f"%(asctime)s {name}: %(message)s", LOG_TIME))
    root = logging.getLogger("snailps")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False


def _begin_anew(folder: str, environment: dict[str, str], signals: Iterable[int]) -> None:
    """Replace this process by a new run of its command (``exec``), so that it can join again.

    Nothing that the user's code has imported, allocated or changed remains: not the current
    folder, the environment, timers or blocked signals.  Resource limits and child processes do.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0)
    os.chdir(folder)
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def name_of(node: Server | WorkerProcess) -> str:
    """Name a process in messages: ``server 2``, or ``server`` before it has a number."""
    role = node.role.name.lower()
    return process_name(role, node.welcome.node) if node.welcome is not None else role


def report_name(name: str) -> None:
    """Report this process's name to the launcher, by a marked line that it does not show."""
    with contextlib.suppress(OSError):  # the launcher has ended
        # One system call: other threads write to standard error, and would split the line.
        os.write(2, f"{NAME_MARK}{name}\n".encode())


def show_prints() -> None:
    """Flush a model's prints line by line, also into a file: a log must not be minutes late."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def run_node(
    cls: type[S],
    make: Callable[[S, RawConfig, bytes], Server | WorkerProcess],
    config: Path | None,
    sets: list[str] | None,
    document_fd: int,
) -> None:
    """Run ``make(settings, raw, secret)``, a server or worker, to its end; exit with its code."""
    show_prints()
    document, launched = read_document(config, sets, document_fd), document_fd >= 0
    log_as_set(document.raw, _ROLES[cls], stdout=True)
    settings = role_settings(document.raw, cls, launched=launched)
    log_begin(f"the {_ROLES[cls]}")
    node = make(settings, document.raw, document.secret)
    if launched:
        hide_reported()
        node.on_named = report_name
    json_lines.call(lambda: name_of(node))
    node.catch_signals()
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    begin_anew = partial(_begin_anew, current_folder() or "/", dict(os.environ), signals)
    node.begin_anew = begin_anew
    try:
        code = node.run()
    except (KeyboardInterrupt, SnailError) as error:
        # A signal while joining closes the connection; that error is not the reason of the end.
        if not node.ended.is_set() or node.verdict.code != EXIT_INTERRUPTED:
            log_end(node.name, getattr(error, "exit_code", EXIT_INTERRUPTED))
            raise
        code = EXIT_INTERRUPTED
    text = node.verdict.text
    if code == EXIT_INTERRUPTED:
        typer.echo(f"snailps: {node.name}: {text}", err=True)
    elif code in FAILURES:
        typer.echo(f"snailps: error: {node.name}: {text}", err=True)
    elif code == EXIT_STOPPED:
        log.info("%s stopped by the master: %s", node.name, text)
    elif text:
        log.info("%s: %s", node.name, text)
    if node.begins_anew:
        begin_anew()
    log_end(node.name, code)
    raise typer.Exit(code)
