"""Word vectors as estimators: `FastText`, `Word2Vec`.

    sentences -> fit -> .wv, a `Vectors`        more sentences -> partial_fit -> new words, too
    sentences -> transform -> sentence vectors

What training means is `models.word_vectors`'; what vectors can do, `vectors`'.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.data.elements import a_kind, native, whole
from snailps.data.extras import optional_module
from snailps.errors import DataError, ModelFileError, ParameterError
from snailps.estimators.base import Data
from snailps.estimators.corpus import lines_of
from snailps.estimators.text_base import COLUMN, TextEstimator
from snailps.models.word_vectors.settings import WordVectorSettings
from snailps.vectors.fasttext_bin import read_bin
from snailps.vectors.query import Vectors

W = TypeVar("W", bound="WordEstimator")
_FIXED = {"formats": ("bin",)}


class WordEstimator(TextEstimator):
    """Word vectors that are learnt from sentences.

    Attributes
    ----------
    wv : Vectors
        The words and their vectors, once fitted.
    """

    worker_class = "snailps.models.word_vectors:WordVectors"
    _model: Vectors
    _output: str | None = None

    def fit(self: W, X: Any, y: object = None, *, column: str = "") -> W:
        """Learns the vectors of the words of a text; forgets what was learnt before.

        Parameters
        ----------
        X : path, or sequence or iterable of str or of lists of str
            Sentences: str, or lists of words, in a list, generator, array, or column of pandas,
            polars or pyarrow.  A single str or `pathlib.Path`: a file, folder or glob.
        y : None
            Has no effect; pipelines give it.
        column : str
            Which column, if X is a table or files are: Parquet, Arrow, ORC, JSON lines, CSV.

        Raises
        ------
        ParameterError
            A parameter is wrong.
        DataError
            X is no text, or empty.
        ClusterError
            The job failed; the estimator is what it was before.
        """
        return self._learn(Data(X, column=column))

    def partial_fit(
        self: W, X: Any, y: object = None, *, column: str = "", epochs: int | None = None
    ) -> W:
        """Goes on with another text: words keep their rows and counts, new ones are added.

        Parameters
        ----------
        X, y, column
            As in `fit`.
        epochs : int, optional
            Passes over X, instead of the parameter: 1 for small batches of a stream.

        Notes
        -----
        Each call has a learning rate that falls from `lr` to 0, and writes and reads the whole
        model: batches of some megabytes pay.  New words need `min_count` occurrences in X.  Not
        fitted yet, it does what `fit` does.

        Raises
        ------
        ParameterError
            dim, model or subwords were changed since the last fit.
        """
        return self._learn(Data(X, column=column, continues=True), epochs)

    @property
    def wv(self) -> Vectors:
        """The words and their vectors."""
        self._refuse_unfitted("wv")
        return self._model

    def transform(self, X: Any) -> Any:
        """Sentence vectors: means of the unit vectors of each sentence's words.

        Parameters
        ----------
        X : iterable of str or of lists of str, or a table with the column of `fit`
            n sentences.

        Returns
        -------
        float32 (n, dim)
            Zeros where no word is known.  After `set_output` a DataFrame.

        Raises
        ------
        DataError
            It is one sentence, or an element is missing or is no text.
        """
        self._refuse_unfitted("transform")
        found = self._model.sentence_vectors(lines_of(X, self._text_column(X), "transform"))
        if self._output in (None, "default"):
            return found
        library = optional_module(self._output, "set_output", self._output)
        names = self.get_feature_names_out().tolist()
        if self._output == "polars":
            return library.DataFrame(found, schema=names)
        index = getattr(X, "index", None)  # of a frame; a list has a method of that name
        return library.DataFrame(found, columns=names, index=None if callable(index) else index)

    def fit_transform(self, X: Any, y: object = None) -> Any:
        """`fit`, then `transform` of the same sentences.

        Raises
        ------
        DataError
            X can be read only once.
        """
        X = whole(X) if hasattr(X, "read_next_batch") else native(X)
        if isinstance(X, Iterator):
            raise DataError(
                f"fit_transform: {a_kind(X)} can be read only once: give a list, list(X), or call "
                "fit and transform"
            )
        return self.fit(X, y).transform(X)

    def set_output(self: W, *, transform: str | None = None) -> W:
        """Set what `transform` returns: "default" (an array), "pandas", "polars"; None: as before.

        Raises
        ------
        ParameterError
            It is none of these.
        """
        if transform not in (None, "default", "pandas", "polars"):
            raise ParameterError(
                f"{type(self).__name__}: set_output: expected 'default', 'pandas' or 'polars', got "
                f"{transform!r:.80}"
            )
        self._output = transform or self._output
        return self

    def __sklearn_clone__(self: W) -> W:
        """For `sklearn.clone`, which keeps what `set_output` said."""
        made = super().__sklearn_clone__()
        if self._output is not None:
            made._output = self._output
        return made

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Names of the columns of `transform`."""
        self._refuse_unfitted("get_feature_names_out")
        name = type(self).__name__.lower()
        return np.array([f"{name}{number}" for number in range(self._model.dim)], object)

    @staticmethod
    def _open(path: str | os.PathLike[str], file: IO[bytes] | None = None) -> Vectors:
        model = read_bin(path, file=file)
        if model.header.model == "supervised":
            raise ModelFileError(
                f"{path}: holds a classifier, not word vectors: snailps.load(path).wv has those of "
                "its words"
            )
        model.header.refuse_floret(path)
        return Vectors.of_model(model)


class FastText(
    WordEstimator,
    settings=WordVectorSettings,
    fixed=_FIXED,
    without=("validation_words",),
    extra=COLUMN,
):
    """Word vectors with subwords: unknown words have vectors, too.

    Parameters
    ----------
    dim, model, loss, window, negatives, lr, sample, min_count, minn, maxn, bucket, epochs, ...
        Of the training; docs/settings.md says what they do, and what the others are for.
    column : str
        Which column has the texts, if data is a table.
    cluster : Cluster, optional
        Where to train; default: the cluster of the innermost ``with`` block, or this process's own.
    workers : int, optional
        Number of workers of this process's own cluster.
    callbacks : sequence of callables
        Each is given a dict during the training; False ends it early, an error ends the job.
    verbose : bool, int or "auto"
        "auto": a progress bar on terminals and in notebooks; True: elsewhere, lines; False: none.

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
    extra=COLUMN,
):
    """Word vectors without subwords.

    Parameters
    ----------
    dim, model, loss, window, negatives, lr, sample, min_count, max_vocab, epochs
        Of the training, as in `FastText`.
    column, cluster, workers, callbacks, verbose
        As in `FastText`.

    Examples
    --------
    >>> model = Word2Vec(dim=16, min_count=1).fit([["north", "wind"]] * 500)  # doctest: +SKIP
    >>> "wind" in model.wv  # doctest: +SKIP
    True
    """
