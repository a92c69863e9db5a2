"""The checkouts of a partition lease: its model gets output partitions from the master.

    Checkouts.check_out -> CheckOut -> CheckedOut -> number     Checkouts.check_in -> CheckIn

Owns whether the lease may check out (while it is trained), and whether it has had all.  What it
holds is in `resume_state.py`, for a master that takes over.  Knows no connection: `leases.py`
passes `ask` and `note`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from snailps.errors import ClusterError, MisuseError
from snailps.transport import messages
from snailps.transport._awake import awake_s
from snailps.worker.resume_state import ResumeState
from snailps.worker.user_code import numbers_of

AGAIN_MAX = 8
"""Times that a lease encodes one block again: beyond that a server loses what it acknowledges."""
AGAIN_S = 300.0
"""Seconds to wait for another worker that encodes a block: time for that worker to be lost, and for
a third one to do it."""
LOOK_S = 0.1
"""Period in which such a wait asks again."""
Heard = Callable[[messages.Message], None]
Ask = Callable[[messages.Message, float | None, Heard], messages.Message]


class LeaseCheckouts:
    """The checkouts of one lease; implements `api.rotation.Checkouts`.

    `ask` calls the master, from any thread; `note` sends it a note.
    ``encode_again(number, index)`` encodes a block of the lease's chunk again, and returns whether
    this worker has done so.
    """

    def __init__(
        self,
        number: int,
        ask: Ask,
        note: Callable[[messages.Message], None],
        progress: ResumeState,
        encode_again: Callable[[int, int], bool] = lambda number, index: False,
    ) -> None:
        self._encode_again = encode_again
        # Of each block that servers have lost: when it was missed or encoded last, how often
        # encoded.
        self._lost: dict[int, tuple[float, int]] = {}
        self._number, self._ask, self._note, self._progress = number, ask, note, progress
        self._training = self._over = False
        self._since: dict[int, float] = {}  # of each held partition: when it was checked out
        self._last = 0.0  # when the last partition was checked in
        self.cut = False
        """Whether the training has ended before the lease had all output partitions."""

    def begin(self) -> None:
        self._training = True

    def end(self) -> None:
        self._training = False

    def check_out(self) -> int | None:
        """Implement `api.rotation.Checkouts`; `MisuseError` unless the lease is being trained.

        Waits at the master while other leases hold all that this one still lacks.
        """
        if not self._training:
            raise MisuseError("check_out() outside train(): another partition is trained first")
        if self._over:
            return None
        answer = self._ask(messages.CheckOut(self._number), None, self._heard)
        assert isinstance(answer, messages.CheckedOut)
        if answer.part >= 0:
            self._since[answer.part] = awake_s()
            return answer.part
        self._over = True
        self.cut = self.cut or answer.ends
        return None

    def encode_again(self, index: int) -> None:
        """Implement `api.rotation.Checkouts`."""
        since, times = self._lost.get(index, (awake_s(), 0))
        if times >= AGAIN_MAX:
            raise ClusterError(
                f"block {index} of the chunk was encoded {times} times, and servers do not have it"
            )
        if self._encode_again(self._number, index):
            since, times = awake_s(), times + 1
        elif awake_s() - since > AGAIN_S:
            raise ClusterError(
                f"servers have lost block {index} of the chunk, and no worker has encoded it again "
                f"within {AGAIN_S:.0f} s"
            )
        else:
            time.sleep(LOOK_S)
        self._lost[index] = since, times

    def _heard(self, answer: messages.Message) -> None:
        if isinstance(answer, messages.CheckedOut) and answer.part >= 0:
            self._progress.checked_out(self._number, answer.part)

    def check_in(self, part: int, figures: Mapping[str, float], *, durable: bool = False) -> None:
        """Implement `api.rotation.Checkouts`; `MisuseError` if the lease does not hold `part`."""
        metrics = numbers_of(figures)
        if not self._progress.checked_in(self._number, part):
            raise MisuseError(f"check_in({part}): this lease does not hold that partition")
        units = int(metrics.pop("units", metrics.get("examples", 0)))
        # A partition that was checked out ahead is trained once the one before is done.
        now = awake_s()
        seconds, self._last = now - max(self._last, self._since.pop(part, now)), now
        self._note(messages.CheckIn(self._number, part, units, seconds, metrics, durable))
