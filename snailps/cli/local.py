"""``snailps local``: runs a cluster of real processes on this machine and shows its progress.

.conf file, options -> Run -> master's status, lines of all -> Progress -> exit code
-- COMMAND          -> local_cluster -> COMMAND with its address -> exit code of COMMAND

`snailps.local` starts, restarts and ends the processes; this module shows them, and decides the
exit code.  `snailps train` and `demo` end here, too.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snailps import models
from snailps.abi.quota import cores
from snailps.api.worker import load_class
from snailps.cli.common import log_as_set, remarks
from snailps.cli.entry import main
from snailps.cli.json_lines import is_object
from snailps.cli.known_classes import known_classes
from snailps.cli.options import SetOption, command_line, connect_options, read_config, short_options
from snailps.cli.page_process import PageProcess, UiOption
from snailps.cli.printing import is_live, print_figures, print_json
from snailps.config import (
    CheckpointSettings,
    JobSettings,
    MasterSettings,
    RawConfig,
    ServerSettings,
    WorkerSettings,
    settings_of,
)
from snailps.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_WRONG, ClusterError, ConfigError
from snailps.local.launcher import MasterEnded, labelled, signal_name
from snailps.local.run import LOCAL, SERVERS_MAX, WORKERS_MAX, ClusterProcesses, Result
from snailps.master.job.settings import refuse_unread
from snailps.node.phrases import OWN_ERROR, not_done
from snailps.node.signals import ending_signals
from snailps.node.usage import peak_rss_mb

if TYPE_CHECKING:
    from snailps.cli.progress import Progress

ServersOption = Annotated[
    int, typer.Option(min=1, max=SERVERS_MAX, metavar="N", help="Number of server processes.")
]
WorkersOption = Annotated[
    int, typer.Option(min=1, max=WORKERS_MAX, metavar="N", help="Number of worker processes.")
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print the figures as JSON at the end.", metavar=""),
]
VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Also show blocks, and each process with its log.", metavar=""
    ),
]
ADDRESS = "SNAILPS_MASTER_ADDR"
"""Environment variable with the address that `snailps.connect()` joins."""
HINT = "Ctrl-C ends it early and saves the model; snailps status -w shows more"
_LOGGED = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}) (?:master|server|worker): ")
"""Start of a child's log line.  It is replaced by the launcher's name, which has the number."""
_ROLES = (MasterSettings, ServerSettings, WorkerSettings)
_SET_HERE = {
    "master_addr": "the master takes any free port",
    "expected_node_num": "--servers and --workers determine it",
    "expected_servers": "--servers determines it",
}
"""Setting that a cluster on this machine sets itself -> where its value comes from."""
_AT_WORK = ("survey", "loading", "restoring", "training", "exporting", "stopping")
"""Phases in which a job works: if it ends in one of them, a frame shows how."""


@short_options
def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND",
            help="After --: a command to run beside a cluster, which it joins by "
            "snailps.connect().",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("-c", "--config", metavar="FILE", help="A .conf file with a job.")
    ] = None,
    servers: ServersOption = 1,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=WORKERS_MAX,
            metavar="N",
            help="Number of worker processes; 1 by default, 0 beside a command.",
        ),
    ] = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
    ui: UiOption = False,
) -> None:
    """Run the job of a .conf file on a cluster of real processes on this machine.

    For example: snailps local -c config/fasttext.conf --servers 1 --workers 2

    Or run a command beside a cluster of servers, which end when the command ends:
    snailps local --servers 2 -- torchrun --nproc-per-node=2 train.py
    """
    if words:
        if as_json or verbose or ui:
            raise ConfigError(
                "--json, --verbose and --ui show the progress of a job: leave them out before a "
                "command, which has its own output"
            )
        raise typer.Exit(run_beside(words, config, sets, servers=servers, workers=workers or 0))
    if config is None:
        raise ConfigError(
            "nothing to run: give -c FILE with a job, or -- and a command to run beside a cluster"
        )
    raw = read_config(config, sets)
    log_as_set(raw, "snailps")
    entry = raw.explicit("worker_class", JobSettings)
    if entry is None:
        raise ConfigError(
            f"{config}: no worker_class, so there is no job to run: add one, as in "
            "config/fasttext.conf"
        )
    cls = load_class(entry.value, entry.origin)
    settings = raw.build(cls.Settings, also_known=known_classes(raw))
    # With `continue_from`, the model file decides which settings are read: the master checks then.
    if not getattr(settings, "continue_from", ""):
        refuse_unread(cls, settings, raw)
    raise typer.Exit(
        run_local(
            raw,
            config=str(config),
            servers=servers,
            workers=workers or 1,
            as_json=as_json,
            verbose=verbose,
            ui=ui,
        )
    )


def run_beside(
    words: Sequence[str],
    config: Path | None,
    sets: Sequence[str] | None,
    *,
    servers: int,
    workers: int,
) -> int:
    """Run a command beside a cluster, end the cluster with it, return the command's exit code."""
    from snailps.local.cluster import local_cluster

    raw = RawConfig.load(config, environ={}, overrides=sets or ())
    with local_cluster(servers, workers, **settings_beside(raw)) as cluster:
        try:
            child = subprocess.Popen(words, env={**os.environ, ADDRESS: cluster.address})
        except OSError as error:
            raise ConfigError(f"{words[0]}: cannot be run: {error.strerror}") from None

        def hand_on(number: int, frame: object) -> None:
            # A terminal sends its Ctrl-C to the whole group, so the command has it already.  A
            # second one would make the command end by force.
            if number != signal.SIGINT or not _in_foreground():
                child.send_signal(number)

        with _handling(hand_on):
            code = child.wait()
    return code if code >= 0 else 128 - code


def settings_beside(raw: RawConfig) -> dict[str, Any]:
    """Select the settings of the processes from a file that may hold a job's settings, too."""
    known, classes = known_classes(raw), (*_ROLES, CheckpointSettings)
    of_hosts = {*_SET_HERE, *LOCAL, "log_level"}  # a file may be for a cluster on several hosts
    settings: dict[str, Any] = {}
    for cls in classes:
        values = raw.build(cls, also_known=known)
        for name in settings_of(cls):
            entry = raw.explicit(name, cls)
            if entry is not None and not (entry.source and name in of_hosts):
                settings[name] = getattr(values, name)
    typed = RawConfig(entry for entry in raw.entries if not entry.source)
    if (foreign := typed.foreign(classes)) is not None:
        raise ConfigError(
            f"{foreign.origin}: {foreign.key} is a setting of a job, and a command has none: leave "
            "it out"
        )
    return settings


def _in_foreground() -> bool:
    """Whether the terminal sends its Ctrl-C to this process, even if standard input is a file."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def run_local(
    raw: RawConfig,
    *,
    servers: int,
    workers: int,
    as_json: bool,
    config: str | None = None,
    kept: bool = True,
    verbose: bool = False,
    job: str = "",
    ui: bool = False,
) -> int:
    """Start a cluster, show its progress, wait for its end, return the exit code.

    `raw` has all settings, already checked; `config` is their file.  `kept`: the run's files are
    kept, so their names are printed.  `job` is the model's name; empty: the name of its class.
    """
    log_as_set(raw, "snailps")
    master = raw.build(MasterSettings, also_known=known_classes(raw))
    for cls in _ROLES[1:]:
        raw.build(cls, also_known=known_classes(raw))
    local = {
        "log_level": "info" if verbose else "warning",
        "threads": f"{max(1, cores() // workers)}",
        "shard_num": f"{max(1, cores() // (2 * servers))}",
    }
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    run = ClusterProcesses(
        RawConfig.from_mapping(local, "--set {key}").merged(raw.over_shared(LOCAL, "--set {key}")),
        config=config,
        servers=servers,
        workers=workers,
        revives=master.on_node_loss == "recover",
        main=main,
        called=command_line(sys.argv[1:]),
        on_line=lambda name, line: lines.put(_relayed(name, line, verbose)),
    )
    terminal = is_live(sys.stderr)
    entry = raw.explicit("worker_class", JobSettings)
    assert entry is not None
    job = job or next((n for n, path in models.CLASSES.items() if path == entry.value), "")
    readers = (*_ROLES, load_class(entry.value, entry.origin).Settings)
    texts = [text for _, text in remarks(raw, "this job", readers)] + without_effect(raw)
    page: PageProcess | None = None
    progress: Progress | None = None
    with _handling(run.interrupt, ended=lambda: run.interrupts > 0):
        try:
            try:
                run.start()
            finally:  # only now: importing rich would delay the start of the processes
                progress = _display(texts, terminal=terminal, verbose=verbose)
            address = run.launcher.address
            if address and (verbose or not terminal):
                doors = ["--watch", *connect_options(address, master)] if verbose else ["-w"]
                progress.say(f"to look closer: snailps status {shlex.join(doors)}")
            if address and ui:
                page = PageProcess(address, master, run.launcher.secret)
                page.report(lines.put)
            if address:
                run.wait(master, progress.update, lambda: _say_all(lines, progress))
        except MasterEnded:
            pass
        finally:
            result = run.stop()
            if page is not None:
                page.close()
            if progress is not None:  # else the error says why there is none
                _end(progress, lines, result, job=job, kept=kept, terminal=terminal)
    code, figures = result.code, result.figures
    if figures:
        figures["peak_rss_mb"] = round(figures["peak_rss_mb"] + peak_rss_mb(), 1)
        if as_json:
            print_json(figures)
        elif "test" in figures and not (terminal and sys.stdout.isatty()):  # else the frame has it
            print_figures(figures["test"])
    if code == EXIT_OK and not_done(figures):
        return EXIT_WRONG  # the model was trained and written, and what was asked for is not there
    if code is not None and code >= 0:
        return code
    if run.interrupts:  # our signal killed the master: it had no handler yet, or this was by force
        when = "and ended by force" if run.launcher.address else "while starting"
        typer.echo(f"snailps: interrupted {when}; nothing was saved", err=True)
        return EXIT_INTERRUPTED
    how = f"was killed by {signal_name(-code)}" if code else "does not end"
    raise ClusterError(
        f"the master {how}, so the job has ended. If it had checkpoints, the same command "
        "continues from the newest. If the kernel killed it for want of memory, dmesg shows that"
    )


def _relayed(name: str, line: str, verbose: bool) -> str:
    """Prefix a child's line with the child's name, unless it has it already."""
    if line.startswith(OWN_ERROR) or is_object(line):
        return line
    if head := _LOGGED.match(line):
        stamp = f"{head[1]} " if verbose else ""
        return stamp + labelled(name, line[head.end() :])
    return labelled(name, line)


@contextlib.contextmanager
def _handling(
    handler: Callable[[int, FrameType | None], object], ended: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Handle the signals that end a command by `handler`, until the end of the context."""
    numbers = [signal.SIGINT, *ending_signals()]
    old = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in old.items():
            # After an interrupt this process is ending; another signal must not change its code.
            signal.signal(number, signal.SIG_IGN if ended() else before)


def _display(texts: Sequence[str], *, terminal: bool, verbose: bool) -> Progress:
    from snailps.cli.progress import Progress

    made = Progress(sys.stderr, terminal=terminal, verbose=verbose, hint=HINT)
    for text in texts:
        made.say(text)
    return made


def _say_all(lines: queue.SimpleQueue[str], progress: Progress) -> None:
    while not lines.empty():
        progress.say(lines.get())


def _end(
    progress: Progress,
    lines: queue.SimpleQueue[str],
    result: Result,
    *,
    job: str,
    kept: bool,
    terminal: bool,
) -> None:
    """End the display: print the remaining lines, then the frame with the result or the reason."""
    killed = (result.code or 0) < 0  # the others' errors only follow from the master's death
    errors = []
    while not lines.empty():
        line = lines.get()
        if not line.startswith(OWN_ERROR):
            progress.say(line)
        elif not killed:
            errors.append(line)
    progress.validate(result.figures.get("validation", {}))
    last, ending = progress.last, None
    if result.figures or (last is not None and last["phase"] in _AT_WORK and not killed):
        from snailps.cli.view import ending_of

        ending = ending_of(
            result.figures,
            job=job or (last["job_name"] if last is not None else ""),
            status=last,
            losses=progress.losses,
            kept=kept,
            why="\n".join(line.removeprefix(OWN_ERROR) for line in errors),
        )
    for line in () if ending is not None and terminal else errors:
        progress.say(line)
    progress.close(ending)


def without_effect(raw: RawConfig) -> list[str]:
    """Make remarks on ``--set`` settings that a cluster on this machine sets itself."""
    return [
        f"{entry.origin}: not used: a cluster on this machine chooses {entry.key} itself, as {why}"
        for entry in raw.entries
        if entry.origin.startswith("--set ") and (why := _SET_HERE.get(entry.key))
    ]
