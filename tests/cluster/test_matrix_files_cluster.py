"""Jobs on matrix files: the same models as from text, to the last bit."""

from typing import ClassVar

import numpy as np
import pytest
from processes import Cluster, run_well
from scipy import sparse
from test_cluster import figures_of
from test_linear import FEATURES, TRUE

from snailps import write_matrix
from snailps.estimators.loading import load

EXAMPLES = 2000


def planted(count, seed, values=False):
    """A CSR matrix of 5 features a row, and labels that follow planted weights."""
    rng = np.random.default_rng(seed)
    keys = np.sort(np.argsort(rng.random((count, FEATURES)), axis=1)[:, :5], axis=1)
    amounts = rng.integers(5, 10, keys.shape) / 8 if values else np.ones(keys.shape)
    scores = (TRUE[keys] * amounts).sum(axis=1)
    labels = (rng.random(count) < 1 / (1 + np.exp(-scores))).astype(np.int64)
    x = sparse.csr_matrix(
        (amounts.ravel(), keys.ravel() + 1, np.arange(0, 5 * count + 1, 5)),
        (count, FEATURES + 1),
    )
    return x, labels


def text_of(x, labels, fields=None):
    """LIBSVM's or LIBFFM's lines of equal length, so that blocks have the same rows."""
    lines = []
    for row, label in enumerate(labels.tolist()):
        span = slice(x.indptr[row], x.indptr[row + 1])
        entries = zip(x.indices[span].tolist(), x.data[span].tolist(), strict=True)
        of = "{0:02}:{1:.3f}" if fields is None else "{2}:{0:02}:{1:.3f}"
        words = [of.format(k, v, 0 if fields is None else fields[k]) for k, v in entries]
        lines.append(" ".join([str(label), *words]))
    return "\n".join(lines) + "\n"


def run(folder, job, **nodes):
    master = run_well(folder, job={"input": "input", "output": "out", **job}, **nodes)
    with np.load(folder / "out.npz") as file:
        arrays = {name: file[name].tolist() for name in file if name != "about"}
    return figures_of(master), arrays


class TestSparseModels:
    """Each model, from text and from a matrix."""

    jobs: ClassVar = {
        "logistic": {"worker_class": "snailps.models.sparse.linear:Linear"},
        "fm": {  # FTRL, as a rate that falls does so by bytes, of which a matrix has others
            "worker_class": "snailps.models.sparse.fm:FactorizationMachine", "fields": 4,
            "optimizer": "ftrl",
        },
        "sparse_net": {
            "worker_class": "snailps.models.sparse.net:Net", "hidden": 8, "batch_size": 64,
        },
    }  # fmt: skip

    @pytest.mark.long(but=["logistic"])
    @pytest.mark.parametrize("name", jobs)
    def test_matrix_and_text_give_the_same_bits(self, tmp_path, name):
        fields = [0, *(key % 4 for key in range(FEATURES))] if name == "fm" else None
        train, test = planted(EXAMPLES, 1, values=True), planted(500, 2, values=True)
        folders = [tmp_path / "text", tmp_path / "matrix"]
        for folder in folders:
            folder.mkdir()
        (folders[0] / "input").write_text(text_of(*train, fields))
        (folders[0] / "test").write_text(text_of(*test, fields))
        write_matrix(folders[1] / "input", *train, fields=fields)
        write_matrix(folders[1] / "test", *test, fields=fields)
        job = {"epochs": 2, "consistency": "bsp", "micro_batches": 2, "test": "test"}
        job |= {"block_bytes": 1 << 20, "shuffle": "false"}  # of both, a tenth of the file
        found = [run(folder, {**job, **self.jobs[name]}) for folder in folders]
        (of_text, text_arrays), (of_matrix, matrix_arrays) = found
        assert of_matrix["examples"] == 2 * EXAMPLES
        assert of_matrix["loss_by_epoch"] == of_text["loss_by_epoch"]
        assert of_matrix["test"] == of_text["test"]
        assert matrix_arrays == text_arrays


def run_mixed(tmp_path):
    """Two workers; of three input files one is packed, one is text; a rare feature is left out."""
    import gzip

    x, y = planted(3 * EXAMPLES, 1)
    third = [slice(part * EXAMPLES, (part + 1) * EXAMPLES) for part in range(3)]
    write_matrix(tmp_path / "a.mx", x[third[0]], y[third[0]])
    (tmp_path / "a.mx.gz").write_bytes(gzip.compress((tmp_path / "a.mx").read_bytes()))
    (tmp_path / "a.mx").unlink()
    write_matrix(tmp_path / "b.mx", x[third[1]], y[third[1]])
    (tmp_path / "c.svm").write_text(text_of(x[third[2]], y[third[2]]) + "1 77:1\n")
    write_matrix(tmp_path / "test", *planted(500, 2))
    job = {
        "worker_class": "snailps.models.sparse.linear:Linear", "epochs": 4, "lr": 0.3,
        "test": "test", "min_count": 2, "expected_features": 1000,
        "input": "a.mx.gz, b.mx, c.svm", "scratch_dir": tmp_path / "scratch",
    }  # fmt: skip
    return run(tmp_path, job, workers=2)


def test_two_workers_learn_from_a_matrix_and_a_text(tmp_path):
    figures, arrays = run_mixed(tmp_path)
    assert figures["examples"] == 4 * (3 * EXAMPLES + 1)
    assert figures["test"]["auc"] > 0.7  # two workers: .88 to .9 as a rule, untrained .5
    assert 77 not in arrays["keys"]
    judged = load(tmp_path / "out.npz").evaluate(tmp_path / "test")
    assert judged["log_loss"] == pytest.approx(figures["test"]["log_loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path, x, y: write_matrix(path, x), "has no labels: write the file again, with y"),
        (lambda path, x, y: write_matrix(path, x.toarray(), y, dense=True), "got dense ones"),
        (lambda path, x, y: path.write_bytes(path.read_bytes()[:-64]), "it was cut off"),
    ],
    ids=["labels", "dense", "cut"],
)
def test_matrix_that_is_no_input_is_refused_before_the_job(tmp_path, damage, message):
    x, y = planted(100, 1)
    write_matrix(tmp_path / "input", x, y)
    damage(tmp_path / "input", x, y)
    job = {"worker_class": "snailps.models.sparse.linear:Linear", "input": "input"}
    with Cluster(tmp_path, job=job) as cluster:
        master = cluster.master()
        assert master.wait() != 0
        assert message in master.stderr
