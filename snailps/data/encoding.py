"""Labels and values of examples as a model learns them, and the way back.

    some examples of the input -> measured -> Encoding -> text, a setting of the job
    labels -> numbers of classes, or (label - centre) / deviation
    values -> (value - centre of its key) * factor of its key
    what was learnt -> factors, centres, deviation -> weights of values as they are written

Steps suit values and targets near 1, so other columns are divided by the root of their mean square,
rounded to a power of two, which loses no digit (S. Ross et al., "Normalized online learning", UAI
2013).  A column that all examples have and that is far from 0 beside its deviation, as years are,
is centred and divided by its deviation; in all others zeros stay zeros.  No files, models or rows.
"""

from __future__ import annotations

import base64
import itertools
import json
import zlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data._examples import Examples
from snailps.dataclass import dataclass, replace
from snailps.errors import DataError

NEAR = 2.0
"""Values whose mean size is within this factor of 1 are unchanged."""
FAR = 1.0
"""Deviations from 0 beyond which a mean is subtracted."""
UNLIKE = 100.0
"""Factor by which values of a column must differ from before to be reported."""
FARTHEST = 1e5
"""Most deviations from 0 of a mean that is subtracted: float32 has too few digits beyond."""
CENTRED_MIN = 10
"""Fewest examples that show whether a column is far from 0."""
LIMIT = 64.0
"""Larger encoded values are clipped to this: a wrong one would stop its weight for ever."""
WRONG = 1000.0
"""Multiple of a column's largest usual value beyond which values are ignored in its size."""
USUAL = 128
"""One value in this many may be larger than the usual ones; in columns of `USUAL_MIN`, one."""
USUAL_MIN = 16
KEYS_MAX = 1 << 18
"""Columns with a factor of their own, those with most entries: 3 MB of text; others share one."""
COLUMN_BYTES = 8 + 1 + 4
"""Bytes of a packed column: uint64 key, int8 exponent of the factor, float32 centre."""
TABLE_KEYS = 1 << 20
"""Limit of keys that are looked up in an array."""
EXPONENT_MAX = 120
"""Keeps factors, and what is learnt beside them, within float32's range."""
FLOAT_MAX = float(np.finfo(np.float32).max)
SHOWN = 5
NO_KEYS = np.empty(0, np.uint64)


@dataclass(frozen=True)
class Encoding:
    """How labels and values are encoded.

    `labels` are those of class 0, 1, ..., ascending; empty: labels are numbers of classes already,
    or targets, encoded by `centre` and `deviation`.  `columns` packs keys with a factor and a
    centre of their own (`with_columns`), `factor` is of all others; `is_measured`: they are those
    of an input. `constant` is the mean loss of the best constant score, of classes; 0: unknown.
    `clipped` are keys of columns that were trained with some values cut to `LIMIT`.  `names` are
    the classes of labels that are texts, sorted: tables are read with their numbers.
    """

    labels: tuple[float, ...] = ()
    centre: float = 0.0
    deviation: float = 1.0
    factor: float = 1.0
    columns: str = ""
    is_measured: bool = False
    constant: float = 0.0
    clipped: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    @classmethod
    def of_text(cls, text: str) -> Encoding:
        """Parse a setting, or raise ValueError; empty: no change."""
        if not text:
            return cls()
        read: Any = json.loads(text)
        if not isinstance(read, dict) or not read.keys() <= cls.__dataclass_fields__.keys():
            raise ValueError(f"expected what `Encoding.text` makes, got {text!r:.60}")
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in read.items()
        }
        made = cls(**values)
        numbers = [*made.labels, made.centre, made.deviation, made.factor, made.constant]
        if (
            not np.isfinite(np.array([*numbers, *made.centres], float)).all()
            or min(made.deviation, made.factor) <= 0
            or (made.keys[1:] <= made.keys[:-1]).any()
            or any(after <= before for before, after in itertools.pairwise(made.labels))
            or any(type(name) is not str for name in made.names)
            or any(type(key) is not int or not 0 <= key < 1 << 64 for key in made.clipped)
        ):
            raise ValueError(f"expected finite numbers in order, got {text!r:.60}")
        return made

    @property
    def text(self) -> str:
        """The setting: JSON of what differs from `Encoding()`."""
        plain = Encoding()
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps(
            {name: value for name, value in fields.items() if value != getattr(plain, name)},
            separators=(",", ":"),
        )

    # --- examples --------------------------------------------------------------------------------

    def labels_of(
        self, labels: NDArray[Any], where: str = "", weights: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Encode labels (n,); those of examples of weight 0 may be any."""
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
        """Decode targets or scores: float64 if the encoding changes them."""
        if self.is_plain_target:
            return numbers
        return numbers.astype(np.float64) * self.deviation + self.centre

    @property
    def is_plain_target(self) -> bool:
        return self.centre == 0 and self.deviation == 1

    def with_columns(
        self, keys: NDArray[Any], factors: NDArray[Any], centres: NDArray[Any]
    ) -> Encoding:
        """Add factors (powers of two) and centres of these ascending keys."""
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
        return self._listed[0]

    @property
    def centres(self) -> NDArray[np.float32]:
        """Subtracted from the values of `keys`; 0: nothing."""
        return self._listed[2]

    @cached_property
    def centred_keys(self) -> NDArray[np.uint64]:
        """Keys of centred columns, ascending; each example has an entry of each."""
        keys: NDArray[np.uint64] = self.keys[self.centres != 0]
        return keys

    @cached_property
    def offsets(self) -> NDArray[np.float64]:
        """Subtracted from encoded values of `centred_keys`: centres times factors."""
        _, factors, centres = self._listed
        offsets: NDArray[np.float64] = (factors.astype(np.float64) * centres)[centres != 0]
        return offsets

    @property
    def keeps_values(self) -> bool:
        return self.factor == 1 and not self.columns

    def of_examples(self, examples: Examples, limit: float = FLOAT_MAX) -> Examples:
        """Encode values, clipped to `limit`; add missing entries of centred columns."""
        return self.encoded(examples, limit)[0]

    def encoded(
        self, examples: Examples, limit: float = FLOAT_MAX
    ) -> tuple[Examples, NDArray[np.uint64]]:
        """`of_examples`, and the keys of the values that are clipped, of examples with a weight."""
        if self.keeps_values:
            return examples, NO_KEYS
        keys, values = examples.keys, examples.values
        if (row := self._row_of_all(examples)) is not None:
            keys, values = row, values.reshape(-1, len(row))
            values = values - self.centres_of(row)
        elif len(self.centred_keys):
            examples, centres = self._completed(examples)
            keys, values = examples.keys, examples.values - centres
        with np.errstate(over="ignore"):
            own = None if values is examples.values else values
            values = np.multiply(values, self.factors_of(keys), out=own).ravel()
        beyond = clip(values, limit)
        if len(beyond) and len(examples.weights):
            rows = np.searchsorted(examples.ptr, beyond, side="right") - 1
            beyond = beyond[examples.weights[rows] > 0]
        return examples._replace(values=values), keys[beyond % max(1, len(keys))]

    def bounded(self, examples: Examples) -> Examples:
        """Values, not encoded, of columns that are `clipped` as training took them."""
        if not self.clipped:
            return examples
        own = np.flatnonzero(np.isin(examples.keys, np.array(self.clipped, np.uint64)))
        keys, values = examples.keys[own], examples.values.copy()
        centres, reach = self.centres_of(keys), np.float32(LIMIT) / self.factors_of(keys)
        values[own] = np.clip(values[own], centres - reach, centres + reach)
        return examples._replace(values=values)

    def bounded_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """`bounded` of rows that have all columns, whose keys are their numbers."""
        if not self.clipped:
            return rows
        keys = np.array(self.clipped, np.uint64)
        centres, reach = self.centres_of(keys), np.float32(LIMIT) / self.factors_of(keys)
        made, own = rows.astype(np.float32), keys.astype(np.int64)
        made[:, own] = np.clip(made[:, own], centres - reach, centres + reach)
        return made

    def _row_of_all(self, examples: Examples) -> NDArray[np.uint64] | None:
        """The keys of each example, if all have the same ones and lack none."""
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
        """Examples with an entry of each centred column, and the centre of each value."""
        centres = self.centres_of(examples.keys)
        count, each = len(examples.labels), len(self.centred_keys)
        is_centred = centres != 0
        before = np.concatenate(([0], np.cumsum(is_centred)))[examples.ptr]
        own = examples.keys[is_centred]
        if (before == each * np.arange(count + 1)).all():  # else counts differ
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
        return self._looked_up(keys, self._factor_table, self._listed[1], self.factor)

    def centres_of(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        return self._looked_up(keys, self._centre_table, self.centres, 0.0)

    def _looked_up(
        self,
        keys: NDArray[np.uint64],
        table: NDArray[np.float32],
        numbers: NDArray[np.float32],
        other: float,
    ) -> NDArray[np.float32]:
        """Numbers of keys; `other` for those that are not listed."""
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
        """Add factors and centres for the columns of some examples' entries.

        Centres columns whose mean is at most `farthest` deviations from 0; 0: none.
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
        """The key whose values differ most in size from this encoding, and the factor.

        None: all differ by less than `UNLIKE`.
        """
        with np.errstate(over="ignore"):
            encoded = (values - self.centres_of(keys)) * self.factors_of(keys)
        there = (values != 0) & (encoded != 0)
        if not there.any():
            return None
        sizes = sizes_of(keys[there], np.clip(encoded[there], -FLOAT_MAX, FLOAT_MAX))
        # A new key's values may be smaller than the others', as those of a text are.
        roots = np.where(np.isin(sizes.keys, self.keys), sizes.roots, np.maximum(sizes.roots, 1))
        furthest = int(np.abs(np.log(roots)).argmax())
        times = float(roots[furthest])
        return (int(sizes.keys[furthest]), times) if abs(np.log(times)) > np.log(UNLIKE) else None

    def centred(self, targets: NDArray[Any], weights: NDArray[Any], has_constant: bool) -> Encoding:
        """Add mean and deviation of targets.

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

    Of uint64 `keys` (n,), ascending: `counts` of values, none of them 0; mean, deviation and root
    of the mean square of the usual ones; whether there are others (`has_wrong`).
    """

    keys: NDArray[np.uint64]
    counts: NDArray[np.int64]
    means: NDArray[np.float64]
    deviations: NDArray[np.float64]
    roots: NDArray[np.float64]
    has_wrong: NDArray[np.bool_]


def sizes_of(keys: NDArray[np.uint64], values: NDArray[np.float32]) -> Sizes:
    """Measure values, none of which is 0."""
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


def clip(values: NDArray[np.float32], limit: float) -> NDArray[np.int64]:
    """Clip values in place; places of those that were beyond the limit, in the flat array."""
    if max(values.max(initial=0), -values.min(initial=0)) <= limit:
        return np.empty(0, np.int64)
    beyond = np.flatnonzero(np.abs(values) > limit)
    np.clip(values, -limit, limit, out=values)
    return beyond


def _factors(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    exponents = np.clip(-np.rint(np.log2(sizes)), -EXPONENT_MAX, EXPONENT_MAX)
    is_near = (sizes >= 1 / NEAR) & (sizes <= NEAR)
    return np.where(is_near, 1.0, np.exp2(exponents))


def moments(numbers: NDArray[np.float64], weights: NDArray[Any] | None) -> tuple[float, float]:
    """Mean and standard deviation, relative to one number, so that equal ones have exactly 0."""
    one = numbers[0 if weights is None else np.argmax(weights)]
    others = numbers - one
    mean = np.average(others, weights=weights)
    deviation = np.sqrt(np.average((others - mean) ** 2, weights=weights))
    return float(one + mean), float(deviation)


def shown(labels: Sequence[float]) -> str:
    some = ", ".join(f"{label:g}" for label in labels[:SHOWN])
    return some + (f", ... ({len(labels):,} in all)" if len(labels) > SHOWN else "")
