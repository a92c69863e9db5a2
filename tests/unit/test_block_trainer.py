"""models.block_trainer: blocks that are not pushed yet, of rows in several tables."""

import numpy as np
import pytest
from connected import connected, train

from snailps import JobSettings, Table
from snailps.models.block_trainer import BlockTrainer, Prepared
from snailps.models.copied_rows import CopiedRows
from snailps.models.kept_rows import KeptRows, of_curvature
from snailps.models.local_sgd import LocalSgd, RowLayout
from snailps.models.pace import Pace

DIM, KEYS = 2, np.arange(3, dtype=np.uint64)


class Two(BlockTrainer):
    """Adds 1 to the same rows of two tables with each block."""

    kinds = ()

    @classmethod
    def pace(cls, settings, workers):
        return Pace(10, 1 << 20)  # rounds are as the rows say

    def tables(self):
        return [Table(name, DIM) for name in "ab"]

    def setup(self):
        self.sgd = LocalSgd(self, RowLayout.padded(DIM))
        self.rows = tuple(
            KeptRows(self.sgd, name, of_curvature(DIM), period_blocks=blocks)
            if blocks
            else CopiedRows(self.sgd, name)
            for name, blocks in zip("ab", self.kinds, strict=True)
        )

    def prepare(self, block):
        asked = self.ask(block, [[rows.find(KEYS)] for rows in self.rows], 1)
        return Prepared(None, 1, {"units": 1.0}, asked)

    def rates(self, block):
        return 1.0, 1.0

    def step(self, batch, rows, span, rates, seed):
        for (trained,) in rows:
            trained[:, :DIM] += 1
        return 0.0, 1.0


@pytest.mark.parametrize("kinds", [(2, 2), (2, 0), (0, 2), (2, 1), (1, 2)])
def test_blocks_are_owed_until_the_rows_of_every_table_are_pushed(kinds, monkeypatch):
    """Else a checkpoint would include a block whose deltas are still at the worker."""
    monkeypatch.setattr(Two, "kinds", kinds)
    with connected(Two) as make:
        model = make(JobSettings(epochs=1))
        for number in range(4):
            train(model, b"x", number)
            pushed = min(model.pull(name, KEYS).min() for name in "ab")
            assert number + 1 - model.unpushed <= pushed
        assert (pushed, model.unpushed) == (4, 0)
