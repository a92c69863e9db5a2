"""tools/slurm/snailps.sbatch under a real slurmctld, with two slurmd for made-up nodes.

Nothing outlives the test: the daemons are ended by id, and have their files in its folder.
"""

from __future__ import annotations

import getpass
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_models import counting_job
from processes import Gate, environment, free_port
from waiting import LIMIT_S, InVain, until

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "slurm" / "snailps.sbatch"
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")
LINES = 1000
CONF = """
ClusterName=snailps
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
MpiDefault=none
ReturnToService=2
KillWait=30
SchedulerParameters=sched_min_interval=0,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=16 RealMemory=64000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=16 RealMemory=64000
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""
STAYS = """#!/bin/sh
# In the place of snailps: says where it is, and stays until there is a file `end`.
echo "$SLURM_CPUS_PER_TASK" >"$1.$SLURM_PROCID.$SLURMD_NODENAME"
while [ ! -e end ]; do sleep 0.1; done
echo ended >>"$1.$SLURM_PROCID.$SLURMD_NODENAME"
"""
REAL = """#!/bin/sh
# The names of the nodes are made up.
export SNAILPS_MASTER_ADDR=127.0.0.1:${{SNAILPS_MASTER_ADDR##*:}}
exec {python} -m snailps "$@"
"""


class Slurm:
    """A Slurm of two nodes, n1 and n2, of 16 CPUs each; jobs run in its folder `job`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.job = folder, folder / "job"
        for name in ("state", "spool.n1", "spool.n2", "job/config", "job/.venv/bin"):
            (folder / name).mkdir(parents=True)
        ports = [free_port() for _ in range(3)]
        conf = folder / "slurm.conf"
        values = {"host": socket.gethostname(), "user": getpass.getuser(), "folder": folder}
        conf.write_text(CONF.format(ports=ports, **values))
        self.environment = environment(SLURM_CONF=str(conf), SERVERS="1")
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._begin("slurmctld", "-D", "-c", "-f", conf)
        for node in ("n1", "n2"):
            self._begin("slurmd", "-D", "-f", conf, "-N", node)

    def _begin(self, *words: object) -> None:
        with (self.folder / f"{words[0]}.log").open("ab") as log:
            self._daemons.append(
                subprocess.Popen(
                    [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log,
                    stderr=log, start_new_session=True, env=self.environment,
                )
            )  # fmt: skip

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def __call__(self, *words: object, check: bool = True) -> str:
        """What a command of Slurm says."""
        told = subprocess.run(
            [str(word) for word in words], cwd=self.job, env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
        )  # fmt: skip
        assert told.returncode == 0 or not check, f"{words}: {told.stdout}\n{self.log}"
        return told.stdout

    def up(self) -> bool:
        return self("scontrol", "show", "nodes", check=False).count("State=IDLE") == 2

    def submit(self, *words: str, sets: tuple[str, ...] = ()) -> str:
        """The script as a job; its number."""
        options = ("--parsable", "--output=log", *words)
        return self("sbatch", *options, SCRIPT, *sets).strip()

    def state(self, job: str) -> str:
        return re.findall(r"JobState=(\w+)", self("scontrol", "show", "job", job))[0]

    def code(self, job: str) -> str:
        """Exit code of the batch script, once the job is over."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        until(lambda: self.state(job) in over, lambda: f"the end of job {job}\n{self.log}")
        return re.findall(r"\bExitCode=(\d+:\d+)", self("scontrol", "show", "job", job))[0]

    @property
    def output(self) -> str:
        """What the job has written."""
        path = self.job / "log"
        return path.read_text() if path.exists() else ""

    @property
    def log(self) -> str:
        logs = [self.job / "log", *self.folder.glob("slurm*.log")]
        return "\n".join(f"--- {path}\n{path.read_text()[-3000:]}" for path in logs
                         if path.exists())  # fmt: skip

    def meets(self, gate: Gate) -> None:
        """Waits until a worker stands at a gate."""
        try:
            gate.meet()
        except InVain as error:
            raise AssertionError(f"{error}\n{self.log}") from None

    def snailps(self, text: str) -> None:
        program = self.job / ".venv/bin/snailps"
        program.write_text(text)
        program.chmod(0o755)


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if lacking:
        pytest.skip(
            f"no Slurm: no program {', '.join(lacking)} "
            "(apt-get install slurmctld slurmd slurm-client)"
        )
    made = Slurm(tmp_path)
    try:
        until(made.up, lambda: f"two idle nodes\n{made.log}")
        yield made
    finally:
        made("scancel", "--full", "--user", getpass.getuser(), check=False)
        made.close()


@pytest.fixture
def job(slurm: Slurm, tmp_path: Path) -> tuple[Gate, dict[str, Any]]:
    """A real job of one server and one worker, which stands at the gate."""
    slurm.snailps(REAL.format(python=sys.executable))
    gates = tmp_path / "gates"
    gate = Gate(gates, 2)
    settings = counting_job(slurm.job, gates=str(gates), frag_num=64, checkpoint_interval=3600)
    common = {"init_timeout": LIMIT_S, "shard_num": 1, "threads": 1}
    for role in ("master", "server", "worker"):
        more = settings if role == "master" else common
        lines = [f"{key}: {value}\n" for key, value in more.items()]
        (slurm.job / "config" / f"{role}.conf").write_text("".join(lines))
    return gate, settings


ONE_EACH = ("--ntasks=2", "--cpus-per-task=1", "--mem-per-cpu=100M")


def counted(slurm: Slurm) -> float:
    with np.load(slurm.job / "out.npz") as saved:
        return float(saved["counts.rows"].sum())


def test_tasks_are_placed_as_they_were_granted_and_others_outlive_a_lost_node(slurm: Slurm) -> None:
    """--ntasks=5 --cpus-per-task=4: 16 CPUs of n1 and 4 of n2."""
    slurm.snailps(STAYS)
    job = slurm.submit()
    places = ["master.0.n1", "server.0.n1", "worker.1.n1", "worker.2.n1", "worker.3.n1",
              "worker.4.n2"]  # fmt: skip

    def begun() -> list[str]:
        return sorted(path.name for path in slurm.job.glob("*.*.n?") if path.read_text())

    until(lambda: len(begun()) == len(places), lambda: f"all of {places}: {begun()}\n{slurm.log}")
    assert begun() == places
    assert {(slurm.job / name).read_text() for name in places} == {"4\n"}
    slurm("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    until(lambda: "Node failure on n2" in slurm.output, lambda: f"a lost node\n{slurm.log}")
    assert slurm.state(job) == "RUNNING"
    (slurm.job / "end").touch()
    assert slurm.code(job) == "0:0"
    ended = [name for name in places if (slurm.job / name).read_text().endswith("ended\n")]
    assert ended == places[:-1]


def test_int_saves_the_model_and_a_requeued_job_goes_on(
    slurm: Slurm, job: tuple[Gate, dict[str, Any]]
) -> None:
    gate, _ = job
    number = slurm.submit(*ONE_EACH)
    slurm.meets(gate)
    secret = (slurm.job / "config/secret").read_bytes()
    slurm("scontrol", "requeue", number)  # SIGTERM to all tasks, KillWait later SIGKILL
    until(lambda: "interrupted: finishing" in slurm.output, lambda: f"an early end\n{slurm.log}")
    gate.open()
    until(lambda: slurm.state(number) == "PENDING", lambda: f"a requeued job\n{slurm.log}")
    again = Gate(gate.path.parent, 5)
    # slurmd refuses a credential of the second in which it revoked the job's last one. Slurm waits
    # two minutes before it starts a requeued job; the turn of that second is enough.
    requeued = int(time.time())
    until(lambda: int(time.time()) > requeued, lambda: "the next second")
    slurm("scontrol", "update", f"jobid={number}", "starttime=now")
    slurm.meets(again)
    assert "continuing from checkpoint" in slurm.output
    assert (slurm.job / "config/secret").read_bytes() == secret
    slurm("scancel", "--batch", "--signal=INT", number)
    until(
        lambda: slurm.output.count("interrupted: finishing") == 2,
        lambda: f"another early end\n{slurm.log}",
    )
    again.open()
    assert slurm.code(number) == "130:0"
    assert 300 < counted(slurm) < LINES
