"""The train pass of a worker: block after block is trained, pushed and reported.

    BlockPrefetcher -> in_turn -> Worker.train -> flush -> Done -> Durable -> seal

Owns the order of these calls, on which recovery depends; must not know the mathematics of a model.
A range of a pass is flushed and reported after the next one has trained, if that is there: no other
range of the pass reads what it has pushed.
Another thread leases and prepares the next block meanwhile (`leases.py`); in a rotation it encodes
blocks, too.
"""

from __future__ import annotations

import contextlib
import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from snailps.api.plain_values import is_users
from snailps.api.traits import Gathered
from snailps.api.worker import Block, Pending
from snailps.config.consistency import steps_of
from snailps.dataclass import dataclass
from snailps.errors import ClusterError, NotFinite, WaitTimeout
from snailps.transport import messages
from snailps.transport.messages.terms import Partition, PassRange
from snailps.worker.context import JobContext
from snailps.worker.leases import Leases
from snailps.worker.prefetch import BlockPrefetcher, Flush
from snailps.worker.reports import JobReports
from snailps.worker.user_code import named, numbers_of, unpushed

TURN_S = 0.1
"""Period in which a worker that waits for its step looks for a block of an earlier one."""
SHORT_S = 0.1
"""A block that trained in less is answered while the next one trains, if its pushes come later."""


@dataclass(slots=True)
class Settling:
    """A trained block that is reported once these pushes are acknowledged."""

    block: Block
    done: messages.Done
    pushes: list[Pending]


class TrainPass:
    """The train pass of one job."""

    def __init__(self, job: JobContext, reports: JobReports, leases: Leases) -> None:
        self.client = job.client
        self._model, self._calls, self._orders = job.model, job.calls, job.orders
        self._tally, self._limit_s = job.tally, job.limit_s
        self._reports, self._leases = reports, leases
        self._settling: Settling | None = None

    def run(self) -> None:
        """Train until no block is wanted, or this worker leaves."""
        with ThreadPoolExecutor(1, "snailps-prepare") as helper:
            try:
                self._train_blocks(helper)
            except Exception as error:
                # Reported here, not by the caller: leaving `with` waits for the helper, which may
                # wait for a lease that the master withholds until this worker's block is finished.
                self._calls.give_up(error)
                raise

    def _train_blocks(self, helper: ThreadPoolExecutor) -> None:
        self._reports.start_training()

        def ask(back: bool = False) -> Future[Block | Flush | None]:
            return helper.submit(self._leases.next, back)

        prefetcher = BlockPrefetcher(ask)
        try:
            while True:
                if not prefetcher.is_ready and self.end_range():
                    break
                block = prefetcher.next(self._model.prefetch)
                if isinstance(block, Flush):
                    if self.push_all():
                        break
                    continue
                if block is not None and block.clock >= 0:
                    block = self.in_turn(block, prefetcher)
                if block is None or self._orders.leaving:
                    break
                if self.train_block(block):
                    break  # blocks that are prepared by now stay untrained
            self.end_range()
            self._reports.last_answer()
        finally:
            self._reports.drop()
            prefetcher.drop()

    def push_all(self) -> bool:
        """Push all that was trained, and report it as durable; True: no further block is wanted.

        The master tests the rows next: no push may be under way.
        """
        # It may be testing them already. It asks again while a call comes before `Durable`, and a
        # model has always more to push: of each delta it holds a part back.
        if self._reports.are_durable:
            return self._reports.last_answer()
        model = self._model
        if isinstance(model, Gathered):
            with named(model, "push_all"):
                model.push_all()
        self.client.flush(self._limit_s)
        enough = self._reports.last_answer()
        self._reports.note_all_durable()
        return enough

    def train_block(self, block: Block) -> bool:
        """Train on a block and report it; True: the master wants no further block.

        The order is flush, `Done`, `Durable`, seal: a block is reported before it can complete a
        step, and durable only after all its pushes are acknowledged.
        """
        model, begin = self._model, time.monotonic()
        if self._orders.workers_changed.is_set():
            self._orders.workers_changed.clear()
            model.workers = self._orders.workers
            if isinstance(model, Gathered):
                with named(model, "workers_changed"):
                    model.workers_changed()
        checkouts: Any = block.checkouts if isinstance(block.terms, Partition) else None
        if checkouts is not None:
            checkouts.begin()
        self._reports.start_block(block.number)
        try:
            with named(model, "train", block), model._at(block):
                metrics = numbers_of(model.train(block))
        except ClusterError as error:
            self._report_divergence(block, error)
            raise
        if block.kernel_s is not None:
            self._tally.work_s += block.prepare_s + block.kernel_s
        if checkouts is not None:
            checkouts.end()
        in_round = block.index >= 0
        # Where order is free, pushes may still be under way when the block is reported: nobody
        # waits for them.  Else someone does: a step for its contributions, a partition for its
        # next lease, the next pass for all ranges of this one.
        free = block.terms is None and steps_of(model.settings).order_is_free
        settles = isinstance(block.terms, PassRange)
        if not free and not settles:
            with named(model, "train", block):
                self.client.flush(self._limit_s)
        if in_round:
            self.seal(block)
        seconds = time.monotonic() - begin
        done = messages.Done(
            "train",
            block.number,
            int(metrics.pop("units", metrics.get("examples", 0))),
            seconds,
            metrics,
            whole=checkouts is None or not checkouts.cut,
        )
        if settles:
            enough = self.end_range()
            self._settling = Settling(block, done, self.client.open_pushes())
            return enough
        enough = self._reports.last_answer()
        self._reports.report_async(done)
        if free and unpushed(model) and seconds < SHORT_S:
            # The model pushes later anyway, so nothing is gained by waiting for the answer now.
            self._reports.note_durable(block.number)
            return enough
        enough |= self._reports.last_answer()
        if checkouts is None:
            self._reports.note_durable(block.number)
        else:
            self._reports.note_flushed(block.number)
        if enough:
            return True
        if block.clock >= 0 and not in_round:
            # The last seal of a clock applies it, at one shard after the other.  A worker that dies
            # in between has reported its block before, so the master seals in its place: else some
            # shards would have the step, and others never.  A round is sealed before `Done`: the
            # master itself applies it, and must know which contributions are at all shards.
            self.seal(block)
        return False

    def _report_divergence(self, block: Block, error: ClusterError) -> None:
        """Report a loss of NaN if the values to push were not finite.

        Which of the two a model meets first depends on its rows and on how many workers there are:
        the master ends the job by the same message.  A user's class has the error's own words.
        """
        if isinstance(error.__cause__, NotFinite) and not is_users(type(self._model)):
            self._reports.last_answer()
            figures = {"loss": math.nan, "examples": 1.0}
            self._reports.report(messages.Done("train", block.number, 0, 0.0, figures))

    def end_range(self) -> bool:
        """Wait for the pushes of the last range, and report it; True: the master wants no other."""
        settling, self._settling = self._settling, None
        if settling is None:
            return False
        with named(self._model, "train", settling.block):
            for push in settling.pushes:
                push.wait(self._limit_s)
        answer = self._reports.report(settling.done)
        self._reports.note_flushed(settling.block.number)
        return isinstance(answer, messages.Enough)

    def in_turn(self, block: Block, prefetcher: BlockPrefetcher) -> Block | None:
        """Wait until the step of a block has begun.

        Returns the block; or another one of an earlier step, which a lost worker had and without
        which no later step begins (all workers might wait here); or None: this worker leaves.
        """
        begin = time.monotonic()
        step_begun = self._leases.step_begun(block)
        asked = False
        try:
            while not self._orders.leaving:
                with contextlib.suppress(WaitTimeout):
                    step_begun.wait(TURN_S)
                    return block
                self._calls.go_on()
                # Asked once unprompted: a block may have come back while this worker trained.  Of
                # later ones the master sends `CameBack`.
                if not asked or self._orders.came_back.is_set():
                    asked = True
                    self._orders.came_back.clear()
                    prefetcher.ask_back()
                earlier = prefetcher.earlier(block)
                if earlier is not None:  # `block` waits in the queue: its step comes later
                    block, asked = earlier, False
                    step_begun = self._leases.step_begun(block)
            step_begun.abandon()
            return None
        finally:
            self._tally.waited_s += time.monotonic() - begin

    def seal(self, block: Block) -> None:
        """Seal the block's slot at all shards: its contribution to the step is complete."""
        self.client.seal_async(block.clock, block.slot, block.slots).wait()
