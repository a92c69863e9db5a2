"""`log_format: json`: every line that processes of a cluster write is one JSON object."""

import json
import re
import signal

import pytest
from cluster_models import counting_job, gated_job
from processes import SNAILPS, Cluster, Gate, Process

KEYS = ["time", "level", "process", "host", "pid", "message"]
LEVELS = {"debug", "info", "warning", "error"}


def records_of(process):
    """What a process wrote on standard error, line by line; each is checked."""
    records = [json.loads(line) for line in process.lines]
    for record in records:
        assert list(record)[:6] == KEYS
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record["time"])
        assert record["level"] in LEVELS
        assert record["message"].strip()
        assert isinstance(record["pid"], int)
    return records


def local(tmp_path, *words):
    """A run by `snailps local`, whose settings Cluster has written."""
    command = [*SNAILPS, "local", "-c", str(tmp_path / "job.conf"), *words]
    return Process("local", command, cwd=tmp_path)


def test_cluster_with_a_killed_server_writes_json_alone(tmp_path):
    job = {**gated_job(tmp_path), "worker_class": "cluster_models:Chatty"}
    gate = Gate(tmp_path / "gates", 2)
    settings = {"log_format": "json", "log_level": "debug", "replication": "sync"}
    with Cluster(tmp_path, settings, job, servers=2, workers=1) as cluster:
        master, (victim, _), (worker,) = cluster.started_at(gate)
        master.wait_line("every shard has its standby")
        victim.send(signal.SIGKILL)
        master.wait_line('"event": "lost"')
        gate.open()
        codes = cluster.codes()
        assert sorted(codes) == [-signal.SIGKILL, 0, 0, 0]
        told = {process.name: records_of(process) for process in cluster.processes}
        printed = [json.loads(line) for line in worker.stdout.splitlines()]
        pids = {process.name: process.pid for process in cluster.processes}
    for name, records in told.items():
        assert {record["pid"] for record in records} == {pids[name]}
    (lost,) = [record for record in told["master 1"] if record.get("event") == "lost"]
    assert lost["level"] == "warning"
    assert re.fullmatch(r"server \d", lost["who"])
    assert lost["who"] in lost["message"]
    (end,) = [record for record in told["master 1"] if record.get("event") == "end"]
    assert (end["code"], end["figures"]["examples"]) == (0, 1000)
    assert {record["process"] for record in told["worker 1"][-3:]} == {
        re.match(r"worker \d", told["worker 1"][-1]["process"])[0]
    }
    assert 'a "quoted"\x1b[31m word' in [record["message"] for record in told["worker 1"]]
    assert "and no end yet" in [record["message"] for record in told["worker 1"]]
    assert printed[0]["message"] == "at block 0"
    assert json.loads(master.stdout)["examples"] == 1000


@pytest.mark.parametrize(
    ("job", "words", "code", "why"),
    [
        ({"fails_on": 3}, (), 1, "planted"),
        ({}, ("--set", "epochs=many"), 2, "epochs: expected"),
    ],
    ids=["model fails", "wrong setting"],
)
def test_failure_of_a_local_cluster_is_json_to_the_end(tmp_path, job, words, code, why):
    settings = {"log_format": "json"}
    job = {**counting_job(tmp_path), "worker_class": "cluster_models:Chatty", **job}
    with Cluster(tmp_path, settings, job) as cluster:
        run = local(tmp_path, *words)
        cluster.processes.append(run)
        assert run.wait() == code
        records = records_of(run)
    errors = [record for record in records if record.get("fatal")]
    assert errors
    assert any(why in record["message"] for record in errors)
    assert not any("snailps: error" in record["message"] for record in records)
