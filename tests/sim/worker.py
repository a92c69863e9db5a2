"""A scripted worker: the real protocol of leases, results and pushes, in the place of a model.

    Start -> Declare -> [Lease -> pull -> train -> push -> Done -> Durable] ... -> Finished -> Stop

It follows `snailps/worker/training.py`: one block ahead is leased and prepared while another
trains, a slot is sealed when its pushes are acknowledged, a block of an earlier clock goes first.
`ResumeState` is the real one.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from snailps.api.block import Block, BlockContent
from snailps.errors import ClusterError, SnailError
from snailps.master.job.survey import PART_BYTES
from snailps.transport import messages
from snailps.transport.handshake import Role
from snailps.worker.resume_state import ResumeState
from tests.sim.model import DIM, UNITS, SimModel, contribution, shared_of, survey_of, weighted
from tests.sim.rotation import Rotating
from tests.sim.routed import RoutedNode
from tests.sim.scheduler import Future, first_of
from tests.sim.staleness import PROGRESS

TURN_S = 0.1


class Leased(Block):
    """A leased block with what is prepared for it."""

    def __init__(self, lease):
        of = lease.number, lease.piece, lease.epoch, lease.seed, lease.progress
        super().__init__(*of, BlockContent(), lease.terms)
        self.pull = self.reach = None


class Flush:
    """In the place of a block: all that was trained is to be pushed before the next one."""

    clock = -1


FLUSH = Flush()


class Worker(RoutedNode):
    """One worker.

    Attributes
    ----------
    waiting_since : float or None
        When it began to wait for a lease.
    at_work : bool
        Whether it has a job that it has not finished.
    """

    def __init__(self, cluster, name, host):
        super().__init__(cluster, Role.WORKER, name, host)
        self.job = None
        self._leaving = self.at_work = False
        self._came_back = False
        self.stand = ResumeState()
        self._helper = None
        self._asked = deque()
        self._back = []
        self.slowness = cluster.rng.choice((1.0, 1.0, 3.0))
        self.own_keys = cluster.rng.randint(1, 3)
        self._rotating = Rotating(self)
        self.fails = False  # its code does, at the next block

    # --- messages of the master -------------------------------------------------------------------

    def on_message(self, message, reply):
        if isinstance(message, messages.Start):
            self._in_use = True
            self.stand.start_job()
            if not self.at_work:
                self.at_work = True
                self.spawn(self._guarded(self._work(message)))
        elif isinstance(message, messages.CameBack):
            self._came_back = True
        elif isinstance(message, messages.Ask):
            reply(messages.Report({"waits": [], **self._pushed()}))
        else:
            super().on_message(message, reply)

    def _pushed(self):
        """How far the pushes of its blocks have got, for the status."""
        if self.client is None:
            return {}
        half = self.stand.is_half_pushed(self.client.parts_pushed)
        return {"moved_bytes": self.client.moved, "half_pushed": half}

    def resume_state(self):
        return self.stand.to_dict()

    def on_leave(self):
        self._leaving = True

    # --- the job ----------------------------------------------------------------------------------

    def _guarded(self, work):
        try:
            yield from work
        except Exception as error:
            if not isinstance(error, SnailError):
                raise
            self._give_up(error)

    def _give_up(self, error):
        if not self.ending:
            self.say(f"gives up: {error}")
            self.cluster.gave_up[self] = str(error)
            self.control.note(messages.Failed(str(error)))
            self.end(1, str(error))

    def _work(self, start):
        self._came_back = False
        self.job = self.cluster.job_at(start.settings["output"])
        self.awaits_clocks = self.job.plan.clocked
        table = SimModel.table(start.settings)
        answer = yield from self.ask(messages.Declare([table.to_dict()]), self._limit_s)
        self.table = answer.numbers[0]
        if start.survey:
            yield from self._survey()
            if self._leaving:
                self.end(0, "left as asked")
                return
        if not self._leaving:
            yield from self._train()
            while self._helper is not None and not self._helper.done:
                yield self._helper  # as the end of an executor's `with` waits for its thread
        yield from self.flush()
        self.stand.finish({"waited_s": 0.0})
        self.say("finished")
        self.control.note(messages.Finished({"waited_s": 0.0}))
        self.at_work = False
        if self._leaving:
            self.end(0, "left as asked")

    def _survey(self):
        """Takes part in the survey, until there is a summary."""
        answer = messages.Again()
        merges = self.job.plan.merges_survey
        while isinstance(answer, messages.Again):
            held = []
            while not (self._leaving and not held):
                size = PART_BYTES * len(held) // 2 if merges else 0
                number = -1
                if not self._leaving:
                    lease = yield from self._lease("survey", False, size)
                    number = lease.number
                if number >= 0:
                    yield self.cluster.think_s() * 0.3
                    held.append(number)
                    if merges:
                        continue
                elif not held:
                    break
                part = b"".join(map(survey_of, held))
                done = messages.Done("survey", held[0], 5, 0.1, {}, part, held[1:])
                yield from self.tell(done)
                held = []
            if self._leaving:
                return
            answer = yield from self.ask(messages.Summarise(), None)
        self.job.summarised(answer.blob, self.cluster)

    def _lease(self, pass_, back, held=0):
        def heard(answer):
            if isinstance(answer, messages.Leased) and answer.number >= 0:
                self.stand.leased(pass_, answer)

        return (yield from self.ask(messages.Lease(pass_, back, held), None, heard))

    def tell(self, done):
        reported = self.stand.reported
        return (yield from self.ask(done, self._limit_s, lambda answer: reported(done)))

    def _train(self):
        self.stand.start_training()
        self._asked.clear()
        self._back.clear()
        while True:
            block = yield from self._next()
            if block is FLUSH:
                yield from self.flush()
                if durable := self.stand.all_durable():
                    self.control.note(messages.Durable(durable))
                continue
            if block is not None and block.clock >= 0:
                block = yield from self._in_turn(block)
            if block is None or self._leaving:
                return
            if (yield from self._train_block(block)):
                return

    def _train_block(self, block):
        """Trains and reports a block; True if the master wants no more."""
        if block.part >= 0:
            self.stand.start_block(block.number, self.client.parts_pushed)
            done = yield from self._rotating.train(block)
            answer = yield from self.tell(done)
            self._rotating.end(block)
            return isinstance(answer, messages.Enough)
        clocked = block.clock >= 0
        self.stand.start_block(block.number, self.client.parts_pushed)
        keys = shared_of(block.number)
        if block.pull is None:
            self._pull(block)
        yield from self.wait(block.pull)
        self._check_staleness(block)
        yield self.cluster.think_s() * self.slowness
        if self.fails:
            raise ClusterError("the code of a user fails")
        self._check_loaded()
        in_round = block.index >= 0
        if in_round:
            self._push_part(block, keys)
        elif clocked:
            self._push_slot(block, keys)
        else:
            self._push_counts(block)
        if clocked or self.job.plan.bounded or self.job.plan.ranges:
            yield from self.flush()
        if in_round:
            yield from self.wait(self.client.seal(block.clock, block.slot, block.slots))
        done = messages.Done("train", block.number, UNITS, 0.1, {"examples": 1.0, "loss": 1.0})
        answer = yield from self.tell(done)
        durable = self.stand.trained(block.number, self.client, unpushed=0)
        if durable:
            self.control.note(messages.Durable(durable))
        if isinstance(answer, messages.Enough):
            return True
        if clocked and not in_round:
            yield from self.wait(self.client.seal(block.clock, block.slot, block.slots))
        return False

    def _check_loaded(self):
        if self.job.plan.survey == 2 and not self.job.loaded:
            self.job.books.wrong.append("a worker pushes before rows are loaded")

    def _push_part(self, block, keys):
        """Pushes a part of a round."""
        books = self.job.books
        if books.parts.setdefault(block.number, block.seed) != block.seed:
            books.wrong.append(f"part {block.number} is leased with another seed")
        values = weighted(keys, block.pull.rows, block.number, block.seed)
        self.client.push(self.table, keys, values, block.clock, block.slot)

    def _push_slot(self, block, keys):
        """Pushes a contribution to a clock."""
        slots, us = self.job.books.slots, (block.number, block.seed)
        before = slots.setdefault((block.clock, block.slot), us)
        if before != us:
            self.job.books.wrong.append(
                f"slot {block.slot} of clock {block.clock} is block {block.number}, and was "
                f"block {before[0]}"
            )
        values = contribution(keys, block.pull.rows, block.number, block.seed)
        self.client.push(self.table, keys, values, block.clock, block.slot)

    def _push_counts(self, block):
        """Pushes ones to shared and own keys."""
        books, more = self.job.books, []
        if self.job.staleness is not None:
            more = [PROGRESS + self.number]
        for _ in range(self.cluster.rng.randint(1, 2)):
            push = books.draw(block.number, self.own_keys, self.world.now, more)
            more = []
            ones = np.ones((len(push), DIM), np.float32)
            self.client.push(
                self.table, list(push), ones,
                on_part=lambda keys, push=push: books.acked(push, keys, self.world.now),
            )  # fmt: skip

    def _in_turn(self, block):
        """Waits for the clock of a block; that block, or one of an earlier clock that came back."""
        reach, asked = self._reach(block), False
        while not self._leaving:
            yield first_of(reach, self.sleep(TURN_S))
            if reach.done:
                if reach.error is not None:
                    raise reach.error
                return block
            if not asked or self._came_back:
                asked, self._came_back = True, False
                self._back.append(self._submit(True))
            earlier = self._earlier(block)
            if earlier is not None:
                block, asked = earlier, False
                reach = self._reach(block)
        return None

    def _reach(self, block):
        if block.reach is None:
            block.reach = self.client.reach(block.clock)
        return block.reach

    # --- blocks ahead, as BlockPrefetcher has them ------------------------------------------------

    def _next(self):
        self._take_back()
        if not self._asked:
            self._asked.append(self._submit(False))
        asked = self._asked.popleft()
        yield asked
        if asked.error is not None:
            raise asked.error
        block = asked.value
        while block is not None and len(self._asked) < self.cluster.prefetch:
            self._asked.append(self._submit(False))
        return block

    def _take_back(self):
        unanswered = []
        for asked in self._back:
            if not asked.done:
                unanswered.append(asked)
            elif asked.value is not None:
                self._asked.appendleft(asked)
        self._back = unanswered

    def _earlier(self, block):
        self._take_back()
        for asked in self._asked:
            other = asked.value if asked.done else None
            if other not in (None, FLUSH) and other.clock < block.clock:
                self._asked.remove(asked)
                prepared = Future()
                prepared.set(block)
                self._asked.appendleft(prepared)
                return other
        return None

    def _submit(self, back):
        """A future of a block, which the single helper leases and prepares in order."""
        made, former = Future(), self._helper
        self._helper = made
        self.spawn(self._help(former, made, back))
        return made

    def _help(self, former, made, back):
        if former is not None and not former.done:
            done = Future()
            former.then(done.set)
            yield done
        try:
            block = yield from self._prepare(back)
        except SnailError as error:
            self._give_up(error)
            made.fail(error)
        else:
            made.set(block)

    def _prepare(self, back):
        if self._leaving:
            return None

        while True:
            lease = yield from self._lease("train", back)
            if lease.flushes:
                return FLUSH
            if lease.number < 0:
                return None
            block = Leased(lease)
            if block.chunk_index < 0:
                break
            if (yield from self._rotating.encode(block)) or self._leaving:
                return None
        yield self.cluster.think_s() * 0.3
        if block.part >= 0:
            yield from self._rotating.prepare(block)
            return block
        if self.cluster.pulls_ahead:
            self._pull(block)
        if block.clock >= 0:
            self._reach(block)
        return block

    def _pull(self, block):
        """Begins to pull the rows of a block."""
        keys, staleness = shared_of(block.number), self.job.staleness
        if staleness is not None:
            keys += staleness.keys(self.number, block.number)
        block.pull = self.client.pull(self.table, keys, DIM, block.clock)

    def _check_staleness(self, block):
        """Checks that the rows of a block lack no more than `ssp` allows."""
        if self.job.staleness is not None and self.cluster.acknowledgements_hold():
            wrong = self.job.staleness.check(self.number, block.number, block.pull.rows)
            if wrong:
                self.job.books.wrong.append(wrong)
