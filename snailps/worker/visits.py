"""The visiting parts of a tenancy, as its model borrows them from the master.

    Visits.borrow -> Borrow -> Borrowed -> part        Visits.give_back -> GiveBack

Owns whether the tenancy may borrow, and has had all; `resume_state.py` has what it holds, for a
master that takes over. Must not know the connection: `process.py` passes `ask` and `note`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from snailps.errors import MisuseError
from snailps.transport import messages
from snailps.worker.resume_state import ResumeState
from snailps.worker.user_code import numbers_of

Heard = Callable[[messages.Message], None]
Ask = Callable[[messages.Message, float | None, Heard], messages.Message]


class TenancyVisits:
    """The visits of one tenancy; implements `api.rotation.Visits`."""

    def __init__(
        self,
        number: int,
        ask: Ask,  # ``ask(message, timeout_s, heard)``: a call to the master, from any thread
        note: Callable[[messages.Message], None],  # sends a note to the master
        stand: ResumeState,
    ) -> None:
        self._number, self._ask, self._note, self._stand = number, ask, note, stand
        self._training = self._over = False
        self._since = 0.0
        self.cut = False
        """The training ends before the tenancy has had all parts."""

    def begin(self) -> None:
        self._training, self._since = True, time.monotonic()

    def end(self) -> None:
        self._training = False

    def borrow(self) -> int | None:
        """As of `api.rotation.Visits`; MisuseError while the tenancy is not being trained."""
        if not self._training:
            raise MisuseError("visits.borrow() outside train(): another tenancy is trained first")
        if self._over:
            return None
        answer = self._ask(messages.Borrow(self._number), None, self._heard)
        assert isinstance(answer, messages.Borrowed)
        if answer.part >= 0:
            return answer.part
        self._over = True
        self.cut = self.cut or answer.ends
        return None

    def _heard(self, answer: messages.Message) -> None:
        if isinstance(answer, messages.Borrowed) and answer.part >= 0:
            self._stand.borrowed(self._number, answer.part)

    def give_back(self, part: int, figures: Mapping[str, float], *, settled: bool = False) -> None:
        metrics = numbers_of(figures)
        if not self._stand.gave_back(self._number, part):
            raise MisuseError(f"visits.give_back({part}): this tenancy does not hold that part")
        units = int(metrics.pop("units", metrics.get("examples", 0)))
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        self._note(messages.GiveBack(self._number, part, units, seconds, metrics, settled))
