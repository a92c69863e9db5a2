"""A vector at the servers, as a process that trains with it sees it.

    ask -> pull under way -> refresh -> set_from(rows);  push -> the table's access method

What the vector is of, is its subclasses' matter: `DenseParameters`, and `Buffers` of a module.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from snailps.api.tables import Rows as RowArray
from snailps.api.tables import Tensor
from snailps.torch.rows import Rows
from snailps.transport.client._client import Pending

COUNT = "num_batches_tracked"
"""The one integer buffer that is kept: of the normalisations of PyTorch."""


class ServerVector:
    """Rows of one table that a process pulls and pushes as a whole.

    Parameters
    ----------
    rows : Rows
    tensor : Tensor
        Declared here.

    Attributes
    ----------
    table : Table
    start : numpy.ndarray
        float32 (rows, floats of a row): the first values.  The servers have what was added to them.
    factor : float
        Of the step size.
    """

    start: RowArray

    def __init__(self, rows: Rows, tensor: Tensor) -> None:
        self.tensor, self.table = tensor, tensor.table()
        self.factor = 1.0
        self._rows, self._keys = rows, tensor.keys()
        self._pulled: RowArray = np.empty((len(self._keys), self.table.dim), np.float32)
        self._pull: Pending | None = None
        rows.declare(self.table)

    def set_from(self, steps: RowArray) -> None:
        """Sets the values to the first ones and what has been added to them."""
        raise NotImplementedError

    def ask(self) -> None:
        """Starts a pull, unless one is under way."""
        if self._pull is None:
            self._pull = self._rows.pull_async(self.table.name, self._keys, self._pulled)

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

    def push(self, values: RowArray) -> Pending:
        """Starts a push of values, which must not change any more."""
        return self._rows.push_async(self.table.name, self._keys, values, self.factor)


class Buffers(ServerVector):
    """The persistent float buffers of a module, and its counts of batches, as rows of one table.

    Running means and variances of BatchNorm, say: what each forward adds to them is pushed as a
    difference, so they move with the batches of all processes.

    Parameters
    ----------
    rows : Rows
    module : nn.Module
        With such buffers (`has_any`).
    name : str
        Of the table.

    Attributes
    ----------
    values : numpy.ndarray
        float32 (rows, floats of a row): as they were last set, and counted by `take_change`.
    """

    def __init__(self, rows: Rows, module: nn.Module, name: str) -> None:
        self._places = list(_kept(module))
        size = sum(owner.get_buffer(key).numel() for owner, key in self._places)
        super().__init__(rows, Tensor(name, (size,)))
        self.values = self._now()
        self.start = self.values.copy()

    @staticmethod
    def has_any(module: nn.Module) -> bool:
        """Whether a module has buffers to keep."""
        return any(True for _ in _kept(module))

    def _now(self) -> RowArray:
        rows = np.zeros_like(self._pulled)
        flat, at = rows.reshape(-1), 0
        for owner, key in self._places:
            one = owner.get_buffer(key)
            flat[at : at + one.numel()] = one.detach().numpy().reshape(-1)
            at += one.numel()
        return rows

    def set_from(self, steps: RowArray) -> None:
        """Sets the buffers to the first values and what has been added to them."""
        np.add(self.start, steps, out=self.values)
        self.write()

    def write(self) -> None:
        """Sets the buffers to `values`."""
        flat, at = torch.from_numpy(self.values).view(-1), 0
        for owner, key in self._places:
            one = owner.get_buffer(key)
            one.data.copy_(flat[at : at + one.numel()].view(one.shape))  # past autograd
            at += one.numel()

    def take_change(self) -> RowArray:
        """What forwards have added since the buffers were set, or this was called."""
        now = self._now()
        change = now - self.values
        self.values = now
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
