"""Files of multilayer perceptrons.

    arrays, settings -> write_npz -> file -> read_npz -> SavedNet -> scores of examples

An ``.npz`` holds the arrays of the net by the names of their tensors, ``global_step``, and
``about`` (UTF-8 JSON: the settings).  `numpy.load` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.config import RawConfig
from snailps.data.encoding import Encoding
from snailps.dataclass import dataclass, field
from snailps.files.model_file import HEADER, model_settings, write_model
from snailps.models.layers import BIASES, Floats
from snailps.models.mlp.settings import FIRST, MlpSettings
from snailps.vectors.model_reading import read_model

_STEP = "global_step"
_EXTRAS = {"estimator", "state_keys", "state_rows"}
"""Arrays of an estimator's file; those of state are named ``TABLE.state_keys`` and so on."""


@dataclass(frozen=True, slots=True)
class SavedNet:
    """A net as read from a file."""

    settings: MlpSettings
    arrays: Mapping[str, Floats]
    """float32, by name of tensor."""
    extras: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Arrays that an estimator's `save` adds: about itself, and the state of the optimizer."""

    def scores(self, examples: Floats) -> Floats:
        """Scores of examples (n, inputs), float32 (n, classes), before the softmax."""
        bounded = Encoding.of_text(self.settings.encoding).bounded_rows(examples)
        return scores(self.settings, self.arrays, bounded)


def scores(settings: MlpSettings, arrays: Mapping[str, Floats], examples: Floats) -> Floats:
    """Scores of examples, float32 (n, classes), before the softmax."""
    layers = settings.layers
    return layers.scores(examples @ arrays[FIRST], arrays)


def write_npz(
    path: str, settings: MlpSettings, arrays: Mapping[str, Floats], global_step: int
) -> str:
    arrays = {_STEP: np.array([global_step], np.int64), **arrays}
    return write_model(path, arrays, model_settings(settings))


def read_npz(path: str | Path) -> SavedNet:
    """Read a net, as ``snailps train`` or an estimator wrote it."""
    with read_model(path, "a net", (HEADER, _STEP)) as (kept, arrays):
        del arrays[_STEP]
        settings = RawConfig.from_mapping(kept, str(path)).build(MlpSettings)
        extras = {name: arrays.pop(name) for name in [*arrays] if name.split(".")[0] in _EXTRAS}
        expected = {tensor.name: tensor.shape for tensor in settings.tensors}
        found = {name: array.shape for name, array in arrays.items()}
        if found != expected or BIASES not in found:
            raise ValueError(f"expected arrays {expected}, got {found}")
        return SavedNet(settings, arrays, extras)
