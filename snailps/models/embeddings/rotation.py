"""Ratings in rotation: rows of users stay with a worker, rows of items are checked out.

    encode:    lines of a block -> numbers, by cell of their user -> table `LINES`, once a training
    prepare:   lines of the partition's cells -> by output partition of their item
    check out: rows of its items -> PULL, after the users' rows; its lines in random order

A partition of users is a range of the `CELLS` cells, because blocks are encoded before the number
of partitions is known.  The table keeps its lines for all epochs, and a worker the lines of its
partition while they fit into `LINES_BYTES`: from the second epoch on nothing is read.  A chunk of
one partition has all rows, and its checkouts are random shares of the lines.

Owns where lines are, and which rows a lease needs; `models.rotation.trainer` owns how leases are
trained, `mf` what a step is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil, isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.abi.key_hash import MASK64
from snailps.api.rotation import OUTPUTS_PER_INPUT, Rotation, outputs_for
from snailps.api.worker import Block
from snailps.data.name_columns import Names
from snailps.dataclass import dataclass
from snailps.errors import DataError
from snailps.models.embeddings.worker import (
    LINES_BYTES,
    TABLE,
    EmbeddingWorker,
    LineBatch,
)
from snailps.models.local_sgd import Floats
from snailps.models.rotation import shared_blocks
from snailps.models.rotation.partition_rows import PartitionRows
from snailps.models.rotation.shared_blocks import ChunkPlace
from snailps.models.rotation.splits import assign, assign_by_hash
from snailps.models.rotation.trainer import (
    Checkout,
    InputPartition,
    Judged,
    PreparedLease,
    RotationTrainer,
    Which,
    whole,
)
from snailps.models.rows import Ids

LINES = "lines"
CELLS, CELL_STEP = 240, 149
"""Cells of users, so many that partitions, which are ranges of cells, have nearly equal sizes; and
a number without a common divisor, by which cells are renumbered."""
PART_CELLS = 8
"""Least cells of a partition, on average: partitions differ by a cell."""
LINE_NUMBERS = 3
"""Numbers of a line: user, item and value."""
NAMES_END = 1 << 24
"""Numbers of names, and of a block's lines, are below this, and exact in float32."""
CHUNK_LINES = 16_000_000
"""Most lines of a chunk: workers have 12 bytes of each in memory, and all of them are trained again
if a single worker is lost."""
RUN_LINES = 64
"""Lines that stay together from epoch to epoch."""
RUNS_MIN = 64
"""With fewer runs, each line is drawn alone."""
CHECKOUT_LINES = 2000
"""Least lines of a checkout, on average: some milliseconds of one core."""
PIECE_LINES, PIECES_MIN = 250_000, 8
"""Lines of a checkout in a chunk of one partition, and the least checkouts it has: each one brings
figures."""
FIRST_CHECKOUTS = 16
"""Checkouts of the first epoch, by sweeps: with a single sweep of all items, two workers learn
factors of opposite signs, and stay there while the rate is high."""
PART_NAMES = 4
"""Least users or items of a partition, on average."""
ROWS_BYTES = 1 << 30
"""Most bytes of rows in memory at a worker."""
PARTS_ROOM = 16
"""Input partitions for which a job has room at least, because workers may join."""
USER, ITEM = 0, 1


def rotation_of(names: Names, row_bytes: int, workers: int) -> Rotation | None:
    """Plan the rotation of ratings; None if the rows of these names are too many."""
    users, items = (len(kind) for kind in names.names)
    lines = line_num(names)
    most = min(CELLS // PART_CELLS, users // PART_NAMES, items // (OUTPUTS_PER_INPUT * PART_NAMES))
    most = max(1, min(most, isqrt(lines // (OUTPUTS_PER_INPUT * CHECKOUT_LINES))))
    parts = min(most, workers)
    if max(users, items) >= NAMES_END or lines == 0:
        return None
    if (2 * -(-users // parts) + items) * row_bytes > ROWS_BYTES:
        return None
    chunks = chunks_of(names)
    pieces = max(PIECES_MIN, ceil(lines / chunks / PIECE_LINES))
    sweeps = max(1, FIRST_CHECKOUTS // outputs_for(parts))
    parts_room = max(PARTS_ROOM, 2 * workers)
    return Rotation(chunks, min(most, parts_room), pieces, sweeps, is_kept=True)


def line_num(names: Names) -> int:
    """Lines of an epoch."""
    return int(names.counts[USER].sum())


def chunks_of(names: Names) -> int:
    """Chunks of an epoch."""
    return max(1, ceil(line_num(names) / CHUNK_LINES))


@dataclass(frozen=True, slots=True)
class ItemSplit:
    """The output partition of each item, and the items whose rows travel with each partition.

    Items that `stay` travel with none.  A single partition has all rows; its checkouts are random
    shares of the lines, whatever their items.
    """

    of_item: NDArray[np.uint16]
    items: tuple[NDArray[np.int64], ...]
    stay: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SortedLines:
    """The lines of a partition; output partition p has ``bounds[p]`` to ``bounds[p + 1] - 1``.

    `places` (2, n) are the places of their users' and items' rows.
    """

    places: Ids
    values: Floats
    bounds: NDArray[np.int64]

    @property
    def size_bytes(self) -> int:
        return self.places.nbytes + self.values.nbytes

    def shuffled(self, first: int, last: int, random: np.random.Generator) -> tuple[Ids, Floats]:
        """Draw the order of a range of lines, in runs; returns their places and values.

        Takes a tenth of the time of drawing single lines, and rows learn the same.
        """
        size = RUN_LINES if last - first >= RUNS_MIN * RUN_LINES else 1
        begin = first + int(random.integers(size))  # where runs begin
        runs = (last - begin) // size
        order, stop = random.permutation(runs), begin + runs * size

        def of(column: NDArray[Any]) -> NDArray[Any]:
            body = column[begin:stop].reshape(runs, size)[order].ravel()
            return np.concatenate([body, column[first:begin], column[stop:last]])

        return np.array([of(column) for column in self.places]), of(self.values)


class UserPartition(InputPartition):
    """The users of an input partition, ascending; `place` maps each user to its place among them.

    `lines` are lines of an epoch's chunks that are kept for the next epoch.
    """

    def __init__(self, of: Which, users: NDArray[np.int64], user_num: int) -> None:
        super().__init__(of)
        self.users = users
        self.place = np.full(user_num, -1, np.int32)
        self.place[users] = np.arange(len(users), dtype=np.int32)
        self.lines: dict[int, SortedLines] = {}


@dataclass(slots=True)
class RatingLease(PreparedLease):
    """A prepared lease of a partition of users."""

    part: UserPartition
    split: ItemSplit
    lines: SortedLines
    ranges: NDArray[np.int64]
    """The first and the last (exclusive) line of each checkout, (output_parts, 2)."""


class RatingTrainer(RotationTrainer):
    """Prepares and trains leases for a `MatrixFactorization` worker, after its `setup`."""

    part: UserPartition | None = None

    def __init__(self, model: EmbeddingWorker, names: Names) -> None:
        super().__init__(model, model.sgd, TABLE)
        self.model, self.seed = model, model.settings.seed
        self._counts = [some.astype(np.float64) for some in names.counts]
        self._chunks = chunks_of(names)
        cells = assign(self._counts[USER], (1,) * CELLS, 2 * self.seed)
        self.cells = (cells * CELL_STEP % CELLS).astype(np.uint8)  # which sort in one pass
        self._split: tuple[tuple[int, int], ItemSplit] | None = None

    # --- lines, in a table ----------------------------------------------------------------------

    def _slot(self, block: Block) -> int:
        """The place of a chunk's lines, the same in all epochs."""
        epoch, slot = divmod(block.chunk, self._chunks)
        if epoch != block.epoch:
            raise DataError(
                f"{self._chunks} chunks of an epoch need as many blocks: set a smaller block_bytes"
            )
        return slot

    def _place(self, block: Block) -> ChunkPlace:
        slot = self._slot(block)
        return ChunkPlace(LINES, slot, slot)

    def encode(self, block: Block) -> None:
        """Write the lines of a block, in the first epoch; later only what servers have lost.

        If two workers write lost blocks again at once, for two epochs, the stamps will be wrong,
        and one of them does it again.
        """
        place = self._place(block)
        (users, items), values = self.model.numbered(block)
        if len(users) >= NAMES_END:
            raise DataError(f"{block.path}: {len(users):,} lines in a block: lower block_bytes")
        cells = self.cells[users]
        order = np.argsort(cells, kind="stable")
        numbers = np.empty((len(order), LINE_NUMBERS), np.float32)
        numbers[:, USER], numbers[:, ITEM] = users[order], items[order]
        numbers[:, 2] = values[order]
        head = np.bincount(cells, minlength=CELLS).cumsum().astype(np.float32)
        shared_blocks.put(self.model, place, block.chunk_index, head, numbers.ravel())

    def _read(self, block: Block) -> tuple[Ids, Ids, Floats]:
        """Read users, items and values of a partition's lines in a chunk."""
        place, blocks = self._place(block), range(block.chunk_blocks)
        heads = shared_blocks.heads(self.model, place, blocks)
        ends = np.zeros((len(heads), 1 + CELLS), np.int64)
        ends[:, 1:] = heads[:, :CELLS]
        first, last = cell_edges(self._sizes(block))[block.part : block.part + 2]
        begins, stops = LINE_NUMBERS * ends[:, first], LINE_NUMBERS * ends[:, last]
        numbers = np.empty(int((stops - begins).sum()), np.float32)
        shared_blocks.read(self.model, place, begins.tolist(), stops.tolist(), numbers)
        users, items, values = numbers.reshape(-1, LINE_NUMBERS).T
        return users.astype(np.int32), items.astype(np.int32), values.copy()

    @staticmethod
    def _sizes(block: Block) -> tuple[int, ...]:
        return block.sizes or (1,) * block.parts

    # --- a lease --------------------------------------------------------------------------------

    def lease(self, block: Block) -> RatingLease:
        split = self._split_of(block)
        part = self._part_of(block, split)
        lines = self._lines_of(block, split, part)
        ranges = ranges_of(lines.bounds, block.output_parts)
        share = np.concatenate(([0], np.diff(ranges).cumsum()))
        return RatingLease(part, None, len(lines.values), share, None, split, lines, ranges)

    def _split_of(self, block: Block) -> ItemSplit:
        of, known = (block.parts, block.output_parts), self._split
        if known is None or known[0] != of:
            counts, outputs = self._counts[ITEM], block.output_parts
            of_item, stay = np.zeros(0, np.uint16), np.arange(len(counts))
            if block.parts > 1:
                outputs = outputs_for(block.parts)
                of_item = assign_by_hash(counts, self.model.keys_of(ITEM, stay), outputs).astype(
                    np.uint16
                )
                stay = stay[:0]
            items = tuple(np.flatnonzero(of_item == at) for at in range(outputs))
            self._split = known = of, ItemSplit(of_item, items, stay)
        return known[1]

    def _part_of(self, block: Block, split: ItemSplit) -> UserPartition:
        """Get the partition of a lease: the one that is here, or a new one."""
        of = block.part, self._sizes(block)
        if self.part is not None and self.part.of == of:
            return self.part
        first, stop = cell_edges(of[1])[block.part : block.part + 2]
        users = np.flatnonzero((self.cells >= first) & (self.cells < stop))
        part = UserPartition(of, users, len(self.cells))
        keys = np.concatenate([users.astype(np.uint64), self.model.keys_of(ITEM, split.stay)])
        spare = len(self._counts[ITEM]) - len(split.stay)
        part.inputs = PartitionRows(self.sgd, TABLE, keys, bases=spare > 0, spare=spare)
        self.part = part
        return part

    def _lines_of(self, block: Block, split: ItemSplit, part: UserPartition) -> SortedLines:
        slot = self._slot(block)
        found = part.lines.get(slot)
        outputs_num = len(split.items)
        if found is None or len(found.bounds) != outputs_num + 1:
            users, items, values = whole(block, partial(self._read, block))
            random = np.random.default_rng((self.seed, slot, block.part))
            order = random.permutation(np.arange(len(users), dtype=np.int32))
            if len(split.stay):
                outputs = random.integers(outputs_num, size=len(users), dtype=np.uint16)
            else:
                outputs = split.of_item[items[order]]
            order = order[np.argsort(outputs, kind="stable")]
            bounds = np.zeros(outputs_num + 1, np.int64)
            np.cumsum(np.bincount(outputs, minlength=outputs_num), out=bounds[1:])
            places = np.empty((2, len(order)), np.int32)
            places[USER] = part.place[users[order]]
            places[ITEM] = items[order] + len(part.users)
            found = SortedLines(places, values[order], bounds)
            kept = sum(some.size_bytes for some in part.lines.values())
            if kept + found.size_bytes <= LINES_BYTES:
                part.lines[slot] = found
        return found

    # --- a checkout -----------------------------------------------------------------------------

    def check_out(self, block: Block, lease: RatingLease, part: int) -> Checkout:
        rows = lease.part.inputs
        random = np.random.default_rng((block.seed + part) & MASK64)
        first, last = lease.ranges[part].tolist()
        batch = LineBatch(*lease.lines.shuffled(first, last, random), np.zeros(0, np.int32))
        begin = partial(self.model.begin, batch, rows.local[0])
        items = lease.split.items[part % len(lease.split.items)]
        if len(lease.split.stay):
            return Checkout(part, len(batch), begin)
        places, keys = items + len(lease.part.users), self.model.keys_of(ITEM, items)
        packed = self.sgd.pull_rows(TABLE, keys).wait()
        self.sgd.in_threads(rows.load, places, packed)
        subtract = partial(self.sgd.in_threads, rows.subtract, places, packed)
        return Checkout(part, len(batch), begin, subtract, keys, packed)

    def rate(self, progress: float) -> float:
        return self.model.rate(progress)

    def figures(self, results: Sequence[Judged], finite: bool) -> Mapping[str, float]:
        """Add up losses and lines; a row that has diverged makes the squared loss NaN."""
        loss, lines = (sum(column) for column in zip((0.0, 0.0), *results, strict=True))
        return {"loss": loss, "examples": lines}


def ranges_of(bounds: NDArray[np.int64], checkouts: int) -> NDArray[np.int64]:
    """The lines of each checkout, (checkouts, 2): equal shares of an output partition a sweep."""
    sweeps = checkouts // (len(bounds) - 1)
    edges = bounds[:-1] + np.diff(bounds) * np.arange(sweeps + 1)[:, None] // sweeps
    return np.stack([edges[:-1].ravel(), edges[1:].ravel()], axis=1)


def cell_edges(sizes: Sequence[int]) -> list[int]:
    """The first cell of each partition, and `CELLS`: ranges in proportion to `sizes`."""
    edges = np.concatenate(([0], np.cumsum(sizes)))
    cells: list[int] = np.round(CELLS * edges / edges[-1]).astype(int).tolist()
    return cells
