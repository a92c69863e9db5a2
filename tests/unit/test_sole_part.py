"""Word vectors at the only worker, which keeps all rows; tables in memory."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rotating import LentVisits, Lost, MemoryTables, MemoryWorker, blocks_of_chunk, train_rotating

from snailps import kernels
from snailps.data._text import WordCounter
from snailps.data.vocabulary import Vocabulary
from snailps.models.word_vectors import WordVectorSettings, model, shared_text, sole_part
from snailps.models.word_vectors.rotation import MASK64
from snailps.models.word_vectors.skip_gram import pairs_bytes
from snailps.models.word_vectors.word_parts import chunks_of_sole, keeps_all_rows

SMALL = WordVectorSettings(dim=16, min_count=1, sample=0.0, bucket=500, window=3, maxn=0, epochs=1)
KINDS = pytest.mark.parametrize(("model", "maxn"), [("skipgram", 0), ("skipgram", 3), ("cbow", 3)])


def text(lines: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    return b"".join(
        b" ".join(b"w%d" % word for word in line) + b"\n"
        for line in rng.integers(120, size=(lines, 8))
    )


CHUNKS = [[text(40, 10 * chunk + at) for at in range(3)] for chunk in range(2)]
ALL = b"".join(b"".join(slices) for slices in CHUNKS)


def workers_of(settings: WordVectorSettings, num: int = 1) -> list[MemoryWorker]:
    counter = WordCounter()
    counter.count(ALL)
    known = Vocabulary.from_counter(counter, 1)
    tables = MemoryTables(settings, len(known))
    tables.rows["output"][:] = 0.1  # else the first steps change no input row
    return [MemoryWorker(settings, known, tables) for _ in range(num)]


def settings_of(model: str, maxn: int) -> WordVectorSettings:
    return replace(SMALL, model=model, maxn=maxn, minn=2 if maxn else 0)


@pytest.fixture(params=[1 << 20, 100])
def piece_tokens(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sole_part, "piece_tokens", lambda settings: request.param)
    return int(request.param)


def test_every_pair_of_every_piece_is_trained_once(piece_tokens: int) -> None:
    made = workers_of(SMALL)
    figures = train_rotating(made, CHUNKS)
    tokens = len(ALL.split()) + ALL.count(b"\n")
    pieces = 2 * max(1, -(-tokens // 4 // piece_tokens))
    pairs = 0
    for chunk in range(len(CHUNKS)):
        for at in range(pieces):
            ids, _ = shared_text.get_chunk(made[0], chunk, 3, at, pieces)
            seed = (SMALL.seed * 0x9E3779B97F4A7C15 + chunk * pieces + at) & MASK64
            pairs += len(kernels.sort_pairs(ids, SMALL.window, seed)[2])
    assert (pieces > 2) == (piece_tokens == 100)
    assert sum(one["examples"] for one in figures) == pairs
    assert sum(one["units"] for one in figures) == len(ALL.split()) + ALL.count(b"\n")


@pytest.mark.parametrize("shares", [(0.0, 0.001), (1.0, 1.0), (0.0, 1.0)])
def test_pieces_are_as_many_whatever_the_time_leaves_of_the_training(
    monkeypatch: pytest.MonkeyPatch, shares: tuple[float, float]
) -> None:
    monkeypatch.setattr(sole_part, "piece_tokens", lambda settings: 100)
    (worker,) = workers_of(replace(SMALL, epochs=1000))
    (block,) = blocks_of_chunk([worker], CHUNKS[0], shares=shares)
    ids = shared_text.count_ids(worker, 0, 3)
    assert worker._sole._pieces_of_visit(block) == -(-ids // 200)  # type: ignore[union-attr]
    assert len(worker.prepare(block).content[0]) < ids // 4  # type: ignore[union-attr,index]


@pytest.mark.usefixtures("piece_tokens")
@KINDS
def test_rows_are_pulled_at_first_and_pulled_and_pushed_once_a_chunk(model: str, maxn: int) -> None:
    made = workers_of(settings_of(model, maxn))
    memory = made[0].memory
    train_rotating(made, CHUNKS, epochs=3)
    _, keys = made[0]._sole._bags  # type: ignore[union-attr]
    assert (len(keys) > len(made[0].vocabulary)) == bool(maxn)
    assert memory.moved["input"] == (1 + 2 * 2 * 3) * len(keys)
    assert memory.moved["output"] == (1 + 2 * 2 * 3) * len(made[0].vocabulary)
    for table, name in zip(made[0]._sole._tables, ("input", "output"), strict=True):  # type: ignore
        rows = memory.pull(name, table._keys)
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
        lent = block.visits
        assert isinstance(lent, LentVisits)
        if is_lost:
            lent._lent.lost_after = 1
            block.prepared = worker.prepare(block)
            with pytest.raises(Lost):
                worker.train(block)
            assert len(lent.had) == 1
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


def test_rows_of_one_way_are_freed_where_the_other_begins() -> None:
    a, b = workers_of(SMALL, 2)
    train_rotating([a], CHUNKS[:1], at_once=False)
    assert a._sole is not None
    assert a._sole._tables is not None
    train_rotating([a, b], CHUNKS[:1], first=1, at_once=False)
    assert a._sole._tables is None
    assert "_bags" not in a._sole.__dict__
    assert a._rotating._residents is not None
    train_rotating([a], CHUNKS[:1], first=2, at_once=False)
    assert a._rotating._residents is None


def test_a_push_repairs_what_the_servers_have_lost() -> None:
    (worker,) = workers_of(SMALL)
    train_rotating([worker], CHUNKS[:1])
    worker.memory.rows["input"][:] = 25.0  # a new primary lacks what was pushed
    table, _ = worker._sole._tables  # type: ignore[union-attr, misc]
    before = table.local[0].copy()
    train_rotating([worker], CHUNKS[:1], first=1)
    assert np.abs(table.local[0] - before).max() < 1  # it went on from its own rows
    np.testing.assert_allclose(
        table.local[0][:, : SMALL.dim], worker.memory.rows["input"], atol=1e-5
    )


def test_visits_in_any_order_train_the_pieces_of_each() -> None:
    found = []
    for order in ([0, 1], [1, 0]):
        (worker,) = workers_of(SMALL)
        block = blocks_of_chunk([worker], CHUNKS[0])[0]
        lent = block.visits
        assert isinstance(lent, LentVisits)
        lent._left = list(order)
        block.prepared = worker.prepare(block)
        found.append((worker.train(block), lent))
    (all_, one), (same, other) = found
    assert all_["examples"] == same["examples"]
    assert [f["examples"] for f in one.figures] == [f["examples"] for f in other.figures[::-1]]
    assert other.had == [1, 0]


def test_settled_visits_are_not_trained_again() -> None:
    (worker,) = workers_of(SMALL)
    block = blocks_of_chunk([worker], CHUNKS[0])[0]
    block.prepared = worker.prepare(block)
    whole = worker.train(block)
    (worker,) = workers_of(SMALL)
    block = blocks_of_chunk([worker], CHUNKS[0])[0]
    assert isinstance(block.visits, LentVisits)
    block.had, block.settled = 1, (0,)
    block.visits._left = [1]
    block.prepared = worker.prepare(block)
    rest = worker.train(block)
    assert 0 < rest["units"] < whole["units"]
    assert rest["lr"] == whole["lr"]
    block.had, block.settled = 2, (0, 1)
    assert worker.prepare(block) is None


def test_sums_of_squares_are_kept_and_pushed() -> None:
    settings = replace(SMALL, optimizer="adagrad")
    (worker,) = workers_of(SMALL)
    wide = {name: np.hstack([rows, 0 * rows]) for name, rows in worker.memory.rows.items()}
    worker.memory.rows = wide
    worker = MemoryWorker(settings, worker.vocabulary, worker.memory)
    train_rotating([worker], CHUNKS)
    table, _ = worker._sole._tables  # type: ignore[union-attr, misc]
    assert (wide["input"][:, SMALL.dim :] > 0).any()
    np.testing.assert_allclose(
        np.hstack([part[:, : SMALL.dim] for part in table.local]), wide["input"], atol=1e-4
    )


def test_a_failed_push_ends_the_tenancy() -> None:
    (worker,) = workers_of(SMALL)

    def fails(*_: Any, **__: Any) -> Any:
        raise OSError("planted: the push fails")

    worker.push_async = lambda *_, **__: SimpleNamespace(wait=fails)  # type: ignore
    with pytest.raises(OSError, match="planted"):
        train_rotating([worker], CHUNKS[:1])


@pytest.mark.parametrize("words", [10_000_000, 100_000_000, 1_000_000_000])
def test_chunks_of_one_worker_are_some_seconds_and_push_little(words: int) -> None:
    (worker,) = workers_of(SMALL)
    chunks = chunks_of_sole(worker.vocabulary, SMALL, words)
    assert 1 <= words / chunks <= 16_000_000
    assert chunks_of_sole(worker.vocabulary, replace(SMALL, worker_memory=1 << 20), words) == 0
    assert not keeps_all_rows(worker.vocabulary, replace(SMALL, worker_memory=1 << 20))


@pytest.mark.parametrize("words", [100_000_000, 1_000_000_000])
def test_half_a_chunk_of_one_worker_fits_where_another_joins(words: int) -> None:
    (worker,) = workers_of(SMALL)
    settings = replace(SMALL, worker_memory=64 << 20)
    chunks = chunks_of_sole(worker.vocabulary, settings, words)
    assert chunks > 0
    assert 2 * pairs_bytes(settings, words // chunks // 2) <= settings.worker_memory


def test_rows_are_pulled_while_the_first_chunk_is_dealt_to_an_only_worker() -> None:
    a, b = workers_of(SMALL, 2)
    words = len(a.vocabulary)
    blocks_of_chunk([a, b], CHUNKS[0])
    assert a.memory.moved["output"] == 0  # their chunk has two parts
    blocks_of_chunk([a], CHUNKS[1], chunk=1)
    assert a.memory.moved["output"] == 0  # another worker may train chunk 0
    (block,) = blocks_of_chunk([a], CHUNKS[0])
    assert a._sole is not None
    assert a._sole._opening is not None
    a._sole._opening.result()
    assert a.memory.moved["output"] == words
    block.prepared = a.prepare(block)
    a.train(block)
    assert a.memory.moved["output"] == 3 * words


def test_rows_pulled_ahead_are_pulled_again_behind_settled_visits_of_another_worker() -> None:
    (worker,) = workers_of(SMALL)
    (block,) = blocks_of_chunk([worker], CHUNKS[0])
    assert worker._sole is not None
    assert worker._sole._opening is not None
    worker._sole._opening.result()
    worker.memory.rows["output"][:] = 7.0  # of the other worker
    assert isinstance(block.visits, LentVisits)
    block.had, block.settled = 1, (0,)
    block.visits._left = [1]
    block.prepared = worker.prepare(block)
    worker.train(block)
    assert worker.memory.rows["output"].mean() > 5.0


def test_kernels_of_a_piece_are_queued_before_those_of_the_one_before_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sole_part, "piece_tokens", lambda settings: 100)
    (worker,) = workers_of(SMALL)
    begun: list[Future[tuple[float, int]]] = []

    def train(*_: Any) -> list[Future[tuple[float, int]]]:
        for former in begun:
            assert former.done() or former is begun[-1]  # so that two are in memory
        for former in begun[-1:]:
            former.set_result((1.0, 1))
        begun.append(Future())
        if len(begun) == block.visiting * worker._sole._pieces_of_visit(block):  # type: ignore
            begun[-1].set_result((1.0, 1))
        return begun[-1:]

    (block,) = blocks_of_chunk([worker], CHUNKS[0])
    block.prepared = worker.prepare(block)
    worker._sole._train = train  # type: ignore
    assert worker.train(block)["examples"] == len(begun) > 2


@pytest.mark.parametrize("separator", [b" ", b"\n"])
def test_parts_of_a_text_are_cut_behind_words_and_encoded_in_any_number_of_threads(
    separator: bytes,
) -> None:
    slice_ = separator.join(ALL.split()) + separator
    parts = shared_text.cut_text(slice_, 1000)
    assert b"".join(parts) == slice_
    assert len(parts) > 5
    assert all(part.endswith(separator) for part in parts)
    assert all(1000 < len(part) < 1010 for part in parts[:-1])
    assert shared_text.cut_text(b"", 1000) == [b""]
    assert shared_text.cut_text(b"x" * 5000, 1000) == [b"x" * 5000]


def test_a_slice_is_the_same_whatever_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert worker._sole is not None
        assert (worker._sole._tables is None) == is_free
        assert (worker.memory.rows["output"] != before).any()  # pushed before
