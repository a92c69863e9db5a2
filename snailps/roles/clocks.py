"""Books of leases that keep workers in step: bounded staleness, synchronous steps, rounds.

    Dealt     every n-th entry is one worker's own; nobody gets far ahead of the slowest  (ssp)
    Stepped   entry -> (clock, slot); a clock is complete when all of its slots are done   (bsp)
    Rounds    one entry a drawn worker and round; a round is closed by the master

Each is a `Ledger`, so whoever leases need not know which.  Pure bookkeeping: no files, no sockets,
no time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

import numpy as np

from snailps.data.blocks import Block
from snailps.roles.ledger import ANYBODY, MASTER, Entry, Ledger, Wait

CLOCKS_AHEAD = 2
"""Steps beyond the first unfinished one whose entries may be leased.  A limit that is reached in
step c ends the training with step c + 2, whoever was how fast: it is part of the result."""


class Dealt(Ledger):
    """Entry n belongs to worker n mod W; a worker's clock is how many it has finished.

    Parameters
    ----------
    blocks, epochs, limit, done
        As of `Ledger`.
    nodes : sequence of int
        The workers, at least one.
    staleness : int
        How far a worker may begin an entry ahead of the slowest clock; -1: as far as it likes.

    Notes
    -----
    What a worker that leaves has not begun is dealt to the others; one that comes gets a share of
    what everybody has left, and the slowest clock: it has missed nothing that others wait for.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        epochs: int = 1,
        limit: int = 0,
        done: Collection[int] = (),
        *,
        nodes: Sequence[int],
        staleness: int = -1,
    ) -> None:
        super().__init__(blocks, epochs, limit, done)
        self._staleness = staleness
        self._left: dict[int, deque[int]] = {node: deque() for node in nodes}
        self._clocks = dict.fromkeys(nodes, 0)
        for number in range(self._size):
            if number not in self._done:
                self._left[nodes[number % len(nodes)]].append(number)
        self._next = self._size  # nothing is given but what was dealt
        self.ahead_max = 0

    def take(self, node: int) -> Entry | None:
        """Leases the next of its own entries to a worker, unless it would get too far ahead."""
        mine = self._left.get(node)
        if self._closed or not mine or self._ahead(node):
            return None
        number = mine.popleft()
        self._leases[number] = node
        if len(self._busy()) > 1:
            self.ahead_max = max(self.ahead_max, self._ahead_of(node) - 1)
        return self.entry(number)

    def done(self, number: int, node: int) -> bool:
        """Notes that a worker finished an entry, which moves its clock."""
        if not super().done(number, node):
            return False
        if node in self._clocks:
            self._clocks[node] += 1
        return True

    def _withdraw(self, number: int) -> None:
        for shares in (*self._left.values(), self._back):
            if number in shares:
                shares.remove(number)

    def release(self, node: int) -> list[int]:
        """Takes back what a worker has leased: its own next, while it belongs."""
        before = deque(self._back)
        numbers = super().release(node)
        self._back = before
        if node in self._left:
            self._left[node] = deque(sorted([*self._left[node], *numbers]))
        else:
            self._deal(numbers)
        return numbers

    def join(self, node: int) -> None:
        """Gives a worker that comes its share of what the others have left."""
        if node in self._left:
            return
        clock = self.slowest()[0]
        shares = [list(left) for left in self._left.values()]
        self._left[node] = deque()
        self._clocks[node] = clock
        mine = list(self._back)
        self._back.clear()
        for other, share in zip(list(self._left), shares, strict=False):
            kept = len(share) - len(share) // len(self._left)
            self._left[other] = deque(share[:kept])
            mine += share[kept:]
        self._left[node] = deque(sorted(mine))

    def leave(self, node: int) -> None:
        """Deals what a worker has not begun to the others, who do not wait for it any more."""
        self._clocks.pop(node, None)
        self._deal(self._left.pop(node, deque()))

    def retire(self, node: int) -> list[int]:
        """Deals what a worker has left, leased or not, to the others."""
        self.leave(node)
        return self.release(node)

    @property
    def over(self) -> bool:
        """Nothing left and nothing leased."""
        left = any(self._left.values()) or bool(self._back)
        return not self._leases and (self._closed or not left)

    def slowest(self) -> tuple[int, int]:
        """Slowest clock of all that have something to do, and whose it is (0: nobody's)."""
        busy = self._busy()
        clocks = [(clock, node) for node, clock in self._clocks.items() if node in busy]
        if not clocks:
            return max(self._clocks.values(), default=0), 0
        return min(clocks)

    def clock_of(self, node: int) -> int | None:
        """Entries that a worker has finished; None of one that takes no part."""
        return self._clocks.get(node)

    def wait_of(self, node: int) -> Wait:
        """The slowest worker, where this one is too far ahead."""
        if not (self._left.get(node) and self._ahead(node)):
            return super().wait_of(node)
        clock, slowest = self.slowest()
        if slowest == node:
            return Wait((), "finish")
        return Wait(
            (slowest,),
            f"finish its block {clock + 1}, being at its own block {self._clocks[node] + 1} "
            f"(staleness {self._staleness})",
        )

    def _ahead(self, node: int) -> bool:
        """Whether the next entry of a worker would be too far ahead of the slowest clock."""
        return 0 <= self._staleness < self._ahead_of(node)

    def _ahead_of(self, node: int) -> int:
        """How many clocks ahead of the slowest a worker would be with its next entry."""
        leased = sum(holder == node for holder in self._leases.values())
        return self._clocks[node] + leased - self.slowest()[0]

    def _busy(self) -> set[int]:
        """Workers that have something to do."""
        return {*self._leases.values(), *(node for node, left in self._left.items() if left)}

    def _deal(self, numbers: Collection[int]) -> None:
        """Deals entries to the workers that are left; if there are none, to the next that comes."""
        if not self._left:
            self._back.extend(sorted(numbers))
            return
        nodes = sorted(self._left)
        dealt: dict[int, list[int]] = {node: [] for node in nodes}
        for at, number in enumerate(sorted(numbers)):
            dealt[nodes[at % len(nodes)]].append(number)
        for node, more in dealt.items():
            self._left[node] = deque(sorted([*self._left[node], *more]))


class Stepped(Ledger):
    """Entry n is slot ``n % micro_batches`` of clock ``n // micro_batches``.

    Parameters
    ----------
    blocks, epochs, limit, done
        As of `Ledger`.
    micro_batches : int
        Slots of a clock; the last one may have fewer.
    nodes : sequence of int
        The workers.

    Notes
    -----
    Early clocks are given out first.  But a worker that has a slot of a clock gets a second one
    ahead only where enough are left for those that have none: else one would do them all, and the
    others wait.  What is free of the open clock is given to whoever has nothing of it, so that no
    clock stays open for want of a worker.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        epochs: int = 1,
        limit: int = 0,
        done: Collection[int] = (),
        *,
        micro_batches: int,
        nodes: Sequence[int] = (),
    ) -> None:
        self.micro_batches = micro_batches
        self._open = 0  # the first clock with entries that are not done
        self._ended = self._abandoned = False
        self._nodes = set(nodes)
        self._last: dict[int, int] = {}  # the entry that each worker finished last
        self._free: dict[int, list[int]] = {}  # by clock: those that may be leased, ascending
        self._filled = 0  # clocks below have been there
        super().__init__(blocks, epochs, limit, done)
        self._advance()

    def entry(self, number: int) -> Entry:
        """The entry of a number, with its place in its clock."""
        plain = super().entry(number)
        clock, slot = divmod(number, self.micro_batches)
        return Entry(
            number,
            plain.block,
            plain.epoch,
            plain.before,
            plain.after,
            clock,
            slot,
            min(self.micro_batches, self._size - clock * self.micro_batches),
        )

    def take(self, node: int) -> Entry | None:
        """Leases an entry; None also where what is left is too many clocks ahead."""
        if self._abandoned:
            return None
        held = self._held_by_clock()
        for clock in sorted(self._free):
            others = self._nodes - {node} - held.get(clock, set())
            if node not in held.get(clock, ()) or len(self._free[clock]) > len(others):
                return self._give(clock, node)
        return None

    def _withdraw(self, number: int) -> None:
        clock = number // self.micro_batches
        left = [n for n in self._free.pop(clock, ()) if n != number]
        if left:
            self._free[clock] = left

    def take_back(self, node: int) -> Entry | None:
        """Leases a free entry of an earlier clock than all that a worker holds and waits for."""
        first = min(self._free, default=-1)
        held = [number // self.micro_batches for number, at in self._leases.items() if at == node]
        if self._abandoned or first < 0 or (held and first >= min(held)):
            return None
        return self._give(first, node)

    def done(self, number: int, node: int) -> bool:
        """Notes that a worker has pushed all of an entry, and seals it next."""
        if not super().done(number, node):
            return False
        self._last[node] = number
        self._advance()
        return True

    def last_of(self, node: int) -> Entry | None:
        """What a worker finished last: it may not have sealed that at every shard."""
        number = self._last.get(node)
        return None if number is None else self.entry(number)

    def release(self, node: int) -> list[int]:
        """Takes back what a node has leased, to be given out first; returns the numbers."""
        numbers = super().release(node)
        self._back.clear()
        for number in numbers:
            free = self._free.setdefault(number // self.micro_batches, [])
            free.append(number)
            free.sort()
        return numbers

    def join(self, node: int) -> None:
        """A worker takes part from now on."""
        self._nodes.add(node)

    def leave(self, node: int) -> None:
        """A worker finishes what it is at and takes nothing more."""
        self._nodes.discard(node)

    def retire(self, node: int) -> list[int]:
        """A worker takes part no more; returns the numbers of what it had leased."""
        self.leave(node)
        return self.release(node)

    def close(self) -> None:
        """Ends with the last clock of which anything is leased or done: no clock stays half."""
        self.end_after(max((*self._leases, *self._done), default=-1) // self.micro_batches)

    def end_after(self, clock: int) -> None:
        """Ends the training with a clock, which no later one may have been leased from."""
        self._ended = True
        self._size = min(self._size, (clock + 1) * self.micro_batches)
        self._free = {at: free for at, free in self._free.items() if at <= clock}

    def abandon(self, node: int) -> None:
        """Does not wait for a worker any more; the clock that it held up is never applied."""
        self._leases = {n: holder for n, holder in self._leases.items() if holder != node}
        self._abandoned = True

    @property
    def closed(self) -> bool:
        """`close` was called."""
        return self._ended

    @property
    def drops(self) -> bool:
        """Never: what is leased is part of a clock."""
        return False

    @property
    def over(self) -> bool:
        """Every clock complete, or given up."""
        return not self._leases and (self._abandoned or self.finished >= self._size)

    @property
    def open_clock(self) -> int:
        """The first clock with entries that are not done."""
        return self._open

    def missing(self) -> list[tuple[int, int]]:
        """Slots of the open clock that are not done: slot, and who holds it (`ANYBODY`: nobody)."""
        return [
            (number % self.micro_batches, self._leases.get(number, ANYBODY))
            for number in self._numbers_of(self._open)
            if number not in self._done
        ]

    def wait_of(self, node: int) -> Wait:
        """What is missing of the open clock."""
        slots = [(slot, holder) for slot, holder in self.missing() if holder != node]
        if not slots:
            return super().wait_of(node)
        named = ", ".join(f"{slot}" for slot, _ in slots[:4]) + ", ..." * (len(slots) > 4)
        plural = "s" * (len(slots) > 1)
        return Wait(
            tuple(sorted({holder for _, holder in slots})),
            f"finish slot{plural} {named} of clock {self._open}",
        )

    def clock_of(self, node: int) -> int | None:
        """The clock of the first entry that a worker holds."""
        held = [number for number, holder in self._leases.items() if holder == node]
        return min(held) // self.micro_batches if held else None

    def held_up(self, node: int) -> Wait | None:
        """The same, where this worker holds entries of later clocks only."""
        held = [number for number, holder in self._leases.items() if holder == node]
        if not held or min(held) // self.micro_batches <= self._open:
            return None
        return self.wait_of(node)

    def _numbers_of(self, clock: int) -> range:
        return range(clock * self.micro_batches, min(self._size, (clock + 1) * self.micro_batches))

    def _advance(self) -> None:
        """Notes which clock is open now, and what may be leased."""
        while (numbers := self._numbers_of(self._open)) and self._done.issuperset(numbers):
            self._open += 1
        while self._filled <= self._open + CLOCKS_AHEAD:
            known = self._done | self._leases.keys()
            free = [n for n in self._numbers_of(self._filled) if n not in known]
            if free:
                self._free[self._filled] = free
            self._filled += 1

    def _give(self, clock: int, node: int) -> Entry:
        number = self._free[clock].pop(0)
        if not self._free[clock]:
            del self._free[clock]
        self._leases[number] = node
        return self.entry(number)

    def _held_by_clock(self) -> dict[int, set[int]]:
        """Who holds something of each clock."""
        held: dict[int, set[int]] = {}
        for number, node in self._leases.items():
            held.setdefault(number // self.micro_batches, set()).add(node)
        return held


class Rounds(Ledger):
    """A round at a time, an entry for each worker that is drawn for it.

    Parameters
    ----------
    rounds : int
        At most so many.
    nodes : sequence of int
        The workers; the i-th has index i.
    fraction : float
        Share of the present workers that is drawn for a round.
    seed : int
    first : int
        Round to begin with; an earlier run has done those before.

    Notes
    -----
    Entry ``r * W + i`` is round r of index i.  A worker that is lost leaves its index, and the
    round goes on without it; one that comes takes a free index.  A round is over (`ready`) when all
    that were drawn are done or void; then the master closes it at the shards and calls `advance`.
    """

    def __init__(
        self,
        rounds: int,
        nodes: Sequence[int],
        fraction: float = 1.0,
        seed: int = 1,
        first: int = 0,
    ) -> None:
        super().__init__([Block(0, "", 0, 1)])
        self._rounds, self._width = rounds, len(nodes)
        self._fraction, self._seed = fraction, seed
        self._index = {node: index for index, node in enumerate(nodes)}
        self.round = first
        self._counted = 0
        self._voided: set[int] = set()  # entries of this and of earlier rounds, while leased
        self._begin()

    def entry(self, number: int) -> Entry:
        """The entry of a number of the present round, or of an earlier one."""
        round_, index = divmod(number, self._width)
        slot = self._drawn.index(index) if index in self._drawn and round_ == self.round else 0
        return Entry(
            number,
            Block(index, "", 0, 0),
            round_,
            round_ / self._rounds,
            (round_ + 1) / self._rounds,
            round_,
            slot,
            len(self._drawn),
            index,
        )

    def take(self, node: int) -> Entry | None:
        """Leases its part of the round to a worker that is drawn and has not had it yet."""
        index = self._index.get(node, -1)
        if self._closed or index not in self._waiting:
            return None
        self._waiting.remove(index)
        number = self.round * self._width + index
        self._leases[number] = node
        return self.entry(number)

    def done(self, number: int, node: int) -> bool:
        """Notes that a worker has sealed its part; False also for a part that was void."""
        if number in self._voided or self._leases.get(number) != node:
            self._voided.discard(number)
            return False
        del self._leases[number]
        self._parts.append(self._drawn.index(number % self._width))
        self._counted += 1
        return True

    def claim(self, number: int, node: int) -> bool:
        """Leases this very part to a worker; what is of an earlier or a closed round is void."""
        if self._leases.get(number) == node:
            return True
        round_, index = divmod(number, self._width)
        if round_ != self.round or index not in self._waiting:
            if round_ < self.round or index not in (self._drawn[slot] for slot in self._parts):
                self._voided.add(number)
            return False
        self._waiting.remove(index)
        self._leases[number] = node
        return True

    def only(self, parts: Sequence[int]) -> None:
        """The round is being closed with these slots, which are done: nothing else of it counts."""
        self._parts[:] = parts
        self._waiting.clear()
        self._voided.update(self._leases)
        self._leases.clear()

    def is_void(self, number: int) -> bool:
        """Whether a part came too late to count."""
        return number in self._voided

    def release(self, node: int) -> list[int]:
        """A worker's part of the round is void: nobody else has its data."""
        numbers = sorted(n for n, holder in self._leases.items() if holder == node)
        for number in numbers:
            del self._leases[number]
        return numbers

    def join(self, node: int) -> None:
        """Takes a free index, if there is one; without, it waits for one."""
        free = sorted(set(range(self._width)) - set(self._index.values()))
        if node not in self._index and free:
            self._index[node] = free[0]
            if not (self._leases or self._waiting or self._parts):
                self._begin()

    def leave(self, node: int) -> None:
        """Asks nothing more of a worker than what it is at."""
        self._waiting.discard(self._index.pop(node, -1))

    def retire(self, node: int) -> list[int]:
        """Takes a worker out of the round and of those to come."""
        self.leave(node)
        numbers = self.release(node)
        if not (self._leases or self._waiting or self._parts):  # none of them is left
            self._begin()
        return numbers

    # --- rounds ------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Everybody that was drawn, and is still here, is done; at least one."""
        return bool(self._parts) and not self._leases and not self._waiting

    @property
    def begun(self) -> bool:
        """Somebody has begun with the round."""
        return bool(self._leases or self._parts)

    @property
    def parts(self) -> list[int]:
        """Slots of the round that are done."""
        return sorted(self._parts)

    def cut_off(self) -> list[int]:
        """Goes on without those that are not done, if anybody is; returns their nodes."""
        if not self._parts:
            return []
        late = list(self._leases.values())
        self._voided.update(self._leases)
        self._leases.clear()
        self._waiting.clear()
        return late

    def advance(self) -> None:
        """The round has been applied: on to the next one."""
        self.round += 1
        self._begin()

    def _begin(self) -> None:
        """Draws who takes part in the round."""
        here = sorted(self._index.values())
        count = max(1, round(self._fraction * len(here))) if here else 0
        drawn = here
        if count < len(here):
            rng = np.random.default_rng((self._seed, self.round))
            drawn = sorted(rng.choice(here, count, replace=False).tolist())
        self._drawn: list[int] = drawn
        self._waiting: set[int] = set(drawn) if self.round < self._rounds else set()
        self._parts: list[int] = []

    # --- where it stands ---------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """All rounds are done, or no more are wanted."""
        return (self._closed and not self._leases) or self.round >= self._rounds

    @property
    def progress(self) -> float:
        """Share of the rounds that are done."""
        return self.round / self._rounds

    @property
    def size(self) -> int:
        """Entries of all rounds, if all take part."""
        return self._counted + len(self._leases) + self._left

    @property
    def _left(self) -> int:
        later = max(0, self._rounds - self.round - 1)
        return len(self._waiting) + later * max(1, round(self._fraction * len(self._index)))

    @property
    def finished(self) -> int:
        """Entries that counted."""
        return self._counted

    def clock_of(self, node: int) -> int | None:
        """The round, of a worker that takes part."""
        return self.round if node in self._index else None

    def wait_of(self, node: int) -> Wait:
        """Those that are at work in the round."""
        others = tuple(sorted({n for n in self._leases.values() if n != node}))
        return Wait(others or (MASTER,), f"finish round {self.round}")
