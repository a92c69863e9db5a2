"""A real cluster with a proxy before every server and every connection to the master, under faults.

    Rig(folder) -> form -> run(schedule): fault, repair, redundancy again, next -> finish -> Verdict

It starts again what it killed, as an operator's supervisor would, and watches: a process that ends
by itself, a run that gets no further for `stall_s`, and a process left behind are failures.  The
report of one holds the schedule, so that it can be repeated, what happened when, the cluster's own
status and the last lines of every process.
"""

import contextlib
import itertools
import json
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field

from processes import LIMIT_S, Cluster, environment, free_port

from faults.counting import (
    COUNTED,
    CountedSettings,
    Plan,
    Tally,
    judge,
    later_s,
    pulls_of,
    pushes_of,
    read_notes,
)
from faults.deeds import Deeds, Hang
from faults.proxy import Proxy
from snailps.cli.masters import ask
from snailps.cli.printing import page_lines
from snailps.config import RawConfig
from snailps.errors import SnailError

INTERRUPTED = 130
TOO_LATE = "this cluster is about to end"
"""What a newcomer says that was started to repair a job and found it done."""
REFUSALS = (
    "Start it anew",
    "others do its work",
    "is about to end",
    "before the cluster was formed",
)
"""What a process may end with that was joining when all others were busy dying."""
OVER = "training done, exporting"
"""What the master says at the end of its job, well before anybody else ends."""
LOOK_S = 0.02
ASK_S = 3.0
PORTS = range(21000, 21012)
"""Of each server, whose address is its own."""
BEATS = {"heartbeat_interval": 0.2}
_rigs = itertools.count()


class JobOver(Exception):
    """The job came to its own end before the schedule did."""


GROWN = {"snailps.master.journal:GROWN_BYTES": 4000}
"""So that the journal is compacted every few dozen blocks."""


@dataclass(slots=True, eq=False)
class Place:
    """One process of the cluster, and the one that takes its place when it was killed."""

    role: str
    number: int
    process: object = None
    control: object = None  # link to the master
    data: list = field(default_factory=list)  # links to its shards
    sets: tuple = ()
    hurt: dict = field(default_factory=dict)  # how its processes are hurt from the start
    former: object = None  # the place whose process it is to replace, while it joins

    @property
    def name(self):
        return f"{self.role} at place {self.number}"


@dataclass(slots=True)
class Event:
    """A fault that happened, and how many seconds later what came of it.

    Attributes
    ----------
    noticed_s : float or None
        The master wrote a line about the process.
    repaired_s : float or None
        All processes were there, and every shard had its standby.
    resumed_s, pulled_s : float or None
        The last of the workers had a push acknowledged, a pull answered, that it began after the
        fault.
    """

    number: int
    fault: object
    at: float
    whom: str
    pid: int = 0
    noticed_s: float | None = None
    repaired_s: float | None = None
    resumed_s: float | None = None
    pulled_s: float | None = None


class Rig(Deeds):
    """A cluster on this machine that can be hurt.

    Parameters
    ----------
    folder : Path
    settings, job : dict, optional
        Of all processes, of the master.  With a `heartbeat_timeout` who hangs is lost after that;
        without it no load lets one be over, and who hangs is lost when the rig says so.
    servers, workers, shard_num : int
    stall_s : float
        A run that gets no further for so long is a hang.
    block_num : int
        Blocks of the counting job; it is interrupted when the schedule is over.
    """

    counted = "acknowledged pushes"
    at_work = "training"  # the phase in which it is hurt
    ends = False  # whether the job may come to its own end

    def __init__(self, folder, settings=None, job=None, *, servers=2, workers=2, shard_num=1,
                 stall_s=LIMIT_S, block_num=100_000, stall_max_s=20.0):  # fmt: skip
        self.stall_max_s = stall_max_s
        self.folder, self.stall_s = folder, stall_s
        self.notes = folder / "notes"
        self.notes.mkdir(exist_ok=True)
        self.job = {**self._job(block_num, servers * shard_num), **(job or {})}
        common = {"replication": "sync", "shard_num": shard_num, **BEATS, **(settings or {})}
        self.replicated = common["replication"] != "none" and servers > 1
        self.cluster = Cluster(folder, common, self.job, servers=servers, workers=workers)
        self.heartbeat_timeout = float(common.get("heartbeat_timeout", 0.0))
        (folder / "silent").mkdir()
        self.proxy = Proxy()
        self.schedule = None
        self._tally = Tally(self.notes)
        self.events = []
        self.begin = time.monotonic()
        self._number = next(_rigs) % 100
        self._keep = self._net = None
        self.disk = None
        self.master = Place("master", 0, hurt={"set": GROWN})
        self.places = [
            *(Place("server", number) for number in range(1, servers + 1)),
            *(Place("worker", number) for number in range(1, workers + 1)),
        ]
        self._seen = {}  # master's process -> lines of it that were read
        self.given_up = {}  # process id -> since when all shards know
        self._doomed = set()  # processes that have to end
        self.newcomers = set()  # places whose process may be refused, and is started once more
        self.restarts = 0
        self._asked = (0.0, None)

    def _job(self, block_num, shards):
        """The job of the counting model."""
        (self.folder / "in.txt").write_text("0\n" * 100)
        return {
            "worker_class": COUNTED, "input": "in.txt", "output": "out", "wire": "float32",
            "block_bytes": 20, "epochs": max(1, block_num // 10), "notes": str(self.notes),
            "shards": shards,
        }  # fmt: skip

    def __enter__(self):
        self._reserve()
        self.cluster.__enter__()
        return self

    def __exit__(self, kind, error, trace):
        try:
            self.cluster.__exit__(kind, error, trace)
        finally:
            self.proxy.close()
            self._keep.close()
            if self.disk is not None:
                subprocess.run(["umount", str(self.disk)], check=True)

    def _reserve(self):
        """Addresses 127.N.*.* that no other run of this harness uses."""
        for net in range(1, 250):
            self._keep = socket.socket()
            try:
                self._keep.bind((f"127.{net}.{self._number}.1", 20999))
            except OSError:
                self._keep.close()
                continue
            self._net = f"127.{net}.{self._number}"
            return
        raise AssertionError("all addresses 127.1.*.* to 127.249.*.* are in use")

    # --- processes -------------------------------------------------------------------------------

    def hurt(self, role, **wish):
        """Has the processes of a role be hurt, these and those that take their places."""
        for place in [self.master, *self.places]:
            if place.role == role:
                place.hurt = wish
        return self

    def form(self, limit_s=LIMIT_S):
        """Starts all; waits until something is acknowledged and every shard is safe."""
        self.cluster.port = free_port()
        self._start_master()
        for place in self.places:
            self._link(place)
            self._start(place)
        self.until(lambda: self.progress() > 0, "the training to begin", limit_s)
        self.until(self.is_redundant, "redundancy at the beginning", limit_s)
        return self

    def _start_master(self):
        self.master.process = self.cluster.master(
            port=self.cluster.port, **_program(self.master, self.folder)
        )

    def _link(self, place):
        place.control = self.proxy.link(("127.0.0.1", self.cluster.port))
        place.sets = (f"master_addr=127.0.0.1:{place.control.address[1]}",)
        if place.role == "server":
            listen, told = f"{self._net}.{100 + place.number}", f"{self._net}.{200 - place.number}"
            place.data = [self.proxy.link((listen, port), (told, port)) for port in PORTS]
            place.sets += (
                f"listen_addr={listen}", f"advertise_addr={told}",
                f"port_range={PORTS[0]}-{PORTS[-1]}",
            )  # fmt: skip

    def _start(self, place):
        place.process = self.cluster.start(
            place.role, *place.sets, told=False, **_program(place, self.folder)
        )

    def alive(self, role):
        """The places of a role whose process runs."""
        places = [self.master] if role == "master" else self.places
        return [p for p in places if p.role == role and p.process.popen.poll() is None]

    def kill(self, place):
        """SIGKILL."""
        self._doomed.add(place.process)
        place.process.send(signal.SIGKILL)
        place.process.wait()

    def join(self, former):
        """Starts a process beside another one of its role, whose place it takes; the new place."""
        joiner = Place(former.role, former.number, hurt=former.hurt)
        joiner.control, joiner.data, joiner.sets = former.control, former.data, former.sets
        self.newcomers.add(joiner)
        self._start(joiner)
        self.places.append(joiner)
        joiner.former = former
        return joiner

    def dismiss(self, joiner):
        """Asks the process to leave whose place a newcomer has taken; it has to end well."""
        former, joiner.former = joiner.former, None
        process = former.process
        self.places.remove(former)
        self._doomed.add(process)
        process.send(signal.SIGTERM)
        self.until(lambda: process.popen.poll() is not None, f"{former.name} to leave")
        assert process.wait() == 0, f"{former.name} was to leave\n{self.report()}"

    def await_line(self, process, text):
        """Waits until a process has written something, or has ended."""
        self.until(
            lambda: text in process.stderr or process.popen.poll() is not None,
            f"{process.name} to write {text!r}",
        )

    def await_lost(self, place):
        """Waits until a process that says nothing is taken for lost and no shard serves it."""
        pid, silent = place.process.pid, self.folder / "silent"
        longer_s = 0.0 if self.heartbeat_timeout else 100 * LIMIT_S
        (silent / "new").write_text(str(longer_s))
        (silent / "new").rename(silent / str(pid))  # whole
        self.until(
            (silent / f"{pid}.fenced").exists, f"process {pid}, silent, to be lost",
            self.heartbeat_timeout + self.stall_s,
        )  # fmt: skip
        self.given_up[pid] = time.monotonic()

    def revive(self, place):
        """Starts another process in place of one that ended."""
        if place is self.master:
            self._start_master()
        else:
            self._start(place)

    # --- faults ----------------------------------------------------------------------------------

    def run(self, schedule):
        """Performs the faults one by one, each when the last one is repaired."""
        self.schedule = schedule
        for number, fault in enumerate(schedule):
            goal = self.progress() + fault.after
            self.until(
                lambda: self.progress() >= goal,  # noqa: B023
                f"{fault.after} more {self.counted} before fault {number}",
            )
            self.perform(number, fault)
        return self

    def perform(self, number, fault):
        """One fault, from its blow to redundancy again."""
        role = {"data": "server"}.get(fault.whom, re.split("[':+]", fault.whom)[0])
        if fault.whom == "disk":
            victim = self.master
        else:
            alive = self.alive(role)
            victim = alive[fault.index % len(alive)]
        pid = victim.process.pid
        event = Event(number, fault, time.monotonic(), f"{victim.name} ({pid})", pid)
        self.events.append(event)
        getattr(self, f"_{fault.what}")(victim, fault)
        self._asked = (0.0, None)  # what the master said before the fault proves nothing
        self.until(self.is_redundant, f"redundancy after fault {number}, {fault.kind}")
        event.repaired_s = time.monotonic() - event.at

    def has_resumed(self):
        """Whether workers that lived on have had pushes acknowledged that came after all faults."""
        last = max(event.at for event in self.events)
        return later_s(read_notes(self.notes).values(), last, pushes_of) is not None

    def all_have_pushed(self, role="worker"):
        """Whether each process that has the role by now has had a push acknowledged."""
        pids = {one.pid for one in read_notes(self.notes).values() if one.acknowledged}
        return pids >= {place.process.pid for place in self.alive(role)}

    # --- watching --------------------------------------------------------------------------------

    def progress(self):
        """How far the run is, in `counted`."""
        return self._tally.acknowledged()

    def status(self):
        """What the master says of itself; None while it does not."""
        when, status = self._asked
        if time.monotonic() - when > 0.1:
            status = None
            with contextlib.suppress(SnailError):
                status = ask(self.cluster.address, ASK_S)
            self._asked = (time.monotonic(), status)
        return status

    def members(self):
        """Process ids of those who belong to the cluster, as the master sees it."""
        status = self.status()
        if status is None:
            return {place.process.pid for place in self.places}
        return {node["pid"] for node in status["nodes"] if node["state"] not in ("gone", "lost")}

    def is_redundant(self):
        """Whether all are there, and every shard has a standby where there are standbys."""
        status = self.status()
        if status is None or status["phase"] != self.at_work:
            return False
        if not {place.process.pid for place in self.places} <= self.members():
            return False
        if any(node["state"] in ("registered", "connecting") for node in status["nodes"]):
            return False
        return not self.replicated or all(one["state"] == "ready" for one in status["shards"])

    def until(self, condition, what, limit_s=None):
        """Waits, looking after the processes meanwhile; a `Hang` says for what."""
        end = time.monotonic() + (limit_s or self.stall_s)
        while not condition():
            self.look()
            if time.monotonic() > end:
                raise Hang(f"waiting for {what}\n{self.report()}")
            time.sleep(LOOK_S)

    def await_death(self, place, limit_s=None):
        """Waits until a process that was hurt has died of it, and puts another in its place."""
        process = place.process
        self._doomed.add(process)
        self.until(lambda: process.popen.poll() is not None, f"{place.name} to die", limit_s)
        assert process.wait() == -signal.SIGKILL, f"{place.name}: {process.stderr}"
        self.revive(place)

    def rest(self, seconds):
        """Lets time pass."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.look()
            time.sleep(min(LOOK_S, left))

    def look(self):
        """Fails if a process has ended that was not killed; reads what the master wrote."""
        master = self.master.process
        if master is not None:
            self._read_log(master)
        for place in [self.master, *self.places]:
            process = place.process
            if process is None or process in self._doomed or process.popen.poll() is None:
                continue
            process.wait()
            if place in self.newcomers and any(text in process.stderr for text in REFUSALS):
                self.restarts += 1
                self.revive(place)
                continue
            if self.ends and self._ended_well(place):  # who reads the master's lines may be late
                with contextlib.suppress(AssertionError):
                    master.wait_line(OVER)
            self._read_log(master)  # a job that came to its end is no failure
            raise AssertionError(
                f"{place.name} ended by itself, code {process.popen.returncode}\n{self.report()}"
            )

    def _ended_well(self, place):
        """Whether a process that has ended did so as at the end of a job."""
        good = (0, INTERRUPTED) if place is self.master else (0,)
        late = self.ends and TOO_LATE in place.process.stderr  # its job was done meanwhile
        return late or place.process.popen.returncode in good

    def _read_log(self, master):
        seen = self._seen.get(master, 0)
        for line in master.lines[seen:]:
            seen += 1
            for event in self.events:
                if event.noticed_s is None and f"process {event.pid})" in line:
                    event.noticed_s = time.monotonic() - event.at
            if self.ends and OVER in line:
                raise JobOver
        self._seen[master] = seen

    def wait_over(self):
        """Waits until the job ends by itself, as long as it gets further; raises `JobOver`."""
        while True:
            now = self.progress()
            self.until(lambda: self.progress() > now, f"more {self.counted}")  # noqa: B023

    def finish(self, limit_s=LIMIT_S):
        """Ends the job as an operator does, by SIGINT at the master; waits until all have ended."""
        self._doomed |= {place.process for place in [self.master, *self.places]}
        self.master.process.send(signal.SIGINT)
        return self.end(limit_s)

    def end(self, limit_s=LIMIT_S):
        """Waits until all have ended as they should."""
        end = time.monotonic() + limit_s
        for place in [self.master, *self.places]:
            try:
                code = place.process.wait(max(0.1, end - time.monotonic()))
            except AssertionError:
                raise Hang(f"waiting for {place.name} to end\n{self.report()}") from None
            assert self._ended_well(place), f"{place.name}: code {code}\n{self.report()}"
        processes = read_notes(self.notes).values()
        for event in self.events:
            event.resumed_s = later_s(processes, event.at, pushes_of)
            event.pulled_s = later_s(processes, event.at, pulls_of)
        return self

    def verdict(self):
        """What became of the pushes."""
        raw = RawConfig.from_mapping({k: str(v) for k, v in self.job.items()}, "the rig")
        return judge(self.notes, self.folder / "out.npz", Plan.of(raw.build(CountedSettings)),
                     self.given_up)  # fmt: skip

    def assert_exact(self):
        """The verdict is good; the report where it is not."""
        verdict = self.verdict()
        assert verdict.good, f"{verdict}\n{self.report()}"
        return verdict

    def report(self):
        """What is needed to repeat and to understand a failure."""
        lines = [str(self.schedule), f"{self.progress()} {self.counted}"]
        for event in self.events:
            lines.append(
                f"  {event.at - self.begin:7.3f} s: {event.number}: {event.fault.kind} of "
                f"{event.whom}, repaired after {event.repaired_s and round(event.repaired_s, 3)} s"
            )
        self._asked = (0.0, None)
        status = self.status()
        lines += [str(status and status["phase"]), *(page_lines(status) if status else ())]
        for shard in (status or {}).get("shards") or ():
            lines.append(f"  {shard}")
        living = [one for one in self.places if one.process and one.process.popen.poll() is None]
        for place in living:
            place.process.send(signal.SIGUSR2)  # shards and clients tell what they count
        time.sleep(0.5 if living else 0)
        for process in self.cluster.processes:
            lines += [f"--- {process.name} ({process.pid}), code {process.popen.poll()}"]
            lines += [f"    {line}" for line in process.lines[-12:]]
        return "\n".join(lines)


def _program(place, folder):
    """What to start in a place: snailps, or snailps that can be hurt."""
    hurt = environment(
        HURT=json.dumps(place.hurt), HURT_LATER=f"{folder}/aim-", HURT_SILENT=f"{folder}/silent"
    )
    return {"program": [sys.executable, "-m", "faults.hurt"], "env": hurt}
