"""`local_cluster`: a cluster for a Python session, with tables and training."""

import contextlib
import importlib
import io
import os
import resource
import signal
import sys

import numpy as np
import pytest
from cluster_models import Counter, write_numbers
from processes import (
    LIMIT_S,
    PACKAGE,
    SNAILPS,
    SUPPORT,
    Process,
    is_listening,
    session_members,
)
from waiting import readable

from snailps import LocalCluster, local_cluster
from snailps.errors import ClusterError, ConfigError, MisuseError, NotFinite
from snailps.local.cluster import MARGIN_S


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE), str(SUPPORT)]))


@contextlib.contextmanager
def made(**arguments):
    """A cluster for several tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE), str(SUPPORT)]))
        with local_cluster(log=io.StringIO(), **arguments) as cluster:
            yield cluster


@pytest.fixture(scope="module")
def tables():
    """A session that only has tables."""
    with made(servers=2, workers=0) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def session():
    """A session with one worker; its jobs may fail."""
    with made(threads=1) as cluster:
        yield cluster


def test_local_cluster_table_keeps_what_was_pushed(tables):
    table = tables.table("w", dim=2)
    table.push([7, 9], [[1, 2], [3, 4]])
    table.push([7], [[10, 20]])
    assert table.pull([7, 8, 9]).tolist() == [[11, 22], [0, 0], [3, 4]]
    steps = tables.table("steps", access="sgd", lr=0.5)
    steps.push([2**64 - 1], [1.0])  # one value a row
    assert steps.pull([2**64 - 1]).tolist() == [[-0.5]]
    random = tables.table("random", dim=4, init="uniform", scale=0.1, seed=3)
    first = random.pull(np.arange(1000))
    assert (first == random.pull(np.arange(1000))).all()
    assert -0.1 <= first.min() < -0.09 < 0.09 < first.max() < 0.1
    assert tables.table("w", dim=2).pull([9]).tolist() == [[3, 4]]
    with pytest.raises(ConfigError, match="declared in two ways"):
        tables.table("w", dim=3)
    with pytest.raises(MisuseError, match=r"rows of 2 values, got shape \(1, 3\)"):
        table.push([1], [[1, 2, 3]])
    for push in (table.push, table.push_async):
        with pytest.raises(NotFinite, match=r"^table 'w': .* got -inf for row 9, column 1"):
            push([7, 9], [[1, 2], [3, -np.inf]])
    assert table.pull([7, 9]).tolist() == [[11, 22], [3, 4]]
    tables.table("odd", dim=2, finite=False).push([1], [[np.inf, 1]])
    assert tables.table("odd", dim=2, finite=False).pull([1]).tolist() == [[np.inf, 1]]
    with pytest.raises(ConfigError, match=r"finite=False, and finite=True"):
        tables.table("odd", dim=2)


def test_local_cluster_of_a_process_with_many_open_files_starts_and_ends():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(1024):  # which is more than select() takes
                stack.callback(os.close, os.dup(0))
            with local_cluster(servers=1, workers=0) as cluster:
                cluster.table("w").push([1], [1.0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_local_cluster_tensor_keeps_what_was_pushed(tables):
    tensor = tables.tensor("t", (3, 700), access="sgd", lr=0.5)
    values = np.arange(2100, dtype=np.float32).reshape(3, 700)
    assert (tensor.pull() == 0).all()
    tensor.push(values)
    tensor.push(values)
    assert tensor.pull().dtype == np.float32
    assert (tensor.pull() == -values).all()
    again = tables.tensor("t", [3, 700], access="sgd", lr=0.5)
    assert again.pull().tolist() == (-values).tolist()
    with pytest.raises(MisuseError, match=r"shape \(3, 700\), got \(700, 3\)"):
        tensor.push(values.T)


def test_local_cluster_logistic_twice_with_other_lr(session, tmp_path):
    (tmp_path / "in.svm").write_text("+1 1:1\n-1 2:1\n" * 500)
    model = "examples.logistic:Logistic"
    losses = [
        session.train(model, input=str(tmp_path / "in.svm"), epochs=2, lr=lr)["train_loss"]
        for lr in (1e-6, 1.0, 1e-6)
    ]
    assert losses[1] < 0.1
    # The last begins where the first did: it would be near the second's if rows had stayed.
    assert losses[0] == pytest.approx(losses[2], abs=1e-4) == pytest.approx(np.log(2), abs=0.01)


@pytest.mark.long
def test_local_cluster_values_need_no_quotes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = [write_numbers(tmp_path / name, 100) for name in ('a, b #1 "x"', "c")]
    with local_cluster(json_log=tmp_path / 'log, "1" #2') as cluster:
        assert cluster.train(Counter, input=texts[0].name, epochs=1)["examples"] == 100
        figures = cluster.train(Counter, input=[path.name for path in texts], epochs=1)
        assert figures["examples"] == 200
        assert cluster.train(Counter, input=texts[0], epochs=1)["examples"] == 100
    assert (tmp_path / 'log, "1" #2').exists()


def test_local_cluster_waits_as_long_as_its_settings_say(monkeypatch):
    limits = []
    monkeypatch.setattr(LocalCluster, "wait_for_start", lambda self, s: limits.append(s))
    monkeypatch.setenv("SNAILPS_INIT_TIMEOUT", "100")
    monkeypatch.setenv("SNAILPS_EPOCHS", "3")  # a job's, not ours
    with local_cluster(workers=0, master_time_out=200):
        pass
    assert limits == [300 + MARGIN_S]


def test_local_cluster_trains_a_class_and_then_another(tmp_path):
    text = write_numbers(tmp_path / "in.txt", 500)
    with local_cluster(servers=1, workers=2, threads=1) as cluster:
        cluster.table("counts", dim=1)  # the session's from now on
        figures = cluster.train(Counter, input=str(text), epochs=1, timeout_s=LIMIT_S)
        assert figures["examples"] == 500
        figures = cluster.train("cluster_models:Counter", input=str(text), epochs=3)
        assert figures["examples"] == 1500
        counts = cluster.table("counts", dim=1).pull(np.arange(50))
        assert counts.tolist() == [[40.0]] * 50  # both jobs pushed to the same rows
        figures = cluster.train("cluster_models:Judged", input=str(text), epochs=1)
        assert (figures["failed"], figures["examples"]) == (3, 500)
        status = cluster.status()
        assert status["phase"] == "idle"
        assert [node["role"] for node in status["nodes"]].count("worker") == 2


MODEL = """
from dataclasses import dataclass
import snailps

class Edited(snailps.Worker):
    def train(self, block):
        return {{"units": 1, "examples": 1, "loss": {loss}}}

    @classmethod
    def judge(cls, results):
        return {{"judged": {loss}}}

@dataclass(frozen=True, slots=True)
class PlainSettings(snailps.JobSettings):
    width: list = 8

class Plain(snailps.Worker):
    Settings = PlainSettings
"""


def test_local_cluster_after_reload_trains_the_new_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "edited_model", raising=False)
    text = write_numbers(tmp_path / "in.txt", 100)
    file = tmp_path / "edited_model.py"
    file.write_text(MODEL.format(loss=1.5))
    edited = importlib.import_module("edited_model")
    with local_cluster(threads=1) as cluster:
        for loss in (1.5, 22.25):
            file.write_text(MODEL.format(loss=loss))
            edited = importlib.reload(edited)
            figures = cluster.train(edited.Edited, input=text, epochs=1, timeout_s=LIMIT_S)
            assert (figures["train_loss"], figures["judged"]) == (loss, loss)
        plain = "edited_model:Plain"
        for model in (edited.Plain, plain):  # refused here; by the master
            with pytest.raises(
                ConfigError, match=rf"{plain}: PlainSettings.width: a setting is an"
            ):
                cluster.train(model, input=text)
        with pytest.raises(ConfigError, match=r"subclass of snailps.Worker.*got <class 'dict'>"):
            cluster.train(dict, input=text)
        assert cluster.train(edited.Edited, input=text, epochs=1)["judged"] == 22.25


def test_local_cluster_whose_worker_is_killed_between_two_jobs_trains_the_next(tmp_path):
    text = write_numbers(tmp_path / "in.txt", 500)
    with local_cluster(log=io.StringIO()) as cluster:

        def pid():
            nodes = cluster.status()["nodes"]
            return next(node["pid"] for node in nodes if node["role"] == "worker")

        first = pid()
        killed = os.pidfd_open(first)
        os.kill(first, signal.SIGKILL)
        readable(killed)
        os.close(killed)
        figures = cluster.train(Counter, input=text, epochs=1, timeout_s=LIMIT_S)
        assert figures["examples"] == 500
        assert pid() != first


@pytest.mark.long
def test_local_cluster_that_failed_lets_the_session_live(tmp_path):
    write_numbers(tmp_path / "in.txt", 500)
    (tmp_path / "session.py").write_text(
        "import os\n"
        "from snailps import SnailError, local_cluster\n"
        "from snailps.node import process as node\n"
        "node.GRACE_S = 0.0  # after which a process that has to end is ended by force\n"
        "with local_cluster() as cluster:\n"
        "    nodes = cluster.status()['nodes']\n"
        "    pid, = (node['pid'] for node in nodes if node['role'] == 'server')\n"
        "    os.kill(pid, 9)\n"
        "    try:\n"
        "        cluster.train('cluster_models:Counter', input='in.txt')\n"
        "    except SnailError:\n"
        "        cluster._driver._watcher.join()\n"
        "        print('alive')\n"
    )
    with Process("session", [SNAILPS[0], "session.py"], cwd=tmp_path) as session:
        assert session.wait() == 0, session.stderr
        assert session.stdout == "alive\n"


def fail_inside(cluster, pids):
    pids += [node["pid"] for node in cluster.status()["nodes"]]
    raise ZeroDivisionError


def test_local_cluster_after_the_block_leaves_nothing():
    pids = []
    with pytest.raises(ZeroDivisionError), local_cluster() as cluster:
        fail_inside(cluster, pids)
    assert not [pid for pid in pids if pid != os.getpid() and session_members(pid)]
    host, _, port = cluster.address.rpartition(":")
    assert not is_listening((host, int(port)))


def test_local_cluster_without_workers_cannot_train(tables, tmp_path):
    text = write_numbers(tmp_path / "in.txt", 500)
    with pytest.raises(ClusterError, match="a job needs a worker"):
        tables.train(Counter, input=str(text))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"servers": 0}, "needs a server"),
        ({"master_time_out": "soon"}, "master_time_out"),
        ({"shard_num": "many"}, "local_cluster(shard_num): shard_num: expected"),
        ({"thraeds": 2}, "did you mean 'threads'"),
    ],
)
def test_local_cluster_with_wrong_arguments_refuses(arguments, part):
    log = io.StringIO()
    with pytest.raises(ConfigError) as caught, local_cluster(log=log, **arguments):
        pass
    assert part in str(caught.value)
    assert log.getvalue() == ""
