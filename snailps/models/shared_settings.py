"""Settings that several models declare: their common text and limits, as values.

    shuffle: bool = setting(True, **SHUFFLE)
    min_count: int = setting(1, **MIN_COUNT, when="5 for large texts.")

A model adds its default, and replaces what is different.  They are values, not mixins: a class with
slots cannot have two bases that have fields.  `EPOCHS_AUTO` is in `api/passes.py`, because users'
models may have it, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from snailps.config import JobSettings
from snailps.errors import ConfigError

COLUMN: Mapping[str, Any] = {
    "help": "The column to read, as text, of an input of tables: Parquet, Arrow, ORC, JSON lines, "
    "CSV or TSV whose first line names the columns. Empty: the input is text.",
    "when": "The input is tables.",
    "unit": "column",
}
"""`column` of models of text."""
CONTINUE_FROM: Mapping[str, Any] = {
    "help": "A file of weights with the state of their optimizer, from which training continues, "
    "as `partial_fit` of an estimator writes it. Features that it lacks are added; shapes, classes "
    "and optimizer are those of the file.",
    "when": "Never; estimators fill it in.",
    "unit": "path",
    "hidden": True,
}
"""`continue_from` of models that estimators alone continue (`packed_tables.py`)."""
SHUFFLE: Mapping[str, Any] = {
    "help": "Whether to train examples in an order drawn from `seed`, another in each epoch; a "
    "block then has examples from all over the input's files. `false`, or with `expire_after`: in "
    "the order of the input.",
    "when": "`false` if the order means something, or if the examples are shuffled already and do "
    "not fit in memory, on a disk that seeks slowly.",
}
"""`shuffle` of models that do not depend on the order of the examples."""
KEEP_STATE: Mapping[str, Any] = {
    "help": "Whether the model's file includes the state of the optimizer, from which "
    "`continue_from` and `partial_fit` go on: the file is two or three times as large. `auto`: if "
    "it is at most 2 MB.",
    "when": "`always` to continue with a larger model; `never` for the smallest file.",
}
"""`keep_state` of models whose file may have it."""
TEST: Mapping[str, Any] = {
    "help": "Hold-out files, folders and globs, in the format of the input, on which the finished "
    "model is evaluated. Empty: no evaluation.",
    "unit": "paths",
}
"""`test` of models that read lines."""
ACTIVATION: Mapping[str, Any] = {
    "help": "Activation of the hidden layers.",
    "when": "To try which is better.",
}
"""`activation` of networks."""
MIN_COUNT: Mapping[str, Any] = {
    "help": "Words that occur less often are left out.",
    "unit": "occurrences",
    "low": 1,
    "high": 1 << 40,
}
"""`min_count` of models of text."""
SUBWORD: Mapping[str, Any] = {"unit": "characters", "low": 0, "high": 32}
"""`minn` and `maxn` of models of text."""
BUCKET: Mapping[str, Any] = {
    "when": "Fewer for smaller files; 2000000 to have fastText's.",
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
            f"optimizer: {settings.optimizer} does not fit {why}: expected one of auto, "
            + ", ".join(methods)
        )
