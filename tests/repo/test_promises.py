"""tests/README.md: every promise has tests, and they exist."""

import ast
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in (TESTS / "README.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| promise |")
]


@functools.cache
def names_in(path):
    """Names of the tests in a file."""
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    names = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return {name for name in names if name.startswith("test_")}


@pytest.mark.parametrize(("promise", "tests", "tier"), ROWS, ids=[row[0][:60] for row in ROWS])
def test_promise_has_tests_in_its_tiers(promise, tests, tier):
    named = re.findall(r"`([^`]+)`", tests)
    assert named
    assert promise
    for one in named:
        path, _, name = one.partition("::")
        assert (TESTS / path).exists(), one
        assert not name or name in names_in(path), one
    folders = [one.partition("/")[0] for one in named]
    assert tier == "night" or tier.split(", ") == list(dict.fromkeys(folders))


def test_no_promise_is_there_twice():
    promises = [promise for promise, *_ in ROWS]
    assert len(promises) > 100
    assert len(promises) == len(set(promises))
