"""Settings of linear models, apart from the model: whoever only reads settings needs no more.

    ClassesSettings <- LinearSettings

No rows, no kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from snailps.config import setting
from snailps.errors import ConfigError
from snailps.models.sparse.settings import ClassesSettings


@dataclass(frozen=True, slots=True)
class LinearSettings(ClassesSettings):
    """Settings of linear models; by default they come close to what a converged solver gives."""

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
        """Refuse formats that we cannot write."""
        ClassesSettings.validate(self, where)
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
