"""How commands reach a master: its status, and what it takes to connect.

    Run, or an address, with the user's files -> Trust -> ask -> Status

Imports connections only once there is a master to ask.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from snailps.cli.options import connection_settings
from snailps.config import ClusterSettings, RawConfig
from snailps.errors import ConfigError, ConnectionLost, WaitTimeout
from snailps.node.run_registry import Run, trust_at

if TYPE_CHECKING:
    from snailps.node.status import Status
    from snailps.transport.security.trust import Trust

DIAL_S = 5.0
_CREDENTIALS = ("secret_file", "tls")


def ask(address: str, limit_s: float = DIAL_S, trust: Trust | None = None) -> Status:
    """The status of the master at `address`, or a `SnailError` after `limit_s` seconds."""
    from snailps.node.status_line import StatusLine
    from snailps.transport.security.trust import OPEN

    try:
        with contextlib.closing(StatusLine(address, trust or OPEN)) as line:
            return line.look(limit_s)
    except (ConnectionLost, WaitTimeout) as error:
        raise type(error)("\n".join([str(error), *waits_text(address)])) from None


def waits_text(address: str = "") -> list[str]:
    """Lines on the processes of this machine that wait for a master."""
    from snailps.node.master_waits import waiting_for

    return [f"  waits for it: {line}" for line in waiting_for(address)]


def trust_of(run: Run) -> Trust:
    """How to connect to a run's master: with its own secret, or the files it was started with."""
    from snailps.transport.security.trust import VARIABLE, Trust

    if run.secret:
        return Trust(run.secret.encode())
    if run.secured and not (run.secret_file or run.tls or os.environ.get(VARIABLE)):
        raise ConfigError(
            f"run {run.number} asks for a secret that was not given as a file: set {VARIABLE}, "
            "or give --set secret_file=PATH"
        )
    return Trust.of(ClusterSettings(secret_file=run.secret_file, tls=run.tls))


def trust_for(run: Run, raw: RawConfig) -> Trust:
    """How to connect to a run: with the user's files, else with those it was started with."""
    if any(raw.explicit(key, ClusterSettings) for key in _CREDENTIALS):
        return trust_at(run.address, connection_settings(raw))
    return trust_of(run)
