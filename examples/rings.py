"""A dense net of your own: points of a plane, in two classes that no line divides.

    block of lines ``x y class`` -> PULL layers -> forwards, backwards -> PUSH gradients -> Adam

`snailps.Parameters` stores the layers in one array and transfers them together.  examples/rings.md
runs this, with and without clocks.
"""

from dataclasses import dataclass

import numpy as np

from snailps import JobSettings, Parameters, Tensor, Worker, setting


@dataclass(frozen=True, slots=True)
class RingsSettings(JobSettings):
    """Settings besides those of every job."""

    lr: float = setting(0.02, help="Step size.", when="Smaller where the loss jumps.", low=1e-6)
    hidden: int = setting(16, help="Width of the hidden layer.", when="Harder data.", low=1)


class Rings(Worker):
    """P(class 1) = sigmoid(relu(x W) V): a constant 1 beside x and the hidden layer is the bias."""

    Settings = RingsSettings

    def tables(self):
        s = self.settings
        options = {"access": "adam", "init": "uniform", "lr": s.lr}
        self.tensors = [
            Tensor("W", (3, s.hidden), scale=1.0, seed=s.seed, **options),
            Tensor("V", (s.hidden + 1, 1), scale=0.5, seed=s.seed + 1, **options),
        ]
        return self.tensors

    def setup(self):
        self.net = Parameters(self, self.tensors)

    def train(self, block):
        lines = np.loadtxt(block.data.splitlines(), np.float32, ndmin=2)
        if not len(lines):
            return {"units": 0}
        x, label = np.hstack([lines[:, :2], np.ones((len(lines), 1), np.float32)]), lines[:, 2:]
        weights, gradient = self.net.use(self.net.pull(block.clock)), self.net.blank()

        z = x @ weights["W"]
        hidden = np.hstack([np.maximum(z, 0), np.ones((len(x), 1), np.float32)])
        score = hidden @ weights["V"]
        # With clocks all blocks of a step add up, so each takes its share of the mean.
        wrong = (1 / (1 + np.exp(-score)) - label) / (len(x) * block.slots)
        gradient["V"][...] = hidden.T @ wrong
        gradient["W"][...] = x.T @ ((wrong @ weights["V"][:-1].T) * (z > 0))
        self.net.push(gradient)

        loss = np.logaddexp(0, np.where(label > 0, -score, score)).sum()
        return {"units": len(x), "examples": len(x), "loss": float(loss)}

    def finish(self):
        self.net.settle()
