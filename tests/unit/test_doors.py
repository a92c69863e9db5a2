"""Commands and their twins in Python: what the one takes the other takes, or a reason is here."""

import inspect

import pytest
import typer

import snailps
from snailps import estimators
from snailps.cli.main import app_for
from snailps.config.fields import settings_of
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.embeddings.queries import FactorModel, GraphModel
from snailps.models.embeddings.settings import KgeSettings, MfSettings
from snailps.models.mlp import MlpSettings
from snailps.models.sparse.fm import FmSettings
from snailps.models.sparse.linear import LinearSettings
from snailps.models.sparse.net import NetSettings
from snailps.models.word_vectors.settings import WordVectorSettings
from snailps.serving.recommender import Recommender

PRINTED = "how a command prints"
FILES = "Python replaces files as its other functions do; a command asks first"
SELF = "the model is the object"
DATA = "data in memory, which a command cannot have"
SEEN = "a callback, in place of a line of progress"
ANY = {"as_json": PRINTED, "overwrite": FILES}
"""What any command has, and why no function does."""

TWINS = {
    # Command: function, option -> parameter where names differ, options alone, parameters alone.
    "calibrate": (snailps.calibrate, {}, {}, {}),
    "quantize": (
        snailps.quantize, {},
        {"test": "LabelModel.evaluate scores either file"}, {"progress": SEEN},
    ),
    "filter": (
        snailps.filter, {},
        {"secret_file": "of the session that `cluster` is", "tls": "of the session"},
        {"begun": SEEN, "note": SEEN, "overwrite": "an output is a folder with work of hours"},
    ),
    "autotune": (
        snailps.TextClassifier.autotune, {"input": "X"},
        {
            "output": "TextClassifier.save",
            "sets": "parameters of the classifier",
        },
        {"y": DATA, "sample_weight": DATA, "column": "--set column=", "self": SELF},
    ),
    "test": (
        snailps.LabelModel.evaluate, {},
        {"model": SELF, "known": "KnowledgeGraph.evaluate, MatrixFactorization.evaluate"},
        {"self": SELF},
    ),
    "predict": (
        snailps.LabelModel.predict, {},
        {
            "model": SELF, "input": "read the lines yourself", "output": "write them yourself",
            "format": "predict_arrow gives a table", "column": "give the column",
            "metrics": "LabelModel.evaluate, evaluate of others", "label_column": "of --metrics",
            "weight_column": "of --metrics",
        },
        {"self": SELF},
    ),
    "nn": (
        snailps.Vectors.neighbours, {"words": "word"},
        {"model": SELF, "of": "methods of KnowledgeGraph and MatrixFactorization"},
        {"self": SELF},
    ),
    "similarity": (
        snailps.Vectors.similarity, {},
        {"model": SELF, "of": "methods of KnowledgeGraph and MatrixFactorization"}, {"self": SELF},
    ),
    "analogy": (
        snailps.Vectors.analogy, {}, {"model": SELF, "words": "a, b and c"},
        {"self": SELF, "a": "of the words", "b": "of the words", "c": "of the words"},
    ),
    "vector": (
        snailps.Vectors.vector, {"words": "word"},
        {
            "model": SELF, "of": "methods of KnowledgeGraph and MatrixFactorization",
            "sentences": "Vectors.sentence_vector", "ngrams": "Vectors.subwords",
        },
        {"self": SELF},
    ),
}  # fmt: skip
"""Commands about models that exist, and autotune."""
WITHOUT = {
    "recommend": "its lists for many users are a method of their own",
    "eval": "Spearman and analogies: vectors.evaluate, not published",
    "dump": "attributes of LabelModel and Vectors, snailps.fasttext",
    "train": "below, setting by setting",
    "demo": "an example", "fedavg": "an experiment", "completion": "of the shell",
    "doctor": "of administrators", "tls": "of administrators", "cluster": "of a running cluster",
    "status": "of a running cluster", "jobs": "of a running cluster", "ui": "a page",
    "local": "snailps.cluster", "master": "a process", "server": "a process", "worker": "a process",
    "checkpoint": "snailps.open_checkpoint reads one",
}  # fmt: skip


@pytest.fixture(scope="module")
def commands():
    return typer.main.get_command(app_for()).commands


def test_every_command_has_a_twin_or_a_reason(commands):
    assert {*TWINS, *WITHOUT} == {*commands}
    assert not {*TWINS} & {*WITHOUT}


@pytest.mark.parametrize("name", TWINS)
def test_what_a_command_takes_its_twin_takes(commands, name):
    function, other_names, options_alone, parameters_alone = TWINS[name]
    options = {option.name for option in commands[name].params} - {"help"}
    parameters = {*inspect.signature(function).parameters}
    of_any = {option: why for option, why in ANY.items() if option not in parameters}
    missing = {other_names.get(option, option) for option in options - {*options_alone, *of_any}}
    assert missing - parameters == set(), "options that the function lacks, without a reason"
    taken = {other_names.get(option, option) for option in options}
    assert parameters - taken - {*parameters_alone} == set(), "parameters without an option"
    assert {*options_alone} <= options, "reasons of options that are gone"
    assert not {*options_alone} & parameters, "reasons of options that the function has"
    assert {*parameters_alone} <= parameters, "reasons of parameters that are gone"


ANSWERS = {
    "tails": (snailps.KnowledgeGraph, GraphModel),
    "heads": (snailps.KnowledgeGraph, GraphModel),
    "recommend": (snailps.MatrixFactorization, FactorModel),
    "audience": (snailps.MatrixFactorization, FactorModel),
}
"""Questions to graphs and factors: the estimator and the opened file that answer them."""


@pytest.mark.parametrize("name", ANSWERS)
def test_a_question_has_the_same_parameters_at_every_door(name):
    estimator, model = (
        [(one.name, one.kind) for one in inspect.signature(getattr(cls, name)).parameters.values()]
        for cls in ANSWERS[name]
    )
    assert estimator == [*model, ("topn", inspect.Parameter.KEYWORD_ONLY)]


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        *((cls, name) for name, classes in ANSWERS.items() for cls in classes),
        (Recommender, "recommend"),
        (Recommender, "neighbours"),
        (GraphModel, "neighbours"),
        (FactorModel, "neighbours"),
        (snailps.KnowledgeGraph, "most_similar"),
        (snailps.MatrixFactorization, "most_similar"),
        (snailps.Vectors, "neighbours"),
    ],
)
def test_the_number_of_answers_is_k_and_10_unless_given(cls, name):
    assert inspect.signature(getattr(cls, name)).parameters["k"].default == 10


OF_THE_JOB = {
    "worker_class": "the class is the model", "input": "X of fit", "output": "save",
    "assign": "of a cluster's schedule", "scratch_bytes": "of the process",
    "checkpoint_dir": "of a session", "checkpoint_interval": "of a session",
    "checkpoints_kept": "of a session", "fresh": "of a session",
    "param_backup_period": "an old name",
    "scratch_dir": "of the process", "test": "evaluate or score",
    "validation": "held_out, or score after partial_fit", "column": "of fit",
    "label_column": "y of fit", "weight_column": "sample_weight of fit",
    "class_weights": "class_weight", "continue_from": "partial_fit", "overwrite": FILES,
    "keep_state": "always kept for partial_fit; save", "formats": "the ending of save's name",
    "expire_after": "of streams that are read in order, which are files", "classes": "y of fit",
}  # fmt: skip
"""Settings that no estimator has as a parameter, and what has their place."""
TRAINED = {
    "FastText": (WordVectorSettings, {"validation_words": "evaluate yourself"}),
    "TextClassifier": (
        ClassifierSettings,
        {"label": "__label__ in memory; a model's own prefix comes with its file"},
    ),
    "LogisticRegression": (LinearSettings, {}),
    "FMClassifier": (FmSettings, {}),
    "SparseNetClassifier": (NetSettings, {}),
    "MLPClassifier": (
        MlpSettings,
        {
            "labels": "y of fit", "test_labels": "y of score", "validation_labels": "y of score",
            "stop_after": "nothing is held out", "stop_by": "nothing is held out",
        },
    ),
    "KnowledgeGraph": (KgeSettings, {"valid": "evaluate"}),
    "MatrixFactorization": (MfSettings, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_what_a_training_takes_its_estimator_takes(name):
    cls, alone = TRAINED[name]
    estimator = getattr(estimators, name)
    settings = {key for key, value in settings_of(cls).items() if not value.hidden}
    parameters = {*estimator().get_params()}
    reasons = {**OF_THE_JOB, **OF_MODELS.get(name, {}), **alone}
    assert settings - parameters - {*reasons} == set(), "settings without a parameter or a reason"
    assert not {*alone} & parameters, "reasons of settings that the estimator has"
    assert {*alone} <= {*settings_of(cls)}, "reasons of settings that are gone"


OF_TABLES = {
    "format": "X in memory has one", "columns": "columns of fit", "hash_bits": "features by number",
    "on_bad_line": "X in memory has no lines", "loss": "the class",
}  # fmt: skip
OF_MODELS = dict.fromkeys(("LogisticRegression", "FMClassifier", "SparseNetClassifier"), OF_TABLES)
"""Further reasons, of models of examples."""


def test_reasons_are_of_settings_that_exist():
    every = {key for cls, _ in TRAINED.values() for key in settings_of(cls)}
    assert {*OF_THE_JOB, *OF_TABLES} <= every
