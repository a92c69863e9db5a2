"""Labels and values of examples as a model learns them, and how that is undone.

    some examples of the input -> measured -> Encoding -> text, a setting of the job
    labels -> numbers of classes, or (label - centre) / deviation
    values -> value * factor of its key
    what was learnt -> factors, deviation, centre -> weights of values as they are written

A step has the length that suits values and targets near 1, so a column whose values are far from
that is divided by the root of their mean square.  What is near 1 stays as it is: features that are
there or not cost nothing.  Zeros stay zeros.  Must not know files, models, rows.

References
----------
S. Ross, P. Mineiro, J. Langford, "Normalized online learning", UAI 2013.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data._examples import Examples
from snailps.errors import DataError

NEAR = 2.0
"""Values whose mean size is within this factor of 1 stay as they are."""
KEYS_MAX = 4096
"""Columns with a factor of their own, those with the most entries; others have a common one."""
TABLE_KEYS = 1 << 20
"""Keys below are looked up in an array."""
FACTOR_MAX = 1e36
"""Factors within float32's range, with room for what is learnt beside them."""
SHOWN = 5
"""Labels that a message names."""


@dataclass(frozen=True)
class Encoding:
    """How labels and values are encoded.

    Parameters
    ----------
    labels : tuple of float
        The label of class 0, 1, ..., ascending; empty: labels are numbers of classes already, or
        targets.
    centre, deviation : float
        What is subtracted from a target, and what it is divided by.
    factor : float
        Of values of keys that are not listed.
    keys : tuple of int
        Keys that have factors of their own, ascending.
    factors : tuple of float
        Theirs.
    is_measured : bool
        Whether the factors are those of an input, and not yet to be found.
    constant : float
        Mean loss of the best constant score, of classes; 0: not known.
    """

    labels: tuple[float, ...] = ()
    centre: float = 0.0
    deviation: float = 1.0
    factor: float = 1.0
    keys: tuple[int, ...] = ()
    factors: tuple[float, ...] = ()
    is_measured: bool = False
    constant: float = 0.0

    @classmethod
    def of_text(cls, text: str) -> Encoding:
        """The encoding of a setting; empty: everything stays as it is.

        Raises
        ------
        ValueError
            It is no such text.
        """
        if not text:
            return cls()
        told: Any = json.loads(text)
        if not isinstance(told, dict) or not told.keys() <= cls.__dataclass_fields__.keys():
            raise ValueError(f"expected what `Encoding.text` makes, got {text!r:.60}")
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in told.items()
        }
        made = cls(**values)
        numbers = np.array(
            [*made.labels, made.centre, made.deviation, made.factor, *made.factors, made.constant],
            float,
        )
        keys = np.array(made.keys, np.uint64)
        if (
            not np.isfinite(numbers).all()
            or len(made.keys) != len(made.factors)
            or min(made.deviation, made.factor, *made.factors) <= 0
            or (keys[1:] <= keys[:-1]).any()
            or any(after <= before for before, after in itertools.pairwise(made.labels))
        ):
            raise ValueError(f"expected finite numbers in order, got {text!r:.60}")
        return made

    @property
    def text(self) -> str:
        """The setting: JSON of what is not as in `Encoding()`."""
        plain = Encoding()
        told = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps(
            {name: value for name, value in told.items() if value != getattr(plain, name)},
            separators=(",", ":"),
        )

    # --- examples --------------------------------------------------------------------------------

    def labels_of(
        self, labels: NDArray[Any], where: str = "", weights: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Labels (n,), encoded; that of an example of weight 0 may be any.

        Raises
        ------
        DataError
            One is none of the classes.
        """
        if self.labels:
            known = np.array(self.labels)
            numbers = np.minimum(np.searchsorted(known, labels), len(known) - 1)
            is_wrong = known[numbers] != labels
            if weights is not None and len(weights):
                is_wrong &= weights != 0
            wrong = np.flatnonzero(is_wrong)
            if len(wrong):
                raise DataError(
                    f"{where}: label {labels[wrong[0]]:g} is none of the classes that a sample of "
                    f"the input has: {shown(self.labels)}. A small file with an example of each "
                    "class, named first in the input, makes all of them known"
                )
            return np.asarray(numbers, np.float32)
        if self.is_plain_target:
            return labels
        return (labels - self.centre) / self.deviation

    def targets_of(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Targets, or scores, as they are without the encoding: float64, where it has a part."""
        if self.is_plain_target:
            return numbers
        return numbers.astype(np.float64) * self.deviation + self.centre

    @property
    def is_plain_target(self) -> bool:
        """Whether targets stay as they are."""
        return self.centre == 0 and self.deviation == 1

    @property
    def keeps_values(self) -> bool:
        """Whether all values stay as they are."""
        return self.factor == 1 and not self.keys

    def values_of(
        self, keys: NDArray[np.uint64], values: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Values (n,) of these keys, encoded."""
        return values if self.keeps_values else values * self.factors_of(keys)

    def factors_of(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """What values of these keys are multiplied by, float32 (n,)."""
        if not self.keys:
            return np.full(len(keys), self.factor, np.float32)
        own, factors = self._listed
        if len(self._table):
            places = np.minimum(keys, np.uint64(len(self._table) - 1)).astype(np.int64)
            return np.asarray(self._table[places])
        places = np.minimum(np.searchsorted(own, keys), len(own) - 1)
        return np.where(own[places] == keys, factors[places], np.float32(self.factor))

    @cached_property
    def _listed(self) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
        return np.array(self.keys, np.uint64), np.array(self.factors, np.float32)

    @cached_property
    def _table(self) -> NDArray[np.float32]:
        """Factors by key, the last one of all larger keys; empty: keys are too large."""
        own, factors = self._listed
        if self.keys[-1] >= TABLE_KEYS:
            return np.empty(0, np.float32)
        table = np.full(self.keys[-1] + 2, self.factor, np.float32)
        table[own.astype(np.int64)] = factors
        return table

    # --- measuring -------------------------------------------------------------------------------

    def measured(self, pieces: Sequence[Examples]) -> Encoding:
        """With factors for the columns of these examples."""
        found = replace(self, is_measured=True)
        sizes = [np.abs(piece.values) for piece in pieces]
        if not any(((size > NEAR) | (size < 1 / NEAR)).any() for size in sizes):
            return found
        keys = np.concatenate([piece.keys for piece in pieces])
        squares = np.concatenate(sizes).astype(np.float64) ** 2
        own, places, counts = np.unique(keys[squares > 0], return_inverse=True, return_counts=True)
        if len(own) == 0:
            return found
        sums = np.bincount(places.ravel(), squares[squares > 0], len(own))
        return found.of_sizes(own, np.sqrt(sums / counts), counts)

    def of_sizes(
        self, keys: NDArray[np.uint64], sizes: NDArray[np.float64], counts: NDArray[np.int64]
    ) -> Encoding:
        """With factors for keys, ascending, whose values have these sizes; entries of each."""
        common = _factor(float(np.median(sizes)))
        differ = np.abs(np.log(sizes * common)) > np.log(NEAR)
        chosen = np.flatnonzero(differ)
        if len(chosen) > KEYS_MAX:
            chosen = np.sort(chosen[np.argsort(-counts[chosen], kind="stable")[:KEYS_MAX]])
        return replace(
            self,
            factor=common,
            keys=tuple(keys[chosen].tolist()),
            factors=tuple(_factor(size) for size in sizes[chosen].tolist()),
            is_measured=True,
        )

    def centred(
        self, targets: NDArray[Any], weights: NDArray[Any], *, has_constant: bool
    ) -> Encoding:
        """With mean and deviation of targets.

        Without a constant in the model, the mean is 0 and the deviation the root of mean squares.
        """
        given = np.asarray(targets, np.float64)
        mean, deviation = moments(given, weights if len(weights) else None)
        if not has_constant:
            mean, deviation = 0.0, float(np.hypot(mean, deviation))
        return replace(self, centre=mean, deviation=deviation if deviation > 0 else 1.0)


def _factor(size: float) -> float:
    """What values of this size are multiplied by."""
    return 1.0 if 1 / NEAR <= size <= NEAR else float(np.float32(min(1 / size, FACTOR_MAX)))


def moments(numbers: NDArray[np.float64], weights: NDArray[Any] | None) -> tuple[float, float]:
    """Mean and standard deviation; from one of the numbers, so that equal ones have exactly 0."""
    one = numbers[0 if weights is None else np.argmax(weights)]
    others = numbers - one
    mean = np.average(others, weights=weights)
    deviation = np.sqrt(np.average((others - mean) ** 2, weights=weights))
    return float(one + mean), float(deviation)


def shown(labels: Sequence[float]) -> str:
    """Some labels for a message."""
    some = ", ".join(f"{label:g}" for label in labels[:SHOWN])
    return some + (f", ... ({len(labels):,} in all)" if len(labels) > SHOWN else "")
