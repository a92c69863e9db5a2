"""transport._socket_io: when a wait looks for events before it sleeps."""

from snailps.transport._socket_io import skips_after

FOUND, VAIN, LONG = (True, 20e-6), (False, 60e-6), (True, 1e-3)


def test_look_in_vain_once_costs_one_wait_and_again_and_again_ever_more():
    """A sleeping side makes the other side's look vain: after 16 each time they kept each other
    asleep, three times as slow."""
    assert skips_after([VAIN]) == [1]
    assert skips_after([VAIN] * 7) == [1, 2, 4, 8, 16, 16, 16]


def test_look_that_others_made_long_once_costs_few_waits_and_on_a_busy_core_many():
    assert skips_after([LONG] * 4) == [64, 256, 1024, 1024]
    assert skips_after([LONG, VAIN, VAIN]) == [64, 16, 16]


def test_looks_that_find_something_win_the_trust_back():
    assert skips_after([VAIN] * 5 + [FOUND] * 5 + [VAIN]) == [1, 2, 4, 8, 16, 0, 0, 0, 0, 0, 1]
