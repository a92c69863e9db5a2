"""A session: a driver that submits one job after the other, and replaces lost workers.

    Driver: Register -> table of its own -> [renew workers -> Submit -> status ...] -> Shutdown

It does what `LocalCluster.train` and `Driver` do, and checks what a session promises: it outlives
failed jobs, refuses wrong ones, and keeps the rows of its own tables.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from snailps.abi import loops
from snailps.api.tables import Table
from snailps.errors import RemoteError, SnailError
from snailps.store._store import ShardStore
from snailps.transport import messages
from snailps.transport.handshake import Role
from tests.sim.jobs import JobPlan, JobRun, draw_rounds, draw_table, draw_tests
from tests.sim.model import DIM, Books
from tests.sim.routed import RoutedNode
from tests.support.without import is_there, where_there

OWN_TABLE, IDS = "session", "ids"
IDS_NUM = 300
"""Keys of the table of ids, which admits and limits rows."""
POLL_S = 0.3
RENEW_S = 90.0
TRIES = 40


def draw_session(seed, plain, think_s):
    """Plans of a session's jobs; empty for a seed whose cluster runs a job of its own."""
    rng = random.Random(f"session {seed}")
    if rng.random() >= 0.15:
        return []
    plans = []
    for _ in range(rng.choice((2, 2, 3))):
        plan = JobPlan(
            rng.choice(("async", "ssp", "bsp")), rng.randint(0, 3), rng.randint(1, 4),
            rng.randint(3, 14), rng.choice((1, 1, 2)),
        )  # fmt: skip
        if rng.random() < 0.25 and is_there("rounds"):
            plan = replace(draw_rounds(rng, plan, think_s), rounds=rng.randint(1, 5))
        elif rng.random() < 0.3:
            plan = replace(plan, survey=rng.choice((1, 2)))
        plans.append(plan if plan.rounds else draw_table(rng, plan))
    return [draw_tests(f"{seed}, job {number}", plan) for number, plan in enumerate(plans)]


class Driver(RoutedNode):
    """The driver of a session.

    Attributes
    ----------
    problems : list of str
        Promises that were broken, in words.
    """

    def __init__(self, cluster):
        super().__init__(cluster, Role.DRIVER, "driver", "driver")
        self.problems, self.done = [], False
        self._books, self._pushed = Books(), {}
        self._ids = random.Random(f"ids {cluster.world.seed}")  # its own: others draw as before
        self._reference = None  # a store that executes the same pushes as the shards
        self._number = 0  # of the job, in the session

    def on_welcome(self, welcome):
        self.spawn(self._guarded(self._drive()))

    def on_message(self, message, reply):
        if isinstance(message, messages.Ask):
            reply(messages.Report({"waits": []}))
        else:
            super().on_message(message, reply)

    def _guarded(self, work):
        try:
            yield from work
        except SnailError as error:
            if not self.ending:
                self.problems.append(f"the driver fails: {error!r}")
                self.end(1, str(error))

    def _client_failed(self, text):
        self.problems.append(f"its client cannot go on: {text}")

    # --- its course -------------------------------------------------------------------------------

    def _drive(self):
        while self.client is None or (yield from self._status())["phase"] == "forming":
            yield POLL_S
        self._in_use = True
        table = Table(OWN_TABLE, DIM, wire="float32")
        answer = yield from self.ask(messages.Declare([table.to_dict()]), self._limit_s)
        self.table = answer.numbers[0]
        yield from self._declare_ids()
        for number, plan in enumerate(self.cluster.plans):
            if number:
                self.cluster.jobs.append(JobRun(plan, number))
            yield from self._push()
            yield from self._push_ids(4)
            if self.cluster.rng.random() < 0.15:
                yield from self._submit_wrong()
            if not (yield from self._submit(plan, number)):
                return
            yield from self._follow(self.cluster.job)
            yield from self._check_table()
        self.done = True
        yield from self.ask(messages.Shutdown(), self._limit_s)

    def _submit(self, plan, number):
        """Submits a job until the cluster takes it: it must, once it has workers."""
        folder = self.cluster.disk.folder
        plan.write_input(folder)
        for _ in range(TRIES):
            yield from self._renew_workers()
            error = yield from self._refusal(messages.Submit(plan.settings(folder, number)))
            if error is None:
                self.say(f"submitted job {number}")
                if self.cluster.rng.random() < 0.2:
                    again = yield from self._refusal(messages.Submit(plan.settings(folder, number)))
                    if again is None:
                        self.problems.append("a second job was taken while one was under way")
                return True
            self.say(f"job {number} is refused: {error}")
            yield 1.0
        self.problems.append(f"job {number} is refused again and again: {error}")
        self.end(1, "refused")
        return False

    def _submit_wrong(self):
        """Submits a job without its input, which must be refused without further effect."""
        yield from self._renew_workers()
        settings = {**self.cluster.job.plan.settings(self.cluster.disk.folder, 99)}
        settings |= {"rounds": "0", "input": str(self.cluster.disk.folder / "nothing-here.txt")}
        error = yield from self._refusal(messages.Submit(settings))
        if error is None:
            self.problems.append("a job without input was taken")

    def _refusal(self, submit):
        """Submits a job; the refusal, or None."""
        try:
            answer = yield from self.ask(submit, None)
        except RemoteError as error:
            return error
        self._number = answer.job
        return None

    def _follow(self, job):
        """Waits until a job has ended; checks and notes how."""
        status = yield from self._status()
        while status["phase"] != "idle":
            yield POLL_S
            if self._ids.random() < 0.1:
                yield from self._push_ids(1)
            status = yield from self._status()
        ended = (yield from self.ask(messages.AskJob(self._number), self._limit_s)).data
        if ended["failure"] != status["message"] or bool(ended["figures"]) != bool(
            status["figures"]
        ):
            self.problems.append(f"job {job.number} is told in two ways: {ended}")
        if (ended["tables"] is None) != bool(ended["failure"]):
            self.problems.append(f"job {job.number} has tables and a failure, or neither: {ended}")
        if job.told is not None:
            self.problems.append(f"job {job.number} has ended twice")
        job.told, job.figures = status["message"], status["figures"]
        self.say(f"job {job.number} has ended: {job.told or 'well'}")
        if not job.told and job.exported is None:
            self.problems.append(f"job {job.number} ended well without a result")
        if not job.told and not job.figures:
            self.problems.append(f"job {job.number} ended well without figures")

    def _status(self):
        answer = yield from self.ask(messages.Ask("status"), self._limit_s)
        return answer.data

    # --- workers ----------------------------------------------------------------------------------

    def _renew_workers(self):
        """Replaces workers that have ended, and waits for the new ones."""
        cluster = self.cluster
        nodes = (yield from self._status())["nodes"]
        here, before = {node["pid"] for node in nodes}, {node["id"] for node in nodes}
        workers = [node for node in cluster.nodes if node.role == Role.WORKER]
        dead = {cluster.pid_of(node) for node in workers if not node.alive}
        mine = [node for node in workers if cluster.pid_of(node) in here - dead]
        for node in workers:
            if node.alive and node not in mine and node.welcome is not None:
                node.hurt = node.hurt or "renewed"
                node.die("it is a member no more, and is replaced")
        coming = max(0, cluster.scenario.workers - len(mine))
        for _ in range(coming):
            cluster.start_node("worker")
        until = self.world.now + RENEW_S
        while coming and self.world.now < until:
            nodes = (yield from self._status())["nodes"]
            ready = [
                node
                for node in nodes
                if node["role"] == "worker" and node["id"] not in before
                and node["state"] == "ready"
            ]  # fmt: skip
            if len(ready) >= coming and not dead & {node["pid"] for node in nodes}:
                return
            yield POLL_S

    # --- its table --------------------------------------------------------------------------------

    def _push(self):
        """Pushes ones to shared and own keys of the session's table; returns once acknowledged."""
        push = self._books.draw(0, 3, self.world.now)
        for key in push:
            self._pushed[key] = self._pushed.get(key, 0) + 1
        ones = np.ones((len(push), DIM), np.float32)
        yield from self.wait(self.client.push(self.table, list(push), ones))

    def _check_table(self):
        """Checks that each push is in the session's table once, however the job ended."""
        pull = self.client.pull(self.table, sorted(self._pushed), DIM)
        yield from self.wait(pull)
        for key, count in self._pushed.items():
            there = float(pull.rows[key][0])
            lost = there < count and self.cluster.acknowledgements_hold()
            if lost or there > count:
                self.problems.append(f"row {key} of the session is {there:g}, pushed {count} times")
                return
        yield from self._check_ids()

    def _declare_ids(self):
        frag_num = self.client.route.frag_num
        table = Table(
            IDS, DIM, **where_there(
                "retention",
                admit_after=self._ids.choice((0, 2)), admit_bytes=64 * frag_num,
                rows_max=self._ids.choice((0, 2, 5)) * frag_num,
                age_max=self._ids.choice((0, 0, 3, 8)) * frag_num,
            ),
        )  # fmt: skip
        answer = yield from self.ask(messages.Declare([table.to_dict()]), self._limit_s)
        self._ids_table = answer.numbers[0]
        self._reference = ShardStore(frag_num, loops.row_ops())
        self._reference.own(range(frag_num))
        self._reference.add_table(1, *table.store_arguments())
        self._ids_seq = 0

    def _push_ids(self, times):
        """Pushes frequent and rare ids to the shards, and the same to the reference store."""
        for _ in range(times):
            drawn = {int(self._ids.paretovariate(0.5)) % IDS_NUM for _ in range(40)}
            keys = sorted(drawn)  # as the client sends those of a fragment
            ones = np.ones((len(keys), DIM), np.float32)
            self._ids_seq += 1
            yield from self.wait(self.client.push(self._ids_table, keys, ones))
            self._reference.push(1, 1, self._ids_seq, np.array(keys, np.uint64), ones)

    def _check_ids(self):
        """Checks that the shards made and kept the same rows as the reference store."""
        if not self.cluster.acknowledgements_hold():
            return
        keys = list(range(IDS_NUM))
        pull = self.client.pull(self._ids_table, keys, DIM)
        yield from self.wait(pull)
        expected = self._reference.pull(1, np.array(keys, np.uint64))
        for key in keys:
            if not np.array_equal(pull.rows[key], expected[key]):
                self.problems.append(
                    f"row {key} of the ids is {pull.rows[key]}, by the same pushes {expected[key]}"
                )
                return
