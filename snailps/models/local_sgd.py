"""Local SGD: a worker trains its own copies of rows, and pushes the differences.

    packed rows (as pulled) -> RowLayout.load -> trained rows -> subtract -> deltas -> PUSH

Owns layout and buffers of rows, kernel threads, and the share of a delta to push where several
workers train the same row (`Contention`).  `kept_rows` and `copied_rows` own which rows these are,
and when they travel.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.worker import Pending, Worker
from snailps.dataclass import dataclass
from snailps.kernels._row_exchange import share_of_delta

OTHERS_MIN = 0.1
"""Rate x curvature x steps of other workers below which a delta is pushed whole: its share would be
above 0.95."""
STEEP = 16
"""Steepest directions that are scaled for a row that other workers change little."""
ROWS_AT_ONCE = 4096

Kernel = ParamSpec("Kernel")
Result = TypeVar("Result")
Floats = NDArray[np.float32]
Keys = NDArray[np.uint64]


class ArrayPool:
    """A pool of row arrays made by ``make(n)``, for any thread.

    A new array costs a page fault every 4 KiB, which is as much as training some rows.
    """

    def __init__(self, make: Callable[[int], Floats]) -> None:
        self._make = make
        self.free: list[Floats] = []
        self.taken: dict[int, Floats] = {}
        self._lock = threading.Lock()

    def take(self, n: int) -> Floats:
        """Get an array of `n` rows with arbitrary content; `give` it back."""
        with self._lock:
            fitting = [array for array in self.free if len(array) >= n]
            if fitting:
                whole = min(fitting, key=len)
                self.free = [array for array in self.free if array is not whole]
            else:
                self.free = self.free[1:]  # blocks have grown: the oldest array is too small now
                whole = self._make(n + n // 8)
            view = whole[:n]
            self.taken[id(view)] = whole
            return view

    def give(self, view: Floats) -> None:
        with self._lock:
            self.free.append(self.taken.pop(id(view)))

    def drop(self, n: int) -> None:
        """Drop free arrays of more than 9/8 `n` rows."""
        with self._lock:
            self.free = [array for array in self.free if len(array) <= n + n // 8]


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Layout of rows in memory, packed (as pulled) and trained.

    A row has `parts` parts of `dim` floats: its weights, then its optimizer state.  Packed, they
    are contiguous.  Trained, they start `stride` floats apart, padded with zeros, in one array or,
    if `split`, in one array a part.
    """

    dim: int
    parts: int
    stride: int
    split: bool = False

    @classmethod
    def padded(cls, dim: int, parts: int = 1, *, split: bool = False) -> RowLayout:
        """Make a layout whose trained parts are padded to cache lines (`kernels.PAD` floats)."""
        return cls(dim, parts, -(-dim // kernels.PAD) * kernels.PAD, split)

    @property
    def width(self) -> int:
        """Floats of a packed row."""
        return self.parts * self.dim

    @property
    def trained_width(self) -> int:
        """Floats of a row in an array that `make` returns."""
        return self.stride if self.split else self.parts * self.stride

    @property
    def arrays(self) -> int:
        return self.parts if self.split else 1

    def make(self, n: int) -> Floats:
        """Make an array for n trained rows; if `split`, for one part of them."""
        if self.stride % kernels.PAD:
            return np.empty((n, self.trained_width), np.float32)
        return kernels.padded(n, self.trained_width)

    def load(self, packed: Floats, *trained: Floats) -> None:
        """Copy packed rows to trained rows; threads may do so for different rows."""
        dim = self.dim
        if self.split and self.parts > 1:
            for part, array in enumerate(trained):
                array[:, :dim] = packed[:, part * dim : (part + 1) * dim]
        elif self.stride == dim:
            np.copyto(trained[0], packed)
        else:
            kernels.unpack_parts(packed, trained[0], dim, self.parts)

    def subtract(self, packed: Floats, *trained: Floats) -> None:
        """``packed = trained - packed``; threads may do so for different rows."""
        dim = self.dim
        if self.split:
            for part, array in enumerate(trained):
                base = packed[:, part * dim : (part + 1) * dim]
                np.subtract(array[:, :dim], base, out=base)
        elif self.stride == dim:
            np.subtract(trained[0], packed, out=packed)
        else:
            kernels.subtract_parts(trained[0], packed, dim, self.parts)


class LocalSgd:
    """Layout, buffers and threads of the rows that a worker trains.

    With `state`, rows and deltas include the optimizer's state, and ``derive(packed)`` computes
    again what follows from it (FTRL's weights).  ``project(keys, packed)`` turns the servers' rows
    into what the model reads (`RowUpdate.READ`): every worker computes it for itself and none
    pushes it, so any number of workers makes it once.
    """

    def __init__(
        self,
        worker: Worker,
        layout: RowLayout,
        *,
        state: bool = False,
        derive: Callable[[Floats], None] | None = None,
        project: Callable[[Keys, Floats], None] | None = None,
    ) -> None:
        self.worker, self.layout, self.state, self.derive = worker, layout, state, derive
        self.project = project
        self.pool = ThreadPoolExecutor(worker.threads, "snailps-train")
        self._kernel_s, self._lock = 0.0, threading.Lock()
        self.packed = ArrayPool(lambda n: np.empty((n, layout.width), np.float32))
        self._trained = ArrayPool(layout.make)

    def pull_rows(self, table: str, keys: Keys) -> Pending:
        """Start to pull packed rows into an array of `packed`, ahead of pushes under way."""
        rows = self.packed.take(len(keys))
        return self.worker.pull_async(table, keys, rows, state=self.state, ahead=True)

    def make_trained(self, n: int) -> tuple[Floats, ...]:
        """Get arrays for n rows to train; `give_trained` them back."""
        return tuple(self._trained.take(n) for _ in range(self.layout.arrays))

    def give_trained(self, trained: Iterable[Floats]) -> None:
        for array in trained:
            self._trained.give(array)

    def close(self) -> None:
        self.pool.shutdown()

    def start(
        self, kernel: Callable[Kernel, Result], *args: Kernel.args, **named: Kernel.kwargs
    ) -> Future[Result]:
        """Start a kernel in the pool."""
        return self.pool.submit(partial(self.run, kernel, *args, **named))

    def run(
        self, kernel: Callable[Kernel, Result], *args: Kernel.args, **named: Kernel.kwargs
    ) -> Result:
        """Run a kernel here, and count its processor time."""
        begin = time.thread_time()
        try:
            return kernel(*args, **named)
        finally:
            with self._lock:
                self._kernel_s += time.thread_time() - begin

    def take_kernel_s(self) -> float:
        """Return the processor seconds of kernels that are done, and count from 0 again."""
        with self._lock:
            kernel_s, self._kernel_s = self._kernel_s, 0.0
        return kernel_s

    def in_threads(
        self,
        function: Callable[..., object],
        rows: NDArray[np.generic],
        *arrays: NDArray[np.generic] | None,
    ) -> None:
        """Call a function on ranges of rows, one a thread; with a single thread, here."""
        if self.worker.threads == 1:
            function(rows, *arrays)
            return
        edges = np.linspace(0, len(rows), self.worker.threads + 1).astype(int).tolist()
        tasks = [
            self.pool.submit(
                function, rows[a:b], *(None if each is None else each[a:b] for each in arrays)
            )
            for a, b in itertools.pairwise(edges)
        ]
        for task in tasks:
            task.result()


@dataclass(frozen=True, slots=True)
class Contention:
    """Scales a table's deltas to the shares to push, where several workers train the same rows.

    `own` and `others`, float32 (n,), estimate how many gradients each row gets from this block, and
    meanwhile from other workers.  `curvature` is rate x curvature of the loss for one gradient: a
    number for all directions, or (dim, dim).
    """

    own: Floats
    others: Floats
    curvature: float | NDArray[np.float32]

    def scale(self, deltas: Floats) -> None:
        """Scale deltas (n, dim) in place: along each eigenvector of `curvature` by its share.

        The loss of embeddings is steep in a few directions, where deltas of all workers are alike
        and must be averaged, and flat in the others, where they add up.  A `curvature` that is not
        finite means that the rows have diverged: nothing is scaled, and the loss will show it.
        """
        if not np.isfinite(self.curvature).all():
            return
        if not isinstance(self.curvature, np.ndarray):
            curvature = np.float32(self.curvature)
            deltas *= share_of_delta(self.own * curvature, self.others * curvature)[:, None]
            return
        curvatures, directions = np.linalg.eigh(self.curvature)  # ascending
        curvatures = np.maximum(curvatures, 0)
        few = min(STEEP, len(curvatures))
        # Most rows need shares in the steepest directions alone: a sixth of the work.
        bounds = [np.inf, *(OTHERS_MIN / np.maximum(curvatures[[-few, -1]], 1e-30))]
        for upper, lower, count in ((0, 1, len(curvatures)), (1, 2, few)):
            rows = np.flatnonzero((self.others > bounds[lower]) & (self.others <= bounds[upper]))
            for chunk in np.array_split(rows, len(rows) // ROWS_AT_ONCE + 1):
                self._scale_along(deltas, chunk, directions[:, -count:], curvatures[-count:])

    def _scale_along(
        self, deltas: Floats, rows: NDArray[np.int64], directions: Floats, curvatures: Floats
    ) -> None:
        """Scale the components of deltas along `directions`, unit vectors in columns."""
        before = deltas[rows]
        along = before @ directions
        along *= (
            share_of_delta(self.own[rows, None] * curvatures, self.others[rows, None] * curvatures)
            - 1
        )
        before += along @ directions.T
        deltas[rows] = before
