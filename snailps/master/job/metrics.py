"""Metrics of one pass of a job: units, losses, rate, duration of a block.

    results of blocks, in the order in which they count -> PassMetrics -> loss, rate, block_s

Sums and means over the records of blocks (`leases/records.py`); no leases and no limits here.
`now` is monotonic seconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.master.leases.records import BlockResult

RATE_WINDOW_S = 10.0
RECENT_BLOCKS = 16
"""The loss shown, and compared with `target_loss`, is the mean over so many blocks, or visits."""
_BLOCK = -1
"""In the place of a tenancy."""


@dataclass(slots=True)
class _Visits:
    """The results of the visits of a tenancy that is under way."""

    epoch: int
    units: int = 0
    loss: float = 0.0
    examples: float = 0.0


class PassMetrics:
    """Figures of one pass.

    Parameters
    ----------
    epochs : int
        Epochs that have a loss from the beginning; others get theirs as they come.

    Attributes
    ----------
    units, block_units : int
        Of all blocks, and of the largest one.
    losses : list
        Sum of losses and number of examples, by epoch or round.
    lr : float or None
        Learning rate at the end of the last block, where the model tells it.
    bad_lines : int
        Left out as malformed, in the first epoch.
    """

    def __init__(self, epochs: int = 0) -> None:
        self.units = self.block_units = self.bad_lines = 0
        self.losses = [[0.0, 0.0] for _ in range(epochs)]
        self.lr: float | None = None
        self._rates: deque[tuple[float, int]] = deque()
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=RECENT_BLOCKS)
        self._visits: dict[int, _Visits] = {}  # of tenancies under way
        self._durations: deque[float] = deque(maxlen=RECENT_BLOCKS)

    def add(self, units: int) -> None:
        """A block held so many units."""
        self.units += units
        self.block_units = max(self.block_units, units)

    def count(self, epoch: int, result: BlockResult, *, recent: bool = True) -> None:
        """Adds the result of a block of the training; `recent`: to the loss shown, too."""
        self.add(result.units)
        loss, examples = result.loss, result.examples
        if examples > 0 and not math.isnan(loss):
            self._add_loss(epoch, loss, examples)
            if recent:
                self._recent.append((loss, examples, _BLOCK))
        if epoch == 0:
            self.bad_lines += result.bad_lines
        if not math.isnan(result.lr):
            self.lr = result.lr

    def _add_loss(self, epoch: int, loss: float, examples: float) -> None:
        self.losses += [[0.0, 0.0] for _ in range(len(self.losses), epoch + 1)]
        sums = self.losses[epoch]
        sums[0] += loss
        sums[1] += examples

    def count_visit(self, tenancy: int, epoch: int, result: BlockResult) -> None:
        """Adds the result of a visit, until `end_visits` of its tenancy."""
        visits = self._visits.setdefault(tenancy, _Visits(epoch))
        visits.units += result.units
        self.add(result.units)
        if result.examples > 0 and not math.isnan(result.loss):
            visits.loss += result.loss
            visits.examples += result.examples
            self._add_loss(epoch, result.loss, result.examples)
            self._recent.append((result.loss, result.examples, tenancy))
        if not math.isnan(result.lr):
            self.lr = result.lr

    def end_visits(self, tenancy: int, *, lost: bool = False) -> int:
        """Withdraws the results of a tenancy's visits, as the whole counts, or is lost.

        Returns
        -------
        int
            Their units.  Where they are not `lost`, the loss shown stays that of the visits.
        """
        visits = self._visits.pop(tenancy, None)
        if visits is None:
            return 0
        self.units -= visits.units
        if visits.examples:
            self._add_loss(visits.epoch, -visits.loss, -visits.examples)
        kept = [
            (loss, examples, _BLOCK if by == tenancy else by)
            for loss, examples, by in self._recent
            if not (lost and by == tenancy)
        ]
        self._recent.clear()
        self._recent.extend(kept)
        return visits.units

    @property
    def visited(self) -> list[int]:
        """Tenancies whose visits are counted."""
        return list(self._visits)

    def count_all(self, epochs: NDArray[np.int64], records: NDArray[Any]) -> None:
        """Adds the results of many blocks of the training, in this order, without their `lr`."""
        if not len(records):
            return
        units, losses, examples = (records[name] for name in ("units", "loss", "examples"))
        self.bad_lines += int(records["bad_lines"][epochs == 0].sum())
        self.units += int(units.sum())
        self.block_units = max(self.block_units, int(units.max()))
        known = np.flatnonzero((examples > 0) & ~np.isnan(losses))
        epochs, losses, examples = epochs[known], losses[known], examples[known]
        self.losses += [[0.0, 0.0] for _ in range(len(self.losses), max(epochs, default=-1) + 1)]
        for at, figures in enumerate((losses, examples)):
            for epoch, sum_ in enumerate(np.bincount(epochs, figures).tolist()):
                self.losses[epoch][at] += sum_
        last = slice(-RECENT_BLOCKS, None)
        recent = zip(losses[last].tolist(), examples[last].tolist(), strict=True)
        self._recent.extend((loss, count, _BLOCK) for loss, count in recent)

    def snapshot(self) -> dict[str, Any]:
        """All of it but what was seen of the speed, and of visits, for JSON."""
        units, losses = self.units, [list(sums) for sums in self.losses]
        for visits in self._visits.values():
            units -= visits.units
            if visits.examples:
                losses[visits.epoch][0] -= visits.loss
                losses[visits.epoch][1] -= visits.examples
        return {
            "units": units,
            "block_units": self.block_units,
            "bad_lines": self.bad_lines,
            "losses": losses,
            "lr": self.lr,
            "recent": [[loss, examples] for loss, examples, _ in self._recent],
            "durations": list(self._durations),
        }

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Continues from the `snapshot` of other metrics."""
        self.units, self.block_units = int(snapshot["units"]), int(snapshot["block_units"])
        self.bad_lines, self.lr = int(snapshot["bad_lines"]), snapshot["lr"]
        self.losses = [list(sums) for sums in snapshot["losses"]]
        self._recent.clear()
        self._recent.extend((loss, examples, _BLOCK) for loss, examples in snapshot["recent"])
        self._visits.clear()
        self._durations.clear()
        self._durations.extend(snapshot["durations"])

    def came(self, units: int, now: float) -> None:
        """A block has come in just now, whenever it counts."""
        self._rates.append((now, units))

    def took(self, seconds: float) -> None:
        """A block was trained for so long."""
        self._durations.append(seconds)

    def forget_rate(self) -> None:
        """What came before came under another master."""
        self._rates.clear()

    @property
    def block_s(self) -> float:
        """Mean duration of the last few blocks, seconds."""
        return sum(self._durations) / max(1, len(self._durations))

    @property
    def loss(self) -> float | None:
        """Mean loss over the last few blocks."""
        examples = sum(n for _, n, _ in self._recent)
        return sum(loss for loss, _, _ in self._recent) / examples if examples else None

    def is_low(self, target: float, blocks: int) -> bool:
        """Whether the mean loss of the last blocks, of so many in an epoch, is as low as that."""
        enough = len(self._recent) >= min(RECENT_BLOCKS, blocks)
        return bool(target and enough and self.loss is not None and self.loss <= target)

    def loss_by_epoch(self) -> list[float | None]:
        """Mean loss of each epoch or round; None where nothing is known."""
        return [sums[0] / sums[1] if sums[1] else None for sums in self.losses]

    def rate(self, begun: float, now: float) -> float:
        """Units per second over the last `RATE_WINDOW_S` seconds of a pass that began then."""
        while self._rates and now - self._rates[0][0] > RATE_WINDOW_S:
            self._rates.popleft()
        window = min(RATE_WINDOW_S, now - begun)
        return sum(units for _, units in self._rates) / window if window > 0 else 0.0
