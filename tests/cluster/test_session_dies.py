"""Masters, servers and drivers of sessions are killed: rows stay, drivers wait and go on."""

import pytest
from faults.schedule import Schedule
from faults.session import SESSION_KILLS, SessionRig

pytestmark = pytest.mark.limit(600)


def test_session_outlives_kills_of_its_master_and_loses_nothing(tmp_path):
    """The short form of `bench/recovery.py --parts session`."""
    with SessionRig(tmp_path, job={"window": 4, "pause": 0.005}, drivers=1) as rig:
        rig.form().run(Schedule(7, 3, SESSION_KILLS)).finish()
        rig.assert_exact()
