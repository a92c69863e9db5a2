"""models.embeddings.rotation: ratings at several workers, whose tables are in real shards."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from connected import connected
from rotating import SharedPartitions, blocks_of_chunk

from snailps.abi.key_hash import fragment_of
from snailps.api.rotation import Rotation
from snailps.data.name_columns import NameCounts, Names
from snailps.errors import DataError
from snailps.models.embeddings import rotation
from snailps.models.embeddings.mf import MatrixFactorization
from snailps.models.embeddings.rotation import (
    CELLS,
    cell_edges,
    chunks_of,
    rotation_of,
)
from snailps.models.embeddings.settings import MfSettings
from snailps.models.embeddings.worker import KIND_KEY, TABLE
from snailps.models.rotation.partition_rows import PartitionRows

USERS, ITEMS = 60, 40
SETTINGS = MfSettings(dim=4, lr=0.05, l2=0.01, epochs=6, seed=3)


def planted(seed=5):
    """Ratings by planted factors, in four blocks; noise of .1."""
    rng = np.random.default_rng(seed)
    p, q = rng.normal(0, 0.8, (USERS, 3)), rng.normal(0, 0.8, (ITEMS, 3))
    u, i = np.divmod(rng.permutation(USERS * ITEMS), ITEMS)
    values = 3 + (p[u] * q[i]).sum(1) + rng.normal(0, 0.1, len(u))
    lines = [b"u%d,i%d,%.3f\n" % line for line in zip(u, i, values, strict=True)]
    return [b"".join(lines[at::4]) for at in range(4)]


BLOCKS = planted()


def summary_of(blocks):
    """What a survey of these blocks finds."""
    counts = NameCounts(2)
    lines = [line.split(b",") for line in b"".join(blocks).split()]
    for kind in (0, 1):
        counts.add(kind, [line[kind] for line in lines])
    counts.add_values(np.array([float(line[2]) for line in lines], np.float32))
    return counts.dump()


SUMMARY = summary_of(BLOCKS)


def workers_of(make, number, settings=SETTINGS, threads=1):
    first = make(settings, threads, number, SUMMARY)
    rest = [make(settings, threads, number, SUMMARY, beside=first) for _ in range(number - 1)]
    return [first, *rest]


def trained(workers, epochs=1, first=0, leases=None, at_once=True, parts=0):
    """Figures of all leases; rows stay where they are, as the training does not end."""
    found, total = [], SETTINGS.epochs

    def lease(worker, block):
        block.prepared = worker.prepare(block)
        if leases is not None:
            leases.append(block.prepared)
        return worker.train(block)

    for epoch in range(first, first + epochs):
        shares = (0.99 * epoch / total, 0.99 * (epoch + 1) / total)
        blocks = blocks_of_chunk(workers, BLOCKS, epoch, shares, parts, epoch, is_kept=epoch > 0)
        with ThreadPoolExecutor(len(workers) if at_once else 1) as pool:
            found += pool.map(lease, workers, blocks)
    return found


def rows_of(worker):
    keys = np.concatenate([np.arange(USERS), np.arange(ITEMS) + KIND_KEY]).astype(np.uint64)
    return worker.pull(TABLE, keys)


def lines_of(leases):
    """User and item of each line of some leases, as numbers of their names."""
    found = Counter()
    for lease in leases:
        users, items = lease.lines.places
        pairs = zip(lease.part.users[users].tolist(), items.tolist(), strict=True)
        found.update((user, item - len(lease.part.users)) for user, item in pairs)
    return found


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("number", [1, 3])
def test_each_line_is_trained_once_an_epoch_and_rows_learn(number, optimizer):
    with connected(MatrixFactorization, shards=2) as make:
        workers, leases = workers_of(make, number, replace(SETTINGS, optimizer=optimizer)), []
        figures = trained(workers, epochs=6, leases=leases)
        for epoch in range(6):
            some = lines_of(leases[epoch * number : (epoch + 1) * number])
            assert some == Counter((u, i) for u in range(USERS) for i in range(ITEMS))
        assert [sum(one[name] for one in figures) for name in ("units", "examples")] == [
            6 * USERS * ITEMS
        ] * 2
        losses = [sum(one["loss"] for one in figures[at:][:number]) for at in (0, 5 * number)]
        assert losses[1] < {"sgd": 0.3, "adagrad": 0.6}[optimizer] * losses[0], losses
        # What servers have is what was trained: users' rows at their worker, items' nowhere else.
        for worker in workers:
            part = worker.rotating.part
            users = part.inputs.keys[part.inputs.keys < KIND_KEY]
            known = worker.pull(TABLE, users)
            np.testing.assert_allclose(known, part.inputs.local[0][: len(users), :5], atol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_first_rows_are_made_as_servers_would_give_them(monkeypatch, optimizer):
    with connected(MatrixFactorization, shards=2) as make:
        (worker,) = workers_of(make, 1, replace(SETTINGS, optimizer=optimizer))
        keys = np.concatenate([np.arange(USERS), np.arange(ITEMS) + KIND_KEY]).astype(np.uint64)
        rows, pulled = (PartitionRows(worker.sgd, TABLE, keys, bases=True) for _ in range(2))
        assert pulled.open(None) == len(keys)
        monkeypatch.delattr(PartitionRows, "pull")
        assert rows.open(None, first=True) == 0
        assert (np.abs(rows.base[:, : SETTINGS.dim]) > 0).any()
        np.testing.assert_allclose(rows.base, pulled.base, rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(rows.local[0], pulled.local[0])


def test_rows_that_a_job_was_given_are_pulled(monkeypatch):
    """Those of a model that it continues from; and those that others may have trained."""
    with connected(MatrixFactorization, shards=2) as make:
        for first, loaded in ((True, True), (False, False), (True, False)):
            (worker,) = workers_of(make, 1)
            keys = np.arange(USERS, dtype=np.uint64)
            worker.push(TABLE, keys, np.ones((USERS, 5), np.float32), state=True)  # adds
            (block,) = blocks_of_chunk([worker], BLOCKS)
            block.first = first
            monkeypatch.setattr(worker, "loader", lambda _, loaded=loaded: loaded or None)
            lease = worker.prepare(block)
            lease.part.opening.result()
            is_made = np.abs(lease.part.inputs.local[0][:USERS, 1:5]).mean() < 0.5
            assert is_made == (first and not loaded)


def test_several_workers_learn_what_one_does():
    losses = []
    for number in (1, 4):
        with connected(MatrixFactorization) as make:
            figures = trained(workers_of(make, number), epochs=6)
            losses.append(sum(one["loss"] for one in figures[-number:]))
    assert losses[1] < 1.25 * losses[0], losses


def test_only_worker_with_one_thread_trains_the_same_bits_again():
    found = []
    for _ in range(2):
        with connected(MatrixFactorization) as make:
            (worker,) = workers_of(make, 1)
            trained([worker], epochs=2)
            found.append(rows_of(worker))
    np.testing.assert_array_equal(*found)


def test_lines_are_read_in_the_first_epoch_only(monkeypatch):
    with connected(MatrixFactorization) as make:
        workers, read = workers_of(make, 2), []
        monkeypatch.setattr(
            rotation.RatingTrainer, "_read", noted(rotation.RatingTrainer._read, read)
        )
        trained(workers)
        assert len(read) == 2
        trained(workers, first=1)
        assert len(read) == 2
        # Without room for them they come from the table.
        monkeypatch.setattr(rotation, "LINES_BYTES", 0)
        for worker in workers:
            worker.rotating.part.lines.clear()
        assert sum(one["units"] for one in trained(workers, first=2)) == USERS * ITEMS
        assert len(read) == 2 + 2


def noted(call, calls):
    def made(*given):
        calls.append(given)
        return call(*given)

    return made


def test_partition_that_goes_to_and_fro_is_trained_as_one_that_stays():
    """Its rows are pulled, those that this worker had included: another one has trained them."""
    found = []
    for turns in ((0, 1), (0, 1), (0, 1)), ((0, 1), (1, 0), (0, 1)):
        with connected(MatrixFactorization) as make:
            workers = workers_of(make, 2)
            for epoch, turn in enumerate(turns):
                figures = trained([workers[at] for at in turn], first=epoch, at_once=False)
                found.append(sum(lease["loss"] for lease in figures))
            for worker in workers:
                rows = worker.rotating.part.inputs
                base = rows.base[: len(rows.keys)]
                np.testing.assert_allclose(worker.pull(TABLE, rows.keys), base, atol=1e-5)
    assert found[3:] == pytest.approx(found[:3], rel=1e-4)


def test_durable_checkouts_are_not_trained_again():
    with connected(MatrixFactorization) as make:
        (worker,) = workers_of(make, 1)
        trained([worker])
        (block,) = blocks_of_chunk([worker], BLOCKS, 1, (0.3, 0.4), 4, 1)
        block.terms = replace(block.terms, durable=(0, 3))
        shared = SharedPartitions(4)
        block.checkouts = shared.checkouts(0, 1)
        block.checkouts.left = [1, 2]
        block.prepared = lease = worker.prepare(block)
        assert worker.train(block)["examples"] == np.diff(lease.ranges[1:3]).sum()


def test_users_of_a_partition_are_as_many_as_its_size():
    assert cell_edges((1, 1, 1)) == [0, 80, 160, 240]
    assert cell_edges((16, 8, 24)) == [0, 80, 120, 240]
    assert cell_edges((1,) * 7)[-1] == CELLS
    with connected(MatrixFactorization) as make:
        workers = workers_of(make, 2)
        blocks = blocks_of_chunk(workers, BLOCKS)
        found = []
        for worker, block in zip(workers, blocks, strict=True):
            block.terms = replace(block.terms, sizes=(20, 12))
            found.append(worker.prepare(block))
        assert found[0].units + found[1].units == USERS * ITEMS
        assert found[0].units == pytest.approx(USERS * ITEMS * 20 / 32, rel=0.15)


def test_first_epoch_has_sweeps_of_all_items():
    """With one the halves of the users learn other signs of factors where the rate stays."""
    with connected(MatrixFactorization) as make:
        workers, leases = workers_of(make, 2), []
        figures = trained(workers, leases=leases, parts=4 * 4, at_once=False)
        assert sum(one["units"] for one in figures) == USERS * ITEMS
        for lease in leases:
            assert lease.ranges.shape == (16, 2)
            sizes = np.diff(lease.ranges).ravel()
            assert sizes.sum() == lease.units
            assert [lease.units_of(part) for part in range(16)] == sizes.tolist()
            for sweep in range(4):
                some = [slice(*lease.ranges[4 * sweep + part]) for part in range(4)]
                items = [set(lease.lines.places[1, lines].tolist()) for lines in some]
                assert len(set.union(*items)) == sum(map(len, items)) > 0.9 * ITEMS
        trained(workers, first=1, leases=leases, at_once=False)
        assert [len(lease.ranges) for lease in leases] == [16, 16, 4, 4]
        assert leases[0].lines is leases[2].lines


def test_partitions_of_few_users_are_alike():
    with connected(MatrixFactorization) as make:
        workers, leases = workers_of(make, 3), []
        trained(workers, leases=leases)
        for lease in leases:
            assert lease.units == pytest.approx(USERS * ITEMS / 3, rel=0.15)
            assert np.diff(lease.lines.bounds) == pytest.approx(USERS * ITEMS / 18, rel=0.5)


def names_of(users, items, lines):
    """Names, of which users have all lines."""
    counts = NameCounts(2)
    each = np.full(users, lines // users, np.int64)
    counts.counts[0].add([b"%d" % at for at in range(users)], each)
    counts.counts[1].add([b"%d" % at for at in range(items)], np.ones(items, np.int64))
    return Names(counts.dump())


def test_items_of_an_output_partition_are_at_one_shard_or_two():
    with connected(MatrixFactorization, shards=2) as make:
        workers, leases = workers_of(make, 2), []
        trained(workers, leases=leases)
        keys = np.arange(ITEMS, dtype=np.uint64) + np.uint64(KIND_KEY)
        hashes = fragment_of(keys, 1 << 16)
        split = leases[0].split
        ends = [(hashes[items].min(), hashes[items].max()) for items in split.items]
        assert len(ends) == 4
        moved = sum(first // (1 << 14) != last // (1 << 14) for first, last in ends)
        assert moved <= 2  # by a heavy item, at most
        assert sorted(np.concatenate(split.items).tolist()) == list(range(ITEMS))


def test_ratings_have_as_many_partitions_as_keep_workers_at_work():
    few, many = names_of(100, 100, 4000), names_of(1000, 1000, 4_000_000)
    assert rotation_of(few, 64, 8) == Rotation(1, 1, 8, 8, is_kept=True)
    assert rotation_of(many, 64, 8) == Rotation(1, 16, 16, is_kept=True)
    assert rotation_of(many, 64, 20) == Rotation(1, 30, 16, is_kept=True)
    assert rotation_of(names_of(1000, 30, 4_000_000), 64, 8) == Rotation(1, 3, 16, 2, is_kept=True)
    assert rotation_of(many, rotation.ROWS_BYTES // 1000, 8) is None
    assert rotation_of(names_of(1000, 1000, 70_000_000), 64, 8).chunks == 5


@pytest.mark.parametrize(
    "other", [{"loss": "softmax"}, {"consistency": "bsp"}, {"max_steps": 5}, {}], ids=str
)
def test_rankings_and_clocked_trainings_do_not_rotate(other):
    settings = replace(SETTINGS, **other)
    found = MatrixFactorization.rotation(settings, 1 << 20, 2, SUMMARY)
    assert (found is None) == bool(other)
    tables = [table.name for table in MatrixFactorization(settings, 1).tables()]
    assert tables == [TABLE] if other else [TABLE, rotation.LINES]


def test_fewer_blocks_than_chunks_are_refused(monkeypatch):
    monkeypatch.setattr(rotation, "CHUNK_LINES", 300)
    with connected(MatrixFactorization) as make:
        (worker,) = workers_of(make, 1)
        assert chunks_of(worker._names) == 8
        with pytest.raises(DataError, match=r"8 chunks .* smaller block_bytes"):
            blocks_of_chunk([worker], BLOCKS, 3, epoch=1)


@pytest.mark.parametrize("epoch", [0, 2])
def test_lines_that_servers_have_lost_are_written_again_in_any_epoch(epoch):
    with connected(MatrixFactorization, shards=2) as make:
        workers, leases = workers_of(make, 2), []
        trained(workers, epochs=epoch)
        blocks = blocks_of_chunk(workers, BLOCKS, epoch, epoch=epoch)
        place = workers[0].rotating._place(blocks[0])
        keys = np.concatenate([place.keys(index, 0, 2) for index in (1, 3)])
        workers[0].push(rotation.LINES, keys, -workers[0].pull(rotation.LINES, keys))
        for worker in workers:
            if worker.rotating.part is not None:
                worker.rotating.part.lines.clear()
        for worker, block in zip(workers, blocks, strict=True):
            leases.append(worker.prepare(block))
        assert lines_of(leases) == Counter((u, i) for u in range(USERS) for i in range(ITEMS))
        assert set(blocks[0].checkouts.shared.again) == {1, 3}


def test_blocks_are_written_in_the_first_epoch_only():
    """Those of the next one are leased beside them: two workers would add to the same rows."""
    with connected(MatrixFactorization) as make:
        one, two = workers_of(make, 2)
        blocks_of_chunk([two, one], BLOCKS, 1, epoch=1)
        trained([one, two])
        assert sum(lease["units"] for lease in trained([one, two], first=1)) == USERS * ITEMS
