"""A worker's reports to the master: which blocks it has trained, and which are durable.

    report, report_async -> Done -> answer: go on, or Enough     acknowledged pushes -> Durable

Owns the one report whose answer is still open; `ResumeState` records what the master has heard, for
a master that takes over.  Knows no rows, and of a model only how many blocks it has not pushed.
"""

from __future__ import annotations

from concurrent.futures import Future

from snailps.api.traits import Reported, trait_of
from snailps.transport import messages
from snailps.worker.context import JobContext
from snailps.worker.user_code import unpushed


class JobReports:
    """The reports of one job."""

    def __init__(self, job: JobContext) -> None:
        self._model, self._client, self._calls = job.model, job.client, job.calls
        self._progress, self._tally, self._limit_s = job.progress, job.tally, job.limit_s
        # The last report of `report_async`, until `last_answer` takes its answer.
        self._open: tuple[messages.Done, Future[messages.Message]] | None = None

    def start_training(self) -> None:
        """Forget the survey's blocks before the first block is leased for training."""
        self._progress.start_training()

    def start_block(self, number: int) -> None:
        """Record that pushes sent from now on may hold a part of what this block learns."""
        self._progress.start_block(number, self._client.counters()["parts_pushed"])

    def report(self, done: messages.Done) -> messages.Message:
        """Report a finished block, and wait for the answer: go on, or `Enough`."""
        return self._answer(done, self._call(done))

    def report_async(self, done: messages.Done) -> None:
        """Report a finished block; `last_answer` waits for the answer."""
        self._open = done, self._call(done)

    def last_answer(self) -> bool:
        """Wait for the answer of the last `report_async`, if it is open.

        True: the answer is `Enough`, the master wants no further block.
        """
        report, self._open = self._open, None
        return report is not None and isinstance(self._answer(*report), messages.Enough)

    def drop(self) -> None:
        """Leave an open answer unread: the training ends, by an error or by leaving."""
        self._open = None

    def _call(self, done: messages.Done) -> Future[messages.Message]:
        # Recorded in the thread that reads the answer, not in the one that waits for it: a master
        # that takes over in between must not be told that this block is still held.
        return self._calls.ask_async(done, lambda answer: self._progress.reported(done))

    def _answer(self, done: messages.Done, future: Future[messages.Message]) -> messages.Message:
        answer = self._calls.result(future, done, self._limit_s)
        counts = trait_of(type(self._model), Reported).counts
        self._tally.done(done.pass_, 1 + len(done.numbers), done.units, done.seconds, counts)
        return answer

    def note_durable(self, number: int) -> None:
        """Report the blocks whose pushes are all acknowledged by now, so that the next checkpoint
        includes them; block `number` has just been trained.
        """
        durable = self._progress.trained(number, self._client, unpushed(self._model))
        if durable:
            self._calls.note(messages.Durable(durable))

    @property
    def are_durable(self) -> bool:
        """Whether all trained blocks are reported as durable."""
        return self._progress.is_durable

    def note_all_durable(self) -> None:
        """Report all trained blocks as durable: every push is acknowledged."""
        if durable := self._progress.all_durable():  # else the master has heard of all
            self._calls.note(messages.Durable(durable))

    def note_flushed(self, number: int) -> None:
        """Report as durable a block or partition whose pushes were acknowledged before `Done`."""
        self._progress.durable(number)
        self._calls.note(messages.Durable([number]))
