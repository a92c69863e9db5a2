"""A scripted worker's part in a rotation: it encodes blocks, trains partitions, checks rows out.

    block -> row of TEXT -> partition: reads them; INPUTS rows through it, OUTPUTS rows a checkout
    what a worker reads twice, with its own push between, must differ by that push alone

So a second writer of a partition shows, whichever worker was lost before, and so does a block that
is read before it is encoded, or after a later one has overwritten it.  `jobs.Durable` knows which
checkouts the servers had with all their rows: a lease finds each of them durable, or trains it.
"""

from __future__ import annotations

import random

import numpy as np

from snailps.api.rotation import outputs_for
from snailps.transport import messages
from tests.sim.model import DIM, UNITS

WORDS = 12
"""Rows of each kind: input partitions have as many as their sizes, word w is in output partition
``w % output_parts``."""
SHIFT = 5
"""By how many words the input partitions of a chunk are off the ones of the chunk before, where
each chunk splits the rows anew."""
RATED = 20
"""Seconds that a second of a checkout counts as: no training takes long enough for a speed."""
INPUTS, OUTPUTS, TEXT = 1 << 33, 1 << 34, 1 << 35
RING, TEXT_BLOCKS = 3, 1000


def _blocks(blocks, chunks):
    """Numbers of the blocks of each chunk; the numbers of its partitions follow."""
    chunks = min(chunks, blocks)
    return [(n + 1) * blocks // chunks - n * blocks // chunks for n in range(chunks)]


def expected_numbers(job):
    """Entries of a rotation: all blocks, and the partitions of as many parts as were decided."""
    chunk_blocks = _blocks(job.blocks, job.plan.chunks)
    most = max(chunk_blocks)
    for chunk, count in enumerate(chunk_blocks * job.plan.epochs * job.plan.splits):
        first = chunk * (most + job.plan.most_parts)
        if not (job.plan.keeps and chunk >= len(chunk_blocks)):
            yield from range(first, first + count)
        yield from range(first + most, first + most + job.parts.get(chunk, 1))


def numbers_done(snapshot):
    """Entries that a checkpoint includes, and numbers of none: all those of closed chunks."""
    told = snapshot.figures.get("rotation")
    if told is None:
        return snapshot.done
    stride = max(_blocks(len(snapshot.blocks), told["chunks"])) + told["most_parts"]
    first = told["extent"]["open"] * stride
    return [*range(first), *(first + number for number in snapshot.done)]


class Rotating:
    """The part of a worker that takes part in a rotation.

    Parameters
    ----------
    worker : Worker
    """

    def __init__(self, worker):
        self._worker = worker
        self._random = random.Random(f"settles {worker.name}")

    @property
    def _job(self):
        return self._worker.job

    def _pull(self, keys):
        worker = self._worker
        if not keys:
            return {}
        pull = worker.client.pull(worker.table, list(keys), DIM)
        yield from worker.wait(pull)
        return pull.rows

    def _wrong(self, text):
        if self._worker.cluster.acknowledgements_hold():
            self._job.books.wrong.append(text)

    # --- in the thread that prepares -------------------------------------------------------------

    def _text(self, block):
        """The first of the rows of a chunk's blocks, and the row's value, less one."""
        plan, slots, chunk = self._job.plan, RING, block.chunk
        if plan.keeps:
            slots = len(_blocks(plan.blocks, plan.chunks))
            chunk %= slots
        return TEXT + chunk % slots * TEXT_BLOCKS, chunk * TEXT_BLOCKS

    def encode(self, block):
        """Overwrites the row of a block; True if the master wants no more."""
        worker = self._worker
        yield worker.cluster.think_s() * 0.1
        base, value = self._text(block)
        key = base + block.chunk_index
        rows = yield from self._pull([key])
        change = np.full((1, DIM), value + block.chunk_index + 1, np.float32) - rows[key]
        yield from worker.wait(worker.client.push(worker.table, [key], change))
        yield from worker.flush()
        answer = yield from worker.tell(messages.Done("train", block.number, 0, 0.1, {}))
        self._durable(block)
        return isinstance(answer, messages.Enough)

    def _durable(self, block):
        self._worker.stand.durable(block.number)
        self._worker.control.note(messages.Durable([block.number]))

    def prepare(self, block):
        """Reads the rows of all blocks of a partition's chunk."""
        base, value = self._text(block)
        rows = yield from self._pull(range(base, base + block.chunk_blocks))
        for index in range(block.chunk_blocks):
            found, must = float(rows[base + index][0]), value + index + 1
            if found != must:
                self._wrong(
                    f"partition {block.number} of chunk {block.chunk} reads {found:g} in the place "
                    f"of block {index}, which is {must}"
                )
                return

    # --- in the main thread ----------------------------------------------------------------------

    def train(self, block):
        """Trains a partition with all its checkouts; the `Done` to report."""
        worker, job = self._worker, self._job
        sizes = block.sizes
        ends = [WORDS * sum(sizes[: block.part + side]) // sum(sizes) for side in (0, 1)]
        shift = SHIFT * block.chunk if block.passes > 1 else 0  # other rows in each chunk
        mine = [INPUTS + (word + shift) % WORDS for word in range(*ends)]
        begun = yield from self._pull(mine)
        state = {"cut": False, "over": False}
        done, trained = 0, set()
        job.durable.lease(block.number, frozenset(block.durable), worker.cluster.journal_holds())
        ahead = self._check_out(block, state)
        while True:
            if not ahead.done:
                yield ahead
            if ahead.error is not None:
                raise ahead.error
            if ahead.value is None:
                break
            part, ahead = ahead.value, self._check_out(block, state)
            if part in block.durable or part in trained:
                job.books.wrong.append(
                    f"part {part} is checked out by partition {block.number} again"
                )
            trained.add(part)
            durable = job.plan.durable > self._random.random()
            since = worker.world.now
            begun = yield from self._checkout(block, part, mine if durable else (), begun)
            if durable:
                job.durable.tell(block.number, trained)
            self._check_in(block, part, RATED * (worker.world.now - since), durable)
            done += 1
        yield from self._check_inputs(block, mine, begun)
        yield from self._push(block, mine)
        figures = {"examples": float(done), "loss": float(done)}
        if not state["cut"] and trained | set(block.durable) != set(
            range(outputs_for(block.parts))
        ):
            job.books.wrong.append(
                f"partition {block.number} had parts {sorted(trained)} beside {block.durable}"
            )
        yield from worker.flush()
        return messages.Done(
            "train", block.number, UNITS * done, 0.1, figures, whole=not state["cut"]
        )

    def end(self, block):
        """Ends a partition that is reported."""
        self._durable(block)

    def _check_inputs(self, block, mine, begun):
        """Checks that the input rows are as this worker has left them."""
        now = yield from self._pull(mine)
        for key in mine:
            if now[key].tobytes() != begun[key].tobytes():
                self._wrong(
                    f"row {key - INPUTS} of part {block.part} has another writer than partition "
                    f"{block.number}"
                )

    def _check_out(self, block, state):
        worker = self._worker

        def heard(answer):
            if isinstance(answer, messages.CheckedOut) and answer.part >= 0:
                worker.stand.checked_out(block.number, answer.part)

        def ask():
            if state["over"]:
                return None
            answer = yield from worker.ask(messages.CheckOut(block.number), None, heard)
            if answer.part >= 0:
                return answer.part
            state["over"], state["cut"] = True, state["cut"] or answer.ends
            return None

        made = worker.spawn(ask())
        made.then(lambda made: None)  # its error is raised where it is waited for
        return made

    def _checkout(self, block, part, mine, begun):
        """Trains a checkout and pushes the input rows; these rows afterwards."""
        worker = self._worker
        theirs = [OUTPUTS + word for word in range(part, WORDS, outputs_for(block.parts))]
        before = yield from self._pull(theirs)
        share = block.sizes[block.part] / sum(block.sizes)
        yield worker.cluster.think_s() * worker.slowness * share
        yield from self._push(block, theirs)
        after = yield from self._pull(theirs)
        for key in theirs:
            if float(after[key][0]) != float(before[key][0]) + 1:
                self._wrong(
                    f"row {key - OUTPUTS} goes from {float(before[key][0]):g} to "
                    f"{float(after[key][0]):g} while {block.number} has partition {part}"
                )
        if mine:
            yield from self._check_inputs(block, mine, begun)
            yield from self._push(block, mine)
            begun = yield from self._pull(mine)
        return begun

    def _check_in(self, block, part, seconds, durable):
        worker = self._worker
        if not worker.stand.checked_in(block.number, part):
            self._job.books.wrong.append(f"partition {block.number} does not hold part {part}")
        figures = {"examples": 1.0, "loss": 1.0}
        worker.control.note(messages.CheckIn(block.number, part, UNITS, seconds, figures, durable))

    def _push(self, block, keys):
        """Ones to these rows, and to own ones that tell this push from others."""
        worker = self._worker
        books, now = self._job.books, worker.world.now
        push = books.draw(block.number, worker.own_keys, now, keys, shared=False)
        request = worker.client.push(
            worker.table, list(push), np.ones((len(push), DIM), np.float32),
            on_part=lambda keys: books.acked(push, keys, worker.world.now),
        )  # fmt: skip
        yield from worker.wait(request)
