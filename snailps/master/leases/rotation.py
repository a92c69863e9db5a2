"""Decides who encodes which block and who trains which partition: the schedule of a rotation.

    chunk -> blocks (a worker each) -> all done -> input partitions, each sticky to a worker
    partition -> check_out -> output partition that no other holds -> check_in -> ... -> done

A policy over the records of the open chunks, so the cost of a lease does not grow with the epochs.
An entry is a block or an input partition (*partition* for short). `chunk_numbers.py` has their
numbers, `chunks.py` how chunks are cut, `checkouts.py` who has which output partition, `speeds.py`
the sizes of partitions. No files, sockets or time. `api/rotation.py` has what a model sees of it,
docs/design/rotation.md the reasons.

The invariant is that no row has two writers. Input rows: partition i of a chunk is not leased
before partition i of the chunk before it is done, or held by the same worker, which trains them in
sequence. Output rows: `Checkouts` gives each output partition to one lease at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from snailps.api.rotation import Rotation
from snailps.master.leases import Training
from snailps.master.leases.checkouts import Checkouts
from snailps.master.leases.chunks import Chunks
from snailps.master.leases.entries import Entries, Entry
from snailps.master.leases.records import NO_RESULT, BlockResult
from snailps.master.leases.schedule import LOSSES_MAX, Schedule
from snailps.master.leases.speeds import Speeds
from snailps.master.leases.waits import ANY_WORKER, Wait

PARTITIONS_MAX = 2
"""Partitions that one worker may hold: one that it trains, one that it prepares."""
PARTITION_LOSSES_MAX = 10
"""`LOSSES_MAX` of a partition: it trains far longer than a block, so more losses are chance."""
RATED_SHARE = 0.25
"""Share of a lease's checkouts after which its worker's speed counts as known."""


class RotationSchedule(Schedule):
    """Blocks and partitions of one chunk after the other.

    A chunk is cut when its first partition is leased: into as many partitions as there are workers,
    at most `most_parts`, with sizes in proportion to the workers' speeds (their cores, before the
    speeds are known). Partition (k, i) is leased when all blocks of k are encoded, and (k - 1, i)
    is done or held by the same worker. Where k and k - 1 are cut differently, rows of one partition
    belonged to several: then all of k - 1 must be done first, which is a barrier. So it is always
    where a rotation has several passes.

    A worker reports an entry with all pushes acknowledged, so an entry is durable once done. Of a
    partition that is lost half-way, the durable checkouts count for its next lease.
    """

    chunks: Chunks
    checkouts: Checkouts
    is_flushed = True

    def __init__(
        self,
        entries: Entries,  # the blocks of all epochs and passes, in order
        rotation: Rotation,  # at most as many chunks as blocks
        known: NDArray[Any] | None = None,
        *,
        nodes: Sequence[int],  # the workers
        cores_of: Callable[[int], float] = lambda node: 1.0,  # that a worker may keep busy
        # `Chunks.extent` of an earlier run or master; empty: the rotation begins
        extent: Mapping[str, Any] | None = None,
    ) -> None:
        # part -> the worker that keeps its rows from chunk to chunk, which saves pulling them
        self._owners: dict[int, int] = {}
        self._own: dict[int, int] = {}  # the reverse
        chunks = Chunks(entries, rotation, known, extent, has_parts=self._has_parts)
        super().__init__(chunks.records, nodes)
        self.plan = self.chunks = chunks
        self.checkouts = Checkouts(chunks, self._release, self._trained)
        self._speeds, self._cores_of = Speeds(cores_of), cores_of
        self._begins = False  # whether the next chunk could begin, when that was examined last
        self._changed = True  # something has, since waiting workers were woken last

    @property
    def epoch(self) -> int:
        """Epoch of the first chunk with partitions left."""
        return self.chunks.first // self.chunks.numbers.in_epoch

    # --- leases --------------------------------------------------------------------------------

    def woken(self, waiting: Container[int]) -> list[int]:
        """All waiting workers, if anything has changed since the last call."""
        if self.closed or not self._changed:
            return []
        self._changed = False
        return list(self._still(waiting))

    def _next_of(self, node: int) -> Entry | None:
        if self.closed:
            return None
        self.workers.setdefault(node)
        number = self._partition_for(node)
        if number < 0:
            number = self.chunks.next_block()
        if number < 0:
            return None
        self._lease(number, node)
        return self.chunks.entry(number)

    def _partition_for(self, node: int) -> int:
        """The partition that a worker is to have next; -1: none at present.

        In each open chunk: first its own part; then, if it has none, a part that nobody owns.
        """
        chunks = self.chunks
        held = sum(map(chunks.numbers.is_partition, self.records.held_by(node)))
        if held >= PARTITIONS_MAX:
            return -1
        for chunk in chunks.open_range:
            if chunk >= self._held_chunk:
                break
            opened = chunks.at(chunk)
            parts = opened.parts or self._parts_now()
            if opened.unencoded:  # its rows are not known yet, nor those of any later chunk
                break
            if chunk != chunks.first and not self._runs_beside(chunk, parts):
                break
            owners, part_of_node = self._owners, self._own.get(node, parts)
            # Where parts have sizes, one is meant for this worker: as large as the worker is fast.
            # Where they are alike it may have any that is free, below.
            if part_of_node >= parts and (
                opened.sizes or (not opened.parts and self._sizes_now(parts))
            ):
                meant = self._owners_of(parts, opened.sizes)
                own_parts = (part for part, owner in meant.items() if owner == node)
                part_of_node = next(own_parts, parts)
                owners = owners if opened.parts else meant
            if part_of_node < parts and self._is_free(chunk, part_of_node, node):
                return chunks.numbers.number(chunk, part_of_node)
            if held:
                continue  # it has work: a part without an owner is left to a worker that has none
            for part in range(parts):
                if part not in owners and self._is_free(chunk, part, node):
                    return chunks.numbers.number(chunk, part)
        return -1

    @property
    def _held_chunk(self) -> int:
        """The first chunk whose partitions wait for a test; its blocks are encoded before."""
        numbers = self.chunks.numbers
        return numbers.chunks if self.held is None else self.held * numbers.in_epoch

    @property
    def at_hold(self) -> bool:
        return self.held is not None and self.chunks.first >= self._held_chunk

    def _is_free(self, chunk: int, part: int, node: int) -> bool:
        """Whether a worker may have a partition without two writers of its input rows."""
        if not self.records.is_waiting(self.chunks.numbers.number(chunk, part)):
            return False
        if chunk == self.chunks.first:
            return True
        # The same part of the chunk before has the same input rows.
        before = self.chunks.numbers.number(chunk - 1, part)
        return self.records.is_done(before) or self.records.holder(before) == node

    def _lease(self, number: int, node: int) -> None:
        self.records.lease(number, node)
        chunks = self.chunks
        if chunks.numbers.encodes(number):
            return
        chunk, part = chunks.numbers.chunk_of(number), chunks.numbers.part(number)
        if not chunks.at(chunk).parts:
            parts = self._parts_now()
            sizes, owners = self._sizes_now(parts), self._owners_of(parts)
            chunks.cut(chunk, parts, sizes)
            if sizes:  # they were made for these owners, so no other worker may come first
                self._owners = owners
                self._own = {owner: part for part, owner in owners.items()}
        self.checkouts.begin(number)
        if node not in self._own and part not in self._owners:
            self._own[node], self._owners[part] = part, node
        self._look_at_speeds()

    def claim(self, number: int, node: int) -> bool:
        if self.chunks.is_open(number) and self.records.is_waiting(number):
            self._lease(number, node)
        return self.records.holder(number) == node

    def done(self, number: int, node: int, result: BlockResult = NO_RESULT) -> bool:
        numbers = self.chunks.numbers
        if numbers.encodes(number):  # its units are counted when partitions train them
            result = BlockResult(bad_lines=result.bad_lines if numbers.is_first(number) else 0)
        return super().done(number, node, result)

    def _finish(self, number: int, result: BlockResult) -> None:
        super()._finish(number, result)
        self._changed = True
        if self.chunks.numbers.is_partition(number):
            self.checkouts.end(number)
            self.chunks.trained(number)
        else:
            self.chunks.encoded(number)

    def release(self, node: int) -> list[int]:
        """Return what a worker has leased and checked out; the numbers."""
        return self._release_all(node)

    def _release(self, number: int) -> None:
        super()._release(number)
        self._changed = True
        if self.chunks.numbers.is_partition(number):
            self.checkouts.end(number)
        else:
            self.chunks.returned(number)

    def close(self, size: int | None = None) -> None:
        """Lease nothing more; nothing more is checked out, either: leases end where they are."""
        super().close(size)
        self.checkouts.closed = self._changed = True

    # --- who has which part ----------------------------------------------------------------------

    def _parts_now(self) -> int:
        return max(1, min(len(self.workers), self.chunks.rotation.most_parts))

    def _sizes_now(self, parts: int) -> tuple[int, ...]:
        """Sizes of the next chunk's partitions."""
        before = self.chunks.last_sizes if self.chunks.last_parts == parts else None
        return self._speeds.sizes(self._owners_of(parts), parts, before)

    def _owners_of(self, parts: int, sizes: Sequence[int] = ()) -> dict[int, int]:
        """The worker that is to have each of `parts` parts. Owners stay; parts without one go to
        workers without one, the largest part to the worker with most cores."""
        owners = {part: node for part, node in self._owners.items() if part < parts}
        free = [part for part in range(parts) if part not in owners]
        free.sort(key=lambda part: -sizes[part] if sizes else 0)
        idle = [node for node in self.workers if self._own.get(node, parts) >= parts]
        idle.sort(key=self._cores_of, reverse=True)
        return owners | dict(zip(free, idle, strict=False))

    def _has_parts(self, parts: int) -> None:
        """A chunk is cut into `parts`: owners of higher parts own nothing any more."""
        for part in [part for part in self._owners if part >= parts]:
            del self._own[self._owners.pop(part)]

    def _runs_beside(self, chunk: int, parts: int) -> bool:
        """Whether partitions of a chunk may be leased while the chunk before it is trained: if both
        are cut alike, and have the same rows. An undecided chunk is cut by the speeds of its
        workers, so that is not known before each speed is."""
        if self.chunks.rotation.passes > 1:
            return False
        before, opened = self.chunks.at(chunk - 1), self.chunks.at(chunk)
        if before.parts != parts or parts == 1:
            return before.parts == parts
        if opened.parts:
            return opened.sizes == before.sizes
        rated = all(map(self._is_rated, self.chunks.partitions_of(chunk - 1)))
        return rated and self._sizes_now(parts) == before.sizes

    def _is_rated(self, number: int) -> bool:
        """Whether the speed of a partition's worker is known, or no longer needed."""
        rated = self.records.is_done(number) or self._speeds.of(self.records.holder(number)) > 0
        return rated or self.checkouts.share(number) >= RATED_SHARE

    def _trained(self, node: int, units: int, seconds: float) -> None:
        self._speeds.trained(node, units, seconds)
        self._look_at_speeds()

    def _look_at_speeds(self) -> None:
        """Have waiting workers woken once the next chunk may begin beside the one before it."""
        chunks = self.chunks
        undecided = (chunk for chunk in chunks.open_range if not chunks.at(chunk).parts)
        chunk = next(undecided, chunks.first)
        begins = chunk != chunks.first and not chunks.at(chunk).unencoded
        begins = begins and self._runs_beside(chunk, self._parts_now())
        self._changed = self._changed or (begins and not self._begins)
        self._begins = begins

    # --- workers ---------------------------------------------------------------------------------

    def join(self, node: int) -> None:
        super().join(node)
        self._changed, self._begins = True, False

    def leave(self, node: int) -> None:
        """A worker finishes what it has leased; its part has no owner from now on."""
        super().leave(node)
        self._speeds.forget(node)
        part = self._own.pop(node, None)
        if part is not None:
            del self._owners[part]
        self._changed, self._begins = True, False

    def _suspects(self, node: int) -> list[tuple[int, int]]:
        """The block that the worker encoded and the partition that it trained: it does both at
        once, and either may have killed it."""
        held = self.records.held_by(node)
        blocks = [(number, LOSSES_MAX) for number in held if self.chunks.numbers.encodes(number)]
        partitions = [
            (number, PARTITION_LOSSES_MAX)
            for number in held
            if self.chunks.numbers.is_partition(number)
        ]
        return [*blocks[:1], *partitions[:1]]

    # --- waits -----------------------------------------------------------------------------------

    def wait_of(self, node: int) -> Wait:
        """The workers that hold what must be done before this worker gets an entry."""
        chunks, first = self.chunks, self.chunks.first
        if self.closed or first == chunks.numbers.chunks:
            return super().wait_of(node)
        part = self._own.get(node)
        chunk = first
        while (
            part is not None
            and chunk + 1 in chunks.open_range
            and not chunks.at(chunk).unencoded
            and not self.records.is_waiting(chunks.numbers.number(chunk, part))
        ):
            chunk += 1  # to the chunk in which its part waits
        if chunks.at(chunk).unencoded:
            late = self._holders(chunks.numbers.blocks_of(chunk))
            return Wait.for_some(late or (ANY_WORKER,), f"encode a block of chunk {chunk}")
        if not chunks.at(first).parts:
            owners = self._owners_of(self._parts_now()).values()
            return Wait.for_some(owners, f"lease a partition of chunk {first}")
        partitions = chunks.partitions_of(first)
        late = self._holders(partitions) - {node}
        if late:
            return Wait.for_some(late, f"finish chunk {first}")
        for number in partitions:
            if self.records.is_waiting(number):
                part = chunks.numbers.part(number)
                owner = self._owners.get(part, ANY_WORKER)
                return Wait((owner,), f"lease partition {part} of chunk {first}")
        return super().wait_of(node)

    def _holders(self, numbers: range) -> set[int]:
        """Workers that have leased entries of a range."""
        return {self.records.holder(number) for number in numbers} - {0}

    # --- state -----------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """All partitions are done, or no more are wanted and none is leased."""
        is_last = self.chunks.first == self.chunks.numbers.chunks
        return not self.records.leased and (self.closed or is_last)

    @property
    def size(self) -> int:
        """Entries in all, if no worker comes or goes."""
        return self.chunks.size(self._parts_now())

    @property
    def progress(self) -> float:
        """Share of all bytes that is trained, 0 to 1: encoding counts for nothing, a partition by
        its checkouts."""
        return self.chunks.progress(self.checkouts.share)

    def durable(self) -> NDArray[Any]:
        return self.chunks.durable()

    def snapshot(self) -> dict[str, Any]:
        return {
            **super().snapshot(),
            "workers": sorted(self.workers),
            "owners": sorted(self._owners.items()),
            **self.chunks.snapshot(),
        }

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        super().resume(snapshot)
        self.workers = dict.fromkeys(map(int, snapshot["workers"]))
        self._owners = {int(part): int(node) for part, node in snapshot["owners"]}
        self._own = {node: part for part, node in self._owners.items()}
        self.chunks.resume(snapshot["checkouts"])


def of_training(job: Training) -> Schedule:
    """The schedule of a training by this rotation."""
    assert isinstance(job.plan, Rotation)
    return RotationSchedule(
        Entries(job.entries.blocks, job.settings.epochs * job.plan.passes),
        job.plan,
        job.known,
        nodes=job.nodes,
        cores_of=job.cores_of,
        extent=job.extent,
    )
