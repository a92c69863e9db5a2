"""The number of epochs that a model chooses for a job with ``epochs: auto``.

    epochs: auto -> Cut.passes(settings, files) -> Passes -> the job (`master/job/beginning.py`)

A model declares ``epochs: int = setting(0, **EPOCHS_AUTO)`` and overrides `Cut.passes`.

A training that continues a model trains new lines alone, and each epoch has rows forget more of
the lines before.  It trains one, or as many as its share of what is new beyond what the model has
learnt; the file says how much that is (`JobSettings.learnt`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from snailps.config import JobSettings
from snailps.dataclass import dataclass
from snailps.errors import MisuseError
from snailps.files.input_files import InputFiles

EPOCHS = 5
"""Epochs of large inputs, and of models that do not choose."""
EPOCHS_MAX = 300
"""Most epochs of a small input."""
EPOCHS_FALLING = 50
"""Most epochs where the step size falls over the job: such a job trains all that are planned."""
EPOCHS_AUTO: Mapping[str, Any] = {
    "help": "Training passes over the input. `auto`: by its size, 5 for large inputs; more for "
    "small ones, at most 300. If the step size does not fall over the job, small inputs train "
    "until the mean loss of an epoch stops falling. A model that is continued: 1, unless there "
    "is more new input than it has learnt (docs/training.md).",
    "when": "More if the report says that the loss is still falling; fewer to save time.",
    "low": 1,
    "high": 1_000_000,
    "aliases": ["num_iters"],
    "auto": True,
}
"""The setting `epochs` of models with `Cut.passes`."""


@dataclass(frozen=True, slots=True)
class Passes:
    """The epochs of a job: `most`, for which falling step sizes are planned, or fewer.

    After `least` epochs (1 to `most`) the job ends once the loss stops falling; with `least` equal
    to `most` it trains them all.  `relative`: the last fall of the loss is compared with the loss
    itself, instead of with the first epoch's loss; for errors of numbers, which may get as small as
    the data allows.  `by_heart`: so many epochs may learn few lines by heart, which the loss of the
    training does not show.
    """

    most: int
    least: int
    relative: bool = False
    by_heart: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise MisuseError(f"expected 1 <= least <= most epochs, got {self}")

    @classmethod
    def by_size(
        cls,
        total: int,
        enough: int,
        *,
        ends: bool = True,
        relative: bool = False,
        share: float = 1.0,
        by_heart: bool = False,
    ) -> Passes:
        """Choose `enough` / `total` epochs, from `EPOCHS` to `EPOCHS_MAX`; of these a `share`, 1 at
        least.

        With `ends`, epochs beyond `EPOCHS` are trained only while the loss falls.  Without, all are
        trained, `EPOCHS_FALLING` at most.
        """
        most = EPOCHS_MAX if ends else EPOCHS_FALLING
        epochs = max(EPOCHS, min(most, enough // max(1, total)))
        epochs = max(1, round(share * epochs))
        least = min(EPOCHS, epochs) if ends else epochs
        return cls(epochs, least, relative, by_heart and epochs > EPOCHS)


def share_of_new(settings: JobSettings, files: InputFiles) -> float:
    """The share of the epochs of a first training: 1, or what is new beyond what was learnt.

    0 where that is more, or not known: by a file of an earlier version.
    """
    if not getattr(settings, "continue_from", ""):
        return 1.0
    return max(0.0, 1 - settings.learnt / max(1, files.total_bytes)) if settings.learnt else 0.0
