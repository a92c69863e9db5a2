"""Asks a master for its status, and decides with which secret or certificates to connect.

    Run, or an address, with the user's files -> Trust -> ask -> Status

Imports connections only when there is a master to ask, so that "nothing runs" appears at once.
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
    """Get the status of the master at `address`; a `SnailError` after `limit_s` seconds.

    If no master answers, the error also lists the processes of this machine that wait for it.
    """
    from snailps.node.status_line import StatusLine
    from snailps.transport.security.trust import OPEN

    try:
        with contextlib.closing(StatusLine(address, trust or OPEN)) as line:
            return line.look(limit_s)
    except (ConnectionLost, WaitTimeout) as error:
        raise type(error)("\n".join([str(error), *waits_text(address)])) from None


def waits_text(address: str = "") -> list[str]:
    """List the processes of this machine that wait for a master, a line each."""
    from snailps.node.master_waits import waiting_for

    return [f"  waits for it: {line}" for line in waiting_for(address)]


def trust_of(run: Run) -> Trust:
    """Trust a run's master by the secret in its entry, or by the files it was started with."""
    from snailps.transport.security.trust import VARIABLE, Trust

    if run.secret:
        return Trust(run.secret.encode())
    if run.secured and not (run.secret_file or run.tls or os.environ.get(VARIABLE)):
        raise ConfigError(
            f"run {run.number} has a secret that its master read from the environment: set "
            f"{VARIABLE} here, too, or add --set secret_file=PATH"
        )
    return Trust.of(ClusterSettings(secret_file=run.secret_file, tls=run.tls))


def trust_for(run: Run, raw: RawConfig) -> Trust:
    """Trust a run's master by the files that the user names, else as `trust_of` does."""
    if any(raw.explicit(key, ClusterSettings) for key in _CREDENTIALS):
        return trust_at(run.address, connection_settings(raw))
    return trust_of(run)
