"""How much of its bound each comparison of floats takes: `pytest --shares FOLDER`.

    assert_allclose, np.allclose, pytest.approx -> (place, share) -> FOLDER/PROCESS.json

A share of 1 is a bound that is just kept.  tests/night/numbers.py compares the shares of several
processors: one that is different on each of them, and large, stands for a bound that was found on
one machine.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).resolve().parents[1]
taken: dict[str, float] = {}
"""The largest share of each place in this process."""


def place() -> str:
    """The line of tests/ that compares."""
    frame = inspect.currentframe()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if TESTS in path.parents and path != Path(__file__):
            return f"{path.relative_to(TESTS)}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


def note(difference, bound) -> None:
    """Keeps the largest share at this place; beyond 1 it has failed, or was meant to be unequal."""
    difference, bound = np.asarray(difference, float), np.asarray(bound, float)
    with np.errstate(all="ignore"):
        shares = np.where(difference == 0, 0, difference / bound)
    share = float(np.max(shares[np.isfinite(shares)], initial=0)) if shares.shape else float(shares)
    if 0 <= share <= 1:
        where = place()
        taken[where] = max(share, taken.get(where, 0.0))


def noting(compare, rtol, atol):
    """`compare` with its default bounds, which notes what a comparison took of them."""

    @functools.wraps(compare)
    def noted(actual, desired, rtol=rtol, atol=atol, *rest, **more):
        try:
            ours, theirs = np.asarray(actual, float), np.asarray(desired, float)
            note(np.abs(ours - theirs), atol + rtol * np.abs(theirs))
        except (TypeError, ValueError):
            pass  # neither numbers nor of one shape: `compare` says so
        return compare(actual, desired, rtol, atol, *rest, **more)

    return noted


def begin() -> None:
    """Notes comparisons from now on."""
    np.testing.assert_allclose = noting(np.testing.assert_allclose, 1e-7, 0.0)
    np.allclose = noting(np.allclose, 1e-5, 1e-8)
    scalar = type(pytest.approx(1.0))
    equal = scalar.__eq__

    def noted(self, actual):
        if isinstance(actual, (float, int, np.number)) and isinstance(self.expected, (float, int)):
            note(abs(float(actual) - self.expected), self.tolerance)
        return equal(self, actual)

    scalar.__eq__ = noted


def save(folder) -> None:
    """Writes what this process noted."""
    if taken:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"{os.getpid()}.json").write_text(json.dumps(taken))


def load(folder) -> dict[str, float]:
    """The largest share of each place, of all processes."""
    most: dict[str, float] = {}
    for path in sorted(Path(folder).glob("*.json")):
        for where, share in json.loads(path.read_text()).items():
            most[where] = max(share, most.get(where, 0.0))
    return most
