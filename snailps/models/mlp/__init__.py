"""Multilayer perceptrons on dense examples: `Mlp`, its settings, its files."""

from snailps.models.mlp.files import SavedNet, read_npz
from snailps.models.mlp.model import Mlp
from snailps.models.mlp.settings import MlpSettings

__all__ = ["Mlp", "MlpSettings", "SavedNet", "read_npz"]
