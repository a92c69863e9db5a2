"""The tests of numbers on other processors, as far as this one can act as them.

    python -m tests.night.numbers NAME FOLDER -- WORDS OF PYTEST     NAME: 0 to 14, or short
    python -m tests.night.numbers together FOLDER -- ...             their bounds, side by side

    build of our kernels x OpenBLAS' kernels x its threads x NumPy's own loops -> pytest
        -> shares of bounds, FOLDER/shares -> `together`

Each of 15 combinations runs once.  Every two values of different columns meet in one of them: a
table of 3 x 5 x 3 x 3 has 135.  A combination that this CPU cannot run says so.

A bound that was found on one machine passes here, and fails on the next processor.  So `together`
fails where the share that a comparison takes of its bound would pass 1 if it differed some times
more than it does here: compute that bound (tests/support/rounding.py).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "support"))

import numpy as np  # noqa: E402
import shares  # noqa: E402

from snailps.abi import builds  # noqa: E402

CORES = {
    "Prescott": {"pni"},
    "Nehalem": {"sse4_2"},
    "Sandybridge": {"avx"},
    "Haswell": {"avx2", "fma"},
    "SkylakeX": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"},
}
"""OpenBLAS' kernels for x86 that differ in its wheels, and the flags of a CPU that runs them."""
THREADS = (2, 16, 1)
LOOPS = {"all": "", "no AVX512": "AVX512|X86_V4", "baseline": ""}
"""NumPy's own loops: with all instructions, without some, with those that it always has."""
SPREADS = 3
"""Room that a bound needs above what was seen: so many times what the combinations differ by."""
COMPARES = re.compile(r"allclose|approx\(|[ar]tol\b|array_almost|import rounding|from twins")
SHORT = re.compile(r"^import rounding$", re.M)


@dataclass(frozen=True)
class Combination:
    """A processor to act as."""

    build: str
    core: str
    threads: int
    loops: str

    def __str__(self) -> str:
        return (
            f"kernels {self.build}, OpenBLAS {self.core}, {self.threads} threads, "
            f"NumPy {self.loops}"
        )

    def lacks(self) -> str:
        """What this CPU cannot run of it; empty: nothing."""
        flags = builds.cpu_flags()
        missing = (CORES[self.core] | builds.NEEDS[self.build]) - flags
        return ", ".join(sorted(missing))

    def environment(self) -> dict[str, str]:
        count = str(self.threads)
        return {
            builds.VARIABLE: self.build,
            "OPENBLAS_CORETYPE": self.core,
            "OPENBLAS_NUM_THREADS": count,
            "OMP_NUM_THREADS": count,
            "NPY_DISABLE_CPU_FEATURES": " ".join(disabled(self.loops)),
        }


def disabled(loops: str) -> list[str]:
    """NumPy's names of the instructions that its loops must not use."""
    found = np.show_config(mode="dicts").get("SIMD Extensions", {}).get("found", [])
    if loops == "all":
        return []
    return [name for name in found if re.search(LOOPS[loops], name)]


def combinations() -> list[Combination]:
    """15 of 135: each build with each core; the rest by Latin squares over both."""
    loops = tuple(LOOPS)
    return [
        Combination(build, core, THREADS[(row + column) % 3], loops[(row + 2 * column) % 3])
        for row, build in enumerate(sorted(builds.NEEDS))
        for column, core in enumerate(CORES)
    ]


SHORT_ONE = Combination("base", "Prescott", 1, "baseline")
"""What has least in common with a new CPU, on which the CI's other tests run."""


def files(pattern: re.Pattern[str]) -> list[str]:
    """Files of tests/unit with such a line."""
    folder = ROOT / "tests" / "unit"
    return [
        str(path.relative_to(ROOT))
        for path in sorted(folder.glob("test_*.py"))
        if pattern.search(path.read_text(encoding="utf-8"))
    ]


def near(folders: Sequence[Path]) -> Iterator[str]:
    """Places whose share depends on the processor, and may pass 1 on another one."""
    runs = [shares.load(folder / "shares") for folder in folders]
    for where in sorted(set().union(*runs)):
        taken = [run[where] for run in runs if where in run]
        if max(taken) + SPREADS * (max(taken) - min(taken)) > 1:
            yield f"{where}: {min(taken):.3f} to {max(taken):.3f} of its bound"


def main(words: Sequence[str]) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "")[:70])
    parser.add_argument("name", choices=["short", "together", *map(str, range(15))])
    parser.add_argument("folder", type=Path)
    parser.add_argument("pytest", nargs="+", help="after --: the command that runs pytest")
    given = parser.parse_args(words)
    if given.name == "together":
        folders = [path for path in given.folder.parent.glob("*") if (path / "shares").exists()]
        if len(folders) < 2:
            print(f"SKIPPED: {len(folders)} of the other parts have run, expected at least 2")
            return 0
        lines = list(near(folders))
        print(*lines, f"{len(folders)} runs; {len(lines)} bounds near", sep="\n")
        return bool(lines)
    is_short = given.name == "short"
    one = SHORT_ONE if is_short else combinations()[int(given.name)]
    print(one, flush=True)
    if missing := one.lacks():
        print(f"SKIPPED: this CPU has no {missing}")
        return 0
    for old in (given.folder / "shares").glob("*.json"):
        old.unlink()
    command = [*given.pytest, "--no-budget", "--shares", str(given.folder / "shares"), "-q"]
    return subprocess.run(
        [*command, *files(SHORT if is_short else COMPARES)],
        cwd=ROOT, env={**os.environ, **one.environment()}, check=False,
    ).returncode  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
