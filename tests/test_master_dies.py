"""kill -9 of the master: the same command takes over, and nothing is lost or done twice."""

import random
import signal
import socket

import pytest
from cluster_models import COUNTER, write_numbers
from processes import Cluster, Gate
from test_checkpoint_cluster import assert_counted_once, trained
from test_cluster import figures_of

pytestmark = pytest.mark.limit(300)
LINES, ROWS = 1000, 50
LIMIT_S = 90.0


def steady_port():
    """A free port that no outgoing connection takes: a master is to have it again."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port from 20000 to 32000 is free")


@pytest.fixture
def job(tmp_path):
    """A job of ten blocks whose result is known."""
    write_numbers(tmp_path / "in.txt", LINES, ROWS)
    (tmp_path / "journal").mkdir()
    (tmp_path / "gates").mkdir()
    return {
        "worker_class": COUNTER,
        "input": "in.txt",
        "output": "out",
        "epochs": 1,
        "gates": str(tmp_path / "gates"),
        "journal": str(tmp_path / "journal"),
        "on_node_loss": "recover",
    }


class Mortal(Cluster):
    """A cluster whose master is killed and started again with the same command."""

    def begin(self, *sets):
        """Starts everybody; the master."""
        self.sets = sets
        master = self.master(*sets, port=steady_port())
        self.nodes()
        return master

    def kill(self, master):
        """SIGKILL, and the same command again; the new master."""
        master.send(signal.SIGKILL)
        assert master.wait() == -signal.SIGKILL
        self.processes.remove(master)
        again = self.master(*self.sets, port=self.port)
        self.processes.remove(again)
        self.processes.insert(0, again)  # where others look for it
        return again

    def ends_well(self):
        """Waits until all have ended with 0."""
        codes = self.codes(LIMIT_S)
        assert codes == [0] * len(self.processes), self.processes[0].stderr


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("consistency", ["async", "ssp", "bsp"])
def test_master_killed_in_the_training_is_taken_over(tmp_path, job, consistency, workers):
    gates = [Gate(tmp_path / "gates", block) for block in (2, 6)]
    job |= {"consistency": consistency, "micro_batches": 2}
    with Mortal(tmp_path, job=job, workers=workers, servers=2) as cluster:
        master = cluster.begin()
        for gate in gates:
            gate.meet()
            master = cluster.kill(master)
            master.wait_line("took over from the master before")
            gate.open()
        cluster.ends_well()
    assert_counted_once(tmp_path)
    assert trained(tmp_path) == [*range(10)]
    figures = figures_of(master)
    assert (figures["examples"], figures["blocks"], figures["progress"]) == (LINES, 10, 1.0)
    assert figures["loss_by_epoch"] == [1.0]
    assert not (tmp_path / "out.journal").exists()
