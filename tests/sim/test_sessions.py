"""Tables of a session, of each kind, while its processes are lost or stand still.

    a fault x the message at which it comes x once or twice -> rows, and what a driver hears

The master keeps a journal, unlike in drawn sessions: another one takes over.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from snailps.api.tables import Table
from snailps.errors import RemoteError
from snailps.transport import messages
from snailps.transport.frame import Option
from tests.sim.cluster import Cluster
from tests.sim.jobs import METHOD, JobPlan, JobRun
from tests.sim.lives import PLAIN
from tests.sim.model import DIM, TABLE
from tests.sim.session import POLL_S, TRIES, Driver

OWN = {"plain": "add", "of-a-method": METHOD}
"""Tables of the session, and their access methods."""
KEYS = [3, 4, 1 << 50]
BLOCKS = 4
SECOND = "second job's "
"""Of the job whose table is the session's."""
FOLDER = "/shared/of-the-driver"
STILL_S = 4.0
"""Less than the limit of heartbeats: nobody is lost."""
STOPPED_S = 45.0
"""Several times that limit. Who stands still himself does not count it against others."""
ASSIGNED = 1000.0
PUSHES = 7.0
"""State of rows that are assigned with it."""


class Tables(Driver):
    """A driver with a table of each kind, which counts what it pushes.

    `before`: the driver that was killed. This one finds its rows, and how its job ended.
    """

    def __init__(self, cluster, before=None):
        super().__init__(cluster)
        self._before, self.attempts, self.counts = before, before.attempts if before else 0, {}
        self._wanted = dict(before._wanted) if before else {}
        self.numbers = dict(before.numbers) if before else {}
        # By table: what each row may be until an answer comes.
        self._possible = dict(before._possible) if before else {}

    def _drive(self):
        while self.client is None or (yield from self._status())["phase"] == "forming":
            yield POLL_S
        self._in_use = True
        yield from self._follow_another() if self._before else self._make_all()
        self.done = True
        yield from self.ask(messages.Shutdown(), self._limit_s)

    def _make_all(self):
        for name, access in OWN.items():
            yield from self._make(name, access)
        yield from self._count()
        yield from self._make_refused()
        first = yield from self._train()
        yield from self._count()
        yield from self._insist(messages.SaveRows(FOLDER))
        saved = dict(self.counts)
        yield from self._count()
        yield from self._assign()
        yield from self._make_refused()
        yield from self._load(saved)
        yield from self._check()
        yield from self._make(TABLE, "add")
        yield from self._check_rows(TABLE, first)
        self.cluster.in_second_job = True
        second = yield from self._train(first)
        expected = {key: first.get(key, 0) + second.get(key, 0) for key in {*first, *second}}
        yield from self._check_rows(TABLE, expected)
        yield from self._assign()
        yield from self._count()
        yield from self._check()

    def _follow_another(self):
        """Takes the place of a killed driver: the session, its tables and its job go on."""
        before = self._before
        while (yield from self._status())["phase"] != "idle":
            yield POLL_S
        self.problems = before.problems
        for job in self.cluster.jobs:
            job.excuses.append("its driver was killed")
            job.told = job.told or "its driver was killed"
        if before._number:
            ended = (yield from self.ask(messages.AskJob(before._number), self._limit_s)).data
            if ended["failure"]:
                self.problems.append(f"the job fails with its driver: {ended['failure']}")
        for name, access in {**OWN, **self._wanted}.items():
            earlier = self.numbers.get(name)
            yield from self._make(name, access)
            if earlier not in (None, self.numbers[name]):
                self.problems.append(f"table {name!r} is another one for the next driver")
        for name in OWN:
            possible = self._possible.get(name, {0})
            pull = self.client.pull(self.numbers[name], KEYS, DIM)
            yield from self.wait(pull)
            wrong = [float(row[0]) for row in pull.rows.values() if row[0] not in possible]
            if wrong:
                self.problems.append(f"table {name!r}: rows {wrong}, of {possible}")
            # The last push may have come to some shards only.
            most = max(float(row[0]) for row in pull.rows.values())
            lack = [key for key, row in pull.rows.items() if row[0] < most]
            self._possible[name], self.counts[name] = {*possible, most}, most
            if lack:
                ones = np.ones((len(lack), DIM), np.float32)
                yield from self.wait(self.client.push(self.numbers[name], lack, ones))
        yield from self._make_refused()
        yield from self._assign()
        yield from self._insist(messages.SaveRows(FOLDER))
        saved = dict(self.counts)
        yield from self._count()
        yield from self._load(saved)
        if TABLE not in self._wanted:
            yield from self._train()
        yield from self._count()
        yield from self._check()

    def _make(self, name, access):
        self._wanted[name] = access
        table = Table(name, DIM, wire="float32", access=access)
        answer = yield from self.ask(messages.Declare([table.to_dict()]), self._limit_s)
        self.numbers[name] = answer.numbers[0]

    def _make_refused(self):
        """A table that servers refuse: its driver hears that, and nothing of it is left."""
        table = Table("refused", DIM, access="nowhere:Method")
        try:
            yield from self.ask(messages.Declare([table.to_dict()]), self._limit_s)
        except RemoteError as error:
            if "nowhere" not in str(error):
                self.problems.append(f"a table is refused for another reason: {error}")
        else:
            self.problems.append("a table is made whose access method no server has")
        tables = (yield from self.ask(messages.Ask("tables"), self._limit_s)).data["tables"]
        if any(table["name"] == "refused" for _, table in tables):
            self.problems.append("a refused table is there")

    def _insist(self, call):
        """Saves or loads rows, again if a server was lost meanwhile."""
        for _ in range(TRIES):
            try:
                yield from self.ask(call, None)
            except RemoteError as error:
                self.say(f"{type(call).__name__}: {error}")
                yield POLL_S
            else:
                return
        self.problems.append(f"{type(call).__name__} fails again and again")

    def _load(self, saved):
        """Loads the rows that were saved, of which it knows what they are."""
        self._possible = {name: {self.counts[name], value} for name, value in saved.items()}
        yield from self._insist(messages.LoadRows(FOLDER))
        self._possible = {name: {value} for name, value in saved.items()}
        self.counts = dict(saved)

    # --- rows -------------------------------------------------------------------------------------

    def _count(self):
        """Adds one to each row of each table of the session."""
        for name in OWN:
            yield from self._push_to(name, self.counts.get(name, 0) + 1)

    def _assign(self):
        """Gives rows a value that is no sum: the method makes their state, then it comes along."""
        for name in OWN:
            yield from self._push_to(name, self.counts[name] + ASSIGNED, options=Option.ASSIGN)
        name = "of-a-method"
        options = Option.ASSIGN | Option.STATE
        yield from self._push_to(name, self.counts[name] + ASSIGNED, options=options)

    def _push_to(self, name, value, *, options=0):
        """Pushes to the rows of a table, which are `value` then."""
        before = self.counts.get(name, 0)
        self._possible[name] = {before, value}
        rows = np.full((len(KEYS), DIM), value if options else value - before, np.float32)
        if options & Option.STATE:
            rows = np.hstack([rows, np.full((len(KEYS), 1), PUSHES, np.float32)])
        push = self.client.push(self.numbers[name], KEYS, rows, options=options)
        yield from self.wait(push)
        self.counts[name], self._possible[name] = value, {value}

    def _check(self):
        for name, count in self.counts.items():
            yield from self._check_rows(name, dict.fromkeys(KEYS, count))

    def _check_rows(self, name, expected):
        keys = sorted(expected)
        pull = self.client.pull(self.numbers[name], keys, DIM)
        yield from self.wait(pull)
        wrong = {k: float(pull.rows[k][0]) for k in keys if pull.rows[k][0] != expected[k]}
        if wrong:
            self.problems.append(f"table {name!r}: rows {wrong}, of {expected}")

    # --- jobs -------------------------------------------------------------------------------------

    def _train(self, before=None):
        """Trains the job until it ends well; what it has pushed, by key.

        `before`: rows of its table, which is the session's. Then the job may not be repeated by
        itself, and its driver loads the rows again first.
        """
        plan = self.cluster.plans[0]
        for number in range(TRIES):
            if self.attempts:
                self.cluster.jobs.append(JobRun(plan, self.attempts))
            self.attempts += 1
            if not (yield from self._submit(plan, self.attempts - 1)):
                return {}
            ended = yield from self._ended()
            job = self.cluster.job
            job.excuses.append("its rows are checked here")
            if not ended["failure"]:
                job.told = "its rows are checked here"
                pushed = dict.fromkeys(job.books.own, 1.0)
                pushed |= {key: float(len(each)) for key, each in job.books.shared.items()}
                return pushed
            job.told = ended["failure"]
            self.say(f"attempt {number} failed: {ended['failure']}")
            was_lost = "the master was lost while the job ran" in ended["failure"]
            if before is not None and was_lost:
                if ended["again"] and job.books.own:
                    self.problems.append("a job that has pushed to the session is repeated")
                if TABLE not in ended["failure"] and not ended["again"]:
                    self.problems.append(f"the table is not named: {ended['failure']}")
            elif was_lost and not ended["again"]:
                self.problems.append(f"a job is not repeated: {ended['failure']}")
            if before is not None:
                yield from self._load(dict.fromkeys(self.counts, 2))  # as it was saved
        self.problems.append("the job fails again and again")
        return {}

    def _ended(self):
        while (yield from self._status())["phase"] not in ("idle", "stopping"):
            yield POLL_S
        return (yield from self.ask(messages.AskJob(self._number), self._limit_s)).data


class Session(Cluster):
    """A session that is taken over, in which one fault comes at the n-th message of a kind, and
    perhaps at the next one, too."""

    def __init__(self, deed, at, times):
        self._deed, (self._at, self._first), self._times = deed, at, times
        self.in_second_job = False
        super().__init__(1)
        modules = ("tests.sim.model", "nowhere")
        self.master_settings = replace(self.master_settings, modules=modules)

    def draw(self, seed):
        self.session = self.lasting = True
        scenario = replace(PLAIN, shards=2, blocks=BLOCKS, think_s=0.1, network=(0.001, 0.002, 0.0))
        return scenario, [JobPlan("async", 0, 1, BLOCKS, 1)]

    def begin(self):
        self.start_all()
        deeds = {
            "kill master": self.faults.kill_master,
            "kill server": self._replace_server,
            "kill worker": self.faults.kill_worker,
            "kill driver": self._kill_driver,
            "stand still": partial(self._stand_still, STILL_S),
            "stop all": partial(self._stand_still, STOPPED_S),
        }
        name, self._deed = self._at.removeprefix(SECOND), deeds[self._deed]
        if name == self._at:
            self._wait_for(name)

    def _wait_for(self, name):
        for number in range(self._times):
            item = [self._first + number, self._deed]
            self.faults._awaited.setdefault(name, []).append(item)

    def ordered(self, server, message):
        if self.in_second_job and self._at.startswith(SECOND):
            self._wait_for(self._at.removeprefix(SECOND))
            self.in_second_job = False
        super().ordered(server, message)

    def start_driver(self):
        self.driver = Tables(self, self.driver)
        self.driver.generation = self.generation
        self.nodes.append(self.driver)
        self.driver.start()

    def _replace_server(self):
        is_killed = self.faults.kill_server()
        if is_killed:
            self.faults.start_later(self.start_node, "server")
        return is_killed

    def _kill_driver(self):
        node = self.driver
        if not node.alive or node.welcome is None:
            return False
        node.hurt = "killed"
        node.die("killed")
        self.faults.start_later(self.start_driver)
        return True

    def _stand_still(self, seconds):
        until = self.world.now + seconds
        for process in (*self.nodes, self.master):
            process.stalled_until = until
        return True


CASES = [
    (deed, at, times)
    for deed in ("kill master", "kill server", "kill worker", "kill driver", "stand still",
                 "stop all")
    for at in (("Declare", 1), ("Declare", 3), ("MakeTables", 1), ("Submit", 1), ("Done", 2),
               ("SaveRows", 1), ("Saved", 1), ("LoadRows", 1), ("Load", 1), ("Loaded", 1),
               (f"{SECOND}Done", 1), (f"{SECOND}Done", 3))
    for times in (1, 2)
]  # fmt: skip


def name_of(part):
    return f"{part[0]} {part[1]}" if isinstance(part, tuple) else None


@pytest.mark.parametrize(("deed", "at", "times"), CASES, ids=name_of)
def test_each_kind_of_table_has_its_rows_whatever_is_lost(deed, at, times):
    outcome = Session(deed, at, times).run()
    assert outcome.faults
    assert not outcome.problems, "\n".join([*outcome.problems, *map(str, outcome.recent[-40:])])
