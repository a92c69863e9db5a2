"""Local SGD on copies of rows: what models that push differences have in common.

    keys -> pull_copies (beside the training) -> load_copies -> padded arrays -> kernel threads
         -> push_copies: one delta a row, scaled where several workers train on a row at once

Here is how rows come, wait, and go; which rows a block needs and what is done to them is the
model's.

What holds
----------
* A pull goes ahead of pushes that still wait for the socket, so that rows come in while deltas go
  out.  It may lack what pushes add that were not done when it was called, and later ones.
* A push begins only when the one before it is done.  So when the pulls of block n are called, while
  block n - 1 trains, at most the push of block n - 2 is under way; that of n - 1 follows: its rows
  are corrected with these two, and no third one can be missing.
* A push's arrays stay as they are until then, which is longer than until it is done.
* Where several workers move a row much, its prefetched copy is too old: their steps and this
  worker's would answer the same error twice over, and the row would swing.  Such rows
  (`pull_copies`: `moving`) are pulled once more when the training begins.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.worker import Pending, Results, Worker
from snailps.config import JobSettings
from snailps.errors import ConfigError

BUCKET_KEY = 1 << 40
"""Key of hash bucket 0 in a table whose word i is key i: a vocabulary may grow, no bucket moves."""
BLOCK_BYTES_MAX = 6 << 20
"""A million words of English: larger blocks pull fewer rows a word, but take memory twice over."""
EXPORT_ROWS = 50_000
EXPORT_BYTES = 16 << 20
"""Rows that the master asks for, or puts, at a time."""
OTHERS_MIN = 0.1
"""Rate x curvature x steps of the other workers below which a delta is pushed as it is: its share
is above 0.95."""
STEEP = 16
"""Directions that are looked at for a row that others hardly step on."""
ROWS_AT_ONCE = 4096
BLOCK_BYTES_SMALL = 64 << 10
"""Below this, blocks of several workers are cut half as fine: most of their rows are negatives."""

Floats = NDArray[np.float32]
Keys = NDArray[np.uint64]


class Shelf:
    """Row arrays kept for the next block: a fresh one costs a page fault every 4 KiB."""

    def __init__(self, make: Callable[[int], Floats]) -> None:
        self._make = make
        self._free: list[Floats] = []
        self._lent: dict[int, Floats] = {}
        self._lock = threading.Lock()

    def take(self, n: int) -> Floats:
        """An array of `n` rows; what is in it is left from before."""
        with self._lock:
            fitting = [array for array in self._free if len(array) >= n]
            if fitting:
                whole = min(fitting, key=len)
                self._free = [array for array in self._free if array is not whole]
            else:
                self._free = self._free[1:]  # too small for today's blocks
                whole = self._make(n + n // 8)
            view = whole[:n]
            self._lent[id(view)] = whole
            return view

    def give(self, view: Floats) -> None:
        """Takes an array back."""
        with self._lock:
            self._free.append(self._lent.pop(id(view)))


@dataclass(slots=True)
class Copies:
    """Rows that a block trains on: on their way, then as pulled (`bases`) and to train (`local`).

    One entry a table, in the order of `pull_copies`.
    """

    keys: Mapping[str, Keys]
    pulls: tuple[Pending, ...]
    moving: Mapping[str, NDArray[np.int64]]
    bases: list[Floats]
    local: list[Floats]
    squares: list[Floats]
    """AdaGrad's state of `local`, to train too; empty without."""


@dataclass(frozen=True, slots=True)
class Contention:
    """How much of a table's deltas to push when several workers train on its rows at once.

    Attributes
    ----------
    own, others : numpy.ndarray
        float32 (n,): about how many gradients each row got from this block, and how many it gets
        from the other workers meanwhile.
    curvature : float or numpy.ndarray
        Rate times curvature of the loss, a gradient: for all directions, or float32 (dim, dim).
    """

    own: Floats
    others: Floats
    curvature: float | NDArray[np.float32]

    def scale(self, deltas: Floats) -> None:
        """Turns deltas, float32 (n, dim), into the shares of them to push; see `share_of_delta`.

        Notes
        -----
        Rows of embeddings differ little between themselves in a few directions and much in all
        others: curvatures span a factor of 100.  So each direction has a share of its own, in the
        eigenvectors of `curvature`: what all workers agree on is averaged, what only a few words
        teach is added up.

        A `curvature` that is not finite has no eigenvectors: the rows have diverged, and no share
        of their deltas would mend them.  These stay as they are, and the loss tells.
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
        # Most rows are crowded along the steepest directions only, which costs a sixth.
        bounds = [np.inf, *(OTHERS_MIN / np.maximum(curvatures[[-few, -1]], 1e-30))]
        for upper, lower, count in ((0, 1, len(curvatures)), (1, 2, few)):
            rows = np.flatnonzero((self.others > bounds[lower]) & (self.others <= bounds[upper]))
            for some in np.array_split(rows, len(rows) // ROWS_AT_ONCE + 1):
                self._scale_along(deltas, some, directions[:, -count:], curvatures[-count:])

    def _scale_along(
        self, deltas: Floats, rows: NDArray[np.int64], directions: Floats, curvatures: Floats
    ) -> None:
        """Scales what some deltas have along some directions, unit vectors in columns."""
        before = deltas[rows]
        along = before @ directions
        along *= (
            share_of_delta(self.own[rows, None] * curvatures, self.others[rows, None] * curvatures)
            - 1
        )
        before += along @ directions.T
        deltas[rows] = before


class LocalSgd(Worker):
    """A worker that trains on copies of a block's rows and pushes what changed.

    Its tables must all be of one `dim` and of access method ``add``, or all ``adagrad``: then what
    is pushed are differences of weights and of sums of squares, both of which add up.  A subclass
    calls `set_up_copies` in its `setup`, `pull_copies` in `prepare`, the other two in `train`.
    """

    optimizers: ClassVar[tuple[str, ...]] = ("auto", "add")
    """What `optimizer` may be."""

    blocks_an_epoch: ClassVar[int] = 40
    """Blocks of each of several workers, 40 or more."""

    @classmethod
    def check(cls, settings: JobSettings) -> None:
        """Deltas of local SGD are added up: no access method fits that does not add, too."""
        if settings.optimizer not in cls.optimizers:
            others = "".join(f", or {name}" for name in cls.optimizers[2:])
            raise ConfigError(
                f"optimizer: {settings.optimizer} does not fit {cls.__name__}, whose workers push "
                f"differences: leave it at auto{others}"
            )

    @classmethod
    def block_bytes(cls, settings: JobSettings, total_bytes: int, workers: int) -> int:
        """A tenth of an epoch; several workers, each with a block at work and one prefetched,
        hold a twentieth together at most.  6 MiB at most.
        """
        share = total_bytes // (10 if workers == 1 else cls.blocks_an_epoch * workers)
        if workers > 1:
            share = max(share, min(BLOCK_BYTES_SMALL, total_bytes // (40 * workers)))
        return max(512, min(BLOCK_BYTES_MAX, share))

    def set_up_copies(self, dim: int, *, squares: bool = False) -> None:
        """Gets ready for rows of `dim` columns; with `squares` AdaGrad's state is behind them."""
        self._dim, self._squares = dim, squares
        self._pool = ThreadPoolExecutor(self.threads, "snailps-train")
        width = dim * (1 + squares)
        self._bases = Shelf(lambda n: np.empty((n, width), np.float32))
        self._locals = Shelf(lambda n: kernels.padded(n, dim))
        self._pushes: list[tuple[Pending, ...]] = []  # the last two blocks', oldest first

    def pull_copies(
        self,
        keys: Mapping[str, Keys],
        moving: Mapping[str, NDArray[np.int64]] = MappingProxyType({}),
    ) -> Copies:
        """Starts to pull rows.

        Parameters
        ----------
        keys : mapping
            Table -> keys, each of them once; the same tables each time.
        moving : mapping
            Table -> places in its keys of rows that the other workers move much: pulled again by
            `load_copies`.
        """
        state = self._squares
        pulls = [
            self.pull_async(table, wanted, self._bases.take(len(wanted)), state=state, ahead=True)
            for table, wanted in keys.items()
        ]
        return Copies(keys, tuple(pulls), moving, [], [], [])

    def load_copies(self, copies: Copies) -> list[Floats]:
        """Waits for the rows; padded arrays (see `kernels.padded`) to train on, one a table.

        The state, if there is any, is in ``copies.squares`` then.
        """
        for at, pull in enumerate(copies.pulls):
            copies.bases.append(pull.wait())
            for pushes in self._pushes:
                self.correct(pull, pushes[at])
        self._settle(1)  # the older one was done before the pulls of any later block were called
        self._freshen(copies)
        for base in copies.bases:
            rows = self._locals.take(len(base))
            if self._squares:
                squares = self._locals.take(len(base))
                self._in_threads(self._part, base, rows, squares)
                copies.squares.append(squares)
            else:
                self._in_threads(kernels.copy_rows, base, rows)
            copies.local.append(rows)
        return copies.local

    def _part(self, base: Floats, rows: Floats, squares: Floats) -> None:
        """Weights and state as pulled, each in an array of its own, whose padding stays zero."""
        dim = self._dim
        rows[:, :dim], squares[:, :dim] = base[:, :dim], base[:, dim:]

    def _freshen(self, copies: Copies) -> None:
        """Pulls the rows that others move much as they are now, own pushes included."""
        tables = list(copies.keys)
        pulls = [
            (
                tables.index(table),
                places,
                self.pull_async(table, copies.keys[table][places], state=self._squares),
            )
            for table, places in copies.moving.items()
        ]
        for at, places, pull in pulls:
            copies.bases[at][places] = pull.wait()

    def push_copies(self, copies: Copies, contentions: Sequence[Contention] = ()) -> None:
        """Starts to push what training changed.

        Parameters
        ----------
        copies : Copies
            Not to be used any more.
        contentions : sequence of Contention
            One a table where there are several workers.
        """
        dim = self._dim
        for at, (new, base) in enumerate(zip(copies.local, copies.bases, strict=True)):
            self._in_threads(_subtract, new[:, :dim], base[:, :dim])
            self._locals.give(new)
            if self._squares:
                self._in_threads(_subtract, copies.squares[at][:, :dim], base[:, dim:])
                self._locals.give(copies.squares[at])
            if contentions:  # of steps; sums of squares add up as they are
                contentions[at].scale(base[:, :dim])
        for pushes in self._pushes:  # the last had all of this block's training to arrive
            for push in pushes:
                push.wait()
        self._pushes.append(
            tuple(
                self.push_async(table, keys, base, state=self._squares)
                for (table, keys), base in zip(copies.keys.items(), copies.bases, strict=True)
            )
        )

    def finish(self) -> None:
        """Waits for the last pushes and takes their arrays back."""
        self._settle(0)
        self._pool.shutdown()

    def _settle(self, kept: int) -> None:
        """Waits for all pushes but the newest `kept`, and takes their arrays back."""
        while len(self._pushes) > kept:
            for push in self._pushes.pop(0):
                self._bases.give(push.wait())

    def _in_threads(self, function: Callable[..., None], *arrays: Floats) -> None:
        """Calls a row-wise kernel on row ranges, a thread each."""
        edges = np.linspace(0, len(arrays[0]), self.threads + 1).astype(int).tolist()
        tasks = [
            self._pool.submit(function, *(array[a:b] for array in arrays))
            for a, b in itertools.pairwise(edges)
        ]
        for task in tasks:
            task.result()


def share_of_delta(own: Floats, others: Floats) -> Floats:
    """Part of a row's delta to push when other workers train on it at the same time.

    Think of a row's loss as a bowl: n steps of curvature h and rate r bring the row to a share
    ``exp(-h r n)`` of its distance from the minimum.  Workers that start from one copy, with x and
    y such steps (h r n), would go ``1 - exp(-x)`` and ``1 - exp(-y)`` of the way, together too
    far, while doing the same steps in turns goes ``1 - exp(-x - y)``.  Of that, ``x / (x + y)`` is
    this worker's: all of its delta where nobody else steps on the row, a part of a mean where all
    have arrived.

    Parameters
    ----------
    own, others : numpy.ndarray
        float32: ``h r n`` of this worker's steps, and of all other workers', 0 or more.

    Returns
    -------
    numpy.ndarray
        float32, of their shape; above 0, at most 1.
    """
    own = np.maximum(own, 1e-4)
    both = own + others
    share: Floats = (np.expm1(-both) / np.expm1(-own) * (own / both)).astype(np.float32)
    return share


def key_ranges(results: Results, table: str, *ranges: tuple[int, int]) -> Iterator[Floats]:
    """Rows of key ranges (first, count) at the master, in pieces."""
    step = export_rows(results.tables[table].dim)
    return results.pulls(
        table,
        (
            np.arange(min(step, count - at), dtype=np.uint64) + np.uint64(first + at)
            for first, count in ranges
            for at in range(0, count, step)
        ),
    )


def export_rows(dim: int) -> int:
    """How many rows of this width the master asks for, or puts, at a time."""
    return max(1, min(EXPORT_ROWS, EXPORT_BYTES // (4 * dim)))


def _subtract(new: Floats, base: Floats) -> None:
    """``base = new - base``: what training changed."""
    np.subtract(new, base, out=base)
