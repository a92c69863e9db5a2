"""Models as objects: parameters in, `fit` on data of this process, a fitted object out.

    data -> FastText(...).fit -> a job on a cluster -> .wv, .predict, .history_

`base` fits every estimator; `parameters` chooses which settings of a model become parameters;
`corpus` hands texts to a job; `validation` checks y and weights; `sparse` is the base of estimators
whose examples are rows of a matrix; `jobs` runs the job; `monitor` and `display` report its
progress.  A class is imported on first access: all of them take half a second, `import snailps`
alone a hundredth of one.  The build writes ``__init__.pyi``, the signatures of the constructors.
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


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    estimator: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = estimator  # the next access does not come here
    return estimator
