"""Trainings whose quality differs from run to run, held to the distribution of recorded runs.

    python -m pytest tests/quality                     fails beyond DEVIATIONS of the recorded mean
    python -m pytest tests/quality --record 12 -k fm   records anew, by so many runs of each

Elsewhere tests assert what no run can miss by luck; a loss of quality that is smaller than that
shows here.  Neither `make test` nor `make test-all` comes here.
"""

import json
import statistics
import subprocess
from pathlib import Path

import pytest

STORE = Path(__file__).with_name("distributions.json")
"""Case -> commit, number of runs, and mean and deviation of each figure."""
DEVIATIONS = 5
ROUNDING = 1e-3
"""Of the mean: what a figure may differ by that is the same in each run on one machine."""


def pytest_addoption(parser):
    parser.addoption(
        "--record", type=int, default=0, metavar="N", help="store what N runs of each case have"
    )


def pytest_generate_tests(metafunc):
    runs = metafunc.config.getoption("record")
    if runs == 1:
        raise pytest.UsageError("--record takes two runs or more")
    metafunc.parametrize("run", range(runs or 1))


@pytest.fixture
def judge(request, run, record_property):
    """Called with a case and its figures, which it records or holds to the recorded ones."""

    def judge(case, figures):
        if request.config.getoption("record"):
            plain = {name: float(value) for name, value in figures.items()}
            record_property("figures", (case, plain))
            return
        stored = json.loads(STORE.read_text())
        assert case in stored, f"no runs of {case} are recorded: --record"
        wanted = stored[case]["figures"]
        assert figures.keys() == wanted.keys()
        for name, value in figures.items():
            mean, deviation = wanted[name]["mean"], wanted[name]["deviation"]
            within = max(DEVIATIONS * deviation, ROUNDING * abs(mean))
            assert abs(value - mean) <= within, (
                f"{case}: {name} is {value:.5g}, of {stored[case]['runs']} runs at"
                f" {stored[case]['commit']} the mean is {mean:.5g}, the deviation {deviation:.2g}"
            )

    return judge


def pytest_terminal_summary(terminalreporter, config):
    """Stores what was recorded.  Here, as figures of xdist's workers are in the reports alone."""
    if not config.getoption("record"):
        return
    found = {}
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "figures":
                case, figures = value
                found.setdefault(case, []).append(figures)
    git = ["git", "-C", str(STORE.parent), "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    stored = json.loads(STORE.read_text()) if STORE.exists() else {}
    for case, runs in found.items():
        if len(runs) > 1:
            stored[case] = {"commit": commit, "runs": len(runs), "figures": {
                name: {
                    "mean": float(f"{statistics.mean(values):.6g}"),
                    "deviation": float(f"{statistics.stdev(values):.3g}"),
                }
                for name in runs[0]
                for values in [[one[name] for one in runs]]
            }}  # fmt: skip
    STORE.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
    terminalreporter.line(f"{len(found)} cases are recorded in {STORE.name}")
