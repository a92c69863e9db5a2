"""`snailps.connect`: jobs on a cluster of other processes, begun with `master --session`."""

import os
import re
import signal

import numpy as np
import pytest
import session_models as models
from cluster_models import counting_job
from processes import LIMIT_S, PACKAGE, SNAILPS, SUPPORT, Cluster, Gate, Process
from waiting import until

import snailps
from snailps.errors import ClusterError, ConfigError, DataError

LINES = 500


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("a b c\n" * LINES)
    return path


def connected(remote):
    """A connection to its cluster, which may still be forming."""
    return snailps.connect(remote.address, secret_file=str(remote.secret), timeout_s=LIMIT_S)


def trains(session, text):
    """Whether the session trains a job."""
    figures = session.train(models.Lines, input=text, epochs=1, output="out", timeout_s=LIMIT_S)
    return figures["lines"] == LINES


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    """A session with a secret; its processes are real commands."""
    folder = tmp_path_factory.mktemp("remote")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE), str(SUPPORT)]))
        secret = folder / "secret"
        secret.write_text("correct-horse-battery-staple")
        secret.chmod(0o600)
        with Cluster(folder, {"secret_file": secret}, copied=False) as made:
            master = made.master(options=["--session"])
            made.nodes()
            made.secret = secret
            yield made
            master.send(signal.SIGINT)  # what ends an idle session is no failure
            assert master.wait() == 0, master.stderr


def test_connect_runs_jobs_one_after_the_other_and_leaves_the_cluster(remote, text):
    for _ in range(2):
        with connected(remote) as session:
            assert snailps.default_cluster() is session
            assert trains(session, text)
            with pytest.raises(ClusterError, match=r"planted failure(.|\n)*in inner"):
                session.train(models.FailsInTrain, input=text, epochs=1, timeout_s=LIMIT_S)
            job = session.run(models.Lines, {"epochs": 2}, input=text)  # its worker began anew
            with job.results() as results:
                assert results.pull("lines", [1]).tolist() == [[2.0 * LINES]]
            table = session.table("own", dim=1)
            table.push([1], [[1.0]])
    with connected(remote) as session:
        assert session.table("own", dim=1).pull([1]).tolist() == [[2.0]]


def test_partial_fit_takes_its_model_along(remote):
    with connected(remote) as session:
        jobs = session.status()["session"]["jobs"]
        words = snailps.FastText(dim=8, bucket=50, min_count=1, epochs=1, cluster=session)
        words.fit(["a b c d"] * 200)
        before = words.wv["b"]
        words.set_params(lr=1e-6).partial_fit(["e f g"] * 50)
        assert set(words.wv.words) >= {"a", "d", "e", "g"}
        assert words.wv["b"] == pytest.approx(before, abs=1e-3)
        labels = snailps.TextClassifier(dim=8, epochs=2, cluster=session)
        labels.fit(["good film", "bad film"] * 50, [1, 0] * 50)
        assert labels.partial_fit(["dull film"] * 50, [2] * 50).classes_.tolist() == [0, 1, 2]
        x = np.eye(4)[[0, 1, 2, 3] * 50]
        linear = snailps.LogisticRegression(cluster=session).fit(x, [0, 1, 0, 1] * 50)
        before = linear.coef_
        linear.partial_fit(x[:1], [0])
        assert linear.coef_ == pytest.approx(before, abs=0.2)
        assert session.status()["session"]["jobs"] - jobs == 6


def test_files_of_this_process_are_fitted_and_gone_on_with(remote, tmp_path):
    table, lines = tmp_path / "clicks.csv", tmp_path / "clicks.svm"
    table.write_text("a,city,y\n" + "1,Rome,yes\n,Oslo,no\n" * 100)
    lines.write_text("1 1:1\n0 2:1\n" * 100)
    with connected(remote) as session:
        jobs = session.status()["session"]["jobs"]
        for cls in (snailps.LogisticRegression, snailps.FMClassifier, snailps.SparseNetClassifier):
            for path, label in ((table, "y"), (lines, None)):
                model = cls(epochs=2, cluster=session).fit(path, label)
                assert model.partial_fit(path).score(path) == 1
                assert len(model.history_) == 3
        table.write_text("a,y\n1,yes\n2,no\n" * 50)
        with pytest.raises(DataError, match=r"clicks\.csv has no column 'city'"):
            snailps.LogisticRegression(cluster=session).fit(
                table, "y", columns=["city:categorical"]
            )
        assert session.status()["session"]["jobs"] - jobs == 12


def test_worker_begins_anew_as_it_was_started(remote, text):
    with connected(remote) as session:
        pids = {node["pid"] for node in session.status()["nodes"] if node["role"] == "worker"}
        with pytest.raises(ClusterError, match="planted failure"):
            session.train(models.SpoilsItsProcess, input=text, epochs=1, timeout_s=LIMIT_S)
        assert trains(session, text)
        again = {node["pid"] for node in session.status()["nodes"] if node["role"] == "worker"}
        assert again == pids


def test_two_drivers_get_the_results_of_their_own_jobs(remote, text):
    short = text.parent / "short.txt"
    short.write_text("a b c\n" * 7)
    with (
        connected(remote) as first,
        connected(remote) as second,
    ):
        jobs = []

        def look(status):
            """While this runs the job ends, and another driver's begins and ends."""
            if status["phase"] == "training" and not jobs:
                models.Lingers.let_end(text)
                until(lambda: second.status()["phase"] == "idle", "the end of the first job")
                jobs.append(second.run(models.Lines, {"epochs": 1}, input=short))

        settings = {"epochs": 1, "output": "out"}
        job = first.run(models.Lingers, settings, input=text, on_status=look)
        assert job.figures["lines"] == LINES
        with pytest.raises(ClusterError, match="another job has begun"), job.results():
            pass
        with jobs[0].results() as results:
            assert models.Lines.export(results) == {"lines": 7.0}


def test_connect_to_a_busy_session_says_so(remote, text):
    with (
        connected(remote) as first,
        connected(remote) as second,
    ):
        refused = []

        def look(status):
            if status["phase"] == "training" and not refused:
                with pytest.raises(ClusterError) as caught:
                    second.train(models.Lines, input=text)
                refused.append(str(caught.value))
                models.Lingers.let_end(text)

        first.run(models.Lingers, {"epochs": 1}, input=text, on_status=look)
        assert re.match(r"the cluster runs another job \(training, \d+%\): wait", refused[0])
        first.run(models.Lines, {"epochs": 1}, input=text)


def is_alone(session):
    """Whether this is the only driver of its session."""
    return sum(node["role"] == "driver" for node in session.status()["nodes"]) == 1


@pytest.mark.parametrize(
    ("output", "ending"), [("", "its driver is gone, and the job has no output"), ("out", "")]
)
def test_job_of_a_driver_that_is_gone_ends_unless_it_has_an_output(remote, text, output, ending):
    (remote.folder / "driver.py").write_text(
        "import snailps, sys\n"
        "session = snailps.connect(sys.argv[1], secret_file=sys.argv[2], timeout_s=600)\n"
        "session.train('session_models:Lingers', epochs=2, output=sys.argv[3], input=sys.argv[4])\n"
    )
    arguments = ["driver.py", remote.address, str(remote.secret), output, str(text)]
    driver = Process("driver", [SNAILPS[0], *arguments], cwd=remote.folder)
    with driver, connected(remote) as session:
        driver.until(lambda: session.status()["phase"] == "training", "a job that trains")
        driver.send(signal.SIGKILL)
        until(lambda: is_alone(session), "the master to miss the driver")
        models.Lingers.let_end(text)
        until(lambda: session.status()["phase"] == "idle", "the end of its job")
        status = session.status()
        assert status["message"] == ending
        assert bool(status["figures"]) == bool(output)
        assert trains(session, text)


def test_connect_says_why_it_cannot(remote, tmp_path, monkeypatch):
    wrong = tmp_path / "wrong"
    wrong.write_text("incorrect-horse-battery-staple")
    wrong.chmod(0o600)
    with pytest.raises(ClusterError, match=r"^no session at 127.0.0.1:\d+: .*secret"):
        snailps.connect(remote.address, secret_file=str(wrong), timeout_s=LIMIT_S)
    with pytest.raises(ClusterError, match=r"^no session at 127.0.0.1:1: "):
        snailps.connect("127.0.0.1:1", timeout_s=0.5)
    with pytest.raises(ConfigError, match="did you mean 'request_timeout'"):
        snailps.connect(remote.address, request_timeot=3)
    with pytest.raises(ConfigError, match=r"secret_file.*nowhere"):
        snailps.connect(remote.address, secret_file=str(tmp_path / "nowhere"))


def test_connect_to_a_cluster_with_a_job_of_its_own_says_so(tmp_path):
    job = counting_job(tmp_path, gates=str(tmp_path / "gates"))
    gate = Gate(tmp_path / "gates", 0)
    with Cluster(tmp_path, job=job) as cluster:
        cluster.started_at(gate)
        with pytest.raises(ClusterError, match=r"takes no jobs from Python.*master --session"):
            snailps.connect(cluster.address)
        gate.open()
        assert cluster.codes() == [0] * 3
