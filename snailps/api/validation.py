"""How a model is tested after each epoch, and when that ends its training.

Reported.validation(settings) -> Validation -> test(results) after each epoch -> the best epoch
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from snailps.api.results import Results
from snailps.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Validation:
    """Tests after each epoch.

    Attributes
    ----------
    test : callable
        ``test(results)`` gives figures of the model on validation data, the deciding one first.  It
        is also called before the first block, for it to read its data, which ``Results.memo`` may
        keep; those figures are ignored, and an error fails the job.
    stop_after : int
        The training ends after so many epochs in a row without a better figure, and the rows of the
        best epoch are kept and exported; 0: it does not, and the last rows are exported.
    better : {"higher", "lower"}
        Which values of the deciding figure are better.
    """

    test: Callable[[Results], Mapping[str, float]]
    stop_after: int = 0
    better: Literal["higher", "lower"] = "higher"
