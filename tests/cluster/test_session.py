"""Jobs of a session: errors reach the caller, the session lives, the driver reads the tables."""

import gc
import io
import os
import re
import signal
import time

import numpy as np
import pytest
import session_models as models
from processes import LIMIT_S, PACKAGE, SUPPORT, driver_of, members_of
from waiting import readable, until

import snailps
from snailps.errors import ClusterError, ConfigError, DataError
from snailps.local import session as session_module
from snailps.local.fork_server import ForkServer

LINES = 500


@pytest.fixture(scope="module")
def session():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE), str(SUPPORT)]))
        patch.setenv("SNAILPS_EPOCHS", "7")  # of a job: none of a session's
        with snailps.cluster(threads=1, log=io.StringIO()) as made:
            yield made


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("a b c\n" * LINES)
    return path


def trains(session, text):
    """Whether the session trains a job."""
    figures = session.train(models.Lines, input=text, epochs=1, output="out", timeout_s=LIMIT_S)
    return figures["lines"] == LINES


def test_jobs_of_a_session_have_no_settings_of_the_environment(session, text):
    figures = session.train(models.Lines, input=text, output="out", timeout_s=LIMIT_S)
    assert (figures["epochs"], figures["lines"]) == (5, 5 * LINES)  # the default


def test_figures_that_are_no_plain_values_fail_their_job_and_no_table(session, text):
    table = session.table("mine", dim=2)
    table.push([1], [[1.0, 2.0]])
    with pytest.raises(
        ClusterError,
        match=r"Judges\.judge \(.*session_models\.py, line \d+\): the figure \['auc'\] is object",
    ):
        session.train(models.Judges, input=text, epochs=1, timeout_s=LIMIT_S)
    figures = session.train(models.Judges, input=text, kind="numpy", epochs=1, timeout_s=LIMIT_S)
    assert (figures["auc"], figures["hits"], figures["at"]) == (0.5, 3, ["a"])
    assert table.pull([1]).tolist() == [[1.0, 2.0]]


WRONG_SETTINGS = [
    ({"input": [["a", "b"]]}, r"^input: element 0 is a list of 2: expected a path.*fit\(\)"),
    ({"input": [["a", "b"]] * 100_000}, r"^input: element 0 is a list"),
    ({"input": "a b c " * 20_000}, r"^input: a text of 120,000 characters"),
    ({"input": ["x" * 300] * 20_000}, r"^input: 20,000 values of"),
    ({"input": ["one\ntwo"]}, r"^input: element 0 is 'one\\ntwo', which contains a line break"),
    ({"input": ["a\0b"]}, r"NUL character"),
    ({"input": [b"bytes"]}, r"^input: element 0 is a bytes of 5"),
    ({"input": {"a": 1}}, r"^input: a dict of 1: expected a path"),
    ({"input": (word for word in "ab")}, r"^input: a generator: expected a path"),
    ({"input": np.array(["a", "b"])}, r"^input: an? ndarray of 2"),
    ({"input": None}, r"^input: None: expected a path"),
    ({}, r"^input is not set"),
    ({"input": []}, r"^input is not set"),
    ({"epochs": None}, r"^epochs: None: expected a number"),
    ({"epochs": "many"}, r"epochs: expected a whole number"),
    ({"epoch": 1}, r"unknown setting 'epoch'; did you mean 'epochs'"),
    ({"a\nb": 1}, r"^unknown setting 'a\\nb'"),
    ({"x" * 500: 1}, r"^unknown setting 'x"),
]


@pytest.mark.parametrize(("settings", "words"), WRONG_SETTINGS)
def test_session_refuses_settings_of_a_wrong_type(session, text, settings, words):
    if settings and "input" not in settings:
        settings = {"input": text, **settings}
    with pytest.raises(ConfigError, match=words) as caught:
        session.train(models.Lines, **settings)
    assert len(str(caught.value)) < 500


def test_session_refuses_empty_and_missing_input_and_goes_on(session, text, tmp_path):
    (tmp_path / "empty").touch()
    with pytest.raises(DataError, match="the input is empty"):
        session.train(models.Lines, input=tmp_path / "empty")
    with pytest.raises(DataError, match="does not exist"):
        session.train(models.Lines, input=tmp_path / "nowhere")
    assert trains(session, text)


@pytest.mark.parametrize("method", ["Constructor", "Train", "Export", "Check"])
def test_session_gives_the_frames_of_user_code_and_goes_on(session, text, method):
    model = getattr(models, f"FailsIn{method}")
    with pytest.raises(ClusterError) as caught:
        session.train(model, input=text, epochs=1, output="out", timeout_s=LIMIT_S)
    said = str(caught.value)
    assert "KeyError: 'planted failure'" in said
    files = re.findall(r'^  File "(.*)", line \d+, in (\w+)$', said, re.MULTILINE)
    assert {file for file, _ in files} == {models.__file__}
    assert [name for _, name in files][-1] == "inner"
    assert len(files) == 2
    assert trains(session, text)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            models.Exits,
            r"failed: Exits\(\) failed: SystemExit: 3 \(.*, line \d+, in __init__\)",
        ),
        (models.Leaves, r"is lost: .*\(worker .*has exited with code 3\)$"),
        (
            models.IsKilled,
            r"no other worker is left \(worker \d+ was ended by SIGKILL, perhaps because m.*\)$",
        ),
    ],
)
def test_session_whose_worker_ends_goes_on(session, text, model, said):
    with pytest.raises(ClusterError, match=rf"^worker \d+ .*{said}"):
        session.train(model, input=text, epochs=1, timeout_s=LIMIT_S)
    assert trains(session, text)


def test_worker_that_hangs_does_not_hold_up_the_next_job(session, text, monkeypatch):
    worker = next(child for child in members_of(session) if child.role == "worker")
    hangs = models.Hangs.mark(text)  # the job's time is over when the worker does, not before

    def monotonic():
        return time.monotonic() + (LIMIT_S if hangs.exists() else 0.0)

    monkeypatch.setattr(session_module, "awake_s", monotonic)
    with pytest.raises(ClusterError, match=r"not done after \d+ s .*it was cancelled"):
        session.train(models.Hangs, input=text, epochs=1, timeout_s=LIMIT_S)
    assert trains(session, text)
    assert worker.process.returncode == -signal.SIGKILL


def ready_workers(session):
    return {
        node["pid"]
        for node in session.status()["nodes"]
        if node["role"] == "worker" and node["state"] == "ready"
    }


def test_worker_of_a_failed_job_is_replaced_before_the_next_one(session, text):
    assert trains(session, text)
    before = ready_workers(session)
    old = [child.process for child in members_of(session) if child.process.pid in before]
    with pytest.raises(ClusterError, match=r"^worker \d+"):
        session.train(models.FailsInTrain, input=text, epochs=1, timeout_s=LIMIT_S)
    until(lambda: (now := ready_workers(session)) and not now & before, "another worker")
    now = ready_workers(session)
    assert [process.returncode is None for process in old] == [False]  # it was waited for
    assert trains(session, text)
    assert ready_workers(session) == now


def test_cluster_closed_behind_a_failed_job_leaves_no_process(text, monkeypatch):
    made, start = [], ForkServer.start

    def noted(*arguments):
        made.append(start(*arguments))
        return made[-1]

    monkeypatch.setattr(ForkServer, "start", noted)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE), str(SUPPORT)]))
    made_of = snailps.cluster(workers=2, threads=1, log=io.StringIO())
    with made_of as session, pytest.raises(ClusterError, match="planted failure"):
        session.train(models.FailsInTrain, input=text, epochs=1, timeout_s=LIMIT_S)
    assert len(made) >= 4
    assert [process.returncode is None for process in made] == [False] * len(made)  # waited for


def test_killed_master_is_named_with_what_is_lost_and_its_log(text, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE), str(SUPPORT)]))
    with snailps.cluster(threads=1, log=io.StringIO()) as session:
        master = members_of(session)[0].process
        killed = []

        def kill(status):
            if status["phase"] == "training" and not killed:
                killed.append(master.pid)
                master.kill()

        said = (
            rf"^the master \(process {master.pid}\) was ended by SIGKILL, perhaps because"
            r" memory was short"
            r"; its log does not say why\. This cluster has ended, with its tables and "
        )
        for _ in range(2):  # also when it is asked again
            with pytest.raises(ClusterError, match=said):
                session.run(models.Sleeps, {"epochs": 1000}, input=text, on_status=kill)


def test_job_that_fails_tells_the_users_lines_once_and_a_quiet_one_none(text, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE), str(SUPPORT)]))
    job = {"input": text, "epochs": 1}
    with snailps.cluster(threads=1) as session:
        for _ in range(2):  # what it does with the first one's worker is not told, either
            with pytest.raises(ClusterError, match="planted failure"):
                session.run(models.FailsInTrain, job, timeout_s=LIMIT_S, quiet=True)
        assert capsys.readouterr().err == ""
        with pytest.raises(ClusterError, match="planted failure"):
            session.run(models.FailsInTrain, job, timeout_s=LIMIT_S)
    told = capsys.readouterr().err
    assert set(re.findall(r'^worker \d+:   File "(.*)", line', told, re.MULTILINE)) == {
        models.__file__
    }
    assert told.count("snailps: error") == 0


def test_cluster_that_nothing_refers_to_ends(text):
    dropped = snailps.cluster(threads=1, log=io.StringIO())
    table = dropped.table("w")
    processes = [os.pidfd_open(child.process.pid) for child in members_of(dropped)]
    del dropped
    gc.collect()
    table.push([1], [2.0])
    assert table.pull([1]).tolist() == [[2.0]]
    del table
    gc.collect()
    for process in processes:
        readable(process)
        os.close(process)


def test_what_a_model_prints_is_a_line_of_its_process(text, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE), str(SUPPORT)]))
    log = io.StringIO()
    with snailps.cluster(log=log) as session:
        session.train(models.Prints, input=text, epochs=1, timeout_s=LIMIT_S)
        for line in (r"^worker .*: lines: \d+$", r"^the master: checked in the master$"):
            until(lambda line=line: re.search(line, log.getvalue(), re.MULTILINE), log.getvalue)


def test_run_gives_history_settings_and_tables_until_the_next_job(session, text):
    seen = []
    job = session.run(models.Lines, {"epochs": 3}, input=text, on_status=seen.append)
    assert {status["phase"] for status in seen} <= {"ready", "training", "exporting", "preparing"}
    assert job.settings.epochs == 3
    assert [epoch["epoch"] for epoch in job.history] == [1, 2, 3]
    assert [epoch["loss"] for epoch in job.history] == [1.0] * 3
    assert all(epoch["examples_per_s"] > 0 for epoch in job.history)
    for _ in range(2):
        with job.results(output="elsewhere") as results:
            assert results.settings.output == "elsewhere"
            assert models.Lines.export(results) == {"lines": 3.0 * LINES}
            assert [keys.tolist() for keys, _ in results.scan("lines")] == [[1]]
    assert "session_models:Lines" in repr(job)
    assert trains(session, text)
    with pytest.raises(ClusterError, match="another job has begun"), job.results():
        pass


def test_run_reads_the_summary_of_a_survey(session, text):
    job = session.run("cluster_models:Surveyed", {"lines": 3, "epochs": 1}, input=numbers(text))
    with job.results() as results:
        assert results.summary == b"..."


def numbers(text):
    text.write_text("1\n2\n3\n")
    return text


class Enough(Exception):
    """Of a callback."""


def test_exception_of_a_callback_cancels_the_job(session, text):
    def enough(status):
        if status["phase"] == "training":
            raise Enough

    with pytest.raises(Enough):
        session.run(models.Sleeps, {"epochs": 1000}, input=text, on_status=enough)
    assert trains(session, text)


def test_cluster_says_what_it_is():
    with snailps.cluster(workers=0, log=io.StringIO()) as made:
        assert repr(made) == f"<snailps cluster at {made.address}: 1 server, 0 workers>"
        assert repr(made.table("w", 2)) == "<table 'w', rows of 2>"
        assert snailps.default_cluster() is made
    assert repr(made) == f"<snailps cluster at {made.address}: closed>"
    made.close()
    with pytest.raises(ClusterError, match="this cluster is closed"):
        made.status()


def test_interrupt_while_a_job_is_prepared_cancels_it(session, text, monkeypatch):
    submit = driver_of(session).submit

    def interrupted(*arguments):
        submit(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(driver_of(session), "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.run(models.Sleeps, {"epochs": 1000}, input=text)
    assert trains(session, text)
