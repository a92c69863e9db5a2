"""Random walks over `MasterCore`: members that come, hang, leave and die; a master that does.

`Walk` drives a core by events; its workers and servers follow the protocol, late and in any order.
At the end it stops making trouble: the job must then end, by itself, with every block done once.
"""

import json
import random

import pytest
from cases import seeds
from cluster_models import COUNTER, write_numbers
from master_world import LIFE, Files, Reader, Services, World

from snailps.config import JobSettings, MasterSettings, RawConfig
from snailps.errors import ClusterError, ConnectionLost, SnailError
from snailps.master import effects, events
from snailps.master.core import MasterCore
from snailps.master.effects import Fact
from snailps.master.job.job import Job
from snailps.master.job.recovery import Recovered
from snailps.master.journal import _IN_STATE
from snailps.master.services import Begun, Completed, Opened
from snailps.master.status_report import StatusReport
from snailps.node.effects import Work, WorkDone
from snailps.transport import messages as m

JOBS = {
    "plain": {"epochs": "2"},
    "own": {"assign": "own"},
    "ssp": {"consistency": "ssp", "staleness": "1"},
    "bsp": {"consistency": "bsp", "micro_batches": "3"},
    "rounds": {"worker_class": "clock_models:Mean", "rounds": "8", "input": ""},
    "survey": {"worker_class": "cluster_models:Surveyed"},
    "survey in order": {"worker_class": "cluster_models:Surveyed", "consistency": "bsp"},
}
STEPS = 700
END_STEPS = 4000


class NumberedFiles(Files):
    """Checkpoints that are never read."""

    def __init__(self):
        self.number, self.complete_ones = 0, []

    def open(self, settings, *, resumes):
        return Opened(1, "/checkpoints", [])

    def begin(self, above, cluster_id, needed_bytes):
        self.number = max(self.number, above) + 1
        return Begun(self.number, f"part-{self.number}", "now")

    def complete(self, begun, files, snapshot, **named):
        assert set(snapshot.records["state"].tolist()) <= {0, 2}
        self.complete_ones.append(snapshot)
        return Completed(f"{begun.number}", 0, 0)

    def drop(self, begun):
        pass


class ReaderOfAll(Reader):
    """Rates rounds and loads models, too."""

    def after_round(self, job, round_, reading):
        return {"loss": 1.0}

    def load(self, job, work, reading, told=None):
        return None


class Node:
    """A process of the cluster, as far as its master sees it."""

    def __init__(self, role, peer, number):
        self.role, self.peer, self.number, self.epoch = role, peer, number, 0
        self.orders, self.notes, self.stop = [], [], False
        self.leaving = ""
        self.calls = {}  # not answered yet
        # A worker's part of the job.
        self.started = self.no_more = self.summarised = self.back = False
        self.survey = False
        self.held, self.told, self.open, self.finished = {}, [], set(), None
        self.keeps = number % 2 == 0  # sends the part of a survey when it is told to
        self.sends = False

    def state(self):
        """As `Rejoin.state` has it."""
        if self.role == "server":
            return {"standbys": []}
        return {
            "started": self.started,
            "held": sorted((pass_, number) for number, (pass_, _) in self.held.items()),
            "told": self.told[-256:],
            "unsettled": sorted(self.open),
            "finished": self.finished,
        }


class Walk(World):
    """One cluster, and the trouble that it has."""

    def __init__(self, rng, make_job, values, session=False, **settings):
        self.values, self.session, self.driver, self.submitted = values, session, None, 0
        self.rng, self.make_job, self.nodes, self.calls = rng, make_job, {}, {}
        self.journal, self.arrays, self.calm, self.next_peer = [], {}, False, 0
        self.settings = settings
        self.lives = 1
        super().__init__(None if session else make_job(), session=session, **settings)

    @staticmethod
    def make_services():
        services = Services()
        services.files, services.reader = NumberedFiles(), ReaderOfAll()
        return services

    # --- effects ---------------------------------------------------------------------------

    def keep(self, kind, data):
        self.journal.append(Fact(kind, json.loads(json.dumps(data))))

    def handle(self, event):
        for effect in self.core.handle(event, self.now):
            self.perform(effect)

    def perform(self, effect):
        if isinstance(effect, Work):
            self.works.append(effect)
        elif isinstance(effect, effects.Order):
            node = self.nodes.get(effect.peer)
            if node is None:
                lost = ConnectionLost("gone")
                self.late.append(events.Answered(effect.number, lost))
            else:
                node.orders.append(effect)
        elif isinstance(effect, effects.Send):
            if effect.peer in self.nodes:
                self.hears(self.nodes[effect.peer], effect.message)
        elif isinstance(effect, effects.Answering):
            self.answered(effect.call, effect.answer)
        elif isinstance(effect, effects.ReportStatus):
            for call in effect.calls:
                self.answered(call, m.Report(self.status()))
        elif isinstance(effect, effects.StatusEvent):
            self.report.events.on_event(effect.kind, effect.who, effect.text, self.now)
        elif isinstance(effect, effects.Close):
            self.nodes.pop(effect.peer, None)
        elif isinstance(effect, effects.Broken):  # of one that has gone meanwhile it is nothing
            if effect.peer in self.nodes:
                raise AssertionError(f"broken: {effect.error!r}") from effect.error
        elif isinstance(effect, effects.Note):
            self.keep(effect.kind, effect.data)
        elif isinstance(effect, effects.Compact):
            self.compact(effect.snapshot)

    def compact(self, snapshot):
        lasting = [fact for fact in self.journal if fact.kind not in _IN_STATE]
        state = [Fact("state", snapshot.state), *snapshot.facts]
        state = [Fact(fact.kind, json.loads(json.dumps(fact.data))) for fact in state]
        self.journal = [*lasting, *state]
        self.arrays = {name: array.copy() for name, array in snapshot.arrays.items()}

    late: list  # answers that connections give when they are gone

    # --- what nodes do -----------------------------------------------------------------------

    def hears(self, node, message):
        if isinstance(message, m.Stop):
            node.stop = True
        elif isinstance(message, m.Start):
            node.started, node.survey = True, message.survey
            node.no_more = node.summarised = node.sends = False
            node.held, node.told, node.open, node.finished = {}, [], set(), None
        elif isinstance(message, m.CameBack):
            node.back = True

    def asks(self, node, message):
        self.next_call = getattr(self, "next_call", 0) + 1
        node.calls[self.next_call] = message
        self.calls[self.next_call] = node
        self.handle(events.Received(node.peer, message, self.next_call, ("h", node.peer)))

    def answered(self, call, answer):
        node = self.calls.pop(call, None)
        if node is None:
            return
        asked = node.calls.pop(call)
        if isinstance(asked, m.Register | m.Rejoin):
            self.welcome = answer
        elif isinstance(answer, Exception):
            refusable = (m.Ask, m.Drain, m.Lease, m.Done, m.Submit, m.Summarise)
            assert isinstance(asked, refusable), (asked, answer)
            assert self.session or "leased to" not in str(answer), answer
        elif isinstance(asked, m.Lease):
            if answer.number >= 0:
                node.held[answer.number] = (asked.pass_, answer.clock)
            elif asked.held:
                node.sends = True
            elif not asked.back:
                node.no_more = True
        elif isinstance(asked, m.Done):
            for number in (*asked.numbers, asked.number):
                node.held.pop(number, None)
            if asked.pass_ == "train":
                node.told.append(
                    {k: getattr(asked, k) for k in ("number", "units", "seconds", "metrics")}
                )
                node.open.add(asked.number)
            if isinstance(answer, m.Enough):
                node.no_more, node.held = True, {}
        elif isinstance(asked, m.Summarise):
            node.summarised, node.no_more = not isinstance(answer, m.Again), False

    def acts(self, node):
        """One step of a node that is alive."""
        if node.notes and self.rng.random() < 0.7:
            note = node.notes.pop(0)
            if isinstance(note, m.Saved):
                self.check_saved(note)
            self.handle(events.Received(node.peer, note))
        elif node.orders:
            self.obeys(node, node.orders.pop(0))
        elif node.stop:
            self.handle(events.Received(node.peer, m.Bye({})))
            self.gone(node, "closed")
        elif node.role == "worker" and node.started and node.finished is None:
            self.works_on(node)

    def check_saved(self, note):
        """The rows that a server has saved are still those of the clock."""
        saving = self.core.job_controller.checkpoints._saving
        if saving is not None and saving.number == note.number and saving.clock >= 0:
            assert saving.job.ledger.open_clock == saving.clock

    def works_on(self, node):
        waits = [asked for asked in node.calls.values() if not isinstance(asked, m.Ask)]
        if any(not isinstance(asked, m.Lease) for asked in waits):
            return
        if waits:  # it trains while it waits for the next one
            if node.held and not any(asked.held for asked in waits):
                self.trains_one(node)
            return
        pass_ = "survey" if node.survey and not node.summarised else "train"
        if node.open and self.rng.random() < 0.5:
            durable = sorted(node.open)[: self.rng.randint(1, 3)]
            node.open.difference_update(durable)
            self.handle(events.Received(node.peer, m.Settled(durable)))
        elif node.sends:
            node.sends = False
            numbers = sorted(node.held)
            self.asks(node, m.Done(pass_, numbers[0], 5, 0.1, {}, b"part", numbers[1:]))
        elif node.held and pass_ == "survey" and node.keeps and not node.leaving:
            self.asks(node, m.Lease(pass_, held=len(node.held) * 50_000_000))
        elif node.held and self.trains_one(node):
            pass
        elif node.back and node.held and pass_ == "train":
            node.back = False
            self.asks(node, m.Lease("train", True))
        elif node.leaving and not node.held:
            node.finished = {}
            self.handle(events.Received(node.peer, m.Finished({})))
            self.handle(events.Received(node.peer, m.Bye({})))
            self.gone(node, "closed")
        elif not node.no_more and len(node.held) < 2 and not node.leaving:
            self.asks(node, m.Lease(pass_))
        elif node.no_more and not node.held and pass_ == "survey":
            self.asks(node, m.Summarise())
        elif node.no_more and not node.held:
            node.open.clear()
            node.finished = {}
            self.handle(events.Received(node.peer, m.Finished({})))

    def trains_one(self, node):
        """Trains the first block that it may; whether there was one."""
        ledger = self.core.job_controller.job.ledger
        number = min(node.held)
        pass_, clock = node.held[number]
        if pass_ == "train" and clock > getattr(ledger, "open_clock", clock):
            node.back = node.back or self.rng.random() < 0.1
            return False
        figures = {"loss": 1.0, "examples": 1.0, "lr": 0.1} if pass_ == "train" else {}
        self.asks(node, m.Done(pass_, number, 5, 0.1, figures, b"part"))
        return True

    def obeys(self, node, order):
        message = order.message
        if not self.calm and self.rng.random() < 0.003:
            answer = ClusterError("refused")
            if not isinstance(message, m.HostStandby | m.BackUp | m.Save | m.Expire | m.Fence):
                answer = self.does(message)
        else:
            answer = self.does(message)
        if isinstance(message, m.Save):
            node.notes.append(m.Saved(message.number, [], ""))
        elif isinstance(message, m.BackUp):
            node.notes.append(m.Backed(message.shard, message.copy))
        elif isinstance(message, m.Yield):
            node.notes.append(m.Yielded(message.shard))
        elif isinstance(message, m.TakeRoute) and isinstance(answer, m.Ok):
            node.epoch = max(node.epoch, message.route["epoch"])
        self.handle(events.Answered(order.number, answer))

    def does(self, order):
        if isinstance(order, m.HostStandby):
            self.next_peer += 1
            return m.Report({"endpoint": ["h", 20_000 + self.next_peer]})
        if isinstance(order, m.Ask | m.Fence | m.SetClock | m.CloseClock | m.Expire):
            done = getattr(order, "shards", [])
            return m.Report({"done": done, "shards": [], "standbys": [], "waits": []})
        return m.Ok()

    # --- who comes and goes --------------------------------------------------------------------

    def joins(self, role):
        self.next_peer += 1
        peer = self.next_peer
        node = Node(role, peer, 0)
        self.nodes[peer] = node
        places = [["h", 5000 + peer]] if role == "server" else []
        self.welcome = None
        self.asks(node, m.Register(role, f"host{peer}", peer, 1, places))
        if isinstance(self.welcome, m.Welcome):
            node.number, node.places = self.welcome.node, places
        else:
            self.nodes.pop(peer, None)
        return node

    def gone(self, node, why):
        if self.nodes.pop(node.peer, None) is None:
            return
        orders, node.orders = node.orders, []
        for order in orders:
            self.handle(events.Answered(order.number, ConnectionLost(why)))
        self.handle(events.Gone(node.peer, why))

    def beat(self):
        silences = {node.number: 0.1 for node in self.nodes.values()}
        self.handle(events.Heartbeats(silences))

    def master_dies(self):
        """Another master takes over; some nodes do not come back."""
        self.lives += 1
        facts = [Fact("life", {"life": LIFE, "at": 0.0, "job": {}}), *self.journal]
        if not any(fact.kind == "numbers" for fact in facts):
            facts.insert(1, Fact("numbers", {"until": 1024, "readers_until": 1 << 30}))
        nodes, self.nodes, self.calls = [*self.nodes.values()], {}, {}
        self.works, self.late = [], []  # threads that die with it
        base = self.services.base
        # As a new process: nothing of the old one but the journal.
        past = Recovered(facts, "journal", base, self.arrays)
        self.services = self.make_services()
        self.services.base = base
        self.core = MasterCore(
            MasterSettings(**{"expected_node_num": 4, "expected_servers": 2, **self.settings}),
            self.services, cluster_id=LIFE, now=self.now, kept=True, past=past,
        )  # fmt: skip
        self.report = StatusReport(self.core, self.keep, facts=facts)
        self.journal = facts[1:]
        self.handle(events.Started(self.make_job(), 2))
        self.handle(events.Listening())
        for node in self.rng.sample(nodes, len(nodes)):
            if self.rng.random() < (0.03 if node.role == "server" else 0.15):
                continue
            self.comes_back(node)
            if self.rng.random() < 0.5:
                self.step()

    def comes_back(self, node):
        self.next_peer += 1
        repeated, node.calls = node.calls.values(), {}
        node.peer, node.orders = self.next_peer, []
        self.nodes[node.peer] = node
        places = getattr(node, "places", [])
        self.welcome = None
        self.asks(node, m.Rejoin(
            LIFE, node.number, node.number, node.role, f"host{node.number}", node.number, 1, places,
            node.epoch, node.leaving, node.state(),
        ))  # fmt: skip
        if not isinstance(self.welcome, m.Welcome):
            self.nodes.pop(node.peer, None)
        else:
            for asked in repeated:
                if not isinstance(asked, m.Register | m.Rejoin):
                    self.asks(node, asked)

    # --- the walk ------------------------------------------------------------------------------

    def step(self):
        rng = self.rng
        self.now += rng.choice([0.0, 0.02, 0.05])
        while self.late:
            self.handle(self.late.pop(0))
        kind = rng.random()
        live = [*self.nodes.values()]
        if kind < 0.2:
            self.handle(events.Tick())
        elif kind < 0.35 and self.works:
            at = next(
                (n for n, work in enumerate(self.works) if not work.lane), rng.randint(0, 0)
            )  # lanes keep their order
            work = self.works.pop(at if rng.random() < 0.5 else 0)
            try:
                done = WorkDone(work.number, work.run())
            except SnailError as error:
                done = WorkDone(work.number, None, error)
            self.handle(done)
        elif kind < 0.38:
            self.beat()
        elif live:
            self.acts(rng.choice(live))

    def trouble(self):
        rng = self.rng
        live = [*self.nodes.values()]
        kind = rng.random()
        if kind < 0.004 and len(live) < 8:
            self.joins(rng.choice(["server", "worker", "worker"]))
        elif kind < 0.008 and live:
            node = rng.choice(live)
            if node.role == "worker" or rng.random() < self.server_losses:
                self.gone(node, "killed")
        elif kind < 0.011 and live:
            node = rng.choice(live)
            if node.role != "driver":
                node.leaving = "SIGTERM"
                self.handle(events.Received(node.peer, m.Leaving("SIGTERM")))
        elif kind < 0.014:
            self.handle(events.JournalGrown())
        elif kind < 0.017 and live:
            node = rng.choice(live)
            if not node.stop:
                self.asks(node, m.Ask("status"))
        elif kind < 0.0173:
            self.handle(events.Signal())
        elif (
            kind < 0.021 and self.core.reported_phase in ("survey", "training") and not self.session
        ):
            self.master_dies()
        elif kind < 0.05 and self.session:
            self.drives()

    def drives(self):
        """The driver of a session submits a job, or ends it."""
        if self.driver is None or self.driver.peer not in self.nodes:
            self.driver = self.joins("driver")
        elif not self.driver.calls and self.core.reported_phase == "idle":
            self.submitted += 1
            done = self.calm and self.submitted > 2
            self.asks(self.driver, m.Shutdown() if done else m.Submit(self.values))

    server_losses = 0.2

    def run(self):
        for role in ("server", "server", "worker", "worker"):
            self.joins(role)
        for _ in range(STEPS):
            if self.core.is_over:
                return
            self.trouble()
            self.step()
        self.calm = True
        if not any(node.role == "worker" for node in self.nodes.values()):
            self.joins("worker")
        for step in range(END_STEPS * (4 if self.session else 1)):
            if self.core.is_over:
                return
            self.step()
            if self.session and step % 50 == 0 and not self.core.is_over:
                if not any(n.role == "worker" and not n.stop for n in self.nodes.values()):
                    self.joins("worker")
                self.drives()
            if step % 200 == 199:
                self.now += 5.0
                self.beat()
        status = self.core.status(self.now)
        raise AssertionError(f"no end: {status['phase']}, {status['waits']}, {status['nodes']}")


def walk(seed, folder):
    """One walk; its core when it is over."""
    rng = random.Random(seed)
    kind = rng.choice(sorted(JOBS))
    values = {"worker_class": COUNTER, "input": str(folder / "in.txt"), "block_bytes": "20"}
    values |= JOBS[kind]
    if rng.random() < 0.5:
        values["checkpoint_interval"] = "1"

    def make_job():
        return Job(RawConfig.from_mapping(values, "test"), (JobSettings, MasterSettings), 100.0)

    world = Walk.__new__(Walk)
    world.late = []
    world.__init__(
        rng, make_job, values, session=rng.random() < 0.2, expected_node_num=4, expected_servers=2,
        replication=rng.choice(["none", "sync"]),
        on_node_loss=rng.choice(["recover", "recover", "recover", "stop"]),
    )  # fmt: skip
    world.run()
    core = world.core
    done = [f.data["number"] for f in world.journal if f.kind == "done"]
    if not world.session:  # its jobs have the same numbers
        assert len(set(done)) == len(done), "a block was done twice"
    job = core.job_controller.job
    if core.code == 0 and core.phase.value == "done" and not core.verdict and not job.rounds:
        assert job.ledger.finished == job.ledger.size
    assert not any("worker 0" in node.waits for node in core.members.all.values())
    return world


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("walk")
    write_numbers(folder / "in.txt", 100)
    return folder


@pytest.mark.parametrize("seed", seeds(8))
def test_whatever_happens_the_job_ends(seed, folder):
    walk(seed, folder)
