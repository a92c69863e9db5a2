"""``snailps server``: runs a server process; `snailps.server` hosts its shards."""

from __future__ import annotations

from snailps.cli.common import run_node
from snailps.cli.options import ConfigOption, DocumentFdOption, SetOption
from snailps.config import ServerSettings
from snailps.server.process import Server


def command(
    config: ConfigOption = None, sets: SetOption = None, document_fd: DocumentFdOption = -1
) -> None:
    """Hold rows in memory and answer pulls and pushes, with one thread and port per shard.

    Joins the master at master_addr and runs until the job ends.

    For example: snailps server --set master_addr=node1:16831
    """
    run_node(
        ServerSettings,
        lambda settings, raw, secret: Server(settings, secret),
        config,
        sets,
        document_fd,
    )
