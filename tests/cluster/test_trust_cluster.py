"""The shared secret of a whole cluster: who is kept out."""

import json
from pathlib import Path

import pytest
from cluster_models import COUNTER, write_numbers
from processes import SNAILPS, Cluster, Gate, Process, environment
from test_trust import SECRET, secret_file

# --- a cluster --------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path):
    write_numbers(tmp_path / "in.txt", 1000, 50)
    return {"worker_class": COUNTER, "input": "in.txt", "output": "out", "epochs": 2}


def run_command(folder, *words, env=None):
    """Exit code, standard output and error of a command."""
    with Process("command", [*SNAILPS, *words], cwd=folder, env=env, copied=True) as process:
        return process.wait(), process.stdout, process.stderr


def test_cluster_with_a_secret_trains_and_lets_nobody_in_without(tmp_path, job):
    """Two servers, so that standbys' streams and pulls, pushes, heartbeats are all asked for it."""
    common = {"secret_file": secret_file(tmp_path)}
    gate = Gate(tmp_path / "gates", 2)
    other = {"SNAILPS_SECRET": "x" * 20}
    job["gates"] = "gates"
    with Cluster(tmp_path, common, job, servers=2, workers=1, copied=False) as cluster:
        master, *_ = cluster.started_at(gate)
        at = f"master_addr={cluster.address}"
        code, out, _ = run_command(
            tmp_path, "status", "--json", "--set", at, env=environment(SNAILPS_SECRET=SECRET)
        )
        assert code == 0
        assert json.loads(out)["phase"] == "training"
        code, _, err = run_command(tmp_path, "status", "--set", at)
        assert (code, "asks for a secret, and this process has none" in err) == (1, True), err
        code, _, err = run_command(tmp_path, "status", "--set", at, env=environment(**other))
        assert (code, "has another secret than this process" in err) == (1, True), err
        code, _, err = run_command(tmp_path, "worker", "--set", at, env=environment(**other))
        assert (code, "has another secret than this process" in err) == (1, True), err
        shown = [Path(f"/proc/{p.pid}/cmdline").read_bytes() for p in cluster.processes]
        gate.open()
        assert cluster.codes() == [0, 0, 0, 0], master.stderr
        said = "".join(p.stderr + p.stdout for p in cluster.processes) + str(shown)
    assert SECRET not in said
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "the secret"]
    assert kept
    assert not any(SECRET.encode() in path.read_bytes() for path in kept)


def test_server_beyond_loopback_without_a_secret_refuses_to_start(tmp_path):
    with Cluster(tmp_path) as cluster:
        server = cluster.start("server", "master_addr=127.0.0.1:9", "listen_addr=0.0.0.0:0")
        assert server.wait() == 2
        (error,) = server.errors
        assert "cannot listen on 0.0.0.0:" in error


def test_local_launcher_gives_its_processes_the_environments_secret(tmp_path, job):
    (tmp_path / "job.conf").write_text("".join(f"{k}: {v}\n" for k, v in job.items()))
    code, _, err = run_command(
        tmp_path, "local", "-c", "job.conf", env=environment(SNAILPS_SECRET=SECRET)
    )
    assert code == 0, err
    assert (tmp_path / "out.npz").exists()
    assert SECRET not in err
