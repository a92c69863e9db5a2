"""The ledger of a rotation: slices that are dealt, then tenancies that borrow visiting parts.

    chunk -> slices (a worker each) -> all done -> tenancies (chunk, part), each sticky to a worker
    tenancy -> borrow -> visiting part that no other holds -> give_back -> ... -> all had: done

A policy over the records of `Ledger`, and the holders of visiting parts.  No files, sockets or
time.  What a model sees of it is in `api/rotation.py`, why it is so in docs/design/rotation.md.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
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
from snailps.master.leases.records import BlockRecords, BlockResult

CHUNKS_AHEAD = 2
"""Slices are dealt so far ahead of the first chunk with tenancies left: their rows are those of
three chunks, so that what is dealt overwrites a chunk that is trained."""
TENANCIES_MAX = 2
"""Of one worker: one that trains, one that is prepared."""
TENANCY_LOSSES_MAX = 10
"""In the place of `LOSSES_MAX`: a tenancy lasts far longer than a block, so chance hits it more."""
NO_PART = -1
"""In the place of a part: the tenancy has had all of them."""


@dataclass(slots=True)
class _Visited:
    """The visiting parts of a leased tenancy: all that it had, and those that it holds."""

    had: set[int] = field(default_factory=set)
    holds: set[int] = field(default_factory=set)


class RotationLedger(Ledger):
    """Slices and tenancies of one chunk after the other.

    Parameters
    ----------
    blocks, epochs, known
        As of `Ledger`.
    rotation : Rotation
        At most as many chunks as blocks.
    nodes : sequence of int
        The workers.
    parts : sequence of int
        Parts of the first chunks, where an earlier run has decided them.
    known_epochs : int
        How often each block was to be trained then, which decides the numbers of tenancies; 0: the
        same.
    anew : bool
        `known` is of a checkpoint: slices of chunks that are not finished are dealt once more.

    Notes
    -----
    Entry ``e * len(blocks) + b`` deals block b in epoch e; behind all of those, entry ``chunk *
    most_parts + part`` is a tenancy.  Chunk k is the ``k % chunks``-th piece of the blocks of epoch
    ``k // chunks``.  It has as many parts as there are workers when its first tenancy is leased, at
    most `most_parts`; `decided` tells of it once.

    A tenancy (k, i) is leased when all slices of k are done, and (k - 1, i) is done or held by the
    same worker; where the parts of k and k - 1 differ, when all tenancies of k - 1 are done.  So no
    part has two writers.  An entry is settled once it is done: a worker reports it with all pushes
    acknowledged.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        epochs: int,
        rotation: Rotation,
        known: NDArray[Any] | None = None,
        *,
        nodes: Sequence[int],
        parts: Sequence[int] = (),
        known_epochs: int = 0,
        anew: bool = False,
    ) -> None:
        super().__init__(blocks, epochs)
        self.rotation = rotation
        self._chunks = rotation.chunks  # of an epoch
        self._most = rotation.most_parts
        self._count = epochs * self._chunks
        self._slices = self._next = self._size  # nothing is leased in the order of `Ledger`
        count = len(self._blocks)
        self._starts = [chunk * count // self._chunks for chunk in range(self._chunks + 1)]
        self._parts = [0] * self._count
        self._parts[: len(parts)] = parts[: self._count]
        self._workers = dict.fromkeys(nodes)
        self._owners: dict[int, int] = {}  # part -> the worker that keeps its rows
        self._own: dict[int, int] = {}  # the reverse
        self._visited: dict[int, _Visited] = {}
        self._lent: dict[int, int] = {}  # visiting part -> tenancy
        self._decided: list[tuple[int, int]] = []
        self._changed = True
        self.records = BlockRecords(self._slices + self._count * self._most)
        if known is not None:
            known = self._renumbered(known, count * (known_epochs or epochs))
            self.records.resume(self._less_dealt(known) if anew else known)
        self._recount()

    # --- numbers -------------------------------------------------------------------------------

    def is_tenancy(self, number: int) -> bool:
        """Whether a number is that of a tenancy."""
        return number >= self._slices

    def chunk_of(self, number: int) -> int:
        """The chunk of an entry."""
        if number >= self._slices:
            return (number - self._slices) // self._most
        epoch, block = divmod(number, len(self._blocks))
        return epoch * self._chunks + bisect_right(self._starts, block) - 1

    def _slices_of(self, chunk: int) -> tuple[int, int]:
        """Numbers of the first slice of a chunk, and behind the last one."""
        epoch, place = divmod(chunk, self._chunks)
        base = epoch * len(self._blocks)
        return base + self._starts[place], base + self._starts[place + 1]

    def _tenancies_of(self, chunk: int) -> range:
        """Numbers of the tenancies of a chunk, as far as its parts are decided."""
        first = self._slices + chunk * self._most
        return range(first, first + self._parts[chunk])

    def _bytes_before(self, chunk: int) -> int:
        epoch, place = divmod(chunk, self._chunks)
        return epoch * self._epoch_bytes + self._before[self._starts[place]]

    def entry(self, number: int) -> Entry:
        """A slice or a tenancy; of the latter `before` and `after` are those of its chunk."""
        chunk = self.chunk_of(number)
        start, stop = self._slices_of(chunk)
        if number < self._slices:
            one = super().entry(number)
            return Entry(
                number, one.block, one.epoch, one.before, one.after,
                chunk=chunk, slice=number - start, slices=stop - start,
            )  # fmt: skip
        parts = self._parts[chunk]
        return Entry(
            number,
            Block(self._starts[chunk % self._chunks], "", 0, 0),
            chunk // self._chunks,
            self._bytes_before(chunk) / self._total_bytes,
            self._bytes_before(chunk + 1) / self._total_bytes,
            chunk=chunk,
            slices=stop - start,
            part=(number - self._slices) % self._most,
            parts=parts,
            visiting=VISITING_PER_PART * parts,
        )

    def epochs_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """As of `Ledger`."""
        tenancies = (numbers - self._slices) // self._most // self._chunks
        return np.where(numbers < self._slices, numbers // len(self._blocks), tenancies)

    @property
    def epoch(self) -> int:
        """As of `Ledger`: of the first chunk with tenancies left."""
        return self._open // self._chunks

    def piece(self, number: int) -> Block | None:
        """As of `Ledger`: of a slice."""
        return super().piece(number) if number < self._slices else None

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
        held = sum(number >= self._slices for number in self.records.held_by(node))
        if held >= TENANCIES_MAX:
            return -1
        for chunk in range(self._open, self._count):
            parts = self._parts[chunk] or self._parts_now()
            if self._undealt[chunk] or not self._follows(chunk, parts):
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
        return max(1, min(len(self._workers), self._most))

    def _follows(self, chunk: int, parts: int) -> bool:
        """Whether tenancies of a chunk, with so many parts, may begin beside those before."""
        return chunk == self._open or self._parts[chunk - 1] == parts

    def _number(self, chunk: int, part: int) -> int:
        return self._slices + chunk * self._most + part

    def _is_free(self, chunk: int, part: int, node: int) -> bool:
        """Whether a tenancy may be leased to a worker."""
        if not self.records.is_waiting(self._number(chunk, part)):
            return False
        if chunk == self._open:
            return True
        before = self._number(chunk - 1, part)
        return self.records.is_done(before) or self.records.holder(before) == node

    def _slice_for(self) -> int:
        """The next slice to deal; -1: none at present."""
        for chunk in range(self._open, min(self._count, self._open + CHUNKS_AHEAD + 1)):
            _, stop = self._slices_of(chunk)
            for number in range(self._slice_from[chunk], stop):
                if self.records.is_waiting(number):
                    self._slice_from[chunk] = number
                    return number
            self._slice_from[chunk] = stop
        return -1

    def _lease(self, number: int, node: int) -> None:
        super()._lease(number, node)
        if number < self._slices:
            return
        chunk, part = divmod(number - self._slices, self._most)
        if not self._parts[chunk]:
            self.decide(chunk, self._parts_now())
            self._decided.append((chunk, self._parts[chunk]))
        self._visited[number] = _Visited()
        if node not in self._own and part not in self._owners:
            self._own[node], self._owners[part] = part, node

    def decide(self, chunk: int, parts: int) -> None:
        """So many parts has a chunk."""
        if not 0 <= chunk < self._count or self._parts[chunk] or not 0 < parts <= self._most:
            return
        self._parts[chunk] = self._undone[chunk] = parts
        for part in [part for part in self._owners if part >= parts]:
            del self._own[self._owners.pop(part)]

    def decided(self) -> list[tuple[int, int]]:
        """Chunk and parts, of those decided here since the last call."""
        decided, self._decided = self._decided, []
        return decided

    def _give_back(self, number: int) -> None:
        super()._give_back(number)
        self._changed = True
        if number < self._slices:
            chunk = self.chunk_of(number)
            self._slice_from[chunk] = min(number, self._slice_from[chunk])
        else:
            self._free(number)

    def _free(self, number: int) -> None:
        """A tenancy is not leased any more: what it borrowed is lent to others."""
        for part in self._visited.pop(number).holds:
            del self._lent[part]

    def cut(self, number: int, node: int) -> bool:
        """A tenancy has ended before it had all parts; False if it is not leased to this worker."""
        if self.records.holder(number) != node or number < self._slices:
            return False
        self._give_back(number)
        return True

    def _finish(self, number: int, result: BlockResult) -> None:
        node = self.records.finish(number, result)
        self.records.settle([number], node)
        self._changed = True
        chunk = self.chunk_of(number)
        if number < self._slices:
            self._undealt[chunk] -= 1
        else:
            self._free(number)
            self._undone[chunk] -= 1
            self._advance()

    def _advance(self) -> None:
        """Steps over chunks whose tenancies are all done."""
        while self._open < self._count and self._parts[self._open] and not self._undone[self._open]:
            self._open += 1

    def claim(self, number: int, node: int) -> bool:
        """As of `Ledger`."""
        if not 0 <= number < self._slices + self._count * self._most:
            return False
        if number >= self._slices and number not in self._tenancies_of(self.chunk_of(number)):
            return False
        if self.records.is_waiting(number):
            self._lease(number, node)
        return self.records.holder(number) == node

    def release(self, node: int) -> list[int]:
        """Takes back what a worker has leased and borrowed; returns the numbers."""
        return self._give_back_all(node)

    def close(self) -> None:
        """As of `Ledger`; nothing more is lent, either."""
        super().close()
        self._changed = True

    # --- visiting parts --------------------------------------------------------------------------

    def visits_of(self, number: int) -> int:
        """Visiting parts of a tenancy."""
        return VISITING_PER_PART * self._parts[self.chunk_of(number)]

    def borrow(self, number: int, node: int) -> int | None:
        """Lends a tenancy its next part; None: others hold all that it lacks.

        `NO_PART`: it has had all, or the ledger is closed.

        Raises
        ------
        LookupError
            The worker does not hold this tenancy.
        """
        visited = self._visits(number, node)
        visiting, parts = self.visits_of(number), self._parts[self.chunk_of(number)]
        if self._closed or len(visited.had) == visiting:
            return NO_PART
        begin = (number - self._slices) % self._most * visiting // parts
        for step in range(visiting):
            part = (begin + step) % visiting
            if part not in visited.had and part not in self._lent:
                self._lend(number, part)
                return part
        return None

    def has_had_all(self, number: int) -> bool:
        """Whether a leased tenancy has had, or holds, all its visiting parts."""
        return len(self._visited[number].had) == self.visits_of(number)

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
        """Takes a part back; False if the worker does not hold it for this tenancy."""
        visited = self._visited.get(number)
        if visited is None or self.records.holder(number) != node or part not in visited.holds:
            return False
        visited.holds.discard(part)
        del self._lent[part]
        return True

    def claim_visits(
        self, number: int, node: int, had: Collection[int], holds: Collection[int]
    ) -> None:
        """A worker that came back reports what a tenancy had and holds.

        Raises
        ------
        LookupError
            It is not leased to the worker, or another one holds such a part.
        """
        visited = self._visits(number, node)
        if not (set(holds) <= set(had) <= set(range(self.visits_of(number)))):
            raise LookupError(f"tenancy {number} has {self.visits_of(number)} visiting parts")
        for part in holds:
            if self._lent.get(part, number) != number:
                raise LookupError(f"visiting part {part} is lent to another tenancy")
        visited.had |= set(had)
        for part in holds:
            self._lend(number, part)

    def lacks_part(self, number: int, node: int) -> bool:
        """Whether a worker has leased a tenancy, and holds no visiting part for it."""
        visited = self._visited.get(number)
        return visited is not None and self.records.holder(number) == node and not visited.holds

    # --- workers ---------------------------------------------------------------------------------

    def join(self, node: int) -> None:
        """A worker takes part from now on."""
        self._workers.setdefault(node)
        self._changed = True

    def leave(self, node: int) -> None:
        """A worker finishes what it has leased; its part has no owner."""
        self._workers.pop(node, None)
        part = self._own.pop(node, None)
        if part is not None:
            del self._owners[part]
        self._changed = True

    def retire(self, node: int) -> list[int]:
        """As of `Ledger`."""
        self.leave(node)
        return self.release(node)

    def blame(self, node: int) -> int:
        """Counts what the worker trained and what it dealt: either may have cost it."""
        held = self.records.held_by(node)
        slices = [number for number in held if number < self._slices]
        suspects = [*slices[:1], *held[len(slices) :][:1]]
        guilty = [
            number for number in suspects if self.count_loss(number) >= self.losses_max(number)
        ]
        return guilty[0] if guilty else -1

    def losses_max(self, number: int) -> int:
        """As of `Ledger`."""
        return LOSSES_MAX if number < self._slices else TENANCY_LOSSES_MAX

    # --- waits -----------------------------------------------------------------------------------

    def wait_of(self, node: int) -> Wait:
        """The workers that hold what must be done before this one gets an entry."""
        if self._closed or self._open == self._count:
            return super().wait_of(node)
        own = self._own.get(node)
        chunk = self._open
        while (
            own is not None
            and chunk + 1 < self._count
            and not self._undealt[chunk]
            and not self.records.is_waiting(self._number(chunk, own))
        ):
            chunk += 1  # where its own part is next
        if self._undealt[chunk]:
            late = self._holders(*self._slices_of(chunk))
            if late or chunk <= self._open + CHUNKS_AHEAD:
                return Wait.for_some(late or (ANY_WORKER,), f"deal a slice of chunk {chunk}")
        tenancies = self._tenancies_of(self._open)
        late = self._holders(tenancies.start, tenancies.stop) - {node}
        if late:
            return Wait.for_some(late, f"finish chunk {self._open}")
        for number in tenancies:
            part = (number - self._slices) % self._most
            if self.records.is_waiting(number):
                owner = self._owners.get(part, ANY_WORKER)
                return Wait((owner,), f"take part {part} of chunk {self._open}")
        return super().wait_of(node)

    def _holders(self, start: int, stop: int) -> set[int]:
        """Workers that have leased entries of a range."""
        found = {self.records.holder(number) for number in range(start, stop)}
        return found - {0}

    def wait_of_borrow(self, number: int) -> Wait:
        """The workers that hold the visiting parts that a tenancy waits for."""
        had = self._visited[number].had
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
        now = self._parts_now()
        return self._slices + sum(parts or now for parts in self._parts)

    @property
    def progress(self) -> float:
        """Share of all bytes: of a chunk those of its tenancies, of these those of their visits."""
        done = float(self._bytes_before(self._open))
        for chunk in range(self._open, min(self._count, self._open + CHUNKS_AHEAD + 1)):
            parts = self._parts[chunk]
            if parts:
                trained = float(parts - self._undone[chunk])
                for number in self._tenancies_of(chunk):
                    visited = self._visited.get(number)
                    if visited is not None:
                        given = len(visited.had) - len(visited.holds)
                        trained += given / (VISITING_PER_PART * parts)
                done += trained / parts * self._chunk_bytes(chunk)
        return min(1.0, done / self._total_bytes)

    def _chunk_bytes(self, chunk: int) -> int:
        return self._bytes_before(chunk + 1) - self._bytes_before(chunk)

    def share(self, numbers: Collection[int] | NDArray[np.int64]) -> float:
        """Share of all bytes that these entries are: tenancies, of their chunks."""
        all_ = np.asarray(numbers, np.int64)
        chunks = (all_[all_ >= self._slices] - self._slices) // self._most
        done = math.fsum(
            times / self._parts[chunk] * self._chunk_bytes(chunk)
            for chunk, times in enumerate(np.bincount(chunks).tolist())
            if times
        )
        return min(1.0, done / self._total_bytes)

    def snapshot(self) -> dict[str, Any]:
        """As of `Ledger`."""
        return {
            **super().snapshot(),
            "parts": self.parts,
            "workers": sorted(self._workers),
            "owners": sorted(self._owners.items()),
        }

    @property
    def parts(self) -> list[int]:
        """Parts of the first chunks, as far as they are decided."""
        last = max((chunk for chunk, parts in enumerate(self._parts) if parts), default=-1)
        return self._parts[: last + 1]

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """As of `Ledger`."""
        super().resume(snapshot)
        self._parts = [0] * self._count
        self._parts[: len(snapshot["parts"])] = [int(parts) for parts in snapshot["parts"]]
        self._workers = dict.fromkeys(int(node) for node in snapshot["workers"])
        self._owners = {int(part): int(node) for part, node in snapshot["owners"]}
        self._own = {node: part for part, node in self._owners.items()}
        self._recount()

    def _recount(self) -> None:
        """What follows from the records and the parts."""
        slices = np.zeros(self._count, np.int64)
        chunks = range(self._count)
        for chunk in chunks:
            slices[chunk] = len(self.records.not_done(*self._slices_of(chunk)))
        self._undealt: list[int] = slices.tolist()
        self._undone = [self._not_done(self._tenancies_of(chunk)) for chunk in chunks]
        self._slice_from = [self._slices_of(chunk)[0] for chunk in chunks]
        self._open = 0
        self._advance()

    def _not_done(self, numbers: range) -> int:
        return len(self.records.not_done(numbers.start, numbers.stop))

    def _renumbered(self, known: NDArray[Any], slices: int) -> NDArray[Any]:
        """Records of a run with so many slices, with the numbers that they have here."""
        if slices == self._slices:
            return known
        moved = np.zeros(self._slices + max(0, len(known) - slices), known.dtype)
        kept = min(slices, self._slices, len(known))
        moved[:kept] = known[:kept]
        moved[self._slices :] = known[slices:]
        return moved

    def _less_dealt(self, known: NDArray[Any]) -> NDArray[Any]:
        """Records without the slices of chunks that are not finished.

        The rows of a checkpoint are copied after its records: meanwhile the last tenancy of a chunk
        may end, and the rows of its slices be overwritten by those of a later chunk.
        """
        kept: NDArray[Any] = known.copy()
        states = np.zeros(self._slices + self._count * self._most, np.uint32)
        states[: len(known)] = known["state"][: len(states)]
        for chunk in range(self._count):
            numbers = self._tenancies_of(chunk)
            if not len(numbers) or not states[numbers.start : numbers.stop].all():
                start, stop = self._slices_of(chunk)
                kept[start:stop] = np.zeros(1, kept.dtype)
        return kept
