"""Word vectors by rotation, at several workers with tables in memory."""

from __future__ import annotations

import itertools
import random
import tracemalloc
import weakref
from dataclasses import replace
from functools import cache, partial
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rotating import (
    Lost,
    MemoryCheckouts,
    MemoryTables,
    MemoryWorker,
    SharedPartitions,
    blocks_of_chunk,
    train_rotating,
)
from waiting import LIMIT_S
from workers_in_order import ORDERS, Order, in_turns, lockstep, losses_in_order

from snailps import kernels
from snailps.api.rotation import outputs_for
from snailps.data._text import WordCounter
from snailps.data.packed_words import PackedWords
from snailps.data.vocabulary import Vocabulary
from snailps.models.rotation import shared_blocks, trainer
from snailps.models.rotation.input_exchange import InputExchange
from snailps.models.rotation.trainer import Checkout, LeaseRates, turns_of, units_between
from snailps.models.word_vectors import (
    WordVectors,
    WordVectorSettings,
    cbow,
    private_rows,
    rotation,
    shared_text,
    skip_gram,
    word_rows,
)
from snailps.models.word_vectors.cbow import gains_of_grams
from snailps.models.word_vectors.contention import WordContention
from snailps.models.word_vectors.examples import Windows

pytestmark = pytest.mark.usefixtures("float32_products")

SMALL = WordVectorSettings(dim=16, min_count=1, sample=0.0, bucket=500, window=3, maxn=0)

SCANT = 1 << 20
"""Memory of a worker that does not keep all rows, so that it rotates alone, too."""


def text(lines: int, seed: int) -> bytes:
    """Sentences of three topics, whose words come together."""
    rng = np.random.default_rng(seed)
    topics = rng.integers(3, size=lines)
    words = rng.integers(40, size=(lines, 8))
    return b"".join(
        b" ".join(b"t%dw%d" % (topic, word) for word in line) + b"\n"
        for topic, line in zip(topics, words, strict=True)
    )


def vocabulary_of(data: bytes) -> Vocabulary:
    counter = WordCounter()
    counter.count(data)
    return Vocabulary.from_counter(counter, 1)


def workers_of(settings: WordVectorSettings, num: int, data: bytes) -> list[MemoryWorker]:
    known = vocabulary_of(data)
    tables = MemoryTables(settings, len(known))
    return [MemoryWorker(settings, known, tables) for _ in range(num)]


MANY = b" ".join(b"w%d" % word for word in range(5000))
"""A text of many words."""


def workers_of_tables(worker: MemoryWorker) -> list[MemoryWorker]:
    """A worker that has pulled nothing yet, with the tables of another one."""
    return [MemoryWorker(worker.settings, worker.vocabulary, worker.memory)]


CHUNKS = [[text(40, 10 * chunk + at) for at in range(3)] for chunk in range(2)]
ALL = b"".join(b"".join(chunk_blocks) for chunk_blocks in CHUNKS)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_pair_is_trained_once_whoever_does_it(workers: int) -> None:
    made = workers_of(replace(SMALL, worker_memory=SCANT), workers, ALL)
    figures = train_rotating(made, CHUNKS)
    pairs = 0
    for chunk in range(len(CHUNKS)):
        ids, _ = shared_text.get_chunk(made[0], chunk, 3)
        seed = (SMALL.seed * 0x9E3779B97F4A7C15 + chunk) & ((1 << 64) - 1)
        pairs += kernels.sort_pairs(ids, SMALL.window, seed).pairs.sum()
    assert sum(one["examples"] for one in figures) == pairs
    assert sum(one["units"] for one in figures) == len(ALL.split()) + ALL.count(b"\n")
    assert all(np.isfinite(one["loss"]) for one in figures)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_target_of_cbow_is_trained_once_whoever_does_it(workers: int) -> None:
    made = workers_of(replace(SMALL, model="cbow", worker_memory=SCANT), workers, ALL)
    figures = train_rotating(made, CHUNKS)
    words = sum(int((shared_text.get_chunk(made[0], at, 3)[0] >= 0).sum()) for at in range(2))
    cut_off = 2 * 2 * workers  # words alone at an end of a share have no context
    assert words - cut_off <= sum(one["examples"] for one in figures) <= words
    assert sum(one["units"] for one in figures) == len(ALL.split()) + ALL.count(b"\n")
    checkouts = np.array([(t.start, t.stop) for t in targets_of(made[0], workers)])
    assert checkouts[0, 0] == 0
    assert (checkouts[1:, 0] == checkouts[:-1, 1]).all()


def targets_of(worker: MemoryWorker, parts: int) -> list[slice]:
    """Checkouts of a partition; their targets' words are of the output partition."""
    block = SimpleNamespace(
        chunk=1, chunk_blocks=3, part=parts - 1, parts=parts, sizes=(1,) * parts,
        output_parts=outputs_for(parts), first=False,
    )  # fmt: skip
    block.progress = (0.0, 0.1)
    lease = worker.rotating.prepare(block)  # type: ignore[arg-type]
    assert lease.of_part is not None
    ids, _ = shared_text.get_chunk(worker, 1, 3, parts - 1, (1,) * parts)
    found, targets = [], []
    for part in range(outputs_for(parts)):
        examples = lease.of_part(part)
        assert isinstance(examples, Windows)
        assert examples.targets is not None
        np.testing.assert_array_equal(ids[examples.targets], examples.words)
        assert (lease.split.outputs[examples.words] == part).all()
        assert (np.diff(examples.targets) > 0).all()
        found.append(slice(len(targets), len(targets) + len(examples)))
        targets += examples.targets.tolist()
    assert sorted(targets) == np.flatnonzero(ids >= 0).tolist()
    return found


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 400])
def test_shares_of_a_chunk_are_the_chunk(parts: int) -> None:
    made = workers_of(SMALL, 1, MANY)
    sizes = [3, 0, 1000, 257, 256]
    for at, size in enumerate(sizes):
        ids = np.arange(size, dtype=np.int32) + 1000 * at
        shared_text.put_block(made[0], 1, at, ids, size + 1)
    whole, words = shared_text.get_chunk(made[0], 1, 5)
    shares = [shared_text.get_chunk(made[0], 1, 5, part, (1,) * parts) for part in range(parts)]
    np.testing.assert_array_equal(np.concatenate([ids for ids, _ in shares]), whole)
    assert sum(own for _, own in shares) == words == 1521
    assert max(len(ids) for ids, _ in shares) - min(len(ids) for ids, _ in shares) <= 1


LONGER = [[text(400, 10 * chunk + at) for at in range(3)] for chunk in range(2)]


@cache
def losses(settings: WordVectorSettings, order: Order, workers: int = 4) -> list[float]:
    """Loss of each chunk of three epochs."""
    words = b"".join(b"".join(chunk_blocks) for chunk_blocks in LONGER)
    return losses_in_order(workers_of(settings, workers, words), LONGER, order, epochs=3)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("model", "maxn", "lr", "worse"),
    [
        ("skipgram", 0, 0.05, 1.02),
        ("skipgram", 3, 0.05, 1.02),
        ("cbow", 0, 0.1, 1.05),
        ("cbow", 3, 0.05, 1.05),
        ("cbow", 3, 0.1, 1.05),
    ],
)
def test_workers_that_train_in_any_order_learn_as_those_that_train_in_turns(
    model: str, maxn: int, lr: float, worse: float, order: str
) -> None:
    settings = replace(SMALL, minn=2 if maxn else 0, maxn=maxn, model=model, lr=lr)
    began, *_, last = losses(settings, ORDERS[order])
    assert last < began
    assert last < worse * losses(settings, in_turns)[-1]


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_of_cbow_with_grams_learn_in_lockstep_as_in_turns(workers: int) -> None:
    settings = replace(SMALL, minn=2, maxn=3, model="cbow", lr=0.1)
    began, *_, last = losses(settings, lockstep, workers)
    assert last < began
    assert last < 1.1 * losses(settings, in_turns, workers)[-1]


def test_private_rows_of_short_runs_learn_what_rows_in_place_learn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of each checkout several runs, in which each word has a private row, or none has."""
    settings = replace(SMALL, minn=2, maxn=3, model="cbow", lr=0.1)
    words = b"".join(b"".join(chunk_blocks) for chunk_blocks in LONGER)
    opened, found = [0], []
    open_run = private_rows.PrivateTurns.open

    def counted(self: private_rows.PrivateTurns) -> None:
        opened[-1] += len(self._words)
        open_run(self)

    monkeypatch.setattr(private_rows.PrivateTurns, "open", counted)
    monkeypatch.setattr(cbow, "RUN_TARGETS", 20)
    for least in (1, 10**9):
        monkeypatch.setattr(private_rows, "PLACES_LEAST", least)
        made = workers_of(settings, 4, words)
        found.append(losses_in_order(made, LONGER, lockstep, epochs=3))
        opened.append(0)
    assert opened[0] > 1000
    assert opened[1] == 0
    assert found[0][-1] < found[0][0]
    assert found[0][-1] == pytest.approx(found[1][-1], rel=0.03)


def numbered(name: bytes, words: int, line_num: int) -> bytes:
    """Lines of eight words that are next to each other in a list of numbered names."""
    rng = np.random.default_rng(1)
    at = (rng.integers(words, size=(line_num, 1)) + rng.integers(30, size=(line_num, 8))) % words
    return b"".join(b" ".join(name % word for word in line) + b"\n" for line in at)


@pytest.mark.parametrize(
    ("model", "lr", "words", "line_num"),
    [("cbow", 0.1, 600, 2000), ("skipgram", 0.05, 1000, 8000), ("skipgram", 0.1, 1000, 8000)],
)
def test_rows_of_grams_in_every_word_do_not_diverge_in_lockstep(
    model: str, lr: float, words: int, line_num: int
) -> None:
    """They diverged where one worker learnt: deltas of such rows were summed whole."""
    lines = numbered(b"item%04d", words, line_num)
    settings = replace(SMALL, minn=3, maxn=6, bucket=5000, model=model, lr=lr)
    found = [
        losses_in_order(workers_of(settings, num, lines), [[lines]], lockstep, epochs=3)
        for num in (1, 4)
    ]
    assert found[1][-1] < 1.1 * found[0][-1], found


def test_rate_falls_with_the_time_that_a_lease_takes_of_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lease of a long text is planned for less of the training than it gets of the time."""
    block: Any = SimpleNamespace(progress=(0.0, 0.1), output_parts=10, had=0)
    for max_seconds, expected in ((10.0, (0.5, 0.4)), (0.0, (0.95, 0.94))):
        times = iter((100.0, 105.0))
        monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=times.__next__))
        rates = LeaseRates(block, lambda progress: 1.0 - progress, max_seconds)
        assert rates.of(5) == pytest.approx(expected)


@pytest.mark.parametrize("lr", [0.05, 0.2])
def test_words_that_share_most_of_their_grams_are_learnt_at_any_rate(lr: float) -> None:
    """Sixteen of them side by side went one way together, and diverged."""
    lines = numbered(b"http://www.example.com/page%04d", 500, 4000)
    settings = replace(SMALL, minn=3, maxn=6, bucket=5000, lr=lr)
    found = losses_in_order(workers_of(settings, 1, lines), [[lines]], in_turns, epochs=3)
    assert found[-1] < 0.6 * found[0], found


def test_gains_of_grams_are_whole_steps_of_windows() -> None:
    """Words of one row each; then of 4, of which one is in all words."""
    few, alone = np.full(1000, 1), np.ones(4000)
    ptr, own = np.arange(1001), np.arange(1000, dtype=np.int32)
    found, moves = gains_of_grams(ptr, own, alone[:1000], few, np.full(1000, 6.0))
    np.testing.assert_allclose((found, moves), 1, rtol=0.05)  # each in 6 windows of 6 words
    rows = np.stack([np.zeros(1000), *(np.arange(1000) + 1 + 1000 * at for at in range(3))], 1)
    rows = rows.astype(np.int32).ravel()
    occurrences = np.bincount(rows) * 6.0
    found, moves = gains_of_grams(4 * ptr, rows, alone, few, occurrences)
    np.testing.assert_allclose(found[1:], 3 / 4, rtol=0.1)  # the other three go together
    np.testing.assert_allclose(moves[1:], 3**0.5 / 4, rtol=0.1)
    assert found[0] == pytest.approx(1000 * 6 / 4, rel=0.05)  # in all of 1,000 windows, 6 times
    # One row in the place of the other three.
    pairs, weights = rows.reshape(-1, 4)[:, :2].ravel(), np.tile([1.0, 3.0], 1000)
    merged = gains_of_grams(2 * ptr, pairs, weights, few, occurrences[:1001])
    np.testing.assert_allclose(merged, [found[:1001], moves[:1001]])


def test_a_share_of_the_text_may_lack_any_word() -> None:
    """Its worker has the rows of all: the last one of n-grams is of no word of one of the halves.

    That ended a training, as often as the word of the last row was rare.
    """
    digits = numbered(b"%04d", 100, 500)
    lines = digits + digits.translate(bytes.maketrans(b"0123456789", b"abcdefghij"))
    settings = replace(SMALL, model="cbow", minn=3, maxn=6, bucket=100_000, lr=0.1)
    found = losses_in_order(workers_of(settings, 2, lines), [[lines]], lockstep, epochs=2)
    assert found[-1] < found[0], found


def test_workers_of_cbow_learn_less_without_an_exchange_of_input_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = replace(SMALL, model="cbow", lr=0.1)
    with_exchanges = losses(settings, ORDERS["lockstep"])[-1]
    monkeypatch.setattr(InputExchange, "exchange", lambda self, number: None)
    monkeypatch.setattr(InputExchange, "push_all", lambda self: pytest.fail("sends rows"))
    assert losses.__wrapped__(settings, lockstep)[-1] > 1.2 * with_exchanges


@pytest.mark.parametrize("model", ["skipgram", "cbow"])
def test_words_of_a_topic_become_neighbours(model: str) -> None:
    lr = 0.05 if model == "skipgram" else 0.2  # CBOW makes a step a word, not one a pair
    made = workers_of(replace(SMALL, model=model, lr=lr), 3, ALL)
    losses_in_order(made, CHUNKS, lockstep, epochs=5)
    rows = made[0].memory.rows["input"]
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    names = [bytes(made[0].vocabulary.words[n]) for n in range(len(rows))]
    topic = np.array([int(name[1:2]) if name.startswith(b"t") else -1 for name in names])
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -1)
    known = topic >= 0
    assert (topic[cosines.argmax(1)] == topic)[known].mean() > 0.9


@pytest.mark.parametrize("model", ["skipgram", "cbow"])
def test_one_partition_after_the_other_is_repeatable(model: str) -> None:
    rows = []
    for _ in range(2):
        made = workers_of(replace(SMALL, minn=2, maxn=3, model=model), 3, ALL)
        train_rotating(made, CHUNKS, at_once=False)
        rows.append(made[0].memory.rows)
    for table in ("input", "output"):
        np.testing.assert_array_equal(rows[0][table], rows[1][table])


@pytest.mark.parametrize("model", ["skipgram", "cbow"])
@pytest.mark.parametrize("chunk", [[b""], [b"zebra quagga\n"], [b"t0w1", b""], [b"t0w1\n"]])
def test_chunks_with_next_to_nothing_in_them(chunk: list[bytes], model: str) -> None:
    made = workers_of(replace(SMALL, model=model), 2, ALL)
    figures = train_rotating(made, [chunk])
    pairs = 2 * (chunk == [b"t0w1\n"] and model == "skipgram")  # with </s>; CBOW's shares have one
    assert sum(one["examples"] for one in figures) == pairs
    words = b"".join(chunk)
    assert sum(one["units"] for one in figures) == len(words.split()) + words.count(b"\n")


def test_a_block_may_be_written_twice_and_its_place_used_again() -> None:
    made = workers_of(SMALL, 2, MANY)
    ids = np.arange(700, dtype=np.int32) - 1
    shared_text.put_block(made[0], 0, 0, ids[::-1].copy(), 90)
    made[1].memory.text[next(iter(made[1].memory.text))][5:] = 7  # what a lost worker has left
    for chunk in (0, 3):
        shared_text.put_block(made[1], chunk, 0, ids, 700)
        shared_text.put_block(made[0], chunk, 1, ids[:5], 6)
        found, words = shared_text.get_chunk(made[0], chunk, 2)
        np.testing.assert_array_equal(found, np.concatenate((ids, ids[:5])))
        assert words == 706


def test_leases_of_what_is_near_their_words_learn_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bit for bit, of a text that is read a few ids at a time."""
    rows, sort, sorted_ = [], kernels.sort_pairs, []

    def sort_pairs(ids, *given, **more):
        sorted_.append(more["origins"] is not None)
        return sort(ids, *given, **more)

    monkeypatch.setattr(kernels, "sort_pairs", sort_pairs)
    for near, span in ((False, 1), (True, 10), (True, 1 << 20)):
        monkeypatch.setattr(skip_gram, "keeps_near", lambda s, parts, tokens, near=near: near)
        monkeypatch.setattr(shared_text, "SPAN_IDS", span)
        made = workers_of(SMALL, 3, ALL)
        rows.append((train_rotating(made, CHUNKS, at_once=False), made[0].memory.rows))
    assert sorted_ == [False] * 6 + [True] * 12
    for figures, found in rows[1:]:
        assert figures == rows[0][0]
        for table in ("input", "output"):
            np.testing.assert_array_equal(found[table], rows[0][1][table])


def test_memory_of_ids_does_not_grow_with_the_chunk_where_many_workers_share_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_text, "SPAN_IDS", 1 << 16)
    (worker,) = workers_of(SMALL, 1, ALL)
    words, peaks = len(worker.vocabulary), []
    inputs = np.arange(words, dtype=np.int32)
    ids = np.random.default_rng(1).integers(1, words, 1 << 15).astype(np.int32)
    ids[100] = 0
    for blocks in (8, 64):
        for at in range(blocks):
            shared_text.put_block(worker, 0, at, ids, len(ids))
        tracemalloc.start()
        near, places, total, _ = shared_text.get_near(
            worker, 0, blocks, inputs, 0, 5, lambda total: True
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert total == blocks << 15
        assert (near >= 0).sum() == 11 * blocks
        assert places[near == 0].tolist() == [100 + (at << 15) for at in range(blocks)]
    assert peaks[1] < 1.2 * peaks[0]
    assert peaks[1] < 4 * (64 << 15) / 2  # of the chunk's ids


def test_rows_that_servers_have_of_another_chunk_are_missed() -> None:
    """A new primary lacks the last pushes: a block, its tail, its head, or what was before it."""
    (worker,) = workers_of(SMALL, 1, MANY)
    ids, rows = np.arange(1500, dtype=np.int32), worker.memory.text
    for index in (0, 1):
        shared_text.put_block(worker, 1, index, ids, 700)
    before = {key: row.copy() for key, row in rows.items()}
    for index in (0, 1):
        shared_text.put_block(worker, 4, index, ids[::-1].copy(), 90)
    after = {key: row.copy() for key, row in rows.items()}
    of_block = sorted(rows)[:4], sorted(rows)[4:]
    for lost in (of_block[1], of_block[1][2:], of_block[1][:1], of_block[1][-1:]):
        rows.update(after | {key: before[key].copy() for key in lost})
        with pytest.raises(shared_blocks.LostBlocks) as missed:
            shared_text.get_chunk(worker, 4, 2)
        assert missed.value.indices == [1]
        shared_text.put_block(worker, 4, 1, ids[::-1].copy(), 90)
        found, words = shared_text.get_chunk(worker, 4, 2)
        np.testing.assert_array_equal(found, np.concatenate([ids[::-1]] * 2))
        assert words == 180
    # The difference to what the old primary had, upon what the new one has: no chunk's numbers.
    rows.update(after | {key: 2 * after[key] - before[key] for key in of_block[0][1:]})
    with pytest.raises(shared_blocks.LostBlocks) as missed:
        shared_text.get_chunk(worker, 4, 2)
    assert missed.value.indices == [0]
    rows.clear()
    with pytest.raises(shared_blocks.LostBlocks) as missed:
        shared_text.count(worker, 0, 2)
    assert missed.value.indices == [0, 1]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("model", ["skipgram", "cbow"])
def test_text_of_an_earlier_chunk_is_encoded_again_and_what_is_learnt_is_the_same(
    model: str, workers: int
) -> None:
    settings, rows = replace(SMALL, model=model), []
    for loses in (False, True):
        made = workers_of(settings, workers, ALL)
        blocks_of_chunk(made, [block[::-1] for block in CHUNKS[1]], 0, (0.0, 0.0))
        blocks = blocks_of_chunk(made, CHUNKS[0], 3)
        text, again = made[0].memory.text, blocks[0].checkouts.shared.again  # type: ignore[attr-defined]
        if loses:
            for key in sorted(text)[1::2]:
                text[key] = np.full_like(text[key], 1)  # a row of chunk 0
        for worker, block in zip(made, blocks, strict=True):
            block.prepared = worker.prepare(block)
            if loses and workers == 1:  # what a later checkout reads is lost in the training
                for key in sorted(text)[1::2]:
                    text[key] = np.full_like(text[key], 1)
        for worker, block in zip(made, blocks, strict=True):
            figures = worker.train(block)
            rows.append((figures, {k: v.copy() for k, v in made[0].memory.rows.items()}))
        assert bool(again) == loses
    half = len(rows) // 2
    for (figures, learnt), (others, same) in zip(rows[:half], rows[half:], strict=True):
        assert figures == others
        for table, found in learnt.items():
            np.testing.assert_array_equal(found, same[table])


def test_a_chunk_is_pulled_in_bounded_pieces() -> None:
    made = workers_of(SMALL, 1, ALL)
    for at, size in enumerate((3, 0, 1000, 257, 256)):
        shared_text.put_block(made[0], 1, at, np.full(size, at, np.int32), size)
    found, words = shared_text.get_chunk(made[0], 1, 5)
    assert words == len(found) == 1516
    assert np.bincount(found, minlength=5).tolist() == [3, 0, 1000, 257, 256]
    assert list(shared_blocks.batches([3, 0, 1000, 257, 256], 1000)) == [[0, 1], [2], [3, 4]]


def test_numbers_of_a_block_that_float32_has_not_are_exact() -> None:
    made = workers_of(SMALL, 1, MANY)
    ids = np.arange(300, dtype=np.int32)
    for at, words in enumerate([(1 << 24) + 1, (1 << 30) - 1, (1 << 20) - 1]):
        shared_text.put_block(made[0], at, 0, ids, words)
        assert shared_text.get_chunk(made[0], at, 1)[1] == words


def test_words_of_the_checkouts_of_a_huge_partition_are_its_words() -> None:
    words, pairs = 3 << 31, np.array([0, 1 << 33, 3 << 33], np.int64)
    assert [units_between(words, pairs, part) for part in (0, 1)] == [1 << 31, 2 << 31]


def test_parts_are_checked_out_by_one_partition_at_a_time() -> None:
    shared = SharedPartitions(4)
    one, two = shared.checkouts(0, 2), shared.checkouts(1, 2)
    first, second = one.check_out(), two.check_out()
    assert first != second
    one.check_in(0, {})
    assert two.check_out() is not None


@pytest.mark.parametrize("model", ["skipgram", "cbow"])
@pytest.mark.parametrize("workers", [1, 2])
def test_rows_travel_narrow_unless_a_worker_has_them_all(workers: int, model: str) -> None:
    """A single worker's file would else depend on when rows are pushed, not on the seed alone."""
    made = workers_of(replace(SMALL, model=model), workers, ALL)
    train_rotating(made, CHUNKS)
    assert {worker.narrow_rows for worker in made} == {workers > 1}
    assert {worker.narrow_deltas for worker in made} == {model == "skipgram"}


def test_rows_of_a_part_are_pulled_once_while_its_worker_keeps_it() -> None:
    made = workers_of(SMALL, 2, ALL)
    memory = made[0].memory
    pulled: dict[int, set[int]] = {0: set(), 1: set()}
    for number, worker in enumerate(made):

        def pull(
            table: str, keys: np.ndarray, *more: Any, own: Any = pulled[number], **rest: Any
        ) -> Any:
            if table == "input":
                assert own.isdisjoint(keys.tolist())
                own.update(keys.tolist())
            return MemoryWorker.pull(made[0], table, keys, *more)

        worker.pull = pull  # type: ignore[method-assign]
    train_rotating(made, CHUNKS, epochs=3)
    assert pulled[0].isdisjoint(pulled[1])
    assert len(pulled[0] | pulled[1]) == len(made[0].vocabulary)
    for worker in made:
        part = worker.rotating.part
        assert part is not None
        assert set(part.keys.tolist()) == pulled[made.index(worker)]
        rows = np.concatenate(part.inputs.local, axis=1)
        np.testing.assert_allclose(rows, memory.pull("input", part.keys), atol=1e-6)


@pytest.mark.parametrize("maxn", [0, 3])
def test_rows_that_are_kept_train_as_those_that_are_pulled_again(maxn: int) -> None:
    settings = replace(SMALL, minn=2 if maxn else 0, maxn=maxn)
    chunks = [[text(40, 1)], [text(40, 2).replace(b"t1", b"u1")]]
    found = []
    for memory in (SCANT, 1 << 10):  # room for no row but those of a chunk
        limited = replace(settings, worker_memory=memory)
        made = workers_of(limited, 1, b"".join(chunks[0] + chunks[1]))
        train_rotating(made, chunks, epochs=2)
        found.append((made[0].memory.rows, made[0].memory.moved["input"]))
    (kept, less), (anew, more) = found
    assert less < more
    for table in ("input", "output"):
        np.testing.assert_allclose(kept[table], anew[table], atol=1e-3)


@pytest.mark.parametrize("model", ["skipgram", "cbow"])
@pytest.mark.parametrize("maxn", [0, 3])
def test_kept_rows_are_those_of_the_servers_whoever_trained_the_part_before(
    maxn: int, model: str
) -> None:
    """Workers leave their part to another, swap parts, and are two, three and two."""
    settings = replace(SMALL, minn=2 if maxn else 0, maxn=maxn, model=model)
    found = []
    for keeps in (True, False):
        a, b, c = workers_of(settings, 3, ALL)
        of_chunks = [a, b], [a, b], [c, b], [a, b], [b, a], [a, b, c], [b, a], [b, a]
        for chunk, some in enumerate(of_chunks):
            trained = some if keeps else [workers_of_tables(a)[0] for _ in some]
            train_rotating(trained, CHUNKS[chunk % 2 :][:1], first=chunk, at_once=False)
        found.append(a.memory.rows)
    for table in ("input", "output"):
        np.testing.assert_allclose(found[0][table], found[1][table], atol=1e-3)


@pytest.mark.parametrize(("memory", "stays"), [(SCANT, True), (1 << 10, False)])
def test_rows_of_a_partition_that_was_prepared_early_have_what_the_one_before_has_trained(
    memory: int, stays: bool
) -> None:
    made = workers_of(replace(SMALL, worker_memory=memory), 1, ALL)
    made[0].memory.rows["output"][:] = 0.5  # else the first steps change no input row
    half = (0.0, 0.5)  # not to the end of the training
    first, second = (blocks_of_chunk(made, CHUNKS[at], at, half)[0] for at in range(2))
    for block in (first, second):
        block.prepared = made[0].prepare(block)
    part, following = weakref.ref(first.prepared.part), second.prepared.part
    assert (part() is following) == stays
    before = made[0].memory.rows["input"].copy()
    made[0].train(first)
    assert following.opening is None
    assert (made[0].memory.rows["input"] != before).any()
    for pool in (made[0].rotating.ahead, made[0].rotating.behind):
        pool.submit(int).result()  # its thread drops what it did before that
    assert (part() is None) != stays  # nor its rows
    between = made[0].memory.rows["input"].copy()
    made[0].train(second)
    begun = made[0].memory.rows["input"]
    np.testing.assert_allclose(
        following.inputs.base, made[0].memory.pull("input", following.keys), atol=1e-6
    )
    assert (begun != between).any()


def test_part_that_is_prepared_leaves_the_one_that_trains() -> None:
    """A worker takes the part of a lost one before its own chunk ends."""
    made = workers_of(SMALL, 2, ALL)
    one, two = blocks_of_chunk(made, CHUNKS[0], 0, (0.0, 0.5))
    one.prepared = made[0].prepare(one)
    check_out = one.checkouts.check_out

    def check_out_later() -> int | None:
        if two.prepared is None:
            two.prepared = made[0].prepare(two)
        return check_out()

    one.checkouts.check_out = check_out_later  # type: ignore[method-assign]
    figures = [made[0].train(block) for block in (one, two)]
    other = workers_of(SMALL, 2, ALL)
    for block, worker in zip(blocks_of_chunk(other, CHUNKS[0], 0, (0.0, 0.5)), other, strict=True):
        block.prepared = worker.prepare(block)
        worker.train(block)
    assert sum(one["examples"] for one in figures) > 0
    for table in ("input", "output"):
        np.testing.assert_allclose(
            made[0].memory.rows[table], other[0].memory.rows[table], atol=1e-5
        )


@pytest.fixture
def durable_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "DURABLE_SECONDS", 0.0)
    monkeypatch.setattr(trainer, "DURABLE_ROWS", 10.0)
    monkeypatch.setattr(trainer, "DURABLE_SHARE", 0.0)


@pytest.mark.usefixtures("durable_often")
@pytest.mark.parametrize("lost_after", [1, 3])
@pytest.mark.parametrize(("model", "maxn"), [("skipgram", 0), ("skipgram", 3), ("cbow", 3)])
def test_partition_whose_worker_is_lost_behind_durable_checkouts_ends_as_if_it_were_not(
    model: str, maxn: int, lost_after: int
) -> None:
    settings = replace(SMALL, minn=2 if maxn else 0, maxn=maxn, model=model, worker_memory=SCANT)
    found = []
    for is_lost in (False, True):
        worker = workers_of(settings, 1, ALL)[0]
        worker.memory.rows["output"][:] = 0.1  # else the first steps change no input row
        block = blocks_of_chunk([worker], CHUNKS[0], output_parts=4)[0]
        shared = block.checkouts
        assert isinstance(shared, MemoryCheckouts)
        if is_lost:
            shared.shared.lost_after = lost_after
            block.prepared = worker.prepare(block)
            with pytest.raises(Lost):
                worker.train(block)
            worker.rotating.close()  # type: ignore[union-attr]
            assert shared.durable == list(range(1, lost_after + 1))
            shared.shared.lost_after = 4
            block.terms = replace(block.terms, durable=tuple(sorted(shared.had)))
            shared.had.clear()
            (worker,) = workers_of_tables(worker)
        block.prepared = worker.prepare(block)
        figures = worker.train(block)
        found.append((worker.memory.rows, figures))
        assert len(shared.had) == 4 - block.had
    (whole, all_), (rest, some) = found
    for table in ("input", "output"):
        np.testing.assert_allclose(rest[table], whole[table], atol=1e-5)
    assert 0 < some["units"] < all_["units"]
    assert some["lr"] == all_["lr"]


@pytest.mark.usefixtures("durable_often")
def test_rows_are_durable_before_the_next_checkout_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its steps are pushed, and trained again when the worker is lost."""
    begun: list[int] = []
    durable: list[int] = []
    train, push_all = rotation.train, InputExchange.push_all

    def noted(*args: Any) -> Any:
        begun.append(len(begun))
        return train(*args)

    def counted(self: InputExchange) -> Any:
        durable.append(len(begun))
        return push_all(self)

    monkeypatch.setattr(rotation, "train", noted)
    monkeypatch.setattr(trainer, "comes_first", lambda coming, tasks: bool(coming.result() or 1))
    monkeypatch.setattr(InputExchange, "push_all", counted)
    worker = workers_of(replace(SMALL, worker_memory=SCANT), 1, ALL)[0]
    block = blocks_of_chunk([worker], CHUNKS[0], output_parts=4)[0]
    block.prepared = worker.prepare(block)
    worker.train(block)
    assert durable == [1, 2, 3]


def test_pairs_of_durable_checkouts_are_not_sorted_again() -> None:
    worker = workers_of(replace(SMALL, worker_memory=SCANT), 1, ALL)[0]
    block = blocks_of_chunk([worker], CHUNKS[0], output_parts=4)[0]
    whole = worker.rotating.prepare(block)
    block.terms = replace(block.terms, durable=(0, 2))
    rest = worker.rotating.prepare(block)
    assert whole.of_part is not None
    assert rest.of_part is not None
    for part in range(4):
        contexts = rest.of_part(part).contexts
        assert (len(contexts) > 0) == (part in (1, 3))
        if len(contexts):
            np.testing.assert_array_equal(contexts, whole.of_part(part).contexts)
    assert [rest.units_of(part) for part in range(4)] == [whole.units_of(part) for part in range(4)]
    assert sum(whole.units_of(part) for part in range(4)) == whole.units


def test_partition_whose_checkouts_are_all_durable_trains_nothing() -> None:
    worker = workers_of(replace(SMALL, worker_memory=SCANT), 1, ALL)[0]
    block = blocks_of_chunk([worker], CHUNKS[0], output_parts=4)[0]
    shared = block.checkouts
    assert isinstance(shared, MemoryCheckouts)
    block.terms = replace(block.terms, durable=(0, 1, 2, 3))
    shared.left.clear()
    block.prepared = worker.prepare(block)
    assert worker.train(block) == {"units": 0.0, "loss": 0.0, "examples": 0.0}


@pytest.mark.parametrize("seed", range(40))
def test_turns_are_trained_once_each_however_many_lie_between_two_exchanges(seed: int) -> None:
    rng = random.Random(seed)
    turns, numbers, spans = rng.choice([1, 2, 7, 8]), [], []
    inputs = SimpleNamespace(turns=turns, turns_apart=rng.randint(1, 3 * turns))

    def exchange(number: int) -> None:
        numbers.append(number)
        inputs.turns_apart = rng.randint(1, 2 * turns)

    def begin(span: Any, rates: Any, seed: int) -> list[Any]:
        spans.append((span, rates, inputs.turns_apart))
        return []

    inputs.exchange = exchange
    checkout = Checkout(2, 100 * turns, begin, number=3, rates=(1.0, 0.5))
    for _ in turns_of(checkout, inputs, seed=1):  # type: ignore[arg-type]
        pass
    assert [spans[0][0][0], spans[-1][0][1]] == [0, 100 * turns]
    for (one, rates, _), (two, next_rates, _) in itertools.pairwise(spans):
        assert (one[1], rates[1]) == (two[0], next_rates[0])
    assert [spans[0][1][0], spans[-1][1][1]] == [1.0, 0.5]
    assert numbers == [3 * turns + span[1] // 100 for span, _, _ in spans]
    for (first, last), _, apart in spans:
        assert last - first == min(100 * apart, 100 * turns - first)


@pytest.mark.parametrize("seed", range(20))
def test_rows_that_stand_for_others_are_open_while_kernels_of_their_run_train(seed: int) -> None:
    rng, log = random.Random(seed), []
    runs, of_run = rng.choice([1, 2, 3]), rng.choice([1, 2, 5])
    turns = runs * of_run
    inputs = SimpleNamespace(turns=turns, turns_apart=rng.randint(1, 2 * turns))

    def exchange(number: int) -> None:
        log.append(("exchange", number))
        inputs.turns_apart = rng.randint(1, 2 * turns)

    def begin(span: Any, rates: Any, seed: int) -> list[Any]:
        log.append(("train", (span[0] // 100, span[1] // 100)))
        return []

    inputs.exchange = exchange
    run = SimpleNamespace(turns=of_run)
    run.open, run.close = (partial(log.append, (name, None)) for name in ("open", "close"))
    checkout = Checkout(2, 100 * turns, begin, number=3, run=run)
    for _ in turns_of(checkout, inputs, seed=1):  # type: ignore[arg-type]
        pass
    assert [name for name, _ in log if name in ("open", "close")] == ["open", "close"] * runs
    for number in range(runs):
        opens = [at for at, (name, _) in enumerate(log) if name == "open"][number]
        closes = [at for at, (name, _) in enumerate(log) if name == "close"][number]
        spans = [span for name, span in log[opens:closes] if name == "train"]
        assert (spans[0][0], spans[-1][1]) == (number * of_run, (number + 1) * of_run)
        assert log[closes + 1] == ("exchange", 3 * turns + (number + 1) * of_run)


@pytest.mark.parametrize(
    ("workers", "model", "times"),  # three each at most
    [
        (1, "skipgram", 0),
        (2, "skipgram", 4),
        (4, "skipgram", 12),
        (8, "skipgram", 48),
        (8, "cbow", 40),
    ],
)
def test_durable_checkouts_move_a_fifth_more_rows_at_most(
    workers: int, model: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [[text(1000, 10 * chunk + at) for at in range(2)] for chunk in range(2)]
    data = b"".join(b"".join(chunk_blocks) for chunk_blocks in texts)
    durable: list[bool] = []
    check_in = MemoryCheckouts.check_in

    def noted(self: MemoryCheckouts, part: int, figures: Any, **how: Any) -> None:
        durable.append(how["durable"])
        check_in(self, part, figures, **how)

    monkeypatch.setattr(MemoryCheckouts, "check_in", noted)
    moved, found = [], []
    for seconds in (1e9, 0.0):
        monkeypatch.setattr(trainer, "DURABLE_SECONDS", seconds)
        durable.clear()
        made = workers_of(replace(SMALL, model=model, worker_memory=SCANT), workers, data)
        train_rotating(made, texts, at_once=False)
        found.append(sum(durable))
        moved.append(made[0].memory.moved["input"] + made[0].memory.moved["output"])
    assert found == [0, times]
    assert moved[0] <= moved[1] <= 1.2 * moved[0]
    assert (moved[1] > moved[0]) == (times > 0)


class Failing(MemoryWorker):
    """Its first push of output rows is not acknowledged."""

    pushes = 0

    def push_async(self, table: str, keys: Any, values: Any, *, state: bool = False) -> Any:
        if table != "output":
            return super().push_async(table, keys, values, state=state)
        self.pushes += 1
        if self.pushes == 1:
            self.failed = Event()
            return SimpleNamespace(wait=self._fails, done=True)
        assert self.failed.wait(LIMIT_S), "no thread has waited for the first push"
        return super().push_async(table, keys, values, state=state)

    def _fails(self) -> None:
        self.failed.set()
        raise OSError("planted: the push fails")


def test_a_push_that_fails_ends_the_partition_in_the_next_checkouts() -> None:
    known = vocabulary_of(ALL)
    settings = replace(SMALL, worker_memory=SCANT)
    worker = Failing(settings, known, MemoryTables(settings, len(known)))
    with pytest.raises(OSError, match="planted"):
        train_rotating([worker], CHUNKS[:1], output_parts=16)
    assert worker.pushes < 16


@pytest.mark.parametrize("words", [4, 12, 81, 250, 600])
def test_a_text_of_few_words_does_not_rotate(words: int) -> None:
    counts = np.sort(np.random.default_rng(1).integers(1000, 99_000, words))[::-1].copy()
    names = PackedWords.of([b"w%d" % n for n in range(words)])
    known = Vocabulary(names, counts, int(counts.sum())).to_bytes()
    size = 4 * int(counts.sum())
    found = WordVectors.rotation(replace(SMALL, consistency="async"), size, 8, known)
    if words < 256:  # 81 words, 4 workers, rate .1 diverged with parts of ten words
        assert found is None
    else:
        assert found is not None
        assert found.most_parts in {2, 3, 4, 5}


@pytest.mark.parametrize("model", ["skipgram", "cbow"])
def test_rows_that_are_no_numbers_show_in_the_loss(model: str) -> None:
    made = workers_of(replace(SMALL, model=model), 2, ALL)
    made[0].memory.rows["input"][:] = np.nan
    figures = train_rotating(made, CHUNKS[:1])
    assert all(np.isnan(one["loss"]) for one in figures)


@pytest.mark.parametrize("change", [{}, {"loss": "nce"}, {"maxn": 3, "minn": 2}])
def test_rows_that_grow_without_bound_show_in_the_loss(change: dict[str, object]) -> None:
    made = workers_of(replace(SMALL, **change), 1, ALL)  # type: ignore[arg-type]
    assert all(np.isfinite(one["loss"]) for one in train_rotating(made, CHUNKS))
    made[0].memory.rows["input"] *= -300  # finite, and wrong of all pairs
    made[0].memory.rows["output"] *= 300
    made = workers_of_tables(made[0])
    assert [one["loss"] for one in train_rotating(made, CHUNKS[:1])] == [np.inf]


def test_skip_gram_makes_no_estimates_of_other_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_rows, "WordContention", None)
    train_rotating(workers_of(replace(SMALL, minn=2, maxn=3), 3, ALL), CHUNKS)


@pytest.mark.parametrize("workers", [1, 3])
def test_cbow_makes_estimates_of_other_workers_once(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def make(*given: Any) -> WordContention:
        made.append(given[3])
        return WordContention(*given)

    monkeypatch.setattr(word_rows, "WordContention", make)
    some = workers_of(replace(SMALL, model="cbow"), workers, ALL)
    assert made == []
    train_rotating(some, CHUNKS, epochs=2)
    assert made == ([] if workers == 1 else [workers] * workers)
    some[0].workers = 5
    for _ in range(2):
        assert some[0].contention(5) is not None
    assert made[-2:] != [5, 5]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, ["input", "output", "text"]),
        ({"model": "cbow"}, ["input", "output", "text"]),
        ({"consistency": "bsp"}, ["input", "output"]),
        ({"max_steps": 5}, ["input", "output"]),
    ],
)
def test_tables_do_not_depend_on_how_many_workers_there_are(
    change: dict[str, object], names: list[str]
) -> None:
    for workers in (1, 2, 9):
        worker = WordVectors(replace(SMALL, **change), 1)  # type: ignore[arg-type]
        worker.workers = workers
        assert [table.name for table in worker.tables()] == names


@pytest.mark.parametrize("maxn", [0, 3])
@pytest.mark.parametrize("model", ["skipgram", "cbow"])
@pytest.mark.parametrize("workers", [1, 8])
def test_both_models_rotate_with_any_number_of_workers(workers: int, model: str, maxn: int) -> None:
    words = PackedWords.of([b"w%d" % n for n in range(300)])
    known = Vocabulary(words, np.full(300, 1000), 300_000).to_bytes()
    settings = replace(SMALL, model=model, consistency="async", minn=2 if maxn else 0, maxn=maxn)
    assert WordVectors.rotation(settings, 4 * 300_000, workers, known) is not None
    of_blocks = WordVectors.block_bytes(replace(settings, consistency="bsp"), 1 << 20, workers)
    assert WordVectors.block_bytes(settings, 1 << 20, workers) != of_blocks


def test_words_that_share_their_ngrams_are_seen_behind_thousands_of_others() -> None:
    """Of a partition's words the frequent ones share little, and the others nearly all."""
    rng = np.random.default_rng(1)
    plain = [bytes(word) for word in rng.integers(97, 123, (8000, 7), np.uint8)]
    words = [*dict.fromkeys(plain), *(b"item%06d" % at for at in range(20_000))]
    counts = np.full(len(words), 40)
    counts[: len(words) - 20_000] = 100
    settings = WordVectorSettings(dim=1, sample=0.0, minn=3, maxn=6, bucket=50_000)
    known = Vocabulary(PackedWords.of(words), counts, int(counts.sum()))
    worker = MemoryWorker(settings, known, MemoryTables(settings, len(words)))
    inputs, _, bundling = worker.rotating._input_parts(counts.astype(float), (1,) * 8)
    assert np.bincount(inputs).min() > 2000
    assert bundling.run == 1
