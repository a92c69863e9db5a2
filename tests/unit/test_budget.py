"""budget.py: what a test of tests/unit may take, on a loaded machine too."""

import budget
from budget import UNIT_CPU_S, Meter, complaint


def test_time_that_passes_is_not_complained_of():
    assert complaint(Meter(0.1, 0.0, 1000.0, 0)) == ""


def test_time_of_a_core_is_complained_of_as_far_as_this_machine_is_not_slow():
    spent = Meter(4 * UNIT_CPU_S, 0.0, 1.0, 0)
    assert "of CPU" in complaint(spent, lambda: budget.YARDSTICK_S)
    assert complaint(spent, lambda: 2 * budget.YARDSTICK_S) == ""
