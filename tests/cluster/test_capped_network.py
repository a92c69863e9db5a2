"""Pulls and pushes of real processes through a capped link, and that link (bench/netns.py) itself.

Nothing is timed here.  Skipped, with the reason, where this user or
this machine may not make network namespaces.
"""

import contextlib
import json
import subprocess
import sys

import numpy as np
import pytest
from processes import LIMIT_S, Cluster

from snailps import Table
from snailps.config import ClusterSettings, RawConfig
from snailps.local.driver import Driver

MBIT_PER_S = 200.0
ROWS, DIM = 20_000, 100

KEEPER = """
import sys
from netns import linked
with linked() as link:
    script = "import signal; print('up', flush=True); signal.pause()"
    link.start(link.far, [sys.executable, "-c", script])
    sys.stdin.read()
"""


pytestmark = pytest.mark.long


@pytest.fixture
def shaped(netns):
    """What tc tells of the queue that a side of a link sends through."""

    def ask(link, side):
        with link.inside(side):
            shown = netns.run_tool("tc", "-json", "-s", "qdisc", "show", "dev", side.device)
        return json.loads(shown)[0]

    return ask


@contextlib.contextmanager
def far_servers(netns, tmp_path):
    """A driver of a cluster behind a capped link, and the link."""
    with (
        netns.linked(MBIT_PER_S) as link,
        link.inside(link.near),
        Cluster(tmp_path, host=link.far.address, workers=0) as cluster,
    ):
        with link.inside(link.far):
            cluster.master(options=("--session",))
            cluster.start("server")
        raw = RawConfig.from_mapping({"master_addr": cluster.address}, "this test")
        driver = Driver(raw.build(ClusterSettings))
        try:
            driver.join()
            assert driver.routed.wait(LIMIT_S)
            yield driver, link
            driver.shut_down()
        finally:
            driver.close()
        assert cluster.codes() == [0, 0]


def test_capped_link_pull_and_push_give_exact_values(netns, shaped, tmp_path):
    rng = np.random.default_rng(3)
    keys = rng.permutation(3 * ROWS)[:ROWS].astype(np.uint64)
    values = rng.standard_normal((ROWS, DIM), np.float32)
    with far_servers(netns, tmp_path) as (driver, link):
        driver.declare(Table("rows", DIM))
        driver.push_async("rows", keys, values).wait()
        driver.push_async("rows", keys[::2], values[::2]).wait()
        pulled = driver.pull("rows", keys)
        absent = driver.pull("rows", keys + np.uint64(3 * ROWS))
        expected = values.copy()
        expected[::2] *= 2
        assert np.array_equal(pulled, expected)
        assert not absent.any()
        for side, least in ((link.near, 1.5 * values.nbytes), (link.far, 2 * values.nbytes)):
            queue = shaped(link, side)
            assert queue["kind"] == "tbf"
            assert queue["options"]["rate"] == MBIT_PER_S * 125_000
            assert queue["bytes"] > least  # so it all went that way


def test_auto_chooses_a_narrow_type_on_a_capped_link_and_says_so(netns, tmp_path, caplog):
    keys = np.arange(ROWS, dtype=np.uint64)
    values = np.full((ROWS, DIM), 0.1, np.float32)
    with far_servers(netns, tmp_path) as (driver, _):
        driver.declare(Table("t", DIM, wire="auto"))
        with caplog.at_level("INFO"):
            driver.push("t", keys, values)  # as float32: nothing is known yet
            driver.push("t", keys, values)
        assert "wire: auto" in caplog.text
        assert "rows travel as float16" in caplog.text
        sent = driver.client.counters()["bytes_out"]
        driver.push("t", keys, values)
        assert driver.client.counters()["bytes_out"] - sent < ROWS * DIM * 2.5
        rounded = np.float32(np.float16(0.1))
        rows = driver.pull("t", keys[:5])
        assert np.all(rows == np.float32(np.float16(np.float32(0.1) + rounded + rounded)))


def test_netns_killed_owner_leaves_no_process(netns, repo_root):
    with subprocess.Popen(
        [sys.executable, "-c", KEEPER],
        cwd=repo_root / "bench",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout.readline() == "up\n"
        owner.kill()
        # The command holds the pipe too: its end comes once both are gone.
        assert owner.stdout.read() == ""


def test_netns_missing_tool_says_what_to_install(repo_root, monkeypatch):
    monkeypatch.syspath_prepend(repo_root / "bench")
    import netns

    monkeypatch.setattr(netns, "SEARCH", "")
    assert netns.why_not() == (
        "a network of hosts needs ip and tc, which cannot be found: apt-get install iproute2"
    )
