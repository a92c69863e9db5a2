"""The models that come with snailps, each a `Worker` subclass and its settings."""

from snailps.config import JobSettings
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.embeddings.settings import KgeSettings, MfSettings
from snailps.models.fedavg.settings import FedAvgSettings
from snailps.models.mlp.settings import MlpSettings
from snailps.models.sparse.fm import FmSettings
from snailps.models.sparse.linear import LinearSettings
from snailps.models.sparse.net import NetSettings
from snailps.models.word_vectors import WordVectorSettings

SETTINGS: dict[str, type[JobSettings]] = {
    "fasttext": WordVectorSettings,
    "word2vec": WordVectorSettings,
    "classifier": ClassifierSettings,
    "logistic": LinearSettings,
    "fm": FmSettings,
    "sparse_net": NetSettings,
    "mlp": MlpSettings,
    "kge": KgeSettings,
    "mf": MfSettings,
    "fedavg": FedAvgSettings,
}
"""Settings class of each model, by the name that the command line knows it by."""

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
