"""Owns the table of what is done when a member is lost, fails or is asked to leave.

    Case: cause, moment, role, joined, stay, given_up, ends -> decide -> Outcome

One row of `RULES` takes each case, whatever the order of the rows: tests/unit/test_departures.py
counts them, and plays each. docs/design/members.md shows them. Must not know members:
`departure_cases.py` makes the case of one, and `departures.py` carries the outcome out.
"""

from __future__ import annotations

import enum
from collections.abc import Set
from typing import Any, NamedTuple

from snailps.master.phases import Stay


class Cause(enum.Enum):
    LOST = "lost"  # its connection is closed, it is silent, or the master expels it
    FAILED = "failed"  # a worker reports that its code or its settings fail
    ASKED = "asked"  # a server or worker has got SIGTERM


class Moment(enum.Enum):
    FORMING = "forming"  # not every member has acknowledged the first route
    RETURNING = "returning"  # members of an earlier master come back
    FORMED = "formed"  # no worker is at a block: no job, or it is prepared, restored or exported
    AT_WORK = "at work"  # the survey, the loading or the training
    STOPPING = "stopping"  # all members have the order to end


class Ends(enum.Enum):
    NOTHING = "nothing"  # others do its work, or another one is waited for
    JOB = "job"  # the cluster outlives its jobs
    CLUSTER = "cluster"  # the job too, and what no checkpoint has


class Outcome(enum.Enum):
    IGNORED = "ignored"  # nothing: its end was handled before
    NOTED = "noted"  # nothing else: the cluster ends, and needs no more of it
    MISSED = "missed"  # what it had is in the reports of the others: judged when all are back
    STILL_MISSED = "still missed"  # the same: heartbeats may come and go, though it does not
    SENT_AWAY = "sent away"  # fenced: its job has failed already
    DRIVER_GONE = "driver gone"  # fenced if it may have pushed; its job or session may end
    WAITED_FOR = "waited for"  # the cluster forms on, with another one in its place
    LEFT_FORMING = "left forming"  # the same, and it is no loss
    UNFORMED = "unformed"  # the cluster fails: no process takes its place
    NEWCOMER_GONE = "newcomer gone"  # nothing else: it had no block and no shard
    WORKER_LEFT = "worker left"  # fenced, then its blocks go to others
    WORKER_SPARED = "worker spared"  # the same, with a warning: the training ends without it
    WORKER_LOST = "worker lost"  # the same; a block that loses many workers ends the job
    SERVER_LEFT = "server left"  # others have its shards
    SERVER_LOST = "server lost"  # its standbys are promoted; if one is lacking, rows are lost
    JOB_ENDED = "job ended"  # fenced; the job fails, and the session goes on
    CLUSTER_ENDED = "cluster ended"  # the verdict says where a new run continues
    STOPPED = "stopped"  # ordered to end, and fenced; the others go on
    JOB_FAILED = "job failed"  # another worker would fail likewise
    DRAINED = "drained"  # ordered to end once its shards have moved
    UNFORMED_AS_ASKED = "unformed as asked"  # the cluster fails: no process takes its place
    SERVER_LET_GO = "server let go"  # ordered to end: it has no rows
    WORKER_LET_GO = "worker let go"  # ordered to end, and gets no block
    WORKER_ENDS_BLOCK = "worker ends block"  # it gets no other block, and says goodbye


class Case(NamedTuple):
    """A member that goes. `Departures._case` makes it."""

    cause: Cause
    moment: Moment
    role: str
    joined: bool  # it may hold rows or blocks: `Reach.joined`
    stay: Stay
    given_up: bool  # the job ends without the blocks that it has not finished: `Work.GIVEN_UP`
    ends: Ends  # what cannot go on without it


class DepartureRule(NamedTuple):
    """The values of a case that a row takes, by field; an empty set takes any."""

    cause: Set[Cause]
    moment: Set[Moment]
    role: Set[str]
    joined: Set[bool]
    stay: Set[Stay]
    given_up: Set[bool]
    ends: Set[Ends]
    outcome: Outcome

    def takes(self, case: Case) -> bool:
        columns: tuple[Set[Any], ...] = self[:-1]
        return all(not taken or value in taken for taken, value in zip(columns, case, strict=True))


_ANY: Set[Any] = frozenset()
_C, _M, _S, _E, _O, _R = Cause, Moment, Stay, Ends, Outcome, DepartureRule
_LOST, _FAILED, _ASKED = {_C.LOST}, {_C.FAILED}, {_C.ASKED}
_FORMING, _RETURNING, _STOPPING = {_M.FORMING}, {_M.RETURNING}, {_M.STOPPING}
_AT_WORK, _UP = {_M.AT_WORK}, {_M.FORMED, _M.AT_WORK}
_RUNNING, _LATER = set(Moment) - _STOPPING, set(Moment) - _FORMING
_NO_WORK = set(Moment) - _AT_WORK
_DECIDES = _UP | _FORMING  # while members return a loss is only noted
_WORKER, _SERVER, _DRIVER, _NODE = {"worker"}, {"server"}, {"driver"}, {"worker", "server"}
_YES, _NO = {True}, {False}
_GONE, _SENT, _LEFT, _MISSED = {_S.GONE}, {_S.SENT_AWAY}, {_S.LEFT}, {_S.MISSED}
_THERE = set(Stay) - _GONE
_NOT_SENT, _NOT_MISSED = _THERE - _SENT, _THERE - _MISSED
_SUDDEN = _NOT_SENT - _LEFT  # also after a goodbye for which it was not asked
_NOTHING, _JOB, _CLUSTER, _EITHER = {_E.NOTHING}, {_E.JOB}, {_E.CLUSTER}, {_E.JOB, _E.CLUSTER}

# A server never ends its job alone, as rows go with it. A newcomer ends nothing, whatever
# `on_node_loss` says.
RULES = (
    # cause     moment      role     joined  stay         given up  ends      what is done
    _R(_ANY,    _ANY,       _ANY,    _ANY,   _GONE,       _ANY,     _ANY,     _O.IGNORED),

    _R(_LOST,   _STOPPING,  _ANY,    _ANY,   _THERE,      _ANY,     _ANY,     _O.NOTED),
    _R(_LOST,   _RUNNING,   _DRIVER, _ANY,   _THERE,      _ANY,     _ANY,     _O.DRIVER_GONE),
    _R(_LOST,   _RETURNING, _NODE,   _ANY,   _NOT_MISSED, _ANY,     _ANY,     _O.MISSED),
    _R(_LOST,   _RETURNING, _NODE,   _ANY,   _MISSED,     _ANY,     _ANY,     _O.STILL_MISSED),
    _R(_LOST,   _DECIDES,   _NODE,   _ANY,   _SENT,       _ANY,     _ANY,     _O.SENT_AWAY),
    _R(_LOST,   _FORMING,   _NODE,   _ANY,   _LEFT,       _ANY,     _ANY,     _O.LEFT_FORMING),
    _R(_LOST,   _FORMING,   _NODE,   _ANY,   _SUDDEN,     _ANY,     _NOTHING, _O.WAITED_FOR),
    _R(_LOST,   _FORMING,   _NODE,   _ANY,   _SUDDEN,     _ANY,     _EITHER,  _O.UNFORMED),
    _R(_LOST,   _UP,        _NODE,   _NO,    _NOT_SENT,   _ANY,     _ANY,     _O.NEWCOMER_GONE),
    _R(_LOST,   _UP,        _WORKER, _YES,   _LEFT,       _ANY,     _ANY,     _O.WORKER_LEFT),
    _R(_LOST,   _UP,        _WORKER, _YES,   _SUDDEN,     _YES,     _ANY,     _O.WORKER_SPARED),
    _R(_LOST,   _UP,        _WORKER, _YES,   _SUDDEN,     _NO,      _NOTHING, _O.WORKER_LOST),
    _R(_LOST,   _UP,        _WORKER, _YES,   _SUDDEN,     _NO,      _JOB,     _O.JOB_ENDED),
    _R(_LOST,   _UP,        _WORKER, _YES,   _SUDDEN,     _NO,      _CLUSTER, _O.CLUSTER_ENDED),
    _R(_LOST,   _UP,        _SERVER, _YES,   _LEFT,       _ANY,     _ANY,     _O.SERVER_LEFT),
    _R(_LOST,   _UP,        _SERVER, _YES,   _SUDDEN,     _ANY,     _NOTHING, _O.SERVER_LOST),
    _R(_LOST,   _UP,        _SERVER, _YES,   _SUDDEN,     _ANY,     _EITHER,  _O.CLUSTER_ENDED),

    _R(_FAILED, _ANY,       _ANY,    _ANY,   _SENT,       _ANY,     _ANY,     _O.IGNORED),
    _R(_FAILED, _ANY,       _ANY,    _ANY,   _NOT_SENT,   _ANY,     _NOTHING, _O.STOPPED),
    _R(_FAILED, _ANY,       _ANY,    _ANY,   _NOT_SENT,   _ANY,     _EITHER,  _O.JOB_FAILED),

    _R(_ASKED,  _FORMING,   _SERVER, _ANY,   _THERE,      _ANY,     _NOTHING, _O.SERVER_LET_GO),
    _R(_ASKED,  _FORMING,   _SERVER, _ANY,   _THERE,      _ANY,     _EITHER,  _O.UNFORMED_AS_ASKED),
    _R(_ASKED,  _LATER,     _SERVER, _NO,    _THERE,      _ANY,     _ANY,     _O.SERVER_LET_GO),
    _R(_ASKED,  _LATER,     _SERVER, _YES,   _THERE,      _ANY,     _ANY,     _O.DRAINED),
    _R(_ASKED,  _AT_WORK,   _WORKER, _ANY,   _THERE,      _ANY,     _ANY,     _O.WORKER_ENDS_BLOCK),
    _R(_ASKED,  _NO_WORK,   _WORKER, _ANY,   _THERE,      _ANY,     _ANY,     _O.WORKER_LET_GO),
)  # fmt: skip


def decide(case: Case) -> Outcome:
    return next(rule.outcome for rule in RULES if rule.takes(case))
