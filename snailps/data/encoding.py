"""Labels and values of examples as a model learns them, and how that is undone.

    some examples of the input -> measured -> Encoding -> text, a setting of the job
    labels -> numbers of classes, or (label - centre) / deviation
    values -> (value - centre of its key) * factor of its key
    what was learnt -> factors, centres, deviation -> weights of values as they are written

A step has the length that suits values and targets near 1, so a column whose values are far from
that is divided by the root of their mean square, rounded to a power of two: no digit is lost.  What
is near 1 stays as it is: features that are there or not cost nothing.  A column that all examples
have and that is far from 0 beside its deviation, as years and kelvins are, is centred, and divided
by its deviation; of all others zeros stay zeros.  Must not know files, models, rows.

References
----------
S. Ross, P. Mineiro, J. Langford, "Normalized online learning", UAI 2013.
"""

from __future__ import annotations

import base64
import itertools
import json
import zlib
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
FAR = 1.0
"""Deviations from 0 beyond which a mean is subtracted.  Mean scores of three models on iris, wine
and breast_cancer, five splits: .974 at 1, .969 at 2, .953 at 4, .958 at 8, .954 without."""
UNLIKE = 100.0
"""Times that values of a column are larger or smaller than before, that is told."""
FARTHEST = 1e5
"""Most deviations from 0 of a mean that is subtracted: a product of value and weight has an error
of 1% of the weight there, and values of float32 are 1/170 of their deviation apart."""
CENTRED_MIN = 10
"""Examples that tell whether a column is far from 0, at least."""
LIMIT = 64.0
"""Larger encoded values are trained as this: a wrong one would stop its weight for ever."""
WRONG = 1000.0
"""Times the largest usual value of a column: what is beyond tells nothing of its size."""
USUAL = 128
"""One value in so many may be larger than the usual ones; in each column of `USUAL_MIN` one."""
USUAL_MIN = 16
KEYS_MAX = 1 << 18
"""Columns with a factor of their own, those with the most entries; others have a common one.  A
sample has about as many entries, and their text is 3 MB at most."""
COLUMN_BYTES = 8 + 1 + 4
"""Of a packed column: uint64 key, int8 exponent of the factor, float32 centre."""
TABLE_KEYS = 1 << 20
"""Keys below are looked up in an array."""
EXPONENT_MAX = 120
"""Factors are within float32's range, with room for what is learnt beside them."""
FLOAT_MAX = float(np.finfo(np.float32).max)
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
    columns : str
        Keys that have a factor of their own, and a centre, as `with_columns` packs them.
    is_measured : bool
        Whether the factors are those of an input, and not yet to be found.
    constant : float
        Mean loss of the best constant score, of classes; 0: not known.
    """

    labels: tuple[float, ...] = ()
    centre: float = 0.0
    deviation: float = 1.0
    factor: float = 1.0
    columns: str = ""
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
        numbers = [*made.labels, made.centre, made.deviation, made.factor, made.constant]
        if (
            not np.isfinite(np.array([*numbers, *made.centres], float)).all()
            or min(made.deviation, made.factor) <= 0
            or (made.keys[1:] <= made.keys[:-1]).any()
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

    def with_columns(
        self, keys: NDArray[Any], factors: NDArray[Any], centres: NDArray[Any]
    ) -> Encoding:
        """The same with factors, powers of two, and centres of these keys, ascending."""
        steps = np.diff(np.asarray(keys, np.uint64), prepend=np.uint64(0)).astype("<u8")
        exponents = np.log2(np.asarray(factors, np.float64)).astype("i1")
        packed = steps.tobytes() + exponents.tobytes() + np.asarray(centres, "<f4").tobytes()
        text = base64.b85encode(zlib.compress(packed)).decode() if len(keys) else ""
        return replace(self, columns=text)

    @cached_property
    def _listed(
        self,
    ) -> tuple[NDArray[np.uint64], NDArray[np.float32], NDArray[np.float32]]:
        """Keys, ascending, with their factors and centres."""
        reader, packed = zlib.decompressobj(), b""
        try:
            packed = reader.decompress(base64.b85decode(self.columns), 1 + COLUMN_BYTES * KEYS_MAX)
        except zlib.error as error:
            raise ValueError(f"expected packed columns: {error}") from None
        count, more = divmod(len(packed), COLUMN_BYTES)
        if more or count > KEYS_MAX or (self.columns and not reader.eof):
            raise ValueError(
                f"expected {COLUMN_BYTES} bytes for each of {KEYS_MAX:,} columns at most, got "
                f"{len(packed):,}"
            )
        keys = np.cumsum(np.frombuffer(packed, "<u8", count), dtype=np.uint64)
        exponents = np.frombuffer(packed, "i1", count, 8 * count)
        centres = np.frombuffer(packed, "<f4", count, 9 * count).astype(np.float32)
        return keys, np.ldexp(np.float32(1), exponents.astype(np.int32)), centres

    @property
    def keys(self) -> NDArray[np.uint64]:
        """Keys that are listed, ascending."""
        return self._listed[0]

    @property
    def centres(self) -> NDArray[np.float32]:
        """What is subtracted from the values of these; 0: nothing."""
        return self._listed[2]

    @cached_property
    def centred_keys(self) -> NDArray[np.uint64]:
        """Keys of the columns that are centred, ascending; each example has an entry of each."""
        keys: NDArray[np.uint64] = self.keys[self.centres != 0]
        return keys

    @cached_property
    def offsets(self) -> NDArray[np.float64]:
        """What is subtracted from encoded values of these: their centres times their factors."""
        _, factors, centres = self._listed
        offsets: NDArray[np.float64] = (factors.astype(np.float64) * centres)[centres != 0]
        return offsets

    @property
    def keeps_values(self) -> bool:
        """Whether all values stay as they are."""
        return self.factor == 1 and not self.columns

    def of_examples(self, examples: Examples, limit: float = FLOAT_MAX) -> Examples:
        """The same with encoded values, of the size `limit` at most.

        An example that lacks a column that is centred gets an entry of it.
        """
        if self.keeps_values:
            return examples
        keys, values = examples.keys, examples.values
        if (row := self._row_of_all(examples)) is not None:
            keys, values = row, values.reshape(-1, len(row))
            values = values - self.centres_of(row)
        elif len(self.centred_keys):
            examples, centres = self._completed(examples)
            keys, values = examples.keys, examples.values - centres
        with np.errstate(over="ignore"):
            values = values * self.factors_of(keys)
        return examples._replace(values=np.clip(values, -limit, limit, out=values).ravel())

    def _row_of_all(self, examples: Examples) -> NDArray[np.uint64] | None:
        """The keys of each of some examples, if they are the same, and none is lacking."""
        count = len(examples.labels)
        width = int(examples.ptr[1]) if count else 0
        if not width or len(examples.keys) != count * width:
            return None
        row = examples.keys[:width]
        if np.diff(examples.ptr, 2).any() or (examples.keys.reshape(count, width) != row).any():
            return None
        centred = row[self.centres_of(row) != 0]
        return row if np.array_equal(np.sort(centred), self.centred_keys) else None

    def _completed(self, examples: Examples) -> tuple[Examples, NDArray[np.float32]]:
        """The same with an entry of each column that is centred in each example, and what is
        subtracted from each value.
        """
        centres = self.centres_of(examples.keys)
        count, each = len(examples.labels), len(self.centred_keys)
        is_centred = centres != 0
        before = np.concatenate(([0], np.cumsum(is_centred)))[examples.ptr]
        own = examples.keys[is_centred]
        if (before == each * np.arange(count + 1)).all():  # else they are not as many
            alike = own.reshape(count, each) == own[:each].reshape(-1, each)
            if alike.all() and len(np.unique(own[:each])) == each * (count > 0):
                return examples, centres
        rows = np.repeat(np.arange(count), np.diff(before))
        pairs = rows * each + np.searchsorted(self.centred_keys, own)
        found, first = np.unique(pairs, return_index=True)
        again = np.ones(len(pairs), bool)  # a key that an example has twice: values add up
        again[first] = False
        centres[np.flatnonzero(is_centred)[again]] = 0
        is_lacking = np.ones(count * each, bool)
        is_lacking[found] = False
        lacking = np.flatnonzero(is_lacking)
        of_rows, columns = np.divmod(lacking, max(1, each))
        at = examples.ptr[of_rows + 1]
        more = np.concatenate(([0], np.cumsum(np.bincount(of_rows, minlength=count))))
        own_centres = self.centres[self.centres != 0]
        completed = examples._replace(
            ptr=examples.ptr + more,
            keys=np.insert(examples.keys, at, self.centred_keys[columns]),
            values=np.insert(examples.values, at, 0),
            fields=np.insert(examples.fields, at, 0) if len(examples.fields) else examples.fields,
        )
        return completed, np.insert(centres, at, own_centres[columns])

    def factors_of(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """What values of these keys are multiplied by, float32 (n,)."""
        return self._looked_up(keys, self._factor_table, self._listed[1], self.factor)

    def centres_of(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """What is subtracted from values of these keys, float32 (n,)."""
        return self._looked_up(keys, self._centre_table, self.centres, 0.0)

    def _looked_up(
        self,
        keys: NDArray[np.uint64],
        table: NDArray[np.float32],
        numbers: NDArray[np.float32],
        other: float,
    ) -> NDArray[np.float32]:
        """Numbers of keys; `other` of those that are not listed."""
        own = self.keys
        if len(own) == 0:
            return np.full(len(keys), other, np.float32)
        if len(table):
            places = np.minimum(keys, np.uint64(len(table) - 1)).astype(np.int64)
            return np.asarray(table[places])
        places = np.minimum(np.searchsorted(own, keys), len(own) - 1)
        return np.where(own[places] == keys, numbers[places], np.float32(other))

    @cached_property
    def _factor_table(self) -> NDArray[np.float32]:
        return self._table_of(self._listed[1], self.factor)

    @cached_property
    def _centre_table(self) -> NDArray[np.float32]:
        return self._table_of(self.centres, 0.0)

    def _table_of(self, numbers: NDArray[np.float32], other: float) -> NDArray[np.float32]:
        """Numbers by key, the last one of all larger keys; empty: keys are too large."""
        own = self.keys
        if len(own) == 0 or own[-1] >= TABLE_KEYS:
            return np.empty(0, np.float32)
        table = np.full(int(own[-1]) + 2, other, np.float32)
        table[own.astype(np.int64)] = numbers
        return table

    # --- measuring -------------------------------------------------------------------------------

    def measured(
        self,
        keys: NDArray[np.uint64],
        values: NDArray[np.float32],
        examples: int,
        *,
        farthest: float = 0.0,
    ) -> Encoding:
        """With factors and centres for the columns of some examples' entries.

        farthest: columns are centred whose mean is that many deviations from 0 at most; beyond,
        float32 has too few digits for what is left.  0: none is.
        """
        found = replace(self, is_measured=True)
        there = values != 0
        if (values[there] == 1).all():
            return found
        sizes = sizes_of(keys[there], values[there])
        with np.errstate(over="ignore", invalid="ignore"):
            ratios = np.abs(sizes.means) / np.maximum(sizes.deviations, np.finfo(float).tiny)
        is_centred = (
            (ratios > FAR) & (ratios <= farthest) & (sizes.counts == examples)
            & (examples >= CENTRED_MIN)
        )  # fmt: skip
        spread = np.where(is_centred, sizes.deviations, sizes.roots)
        common = float(_factors(np.array([np.median(spread)]))[0])
        is_own = np.abs(np.log(spread * common)) > np.log(NEAR)
        chosen = np.flatnonzero(is_own | is_centred | sizes.has_wrong)
        if len(chosen) > KEYS_MAX:
            chosen = np.sort(chosen[np.argsort(-sizes.counts[chosen], kind="stable")[:KEYS_MAX]])
        return replace(found, factor=common).with_columns(
            sizes.keys[chosen],
            np.where(is_own, _factors(spread), common)[chosen],
            np.where(is_centred, sizes.means, 0)[chosen],
        )

    def unlike(
        self, keys: NDArray[np.uint64], values: NDArray[np.float32]
    ) -> tuple[int, float] | None:
        """The key whose values are least of the size that this encoding is of, and how many times
        larger they are; None: all are less than `UNLIKE` times larger or smaller.
        """
        with np.errstate(over="ignore"):
            encoded = (values - self.centres_of(keys)) * self.factors_of(keys)
        there = (values != 0) & (encoded != 0)
        if not there.any():
            return None
        sizes = sizes_of(keys[there], np.clip(encoded[there], -FLOAT_MAX, FLOAT_MAX))
        # A key that was not known may be of any size below the others', as one of a text is.
        roots = np.where(np.isin(sizes.keys, self.keys), sizes.roots, np.maximum(sizes.roots, 1))
        furthest = int(np.abs(np.log(roots)).argmax())
        times = float(roots[furthest])
        return (int(sizes.keys[furthest]), times) if abs(np.log(times)) > np.log(UNLIKE) else None

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


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the values of columns are, by a sample that is not empty.

    Attributes
    ----------
    keys : numpy.ndarray
        uint64 (n,), ascending.
    counts : numpy.ndarray
        int64 (n,): values of each, none of them 0.
    means, deviations, roots : numpy.ndarray
        float64 (n,): mean, standard deviation and root of the mean square of the usual ones.
    has_wrong : numpy.ndarray
        bool (n,): has others.
    """

    keys: NDArray[np.uint64]
    counts: NDArray[np.int64]
    means: NDArray[np.float64]
    deviations: NDArray[np.float64]
    roots: NDArray[np.float64]
    has_wrong: NDArray[np.bool_]


def sizes_of(keys: NDArray[np.uint64], values: NDArray[np.float32]) -> Sizes:
    """How large the values of columns are, none of which is 0."""
    size = np.abs(values)
    order = np.lexsort((size, keys))
    keys, given, size = keys[order], values[order].astype(np.float64), size[order]
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    counts = np.diff(starts, append=len(keys))
    rare = np.where(counts >= USUAL_MIN, -(-counts // USUAL), 0)
    usual = np.repeat(WRONG * size[starts + counts - 1 - rare].astype(np.float64), counts)
    is_usual = size <= usual
    given[~is_usual] = 0
    left = np.add.reduceat(is_usual, starts, dtype=np.int64)
    means = np.add.reduceat(given, starts) / left
    roots = np.sqrt(np.add.reduceat(given**2, starts) / left)
    apart = np.where(is_usual, given - np.repeat(means, counts), 0)
    deviations = np.sqrt(np.add.reduceat(apart**2, starts) / left)
    return Sizes(keys[starts], counts, means, deviations, roots, left < counts)


def _factors(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """What values of these sizes are multiplied by."""
    exponents = np.clip(-np.rint(np.log2(sizes)), -EXPONENT_MAX, EXPONENT_MAX)
    is_near = (sizes >= 1 / NEAR) & (sizes <= NEAR)
    return np.where(is_near, 1.0, np.exp2(exponents))


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
