"""``snailps status``: shows a running cluster, or how the last run ended.

RunRegistry, or master_addr -> master -> Ask -> Status -> printing -> standard output, once or every
`--interval` seconds

Chooses the run and follows it over restarts of its master; `printing` and `view` show it.  Imports
lazily, so that "nothing runs" is printed at once.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from snailps.cli import jobs
from snailps.cli.masters import ask, trust_for, waits_text
from snailps.cli.options import ConfigOption, SetOption, connection_settings, read_config
from snailps.cli.printing import is_live, page_lines, page_picture, print_json
from snailps.config import ClusterSettings, RawConfig, parse_addr
from snailps.errors import (
    EXIT_FAILED,
    EXIT_OK,
    ProtocolError,
    RemoteError,
    SnailError,
)
from snailps.node.run_registry import Run, RunRegistry, birth_of, trust_at

if TYPE_CHECKING:
    from snailps.node.status import Status
    from snailps.transport.security.trust import Trust

LOOK_S = 0.5
"""Seconds between checks for a run that is to begin, or whose master is to be restarted."""
PROBE_S = 0.1


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="Number of the run in snailps jobs, its output, or the master's address.",
            show_default=False,
            autocompletion=jobs.runs_like,
        ),
    ] = None,
    pid: Annotated[int, typer.Option("--pid", hidden=True, help="Number of a process.")] = 0,
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with all details.", metavar="")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Update until the job ends.", metavar="")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Also rows and memory of each table.", metavar=""),
    ] = False,
    interval_s: Annotated[
        float, typer.Option("--interval", help="Seconds between updates of --watch.", min=0.1)
    ] = 1.0,
) -> None:
    """Show the state of a running cluster: progress, processes, shards, waits.

    By default it shows your job on this machine; if several run, name one, as in `snailps status
    7`. For a job on another machine add --set master_addr=HOST:PORT. Each wait says what is waited
    for and how long it has lasted. With --watch it also waits for a master that is not running yet,
    and exits with the job's exit code. If no job runs, it shows how the last one ended.

    For example: snailps status --watch
    """
    raw = read_config(config, sets)
    settings, registry = connection_settings(raw), RunRegistry()
    address = ""
    if name is None and (raw.explicit("master_addr", ClusterSettings) or config is not None):
        address = settings.master_addr
    elif (
        name is not None and ":" in name and not any(one.address == name for one in registry.runs())
    ):
        address = name
    if address:
        trust = trust_at(address, settings)
        if watch:
            watch_master(address, interval_s, trust, as_json=as_json)
        _show(ask(address, trust=trust), as_json=as_json, tables=verbose)
        return
    if pid:
        run: Run | None = _of_process(pid, registry)
    else:
        run = _chosen(name, registry, watch=watch, as_json=as_json)
    if run is None:
        _end_without(registry, raw, as_json=as_json)
    elif watch:
        raise typer.Exit(follow(run, registry, raw, interval_s, as_json=as_json))
    elif registry.state(run) != "running":
        _show_end(run, registry, as_json=as_json)
    else:
        _show(ask(run.address, trust=trust_for(run, raw)), as_json=as_json, tables=verbose)


def _chosen(name: str | None, registry: RunRegistry, *, watch: bool, as_json: bool) -> Run | None:
    """Choose the run to show: the one that `name` means, or the single one that runs."""
    if name is not None:
        return jobs.find(name, registry.runs())
    running = registry.going_on()
    is_said = False
    while watch and not running:
        if not is_said:
            typer.echo("no job runs on this machine; waiting for one (Ctrl-C ends this)", err=True)
            is_said = True
        time.sleep(LOOK_S)
        running = registry.going_on()
    if len(running) > 1 and not as_json:
        typer.echo("\n".join(jobs.table_of(running, registry, jobs.columns_here())))
    return jobs.only_one(running, "name one: snailps status RUN, as in snailps status {0.number}")


def _of_process(pid: int, registry: RunRegistry) -> Run:
    """Wait until the process `pid` has registered a run; an error if it ends without one."""
    lives = True
    while True:
        run = next((one for one in reversed(registry.runs()) if one.pid == pid), None)
        if run is not None:
            return run
        if not lives:
            raise SnailError(f"process {pid} has ended without starting a job: its log says why")
        lives = birth_of(pid) is not None
        time.sleep(LOOK_S)


def watch_master(address: str, interval_s: float, trust: Trust, *, as_json: bool) -> NoReturn:
    """Show the master's status until Ctrl-C: a live page on a terminal, else blocks of lines.

    While no master runs at the address, it waits and says so (on standard error if the output is
    JSON).  An error if the process there is not a master, or refuses this one.
    """
    while True:
        _watch(address, interval_s, trust, lambda: "", as_json=as_json)


def follow(
    run: Run, registry: RunRegistry, raw: RawConfig, interval_s: float, *, as_json: bool
) -> int:
    """Show a run's status until the run ends, over restarts of its master; return its exit code."""
    now = run

    def gone() -> str:
        """Return "over" if the run has ended, "moved" if its master has another address now.

        Empty: the master is to be waited for.
        """
        nonlocal now
        entry = {other.number: other for other in registry.runs()}.get(run.number)
        if entry is None:
            return "over"
        before, now = now, entry
        if registry.state(entry) == "running":
            return "" if entry.address == before.address else "moved"
        return "" if registry.restarts(entry) else "over"

    reason = "" if registry.state(run) == "running" or registry.restarts(run) else "over"
    while reason != "over":
        reason = _watch(now.address, interval_s, trust_for(now, raw), gone, as_json=as_json)
    if registry.state(now) == "running":  # its entry was removed meanwhile
        return EXIT_OK
    _show_end(now, registry, as_json=as_json)
    return now.code if registry.state(now) == "ended" else EXIT_FAILED


def _watch(
    address: str, interval_s: float, trust: Trust, gone: Callable[[], str], *, as_json: bool
) -> str:
    """Show a master's status until `gone` gives a reason to stop; return that reason."""
    from snailps.cli.figures import seconds_text
    from snailps.cli.progress import Eta
    from snailps.node.status_line import StatusLine

    line, eta = StatusLine(address, trust), Eta()
    seen_at = begun = time.monotonic()
    with contextlib.closing(line), screen_of(as_json=as_json) as (show, say):
        while True:
            begin = time.monotonic()
            try:
                status = line.look(max(interval_s, 1.0))
            except (RemoteError, ProtocolError):
                raise
            except SnailError as error:
                line.close()
                reason = gone()
                if reason:
                    return reason
                since = "it was last heard" if seen_at > begun else "the beginning"
                away = seconds_text(time.monotonic() - seen_at)
                lines = [f"waiting for the master at {address}, {away} since {since}: {error}"]
                say("\n".join(lines + waits_text(address)))
            else:
                seen_at = time.monotonic()
                eta.note(seen_at, status["phase"], status["progress"])
                if status["eta_s"] is None and status["phase"] in ("survey", "training"):
                    status["eta_s"] = eta.seconds(seen_at)
                show(status)
            time.sleep(max(0.0, interval_s - (time.monotonic() - begin)))


@contextlib.contextmanager
def screen_of(*, as_json: bool) -> Iterator[tuple[Callable[[Status], None], Callable[[str], None]]]:
    """Yield two functions: one shows a status, the other one a line on waiting."""
    if as_json or not is_live(sys.stdout):
        yield partial(_show, as_json=as_json, end="\n"), partial(typer.echo, err=as_json)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    with Live(console=console, auto_refresh=False, screen=True) as live:
        yield (
            lambda status: live.update(page_picture(status, *reversed(console.size)), refresh=True),
            lambda text: live.update(Text(text, style="yellow"), refresh=True),
        )


def _end_without(registry: RunRegistry, raw: RawConfig, *, as_json: bool) -> NoReturn:
    """Show the master at the default address, or else how this user's last run ended."""
    settings = ClusterSettings()
    host, port = parse_addr(settings.master_addr, "master_addr")
    with contextlib.suppress(OSError):  # another user's master may run there, or a container's
        socket.create_connection((host, port), PROBE_S).close()
        trust = trust_at(settings.master_addr, connection_settings(raw))
        _show(ask(settings.master_addr, trust=trust), as_json=as_json)
        raise typer.Exit()
    last = registry.last()
    typer.echo("none of your jobs runs on this machine", err=as_json)
    for line in waits_text():
        typer.echo(line, err=as_json)
    for trouble in registry.troubles():
        typer.echo(f"cannot look for jobs in {trouble}", err=True)
    if last is not None:
        _show_end(last, registry, as_json=as_json)
    earlier = "; earlier jobs: snailps jobs" if len(registry.runs()) > 1 else ""
    typer.echo(
        f"a job on another machine: snailps status --set master_addr=HOST:PORT{earlier}",
        err=as_json,
    )
    raise typer.Exit(EXIT_FAILED)


def _show_end(run: Run, registry: RunRegistry, *, as_json: bool) -> None:
    if as_json:
        print_json(jobs.record_of(run, registry, None))
    else:
        lines = jobs.ended_lines(run, registry)
        if registry.state(run) == "killed":
            lines += waits_text(run.address)
        typer.echo("\n".join(lines))


def _show(status: Status, *, as_json: bool, tables: bool = False, end: str = "") -> None:
    if as_json:
        print_json(status)
    else:
        typer.echo("\n".join(page_lines(status, tables=tables)) + end)
