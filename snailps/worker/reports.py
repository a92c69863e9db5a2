"""A worker's reports of its blocks: trained, with an answer that may be waited for later; durable.

Done -> reported -> answer: go on, or Enough        acknowledged pushes -> Settled
"""

from __future__ import annotations

from concurrent.futures import Future

from snailps.api.traits import Reported, trait_of
from snailps.transport import messages
from snailps.worker.context import JobContext
from snailps.worker.user_code import unpushed


class Reports:
    """The reports of one job."""

    def __init__(self, job: JobContext) -> None:
        self._model, self._client, self._calls = job.model, job.client, job.calls
        self._progress, self._tally, self._limit_s = job.progress, job.tally, job.limit_s
        # of the last block, if its answer was not waited for
        self._open: tuple[messages.Done, Future[messages.Message]] | None = None

    def begin_training(self) -> None:
        self._progress.train()

    def begins(self, number: int) -> None:
        """A block is trained from now on."""
        self._progress.begins(number, self._client.counters()["parts_pushed"])

    def done(self, done: messages.Done) -> messages.Message:
        """Report a finished block to the master; returns the answer."""
        return self._answer(done, self._begun(done))

    def begin(self, done: messages.Done) -> None:
        """Report a finished block; `last_answer` has the answer."""
        self._open = done, self._begun(done)

    def last_answer(self) -> bool:
        """Wait for the answer to the last report, if one is open; whether no block is wanted."""
        report, self._open = self._open, None
        return report is not None and isinstance(self._answer(*report), messages.Enough)

    def drop(self) -> None:
        """Wait for no answer any more."""
        self._open = None

    def _begun(self, done: messages.Done) -> Future[messages.Message]:
        return self._calls.begin(done, lambda answer: self._progress.reported(done))

    def _answer(self, done: messages.Done, future: Future[messages.Message]) -> messages.Message:
        answer = self._calls.result(future, done, self._limit_s)
        counts = trait_of(type(self._model), Reported).counts
        self._tally.done(done.pass_, 1 + len(done.numbers), done.units, done.seconds, counts)
        return answer

    def note_durable(self, number: int) -> None:
        """Report blocks whose pushes are all acknowledged, so that a checkpoint includes them."""
        durable = self._progress.trained(number, self._client, unpushed(self._model))
        if durable:
            self._calls.note(messages.Settled(durable))

    def note_flushed(self, number: int) -> None:
        """Report a block or a partition as durable: its pushes were acknowledged before `Done`."""
        self._progress.durable(number)
        self._calls.note(messages.Settled([number]))
