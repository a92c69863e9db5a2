"""Plain Python model of snailps.store: dictionaries, one key at a time, easy to believe."""

import numpy as np
from twins import kernels as steps
from twins.kernels import hash_key

ADD, SGD, ADAGRAD, ADAM, FTRL, AVERAGE, MOMENTUM, ROWWISE = range(8)


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
        self.rows = {}  # fragment -> {(table id, key): Row}, in order of creation
        self.marks = {}  # fragment -> {incarnation: seq}
        self.tick = 0

    def own(self, fragments):
        for fragment in fragments:
            self.rows.setdefault(fragment, {})
            self.marks.setdefault(fragment, {})

    def disown(self, fragment):
        del self.rows[fragment]
        del self.marks[fragment]

    def add_table(self, table_id, dim, access, init, scale, seed, hyper, track=0):
        self.tables[table_id] = (dim, access, init, scale, seed, np.float32(hyper))

    def _check(self, keys):
        for key in keys:
            if fragment_of(key, self.frag_num) not in self.rows:
                raise NotOwned(key)

    def _first(self, table_id, key):
        """First weights and state, float64."""
        dim, access, init, scale, seed, hyper = self.tables[table_id]
        row = np.zeros(dim + state_floats(access, dim))
        row[:dim] = self.init_row(init, scale, seed, key, dim)
        if access == FTRL:
            base = float(hyper[6]) / float(hyper[0])
            row[dim : 2 * dim] = -row[:dim] * base - np.sign(row[:dim]) * float(hyper[4])
        return row

    def pull(self, table_id, keys, state=False):
        self._check(keys)
        out = []
        for key in keys:
            row = self.rows[fragment_of(key, self.frag_num)].get((table_id, key))
            out.append(self._first(table_id, key) if row is None else row.floats)
        dim, access = self.tables[table_id][:2]
        width = dim + state_floats(access, dim)
        rows = np.array(out, np.float32).reshape(len(keys), width)
        return rows if state else rows[:, :dim]

    def push(self, table_id, incarnation, seq, keys, values, state=False):
        self._check(keys)
        dim, access, _, _, _, hyper = self.tables[table_id]
        touched = {fragment_of(key, self.frag_num) for key in keys}
        fresh = {f for f in touched if self.marks[f].get(incarnation, 0) < seq}
        applied = 0
        for key, value in zip(keys, values, strict=True):
            fragment = fragment_of(key, self.frag_num)
            if fragment not in fresh:
                continue
            row = self.rows[fragment].setdefault((table_id, key), Row(self._first(table_id, key)))
            if state:
                row.floats = steps.add_state_row(access, hyper, row.floats, value, dim)
            else:
                row.floats = steps.apply_row(access, hyper, row.floats, value)
            row.touch = self.tick
            applied += 1
        for fragment in fresh:
            self.marks[fragment][incarnation] = seq
        return applied

    def delete(self, table_id, keys):
        self._check(keys)
        deleted = 0
        for key in keys:
            fragment = fragment_of(key, self.frag_num)
            if self.rows[fragment].pop((table_id, key), None) is not None:
                deleted += 1
        return deleted

    def expire(self, table_id, before):
        old = [
            key
            for rows in self.rows.values()
            for (table, key), row in rows.items()
            if table == table_id and row.touch < before
        ]
        return self.delete(table_id, old)

    def row(self, table_id, key):
        return self.rows[fragment_of(key, self.frag_num)].get((table_id, key))

    def keys_of(self, table_id, fragment):
        """Keys in order of creation."""
        return [key for table, key in self.rows[fragment] if table == table_id]


class Row:
    """Weights and state, and what is tracked beside them."""

    def __init__(self, floats):
        self.floats, self.touch = floats, 0


def state_floats(access, dim):
    floats = {ADAGRAD: dim, ADAM: 2 * dim + 1, FTRL: 2 * dim, AVERAGE: dim + 1, MOMENTUM: dim}
    return floats.get(access, int(access == ROWWISE))
