"""A `MasterCore` with peers that a test plays: no process, socket or thread."""

from snailps.config import MasterSettings, RawConfig
from snailps.master import effects, events
from snailps.master.context import Context
from snailps.master.core import MasterCore
from snailps.master.effects import Fact
from snailps.master.job.job import Job
from snailps.master.job.recovery import Recovered
from snailps.master.job.session import SessionJob
from snailps.master.job.state import pack
from snailps.master.life import COMMAND, LASTING, SESSION
from snailps.master.phases import ClusterPhase
from snailps.master.status_report import StatusReport
from snailps.node.effects import Answering, Tick, Work, WorkDone
from snailps.transport import messages as m

LIFE = 7
STEP_S = 1.0
"""Longest time between two events of a master that runs."""


class Files:
    """Checkpoint files of a master without checkpoints."""

    def open(self, settings, *, resumes, anyway=False, of_session=False):
        return None

    def clear(self):
        pass

    def release(self, taken, why):
        pass


class Reader:
    """A reader that reads and writes nothing."""

    looks = ()

    def export(self, job, reading, told):
        return {"files": []}

    def look(self, job, looks, number, reading, *, stays=False):
        return [{"f1": 0.5}]


class Services:
    """The services of the core, done at once."""

    def __init__(self, files):
        self.files, self.reader, self.base = files, Reader(), b""

    def more_files(self):
        return self.files

    def sync_journal(self):
        pass

    def keep_base(self, position):
        self.base = pack(position)

    def load_job(self, settings, now):
        return Job(RawConfig.from_mapping(settings, "the submitted job"), now=now)


class World:
    """A core, and peers that obey every order unless a test says otherwise.

    Attributes
    ----------
    effects : list
        All effects of the core, in order.
    obey : bool
        Whether orders are answered at once.
    slow : bool
        Whether works wait for `work`.
    """

    def __init__(
        self, job=None, past=None, session=False, lasting=False, nodes_stay=True, kept=True,
        files=None, saves=None, slow=False, **settings,
    ):  # fmt: skip
        settings = {"expected_node_num": 3, "expected_servers": 1, **settings}
        self.now, self.effects, self.obey, self.slow = 100.0, [], True, slow
        self.works, self.earlier = [], []
        self.services, self.answers = Services(files or Files()), {}
        self.last_peer = self._call = 0
        life = COMMAND if not session else LASTING if lasting else SESSION
        context = Context(
            MasterSettings(**settings), effects.Outbox(kept=kept, life=life), LIFE, self.now,
            life, SessionJob(RawConfig.from_mapping(saves or {}, "a test")), nodes_stay,
        )  # fmt: skip
        self.core = MasterCore(context, self.services, past, lambda: 70.0)
        facts = past.facts if past is not None else []
        self.report = StatusReport(self.core, self.keep, facts=facts)
        self.handle(events.Started(job, 2))
        self.handle(events.Listening())

    def keep(self, kind, data):
        """Notes a fact of the status report."""
        self.effects.append(effects.Journaled(kind, data))

    def status(self):
        return self.report.status(self.now)

    def handle(self, event):
        """Hands the core an event, and performs its effects."""
        for effect in self.core.handle(event, self.now):
            self.effects.append(effect)
            if isinstance(effect, Work):
                self.works.append(effect)
                if not self.slow:
                    self.work()
            elif isinstance(effect, Answering):
                self.answers[effect.call] = effect.answer
            elif isinstance(effect, effects.ReportStatus):
                self.answers |= dict.fromkeys(effect.calls, m.Report(self.status()))
            elif isinstance(effect, effects.StatusEvent):
                self.report.events.on_event(effect.kind, effect.who, effect.text, self.now)
            elif isinstance(effect, effects.Order) and self.obey:
                self.handle(events.Answered(effect.number, self.does(effect.message)))

    def work(self):
        """Runs the pending works."""
        while self.works:
            work = self.works.pop(0)
            try:
                done = WorkDone(work.number, work.run())
            except Exception as error:
                done = WorkDone(work.number, None, error)
            self.handle(done)

    def does(self, order):
        """The answer of a peer to an order."""
        shards = {"done": getattr(order, "shards", []), "shards": [], "standbys": []}
        return m.Report(shards) if isinstance(order, m.Ask | m.Fence | m.SetClock) else m.Ok()

    def tick(self, seconds=0.05, times=1):
        """Lets time pass in steps: after one long step the master would take itself for stopped."""
        for _ in range(times):
            end = self.now + seconds
            while self.now < end:
                self.now = min(end, self.now + STEP_S)
                self.handle(Tick())

    def stands_still(self, seconds):
        """Stops the master for this long."""
        self.now += seconds
        self.handle(Tick())

    def orders(self, kind):
        """Orders of a kind so far."""
        orders = [effect for effect in self.effects if isinstance(effect, effects.Order)]
        return [order for order in orders if isinstance(order.message, kind)]

    def call(self, peer, message):
        """Makes a call of a peer; its number."""
        self._call += 1
        self.handle(events.Received(peer, message, 1000 + self._call, ("h", peer)))
        return 1000 + self._call

    def ask(self, peer, message):
        """Makes a call of a peer; its answer, or None if there is none yet."""
        return self.answers.get(self.call(peer, message))

    def note(self, peer, message):
        self.handle(events.Received(peer, message))

    def join(self, role):
        """Registers another process; its connection."""
        self.last_peer += 1
        places = [["h", 5000 + self.last_peer]] if role == "server" else []
        welcome = self.ask(self.last_peer, m.Register(role, "h", self.last_peer, 1, places))
        assert isinstance(welcome, m.Welcome)
        return self.last_peer

    def forms(self):
        """Forms a cluster of one server and two workers; their connections."""
        peers = [self.join(role) for role in ("server", "worker", "worker")]
        self.tick(times=4)
        assert self.core.phase is ClusterPhase.FORMED
        return peers

    def sent(self, peer, kind=object):
        messages = [
            e.message for e in self.effects if isinstance(e, effects.Send) and e.peer == peer
        ]
        return [message for message in messages if isinstance(message, kind)]

    def facts(self):
        return [Fact(e.kind, e.data) for e in self.effects if isinstance(e, effects.Journaled)]

    def trains(self, peer):
        """Has a worker train a block; False if it gets none now."""
        lease = self.ask(peer, m.Lease("train"))
        if lease is None or lease.number < 0:
            return False
        figures = {"loss": 1.0, "examples": 1.0}
        self.ask(peer, m.Done("train", lease.number, 5, 0.1, figures))
        self.note(peer, m.Durable([lease.number]))
        return True

    def finishes(self, workers, slow=False):
        """The workers train all blocks of the job, which is exported, unless works are `slow`."""
        while sum(self.trains(worker) for worker in workers):
            self.tick()
        self.slow = slow
        for worker in workers:
            self.note(worker, m.Finished({}))
        self.tick(times=3)


def takes_over(world, job, kind=World, **how):
    """A master that takes over from the facts of another one."""
    first = Fact("cluster", {"cluster_id": LIFE, "at": 0.0, "job": {}})
    facts = [first, Fact("numbers", {"until": 1024, "readers_until": 1 << 30}), *world.facts()]
    return kind(job, Recovered(facts, "journal", world.services.base), **how)


def rejoin(world, number, servers=1, **state):
    """A member rejoins: the first `servers` numbers are servers, the others workers."""
    if number <= servers:
        role, places, state = "server", [["h", 5000 + number]], {"standbys": []}
    else:
        said = {"held": [], "reported": [], "not_durable": [], "finished": None, "started": True}
        role, places, state = "worker", [], {**said, **state}
    message = m.Rejoin(LIFE, number, number, role, "h", number, 1, places, 1, "", state)
    return world.ask(number, message)
