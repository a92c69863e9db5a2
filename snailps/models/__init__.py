"""The models that come with snailps, each a `Worker` subclass and its settings."""

from snailps.config import JobSettings
from snailps.models.classifier import ClassifierSettings
from snailps.models.sparse.fm import FmSettings
from snailps.models.sparse.linear import LinearSettings
from snailps.models.word_vectors import WordVectorSettings

SETTINGS: dict[str, type[JobSettings]] = {
    "fasttext": WordVectorSettings,
    "word2vec": WordVectorSettings,
    "classifier": ClassifierSettings,
    "logistic": LinearSettings,
    "fm": FmSettings,
}
"""Settings class of each model, by the name that the command line knows it by."""

CLASSES: dict[str, str] = {
    "fasttext": "snailps.models.word_vectors:WordVectors",
    "word2vec": "snailps.models.word_vectors:WordVectors",
    "classifier": "snailps.models.classifier:Classifier",
    "logistic": "snailps.models.sparse.linear:Linear",
    "fm": "snailps.models.sparse.fm:FactorizationMachine",
}
"""`worker_class` of each."""
