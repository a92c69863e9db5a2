"""How many epochs a classifier trains, and which features it has, where the user leaves that open.

    lines of the input, counted; rate -> enough_epochs -> epochs; is_small -> n-grams of characters

What is learnt depends on the sum of the step sizes of all lines, whether they are many, trained for
many epochs, or with a high rate: docs/classifier.md has accuracies by this sum.  Reads files, never
rows.
"""

from __future__ import annotations

import math

from snailps.api.passes import EPOCHS, EPOCHS_MAX
from snailps.data._labelled import WeightError, without_weights
from snailps.data._text import WordCounter
from snailps.data.held_out import HeldOut
from snailps.files.input_files import InputFiles
from snailps.models.classifier.settings import LR

STEPS = 40_000.0
"""Wanted sum of the initial step sizes of all lines."""
STEPS_GRAMS = 120_000.0
"""`STEPS` with n-grams of characters, which have more to learn."""


def enough_epochs(lines: int, lr: float, steps: float = STEPS) -> int:
    """Epochs for this many lines: `EPOCHS` for a large text, `EPOCHS_MAX` at most."""
    return min(EPOCHS_MAX, max(EPOCHS, math.ceil(steps / (lr * max(1, lines)))))


def epochs_of(
    files: InputFiles, lr: float, steps: float = STEPS, split: HeldOut | None = None
) -> int:
    """Epochs for the trained lines of an input, which are counted only as far as their number
    matters."""
    return enough_epochs(files.trained_lines(math.ceil(steps / (lr * EPOCHS)), split), lr, steps)


def has_one_label(
    files: InputFiles, prefix: bytes, *, has_weights: bool = False, split: HeldOut | None = None
) -> bool:
    """Whether all trained lines have the same label; reads no further than the second label."""
    counter = WordCounter()
    for data in files.pieces(split):
        try:
            counter.count(without_weights(data, prefix)[0] if has_weights else data)
        except WeightError:  # the survey says in which file and line
            return False
        if counter.words().begin_with(prefix).sum() > 1:
            return False
    return True


def is_small(files: InputFiles, split: HeldOut | None = None) -> bool:
    """Whether the text gets more epochs than a large text."""
    return epochs_of(files, LR, split=split) > EPOCHS
