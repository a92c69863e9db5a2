"""Settings of embeddings of names; knowledge graphs and matrix factorisation add theirs.

    JobSettings <- EmbeddingSettings <- KgeSettings, MfSettings

Declarations and checks of values against each other; no files, no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from snailps.api.passes import EPOCHS_AUTO
from snailps.api.tables import DIM_MAX
from snailps.config import JobSettings, setting
from snailps.dataclass import dataclass, replace
from snailps.errors import ConfigError
from snailps.models.shared_settings import KEEP_STATE, STOP_AFTER, STOP_BY, TEST, refuse_stop_by

ADAGRAD = {"method": ("adagrad",)}
RANKINGS = {"loss": ("softmax", "pairwise")}
LISTS = {"loss": ("auto", "als", "softmax", "pairwise")}
STEPWISE = {"loss": ("auto", "squared", "softmax", "pairwise")}
LEAST_SQUARES = {"loss": ("auto", "als")}
DIM, DIM_SMALL, SMALL_LINES = 64, 128, 130_000
"""What `dim: auto` becomes; with `als`, for an input of at most so many lines.  More factors never
made lists worse, but 128 take 2.4 times as long as 64: docs/design/least-squares.md."""
L2_AUTO = -1
"""The value that means `l2: auto`."""


class LossDefaults(NamedTuple):
    """What a loss makes of settings that leave the choice to it.

    `method`: access method of the rows, for `optimizer: auto`; `rate`: initial step size with that
    method, and `OTHER_RATE` with another; `scale`: of initial weights, and `divided`: by the root
    of `dim`.
    """

    predicts: bool
    method: str
    rate: float
    l2: float
    scale: float
    divided: bool = True


OTHER_RATE = 0.05
_RANKED = LossDefaults(predicts=False, method="adagrad", rate=0.3, l2=0.06, scale=0.5)
LOSSES = {
    "squared": LossDefaults(
        predicts=True, method="sgd", rate=0.08, l2=0.1, scale=0.1, divided=False
    ),
    "softmax": _RANKED,
    "pairwise": _RANKED,
    # Solved rows are assigned: no step. They begin small, as in the paper.
    "als": LossDefaults(predicts=False, method="add", rate=OTHER_RATE, l2=0.03, scale=0.1),
}
"""docs/design/least-squares.md has other values of `l2`, on real sets."""
LOSSES["auto"] = LOSSES["squared"]
NEGATIVES: Mapping[str, Any] = {
    "when": "More for a better ranking, fewer for more lines/s.",
    "low": 1,
    "high": 4096,
}
SHARED: Mapping[str, Any] = {
    "when": "Fewer if there are few lines; more for more lines/s.",
    "unit": "lines",
    "low": 1,
    "high": 64,
}
LENGTH: Mapping[str, Any] = {"low": 1, "high": DIM_MAX - 1}
RATE: Mapping[str, Any] = {"low": 0.0, "high": 100.0, "aliases": ["learning_rate"]}
METHODS = {"sgd": 1, "adagrad": 2}
"""Access methods whose deltas add up, with their numbers in kernels."""


@dataclass(frozen=True, slots=True)
class EmbeddingSettings(JobSettings):
    """Settings of all embeddings of names."""

    epochs: int = setting(0, **EPOCHS_AUTO)
    test: tuple[str, ...] = setting(
        (), **TEST, when="To measure the model on lines that it was not trained on."
    )
    dim: int = setting(
        DIM,
        help="Length of a row; a complex number takes two.",
        when="More for many entities with many lines each.",
        **LENGTH,
    )
    negatives: int = setting(
        64,
        help="Negatives drawn for a group of lines.",
        **NEGATIVES,
    )
    shared: int = setting(
        16,
        help="Lines that share negatives. 1: each line has its own.",
        **SHARED,
    )
    lr: float = setting(
        0.0,
        help="Initial step size. It falls linearly to `lr` x `lr_end` over the job. 0: 0.2 for "
        "`rotate` with AdaGrad, else 0.1.",
        when="Search it for each graph: 0.02 to 0.4 with AdaGrad.",
        **RATE,
    )
    lr_end: float = setting(
        0.0,
        help="Part of `lr` that the step size has at the end. 1: it does not fall.",
        when="To compare with a program whose step size is constant.",
        low=0.0,
        high=1.0,
    )
    l2: float = setting(
        0.0,
        help="L2 penalty. Factor of half the sum of squared weights of a line's rows, in the "
        "line's loss. With `rotate` only entities count, because phases are not weights.",
        when="Larger if the quality on hold-out lines falls while the training loss falls.",
        low=0.0,
        high=1e3,
    )
    eps: float = setting(
        1e-8,
        help="AdaGrad's epsilon, added to the root of the sum of squared gradients.",
        when="Larger if the first steps of rare names are too long.",
        low=1e-30,
        high=1e6,
        read_if=ADAGRAD,
    )
    scale: float = setting(
        0.0,
        help="Scale of initial weights, drawn uniformly from -scale to scale. Factors of ratings "
        "are normal with this deviation, and their biases start at 0. 0: the model's choice.",
        when="To compare with another program.",
        low=0.0,
        high=100.0,
    )
    continue_from: str = setting(
        "",
        help="Model file to continue from. A `.npz` of the same model, written with "
        "`keep_state` or by `save` of an estimator. Its names keep their rows, new names are "
        "added; model, dim and optimizer come from the file, and so does every model setting that "
        "you do not set, except `epochs`.",
        when="There are new lines or new names.",
        unit="path",
    )
    keep_state: Literal["auto", "always", "never"] = setting("auto", **KEEP_STATE)

    shape: ClassVar[tuple[str, ...]] = ("dim",)
    """Settings that must equal those of the model that a training continues."""

    @property
    def method(self) -> str:
        return "adagrad" if self.optimizer == "auto" else self.optimizer

    @property
    def predicts(self) -> bool:
        """Whether values of lines are predicted."""
        return False

    @property
    def rate(self) -> float:
        return self.lr or 0.1

    @property
    def decay(self) -> float:
        """Penalty: a line's loss contains this factor times half the squares of its rows."""
        return self.l2


@dataclass(frozen=True, slots=True)
class KgeSettings(EmbeddingSettings):
    """Settings of knowledge graphs; the defaults suit about 100,000 triples."""

    model: Literal["transe", "distmult", "complex", "rotate"] = setting(
        "rotate",
        help="Scoring model. `transe`: h + r is near t. `distmult`: product of h, r, t. `complex`: "
        "that product of complex numbers. `rotate`: r rotates h to t.",
        when="`complex` for small graphs with many triples an entity; docs/knowledge_graphs.md "
        "has figures.",
    )
    valid: tuple[str, ...] = setting(
        (),
        help="Files of validation triples. They are evaluated themselves, and count as known "
        "answers like the triples of `input` and `test`.",
        when="The graph has a validation part.",
        unit="paths",
    )
    loss: Literal["logistic", "margin", "softmax"] = setting(
        "logistic",
        help="Loss of a triple. `logistic`: of each score, negatives weighted by `temperature`. "
        "`margin`: hinge of differences. `softmax`: cross entropy of the triple among its "
        "negatives.",
        when="`softmax` for complex and distmult with many negatives.",
    )
    margin: float = setting(
        6.0,
        help="Margin of the hinge; with `logistic` the distance that counts as neither true nor "
        "false. Models of inner products use it only with `loss: margin`.",
        when="1 for the hinge; larger for larger dim.",
        low=0.0,
        high=1e3,
        read_if=({"loss": ("margin",)}, {"model": ("transe", "rotate")}),
    )
    temperature: float = setting(
        1.0,
        help="Temperature of self-adversarial negatives, whose weights are the softmax of "
        "temperature x score. 0: equal weights.",
        when="0.5 to 1; 0 for the plain logistic loss.",
        low=0.0,
        high=100.0,
        read_if={"loss": ("logistic",)},
    )
    norm: Literal["l1", "l2"] = setting(
        "l1",
        help="Norm of the distance.",
        when="l2 for small dim.",
        read_if={"model": ("transe",)},
    )
    normalize: bool = setting(
        False,
        help="Whether entities are kept unit vectors, as in TransE's paper.",
        when="`transe` with `loss: margin`.",
    )

    shape: ClassVar[tuple[str, ...]] = ("model", "dim", "norm", "normalize")

    def validate(self, where: Callable[[str], str]) -> None:
        EmbeddingSettings.validate(self, where)
        if self.model in ("complex", "rotate") and self.dim % 2:
            raise ConfigError(
                f"{where('dim')}: expected an even number with model {self.model}, whose "
                f"numbers are complex; got {self.dim}"
            )

    @property
    def rate(self) -> float:
        """`lr`, or the model's choice: phases tolerate longer steps than products and distances."""
        return self.lr or (0.2 if self.model == "rotate" and self.method == "adagrad" else 0.1)

    @property
    def distance(self) -> bool:
        return self.model in ("transe", "rotate")

    @property
    def first_scale(self) -> float:
        """`scale`, or the model's choice of it."""
        if self.scale:
            return self.scale
        if self.normalize:  # rows are about unit vectors from the start, on the servers too
            return float((3 / self.dim) ** 0.5)
        if self.distance:  # as in RotatE's paper: distances begin below the margin
            components = self.dim // 2 if self.model == "rotate" else self.dim
            return (self.margin + 2) / components
        return 0.5 / float(self.dim**0.5)


@dataclass(frozen=True, slots=True)
class MfSettings(EmbeddingSettings):
    """Settings of matrix factorisation; the defaults suit some 1,000,000 lines."""

    loss: Literal["auto", "squared", "als", "softmax", "pairwise"] = setting(
        "auto",
        help="Loss of ratings or rankings. `squared` predicts the value of each line, with biases; "
        "the others rank items. `als` solves alternating least squares over all pairs; `softmax` "
        "(cross entropy) and `pairwise` (BPR) compare with drawn negatives. `auto`: `squared` if "
        "lines have values that differ, else `als`.",
        when="`als` if lines with values are clicks, plays or purchases.",
    )
    weights: Literal["one", "values"] = setting(
        "one",
        help="Weight of a line in `als`. `one`: 1 for each whose value is above 0, and others are "
        "left out. `values`: the size of its value; a value below 0 is a pair that is to be 0, "
        "and a line of value 0 is left out. `loss: auto` is then `als`.",
        when="`values` if they say how sure a choice is, about 1 on average, or where users have "
        "rejected items.",
        read_if=LEAST_SQUARES,
    )
    dim: int = setting(
        0,
        help="Length of a row. `auto`: 64; with `als` 128 for an input of up to 130,000 lines.",
        when="Fewer for smaller files and less time, more for better lists of a large set.",
        auto=True,
        **LENGTH,
    )
    a0: float = setting(
        0.0,
        help="Weight with which every pair of user and item is drawn to 0; a line draws its pair "
        "to 1 with weight 1. `auto`: 3 x lines / pairs, at most 1.",
        when="Search it together with `l2`, by factors of 3.",
        low=0.0,
        high=1e6,
        auto=True,
        read_if=LEAST_SQUARES,
    )
    negatives: int = setting(
        64,
        help="Negatives of a group of lines. Only rankings draw them.",
        **NEGATIVES,
        read_if=RANKINGS,
    )
    shared: int = setting(
        16,
        help="Lines of rankings that share negatives. 1: each line has its own.",
        **SHARED,
        read_if=RANKINGS,
    )
    lr: float = setting(
        0.0,
        help="Initial step size. It falls linearly to `lr` x `lr_end` over the job. 0: 0.3 for "
        "rankings with AdaGrad, 0.08 for ratings with plain steps, else 0.05.",
        when="Search it: 0.02 to 0.1 for ratings, 0.1 to 0.3 for rankings; less for more epochs.",
        **RATE,
        read_if=STEPWISE,
    )
    lr_end: float = setting(
        0.0,
        help="Part of `lr` that the step size has at the end. 1: it does not fall.",
        when="To compare with a program whose step size is constant.",
        low=0.0,
        high=1.0,
        read_if=STEPWISE,
    )
    l2: float = setting(
        L2_AUTO,
        help="L2 penalty. Factor of half the sum of squared weights of a line's rows, in the "
        "line's loss; with `als` of the sum of squares of each row, scaled by the root of its "
        "frequency. `auto`: 0.1; with `als` 0.03, with `softmax` and `pairwise` 0.06.",
        when="Larger for few or noisy ratings a name: 0.03 to 0.15; 0.02 to 0.06 for softmax; with "
        "als try half and twice the value of auto.",
        low=0.0,
        high=1e3,
        auto=True,
        automatic=L2_AUTO,
    )
    top: int = setting(
        10,
        help="Length of ranked lists. Recall, precision, MAP, NDCG and coverage by `test` are "
        "measured on them.",
        when="Your application shows lists of another length.",
        unit="items",
        low=1,
        high=10_000,
        read_if=LISTS,
    )
    held_out: float = setting(
        0.0,
        help="Lines held out of the training, and tested. Below 1: a share of the input. A whole "
        "number: lines of each user; 1 leaves one out. `held_out_by` says which. 0: none.",
        when="There is no file of test lines.",
        low=0.0,
        high=1e6,
        aliases=["validation_fraction", "test_size"],
    )
    stop_after: int = setting(0, **STOP_AFTER)
    stop_by: str = setting(
        "",
        help="Figure by which `stop_after` compares epochs: of ratings `rmse`, of rankings `ndcg` "
        "or `recall`. Empty: the first of these.",
        **STOP_BY,
    )
    held_out_by: Literal["line", "user", "user_time", "user_order", "time"] = setting(
        "line",
        help="Which lines are held out. `line`: drawn from all lines. `user`: drawn from each "
        "user's lines. `user_time`: each user's latest lines. `user_order`: each user's last lines "
        "in the input. `time`: the latest of all lines.",
        when="`user_time` with `held_out: 1` leaves the last one out; `time` is nearest to what a "
        "model in use meets.",
    )
    held_out_from: str = setting(
        "",
        help="Hold out lines from this time on, a number or a date such as 2024-05-31. Empty: "
        "`held_out` says how many.",
        when="To train on the past and test on what came after it.",
        unit="time",
    )
    time_column: int = setting(
        4,
        help="Column with the time of a line, counted from 1: a number, or a date in ISO 8601, in "
        "UTC if it names no zone. Only read to hold out by time. 3: lines have no value, whatever "
        "is held out.",
        when="Times are not in the column after the value.",
        unit="column number",
        low=3,
        high=1 << 16,
    )
    encoding: str = setting(
        "",
        help="Mean and deviation that ratings are scaled by. Empty: the input's own.",
        when="Never; it comes from the file that the training continues from.",
        hidden=True,
    )

    shape: ClassVar[tuple[str, ...]] = ("loss", "dim", "weights", "encoding")

    def validate(self, where: Callable[[str], str]) -> None:
        EmbeddingSettings.validate(self, where)
        refuse_stop_by(self, where)

    def decided(self, lines: int) -> MfSettings:
        """The settings with ``dim: auto`` decided for an input of so many lines."""
        if self.dim:
            return self
        return replace(self, dim=DIM_SMALL if self.solves and lines <= SMALL_LINES else DIM)

    @property
    def weighs(self) -> bool:
        """Whether values of lines are weights."""
        return self.weights == "values" and self.solves

    @property
    def solves(self) -> bool:
        """Whether rows are solved by least squares, instead of trained by steps."""
        return self.loss == "als"

    @property
    def _chosen(self) -> LossDefaults:
        return LOSSES[self.loss]

    @property
    def predicts(self) -> bool:
        """Whether values are predicted, else items ranked."""
        return self._chosen.predicts

    @property
    def method(self) -> str:
        """Access method of the rows."""
        if self.solves or self.optimizer == "auto":
            return self._chosen.method
        return self.optimizer

    @property
    def rate(self) -> float:
        """`lr`, or the choice for the loss."""
        return self.lr or (self._chosen.rate if self.method == self._chosen.method else OTHER_RATE)

    @property
    def decay(self) -> float:
        """`l2`, or the choice for the loss."""
        return self.l2 if self.l2 != L2_AUTO else self._chosen.l2

    @property
    def row_dim(self) -> int:
        return self.dim + self.predicts

    @property
    def first_scale(self) -> float:
        """`scale`, or the choice for the loss."""
        scale, divided = self._chosen.scale, self._chosen.divided
        return self.scale or (scale / float(self.dim**0.5) if divided else scale)
