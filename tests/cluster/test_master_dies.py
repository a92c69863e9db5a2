"""kill -9 of the master: the same command takes over, and nothing is lost or done twice."""

import json
import os
import shutil
import signal
import sys
from functools import partial

import numpy as np
import pytest
from cluster_models import counting_job, write_numbers
from processes import SNAILPS, Cluster, Gate, Process, children_of, environment, free_port
from test_bsp import files_of, prepare, run, undisturbed
from test_checkpoint_cluster import assert_counted_once, trained
from test_cluster import figures_of
from test_failures import LONG_S, WRONG, assert_one_sentence
from waiting import LIMIT_S, until
from with_time import Clock

from snailps.cli.masters import ask, trust_of
from snailps.node.run_registry import RunRegistry
from snailps.store.checkpoint.folder import CheckpointFolder
from snailps.vectors.fasttext_bin import read_bin

LINES, ROWS = 1000, 50


@pytest.fixture
def job(tmp_path):
    """A job of ten blocks whose result is known."""
    return counting_job(tmp_path, "gates", "journal", on_node_loss="recover")


class Mortal(Cluster):
    """A cluster whose master is killed and started again with the same command."""

    sets, how = (), {}

    def begin(self, *sets, **how):
        """Starts all processes; the master."""
        self.sets, self.how = sets, how
        master = self.master(*sets, port=free_port(), **how)  # which it is to have again
        self.nodes()
        return master

    def kill(self, master):
        """SIGKILL, and the same command again; the new master."""
        if master.popen.poll() is None:
            master.send(signal.SIGKILL)
        assert master.wait() == -signal.SIGKILL
        self.processes.remove(master)
        again = self.master(*self.sets, port=self.port, **self.how)
        self.processes.remove(again)
        self.processes.insert(0, again)  # where others look for it
        return again

    def ends_well(self):
        """Waits until all have ended with 0."""
        codes = self.codes()
        assert codes == [0] * len(self.processes), self.processes[0].stderr

    def killed_at(self, *gates, line="", before=lambda: None, **how):
        """A job whose master is killed while a worker stands at a gate; the last master."""
        master = self.begin(**how)
        for gate in gates:
            gate.meet()
            before()
            master = self.kill(master)
            if line:
                master.wait_line(line)
            gate.open()
        self.ends_well()
        return master

    def crashed_at(self, gate):
        """Kills the master while a worker stands at a gate."""
        master = self.begin()
        gate.meet()
        master.send(signal.SIGKILL)
        master.wait()
        return master


def assert_trained_once(tmp_path):
    """Each block was trained once, and each of its pushes counts once."""
    assert_counted_once(tmp_path)
    assert trained(tmp_path) == [*range(10)]


def test_master_killed_in_the_training_is_taken_over(tmp_path, job):
    gates = [Gate(tmp_path / "gates", block) for block in (2, 6)]
    with Mortal(tmp_path, job=job, workers=3, servers=2) as cluster:
        master = cluster.killed_at(*gates, line="took over from the previous master")
    assert_trained_once(tmp_path)
    figures = figures_of(master)
    assert (figures["examples"], figures["blocks"], figures["progress"]) == (LINES, 10, 1.0)
    assert figures["loss_by_epoch"] == [1.0]
    assert not (tmp_path / "out.journal").exists()


@pytest.mark.long(but=["damaged"])
@pytest.mark.parametrize("how", ["damaged", "no folder"])
def test_master_that_takes_over_needs_no_checkpoint(tmp_path, job, how):
    """Servers have the rows: twice in a row the run ended because of files that it did not need."""
    gates = [Gate(tmp_path / "gates", block) for block in (2, 6)]
    job |= {"checkpoint_interval": 0.05, "checkpoints_kept": 1}
    folder = tmp_path / "out.checkpoints"

    def hurt():
        if folder.is_dir():
            until(lambda: [c for c in CheckpointFolder(folder).found() if c.state == "good"], "one")
            for manifest in folder.glob("checkpoint-??????/manifest.json"):
                manifest.write_bytes(manifest.read_bytes()[:-9])
        if how == "no folder":
            shutil.rmtree(folder, ignore_errors=True)
            folder.write_text("in its place")  # as root no folder is read-only

    with Mortal(tmp_path, job=job, workers=3, servers=2) as cluster:
        master = cluster.killed_at(*gates, line="took over from the previous master", before=hurt)
    assert_trained_once(tmp_path)
    words = "is damaged" if how == "damaged" else "the checkpoints cannot be used: "
    assert words in master.stderr


def await_compacted(tmp_path):
    """Waits until the journal holds a state of the job instead of all facts."""
    facts = tmp_path / "out.journal" / "facts"
    until(lambda: b'["state",' in facts.read_bytes(), "a compacted journal")


def test_master_killed_behind_a_compaction_is_taken_over(tmp_path, job):
    write_numbers(tmp_path / "in.txt", 4000, ROWS)
    job |= {"consistency": "ssp", "block_bytes": 100}
    gates = [Gate(tmp_path / "gates", block) for block in (40, 90)]
    grown = {"set": {"snailps.master.journal:GROWN_BYTES": 1500}}
    hurt = {"program": [sys.executable, "-m", "faults.hurt"]}
    hurt["env"] = environment(HURT=json.dumps(grown), HURT_LATER=str(tmp_path / "aim-"))
    with Mortal(tmp_path, job=job, workers=3, servers=2) as cluster:
        line, before = "took over from the previous master", partial(await_compacted, tmp_path)
        master = cluster.killed_at(*gates, line=line, before=before, **hurt)
    figures = figures_of(master)
    assert trained(tmp_path) == [*range(figures["blocks"])]
    assert figures["examples"] == 4000
    assert figures["loss_by_epoch"] == [1.0]
    with np.load(tmp_path / "out.npz") as tables:
        assert np.unique(tables["counts.rows"]).tolist() == [4000 / ROWS]
    assert not (tmp_path / "out.journal").exists()


def test_master_killed_while_the_cluster_forms_is_taken_over(tmp_path, job):
    with Mortal(tmp_path, job=job) as cluster:
        master = cluster.master(port=free_port())
        server = cluster.start("server")
        server.wait_line("registered with the master")
        master = cluster.kill(master)
        master.wait_line("server 1 .* is back")
        cluster.start("worker")
        cluster.ends_well()
    assert_counted_once(tmp_path)


def test_master_killed_in_a_survey_has_each_block_counted_once(tmp_path, job):
    gates = [Gate(tmp_path / "gates", block, "survey") for block in (3, 7)]
    job |= {"worker_class": "cluster_models:Together", "lines": LINES}
    with Mortal(tmp_path, job=job, workers=2) as cluster:
        cluster.killed_at(*gates, line="took over from the previous master")
    assert_trained_once(tmp_path)


@pytest.mark.long
def test_master_killed_between_survey_and_training_puts_the_rows_once(tmp_path, job):
    job |= {"worker_class": "cluster_models:Loaded", "lines": LINES}
    gate = Gate(tmp_path / "gates", 0, "load")
    with Mortal(tmp_path, job=job, workers=2) as cluster:
        cluster.killed_at(gate)
    with np.load(tmp_path / "out.npz") as tables:
        assert np.unique(tables["counts.rows"]).tolist() == [1020.5]


def test_master_killed_in_the_export_exports_again(tmp_path, job):
    job |= {"worker_class": "cluster_models:SlowExport"}
    gate = Gate(tmp_path / "gates", 0, "export")
    with Mortal(tmp_path, job=job, workers=2) as cluster:
        master = cluster.killed_at(gate)
    assert figures_of(master)["scanned"] == ROWS
    assert figures_of(master)["examples"] == LINES
    assert trained(tmp_path) == [*range(10)]


@pytest.mark.long
def test_master_killed_after_the_export_trains_nothing_again(tmp_path, job):
    job |= {"worker_class": "cluster_models:SlowExport"}
    gate = Gate(tmp_path / "gates", 0, "export")
    with Mortal(tmp_path, job=job) as cluster:
        master = cluster.begin()
        worker = cluster.processes[-1]
        gate.meet()
        worker.send(signal.SIGSTOP)  # so that the master waits for it to say goodbye
        gate.open()
        master.wait_line(r"wrote .*out\.npz")
        master.send(signal.SIGKILL)
        master.wait()
        worker.send(signal.SIGCONT)
        cluster.processes.remove(master)
        again = cluster.master(port=cluster.port)
        assert again.wait() == 0
        figures = figures_of(again)
        cluster.codes()
    assert (figures["examples"], figures["blocks"]) == (LINES, 10)
    assert_trained_once(tmp_path)


@pytest.mark.long
def test_master_killed_while_it_writes_a_manifest_leaves_the_checkpoints_good(tmp_path, job):
    job |= {"worker_class": "cluster_models:SlowManifest", "param_backup_period": 1}
    block, later = (Gate(tmp_path / "gates", number) for number in (5, 8))
    manifest = Gate(tmp_path / "gates", 0, "manifest")
    with Mortal(tmp_path, job=job, servers=2) as cluster:
        master = cluster.begin()
        block.meet()
        manifest.meet()
        (half,) = (tmp_path / "out.checkpoints").glob("*.part")
        (half / "mark").touch()  # the next one may have the same name, and be begun by then
        master = cluster.kill(master)
        master.wait_line("took over")
        assert not (half / "mark").exists()
        manifest.open()
        block.open()
        later.meet()
        master.wait_line(r"checkpoint \d+: \d+% of the training")
        later.open()
        cluster.ends_well()
    assert_counted_once(tmp_path)
    found = CheckpointFolder(tmp_path / "out.checkpoints").found()
    assert {one.state for one in found} == {"good"}


def test_master_killed_in_a_clock_changes_no_bit(tmp_path):
    folder, gates = tmp_path / "killed", tmp_path / "gates"
    folder.mkdir()
    gate = Gate(gates, 7, "seal")
    job = prepare(tmp_path, "logistic", gates=str(gates))
    with Mortal(folder, job=job, workers=2, servers=2) as cluster:
        master = cluster.killed_at(gate, line="took over")
        assert figures_of(master)["progress"] == 1
    plain, _ = undisturbed(tmp_path.parent, "logistic")
    assert files_of(folder)["out.tables.npz"] == plain["out.tables.npz"]


def test_master_that_takes_over_keeps_the_rows_of_n_grams_that_the_survey_chose(tmp_path):
    folder, other, gates = tmp_path / "killed", tmp_path / "plain", tmp_path / "gates"
    folder.mkdir()
    other.mkdir()
    gate = Gate(gates, 7, "seal")
    job = prepare(tmp_path, "words", gates=str(gates), bucket="auto")
    with Mortal(folder, job=job, workers=2, servers=2) as cluster:
        master = cluster.killed_at(gate, line="took over")
        assert figures_of(master)["progress"] == 1
    plain, _ = run(other, prepare(tmp_path, "words", bucket="auto"), 1, 1)
    assert files_of(folder)["out.tables.npz"] == plain["out.tables.npz"]
    assert 0 < read_bin(folder / "out.bin").header.bucket < 2_000_000


def test_master_killed_while_a_round_is_inspected_applies_it_once(tmp_path):
    (tmp_path / "gates").mkdir()
    gate = Gate(tmp_path / "gates", 2, "look")
    job = {
        "worker_class": "clock_models:Mean", "input": "", "output": "out", "rounds": 5,
        "gates": str(tmp_path / "gates"), "on_node_loss": "recover",
    }  # fmt: skip
    with Mortal(tmp_path, job=job, workers=2, servers=2) as cluster:
        figures = figures_of(cluster.killed_at(gate))
    # Each round adds the weighted mean of 1 and 2: 5 / 3.
    assert figures["model"] == pytest.approx([25 / 3] * 2, rel=1e-6)
    assert [one["round"] for one in figures["by_round"]] == [*range(1, 6)]


def test_master_killed_is_taken_over_at_another_address_that_its_name_has_then(tmp_path, job):
    """What another machine does that sees the journal: nodes ask for the address at each dial."""
    gate, names = Gate(tmp_path / "gates", 3), tmp_path / "names"
    hurt = {"program": [sys.executable, "-m", "with_names"], "env": environment(NAMES=str(names))}
    names.write_text("127.0.0.1 master.example\n")
    with Mortal(tmp_path, job=job, workers=2, servers=2) as cluster:
        master = cluster.master(port=free_port())
        told = f"master_addr=master.example:{cluster.port}"
        nodes = [cluster.start(role, told, **hurt) for role in ("server", "worker") for _ in "12"]
        gate.meet()
        master.send(signal.SIGKILL)
        for node in nodes:
            node.wait_line("the master at master.example:.* is gone")
        cluster.processes.remove(master)
        again = cluster.start(
            "master", f"listen_addr=127.0.0.2:{cluster.port}", options=["--json"], told=False
        )
        later = names.with_name("later")
        later.write_text("127.0.0.2 master.example\n")
        later.replace(names)  # who reads in the middle of a write would ask another server
        again.wait_line("took over from the previous master")
        gate.open()
        cluster.ends_well()
    assert_trained_once(tmp_path)
    assert figures_of(again)["examples"] == LINES


# --- no master takes over, or another one -------------------------------------------------------


@pytest.mark.long
def test_nodes_whose_master_is_not_started_again_end_and_name_it(tmp_path, job):
    gate, clock = Gate(tmp_path / "gates", 3), Clock(tmp_path)
    with Mortal(tmp_path, job=job, program=clock.program) as cluster:
        master = cluster.begin()
        gate.meet()
        master.send(signal.SIGKILL)
        gate.open()
        for process in cluster.processes[1:]:
            process.wait_line(f"waiting {LIMIT_S:.0f} s for it to be started again")
        clock.advance(LONG_S)
        for process in cluster.processes[1:]:
            assert_one_sentence(
                process,
                f"the master at {cluster.address} is gone",
                f"not started again within {LIMIT_S:.0f} s",
            )
        assert master.wait() == -signal.SIGKILL
    assert set(trained(tmp_path)) <= {*range(5)}  # what was leased when it died


@pytest.mark.long
def test_master_with_a_damaged_journal_goes_on_with_what_the_workers_say(tmp_path, job):
    gate = Gate(tmp_path / "gates", 6)
    with Mortal(tmp_path, job=job, workers=2) as cluster:
        master = cluster.crashed_at(gate)
        facts = tmp_path / "out.journal" / "facts"
        first = facts.read_bytes().index(b'["done"')
        os.truncate(facts, first + 20)  # not one block is known to be done
        again = cluster.kill(master)
        again.wait_line("facts: incomplete from byte")
        again.wait_line(r"took over .* 0% of the training done")
        gate.open()
        cluster.ends_well()
    assert_trained_once(tmp_path)
    assert figures_of(again)["examples"] == LINES


def flip(path, at, bit=4):
    """Turns one bit of a file over."""
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def test_master_whose_journal_has_a_flipped_bit_in_its_first_record_takes_over(tmp_path, job):
    gate = Gate(tmp_path / "gates", 6)
    with Mortal(tmp_path, job=job, workers=2) as cluster:
        master = cluster.crashed_at(gate)
        flip(tmp_path / "out.journal" / "facts", 20)
        again = cluster.kill(master)
        again.wait_line("first record was damaged; its copy, cluster, has it")
        again.wait_line("took over from the previous master")
        gate.open()
        cluster.ends_well()
    assert_trained_once(tmp_path)


@pytest.mark.long
def test_master_whose_journal_is_damaged_begins_nothing_until_it_is_mended(tmp_path, job):
    gate = Gate(tmp_path / "gates", 6)
    with Mortal(tmp_path, job=job, workers=2) as cluster:
        master = cluster.crashed_at(gate)
        folder = tmp_path / "out.journal"
        at = folder.joinpath("facts").read_bytes().index(b'["route"')
        flip(folder / "facts", at)
        before = {file.name: file.read_bytes() for file in folder.iterdir() if file.name != "lock"}
        refused = cluster.master(port=cluster.port)
        assert_one_sentence(
            refused, "out.journal/facts is damaged", "does not fit its checksum", "records behind",
            "Nothing was changed", "--fresh",
        )  # fmt: skip
        after = {file.name: file.read_bytes() for file in folder.iterdir() if file.name != "lock"}
        assert after == before
        cluster.processes.remove(refused)
        flip(folder / "facts", at)  # as from a copy
        again = cluster.kill(master)
        again.wait_line("took over from the previous master")
        gate.open()
        cluster.ends_well()
    assert_trained_once(tmp_path)


def test_journal_of_another_job_is_refused_until_begun_anew(tmp_path, job):
    gate = Gate(tmp_path / "gates", 3)
    with Mortal(tmp_path, job=job) as cluster:
        cluster.crashed_at(gate)
        other = cluster.master("dim=2", port=cluster.port)
        assert_one_sentence(
            other, "out.journal is the journal of another job", "dim is 2 here and 1 there",
            "--fresh", code=WRONG,
        )  # fmt: skip
        gate.open()
        old = cluster.processes[1:3]
        fresh = cluster.master("dim=2", "fresh=true", port=cluster.port)
        fresh.wait_line("begun anew with --fresh")
        for process in old:
            assert_one_sentence(process, "refuses this process", "another run has begun")
        nodes = [cluster.start(role) for role in ("server", "worker")]
        assert [process.wait() for process in [fresh, *nodes]] == [0] * 3
    assert figures_of(fresh)["examples"] == LINES


@pytest.mark.long
def test_run_of_which_nobody_is_left_is_begun_anew(tmp_path, job):
    gate = Gate(tmp_path / "gates", 3)
    with Mortal(tmp_path, job=job) as cluster:
        cluster.begin()
        gate.meet()
        for process in cluster.processes:
            process.send(signal.SIGKILL)
            process.wait()
        gate.open()
        again = cluster.master(port=cluster.port)
        again.wait_line("no process of the previous run is left")
        nodes = [cluster.start(role) for role in ("server", "worker")]
        assert [process.wait() for process in [again, *nodes]] == [0] * 3
    assert_counted_once(tmp_path)


def test_second_master_with_the_same_journal_is_refused(tmp_path, job):
    gate = Gate(tmp_path / "gates", 3)
    with Mortal(tmp_path, job=job) as cluster:
        cluster.begin()
        gate.meet()
        port = cluster.port
        other = cluster.master()
        assert_one_sentence(other, "another master keeps its journal here", "out.journal")
        cluster.port = port
        gate.open()
        cluster.processes.remove(other)
        cluster.ends_well()


def nodes_of(cluster):
    """All members, as the master has them."""
    return ask(cluster.address, LIMIT_S)["nodes"]


@pytest.mark.long
def test_master_that_was_stopped_for_long_goes_on_with_everybody(tmp_path, job):
    """When it goes on, each of them has been silent for long, as far as it knows."""
    gate, clock = Gate(tmp_path / "gates", 3), Clock(tmp_path)
    with Mortal(tmp_path, job=job, workers=2) as cluster:
        master = cluster.begin(program=clock.program)
        gate.meet()
        for process in cluster.processes:
            process.send(signal.SIGSTOP)
        clock.advance(LONG_S)
        clock.silent(LONG_S)
        master.send(signal.SIGCONT)
        until(
            lambda: all((one["heartbeat_s"] or 0) > LONG_S for one in nodes_of(cluster)),
            lambda: f"silence of all of {nodes_of(cluster)}",
        )
        for process in cluster.processes[1:]:
            process.send(signal.SIGCONT)
        gate.open()
        cluster.ends_well()
        assert "is lost" not in master.stderr
    assert_trained_once(tmp_path)


# --- under a launcher -------------------------------------------------------------------------


def launch(tmp_path, job, servers, workers):
    """``snailps local`` with such a job."""
    lines = [f"{key}: {value}" for key, value in job.items()]
    (tmp_path / "job.conf").write_text("\n".join(lines) + "\n")
    size = ["--servers", str(servers), "--workers", str(workers), "--json"]
    return Process("local", [*SNAILPS, "local", "-c", "job.conf", *size], cwd=tmp_path)


def test_launcher_starts_a_killed_master_again_where_that_helps(tmp_path, job):
    """Not where `on_node_loss` is "stop": test_cli_cluster.py."""
    gate = Gate(tmp_path / "gates", 3)
    local = launch(tmp_path, job, 1, 2)
    try:
        gate.meet()
        (pid,) = children_of(local.pid, "master")
        os.kill(pid, signal.SIGKILL)
        local.wait_line("master: was ended by SIGKILL: restarting it, to take over")
        local.wait_line("the master was started again")
        gate.open()
        assert local.wait() == 0
    finally:
        assert not local.close()
    assert json.loads(local.stdout)["examples"] == LINES
    assert_trained_once(tmp_path)


def await_redundancy(local, lost=0):
    """Waits until every shard of a launcher's cluster has its standby, a lost process apart."""
    run, *_ = local.until(
        lambda: [run for run in RunRegistry().runs() if run.launcher == local.pid], "its run"
    )
    status = {}

    def redundant():
        status.update(ask(run.address, LIMIT_S, trust_of(run)))
        pids = {node["pid"] for node in status["nodes"] if node["state"] not in ("gone", "lost")}
        return lost not in pids and all(shard["state"] == "ready" for shard in status["shards"])

    local.until(redundant, lambda: f"a standby of each shard of {status}")


def await_started_again(local, role, victim):
    """Waits until the launcher says that it has started another process for this one."""
    line = rf"{role} \d+: was ended by SIGKILL: restarting it"
    count = 2 if role == "server" else 1
    local.wait_line(line)
    local.until(
        lambda: victim not in (now := children_of(local.pid, role)) and len(now) >= count, line
    )


@pytest.mark.long(but=["server"])
@pytest.mark.parametrize("role", ["worker", "server"])
def test_launcher_replaces_a_killed_node(tmp_path, job, role):
    """Also the only worker; not an only server, whose rows are gone."""
    gates = [Gate(tmp_path / "gates", block) for block in (3, 6)]
    local = launch(tmp_path, job | {"consistency": "bsp", "micro_batches": 2}, 2, 1)
    try:
        for gate in gates:
            gate.meet()
            await_redundancy(local)
            victim = children_of(local.pid, role)[0]
            os.kill(victim, signal.SIGKILL)
            await_started_again(local, role, victim)
            await_redundancy(local, lost=victim)
            gate.open()
        assert local.wait() == 0
    finally:
        assert not local.close()
    assert json.loads(local.stdout)["examples"] == LINES
    with np.load(tmp_path / "out.npz") as tables:
        assert np.unique(tables["counts.rows"]).tolist() == [LINES / ROWS]
