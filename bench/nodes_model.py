"""The job of `nodes.py`: a survey with a vocabulary of a given size, and training blocks.

No worker runs it; the master calls it for tables and the survey's result.
"""

from dataclasses import dataclass

import numpy as np

from snailps import Block, JobSettings, Table, Worker, setting


@dataclass(frozen=True, slots=True)
class Settings(JobSettings):
    """Settings of the model below."""

    summary_mb: int = setting(60, help="Size of what the survey finds.", when="In benches.", low=0)


class Surveyor:
    """Merges parts of a survey into random words, which compress like words."""

    def __init__(self, size):
        self._size = size

    def add(self, part):
        """Ignores the part."""

    def result(self):
        """Lines of a word and its count, 30 bytes each."""
        lines = self._size // 30
        rng = np.random.default_rng(1)
        text = np.full((lines, 30), ord(" "), np.uint8)
        text[:, :14] = rng.integers(ord("a"), ord("z") + 1, (lines, 14), np.uint8)
        text[:, 20:29] = rng.integers(ord("0"), ord("9") + 1, (lines, 9), np.uint8)
        text[:, 29] = ord("\n")
        return text.tobytes()


class Nothing(Worker):
    """Trains nothing."""

    Settings = Settings

    def tables(self):
        """Three, as word vectors have."""
        return [Table(name, 100) for name in ("words", "buckets", "contexts")]

    def train(self, block: Block):
        """Never called."""
        raise NotImplementedError

    @classmethod
    def surveyor(cls, settings):
        """Merges the survey of simulated workers."""
        return Surveyor(settings.summary_mb * 1_000_000)
