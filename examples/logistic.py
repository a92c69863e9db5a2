"""Logistic regression on lines of ``label index:value index:value ...`` (LIBSVM's format).

    block -> minibatches -> unique keys -> PULL weights -> mean gradient -> PUSH -> AdaGrad or SGD

Your own model is a file like this one.  examples/README.md runs it.
"""

from dataclasses import dataclass

import numpy as np

from snailps import JobSettings, Table, Worker, setting
from snailps.errors import ConfigError

BIAS = 1 << 40  # key of the constant feature, far from every index


@dataclass(frozen=True, slots=True)
class LogisticSettings(JobSettings):
    """Settings besides those of every job."""

    lr: float = setting(0.2, help="Step size.", when="Smaller for sgd.", low=1e-6, high=100.0)
    batch: int = setting(100, help="Lines a step.", when="Larger: less traffic.", low=1)
    test: str = setting("", help="File to judge the result with.", when="To know how good it is.")


def parse(lines):
    """Labels (0 or 1), and the features of all lines: line number, key, value."""
    labels, line_of, keys, values = [], [], [], []
    for number, line in enumerate(lines):
        label, *features = line.split()
        labels.append(float(label) > 0)
        for feature in [*features, b"%d:1" % BIAS]:
            key, _, value = feature.partition(b":")
            line_of.append(number)
            keys.append(int(key))
            values.append(float(value))
    return np.array(labels), np.array(line_of), np.array(keys, np.uint64), np.array(values)


def margins(weights, places, line_of, values, lines):
    """Score of each line: positive means label 1."""
    return np.bincount(line_of, weights[places, 0] * values, lines)


def losses(labels, scores):
    """Log loss of each line."""
    return np.logaddexp(0, np.where(labels, -scores, scores))


def auc(labels, scores):
    """Share of pairs (a label 1, a label 0) in which the first has the higher score; ties: half."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]  # equal scores share their mean rank
    ones = int(labels.sum())
    pairs = ones * (len(labels) - ones)
    return float((ranks[labels].sum() - ones * (ones + 1) / 2) / pairs) if pairs else None


class Logistic(Worker):
    """P(label 1) = 1 / (1 + exp(-w.x)), the weights on the servers."""

    Settings = LogisticSettings

    def tables(self):
        access = {"auto": "adagrad"}.get(self.settings.optimizer, self.settings.optimizer)
        return [
            Table("weights", dim=1, access=access, lr=self.settings.lr, wire=self.settings.wire)
        ]

    def train(self, block):
        lines = [line for line in block.data.splitlines() if line.strip()]
        loss, step = 0.0, self.settings.batch
        for at in range(0, len(lines), step):
            labels, line_of, keys, values = parse(lines[at : at + step])
            unique, places = np.unique(keys, return_inverse=True)
            weights = self.pull("weights", unique)
            scores = margins(weights, places, line_of, values, len(labels))
            wrong = 1 / (1 + np.exp(-scores)) - labels
            gradient = np.bincount(places, wrong[line_of] * values) / len(labels)
            self.push("weights", unique, gradient[:, None].astype(np.float32))
            loss += float(losses(labels, scores).sum())
        return {"units": len(lines), "examples": len(lines), "loss": loss}

    @classmethod
    def check(cls, settings):
        if settings.optimizer == "add":
            raise ConfigError("optimizer: add: gradients are pushed here, set sgd or adagrad")

    @classmethod
    def export(cls, results):
        figures = super().export(results)  # OUTPUT.npz: weights.keys, weights.rows
        if results.settings.test:
            with open(results.settings.test, "rb") as file:
                labels, line_of, keys, values = parse(file)
            unique, places = np.unique(keys, return_inverse=True)
            weights = results.pull("weights", unique)
            scores = margins(weights, places, line_of, values, len(labels))
            figures["test_log_loss"] = float(losses(labels, scores).mean())
            figures["test_accuracy"] = float(((scores > 0) == labels).mean())
            figures["test_auc"] = auc(labels, scores)
        return figures
