"""``snailps server``: stores rows and answers pulls and pushes."""

from __future__ import annotations

from snailps.cli.common import (
    AddressFdOption,
    ConfigOption,
    SetOption,
    address_override,
    read_config,
    role_settings,
    run_node,
)
from snailps.config import ServerSettings
from snailps.server.process import Server


def command(
    config: ConfigOption = None, sets: SetOption = None, address_fd: AddressFdOption = -1
) -> None:
    """Stores rows in memory and answers pulls and pushes, with one thread and port per shard.

    Joins the master at master_addr and runs until the job ends.

    For example: snailps server --set master_addr=node1:16831
    """
    raw = read_config(config, [*(sets or []), *address_override(address_fd)])
    server = Server(role_settings(raw, ServerSettings, name="server", launched=address_fd >= 0))
    run_node(server, server.run)
