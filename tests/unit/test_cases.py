"""What tests are made with: `each`, and the rule of this folder."""

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
