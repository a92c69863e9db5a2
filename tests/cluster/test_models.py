"""Every model passes the contract of model_mixin, in every mode it has."""

from typing import ClassVar

import numpy as np
import pytest
from model_mixin import ModelContract
from processes import Cluster
from texts import ANIMALS, TOOLS, topic_contrast, write_planted, write_topics

from snailps.vectors.files import load
from snailps.vectors.label_prediction import LabelModel, evaluate_labels

LINES = 1200


class WordContract(ModelContract):
    """Word vectors: words of one topic are nearer to each other than to the other topic's."""

    job: ClassVar = {
        "worker_class": "snailps.models.word_vectors:WordVectors",
        "formats": "vec, bin",
        "dim": 16,
        "epochs": 5,
        "sample": 0.01,
        "bucket": 2000,
        "model": "skipgram",
    }
    kind = "words"
    units = 11 * LINES
    results = ("out.vec", "out.bin")
    optimizers = ("add", "adagrad")
    tables = ("input", "output")

    @staticmethod
    def write_input(folder):
        write_topics(folder / "input", LINES)

    def check_learnt(self, folder, figures):
        assert figures["vocabulary"] == len(ANIMALS) + len(TOOLS) + 1
        for name in self.results:
            vectors = load(folder / name)
            found = {word: vectors.vector(word) for word in [*ANIMALS, *TOOLS]}
            contrast = topic_contrast(found)
            assert contrast > 0.3  # untrained 0, give or take .04; trained .76 or more
        return {"contrast": contrast}


class TestFastText(WordContract):
    """Skip-gram with subwords."""


@pytest.mark.long
class TestFastTextCbow(WordContract):
    """CBOW with subwords."""

    job: ClassVar = {**WordContract.job, "model": "cbow"}


@pytest.mark.long
class TestWord2vecSkipgram(WordContract):
    """Skip-gram without subwords."""

    job: ClassVar = {**WordContract.job, "minn": 0, "maxn": 0, "lr": 0.03}


@pytest.mark.long
class TestWord2vecCbow(WordContract):
    """CBOW without subwords."""

    job: ClassVar = {**WordContract.job, "minn": 0, "maxn": 0, "model": "cbow"}


@pytest.mark.long
class TestNce(WordContract):
    """Noise-contrastive estimation in the place of negative sampling."""

    job: ClassVar = {**WordContract.job, "minn": 0, "maxn": 0, "loss": "nce", "lr": 0.03}


@pytest.mark.long(
    tests=[
        "test_model_with_same_seed_gives_identical_files_and_with_other_seed_others",
        "test_model_with_backup_period_and_interrupt_saves_both",
    ]
)
class TestLogistic(ModelContract):
    """The example: it comes near the planted model."""

    job: ClassVar = {
        "worker_class": "examples.logistic:Logistic",
        "test": "test.svm",
        "epochs": 3,
        "lr": 0.3,
        "batch": 50,
    }
    units = 4000
    results = ("out.npz",)
    optimizers = ("sgd", "adagrad")
    tables = ("weights",)
    shapes = ((1, 1), (3, 3))

    @staticmethod
    def write_input(folder):
        write_planted(folder / "input", 4000, seed=5)
        write_planted(folder / "test.svm", 2000, seed=6)

    def check_learnt(self, folder, figures):
        weights, floor = write_planted(folder / "again.svm", 2000, seed=6)
        assert figures["test_log_loss"] < (floor + np.log(2)) / 2
        assert figures["test_accuracy"] > 0.65  # untrained .5
        with np.load(folder / "out.npz") as saved:
            keys, rows = saved["weights.keys"], saved["weights.rows"]
        assert keys[:-1].tolist() == list(range(1, len(weights) + 1))
        correlation = np.corrcoef(rows[:-1, 0], weights)[0, 1]
        assert correlation > 0.5
        return {"log_loss": figures["test_log_loss"], "correlation": correlation}


def test_model_with_optimizer_it_does_not_support_is_refused_by_the_master(tmp_path):
    """That each model refuses is in tests/unit/test_job.py."""
    TestLogistic.write_input(tmp_path)
    job = {"input": "input", "output": "out", **TestLogistic.job, "optimizer": "add"}
    with Cluster(tmp_path, job=job) as cluster:
        master = cluster.master()
        assert master.wait() == 2
        (error,) = master.errors
        assert "optimizer" in error
        assert "add" in error


# --- every setting of word vectors ------------------------------------------------------------

SMALL = {"epochs": 1, "minn": 2, "maxn": 3, "formats": "bin", "min_count": 1}
HEADER_BYTES = 64  # a .bin begins with some of these settings: what follows has to differ


class SmallWords(WordContract):
    """A little text, with rare words and common ones."""

    results = ("out.bin",)

    @staticmethod
    def write_input(folder):
        write_topics(folder / "input", 200)
        with (folder / "input").open("a") as file:
            file.writelines(f"rare{n} hound{n % 2}\n" for n in range(40))


@pytest.mark.long
def test_word_vectors_with_other_setting_are_others(tmp_path):
    others = [
        ("dim", 17),
        ("model", "cbow"),
        ("loss", "nce"),
        ("window", 2),
        ("negatives", 2),
        ("lr", 0.01),
        ("sample", 0),
        ("min_count", 2),
        ("max_vocab", 30),
        ("minn", 3),
        ("maxn", 4),
        ("bucket", 1999),
    ]
    jobs = [SMALL, *({**SMALL, name: value} for name, value in others)]
    with SmallWords.session(tmp_path) as cluster:
        usual, *found = SmallWords().results_of(cluster, tmp_path, jobs)
    for setting, vectors in zip(others, found, strict=True):
        assert vectors[0][HEADER_BYTES:] != usual[0][HEADER_BYTES:], setting


# --- the classifier -----------------------------------------------------------------------------


@pytest.mark.long(tests=["test_model_with_backup_period_and_interrupt_saves_both"])
class TestClassifier(ModelContract):
    """Lines of one topic get its label."""

    job: ClassVar = {
        "worker_class": "snailps.models.classifier:Classifier",
        "dim": 8,
        "epochs": 3,
        "lr": 0.5,
        "word_ngrams": 2,
        "bucket": 500,
    }
    kind = "words"
    units = 12 * LINES
    interrupted_workers = 2
    results = ("out.bin",)
    optimizers = ("add",)
    tables = ("input", "output")

    @staticmethod
    def write_input(folder):
        path = write_topics(folder / "topics", LINES)
        with (folder / "input").open("w") as file:
            for number, line in enumerate(path.read_text().splitlines()):
                file.write(f"__label__{('animals', 'tools')[number % 2]} {line}\n")

    def check_learnt(self, folder, figures):
        assert (figures["vocabulary"], figures["labels"]) == (len(ANIMALS) + len(TOOLS) + 1, 2)
        scores = evaluate_labels(LabelModel(folder / "out.bin"), folder / "input")
        assert scores.lines == LINES
        assert scores.precision > 0.75  # untrained .5
        return {}


@pytest.mark.long(but=["max_steps-7-3", "target_loss-100.0-1"])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("name", "value"), [("max_steps", 7), ("max_seconds", 0.3), ("target_loss", 100.0)]
)
def test_classifier_that_ends_early_leaves_a_whole_model(tmp_path, name, value, workers):
    figures = TestClassifier().run(tmp_path, workers=workers, **{"epochs": 10_000, name: value})
    assert figures["ended_by"] == name
    if name == "max_steps":
        assert figures["blocks"] == value
    model = LabelModel(tmp_path / "out.bin")
    scores = evaluate_labels(model, tmp_path / "input")
    assert scores.lines == LINES
    assert all(np.isfinite(label.probability) for (label,) in model.predict(b"the cat\n", k=1))


def test_classifier_with_synchronous_steps_learns(tmp_path):
    settings = {"consistency": "bsp", "micro_batches": 3, "block_bytes": 20_000}
    figures = TestClassifier().run(tmp_path, workers=2, **settings)
    TestClassifier().check_learnt(tmp_path, figures)


@pytest.mark.long
class TestClassifierOneVersusRest(TestClassifier):
    """Each label is a question of its own."""

    job: ClassVar = {**TestClassifier.job, "loss": "ova"}


@pytest.mark.long
class TestClassifierSampling(TestClassifier):
    """Negative sampling, with character n-grams."""

    job: ClassVar = {**TestClassifier.job, "loss": "ns", "minn": 2, "maxn": 3}
