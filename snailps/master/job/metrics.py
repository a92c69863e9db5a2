"""Metrics of one pass of a job: units, losses, rate, duration of a block.

    results of blocks, in the order in which they count -> PassMetrics -> loss, rate, block_s

Sums and means over the records of blocks (`leases/records.py`); no leases and no limits here.
`now` is monotonic seconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.master.leases.records import BlockResult
from snailps.master.member import RATE_WINDOW_S

RECENT_BLOCKS = 16
"""The loss shown, and compared with `target_loss`, is the mean over so many blocks, or visits."""
FLAT_EPOCHS = 5
"""The loss has stopped falling if so many epochs have brought it down by less than `FLAT`, each."""
FLAT = 5e-4
"""Of the loss of the first epoch; scikit-learn's `tol` is 1e-3 of a loss that begins at about 1."""
FALLING = 0.01
"""The loss still falls if the last epoch has brought it down by this share of itself."""
LEARNT = 1e-4
"""Below this share of a constant's loss, of the first epoch's where that is not known, nothing is
left to gain."""
_BLOCK = -1
"""In the place of a tenancy."""


@dataclass(slots=True)
class _Sums:
    """Results of some visits, added up."""

    units: int = 0
    loss: float = 0.0
    examples: float = 0.0

    def add(self, more: _Sums) -> None:
        self.units += more.units
        self.loss += more.loss
        self.examples += more.examples

    @classmethod
    def of(cls, figures: Mapping[str, Any]) -> _Sums:
        return cls(int(figures["units"]), float(figures["loss"]), float(figures["examples"]))


@dataclass(slots=True)
class _Visits:
    """The results of the visits of a tenancy that is not done.

    Attributes
    ----------
    node : int
        The worker that has it, or had it last.
    open, settled : _Sums
        Of its visits: withdrawn when it is lost, and kept then.  `Done` tells them again.
    kept : _Sums
        Of visits that workers before it had settled.
    """

    epoch: int
    node: int = 0
    open: _Sums = field(default_factory=_Sums)
    settled: _Sums = field(default_factory=_Sums)
    kept: _Sums = field(default_factory=_Sums)


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
        self._rates_since = -math.inf
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=RECENT_BLOCKS)
        self._visits: dict[int, _Visits] = {}  # of tenancies that are not done
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

    def count_visit(self, tenancy: int, epoch: int, result: BlockResult, node: int = 0) -> None:
        """Adds the result of a worker's visit, until `end_visits` of its tenancy."""
        visits = self._visits_of(tenancy, epoch, node)
        visits.open.units += result.units
        self.add(result.units)
        if result.examples > 0 and not math.isnan(result.loss):
            visits.open.loss += result.loss
            visits.open.examples += result.examples
            self._add_loss(epoch, result.loss, result.examples)
            self._recent.append((result.loss, result.examples, tenancy))
        if not math.isnan(result.lr):
            self.lr = result.lr

    def _visits_of(self, tenancy: int, epoch: int, node: int) -> _Visits:
        """The results of a tenancy that this worker has now."""
        visits = self._visits.setdefault(tenancy, _Visits(epoch, node))
        if visits.node != node:
            self.lose_visits(tenancy)
            visits = self._visits.setdefault(tenancy, visits)
            visits.node = node
        return visits

    def settle_visits(self, tenancy: int) -> dict[str, Any]:
        """What is counted of a tenancy's visits stays if its worker is lost; what that adds."""
        visits = self._visits.get(tenancy)
        if visits is None:
            return asdict(_Sums())
        new, visits.open = visits.open, _Sums()
        visits.settled.add(new)
        self._keep_recent(tenancy)
        return asdict(new)

    def know_visits(self, tenancy: int, epoch: int, node: int, figures: Mapping[str, Any]) -> None:
        """Adds what `settle_visits` returned to an earlier master."""
        new = _Sums.of(figures)
        self._visits_of(tenancy, epoch, node).settled.add(new)
        self._count_sums(epoch, new)

    def _count_sums(self, epoch: int, sums: _Sums, sign: int = 1) -> None:
        """Adds results of visits, or withdraws them."""
        self.units += sign * sums.units
        if sums.examples:
            self._add_loss(epoch, sign * sums.loss, sign * sums.examples)

    def _keep_recent(self, tenancy: int, *, lost: bool = False) -> None:
        """In the loss shown, visits of this tenancy stay, or are `lost`."""
        kept = [
            (loss, examples, _BLOCK if by == tenancy else by)
            for loss, examples, by in self._recent
            if not (lost and by == tenancy)
        ]
        self._recent.clear()
        self._recent.extend(kept)

    def lose_visits(self, tenancy: int) -> int:
        """The worker of a tenancy is lost: withdraws what it had not settled; the units of that."""
        visits = self._visits.get(tenancy)
        if visits is None:
            return 0
        lost, visits.open = visits.open, _Sums()
        visits.kept.add(visits.settled)
        visits.settled, visits.node = _Sums(), 0
        if visits.kept == _Sums():
            del self._visits[tenancy]
        self._count_sums(visits.epoch, lost, -1)
        self._keep_recent(tenancy, lost=True)
        return lost.units

    def end_visits(self, tenancy: int, node: int = 0) -> int:
        """Withdraws the results of a worker's visits, as its tenancy is done and counts whole.

        Returns
        -------
        int
            Their units.  The loss shown stays that of the visits.
        """
        visits = self._visits.get(tenancy)
        if visits is None:
            return 0
        if visits.node != node:  # it has visited nothing itself
            self.lose_visits(tenancy)
        self._visits.pop(tenancy, None)
        for sums in (visits.open, visits.settled):
            self._count_sums(visits.epoch, sums, -1)
        self._keep_recent(tenancy)
        return visits.open.units + visits.settled.units

    @property
    def visited(self) -> list[int]:
        """Tenancies that are not done, and whose visits are counted."""
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

    def snapshot(self, *, exact: bool = False) -> dict[str, Any]:
        """All of it but what was seen of the speed, and of tenancies not done, for JSON.

        With `exact`, for a master that takes over, also what is settled of those.
        """
        units, losses, visited = self.units, [list(sums) for sums in self.losses], []
        for tenancy, visits in self._visits.items():
            for sums in (visits.open, visits.settled, visits.kept):
                units -= sums.units
                if sums.examples:
                    losses[visits.epoch][0] -= sums.loss
                    losses[visits.epoch][1] -= sums.examples
            settled = {"settled": asdict(visits.settled), "kept": asdict(visits.kept)}
            visited.append([tenancy, visits.epoch, visits.node, settled])
        return {
            **({"visits": visited} if exact else {}),
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
        for tenancy, epoch, node, sums in snapshot.get("visits", ()):
            visits = _Visits(epoch, node)
            visits.settled, visits.kept = _Sums.of(sums["settled"]), _Sums.of(sums["kept"])
            self._visits[tenancy] = visits
            for some in (visits.settled, visits.kept):
                self._count_sums(epoch, some)
        self._durations.clear()
        self._durations.extend(snapshot["durations"])

    def came(self, units: int, now: float) -> None:
        """A block has come in just now, whenever it counts."""
        self._rates.append((now, units))

    def took(self, seconds: float) -> None:
        """A block was trained for so long."""
        self._durations.append(seconds)

    def forget_rate(self, now: float) -> None:
        """What came before came under another master, which this one did not see."""
        self._rates.clear()
        self._rates_since = now

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

    def is_flat(self, epochs: int) -> bool:
        """Whether the mean loss has stopped falling by the end of so many whole epochs.

        The least of the last `FLAT_EPOCHS` is compared with the least of those before.
        """
        losses = self.loss_by_epoch()[:epochs]
        known = [loss for loss in losses if loss is not None]
        if len(known) <= FLAT_EPOCHS or len(known) < len(losses):
            return False
        before, last = min(known[:-FLAT_EPOCHS]), min(known[-FLAT_EPOCHS:])
        return before - last < FLAT_EPOCHS * FLAT * abs(known[0])

    def falling(self, constant: float = 0.0) -> float:
        """By what share of itself the last epoch has brought the loss down.

        0: by less than 1%, or next to the loss of a `constant`, or else the first one, it is
        nothing.
        """
        first, *_ = *self.loss_by_epoch(), 0.0
        *_, before, last = 0.0, 0.0, *self.loss_by_epoch()
        if not before or last is None or last <= LEARNT * (constant or first or 0.0):
            return 0.0
        share = (before - last) / before if before > 0 else 0.0
        return share if share >= FALLING else 0.0

    def loss_by_epoch(self) -> list[float | None]:
        """Mean loss of each epoch or round; None where nothing is known."""
        return [sums[0] / sums[1] if sums[1] else None for sums in self.losses]

    def rate(self, begun: float, now: float) -> float:
        """Units per second over the last `RATE_WINDOW_S` seconds of a pass that began then."""
        while self._rates and now - self._rates[0][0] > RATE_WINDOW_S:
            self._rates.popleft()
        window = min(RATE_WINDOW_S, now - max(begun, self._rates_since))
        return sum(units for _, units in self._rates) / window if window > 0 else 0.0
