"""Settings that all models of sparse examples have; each adds its own.

    JobSettings <- SparseSettings <- FmSettings; ClassesSettings <- LinearSettings, NetSettings

Declarations and the checks of values against each other; no files, no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from snailps.api.tables import DIM_MAX
from snailps.config import JobSettings, setting
from snailps.data.examples import HASH_BITS_MAX, reader_of
from snailps.errors import ConfigError

METHODS = {"sgd": 1, "adagrad": 2, "ftrl": 4}
"""Access methods whose differences of weights and state add up, with their numbers in kernels."""


@dataclass(frozen=True, slots=True)
class SparseSettings(JobSettings):
    """What every model of sparse examples has to know."""

    test: tuple[str, ...] = setting(
        (),
        help="Hold-out files, folders and globs, in the format of the input: the finished model "
        "is judged by them. Empty: it is not.",
        when="To know how good the model is on examples that it was not trained on.",
        unit="paths",
    )
    format: Literal["auto", "libsvm", "libffm", "csv", "tsv"] = setting(
        "auto",
        help="Format of the examples. `auto`: the first line shows it.",
        when="The first line does not show it.",
    )
    columns: tuple[str, ...] = setting(
        (),
        help="Columns of CSV and TSV as `name:kind`, in order; see sparse_data.md.",
        when="Always for CSV and TSV, never else.",
        unit="name:kind",
    )
    hash_bits: int = setting(
        0,
        help="Keys of features are folded to 2^hash_bits. 0: they stay as they are.",
        when="Memory has to be bounded, or a file of weights by index is wanted from CSV.",
        unit="bits",
        low=0,
        high=HASH_BITS_MAX,
    )
    on_bad_line: Literal["stop", "skip"] = setting(
        "stop",
        help="What a malformed line means: the end of the job, or left out and counted.",
        when="The input is known to have some.",
    )
    min_count: int = setting(
        1,
        help="Features that occur less often are left out. More than 1 costs a first pass over "
        "the input, and memory for a filter.",
        when="Most features are rare, and there are too many of them.",
        unit="occurrences",
        low=1,
        high=255,
    )
    expected_features: int = setting(
        1 << 24,
        help="How many different features the filter of `min_count` is made for. With more of "
        "them, some rare ones are let in.",
        when="There are many more, or the filter should be smaller.",
        unit="features",
        low=1,
        high=1 << 27,
    )
    expire_after: float = setting(
        0.0,
        help="Rows that no example has touched for so many million are deleted. 0: never.",
        when="Features come and go, in a stream of examples that does not end.",
        unit="million examples",
        low=0.0,
    )
    lr: float = setting(
        0.1,
        help="Step size; FTRL's alpha. With sgd it falls to 0 in a straight line over the job.",
        when="Larger for few examples, smaller for many that do not agree.",
        low=1e-6,
        high=100.0,
        aliases=["learning_rate"],
    )
    l1: float = setting(
        0.0,
        help="Weight of the sum of absolute weights, in all; only with ftrl. Weights become 0.",
        when="The model should be small: 1 to 10.",
        low=0.0,
        high=1e6,
    )
    l2: float = setting(
        0.0,
        help="Weight of the sum of squared weights. With ftrl in all; else per example, and only "
        "of the features that it has.",
        when="There are more features than examples.",
        low=0.0,
        high=1e6,
    )
    beta: float = setting(
        1.0,
        help="FTRL's beta: how many squared gradients it takes before steps get smaller.",
        when="Smaller steps from the beginning: larger.",
        low=1e-6,
        high=1e6,
    )
    class_weights: tuple[str, ...] = setting(
        (),
        help="What an example of each class counts, class 0 (no) first. Empty: 1.",
        when="The classes are of very different size, and errors cost differently.",
        unit="numbers",
    )

    def validate(self, where: Callable[[str], str]) -> None:
        """Refuse a format that lacks its columns, and class weights that are none."""
        JobSettings.validate(self, where)
        try:
            reader_of(
                self.format,
                columns=self.columns,
                hash_bits=self.hash_bits,
                on_bad_line=self.on_bad_line,
            )
        except ConfigError as error:
            raise ConfigError(
                f"{where('columns' if self.columns else 'format')}: {error}"
            ) from None
        try:
            wrong = [number for number in map(float, self.class_weights) if not 0 <= number < 1e6]
        except ValueError:
            wrong = [0.0]
        if wrong:
            raise ConfigError(
                f"{where('class_weights')}: class_weights: expected numbers of at least 0, a "
                f"class each, got {', '.join(self.class_weights)}"
            )
        self._check_class_num(where)

    def _check_class_num(self, where: Callable[[str], str]) -> None:
        """Refuse class weights that are more or fewer than the loss has classes."""
        loss = getattr(self, "loss", "logistic")  # each model has its own choice of losses
        class_num = {"logistic": 2, "squared": 0}.get(loss, getattr(self, "classes", 0))
        if self.class_weights and len(self.class_weights) != class_num:
            raise ConfigError(
                f"{where('class_weights')}: class_weights: expected {class_num} numbers with loss "
                f"{loss}, got {len(self.class_weights)}"
            )

    @property
    def method(self) -> str:
        """Access method of the rows: one of `METHODS`."""
        return "ftrl" if self.optimizer == "auto" else self.optimizer


@dataclass(frozen=True, slots=True)
class ClassesSettings(SparseSettings):
    """Of models whose labels may be classes, with a weight of each feature for each class."""

    loss: Literal["logistic", "squared", "multinomial"] = setting(
        "logistic",
        help="`logistic`: labels are yes (above 0) or no. `squared`: real numbers. `multinomial`: "
        "class numbers from 0.",
        when="Labels are numbers, or more than two classes.",
    )
    classes: int = setting(
        0,
        help="How many classes there are; only for `loss: multinomial`.",
        when="Always with it.",
        unit="classes",
        low=0,
        high=DIM_MAX,
    )

    def validate(self, where: Callable[[str], str]) -> None:
        """Refuse classes without the loss that has them, and the reverse."""
        SparseSettings.validate(self, where)
        if (self.loss == "multinomial") != (self.classes > 1):
            expected = (
                "at least 2" if self.loss == "multinomial" else "0: only multinomial has them"
            )
            raise ConfigError(
                f"{where('classes')}: classes: expected {expected} with loss {self.loss} (from "
                f"{where('loss')}), got {self.classes}"
            )

    @property
    def outputs(self) -> int:
        """Scores of an example."""
        return max(1, self.classes)


def check_method(
    settings: SparseSettings, methods: Collection[str], why: str, penalties: Sequence[str] = ("l1",)
) -> None:
    """Refuses an optimiser that does not fit a model.

    Parameters
    ----------
    settings : SparseSettings
    methods : collection of str
        Those that fit.
    why : str
        The model, and what it does that others do not fit.
    penalties : sequence of str
        Settings that only ftrl has.

    Raises
    ------
    ConfigError
    """
    if settings.method not in methods:
        raise ConfigError(
            f"optimizer: {settings.optimizer} does not fit {why}: expected auto or one of "
            + ", ".join(methods)
        )
    for name in penalties:
        if getattr(settings, name) and settings.method != "ftrl":
            raise ConfigError(
                f"{name}: {getattr(settings, name):g} needs optimizer ftrl, got {settings.method}: "
                f"set {name}: 0, or use ftrl"
            )
