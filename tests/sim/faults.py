"""What goes wrong in a run: drawn from its seed, tied to times or to messages.

    plan -> (trigger, deed)     a time comes, or the k-th message of a kind is to be handled -> deed

It owns the rules of what a cluster promises to survive: in a run that is not `wild` a deed waits
until the cluster can bear it (`_may_lose_server`), and is dropped if it never can.  A process that
had a fault is marked `hurt`.
"""

from __future__ import annotations

import random

from snailps.master.job.controller import JobPhase
from snailps.master.phases import REACH, STAY, WORK, ClusterPhase
from snailps.transport.handshake import Role
from tests.sim.checkpoints import FOLDER

MESSAGES = (
    "Register", "Rejoin", "TakeRoute", "MakeTables", "HostStandby", "BackUp", "Backed", "Unbacked",
    "Alone", "Promote", "Yield", "Yielded", "DropShard", "KeepShards", "Fence", "SetClock", "Lease",
    "Done", "Durable", "Finished", "Declare", "Leaving", "Bye",
)  # fmt: skip
CLOCK_MESSAGES = ("Seal", "Seal", "Seal")
"""Frames of workers to shards, in jobs with clocks."""
ROUND_MESSAGES = ("CloseClock", "CloseClock", "CloseClock")
CHECKPOINT_MESSAGES = 3 * ("Save", "Save", "Saved", "StopSaving", "Load", "Loaded")
SESSION_MESSAGES = ("Submit", "Submit", "Shutdown", "Failed")
SURVEY_MESSAGES = ("Summarise", "Summarise", "Done")
EXPIRY_MESSAGES = ("Expire", "Expire", "Expire")
SHORT = 0.15
"""Share of the heartbeat's limit: several such faults in a row are no loss yet."""
FOCUS = 0.8
"""How often a fault that is bound to a message meets the node that sent or got it."""
TRIES = 40
TRY_S = 0.25


class Faults:
    """The faults of one run.

    Attributes
    ----------
    pending : int
        Processes that are still to be started.
    count : int
        Faults that have happened.
    """

    def __init__(self, cluster):
        self._cluster, self._world, self._rng = cluster, cluster.world, cluster.rng
        self._wild = cluster.scenario.wild
        self._awaited = {}  # message -> [(how often yet, deed)]
        self.pending = self.count = 0
        self._journal_lost = self._terminates = False
        self._worker_losses = 0
        self._focus = None

    def plan(self):
        """Draws all faults of the run."""
        cluster, rng, s = self._cluster, self._rng, self._cluster.scenario
        plans = cluster.plans
        usual_s = sum(plan.usual_s(s.think_s, s.workers) for plan in plans)
        names = MESSAGES + CLOCK_MESSAGES * any(plan.clocked for plan in plans)
        names += ROUND_MESSAGES * any(plan.rounds for plan in plans)
        names += SESSION_MESSAGES * cluster.session
        names += SURVEY_MESSAGES * any(plan.survey for plan in plans)
        names += EXPIRY_MESSAGES * any(plan.expires for plan in plans)
        names += CHECKPOINT_MESSAGES * cluster.saves
        fatal = [self._kill_all, self._kill_all_in_a_call, self._kill_all_and_flip]
        for number in range(s.faults + s.restarts * cluster.saves):
            deed = rng.choice(self._deeds() if number < s.faults else fatal)
            if rng.random() < 0.5:
                cluster.world.after(rng.uniform(0.1, usual_s), self._do, deed, TRIES)
            else:
                name = rng.choice(names)
                often = rng.choice((1, 1, 2, 3, rng.randint(1, 20)))
                self._awaited.setdefault(name, []).append([often, deed])
        for _ in range(s.amid * cluster.saves):
            self._lose_amid()
        if plans[0].durable:
            self._lose_amid_checkouts(random.Random(f"visits of {self._world.seed}"))
        chance, plan = random.Random(f"orders of {self._world.seed}"), plans[0]
        if cluster.session:
            return
        if plan.clocked and s.replication != "none" and s.servers > 1 and chance.random() < 0.25:
            self._lose_at_an_order(chance, "CloseClock" if plan.rounds else "Fence")
        if chance.random() < 0.05:
            self._join_a_takeover(chance, usual_s)
        chance = random.Random(f"terminations of {self._world.seed}")
        if not self._wild and chance.random() < 0.15:
            self._terminate_some(chance, usual_s, names)
        chance = random.Random(f"swaps of {self._world.seed}")
        if s.replication != "none" and s.servers > 1 and chance.random() < 0.05:
            self._lose_at_an_order(chance, "Promote")  # the former primary has a stream to it yet
        chance = random.Random(f"encounters of {self._world.seed}")
        if chance.random() < 0.15:
            self._meet_a_member(chance)

    def at_time(self, seconds, deed):
        """Plans a deed."""
        self._world.after(seconds, self._do, deed, TRIES)

    def at_message(self, name, number, deed):
        """Plans a deed at the n-th message of a kind from now on."""
        self._awaited.setdefault(name, []).append([number, deed])

    def _terminate_some(self, chance, usual_s, names):
        """The master is evicted, more than once perhaps, and while another one takes over."""
        self._terminates = True
        for _ in range(chance.choice((1, 1, 2, 3))):
            if chance.random() < 0.5:
                self._world.after(chance.uniform(0.1, usual_s), self._do, self.terminate, TRIES)
            else:
                name = chance.choice(("Rejoin", *names))
                self._awaited.setdefault(name, []).append([chance.randint(1, 5), self.terminate])

    def _meet_a_member(self, chance):
        """A member is lost, missed or asked to leave in a phase; drawn from the product's tables.

        Only one of its phases is drawn; the others are whatever they are at that time.
        """
        events = {
            "was_lost": self._lose,
            "was_missed": self._miss,
            "asked_to_leave": self._ask_to_leave,
        }
        pairs = [
            (phase, event)
            for table in (REACH, STAY, WORK)
            for phase in table
            for event in events
            if phase not in STAY or event in STAY[phase]
        ]
        for _ in range(chance.choice((1, 1, 2))):
            phase, event = chance.choice(pairs)
            often = chance.choice((1, 1, 2, 3, chance.randint(1, 8)))
            self._awaited.setdefault(phase, []).append([often, events[event]])

    def _lose(self):
        is_server = self._focus is not None and self._focus.role == Role.SERVER
        return self.kill_server() if is_server else self.kill_worker()

    def _ask_to_leave(self):
        is_server = self._focus is not None and self._focus.role == Role.SERVER
        return self._drain() if is_server else self._leave()

    def _miss(self):
        """The master is lost, and a member while the next one waits for it."""
        node = self._focus
        if not self.kill_master():
            return False

        def lose():
            self._focus = node
            if not (self._cluster.over_soon() or self._cluster.calm):
                self._lose()

        self._world.after(self._rng.uniform(0.0, 5.0), lose)
        return True

    def _join_a_takeover(self, chance, usual_s):
        """A node joins while the members of a lost master come back, and that one is lost, too."""
        role = chance.choice(("worker", "server"))
        pause_s = chance.uniform(0.1, 5.0)

        def join():
            self._cluster.start_node(role)  # at once: soon all members are back
            self._world.after(pause_s, self._do, self.kill_master, TRIES)
            return True

        self._world.after(chance.uniform(0.3, usual_s), self._do, self.kill_master, TRIES)
        self._awaited.setdefault("Rejoin", []).append([1, join])

    def _lose_amid_checkouts(self, chance):
        """Workers are lost in partitions, some after durable checkouts; the master, perhaps."""
        deeds = chance.choice(
            ((), (self.kill_worker,), (self.kill_worker, self.kill_worker),
             (self.kill_worker, self.kill_master), (self.kill_master, self.kill_worker))
        )  # fmt: skip
        often = 0
        for deed in deeds:
            often += chance.randint(1, 12)
            self._awaited.setdefault("CheckIn", []).append([often, deed])

    def _lose_at_an_order(self, chance, name):
        """A server is lost at an order that its standbys have not got yet.

        In bsp the order is to seal in place of a worker, which is lost when it reports its block.
        """
        if name == "Fence":
            often = chance.randint(1, 15)
            self._awaited.setdefault("Done", []).append([often, self.kill_worker])
            name = chance.choice(("Fence", "Fence", "Fence", "SetClock"))
        before_s = chance.choice((0.002, 0.02, 0.1, 0.5))

        def part():
            node = self._focus
            if node is None or node.role != Role.SERVER or not node.alive:
                return False
            until = self._world.now + SHORT * self._cluster.scenario.heartbeat_timeout
            for other in self._alive(Role.SERVER):
                if other is not node:
                    self._cluster.network.cut(node.host, other.host, until)
            self._world.say("fault", f"{node.name} is parted from all servers for a moment")
            self._world.after(before_s, kill, node)
            return True

        def kill(node):
            self._focus = node
            if node.alive and not (self._cluster.over_soon() or self._cluster.calm):
                self.kill_server()

        self._awaited.setdefault(name, []).append([chance.choice((1, 1, 2, 3)), part])

    def _lose_amid(self):
        """A process is lost at a message of a checkpoint, or soon after it.

        If the cluster could not bear the loss then, it waits for another message.
        """
        rng = self._rng
        deed = rng.choice(
            (self.kill_server, self.kill_server, self.kill_server, self.kill_master,
             self.kill_master, self.kill_worker, self._stall_long, self._break_control,
             self._drain)
        )  # fmt: skip
        name = rng.choice(("Save", "Save", "Save", "Save", "Saved", "StopSaving"))
        delays = rng.choice((0, 1, 2, 4))

        def lose():
            self._world.after(delays * self._cluster.network.delay(), do, self._focus)
            return True

        def do(node):
            if self._cluster.over_soon() or self._cluster.calm:
                return
            self._focus = node
            if not deed():
                self._lose_amid()

        self._awaited.setdefault(name, []).append([rng.choice((1, 2, 3, rng.randint(1, 20))), lose])

    def _deeds(self):
        deeds = [
            self.kill_worker, self.kill_worker, self.kill_server, self.kill_server,
            self.kill_master, self.kill_master, self._stall, self._stall, self._stall_long,
            self._break_data, self._break_pulse, self._break_control, self._part, self._part_long,
            self._join_worker, self._join_server, self._drain, self._leave, self._disk_full,
            self._hang_shard,
            self._join_and_die,
        ]  # fmt: skip
        if self._cluster.saves:
            deeds += [
                self._kill_all, self._kill_all, self._kill_all_in_a_call, self._kill_all_and_flip,
                self._shared_disk_full, self._shared_disk_slow,
            ]  # fmt: skip
        if self._cluster.session:  # it has no journal: no master takes over
            journal = (self.kill_master, self._disk_full)
            deeds = [deed for deed in deeds if deed not in journal]
            deeds += [self._fail_worker, self._fail_worker, self._kill_driver]
            if self._wild:
                deeds += [self._end_master, self._interrupt, self._kill_two_servers]
        elif self._wild:
            deeds += [self._power_cut, self._flip, self._interrupt, self._kill_two_servers]
        return deeds

    def on_message(self, message, node):
        """Called before a message of or to a node is handled: a fault may wait for it."""
        self.on_event(type(message).__name__, node)

    def awaits(self, name):
        """Whether a fault waits for an event of this name."""
        return name in self._awaited

    def on_event(self, name, node):
        """Like `on_message`, for any named event, and for a phase that a member has entered."""
        waiting = self._awaited.get(name)
        if not waiting:
            return
        for item in waiting:
            item[0] -= 1
        due = [deed for often, deed in waiting if often == 0]
        for deed in due:
            if self._rng.random() < 0.5:
                self._do(deed, TRIES, node)
            else:
                self._world.after(self._cluster.network.delay(), self._do, deed, TRIES, node)

    def _do(self, deed, tries, node=None):
        """Does a deed now, or later if the cluster could not bear it yet; whether it was done."""
        if self._cluster.over_soon() or self._cluster.calm:
            return
        self._focus = node if self._rng.random() < FOCUS else None
        if deed():
            self.count += 1
        elif tries:
            self._world.after(TRY_S, self._do, deed, tries - 1)

    # --- who and whether --------------------------------------------------------------------------

    def _alive(self, role):
        return [node for node in self._cluster.nodes if node.alive and node.role == role]

    def _is_last(self, role, node):
        """Whether a node is the last healthy one of its role."""
        return not any(other is not node and not other.hurt for other in self._alive(role))

    def _one(self, items):
        if self._focus in items:
            return self._focus
        return self._rng.choice(items) if items else None

    def _core(self):
        """The master's core, if there is a master that runs."""
        master = self._cluster.master
        return master.core if master is not None and master.runs else None

    def _forming(self):
        core = self._core()
        return core is not None and core.lifecycle.forming

    def _may_lose_server(self):
        """Whether the cluster promises to survive the loss of any one server just now."""
        core = self._core()
        if self._wild:
            return True
        if core is None or core.members.returning:
            return False
        if core.lifecycle.forming and self._cluster.session:
            return False  # its processes are not replaced
        if core.lifecycle.forming:
            expected = self._cluster.master_settings.expected_node_num
            return not core.members.formed_before and len(core.members.nodes()) < expected - 1
        if core.lifecycle.phase is not ClusterPhase.FORMED:
            return False
        if self._cluster.scenario.replication == "none" or not core.replication.standbys.redundant:
            return False
        for node in self._alive(Role.SERVER):
            if node.hurt and (not node.runs or node.number in core.members.all):
                return False  # an earlier loss, which may not be known yet
        return all(
            node.number in core.members.all and node.control is not None and not node.control.away
            for node in self._alive(Role.SERVER)
            if not node.hurt and node.welcome is not None
        ) and all(
            number_node.alive
            for number_node in self._cluster.nodes
            if number_node.role == Role.SERVER and number_node.number in core.members.all
        )

    def _may_lose_worker(self):
        """Whether the cluster promises to survive the loss of a worker just now."""
        core = self._core()
        if self._wild:
            return True
        if core is None or core.members.returning:
            return False
        if self._cluster.session:
            return not core.lifecycle.forming
        return core.lifecycle.forming or core.job_controller.can_wait

    def _excuse(self, role, last):
        """Notes that a session's job may end: it lost its last worker, or three of them."""
        job = self._cluster.job
        if self._cluster.session and role == Role.WORKER:
            self._worker_losses += 1
            if last or self._worker_losses > 2:
                job.excuses.append("workers were lost")

    def _replace(self, role, surely):
        """Starts a process in place of one that is gone; in a session the driver does."""
        if self._cluster.session:
            return
        if surely or self._rng.random() < 0.5:
            self.start_later(self._cluster.start_node, role)

    def start_later(self, start, *args):
        self._start_in(
            self._rng.choice((0.05, 0.5, 3.0)) * self._rng.uniform(0.5, 1.5), start, *args
        )

    def start_within(self, seconds, start, *args):
        """Starts a process at a time drawn within these seconds."""
        self._start_in(self._rng.uniform(0, seconds), start, *args)

    def forget_starts(self):
        """Drops all starts: they belong to a cluster that is gone."""
        self.pending = 0

    def _start_in(self, delay_s, start, *args):
        self.pending += 1
        generation = self._cluster.generation

        def begin():
            if generation != self._cluster.generation:
                return
            self.pending -= 1
            if not self._cluster.over_soon():
                start(*args)

        self._world.after(delay_s, begin)

    def _hurt(self, node, how):
        self._excuse(node.role, self._is_last(node.role, node))
        node.hurt = node.hurt or how
        self._world.say("fault", f"{node.name}: {how}")

    # --- deeds ------------------------------------------------------------------------------------

    def _kill_all(self):
        """Kills the whole cluster and starts it again: it goes on from its newest checkpoint."""
        self._world.say("fault", "the whole cluster is killed")
        self._restart(power=self._rng.random() < 0.5)
        return True

    def _kill_all_and_flip(self):
        """Kills the whole cluster, and flips a bit of its newest checkpoint."""
        cluster = self._cluster
        newest = cluster.history.newest()
        if newest is None:
            return False
        cluster.kill_all()
        if cluster.shared_disk.flip_bit(f"{FOLDER}/checkpoint-{newest.number:06d}"):
            newest.damaged = True
        return self._kill_all()

    def _kill_all_in_a_call(self):
        """Cuts the power in the middle of a call of the checkpoints' disk."""
        disk = self._cluster.shared_disk
        if disk.on_cut is not None:
            return False
        generation = self._cluster.generation

        def cut():
            if generation == self._cluster.generation and not self._cluster.over_soon():
                self._world.say("fault", "the whole cluster loses its power in a call of a disk")
                self._restart(power=True)

        disk.on_cut, disk.cut_in = cut, self._rng.randint(1, 60)
        return True

    def _restart(self, *, power):
        cluster = self._cluster
        cluster.kill_all()
        if power:
            cluster.disk.lose_power()
            cluster.shared_disk.lose_power()
        cluster.start_again()

    def _shared_disk_full(self):
        """Fills the checkpoints' disk for a while."""
        self._world.say("fault", "the disk of checkpoints is full")
        self._cluster.shared_disk.full_until = self._world.now + self._rng.choice((0.1, 1.0, 1000))
        return True

    def _shared_disk_slow(self):
        """Slows the checkpoints' disk: a checkpoint takes long, or too long."""
        self._world.say("fault", "the disk of checkpoints is slow")
        self._cluster.shared_disk.slow_until = self._world.now + self._rng.choice((1.0, 30.0))
        return True

    def kill_worker(self):
        node = self._one(self._alive(Role.WORKER))
        if node is None or not self._may_lose_worker():
            return False
        forming, last = self._forming(), self._is_last(Role.WORKER, node)
        self._hurt(node, "killed")
        node.die("killed")
        self._replace("worker", forming or last)
        return True

    def kill_server(self):
        node = self._one(self._alive(Role.SERVER))
        if node is None or not self._may_lose_server():
            return False
        forming = self._forming()
        self._hurt(node, "killed")
        node.die("killed")
        self._replace("server", forming)
        return True

    def _fail_worker(self):
        """Has user code raise: the job is over, the session is not."""
        node = self._one([node for node in self._alive(Role.WORKER) if node.at_work])
        if node is None or node.control.away:
            return False
        self._cluster.job.excuses.append("its code fails")
        self._hurt(node, "its code fails")
        node.fails = True
        return True

    def _kill_driver(self):
        """Kills the driver: its session ends."""
        node = self._cluster.driver
        if node is None or not node.alive or node.welcome is None or self._forming():
            return False
        self._hurt(node, "killed")
        node.die("killed")
        return True

    def _end_master(self):
        """Kills the master of a session, which ends with it."""
        master = self._cluster.master
        if master is None or not master.alive:
            return False
        self._world.say("fault", "the master is killed for good")
        master.die("killed")
        return True

    def _kill_two_servers(self):
        for _ in range(2):
            node = self._one(self._alive(Role.SERVER))
            if node is not None:
                self._hurt(node, "killed")
                node.die("killed")
                self._replace("server", False)
        return True

    def kill_master(self):
        cluster = self._cluster
        if (
            cluster.master is None
            or not cluster.master.alive
            or (self._journal_lost and not self._wild)
        ):
            return False
        self._world.say("fault", "the master is killed")
        cluster.master.die("killed")
        self.start_later(cluster.start_master)
        return True

    def terminate(self):
        """Sends SIGTERM to the master, which leaves and is started again."""
        core = self._core()
        if core is None or not core.interrupts.may_leave or self._journal_lost:
            return False
        self._world.say("fault", "SIGTERM to the master")
        self._cluster.master.terminate()
        return True

    def master_left(self):
        """Starts the next master after one that has left."""
        self.start_later(self._cluster.start_master)

    def _power_cut(self):
        """Cuts the power of the master's machine: what was not synced is lost."""
        cluster = self._cluster
        if cluster.master is None or not cluster.master.alive:
            return False
        self._world.say("fault", "the master's machine loses its power")
        cluster.network.silent.add(cluster.master.host)
        cluster.master.die("no power")
        cluster.disk.lose_power()
        cluster.powerless = True

        def back():
            for link in [
                n for n in cluster.network.links if any(not e.process.alive for e in n.ends)
            ]:
                link.break_()
            cluster.start_master()

        self.start_later(back)
        return True

    def _flip(self):
        """Kills the master, and flips a bit of its journal."""
        cluster = self._cluster
        if cluster.master is None or not cluster.master.alive:
            return False
        self._world.say("fault", "the master is killed, and its disk is damaged")
        cluster.master.die("killed")
        cluster.disk.flip_bit(self._rng.choice(("facts", "cluster", "base", "state-*")))
        cluster.powerless = True
        self.start_later(cluster.start_master)
        return True

    def _disk_full(self):
        """Fills the journal's disk for a while."""
        cluster = self._cluster
        core = self._core()
        if core is None or core.job_controller.phase is not JobPhase.TRAINING:
            return False
        awaited = (deed for w in self._awaited.values() for _, deed in w)
        if self._terminates or self.pending or self.kill_master in awaited:
            return False
        self._journal_lost = True
        self._world.say("fault", "the master's disk is full")
        cluster.disk.full_until = self._world.now + self._rng.choice((0.1, 1.0, 1000.0))
        return True

    def _interrupt(self):
        cluster = self._cluster
        if cluster.master is None or not cluster.master.runs or cluster.master.core is None:
            return False
        self._world.say("fault", "SIGINT to the master")
        cluster.master.interrupt()
        cluster.interrupted = True
        return True

    def _stall(self):
        """Stalls a process for less than any limit."""
        cluster = self._cluster
        everybody = [*self._alive(Role.SERVER), *self._alive(Role.WORKER)]
        if cluster.master is not None and cluster.master.alive:
            everybody.append(cluster.master)
        process = self._one(everybody)
        if process is None or not process.runs:
            return False
        for_s = self._rng.choice((0.05, 0.3, SHORT * cluster.scenario.heartbeat_timeout))
        self._world.say("fault", f"{process.name}: stands still for {for_s:g} s")
        process.stalled_until = self._world.now + for_s
        return True

    def _stall_long(self):
        """Stalls a node for longer than its heartbeat's limit: it is lost, and comes back."""
        role = self._rng.choice((Role.SERVER, Role.WORKER))
        node = self._one([node for node in self._alive(role) if node.runs])
        if self._forming() and role == Role.SERVER and not self._wild:
            return False  # the cluster may form before anybody knows
        may = self._may_lose_server if role == Role.SERVER else self._may_lose_worker
        if node is None or not may():
            return False
        forming, last = self._forming(), self._is_last(role, node)
        for_s = self._cluster.scenario.heartbeat_timeout * self._rng.uniform(0.9, 6)
        self._hurt(node, f"stands still for {for_s:.1f} s")
        node.stalled_until = self._world.now + for_s
        self._replace(role.name.lower(), forming or last)
        return True

    def _hang_shard(self):
        """Stalls a shard's thread for a moment, but not its process."""
        shard = self._one([shard for node in self._alive(Role.SERVER) for shard in
                           getattr(node, "shards", {}).values()])  # fmt: skip
        if shard is None:
            return False
        for_s = self._rng.choice((0.05, 1.0, 4.0))
        self._world.say("fault", f"{shard.server.name}: shard {shard.number} hangs for {for_s:g} s")
        shard.stalled_until = self._world.now + for_s
        return True

    def _break(self, what):
        links = [link for link in self._cluster.network.links if link.what == what]
        link = self._one(links)
        if link is None:
            return None
        ends = [end.process.name for end in link.ends]
        self._world.say("fault", f"the {what} connection of {ends[0]} to {ends[1]} breaks")
        link.break_()
        return link

    def _break_data(self):
        return self._break("data") is not None

    def _break_pulse(self):
        return self._break("pulse") is not None

    def _break_control(self):
        """Breaks a control connection: the node loses its membership."""
        if not (self._may_lose_server() and self._may_lose_worker()):
            return False
        forming = self._forming()
        link = self._break("control")
        if link is None:
            return False
        node = link.ends[0].process
        self._hurt(node, "lost its control connection")
        last = self._is_last(node.role, node)
        self._replace(node.role.name.lower(), forming or last)
        return True

    def _part(self):
        """Cuts two hosts off from each other for less than any limit."""
        return self._cut(SHORT * self._rng.random(), long=False)

    def _part_long(self):
        """Cuts two hosts off for longer: who cannot reach the master is lost."""
        if not (self._may_lose_server() and self._may_lose_worker()):
            return False
        return self._cut(self._rng.uniform(0.9, 4), long=True)

    def _cut(self, share, *, long):
        cluster = self._cluster
        nodes = [node for node in cluster.nodes if node.alive]
        one = self._one(nodes)
        others = [node for node in nodes if node is not one]
        if cluster.master is not None and cluster.master.alive:
            others.append(cluster.master)
        other = self._one(others)
        if one is None or other is None or (long and not self._wild and self._forming()):
            return False
        roles = {one.role, other.role}
        clients = [{Role.SERVER, Role.WORKER}, {Role.SERVER, Role.DRIVER}]
        if long and not self._wild and roles in clients:
            return False  # a client gives up when its limit is over, and the job with it
        forming = self._forming()
        for_s = share * cluster.scenario.heartbeat_timeout
        self._world.say("fault", f"{one.name} and {other.name} are parted for {for_s:.1f} s")
        cluster.network.cut(one.host, other.host, self._world.now + for_s)
        if long:
            for node in (one, other):
                if node is not cluster.master:
                    self._hurt(node, "was parted from another for long")
            last = self._is_last(one.role, one)
            self._replace(one.role.name.lower(), forming or last)
        return True

    def _join_worker(self):
        if self._core() is None or self._forming():
            return False  # one more than expected may complete the cluster without a server
        self.start_later(self._cluster.start_node, "worker")
        return True

    def _join_server(self):
        if self._core() is None or self._forming():
            return False  # one more than expected may complete the cluster without a server
        self.start_later(self._cluster.start_node, "server")
        return True

    def _join_and_die(self):
        """Starts a node that dies while it joins, or just after."""
        if self._core() is None or self._core().phase is not ClusterPhase.FORMED:
            return False
        role = self._rng.choice((Role.SERVER, Role.WORKER))
        node = self._cluster.start_node(role.name.lower())
        self._die_while_joining(node, 500)
        return True

    def _die_while_joining(self, node, tries):
        if not node.alive or self._is_last(node.role, node):
            return
        if node.welcome is None and tries:
            self._world.after(0.002, self._die_while_joining, node, tries - 1)
            return
        core = self._core()
        member = core.members.all.get(node.number) if core is not None else None
        newcomer = member is not None and not member.joined
        if newcomer or (self._may_lose_server() and self._may_lose_worker()):
            self._hurt(node, "killed while it joined")
            node.die("killed")

    def _drain(self):
        """Sends SIGTERM to a server; others take its shards."""
        servers = [node for node in self._alive(Role.SERVER) if not node.hurt]
        node = self._one(servers)
        core = self._core()
        if core is None or core.lifecycle.phase is not ClusterPhase.FORMED:
            return False
        if sum(server.number in core.members.all for server in servers) < 2:
            return False
        if self._cluster.scenario.replication == "none" and not self._wild:
            return False
        if node.welcome is None or node.number not in core.members.all:
            return False
        if node.control.away and not self._wild:  # it may end without giving its shards away
            return False
        self._hurt(node, "SIGTERM")
        node.asked_to_leave()
        return True

    def _leave(self):
        """Sends SIGTERM to a worker; others do its work."""
        workers = [node for node in self._alive(Role.WORKER) if not node.hurt]
        node = self._one(workers)
        core = self._core()
        if core is None or len(workers) < 2 or core.lifecycle.phase is not ClusterPhase.FORMED:
            return False
        if node.welcome is None or node.control.away:
            return False
        self._hurt(node, "SIGTERM")
        node.asked_to_leave()
        return True
