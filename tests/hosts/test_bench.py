"""bench/hosts.py: hosts that are limited train, and nothing of them is left."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import NO_HOSTS, ROOT

CGROUPS = Path("/sys/fs/cgroup")
BENCH = [sys.executable, "bench/hosts.py", "--model", "word2vec", "--repeat", "1"]
LIMIT_S = 300


@pytest.fixture(scope="module", autouse=True)
def able():
    if os.geteuid() != 0:
        pytest.skip(f"{NO_HOSTS}: shares of the processor and network namespaces take root")
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        from cgroups import Groups, NoQuota
        from netns import NotPermitted, switched

        try:
            with Groups(100) as groups, switched(1):
                groups.add("probe", 0.5)
        except (NoQuota, NotPermitted) as error:
            pytest.skip(f"{NO_HOSTS}: {error}")
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Half a million words."""
    prose = "\n".join(path.read_text() for path in sorted((ROOT / "docs").rglob("*.md")))
    words = [word for word in prose.lower().split() if word.isalpha()]
    file = tmp_path_factory.mktemp("text") / "text"
    file.write_text(" ".join(words * (500_000 // len(words) + 1)))
    return file


def left():
    """Groups of benches."""
    return [str(path) for path in CGROUPS.glob("**/snailps-hosts-*")]


def test_hosts_train_within_their_shares_and_leave_nothing(text, tmp_path):
    out = tmp_path / "runs.json"
    words = ["--input", str(text), "--hosts", "1,2", "--core", "0.3", "--link", "1gbit"]
    words += [
        "--set",
        "wire=float32",
        "--epochs",
        "3",
        "--replication",
        "none",
        "--out",
        str(out),
        "--json",
    ]
    done = subprocess.run(
        [*BENCH, *words], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    one, two = (json.loads(line) for line in done.stdout.splitlines())
    assert (one["hosts"], two["hosts"]) == (1, 2)
    assert one["units"] == two["units"] > 1_000_000
    for summary in (one, two):
        # No more than the share, but for the first and the last period.
        assert 0.1 < summary["quota_used"] < 1.3
        assert summary["cpu_us_per_unit"]["worker"] > summary["cpu_us_per_unit"]["server"] > 0
    # With two hosts rows cross the wire, and about half of them do not.
    assert one["wire_bytes_per_unit"] < 0.1 * one["bytes_per_unit"]
    assert 0.3 < two["wire_bytes_per_unit"] / two["bytes_per_unit"] < 0.8
    assert len(json.loads(out.read_text())["runs"]) == 2
    assert left() == []


@pytest.mark.long
def test_hosts_with_shares_of_their_own_and_late_wires_take_one_more(text):
    words = ["--input", str(text), "--hosts", "2", "--cores", "0.3,0.2", "--link", "none"]
    words += ["--rtt-ms", "20", "--epochs", "100000", "--set", "max_seconds=55"]
    words += ["--join-after", "5", "--json"]
    done = subprocess.run(
        [*BENCH, *words], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["units"] > 1_000_000
    assert told["join_speed_up"] > 0
    assert told["told"]["workers"] == 3
    assert left() == []


@pytest.mark.long
def test_hosts_whose_workers_are_killed_finish(text):
    words = ["--input", str(text), "--hosts", "2", "--core", "0.4", "--kill-every", "2"]
    done = subprocess.run(
        [*BENCH, *words, "--epochs", "20", "--replication", "sync", "--json"],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kills"] >= 1
    assert left() == []


def test_interrupt_ends_all_that_was_started(text):
    words = ["--input", str(text), "--hosts", "2", "--epochs", "50", "--link", "none"]
    bench = subprocess.Popen(
        [*BENCH, *words], cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        until = time.monotonic() + LIMIT_S
        for line in bench.stderr:
            assert time.monotonic() < until
            if "training" in line:
                break
        groups = left()
        pids = [int(w) for g in groups for f in Path(g).rglob("cgroup.procs")
                for w in f.read_text().split()]  # fmt: skip
        assert len(pids) == 5
        bench.send_signal(signal.SIGINT)
        assert bench.wait(LIMIT_S) == 130
    finally:
        bench.kill()
        bench.wait()
        bench.stderr.close()
    assert left() == []
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
