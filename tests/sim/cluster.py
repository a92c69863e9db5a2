"""One run: a cluster drawn from a seed, what happens to it, and its end.

    seed -> Scenario -> Cluster.run -> every process has ended -> invariants.check -> Outcome

It owns what is started, and what the run knows of itself that no process knows: pushes, processes
that had a fault, what the export read.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from snailps.config import MasterSettings, RawConfig, ServerSettings, WorkerSettings
from snailps.errors import SnailError
from snailps.transport import messages
from tests.sim import faults, invariants
from tests.sim.disk import Disk
from tests.sim.jobs import JobPlan, JobRun, draw_plan
from tests.sim.master import Master
from tests.sim.model import TABLE, SimModel
from tests.sim.network import Network
from tests.sim.scheduler import Stuck, World
from tests.sim.seams import Seams, Threads
from tests.sim.server import Server
from tests.sim.worker import Worker

TIME_MAX_S = 1200.0
EVENTS_MAX = 400_000
SHM = Path("/dev/shm")
NETWORKS = ((0.0001, 0.0005, 0.0), (0.0001, 0.002, 0.02), (0.001, 0.02, 0.05), (0.0, 0.005, 0.2))


@dataclass(frozen=True)
class Scenario:
    """What a seed draws before anything happens."""

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
    """Faults come as they come; otherwise only those that a cluster promises to survive."""
    faults: int

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


@dataclass
class Outcome:
    """What a run came to."""

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
    """A cluster of one run; its attributes are what its processes and the checks look at."""

    def __init__(self, seed, trace=None):
        self.world = World(seed, trace)
        self.rng = rng = self.world.rng
        self.scenario = s = Scenario.draw(rng)
        self.network = Network(self.world, s.network)
        self.threads = Threads()
        plain = JobPlan(s.consistency, s.staleness, s.micro_batches, s.blocks, s.epochs)
        self.jobs = [JobRun(draw_plan(seed, plain, s.think_s))]
        self.prefetch, self.pulls_ahead, self.keys_max = s.prefetch, s.pulls_ahead, s.keys_max
        self.frag_num = s.frag_num
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
        self.watch_at, self.unnamed = 0.0, {}
        self.fenced = set()
        self._pids = {}
        self.faults = faults.Faults(self)

    @property
    def job(self):
        """The job that is under way, or was the last one."""
        return self.jobs[-1]

    # --- drawn as the run goes on -----------------------------------------------------------------

    def think_s(self):
        """How long a worker trains a block."""
        return self.scenario.think_s * self.rng.uniform(0.5, 1.5)

    def work_s(self):
        """How long something beside a loop takes."""
        return self.rng.choice((0.0005, 0.005, 0.05)) * self.rng.uniform(0.5, 1.5)

    def pid_of(self, process):
        """A number for a process."""
        return self._pids.setdefault(process, 100 + len(self._pids))

    def new_files(self):
        """Checkpoints, for a master."""
        return NoFiles()

    def new_server_files(self):
        """Checkpoints, for a server."""
        return NoFiles()

    def job_of(self, start):
        """The job that a worker is told."""
        number = int(start.settings["output"].rpartition("-")[2])
        return self.jobs[number]

    # --- what is told -----------------------------------------------------------------------------

    def heard(self, peer, message):
        """The master is about to take a message."""
        if isinstance(message, messages.Done):
            self.job.books.reported.add(message.number)
        elif isinstance(message, messages.Rejoin):
            self.job.books.reported.update(told["number"] for told in message.state.get("told", ()))
        self.faults.on_message(message, peer.process)

    def ordered(self, server, message):
        """A server is about to take an order."""
        self.faults.on_message(message, server)

    def watch(self):
        """Looks at the master, after each of its turns."""
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
            node = Server(self, name, name, self.scenario.shards)
        else:
            node = Worker(self, name, name)
        self.nodes.append(node)
        node.start()
        return node

    @property
    def over(self):
        """Whether every process has ended, and none is to come."""
        return not self.faults.pending and not any(
            process.alive for process in (*self.masters, *self.nodes)
        )

    def over_soon(self):
        """Whether the end has begun: nothing more goes wrong then, or comes."""
        master = self.master
        return bool(self.masters) and (
            self.verdict is not None
            or (master.alive and master.core is not None and master.core.lifecycle.stopping)
        )

    def run(self):
        """Runs the cluster to its end; what came of it."""
        s, world = self.scenario, self.world
        outcome = Outcome(world.seed, s)
        root = (SHM if SHM.is_dir() else Path("/tmp")) / f"snailps-sim-{os.getpid():09d}"
        shutil.rmtree(root, ignore_errors=True)  # of a process that was killed
        root.mkdir()
        try:
            self.disk = Disk(world, root)
            self.job.plan.write_input(root)
            self.raw = RawConfig.from_mapping(self.job.plan.settings(root, 0), "the simulation")
            with Seams(
                disk=self.disk.os, threads=self.threads, is_there=self._is_there, model=SimModel,
                journal_bytes=s.journal_bytes,
            ):  # fmt: skip
                self._run(outcome)
        finally:
            shutil.rmtree(root, ignore_errors=True)
        return outcome

    def _is_there(self, place):
        return self.network.is_there((place[0], int(place[1])))

    def _run(self, outcome):
        s, world, rng = self.scenario, self.world, self.rng
        world.say("seed", f"{s!r} {self.job.plan!r}")
        world.after(rng.uniform(0, 0.3), self.start_master)
        for role, count in (("server", s.servers), ("worker", s.workers)):
            for _ in range(count):
                world.after(rng.uniform(0, 0.5), self.start_node, role)
        self._expected = s.servers + s.workers
        self.faults.plan()
        try:
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
        return len(self.nodes) >= self._expected and self.masters and self.over


class NoFiles:
    """No checkpoints."""

    def open(self, settings, *, resumes):
        """There are none."""
        return

    def clear(self):
        """Nothing to remove."""

    def release(self, taken, why):
        """Nothing to let go of."""


def run(seed, trace=None):
    """Runs a seed; what came of it."""
    return Cluster(seed, trace).run()


__all__ = ["TABLE", "Cluster", "Outcome", "Scenario", "run"]
