"""Access methods written in Python, for shards in tests."""

import threading

import numpy as np

from snailps import AccessMethod, Table, Worker


class Momentum(AccessMethod):
    """v = 0.5 v + g; w -= lr v.  Reads as twice its weights; new rows hold their keys."""

    def __init__(self, table):
        super().__init__(table)
        self.state_floats = self.dim
        self.threads = set()

    def init(self, keys):
        rows = np.zeros((len(keys), 2 * self.dim), np.float32)
        rows[:, : self.dim] = keys[:, None]
        return rows

    def pull(self, rows):
        return 2 * rows[:, : self.dim]

    def push(self, rows, values):
        self.threads.add(threading.get_ident())
        assert len(self.threads) == 1
        rows[:, self.dim :] *= 0.5
        rows[:, self.dim :] += values
        rows[:, : self.dim] -= self.table.lr * rows[:, self.dim :]
        return rows


class Plain(AccessMethod):
    """Adds; all other methods are inherited."""

    def push(self, rows, values):
        return rows + values


class Doubled(AccessMethod):
    """Reads as twice what is stored, without state."""

    def pull(self, rows):
        return 2 * rows

    def assign(self, keys, values):
        if (values == 99).any():
            return values[:, :1]
        return values / 2

    def push(self, rows, values):
        return rows + values


class Inverse(AccessMethod):
    """A row is 1 / the last pushed value: infinite for 0."""

    def push(self, rows, values):
        with np.errstate(divide="ignore"):
            return 1 / values


class Faulty(AccessMethod):
    """Raises on values and keys that a test chooses."""

    def init(self, keys):
        if 13 in keys:
            raise KeyError("planted failure in init")
        return super().init(keys)

    def pull(self, rows):
        if (rows == 99).any():
            raise SystemExit("planted failure in pull")
        return rows

    def push(self, rows, values):
        if values[0, 0] == -1:
            raise ValueError("planted failure \u4e2d\n" + "x" * 10_000 + " its end")
        if values[0, 0] == -2:
            return rows[:, :1]
        if values[0, 0] == -3:
            return "text"
        return rows + values


class Strict(AccessMethod):
    """Adds to rows that were set before, by a first value above 100."""

    def push(self, rows, values):
        if ((rows == 0) & (values < 100)).any():
            raise ValueError("a row that was never set")
        return rows + values


class Wide(AccessMethod):
    state_floats = -1


class Silent(AccessMethod):
    pass


class Model(Worker):
    """A model with a table of `Momentum`."""

    def tables(self):
        return [Table("w", 2, access="python_methods:Momentum", lr=0.1)]
