"""Settings of the classifier: lengths, loss, rate, features; invalid ones are refused.

    .conf files, command line -> config -> ClassifierSettings -> the classifier, docs/settings.md

No tables, blocks or rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from snailps.api.passes import EPOCHS_AUTO
from snailps.config import JobSettings, setting
from snailps.data._labelled import GRAM_MAX
from snailps.data.vocabulary import LABEL_PREFIX
from snailps.dataclass import dataclass, replace
from snailps.errors import ConfigError, DataError
from snailps.models.class_weights import BALANCED, class_weights_in
from snailps.models.ngram_rows import AUTO
from snailps.models.shared_settings import (
    BUCKET,
    COLUMN,
    HELD_OUT,
    MIN_COUNT,
    NORMAL_PARTS,
    NORMALIZE,
    PRETRAINED,
    SHUFFLE,
    STOP_AFTER,
    STOP_BY,
    SUBWORD,
    TESTED_ON,
    VALIDATION,
    refuse_both,
    refuse_untested,
    tested_on,
)
from snailps.vectors.label_metrics import Metric

AUTO_MAXN = -1
"""Value of `maxn: auto`, which depends on the text."""
LR, LR_GRAMS, GRAMS = 0.1, 0.5, 4
"""Rates without and with character n-grams, and the n-grams' length; see `passes`."""


@dataclass(frozen=True, slots=True)
class ClassifierSettings(JobSettings):
    """Settings of the classifier; defaults are those of fastText's supervised mode, but epochs."""

    epochs: int = setting(0, **EPOCHS_AUTO)
    dim: int = setting(
        100,
        help="Length of a feature's vector.",
        when="10 to 50 is often as good, and faster.",
        low=1,
        high=4096,
    )
    loss: Literal["softmax", "ova", "ns", "hs"] = setting(
        "softmax",
        help=(
            "`softmax`: one label a line. `ova` (one-versus-rest): any number of labels a line. "
            "`ns` (negative sampling): very many labels. `hs` (hierarchical softmax, a tree of "
            "labels): very many labels, of which each line has one."
        ),
        when="Lines have several labels, or there are thousands of labels.",
    )
    lr: float = setting(
        0.0,
        help="Initial learning rate. It falls linearly to 0 over the job. `auto`: 0.1, or 0.5 for "
        "a small text for which `maxn: auto` chooses character n-grams.",
        when="0.5 to 1 for few or short lines.",
        low=1e-6,
        high=10.0,
        auto=True,
    )
    word_ngrams: int = setting(
        1,
        help="Longest n-gram of words that is a feature.",
        when="2 or 3 if the order of words matters.",
        unit="words",
        low=1,
        high=GRAM_MAX,
    )
    minn: int = setting(
        0,
        help="Shortest character n-gram. `auto`: `maxn`, at most 4.",
        when="With `maxn`.",
        auto=True,
        **SUBWORD,
    )
    maxn: int = setting(
        AUTO_MAXN,
        help="Longest character n-gram. 0: none. `auto`: 4 for texts of up to 80,000 lines, else "
        "none.",
        when="0 as in fastText; 3 to 6 if words have many forms or spellings.",
        auto=True,
        automatic=AUTO_MAXN,
        **SUBWORD,
    )
    bucket: int = setting(
        AUTO,
        help="Hash rows for n-grams. N-grams of words and of characters share them. `auto`: "
        "depends on the length of the text and the vocabulary, at most 2000000.",
        **BUCKET,
    )
    negatives: int = setting(
        5,
        help="Negative samples for each label.",
        when="More for thousands of labels.",
        unit="labels",
        low=1,
        high=1000,
        read_if={"loss": ("ns",)},
    )
    min_count: int = setting(
        1, **MIN_COUNT, when="5 for large texts, for a smaller file and less time."
    )
    min_count_label: int = setting(
        0,
        help="Labels that occur less often are left out, and so are lines without other labels.",
        when="Rare labels are noise.",
        unit="occurrences",
        low=0,
        high=1 << 40,
    )
    continue_from: str = setting(
        "",
        help=(
            "Model file to continue from. A classifier's `.bin`, of snailps or "
            "fastText. Its words and labels keep their rows, and new ones are added; dim, loss and "
            "n-grams come from the file, and so do negatives and min_count unless you set them."
        ),
        when="There are new lines or new labels, or more time for the same lines.",
        unit="path",
    )
    pretrained: str = setting(
        "",
        help="File of word vectors (`.vec`, `.bin`, ...). Its words join the vocabulary and start "
        "with their vectors; all others start at random.",
        **PRETRAINED,
    )
    shuffle: bool = setting(True, **SHUFFLE)
    validation: tuple[str, ...] = setting(
        (), **VALIDATION, when="To see how well other lines are labelled, or for `stop_after`."
    )
    held_out: float = setting(0.0, **HELD_OUT, when="There is no file of validation lines: 0.1.")
    stop_after: int = setting(0, **STOP_AFTER)
    stop_by: str = setting(
        "",
        help="Figure by which `stop_after` compares epochs: `f1` of all labels together, "
        "`macro-f1` (the mean over labels), `accuracy`, `loss`, `precision-at-recall:R`, "
        "`recall-at-precision:P`; `f1:LABEL` and the last two with `:LABEL` are of one label. "
        "Empty: `f1`.",
        **STOP_BY,
    )
    calibrate: bool = setting(
        False,
        help="Whether to calibrate the finished model on the held-out lines, like `snailps "
        "calibrate`. Writes temperature and shift to `OUTPUT.bin.json`. With `validation` or "
        "`held_out`.",
        when="Its probabilities are compared with a threshold, or shown.",
    )
    label: str = setting(
        "__label__",
        help="Prefix of labels.",
        when="Your labels have another prefix; no word may begin with it.",
    )
    normalize: str = setting(
        "",
        help="Normal form of texts. It is kept in the model and applied to every text. "
        f"{NORMAL_PARTS} Labels stay as they are. Empty: texts are read as they are.",
        when="Spelling varies more than meaning: questions in another case, few training lines.",
        **NORMALIZE,
    )
    column: str = setting("", **COLUMN)
    label_column: str = setting(
        "",
        help="Column with the label of each text; only with `column`. Blanks in a label become "
        "`%20%`. Empty: labels are in the texts.",
        when="The input consists of tables with labels in a column.",
        unit="column",
    )
    weight_column: str = setting(
        "",
        help="Column with the weight of each text, a number from 0 to 1000000; only with "
        "`label_column`. It multiplies the loss and the step of the text.",
        when="Some texts count more than others.",
        unit="column",
    )
    soft_labels: bool = setting(
        False,
        help="Whether labels may have weights: `__label__a:0.75 __label__b:0.25`. A line may have "
        "one, too: `__label__:2`. A label that ends with `:` and a number needs one more `:` at "
        "its end.",
        when="Labels are probabilities, as of several annotators or another model.",
    )
    class_weights: tuple[str, ...] = setting(
        (),
        help="Weights by label: `balanced`, or `LABEL=NUMBER` for some labels; all others have 1. "
        "`balanced` gives all labels the same sum of weights in the text.",
        when="Rare labels matter as much as frequent ones, or the costs of errors differ.",
        unit="weights",
    )

    def validate(self, where: Callable[[str], str]) -> None:
        JobSettings.validate(self, where)
        refuse_both(self, where)
        refuse_untested(self, where, TESTED_ON)
        if self.stop_by:
            try:
                Metric.of(self.stop_by)
            except DataError as error:
                expected = str(error).removeprefix("metric: ")
                raise ConfigError(f"{where('stop_by')}: {expected}") from None
        if self.calibrate and not (self.validation or self.held_out):
            raise ConfigError(
                f"{where('calibrate')}: expected {tested_on(TESTED_ON)} as well: a temperature is "
                "fitted to lines that are not trained"
            )
        if self.calibrate and self.loss == "hs":
            raise ConfigError(
                f"{where('calibrate')}: expected false with loss hs (from {where('loss')}): its "
                "probabilities are products along a tree, which a temperature does not calibrate. "
                "Leave one of them out"
            )
        if self.label_column and not self.column:
            raise ConfigError(
                f"{where('label_column')}: expected `column` as well, the column with the texts"
            )
        if self.weight_column and not self.label_column:
            raise ConfigError(
                f"{where('weight_column')}: expected `label_column` as well, the "
                "column with the labels"
            )
        if self.weight_column and self.weight_column in (self.label_column, self.column):
            raise ConfigError(
                f"{where('weight_column')}: expected another column than column and label_column, "
                f"got {self.weight_column}"
            )
        try:
            class_weights_in(self.class_weights)
        except ConfigError as error:
            raise ConfigError(f"{where('class_weights')}: {error}") from None
        if self.minn > self.maxn > 0:
            raise ConfigError(
                f"{where('minn')}: expected 1 to maxn ({self.maxn}, from {where('maxn')}), "
                f"got {self.minn}; for no character n-grams at all set maxn: 0"
            )
        if not self.label or self.label.split() != [self.label] or "\0" in self.label:
            raise ConfigError(
                f"{where('label')}: expected a prefix of labels, such as __label__, "
                f"without blanks; got {self.label!r}"
            )

    def decided(self, *, small: bool) -> ClassifierSettings:
        """The settings with ``auto`` values decided for a text that is `small` or not."""
        maxn, lr = self.maxn, self.lr or LR
        if maxn == AUTO_MAXN:
            maxn = GRAMS if small and not self.minn else 0
            lr = self.lr or (LR_GRAMS if maxn else LR)
        return replace(self, maxn=maxn, minn=self.minn or min(GRAMS, maxn), lr=lr)

    @property
    def has_weights(self) -> bool:
        """Whether lines and labels of the text may have weights."""
        return self.soft_labels or bool(self.weight_column)

    @property
    def prefix_bytes(self) -> int:
        """Length of the prefix of labels, as a model's file has it; 0: the usual one."""
        return 0 if self.label == LABEL_PREFIX.decode() else len(self.label.encode())

    @property
    def sums_labels(self) -> bool:
        """Whether the survey sums the weights of labels."""
        return self.has_weights or self.class_weights == (BALANCED,)

    @property
    def buckets(self) -> int:
        """Hash rows in use; none without n-grams, as in fastText.  Known once `surveyed`."""
        return self.bucket if self.has_ngrams else 0

    @property
    def has_ngrams(self) -> bool:
        return self.maxn > 0 or self.word_ngrams > 1
