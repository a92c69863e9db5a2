"""A worker's leases, and the blocks that it makes of them: read, encoded, prepared.

    Lease -> Leased -> block -> [encode -> Done] ... -> prepare -> Block to train on

Used by the thread that trains and by the one that prepares ahead of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial

from snailps.api.block import BlockContent
from snailps.api.rotation import Checkouts, NoCheckouts
from snailps.api.traits import Cut, Rotated, trait_of
from snailps.api.worker import Block
from snailps.data.scratch import Scratch
from snailps.errors import DataError
from snailps.transport import messages
from snailps.transport.client._client import Client, Pending
from snailps.transport.messages.terms import ChunkBlock, Partition
from snailps.worker.checkouts import LeaseCheckouts
from snailps.worker.content import LeasedContent
from snailps.worker.context import JobContext
from snailps.worker.reports import Reports
from snailps.worker.user_code import named, numbers_of

log = logging.getLogger(__name__)


class Leases:
    """The leases of one job."""

    def __init__(self, job: JobContext, reports: Reports, scratch: Scratch) -> None:
        self._model, self._client, self._calls = job.model, job.client, job.calls
        self._progress, self._orders, self._limit_s = job.progress, job.orders, job.limit_s
        self._reports, self._scratch = reports, scratch
        self._encoding = threading.Lock()
        self._unreadable: set[str] = set()

    def next(self, back: bool) -> Block | None:
        """Lease and prepare a block; on the way, encode what is leased for that.  None: no more."""
        model = self._model
        while True:
            lease = self.lease("train", back)
            if lease is None:
                return None
            block = self.block(lease, "train")
            if not isinstance(block.terms, ChunkBlock):
                break
            try:
                enough = self._encode(block)
            except Exception as error:
                # Now, not when the main thread asks for the block: the others wait for it.
                self._calls.give_up(error)
                raise
            if enough:
                return None
        with named(model, "prepare", block), model._at(block, preparing=True):
            block.prepared = model.prepare(block)
        if block.clock >= 0:
            # Waits at the shards beside the pull: nothing is asked once the step before is sealed.
            reach_of(block, self._client)
        return block

    def _encode(self, block: Block) -> bool:
        """Encode a block and report it; True if no further block is wanted."""
        model = self._model
        assert isinstance(model, Rotated)
        begin = time.monotonic()
        # Blocks that servers have lost are encoded by the threads that read them.
        with self._encoding, named(model, "encode", block):
            metrics = numbers_of({**model.encode(block), "units": 0})
        metrics = {name: metrics[name] for name in metrics.keys() & {"bad_lines"}}
        self._client.flush(self._limit_s)
        seconds = time.monotonic() - begin
        answer = self._reports.done(messages.Done("train", block.number, 0, seconds, metrics))
        self._reports.note_flushed(block.number)
        return isinstance(answer, messages.Enough)

    def _encode_again(self, number: int, index: int) -> bool:
        """Encode a block of the chunk of a partition once more; False: another worker has it."""
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
        if self._orders.leaving and not again:  # what it has leased it finishes
            return None

        def heard(answer: messages.Message) -> None:
            if isinstance(answer, messages.Leased) and answer.number >= 0:
                self._progress.got(pass_, answer)

        answer = self._calls.ask(messages.Lease(pass_, back, held, list(again)), None, heard)
        assert isinstance(answer, messages.Leased)
        return None if answer.number < 0 else answer

    def block(self, lease: messages.Leased, pass_: str) -> Block:
        """The block of a lease, whose bytes the master sends where they cannot be read here."""
        content = BlockContent()
        if lease.piece.path:
            fetch = partial(self._fetched, lease, pass_)
            unit = trait_of(type(self._model), Cut).unit
            content = LeasedContent(lease.piece, lease.layout, unit, self._scratch, fetch)
        checkouts: Checkouts = NoCheckouts()
        if isinstance(lease.terms, Partition):
            checkouts = LeaseCheckouts(
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
        """Ask the master for bytes of a block that cannot be read here."""
        if lease.piece.path not in self._unreadable:
            self._unreadable.add(lease.piece.path)
            log.warning("%s; asking the master for the bytes", error)
        fetch = messages.Fetch(lease.number, pass_, unit, text)
        content = self._calls.ask(fetch, self._limit_s)
        assert isinstance(content, messages.Content)
        return content.blob


def reach_of(block: Block, client: Client) -> Pending:
    """Ask every shard to report when the step of a block has begun; cached."""
    if block._reach is None:
        block._reach = client.reach_async(block.clock)
    return block._reach
