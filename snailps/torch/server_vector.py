"""A vector at the servers, as a process that trains with it sees it.

    ask -> pull under way -> refresh -> set_from(rows);  push -> the table's access method

What the vector is of, is its subclasses' matter: `DenseParameters`, and `Buffers` of a module.
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
"""Base of the digits of a count: 2^24 / `BASE` processes may each carry at once, exactly."""
COUNT = "num_batches_tracked"
"""The one integer buffer that is kept: of the normalisations of PyTorch."""


class ServerVector:
    """Rows of one table, of `keys` from 0, that a process pulls and pushes as a whole.

    `start` are the first values: the servers have what was added to them.  `factor` is of the step
    size.
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
        """Sets the values to the first ones and what has been added to them."""
        raise NotImplementedError

    def ask(self) -> None:
        """Starts a pull, unless one is under way."""
        if self._pull is None:
            self._pull = self._rows.pull_async(self.table.name, self.keys, self._pulled)

    def refresh(self) -> None:
        """Sets the values to those at the servers, as of the last `ask`, else of now."""
        self.ask()
        pull, self._pull = self._pull, None
        assert pull is not None
        self.set_from(pull.wait())

    def forget(self) -> None:
        """Gives up a pull that is under way."""
        if self._pull is not None:
            self._pull.abandon()
            self._pull = None
            self._pulled = np.empty_like(self._pulled)  # its answer may still come into the old one

    def push(self, values: Rows, keys: Keys | None = None) -> Pending:
        """Starts a push of values, of all rows or of `keys`; they must not change any more."""
        keys = self.keys if keys is None else keys
        return self._rows.push_async(self.table.name, keys, values, self.factor)


class Buffers(ServerVector):
    """The persistent float buffers of a module, and its counts of batches, as rows of one table.

    Running means and variances of BatchNorm, say: what each forward adds to them is pushed as a
    difference, so they move with the batches of all processes.  It is no step of a gradient: each
    process moves a mean all the way to its own batch, so of several processes each pushes its share
    of that, else N of them move it N times as far, and from some number on away.  Counts are sums.
    A mean over all batches (BatchNorm with ``momentum=None``) moves by a share of its count: with
    the batches that N - 1 others make meanwhile.  A count is two floats, of `BASE`, because sums of
    float32 are exact up to 2^24 only.  `values` are as they were last set, and counted since.
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
        """Numbers of counts, and places of the means over as many batches; `ends` of all places."""
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
        """The buffers, but for counts; and these."""
        rows = np.zeros_like(self._pulled)
        counts: list[int] = []
        flat, at = rows.reshape(-1), 0
        for owner, key in self._places:
            one = owner.get_buffer(key)
            if self._is_count(owner, key):
                counts.append(int(one))
            else:
                flat[at : at + one.numel()] = one.detach().numpy().reshape(-1)
            at += one.numel()
        return rows, np.array(counts, np.int64)

    def set_from(self, steps: Rows) -> None:
        """Sets the buffers to the first values and what has been added to them."""
        np.add(self.start, steps, out=self.values)
        self.write()

    def write(self) -> None:
        """Sets the buffers to `values`."""
        digits = self.values.reshape(-1).astype(np.float64)
        self._counts = np.rint(digits[self._low] + BASE * digits[self._high]).astype(np.int64)
        counts = iter(self._counts.tolist())
        flat, at = torch.from_numpy(self.values).view(-1), 0
        for owner, key in self._places:
            one = owner.get_buffer(key)
            if self._is_count(owner, key):
                one.data.fill_(next(counts))
            else:
                one.data.copy_(flat[at : at + one.numel()].view(one.shape))  # past autograd
            at += one.numel()

    def note_forward(self) -> None:
        """Keeps what a forward has added, for `take_change`: a later change is a script's."""
        self._noted += self._changed()

    def take_edit(self) -> Rows:
        """Take what was set since buffers were set, noted, or taken."""
        edit = self._changed()
        self.values.reshape(-1)[self._digits] += edit.reshape(-1)[self._digits]
        return edit

    def take_change(self, share: float = 1.0, *, counts: float = 1.0, carries: bool = True) -> Rows:
        """Take what forwards have added since buffers were set, or the last call, times `share`.

        Of counts `counts` times that.  With `carries` it moves what has gathered in a low digit, if
        that is much: by one at a time, so that processes which do it at once leave a digit that is
        small, too.
        """
        change = self._noted + self._changed()
        self._noted.fill(0.0)
        flat, known = change.reshape(-1), self.values.reshape(-1)
        added = flat[self._digits].astype(np.float64) * counts
        if counts == 1.0:  # else all batches count as one
            own, others = added[: len(self._low)] + BASE * added[len(self._low) :], 1 / share - 1
            for at, places in self._means:
                flat[places] /= share * (1 + others * own[at] / max(1, self._counts[at]))
        change *= np.float32(share)
        flat[self._digits] = added
        if carries:
            carry = np.sign(known[self._low]) * (np.abs(known[self._low]) >= BASE)
            flat[self._low] -= BASE * carry
            flat[self._high] += carry
        known[self._digits] += flat[self._digits]
        return change

    def _changed(self) -> Rows:
        """What is not as `values` have it, which follow but for the digits of counts."""
        now, counts = self._now()
        change = now - self.values
        flat, added = change.reshape(-1), counts - self._counts
        high = np.trunc(added / BASE)
        flat[self._low], flat[self._high] = added - BASE * high, high
        now.reshape(-1)[self._digits] = self.values.reshape(-1)[self._digits]
        self.values, self._counts = now, counts
        return change


def _kept(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Modules and names of the buffers that are kept, each buffer once."""
    seen: set[int] = set()
    for owner in module.modules():
        for key, one in owner._buffers.items():
            if one is None or id(one) in seen or key in owner._non_persistent_buffers_set:
                continue
            if one.dtype == torch.float32 or key == COUNT:
                seen.add(id(one))
                yield owner, key
