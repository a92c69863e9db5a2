"""Word vectors of a chunk of one part, whose worker keeps all rows; tables in memory."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rotating import (
    Lost,
    MemoryCheckouts,
    MemoryTables,
    MemoryWorker,
    blocks_of_chunk,
    train_rotating,
)

from snailps import kernels
from snailps.data._text import WordCounter
from snailps.data.vocabulary import Vocabulary
from snailps.models.rotation.partition_rows import PartitionRows
from snailps.models.word_vectors import WordVectorSettings, model, rotation, shared_text
from snailps.models.word_vectors.block_size import pairs_bytes
from snailps.models.word_vectors.examples import MASK64
from snailps.models.word_vectors.plan import (
    checkouts_of_one,
    chunks_of,
    keeps_all_rows,
)

pytestmark = pytest.mark.usefixtures("float32_products")

SMALL = WordVectorSettings(dim=16, min_count=1, sample=0.0, bucket=500, window=3, maxn=0, epochs=1)
KINDS = pytest.mark.parametrize(("model", "maxn"), [("skipgram", 0), ("skipgram", 3), ("cbow", 3)])


def text(lines: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    return b"".join(
        b" ".join(b"w%d" % word for word in line) + b"\n"
        for line in rng.integers(120, size=(lines, 8))
    )


CHUNKS = [[text(40, 10 * chunk + at) for at in range(3)] for chunk in range(2)]
ALL = b"".join(b"".join(chunk_blocks) for chunk_blocks in CHUNKS)


def workers_of(settings: WordVectorSettings, num: int = 1) -> list[MemoryWorker]:
    counter = WordCounter()
    counter.count(ALL)
    known = Vocabulary.from_counter(counter, 1)
    tables = MemoryTables(settings, len(known))
    tables.rows["output"][:] = 0.1  # else the first steps change no input row
    return [MemoryWorker(settings, known, tables) for _ in range(num)]


def settings_of(model: str, maxn: int) -> WordVectorSettings:
    return replace(SMALL, model=model, maxn=maxn, minn=2 if maxn else 0)


@pytest.fixture(params=[2, 9])
def checkouts(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def tables_of(worker: MemoryWorker) -> tuple[PartitionRows, PartitionRows]:
    """Its rows of "input" and of "output"."""
    part = worker.rotating.part
    assert part is not None
    (outputs,) = part.staying
    return part.inputs, outputs


def test_every_pair_of_every_checkout_is_trained_once(checkouts: int) -> None:
    made = workers_of(SMALL)
    figures = train_rotating(made, CHUNKS, output_parts=checkouts)
    pairs = 0
    for chunk in range(len(CHUNKS)):
        for at in range(checkouts):
            ids, _ = shared_text.get_chunk(made[0], chunk, 3, at, (1,) * checkouts)
            seed = (SMALL.seed * 0x9E3779B97F4A7C15 + chunk * checkouts + at) & MASK64
            pairs += kernels.sort_pairs(ids, SMALL.window, seed).pairs.sum()
    assert sum(one["examples"] for one in figures) == pairs
    assert sum(one["units"] for one in figures) == len(ALL.split()) + ALL.count(b"\n")


@KINDS
def test_rows_are_pulled_at_first_and_pulled_and_pushed_once_a_chunk(
    model: str, maxn: int, checkouts: int
) -> None:
    made = workers_of(settings_of(model, maxn))
    memory = made[0].memory
    train_rotating(made, CHUNKS, epochs=3, output_parts=checkouts)
    for table, name in zip(tables_of(made[0]), ("input", "output"), strict=True):
        assert (len(table.keys) > len(made[0].vocabulary)) == (bool(maxn) and name == "input")
        assert memory.moved[name] == (1 + 2 * 2 * 3) * len(table.keys)
        rows = memory.pull(name, table.keys)
        np.testing.assert_allclose(table.local[0][:, : SMALL.dim], rows, atol=1e-5)


@KINDS
def test_loss_falls(model: str, maxn: int) -> None:
    data = [[b"a b c d\n" * 300, b"p q r s\n" * 300]]
    counter = WordCounter()
    counter.count(b"".join(data[0]))
    known = Vocabulary.from_counter(counter, 1)
    settings = replace(settings_of(model, maxn), lr=0.1)
    worker = MemoryWorker(settings, known, MemoryTables(settings, len(known)))
    figures = train_rotating([worker], data, epochs=4)
    losses = [one["loss"] / one["examples"] for one in figures]
    assert losses[-1] < 0.8 * losses[0]


@KINDS
def test_a_worker_that_is_lost_leaves_nothing_behind(model: str, maxn: int) -> None:
    found = []
    for is_lost in (False, True):
        (worker,) = workers_of(settings_of(model, maxn))
        before = {name: rows.copy() for name, rows in worker.memory.rows.items()}
        block = blocks_of_chunk([worker], CHUNKS[0])[0]
        shared = block.checkouts
        assert isinstance(shared, MemoryCheckouts)
        if is_lost:
            shared.shared.lost_after = 1
            block.prepared = worker.prepare(block)
            with pytest.raises(Lost):
                worker.train(block)
            assert len(shared.had) == 1
            for name, rows in worker.memory.rows.items():
                np.testing.assert_array_equal(rows, before[name])
            (block,) = blocks_of_chunk([worker], CHUNKS[0])
            worker = MemoryWorker(worker.settings, worker.vocabulary, worker.memory)
        block.prepared = worker.prepare(block)
        worker.train(block)
        found.append(worker.memory.rows)
    for name in ("input", "output"):
        np.testing.assert_array_equal(found[0][name], found[1][name])


@KINDS
def test_workers_that_come_and_go_find_the_rows_as_they_were_left(model: str, maxn: int) -> None:
    found = []
    for keeps in (True, False):
        a, b = workers_of(settings_of(model, maxn), 2)
        for chunk, some in enumerate(([a], [a], [a, b], [a], [b], [b], [a])):
            trained = some
            if not keeps:
                trained = [MemoryWorker(one.settings, one.vocabulary, one.memory) for one in some]
            train_rotating(trained, CHUNKS[chunk % 2 :][:1], first=chunk, at_once=False)
        found.append(a.memory.rows)
    for name in ("input", "output"):
        np.testing.assert_allclose(found[0][name], found[1][name], atol=1e-3)


def test_rows_are_freed_where_a_chunk_has_another_number_of_parts() -> None:
    a, b = workers_of(SMALL, 2)
    kept = []
    for chunk, some in enumerate(([a], [a, b], [a])):
        train_rotating(some, CHUNKS[:1], first=chunk, at_once=False)
        assert a.rotating.part is not None
        kept.append(weakref.ref(a.rotating.part))
    gc.collect()
    assert [part() is not None for part in kept] == [False, False, True]


def test_a_push_repairs_what_the_servers_have_lost() -> None:
    (worker,) = workers_of(SMALL)
    train_rotating([worker], CHUNKS[:1])
    worker.memory.rows["input"][:] = 25.0  # a new primary lacks what was pushed
    table, _ = tables_of(worker)
    before = table.local[0].copy()
    train_rotating([worker], CHUNKS[:1], first=1)
    assert np.abs(table.local[0] - before).max() < 1  # it went on from its own rows
    np.testing.assert_allclose(
        table.local[0][:, : SMALL.dim], worker.memory.rows["input"], atol=1e-5
    )


def test_checkouts_in_any_order_train_the_pieces_of_each() -> None:
    found = []
    for order in ([0, 1], [1, 0]):
        (worker,) = workers_of(SMALL)
        block = blocks_of_chunk([worker], CHUNKS[0])[0]
        shared = block.checkouts
        assert isinstance(shared, MemoryCheckouts)
        shared.left = list(order)
        block.prepared = worker.prepare(block)
        found.append((worker.train(block), shared))
    (all_, one), (same, other) = found
    assert all_["examples"] == same["examples"]
    assert [f["examples"] for f in one.figures] == [f["examples"] for f in other.figures[::-1]]
    assert other.had == [1, 0]


def test_durable_checkouts_are_not_trained_again() -> None:
    (worker,) = workers_of(SMALL)
    block = blocks_of_chunk([worker], CHUNKS[0])[0]
    block.prepared = worker.prepare(block)
    whole = worker.train(block)
    (worker,) = workers_of(SMALL)
    block = blocks_of_chunk([worker], CHUNKS[0])[0]
    assert isinstance(block.checkouts, MemoryCheckouts)
    block.terms = replace(block.terms, durable=(0,))
    block.checkouts.left = [1]
    block.prepared = worker.prepare(block)
    rest = worker.train(block)
    assert 0 < rest["units"] < whole["units"]
    assert rest["lr"] == whole["lr"]
    block.terms = replace(block.terms, durable=(0, 1))
    block.prepared = worker.prepare(block)
    assert worker.train(block) == {"units": 0.0, "loss": 0.0, "examples": 0.0}


def test_sums_of_squares_are_kept_and_pushed() -> None:
    settings = replace(SMALL, optimizer="adagrad")
    (worker,) = workers_of(SMALL)
    wide = {name: np.hstack([rows, 0 * rows]) for name, rows in worker.memory.rows.items()}
    worker.memory.rows = wide
    worker = MemoryWorker(settings, worker.vocabulary, worker.memory)
    train_rotating([worker], CHUNKS)
    table, _ = tables_of(worker)
    assert (wide["input"][:, SMALL.dim :] > 0).any()
    np.testing.assert_allclose(
        np.hstack([part[:, : SMALL.dim] for part in table.local]), wide["input"], atol=1e-4
    )


def test_a_failed_push_ends_the_partition() -> None:
    (worker,) = workers_of(SMALL)

    def fails(*_: Any, **__: Any) -> Any:
        raise OSError("planted: the push fails")

    worker.push_async = lambda *_, **__: SimpleNamespace(wait=fails)  # type: ignore
    with pytest.raises(OSError, match="planted"):
        train_rotating([worker], CHUNKS[:1])


@pytest.mark.parametrize("words", [10_000_000, 100_000_000, 1_000_000_000])
def test_chunks_of_one_worker_are_some_seconds_and_push_little(words: int) -> None:
    (worker,) = workers_of(SMALL)
    chunks = chunks_of(worker.vocabulary, SMALL, words, 1)
    assert 1 <= words / chunks <= 16_000_000
    assert words / chunks / checkouts_of_one(worker.vocabulary, SMALL, words / chunks) <= 200_000
    scant = replace(SMALL, worker_memory=1 << 20)
    assert chunks_of(worker.vocabulary, scant, words, 1) > chunks
    assert checkouts_of_one(worker.vocabulary, scant, words) == 2
    assert not keeps_all_rows(worker.vocabulary, scant)


@pytest.mark.parametrize("words", [100_000_000, 1_000_000_000])
def test_half_a_chunk_of_one_worker_fits_where_another_joins(words: int) -> None:
    (worker,) = workers_of(SMALL)
    settings = replace(SMALL, worker_memory=64 << 20)
    chunks = chunks_of(worker.vocabulary, settings, words, 1)
    assert keeps_all_rows(worker.vocabulary, settings)
    assert 2 * pairs_bytes(settings, words // chunks // 2) <= settings.worker_memory


def test_rows_of_a_new_part_are_pulled_when_its_partition_is_prepared() -> None:
    (worker,) = workers_of(SMALL)
    words = len(worker.vocabulary)
    (block,) = blocks_of_chunk([worker], CHUNKS[0])
    assert worker.memory.moved["output"] == 0
    block.prepared = worker.prepare(block)
    block.prepared.part.opening.result()
    assert worker.memory.moved["output"] == words
    worker.train(block)
    assert worker.memory.moved["output"] == 3 * words


@pytest.mark.parametrize(("chunk", "had"), [(0, 1), (2, 0)])
def test_rows_that_another_worker_has_trained_are_pulled_again(chunk: int, had: int) -> None:
    (worker,) = workers_of(SMALL)
    train_rotating([worker], CHUNKS[:1], first=-1 if had else 0)
    worker.memory.rows["output"][:] = 7.0  # of the other worker
    (block,) = blocks_of_chunk([worker], CHUNKS[0], chunk)
    assert isinstance(block.checkouts, MemoryCheckouts)
    if had:
        block.terms = replace(block.terms, durable=(0,))
        block.checkouts.left = [1]
    block.prepared = worker.prepare(block)
    worker.train(block)
    assert worker.memory.rows["output"].mean() > 1.0


def test_kernels_of_a_checkout_are_queued_before_those_of_the_one_before_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (worker,) = workers_of(SMALL)
    begun: list[Future[tuple[float, int]]] = []

    def train(*_: Any) -> list[Future[tuple[float, int]]]:
        for former in begun:
            assert former.done() or former is begun[-1]  # so that two are in memory
        for former in begun[-1:]:
            former.set_result((1.0, 1))
        begun.append(Future())
        if len(begun) == block.output_parts:
            begun[-1].set_result((1.0, 1))
        return begun[-1:]

    (block,) = blocks_of_chunk([worker], CHUNKS[0], output_parts=9)
    block.prepared = worker.prepare(block)
    monkeypatch.setattr(rotation, "train", train)
    assert worker.train(block)["examples"] == len(begun) == 9


@pytest.mark.parametrize("separator", [b" ", b"\n"])
def test_parts_of_a_text_are_cut_behind_words_and_encoded_in_any_number_of_threads(
    separator: bytes,
) -> None:
    index = separator.join(ALL.split()) + separator
    parts = shared_text.cut_text(index, 1000)
    assert b"".join(parts) == index
    assert len(parts) > 5
    assert all(part.endswith(separator) for part in parts)
    assert all(1000 < len(part) < 1010 for part in parts[:-1])
    assert shared_text.cut_text(b"", 1000) == [b""]
    assert shared_text.cut_text(b"x" * 5000, 1000) == [b"x" * 5000]


def test_a_block_is_the_same_whatever_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "ENCODED_BYTES", 300)
    found = []
    for threads in (1, 3):
        (worker,) = workers_of(replace(SMALL, sample=1e-3))
        worker.threads = threads
        blocks_of_chunk([worker], CHUNKS[0])
        found.append(shared_text.get_chunk(worker, 0, 3))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1] == len(b"".join(CHUNKS[0]).split()) + 120
    assert (found[0][0] >= 0).sum() < found[0][1]  # some are left out


def test_rows_are_freed_behind_the_last_push_of_the_training() -> None:
    for end, is_free in ((0.5, False), (1.0, True)):
        (worker,) = workers_of(SMALL)
        before = worker.memory.rows["output"].copy()
        (block,) = blocks_of_chunk([worker], CHUNKS[0], shares=(0.0, end))
        block.prepared = worker.prepare(block)
        worker.train(block)
        assert [table.local == () for table in tables_of(worker)] == [is_free, is_free]
        assert (worker.memory.rows["output"] != before).any()  # pushed before


@pytest.mark.parametrize(
    ("name", "carry"), [(b"%06x", True), (b"http://www.example.com/%04d", False)]
)
def test_sums_of_bags_are_carried_and_steps_long_unless_words_share_most_rows(name, carry):
    settings = replace(SMALL, model="cbow", minn=3, maxn=6, bucket=100_000, lr=0.0)
    counter = WordCounter()
    counter.count(b" ".join(name % (at * 7919 % 0xFFFFF) for at in range(300)))
    known = Vocabulary.from_counter(counter, 1)
    worker = MemoryWorker(settings, known, MemoryTables(settings, len(known)))
    assert worker.rotating.examples(np.arange(300, dtype=np.int32), 1).carry is carry
    assert worker.rotating.first_rate == (0.1 if carry else 0.05)
    for changed, rate in (
        ({"lr": 0.3}, 0.3), ({"loss": "hs"}, 0.05), ({"model": "skipgram"}, 0.05),
        ({"optimizer": "adagrad"}, 0.7), ({"maxn": 0}, 0.1),
    ):  # fmt: skip
        other = replace(settings, **changed)
        worker = MemoryWorker(other, known, MemoryTables(other, len(known)))
        assert worker.rotating.first_rate == rate


def test_rows_that_the_same_words_have_are_counted_once_where_all_are_kept():
    settings = replace(SMALL, model="cbow", minn=3, maxn=6, bucket=2_000_000, dim=1000)
    rng = np.random.default_rng(5)

    def least_memory(letters: int) -> int:
        counter = WordCounter()
        words = {bytes(rng.integers(97, 123, letters).astype(np.uint8)) for _ in range(600)}
        counter.count(b" ".join(sorted(words)[:400]))
        known = Vocabulary.from_counter(counter, 1)
        fits = (
            at
            for at in range(1, 200)
            if keeps_all_rows(known, replace(settings, worker_memory=at << 20))
        )
        return next(fits)

    few, many = least_memory(2), least_memory(12)  # MiB; 3 n-grams of a word, and some 40
    assert few <= many < few + 10  # 16,000 n-grams would take 77
