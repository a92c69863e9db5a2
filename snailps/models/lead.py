"""Counts how many steps a worker's copies have taken for each of its own: copies may lead.

    examples, steps for each          -> Lead.trained
    examples since a row's exchange   -> Lead.share_of_others: of its delta

A worker that takes w steps for one goes where w workers go together, as long as they have the same
gradients.  Then it sees what the others have learnt before it pulls that.  It pushes a w-th of its
delta; the rest is what it expects of the others.  A row's steps are taken as even over the examples
since its last exchange.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from snailps.models.local_sgd import Floats


class Lead:
    """Steps of one table's rows since the training began; used by the training thread."""

    def __init__(self) -> None:
        # Steps made until a time, both in examples; between two times their number is linear.
        self._times, self._steps = [0.0], [0.0]
        self._lead = 1.0

    @property
    def has_led(self) -> bool:
        """Whether copies have ever taken more steps than their own."""
        return self._steps[-1] > self._times[-1]

    def trained(self, now: float, lead: float) -> None:
        """Count the examples until `now`, each of which made `lead` steps instead of one."""
        steps = self._steps[-1] + lead * (now - self._times[-1])
        if lead == self._lead and len(self._times) > 1:  # the last line goes on
            self._times[-1], self._steps[-1] = now, steps
            return
        self._times.append(now)
        self._steps.append(steps)
        self._lead = lead

    def share_of_others(self, examples: NDArray[np.float64]) -> Floats:
        """Give the part of a delta, made by the last `examples`, that others are to push."""
        begin = self._times[-1] - examples
        steps = self._steps[-1] - np.interp(begin, self._times, self._steps)
        pushed_here = examples / np.maximum(steps, 1e-9)
        return np.where(examples > 0, 1 - pushed_here, 0).clip(0, None).astype(np.float32)
