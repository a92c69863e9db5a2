"""How often a classifier goes over its text, where the user leaves that to the model.

    input files, their bytes -> lines_in -> lines; lines, rate -> enough_epochs -> epochs

What is learnt depends on the sum of the rates of all lines, whether that comes of many lines, many
epochs or a high rate.  Accuracy on held-out lines by this sum, up to 20,000 with rate .1, beyond
with .5; Debian's descriptions (9 words) by 43 sections, titles of all packages (7 words) by 20 and
by 5, documentation of Python's (87 words) by 18 packages (at .78 and .97 of these sums):

| text, lines       | 2,500 | 5,000 | 10,000 | 20,000 | 25,000 | 50,000 | 5 epochs, .1 |
|-------------------|-------|-------|--------|--------|--------|--------|--------------|
| debian, 1,000     |  .102 |  .380 |   .482 |   .493 |   .495 |   .498 |  .047        |
| debian, 4,000     |  .103 |  .317 |   .577 |   .635 |   .632 |   .637 |  .081        |
| debian, 12,000    |       |  .304 |   .589 |   .710 |   .716 |   .729 |  .412        |
| 20 titles, 1,000  |  .526 |  .589 |   .601 |   .606 |   .603 |   .606 |  .128        |
| 20 titles, 4,000  |  .511 |  .645 |   .683 |   .688 |   .690 |   .688 |  .467        |
| 20 titles, 12,000 |       |  .650 |   .724 |   .739 |   .740 |   .740 |  .683        |
| 20 titles, 42,000 |       |       |        |   .785 |        |        |  .786        |
| 5 titles, 1,000   |  .786 |  .790 |   .791 |   .792 |   .789 |   .789 |  .673        |
| python, 3,900     |  .604 |  .637 |   .782 |   .849 |   .860 |   .863 |  .604        |

N-grams of 4 characters see "word," and "Words" as nearly the same.  Accuracy with them and rate .5,
beside scikit-learn's logistic regression of TF-IDF; a sum of 60,000 takes half of the time:

| text, lines         | words | 4, 60,000 | 4, 120,000 | 5    | 4 to 5 | 3 to 5 | TF-IDF |
|---------------------|-------|-----------|------------|------|--------|--------|--------|
| debian, 12,600      |  .738 |           |       .793 | .789 |        |        |   .775 |
| debian, 3,200       |  .605 |      .681 |       .693 | .689 |   .684 |   .675 |   .695 |
| debian, 800         |  .490 |      .565 |       .575 | .555 |   .565 |   .585 |   .565 |
| titles, 3,200       |  .578 |      .624 |       .623 | .619 |   .628 |   .618 |   .614 |
| python, 3,200       |  .781 |      .842 |       .845 | .839 |   .840 |   .836 |   .784 |

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
"""Sum of the rates at the beginning of all lines."""
STEPS_GRAMS = 120_000.0
"""The same with n-grams of characters, of which there are more to learn."""
PACKED = 3
"""Bytes of a text for each of its packed file, about."""
LINE_BYTES = 100
"""Of a line, where no file can be looked at."""


def enough_epochs(lines: int, lr: float, steps: float = STEPS) -> int:
    """Epochs of a text of so many lines: `EPOCHS` of a large one, at most `EPOCHS_MAX`."""
    return min(EPOCHS_MAX, max(EPOCHS, math.ceil(steps / (lr * max(1, lines)))))


def is_small(inputs: Sequence[str]) -> bool:
    """Whether a text is gone over more often than a large one; one that is fetched is large.

    Raises
    ------
    DataError
        A file is missing.
    """
    total = 0
    for path in files_of(inputs):
        if is_url(path):
            return False
        size = size_of(path) if is_driver_file(path) else Path(path).stat().st_size
        total += size * (PACKED if is_packed(path) else 1)
    return enough_epochs(lines_in(inputs, total), LR) > EPOCHS


def lines_in(inputs: Sequence[str], total_bytes: int) -> int:
    """About how many lines the input has, by the beginning of its first file.

    Raises
    ------
    DataError
        There is no such file.
    """
    head = head_of(files_of(inputs)[0])
    lines = head.count(b"\n")
    return max(1, round(total_bytes * lines / len(head)) if lines else total_bytes // LINE_BYTES)
