"""examples/callbacks call MLflow and Weights & Biases as their documentation says.

The packages are large, so modules with the calls' documented signatures stand in for them: MLflow
3.17 (https://mlflow.org/docs/latest/api_reference/python_api/mlflow.html) and wandb 0.31
(https://docs.wandb.ai/ref/python/): a wrong argument is a TypeError here as it is there.
"""

import contextlib
import importlib
import sys
import types

import pytest

REPORT = {"phase": "training", "epoch": 1, "epochs": 5, "progress": 0.1, "loss": 2.5, "lr": 0.05,
          "words": 1000, "words_per_s": 50.0, "seconds": 20.0}  # fmt: skip
READING = {**REPORT, "phase": "reading", "words": 0, "loss": None, "lr": None}
DONE = {**REPORT, "phase": "done", "progress": 1.0, "lr": None, "words": 5000}


def mlflow_of(calls):
    """A module with the functions that the example uses."""

    def log_metrics(
        metrics, step=None, synchronous=None, run_id=None, timestamp=None, model_id=None,
        dataset=None,
    ):  # fmt: skip
        assert all(type(value) in (int, float) for value in metrics.values())
        assert step is None or type(step) is int
        calls.append(("metrics", dict(metrics), step))

    def log_params(params, synchronous=None, run_id=None):
        calls.append(("params", dict(params)))

    def log_artifact(local_path, artifact_path=None, run_id=None):
        calls.append(("artifact", local_path))

    @contextlib.contextmanager
    def start_run(
        run_id=None, experiment_id=None, run_name=None, nested=False, parent_run_id=None,
        tags=None, description=None, log_system_metrics=None,
    ):  # fmt: skip
        yield types.SimpleNamespace(info=None)

    module = types.ModuleType("mlflow")
    module.__dict__.update(
        log_metrics=log_metrics, log_params=log_params, log_artifact=log_artifact,
        start_run=start_run,
    )  # fmt: skip
    return module


class Run:
    """`wandb.Run`, as far as the example uses it."""

    def __init__(self, calls):
        self._calls, self.summary, self._step = calls, {}, -1

    def log(self, data, step=None, commit=None):
        assert isinstance(data, dict)
        assert step > self._step, "wandb leaves out what is logged for an earlier step"
        self._step = step
        self._calls.append(("log", dict(data), step))

    def finish(self, exit_code=None):
        self._calls.append(("finish",))


def wandb_of(calls):
    """A module with the function that the example uses."""

    def init(entity=None, project=None, dir=None, id=None, name=None, notes=None, tags=None,
             config=None, **more):  # fmt: skip
        calls.append(("init", project, dict(config)))
        return Run(calls)

    module = types.ModuleType("wandb")
    module.init = init
    return module


class Model:
    """`snailps.FastText`, whose `fit` makes some reports."""

    def __init__(self, *, dim, epochs, lr, callbacks, verbose):
        self._callback = callbacks
        self.history_ = [{"epoch": 1, "loss": 2.5, "words_per_s": 9.0}]
        self.wv = types.SimpleNamespace(save=lambda path: None)

    def fit(self, text):
        for report in (READING, REPORT, REPORT, DONE):
            assert self._callback(dict(report)) is not False  # that would end the training
        return self


@pytest.fixture
def example(monkeypatch):
    """Imports an example beside a stand-in for its package."""

    def imported(name, module):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.delitem(sys.modules, f"examples.callbacks.{name}", raising=False)
        found = importlib.import_module(f"examples.callbacks.{name}")
        monkeypatch.setattr(found, "snailps", types.SimpleNamespace(FastText=Model))
        return found

    return imported


def test_mlflow_gets_parameters_metrics_and_the_model(example):
    calls = []
    example("mlflow_run", mlflow_of(calls)).main("text.txt")
    assert calls == [
        ("params", {"dim": 50, "epochs": 5, "lr": 0.05}),
        ("metrics", {"loss": 2.5, "learning_rate": 0.05, "progress": 0.1,
                     "words_per_second": 50.0}, 1000),
        ("metrics", {"loss": 2.5, "progress": 1.0, "words_per_second": 50.0}, 5000),
        ("metrics", {"epoch_loss": 2.5}, 1),
        ("artifact", "model.bin"),
    ]  # fmt: skip


def test_wandb_gets_growing_steps_and_a_summary(example):
    calls = []
    found = example("wandb_run", wandb_of(calls))
    found.main("text.txt")
    assert [call[0] for call in calls] == ["init", "log", "log", "finish"]
    assert calls[1][1] == {"loss": 2.5, "learning_rate": 0.05, "progress": 0.1, "epoch": 1,
                           "words_per_second": 50.0}  # fmt: skip
    assert [call[2] for call in calls[1:3]] == [1000, 5000]


def test_callbacks_take_reports_of_examples_too(example):
    calls = []
    callback = example("wandb_run", wandb_of(calls)).WandbCallback(run := Run(calls))
    report = {**REPORT, "examples": 7, "examples_per_s": 1.0}
    del report["words"], report["words_per_s"]
    callback(report)
    callback({**report, "phase": "done", "examples": 9})
    assert calls[0][1]["examples_per_second"] == 1.0
    assert run.summary == {"examples": 9, "seconds": 20.0}
