"""Notices a training that diverges by its losses, and says what to change.

    mean loss of each block, in the order of reports -> LossWatch.look -> why it cannot go on, or ""

A loss that is not finite is enough.  A finite one counts where it is `bound` times what the first
block had (or 1, or what the best constant has), in several blocks: one may have an outlier.
It knows no leases, and no rows: models report a loss of NaN where rows are beyond their bound.
"""

from __future__ import annotations

import math
from typing import Any

IN_A_ROW = 3
"""Blocks beyond the bound, one after the other, by which a training has diverged."""
LEAST = 1.0
"""Mean loss, at least, that a bound is a multiple of: continued models may begin near 0."""


class LossWatch:
    """What is known of the losses of one training."""

    def __init__(self, bound: float, constant: float, settings: Any) -> None:
        self._bound, self._least = bound, max(LEAST, constant)
        self._settings = settings
        self._first: float | None = None
        self._beyond = 0  # blocks, the last ones

    def look(self, where: str, loss: float, workers: int = 1) -> str:
        """Why the training cannot go on; empty while it can."""
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
            f"{where}: the loss is {what}: the training has diverged, and more of it would not "
            f"mend that. {self._advice(workers)}; checkpoints, if any, are as they were saved"
        )

    def _advice(self, workers: int) -> str:
        s = self._settings
        lr = getattr(s, "rate", getattr(s, "lr", 0.0))  # `rate`: the model's choice of it
        text = f"Lower lr (it is {lr:g})" if isinstance(lr, float) and lr else "Lower lr"
        if getattr(s, "method", getattr(s, "optimizer", "")) in ("sgd", "momentum"):
            text += ", or choose optimizer: adagrad"
        return text + (
            f". Steps of workers add up ({workers} here): if fewer learn with these settings, take "
            "fewer, or a smaller block_bytes"
        )
