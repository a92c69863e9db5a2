"""A driver that takes a session step by step, and knows what each row of each table is.

    steps -> Tables -> Declare, pushes, SaveRows, LoadRows, Submit ... -> rows, answers -> problems
    killed -> the next `Tables`, with the same `Known`, settles what was cut, and goes on with the
              steps that are left

A row that a push, a load or a job may have changed, and may not, has more than one possible value
until the driver has looked at it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from snailps.api.tables import Table
from snailps.errors import RemoteError
from snailps.transport import messages
from snailps.transport.frame import Option
from tests.sim.jobs import METHOD, JobPlan, JobRun
from tests.sim.model import DIM, TABLE
from tests.sim.session import POLL_S, TRIES, Driver

OWN = {"plain": "add", "of-a-method": METHOD}
"""Tables of the session, and their access methods. All rows of one are alike."""
KEYS = [3, 4, 1 << 50]
FOLDER = "/shared/of-the-driver"
BARRIER = "/shared/barrier"
"""Saved to once what another driver has asked for is to be over."""
ASSIGNED = 1000.0
PUSHES = 7.0
"""State of rows that are assigned with it."""
WHOLE = (
    "make", "count", "refused", "train", "count", "save", "count", "assign", "refused", "load",
    "adopt", "train", "assign", "count",
)  # fmt: skip
"""A life of tables and of a job, whose table is the session's when it trains again."""
OF_JOB = (
    "make", "count", "train and save", "count", "load job", "count", "train", "load job",
    "train and save", "count", "assign", "load job", "train",
)  # fmt: skip
"""Rows of a job's own checkpoints, which are the session's once a driver has loaded them."""
DRAWN = (
    "count", "count", "assign", "refused", "save", "load", "adopt", "train", "train and save",
    "load job",
)  # fmt: skip
"""Steps that may follow each other in any order, once tables are made."""


def alike(value):
    """Rows of a table of the session: (least, most) by key."""
    return dict.fromkeys(KEYS, (value, value))


@dataclass
class Known:
    """What the drivers of a session know, one after the other.

    Attributes
    ----------
    steps : list of str
        Still to be taken.
    rows : dict
        By table that the session keeps: what its rows may be, each a dict of (least, most) by key.
        A table that a job has left and no driver has made is not among them.
    saves : list of dict
        What the driver's folder may have: rows by table.
    saver : JobRun or None
        The last job that makes checkpoints.
    before_job : dict
        Rows by table as it began: drivers push nothing while it runs.
    left : dict or None
        Rows of the job's table, while it is the job's.
    running : JobRun or None
        Submitted, and nobody has looked at how it ended.
    is_loading : bool
        All rows of a table are to be of one time.
    attempts : int
        Jobs that were submitted.
    """

    steps: list
    numbers: dict = field(default_factory=dict)
    rows: dict = field(default_factory=dict)
    saves: list = field(default_factory=list)
    before_job: dict = field(default_factory=dict)
    saver: JobRun | None = None
    left: dict | None = None
    running: JobRun | None = None
    is_loading: bool = False
    attempts: int = 0


class Tables(Driver):
    """A driver with a table of each kind, which goes through `known.steps`.

    `before`: the driver that was killed.
    """

    def __init__(self, cluster, known, before=None):
        super().__init__(cluster)
        self.known, self._is_next, self.step = known, before is not None, "settle"
        if before is not None:
            self.problems = before.problems

    def _drive(self):
        while self.client is None or (yield from self._status())["phase"] == "forming":
            yield POLL_S
        self._in_use = True
        if self._is_next:
            yield from self._settle()
        steps = {
            "make": self._make_all, "count": self._count, "assign": self._assign,
            "refused": self._make_refused, "save": self._save, "load": self._load,
            "adopt": self._adopt, "train": self._train, "load job": self._load_job,
            "train and save": self._train_and_save,
        }  # fmt: skip
        while self.known.steps:
            name = self.known.steps.pop(0)
            self.step = name
            self.say(f"step: {name}")
            self.cluster.enters(name)
            yield from steps[name]()
            yield from self._check()
        self.done = True
        yield from self.ask(messages.Shutdown(), self._limit_s)

    def _settle(self):
        """Finds what is there after a killed driver: the session, its tables and its job go on."""
        known = self.known
        for job in self.cluster.jobs:
            job.excuses.append("its driver was killed")
            job.told = job.told or "its driver was killed"
        while True:  # saving waits for rows that are being loaded
            while (yield from self._status())["phase"] != "idle":
                yield POLL_S
            try:
                yield from self.ask(messages.SaveRows(BARRIER), None)
                break
            except RemoteError as error:
                self.say(f"the next driver waits: {error}")
                yield POLL_S
        for name, access in OWN.items():
            number = known.numbers.get(name)
            yield from self._make(name, access)
            if number not in (None, known.numbers[name]):
                self.problems.append(f"table {name!r} is another one for the next driver")
        if known.running is not None:
            yield from self._settle_job(known.running)
        if known.is_loading and TABLE in known.rows:
            yield from self._make(TABLE, "add")
        yield from self._check()
        known.is_loading = False

    def _settle_job(self, job):
        newest = (yield from self.ask(messages.Ask("job"), self._limit_s)).data["job"]
        failure = "it has not begun"
        if newest:
            ended = (yield from self.ask(messages.AskJob(newest), self._limit_s)).data
            if ended["settings"]["output"].endswith(f"-{job.number}"):
                failure = ended["failure"]
        self.known.running = None
        self.say(f"job {job.number} of the killed driver: {failure or 'ended well'}")
        if not failure:
            self._count_job(job)
        elif TABLE in self.known.rows:  # an earlier attempt may have pushed to it, too
            yield from self._load()

    # --- tables -----------------------------------------------------------------------------------

    def _make(self, name, access):
        table = Table(name, DIM, wire="float32", access=access)
        answer = yield from self.ask(messages.Declare([table.to_dict()]), self._limit_s)
        self.known.numbers[name] = answer.numbers[0]
        self.known.rows.setdefault(name, [alike(0.0)])

    def _make_all(self):
        for name, access in OWN.items():
            yield from self._make(name, access)

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

    def _adopt(self):
        """Declares the table that a job has left: it is the session's from now on."""
        if self.known.left is not None:
            self.known.rows[TABLE], self.known.left = [self.known.left], None
            yield from self._make(TABLE, "add")

    # --- rows -------------------------------------------------------------------------------------

    def _count(self):
        """Adds one to each row of each table of the session."""
        for name in OWN:
            value = self._value(name)
            yield from self._push_to(name, value + 1)

    def _assign(self):
        """Gives rows a value that is no sum: the method makes their state, then it comes along."""
        for name in OWN:
            yield from self._push_to(name, self._value(name) + ASSIGNED, options=Option.ASSIGN)
        name, options = "of-a-method", Option.ASSIGN | Option.STATE
        yield from self._push_to(name, self._value(name) + ASSIGNED, options=options)

    def _value(self, name):
        (rows,) = self.known.rows[name]
        return rows[KEYS[0]][0]

    def _push_to(self, name, value, *, options=0):
        """Pushes to the rows of a table, which are `value` then."""
        before = self._value(name)
        self.known.rows[name] = [alike(before), alike(value)]
        rows = np.full((len(KEYS), DIM), value if options else value - before, np.float32)
        if options & Option.STATE:
            rows = np.hstack([rows, np.full((len(KEYS), 1), PUSHES, np.float32)])
        push = self.client.push(self.known.numbers[name], KEYS, rows, options=options)
        yield from self.wait(push)
        self.known.rows[name] = [alike(value)]

    def _check(self):
        """Looks at each table of the session: then its rows are known."""
        for name, possible in list(self.known.rows.items()):
            keys = sorted({key for rows in possible for key in rows})
            pull = self.client.pull(self.known.numbers[name], keys, DIM)
            yield from self.wait(pull)
            rows = {key: float(pull.rows[key][0]) for key in keys}
            wrong = {
                key: row
                for key, row in rows.items()
                if not any(_is_in(row, each.get(key)) for each in possible)
            }
            is_mixed = not any(
                all(_is_in(row, each.get(key)) for key, row in rows.items()) for each in possible
            )
            if wrong or (is_mixed and self.known.is_loading):
                self.problems.append(
                    f"{self.step}: table {name!r}: rows {_shown(wrong or rows, possible)}"
                )
            if name in OWN and len({*rows.values()}) > 1:  # the last push came to some shards only
                value = max(rows.values())
                self.known.rows[name] = [alike(value)]
                options = Option.ASSIGN | (Option.STATE if OWN[name] == METHOD else 0)
                yield from self._push_to(name, value + 1, options=options)
            else:
                self.known.rows[name] = [{key: (row, row) for key, row in rows.items()}]

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

    def _save(self):
        known = self.known
        saved = {name: rows for name, (rows,) in known.rows.items()}
        if known.left is not None:
            saved.setdefault(TABLE, known.left)
        known.saves.append(saved)
        yield from self._insist(messages.SaveRows(FOLDER))
        known.saves = [saved]

    def _load(self):
        if self.known.saves:
            yield from self._load_from(FOLDER, self.known.saves)

    def _load_from(self, folder, saves):
        """Loads rows that one of `saves` describes. Their tables are the session's then."""
        known = self.known
        before = {**known.rows}
        names = {name for saved in saves for name in saved}
        for name in names:
            loaded = [saved[name] for saved in saves if name in saved]
            is_left = name == TABLE and known.left is not None
            known.rows[name] = [*before.get(name, [known.left] if is_left else [{}]), *loaded]
        known.is_loading = True
        yield from self._insist(messages.LoadRows(folder))
        for name in names:
            known.rows[name] = [saved[name] for saved in saves if name in saved]
            if any(name not in saved for saved in saves):
                known.rows[name] += before.get(name, [{}])
        if TABLE in names:
            known.left = None
            yield from self._make(TABLE, "add")
        known.is_loading = False

    # --- jobs -------------------------------------------------------------------------------------

    def _train(self):
        yield from self._train_by(self.cluster.plans[0])

    def _train_and_save(self):
        folder = f"/shared/job-{self.known.attempts}"
        yield from self._train_by(replace(self.cluster.plans[0], checkpoints=folder))

    def _train_by(self, plan: JobPlan):
        """Trains a job until it ends well, and counts what it has pushed.

        If its table is the session's it may not be repeated by itself, but from a checkpoint of its
        own: else its driver loads the rows again first.
        """
        known, job = self.known, None
        is_shared = TABLE in known.rows
        if is_shared:
            yield from self._save()
        for _ in range(TRIES):
            earlier = job
            job = self.cluster.job
            if known.attempts:
                job = JobRun(plan, known.attempts)
                self.cluster.jobs.append(job)
            if earlier is not None:
                job.books, job.history = earlier.books, earlier.history
            job.plan = plan
            known.attempts += 1
            known.running, known.left = job, None
            if plan.checkpoints:
                known.saver = job
                known.before_job = {name: rows for name, (rows,) in known.rows.items()}
            if not (yield from self._submit(plan, job.number)):
                return
            ended = yield from self._ended()
            known.running = None
            job.excuses.append("its rows are checked here")
            job.told = ended["failure"] or "its rows are checked here"
            if not ended["failure"]:
                self._count_job(job)
                return
            self.say(f"job {job.number} failed: {ended['failure']}")
            self._check_failure(job, ended, is_shared=is_shared)
            if is_shared and not ended["again"]:
                yield from self._load()
        self.problems.append("the job fails again and again")

    def _check_failure(self, job, ended, *, is_shared):
        """A job fails with its master, and may be repeated unless that would push twice."""
        if "the master was lost while the job ran" not in ended["failure"]:
            return
        is_saved = job.history.newest() is not None
        if not is_shared and not ended["again"]:
            self.problems.append(f"a job is not repeated: {ended['failure']}")
        if is_shared and ended["again"] and job.books.own and not is_saved:
            self.problems.append("a job that has pushed to the session is repeated")
        if is_shared and not ended["again"] and TABLE not in ended["failure"]:
            self.problems.append(f"the table is not named: {ended['failure']}")

    def _ended(self):
        while (yield from self._status())["phase"] not in ("idle", "stopping"):
            yield POLL_S
        return (yield from self.ask(messages.AskJob(self._number), self._limit_s)).data

    def _count_job(self, job):
        """Adds what a job has pushed to the rows of its table."""
        pushed = rows_of(job.books, job.history)
        if TABLE in self.known.rows:
            (before,) = self.known.rows[TABLE]
            self.known.rows[TABLE] = [_sum(before, pushed)]
        else:
            self.known.left = pushed

    def _load_job(self):
        """Loads the rows of a job's own checkpoint."""
        job, before = self.known.saver, self.known.before_job
        if job is None or job.history.newest() is None:
            return
        saved = rows_of(job.books, job.history.loaded(self.world.now))
        yield from self._load_from(
            job.plan.checkpoints, [{**before, TABLE: _sum(before.get(TABLE, {}), saved)}]
        )


def rows_of(books, history):
    """The rows that a job's pushes make: (least, most) by key."""
    pushes = {key: [push] for key, push in books.own.items()} | books.shared
    rows = {}
    for key, pushed in pushes.items():
        fates = [history.fate(push.drawn_at, push.acked_at) for push in pushed]
        rows[key] = float(sum(least for least, _ in fates)), float(sum(most for _, most in fates))
    return rows


def _sum(rows, others):
    both = {}
    for key in {*rows, *others}:
        least, most = rows.get(key, (0.0, 0.0))
        more = others.get(key, (0.0, 0.0))
        both[key] = least + more[0], most + more[1]
    return both


def _shown(rows, possible):
    """Each row, and what it may be."""
    return {key: (row, [each.get(key, 0.0) for each in possible]) for key, row in rows.items()}


def _is_in(row, bounds):
    least, most = bounds or (0.0, 0.0)
    return least <= row <= most
