"""The arrays of a CBOW network, in the layout of the kernels and as rows of tables.

    rows of "embedding" (a word's vector each) and "output" (a panel of words each)
    <-> Network: weights and Adam's moments, padded to whole registers

No training, no sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps import kernels

Floats = NDArray[np.float32]


class Network:
    """A network's weights (`layers` 1), or weights and Adam's two moments (3).

    `embedding` is (layers, words, width) with zeros from column `dim` on, `output` (layers, panels,
    width + 1, PANEL), see `kernels.train_cbow`; `counts` are Adam's steps of each row of the
    embedding.
    """

    def __init__(self, words: int, dim: int, layers: int) -> None:
        self.words, self.dim = words, dim
        self.width = -(-dim // kernels.PAD) * kernels.PAD
        self.panels = -(-words // kernels.PANEL)
        self.embedding = _zeros(layers, words, self.width)
        self.output = _zeros(layers, self.panels, self.width + 1, kernels.PANEL)
        self.counts = _zeros(words)

    @property
    def output_dim(self) -> int:
        """Values of a panel's row in a table: `dim` weights and a bias for each word."""
        return (self.dim + 1) * kernels.PANEL

    def put_embedding(self, layer: int, rows: Floats) -> None:
        """Copy rows of all words, float32 (words, dim), to a layer."""
        self.embedding[layer, :, : self.dim] = rows

    def put_output(self, layer: int, rows: Floats) -> None:
        """Copy rows of all panels, float32 (panels, output_dim), to a layer."""
        shaped = rows.reshape(self.panels, self.dim + 1, kernels.PANEL)
        self.output[layer, :, : self.dim] = shaped[:, :-1]
        self.output[layer, :, self.width] = shaped[:, -1]

    def output_rows(self, values: NDArray[Any]) -> NDArray[Any]:
        """Convert an array (panels, width + 1, PANEL) to rows (panels, output_dim)."""
        if self.width == self.dim:
            return values.reshape(self.panels, -1)
        kept = np.concatenate([values[:, : self.dim], values[:, self.width :]], axis=1)
        return kept.reshape(self.panels, -1)

    def scratch(self, window: int, batch: int) -> Floats:
        """Make scratch space for `kernels.train_cbow` and `kernels.cbow_loss`."""
        size = kernels.cbow_scratch_floats(self.words, self.width, window, batch)
        return _zeros(size)


def plain_output(rows: Floats, words: int, dim: int) -> tuple[Floats, Floats]:
    """Convert rows of "output" to weights (words, dim) and biases (words,), for files."""
    shaped = rows.reshape(-1, dim + 1, kernels.PANEL).transpose(0, 2, 1).reshape(-1, dim + 1)
    return np.ascontiguousarray(shaped[:words, :dim]), np.ascontiguousarray(shaped[:words, dim])


def sum_into(
    to: Network,
    layers: int,
    parts: Sequence[Network],
    uses: tuple[Sequence[Floats], Sequence[Floats]],
    windows: Sequence[int],
    pool: Executor,
) -> None:
    """Write weighted sums of `parts` into `to`.

    A part's rows of the embedding are weighted by the first `uses` (of each word as context), rows
    of its moments by the second, its output by its `windows`.  Each sum runs in the order of the
    parts, whatever the threads.
    """
    of_panels = [np.full(to.panels, count, np.float32) for count in windows]

    def add(out: Floats, arrays: Sequence[Floats], weights: Sequence[Floats]) -> None:
        out[:] = 0
        flat = out.reshape(len(out), -1)
        for array, weight in zip(arrays, weights, strict=True):
            kernels.add_weighted_rows(array.reshape(len(out), -1), weight, flat)

    tasks = [pool.submit(add, to.counts, [part.counts for part in parts], uses[1])]
    for layer in range(layers):
        embeddings = [part.embedding[layer] for part in parts]
        outputs = [part.output[layer] for part in parts]
        tasks.append(pool.submit(add, to.embedding[layer], embeddings, uses[min(layer, 1)]))
        tasks.append(pool.submit(add, to.output[layer], outputs, of_panels))
    for task in tasks:
        task.result()


def _zeros(*shape: int) -> Floats:
    """Make zeros, float32, aligned to 64 bytes."""
    size = int(np.prod(shape))
    rows = kernels.padded(max(1, -(-size // kernels.PAD)), kernels.PAD)
    return rows.reshape(-1)[:size].reshape(shape)
