"""How labels and values are scaled for training, and back.

    a sample of the input -> measured -> Encoding -> text, a setting of the job
    labels -> numbers of classes, or (label - centre) / deviation
    values -> (value - centre of its key) * factor of its key
    learnt weights -> factors, centres, deviation -> weights of values as they were written

Learning rates suit values and targets near 1.  So a column of other size is divided by the root of
its mean square, rounded to a power of two, which loses no digit (S. Ross et al., "Normalized online
learning", UAI 2013).  A column that all examples have and whose mean is far from 0 in units of its
deviation, such as years, is centred and divided by its deviation; in all others zeros stay zeros.
Must not know files, models or rows of tables.
"""

from __future__ import annotations

import base64
import itertools
import json
import zlib
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data._examples import Examples
from snailps.dataclass import dataclass, replace
from snailps.errors import DataError
from snailps.files._matrix import places_among, scaled

NEAR = 2.0
"""A column whose mean size is within this factor of 1 is not scaled."""
FAR = 1.0
"""A mean of more deviations from 0 than this is subtracted."""
UNLIKE = 100.0
"""Later values of a column that differ in size by more than this factor are reported."""
FARTHEST = 1e5
"""A mean of more deviations from 0 is not subtracted: float32 has too few digits for it."""
CENTRED_MIN = 10
"""Fewer examples do not show whether a column is far from 0."""
LIMIT = 64.0
"""Encoded values are clipped to this: with FTRL or AdaGrad one huge, wrong value would stop the
weight of its column for ever."""
WRONG = 1000.0
"""Values above this multiple of a column's largest usual value do not count for its size."""
USUAL = 128
"""One value in this many may be larger than the usual ones; from `USUAL_MIN` values on, one."""
USUAL_MIN = 16
KEYS_MAX = 1 << 18
"""Columns with a factor of their own, 3 MB of text; those with fewest entries share one beyond."""
COLUMN_BYTES = 8 + 1 + 4
"""Bytes of a packed column: uint64 key, int8 exponent of the factor, float32 centre."""
TABLE_KEYS = 1 << 20
"""If all keys are below, they are looked up in an array, else by binary search."""
EXPONENT_MAX = 120
"""Bound of a factor's exponent: factors, and weights beside them, stay in float32's range."""
FLOAT_MAX = float(np.finfo(np.float32).max)
SHOWN = 5
NAME_FIRST = (
    "Name first in the input a small file with an example of each class: then all of them are known"
)
"""Advice where a label is none of the classes of a sample."""
NO_KEYS = np.empty(0, np.uint64)


@dataclass(frozen=True)
class Encoding:
    """How labels and values are encoded; immutable.

    Attributes
    ----------
    labels : tuple of float
        Labels of class 0, 1, ..., ascending.  Empty: labels are class numbers already, or targets.
    centre, deviation : float
        A target t becomes (t - centre) / deviation.
    factor : float
        Factor of all columns without their own.
    columns : str
        Packed keys, each with its own factor and centre (`with_columns`).
    is_measured : bool
        Factors and centres were measured on an input.
    constant : float
        For classes, the mean loss of the best constant score; 0: unknown.
    clipped : tuple of int
        Keys of columns of which training has clipped values to `LIMIT`: prediction clips them too.
    names : tuple of str
        Classes of text labels, sorted; tables are read with their numbers.
    is_balanced : bool
        The numbers of `class_weights` come from ``balanced``: a further training finds its own.
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
    is_balanced: bool = False

    @classmethod
    def of_text(cls, text: str) -> Encoding:
        """Parse `text`; empty: nothing is changed.  ValueError: malformed, or not finite."""
        return _parsed(text)

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
        """Encode labels (n,).

        DataError, whose message begins with `where`: a label that is not among the classes.
        Examples of weight 0 may have any label.
        """
        if self.labels:
            classes = np.array(self.labels)
            numbers, are_known = places_among(classes, np.ascontiguousarray(labels, np.float64))
            if are_known:
                return numbers
            is_wrong = classes[numbers.astype(np.int64)] != labels
            if weights is not None and len(weights):
                is_wrong &= weights != 0
            wrong = np.flatnonzero(is_wrong)
            if len(wrong):
                raise DataError(
                    f"{where}: label {labels[wrong[0]]:g} is none of the classes that a sample of "
                    f"the input has: {shown(self.labels)}. {NAME_FIRST}"
                )
            return numbers
        if self.is_plain_target:
            return labels
        return (labels - self.centre) / self.deviation

    def targets_of(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Decode targets or scores; float64 unless they are unchanged."""
        if self.is_plain_target:
            return numbers
        return numbers.astype(np.float64) * self.deviation + self.centre

    @property
    def is_plain_target(self) -> bool:
        return self.centre == 0 and self.deviation == 1

    def with_columns(
        self, keys: NDArray[Any], factors: NDArray[Any], centres: NDArray[Any]
    ) -> Encoding:
        """With these columns: ascending keys, and their factors (powers of two) and centres."""
        steps = np.diff(np.asarray(keys, np.uint64), prepend=np.uint64(0)).astype("<u8")
        exponents = np.log2(np.asarray(factors, np.float64)).astype("i1")
        packed = steps.tobytes() + exponents.tobytes() + np.asarray(centres, "<f4").tobytes()
        text = base64.b85encode(zlib.compress(packed)).decode() if len(keys) else ""
        return replace(self, columns=text)

    @cached_property
    def _listed(
        self,
    ) -> tuple[NDArray[np.uint64], NDArray[np.float32], NDArray[np.float32]]:
        """Keys, ascending, with their factors and centres: `columns` unpacked.

        The text is a setting, so anyone may have written it: its size is bounded before unpacking.
        """
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
        """Keys of centred columns, ascending.

        An example without such a column means 0, which is encoded as minus the centre: so each
        encoded example has an entry of each.
        """
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

    def of_examples(self, examples: Examples) -> Examples:
        """Examples with encoded values, clipped to `FLOAT_MAX`, and an entry of each centred
        column."""
        return self.encoded(examples)[0]

    def encoded(
        self, examples: Examples, limit: float = FLOAT_MAX
    ) -> tuple[Examples, NDArray[np.uint64]]:
        """`of_examples`, and the keys of clipped values, except in examples of weight 0."""
        if self.keeps_values:
            return examples, NO_KEYS
        keys, values, largest = examples.keys, examples.values, np.inf
        with np.errstate(over="ignore"):
            if (row := self._row_of_all(examples)) is not None:
                values = values.reshape(-1, len(row)) - self.centres_of(row)
                values = np.multiply(values, self.factors_of(row), out=values).ravel()
            else:
                if len(self.centred_keys):
                    examples, centres = self._completed(examples)
                    keys, values = examples.keys, examples.values - centres
                if len(self._factor_table):
                    values, largest = scaled(values, keys, self._factor_table)
                else:
                    values = values * self.factors_of(keys)
        beyond = clip(values, limit) if largest > limit else np.empty(0, np.int64)
        if len(beyond) and len(examples.weights):
            rows = np.searchsorted(examples.ptr, beyond, side="right") - 1
            beyond = beyond[examples.weights[rows] > 0]
        return examples._replace(values=values), keys[beyond]

    def bounded(self, examples: Examples) -> Examples:
        """Examples, not encoded, with the values of `clipped` columns bounded as in training."""
        if not self.clipped:
            return examples
        entries = np.flatnonzero(np.isin(examples.keys, np.array(self.clipped, np.uint64)))
        keys, values = examples.keys[entries], examples.values.copy()
        centres, reach = self.centres_of(keys), np.float32(LIMIT) / self.factors_of(keys)
        values[entries] = np.clip(values[entries], centres - reach, centres + reach)
        return examples._replace(values=values)

    def bounded_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """`bounded` for dense rows, whose columns' keys are their numbers."""
        if not self.clipped:
            return rows
        keys = np.array(self.clipped, np.uint64)
        centres, reach = self.centres_of(keys), np.float32(LIMIT) / self.factors_of(keys)
        bounded, columns = rows.astype(np.float32), keys.astype(np.int64)
        bounded[:, columns] = np.clip(bounded[:, columns], centres - reach, centres + reach)
        return bounded

    def _row_of_all(self, examples: Examples) -> NDArray[np.uint64] | None:
        """The keys of an example, if all examples have the same keys in the same order, among them
        every centred column: then there is nothing to complete.  Else None."""
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
        """Examples with an entry of each centred column, and for each value its centre.

        If an example has a key twice, its values add up, so only the first one is centred.
        """
        centres = self.centres_of(examples.keys)
        count, each = len(examples.labels), len(self.centred_keys)
        is_centred = centres != 0
        before = np.concatenate(([0], np.cumsum(is_centred)))[examples.ptr]
        centred = examples.keys[is_centred]
        if (before == each * np.arange(count + 1)).all():  # else counts differ
            alike = centred.reshape(count, each) == centred[:each].reshape(-1, each)
            if alike.all() and len(np.unique(centred[:each])) == each * (count > 0):
                return examples, centres
        rows = np.repeat(np.arange(count), np.diff(before))
        pairs = rows * each + np.searchsorted(self.centred_keys, centred)
        present, first = np.unique(pairs, return_index=True)
        is_repeated = np.ones(len(pairs), bool)
        is_repeated[first] = False
        centres[np.flatnonzero(is_centred)[is_repeated]] = 0
        is_lacking = np.ones(count * each, bool)
        is_lacking[present] = False
        lacking = np.flatnonzero(is_lacking)
        of_rows, columns = np.divmod(lacking, max(1, each))
        row_ends = examples.ptr[of_rows + 1]
        more = np.concatenate(([0], np.cumsum(np.bincount(of_rows, minlength=count))))
        nonzero_centres = self.centres[self.centres != 0]
        completed = examples._replace(
            ptr=examples.ptr + more,
            keys=np.insert(examples.keys, row_ends, self.centred_keys[columns]),
            values=np.insert(examples.values, row_ends, 0),
            fields=np.insert(examples.fields, row_ends, 0)
            if len(examples.fields)
            else examples.fields,
        )
        return completed, np.insert(centres, row_ends, nonzero_centres[columns])

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
        """By key, its number in `numbers` (or `table`, if there is one); `other` if not listed."""
        listed = self.keys
        if len(listed) == 0:
            return np.full(len(keys), other, np.float32)
        if len(table):
            places = np.minimum(keys, np.uint64(len(table) - 1)).astype(np.int64)
            return np.asarray(table[places])
        places = np.minimum(np.searchsorted(listed, keys), len(listed) - 1)
        return np.where(listed[places] == keys, numbers[places], np.float32(other))

    @cached_property
    def _factor_table(self) -> NDArray[np.float32]:
        return self._table_of(self._listed[1], self.factor)

    @cached_property
    def _centre_table(self) -> NDArray[np.float32]:
        return self._table_of(self.centres, 0.0)

    def _table_of(self, numbers: NDArray[np.float32], other: float) -> NDArray[np.float32]:
        """An array of numbers by key, the last one for all larger keys.  Empty: keys are large."""
        listed = self.keys
        last = int(listed[-1]) if len(listed) else -1
        if last >= TABLE_KEYS:
            return np.empty(0, np.float32)
        table = np.full(last + 2, other, np.float32)
        table[listed.astype(np.int64)] = numbers
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
        """With factors and centres measured on the entries of `examples` examples.

        Centres columns whose mean is between `FAR` and `farthest` deviations from 0; 0: no column.
        """
        encoding = replace(self, is_measured=True)
        is_nonzero = values != 0
        if (values[is_nonzero] == 1).all():
            return encoding
        sizes = sizes_of(keys[is_nonzero], values[is_nonzero])
        with np.errstate(over="ignore", invalid="ignore"):
            ratios = np.abs(sizes.means) / np.maximum(sizes.deviations, np.finfo(float).tiny)
        is_centred = (
            (ratios > FAR) & (ratios <= farthest) & (sizes.counts == examples)
            & (examples >= CENTRED_MIN)
        )  # fmt: skip
        spread = np.where(is_centred, sizes.deviations, sizes.roots)
        common = float(_factors(np.array([_median(spread)]))[0])
        is_own = np.abs(np.log(spread * common)) > np.log(NEAR)
        chosen = np.flatnonzero(is_own | is_centred | sizes.has_wrong)
        if len(chosen) > KEYS_MAX:
            chosen = np.sort(chosen[np.argsort(-sizes.counts[chosen], kind="stable")[:KEYS_MAX]])
        return replace(encoding, factor=common).with_columns(
            sizes.keys[chosen],
            np.where(is_own, _factors(spread), common)[chosen],
            np.where(is_centred, sizes.means, 0)[chosen],
        )

    def unlike(
        self, keys: NDArray[np.uint64], values: NDArray[np.float32]
    ) -> tuple[int, float] | None:
        """The key whose values have grown or shrunk most since the measurement, and the factor.

        None: no column differs by more than `UNLIKE`.
        """
        with np.errstate(over="ignore"):
            encoded = (values - self.centres_of(keys)) * self.factors_of(keys)
        is_nonzero = (values != 0) & (encoded != 0)
        if not is_nonzero.any():
            return None
        sizes = sizes_of(keys[is_nonzero], np.clip(encoded[is_nonzero], -FLOAT_MAX, FLOAT_MAX))
        # A key without its own factor may have smaller values than the others: a rare word, say.
        roots = np.where(np.isin(sizes.keys, self.keys), sizes.roots, np.maximum(sizes.roots, 1))
        furthest = int(np.abs(np.log(roots)).argmax())
        times = float(roots[furthest])
        return (int(sizes.keys[furthest]), times) if abs(np.log(times)) > np.log(UNLIKE) else None

    def centred(self, targets: NDArray[Any], weights: NDArray[Any], has_constant: bool) -> Encoding:
        """With mean and deviation of targets.

        Without a constant (`has_constant`) the model could not add a mean back: the mean is then 0,
        and the deviation the root of the mean square.
        """
        numbers = np.asarray(targets, np.float64)
        mean, deviation = moments(numbers, weights if len(weights) else None)
        if not has_constant:
            mean, deviation = 0.0, float(np.hypot(mean, deviation))
        return replace(self, centre=mean, deviation=deviation if deviation > 0 else 1.0)


@lru_cache(maxsize=4)
def _parsed(text: str) -> Encoding:
    """Parse what `Encoding.text` makes; kept, because an export asks again for each piece."""
    if not text:
        return Encoding()
    read: Any = json.loads(text)
    if not isinstance(read, dict) or not read.keys() <= Encoding.__dataclass_fields__.keys():
        raise ValueError(f"expected what `Encoding.text` makes, got {text!r:.60}")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in read.items()
    }
    made = Encoding(**values)
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


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the values of columns are, in a sample that is not empty.

    By column, `keys` (uint64 (n,)) ascending: `counts` of nonzero values; mean, deviation and root
    of the mean square of the usual values; `has_wrong`: whether there are values far beyond those.
    """

    keys: NDArray[np.uint64]
    counts: NDArray[np.int64]
    means: NDArray[np.float64]
    deviations: NDArray[np.float64]
    roots: NDArray[np.float64]
    has_wrong: NDArray[np.bool_]


def sizes_of(keys: NDArray[np.uint64], values: NDArray[np.float32]) -> Sizes:
    """Measure nonzero values by column."""
    size = np.abs(values)
    order = np.lexsort((size, keys))
    keys, numbers, size = keys[order], values[order].astype(np.float64), size[order]
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    counts = np.diff(starts, append=len(keys))
    rare = np.where(counts >= USUAL_MIN, -(-counts // USUAL), 0)
    usual = np.repeat(WRONG * size[starts + counts - 1 - rare].astype(np.float64), counts)
    is_usual = size <= usual
    numbers[~is_usual] = 0
    usual_counts = np.add.reduceat(is_usual, starts, dtype=np.int64)
    means = np.add.reduceat(numbers, starts) / usual_counts
    roots = np.sqrt(np.add.reduceat(numbers**2, starts) / usual_counts)
    apart = np.where(is_usual, numbers - np.repeat(means, counts), 0)
    deviations = np.sqrt(np.add.reduceat(apart**2, starts) / usual_counts)
    return Sizes(keys[starts], counts, means, deviations, roots, usual_counts < counts)


def clip(values: NDArray[np.float32], limit: float) -> NDArray[np.int64]:
    """Clip values in place; the indices of those that were beyond the limit."""
    if max(values.max(initial=0), -values.min(initial=0)) <= limit:
        return np.empty(0, np.int64)
    beyond = np.flatnonzero(np.abs(values) > limit)
    np.clip(values, -limit, limit, out=values)
    return beyond


def _median(values: NDArray[np.float64]) -> float:
    """Return the median; `np.median` imports `numpy.ma`, for as long as a small job trains."""
    middle = [(len(values) - 1) // 2, len(values) // 2]
    parts = np.partition(values, [*middle, len(values) - 1])
    return float("nan") if np.isnan(parts[-1]) else float(parts[middle].mean())


def _factors(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Powers of two that bring sizes near 1; 1 for sizes that are near it already."""
    exponents = np.clip(-np.rint(np.log2(sizes)), -EXPONENT_MAX, EXPONENT_MAX)
    is_near = (sizes >= 1 / NEAR) & (sizes <= NEAR)
    return np.where(is_near, 1.0, np.exp2(exponents))


def moments(numbers: NDArray[np.float64], weights: NDArray[Any] | None) -> tuple[float, float]:
    """Mean and standard deviation.

    Computed relative to one of the numbers, so that the deviation of equal numbers is exactly 0.
    """
    origin = numbers[0 if weights is None else np.argmax(weights)]
    shifted = numbers - origin
    mean = np.average(shifted, weights=weights)
    deviation = np.sqrt(np.average((shifted - mean) ** 2, weights=weights))
    return float(origin + mean), float(deviation)


def shown(labels: Sequence[float]) -> str:
    """The first labels for a message, and how many there are."""
    first = ", ".join(f"{label:g}" for label in labels[:SHOWN])
    return first + (f", ... ({len(labels):,} in all)" if len(labels) > SHOWN else "")
