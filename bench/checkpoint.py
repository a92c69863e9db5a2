#!/usr/bin/env python3
"""Checkpoints of a large store during training: duration and cost.

    disk -> its own speed           cluster of real processes, trained, saving -> pauses, rates
    another cluster, continuing -> time, and whether every bit is the same

============  =====================================================================================
``disk``      sequential writing of one file, past the page cache and through it, before and after
``save``      speed of checkpoints over the disk's; units/s while saving over those between; pulls
``restore``   the same checkpoint in another number of servers and shards: seconds, identity
============  =====================================================================================

    python bench/checkpoint.py --corpus text8 --json          # while fastText trains
    python bench/checkpoint.py --gb 0.5 --folder /data/tmp    # while random rows are moved
"""

import argparse
import contextlib
import itertools
import json
import mmap
import os
import re
import shutil
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

from wander import digest

from snailps import Table
from snailps.config import ClusterSettings, RawConfig
from snailps.local.driver import Driver
from snailps.store.checkpoint.folder import Checkpoint, CheckpointFolder, open_checkpoint

HERE = Path(__file__).resolve().parent
DIM = 100
ROW_BYTES = 8 + 4 * DIM
BLOCK = 8 << 20
SAVES = 3
INTERVAL_S = 9.0
LIMIT_S = 600.0
TARGETS = {"disk_share": 0.7, "units_share": 0.8, "pull_ms_max": 100.0}


def say(text: str) -> None:
    """Progress goes to standard error: standard output is for the figures."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


# --- the disk ----------------------------------------------------------------------------------


def write_speed(folder: Path, size: int, flags: int) -> float:
    """Bytes a second of one new file, the end of fsync included."""
    buffer = mmap.mmap(-1, BLOCK)
    buffer.write(os.urandom(BLOCK))
    path = folder / "speed"
    begun = time.perf_counter()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)
    try:
        for _ in range(max(1, size // BLOCK)):
            os.write(file, buffer)
        os.fsync(file)
    finally:
        os.close(file)
    took = time.perf_counter() - begun
    path.unlink()
    return max(1, size // BLOCK) * BLOCK / took


def disk(folder: Path, size: int) -> dict[str, float]:
    """Both ways of writing, MB/s."""
    direct = write_speed(folder, size, os.O_DIRECT) / 1e6
    cached = write_speed(folder, size, 0) / 1e6
    return {"direct_mb_s": round(direct), "cached_mb_s": round(cached)}


# --- a cluster ------------------------------------------------------------------------------------


class Cluster:
    """Processes of one cluster, ended with it; `lines` is what the master writes."""

    def __init__(self, job: dict[str, object], servers: int, shards: int, workers: int) -> None:
        common = ["log_level=info", "heartbeat_timeout=60"]
        environ = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parent}"}
        environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._stack = contextlib.ExitStack()
        self.lines: list[tuple[float, str]] = []
        self._news = threading.Condition()
        read, write = os.pipe()

        def start(role: str, sets: list[str], *options: str, fds: tuple[int, ...] = ()) -> Any:
            command = [sys.executable, "-m", "snailps", role, *options]
            for pair in [*common, *sets]:
                command += ["--set", pair]
            process = subprocess.Popen(
                command, env=environ, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                pass_fds=fds,
            )  # fmt: skip
            self._stack.callback(self._end, process)
            return process

        sets = [f"{key}={value}" for key, value in job.items()]
        size = [f"expected_node_num={servers + workers}", f"expected_servers={servers}"]
        self.master = start("master", [*size, "listen_addr=127.0.0.1:0", *sets], "--json",
                            "--ready-fd", str(write), fds=(write,))  # fmt: skip
        os.close(write)
        threading.Thread(target=self._read, args=(self.master.stderr,), daemon=True).start()
        with os.fdopen(read) as ready:
            self.address = ready.readline().strip()
        if not self.address:
            self.master.wait(30)
            raise SystemExit("\n".join(line for _, line in self.lines))
        where = [f"master_addr={self.address}"]
        nodes = [start("server", [*where, f"shard_num={shards}"]) for _ in range(servers)]
        nodes += [start("worker", [*where, "threads=1"]) for _ in range(workers)]
        for node in nodes:
            threading.Thread(target=node.stderr.read, daemon=True).start()

    def wait_line(self, pattern: str) -> tuple[float, re.Match[str]]:
        """The next line of the master that matches, and its time."""
        until = time.monotonic() + LIMIT_S
        with self._news:
            while True:
                while self.lines:
                    at, line = self.lines.pop(0)
                    if "FAILED" in line or "error" in line:
                        raise SystemExit(f"bench: {line}")
                    if found := re.search(pattern, line):
                        return at, found
                if self.master.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"bench: the master never wrote {pattern!r}")
                self._news.wait(1.0)

    def figures(self) -> dict[str, Any]:
        """Figures of the run, once it has ended."""
        output = self.master.stdout.read()
        self.master.wait(LIMIT_S)
        return dict(json.loads(output))

    def close(self) -> None:
        """Ends all processes."""
        self._stack.close()

    def _read(self, stream: Any) -> None:
        for line in stream:
            with self._news:
                self.lines.append((time.time(), line.rstrip()))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    @staticmethod
    def _end(process: Any) -> None:
        if process.poll() is None:
            process.kill()
        process.wait()


class Probe:
    """Pulls 100 random rows repeatedly, in a thread, and records the duration of each pull."""

    def __init__(self, address: str, rows: int) -> None:
        settings = RawConfig.from_mapping({"master_addr": address}, "the benchmark")
        self._driver = Driver(settings.build(ClusterSettings))
        self._driver.join()
        self._driver.routed.wait(30)
        self._driver.declare(Table("rows", DIM))
        self._rows = rows
        self._over = threading.Event()
        self.pulls: list[tuple[float, float]] = []
        self._thread = threading.Thread(target=self._pull, daemon=True)
        self._thread.start()

    def _pull(self) -> None:
        rng = np.random.default_rng(9)
        out = np.empty((100, DIM), np.float32)
        while not self._over.is_set():
            keys = np.unique(rng.integers(0, self._rows, 100, dtype=np.uint64))
            begun = time.perf_counter()
            self._driver.pull("rows", keys, out[: len(keys)])
            self.pulls.append((time.time(), time.perf_counter() - begun))
            self._over.wait(0.002)

    def close(self) -> None:
        """Ends the thread and leaves the cluster."""
        self._over.set()
        self._thread.join(10)
        self._driver.close()

    def worst_ms(self, spans: list[tuple[float, float]]) -> float:
        """The longest pull that overlapped one of these spans of time."""
        found = [s for end, s in self.pulls if any(a <= end and end - s <= b for a, b in spans)]
        return round(1e3 * max(found, default=0.0), 2)

    def median_ms(self, spans: list[tuple[float, float]]) -> float:
        """The median of these pulls."""
        found = [s for end, s in self.pulls if any(a <= end and end - s <= b for a, b in spans)]
        return round(1e3 * statistics.median(found or [0.0]), 3)


# --- the parts ------------------------------------------------------------------------------------


def units_in(journal: Path, spans: list[tuple[float, float]]) -> float:
    """Rows or words per second trained within these spans of time."""
    units = 0
    for file in journal.iterdir():
        for line in file.read_text().splitlines():
            at, count, filling = line.split()
            if filling == "0" and any(a <= float(at) < b for a, b in spans):
                units += int(count)
    return units / max(1e-9, sum(b - a for a, b in spans))


def save(
    folder: Path, rows: int, servers: int, workers: int, corpus: str
) -> tuple[dict[str, Any], dict[str, object]]:
    """A training with checkpoints; its figures, and the job."""
    (folder / "journal").mkdir()
    if not corpus:
        (folder / "input").write_text("x\n" * 500_000)
    job: dict[str, object] = {
        "worker_class": "wander:Wander", "input": folder / "input", "output": folder / "out",
        "journal": folder / "journal", "rows": rows, "dim": DIM, "block_bytes": 10, "epochs": 1,
        "checkpoint_interval": INTERVAL_S, "checkpoints_kept": 1,
    }  # fmt: skip
    if corpus:
        job |= {"worker_class": "wander:Words", "input": corpus, "epochs": 50, "width": DIM}
        job |= {"block_bytes": 1 << 19}
    cluster = Cluster(job, servers, 2, workers)
    spans: list[tuple[float, float]] = []
    speeds = []
    try:
        cluster.wait_line("cluster complete")
        probe = Probe(cluster.address, rows)
        pattern = r"checkpoint \d+: .*, ([\d,]+) rows, ([\d,.]+) MB in ([\d.]+) s"
        while len(spans) < SAVES:
            at, found = cluster.wait_line(pattern)
            if int(found[1].replace(",", "")) < 0.99 * rows:
                continue  # the table was still being filled
            took = float(found[3])
            speeds.append(float(found[2].replace(",", "")) / took)
            spans.append((at - took, at))
            say(f"saved {found[2]} MB in {took} s")
        at_last = time.time()
        probe.close()
    finally:
        cluster.close()
    between = [(a[1] + 0.5, b[0]) for a, b in itertools.pairwise(spans)]
    normal, saving = units_in(folder / "journal", between), units_in(folder / "journal", spans)
    return {
        "rows": rows,
        "saves": len(spans),
        "save_s": [round(b - a, 2) for a, b in spans],
        "save_mb_s": round(statistics.median(speeds)),
        "units_per_s": round(normal),
        "units_per_s_saving": round(saving),
        "units_share": round(saving / normal, 3),
        "pull_ms": probe.median_ms(between),
        "pull_ms_saving": probe.median_ms(spans),
        "pull_ms_max": probe.worst_ms([*spans, (spans[-1][1], at_last)]),
        "pull_ms_max_between": probe.worst_ms(between),
    }, job


def digest_of(one: Checkpoint) -> tuple[int, int]:
    """Sum and rows of the table in a checkpoint, read as docs/checkpoint_format.md says."""
    assert one.manifest is not None
    total = rows = 0
    wanted = [t["number"] for t in one.manifest.tables if t["table"]["name"] == "rows"]
    _, files = open_checkpoint(one.path)
    for file in files:
        for _, section in file.sections(np.ones(one.manifest.frag_num, np.bool_)):
            words = section.view("<u4")
            at = 32 + 16 * int(words[3])
            for _ in range(int(words[2])):
                row_bytes = int(words[at // 4 + 3])
                count = int(section[at + 16 : at + 24].view("<u8")[0])
                if int(words[at // 4]) in wanted:
                    body = section[at + 48 : at + 48 + count * row_bytes].reshape(count, row_bytes)
                    keys = np.ascontiguousarray(body[:, :8]).view("<u8").ravel()
                    total += digest(keys, np.ascontiguousarray(body[:, 8:]).view("<f4"))
                    rows += count
                at += 48 + -(-count * row_bytes // 8) * 8
    return total % (1 << 64), rows


def restore(folder: Path, job: dict[str, object]) -> dict[str, Any]:
    """The newest checkpoint in other clusters."""
    one = CheckpointFolder(folder / "out.checkpoints").found()[-1]
    expected = digest_of(one)
    result: dict[str, Any] = {"rows": expected[1], "clusters": []}
    for servers, shards in ((2, 2), (3, 1)):
        # All its blocks are done, so that it exports what it has loaded.
        again = {**job, "max_steps": 1, "checkpoint_interval": 0}
        again["checkpoint_dir"] = folder / "out.checkpoints"
        cluster = Cluster(again, servers, shards, 1)
        try:
            _, found = cluster.wait_line(r"continuing from checkpoint .* rows in ([\d.]+) s")
            figures = cluster.figures()
        finally:
            cluster.close()
        (folder / "out.checkpoints" / "passed.json").unlink(missing_ok=True)
        same = (figures["digest"], figures["digest_rows"]) == expected
        result["clusters"].append(
            {"servers": servers, "shards": servers * shards, "restore_s": float(found[1]),
             "identical": same}
        )  # fmt: skip
        say(f"{servers} servers: {result['clusters'][-1]}")
    result["identical"] = all(c["identical"] for c in result["clusters"])
    return result


def main() -> None:
    """Runs all parts, or those asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gb", type=float, default=4.0, help="size of the store, GB")
    parser.add_argument("--corpus", default="", help="a text: fastText trains on it meanwhile")
    parser.add_argument("--servers", type=int, default=1, help="of two shards each")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", help="on the disk to be measured; default: temporary files")
    parser.add_argument("--no-restore", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")
    args = parser.parse_args()
    rows = int(args.gb * 1e9 / ROW_BYTES)
    folder = Path(tempfile.mkdtemp(prefix="snailps-checkpoint-", dir=args.folder))
    try:
        size = int(min(args.gb, 1.5) * 1e9)
        before = disk(folder, size)
        say(f"disk {before}")
        figures, job = save(folder, rows, args.servers, args.workers, args.corpus)
        after = disk(folder, size)
        say(f"disk {after}")
        speed = max((before[way] + after[way]) / 2 for way in before)
        figures["disk_share"] = round(figures["save_mb_s"] / speed, 3)
        result = {"disk": {"before": before, "after": after}, "save": figures}
        if not args.no_restore:
            result["restore"] = restore(folder, job)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    met = {name: figures[name] >= least for name, least in TARGETS.items() if "share" in name}
    met["pull_ms_max"] = figures["pull_ms_max"] <= TARGETS["pull_ms_max"]
    if not args.no_restore:
        met["identical"] = result["restore"]["identical"]
    result["met"] = met
    print(json.dumps(result) if args.json else json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
