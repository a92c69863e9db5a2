"""The queue of a worker's next blocks, which another thread leases and prepares ahead.

    ask() -> Future of a block -> BlockPrefetcher.next -> the block to train on

Owns the order of blocks; `training.py` passes `ask`, which leases and prepares one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from snailps.api.block import Block

Asked = Future[Block | None]


class BlockPrefetcher:
    """Prefetched blocks, in training order."""

    def __init__(self, ask: Callable[[bool], Asked]) -> None:
        # ``ask(back)`` starts to lease and prepare a block; `back`: only one returned by a lost
        # worker, without waiting
        self._ask = ask
        self._blocks: deque[Asked] = deque()
        self._back: list[Asked] = []

    def next(self, ahead: int) -> Block | None:
        """Wait for the next block and start `ahead` more; None if there is none."""
        self._back = [asked for asked in self._back if not self._kept(asked)]
        if not self._blocks:
            self._blocks.append(self._ask(False))
        block = self._blocks.popleft().result()
        while block is not None and len(self._blocks) < ahead:
            self._blocks.append(self._ask(False))
        return block

    def ask_back(self) -> None:
        """Ask for a block returned by a lost worker."""
        self._back.append(self._ask(True))

    def earlier(self, block: Block) -> Block | None:
        """A ready block of an earlier clock, before which `block` is put back; None if none."""
        self._back = [asked for asked in self._back if not self._kept(asked)]
        for asked in self._blocks:
            other = asked.result() if asked.done() else None
            if other is not None and other.clock < block.clock:
                self._blocks.remove(asked)
                self._blocks.appendleft(_known(block))
                return other
        return None

    def drop(self) -> None:
        """Cancel open requests for blocks that will not be trained."""
        for asked in [*self._back, *self._blocks]:
            asked.add_done_callback(_abandon)

    def _kept(self, asked: Asked) -> bool:
        """Whether `asked` is still open; a returned block is moved to the front of the queue."""
        if not asked.done():
            return False
        if asked.result() is not None:
            self._blocks.appendleft(asked)
        return True


def _known(block: Block) -> Asked:
    asked: Asked = Future()
    asked.set_result(block)
    return asked


def _abandon(asked: Asked) -> None:
    if asked.cancelled() or asked.exception() is not None:
        return
    block = asked.result()
    if block is not None:
        for pull in block._pulls:
            pull.abandon()
        if block._reach is not None:
            block._reach.abandon()
