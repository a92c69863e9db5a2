"""Metrics of a process in Prometheus' text format: the table of all metrics, and rendering.

    FAMILIES, samples -> render -> text format 0.0.4
    Histogram.observe -> Histogram.samples

Names and units follow Prometheus' conventions: base units, ``_total`` at counters.
`metric_samples.py` makes the numbers, `metrics_server.py` serves them.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from snailps.dataclass import dataclass

Kind = Literal["counter", "gauge", "histogram"]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Family(NamedTuple):
    """The metrics of one name: meaning, labels, the processes that have them, and the counter (of a
    shard, a table or a client) that they show."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    roles: str
    help: str
    counter: str = ""


class Sample(NamedTuple):
    """One number; `name`: of its family, for a histogram with ``_bucket``, ``_sum`` or
    ``_count``."""

    name: str
    labels: dict[str, str]
    value: float


_SHARD = ("shard", "copy")
_TABLE = ("copy", "table")
FAMILIES: tuple[Family, ...] = (
    # --- every process
    Family("snailps_process_info", "gauge", ("role", "id", "version"), "all",
           "The process: its role, its number and its version; always 1."),
    Family("process_cpu_seconds_total", "counter", (), "all",
           "Processor time of the process, user and system."),
    Family("process_resident_memory_bytes", "gauge", (), "all", "Resident memory of the process."),
    Family("process_start_time_seconds", "gauge", (), "all",
           "When the process began, seconds since 1970."),
    Family("process_open_fds", "gauge", (), "all", "Open files and sockets of the process."),
    Family("snailps_waits_seconds", "gauge", ("who", "whom"), "master, worker",
           "How long a process has been waiting for another one; the hundred longest waits."),
    # --- master
    Family("snailps_phase", "gauge", ("phase",), "master",
           "1 for the present phase of the run, 0 for the others."),
    Family("snailps_members", "gauge", ("role",), "master", "Processes of the cluster."),
    Family("snailps_events_total", "counter", ("kind",), "master",
           "What happened to the run, by kind: joined, lost, replaced, left, moved, checkpoint, "
           "files, restored, master, warning."),
    Family("snailps_pass_units", "gauge", ("unit",), "master",
           "Words or examples of the present pass so far."),
    Family("snailps_pass_units_per_second", "gauge", ("unit",), "master",
           "Words or examples per second over the last ten seconds."),
    Family("snailps_pass_progress_ratio", "gauge", (), "master",
           "Share of the present pass or of the export that is done, 0 to 1."),
    Family("snailps_blocks", "gauge", ("state",), "master",
           "Blocks of the present pass: left, leased, done."),
    Family("snailps_loss", "gauge", (), "master", "Mean loss of the last blocks."),
    Family("snailps_learning_rate", "gauge", (), "master", "Learning rate of the last block."),
    Family("snailps_jobs_total", "counter", (), "master", "Jobs that this master has begun."),
    Family("snailps_shards", "gauge", (), "master", "Shards of the cluster."),
    Family("snailps_shards_without_standby", "gauge", (), "master",
           "Shards whose rows are at one server only, where they should be at two; 0 in a cluster "
           "of one server."),
    Family("snailps_checkpoint_age_seconds", "gauge", (), "master",
           "Time since this run completed its newest checkpoint."),
    Family("snailps_heartbeat_age_seconds", "gauge", ("role", "id"), "master",
           "Time since a process was last heard."),
    Family("snailps_heartbeat_interval_seconds", "gauge", (), "master",
           "Time between two heartbeats of a process (heartbeat_interval)."),
    Family("snailps_loop_turn_seconds", "histogram", (), "master",
           "Duration of a turn of the master's loop, without its waiting."),
    # --- server
    Family("snailps_pulls_total", "counter", _SHARD, "server", "Pulls that a shard has answered.",
           "pulls"),
    Family("snailps_pushes_total", "counter", _SHARD, "server", "Pushes that a shard has applied.",
           "pushes"),
    Family("snailps_repeated_pushes_total", "counter", _SHARD, "server",
           "Pushes that came a second time and were not applied again.", "repeated"),
    Family("snailps_rows_pulled_total", "counter", _SHARD, "server", "Rows in answers to pulls.",
           "rows_pulled"),
    Family("snailps_rows_pushed_total", "counter", _SHARD, "server", "Rows in pushes.",
           "rows_pushed"),
    Family("snailps_pull_bytes_total", "counter", _SHARD, "server",
           "Bytes of answers to pulls: rows and marks, without the headers of frames.",
           "pull_bytes"),
    Family("snailps_push_bytes_total", "counter", _SHARD, "server",
           "Bytes of pushes that a shard has applied: keys and values, without the headers.",
           "push_bytes"),
    Family("snailps_received_bytes_total", "counter", _SHARD, "server",
           "Bytes that a shard has received: pushes, requests, the stream of a primary.",
           "bytes_in"),
    Family("snailps_sent_bytes_total", "counter", _SHARD, "server",
           "Bytes that a shard has sent: pulled rows, acknowledgements, its stream to a standby.",
           "bytes_out"),
    Family("snailps_refused_frames_total", "counter", _SHARD, "server",
           "Frames that a shard has refused.", "refused"),
    Family("snailps_shard_rows", "gauge", _SHARD, "server", "Rows of a shard.", "rows"),
    Family("snailps_shard_memory_bytes", "gauge", _SHARD, "server",
           "Memory of a shard's rows, their optimizer's state and their index.", "bytes"),
    Family("snailps_shard_connections", "gauge", _SHARD, "server", "Open connections of a shard.",
           "connections"),
    Family("snailps_shard_parked_requests", "gauge", _SHARD, "server",
           "Requests that wait at a shard, for a clock or its standby.", "parked"),
    Family("snailps_shard_clock", "gauge", _SHARD, "server", "Clock of a shard.", "clock"),
    Family("snailps_table_rows", "gauge", _TABLE, "server", "Rows of a table at a server.", "rows"),
    Family("snailps_table_bytes", "gauge", _TABLE, "server",
           "Memory of a table at a server: rows, state, index, counts, and room for more rows.",
           "bytes"),
    Family("snailps_table_rows_made_total", "counter", _TABLE, "server",
           "Rows that pushes have made.", "made"),
    Family("snailps_table_rows_refused_total", "counter", _TABLE, "server",
           "Pushed values of keys that were not admitted.", "refused"),
    Family("snailps_table_rows_evicted_total", "counter", _TABLE, "server",
           "Rows deleted because of the table's limit of rows.", "evicted"),
    Family("snailps_table_rows_expired_total", "counter", _TABLE, "server",
           "Rows deleted because nothing was pushed to them for long.", "expired"),
    Family("snailps_standby_lag_bytes", "gauge", ("shard",), "server",
           "Bytes that a primary has sent or queued and its standby has not acknowledged."),
    Family("snailps_standby_lag_seconds", "gauge", ("shard",), "server",
           "How long a primary's standby takes to acknowledge a change."),
    # --- worker
    Family("snailps_blocks_done_total", "counter", ("pass",), "worker",
           "Blocks that a worker has finished."),
    Family("snailps_words_total", "counter", ("pass",), "worker",
           "Words that a worker has trained; a model of text."),
    Family("snailps_examples_total", "counter", ("pass",), "worker",
           "Examples that a worker has trained; a model of examples."),
    Family("snailps_block_seconds", "histogram", ("pass",), "worker", "Time for a block."),
    Family("snailps_worker_waited_seconds_total", "counter", (), "worker",
           "Time that a worker waited for others (bsp, ssp), of the present job."),
    Family("snailps_client_received_bytes_total", "counter", (), "worker",
           "Bytes that a worker has received from the shards.", "bytes_in"),
    Family("snailps_client_sent_bytes_total", "counter", (), "worker",
           "Bytes that a worker has sent to the shards.", "bytes_out"),
    Family("snailps_client_rows_pulled_total", "counter", (), "worker",
           "Rows that a worker has pulled.", "rows_pulled"),
    Family("snailps_client_rows_pushed_total", "counter", (), "worker",
           "Rows that a worker has pushed.", "rows_pushed"),
    Family("snailps_client_reconnects_total", "counter", (), "worker",
           "Connections to shards that a worker has made again.", "reconnects"),
    Family("snailps_client_open_requests", "gauge", (), "worker",
           "Requests of a worker that are not answered yet.", "open"),
)  # fmt: skip
"""Every metric; docs/metrics.md is generated from this."""

_SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass(slots=True)
class _MetricSeries:
    counts: list[int]
    sum_: float = 0.0


class Histogram:
    """Durations by labels, in buckets up to `bounds` (ascending) and inf. Thread-safe."""

    def __init__(self, name: str, bounds: Sequence[float]) -> None:
        self._name, self._bounds = name, tuple(bounds)
        self._series: dict[tuple[tuple[str, str], ...], _MetricSeries] = {}
        self._lock = threading.Lock()

    def observe(self, value: float, **labels: str) -> None:
        key = tuple(labels.items())
        with self._lock:
            series = self._series.setdefault(key, _MetricSeries([0] * (len(self._bounds) + 1)))
            series.counts[bisect_left(self._bounds, value)] += 1
            series.sum_ += value

    def samples(self) -> list[Sample]:
        """All samples, buckets cumulative."""
        samples: list[Sample] = []
        with self._lock:
            for key, series in self._series.items():
                bounds = zip((*self._bounds, math.inf), series.counts, strict=True)
                samples += histogram(self._name, bounds, series.sum_, dict(key))
        return samples


def histogram(
    name: str, counts: Iterable[tuple[float, int]], sum_: float, labels: dict[str, str]
) -> list[Sample]:
    """Samples of a histogram, of pairs of an upper bound and a count; the last bound is inf."""
    samples, total = [], 0
    for bound, count in counts:
        total += count
        samples.append(Sample(f"{name}_bucket", {**labels, "le": number(bound)}, total))
    return [*samples, Sample(f"{name}_sum", labels, sum_), Sample(f"{name}_count", labels, total)]


def number(value: float) -> str:
    """A number as the text format writes it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1 << 53 else repr(float(value))


def counters(role: str, labels: tuple[str, ...]) -> dict[str, str]:
    """Families that show a counter of a process: counter -> name."""
    return {
        family.counter: family.name
        for family in FAMILIES
        if family.counter and (family.roles, family.labels) == (role, labels)
    }


def family_of(name: str) -> str:
    """The name of the family that a sample belongs to."""
    if name not in _KNOWN:
        for suffix in _SUFFIXES:
            if name.endswith(suffix) and name.removesuffix(suffix) in _KNOWN:
                return name.removesuffix(suffix)
    return name


def render(samples: Iterable[Sample]) -> bytes:
    """Samples as text, grouped by family, in the order of `FAMILIES`."""
    by_family: dict[str, list[Sample]] = {}
    for sample in samples:
        by_family.setdefault(family_of(sample.name), []).append(sample)
    lines = []
    for family in FAMILIES:
        members = by_family.pop(family.name, None)
        if members:
            lines.append(f"# HELP {family.name} {_escaped(family.help)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += [_line(sample) for sample in members]
    assert not by_family, f"metrics without a family: {sorted(by_family)}"
    return "".join(f"{line}\n" for line in lines).encode()


def _line(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_quoted(text)}"' for name, text in sample.labels.items())
    return (
        f"{sample.name}{{{labels}}} {number(sample.value)}"
        if labels
        else (f"{sample.name} {number(sample.value)}")
    )


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")


def describe() -> str:
    """docs/metrics.md's table."""
    lines = ["| metric | kind | labels | of | |", "|---|---|---|---|---|"]
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(
            f"| `{family.name}` | {family.kind} | {labels} | {family.roles} | {family.help} |"
        )
    return "".join(f"{line}\n" for line in lines)


_KNOWN = {family.name for family in FAMILIES}
