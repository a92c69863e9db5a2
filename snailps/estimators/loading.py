"""Opens whatever this product or fastText wrote: ``snailps.load``.

file of word vectors, of a classifier of text -> vectors.loading.load -> Vectors, LabelModel
.npz of a knowledge graph, of a matrix factorisation -> embedding_of -> GraphModel, FactorModel
.npz of rows by feature, of a network -> estimator_of -> LogisticRegression, FMClassifier, ...

Knows which estimator reads which model's file; what is in one, `sparse` and `vectors` know.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from snailps.errors import ModelFileError
from snailps.vectors.loading import load as load_text_model
from snailps.vectors.npz import settings_of

if TYPE_CHECKING:
    from snailps.estimators.sparse import SparseEstimator
    from snailps.models.embeddings.queries import FactorModel, GraphModel
    from snailps.vectors.label_prediction import LabelModel
    from snailps.vectors.query import Vectors

_READERS: Mapping[str, tuple[str, str]] = {
    "snailps.models.sparse.linear:Linear": ("LogisticRegression", "LinearRegression"),
    "snailps.models.sparse.fm:FactorizationMachine": ("FMClassifier", "FMRegressor"),
    "snailps.models.sparse.net:Net": ("SparseNetClassifier", ""),
    "snailps.models.mlp:Mlp": ("MLPClassifier", ""),
}
"""By model: the estimator of its files, and that of those whose loss is squared."""
_NAMES = {name for names in _READERS.values() for name in names}
_NO_SUCH_FILE = (
    OSError, EOFError, KeyError, RuntimeError, TypeError, ValueError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip
_BYTES_MAX = 1 << 20
"""Of an array that describes a file; models have a few KB."""


def load(
    path: str | os.PathLike[str],
    *,
    words: str | os.PathLike[str] | Sequence[str] | Sequence[bytes] | None = None,
) -> Vectors | LabelModel | SparseEstimator | GraphModel | FactorModel:
    """Open a model's file for queries or predictions.

    Parameters
    ----------
    path : path
        Judged by its contents, not by its name.

        - fastText's .bin or .ftz (quantised, pruned), ours too: word vectors, or a classifier.
        - .vec, or word2vec's text: a first line ``words dim``.
        - word2vec's binary; GloVe's text, without a first line.
        - .npz: our vectors, and federated averaging's OUTPUT.weights.npz.
        - .npz of linear models, factorization machines and networks, which an estimator's `save`
          or ``snailps train`` wrote.
        - .npz of ``snailps train kge`` and ``mf``, and of `KnowledgeGraph` and
          `MatrixFactorization`.
        - each of them but the last packed by gzip.
    words : path or sequence of words, optional
        For vectors of federated averaging that were saved without words: the job's vocab.txt.

    Returns
    -------
    Vectors, LabelModel, GraphModel, FactorModel or estimator
        An estimator is fitted; its own ``load`` takes parameters and the names of classes.

    Raises
    ------
    ModelFileError
        Missing, unreadable, damaged, cut short or of another kind: the text says which, and what
        reads it.
    DataError
        `words` were given for a file that has words.

    Notes
    -----
    A .bin and a .npz of vectors are mapped, not read; a .npz is read through once to compare its
    checksum.  Other files are read into memory.  A .gz is unpacked into a temporary file (in
    TMPDIR), which is gone with the object.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("compass.vec").write_text("2 3\\nnorth 0 1 0\\neast 1 0 0\\n")
    >>> wv = load("compass.vec")
    >>> wv
    Vectors(2 words, dim 3)
    >>> wv["east"]
    array([1., 0., 0.], dtype=float32)
    """
    if words is None and estimator_of(path):
        return rows_model_of(path)
    if words is None and (embeddings := embedding_of(path)) is not None:
        return embeddings
    return load_text_model(path, words=words)


def rows_model_of(path: str | os.PathLike[str]) -> SparseEstimator:
    """The fitted estimator of a file.

    Raises
    ------
    ModelFileError
        It is no file of such a model; the text says what it is.
    """
    name = estimator_of(path)
    if not name:
        from snailps.models.sparse.export import read_npz

        read_npz(os.fspath(path))  # says what it is
        raise ModelFileError(f"{path}: expected a model of examples that snailps knows")
    reader: type[SparseEstimator] = getattr(importlib.import_module("snailps.estimators"), name)
    return reader.load(path)


def embedding_of(path: str | os.PathLike[str]) -> GraphModel | FactorModel | None:
    """The model of a knowledge graph or a matrix factorisation; None: it is no such file."""
    worker_class = _model_of(path)
    if not worker_class:
        return None
    from snailps.models.embeddings import queries

    name = queries.READERS.get(worker_class)
    if name is None:
        return None
    model: GraphModel | FactorModel = getattr(queries, name)(path)
    return model


def _model_of(path: str | os.PathLike[str]) -> str:
    """`worker_class` of a file that says one; else empty."""
    try:
        with zipfile.ZipFile(path) as archive:
            return str(settings_of(_bytes_of(archive, "about"))["worker_class"])
    except _NO_SUCH_FILE:
        return ""


def estimator_of(path: str | os.PathLike[str]) -> str:
    """Name of the estimator that reads a file; empty: none, or it is no such file."""
    try:
        with zipfile.ZipFile(path) as archive:
            if "about.npy" not in archive.namelist():
                return ""
            settings = settings_of(_bytes_of(archive, "about"))
            if "estimator.npy" in archive.namelist():
                saved = json.loads(_bytes_of(archive, "estimator").tobytes())["class"]
                return saved if saved in _NAMES else ""
            names = _READERS.get(str(settings["worker_class"]), ("", ""))
    except _NO_SUCH_FILE:  # whatever it is, reading it as a file of vectors says so
        return ""
    return names[settings.get("loss") == "squared"]


def _bytes_of(archive: zipfile.ZipFile, name: str) -> Any:
    """The bytes of an array of the archive; the head of a wrong file may announce any size."""
    with archive.open(f"{name}.npy") as member:
        head = io.BytesIO(member.read(_BYTES_MAX))
    np.lib.format.read_magic(head)
    np.lib.format.read_array_header_1_0(head)
    return np.frombuffer(head.read(), np.uint8)
