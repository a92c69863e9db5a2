"""A training in MLflow: pip install mlflow; python mlflow_run.py TEXT.

`MlflowCallback` is for any estimator: ``snailps.TextClassifier(callbacks=MlflowCallback())``.
"""

import sys

import mlflow

import snailps

NAMES = {"loss": "loss", "lr": "learning_rate", "progress": "progress"}


class MlflowCallback:
    """Tells the active run of MLflow how a training goes; a step is a word, or an example."""

    def __init__(self):
        self._step = -1

    def __call__(self, report):
        if report["phase"] not in ("training", "done"):
            return
        unit = "words" if "words" in report else "examples"
        names = {**NAMES, f"{unit}_per_s": f"{unit}_per_second"}
        found = {told: report[name] for name, told in names.items() if report[name] is not None}
        if report[unit] > self._step:  # a report may come twice for one step
            self._step = report[unit]
            mlflow.log_metrics(found, step=self._step)


def main(text):
    parameters = {"dim": 50, "epochs": 5, "lr": 0.05}
    with mlflow.start_run(run_name="snailps"):
        mlflow.log_params(parameters)
        model = snailps.FastText(**parameters, callbacks=MlflowCallback(), verbose=False).fit(text)
        for epoch in model.history_:
            mlflow.log_metrics({"epoch_loss": epoch["loss"]}, step=epoch["epoch"])
        model.wv.save("model.bin")
        mlflow.log_artifact("model.bin")


if __name__ == "__main__":
    main(sys.argv[1])
