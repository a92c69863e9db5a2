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

"""

from __future__ import annotations

import math
from collections.abc import Sequence

from snailps.api.passes import EPOCHS, EPOCHS_MAX
from snailps.data.blocks import files_of, head_of

STEPS = 40_000.0
"""Sum of the rates at the beginning of all lines."""
LINE_BYTES = 100
"""Of a line, where no file can be looked at."""


def enough_epochs(lines: int, lr: float) -> int:
    """Epochs of a text of so many lines: `EPOCHS` of a large one, at most `EPOCHS_MAX`."""
    return min(EPOCHS_MAX, max(EPOCHS, math.ceil(STEPS / (lr * max(1, lines)))))


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
