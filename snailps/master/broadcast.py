"""Tracks one order to several members until all have carried it out.

    Broadcast(members, order) -> an `Order` to each -> answers, or notes that follow -> on_end, once

Owns which members have answered and which it still waits for. Must not know what the answers mean;
nothing of it is in the journal, so its owner gives the order again after a takeover. Orders are
therefore idempotent. It has no time limit of its own: heartbeats find a dead member, and the owner
limits the whole step, for which it can name `waits_for`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

from snailps.errors import ConnectionLost
from snailps.master.effects import Outbox
from snailps.master.events import Answer
from snailps.master.member import Member, names_of
from snailps.transport import messages

Loss = Literal["drop", "fail", "wait"]


class Broadcast:
    """One order and its answers; without members it ends in the constructor."""

    def __init__(
        self,
        out: Outbox,
        members: Iterable[Member],
        order: messages.Message,
        # called once, with this broadcast: an empty `error` means that all members are done
        on_end: Callable[[Broadcast, float], None],
        now: float,
        *,
        # "drop": a lost member counts as done; "fail": the broadcast fails; "wait": the broadcast
        # stays open, as its owner will `forget` it and begin another
        loss: Loss,
        # the note by which a member reports that it is done, where the answer to the order only
        # means that it has begun (a checkpoint takes minutes); None: the answer is the report
        expects: type[messages.Message] | None = None,
        refused: str = "",  # what a member that refuses cannot do, for `error`
    ) -> None:
        self.left = {member.number: member for member in members}  # not done yet, by number
        self.answers: dict[int, Any] = {}  # the last message of each member that is done
        self.error = ""  # why the broadcast failed; names the member
        self._loss, self._expects, self._on_end = loss, expects, on_end
        self._refused = f" {refused}" if refused else ""
        self._over = False
        for member in self.left.values():
            out.order(member.peer, order, partial(self._answered, member))
        if not self.left:
            self._end("", now)

    @property
    def waits_for(self) -> str:
        """Names of the members that are not done, for a log line."""
        return names_of([*self.left.values()])

    def heard(self, member: Member, note: messages.Message, now: float) -> None:
        """Take a member's note that it is done; a `text` in the note is the reason it could not."""
        if member.number not in self.left or self._over or type(note) is not self._expects:
            return
        text = getattr(note, "text", "")
        if text:
            self._end(f"{member.name}: {text}", now)
        else:
            self._note(member, note, now)

    def lost(self, member: Member, why: str, now: float) -> None:
        if self._over or member.number not in self.left or self._loss == "wait":
            return
        if self._loss == "fail":
            self._end(f"{member.name}: it is lost: {why}", now)
        else:
            self._note(member, None, now)

    def forget(self) -> None:
        """End without a call of `on_end`; answers that still arrive are ignored."""
        self._over = True

    def _answered(self, member: Member, answer: Answer, now: float) -> None:
        if self._over:
            return
        if isinstance(answer, ConnectionLost):
            self.lost(member, str(answer), now)
        elif isinstance(answer, messages.Message):
            if self._expects is None:
                self._note(member, answer, now)
        else:  # one refusal is enough: the order has failed as a whole
            self._end(f"{member.name}{self._refused}: {answer}", now)

    def _note(self, member: Member, answer: messages.Message | None, now: float) -> None:
        if self.left.pop(member.number, None) is not None and answer is not None:
            self.answers[member.number] = answer
        if not self.left:
            self._end("", now)

    def _end(self, error: str, now: float) -> None:
        if not self._over:
            self._over, self.error = True, error
            self._on_end(self, now)
