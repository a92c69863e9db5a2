"""Detects by the losses that a training diverges, and advises what to change.

    mean loss of each block, in the order of reports -> LossWatch.check -> why it must end, or ""

One loss that is not finite is enough. A finite loss counts if it exceeds `bound` times the loss of
the first block (or 1, or the loss of the best constant) in several blocks in a row: a single block
may have an outlier. Must not know leases or rows: models report NaN where rows exceed their bound.
"""

from __future__ import annotations

import math
from typing import Any

IN_A_ROW = 3
"""Consecutive blocks beyond the bound after which a training counts as diverged."""
_WEIGHING = ("weight_column", "soft_labels", "class_weights")
"""Settings that give examples weights, with which steps grow."""
LEAST = 1.0
"""Least loss of which the bound is a multiple: a model that is trained further may begin near 0."""


class LossWatch:
    """The losses of one training so far."""

    def __init__(self, bound: float, constant: float, settings: Any) -> None:
        self._bound, self._least = bound, max(LEAST, constant)
        self._settings = settings
        self._first: float | None = None
        self._beyond = 0  # blocks, the last ones

    def check(self, where: str, loss: float, workers: int = 1) -> str:
        """Take the mean loss of a block or round; returns why the training must end, or ""."""
        if math.isfinite(loss):
            if self._first is None:
                self._first = loss
            most = self._bound * max(self._least, self._first)
            self._beyond = self._beyond + 1 if loss > most else 0
            if self._beyond < IN_A_ROW:
                return ""
            what = f"{loss:.4g}, and began with {self._first:.4g}"
        else:
            what = f"{loss}"
        return (
            f"{where}: the loss is {what}: the training has diverged, and will not recover. "
            f"{self._advice(workers)}; checkpoints, if any, are as they were saved"
        )

    def _advice(self, workers: int) -> str:
        s = self._settings
        lr = getattr(s, "rate", getattr(s, "lr", 0.0))  # `rate`: the model's choice of it
        text = f"Lower lr (it is {lr:g})" if isinstance(lr, float) and lr else "Lower lr"
        if getattr(s, "method", getattr(s, "optimizer", "")) in ("sgd", "momentum"):
            text += ", or choose optimizer: adagrad"
        if weighing := [name for name in _WEIGHING if getattr(s, name, None)]:
            text += f", or divide the weights ({', '.join(weighing)}) by their mean"
        return text + (
            f". The steps of workers add up ({workers} here): if fewer workers learn with these "
            "settings, use fewer, or a smaller block_bytes"
        )
