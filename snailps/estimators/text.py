"""Labels of texts, as an estimator: `TextClassifier`, fastText's supervised mode.

    texts, labels -> fit -> classes_, predict, predict_proba     more, and new labels -> partial_fit

What training means is `models.classifier`'s; how a line is classified, `vectors`'.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.data.elements import elements_of
from snailps.data.label_words import label_of, word_of
from snailps.data.vocabulary import LABEL_PREFIX
from snailps.errors import DataError
from snailps.estimators.corpus import columns_of, corpus, is_path, line_of
from snailps.estimators.labels import classes_of, values_of
from snailps.estimators.text_base import TextEstimator
from snailps.models.classifier.settings import ClassifierSettings
from snailps.vectors import BinHeader, Vectors
from snailps.vectors.label_prediction import LabelModel
from snailps.vectors.words import to_text

C = TypeVar("C", bound="TextClassifier")
_PREFIX = LABEL_PREFIX.decode()


class TextClassifier(TextEstimator, settings=ClassifierSettings, without=("label",)):
    """Labels of texts, from the mean of the vectors of their words: fast, for very many labels.

    Parameters
    ----------
    dim, loss, lr, word_ngrams, minn, maxn, bucket, negatives, min_count, min_count_label, epochs
        Of the training; docs/settings.md says what they do, and what the others are for.
    cluster, workers, callbacks, verbose
        As of `FastText`.

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
    _opened = ("_labels",)
    classes_: NDArray[Any]
    _labels: LabelModel
    _words: dict[Any, str]
    _columns: NDArray[np.int64]

    def fit(self: C, X: Any, y: Any = None, *, column: str = "") -> C:
        """Learns labels of texts; forgets what was learnt before.

        Parameters
        ----------
        X : path, or sequence or iterable of str or of lists of str
            Texts, as of `FastText.fit`.  In a file each line begins with its labels, as
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
        return self._learn(X, y, column, goes_on=False)

    def partial_fit(
        self: C, X: Any, y: Any = None, classes: object = None, *, column: str = ""
    ) -> C:
        """Goes on with other texts: words and labels keep their rows, new ones are added.

        Parameters
        ----------
        X, y, column
            As of `fit`.
        classes : None
            Has no effect; scikit-learn's `partial_fit` must know all labels at first.

        Notes
        -----
        Trains `epochs` times over X, with a learning rate that falls from `lr` to 0.  Not fitted
        yet, it does what `fit` does.

        Raises
        ------
        ParameterError
            dim, loss or n-grams were changed since the last fit.
        """
        return self._learn(X, y, column, goes_on=self._is_fitted)

    def _learn(self: C, X: Any, y: Any, column: str, *, goes_on: bool) -> C:
        known = self._words if goes_on else {}
        if is_path(X):
            columns = columns_of(X, column, y)
            with corpus(X, labels=None if columns else y) as given:
                self._train(given, goes_on=goes_on, columns=columns)
            self._name_classes(known)
            return self
        values = values_of(y, X)
        words = {label: _PREFIX + word_of(label) for label in classes_of(values, [*known]).tolist()}
        words |= known
        bare = {label: word.removeprefix(_PREFIX) for label, word in words.items()}
        with corpus(X, labels=[bare[value] for value in values], column=column) as given:
            self._train(given, goes_on=goes_on, columns={})
        self._name_classes(words)
        return self

    def _name_classes(self, known: Mapping[Any, str]) -> None:
        """Sets `classes_`: the labels that the model has learnt.

        Parameters
        ----------
        known : mapping
            Label -> its word in the model; the label of any other word is a str.
        """
        labels = {word: label for label, word in known.items()}
        learnt = [to_text(word) for word in self._labels.labels]
        of_words = {labels.get(word, label_of(word)): word for word in learnt}
        places = {word: place for place, word in enumerate(learnt)}
        self.classes_ = classes_of(of_words)
        self._words = {label: of_words[label] for label in self.classes_.tolist()}
        self._columns = np.array([places[word] for word in self._words.values()], np.int64)

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """The probability of each class.

        Parameters
        ----------
        X : sequence or iterable of str or of lists of str
            n texts.

        Returns
        -------
        float32 (n, classes)
            In the order of `classes_`; rows sum up to 1.  A text without a known word gets the
            shares of the labels in the training text.
        """
        self._refuse_unfitted("predict_proba")
        if isinstance(X, (str, bytes)):
            raise DataError(f"predict: expected a list of texts, got one: [{X!r:.60}]")
        lines = [line_of(text) for text in elements_of(X, what="X").values]
        chances = self._labels.probabilities(lines)[:, self._columns]
        counts = self._labels.label_counts[self._columns].astype(np.float32)
        chances[np.isnan(chances).any(axis=1)] = counts
        chances /= np.maximum(chances.sum(axis=1, keepdims=True), np.float32(1e-30))
        return chances

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each text, (n,)."""
        best = self.predict_proba(X).argmax(axis=1)
        classes: NDArray[Any] = self.classes_[best]
        return classes

    def score(self, X: Any, y: Any) -> float:
        """The share of texts whose class is predicted right, 0 to 1."""
        values = values_of(y, X)
        said = self.predict(X).tolist()
        if len(said) != len(values):
            raise DataError(f"y: expected {len(said):,} labels, one a text; got {len(values):,}")
        if not values:
            raise DataError("score: expected some texts, got none")
        right = sum(bool(one == other) for one, other in zip(said, values, strict=True))
        return right / len(said)

    @property
    def wv(self) -> Vectors:
        """The words of the texts and their vectors."""
        self._refuse_unfitted("wv")
        return self._labels.wv

    @classmethod
    def load(cls: type[C], path: str | os.PathLike[str], **parameters: Any) -> C:
        """An estimator of a .bin file, as `FastText.load`; its classes are str."""
        estimator = super().load(path, **parameters)
        estimator._name_classes({})
        return estimator

    def _open(self, path: str | os.PathLike[str]) -> None:
        self._labels = LabelModel(path)

    def _write(self, path: str | os.PathLike[str]) -> None:
        self._labels.save(path)

    @staticmethod
    def _shape_of(header: BinHeader) -> dict[str, Any]:
        shape: dict[str, Any] = {
            "dim": header.dim,
            "loss": header.loss,
            "word_ngrams": max(header.word_ngrams, 1),
        }
        if header.maxn < max(header.minn, 1):
            shape |= {"maxn": 0}
        else:
            shape |= {"minn": max(header.minn, 1), "maxn": header.maxn}
        return shape if header.bucket == 0 else {**shape, "bucket": header.bucket}

    def __sklearn_tags__(self) -> Any:
        """For `sklearn.utils.get_tags`, which has imported scikit-learn."""
        from sklearn.utils import ClassifierTags

        tags = super().__sklearn_tags__()
        tags.estimator_type = "classifier"
        tags.classifier_tags = ClassifierTags()
        tags.target_tags.required = True
        return tags
