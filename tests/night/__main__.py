"""What .ci/run leaves out, in parts of less than 40 minutes: `make test-night`.

    make test-night                              all parts that this commit has not had yet
    make test-night ARGS='rounds storms/kills'   these, by the name of a part or of a group
    make test-night ARGS='--again storms'        these, though this commit has had them
    make test-night ARGS=--list                  what there is, and what is kept of it
    make test-night ARGS=--table                 what came out, in Markdown

    parts -> a command each -> build/night/COMMIT/PART/: output.txt, result.json -> the table

Several may run beside each other: a part that one of them has begun is passed over by the others.
A run that is ended goes on where it was: a part is finished when its command has ended by itself,
well or badly, on this commit.  None is run again because it failed.  In a tree that has changes,
which no commit names, parts are always run.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.night import numbers, rounds
from tests.support import without
from tests.support.skips import data_folder

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "night"
LIMIT_S = 2 * 3600.0
"""Of a part that hangs; none is meant to take a third of that."""
LINES_SHOWN = 15
TEST_PATHS = os.pathsep.join(str(ROOT / "tests" / name) for name in (".", "support", "unit"))
WALKS = 100_000
SLICE = 10_000
MADE_BY_MAKE = ("MAKE", "MFLAGS", "ARGS")
"""Variables of `make test-night` that the makes in it must not have."""

MISSING = re.compile(r"no wheel for Python 3|Python 3[\d.]*: not tried")


@dataclass(frozen=True, slots=True)
class Part:
    """One part.  In its command, {folder} is where it may keep files.

    Parameters
    ----------
    name : str
        GROUP or GROUP/NAME, and a folder.
    minutes : int
        That it takes on two cores which have nothing else to do.
    command : tuple of str
    environment : dict
        Further variables.
    """

    name: str
    minutes: int
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)

    def is_meant(self, words: Sequence[str]) -> bool:
        """Whether one of these words names it, or its group."""
        return self.name in words or self.name.partition("/")[0] in words


def parts(pytest: Sequence[str], tests: Sequence[str], seed: int) -> list[Part]:
    """All parts, in the order in which they are run.

    Parameters
    ----------
    pytest, tests : sequence of str
        The command of `make test`, and its tests.
    seed : int
        Of what is drawn anew on each commit.
    """
    python, make = sys.executable, ("make", "--no-print-directory")
    on_path = {"PYTHONPATH": TEST_PATHS}

    def recovery(kind: str, *words: str) -> tuple[str, ...]:
        return (python, "bench/recovery.py", "--json", "--table", "--seed", str(seed),
                "--parts", kind, *words)  # fmt: skip

    return [
        *(
            Part(f"walks/{first // SLICE}", 15, (
                python, "-m", "tests.sim", "--from", str(first), "--seeds", str(SLICE),
                "--jobs", str(len(os.sched_getaffinity(0))),
            ))
            for first in range(0, WALKS, SLICE)
        ),
        Part("clusters", 5, (*pytest, "tests/cluster", "tests/sim")),
        Part("long", 5, (*pytest, "-m", "long", "tests/cluster")),
        Part("defects", 15, (*pytest, "--long", "tests/sim/test_defects.py")),
        Part("storms/kills", 25, recovery("storm", "--kills", "200")),
        Part("storms/faults", 25, recovery("every", "--faults", "100")),
        Part("kills/counting", 8, recovery("count", "--kills", "200")),
        Part("kills/session", 8, recovery("session", "--kills", "100")),
        Part("kills/training", 30, on_data(
            "words/text8like.txt.gz", *recovery("train", "--kills", "60", "--corpus"),
        )),
        Part("fuzz/frames", 25, (python, "-m", "fuzz", "5_000_000", str(seed)), on_path),
        Part("fuzz/control", 20, (python, "-m", "fuzz.control", "1_000_000", str(seed)), on_path),
        Part("draws", 20, (*pytest, "--more=10", "tests/unit")),
        Part("quality", 30, (*pytest, "tests/quality")),
        Part("bench", 20, on_data(
            "words/text8like.txt.gz",
            python, "bench/quick.py", "--history", "build/night/bench-history.jsonl", "--corpus",
        )),
        Part("alike", 30, (
            python, "bench/alike.py", "--jobs", str(len(os.sched_getaffinity(0))),
            "--out", "{folder}/alike.jsonl", "--table",
        )),
        *(
            Part(f"scaling/{model}", 6, on_data(
                "words/text8like.txt.gz",
                python, "bench/hosts.py", "--model", model, "--hosts", "2", "--epochs", "2",
                "--repeat", "1", "--beside", "--cpu-ratio-max", "1.3", "--table", "--input",
            ))
            for model in ("word2vec", "fasttext")
        ),
        Part("sanitize", 30, (*make, "sanitize")),
        *(
            Part(f"without/{room}", 3, (*pytest, "--without", room, "tests/unit", "tests/sim"))
            for room in sorted(without.detachable())
        ),
        *(
            Part(f"product/{room}", 4, (*pytest, "--product", room, "tests/unit", "tests/cluster"))
            for room in sorted(without.products())
        ),
        Part("torch", 5, (*make, "test-torch", "ARGS=--long")),
        Part("browser", 3, (*make, "test-browser")),
        Part("hosts", 5, (*make, "test-hosts", "ARGS=--long")),
        Part("wheels", 20, (*make, "wheels", "test-wheels")),
        Part("dependencies", 25, (python, "tests/dependencies/lowest.py")),
        Part("arm64", 30, (*make, "test-arm64")),
        *(
            Part(f"numbers/{name}", 4, (
                python, "-m", "tests.night.numbers", name, "{folder}", "--", *pytest,
            ))
            for name in (*map(str, range(len(numbers.combinations()))), "together")
        ),
        *(
            Part(f"debian/{release}", 30, (*make, "test-debian", f"ARGS={release}"))
            for release in ("bookworm", "trixie", "forky")
        ),
        *(
            Part(f"rounds/{name}", rounds.minutes_of(name), (
                python, "-m", "tests.night.rounds", name, "{folder}", "--", *pytest, *tests,
            ))
            for name in rounds.NAMES
        ),
    ]  # fmt: skip


def on_data(name: str, *command: str) -> tuple[str, ...]:
    """The command and a file of the test data, or what says that there is none."""
    folder = data_folder()
    if folder is None:
        return ("echo", f"SKIPPED: no {name}: set SNAILPS_DATA to the folder of the test data")
    file = folder / name
    return (*command, str(file)) if file.exists() else ("echo", f"SKIPPED: there is no {file}")


# --- what is kept -------------------------------------------------------------------------------


@dataclass(slots=True)
class Result:
    """What came out of a part.  `outcome`: passed, failed, or skipped, with the reason."""

    name: str
    commit: str
    command: list[str]
    outcome: str
    exit: int
    wall_s: float
    cpu_s: float
    begun: str

    @classmethod
    def load(cls, folder: Path) -> Result | None:
        """That of a part's folder; None: it has not come to its end there."""
        with contextlib.suppress(FileNotFoundError):
            return cls(**json.loads((folder / "result.json").read_text()))
        return None

    def save(self, folder: Path) -> None:
        told = {name: getattr(self, name) for name in self.__slots__}
        unfinished = folder / "result.json.new"
        unfinished.write_text(json.dumps(told, indent=1) + "\n")
        unfinished.replace(folder / "result.json")


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def tree() -> str:
    """The commit of the tree, which has its name only while the tree has no changes."""
    changes = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short=12", "HEAD") + ("-changed" if changes else "")


# --- running ------------------------------------------------------------------------------------


def outcome_of(code: int, output: str) -> str:
    """A part's outcome: a script that cannot run here says SKIPPED, why, and ends well.

    With the Pythons that a script would have tried, too, if they were here.
    """
    lines = list(dict.fromkeys(output.splitlines()))
    skipped = [line for line in lines if line.startswith("SKIPPED: ")]
    if code == 0 and skipped:
        return skipped[0].replace("SKIPPED", "skipped", 1)
    missing = [line for line in lines if MISSING.match(line)]
    return ("failed" if code else "passed") + (f" ({'; '.join(missing)})" if missing else "")


def run(part: Part, folder: Path, commit: str) -> Result:
    """Runs a part to its end; whatever ends this run ends the part's processes, too."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").unlink(missing_ok=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(MADE_BY_MAKE)}
    begun, at = time.monotonic(), time.strftime("%Y-%m-%d %H:%M")
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [word.replace("{folder}", str(folder)) for word in part.command],
            cwd=ROOT,
            env={**environment, **part.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            output.write(f"took more than {LIMIT_S:.0f} s\n")
            code = 124
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    text = (folder / "output.txt").read_text(errors="replace")
    return Result(
        part.name, commit, list(part.command), outcome_of(code, text), code,
        round(time.monotonic() - begun, 1),
        round(after.ru_utime + after.ru_stime - spent.ru_utime - spent.ru_stime, 1), at,
    )  # fmt: skip


def is_finished(part: Part, folder: Path) -> bool:
    """Whether the part, as it is now, has come to its end on this commit."""
    result = Result.load(folder)
    return result is not None and result.command == list(part.command)


def table(chosen: Sequence[Part], top: Path) -> Iterator[str]:
    """What came out of parts, and of rounds, in Markdown."""
    yield f"Commit {top.name}, {len(os.sched_getaffinity(0))} cores:\n"
    yield "| part | outcome | wall | processor | minutes expected | begun |"
    yield "|---|---|---|---|---|---|"
    for part in chosen:
        result = Result.load(top / part.name)
        if result is None:
            yield f"| {part.name} | not run | | | {part.minutes} | |"
        else:
            yield (
                f"| {part.name} | {result.outcome} | {result.wall_s:.0f} s | {result.cpu_s:.0f} s"
                f" | {part.minutes} | {result.begun} |"
            )
    lines = list(rounds.table(top / "rounds"))
    if lines:
        yield from ("", *lines)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[bool]:
    """Keeps other runs from a part's folder, as long as this one lives; False: another has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def run_all(chosen: Sequence[Part], commit: str, *, again: bool) -> bool:
    """Runs parts that are not finished, here or by a run beside; True: none has failed or lacks."""
    top = KEPT / commit
    for part in chosen:
        folder = top / part.name
        with alone(folder) as is_mine:
            if not is_mine:
                print(f"{part.name}: another `make test-night` runs it", flush=True)
            elif is_finished(part, folder) and not again:
                print(f"{part.name}: finished before", flush=True)
            else:
                run_one(part, folder, commit)
    results = [Result.load(top / part.name) for part in chosen]
    return all(result is not None and result.exit == 0 for result in results)


def run_one(part: Part, folder: Path, commit: str) -> None:
    """Runs a part, keeps and tells what came out."""
    print(f"{part.name}: some {part.minutes} minutes ...", flush=True)
    result = run(part, folder, commit)
    if tree() != commit:
        sys.exit(f"the tree is not at {commit} any more: {part.name} is not kept")
    result.save(folder)
    print(f"{part.name}: {result.outcome} after {result.wall_s / 60:.1f}", flush=True)
    if result.exit != 0:
        lines = (folder / "output.txt").read_text(errors="replace").splitlines()
        print(*(f"    {line}" for line in lines[-LINES_SHOWN:]), sep="\n")
        print(f"    all of it: {folder / 'output.txt'}", flush=True)


def main(words: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(prog="make test-night", description=(__doc__ or "")[:79])
    parser.add_argument("parts", nargs="*", help="parts or groups; default: all")
    parser.add_argument("--again", action="store_true", help="those that are finished, too")
    parser.add_argument("--list", action="store_true", help="print them, and run none")
    parser.add_argument("--table", action="store_true", help="print what came out, and run none")
    parser.add_argument(
        "--select", nargs="+", metavar="TEST", help="in rounds, these tests instead of all"
    )
    chosen = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    for name in ("NIGHT_PYTEST", "NIGHT_TESTS"):
        if name not in os.environ:
            parser.error(f"{name} is not set: `make test-night` says what `make test` runs")
    commit = tree()
    tests = chosen.select or shlex.split(os.environ["NIGHT_TESTS"])
    there = parts(shlex.split(os.environ["NIGHT_PYTEST"]), tests, int(commit[:6], 16))
    meant = [part for part in there if not chosen.parts or part.is_meant(chosen.parts)]
    for word in chosen.parts:
        if not any(part.is_meant([word]) for part in there):
            parser.error(f"no part and no group is named {word!r}: --list")
    top = KEPT / commit
    if chosen.list:
        for part in meant:
            result = Result.load(top / part.name) if is_finished(part, top / part.name) else None
            print(f"{part.name:16} {part.minutes:3} min  {result.outcome if result else ''}")
        return 0
    good = chosen.table or run_all(meant, commit, again=chosen.again or commit.endswith("-changed"))
    print(*table(meant, top), sep="\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
