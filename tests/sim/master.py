"""A master process: the product's core, performer and journal on a simulated network.

    control messages, heartbeats, works, time -> Event -> MasterCore.handle -> Performer.perform

Owns what `snailps/master/process.py` owns with sockets and threads: connections, works, the clock.
Decides nothing, but records what invariants ask about.  A takeover is another `Master`, started
with the same settings on the same disk.
"""

from __future__ import annotations

import inspect
import os
import signal
from collections import deque
from functools import partial

from snailps.config import JobSettings, MasterSettings, RawConfig
from snailps.errors import ConnectionLost, ProtocolError, SnailError
from snailps.master import effects, events
from snailps.master.context import Context
from snailps.master.core import MasterCore
from snailps.master.effects import Fact, Outbox
from snailps.master.job.job import Job
from snailps.master.job.record import JobRecord
from snailps.master.job.session import SessionJob
from snailps.master.job.state import pack
from snailps.master.journal import SYNC_S, Journal
from snailps.master.performer import Performer
from snailps.master.phases import JobPhase
from snailps.master.status_report import StatusReport
from snailps.master.takeover import first_fact, unended
from snailps.node.effects import Tick, Work, WorkDone
from snailps.transport import messages
from snailps.transport.handshake import Channel, Hello, Role
from snailps.transport.messages.terms import ChunkBlock, Partition
from tests.sim import invariants
from tests.sim.client import Client
from tests.sim.control import MasterEnd
from tests.sim.memory_disk import PowerCut
from tests.sim.model import DIM, SHARED, TABLE
from tests.sim.node import MASTER, Node
from tests.sim.scheduler import Process, first_of

IDLE_S = 0.1
HEARTBEATS_S = 0.25
_QUIET = Tick | events.Heartbeats | events.JournalGrown
"""What needs no turn of the loop before its time."""
FOLDER_S = 10.0
"""How long it waits until the folder of checkpoints says that the run is over."""


class Reader:
    """The master's own reading of tables, by the scripted client."""

    def __init__(self, master):
        self._master = master
        self.clients = []
        self._of_rounds = None
        self.looks = ()

    def look(self, job, looks, number, reading, *, stays=False):
        """Reads rows in the place of the model; a generator."""
        (look,) = looks
        see = self._after_round if "round" in look.when else self._test
        return [(yield from see(job, number, reading))]

    def _after_round(self, job, round_, reading):
        """Reads shared rows; a generator.  One client serves all rounds."""
        if self._of_rounds is None:
            self._of_rounds = yield from self._connect(next(reading.numbers))
        number, _ = reading.tables[TABLE]
        pull = self._of_rounds.pull(number, list(range(SHARED)), DIM)
        yield from self._master.limited(pull)
        self._master.cluster.job_at(job.settings.output).look(round_, pull.rows)
        return {}

    def leave_rounds(self):
        """No round is looked at any more."""
        client, self._of_rounds = self._of_rounds, None
        if client is not None:
            self.clients.remove(client)
            client.close()

    def load(self, job, work, reading, told=None):
        """Reads shared rows in the place of a loader; a generator."""
        client = yield from self._connect(next(reading.numbers))
        try:
            number, _ = reading.tables[TABLE]
            yield from self._master.limited(client.pull(number, list(range(SHARED)), DIM))
        finally:
            self.clients.remove(client)
            client.close()
        self._master.cluster.job_at(job.settings.output).loaded = True

    def _connect(self, incarnation):
        """A client of the newest route: a newer one ends the wait for a shard that has moved."""
        master = self._master
        members = master.core.members
        while True:
            route = members.route
            client = Client(
                master,
                route,
                incarnation=incarnation,
                cluster_id=master.cluster_id,
                on_failed=lambda text: None,
            )
            try:
                yield from client.start(
                    client.limits.reach_s, lambda route=route: members.route is not route
                )
            except SnailError:
                client.close()
                if members.route is route:
                    raise
                continue
            client.follow(members.route)
            self.clients.append(client)
            return client

    def _test(self, job, number, reading):
        """Reads every row twice, in the place of a test; a generator."""
        cluster = self._master.cluster
        tests = self._master.core.job_controller.looks
        if tests.text != "testing":
            return {"figure": 0.0}  # the validation data is read, or the job has failed
        client = yield from self._connect(next(reading.numbers))
        try:
            rows = yield from self._scan(client, job, reading)
            yield self._master.sleep(cluster.work_s())
            again = yield from self._scan(client, job, reading)
        finally:
            self.clients.remove(client)
            client.close()
        epoch = round(job.schedule.progress * job.settings.epochs, 3)
        figure = cluster.job_at(job.settings.output).tested(epoch, rows, again, cluster)
        return {"figure": figure}

    def export(self, job, reading, told):
        """Reads every row; a generator, which the master drives as a work."""
        client = yield from self._connect(next(reading.numbers))
        try:
            rows = yield from self._scan(client, job, reading)
        finally:
            self.clients.remove(client)
            client.close()
        run = self._master.cluster.job_at(job.settings.output)
        run.exported, run.figures_of_tests = rows, job.tested.figures
        return {"files": []}

    def _scan(self, client, job, reading):
        """All rows, by key; a generator."""
        master, rows = self._master, {}
        number, _ = reading.tables[TABLE]
        if job.schedule.slots is not None:
            yield from master.limited(client.reach(job.schedule.slots.open))
        for fragment in range(master.settings.frag_num):
            cursor = 0
            while True:
                scan = client.scan(number, fragment, cursor)
                yield from master.limited(scan)
                cursor, piece = _scanned(scan.replies[0])
                rows.update(piece)
                if cursor == 0:
                    break
        return rows


class Services:
    """What the core has done beside its loop."""

    def __init__(self, master, files, reader, journal):
        self._master, self.files, self.reader, self._journal = master, files, reader, journal

    def load_job(self, settings, now):
        """The job that a driver submits."""
        return Job(RawConfig.from_mapping(settings, "the submitted job"), now=now)

    def more_files(self):
        """Checkpoints of a session."""
        return self._master.cluster.new_files(self._master)

    def sync_journal(self):
        """Has what was noted on disk."""
        with self._master.as_owner():
            self._journal.sync()

    def keep_base(self, position):
        """Keeps the position at which the training begins."""
        if self._master.cluster.lasting:  # whose journal has no jobs
            job = self._master.core.job_controller
            is_restored = job.phase is JobPhase.RESTORING
            place = job.checkpoints.place
            self._master.cluster.training_begins(place.continued_from if is_restored else 0)
        if self._journal.path is not None and self._master.cluster.life.job_goes_on:
            with self._master.as_owner():
                self._journal.keep_base(pack(position))


class Master(Process):
    """One master process.

    Parameters
    ----------
    cluster : Cluster
    name : str
    """

    def __init__(self, cluster, name):
        super().__init__(cluster.world, name, MASTER[0])
        self.cluster, self.network, self.settings = (
            cluster,
            cluster.network,
            cluster.master_settings,
        )
        self.core = self._journal = None
        self.welcome, self.role = None, Role.MASTER  # as a client of shards
        self._events, self._is_feeding = deque(), False
        self.peers = {}  # every control connection there was, by number
        self._performer, self._failures = None, []
        self._pulses, self._silences = {}, {}
        self._phases = {}  # of members, after the last event
        self._lanes = {}
        self._tick = None
        self.cluster_id = 0
        self._over_at = 0.0

    dial = Node.dial
    sleep = Node.sleep
    ending = False

    def as_owner(self):
        """A context in which the journal's threads are this process's."""
        return _Owner(self.cluster.threads, self)

    # --- life -------------------------------------------------------------------------------------

    def start(self):
        """Reads the journal, and begins or takes over."""
        with self.as_owner():
            try:
                self._open()
            except SnailError as error:
                self.cluster.master_refused = text = self._traceable(error)
                self.exit(1, f"cannot begin: {text}")
                return
        self.network.listen(self, MASTER, self._admit)
        workers = self.settings.expected_node_num - max(1, self.settings.expected_servers)
        self._feed(events.Started(self._job, workers))
        self._feed(events.Listening())
        self.after(HEARTBEATS_S, self._look_at_hearts)
        self._tick_within(IDLE_S)

    def _open(self):
        now = self.world.now
        self._job = None
        if not self.cluster.session:
            self._job = Job(self.cluster.raw, (JobSettings, MasterSettings), now)
        modules = self.settings.modules
        session, life = SessionJob(RawConfig([]), modules=modules), self.cluster.life
        kept = session if self._job is None else JobRecord(self._job)
        keeps = life.outlives_drivers and self.settings.on_node_loss == "recover"
        path = self.cluster.disk.folder / "journal" if keeps else None
        self._journal = journal = Journal(path)
        self.on_death.append(self._let_go)
        past, cluster_id = None, self.world.rng.getrandbits(63) | 1
        if path is not None:
            past = unended(journal, kept, self.settings.frag_num, life)
            if past is not None:
                cluster_id = past.facts[0].data["cluster_id"]
        self.cluster_id = cluster_id
        self.reader = Reader(self)
        wall_s = 1e9
        self.core = MasterCore(
            Context(
                self.settings,
                Outbox(kept=journal.path is not None, life=life),
                cluster_id,
                now,
                life,
                session,
            ),
            Services(self, self.cluster.new_files(self), self.reader, journal),
            past,
        )
        self.report = StatusReport(
            self.core,
            lambda kind, data: self._note(effects.Journaled(kind, data)),
            wall_s=wall_s,
            facts=past.facts if past is not None else (),
            address="master:7000",
        )
        self._performer = Performer(
            _Door(self),
            self._feed,
            {kind: self.watched(perform) for kind, perform in self._effect_table().items()},
            status=self.watched(lambda: self.report.status(self.world.now)),
            closed=lambda peer: None,
        )
        if path is not None:
            numbers = Fact(*self.core.members.numbers.keep())
            if past is not None:
                journal.go_on([numbers])
            else:
                first = first_fact(cluster_id, kept, self.settings.frag_num, wall_s + now)
                journal.begin([first, numbers])
        self.welcome = messages.Welcome(0, 0, cluster_id, self.settings.frag_num, 1.0, 10.0)
        self.say(f"{'takes over' if past is not None else 'begins'}, cluster {cluster_id:x}")

    def _let_go(self):
        """What the kernel does with the files of a process that has died."""
        journal = self._journal
        for name in ("_file", "_new", "_lock"):
            descriptor = getattr(journal, name)
            if descriptor >= 0:
                (self.cluster.disk.os if name != "_lock" else os).close(descriptor)
                setattr(journal, name, -1)
        retired, journal._retired = journal._retired, []
        for descriptor in retired:
            self.cluster.disk.os.close(descriptor)

    def sync_later(self):
        """The journal's thread that syncs, as events."""
        self.after(SYNC_S + self.network.delay(), self._sync)

    def _sync(self):
        with self.as_owner():
            self._journal.sync_files()
        self.sync_later()

    # --- the loop ---------------------------------------------------------------------------------

    def _tick_within(self, seconds):
        if self._tick is not None:
            if self._tick[0] <= self.world.now + seconds:
                return
            self.world.cancel(self._tick)
        self._tick = self.after(seconds, self._turn)

    def _turn(self):
        self._tick = None
        with self.as_owner():
            if self._journal.is_long:
                self._feed(events.JournalGrown())
            self._feed(Tick())
        if self.core.lifecycle.over:
            self._over_at = self._over_at or self.world.now
            if "checkpoint" not in self._lanes or self.world.now - self._over_at > FOLDER_S:
                self._end()
                return
        self.cluster.watch()
        self._tick_within(IDLE_S)

    def _end(self):
        core = self.core
        life = core.lifecycle
        if life.left:
            with self.as_owner():
                self._journal.leave()
            self.exit(life.code, life.verdict)
            self.cluster.faults.master_left()
            return
        self.cluster.verdict = (life.code, life.verdict, life.failed)
        with self.as_owner():
            self._journal.end()
        self.exit(life.code, life.verdict or "done")

    def interrupt(self):
        """SIGINT."""
        self._feed(events.Signal())

    def terminate(self):
        """SIGTERM."""
        self._feed(events.Signal(signal.SIGTERM))

    def _look_at_hearts(self):
        now = self.world.now
        closed = []
        for number, end in sorted(self._pulses.items()):
            node = end.other.process
            cut = self.network.cut_until(node.host, self.host) > now
            if end.open and end.other.open and node.alive and node.stalled_until <= now and not cut:
                self._silences[number] = now
            if not end.open:
                closed.append(number)
        silences = {number: now - heard for number, heard in self._silences.items()}
        self._feed(events.Heartbeats(silences, frozenset(closed)))
        self.after(HEARTBEATS_S, self._look_at_hearts)

    def _feed(self, event):
        self._events.append(event)
        if self._is_feeding:
            return
        self._is_feeding = True
        try:
            with self.as_owner():
                while self._events and self.alive:
                    taken = self._events.popleft()
                    self.cluster.handles(taken)
                    wanted = self.core.handle(taken, self.world.now)
                    self._performer.perform(map(self._seen, wanted))
                    if self._failures:
                        raise self._failures[0]
        finally:
            self._is_feeding = False
        if self.alive:
            self._watch_members()
        if self.alive and not isinstance(event, _QUIET):
            self._tick_within(0.001)

    def _seen(self, effect):
        """The effect, once the cluster has seen it: just before it is performed."""
        self.cluster.performs(effect)
        return effect

    def watched(self, perform):
        """Calls `perform`; an error fails the run, which the performer would go on after."""

        def performed(*arguments):
            try:
                return perform(*arguments)
            except Exception as error:
                self._failures.append(error)
                raise

        return performed

    def _watch_members(self):
        """Faults may wait for a member to come to a phase."""
        faults = self.cluster.faults
        for number, member in self.core.members.all.items():
            phases = member.reach, member.stay, member.work
            before = self._phases.get(number, ())
            self._phases[number] = phases
            for phase in phases:
                if phase not in before and faults.awaits(phase):
                    nodes = (node for node in self.cluster.nodes if node.number == number)
                    self.after(0.0, faults.on_event, phase, next(nodes, None))

    # --- connections ------------------------------------------------------------------------------

    def _admit(self, hello):
        if hello.channel == Channel.DATA:
            raise ProtocolError("this is a master: it has no data channel", "channel")
        answer = Hello(hello.channel, Role.MASTER, b"n" * 16, job=self.cluster_id)
        take = self._take_control if hello.channel == Channel.CONTROL else self._take_pulse
        return answer, take

    def _take_control(self, end):
        peer = MasterEnd(end, self._on_message, self._performer.lost)
        self.peers[self._performer.number_of(peer)] = peer

    def _take_pulse(self, end):
        hello = end.hello
        members = self.core.members
        member = members.all.get(hello.node)
        if member is None or hello.incarnation != member.number or hello.job != members.cluster_id:
            end.close()
            return
        former = self._pulses.get(member.number)
        if former is not None:
            former.close()
        self._pulses[member.number] = end
        self._silences.setdefault(member.number, self.world.now)
        end.listen(lambda data: None, lambda why: None)

    def _on_message(self, peer, message, reply):
        self.cluster.heard(peer, message)
        if self.alive:
            answer = None if reply is None else self.watched(partial(self._answer, peer, reply))
            self._performer.received(peer, message, answer)

    def _answer(self, peer, reply, answer):
        if isinstance(answer, messages.Leased) and answer.number >= 0:
            node, job = peer.process.number, self.core.job_controller.job
            run = self.cluster.job_at(job.settings.output)
            run.blocks = len(job.input.blocks)
            if isinstance(answer.terms, ChunkBlock | Partition):
                run.tenants.add(node)
            if job.pass_ == "train":
                run.lease(answer, node, job.schedule, self.cluster)
        invariants.watch_out(self, answer)
        reply(answer)

    # --- effects ----------------------------------------------------------------------------------

    def _effect_table(self):
        """How effects that are for no peer are performed."""
        return {
            effects.Forget: self._forget_heart,
            effects.Journaled: self._note,
            effects.Compact: self._compact,
            Work: self._work,
            effects.Rerouted: self._rerouted,
            effects.CancelExport: self._cancel_export,
            effects.LeaveRounds: lambda effect: self.reader.leave_rounds(),
            effects.Diagnose: lambda effect: None,
            effects.Say: lambda effect: None,
            effects.StatusEvent: self._log_event,
        }

    def _forget_heart(self, effect):
        end = self._pulses.pop(effect.member, None)
        self._silences.pop(effect.member, None)
        if end is not None:
            end.close()

    def _note(self, effect):
        if effect.kind == "train":
            self.cluster.training_begins(effect.data["restored"])
            if effect.data["rotation"] is None:
                self.cluster.job.parts.clear()
        if effect.kind == "chunk":
            self.cluster.job.parts[effect.data["chunk"]] = effect.data["parts"]
        if effect.kind == "checkouts":
            self.cluster.job.durable.note(effect.data["number"], effect.data["parts"])
        self._journal.note(effect.kind, effect.data)
        if not self._journal.kept:
            self._events.append(events.JournalFailed())

    def _compact(self, effect):
        self.say("compacts its journal")
        self._journal.compact(effect.snapshot)

    def _rerouted(self, effect):
        for client in self.reader.clients:
            client.follow(effect.route)

    def _cancel_export(self, effect):
        for client in self.reader.clients:
            client.fail("the export was interrupted")

    def _log_event(self, effect):
        self.report.events.on_event(effect.kind, effect.who, effect.text, self.world.now)

    def _work(self, effect):
        if effect.lane and effect.lane in self._lanes:
            self._lanes[effect.lane].append(effect)
            return
        if effect.lane:
            self._lanes[effect.lane] = deque()
        self._begin_work(effect)

    def _begin_work(self, effect):
        on_disk = effect.lane == "checkpoint"
        self.after(self.cluster.work_s(disk=on_disk), self._run_work, effect)

    def _run_work(self, effect):
        result = error = None
        with self.as_owner():
            try:
                result = effect.run()
            except Exception as failure:
                error = failure
            except PowerCut:
                return
        if inspect.isgenerator(result):
            made = self.spawn(result)
            made.then(lambda made: self._work_ended(effect, made.value, made.error))
        else:
            self._work_ended(effect, result, error)

    def _work_ended(self, effect, result, error):
        if effect.lane:
            waiting = self._lanes[effect.lane]
            if waiting:
                self._begin_work(waiting.popleft())
            else:
                del self._lanes[effect.lane]
        if error is not None:
            self.say(f"a work failed: {self._traceable(repr(error))}")
        self._feed(WorkDone(effect.number, result, error))

    def _traceable(self, text):
        """The text without the folder of the disk, whose name has this process's number."""
        return str(text).replace(str(self.cluster.disk.folder), "DISK")

    def limited(self, request):
        """Waits for a request of the reader's, as long as one may take."""
        yield first_of(request, self.sleep(self.settings.request_timeout))
        if not request.done:
            raise ConnectionLost(f"{request.what}: no answer")
        if request.error is not None:
            raise request.error


class _Door:
    """The control server of a master, which records orders that invariants ask about."""

    def __init__(self, master):
        self._master, self._cluster = master, master.cluster
        for name in ("note", "call", "close_peer"):
            setattr(self, name, master.watched(getattr(self, name)))

    def note(self, peer, message):
        peer.note(message)

    def call(self, peer, message, on_answer):
        master = self._master
        if not isinstance(message, messages.Ask):
            master.say(f"orders {peer.address[0]}: {_brief(message)}")
        if isinstance(message, messages.CloseClock):
            job = master.core.job_controller.job
            run = self._cluster.job_at(job.settings.output)
            run.close(message.clock, tuple(message.slots), job.schedule, self._cluster)
        if isinstance(message, messages.Fence):
            on_answer = partial(self._fenced, message, on_answer)
        peer.call(message, on_answer)

    def _fenced(self, fence, on_answer, answer):
        if isinstance(answer, messages.Report):
            done = answer.data["done"]
            self._cluster.fenced.update((fence.incarnation, shard) for shard in done)
        on_answer(answer)

    def close_peer(self, peer):
        peer.close()

    def contain(self, peer, work):
        """Ends a peer whose message cannot be handled, which fails the run at its end."""
        try:
            work()
        except Exception as error:
            self._cluster.broken.append((peer.address[0], error))
            self._master.say(f"cannot handle what {peer.address[0]} said: {error!r}")
            peer.fail(error)


class _Owner:
    """Sets whose threads a journal makes."""

    def __init__(self, threads, process):
        self._threads, self._process = threads, process

    def __enter__(self):
        self._former, self._threads.owner = self._threads.owner, self._process

    def __exit__(self, *failure):
        self._threads.owner = self._former


def _brief(message):
    """A message for the trace."""
    if isinstance(message, messages.TakeRoute):
        return f"TakeRoute of epoch {message.route['epoch']}"
    if isinstance(message, messages.MakeTables | messages.HostStandby):
        return type(message).__name__ + f" {getattr(message, 'shard', '')}"
    return repr(message)[:150]


def _scanned(body):
    """Cursor and rows of a SCANNED."""
    import struct

    import numpy as np

    cursor, _, keys, dim = struct.unpack_from("<QIII", body)
    names = np.frombuffer(body, "<u8", keys, 24).tolist()
    rows = np.frombuffer(body, "<f4", keys * dim, 24 + 8 * keys).reshape(keys, dim)
    return cursor, dict(zip(names, rows, strict=True))
