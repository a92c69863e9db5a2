"""Ends a pass of a job, and makes the figures of its run.

end_pass -> what counts -> figures -> the report, the model's file
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from snailps.master.job.job import Job

log = logging.getLogger(__name__)

BY_HEART = 0.5
"""Part of the first epoch's loss, most of whose lines were new, below which few lines may have been
learnt by heart."""


def end_pass(job: Job, now: float) -> None:
    """End a pass. After a training that ended early, figures count exactly what the model has:
    results whose pushes the servers may lack, as their workers are gone, are withdrawn."""
    job.clock.seconds[job.pass_] = job.clock.elapsed_s(now)
    job.settings = job.rules.finish(job.model, job.settings, job.metrics)
    if job.pass_ != "train" or job.model.rounds.number:
        return
    if not job.schedule.closed:
        if lacking := len(job.schedule.unpushed()):
            log.warning(
                "the model may lack a part of what %d blocks taught: their workers are gone, "
                "and not all of their pushes are acknowledged",
                lacking,
            )
        return
    taken = job.schedule.withdraw()
    for number, result in taken.items():
        job.metrics.withdraw(job.schedule.plan.epoch_of(number), result)
    if taken:
        log.warning(
            "%d of the blocks that were reported do not count: their workers are gone, and not "
            "all of their pushes are acknowledged",
            len(taken),
        )
    if not job.metrics.units:
        cause = f" before the training ended ({job.rules.ended_by})" if job.rules.ended_by else ""
        log.warning(
            "nothing was trained: no block was finished%s, and the model is as it began", cause
        )


def lacks_rounds(job: Job) -> str:
    """Why a limit has left no round in the model; empty where one is, or users wanted none."""
    rounds = job.schedule.rounds
    if rounds is None or rounds.round or job.rules.ended_by != "max_seconds":
        return ""
    return (
        f"max_seconds: {job.settings.max_seconds:g} s end before the first round does, so "
        "there is no model: give more, or make rounds shorter"
    )


def figures_of(job: Job, nodes: Mapping[str, float], now: float) -> dict[str, Any]:
    """Metrics of the run; `nodes`: sums of ``peak_rss_mb``, ``bytes_in``, ``bytes_out``."""
    kind, metrics, schedule = job.model.counts, job.metrics, job.schedule
    seconds = job.clock.seconds.get("train", 0.0)
    losses, units = metrics.loss_by_epoch(), metrics.units
    epochs = math.ceil(job.epochs_done - 1e-9)  # that were begun
    by_schedule = schedule.figures()
    if schedule.ranges is not None:  # parts of an epoch do not compare: cut by frequency
        losses = losses[: int(job.epochs_done + 1e-9)]
    if (rounds := schedule.rounds) is not None:  # rounds that were applied
        losses, units = losses[: rounds.round], job.round_results.units
        by_schedule["by_round"] = job.round_results.by_round
    else:
        losses += [None] * (epochs - len(losses))
    measured_losses = [loss for loss in losses if loss is not None]
    moved = nodes.get("bytes_in", 0.0) + nodes.get("bytes_out", 0.0)
    ended_by = job.rules.ended_by or _end(job)
    return {
        **({"bad_lines": metrics.bad_lines} if metrics.bad_lines else {}),
        **_advice(job, measured_losses, ended_by),
        **job.rules.counted,
        **job.tested.figures,
        "ended_by": ended_by,
        f"{kind}_per_s": round(units / seconds, 1) if seconds else None,
        kind: units,
        "train_s": round(seconds, 3),
        "survey_s": round(job.clock.seconds.get("survey", 0.0), 3),
        "wall_s": round(now - job.clock.begun, 3),
        "train_loss": measured_losses[-1] if measured_losses else None,
        "loss_by_epoch": losses,
        "progress": round(schedule.progress, 6),
        "epochs": epochs,
        "blocks": schedule.finished,
        "blocks_per_epoch": len(job.input.blocks),
        f"block_{kind}_max": metrics.block_units,
        f"bytes_per_{kind[:-1]}": round(moved / units, 2) if units else None,
        "peak_rss_mb": round(nodes.get("peak_rss_mb", 0.0), 1),
        **by_schedule,
    }


def _advice(job: Job, losses: list[float], ended_by: str) -> dict[str, Any]:
    """Figures from which the report advises other settings: the `losses` of epochs are known."""
    advice: dict[str, Any] = {}
    passes, constant = job.model.by_input.passes, job.model.constant_loss
    is_tested = bool(job.model.by_input.at("epoch"))  # whose figures say more than losses
    # Few lines, so many epochs: the loss of the training does not show what they learnt by heart.
    may_know_lines = passes is not None and passes.by_heart and not is_tested
    if may_know_lines and len(losses) > 1 and losses[-1] < BY_HEART * losses[0]:
        advice["by_heart"] = True
    is_planned = passes is not None and passes.least == passes.most  # all are trained
    # Passes over ranges solve: none lowers the loss further.
    may_want_more = not (is_planned or is_tested) and job.schedule.ranges is None
    is_reported = ended_by == "epochs" and job.model.judges_epochs and may_want_more
    if is_reported and (falls := job.metrics.falling(constant)):
        advice["loss_falls"] = round(falls, 4)
    if len(losses) > 1 and 0 < 1.001 * constant < losses[-1]:
        advice["constant_loss"] = constant
    return advice


def _end(job: Job) -> str:
    """`ended_by` of a training that was not ended early."""
    whole = job.settings.epochs * len(job.input.blocks)
    early = job.schedule.ranges is None and job.schedule.size < whole
    if early:
        return job.rules.reached or "max_steps"
    return "epochs" if job.schedule.rounds is None else "rounds"
