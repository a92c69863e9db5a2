"""What a saved model of sparse examples says of a file.

    MODEL.npz, text -> BatchReader -> rows of its keys -> scores -> predictions, or figures

No cluster and no sockets; the model lies in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from snailps.config import JobSettings
from snailps.models.sparse import metrics
from snailps.models.sparse.batch import Batch
from snailps.models.sparse.evaluate import BLOCK_BYTES
from snailps.models.sparse.export import read_npz
from snailps.models.sparse.settings import SparseSettings
from snailps.models.sparse.worker import batch_reader


class Predictor:
    """A model, ready to be asked.

    Parameters
    ----------
    path : path
        An ``.npz`` that a model of sparse examples wrote.

    Raises
    ------
    ModelFileError
        It is none.
    """

    def __init__(self, path: str | Path) -> None:
        self._model = read_npz(path)
        settings: JobSettings = self._model.settings
        assert isinstance(settings, SparseSettings)
        self.loss = settings.loss
        self._reader = batch_reader(settings, bias=self._model.cls.has_bias(settings))

    def scores(self, batch: Batch) -> NDArray[np.float32]:
        """Scores of a batch, (n, outputs)."""
        model = self._model
        return model.cls.scores(model.settings, model.rows_of(batch.keys), batch, model.extras)

    def predict(self, texts: Iterator[tuple[bytes, str, int]]) -> Iterator[NDArray[np.float64]]:
        """P(yes) (n,), values (n,) or P of each class (n, classes), a text at a time."""
        for text in texts:
            batch = self._reader.read(*text)
            yield metrics.probabilities(self.loss, self.scores(batch))

    def judge(self, texts: Iterator[tuple[bytes, str, int]]) -> dict[str, Any]:
        """Figures of the model on texts whose labels are right."""
        batches = (self._reader.read(*text) for text in texts)
        return metrics.judge(
            self.loss, ((batch.labels, self.scores(batch), batch.bad) for batch in batches)
        )


def texts_from(stream: IO[bytes]) -> Iterator[tuple[bytes, str, int]]:
    """Pieces of whole lines of a stream; line by line from a person."""
    start = 0
    while lines := stream.readlines(1 if stream.isatty() else BLOCK_BYTES):
        data = b"".join(lines)
        yield data, "standard input", start
        start += len(data)
