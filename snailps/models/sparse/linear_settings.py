"""Settings of linear models, in a module without the model, so that it imports no kernels.

    ClassesSettings <- LinearSettings

No rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from snailps.config import setting
from snailps.errors import ConfigError
from snailps.models.sparse.settings import ClassesSettings


@dataclass(frozen=True, slots=True)
class LinearSettings(ClassesSettings):
    """Settings of linear models; the defaults come close to the result of a converged solver."""

    bias: bool = setting(
        True,
        help="Whether a constant feature is added to every example.",
        when="`false` if the examples contain a constant feature.",
    )
    formats: tuple[str, ...] = setting(
        ("npz",),
        help="Result files: `npz`, and `liblinear` (a text of weights by index).",
        when="Another program reads the model.",
    )

    def validate(self, where: Callable[[str], str]) -> None:
        """Refuse unknown formats, and liblinear with 64-bit keys."""
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
