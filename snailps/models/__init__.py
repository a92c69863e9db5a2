"""The models that come with snailps, `Worker` subclasses and their settings; imported by name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snailps.config import JobSettings


class _ByName(Mapping[str, "type[JobSettings]"]):
    """Name -> class; its module is imported by the look-up."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> type[JobSettings]:
        module, _, attribute = self._places[name].partition(":")
        found: type[JobSettings] = getattr(importlib.import_module(module), attribute)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


SETTINGS: Mapping[str, type[JobSettings]] = _ByName(
    {
        "fasttext": "snailps.models.word_vectors:WordVectorSettings",
        "word2vec": "snailps.models.word_vectors:WordVectorSettings",
        "classifier": "snailps.models.classifier:ClassifierSettings",
        "logistic": "snailps.models.sparse.linear:LinearSettings",
        "fm": "snailps.models.sparse.fm:FmSettings",
        "sparse_net": "snailps.models.sparse.net:NetSettings",
        "mlp": "snailps.models.mlp:MlpSettings",
        "kge": "snailps.models.embeddings.settings:KgeSettings",
        "mf": "snailps.models.embeddings.settings:MfSettings",
        "fedavg": "snailps.models.fedavg:FedAvgSettings",
    }
)
"""Settings class of each model, by its name on the command line."""

CLASSES: dict[str, str] = {
    "fasttext": "snailps.models.word_vectors:WordVectors",
    "word2vec": "snailps.models.word_vectors:WordVectors",
    "classifier": "snailps.models.classifier:Classifier",
    "logistic": "snailps.models.sparse.linear:Linear",
    "fm": "snailps.models.sparse.fm:FactorizationMachine",
    "sparse_net": "snailps.models.sparse.net:Net",
    "mlp": "snailps.models.mlp:Mlp",
    "kge": "snailps.models.embeddings.kge:KnowledgeGraph",
    "mf": "snailps.models.embeddings.mf:MatrixFactorization",
    "fedavg": "snailps.models.fedavg:FedAvg",
}
"""`worker_class` of each."""
