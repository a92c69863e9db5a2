"""docs/training.md: the model that keeps its rows trains, as it is written there."""

import re
from pathlib import Path

import numpy as np
import pytest
from connected import connected, train

from snailps import JobSettings, Table
from snailps.models.block_trainer import BlockTrainer, Prepared
from snailps.models.copied_rows import CopiedRows
from snailps.models.kept_rows import KeptRows, of_curvature
from snailps.models.local_sgd import LocalSgd, RowLayout
from snailps.models.pace import Pace

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training.md"
DIM, LR = 4, 0.5


def parse(data):
    """A letter is an example, and its key."""
    keys, at = np.unique(np.frombuffer(data, np.uint8), return_inverse=True)
    return keys.astype(np.uint64), at, len(at)


def step(trained, places, span, rates):
    np.add.at(trained, places[slice(*span)], np.float32(rates[0]))
    return 1.0, float(span[1] - span[0])


@pytest.mark.parametrize("consistency", ["async", "ssp"])
@pytest.mark.parametrize("workers", [1, 3])
def test_model_of_the_page_trains(consistency, workers):
    (text,) = re.findall(r"```python\n(class Mine.*?)```", PAGE.read_text(), re.DOTALL)
    names = {
        "BlockTrainer": BlockTrainer, "CopiedRows": CopiedRows, "KeptRows": KeptRows,
        "LocalSgd": LocalSgd, "Pace": Pace, "Prepared": Prepared, "RowLayout": RowLayout,
        "of_curvature": of_curvature, "DIM": DIM, "LR": LR, "parse": parse, "train": step,
    }  # fmt: skip
    exec(text, names)
    mine = names["Mine"]
    mine.tables = lambda self: [Table("rows", DIM)]
    settings = JobSettings(epochs=1, consistency=consistency)
    assert mine.block_bytes(settings, 1 << 30, workers) == min(4 << 20, (1 << 30) // 20 // workers)
    with connected(mine) as make:
        model = make(settings, workers=workers)
        for number in range(3):
            told = train(model, b"abcab", number)
        assert (told["units"], told["examples"], told["lr"]) == (5, 5.0, LR)
        model.finish()
        rows = model.pull("rows", np.frombuffer(b"abc", np.uint8).astype(np.uint64))
        assert (rows > 0).all()
        if workers == 1:
            assert rows[:, 0].tolist() == [3.0, 3.0, 1.5]
