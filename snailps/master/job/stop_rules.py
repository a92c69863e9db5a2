"""Why a training ends before its last block, if it does.

    losses, counts -> check_loss, judge -> diverged, refused: the job fails
    units, losses, seconds -> enough, reach -> ended_by: the model is saved

`job.py` reports what comes, `controller.py` acts. Must not know leases; `max_steps` and `epochs`
are bounds of the schedule, and no rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from snailps.api.passes import Passes
from snailps.config import JobSettings
from snailps.master.job.loss_watch import LossWatch
from snailps.master.job.metrics import PassMetrics
from snailps.master.job.model_class import ModelClass, judge_counts


class StopRules:
    """The reasons of one training; none is taken back."""

    def __init__(self) -> None:
        self.diverged = ""  # in words; by a loss
        self.refused = ""  # in words; by what workers have counted
        self.ended_by = ""  # name of a setting or rule, or "interrupt": set once no block is leased
        # The rule that an entry, clock or round met, and its number: what is leased beyond it does
        # not count, so that the end depends on no speed. -1: none has.
        self.reached, self.reached_in = "", -1
        self.counted: Mapping[str, Any] = {}  # figures that the model makes of its counts
        # The job is known by the settings that it was given, not by those that follow from counts:
        # the next run has none, and must find the checkpoint of this one. None: still the same.
        self.settings_before: JobSettings | None = None
        self.is_judged = False  # counts were judged after the first epoch
        self._losses: LossWatch | None = None  # of the training, once there is a loss

    @property
    def has_reached(self) -> bool:
        """An entry, clock or round has ended the training: `target_loss` is reached, or it
        converged."""
        return self.reached_in >= 0

    def reach(self, why: str, place: int) -> None:
        self.reached, self.reached_in = why, place

    def check_loss(
        self, model: ModelClass, settings: JobSettings, where: str, loss: float, workers: int
    ) -> str:
        """Take the mean loss of a block or round; returns why the training must end, or ""."""
        if self._losses is None:
            self._losses = LossWatch(model.loss_bound, model.constant_loss, settings)
        return self._losses.check(where, loss, workers)

    def judge(self, model: ModelClass, settings: JobSettings, metrics: PassMetrics) -> None:
        """After the first epoch: refuse a training whose counts say that its result is useless."""
        self.is_judged = True
        self.refused = judge_counts(model.cls, settings, metrics.counts, metrics.units).refused

    def finish(self, model: ModelClass, settings: JobSettings, metrics: PassMetrics) -> JobSettings:
        """Judge the counts of the whole pass; returns the settings that follow from them."""
        counted = judge_counts(model.cls, settings, metrics.counts, metrics.units)
        self.counted, self.settings_before = counted.figures, settings
        self.refused = self.refused or counted.refused
        return counted.settings

    def dump(self) -> dict[str, Any]:
        return {"diverged": self.diverged, "reached": [self.reached_in, self.reached]}

    def load(self, dumped: Mapping[str, Any]) -> None:
        self.diverged = str(dumped["diverged"])
        self.reached_in, self.reached = dumped["reached"]


def least_epochs(settings: JobSettings, passes: Passes | None) -> int:
    """Epochs after which the training may end once the loss stops falling: all, unless the model
    chose their number."""
    return settings.epochs if passes is None else passes.least


def enough(
    settings: JobSettings, passes: Passes | None, metrics: PassMetrics, epochs: int, blocks: int
) -> str:
    """`ended_by`, if the loss after `epochs` whole epochs of `blocks` ends the training."""
    if metrics.is_low(settings.target_loss, blocks):
        return "target_loss"
    relative = passes is not None and passes.relative
    may_end = least_epochs(settings, passes) <= epochs < settings.epochs
    return "converged" if may_end and metrics.is_flat(epochs, relative=relative) else ""
