#!/usr/bin/env python3
"""Servers that die, join and leave during training and pulls: durations and costs.

    cluster of real processes + a process that pulls one row of every shard, again and again
        kill -9 -> noticed, pulls succeed          drain, join -> units/s, second by second

========  =======================================================================================
``kill``  one server of two, several times: until it is noticed, until every shard's pulls succeed
``cost``  words/s of fastText on two servers with `replication: sync` over those with `none`
``move``  units/s while a server joins, and while one leaves; the longest pull.  With a corpus
          units are words of fastText, beside which the table is moved
========  =======================================================================================

    python bench/failover.py --corpus text8 --json
    python bench/failover.py --part kill --rounds 5
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # a source tree need not be installed

from snailps import Table
from snailps.abi.key_hash import fragment_of
from snailps.config import ClusterSettings, RawConfig
from snailps.local.driver import Driver

HERE = Path(__file__).resolve().parent
DIM = 100
FRAG_NUM = 1024
LIMIT_S = 240.0
TARGETS = {"noticed_s_max": 1.0, "pulls_after_s_max": 2.0, "sync_share": 0.7}
DIP, DIP_S = 0.3, 5.0
MOVING = "standby|has moved|route epoch"
CALM_S = 8.0
"""Seconds without a line of `MOVING` after which nothing moves: more than any pause here."""


def say(text: str) -> None:
    """Progress goes to standard error: standard output is for the figures."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


class Node:
    """A process of a cluster, its lines and their times."""

    def __init__(self, command: list[str], **options: Any) -> None:
        environ = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parent}"}
        environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self.lines: list[tuple[float, str]] = []
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            command, env=environ, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            **options,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_line(self, pattern: str, since: float = 0.0) -> tuple[float, str]:
        """The first matching line after `since`, and its time."""
        until = time.monotonic() + LIMIT_S
        seen = 0
        with self._news:
            while True:
                for at, line in self.lines[seen:]:
                    seen += 1
                    if at >= since and re.search(pattern, line):
                        return at, line
                if self.process.poll() is not None or time.monotonic() > until:
                    lines = "\n".join(line for _, line in self.lines)
                    raise SystemExit(f"bench: no line with {pattern!r}:\n{lines}")
                self._news.wait(0.5)

    def close(self) -> None:
        """Kills what still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append((time.time(), line.rstrip()))
                self._news.notify_all()


class Cluster:
    """Processes of one cluster, ended with it."""

    def __init__(self, job: dict[str, object], servers: int, workers: int, shards: int = 1) -> None:
        self._stack = contextlib.ExitStack()
        self._shards = shards
        read, write = os.pipe()
        sets = [f"expected_node_num={servers + workers}", f"expected_servers={servers}"]
        sets += ["listen_addr=127.0.0.1:0", f"frag_num={FRAG_NUM}"]
        sets += [f"{key}={value}" for key, value in job.items()]
        self.master = self._start("master", sets, "--json", "--ready-fd", str(write), fds=(write,))
        os.close(write)
        with os.fdopen(read) as ready:
            self.address = ready.readline().strip()
        self.servers = [self.server() for _ in range(servers)]
        for _ in range(workers):
            self._start("worker", [f"master_addr={self.address}", "threads=1"])

    def server(self) -> Node:
        """Starts one."""
        return self._start("server", [f"master_addr={self.address}", f"shard_num={self._shards}"])

    def number_of(self, server: Node) -> int:
        """The master's number of a server."""
        _, line = self.master.wait_line(rf"server \d+ .*process {server.process.pid}\) registered")
        found = re.search(r"server (\d+)", line)
        assert found is not None
        return int(found[1])

    def settled(self, since: float) -> float:
        """Waits until shards have standbys and nothing moves; the time since which that holds."""
        at, _ = self.master.wait_line("every shard has its standby again", since)
        while True:
            moves = [at for at, line in self.master.lines if re.search(MOVING, line)]
            if time.time() > moves[-1] + CALM_S:
                return max(at, moves[-1])
            time.sleep(0.1)

    def figures(self) -> dict[str, Any]:
        """Figures of the run, once it has ended."""
        assert self.master.process.stdout is not None
        output = self.master.process.stdout.read()
        self.master.process.wait(LIMIT_S)
        return dict(json.loads(output))

    def close(self) -> None:
        """Ends all processes."""
        self._stack.close()

    def _start(self, role: str, sets: list[str], *options: str, fds: tuple[int, ...] = ()) -> Node:
        command = [sys.executable, "-m", "snailps", role, *options]
        for pair in ["log_level=info", *sets]:
            command += ["--set", pair]
        node = Node(command, pass_fds=fds)
        self._stack.callback(node.close)
        return node


class Probes:
    """Pulls one row of each shard repeatedly, a thread per shard; records the end of each pull."""

    def __init__(self, address: str, shards: int) -> None:
        settings = RawConfig.from_mapping({"master_addr": address}, "the benchmark")
        self._driver = Driver(settings.build(ClusterSettings))
        self._driver.join()
        self._driver.routed.wait(30)
        self._driver.declare(Table("probed", 4))
        self._over = threading.Event()
        keys = np.arange(10_000, dtype=np.uint64)
        owner = fragment_of(keys, FRAG_NUM).astype(np.int64) * shards // FRAG_NUM
        self.pulls: list[list[tuple[float, float]]] = [[] for _ in range(shards)]
        self._threads = [
            threading.Thread(target=self._pull, args=(at, keys[owner == at][:1]), daemon=True)
            for at in range(shards)
        ]
        for thread in self._threads:
            thread.start()

    def _pull(self, shard: int, key: Any) -> None:
        while not self._over.is_set():
            begun = time.time()
            self._driver.pull("probed", key)
            self.pulls[shard].append((begun, time.time()))
            self._over.wait(0.005)

    def back_at(self, since: float) -> float:
        """When every shard had answered a pull that was open at `since`, or begun later."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            ends = [[end for _, end in pulls if end > since + 0.02] for pulls in self.pulls]
            if all(ends):
                return max(end[0] for end in ends)
            self._over.wait(0.02)
        raise SystemExit("bench: pulls never succeeded again")

    def worst_s(self, begin: float, end: float) -> float:
        """The longest pull within a span of time."""
        found = [b - a for pulls in self.pulls for a, b in pulls if b > begin and a < end]
        return round(max(found, default=0.0), 3)

    def close(self) -> None:
        """Ends the threads and leaves the cluster."""
        self._over.set()
        for thread in self._threads:
            thread.join(10)
        self._driver.close()


def wandering(folder: Path, rows: int, corpus: str = "") -> dict[str, object]:
    """A job without an end of its own: random rows of a table, or fastText beside it."""
    (folder / "journal").mkdir(exist_ok=True)
    if corpus:
        return {
            "worker_class": "wander:Words", "input": corpus, "rows": rows, "width": DIM,
            "journal": folder / "journal", "block_bytes": 1 << 18, "epochs": 500,
        }  # fmt: skip
    (folder / "input").write_text("x\n" * 500_000)
    return {
        "worker_class": "wander:Wander", "input": folder / "input", "rows": rows, "dim": DIM,
        "journal": folder / "journal", "block_bytes": 10, "epochs": 1,
    }  # fmt: skip


def kill(folder: Path, rounds: int, rows: int) -> dict[str, Any]:
    """kill -9 of one of two servers during training; a new one replaces it."""
    noticed, after, redundant = [], [], []
    cluster = Cluster(wandering(folder, rows), 2, 1)
    try:
        cluster.master.wait_line("every shard has its standby")
        probes = Probes(cluster.address, 2)
        time.sleep(3.0)
        for _ in range(rounds):
            number = cluster.number_of(cluster.servers[0])
            killed = time.time()
            cluster.servers.pop(0).process.send_signal(signal.SIGKILL)
            lost, _ = cluster.master.wait_line(rf"server {number} .*is lost", killed)
            back = probes.back_at(lost)
            noticed.append(lost - killed)
            after.append(max(0.0, back - lost))
            cluster.servers.append(cluster.server())
            again, _ = cluster.master.wait_line("every shard has its standby again", killed)
            redundant.append(again - killed)
            say(
                f"noticed {noticed[-1]:.3f} s, pulls {after[-1]:.3f} s later, {redundant[-1]:.1f} s"
            )
        probes.close()
    finally:
        cluster.close()
    return {
        "kills": rounds,
        "noticed_s_max": round(max(noticed), 3),
        "pulls_after_s": [round(s, 3) for s in after],
        "pulls_after_s_max": round(max(after), 3),
        "redundant_s": [round(s, 1) for s in redundant],
    }


def cost(folder: Path, corpus: str, rounds: int, epochs: int, workers: int) -> dict[str, Any]:
    """fastText on two servers with and without standbys, interleaved."""
    words: dict[str, list[float]] = {"none": [], "sync": [], "async": []}
    for at in range(rounds):
        order = ["none", "sync", "async"]
        for mode in order if at % 2 == 0 else reversed(order):
            command = [
                sys.executable, "-m", "snailps", "train", "fasttext", "--input", corpus,
                "--output", str(folder / f"out-{mode}"), "--servers", "2",
                "--workers", str(workers), "--json", "--epochs", str(epochs), "--bucket", "200000",
                "--overwrite",
            ]  # fmt: skip
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=LIMIT_S,
                env={
                    **os.environ, "PYTHONPATH": str(HERE.parent), "SNAILPS_REPLICATION": mode,
                    "SNAILPS_SHARD_NUM": "1",
                },
            )  # fmt: skip
            if done.returncode:
                raise SystemExit(f"bench: {mode}: {done.stderr}")
            figures = json.loads(done.stdout)
            words[mode].append(figures["words_per_s"])
            say(f"{mode}: {words[mode][-1]:,.0f} words/s")
    medians = {mode: statistics.median(values) for mode, values in words.items()}
    return {
        "words_per_s": {mode: [round(v) for v in values] for mode, values in words.items()},
        "sync_share": round(medians["sync"] / medians["none"], 3),
        "async_share": round(medians["async"] / medians["none"], 3),
    }


def by_second(journal: Path, begin: float, end: float) -> list[float]:
    """Units in each second of a span."""
    counts = [0.0] * max(1, int(end - begin))
    for file in journal.iterdir():
        for line in _lines(file):
            at, count, filling = line.split()
            second = int((float(at) - begin) // 1)
            if filling == "0" and 0 <= second < len(counts):
                counts[second] += int(count)
    return counts


def await_filled(journal: Path) -> None:
    """Waits until a block changed existing rows, not only created new ones."""
    until = time.monotonic() + LIMIT_S
    while not any(line.endswith(" 0") for file in journal.iterdir() for line in _lines(file)):
        if time.monotonic() > until:
            raise SystemExit("bench: the table was never filled")
        time.sleep(0.2)


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def move(folder: Path, rows: int, corpus: str) -> dict[str, Any]:
    """A server joins a cluster of two, then one of the first two leaves."""
    cluster = Cluster(wandering(folder, rows, corpus), 2, 1, shards=2)
    spans: dict[str, tuple[float, float]] = {}
    try:
        cluster.master.wait_line("every shard has its standby")
        probes = Probes(cluster.address, 4)
        await_filled(folder / "journal")
        time.sleep(7.0)
        quiet = (time.time() - 6.0, time.time())
        begin = time.time()
        late = cluster.server()
        cluster.number_of(late)
        spans["join"] = (begin, cluster.settled(begin))
        begin = time.time()
        cluster.servers[0].process.send_signal(signal.SIGTERM)
        cluster.master.wait_line("has no shard left", begin)
        spans["drain"] = (begin, cluster.settled(begin))
        probes.close()
    finally:
        cluster.close()
    normal = statistics.median(by_second(folder / "journal", *quiet))
    result: dict[str, Any] = {"units_per_s": round(normal)}
    for name, (begin, end) in spans.items():
        shares = [count / normal for count in by_second(folder / "journal", begin, end + CALM_S)]
        result[name] = {
            "took_s": round(end - begin, 1),
            "shares": [round(share, 2) for share in shares],
            "low_s": sum(share < 1 - DIP for share in shares),
            "pull_s_max": probes.worst_s(begin, end),
        }
        say(f"{name}: {result[name]}")
    return result


def main() -> None:
    """Runs all parts, or the one asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=["kill", "cost", "move"], action="append")
    parser.add_argument(
        "--corpus", default="", help="a text: for the cost of replication, to move with"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="of that training")
    parser.add_argument("--rows", type=int, default=200_000, help="of the table, 400 bytes each")
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")
    args = parser.parse_args()
    parts = args.part or ["kill", "move", *(["cost"] if args.corpus else [])]
    folder = Path(tempfile.mkdtemp(prefix="snailps-recovery-"))
    result: dict[str, Any] = {}
    try:
        if "kill" in parts:
            result["kill"] = kill(folder, args.rounds, args.rows)
        if "move" in parts:
            result["move"] = move(folder, args.rows, args.corpus)
        if "cost" in parts:
            result["cost"] = cost(folder, args.corpus, args.rounds, args.epochs, args.workers)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    met: dict[str, bool] = {}
    for name in ("noticed_s_max", "pulls_after_s_max"):
        if "kill" in result:
            met[name] = result["kill"][name] <= TARGETS[name]
    if "cost" in result:
        met["sync_share"] = result["cost"]["sync_share"] >= TARGETS["sync_share"]
    for name in ("join", "drain"):
        if "move" in result:
            met[f"{name}_dip"] = result["move"][name]["low_s"] < DIP_S
    result["met"] = met
    print(json.dumps(result) if args.json else json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
