"""Manifests of Kubernetes, Swarm and compose: their commands, stop signals, limits, as processes.

No orchestrator is there: the test sends what the manifest says, when one would, and starts again
what its restart policy starts again. A real engine: tests/hosts/test_docker.py.
"""

import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from cluster_models import counting_job
from processes import SNAILPS, Gate, Process, environment, free_port

TOOLS = Path(__file__).resolve().parents[2] / "tools"
LINES = 1000
JOB = ("worker_class", "input", "output", "checkpoint_dir", "checkpoint_interval", "dim", "epochs",
       "min_count", "bucket")  # fmt: skip


def words_of(text):
    """The command of a YAML document or section, without `snailps`."""
    inline = re.search(r"^ *command: \[(.*)\]", text, re.MULTILINE)
    listed = re.search(r"^ *command:\n((?: *- .*\n)+)", text, re.MULTILINE)
    words = (
        inline[1].split(", ")
        if inline
        else [line.split("- ", 1)[1].split(" # ")[0] for line in listed[1].splitlines()]
    )
    return [word for word in words if word != "snailps"]


class Kubernetes:
    """tools/kubernetes/snailps.yaml."""

    config = "/config/master.conf"
    restarts = "restartPolicy: OnFailure"
    output = "out/model"

    def __init__(self, role):
        documents = (TOOLS / "kubernetes" / "snailps.yaml").read_text().split("\n---\n")
        (self.text,) = (text for text in documents if f"  name: snailps-{role}\n" in text)
        self.words, self.signal = words_of(self.text), signal.SIGTERM
        grace = re.search(r"terminationGracePeriodSeconds: (\d+)", self.text)
        self.grace_s = int(grace[1]) if grace else 30

    @staticmethod
    def common():
        return ""


class Compose:
    """tools/docker/compose.yml."""

    config = "/etc/snailps/cluster.conf"
    restarts = "no policy"
    output = "results/vectors"
    file, grace = "compose.yml", "10s"

    def __init__(self, role):
        text = (TOOLS / "docker" / self.file).read_text()
        services = text.split("\nservices:\n")[1]
        section = re.search(rf"^  {role}:\n((?:    .*\n|\n)+)", services, re.MULTILINE)[1]
        policy = re.search(r"^x-restart.*?\n\n", text, re.MULTILINE | re.DOTALL)
        self.text = section + (policy[0] if policy and "*restart" in section else "")
        self.words = words_of(section)
        name = re.search(r"stop_signal: (\w+)", section)
        self.signal = getattr(signal, name[1]) if name else signal.SIGTERM
        number, unit = re.search(
            r"stop_grace_period: (\d+)([sm])", section + f"stop_grace_period: {self.grace}"
        ).groups()
        self.grace_s = int(number) * {"s": 1, "m": 60}[unit]

    @staticmethod
    def common():
        """cluster.conf without its job."""
        lines = (TOOLS / "docker" / "cluster.conf").read_text().splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith(JOB))


class Swarm(Compose):
    """tools/docker/stack.yml."""

    restarts = "condition: on-failure"
    file = "stack.yml"


class Site:
    """Processes of a manifest: a master, a server and a worker that stands at a gate."""

    def __init__(self, folder, manifest):
        self.folder, self.port = folder, free_port()
        self.roles = {role: manifest(role) for role in ("master", "server", "worker")}
        self.manifest = manifest
        gates = folder / "gates"
        self.at_block = Gate(gates, 2)
        job = counting_job(folder, gates=str(gates), frag_num=64) | {"output": manifest.output}
        (folder / "job.conf").write_text(
            manifest.common() + "".join(f"{key}: {value}\n" for key, value in job.items())
        )
        self.processes = {role: self.start(role) for role in self.roles}

    def start(self, role):
        """The command of a role as the manifest has it, with the addresses and files of here."""
        listens = f"127.0.0.1:{self.port}"
        places = {self.manifest.config: "job.conf", "0.0.0.0:16831": listens}
        words = self.roles[role].words
        for old, new in places.items():
            words = [word.replace(old, new) for word in words]
        sets = ["expected_node_num=2", "expected_servers=1"] if role == "master" else []
        words += [word for pair in sets for word in ("--set", pair)]
        env = environment(SNAILPS_MASTER_ADDR=listens)
        if role == "master":
            env["SNAILPS_LISTEN_ADDR"] = listens
        return Process(role, [*SNAILPS, *words], cwd=self.folder, env=env, copied=True)

    def stop(self, *roles):
        """What an orchestrator does: the signal, and SIGKILL after the limit; seconds it took."""
        begun = time.monotonic()
        for role in roles:
            self.processes[role].send(self.roles[role].signal)
        return begun

    def counted(self):
        with np.load(self.folder / f"{self.manifest.output}.npz") as saved:
            return saved["counts.rows"].sum()


@pytest.fixture
def site(tmp_path, request):
    made = Site(tmp_path, request.param)
    made.at_block.meet()
    yield made
    made.at_block.open()
    for process in made.processes.values():
        process.close()


def by_name(manifest):
    return manifest.__name__.lower()


@pytest.mark.parametrize("site", [Kubernetes, Swarm], indirect=True, ids=by_name)
def test_master_that_is_evicted_goes_on_where_it_is_started_again(site):
    """`kubectl drain`, an upgrade of a node; `docker node update --availability drain`."""
    begun = site.stop("master")
    code = site.processes["master"].wait()
    assert time.monotonic() - begun < min(30, site.roles["master"].grace_s)
    assert code != 0  # else it would count as done, and would not be started again
    assert site.manifest.restarts in site.roles["master"].text
    assert site.processes["server"].runs
    assert site.processes["worker"].runs
    site.processes["master"] = site.start("master")
    site.processes["master"].wait_line("taking over")
    site.at_block.open()
    assert [process.wait() for process in site.processes.values()] == [0, 0, 0]
    assert site.counted() == LINES


@pytest.mark.parametrize("site", [Kubernetes, Swarm, Compose], indirect=True, ids=by_name)
def test_cluster_that_is_taken_down_saves_its_model(site):
    """`kubectl delete -f`, `docker stack rm`, `docker compose down`."""
    begun = site.stop(*site.roles)
    site.processes["master"].wait_line("interrupted: finishing")
    site.at_block.open()
    codes = [process.wait() for process in site.processes.values()]
    assert time.monotonic() - begun < min(role.grace_s for role in site.roles.values())
    assert codes == [130, 0, 0]
    assert 0 < site.counted() < LINES


@pytest.mark.parametrize("manifest", [Kubernetes, Swarm], ids=by_name)
def test_worker_and_server_of_a_manifest_have_time_to_leave(manifest):
    assert manifest("worker").signal == manifest("server").signal == signal.SIGTERM
    assert manifest("server").grace_s >= 300
    assert manifest("worker").grace_s >= 120
    assert manifest("master").grace_s >= 600  # a model that is being saved


def test_master_of_kubernetes_makes_checkpoints():
    assert any("checkpoint_interval" in word for word in Kubernetes("master").words)
