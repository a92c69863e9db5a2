"""How a process of a cluster reads files that only its driver has.

    driver:HOST:PORT/NUMBER/BYTES -> RemoteFile, with this process's secret and certificates

Joins the names of such files, in `data`, to the connections of `transport`.
"""

from __future__ import annotations

from collections.abc import Callable

from snailps.config import parse_addr
from snailps.files.driver_files import use
from snailps.transport.control.files import RemoteFile
from snailps.transport.handshake import Role
from snailps.transport.security.trust import Trust


def read_driver_files(
    role: Role, trust: Trust, limit_s: float, give_up: Callable[[], bool] = lambda: False
) -> None:
    """Let this process read a driver's files from now on, as a member of its cluster."""

    def opened(address: str, number: str) -> RemoteFile:
        where = parse_addr(address, "the address of the data")
        return RemoteFile(where, number, role=role, trust=trust, limit_s=limit_s, give_up=give_up)

    use(opened)
