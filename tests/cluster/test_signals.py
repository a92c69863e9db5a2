"""Signals to real processes: each row of the table in docs/operations.md is played."""

import re
import signal
from pathlib import Path

import numpy as np
import pytest
from cluster_models import counting_job
from processes import SNAILPS, Cluster, Gate, Process, children_of, environment, free_port
from test_ends import Observer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
INTERRUPTED, LEFT = 130, 143
LINES = 1000


def rows():
    """Cells of the table: who gets which signals while what, the exit code, what happens."""
    table = PAGE.read_text().split("\n## Signals\n\n")[1].split("\n\n")[0]
    for line in table.splitlines()[2:]:
        who, signals, phase, code, result = (cell.strip() for cell in line.strip("|").split("|"))
        for one in signals.split(" or "):
            yield who.strip("`"), one, phase, int(code), result


CASES = list(rows())


@pytest.fixture
def job(tmp_path):
    """Ten blocks that count; the third and the export wait at gates."""
    return counting_job(tmp_path, gates=str(tmp_path / "gates"), frag_num=64) | {
        "worker_class": "cluster_models:SlowExport"
    }


def counted(folder):
    with np.load(folder / "out.npz") as saved:
        return saved["counts.rows"].sum()


def test_table_has_every_process_signal_and_phase():
    assert {who for who, *_ in CASES} >= {"master", "server", "worker", "snailps train"}
    assert {phase for _, _, phase, *_ in CASES} == {"training", "saving"}
    assert len(CASES) > 20


@pytest.mark.long(
    but=[
        "master-SIGINT-training",
        "master-SIGTERM-training",
        "master_and_all_servers-SIGTERM-training",
        "master-SIGTERM-saving",
        "master-SIGINT,_then_SIGINT-saving",
        "worker-SIGHUP-training",
    ]
)
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case[0] != "snailps train"],
    ids=lambda case: "-".join(case[:3]).replace(" ", "_"),
)
def test_signal_does_what_the_table_says(tmp_path, job, case):
    who, signals, phase, code, result = case
    settings = {"on_node_loss": "stop"} if "without a journal" in who else {}
    at_block = Gate(tmp_path / "gates", 2)
    at_export = Gate(tmp_path / "gates", 0, "export")
    size = {"servers": 1 + (who == "server"), "workers": 1 + (who == "worker")}
    with Cluster(tmp_path, settings, job=job, **size) as cluster:
        master = cluster.master(port=free_port())
        some_servers, workers = cluster.nodes()
        at_block.meet()
        cluster.await_joined(at_block.who(workers))
        if phase == "saving":
            at_block.open()
            at_export.meet()
        nodes = {"server": some_servers[:1], "worker": [at_block.who(workers)]}
        got = nodes.get(who.split()[0], [master, *(some_servers if "all servers" in who else [])])
        first, *more = [getattr(signal, name) for name in signals.split(", then ")]
        if who.split()[0] == "server":
            with Observer(cluster) as observer:
                observer.until(lambda status: all(s["standby"] for s in status["shards"]))
        for process in got:
            process.send(first)
        for number in more:
            with Observer(cluster) as observer:  # two at once would be one
                observer.status()
            master.send(number)
        CHECKS[result](cluster, master, got, at_block, at_export, code)
    left = {path.name for path in tmp_path.iterdir() if "out" in path.name}
    assert left - {"out.report.html"} == (set() if "nothing" in result else {"out.npz"})


def ends_early(cluster, master, got, at_block, at_export, code):
    """All end; the model has what was trained until then."""
    master.wait_line("interrupted: finishing")
    at_block.open()
    at_export.open()
    assert got[0].wait() == code
    assert cluster.codes() == [INTERRUPTED] + [0] * (len(cluster.processes) - 1)
    assert 0 < counted(cluster.folder) < LINES
    assert "saved: nothing" not in master.stderr


def ends_at_once(cluster, master, got, at_block, at_export, code):
    with Observer(cluster) as observer:
        observer.until(lambda status: status["phase"] == "stopping")
    at_block.open()
    assert master.wait() == code
    assert "nothing was saved" in master.stderr
    cluster.codes()


def goes_on(cluster, master, got, at_block, at_export, code):
    """The master alone has ended; the next one finishes what it began."""
    if at_export.pid:
        master.wait_line("interrupted: ending the export")
        at_export.open()
    assert master.wait() == code
    assert "the same command goes on" in master.stderr
    assert all(process.runs for process in cluster.processes[1:])
    assert not (cluster.folder / "out.npz").exists()
    ended_early = "interrupted: finishing" in master.stderr
    cluster.processes.remove(master)
    again = cluster.master(port=cluster.port)
    at_block.open()
    at_export.open()
    assert again.wait() == (INTERRUPTED if ended_early else 0), again.stderr
    assert set(cluster.codes()) <= {0, INTERRUPTED}
    assert (counted(cluster.folder) < LINES) == ended_early
    assert "taking over" in again.stderr


def is_written(cluster, master, got, at_block, at_export, code):
    master.wait_line("the model is being saved, and that continues")
    at_export.open()
    assert master.wait() == code
    assert set(cluster.codes()) == {0}
    assert counted(cluster.folder) == LINES


def others_go_on(cluster, master, got, at_block, at_export, code):
    master.wait_line(rf"process {got[0].pid}\): SIGTERM")
    at_block.open()
    assert got[0].wait() == code
    at_export.open()
    assert set(cluster.codes()) == {0}
    assert counted(cluster.folder) == LINES


CHECKS = {
    "the training ends early and the model is saved": ends_early,
    "all processes end at once, and nothing is saved": ends_at_once,
    "it leaves, and the same command goes on": goes_on,
    "the model is written to its end": is_written,
    "it leaves, and the others go on": others_go_on,
}


@pytest.mark.long(but=["SIGHUP-training", "SIGINT-saving"])
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case[0] == "snailps train"],
    ids=lambda case: "-".join(case[1:3]),
)
def test_signal_to_a_cluster_of_this_machine_does_what_the_table_says(tmp_path, job, case):
    _, name, phase, code, _ = case
    at_block = Gate(tmp_path / "gates", 2)
    at_export = Gate(tmp_path / "gates", 0, "export")
    (tmp_path / "job.conf").write_text("".join(f"{key}: {job[key]}\n" for key in job))
    words = [*SNAILPS, "local", "-c", str(tmp_path / "job.conf"), "--verbose"]
    with Process("snailps", words, cwd=tmp_path, env=environment()) as run:
        at_block.meet()
        if phase == "saving":
            at_block.open()
            at_export.meet()
        run.send(getattr(signal, name))
        run.wait_line(
            "being saved, and that continues" if phase == "saving" else "interrupted: finishing"
        )
        at_block.open()
        at_export.open()
        assert run.wait() == code
        assert not children_of(run.pid)
    assert not re.search("Traceback|saved: nothing", run.stderr)
    assert (counted(tmp_path) == LINES) == (phase == "saving")
