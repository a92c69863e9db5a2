"""The queue of a worker's next blocks, which another thread leases and prepares ahead.

    ask() -> Future of a block -> BlockPrefetcher.next -> the block to train on

Owns the order in which leased blocks are trained: as leased, but a block of an earlier clock goes
first, since no worker's step can end without it.  Used by the training thread alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from snailps.api.block import Block


class Flush:
    """In place of a block: all that was trained is pushed before the next block is asked for."""

    clock = -1


Asked = Future[Block | Flush | None]


class BlockPrefetcher:
    """Blocks that are asked for, in the order in which they will be trained.

    ``ask(back)`` starts to lease and prepare a block in another thread.  With `back` only a block
    that a lost worker had counts, and the answer is None at once if there is none.
    """

    def __init__(self, ask: Callable[[bool], Asked]) -> None:
        self._ask = ask
        self._blocks: deque[Asked] = deque()
        self._returned: list[Asked] = []  # asked for with `back`, not answered yet

    def next(self, ahead: int) -> Block | Flush | None:
        """Wait for the next block, and ask for others until `ahead` are open; None: no more."""
        self._take_returned()
        if not self._blocks:
            self._blocks.append(self._ask(False))
        block = self._blocks.popleft().result()
        while block is not None and len(self._blocks) < ahead:
            self._blocks.append(self._ask(False))
        return block

    @property
    def is_ready(self) -> bool:
        """Whether `next` would not wait."""
        return bool(self._blocks) and self._blocks[0].done()

    def ask_back(self) -> None:
        """Ask for a block that a lost worker had."""
        self._returned.append(self._ask(True))

    def earlier(self, block: Block) -> Block | None:
        """A prepared block of an earlier clock than `block`, which goes back to the front of the
        queue; None if there is none.
        """
        self._take_returned()
        for asked in self._blocks:
            other = asked.result() if asked.done() else None
            if isinstance(other, Block) and other.clock < block.clock:
                self._blocks.remove(asked)
                self._blocks.appendleft(_prepared(block))
                return other
        return None

    def drop(self) -> None:
        """Abandon what the blocks that will not be trained have asked of the servers.

        Their leases stay with this worker: the master gives them to others when it leaves.
        """
        for asked in [*self._returned, *self._blocks]:
            asked.add_done_callback(_abandon)

    def _take_returned(self) -> None:
        """Move answered blocks of lost workers to the front of the queue."""
        open_still = []
        for asked in self._returned:
            if not asked.done():
                open_still.append(asked)
            elif asked.result() is not None:
                self._blocks.appendleft(asked)
        self._returned = open_still


def _prepared(block: Block) -> Asked:
    """`block` as one that was asked for, and is there."""
    asked: Asked = Future()
    asked.set_result(block)
    return asked


def _abandon(asked: Asked) -> None:
    if asked.cancelled() or asked.exception() is not None:
        return
    block = asked.result()
    if isinstance(block, Block):
        for pull in block._pulls:
            pull.abandon()
        if block._step_begun is not None:
            block._step_begun.abandon()
