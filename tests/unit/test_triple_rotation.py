"""models.embeddings.triple_rotation: triples at several workers, with tables in real shards."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from connected import connected, train
from rotating import blocks_of_chunk

from snailps.api.rotation import Rotation
from snailps.data.name_columns import NameCounts, Names
from snailps.kernels._triple_order import in_order, own_triples
from snailps.models.embeddings.kge import KnowledgeGraph, queries
from snailps.models.embeddings.relation_keys import relation_keys
from snailps.models.embeddings.settings import KgeSettings
from snailps.models.embeddings.triple_rotation import (
    TripleTrainer,
    cell_numbers,
    cells_of,
    drawn_codes,
    parts_of_cells,
    parts_of_codes,
    passes_of,
    rotation_of,
)
from snailps.models.embeddings.worker import KIND_KEY, TABLE

ENTITIES, RELATIONS, PASSES = 90, 3, 3
SETTINGS = KgeSettings(
    model="complex", dim=16, lr=0.1, epochs=8, negatives=8, shared=4, wire="float32", seed=3
)


def planted(seed=5, triples=2400):
    """Triples of planted factors: the tail is the best of some, in four blocks."""
    rng = np.random.default_rng(seed)
    rows, relations = rng.normal(size=(ENTITIES, 4)), rng.normal(size=(RELATIONS, 4))
    heads, kinds = rng.integers(ENTITIES, size=triples), rng.integers(RELATIONS, size=triples)
    best = (rows[heads] * relations[kinds]) @ rows.T + rng.normal(0, 0.1, (triples, ENTITIES))
    lines = sorted({(h, r, t) for h, r, t in zip(heads, kinds, best.argmax(1), strict=True)})
    lines += [(n, 0, (n + 1) % ENTITIES) for n in range(ENTITIES)]
    lines += [(n, 1, n) for n in range(ENTITIES)]  # both ends are one entity
    text = [b"e%d r%d e%d\n" % line for line in lines]
    return [b"".join(text[at::4]) for at in range(4)]


BLOCKS = planted()
LINES = [line.split() for line in b"".join(BLOCKS).splitlines()]


def summary_of():
    counts = NameCounts(2)
    for kind, column in ((0, 0), (1, 1), (0, 2)):
        counts.add(kind, [line[column] for line in LINES])
    return counts.dump()


SUMMARY = summary_of()


def workers_of(make, number, settings=SETTINGS, threads=1):
    first = make(settings, threads, number, SUMMARY)
    rest = [make(settings, threads, number, SUMMARY, beside=first) for _ in range(number - 1)]
    return [first, *rest]


def blocks_of(workers, chunk):
    chunks = SETTINGS.epochs * PASSES
    shares = (0.99 * chunk / chunks, 0.99 * (chunk + 1) / chunks)
    return blocks_of_chunk(
        workers, BLOCKS, chunk, shares, epoch=chunk // PASSES, passes=PASSES, is_kept=chunk > 0
    )


def trained(workers, epochs=1, leases=None, first=0):
    """Figures of all leases, chunk after chunk, as the master hands them out."""
    found = []

    def lease(worker, block):
        block.prepared = worker.prepare(block)
        if leases is not None:
            leases.append((block.chunk, block.part, block.prepared))
        return worker.train(block)

    for chunk in range(first * PASSES, (first + epochs) * PASSES):
        with ThreadPoolExecutor(len(workers)) as pool:
            found += pool.map(lease, workers, blocks_of(workers, chunk))
    return found


def names_of(lease):
    """Head, relation and tail of each triple of a lease, (3, n), by the rows at their places."""
    outputs = [output.entities for output in lease.outputs]
    keys = np.concatenate([lease.part.inputs.keys.astype(np.int64), *outputs])
    numbers = keys[lease.ends]
    numbers[1] = np.searchsorted(relation_keys(RELATIONS), numbers[1].astype(np.uint64))
    return numbers


def triples_of(lease):
    """Numbers of the names of a lease's triples."""
    return Counter(zip(*names_of(lease).tolist(), strict=True))


def distances(settings, asked, rows):
    """From each vector to each row, by the model's metric."""
    apart = np.abs(asked[:, None] - rows)
    if settings.model == "rotate":
        apart = np.hypot(*np.split(apart, 2, axis=2))
    return apart.sum(2)


def expected():
    names = Names(SUMMARY)
    columns = [
        names.numbers(kind, [line[at] for line in LINES]) for at, kind in enumerate((0, 1, 0))
    ]
    return Counter(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_each_triple_is_trained_once_an_epoch_by_the_worker_of_its_rows(number, threads):
    with connected(KnowledgeGraph, shards=2) as make:
        workers, leases = workers_of(make, number, threads=threads), []
        figures = trained(workers, 2, leases)
        for epoch in range(2):
            of_epoch = [lease for chunk, _, lease in leases if chunk // PASSES == epoch]
            assert sum(map(triples_of, of_epoch), Counter()) == expected()
        assert [sum(one[name] for one in figures) for name in ("units", "examples")] == [
            2 * len(LINES)
        ] * 2
        for chunk in range(2 * PASSES):
            some = [lease for number, _, lease in leases if number == chunk]
            inputs = Counter(key for lease in some for key in lease.part.inputs.keys.tolist())
            entities = {key for key in inputs if key < KIND_KEY}
            assert {inputs[key] for key in entities} == {1}  # one writer
            outputs = np.concatenate([output.entities for output in some[0].outputs]).tolist()
            assert sorted([*entities, *outputs]) == list(range(ENTITIES))
            for lease in some:
                parts = np.repeat(np.arange(len(lease.outputs)), np.diff(lease.bounds))
                for entities in names_of(lease)[[0, 2]].tolist():
                    for part, entity in zip(parts, entities, strict=True):
                        is_input = entity in lease.part.inputs.keys
                        assert is_input or entity in lease.outputs[part].entities


def test_worker_that_joins_later_reads_what_was_encoded_in_the_first_pass(monkeypatch):
    with connected(KnowledgeGraph, shards=2) as make:
        workers, leases = workers_of(make, 2), []
        trained(workers)
        monkeypatch.delattr(TripleTrainer, "encode")
        workers.append(make(SETTINGS, 1, 3, SUMMARY, beside=workers[0]))
        trained(workers, 1, leases, first=1)
        assert sum((triples_of(lease) for _, _, lease in leases), Counter()) == expected()


def test_rows_take_the_memory_of_a_partition_that_is_trained_and_no_other():
    with connected(KnowledgeGraph, shards=2) as make:
        workers = workers_of(make, 2)
        worker, arrays = workers[0], []
        for chunk in range(2):  # of both partitions, as the other worker is lost
            blocks = blocks_of(workers, chunk)
            for block in blocks:
                block.prepared = worker.prepare(block)
                block.prepared.part.opening.result()
                arrays.append(block.prepared.part.inputs.local[0])
            for block in blocks:
                worker.train(block)
        first, second, third, fourth = arrays
        assert first is not second
        assert third is second  # the one that was prepared last
        assert fourth is not third


def test_servers_have_what_the_workers_trained():
    """Rows of the last pass, and the mean of what workers did to relations."""
    with connected(KnowledgeGraph, shards=2) as make:
        workers, leases = workers_of(make, 2), []
        before = workers[0].pull(TABLE, np.arange(ENTITIES, dtype=np.uint64))
        trained(workers, 1, leases)
        for _, _, lease in leases[-2:]:
            rows = lease.part.inputs
            entities = rows.keys < KIND_KEY
            kept = workers[0].pull(TABLE, rows.keys[entities])
            here = rows.local[0][: entities.sum(), : SETTINGS.dim]
            np.testing.assert_allclose(kept, here, atol=1e-5)
        after = workers[0].pull(TABLE, np.arange(ENTITIES, dtype=np.uint64))
        assert (np.abs(after - before).max(1) > 0).all()


@pytest.mark.parametrize("model", ["complex", "rotate", "transe"])
def test_several_workers_learn_what_one_does(model):
    """By ranks of the tails of all triples, which they all have trained on.

    Half as well at least: output partitions of so few entities have four negatives each.
    """
    settings, epochs, names = replace(SETTINGS, model=model), SETTINGS.epochs, Names(SUMMARY)
    ids = [names.numbers(kind, [line[at] for line in LINES]) for at, kind in enumerate((0, 1, 0))]
    heads, relations, tails = (column.astype(np.int64) for column in ids)

    def reciprocal(worker):
        rows = worker.pull(TABLE, np.arange(ENTITIES, dtype=np.uint64))
        turns = worker.pull(TABLE, relation_keys(RELATIONS))
        asked = queries(settings, rows[heads], turns[relations], tails=True)
        scores = asked @ rows.T
        if settings.distance:
            scores = -distances(settings, asked, rows)
        right = scores[np.arange(len(tails)), tails]
        return float((1 / (1 + (scores > right[:, None]).sum(1))).mean())

    with connected(KnowledgeGraph, shards=2) as make:
        workers = workers_of(make, 3, settings)
        trained(workers, epochs)
        several = reciprocal(workers[0])
    with connected(KnowledgeGraph) as make:
        (alone,) = workers_of(make, 1, settings)
        for epoch in range(epochs):
            shares = (epoch / epochs, (epoch + 1) / epochs)
            train(alone, b"".join(BLOCKS), epoch, shares)
        alone.finish()
        one = reciprocal(alone)
    assert several > 0.5 * one > 0.1, (several, one)


@pytest.mark.parametrize("passes", [3, 4, 8])
def test_codes_put_the_ends_of_each_triple_where_one_worker_has_both(passes):
    random = np.random.default_rng(1)
    codes = drawn_codes(random.zipf(1.5, 3000).clip(max=500).astype(float), passes, random)
    assert (codes.min(), codes.max()) == (0, (1 << passes) - 2)
    triples = random.integers(3000, size=(3, 20_000), dtype=np.int32)
    triples[2, :500] = triples[0, :500]
    heads, tails = codes[triples[[0, 2]]]
    parts = parts_of_codes((1, 2, 1), passes)
    of_triples = np.full(20_000, passes)
    triples[1] = np.arange(20_000)  # to know them again
    for part in range(3):
        own, bounds = own_triples(triples, codes, parts, part, 7)
        numbers = own[1]
        assert (triples[:, numbers] == own).all()
        assert (of_triples[numbers] == passes).all()  # no part before has it
        of_triples[numbers] = np.repeat(np.arange(passes), np.diff(bounds))
        inner = np.where(heads >> of_triples & 1, tails, heads)[numbers]
        assert (parts[of_triples[numbers], inner] == part).all()
    bits = (heads >> of_triples & 1, tails >> of_triples & 1)
    equal = heads == tails
    assert (bits[0] != bits[1])[~equal].all()
    assert not (bits[0] | bits[1])[equal].any()
    counts = np.bincount(of_triples)
    assert len(counts) == passes
    assert counts.min() > 0.9 * counts.mean()
    for pass_ in range(passes):
        inner = np.unique(codes[codes >> pass_ & 1 == 0])
        assert sorted(cell_numbers(inner, pass_).tolist()) == list(range(cells_of(passes)))


def test_runs_replace_one_end_and_follow_each_other_by_rounds():
    random = np.random.default_rng(2)
    triples = random.integers(300, size=(3, 5000), dtype=np.int32)
    triples[1] %= 4
    output_of = random.integers(-1, 3, size=300).astype(np.int16)  # a quarter are input rows
    triples = np.ascontiguousarray(triples[:, np.minimum(*output_of[triples[[0, 2]]]) < 0])
    place = random.permutation(300).astype(np.int32)
    stop = triples.shape[1]
    of = (triples, 5, stop, output_of, place, 300, 3, 16)
    ends, bounds, stops = in_order(*of, 5)
    expected = zip(place[triples[0]], 300 + triples[1], place[triples[2]], strict=True)
    assert sorted(zip(*ends.tolist(), strict=True)) == sorted(list(expected)[5:])
    assert all(map(np.array_equal, (ends, bounds, stops), in_order(*of, 5)))
    assert not np.array_equal(ends, in_order(*of, 6)[0])
    outputs = np.maximum(*output_of[np.argsort(place)[ends[[0, 2]]]])
    of_output = np.repeat(np.arange(3), np.diff(bounds))
    assert (outputs == of_output)[outputs >= 0].all()
    assert (outputs < 0).any()
    runs = np.diff(stops, prepend=0)
    assert stops[-1] == stop - 5
    assert set(bounds.tolist()) <= {0, *stops[3::4].tolist()}
    assert len(runs) // 4 == sum(count // (4 * 16) for count in np.diff(bounds))
    kinds = np.repeat(np.arange(len(runs)) % 4, runs)
    replaced = np.where(kinds % 2, ends[2], ends[0])
    assert ((output_of[np.argsort(place)[replaced]] >= 0) == kinds // 2).all()
    assert 0.45 < (kinds % 2).mean() < 0.55


def test_triples_out_of_bounds_are_refused():
    triples, codes = np.zeros((3, 4), np.int32), np.zeros(2, np.uint8)
    parts = parts_of_codes((1, 1), 3)
    triples[2, 3] = 2
    with pytest.raises(ValueError, match="expected entities below 2, got 0 and 2"):
        own_triples(triples, codes, parts, 0, 1)
    with pytest.raises(ValueError, match=r"1 to 8, 256\), got 3 rows and 9 by 256"):
        own_triples(triples, codes, np.zeros((9, 256), np.int16), 0, 1)
    output_of, place = np.array([-1, 0], np.int16), np.zeros(2, np.int32)
    with pytest.raises(ValueError, match="expected entities below 2, of 1 outputs, got 0 and 2"):
        in_order(triples, 0, 4, output_of, place, 2, 1, 16, 1)
    triples[2, 3] = 1
    with pytest.raises(ValueError, match="below 2, of 0 outputs, got 0 and 1"):
        in_order(triples, 3, 4, output_of, place, 2, 0, 16, 1)
    with pytest.raises(ValueError, match="got 3 by 4, 0 to 5, 2 places and 2 outputs"):
        in_order(triples, 0, 5, output_of, place, 2, 1, 16, 1)


def test_partitions_have_cells_in_proportion_to_their_sizes_and_one_at_least():
    assert parts_of_cells((1, 1), 4).tolist() == [0, 0, 1, 1]
    assert parts_of_cells((1, 3), 4).tolist() == [0, 1, 1, 1]
    assert parts_of_cells((1, 100, 1), 4).tolist() == [0, 1, 1, 2]
    assert parts_of_cells((100, 1, 1), 4).tolist() == [0, 0, 1, 2]
    for parts in range(1, 9):
        assert set(parts_of_cells((1,) * parts, 8).tolist()) == set(range(parts))


def test_one_pass_more_where_the_largest_partition_is_then_much_smaller():
    """Cells are 2 to the passes less one: 3 of 8 are less than 2 of 4, as are 3 of 16."""
    passes = {parts: passes_of(parts) for parts in range(2, 18)}
    assert [parts for parts in passes if passes[parts] == 3] == [2, 4]
    assert [parts for parts in passes if passes[parts] == 4] == [3, 5, 8]
    assert [parts for parts in passes if passes[parts] == 5] == [6, 7, 9, 10, 16]
    assert passes_of(128) == 8


def test_few_triples_or_a_single_worker_do_not_rotate():
    names = Names(SUMMARY)
    names.names[0] = [b"%d" % n for n in range(5000)]
    assert rotation_of(names, 8, len(LINES) // 4) == Rotation(1, 4, passes=3, is_kept=True)
    assert rotation_of(names, 8, len(LINES) // 8) == Rotation(1, 8, passes=4, is_kept=True)
    # As many as the triples are enough for, though three passes have room for four.
    assert rotation_of(names, 8, len(LINES) // 2) == Rotation(1, 2, passes=3, is_kept=True)
    assert rotation_of(names, 5, 1) == Rotation(1, 8, passes=4, is_kept=True)
    assert rotation_of(names, 6, 1) == Rotation(1, 16, passes=5, is_kept=True)
    assert rotation_of(names, 1, 1) is None
    assert rotation_of(names, 8, len(LINES)) is None
    assert rotation_of(Names(SUMMARY), 8, 1) is None  # too few entities to draw negatives from
    text = b"".join(BLOCKS)
    for settings in (
        SETTINGS,
        replace(SETTINGS, optimizer="sgd"),
        replace(SETTINGS, model="transe", normalize=True),
        replace(SETTINGS, consistency="bsp"),
        replace(SETTINGS, max_steps=5),
    ):
        assert KnowledgeGraph.rotation(settings, len(text), 2, SUMMARY) is None
