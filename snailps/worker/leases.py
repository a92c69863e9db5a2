"""A worker's leases, and the blocks made of them: read, encoded, prepared.

    Lease -> Leased -> block -> [encode -> Done] ... -> prepare -> Block to train on

Owns what happens between a lease and a prepared block, and which files of the input cannot be read
on this host.  The preparing thread calls `next`; the training thread leases in a survey, and
encodes blocks that servers have lost, so that two threads may encode: one at a time (`_encoding`).
Knows no schedule beyond the terms of a lease, and no row.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial

from snailps import registry
from snailps.api.block import BlockContent
from snailps.api.rotation import Checkouts, NoCheckouts
from snailps.api.traits import Cut, Rotated, trait_of
from snailps.api.worker import Block
from snailps.errors import DataError
from snailps.files.scratch import Scratch
from snailps.transport import messages
from snailps.transport.client._client import Pending
from snailps.transport.messages.terms import ChunkBlock, Partition
from snailps.worker.content import LeasedContent
from snailps.worker.context import JobContext
from snailps.worker.prefetch import Flush
from snailps.worker.reports import JobReports
from snailps.worker.user_code import named, numbers_of

log = logging.getLogger(__name__)


class Leases:
    """The leases of one job."""

    def __init__(self, job: JobContext, reports: JobReports, scratch: Scratch) -> None:
        self._model, self._client, self._calls = job.model, job.client, job.calls
        self._progress, self._orders, self._limit_s = job.progress, job.orders, job.limit_s
        self._reports, self._scratch = reports, scratch
        self._encoding = threading.Lock()
        self._unreadable: set[str] = set()

    def next(self, back: bool) -> Block | Flush | None:
        """Lease and prepare a block to train on; None: no more for this worker.

        In a rotation, blocks that are leased to be encoded are encoded and reported on the way.
        `back`: only a block that a lost worker had, None at once if there is none.
        """
        model = self._model
        while True:
            lease = self.lease("train", back)
            if lease is None or lease.number < 0:
                return None if lease is None else Flush()
            block = self.block(lease, "train")
            if not isinstance(block.terms, ChunkBlock):
                break
            try:
                enough = self._encode(block)
            except Exception as error:
                # At once, not when the training thread takes the block: it may train for minutes
                # yet, while all other workers wait for this block of the chunk.
                self._calls.give_up(error)
                raise
            if enough:
                return None
        with named(model, "prepare", block), model._at(block, preparing=True):
            begin = time.thread_time()
            block.prepared = model.prepare(block)
            block.prepare_s = time.thread_time() - begin
        if block.clock >= 0:
            # Asked now, beside the pull: once the step before is sealed no round trip remains.
            self.step_begun(block)
        return block

    def _encode(self, block: Block) -> bool:
        """Encode a block and report it; True: the master wants no further block."""
        model = self._model
        assert isinstance(model, Rotated)
        begin = time.monotonic()
        # A model's `encode` need not be safe for two threads, and a block that servers have lost is
        # encoded again by the thread that missed it.
        with self._encoding, named(model, "encode", block):
            metrics = numbers_of({**model.encode(block), "units": 0})
        metrics = {name: metrics[name] for name in metrics.keys() & {"bad_lines"}}
        self._client.flush(self._limit_s)
        seconds = time.monotonic() - begin
        answer = self._reports.report(messages.Done("train", block.number, 0, seconds, metrics))
        self._reports.note_flushed(block.number)
        return isinstance(answer, messages.Enough)

    def _encode_again(self, number: int, index: int) -> bool:
        """Encode block `index` of the chunk of lease `number` again, because servers have lost it.

        False: the master has given the block to another worker, or to none yet.
        """
        lease = self.lease("train", again=[number, index])
        if lease is None:
            return False
        block = self.block(lease, "train")
        block.again = True
        self._encode(block)
        return True

    def lease(
        self, pass_: str, back: bool = False, held: int = 0, again: Sequence[int] = ()
    ) -> messages.Leased | None:
        """Ask the master for a lease of a pass (``survey``, ``train``); None: no more.

        `held` are bytes of a survey part that this worker keeps: the master may want that part
        before it leases another block.  `again` is (lease, index) of a block to encode again.
        """
        if self._orders.leaving and not again:  # it finishes what it holds, and takes nothing new
            return None

        def heard(answer: messages.Message) -> None:
            if isinstance(answer, messages.Leased) and answer.number >= 0:
                self._progress.leased(pass_, answer)

        answer = self._calls.ask(messages.Lease(pass_, back, held, list(again)), None, heard)
        assert isinstance(answer, messages.Leased)
        return None if answer.number < 0 and not answer.flushes else answer

    def block(self, lease: messages.Leased, pass_: str) -> Block:
        """Make the block of a lease; without its file on this host the master sends its bytes."""
        content = BlockContent()
        if lease.piece.path:
            fetch = partial(self._fetched, lease, pass_)
            unit = trait_of(type(self._model), Cut).unit
            content = LeasedContent(lease.piece, lease.layout, unit, self._scratch, fetch)
        checkouts: Checkouts = NoCheckouts()
        if isinstance(lease.terms, Partition):
            checkouts = registry.named("rotation.worker").LeaseCheckouts(
                lease.number, self._calls.ask, self._calls.note, self._progress, self._encode_again
            )
        before, after = lease.progress
        return Block(
            lease.number,
            lease.piece,
            lease.epoch,
            lease.seed,
            (before, after),
            content,
            lease.terms,
            lease.first,
            checkouts,
        )

    def _fetched(
        self, lease: messages.Leased, pass_: str, error: DataError, unit: str, text: int
    ) -> bytes:
        """Ask the master for bytes of a block that cannot be read here; one warning a file."""
        if lease.piece.path not in self._unreadable:
            self._unreadable.add(lease.piece.path)
            log.warning("%s; asking the master for the bytes", error)
        fetch = messages.Fetch(lease.number, pass_, unit, text)
        content = self._calls.ask(fetch, self._limit_s)
        assert isinstance(content, messages.Content)
        return content.blob

    def step_begun(self, block: Block) -> Pending:
        """Done once every shard has reported that the block's step has begun; asked for once.

        A block that is put back for an earlier one keeps its request.
        """
        if block._step_begun is None:
            block._step_begun = self._client.reach_async(block.clock)
        return block._step_begun
