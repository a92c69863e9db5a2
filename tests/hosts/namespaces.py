"""Hosts for tests: network namespaces, each with an address and a home of its own.

They hang on a bridge in a namespace of its own, so that nothing of this machine's network is
touched.  `rsh` is a script that the tools take in the place of ssh.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from types import TracebackType

from waiting import LIMIT_S, until

"""How long a process that has ended may be seen, on a machine under load."""

RSH = """#!/bin/sh
# In the place of ssh: HOST SCRIPT.
host=$1
cd '{folder}/home/'"$host" && [ ! -e '{folder}/dead-'"$host" ] || {{
    echo "cannot reach $host" >&2
    exit 255
}}
HOME=$PWD exec ip netns exec "{tag}-${{host##*.}}" unshare --uts sh -c '
    echo "node${{0##*.}}" >/proc/sys/kernel/hostname
    exec sh -c "$1"' "$host" "$2"
"""


def ip(*words: str) -> None:
    """Runs the command of that name."""
    subprocess.run(["ip", *words], check=True, timeout=LIMIT_S)


class Namespaces:
    """Hosts 10.77.0.1 to 10.77.0.n.

    Parameters
    ----------
    folder : Path
        For their homes.
    number : int
    """

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.addresses = [f"10.77.0.{i + 1}" for i in range(number)]
        self._tag = f"snl{os.getpid()}"
        self._made: list[str] = []
        self.rsh = folder / "rsh"

    def __enter__(self) -> Namespaces:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._remove()

    def name(self, address: str) -> str:
        """The namespace that has an address."""
        return f"{self._tag}-{address.rsplit('.', 1)[1]}"

    def home(self, address: str) -> Path:
        """The home folder of a host."""
        return self.folder / "home" / address

    def processes(self, address: str) -> list[int]:
        """Numbers of the processes of a host."""
        told = subprocess.run(
            ["ip", "netns", "pids", self.name(address)],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        return [int(word) for word in told.stdout.split()]

    def wait_until_empty(self) -> None:
        """Until no host has a process."""
        until(lambda: not any(map(self.processes, self.addresses)), "the end of all processes")

    def kill(self, address: str) -> None:
        """The host dies: its link goes down, its processes are killed, no login works."""
        (self.folder / f"dead-{address}").touch()
        ip("-n", self.name(address), "link", "set", "eth0", "down")
        self._end_processes(address)

    def _make(self) -> None:
        switch = f"{self._tag}-sw"
        self._add(switch)
        ip("-n", switch, "link", "add", "br0", "type", "bridge")
        ip("-n", switch, "link", "set", "br0", "up")
        for i, address in enumerate(self.addresses):
            name = self.name(address)
            self._add(name)
            pair = ("link", "add", "eth0", "netns", name, "type", "veth")
            ip(*pair, "peer", "name", f"port{i}", "netns", switch)
            ip("-n", switch, "link", "set", f"port{i}", "master", "br0", "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
            self.home(address).mkdir(parents=True)
        self.rsh.write_text(RSH.format(folder=self.folder, tag=self._tag))
        self.rsh.chmod(0o755)

    def _end_processes(self, address: str) -> None:
        def are_gone() -> bool:
            left = self.processes(address)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        until(are_gone, f"the end of what was killed on {address}")

    def _add(self, name: str) -> None:
        ip("netns", "add", name)
        self._made.append(name)

    def _remove(self) -> None:
        for address in self.addresses:
            if self.name(address) in self._made:
                self._end_processes(address)
        while self._made:
            subprocess.run(
                ["ip", "netns", "delete", self._made.pop()], timeout=LIMIT_S, check=False
            )
