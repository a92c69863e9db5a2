"""``snailps local``: a whole cluster of real processes on this machine, shown while it runs."""

from __future__ import annotations

import json
import queue
import signal
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from snailps.cli.common import known_classes, read_config
from snailps.cli.progress import Progress
from snailps.config import (
    JobSettings,
    MasterSettings,
    RawConfig,
    ServerSettings,
    WorkerSettings,
    parse_addr,
)
from snailps.errors import ConfigError, SnailError
from snailps.roles.local import Launcher, MasterEnded
from snailps.roles.node import cores, peak_rss_mb
from snailps.roles.status import Status
from snailps.roles.worker import load_class
from snailps.transport import messages
from snailps.transport.control import ControlClient, dial
from snailps.transport.session import Channel, Role

LOOK_S = 0.2
OWN_ERROR = "snailps: error: "

ServersOption = Annotated[int, typer.Option(min=1, max=64, help="Server processes.")]
WorkersOption = Annotated[int, typer.Option(min=1, max=256, help="Worker processes.")]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the run's figures as one JSON object, last of all.")
]


def command(
    config: Annotated[Path, typer.Option("-c", "--config", help="A .conf file with a job.")],
    servers: ServersOption = 1,
    workers: WorkersOption = 1,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One setting, over the file."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Runs the job of a .conf file on a cluster of real processes on this machine."""
    raw = read_config(config, sets)
    entry = raw.explicit("worker_class", JobSettings)
    if entry is None:
        raise ConfigError(
            f"{config}: no worker_class, so there is no job; see config/fasttext.conf"
        )
    cls = load_class(entry.value, entry.origin)
    raw.build(cls.Settings, also_known=known_classes(raw))
    raise typer.Exit(
        run_local(raw, str(config), sets or [], servers=servers, workers=workers, as_json=as_json)
    )


def run_local(
    raw: RawConfig,
    config: str | None,
    overrides: Sequence[str],
    *,
    servers: int,
    workers: int,
    as_json: bool,
    figures_to: list[dict[str, Any]] | None = None,
) -> int:
    """Starts a cluster, shows it, and waits for its end; returns the exit code.

    Parameters
    ----------
    raw : RawConfig
        All settings, already checked; only looked at for what has a local default.
    config, overrides
        What the processes are started with.
    figures_to : list, optional
        Gets the figures of the run.
    """
    for cls in (MasterSettings, ServerSettings, WorkerSettings):
        raw.build(cls, also_known=known_classes(raw))
    given = {entry.key for entry in raw.entries}
    local = ["master_addr=127.0.0.1:16831", "listen_addr=127.0.0.1:0"]
    if "log_level" not in given:
        local.append("log_level=warning")
    if "threads" not in given:
        local.append(f"threads={max(1, cores() // workers)}")
    if "shard_num" not in given:
        local.append(f"shard_num={max(1, cores() // (2 * servers))}")
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def relay(name: str, line: str) -> None:
        lines.put(line if line.startswith(OWN_ERROR) else f"{name}: {line}")

    launcher = Launcher(
        config, [*local, *overrides], servers=servers, workers=workers, on_line=relay
    )
    progress = Progress(sys.stderr, terminal=sys.stderr.isatty())
    interrupts: list[int] = []

    def interrupt(number: int, frame: types.FrameType | None) -> None:
        interrupts.append(number)

    old = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        launcher.start()
        _watch(launcher, progress, lines, interrupts)
    except MasterEnded:
        pass
    finally:
        if launcher.children and launcher.poll() is None:
            launcher.interrupt()
            launcher.interrupt()
        launcher.end()
        while not lines.empty():
            progress.say(lines.get())
        progress.close()
        for number, handler in old.items():
            signal.signal(number, handler)
    code = launcher.poll()
    text = launcher.output()
    figures: dict[str, Any] = json.loads(text) if text.strip() else {}
    if figures:
        figures["peak_rss_mb"] = round(figures["peak_rss_mb"] + peak_rss_mb(), 1)
        if figures_to is not None:
            figures_to.append(figures)
        if as_json:
            typer.echo(json.dumps(figures))
    return 1 if code is None or code < 0 else code


def _watch(
    launcher: Launcher,
    progress: Progress,
    lines: queue.SimpleQueue[str],
    interrupts: list[int],
) -> None:
    """Shows the master's status until the master has ended."""
    asked = 0
    control: ControlClient | None = None
    try:
        while launcher.poll() is None:
            while asked < len(interrupts):
                asked += 1
                launcher.interrupt()
            while not lines.empty():
                progress.say(lines.get())
            try:
                if control is None:
                    address = parse_addr(launcher.address, "the master's address")
                    sock = dial(
                        address, Channel.CONTROL, Role.DRIVER, whom="the master", limit_s=5.0
                    )
                    control = ControlClient(sock, lambda message: None, lambda why: None)
                    control.start()
                answer = control.call(messages.Ask("status"), 5.0)
            except SnailError:
                # The master is ending, and says why itself.
                launcher.children[0].process.wait(20.0)
                return
            assert isinstance(answer, messages.Report)
            status: Status = answer.data  # type: ignore[assignment]
            if status["phase"] == "forming":
                launcher.check()
            if status["phase"] not in ("stopping", "done", "failed"):
                progress.update(status)
            launcher.wait(LOOK_S)
    finally:
        if control is not None:
            control.close()
