"""processes.Gate: a test that waits for a worker which does not come fails and names the place."""

import os
import threading
from types import SimpleNamespace

import processes
import pytest
from cluster_models import stop_at, wait_at
from processes import Gate
from waiting import joined, until


def test_meet_without_a_worker_fails_and_names_the_gates(tmp_path):
    gates = [Gate(tmp_path, number, "before") for number in (3, 7)]
    with pytest.raises(AssertionError, match=r"at before-3, before-7: has not come in 0.02 s"):
        Gate.meet_one(gates, 0.02)
    with pytest.raises(AssertionError, match="before-7"):
        gates[1].meet(0.02)


def test_meet_fails_at_once_when_all_processes_have_ended(tmp_path, monkeypatch):
    def process(name, code, is_open=False):
        return SimpleNamespace(
            name=name,
            runs=code is None,
            is_open=is_open,
            lines=[f"the last line of {name}"],
            popen=SimpleNamespace(poll=lambda: code),
        )

    cluster = SimpleNamespace(processes=[process("master 1", 1), process("worker 1", None)])
    monkeypatch.setattr(processes, "open_clusters", [cluster])
    with pytest.raises(AssertionError, match="at visit-4: has not come in "):
        Gate(tmp_path, 4, "visit").meet(0.02)
    cluster.processes[1] = process("worker 1", 3, is_open=True)  # its last lines are not read yet
    with pytest.raises(AssertionError, match="at visit-6: has not come in "):
        Gate(tmp_path, 6, "visit").meet(0.02)
    cluster.processes[1] = process("worker 1", 3)
    with pytest.raises(
        AssertionError,
        match=r"have ended: master 1 with 1.*, worker 1 with 3.*the last line of worker 1",
    ):
        Gate(tmp_path, 5, "visit").meet()


def test_meet_one_with_a_worker_at_the_later_gate_opens_that_one(tmp_path):
    first, second = (Gate(tmp_path, number, "before") for number in (3, 7))
    worker = threading.Thread(target=second.path.read_bytes, daemon=True)
    worker.start()
    assert Gate.meet_one([first, second]) is second
    assert worker.is_alive()
    second.open()
    joined(worker)
    assert not second.path.exists()


def test_open_of_a_gate_that_nobody_met_lets_go_who_waits_there(tmp_path):
    gate = Gate(tmp_path, 3)
    worker = threading.Thread(target=stop_at, args=(gate.path,), daemon=True)
    worker.start()
    until(lambda: gate.pid, "a worker at the gate")  # in open(), or about to call it
    gate.open()
    joined(worker)
    gate.open()


def test_gate_knows_who_came_last(tmp_path):
    gate, settings = Gate(tmp_path, 3), SimpleNamespace(gates=str(tmp_path))
    assert gate.pid == 0
    worker = threading.Thread(target=wait_at, args=(settings, "block-3"), daemon=True)
    worker.start()
    gate.meet()
    own, other = (SimpleNamespace(name="worker", pid=pid) for pid in (os.getpid(), 1))
    assert gate.who([other, own]) is own
    gate.open()
    joined(worker)
