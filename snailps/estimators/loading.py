"""``snailps.load``: opens any model file of snailps, fastText, word2vec or GloVe.

file of word vectors, of a classifier of text -> vectors.files.load_model -> Vectors, LabelModel
.npz of a knowledge graph, of a matrix factorisation -> embedding_of -> GraphModel, FactorModel
.npz of rows by feature, of a network -> fitted_of -> LogisticRegression, FMClassifier, ...

Owns which class opens a file.  `sparse`, `vectors` and `models.embeddings` know the formats.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from snailps.errors import ModelFileError
from snailps.files.array_archives import DAMAGED
from snailps.files.model_file import ModelFile
from snailps.models import MODELS, Model
from snailps.vectors.files import load_model

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
    """Open a model file for queries or predictions.

    Parameters
    ----------
    path : path
        The contents decide the format, not the name:

        - .bin or .ftz (quantised, pruned) of fastText or snailps: word vectors, or a classifier.
        - .vec, or word2vec's text, whose first line is ``words dim``.
        - word2vec's binary; GloVe's text, without a first line.
        - .npz of word vectors, and OUTPUT.weights.npz of federated averaging.
        - .npz of a linear model, factorization machine or network, from an estimator's `save` or
          ``snailps train``.
        - .npz of a knowledge graph or matrix factorisation, from an estimator's `save` or
          ``snailps train kge`` and ``mf``.
        - any of them compressed by gzip, except the .npz of the last two items.
    words : path or sequence of words, optional
        For vectors of federated averaging that were saved without words: the job's vocab.txt.
    mapped : bool
        False copies a .bin or .npz into memory, for files that may be overwritten in place.

    Returns
    -------
    Vectors
        For word vectors.
    LabelModel
        For a classifier of text.
    GraphModel or FactorModel
        For a knowledge graph or a matrix factorisation.
    fitted estimator
        For other models.  Its own ``load`` also takes parameters and the labels of classes.

    Raises
    ------
    ModelFileError
        The file is missing, unreadable, damaged, cut short or of an unknown kind: the text says
        which, and what reads it.
    DataError
        `words` were given for a file that has words.

    Notes
    -----
    A .bin and a .npz of vectors are memory-mapped; a .npz is read once to compare its checksum.  To
    replace a mapped file, rename another file to its name, as every command here does: overwriting
    it in place kills the processes that have it mapped (SIGBUS).  Other files are read into memory.
    A .gz is unpacked into a temporary file (in TMPDIR), which lives as long as the object.

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
    """Return the kind of model in an ``.npz``, "examples" or "names"; empty: another file."""
    model = _model_of(path)[0]
    if model is None:
        return ""
    return "names" if model.reader else "examples"


def fitted_of(path: str | os.PathLike[str]) -> Any:
    """Open a file as a fitted estimator; the ModelFileError of another file says what it is."""
    _, name = _model_of(path)
    if not name:
        from snailps.models.sparse.export import read_npz

        read_npz(os.fspath(path))  # raises with the reason, unless a user's own class wrote it
        raise ModelFileError(f"{path}: expected a model of examples that snailps knows")
    return getattr(importlib.import_module("snailps.estimators"), name).load(path)


def embedding_of(path: str | os.PathLike[str]) -> GraphModel | FactorModel | None:
    """Open a knowledge graph or a matrix factorisation; None: the file holds neither."""
    trained = _header_of(path)[0].get("worker_class")
    reader = next((m.reader for m in MODELS.values() if m.worker_class == trained), "")
    module, _, name = reader.partition(":")
    if not module:
        return None
    embeddings: GraphModel | FactorModel = getattr(importlib.import_module(module), name)(path)
    return embeddings


def _model_of(path: str | os.PathLike[str]) -> tuple[Model | None, str]:
    """Return the model in an ``.npz`` and the estimator that opens it; None: another file."""
    settings, saved = _header_of(path)
    for model in MODELS.values():
        if saved and saved in model.estimators.values():
            return model, saved
        if not saved and model.estimators and model.worker_class == settings.get("worker_class"):
            loss = str(settings.get("loss"))
            return model, model.estimators.get(loss, model.estimators[""])
    return None, ""


def _header_of(path: str | os.PathLike[str]) -> tuple[dict[str, Any], str]:
    """Return a file's settings and the class of the estimator that saved it; empty: neither."""
    try:
        with open(path, "rb") as file:
            model, saved = ModelFile(path, file), ""
            settings = model.settings()
            if "estimator.npy" in model.members:
                saved = str(json.loads(model.read("estimator").tobytes())["class"])
            return settings, saved
    except (OSError, *DAMAGED):  # `load_model` opens it next, and its error names the reason
        return {}, ""
