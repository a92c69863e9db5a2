"""How many epochs a classifier trains, and what it takes for features, where the user leaves that.

    lines of the input, counted; rate -> enough_epochs -> epochs; is_small -> n-grams of characters

What is learnt depends on the sum of the rates of all lines, whether from many lines, many epochs or
a high rate: docs/classifier.md has accuracies by this sum.  Looks at files, never at rows.
"""

from __future__ import annotations

import math

from snailps.api.passes import EPOCHS, EPOCHS_MAX
from snailps.data._text import WordCounter
from snailps.data.input_files import InputFiles
from snailps.models.classifier.settings import LR

STEPS = 40_000.0
"""Sum of the initial rates of all lines."""
STEPS_GRAMS = 120_000.0
"""`STEPS` with n-grams of characters, which have more to learn."""


def enough_epochs(lines: int, lr: float, steps: float = STEPS) -> int:
    """Epochs for `lines` lines: `EPOCHS` of a large text, at most `EPOCHS_MAX`."""
    return min(EPOCHS_MAX, max(EPOCHS, math.ceil(steps / (lr * max(1, lines)))))


def epochs_of(files: InputFiles, lr: float, steps: float = STEPS) -> int:
    """Epochs for the lines of an input, which are counted as far as their number matters."""
    return enough_epochs(files.lines(math.ceil(steps / (lr * EPOCHS))), lr, steps)


def has_one_label(files: InputFiles, prefix: bytes) -> bool:
    """Whether all lines have the same label; reads no further than to the second one."""
    counter = WordCounter()
    for data in files.pieces():
        counter.count(data)
        if counter.words().begin_with(prefix).sum() > 1:
            return False
    return True


def is_small(files: InputFiles) -> bool:
    """Whether the text gets more epochs than a large one."""
    return epochs_of(files, LR) > EPOCHS
