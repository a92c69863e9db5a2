"""store._store against a plain Python model: whatever is done to both, they answer the same."""

import cases
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from stores import NORMAL, TOP, UNIFORM, ZEROS, keys_of, scan_all
from twins import store as twin

from snailps import kernels
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
    2: (3, twin.ADAGRAD, NORMAL, 1.0, TOP, HYPER, 2),
    3: (100, twin.ADD, UNIFORM, 0.5, 3, HYPER, 3),
    4: (4, twin.ADAM, UNIFORM, 0.5, 3, HYPER, 3),
    5: (2, twin.FTRL, UNIFORM, 0.5, 3, HYPER, 0),
}


class StoreMachine(RuleBasedStateMachine):
    """Whatever is done to a ShardStore and to the model, both answer the same."""

    def __init__(self):
        super().__init__()
        self.store = ShardStore(FRAG_NUM, kernels.row_ops())
        self.model = twin.StoreModel(FRAG_NUM, kernels.init_row)
        self.copies = {}  # (table, state) -> {key: (number, row)}: what one asker holds

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
        self.store.fetch(table, keys_of(*keys))
        near = {"rtol": 1e-4, "atol": 1e-5}
        np.testing.assert_allclose(self.store.pull(table, keys_of(*keys)), expected, **near)
        whole = self.model.pull(table, keys, state=True)
        np.testing.assert_allclose(self.store.pull(table, keys_of(*keys), True), whole, **near)
        self.tracked(table, keys)
        for fragment in self.model.rows:
            own = [k for k in keys if twin.fragment_of(k, FRAG_NUM) == fragment]
            found = self.store.pull_fragment(table, fragment, keys_of(*own))
            np.testing.assert_array_equal(found, self.store.pull(table, keys_of(*own)))

    @rule(table=TABLES, keys=KEYS, state=st.booleans(), forgets=st.integers(1, 9))
    def pull_changed(self, table, keys, state, forgets):
        """An asker's copies are kept right by what is sent to it, whatever happened meanwhile."""
        if table not in self.model.tables or not SHAPES[table][6] & 2:
            return
        asker = self.copies.setdefault((table, state), {})
        for key in keys[::forgets]:
            asker.pop(key, None)
        held = [asker[key][0] if key in asker else 0 for key in keys]
        try:
            expected = self.model.pull_changed(table, keys, held, state)
        except twin.NotOwned:
            with pytest.raises(SnailError, match="not owned"):
                self.store.pull_changed(table, keys_of(*keys), keys_of(*held), state)
            return
        found = self.store.pull_changed(table, keys_of(*keys), keys_of(*held), state)
        assert found[0].tolist() == expected[0]
        assert found[1].tolist() == expected[1]
        np.testing.assert_allclose(found[2], expected[2], rtol=1e-4, atol=1e-5)
        for key, row in zip(np.array(keys)[found[1]].tolist(), found[2], strict=True):
            asker[key] = (0, row)
        for key, number in zip(keys, found[0].tolist(), strict=True):
            asker[key] = (number, asker[key][1])
        whole = self.store.pull(table, keys_of(*keys), state)
        for key, row in zip(keys, whole, strict=True):
            np.testing.assert_array_equal(asker[key][1], row)

    def tracked(self, table, keys):
        rows = [self.model.row(table, key) for key in keys]
        for bit, name, door in ((1, "touch", "touched"), (2, "version", "versions")):
            if SHAPES[table][6] & bit:
                found = getattr(self.store, door)(table, keys_of(*keys)).tolist()
                assert found == [getattr(row, name) if row else 0 for row in rows]
            else:
                with pytest.raises(SnailError, match=f"does not track {name}"):
                    getattr(self.store, door)(table, keys_of(*keys))

    @rule(fragment=FRAGMENTS, incarnation=INCARNATIONS, seq=st.integers(0, 40))
    def set_mark(self, fragment, incarnation, seq):
        if fragment in self.model.marks:
            self.store.set_mark(fragment, incarnation, seq)
            present = self.model.marks[fragment].get(incarnation, 0)
            if seq > present:
                self.model.marks[fragment][incarnation] = seq

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
        for fragment, marks in self.model.marks.items():
            assert self.store.marks(fragment) == marks
            for incarnation in (0, 1, TOP):
                assert self.store.mark(fragment, incarnation) == marks.get(incarnation, 0)
        stats = self.store.stats()
        assert set(stats["tables"]) == set(self.model.tables)
        for table in self.model.tables:
            keys = [k for f in sorted(self.model.rows) for k in self.model.keys_of(table, f)]
            assert sorted(self.store.keys(table).tolist()) == sorted(keys)
            if SHAPES[table][6] & 2:
                for fragment in self.model.rows:
                    expected = self.model.versions.get((table, fragment), 0)
                    assert self.store.version(table, fragment) == expected
            assert self.store.rows(table) == stats["tables"][table]["rows"] == len(keys)


TestStoreAgainstModel = StoreMachine.TestCase
TestStoreAgainstModel.settings = settings(
    max_examples=10 * cases.factor, stateful_step_count=30, deadline=None, derandomize=True
)
