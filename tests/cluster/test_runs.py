"""`snailps status` and `snailps jobs` find the runs of this machine, and know how they ended."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_models import gated_job
from processes import (
    LIMIT_S,
    SNAILPS,
    Cluster,
    Gate,
    Process,
    environment,
    free_port,
    run_snailps,
)
from test_failures import WRONG

FAILED = 1
MODULES_MAX = 350
"""Of Python and of ours: a model needs twice as many."""


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """Runs of this test only."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "runtime"))
    return tmp_path / "runtime" / "snailps"


@pytest.fixture
def job(tmp_path):
    """Ten blocks that count 1,000 lines; a worker stands at the third."""
    return gated_job(tmp_path)


@pytest.fixture
def gate(tmp_path, job):
    return Gate(tmp_path / "gates", 2)


def snailps(*words):
    """Exit code, standard output and standard error of a command that ends by itself."""
    done = run_snailps(*words, code=None)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def test_status_without_a_run_says_so_at_once():
    code, out, _ = snailps("status")
    assert code == FAILED
    assert out.startswith("none of your jobs runs on this machine\n")
    assert snailps("jobs")[:2] == (0, "")


@pytest.mark.long
@pytest.mark.parametrize("words", ["status", "--version"])
def test_command_that_needs_no_model_takes_little(words):
    """Nearly all that it takes are its imports."""
    command = [sys.executable, "-X", "importtime", "-m", "snailps", words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env=environment()
    )
    lines = done.stderr.splitlines()
    found = [line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")]
    assert "snailps.cli" in found
    assert len(found) < MODULES_MAX, found
    parts = ("master", "worker", "server", "models", "estimators", "transport")
    assert not {f"snailps.{part}" for part in parts} & {*found}


def test_status_finds_the_only_run_and_later_says_how_it_ended(tmp_path, job, gate):
    with Cluster(tmp_path, job=job) as cluster:
        master, _, _ = cluster.started_at(gate)
        assert snailps("status", "--pid", str(master.pid))[0] == 0
        code, page, _ = snailps("status")
        assert code == 0
        assert f"master {cluster.address}" in page
        by_number = json.loads(snailps("status", "1", "--json")[1])
        by_output = json.loads(snailps("status", job["output"], "--json")[1])
        assert by_number["cluster_id"] == by_output["cluster_id"]
        listed = snailps("jobs")[1].splitlines()
        (record,) = map(json.loads, snailps("jobs", "--json")[1].splitlines())
        gate.open()
        assert cluster.codes() == [0] * 3
    assert re.match(r"1 +\w+ +training \d+%", listed[1])
    assert (record["run"], record["state"], record["phase"]) == (1, "running", "training")
    assert record["address"] == cluster.address
    code, out, _ = snailps("status")
    assert code == FAILED
    assert re.search(
        r"^run 1 \(.*\) was done after \d+ (s|min), \d+ (s|min) ago$", out, re.MULTILINE
    )
    assert re.search(r"^  trained 1,000 examples in .* s, .* examples/s", out, re.MULTILINE)
    assert re.search(r"^  wrote .*out", out, re.MULTILINE)
    assert snailps("status", "1")[0] == 0
    code, again, _ = snailps("status", "--pid", str(master.pid), "--watch")
    assert code == 0
    # Another test's process may wait for a master at this port, which was free again.
    said = [line for line in out.splitlines() if line.startswith("  ")]
    lasting = [
        [line for line in lines if "waits for it" not in line]
        for lines in (again.splitlines()[1:], said)
    ]
    assert lasting[0] == lasting[1]
    (record,) = map(json.loads, snailps("jobs", "--json")[1].splitlines())
    assert (record["state"], record["code"]) == ("done", 0)
    assert record["figures"]["examples"] == 1000


def test_status_lists_several_runs_and_shows_the_chosen_one(tmp_path, job, gate):
    job = {**job, "input": tmp_path / "in.txt", "gates": tmp_path / "gates"}
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    with (
        Cluster(folders[0], job={**job, "output": folders[0] / "x"}) as one,
        Cluster(folders[1], job={**job, "output": folders[1] / "x"}) as other,
    ):
        one.master()
        other.master()
        code, out, error = snailps("status")
        assert code == WRONG
        assert [line.split()[0] for line in out.splitlines()] == ["run", "1", "2"]
        assert "snailps status RUN" in error
        shown = [json.loads(snailps("status", str(n), "--json")[1])["address"] for n in (1, 2)]
        assert shown == [one.address, other.address]
        gate.open()
        for cluster in (one, other):
            cluster.nodes()
            assert cluster.codes() == [0] * 3


def test_killed_run_says_how_to_go_on_and_keeps_its_number(tmp_path, job, gate):
    with Cluster(tmp_path, job={**job, "on_node_loss": "recover"}) as cluster:
        master = cluster.master(port=free_port())  # which it is to have again
        cluster.nodes()
        gate.meet()
        master.send(signal.SIGKILL)
        assert master.wait() == -signal.SIGKILL
        code, out, _ = snailps("status")
        assert code == FAILED
        assert "run 1 (" in out
        assert "was killed before its end" in out
        words = shlex.split(re.search("^  continue with: (.*)$", out, re.MULTILINE)[1])
        at = words.index("master")
        assert words[at + 1] == "-c"
        assert Path(words[at + 2]).parent == tmp_path
        cluster.processes.remove(master)
        cluster.master(port=cluster.port)
        assert json.loads(snailps("status", "1", "--json")[1])["address"] == cluster.address
        gate.open()
        assert cluster.codes() == [0] * 3
    assert "1 " in snailps("jobs")[1].splitlines()[1]


def test_failed_run_says_why(tmp_path, job):
    job = {key: value for key, value in job.items() if key != "gates"}
    with Cluster(tmp_path, job={**job, "fails_on": 3}) as cluster:
        cluster.run()
        (error,) = cluster.processes[0].errors
    code, out, _ = snailps("status")
    assert code == FAILED
    assert "run 1 (" in out
    assert " failed after " in out
    assert error.removeprefix("snailps: error: ") in out


def test_watch_follows_a_killed_master_that_is_started_again_until_the_end(tmp_path, job, gate):
    cluster = Cluster(tmp_path, job={**job, "on_node_loss": "recover"})
    command = [*SNAILPS, "local", "-c", str(tmp_path / "job.conf")]
    with cluster:
        local = Process("local", command, cwd=tmp_path)
        cluster.processes.append(local)
        gate.meet()
        watch = Process(
            "watch",
            ["bash", "-c", 'exec "$@" 1>&2', "bash", *SNAILPS, "status", "-w", "--interval", "0.1"],
            cwd=tmp_path,
        )
        cluster.processes.append(watch)
        watch.wait_line(r"^\[.*training|^training")
        (record,) = map(json.loads, snailps("jobs", "--json")[1].splitlines())
        os.kill(record["pid"], signal.SIGKILL)
        local.wait_line("take over")
        gate.open()
        assert local.wait() == 0
        assert watch.wait() == 0
    assert re.search(r"^run 1 .* was done after", watch.stderr, re.MULTILINE)
    assert shlex.split(record["command"]) == ["snailps", *command[command.index("local") :]]


def test_run_behind_a_secret_is_found_with_its_file(tmp_path, job, gate):
    secret = tmp_path / "secret"
    secret.write_text("correct-horse-battery-staple")
    secret.chmod(0o600)
    with Cluster(tmp_path, {"secret_file": "secret"}, job=job) as cluster:
        cluster.started_at(gate)
        assert snailps("status")[0] == 0
        assert "training" in snailps("jobs")[1]
        secret.rename(tmp_path / "moved")
        code, _, error = snailps("status")
        assert code == WRONG
        assert "secret" in error
        assert "no access" in snailps("jobs")[1]
        assert snailps("status", "--set", f"secret_file={tmp_path / 'moved'}")[0] == 0
        gate.open()
        assert cluster.codes() == [0] * 3
    assert "correct-horse" not in (tmp_path / "runtime" / "snailps" / "1.json").read_text()
