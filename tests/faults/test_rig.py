"""Faults of workers, of connections and of the disk, and that the harness notices what it must."""

import contextlib
import os
import signal

import numpy as np
import pytest
from processes import Process

from faults.cluster import OVER, Hang, JobOver, Rig
from faults.schedule import COMPACTIONS, DISK, KILLS, LINKS, MANIFESTS, Schedule
from snailps.store.checkpoint.folder import CheckpointFolder

pytestmark = pytest.mark.limit(1800)  # a rig bounds each step, as long as it gets further
WALK = {
    "worker_class": "faults.counting:Walk", "consistency": "bsp", "micro_batches": 4, "pause": 0.03,
}  # fmt: skip


def test_connections_in_trouble_cost_no_acknowledged_push(tmp_path):
    with Rig(tmp_path, job={"window": 8, "dim": 16, "shared": 64}) as rig:
        rig.form().run(Schedule(1, 6, LINKS)).finish()
        assert rig.assert_exact().in_flight == 0
        assert sum(link.cuts for place in rig.places for link in place.data) > 0


def test_servers_workers_and_master_killed_cost_no_acknowledged_push(tmp_path):
    with Rig(tmp_path, job={"window": 8, "carry": True, "pause": 0.002}) as rig:
        rig.form()
        rig.until(rig.all_have_pushed, "a push of each worker")  # those that live on are looked at
        rig.run(Schedule(2, 3, KILLS))
        rig.until(rig.has_resumed, "pushes after the last kill")
        rig.finish()
        rig.assert_exact()
        assert all(event.resumed_s is not None for event in rig.events)


def test_bsp_under_faults_has_the_bits_of_the_undisturbed_run(tmp_path):
    found = []
    for name, faults in (("fair", ()), ("foul", KILLS)):
        folder = tmp_path / name
        folder.mkdir()
        # Clocks are held while checkpoints copy rows, and servers die meanwhile, too.
        saved = {"checkpoint_dir": str(folder / "saved"), "checkpoint_interval": 0.1}
        with Rig(folder, job=WALK | (saved if faults else {}), block_num=500) as rig:
            rig.ends = True
            with contextlib.suppress(JobOver):
                rig.form().run(Schedule(4, len(faults), faults or KILLS, every=10)).wait_over()
            rig.end()
            assert bool(rig.events) == bool(faults)
        with np.load(folder / "out.npz") as tables:
            order = np.argsort(tables["counts.keys"])
            found.append(tables["counts.rows"][order].tobytes())
    assert found[0] == found[1]


def test_full_disk_costs_a_checkpoint_and_no_push(tmp_path):
    job = {"checkpoint_interval": 0.2, "checkpoints_kept": 1, "pause": 0.005}
    with Rig(tmp_path, job=job | {"checkpoint_dir": str(tmp_path / "disk" / "saved")}) as rig:
        if not rig.mount():
            pytest.skip("a disk of its own needs the right to mount one (root)")
        rig.form().run(Schedule(1, 1, DISK))
        assert "CHECKPOINT FAILED" in rig.master.process.stderr
        failed = len(rig.master.process.lines)
        rig.until(
            lambda: any("checkpoint " in line and "% of" in line
                        for line in rig.master.process.lines[failed:]),
            "a checkpoint after the disk was emptied",
        )  # fmt: skip
        rig.finish()
        rig.assert_exact()


def test_master_killed_at_a_manifest_costs_no_push_and_leaves_good_checkpoints(tmp_path):
    job = {"checkpoint_interval": 0.2, "checkpoint_dir": str(tmp_path / "saved"), "pause": 0.005}
    with Rig(tmp_path, job=job) as rig:
        rig.form().run(Schedule(1, 2, MANIFESTS)).finish()
        rig.assert_exact()
    found = CheckpointFolder(tmp_path / "saved").found()
    assert {one.state for one in found} == {"good"}


def test_master_killed_while_it_compacts_its_journal_costs_no_push(tmp_path):
    with Rig(tmp_path, job={"pause": 0.005}) as rig:
        rig.form().run(Schedule(1, 4, COMPACTIONS)).finish()
        rig.assert_exact()


@pytest.mark.parametrize("roles", [("master", "server"), ("server", "master")])
def test_server_and_master_lost_together_cost_no_acknowledged_push(tmp_path, roles):
    with Rig(tmp_path, job={"window": 8, "pause": 0.002}) as rig:
        rig.form()
        victims = [rig.alive(role)[-1] for role in roles]
        for victim in victims:
            rig.kill(victim)
        for victim in victims:
            rig.revive(victim)
        rig.until(rig.is_redundant, "redundancy after server and master were lost")
        rig.finish()
        rig.assert_exact()


# --- the harness notices -------------------------------------------------------------------------


def test_rig_notices_a_run_that_hangs_and_says_where(tmp_path):
    with Rig(tmp_path, stall_s=3) as rig:
        rig.form()
        for place in rig.alive("server"):
            rig.proxy.partition(place.data)
        text = (
            r"more acknowledged pushes before fault 0\nSchedule\(1, 1(.|\n)*server 2(.|\n)*worker 2"
        )
        with pytest.raises(Hang, match=text):
            rig.run(Schedule(1, 1, ["pause worker"], every=100_000))
        rig.proxy.heal()
        rig.finish()
        rig.assert_exact()


def test_rig_waits_for_the_line_that_the_job_is_over(tmp_path):
    """It may come later than the end of a worker."""
    words = tmp_path / "words"
    os.mkfifo(words)

    class Master(Process):
        def wait_line(self, pattern):
            words.write_text(f"{OVER}\n")
            return super().wait_line(pattern)

    rig = Rig(tmp_path, servers=0, workers=1)
    rig.ends = True
    with (
        contextlib.closing(rig.proxy),
        Master("master", ["sh", "-c", "cat words >&2"], cwd=tmp_path) as master,
        Process("worker", ["true"], cwd=tmp_path) as worker,
    ):
        rig.master.process, rig.places[0].process = master, worker
        worker.wait()
        with pytest.raises(JobOver):
            rig.look()


def test_rig_notices_a_process_that_ends_by_itself(tmp_path):
    with Rig(tmp_path, servers=1) as rig:
        rig.form()
        rig.alive("worker")[0].process.send(signal.SIGKILL)
        with pytest.raises(AssertionError, match="worker at place 1 ended by itself"):
            rig.until(lambda: False, "a worker that is killed")
        rig.places.pop(1)
        rig.finish()
