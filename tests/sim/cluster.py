"""One run: a cluster drawn from a seed, what happens to it, and its end.

    seed -> Scenario -> Cluster.run -> every process has ended -> invariants.check -> Outcome

It owns the processes, and what no process knows of the whole run: all pushes, the faults, the rows
that the export read.
"""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from snailps.config import MasterSettings, RawConfig, ServerSettings, WorkerSettings
from snailps.errors import SnailError
from snailps.master.life import COMMAND, LASTING, SESSION
from snailps.server.checkpoint_io import ServerCheckpointFiles
from snailps.transport import messages
from tests.sim import faults, invariants
from tests.sim.checkpoints import FOLDER, Watched
from tests.sim.disk import Disk
from tests.sim.jobs import JobPlan, JobRun, draw_end, draw_plan, draw_tests
from tests.sim.master import Master
from tests.sim.memory_disk import MemoryDisk, View
from tests.sim.model import TABLE, SimModel
from tests.sim.network import Network
from tests.sim.scheduler import Stuck, World
from tests.sim.seams import Seams, Threads
from tests.sim.server import Server
from tests.sim.session import Driver, draw_session
from tests.sim.worker import Worker

TIME_MAX_S = 1200.0
EVENTS_MAX = 400_000
SHM = Path("/dev/shm")
PREFIX = "snailps-sim-"
NETWORKS = ((0.0001, 0.0005, 0.0), (0.0001, 0.002, 0.02), (0.001, 0.02, 0.05), (0.0, 0.005, 0.2))


@dataclass(frozen=True)
class Scenario:
    """What a seed draws before the run begins."""

    servers: int
    shards: int
    workers: int
    blocks: int
    epochs: int
    consistency: str
    replication: str
    staleness: int
    micro_batches: int
    frag_num: int
    prefetch: int
    pulls_ahead: bool
    keys_max: int
    network: tuple
    think_s: float
    request_timeout: float
    heartbeat_timeout: float
    journal_bytes: int
    wild: bool
    """Faults come at any time; otherwise only faults that a cluster promises to survive."""
    faults: int
    checkpoint_s: float = 0.0
    checkpoint_pushes: int = 0
    checkpoints_kept: int = 2
    again: bool = False
    """Whether a job that failed or was interrupted is started again by the same command."""
    restarts: int = 0
    """How often, at least, the whole cluster is killed and started again, beside `faults`."""
    amid: int = 0
    """How often, at least, a process is lost in the middle of a checkpoint."""

    @classmethod
    def draw(cls, rng):
        """Mostly small clusters; a few larger ones."""
        large = rng.random() < 0.03
        consistency = rng.choice(("async", "async", "ssp", "bsp", "bsp"))
        return cls(
            servers=rng.randint(2, 6) if large else rng.choice((1, 2, 2, 3, 3, 4)),
            shards=rng.choice((1, 1, 2, 3)),
            workers=rng.randint(3, 8) if large else rng.choice((1, 2, 2, 3, 4)),
            blocks=rng.randint(40, 120) if large else rng.randint(10, 40),
            epochs=rng.choice((1, 1, 2)),
            consistency=consistency,
            replication=rng.choice(("sync", "sync", "sync", "async", "none")),
            staleness=rng.randint(0, 3),
            micro_batches=rng.randint(1, 5),
            frag_num=rng.choice((18, 24, 32)),
            prefetch=rng.choice((1, 1, 2)),
            pulls_ahead=rng.random() < 0.5,
            keys_max=rng.choice((2, 3, 1000)),
            network=rng.choice(NETWORKS),
            think_s=rng.choice((0.005, 0.02, 0.1, 0.5)),
            request_timeout=rng.choice((20.0, 60.0)),
            heartbeat_timeout=rng.choice((5.0, 10.0)),
            journal_bytes=rng.choice((2_000, 10_000, 1 << 20)),
            wild=rng.random() < 0.3,
            faults=rng.choice((0, 1, 1, 2, 2, 3, 5)),
        )

    def with_checkpoints(self, seed):
        """A third of the runs make checkpoints, by time, by pushes or by both.

        Drawn by itself, so that the other runs are what they would be without this.
        """
        rng = random.Random(f"checkpoints of {seed}")
        if rng.random() > 0.35:
            return self
        by = rng.choice(("time", "pushes", "pushes", "both"))
        share = rng.choice((0.05, 0.1, 0.3))
        usual_s = 1.5 + 2 * self.blocks * self.epochs * self.think_s / self.workers
        pushes = self.blocks * self.epochs * self.shards
        return replace(
            self,
            checkpoint_s=max(0.1, share * usual_s) if by != "pushes" else 0.0,
            checkpoint_pushes=max(1, int(share * pushes)) if by != "time" else 0,
            checkpoints_kept=rng.choice((1, 2, 3)),
            again=rng.random() < 0.8,
            restarts=rng.choice((0, 0, 1, 2)),
            amid=rng.choice((0, 0, 1, 2)),
        )


@dataclass
class Outcome:
    """The result of a run."""

    seed: int
    scenario: Scenario | None = None
    problems: list = field(default_factory=list)
    digest: int = 0
    events: int = 0
    virtual_s: float = 0.0
    ended: str = ""
    faults: int = 0
    recent: list = field(default_factory=list)


class Cluster:
    """The cluster of one run; processes and checks read its attributes."""

    numbers = random.Random
    """The generator of a run's random numbers."""

    def __init__(self, seed, trace=None):
        self.world = World(seed, trace, self.numbers(seed))
        self.rng = self.world.rng
        self.session, self.lasting, self.driver = False, False, None
        self.scenario, self.plans = self.draw(seed)
        s = self.scenario
        self.network = Network(self.world, s.network)
        self.threads = Threads()
        self.jobs = [JobRun(self.plans[0])]
        self.prefetch, self.pulls_ahead, self.keys_max = s.prefetch, s.pulls_ahead, s.keys_max
        self.frag_num = s.frag_num
        self.shards, self.generation, self.calm = s.shards, 0, False
        self.master_settings = MasterSettings(
            master_addr="master:7000",
            expected_node_num=s.servers + s.workers,
            expected_servers=s.servers,
            frag_num=s.frag_num,
            replication=s.replication,
            heartbeat_interval=0.5,
            heartbeat_timeout=s.heartbeat_timeout,
            request_timeout=s.request_timeout,
            on_node_loss="recover",
            master_time_out=120.0,
            init_timeout=60.0,
        )
        common = {"master_addr": "master:7000", "request_timeout": s.request_timeout,
                  "init_timeout": 60.0}  # fmt: skip
        self.node_settings = WorkerSettings(**common)
        self.server_settings = ServerSettings(**common)
        self.nodes, self.masters = [], []
        self.master = None
        self.broken, self.gave_up = [], {}
        self.verdict = None
        self.master_refused = ""
        self.expelled = {}
        self.powerless = self.interrupted = False
        self.watch_at, self.unnamed, self.progress = 0.0, {}, ((), 0.0)
        self.shared_disk = MemoryDisk(self.world)
        self.fenced = set()
        self._pids = {}
        self._cluster_id = 0
        self.faults = faults.Faults(self)

    def draw(self, seed):
        """The scenario, and the plans of the jobs."""
        s = Scenario.draw(self.rng).with_checkpoints(seed)
        plain = JobPlan(s.consistency, s.staleness, s.micro_batches, s.blocks, s.epochs)
        plans = draw_session(seed, plain, s.think_s)
        self.session = bool(plans)
        if self.session:
            return replace(s, checkpoint_s=0.0, checkpoint_pushes=0, restarts=0), plans
        return s, [draw_tests(seed, draw_end(seed, draw_plan(seed, plain, s.think_s)))]

    @property
    def life(self):
        """The row of `snailps.master.life`."""
        if not self.session:
            return COMMAND
        return LASTING if self.lasting else SESSION

    @property
    def job(self):
        """The job at work, or the last one."""
        return self.jobs[-1]

    @property
    def history(self):
        """The checkpoints of that job."""
        return self.job.history

    def saves_job_to(self, folder):
        """Whether checkpoints in this folder are the job's. A session's drivers save rows, too."""
        return not self.session or str(folder) == self.job.plan.checkpoints

    def journal_holds(self):
        """Whether the journal has all facts: no power was cut, no disk was full."""
        return not (self.powerless or self.disk.was_full)

    def acknowledgements_hold(self):
        """Whether no acknowledged push may be lost."""
        return invariants.acknowledgements_hold(self)

    @property
    def saves(self):
        """Whether checkpoints are made."""
        s = self.scenario
        return bool(s.checkpoint_s or s.checkpoint_pushes) and not self.job.plan.rounds

    # --- drawn as the run goes on -----------------------------------------------------------------

    def think_s(self):
        """Seconds for which a worker trains a block."""
        return self.scenario.think_s * self.rng.uniform(0.5, 1.5)

    def work_s(self, *, disk=False):
        """Seconds that a work beside a loop takes."""
        work_s = self.rng.choice((0.0005, 0.005, 0.05)) * self.rng.uniform(0.5, 1.5)
        if disk and self.world.now < self.shared_disk.slow_until:
            work_s *= 100
        return work_s

    def pid_of(self, process):
        """The process id of a process."""
        return self._pids.setdefault(process, 100 + len(self._pids))

    def new_files(self, process):
        """The checkpoint files of a master."""
        return Watched(self, process)

    def new_server_files(self, process, welcome):
        """The checkpoint files of a server."""
        return ServerCheckpointFiles(welcome.job, welcome.frag_num, View(self.shared_disk, process))

    def job_at(self, output):
        """The job with this output."""
        return self.jobs[int(str(output).rpartition("-")[2])]

    # --- reports of processes ---------------------------------------------------------------------

    def training_begins(self, restored):
        """A master begins the training, from a checkpoint or from nothing (0)."""
        cluster_id = self.master.cluster_id
        if restored or self.lasting or cluster_id != self._cluster_id:
            checkpoint = self.history.begins(self.world.now, restored)
            done, clock = (checkpoint.done, checkpoint.clock) if checkpoint else ((), 0)
            self.job.go_on(done, clock)
        self._cluster_id = cluster_id

    def heard(self, peer, message):
        """The master is about to take a message."""
        told = []
        if isinstance(message, messages.Done):
            told = [message.number] if message.pass_ == "train" else []
        elif isinstance(message, messages.Rejoin):
            told = [result["number"] for result in message.state.get("reported", ())]
        core = self.master.core
        running, member = core.job_controller.job, core.members.all.get(peer.process.number)
        # The training may have ended without the block that a worker still works on.
        dropped = member is not None and member.dropped
        if told and running is not None and not dropped:
            job = self.job_at(running.settings.output)
            for number in told:
                job.report(number, peer.process.number)
        self.faults.on_message(message, peer.process)

    def ordered(self, server, message):
        """A server is about to take an order."""
        self.faults.on_message(message, server)

    def watch(self):
        """Checks the master after each of its turns."""
        invariants.watch(self)

    # --- the run ----------------------------------------------------------------------------------

    def start_master(self):
        """Starts a master, at the one address."""
        master = Master(self, f"master{len(self.masters) + 1}")
        self.masters.append(master)
        self.master = master
        self.network.silent.discard(master.host)
        master.start()

    def start_node(self, role):
        """Starts a server or a worker, on a host of its own."""
        count = 1 + sum(node.role.name.lower() == role for node in self.nodes)
        name = f"{role}-{count}"
        if role == "server":
            node = Server(self, name, name, self.shards)
        else:
            node = Worker(self, name, name)
        node.generation = self.generation
        self.nodes.append(node)
        node.start()
        return node

    def begin(self):
        """Starts everything, and plans what goes wrong."""
        self.start_all()
        self.faults.plan()

    def handles(self, event):
        """The master's core is about to take an event."""

    def performs(self, effect):
        """An effect of it is about to be performed."""

    def start_all(self):
        """Starts a master and as many nodes as it expects."""
        settings = self.master_settings
        servers = settings.expected_servers
        self.faults.start_within(0.3, self.start_master)
        for role, count in (("server", servers), ("worker", settings.expected_node_num - servers)):
            for _ in range(count):
                self.faults.start_within(0.5, self.start_node, role)
        if self.session:
            self.faults.start_within(0.5, self.start_driver)

    def start_driver(self):
        """Starts the process whose session it is."""
        self.driver = Driver(self)
        self.driver.generation = self.generation
        self.nodes.append(self.driver)
        self.driver.start()

    def kill_all(self):
        """Kills every process."""
        for process in (*self.masters, *self.nodes):
            if process.alive:
                process.hurt = process.hurt or invariants.ALL_KILLED
                process.die("the whole cluster is killed")

    def start_again(self):
        """Gives the same command once more, maybe with other numbers of processes.

        It does as the messages say: moves a journal away that cannot be read, and makes room.
        """
        rng = self.rng
        self.generation += 1
        self.world.say("user", f"starts everything again, generation {self.generation}")
        if self.master_refused:
            shutil.rmtree(self.disk.folder / "journal", ignore_errors=True)
        self.disk.full_until = self.shared_disk.full_until = 0.0
        self.verdict = self.job.exported = None
        self.master_refused, self.interrupted = "", False
        self.fenced.clear()
        self.unnamed.clear()
        self.network.silent.clear()
        self.faults.forget_starts()
        self.shards = rng.choice((self.shards, 1, 2))
        servers = rng.choice((self.master_settings.expected_servers, 1, 2, 3))
        workers = rng.choice((self.scenario.workers, 1, 2))
        self.master_settings = replace(
            self.master_settings, expected_node_num=servers + workers, expected_servers=servers
        )
        self.start_all()

    def strict(self, node=None):
        """Whether nothing may go wrong (for a node): the run has only faults to survive."""
        if self.calm:
            return node is None or node.generation == self.generation
        return not self.scenario.wild

    @property
    def over(self):
        """Whether every process has ended and none is still to start."""
        return not self.faults.pending and not any(
            process.alive for process in (*self.masters, *self.nodes)
        )

    def over_soon(self):
        """Whether the end has begun, after which nothing fails or starts."""
        master = self.master
        return bool(self.masters) and (
            self.verdict is not None
            or (master.alive and master.core is not None and master.core.lifecycle.stopping)
        )

    def run(self):
        """Runs the cluster to its end; the outcome."""
        s, world = self.scenario, self.world
        outcome = Outcome(world.seed, s)
        parent = SHM if SHM.is_dir() else Path("/tmp")
        root = parent / f"{PREFIX}{os.getpid():09d}"
        remove_leftovers(parent)
        root.mkdir()
        try:
            self.disk = Disk(world, root)
            self.job.plan.write_input(root)
            settings = self.job.plan.settings(root, 0)
            if self.saves:
                settings |= self._checkpoints()
            self.raw = RawConfig.from_mapping(settings, "the simulation")
            with Seams(
                disk=self.disk.os, threads=self.threads, is_there=self._is_there, model=SimModel,
                journal_bytes=s.journal_bytes,
            ):  # fmt: skip
                self._run(outcome)
        finally:
            shutil.rmtree(root, ignore_errors=True)
        return outcome

    def _checkpoints(self):
        """Settings of a job that makes checkpoints."""
        s = self.scenario
        return {
            "checkpoint_dir": FOLDER,
            "checkpoint_interval": str(s.checkpoint_s),
            "param_backup_period": str(s.checkpoint_pushes),
            "checkpoints_kept": str(s.checkpoints_kept),
        }

    def _is_there(self, place):
        return self.network.is_there((place[0], int(place[1])))

    def _run(self, outcome):
        s, world = self.scenario, self.world
        world.say("seed", f"{s!r} {self.plans!r}")
        self.begin()
        try:
            world.run(self._is_over, EVENTS_MAX)
            while self._goes_on():
                world.run(self._is_over, EVENTS_MAX)
        except Stuck as stuck:
            outcome.problems.append(f"the run does not end: {stuck}; {invariants.who_waits(self)}")
        except (SnailError, AssertionError, ArithmeticError, LookupError, TypeError, ValueError,
                AttributeError, RuntimeError, OSError) as error:  # fmt: skip
            import traceback

            outcome.problems.append("".join(traceback.format_exception(error)))
        else:
            outcome.problems += invariants.check(self)
        for process in (*self.masters, *self.nodes):
            process.die("the run is over")
        outcome.digest, outcome.events = world.digest, world.events
        outcome.virtual_s = world.now - 1000.0
        outcome.recent = list(world.recent)
        outcome.faults = self.faults.count
        code, verdict, _ = self.verdict or (None, self.master_refused or "no verdict", True)
        outcome.ended = f"{code} {verdict[:60]}"

    def _is_over(self):
        if self.world.now - 1000.0 > TIME_MAX_S:
            raise Stuck(f"{TIME_MAX_S:g} s")
        return self.masters and self.over

    def _goes_on(self):
        """Starts a job again that has not ended well: once, and without further faults."""
        failed = self.verdict is None or self.verdict[0] != 0
        if (
            not (self.saves and self.scenario.again and failed)
            or self.calm
            or self.history.refusable
        ):
            return False
        self.calm = True
        self.kill_all()
        self.start_again()
        return True


def remove_leftovers(parent):
    """Removes the folders of processes that were killed in a run, and of this one's last run."""
    for folder in parent.glob(f"{PREFIX}*"):
        process = int(folder.name.removeprefix(PREFIX))
        if process == os.getpid() or not Path(f"/proc/{process}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def run(seed, trace=None):
    """Runs a seed; the outcome."""
    return Cluster(seed, trace).run()


__all__ = ["TABLE", "Cluster", "Outcome", "Scenario", "run"]
