"""What tests are made with: `each`, and the rule of this folder."""

import subprocess
from types import SimpleNamespace

import budget
import pytest
from cases import each


@each("number, square", [(2, 4), (3, 9)])
def test_each_goes_through_all_cases(number, square):
    assert number * number == square


def test_each_runs_all_and_names_those_that_failed():
    seen = []

    @each("number", [1, 2, 3], ids=lambda number: f"case {number}")
    def failing(number, fixture):
        seen.append((number, fixture))
        if number == 2:
            pytest.fail("too much")
        assert number < 3

    with pytest.raises(AssertionError, match=r"(?s)2 of 3 .*case 2: .*too much.*case 3: ") as told:
        failing(fixture="x")
    assert seen == [(1, "x"), (2, "x"), (3, "x")]
    assert "too much" in str(told.value.__cause__)


def test_process_is_refused_here():
    with pytest.raises(budget.StartedProcess, match="test_process_is_refused_here"):
        subprocess.Popen(["true"])


@pytest.mark.parametrize(
    ("cpu_s", "wall_s", "slower", "words"),
    [
        (0.4, 1.0, 1.0, ""),
        (1.4, 1.0, 1.0, ""),
        (1.6, 1.0, 1.0, "1.60 s of CPU, at most 0.5"),
        (1.6, 9.0, 2.0, ""),
        (3.1, 9.0, 2.0, "2.0 times as slow"),
        (1.6, 1.0, 0.1, "1.60 s of CPU"),
        (0.1, 21.0, 1.0, "waits for time to pass"),
    ],
)
def test_budget_allows_half_a_second_of_this_machine(cpu_s, wall_s, slower, words):
    why = budget.complaint(budget.Meter(cpu_s, 0.0, wall_s, 0), lambda: slower * budget.YARDSTICK_S)
    assert bool(why) == bool(words)
    assert words in why


def test_summary_adds_up_folders_and_names_the_dearest_tests():
    def report(nodeid, cpu_s):
        spent = [("cpu_s", cpu_s), ("wall_s", 1.0), ("starts", 1)] * 2
        return SimpleNamespace(nodeid=nodeid, user_properties=spent)

    reports = [report("tests/unit/a.py::one", 1.0), report("tests/unit/a.py::two", 2.0),
               report("tests/repo/a.py::three", 0.5)]  # fmt: skip
    repo, unit, dearest = budget.summary(reports, 1)
    assert unit == "tests/unit: 2 tests, 6.0 s of CPU, 4.0 s, 4 processes started"
    assert repo.startswith("tests/repo: 1 tests, 1.0 s of CPU")
    assert dearest.split() == ["4.00", "s", "of", "CPU,", "2.00", "s", "tests/unit/a.py::two"]
