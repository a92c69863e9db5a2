"""tools/docker with a real engine: the image, a stack in a swarm of one node, compose.

No registry is asked: the image is built from a root file system made on the spot, and wheels.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from engine import ADDRESS, Engine, NoEngine
from root_fs import write_root_fs

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
LIMIT_S = 400.0
"""Limit of one wait, on a machine under load."""
EPOCHS, DIM, BLOCK_BYTES, TEXT_BYTES = 20, 16, 4096, 100_000
# A small job: the settings of tools/docker/cluster.conf stand before it.
JOB = f"""
epochs: {EPOCHS}
dim: {DIM}
bucket: 20000
min_count: 2
block_bytes: {BLOCK_BYTES}
master_time_out: 300
init_timeout: 300
heartbeat_timeout: 60
"""
pytestmark = pytest.mark.limit(1500)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine of our own."""
    try:
        with Engine(tmp_path_factory.mktemp("docker") / "engine") as engine:
            yield engine
    except NoEngine as error:
        pytest.skip(f"no Docker engine: {error}")


@pytest.fixture(scope="module")
def image(engine: Engine, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image of this tree as it is compiled."""
    folder = tmp_path_factory.mktemp("image")
    write_root_fs(folder / "base.tar", folder / "root")
    engine.docker("import", folder / "base.tar", "snailps-base")
    tried = engine.docker("run", "--rm", "snailps-base", "sh", "-c", "echo here", code=None)
    if tried != "here":  # in a container without the rights for others inside it, say
        pytest.skip(f"no Docker engine that can run anything: {tried}")
    context = folder / "context"
    shutil.copytree(wheels, context / "wheels")
    shutil.copytree(ROOT / "tools/docker", context / "tools/docker")
    compiled = shutil.ignore_patterns("*.so", "*.c", "*.cpp", "__pycache__", "_kernels_*.pyx")
    shutil.copytree(ROOT / "snailps", context / "snailps", ignore=compiled)
    for name in ("stubs.py", "jobs_pxd.py"):
        shutil.copy(ROOT / "tools" / name, context / "tools")
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py", ".dockerignore"):
        shutil.copy(ROOT / name, context)
    words = ["build", "-f", context / "tools/docker/Dockerfile", "-t", "snailps"]
    words += ["--build-arg", "BASE_IMAGE=snailps-base", "--build-arg", "PIP_NO_INDEX=1", context]
    engine.docker(*words, limit_s=600)
    return "snailps"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """tools/docker with a small job, and the text to train on beside it."""
    folder = tmp_path / "docker"
    shutil.copytree(ROOT / "tools/docker", folder)
    with (folder / "cluster.conf").open("a") as conf:
        conf.write(JOB)
    (folder / "input").mkdir()
    text = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    (folder / "input/docs.txt").write_text(text[:TEXT_BYTES])
    return folder


def wait_for(what: str, look: Callable[[], T | None], shown: Callable[[], str]) -> T:
    """What `look` finds once it finds something; otherwise fails with what is shown."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        found = look()
        if found:
            return found
        time.sleep(0.3)
    raise AssertionError(f"{what}: not within {LIMIT_S:.0f} s\n{shown()}")


def assert_vectors(vec: str) -> None:
    """It is a whole .vec of that job."""
    head, *rows = vec.splitlines()
    words, dim = map(int, head.split())
    assert (len(rows), dim) == (words, DIM)
    assert words > 500
    assert all(len(row.split()) == 1 + dim for row in rows)


class Stack:
    """The stack ``snailps`` in a swarm of this node, which ends with it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __enter__(self) -> Stack:
        self.engine.docker("swarm", "init", "--advertise-addr", ADDRESS)
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.docker("swarm", "leave", "--force")

    def containers(self, role: str = "") -> list[str]:
        """Those that there are of a service, ended ones, too."""
        name = f"com.docker.swarm.service.name=snailps_{role}" if role else "com.docker.swarm.task"
        return self.engine.docker("ps", "-aq", "--filter", f"label={name}").split()

    def status(self) -> dict[str, Any] | None:
        """What the master says; None before it does."""
        for container in self.containers("master"):
            words = ["exec", container, "snailps", "status", "--json"]
            # In its container the master is at hand, whatever its name is elsewhere.
            words += ["-c", "/etc/snailps/cluster.conf", "--set", "master_addr=127.0.0.1:16831"]
            said = self.engine.docker(*words, code=None)
            if said.startswith("{"):
                status: dict[str, Any] = json.loads(said)
                return status
        return None

    def training(self, workers: int) -> dict[str, Any] | None:
        """The status, once so many workers, and no others, train."""
        status = self.status()
        if status is None or status["phase"] != "training":
            return None
        found = [node for node in status["nodes"] if node["role"] == "worker"]
        at_work = [node for node in found if node["rate"]]
        return status if len(found) == len(at_work) == workers else None

    def codes(self) -> list[int] | None:
        """Exit codes of all containers, once they have ended."""
        words = ["inspect", "-f", "{{.State.Status}} {{.State.ExitCode}}"]
        # One of those that were taken away may be removed between the two questions.
        states = [self.engine.docker(*words, one, code=None) for one in self.containers()]
        if not all(state.startswith("exited ") for state in states):
            return None
        return [int(state.split()[1]) for state in states]

    def scale(self, workers: int) -> None:
        self.engine.docker("service", "scale", "-d", f"snailps_worker={workers}")

    def shown(self) -> str:
        """All that there is to see, for a failed test."""
        parts = [
            self.engine.docker("service", "ps", "--no-trunc", f"snailps_{role}", code=None)
            + "\n"
            + self.engine.docker("service", "logs", "--tail", "60", f"snailps_{role}", code=None)
            for role in ("master", "server", "worker")
        ]
        return "\n".join([*parts, self.engine.log])


def test_stack_in_a_swarm_trains_while_workers_come_and_go(
    engine: Engine, image: str, files: Path, tmp_path: Path
) -> None:
    for name in ("held.py", "held.yml"):
        shutil.copy(HERE / name, files)
    with (files / "cluster.conf").open("a") as conf:
        conf.write("worker_class: held:Held\nexpected_node_num: 3\n")
    engine.docker("volume", "create", "snailps_input")
    fill = ["--mount", f"type=bind,src={files}/input,dst=/from,ro", "-v", "snailps_input:/input"]
    copy = ["--entrypoint", "cp", image, "-r", "/from/.", "/input"]
    engine.docker("run", "--rm", "-u", "0", *fill, *copy)
    with Stack(engine) as stack:
        (files / "secret").write_text(secrets.token_hex(16))
        engine.docker("secret", "create", "snailps_secret", files / "secret")
        layers = ["-c", files / "stack.yml", "-c", files / "held.yml"]
        engine.docker("stack", "deploy", "--resolve-image", "never", *layers, "snailps")

        wait_for("one worker trains", lambda: stack.training(1), stack.shown)
        stack.scale(3)
        wait_for("three workers train", lambda: stack.training(3), stack.shown)
        stack.scale(1)
        wait_for("one worker is left", lambda: stack.training(1), stack.shown)
        (master,) = stack.containers("master")
        stranger = ["exec", "-e", "SNAILPS_SECRET_FILE=", master, "snailps", "status"]
        said = engine.docker(*stranger, "--set", "master_addr=127.0.0.1:16831", code=1)
        assert "secret" in said
        engine.docker("exec", master, "touch", "/results/go")
        codes = wait_for("the job ends", stack.codes, stack.shown)
        assert set(codes) == {0}, stack.shown()
        told = subprocess.run(
            ["docker", "logs", master], env=engine.environment, capture_output=True, text=True
        )
        engine.docker("stack", "rm", "snailps")
        wait_for("the stack is gone", lambda: not stack.containers(), stack.shown)
        networks = ["network", "ls", "-q", "--filter", "name=snailps"]
        wait_for("its network is gone", lambda: not engine.docker(*networks), stack.shown)

    # Those that were taken away left by themselves: none was missed, and no block was lost.
    assert len(re.findall(r"worker \d+ .* left, \d+ blocks returned", told.stderr)) == 2, (
        told.stderr
    )
    assert " is lost" not in told.stderr
    figures = json.loads(told.stdout)
    assert figures["ended_by"] == "epochs"
    assert figures["blocks"] == EPOCHS * -(-TEXT_BYTES // BLOCK_BYTES)
    collect = ["run", "--rm", "-v", "snailps_results:/results:ro", "--entrypoint", "cat", image]
    assert_vectors(engine.docker(*collect, "/results/vectors.vec"))
    volumes = engine.docker("volume", "ls", "-q").split()
    assert {"snailps_input", "snailps_results", "snailps_checkpoints"} <= set(volumes)
    engine.docker("volume", "rm", *volumes)


def test_compose_trains_to_the_end(engine: Engine, image: str, files: Path, tmp_path: Path) -> None:
    if not engine.compose:
        pytest.skip("no `docker compose` and no docker-compose (apt-get install docker-compose)")
    compose = [*engine.compose, "-p", "snailps", "-f", files / "compose.yml"]
    engine.environment["CLUSTER_INPUT"] = str(files / "input")
    said = engine.run(*compose, "up", limit_s=600)
    states = [
        engine.docker("inspect", "-f", "{{.Name}} {{.State.ExitCode}}", container).split()
        for container in engine.run(*compose, "ps", "-aq").split()
    ]
    assert len(states) == 5, said
    assert {code for _, code in states} == {"0"}, said
    (master,) = (name for name, _ in states if "master" in name)
    engine.docker("cp", f"{master[1:]}:/results/vectors.vec", tmp_path)
    assert_vectors((tmp_path / "vectors.vec").read_text())
    engine.run(*compose, "down", "-v")
    assert "snailps" not in engine.docker("network", "ls") + engine.docker("volume", "ls", "-q")
