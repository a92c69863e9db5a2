"""Plain Python model of snailps.store: dictionaries, one key at a time, easy to believe."""

import numpy as np

MASK = 2**64 - 1
ADD, SGD, ADAGRAD = 0, 1, 2


def hash_key(key):
    """SplitMix64's output function at state `key` + golden ratio, in whole numbers."""
    x = (key + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def fragment_of(key, frag_num):
    return ((hash_key(key) >> 32) * frag_num) >> 32


class NotOwned(Exception):
    pass


class StoreModel:
    """What a ShardStore should do.  `init_row(kind, scale, seed, key, dim)` gives first rows."""

    def __init__(self, frag_num, init_row):
        self.frag_num = frag_num
        self.init_row = init_row
        self.tables = {}  # table id -> settings
        self.rows = {}  # fragment -> {(table id, key): [weights, state]}, in order of creation
        self.marks = {}  # fragment -> {incarnation: seq}

    def own(self, fragments):
        for fragment in fragments:
            self.rows.setdefault(fragment, {})
            self.marks.setdefault(fragment, {})

    def disown(self, fragment):
        del self.rows[fragment]
        del self.marks[fragment]

    def add_table(self, table_id, dim, access, init, scale, seed, hyper):
        self.tables[table_id] = (dim, access, init, scale, seed, hyper)

    def _check(self, keys):
        for key in keys:
            if fragment_of(key, self.frag_num) not in self.rows:
                raise NotOwned(key)

    def _first(self, table_id, key):
        dim, _, init, scale, seed, _ = self.tables[table_id]
        return self.init_row(init, scale, seed, key, dim)

    def pull(self, table_id, keys):
        self._check(keys)
        out = np.empty((len(keys), self.tables[table_id][0]), np.float32)
        for i, key in enumerate(keys):
            row = self.rows[fragment_of(key, self.frag_num)].get((table_id, key))
            out[i] = self._first(table_id, key) if row is None else row[0]
        return out

    def push(self, table_id, incarnation, seq, keys, values):
        self._check(keys)
        dim, access, _, _, _, hyper = self.tables[table_id]
        lr, eps = np.float32(hyper[0]), np.float32(hyper[1])
        touched = {fragment_of(key, self.frag_num) for key in keys}
        fresh = {f for f in touched if self.marks[f].get(incarnation, 0) < seq}
        applied = 0
        for key, value in zip(keys, values, strict=True):
            fragment = fragment_of(key, self.frag_num)
            if fragment not in fresh:
                continue
            row = self.rows[fragment].setdefault(
                (table_id, key), [self._first(table_id, key), np.zeros(dim, np.float32)]
            )
            if access == ADD:
                row[0] = row[0] + value
            elif access == SGD:
                row[0] = row[0] - lr * value
            else:
                row[1] = row[1] + value * value
                row[0] = row[0] - lr * value / (np.sqrt(row[1]) + eps)
            applied += 1
        for fragment in fresh:
            self.marks[fragment][incarnation] = seq
        return applied

    def keys_of(self, table_id, fragment):
        """Keys in order of creation."""
        return [key for table, key in self.rows[fragment] if table == table_id]
