"""The dense layers of a network after its first, and their loss, in NumPy and BLAS.

    Z (m, h) -> + bias -> activation -> layers -> scores (m, outputs) -> loss
    dL/dscores -> the layers backwards -> gradients of weights and biases, dL/dZ

`sparse/net.py` and `mlp/` compute Z, the product of the first layer.  Parameters, by name: a weight
matrix for each later layer, and one array with all biases, including the first layer's.  Knows no
tables.
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
    """A stack of dense layers; `sizes` are the widths from Z to the scores."""

    sizes: tuple[int, ...]
    activation: str
    loss: str

    def tensors(self, **options: object) -> list[Tensor]:
        """Declare the parameters: weights after Glorot and Bengio (AISTATS 2010), biases 0."""
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
        """Compute scores of examples, float32 (m, outputs), before any link function."""
        return self._forward(z, parameters)[-1]

    def step(
        self,
        z: Floats,
        parameters: Mapping[str, Floats],
        labels: Floats,
        weights: Floats,
        gradients: Mapping[str, Floats],
        out_of: float,
    ) -> tuple[float, float, Floats]:
        """Write the gradients of all parameters to `gradients`.

        Returns the weighted sum of losses, the sum of weights, and dL/dZ.  L is the mean loss of a
        batch: these m examples may be a part of it, so the sum is divided by `out_of`, the sum of
        the whole batch's weights, and gradients of parts add up.  Empty `weights`
        mean ones.
        """
        outputs = self._forward(z, parameters)
        loss, delta = LOSSES[self.loss].slopes(outputs[-1], labels)
        weight = float(len(labels))
        if len(weights):
            loss, delta = loss * weights, delta * weights[:, None]
            weight = float(weights.sum(dtype=np.float64))
        if out_of > 0:
            delta *= np.float32(1 / out_of)
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
        """Compute the outputs of all layers, from the first layer's activation to the scores."""
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
        raise ConfigError(f"{where}: expected widths from 1 to {DIM_MAX}, got {got}")
