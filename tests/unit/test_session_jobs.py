"""`Cluster` with a driver that answers as a script says: whose job is whose, waits, forks."""

import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from waiting import LIMIT_S, happens

from snailps.config import ClusterSettings, ListenerSettings
from snailps.errors import ClusterError, ConfigError, DataError, RemoteError, WaitTimeout
from snailps.local import driver as driver_module
from snailps.local import session
from snailps.local.session import Cluster, within
from snailps.transport import messages

READY = {"role": "worker", "id": 3, "pid": 1, "state": "ready"}
DONE = {"failure": "", "trace": "", "tables": None}


def status(phase="idle", job=0, jobs=0, coming=0, nodes=(READY,)):
    """What the master tells, as far as a `Cluster` looks at it."""
    return {
        "phase": phase, "progress": 0.5, "elapsed_s": 1.0, "units": 1, "nodes": list(nodes),
        "session": {"jobs": jobs, "job": job, "coming": coming, "tables": 0},
    }  # fmt: skip


class Driver:
    """A driver whose master's statuses are given; the last one stays."""

    def __init__(self, statuses, jobs=()):
        self._statuses, self._jobs = list(statuses), dict(jobs)
        self.ended = threading.Event()
        self.settings = ListenerSettings(init_timeout=0.2)
        self.is_own, self.submits, self.told, self.closed = True, 1, [], False

    def check_process(self):
        if not self.is_own:
            raise ClusterError("a fork")

    def status(self):
        self.told.append("status")
        return self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]

    def when_ended(self, number, do):
        self.asked = number, do

    def submit(self, texts, source, key, limit_s):
        self.told.append("submit")
        if isinstance(self.submits, Exception):
            raise self.submits
        return self.submits

    def job(self, number):
        return self._jobs[number]

    def cancel(self, early=False):
        self.told.append("cancel")

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(session, "LOOK_S", 0.001)


def left(**changes):
    return {"settings": {"worker_class": "nowhere:Model"}, "figures": {"n": 1}, **DONE, **changes}


@pytest.mark.parametrize("later", [True, False], ids=["in a wait", "behind a look"])
def test_wait_for_a_job_ends_as_soon_as_the_master_tells_that_it_has(monkeypatch, later):
    monkeypatch.setattr(session, "LOOK_FIRST_S", 2 * LIMIT_S)
    monkeypatch.setattr(session, "LOOK_JOB_S", 2 * LIMIT_S)

    class Prompt(Driver):
        def status(self):
            if self.told.count("status") == 1:  # the first one of the job at work
                number, do = self.asked
                assert number == 1
                threading.Timer(0.01, do).start() if later else do()
            return super().status()

    looks = [status(), status("training", 1, 1), status()]
    driver, begun = Prompt(looks, {1: left()}), time.monotonic()
    assert Cluster(None, driver).run("nowhere:Model").figures == {"n": 1}
    assert time.monotonic() - begun < LIMIT_S


def test_short_job_costs_one_status_after_its_end():
    """A status takes both processes 2 ms, and a small fit read seven."""

    class Told(Driver):
        def when_ended(self, number, do):
            do()

    driver = Told([status(), status()], {1: left()})
    assert Cluster(None, driver).run("nowhere:Model").figures == {"n": 1}
    assert driver.told.count("status") == 2  # one before it, of workers that have ended


def test_master_that_ends_a_failed_job_is_asked_at_the_pace_of_looks():
    """The news that our job has ended are no reason to ask once they are known."""
    waits = []

    class Ended(threading.Event):
        def wait(self, limit_s=None):
            waits.append(limit_s)
            return super().wait(0.0)

    class Told(Driver):
        def when_ended(self, number, do):
            do()

    looks = [status(), *[status("stopping", 0, 1)] * 5, status(jobs=1)]
    driver = Told(looks, {1: left(failure="a bug")})
    driver.ended = Ended()
    with pytest.raises(ClusterError, match="a bug"):
        Cluster(None, driver).train("nowhere:Model")
    assert len(waits) > 5


def test_job_that_the_master_was_lost_with_is_submitted_again(caplog):
    class Twice(Driver):
        def submit(self, *words):
            self.submits = super().submit(*words) + self.told.count("submit") - 1
            return self.submits

    lost = left(figures={}, failure="the master was lost", again=True)
    driver = Twice([status()], {1: lost, 2: left(figures={"n": 2})})
    assert Cluster(None, driver).run("nowhere:Model").figures == {"n": 2}
    assert driver.told.count("submit") == 2
    assert "the job is repeated" in caplog.text


def test_job_that_began_between_two_looks_is_not_taken_for_ours():
    looks = [status(), status("training", 1, 1), status("training", 2, 2)]
    seen = []
    driver = Driver(looks, {1: left(figures={"n": 1}), 2: left(failure="of another driver")})
    job = Cluster(None, driver).run("nowhere:Model", on_status=seen.append)
    assert job.figures == {"n": 1}
    assert [one["session"]["job"] for one in seen] == [1]


def test_class_of_the_next_job_being_loaded_ends_the_wait_for_ours():
    looks = [status(), status("training", 1, 1), status("preparing", 0, 1)]
    assert Cluster(None, Driver(looks, {1: left()})).train("nowhere:Model") == {"n": 1}


def test_failure_of_our_job_is_told_though_another_one_is_under_way():
    looks = [status(), status("training", 2, 2)]
    driver = Driver(looks, {1: left(failure="a bug", trace='  File "m.py", line 1, in f')})
    with pytest.raises(ClusterError, match=r"a bug\n  File"):
        Cluster(None, driver).train("nowhere:Model")
    assert "cancel" not in driver.told


def test_job_that_failed_for_its_input_raises_the_error_of_wrong_input():
    driver = Driver([status(), status(jobs=1)], {1: left(failure="line 3: no", is_wrong=True)})
    with pytest.raises(DataError, match="line 3: no") as wrong:
        Cluster(None, driver).train("nowhere:Model")
    assert isinstance(wrong.value, ClusterError)  # which failed jobs raise


def test_wait_for_a_failed_job_includes_the_end_of_its_workers():
    looks = [status(), status("stopping", 0, 1), status("stopping", 0, 1), status("idle", 0, 1)]
    driver = Driver(looks, {1: left(failure="a bug")})
    with pytest.raises(ClusterError, match="a bug"):
        Cluster(None, driver).train("nowhere:Model")
    assert driver.told == ["status", "submit", *["status"] * 3]


def test_train_by_name_needs_no_class_here():
    job = Cluster(None, Driver([status()], {1: left()})).run("nowhere:Model")
    assert "nowhere:Model" in repr(job)
    with pytest.raises(ConfigError, match="nowhere"):
        _ = job.settings


def test_job_waits_for_workers_that_begin_anew(monkeypatch):
    looks = [status(coming=2), status("stopping", coming=1), status(coming=1), status()]
    driver = Driver(looks, {1: left()})
    Cluster(None, driver).train("nowhere:Model")
    assert driver.told[:5] == ["status"] * 4 + ["submit"]
    monkeypatch.setattr(session, "RENEW_S", 0.0)
    with pytest.raises(ClusterError, match="1 workers of a failed job are restarting"):
        Cluster(None, Driver([status(coming=1)])).train("nowhere:Model")


def test_job_waits_until_a_master_that_takes_over_has_all_members_back():
    driver = Driver([status("forming", nodes=()), status("restoring"), status()], {1: left()})
    Cluster(None, driver).train("nowhere:Model")
    assert driver.told[:4] == ["status"] * 3 + ["submit"]
    with pytest.raises(ClusterError, match=r"runs another job \(training, 50%\)"):
        Cluster(None, Driver([status("training")])).train("nowhere:Model")


def test_job_without_a_worker_says_who_is_not_ready():
    driver = Driver([status(nodes=[{**READY, "state": "connecting"}])])
    with pytest.raises(ClusterError, match=r"no worker that is ready.*worker 3 is connecting"):
        Cluster(None, driver).train("nowhere:Model")


def test_time_limit_covers_what_is_before_the_job_and_cancels_it():
    driver = Driver([status()])
    driver.submits = WaitTimeout("no answer")
    with pytest.raises(ClusterError, match=r"not done after \d+ s .*the master is still importing"):
        Cluster(None, driver).train("nowhere:Model", timeout_s=LIMIT_S)
    assert driver.told[-1] == "cancel"
    driver = Driver([status(), status("training", 1, 1)])
    with pytest.raises(
        ClusterError, match=r"not done after \d+ s .*: training, 50%; it was cancelled"
    ):
        Cluster(None, driver).train("nowhere:Model", timeout_s=0.01)
    assert driver.told[-1] == "cancel"


def test_job_waits_for_that_of_another_thread_and_no_longer_than_it_may():
    cluster = Cluster(None, Driver([status()], {1: left()}))
    holds, over = threading.Event(), threading.Event()

    def hold():
        with cluster.in_turn():
            holds.set()
            over.wait(LIMIT_S)

    thread = threading.Thread(target=hold)
    thread.start()
    happens(holds, "the job of the other thread")
    with pytest.raises(ClusterError, match="another thread's job has not ended"):
        cluster.train("nowhere:Model", timeout_s=0.01)
    over.set()
    thread.join()
    assert cluster.train("nowhere:Model") == {"n": 1}


def test_results_of_a_wrong_setting_name_it():
    job = Cluster(None, Driver([status()], {1: left(settings=LINES)})).run("session_models:Lines")
    with pytest.raises(ConfigError, match="results: outptu is no setting"), job.results(outptu="x"):
        pass


LINES = {"worker_class": "session_models:Lines"}


def test_cluster_of_a_parent_process_is_neither_used_nor_ended():
    driver = Driver([status()])
    with Cluster(None, driver) as cluster:
        assert within() is cluster
        driver.is_own = False
        assert within() is None
        for use in (cluster.status, cluster.shut_down, lambda: cluster.train("nowhere:Model")):
            with pytest.raises(ClusterError, match="a fork"):
                use()
    assert driver.told == []
    assert not driver.closed


def test_block_whose_cluster_has_ended_is_not_left_for_another_cluster():
    outer, inner = Cluster(None, Driver([status()])), Cluster(None, Driver([status()]))
    with outer, inner:
        inner.close()
        with pytest.raises(ClusterError, match="this cluster is closed"):
            within()


def test_block_of_another_thread_is_not_within_and_the_main_threads_is():
    mine, other = Cluster(None, Driver([status()])), Cluster(None, Driver([status()]))
    found = []

    def look():
        found.append(within())
        with other:
            found.append(within())
            entered.set()
            looked.wait(LIMIT_S)

    entered, looked = threading.Event(), threading.Event()
    thread = threading.Thread(target=look)
    with mine:
        thread.start()
        happens(entered, "the block of the other thread")
        assert within() is mine
    assert within() is None
    looked.set()
    thread.join()
    assert found == [mine, other]


@pytest.mark.parametrize("early", [False, True])
def test_cancelling_does_not_wait_for_a_master_that_is_away(monkeypatch, early):
    """Ctrl-C was raised only once it was back. It gets the call then."""
    asked = []
    control = SimpleNamespace(
        away=True, call_async=lambda message: asked.append(message) or Future()
    )
    monkeypatch.setattr(driver_module.Driver, "control", control)
    driver_module.Driver(ClusterSettings()).cancel(early=early)
    assert asked == [messages.Cancel(early)]


def test_refusal_to_cancel_is_raised(monkeypatch):
    refused = Future()
    refused.set_exception(RemoteError("no such job", "cluster"))
    control = SimpleNamespace(away=False, call_async=lambda message: refused)
    monkeypatch.setattr(driver_module.Driver, "control", control)
    with pytest.raises(ClusterError, match="no such job"):
        driver_module.Driver(ClusterSettings()).cancel()
