"""The process from which a session's processes are forked: imports what servers and workers need.

The master's modules are imported in its fork: the others need not wait for them.  Models that the
session has imported are imported here, once, and not by the master and by each worker.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Sequence

from snailps.cli import server, worker  # noqa: F401 (imported once, for all forks)
from snailps.cli.entry import main
from snailps.local.fork_server import serve


def command(socket_fd: int, models: Sequence[str], room: str) -> None:
    """Fork processes as the owner of the socket asks, until it closes."""
    for name in models:
        importlib.import_module(name)
    with socket.socket(fileno=socket_fd) as requests:
        serve(requests, main)
    os._exit(0)  # no code of users has run here, and Python would take 500 modules down
