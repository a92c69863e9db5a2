"""A store of rows in this process that replaces servers in tests of torch modules."""

import contextlib
import importlib

import numpy as np
import torch

from snailps.errors import NotFinite
from snailps.torch.rows import inside

for _name in ("torch._dynamo", "torch.export._trace"):
    importlib.import_module(_name)  # the first use would, in seconds of a test's CPU


class Broken(torch.autograd.Function):
    """A function whose backward pass raises."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("broken")


class Done:
    """A request that is done when it is waited for, or at once."""

    def __init__(self, store, answer=lambda: None):
        self.store, self.answer, self.dropped = store, answer, False

    def wait(self, timeout_s=None):
        self.store.waited += 1
        return self.answer()

    def abandon(self):
        self.dropped = True


class StoredRows:
    """Rows of one seed, or zeros; a push with access add adds, with others it is a step of SGD."""

    clocked = False

    def __init__(self):
        self.declared, self.rows = {}, {}
        self.pulls, self.pushes, self.waited = [], [], 0
        self.corks, self.outer_corks, self._within = 0, 0, 0

    def __reduce__(self):
        return inside, ()  # as rows of a cluster

    def name(self, kind):
        return f"{kind}{len(self.declared)}"

    def declare(self, table):
        self.declared[table.name] = table

    def has_rows(self, table):
        return any(name == table for name, _ in self.rows)

    def first(self, table, key):
        if self.declared[table].init == "zeros":
            return np.zeros(self.declared[table].dim, np.float32)
        draw = np.random.default_rng([len(table), int(key) >> 32, int(key) & 0xFFFFFFFF])
        return draw.normal(size=self.declared[table].dim).astype(np.float32)

    def row(self, table, key):
        return self.rows.get((table, int(key)), self.first(table, key))

    def pull_async(self, table, keys, out):
        """Pulls rows: reads them now, writes them into the array when it is waited for."""
        self.pulls.append((table, keys.copy()))
        read = [self.row(table, key) for key in keys]

        def answer():
            for place, row in enumerate(read):
                out[place] = row
            return out

        return Done(self, answer)

    def push_async(self, table, keys, values, factor):
        assert len(np.unique(keys)) == len(keys)
        if not np.isfinite(values).all():
            raise NotFinite(f"table {table!r}: expected finite values to push")
        self.pushes.append((table, keys.copy(), values.copy(), factor))
        declared = self.declared[table]
        step = np.float32(-1 if declared.access == "add" else declared.lr * factor)
        for key, value in zip(keys, values, strict=True):
            self.rows[table, int(key)] = self.row(table, key) - step * value
        return Done(self)

    @contextlib.contextmanager
    def corked(self):
        self.corks += 1
        self.outer_corks += not self._within
        self._within += 1
        yield
        self._within -= 1
