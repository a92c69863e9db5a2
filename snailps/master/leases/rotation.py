"""The ledger of a rotation: slices that are dealt, then tenancies that borrow visiting parts.

    chunk -> slices (a worker each) -> all done -> tenancies (chunk, part), each sticky to a worker
    tenancy -> borrow -> visiting part that no other holds -> give_back -> ... -> all had: done

A policy over the records of the open chunks, and the holders of visiting parts: the cost of a lease
does not grow with the epochs. No files, sockets or time. `api/rotation.py` has what a model sees of
it, docs/design/rotation.md the reasons.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.rotation import VISITING_PER_PART, Rotation
from snailps.data.blocks import Block
from snailps.master.leases.ledger import (
    ANY_WORKER,
    LOSSES_MAX,
    MASTER,
    Entry,
    Ledger,
    Wait,
)
from snailps.master.leases.records import NO_RESULT, BlockRecords, BlockResult

CHUNKS_AHEAD = 2
"""Chunks that slices are dealt ahead of the first one with tenancies left: rows for three chunks,
as a dealt slice overwrites that of a trained chunk."""
TENANCIES_MAX = 2
"""Of one worker: one that trains, one that is prepared."""
TENANCY_LOSSES_MAX = 10
"""Instead of `LOSSES_MAX`: a tenancy lasts far longer than a block, so chance hits it more."""
NO_PART, NO_MORE = -1, -2
"""Stand for a part: the tenancy has had all of them, or gets no other one."""


@dataclass(slots=True)
class _Chunk:
    undealt: int  # slices that are not done
    dealt_to: int  # number of the first slice that may wait for a worker
    parts: int = 0  # 0: not decided
    undone: int = 0  # tenancies that are not done


@dataclass(slots=True)
class _Visited:
    """Visiting parts of a leased tenancy: all that it had (from the beginning those durable under
    an earlier lease), and those that it holds."""

    had: set[int] = field(default_factory=set)
    holds: set[int] = field(default_factory=set)


class RotationLedger(Ledger):
    """Slices and tenancies of one chunk after the other. Chunk k is the ``k % chunks``-th piece of
    the blocks of epoch ``k // chunks``. Entry ``k * stride + s`` deals its s-th block, entry ``k *
    stride + slices_most + i`` is its i-th tenancy: numbers do not depend on the epochs. Records are
    kept of open chunks only, `CHUNKS_AHEAD` behind the first with tenancies left. A chunk has as
    many parts as there are workers when its first tenancy is leased, at most `most_parts`;
    `decided` reports that once. A tenancy (k, i) is leased when all slices of k are done, and (k -
    1, i) is done or held by the same worker; where the parts of k and k - 1 differ, when all
    tenancies of k - 1 are done. So no part has two writers. An entry is settled once done: a worker
    reports it with all pushes acknowledged. Durable visits of an unfinished tenancy count for its
    next lease."""

    def __init__(
        self,
        blocks: Sequence[Block],
        epochs: int,
        rotation: Rotation,  # at most as many chunks as blocks
        known: NDArray[Any] | None = None,
        *,
        nodes: Sequence[int],  # the workers
        extent: Mapping[str, Any] | None = None,  # of another ledger; empty: the rotation begins
    ) -> None:
        super().__init__(blocks, epochs)
        self.rotation = rotation
        self._chunks = rotation.chunks  # of an epoch
        self._count = epochs * self._chunks
        self._next = self._size  # nothing is leased in the order of `Ledger`
        count = len(self._blocks)
        self._starts = [chunk * count // self._chunks for chunk in range(self._chunks + 1)]
        self._slices_most = int(np.diff(self._starts).max())
        self._stride = self._slices_most + rotation.most_parts
        self._workers = dict.fromkeys(nodes)
        self._owners: dict[int, int] = {}  # part -> the worker that keeps its rows
        self._own: dict[int, int] = {}  # the reverse
        self._visited: dict[int, _Visited] = {}
        self._settled: dict[int, set[int]] = {}  # durable visiting parts of unfinished tenancies
        self._lent: dict[int, int] = {}  # visiting part -> tenancy
        self._decided: list[tuple[int, int]] = []
        self._changed = True
        extent = extent or {"open": 0, "tenancies": 0, "parts_max": 0, "parts": []}
        self._open = min(int(extent["open"]), self._count)
        self._closed_tenancies = int(extent["tenancies"])
        self.parts_max = int(extent["parts_max"])
        """The most parts of a chunk so far."""
        self.records = BlockRecords((CHUNKS_AHEAD + 1) * self._stride, self._open * self._stride)
        if known is not None and self._open < self._count:  # else the run had more epochs
            # A run of more epochs may have finished tenancies of chunks that this one lacks.
            self.records.resume(known[: (self._count - self._open) * self._stride])
        self.records.finished += self._closed_slices + self._closed_tenancies
        self._open_chunks: deque[_Chunk] = deque()
        self._open_more()
        for chunk, parts in enumerate(extent["parts"], self._open):
            self.decide(chunk, int(parts))
        self._advance()

    needs = "fence"
    """What lost workers had leased or borrowed must have no other writer before the fence."""

    # --- numbers -------------------------------------------------------------------------------

    def is_dealt(self, number: int) -> bool:
        return not self.is_tenancy(number)

    def is_tenancy(self, number: int) -> bool:
        return number % self._stride >= self._slices_most

    def chunk_of(self, number: int) -> int:
        return number // self._stride

    def epoch_of(self, number: int) -> int:
        return self.chunk_of(number) // self._chunks

    def _slices_in(self, chunk: int) -> int:
        place = chunk % self._chunks
        return self._starts[place + 1] - self._starts[place]

    def _slices_of(self, chunk: int) -> range:
        first = chunk * self._stride
        return range(first, first + self._slices_in(chunk))

    def _tenancies_of(self, chunk: int) -> range:
        """Numbers of the tenancies of an open chunk; empty before its parts are decided."""
        first = self._number(chunk, 0)
        return range(first, first + self._at(chunk).parts)

    def _number(self, chunk: int, part: int) -> int:
        return chunk * self._stride + self._slices_most + part

    def _part(self, number: int) -> int:
        return number % self._stride - self._slices_most

    @property
    def _open_range(self) -> range:
        return range(self._open, self._open + len(self._open_chunks))

    def _at(self, chunk: int) -> _Chunk:
        assert chunk >= self._open
        return self._open_chunks[chunk - self._open]

    @property
    def _closed_slices(self) -> int:
        epochs, place = divmod(self._open, self._chunks)
        return epochs * len(self._blocks) + self._starts[place]

    def _bytes_before(self, chunk: int) -> int:
        epoch, place = divmod(chunk, self._chunks)
        return epoch * self._epoch_bytes + int(self._plain.before[self._starts[place]])

    def entry(self, number: int) -> Entry:
        """A slice or a tenancy; `before` and `after` of a tenancy are those of its chunk."""
        chunk = self.chunk_of(number)
        epoch, place = divmod(chunk, self._chunks)
        start, slices = self._starts[place], self._slices_in(chunk)
        if self.is_dealt(number):
            slice_ = number % self._stride
            one = super().entry(epoch * len(self._blocks) + start + slice_)
            return Entry(
                number, one.block, one.epoch, one.before, one.after,
                chunk=chunk, slice=slice_, slices=slices,
            )  # fmt: skip
        parts = self._at(chunk).parts
        return Entry(
            number,
            Block(start, "", 0, 0),
            epoch,
            self._bytes_before(chunk) / self._total_bytes,
            self._bytes_before(chunk + 1) / self._total_bytes,
            chunk=chunk,
            slices=slices,
            part=self._part(number),
            parts=parts,
            visiting=self.rotation.visits(parts),
            had=tuple(sorted(self._settled.get(number, ()))),
        )

    @property
    def epoch(self) -> int:
        """That of the first chunk with tenancies left."""
        return self._open // self._chunks

    def piece(self, number: int) -> Block | None:
        """That of a slice."""
        chunk = self.chunk_of(number)
        there = 0 <= chunk < self._count and number in self._slices_of(chunk)
        return self.entry(number).block if there else None

    # --- leases --------------------------------------------------------------------------------

    def woken(self, waiting: Container[int]) -> list[int]:
        """All waiting workers, if anything has changed since the last call."""
        if self._closed or not self._changed:
            return []
        self._changed = False
        return list(self._still(waiting))

    def _next_of(self, node: int) -> Entry | None:
        if self._closed:
            return None
        self._workers.setdefault(node)
        number = self._tenancy_for(node)
        if number < 0:
            number = self._slice_for()
        if number < 0:
            return None
        self._lease(number, node)
        return self.entry(number)

    def _tenancy_for(self, node: int) -> int:
        """The tenancy that a worker is to have next; -1: none at present."""
        held = sum(map(self.is_tenancy, self.records.held_by(node)))
        if held >= TENANCIES_MAX:
            return -1
        for chunk in self._open_range:
            parts = self._at(chunk).parts or self._parts_now()
            if self._at(chunk).undealt or not self._follows(chunk, parts):
                break
            own = self._own.get(node, parts)
            if own < parts and self._is_free(chunk, own, node):
                return self._number(chunk, own)
            if held:
                continue  # another worker may yet come for a part without an owner
            for part in range(parts):
                if part not in self._owners and self._is_free(chunk, part, node):
                    return self._number(chunk, part)
        return -1

    def _parts_now(self) -> int:
        return max(1, min(len(self._workers), self.rotation.most_parts))

    def _follows(self, chunk: int, parts: int) -> bool:
        """Whether tenancies of a chunk with `parts` may run beside the previous chunk's."""
        return chunk == self._open or self._at(chunk - 1).parts == parts

    def _is_free(self, chunk: int, part: int, node: int) -> bool:
        if not self.records.is_waiting(self._number(chunk, part)):
            return False
        if chunk == self._open:
            return True
        before = self._number(chunk - 1, part)
        return self.records.is_done(before) or self.records.holder(before) == node

    def _slice_for(self) -> int:
        """The next slice to deal; -1: none at present."""
        for chunk in self._open_range:
            numbers, left = self._slices_of(chunk), self._at(chunk)
            for number in range(left.dealt_to, numbers.stop):
                if self.records.is_waiting(number):
                    left.dealt_to = number
                    return number
            left.dealt_to = numbers.stop
        return -1

    def _lease(self, number: int, node: int) -> None:
        super()._lease(number, node)
        if self.is_dealt(number):
            return
        chunk, part = self.chunk_of(number), self._part(number)
        if not self._at(chunk).parts:
            self.decide(chunk, self._parts_now())
            self._decided.append((chunk, self._at(chunk).parts))
        self._visited[number] = _Visited(set(self._settled.get(number, ())))
        if node not in self._own and part not in self._owners:
            self._own[node], self._owners[part] = part, node

    def decide(self, chunk: int, parts: int) -> None:
        """Set the parts of a chunk, unless it is not open or decided already."""
        known = chunk not in self._open_range or self._at(chunk).parts
        if known or not 0 < parts <= self.rotation.most_parts:
            return
        left = self._at(chunk)
        left.parts = parts
        numbers = self._tenancies_of(chunk)
        left.undone = len(self.records.not_done(numbers.start, numbers.stop))
        self.parts_max = max(self.parts_max, parts)
        for part in [part for part in self._owners if part >= parts]:
            del self._own[self._owners.pop(part)]

    def decided(self) -> list[tuple[int, int]]:
        decided, self._decided = self._decided, []
        return decided

    def _give_back(self, number: int) -> None:
        super()._give_back(number)
        self._changed = True
        if self.is_tenancy(number):
            self._free(number)
        else:
            left = self._at(self.chunk_of(number))
            left.dealt_to = min(number, left.dealt_to)

    def _free(self, number: int) -> None:
        """Release what an ended tenancy borrowed."""
        for part in self._visited.pop(number).holds:
            del self._lent[part]

    def done(
        self, number: int, node: int, result: BlockResult = NO_RESULT, *, whole: bool = True
    ) -> bool:
        if self.is_dealt(number):  # its words are counted by the tenancies
            return super().done(number, node, BlockResult(bad_lines=result.bad_lines))
        if whole or self.records.holder(number) != node:
            return super().done(number, node, result)
        self._give_back(number)
        self._settled.pop(number, None)
        return True

    def _finish(self, number: int, result: BlockResult) -> None:
        node = self.records.finish(number, result)
        self.records.settle([number], node)
        self._changed = True
        left = self._at(self.chunk_of(number))
        if self.is_tenancy(number):
            self._free(number)
            self._settled.pop(number, None)
            left.undone -= 1
            self._advance()
        else:
            left.undealt -= 1

    def _advance(self) -> None:
        """Close the chunks whose tenancies are all done: only their sums are kept."""
        while self._open_chunks and self._open_chunks[0].parts and not self._open_chunks[0].undone:
            self._closed_tenancies += self._open_chunks.popleft().parts
            self._open += 1
            self.records.forget(self._open * self._stride)
        self._open_more()

    def _open_more(self) -> None:
        """Open chunks up to `CHUNKS_AHEAD` behind the first one."""
        behind = min(self._count, self._open + CHUNKS_AHEAD + 1)
        for chunk in range(self._open_range.stop, behind):
            numbers = self._slices_of(chunk)
            undealt = len(self.records.not_done(numbers.start, numbers.stop))
            self._open_chunks.append(_Chunk(undealt, numbers.start))

    def claim(self, number: int, node: int) -> bool:
        chunk = self.chunk_of(number)
        if chunk not in self._open_range:
            return False
        if number not in self._slices_of(chunk) and number not in self._tenancies_of(chunk):
            return False
        if self.records.is_waiting(number):
            self._lease(number, node)
        return self.records.holder(number) == node

    def release(self, node: int) -> list[int]:
        """Return what a worker has leased and borrowed; the numbers."""
        return self._give_back_all(node)

    def close(self, size: int | None = None) -> None:
        """Nothing more is lent, either."""
        super().close()
        self._changed = True

    # --- visiting parts --------------------------------------------------------------------------

    def visits_of(self, number: int) -> int:
        """Visiting parts of a tenancy."""
        return self.rotation.visits(self._at(self.chunk_of(number)).parts)

    def borrow(self, number: int, node: int) -> int | None:
        visited = self._visits(number, node)
        visiting = self.visits_of(number)
        if len(visited.had) == visiting:
            return NO_PART
        if self._closed:
            return NO_MORE
        begin = VISITING_PER_PART * self._part(number)
        for step in range(visiting):
            part = (begin + step) % visiting
            if part not in visited.had and part not in self._lent:
                self._lend(number, part)
                return part
        return None

    def _visits(self, number: int, node: int) -> _Visited:
        visited = self._visited.get(number)
        if visited is None or self.records.holder(number) != node:
            raise LookupError(f"tenancy {number} is not leased to worker {node}")
        return visited

    def _lend(self, number: int, part: int) -> None:
        visited = self._visited[number]
        visited.had.add(part)
        visited.holds.add(part)
        self._lent[part] = number

    def give_back(self, number: int, node: int, part: int) -> bool:
        visited = self._visited.get(number)
        if visited is None or self.records.holder(number) != node or part not in visited.holds:
            return False
        visited.holds.discard(part)
        del self._lent[part]
        return True

    def settle_visits(self, number: int, node: int) -> list[int]:
        """Make what a leased tenancy has returned durable; returns the parts that were not. If this
        worker is lost, the next holder of the tenancy skips the durable parts."""
        visited, settled = self._visits(number, node), self._settled.setdefault(number, set())
        new = visited.had - visited.holds - settled
        settled |= new
        return sorted(new)

    def know_visits(self, number: int, parts: Collection[int]) -> bool:
        """Adopt visits that were durable under an earlier master; False if the tenancy is done."""
        chunk = self.chunk_of(number)
        if chunk not in self._open_range or number not in self._tenancies_of(chunk):
            return False
        if self.records.is_done(number):
            return False
        self._settled.setdefault(number, set()).update(
            part for part in parts if 0 <= part < self.visits_of(number)
        )
        return True

    def claim_all(
        self, node: int, numbers: Iterable[int], visits: Iterable[Mapping[str, Any]]
    ) -> None:
        """A part of a chunk may be unknown here: the journal has it, if its machine lives."""
        known = [visited for visited in visits if self.is_tenancy(visited["number"])]
        for visited in known:
            self.decide(self.chunk_of(visited["number"]), visited["parts"])
        super().claim_all(node, numbers, ())
        for visited in known:
            # Else it is done: the lost master had noted that, and not answered.
            if self.records.holder(visited["number"]) == node:
                self.claim_visits(visited["number"], node, visited["had"], visited["holds"])

    def claim_visits(
        self, number: int, node: int, had: Collection[int], holds: Collection[int]
    ) -> None:
        """Adopt what a tenancy had and holds, as reported by a worker that came back. LookupError
        if it is not leased to the worker, or another one holds such a part."""
        visited = self._visits(number, node)
        if not (set(holds) <= set(had) <= set(range(self.visits_of(number)))):
            raise LookupError(f"tenancy {number} has {self.visits_of(number)} visiting parts")
        for part in holds:
            if self._lent.get(part, number) != number:
                raise LookupError(f"visiting part {part} is lent to another tenancy")
        visited.had |= set(had)
        for part in holds:
            self._lend(number, part)

    # --- workers ---------------------------------------------------------------------------------

    def join(self, node: int) -> None:
        self._workers.setdefault(node)
        self._changed = True

    def leave(self, node: int) -> None:
        """A worker finishes what it has leased; its part has no owner."""
        self._workers.pop(node, None)
        part = self._own.pop(node, None)
        if part is not None:
            del self._owners[part]
        self._changed = True

    def blame(self, node: int) -> int:
        """Count what the worker trained and what it dealt: either may have cost it."""
        held = self.records.held_by(node)
        slices = [number for number in held if self.is_dealt(number)]
        tenancies = [number for number in held if self.is_tenancy(number)]
        suspects = [*slices[:1], *tenancies[:1]]
        guilty = [
            number for number in suspects if self.count_loss(number) >= self.losses_max(number)
        ]
        return guilty[0] if guilty else -1

    def losses_max(self, number: int) -> int:
        return TENANCY_LOSSES_MAX if self.is_tenancy(number) else LOSSES_MAX

    # --- waits -----------------------------------------------------------------------------------

    def wait_of(self, node: int) -> Wait:
        """The workers that hold what must be done before this one gets an entry."""
        if self._closed or self._open == self._count:
            return super().wait_of(node)
        own = self._own.get(node)
        chunk = self._open
        while (
            own is not None
            and chunk + 1 in self._open_range
            and not self._at(chunk).undealt
            and not self.records.is_waiting(self._number(chunk, own))
        ):
            chunk += 1  # where its own part is next
        if self._at(chunk).undealt:
            late = self._holders(self._slices_of(chunk))
            return Wait.for_some(late or (ANY_WORKER,), f"deal a slice of chunk {chunk}")
        tenancies = self._tenancies_of(self._open)
        late = self._holders(tenancies) - {node}
        if late:
            return Wait.for_some(late, f"finish chunk {self._open}")
        for number in tenancies:
            part = self._part(number)
            if self.records.is_waiting(number):
                owner = self._owners.get(part, ANY_WORKER)
                return Wait((owner,), f"take part {part} of chunk {self._open}")
        return super().wait_of(node)

    def _holders(self, numbers: range) -> set[int]:
        """Workers that have leased entries of a range."""
        found = {self.records.holder(number) for number in numbers}
        return found - {0}

    def wait_of_borrow(self, number: int, node: int) -> Wait | None:
        visited = self._visited.get(number)
        if visited is None or self.records.holder(number) != node or visited.holds:
            return None
        had = visited.had
        part = min((part for part in self._lent if part not in had), default=NO_PART)
        if part == NO_PART:
            return Wait((MASTER,), "have a lost worker fenced")
        return Wait((self.records.holder(self._lent[part]),), f"give back part {part}")

    # --- state -----------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """All tenancies are done, or no more are wanted and none is leased."""
        return not self.records.leased and (self._closed or self._open == self._count)

    @property
    def size(self) -> int:
        """Entries in all, if no worker comes or goes."""
        now, behind = self._parts_now(), self._count - self._open_range.stop
        parts = [left.parts or now for left in self._open_chunks]
        return self._size + self._closed_tenancies + sum(parts) + behind * now

    @property
    def progress(self) -> float:
        """Share of all bytes, from the tenancies of a chunk and the visits of a tenancy."""
        done = float(self._bytes_before(self._open))
        for chunk in self._open_range:
            parts = self._at(chunk).parts
            if parts:
                trained = float(parts - self._at(chunk).undone)
                for number in self._tenancies_of(chunk):
                    visited = self._visited.get(number)
                    given = len(self._settled.get(number, ()))
                    if visited is not None:
                        given = len(visited.had) - len(visited.holds)
                    trained += given / self.rotation.visits(parts)
                done += trained / parts * self._chunk_bytes(chunk)
        return min(1.0, done / self._total_bytes)

    def _chunk_bytes(self, chunk: int) -> int:
        return self._bytes_before(chunk + 1) - self._bytes_before(chunk)

    def share(self, numbers: Collection[int] | NDArray[np.int64]) -> float:
        """Share of all bytes of the closed chunks, and of these tenancies of open ones. Numbers
        count from the first open chunk, as in `settled`."""
        done = float(self._bytes_before(self._open))
        for number in numbers:
            if self.is_tenancy(number):
                chunk = self._open + self.chunk_of(number)
                done += self._chunk_bytes(chunk) / self._at(chunk).parts
        return min(1.0, done / self._total_bytes)

    # --- what is kept of it ----------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        return {"chunks": self.rotation.chunks, "parts_max": self.parts_max}

    def plan(self) -> dict[str, Any]:
        return {**asdict(self.rotation), "extent": self.extent}

    @property
    def extent(self) -> dict[str, Any]:
        """Open chunks, and what is known of closed ones; values for JSON."""
        return {
            "open": self._open,
            "tenancies": self._closed_tenancies,
            "parts_max": self.parts_max,
            "parts": [left.parts for left in self._open_chunks],
        }

    def settled(self, clock: int = -1) -> NDArray[Any]:
        """`OUTCOME` of each entry from the first open chunk on, for a checkpoint: without slices.
        The rows of a checkpoint are copied after its records: meanwhile the last tenancy of a chunk
        may end, and the rows of its slices be overwritten by those of a later chunk."""
        found = self.records.settled()
        found[np.arange(len(found)) % self._stride < self._slices_most] = 0
        return found

    def bad_lines(self) -> int:
        """Bad lines of the first epoch in slices that a checkpoint does not include."""
        return sum(
            self.records.result(number).bad_lines
            for chunk in self._open_range
            if chunk < self._chunks
            for number in self._slices_of(chunk)
            if self.records.is_done(number)
        )

    def snapshot(self) -> dict[str, Any]:
        return {
            **super().snapshot(),
            "workers": sorted(self._workers),
            "owners": sorted(self._owners.items()),
            "visits": [[number, sorted(parts)] for number, parts in self._settled.items()],
        }

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        super().resume(snapshot)
        self._workers = dict.fromkeys(int(node) for node in snapshot["workers"])
        self._owners = {int(part): int(node) for part, node in snapshot["owners"]}
        self._own = {node: part for part, node in self._owners.items()}
        for number, parts in snapshot["visits"]:
            self.know_visits(int(number), [int(part) for part in parts])
