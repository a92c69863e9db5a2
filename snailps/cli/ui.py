"""``snailps ui``: serves a page that shows runs in the browser while they go on.

RunRegistry, or master_addr -> Run -> PageServer -> the page's address on standard output
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import types
from pathlib import Path
from typing import Annotated

import typer

from snailps.cli.jobs import find, runs_like
from snailps.cli.masters import trust_of
from snailps.cli.options import ConfigOption, SetOption, connection_settings, read_config
from snailps.cli.page_address import Shown
from snailps.config import ClusterSettings, parse_addr
from snailps.errors import EXIT_FAILED, ClusterError, ConfigError, SnailError
from snailps.local.fork import show
from snailps.monitor.access import check_token, new_token
from snailps.monitor.page_server import PageServer
from snailps.monitor.watcher import Ending, ShownRun
from snailps.node import run_registry
from snailps.node.run_registry import RunRegistry, trust_at
from snailps.outward import HIDDEN
from snailps.transport.control import Trust

LISTEN = "127.0.0.1:8087"
TOKEN_VARIABLE = "SNAILPS_UI_TOKEN"
GRACE_S = 1.5
"""At the end, seconds for open pages to fetch the last state."""


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="Number of the run in snailps jobs, or its output. By default all running ones.",
            show_default=False,
            autocompletion=runs_like,
        ),
    ] = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    listen: Annotated[
        str,
        typer.Option(help="Address of the page; port 0: any free port.", metavar="ADDR"),
    ] = LISTEN,
    token: Annotated[
        str,
        typer.Option(
            help="Token that readers need, instead of a random one. Other users can see it in the "
            "list of processes for a moment: better set SNAILPS_UI_TOKEN.",
            metavar="TOKEN",
        ),
    ] = "",
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token.", metavar="FILE")
    ] = None,
) -> None:
    """Serve a web page that shows runs live: cluster, curves, faults, settings, log.

    Open the printed address in a browser. The page shows your jobs on this machine, also those
    that begin later; for a job on another machine add --set master_addr=HOST:PORT. Other users
    need the token in the printed address, and other machines can connect only if --listen names an
    address that they reach. Ctrl-C ends the page; jobs continue.

    For example: snailps ui
    """
    raw = read_config(config, sets)
    settings, runs = connection_settings(raw), Runs(RunRegistry(), name)
    if name is None and (config is not None or raw.explicit("master_addr", ClusterSettings)):
        trust = trust_at(settings.master_addr, settings)
        runs = RunAtAddress(RunRegistry(), settings.master_addr, trust)
    host, port = parse_addr(listen, "--listen", port_optional=True)
    # A token on 127.0.0.1, too: other users of this machine can connect there.
    token = _chosen_token(token, token_file) or new_token()
    over = threading.Event()

    def end(number: int, frame: types.FrameType | None) -> None:
        over.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    try:
        page = PageServer(host, port, runs.runs, ending=runs.ending, token=token)
    except ClusterError:
        if listen != LISTEN:
            raise
        # Another page on this machine may use the default port: take any free one.
        page = PageServer(host, 0, runs.runs, ending=runs.ending, token=token)
    page.start()
    shown = Shown(page.url, sys.stdout.fileno())
    typer.echo(shown.line)
    over.wait()
    shown.close()
    page.close("the page's own process has ended", GRACE_S)


def _chosen_token(token: str, file: Path | None) -> str:
    """Take the token from the command line, a file or the environment; empty: there is none."""
    if token:
        # All users of the machine could see it in the list of processes until here: hide it.
        show([word.replace(token, HIDDEN) for word in sys.orig_argv])
        return token
    if file is None:
        return os.environ.get(TOKEN_VARIABLE, "")
    try:
        text = file.read_text().strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"--token-file: cannot read {file}: {why}") from None
    check_token(text)
    return text


class Runs:
    """This user's runs on this machine, or the one whose number or output is `name`."""

    def __init__(self, registry: RunRegistry, name: str | None = None) -> None:
        self._registry = registry
        self._number = None if name is None else find(name, registry.runs()).number

    def runs(self) -> list[ShownRun]:
        """List the runs on the page, the newest first."""
        shown = []
        for run in reversed(self._registered()):
            try:
                trust = trust_of(run)
            except SnailError:  # its secret cannot be read: the others are shown all the same
                continue
            shown.append(ShownRun(str(run.number), run.address, trust, run.model, run.output))
        return shown

    def ending(self, run: ShownRun) -> Ending | None:
        """Return how a run ended; None if it has not ended, or nothing is known of it."""
        for entry in self._registry.runs():
            if str(entry.number) == run.name:
                return self._ending(entry)
        return None

    def _registered(self) -> list[run_registry.Run]:
        if self._number is None:
            return self._registry.running()
        return [run for run in self._registry.runs() if run.number == self._number]

    def _ending(self, run: run_registry.Run) -> Ending | None:
        state = self._registry.state(run)
        if state == "ended":
            return Ending(run.code, run.verdict, run.figures)
        if state == "killed" and not self._registry.restarts(run):
            return Ending(EXIT_FAILED, "the master was killed")
        return None


class RunAtAddress(Runs):
    """The run whose master is at an address that the user named."""

    def __init__(self, registry: RunRegistry, address: str, trust: Trust) -> None:
        super().__init__(registry)
        self._run = ShownRun("run", address, trust)
        # An earlier run may have had the same address: its end is not this run's.
        self._ended_before = {run.number for run in registry.runs() if run.ended}

    def runs(self) -> list[ShownRun]:
        return [self._run]

    def ending(self, run: ShownRun) -> Ending | None:
        """Return how the run ended, if it was this user's on this machine; else None."""
        for entry in reversed(self._registry.runs()):
            if entry.address == run.address and entry.number not in self._ended_before:
                return self._ending(entry)
        return None
