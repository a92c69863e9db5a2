"""How clusters end: whatever is under way just then, soon, with one sentence, and nothing left.

Companion of `test_failures`: here something else is at work when the end comes (an export, an
unpacking, a connection), or a process that the job does not need goes wrong.
"""

import fcntl
import gzip
import json
import os
import queue
import re
import signal
import sys
import threading

import numpy as np
import pytest
from cluster_models import counting_job
from processes import LIMIT_S, PACKAGE, Cluster, Gate, environment, free_port
from test_cluster import figures_of
from test_failures import FAILED, INTERRUPTED, STOPPED, WRONG, assert_one_sentence
from waiting import until

from snailps.master.member import Member, names_of
from snailps.transport import messages
from snailps.transport.control import ControlClient, dial
from snailps.transport.handshake import Channel, Role


@pytest.fixture
def job(tmp_path):
    """A job of ten blocks; its result is known."""
    return counting_job(tmp_path, gates=str(tmp_path / "gates"))


@pytest.fixture
def gate(tmp_path):
    """Makes gates."""
    return lambda number, kind="block": Gate(tmp_path / "gates", number, kind)


class Observer:
    """Looks at a cluster through a control connection of its own, without joining."""

    def __init__(self, cluster):
        sock = dial(
            (cluster.host, cluster.port),
            Channel.CONTROL,
            Role.DRIVER,
            peer_name="m",
            limit_s=LIMIT_S,
        )
        self._client = ControlClient(sock, lambda message: None, lambda why: None)
        self._client.start()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self._client.close()

    def status(self):
        return self._client.call(messages.Ask("status"), LIMIT_S).data

    def until(self, condition):
        """Asks, as fast as the master answers, until the status is as it should be."""
        seen = {}

        def found():
            seen.update(self.status())
            return condition(seen)

        until(found, lambda: f"another status than {seen}")
        return seen


def codes_at_once(cluster):
    """Exit codes of everyone; who had to be ended by force was not at once."""
    codes = cluster.codes()
    for process in cluster.processes:
        assert "still busy" not in process.stderr
    return codes


def states_of(status, role):
    return [node["state"] for node in status["nodes"] if node["role"] == role]


def assert_counted(path, lines=1000, rows=50):
    """The file holds the counts of the whole job."""
    with np.load(path) as saved:
        assert saved["counts.keys"].tolist() == list(range(rows))
        assert saved["counts.rows"].ravel().tolist() == [lines / rows] * rows


# --- while the master exports or saves --------------------------------------------------------


@pytest.mark.long(but=["False"])
@pytest.mark.parametrize("stuck", [False, True])
def test_server_killed_while_the_master_exports_ends_the_cluster(tmp_path, job, gate, stuck):
    at_export = gate(0, "export")
    job |= {"worker_class": "cluster_models:SlowExport"}
    with Cluster(tmp_path, job=job) as cluster:
        master, (server,), _ = cluster.started_at(at_export)
        name = cluster.name_of(server)
        server.send(signal.SIGKILL)
        if not stuck:
            at_export.open()  # and it finds its server gone
        assert codes_at_once(cluster) == [FAILED, -signal.SIGKILL, STOPPED]
        assert_one_sentence(master, f"{name} (", f"process {server.pid}", "is lost", "shard 0")
        at_export.open()


# --- a late helper ----------------------------------------------------------------------------


def test_late_workers_that_cannot_take_part_are_sent_away(tmp_path, job, gate):
    at_block = gate(2)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with Cluster(tmp_path, job=job) as cluster:
        master, *_ = cluster.started_at(at_block)
        lost = cluster.start("worker", cwd=elsewhere, env=environment(PYTHONPATH=str(PACKAGE)))
        assert_one_sentence(lost, "No module named 'cluster_models'", "PYTHONPATH", code=WRONG)
        cluster.write("worker.conf", {"epochs": 7}, "common.conf")
        stubborn = cluster.start("worker")
        words = "worker.conf:2", "epochs is '7' here, but '1' in the job"
        assert_one_sentence(stubborn, *words, code=WRONG)
        for late in (lost, stubborn):
            line = master.wait_line(rf"process {late.pid}\) is stopped")
            assert "the others go on" in line
        at_block.open()
        assert cluster.codes() == [0, 0, 0, WRONG, WRONG]
        assert not master.errors
        figures = figures_of(master)
        assert (figures["workers"], figures["examples"]) == (1, 1000)
    assert_counted(tmp_path / "out.npz")


# --- addresses --------------------------------------------------------------------------------


def test_node_with_master_name_that_does_not_resolve_says_so(tmp_path):
    (tmp_path / "names").write_text("- no-such-host.invalid\n")
    with Cluster(tmp_path) as cluster:
        node = cluster.start(
            "worker", "master_addr=no-such-host.invalid:16831", "init_timeout=0.5", told=False,
            program=[sys.executable, "-m", "with_names"],
            env=environment(NAMES=str(tmp_path / "names")),
        )  # fmt: skip
        assert_one_sentence(node, "no-such-host.invalid:16831")


def test_master_with_address_of_another_machine_says_so(tmp_path, job):
    with Cluster(tmp_path, job=job, host="192.0.2.1") as cluster:
        master = cluster.master(port=16831)
        cluster.port = 0
        assert_one_sentence(
            master,
            "cannot listen on 192.0.2.1:16831",
            "not an address of this machine",
            "listen_addr",
        )


def test_master_with_listen_addr_without_port_listens_on_that_of_master_addr(tmp_path, job):
    with Cluster(tmp_path, job=job) as cluster:
        cluster.port = free_port()
        pairs = [f"master_addr={cluster.address}", "listen_addr=127.0.0.1"]
        master = cluster.start("master", *pairs, told=False)
        master.wait_line(f"master listens on {cluster.address}$")
        master.send(signal.SIGINT)
        assert codes_at_once(cluster) == [INTERRUPTED]


def test_master_with_fewer_fragments_than_shards_says_so(tmp_path, job):
    with Cluster(tmp_path, job=job, servers=3) as cluster:
        master = cluster.master("frag_num=2")
        cluster.nodes()
        assert codes_at_once(cluster) == [FAILED, STOPPED, STOPPED, STOPPED, STOPPED]
        assert_one_sentence(master, "frag_num", "2", "3 shards")
        for node in cluster.processes[1:]:
            told = [line for line in node.lines if "frag_num" in line]
            assert len(told) == 1
            assert "stopped by the master" in told[0]
            assert "Traceback" not in node.stderr


# --- signals ----------------------------------------------------------------------------------


def test_master_with_sigint_while_it_unpacks_ends_at_once(tmp_path, job):
    (tmp_path / "in.gz").write_bytes(gzip.compress(b"1\n"))
    job |= {"input": "in.gz", "scratch_dir": str(tmp_path / "scratch")}
    program = [sys.executable, "-m", "with_endless_input"]
    with Cluster(tmp_path, job=job, program=program) as cluster:
        master = cluster.master()
        cluster.start("server")
        master.wait_line("server 1 .*registered")
        with Observer(cluster) as observer:
            status = observer.until(lambda status: any((tmp_path / "scratch").glob("*.lock")))
            assert status["phase"] in ("forming", "preparing")
        master.send(signal.SIGINT)
        assert codes_at_once(cluster) == [INTERRUPTED, STOPPED]
        assert "nothing was saved" in master.stderr
        assert "Traceback" not in master.stderr
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == []  # no half a copy


def test_job_that_ends_does_not_wait_for_another_one_that_unpacks(tmp_path, job):
    scratch = tmp_path / "scratch"
    scratch.mkdir(mode=0o700)
    with open(scratch / f"{0:032x}.lock", "w") as lock, Cluster(tmp_path, job=job) as cluster:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as who unpacks does
        cluster.master(f"scratch_dir={scratch}")
        cluster.nodes()
        assert codes_at_once(cluster) == [0, 0, 0]


# --- what models do ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("odd", "parts"),
    [
        ("exit", ["SystemExit", "enough"]),
        ("push", ["table 'counts'", "got nan for row 3, column 0", "cluster_models.py, line "]),
    ],
)
def test_job_with_odd_train_names_class_method_and_block(tmp_path, job, odd, parts):
    """What else a model should not do, with each error's words: tests/unit/test_user_code.py."""
    job |= {"worker_class": "cluster_models:Odd", "odd": odd}
    with Cluster(tmp_path, job=job) as cluster:
        codes, master = cluster.run()
        assert codes == [FAILED, STOPPED, FAILED]
        assert_one_sentence(master, "worker", "Odd.train", "block 2 ", "in.txt", *parts)
        (line,) = cluster.processes[-1].errors
        assert "Odd.train" in line


def test_job_with_survey_that_returns_no_bytes_names_class_and_method(tmp_path, job):
    job |= {"worker_class": "cluster_models:OddSurvey", "lines": 1000}
    with Cluster(tmp_path, job=job) as cluster:
        codes, master = cluster.run()
        assert codes == [FAILED, STOPPED, FAILED]
        assert_one_sentence(master, "worker", "OddSurvey.survey", "bytes", "None")


def test_job_whose_loss_is_no_number_fails_and_writes_nothing(tmp_path, job):
    job |= {"worker_class": "cluster_models:Diverges"}
    with Cluster(tmp_path, job=job) as cluster:
        codes, master = cluster.run()
        assert codes == [1, 3, 3]
    assert "block 2: the loss is nan: the training has diverged" in master.errors[0]
    assert not (tmp_path / "out.npz").exists()


def test_json_log_is_json_in_every_pass_even_with_an_infinite_rate(tmp_path, job, gate):
    at_survey, at_block = gate(2, "survey"), gate(2)
    log = tmp_path / "log.fifo"  # so that the test can wait for records
    os.mkfifo(log)
    reading = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    job |= {"worker_class": "cluster_models:Infinite", "lines": 1000}
    lines = queue.SimpleQueue()

    def read():  # all the time: of what a full pipe does not take records are left out
        with os.fdopen(reading) as log:
            for line in log:
                lines.put(line)
        lines.put("")

    reader = threading.Thread(target=read, daemon=True)
    with Cluster(tmp_path, {"log_level": "warning"}, job) as cluster:
        master = cluster.master(f"json_log={log}", "json_log_interval=0.1")
        os.set_blocking(reading, True)
        reader.start()
        records = (
            json.loads(line, parse_constant=pytest.fail)
            for line in iter(lambda: lines.get(timeout=LIMIT_S), "")
        )
        cluster.nodes()
        at_survey.meet()
        survey = next(
            record for record in records if record["phase"] == "survey" and record["units"] > 0
        )
        assert survey["blocks"]["done"] > 0
        gaps = np.diff([next(records)["time"] for _ in range(3)])
        assert gaps.max() > 0.09  # a record that came late is followed by one that did not
        at_survey.open()
        at_block.meet()
        training = next(
            record for record in records if record["phase"] == "training" and record["units"] > 0
        )
        assert training["lr"] is None
        assert training["pass_"] == "epoch 1 of 1"
        assert training["time"] > survey["time"] > 0
        at_block.open()
        last = list(records)[-1]
        assert (last["phase"], last["figures"]["examples"]) == ("done", 1000)
        assert cluster.codes() == [0, 0, 0]
        assert not any(process.stderr for process in cluster.processes)
        (line,) = master.stdout.splitlines()
        told = json.loads(line, parse_constant=pytest.fail)
    # The report is written after the last record.
    assert told == {**last["figures"], "report": "out.report.html"}
    assert told["train_loss"] == 1


@pytest.mark.long
def test_json_log_that_nothing_reads_lets_the_job_end(tmp_path, job):
    log = tmp_path / "log.fifo"
    os.mkfifo(log)
    with Cluster(tmp_path, job=job) as cluster:
        codes, master = cluster.run(f"json_log={log}")
    assert codes == [0, 0, 0]
    assert re.search(rf"json_log: (\d+) of \1 records are not in {log}", master.stderr)


# --- what strangers say -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "tail"), [(8, "worker 7 (host, process 107)"), (1000, "992 more")]
)
def test_names_of_many_members_are_one_short_line(count, tail):
    members = [Member(n, "worker", "host", 100 + n, None, []) for n in range(count)]
    text = names_of(members)
    assert text.startswith("worker 0 (host, process 100), worker 1 ")
    assert text.count("worker") == 8
    assert text.endswith(", " + tail)
