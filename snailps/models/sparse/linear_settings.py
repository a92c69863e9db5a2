"""Settings of linear models, apart from the model: whoever only reads settings needs no more.

    SparseSettings <- LinearSettings

No rows, no kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from snailps.config import setting
from snailps.errors import ConfigError
from snailps.models.sparse.settings import SparseSettings
from snailps.roles.tables import DIM_MAX


@dataclass(frozen=True, slots=True)
class LinearSettings(SparseSettings):
    """Settings of linear models; by default they come close to what a converged solver gives."""

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
    bias: bool = setting(
        True,
        help="Whether every example has a constant feature, beside its own.",
        when="The examples have one already.",
    )
    formats: tuple[str, ...] = setting(
        ("npz",),
        help="Result files: `npz`, and `liblinear` (a text of weights by index).",
        when="Another program is to read the model.",
    )

    def validate(self, where: Callable[[str], str]) -> None:
        """Refuse classes without the loss that has them, and formats that we cannot write."""
        SparseSettings.validate(self, where)
        if (self.loss == "multinomial") != (self.classes > 1):
            expected = (
                "at least 2" if self.loss == "multinomial" else "0: only multinomial has them"
            )
            raise ConfigError(
                f"{where('classes')}: classes: expected {expected} with loss {self.loss} (from "
                f"{where('loss')}), got {self.classes}"
            )
        wrong = set(self.formats) - {"npz", "liblinear"}
        if wrong or not self.formats:
            raise ConfigError(
                f"{where('formats')}: formats: expected npz, liblinear or both, got "
                f"{', '.join(self.formats) or 'nothing'}"
            )
        if "liblinear" in self.formats and self.columns and not 0 < self.hash_bits <= 24:
            raise ConfigError(
                f"{where('formats')}: formats: liblinear has a line for each possible index, and "
                "columns make keys of 64 bits: set hash_bits to 24 or less"
            )

    @property
    def outputs(self) -> int:
        """Weights of a feature."""
        return max(1, self.classes)
