"""Settings that several models declare: the shared texts and limits, as values.

    shuffle: bool = setting(True, **SHUFFLE)
    min_count: int = setting(1, **MIN_COUNT, when="5 for large texts.")

A model adds its default, and overrides entries that differ.  These are values, not mixins, because
a class with slots cannot inherit fields from two bases.  `EPOCHS_AUTO` is in `api/passes.py`,
because users' models may declare it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from snailps.config import JobSettings
from snailps.data.normal_forms import normal_parts
from snailps.errors import ConfigError


def _normal_parts(text: str, where: str) -> str:
    try:
        return normal_parts(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}; got {text!r:.80}") from None


COLUMN: Mapping[str, Any] = {
    "help": "Column of tables to read as text. Tables are Parquet, Arrow, ORC, JSON lines, and CSV "
    "or TSV whose first line names the columns. Empty: the input is text.",
    "when": "The input consists of tables.",
    "unit": "column",
}
"""`column` of models of text."""
PRETRAINED: Mapping[str, Any] = {
    "when": "The text is too small to learn good vectors from.",
    "unit": "path",
}
"""`pretrained` of models of text (`pretrained.py`)."""
CONTINUE_FROM: Mapping[str, Any] = {
    "help": "A file of weights with optimizer state, from which training continues; an estimator's "
    "`partial_fit` writes it. New features are added; shapes, classes and optimizer come from the "
    "file.",
    "when": "Never; estimators fill it in.",
    "unit": "path",
    "hidden": True,
}
"""`continue_from` of models that only estimators continue (`packed_tables.py`)."""
SHUFFLE: Mapping[str, Any] = {
    "help": "Whether to shuffle examples: each epoch draws an order from `seed`, and a block has "
    "examples from all files of the input. `false`, or with `expire_after`: examples are trained "
    "in the order of the input.",
    "when": "`false` if the order carries information, or if the examples are shuffled already, do "
    "not fit in memory and lie on a disk that seeks slowly.",
}
"""`shuffle` of models that do not depend on the order of the examples."""
KEEP_STATE: Mapping[str, Any] = {
    "help": "Whether the model's file includes the optimizer's state, which `continue_from` and "
    "`partial_fit` need. It makes the file two or three times as large. `auto`: only if the file "
    "is at most 2 MB.",
    "when": "`always` to continue with a larger model; `never` for the smallest file.",
}
"""`keep_state` of models whose file may have it."""
TEST: Mapping[str, Any] = {
    "help": "Hold-out files for evaluation. Paths, folders and globs in the format of the input, "
    "on which the finished model is evaluated. Empty: no evaluation.",
    "unit": "paths",
}
"""`test` of models that read lines."""
VALIDATION: Mapping[str, Any] = {
    "help": "Validation files. Paths, folders and globs in the format of the input, on which the "
    "model is tested after each epoch. Empty: no validation.",
    "unit": "paths",
}
"""`validation` of models that read lines."""
HELD_OUT: Mapping[str, Any] = {
    "help": "Share of the lines of the input that is held out of the training, and tested after "
    "each epoch, like `validation`. Which lines depends on their bytes and on `seed`. 0: none.",
    "low": 0.0,
    "high": 0.9,
    "aliases": ["validation_fraction"],
}
"""`held_out` of models that hold lines out by a hash."""
STOP_AFTER: Mapping[str, Any] = {
    "help": "End the training after this many epochs in a row without a better figure on the "
    "validation lines, and save the rows of the best epoch. 0: train all epochs, and save the last "
    "rows.",
    "when": "2 or 3 with `validation` or `held_out`, where more epochs may do harm.",
    "unit": "epochs",
    "low": 0,
    "high": 1_000_000,
    "aliases": ["n_iter_no_change", "patience"],
}
"""`stop_after` of models that are tested after each epoch."""
STOP_BY: Mapping[str, Any] = {
    "when": "The usual figure hides what matters: accuracy, where one class is rare.",
    "unit": "figure",
}
"""`stop_by` of these models (`stopping.py`); a model says which figures it has."""
TESTED_ON = ("validation", "held_out")
"""Settings that say what a model with both is tested on after each epoch."""
LEARNT_BATCH: Mapping[str, Any] = {
    "help": "Mean of examples in the steps that the model has learnt with. 0: not known.",
    "when": "Never; it comes from the file that the training continues from.",
    "unit": "examples",
    "low": 0,
    "hidden": True,
}
"""`learnt_batch` of networks, whose steps follow mean gradients of batches."""
ACTIVATION: Mapping[str, Any] = {
    "help": "Activation of the hidden layers.",
    "when": "If the other one gives better results on your data.",
}
"""`activation` of networks."""
MIN_COUNT: Mapping[str, Any] = {
    "help": "Words that occur less often are left out.",
    "unit": "occurrences",
    "low": 1,
    "high": 1 << 40,
}
"""`min_count` of models of text."""
NORMALIZE: Mapping[str, Any] = {
    "unit": "parts",
    "check": _normal_parts,
}
"""`normalize` of models of text."""
NORMAL_PARTS = (
    "Parts, separated by commas: `nfc` or `nfkc` (Unicode's forms), `lower` or `casefold` (also ß "
    "to ss), `digits` (each becomes 0), `urls` (web and mail addresses become `<url>` and "
    "`<email>`)."
)
"""The values of `normalize`, for its help."""
SUBWORD: Mapping[str, Any] = {"unit": "characters", "low": 0, "high": 32}
"""`minn` and `maxn` of models of text."""
BUCKET: Mapping[str, Any] = {
    "when": "Fewer for smaller files; 2000000 as in fastText.",
    "unit": "rows",
    "low": 1,
    "high": 1 << 30,
    "auto": True,
}
"""`bucket` of models of text."""


def check_optimizer(settings: JobSettings, methods: Collection[str], why: str) -> None:
    """Refuse an `optimizer` that is not in `methods`, for the reason `why`."""
    if settings.optimizer not in ("auto", *methods):
        raise ConfigError(
            f"optimizer: {settings.optimizer} does not fit {why}: expected "
            + ", ".join(("one of auto" if methods else "auto", *methods))
        )


def refuse_both(settings: Any, where: Callable[[str], str]) -> None:
    """Refuse to start both from a model and from vectors."""
    if settings.continue_from and settings.pretrained:
        raise ConfigError(
            f"{where('pretrained')}: expected nothing with continue_from (from "
            f"{where('continue_from')}), got {settings.pretrained}: set one of them"
        )


def refuse_stop_by(settings: Any, where: Callable[[str], str]) -> None:
    """Refuse `stop_by` without `stop_after`."""
    if settings.stop_by and not settings.stop_after:
        raise ConfigError(
            f"{where('stop_by')}: expected stop_after as well, the epochs without a better "
            f"{settings.stop_by} after which the training ends"
        )


def refuse_untested(
    settings: Any, where: Callable[[str], str], names: Collection[str], *, adopts: bool = False
) -> None:
    """Refuse `stop_by` without `stop_after`, and that without what the model is tested on: none of
    the settings `names`.

    Of `validation` and `held_out` refuse both.  `adopts`: a file that is not read yet may have the
    settings.
    """
    if "held_out" in names and "validation" in names and settings.validation and settings.held_out:
        raise ConfigError(
            f"{where('held_out')}: expected 0 with validation (from {where('validation')}), got "
            f"{settings.held_out:g}: leave one of them out"
        )
    if not adopts:
        refuse_stop_by(settings, where)
    if settings.stop_after and not adopts and not any(getattr(settings, name) for name in names):
        raise ConfigError(
            f"{where('stop_after')}: expected {tested_on(names)} as well: without lines to test on "
            "no epoch can be better than another"
        )


def tested_on(names: Collection[str]) -> str:
    """Name the settings by which a model is tested, for users of commands and of estimators, whose
    data is no parameter."""
    (files,) = [name for name in names if name != "held_out"]
    if "held_out" not in names:
        return f"files of {files}"
    return f"held_out, such as 0.1, or, of a command, files of {files}"
