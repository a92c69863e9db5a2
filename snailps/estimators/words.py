"""Word vectors as estimators: `FastText`, `Word2Vec`.

    sentences -> fit -> .wv, a `Vectors`        more sentences -> partial_fit -> new words, too
    sentences -> transform -> sentence vectors

Owns parameters and conventions.  `models.word_vectors` trains; `vectors` answers queries.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.data.elements import a_kind, native, whole
from snailps.errors import DataError, ModelFileError, ParameterError, convergence_warning
from snailps.estimators.base import Data
from snailps.estimators.corpus import lines_of
from snailps.estimators.text_base import OF_TEXT, TextEstimator
from snailps.files.extras import optional_module
from snailps.models.word_vectors.settings import WordVectorSettings
from snailps.node.phrases import few_words
from snailps.vectors.fasttext_bin import read_bin
from snailps.vectors.query import Vectors

W = TypeVar("W", bound="WordEstimator")
_FIXED = {"formats": ("bin",)}


class WordEstimator(TextEstimator):
    """Word vectors learned from sentences.

    Attributes
    ----------
    wv : Vectors
        The words and their vectors; set by `fit`.
    """

    worker_class = "snailps.models.word_vectors:WordVectors"
    _model: Vectors
    _output: str | None = None

    def fit(self: W, X: Any, y: object = None, *, column: str = "") -> W:
        """Learn word vectors from sentences; an earlier fit is discarded.

        Parameters
        ----------
        X : path, or iterable of str or of lists of str
            n sentences, each a str (split at white space) or a list of words: a list, generator,
            array, or a column of pandas, polars or pyarrow.  A single str or `pathlib.Path` is a
            file, folder, glob or URL, with one sentence a line.
        y : None
            Ignored; scikit-learn's pipelines pass it.
        column : str
            Column with the sentences, if X is a table, or a file that is one (Parquet, Arrow, ORC,
            JSON lines, CSV).

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A parameter is unknown, of the wrong type or out of range.
        DataError
            X is not text, is empty, or no word occurs `min_count` times.
        ClusterError
            The job failed; the estimator keeps its earlier model.
        """
        return self._learn(Data(X, column=column))

    def partial_fit(
        self: W, X: Any, y: object = None, *, column: str = "", epochs: int | None = None
    ) -> W:
        """Continue training on other sentences: words keep rows and counts, new words are added.

        The first call does what `fit` does.

        Parameters
        ----------
        X, y, column
            As in `fit`.
        epochs : int, optional
            Passes over X; by default the parameter `epochs`.  Use 1 for small batches of a stream.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            As in `fit`; or `dim`, `model` or a subword parameter differs from the fitted model's.
        DataError, ClusterError
            As in `fit`.

        Notes
        -----
        The learning rate falls from `lr` to 0 in each call, and each call writes and reads the
        whole model: batches of at least a few megabytes are worth it.  A new word must occur
        `min_count` times in X; occurrences in earlier calls do not count.
        """
        return self._learn(Data(X, column=column, continues=True), epochs)

    def _remarks_on(self, figures: Mapping[str, Any]) -> Iterator[str | Warning]:
        yield from super()._remarks_on(figures)
        if text := few_words(figures):
            advice = f"train more (epochs={figures['wants_epochs']})"
            yield convergence_warning(f"{type(self).__name__}: {text}: {advice}")

    @property
    def wv(self) -> Vectors:
        """The words and their vectors; raises `NotFitted` before `fit`."""
        self._refuse_unfitted("wv")
        return self._model

    def transform(self, X: Any) -> Any:
        """Compute sentence vectors: the mean of the unit vectors of a sentence's words.

        Parameters
        ----------
        X : iterable of str or of lists of str, or a table with the column of `fit`
            n sentences.

        Returns
        -------
        numpy.ndarray or DataFrame
            float32 (n, dim); zeros for a sentence without a known word.  A DataFrame after
            `set_output`.

        Raises
        ------
        NotFitted
            `fit` was not called.
        DataError
            X is a single str, or an element is missing or not text.
        """
        self._refuse_unfitted("transform")
        vectors = self._model.sentence_vectors(lines_of(X, self._text_column(X), "transform"))
        if self._output in (None, "default"):
            return vectors
        library = optional_module(self._output, "set_output", self._output)
        names = self.get_feature_names_out().tolist()
        if self._output == "polars":
            return library.DataFrame(vectors, schema=names)
        index = getattr(X, "index", None)  # of a frame; `list.index` is a method
        return library.DataFrame(vectors, columns=names, index=None if callable(index) else index)

    def fit_transform(self, X: Any, y: object = None) -> Any:
        """Call `fit`, then `transform` on the same sentences.

        Raises
        ------
        DataError
            X is a generator or another iterator, which can be read only once.
        """
        X = whole(X) if hasattr(X, "read_next_batch") else native(X)
        if isinstance(X, Iterator):
            raise DataError(
                f"fit_transform: {a_kind(X)} can be read only once: give a list, list(X), or call "
                "fit and transform"
            )
        return self.fit(X, y).transform(X)

    def set_output(self: W, *, transform: str | None = None) -> W:
        """Choose what `transform` returns.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"}, optional
            "default": an array.  None leaves the choice as it is.

        Raises
        ------
        ParameterError
            Any other value.
        """
        if transform not in (None, "default", "pandas", "polars"):
            raise ParameterError(
                f"{type(self).__name__}: set_output: expected 'default', 'pandas' or 'polars', got "
                f"{transform!r:.80}"
            )
        self._output = transform or self._output
        return self

    def __sklearn_clone__(self: W) -> W:
        """For `sklearn.clone`: keeps the choice of `set_output`."""
        clone = super().__sklearn_clone__()
        if self._output is not None:
            clone._output = self._output
        return clone

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Return the names of the `dim` columns of `transform`: ``fasttext0``, ``fasttext1``, ...

        `input_features` is ignored.
        """
        self._refuse_unfitted("get_feature_names_out")
        name = type(self).__name__.lower()
        return np.array([f"{name}{number}" for number in range(self._model.dim)], object)

    @staticmethod
    def _open(path: str | os.PathLike[str], file: IO[bytes] | None = None) -> Vectors:
        model = read_bin(path, file=file)
        if model.header.model == "supervised":
            raise ModelFileError(
                f"{path}: holds a classifier, not word vectors: snailps.load(path).wv has the "
                "vectors of its words"
            )
        model.header.refuse_floret(path)
        return Vectors.of_model(model)


class FastText(
    WordEstimator,
    settings=WordVectorSettings,
    fixed=_FIXED,
    without=("validation_words",),
    extra=OF_TEXT,
):
    """Word vectors with subwords (character n-grams), so unknown words have vectors too.

    Parameters
    ----------
    dim, model, loss, window, negatives, lr, sample, min_count, minn, maxn, bucket, epochs, ...
        Settings of the training, described with their ranges in docs/settings.md.
    column : str
        Column with the texts, if X is a table.
    pretrained : path
        File of word vectors, of any format that `snailps.load` reads.  Words of the text start with
        its vectors; `dim` is the file's.  `partial_fit` of a fitted model ignores it.
    cluster : Cluster, optional
        Where to train; by default the cluster of the innermost ``with`` block, else the cluster
        that this process starts for itself.
    workers : int, optional
        Number of workers of this process's own cluster; not allowed with another cluster.
    callbacks : callable or sequence of callables
        Called with a dict (phase, epoch, progress, loss, ...) at most five times a second.
        Returning False ends the training early, an exception aborts the job.
    verbose : bool, int or "auto"
        "auto": a progress bar on a terminal and in a notebook, else nothing.  True: lines on
        standard error where no bar can be drawn.  False: nothing.

    Examples
    --------
    >>> sentences = [["north", "wind"], ["south", "wind"]] * 500
    >>> model = FastText(dim=16, min_count=1, bucket=1000).fit(sentences)  # doctest: +SKIP
    >>> model.wv.most_similar("north")[0].word  # doctest: +SKIP
    'south'
    """


class Word2Vec(
    WordEstimator,
    settings=WordVectorSettings,
    fixed={"maxn": 0, **_FIXED},
    without=("minn", "bucket", "validation_words"),
    extra=OF_TEXT,
):
    """Word vectors without subwords: only words of the training text have vectors.

    Parameters
    ----------
    dim, model, loss, window, negatives, lr, sample, min_count, max_vocab, epochs, ...
        Settings of the training, described with their ranges in docs/settings.md.
    column, pretrained, cluster, workers, callbacks, verbose
        As in `FastText`.

    Examples
    --------
    >>> model = Word2Vec(dim=16, min_count=1).fit([["north", "wind"]] * 500)  # doctest: +SKIP
    >>> "wind" in model.wv  # doctest: +SKIP
    True
    """
