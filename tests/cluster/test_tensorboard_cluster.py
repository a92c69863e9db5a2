"""A training that TensorBoard can show: the command, the loop, the looks and the export."""

import pytest
from processes import run_snailps

from snailps.vectors.files import load

pytest.importorskip("tensorboardX", reason="pip install snailps[tensorboard]")
from test_tensorboard_log import values_in


def test_training_writes_curves_norms_and_vectors(tmp_path):
    text = "the snail goes up the wall and the slug goes down\n" * 20_000
    (tmp_path / "text.txt").write_text(text)
    words = "train word2vec --input text.txt --output out/x --epochs 2 --dim 8 --formats vec"
    run_snailps(*words.split(), "--tensorboard", "runs/first", cwd=tmp_path)
    run = tmp_path / "runs" / "first"
    values = [(step, value) for step, value in values_in(run)]
    curves = {value.tag for _, value in values if value.HasField("simple_value")}
    assert {"training/loss", "training/learning_rate", "speed/words_per_second"} <= curves
    norms = [(step, value) for step, value in values if value.tag.startswith("row_norms/")]
    assert len({value.tag for _, value in norms}) == 2
    assert all(value.histo.num > 0 for _, value in norms)
    last = max(step for step, _ in values)
    assert last == 2 * (len(text.split()) + 20_000)  # an end of line counts, too
    (tensors,) = run.rglob("tensors.tsv")
    words = (tensors.parent / "metadata.tsv").read_text().split()
    assert words == list(load(tmp_path / "out" / "x.vec").words)
