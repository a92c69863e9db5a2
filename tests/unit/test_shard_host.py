"""What a server's core makes of the master's orders for its shards, without shards or sockets."""

from dataclasses import replace

import pytest

from snailps.api.tables import Table
from snailps.config import ServerSettings
from snailps.errors import ClusterError, ConnectionLost, ProtocolError, SnailError, WaitTimeout
from snailps.node.effects import Answering, Tick, WorkDone
from snailps.server import effects as fx
from snailps.server import events as ev
from snailps.server.core import ServerCore
from snailps.server.shard_host import HANG_S, LOOK_S
from snailps.store.route import Route, ShardAddress
from snailps.transport import messages as m

FRAG_NUM = 16
HERE, THERE = 1, 2  # servers
ENDPOINTS = [("here", 7001), ("here", 7002)]
STANDBY = ("here", 7100)


class Rig:
    """A core, and what it wants; a test says what happens."""

    def __init__(self, endpoints=ENDPOINTS, files=None, **settings):
        self.now, self.call = 100.0, 0
        self.core = ServerCore(
            ServerSettings(**settings),
            m.Welcome(HERE, HERE, 7, FRAG_NUM, 1.0, 10.0),
            files,
            endpoints=endpoints,
            own_rss_mb=lambda: 5.0,
            load_method=lambda table: object(),
        )
        self.wanted, self.answers, self.told, self.posts = [], {}, [], []

    def feed(self, event):
        """What came of it, without answers, notes and posts; these are kept."""
        found = self.core.handle(event, self.now)
        for effect in found:
            if isinstance(effect, Answering):
                assert effect.call not in self.answers
                self.answers[effect.call] = effect.answer
            elif isinstance(effect, fx.Note):
                self.told.append(effect.message)
            elif isinstance(effect, fx.Post):
                self.posts.append(effect)
        own = (Answering, fx.Note, fx.Post)
        return [effect for effect in found if not isinstance(effect, own)]

    def order(self, message):
        self.call += 1
        return self.feed(ev.Ordered(self.call, message))

    @property
    def answer(self):
        """To the last order; None: not yet."""
        return self.answers.get(self.call)

    def next_post(self, name):
        """The oldest post that is not answered."""
        post = self.posts.pop(0)
        assert post.do.func.__name__ == name
        return post

    def reply(self, name, result=None, error=None):
        """A shard answers the oldest post."""
        post = self.next_post(name)
        return self.feed(WorkDone(post.post, result, error))

    def settle(self):
        """Shards answer all posts."""
        while self.posts:
            self.feed(WorkDone(self.posts.pop(0).post))

    def wait(self, seconds):
        """Time passes."""
        self.now += seconds
        return self.feed(Tick())


def route(epoch, *servers):
    """Shards of these servers, at their endpoints."""
    shards = [ShardAddress(s, *ENDPOINTS[i % len(ENDPOINTS)]) for i, s in enumerate(servers)]
    return m.TakeRoute(Route.build(epoch, shards, FRAG_NUM).to_dict())


@pytest.fixture
def rig():
    """A server of a formed cluster that serves shards 0 and 1: their handles."""
    made = Rig()
    first, second = made.order(route(1, HERE, HERE))
    made.handles = [first.shard, second.shard]
    made.settle()
    assert made.order(m.MakeTables([])) == []
    assert isinstance(made.answer, m.Ok)
    return made


def hosted(rig, number=5):
    """Has the server host a standby; its handle."""
    (start,) = rig.order(m.HostStandby(number, []))
    assert (start.standby, start.listener) == (True, None)
    rig.feed(WorkDone(start.shard, STANDBY))
    rig.settle()
    assert rig.answer == m.Report({"endpoint": list(STANDBY)})
    return start.shard


# --- forming -------------------------------------------------------------------------------------


def test_route_starts_shards_on_the_registered_listeners():
    rig = Rig()
    starts = rig.order(route(1, HERE, HERE))
    assert [(s.number, s.standby, s.listener) for s in starts] == [(0, False, 0), (1, False, 1)]
    assert rig.answer is None
    for start in starts:
        post = rig.next_post("take_route")
        assert (post.shard, post.do.keywords["epoch"]) == (start.shard, 1)
        rig.feed(WorkDone(post.post))
    assert isinstance(rig.answer, m.Ok)
    assert rig.core.route_epoch == 1


def test_shard_keeps_its_endpoint_under_another_number_while_the_cluster_forms():
    rig = Rig()
    shards = [ShardAddress(THERE, "there", 1), ShardAddress(HERE, *ENDPOINTS[1])]
    (start,) = rig.order(m.TakeRoute(Route.build(1, shards, FRAG_NUM).to_dict()))
    assert (start.number, start.listener) == (1, 1)
    again = Route.build(2, [ShardAddress(HERE, *ENDPOINTS[1])], FRAG_NUM)
    assert rig.order(m.TakeRoute(again.to_dict())) == []
    assert rig.core.host.primaries == {0: start.shard}


def test_route_with_more_shards_than_the_server_has_is_refused():
    rig = Rig(endpoints=ENDPOINTS[:1])
    rig.order(route(1, HERE, HERE))
    assert isinstance(rig.answer, ProtocolError)


def test_server_that_joins_a_running_job_closes_its_listeners():
    rig = Rig()
    assert rig.order(route(3, THERE, THERE)) == []
    close, start = rig.order(m.HostStandby(0, []))
    assert isinstance(close, fx.CloseListeners)
    assert isinstance(start, fx.StartShard)


def test_order_that_no_server_takes_is_refused(rig):
    rig.order(m.Welcome(1, 1, 1, 1, 1.0, 1.0))
    assert "does not take Welcome" in str(rig.answer)


def test_tables_are_made_although_a_standby_is_dropped_before_it_has_them(rig):
    hosted(rig)
    rig.order(m.MakeTables([[9, Table("later", 2).to_dict()]]))
    making, posts, rig.posts = rig.call, rig.posts, []
    rig.order(m.DropShard(5))
    rig.feed(WorkDone(posts.pop().post, error=ConnectionLost("the shard has stopped serving")))
    for post in posts:
        rig.feed(WorkDone(post.post))
    assert isinstance(rig.answers[making], m.Ok)


# --- standbys ------------------------------------------------------------------------------------


def test_standby_is_answered_once_it_has_its_endpoint_and_its_tables(rig):
    tables = [[1, Table("t", 4).to_dict()]]
    (start,) = rig.order(m.HostStandby(5, tables))
    rig.reply("take_route")
    rig.reply("add_table")
    assert rig.answer is None
    rig.feed(WorkDone(start.shard, STANDBY))
    assert rig.answer == m.Report({"endpoint": list(STANDBY)})


def test_standby_without_a_listener_is_refused_and_can_be_ordered_again(rig):
    (start,) = rig.order(m.HostStandby(5, []))
    rig.feed(WorkDone(start.shard, error=ClusterError("no port")))
    rig.reply("take_route", error=ConnectionLost("not there"))
    assert str(rig.answer) == "no port"
    hosted(rig)


def test_standby_on_the_advertised_port_of_another_shard_is_refused():
    rig = Rig(advertise_addr="here:7001")
    rig.order(route(1, HERE))
    rig.settle()
    (_, start) = rig.order(m.HostStandby(5, []))
    assert rig.feed(WorkDone(start.shard, ENDPOINTS[0])) == [fx.StopShard(start.shard)]
    assert "one port" in str(rig.answer)
    assert rig.core.host.standbys == {}


def test_shard_that_is_here_is_not_hosted_again(rig):
    hosted(rig)
    for number in (0, 5):
        assert rig.order(m.HostStandby(number, [])) == []
        assert "is here already" in str(rig.answer)


def test_promoted_standby_is_a_primary_and_answers_once_its_own_standby_has_all(rig):
    shard = hosted(rig)
    rig.order(m.Promote(5, 9))
    (post,) = rig.posts
    assert (post.shard, post.at_standby, post.do.keywords) == (shard, True, {"epoch": 9})
    assert rig.answer is None
    rig.reply("promote")
    assert isinstance(rig.answer, m.Ok)
    assert rig.core.host.primaries[5] == shard
    assert rig.core.host.standbys == {}


def test_shard_that_refuses_to_be_promoted_says_why(rig):
    hosted(rig)
    rig.order(m.Promote(5, 9))
    rig.reply("promote", error=SnailError("only 3 of 4 fragments"))
    assert "only 3 of 4" in str(rig.answer)


def test_shards_to_be_kept_are_kept_and_lose_the_standbys_of_standbys(rig):
    first, second = hosted(rig, 5), hosted(rig, 6)
    assert rig.order(m.KeepShards([5])) == [fx.StopShard(second)]
    assert rig.core.host.standbys == {5: first}
    assert rig.next_post("unback").shard == first


# --- copies --------------------------------------------------------------------------------------

BACK_UP = m.BackUp(0, 4, "far", 5000, True, True)


def begin_copy(rig, order=BACK_UP, link=33):
    """A copy whose stream has begun: its number."""
    dial = next(one for one in rig.order(order) if isinstance(one, fx.Dial))
    assert isinstance(rig.answer, m.Ok)
    (stream,) = rig.feed(WorkDone(dial.dial, link))
    return stream.stream


def test_copy_dials_then_streams_then_is_told(rig):
    (dial,) = rig.order(BACK_UP)
    assert (dial.number, dial.address) == (0, ("far", 5000))
    (stream,) = rig.feed(WorkDone(dial.dial, 33))
    assert stream == fx.Stream(rig.handles[0], stream.stream, 33, True, True, False)
    assert rig.core.resume_state() == {"standbys": []}
    rig.feed(ev.StreamReported(stream.stream))
    assert rig.told == [m.Backed(0, 4)]
    assert rig.core.resume_state() == {"standbys": [[0, 4, ""]]}
    rig.feed(ev.StreamReported(stream.stream, "cut"))
    assert rig.told[1:] == [m.Unbacked(0, 4, "cut")]
    assert rig.core.resume_state() == {"standbys": [[0, 4, "cut"]]}


def test_standby_out_of_reach_is_told(rig):
    (dial,) = rig.order(BACK_UP)
    assert rig.feed(WorkDone(dial.dial, error=ConnectionLost("refused"))) == []
    assert rig.told == [m.Unbacked(0, 4, "refused")]


def test_second_order_for_the_same_copy_changes_the_pace_alone(rig):
    begin_copy(rig)
    assert rig.order(replace(BACK_UP, paced=False)) == []
    assert rig.next_post("pace").do.keywords == {"paced": False}
    (dial,) = rig.order(replace(BACK_UP, copy=5))
    give_up, again = rig.order(replace(BACK_UP, copy=5, port=5001))
    assert give_up == fx.GiveUp(dial.dial)
    assert again.address == ("far", 5001)
    assert rig.posts == []


def test_pace_that_changes_while_the_standby_is_dialled_counts(rig):
    (dial,) = rig.order(BACK_UP)
    rig.order(replace(BACK_UP, paced=False))
    (stream,) = rig.feed(WorkDone(dial.dial, 33))
    assert not stream.paced


def test_link_that_comes_too_late_is_closed(rig):
    (dial,) = rig.order(BACK_UP)
    assert rig.order(m.Alone(0)) == [fx.GiveUp(dial.dial)]
    assert rig.feed(WorkDone(dial.dial, 33)) == [fx.CloseLink(33)]
    rig.reply("unback")
    assert isinstance(rig.answer, m.Ok)
    assert rig.told == []


def test_stream_of_an_earlier_copy_says_nothing_of_the_present_one(rig):
    old = begin_copy(rig)
    new = begin_copy(rig, replace(BACK_UP, copy=5))
    rig.feed(ev.StreamReported(new))
    rig.feed(ev.StreamReported(old, "cut"))
    assert rig.told == [m.Backed(0, 5)]
    assert rig.core.resume_state() == {"standbys": [[0, 5, ""]]}


def test_dropped_shard_has_no_copy(rig):
    hosted(rig)
    (dial,) = rig.order(replace(BACK_UP, shard=5))
    assert fx.GiveUp(dial.dial) in rig.order(m.DropShard(5))
    assert rig.feed(WorkDone(dial.dial, 33)) == [fx.CloseLink(33)]


def test_only_a_shard_that_is_here_is_copied(rig):
    assert rig.order(replace(BACK_UP, shard=9)) == []
    assert "not served by server 1" in str(rig.answer)


# --- yielding ------------------------------------------------------------------------------------


def test_yield_asks_until_the_standby_has_everything(rig):
    rig.order(m.Yield(0, 5.0, True))
    assert isinstance(rig.answer, m.Ok)
    rig.reply("begin_yield")
    for _ in range(3):
        rig.reply("finish_yield", False)
        assert rig.posts == []
        assert rig.core.due == pytest.approx(rig.now + LOOK_S)
        rig.wait(LOOK_S)
    rig.reply("finish_yield", True)
    assert rig.told == []
    rig.reply("end_yield")
    assert rig.told == [m.Yielded(0)]
    assert rig.core.host.standbys == {0: rig.handles[0]}
    assert rig.core.due == float("inf")


def test_yielded_shard_that_does_not_stay_is_dropped_or_taken_back(rig):
    for number in (0, 1):
        rig.order(m.Yield(number, 5.0))
        rig.reply("begin_yield")
        rig.reply("finish_yield", True)
        rig.reply("end_yield")
    assert rig.told == [m.Yielded(0), m.Yielded(1)]
    assert rig.order(m.DropShard(0)) == [fx.StopShard(rig.handles[0])]
    rig.order(m.Promote(1, 4))
    rig.reply("promote")
    assert rig.core.host.primaries == {1: rig.handles[1]}
    assert rig.order(m.DropShard(1)) == []


def test_yield_that_takes_too_long_is_told_and_the_shard_serves_on(rig):
    rig.order(m.Yield(0, 5.0, True))
    rig.reply("begin_yield")
    rig.now += 5.1
    rig.reply("finish_yield", False)
    rig.reply("end_yield")
    (told,) = rig.told
    assert "did not acknowledge all pushes in 5 s" in told.text
    assert rig.core.host.primaries[0] == rig.handles[0]


@pytest.mark.parametrize("step", ["begin_yield", "finish_yield", "end_yield"])
def test_yield_that_a_shard_refuses_is_told(rig, step):
    rig.order(m.Yield(0, 5.0, True))
    for name in ("begin_yield", "finish_yield", "end_yield"):
        rig.reply(name, name != "begin_yield", SnailError("no") if name == step else None)
        if name == step == "begin_yield":
            break
    else:
        rig.settle()
    assert rig.told == [m.Yielded(0, "no")]


def test_shard_that_is_promoted_while_it_yields_says_nothing_of_that(rig):
    rig.order(m.Yield(0, 5.0, True))
    begun = rig.next_post("begin_yield")
    rig.order(m.Promote(0, 4))
    rig.reply("promote")
    rig.feed(WorkDone(begun.post))
    assert rig.wait(60) == []
    assert (rig.posts, rig.told) == ([], [])
    assert rig.core.host.primaries[0] == rig.handles[0]


def test_second_yield_does_not_hear_the_answers_of_the_first(rig):
    rig.order(m.Yield(0, 5.0, True))
    first = rig.next_post("begin_yield")
    rig.order(m.Yield(0, 5.0, True))
    rig.feed(WorkDone(first.post, error=ConnectionLost("late")))
    assert rig.told == []
    rig.reply("begin_yield")
    rig.reply("finish_yield", True)
    rig.reply("end_yield")
    assert rig.told == [m.Yielded(0)]


def test_shard_that_hangs_is_not_waited_for_for_ever(rig):
    rig.order(m.Yield(0, 5.0, True))
    post = rig.next_post("begin_yield")
    assert rig.wait(HANG_S) == [fx.Withdraw(post.post)]
    rig.feed(WorkDone(post.post, error=WaitTimeout("hangs")))
    assert rig.told == [m.Yielded(0, "hangs")]


# --- orders for rows -----------------------------------------------------------------------------


def test_order_goes_to_the_shards_that_are_here_and_waits_for_their_standbys(rig):
    rig.order(m.Fence(77, 3, 1, 2, [1, 0, 9]))
    assert [(post.shard, post.at_standby) for post in rig.posts] == [
        (rig.handles[1], True),
        (rig.handles[0], True),
    ]
    late, first = rig.posts
    rig.feed(WorkDone(first.post))
    assert rig.answer is None
    rig.feed(WorkDone(late.post))
    assert rig.answer == m.Report({"done": [1, 0]})


def test_order_waits_for_no_other_order(rig):
    rig.order(m.Fence(77, shards=[0]))
    rig.order(m.Fence(77, shards=[1]))
    rig.feed(WorkDone(rig.posts[1].post))
    assert rig.answer == m.Report({"done": [1]})


def test_shard_that_is_lost_is_left_out_and_other_errors_are_told(rig):
    rig.order(m.SetClock(3, True, [0, 1]))
    rig.reply("set_clock", error=ConnectionLost("gone"))
    rig.reply("set_clock")
    assert rig.answer == m.Report({"done": [1]})
    rig.order(m.CloseClock(3, [1], [0, 1]))
    rig.reply("close_clock", error=SnailError("not sealed"))
    rig.reply("close_clock", {"clock": 4})
    assert str(rig.answer) == "not sealed"
    rig.order(m.CloseClock(3, [1], [0]))
    rig.reply("close_clock", error=ValueError("of a user's class"))
    assert str(rig.answer) == 'failed: ValueError("of a user\'s class")'


def test_closed_clocks_are_reported_by_shard(rig):
    rig.order(m.CloseClock(3, [1], [0, 1]))
    rig.reply("close_clock", {"clock": 4})
    rig.reply("close_clock", {"clock": 5})
    assert rig.answer == m.Report({"done": [0, 1], "shards": [{"clock": 4}, {"clock": 5}]})


def test_tables_that_track_touches_expire_fragment_by_fragment(rig):
    tables = [[1, Table("kept", 4).to_dict()], [2, Table("old", 4, track="touch").to_dict()]]
    rig.order(m.MakeTables(tables))
    rig.settle()
    rig.order(m.Expire(9, 4, [0]))
    assert rig.next_post("set_tick").do.keywords == {"tick": 9}
    expired = [post.do.keywords for post in rig.posts]
    assert {one["number"] for one in expired} == {2}
    assert [one["fragment"] for one in expired] == list(range(FRAG_NUM // 2))


def test_server_tells_the_counters_of_its_shards_and_names_their_tables(rig):
    rig.order(m.MakeTables([[2, Table("old", 4).to_dict()]]))
    rig.settle()
    standby = hosted(rig)
    rig.order(m.Ask("stats"))
    assert [post.shard for post in rig.posts] == [*rig.handles, standby]
    rig.reply("stats", {"pulls": 1, "tables": {2: {"rows": 7}, 9: {"rows": 0}}})
    rig.reply("stats", error=ConnectionLost("dropped"))
    rig.reply("stats", {"pulls": 3})
    assert rig.answer.data == {
        "shards": [
            {
                "pulls": 1,
                "shard": 0,
                "tables": {2: {"rows": 7, "name": "old"}, 9: {"rows": 0, "name": "9"}},
            }
        ],
        "standbys": [{"pulls": 3, "shard": 5}],
        "peak_rss_mb": 5.0,
        "saved_bytes": 0,
    }
