"""``snailps status``: what a running cluster does, and who waits for whom.

master -> Ask -> Status -> lines on standard output
"""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from snailps.cli.common import ConfigOption, SetOption, known_classes, read_config
from snailps.cli.printing import print_json
from snailps.cli.progress import count_text, line_of
from snailps.config import ClusterSettings, parse_addr
from snailps.errors import ProtocolError
from snailps.roles.status import NodeStatus, Status
from snailps.transport import messages
from snailps.transport.control import ControlClient, dial
from snailps.transport.session import Channel, Role
from snailps.transport.trust import OPEN, Trust

DIAL_S = 5.0


def command(
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="As JSON, with all that is known.", metavar="")
    ] = False,
) -> None:
    """Shows what a running cluster does: progress, processes, shards, and who waits for whom.

    Asks the master at master_addr. With clocks (consistency ssp, bsp) a worker that waits says
    for which worker, and how long by now.

    For example: snailps status --set master_addr=node1:16831
    """
    raw = read_config(config, sets)
    settings = raw.build(ClusterSettings, also_known=known_classes(raw))
    status = ask(settings.master_addr, trust=Trust.of(settings))
    if as_json:
        print_json(dict(status))
        return
    typer.echo(line_of(status, status["eta_s"]))
    for line in [*table_of(status), *shards_of(status)]:
        typer.echo(line)


def ask(address: str, limit_s: float = DIAL_S, trust: Trust = OPEN) -> Status:
    """The status of the master at `address`.

    Raises
    ------
    SnailError
        Nobody answers there within `limit_s` seconds, or it is no master.
    """
    sock = dial(
        parse_addr(address, "master_addr"),
        Channel.CONTROL,
        Role.DRIVER,
        whom="the master",
        limit_s=limit_s,
        trust=trust,
    )
    control = ControlClient(sock, lambda message: None, lambda why: None)
    control.start()
    with contextlib.closing(control):
        answer = control.call(messages.Ask("status"), limit_s)
    if not isinstance(answer, messages.Report):
        raise ProtocolError(f"expected a Report, got {type(answer).__name__}")
    return answer.data  # type: ignore[return-value]


def table_of(status: Status) -> list[str]:
    """The processes, a line each, in columns."""
    rows: list[tuple[str, ...]] = [
        ("process", "host:pid", "state", "clock", f"{status['unit']}/s", "waits for")
    ]
    rows += [_row(node) for node in status["nodes"]]
    return _columns(rows)


def shards_of(status: Status) -> list[str]:
    """The shards, a line each, in columns: who serves them, who stands by; none while forming."""
    if not status["shards"]:
        return []
    rows: list[tuple[str, ...]] = [("shard", "primary", "standby", "state", "behind")]
    for shard in status["shards"]:
        state = shard["state"]
        if state == "seeding":
            state = f"copying, {shard['seeded']:.0%}"
        standby = f"server {shard['standby']}" if shard["standby"] else "none"
        lag = shard["lag_bytes"]
        behind = f"{lag / 1e6:.1f} MB, {shard['lag_s']:.1f} s" if lag else ""
        rows.append((str(shard["shard"]), f"server {shard['primary']}", standby, state, behind))
    return ["", *_columns(rows)]


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]
    return [
        "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[-1]])
        .rstrip()
        for row in rows
    ]  # fmt: skip


def _row(node: NodeStatus) -> tuple[str, ...]:
    return (
        f"{node['role']} {node['id']}",
        f"{node['host']}:{node['pid']}",
        node["state"],
        "" if node["clock"] is None else str(node["clock"]),
        "" if node["rate"] is None else count_text(node["rate"]),
        node["waits"],
    )
