"""Opens whatever this product or fastText wrote: ``snailps.load``.

file of word vectors, of a classifier of text -> vectors.files.load_model -> Vectors, LabelModel
.npz of a knowledge graph, of a matrix factorisation -> embedding_of -> GraphModel, FactorModel
.npz of rows by feature, of a network -> fitted_of -> LogisticRegression, FMClassifier, ...

What is in a file, `sparse` and `vectors` know.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from snailps.data.array_archives import DAMAGED
from snailps.errors import ModelFileError
from snailps.estimators import READERS
from snailps.models import reader_of
from snailps.vectors.files import load_model
from snailps.vectors.model_file import ModelFile

if TYPE_CHECKING:
    from snailps.estimators.sparse import SparseEstimator
    from snailps.models.embeddings.queries import FactorModel, GraphModel
    from snailps.vectors.label_prediction import LabelModel
    from snailps.vectors.query import Vectors


def load(
    path: str | os.PathLike[str],
    *,
    words: str | os.PathLike[str] | Sequence[str] | Sequence[bytes] | None = None,
    mapped: bool = True,
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
    mapped : bool
        False: a .bin or .npz is copied into memory, for files that may be written over in place.

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
    checksum.  Replace a mapped file by renaming another one to its name, as everything here does:
    one that is written over in place ends the processes that have it by SIGBUS.  Other files are
    read into memory.  A .gz is unpacked into a temporary file (in TMPDIR), which is gone with the
    object.

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
    kind = kind_of(path) if words is None else ""
    if kind == "examples":
        estimator: SparseEstimator = fitted_of(path)
        return estimator
    if kind == "names" and (embeddings := embedding_of(path)) is not None:
        return embeddings
    return load_model(path, words=words, mapped=mapped)


def kind_of(path: str | os.PathLike[str]) -> str:
    """What the model in an ``.npz`` is of, "examples" or "names"; empty: it is another file."""
    return _reader_of(path)[0]


def fitted_of(path: str | os.PathLike[str]) -> Any:
    """The fitted estimator of a file; what else it is, the error says."""
    _, name = _reader_of(path)
    if not name:
        from snailps.models.sparse.export import read_npz

        read_npz(os.fspath(path))  # says what it is
        raise ModelFileError(f"{path}: expected a model of examples that snailps knows")
    return getattr(importlib.import_module("snailps.estimators"), name).load(path)


def embedding_of(path: str | os.PathLike[str]) -> GraphModel | FactorModel | None:
    """The model of a knowledge graph or a matrix factorisation; None: it is no such file."""
    worker_class = str(_header_of(path)[0].get("worker_class", ""))
    module, _, name = reader_of(worker_class).partition(":")
    if not module:
        return None
    model: GraphModel | FactorModel = getattr(importlib.import_module(module), name)(path)
    return model


def _reader_of(path: str | os.PathLike[str]) -> tuple[str, str]:
    """What an ``.npz`` is of and the name of the estimator that reads it; empty: another file."""
    settings, saved = _header_of(path)
    model, loss = str(settings.get("worker_class")), str(settings.get("loss"))
    for kind, models in READERS.items():
        if saved and any(saved in names.values() for names in models.values()):
            return kind, saved
        if not saved and model in models:
            return kind, models[model].get(loss, models[model][""])
    return "", ""


def _header_of(path: str | os.PathLike[str]) -> tuple[dict[str, Any], str]:
    """Settings of a model's file and the class of the estimator that saved it; empty of others."""
    try:
        with open(path, "rb") as file:
            model, saved = ModelFile(path, file), ""
            settings = model.settings()
            if "estimator.npy" in model.members:
                saved = str(json.loads(model.read("estimator").tobytes())["class"])
            return settings, saved
    except (OSError, *DAMAGED):  # whatever it is, reading it as a file of vectors says so
        return {}, ""
