"""The sparse first layer of a network, computed at servers or worker with equal results.

    servers   entries -> shards -> partial products -> Z;    dL/dZ -> shards, which step their rows
    worker    keys -> PULL rows -> product here -> Z;        gradients of the rows -> PUSH

Both take several batches at a time, forth and back in the order of the calls.  Which moves fewer
bytes depends on the batches (`bytes_at_servers`, `bytes_at_worker`).  Knows no models.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.worker import Pending, Worker
from snailps.data._key_numbering import KeyNumbers
from snailps.dataclass import dataclass
from snailps.kernels import WIRE_TYPES

Floats = NDArray[np.float32]
HEADS_BYTES = 112
"""Headers of a request's part and of its answer."""
PART_BYTES = 64 << 10
_FLOAT_BYTES = {WIRE_TYPES["float32"]: 4, WIRE_TYPES["float16"]: 2, WIRE_TYPES["int8"]: 1}


@dataclass(frozen=True, slots=True)
class BatchEntries:
    """Sparse examples as CSR: ptr int64 (m + 1,) from 0 on, keys and values (nnz,)."""

    ptr: NDArray[np.int64]
    keys: NDArray[np.uint64]
    values: Floats

    def part(self, first: int, last: int) -> BatchEntries:
        """Examples first to last - 1."""
        a, b = int(self.ptr[first]), int(self.ptr[last])
        return BatchEntries(self.ptr[first : last + 1] - a, self.keys[a:b], self.values[a:b])


class Way(Protocol):
    """One batch through the first layer."""

    def wait(self) -> Floats:
        """Wait for Z, float32 (m, dim)."""

    def back(self, dz: Floats) -> Pending:
        """Start to step the rows by dL/dZ, float32 (m, dim), which must not change until done."""


class AtServers:
    """A batch whose product the shards compute."""

    def __init__(self, worker: Worker, table: str, entries: BatchEntries) -> None:
        self._worker = worker
        self._forward = worker.forward(table, entries.ptr, entries.keys, entries.values)

    def wait(self) -> Floats:
        """Wait for Z, the sum of the shards' products."""
        return self._forward.wait()

    def back(self, dz: Floats) -> Pending:
        return self._worker.backward(self._forward, dz)


class AtWorker:
    """A batch whose rows are pulled, and whose product is computed here."""

    def __init__(
        self, worker: Worker, table: str, entries: BatchEntries, numbers: KeyNumbers
    ) -> None:
        self._worker, self._table, self._entries = worker, table, entries
        self._keys, self._places = numbers.number(entries.keys)
        self._pull = worker.pull_async(table, self._keys)

    def wait(self) -> Floats:
        """Wait for the rows, and compute Z from them as they were when the pull was served."""
        rows = self._pull.wait()
        z = np.empty((len(self._entries.ptr) - 1, rows.shape[1]), np.float32)
        kernels.csr_product(self._entries.ptr, self._places, self._entries.values, rows, z)
        return z

    def back(self, dz: Floats) -> Pending:
        """Push the gradient of every row."""
        gradients = np.empty((len(self._keys), dz.shape[1]), np.float32)
        kernels.csr_gradients(self._entries.ptr, self._places, self._entries.values, dz, gradients)
        return self._worker.push_async(self._table, self._keys, gradients)


def key_bytes(keys: NDArray[np.uint64]) -> int:
    """Bytes that each of these keys takes on the wire."""
    if len(keys) == 0:
        return 8
    spread = int(keys.max()) - int(keys.min())
    width = max(1, (spread.bit_length() + 7) // 8)
    return width if width <= 4 else 8


def bytes_at_servers(entries: BatchEntries, dim: int, shards: int, wire: int = 0) -> int:
    """Bytes that a batch moves, forth and back, if the shards compute the product."""
    examples, nnz = len(entries.ptr) - 1, len(entries.keys)
    values = 0 if (entries.values == 1).all() else 4
    there = nnz * (key_bytes(entries.keys) + values) + 4 * examples * shards
    rows = 2 * examples * shards * _row_bytes(dim, wire)  # Z, then dL/dZ
    return int(there + rows) + _heads(rows)


def bytes_at_worker(entries: BatchEntries, dim: int, unique: int, wire: int = 0) -> int:
    """Bytes that a batch moves if its rows are pulled, and gradients pushed."""
    rows = 2 * unique * _row_bytes(dim, wire)
    keys = key_bytes(entries.keys) * unique  # the push names the list that the pull brought
    return int(keys + rows) + _heads(rows)


def _row_bytes(dim: int, wire: int) -> int:
    return dim * _FLOAT_BYTES[wire] + (4 if wire == WIRE_TYPES["int8"] else 0)


def _heads(rows_bytes: float) -> int:
    return HEADS_BYTES * (1 + int(rows_bytes) // PART_BYTES)
