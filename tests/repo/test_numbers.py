"""`tests/night/numbers.py` acts as other processors, and finds bounds that only this one keeps."""

import itertools
import json

import numpy as np
import pytest
import rounding
import shares
from cases import each

from tests.night import numbers


def test_each_two_values_of_different_columns_meet():
    rows = [(c.build, c.core, c.threads, c.loops) for c in numbers.combinations()]
    assert len(set(rows)) == 15
    for one, other in itertools.combinations(range(4), 2):
        values = [{row[column] for row in rows} for column in (one, other)]
        assert {(row[one], row[other]) for row in rows} == set(itertools.product(*values))
    assert numbers.SHORT_ONE in numbers.combinations()


def test_combination_without_instructions_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(numbers.builds, "cpu_flags", lambda: frozenset({"pni", "avx2", "fma"}))
    (name,) = (
        str(number)
        for number, one in enumerate(numbers.combinations())
        if (one.build, one.core) == ("avx512", "Haswell")
    )
    assert numbers.main([name, str(tmp_path), "--", "false"]) == 0
    assert "SKIPPED: this CPU has no avx512bw, avx512cd" in capsys.readouterr().out


def test_near_names_bounds_that_another_processor_may_pass(tmp_path, capsys):
    """The first was seen: 2e-6 of gensim's products, on a Zen 4 and as on an older one."""
    runs = [
        {"a.py:1": 0.655, "exact.py:2": 0.9, "far.py:3": 0.02, "steady.py:4": 0.89},
        {"a.py:1": 0.98, "exact.py:2": 0.9, "far.py:3": 0.2, "steady.py:4": 0.8901},
    ]
    for name, run in enumerate(runs):
        folder = tmp_path / str(name) / "shares"
        folder.mkdir(parents=True)
        for process, (where, share) in enumerate(run.items()):
            (folder / f"{process}.json").write_text(json.dumps({where: share, "b.py:1": 0.0}))
    assert numbers.main(["together", str(tmp_path / "together"), "--", "pytest"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said == ["a.py:1: 0.655 to 0.980 of its bound", "2 runs; 1 bounds near"]


@each(
    "found, wanted, rtol, atol, share",
    [
        ([1.0, 2.5], [1.0, 2.0], 0.5, 0.0, 0.5),  # .5 of .5 * 2
        ([0.0, 3.0], [1.0, 3.0], 0.0, 4.0, 0.25),
        ([np.nan, 1.0], [np.nan, 1.0], 0.1, 0.0, 0.0),
        ([1.0], [1.0], 0.0, 0.0, 0.0),
    ],
)
def test_share_of_a_bound_is_noted(monkeypatch, found, wanted, rtol, atol, share):
    monkeypatch.setattr(shares, "taken", {})
    shares.noting(np.testing.assert_allclose, 1e-7, 0.0)(found, wanted, rtol=rtol, atol=atol)
    assert list(shares.taken.values()) == pytest.approx([share])
    assert "repo/test_numbers.py" in next(iter(shares.taken))


@pytest.mark.parametrize("order", [1, -1])
def test_sums_in_float32_are_within_their_bound(order):
    """Of a known sum: ones and a large number that swallows them, in the worst order."""
    a, b = np.ones((1, 1000), np.float32), np.ones((1, 1000), np.float32)
    a[0, 0] = 2**24  # plus 1 is 2**24 again, to even
    total = np.float32(0)
    for entry in a[0, ::order]:
        total = np.float32(total + entry)
    off = abs(float(total) - (2**24 + 999))
    assert off == (999 if order == 1 else 1)  # 2**24 + 999 has no float32: 1,000 is nearest
    assert off <= rounding.of_products(a, b)[0, 0] < 1002
    assert rounding.gamma(1) == pytest.approx(2**-24, rel=1e-6)
    assert rounding.gamma(3, np.float64) == pytest.approx(3 * 2**-53)
