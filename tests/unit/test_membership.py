"""Forming and coming back at the master: which nodes it waits for and drops, when it goes on."""

from types import SimpleNamespace

import pytest
from master_parts import TestOutbox, context_of

from snailps.api.tables import Table
from snailps.config import MasterSettings
from snailps.errors import ClusterError, ConnectionLost, WaitTimeout
from snailps.master.effects import Fact
from snailps.master.events import Received
from snailps.master.forming import LOSSES_PER_NODE, Forming
from snailps.master.life import COMMAND, LASTING
from snailps.master.membership import Membership
from snailps.store.route import Route, ShardAddress
from snailps.transport import messages

LIFE = 5


class Cluster:
    """Members of a master, without any process."""

    def __init__(self, servers=2, workers=1, facts=(), session=False, **settings):
        self.now = 100.0
        self.out = TestOutbox()
        self.failed, self.ready, self.unready = [], [], []
        nodes = {"expected_node_num": servers + workers, "expected_servers": servers}
        context = context_of(
            self.out, settings=MasterSettings(**nodes, **settings), cluster_id=LIFE,
            begun=self.now, life=LASTING if session else COMMAND,
        )  # fmt: skip
        lifecycle = SimpleNamespace(fail=self.failed.append)
        self.members = Membership(
            context, lambda member, now: self.ready.append(member), self._unready, facts
        )
        self.forming = Forming(context, self.members, lifecycle, self._unready)
        self.facts = self.out.facts
        self._port, self._peer = 1000, 0

    def _unready(self, member, text, now):
        self.unready.append((member.number, text))
        member.was_missed(text)  # as a master does that takes over
        if not self.members.formed_before:
            self.lost(member, text)

    def lost(self, member, why):
        self.forming.lost(member, why, self.now)

    def _received(self, message, told):
        self._peer += 1
        return Received(self._peer, message, told.append, ("h", 7))

    def register(self, role):
        self._port += 1
        endpoints = [["127.0.0.1", self._port]] if role == "server" else []
        told = []
        message = messages.Register(role, "h", 1, 1, endpoints)
        self.members.register(self._received(message, told), message, self.now)
        return self.members.all[told[0].node]

    def rejoin(self, number, role, epoch, state=None):
        endpoints = [["127.0.0.1", 1000 + number]] if role == "server" else []
        message = messages.Rejoin(
            LIFE, number, number, role, "h", 1, 1, endpoints, epoch, "", state or {}
        )
        return self.members.rejoin(self._received(message, []), message, self.now)

    def calls(self, member):
        """What a member was told to do."""
        return [order for peer, order, _ in self.out.orders if peer == member.peer]

    def answer(self, member, answer=None, at=-1):
        told = [on_answer for peer, _, on_answer in self.out.orders if peer == member.peer]
        told[at](answer or messages.Ok(), self.now)

    def check(self, later_s=0.0):
        before, now = self.members.route, self.now + later_s
        formed = self.forming.check(now)
        if self.members.route is not before and self.members.route is not None:
            assert not formed  # a route is told in the turn behind the one that made it
            formed = self.forming.check(now)
        return formed

    def routed(self):
        """Two servers and a worker, which were told the route."""
        nodes = [self.register(role) for role in ("server", "server", "worker")]
        self.check()
        return nodes

    def formed(self):
        """All of a first cluster, with the route."""
        nodes = self.routed()
        for node in nodes:
            self.answer(node)
        return nodes


def past(servers=(1, 2), workers=(3,)):
    """What the journal of a cluster says that was complete."""
    route = Route.build(4, [ShardAddress(n, "127.0.0.1", 1000 + n) for n in servers], 8)
    made = [
        Fact(
            "member",
            {
                "number": n, "role": "server" if n in servers else "worker", "host": "h", "pid": 1,
                "endpoints": [["127.0.0.1", 1000 + n]] if n in servers else [], "late": False,
            },
        )
        for n in (*servers, *workers)
    ]  # fmt: skip
    made.insert(0, Fact("numbers", {"until": 1024, "readers_until": 1 << 30}))
    return [
        *made,
        Fact("route", {"route": route.to_dict()}),
        Fact("shards", {"epoch": 4, "shards": []}),
    ]


def taken_over():
    """A cluster that was complete, whose members are back."""
    cluster = Cluster(facts=past())
    for number, role in ((1, "server"), (2, "server"), (3, "worker")):
        cluster.rejoin(number, role, 4, {"started": True} if role == "worker" else {})
    return cluster


# --- first forming -------------------------------------------------------------------------------


def test_worker_that_is_lost_before_the_route_is_waited_for_again():
    cluster = Cluster()
    for role in ("server", "server"):
        cluster.register(role)
    lost = cluster.register("worker")
    cluster.lost(lost, "is lost: killed")
    assert not cluster.check()
    assert "1 more worker" in cluster.forming.missing()
    again = cluster.register("worker")
    assert again.number != lost.number
    assert not cluster.check()
    for member in cluster.members.nodes():
        cluster.answer(member)
    assert cluster.check()
    assert not cluster.failed


def test_worker_that_is_lost_with_the_route_leaves_the_route_as_it_is():
    cluster = Cluster()
    first, second, lost = cluster.routed()
    for server in (first, second):
        cluster.answer(server)
    cluster.lost(lost, "is lost: killed")
    assert not cluster.check()
    assert cluster.members.route.epoch == 1
    again = cluster.register("worker")
    assert not cluster.check()
    cluster.answer(again)
    assert cluster.check()


def test_server_that_is_lost_with_the_route_makes_another_route():
    cluster = Cluster()
    lost, second, worker = cluster.routed()
    cluster.answer(second)
    cluster.answer(worker)
    cluster.lost(lost, "is lost: killed")
    assert cluster.members.route is None
    again = cluster.register("server")
    assert not cluster.calls(again)  # not the void one
    assert not cluster.check()
    assert cluster.members.route.epoch == 2
    assert [s.server for s in cluster.members.route.shards] == [second.number, again.number]
    for member in (second, worker):
        cluster.answer(member)
    assert not cluster.check()
    cluster.answer(again)
    assert cluster.check()
    assert not cluster.failed


def test_replacement_has_the_whole_time_and_whoever_lacks_is_named_at_its_end():
    cluster = Cluster(master_time_out=60.0)
    cluster.register("server")
    cluster.register("server")
    cluster.forming.since -= 59.0
    lost = cluster.register("worker")
    cluster.lost(lost, "is lost: connection closed")
    assert not cluster.check(later_s=59.0)
    assert not cluster.failed
    cluster.check(later_s=61.0)
    (text,) = cluster.failed
    assert "master_time_out" in text
    assert "1 more worker" in text
    assert f"{lost.name} is lost: connection closed" in text


def test_processes_that_are_lost_again_and_again_end_the_forming():
    cluster = Cluster()
    for number in range(3 * LOSSES_PER_NODE + 1):
        assert not cluster.failed, number
        cluster.lost(cluster.register("worker"), "is lost: killed")
    assert "Look at their logs" in cluster.failed[0]


def test_worker_in_place_of_a_lost_server_is_no_end():
    cluster = Cluster()
    lost = cluster.register("server")
    cluster.register("server")
    cluster.lost(lost, "is lost: killed")
    cluster.register("worker")
    cluster.register("worker")
    assert not cluster.check()
    assert not cluster.failed
    cluster.register("server")
    assert not cluster.check()
    assert cluster.members.route is not None


def test_workers_before_the_last_server_are_no_end():
    cluster = Cluster(master_time_out=60.0)
    for role in ("worker", "server", "worker", "worker"):
        cluster.register(role)
    assert not cluster.check(later_s=59.0)
    assert not cluster.failed
    assert cluster.forming.missing().startswith("1 more server (here: worker 1 (h, process 1), ")
    cluster.register("server")
    assert not cluster.check(later_s=59.0)
    for member in cluster.members.nodes():
        cluster.answer(member)
    assert cluster.check()
    assert not cluster.failed


def test_servers_before_the_first_worker_are_no_end():
    cluster = Cluster(master_time_out=60.0)
    for _ in range(4):
        cluster.register("server")
    assert not cluster.check(later_s=59.0)
    assert cluster.members.route is None
    cluster.register("worker")
    assert not cluster.check(later_s=59.0)
    assert cluster.members.route is not None
    assert not cluster.failed


def test_cluster_of_servers_alone_waits_for_no_worker():
    cluster = Cluster(servers=2, workers=0)
    cluster.register("server")
    cluster.register("server")
    cluster.check()
    assert cluster.members.route is not None


def test_next_master_waits_for_the_last_server_too():
    cluster = Cluster(facts=[Fact("numbers", {"until": 1024, "readers_until": 1 << 30})])
    for number, role in enumerate(("worker", "worker", "server"), 1):
        cluster.rejoin(number, role, 0)
    assert not cluster.check()
    assert not cluster.failed
    cluster.rejoin(4, "server", 0)
    assert not cluster.check()
    assert cluster.members.route is not None


@pytest.mark.parametrize(
    ("servers", "workers", "roles", "text"),
    [
        (2, 2, (), "4 more of 4 nodes, at least 2 of them servers (here: none)"),
        (2, 2, ("worker",), "3 more of 4 nodes, at least 2 of them servers"),
        (2, 2, ("worker", "server"), "2 more of 4 nodes, at least 1 of them a server"),
        (2, 2, ("server",) * 2, "2 more of 4 nodes, at least 1 of them a worker (here"),
        (2, 2, ("server", "server", "worker"), "1 more of 4 nodes (here"),
        (2, 2, ("server",) * 3, "1 more worker (here"),
        (2, 2, ("server",) * 5, "1 more worker (here"),
        (1, 1, (), "1 more server and 1 more worker (here: none)"),
        (2, 2, ("worker",) * 2, "2 more servers"),
        (2, 2, ("worker",) * 3, "2 more servers"),
        (2, 2, ("worker",) * 4 + ("server",), "1 more server (here"),
    ],
)
def test_what_is_missing_is_counted(servers, workers, roles, text):
    cluster = Cluster(servers, workers)
    for role in roles:
        cluster.register(role)
    assert cluster.forming.missing().startswith(text)
    cluster.check(later_s=61.0)
    assert f"waited 60 s (master_time_out) for {text}" in cluster.failed[0]


def test_wrong_split_is_told_at_the_end_with_what_cures_it():
    cluster = Cluster(2, 2)
    for _ in range(4):
        cluster.register("worker")
    cluster.check(later_s=61.0)
    assert "correct expected_servers" in cluster.failed[0]


def test_member_that_does_not_connect_in_time_is_dropped_and_named():
    cluster = Cluster(init_timeout=60.0)
    first, second, slow = cluster.routed()
    for server in (first, second):
        cluster.answer(server)
    assert not cluster.check(later_s=59.0)
    assert not cluster.unready
    assert not cluster.check(later_s=61.0)
    ((number, text),) = cluster.unready
    assert number == slow.number
    assert "init_timeout" in text
    assert f"127.0.0.1:{1001}" in text
    assert not cluster.failed
    assert "1 more worker" in cluster.forming.missing()


def test_server_that_never_takes_the_route_is_given_up_and_the_others_form_on():
    cluster = Cluster(init_timeout=60.0)
    slow, second, worker = cluster.routed()
    for member in (second, worker):
        cluster.answer(member)
    assert not cluster.check(later_s=61.0)
    assert [number for number, _ in cluster.unready] == [slow.number]
    cluster.register("server")
    cluster.check()
    for member in cluster.members.nodes():
        cluster.answer(member)
    assert cluster.check()
    assert not cluster.failed


def test_answer_to_a_void_route_is_none_to_the_one_that_followed():
    cluster = Cluster()
    lost, second, worker = cluster.routed()
    cluster.lost(lost, "is lost: killed")
    cluster.answer(second)
    cluster.answer(worker, WaitTimeout("cannot reach server 1"))
    assert not second.has_route
    again = cluster.register("server")
    cluster.check()
    for answer in (WaitTimeout("cannot reach server 1"), messages.Ok()):
        cluster.answer(worker, answer, at=0)  # on its way when the first route became void
    assert not worker.has_route
    assert not cluster.unready
    for member in (second, again):
        cluster.answer(member)
    assert not cluster.check()
    cluster.answer(worker)
    assert cluster.check()


def test_worker_that_comes_behind_the_route_is_known_to_a_master_that_takes_over():
    cluster = Cluster()
    nodes = cluster.routed()
    cluster.lost(nodes.pop(), "is lost: killed")
    again = cluster.register("worker")
    for member in (*nodes, again):
        cluster.answer(member)
    assert cluster.check()
    facts = [Fact(kind, data) for kind, data in cluster.facts]
    shards = Fact("shards", {"epoch": 1, "shards": []})
    after = Cluster(
        facts=[Fact("numbers", {"until": 1024, "readers_until": 1 << 30}), *facts, shards]
    )
    for member in nodes:
        after.rejoin(member.number, member.role, 1)
    assert not after.check()
    assert after.forming.missing() == f"{after.members.all[again.number].name} to come back"
    after.rejoin(again.number, "worker", 1, {"started": True})
    assert after.check()


def test_server_that_comes_back_behind_the_route_of_a_takeover_is_known_to_the_next():
    """It registered with the first master, and the second one had its servers without it."""
    cluster = Cluster(facts=[Fact("numbers", {"until": 1024, "readers_until": 1 << 30})])
    nodes = cluster.routed()
    back = cluster.rejoin(9, "server", 0)
    members = [data["number"] for kind, data in cluster.facts if kind == "member"]
    assert members == [*(member.number for member in nodes), back.number]


# --- a master that takes over --------------------------------------------------------------------


def test_newcomer_holds_up_no_master_that_takes_over():
    cluster = taken_over()
    newcomer = cluster.rejoin(4, "worker", 0, {"started": False})
    assert cluster.check()
    assert not cluster.ready
    cluster.answer(newcomer)
    assert cluster.ready == [newcomer]


def test_newcomer_that_gets_ready_while_a_master_takes_over_is_known_to_the_next():
    cluster = Cluster(facts=past())
    newcomer = cluster.register("worker")
    cluster.answer(newcomer)
    members = [data["number"] for kind, data in cluster.facts if kind == "member"]
    assert members == [newcomer.number]


@pytest.mark.parametrize(("role", "state"), [("worker", {"started": False}), ("server", {})])
def test_newcomer_that_comes_back_late_is_taken_in(role, state):
    cluster = taken_over()
    assert cluster.check()
    newcomer = cluster.rejoin(4, role, 0, state)
    assert newcomer.late
    cluster.answer(newcomer)
    assert cluster.ready == [newcomer]


def test_worker_of_the_job_that_comes_back_late_and_unknown_is_refused():
    cluster = taken_over()
    assert cluster.check()
    with pytest.raises(ClusterError, match="Start it anew"):
        cluster.rejoin(9, "worker", 4, {"started": True})


def test_member_that_does_not_follow_in_time_is_given_up_and_the_job_goes_on():
    cluster = Cluster(facts=past(), init_timeout=60.0)
    for number, role in ((1, "server"), (2, "server")):
        cluster.rejoin(number, role, 4)
    cluster.rejoin(3, "worker", 3, {"started": True})  # never answers
    assert not cluster.check(later_s=59.0)
    assert not cluster.check(later_s=61.0)
    assert [number for number, _ in cluster.unready] == [3]
    assert cluster.check(later_s=61.0)
    assert not cluster.failed


def test_newcomer_of_a_running_cluster_that_never_connects_is_given_up():
    cluster = Cluster(init_timeout=60.0)
    cluster.formed()
    assert cluster.check()
    newcomer = cluster.register("worker")
    cluster.forming.check_joining(cluster.now + 59.0)
    assert not cluster.unready
    cluster.forming.check_joining(cluster.now + 61.0)
    assert [number for number, _ in cluster.unready] == [newcomer.number]


def test_newcomer_holds_up_no_table():
    cluster = Cluster()
    *servers, worker = cluster.formed()
    assert cluster.check()
    cluster.register("server")
    answers, declare = [], messages.Declare([Table("rows", 4).to_dict()])
    cluster.members.table_registry.declare(worker, declare, answers.append, cluster.now)
    for server in servers:
        assert not answers
        cluster.answer(server)
    assert answers == [messages.Declared([1])]


def test_cluster_that_was_never_complete_forms_on_under_the_next_master():
    facts = past()[:-1]  # nothing of shards: the route was on its way
    cluster = Cluster(facts=facts)
    cluster.rejoin(1, "server", 4)
    cluster.rejoin(3, "worker", 0)
    assert not cluster.check()
    assert "server 2" in cluster.forming.missing()
    cluster.lost(cluster.members.all[2], "did not come back")
    assert not cluster.check()
    again = cluster.register("server")
    assert not cluster.check()
    assert cluster.members.route.epoch == 5
    for member in cluster.members.nodes():
        cluster.answer(member)
    assert again.has_route
    assert cluster.check()


def test_lost_connection_is_no_answer():
    cluster = Cluster()
    nodes = cluster.routed()
    cluster.answer(nodes[0], ConnectionLost("gone"))
    assert not cluster.unready
