"""By which figure of the tests after each epoch the best epoch is chosen (`stop_by`).

    figures that a model's tests have, stop_by -> decided_by -> Validation, the deciding one first

Names are those of `snailps autotune --metric` where a model has such a figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from snailps.api.results import Results
from snailps.api.validation import Validation
from snailps.errors import ConfigError, DataError

Better: TypeAlias = 'Literal["higher", "lower"]'
Figures: TypeAlias = "Mapping[str, tuple[str, Better]]"
"""Value of `stop_by` -> name in the tests, which values are better; the first one is usual."""


def figure_of(stop_by: str, figures: Figures) -> tuple[str, Better]:
    """Return the figure that decides; ConfigError: the model's tests have none of that name."""
    if stop_by and stop_by not in figures:
        raise ConfigError(
            f"stop_by: expected a figure of this model's tests, {', '.join(figures)}; got "
            f"{stop_by!r:.60}"
        )
    return figures[stop_by or next(iter(figures))]


def decided_by(
    stop_by: str,
    figures: Figures,
    test: Callable[[Results], Mapping[str, float]],
    stop_after: int,
) -> Validation:
    """Return tests whose deciding figure comes first."""
    name, better = figure_of(stop_by, figures)

    def ordered(results: Results) -> Mapping[str, float]:
        found = test(results)
        if stop_by and name not in found:
            raise DataError(
                f"stop_by: the lines to test on have no {name}: give others, or another figure"
            )
        return {name: found[name], **found} if name in found else found

    return Validation(ordered, stop_after, better)
