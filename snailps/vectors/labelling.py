"""How a classifier's scores become probabilities, by its loss.

loss, counts of labels -> labelling_of -> rows -> kernels.Labelling -> labels, probabilities
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.data.huffman import Tree
from snailps.kernels._labelling import Labelling

ONE_LABEL = ("softmax", "hs")
"""Losses whose probabilities of all labels add up to 1."""


def labelling_of(loss: str, counts: NDArray[np.int64]) -> Callable[..., Labelling]:
    """``kernels.labelling`` of input rows, output rows and dim, for a loss; `counts` of labels.

    DataError: counts of no tree.
    """
    # A tree of one label has no nodes: such a model has the softmax of one score.
    children = Tree.of(counts).children if loss == "hs" else None
    return partial(kernels.labelling, softmax=loss in ONE_LABEL, children=children)
