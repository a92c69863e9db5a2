"""The steps of an upgrade in docs/deploy.md: stop, distribute another package, start, go on.

A host that is a folder, and packages that lead to the snailps of this tree, each with its name.
"""

import os
import platform
import re
import signal
import sys
import zipfile

import numpy as np
import pytest
from cluster_models import counting_job
from processes import Gate, environment, free_port
from test_tools import ROOT, VERSION, WAIT_S, Here, is_there
from waiting import until

LINES = 1000
PACKAGE = """
import os, sys
if sys.argv[1:] == ["--version"]:
    sys.exit(print("snailps", {name!r}))
print("of package", {name!r}, file=sys.stderr, flush=True)
os.environ["PYTHONPATH"] = {path!r}
os.execv({python!r}, [{python!r}, "-m", "snailps", *sys.argv[1:]])
"""


class Host(Here):
    """One host with all processes; its job counts."""

    def make_package(self, name):
        """The wheel that `distribute` sends from now on."""
        for path in self.wheels.iterdir():
            path.unlink()
        file = f"snailps-{name}-cp{VERSION}-cp{VERSION}-linux_{platform.machine()}.whl"
        text = PACKAGE.format(name=name, path=environment()["PYTHONPATH"], python=sys.executable)
        with zipfile.ZipFile(self.wheels / file, "w") as wheel:
            main = f"def main():\n    exec({text!r}, {{}})\n"
            wheel.writestr("snailps/cli/entry.py", main)

    def log(self):
        path = self.path("127.0.0.1", "logs/master.log")
        return path.read_text() if path.exists() else ""

    def logs(self, words):
        until(lambda: words in self.log(), lambda: f"{words!r} in:\n{self.log()}")


@pytest.fixture
def host(tmp_path):
    inventory = "\n".join(
        (
            f"master 127.0.0.1 master_port={free_port()}",
            "server 127.0.0.1 1 shard_num=1",
            "worker 127.0.0.1 1 threads=1",
        )
    )
    made = Host(tmp_path, inventory)
    yield made
    for number in made.numbers():
        if is_there(number):
            os.kill(number, signal.SIGKILL)


def steps():
    """Names of the tools in the page's steps, and their words."""
    page = (ROOT / "docs" / "deploy.md").read_text().split("\n## Upgrades\n")[1]
    block = re.search(r"```sh\n(.*?)```", page, re.DOTALL)[1]
    return re.findall(r"tools/(\w+) ?([\w=.]*)", block)


def test_steps_of_an_upgrade_end_with_the_whole_training(host, tmp_path):
    (stop, _), (distribute, _), (start, words) = steps()
    assert (stop, distribute, start, words) == (
        "stop", "distribute", "start", "checkpoint_interval=600",
    )  # fmt: skip
    gate = Gate(tmp_path / "gates", 5)
    job = counting_job(tmp_path, gates=str(tmp_path / "gates"), frag_num=64)
    job |= {"input": "data/in.txt", "output": "out/model"}
    (tmp_path / "job.conf").write_text("".join(f"{key}: {job[key]}\n" for key in job))
    host.make_package("1")
    host(distribute, "--copy", "job.conf", "in.txt")
    begin = (start, "-c", "data/job.conf", words)
    host(*begin)
    gate.meet()
    with host.open(stop) as stopping:
        host.logs("interrupted: finishing")
        gate.open()
        said, _ = stopping.communicate(timeout=WAIT_S)
    assert stopping.returncode == 0, said
    assert "master: ended with code 130" in said

    host.make_package("2")
    assert "snailps 2" in host(distribute)
    host(*begin)
    code = host.path("127.0.0.1", "run/master.code")
    until(code.exists, lambda: f"the end of the job:\n{host.log()}")
    assert code.read_text() == "0\n", host.log()
    assert "continuing from checkpoint 1" in host.log()
    assert host.log().index("of package 1") < host.log().index("of package 2")
    with np.load(host.path("127.0.0.1", "out/model.npz")) as saved:
        assert saved["counts.rows"].sum() == LINES
    assert host(stop).count("ended with code 0") == 3
