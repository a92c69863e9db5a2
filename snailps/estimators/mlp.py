"""A multilayer perceptron as an estimator: `MLPClassifier`.

    X (dense, or sparse and written with its zeros), y -> fit, partial_fit -> a job
        -> arrays of the layers
    X -> pieces of rows -> the layers, in NumPy -> predict

Owns idx and ``.npy`` files as X, and prediction.  `models.mlp` trains.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.tables import Tensor
from snailps.data.array_files import Labelled, is_array_file, read_array
from snailps.data.matrices import Matrix
from snailps.dataclass import replace
from snailps.errors import DataError
from snailps.estimators.corpus import is_path, paths_of
from snailps.estimators.net import NetEstimator, hidden_of
from snailps.estimators.validation import CLASS_WEIGHT
from snailps.files.blocks import files_of
from snailps.files.scratch import Scratch
from snailps.models.mlp import MlpSettings, read_npz
from snailps.models.mlp.files import SavedNet
from snailps.models.mlp.files import write_npz as write_net
from snailps.models.mlp.settings import entries_of


class MLPClassifier(
    NetEstimator,
    settings=MlpSettings,
    without=("hidden", "classes", "stop_after", "stop_by"),  # nothing is held out
    extra={**hidden_of(100), **CLASS_WEIGHT},
):
    """Multilayer perceptron on dense data, for two or more classes.

    Parameters
    ----------
    hidden : int or sequence of int
        Widths of the hidden layers.
    activation, lr, batch_size, momentum, optimizer, epochs, ...
        Settings of the training, described with their ranges in docs/settings.md.
    class_weight : mapping, "balanced" or None
        As in `LogisticRegression`.
    cluster, workers, callbacks, verbose
        As in `FastText`.

    Attributes
    ----------
    classes_ : array (classes,)
        The labels, sorted.

    Examples
    --------
    >>> X = np.random.default_rng(1).normal(size=(2000, 2)).astype(np.float32)
    >>> y = (X[:, 0] * X[:, 1] > 0).astype(int)
    >>> model = MLPClassifier(hidden=(30, 10), epochs=40).fit(X, y)  # doctest: +SKIP
    >>> model.score(X, y) > 0.9  # doctest: +SKIP
    True
    """

    worker_class = "snailps.models.mlp:Mlp"
    _dense = _two_outputs = True
    _model: SavedNet
    epochs: Any

    @staticmethod
    def _tensors(settings: MlpSettings) -> Sequence[Tensor]:
        return settings.tensors

    def _settings_of_columns(self, matrix: Matrix, *, continues: bool) -> dict[str, Any]:
        """Return the number of inputs."""
        return {"inputs": matrix.columns}

    def _matrix(
        self,
        X: Any,
        y: Any = None,
        columns: Sequence[str] = (),
        sample_weight: Any = None,
        *,
        use: str = "predict",
    ) -> Matrix:
        """Also accept an idx or ``.npy`` file, as ``snailps train mlp`` does."""
        paths = []
        with contextlib.suppress(DataError):  # the base class raises it again, with its own words
            paths = files_of(paths_of(X, "")) if is_path(X) else []
        if any(map(is_array_file, paths)):
            if len(paths) > 1:
                raise DataError(f"X: expected one idx or .npy file, got {len(paths):,} files")
            if use != "predict" and y is None:
                raise DataError(
                    f"y: expected the classes of {paths[0]}, whose labels are another file: pass "
                    "them as an array"
                )
            with Scratch("", 0) as scratch:  # a mapped array outlives its unpacked file
                X = read_array(paths[0], scratch)
            X = X.reshape(len(X), -1)
        return super()._matrix(X, y, columns, sample_weight, use=use)

    def _entries_of(self, path: str) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
        with Scratch("", 0) as scratch:
            return entries_of(Labelled([(path, path)], scratch))

    def _pieces_of_scores(self, matrix: Matrix) -> Iterator[NDArray[np.float32]]:
        for piece in matrix.source.pieces():
            assert piece.values is not None
            values = np.asarray(piece.values, np.float32)
            yield self._model.scores(values.reshape(piece.rows, matrix.columns))

    def _write(self, path: str, more: Mapping[str, NDArray[Any]]) -> None:
        steps = int(self.figures_.get("global_step", 0))
        epochs = 0 if self.epochs == "auto" else self.epochs
        settings = replace(self._model.settings, epochs=epochs)
        write_net(path, settings, {**self._model.arrays, **more}, steps)

    @classmethod
    def _read(cls, path: str | os.PathLike[str]) -> tuple[SavedNet, dict[str, Any]]:
        model = read_npz(os.fspath(path))
        return model, dict(model.extras)
