"""Lookups for serving: what is asked of the source, how old answers are, what a loss leads to."""

import contextlib
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from waiting import run_all, until

from snailps import Table, kernels
from snailps.errors import ClusterError, ConfigError, MisuseError, RemoteError, WaitTimeout
from snailps.serving import reader
from snailps.serving.cached_rows import CachedRows
from snailps.serving.row_reader import FirstValues
from snailps.store._store import ShardStore

TABLE = Table("w", 3, init="uniform", scale=0.5, seed=11)


class Source:
    """A source whose rows state key and version; some of its keys may be out of reach."""

    table = TABLE

    def __init__(self):
        self.asked, self.lost, self.version, self.lives = [], lambda keys: keys < 0, 0, 0

    def joins(self):
        return self.lives

    def close(self):
        """Nothing is open."""

    def pull(self, keys, rows):
        assert len(np.unique(keys)) == len(keys)
        self.asked.append(keys.tolist())
        lost = self.lost(keys.astype(np.int64))
        rows[~lost] = self.rows(keys[~lost])
        return ~lost, WaitTimeout("no answer") if lost.any() else None

    def rows(self, keys):
        return np.stack(
            [np.array(keys, np.float32), np.full(len(keys), self.version), np.zeros(len(keys))], 1
        ).astype(np.float32)


def named_w(tables, before):
    return tables["w"]


def live_rows(patient=False):
    return reader.LiveRows(
        "h:1", named_w, None, caller="reader", patient=patient, secret_file="", tls="", settings={}
    )


class Clock:
    now = 50.0

    def __call__(self):
        return self.now


@pytest.fixture
def source():
    return Source()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make(source, clock):
    def made(unreachable="error", max_age_s=10.0, cache_bytes=1 << 16):
        cached = CachedRows(source, cache_bytes=cache_bytes, max_age_s=max_age_s, clock=clock)
        return reader.TableReader(cached, source, unreachable, ())

    return made


def test_each_key_is_asked_once_and_answered_everywhere(make, source):
    rows = make()
    assert rows.pull([5, 3, 5, 9])[:, 0].tolist() == [5, 3, 5, 9]
    assert source.asked == [[3, 5, 9]]
    assert rows.pull([9, 4, 5, 4])[:, 0].tolist() == [9, 4, 5, 4]
    assert source.asked[1:] == [[4]]
    stats = rows.stats()
    assert (stats.keys, stats.hits, stats.pulled, stats.rows) == (8, 2, 4, 4)


@pytest.mark.parametrize(
    ("options", "passed_s", "is_asked_again"),
    [
        ({"max_age_s": 10.0}, 9.5, False), ({"max_age_s": 10.0}, 10.5, True),
        ({"max_age_s": None}, 1e8, False), ({"max_age_s": float("inf")}, 1e8, False),
        ({"max_age_s": 0.0}, 0.0, True),  # at one moment: 10 ms are one to the cache
        ({"cache_bytes": 0}, 0.0, True),
    ],
)  # fmt: skip
def test_rows_are_as_young_as_asked_for(make, source, clock, options, passed_s, is_asked_again):
    rows = make(**options)
    rows.pull([1])
    source.version = 1
    clock.now += passed_s
    assert rows.pull([1, 2])[:, 1].tolist() == [is_asked_again, 1]
    assert source.asked == [[1], [1, 2] if is_asked_again else [2]]


@pytest.mark.parametrize("max_age_s", [10.0, None])
def test_rows_are_looked_up_after_years_as_on_the_first_day(make, source, clock, max_age_s):
    rows = make(max_age_s=max_age_s)
    for day in (0, 1, 496, 498, 499, 1000, 10_000):
        clock.now = 50.0 + 86400.0 * day
        source.version = day
        assert rows.pull([2 + day])[:, 1].tolist() == [day]
        clock.now += 9.0
        source.version += 1
        assert rows.pull([2 + day])[:, 1].tolist() == [day]
        if max_age_s is not None:
            clock.now += 2.0
            assert rows.pull([2 + day])[:, 1].tolist() == [day + 1]
    assert rows.stats().rows <= 7


def test_rows_of_an_earlier_life_count_as_old_after_years(make, source, clock):
    rows = make("stale", max_age_s=None)
    rows.pull([1])
    source.lives, source.version = 1, 1
    clock.now += 86400.0 * 500
    rows.pull([2])
    assert rows.pull([1, 2])[:, 1].tolist() == [1, 1]


def test_rows_of_another_life_of_the_table_count_as_old(make, source):
    rows = make("stale", max_age_s=None)
    rows.pull([1, 2])
    source.lives, source.version = 1, 1
    source.lost = lambda keys: keys == 2
    assert rows.pull([1, 2])[:, 1].tolist() == [1, 0]
    assert rows.stats().stale == 1


def test_row_that_came_while_the_table_became_another_is_not_kept(make, source):
    rows = make(max_age_s=None)
    pull = source.pull

    def changes(keys, out):
        source.lives += 1
        return pull(keys, out)

    source.pull = changes
    rows.pull([1])
    source.pull = pull
    rows.pull([1])
    assert source.asked == [[1], [1]]


def test_rows_of_two_clusters_are_not_in_one_answer(make, source):
    rows = make(max_age_s=None)
    rows.pull([1, 2])
    pull = source.pull

    def joins_anew(keys, out):
        source.pull, source.lives, source.version = pull, 1, 1
        return pull(keys, out)

    source.pull = joins_anew
    assert rows.pull([1, 2, 3])[:, 1].tolist() == [1, 1, 1]
    assert source.asked == [[1, 2], [3], [1, 2, 3]]


def test_row_of_an_earlier_cluster_is_old_whoever_saw_the_join_first(source, clock, monkeypatch):
    """A lookup waits for the lock while another one puts a row, and the cluster is joined anew."""
    keys, out = np.array([1], np.uint64), np.zeros((1, 3), np.float32)
    entered = []

    class Lock:
        def __enter__(self):
            entered.append(self)
            if len(entered) == 1:
                clock.now += 5
                cached.find(keys, out)
                source.lives, source.version = 1, 1

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(threading, "Lock", Lock)
    cached = CachedRows(source, cache_bytes=1 << 16, max_age_s=None, clock=clock)
    cached.find(np.array([2], np.uint64), out)
    cached.find(keys, out)
    assert out[0, 1] == 1


def test_fork_is_answered_by_no_cache(make, source, monkeypatch):
    rows = make("stale", max_age_s=None)
    rows.pull([1])
    monkeypatch.setattr(reader.os, "getpid", lambda: -1)
    with pytest.raises(ClusterError, match=r"this TableReader belongs to process .* a fork: mak"):
        rows.pull([1])
    assert not rows.connected
    assert source.asked == [[1]]


def test_loss_raises_by_default_and_what_came_is_kept(make, source):
    rows = make("error")
    source.lost = lambda keys: keys > 5
    with pytest.raises(WaitTimeout, match="no answer"):
        rows.pull([1, 9])
    assert rows.pull([1])[:, 0].tolist() == [1]
    assert source.asked == [[1, 9]]


def test_stale_rows_stand_in_however_old_and_unknown_keys_raise(make, source, clock):
    rows = make("stale")
    rows.pull([8, 9])
    source.version, source.lost = 1, lambda keys: keys > 5
    clock.now += 1000.0
    found = rows.pull([9, 1, 8, 9])
    assert found[:, 0].tolist() == [9, 1, 8, 9]
    assert found[:, 1].tolist() == [0, 1, 0, 0]
    assert rows.stats().stale == 3
    with pytest.raises(WaitTimeout):
        rows.pull([9, 7])
    source.lost = lambda keys: keys < 0
    assert rows.pull([9, 7])[:, 1].tolist() == [1, 1]


def test_first_values_stand_in_for_keys_that_were_never_seen(make, source):
    rows = make("first")
    rows.pull([8])
    source.lost = lambda keys: keys > 5
    keys = [8, 7, 1, 7, 2**64 - 1]
    source.lost = lambda keys: np.ones(len(keys), bool)
    store = ShardStore(4, kernels.row_ops())
    store.own(range(4))
    store.add_table(1, *TABLE.store_arguments())
    expected = store.pull(1, np.array(keys, np.uint64))
    expected[0] = source.rows([8])[0]
    expected[2] = store.pull(1, np.array([1], np.uint64))[0]
    assert np.array_equal(rows.pull(keys), expected)
    assert (rows.stats().stale, rows.stats().first) == (0, 4)  # the row of key 8 is young
    assert len(source.asked[-1]) == 3


def test_first_values_are_not_kept(make, source):
    rows = make("first")
    source.lost = lambda keys: np.ones(len(keys), bool)
    rows.pull([4])
    source.lost = lambda keys: keys < 0
    assert rows.pull([4])[0, 0] == 4


def test_no_keys_are_answered_without_the_source(make, source):
    assert make().pull([]).shape == (0, 3)
    assert not source.asked


def test_rows_go_into_the_callers_array(make):
    rows = make()
    out = np.empty((2, 3), np.float32)
    assert rows.pull([4, 2], out) is out
    assert out[:, 0].tolist() == [4, 2]
    for wrong in (
        np.empty((3, 3), np.float32), np.empty((2, 4), np.float32), np.empty((2, 3)),
        np.empty((2, 6), np.float32)[:, ::2],
    ):  # fmt: skip
        with pytest.raises(MisuseError):
            rows.pull([4, 2], wrong)
    with pytest.raises(MisuseError, match="-1 at place 0"):
        rows.pull([-1])


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"unreachable": "ignore"}, "unreachable: expected error, stale, first, got 'ignore'"),
        ({"cache_bytes": -1}, "cache_bytes"),
        ({"cache_bytes": 1e6}, "cache_bytes"),
        ({"max_age_s": -1}, "max_age_s"),
        ({"max_age_s": float("nan")}, "max_age_s"),
        ({"max_age_s": "60"}, "max_age_s: expected a number of seconds, got '60'"),
        ({"max_age_s": True}, "max_age_s: expected a number of seconds, got True"),
    ],
)
def test_wrong_options_are_refused(option, words):
    good = {"cache_bytes": 0, "max_age_s": None, "unreachable": "error"}
    with pytest.raises(ConfigError, match=words):
        reader.check_options(**good | option)


def test_limit_that_is_no_number_is_refused_before_a_join():
    with pytest.raises(ConfigError, match="timeout_s: expected a number of seconds, got 'x'"):
        reader.reader("h:1", "w", timeout_s="x", cache_bytes=np.int64(4096))


def test_threads_get_the_rows_of_their_own_keys(make, source):
    rows = make(cache_bytes=4096)  # some 100 rows: they evict each other's
    wrong = []

    def look(seed):
        rng = np.random.default_rng(seed)
        for _ in range(60):
            keys = rng.integers(0, 300, 40)
            wrong.extend(np.flatnonzero(rows.pull(keys)[:, 0] != keys))

    run_all(*(partial(look, one) for one in range(4)))
    assert not wrong
    assert rows.stats().keys == 4 * 60 * 40


def test_rows_on_their_way_when_the_cache_is_cleared_are_asked_for_again(
    make, source, clock, monkeypatch
):
    rows = make(max_age_s=None)
    pull = source.pull

    def answered_before(keys, found):
        answer = pull(keys, found)
        source.version = 1
        rows.clear()
        return answer

    monkeypatch.setattr(source, "pull", answered_before)
    assert rows.pull([5])[0, 1] == 0
    monkeypatch.setattr(source, "pull", pull)
    clock.now += 1.0
    assert rows.pull([5])[0, 1] == 1
    assert rows.pull([5])[0, 1] == 1
    assert source.asked == [[5], [5]]


def test_first_values_of_another_cluster_are_those_of_its_own_table(make, source):
    rows = make("first")
    source.lost = lambda keys: keys >= 0
    before = rows.pull([4])
    source.table = Table("w", 3, init="uniform", scale=0.5, seed=12)
    source.lives += 1
    assert rows.pull([4]).tolist() == FirstValues(source.table).pull(np.uint64([4])).tolist()
    assert rows.pull([4]).tolist() != before.tolist()


def test_table_is_that_of_the_cluster_joined_last_before_a_pull_too(make, source):
    rows = make("first")
    rows.pull([4])
    source.table = Table("w", 3, init="uniform", scale=0.5, seed=12)
    source.lives += 1
    assert rows.table is source.table


def test_first_values_are_not_made_where_only_old_rows_are_left(make, source, clock, monkeypatch):
    rows = make("first")
    rows.pull([4])
    clock.now += 100.0
    source.lost = lambda keys: keys >= 0
    # An access method in Python may not expect that there are no keys.
    monkeypatch.setattr(FirstValues, "pull", lambda self, keys: np.stack([*keys]))
    assert rows.pull([4])[:, 0].tolist() == [4]
    assert (rows.stats().stale, rows.stats().first) == (1, 0)


def test_reader_that_cannot_join_for_want_of_a_thread_tries_again(monkeypatch):
    closed, lost, errors = threading.Event(), threading.Event(), []
    left = [RuntimeError("can't start new thread"), OSError(24, "Too many open files")]

    class Rows:
        """What a reader's thread renews."""

        _why = ""

        def renew(self):
            errors.append(self._why)
            if left:
                raise left.pop(0)
            closed.set()

    monkeypatch.setattr(reader, "AGAIN_S", 0.0)
    lost.set()
    one = Rows()
    reader.keep_joined(lambda: one, lost, closed)
    assert errors[0] == ""
    assert len(errors) == 3
    assert all(errors[1:])


class Reached:
    """A cluster that takes a reader, and has not its table any more."""

    def __init__(self, error=None):
        self.error, self.ended = error, threading.Event()

    def __call__(self, rows, again=False):
        if self.error is not None:
            raise self.error
        return self, 1, TABLE

    def close(self):
        pass


class Waits(threading.Event):
    """Notes how long it is waited for, and does not wait."""

    def __init__(self):
        super().__init__()
        self.seconds = []

    def wait(self, timeout=None):
        self.seconds.append(timeout)
        return False


@pytest.mark.parametrize(
    ("error", "pauses"),
    [
        (ConfigError("no table 'w'"), [0, 1, 2, 4, 8, 16, 32, 60, 60]),
        (ClusterError("no cluster"), [0] * 9),  # which costs nobody anything
        (None, [0, 1, 2, 4, 8, 16, 32, 60, 60]),  # and each lookup is refused
    ],
    ids=["no table", "no cluster", "refused"],
)
def test_reader_whose_table_is_gone_joins_less_and_less_often(monkeypatch, error, pauses):
    """Each join costs the cluster a number."""
    reached = Reached()
    monkeypatch.setattr(reader.LiveRows, "join", lambda *args, **named: reached(*args, **named))
    rows = live_rows()
    rows.close()  # its own thread
    reached.error, rows.closed = error, Waits()
    for _ in pauses:
        with contextlib.suppress(ConfigError, ClusterError):
            rows.renew()
    assert rows.closed.seconds == pauses


def test_reader_that_asks_nothing_for_years_is_back_at_once_after_each_restart(monkeypatch):
    reached, now = Reached(), [100.0]
    monkeypatch.setattr(reader.LiveRows, "join", lambda *args, **named: reached(*args, **named))
    monkeypatch.setattr(reader, "awake_s", lambda: now[0])
    rows = live_rows()
    rows.close()  # its own thread
    rows.closed = Waits()
    for _ in range(9):
        rows.renew()
        now[0] += 86400.0
    assert rows.closed.seconds == [0] * 9


def test_reader_that_is_closed_while_it_joins_again_leaves(monkeypatch):
    drivers = []

    class Joined(Reached):
        def close(self):
            self.ended.set()

    def join(rows, again=False):
        if again:
            rows.close()
        drivers.append(Joined())
        return drivers[-1], 1, TABLE

    monkeypatch.setattr(reader.LiveRows, "join", join)
    rows = live_rows()
    rows.renew()
    assert [driver.ended.is_set() for driver in drivers] == [True, True]


class Dropped:
    """A session: its first cluster has dropped the table, its second one has rows of ones."""

    route = SimpleNamespace(owner=np.zeros(4, np.int32), frag_num=4)
    verdict = SimpleNamespace(text="closed")

    def __init__(self, number):
        self.number, self.ended = number, threading.Event()
        self.client = self

    def check_process(self):
        pass

    def close(self):
        self.ended.set()

    def pull_async(self, number, keys, out):
        assert number == self.number
        if number == 1:
            raise RemoteError("no table 1 here: declare it first", code="table")
        out[:] = 1
        return SimpleNamespace(wait=lambda _: out)


def test_patient_lookup_that_meets_the_next_job_waits_for_its_table(monkeypatch):
    joined = iter((1, 2))

    def join(rows, again=False):
        number = next(joined)
        return Dropped(number), number, TABLE

    monkeypatch.setattr(reader.LiveRows, "join", join)
    rows, out = live_rows(patient=True), np.zeros((2, 3), np.float32)
    come, why = rows.pull(np.array([3, 4], np.uint64), out)
    rows.close()
    assert (come.all(), why, out.tolist()) == (True, None, [[1, 1, 1]] * 2)


def test_dropped_table_is_named_as_long_as_there_is_no_other(monkeypatch):
    def join(rows, again=False):
        if again:
            raise ConfigError("no table 'w' in the cluster at h:1: there are text")
        return Dropped(1), 1, TABLE

    monkeypatch.setattr(reader.LiveRows, "join", join)
    rows, out = live_rows(), np.zeros((1, 3), np.float32)
    keys = np.array([3], np.uint64)
    dropped = "the cluster at h:1 is out of reach: the cluster at h:1 has dropped its table 'w'"
    for _ in range(2):
        _, why = rows.pull(keys, out)
        assert str(why).startswith(dropped)
    until(lambda: "joining again: no table 'w'" in str(rows.pull(keys, out)[1]))
    rows.close()


def test_reader_that_gets_no_thread_leaves_the_cluster(monkeypatch):
    driver = Dropped(2)
    monkeypatch.setattr(reader.LiveRows, "join", lambda rows: (driver, 2, TABLE))

    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start"):
        live_rows()
    assert driver.ended.is_set()


@pytest.mark.parametrize("unreachable", ["error", "stale", "first"])
def test_closed_reader_raises_whatever_is_cached(make, unreachable):
    rows = make(unreachable)
    rows.pull([5])
    rows.close()
    with pytest.raises(ClusterError, match="this TableReader is closed: make another one"):
        rows.pull([5])
