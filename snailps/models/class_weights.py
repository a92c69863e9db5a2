"""Weights of classes: what `balanced` means, and which numbers are weights.

    sums of the examples' weights by class -> balanced -> a factor a class
    texts of a setting -> class_weights_in -> a number a label

Shared by models of examples, the classifier of text, and estimators.  Must not know labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.errors import ConfigError

BALANCED = "balanced"
LIMIT = 1e6
"""Largest weight of a class, and of an example in a text."""


def balanced(sums: NDArray[Any]) -> NDArray[np.float64]:
    """Return a factor for each class that gives all classes the same sum, float64 (n,).

    As in scikit-learn: the mean of the sums over the sum of the class.  Classes without examples,
    such as those that only an earlier training had, do not count in the mean; they are weighed as
    if they had one.
    """
    sums = np.asarray(sums, np.float64)
    number = max(1, np.count_nonzero(sums > 0))
    factors: NDArray[np.float64] = sums.sum() / (number * np.where(sums > 0, sums, 1.0))
    return factors


def are_weights(numbers: NDArray[Any]) -> bool:
    """Whether all are weights of classes, and not all of them 0: then nothing would be learnt."""
    return bool(((numbers >= 0) & (numbers <= LIMIT)).all() and numbers.any())


def class_weights_in(texts: Sequence[str]) -> dict[str, float] | None:
    """Read ``label=number`` texts; None: `BALANCED`.

    ConfigError: a text is neither, or a number is no weight.
    """
    if list(texts) == [BALANCED]:
        return None
    weights: dict[str, float] = {}
    for text in texts:
        label, equals, number = text.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            equals = ""
        if not equals or not label:
            raise ConfigError(
                f"expected balanced, or LABEL=NUMBER for some labels, got {', '.join(texts)!r:.80}"
            )
        if label in weights:
            raise ConfigError(f"expected one number for {label!r:.60}, got two")
        weights[label] = weight
    numbers = np.array([*weights.values()])
    if weights and not ((numbers >= 0) & (numbers <= LIMIT)).all():
        raise ConfigError(f"expected numbers from 0 to {LIMIT:,.0f}, got {', '.join(texts)}")
    return weights
