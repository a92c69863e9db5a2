"""The old demo's commands, as they stand."""

import json

import pytest
from processes import SNAILPS, Process
from test_word_vectors import DEMO
from texts import write_topics

TRAINED = """
import demo.conf
worker_class: snailps.models.word_vectors:WordVectors
input: text.txt
output: out
num_iters: 3
len_vec: 16
min_reduce: 2
formats: vec
"""


@pytest.mark.long
@pytest.mark.parametrize("consistency", ["async", "bsp"])
def test_old_demo_trains_as_it_stands(tmp_path, consistency):
    (tmp_path / "demo.conf").write_text(DEMO)
    (tmp_path / "job.conf").write_text(TRAINED)
    write_topics(tmp_path / "text.txt", 20_000)
    written = []
    for workers in ("1", "2"):
        words = ["local", "-c", "job.conf", "--workers", workers, "--json"]
        words += ["--overwrite", "--set", f"consistency={consistency}", "--set", "threads=1"]
        run = Process("local", [*SNAILPS, *words], cwd=tmp_path)
        try:
            assert run.wait() == 0, run.stderr
        finally:
            run.close()
        assert json.loads(run.stdout)["train_loss"] < 10
        written.append((tmp_path / "out.vec").read_bytes())
    if consistency == "bsp":
        assert written[0] == written[1]
