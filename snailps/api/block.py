"""A leased piece of input, as a model sees it.

    Leased -> Block -> Worker.prepare -> Worker.train

Owns the block's place in the input and in the training, and reads its bytes once, by the `read`
that it was made with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from snailps.transport.client._client import Pending


@dataclass(slots=True)
class Block:
    """A piece of input that is leased to this worker.

    Attributes
    ----------
    number : int
        Number of the lease, unique in its pass.
    path : str
        File that contains it.
    start, stop : int
        Bytes of that file; a line or word belongs to the block that its first byte lies in.
    epoch : int
        0 for the first.
    seed : int
        uint64 of this block in this epoch: draws from it make the block repeatable.
    progress : tuple of float
        Share of the whole training before and after this block, 0 to 1, for learning rates that
        decay.
    prepared : object
        What `Worker.prepare` returned for this block.
    clock, slot, slots : int
        With ``consistency: bsp`` and in rounds: this block is contribution `slot` of `slots` to
        step `clock`, and reads rows as they are before that step.  Else -1, 0 and 1.
    index : int
        In rounds: which of the job's workers makes this contribution, 0 to `workers` - 1, so that
        each can have its own data.  Else -1.
    """

    number: int
    path: str
    start: int
    stop: int
    epoch: int
    seed: int
    progress: tuple[float, float]
    read: Callable[[], bytes]
    prepared: Any = None
    clock: int = -1
    slot: int = 0
    slots: int = 1
    index: int = -1
    _data: bytes | None = None
    _pulls: list[Pending] = field(default_factory=list)

    @property
    def data(self) -> bytes:
        """The bytes of its lines or words, read once."""
        if self._data is None:
            self._data = self.read()
        return self._data
