"""Base of estimators whose examples are rows of a matrix or table, dense or sparse.

    X, y -> `_matrix` -> Matrix -> `_target` -> a scratch file -> a job -> .npz -> SavedModel
    X -> `_matrix` -> pieces -> `_pieces_of_scores` -> `_loss_of` -> predictions, figures
    SavedModel, classes, state -> save -> .npz -> load

`base` has the order of calls of `fit`, `partial_fit` and `load`.  A class implements:

    columns  `_dense`, `_needs_width`, `_fields_of`, `_settings_of_columns`
    labels   `_target`, `_as_numbers`, `_loss_of`, `_described`
    model    `_must_match`, `_two_outputs`, `_read`, `_write`, `_pieces_of_scores`, `_grown`

A fitted model is a list of (key, row), as in its file, because of 2^31 possible columns only the
ones that occurred have a row.  Predictions use the same kernels as training, so they agree to the
bit with ``snailps predict``.  This module must not know how a model is trained (`models.sparse`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.data.columns import ColumnKind, columns_of, declaration_of
from snailps.data.elements import a_kind
from snailps.data.encoding import Encoding, moments
from snailps.data.example_files import LineExamples
from snailps.data.feature_rows import DictRows
from snailps.data.matrices import KnownColumns, Matrix, check_columns, matrix_of
from snailps.data.matrix_sources import examples_of_piece
from snailps.data.matrix_writer import Draft, spool_rows
from snailps.dataclass import dataclass, field
from snailps.errors import DataError, ModelFileError
from snailps.estimators.base import Data, Estimator, FitInput, WarmStart
from snailps.estimators.corpus import is_path, refuse_names_of_files
from snailps.estimators.files import matrix_of_files
from snailps.estimators.jobs import FinishedJob
from snailps.estimators.labels import accuracy, classes_of, values_of
from snailps.estimators.validation import (
    class_weights_of,
    labels_of,
    one_axis,
    targets_of,
    weights_of,
)
from snailps.files.blocks import expand
from snailps.files.input_files import InputFiles
from snailps.files.scratch import Scratch
from snailps.models.class_weights import LIMIT, balanced
from snailps.models.losses import LOSSES, Loss
from snailps.models.packed_tables import (
    GrownClasses,
    Packed,
    state_arrays,
    take_state,
    write_packed,
)
from snailps.models.sparse.batch import BIAS_KEY, batch_reader
from snailps.models.sparse.clipping import names_of_keys
from snailps.models.sparse.export import SavedModel, read_npz, write_saved
from snailps.models.sparse.sample import all_labels, sample_of
from snailps.models.sparse.settings import TESTED_LEAST, SparseSettings

log = logging.getLogger(__name__)

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
M = TypeVar("M", bound="SparseEstimator")
C = TypeVar("C", bound="SparseClassifier")
R = TypeVar("R", bound="SparseRegressor")

NO_PARAMETERS = (
    "format", "columns", "hash_bits", "on_bad_line", "expire_after", "formats", "loss", "classes",
    "class_weights", "weight_column", "keep_state",
)  # fmt: skip
"""Settings that are not parameters, because the data or the class decides them."""
_SAVED = {
    "classes": "classes_", "fields": "_fitted_fields", "columns": "n_features_in_",
    "names": "feature_names_in_", "counts": "_counts",
}  # fmt: skip
"""Attributes that `save` writes, by their key in the file's JSON."""
_ABOUT = "estimator"
"""Name of the file's array with that JSON."""


@dataclass(frozen=True, slots=True)
class LabelNumbers:
    """Labels as numbers for a job, with the settings and attributes that they decide."""

    numbers: NDArray[Any]
    weights: Doubles | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    balances: int = 0
    """Number of classes whose weights the trained rows decide, once they are written; 0: none."""


class SparseEstimator(Estimator):
    """A model whose examples are rows of a matrix or table.

    Attributes
    ----------
    n_features_in_ : int
        Number of columns of X.  Not set after fitting on dicts.
    feature_names_in_ : array of str
        Names of the columns.  Set only after fitting on a table.
    columns_ : tuple of str
        ``name:kind`` of each column, for a table with texts or in a file; else empty.
    """

    n_features_in_: int
    feature_names_in_: NDArray[np.object_]
    _dense: ClassVar[bool] = False
    """Whether examples are dense: X must be numbers, and zeros are written too."""
    _keeps_state = _takes_rows = True
    _must_match: ClassVar[tuple[str, ...]] = ("optimizer",)
    """Settings of the fitted model that `partial_fit` must not change."""
    _packed: Mapping[str, Packed] = MappingProxyType({})
    """Rows with optimizer state, by table; empty for a file of weights alone."""
    _hashed: bool = False
    """Whether a feature's key is a hash of its name; else it is the column's number."""
    _declared: tuple[str, ...] = ()
    """``name:kind`` of the columns; empty for a matrix, and for a table of numbers in memory."""
    _kinds: Mapping[str, ColumnKind] = MappingProxyType({})
    """Names of dicts whose values were all numbers, or all texts; a later call must agree."""
    _label: str = ""
    """Column of the files with the labels."""
    _weight: str = ""
    """Column of the files with the weights."""
    _held_out_of_file: float = 0.0
    """The parameter `held_out` that only the file of `load` has; few rows are trained whole."""

    @contextlib.contextmanager
    def _input_of(self, data: Data) -> Iterator[FitInput]:
        """Write the examples into a scratch file and yield it as input.

        Rows of files are copied as they are read.  Their labels and weights are known only then,
        so these are written after the rows.
        """
        use = "partial_fit" if data.continues else "fit"
        matrix = self._matrix(data.X, data.y, data.columns, data.sample_weight, use=use)
        with contextlib.ExitStack() as stack:
            if files := matrix.files:
                if files.declared and not data.continues:
                    log.info("columns, by %s: %s", files.name, ", ".join(files.declared))
                draft = stack.enter_context(Draft(files))
                y, sample_weight = _labels_and_weights(matrix, data.y, data.sample_weight)
                data = replace(data, y=y, sample_weight=sample_weight)
            target = self._target(data, matrix.rows)
            of_columns = self._settings_of_columns(matrix, continues=data.continues)
            settings = {**target.settings, **of_columns}
            held_out = getattr(self, "held_out", 0)
            if data.continues and held_out and self._is_unasked(len(target.numbers)):
                held_out = settings["held_out"] = 0.0
            self._checked(settings, ("epochs",))  # before they are written; epochs were
            numbers, weights = target.numbers, target.weights
            if files:
                spooled = draft.finish(numbers, weights)
            else:
                spooled = spool_rows(matrix.source, numbers, sample_weight=weights)
            stack.enter_context(spooled)
            if target.balances:
                split = SparseSettings(held_out=held_out, seed=self.get_params()["seed"])
                settings["class_weights"] = _balanced(spooled.path, split, target.balances)
            remarks, attributes = [], dict(target.attributes)
            if data.continues:
                said = self._model.settings
                settings["learnt"] = said.learnt
                if hasattr(said, "learnt_batch"):
                    settings["learnt_batch"] = said.learnt_batch
                remarks = self._remarks_on_sizes(spooled.path)
            else:
                attributes |= {**self._shape_of(matrix), "_kinds": None, "_held_out_of_file": None}
            if isinstance(matrix.source, DictRows):
                attributes["_kinds"] = matrix.source.kinds()
            yield FitInput(spooled, settings, attributes, remarks)

    def _is_unasked(self, rows: int) -> bool:
        """Whether few rows would be tested only because the opened file's lines were."""
        is_of_file = self.held_out == self._held_out_of_file  # type: ignore[attr-defined]
        return is_of_file and not self.stop_after and rows < TESTED_LEAST  # type: ignore[attr-defined]

    def _matrix(
        self,
        X: Any,
        y: Any = None,
        columns: Sequence[str] = (),
        sample_weight: Any = None,
        *,
        use: str = "predict",
    ) -> Matrix:
        """Read X as examples; unless `use` is "fit", by the columns of the fitted model."""
        if use in ("predict", "score"):
            self._refuse_unfitted(use)
        known = None if use == "fit" else self._known()
        if is_path(X):
            settings = None if known is None else self._model.settings
            width = self._needs_width()
            matrix = matrix_of_files(
                X, y, sample_weight, columns, known, settings, use=use, width=width
            )
        elif columns:
            raise DataError(
                f"{type(self).__name__}: columns: expected none unless X is a file, got "
                f"{a_kind(X)}: convert its columns instead"
            )
        else:
            refuse_names_of_files(X)
            others = use != "partial_fit"
            matrix = matrix_of(X, numeric=self._dense, known=known, others=others)
        if known:
            check_columns(matrix, known)
        fields = self._fields_of(matrix, use)
        has_own = matrix.by_name or fields is None or len(fields) == 0
        matrix.source.write_as(dense=self._dense, fields=None if has_own else fields)
        if fields is None and isinstance(matrix.source, LineExamples):
            matrix.source.leave_out_fields()
        return replace(matrix, fields=fields)

    def _known(self) -> KnownColumns:
        """Return what X must agree with: the columns of the fitted model."""
        names = getattr(self, "feature_names_in_", None)
        return KnownColumns(
            type(self).__name__,
            self._hashed,
            None if names is None else tuple(names),
            self._declared,
            self._kinds,
            self._label,
            self._weight,
            getattr(self, "n_features_in_", -1),
            self._last_feature(),
        )

    def _fields_of(self, matrix: Matrix, use: str) -> NDArray[np.int64] | None:
        """Return the field of each column; empty: entries of files name theirs; None: no fields."""
        return None

    def _settings_of_columns(self, matrix: Matrix, *, continues: bool) -> dict[str, Any]:
        """Return settings that the columns decide."""
        return {}

    def _needs_width(self) -> bool:
        """Whether the number of columns must be known before the rows are read."""
        return self._dense

    @abstractmethod
    def _target(self, data: Data, rows: int) -> LabelNumbers:
        """Turn labels and weights into numbers; raise DataError if they cannot be learned."""

    def _shape_of(self, matrix: Matrix) -> dict[str, Any]:
        """Return attributes that describe the columns."""
        files = matrix.files
        return {
            "_hashed": matrix.by_name,
            "_declared": getattr(matrix.source, "declared", ()),
            "_label": files.label if files else "",
            "_weight": files.weight if files else "",
            "n_features_in_": matrix.columns if matrix.columns >= 0 else None,
            "feature_names_in_": matrix.names,
            "_fitted_fields": matrix.fields,
        }

    def _learned(self, done: FinishedJob, source: FitInput) -> dict[str, Any]:
        return {**self._attributes_of(self._read(done.files[0])[0]), "_packed": done.packed}

    @staticmethod
    def _attributes_of(model: Any) -> dict[str, Any]:
        """Return the attributes of a model that was read from a file."""
        return {"_model": model}

    @property
    def columns_(self) -> tuple[str, ...]:
        """``name:kind`` of each column of X; empty unless X was a file or a table with texts."""
        self._refuse_unfitted("columns_")
        return self._declared

    # --- continuing ------------------------------------------------------------------------------

    def _start(self) -> WarmStart:
        lacks = "the model was loaded from a file of weights alone, without the optimizer's state: "
        settings = self._model.settings
        splits = getattr(settings, "held_out", 0) and getattr(self, "held_out", 0)
        names = (*self._must_match, "seed") if splits else self._must_match
        return WarmStart(
            {name: getattr(settings, name) for name in names},
            lacks="" if self._packed else f"{lacks}call fit",
        )

    def _write_start(self, folder: str, source: FitInput) -> str:
        path = os.path.join(folder, "before.npz")  # noqa: PTH118
        return write_packed(path, self._packed_for(source.attributes))

    def _packed_for(self, attributes: Mapping[str, Any]) -> Mapping[str, Packed]:
        """Return the rows with state from which a job starts, grown if there are new classes."""
        return self._packed

    def _remarks_on_sizes(self, path: str) -> list[str]:
        """Warn of a column whose values differ much in size from the first call's.

        Scales are fixed by the first call: a column that changes its unit would silently get
        steps of the wrong length.
        """
        encoding = Encoding.of_text(self._model.settings.encoding)
        unlike = encoding.unlike(*self._entries_of(path))
        if unlike is None:
            return []
        key, times = unlike
        size = f"{times:,.0f} times larger" if times > 1 else f"{1 / times:,.0f} times smaller"
        return [
            f"{type(self).__name__}: values of column {self._name_of_column(str(key))} are {size} "
            "than in the first call, whose scales partial_fit keeps: give both in one unit, or "
            "call fit with all data"
        ]

    def _name_of_column(self, key: str) -> str:
        names = list(map(str, getattr(self, "feature_names_in_", ())))
        numbers = dict(enumerate(names))
        if self._hashed and names:
            numbers = names_of_keys(names, self._model.settings.hash_bits)
        return repr(numbers[int(key)]) if int(key) in numbers else f"{int(key):,}"

    def _entries_of(self, path: str) -> tuple[NDArray[np.uint64], Floats]:
        """Return keys and values of a sample of the examples in a file."""
        bits = self._model.settings.hash_bits
        with Scratch("", 0) as scratch:
            files = InputFiles(expand((path,), scratch), scratch)
            return sample_of(SparseSettings(hash_bits=bits), files).entries()

    def _last_feature(self) -> int:
        """Return the largest feature with a row; -1 if the number of columns is known anyway."""
        if self._hashed or "n_features_in_" in self.__dict__:
            return -1
        model: SavedModel = self._model
        if not isinstance(model.settings, SparseSettings) or model.settings.hash_bits:
            return -1
        after = int(np.searchsorted(model.keys, np.uint64(BIAS_KEY)))
        return int(model.keys[after - 1]) if after else -1

    def _scores(self, matrix: Matrix) -> Floats:
        """Compute scores, float32 (n, outputs), before any link function."""
        pieces = list(self._pieces_of_scores(matrix))
        if not pieces:
            raise DataError(f"X: {matrix.source.name} has no rows")
        return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]

    def _pieces_of_scores(self, matrix: Matrix) -> Iterator[Floats]:
        """Yield scores for some rows at a time, so that files need not fit in memory."""
        model: SavedModel = self._model
        assert isinstance(model.settings, SparseSettings)
        reader = batch_reader(
            model.settings,
            bias=model.cls.has_bias(model.settings),
            needs_labels=False,
            encodes=False,
        )
        for piece in matrix.source.pieces():
            examples = examples_of_piece(piece, matrix.source, model.settings.hash_bits)
            batch = reader.numbered(examples, "X")
            rows = model.rows_of(batch.keys)
            yield model.cls.scores(model.settings, rows, batch, model.extras)

    # --- judging ---------------------------------------------------------------------------------

    def evaluate(self, X: Any, y: Any = None, sample_weight: Any = None) -> dict[str, Any]:
        """Evaluate the model on labelled examples, as ``snailps predict --metrics`` does.

        Parameters
        ----------
        X, y, sample_weight
            As in `score`.

        Returns
        -------
        dict
            ``examples``: their number, except those of weight 0.  For two classes ``log_loss``,
            ``auc``, ``accuracy``, ``calibration`` and ``reliability``; for more ``log_loss`` and
            ``accuracy``; for regression ``rmse``, ``mae``, ``mean_prediction`` and ``mean_label``.

        Raises
        ------
        DataError
            As in `score`.
        """
        scores, y, weights = self._judged(X, y, sample_weight)
        weights = np.ones(len(scores)) if weights is None else weights
        loss, outputs = self._loss_of(scores)
        judge = loss.judge()
        judge.add(self._as_numbers(y, weights), outputs, weights)
        return judge.figures()

    def _judged(self, X: Any, y: Any, sample_weight: Any) -> tuple[Floats, Any, Doubles | None]:
        """Return scores, labels and weights of labelled examples."""
        matrix = self._matrix(X, y, (), sample_weight, use="score")
        scores = self._scores(matrix)
        y, sample_weight = _labels_and_weights(matrix, y, sample_weight)
        return scores, y, weights_of(sample_weight, len(scores))

    @abstractmethod
    def _as_numbers(self, y: Any, weights: Doubles) -> NDArray[Any]:
        """Convert labels to the numbers of the loss; labels of weight 0 are not checked."""

    @abstractmethod
    def _loss_of(self, scores: Floats) -> tuple[Loss, NDArray[Any]]:
        """Return the loss, and the scores as its link function takes them, (n, outputs)."""

    def predictions(self, X: Any) -> Iterator[Doubles]:
        """Yield the values that ``snailps predict`` prints, for some rows at a time.

        Parameters
        ----------
        X : object
            As in `fit`; a file is read in pieces.

        Yields
        ------
        numpy.ndarray
            float64.  (n,): a number, or with two classes the probability of the second.
            (n, classes): the probability of each class.
        """
        for scores in self._pieces_of_scores(self._matrix(X)):
            yield self._predicted(scores)

    def _predicted(self, scores: Floats) -> Doubles:
        """Apply the link function to scores."""
        loss, outputs = self._loss_of(scores)
        return loss.link(outputs.astype(np.float64))

    # --- files -----------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as an ``.npz``, which `load` and ``snailps predict`` read.

        Raises
        ------
        NotFitted
            `fit` was not called.
        ModelFileError
            The file cannot be written.
        """
        self._refuse_unfitted("save")
        about = {"class": type(self).__name__, "hashed": self._hashed}
        for key, name in _SAVED.items():
            if (value := self.__dict__.get(name)) is not None:
                about[key] = np.asarray(value).tolist()
        if self._declared:
            about |= {"declared": list(self._declared), "label": self._label}
            about |= {"weight": self._weight} if self._weight else {}
        if self._kinds:
            about["kinds"] = {name: int(kind) for name, kind in self._kinds.items()}
        more: dict[str, NDArray[Any]] = {
            _ABOUT: np.frombuffer(json.dumps(about).encode(), np.uint8)
        }
        more |= state_arrays(self._packed)
        self._write(os.fspath(path), more)

    def _write(self, path: str, more: Mapping[str, NDArray[Any]]) -> None:
        write_saved(path, self._model, more)

    @classmethod
    def load(cls: type[M], path: str | os.PathLike[str], **parameters: Any) -> M:
        """Open an ``.npz`` that `save` or ``snailps train`` wrote as a fitted estimator.

        Parameters
        ----------
        path : path
        **parameters
            Replace the file's parameters, for the next `fit`.  Classifiers also take ``classes``:
            the labels in the order of their numbers, which are all that a file of ``snailps train``
            has.

        Raises
        ------
        ModelFileError
            The file cannot be read, or holds another kind of model.
        ParameterError
            Unknown parameter.
        """
        classes = parameters.pop("classes", None)
        return cls._loaded(path, parameters, classes)

    @classmethod
    def _saved(
        cls, path: str | os.PathLike[str], parameters: Mapping[str, Any], classes: Any = None
    ) -> dict[str, Any]:
        model, extras = cls._read(path)
        try:
            packed = take_state(extras)
            about = json.loads(extras.pop(_ABOUT).tobytes()) if _ABOUT in extras else {}
            described = cls._described(model, about, classes)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"{path}: no model of {cls.__name__}: {error!r:.200}") from None
        attributes = cls._attributes_of(replace(model, extras=extras))
        known = cls.parameters.of_settings(model.settings)
        of_file = 0.0 if "held_out" in parameters else known.get("held_out", 0.0)
        return {
            **known, **attributes, **described, "_packed": packed, "_held_out_of_file": of_file,
        }  # fmt: skip

    @classmethod
    def _read(cls, path: str | os.PathLike[str]) -> tuple[Any, dict[str, Any]]:
        """Read a model, and the file's arrays other than its rows."""
        model = read_npz(os.fspath(path))
        name = f"{model.cls.__module__}:{model.cls.__qualname__}"
        if name != cls.worker_class:
            raise ModelFileError(f"{path}: holds a {model.cls.__name__}, not a {cls.__name__}")
        return model, dict(model.extras)

    @classmethod
    def _described(cls, model: Any, about: Mapping[str, Any], classes: Any) -> dict[str, Any]:
        """Return the attributes and parameters in a file's JSON; ValueError if it does not fit."""
        if about.get("class", cls.__name__) != cls.__name__:
            raise ValueError(f"it is one of {about['class']}")
        settings, wanted = model.settings, cls.parameters.fixed.get("loss")
        loss = getattr(settings, "loss", wanted)
        if loss and loss != wanted and (wanted or LOSSES[loss].classes == 0):
            raise ValueError(f"its loss is {loss}")
        columns = columns_of(getattr(settings, "columns", ()), needs_label=False)
        label = next((column.name for column in columns if column.kind is ColumnKind.LABEL), "")
        attributes: dict[str, Any] = {
            "_hashed": bool(about.get("hashed", getattr(settings, "columns", ()))),
            "_declared": tuple(about.get("declared", map(declaration_of, columns))),
            "_kinds": {name: ColumnKind(kind) for name, kind in about.get("kinds", {}).items()},
            "_label": about.get("label", getattr(settings, "label_column", "") or label),
            "_weight": about.get("weight", getattr(settings, "weight_column", "")),
        }
        count = about.get("columns", getattr(settings, "inputs", None))
        if count is not None:  # a sparse model of `snailps train` does not record it
            attributes["n_features_in_"] = int(count)
        names = about.get("names")
        if names is None and columns:  # a file of `snailps train`
            names = [column.name for column in columns if column.is_feature]
        if names is not None:
            attributes["feature_names_in_"] = np.array(names, object)
        return attributes


class SparseClassifier(SparseEstimator):
    """A classifier of rows of a matrix or table."""

    classes_: NDArray[Any]
    class_weight: Any
    _estimator_type = "classifier"
    _has_labels: bool = True
    """Whether classes are known by label; else there are two, and a label above 0 is the second."""
    _counts: NDArray[np.float64]
    """Sum of the weights of each class's examples in all calls: a new class starts from them."""
    _two_outputs: ClassVar[bool] = False
    """Whether a model of two classes has two scores; else it has one, of the second class."""
    _learns_by_heart: ClassVar[bool] = False
    """As the worker class says: ``epochs="auto"`` holds some of few rows out, and tests on them."""

    def fit(
        self: C, X: Any, y: Any = None, sample_weight: Any = None, *, columns: Sequence[str] = ()
    ) -> C:
        """Learn to classify rows; an earlier fit is discarded.

        Parameters
        ----------
        X : matrix of `scipy.sparse`, array (n, columns), nested list, table, or list of dicts
            n examples; values are trained as float32.  CSR is the fastest form: it is not
            converted.  A path is a file, folder, glob or URL of tables (.parquet, .csv, .tsv,
            .jsonl), of LIBSVM lines, or of `write_matrix`.
        y : sequence or array of str, int, bool or whole floats; or the name of a column
            n labels, at least two different ones.  For tables in files: the name of their column
            of labels.  Leave it out for other files, whose lines begin with their labels.
        sample_weight : array-like of n numbers; or the name of a column, optional
            A weight of 2 counts like the same example twice; 0 leaves it out.  The column is one of
            tables in files; later calls without weights read it where a table has it.
        columns : sequence of str
            For tables in files: ``name:kind`` of columns whose kind should not be inferred
            (numeric, categorical, ignore, ...; docs/sparse_data.md lists all).

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A parameter is unknown, of the wrong type or out of range.
        DataError
            X, y or sample_weight have another form or length, or are not finite.
        ClusterError
            The job failed; the estimator keeps its earlier model.
        """
        return self._learn(Data(X, y, sample_weight, columns=columns))

    def partial_fit(
        self: C,
        X: Any,
        y: Any = None,
        classes: Any = None,
        sample_weight: Any = None,
        *,
        columns: Sequence[str] = (),
        epochs: int | Literal["auto"] = 1,
    ) -> C:
        """Continue training on other examples, with the optimizer's state of the last call.

        Parameters
        ----------
        X, y, sample_weight, columns
            As in `fit`, but y may have a single class.  The first call decides the kinds of
            columns, their centres and scales, so its values should be typical.
        classes : sequence, optional
            All labels that will come.  If the first call names them, `classes_` and the columns of
            `predict_proba` never change.  Labels may also be added later, except to
            `FMClassifier`, which has two.
        epochs : int or "auto"
            Passes over X; "auto" chooses by the size of X, as `fit` does.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            As in `fit`; or a parameter that defines the model's shape has changed.
        NotFitted
            The model was loaded from a file without the optimizer's state.
        DataError
            As in `fit`; or X has other columns than the fitted model.
        ClusterError
            As in `fit`.
        """
        labels = [] if classes is None else values_of(classes)
        data = Data(X, y, sample_weight, labels, columns=columns, continues=True)
        return self._learn(data, epochs)

    def _target(self, data: Data, rows: int) -> LabelNumbers:
        """Number the classes of y; with `data.classes` later calls may bring others."""
        name = type(self).__name__
        every, numbers = labels_of(data.y, name, rows)
        if data.classes is not None:
            labels, known = every, self.classes_.tolist() if data.continues else []
            every = classes_of(labels.tolist(), [*known, *data.classes])
            numbers = np.searchsorted(every, labels.astype(every.dtype))[numbers]
        weights = of_examples = weights_of(data.sample_weight, rows)
        of_class = class_weights_of(self.class_weight, every, numbers, weights, name)
        if of_class is not None:
            weights = of_class if weights is None else np.asarray(weights * of_class)
        learnt, hint = every, ". Name those that come later: partial_fit(X, y, classes=[...])"
        if data.classes is None:
            # By counts: `np.unique` imports `numpy.ma`, which takes as long as a small fit.
            used = np.bincount(numbers if weights is None else numbers[weights > 0])
            learnt, hint = every[np.flatnonzero(used)], ""
        if len(learnt) < 2:
            raise DataError(
                "y: expected labels of two classes at least"
                f"{'' if hint else ' (with a weight above 0)'}, got "
                f"{'one class' if len(learnt) else 'no class'}: {learnt.tolist()!r:.60}{hint}"
            )
        if len(every) > 2 and not self._multiclass:
            raise DataError(
                "Only binary classification is supported. The type of the target is multiclass: "
                f"y has {len(every):,} classes. LogisticRegression takes any number"
            )
        # partial_fit keeps the first call's encoding of values; fit leaves it to the job (empty).
        # The labels in the encoding are numbers of classes, as they are in the scratch file.
        encoding = Encoding.of_text(self._model.settings.encoding if data.continues else "")
        of_labels = tuple(map(float, range(len(every))))
        settings = {
            **self._settings_of_classes(len(every)),
            "encoding": replace(encoding, labels=of_labels).text,
        }
        counts = np.bincount(numbers, weights, len(every)).astype(np.float64)
        if data.continues and "_counts" in self.__dict__:
            counts[np.searchsorted(every, self.classes_)] += self._counts
        attributes = {"classes_": every, "_has_labels": None, "_counts": counts}
        if of_class is None or not self._may_test(data):
            return LabelNumbers(numbers, weights, settings, attributes)
        # Class weights are for the training alone; held-out rows are judged without them.
        if isinstance(self.class_weight, str):
            return LabelNumbers(numbers, of_examples, settings, attributes, len(every))
        by_class = class_weights_of(self.class_weight, every, np.arange(len(every)), None, name)
        settings["class_weights"] = _texts_of(by_class)
        return LabelNumbers(numbers, of_examples, settings, attributes)

    def _may_test(self, data: Data) -> bool:
        """Whether the job may hold rows out."""
        is_chosen = self.get_params()["epochs"] in ("auto", None)
        is_unasked = self._learns_by_heart and is_chosen and not data.continues
        return bool(getattr(self, "held_out", 0)) or is_unasked

    def _packed_for(self, attributes: Mapping[str, Any]) -> Mapping[str, Packed]:
        known, every = self.classes_, attributes["classes_"]
        if len(every) == len(known):
            return self._packed
        places = np.searchsorted(every, known)
        return self._grown(GrownClasses.of_counts(places, attributes["_counts"]))

    def _grown(self, classes: GrownClasses) -> Mapping[str, Packed]:
        """Return rows with state for a model that has more classes."""
        raise NotImplementedError

    def _settings_of_classes(self, count: int) -> dict[str, Any]:
        if self._two_outputs:
            return {"classes": count}
        return {"loss": "multinomial", "classes": count} if count > 2 else {}

    def _as_numbers(self, y: Any, weights: Doubles) -> NDArray[Any]:
        """Number the labels; an unknown label is an error unless its weight is 0."""
        labels, numbers = labels_of(y, type(self).__name__, len(weights))
        # A file of `snailps train` has no labels: it was trained on 0 and 1, or on -1 and 1.
        if not self._has_labels and len(self.classes_) == 2:
            labels = np.asarray(labels > 0, np.int64)
        places = {label: place for place, label in enumerate(self.classes_.tolist())}
        for label in labels[np.unique(numbers[weights > 0])].tolist():
            if label not in places:
                raise DataError(
                    f"y: label {label!r:.60} is none of the model's classes, "
                    f"{self.classes_.tolist()!r:.120}"
                )
        of_labels = np.array([places.get(label, 0) for label in labels.tolist()], np.int64)
        return of_labels[numbers]

    def _loss_of(self, scores: Floats) -> tuple[Loss, NDArray[Any]]:
        scores = self._deciding(scores)
        if scores.ndim == 1:
            return LOSSES["logistic"], scores[:, None]
        return LOSSES["multinomial"], scores

    def decision_function(self, X: Any) -> Floats:
        """Return scores, float32: (n,) of the second of two classes, else (n, classes).

        X is as in `fit`.  With two classes a score above 0 predicts the second.
        """
        return self._deciding(self._scores(self._matrix(X)))

    def _deciding(self, scores: Floats) -> Floats:
        """Reduce scores to the form of `decision_function`."""
        if self._two_outputs and scores.shape[1] == 2:
            return scores[:, 1] - scores[:, 0]
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba(self, X: Any) -> Doubles:
        """Return the probability of each class, float64 (n, classes), in the order of `classes_`.

        X is as in `fit`; a row sums to 1.
        """
        chances = self._predicted(self._scores(self._matrix(X)))
        return np.stack((1 - chances, chances), axis=1) if chances.ndim == 1 else chances

    def predict_log_proba(self, X: Any) -> Doubles:
        """Return the natural logarithm of `predict_proba`; finite where a probability is 0."""
        return np.asarray(np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny)))

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most probable class of each example.

        Parameters
        ----------
        X : object
            n examples, as in `fit`, with the columns of the fitted model.

        Returns
        -------
        array (n,)
            Values of `classes_`.

        Raises
        ------
        NotFitted
            `fit` was not called.
        DataError
            X has another form or other columns, no rows, or values that are not finite.
        """
        return self._labels_of(self._scores(self._matrix(X)))

    def _labels_of(self, scores: Floats) -> NDArray[Any]:
        """Return the class with the highest score of each example."""
        scores = self._deciding(scores)
        best = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[best])

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy: the share of examples whose class is predicted right, 0 to 1.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.  For tables in files y defaults to the label column of `fit`.

        Raises
        ------
        DataError
            y has another length than X, or labels of another type than the model's.
        """
        scores, y, weights = self._judged(X, y, sample_weight)
        values = values_of(one_axis(y, type(self).__name__))
        if not self._has_labels and len(self.classes_) == 2:
            values = [label if isinstance(label, str) else int(label > 0) for label in values]
        return accuracy(self._labels_of(scores).tolist(), values, weights)

    @classmethod
    def _described(cls, model: Any, about: Mapping[str, Any], classes: Any) -> dict[str, Any]:
        attributes = super()._described(model, about, classes)
        # A file of `snailps train` has its labels in the encoding, if they are not 0, 1, 2, ...
        of_input = Encoding.of_text(model.settings.encoding)
        if of_input.labels and "classes" not in about and classes is None:
            numbers = [int(label) if label == int(label) else label for label in of_input.labels]
            classes = of_input.names or numbers
        if "counts" in about:
            attributes["_counts"] = np.array(about["counts"], np.float64)
        count = max(2, getattr(model.settings, "classes", 0))
        labels = about.get("classes", range(count)) if classes is None else classes
        attributes["_has_labels"] = "classes" in about or classes is not None
        attributes["classes_"] = np.array(list(labels))
        if len(attributes["classes_"]) != count:
            raise ValueError(f"classes: expected {count}, got {len(attributes['classes_'])}")
        return attributes


class SparseRegressor(SparseEstimator):
    """A regression on rows of a matrix or table.

    The model is trained on ``(y - mean) / deviation`` and its weights are scaled back: `lr` and
    penalties suit numbers near 1, whatever the unit of y.
    """

    _estimator_type = "regressor"
    _offset: float = 0.0
    """Added to scores in float64: a float32 mean of, say, 1e8 would round to whole numbers."""

    def fit(
        self: R, X: Any, y: Any = None, sample_weight: Any = None, *, columns: Sequence[str] = ()
    ) -> R:
        """Learn a regression; an earlier fit is discarded.

        Parameters
        ----------
        X : matrix of `scipy.sparse`, array (n, columns), nested list, table, list of dicts; or path
            n examples, as in `LogisticRegression.fit`.
        y : array of n finite numbers; or the name of a column of tables in files
            Leave it out for other files, whose lines begin with it.
        sample_weight : array-like of n numbers; or the name of a column, optional
            A weight of 2 counts like the same example twice; 0 leaves it out.  The column is one of
            tables in files; later calls without weights read it where a table has it.
        columns : sequence of str
            As in `LogisticRegression.fit`.

        Returns
        -------
        self

        Raises
        ------
        ParameterError, DataError, ClusterError
            As in `LogisticRegression.fit`.
        """
        return self._learn(Data(X, y, sample_weight, columns=columns))

    def partial_fit(
        self: R,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        columns: Sequence[str] = (),
        epochs: int | Literal["auto"] = 1,
    ) -> R:
        """Continue training on other examples, with the optimizer's state of the last call.

        Parameters
        ----------
        X, y, sample_weight, columns
            As in `fit`.  The first call decides mean and deviation of y, and the kinds, centres
            and scales of columns, so its values should be typical.
        epochs : int or "auto"
            Passes over X; "auto" chooses by the size of X, as `fit` does.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            As in `fit`; or a parameter that defines the model's shape has changed.
        NotFitted
            The model was loaded from a file without the optimizer's state.
        DataError
            As in `fit`; or X has other columns than the fitted model.
        ClusterError
            As in `fit`.
        """
        data = Data(X, y, sample_weight, columns=columns, continues=True)
        return self._learn(data, epochs)

    def _target(self, data: Data, rows: int) -> LabelNumbers:
        targets = targets_of(data.y, type(self).__name__, rows)
        least = LOSSES[self.parameters.fixed["loss"]].label_min
        if (targets < least).any():
            raise DataError(f"y: expected numbers of at least {least:g}, got {targets.min():g}")
        settings = {"encoding": self._model.settings.encoding} if data.continues else {}
        return LabelNumbers(targets, weights_of(data.sample_weight, rows), settings)

    @staticmethod
    def _attributes_of(model: Any) -> dict[str, Any]:
        """Move the constant out of the float32 rows, to be added in float64."""
        if "intercept" not in model.extras:  # a file of 0.1.0
            return {"_model": model}
        model.rows[model.keys == np.uint64(BIAS_KEY), 0] = 0
        return {"_model": model, "_offset": float(model.extras["intercept"][0])}

    def _write(self, path: str, more: Mapping[str, NDArray[Any]]) -> None:
        """Put the constant back into the row of the bias, where other programs look for it."""
        model, bias = self._model, np.uint64(BIAS_KEY)
        if "intercept" in model.extras and model.cls.has_bias(model.settings):
            keys, rows = model.keys, model.rows.copy()
            if self._offset and bias not in keys:  # rows of zeros are not exported
                keys = np.append(keys, bias)
                rows = np.concatenate((rows, np.zeros((1, rows.shape[1]), np.float32)))
            rows[keys == bias, 0] = np.float32(self._offset)
            model = replace(model, keys=keys, rows=rows)
        write_saved(path, model, more)

    def predict(self, X: Any) -> Doubles:
        """Predict a number for each example.

        Parameters
        ----------
        X : object
            n examples, as in `fit`, with the columns of the fitted model.

        Returns
        -------
        float64 (n,)

        Raises
        ------
        NotFitted
            `fit` was not called.
        DataError
            X has another form or other columns, no rows, or values that are not finite.
        """
        return self._predicted(self._scores(self._matrix(X)))

    def _loss_of(self, scores: Floats) -> tuple[Loss, NDArray[Any]]:
        return LOSSES[self.parameters.fixed["loss"]], scores.astype(np.float64) + self._offset

    def _as_numbers(self, y: Any, weights: Doubles) -> NDArray[Any]:
        return targets_of(y, type(self).__name__, len(weights))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the coefficient of determination, R^2 (for `PoissonRegressor` D^2).

        1 is perfect, 0 as good as the mean of y, below 0 worse.  For a constant y it is 1 if every
        prediction is exact, else 0.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.  For tables in files y defaults to the label column of `fit`.

        Raises
        ------
        DataError
            y has another length than X, or is not finite.
        """
        scores, y, weights = self._judged(X, y, sample_weight)
        loss, wanted = self._loss_of(scores)[0], targets_of(y, type(self).__name__, len(scores))
        residual, total = (
            float(np.average(loss.deviance(wanted, prediction), weights=weights))
            for prediction in (self._predicted(scores), np.asarray(moments(wanted, weights)[0]))
        )
        return 1.0 - residual / total if total else float(residual == 0)

    @classmethod
    def _described(cls, model: Any, about: Mapping[str, Any], classes: Any) -> dict[str, Any]:
        if classes is not None:
            raise ValueError("classes: expected none, because this is no classifier")
        return super()._described(model, about, classes)


def _labels_and_weights(matrix: Matrix, y: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Return labels and weights: of files the ones that were read; given weights come first."""
    if matrix.files is None:
        return y, sample_weight
    from_files = sample_weight is None or isinstance(sample_weight, str)
    weights = matrix.files.weights() if from_files else sample_weight
    return matrix.files.labels(), weights


def _balanced(path: str, split: SparseSettings, classes: int) -> list[str]:
    """Return the setting for balanced classes of a file's trained rows; empty if there are none."""
    with Scratch("", 0) as scratch:
        files = InputFiles(expand((path,), scratch), scratch)
        read = all_labels(split, files, sys.maxsize)
    assert read is not None
    labels, weights = read
    sums = np.bincount(labels.astype(np.int64), weights if len(weights) else None, classes)
    return _texts_of(np.minimum(balanced(sums), LIMIT)) if sums.any() else []


def _texts_of(weights: Doubles | None) -> list[str]:
    assert weights is not None
    return list(map(repr, weights.tolist()))
