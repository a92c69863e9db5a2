"""Factorization machines of order 2, plain and field-aware, on sparse examples.

    Batch, rows (weights, state) -> unpacked rows -> kernels.train_fm -> differences
    tables -> OUTPUT.npz

A row is [w, v]: a feature's weight, and its factor of `factors` numbers; two features interact by
the product of their factors.  In a field-aware machine a row has a factor for each field.  The bias
is a row in which only w counts.  Owns the layout and the scores; `kernels.train_fm` computes,
`worker.SparseWorker` moves rows.
After S. Rendle, ICDM 2010, and Y. Juan et al., "Field-aware factorization machines", RecSys 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.tables import DIM_MAX, Table
from snailps.config import JobSettings, setting
from snailps.data.encoding import Encoding
from snailps.dataclass import dataclass
from snailps.errors import ConfigError, DataError
from snailps.models.block_trainer import Rates, Span, Sums
from snailps.models.local_sgd import RowLayout
from snailps.models.sparse.batch import (
    BIAS_KEY,
    NO_FIELDS,
    WITHOUT_FIELDS,
    Batch,
    Floats,
    Keys,
)
from snailps.models.sparse.delta_shares import Shares
from snailps.models.sparse.model import factors_of
from snailps.models.sparse.settings import SparseSettings
from snailps.models.sparse.worker import SparseWorker

PARTS = {"sgd": 1, "adagrad": 2, "ftrl": 3}
"""Parts of a row: weights, then the state of the method."""
EXACT_ENTRIES = 1 << 16
"""About how many entries of examples are added up at a time."""
FARTHEST_OF_FACTORS = 1000.0
"""For `farthest`: beyond it, squares of products of values and factors nearly cancel, and lose
digits."""
HOT_FLOATS = 8192
"""Floats of frequent rows that each thread has a copy of: what fits in a core's cache."""


@dataclass(frozen=True, slots=True)
class FmSettings(SparseSettings):
    """Settings of factorization machines; the defaults suit 10,000 examples and more."""

    usual_method: ClassVar[str] = "adagrad"
    loss: Literal["logistic", "squared"] = setting(
        "logistic",
        help="Loss, which fits the labels. `logistic`: two labels, the larger one is yes. "
        "`squared`: real numbers.",
        when="Labels are numbers.",
    )
    factors: int = setting(
        8,
        help="Length of a feature's factor vector.",
        when="4 with fields or few examples; more for many examples.",
        low=1,
        high=1024,
    )
    fields: int = setting(
        0,
        help="Number of fields of a field-aware machine; a feature has a factor for each field. "
        "Fields are numbered from 0. 0: a plain machine, one factor a feature.",
        when="Features belong to fields (LIBFFM, CSV), and there are many examples.",
        unit="fields",
        low=0,
        high=DIM_MAX,
    )
    scale: float = setting(
        0.03,
        help="Standard deviation of the initial factors.",
        when="Smaller for examples with very many features.",
        low=1e-6,
        high=10.0,
    )
    factor_l2: float = setting(
        0.002,
        help="`l2` of the factors.",
        when="Larger if the hold-out loss rises while the training loss falls.",
        low=0.0,
        high=1e6,
    )
    eps: float = setting(
        0.1,
        help="AdaGrad's epsilon, added to the root of the sum of squared gradients. With values "
        "near 0 the first steps are long even for tiny gradients, and spoil the factors.",
        when="1 is a little better if all features are frequent; smaller for very rare ones.",
        low=1e-8,
        high=1e6,
        read_if={"method": ("adagrad",)},
    )

    def validate(self, where: Callable[[str], str]) -> None:
        SparseSettings.validate(self, where)
        if 1 + self.factors * max(1, self.fields) > DIM_MAX:
            raise ConfigError(
                f"{where('fields')}: a row has a factor for each field; expected 1 + "
                f"factors x fields up to {DIM_MAX:,}, got 1 + {self.factors} x {self.fields}"
            )
        if self.fields and self.format == "libsvm":
            raise ConfigError(
                f"{where('fields')}: LIBSVM's examples have none: expected 0, or format "
                "libffm (label field:feature:value), csv or tsv"
            )

    @property
    def dim(self) -> int:
        return 1 + self.factors * max(1, self.fields)

    @property
    def stride(self) -> int:
        """Floats from one part of a trained row to the next, a multiple of `kernels.PAD`."""
        return -(-self.dim // kernels.PAD) * kernels.PAD


class FactorizationMachine(SparseWorker):
    """Factorization machines; see the module's docstring."""

    Settings = FmSettings
    settings: FmSettings
    shape = ("factors", "fields")
    drift = 2.0
    """Below `DRIFT`, because the curvature in factors is not measured beforehand."""
    growth_least = rare_steps = 0.0
    """Rows do not wait, because how far factors have drifted is not measured either."""
    falling = ("sgd", "adagrad")
    learns_by_heart = True

    def tables(self) -> Sequence[Table]:
        """Declare one table: the weight and the factors of a feature, with their state."""
        s = self.settings
        own = {} if s.method == "ftrl" else {"eps": s.eps}
        return (self.table(s.dim, init="factors", scale=s.scale, **own),)

    def setup(self) -> None:
        super().setup()
        self._hot = max(1, HOT_FLOATS // self.sgd.layout.trained_width)

    def make_shares(self, table: Table) -> Shares:
        """A row has the weight of one output; its other numbers are factors."""
        return Shares(self.settings, table.dim, outputs=1, eps=self.settings.eps)

    def row_layout(self, table: Table) -> RowLayout:
        """Each part starts at the boundary of a cache line."""
        return RowLayout.padded(table.dim, PARTS[self.settings.method])

    def train_part(
        self, batch: Batch, rows: Floats, part: Span, rates: Rates, *, shared: bool
    ) -> Sums:
        s = self.settings
        return kernels.train_fm(
            rows,
            batch.ptr,
            batch.places,
            batch.values,
            batch.fields if s.fields else NO_FIELDS,
            batch.labels,
            batch.weights,
            factors=s.factors,
            field_num=max(1, s.fields),
            hot=min(self._hot, len(rows)) if shared else 0,
            eps=s.eps,
            factor_l2=s.factor_l2,
            **self.of_part(batch, part, rates),
        )

    @classmethod
    def model_name(cls, settings: JobSettings) -> str:
        return "fm"

    @classmethod
    def check_batch(cls, settings: FmSettings, batch: Batch, where: str) -> None:
        check_fields(settings, batch, where, trained=False)

    @classmethod
    def scores(
        cls, settings: FmSettings, rows: Floats, batch: Batch, extras: Mapping[str, Floats]
    ) -> Floats:
        """Add up bias, weights, and a product for each pair of features."""
        check_fields(settings, batch, "examples", trained=True)
        first = untrained(settings, batch.keys, rows)
        if len(Encoding.of_text(settings.encoding).centred_keys):
            rows = rows.copy()
            rows[first] = 0
            return exact_scores(rows, batch)
        wide = kernels.padded(len(rows), settings.stride)
        kernels.unpack_parts(rows, wide, settings.dim, 1)
        wide[first] = 0
        scores = kernels.fm_scores(
            wide,
            batch.ptr,
            batch.places,
            batch.values,
            batch.fields if settings.fields else NO_FIELDS,
            factors=settings.factors,
            field_num=max(1, settings.fields),
            bias=batch.bias,
        )
        return scores[:, None]

    @classmethod
    def farthest(cls, settings: FmSettings) -> float:
        """No column is centred with factors by field: a key does not determine its field."""
        return 0.0 if settings.fields else FARTHEST_OF_FACTORS

    @classmethod
    def decoded(cls, settings: FmSettings, keys: Keys, rows: Floats, centred: Floats) -> Floats:
        """Compute the finished model's rows, for values and targets as written.

        Weights are multiplied by the divisor of targets, factors by its root, since only products
        of factors count.  Centres go to the constant and the weights, by expanding the sum of (v_i
        . v_j) (x_i - c_i) (x_j - c_j).
        """
        encoding = Encoding.of_text(settings.encoding)
        made = rows.astype(np.float64)
        if len(centred):
            is_bias = keys == BIAS_KEY
            offsets = encoding.centres_of(keys) * encoding.factors_of(keys).astype(np.float64)
            made[:, 0] += offsets * np.square(made[:, 1:]).sum(1)
            made[:, 0] -= made[:, 1:] @ (encoding.offsets @ centred[:, 1:])
            made[is_bias, 0] = rows[is_bias, 0] + cls.constant_of(encoding, centred)
        made *= factors_of(settings, keys)[:, None]
        made[:, 0] *= encoding.deviation
        made[:, 1:] *= encoding.deviation**0.5
        made[keys == BIAS_KEY, 0] += encoding.centre
        made[keys == BIAS_KEY, 1:] = 0  # the bias has no factors
        return made.astype(np.float32)

    @classmethod
    def constant_of(cls, encoding: Encoding, centred: Floats) -> Any:
        """Compute what centres add to scores, by weights and by products of factors."""
        products = encoding.offsets[:, None] * centred
        pairs = np.square(products[:, 1:].sum(0)) - np.square(products[:, 1:]).sum(0)
        return pairs.sum() / 2 - products[:, 0].sum()


def exact_scores(rows: Floats, batch: Batch) -> Floats:
    """Compute scores (n, 1) of a plain machine, added up in float64.

    With columns far from 0, products of factors are large in a finished model, and nearly cancel.
    """
    scores = np.full(len(batch), rows[batch.bias, 0] if batch.bias >= 0 else 0, np.float64)
    step = max(1, EXACT_ENTRIES * len(batch) // max(1, len(batch.places)))
    for first in range(0, len(batch), step):
        ptr = batch.ptr[first : first + step + 1]
        part = slice(ptr[0], ptr[-1])
        products = rows[batch.places[part]] * batch.values[part, None].astype(np.float64)
        with_entries = np.flatnonzero(np.diff(ptr))
        if len(with_entries) == 0:
            continue
        starts = ptr[with_entries] - ptr[0]
        sums = np.add.reduceat(products, starts)
        squares = np.add.reduceat(np.square(products[:, 1:]).sum(1), starts)
        pairs = (np.square(sums[:, 1:]).sum(1) - squares) / 2
        scores[first + with_entries] += sums[:, 0] + pairs
    return scores.astype(np.float32)[:, None]


def check_fields(settings: FmSettings, batch: Batch, where: str, *, trained: bool) -> None:
    """Refuse examples without fields, or with fields for which rows have no factors.

    `where` names the examples in the message.  `trained`: the model's fields cannot change anymore,
    so the message does not advise it.
    """
    if not settings.fields or len(batch.places) == 0:
        return
    if len(batch.fields):
        low, high = int(batch.fields.min()), int(batch.fields.max())
        if low >= 0 and high < settings.fields:
            return
        got, advice = f"{low} to {high}", f". Set fields: {high + 1}"
    else:
        got = WITHOUT_FIELDS
        advice = ", or set fields: 0 for a plain factorization machine"
    expected = f"fields 0 to {settings.fields - 1}{', as the model has' if trained else ''}"
    raise DataError(f"{where}: expected {expected}, got {got}{'' if trained else advice}")


def untrained(settings: FmSettings, keys: NDArray[np.uint64], rows: Floats) -> NDArray[np.int64]:
    """Find the places of keys without a row, whose random first factors mean nothing.

    Such a key reads as its first value, which is a function of seed and key.
    """
    at = np.flatnonzero(rows[:, 0] == 0)
    first = np.empty((len(at), settings.dim), np.float32)
    kernels.init_rows(3, settings.scale, settings.seed, keys[at], first)
    # Not to the bit: the server may run another build of the kernels.
    found: NDArray[np.int64] = at[np.abs(rows[at] - first).max(axis=1) <= 1e-4 * settings.scale]
    return found
