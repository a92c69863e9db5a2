"""A training in Weights & Biases: pip install wandb; python wandb_run.py TEXT.

`WandbCallback` is for any estimator: ``snailps.TextClassifier(callbacks=WandbCallback(run))``.
"""

import sys

import wandb

import snailps

NAMES = {"loss": "loss", "lr": "learning_rate", "progress": "progress", "epoch": "epoch"}


class WandbCallback:
    """Tells a run of Weights & Biases how a training goes; a step is a word, or an example."""

    def __init__(self, run):
        self._run = run
        self._step = -1

    def __call__(self, report):
        if report["phase"] not in ("training", "done"):
            return
        unit = "words" if "words" in report else "examples"
        names = {**NAMES, f"{unit}_per_s": f"{unit}_per_second"}
        found = {told: report[name] for name, told in names.items() if report[name] is not None}
        if report[unit] > self._step:  # steps must grow there
            self._step = report[unit]
            self._run.log(found, step=self._step)
        if report["phase"] == "done":
            self._run.summary.update({unit: report[unit], "seconds": report["seconds"]})


def main(text):
    parameters = {"dim": 50, "epochs": 5, "lr": 0.05}
    run = wandb.init(project="snailps", config=parameters)
    model = snailps.FastText(**parameters, callbacks=WandbCallback(run), verbose=False).fit(text)
    model.wv.save("model.bin")
    run.finish()


if __name__ == "__main__":
    main(sys.argv[1])
