"""The old demo's commands, as they stand."""

import json
import math
import re
import sys

import numpy as np
import pytest
from processes import Cluster, run_snailps, run_well
from test_cluster import figures_of
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
        run = run_snailps(*words, cwd=tmp_path)
        assert json.loads(run.stdout)["train_loss"] < 10
        written.append((tmp_path / "out.vec").read_bytes())
    if consistency == "bsp":
        assert written[0] == written[1]


def write_words(path, different, each):
    """Lines of ten words in any order, each word so often."""
    numbers = np.random.default_rng(1).permutation(np.repeat(np.arange(different), each))
    lines = [" ".join(f"w{number}" for number in line) for line in numbers.reshape(-1, 10)]
    path.write_text("\n".join(lines) + "\n")
    return path


WORDS = {
    "worker_class": "snailps.models.word_vectors:WordVectors", "output": "out", "formats": "vec",
    "min_count": 1, "sample": 0,
}  # fmt: skip


def test_workers_of_cbow_with_subwords_rotate_and_learn(tmp_path):
    """Nothing here depends on who visits first; in which orders it learns, unit tests ask."""
    text, epochs, negatives = write_words(tmp_path / "text.txt", 600, 120), 2, 3
    job = WORDS | {
        "input": text, "epochs": epochs, "model": "cbow", "dim": 16, "minn": 3, "maxn": 5,
        "bucket": 5000, "negatives": negatives,
    }  # fmt: skip
    figures = figures_of(run_well(tmp_path, job=job, servers=2, workers=3))
    assert figures["words"] == epochs * (600 * 120 + 600 * 120 // 10)  # and the ends of lines
    assert (figures["vocabulary"], figures["parts_max"]) == (601, 3)
    assert figures["chunks"] >= 1
    assert figures["progress"] == 1
    assert figures["train_loss"] < (1 + negatives) * math.log(2)  # what an untrained model has
    vectors = np.loadtxt(tmp_path / "out.vec", skiprows=1, usecols=range(1, 17))
    assert np.isfinite(vectors).all()
    assert (np.abs(vectors).sum(axis=1) > 0).all()


@pytest.mark.long
def test_worker_takes_the_memory_that_it_is_given_and_what_the_page_says(tmp_path):
    """docs/training.md: a tenth above `worker_memory`, 80 bytes a word, and some 80 MB."""
    different, peaks = 60_000, []
    text = write_words(tmp_path / "text.txt", different, 8)
    for given in (32 << 20, 96 << 20):
        folder = tmp_path / str(given)
        folder.mkdir()
        job = WORDS | {"input": text, "epochs": 1, "maxn": 0, "dim": 128, "worker_memory": given}
        with Cluster(folder, job=job) as cluster:
            master = cluster.master()
            cluster.start("server")
            worker = cluster.start("worker", program=[sys.executable, "-m", "with_peak"])
            assert cluster.codes() == [0] * 3, master.stderr
        peaks.append(1024 * int(re.search(r"VmHWM:\s+(\d+) kB", worker.stderr)[1]))
        assert figures_of(master)["vocabulary"] == different + 1
        assert peaks[-1] < 1.1 * given + 80 * different + 80e6
    assert peaks[1] - peaks[0] > 32 << 20  # what it is given it takes


@pytest.mark.long
def test_memory_that_the_smallest_block_exceeds_ends_the_job_before_the_training(tmp_path):
    text = write_words(tmp_path / "text.txt", 3000, 10)
    job = WORDS | {"input": text, "dim": 256, "consistency": "bsp", "worker_memory": 1 << 20}
    with Cluster(tmp_path, job=job) as cluster:
        codes, master = cluster.run()
    assert codes[0] in {1, 2}
    assert re.search(r"error: worker_memory: .* set it to \d+ or more", master.stderr)
