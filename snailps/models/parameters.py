"""The tensors of a dense model at a worker: weights pulled into a flat array, gradients pushed.

    Parameters.pull -> Pull -> use -> Vector of weights
    blank -> Vector to be filled with gradients -> push

Owns which vector may be written by whom: one is in use, one is being pulled, others are being
pushed.  A `Vector` has the layout in which its tensors are sent, so nothing is copied; the arrays
of layers are views of it.  Knows no layers and no losses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.tables import Tensor
from snailps.api.worker import Pending, Results, Worker

Floats = NDArray[np.float32]


class Vector:
    """The arrays of several tensors, side by side in one flat array.

    Parameters
    ----------
    tensors : sequence of Tensor

    Attributes
    ----------
    flat : numpy.ndarray
        float32: all tensors in sequence, each padded to whole rows.  The padding is zero at first,
        and arbitrary in pulled vectors.
    rows : list of numpy.ndarray
        float32 (chunks, dim) of each tensor, as it is sent: a view of `flat`.
    arrays : dict of numpy.ndarray
        By name, float32 in the tensor's shape: a view of `flat`.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        dims = [tensor.table().dim for tensor in tensors]
        counts = [len(tensor.keys()) for tensor in tensors]
        self.flat: Floats = np.zeros(
            sum(dim * n for dim, n in zip(dims, counts, strict=True)), np.float32
        )
        self.rows: list[Floats] = []
        self.arrays: dict[str, Floats] = {}
        first = 0
        for tensor, dim, n in zip(tensors, dims, counts, strict=True):
            self.rows.append(self.flat[first : first + dim * n].reshape(n, dim))
            self.arrays[tensor.name] = tensor.from_rows(self.rows[-1])
            first += dim * n

    def __getitem__(self, name: str) -> Floats:
        """The array of a tensor."""
        return self.arrays[name]


class Pull:
    """A pull of all tensors, for one step."""

    def __init__(self, clock: int, vector: Vector, parts: Sequence[Pending]) -> None:
        self.clock, self.vector, self._parts = clock, vector, parts

    def wait(self) -> Vector:
        """Wait until all tensors have arrived; the same vector at each call."""
        for part in self._parts:
            part.wait()
        self._parts = ()
        return self.vector


class Parameters:
    """Pulls and pushes the tensors of a model together, in arrays that are used again.

    Parameters
    ----------
    worker : Worker
        The model, in or after its `setup`.
    tensors : sequence of Tensor
        Tensors that its `tables` declares.

    Notes
    -----
    `Worker.prepare` may call `pull` while `Worker.train` calls the other methods: the vector that
    `use` returned does not change until `use` is called with another pull.

    Examples
    --------
    >>> class Layer(Worker):
    ...     weights = Tensor("weights", (784, 10), access="sgd", lr=0.1)
    ...     def tables(self):
    ...         return [self.weights]
    ...     def setup(self):
    ...         self.parameters = Parameters(self, [self.weights])
    ...     def prepare(self, block):
    ...         return self.parameters.pull(block.clock)
    ...     def train(self, block):
    ...         weights = self.parameters.use(block.prepared)["weights"]
    ...         gradients = self.parameters.blank()
    ...         gradients["weights"][:] = 0.01 * weights
    ...         self.parameters.push(gradients)
    ...         return {"units": 1}
    ...     def finish(self):
    ...         self.parameters.settle()
    """

    def __init__(self, worker: Worker, tensors: Sequence[Tensor]) -> None:
        self._worker, self._tensors = worker, list(tensors)
        self._keys = [tensor.keys() for tensor in tensors]
        self._free: deque[Vector] = deque()
        self._blanks: deque[Vector] = deque()
        self._pushes: deque[tuple[Vector, list[Pending]]] = deque()
        self._last: Pull | None = None
        self._used: Vector | None = None

    def pull(self, clock: int = -1) -> Pull:
        """Start to pull all tensors, as they are after this worker's pushes so far.

        Parameters
        ----------
        clock : int
            `Block.clock`: all blocks of a clock share one pull.  -1: there are no clocks.
        """
        last = self._last
        if last is not None and clock >= 0 and last.clock == clock:
            return last
        vector = self._free.popleft() if self._free else Vector(self._tensors)
        with self._worker.corked():
            parts = [
                self._worker.pull_async(tensor.name, keys, rows)
                for tensor, keys, rows in zip(self._tensors, self._keys, vector.rows, strict=True)
            ]
        self._last = Pull(clock, vector, parts)
        return self._last

    def use(self, pull: Pull) -> Vector:
        """Wait for a pulled vector; the vector used before may be overwritten from now on."""
        vector = pull.wait()
        if self._used is not None and self._used is not vector:
            self._free.append(self._used)
        self._used = vector
        return vector

    def blank(self) -> Vector:
        """Get a vector for gradients.  Its content is arbitrary: write every array whole."""
        return self._blanks.popleft() if self._blanks else Vector(self._tensors)

    def push(self, gradients: Vector) -> None:
        """Start to push a vector of `blank`, which the caller must not use again.

        Waits until at most one earlier push is under way.
        """
        self.settle(1)
        with self._worker.corked():
            parts = [
                self._worker.push_async(tensor.name, keys, rows)
                for tensor, keys, rows in zip(
                    self._tensors, self._keys, gradients.rows, strict=True
                )
            ]
        self._pushes.append((gradients, parts))

    def settle(self, kept: int = 0) -> None:
        """Wait for all pushes but the newest `kept`."""
        while len(self._pushes) > kept:
            vector, parts = self._pushes.popleft()
            for part in parts:
                part.wait()
            self._blanks.append(vector)


def pulled(results: Results, tensors: Sequence[Tensor]) -> Mapping[str, NDArray[Any]]:
    """Read tensors at the master: float32 arrays in their shapes, by name."""
    return {
        tensor.name: tensor.from_rows(results.pull(tensor.name, tensor.keys()))
        for tensor in tensors
    }
