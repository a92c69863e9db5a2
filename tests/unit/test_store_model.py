"""store._store against a plain Python model: whatever is done to both, they answer the same."""

from functools import partial

import cases
import numpy as np
import pytest
from first_rows import first_row
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from stores import NORMAL, TOP, UNIFORM, ZEROS, keys_of, marks_of, scan_all, ticks_of
from twins import store as twin

from snailps.abi import loops
from snailps.errors import SnailError
from snailps.store._store import ShardStore

FRAG_NUM = 4
POOL = [0, 1, 2, TOP, TOP - 1, 2**63, 2**32, 2**32 - 1, *range(1000, 1030)]
KEYS = st.lists(st.sampled_from(POOL) | st.integers(0, TOP), max_size=40)
FRAGMENTS = st.integers(0, FRAG_NUM - 1)
INCARNATIONS = st.sampled_from([0, 1, 2, 77, TOP])
TABLES = st.integers(0, 5)
HYPER = (0.125, 1e-6, 0.5, 0.75, 0.25, 0.5, 1.0, 0.0)
# Table id -> the settings it is declared with: one of every access method and initialiser.
SHAPES = {
    0: (1, twin.ADD, ZEROS, 0.0, 1, HYPER, 0),
    1: (5, twin.SGD, UNIFORM, 0.25, 2, HYPER, 1),
    2: (3, twin.ADAGRAD, NORMAL, 1.0, TOP, HYPER, 0),
    3: (100, twin.ADD, UNIFORM, 0.5, 3, HYPER, 1),
    4: (4, twin.ADAM, UNIFORM, 0.5, 3, HYPER, 1),
    5: (2, twin.FTRL, UNIFORM, 0.5, 3, HYPER, 0),
}


class StoreMachine(RuleBasedStateMachine):
    """Whatever is done to a ShardStore and to the model, both answer the same."""

    def __init__(self):
        super().__init__()
        self.store = ShardStore(FRAG_NUM, loops.row_ops())
        self.model = twin.StoreModel(FRAG_NUM, partial(first_row, loops))

    @rule(table=TABLES)
    def declare(self, table):
        self.store.add_table(table, *SHAPES[table])
        self.model.add_table(table, *SHAPES[table])

    @rule(fragments=st.lists(FRAGMENTS))
    def own(self, fragments):
        self.store.own(fragments)
        self.model.own(fragments)

    @rule()
    def own_all(self):
        self.own(range(FRAG_NUM))

    @rule(fragment=FRAGMENTS)
    def disown(self, fragment):
        if fragment in self.model.rows:
            self.store.disown(fragment)
            self.model.disown(fragment)
        else:
            with pytest.raises(SnailError, match="not owned"):
                self.store.disown(fragment)

    def push_both(self, table, incarnation, seq, keys, state=False):
        dim, access = SHAPES[table][:2]
        width = dim + twin.state_floats(access, dim) if state else dim
        # Small multiples of 1/8: sums and products stay exact in float32.
        values = (np.arange(len(keys) * width) % 17 - 8).astype(np.float32) / 8
        values = values.reshape(len(keys), width)
        if state:
            values[:, dim:] **= 2  # sums of squares only grow
        try:
            expected = self.model.push(table, incarnation, seq, keys, values, state)
        except twin.NotOwned:
            with pytest.raises(SnailError, match="not owned"):
                self.store.push(table, incarnation, seq, keys_of(*keys), values, state)
        else:
            found = self.store.push(table, incarnation, seq, keys_of(*keys), values, state)
            assert found == expected

    @rule(table=TABLES, incarnation=INCARNATIONS, seq=st.integers(1, 30), keys=KEYS)
    def push(self, table, incarnation, seq, keys):
        if table in self.model.tables:
            self.push_both(table, incarnation, seq, keys)

    @rule(table=TABLES, incarnation=INCARNATIONS, seq=st.integers(1, 30), keys=KEYS)
    def push_state(self, table, incarnation, seq, keys):
        if table in self.model.tables and SHAPES[table][1] != twin.ADAM:
            self.push_both(table, incarnation, seq, keys, state=True)

    @rule(tick=st.integers(0, 20))
    def set_tick(self, tick):
        self.store.set_tick(tick)
        self.model.tick = tick

    @rule(table=TABLES, keys=KEYS)
    def delete(self, table, keys):
        if table not in self.model.tables:
            return
        try:
            expected = self.model.delete(table, keys)
        except twin.NotOwned:
            with pytest.raises(SnailError, match="not owned"):
                self.store.delete(table, keys_of(*keys))
        else:
            assert self.store.delete(table, keys_of(*keys)) == expected

    @rule(table=TABLES, start=st.integers(0, 2000), step=st.integers(1, 4))
    def delete_many(self, table, start, step):
        if table in self.model.tables and len(self.model.rows) == FRAG_NUM:
            keys = range(start, start + 300, step)
            expected = self.model.delete(table, keys)
            assert self.store.delete(table, keys_of(*keys)) == expected

    @rule(table=TABLES, before=st.integers(0, 21))
    def expire(self, table, before):
        if table in self.model.tables and SHAPES[table][6] & 1:
            assert self.store.expire(table, before) == self.model.expire(table, before)

    @rule(
        table=TABLES, seq=st.integers(1, 60), start=st.integers(0, 2000), count=st.integers(1, 300)
    )
    def push_many(self, table, seq, start, count):
        """Enough keys for indices and slabs to grow, each twice."""
        if table in self.model.tables and len(self.model.rows) == FRAG_NUM:
            self.push_both(table, 5, seq, [*range(start, start + count)] * 2)

    @rule(table=TABLES, keys=KEYS)
    def pull(self, table, keys):
        if table not in self.model.tables:
            with pytest.raises(SnailError, match="no table"):
                self.store.pull(table, keys_of(*keys))
            return
        try:
            expected = self.model.pull(table, keys)
        except twin.NotOwned:
            with pytest.raises(SnailError, match="not owned"):
                self.store.pull(table, keys_of(*keys))
            return
        near = {"rtol": 1e-4, "atol": 1e-5}
        np.testing.assert_allclose(self.store.pull(table, keys_of(*keys)), expected, **near)
        whole = self.model.pull(table, keys, state=True)
        np.testing.assert_allclose(self.store.pull(table, keys_of(*keys), True), whole, **near)

    @precondition(lambda self: self.model.tables and self.model.rows)
    @rule(max_rows=st.integers(1, 50))
    def scan(self, max_rows):
        for table in self.model.tables:
            for fragment in self.model.rows:
                keys, rows = scan_all(self.store, table, fragment, max_rows)
                assert sorted(keys) == sorted(self.model.keys_of(table, fragment))
                if keys:
                    np.testing.assert_array_equal(self.store.pull(table, keys_of(*keys)), rows)
                    np.testing.assert_allclose(
                        rows, self.model.pull(table, keys), rtol=1e-4, atol=1e-5
                    )

    @invariant()
    def sums_agree(self):
        assert self.store.fragments().tolist() == sorted(self.model.rows)
        assert marks_of(self.store) == self.model.marks
        stats = self.store.stats()
        assert set(stats["tables"]) == set(self.model.tables)
        for table in self.model.tables:
            keys = [k for f in sorted(self.model.rows) for k in self.model.keys_of(table, f)]
            assert sorted(self.store.keys(table).tolist()) == sorted(keys)
            if SHAPES[table][6]:
                ticks = {key: self.model.row(table, key).touch for key in keys}
                assert ticks_of(self.store, table) == ticks
            assert self.store.rows(table) == stats["tables"][table]["rows"] == len(keys)


TestStoreAgainstModel = StoreMachine.TestCase
TestStoreAgainstModel.settings = settings(
    max_examples=10 * cases.factor, stateful_step_count=30, deadline=None, derandomize=True
)
