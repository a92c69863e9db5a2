"""The finished model on hold-out files, at the master.

    files -> blocks -> Batch -> Results.pull of its rows -> scores -> Judge -> figures

Memory: a block of text and its rows at a time; labels and scores of all examples, 8 bytes each,
where ranks are asked for.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from snailps.data.blocks import cut, expand, read_block
from snailps.data.scratch import Scratch
from snailps.errors import DataError
from snailps.models.sparse import metrics

if TYPE_CHECKING:
    from snailps.models.sparse.worker import SparseWorker
    from snailps.roles.worker import Results

BLOCK_BYTES = 8 << 20
PULL_ROWS = 1 << 18


def check_paths(paths: Sequence[str]) -> None:
    """Refuses files that are not there; hours of training later would be too late.

    Raises
    ------
    DataError
    """
    for text in paths:
        path = Path(text).expanduser()
        there = bool(glob.glob(str(path), recursive=True)) if glob.has_magic(text) else False  # noqa: PTH207
        if not there and not os.path.lexists(path):
            raise DataError(f"test: not found: {text} does not exist (seen from {Path.cwd()})")


def evaluate(cls: type[SparseWorker], results: Results) -> dict[str, Any]:
    """Figures of the model on its `test` files.

    Raises
    ------
    DataError
        A file cannot be read, or a line is malformed.
    """
    from snailps.models.sparse.settings import SparseSettings
    from snailps.models.sparse.worker import TABLE, batch_reader

    settings = results.settings
    assert isinstance(settings, SparseSettings)
    judge = metrics.judge_of(cls.loss_of(settings))
    extras = cls.extras(results)
    reader = batch_reader(settings, bias=cls.has_bias(settings))
    scratch = Scratch(settings.scratch_dir, settings.scratch_bytes)
    bad = 0
    try:
        for block in cut(expand(settings.test, scratch), BLOCK_BYTES):
            data = read_block(block.path, block.start, block.stop, unit="line", scratch=scratch)
            batch = reader.read(data, block.path, block.start)
            bad += batch.bad
            if len(batch):
                edges = range(0, len(batch.keys), PULL_ROWS)
                parts = [results.pull(TABLE, batch.keys[at : at + PULL_ROWS]) for at in edges]
                rows = np.concatenate(parts)
                judge.add(batch.labels, cls.scores(settings, rows, batch, extras))
    finally:
        scratch.close()
        reader.close()
    figures = judge.figures()
    return {**figures, "bad_lines": bad} if bad else figures
