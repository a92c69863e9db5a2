"""Access methods written in Python: the base class that users subclass, and its loading.

    keys -> init -> rows        rows -> pull -> weights        rows, values -> push -> rows

A server makes one instance a shard, and calls it in that shard's thread alone, on blocks of rows
as NumPy arrays (`shard/_python_methods.pyx`).  Knows no sockets, fragments or marks.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from snailps.api.class_loading import load_named

__all__ = ["AccessMethod", "load_method"]

Keys = NDArray[np.uint64]
Rows = NDArray[np.float32]


class Declaration(Protocol):
    """What an access method may read of the `Table` that names it."""

    @property
    def name(self) -> str: ...
    @property
    def access(self) -> str: ...
    @property
    def dim(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def eps(self) -> float: ...
    @property
    def beta1(self) -> float: ...
    @property
    def beta2(self) -> float: ...
    @property
    def l1(self) -> float: ...
    @property
    def l2(self) -> float: ...
    @property
    def beta(self) -> float: ...
    @property
    def seed(self) -> int: ...
    def fill_first(self, keys: Keys, out: Rows) -> None: ...


class AccessMethod:
    """What a push does to rows, written in Python.

    Subclass it in a module that every server can import, and name it in a table:
    ``Table("w", 8, access="package.module:Class")``.  Only `push` must be written.

    Parameters
    ----------
    table : Table
        The declaration, whose ``lr``, ``eps`` and other numbers the method may use.

    Attributes
    ----------
    table : Table
    dim : int
        Weights of a row.
    state_floats : int
        How many float32 values of state follow a row's weights; 0 unless the subclass sets it, as
        a class attribute or in `__init__`.

    Notes
    -----
    Each shard has one instance and calls it in its own thread, which serves nothing else meanwhile.
    A call costs some 30 us beside its own work, once for each part (64 KiB) of a pull or push.
    Arrays are copies: they may be changed, or kept.  An exception goes to the worker whose request
    caused it, with its traceback, and nothing of that push is applied.  Results must depend on the
    arguments alone: a shard's rows may move to another server, and its standby repeats each call.

    Examples
    --------
    >>> class Largest(AccessMethod):
    ...     def push(self, rows, values):
    ...         return np.maximum(rows, values)
    """

    state_floats: int = 0

    def __init__(self, table: Declaration) -> None:
        self.table = table
        self.dim = table.dim

    def init(self, keys: Keys) -> Rows:
        """Make the first rows of keys that were never pushed.

        Default: weights by the table's `init`, then a state of zeros.

        Parameters
        ----------
        keys : numpy.ndarray
            uint64 (n,).

        Returns
        -------
        numpy.ndarray
            float32 (n, dim + state_floats); must depend on the keys alone.
        """
        rows = np.zeros((len(keys), self.dim + self.state_floats), np.float32)
        first = np.empty((len(keys), self.dim), np.float32)
        self.table.fill_first(np.ascontiguousarray(keys, np.uint64), first)
        rows[:, : self.dim] = first
        return rows

    def pull(self, rows: Rows) -> Rows:
        """Make the values that a worker gets for `rows`; default: their weights.

        Parameters
        ----------
        rows : numpy.ndarray
            float32 (n, dim + state_floats).

        Returns
        -------
        numpy.ndarray
            float32 (n, dim).
        """
        return rows[:, : self.dim]

    def assign(self, keys: Keys, values: Rows) -> Rows:
        """Make the rows of keys whose weights are set (`Worker.assign`).

        Default: the rows of `init`, with these weights.

        Parameters
        ----------
        keys : numpy.ndarray
            uint64 (n,), each once.
        values : numpy.ndarray
            float32 (n, dim).

        Returns
        -------
        numpy.ndarray
            float32 (n, dim + state_floats); `pull` of these rows must give `values`.
        """
        rows = self.init(keys)
        rows[:, : self.dim] = values
        return rows

    def push(self, rows: Rows, values: Rows) -> Rows:
        """Compute the rows after a push.

        Parameters
        ----------
        rows : numpy.ndarray
            float32 (n, dim + state_floats), each key once.
        values : numpy.ndarray
            float32 (n, dim); values of repeated keys are summed already.

        Returns
        -------
        numpy.ndarray
            float32 (n, dim + state_floats).
        """
        raise NotImplementedError(f"{type(self).__name__} has no push()")


def load_method(table: Declaration) -> AccessMethod:
    """Make an instance of the class that ``table.access`` names; `ConfigError` if there is none."""
    where = f"table {table.name!r}: access: {table.access}"
    return load_named(table.access, where, AccessMethod)(table)
