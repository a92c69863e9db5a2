"""The output partitions of a lease, as its model checks them out from the master.

    Checkouts.check_out -> Borrow -> Borrowed -> number     Checkouts.check_in -> GiveBack

Owns whether the lease may check out, and has had all; `resume_state.py` has what it holds, for a
master that takes over. Must not know the connection: `leases.py` passes `ask` and `note`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from snailps.errors import ClusterError, MisuseError
from snailps.transport import messages
from snailps.worker.resume_state import ResumeState
from snailps.worker.user_code import numbers_of

AGAIN_MAX = 8
"""Times that a lease encodes one block again: no help where a server loses what it acknowledges."""
AGAIN_S = 300.0
"""Seconds to wait for another worker that encodes a block: also for one that is lost meanwhile."""
LOOK_S = 0.1
Heard = Callable[[messages.Message], None]
Ask = Callable[[messages.Message, float | None, Heard], messages.Message]


class LeaseCheckouts:
    """The checkouts of one lease; implements `api.rotation.Checkouts`."""

    def __init__(
        self,
        number: int,
        ask: Ask,  # ``ask(message, timeout_s, heard)``: a call to the master, from any thread
        note: Callable[[messages.Message], None],  # sends a note to the master
        stand: ResumeState,
        # ``encode_again(number, index)``: whether this worker has encoded that block of its chunk
        encode_again: Callable[[int, int], bool] = lambda number, index: False,
    ) -> None:
        self._encode_again = encode_again
        # lost blocks: when missed or encoded last, how often encoded
        self._lost: dict[int, tuple[float, int]] = {}
        self._number, self._ask, self._note, self._stand = number, ask, note, stand
        self._training = self._over = False
        self._begun: dict[int, float] = {}  # when each that is held was checked out
        self._last = 0.0  # when the last one was checked in
        self.cut = False
        """The training ends before the lease has had all."""

    def begin(self) -> None:
        self._training = True

    def end(self) -> None:
        self._training = False

    def check_out(self) -> int | None:
        """Implement `api.rotation.Checkouts`; MisuseError while the lease is not being trained."""
        if not self._training:
            raise MisuseError("check_out() outside train(): another partition is trained first")
        if self._over:
            return None
        answer = self._ask(messages.Borrow(self._number), None, self._heard)
        assert isinstance(answer, messages.Borrowed)
        if answer.part >= 0:
            self._begun[answer.part] = time.monotonic()
            return answer.part
        self._over = True
        self.cut = self.cut or answer.ends
        return None

    def encode_again(self, index: int) -> None:
        """Implement `api.rotation.Checkouts`."""
        since, times = self._lost.get(index, (time.monotonic(), 0))
        if times >= AGAIN_MAX:
            raise ClusterError(
                f"block {index} of the chunk was encoded {times} times, and servers do not have it"
            )
        if self._encode_again(self._number, index):
            since, times = time.monotonic(), times + 1
        elif time.monotonic() - since > AGAIN_S:
            raise ClusterError(
                f"servers have lost block {index} of the chunk, and no worker has encoded it again "
                f"within {AGAIN_S:.0f} s"
            )
        else:
            time.sleep(LOOK_S)
        self._lost[index] = since, times

    def _heard(self, answer: messages.Message) -> None:
        if isinstance(answer, messages.Borrowed) and answer.part >= 0:
            self._stand.checked_out(self._number, answer.part)

    def check_in(self, part: int, figures: Mapping[str, float], *, durable: bool = False) -> None:
        metrics = numbers_of(figures)
        if not self._stand.checked_in(self._number, part):
            raise MisuseError(f"check_in({part}): this lease does not hold that partition")
        units = int(metrics.pop("units", metrics.get("examples", 0)))
        # One that was checked out ahead is trained when the one before is done.
        now = time.monotonic()
        seconds, self._last = now - max(self._last, self._begun.pop(part, now)), now
        self._note(messages.GiveBack(self._number, part, units, seconds, metrics, durable))
