"""Counters of a process as samples.

    Status (master), Report on Ask("stats") (server), counters of the client (worker) -> samples

Functions of plain values; `metrics.FAMILIES` has names and meanings.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from snailps._version import __version__
from snailps.node.metrics import Histogram, Sample, counters, histogram
from snailps.node.status import EventKind, Phase, Status
from snailps.node.usage import rss_bytes

WAITS_MAX = 100
LABEL_CHARS_MAX = 120

_SHARD_COUNTERS = counters("server", ("shard", "copy"))
_TABLE_COUNTERS = counters("server", ("copy", "table"))
_CLIENT_COUNTERS = counters("worker", ())
_LOOP_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, math.inf)
"""Fixed: the status has only non-empty buckets."""
_BLOCK_BOUNDS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


def of_process(role: str, number: int) -> list[Sample]:
    """Metrics that every process has."""
    about = {"role": role, "id": str(number), "version": __version__}
    samples = [
        Sample("snailps_process_info", about, 1),
        Sample("process_cpu_seconds_total", {}, time.process_time()),
        Sample("process_resident_memory_bytes", {}, rss_bytes()),
    ]
    begun = _begun()
    if begun is not None:
        samples.append(Sample("process_start_time_seconds", {}, begun))
    with contextlib.suppress(OSError):  # a sandbox without /proc
        files = len(list(Path("/proc/self/fd").iterdir()))
        samples.append(Sample("process_open_fds", {}, files))
    return samples


def _begun() -> float | None:
    """When this process began, seconds since 1970."""
    try:
        stat = Path("/proc/self/stat").read_text(errors="replace")  # it has the program's name
        ticks = int(stat.rpartition(")")[2].split()[19])
        up_s = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return round(time.time() - up_s + ticks / os.sysconf("SC_CLK_TCK"), 2)


def of_master(
    status: Status,
    events: Mapping[str, int],
    *,
    replicated: bool,
    servers: int,
    heartbeat_interval: float,
) -> list[Sample]:
    """Metrics of a run. `events`: counts by kind; `replicated`: every shard should have a standby,
    unless there is one server only; `servers`: servers expected, or the most present so far."""
    samples = [
        Sample("snailps_phase", {"phase": phase}, phase == status["phase"])
        for phase in get_args(Phase)
    ]
    for role in ("server", "worker", "driver"):
        count = sum(node["role"] == role for node in status["nodes"])
        samples.append(Sample("snailps_members", {"role": role}, count))
    samples += [
        Sample("snailps_events_total", {"kind": kind}, events.get(kind, 0))
        for kind in get_args(EventKind)
    ]
    unit: dict[str, str] = {"unit": status["unit"]}
    samples += [
        Sample("snailps_pass_units", unit, status["units"]),
        Sample("snailps_pass_units_per_second", unit, status["units_per_s"]),
        Sample("snailps_pass_progress_ratio", {}, status["progress"]),
        Sample("snailps_shards", {}, len(status["shards"])),
    ]
    blocks = status["blocks"]
    samples += [
        Sample("snailps_blocks", {"state": "left"}, blocks["left"]),
        Sample("snailps_blocks", {"state": "leased"}, blocks["leased"]),
        Sample("snailps_blocks", {"state": "done"}, blocks["done"]),
    ]
    if status["loss"] is not None:
        samples.append(Sample("snailps_loss", {}, status["loss"]))
    if status["lr"] is not None:
        samples.append(Sample("snailps_learning_rate", {}, status["lr"]))
    if status["session"] is not None:
        samples.append(Sample("snailps_jobs_total", {}, status["session"]["jobs"]))
    if replicated:
        lacking = [s for s in status["shards"] if not (s["standby"] and s["seeded"] >= 1.0)]
        bare = len(lacking) if servers > 1 else 0
        samples.append(Sample("snailps_shards_without_standby", {}, bare))
    checkpoint = status["checkpoint"]
    if checkpoint is not None and checkpoint["age_s"] is not None:
        samples.append(Sample("snailps_checkpoint_age_seconds", {}, checkpoint["age_s"]))
    samples.append(Sample("snailps_heartbeat_interval_seconds", {}, heartbeat_interval))
    for node in status["nodes"]:
        if node["heartbeat_s"] is not None:
            labels = {"role": node["role"], "id": str(node["id"])}
            samples.append(Sample("snailps_heartbeat_age_seconds", labels, node["heartbeat_s"]))
    waits = ((wait["who"], wait["whom"], wait["seconds"]) for wait in status["waits"])
    return [*samples, *of_waits(waits), *_of_loop(status)]


def _of_loop(status: Status) -> list[Sample]:
    loop, counts = status["loop"], [0] * len(_LOOP_BOUNDS_S)
    for upper_ms, count in loop["counts"]:
        counts[bisect_left(_LOOP_BOUNDS_S, upper_ms / 1000)] += int(count)
    buckets = zip(_LOOP_BOUNDS_S, counts, strict=True)
    return histogram("snailps_loop_turn_seconds", buckets, loop["busy_s"], {})


def of_waits(waits: Iterable[tuple[str, str, float]]) -> list[Sample]:
    """Waits by waiting process and reason; of several with the same labels the longest."""
    longest: dict[tuple[str, str], float] = {}
    for who, whom, seconds in waits:
        key = (_label(who), _label(whom))
        if key in longest:
            longest[key] = max(longest[key], seconds)
        elif len(longest) < WAITS_MAX:
            longest[key] = seconds
    return [
        Sample("snailps_waits_seconds", {"who": who, "whom": whom}, seconds)
        for (who, whom), seconds in longest.items()
    ]


def _label(text: str) -> str:
    """A text for people as the value of a label: without numbers that change all the time. Each
    value of a label is a series that is kept for weeks."""
    text = re.sub(r"\(here: .*\)", "", text)
    text = re.sub(r"[\d.,]+ (MB|GB|bytes|s|blocks?|more)\b", r"\1", text)
    text = re.sub(r"^\d+ requests", "requests", text)
    return " ".join(text.split())[:LABEL_CHARS_MAX]


def of_server(stats: Mapping[str, Any]) -> list[Sample]:
    """Metrics of the shards of a server, of its report on `Ask("stats")`. Those of tables are sums
    over its shards: a server may have hundreds of both."""
    samples: list[Sample] = []
    tables: Counter[tuple[str, str, str]] = Counter()
    for kind, copy in (("shards", "primary"), ("standbys", "standby")):
        for shard in stats.get(kind, ()):
            labels = {"shard": str(shard["shard"]), "copy": copy}
            samples += [
                Sample(name, labels, shard[key])
                for key, name in _SHARD_COUNTERS.items()
                if key in shard
            ]
            for number, counts in shard.get("tables", {}).items():
                name = str(counts.get("name", number))
                for key in _TABLE_COUNTERS.keys() & counts.keys():
                    tables[key, copy, name] += counts[key]
            replica = shard.get("replica", {})
            if copy == "primary" and replica.get("state", "none") != "none":
                lag = {"shard": str(shard["shard"])}
                samples.append(Sample("snailps_standby_lag_bytes", lag, replica["lag_bytes"]))
                samples.append(Sample("snailps_standby_lag_seconds", lag, replica["lag_s"]))
    return samples + [
        Sample(_TABLE_COUNTERS[key], {"copy": copy, "table": name}, tables[key, copy, name])
        for key, copy, name in sorted(tables)
    ]


def of_worker(
    name: str,
    counts: Mapping[str, int],
    waits: Iterable[Sequence[Any]],
    waited_s: float,
) -> list[Sample]:
    """Metrics of a worker's client: its counters, and its open requests (what, peer, seconds)."""
    samples = [
        Sample(metric, {}, counts[key]) for key, metric in _CLIENT_COUNTERS.items() if key in counts
    ]
    samples.append(Sample("snailps_worker_waited_seconds_total", {}, waited_s))
    return samples + of_waits((name, f"{peer} ({what})", seconds) for what, peer, seconds in waits)


class BlockTally:
    """Blocks that a worker has finished, for its metrics. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: Counter[str] = Counter()
        self._units: Counter[tuple[str, str]] = Counter()
        self._seconds = Histogram("snailps_block_seconds", _BLOCK_BOUNDS_S)
        self.waited_s = 0.0
        """Seconds that the present job has waited for steps; the thread that trains adds."""
        self.work_s = 0.0
        """Processor seconds of the present job's training that a single worker would need, too:
        kernels, and preparing of blocks."""

    def done(self, pass_: str, blocks: int, units: int, seconds: float, counts: str) -> None:
        """Count blocks of a pass; `counts` names the units of the training."""
        with self._lock:
            self._blocks[pass_] += blocks
            if pass_ == "train" and counts:
                self._units[counts, pass_] += units
        self._seconds.observe(seconds, **{"pass": pass_})

    def samples(self) -> list[Sample]:
        with self._lock:
            blocks, units = dict(self._blocks), dict(self._units)
        return [
            *(Sample("snailps_blocks_done_total", {"pass": p}, n) for p, n in blocks.items()),
            *(Sample(f"snailps_{u}_total", {"pass": p}, n) for (u, p), n in units.items()),
            *self._seconds.samples(),
        ]
