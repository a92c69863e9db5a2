"""The harness fails where it must: with de-duplication, fencing or replication switched off.

A whole cluster survives all troubles, none that lacks what one of them is against does.
"""

from functools import partial

import pytest

from faults.cluster import Rig
from faults.proxy import Weather
from faults.schedule import Fault, Schedule
from snailps.transport.handshake import Role

pytestmark = pytest.mark.limit(1800)  # a rig bounds each step, as long as it gets further


def is_server(hello):
    return hello.role == Role.SERVER


def is_worker(hello):
    return hello.role == Role.WORKER


def flow(rig, count):
    """Waits until more pushes were acknowledged."""
    goal = rig.progress() + count
    rig.until(lambda: rig.progress() >= goal, f"{count} more acknowledged pushes")


def lose_a_server_whose_standby_lags(rig, held=False):
    """Its stream stands still for a while, then it is killed: what it had not sent is gone.

    Meanwhile pushes are acknowledged, unless these are held until the standby has them.
    """
    links = [link for place in rig.places for link in place.data]
    rig.proxy.partition(links, is_server)
    if held:
        rig.rest(0.5)
    else:
        flow(rig, 50)
    victim = rig.alive("server")[0]
    rig.kill(victim)
    for link in links:
        link.cut(is_server)
    rig.proxy.heal(links)
    rig.revive(victim)
    rig.until(rig.is_redundant, "redundancy after a server was killed")


def lose_connections_with_replies_on_their_way(rig):
    """Pushes are applied, their acknowledgements do not arrive, and they are sent again.

    The connections are cut while pushes flow, as the acknowledgements show, some of which are
    then on their way; three times, since a cut may come between two blocks.
    """
    links = [link for place in rig.alive("server") for link in place.data]
    for link in links:
        link.set(Weather(delay_s=0.1, whom=is_worker))
    for _ in range(3):
        flow(rig, 50)
        for link in links:
            link.cut(is_worker)
    rig.proxy.heal()


def isolate_a_worker(rig):
    """The master gives it up, its connections to the servers stay."""
    rig.perform(0, Fault("isolate worker", lasts_s=1.0))


SHORT, LONG, LONGEST = 100, 1000, 1500
"""Pushes a block, 100 a second: the end waits for the block at work, 20 s at most, and loses what
comes later; a worker that the master has lost goes on for no longer than its block."""
TROUBLES = {
    "replication": (lose_a_server_whose_standby_lags, SHORT, "no-hold", "lost"),
    "de-duplication": (lose_connections_with_replies_on_their_way, SHORT, "no-marks", "doubled"),
    "fencing": (isolate_a_worker, LONGEST, "no-fence", "undead"),
}


def verdict_after(tmp_path, troubles, settings=None, pushes=LONG, **hurt):
    job = {"window": 8, "pause": 0.01, "pushes": pushes, "carry": True}
    with Rig(tmp_path, settings, job) as rig:
        if hurt:
            rig.hurt("server", **hurt)
        rig.form(60)
        for trouble in troubles:
            flow(rig, 50)
            trouble(rig)
        flow(rig, 50)
        rig.finish()
        return rig.verdict(), rig.report()


def test_whole_cluster_survives_each_trouble(tmp_path):
    troubles = [
        partial(lose_a_server_whose_standby_lags, held=True),
        lose_connections_with_replies_on_their_way,
        isolate_a_worker,
    ]
    verdict, report = verdict_after(tmp_path, troubles)
    assert verdict.good, f"{verdict}\n{report}"


@pytest.mark.parametrize("what", TROUBLES)
def test_harness_says_what_is_wrong_without(tmp_path, what):
    trouble, pushes, left_out, fault = TROUBLES[what]
    verdict, report = verdict_after(tmp_path, [trouble], pushes=pushes, left_out=[left_out])
    assert getattr(verdict, fault), f"nothing {fault} without {what}:\n{verdict}\n{report}"


def test_asynchronous_replication_loses_what_the_standby_lacks(tmp_path):
    settings = {"replication": "async"}
    verdict, report = verdict_after(tmp_path, [lose_a_server_whose_standby_lags], settings, SHORT)
    assert verdict.lost, f"{verdict}\n{report}"


def test_without_replication_a_killed_server_ends_the_job_and_the_harness_says_so(tmp_path):
    with Rig(tmp_path, {"replication": "none"}) as rig:
        rig.form(60)
        with pytest.raises(AssertionError, match="ended by itself"):
            rig.run(Schedule(1, 1, ["kill server"]))
        for process in rig.cluster.processes:  # the new server still looks for its master
            process.close()
