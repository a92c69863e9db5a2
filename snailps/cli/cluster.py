"""``snailps cluster``: asks the master of a running cluster to change it.

drain: master_addr, a server's number -> Drain -> Ok once the server has left
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Annotated

import typer

from snailps.cli.jobs import only_one
from snailps.cli.known_classes import known_classes
from snailps.cli.masters import DIAL_S, ask, trust_for
from snailps.cli.options import ConfigOption, SetOption, read_config
from snailps.config import ClusterSettings, parse_addr
from snailps.errors import SnailError, WaitTimeout
from snailps.node.run_registry import RunRegistry, trust_at
from snailps.transport import messages
from snailps.transport._awake import awake_s
from snailps.transport.control import Trust, visit

app = typer.Typer(no_args_is_help=True, help="Remove a server from a running cluster.")

LOOK_S = 1.0


@app.callback()
def _group() -> None:
    pass


@app.command("drain")
def drain_command(
    server: Annotated[
        int, typer.Argument(help="Number of the server, as snailps status shows it.")
    ],
    config: ConfigOption = None,
    sets: SetOption = None,
    limit_s: Annotated[
        float, typer.Option("--timeout", help="Seconds to wait until the server left.", min=1.0)
    ] = 3600.0,
) -> None:
    """Remove a server from a running cluster; its shards move to others while training continues.

    Returns when the server has ended. By default the cluster is your job on this machine; for
    another one add --set master_addr=HOST:PORT. SIGTERM to the server's process does the same.

    For example: snailps cluster drain 2
    """
    raw = read_config(config, sets)
    settings = raw.build(ClusterSettings, also_known=known_classes(raw))
    address, trust = settings.master_addr, None
    if config is None and raw.explicit("master_addr", ClusterSettings) is None:
        how = "name one, as in --set master_addr={0.address}"
        run = only_one(RunRegistry().running(), how)
        if run is not None:
            address, trust = run.address, trust_for(run, raw)
    drain(
        address,
        trust_at(address, settings) if trust is None else trust,
        server,
        limit_s,
        on_wait=lambda text: typer.echo(text, err=True),
    )
    typer.echo(f"server {server} has left")


def drain(
    address: str,
    trust: Trust,
    server: int,
    limit_s: float,
    on_wait: Callable[[str], None] = lambda text: None,
) -> None:
    """Ask the master at an address to drain a server, and wait until the server has left.

    Raises a `SnailError` if there is no such server, if no server can take its shards, or after
    `limit_s` seconds; after these the move continues without this command.
    """
    control = visit(parse_addr(address, "master_addr"), DIAL_S, trust)
    with contextlib.closing(control):
        answer = control.call_async(messages.Drain(server))
        until, shown = awake_s() + limit_s, ""
        while not answer.done():
            if awake_s() > until:
                raise WaitTimeout(
                    f"server {server} has not left within {limit_s:.0f} s: its shards are still "
                    "being moved. snailps status shows the progress"
                )
            text = _progress_text(address, trust, server)
            if text and text != shown:
                on_wait(text)
                shown = text
            threading.Event().wait(LOOK_S)
        answer.result()


def _progress_text(address: str, trust: Trust, server: int) -> str:
    """Say how many shards and standbys a server still has; empty if the master does not answer."""
    with contextlib.suppress(SnailError):
        shards = ask(address, trust=trust)["shards"]
        primaries = sum(shard["primary"] == server for shard in shards)
        standbys = sum(shard["standby"] == server for shard in shards)
        return f"server {server} has {primaries} shards and {standbys} standbys left"
    return ""
