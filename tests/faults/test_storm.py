"""Kills while others join, two at once, long stalls: the short form of bench/recovery.py, storm."""

import pytest

from faults.cluster import Rig
from faults.schedule import STALLS, STORMS, Fault, Schedule
from snailps.transport.handshake import Channel

pytestmark = pytest.mark.limit(1800)  # a rig bounds each step, as long as it gets further


@pytest.mark.long(but=["one", "two"])
@pytest.mark.parametrize(
    ("seed", "kinds"), [(1, STORMS[:6]), (2, STORMS[6:]), (3, STALLS)], ids=["one", "two", "stalls"]
)
def test_storm_costs_no_acknowledged_push_and_no_job(tmp_path, seed, kinds):
    job = {"window": 8, "own": 2, "shared": 64, "dim": 16, "pushes": 4, "pause": 0.01}
    with Rig(tmp_path, job=job, stall_max_s=6.0) as rig:
        rig.form().run(Schedule(seed, len(kinds), kinds)).finish()
        rig.assert_exact()


def test_hang_is_noticed_after_the_heartbeat_connection_was_lost_alone(tmp_path):
    with Rig(tmp_path, job={"window": 8, "pause": 0.002}) as rig:
        rig.form()
        for place in rig.places:
            place.control.cut(lambda hello: hello.channel == Channel.PULSE)
        for place in rig.places:
            rig.await_line(place.process, "the heartbeat connection to the master was lost")
        rig.schedule = Schedule(1, 0, STALLS)
        for number, kind in enumerate(("freeze worker", "freeze server")):
            rig.perform(number, Fault(kind))
        rig.finish()
        rig.assert_exact()
