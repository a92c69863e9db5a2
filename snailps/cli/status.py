"""``snailps status``: the progress of a running cluster, and what each process waits for.

master -> Ask -> Status -> overview -> standard output, once or every `--interval` seconds
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from snailps.cli.common import ConfigOption, SetOption, known_classes, read_config
from snailps.cli.overview import lines_of, picture_of
from snailps.cli.printing import print_json
from snailps.cli.progress import Eta, seconds_text
from snailps.config import ClusterSettings, parse_addr
from snailps.errors import ProtocolError, RemoteError, SnailError
from snailps.node.status import Status
from snailps.transport import messages
from snailps.transport.control import visit
from snailps.transport.security.trust import OPEN, Trust

DIAL_S = 5.0


def command(
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="As JSON, with all details.", metavar="")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Repeatedly, until Ctrl-C.", metavar="")
    ] = False,
    interval_s: Annotated[
        float, typer.Option("--interval", help="Between two updates of --watch, in s.", min=0.1)
    ] = 1.0,
) -> None:
    """Shows the state of a running cluster: progress, processes, shards, waits.

    Asks the master at master_addr. Each wait names what it is for and how long it has lasted. With
    --watch it waits for a master that is not running.

    For example: snailps status --watch --set master_addr=node1:16831
    """
    raw = read_config(config, sets)
    settings = raw.build(ClusterSettings, also_known=known_classes(raw))
    trust = Trust.of(settings)
    if watch:
        watch_master(settings.master_addr, interval_s, trust, as_json=as_json)
    status = ask(settings.master_addr, trust=trust)
    if as_json:
        print_json(dict(status))
    else:
        typer.echo("\n".join(lines_of(status)))


def ask(address: str, limit_s: float = DIAL_S, trust: Trust = OPEN) -> Status:
    """The status of the master at `address`.

    Raises
    ------
    SnailError
        No answer within `limit_s` seconds, or the process there is not a master.
    """
    with contextlib.closing(Line(address, limit_s, trust)) as line:
        return line.ask()


class Line:
    """A connection to a master, for repeated requests.

    Raises
    ------
    SnailError
        No answer from `address` within `limit_s` seconds.
    """

    def __init__(self, address: str, limit_s: float, trust: Trust) -> None:
        self._limit_s = limit_s
        self._control = visit(parse_addr(address, "master_addr"), limit_s, trust)

    def ask(self) -> Status:
        """The current status.

        Raises
        ------
        SnailError
            The connection is lost, or the master does not answer.
        """
        answer = self._control.call(messages.Ask("status"), self._limit_s)
        if not isinstance(answer, messages.Report):
            raise ProtocolError(f"expected a Report, got {type(answer).__name__}")
        return answer.data  # type: ignore[return-value]

    def close(self) -> None:
        """Closes the connection."""
        self._control.close()


def watch_master(address: str, interval_s: float, trust: Trust, *, as_json: bool) -> NoReturn:
    """Shows the master's status until Ctrl-C: a live page on a terminal, else blocks of lines.

    If the master is not running, says so (on standard error if the output is JSON) and waits.

    Raises
    ------
    RemoteError, ProtocolError
        The process there refuses us, or is not a master: waiting would not help.
    """
    show: Callable[[Status], None]
    if as_json:
        show = _show_json
        _watch(address, interval_s, trust, show, lambda text: typer.echo(text, err=True))
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        console = Console()
        with Live(console=console, auto_refresh=False, screen=True) as live:
            _watch(
                address,
                interval_s,
                trust,
                lambda status: live.update(picture_of(status, console.height), refresh=True),
                lambda text: live.update(Text(text, style="yellow"), refresh=True),
            )
    else:
        _watch(address, interval_s, trust, _show_lines, typer.echo)


def _watch(
    address: str,
    interval_s: float,
    trust: Trust,
    show: Callable[[Status], None],
    tell: Callable[[str], None],
) -> NoReturn:
    line: Line | None = None
    eta = Eta()
    seen_at = begun = time.monotonic()
    while True:
        begin = time.monotonic()
        try:
            if line is None:
                line = Line(address, max(interval_s, 1.0), trust)
            status = line.ask()
        except (RemoteError, ProtocolError):
            raise
        except SnailError as error:
            if line is not None:
                line.close()
                line = None
            since = "it was last heard" if seen_at > begun else "the beginning"
            away = seconds_text(time.monotonic() - seen_at)
            tell(f"waiting for the master at {address}, {away} since {since}: {error}")
        else:
            seen_at = time.monotonic()
            eta.note(seen_at, status["phase"], status["progress"])
            if status["eta_s"] is None and status["phase"] in ("survey", "training"):
                status["eta_s"] = eta.seconds(seen_at)
            show(status)
        time.sleep(max(0.0, interval_s - (time.monotonic() - begin)))


def _show_json(status: Status) -> None:
    print_json(dict(status))
    sys.stdout.flush()


def _show_lines(status: Status) -> None:
    typer.echo("\n".join([*lines_of(status), ""]))
    sys.stdout.flush()
