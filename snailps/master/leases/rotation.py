"""The ledger of a rotation: blocks to encode, then leases of input partitions.

    chunk -> blocks (a worker each) -> all done -> input partitions, each sticky to a worker
    partition -> check_out -> output partition that no other holds -> check_in -> ... -> done

A policy over the records of the open chunks, and the holders of output partitions: the cost of a
lease does not grow with the epochs. An entry is a block or an input partition, for short partition.
No files, sockets or time. `api/rotation.py` has what a model sees of it, docs/design/rotation.md
the reasons.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.rotation import CHUNKS_AHEAD, Rotation
from snailps.dataclass import asdict, dataclass, field, replace
from snailps.master.leases.ledger import ANY_WORKER, LOSSES_MAX, MASTER, Entry, Ledger, Wait
from snailps.master.leases.records import NO_RESULT, BlockRecords, BlockResult
from snailps.pieces import Piece
from snailps.transport.messages.terms import ChunkBlock, Partition

PARTITIONS_MAX = 2
"""Most partitions of one worker: one that trains, one that is prepared."""
PARTITION_LOSSES_MAX = 10
"""`LOSSES_MAX` of a partition, which lasts far longer than a block, so chance hits it more."""
RATED_SHARE = 0.25
"""Share of a lease's checkouts from which on its worker's speed is known."""
RATED_S, RATED_S_MAX = 0.5, 60.0
"""Seconds of checkouts of which a speed is made: with fewer it is none, of more the last ones."""
UNEVEN, UNSURE = 1.2, 0.25
"""Time of a chunk over the least possible from which on sizes change, which costs a barrier.
`UNSURE` is added for speeds of `RATED_S`, and less of it as the root of their seconds grows."""
SIZE_MEAN = 16
"""Mean size of partitions that differ."""
SIZE_MAX = 2.0
"""The largest, of the mean: a worker has pairs of so much text in memory."""
NO_PART, NO_MORE = -1, -2
"""Stand for an output partition: the lease has had all of them, or gets no other one."""


@dataclass(slots=True)
class _Chunk:
    unencoded: int  # blocks that are not done
    next_block: int  # number of the first block that may wait for a worker
    parts: int = 0  # 0: not decided
    sizes: tuple[int, ...] = ()  # of these to each other; empty: all alike
    undone: int = 0  # partitions that are not done


@dataclass(slots=True)
class _Checkouts:
    """Output partitions of a leased partition: all that it had (from the beginning those durable
    under an earlier lease), and those that it holds."""

    had: set[int] = field(default_factory=set)
    holds: set[int] = field(default_factory=set)


class RotationLedger(Ledger):
    """Blocks and partitions of one chunk after the other. Chunk k is the ``k % chunks``-th piece of
    the blocks of epoch ``k // chunks``. Entry ``k * stride + s`` encodes its s-th block, entry ``k
    * stride + blocks_most + i`` is its i-th partition: numbers do not depend on the epochs. Records
    are kept of open chunks only, `CHUNKS_AHEAD` behind the first with partitions left. A chunk has
    as many as there are workers when its first one is leased, at most `most_parts`, of sizes as the
    workers' speeds where these differ, before these are known as their cores; `decided` reports
    that once. Partition (k, i) is leased when all blocks of k are done, and (k - 1, i) is done or
    held by the same worker; where numbers or sizes of k and k - 1 differ, when all of k - 1 are
    done. So no partition has two writers. An entry is durable once done: a worker reports it with
    all pushes acknowledged. Durable checkouts of a partition count for its next lease."""

    def __init__(
        self,
        blocks: Sequence[Piece],
        epochs: int,
        rotation: Rotation,  # at most as many chunks as blocks
        known: NDArray[Any] | None = None,
        *,
        nodes: Sequence[int],  # the workers
        cores_of: Callable[[int], float] = lambda node: 1.0,  # that a worker may keep busy
        extent: Mapping[str, Any] | None = None,  # of another ledger; empty: the rotation begins
    ) -> None:
        super().__init__(blocks, epochs)
        self.rotation = rotation
        self._chunks = rotation.chunks  # of an epoch
        self._count = epochs * self._chunks
        self._next = self._size  # nothing is leased in the order of `Ledger`
        count = len(self._blocks)
        self._starts = [chunk * count // self._chunks for chunk in range(self._chunks + 1)]
        self._blocks_most = int(np.diff(self._starts).max())
        self._stride = self._blocks_most + rotation.most_parts
        self._workers, self._cores_of = dict.fromkeys(nodes), cores_of
        self._owners: dict[int, int] = {}  # part -> the worker that keeps its rows
        self._own: dict[int, int] = {}  # the reverse
        self._checkouts: dict[int, _Checkouts] = {}
        self._durable: dict[int, set[int]] = {}  # durable checkouts of unfinished partitions
        self._out: dict[int, int] = {}  # output partition -> input partition
        self._decided: list[tuple[int, int, tuple[int, ...]]] = []
        self._last_parts, self._last_sizes = 0, tuple[int, ...]()  # of the last one decided
        self._begins = False  # whether the next chunk could, when it was looked at last
        self._work: dict[int, tuple[float, float]] = {}  # units and seconds of a worker's checkouts
        self._changed = True
        extent = extent or {"open": 0, "tenancies": 0, "parts_max": 0, "parts": [], "sizes": []}
        self._open = min(int(extent["open"]), self._count)
        self._closed_partitions = int(extent["tenancies"])
        self.parts_max = int(extent["parts_max"])
        """The most parts of a chunk so far."""
        self.records = BlockRecords((CHUNKS_AHEAD + 1) * self._stride, self._open * self._stride)
        if known is not None and self._open < self._count:  # else the run had more epochs
            # A run of more epochs may have finished partitions of chunks that this one lacks.
            self.records.resume(known[: (self._count - self._open) * self._stride])
        self.records.finished += self._closed_blocks + self._closed_partitions
        self._open_chunks: deque[_Chunk] = deque()
        self._open_more()
        sizes = zip(extent["parts"], extent["sizes"], strict=True)
        for chunk, (parts, own) in enumerate(sizes, self._open):
            self.decide(chunk, int(parts), own)
        self._advance()

    needs = "fence"
    judged = "look"
    """What lost workers had leased or checked out must have no other writer before the fence."""

    @property
    def results_per_epoch(self) -> int:
        """That of each checkout, with as many parts as so far at most."""
        parts = max(1, self.parts_max)
        return self._chunks * parts * self.rotation.checkouts(parts)

    # --- numbers -------------------------------------------------------------------------------

    def encodes(self, number: int) -> bool:
        return not self.is_partition(number)

    def is_partition(self, number: int) -> bool:
        return number % self._stride >= self._blocks_most

    def chunk_of(self, number: int) -> int:
        return number // self._stride

    def epoch_of(self, number: int) -> int:
        return self.chunk_of(number) // self._chunks

    def _blocks_in(self, chunk: int) -> int:
        place = chunk % self._chunks
        return self._starts[place + 1] - self._starts[place]

    def _blocks_of(self, chunk: int) -> range:
        first = chunk * self._stride
        return range(first, first + self._blocks_in(chunk))

    def _partitions_of(self, chunk: int) -> range:
        """Numbers of the partitions of an open chunk; empty before its parts are decided."""
        first = self._number(chunk, 0)
        return range(first, first + self._at(chunk).parts)

    def is_undecided(self, number: int) -> bool:
        chunk = self.chunk_of(number)
        return self.is_partition(number) and chunk in self._open_range and not self._at(chunk).parts

    def _number(self, chunk: int, part: int) -> int:
        return chunk * self._stride + self._blocks_most + part

    def _part(self, number: int) -> int:
        return number % self._stride - self._blocks_most

    @property
    def _open_range(self) -> range:
        return range(self._open, self._open + len(self._open_chunks))

    def _at(self, chunk: int) -> _Chunk:
        assert chunk >= self._open
        return self._open_chunks[chunk - self._open]

    @property
    def _closed_blocks(self) -> int:
        epochs, place = divmod(self._open, self._chunks)
        return epochs * len(self._blocks) + self._starts[place]

    def _bytes_before(self, chunk: int) -> int:
        epoch, place = divmod(chunk, self._chunks)
        return epoch * self._epoch_bytes + int(self._plain.before[self._starts[place]])

    def entry(self, number: int) -> Entry:
        """A block or a partition; `before` and `after` of a partition are those of its chunk."""
        chunk = self.chunk_of(number)
        epoch, place = divmod(chunk, self._chunks)
        start, count = self._starts[place], self._blocks_in(chunk)
        if self.encodes(number):
            index = number % self._stride
            entry = super().entry(epoch * len(self._blocks) + start + index)
            return replace(entry, number=number, terms=ChunkBlock(chunk, index, count))
        parts = self._at(chunk).parts
        return Entry(
            number,
            Piece(),
            epoch,
            self._bytes_before(chunk) / self._total_bytes,
            self._bytes_before(chunk + 1) / self._total_bytes,
            Partition(
                chunk,
                count,
                self._part(number),
                parts,
                self.rotation.checkouts(parts, chunk),
                durable=tuple(sorted(self._durable.get(number, ()))),
                sizes=self._at(chunk).sizes,
            ),
        )

    @property
    def epoch(self) -> int:
        """Epoch of the first chunk with partitions left."""
        return self._open // self._chunks

    def piece(self, number: int) -> Piece | None:
        """Return the block of an entry that encodes one; None for any other number."""
        chunk = self.chunk_of(number)
        there = 0 <= chunk < self._count and number in self._blocks_of(chunk)
        return self.entry(number).piece if there else None

    # --- leases --------------------------------------------------------------------------------

    def take_again(self, number: int, index: int, node: int) -> Entry | None:
        chunk = self.chunk_of(number)
        self._checkouts_of(number, node)
        if index >= self._blocks_in(chunk):
            raise LookupError(f"chunk {chunk} has no block {index}")
        block, left = self._blocks_of(chunk)[index], self._at(chunk)
        if self.records.is_done(block):
            self.records.undo(block)
            left.unencoded += 1
            left.next_block = min(block, left.next_block)
        if not self.records.is_waiting(block):
            return None
        self._lease(block, node)
        return self.entry(block)

    def woken(self, waiting: Container[int]) -> list[int]:
        """All waiting workers, if anything has changed since the last call."""
        if self.closed or not self._changed:
            return []
        self._changed = False
        return list(self._still(waiting))

    def _next_of(self, node: int) -> Entry | None:
        if self.closed:
            return None
        self._workers.setdefault(node)
        number = self._partition_for(node)
        if number < 0:
            number = self._block_for()
        if number < 0:
            return None
        self._lease(number, node)
        return self.entry(number)

    def _partition_for(self, node: int) -> int:
        """The partition that a worker is to have next; -1: none at present."""
        held = sum(map(self.is_partition, self.records.held_by(node)))
        if held >= PARTITIONS_MAX:
            return -1
        for chunk in self._open_range:
            parts = self._at(chunk).parts or self._parts_now()
            if self._at(chunk).unencoded:
                break
            if chunk != self._open and not self._runs_beside(chunk, parts):
                break
            left, owners, own = self._at(chunk), self._owners, self._own.get(node, parts)
            if own >= parts and (left.sizes or (not left.parts and self._sizes_now(parts))):
                meant = self._owners_of(parts, left.sizes)
                own = next((part for part, owner in meant.items() if owner == node), parts)
                owners = owners if left.parts else meant
            if own < parts and self._is_free(chunk, own, node):
                return self._number(chunk, own)
            if held:
                continue  # another worker may yet come for a part without an owner
            for part in range(parts):
                if part not in owners and self._is_free(chunk, part, node):
                    return self._number(chunk, part)
        return -1

    def _runs_beside(self, chunk: int, parts: int) -> bool:
        """Whether partitions of a chunk may be leased beside those of the one before: if these are
        as many and as large, which is known once the speed of each worker is."""
        before, left = self._at(chunk - 1), self._at(chunk)
        if before.parts != parts or parts == 1:
            return before.parts == parts
        if left.parts:
            return left.sizes == before.sizes
        rated = all(map(self._is_rated, self._partitions_of(chunk - 1)))
        return rated and self._sizes_now(parts) == before.sizes

    def _look_at_speeds(self) -> None:
        """Have waiting workers woken if the next chunk may begin beside the last one now."""
        undecided = (chunk for chunk in self._open_range if not self._at(chunk).parts)
        chunk = next(undecided, self._open)
        begins = chunk != self._open and not self._at(chunk).unencoded
        begins = begins and self._runs_beside(chunk, self._parts_now())
        self._changed = self._changed or (begins and not self._begins)
        self._begins = begins

    def _is_rated(self, number: int) -> bool:
        """Whether the speed is known of the worker that has a partition, or must not be."""
        known = self.records.is_done(number) or self._speed(self.records.holder(number)) > 0
        return known or self._given(number) >= RATED_SHARE * self.outputs_of(number)

    def _given(self, number: int) -> int:
        """Checkouts of a partition that are checked in."""
        if self.records.is_done(number):
            return self.outputs_of(number)
        if (checkouts := self._checkouts.get(number)) is not None:
            return len(checkouts.had) - len(checkouts.holds)
        return len(self._durable.get(number, ()))

    def _speed(self, node: int) -> float:
        """Units a second of a worker; 0: not known."""
        units, seconds = self._work.get(node, (0.0, 0.0))
        return units / seconds if seconds >= RATED_S else 0.0

    def _sizes_now(self, parts: int) -> tuple[int, ...]:
        """Sizes of the next chunk's partitions, so that workers need the same time for each."""
        is_as_before = self._last_parts == parts
        before = self._last_sizes if is_as_before else ()
        old = np.asarray(before or (SIZE_MEAN,) * parts, np.float64)
        owners = self._owners_of(parts)
        speeds = np.array([self._speed(owners.get(part, 0)) for part in range(parts)])
        known = speeds > 0
        if is_as_before and not known.any():
            return before
        # A worker that is new, in the place of another one, is taken to be as fast; where there are
        # more or fewer places, to be as fast as its cores.
        guess = old
        if not is_as_before:
            cores = [self._cores_of(owners.get(part, 0)) for part in range(parts)]
            guess = np.array(cores, np.float64)
        uneven = UNEVEN
        if known.any():
            guess = guess * (speeds[known].sum() / guess[known].sum())
            seconds = min(self._work[owners[part]][1] for part in np.flatnonzero(known).tolist())
            uneven += UNSURE * (RATED_S / seconds) ** 0.5
        speeds = np.where(known, speeds, guess)
        new = _sizes_for(speeds)
        if (old / speeds).max() / old.sum() < uneven * (new / speeds).max() / new.sum():
            return before
        return tuple(new.tolist()) if len(set(new.tolist())) > 1 else ()

    def _owners_of(self, parts: int, sizes: Sequence[int] = ()) -> dict[int, int]:
        """Who is to have each of so many parts: workers without one come to those without a
        worker, those of most cores first, and to the largest."""
        owners = {part: node for part, node in self._owners.items() if part < parts}
        free = [part for part in range(parts) if part not in owners]
        free.sort(key=lambda part: -sizes[part] if sizes else 0)
        idle = [node for node in self._workers if self._own.get(node, parts) >= parts]
        idle.sort(key=self._cores_of, reverse=True)
        return owners | dict(zip(free, idle, strict=False))

    def _parts_now(self) -> int:
        return max(1, min(len(self._workers), self.rotation.most_parts))

    def _is_free(self, chunk: int, part: int, node: int) -> bool:
        if not self.records.is_waiting(self._number(chunk, part)):
            return False
        if chunk == self._open:
            return True
        before = self._number(chunk - 1, part)
        return self.records.is_done(before) or self.records.holder(before) == node

    def _block_for(self) -> int:
        """The next block to encode; -1: none at present."""
        for chunk in self._open_range:
            numbers, left = self._blocks_of(chunk), self._at(chunk)
            for number in range(left.next_block, numbers.stop):
                if self.records.is_waiting(number):
                    left.next_block = number
                    return number
            left.next_block = numbers.stop
        return -1

    def _lease(self, number: int, node: int) -> None:
        super()._lease(number, node)
        if self.encodes(number):
            return
        chunk, part = self.chunk_of(number), self._part(number)
        if not self._at(chunk).parts:
            parts = self._parts_now()
            sizes, owners = self._sizes_now(parts), self._owners_of(parts)
            self._cut(chunk, parts, sizes)
            if sizes:
                self._owners = owners
                self._own = {owner: part for part, owner in owners.items()}
        self._checkouts[number] = _Checkouts(set(self._durable.get(number, ())))
        if node not in self._own and part not in self._owners:
            self._own[node], self._owners[part] = part, node
        self._look_at_speeds()

    def _cut(self, chunk: int, parts: int, sizes: Sequence[int]) -> None:
        """Decide a chunk from any source but the journal, which is to have it."""
        if self.decide(chunk, parts, sizes):
            self._decided.append((chunk, parts, self._at(chunk).sizes))

    def decide(self, chunk: int, parts: int, sizes: Sequence[int] = ()) -> bool:
        """Set the parts of a chunk; False if it is not open or decided already."""
        known = chunk not in self._open_range or self._at(chunk).parts
        if known or not 0 < parts <= self.rotation.most_parts or len(sizes) not in (0, parts):
            return False
        left = self._at(chunk)
        left.parts, left.sizes = parts, tuple(int(size) for size in sizes)
        self._last_parts, self._last_sizes = parts, left.sizes
        numbers = self._partitions_of(chunk)
        left.undone = len(self.records.not_done(numbers.start, numbers.stop))
        self.parts_max = max(self.parts_max, parts)
        for part in [part for part in self._owners if part >= parts]:
            del self._own[self._owners.pop(part)]
        return True

    def decided(self) -> list[tuple[int, int, tuple[int, ...]]]:
        decided, self._decided = self._decided, []
        return decided

    def _release(self, number: int) -> None:
        super()._release(number)
        self._changed = True
        if self.is_partition(number):
            self._free(number)
        else:
            left = self._at(self.chunk_of(number))
            left.next_block = min(number, left.next_block)

    def _free(self, number: int) -> None:
        """Release what an ended lease checked out."""
        for part in self._checkouts.pop(number).holds:
            del self._out[self._output(number, part)]

    def done(
        self, number: int, node: int, result: BlockResult = NO_RESULT, *, whole: bool = True
    ) -> bool:
        if self.encodes(number):  # its words are counted by the partitions
            return super().done(number, node, BlockResult(bad_lines=result.bad_lines))
        if whole or self.records.holder(number) != node:
            return super().done(number, node, result)
        self._release(number)
        self._durable.pop(number, None)
        return True

    def _finish(self, number: int, result: BlockResult) -> None:
        node = self.records.finish(number, result)
        self.records.make_durable([number], node)
        self._changed = True
        left = self._at(self.chunk_of(number))
        if self.is_partition(number):
            self._free(number)
            self._durable.pop(number, None)
            left.undone -= 1
            self._advance()
        else:
            left.unencoded -= 1

    def _advance(self) -> None:
        """Close the chunks whose partitions are all done: only their sums are kept."""
        while self._open_chunks and self._open_chunks[0].parts and not self._open_chunks[0].undone:
            self._closed_partitions += self._open_chunks.popleft().parts
            self._open += 1
            self.records.forget(self._open * self._stride)
        self._open_more()

    def _open_more(self) -> None:
        """Open chunks up to `CHUNKS_AHEAD` behind the first one."""
        behind = min(self._count, self._open + CHUNKS_AHEAD + 1)
        for chunk in range(self._open_range.stop, behind):
            numbers = self._blocks_of(chunk)
            unencoded = len(self.records.not_done(numbers.start, numbers.stop))
            self._open_chunks.append(_Chunk(unencoded, numbers.start))

    def claim(self, number: int, node: int) -> bool:
        chunk = self.chunk_of(number)
        if chunk not in self._open_range:
            return False
        if number not in self._blocks_of(chunk) and number not in self._partitions_of(chunk):
            return False
        if self.records.is_waiting(number):
            self._lease(number, node)
        return self.records.holder(number) == node

    def release(self, node: int) -> list[int]:
        """Return what a worker has leased and checked out; the numbers."""
        return self._release_all(node)

    def close(self, size: int | None = None) -> None:
        """Nothing more is checked out, either."""
        super().close()
        self._changed = True

    # --- output partitions -----------------------------------------------------------------------

    def outputs_of(self, number: int) -> int:
        """Checkouts of a partition."""
        chunk = self.chunk_of(number)
        return self.rotation.checkouts(self._at(chunk).parts, chunk)

    def _output(self, number: int, part: int) -> int:
        """The output partition of a checkout of a partition."""
        return part % self.rotation.checkouts(self._at(self.chunk_of(number)).parts)

    def check_out(self, number: int, node: int) -> int | None:
        checkouts = self._checkouts_of(number, node)
        output_parts = self.outputs_of(number)
        if len(checkouts.had) == output_parts:
            return NO_PART
        if self.closed:
            return NO_MORE
        sweep, parts = self._sweep(number), self._at(self.chunk_of(number)).parts
        begin = len(sweep) * self._part(number) // parts
        for step in range(len(sweep)):
            part = sweep[(begin + step) % len(sweep)]
            if part not in checkouts.had and part % len(sweep) not in self._out:
                self._hand_out(number, part)
                return part
        return None

    def _sweep(self, number: int) -> range:
        """The checkouts of the first sweep that a lease has not had whole."""
        outputs = self.rotation.checkouts(self._at(self.chunk_of(number)).parts)
        had = self._checkouts[number].had
        lacks = (part for part in range(self.outputs_of(number)) if part not in had)
        first = next(lacks, 0) // outputs * outputs
        return range(first, first + outputs)

    def _checkouts_of(self, number: int, node: int) -> _Checkouts:
        checkouts = self._checkouts.get(number)
        if checkouts is None or self.records.holder(number) != node:
            raise LookupError(f"partition {number} is not leased to worker {node}")
        return checkouts

    def _hand_out(self, number: int, part: int) -> None:
        checkouts = self._checkouts[number]
        checkouts.had.add(part)
        checkouts.holds.add(part)
        self._out[self._output(number, part)] = number

    def check_in(
        self, number: int, node: int, part: int, units: int = 0, seconds: float = 0.0
    ) -> bool:
        checkouts = self._checkouts.get(number)
        if checkouts is None or self.records.holder(number) != node or part not in checkouts.holds:
            return False
        checkouts.holds.discard(part)
        del self._out[self._output(number, part)]
        before, spent = self._work.get(node, (0.0, 0.0))
        kept = min(1.0, max(0.0, RATED_S_MAX - seconds) / max(spent, RATED_S))
        self._work[node] = before * kept + units, spent * kept + seconds
        self._look_at_speeds()
        return True

    def make_durable(self, number: int, node: int) -> list[int]:
        """Make what a lease has checked in durable; returns what was not. If this worker is lost,
        the next holder of the partition skips what is durable."""
        checkouts = self._checkouts_of(number, node)
        durable = self._durable.setdefault(number, set())
        new = checkouts.had - checkouts.holds - durable
        durable |= new
        return sorted(new)

    def adopt_durable(self, number: int, parts: Collection[int]) -> bool:
        """Adopt what was durable under an earlier master; False if the partition is done."""
        chunk = self.chunk_of(number)
        if chunk not in self._open_range or number not in self._partitions_of(chunk):
            return False
        if self.records.is_done(number):
            return False
        self._durable.setdefault(number, set()).update(
            part for part in parts if 0 <= part < self.outputs_of(number)
        )
        return True

    def claim_all(
        self, node: int, numbers: Iterable[int], checkouts: Iterable[Mapping[str, Any]]
    ) -> None:
        """How many partitions may be unknown here: the journal lacks it if its machine died."""
        known = [one for one in checkouts if self.is_partition(one["number"])]
        for one in known:
            self._cut(self.chunk_of(one["number"]), one["parts"], one.get("sizes", ()))
        super().claim_all(node, numbers, ())
        for one in known:
            # Else it is done: the lost master had noted that, and not answered.
            if self.records.holder(one["number"]) == node:
                self.claim_checkouts(one["number"], node, one["had"], one["holds"])

    def claim_checkouts(
        self, number: int, node: int, had: Collection[int], holds: Collection[int]
    ) -> None:
        """Adopt what a lease had and holds, as reported by a worker that came back. LookupError
        if it is not leased to the worker, or another one holds such a part."""
        checkouts = self._checkouts_of(number, node)
        if not (set(holds) <= set(had) <= set(range(self.outputs_of(number)))):
            raise LookupError(f"partition {number} has {self.outputs_of(number)} checkouts")
        for part in holds:
            if self._out.get(self._output(number, part), number) != number:
                raise LookupError(f"output partition {part} is checked out already")
        checkouts.had |= set(had)
        for part in holds:
            self._hand_out(number, part)

    # --- workers ---------------------------------------------------------------------------------

    def join(self, node: int) -> None:
        self._workers.setdefault(node)
        self._changed, self._begins = True, False

    def leave(self, node: int) -> None:
        """A worker finishes what it has leased; its part has no owner."""
        self._workers.pop(node, None)
        self._work.pop(node, None)
        part = self._own.pop(node, None)
        if part is not None:
            del self._owners[part]
        self._changed, self._begins = True, False

    def blame(self, node: int) -> int:
        """Count a loss at what the worker trained and what it encoded: either may have cost it."""
        held = self.records.held_by(node)
        blocks = [number for number in held if self.encodes(number)]
        partitions = [number for number in held if self.is_partition(number)]
        suspects = [*blocks[:1], *partitions[:1]]
        guilty = [
            number for number in suspects if self.count_loss(number) >= self.losses_max(number)
        ]
        return guilty[0] if guilty else -1

    def losses_max(self, number: int) -> int:
        return PARTITION_LOSSES_MAX if self.is_partition(number) else LOSSES_MAX

    # --- waits -----------------------------------------------------------------------------------

    def wait_of(self, node: int) -> Wait:
        """The workers that hold what must be done before this one gets an entry."""
        if self.closed or self._open == self._count:
            return super().wait_of(node)
        own = self._own.get(node)
        chunk = self._open
        while (
            own is not None
            and chunk + 1 in self._open_range
            and not self._at(chunk).unencoded
            and not self.records.is_waiting(self._number(chunk, own))
        ):
            chunk += 1  # where its own part is next
        if self._at(chunk).unencoded:
            late = self._holders(self._blocks_of(chunk))
            return Wait.for_some(late or (ANY_WORKER,), f"encode a block of chunk {chunk}")
        if not self._at(self._open).parts:
            owners = self._owners_of(self._parts_now()).values()
            return Wait.for_some(owners, f"lease a partition of chunk {self._open}")
        partitions = self._partitions_of(self._open)
        late = self._holders(partitions) - {node}
        if late:
            return Wait.for_some(late, f"finish chunk {self._open}")
        for number in partitions:
            part = self._part(number)
            if self.records.is_waiting(number):
                owner = self._owners.get(part, ANY_WORKER)
                return Wait((owner,), f"lease partition {part} of chunk {self._open}")
        return super().wait_of(node)

    def _holders(self, numbers: range) -> set[int]:
        """Workers that have leased entries of a range."""
        found = {self.records.holder(number) for number in numbers}
        return found - {0}

    def wait_of_checkout(self, number: int, node: int) -> Wait | None:
        checkouts = self._checkouts.get(number)
        if checkouts is None or self.records.holder(number) != node or checkouts.holds:
            return None
        sweep = self._sweep(number)
        lacks = (part % len(sweep) for part in sweep if part not in checkouts.had)
        part = min((part for part in lacks if part in self._out), default=NO_PART)
        if part == NO_PART:
            return Wait((MASTER,), "have a lost worker fenced")
        return Wait((self.records.holder(self._out[part]),), f"check in partition {part}")

    # --- state -----------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """All partitions are done, or no more are wanted and none is leased."""
        return not self.records.leased and (self.closed or self._open == self._count)

    @property
    def size(self) -> int:
        """Entries in all, if no worker comes or goes."""
        now, behind = self._parts_now(), self._count - self._open_range.stop
        parts = [left.parts or now for left in self._open_chunks]
        return self._size + self._closed_partitions + sum(parts) + behind * now

    @property
    def progress(self) -> float:
        """Share of all bytes, from the partitions of a chunk and their checkouts."""
        done = float(self._bytes_before(self._open))
        for chunk in self._open_range:
            parts = self._at(chunk).parts
            if parts:
                for number in self._partitions_of(chunk):
                    share = self._given(number) / self.outputs_of(number)
                    done += self._bytes_of_part(number) * share
        return min(1.0, done / self._total_bytes)

    def _bytes_of_part(self, number: int) -> float:
        """Bytes of the text that count as a partition's."""
        chunk = self.chunk_of(number)
        left, of_chunk = self._at(chunk), self._bytes_before(chunk + 1) - self._bytes_before(chunk)
        sizes = left.sizes or (1,) * left.parts
        return of_chunk * sizes[self._part(number)] / sum(sizes)

    def share(self, numbers: Collection[int] | NDArray[np.int64]) -> float:
        """Share of all bytes of the closed chunks, and of these partitions of open ones. Numbers
        count from the first open chunk, as in `durable`."""
        done = float(self._bytes_before(self._open))
        for number in numbers:
            if self.is_partition(number):
                done += self._bytes_of_part(self._open * self._stride + number)
        return min(1.0, done / self._total_bytes)

    # --- what is kept of it ----------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """`blocks` of text are trained when all partitions of their chunk are."""
        left = [chunk.parts - chunk.undone for chunk in self._open_chunks]
        return {
            "blocks": self._closed_blocks,
            "partitions": self._closed_partitions + sum(left),
            "chunks": self.rotation.chunks,
            "parts_max": self.parts_max,
        }

    def plan(self) -> dict[str, Any]:
        return {**asdict(self.rotation), "extent": self.extent}

    @property
    def extent(self) -> dict[str, Any]:
        """Open chunks, and what is known of closed ones; values for JSON."""
        return {
            "open": self._open,
            "tenancies": self._closed_partitions,
            "parts_max": self.parts_max,
            "parts": [left.parts for left in self._open_chunks],
            "sizes": [list(left.sizes) for left in self._open_chunks],
        }

    def durable(self, clock: int = -1) -> NDArray[Any]:
        """`OUTCOME` of each entry from the first open chunk on, for a checkpoint: without blocks.
        The rows of a checkpoint are copied after its records: meanwhile the last partition of a
        chunk may end, and the rows of its blocks be overwritten by those of a later chunk."""
        found = self.records.durable()
        found[np.arange(len(found)) % self._stride < self._blocks_most] = 0
        return found

    def bad_lines(self) -> int:
        """Bad lines of the first epoch in blocks that a checkpoint does not include."""
        return sum(
            self.records.result(number).bad_lines
            for chunk in self._open_range
            if chunk < self._chunks
            for number in self._blocks_of(chunk)
            if self.records.is_done(number)
        )

    def snapshot(self) -> dict[str, Any]:
        return {
            **super().snapshot(),
            "workers": sorted(self._workers),
            "owners": sorted(self._owners.items()),
            "visits": [[number, sorted(parts)] for number, parts in self._durable.items()],
        }

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        super().resume(snapshot)
        self._workers = dict.fromkeys(int(node) for node in snapshot["workers"])
        self._owners = {int(part): int(node) for part, node in snapshot["owners"]}
        self._own = {node: part for part, node in self._owners.items()}
        for number, parts in snapshot["visits"]:
            self.adopt_durable(int(number), [int(part) for part in parts])


def _sizes_for(speeds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole sizes in proportion to speeds, none above `SIZE_MAX` of their mean."""
    shares = speeds / speeds.sum()
    most = SIZE_MAX / len(speeds)
    while (shares > most * (1 + 1e-9)).any():
        capped = shares >= most
        rest = 1.0 - most * np.count_nonzero(capped)
        shares = np.where(capped, most, shares * (rest / shares[~capped].sum()))
    whole: NDArray[np.int64] = np.floor(shares * SIZE_MEAN * len(speeds) + 0.5).astype(np.int64)
    return np.maximum(1, whole)
