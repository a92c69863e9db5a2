"""The input pipelines of one client, which make its learners' batches from its part of the input.

    settings, number of the client -> pipelines -> Feeds.take(learner) -> batch

Learner i takes from pipeline i modulo their number; a pipeline gives batches to its learners one
after the other.  Knows no network.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from snailps.api.class_loading import load_named
from snailps.data.pipeline import Pipeline, Runs, Stage
from snailps.data.windows import Batcher, KnownWords, Tokenizer, WordReader, share_of_input
from snailps.errors import DataError
from snailps.files.blocks import expand
from snailps.files.scratch import Scratch
from snailps.models.fedavg.settings import FedAvgSettings, refuse_data_files


class Feeds:
    """The running pipelines of client `index`; `close` ends them."""

    def __init__(
        self,
        settings: FedAvgSettings,
        words: Sequence[bytes],
        learners: int,
        index: int,
        clients: int,
    ) -> None:
        self.count, self._words = settings.pipelines or learners, len(words)
        where = settings.scratch_dir, settings.scratch_bytes
        self._pipelines: list[Pipeline] = []
        try:
            with Scratch(*where) as scratch:  # until the readers have copies of their own
                sources = expand(settings.input, scratch)
                refuse_data_files(
                    [source.path for source in sources],
                    Path(settings.data_dir),
                    "prepare into a folder outside it (data_dir)",
                )
                for pipeline in range(self.count):
                    number = index * self.count + pipeline
                    part = pipeline if settings.own_input else number
                    parts = self.count if settings.own_input else clients * self.count
                    blocks = share_of_input(sources, part, parts)
                    reader = WordReader(blocks, 0, *where, laps=True)
                    size = sum(block.stop - block.start for block in blocks)
                    self._pipelines.append(
                        Pipeline(
                            [reader, *stages_of(settings, words, number, size)],
                            len(range(pipeline, learners, self.count)),
                        )
                    )
        except BaseException:
            self.close()
            raise

    def take(self, learner: int) -> NDArray[np.int32]:
        """Get a learner's next batch, int32 (bs, window); `DataError` if a stage has failed."""
        batch = self._pipelines[learner % self.count].take(learner // self.count)
        if not isinstance(batch, np.ndarray) or batch.dtype != np.int32 or batch.ndim != 2:
            raise DataError(
                f"a pipeline's last stage has to make int32 arrays (bs, window), got {batch!r:.80}"
            )
        if batch.size and not (batch.min() >= 0 and batch.max() < self._words):
            raise DataError(
                f"a pipeline made numbers from {batch.min()} to {batch.max()}, but words have 0 to "
                f"{self._words - 1}: a stage after filter has to pass on the numbers that it gets"
            )
        return batch

    def close(self) -> None:
        """End the pipelines; may be called again."""
        for pipeline in self._pipelines:
            pipeline.close()


def stages_of(
    settings: FedAvgSettings, words: Sequence[bytes], number: int, size: int = 0
) -> list[Runs]:
    """Make the stages after the reader, for pipeline `number` of all.

    `size` are the bytes of its part of the input, which must have a known word; 0: not checked.
    """
    stages: list[Runs] = []
    for name in settings.stages:
        if name == "tokenizer":
            stages.append(Tokenizer())
        elif name == "filter":
            stages.append(KnownWords(words, size))
        elif name == "batcher":
            seed = settings.seed << 32 | number
            stages.append(Batcher(settings.window, settings.bs, settings.shuffle, seed))
        else:
            stages.append(load_named(name, f"stages: {name}", Stage)())
    return stages
