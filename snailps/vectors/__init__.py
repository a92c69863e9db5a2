"""Models after training: files, queries, scores.

    rows -> files -> .vec, .bin, .npz -> query.Vectors -> neighbours, analogies; evaluate -> scores
    .bin of a classifier -> LabelModel -> labels of lines; evaluate_labels -> scores

Must not know processes, sockets or training.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snailps.vectors.evaluate import (
        AnalogyResult,
        SectionResult,
        SimilarityResult,
        evaluate_analogies,
        evaluate_similarity,
        similarity_file,
    )
    from snailps.vectors.fasttext_bin import BinHeader, BinModel, read_bin, read_header, write_bin
    from snailps.vectors.files import load, write_npz
    from snailps.vectors.label_prediction import (
        LabelModel,
        LabelScore,
        LabelScores,
        Prediction,
        TextPrediction,
        evaluate_labels,
    )
    from snailps.vectors.query import Neighbour, Vectors
    from snailps.vectors.text_files import read_vec, vec_shape, write_vec

__all__ = [
    "AnalogyResult",
    "BinHeader",
    "BinModel",
    "LabelModel",
    "LabelScore",
    "LabelScores",
    "Neighbour",
    "Prediction",
    "SectionResult",
    "SimilarityResult",
    "TextPrediction",
    "Vectors",
    "evaluate_analogies",
    "evaluate_labels",
    "evaluate_similarity",
    "load",
    "read_bin",
    "read_header",
    "read_vec",
    "similarity_file",
    "vec_shape",
    "write_bin",
    "write_npz",
    "write_vec",
]

_HOMES = {
    "evaluate": (
        "AnalogyResult",
        "SectionResult",
        "SimilarityResult",
        "evaluate_analogies",
        "evaluate_similarity",
        "similarity_file",
    ),
    "fasttext_bin": (
        "BinHeader",
        "BinModel",
        "read_bin",
        "read_header",
        "write_bin",
    ),
    "files": ("load", "write_npz"),
    "label_prediction": (
        "LabelModel",
        "LabelScore",
        "LabelScores",
        "Prediction",
        "TextPrediction",
        "evaluate_labels",
    ),
    "query": ("Neighbour", "Vectors"),
    "text_files": ("read_vec", "vec_shape", "write_vec"),
}


def __getattr__(name: str) -> object:
    """A name of `__all__`, whose module is imported by the first use: few processes use all."""
    for home, names in _HOMES.items():
        if name in names:
            found: object = getattr(importlib.import_module(f"snailps.vectors.{home}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
