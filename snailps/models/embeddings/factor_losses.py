"""What a loss of a factorisation decides, one class a loss.

    settings -> loss_of -> Ratings | Rankings | Solved
    lines -> selected -> encoded -> train -> rows -> as_written -> figures

`Ratings` (squared) predicts values: a row is [bias, factors], and rating = mean + both biases +
product of the factors.  (rating - mean) / deviation is trained, both from the survey, and
`in_units` converts the finished rows.  `Rankings` (softmax, pairwise) compares each pair with drawn
items; a row is the factors.  `Solved` (als) is judged like a ranking, and its rows are solved by
`least_squares`.

To add a loss: a class here, its defaults in `settings.LOSSES`.  Must not know leases, nor tables.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.abi.quota import memory
from snailps.api.export_progress import TESTING, ExportProgress
from snailps.api.tables import Rows
from snailps.data.encoding import Encoding
from snailps.data.name_columns import Columns, Counted, Names, sizes_in
from snailps.dataclass import replace
from snailps.errors import DataError
from snailps.models.embeddings import least_squares, ranking
from snailps.models.embeddings.held_out import HeldOutRule
from snailps.models.embeddings.lines_tested import LinesTested
from snailps.models.embeddings.ranking import Lists
from snailps.models.embeddings.settings import MfSettings
from snailps.models.embeddings.worker import LineBatch, NameSurveyor
from snailps.models.local_sgd import Floats
from snailps.models.stopping import Figures

log = logging.getLogger(__name__)

SAMPLE_SCORES, SAMPLE_USERS, SAMPLE_LINES = 1 << 23, 100, 1 << 16
"""Scores of the lists of the users that a ranking is tested on during the training, about; fewest
users; most lines."""
MEAN_BITS = 20
"""The mean of values is rounded to this many binary digits below their deviation."""
NO_RELATIONS = np.zeros(0, np.int32)
SIZES = (0.1, 10.0)
"""Root mean squares of weights for which the rule of `a0` and `l2` was measured, about."""
SIZE_MOST = 1e6
Known = Callable[[], Sequence[Counted]]
"""Gives the names of the model that a training continues."""


class FactorLoss(ABC):
    """A loss with the settings of a job."""

    init: ClassVar[str]
    """How rows of new names begin."""
    ranks: ClassVar[bool]
    """Whether it is judged on lists of items, instead of errors of values."""
    needs_values: str = ""
    """Why lines must have values, and what to do; empty: they need none."""

    def __init__(self, settings: MfSettings) -> None:
        self.settings = settings

    # --- lines ------------------------------------------------------------------------------------

    @abstractmethod
    def selected(self, lines: Columns) -> Columns:
        """The lines that are learnt."""

    def chosen(self, lines: Columns) -> Columns:
        """The lines that say what a user has, which lists leave out."""
        return lines.choices()

    @abstractmethod
    def encoded(self, values: NDArray[np.float64], encoding: Encoding) -> Floats:
        """Values of lines as they are trained; empty: they are not read."""

    @abstractmethod
    def surveyor(self, kinds: int, known: Known) -> NameSurveyor:
        """Counts names, and refuses an input that has nothing to learn."""

    # --- rows -------------------------------------------------------------------------------------

    @abstractmethod
    def train(
        self,
        rows: Floats,
        batch: LineBatch,
        encoding: Encoding,
        seed: int,
        of_part: Mapping[str, Any],
    ) -> float:
        """Train a part of a batch; returns the sum of its losses."""

    @abstractmethod
    def curvature(self, squares: float) -> float:
        """Curvature of a line's loss along one of its rows; `squares`: of the other row."""

    def as_written(self, rows: Rows, encoding: Encoding) -> Rows:
        """Rows from servers as a model's file has them."""
        return rows

    def as_trained(self, rows: Rows) -> Rows:
        """Rows of a file as servers have them: the inverse of `as_written`."""
        return rows

    def arrays(self, names: Names) -> dict[str, NDArray[Any]]:
        """Further arrays of a model's file."""
        return {"mean": np.array([encoding_of(names, self.settings).centre])}

    def written(self, encoding: Encoding) -> MfSettings:
        """Settings for the model's file."""
        return self.settings

    # --- judging ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def deciding(self) -> Figures:
        """Figures that `stop_by` may name, the usual one first."""

    @property
    @abstractmethod
    def shown(self) -> list[str]:
        """Figures of the tests during the training."""

    @abstractmethod
    def users_tested(self, items: int) -> int:
        """Most users whose lines are tested during the training."""

    @abstractmethod
    def figures(
        self,
        users: Rows,
        items: Rows,
        tested: LinesTested,
        encoding: Encoding,
        progress: ExportProgress | None = None,
    ) -> dict[str, float]:
        """Judge rows as a file has them on lines that were not trained."""

    # --- answers ----------------------------------------------------------------------------------

    @abstractmethod
    def scores(
        self, mean: float, users: Rows, items: Rows, pairs: NDArray[np.int32]
    ) -> NDArray[Any]:
        """Values or scores (n,) of pairs (2, n) of rows of a file."""

    @abstractmethod
    def scores_for(self, mean: float, row: Floats, rows: Rows) -> NDArray[Any]:
        """Values or scores (n,) of a row with each row of the other kind."""

    @abstractmethod
    def to_rank(self, mean: float, users: Rows, items: Rows) -> tuple[Floats, Floats, Floats]:
        """Rows whose products rank a user's items, and for each user the number that added to a
        product makes it a value."""


class Ratings(FactorLoss):
    """Values of lines are predicted, with a bias of each user and item."""

    init, ranks = "factors", False
    needs_values = (
        "loss squared predicts values. Set loss: als, softmax or pairwise, which rank items"
    )

    def selected(self, lines: Columns) -> Columns:
        return lines

    def encoded(self, values: NDArray[np.float64], encoding: Encoding) -> Floats:
        return encoding.labels_of(values).astype(np.float32)

    def surveyor(self, kinds: int, known: Known) -> NameSurveyor:
        return RatingSurveyor(kinds, known, HeldOutRule.of(self.settings))

    def train(
        self,
        rows: Floats,
        batch: LineBatch,
        encoding: Encoding,
        seed: int,
        of_part: Mapping[str, Any],
    ) -> float:
        users, items = batch.places
        loss = kernels.train_ratings(
            rows, self.settings.row_dim, users, items, batch.values, **of_part
        )
        return loss * encoding.deviation**2  # in units of the values

    def curvature(self, squares: float) -> float:
        return 1 + squares  # 1 of the bias

    def as_written(self, rows: Rows, encoding: Encoding) -> Rows:
        return in_units(rows, encoding)

    def as_trained(self, rows: Rows) -> Rows:
        text = self.settings.encoding
        return encoded_rows(rows, Encoding.of_text(text)) if text else rows

    def arrays(self, names: Names) -> dict[str, NDArray[Any]]:
        """Further arrays of a model's file."""
        return {"mean": np.array([encoding_of(names, self.settings).centre])}

    def written(self, encoding: Encoding) -> MfSettings:
        """With the encoding, which a continued training needs."""
        return replace(self.settings, encoding=encoding.text)

    @property
    def deciding(self) -> Figures:
        return {"rmse": ("rmse", "lower"), "loss": ("rmse", "lower")}

    @property
    def shown(self) -> list[str]:
        return ["rmse"]

    def users_tested(self, items: int) -> int:
        return SAMPLE_LINES

    def figures(
        self,
        users: Rows,
        items: Rows,
        tested: LinesTested,
        encoding: Encoding,
        progress: ExportProgress | None = None,
    ) -> dict[str, float]:
        lines = tested.lines
        predicted = ratings(encoding.centre, users, items, lines.ids)
        return rating_figures(predicted, lines.values)

    def scores(
        self, mean: float, users: Rows, items: Rows, pairs: NDArray[np.int32]
    ) -> NDArray[Any]:
        return ratings(mean, users, items, pairs)

    def scores_for(self, mean: float, row: Floats, rows: Rows) -> NDArray[Any]:
        pairs = np.zeros((2, len(rows)), np.int32)
        pairs[1] = np.arange(len(rows))
        return ratings(mean, row[None], rows, pairs)

    def to_rank(self, mean: float, users: Rows, items: Rows) -> tuple[Floats, Floats, Floats]:
        with_ones = users.copy()
        with_ones[:, 0] = 1  # times the bias of the item
        return with_ones, items, users[:, 0] + np.float32(mean)


class Rankings(FactorLoss):
    """Each pair is ranked before drawn items."""

    init, ranks = "uniform", True
    KERNELS: ClassVar[Mapping[str, int]] = {"softmax": 2, "pairwise": 3}
    """Numbers of losses in `kernels.train_triples`."""

    def selected(self, lines: Columns) -> Columns:
        return self.chosen(lines)

    def encoded(self, values: NDArray[np.float64], encoding: Encoding) -> Floats:
        return np.zeros(0, np.float32)

    def surveyor(self, kinds: int, known: Known) -> NameSurveyor:
        return ChoiceSurveyor(self.settings, kinds, known)

    def train(
        self,
        rows: Floats,
        batch: LineBatch,
        encoding: Encoding,
        seed: int,
        of_part: Mapping[str, Any],
    ) -> float:
        s = self.settings
        users, items = batch.places
        return kernels.train_triples(
            rows,
            s.dim,
            users,
            NO_RELATIONS,
            items,
            batch.noise,
            relation=0,
            metric=0,
            loss=self.KERNELS[s.loss],
            shared=s.shared,
            negatives=s.negatives,
            side=1,
            normalize=False,
            margin=0.0,
            temperature=0.0,
            seed=seed,
            **of_part,
        )

    def curvature(self, squares: float) -> float:
        return 0.25 * squares  # of a logistic loss

    @property
    def deciding(self) -> Figures:
        top = self.settings.top
        return {name: (f"{name}_at_{top}", "higher") for name in ("ndcg", "recall")}

    @property
    def shown(self) -> list[str]:
        return [name for name, _ in self.deciding.values()]

    def users_tested(self, items: int) -> int:
        return max(SAMPLE_USERS, SAMPLE_SCORES // max(1, items))

    def figures(
        self,
        users: Rows,
        items: Rows,
        tested: LinesTested,
        encoding: Encoding,
        progress: ExportProgress | None = None,
    ) -> dict[str, float]:
        seen, top = tested.seen, self.settings.top
        if progress is None:
            return ranking.list_figures(users, items, tested.lines.ids, seen, top)
        counted = partial(_counted, progress)
        return ranking.list_figures(users, items, tested.lines.ids, seen, top, counted)

    def scores(
        self, mean: float, users: Rows, items: Rows, pairs: NDArray[np.int32]
    ) -> NDArray[Any]:
        return ranking.product_scores(users, items, pairs)

    def scores_for(self, mean: float, row: Floats, rows: Rows) -> NDArray[Any]:
        scores: Floats = ranking.scores(row[None], rows, ranking.PRODUCT)[0]
        return scores

    def to_rank(self, mean: float, users: Rows, items: Rows) -> tuple[Floats, Floats, Floats]:
        return users, items, np.zeros(len(users), np.float32)


class Solved(Rankings):
    """Rows are solved by least squares over all pairs; a ranking in all else."""

    init = "normal"

    @property
    def needs_values(self) -> str:  # type: ignore[override]
        if not self.settings.weighs:
            return ""
        return (
            "weights: values takes the weight of a line from its value. Add a third column, or set "
            "weights: one"
        )

    def chosen(self, lines: Columns) -> Columns:
        return lines.weighted() if self.settings.weighs else super().chosen(lines)

    def encoded(self, values: NDArray[np.float64], encoding: Encoding) -> Floats:
        if not self.settings.weighs:
            return super().encoded(values, encoding)
        return values.astype(np.float32)

    def surveyor(self, kinds: int, known: Known) -> NameSurveyor:
        if self.settings.weighs:
            return WeightSurveyor(self.settings, kinds, known)
        return super().surveyor(kinds, known)

    def arrays(self, names: Names) -> dict[str, NDArray[Any]]:
        return super().arrays(names) | {"solver": least_squares.solver_of(self.settings, names)}


def loss_of(settings: MfSettings) -> FactorLoss:
    """The loss of these settings; `auto` is that of ratings until the input has decided."""
    if settings.solves:
        return Solved(settings)
    return Ratings(settings) if settings.predicts else Rankings(settings)


class RatingSurveyor(NameSurveyor):
    """Counts names; warns of ratings that are all equal, from which no user or item differs."""

    def result(self) -> bytes:
        """All names, the most frequent first."""
        if self.values.number > 1 and not self.values.squares:
            log.warning(
                "loss squared: all %s values are %g, so that all predictions are, too: if lines are"
                " choices, set loss: als",
                f"{self.values.number:,.0f}", self.values.mean,
            )  # fmt: skip
        return super().result()


class RankingSurveyor(NameSurveyor):
    """Refuses more names than the master can test, where rows are solved."""

    def __init__(self, settings: MfSettings, kinds: int, known: Known) -> None:
        super().__init__(kinds, known, HeldOutRule.of(settings))
        self._settings, self._tests = settings, bool(settings.test or HeldOutRule.of(settings))

    def result(self) -> bytes:
        """All names, the most frequent first."""
        whole = super().result()
        if self._settings.solves and self._tests:  # the file that is continued has rows, too
            users, items = sizes_in(whole)
            least_squares.check_memory(self._settings, users, items, *memory())
        return whole


class ChoiceSurveyor(RankingSurveyor):
    """Counts names; reports which values are not used, and refuses an input without choices."""

    def result(self) -> bytes:
        """All names, the most frequent first."""
        if self.values.number and not self.values.most:
            raise DataError(
                f"input: none of its {self.values.number:,.0f} values is above 0: a ranking learns "
                "what was chosen. Leave the values out if each line is a choice"
            )
        if unused := self.values.unused:
            log.warning("%s", unused)
        return super().result()


class WeightSurveyor(RankingSurveyor):
    """Refuses weights that a solve in float32 does not bear, and an input without choices, unless
    the training continues a model, whose file has some."""

    def result(self) -> bytes:
        """All names, the most frequent first."""
        size = self.values.size
        if not (self.values.most or self._settings.continue_from):
            raise DataError(
                f"input: weights: values: none of {self.values.number:,.0f} values is above 0, so "
                "that no pair is to be 1. Values below 0 are pairs that are to be 0"
            )
        if not 1 / SIZE_MOST <= size <= SIZE_MOST:
            raise DataError(
                f"input: weights: values: expected weights of about 1, {1 / SIZE_MOST:g} to "
                f"{SIZE_MOST:g}, got a root mean square of {size:.3g}: divide all by their mean"
            )
        if not SIZES[0] <= size <= SIZES[1]:
            log.warning(
                "weights: values: the root mean square of all values is %.3g, and a0 and l2 are "
                "chosen for weights of about 1: divide the values by their mean, or set both",
                size,
            )
        return super().result()


def encoding_of(names: Names, settings: MfSettings) -> Encoding:
    """Mean and deviation of all values; 0 and 1 if there are none; the settings' own come first.

    Rounded (`MEAN_BITS`), because the last digits depend on the order of the survey's parts.
    """
    if settings.encoding:
        return Encoding.of_text(settings.encoding)
    values = names.values
    if not values.number:
        return Encoding()
    deviation = float(np.float32(values.deviation))
    if not deviation:
        return Encoding(centre=values.mean)
    part = 2.0 ** (np.floor(np.log2(deviation)) - MEAN_BITS)
    return Encoding(centre=round(values.mean / part) * part, deviation=deviation)


def in_units(rows: Rows, encoding: Encoding) -> Rows:
    """Convert rows [bias, factors] of encoded values to rows of values as written."""
    return rows * _scales(rows, encoding)


def encoded_rows(rows: Rows, encoding: Encoding) -> Rows:
    """The inverse of `in_units`, to the last digit."""
    return rows / _scales(rows, encoding)


def _scales(rows: Rows, encoding: Encoding) -> Floats:
    scales = np.full(rows.shape[1], encoding.deviation**0.5, np.float32)
    scales[0] = encoding.deviation
    return scales


def ratings(mean: float, users: Rows, items: Rows, pairs: NDArray[np.int32]) -> NDArray[np.float64]:
    """Predicted values (n,) of pairs (2, n); -1 is an unknown name, without bias and factors."""
    found = np.full(pairs.shape[1], mean)
    step = 1 << 16
    for at in range(0, pairs.shape[1], step):
        of, to = pairs[:, at : at + step]
        u = np.where((of >= 0)[:, None], users[of], 0)
        v = np.where((to >= 0)[:, None], items[to], 0)
        product = np.einsum("ij,ij->i", u[:, 1:], v[:, 1:])
        found[at : at + step] += u[:, 0] + v[:, 0] + product
    return found


def rating_figures(found: NDArray[np.float64], values: NDArray[np.float64]) -> dict[str, float]:
    """Root of the mean squared error, and mean absolute error, of predicted values."""
    if not len(values):
        return {}
    errors = found - values
    return {
        "rmse": float(np.sqrt(np.square(errors, dtype=np.float64).mean())),
        "mean_absolute_error": float(np.abs(errors, dtype=np.float64).mean()),
    }


def _counted(progress: ExportProgress, lists: Iterable[Lists], users: int) -> Iterable[Lists]:
    """Count the users whose lists are made, as a stage of a test."""
    return progress.count(f"{TESTING}: lists", users, "users", lists, lambda block: len(block[1]))
