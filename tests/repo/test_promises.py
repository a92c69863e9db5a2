"""tests/README.md: every promise has tests, they exist, and `make test` runs one of them."""

import ast
import functools
import re
import runpy
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in (TESTS / "README.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| promise |")
]
ROOMS = runpy.run_path(str(TESTS.parent / "tools" / "rooms.py"))["ROOMS"]
PROMISES = [promise for promise, *_ in ROWS]
SMOKE = {
    (path, name.partition("[")[0].rpartition("::")[2])
    for line in (TESTS / "smoke.txt").read_text(encoding="utf-8").splitlines()
    for path, _, name in [line.partition("::")]
}
TOO_DEAR = {
    "An error in `judge` or `export` keeps the trained rows, and the next call exports; what was "
    "never pushed is named; a user's figures are shown": "5 s, two runs",
    "`snailps demo` trains on the prose of Python's library and shows neighbours":
        "6.3 s; .ci/run begins with `make demo`",
    "Two jobs of one user at once do not meet": "1.7 s",
    "A filter's worker, server or master that is killed costs unfinished files only, which another"
    " worker or the same command makes; no byte differs, and nothing stays of it": "2.3 s",
    "`bsp`: continued runs have the bits of undisturbed ones": "2.2 s",
    "Code is taken only where `accept_source` is set": "6.1 s",
    "`https`, with the system's certificates": "2.1 s",
    "`worker_memory` bounds a worker within a tenth; the master exports any size in 100 MB":
        "1.8 s, of the export alone",
    "The old demo's settings train as they stand": "2.6 s",
    "mlp: MNIST; formats and shapes change nothing": "1.7 s",
    "A class of one's own in a file, by `worker_class`": "1.7 s",
    "PyTorch: rows and parameters are torch's": "`make test-torch`, which .ci/run runs",
    "PyTorch outlives kills": "`make test-torch`, which .ci/run runs",
}  # fmt: skip
"""Promises of clusters that `make test` leaves out: what their cheapest case takes of a processor.

smoke.txt gets cases below 1.5 s.
"""


@functools.cache
def names_in(path):
    """Names of the tests in a file."""
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    names = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return {name for name in names if name.startswith("test_")}


each_row = pytest.mark.parametrize(
    ("promise", "tests", "tier", "rooms"), ROWS, ids=[promise[:60] for promise in PROMISES]
)


@each_row
def test_promise_has_tests_in_its_tiers_and_known_rooms(promise, tests, tier, rooms):
    named = re.findall(r"`([^`]+)`", tests)
    assert named
    assert promise
    for one in named:
        path, _, name = one.partition("::")
        assert (TESTS / path).exists(), one
        assert not name or name in names_in(path), one
    folders = [one.partition("/")[0] for one in named]
    assert tier == "night" or tier.split(", ") == list(dict.fromkeys(folders))
    assert set(rooms.split(", ")) <= ROOMS.keys()


@each_row
def test_promise_of_clusters_alone_has_a_case_in_smoke_or_is_too_dear(promise, tests, tier, rooms):
    """As smoke.txt says of itself."""
    tiers = set(tier.split(", "))
    named = {(path, name) for path, name in re.findall(r"`([^`:]+)::([^`]+)`", tests)}
    runs = named & SMOKE or {(path, "") for path, _ in named} & SMOKE
    needs_none = "cluster" not in tiers or tiers & {"unit", "sim"}
    assert bool(needs_none or runs) != (promise in TOO_DEAR), named


def test_promise_that_is_too_dear_is_one():
    assert TOO_DEAR.keys() <= set(PROMISES)


def test_no_promise_is_there_twice():
    assert len(PROMISES) > 100
    assert len(PROMISES) == len(set(PROMISES))
