"""Models as objects: parameters in, `fit` on data of this process, a fitted object out.

    data -> FastText(...).fit -> a job on a cluster -> .wv, .predict, .history_

`base` is what all estimators are, `parameters` which settings of a model they have, `corpus` how
texts reach a job, `validation` what X and y may be, `sparse` what estimators of rows are, `jobs`
the job, `monitor` and `display` what is seen of it.  The classes are loaded when they are first
asked for; the build writes ``__init__.pyi``, the types of their constructors.
"""

from __future__ import annotations

import importlib

_HOMES = {
    "FMClassifier": "fm",
    "FMRegressor": "fm",
    "FastText": "words",
    "KnowledgeGraph": "embeddings",
    "LinearRegression": "linear",
    "LogisticRegression": "linear",
    "MLPClassifier": "mlp",
    "MatrixFactorization": "embeddings",
    "PoissonRegressor": "linear",
    "SparseNetClassifier": "net",
    "TextClassifier": "text",
    "Word2Vec": "words",
}

__all__ = sorted(_HOMES)

READERS = {
    "examples": {
        "snailps.models.sparse.linear:Linear": {
            "": "LogisticRegression",
            "squared": "LinearRegression",
            "poisson": "PoissonRegressor",
        },
        "snailps.models.sparse.fm:FactorizationMachine": {
            "": "FMClassifier",
            "squared": "FMRegressor",
        },
        "snailps.models.sparse.net:Net": {"": "SparseNetClassifier"},
        "snailps.models.mlp:Mlp": {"": "MLPClassifier"},
    },
    "names": {
        "snailps.models.embeddings.kge:KnowledgeGraph": {"": "KnowledgeGraph"},
        "snailps.models.embeddings.mf:MatrixFactorization": {"": "MatrixFactorization"},
    },
}
"""Estimator of an ``.npz``, by what it is of, model and loss; "": for the other losses."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
