"""Tensors of a dense model at a worker: pulled into a flat array, gradients pushed from one.

    Parameters.pull -> Pull -> use -> Vector of weights
    blank -> Vector to be filled with gradients -> push

A `Vector` has the layout in which its tensors are sent, so nothing is copied; the layers' arrays
are views of it.  No layers, no losses.
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
    """Arrays of several tensors, in one flat array.

    Parameters
    ----------
    tensors : sequence of Tensor

    Attributes
    ----------
    flat : numpy.ndarray
        float32: all tensors in sequence, each padded to whole rows.  The padding is zero at first
        and arbitrary in pulled vectors.
    rows : list of numpy.ndarray
        float32 (chunks, dim) of each tensor, as sent.
    arrays : dict of numpy.ndarray
        float32, by name, of the tensor's shape.
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
    def __init__(self, clock: int, vector: Vector, parts: Sequence[Pending]) -> None:
        self.clock, self.vector, self._parts = clock, vector, parts

    def wait(self) -> Vector:
        """Waits until all have arrived; the parameters, the same at each call."""
        for part in self._parts:
            part.wait()
        self._parts = ()
        return self.vector


class Parameters:
    """Pulls and pushes the tensors of a model together, into and from reused arrays.

    Parameters
    ----------
    worker : Worker
        In or after its `setup`.
    tensors : sequence of Tensor
        Declared by its `tables`.

    Notes
    -----
    `Worker.prepare` may call `pull` while `Worker.train` calls the other methods: the vector that
    `use` returned does not change until `use` is called with another pull.
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
        """Starts to pull all tensors, behind all own pushes so far.

        Parameters
        ----------
        clock : int
            `Block.clock`: parameters of a clock are pulled once.  -1: there are no clocks.
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
        """The pulled vector; the previous one may be overwritten from here on."""
        vector = pull.wait()
        if self._used is not None and self._used is not vector:
            self._free.append(self._used)
        self._used = vector
        return vector

    def blank(self) -> Vector:
        """A vector for gradients, with arbitrary content: every array must be written whole."""
        return self._blanks.popleft() if self._blanks else Vector(self._tensors)

    def push(self, gradients: Vector) -> None:
        """Starts to push a vector of `blank`, which the caller must not use again."""
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
        """Waits for all pushes but the newest `kept`."""
        while len(self._pushes) > kept:
            vector, parts = self._pushes.popleft()
            for part in parts:
                part.wait()
            self._blanks.append(vector)


def pulled(results: Results, tensors: Sequence[Tensor]) -> Mapping[str, NDArray[Any]]:
    """Arrays of tensors by name, float32 of their shapes; at the master."""
    return {
        tensor.name: tensor.from_rows(results.pull(tensor.name, tensor.keys()))
        for tensor in tensors
    }
