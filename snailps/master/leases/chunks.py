"""Owns the chunks of a rotation: how they are cut, which are open.

    blocks of a chunk encoded -> cut: partitions, of some sizes -> all done -> the chunk is closed

A part of the schedule of a rotation; what a number means, `chunk_numbers.py` says. Records are kept
of open chunks only: the first with partitions left and `CHUNKS_AHEAD` after it.

How a chunk is cut is a fact of the journal (`decided`). A master that lacks it, after a power cut,
learns it from workers that hold partitions of the chunk (`learn`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.rotation import CHUNKS_AHEAD, Rotation
from snailps.dataclass import asdict, dataclass, replace
from snailps.master.leases.chunk_numbers import ChunkNumbers
from snailps.master.leases.entries import Entries, Entry
from snailps.master.leases.records import BlockRecords
from snailps.pieces import Piece
from snailps.transport.messages.terms import ChunkBlock, Partition

NEW_EXTENT: dict[str, Any] = {
    "open": 0,
    "closed_partitions": 0,
    "parts_max": 0,
    "parts": [],
    "sizes": [],
}
"""`Chunks.extent` of a rotation that begins."""


@dataclass(slots=True)
class Chunk:
    """An open chunk."""

    unencoded: int  # blocks that are not done
    next_block: int  # all blocks below this number are leased or done
    parts: int = 0  # partitions; 0: the chunk is not cut yet
    sizes: tuple[int, ...] = ()  # of the partitions, in proportion; empty: all alike
    undone: int = 0  # partitions that are not done


class Chunks:
    """The open chunks, and sums of the closed ones."""

    rotation: Rotation
    numbers: ChunkNumbers

    def __init__(
        self,
        entries: Entries,  # the blocks of all epochs, in order
        rotation: Rotation,  # at most as many chunks as blocks
        known: NDArray[Any] | None = None,  # records of an earlier run
        extent: Mapping[str, Any] | None = None,  # of an earlier run; empty: the rotation begins
        *,
        has_parts: Callable[[int], None],  # tells the schedule into how many parts a chunk is cut
    ) -> None:
        self.rotation, self.entries, self._has_parts = rotation, entries, has_parts
        self.numbers = numbers = ChunkNumbers(entries, rotation)
        extent = extent or NEW_EXTENT
        self.first = min(int(extent["open"]), numbers.chunks)
        """The first chunk with partitions left."""
        self._closed_partitions = int(extent["closed_partitions"])
        self.parts_max = int(extent["parts_max"])
        """The most parts of a chunk so far."""
        self.last_parts, self.last_sizes = 0, tuple[int, ...]()
        """How the chunk that was cut last is cut."""
        stride = numbers.stride
        self.records = BlockRecords((CHUNKS_AHEAD + 1) * stride, self.first * stride)
        if known is not None and self.first < numbers.chunks:  # else that run had more epochs
            # A run of more epochs may have finished partitions of chunks that this one lacks.
            self.records.resume(known[: (numbers.chunks - self.first) * stride])
        self.records.finished += numbers.blocks_before(self.first) + self._closed_partitions
        self._open: deque[Chunk] = deque()
        self._durable: dict[int, set[int]] = {}  # durable checkouts of each unfinished partition
        self._decided: list[tuple[int, int, tuple[int, ...]]] = []  # not in the journal yet
        self._open_more()
        cuts = zip(extent["parts"], extent["sizes"], strict=True)
        for chunk, (parts, sizes) in enumerate(cuts, self.first):
            self.decide(chunk, int(parts), sizes)
        self._close()

    # --- open chunks ---------------------------------------------------------------------------

    def partitions_of(self, chunk: int) -> range:
        """Numbers of the partitions of an open chunk; empty before its parts are decided."""
        first = self.numbers.number(chunk, 0)
        return range(first, first + self.at(chunk).parts)

    @property
    def open_range(self) -> range:
        return range(self.first, self.first + len(self._open))

    def at(self, chunk: int) -> Chunk:
        """An open chunk."""
        assert chunk >= self.first
        return self._open[chunk - self.first]

    def is_undecided(self, number: int) -> bool:
        """Whether an entry is a partition of an open chunk whose cut is not known."""
        chunk = self.numbers.chunk_of(number)
        is_partition = self.numbers.is_partition(number)
        return is_partition and chunk in self.open_range and not self.at(chunk).parts

    def has(self, number: int) -> bool:
        """Whether there is a block of this number, or a partition in an open chunk."""
        chunk = self.numbers.chunk_of(number)
        if not 0 <= chunk < self.numbers.chunks:
            return False
        if number in self.numbers.blocks_of(chunk):
            return True
        return chunk in self.open_range and number in self.partitions_of(chunk)

    def epoch_of(self, number: int) -> int:
        return self.numbers.epoch_of(number)

    def is_open(self, number: int) -> bool:
        """Whether there is an entry of this number in an open chunk."""
        return self.has(number) and self.numbers.chunk_of(number) in self.open_range

    def entry(self, number: int) -> Entry:
        """A block, or a partition; the progress of a partition is the one of its chunk."""
        numbers = self.numbers
        chunk = numbers.chunk_of(number)
        count = numbers.blocks_in(chunk)
        if numbers.encodes(number):
            plain = self.entries.entry(numbers.block_of(number))
            index = number % numbers.stride
            terms = ChunkBlock(chunk, index, count)
            return replace(plain, number=number, epoch=numbers.epoch_of(number), terms=terms)
        parts = self.at(chunk).parts
        return Entry(
            number,
            Piece(),
            numbers.epoch_of(number),
            (
                numbers.bytes_before(chunk) / self.entries.total_bytes,
                numbers.bytes_before(chunk + 1) / self.entries.total_bytes,
            ),
            Partition(
                chunk,
                count,
                numbers.part(number),
                parts,
                self.rotation.checkouts(parts, chunk),
                durable=tuple(sorted(self.durable_of(number))),
                sizes=self.at(chunk).sizes,
                passes=self.rotation.passes,
            ),
        )

    def outputs_of(self, number: int) -> int:
        """Checkouts of a partition."""
        chunk = self.numbers.chunk_of(number)
        return self.rotation.checkouts(self.at(chunk).parts, chunk)

    # --- how chunks are cut ----------------------------------------------------------------------

    def cut(self, chunk: int, parts: int, sizes: Sequence[int]) -> None:
        """Cut a chunk, and remember that the journal is to have it; for any source but the
        journal."""
        if self.decide(chunk, parts, sizes):
            self._decided.append((chunk, parts, self.at(chunk).sizes))

    def decided(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Chunks that were cut since the last call, each with number and sizes of its parts."""
        decided, self._decided = self._decided, []
        return decided

    def decide(self, chunk: int, parts: int, sizes: Sequence[int] = ()) -> bool:
        """Set the parts of a chunk; False if it is not open or decided already."""
        undecided = chunk in self.open_range and not self.at(chunk).parts
        valid = 0 < parts <= self.rotation.most_parts and len(sizes) in (0, parts)
        if not (undecided and valid):
            return False
        opened = self.at(chunk)
        opened.parts, opened.sizes = parts, tuple(int(size) for size in sizes)
        self.last_parts, self.last_sizes = parts, opened.sizes
        numbers = self.partitions_of(chunk)
        opened.undone = len(self.records.not_done(numbers.start, numbers.stop))
        self.parts_max = max(self.parts_max, parts)
        self._has_parts(parts)
        return True

    def learn(self, reported: Iterable[Mapping[str, Any]]) -> None:
        """Cut chunks as a worker reports for the partitions that it holds: the journal may lack
        this after a power cut."""
        for lease in reported:
            if self.numbers.is_partition(lease["number"]):
                chunk = self.numbers.chunk_of(lease["number"])
                self.cut(chunk, lease["parts"], lease.get("sizes", ()))

    # --- blocks and partitions -------------------------------------------------------------------

    def next_block(self) -> int:
        """The next block to encode; -1: none at present."""
        for chunk in self.open_range:
            numbers, opened = self.numbers.blocks_of(chunk), self.at(chunk)
            for number in range(opened.next_block, numbers.stop):
                if self.records.is_waiting(number):
                    opened.next_block = number
                    return number
            opened.next_block = numbers.stop
        return -1

    def returned(self, number: int) -> None:
        """A block waits again."""
        opened = self.at(self.numbers.chunk_of(number))
        opened.next_block = min(number, opened.next_block)

    def encode_again(self, number: int, index: int, node: int) -> Entry | None:
        """Lease the `index`-th block of the chunk of a partition once more: servers have lost its
        encoded rows. None if another worker has it. LookupError: partition `number` is not leased
        to this worker, or the chunk has no such block."""
        chunk = self.numbers.chunk_of(number)
        if not self.numbers.is_partition(number) or self.records.holder(number) != node:
            raise LookupError(f"partition {number} is not leased to worker {node}")
        if index >= self.numbers.blocks_in(chunk):
            raise LookupError(f"chunk {chunk} has no block {index}")
        block = self.numbers.blocks_of(chunk)[index]
        if self.records.is_done(block):
            self.records.undo(block)
            self.at(chunk).unencoded += 1
            self.returned(block)
        if not self.records.is_waiting(block):
            return None
        self.records.lease(block, node)
        return self.entry(block)

    def encoded(self, number: int) -> None:
        """A block is done."""
        self.at(self.numbers.chunk_of(number)).unencoded -= 1

    def trained(self, number: int) -> None:
        """A partition is done."""
        self.forget_durable(number)
        self.at(self.numbers.chunk_of(number)).undone -= 1
        self._close()

    def durable_of(self, number: int) -> Collection[int]:
        """Durable checkouts of a partition that is not done; its next lease skips them."""
        return self._durable.get(number, ())

    def make_durable(self, number: int, parts: Collection[int]) -> list[int]:
        """Make checkouts of a partition durable; returns those that were not."""
        durable = self._durable.setdefault(number, set())
        new = sorted(set(parts) - durable)
        durable.update(new)
        return new

    def adopt_durable(self, number: int, parts: Collection[int]) -> bool:
        """Adopt what was durable under an earlier master; False if the partition is done."""
        is_here = self.is_open(number) and self.numbers.is_partition(number)
        if not is_here or self.records.is_done(number):
            return False
        outputs = self.outputs_of(number)
        self.make_durable(number, [part for part in parts if 0 <= part < outputs])
        return True

    def forget_durable(self, number: int) -> None:
        """A partition is done, or its next lease trains all of it again."""
        self._durable.pop(number, None)

    def _close(self) -> None:
        """Close chunks whose partitions are all done, and keep only their sums: memory does not
        grow with the epochs."""
        while self._open and self._open[0].parts and not self._open[0].undone:
            self._closed_partitions += self._open.popleft().parts
            self.first += 1
            self.records.forget(self.first * self.numbers.stride)
        self._open_more()

    def _open_more(self) -> None:
        """Open chunks up to `CHUNKS_AHEAD` after the first one."""
        stop = min(self.numbers.chunks, self.first + CHUNKS_AHEAD + 1)
        for chunk in range(self.open_range.stop, stop):
            numbers = self.numbers.blocks_of(chunk)
            if self.numbers.keeps(chunk):
                self.records.skip(self.records.not_done(numbers.start, numbers.stop))
            unencoded = len(self.records.not_done(numbers.start, numbers.stop))
            self._open.append(Chunk(unencoded, numbers.start))

    # --- bytes -----------------------------------------------------------------------------------

    def bytes_of_part(self, number: int) -> float:
        """Bytes of text that count for a partition: its share of its chunk, by size."""
        chunk = self.numbers.chunk_of(number)
        in_chunk = self.numbers.bytes_before(chunk + 1) - self.numbers.bytes_before(chunk)
        sizes = self.at(chunk).sizes or (1,) * self.at(chunk).parts
        return in_chunk * sizes[self.numbers.part(number)] / sum(sizes)

    # --- figures, and what is kept ---------------------------------------------------------------

    def size(self, parts: int) -> int:
        """Entries in all, if chunks that are not cut yet get `parts` parts."""
        cut = [opened.parts or parts for opened in self._open]
        later = self.numbers.chunks - self.open_range.stop
        return self.entries.count + self._closed_partitions + sum(cut) + later * parts

    @property
    def results_per_epoch(self) -> int:
        """Losses per epoch, one for each checkout, if chunks have as many parts as at most so
        far."""
        parts = max(1, self.parts_max)
        return self.numbers.in_epoch * parts * self.rotation.checkouts(parts)

    @property
    def bad_lines(self) -> int:
        """Bad lines of the first epoch in blocks that a checkpoint does not include."""
        return sum(
            self.records.result(number).bad_lines
            for chunk in self.open_range
            if chunk < self.numbers.in_epoch
            for number in self.numbers.blocks_of(chunk)
            if self.records.is_done(number)
        )

    def figures(self) -> dict[str, Any]:
        """`blocks` of text are trained when all partitions of their chunk are, in each pass."""
        done = [opened.parts - opened.undone for opened in self._open]
        return {
            "blocks": self.numbers.blocks_before(self.first) // self.rotation.passes,
            "partitions": self._closed_partitions + sum(done),
            "chunks": self.rotation.chunks,
            "parts_max": self.parts_max,
        }

    def plan(self) -> dict[str, Any]:
        """How the input is cut, beside its blocks."""
        return {**asdict(self.rotation), "extent": self.extent}

    @property
    def extent(self) -> dict[str, Any]:
        """Open chunks and sums of closed ones: from where a rotation continues; values for JSON."""
        return {
            "open": self.first,
            "closed_partitions": self._closed_partitions,
            "parts_max": self.parts_max,
            "parts": [opened.parts for opened in self._open],
            "sizes": [list(opened.sizes) for opened in self._open],
        }

    def snapshot(self) -> dict[str, Any]:
        return {"checkouts": [[number, sorted(parts)] for number, parts in self._durable.items()]}

    def resume(self, durable: Iterable[tuple[int, Iterable[int]]]) -> None:
        """Continue from the field of a `snapshot`."""
        for number, parts in durable:
            self.adopt_durable(int(number), [int(part) for part in parts])

    def durable(self) -> NDArray[Any]:
        """`OUTCOME` of each entry from the first open chunk on, for a checkpoint; blocks count as
        not encoded. The rows of a checkpoint are copied after its records. Meanwhile the last
        partition of a chunk may end, and a later chunk overwrite the encoded rows of its blocks."""
        outcomes = self.records.durable()
        outcomes[np.arange(len(outcomes)) % self.numbers.stride < self.numbers.blocks_most] = 0
        return outcomes

    def share(self, numbers: Sequence[int] | NDArray[np.int64]) -> float:
        """Share of all bytes in closed chunks and in these partitions of open ones, 0 to 1. Numbers
        count from the first open chunk, as in `durable`."""
        done = float(self.numbers.bytes_before(self.first))
        for number in numbers:
            if self.numbers.is_partition(number):
                done += self.bytes_of_part(self.first * self.numbers.stride + number)
        return min(1.0, done / self.entries.total_bytes)

    def progress(self, done_share: Callable[[int], float]) -> float:
        """Share of all bytes that is trained, 0 to 1, given the trained share of a partition."""
        done = float(self.numbers.bytes_before(self.first))
        for chunk in self.open_range:
            for number in self.partitions_of(chunk):
                done += self.bytes_of_part(number) * done_share(number)
        return min(1.0, done / self.entries.total_bytes)
