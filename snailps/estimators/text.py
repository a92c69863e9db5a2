"""Labels of texts, as an estimator: `TextClassifier`, fastText's supervised mode.

    texts, labels -> fit -> classes_, predict, predict_proba     more, and new labels -> partial_fit

What training means is `models.classifier`'s; how a line is classified, `vectors`'.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.data.elements import a_kind, native, whole
from snailps.data.label_words import word_of
from snailps.data.vocabulary import LABEL_PREFIX
from snailps.errors import DataError
from snailps.estimators.base import Data, Source
from snailps.estimators.corpus import is_path, lines_of
from snailps.estimators.jobs import Finished
from snailps.estimators.labels import accuracy, classes_of, known_label, values_of
from snailps.estimators.text_base import COLUMN, TextEstimator
from snailps.estimators.validation import one_axis, weights_of
from snailps.models.classifier.settings import ClassifierSettings
from snailps.vectors.label_prediction import LabelModel
from snailps.vectors.query import Vectors
from snailps.vectors.words import to_text

C = TypeVar("C", bound="TextClassifier")
_PREFIX = LABEL_PREFIX.decode()


class TextClassifier(
    TextEstimator,
    settings=ClassifierSettings,
    without=("label",),
    extra=COLUMN,
):
    """Labels of texts, from the mean of the vectors of their words: fast, for very many labels.

    Parameters
    ----------
    dim, loss, lr, word_ngrams, minn, maxn, bucket, negatives, min_count, min_count_label, epochs
        Of the training; docs/settings.md says what they do, and what the others are for.
    column : str
        Which column has the texts, if data is a table.
    cluster, workers, callbacks, verbose
        As in `FastText`.

    Attributes
    ----------
    classes_ : array
        The labels, sorted.

    Examples
    --------
    >>> model = TextClassifier(dim=10, epochs=20, lr=0.5)
    >>> model = model.fit(["good film", "bad film"] * 50, [1, 0] * 50)  # doctest: +SKIP
    >>> model.predict(["a good one"])  # doctest: +SKIP
    array([1])
    """

    worker_class = "snailps.models.classifier:Classifier"
    _estimator_type = "classifier"
    classes_: NDArray[Any]
    _model: LabelModel
    _words: dict[Any, str]
    """Labels with their words in the model."""
    _columns: NDArray[np.int64]

    def fit(self: C, X: Any, y: Any = None, *, column: str = "") -> C:
        """Learns labels of texts; forgets what was learnt before.

        Parameters
        ----------
        X : path, or sequence or iterable of str or of lists of str
            Texts, as in `FastText.fit`.  In a file each line begins with its labels, as
            ``__label__sport``.
        y : sequence or array of str, int, bool or float; or the name of a column of X
            A label for each text; none if X is a path, unless `column` names one of tables: then
            the name of the column of labels, which are str then.
        column : str
            Which column has the texts, if X is a table, or files that are tables.

        Raises
        ------
        ParameterError
            A parameter is wrong.
        DataError
            X is no text or empty, or labels are missing.
        ClusterError
            The job failed; the estimator is what it was before.
        """
        return self._learn(Data(X, y, column=column))

    def partial_fit(
        self: C,
        X: Any,
        y: Any = None,
        classes: object = None,
        *,
        column: str = "",
        epochs: int | None = None,
    ) -> C:
        """Goes on with other texts: words and labels keep their rows, new ones are added.

        Parameters
        ----------
        X, y, column
            As in `fit`.
        classes : None
            Has no effect; scikit-learn's `partial_fit` must know all labels at first.
        epochs : int, optional
            Passes over X, instead of the parameter: 1 for small batches of a stream.

        Notes
        -----
        Each call has a learning rate that falls from `lr` to 0, and writes and reads the whole
        model: batches of some megabytes pay.  Not fitted yet, it does what `fit` does.

        Raises
        ------
        ParameterError
            dim, loss or n-grams were changed since the last fit.
        """
        return self._learn(Data(X, y, column=column, continues=True), epochs)

    @contextlib.contextmanager
    def _input_of(self, data: Data) -> Iterator[Source]:
        words, X, y = self._words if data.continues else {}, self._whole(data.X, data.y), data.y
        if not is_path(X):
            if isinstance(y, str) and isinstance(X, Iterator):
                raise DataError(
                    f"y: {a_kind(X)} can be read only once, for its texts: give the labels as a "
                    f"list, or a table that has column {y!r:.60}"
                )
            values = values_of(y, X)
            every = classes_of(values, [*words]).tolist()
            words = {label: _PREFIX + word_of(label) for label in every} | words
            y = [words[value].removeprefix(_PREFIX) for value in values]
        with super()._input_of(replace(data, X=X, y=y)) as source:
            yield replace(source, attributes={**source.attributes, "_words": words})

    @staticmethod
    def _whole(X: Any, y: Any) -> Any:
        """X as a table that can be read twice, where y names a column of it."""
        is_read_once = isinstance(y, str) and hasattr(X, "read_next_batch")
        return whole(X) if is_read_once else native(X)

    def _learned(self, done: Finished, source: Source) -> dict[str, Any]:
        """Model and labels together: neither if a label is of another kind."""
        attributes = super()._learned(done, source)
        return attributes | self._named(attributes["_model"], source.attributes["_words"])

    @staticmethod
    def _named(model: LabelModel, known: Mapping[Any, str]) -> dict[str, Any]:
        """Attributes of the labels that a model has learnt, sorted, of the kind of `known` ones."""
        labels = {word: label for label, word in known.items()}
        kind = type(next(iter(known), ""))
        places = {word: place for place, word in enumerate(map(to_text, model.labels))}
        of_words = {
            labels[word] if word in labels else known_label(word, kind): word for word in places
        }
        classes = classes_of(of_words)
        words = {label: of_words[label] for label in classes.tolist()}
        columns = np.array([places[word] for word in words.values()], np.int64)
        return {"classes_": classes, "_words": words, "_columns": columns}

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """The probability of each class.

        Parameters
        ----------
        X : sequence or iterable of str or of lists of str
            n texts.

        Returns
        -------
        float32 (n, classes)
            In the order of `classes_`; rows sum up to 1.  A text without a known word is judged by
            its end, as by fastText; where the model does not know that, it gets the shares of the
            labels in the training text.
        """
        found = list(self._pieces_of_chances(X, "predict_proba"))
        if not found:
            return np.empty((0, len(self.classes_)), np.float32)
        return np.concatenate(found) if len(found) > 1 else found[0]

    def _pieces_of_chances(self, X: Any, what: str) -> Iterator[NDArray[np.float32]]:
        """Yield `predict_proba` for some texts at a time: there may be very many classes."""
        self._refuse_unfitted(what)
        counts = self._model.label_counts[self._columns].astype(np.float32)
        counts /= max(1.0, float(counts.sum()))
        lines = lines_of(X, self._text_column(X), what)
        for of_labels in self._model.probability_pieces(lines):
            chances = of_labels[:, self._columns]
            chances[np.isnan(chances[:, :1]).any(axis=1)] = counts
            chances /= np.maximum(chances.sum(axis=1, keepdims=True), np.float32(1e-30))
            yield chances

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each text, (n,).

        As `snailps.load(...).predict` it compares scores: where probabilities are equal by
        rounding, as near 1 with `ova`, the label with the higher score is chosen.
        """
        self._refuse_unfitted("predict")
        best = self._model.predict_arrays(lines_of(X, self._text_column(X), "predict"))[0][:, 0]
        best[best < 0] = self._model.label_counts.argmax()
        places = np.empty_like(self._columns)
        places[self._columns] = np.arange(len(places))
        classes: NDArray[Any] = self.classes_[places[best]]
        return classes

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of examples whose class is predicted right, 0 to 1.

        Parameters
        ----------
        X : object
            As in `fit`.
        y : sequence or array
            Labels of the kind of `classes_`.
        sample_weight : array-like, optional
            Of each example.

        Raises
        ------
        DataError
            y has other than one label an example, or labels of another kind than the model.
        """
        X = self._whole(X, y)
        predicted = self.predict(X)
        values = values_of(y if isinstance(y, str) else one_axis(y, type(self).__name__), X)
        return accuracy(predicted.tolist(), values, weights_of(sample_weight, len(predicted)))

    @property
    def wv(self) -> Vectors:
        """The words of the texts and their vectors."""
        self._refuse_unfitted("wv")
        return self._model.wv

    @classmethod
    def load(cls: type[C], path: str | os.PathLike[str], **parameters: Any) -> C:
        """An estimator of a .bin file, as `FastText.load`.

        Parameters
        ----------
        path : path
        **parameters
            Those that the file does not decide; and ``classes``, the labels as they were in `fit`,
            for the file has only text: without, they are str.

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
        words = {label: _PREFIX + word_of(label) for label in labels}
        attributes |= cls._named(attributes["_model"], words)
        others = [label for label in attributes["classes_"].tolist() if label not in labels]
        if classes is not None and others:
            raise DataError(f"{path}: has the label {others[0]!r:.60}, which is not among classes")
        return attributes

    @staticmethod
    def _open(path: str | os.PathLike[str], file: IO[bytes] | None = None) -> LabelModel:
        return LabelModel(path, file=file)
