"""One round of the check of rounds: the tests of `make test`, in another order, under a load.

    python -m tests.night.rounds ROUND FOLDER -- WORDS OF PYTEST AND TESTS
    name -> order, load -> pytest -> FOLDER/tests.jsonl, FOLDER/round.json -> a row of the table

    1 to 20      order by that seed; load by seed % 4: none, busy, half a core, late threads
    cores-N      on N cores, as far as the tests can see
    root, user   as root; as a user who may do nothing that root may
    environment  another name of the clone's folder, HOME, TMPDIR, locale, time zone, PYTHONPATH,
                 terminal; no DNS, no Docker
    beside       hardly an environment at all, and another run of the same tests beside it

Nothing is run again that has failed.  Under a load, tests/unit has no limit of processor time: what
a test takes of it then depends on its neighbours.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.support.skips import data_folder

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(__file__).resolve().parent / "site"
LATE_MS = 150
CORES = (1, 3, 8, 64)
SEEDS = range(1, 21)
NAMES = (
    *map(str, SEEDS), *(f"cores-{cores}" for cores in CORES),
    "root", "user", "environment", "beside",
)  # fmt: skip
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
    """How pytest is started in a round.

    `before`: words before its command; `without`: variables it has not; `enter`: called in the
    child; `beside`: another one runs the same tests, in another order, as long as this one lives.
    """

    load: str
    order: int = 0
    before: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    enter: object = None
    options: list[str] = field(default_factory=list)
    beside: bool = False


# --- loads --------------------------------------------------------------------------------------


@contextlib.contextmanager
def idle(seed: int, folder: Path) -> Iterator[Run]:
    """Nothing but the tests."""
    yield Run("idle", seed)


@contextlib.contextmanager
def busy(seed: int, folder: Path) -> Iterator[Run]:
    """A busy process a core, and one that waits for the disk all the time."""
    count = len(os.sched_getaffinity(0))
    commands = [[sys.executable, "-c", BUSY]] * count
    commands.append([sys.executable, "-c", WRITER, str(folder / "written")])
    others = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for command in commands]
    try:
        yield Run(f"{count} busy processes and fsync", seed, options=["--no-budget"])
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
            yield Run("half a core", seed, enter=groups.enter("tests"), options=["--no-budget"])
    except cgroups.NoQuota as error:
        one = min(os.sched_getaffinity(0))
        yield Run(
            f"one core ({error})", seed, enter=lambda: os.sched_setaffinity(0, {one}),
            options=["--no-budget"],
        )  # fmt: skip


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
MINUTES = (6, 20, 30, 15)
"""That each of them takes."""


@contextlib.contextmanager
def with_cores(cores: int) -> Iterator[Run]:
    """So many cores, as far as the tests can see."""
    made_up = cores > len(os.sched_getaffinity(0))
    yield Run(
        f"cores: {cores}{', made up' if made_up else ''}",
        cores,
        environment=on_path({"NIGHT_CORES": str(cores)}),
    )


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


# Arguments: a folder for what is bound, the tree, its other name, and pytest's words.
ELSEWHERE = """
set -e
mount --bind "$1/resolv.conf" /etc/resolv.conf
mount --bind "$1/hosts" /etc/hosts
mount --bind "$2" "$3"
cd "$3"
shift 3
exec "$@"
"""
RESOLV = "nameserver 192.0.2.1\n"
"""A net for documents: no one answers."""
HOSTS = "127.0.0.1 localhost\n::1 localhost\n"
LOCALE = ("de_DE", "UTF-8")


@contextlib.contextmanager
def elsewhere() -> Iterator[Run]:
    """All that a user's environment may have otherwise, at once."""
    unshare = ["unshare", "--mount"]
    if os.geteuid() != 0:
        unshare += ["--user", "--map-root-user"]
    tried = subprocess.run([*unshare, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise Impossible(f"this needs the right to mount: {tried.stderr.strip()}")
    with tempfile.TemporaryDirectory(prefix="night-") as made:
        folder = Path(made)
        (folder / "resolv.conf").write_text(RESOLV)
        (folder / "hosts").write_text(HOSTS)
        tree, temporary, path = folder / "a clone ü", folder / "tmp é ☃", folder / "path"
        for one in (tree, temporary, path):
            one.mkdir()
        for one in (*ROOT.glob("tests/*/*.py"), Path("snailps.py"), Path("models.py")):
            (path / one.name).write_text(f"raise ImportError('PYTHONPATH has another {one.name}')")
        wish = {
            "HOME": "/proc/none", "TMPDIR": str(temporary), "PYTHONPATH": str(path),
            "TZ": "<+1345>-13:45", "COLUMNS": "40", "LINES": "5", "NO_COLOR": "1", "TERM": "dumb",
            "DOCKER_HOST": "unix:///proc/none", **with_comma(folder),
        }  # fmt: skip
        if data := data_folder():  # the clone is somewhere else
            wish["SNAILPS_DATA"] = str(data.resolve())
        command = ["sh", "-c", ELSEWHERE, "sh", str(folder), str(ROOT), str(tree)]
        told = "another environment" + ("" if "LC_ALL" in wish else ", its locale alone is this")
        yield Run(told, before=[*unshare, *command], environment=wish)


def with_comma(folder: Path) -> dict[str, str]:
    """Variables of a locale that writes 1,5 for 1.5, which is made here; none: it cannot be."""
    if not shutil.which("localedef"):
        return {}
    name = ".".join(LOCALE)
    command = ["localedef", "-i", LOCALE[0], "-f", LOCALE[1], str(folder / name)]
    made = subprocess.run(command, capture_output=True, check=False)
    if made.returncode != 0:
        return {}
    return {"LOCPATH": str(folder), "LC_ALL": name, "LANG": name, "LANGUAGE": "de"}


@contextlib.contextmanager
def beside() -> Iterator[Run]:
    """PATH alone, and what says where the data is; and another run."""
    without = tuple(set(os.environ) - {"PATH", "SNAILPS_DATA"})
    yield Run(
        "no environment, and another run", without=without, options=["--no-budget"], beside=True
    )


def on_path(wish: dict[str, str]) -> dict[str, str]:
    """With which each Python finds site/."""
    return {**wish, "NIGHT_SITE": str(SITE), "PYTHONPATH": str(SITE)}


def load_of(name: str, folder: Path) -> contextlib.AbstractContextManager[Run]:
    """What a round is run under."""
    if name.isdigit():
        return LOADS[int(name) % len(LOADS)](int(name), folder)
    if name.startswith("cores-"):
        return with_cores(int(name.removeprefix("cores-")))
    of_name = {"root": as_root, "user": as_user, "environment": elsewhere, "beside": beside}
    return of_name[name]()


def minutes_of(name: str) -> int:
    """What a round takes on two cores that have nothing else to do."""
    if name.isdigit():
        return MINUTES[int(name) % len(LOADS)]
    return 15 if name == "beside" else MINUTES[0]


# --- one round ----------------------------------------------------------------------------------


def run(name: str, folder: Path, words: list[str]) -> int:
    """Runs a round; its exit code."""
    with load_of(name, folder) as how:
        command = [
            *how.before, *words, "-q", "-p", "no:cacheprovider", "-p", "tests.night.record",
            *how.options, "--order",
        ]  # fmt: skip
        here = {key: value for key, value in os.environ.items() if key not in how.without}
        start = partial(
            subprocess.Popen, cwd=ROOT, stdin=subprocess.DEVNULL,
            env={**here, **how.environment}, preexec_fn=how.enter,
        )  # fmt: skip
        print(f"{how.load}: {' '.join(command)}", flush=True)
        begun, spent = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        other = None
        if how.beside:
            other = start([*command, str(how.order + 1)], stdout=subprocess.DEVNULL)
        ended = start([*command, str(how.order), "--lines", str(folder / "tests.jsonl")]).wait()
        wall_s = time.monotonic() - begun
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if other:
            other.terminate()
            other.wait()
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
    rows = [Row.of(one) for one in there]
    yield from map(str, rows)
    skipped = [one for row in rows for one in row.with_outcome("skipped")]
    for (test, why), count in sorted(Counter((o["test"], o["why"]) for o in skipped).items()):
        yield f"\nskipped in {count} of {len(rows)} rounds: {test.rpartition('/')[2]}: {why}"


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
