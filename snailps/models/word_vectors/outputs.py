"""Which output rows words are trained with, by the loss: negatives, or inner nodes of a tree.

    vocabulary, settings -> output_rows -> OutputRows, at a worker
    words of a block -> of_block -> rows to pull, and Noise or Branches: what kernels need of them

With `ns` and `nce` the output row of a word is its own, and drawn words are negatives.  With `hs`
output rows are inner nodes of the Huffman tree of all words, and a word trains those on its path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.config.consistency import steps_of
from snailps.data.huffman import Paths, Tree
from snailps.data.vocabulary import Vocabulary
from snailps.dataclass import dataclass
from snailps.models.local_sgd import Floats
from snailps.models.word_vectors.block_size import draw, pool_size
from snailps.models.word_vectors.settings import WordVectorSettings

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Noise:
    """The negatives to draw from, and with NCE the logit of each output row (else empty)."""

    words: Ints
    logit: Floats

    def arguments(self, s: WordVectorSettings) -> dict[str, Any]:
        """Arguments of a kernel."""
        # What is measured may differ between workers, whose steps must have equal bits in a sum.
        narrow = not steps_of(s).are_sums and kernels.narrow_pays()
        return {
            "noise": self.words,
            "noise_logit": self.logit,
            "negatives": s.negatives,
            "narrow": narrow,
        }

    def steps(self, counts: NDArray[Any], tokens: float, negatives: int, row_num: int) -> Floats:
        """Steps on each row if word i is trained ``counts[i]`` times, of `tokens` in all."""
        uses = tokens * negatives / len(self.words)
        steps = np.bincount(self.words, minlength=row_num) * uses
        steps[: len(counts)] += counts
        return steps.astype(np.float32)

    def curvatures(
        self, hidden: Floats, targets: Ints, outputs: Floats, negatives: int
    ) -> tuple[Floats, Floats]:
        """The loss's mean curvature for a step in an input and in an output row, (dim, dim) each.

        In an input row these are outer products of a positive output row and its negatives, in an
        output row of hidden vectors, each times the slope of the logistic function.
        """
        logit = self.logit if len(self.logit) else np.zeros(len(outputs), np.float32)
        drawn = self.words[np.arange(len(hidden)) * len(self.words) // len(hidden)]
        positive, negative = outputs[targets], outputs[drawn]
        near = _slopes(hidden, positive, logit[targets])
        far = _slopes(hidden, negative, logit[drawn]) * np.float32(negatives)
        of_input = (positive * near).T @ positive + (negative * far).T @ negative
        of_output = (hidden * (near + far)).T @ hidden / np.float32(1 + negatives)
        return of_input / np.float32(len(hidden)), of_output / np.float32(len(hidden))


@dataclass(frozen=True, slots=True)
class Branches:
    """The paths of words in a tree, by places of output rows; also as kernels have checked them."""

    paths: Paths
    checked: kernels.CheckedPaths

    @classmethod
    def of(cls, paths: Paths, row_num: int) -> Branches:
        return cls(paths, paths.checked(row_num))

    def arguments(self, s: WordVectorSettings) -> dict[str, Any]:
        """Arguments of a kernel."""
        none = {"noise": np.zeros(0, np.int32), "noise_logit": np.zeros(0, np.float32)}
        return {**none, "negatives": 0, "paths": self.checked}

    def steps(self, counts: NDArray[Any], tokens: float, negatives: int, row_num: int) -> Floats:
        """As of `Noise`: a word steps on each node of its path."""
        weights = np.repeat(counts, np.diff(self.paths.ptr)[: len(counts)])
        return np.bincount(self.paths.rows, weights, row_num).astype(np.float32)

    def curvatures(
        self, hidden: Floats, targets: Ints, outputs: Floats, negatives: int
    ) -> tuple[Floats, Floats]:
        """As of `Noise`, with the nodes of paths in the place of words."""
        rows = self.paths.rows_of(targets)
        sizes = np.diff(self.paths.ptr)[targets]
        if not len(rows):
            nothing = np.zeros((hidden.shape[1],) * 2, np.float32)
            return nothing, nothing
        nodes, vectors = outputs[rows], np.repeat(hidden, sizes, axis=0)
        slopes = _slopes(vectors, nodes, np.zeros(len(rows), np.float32))
        of_input = (nodes * slopes).T @ nodes / np.float32(len(hidden))
        of_output = (vectors * slopes).T @ vectors / np.float32(len(rows))
        return of_input, of_output


Targets = Noise | Branches


class OutputRows(ABC):
    """The output rows of all words, at a worker."""

    whole: Branches | None = None
    """What kernels need where all rows are here; None: negatives have to be drawn."""

    @property
    @abstractmethod
    def loss_untrained(self) -> float:
        """Mean loss of a word while rows are as at the start."""

    @abstractmethod
    def of_block(
        self, present: NDArray[np.int64], tokens: int, seed: int
    ) -> tuple[NDArray[np.integer[Any]], Targets]:
        """The rows that a block needs, and `Targets` by places among them.

        Of `present` words, ascending, the i-th has number i in `Targets`; `seed` draws negatives.
        """

    @abstractmethod
    def steps(self, words: NDArray[Any]) -> NDArray[Any]:
        """Steps on each row if word i is trained ``words[i]`` times."""


class SampledRows(OutputRows):
    """A row for each word; negatives are drawn by counts."""

    def __init__(self, vocabulary: Vocabulary, s: WordVectorSettings) -> None:
        self._negatives = s.negatives
        self._noise = vocabulary.noise(s.ns_exponent)
        self._sums = np.cumsum(self._noise)
        self._log = np.log(self._noise * s.negatives) if s.loss == "nce" else None

    @property
    def loss_untrained(self) -> float:
        logit = np.zeros(1) if self._log is None else self._log
        at_first = np.logaddexp(0, logit) + self._negatives * np.logaddexp(0, -logit)
        return float((self._noise * at_first).sum() / self._noise.sum())

    def logit(self, words: NDArray[Any] | slice) -> Floats:
        """Logits of NCE's noise for output rows (`Noise.logit`); empty with negative sampling."""
        if self._log is None:
            return np.zeros(0, np.float32)
        return self._log[words].astype(np.float32)

    def of_block(
        self, present: NDArray[np.int64], tokens: int, seed: int
    ) -> tuple[NDArray[np.integer[Any]], Noise]:
        drawn = draw(self._sums, pool_size(tokens), seed)
        seen = np.zeros(len(self._noise), np.bool_)
        seen[drawn] = True
        seen[present] = False
        rows = np.concatenate((present, np.flatnonzero(seen)))
        place = np.empty(len(seen), np.int32)
        place[rows] = np.arange(len(rows), dtype=np.int32)
        return rows, Noise(place[drawn], self.logit(rows))

    def steps(self, words: NDArray[Any]) -> NDArray[Any]:
        share = self._noise / self._noise.sum()
        steps: NDArray[Any] = words + share * (words.sum() * self._negatives)
        return steps


class TreeRows(OutputRows):
    """A row for each inner node of the tree of words."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.paths = Tree.of(vocabulary.counts).paths()
        self._counts = vocabulary.counts

    @cached_property
    def whole(self) -> Branches:  # type: ignore[override]
        return Branches.of(self.paths, max(1, len(self._counts) - 1))

    @property
    def loss_untrained(self) -> float:
        depths = np.diff(self.paths.ptr)
        return float(np.log(2) * (depths @ self._counts) / self._counts.sum())

    def of_block(
        self, present: NDArray[np.int64], tokens: int, seed: int
    ) -> tuple[NDArray[np.integer[Any]], Branches]:
        rows, paths = self.paths.of(present)
        return rows, Branches.of(paths, len(rows))

    def steps(self, words: NDArray[Any]) -> NDArray[Any]:
        weights = np.repeat(words, np.diff(self.paths.ptr))
        return np.bincount(self.paths.rows, weights, len(self._counts)).astype(np.float64)


def output_rows(vocabulary: Vocabulary, s: WordVectorSettings) -> OutputRows:
    """The output rows of the loss."""
    return TreeRows(vocabulary) if s.loss == "hs" else SampledRows(vocabulary, s)


def _slopes(hidden: Floats, rows: Floats, noise_logit: Floats) -> Floats:
    """Compute the logistic slope at each product less `noise_logit`, float32 (n, 1)."""
    scores = np.einsum("ij,ij->i", hidden, rows) - noise_logit
    likely = 1 / (1 + np.exp(-np.clip(scores, -30, 30)))
    slopes: Floats = (likely * (1 - likely)).astype(np.float32)[:, None]
    return slopes
