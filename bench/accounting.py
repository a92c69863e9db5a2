"""What the processor time of a training is spent on: samples of perf, by activity.

    perf record -> perf script -> read -> samples -> accounts_of -> us a unit of each activity

A sample belongs to the first rule that it meets: by the role of its process, the name of its
thread, and the functions that were called.  What the system does for a call (copying to a socket,
the other end's handling of packets, a page's first touch) counts as the call's.  Shares of samples
become times by the processor time that was measured, so that the rows of a column add up to it.

Pure, but for `Recorder`.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FREQUENCY = 199
"""Samples a second and core: a prime, so that they do not keep step with periods of a cgroup."""
THREAD_NAMES = Path(__file__).resolve().parent / "named_threads"
"""For PYTHONPATH of the processes."""
KERNEL = "[kernel.kallsyms]"
HEADER = re.compile(r"(?P<name>.*?)\s+(?P<pid>\d+)/(?P<tid>\d+)\s+(?P<time>[\d.]+):\s*$")
FRAME = re.compile(r"\s+[0-9a-f]+ (?P<symbol>.*) \((?P<file>[^()]*)\)$")

ACTIVITIES = (
    "training", "reading and encoding text", "planning and sorting", "gathering rows",
    "merging rows", "sending", "receiving", "applying", "replicating", "transport",
    "memory pages", "waking and waiting", "coordination", "master",
)  # fmt: skip
"""In the order of the table; coordination is Python's own, wherever it is no other activity."""
WAITING = "waiting: share not used"
ENDS = "start and end"


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample: frames are ``symbol@file``, the innermost first."""

    pid: int
    thread: str
    time: float
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """Samples of an activity.

    `frame` must be found in the innermost frame, or in `any_frame`; `thread` in the thread's name.
    """

    activity: str
    frame: str
    role: str = ""
    thread: str = ""
    any_frame: bool = False

    def meets(self, role: str, sample: Sample) -> bool:
        if self.role and self.role != role:
            return False
        if self.thread and not re.search(self.thread, sample.thread):
            return False
        frames = sample.frames if self.any_frame else sample.frames[:1]
        return any(re.search(self.frame, frame) for frame in frames)


TRAINS = (
    r"snail_(train|triple|score|sum_rows|rows_from_lanes|lanes_from_rows|gradients_from|transpose|judge"
    r"|plan_bundles|bound_bundles|cbow|linear|fm_|labels|add_to_rows|add_weighted|bag_means|loss"
    r"|csr|solve|add_gram)|expm1f|logf@"
)
RULES = (
    Rule("master", "", role="master"),
    Rule("sending", r"sys_send|tcp_sendmsg|sock_sendmsg|sock_write_iter", any_frame=True),
    Rule("receiving", r"sys_recv|tcp_recvmsg|sock_recvmsg|sock_read_iter", any_frame=True),
    Rule("memory pages", r"page_fault|do_madvise|sys_munmap|sys_mmap|sys_brk", any_frame=True),
    Rule("waking and waiting", re.escape(KERNEL)),
    Rule("applying", r"@(tables|_store|_slab|_arena|_clock_buffer|_retention)\.", role="server"),
    Rule("applying", r"@_kernels|@_requests\.|@_product_requests\.", role="server"),
    Rule("replicating", r"@(_replication_stream|_primary|_standby)\.", role="server"),
    Rule("transport", r"@(_event_loop|_loop|_connection|_connections|_link|_pending|_request"
         r"|_client|_error_feedback|_product_batch|_shard|_connection_memory)\."),
    Rule("transport", r"", role="server", thread="^(shard|control)"),
    Rule("training", TRAINS, role="worker"),
    Rule("merging rows", r"@_row_exchange\.|snail_(exchange|merge|share)", role="worker"),
    Rule("planning and sorting", r"@_(key_numbering|packed_pairs|shuffling)\.|snail_(split"
         r"|find_centres|count_bundles|order|sort|lay_out|hide|number)", role="worker"),
    Rule("reading and encoding text", r"@(_text|_subwords|_labelled|_examples|_matrix)\."),
    Rule("reading and encoding text", r"", role="worker", thread="^(encode|parse)"),
    Rule("planning and sorting", r"", role="worker", thread="^prepare"),
    Rule("gathering rows", r"", role="worker", thread="^check-out"),
    Rule("gathering rows", r"snail_(copy_rows|load|narrow|widen|subtract)", role="worker"),
    Rule("merging rows", r"@_multiarray_umath|memmove|memset", role="worker"),
)  # fmt: skip


def read(lines: Iterable[str]) -> Iterator[Sample]:
    """Samples of what ``perf script -F comm,pid,tid,time,ip,sym,dso`` prints."""
    head: re.Match[str] | None = None
    frames: list[str] = []
    for line in (*lines, ""):
        if frame := FRAME.match(line):
            name = frame["symbol"].partition("+")[0]
            frames.append(f"{name}@{frame['file'].rpartition('/')[2]}")
            continue
        if head is not None and frames:
            yield Sample(int(head["pid"]), head["name"].strip(), float(head["time"]), tuple(frames))
        head, frames = HEADER.match(line), []


def activity_of(role: str, sample: Sample) -> str:
    """Which of `ACTIVITIES` a process of this role was at."""
    found = (rule.activity for rule in RULES if rule.meets(role, sample))
    return next(found, "coordination")


def accounts_of(
    samples: Iterable[Sample],
    roles: Mapping[int, str],
    begin: float,
    end: float,
    *,
    used: float,
    quota_used: float | None,
) -> dict[str, float]:
    """Microseconds a unit of each activity of processes with a role, between two times.

    `used` is what they spent in that time, `quota_used` which part of the hosts' share it was: the
    rest is `WAITING`.  Time before and after is `ENDS`.
    """
    inside: Counter[str] = Counter()
    outside = 0
    for sample in samples:
        role = roles.get(sample.pid)
        if role is None:
            continue
        if begin <= sample.time < end:
            inside[activity_of(role, sample)] += 1
        else:
            outside += 1
    total = inside.total()
    if not total:
        return {}
    found = {name: used * inside[name] / total for name in ACTIVITIES}
    hosts = used - found["master"]
    found[WAITING] = hosts / quota_used - hosts if quota_used else 0.0
    found[ENDS] = used * outside / total
    return found


def accounts_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Activities by number of hosts, means of the runs, in Markdown.

    Rows add up to what hosts and master have had while they trained; `ENDS` comes on top.
    """
    columns: dict[int, list[Mapping[str, float]]] = {}
    for run in runs:
        if run.get("accounts"):
            columns.setdefault(run["hosts"], []).append(run["accounts"])

    def row(name: str, times: Callable[[Mapping[str, float]], float]) -> str:
        means = (sum(map(times, some)) / len(some) for some in columns.values())
        return f"| {name} | " + " | ".join(f"{mean:.3f}" for mean in means) + " |"

    heads = (f"{hosts} hosts" if hosts > 1 else "1 host" for hosts in columns)
    return "\n".join([
        "| us of the processor a unit | " + " | ".join(heads) + " |",
        "|---" * (len(columns) + 1) + "|",
        *(row(name, lambda one, name=name: one[name]) for name in (*ACTIVITIES, WAITING)),
        row("sum", lambda one: sum(one[name] for name in (*ACTIVITIES, WAITING))),
        row(ENDS, lambda one: one[ENDS]),
    ])  # fmt: skip


class NoPerf(Exception):
    """perf is missing here, or may not sample; the text says which."""


class Recorder:
    """perf, from now on."""

    def __init__(self, file: Path) -> None:
        perf = shutil.which("perf")
        if perf is None:
            raise NoPerf("--account needs perf (Debian: apt-get install linux-perf)")
        self._perf, self._file = perf, file
        self._process = subprocess.Popen(
            [perf, "record", "-q", "-a", "-g", "-e", "cpu-clock", "-F", str(FREQUENCY),
             "-k", "CLOCK_MONOTONIC", "-o", str(file)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def close(self) -> str:
        """End perf, and return what it has complained of; again is harmless."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        return self._process.communicate(timeout=60)[1] or ""

    def samples(self) -> list[Sample]:
        """The recorded samples; NoPerf if there are none."""
        complaints = self.close()
        fields = "comm,pid,tid,time,ip,sym,dso"
        command = [self._perf, "script", "-i", str(self._file), "-F", fields]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = list(read(done.stdout.splitlines()))
        if not found:
            raise NoPerf(f"--account: perf has no samples: {(complaints + done.stderr).strip()}")
        return found
