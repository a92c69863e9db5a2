"""Decides how long the end of a training waits for workers that are not finished.

    reports, bytes moved -> progress      quiet for too long -> give_up(worker)

What a worker learned from its last blocks may take minutes to push, so bytes moved count as
progress. The bytes of any late worker count for all, because they may wait for each other.

    has pushed nothing of its last blocks   given up after `DROP_S` without progress: the model is
                                            as if it had not had them
    has pushed a part                       waited for until its own requests must have failed:
                                            without the rest the model would be torn

The worker's latest answer decides between the two, because its pushes may begin at any time. `now`
is monotonic seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from snailps.master.effects import Outbox
from snailps.master.events import Answer
from snailps.master.member import Member, names_of
from snailps.transport import messages

log = logging.getLogger(__name__)

DROP_S = 20.0
"""Seconds without progress after which a worker that has pushed nothing is given up."""
HALF_PUSHED_S = 60.0
"""Seconds, beyond `DROP_S` and the limit of a request, after which any late worker is given up."""
ASK_S = 1.0
"""Seconds between two rounds of asking workers for their progress."""
ASKED_MAX = 50
"""Workers that are asked at once."""
NOTICE_S = 10.0
"""Seconds between two log lines that name the late workers."""


class LateWorkers:
    """The workers that are late at the end of a training; `give_up(member, why, now)` is called
    once for each that is given up."""

    def __init__(
        self, out: Outbox, give_up: Callable[[Member, str, float], None], request_s: float
    ) -> None:
        self._out, self._give_up = out, give_up
        self._half_pushed_s = DROP_S + HALF_PUSHED_S + request_s
        self._since = 0.0  # when any of them made progress last
        self._ask_at = self._notice_at = 0.0
        self._next = 0  # the worker to ask first, by number
        self._late: dict[int, Member] = {}
        self._staged = False
        self._named: set[int] = set()  # workers that the log has named as half pushed
        self._moved: dict[int, int] = {}  # bytes that each worker has sent, as last reported

    def progress(self, now: float) -> None:
        """A worker has reported something, or the wait begins."""
        self._since = now

    def stood_still(self, seconds: float, now: float) -> None:
        """The master was stopped, and the workers perhaps with it."""
        self._since = min(now, self._since + seconds)

    def forget(self) -> None:
        """The job is over: answers that are under way do not matter."""
        self._late = {}

    def quiet(self, now: float) -> bool:
        """Whether `DROP_S` have passed without progress."""
        return now - self._since >= DROP_S

    def step(self, late: Sequence[Member], now: float, *, staged: bool = False) -> None:
        """Ask some of the late workers for their progress, and give all of them up once they have
        been quiet for longer than any of their requests may take. `staged`: shards keep pushes
        apart until a clock is complete, so a part of a block can tear nothing."""
        self._late, self._staged = {member.number: member for member in late}, staged
        if not late or now < self._ask_at:
            return
        self._ask_at = now + ASK_S
        if now - self._since >= self._half_pushed_s:
            why = f"not a byte in {now - self._since:.0f} s, and a part of its last blocks pushed"
            for member in late:
                self._end(member, why, now)
            return
        self._note(now)
        asked = sorted(late, key=lambda member: (member.number < self._next, member.number))
        for member in asked[:ASKED_MAX]:
            self._next = member.number + 1
            self._out.order(member.peer, messages.Ask("stats"), partial(self._heard, member))

    def _note(self, now: float) -> None:
        """Log from time to time whom the end waits for."""
        if now < self._notice_at:
            return
        if self._notice_at:
            moved = sum(self._moved.get(number, 0) for number in self._late)
            log.info(
                "the training has ended; waiting for %s to finish and push the last blocks, "
                "%.1f MB moved so far. Interrupt again to end without a model",
                names_of([*self._late.values()]), moved / 1e6,
            )  # fmt: skip
        self._notice_at = now + NOTICE_S

    def _heard(self, member: Member, answer: Answer, now: float) -> None:
        if self._late.get(member.number) is not member or not isinstance(answer, messages.Report):
            return
        moved = int(answer.data.get("moved_bytes", 0))
        if moved != self._moved.get(member.number):
            self._moved[member.number] = moved
            self.progress(now)
        elif not self.quiet(now):
            return
        elif answer.data.get("half_pushed") and not self._staged:
            if member.number not in self._named:
                self._named.add(member.number)
                log.warning(
                    "%s has pushed a part of its last blocks, and nothing for %.0f s: waiting up "
                    "to %.0f s for the rest",
                    member.name, now - self._since, self._half_pushed_s,
                )  # fmt: skip
        else:
            why = f"{now - self._since:.0f} s at its last blocks, and none of them pushed"
            self._end(member, why, now)

    def _end(self, member: Member, why: str, now: float) -> None:
        del self._late[member.number]
        self._give_up(member, why, now)
