"""What all tests share: where the data is, and limits on what a test may take.

No test may hang: after its limit (600 s, or ``@pytest.mark.limit(seconds)``) a test fails with
the stacks of all threads; where even that is impossible, because the main thread sits in
compiled code, the whole run is ended half a minute later.  A test of tests/unit starts no process
and takes half a second of CPU at most (budget.py); ``--cost=N`` prints what each folder took, and
the N tests that took most; ``--more=N`` draws N times as many cases (cases.py); ``--smoke`` leaves
out what smoke.txt does not name; ``--without`` and ``--product`` take rooms of the package away
(without.py).  A test that is skipped without need fails (skips.py).
"""

import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import functools
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import budget
import cases
import hypothesis
import pytest
import shares
import skips
import waiting
import without

LIMIT_S = 600.0
GRACE_S = 30.0  # after the limit, until the run is ended the hard way
ROOT = Path(__file__).resolve().parent.parent
DATA_MISSING = (
    "no test data: set SNAILPS_DATA to the folder that holds words/, mnist/, a9a/ and moby_dick/"
)

# Child processes by the hundred: each would compile the whole package anew, half of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Runs of tests are listed neither with the user's nor with those of other test processes.
os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="snailps-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)

# They are sent SIGINT, which they would ignore if these tests run in a shell's background.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples each time, however slow the machine; --hypothesis-profile=explore for others.
hypothesis.settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.load_profile("same")

_stacks_fd = pytest.StashKey[int]()
_wrong_cases = pytest.StashKey[str]()
_is_meant = pytest.StashKey[Callable[[Path], bool]]()


class TimeLimitReached(BaseException):
    """A test took too long.  No Exception: neither the test nor Hypothesis may swallow it."""


def pytest_addoption(parser):
    group = parser.getgroup("snailps")
    group.addoption(
        "--cost", type=int, default=None, metavar="N", help="print what folders and N tests took"
    )
    group.addoption("--long", action="store_true", help="cases marked `long`, too")
    group.addoption(
        "--smoke", action="store_true",
        help="of tests/cluster and tests/sim what tests/smoke.txt names: as `make test` does",
    )  # fmt: skip
    group.addoption(
        "--more", type=int, default=1, metavar="N",
        help="N times as many seeds and drawn examples as usual; implies --no-budget",
    )  # fmt: skip
    group.addoption(
        "--ci", action="store_true", help="no test is skipped for want of the extra `test`"
    )
    group.addoption(
        "--shares", metavar="FOLDER",
        help="write there how much of its bound each comparison of floats takes (shares.py)",
    )  # fmt: skip
    group.addoption(
        "--without", default="", metavar="ROOM[,ROOM]",
        help="rooms of tools/rooms.py that cannot be imported, or `options`, `products`, `all`:"
        " the core's tests run whose files do not name them",
    )  # fmt: skip
    group.addoption(
        "--product", default="", metavar="ROOM", help="its tests, with every other product gone"
    )
    group.addoption(
        "--no-budget", action="store_true", help="tests/unit may take longer (sanitizers)"
    )


def pytest_configure(config):
    gone, product = without.named(config.getoption("without")), config.getoption("product")
    if product:
        gone |= without.beside(product)
    if gone:
        without.begin(gone)
    config.stash[_is_meant] = lambda path: not gone or without.is_meant(path, gone, product)
    if config.getoption("shares"):
        shares.begin()
    cases.factor = config.getoption("more")
    same = hypothesis.settings.get_profile("same")
    drawn = hypothesis.settings(same, max_examples=40 * cases.factor)
    hypothesis.settings.register_profile("same", drawn)
    if not config.getoption("hypothesis_profile", default=None):
        hypothesis.settings.load_profile("same")
    config.addinivalue_line(
        "markers", f"limit(seconds): the test fails after so many seconds (default {LIMIT_S:.0f})"
    )
    config.addinivalue_line("markers", "needs(option): left out where --without takes it away")
    config.addinivalue_line(
        "markers", "long(but, tests): a further case of what a shorter test proves, or a rare order"
        " of events; only with --long, as in `make test-night`, or when its file is named with a"
        " test; `but`:"
        " ids of cases that are always run; `tests`: of a class, those that are meant"
    )  # fmt: skip
    # Captured output is not yet redirected here: this is the terminal's standard error.
    config.stash[_stacks_fd] = os.dup(sys.__stderr__.fileno())


@pytest.hookimpl(trylast=True)  # behind pytest's own plugin, which notes them, too
def pytest_sessionstart(session):
    waiting.note_threads()


def pytest_collection_finish(session):
    """Builds Hypothesis' table of characters, 1.4 s in a new clone, before any test is measured.

    What has been imported and collected stays to the end: the collector of cycles, which takes a
    tenth of a simulation, need not look at it again.  Afterwards: with Python 3.14 Hypothesis finds
    no referrer of its random numbers where these are frozen before it has drawn, and warns.
    """
    if session.items and not session.config.option.collectonly:
        draw_text()
    gc.collect()
    gc.freeze()


@hypothesis.settings(max_examples=1, database=None)
@hypothesis.given(hypothesis.strategies.text())
def draw_text(text):
    assert isinstance(text, str)


def pytest_unconfigure(config):
    if config.getoption("shares"):
        shares.save(config.getoption("shares"))
    faulthandler.cancel_dump_traceback_later()
    with contextlib.suppress(KeyError, OSError):
        os.close(config.stash[_stacks_fd])


def limit_of(item):
    """The seconds that a test may take."""
    marker = item.get_closest_marker("limit")
    return LIMIT_S if marker is None else float(marker.args[0])


@contextlib.contextmanager
def time_limit(item, stage):
    """Run one stage of a test (setup, call, teardown) under the test's limit."""
    in_debugger = item.config.getoption("usepdb", default=False)
    if in_debugger or threading.current_thread() is not threading.main_thread():
        yield
        return
    limit_s = limit_of(item)
    stacks_fd = item.config.stash[_stacks_fd]

    def stop(signum, frame):
        faulthandler.dump_traceback(stacks_fd, all_threads=True)
        raise TimeLimitReached(
            f"{item.nodeid}: {stage} took more than {limit_s:g} s; the stacks of all threads are"
            " on standard error; a longer limit is set by @pytest.mark.limit(seconds)"
        )

    before = signal.signal(signal.SIGALRM, stop)
    faulthandler.dump_traceback_later(limit_s + GRACE_S, exit=True, file=stacks_fd)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def limits(item, stage):
    """Run one stage of a test under its time limit, and tests/unit under that folder's rule."""
    unit = budget.is_unit(item)
    allow = budget.forbid_starts(item.nodeid) if unit else None
    begun = budget.Meter.begin()
    try:
        with time_limit(item, stage):
            yield
    finally:
        if allow:
            allow()
        spent = begun.end()
        budget.note(item, spent)
    if unit and not item.config.getoption("no_budget") and cases.factor == 1:
        why = budget.complaint(spent)
        assert not why, f"{item.nodeid}: {stage} {why}"
    if budget.is_sim(item) and not item.config.getoption("no_budget"):
        why = budget.sim_complaint(spent)
        assert not why, f"{item.nodeid}: {stage} {why}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    if _wrong_cases in item.stash:
        pytest.fail(item.stash[_wrong_cases], pytrace=False)
    waiting.forget_threads()
    with limits(item, "setup"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with limits(item, "the test"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    with limits(item, "teardown"):
        return (yield)


def note_excess(report, config):
    """A test or file that is skipped, though it could be run here, fails."""
    if report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        told = report.longrepr
        reason = (told[2] if isinstance(told, tuple) else str(told)).removeprefix("Skipped: ")
        why = skips.excess(reason, ci=config.getoption("ci"))
        if why:
            report.outcome, report.longrepr = "failed", f"skipped, because {reason!r}: {why}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    return note_excess((yield), item.config)


def pytest_runtest_logfinish():
    """Gives memory that tests have freed back to the system whenever it is a quarter of a gigabyte.

    Else the C library keeps most of it, in pieces between others: 2.3 GB at the end of tests/unit,
    of which a tenth is used.
    """
    if resident_mb() > _resident_mb[0] + 256:
        gc.collect()
        with contextlib.suppress(AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)
        _resident_mb[0] = resident_mb()


_resident_mb = [0]


def resident_mb():
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


@contextlib.contextmanager
def alone_with(path):
    """One process at a time imports a test file: the first one rewrites its asserts, which for all
    files takes 14 s, and writes what the others then read."""
    fd = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    module = isinstance(collector, pytest.Module)
    with alone_with(collector.path) if module else contextlib.nullcontext():
        report = yield
    return note_excess(report, collector.config)


def pytest_terminal_summary(terminalreporter, config):
    """What tests cost; and, loudly, that some were skipped for want of data."""
    dearest = config.getoption("cost")
    if dearest is not None:
        stages = terminalreporter.stats
        reports = [one for name in ("", "passed", "failed") for one in stages.get(name, [])
                   if getattr(one, "when", "") == "teardown"]  # fmt: skip
        terminalreporter.section("what tests took")
        for line in budget.summary(reports, dearest):
            terminalreporter.line(line)
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(DATA_MISSING in str(report.longrepr) for report in skipped)
    if count:
        terminalreporter.section("tests without data", yellow=True, bold=True)
        terminalreporter.line(f"{count} tests were SKIPPED: {DATA_MISSING}")


def pytest_generate_tests(metafunc):
    """`ModelContract` asks for clusters of the shapes that its subclass names."""
    if {"servers", "workers"} <= set(metafunc.fixturenames) and hasattr(metafunc.cls, "shapes"):
        metafunc.parametrize(("servers", "workers"), metafunc.cls.shapes)


def is_long(item):
    """Whether a test's `long` markers mean this case of it."""
    for marker in item.iter_markers("long"):
        case = item.callspec.id if hasattr(item, "callspec") else ""
        tests = marker.kwargs.get("tests", [item.originalname])
        if item.originalname in tests and case not in marker.kwargs.get("but", ()):
            return True
    return False


@functools.cache
def smoke():
    """Tests of smoke.txt: names in a file, with cases or without; empty: all of it."""
    named = {}
    for line in (ROOT / "tests" / "smoke.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            path, _, name = line.partition("::")
            named.setdefault(ROOT / "tests" / path, set()).add(name)
    return named


def is_left_out(path, named):
    """Whether `--smoke` leaves out a whole file."""
    return path.parent.name in ("cluster", "sim") and path not in named


def pytest_ignore_collect(collection_path, config):
    """Files of which nothing would be run are not imported."""
    python = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    if python and config.getoption("smoke") and is_left_out(collection_path, smoke()):
        return True
    return True if python and not config.stash[_is_meant](collection_path) else None


def keep_smoke(items, *, whole):
    """Those of the items that `--smoke` runs.

    Where files are collected as a whole, a name that is not there fails the first test of its file.
    """
    named, kept, lacking = smoke(), [], {}
    for item in items:
        name = item.nodeid.partition("::")[2]
        wanted = lacking.setdefault(item.path, dict.fromkeys(named.get(item.path, ())))
        names = {"", name, name.partition("[")[0]} & wanted.keys()
        if names or (not wanted and not is_left_out(item.path, named)):
            kept.append(item)
        for one in names:
            wanted[one] = item
    for item in items if whole else ():
        gone = [name for name, found in lacking.pop(item.path, {}).items() if found is None]
        if gone:
            item.stash[_wrong_cases] = f"smoke.txt names {gone}: not there"
            kept += [] if item in kept else [item]
    return kept


def note_wrong_cases(items):
    """A case that is always run has to be there, else none of its test would be: that test fails.

    An error here would end a run of several processes with "no tests ran", and without its words.
    """
    cases_of = {}
    for item in items:
        case = item.callspec.id if hasattr(item, "callspec") else ""
        cases_of.setdefault(item.nodeid.partition("[")[0], set()).add(case)
    for item in items:
        for marker in item.iter_markers("long"):
            there = cases_of[item.nodeid.partition("[")[0]]
            lacking = set(marker.kwargs.get("but", ())) - there
            if lacking:
                item.stash[_wrong_cases] = (
                    f"`long` names {sorted(lacking)}, there are {sorted(there)}"
                )


def keep_possible(config, items):
    """Leave out cases marked `needs` whose option `--without` has taken away."""
    lacking = [
        item
        for item in items
        for marker in item.iter_markers("needs")
        if not all(map(without.is_there, marker.args))
    ]
    config.hook.pytest_deselected(items=lacking)
    items[:] = [item for item in items if item not in lacking]


def pytest_collection_modifyitems(config, items):
    """Leaves out cases marked `long`, unless they are asked for, and what is no smoke."""
    if config.getoption("without"):
        keep_possible(config, items)
    if config.getoption("smoke"):
        kept = keep_smoke(items, whole=not any("::" in arg for arg in config.args))
        config.hook.pytest_deselected(items=list(set(items).difference(kept)))
        items[:] = kept
        return
    if config.getoption("long") or config.getoption("markexpr"):
        return
    named = {arg.partition("::")[0] for arg in config.args if "::" in arg}
    if not named:
        note_wrong_cases(items)
    kept, left_out = [], []
    for item in items:
        asked = not is_long(item) or item.nodeid.partition("::")[0] in named
        (kept if asked or _wrong_cases in item.stash else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.fixture(autouse=True)
def log_handlers():
    """Gives the log back: a command adds a handler, whose stream ends with its test."""
    log = logging.getLogger("snailps")
    before, level, propagate = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:] = before
    log.setLevel(level)
    log.propagate = propagate


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the test data."""
    folder = skips.data_folder()
    if folder is None or not skips.has_data():
        pytest.skip(f"{DATA_MISSING} (it is {folder or 'not set'})")
    return folder


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """Folder of the repository."""
    return ROOT


@pytest.fixture
def netns(repo_root, monkeypatch):
    """The module bench/netns.py; the test is skipped where it cannot make a link."""
    monkeypatch.syspath_prepend(repo_root / "bench")
    import netns

    reason = netns.why_not()
    if reason:
        pytest.skip(f"no hosts here: {reason}")
    return netns
