"""models.kept_rows: rows that several workers keep, against a store that answers late."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cases import examples
from hypothesis import given
from hypothesis import strategies as st

from snailps.kernels._row_exchange import QUIET_MAX
from snailps.models import exchange_times, kept_rows, recalled_bases
from snailps.models import rows as rows_of
from snailps.models.exchange_times import DRIFT, SPAN_MIN, ExchangeRule
from snailps.models.kept_rows import LATE, RULE, KeptRows, of_curvature
from snailps.models.local_sgd import LocalSgd, RowLayout

DIM = 3
IDS = 14
FIRST = np.uint64(100)


@dataclass(eq=False)
class Request:
    """A pull or a push in its worker's queue, served when it or a later one is waited for."""

    client: Any
    places: np.ndarray
    rows: np.ndarray
    pushed: np.ndarray | None = None
    done: bool = False

    def serve(self):
        stored = self.client.store.rows
        if self.pushed is None:
            self.rows[:] = stored[self.places]
        else:
            np.testing.assert_array_equal(self.rows, self.pushed)  # left alone until now
            np.add.at(stored, self.places, self.pushed)
        self.done = True

    def wait(self):
        while not self.done:
            self.client.serve(1)
        return self.rows


class Store:
    """The rows of all workers' table."""

    def __init__(self):
        self.rows = np.random.default_rng(0).normal(size=(IDS, DIM)).astype(np.float32)


class Client:
    """A worker's connection: requests are served in order, except pulls ahead, at once."""

    def __init__(self, store, workers=1, threads=1):
        self.store, self.workers, self.threads = store, workers, threads
        self.queue, self.pulled, self.pushes = [], [], []

    def pull_async(self, table, keys, out, *, state, ahead=False):
        request = Request(self, keys - FIRST, out)
        self.pulled.append((keys - FIRST).tolist())
        if ahead:
            request.serve()
        else:
            self.queue.append(request)
        return request

    def push_async(self, table, keys, values, *, state):
        assert len(set(keys.tolist())) == len(keys)
        self.queue.append(Request(self, keys - FIRST, values, values.copy()))
        self.pushes.append((keys - FIRST).tolist())
        return self.queue[-1]

    def serve(self, n):
        for request in self.queue[:n]:
            request.serve()
        del self.queue[:n]


def rare(steps):
    return ExchangeRule(rare_steps=steps)


def keys_of(ids):
    return np.asarray(ids).astype(np.uint64) + FIRST


class Worker:
    """A worker that adds numbers to rows."""

    def __init__(
        self, store, *, workers=1, threads=1, room=IDS, period_blocks=1, a_step=0.0, rule=RULE,
        recalls=False, makes=False,
    ):  # fmt: skip
        self.client = Client(store, workers, threads)
        first = store.rows.copy()

        def fill_first(keys, rows):
            rows[:] = first[keys - FIRST]

        self.sgd = LocalSgd(self.client, RowLayout.padded(DIM))
        estimate = of_curvature(DIM)
        estimate.a_step = a_step
        self.shared = KeptRows(
            self.sgd, "a", estimate, rule=rule, room=room, period_blocks=period_blocks,
            recalls=recalls, fill_first=fill_first if makes else None, seconds=lambda: 0.0,
        )  # fmt: skip
        self.closed = True  # whether a round ended with the last block

    @property
    def unpushed(self):
        """Whether blocks of a round are not pushed, as `BlockTrainer.unpushed` counts them."""
        return not self.closed or self.shared.sends

    def workers_changed(self, workers):
        self.client.workers = workers
        self.shared.workers_changed()

    def ask(self, ids):
        """A block's rows among the kept ones, and their places; two pieces, as threads parse."""
        found = [self.shared.find(keys_of(part)) for part in np.array_split(np.array(ids, int), 2)]
        kept = self.shared.ask(found)
        return kept, np.concatenate([one.places for one in found])

    def train(self, asked, by, spans=1, examples=1):
        """Adds `by` to a block's rows in some spans; the rows before."""
        kept, places = asked
        (rows,) = self.shared.ready(kept)
        before = rows[places, :DIM].copy()
        assert not rows[:, DIM:].any()
        self.shared.saw(np.repeat(places, spans * examples), spans * examples)
        for _ in range(spans):
            rows[places, :DIM] += by / spans
            self.shared.exchange(examples)
        self.closed = self.shared.close(kept)
        return before

    def rows(self, ids):
        """Kept rows of ids that it has used."""
        return self.shared.kept.rows[self.shared.find(keys_of(ids)).places, :DIM]


blocks_of = st.lists(
    st.lists(st.integers(0, IDS - 1), max_size=8, unique=True), min_size=1, max_size=12
)


# --- one worker ----------------------------------------------------------------------------------


@examples(20)
@given(
    blocks_of,
    st.integers(1, IDS),
    st.integers(1, 4),
    st.sampled_from(["kept", "pulled"]),
    st.booleans(),
)
def test_only_worker_has_the_stores_rows_and_its_own_deltas_whatever_room_there_is(
    blocks, room, period_blocks, bases, makes
):
    store = Store()
    worker = Worker(
        store, room=room, period_blocks=period_blocks, recalls=bases == "pulled", makes=makes
    )
    expected = store.rows.copy()
    coming = worker.ask(blocks[0])
    for number, ids in enumerate(blocks):
        asked, coming = coming, worker.ask(blocks[number + 1]) if blocks[number + 1 :] else None
        before = worker.train(asked, number + 1)
        np.testing.assert_allclose(before, expected[ids], atol=1e-5)
        expected[ids] += number + 1
        assert worker.shared.kept.room <= max(room, 8)
        assert worker.unpushed == bool((number + 1) % period_blocks)
    worker.shared.flush()
    worker.sgd.close()
    np.testing.assert_allclose(store.rows, expected, atol=1e-4)
    assert not worker.sgd.packed.taken


def test_only_worker_pulls_a_row_once_and_pushes_it_once_a_round():
    worker = Worker(Store(), period_blocks=3)
    for ids in ([0, 1], [1, 2], [2, 3]):
        assert not worker.client.pushes
        worker.train(worker.ask(ids), 1)
    assert worker.client.pulled == [[0, 1], [2], [3]]
    (pushed,) = worker.client.pushes
    assert sorted(pushed) == [0, 1, 2, 3]


def test_only_worker_pushes_a_round_some_rows_at_a_time(monkeypatch):
    monkeypatch.setattr(kept_rows, "CHUNK_ROWS", 2)
    monkeypatch.setattr(kept_rows, "CHUNK_BYTES", 0)
    store, ids = Store(), list(range(IDS))
    expected = store.rows + 1
    worker, most = Worker(store), 0
    push_async = worker.client.push_async

    def counted(*given, **named):
        nonlocal most
        request = push_async(*given, **named)
        most = max(most, len(worker.client.queue))
        return request

    worker.client.push_async = counted
    worker.train(worker.ask(ids), 1)
    assert sorted(np.concatenate(worker.client.pushes).tolist()) == ids
    assert max(len(pushed) for pushed in worker.client.pushes) <= 2
    assert most == kept_rows.CHUNKS_ON_WAY
    worker.shared.flush()
    np.testing.assert_allclose(store.rows, expected, atol=1e-5)
    assert not worker.sgd.packed.taken
    assert max(len(array) for array in worker.sgd.packed.free) <= 3


def test_only_worker_without_bases_pulls_them_with_the_rows_that_it_pushes():
    store = Store()
    first = store.rows.copy()
    worker = Worker(store, period_blocks=3, recalls=True)
    for ids in ([0, 1], [1, 2], [2, 3]):
        assert worker.client.pulled == [[0, 1], [2], [3]][: len(worker.client.pulled)]
        worker.train(worker.ask(ids), 1)
    (pushed,) = worker.client.pushes
    assert sorted(pushed) == [0, 1, 2, 3]
    assert worker.client.pulled[3:] == [pushed]
    worker.shared.flush()
    np.testing.assert_allclose(
        store.rows[:4] - first[:4], [[1], [2], [2], [1]] * np.ones(DIM), 1e-5
    )
    assert not worker.shared.kept.exchange.has_bases


@pytest.mark.parametrize(
    ("recalls", "pushed", "pulled"),
    [
        (True, [[0, 1, 2], [0, 2], [3, 4]], [[0, 2]]),
        (False, [[0, 1, 2], [0, 2, 3, 4]], []),
    ],
)
def test_only_worker_that_makes_rows_pulls_those_only_that_it_has_pushed_before(
    recalls, pushed, pulled
):
    """None, where it keeps their bases."""
    store = Store()
    expected = store.rows.copy()
    worker = Worker(store, period_blocks=2, recalls=recalls, makes=True)
    for ids in ([0, 1], [1, 2], [0, 3], [2, 4]):
        np.testing.assert_array_equal(worker.train(worker.ask(ids), 1), expected[ids])
        expected[ids] += 1
    worker.shared.flush()
    np.testing.assert_allclose(store.rows, expected, rtol=1e-5)
    assert [sorted(keys) for keys in worker.client.pushes] == pushed
    assert [sorted(keys) for keys in worker.client.pulled] == pulled


@pytest.mark.parametrize("recalls", [False, True])
def test_only_worker_makes_no_row_once_servers_may_have_it(recalls):
    store = Store()
    worker = Worker(store, recalls=recalls, makes=True, period_blocks=9)
    store.rows[1:] += 7
    worker.train(worker.ask([0]), 1)
    coming = worker.ask([1])
    worker.shared.begin_known()
    np.testing.assert_array_equal(worker.train(coming, 1)[0], store.rows[1])
    np.testing.assert_array_equal(worker.train(worker.ask([2]), 1)[0], store.rows[2])
    expected = store.rows.copy()
    expected[:3] += 1
    worker.shared.flush()
    np.testing.assert_allclose(store.rows, expected, rtol=1e-5)


@pytest.mark.parametrize("chunk_bytes", [8 * DIM, 1 << 20])
def test_only_worker_without_bases_pushes_any_number_of_chunks_whole(monkeypatch, chunk_bytes):
    monkeypatch.setattr(recalled_bases, "PIECE_BYTES", chunk_bytes)
    store = Store()
    expected = store.rows + 1
    worker = Worker(store, recalls=True)
    worker.train(worker.ask(range(IDS)), 1)
    worker.shared.flush()
    assert (len(worker.client.pushes) > 2) == (chunk_bytes < 1 << 20)
    np.testing.assert_allclose(store.rows, expected, rtol=1e-5)
    assert not worker.sgd.packed.taken


@pytest.mark.parametrize("makes", [False, True])
@pytest.mark.parametrize("then", ["flush", "close", "join"])
def test_round_that_is_sent_later_goes_piece_by_piece_as_rows_are_found(monkeypatch, makes, then):
    monkeypatch.setattr(recalled_bases, "PIECE_BYTES", 8 * DIM)
    store, ids = Store(), list(range(6))
    first = store.rows.copy()
    worker = Worker(store, recalls=True, makes=makes, period_blocks=2, threads=2)
    shared = worker.shared
    for _ in range(2):
        worker.train(worker.ask(ids), 1)
    assert not worker.client.pushes
    assert shared.sends
    kept, places = worker.ask(ids)
    (rows,) = shared.ready(kept)
    assert shared.send_some()
    assert len(worker.client.pushes) == 1
    rows[places, :DIM] += 5  # a kernel, while that is sent
    assert shared.send_some()
    assert shared.sends
    if then == "join":  # the next block's `ready` pushes all there is
        worker.workers_changed(2)
        worker.train(worker.ask(ids[:1]), 0)
    elif then == "close":
        worker.train(worker.ask(ids), 0)
        assert shared.sends
        while shared.send_some():
            pass
        assert not worker.unpushed
        worker.client.serve(99)
    shared.flush()
    assert not shared.sends
    np.testing.assert_allclose(store.rows[ids], first[ids] + 7, rtol=1e-5)
    pushed = np.concatenate(worker.client.pushes[:4])
    assert sorted(pushed.tolist()) == ids if then != "join" else set(pushed) <= set(ids)
    assert not worker.sgd.packed.taken


def test_block_that_is_found_again_by_its_places_counts_as_touched_once_a_round():
    worker = Worker(Store(), room=4)
    _, places = worker.ask([1, 2])
    found = worker.shared.find_again(places)
    assert (len(found.keys), len(found.missing)) == (0, 0)
    assert found.touched.tolist() == places.tolist()  # a round of one block: the next has begun
    numbering = worker.shared.numbering
    worker.ask([3, 4, 5])  # without room: all begin anew
    assert worker.shared.numbering != numbering


def test_ask_without_room_begins_anew_with_own_deltas_in_the_rows():
    store = Store()
    worker = Worker(store, room=3, period_blocks=4)
    expected = store.rows[[0, 3, 4]] + np.float32([[1], [0], [0]])
    worker.train(worker.ask([0, 1, 2]), 1)
    first, second = worker.ask([0, 3]), worker.ask([4])
    np.testing.assert_allclose(worker.train(first, 1), expected[:2], rtol=1e-5)
    np.testing.assert_allclose(worker.train(second, 1), expected[2:], rtol=1e-5)


def test_ask_for_more_keys_than_there_is_room_for_grows():
    worker = Worker(store := Store(), room=2)
    before = worker.train(worker.ask(range(8)), 1)
    np.testing.assert_array_equal(before[0], store.rows[0])
    assert worker.shared.kept.room == 8


# --- several workers -----------------------------------------------------------------------------


@examples(20)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.sets(st.integers(0, 5), min_size=1)),
        max_size=10,
    ),
    st.integers(1, 3),
    st.integers(2, 7),
    st.sampled_from([0.0, 4.0]),
)
def test_no_delta_of_any_worker_is_lost_or_counted_twice(steps, period_blocks, room, rare_steps):
    """Workers train in any order, and their requests are served in any order."""
    store = Store()
    expected = store.rows.copy()
    workers = [
        Worker(store, workers=3, period_blocks=period_blocks, room=room, rule=rare(rare_steps))
        for _ in range(3)
    ]
    for number, (who, served, ids) in enumerate(steps):
        workers[who].train(workers[who].ask(sorted(ids)), number + 1, spans=2, examples=40)
        expected[sorted(ids)] += number + 1
        workers[(who + 1) % 3].client.serve(served)
    for worker in workers:
        worker.shared.flush()
        worker.sgd.close()
        assert not worker.sgd.packed.taken
    np.testing.assert_allclose(store.rows, expected, atol=1e-3)


@pytest.mark.parametrize("period_blocks", [1, 2])
@pytest.mark.parametrize("left_alone", [False, True])
def test_copies_that_lead_push_their_own_steps(period_blocks, left_alone):
    """Of the steps that two workers make with a lead of 2 each pushes a half, and of 6 with 3 a
    third."""
    store = Store()
    start = store.rows[1].copy()
    workers = [Worker(store, workers=2, period_blocks=period_blocks) for _ in range(2)]
    for lead in (2.0, 2.0, 3.0, 1.0):
        for worker in workers:
            worker.shared.estimate.lead = lead
            worker.train(worker.ask([1]), 10 * lead, spans=5, examples=20)
            worker.client.serve(9)
    if left_alone:
        for worker in workers[::-1]:
            worker.shared.flush()
        workers[0].workers_changed(1)
        workers[0].shared.estimate.lead = 1.0
        workers[0].train(workers[0].ask([1]), 5)
    for worker in workers:
        worker.shared.flush()
        worker.client.serve(9)
    want = start + 80 + 5 * left_alone
    np.testing.assert_allclose(store.rows[1], want, rtol=1e-4)
    if left_alone:
        np.testing.assert_allclose(workers[0].rows([1])[0], want, rtol=1e-4)


def test_answer_brings_what_others_did_and_keeps_steps_made_meanwhile():
    store = Store()
    first, second = (Worker(store, workers=2) for _ in range(2))
    start = store.rows[5].copy()
    first.train(first.ask([5]), 1)  # pushed, not served
    second.train(second.ask([5]), 10)
    second.shared.flush()
    first.train(first.ask([5]), 100)  # trained before the answer is there, then sent behind it
    first.shared.flush()
    np.testing.assert_allclose(first.rows([5])[0], start + 111, rtol=1e-5)
    np.testing.assert_allclose(store.rows[5], start + 111, rtol=1e-5)


def test_frequent_row_is_exchanged_between_rounds_and_a_rare_one_with_the_round():
    worker = Worker(Store(), workers=4, period_blocks=100, a_step=0.1)
    asked, places = worker.ask(range(IDS))
    (rows,) = worker.shared.ready(asked)
    counts = np.ones(IDS, int)
    counts[3] = 400
    worker.shared.saw(np.repeat(places, counts), 400)
    assert worker.shared.span() == SPAN_MIN
    for _ in range(25):
        rows[places, :DIM] += 0.1
        worker.shared.exchange(16)
        worker.client.serve(2)
    assert worker.client.pushes == [[3]] * 25
    worker.shared.flush()
    assert sorted(worker.client.pushes[-1]) == list(range(IDS))


@pytest.mark.parametrize(
    ("a_step", "longest", "blocks"), [(2.0, 99, 4), (0.375, 99, 7), (0.375, 3, 3)]
)
def test_rare_row_waits_for_steps_and_drift_for_so_many_rounds_or_to_the_end(
    monkeypatch, a_step, longest, blocks
):
    """One own step, or half of `DRIFT`; rows 1, 2, 3 make 8, .3 and 0 a block, which is a round."""
    monkeypatch.setattr(exchange_times, "RARE_PERIODS", longest)
    worker = Worker(store := Store(), workers=2, a_step=a_step, rule=rare(1.0))
    start = store.rows[3].copy()
    for _ in range(2 * blocks + 1):
        kept, places = worker.ask([1, 2, 3])
        (rows,) = worker.shared.ready(kept)
        worker.shared.saw(places, 32, weights=np.float32([8, 0.3, 0]))
        rows[places, :DIM] += 0.125
        worker.shared.exchange(32)
        assert worker.shared.close(kept)
        worker.client.serve(9)
    went = 2 * [*(blocks - 1) * [False], True] + [False]
    pushed = worker.client.pushes
    assert all(1 in keys for keys in pushed)
    assert [2 in keys for keys in pushed] == went
    assert [3 in keys for keys in pushed] == [one and longest == 3 for one in went]
    worker.shared.flush()
    worker.client.serve(9)
    assert sorted(worker.client.pushes[-1]) == [2, 3]
    if longest == 99:
        np.testing.assert_allclose(store.rows[3], start + 0.125 * (2 * blocks + 1), rtol=1e-5)


def test_intervals_grow_as_steps_get_shorter():
    spans = []
    for a_step in (0.1, 0.01, 0.001):
        worker = Worker(Store(), workers=4, period_blocks=1000, a_step=a_step)
        worker.train(worker.ask([1]), 1, spans=10, examples=10)
        spans.append(worker.shared.span())
    assert spans == [SPAN_MIN, *(pytest.approx(DRIFT / step / 4, abs=1) for step in (0.01, 0.001))]


@pytest.mark.parametrize(
    ("rule", "is_longer"),
    [
        (ExchangeRule(), True),
        (ExchangeRule(growth=9.0), True),
        (ExchangeRule(growth=9.0, stale=0.0), False),
    ],
)
def test_spans_are_longer_than_intervals_where_exchanges_cost_much(rule, is_longer):
    worker = Worker(Store(), workers=4, period_blocks=1000, a_step=0.01, rule=rule)
    worker.shared.times.seconds = itertools.count().__next__  # an exchange costs as much as a span
    for _ in range(9):
        worker.train(worker.ask([1]), 1, spans=10, examples=1000)
        worker.client.serve(9)
    interval = DRIFT / 0.01 / 4
    assert (worker.shared.span() > 2 * interval) == is_longer


def test_spans_of_costly_exchanges_are_no_longer_than_all_workers_may_grow_by():
    rule = ExchangeRule(growth=9.0, growth_of_all=0.016)
    worker = Worker(Store(), workers=4, period_blocks=1000, a_step=0.1, rule=rule)
    worker.shared.times.seconds = itertools.count().__next__
    for _ in range(9):
        worker.train(worker.ask([1]), 1, spans=10, examples=1000)
        worker.client.serve(9)
    assert worker.shared.span() == worker.shared.times.now // 250


def spans_with_pushes(worker):
    """Which of 200 spans push, from 1 on, and how much later each is than the one before."""
    exchanged = []
    for number in range(200):
        before = len(worker.client.pushes)
        worker.train(worker.ask([1]), 1, examples=16)
        if len(worker.client.pushes) > before:
            exchanged.append(number + 1)
        worker.client.serve(9)
    return exchanged, np.diff(exchanged) / exchanged[:-1]


@pytest.mark.parametrize(
    "rule", [ExchangeRule(growth=0.25), ExchangeRule(growth=9.0, growth_of_all=1.0)]
)
def test_rows_that_are_not_steep_are_exchanged_as_often_as_the_examples_grow_by_a_part(rule):
    """By this worker's part, or by what all four workers may grow by."""
    worker = Worker(Store(), workers=4, period_blocks=1000, rule=rule)
    exchanged, apart = spans_with_pushes(worker)
    assert exchanged[:4] == [1, 2, 3, 4]  # four steps at least, a span at least
    assert apart[8:].min() > 0.1
    assert apart[8:].max() < 0.4
    worker = Worker(Store(), workers=4, period_blocks=1000)
    worker.train(worker.ask([1]), 1, spans=200, examples=16)
    assert worker.client.pushes == []


def test_steep_rows_wait_until_the_examples_have_grown_by_the_least_part():
    """Without it they would be exchanged after each span."""
    rule = ExchangeRule(growth_least=0.25)
    worker = Worker(Store(), workers=4, period_blocks=1000, a_step=0.5, rule=rule)
    exchanged, apart = spans_with_pushes(worker)
    assert exchanged[:4] == [1, 2, 3, 4]  # a span at least
    assert 0.2 < apart[8:].min() < apart[8:].max() < 0.4


def test_row_of_a_round_is_pulled_again_by_the_block_that_uses_it():
    store = Store()
    worker = Worker(store, workers=2, period_blocks=2)
    for number, ids in enumerate(([1, 2], [2, 3], [3], [2], [1, 2])):
        before = len(worker.client.pulled)
        worker.train(worker.ask(ids), 1)
        worker.client.serve(9)
        store.rows[:5] += 10  # another worker
        assert worker.client.pulled[before:] == [[[1, 2]], [[3]], [[3]], [[2]], [[1, 2]]][number]
    worker.shared.flush()
    np.testing.assert_allclose(worker.rows([3]), store.rows[[3]] - 30, rtol=1e-5)
    np.testing.assert_allclose(worker.rows([1, 2]), store.rows[[1, 2]] - 10, rtol=1e-5)


def test_training_waits_for_an_answer_that_is_late():
    worker = Worker(Store(), workers=4, period_blocks=100, a_step=0.1)
    asked, places = worker.ask([3])
    worker.shared.ready(asked)
    worker.shared.saw(np.repeat(places, 100), 100)
    for _ in range(2 * LATE):
        worker.shared.exchange(16)
    assert worker.client.pushes == [[3]] * 2


def test_row_that_nobody_else_changes_is_pulled_more_and_more_rarely():
    store = Store()
    worker = Worker(store, workers=2)
    pulls = []
    for _ in range(40):
        before = len(worker.client.pulled)
        worker.train(worker.ask([4]), 1)
        worker.client.serve(2)
        pulls.append(len(worker.client.pulled) - before)
    assert pulls[:2] == [1, 1]  # the row, and what has become of it when it is used again
    assert sum(pulls[-(2 << QUIET_MAX) :]) == 2
    store.rows[4] += 5  # another worker
    for _ in range(1 + (1 << QUIET_MAX)):
        worker.train(worker.ask([4]), 1)
    worker.shared.flush()
    np.testing.assert_allclose(worker.rows([4])[0], store.rows[4], rtol=1e-5)


@pytest.mark.parametrize(("a_step", "all_of_it"), [(0.05, True), (50.0, False)])
def test_share_of_a_delta_is_pushed_and_the_rest_follows_or_is_given_up(a_step, all_of_it):
    """Where workers go the same way, the steps of all together do not go too far."""
    store = Store()
    start = store.rows[2].copy()
    worker = Worker(store, workers=8, a_step=a_step)
    worker.train(worker.ask([2]), 1, spans=4, examples=1)
    worker.client.serve(9)
    first = float((store.rows[2] - start)[0])
    assert 0 < first < 0.95
    for _ in range(30):
        worker.train(worker.ask([2]), 0)
        worker.client.serve(9)
    pushed = float((store.rows[2] - start)[0])
    assert pushed == pytest.approx(1, abs=0.05) if all_of_it else pushed < 0.2
    worker.shared.flush()
    np.testing.assert_allclose(worker.rows([2])[0], store.rows[2], atol=0.05)


@pytest.mark.parametrize("others", [7, 8])  # 8: one has come in the place of another
def test_row_that_nobody_else_changes_is_pushed_whole(others):
    """As rows of users are, whose lines all are one worker's."""
    store = Store()
    start = store.rows.copy()
    worker = Worker(store, workers=8, a_step=0.05)
    for _ in range(4):
        worker.train(worker.ask([2, 3]), 1, spans=4, examples=1)
        worker.client.serve(9)
        store.rows[3] += 1  # another worker
    worker.shared.flush()
    worker.client.serve(9)
    left = start + 4 - store.rows
    assert (left[2] < 0.1).all()
    assert (left[3] + 4 > 0.2).all()
    before = store.rows[2].copy()
    worker.workers_changed(others)  # from now on any of them may change any row
    worker.train(worker.ask([2]), 1, spans=4, examples=1)
    worker.client.serve(9)
    assert (store.rows[2] - before < 0.95).all()


def test_second_worker_that_joins_shares_rows_of_the_first():
    store = Store()
    worker = Worker(store)
    worker.train(worker.ask([1, 2]), 1)
    worker.workers_changed(2)
    joined = Worker(store, workers=2)
    joined.train(joined.ask([2, 3]), 10)
    joined.shared.flush()
    worker.train(worker.ask([1, 2]), 100)
    worker.shared.flush()
    np.testing.assert_allclose(worker.rows([1, 2]), store.rows[[1, 2]], rtol=1e-5)


@pytest.mark.parametrize("makes", [False, True])
@pytest.mark.parametrize("period_blocks", [1, 2])
def test_second_worker_that_joins_one_without_bases_gives_it_bases(period_blocks, makes):
    store = Store()
    expected = store.rows.copy()
    worker = Worker(store, recalls=True, period_blocks=period_blocks, makes=makes)
    coming = worker.ask([1, 2])
    worker.train(coming, 1)
    worker.workers_changed(2)
    worker.train(worker.ask([1, 4]), 1)
    assert worker.shared.kept.exchange.has_bases
    joined = Worker(store, workers=2, recalls=True)
    joined.train(joined.ask([2, 3]), 10)
    joined.shared.flush()
    worker.train(worker.ask([1, 2]), 1)
    worker.shared.flush()
    expected[[1, 2, 3, 4]] += [[3], [12], [10], [1]]
    np.testing.assert_allclose(store.rows, expected, rtol=1e-5)
    np.testing.assert_allclose(worker.rows([1, 2, 4]), expected[[1, 2, 4]], rtol=1e-5)


def test_steps_before_another_worker_joins_take_nothing_from_those_after():
    """The first shared deltas of a worker that gets bases are of few steps, not of all so far."""
    moved = []
    for recalls in (False, True):
        store = Store()
        first = store.rows[1].copy()
        worker = Worker(store, recalls=recalls, a_step=0.01)
        for _ in range(50):
            worker.train(worker.ask([1]), 1, examples=100)
        worker.workers_changed(2)
        worker.train(worker.ask([1]), 1, examples=10)
        worker.shared.flush()
        moved.append((store.rows[1] - first, worker.rows([1])[0] - first))
    np.testing.assert_allclose(moved[1], moved[0], rtol=1e-4)
    np.testing.assert_allclose(moved[1][1], 51, rtol=1e-4)


@pytest.mark.parametrize("makes", [False, True])
def test_second_worker_that_joins_in_a_round_leaves_its_later_blocks_their_deltas(makes):
    store = Store()
    expected = store.rows.copy()
    worker = Worker(store, recalls=True, period_blocks=3, makes=makes)
    worker.train(worker.ask([1, 2]), 1)
    worker.workers_changed(2)
    for ids in ([2, 3], [4]):
        worker.train(worker.ask(ids), 1)
    assert not worker.unpushed
    worker.client.serve(len(worker.client.queue))
    expected[[1, 2, 3, 4]] += [[1], [2], [1], [1]]
    np.testing.assert_allclose(store.rows, expected, rtol=1e-5)


def test_room_is_of_the_number_of_workers_when_rows_begin_anew(monkeypatch):
    several, alone = 4 * (16 + DIM) + kept_rows.KEY_BYTES, 4 * 16 + kept_rows.KEY_BYTES
    monkeypatch.setattr(rows_of, "SHARED", rows_of.RowSharing(True, 3 * several))
    monkeypatch.setattr(rows_of, "ALONE", rows_of.RowSharing(False, 6 * alone))
    worker = Worker(Store(), room=0, recalls=True)
    rooms = []
    for ids, workers in (([1, 2], 1), ([1, 2, 3, 4], 2), ([5, 6, 7], 2), ([1, 2, 3, 4], 1)):
        worker.workers_changed(workers)
        worker.train(worker.ask(ids), 1)
        rooms.append(worker.shared.kept.room)
    worker.train(worker.ask([5, 6, 7]), 1)
    rooms.append(worker.shared.kept.room)
    assert rooms == [6, 6, 3, 6, 6]


def test_second_worker_that_joins_while_a_block_trains_changes_nothing_before_the_next_one():
    store = Store()
    expected = store.rows.copy()
    worker = Worker(store, recalls=True)
    kept, places = worker.ask([1, 2])
    (rows,) = worker.shared.ready(kept)
    worker.workers_changed(2)
    worker.shared.saw(places, 1)
    rows[places, :DIM] += 1
    worker.shared.exchange(1)
    assert worker.shared.close(kept)
    assert not worker.shared.kept.exchange.has_bases
    worker.train(worker.ask([2, 3]), 1)
    worker.shared.flush()
    expected[[1, 2, 3]] += [[1], [2], [1]]
    np.testing.assert_allclose(store.rows, expected, rtol=1e-5)


@pytest.mark.parametrize("rare_steps", [0.0, 4.0])
@pytest.mark.parametrize("recalls", [False, True])
def test_worker_that_is_left_alone_takes_what_the_others_did_last(recalls, rare_steps):
    store = Store()
    worker = Worker(store, workers=2, recalls=recalls, rule=rare(rare_steps))
    worker.train(worker.ask([1, 2, 3]), 1)  # pushed, not pulled
    store.rows[[1, 2, 3]] += 5  # the other one, before it leaves
    worker.workers_changed(1)
    for _ in range(3):
        before = len(worker.client.pulled)
        worker.train(worker.ask([1]), 1)
    assert len(worker.client.pulled) == before  # once is enough
    worker.shared.flush()
    np.testing.assert_allclose(worker.rows([1, 2, 3]), store.rows[[1, 2, 3]], rtol=1e-5)


def test_worker_that_trains_in_the_place_of_another_takes_what_that_one_pushed_last():
    store = Store()
    worker = Worker(store)
    worker.train(worker.ask([1, 2, 3]), 1)
    store.rows[[1, 2, 3]] += 5  # the other one, before it leaves
    worker.workers_changed(1)
    for _ in range(3):
        before = len(worker.client.pulled)
        worker.train(worker.ask([1]), 1)
    assert len(worker.client.pulled) == before
    worker.shared.flush()
    np.testing.assert_allclose(worker.rows([1, 2, 3]), store.rows[[1, 2, 3]], rtol=1e-5)


def test_round_has_as_many_blocks_as_make_one_whole_and_its_least_number():
    closes = {}
    for size in (0.1, 0.3, 0.5, 1.0):
        shared = Worker(Store(), workers=2, period_blocks=3).shared
        asked = [shared.ask([shared.find(keys_of([1]))], size) for _ in range(21)]
        closes[size] = np.flatnonzero([kept.closes for kept in asked]).tolist()
    assert closes[0.1] == [9, 19]
    assert closes[0.3] == [3, 7, 11, 15, 19]
    assert closes[0.5] == closes[1.0] == [2, 5, 8, 11, 14, 17, 20]


def test_worker_that_dies_takes_along_only_blocks_since_its_last_round():
    store = Store()
    expected = store.rows[[1, 2]].copy()
    worker = Worker(store, workers=2, period_blocks=3)
    for number in range(5):
        worker.train(worker.ask([1, 2]), 1)
        assert worker.unpushed == (number != 2)
    worker.client.serve(99)  # what was handed over; then it is killed
    np.testing.assert_allclose(store.rows[[1, 2]], expected + 3, rtol=1e-5)


@pytest.mark.parametrize("marked", [0, 5000])
def test_places_are_in_order_by_marks_and_by_sorting(marked, monkeypatch):
    monkeypatch.setattr(rows_of, "MARKED_A_KEY", marked)
    places = np.array([7, 0, 999, 3], np.int32)
    found = rows_of.ascending(places, 1000)
    assert found.tolist() == [0, 3, 7, 999]
    assert found.dtype == np.int32
    assert rows_of.ascending(places[:0], 1000).tolist() == []
    assert rows_of.ascending(np.concatenate((places, places)), 1000).tolist() == [0, 3, 7, 999]
