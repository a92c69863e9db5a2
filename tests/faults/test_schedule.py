"""The schedule: the seed says everything."""

from faults.schedule import (
    AIMS,
    CONTROL,
    DISK,
    FREEZES,
    ISOLATIONS,
    KILLS,
    LINKS,
    PAUSES,
    STALLS,
    STORMS,
    Fault,
    Schedule,
)

ALL = (*KILLS, *PAUSES, *FREEZES, *ISOLATIONS, *LINKS, *CONTROL, *DISK, *AIMS, *STORMS, *STALLS)


def test_schedule_of_the_same_seed_is_the_same():
    assert Schedule(3, 50, ALL).faults == Schedule(3, 50, ALL).faults
    assert Schedule(3, 50, ALL).faults != Schedule(4, 50, ALL).faults


def test_schedule_has_each_kind_before_any_comes_twice():
    faults = Schedule(1, 2 * len(ALL), ALL).faults
    assert sorted(fault.kind for fault in faults[: len(ALL)]) == sorted(ALL)


def test_schedule_shown_can_be_repeated():
    schedule = Schedule(7, 4, KILLS, every=9)
    assert eval(str(schedule).splitlines()[0]).faults == schedule.faults


def test_fault_says_how_many_processes_it_kills():
    kinds = ["kill master", "pause worker", "storm master", "storm server+worker", "stall worker"]
    assert [Fault(kind).kills for kind in kinds] == [1, 0, 1, 2, 0]
    assert Fault("stall worker+server").kills == 1
