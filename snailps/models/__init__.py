"""The models that come with snailps, `Worker` subclasses and their settings; imported by name.

name on the command line -> MODELS -> Model: its class, its settings, what a user is shown
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from snailps.dataclass import dataclass, field

if TYPE_CHECKING:
    from snailps.config import JobSettings


@dataclass(frozen=True, slots=True)
class Model:
    """A model as commands and readers of files know it; classes are ``module:Name``."""

    worker_class: str
    settings: str
    about: str
    """First sentence of ``snailps train NAME --help``."""
    example: str = ""
    """Options in the example of that help; empty: the options that suit most models."""
    ask: str = "predict {} FILE"
    """Command to try next, with a place for the finished model's file."""
    fixed: Mapping[str, str] = field(default_factory=dict)
    """Settings that set this command apart from others with the same model."""
    estimators: Mapping[str, str] = field(default_factory=dict)
    """Estimators that open the finished model's ``.npz``, by loss; "": of any other loss."""
    reader: str = ""
    """Class that opens the finished model's file and answers questions about names."""


_WORDS = (
    "snailps.models.word_vectors:WordVectors",
    "snailps.models.word_vectors:WordVectorSettings",
)
MODELS: Mapping[str, Model] = {
    "fasttext": Model(
        *_WORDS,
        "Word vectors with subwords: unknown words get vectors too.",
        ask="nn {} WORD",
    ),
    "word2vec": Model(
        *_WORDS,
        "Word vectors without subwords.",
        ask="nn {} WORD",
        fixed={"minn": "0", "maxn": "0"},
    ),
    "classifier": Model(
        "snailps.models.classifier:Classifier",
        "snailps.models.classifier:ClassifierSettings",
        "Labels for lines of text, as fastText's supervised mode.",
        ask='predict {} "some text"',
    ),
    "logistic": Model(
        "snailps.models.sparse.linear:Linear",
        "snailps.models.sparse.linear:LinearSettings",
        "Logistic, linear and multinomial regression on sparse examples.",
        estimators={
            "": "LogisticRegression",
            "squared": "LinearRegression",
            "poisson": "PoissonRegressor",
        },
    ),
    "fm": Model(
        "snailps.models.sparse.fm:FactorizationMachine",
        "snailps.models.sparse.fm:FmSettings",
        "Factorization machine: weights and pairwise interactions of sparse features.",
        estimators={"": "FMClassifier", "squared": "FMRegressor"},
    ),
    "sparse_net": Model(
        "snailps.models.sparse.net:Net",
        "snailps.models.sparse.net:NetSettings",
        "A network whose huge sparse first layer computes on the servers.",
        estimators={"": "SparseNetClassifier"},
    ),
    "mlp": Model(
        "snailps.models.mlp:Mlp",
        "snailps.models.mlp:MlpSettings",
        "A multilayer perceptron on dense examples in idx files, as MNIST.",
        "--train train-images-idx3-ubyte.gz --test t10k-images-idx3-ubyte.gz --output out/mnist",
        estimators={"": "MLPClassifier"},
    ),
    "kge": Model(
        "snailps.models.embeddings.kge:KnowledgeGraph",
        "snailps.models.embeddings.settings:KgeSettings",
        "Knowledge graph: TransE, DistMult, ComplEx or RotatE on triples of names.",
        "--train train.txt --test test.txt --output out/graph",
        ask="predict {} FILE -k 5",
        estimators={"": "KnowledgeGraph"},
        reader="snailps.models.embeddings.queries:GraphModel",
    ),
    "mf": Model(
        "snailps.models.embeddings.mf:MatrixFactorization",
        "snailps.models.embeddings.settings:MfSettings",
        "Matrix factorisation: ratings, or rankings of what users chose.",
        "--train ratings.csv --test held-out.csv --output out/ratings",
        ask="recommend {} -k 5",
        estimators={"": "MatrixFactorization"},
        reader="snailps.models.embeddings.queries:FactorModel",
    ),
    "fedavg": Model(
        "snailps.models.fedavg:FedAvg",
        "snailps.models.fedavg:FedAvgSettings",
        "Federated averaging: CBOW vectors by learners with data of their own.",
        "--input corpus.txt --data-dir data --output out/vectors",
        ask="nn {} WORD",
    ),
}
"""Each model by its name on the command line."""
CLASSES = {name: model.worker_class for name, model in MODELS.items()}


class _SettingsByModel(Mapping[str, "type[JobSettings]"]):
    """Settings class of each model; its module is imported by the look-up."""

    def __getitem__(self, name: str) -> type[JobSettings]:
        module, _, attribute = MODELS[name].settings.partition(":")
        settings: type[JobSettings] = getattr(importlib.import_module(module), attribute)
        return settings

    def __contains__(self, name: object) -> bool:
        return name in MODELS

    def __iter__(self) -> Iterator[str]:
        return iter(MODELS)

    def __len__(self) -> int:
        return len(MODELS)


SETTINGS: Mapping[str, type[JobSettings]] = _SettingsByModel()
