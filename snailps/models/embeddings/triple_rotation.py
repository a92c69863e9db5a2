"""Triples in rotation: the rows of both ends have one writer, relations are copies of all workers.

    encode:    triples of a block -> numbers -> table `LINES`, once a training
    prepare:   codes of the entities, drawn for the epoch -> triples of this pass and partition
    check out: rows of its entities -> PULL; negatives are of the replaced end's side

An epoch has passes.  Each entity has a code, a bit for each pass, drawn anew each epoch: in a pass
entities whose bit is 0 are input rows, the others output rows.  A triple is trained in one of the
passes that put its ends on different sides.  Where the codes are equal it is a pass in which both
ends are input rows; a partition of input rows is a set of codes, so they are in the same one.  No
code has all bits, hence there is such a pass.

**Negatives come from the side of the end that they replace.**  Triples of a pass go from one side
to the other: against negatives of both sides a model learns the sides, and unlearns them in the
next pass (docs/lab/rotation.md).

Owns which triples and rows a lease has; `models.rotation.trainer` owns how leases are trained,
`kge` what a step is.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps.abi.key_hash import GOLDEN, MASK64
from snailps.api.rotation import Rotation, outputs_for
from snailps.api.worker import Block
from snailps.data.name_columns import Names
from snailps.dataclass import dataclass
from snailps.errors import DataError
from snailps.kernels._triple_order import in_order, own_triples
from snailps.models.embeddings.relation_keys import relation_keys
from snailps.models.embeddings.rotation import LINES, NAMES_END
from snailps.models.embeddings.worker import (
    CHECKED,
    LINES_BYTES,
    NOISE_USES,
    TABLE,
    EmbeddingWorker,
    LineBatch,
)
from snailps.models.local_sgd import Floats, Keys
from snailps.models.rotation import shared_blocks
from snailps.models.rotation.input_exchange import Sharing
from snailps.models.rotation.partition_rows import PartitionRows
from snailps.models.rotation.shared_blocks import ChunkPlace
from snailps.models.rotation.splits import assign, assign_by_hash
from snailps.models.rotation.trainer import (
    Checkout,
    InputPartition,
    Judged,
    PreparedLease,
    Rates,
    RotationTrainer,
    Span,
    Which,
    whole,
)
from snailps.models.row_bounds import are_bounded
from snailps.models.rows import Ids

PASSES_MIN, PASSES_MAX = 3, 8
"""Passes of an epoch: with n, up to ``2 ** (n - 1)`` workers train; codes have 8 bits."""
SMALLER = 0.8
"""How much smaller the largest partition must be with one pass more, which costs its checkouts."""
OUTPUT_NAMES = 32
"""Least entities of an output partition, on average: its negatives are drawn from them."""
TRIPLE_NUMBERS = 3
"""Numbers of a triple: head, relation and tail."""
RUN_LINES = 256
"""Triples of a run, on average: they replace the same end, on the same side."""
KINDS = 4
"""Kinds of runs; see `in_order`."""
HEAD, TAIL = 0, 2
NO_VALUES = np.zeros(0, np.float32)

Codes = NDArray[np.uint8]
Numbers = NDArray[np.int64]


def rotation_of(names: Names, workers: int, triples_a_worker: int) -> Rotation | None:
    """Plan the rotation of triples; None if there are too few for two workers, or too many for the
    memory of each."""
    entities, triples = len(names.names[0]), int(names.counts[1].sum())
    too_large = entities >= NAMES_END or 4 * TRIPLE_NUMBERS * triples > LINES_BYTES
    largest = min(cells_of(PASSES_MAX), triples // triples_a_worker)
    enough = (n for n in range(largest, 1, -1) if entities >= 2 * OUTPUT_NAMES * outputs_for(n))
    most = next(enough, 1)
    parts = min(most, workers)
    if too_large or parts < 2:
        return None
    passes = passes_of(parts)
    return Rotation(1, min(most, cells_of(passes)), passes=passes, is_kept=True)


def passes_of(parts: int) -> int:
    """Passes of an epoch: as many as tell so many partitions apart, or one more where partitions of
    whole cells would differ much."""
    passes = max(PASSES_MIN, (2 * parts - 1).bit_length())
    largest, smaller = (-(-cells_of(n) // parts) / cells_of(n) for n in (passes, passes + 1))
    return min(PASSES_MAX, passes + (smaller < SMALLER * largest))


def cells_of(passes: int) -> int:
    """Codes whose entities are input rows in a pass."""
    return 1 << (passes - 1)


_PLACE = ChunkPlace(LINES, 0, 0)


class Draw(NamedTuple):
    """What an epoch draws for a part: codes of all entities, and its triples of each pass."""

    of: tuple[int, Which]
    """Epoch, and input partition."""
    codes: Codes
    parts: NDArray[np.int16]
    """The input partition of each code in each pass; -1: entities with it are output rows."""
    triples: Ids
    """The part's triples, pass by pass, (3, n)."""
    bounds: Numbers
    """Pass p has ``triples[:, bounds[p] : bounds[p + 1]]``."""


def drawn_codes(mass: NDArray[np.float64], passes: int, random: np.random.Generator) -> Codes:
    """Draw a code for each entity, so that codes have about equal sums of `mass`."""
    codes = (1 << passes) - 1
    numbers = assign(mass, (1,) * codes, int(random.integers(1 << 62)))
    drawn: Codes = random.permutation(codes).astype(np.uint8)[numbers]
    return drawn


def cell_numbers(codes: Codes, pass_: int) -> NDArray[np.intp]:
    """The codes without the bit of a pass: they number the codes of each side."""
    low = (1 << pass_) - 1
    numbers: NDArray[np.intp] = codes.astype(np.intp)
    return numbers >> (pass_ + 1) << pass_ | numbers & low


def parts_of_codes(sizes: Sequence[int], passes: int) -> NDArray[np.int16]:
    """The input partition of each code in each pass, (passes, 256); -1: it is of output rows."""
    codes, of_cells = (
        np.arange(1 << passes, dtype=np.uint8),
        parts_of_cells(sizes, cells_of(passes)),
    )
    parts = np.full((passes, 256), -1, np.int16)
    for pass_ in range(passes):
        inputs = codes[codes >> pass_ & 1 == 0]
        parts[pass_, inputs] = of_cells[cell_numbers(inputs, pass_)]
    return parts


def parts_of_cells(sizes: Sequence[int], cells: int) -> NDArray[np.int16]:
    """The input partition of each cell: ranges in proportion to `sizes`, of a cell at least."""
    parts, ends = len(sizes), np.cumsum(sizes)
    stops = np.round(cells * ends / ends[-1]).astype(int)
    stops = np.minimum(np.maximum(stops, np.arange(1, parts + 1)), cells - np.arange(parts)[::-1])
    for part in range(1, parts):
        stops[part] = max(stops[part], stops[part - 1] + 1)
    return np.searchsorted(stops, np.arange(cells), side="right").astype(np.int16)


def way_of_roots(workers: int) -> float:
    """The way of a relation in a checkout (`Sharing.way`) by which each worker pushes one over the
    root of `workers` of its delta.

    One after the other, AdaGrad's first steps go as far as the root of their number, and on copies
    each worker's go as far as if it were alone.  Whole deltas let translations swing, means learn
    relations too slowly (docs/lab/rotation.md).
    """
    low, high = 0.0, 2.0  # of one worker 0, of two .9, of more less
    while high - low > 1e-6:
        middle = (low + high) / 2
        share = -np.expm1(-middle * workers) / (workers * -np.expm1(-middle))
        low, high = (middle, high) if share > workers**-0.5 else (low, middle)
    return low


class Output(NamedTuple):
    """An output partition at a lease: its entities, and the places and keys of their rows."""

    entities: Numbers
    places: Numbers
    keys: Keys


@dataclass(slots=True)
class TripleLease(PreparedLease):
    """A prepared lease of a partition of entities.

    Output partition p has triples ``bounds[p]`` to ``bounds[p + 1] - 1``.  Places of rows: input
    entities, relations, output entities.
    """

    ends: Ids
    """Places of the rows of head, relation and tail of each triple, (3, n)."""
    bounds: Numbers
    stops: Numbers
    """Where runs of triples stop, whose negatives replace the same end; see `in_order`."""
    inputs: NDArray[np.int32]
    """Places of the input entities' rows."""
    outputs: tuple[Output, ...]


class TripleTrainer(RotationTrainer):
    """Prepares and trains leases for a `KnowledgeGraph` worker, after its `setup`."""

    def __init__(self, model: EmbeddingWorker, names: Names, *, translates: bool) -> None:
        super().__init__(model, model.sgd, TABLE)
        self._translates = translates
        self.model, self.seed = model, model.settings.seed
        entities, relations = names.counts
        self._mass, self._relations = entities.astype(np.float64), len(relations)
        self._triples: Ids | None = None
        self._draw: Draw | None = None

    # --- triples, in a table --------------------------------------------------------------------

    def encode(self, block: Block) -> None:
        """Write the triples of a block."""
        numbers, _ = self.model.numbered(block)
        if (count := len(numbers[0])) >= NAMES_END:
            raise DataError(f"{block.path}: {count:,} lines in a block: lower block_bytes")
        head = np.array([count], np.float32)
        triples = np.stack(numbers, axis=1).astype(np.float32)
        shared_blocks.put(self.model, _PLACE, block.chunk_index, head, triples.ravel())

    def _read(self, block: Block) -> Ids:
        """Read all triples, in the order of the input."""
        heads = shared_blocks.heads(self.model, _PLACE, range(block.chunk_blocks))
        stops = TRIPLE_NUMBERS * heads[:, 0].astype(np.int64)
        triples = np.empty((TRIPLE_NUMBERS, int(stops.sum()) // TRIPLE_NUMBERS), np.int32)
        begins, done = [0] * len(stops), 0
        for batch in shared_blocks.batches(stops.tolist()):  # as float32 all take as much again
            of_batch = np.zeros_like(stops)
            of_batch[batch] = stops[batch]
            numbers = np.empty(int(of_batch.sum()), np.float32)
            shared_blocks.read(self.model, _PLACE, begins, of_batch.tolist(), numbers)
            some = numbers.reshape(-1, TRIPLE_NUMBERS).T
            triples[:, done : done + some.shape[1]] = some
            done += some.shape[1]
        return triples

    def _drawn(self, block: Block, triples: Ids) -> Draw:
        """What an epoch draws; codes and passes are the same at each worker."""
        sizes = block.sizes or (1,) * block.parts
        of = block.epoch, (block.part, sizes)
        if self._draw is None or self._draw.of != of:
            random = np.random.default_rng((self.seed, block.epoch))
            codes, passes = (
                drawn_codes(self._mass, block.passes, random),
                int(random.integers(1 << 62)),
            )
            parts = parts_of_codes(sizes, block.passes)
            own, bounds = own_triples(triples, codes.data, parts, block.part, passes)
            self._draw = Draw(of, codes, parts, own, bounds)
        return self._draw

    # --- a lease --------------------------------------------------------------------------------

    def lease(self, block: Block) -> TripleLease:
        if self._triples is None:
            self._triples = whole(block, partial(self._read, block))
        draw, pass_ = self._drawn(block, self._triples), block.chunk % block.passes
        part_of = draw.parts[pass_][draw.codes]
        entities = np.flatnonzero(part_of == block.part)
        output_of = self._output_of(np.flatnonzero(part_of < 0), block.output_parts)
        place, at = np.full(len(part_of), -1, np.int32), len(entities) + self._relations
        place[entities] = np.arange(len(entities), dtype=np.int32)
        outputs = []
        for output in range(block.output_parts):
            some = np.flatnonzero(output_of == output)
            places = np.arange(at, at + len(some))
            place[some], at = places, at + len(some)
            outputs.append(Output(some, places, some.astype(np.uint64)))

        first, stop = draw.bounds[pass_ : pass_ + 2].tolist()
        random = np.random.default_rng((self.seed, block.chunk, block.part))
        ends, bounds, stops = in_order(
            draw.triples, first, stop, output_of, place, len(entities), len(outputs), RUN_LINES,
            int(random.integers(1 << 62)),
        )  # fmt: skip
        relations = relation_keys(self._relations)
        keys = np.concatenate([entities.astype(np.uint64), relations])
        part = InputPartition((block.part, (block.chunk,)))
        spare = len(part_of) - len(entities)  # as many rows in all in each lease
        part.inputs = PartitionRows(self.sgd, TABLE, keys, bases=True, spare=spare)
        if self.part is not None and (self.part.chunk,) == self.part.of[1]:  # it has been trained
            part.inputs.take_memory(self.part.inputs)
        self.part = part
        sharing = self._sharing(block, len(entities))
        inputs = np.arange(len(entities), dtype=np.int32)
        return TripleLease(
            part, np.arange(len(keys)), stop - first, bounds, sharing,
            ends, bounds, stops, inputs, tuple(outputs),
        )  # fmt: skip

    def _output_of(self, entities: Numbers, parts: int) -> NDArray[np.int16]:
        """The output partition of each entity; -1: it is none of these output entities."""
        output_of = np.full(len(self._mass), -1, np.int16)
        output_of[entities] = assign_by_hash(
            self._mass[entities], entities.astype(np.uint64), parts
        )
        return output_of

    def _sharing(self, block: Block, entities: int) -> Sharing:
        """All workers step relations: each is exchanged after every checkout.

        Roots of deltas are pushed at first, and later whole deltas, as sums of squares have then
        grown by all workers' steps, so that these are short.  Translations swing even then.
        """
        crowding = np.ones(entities + self._relations)
        crowding[entities:] = block.parts
        way = np.zeros(len(crowding))
        if self._translates or block.chunk == 0:
            way[entities:] = block.output_parts * way_of_roots(block.parts)
        return Sharing(crowding, np.ones(len(crowding)), way, 0.0, 1)

    # --- a checkout -----------------------------------------------------------------------------

    def check_out(self, block: Block, lease: TripleLease, part: int) -> Checkout:
        rows = lease.part.inputs
        first, last = lease.bounds[part : part + 2].tolist()
        ends = lease.ends[:, first:last]
        random = np.random.default_rng((block.seed + part) & MASK64)
        places, keys = self._candidates(lease.outputs[part], ends, random)
        runs = self._runs(lease, part, places.astype(np.int32))
        packed = self.sgd.pull_rows(TABLE, keys).wait()
        self.sgd.in_threads(rows.load, places, packed)
        trained, dim = rows.local[0], self.sgd.layout.dim
        begin = partial(self._begin, runs, trained)
        subtract = partial(self.sgd.in_threads, rows.subtract, places, packed)
        sample = ends[:, -max(1, CHECKED // block.output_parts) :]
        return Checkout(
            part,
            last - first,
            begin,
            subtract,
            keys,
            packed,
            finite=lambda: are_bounded(trained[sample, :dim]),
        )

    def _candidates(
        self, output: Output, ends: Ids, random: np.random.Generator
    ) -> tuple[Numbers, Keys]:
        """Places and keys of the entities of a checkout: the ends of its triples, and as many
        others as negatives can use."""
        s = self.model.settings
        wanted = -(-ends.shape[1] // s.shared) * s.negatives // NOISE_USES
        if len(output.places) <= 2 * wanted:
            return output.places, output.keys
        chosen = np.zeros(len(output.places), np.bool_)
        chosen[random.choice(len(chosen), wanted, replace=False)] = True
        outer = ends[[HEAD, TAIL]].ravel() - output.places[0]
        chosen[outer[outer >= 0]] = True
        return output.places[chosen], output.keys[chosen]

    def _runs(self, lease: TripleLease, part: int, outputs: Ids) -> list[TripleSpan]:
        """The runs of a checkout, in the order in which they are trained."""
        first, last = lease.bounds[part : part + 2].tolist()
        begin, end = np.searchsorted(lease.stops, [first + 1, last]).tolist()
        edges = [0, *(lease.stops[begin : end + 1] - first).tolist()]
        ends, sides = lease.ends[:, first:last], (lease.inputs, outputs)
        batches = [
            LineBatch(ends, NO_VALUES, sides[kind // 2], 1 if kind % 2 else -1)
            for kind in range(KINDS)
        ]
        return [
            TripleSpan(batches[number % KINDS], span)
            for number, span in enumerate(itertools.pairwise(edges), begin)
            if span[1] > span[0]
        ]

    def _begin(
        self, runs: Sequence[TripleSpan], trained: Floats, span: Span, rates: Rates, seed: int
    ) -> list[Future[Judged]]:
        """Start to train all runs of a checkout, every n-th in each of n threads."""
        threads = self.model.threads
        (_, last), (begin, end) = span, rates

        def train(some: Sequence[TripleSpan], seed: int) -> Judged:
            loss, lines = 0.0, 0
            for run in some:
                a, b = run.span
                of_run = tuple(begin + (end - begin) * at / last for at in run.span)
                drawn = (seed + a * GOLDEN) & MASK64
                loss += self.model.train_part(
                    run.batch, trained, run.span, (of_run[0], of_run[1]), drawn
                )
                lines += b - a
            return loss, float(lines)

        return [
            self.sgd.start(train, some, seed)
            for thread in range(threads)
            if (some := runs[thread::threads])
        ]

    def rate(self, progress: float) -> float:
        return self.model.rate(progress)

    def figures(self, results: Sequence[Judged], finite: bool) -> Mapping[str, float]:
        """Add up losses and triples; the loss is NaN if rows have diverged."""
        loss, triples = (sum(column) for column in zip((0.0, 0.0), *results, strict=True))
        return {"loss": loss if finite else float("nan"), "examples": triples}


class TripleSpan(NamedTuple):
    """Triples ``range(*span)`` of a batch, whose negatives replace the same end."""

    batch: LineBatch
    span: Span
