"""Masters, servers and drivers of sessions are killed: rows stay, drivers wait and go on."""

import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from faults.schedule import Schedule
from faults.session import SESSION_KILLS, SessionRig
from processes import LIMIT_S, Cluster, environment, free_port
from test_failures import full_disk, make_room  # noqa: F401 - a fixture
from test_suspended import SHORT, suspend
from waiting import copied, until

import snailps

pytestmark = pytest.mark.limit(600)


def test_session_outlives_kills_of_its_master_and_loses_nothing(tmp_path):
    """The short form of `bench/recovery.py --parts session`."""
    with SessionRig(tmp_path, job={"window": 4, "pause": 0.005}, drivers=1) as rig:
        rig.form().run(Schedule(7, 3, SESSION_KILLS)).finish()
        rig.assert_exact()


@pytest.mark.long
def test_session_whose_journal_had_no_room_for_a_while_is_taken_over(tmp_path, full_disk):  # noqa: F811
    """A disk that was full for a moment took the journal for ever."""
    settings = {"journal_dir": full_disk / "journal"}
    with Cluster(tmp_path, settings, workers=0) as cluster:
        master = cluster.master(options=["--session"])
        cluster.nodes()
        with snailps.connect(cluster.address, timeout_s=LIMIT_S) as driver:
            tables, number = {}, 0
            with (full_disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(1 << 12))
            while "CANNOT BE WRITTEN" not in master.stderr:
                tables[number] = driver.table(f"t{number}", dim=1)
                tables[number].push([1], [[number]])
                number += 1
            make_room(full_disk)
            master.wait_line("the journal is kept again")
            master.send(signal.SIGKILL)
            master.wait()
            cluster.processes.remove(master)
            again = cluster.master(port=cluster.port, options=["--session"])
            assert [table.pull([1]).item() for table in tables.values()] == [*range(number)]
            assert len(driver.tables()) == number
        again.send(signal.SIGINT)
        cluster.codes()


class Table:
    """A session whose processes are killed, stopped and interrupted, and the rows it must have."""

    def __init__(self, cluster, driver):
        self.cluster, self.driver, self.pushes = cluster, driver, 0
        self.table = driver.table("w", dim=1)
        self.push()

    def push(self):
        self.pushes += 1
        self.table.push([7], [[1.0]])

    def check(self):
        assert self.table.pull([7]).item() == self.pushes
        assert list(self.driver.tables()) == ["w"]
        self.push()

    @property
    def master(self):
        return self.cluster.processes[0]

    def begin(self):
        return self.cluster.master(port=self.cluster.port or free_port(), options=["--session"])

    def end(self, process, number=signal.SIGKILL):
        process.send(number)
        process.wait()
        self.cluster.processes.remove(process)

    def restart(self):
        self.end(self.master)
        again = self.begin()
        self.cluster.processes.insert(0, self.cluster.processes.pop())
        return again

    def master_is_killed(self):
        self.restart()

    def takeover_is_interrupted(self):
        self.end(self.master)
        for number in (signal.SIGINT, signal.SIGHUP):
            taking = self.cluster.start("master", *self.sets, options=["--session"], told=False)
            taking.wait_line("taking over")
            self.end(taking, number)
            assert "the same command goes on" in taking.stderr
        self.begin()
        self.cluster.processes.insert(0, self.cluster.processes.pop())

    @property
    def sets(self):
        return [f"listen_addr={self.cluster.address}"]

    def server_is_killed(self):
        copied(self.driver)
        self.end(self.cluster.processes[1])
        self.cluster.start("server")
        self.check()
        copied(self.driver)

    def all_are_stopped(self):
        suspend([process.popen for process in self.cluster.processes])

    def driver_is_killed(self):
        command = [sys.executable, "-c", PUSHES, self.cluster.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as other:
            assert other.stdout.readline() == b"pushed\n"
            other.kill()
        self.pushes += 1


PUSHES = """
import sys
import time
import snailps
cluster = snailps.connect(sys.argv[1], timeout_s=60)
cluster.table("w", dim=1).push([7], [[1.0]])
print("pushed", flush=True)
time.sleep(3600)
"""
DEEDS = [name for name in vars(Table) if "_is_" in name or "_are_" in name]


def hurt(folder, how):
    """Damages all checkpoints, fills their disk, or puts a file in the place of their folder."""
    if folder.is_dir():
        for manifest in folder.glob("checkpoint-??????/manifest.json"):
            manifest.write_bytes(manifest.read_bytes()[:-9])
    if how == "no folder":
        shutil.rmtree(folder, ignore_errors=True)
        folder.write_text("in its place")  # as root no folder is read-only
    elif how == "full":
        with (folder.parent / "filler").open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 12))


@pytest.mark.long
@pytest.mark.parametrize("how", ["good", "damaged", "no folder", "full"])
def test_session_keeps_its_rows_whatever_happens_to_it_and_its_checkpoints(
    tmp_path,
    full_disk,  # noqa: F811
    how,
):
    """Each deed twice in a row; the journal outlives them all, and a driver that stays goes on."""
    make_room(full_disk)
    folder = full_disk / "saved"
    settings = SHORT | {
        "journal_dir": tmp_path / "journal", "checkpoint_dir": folder, "checkpoint_interval": 0.3,
    }  # fmt: skip
    with Cluster(tmp_path, settings, servers=2, workers=0) as cluster:
        cluster.master(port=free_port(), options=["--session"])
        cluster.nodes()
        with snailps.connect(cluster.address, timeout_s=LIMIT_S) as driver:
            table = Table(cluster, driver)
            until(lambda: [*folder.glob("checkpoint-??????/manifest.json")], "a checkpoint")
            for deed in DEEDS:
                for _ in range(2):
                    if how != "good":
                        hurt(folder, how)
                    getattr(table, deed)()
                    table.check()
            (full_disk / "filler").unlink(missing_ok=True)
        table.master.send(signal.SIGTERM)  # it leaves: the journal stays
        table.master.wait()
        assert (tmp_path / "journal" / "facts").exists()
        for server in cluster.processes[1:]:  # they wait for the next one
            server.send(signal.SIGKILL)
