"""The scripts in tools/ on five hosts: nothing but the scripts, as one would type them."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from namespaces import Namespaces

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120.0
pytestmark = pytest.mark.limit(420)


class Tools:
    """The scripts, with an inventory of these hosts."""

    def __init__(self, hosts: Namespaces, wheels: Path, inventory: str) -> None:
        self.hosts = hosts
        path = hosts.folder / "hosts"
        path.write_text(inventory.format(*hosts.addresses))
        self.environment = {
            **os.environ,
            "SNAILPS_HOSTS": str(path),
            "SNAILPS_RSH": str(hosts.rsh),
            "SNAILPS_WHEELS": str(wheels),
        }

    def __call__(self, name: str, *words: str, code: int | None = 0) -> str:
        told = subprocess.run(
            [str(ROOT / "tools" / name), *words],
            env=self.environment,
            cwd=self.hosts.folder,
            capture_output=True,
            text=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
        )
        said = told.stdout + told.stderr
        assert code is None or told.returncode == code, said
        return said

    def wait_until(self, pattern: str) -> str:
        """The status once it has this in it."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            said = self("status", code=None)
            if re.search(pattern, said):
                return said
            if re.search("master: (ended|gone)", said):
                break
            time.sleep(0.3)
        raise AssertionError(f"no {pattern!r} within {LIMIT_S:.0f} s:\n{said}\n{self.logs()}")

    def logs(self) -> str:
        return self("logs", "--once", "-n", "50", code=None)


INVENTORY = """
# five hosts
master {0}
server {1}
server {2} 1 shard_num=1
worker {3} 1 threads=1      # and a comment
worker {4} 1 threads=1
"""


def nobody_left(hosts: Namespaces) -> bool:
    return not any(hosts.processes(address) for address in hosts.addresses)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A text to train on."""
    words = " ".join(p.read_text() for p in sorted((ROOT / "docs").glob("*.md")))
    path = tmp_path / "corpus.txt"
    path.write_text(words * 20)
    return path


def test_five_hosts_train_from_distribute_to_collect(hosts, wheels, text):
    tools = Tools(hosts, wheels, INVENTORY)
    said = tools("distribute", "--copy", str(text))
    assert all(f"{address}: " in said for address in hosts.addresses)
    assert tools("distribute").count("installed already") == 5
    said = tools("start", "input=data/corpus.txt", "output=out/model", "epochs=3")
    assert "2 servers, 2 workers" in said
    assert said.count("started, process") == 5
    assert tools("start", "input=data/corpus.txt").count("runs already") == 5
    said = tools.wait_until(r"10\.77\.0\.1: master: ended with code 0")
    assert "code 0" in tools.wait_until(r"10\.77\.0\.5: worker-2: ended with code 0")
    tools("collect", str(hosts.folder / "got"))
    got = hosts.folder / "got"
    assert (got / "10.77.0.1" / "out" / "model.vec").stat().st_size > 1000
    assert (got / "10.77.0.4" / "logs" / "worker-1.log").exists()
    assert "10.77.0.2: server-1: " in tools("logs", "--once")
    assert tools("run", "venv/bin/snailps --version").count(": snailps ") == 5
    tools("stop")
    assert nobody_left(hosts)


def test_stop_ends_a_running_job_and_its_results_are_there(hosts, wheels, text):
    tools = Tools(hosts, wheels, INVENTORY)
    tools("distribute", "--split", str(text))
    shares = [
        sorted(path.name for path in (hosts.home(address) / "snailps/data").glob("*.txt.*"))
        for address in hosts.addresses
    ]
    assert shares == [["corpus.txt.1", "corpus.txt.2"], [], [], ["corpus.txt.1"], ["corpus.txt.2"]]
    tools("start", "input=data/corpus.txt.*", "output=out/model", "epochs=100000")
    tools.wait_until(r"training")
    said = tools("stop")
    assert "master: told to end the job" in said
    assert "worker-1: ended with code" in said
    assert nobody_left(hosts)
    assert (hosts.home(hosts.addresses[0]) / "snailps/out/model.vec").stat().st_size > 1000


def test_dead_host_is_named_by_every_tool(hosts, wheels, text):
    tools = Tools(hosts, wheels, INVENTORY)
    tools("distribute", "--copy", str(text))
    tools("start", "input=data/corpus.txt", "epochs=100000", "on_node_loss=stop")
    tools.wait_until(r"training")
    hosts.kill(hosts.addresses[4])
    said = tools.wait_until(r"10\.77\.0\.1: master: ended with code 1")
    assert re.search(r"10\.77\.0\.5: worker-2: gone without a code", said)
    assert re.search(r"worker \d+ \(.*\) is lost", tools.logs())
    tools("stop")
    assert nobody_left(hosts)


@pytest.mark.parametrize(
    ("inventory", "words"),
    [
        ("server {0}\n", "expected one master, got 0"),
        ("master {0}\nmaster {1}\nserver {2}\n", "expected one master, got 2"),
        ("master {0}\n", "no server"),
        ("master {0}\nserver {1} 0\n", "hosts:2: expected a count from 1, got 0"),
        ("master {0}\nservr {1}\n", "hosts:2: expected master, server or worker, got servr"),
        ("master {0}\nserver {1} 1 threads\n", "hosts:2: expected setting=value, got threads"),
        ("master\n", "got no host"),
    ],
)
def test_wrong_inventory_is_named_with_its_line(tmp_path, inventory, words):
    path = tmp_path / "hosts"
    path.write_text(inventory.format("a", "b", "c"))
    told = subprocess.run(
        [str(ROOT / "tools" / "status")],
        env={**os.environ, "SNAILPS_HOSTS": str(path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert told.returncode == 2
    assert words in told.stderr
