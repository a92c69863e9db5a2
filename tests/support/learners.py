"""Estimators of rows for scikit-learn's checks, and a job that trains none of them.

    estimators -> cases -> (estimator, check) of tests
    settings, file of examples -> MadeUpJobs -> Finished: weights of the right form, drawn

What checks say of data, parameters, attributes and predictions needs no cluster; what they say of
what was learnt does.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snailps
from snailps.api.worker import load_class
from snailps.estimators import base, mlp, sparse
from snailps.estimators.jobs import FinishedJob
from snailps.files.matrix_file import read_header
from snailps.models.mlp import MlpSettings
from snailps.models.mlp.files import SavedNet
from snailps.models.packed_tables import Packed
from snailps.models.sparse.batch import BIAS_KEY, TABLE
from snailps.models.sparse.export import SavedModel
from snailps.models.sparse.fm import FmSettings
from snailps.models.sparse.net import NetSettings

ESTIMATORS = [
    snailps.LogisticRegression(epochs=20),
    snailps.LinearRegression(epochs=20),
    snailps.PoissonRegressor(epochs=20),
    snailps.FMClassifier(epochs=20),
    snailps.FMRegressor(epochs=20),
    snailps.SparseNetClassifier(hidden=20, epochs=40, batch_size=64),
    snailps.MLPClassifier(hidden=20, epochs=40, batch_size=32, lr=0.01),
]

WARNINGS = (
    # Estimators are none of BaseEstimator's: scikit-learn is no dependency.
    "ignore:Estimator .* does not inherit from:UserWarning",
    "ignore::sklearn.exceptions.SkipTestWarning",
)
"""What pytest is told of these checks."""

STEPS = (
    "an example is a step: one of weight 2 is a longer step, two of weight 1 are two shorter ones"
)
JUDGED = (
    "check_classifiers_train",
    "check_class_weight_classifiers",
    "check_regressors_train",
)
"""Checks that judge what was learnt."""
EXCEPTIONS = {
    "check_sample_weight_equivalence_on_dense_data": STEPS,
    "check_sample_weight_equivalence_on_sparse_data": STEPS,
    "check_array_api_input": "arrays of other namespaces are converted by NumPy",
}
"""Checks that fail, with the reason."""


def can_say_cases() -> bool:
    """Whether this scikit-learn generates its checks one by one: from 1.6 on."""
    from sklearn.utils import estimator_checks

    return hasattr(estimator_checks, "estimator_checks_generator")


def cases() -> Iterator[tuple[str, str, Any, Any]]:
    """Names of an estimator and of a check, the estimator, and the check."""
    from sklearn.utils.estimator_checks import estimator_checks_generator

    for estimator in ESTIMATORS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for copy, check in estimator_checks_generator(estimator):
                function = check
                while isinstance(function, functools.partial):
                    function = function.func
                yield type(estimator).__name__, function.__name__, copy, check


class MadeUpJobs:
    """In the place of `run_job`: models of the right form, whose weights were drawn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._saved: Any = None
        monkeypatch.setattr(base, "run_job", self._run)
        for module in (sparse, mlp):
            monkeypatch.setattr(module, "read_npz", lambda path: self._saved)

    @contextlib.contextmanager
    def _run(
        self, worker_class: str, settings: Mapping[str, Any], given: Any, monitor: Any,
        *, packed: bool, **_: Any,
    ) -> Iterator[FinishedJob]:  # fmt: skip
        with open(given.path, "rb") as file:
            data = file.read()
        columns = read_header(data, len(data), given.path).columns
        cls: Any = load_class(worker_class, "a test")
        fields = {key: value for key, value in settings.items() if key != "continue_from"}
        chosen = cls.Settings(worker_class=worker_class, **fields)
        rng = np.random.default_rng(1)
        tables = {}
        if isinstance(chosen, MlpSettings):
            tensors = chosen.tensors
        else:
            tensors = chosen.layers.tensors() if isinstance(chosen, NetSettings) else []
        made = {tensor.name: rng.normal(size=tensor.shape).astype(np.float32) for tensor in tensors}
        if isinstance(chosen, MlpSettings):
            self._saved = SavedNet(chosen, made)
        else:
            keys = np.append(np.arange(columns, dtype=np.uint64), np.uint64(BIAS_KEY))
            rows = rng.normal(size=(len(keys), _width(chosen))).astype(np.float32)
            self._saved = SavedModel(cls, chosen, keys, rows, made)
            tables[TABLE] = Packed(keys, np.hstack([rows, rows]))
        for tensor in tensors:
            rows = tensor.to_rows(made[tensor.name])
            tables[tensor.name] = Packed(tensor.keys(), np.hstack([rows, rows]))
        history = [{"epoch": n + 1, "loss": 1.0} for n in range(chosen.epochs)]
        monitor.finish({"train_loss": 1.0}, history)
        yield FinishedJob({"train_loss": 1.0}, [Path("model.npz")], tables if packed else {})


def _width(settings: Any) -> int:
    """Weights of a feature."""
    if isinstance(settings, NetSettings):
        return int(settings.layers.sizes[0])
    return int(settings.dim if isinstance(settings, FmSettings) else settings.outputs)
