"""The scripts in tools/ on five hosts, with a secret and TLS: nothing but the scripts, as typed.

What they do with one host, and what they say of mistakes, is in tests/repo/test_tools.py.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from namespaces import Namespaces

from snailps.vectors.files import load

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 400.0
"""Limit of one wait, on a machine under load."""

INVENTORY = """
master {0}
server {1} 1 shard_num=1 init_timeout=300
server {2} 1 shard_num=1 init_timeout=300      # and a comment
server {3} 1 shard_num=1 init_timeout=300
worker {3} 1 threads=1 init_timeout=300
worker {4} 1 threads=1 init_timeout=300
"""


class Tools:
    """The scripts, with an inventory of these hosts."""

    def __init__(self, hosts: Namespaces, wheels: Path) -> None:
        self.folder = hosts.folder
        inventory = hosts.folder / "hosts"
        inventory.write_text(INVENTORY.format(*hosts.addresses))
        certificates = hosts.folder / "certificates"
        words = ["tls", "init", str(certificates)]
        subprocess.run([sys.executable, "-m", "snailps", *words], check=True, timeout=WAIT_S)
        (certificates / "cluster").rename(hosts.folder / "tls")
        self.environment = {
            **os.environ,
            "SNAILPS_HOSTS": str(inventory),
            "SNAILPS_RSH": str(hosts.rsh),
            "SNAILPS_WHEELS": str(wheels),
        }

    def __call__(self, name: str, *words: str, code: int | None = 0) -> str:
        """What a tool says, which is to end with this code; None: with any."""
        told = subprocess.run(
            [str(ROOT / "tools" / name), *words],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            stdin=subprocess.DEVNULL,
        )
        said, self.code = told.stdout + told.stderr, told.returncode
        assert code is None or told.returncode == code, said
        return said

    def wait_for(self, pattern: str, *words: str, least: int = 0, code: int = 0) -> int:
        """The last group of the pattern, once it is in what a tool says and so large."""
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            said = self(*words, code=None)  # a master on a busy machine may answer late
            if (found := re.search(pattern, said)) and int(found[1] or 0) >= least:
                assert self.code == code, said
                return int(found[1] or 0)
            if re.search("master: (ended|gone)", said):
                break
            time.sleep(0.3)
        logs = self("logs", "--once", "-n", "50", code=code)
        raise AssertionError(f"waited for {pattern!r} in:\n{said}\n{logs}")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Lines of words of one of four groups each."""
    rng = random.Random(1)
    groups = [[f"{group}{i}" for i in range(20)] for group in ("ash", "bay", "cub", "den")]
    lines = (" ".join(rng.choices(rng.choice(groups), k=12)) for _ in range(2000))
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.limit(1500)
def test_five_hosts_train_and_lose_one_and_stop_and_have_good_vectors(hosts, wheels, text):
    tools = Tools(hosts, wheels)
    dead = hosts.addresses[3]
    said = tools("distribute", "--copy", str(text))
    assert all(f"{address}: snailps" in said for address in hosts.addresses)
    job = ["dim=16", "min_count=1", "sample=1", "bucket=1000", "epochs=100000"]
    words = ["input=data/corpus.txt", "output=out/model", "master_time_out=300", *job]
    assert tools("start", *words).count("started, process") == 6
    assert tools("start", *words).count("runs already") == 6
    tools.wait_for(r"master: .* every shard has its standby()", "logs", "--once", "-n", "99")
    epoch = tools.wait_for(r"training .*epoch (\d+) of", "status", least=2)
    words = f"status --set secret_file=secret --set master_addr={hosts.addresses[0]}:16831"
    said = tools("run", f"PYTHONPATH=lib {sys.executable} -m snailps {words}", code=1)
    assert "this port speaks TLS only" in said

    hosts.kill(dead)
    tools.wait_for(r"training .*epoch (\d+) of", "status", least=epoch + 30, code=1)
    said = tools("status", code=1)
    assert f"{dead}: cannot reach {dead}" in said
    assert f"status: {dead}: failed" in said
    said = tools("stop", "300", code=1)
    assert f"{hosts.addresses[0]}: master: ended with code 130" in said  # interrupted
    assert f"{hosts.addresses[4]}: worker-1: ended with code 0" in said
    hosts.wait_until_empty()

    tools("collect", "got", code=1)
    log = (hosts.folder / "got" / hosts.addresses[0] / "logs" / "master.log").read_text()
    assert re.search(r"server \d+ .* is lost", log)
    assert re.search(r"worker \d+ .* is lost", log)
    judge(hosts.folder / "got" / hosts.addresses[0] / "out" / "model.vec")


def judge(path: Path) -> None:
    """Whether words lie closest to those of their own group; a quarter would by chance."""
    vectors = load(path)
    words = [word for word in vectors.words if word != "</s>"]
    assert len(words) == 80
    near = [near.word[:3] == word[:3] for word in words for near in vectors.neighbours(word, 5)]
    assert sum(near) / len(near) > 0.8
