"""Embeddings of names that rotate: blocks are encoded, partitions trained by a `RotationTrainer`.

Owns which part of the worker a lease goes to; a subclass plans the rotation and makes the trainer.
Jobs that do not rotate train ordinary blocks, as `EmbeddingWorker` does.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from snailps.api.traits import Rotated
from snailps.api.worker import Block
from snailps.models.embeddings.worker import BLOCK_BYTES_MAX, EmbeddingWorker
from snailps.models.rotation.trainer import RotationTrainer

BLOCKS = 4
"""Blocks of an epoch for each worker, so that their parsing is shared evenly."""


class RotatingWorker(EmbeddingWorker, Rotated):
    """Embeddings that may rotate; see the module's docstring."""

    @abstractmethod
    def trainer(self) -> RotationTrainer:
        """Make the trainer of partitions, after `setup`."""

    @classmethod
    def may_rotate(cls, settings: Any, total_bytes: int, workers: int) -> bool:
        """Whether the input may rotate, as far as its size tells."""
        return cls.rotates(settings)

    @classmethod
    def block_bytes(cls, settings: Any, total_bytes: int, workers: int) -> int:
        """Blocks to encode, where lines rotate: `BLOCKS` an epoch and worker."""
        size = super().block_bytes(settings, total_bytes, workers)
        if cls.may_rotate(settings, total_bytes, workers):
            size = min(BLOCK_BYTES_MAX, max(size, total_bytes // (BLOCKS * workers)))
        return size

    @cached_property
    def rotating(self) -> Any:
        """The trainer of partitions, from the first lease on."""
        self.prefetch = 1  # a lease is long
        return self.trainer()

    def encode(self, block: Block) -> Mapping[str, float]:
        self.rotating.encode(block)
        return {}

    def prepare(self, block: Block) -> Any:
        return self.rotating.prepare(block) if block.part >= 0 else super().prepare(block)

    def train(self, block: Block) -> Mapping[str, float]:
        if block.part < 0:
            return super().train(block)
        trained: Mapping[str, float] = self.rotating.train(block)
        return trained

    def finish(self) -> None:
        if "rotating" in self.__dict__:
            self.rotating.close()
        super().finish()
