"""`TextClassifier`: fastText's supervised mode as an estimator.

    texts, labels -> fit -> classes_, predict, predict_proba     more, and new labels -> partial_fit

Owns the labels of the user and their order.  `models.classifier` trains; `vectors` classifies.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.config.fields import bytes_of
from snailps.data.elements import a_kind, elements_of, native, whole
from snailps.data.label_words import word_of
from snailps.data.vocabulary import LABEL_PREFIX
from snailps.errors import DataError, ParameterError
from snailps.estimators.base import Data, FitInput, WarmStart
from snailps.estimators.corpus import is_path, lines_of
from snailps.estimators.jobs import FinishedJob
from snailps.estimators.labels import (
    CountedRows,
    accuracy,
    classes_of,
    known_label,
    soft_labels_of,
    values_of,
)
from snailps.estimators.text_base import OF_TEXT, file_bytes
from snailps.estimators.tuning import Tunable
from snailps.estimators.validation import (
    CLASS_WEIGHT,
    class_weights_of,
    one_axis,
    weights_of,
)
from snailps.kernels import cores
from snailps.models.classifier.search import TUNED
from snailps.models.classifier.settings import ClassifierSettings
from snailps.vectors.label_metrics import Metric
from snailps.vectors.label_prediction import LabelModel
from snailps.vectors.query import Vectors
from snailps.vectors.words import to_text

if TYPE_CHECKING:
    from snailps.models.classifier.tuning import Tuning

C = TypeVar("C", bound="TextClassifier")
_PREFIX = LABEL_PREFIX.decode()
log = logging.getLogger(__name__)
MANY_FITS, MANY_EPOCHS = 5, 100
"""So many fits of so many epochs are probably a search: its time is said to be spent there."""
long_fits = itertools.count(1)
"""Numbers of such fits in this process."""


class TextClassifier(
    Tunable,
    settings=ClassifierSettings,
    without=("label", "weight_column", "class_weights"),
    extra={**OF_TEXT, **CLASS_WEIGHT},
):
    """Text classifier: a linear model on the mean of the vectors of words and word n-grams.

    Fast to train, also with hundreds of thousands of labels.

    Parameters
    ----------
    dim, loss, lr, word_ngrams, minn, maxn, bucket, negatives, min_count, min_count_label, ...
        Settings of the training, described with their ranges in docs/settings.md.
    column : str
        Column with the texts, if X is a table.
    class_weight : mapping from labels to numbers, "balanced" or None
        Factors of the weights of texts by their label; labels that it lacks have 1.  "balanced"
        gives all labels the same sum of weights.
    epochs : int or "auto"
        "auto": up to 300 passes over a small text, some seconds.  For a grid of parameters set a
        number, such as 30.
    soft_labels : bool
        Whether labels in a file of text may have weights, as in ``__label__a:0.75``.
    pretrained : path
        File of word vectors, of any format that `snailps.load` reads.  Its words join the
        vocabulary and start with their vectors; `dim` is the file's.  `partial_fit` of a fitted
        model ignores it.
    held_out : float
        Share of the texts that is not trained, on which the model is tested after each epoch.
        ``figures_["tests"]`` has the figures.
    stop_after : int
        Epochs in a row without a better figure on these texts after which the training ends; the
        model is then the one of the best epoch, ``figures_["best_epoch"]``.  0: all epochs are
        trained.
    stop_by : str
        The figure: a metric of `autotune`, or ``"loss"``.  Empty: F1 of all labels together.
    cluster, workers, callbacks, verbose
        As in `FastText`.

    Attributes
    ----------
    classes_ : array (classes,)
        The labels, sorted; also those that `fit` was given as `classes`.
    tuning_ : Tuning
        After `autotune`: its trials.
    quantized_ : LabelModel
        After `autotune` with `size`: a quantised model, whose `save` writes a .ftz; the model as it
        is, if it has too few rows to be quantised.

    Examples
    --------
    >>> model = TextClassifier(dim=10, epochs=20, lr=0.5)
    >>> model = model.fit(["good film", "bad film"] * 50, [1, 0] * 50)  # doctest: +SKIP
    >>> model.predict(["a good one"])  # doctest: +SKIP
    array([1])
    """

    worker_class = "snailps.models.classifier:Classifier"
    _estimator_type = "classifier"
    class_weight: Any
    soft_labels: Any
    held_out: Any
    seed: Any
    stop_after: Any
    calibrate: Any
    classes_: NDArray[Any]
    tuning_: Tuning
    quantized_: LabelModel
    _model: LabelModel
    _words: dict[Any, str]
    """The model's word for each label: ``__label__`` and the label as text."""
    _columns: NDArray[np.int64]
    """Index among the model's labels of each of `classes_`; -1: there was no text with it."""
    _extra: tuple[Any, ...] = ()
    """Labels that `classes` has named, and of which there was no text."""
    _split_seed: int | None = None
    """The `seed` by which the last fit held lines out; None: it held none out, or a file cannot
    say."""

    def fit(
        self: C,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        column: str = "",
        classes: Sequence[Any] | None = None,
    ) -> C:
        """Learn to label texts; an earlier fit is discarded.

        Parameters
        ----------
        X : path, or iterable of str or of lists of str
            n texts, as in `FastText.fit`.  In a text file each line begins with its labels, such as
            ``__label__sport``.
        y : sequence or array of str, int, bool or float; or the name of a column
            n labels, or the name of their column in X.  For tables in files (see `column`) the
            name of their column of labels, which are read as str.  Leave it out for text files.
            Or soft labels: n mappings from labels to weights, also in a column; or a matrix, dense
            or sparse, or a DataFrame (n, classes) of probabilities.
        sample_weight : array-like of n numbers; or the name of a column, optional
            Weights of the texts, 0 to 1,000,000: 2 counts as the text twice, 0 leaves it out.
        column : str
            Column with the texts, if X is a table, or a file that is one.
        classes : sequence, optional
            All labels that y may have.  One without a text has a column, of probability 0.  Labels
            of the columns of y, if y is a matrix; by default their names, or numbers from 0.  Names
            of a table's columns may be in any order.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A parameter is unknown, of the wrong type or out of range.
        DataError
            X is not text or is empty; y has another length, mixed types or missing labels.
        ClusterError
            The job failed; the estimator keeps its earlier model.
        """
        return self._learn(Data(X, y, sample_weight, classes, column=column))

    def partial_fit(
        self: C,
        X: Any,
        y: Any = None,
        classes: Sequence[Any] | None = None,
        *,
        sample_weight: Any = None,
        column: str = "",
        epochs: int | None = None,
    ) -> C:
        """Continue training on other texts: words and labels keep their rows, new ones are added.

        The first call does what `fit` does.

        Parameters
        ----------
        X, y, sample_weight, column
            As in `fit`.
        classes : sequence, optional
            As in `fit`.  Unlike in scikit-learn, new labels may come in any call that does not name
            them.
        epochs : int, optional
            Passes over X; by default the parameter `epochs`.  Use 1 for small batches of a stream.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            As in `fit`; or `dim`, `loss` or an n-gram parameter differs from the fitted model's.
        DataError, ClusterError
            As in `fit`.

        Notes
        -----
        The learning rate falls from `lr` to 0 in each call, and each call writes and reads the
        whole model: batches of at least a few megabytes are worth it.
        """
        data = Data(X, y, sample_weight, classes, column=column, continues=True)
        return self._learn(data, epochs)

    def autotune(
        self: C,
        X: Any,
        y: Any = None,
        *,
        validation: Any = None,
        sample_weight: Any = None,
        column: str = "",
        metric: str = "f1",
        predictions: int = 0,
        size: int | str = 0,
        seconds: float = 300.0,
        trials: int = 0,
        threads: int = 0,
    ) -> C:
        """Choose rate, epochs, dimension and n-grams by short trainings, then `fit` with them.

        Parameters
        ----------
        X, y, sample_weight, column
            As in `fit`; read several times.
        validation : path, or pair of texts and labels, optional
            Labelled lines that judge each training.  None: the share `held_out` of X.
        metric : str
            ``"f1"``, ``"precision-at-recall:R"`` or ``"recall-at-precision:P"``, R and P from 0 to
            1; for one label with ``:LABEL`` after it, such as ``"f1:__label__sport"``; or
            ``"macro-f1"`` or ``"accuracy"``.
        predictions : int
            Labels predicted for a line, -1: all.  0: 1 for F1, else all.
        size : int or str
            Largest size of a quantised model: bytes, or a text such as ``"2M"``.  Trials are judged
            by such models, and `quantized_` is the fitted model in that size.  0: none.
        seconds : float
            Longest time of the search; the final training comes after it.
        trials : int
            Most trials; if they end in time, a seed gives the same parameters each time.  0: no
            limit.
        threads : int
            Trials at the same time; 0: one per core.

        Returns
        -------
        self
            `tuning_` has the trials, `quantized_` the quantised model.  Parameters that differ from
            their defaults kept their value, the others of lr, epochs, dim, word_ngrams, minn and
            maxn have the chosen one.

        Raises
        ------
        ParameterError, DataError, ClusterError
            As in `fit`.
        DataError
            X can be read only once, there are no validation lines, or no trial was completed.

        Notes
        -----
        Trials run on the cores of this machine, the final training on the cluster.  Ctrl-C ends the
        search; the best settings so far are trained.
        """
        from snailps.estimators.quantizing import shrinks_to
        from snailps.models.classifier.trials import trained_texts
        from snailps.models.classifier.tuning import Effort, Tuner

        data, bound = Data(X, y, sample_weight, column=column), bytes_of(f"{size}", "size")
        held_out = None
        if validation is not None:
            if self.stop_after or self.calibrate:
                raise ParameterError(
                    f"{type(self).__name__}: stop_after and calibrate: the training after the "
                    "search has no validation: set held_out to 0.1, and leave validation out"
                )
            if not is_path(validation) and not (
                isinstance(validation, tuple) and len(validation) == 2
            ):
                raise DataError(
                    "validation: expected a path or a pair of texts and labels, (X, y); got "
                    f"{a_kind(validation)}"
                )
            texts, labels = (validation, None) if is_path(validation) else validation
            # Both texts are read alike.
            held_out = Data(texts, labels, column=column, has_weights=sample_weight is not None)
        chosen, defaults = self.get_params(), self.parameters.defaults
        fixed = {name for name in TUNED if chosen[name] != defaults[name]}
        shrink = shrinks_to(bound, self.seed) if bound else None
        goal = fixed, Metric.of(metric), predictions, Effort(seconds, trials, threads), shrink
        tuning = self._tuned(data, held_out, lambda settings: Tuner(settings, *goal))
        self.set_params(**tuning.settings)
        self._learn(replace(data, epochs_chosen="epochs" not in fixed))
        self.tuning_ = tuning
        if bound:
            shrink = shrinks_to(bound, self.seed, threads or cores())
            with self._settings_of(data, None) as settings:
                texts_of = partial(trained_texts, settings)
                self.quantized_ = self._model.changed(lambda model: shrink(model, texts_of))
        return self

    @contextlib.contextmanager
    def _input_of(self, data: Data) -> Iterator[FitInput]:
        words, X, y = self._words if data.continues else {}, self._whole(data.X, data.y), data.y
        prefix = to_text(self._model.prefix) if data.continues else _PREFIX
        named = [] if data.classes is None else values_of(data.classes)
        extra = [*dict.fromkeys([*(self._extra if data.continues else ()), *named])]
        if is_path(X):
            class_weights, of_texts = self._class_weights(None), {}
        else:
            if isinstance(y, str) and isinstance(X, Iterator):
                raise DataError(
                    f"y: {a_kind(X)} can be read only once, for its texts: give the labels as a "
                    f"list, or a table that has column {y!r:.60}"
                )
            y = list(y) if isinstance(y, Iterator) else y
            soft = soft_labels_of(y, data.classes, X)
            values = values_of(y, X) if soft is None else soft.labels
            if named and (others := [*dict.fromkeys(values).keys() - {*named}]):
                raise DataError(
                    f"y: label {others[0]!r:.60} is not among classes, {named!r:.120}: name all "
                    "labels that will come, or leave classes out"
                )
            every = classes_of(values, [*words]).tolist()
            words = self._words_of(every, self._model if data.continues else None) | words
            bare = {label: word.removeprefix(prefix) for label, word in words.items()}
            class_weights = self._class_weights(words, extra)
            texts = len(values) if soft is None else soft.texts
            y = (
                [bare[value] for value in values]
                if soft is None
                else CountedRows(
                    ({bare[label]: row[label] for label in row} for row in soft.rows), texts
                )
            )
            weights = self._sample_weights(data.sample_weight, X, texts)
            has_weights = data.has_weights or weights is not None or soft is not None
            data = replace(data, sample_weight=weights, has_weights=has_weights)
            of_texts = {"soft_labels": has_weights} if has_weights or self.soft_labels else {}
        data = replace(data, X=X, y=y, label_prefix=prefix)
        with super()._input_of(data) as source:
            settings = {**source.settings, **of_texts, **class_weights}
            if prefix != _PREFIX:
                settings["label"] = prefix
            attributes = {**source.attributes, "_words": words, "_extra": tuple(extra)}
            remarks = [*source.remarks]
            if data.continues and self._model.calibration.matters and not self.calibrate:
                remarks.append(
                    f"{type(self).__name__}: the calibration is of the earlier model: from here on "
                    "probabilities are as trained. Set held_out=.1 and calibrate=True, or "
                    "calibrate the saved model again"
                )
            yield replace(source, settings=settings, attributes=attributes, remarks=remarks)

    @staticmethod
    def _words_of(labels: Sequence[Any], model: LabelModel | None) -> dict[Any, str]:
        """Return the word of each label; `model` is the one that is continued."""
        if model is None or model.says_prefix or not model.labels[0].startswith(model.prefix):
            prefix = _PREFIX if model is None else to_text(model.prefix)
            return {label: prefix + word_of(label) for label in labels}
        # A file that does not say the prefix of its labels has it in `classes_`.
        words, prefix = {label: word_of(label) for label in labels}, to_text(model.prefix)
        if other := [word for word in words.values() if not word.startswith(prefix)]:
            raise DataError(
                f"y: expected labels that begin with {prefix!r:.60}, as all labels of the model "
                f"do, such as {to_text(model.labels[0])!r:.60}; got {other[0]!r:.60}"
            )
        return words

    def _class_weights(
        self, words: Mapping[Any, str] | None, extra: Sequence[Any] = ()
    ) -> dict[str, Any]:
        """Return the setting for `class_weight`; `words` are the words of the labels of y and the
        model, if known, `extra` labels of which there is no text yet."""
        chosen, name = self.class_weight, type(self).__name__
        if isinstance(chosen, Mapping) and words is not None:
            labels = [*dict.fromkeys([*words, *extra])]
            factors = class_weights_of(
                chosen, np.array(labels, object), np.arange(len(labels)), None, name
            )
            assert factors is not None
            of_labels = dict(zip(labels, factors.tolist(), strict=True))
            pairs = ((word, of_labels[label]) for label, word in words.items())
            return {
                "class_weights": [f"{word}={factor!r}" for word, factor in pairs if factor != 1]
            }
        if isinstance(chosen, Mapping):
            return {"class_weights": [f"{label}={weight}" for label, weight in chosen.items()]}
        if chosen is None:
            return {}
        class_weights_of(chosen, np.arange(1), np.arange(1), None, name)
        return {"class_weights": [chosen]}

    @staticmethod
    def _sample_weights(sample_weight: Any, X: Any, texts: int) -> Any:
        """Return the weights of texts in memory; a str names a column of X."""
        if isinstance(sample_weight, str):
            sample_weight = list(elements_of(X, sample_weight).values)
        weights = weights_of(sample_weight, texts)
        return None if weights is None else weights.tolist()

    @staticmethod
    def _whole(X: Any, y: Any) -> Any:
        """Return X in a form that can be read twice if y names a column of it."""
        is_read_once = isinstance(y, str) and hasattr(X, "read_next_batch")
        return whole(X) if is_read_once else native(X)

    def _start(self) -> WarmStart:
        start = super()._start()
        if self._split_seed is None or not self.held_out:
            return start
        shape = {**start.must_match, "seed": self._split_seed}
        return replace(start, must_match=shape, habits=start.habits | {"seed"})

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: the quantised model travels as the bytes of its .ftz."""
        state = super().__getstate__()
        small = state.pop("quantized_", None)
        if small is self.__dict__.get("_model"):  # which had too few rows to be quantised
            state["_ftz"] = None if small is None else b""
        elif small is not None:
            state["_ftz"], _ = file_bytes(small, "model.ftz")
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """From pickle."""
        data = state.pop("_ftz", None)
        super().__setstate__(state)
        if data is not None:
            self.quantized_ = self._of_bytes("model.ftz", data) if data else self._model

    def _learned(self, done: FinishedJob, source: FitInput) -> dict[str, Any]:
        """Return model and labels together; if a label is of another type, neither is set."""
        attributes = super()._learned(done, source)
        attributes["_split_seed"] = self.seed if self.held_out else None
        attributes["quantized_"] = None  # of an earlier model
        of_source = source.attributes
        return attributes | self._named(
            attributes["_model"], of_source["_words"], of_source["_extra"]
        )

    def _remarks_on(self, figures: Mapping[str, Any]) -> Iterator[str | Warning]:
        yield from super()._remarks_on(figures)
        is_long = self.get_params()["epochs"] == "auto" and figures.get("epochs", 0) >= MANY_EPOCHS
        if is_long and next(long_fits) == MANY_FITS:  # once a process: it is a hint
            log.warning(
                "%s: %d fits with epochs='auto' made %d epochs or more each. In a search of "
                "parameters set epochs, such as 30, or call autotune, which tries short ones",
                type(self).__name__, MANY_FITS, MANY_EPOCHS,
            )  # fmt: skip

    @staticmethod
    def _named(model: LabelModel, known: Mapping[Any, str], extra: Sequence[Any]) -> dict[str, Any]:
        """Return attributes of the labels that a model has, as values of the type of `known`, and
        of labels of which there was no text.
        """
        labels = {word: label for label, word in known.items()}
        prefix = to_text(model.prefix) if model.says_prefix else _PREFIX
        kind = type(next(iter(known), ""))
        places = {word: place for place, word in enumerate(map(to_text, model.labels))}
        of_words = {
            labels[word] if word in labels else known_label(word, kind, prefix): word
            for word in places
        }
        classes = classes_of(of_words, extra)
        words = {label: of_words[label] for label in classes.tolist() if label in of_words}
        of_classes = [places[words[label]] if label in words else -1 for label in classes.tolist()]
        return {
            "classes_": classes,
            "_words": words,
            "_extra": tuple(label for label in extra if label not in words),
            "_columns": np.array(of_classes, np.int64),
        }

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Return the probability of each class.

        Parameters
        ----------
        X : iterable of str or of lists of str, or a table with the column of `fit`
            n texts.

        Returns
        -------
        float32 (n, classes)
            In the order of `classes_`; a row sums to 1.  A text without a known word has only its
            end of line ``</s>`` as input, as in fastText; if the model lacks that word too, it gets
            the shares of the labels in the training text.

        Raises
        ------
        NotFitted
            `fit` was not called.
        DataError
            X is a single str, or an element is missing or not text.
        ModelFileError
            Words of X have rows with NaN or infinity.
        """
        pieces = list(self._pieces_of_chances(X, "predict_proba"))
        if not pieces:
            return np.empty((0, len(self.classes_)), np.float32)
        return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]

    def _pieces_of_chances(self, X: Any, what: str) -> Iterator[NDArray[np.float32]]:
        """Yield `predict_proba` for some texts at a time, because n x classes may be very large."""
        self._refuse_unfitted(what)
        counts = self._model.label_counts[self._columns].astype(np.float32)
        counts[self._columns < 0] = 0
        counts /= max(1.0, float(counts.sum()))
        lines = lines_of(X, self._text_column(X), what)
        for of_labels in self._model.probability_pieces(lines, strict=True):
            chances = of_labels[:, self._columns]
            chances[np.isnan(chances[:, :1]).any(axis=1)] = counts
            chances[:, self._columns < 0] = 0
            chances /= np.maximum(chances.sum(axis=1, keepdims=True), np.float32(1e-30))
            yield chances

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most probable class of each text.

        Scores are compared, as by `LabelModel.predict`: where two probabilities are rounded to the
        same number (near 1 with `ova`), the label with the higher score wins.

        Parameters
        ----------
        X : iterable of str or of lists of str, or a table with the column of `fit`
            n texts.

        Returns
        -------
        array (n,)
            Values of `classes_`.  A text of which the model knows neither a word nor the end of
            line gets the most frequent label.

        Raises
        ------
        NotFitted
            `fit` was not called.
        DataError
            X is a single str, or an element is missing or not text.
        ModelFileError
            Words of X have rows with NaN or infinity.
        """
        self._refuse_unfitted("predict")
        lines = lines_of(X, self._text_column(X), "predict")
        best = self._model.predict_arrays(lines, strict=True)[0][:, 0]
        best[best < 0] = self._model.label_counts.argmax()
        learnt = np.flatnonzero(self._columns >= 0)
        places = np.empty_like(learnt)
        places[self._columns[learnt]] = learnt
        classes: NDArray[Any] = self.classes_[places[best]]
        return classes

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy: the share of texts whose class is predicted right, 0 to 1.

        Parameters
        ----------
        X : object
            n texts, as in `predict`.
        y : sequence or array, or the name of a column of X
            n labels of the type of `classes_`.
        sample_weight : array-like of n numbers, optional

        Raises
        ------
        DataError
            y has another length than X, or labels of another type than the model's.
        """
        X = self._whole(X, y)
        predicted = self.predict(X)
        values = values_of(y if isinstance(y, str) else one_axis(y, type(self).__name__), X)
        return accuracy(predicted.tolist(), values, weights_of(sample_weight, len(predicted)))

    @property
    def wv(self) -> Vectors:
        """The words and their vectors; raises `NotFitted` before `fit`."""
        self._refuse_unfitted("wv")
        return self._model.wv

    @classmethod
    def load(cls: type[C], path: str | os.PathLike[str], **parameters: Any) -> C:
        """Open a .bin file of snailps or fastText as a fitted estimator.

        Parameters
        ----------
        path : path
        **parameters
            As in `FastText.load`; and ``classes``, the labels with their types in `fit`.  Without
            it they are str, because the file stores them as text.

        Raises
        ------
        ModelFileError, ParameterError
            As in `FastText.load`.
        DataError
            A label of the file is not among `classes`.
        """
        classes = parameters.pop("classes", None)
        return cls._loaded(path, parameters, classes)

    @classmethod
    def _saved(
        cls, path: str | os.PathLike[str], parameters: Mapping[str, Any], classes: Any = None
    ) -> dict[str, Any]:
        attributes = super()._saved(path, parameters)
        labels = [] if classes is None else values_of(classes)
        model: LabelModel = attributes["_model"]
        attributes |= cls._named(model, cls._words_of(labels, model), labels)
        others = [label for label in attributes["classes_"].tolist() if label not in labels]
        if classes is not None and others:
            raise DataError(f"{path}: has the label {others[0]!r:.60}, which is not among classes")
        return attributes

    @staticmethod
    def _open(path: str | os.PathLike[str], file: IO[bytes] | None = None) -> LabelModel:
        return LabelModel(path, file=file)
