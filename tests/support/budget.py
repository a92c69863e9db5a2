"""The cost of tests, and the rule of tests/unit: half a second of CPU, no process.

    Meter -> CPU of this process and its children, seconds, processes -> item.user_properties
    user_properties of all workers -> totals of each folder, the dearest tests -> the terminal

CPU time is nearly the same on a loaded machine and on a quiet one; a test of tests/unit that took
too much is compared with a loop of known cost at that moment.  Seconds are reported, but no test
fails by them: they depend on the load.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

UNIT_CPU_S = 0.5
SIM_CPU_S = 5.0
"""A test of tests/sim: 25 clusters, and 1,000 of them in a minute on two cores."""
NOISE = 3.0
"""A test fails at so many times that: caches and the other hyper-thread cost up to a half."""
STARTS = (
    "subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "copies.start",
)  # fmt: skip
YARDSTICK_S = 0.0075
"""What `yardstick` takes on a quiet core of the machines that these tests are made on."""

_TICKS = os.sysconf("SC_CLK_TCK")
_starts = [0]
_forbidden: list[str] = []


class StartedProcess(BaseException):
    """A test of tests/unit starts a process.  No Exception, so that no code swallows it."""


def _on_event(event: str, args: tuple[object, ...]) -> None:
    if event in STARTS:
        _starts[0] += 1
        if _forbidden:
            raise StartedProcess(
                f"{_forbidden[-1]} starts a process ({event}): those that do are in tests/cluster"
            )


sys.addaudithook(_on_event)


def is_unit(item) -> bool:
    """Whether a test is one of tests/unit."""
    return "unit" in item.path.parts[-3:-1]


def is_sim(item) -> bool:
    """Whether a test is one of tests/sim."""
    return "sim" in item.path.parts[-3:-1]


def children_cpu_s() -> float:
    """CPU seconds of all child processes, ended and living, with their children."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = ended.ru_utime + ended.ru_stime
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # no child: to look for some in all tasks takes up to a millisecond
        return total
    for task in Path("/proc/self/task").iterdir():
        try:
            for pid in (task / "children").read_text().split():
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[11:15])) / _TICKS
        except OSError:  # a thread or a child that has just ended
            continue
    return total


def yardstick() -> float:
    """CPU seconds of a fixed loop: the median of three runs."""
    taken = []
    for _ in range(3):
        begun = time.thread_time()
        total = 0
        for number in range(200_000):
            total += number & 7
        taken.append(time.thread_time() - begun)
    return sorted(taken)[1]


@dataclass(slots=True)
class Meter:
    """Measures one stage of a test, from the creation of this object."""

    cpu_s: float
    children_s: float
    wall_s: float
    starts: int

    @classmethod
    def begin(cls) -> Meter:
        return cls(time.process_time(), children_cpu_s(), time.monotonic(), _starts[0])

    def end(self) -> Meter:
        now = Meter.begin()
        return Meter(
            now.cpu_s - self.cpu_s,
            now.children_s - self.children_s,
            now.wall_s - self.wall_s,
            now.starts - self.starts,
        )


def complaint(spent: Meter, speed=yardstick) -> str:
    """Why a test of tests/unit took too much, or an empty string."""
    if spent.cpu_s > UNIT_CPU_S:
        slower = max(1.0, speed() / YARDSTICK_S)
        if spent.cpu_s > NOISE * UNIT_CPU_S * slower:
            return (
                f"took {spent.cpu_s:.2f} s of CPU, at most {UNIT_CPU_S:g} (this machine is"
                f" {slower:.1f} times as slow as those that the limit is meant for): make it"
                " smaller, or move it to tests/cluster"
            )
    return ""


def sim_complaint(spent: Meter, speed=yardstick) -> str:
    """Why a test of tests/sim took too much, or an empty string."""
    cpu_s = spent.cpu_s + spent.children_s
    slower = max(1.0, speed() / YARDSTICK_S) if cpu_s > SIM_CPU_S else 1.0
    if cpu_s <= NOISE * SIM_CPU_S * slower:
        return ""
    return f"took {cpu_s:.1f} s of CPU, at most {SIM_CPU_S:g}: a seed may take a tenth of a second"


def forbid_starts(name: str):
    """Makes starting a process an error; returns a function that ends that."""
    _forbidden.append(name)
    return _forbidden.pop


def note(item, spent: Meter) -> None:
    """Adds the cost of a stage to the report of a test."""
    item.user_properties += [
        ("cpu_s", spent.cpu_s + spent.children_s),
        ("wall_s", spent.wall_s),
        ("starts", spent.starts),
    ]


def summary(reports, dearest: int):
    """Lines of the report: totals of each folder, and the tests that took the most CPU."""
    spent: dict[str, dict[str, float]] = {}
    for report in reports:
        found = spent.setdefault(report.nodeid, {})
        for name, value in report.user_properties:
            if name in ("cpu_s", "wall_s", "starts"):
                found[name] = found.get(name, 0) + value
    folders: dict[str, list[dict[str, float]]] = defaultdict(list)
    for nodeid, found in spent.items():
        if found:
            folders["/".join(nodeid.split("/")[:2])].append(found)
    for folder, tests in sorted(folders.items()):
        totals = {name: sum(properties[name] for properties in tests) for name in tests[0]}
        yield (
            f"{folder}: {len(tests)} tests, {totals['cpu_s']:.1f} s of CPU,"
            f" {totals['wall_s']:.1f} s, {totals['starts']:.0f} processes started"
        )
    found = sorted(
        ((properties.get("cpu_s", 0), nodeid) for nodeid, properties in spent.items()), reverse=True
    )
    for cpu_s, nodeid in found[:dearest]:
        yield f"{cpu_s:7.2f} s of CPU, {spent[nodeid].get('wall_s', 0):7.2f} s  {nodeid}"
