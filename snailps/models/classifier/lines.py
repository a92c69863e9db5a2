"""Lines of a text, trained on rows in memory by several threads.

    lines, rows of words and labels -> begin -> a part of the lines a thread -> losses

Shared by a worker's blocks, a pruned model that is trained on, and trials.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.data._labelled import Lines
from snailps.data._shuffling import drawn_order, entries_in_order, pointers_in_order
from snailps.models.classifier.outputs import LOSSES, Outputs
from snailps.models.classifier.weights import weights_of_lines

Floats = NDArray[np.float32]
Order = NDArray[np.uint32]

SPAN_FEATURES = 1 << 20
"""Features between two looks at whether to stop: about a tenth of a second."""
MEAN_STEPS = 8
"""Steps of a line at most, as a mean over lines: memory grows with them.  A line of more weight
takes several steps in a row."""
EVEN = 1e-5
"""Weights that differ by less are equal: thirds of labels add up to 1 in float32 only about."""


class LineSteps(NamedTuple):
    """How lines are trained: rates are of the first and after the last line.

    Input rows move `lead` times as far as their gradients say.
    """

    dim: int
    loss: str
    negatives: int
    rates: tuple[float, float]
    seed: int
    lead: float = 1.0


def joined(parts: Sequence[Lines]) -> Lines:
    """Append lines of several pieces of a text."""

    def pointers(name: str) -> NDArray[np.int64]:
        sizes = [np.diff(getattr(part, name)) for part in parts]
        return np.concatenate(([0], np.cumsum(np.concatenate(sizes)))).astype(np.int64)

    return Lines(
        pointers("feature_ptr"),
        np.concatenate([part.features for part in parts]),
        pointers("label_ptr"),
        np.concatenate([part.labels for part in parts]),
        sum(part.tokens for part in parts),
        sum(part.unread for part in parts),
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("line_weights", "label_weights", "rests")
        ),
    )


def spans(ptr: NDArray[np.int64], lines: int) -> Iterator[tuple[int, int]]:
    """Cut the first `lines` lines into spans of about `SPAN_FEATURES` features."""
    start = 0
    while start < lines:
        end = int(np.searchsorted(ptr, ptr[start] + SPAN_FEATURES))
        end = min(lines, max(start + 1, end))
        yield start, end
        start = end


def steps_of(lines: Lines, loss: str) -> Order | None:
    """The line of each step of an epoch, rising: a line of weight n is n lines.

    None: no line has a weight above 1.  A weight between two whole numbers has as many steps as the
    larger, of equal weights.
    """
    weights = weights_of_lines(lines, loss)
    if loss == "ova" and len(lines.label_weights):  # the largest yes makes the step
        largest = np.ones(len(weights), np.float32)
        owners = np.repeat(np.arange(len(weights)), np.diff(lines.label_ptr))
        np.maximum.at(largest, owners, lines.label_weights)
        weights = weights * largest
    if weights.max(initial=0) <= 1 + EVEN:
        return None
    steps = np.maximum(np.ceil(weights - EVEN), 1)
    most = float(steps.max())
    while np.minimum(steps, most).sum() > MEAN_STEPS * len(steps):
        most = most // 2
    return np.repeat(np.arange(len(steps), dtype=np.uint32), np.minimum(steps, most).astype(int))


def in_order(lines: Lines, order: Order) -> Lines:
    """Put lines into an order, in which a line may be several times: it shares out its weight."""
    number = len(lines.label_ptr) - 1
    of_lines, *of_labels = lines.line_weights, lines.label_weights, lines.rests
    times = np.bincount(order, minlength=number)
    if times.max(initial=0) > 1:
        of_lines = of_lines if len(of_lines) else np.ones(number, np.float32)
        of_lines = (of_lines / np.maximum(times, 1)).astype(np.float32)
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


def stepped(lines: Lines, loss: str, *, shuffle: int | None) -> Lines:
    """Repeat each line as its weight says; in an order that the seed `shuffle` determines."""
    steps = steps_of(lines, loss)
    if shuffle is not None:
        order = drawn_order(shuffle, len(lines.label_ptr) - 1 if steps is None else len(steps))
        return in_order(lines, order if steps is None else steps[order])
    return lines if steps is None else in_order(lines, steps)


def begin(
    start_kernel: Callable[..., Future[tuple[float, float]]],
    threads: int,
    rows: tuple[Floats, Floats],
    lines: Lines,
    outputs: Outputs,
    span: tuple[int, int],
    steps: LineSteps,
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
