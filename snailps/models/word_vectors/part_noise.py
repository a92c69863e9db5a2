"""Draws the negatives of a checkout, so that few output rows travel for these alone.

    noise of an output partition -> PartNoise -> among(contexts of a checkout) -> draw

A rare word is a context in some checkouts of its partition, but drawn as noise in nearly all, and
its row travels each time.  So of the words that are absent from a checkout only a random share is
drawn from, each that much more often.  The choice depends on nothing else: which words are present
goes with the centres here, so to leave all noise to those teaches a model that a word may be near
any centre that it never meets.

Pure functions of probabilities and contexts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from snailps.dataclass import dataclass
from snailps.models.word_vectors.block_size import draw

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PartNoise:
    """Words to draw as negatives, ascending, in proportion to their `mass`."""

    words: Ints
    mass: NDArray[np.float64]

    def among(self, contexts: Ints, share: float, seed: int) -> PartNoise:
        """Keep the words that are contexts, and a random `share` of the others, 0 < share <= 1.

        The others' mass is divided by `share`, so each word has its mass on average.
        """
        if share >= 1 or not len(self.words):
            return self
        is_context = np.zeros(1 + int(self.words[-1]), np.bool_)
        is_context[contexts] = True
        present = is_context[self.words]
        kept = present | (np.random.default_rng(seed).random(len(present)) < share)
        if not kept.any():
            return self
        mass = np.where(present, self.mass, self.mass / share)
        return PartNoise(self.words[kept], mass[kept])

    def draw(self, num: int, seed: int) -> Ints:
        """Draw `num` words, one from each of `num` equal parts of the mass, ascending."""
        return self.words[draw(self.mass.cumsum(), num, seed)]
