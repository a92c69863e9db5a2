"""Owns the metrics of one pass of a job: units, losses, rate, duration of a block.

    results of blocks, in the order in which they count -> PassMetrics -> loss, rate, block_s

Sums and means over the records of blocks (`leases/records.py`). Must not know leases or limits. In
a rotation results of checkouts count before their partition is done: they are withdrawn when it is
reported whole, or its worker is lost, so nothing counts twice. `now` is monotonic seconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.counting import COUNT
from snailps.dataclass import asdict, dataclass, field
from snailps.master.leases.records import BlockResult
from snailps.master.member import RATE_WINDOW_S

RECENT_BLOCKS = 16
"""Blocks, or checkouts, over which the loss is averaged that is shown and compared with
`target_loss`."""
FLAT_EPOCHS = 5
"""The loss has stopped falling when this many epochs lowered it by less than `FLAT` each, as a
share of the first epoch's loss or, with `relative`, of the loss itself."""
FLAT = 5e-4
"""Share of the first epoch's loss: used like scikit-learn's `tol`, at half of its default."""
FALLING = 0.01
"""The loss still falls if the last epoch lowered it by this share of itself."""
LEARNT = 1e-4
"""Share of a constant's loss (or of the first epoch's) below which nothing is left to gain."""
_BLOCK = -1
"""In place of a lease's number: a block, whose result is final."""


@dataclass(slots=True)
class _Sums:
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
class _LeaseSums:
    """The results of the checkouts of an unfinished partition."""

    epoch: int
    node: int = 0  # the worker that has it, or had it last
    open: _Sums = field(default_factory=_Sums)  # not durable: withdrawn when the worker is lost
    durable: _Sums = field(default_factory=_Sums)  # of this worker; its `Done` includes them again
    kept: _Sums = field(default_factory=_Sums)  # durable, of earlier workers of the partition


class PassMetrics:
    """Metrics of one pass."""

    def __init__(self) -> None:
        # of all blocks, of the largest one, and malformed lines of the first epoch
        self.units = self.block_units = self.bad_lines = 0
        # sum of losses and number of examples, by epoch or round
        self.losses: list[list[float]] = []
        # learning rate after the last block, where the model reports it
        self.lr: float | None = None
        self._rates: deque[tuple[float, int]] = deque()
        self._rates_since = -math.inf
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=RECENT_BLOCKS)
        self._leases: dict[int, _LeaseSums] = {}  # of unfinished partitions
        self._durations: deque[float] = deque(maxlen=RECENT_BLOCKS)
        self.counts: dict[str, float] = {}  # of all blocks, by what the model counts

    def add_counts(self, metrics: Mapping[str, float]) -> None:
        """Add the metrics of a block that are counts of the model."""
        for name, count in metrics.items():
            if name.startswith(COUNT):
                of = name.removeprefix(COUNT)
                self.counts[of] = self.counts.get(of, 0.0) + count

    def add(self, units: int) -> None:
        self.units += units
        self.block_units = max(self.block_units, units)

    def count(
        self, epoch: int, result: BlockResult, *, recent: bool = True, of: int = _BLOCK
    ) -> None:
        """Add the result of a block, or of a checkout `of` a lease; `recent`: in the loss shown."""
        self.add(result.units)
        loss, examples = result.loss, result.examples
        if examples > 0 and not math.isnan(loss):
            self._add_loss(epoch, loss, examples)
            if recent:
                self._recent.append((loss, examples, of))
        if epoch == 0:
            self.bad_lines += result.bad_lines
        if not math.isnan(result.lr):
            self.lr = result.lr

    def withdraw(self, epoch: int, result: BlockResult) -> None:
        """Subtract the result of a block from the sums."""
        self._count_sums(epoch, _Sums(result.units, result.loss, result.examples), -1)
        if epoch == 0:
            self.bad_lines -= result.bad_lines

    def _add_loss(self, epoch: int, loss: float, examples: float) -> None:
        self.losses += [[0.0, 0.0] for _ in range(len(self.losses), epoch + 1)]
        sums = self.losses[epoch]
        sums[0] += loss
        sums[1] += examples

    def count_checkout(self, lease: int, epoch: int, result: BlockResult, node: int = 0) -> None:
        """Add the result of a checkout, until `end_checkouts` of its lease."""
        sums = self._sums_of(lease, epoch, node)
        sums.open.units += result.units
        if result.examples > 0 and not math.isnan(result.loss):
            sums.open.loss += result.loss
            sums.open.examples += result.examples
        self.count(epoch, result, of=lease)

    def _sums_of(self, lease: int, epoch: int, node: int) -> _LeaseSums:
        """The results of a lease that this worker has now."""
        sums = self._leases.setdefault(lease, _LeaseSums(epoch, node))
        if sums.node != node:
            self.lose_checkouts(lease)
            sums = self._leases.setdefault(lease, sums)
            sums.node = node
        return sums

    def make_durable(self, lease: int) -> dict[str, Any]:
        """Make the checkouts of a lease durable; returns the sums that became so."""
        sums = self._leases.get(lease)
        if sums is None:
            return asdict(_Sums())
        new, sums.open = sums.open, _Sums()
        sums.durable.add(new)
        self._keep_recent(lease)
        return asdict(new)

    def adopt_durable(self, lease: int, epoch: int, node: int, figures: Mapping[str, Any]) -> None:
        """Add what `make_durable` returned to an earlier master."""
        new = _Sums.of(figures)
        self._sums_of(lease, epoch, node).durable.add(new)
        self._count_sums(epoch, new)

    def _count_sums(self, epoch: int, sums: _Sums, sign: int = 1) -> None:
        self.units += sign * sums.units
        if sums.examples > 0 and not math.isnan(sums.loss):
            self._add_loss(epoch, sign * sums.loss, sign * sums.examples)

    def _keep_recent(self, lease: int, *, lost: bool = False) -> None:
        """In the loss shown, keep the checkouts of this lease, or drop them if `lost`."""
        kept = [
            (loss, examples, _BLOCK if by == lease else by)
            for loss, examples, by in self._recent
            if not (lost and by == lease)
        ]
        self._recent.clear()
        self._recent.extend(kept)

    def lose_checkouts(self, lease: int) -> int:
        """Withdraw the undurable checkouts of a lost worker; returns their units."""
        sums = self._leases.get(lease)
        if sums is None:
            return 0
        lost, sums.open = sums.open, _Sums()
        sums.kept.add(sums.durable)
        sums.durable, sums.node = _Sums(), 0
        if sums.kept == _Sums():
            del self._leases[lease]
        self._count_sums(sums.epoch, lost, -1)
        self._keep_recent(lease, lost=True)
        return lost.units

    def end_checkouts(self, lease: int, node: int = 0) -> int:
        """Withdraw a worker's checkouts of a finished partition, whose result counts instead;
        returns their units. The loss shown is still the mean of the checkouts."""
        sums = self._leases.get(lease)
        if sums is None:
            return 0
        if sums.node != node:  # it has checked out nothing itself
            self.lose_checkouts(lease)
        self._leases.pop(lease, None)
        for withdrawn in (sums.open, sums.durable):
            self._count_sums(sums.epoch, withdrawn, -1)
        self._keep_recent(lease)
        return sums.open.units + sums.durable.units

    def cut(self, lease: int, epoch: int, node: int, result: BlockResult) -> int:
        """Count the result of a lease that ended before it had all checkouts, in place of these;
        returns their units. No `snapshot` has it: a run that continues trains the partition
        again."""
        earlier = sums.kept if (sums := self._leases.get(lease)) is not None else _Sums()
        units = self.end_checkouts(lease, node)
        before = _Sums(self.units, *self._losses_of(epoch))
        self.count(epoch, result, recent=not units)
        loss, examples = self._losses_of(epoch)
        added = _Sums(self.units - before.units, loss - before.loss, examples - before.examples)
        earlier.add(added)
        self._leases[lease] = _LeaseSums(epoch, kept=earlier)
        return units

    def _losses_of(self, epoch: int) -> tuple[float, float]:
        loss, examples = self.losses[epoch] if epoch < len(self.losses) else (0.0, 0.0)
        return loss, examples

    @property
    def unfinished(self) -> list[int]:
        """Unfinished partitions with counted checkouts."""
        return list(self._leases)

    def count_all(self, epochs: NDArray[np.int64], records: NDArray[Any]) -> None:
        """Add the results of many blocks, in this order, without their `lr`."""
        if not len(records):
            return
        units, losses, examples = (records[name] for name in ("units", "loss", "examples"))
        self.bad_lines += int(records["bad_lines"][epochs == 0].sum())
        self.units += int(units.sum())
        self.block_units = max(self.block_units, int(units.max()))
        with_loss = np.flatnonzero((examples > 0) & ~np.isnan(losses))
        epochs, losses, examples = epochs[with_loss], losses[with_loss], examples[with_loss]
        self.losses += [[0.0, 0.0] for _ in range(len(self.losses), max(epochs, default=-1) + 1)]
        for place, figures in enumerate((losses, examples)):
            for epoch, sum_ in enumerate(np.bincount(epochs, figures).tolist()):
                self.losses[epoch][place] += sum_
        last = slice(-RECENT_BLOCKS, None)
        recent = zip(losses[last].tolist(), examples[last].tolist(), strict=True)
        self._recent.extend((loss, count, _BLOCK) for loss, count in recent)

    def snapshot(self, *, exact: bool = False) -> dict[str, Any]:
        """State for JSON, without rates. With `exact`, for a master that takes over, also durable
        checkouts of unfinished partitions; a checkpoint trains these again."""
        units, losses, unfinished = self.units, [list(part) for part in self.losses], []
        for lease, sums in self._leases.items():
            for part in (sums.open, sums.durable, sums.kept):
                units -= part.units
                if part.examples:
                    losses[sums.epoch][0] -= part.loss
                    losses[sums.epoch][1] -= part.examples
            durable = {"durable": asdict(sums.durable), "kept": asdict(sums.kept)}
            unfinished.append([lease, sums.epoch, sums.node, durable])
        return {
            **({"checkouts": unfinished} if exact else {}),
            "units": units,
            "block_units": self.block_units,
            "bad_lines": self.bad_lines,
            "losses": losses,
            "lr": self.lr,
            "recent": [[loss, examples] for loss, examples, _ in self._recent],
            "durations": list(self._durations),
            "counts": self.counts,
        }

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from the `snapshot` of other metrics."""
        self.units, self.block_units = int(snapshot["units"]), int(snapshot["block_units"])
        self.bad_lines, self.lr = int(snapshot["bad_lines"]), snapshot["lr"]
        self.losses = [list(sums) for sums in snapshot["losses"]]
        self._recent.clear()
        self._recent.extend((loss, examples, _BLOCK) for loss, examples in snapshot["recent"])
        self._leases.clear()
        for lease, epoch, node, saved in snapshot.get("checkouts", ()):
            sums = self._leases[lease] = _LeaseSums(epoch, node)
            sums.durable, sums.kept = _Sums.of(saved["durable"]), _Sums.of(saved["kept"])
            for part in (sums.durable, sums.kept):
                self._count_sums(epoch, part)
        self._durations.clear()
        self._durations.extend(snapshot["durations"])
        self.counts = dict(snapshot.get("counts", {}))

    def came(self, units: int, now: float) -> None:
        """Count units for the rate, when they are reported: in bsp a result counts later."""
        self._rates.append((now, units))

    def took(self, seconds: float) -> None:
        self._durations.append(seconds)

    def forget_rate(self, now: float) -> None:
        """Begin rates anew: a master that takes over has not seen the last seconds."""
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
        """Whether the mean loss of the last blocks is at most `target`; an epoch has `blocks`."""
        enough = len(self._recent) >= min(RECENT_BLOCKS, blocks)
        return bool(target and enough and self.loss is not None and self.loss <= target)

    def is_flat(self, epochs: int, *, relative: bool = False) -> bool:
        """Whether the last `FLAT_EPOCHS` have not lowered the least loss by enough."""
        losses = [loss for loss in self.loss_by_epoch()[:epochs] if loss is not None]
        if len(losses) <= FLAT_EPOCHS or len(losses) < epochs:
            return False
        before, last = min(losses[:-FLAT_EPOCHS]), min(losses[-FLAT_EPOCHS:])
        scale = max(abs(before), LEARNT * abs(losses[0])) if relative else abs(losses[0])
        return before - last < FLAT_EPOCHS * FLAT * scale

    def falling(self, constant: float = 0.0) -> float:
        """By which share of itself the last epoch lowered the loss, 0 to 1. A share below 1% counts
        as 0. So does any share once the loss is negligible: compared with the loss of a `constant`
        prediction or, where that is unknown (0), with the loss of the first epoch."""
        first, *_ = *self.loss_by_epoch(), 0.0
        *_, before, last = 0.0, 0.0, *self.loss_by_epoch()
        if not before or last is None or last <= LEARNT * (constant or first or 0.0):
            return 0.0
        share = (before - last) / before if before > 0 else 0.0
        return share if share >= FALLING else 0.0

    def loss_by_epoch(self) -> list[float | None]:
        """Mean loss of each epoch or round; None where unknown."""
        return [sums[0] / sums[1] if sums[1] else None for sums in self.losses]

    def rate(self, begun: float, now: float) -> float:
        """Units per second over the last `RATE_WINDOW_S` seconds of a pass begun at `begun`."""
        while self._rates and now - self._rates[0][0] > RATE_WINDOW_S:
            self._rates.popleft()
        window = min(RATE_WINDOW_S, now - max(begun, self._rates_since))
        return sum(units for _, units in self._rates) / window if window > 0 else 0.0


class RoundResults:
    """Figures of rounds, and the sums as the present round began: a checkpoint within it has these,
    as the round is trained again."""

    def __init__(self) -> None:
        self.figures: list[dict[str, Any]] = []  # of `InRounds.after_round`, by round
        self.units, self.losses = 0, list[list[float]]()  # at the beginning of the present round

    def begin(self, metrics: PassMetrics, round_: int) -> None:
        """A round begins: `round_` were applied before it."""
        self.units = metrics.units
        self.losses = [list(sums) for sums in metrics.losses[:round_]]

    @property
    def by_round(self) -> list[dict[str, Any]]:
        """The figures of each round so far, with its number, from 1."""
        return [{**each, "round": n} for n, each in enumerate(self.figures, 1)]

    def dump(self) -> dict[str, Any]:
        return {"rounds": list(self.figures), "units": self.units, "losses": self.losses}

    def load(self, dumped: Mapping[str, Any], metrics: PassMetrics) -> None:
        """Take what was dumped; the sums go into the metrics, as the round begins again."""
        self.figures, metrics.units = list(dumped["rounds"]), int(dumped["units"])
        metrics.losses = [list(sums) for sums in dumped["losses"]]
