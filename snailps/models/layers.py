"""Dense layers after a first one, and their loss, in NumPy and BLAS.

    Z (m, h) -> + bias -> activation -> layers -> scores (m, outputs) -> loss
    dL/dscores -> the layers backwards -> gradients of weights and biases, dL/dZ

The first layer's product, Z, is computed elsewhere, from sparse (`sparse/net.py`) or dense examples
(`mlp/`).  Parameters, by name: a weight matrix of each later layer, and one array of all biases,
those of the first layer included.  No tables, no sockets.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from snailps.api.tables import DIM_MAX, Tensor
from snailps.dataclass import dataclass
from snailps.errors import ConfigError
from snailps.models.losses import LOSSES

Floats = NDArray[np.float32]

BIASES = "biases"


@dataclass(frozen=True, slots=True)
class Layers:
    """A stack of dense layers after a first one; `sizes` are the widths from Z to the scores."""

    sizes: tuple[int, ...]
    activation: str
    loss: str

    def tensors(self, **options: object) -> list[Tensor]:
        """The parameters: weights uniform after Glorot and Bengio (AISTATS 2010), biases zeros."""
        made = []
        for number, (into, out) in enumerate(itertools.pairwise(self.sizes)):
            scale = (6 / (into + out)) ** 0.5
            name = f"dense{number + 1}"
            made.append(
                Tensor(name, (into, out), init="uniform", scale=scale, **options)  # type: ignore[arg-type]
            )
        return [*made, Tensor(BIASES, (sum(self.sizes),), **options)]  # type: ignore[arg-type]

    @property
    def names(self) -> list[str]:
        return [*(f"dense{number}" for number in range(1, len(self.sizes))), BIASES]

    def scores(self, z: Floats, parameters: Mapping[str, Floats]) -> Floats:
        """Scores of examples, float32 (m, outputs), before any link function."""
        return self._forward(z, parameters)[-1]

    def step(
        self,
        z: Floats,
        parameters: Mapping[str, Floats],
        labels: Floats,
        weights: Floats,
        gradients: Mapping[str, Floats],
        out_of: float = 0.0,
    ) -> tuple[float, float, Floats]:
        """Write the gradients of all parameters; weighted sum of losses, sum of weights, dL/dZ.

        L is the mean loss of a batch: the sum divided by `out_of`, the sum of weights of the batch
        that these m examples (0: all) belong to, so that gradients of the parts add up.  Empty
        `weights` are ones.
        """
        outputs = self._forward(z, parameters)
        loss, delta = LOSSES[self.loss].slopes(outputs[-1], labels)
        weight = float(len(labels))
        if len(weights):
            loss, delta = loss * weights, delta * weights[:, None]
            weight = float(weights.sum(dtype=np.float64))
        total = out_of or weight
        if total > 0:
            delta *= np.float32(1 / total)
        biases = [delta.sum(axis=0)]
        for number, name in reversed([*enumerate(self.names[:-1])]):
            np.matmul(outputs[number].T, delta, out=gradients[name])
            delta = delta @ parameters[name].T
            self._times_slope(delta, outputs[number])
            biases.append(delta.sum(axis=0))
        np.concatenate(biases[::-1], out=gradients[BIASES])
        loss_sum = float(loss.sum(dtype=np.float64))
        return loss_sum, weight, np.ascontiguousarray(delta, np.float32)

    def _forward(self, z: Floats, parameters: Mapping[str, Floats]) -> list[Floats]:
        """Outputs of all layers, from the first one's activation to the scores."""
        edges = np.cumsum((0, *self.sizes))
        first, *biases = [parameters[BIASES][a:b] for a, b in itertools.pairwise(edges)]
        outputs = [self._active(z + first)]
        for name, bias in zip(self.names, biases, strict=False):
            x = outputs[-1] @ parameters[name]
            x += bias
            outputs.append(x if len(outputs) == len(biases) else self._active(x))
        return outputs

    def _active(self, x: Floats) -> Floats:
        """Apply the activation in place."""
        if self.activation == "relu":
            return np.maximum(x, 0, out=x)
        np.negative(x, out=x)
        np.exp(np.minimum(x, 80, out=x), out=x)
        x += 1
        return np.reciprocal(x, out=x)

    def _times_slope(self, delta: Floats, output: Floats) -> None:
        """Multiply by the activation's slope, computed from its output."""
        if self.activation == "relu":
            delta *= output > 0
        else:
            delta *= output * (1 - output)


def check_widths(hidden: Sequence[str], where: str) -> None:
    if not hidden or not all(w.isdecimal() and 1 <= int(w) <= DIM_MAX for w in hidden):
        got = ", ".join(hidden) or "nothing"
        raise ConfigError(f"{where}: hidden: expected widths from 1 to {DIM_MAX}, got {got}")
