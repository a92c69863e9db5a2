"""A Docker engine for tests: started where none is needed before, gone when they are done.

It has network, mount and process namespaces of its own, so that no bridge, no firewall rule, no
mount and no container can outlive it, or touch those of this machine.  Its files are in a folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from waiting import LIMIT_S

START_S = 120.0
ADDRESS = "10.78.0.1"
# A machine for the swarm to advertise needs an interface that is up; its other end leads nowhere.
SCRIPT = f"""
ip link set lo up && ip link add snl0 type veth peer name snl1 &&
ip addr add {ADDRESS}/24 dev snl0 && ip link set snl0 up && ip link set snl1 up &&
dockerd "$@"
exit $?
"""


class NoEngine(Exception):
    """None can be had here; says why."""


class Engine:
    """A running engine.

    Parameters
    ----------
    folder : Path
        For all its files; new. It is removed at the end.

    Raises
    ------
    NoEngine
        On entering.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "docker.sock"
        self._cgroup = f"snailps-test-{os.getpid()}"
        self._process: subprocess.Popen[bytes] | None = None
        self.environment = {
            **os.environ,
            "DOCKER_HOST": f"unix://{self.socket}",
            "DOCKER_CONFIG": str(folder / "client"),
            "COMPOSE_HTTP_TIMEOUT": "300",  # 60 is too little on a machine under load
        }

    def __enter__(self) -> Engine:
        if os.geteuid() != 0:
            raise NoEngine("a Docker engine takes root")
        for name in ("docker", "dockerd", "unshare", "ip", "iptables"):
            if shutil.which(name) is None:
                raise NoEngine(f"no program {name} (apt-get install docker.io iptables iproute2)")
        self.folder.mkdir()
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._end()

    def run(
        self,
        *words: str | Path,
        code: int | None = 0,
        limit_s: float = 300,
        cwd: Path | None = None,
    ) -> str:
        """What a command says that asks this engine; on standard error, too."""
        told = subprocess.run(
            [str(word) for word in words],
            env=self.environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
        )
        assert code is None or told.returncode == code, f"{words}: {told.returncode}\n{told.stdout}"
        return told.stdout.strip()

    def docker(self, *words: str | Path, code: int | None = 0, limit_s: float = 300) -> str:
        """What ``docker`` says."""
        return self.run("docker", *words, code=code, limit_s=limit_s)

    @property
    def compose(self) -> Sequence[str]:
        """The command that reads compose files; empty: there is none."""
        if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
            return ("docker", "compose")
        return ("docker-compose",) if shutil.which("docker-compose") else ()

    @property
    def log(self) -> str:
        """The last of what the engine itself said."""
        path = self.folder / "log"
        return path.read_text()[-2000:] if path.exists() else ""

    def _start(self) -> None:
        words = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        words += ["sh", "-c", SCRIPT, "dockerd", "--host", f"unix://{self.socket}"]
        words += ["--data-root", str(self.folder / "data"), "--exec-root", str(self.folder / "run")]
        words += ["--pidfile", str(self.folder / "pid"), "--cgroup-parent", f"/{self._cgroup}"]
        words += ["--exec-opt", "native.cgroupdriver=cgroupfs", "--log-level", "warn"]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        until = time.monotonic() + START_S
        while self.run("docker", "version", code=None).find("Server:") < 0:
            if self._process.poll() is not None:
                raise NoEngine(f"dockerd ended with {self._process.returncode}: {self.log}")
            if time.monotonic() > until:
                raise NoEngine(f"dockerd does not answer within {START_S:.0f} s: {self.log}")
            time.sleep(0.2)

    def _end(self) -> None:
        """Kills the first process of its namespace: the kernel kills all others with it."""
        process = self._process
        if process is not None:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            with contextlib.suppress(OSError):
                for child in children.read_text().split():
                    os.kill(int(child), signal.SIGKILL)
            process.wait(LIMIT_S)
        for folder in sorted(Path("/sys/fs/cgroup").glob(f"**/{self._cgroup}"), reverse=True):
            for part in [*sorted(folder.glob("**/"), reverse=True)]:
                with contextlib.suppress(OSError):
                    part.rmdir()
        shutil.rmtree(self.folder)
