"""One round of the check of rounds: the tests of `make test`, in another order, under a load.

    python -m tests.night.rounds ROUND FOLDER -- WORDS OF PYTEST AND TESTS
    name -> order, load -> pytest -> FOLDER/tests.jsonl, FOLDER/round.json -> a row of the table

    1 to 20     order by that seed; load by seed % 4: none, busy, half a core, late threads
    cores-N     on N cores, as far as the tests can see
    root, user  as root; as a user who may do nothing that root may

Nothing is run again that has failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(__file__).resolve().parent / "site"
LATE_MS = 150
CORES = (1, 3, 8, 64)
SEEDS = range(1, 21)
NAMES = (*map(str, SEEDS), *(f"cores-{cores}" for cores in CORES), "root", "user")
HALF_A_CORE = 0.5
SHARE_MAX = 0.5
"""Of its limit a test may take so much in any round."""
BUSY = "while True: pass"
WRITER = """
import os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
while True:
    os.pwrite(file, bytes(1 << 20), 0)
    os.fsync(file)
"""


class Impossible(Exception):
    """A round that this machine cannot have; the text says why."""


@dataclass(slots=True)
class Run:
    """How pytest is started in a round."""

    load: str
    order: int = 0
    before: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    enter: object = None
    options: list[str] = field(default_factory=list)


# --- loads --------------------------------------------------------------------------------------


@contextlib.contextmanager
def idle(seed: int, folder: Path) -> Iterator[Run]:
    """Nothing but the tests."""
    yield Run("idle", seed)


@contextlib.contextmanager
def busy(seed: int, folder: Path) -> Iterator[Run]:
    """Two busy processes a core, and one that waits for the disk all the time."""
    count = 2 * len(os.sched_getaffinity(0))
    commands = [[sys.executable, "-c", BUSY]] * count
    commands.append([sys.executable, "-c", WRITER, str(folder / "written")])
    others = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for command in commands]
    try:
        yield Run(f"{count} busy processes and fsync", seed)
    finally:
        for other in others:
            other.kill()
            other.wait()
        (folder / "written").unlink(missing_ok=True)


@contextlib.contextmanager
def half_a_core(seed: int, folder: Path) -> Iterator[Run]:
    """A cgroup with half of a core; where there are none, one core."""
    sys.path.append(str(ROOT / "bench"))
    import cgroups

    try:
        groups = cgroups.Groups(100.0)
        with groups:
            groups.add("tests", HALF_A_CORE)
            yield Run("half a core", seed, enter=groups.enter("tests"))
    except cgroups.NoQuota as error:
        one = min(os.sched_getaffinity(0))
        yield Run(f"one core ({error})", seed, enter=lambda: os.sched_setaffinity(0, {one}))


@contextlib.contextmanager
def late(seed: int, folder: Path) -> Iterator[Run]:
    """Threads, what is sent and what goes to the disk are late now and then, everywhere."""
    library = folder / "late_calls.so"
    subprocess.run(
        [os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-O1", "-o", library,
         SITE / "late_calls.c", "-ldl"], check=True,
    )  # fmt: skip
    wish = {"NIGHT_LATE": f"{seed}:{LATE_MS}", "LD_PRELOAD": str(library)}
    # What makes calls late takes processor time of its own.
    yield Run(
        f"all late by up to {LATE_MS} ms", seed, environment=on_path(wish), options=["--no-budget"]
    )


LOADS = (idle, busy, half_a_core, late)


@contextlib.contextmanager
def with_cores(cores: int) -> Iterator[Run]:
    """So many cores, as far as the tests can see."""
    made_up = cores > len(os.sched_getaffinity(0))
    yield Run(
        f"cores: {cores}{', made up' if made_up else ''}",
        cores,
        environment=on_path({"NIGHT_CORES": str(cores)}),
        options=[f"--deselect={test}" for test in NOT_MADE_UP if made_up],
    )


NOT_MADE_UP = (
    "tests/unit/test_numa.py::test_nodes_of_this_machine_have_all_cpus_of_this_process",
    "tests/cluster/test_launcher.py"
    "::test_workers_are_kept_on_the_nodes_also_when_they_are_started_again",
)
"""These compare what Linux tells of cores with what Python does, and use the last one."""


@contextlib.contextmanager
def as_root() -> Iterator[Run]:
    """As this process, which has to be root's."""
    if os.geteuid() != 0:
        raise Impossible("this is not root")
    yield Run("root")


@contextlib.contextmanager
def as_user() -> Iterator[Run]:
    """As an ordinary user: root in a namespace of users in which it is none, but owns its files."""
    if os.geteuid() != 0:
        yield Run("a user")
        return
    before = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    tried = subprocess.run([*before, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise Impossible(f"root can be no user here: {tried.stderr.strip()}")
    yield Run("a user", before=before)


def on_path(wish: dict[str, str]) -> dict[str, str]:
    """With which each Python finds site/."""
    return {**wish, "NIGHT_SITE": str(SITE), "PYTHONPATH": str(SITE)}


def load_of(name: str, folder: Path) -> contextlib.AbstractContextManager[Run]:
    """What a round is run under."""
    if name.isdigit():
        return LOADS[int(name) % len(LOADS)](int(name), folder)
    if name.startswith("cores-"):
        return with_cores(int(name.removeprefix("cores-")))
    return {"root": as_root, "user": as_user}[name]()


# --- one round ----------------------------------------------------------------------------------


def run(name: str, folder: Path, words: list[str]) -> int:
    """Runs a round; its exit code."""
    with load_of(name, folder) as how:
        command = [
            *how.before, *words, "-q", "-p", "no:cacheprovider", "-p", "tests.night.record",
            "--order", str(how.order), "--record", str(folder / "tests.jsonl"),
            *how.options,
        ]  # fmt: skip
        print(f"{how.load}: {' '.join(command)}", flush=True)
        begun, spent = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **how.environment},
            preexec_fn=how.enter,
        ).wait()
        wall_s = time.monotonic() - begun
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = {
        "load": how.load,
        "exit": ended,
        "wall_s": wall_s,
        "cpu_s": after.ru_utime + after.ru_stime - spent.ru_utime - spent.ru_stime,
    }
    (folder / "round.json").write_text(json.dumps(told))
    row = Row.of(folder)
    for line in row.complaints():
        print(line)
    return ended


# --- what came out ------------------------------------------------------------------------------


@dataclass(slots=True)
class Row:
    """A round in the table."""

    name: str
    told: dict
    tests: list[dict]

    @classmethod
    def of(cls, folder: Path) -> Row:
        lines = (folder / "tests.jsonl").read_text().splitlines()
        told = json.loads((folder / "round.json").read_text())
        return cls(folder.name, told, [json.loads(line) for line in lines])

    def with_outcome(self, outcome: str) -> list[dict]:
        return [one for one in self.tests if one["outcome"] == outcome]

    @property
    def nearest(self) -> tuple[float, str]:
        """What part of its limit the test took that came nearest to it, and its name."""
        shares = [
            (one["wall_s"] / one["limit_s"], one["test"]) for one in self.tests if one["limit_s"]
        ]
        return max(shares, default=(0.0, "none"))

    def complaints(self) -> Iterator[str]:
        """What has to be looked at."""
        for one in self.with_outcome("failed"):
            yield f"failed: {one['test']}"
        share, test = self.nearest
        if share > SHARE_MAX:
            yield f"took {share:.0%} of its limit: {test}"

    def __str__(self) -> str:
        share, test = self.nearest
        passed, failed, skipped = (
            len(self.with_outcome(one)) for one in ("passed", "failed", "skipped")
        )
        return (
            f"| {self.name} | {self.told['load']} | {passed} | {failed} | {skipped}"
            f" | {self.told['wall_s']:.0f} s"
            f" | {self.told['cpu_s']:.0f} s | {share:.0%}: {test.rpartition('/')[2]} |"
        )


HEADING = (
    "| round | load | passed | failed | skipped | wall | processor"
    " | nearest to its limit |\n|---|---|---|---|---|---|---|---|"
)


def table(folder: Path) -> Iterator[str]:
    """Lines of the table of all rounds that a folder has; none: it has none."""
    there = [folder / name for name in NAMES if (folder / name / "round.json").exists()]
    if there:
        yield HEADING
    for one in there:
        yield str(Row.of(one))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.night.rounds")
    parser.add_argument("round", choices=NAMES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("words", nargs="+", help="behind --: pytest, its options, and tests")
    chosen = parser.parse_args()
    try:
        sys.exit(run(chosen.round, chosen.folder.resolve(), chosen.words))
    except Impossible as error:
        print(f"SKIPPED: {error}")


if __name__ == "__main__":
    main()
