"""How often a training goes over its input where the user leaves that to the model.

    epochs: auto -> Cut.passes(settings, files) -> Passes -> the job (`master/job/job.py`)

A model declares ``epochs: int = setting(0, **EPOCHS_AUTO)`` and overrides `Cut.passes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from snailps.dataclass import dataclass
from snailps.errors import MisuseError

EPOCHS = 5
"""Epochs of large inputs, and of models that do not decide."""
EPOCHS_MAX = 300
"""Most epochs, of small inputs."""
EPOCHS_FALLING = 50
"""Most epochs where the step size falls over the job, which then does not end before."""
EPOCHS_AUTO: Mapping[str, Any] = {
    "help": "Number of training passes over the whole input. `auto`: by its size, 5 for large "
    "inputs; for small ones more, at most 300, where the step size does not fall over the job "
    "only until the mean loss of an epoch stops falling (docs/training.md).",
    "when": "More if the end of the training says that the loss is still falling; fewer to save "
    "time.",
    "low": 1,
    "high": 1_000_000,
    "aliases": ["num_iters"],
    "auto": True,
}
"""The setting `epochs` of models with `Cut.passes`."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Epochs of a job: at most `most`, which rates that fall over the job count with.

    From `least` on, at least 1, the job ends once the loss stops falling; `most`: never before.
    `relative`: by parts of itself, not of the first epoch's: errors of numbers may become any part
    of those at the beginning.
    """

    most: int
    least: int
    relative: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise MisuseError(f"expected 1 <= least <= most epochs, got {self}")

    @classmethod
    def by_size(
        cls, total: int, enough: int, *, ends: bool = True, relative: bool = False
    ) -> Passes:
        """Choose epochs: enough / total, from `EPOCHS` to `EPOCHS_MAX`.

        With `ends`, all but `EPOCHS` of them are trained only while the loss falls; without, there
        are at most `EPOCHS_FALLING`.
        """
        most = EPOCHS_MAX if ends else EPOCHS_FALLING
        epochs = max(EPOCHS, min(most, enough // max(1, total)))
        return cls(epochs, EPOCHS if ends else epochs, relative)
