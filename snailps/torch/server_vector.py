"""A vector on the servers, from the view of one process that trains with it.

    ask -> pull under way -> refresh -> set_from(rows);  push -> the table's access method

Owns its pull that is under way.  Subclasses decide what the values are: `DenseParameters`, and the
`Buffers` of a module.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from snailps.api.tables import Keys, Rows, Table, Tensor
from snailps.torch.rows import RowClient
from snailps.transport.client._client import Pending

BASE = 1 << 15
"""Base of the two digits of a count.  Up to 2^24 / `BASE` processes may carry at the same time, and
float32 is still exact."""
COUNT = "num_batches_tracked"
"""The only integer buffer that is kept; PyTorch's normalisations have it."""


class ServerVector:
    """Rows of one table, with `keys` from 0 on, that a process pulls and pushes as a whole.

    `start` are the first values; the servers store what was added to them.  `factor` multiplies the
    table's step size.
    """

    start: Rows

    def __init__(self, rows: RowClient, table: Table, keys: Keys) -> None:
        self.table, self.keys = table, keys
        self.factor = 1.0
        self._rows = rows
        self._pulled: Rows = np.empty((len(keys), table.dim), np.float32)
        self._pull: Pending | None = None
        rows.declare(self.table)

    def set_from(self, steps: Rows) -> None:
        """Set the values to the first values plus `steps`, the sums on the servers."""
        raise NotImplementedError

    def ask(self) -> None:
        """Start a pull, unless one is under way."""
        if self._pull is None:
            self._pull = self._rows.pull_async(self.table.name, self.keys, self._pulled)

    def refresh(self) -> None:
        """Set the values to the servers' values at the last `ask`, or now if nothing was asked."""
        self.ask()
        pull, self._pull = self._pull, None
        assert pull is not None
        self.set_from(pull.wait())

    def forget(self) -> None:
        """Abandon a pull that is under way."""
        if self._pull is not None:
            self._pull.abandon()
            self._pull = None
            self._pulled = np.empty_like(self._pulled)  # a late answer may come into the old array

    def push(self, values: Rows, keys: Keys | None = None) -> Pending:
        """Start a push of values, for all rows or for `keys`; they must not change afterwards."""
        keys = self.keys if keys is None else keys
        return self._rows.push_async(self.table.name, keys, values, self.factor)


class Buffers(ServerVector):
    """The persistent float buffers of a module, and its counts of batches, as rows of one table.

    Such as running means and variances of BatchNorm.  The change that a forward makes is pushed as
    a difference, so the buffers follow the batches of all processes.  It is not a step of a
    gradient: each process moves a mean all the way towards its own batch.  So each of N processes
    pushes only its share; whole differences would move the mean N times as far, and beyond the
    batches.  Counts are pushed whole, as sums.  A mean over all batches (BatchNorm with
    ``momentum=None``) moves by a share that accounts for the batches of the N - 1 other processes.
    A count is two digits to the base `BASE`, because float32 is exact only up to 2^24.  `values`
    are the buffers as they were last set, with the counts since.
    """

    def __init__(self, rows: RowClient, module: nn.Module, name: str) -> None:
        self._places = list(_kept(module))
        sizes = [owner.get_buffer(key).numel() for owner, key in self._places]
        counts = [self._is_count(*place) for place in self._places]
        ends = np.cumsum(sizes)
        self._low = ends[counts] - 1
        self._high = np.arange(len(self._low)) + ends[-1]
        self._digits = np.concatenate([self._low, self._high])
        self._means = self._means_over_all(ends)
        tensor = Tensor(name, (int(ends[-1]) + len(self._low),))
        super().__init__(rows, tensor.table(), tensor.keys())
        self.values, self._counts = self._now()
        flat = self.values.reshape(-1)
        flat[self._high], flat[self._low] = np.divmod(self._counts, BASE)
        self.start = self.values.copy()
        self._noted = np.zeros_like(self.values)

    @staticmethod
    def _is_count(owner: nn.Module, key: str) -> bool:
        return not owner.get_buffer(key).is_floating_point()

    def _means_over_all(self, ends: NDArray[np.int64]) -> list[tuple[int, slice]]:
        """Return for each mean over all batches the index of its count, and its place.

        `ends` are the ends of all buffers in the vector.
        """
        counts = [owner for owner, key in self._places if self._is_count(owner, key)]
        means = []
        for (owner, key), end in zip(self._places, ends.tolist(), strict=True):
            if owner in counts and getattr(owner, "momentum", 0.0) is None and key != COUNT:
                size = owner.get_buffer(key).numel()
                means.append((counts.index(owner), slice(end - size, end)))
        return means

    @staticmethod
    def has_any(module: nn.Module) -> bool:
        """Whether a module has buffers to keep."""
        return any(True for _ in _kept(module))

    def _now(self) -> tuple[Rows, NDArray[np.int64]]:
        """Return the module's buffers as rows, with zeros for counts, and the counts."""
        rows = np.zeros_like(self._pulled)
        counts: list[int] = []
        flat, offset = rows.reshape(-1), 0
        for owner, key in self._places:
            buffer = owner.get_buffer(key)
            if self._is_count(owner, key):
                counts.append(int(buffer))
            else:
                flat[offset : offset + buffer.numel()] = buffer.detach().numpy().reshape(-1)
            offset += buffer.numel()
        return rows, np.array(counts, np.int64)

    def set_from(self, steps: Rows) -> None:
        """Set the buffers to the first values plus `steps`, the sums on the servers."""
        np.add(self.start, steps, out=self.values)
        self.write()

    def write(self) -> None:
        """Copy `values` into the module's buffers."""
        digits = self.values.reshape(-1).astype(np.float64)
        self._counts = np.rint(digits[self._low] + BASE * digits[self._high]).astype(np.int64)
        counts = iter(self._counts.tolist())
        flat, offset = torch.from_numpy(self.values).view(-1), 0
        for owner, key in self._places:
            buffer = owner.get_buffer(key)
            if self._is_count(owner, key):
                buffer.data.fill_(next(counts))
            else:  # `data`, so that autograd does not see the change
                buffer.data.copy_(flat[offset : offset + buffer.numel()].view(buffer.shape))
            offset += buffer.numel()

    def note_forward(self) -> None:
        """Note the change that a forward made, for `take_change`; later changes are a script's."""
        self._noted += self._changed()

    def take_edit(self) -> Rows:
        """Return the change that a script made since buffers were last set, noted, or taken."""
        edit = self._changed()
        self.values.reshape(-1)[self._digits] += edit.reshape(-1)[self._digits]
        return edit

    def take_change(self, share: float = 1.0, *, counts: float = 1.0, carries: bool = True) -> Rows:
        """Return the change by forwards since buffers were set, or since the last call, to push.

        Means are multiplied by `share`, counts by `counts`.  With `carries` a low digit that has
        become large is reduced by one carry, never more: if several processes carry at the same
        time, the digit stays small.
        """
        change = self._noted + self._changed()
        self._noted.fill(0.0)
        flat, values = change.reshape(-1), self.values.reshape(-1)
        added = flat[self._digits].astype(np.float64) * counts
        if counts == 1.0:  # else all batches count as one
            batches = added[: len(self._low)] + BASE * added[len(self._low) :]
            others = 1 / share - 1
            for i, places in self._means:
                flat[places] /= share * (1 + others * batches[i] / max(1, self._counts[i]))
        change *= np.float32(share)
        flat[self._digits] = added
        if carries:
            carry = np.sign(values[self._low]) * (np.abs(values[self._low]) >= BASE)
            flat[self._low] -= BASE * carry
            flat[self._high] += carry
        values[self._digits] += flat[self._digits]
        return change

    def _changed(self) -> Rows:
        """Return the difference between the module's buffers and `values`, and update `values`.

        The digits of counts in `values` are not updated: `take_change` and `take_edit` add them.
        """
        now, counts = self._now()
        change = now - self.values
        flat, added = change.reshape(-1), counts - self._counts
        high = np.trunc(added / BASE)
        flat[self._low], flat[self._high] = added - BASE * high, high
        now.reshape(-1)[self._digits] = self.values.reshape(-1)[self._digits]
        self.values, self._counts = now, counts
        return change


def _kept(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield modules and names of the buffers to keep, each buffer once."""
    seen: set[int] = set()
    for owner in module.modules():
        for key, buffer in owner._buffers.items():
            if buffer is None or id(buffer) in seen or key in owner._non_persistent_buffers_set:
                continue
            is_mean = buffer.dtype == torch.float32 and buffer.numel()
            # Sums follow no infinity (masks of attention, a best loss so far): it stays local.
            if key == COUNT or (is_mean and bool(buffer.isfinite().all())):
                seen.add(id(buffer))
                yield owner, key
