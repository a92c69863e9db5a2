"""A scripted worker: the real protocol of leases, results and pushes, in the place of a model.

    Start -> Declare -> [Lease -> pull -> train -> push -> Done -> Settled] ... -> Finished -> Stop

It follows `snailps/worker/process.py`: one block ahead is leased and prepared while another trains,
a slot is sealed when its pushes are acknowledged, a block of an earlier clock goes first.
`ResumeState` is the real one.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from snailps.errors import ConnectionLost, SnailError, WaitTimeout
from snailps.node.limits import Limits
from snailps.store.route import Route
from snailps.transport import messages
from snailps.transport.handshake import Role
from snailps.worker.resume_state import ResumeState
from tests.sim.client import Client
from tests.sim.invariants import acknowledgements_hold
from tests.sim.model import DIM, SimModel, contribution, shared_of, weighted
from tests.sim.node import Node
from tests.sim.scheduler import Future, first_of
from tests.sim.staleness import PROGRESS

TURN_S = 0.1


class Block:
    """A leased block, prepared."""

    __slots__ = ("clock", "index", "number", "pull", "seed", "slot", "slots")

    def __init__(self, lease):
        self.number, self.seed = lease.number, lease.seed
        self.clock, self.slot, self.slots, self.index = (
            lease.clock, lease.slot, lease.slots, lease.index,
        )  # fmt: skip
        self.pull = None


class Worker(Node):
    """One worker.

    Attributes
    ----------
    waiting_since : float or None
        Since when it has waited for a lease.
    at_work : bool
        It has a job, and has not finished it.
    """

    def __init__(self, cluster, name, host):
        super().__init__(cluster, Role.WORKER, name, host)
        self.job = None
        self._client = None
        self._newest = None
        self._waiting_routes = []
        self._connecting = self._in_use = False
        self._leaving = self.at_work = False
        self._came_back = False
        self._stand = ResumeState()
        self._helper = None
        self._asked = deque()
        self._back = []
        self._slow = cluster.rng.choice((1.0, 1.0, 3.0))
        self._own = cluster.rng.randint(1, 3)

    # --- messages of the master -------------------------------------------------------------------

    def on_message(self, message, reply):
        if isinstance(message, messages.TakeRoute):
            self._take_route(Route.from_dict(message.route), reply)
        elif isinstance(message, messages.Start):
            self._in_use = True
            self._stand.start()
            if not self.at_work:
                self.at_work = True
                self.spawn(self._guarded(self._work(message)))
        elif isinstance(message, messages.CameBack):
            self._came_back = True
        elif isinstance(message, messages.Ask):
            reply(messages.Report({"waits": []}))

    def resume_state(self):
        return self._stand.to_dict()

    def on_leave(self):
        self._leaving = True

    def on_end(self, code, text):
        if self._client is not None:
            self._client.failed = text
        super().on_end(code, text)

    # --- routes -----------------------------------------------------------------------------------

    def _take_route(self, route, reply):
        if self._newest is None or route.epoch > self._newest.epoch:
            self._newest = route
        client = self._client
        if client is not None and (
            self._in_use or np.array_equal(client.route.owner, self._newest.owner)
        ):
            client.follow(self._newest)
            self.route_epoch = self._newest.epoch
            reply(messages.Ok())
            return
        self._waiting_routes.append(reply)
        if not self._connecting:
            self._connecting = True
            self.spawn(self._connect())

    def _connect(self):
        """Connects to the newest route; a newer one, of other shards, begins it anew."""
        if self._client is not None:
            self._client.close()
            self._client = None
        limit_s = Limits.of(self.settings.request_timeout).connect_s(self.settings.init_timeout)
        error = None
        while not self.ending:
            route, error = self._newest, None
            client = Client(
                self, route, incarnation=self.welcome.incarnation, life=self.welcome.job,
                on_failed=self._client_failed, keys_max=self.cluster.keys_max,
            )  # fmt: skip
            try:
                yield from client.start(limit_s, lambda route=route: self._newest is not route)
            except SnailError as failure:
                client.close()
                error = failure
                if self._newest is not route:
                    continue
                break
            if not np.array_equal(self._newest.owner, route.owner):
                client.close()
                continue
            client.follow(self._newest)
            self._client = client
            self.route_epoch = self._newest.epoch
            break
        self._connecting = False
        if error is not None:
            self._newest = None
        waiting, self._waiting_routes = self._waiting_routes, []
        for reply in waiting:
            reply(messages.Ok() if error is None else error)

    def _client_failed(self, text):
        self.say(f"its client cannot go on: {text}")

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
        self.job = self.cluster.job_of(start)
        table = SimModel.table(start.settings)
        answer = yield from self._ask(messages.Declare([table.to_dict()]), self._limit_s)
        self._table = answer.numbers[0]
        if not self._leaving:
            yield from self._train()
        yield from self._flush()
        self._stand.finish({"waited_s": 0.0})
        self.say("finished")
        self.control.note(messages.Finished({"waited_s": 0.0}))
        self.at_work = False
        if self._leaving:
            self.end(0, "left as asked")

    @property
    def _limit_s(self):
        return self.settings.request_timeout

    def _train(self):
        self._stand.train()
        self._asked.clear()
        self._back.clear()
        while True:
            block = yield from self._next()
            if block is not None and block.clock >= 0:
                block = yield from self._in_turn(block)
            if block is None or self._leaving:
                return
            if (yield from self._train_block(block)):
                return

    def _train_block(self, block):
        """Trains and reports; True: no further block is wanted."""
        clocked = block.clock >= 0
        keys = shared_of(block.number)
        if block.pull is None:
            self._pull(block)
        yield from self._wait(block.pull)
        self._check_staleness(block)
        yield self.cluster.think_s() * self._slow
        in_round = block.index >= 0
        if in_round:
            self._push_part(block, keys)
        elif clocked:
            self._push_slot(block, keys)
        else:
            self._push_counts(block)
        if clocked or self.job.plan.consistency == "ssp":
            yield from self._flush()
        if in_round:
            yield from self._wait(self._client.seal(block.clock, block.slot, block.slots))
        done = messages.Done("train", block.number, 5, 0.1, {"examples": 1.0, "loss": 1.0})
        answer = yield from self._ask(done, self._limit_s, lambda answer: self._stand.told(done))
        settled = self._stand.settle(block.number, self._client)
        if settled:
            self.control.note(messages.Settled(settled))
        if isinstance(answer, messages.Enough):
            return True
        if clocked and not in_round:
            yield from self._wait(self._client.seal(block.clock, block.slot, block.slots))
        return False

    def _push_part(self, block, keys):
        """A part of a round."""
        books = self.job.books
        if books.parts.setdefault(block.number, block.seed) != block.seed:
            books.wrong.append(f"part {block.number} is leased with another seed")
        values = weighted(keys, block.pull.rows, block.number, block.seed)
        self._client.push(self._table, keys, values, block.clock, block.slot)

    def _push_slot(self, block, keys):
        """A contribution to a clock."""
        slots, us = self.job.books.slots, (block.number, block.seed)
        before = slots.setdefault((block.clock, block.slot), us)
        if before != us:
            self.job.books.wrong.append(
                f"slot {block.slot} of clock {block.clock} is block {block.number}, and was "
                f"block {before[0]}"
            )
        values = contribution(keys, block.pull.rows, block.number, block.seed)
        self._client.push(self._table, keys, values, block.clock, block.slot)

    def _push_counts(self, block):
        """Ones, to shared and own keys."""
        books, more = self.job.books, []
        if self.job.staleness is not None:
            more = [PROGRESS + self.number]
        for _ in range(self.cluster.rng.randint(1, 2)):
            push = books.draw(block.number, self._own, self.world.now, more)
            more = []
            ones = np.ones((len(push), DIM), np.float32)
            self._client.push(
                self._table, list(push), ones,
                on_part=lambda keys, push=push: books.acked(push, keys, self.world.now),
            )  # fmt: skip

    def _in_turn(self, block):
        """Waits for the clock of a block; the block, or one of an earlier clock."""
        reach, asked = self._client.reach(block.clock), False
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
                reach = self._client.reach(block.clock)
        return None

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
        kept = []
        for asked in self._back:
            if not asked.done:
                kept.append(asked)
            elif asked.value is not None:
                self._asked.appendleft(asked)
        self._back = kept

    def _earlier(self, block):
        self._take_back()
        for asked in self._asked:
            other = asked.value if asked.done else None
            if other is not None and other.clock < block.clock:
                self._asked.remove(asked)
                known = Future()
                known.set(block)
                self._asked.appendleft(known)
                return other
        return None

    def _submit(self, back):
        """A future of a block, which the one helper leases and prepares, in order."""
        made, former = Future(), self._helper
        self._helper = made
        self.spawn(self._help(former, made, back))
        return made

    def _help(self, former, made, back):
        if former is not None and not former.done:
            yield former
        try:
            block = yield from self._prepare(back)
        except SnailError as error:
            self._give_up(error)
            made.fail(error)
            return
        made.set(block)

    def _prepare(self, back):
        if self._leaving:
            return None

        def heard(answer):
            if isinstance(answer, messages.Leased) and answer.number >= 0:
                self._stand.got("train", answer.number)

        lease = yield from self._ask(messages.Lease("train", back), None, heard)
        if lease.number < 0:
            return None
        yield self.cluster.think_s() * 0.3
        block = Block(lease)
        if self.cluster.pulls_ahead:
            self._pull(block)
        return block

    def _pull(self, block):
        """Begins to pull the rows of a block."""
        keys, staleness = shared_of(block.number), self.job.staleness
        if staleness is not None:
            keys += staleness.keys(self.number, block.number)
        block.pull = self._client.pull(self._table, keys, DIM, block.clock)

    def _check_staleness(self, block):
        """Its rows are there: they lack no more than they may."""
        if self.job.staleness is not None and acknowledgements_hold(self.cluster):
            wrong = self.job.staleness.check(self.number, block.number, block.pull.rows)
            if wrong:
                self.job.books.wrong.append(wrong)

    # --- waiting ----------------------------------------------------------------------------------

    def _wait(self, request):
        """Waits for a request, no longer than one may take."""
        limit = self.sleep(3600.0 if request.kind.name in ("REACH", "PULL") and
                           self.job.plan.clocked else self._limit_s)  # fmt: skip
        yield first_of(request, limit)
        if not request.done:
            raise WaitTimeout(f"{request.what}: no answer: {'; '.join(self._client.waits())[:300]}")
        if request.error is not None:
            raise request.error

    def _flush(self):
        for push in self._client.flush():
            yield from self._wait(push)

    def _ask(self, message, limit_s, heard=lambda answer: None):
        """A call; time without a master does not count."""
        answer = self.control.call(message, heard)
        begin = self.world.now
        while not answer.done:
            yield first_of(answer, self.sleep(5.0))
            if answer.done:
                break
            if self.control.away:
                begin = self.world.now
            if limit_s is not None and self.world.now - begin > limit_s:
                raise WaitTimeout(f"the master has not answered {type(message).__name__}")
        if answer.error is not None:
            if isinstance(answer.error, ConnectionLost):
                yield 1.0
            raise answer.error
        return answer.value
