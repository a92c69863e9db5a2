"""A model for tests of a running job: fastText that takes its time until it is let go."""

import time
from pathlib import Path

from snailps.models.word_vectors import WordVectors


class Held(WordVectors):
    """Takes two seconds a block until there is a file `go` in the results.

    It trains ordinary blocks: so short a text has parts for two of its three workers.
    """

    @classmethod
    def rotation(cls, settings, total_bytes, workers, summary):
        return None

    def train(self, block):
        if not Path("/results/go").exists():
            time.sleep(2)
        return super().train(block)
