"""A plugin of pytest: the order of tests by a seed, and a line of JSON on each test that has ended.

    -p tests.night.record --order SEED --lines FILE
    reports of all stages -> {"test", "outcome", "why", "cpu_s", "wall_s", "limit_s"}

Lines are written as tests end: those of a run that dies are there.  What children are to see of a
faked machine (site/) is handed on to them.
"""

import json
import os
import random
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"


def pytest_addoption(parser):
    group = parser.getgroup("night")
    group.addoption("--order", type=int, default=None, metavar="SEED", help="shuffle the tests")
    group.addoption("--lines", type=Path, default=None, metavar="FILE", help="one for each test")


def pytest_configure(config):
    if config.getoption("lines") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Record(config.getoption("lines")))


def pytest_sessionstart(session):
    """`processes.environment`, which gives children a path of their own, keeps that of site/."""
    kept = os.environ.get("NIGHT_SITE")
    if not kept:
        return
    pause(True)
    import processes

    made = processes.environment

    def environment(**variables):
        found = made(**variables)
        found["PYTHONPATH"] = os.pathsep.join([kept, found["PYTHONPATH"]])
        return found

    processes.environment = environment


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    seed = config.getoption("order")
    if seed is not None:
        items.sort(key=lambda item: item.nodeid)
        random.Random(seed).shuffle(items)


def pause(wanted):
    """Has late_threads, where it is, disturb no thread; or do so again."""
    if "late_threads" in sys.modules:
        sys.modules["late_threads"].pause(wanted)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    pause(False)
    try:
        return (yield)
    finally:
        pause(True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    limit_of = item.config.pluginmanager.get_plugin(str(CONFTEST)).limit_of
    item.user_properties.append(("limit_s", limit_of(item)))


class Record:
    """Writes the lines, in the process that hears of all tests."""

    def __init__(self, path):
        self._file = path.open("w")
        self._stages = {}

    def pytest_runtest_logreport(self, report):
        stages = self._stages.setdefault(report.nodeid, [])
        stages.append(report)
        if report.when == "teardown":
            self._write(self._stages.pop(report.nodeid))

    def pytest_sessionfinish(self):
        for stages in self._stages.values():  # of a process that has died
            self._write(stages)
        self._file.close()

    def _write(self, stages):
        failed = [one for one in stages if one.failed]
        skipped = [one for one in stages if one.skipped]
        ended = "failed" if failed else "skipped" if skipped else "passed"
        why = ""
        if failed:
            why = failed[0].longreprtext
        elif skipped:
            told = skipped[0].longrepr
            why = told[2] if isinstance(told, tuple) else str(told)
        last = dict(stages[-1].user_properties)
        cpu_s = sum(value for name, value in stages[-1].user_properties if name == "cpu_s")
        line = {
            "test": stages[-1].nodeid, "outcome": ended, "why": why.removeprefix("Skipped: "),
            "cpu_s": round(cpu_s, 3), "wall_s": round(max(one.duration for one in stages), 3),
            "limit_s": last.get("limit_s", 0),
        }  # fmt: skip
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
