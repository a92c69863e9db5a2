"""A process as the master sees it: its phases, and how fast it trains."""

import pytest

from snailps.master.member import RATE_WINDOW_S, Member, Rate
from snailps.master.phases import REACH, STAY, WORK, Reach, Stay, Work

TABLES = {"reach": (Reach, REACH), "stay": (Stay, STAY), "work": (Work, WORK)}
ARGUMENTS = {
    "route_sent": (1.0,),
    "route_taken": (1,),
    "said_bye": ({},),
    "was_missed": ("it is silent",),
    "part_ended": ({},),
    "given_up": (7,),
}
ALIASES = {
    "came_back": ("came_back", (5, ("h", 1), 1.0, {}, 1.0)),
    "counts": ("leased", ("survey", 1.0)),
    "trains": ("leased", ("train", 1.0)),
}
"""Events whose method has another name, or more arguments."""


def happens(member, event):
    name, arguments = ALIASES.get(event, (event, ARGUMENTS.get(event, ())))
    getattr(member, name)(*arguments)


@pytest.mark.parametrize("field", TABLES)
def test_each_event_of_each_phase_is_in_the_table_or_refused(field):
    phases, table = TABLES[field]
    assert set(table) == set(phases)
    for event in {event for after in table.values() for event in after}:
        for phase in phases:
            member = Member(1, "worker", "host", 5, 7, [], **{field: phase})
            if (becomes := table[phase].get(event)) is not None:
                happens(member, event)
                assert getattr(member, field) is becomes
            else:
                with pytest.raises(AssertionError, match=f" {phase.name} does not take '{event}'"):
                    happens(member, event)


@pytest.fixture
def rate():
    return Rate()


def test_rate_before_the_first_block_is_none(rate):
    assert rate.per_s(3.0) is None


def test_rate_counts_the_time_between_blocks(rate):
    rate.trained(100, 0.1, 1.0)  # began at 0.9
    rate.trained(100, 0.1, 2.9)
    assert rate.per_s(2.9) == pytest.approx(200 / 2.0)


def test_rate_is_of_the_last_seconds_only(rate):
    for second in range(30):
        rate.trained(second, 1.0, float(second))
    assert rate.per_s(29.0) == pytest.approx(sum(range(19, 30)) / RATE_WINDOW_S)
    assert rate.per_s(100.0) == 0.0


def test_rate_after_a_pause_begins_anew(rate):
    rate.trained(100, 1.0, 1.0)
    rate.trained(50, 0.5, 100.0)
    assert rate.per_s(100.0) == pytest.approx(100.0)


def test_rate_of_a_partition_counts_the_units_of_its_checkouts_once(rate):
    rate.trained(20, 0.5, 0.5, checkout=True)
    rate.trained(20, 0.5, 1.0, checkout=True)
    rate.trained(50, 1.0, 1.0)
    assert rate.per_s(1.0) == pytest.approx(50.0)
    rate.trained(30, 1.0, 2.0)
    assert rate.per_s(2.0) == pytest.approx(40.0)
