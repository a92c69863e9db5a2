"""Lines of a text, trained on rows in memory by several threads.

    lines, rows of words and labels -> begin -> a part of the lines a thread -> losses

Shared by a worker's blocks, a pruned model that is trained on, and trials.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.data._labelled import Lines
from snailps.data._shuffling import drawn_order, entries_in_order, pointers_in_order
from snailps.models.classifier.outputs import LOSSES, Outputs

Floats = NDArray[np.float32]


class Steps(NamedTuple):
    """How lines are trained: rates are of the first and after the last line.

    Input rows move `lead` times as far as their gradients say.
    """

    dim: int
    loss: str
    negatives: int
    rates: tuple[float, float]
    seed: int
    lead: float = 1.0


def shuffled(lines: Lines, seed: int, most: int | None = None) -> Lines:
    """Put lines into an order that `seed` determines; only the first `most` of it, if given."""
    order = drawn_order(seed, len(lines.label_ptr) - 1)[:most]
    of_lines, *of_labels = lines.line_weights, lines.label_weights, lines.rests
    label_weights, rests = (
        entries_in_order(weights, lines.label_ptr, order) if len(weights) else weights
        for weights in of_labels
    )
    return lines._replace(
        feature_ptr=pointers_in_order(lines.feature_ptr, order),
        features=entries_in_order(lines.features, lines.feature_ptr, order),
        label_ptr=pointers_in_order(lines.label_ptr, order),
        labels=entries_in_order(lines.labels, lines.label_ptr, order),
        line_weights=of_lines[order] if len(of_lines) else of_lines,
        label_weights=label_weights,
        rests=rests,
    )


def begin(
    start_kernel: Callable[..., Future[tuple[float, float]]],
    threads: int,
    rows: tuple[Floats, Floats],
    lines: Lines,
    outputs: Outputs,
    span: tuple[int, int],
    steps: Steps,
) -> list[Future[tuple[float, float]]]:
    """Train the lines ``span[0]`` to ``span[1] - 1``; a future has the sums of losses and weights.

    `rows` are input and output rows, changed in place; features, labels and `outputs` number them.
    """
    first, last = span
    # Parts with about the same number of features; they run at the same time, so each has the
    # rates of the whole span.
    ptr = lines.feature_ptr
    wanted = np.linspace(float(ptr[first]), float(ptr[last]), threads + 1)[1:-1]
    inner = np.clip(np.searchsorted(ptr, wanted), first, last)
    edges = sorted({first, *inner.tolist(), last})
    return [
        start_kernel(
            kernels.train_labels,
            *rows,
            steps.dim,
            lines.feature_ptr,
            lines.features,
            lines.label_ptr,
            lines.labels,
            outputs.noise,
            line_weights=lines.line_weights,
            label_weights=lines.label_weights,
            rests=lines.rests,
            loss=LOSSES[steps.loss],
            negatives=steps.negatives if len(outputs.noise) else 0,
            shared=len(edges) > 2,
            lr_start=steps.rates[0],
            lr_stop=steps.rates[1],
            seed=(steps.seed + start) & ((1 << 64) - 1),
            first=start,
            last=stop,
            lead=steps.lead,
            paths=outputs.checked,
        )
        for start, stop in itertools.pairwise(edges)
    ]
