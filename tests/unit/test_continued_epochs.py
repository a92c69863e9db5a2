"""How often a training that continues a model trains new lines: as what it has learnt says."""

from types import SimpleNamespace

import numpy as np
import pytest
from alike import BY_NAME
from emulated import trained

from snailps.api.passes import EPOCHS, Passes, share_of_new
from snailps.config import RawConfig
from snailps.master.job.beginning import prepare
from snailps.master.job.job import Job
from snailps.models.embeddings.settings import KgeSettings
from snailps.vectors.model_reading import read_model

CASES = [
    "rotate logistic adagrad", "mf squared sgd", "mf pairwise adagrad", "linear logistic ftrl",
    "fm logistic adagrad", "sparse_net logistic adagrad",
]  # fmt: skip


@pytest.mark.parametrize(
    ("learnt", "new", "epochs"),
    [(0, 1000, 1), (10_000, 1000, 1), (1000, 1000, 1), (1000, 2000, 25), (100, 10_000, 50)],
)
def test_epochs_of_new_lines_are_one_or_the_share_beyond_what_was_learnt(learnt, new, epochs):
    """Of 50: none beyond, none, half of them, 99 of 100 (49.5, rounded)."""
    settings = KgeSettings(continue_from="m.npz", learnt=learnt)
    share = share_of_new(settings, SimpleNamespace(total_bytes=new))
    assert Passes.by_size(1, 1 << 20, ends=False, share=share).most == epochs
    assert Passes.by_size(1, 1 << 20, share=share).least <= min(EPOCHS, 6 * epochs)


def test_first_training_has_all_its_epochs():
    settings = KgeSettings(learnt=10_000)
    assert share_of_new(settings, SimpleNamespace(total_bytes=1)) == 1


def prepared(settings):
    """Settings of a job once its input is measured."""
    job = Job(RawConfig.from_mapping(settings, "test"))
    prepare(job, 1)
    job.close()
    return job.settings


def says_learnt(path):
    with read_model(path, "a model", ("about",)) as (settings, _):
        return int(settings["learnt"])


@pytest.mark.parametrize("name", CASES)
def test_file_says_what_it_has_learnt_and_the_next_training_adds_to_it(tmp_path, name):
    job = BY_NAME[name].job(tmp_path, "async") | {"keep_state": "always", "epochs": 1}
    job |= {"test": ""}
    with trained(job, 1) as (cls, results):
        cls.export(results)
        learnt = results.settings.learnt
    path = f"{tmp_path}/out.npz"
    assert learnt > 0
    assert says_learnt(path) == learnt
    went_on = prepared(
        job | {"epochs": "auto", "continue_from": path, "output": str(tmp_path / "on")}
    )
    assert (went_on.epochs, went_on.learnt) == (1, 2 * learnt)


FEW = 60
TESTED = 1500


@pytest.mark.parametrize(
    ("method", "clocks"), [("adagrad", "async"), ("adagrad", "bsp"), ("adam", "async")]
)
def test_net_that_goes_on_with_few_lines_forgets_none_of_many(tmp_path, method, clocks):
    """A mean over 1,500 lines is off by its standard error: about itself / sqrt(1,500), as losses
    vary by about as much as their mean."""
    case = BY_NAME[f"sparse_net logistic {method}"]
    job = case.job(tmp_path, clocks) | {"keep_state": "always", "batch_size": 1024, "epochs": 3}
    with trained(job, 1) as (cls, results):
        cls.export(results)
        before, batch = 1 - case.judge(cls, results), results.settings.learnt_batch
        assert 250 < batch <= 1024  # a tenth of 5,000 lines is a block
    lines = (tmp_path / "train.svm").read_text().splitlines(keepends=True)
    (tmp_path / "few.svm").write_text("".join(lines[:FEW]))
    went_on = {"input": str(tmp_path / "few.svm"), "continue_from": f"{tmp_path}/out.npz"}
    went_on |= {"output": str(tmp_path / "on")}
    with trained(job | went_on, 1) as (cls, results):
        after = 1 - case.judge(cls, results)
        assert results.settings.learnt_batch == batch
    assert after < before * (1 + TESTED**-0.5)


def test_file_of_an_earlier_version_is_continued_for_one_epoch_and_stays_unknown(tmp_path):
    """Its later lines alone would be taken for all that it knows."""
    job = BY_NAME["linear logistic ftrl"].job(tmp_path, "async") | {"epochs": 1}
    job |= {"keep_state": "always", "test": ""}
    with trained(job, 1) as (cls, results):
        cls.export(results)
    path = tmp_path / "out.npz"
    with np.load(path) as file:
        arrays = dict(file)
    about = arrays["about"].tobytes().replace(b'"learnt"', b'"seed"')
    np.savez(path, **arrays | {"about": np.frombuffer(about, np.uint8)})
    went_on = prepared(job | {"epochs": "auto", "continue_from": str(path), "output": f"{path}2"})
    assert (went_on.epochs, went_on.learnt) == (1, 0)
