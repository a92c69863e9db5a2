"""Word vectors as estimators: `FastText`, `Word2Vec`.

    sentences -> fit -> .wv, a `Vectors`        more sentences -> partial_fit -> new words, too
    sentences -> transform -> sentence vectors

What training means is `models.word_vectors`'; what vectors can do, `vectors`'.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.errors import DataError, ModelFileError
from snailps.estimators.corpus import columns_of, corpus, line_of
from snailps.estimators.text_base import TextEstimator
from snailps.models.word_vectors.settings import WordVectorSettings
from snailps.vectors import BinHeader, Vectors, read_bin

W = TypeVar("W", bound="WordEstimator")
_NO_PARAMETERS = ("formats", "validation_words")


class WordEstimator(TextEstimator):
    """Word vectors that are learnt from sentences.

    Attributes
    ----------
    wv : Vectors
        The words and their vectors, once fitted.
    """

    worker_class = "snailps.models.word_vectors:WordVectors"
    job_settings = MappingProxyType({"formats": ("bin",)})
    _opened = ("_wv",)
    _wv: Vectors

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
            Which column, if X is a table, or files that are tables: Parquet, JSON lines, CSV.

        Raises
        ------
        ParameterError
            A parameter is wrong.
        DataError
            X is no text, or empty.
        ClusterError
            The job failed; the estimator is what it was before.
        """
        with corpus(X, column=column) as given:
            self._train(given, goes_on=False, columns=columns_of(X, column))
        return self

    def partial_fit(self: W, X: Any, y: object = None, *, column: str = "") -> W:
        """Goes on with another text: words keep their rows and counts, new ones are added.

        Parameters
        ----------
        X, y, column
            As of `fit`.

        Notes
        -----
        Trains `epochs` times over X, with a learning rate that falls from `lr` to 0.  New words
        need `min_count` occurrences in X.  Not fitted yet, it does what `fit` does.

        Raises
        ------
        ParameterError
            dim, model or subwords were changed since the last fit.
        """
        with corpus(X, column=column) as given:
            self._train(given, goes_on=self._is_fitted, columns=columns_of(X, column))
        return self

    @property
    def wv(self) -> Vectors:
        """The words and their vectors."""
        self._refuse_unfitted("wv")
        return self._wv

    def transform(self, X: Iterable[Any]) -> NDArray[np.float32]:
        """Sentence vectors: means of the unit vectors of each sentence's words.

        Parameters
        ----------
        X : iterable of str or of lists of str
            n sentences.

        Returns
        -------
        float32 (n, dim)
            Zeros where no word is known.
        """
        self._refuse_unfitted("transform")
        if isinstance(X, (str, bytes)):
            raise DataError(f"transform: expected a list of sentences, got one: [{X!r:.60}]")
        return self._wv.sentence_vectors(line_of(sentence) for sentence in X)

    def fit_transform(self, X: Any, y: object = None) -> NDArray[np.float32]:
        """`fit`, then `transform` of the same sentences, which must not be a generator."""
        return self.fit(X, y).transform(X)

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Names of the columns of `transform`."""
        self._refuse_unfitted("get_feature_names_out")
        name = type(self).__name__.lower()
        return np.array([f"{name}{number}" for number in range(self._wv.dim)], object)

    def _open(self, path: str | os.PathLike[str]) -> None:
        model = read_bin(path)
        if model.header.model == "supervised":
            raise ModelFileError(
                f"{path}: holds a classifier, not word vectors: snailps.load(path).wv has those of "
                "its words"
            )
        self._wv = Vectors.of_model(model)

    def _write(self, path: str | os.PathLike[str]) -> None:
        self._wv.save(path)

    @staticmethod
    def _shape_of(header: BinHeader) -> dict[str, Any]:
        if header.bucket == 0 or header.maxn < max(header.minn, 1):
            return {"dim": header.dim, "model": header.model, "maxn": 0}
        return {
            "dim": header.dim,
            "model": header.model,
            "minn": max(header.minn, 1),
            "maxn": header.maxn,
            "bucket": header.bucket,
        }


class FastText(WordEstimator, settings=WordVectorSettings, without=_NO_PARAMETERS):
    """Word vectors with subwords: unknown words have vectors, too.

    Parameters
    ----------
    dim, model, loss, window, negatives, lr, sample, min_count, minn, maxn, bucket, epochs, ...
        Of the training; docs/settings.md says what they do, and what the others are for.
    cluster : Cluster, optional
        Where to train; by default that of the innermost ``with`` block, or one of this process.
    workers : int, optional
        Of the latter.
    callbacks : sequence of callables
        Each is given a dict during the training; False ends it early, an error ends the job.
    verbose : bool or "auto"
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
    fixed={"maxn": 0},
    without=("minn", "bucket", *_NO_PARAMETERS),
):
    """Word vectors without subwords.

    Parameters
    ----------
    dim, model, loss, window, negatives, lr, sample, min_count, max_vocab, epochs
        Of the training, as of `FastText`.
    cluster, workers, callbacks, verbose
        As of `FastText`.

    Examples
    --------
    >>> model = Word2Vec(dim=16, min_count=1).fit([["north", "wind"]] * 500)  # doctest: +SKIP
    >>> "wind" in model.wv  # doctest: +SKIP
    True
    """
