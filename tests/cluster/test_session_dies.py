"""Masters, servers and drivers of sessions are killed: rows stay, drivers wait and go on."""

import signal
from contextlib import suppress

import pytest
from faults.schedule import Schedule
from faults.session import SESSION_KILLS, SessionRig
from processes import LIMIT_S, Cluster
from test_failures import full_disk, make_room  # noqa: F401 - a fixture

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
