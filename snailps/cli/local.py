"""``snailps local``: a whole cluster of real processes on this machine, shown while it runs.

.conf file, options -> Launcher -> master's status, lines of all -> Progress -> exit code
"""

from __future__ import annotations

import contextlib
import functools
import json
import queue
import re
import shlex
import signal
import sys
import time
import types
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snailps import models
from snailps.api.worker import load_class
from snailps.cli.common import (
    FreshOption,
    JsonLogOption,
    OverwriteOption,
    SetOption,
    TensorboardOption,
    flag_overrides,
    json_log_override,
    known_classes,
    log_as_told,
    read_config,
    remarks,
    tensorboard_override,
)
from snailps.cli.entry import main
from snailps.cli.json_lines import is_object
from snailps.cli.options import command_line
from snailps.cli.page_process import PageProcess, UiOption
from snailps.cli.printing import is_live, print_figures, print_json
from snailps.config import (
    ClusterSettings,
    JobSettings,
    MasterSettings,
    RawConfig,
    ServerSettings,
    WorkerSettings,
    parse_addr,
)
from snailps.errors import EXIT_INTERRUPTED, ClusterError, ConfigError, SnailError, WaitTimeout
from snailps.kernels import cores
from snailps.local.launcher import OWN_ERROR, Launcher, MasterEnded, labelled, signal_name
from snailps.node.limits import END_S
from snailps.node.status import Status
from snailps.node.usage import peak_rss_mb
from snailps.transport import messages
from snailps.transport.control import ControlClient, Trust, visit

if TYPE_CHECKING:
    from snailps.cli.progress import Progress

LOOK_S = 0.2
DIAL_S = 1.0
SILENT_S = 3.0
"""Seconds of silence of the master after which the display reports it."""
ENDING_S = 20.0
"""Seconds for a master to end after it has closed its connection."""
PATIENCE = 2
"""Interrupts that are passed to the master; one more ends it by force."""
STARTING = ("forming", "preparing")
REPLACING = ("survey", "loading", "training")
"""Phases in which a server or worker that was killed is replaced."""

ServersOption = Annotated[int, typer.Option(min=1, max=64, metavar="N", help="Server processes.")]
WorkersOption = Annotated[int, typer.Option(min=1, max=256, metavar="N", help="Worker processes.")]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json", help="Print the run's figures as one JSON object at the end.", metavar=""
    ),
]
VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Also show blocks, processes and the log of each.", metavar=""
    ),
]
HINT = "Ctrl-C ends it early and saves the model; snailps status -w shows more"
_LOGGED = re.compile(r"(\d\d:\d\d:\d\d) (?:master|server|worker): ")
"""Start of a child's log line; the launcher's name for the child says more."""
_AT_WORK = ("survey", "loading", "restoring", "training", "exporting", "stopping")
"""Phases after which the end of a job is shown."""


def command(
    config: Annotated[
        Path, typer.Option("-c", "--config", metavar="FILE", help="A .conf file with a job.")
    ],
    servers: ServersOption = 1,
    workers: WorkersOption = 1,
    sets: SetOption = None,
    as_json: JsonOption = False,
    json_log: JsonLogOption = None,
    tensorboard: TensorboardOption = None,
    fresh: FreshOption = False,
    overwrite: OverwriteOption = False,
    verbose: VerboseOption = False,
    ui: UiOption = False,
) -> None:
    """Runs the job of a .conf file on a cluster of real processes on this machine.

    For example: snailps local -c config/fasttext.conf --servers 1 --workers 2
    """
    flags = flag_overrides(fresh=fresh, overwrite=overwrite)
    files = [*json_log_override(json_log), *tensorboard_override(tensorboard)]
    overrides = [*(sets or []), *files, *flags]
    raw = read_config(config, overrides)
    log_as_told(raw, "snailps")
    entry = raw.explicit("worker_class", JobSettings)
    if entry is None:
        raise ConfigError(
            f"{config}: no worker_class, so there is no job; see config/fasttext.conf"
        )
    cls = load_class(entry.value, entry.origin)
    raw.build(cls.Settings, also_known=known_classes(raw))
    raise typer.Exit(
        run_local(
            raw,
            str(config),
            overrides,
            servers=servers,
            workers=workers,
            as_json=as_json,
            verbose=verbose,
            ui=ui,
        )
    )


def run_local(
    raw: RawConfig,
    config: str | None,
    overrides: Sequence[str],
    *,
    servers: int,
    workers: int,
    as_json: bool,
    kept: bool = True,
    verbose: bool = False,
    job: str = "",
    ui: bool = False,
) -> int:
    """Start a cluster, show it, and wait for its end; returns the exit code.

    `raw` has all settings, already checked, and is read only for local defaults; `config` and
    `overrides` are passed to the processes.  `kept`: its files are kept, so their names are
    printed.  `job` is the model's name; empty: that of its class.
    """
    log_as_told(raw, "snailps")
    for cls in (MasterSettings, ServerSettings, WorkerSettings):
        raw.build(cls, also_known=known_classes(raw))
    local = ["master_addr=127.0.0.1:16831", "listen_addr=127.0.0.1:0"]
    if raw.explicit("log_level", ClusterSettings) is None:
        local.append(f"log_level={'info' if verbose else 'warning'}")
    if raw.explicit("threads", WorkerSettings) is None:
        local.append(f"threads={max(1, cores() // workers)}")
    if raw.explicit("shard_num", ServerSettings) is None:
        local.append(f"shard_num={max(1, cores() // (2 * servers))}")
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def relay(name: str, line: str) -> None:
        if line.startswith(OWN_ERROR) or is_object(line):  # it has its process's name
            lines.put(line)
        elif found := _LOGGED.match(line):
            stamp = f"{found[1]} " if verbose else ""
            lines.put(stamp + labelled(name, line[found.end() :]))
        else:
            lines.put(labelled(name, line))

    master = raw.build(MasterSettings, also_known=known_classes(raw))
    launcher = Launcher(
        config,
        [*local, *overrides],
        servers=servers,
        workers=workers,
        revives=master.on_node_loss == "recover",
        main=main,
        called=command_line(sys.argv[1:]),
        on_line=relay,
    )
    trust = Trust.of(master, secret=launcher.secret)
    terminal = is_live(sys.stderr)
    entry = raw.explicit("worker_class", JobSettings)
    assert entry is not None
    job = job or next((n for n, path in models.CLASSES.items() if path == entry.value), "")
    of_job = load_class(entry.value, entry.origin).Settings
    own = (MasterSettings, ServerSettings, WorkerSettings, of_job)
    texts = [text for _, text in remarks(raw, "this job", own)] + without_effect(raw)

    @functools.cache
    def display() -> Progress:
        # Imported once the cluster forms: the processes start without it.
        from snailps.cli.progress import Progress

        made = Progress(sys.stderr, terminal=terminal, verbose=verbose, hint=HINT)
        for text in texts:
            made.say(text)
        return made

    interrupts: list[int] = []
    page: PageProcess | None = None

    def interrupt(number: int, frame: types.FrameType | None) -> None:
        interrupts.append(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # nohup ignores it
        numbers.append(signal.SIGHUP)  # the terminal is closed
    old = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        launcher.start(lambda: bool(interrupts))
        if launcher.address:
            if verbose or not terminal:
                doors = f"--watch{_doors(launcher, master)}" if verbose else "-w"
                display().say(f"to look closer: snailps status {doors}")
            if ui:
                page = PageProcess(launcher.address, master)
                page.tell(lines.put)
            _watch(launcher, trust, display(), lines, interrupts)
    except MasterEnded:
        pass
    finally:
        if launcher.address and launcher.poll() is None:
            launcher.interrupt()
            launcher.interrupt()
        launcher.end(END_S if len(interrupts) <= PATIENCE else LOOK_S)
        if page is not None:
            page.close()
        killed = (launcher.poll() or 0) < 0  # then the errors of the others add nothing
        errors = []
        progress = display()
        while not lines.empty():
            line = lines.get()
            if not line.startswith(OWN_ERROR):
                progress.say(line)
            elif not killed:
                errors.append(line)
        figures = _figures(launcher.output())
        progress.validate(figures.get("validation", {}))
        last = progress.last
        ending = None
        if figures or (last is not None and last["phase"] in _AT_WORK and not killed):
            from snailps.cli.view import ending_of

            ending = ending_of(
                figures,
                job=job or (last["job_name"] if last is not None else ""),
                status=last,
                losses=progress.losses,
                kept=kept,
                why="\n".join(line.removeprefix(OWN_ERROR) for line in errors),
            )
        if errors and not (ending is not None and terminal):
            for line in errors:
                progress.say(line)
        progress.close(ending)
        for number, handler in old.items():
            # After an interrupt this process is ending: another must not change its exit code.
            signal.signal(number, signal.SIG_IGN if interrupts else handler)
    code = launcher.poll()
    if figures:
        figures["peak_rss_mb"] = round(figures["peak_rss_mb"] + peak_rss_mb(), 1)
        if as_json:
            print_json(figures)
        elif "test" in figures and not (terminal and sys.stdout.isatty()):  # else in the panel
            print_figures(figures["test"])
    if code is None or code < 0:  # ended by a signal: ours before it had a handler, or another
        if interrupts:
            when = "and ended by force" if launcher.address else "while starting"
            typer.echo(f"snailps: interrupted {when}; nothing was saved", err=True)
            return EXIT_INTERRUPTED
        how = f"was killed by {signal_name(-code)}" if code else "does not end"
        raise ClusterError(
            f"the master {how}, so the job has ended: if it had checkpoints, the same command "
            "continues from the newest. If memory was short, the kernel's log says so"
        )
    return code


def without_effect(raw: RawConfig) -> list[str]:
    """Remarks on ``--set`` settings that a cluster on this machine sets itself."""
    how = {
        "master_addr": "the master takes any free port",
        "expected_node_num": "--servers and --workers give it",
        "expected_servers": "--servers gives it",
    }
    entries = [entry for entry in raw.entries if entry.origin.startswith("--set ")]
    return [
        f"{entry.origin}: {entry.key} has no effect in a cluster on this machine: {how[entry.key]}"
        for entry in entries
        if entry.key in how
    ]


def _figures(text: str) -> dict[str, Any]:
    """The master's final figures; empty if it was killed before."""
    try:
        figures: dict[str, Any] = json.loads(text)
    except ValueError:
        return {}
    return figures


def _doors(launcher: Launcher, master: MasterSettings) -> str:
    """Options with which another command connects to this master."""
    needed = {"master_addr": launcher.address, "secret_file": master.secret_file, "tls": master.tls}
    return "".join(
        f" --set {shlex.quote(f'{name}={value}')}" for name, value in needed.items() if value
    )


class _StatusLine:
    """The master's status over its own connection; each call has a time limit."""

    def __init__(self, address: str, trust: Trust) -> None:
        self._trust = trust
        self._address = parse_addr(address, "the master's address")
        self._control: ControlClient | None = None
        self._asked: Future[messages.Message] | None = None

    def look(self, limit_s: float) -> Status:
        """The answer to this request, or to an earlier one that timed out.

        A `WaitTimeout` means: try again; any other error, that the master has closed the
        connection.
        """
        if self._control is None:
            self._control = visit(self._address, max(limit_s, DIAL_S), self._trust)
        if self._asked is None:
            self._asked = self._control.call_async(messages.Ask("status"))
        answer = self._control.result(self._asked, limit_s, "Ask")
        self._asked = None
        assert isinstance(answer, messages.Report)
        return answer.data  # type: ignore[return-value]

    def close(self) -> None:
        """Close the connection; the next `look` opens another one."""
        if self._control is not None:
            self._control.close()
        self._control = self._asked = None


def _watch(
    launcher: Launcher,
    trust: Trust,
    progress: Progress,
    lines: queue.SimpleQueue[str],
    interrupts: list[int],
) -> None:
    """Show the master's status until it ends, or its connection has been closed too long."""
    asked = 0
    status: Status | None = None
    heard_at = time.monotonic()
    lost_at: float | None = None
    with contextlib.closing(_StatusLine(launcher.address, trust)) as line:
        while len(interrupts) <= PATIENCE:
            if launcher.poll() is not None:
                if interrupts or not launcher.restart_killed([0], lambda: bool(interrupts)):
                    return
                line.close()
                lost_at = None
            while asked < len(interrupts):
                asked += 1
                launcher.interrupt()
            while not lines.empty():
                progress.say(lines.get())
            now = time.monotonic()
            if lost_at is not None:
                # The master is ending and reports why itself.
                if now - lost_at > ENDING_S:
                    return
                launcher.wait(LOOK_S)
                continue
            try:
                status = line.look(LOOK_S)
            except WaitTimeout:
                if now - heard_at > SILENT_S and status is not None:
                    # Suspended, or swapping; the nodes decide when that is too long.
                    progress.update({**status, "message": "the master does not answer"})
                continue
            except SnailError:
                lost_at = now
                continue
            heard_at = time.monotonic()
            if status["phase"] in STARTING:
                launcher.check()
            if status["phase"] not in ("stopping", "done", "failed"):
                if status["phase"] in REPLACING and not interrupts:
                    launcher.restart_killed(range(1, len(launcher.children)))
                progress.update(status)
            launcher.wait(LOOK_S)
