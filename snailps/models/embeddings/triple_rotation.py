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
from snailps.models.embeddings.rotation import LINES, NAMES_END
from snailps.models.embeddings.worker import (
    CHECKED,
    KIND_KEY,
    LINES_BYTES,
    NOISE_USES,
    TABLE,
    Batch,
    EmbeddingWorker,
)
from snailps.models.local_sgd import Floats
from snailps.models.rotation import shared_blocks
from snailps.models.rotation.input_exchange import Sharing
from snailps.models.rotation.partition_rows import PartitionRows
from snailps.models.rotation.shared_blocks import ChunkPlace
from snailps.models.rotation.splits import assign, assign_by_hash
from snailps.models.rotation.trainer import (
    Checkout,
    Judged,
    Lease,
    Partition,
    Rates,
    RotationTrainer,
    Span,
    whole,
)
from snailps.models.row_bounds import are_bounded
from snailps.models.rows import Ids

PASSES_MIN, PASSES_MAX = 3, 8
"""Passes of an epoch: with n, up to ``2 ** (n - 1)`` workers train; codes have 8 bits."""
OUTPUT_NAMES = 32
"""Least entities of an output partition, on average: its negatives are drawn from them."""
TRIPLE_NUMBERS = 3
"""Numbers of a triple: head, relation and tail."""
RUN_LINES = 256
"""Triples of a run, on average: they replace the same end, on the same side."""
HEAD, RELATION, TAIL = 0, 1, 2

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
    passes = max(PASSES_MIN, (2 * parts - 1).bit_length())
    return Rotation(1, min(most, cells_of(passes)), passes=passes)


def cells_of(passes: int) -> int:
    """Codes whose entities are input rows in a pass."""
    return 1 << (passes - 1)


_PLACE = ChunkPlace(LINES, 0, 0)


class Draw(NamedTuple):
    """What an epoch draws: the code of each entity, and the pass of each triple."""

    epoch: int
    codes: Codes
    passes: Codes


def drawn_codes(mass: NDArray[np.float64], passes: int, random: np.random.Generator) -> Codes:
    """Draw a code for each entity, so that codes have about equal sums of `mass`."""
    codes = (1 << passes) - 1
    numbers = assign(mass, (1,) * codes, int(random.integers(1 << 62)))
    drawn: Codes = random.permutation(codes).astype(np.uint8)[numbers]
    return drawn


def drawn_passes(heads: Codes, tails: Codes, passes: int, random: np.random.Generator) -> Codes:
    """Draw the pass of each triple, from the codes of its ends: one that separates them, or with
    equal codes one in which both are input rows."""
    every = (1 << passes) - 1
    bits = [[n for n in range(passes) if bit_set >> n & 1] or [0] for bit_set in range(every + 1)]
    share = np.arange(256)
    table = np.array([np.array(some)[share * len(some) >> 8] for some in bits], np.uint8)
    separate = heads ^ tails
    equal = separate == 0
    separate[equal] = every ^ heads[equal]
    of_triples: Codes = table[separate, random.integers(0, 256, len(heads), np.uint8)]
    return of_triples


def cell_numbers(codes: Codes, pass_: int) -> NDArray[np.intp]:
    """The codes without the bit of a pass: they number the codes of each side."""
    low = (1 << pass_) - 1
    numbers: NDArray[np.intp] = codes.astype(np.intp)
    return numbers >> (pass_ + 1) << pass_ | numbers & low


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


@dataclass(slots=True)
class TripleLease(Lease):
    """A prepared lease of a partition of entities.

    Output partition p has triples ``bounds[p]`` to ``bounds[p + 1] - 1`` of `triples`.  Places of
    rows: input entities, relations, output entities.
    """

    triples: Ids
    """Head, relation and tail of each triple, (3, n)."""
    bounds: Numbers
    place: NDArray[np.int32]
    """The place of each entity's row; -1: of another input partition."""
    inputs: int
    """Input entities, whose places are the first."""
    outputs: tuple[Numbers, ...]
    """The entities of each output partition."""


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
        """Write the triples of a block, in the first pass; later only what servers have lost."""
        if block.chunk and not block.again:
            return
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
        numbers = np.empty(int(stops.sum()), np.float32)
        begins = [0] * len(stops)
        shared_blocks.read(self.model, _PLACE, begins, stops.tolist(), numbers)
        return np.ascontiguousarray(numbers.reshape(-1, TRIPLE_NUMBERS).T.astype(np.int32))

    def _drawn(self, epoch: int, triples: Ids, passes: int) -> Draw:
        """What an epoch draws, the same at each worker."""
        if self._draw is None or self._draw.epoch != epoch:
            random = np.random.default_rng((self.seed, epoch))
            codes = drawn_codes(self._mass, passes, random)
            of_triples = drawn_passes(codes[triples[HEAD]], codes[triples[TAIL]], passes, random)
            self._draw = Draw(epoch, codes, of_triples)
        return self._draw

    # --- a lease --------------------------------------------------------------------------------

    def lease(self, block: Block) -> TripleLease:
        if self._triples is None:
            self._triples = whole(block, partial(self._read, block))
        passes = block.passes
        draw, pass_ = self._drawn(block.epoch, self._triples, passes), block.chunk % passes
        is_output = (draw.codes >> np.uint8(pass_) & 1).astype(np.bool_)
        sizes = block.sizes or (1,) * block.parts
        part_of = parts_of_cells(sizes, cells_of(passes))[cell_numbers(draw.codes, pass_)]
        entities = np.flatnonzero(~is_output & (part_of == block.part))
        outputs, output_of = self._outputs(np.flatnonzero(is_output), block.output_parts)
        triples = self._triples.take(np.flatnonzero(draw.passes == pass_), axis=1)
        inner = np.where(is_output[triples[HEAD]], triples[TAIL], triples[HEAD])
        triples = triples[:, part_of[inner] == block.part]
        random = np.random.default_rng((self.seed, block.chunk, block.part))
        triples = triples[:, random.permutation(triples.shape[1])]
        output = np.maximum(output_of[triples[HEAD]], output_of[triples[TAIL]])
        within = np.flatnonzero(output < 0)  # both ends are input rows: any checkout will do
        output[within] = random.integers(block.output_parts, size=len(within))
        order = np.argsort(output, kind="stable")
        bounds = np.zeros(block.output_parts + 1, np.int64)
        np.cumsum(np.bincount(output, minlength=block.output_parts), out=bounds[1:])

        place, first = np.full(len(is_output), -1, np.int32), len(entities) + self._relations
        place[entities] = np.arange(len(entities), dtype=np.int32)
        sorted_outputs = np.concatenate(outputs)
        place[sorted_outputs] = np.arange(first, first + len(sorted_outputs), dtype=np.int32)
        part = Partition((block.part, (block.chunk,)))
        relations = np.arange(self._relations).astype(np.uint64) + np.uint64(KIND_KEY)
        keys = np.concatenate([entities.astype(np.uint64), relations])
        spare = len(sorted_outputs)
        part.inputs = PartitionRows(self.sgd, TABLE, keys, bases=True, spare=spare)
        self.part = part
        sharing = self._sharing(block, len(entities))
        rows = np.arange(len(keys))
        units = triples.shape[1]
        triples = triples.take(order, axis=1)
        return TripleLease(
            part, rows, units, bounds, sharing, triples, bounds, place, len(entities), outputs
        )

    def _outputs(
        self, entities: Numbers, parts: int
    ) -> tuple[tuple[Numbers, ...], NDArray[np.int16]]:
        """The output entities of each partition, and the partition of each entity; -1: input."""
        output_of = np.full(len(self._mass), -1, np.int16)
        keys = entities.astype(np.uint64)
        output_of[entities] = assign_by_hash(self._mass[entities], keys, parts)
        split = output_of[entities]
        return tuple(entities[split == part] for part in range(parts)), output_of

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
        random = np.random.default_rng((block.seed + part) & MASK64)
        first, last = lease.bounds[part : part + 2].tolist()
        triples = lease.triples[:, first:last]
        entities = self._candidates(lease.outputs[part], triples, random)
        places, keys = lease.place[entities].astype(np.int64), entities.astype(np.uint64)
        at = lease.place[triples[[HEAD, TAIL]]]
        ends = np.stack([at[0], triples[RELATION] + np.int32(lease.inputs), at[1]])
        runs = _runs(ends, lease.inputs, places.astype(np.int32), random)
        packed = self.sgd.pull_rows(TABLE, keys).wait()
        self.sgd.in_threads(rows.load, places, packed)
        trained, dim = rows.local[0], self.sgd.layout.dim
        begin = partial(self._begin, runs, trained)
        subtract = partial(self.sgd.in_threads, rows.subtract, places, packed)
        sample = ends[:, -CHECKED:]
        return Checkout(
            part,
            last - first,
            begin,
            subtract,
            keys,
            packed,
            finite=lambda: are_bounded(trained[sample, :dim]),
        )

    def _candidates(self, entities: Numbers, triples: Ids, random: np.random.Generator) -> Numbers:
        """The entities of a checkout: the ends of its triples, and as many others as negatives
        can use."""
        s = self.model.settings
        wanted = -(-triples.shape[1] // s.shared) * s.negatives // NOISE_USES
        if len(entities) <= 2 * wanted:
            return entities
        drawn = random.choice(entities, wanted, replace=False)
        ends = triples[[HEAD, TAIL]].ravel()
        return np.intersect1d(entities, np.concatenate([drawn, ends]))

    def _begin(
        self, runs: Sequence[Run], trained: Floats, span: Span, rates: Rates, seed: int
    ) -> list[Future[Judged]]:
        """Start to train all runs of a checkout, every n-th in each of n threads."""
        threads = self.model.threads
        (_, last), (begin, end) = span, rates

        def train(some: Sequence[Run], seed: int) -> Judged:
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


class Run(NamedTuple):
    """Triples ``range(*span)`` of a batch, whose negatives replace the same end."""

    batch: Batch
    span: Span


def _runs(
    ends: Ids, inputs: int, outputs: NDArray[np.int32], random: np.random.Generator
) -> list[Run]:
    """Sort the triples of a checkout (places of their rows, (3, n)) into runs.

    The replaced end is drawn for each triple.  Runs of the four kinds, head or tail of either side,
    follow each other, so that no kind is trained long.
    """
    count = ends.shape[1]
    by_tail = random.integers(2, size=count)
    replaced = np.where(by_tail, ends[TAIL], ends[HEAD])
    kind = 2 * (replaced >= inputs) + by_tail
    rounds = max(1, count // (4 * RUN_LINES))
    order = np.argsort(np.arange(count) * rounds // max(1, count) * 4 + kind, kind="stable")
    ends, kind = ends.take(order, axis=1), kind[order]
    stops = np.bincount(np.arange(count) * rounds // max(1, count) * 4 + kind, minlength=4).cumsum()
    sides = (np.arange(inputs, dtype=np.int32), outputs)
    no_values = np.zeros(0, np.float32)
    batches = [Batch(ends, no_values, sides[k // 2], 1 if k % 2 else -1) for k in range(4)]
    spans = itertools.pairwise([0, *stops.tolist()])
    return [Run(batches[n % 4], span) for n, span in enumerate(spans) if span[1] > span[0]]
