"""How many epochs a classifier trains, where the user leaves that to the model.

    input files, their bytes -> lines_in -> lines; lines, rate -> enough_epochs -> epochs

What is learnt depends on the sum of the rates of all lines, whether from many lines, many epochs or
a high rate: docs/classifier.md has accuracies by this sum.  Looks at files, never at rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from snailps.api.passes import EPOCHS, EPOCHS_MAX
from snailps.data.blocks import files_of, head_of
from snailps.data.driver_files import is_driver_file, size_of
from snailps.data.unpacking import is_packed, is_url
from snailps.models.classifier.settings import LR

STEPS = 40_000.0
"""Sum of the initial rates of all lines."""
STEPS_GRAMS = 120_000.0
"""`STEPS` with n-grams of characters, which have more to learn."""
PACKED = 3
"""Bytes of a text for each byte of its packed file, about."""
LINE_BYTES = 100
"""Bytes of a line, where no file can be read."""


def enough_epochs(lines: int, lr: float, steps: float = STEPS) -> int:
    """Epochs for `lines` lines: `EPOCHS` of a large text, at most `EPOCHS_MAX`."""
    return min(EPOCHS_MAX, max(EPOCHS, math.ceil(steps / (lr * max(1, lines)))))


def is_small(inputs: Sequence[str]) -> bool:
    """Whether the text gets more epochs than a large one; a text to be fetched counts as large."""
    total = 0
    for path in files_of(inputs):
        if is_url(path):
            return False
        size = size_of(path) if is_driver_file(path) else Path(path).stat().st_size
        total += size * (PACKED if is_packed(path) else 1)
    return enough_epochs(lines_in(inputs, total), LR) > EPOCHS


def lines_in(inputs: Sequence[str], total_bytes: int) -> int:
    """Estimate the input's lines from the beginning of its first file."""
    head = head_of(files_of(inputs)[0])
    lines = head.count(b"\n")
    return max(1, round(total_bytes * lines / len(head)) if lines else total_bytes // LINE_BYTES)
