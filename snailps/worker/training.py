"""The train pass of a worker: block after block, each in its turn, trained, pushed, reported.

    BlockPrefetcher -> in_turn -> Worker.train -> flush, seal -> Done -> Settled

Owns the order of these calls; must not know the mathematics of a model.  Another thread leases and
prepares the next block while the current one trains; in a rotation it encodes blocks, too.
"""

from __future__ import annotations

import contextlib
import gc
import time
from concurrent.futures import Future, ThreadPoolExecutor

from snailps.api.traits import Gathered
from snailps.api.worker import Block
from snailps.config.consistency import steps_of
from snailps.errors import WaitTimeout
from snailps.transport import messages
from snailps.worker.checkouts import LeaseCheckouts
from snailps.worker.context import JobContext
from snailps.worker.leases import Leases, reach_of
from snailps.worker.prefetch import BlockPrefetcher
from snailps.worker.reports import Reports
from snailps.worker.user_code import named, numbers_of, unpushed

TURN_S = 0.1
"""Period in which a worker that waits for its step looks for other work."""
SHORT_S = 0.1
"""A block that trained in less is reported while the next one trains, if its pushes come later."""


class Training:
    """The train pass of one job."""

    def __init__(self, job: JobContext, reports: Reports, leases: Leases) -> None:
        self.client = job.client
        self._model, self._calls, self._orders = job.model, job.calls, job.orders
        self._tally, self._limit_s = job.tally, job.limit_s
        self._reports, self._leases = reports, leases

    def run(self) -> None:
        """Train until no block is wanted, or this worker leaves."""
        # What is here by now stays to the end: collections that walked over it took a fifth of the
        # time of small batches. Present garbage would stay, too.
        gc.collect()
        gc.freeze()  # until the next message of the master
        with ThreadPoolExecutor(1, "snailps-prepare") as helper:
            try:
                self._train_blocks(helper)
            except Exception as error:
                # Reported here, not by the caller: leaving `with` waits for the helper, which
                # may wait for a lease that the master withholds until our block is finished.
                self._calls.give_up(error)
                raise

    def _train_blocks(self, helper: ThreadPoolExecutor) -> None:
        self._reports.begin_training()

        def ask(back: bool = False) -> Future[Block | None]:
            return helper.submit(self._leases.next, back)

        prefetcher = BlockPrefetcher(ask)
        try:
            while True:
                block = prefetcher.next(self._model.prefetch)
                if block is not None and block.clock >= 0:
                    block = self.in_turn(block, prefetcher)
                if block is None or self._orders.leaving:
                    break
                if self.train_block(block):
                    break  # prefetched blocks are left as they are
            self._reports.last_answer()
        finally:
            self._reports.drop()
            prefetcher.drop()

    def train_block(self, block: Block) -> bool:
        """Train on a block and report it; True if no further block is wanted."""
        model, begin = self._model, time.monotonic()
        if self._orders.workers_changed.is_set():
            self._orders.workers_changed.clear()
            model.workers = self._orders.workers
            if isinstance(model, Gathered):
                with named(model, "workers_changed"):
                    model.workers_changed()
        checkouts = block.checkouts if isinstance(block.checkouts, LeaseCheckouts) else None
        if checkouts is not None:
            checkouts.begin()
        self._reports.begins(block.number)
        with named(model, "train", block), model._at(block):
            metrics = numbers_of(model.train(block))
        if checkouts is not None:
            checkouts.end()
        in_round = block.index >= 0
        free = block.clock < 0 and checkouts is None and steps_of(model.settings).order_is_free
        if not free:
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
        enough = self._reports.last_answer()
        self._reports.begin(done)
        if free and unpushed(model) and seconds < SHORT_S:
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
            # The last seal of a clock applies it, at one shard after the other. A worker that dies
            # in between has reported its block before, so the master seals in its place. A round is
            # applied by the master, which must know which parts are sealed everywhere.
            self.seal(block)
        return False

    def in_turn(self, block: Block, prefetcher: BlockPrefetcher) -> Block | None:
        """Wait until the step of a block has begun; returns the block, or another one of an earlier
        step. An earlier block is returned when a worker is lost, and no step can end without it.
        None: this worker leaves."""
        begin = time.monotonic()
        reach = reach_of(block, self.client)
        asked = False
        try:
            while not self._orders.leaving:
                with contextlib.suppress(WaitTimeout):
                    reach.wait(TURN_S)
                    return block
                self._calls.go_on()
                # A block may have been returned while we trained; the master reports later ones.
                if not asked or self._orders.came_back.is_set():
                    asked = True
                    self._orders.came_back.clear()
                    prefetcher.ask_back()
                earlier = prefetcher.earlier(block)
                if earlier is not None:  # this one is put back, and its step still comes
                    block, asked = earlier, False
                    reach = reach_of(block, self.client)
            reach.abandon()
            return None
        finally:
            self._tally.waited_s += time.monotonic() - begin

    def seal(self, block: Block) -> None:
        """Report to all shards that a block is completely pushed."""
        self.client.seal_async(block.clock, block.slot, block.slots).wait()
