"""What is done when a member goes: the table of `departure_rules.py`, each of its cells played.

A cell is a cause, a moment, a role, whether the member has joined, and whether it stays.  Each is
brought about in a `World`, or `NEVER` says why no cluster comes to it.
"""

import itertools
from collections import Counter
from typing import NamedTuple

import pytest
from master_world import World, rejoin, takes_over

from snailps.master import effects, events
from snailps.master.departure_rules import RULES, Case, Cause, Ends, Moment, Outcome, decide
from snailps.master.phases import ClusterPhase, Stay
from snailps.transport import messages as m

ROLES = ("worker", "server", "driver")
C, M, S, O = Cause, Moment, Stay, Outcome  # noqa: E741
UP = (M.FORMED, M.AT_WORK)


class Cell(NamedTuple):
    cause: Cause
    moment: Moment
    role: str
    joined: bool
    stay: Stay

    def __str__(self):
        joined = "joined" if self.joined else "newcomer"
        parts = self.cause.value, self.moment.name, joined, self.role, self.stay.name
        return "-".join(parts).lower()


CELLS = [Cell(*values) for values in itertools.product(C, M, ROLES, (True, False), S)]
NEVER = {
    "only workers send Failed, and no driver Leaving": lambda c: (
        c.role not in {C.LOST: ROLES, C.FAILED: ROLES[:1], C.ASKED: ROLES[:2]}[c.cause]
    ),
    "notes of a member that is gone are dropped": lambda c: (
        c.cause is not C.LOST and c.stay is S.GONE
    ),
    "notes wait until all members are back": lambda c: (
        c.cause is not C.LOST and c.moment is M.RETURNING
    ),
    "Bye is the last message of a member": lambda c: (
        c.cause is not C.LOST and c.stay in (S.LEFT, S.ENDED)
    ),
    "a member that is missed has no connection": lambda c: (
        c.stay is S.MISSED and (c.cause is not C.LOST or c.moment is M.STOPPING)
    ),
    "members are missed while an earlier master's return, and judged next": lambda c: (
        c.stay is S.MISSED and c.moment is M.FORMING
    ),
    "nobody asks a member to leave that has the order to end": lambda c: (
        c.cause is C.ASKED and c.moment is M.STOPPING
    ),
    "all have the order to end, or none": lambda c: (
        (c.stay is S.STOPPING and c.moment is not M.STOPPING)
        or (c.stay in (S.HERE, S.LEAVING, S.SENT_AWAY) and c.moment is M.STOPPING)
    ),
    "a driver says goodbye, or does not": lambda c: (
        c.role == "driver" and c.stay in (S.LEAVING, S.LEFT, S.SENT_AWAY, S.MISSED)
    ),
    "workers of a failed job are sent away, and no job begins before they are gone": lambda c: (
        c.stay is S.SENT_AWAY and (c.role != "worker" or c.moment is not M.FORMED)
    ),
    "no goodbye and no wish is taken before all are back": lambda c: (
        c.moment is M.RETURNING
        and (c.stay in (S.LEFT, S.ENDED) or (c.stay is S.LEAVING and c.role != "server"))
    ),
    "the journal has who is drained, who has joined therefore": lambda c: (
        c.moment is M.RETURNING and c.stay is S.LEAVING and not c.joined
    ),
    "only a worker whose failure concerns itself is gone before its connection": lambda c: (
        c.stay is S.GONE and (c.role != "worker" or c.moment in (M.FORMING, M.RETURNING))
    ),
}  # fmt: skip
"""Cells that no cluster comes to, and why."""


class Look(NamedTuple):
    """What is seen of an outcome."""

    text: str  # in an event, a line or the verdict; empty: nothing is reported
    removed: bool  # from the members
    fenced: bool
    phase: ClusterPhase | None = None  # None: as before


FAILS = ClusterPhase.STOPPING
LOOKS = {
    O.IGNORED: Look("", False, False),
    O.NOTED: Look("", False, False),
    O.MISSED: Look("is missed", False, False),
    O.STILL_MISSED: Look("", False, False),
    O.SENT_AWAY: Look("", True, True),
    O.DRIVER_GONE: Look("", True, False),
    O.WAITED_FOR: Look("was lost (closed); another one is waited for", True, False),
    O.LEFT_FORMING: Look("left as asked; another one is waited for", True, False),
    O.UNFORMED: Look("is lost while the cluster forms: closed", False, False, FAILS),
    O.NEWCOMER_GONE: Look("was lost while it joined (closed)", True, False),
    O.WORKER_LEFT: Look("left; the others go on", True, True),
    O.WORKER_SPARED: Look("is given up as the training ends", True, True),
    O.WORKER_LOST: Look("was lost (closed); the others go on", True, True),
    O.SERVER_LEFT: Look("left; other servers have its shards", True, False),
    O.SERVER_LOST: Look("was lost (closed); ", True, False),
    O.JOB_ENDED: Look(". Its own log may say more; ", True, True),
    O.CLUSTER_ENDED: Look("on_node_loss is 'stop'", False, False, FAILS),
    O.STOPPED: Look("is stopped, the others go on: failed: a bug", True, True),
    O.JOB_FAILED: Look("failed: a bug", False, False),
    O.DRAINED: Look("", False, False),
    O.UNFORMED_AS_ASKED: Look("was asked to leave (SIGTERM) while the", False, False, FAILS),
    O.SERVER_LET_GO: Look("", False, False),
    O.WORKER_LET_GO: Look("", False, False),
    O.WORKER_ENDS_BLOCK: Look("", False, False),
}


def reasons(cell):
    return [why for why, is_never in NEVER.items() if is_never(cell)]


def cases(cause):
    roles = [role for role in ROLES if not reasons(Cell(cause, M.FORMED, role, True, S.HERE))]
    yes_no = (True, False)
    return itertools.starmap(Case, itertools.product([cause], M, roles, yes_no, S, yes_no, Ends))


@pytest.mark.parametrize("cause", Cause, ids=lambda cause: cause.value)
def test_one_row_takes_each_case(cause):
    takers = Counter(sum(rule.takes(case) for rule in RULES) for case in cases(cause))
    assert set(takers) == {1}


def test_each_row_takes_a_case_that_a_cluster_comes_to():
    possible = {cell for cell in CELLS if not reasons(cell)}
    for rule in RULES:
        assert any(
            rule.takes(case) and Cell(*case[:5]) in possible
            for case in itertools.chain.from_iterable(map(cases, C))
        ), rule


@pytest.fixture
def judged(monkeypatch):
    """Cases that were decided, with their outcomes, in order."""
    judged = []

    def noted(case):
        judged.append((case, decide(case)))
        return judged[-1][1]

    monkeypatch.setattr("snailps.master.departure_cases.decide", noted)
    return judged


class Place(World):
    """A world whose servers can have standbys."""

    def does(self, order):
        if isinstance(order, m.HostStandby):
            return m.Report({"endpoint": ["h", 9000 + order.shard]})
        return super().does(order)

    def back_up(self):
        for order in self.orders(m.BackUp):
            self.note(order.peer, m.Backed(order.message.shard, order.message.copy))


class Play:
    """A cluster of two servers and two workers at a cell, and the member that goes."""

    def __init__(self, make_job, cell, **settings):
        self.cell, self.make_job = cell, make_job
        self.settings = {"expected_node_num": 4, "expected_servers": 2, **settings}
        if cell.role == "driver" or cell.moment is M.FORMED:
            self.settings = {"session": True, "lasting": True, **self.settings}
        self.is_session = self.settings.get("session", False)
        self.world = Place(self.job, **self.settings)
        if cell.moment is M.FORMING:
            self.form_partly()
        else:
            self.form()
        if cell.moment is M.RETURNING or cell.stay is S.MISSED:
            self.take_over()
        elif cell.moment is not M.FORMING:
            if self.is_session and cell.moment is M.AT_WORK:
                self.submit()
            self.choose(joins=self.is_other)
        getattr(self, f"becomes_{cell.stay.name.lower()}", lambda: None)()
        if cell.moment is M.STOPPING:
            self.world.core.lifecycle.stop(0, "")
            self.world.tick()

    @property
    def job(self):
        return None if self.is_session else self.make_job()

    @property
    def is_other(self):
        """Whether the member is none of the four: only a newcomer is alone with its failure."""
        return self.cell.role == "driver" or not self.cell.joined or self.cell.stay is S.GONE

    # --- moments

    def form_partly(self):
        self.world.obey = False
        roles = ["server", "server", "worker", *["worker"] * self.cell.joined]
        self.peers = {self.world.join(role): role for role in roles}
        self.choose(joins=self.cell.role == "driver")
        self.world.tick(times=2)
        for order in self.world.orders(m.TakeRoute):
            if order.peer == self.peer:
                self.world.handle(events.Answered(order.number, m.Ok()))

    def form(self):
        roles = ("server", "server", "worker", "worker")
        self.peers = {self.world.join(role): role for role in roles}
        self.world.tick(times=4)
        self.world.back_up()
        self.world.tick()

    def submit(self):
        self.world.ask(self.world.join("driver"), m.Submit(self.make_job.values))
        self.world.tick()

    def take_over(self):
        if self.cell.stay is S.LEAVING:
            self.world.call(1, m.Drain(2))
        before = {peer: role for peer, role in self.peers.items() if role == self.cell.role}
        # A slow start: all are back, and the job is not yet.
        slow = self.cell.stay is S.LEAVING
        self.world = takes_over(self.world, self.job, Place, slow=slow, **self.settings)
        self.world.last_peer = 10
        if slow:
            self.return_all()
        elif not self.is_other:
            rejoin(self.world, max(before), servers=2, **self.state)
        self.choose(joins=self.is_other)

    @property
    def state(self):
        return {"started": not self.is_session}

    def return_all(self):
        for peer in range(1, 5):
            if self.world.core.members.all[peer].away:
                rejoin(self.world, peer, servers=2, **self.state)
        self.world.tick(times=4)

    def choose(self, joins):
        """The member: one of the four, or another that joins; it gets no answer to its route if it
        is to remain a newcomer."""
        if joins:
            is_formed = self.cell.moment is not M.FORMING
            self.world.obey = is_formed and self.cell.joined
            self.peers[self.world.join(self.cell.role)] = self.cell.role
            self.world.tick(times=2)
            self.world.obey = is_formed
        self.peer = max(peer for peer, role in self.peers.items() if role == self.cell.role)
        self.member = self.world.core.members.peers[self.peer]

    # --- whether it stays

    def becomes_leaving(self):
        if self.cell.moment is not M.RETURNING:
            self.world.note(self.peer, m.Leaving("SIGTERM"))

    def becomes_left(self):
        self.becomes_leaving()
        self.world.note(self.peer, m.Bye({}))

    def becomes_ended(self):
        self.world.note(self.peer, m.Bye({}))

    def becomes_sent_away(self):
        self.submit()
        self.world.note(3, m.Failed("a bug"))

    def becomes_gone(self):
        self.world.note(self.peer, m.Failed("a bug"))

    def becomes_missed(self):
        self.world.handle(events.Gone(self.peer, "closed"))

    # --- how it goes

    def goes(self):
        if self.cell.cause is C.FAILED:
            self.world.note(self.peer, m.Failed("a bug"))
        elif self.cell.cause is C.ASKED:
            self.world.note(self.peer, m.Leaving("SIGTERM"))
        elif self.cell.stay is not S.MISSED:
            self.world.handle(events.Gone(self.peer, "closed"))
        elif self.cell.moment is M.RETURNING:
            number = self.member.number
            self.world.handle(events.Heartbeats({number: 99.0}, {number}))
        else:
            self.return_all()


def played(play, judged):
    """The outcome of a play, checked by what is seen of it."""
    core, member, cell = play.world.core, play.member, play.cell
    assert member.role == cell.role
    assert member.stay is cell.stay
    assert cell.role == "driver" or member.joined == cell.joined
    judged.clear()
    seen, fences = len(play.world.effects), len(play.world.orders(m.Fence))
    was_here = member.number in core.members.all
    play.goes()
    (outcome,) = [
        outcome for case, outcome in judged if case[:3] == cell[:3] and case.stay is cell.stay
    ]
    look, new = LOOKS[outcome], play.world.effects[seen:]
    texts = [e.text for e in new if isinstance(e, effects.Say | effects.StatusEvent)]
    if cell.moment is not M.STOPPING:
        assert any(look.text in text for text in (*texts, core.lifecycle.verdict))
    assert look.removed == (was_here and member.number not in core.members.all)
    fenced = {order.message.incarnation for order in play.world.orders(m.Fence)[fences:]}
    assert look.fenced == (member.number in fenced)
    if look.phase is not None:
        assert core.phase is look.phase
    return outcome


ANY_STAY = "here leaving sent_away stopping left ended missed gone"
SUDDEN = "here leaving ended missed"
BY_HAND = {
    # cause, moments, roles, joined: outcome by stay, where on_node_loss is "recover", others do the
    # work, and nobody is given up.
    ("lost", "forming", "worker server", "yes no"): {SUDDEN: O.WAITED_FOR, "left": O.LEFT_FORMING},
    ("lost", "returning", "worker server", "yes no"): {
        "here leaving": O.MISSED, "missed": O.STILL_MISSED,
    },
    ("lost", "formed at_work", "worker", "yes"): {
        SUDDEN: O.WORKER_LOST, "left": O.WORKER_LEFT, "sent_away": O.SENT_AWAY, "gone": O.IGNORED,
    },
    ("lost", "formed at_work", "server", "yes"): {SUDDEN: O.SERVER_LOST, "left": O.SERVER_LEFT},
    ("lost", "formed at_work", "worker server", "no"): {
        f"{SUDDEN} left": O.NEWCOMER_GONE, "sent_away": O.SENT_AWAY, "gone": O.IGNORED,
    },
    ("lost", "forming returning formed at_work", "driver", "yes no"): {
        "here ended": O.DRIVER_GONE,
    },
    ("lost", "stopping", "worker server driver", "yes no"): {
        "stopping left ended": O.NOTED, "gone": O.IGNORED,
    },
    ("failed", "forming", "worker", "yes no"): {ANY_STAY: O.JOB_FAILED},
    ("failed", "formed", "worker", "yes no"): {
        "here leaving": O.STOPPED, "sent_away": O.IGNORED,
    },
    ("failed", "at_work stopping", "worker", "yes"): {ANY_STAY: O.JOB_FAILED},
    ("failed", "at_work stopping", "worker", "no"): {ANY_STAY: O.STOPPED},
    ("asked", "forming", "server", "yes no"): {ANY_STAY: O.SERVER_LET_GO},
    ("asked", "formed at_work", "server", "no"): {ANY_STAY: O.SERVER_LET_GO},
    ("asked", "formed at_work", "server", "yes"): {ANY_STAY: O.DRAINED},
    ("asked", "forming formed", "worker", "yes no"): {ANY_STAY: O.WORKER_LET_GO},
    ("asked", "at_work", "worker", "yes no"): {ANY_STAY: O.WORKER_ENDS_BLOCK},
}  # fmt: skip


def by_hand(cell):
    """The outcome of a cell, written down beside the table."""
    cause, moment, stay = (value.name.lower() for value in (cell.cause, cell.moment, cell.stay))
    key = cause, moment, cell.role, "yes" if cell.joined else "no"
    (stays,) = [
        stays
        for words, stays in BY_HAND.items()
        if all(word in several.split() for word, several in zip(key, words, strict=True))
    ]
    (outcome,) = [outcome for words, outcome in stays.items() if stay in words.split()]
    return outcome


@pytest.mark.parametrize("cell", [cell for cell in CELLS if not reasons(cell)], ids=str)
def test_cell_is_played(make_job, judged, cell):
    assert played(Play(make_job, cell), judged) is by_hand(cell)


STOP = {"on_node_loss": "stop"}


@pytest.mark.parametrize(
    ("cell", "settings", "outcome", "text"),
    [
        (Cell(C.LOST, M.FORMING, "server", False, S.HERE), STOP, O.UNFORMED, "is 'stop'"),
        (
            Cell(C.LOST, M.FORMING, "worker", True, S.HERE),
            {"session": True},
            O.UNFORMED,
            "the processes of a session are not replaced",
        ),
        (Cell(C.ASKED, M.FORMING, "server", True, S.HERE), STOP, O.UNFORMED_AS_ASKED, "is 'stop'"),
        (
            Cell(C.LOST, M.AT_WORK, "worker", True, S.LEAVING),
            STOP,
            O.CLUSTER_ENDED,
            "was asked to leave, and is gone. Its own log may say more; on_node_loss is 'stop'",
        ),
        (
            Cell(C.LOST, M.AT_WORK, "server", True, S.HERE),
            STOP,
            O.CLUSTER_ENDED,
            "is lost: closed. Its own log may say more; on_node_loss is 'stop'",
        ),
        (Cell(C.LOST, M.AT_WORK, "worker", False, S.HERE), STOP, O.NEWCOMER_GONE, ""),
        (Cell(C.LOST, M.FORMED, "worker", True, S.ENDED), STOP, O.JOB_ENDED, "is 'stop'"),
    ],
    ids=lambda value: str(value) if isinstance(value, Cell) else "",
)  # fmt: skip
def test_cluster_that_cannot_go_on_without_a_member_says_why(
    make_job, judged, cell, settings, outcome, text
):
    play = Play(make_job, cell, **settings)
    assert played(play, judged) is outcome
    said = [e.text for e in play.world.effects if isinstance(e, effects.Say)]
    assert any(text in line for line in (*said, play.world.core.lifecycle.verdict))


def test_last_worker_of_a_session_is_the_end_of_its_job_alone(make_job, judged):
    play = Play(make_job, Cell(C.LOST, M.AT_WORK, "worker", True, S.HERE), session=True)
    play.world.handle(events.Gone(3, "closed"))
    assert play.world.core.job_controller.job is not None
    assert played(play, judged) is O.JOB_ENDED
    assert play.world.core.job_controller.present.failure
    assert play.world.core.phase is ClusterPhase.FORMED


def test_worker_that_the_training_ends_without_is_spared_a_search_for_its_block(make_job, judged):
    play = Play(make_job, Cell(C.LOST, M.AT_WORK, "worker", True, S.HERE), **STOP)
    play.member.given_up(1)
    assert played(play, judged) is O.WORKER_SPARED
    assert play.world.core.phase is ClusterPhase.FORMED
