"""`snailps status` of real clusters: its document, its page, and how it watches.

The master is asked while a test holds the cluster at a point: a gate, a stopped process, a lack.
"""

import fcntl
import io
import json
import os
import re
import select
import signal
import struct
import subprocess
import termios
from pathlib import Path

import numpy as np
import pytest
from cluster_models import gated_job
from processes import LIMIT_S, SNAILPS, Cluster, Gate, Process, environment, free_port, run_snailps
from rich.console import Console
from test_ends import Observer
from test_failures import INTERRUPTED
from waiting import until

from snailps import local_cluster
from snailps.cli.printing import page_lines, page_picture
from snailps.node.status import NodeStatus, ShardStatus, Status

TREE = Path(__file__).resolve().parents[2]


@pytest.fixture
def job(tmp_path):
    """Ten blocks that count 1,000 lines."""
    return gated_job(tmp_path)


@pytest.fixture
def gate(tmp_path, job):
    """A worker stands there, at its third block, while something is looked at."""
    return Gate(tmp_path / "gates", 2)


def status_of(cluster, *options):
    """What `snailps status` prints."""
    where = ("--set", f"master_addr={cluster.address}")
    return run_snailps("status", *where, *options).stdout


def watching(cluster, tmp_path, *options):
    command = [*SNAILPS, "status", "--watch", "--interval", "0.1", *options]
    # Its pages come by standard error here, where a test can wait for lines.
    shell = ["bash", "-c", 'exec "$@" 1>&2', "bash", *command]
    return Process("watch", [*shell, "--set", f"master_addr={cluster.address}"], cwd=tmp_path)


def test_status_with_tables_tells_rows_memory_and_what_a_limit_let_go():
    log = io.StringIO()
    with local_cluster(servers=2, workers=0, shard_num=1, frag_num=4, log=log) as cluster:
        plain = cluster.table("plain", dim=8)
        bounded = cluster.table("bounded", dim=8, rows_max=400)
        plain.push(range(1000), np.ones((1000, 8), np.float32))
        bounded.push(range(1000), np.ones((1000, 8), np.float32))
        found = {}

        def told():
            status = json.loads(status_of(cluster, "--json"))
            found.update({table["name"]: table for table in status["tables"]})
            return all(found.get(name, {}).get("made") == 1000 for name in ("plain", "bounded"))

        until(told, lambda: f"2 x 1000 rows in {found}")
        page = status_of(cluster, "-v")
        brief = status_of(cluster)
    assert found["plain"]["rows"] == 1000
    assert found["plain"]["evicted"] == 0
    assert 1000 * (8 + 32) < found["plain"]["bytes"] < 1000 * (8 + 32) * 3
    assert 300 <= found["bounded"]["rows"] <= 400
    assert found["bounded"]["rows"] + found["bounded"]["evicted"] == 1000
    line = next(line for line in page.splitlines() if line.split()[:1] == ["bounded"])
    assert f"{found['bounded']['rows']}" in line.split()
    assert f"{found['bounded']['evicted']}" in line.split()
    assert "bounded" not in brief


def test_status_as_json_has_the_documented_keys(tmp_path, job, gate):
    with Cluster(tmp_path, job=job, servers=2, workers=1) as cluster:
        cluster.master()
        cluster.nodes()
        gate.meet()
        with Observer(cluster) as observer:  # both servers tell now and then, another thread leases
            observer.until(lambda s: all(shard["rows"] for shard in s["shards"]))
            observer.until(lambda s: max(node["leased"] for node in s["nodes"]) == 2)
        status = json.loads(status_of(cluster, "--json"))
        page = status_of(cluster)
        gate.open()
        assert cluster.codes() == [0] * 4
    assert status.keys() == Status.__annotations__.keys()
    assert all(node.keys() == NodeStatus.__annotations__.keys() for node in status["nodes"])
    assert all(shard.keys() == ShardStatus.__annotations__.keys() for shard in status["shards"])
    document = (TREE / "docs" / "operations.md").read_text()
    told = {*status, *status["nodes"][0], *status["shards"][0]}
    assert not [key for key in told if f"`{key}`" not in document]
    (worker,) = [node for node in status["nodes"] if node["role"] == "worker"]
    assert worker["done"] == 2
    assert worker["leased"] == 2  # the one it is at, and the one that it prepares
    assert worker["block_s"] >= 0
    assert worker["heartbeat_s"] < 60
    assert status["epoch"] == worker["epoch"] == 1
    assert sum(shard["fragments"] for shard in status["shards"]) == 64
    assert all(shard["bytes"] > 0 and shard["address"] for shard in status["shards"])
    assert re.search(rf"^worker {worker['id']} .* ago +training.* 2 +2", page, re.MULTILINE)
    assert "blocks done" in page


@pytest.mark.long
def test_status_names_the_server_that_a_worker_waits_for(tmp_path, job, gate):
    with Cluster(tmp_path, job=job, servers=1, workers=1) as cluster:
        cluster.master()
        (server,), (worker,) = cluster.nodes()
        gate.meet()
        name, waits = cluster.name_of(server), cluster.name_of(worker)
        server.send(signal.SIGSTOP)
        gate.open()  # it pulls, and gets no answer
        with Observer(cluster) as observer:
            status = observer.until(lambda s: any(w["who"] == waits for w in s["waits"]))
            observer.until(lambda s: any("a heartbeat of" in w["whom"] for w in s["waits"]))
        (wait,) = [wait for wait in status["waits"] if wait["who"] == waits][:1]
        assert name in wait["whom"]
        assert "rows of table" in wait["whom"]
        assert wait["seconds"] >= 1
        page = status_of(cluster)
        server.send(signal.SIGCONT)
        assert cluster.codes() == [0] * 3
    assert re.search(rf"^the master +\d+ s +a heartbeat of {name}", page, re.MULTILINE)
    assert "waiting process" in page


@pytest.mark.long
def test_status_tells_of_workers_that_read_through_the_master(tmp_path, job, gate):
    descriptor = os.open(tmp_path / "in.txt", os.O_RDONLY)
    path = f"/proc/self/fd/{descriptor}"  # the master alone has it
    try:
        with Cluster(tmp_path, job={**job, "input": path}) as cluster:
            cluster.master(pass_fds=(descriptor,))
            cluster.nodes()
            gate.meet()
            status = json.loads(status_of(cluster, "--json"))
            page = status_of(cluster)
            gate.open()
            assert cluster.codes() == [0] * 3
    finally:
        os.close(descriptor)
    (node,) = [node for node in status["nodes"] if node["fetched"]]
    assert node["role"] == "worker"
    assert node["fetched"] >= 2
    assert node["lacks"] == path
    assert re.search(r"worker \d gets its input from the master, \d blocks so far", page)


def test_status_of_a_forming_cluster_names_who_is_missing(tmp_path, job):
    with Cluster(tmp_path, job=job, servers=1, workers=1) as cluster:
        cluster.master()
        page = status_of(cluster)
        cluster.nodes()
        assert cluster.codes() == [0] * 3
    assert re.search(r"^the master .*1 more server and 1 more worker", page, re.MULTILINE)


@pytest.mark.long
def test_watch_waits_for_a_master_shows_it_and_waits_again(tmp_path, job, gate):
    with Cluster(tmp_path, job=job) as cluster:
        cluster.port = free_port()
        watch = watching(cluster, tmp_path)
        watch.wait_line(r"waiting for the master at .* since the beginning: .*refused")
        cluster.master(port=cluster.port)
        cluster.nodes()
        gate.meet()
        watch.wait_line(r"training 2\d")
        gate.open()
        assert cluster.codes() == [0] * 3
        watch.wait_line(r"waiting for the master at .* since it was last heard")
        watch.send(signal.SIGINT)
        assert watch.wait() == INTERRUPTED
        watch.close()


@pytest.mark.long
def test_watch_as_json_prints_one_document_a_line(tmp_path, job, gate):
    with Cluster(tmp_path, job=job) as cluster:
        cluster.master()
        cluster.nodes()
        gate.meet()
        watch = watching(cluster, tmp_path, "--json")
        lines = [watch.wait_line(r'^\{.*"phase": "training"')]
        gate.open()
        assert cluster.codes() == [0] * 3
        watch.send(signal.SIGINT)
        assert watch.wait() == INTERRUPTED
        watch.close()
    assert json.loads(lines[0])["nodes"]


def test_watch_on_a_terminal_redraws_until_ctrl_c(tmp_path, job, gate):
    with Cluster(tmp_path, job=job) as cluster:
        cluster.master()
        cluster.nodes()
        gate.meet()
        near, far = os.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        command = [
            *SNAILPS,
            "status",
            "-w",
            "--interval",
            "0.2",
            "--set",
            f"master_addr={cluster.address}",
        ]
        watch = subprocess.Popen(
            command, stdin=far, stdout=far, stderr=far, env=environment(TERM="xterm")
        )
        os.close(far)
        try:
            seen = bytearray()

            def told():
                if select.select([near], [], [], 0)[0]:
                    seen.extend(os.read(near, 1 << 16))
                return seen.count(b"worker ") >= 2

            until(told, lambda: f"2 workers in {seen}")
            watch.send_signal(signal.SIGINT)
            assert watch.wait(LIMIT_S) == INTERRUPTED
        finally:
            watch.kill()
            watch.wait()
            os.close(near)
        gate.open()
        assert cluster.codes() == [0] * 3


def large_status(nodes):
    """A status of so many workers, all of which wait."""
    node = {
        "role": "worker", "host": "h", "pid": 1, "address": "10.0.0.1:5", "endpoints": [],
        "heartbeat_s": 0.5, "epoch": 1, "state": "training", "waits": "", "waits_s": 0.0,
        "clock": 3, "rate": 10.0, "done": 1, "leased": 1, "block_s": 5.0, "fetched": 0, "lacks": "",
    }  # fmt: skip
    return {
        "version": "1", "address": "10.0.0.1:1", "cluster_id": "1", "epoch": 1, "phase": "training",
        "waiting_for": "", "progress": 0.5, "pass_": "", "unit": "words", "units": 1,
        "units_per_s": 1.0, "loss": 1.0, "lr": 0.1, "eta_s": None, "elapsed_s": 1.0,
        "blocks": {"left": 1, "leased": 1, "done": 1},
        "nodes": [{**node, "id": number} for number in range(nodes)], "shards": [],
        "waits": [{"who": f"worker {n}", "whom": "worker 0", "seconds": 9.0} for n in range(nodes)],
        "loop": {
            "turns": 9, "busy_s": 1.0, "busy_ms_p999": 4.0, "busy_ms_max": 8.0,
            "counts": [[4.0, 9]], "cpu_counts": [[4.0, 9]],
        },
        "requests_per_s": 0.0, "checkpoint": None, "message": "", "validation": {}, "figures": {},
        "tests": [],
        "job_name": "fasttext", "output": "out", "total_units": None,
    }  # fmt: skip


@pytest.mark.parametrize("height", [24, 50])
def test_picture_of_a_thousand_nodes_fits_the_terminal(height):
    stream = io.StringIO()
    console = Console(file=stream, width=120, height=height, force_terminal=False)
    console.print(page_picture(large_status(1000), height))
    lines = stream.getvalue().splitlines()
    assert len(lines) <= height
    assert sum("more" in line for line in lines) == 2
    assert len(page_lines(large_status(1000))) > 2000


def test_a_master_whose_loop_is_busy_is_told_of():
    status = large_status(1)
    assert not any("loop is busy" in line for line in page_lines(status))
    status["loop"] |= {"busy_ms_p999": 120.0, "busy_ms_max": 300.0, "turns": 999}
    assert not any("loop is busy" in line for line in page_lines(status))  # the start of a job
    status["loop"] |= {"turns": 20_000, "busy_s": 1.0}
    status["elapsed_s"] = 60.0  # turns are long, and few
    assert not any("loop is busy" in line for line in page_lines(status))
    status["loop"] |= {"busy_s": 15.0}
    (line,) = [line for line in page_lines(status) if "loop is busy" in line]
    assert "in 1,000 takes 120 ms or more, the longest 300 ms" in line
