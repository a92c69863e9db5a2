"""serving.recommender: what is pulled when, and what is answered by old rows and without any."""

import gc
from dataclasses import replace

import numpy as np
import pytest

from snailps import Table
from snailps.config import to_mapping
from snailps.data.name_columns import NameCounts, Names
from snailps.errors import ClusterError, ConfigError, DataError, UnknownWord, WaitTimeout
from snailps.models.embeddings import least_squares
from snailps.models.embeddings.factor_losses import encoding_of, in_units
from snailps.models.embeddings.least_squares import LINES, NO_WEIGHTS, NewRows, packed_block
from snailps.models.embeddings.mf import ITEM, USER, MatrixFactorization
from snailps.models.embeddings.settings import MfSettings
from snailps.models.embeddings.worker import KIND_KEY, TABLE
from snailps.models.rotation import shared_blocks
from snailps.models.rotation.shared_blocks import ChunkPlace
from snailps.serving import reader
from snailps.serving.cached_rows import CachedRows
from snailps.serving.recommender import Recommender
from snailps.serving.row_reader import RowReader

SETTINGS = MfSettings(
    loss="als", dim=5, epochs=2, worker_class="snailps.models.embeddings.mf:MatrixFactorization"
)
PAIRS = [("u0", "i0"), ("u0", "i1"), ("u1", "i0"), ("u1", "i2"), ("u2", "i3"), ("u0", "i4")]


class Training:
    """The rows and names of a job at a cluster; some of its keys may be out of reach.

    Has what a recommender uses of `reader.LiveRows`, of its driver and of the driver's client.
    """

    def __init__(self, settings=SETTINGS, pairs=PAIRS, seed=1):
        counts = NameCounts(2)
        for kind in (USER, ITEM):
            counts.add(kind, [pair[kind].encode() for pair in pairs])
        counts.add_values(np.arange(len(pairs) * settings.predicts, dtype=float))
        self.settings, self.summarised = settings, counts.dump()
        self.names = Names(self.summarised)
        rng = np.random.default_rng(seed)
        self.rows = [
            rng.normal(size=(len(names), settings.row_dim)).astype(np.float32)
            for names in self.names.names
        ]
        self.tables = {TABLE: Table(TABLE, settings.row_dim), LINES: shared_blocks.table(LINES)}
        self.lines: dict[int, np.ndarray] = {}
        self.lost, self.lives, self.pulls, self.asked = False, 0, 0, 0
        self.connected, self.now = True, 50.0
        self.limit_s, self.limits, self.abandoned = 0.7, [], 0
        self.driver = self.client = self

    # --- as LiveRows ---

    @property
    def table(self):
        return self.tables[TABLE]

    def joins(self):
        return self.lives

    def close(self):
        self.connected = False

    def pull(self, keys, rows):
        self.pulls += len(keys)
        if self.lost:
            return np.zeros(len(keys), bool), WaitTimeout("no answer")
        if rows.shape[1] != self.table.dim:
            return np.zeros(len(keys), bool), ClusterError("rows of another width: ask again")
        sides, numbers = np.divmod(keys.astype(np.int64), KIND_KEY)
        rows[:] = [self.rows[side][number] for side, number in zip(sides, numbers, strict=True)]
        return np.ones(len(keys), bool), None

    # --- as a driver ---

    def newest_job(self):
        self.asked += 1
        return 1, to_mapping(self.settings)

    def summary(self, number):
        assert number == 1
        return self.summarised

    def all_tables(self):
        return {name: (number, table) for number, (name, table) in enumerate(self.tables.items())}

    # --- as a client, of lines ---

    def pull_async(self, number, keys, rows):
        self.lines_asked = keys
        return self

    def wait(self, limit_s):
        self.limits.append(limit_s)
        if self.lost:
            raise WaitTimeout("no answer")
        return self.of_lines(self.lines_asked)

    def abandon(self):
        self.abandoned += 1

    # --- lines ---

    def of_lines(self, keys):
        zeros = np.zeros(shared_blocks.ROW_FLOATS, np.float32)
        return np.stack([self.lines.get(key, zeros) for key in keys.tolist()])

    def assign(self, table, keys, rows):
        assert table == LINES
        self.lines.update(zip(keys.tolist(), rows, strict=True))

    def write_lines(self, pairs=PAIRS):
        """The pairs as pass 0 leaves them: one block, one range."""
        numbers = [
            self.names.numbers(kind, [pair[kind].encode() for pair in pairs]) for kind in (0, 1)
        ]
        bounds = np.array([0, len(self.names.names[USER])])
        head, words = packed_block(*numbers, NO_WEIGHTS, bounds)
        shared_blocks.put(self, ChunkPlace(LINES, USER, USER), 0, head, words)

    def recommender(self, max_age_s=10.0, unreachable="error"):
        def clock():
            return self.now

        cached = CachedRows(self, cache_bytes=1 << 16, max_age_s=max_age_s, clock=clock)
        users = RowReader(cached, unreachable)
        return Recommender("there:1", self, users, max_age_s, unreachable, clock)

    def best(self, row, without=()):
        """All items by a row, best first."""
        names = [name.decode() for name in self.names.names[ITEM]]
        values = self.rows[ITEM] @ row
        ordered = [(names[at], values[at]) for at in np.argsort(-values)]
        return [
            (name, pytest.approx(value, abs=1e-5)) for name, value in ordered if name not in without
        ]

    def row_of(self, user):
        return self.rows[USER][self.names.names[USER].index(user.encode())]


@pytest.fixture
def training():
    made = Training()
    made.write_lines()
    return made


def test_answers_are_those_of_the_rows_of_that_moment(training):
    shop = training.recommender()
    for _ in range(2):
        assert shop.recommend("u1") == training.best(training.row_of("u1"), ("i0", "i2"))
        assert shop.recommend("u1", known=True) == training.best(training.row_of("u1"))
        solver = least_squares.solver_of(SETTINGS, training.names)
        places = training.names.numbers(ITEM, [b"i1", b"i3"])
        row = NewRows(training.rows[ITEM], solver).solve(places)
        assert shop.recommend(items=["i1", "i3"]) == training.best(row, ("i1", "i3"))
        assert shop.recommend(items=["i1", "i3"], k=1, known=True) == training.best(row)[:1]
        assert shop.neighbours("i3", 2)[0][0] != "i3"
        for rows in training.rows:
            rows[:] = rows[::-1].copy()
        training.now += 11
    with pytest.raises(UnknownWord, match="u9"):
        shop.recommend("u9")
    with pytest.raises(DataError, match="expected a user, or the items of one"):
        shop.recommend()


def test_several_users_are_answered_by_one_pull_of_their_rows(training):
    shop, users = training.recommender(max_age_s=0.0), ["u2", "u0", "u2", "u1"]
    one_by_one = [shop.recommend(user, 2, ["i2"]) for user in users]
    pulls, items = [], len(training.names.names[ITEM])
    pull = training.pull

    def noted(keys, *rows):
        pulls.append(len(keys))
        return pull(keys, *rows)

    training.pull = noted
    assert shop.recommend(np.array(users), 2, (name for name in ["i2"])) == one_by_one
    assert pulls == [items, 3]
    assert shop.recommend([]) == []
    with pytest.raises(UnknownWord, match="None is none of its 3 users"):
        shop.recommend(["u1", None])


def test_ratings_have_their_own_units():
    training = Training(replace(SETTINGS, loss="squared", dim=4))
    shop = training.recommender()
    encoding = encoding_of(training.names, training.settings)
    users, items = (in_units(rows, encoding) for rows in training.rows)
    place = training.names.names[USER].index(b"u1")
    wanted = encoding.centre + users[place, 0] + items[:, 0] + items[:, 1:] @ users[place, 1:]
    best = shop.recommend("u1")
    assert [value for _, value in best] == pytest.approx(sorted(wanted, reverse=True), abs=1e-4)
    with pytest.raises(DataError, match="needs a model of loss als, not squared"):
        shop.recommend(items=["i1"])


def test_items_are_pulled_once_in_their_age(training):
    shop = training.recommender(max_age_s=10.0)
    items = len(training.names.names[ITEM])
    for _ in range(5):
        shop.recommend(items=["i1"])
        training.now += 1.9
    assert (training.pulls, training.asked) == (items, 1)
    training.now += 0.6
    shop.recommend(items=["i1"])
    assert (training.pulls, training.asked, shop.age_s) == (2 * items, 1, 0)
    shop.refresh()
    assert training.pulls == 3 * items
    forever = training.recommender(max_age_s=None)
    training.now += 1e6
    forever.recommend(items=["i1"])
    assert training.pulls == 4 * items


def test_rows_out_of_reach_are_named_or_answered_by_old_ones(training):
    strict, stale = training.recommender(), training.recommender(unreachable="stale")
    before = stale.recommend("u1"), stale.recommend(items=["i1"])
    training.lost = True
    training.now += 20
    with pytest.raises(WaitTimeout, match="no answer"):
        strict.recommend(items=["i1"])
    assert (stale.recommend("u1"), stale.recommend(items=["i1"])) == before
    assert stale.age_s == 20
    with pytest.raises(WaitTimeout, match="no answer"):
        stale.recommend("u2")  # whose row was never pulled
    pulls = training.pulls
    stale.recommend(items=["i1"])
    assert training.pulls == pulls, "asked again at once"
    training.now += reader.AGAIN_S
    stale.recommend(items=["i1"])
    assert training.pulls > pulls
    training.lost = False
    assert strict.recommend(items=["i1"]) == before[1]


def test_lines_of_lost_servers_are_awaited_as_long_as_rows(training):
    stale = training.recommender(unreachable="stale")
    training.lost = True
    with pytest.raises(WaitTimeout, match="no answer"):
        stale.recommend("u1")
    assert (training.limits, training.abandoned) == ([training.limit_s], 1)
    training.lost = False
    assert stale.recommend("u1") == training.best(training.row_of("u1"), ("i0", "i2"))
    assert {*training.limits} == {training.limit_s}


def test_next_cluster_has_its_own_names(training):
    shop, stale = training.recommender(), training.recommender(unreachable="stale")
    stale.recommend("u1")
    other = Training(pairs=[("u1", "j0"), ("u5", "j1"), ("u5", "j2")], seed=2)
    other.write_lines([("u1", "j0"), ("u5", "j1"), ("u5", "j2")])
    training.__dict__.update(other.__dict__, lives=1, now=training.now)
    training.driver = training.client = training
    assert {item for item, _ in shop.recommend("u1")} == {"j1", "j2"}
    training.summarised, training.now = b"", training.now + 20
    with pytest.raises(ClusterError, match="names are not read yet"):
        stale.recommend("u1")  # its number may be another user's there
    assert stale.recommend(items=["i1"])  # by the rows of the earlier one
    training.summarised = other.summarised
    training.now += reader.AGAIN_S
    assert {item for item, _ in stale.recommend("u5")} == {"j0"}


def becomes(training, pairs, **settings):
    """The training becomes one of other pairs, in a cluster that was joined anew."""
    other = Training(replace(SETTINGS, **settings), pairs=pairs, seed=2)
    other.write_lines(pairs)
    lives, now = training.lives + 1, training.now
    training.__dict__.update(other.__dict__, lives=lives, now=now)
    training.driver = training.client = training


NEXT = [("u1", "j0"), ("u5", "j1"), ("u5", "j2")]


def test_next_cluster_may_have_rows_of_another_width(training):
    shop = training.recommender()
    shop.recommend("u1")
    becomes(training, NEXT, dim=7)
    assert shop.recommend("u5", known=True) == training.best(training.row_of("u5"))


def test_next_cluster_is_asked_as_soon_as_it_is_joined(training):
    """Though the rows of the cluster before have just been asked for in vain."""
    stale = training.recommender(unreachable="stale")
    stale.recommend("u1")
    training.now, training.lost = training.now + 20, True
    stale.recommend("u1")
    becomes(training, NEXT)
    assert stale.recommend("u5", known=True) == training.best(training.row_of("u5"))


@pytest.mark.parametrize("unreachable", ["error", "stale"])
@pytest.mark.parametrize("at", ["items", "user"])
def test_question_that_meets_the_next_cluster_is_answered_by_it(
    training, monkeypatch, at, unreachable
):
    shop = training.recommender(unreachable=unreachable)
    pull = training.pull

    def joins_anew(keys, rows):
        if (at == "user") == (len(keys) == 1):
            monkeypatch.undo()
            becomes(training, NEXT, dim=7)
        return pull(keys, rows)

    training.now += 20
    monkeypatch.setattr(training, "pull", joins_anew, raising=False)
    assert shop.recommend("u1", known=True) == training.best(training.row_of("u1"))
    assert {name for name, _ in shop.recommend("u1", known=True)} == {"j0", "j1", "j2"}


def test_fork_is_answered_by_no_old_rows(training, monkeypatch):
    stale = training.recommender(unreachable="stale", max_age_s=None)
    stale.recommend("u1")
    monkeypatch.setattr(reader.os, "getpid", lambda: -1)
    for ask in (lambda: stale.recommend("u1"), lambda: stale.neighbours("i3"), stale.refresh):
        with pytest.raises(ClusterError, match=r"this Recommender belongs to process .* a fork"):
            ask()


def test_recommender_that_is_dropped_leaves_the_cluster(training):
    with training.recommender() as shop:
        assert shop.connected
    assert not training.connected
    training.connected = True
    shop = training.recommender()
    del shop
    gc.collect()
    assert not training.connected


def test_lines_that_are_not_written_yet_are_no_reason_to_show_known_items():
    shop = Training().recommender()
    with pytest.raises(DataError, match="do not have all lines of the training yet"):
        shop.recommend("u1")
    assert len(shop.recommend("u1", known=True)) == 5


def test_what_a_recommender_cannot_serve_is_named():
    graph = Training()
    graph.newest_job = lambda: (1, {"worker_class": "kge:KnowledgeGraph", "loss": "margin"})
    with pytest.raises(ConfigError, match="trains kge:KnowledgeGraph: expected a matrix"):
        graph.recommender()
    early = Training()
    early.summarised = b""
    with pytest.raises(ClusterError, match="are not counted yet: try again"):
        early.recommender()
    import snailps

    with pytest.raises(ConfigError, match="unreachable: expected error or stale, got 'first'"):
        snailps.recommender("127.0.0.1:1", unreachable="first")
    with pytest.raises(ClusterError, match=r"no cluster at 127.0.0.1:1"):
        snailps.recommender("127.0.0.1:1", init_timeout=0.3)
    assert MatrixFactorization.kinds == ("users", "items")


def test_closed_recommender_raises_though_it_has_rows(training):
    shop = training.recommender(unreachable="stale")
    shop.recommend("u1")
    shop.close()
    asks = (lambda: shop.recommend("u1"), lambda: shop.neighbours("i3"), shop.refresh)
    for ask in asks:
        with pytest.raises(ClusterError, match="this Recommender is closed: make another"):
            ask()
