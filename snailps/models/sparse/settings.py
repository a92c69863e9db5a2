"""Settings common to all models of sparse examples; each model adds its own.

    JobSettings <- SparseSettings <- FmSettings; ClassesSettings <- LinearSettings, NetSettings

Declarations, and checks of values against each other; no files, no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, Literal

from snailps.api.passes import EPOCHS_AUTO
from snailps.api.tables import DIM_MAX
from snailps.config import JobSettings, setting
from snailps.data.columns import columns_by_name
from snailps.data.encoding import Encoding
from snailps.data.examples import HASH_BITS_MAX, ExampleReader
from snailps.data.held_out import HeldOut, Side
from snailps.dataclass import dataclass
from snailps.errors import ConfigError
from snailps.files.formats import ENDINGS
from snailps.files.reading import Reading
from snailps.models.class_weights import BALANCED, LIMIT
from snailps.models.losses import LOSSES
from snailps.models.shared_settings import (
    HELD_OUT,
    KEEP_STATE,
    SHUFFLE,
    STOP_AFTER,
    STOP_BY,
    TEST,
    TESTED_ON,
    VALIDATION,
    check_optimizer,
    refuse_untested,
)

METHODS = {"sgd": 1, "adagrad": 2, "ftrl": 4}
"""Access methods whose deltas of weights and state add up, with their numbers in kernels."""

TESTED_LEAST = 1000
"""Least examples of which some are held out unasked: a tenth of fewer decides nothing."""


@dataclass(frozen=True, slots=True)
class SparseSettings(JobSettings):
    """Settings common to all models of sparse examples."""

    usual_method: ClassVar[str] = "ftrl"
    """`method` if `optimizer` is auto."""
    epochs: int = setting(0, **EPOCHS_AUTO)
    test: tuple[str, ...] = setting(
        (), **TEST, when="To measure the model on examples that it was not trained on."
    )
    validation: tuple[str, ...] = setting(
        (), **VALIDATION, when="To see whether more epochs help, or for `stop_after`."
    )
    held_out: float = setting(0.0, **HELD_OUT, when="There is no file of validation examples: 0.1.")
    stop_after: int = setting(0, **STOP_AFTER)
    stop_by: str = setting(
        "",
        help="Figure by which `stop_after` compares epochs: `loss` (log loss, RMSE or deviance), "
        "of classes also `accuracy`, of two classes `auc`, of numbers `mae`. Empty: `loss`.",
        **STOP_BY,
    )
    format: Literal["auto", "libsvm", "libffm", "csv", "tsv"] = setting(
        "auto",
        help="Format of the examples. `auto`: detected from the first line, and matrix files of "
        "`snailps.write_matrix` from their first bytes.",
        when="Detection fails.",
    )
    columns: tuple[str, ...] = setting(
        (),
        help="Columns of CSV and TSV as `name:kind`, in order. With `label_column`: any of the "
        "columns, in any order. See sparse_data.md.",
        when="Always for CSV and TSV without `label_column`; with it, to override inferred kinds.",
        unit="name:kind",
    )
    label_column: str = setting(
        "",
        help="Label column of tables. Tables are Parquet, Arrow, ORC, JSON lines, and CSV or TSV "
        "whose first line names the columns. The kinds of the other columns are inferred from the "
        "first file, unless `columns` gives them; see sparse_data.md. Empty: the input has no "
        "tables.",
        when="The input consists of tables that name their columns.",
        unit="column",
    )
    weight_column: str = setting(
        "",
        help="Column of tables with the weight of each example, a number of at least 0; only with "
        "`label_column`. In `test` and `validation` tables, too. Empty: all 1.",
        when="Some examples count more than others.",
        unit="column",
    )
    hash_bits: int = setting(
        0,
        help="Bits that feature keys are hashed to. Hashed keys are 0 to 2^hash_bits - 1. 0: no "
        "hashing.",
        when="Memory must be bounded, or a model of CSV must be exported as weights by index.",
        unit="bits",
        low=0,
        high=HASH_BITS_MAX,
    )
    on_bad_line: Literal["stop", "skip"] = setting(
        "stop",
        help="On a malformed line: `stop` ends the job, `skip` leaves the line out and counts it.",
        when="The input is known to have malformed lines.",
    )
    min_count: int = setting(
        1,
        help="Features that occur less often are left out. Above 1 this costs an additional pass "
        "over the input, and memory for a filter.",
        when="There are too many features, most of them rare.",
        unit="occurrences",
        low=1,
        high=255,
    )
    expected_features: int = setting(
        1 << 24,
        help="Number of distinct features that the filter of `min_count` is sized for. With more, "
        "some rare features pass.",
        when="There are many more features, or the filter should be smaller.",
        unit="features",
        low=1,
        high=1 << 27,
        read_if={"min_count": range(2, 256)},
    )
    expire_after: float = setting(
        0.0,
        help="Rows unused for this many million examples are deleted. 0: never.",
        when="Features of an endless stream of examples change over time.",
        unit="million examples",
        low=0.0,
    )
    lr: float = setting(
        0.1,
        help="Step size; FTRL's alpha. With sgd it falls linearly to 0 over the job.",
        when="Larger for few examples, smaller for many noisy ones.",
        low=1e-6,
        high=100.0,
        aliases=["learning_rate"],
    )
    l1: float = setting(
        0.0,
        help="L1 penalty; only with ftrl. A weight stays 0 while the sum "
        "of its gradients over all examples and epochs is at most this; other weights hardly "
        "change.",
        when="The model should be small: 1 to 10.",
        low=0.0,
        high=1e6,
    )
    l2: float = setting(
        0.0,
        help="L2 penalty. Factor of half the sum of squared weights of an example's features, in "
        "its loss. With n examples, 1 / (n C) corresponds to scikit-learn's C.",
        when="There are more features than examples: 0.0001 to 0.1.",
        low=0.0,
        high=1e6,
    )
    beta: float = setting(
        1.0,
        help="FTRL's beta: steps shrink once the root of summed squared gradients reaches it.",
        when="Larger for smaller first steps.",
        low=1e-6,
        high=1e6,
        read_if={"method": ("ftrl",)},
    )
    shuffle: bool = setting(True, **SHUFFLE)
    class_weights: tuple[str, ...] = setting(
        (),
        help="Weights of examples by class, class 0 (no) first. `balanced` gives all classes the "
        "same sum of weights, by the labels of the input, or of a sample if it is large. Empty: "
        "all 1.",
        when="Class sizes, or the costs of errors, differ much.",
        unit="numbers",
    )

    loss: Literal["logistic", "squared", "multinomial", "poisson"] = setting(
        "logistic",
        help="Loss, which fits the labels. `logistic`: two labels, the larger one is yes. "
        "`squared`: real numbers. `multinomial`: one number per class. `poisson`: counts or other "
        "numbers of at least 0, predicted as exp(score).",
        when="Labels are real numbers or counts, or there are more than two classes.",
    )

    encoding: str = setting(
        "",
        help="Encoding of labels and values: class labels, mean and deviation of targets, factors "
        "of columns whose values are far from 1.",
        when="Never; the master measures it on a sample of the input.",
        hidden=True,
    )

    continue_from: str = setting(
        "",
        help="Model file to continue from. A `.npz` of the same model with optimizer "
        "state, written with `keep_state` or by `save` of an estimator. New features are added, "
        "and new classes (except to fm). Optimizer, columns, scales and shape come from the file, "
        "and so does every model setting that you do not set, except `epochs`.",
        when="There are new examples.",
        unit="path",
    )
    keep_state: Literal["auto", "always", "never"] = setting("auto", **KEEP_STATE)

    def validate(self, where: Callable[[str], str]) -> None:
        JobSettings.validate(self, where)
        refuse_untested(self, where, TESTED_ON, adopts=bool(self.continue_from))
        try:
            if self.label_column:
                self._check_tables()
            ExampleReader(
                self.format,
                columns=self.text_columns,
                hash_bits=self.hash_bits,
                on_bad_line=self.on_bad_line,
            )
        except ConfigError as error:
            raise ConfigError(
                f"{where('columns' if self.columns else 'format')}: {error}"
            ) from None
        self._check_weights(where)
        try:
            Encoding.of_text(self.encoding)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where('encoding')}: {error}") from None

    def _check_weights(self, where: Callable[[str], str]) -> None:
        """Refuse weights of classes that are none, and of examples outside of tables."""
        if self.weight_column and not self.label_column:
            raise ConfigError(
                f"{where('weight_column')}: expected label_column as well, the column of labels"
            )
        if self.weight_column and self.weight_column == self.label_column:
            raise ConfigError(
                f"{where('weight_column')}: expected another column than label_column, got "
                f"{self.weight_column}"
            )
        shown = ", ".join(self.class_weights)
        if self.is_balanced and not self.class_num:
            raise ConfigError(
                f"{where('class_weights')}: expected nothing with loss {self.loss}, whose labels "
                f"are no classes, got {shown}"
            )
        try:
            wrong = not all(0 <= number <= LIMIT for number in self.weights_of_classes)
        except ValueError:
            wrong = True
        if wrong:
            raise ConfigError(
                f"{where('class_weights')}: expected balanced, or numbers from 0 to "
                f"{LIMIT:,.0f}, one a class, got {shown}"
            )
        if self.weights_of_classes and len(self.class_weights) != self.class_num:
            raise ConfigError(
                f"{where('class_weights')}: expected {self.class_num} numbers with "
                f"loss {self.loss}, got {len(self.class_weights)}"
            )
        if self.weights_of_classes and not any(self.weights_of_classes):
            raise ConfigError(
                f"{where('class_weights')}: expected a number above 0, got {shown}: nothing would "
                "be learnt"
            )

    def _check_tables(self) -> None:
        """Refuse columns that do not fit tables, and a `format`, which file names imply."""
        columns_by_name(self.columns, self.label_column)
        if self.format != "auto":
            raise ConfigError(
                f"format: expected auto with label_column, as names of tables end in {ENDINGS}; "
                f"got {self.format}"
            )

    @property
    def draws_order(self) -> bool:
        """Whether examples are shuffled; rows that expire by age need the order of the input."""
        return self.shuffle and not self.expire_after

    def side(self, *, is_held: bool) -> Side | None:
        """The lines of the input that are trained, or those that are held out; None: no matter."""
        split = HeldOut.of(self.held_out, self.seed)
        return None if split is None else Side(split, is_held)

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns of text, in its order; empty for tables, which are matrix files."""
        return () if self.label_column else self.columns

    def reading(self, *, needs_labels: bool = True) -> Reading:
        """How the input is read, as a `Reading`."""
        if not self.label_column:
            return Reading("examples")
        return Reading(
            "examples",
            label_column=self.label_column,
            weight_column=self.weight_column if needs_labels else "",
            columns=self.columns,
            on_bad_line=self.on_bad_line,
            needs_labels=needs_labels,
            label_names=Encoding.of_text(self.encoding).names,
        )

    @property
    def class_num(self) -> int:
        """Number of classes of the labels; 0 if labels are numbers."""
        classes = LOSSES[self.loss].classes
        return getattr(self, "classes", 0) if classes is None else classes

    @property
    def is_balanced(self) -> bool:
        """Whether the input decides the weights of classes: numbers, once it is measured."""
        return list(self.class_weights) == [BALANCED]

    @property
    def weights_of_classes(self) -> tuple[float, ...]:
        """Weights by class; empty: all 1, or not measured yet."""
        return () if self.is_balanced else tuple(map(float, self.class_weights))

    @property
    def method(self) -> str:
        """The access method of the rows: `optimizer`, with auto resolved."""
        return self.usual_method if self.optimizer == "auto" else self.optimizer


@dataclass(frozen=True, slots=True)
class ClassesSettings(SparseSettings):
    """Settings of models whose labels may be classes."""

    classes: int = setting(
        0,
        help="Number of classes; only with `loss: multinomial`.",
        when="Always with that loss.",
        unit="classes",
        low=0,
        high=DIM_MAX,
    )

    def validate(self, where: Callable[[str], str]) -> None:
        SparseSettings.validate(self, where)
        needs_classes = LOSSES[self.loss].classes is None
        if needs_classes != (self.classes > 1):
            loss = f"loss {self.loss} (from {where('loss')})"
            if needs_classes:
                raise ConfigError(
                    f"{loss} needs the number of classes, got {self.classes} "
                    f"({where('classes')}): set classes to the number of different labels in the "
                    "input, for example --classes 3"
                )
            raise ConfigError(
                f"{where('classes')}: expected 0 with {loss}, as only multinomial has "
                f"them, got {self.classes}. Set loss: multinomial, or leave classes out"
            )

    @property
    def outputs(self) -> int:
        return max(1, self.classes)


def check_method(
    settings: SparseSettings, methods: Collection[str], why: str, penalties: Sequence[str] = ("l1",)
) -> None:
    """Refuse an optimizer not in `methods`, for the reason `why`, and `penalties` without ftrl."""
    check_optimizer(settings, methods, why)
    for name in penalties:
        if getattr(settings, name) and settings.method != "ftrl":
            raise ConfigError(
                f"{name}: {getattr(settings, name):g} needs optimizer ftrl, got {settings.method}: "
                f"set {name}: 0, or use ftrl"
            )
