"""Settings that several models declare: what they have in common, once.

    shuffle: bool = setting(True, **SHUFFLE)
    min_count: int = setting(1, **MIN_COUNT, when="5 for large texts.")

A model adds its default, and what it says otherwise.  `EPOCHS_AUTO` is `api/passes.py`'s, as users'
models have it, too.
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
    "help": "A file of weights with the state of their optimizer, from which training continues; "
    "of `partial_fit` of the estimators. Features that it lacks are added; shapes, classes and "
    "optimizer are those of the file.",
    "when": "Never; estimators fill it in.",
    "unit": "path",
    "hidden": True,
}
"""`continue_from` of models that only estimators continue (`packed_tables.py`)."""
SHUFFLE: Mapping[str, Any] = {
    "help": "Whether examples are trained in an order that is drawn from `seed`, another one in "
    "each epoch; a block is read from all over the input's files. `false`, or with `expire_after`: "
    "as they come.",
    "when": "`false` if their order means something, or if they are already shuffled and more than "
    "fit in memory on a disk that seeks slowly.",
}
"""`shuffle` of models that do not depend on the order of the examples."""
KEEP_STATE: Mapping[str, Any] = {
    "help": "Whether the model's file has the state of the optimizer, too, so that `continue_from` "
    "and `partial_fit` go on with it: two or three times the size. `auto`: up to 2 MB of it.",
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
