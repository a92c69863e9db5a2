"""Input rows of a partition: own rows, and copies of n-grams' rows that are exchanged."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from rotating import MemoryTables, MemoryWorker

from snailps.data._text import WordCounter
from snailps.data.vocabulary import Vocabulary
from snailps.models.rotation import partition_rows
from snailps.models.rotation.input_exchange import Held, InputExchange, Sharing
from snailps.models.rotation.partition_rows import BYTES_AT_ONCE, PartitionRows
from snailps.models.text_model import BUCKET_KEY
from snailps.models.word_vectors import WordVectorSettings
from snailps.models.word_vectors.examples import Bags
from snailps.models.word_vectors.skip_gram import SkipGramTrainer

SETTINGS = WordVectorSettings(dim=4, min_count=1, sample=0.0, bucket=20, minn=2, maxn=3)
KEYS = np.array([0, 2, BUCKET_KEY + 3, BUCKET_KEY + 7], np.uint64)
VISITS = 8


@pytest.fixture
def worker():
    counter = WordCounter()
    counter.count(b"the cat sat on a mat")
    known = Vocabulary.from_counter(counter, 1)
    return MemoryWorker(SETTINGS, known, MemoryTables(SETTINGS, len(known)))


def copies(worker, groups, sharers, had=0, sizes=(1, 1)):
    """Of two words, each with one n-gram; so many groups of pairs have each as their centre."""
    by_bucket = np.zeros(SETTINGS.bucket, np.int32)
    for bucket, number in sharers.items():
        by_bucket[bucket] = number
    part = SimpleNamespace(
        word_num=2,
        bags=Bags.of(np.array([0, 2, 4]), np.array([0, 2, 1, 3], np.int32), None, 4),
        keys=KEYS,
    )
    rows = PartitionRows(worker.sgd, "input", KEYS, bases=True)
    block = SimpleNamespace(
        part=0, parts=2, sizes=sizes, output_parts=VISITS, progress=(0.0, 0.5), chunk=0, had=had
    )
    trainer = SkipGramTrainer(worker)
    split = SimpleNamespace(sharers=by_bucket)
    counts = np.array(groups)
    words = np.flatnonzero(counts)
    sharing = trainer._sharing(block, split, part, np.arange(len(KEYS)), words, counts[words])
    return InputExchange(rows, np.arange(len(KEYS)), sharing, block)


def stored(worker):
    return worker.memory.rows["input"][worker.memory.places(KEYS)].copy()


def test_rows_that_nobody_else_has_are_pushed_once_and_whole(worker):
    before = stored(worker)
    made = copies(worker, (10_000, 10_000), {3: 1, 7: 1})
    made.rows.local[0][:, :4] += 1
    for number in range(1, VISITS + 1):
        made.exchange(number)
        np.testing.assert_array_equal(stored(worker), before)
    made.close()
    np.testing.assert_allclose(stored(worker), before + 1, rtol=1e-6)


def test_a_busy_ngram_is_exchanged_every_checkout_and_a_rare_one_at_the_end(worker):
    before = stored(worker)
    made = copies(worker, (10_000, 1), {3: 5, 7: 5})
    changed = []
    for number in range(1, VISITS):
        made.rows.local[0][:, :4] += 1
        made.exchange(number)
        changed.append((stored(worker) != before).any(1).tolist())
    assert changed == [[False, False, True, False]] * (VISITS - 1)
    made.close()
    assert (stored(worker) != before).any(1).all()


def test_a_copy_takes_what_others_have_pushed_and_keeps_its_own_steps(worker):
    made = copies(worker, (10_000, 1), {3: 5, 7: 5})
    begin = stored(worker)[2]
    made.rows.local[0][2, :4] += 1
    made.exchange(1)
    sent = stored(worker)[2] - begin  # its share
    assert (sent > 0).all()
    assert (sent < 1).all()
    place = worker.memory.places(KEYS[2:3])
    worker.memory.rows["input"][place] += 10  # behind the pull: comes with the next exchange
    made.rows.local[0][2, :4] += 0.5  # trained while it was exchanged
    made.exchange(2)
    np.testing.assert_allclose(made.rows.local[0][2, :4], begin + sent + 0.5, rtol=1e-5)
    made.exchange(3)
    np.testing.assert_allclose(made.rows.local[0][2, :4], stored(worker)[2], rtol=1e-5)
    assert (made.rows.local[0][2, :4] > 10).all()


def test_rows_travel_when_their_steps_are_made_or_as_soon_as_the_way_is_free(worker):
    made = copies(worker, (200, 100), {3: 8, 7: 8})  # 300 of 1,600 and of 800 steps of all
    assert made.turns == 1
    sent = []
    arrived, push = True, None

    def push_async(table, keys, values, **_):
        nonlocal push
        sent.extend((number, int(key)) for key in keys)
        push = SimpleNamespace(wait=lambda: values, done=arrived)
        return push

    worker.push_async = push_async
    for number in range(1, VISITS):
        arrived = number not in {4, 5}
        if push is not None:
            push.done = arrived
        made.exchange(number)
    busy, rare = KEYS[2:].tolist()
    assert [n for n, key in sent if key == busy] == [1, 2, 3, 6, 7]
    assert [n for n, key in sent if key == rare] == [3, 6]


def test_held_rows_are_exchanged_at_ends_of_runs_which_wait_for_what_is_under_way(worker):
    """Both are due after each turn; the row of bucket 3 is held for runs of three."""
    sharing = Sharing(np.full(4, 5.0), np.full(4, 10_000.0), np.zeros(4), 300.0, 1)
    held = Held(np.array([0, 0, 1, 0], np.bool_), 3)
    rows = PartitionRows(worker.sgd, "input", KEYS, bases=True)
    block = SimpleNamespace(output_parts=VISITS, had=0)
    made = InputExchange(rows, np.arange(len(KEYS)), replace(sharing, held=held), block)
    sent, waited = [], []

    def push_async(table, keys, values, **_):
        sent.append((number, KEYS[2] in keys, KEYS[3] in keys))
        return SimpleNamespace(wait=lambda: waited.append(number), done=number != 2)

    worker.push_async = push_async
    for number in range(1, VISITS):
        made.rows.local[0][:, :4] += 1
        made.exchange(number)
    # After the second turn rows stay under way, until the run ends.
    assert sent == [
        (1, False, True),
        (2, False, True),
        *[(n, n % 3 == 0, True) for n in range(3, 8)],
    ]
    assert waited == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("held", [None, Held(np.ones(4, np.bool_), 1)])
def test_the_last_turn_of_a_lease_waits_for_nothing(worker, held):
    """Another worker may wait for the output rows of its checkout."""
    sharing = Sharing(np.full(4, 5.0), np.full(4, 10_000.0), np.zeros(4), 300.0, 1, held)
    rows = PartitionRows(worker.sgd, "input", KEYS, bases=True)
    block = SimpleNamespace(output_parts=VISITS, had=0)
    made = InputExchange(rows, np.arange(len(KEYS)), sharing, block)
    waited = []

    def push_async(table, keys, values, **_):
        return SimpleNamespace(wait=lambda: waited.append(number), done=False)

    worker.push_async = push_async
    for number in (VISITS - 1, VISITS):
        made.exchange(number)
    assert not waited
    made.push_all()
    assert waited == [VISITS]


@pytest.mark.parametrize(("takes", "apart"), [(1, 1), (2, 1), (3, 1), (4, 2), (6, 3)])
def test_kernels_stop_less_often_where_an_exchange_takes_many_turns(worker, takes, apart):
    made = copies(worker, (10_000, 1), {3: 5, 7: 5})
    answers = []

    def push_async(table, keys, values, **_):
        answers.append(SimpleNamespace(wait=lambda: values, done=False))
        return answers[-1]

    worker.push_async = push_async
    assert made.turns_apart == 1
    for number in range(1, takes + 2):
        if number > takes:
            answers[0].done = True
        made.exchange(number)
    assert len(answers) == 2
    assert made.turns_apart == apart


def test_durable_rows_are_at_the_servers_and_only_what_follows_is_pushed_at_the_end(worker):
    before = stored(worker)
    made = copies(worker, (10_000, 1), {3: 5, 7: 5})
    for number in range(1, 4):
        made.rows.local[0][[0, 2, 3], :4] += 1
        made.exchange(number)
    moved = worker.memory.moved["input"]
    made.rows.wait_for(made.push_all())
    own, still, busy, rare = stored(worker) - before
    np.testing.assert_allclose(own, 3, rtol=1e-6)
    assert (still == 0).all()
    assert (rare > 1).all()  # its share of three checkouts
    assert worker.memory.moved["input"] == moved + 2  # what was exchanged just now is there
    assert not made.push_all()
    made.exchange(4)
    made.rows.local[0][[0, 3], :4] += 1
    made.close()
    after = stored(worker) - before
    np.testing.assert_allclose(after[0], 4, rtol=1e-6)
    np.testing.assert_allclose(after[2], busy, rtol=1e-5)
    assert (after[3] > rare).all()
    assert (after[3] < rare + 1 + 1e-5).all()


def test_exchanges_of_a_partition_that_goes_on_begin_where_another_worker_was_lost(worker):
    made = copies(worker, (200, 100), {3: 8, 7: 8}, had=4)  # every checkout, every third one
    assert made.opened == 4
    begin = stored(worker)
    changed = []
    for number in range(5, VISITS):
        made.rows.local[0][:, :4] += 1
        made.exchange(number)
        changed.append((stored(worker) != begin).any(1).tolist()[2:])
        begin = stored(worker)
    assert changed == [[True, False], [True, False], [True, True]]
    assert made.exchanged == 8


@pytest.mark.parametrize("groups", [1, 30, 1000, 100_000])
@pytest.mark.parametrize("sharers", [2, 8, 64])
def test_shares_lie_between_a_mean_and_a_sum(worker, groups, sharers):
    made = copies(worker, (groups, groups), {3: sharers, 7: 1})
    made.exchange(VISITS * made.turns)  # nothing is sent, the end follows
    share = made.shares_of(np.arange(4))
    assert share[[0, 1, 3]].tolist() == [1, 1, 1]
    assert 0.999 / sharers <= share[2] <= 1
    if groups == 1:
        assert share[2] > 0.1
    if groups == 100_000:
        assert share[2] == pytest.approx(1 / sharers, rel=0.01)


@pytest.mark.parametrize(("sizes", "crowding"), [((1, 1), 2), ((3, 1), 4 / 3), ((1, 3), 4)])
def test_others_make_as_many_steps_as_their_parts_are_large(worker, sizes, crowding):
    made = copies(worker, (10_000, 10_000), {3: 2, 7: 1}, sizes=sizes)
    assert made.crowding.tolist() == pytest.approx([1, 1, crowding, 1])


def test_adagrads_squares_add_up_as_they_are(worker):
    settings = replace(SETTINGS, optimizer="adagrad")
    tables = MemoryTables(replace(SETTINGS, dim=8), len(worker.vocabulary))
    made = MemoryWorker(settings, worker.vocabulary, tables)
    before = stored(made)
    rows = copies(made, (10_000, 10_000), {3: 5, 7: 5})
    assert len(rows.rows.local) == 2
    rows.rows.local[0][:, :4] += 1
    rows.rows.local[1][:, :4] += 2
    rows.exchange(VISITS * rows.turns)
    rows.close()
    change = stored(made) - before
    np.testing.assert_allclose(change[:, 4:], 2, rtol=1e-5)
    assert (change[2:, :4] < 1).all()


def test_kept_rows_are_pulled_again_when_a_shard_has_another_server(worker):
    rows = PartitionRows(worker.sgd, "input", KEYS, bases=True)
    rows.open(None)
    kept = rows.local[0][:, : SETTINGS.dim].copy()
    worker.push("input", KEYS, np.ones_like(kept))  # as if pushes of before were lost
    rows.open(None)
    np.testing.assert_array_equal(rows.local[0][:, : SETTINGS.dim], kept)
    worker.route_epoch += 1
    rows.open(None)
    np.testing.assert_array_equal(rows.local[0][:, : SETTINGS.dim], stored(worker))
    np.testing.assert_array_equal(rows.base, stored(worker))


@pytest.mark.parametrize("bases", [True, False])
def test_rows_travel_in_pieces_whose_memory_is_small(worker, bases):
    rows = PartitionRows(worker.sgd, "output", np.arange(5, dtype=np.uint64), bases=bases)
    rows.open(None)
    rows.local[0][:] += 1
    sizes = []
    with patch.object(partition_rows, "BYTES_AT_ONCE", 2 * 4 * SETTINGS.dim):
        for push in rows.pushes(None):
            sizes.append(len(push[1]))
            rows.wait_for([push])
    assert sizes == [2, 2, 1]
    assert BYTES_AT_ONCE < 2 << 20


@pytest.mark.parametrize("bases", [True, False])
@pytest.mark.parametrize("way", ["push_all", "close"])
def test_deltas_of_few_rows_are_under_way_at_a_time(worker, monkeypatch, way, bases):
    monkeypatch.setattr(partition_rows, "BYTES_AT_ONCE", 1)  # a row a request
    keys, under_way, most = np.repeat(KEYS[:1], 100), [0], [0]
    rows = PartitionRows(worker.sgd, "input", keys, bases=bases)
    rows.open(None)
    rows.local[0][:, :4] += 1

    def push_async(table, keys, values, state=False):
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        return SimpleNamespace(wait=lambda: under_way.__setitem__(0, under_way[0] - 1))

    monkeypatch.setattr(worker, "push_async", push_async)
    last = getattr(rows, way)(None)
    bound = partition_rows.UNDER_WAY if bases else partition_rows.UNDER_WAY_SOLE
    assert most[0] == bound + 1
    if way == "push_all":
        assert len(last) == bound
        rows.wait_for(last)
    assert under_way == [0]
