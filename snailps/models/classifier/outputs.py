"""Which output rows the lines of a classifier train, by its loss.

    counts of labels, loss -> output_rows -> OutputRows
    lines of a block -> of -> Outputs: rows to pull; labels, negatives and paths by their places

With `softmax` and `ova` each line steps on the rows of all labels, with `ns` on its label's and on
those of negatives, with `hs` on the rows of inner nodes on the path to its label.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.data._labelled import Lines
from snailps.data.huffman import Paths, Tree

Ints = NDArray[np.int32]

NOISE_POWER = 0.5
"""fastText draws negatives by the square root of a label's count."""
LOSSES = {"softmax": 0, "ova": 1, "ns": 2, "hs": 3}
"""Numbers of the losses in `kernels.train_labels`."""
NONE = np.zeros(0, np.int32)


class Outputs(NamedTuple):
    """The output rows of some lines."""

    rows: Ints
    """Numbers of the rows that the lines need, ascending."""
    labels: Ints
    """Each label of the lines: a place in `rows`; with `paths` a leaf of them."""
    noise: Ints = NONE
    """Negatives, as many for each line: places in `rows`."""
    paths: Paths | None = None
    """The path to each leaf, whose rows are places in `rows`."""
    checked: kernels.CheckedPaths | None = None
    """`paths` for kernels; None until rows have places in memory (`at`)."""

    def at(self, places: Ints) -> Outputs:
        """The same with row ``rows[i]`` at ``places[i]`` of an array, for kernels."""
        if self.paths is None:
            labels, noise = places[self.labels], places[self.noise]
            return self._replace(rows=places, labels=labels, noise=noise)
        paths = self.paths.at(places)
        return self._replace(rows=places, paths=paths, checked=paths.checked(places.max() + 1))


class LabelRows:
    """Rows of all labels, on each of which each line steps."""

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self.row_num = len(counts)
        self.steps_a_line = float(self.row_num)  # rows on which a line steps

    def of(self, lines: Lines, seed: int) -> Outputs:
        """The rows that the lines need; `seed` draws negatives."""
        return Outputs(np.arange(self.row_num, dtype=np.int32), lines.labels)

    def steps(self, outputs: Outputs, lines: Lines, first: int) -> Ints | None:
        """The row of each step of the first lines; None: each line steps on all."""
        return None


class SampledLabelRows(LabelRows):
    """Rows of the lines' labels and of labels drawn by their counts (`ns`)."""

    def __init__(self, counts: NDArray[np.int64], negatives: int) -> None:
        super().__init__(counts)
        self.negatives = negatives
        self.steps_a_line = 1 + negatives
        noise = np.maximum(counts, 1).astype(np.float64) ** NOISE_POWER
        self._noise_sum = np.cumsum(noise / noise.sum())

    def of(self, lines: Lines, seed: int) -> Outputs:
        noise = NONE
        if self.row_num > 1:
            num = self.negatives * (len(lines.label_ptr) - 1)
            draws = np.random.default_rng(seed).random(num) * self._noise_sum[-1]
            noise = np.searchsorted(self._noise_sum, draws).astype(np.int32)
        used, places = np.unique(np.concatenate((lines.labels, noise)), return_inverse=True)
        places, labels = places.astype(np.int32), len(lines.labels)
        return Outputs(used.astype(np.int32), places[:labels].copy(), places[labels:].copy())

    def steps(self, outputs: Outputs, lines: Lines, first: int) -> Ints:
        share = first / max(1, len(lines.label_ptr) - 1)
        noise = outputs.noise[: int(len(outputs.noise) * share)]
        return np.concatenate((lines.labels[: lines.label_ptr[first]], noise))


class LabelTreeRows(LabelRows):
    """Rows of the inner nodes on the paths to the lines' labels (`hs`)."""

    def __init__(self, counts: NDArray[np.int64]) -> None:
        super().__init__(counts)
        self.paths = Tree.of(counts).paths()
        depths = np.diff(self.paths.ptr)
        self.steps_a_line = float(depths @ counts / max(1, counts.sum()))

    def of(self, lines: Lines, seed: int) -> Outputs:
        used, leaves = np.unique(lines.labels, return_inverse=True)
        rows, paths = self.paths.of(used)
        return Outputs(rows, leaves.astype(np.int32), paths=paths)

    def steps(self, outputs: Outputs, lines: Lines, first: int) -> Ints:
        assert outputs.paths is not None
        return outputs.paths.rows_of(lines.labels[: lines.label_ptr[first]])


def output_rows(loss: str, counts: NDArray[np.int64], negatives: int) -> LabelRows:
    """The rows that a loss trains; `counts` are of labels."""
    if loss == "ns":
        return SampledLabelRows(counts, negatives)
    return LabelTreeRows(counts) if loss == "hs" else LabelRows(counts)
