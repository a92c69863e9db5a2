"""An order to several members, until all have carried it out.

    Broadcast(members, order) -> an `Order` to each -> answers, or notes that follow -> on_end, once

Owns which members have answered and which are waited for. A lost member counts as done, or ends the
broadcast (`loss`). The caller decides what the answers mean, and what a master that takes over
orders again.
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
    """One order and its answers; with no members it ends at once."""

    def __init__(
        self,
        out: Outbox,
        members: Iterable[Member],
        order: messages.Message,
        # called once: `error` says whether all members have done it
        on_end: Callable[[Broadcast, float], None],
        now: float,
        *,
        # "drop": a lost member counts as done; "fail": the broadcast fails; "wait": its owner will
        # `forget` it, and knows what follows
        loss: Loss,
        # the note that says that a member is done, where its answer only promises that
        expects: type[messages.Message] | None = None,
        refused: str = "",  # what a member that refuses cannot do, for `error`
    ) -> None:
        self.left = {member.number: member for member in members}
        self.answers: dict[int, Any] = {}  # answers by the member's number
        self.error = ""
        self._loss, self._expects, self._on_end = loss, expects, on_end
        self._refused = f" {refused}" if refused else ""
        self._over = False
        for member in self.left.values():
            out.order(member.peer, order, partial(self._answered, member))
        if not self.left:
            self._end("", now)

    @property
    def waits_for(self) -> str:
        return names_of([*self.left.values()])

    def heard(self, member: Member, note: messages.Message, now: float) -> None:
        """Take a member's report that it is done; a `text` in the note says why it is not."""
        if member.number not in self.left or self._over:
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
        """End without a call of `on_end`."""
        self._over = True

    def _answered(self, member: Member, answer: Answer, now: float) -> None:
        if self._over:
            return
        if isinstance(answer, ConnectionLost):
            self.lost(member, str(answer), now)
        elif isinstance(answer, messages.Message):
            if self._expects is None:
                self._note(member, answer, now)
        else:
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
