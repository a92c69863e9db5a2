"""The harness fails where it must: with de-duplication, fencing or replication switched off.

A whole cluster survives all troubles, none that lacks what one of them is against does.
"""

from functools import partial

import pytest

from faults.cluster import Rig
from faults.counting import later_s, pushes_of, read_notes
from faults.proxy import Weather
from faults.schedule import Schedule
from snailps.transport.frame import Kind
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
    """Pushes are applied, their acknowledgements do not arrive, and they are sent again."""
    links = [link for place in rig.alive("server") for link in place.data]
    for link in links:
        link.set(Weather(mute=True, clients=is_worker))
    rig.until(
        lambda: any(Kind.PUSHED in link.held(is_worker) for link in links),
        "an acknowledgement that is held back",
    )
    for link in links:
        link.cut(is_worker)
    rig.proxy.heal()


def isolate_a_worker(rig, fenced=False):
    """The master gives it up, its connections to the servers stay: unless fenced, it pushes on."""
    victim = rig.alive("worker")[0]
    pid = victim.process.pid
    rig.isolate(victim)

    def has_pushed():
        own = [one for one in read_notes(rig.notes).values() if one.pid == pid]
        return later_s(own, rig.given_up[pid], pushes_of) is not None

    if not fenced:
        rig.until(has_pushed, "a later push of a worker that was given up")
    rig.end_isolation(victim)
    rig.until(rig.is_redundant, "redundancy after a worker was given up")


TROUBLES = {
    "replication": (lose_a_server_whose_standby_lags, "no-hold", "lost"),
    "de-duplication": (lose_connections_with_replies_on_their_way, "no-marks", "doubled"),
    "fencing": (isolate_a_worker, "no-fence", "undead"),
}


def verdict_after(tmp_path, troubles, settings=None, **hurt):
    # Blocks last until all is over: a worker that the master has lost goes on until its block ends.
    enough = tmp_path / "enough"
    job = {"window": 8, "pause": 0.01, "pushes": 10**9, "enough": enough, "carry": True}
    with Rig(tmp_path, settings, job) as rig:
        if hurt:
            rig.hurt("server", **hurt)
        rig.form()
        for trouble in troubles:
            flow(rig, 50)
            trouble(rig)
        flow(rig, 50)
        enough.touch()
        rig.finish()
        return rig.verdict(), rig.report()


def test_whole_cluster_survives_each_trouble(tmp_path):
    troubles = [
        partial(lose_a_server_whose_standby_lags, held=True),
        lose_connections_with_replies_on_their_way,
        partial(isolate_a_worker, fenced=True),
    ]
    verdict, report = verdict_after(tmp_path, troubles)
    assert verdict.good, f"{verdict}\n{report}"


@pytest.mark.parametrize("what", TROUBLES)
def test_harness_says_what_is_wrong_without(tmp_path, what):
    trouble, left_out, fault = TROUBLES[what]
    verdict, report = verdict_after(tmp_path, [trouble], left_out=[left_out])
    assert getattr(verdict, fault), f"nothing {fault} without {what}:\n{verdict}\n{report}"


def test_asynchronous_replication_loses_what_the_standby_lacks(tmp_path):
    settings = {"replication": "async"}
    verdict, report = verdict_after(tmp_path, [lose_a_server_whose_standby_lags], settings)
    assert verdict.lost, f"{verdict}\n{report}"


def test_without_replication_a_killed_server_ends_the_job_and_the_harness_says_so(tmp_path):
    with Rig(tmp_path, {"replication": "none"}) as rig:
        rig.form()
        with pytest.raises(AssertionError, match="ended by itself"):
            rig.run(Schedule(1, 1, ["kill server"]))
        for process in rig.cluster.processes:  # the new server still looks for its master
            process.close()
