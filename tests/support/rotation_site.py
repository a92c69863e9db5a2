"""Workers at a schedule of a rotation, drawn from a seed: leases, losses, masters, checkpoints.

    seed -> Site.step -> RotationSchedule: lease, encode, check out, check in, done -> Site.check

`Site` owns what each worker holds, and asserts the invariants of that after each step.  It must not
know how the schedule chooses.
"""

import random

from snailps.api.rotation import CHUNKS_AHEAD, Rotation, outputs_for
from snailps.master.leases import Entries
from snailps.master.leases.parts import NO_PART
from snailps.master.leases.rotation import RotationSchedule
from snailps.pieces import Piece
from snailps.transport.messages.terms import ChunkBlock


def blocks_of(count, size=10):
    return [Piece("in", n * size, (n + 1) * size) for n in range(count)]


def taken_over(schedule, nodes):
    """The schedule of another master, from the journal's snapshot."""
    records = schedule.records.known().copy()
    chunks = schedule.chunks
    again = RotationSchedule(
        chunks.entries, chunks.rotation, records, nodes=nodes, extent=chunks.extent
    )
    again.resume(schedule.snapshot())
    return again


class Site:
    """The workers of a schedule, what they hold, and its invariants."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        blocks, self.epochs = self.rng.randint(1, 12), self.rng.randint(1, 2)
        self.blocks = blocks_of(blocks)
        chunks = self.rng.randint(1, min(4, blocks))
        most, sweeps = self.rng.randint(1, 5), self.rng.choice((1, 1, 2, 3))
        self.rotation = Rotation(chunks, most, sweeps=sweeps)
        self.count = chunks * self.epochs
        self.nodes = list(range(1, 1 + self.rng.randint(1, 5)))
        self.next_node = 100
        self.leaving = set()
        self.entries = Entries(self.blocks, self.epochs)
        self.schedule = RotationSchedule(self.entries, self.rotation, nodes=self.nodes)
        self.parts, self.sizes = {}, {}  # of each chunk that was decided
        self.chunk_blocks, self.partitions = {}, {}  # number -> worker, in the order leased
        self.had, self.holds = {}, {}
        self.durable = {}  # of each partition that is not done: checkouts that need not be repeated
        self.begun = set()
        self.refused = set()
        self.done_blocks, self.done_partitions = {}, {}

    def number_of(self, chunk, part):
        return self.schedule.chunks.numbers.number(chunk, part)

    # --- what happens -----------------------------------------------------------------------------

    def ask(self, node):
        if node in self.leaving:
            return
        entry = self.schedule.take(node)
        for chunk, parts, sizes in self.schedule.chunks.decided():
            assert chunk not in self.parts
            assert 1 <= parts <= self.rotation.most_parts
            assert len(sizes) in (0, parts)
            self.parts[chunk], self.sizes[chunk] = parts, sizes
        if entry is None:
            assert str(self.schedule.wait_of(node))
            self.refused.add(node)
            return
        self.refused.discard(node)
        number, chunk = entry.number, entry.terms.chunk
        assert number not in {*self.chunk_blocks, *self.partitions}
        if isinstance(entry.terms, ChunkBlock):
            assert number not in self.done_blocks
            before = chunk - CHUNKS_AHEAD - 1
            if before >= 0:
                assert self.is_trained(before)
            self.chunk_blocks[number] = node
            return
        assert number not in self.done_partitions
        assert self.encoded_of(chunk) == entry.terms.chunk_blocks
        assert (entry.terms.parts, entry.terms.sizes) == self.split_of(chunk)
        assert entry.terms.output_parts == self.outputs_of(number)
        assert number == self.number_of(chunk, entry.terms.part)
        assert sum(holder == node for holder in self.partitions.values()) < 2
        self.partitions[number] = node
        assert set(entry.terms.durable) == self.durable.get(number, set())
        self.had[number], self.holds[number] = set(entry.terms.durable), set()

    def split_of(self, chunk):
        return self.parts[chunk], self.sizes[chunk]

    def is_trained(self, chunk):
        parts = self.parts.get(chunk)
        return parts is not None and all(
            self.number_of(chunk, part) in self.done_partitions for part in range(parts)
        )

    def encoded_of(self, chunk):
        return sum(
            self.schedule.chunks.numbers.chunk_of(number) == chunk for number in self.done_blocks
        )

    def encode(self, number):
        node = self.chunk_blocks.pop(number)
        assert self.schedule.done(number, node)
        self.done_blocks[number] = node

    def first_of(self, node):
        """The partition that a worker trains: its oldest lease."""
        return next((n for n, holder in self.partitions.items() if holder == node), None)

    def begin(self, number):
        """Begins a partition; no other one under way may have its part of the rows."""
        if number in self.begun:
            return
        chunk = self.schedule.chunks.numbers.chunk_of(number)
        part = number - self.number_of(chunk, 0)
        for other in self.begun:
            theirs = self.schedule.chunks.numbers.chunk_of(other)
            assert self.split_of(theirs) == self.split_of(chunk)
            assert other - self.number_of(theirs, 0) != part
        for earlier in range(chunk):
            if self.split_of(earlier) != self.split_of(chunk):
                assert self.is_trained(earlier)
        self.begun.add(number)

    def outputs_of(self, number):
        """Checkouts of a partition."""
        chunk = self.schedule.chunks.numbers.chunk_of(number)
        parts = self.parts[chunk]
        return outputs_for(parts) * (self.rotation.sweeps if chunk == 0 and parts > 1 else 1)

    def held(self):
        """Output partitions that are checked out."""
        return [
            part % outputs_for(self.parts[self.schedule.chunks.numbers.chunk_of(number)])
            for number, parts in self.holds.items()
            for part in parts
        ]

    def checkout(self, node):
        number = self.first_of(node)
        if number is None:
            return
        self.begin(number)
        part = self.schedule.checkouts.check_out(number, node)
        output_parts = self.outputs_of(number)
        outputs = outputs_for(self.parts[self.schedule.chunks.numbers.chunk_of(number)])
        missing = set(range(output_parts)) - self.had[number]
        sweep = min(missing, default=0) // outputs
        held = self.held()
        free = {
            output
            for output in missing
            if output // outputs == sweep and output % outputs not in held
        }
        if part is None:
            assert not free
            wait = self.schedule.checkouts.wait_of(number, node)
            assert (wait is None) == bool(self.holds[number])
            assert wait is None or "check in partition" in str(wait)
        elif part == NO_PART:
            assert len(self.had[number]) == output_parts
        else:
            assert part in free
            self.had[number].add(part)
            self.holds[number].add(part)

    def check_in(self, node):
        number = self.first_of(node)
        if number is not None and self.holds[number]:
            part = self.rng.choice(sorted(self.holds[number]))
            seconds = self.rng.choice([0.0, 0.1, 1.0])
            speed = 10 * (1 + node % 3)
            units = round(speed * seconds)
            assert self.schedule.checkouts.check_in(number, node, part, units, seconds)
            self.holds[number].discard(part)
            if self.rng.random() < 0.3:
                before = self.durable.get(number, set())
                self.durable[number] = self.had[number] - self.holds[number]
                new = self.schedule.checkouts.make_durable(number, node)
                assert set(new) == self.durable[number] - before

    def train(self, node):
        """Reports a trained partition."""
        number = self.first_of(node)
        if number is None or self.holds[number]:
            return
        if len(self.had[number]) == self.outputs_of(number):
            assert self.schedule.done(number, node)
            self.forget(number)
            self.durable.pop(number, None)
            self.done_partitions[number] = node

    def forget(self, number):
        del self.partitions[number], self.had[number], self.holds[number]
        self.begun.discard(number)

    def lose(self, node):
        back = self.schedule.retire(node)
        theirs = {
            n for n, holder in {**self.chunk_blocks, **self.partitions}.items() if holder == node
        }
        assert set(back) == theirs
        for number in theirs:
            if number in self.chunk_blocks:
                del self.chunk_blocks[number]
            else:
                self.forget(number)
        self.nodes.remove(node)
        self.refused.discard(node)
        self.leaving.discard(node)

    def join(self):
        self.nodes.append(self.next_node)
        self.schedule.join(self.next_node)
        self.next_node += 1

    def leave(self, node):
        self.schedule.leave(node)
        self.leaving.add(node)
        self.refused.discard(node)

    def take_over(self):
        """Takes over as another master: workers report their leases, which no journal has."""
        self.schedule = taken_over(self.schedule, self.nodes[:1])
        for number, node in {**self.chunk_blocks, **self.partitions}.items():
            assert self.schedule.claim(number, node)
        for number, node in self.partitions.items():
            self.schedule.checkouts.claim(number, node, self.had[number], self.holds[number])
        self.refused.clear()

    def restore(self):
        """Restarts the cluster from a checkpoint of now, with other workers."""
        self.nodes = [self.next_node + n for n in range(self.rng.randint(1, 4))]
        self.next_node += len(self.nodes)
        schedule = self.schedule
        self.schedule = RotationSchedule(
            self.entries, self.rotation, schedule.durable(),
            nodes=self.nodes, extent=schedule.chunks.extent,
        )  # fmt: skip
        for number in list(self.partitions):
            self.forget(number)
        self.chunk_blocks.clear()
        self.durable.clear()
        self.refused.clear()
        self.leaving.clear()
        opened = self.schedule.chunks.extent["open"]
        done = {
            n for n in self.done_partitions if self.schedule.chunks.numbers.chunk_of(n) >= opened
        }
        assert done == set(self.schedule.records.done().tolist())
        self.done_blocks = {
            n: by
            for n, by in self.done_blocks.items()
            if self.schedule.chunks.numbers.chunk_of(n) < opened
        }

    # --- the walk --------------------------------------------------------------------------------

    def step(self, faults):
        node = self.rng.choice(self.nodes)
        kind = self.rng.random()
        if faults and kind < 0.06:
            if kind < 0.015 and len(self.nodes) > 1:
                self.lose(node)
            elif kind < 0.03 and len(self.nodes) < 8:
                self.join()
            elif kind < 0.04 and len(self.nodes) - len(self.leaving) > 1:
                if node not in self.leaving:
                    self.leave(node)
            elif kind < 0.055:
                self.take_over()
            else:
                self.restore()
        elif kind < 0.3:
            self.ask(node)
        elif kind < 0.5:
            mine = [number for number, holder in self.chunk_blocks.items() if holder == node]
            if mine:
                self.encode(self.rng.choice(mine))
        elif kind < 0.7:
            self.checkout(node)
        elif kind < 0.9:
            self.check_in(node)
        else:
            self.train(node)
        self.check()

    def check(self):
        """Checks that each worker that could get a lease is woken, and that progress is a share."""
        for node in self.schedule.woken(self.refused):
            self.ask(node)
        for node in sorted(self.refused):
            assert self.schedule.take(node) is None, f"worker {node} was not woken"
        held = self.held()
        assert len(held) == len(set(held))
        assert 0.0 <= self.schedule.progress <= 1.0
        assert self.schedule.records.leased == len(self.chunk_blocks) + len(self.partitions)

    def finish(self):
        """Trains everything without further faults, in a bounded number of turns."""
        for _ in range(3000):
            if self.schedule.over:
                return
            for node in list(self.nodes):
                self.ask(node)
                for number in [n for n, holder in self.chunk_blocks.items() if holder == node]:
                    self.encode(number)
                self.checkout(node)
                self.check_in(node)
                self.train(node)
                if node in self.leaving and self.first_of(node) is None:
                    self.lose(node)
                    if not self.nodes:
                        self.join()
                self.check()
        raise AssertionError(f"no end: {[str(self.schedule.wait_of(node)) for node in self.nodes]}")
