"""First values of rows that were never pushed, without a server.

    keys -> FirstValues.pull -> what a server would answer: a function of (table seed, key)

No sockets, no files.
"""

from __future__ import annotations

import threading

import numpy as np

from snailps import kernels
from snailps.api.access_method import load_method
from snailps.api.tables import Keys, Rows, Table
from snailps.store._store import ShardStore

_TABLE = 1


class FirstValues:
    """First values of a table; `ConfigError` if its access method cannot be imported."""

    def __init__(self, table: Table) -> None:
        self._method = load_method(table) if table.in_python else None
        self._lock = threading.Lock()
        if self._method is None:
            self._store = ShardStore(1, kernels.row_ops())
            self._store.own([0])
            self._store.add_table(_TABLE, *table.store_arguments())

    def pull(self, keys: Keys) -> Rows:
        """Rows float32 (n, dim); thread-safe."""
        if self._method is not None:
            return np.asarray(self._method.pull(self._method.init(keys)), np.float32)
        with self._lock:  # a store belongs to one thread at a time
            return self._store.pull(_TABLE, keys)
