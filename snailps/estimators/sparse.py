"""Estimators of examples that are rows of a matrix or table: what all of them are.

    X, y -> `_matrix` -> Matrix -> `_target` -> a scratch file -> a job -> .npz -> SavedModel
    X -> `_matrix` -> pieces -> `_pieces_of_scores` -> `_loss_of` -> predictions, figures
    SavedModel, classes, state -> save -> .npz -> load

`base` has the order of calls of `fit`, `partial_fit` and `load`.  What a class adds to it:

    columns  `_dense`, `_needs_width`, `_fields_of`, `_settings_of_columns`
    labels   `_target`, `_as_numbers`, `_loss_of`, `_described`
    model    `_must_match`, `_two_outputs`, `_read`, `_write`, `_pieces_of_scores`, `_grown`

A fitted model is rows by key, as its file has it: of 2^31 possible columns only those that came.
Predictions are the kernels' own arithmetic.  What training means is `models.sparse`'.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.data.blocks import expand
from snailps.data.columns import Kind, columns_of, declaration_of
from snailps.data.elements import a_kind
from snailps.data.encoding import Encoding, moments
from snailps.data.example_files import LineExamples
from snailps.data.feature_rows import DictRows
from snailps.data.input_files import InputFiles
from snailps.data.matrices import Known, Matrix, check_columns, matrix_of
from snailps.data.matrix_sources import examples_of_piece
from snailps.data.matrix_writer import Draft, spool_rows
from snailps.data.scratch import Scratch
from snailps.dataclass import dataclass, field
from snailps.errors import DataError, ModelFileError
from snailps.estimators.base import Data, Estimator, Source, Start
from snailps.estimators.corpus import is_path, refuse_names_of_files
from snailps.estimators.files import matrix_of_files
from snailps.estimators.jobs import Finished
from snailps.estimators.labels import accuracy, classes_of, values_of
from snailps.estimators.validation import (
    class_weights_of,
    labels_of,
    one_axis,
    targets_of,
    weights_of,
)
from snailps.models.losses import LOSSES, Loss
from snailps.models.packed_tables import Classes, Packed, state_arrays, take_state, write_packed
from snailps.models.sparse.batch import BIAS_KEY, batch_reader
from snailps.models.sparse.clipping import names_of_keys
from snailps.models.sparse.export import SavedModel, read_npz, write_saved
from snailps.models.sparse.sample import sample_of
from snailps.models.sparse.settings import SparseSettings

log = logging.getLogger(__name__)

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
M = TypeVar("M", bound="SparseEstimator")
C = TypeVar("C", bound="SparseClassifier")
R = TypeVar("R", bound="SparseRegressor")

NO_PARAMETERS = (
    "format", "columns", "hash_bits", "on_bad_line", "expire_after", "formats", "loss", "classes",
    "class_weights", "keep_state",
)  # fmt: skip
"""Settings that the data or the class decides."""
CLASS_WEIGHT: Mapping[str, tuple[str, Any]] = {
    "class_weight": ('Mapping[Any, float] | Literal["balanced"] | None', None)
}
_SAVED = {
    "classes": "classes_", "fields": "_fitted_fields", "columns": "n_features_in_",
    "names": "feature_names_in_", "counts": "_counts",
}  # fmt: skip
"""Attributes that a file has, by their names in it."""
_ABOUT = "estimator"
"""Array of a file: what is said of the estimator."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a job learns of labels, and what follows from them."""

    numbers: NDArray[Any]
    weights: Doubles | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)


class SparseEstimator(Estimator):
    """A model of examples that are rows of a matrix or table.

    Attributes
    ----------
    n_features_in_ : int
        Number of columns of X.  Not set after fitting on dicts.
    feature_names_in_ : array of str
        Names of the columns, after a table.
    columns_ : tuple of str
        Columns of a table with texts, or in files, as ``name:kind``.
    """

    n_features_in_: int
    feature_names_in_: NDArray[np.object_]
    _dense: ClassVar[bool] = False
    """Whether X must be numbers, which are written with their zeros."""
    _keeps_state = _takes_rows = True
    _must_match: ClassVar[tuple[str, ...]] = ("optimizer",)
    """Settings of the fitted model that `partial_fit` does not change."""
    _packed: Mapping[str, Packed] = MappingProxyType({})
    """Rows of the job's tables with the state of their optimizer; none if that is not known."""
    _hashed: bool = False
    _declared: tuple[str, ...] = ()
    """Columns of the tables as ``name:kind``; empty: there were none, or of numbers in memory."""
    _kinds: Mapping[str, Kind] = MappingProxyType({})
    """Of names in dicts, those that had numbers only, or texts only."""
    _label: str = ""
    """Column of the files that has the labels."""

    @contextlib.contextmanager
    def _input_of(self, data: Data) -> Iterator[Source]:
        """Examples in a scratch file.

        Rows of files are written into it as they are read; labels and weights follow.
        """
        use = "partial_fit" if data.continues else "fit"
        matrix = self._matrix(data.X, data.y, data.columns, use=use)
        with contextlib.ExitStack() as stack:
            if files := matrix.files:
                if files.declared and not data.continues:
                    log.info("columns, by %s: %s", files.name, ", ".join(files.declared))
                draft = stack.enter_context(Draft(files))
                y, sample_weight = _labels_and_weights(matrix, data.y, data.sample_weight)
                data = replace(data, y=y, sample_weight=sample_weight)
            target = self._target(data, matrix.rows)
            settings = {**target.settings, **self._settings_of_columns(matrix)}
            self._checked(settings, ("epochs",))  # before they are written; epochs were
            numbers, weights = target.numbers, target.weights
            if files:
                spooled = draft.finish(numbers, weights)
            else:
                spooled = spool_rows(matrix.source, numbers, sample_weight=weights)
            stack.enter_context(spooled)
            remarks, attributes = [], dict(target.attributes)
            if data.continues:
                remarks = self._remarks_on_sizes(spooled.path)
            else:
                attributes |= {**self._shape_of(matrix), "_kinds": None}
            if isinstance(matrix.source, DictRows):
                attributes["_kinds"] = matrix.source.kinds()
            yield Source(spooled, settings, attributes, remarks)

    def _matrix(
        self, X: Any, y: Any = None, columns: Sequence[str] = (), *, use: str = "predict"
    ) -> Matrix:
        """X as examples for `fit`, or of the fitted model for `partial_fit`, `predict`, `score`."""
        if use in ("predict", "score"):
            self._refuse_unfitted(use)
        known = None if use == "fit" else self._known()
        if is_path(X):
            settings = None if known is None else self._model.settings
            width = self._needs_width()
            matrix = matrix_of_files(X, y, columns, known, settings, use=use, width=width)
        elif columns:
            raise DataError(
                f"{type(self).__name__}: columns are of files, got {a_kind(X)}: convert it"
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

    def _known(self) -> Known:
        """What the fitted model knows of its columns."""
        names = getattr(self, "feature_names_in_", None)
        return Known(
            type(self).__name__,
            self._hashed,
            None if names is None else tuple(names),
            self._declared,
            self._kinds,
            self._label,
            getattr(self, "n_features_in_", -1),
            self._last_feature(),
        )

    def _fields_of(self, matrix: Matrix, use: str) -> NDArray[np.int64] | None:
        """The field of each column; empty: the files' entries have their own; None: no fields."""
        return None

    def _settings_of_columns(self, matrix: Matrix) -> dict[str, Any]:
        """Settings that follow from the columns."""
        return {}

    def _needs_width(self) -> bool:
        """Whether the number of columns has to be known before the rows are read."""
        return self._dense

    @abstractmethod
    def _target(self, data: Data, rows: int) -> Target:
        """Make the target of the labels."""

    def _shape_of(self, matrix: Matrix) -> dict[str, Any]:
        """Attributes of a model of such columns."""
        files = matrix.files
        return {
            "_hashed": matrix.by_name,
            "_declared": getattr(matrix.source, "declared", ()),
            "_label": files.label if files else "",
            "n_features_in_": matrix.columns if matrix.columns >= 0 else None,
            "feature_names_in_": matrix.names,
            "_fitted_fields": matrix.fields,
        }

    def _learned(self, done: Finished, source: Source) -> dict[str, Any]:
        return {**self._attributes_of(self._read(done.files[0])[0]), "_packed": done.packed}

    @staticmethod
    def _attributes_of(model: Any) -> dict[str, Any]:
        """Attributes of the model of a file."""
        return {"_model": model}

    @property
    def columns_(self) -> tuple[str, ...]:
        """Columns of the table with texts, or in files, that it was fitted on: ``name:kind``."""
        self._refuse_unfitted("columns_")
        return self._declared

    # --- continuing ------------------------------------------------------------------------------

    def _start(self) -> Start:
        lacks = "the model was loaded from a file of weights alone, without the optimizer's state: "
        return Start(
            {name: getattr(self._model.settings, name) for name in self._must_match},
            lacks="" if self._packed else f"{lacks}call fit",
        )

    def _write_start(self, folder: str, source: Source) -> str:
        path = os.path.join(folder, "before.npz")  # noqa: PTH118
        return write_packed(path, self._packed_for(source.attributes))

    def _packed_for(self, attributes: Mapping[str, Any]) -> Mapping[str, Packed]:
        """Rows with state for a job whose model has these attributes."""
        return self._packed

    def _remarks_on_sizes(self, path: str) -> list[str]:
        """A remark on a column whose values are of another size than when the model was begun."""
        encoding = Encoding.of_text(self._model.settings.encoding)
        unlike = encoding.unlike(*self._entries_of(path))
        if unlike is None:
            return []
        key, times = unlike
        size = f"{times:,.0f} times larger" if times > 1 else f"{1 / times:,.0f} times smaller"
        return [
            f"{type(self).__name__}: values of column {self._name_of_column(str(key))} are {size} "
            "than those of the first call, whose scales partial_fit keeps: give both in one unit, "
            "or call fit with all"
        ]

    def _name_of_column(self, key: str) -> str:
        names = list(map(str, getattr(self, "feature_names_in_", ())))
        numbers = dict(enumerate(names))
        if self._hashed and names:
            numbers = names_of_keys(names, self._model.settings.hash_bits)
        return repr(numbers[int(key)]) if int(key) in numbers else f"{int(key):,}"

    def _entries_of(self, path: str) -> tuple[NDArray[np.uint64], Floats]:
        """Keys and values of some of the examples in a file."""
        bits = self._model.settings.hash_bits
        with Scratch("", 0) as scratch:
            files = InputFiles(expand((path,), scratch), scratch)
            return sample_of(SparseSettings(hash_bits=bits), files).entries()

    def _last_feature(self) -> int:
        """The largest feature that has a row, where the number of columns is not known; or -1."""
        if self._hashed or "n_features_in_" in self.__dict__:
            return -1
        model: SavedModel = self._model
        if not isinstance(model.settings, SparseSettings) or model.settings.hash_bits:
            return -1
        after = int(np.searchsorted(model.keys, np.uint64(BIAS_KEY)))
        return int(model.keys[after - 1]) if after else -1

    def _scores(self, matrix: Matrix) -> Floats:
        """Scores, float32 (n, outputs), before any link function."""
        found = list(self._pieces_of_scores(matrix))
        if not found:
            raise DataError(f"X: {matrix.source.name} has no rows")
        return np.concatenate(found) if len(found) > 1 else found[0]

    def _pieces_of_scores(self, matrix: Matrix) -> Iterator[Floats]:
        """Scores of some rows at a time."""
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
        """Figures of the model on labelled examples, as ``snailps predict --metrics`` prints them.

        Parameters
        ----------
        X, y, sample_weight
            As in `score`.

        Returns
        -------
        dict
            ``examples``, those with a weight above 0; of two classes ``log_loss``, ``auc``,
            ``accuracy``, ``calibration``, ``reliability``; of more ``log_loss``, ``accuracy``; of
            numbers ``rmse``, ``mae``, ``mean_prediction``, ``mean_label``.

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
        """Scores of labelled examples, their labels and weights."""
        matrix = self._matrix(X, y, use="score")
        scores = self._scores(matrix)
        y, sample_weight = _labels_and_weights(matrix, y, sample_weight)
        return scores, y, weights_of(sample_weight, len(scores))

    @abstractmethod
    def _as_numbers(self, y: Any, weights: Doubles) -> NDArray[Any]:
        """Labels as the loss takes them; a label of weight 0 may be any."""

    @abstractmethod
    def _loss_of(self, scores: Floats) -> tuple[Loss, NDArray[Any]]:
        """The loss of the scores, and these as its link takes them, (n, outputs)."""

    def predictions(self, X: Any) -> Iterator[Doubles]:
        """Yield what ``snailps predict`` prints, for some rows at a time.

        Yields
        ------
        numpy.ndarray
            float64: the probability of the second of two classes, or a number, (n,); the
            probability of each class, (n, classes).
        """
        for scores in self._pieces_of_scores(self._matrix(X)):
            yield self._predicted(scores)

    def _predicted(self, scores: Floats) -> Doubles:
        """Predictions of some scores."""
        loss, outputs = self._loss_of(scores)
        return loss.link(outputs.astype(np.float64))

    # --- files -----------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model as an ``.npz``, which `load` and ``snailps predict`` read.

        Raises
        ------
        ModelFileError
            A folder that is missing or full.
        """
        self._refuse_unfitted("save")
        about = {"class": type(self).__name__, "hashed": self._hashed}
        for key, name in _SAVED.items():
            if (value := self.__dict__.get(name)) is not None:
                about[key] = np.asarray(value).tolist()
        if self._declared:
            about |= {"declared": list(self._declared), "label": self._label}
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
        """An estimator of an ``.npz`` that `save` or ``snailps train`` wrote.

        Parameters
        ----------
        path : path
        **parameters
            Others than the file's.  Of classifiers also ``classes``: the labels of a file of
            ``snailps train``, which has numbers, in their order.

        Raises
        ------
        ModelFileError
            It is no such file, or one of another model.
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
        return {**known, **attributes, **described, "_packed": packed}

    @classmethod
    def _read(cls, path: str | os.PathLike[str]) -> tuple[Any, dict[str, Any]]:
        """A model, and the arrays of its file besides its rows."""
        model = read_npz(os.fspath(path))
        name = f"{model.cls.__module__}:{model.cls.__qualname__}"
        if name != cls.worker_class:
            raise ModelFileError(f"{path}: holds a {model.cls.__name__}, not a {cls.__name__}")
        return model, dict(model.extras)

    @classmethod
    def _described(cls, model: Any, about: Mapping[str, Any], classes: Any) -> dict[str, Any]:
        """Attributes, and parameters, by what a file says of the estimator."""
        if about.get("class", cls.__name__) != cls.__name__:
            raise ValueError(f"it is one of {about['class']}")
        settings, wanted = model.settings, cls.parameters.fixed.get("loss")
        loss = getattr(settings, "loss", wanted)
        if loss and loss != wanted and (wanted or LOSSES[loss].classes == 0):
            raise ValueError(f"its loss is {loss}")
        columns = columns_of(getattr(settings, "columns", ()), needs_label=False)
        label = next((column.name for column in columns if column.kind is Kind.LABEL), "")
        attributes: dict[str, Any] = {
            "_hashed": bool(about.get("hashed", getattr(settings, "columns", ()))),
            "_declared": tuple(about.get("declared", map(declaration_of, columns))),
            "_kinds": {name: Kind(kind) for name, kind in about.get("kinds", {}).items()},
            "_label": about.get("label", getattr(settings, "label_column", "") or label),
        }
        count = about.get("columns", getattr(settings, "inputs", None))
        if count is not None:  # sparse ones of `snailps train` do not tell it
            attributes["n_features_in_"] = int(count)
        names = about.get("names")
        if names is None and columns:  # of `snailps train`
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
    """Whether classes are known by their labels; else two are yes, above 0, and no."""
    _counts: NDArray[np.float64]
    """Examples of each class so far, by their weights."""
    _two_outputs: ClassVar[bool] = False
    """A model of two classes has a score for each; else one, of the second."""

    def fit(
        self: C, X: Any, y: Any = None, sample_weight: Any = None, *, columns: Sequence[str] = ()
    ) -> C:
        """Learns labels of the rows; forgets what was learnt before.

        Parameters
        ----------
        X : matrix of `scipy.sparse`, array of two axes, nested list, table, or list of dicts
            n examples.  A CSR matrix is written as it is.  Or a path: a file, folder, glob or URL
            of tables (.parquet, .csv, .tsv, .jsonl), of lines of LIBSVM, or of `write_matrix`.
        y : sequence or array of str, int, bool or whole floats; or the name of a column
            A label for each example; two different ones at least.  Of tables in files the name of
            their column of labels; other files have their own.
        sample_weight : array-like, optional
            Weight of each example: 2 counts like the example twice.
        columns : sequence of str
            Of tables in files: ``name:kind`` of some columns, where that is not to be inferred:
            numeric, categorical, ignore, and others of docs/sparse_data.md.

        Raises
        ------
        ParameterError
            A parameter is wrong.
        DataError
            X, y or weights have another form, or are not finite.
        ClusterError
            The job failed; the estimator is what it was before.
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
        """Goes on with other examples: one pass over X, with the optimizer's state as it is.

        Parameters
        ----------
        X, y, sample_weight, columns
            As in `fit`; y may have one class only.  Kinds of columns, their centres and scales are
            from the first call: it should have usual values.
        classes : sequence, optional
            All labels, known at the first call: columns of `predict_proba` then stay.  New labels
            may come later, too, where a model has any number of classes.
        epochs : int or "auto"
            Passes over X; "auto": chosen by the size of X, as in `fit`.

        Raises
        ------
        ParameterError, DataError, ClusterError
            As in `fit`; or X has other columns, or a parameter makes another model.
        """
        labels = [] if classes is None else values_of(classes)
        data = Data(X, y, sample_weight, labels, columns=columns, continues=True)
        return self._learn(data, epochs)

    def _target(self, data: Data, rows: int) -> Target:
        """Numbers of the classes of y; with `classes` others may come later."""
        name = type(self).__name__
        every, numbers = labels_of(data.y, name, rows)
        if data.classes is not None:
            labels, known = every, self.classes_.tolist() if data.continues else []
            every = classes_of(labels.tolist(), [*known, *data.classes])
            numbers = np.searchsorted(every, labels.astype(every.dtype))[numbers]
        weights = weights_of(data.sample_weight, rows)
        of_class = class_weights_of(self.class_weight, every, numbers, weights, name)
        if of_class is not None:
            weights = of_class if weights is None else np.asarray(weights * of_class)
        learnt, hint = every, ". Name those that come later: partial_fit(X, y, classes=[...])"
        if data.classes is None:
            learnt, hint = (
                every[np.unique(numbers if weights is None else numbers[weights > 0])],
                "",
            )
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
        # Values are encoded as before, or as is yet to be found; labels are numbers of classes.
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
        return Target(numbers, weights, settings, attributes)

    def _packed_for(self, attributes: Mapping[str, Any]) -> Mapping[str, Packed]:
        known, every = self.classes_, attributes["classes_"]
        if len(every) == len(known):
            return self._packed
        places = np.searchsorted(every, known)
        return self._grown(Classes.of_counts(places, attributes["_counts"]))

    def _grown(self, classes: Classes) -> Mapping[str, Packed]:
        """Rows with state of a model of more classes."""
        raise NotImplementedError

    def _settings_of_classes(self, count: int) -> dict[str, Any]:
        if self._two_outputs:
            return {"classes": count}
        return {"loss": "multinomial", "classes": count} if count > 2 else {}

    def _as_numbers(self, y: Any, weights: Doubles) -> NDArray[Any]:
        """The number of a label that is none, of weight 0, is 0."""
        labels, numbers = labels_of(y, type(self).__name__, len(weights))
        if not self._has_labels and len(self.classes_) == 2:  # of `snailps train`: 0, or -1
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
        """Scores: (n,) of the second class if there are two, else (n, classes)."""
        return self._deciding(self._scores(self._matrix(X)))

    def _deciding(self, scores: Floats) -> Floats:
        """Scores by which classes are chosen: (n,) of the second of two, or (n, classes)."""
        if self._two_outputs and scores.shape[1] == 2:
            return scores[:, 1] - scores[:, 0]
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba(self, X: Any) -> Doubles:
        """The probability of each of `classes_`, (n, classes)."""
        found = self._predicted(self._scores(self._matrix(X)))
        return np.stack((1 - found, found), axis=1) if found.ndim == 1 else found

    def predict_log_proba(self, X: Any) -> Doubles:
        """Logarithms of `predict_proba`."""
        return np.asarray(np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny)))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each example, (n,)."""
        return self._labels_of(self._scores(self._matrix(X)))

    def _labels_of(self, scores: Floats) -> NDArray[Any]:
        """The class that each example's scores are for."""
        scores = self._deciding(scores)
        best = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[best])

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """The share of examples whose class is predicted right, 0 to 1.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`; the column of labels of files may be left out.

        Raises
        ------
        DataError
            y has other than one label an example, or labels of another kind than the model.
        """
        scores, y, weights = self._judged(X, y, sample_weight)
        values = values_of(one_axis(y, type(self).__name__))
        if not self._has_labels and len(self.classes_) == 2:
            values = [one if isinstance(one, str) else int(one > 0) for one in values]
        return accuracy(self._labels_of(scores).tolist(), values, weights)

    @classmethod
    def _described(cls, model: Any, about: Mapping[str, Any], classes: Any) -> dict[str, Any]:
        attributes = super()._described(model, about, classes)
        # Of `snailps train`, where they are no numbers of classes.
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

    It is trained on ``(y - mean) / deviation``, and what was learnt is scaled back: steps have the
    length that suits numbers near 1, whatever y is.  Penalties apply to the scaled numbers.
    """

    _estimator_type = "regressor"
    _offset: float = 0.0
    """Offset of the model's scores: a mean may be larger than float32 can hold well."""

    def fit(
        self: R, X: Any, y: Any = None, sample_weight: Any = None, *, columns: Sequence[str] = ()
    ) -> R:
        """Learns numbers of the rows; forgets what was learnt before.

        Parameters
        ----------
        X : matrix of `scipy.sparse`, array of two axes, nested list, table, list of dicts; or path
            n examples.  A CSR matrix is written as it is.  Files are as in
            `LogisticRegression.fit`.
        y : array of n numbers; or the name of a column of files
        sample_weight : array-like, optional
            Weight of each example: 2 counts like the example twice.
        columns : sequence of str
            As in `LogisticRegression.fit`.

        Raises
        ------
        ParameterError, DataError, ClusterError
            As `LogisticRegression.fit`.
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
        """Goes on with other examples: one pass over X, with the optimizer's state as it is.

        Parameters
        ----------
        X, y, sample_weight, columns
            As in `fit`.  Mean and deviation of y, centres and scales of columns are from the
            first call.
        epochs : int or "auto"
            Passes over X; "auto": chosen by the size of X, as in `fit`.

        Raises
        ------
        ParameterError, DataError, ClusterError
            As in `fit`; or X has other columns, or a parameter makes another model.
        """
        data = Data(X, y, sample_weight, columns=columns, continues=True)
        return self._learn(data, epochs)

    def _target(self, data: Data, rows: int) -> Target:
        targets = targets_of(data.y, type(self).__name__, rows)
        least = LOSSES[self.parameters.fixed["loss"]].label_min
        if (targets < least).any():
            raise DataError(f"y: expected numbers of at least {least:g}, got {targets.min():g}")
        settings = {"encoding": self._model.settings.encoding} if data.continues else {}
        return Target(targets, weights_of(data.sample_weight, rows), settings)

    @staticmethod
    def _attributes_of(model: Any) -> dict[str, Any]:
        """The constant is added in float64."""
        if "intercept" not in model.extras:  # a file of 0.1.0
            return {"_model": model}
        model.rows[model.keys == np.uint64(BIAS_KEY), 0] = 0
        return {"_model": model, "_offset": float(model.extras["intercept"][0])}

    def _write(self, path: str, more: Mapping[str, NDArray[Any]]) -> None:
        """Write the constant into the row of the bias, where other programs expect it."""
        model, bias = self._model, np.uint64(BIAS_KEY)
        if "intercept" in model.extras and model.cls.has_bias(model.settings):
            keys, rows = model.keys, model.rows.copy()
            if self._offset and bias not in keys:  # a row of zeros is left out
                keys = np.append(keys, bias)
                rows = np.concatenate((rows, np.zeros((1, rows.shape[1]), np.float32)))
            rows[keys == bias, 0] = np.float32(self._offset)
            model = replace(model, keys=keys, rows=rows)
        write_saved(path, model, more)

    def predict(self, X: Any) -> Doubles:
        """A number for each example, (n,)."""
        return self._predicted(self._scores(self._matrix(X)))

    def _loss_of(self, scores: Floats) -> tuple[Loss, NDArray[Any]]:
        return LOSSES[self.parameters.fixed["loss"]], scores.astype(np.float64) + self._offset

    def _as_numbers(self, y: Any, weights: Doubles) -> NDArray[Any]:
        return targets_of(y, type(self).__name__, len(weights))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """The coefficient of determination, R^2: at most 1; with a constant y 1 or 0.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`; the column of labels of files may be left out.

        Raises
        ------
        DataError
            y has other than one number an example.
        """
        scores, y, weights = self._judged(X, y, sample_weight)
        loss, wanted = self._loss_of(scores)[0], targets_of(y, type(self).__name__, len(scores))
        left, total = (
            float(np.average(loss.deviance(wanted, said), weights=weights))
            for said in (self._predicted(scores), np.asarray(moments(wanted, weights)[0]))
        )
        return 1.0 - left / total if total else float(left == 0)

    @classmethod
    def _described(cls, model: Any, about: Mapping[str, Any], classes: Any) -> dict[str, Any]:
        if classes is not None:
            raise ValueError("classes are of classifiers")
        return super()._described(model, about, classes)


def _labels_and_weights(matrix: Matrix, y: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Labels and weights that files had, where none are given; else those that are."""
    if matrix.files is None:
        return y, sample_weight
    own = matrix.files.weights() if sample_weight is None else sample_weight
    return matrix.files.labels(), own
