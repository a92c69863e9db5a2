"""Checks files of examples before a job, evaluates a model on hold-out files, predicts.

    input and hold-out files -> head of each -> parsed, checked         (master, before training)
    hold-out files -> blocks -> Batch -> scores -> Judge -> figures     (master, after training)
    MODEL.npz, text -> Predictor -> predictions, or figures             (no cluster)

Memory: a block of text and its rows at a time; for ranks (AUC) labels and scores of all examples, 8
bytes each.  `Predictor` has the whole model in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from snailps.data.blocks import Block, cut, expand, files_of, head_of, read_block
from snailps.data.file_kinds import HEAD_BYTES, refuse_foreign
from snailps.data.matrix_file import check_labels, is_matrix
from snailps.data.reading import Reading
from snailps.data.scratch import Scratch
from snailps.errors import DataError
from snailps.models.sparse import metrics
from snailps.models.sparse.batch import Batch, Floats, batch_reader
from snailps.models.sparse.export import read_npz
from snailps.models.sparse.settings import SparseSettings

if TYPE_CHECKING:
    from snailps.api.export_progress import ExportProgress
    from snailps.api.worker import Results
    from snailps.models.sparse.worker import SparseWorker

log = logging.getLogger(__name__)

BLOCK_BYTES = 8 << 20
BLOCK_BYTES_MIN = 64 << 10
ROWS_BYTES = 32 << 20
"""Most bytes of rows that are pulled at a time for the evaluation."""
ENTRY_BYTES = 5
"""Least bytes of a feature as text, in all but unusual files."""
HEADS_MAX = 100
"""Files of the input, and hold-out files, that are checked before the training."""


def with_columns(settings: SparseSettings) -> SparseSettings:
    """The settings with a declaration of every column of an input of tables.

    Those that `columns` does not declare are inferred from the first table; all others are read
    alike, and so is what the model predicts of.

    Raises
    ------
    SnailError
        The table is missing or cannot be read, or a declaration is wrong.
    """
    if not settings.label_column or not settings.input:
        return settings
    from snailps.data.table_files import complete

    path = files_of(settings.input)[0]
    settings.reading().takes(path)
    columns = complete(path, settings.columns, settings.label_column)
    if columns != settings.columns:
        log.info("columns, by %s: %s", path, ", ".join(columns))
    return replace(settings, columns=columns)


def check_input(cls: type[SparseWorker], settings: SparseSettings) -> None:
    """Refuses missing files, and files whose first lines are not examples of this job.

    A malformed hold-out file must not end the job after hours of training.

    Raises
    ------
    DataError
    """
    reading = settings.reading()
    for name, paths in (("input", settings.input), ("test", settings.test)):
        try:
            for path in files_of(paths)[:HEADS_MAX]:
                if reading.takes(path):
                    from snailps.data.table_files import check_table

                    check_table(path, reading)
                    continue
                reader = batch_reader(settings)
                cls.check_batch(settings, reader.read(head_of(path), path), path)
        except DataError as error:
            raise DataError(f"{name}: {error}") from None


def texts_of(
    paths: Sequence[str],
    scratch_dir: str = "",
    scratch_bytes: int = 0,
    *,
    reading: Reading | None = None,
    block_bytes: int = BLOCK_BYTES,
    progress: ExportProgress | None = None,
) -> Iterator[tuple[bytes, str, int]]:
    """Pieces of files, folders and globs: text or a matrix file, path, first byte in the file.

    Reports to `progress` how many bytes were used.  `reading` says how tables are read.

    Raises
    ------
    DataError
        Nothing is there, or it cannot be read.
    """
    scratch = Scratch(scratch_dir, scratch_bytes, tables=reading)
    try:
        blocks: Iterable[Block] = list(cut(expand(paths, scratch), block_bytes))
        if progress is not None:
            total = sum(block.stop - block.start for block in blocks)
            blocks = progress.count(
                "judging by the test files", total, "bytes", blocks, lambda b: b.stop - b.start
            )
        for block in blocks:
            data = read_block(block.path, block.start, block.stop, unit="line", scratch=scratch)
            yield data, block.path, block.start
    finally:
        scratch.close()


def evaluate(cls: type[SparseWorker], results: Results) -> dict[str, Any]:
    """Figures of the model on its `test` files.

    Raises
    ------
    DataError
        A file cannot be read, or a line is malformed.
    """
    from snailps.models.sparse.settings import SparseSettings

    s = results.settings
    assert isinstance(s, SparseSettings)
    extras = cls.extras(results)
    reader = batch_reader(s, bias=cls.has_bias(s))

    def judged() -> Iterator[metrics.Judged]:
        for text in texts_of(
            s.test,
            s.scratch_dir,
            s.scratch_bytes,
            reading=s.reading(),
            block_bytes=_block_bytes(results),
            progress=results.exporting,
        ):
            batch = reader.read(*text)
            scores = cls.stored_scores(results, batch, extras) if len(batch) else None
            yield batch.labels, scores, batch.bad

    results.exporting.plan([1.0])
    return metrics.judge(s.loss, judged())


def _block_bytes(results: Results) -> int:
    """Bytes of text whose rows fit into `ROWS_BYTES` if all of its features differ."""
    dim = max(table.dim for table in results.tables.values())
    return max(BLOCK_BYTES_MIN, min(BLOCK_BYTES, ENTRY_BYTES * ROWS_BYTES // (4 * dim)))


class Predictor:
    """A saved model in memory.

    Parameters
    ----------
    path : path
        An ``.npz`` that a model of sparse examples wrote.

    Raises
    ------
    ModelFileError
        The file is not such a model.
    """

    def __init__(self, path: str | Path) -> None:
        self._model = read_npz(path)
        settings = self._model.settings
        assert isinstance(settings, SparseSettings)
        self.loss = settings.loss
        bias = self._model.cls.has_bias(settings)
        self._reader = batch_reader(settings, bias=bias, needs_labels=False)

    def reading(self, *, needs_labels: bool) -> Reading:
        """How tables are read: as those that the model was trained on.

        `needs_labels`: they must have the column of the labels, too.
        """
        settings = self._model.settings
        assert isinstance(settings, SparseSettings)
        return settings.reading(needs_labels=needs_labels)

    def scores(self, batch: Batch) -> Floats:
        """Scores of a batch, float32 (n, outputs), before any link function."""
        model = self._model
        return model.cls.scores(model.settings, model.rows_of(batch.keys), batch, model.extras)

    def predict(self, texts: Iterator[tuple[bytes, str, int]]) -> Iterator[metrics.Doubles]:
        """For each text, float64: P(yes) (n,), values (n,), or P of each class (n, classes)."""
        for text in texts:
            batch = self._reader.read(*text)
            yield metrics.probabilities(self.loss, self.scores(batch))

    def judge(self, texts: Iterator[tuple[bytes, str, int]]) -> dict[str, Any]:
        """Figures of the model on labelled texts."""

        def judged() -> Iterator[metrics.Judged]:
            for data, path, start in texts:
                check_labels(data, path)
                batch = self._reader.read(data, path, start)
                yield batch.labels, self.scores(batch), batch.bad

        return metrics.judge(self.loss, judged())


def texts_from(stream: IO[bytes]) -> Iterator[tuple[bytes, str, int]]:
    """Pieces of whole lines of a stream; single lines from a terminal.

    Raises
    ------
    DataError
        It is a matrix file, which is not read from beginning to end, or of a foreign format.
    """
    start = 0
    while lines := stream.readlines(1 if stream.isatty() else BLOCK_BYTES):
        data = b"".join(lines)
        if start == 0:
            if is_matrix(data):
                raise DataError("standard input is a matrix file: name the file instead")
            refuse_foreign(data[:HEAD_BYTES], "standard input")
        yield data, "standard input", start
        start += len(data)
