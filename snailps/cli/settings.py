"""Lists the settings classes that users may set: of the roles, of a job, of each model."""

from __future__ import annotations

from snailps import models
from snailps.config import ROLE_CLASSES, JobSettings
from snailps.config.fields import Settings
from snailps.models.embeddings.settings import EmbeddingSettings
from snailps.models.sparse.settings import ClassesSettings, SparseSettings

_BASES = {
    "Every model of sparse examples": SparseSettings,
    "Logistic regression and networks on sparse examples": ClassesSettings,
    "Knowledge graphs and matrix factorisation": EmbeddingSettings,
}


def documented_classes() -> list[tuple[str, type[Settings]]]:
    """List title and class of every section of docs/settings.md: the roles, a job, each model."""
    names: dict[type[JobSettings], list[str]] = {}
    for name, cls in models.SETTINGS.items():
        names.setdefault(cls, []).append(name)
    sections: list[tuple[str, type[Settings]]] = list(ROLE_CLASSES)
    for title, base in _BASES.items():
        if any(issubclass(cls, base) for cls in names):
            sections.append((title, base))
    sections += [(f"Model: {', '.join(which)}", cls) for cls, which in names.items()]
    return sections
