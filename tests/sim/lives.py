"""Recorded lives of clusters: what happens to a cluster, and what its master does about it.

    lives/*.txt: commands -> Life -> events of the master, effects of each -> compared with the text

    # what the life is about
    cluster servers=2 workers=1 blocks=3       the scenario, and the plan of the job
    job blocks=2                               a job of a session; with lasting=True above, the
                                               session outlives its driver and has a journal
    start master server server worker          in this order
    when TEXT: kill server-1                   as soon as a line of the log has the text
    from TEXT                                  the log is written from this line on ...
    until TEXT                                 ... up to this one; the life goes on to its end
    ----
    > kill server-1                            a command
    worker-1: Lease train                      an event
      answers worker-1: Leased ...             its effects, in order

Effects: `notes` a fact for the journal, `asks` a peer by an order, `sends` it a note, `answers` its
call, `logs` a line, `begins` a work beside the loop; others by their names.

Deeds: `start ROLE`, `kill NAME`, `leave NAME` (SIGTERM), `stall NAME SECONDS`, `fail WORKER` (its
user code raises), `part NAME NAME SECONDS` (their hosts do not reach each other), `fill SECONDS`
(the disk of checkpoints is full), `interrupt` (SIGINT at the master).  `when` takes several,
separated by commas.

Nothing is drawn: every delay is the usual one, and of several things the first is taken.  So a life
changes when the master behaves in another way, and not when something else draws a number.

    python -m tests.sim --lives                compares; --rewrite writes what is
"""

from __future__ import annotations

import dataclasses
import random
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from snailps.master import effects, events
from snailps.node.effects import Answering, Tick, Work, WorkDone
from snailps.transport import messages
from snailps.transport.messages.codec import Message
from tests.sim.cluster import Cluster, Scenario
from tests.sim.jobs import JobPlan

FOLDER = Path(__file__).parent / "lives"
PLAIN = Scenario(
    servers=2, shards=1, workers=1, blocks=2, epochs=1, consistency="async", replication="sync",
    staleness=0, micro_batches=1, frag_num=18, prefetch=1, pulls_ahead=False, keys_max=1000,
    network=(0.001, 0.0, 0.0), think_s=0.5, request_timeout=60.0, heartbeat_timeout=10.0,
    journal_bytes=1 << 20, wild=False, faults=0,
)  # fmt: skip
QUIET = (effects.Diagnose, effects.Compact, effects.StatusEvent, effects.ReportStatus)
"""Effects that no other process sees."""
DULL = {
    "host", "pid", "cores", "endpoints", "address", "job", "interval_s", "timeout_s", "patience_s",
    "incarnation", "frag_num", "settings", "usage", "path", "worker_class", "cluster_id",
    "peak_rss_mb", "seconds", "seed", "at", "now", "piece", "layout", "progress", "metrics",
    "units", "whole", "table", "tables", "job_s", "pass_s", "first", "port", "sync", "paced",
    "figures", "late",
}  # fmt: skip
"""Fields left out: the same in each life, or of no interest."""
WHICH = ("number", "shard", "part")
"""Fields that are shown even if they are 0, or -1 (none)."""
WIDTH = 110
CUT = "..."
"""In the place of lines that are not written."""
COMMAND = re.compile(r"(?P<what>cluster|job|start|when|from|until) (?P<rest>.+)")


class Steady(random.Random):
    """Draws the usual number, always."""

    def random(self):
        return 0.5

    def uniform(self, a, b):
        return (a + b) / 2

    def choice(self, seq):
        return seq[0]

    def randint(self, a, b):
        return a

    def getrandbits(self, k):
        return 7


class Life(Cluster):
    """A cluster that follows the commands of a life.

    Attributes
    ----------
    log : list of str
        Commands, events and effects so far, as lines.
    """

    numbers = Steady

    def __init__(self, commands):
        self._fields, self._jobs, self._starts, self._waiting = {}, [], [], []
        self._bounds = {}  # texts of the first and the last line to be written
        self._is_past = False  # the last one has been written
        for line in commands:
            what, rest = COMMAND.fullmatch(line).group("what", "rest")
            if what == "cluster":
                self._fields |= dict(pair.split("=") for pair in rest.split())
            elif what == "job":
                self._jobs.append(dict(pair.split("=") for pair in rest.split()))
            elif what in ("from", "until"):
                self._bounds[what] = rest
            elif what == "start":
                self._starts += rest.split()
            else:
                self._waiting.append(tuple(rest.rsplit(": ", 1)))
        self.log, self._event = [], None
        self._callers, self._asked, self._works = {}, {}, {}
        super().__init__(1)

    def draw(self, seed):
        self.session = bool(self._jobs)
        self.lasting = self._fields.pop("lasting", "") == "True"
        scenario = typed(PLAIN, self._fields)
        plain = JobPlan(
            scenario.consistency, scenario.staleness, scenario.micro_batches, scenario.blocks,
            scenario.epochs,
        )  # fmt: skip
        return scenario, [typed(plain, self._fields | job) for job in self._jobs or [{}]]

    def begin(self):
        for what in self._starts:
            self._do(f"start {what}")

    def think_s(self):
        return self.scenario.think_s

    def work_s(self, *, disk=False):
        return 0.01

    # --- commands ---------------------------------------------------------------------------------

    def _do(self, deed):
        self._write(f"> {deed}")
        verb, *words = deed.split()
        getattr(self, f"do_{verb}")(*words)

    def _process(self, name):
        return {process.name: process for process in (*self.masters, *self.nodes)}[name]

    def do_start(self, role):
        deeds = {"master": self.start_master, "driver": self.start_driver}
        deeds.get(role, partial(self.start_node, role))()

    def do_kill(self, name):
        process = self._process(name)
        process.hurt = "killed"
        process.die("killed")

    def do_leave(self, name):
        self._process(name).asked_to_leave()

    def do_fail(self, name):
        process = self._process(name)
        process.hurt, process.fails = "its code fails", True
        self.job.excuses.append(process.hurt)

    def do_stall(self, name, seconds):
        process = self._process(name)
        process.hurt = "stalled"
        process.stalled_until = self.world.now + float(seconds)

    def do_part(self, first, second, seconds):
        ends = self._process(first), self._process(second)
        for process in ends:
            process.hurt = "parted"
        self.network.cut(*(process.host for process in ends), self.world.now + float(seconds))

    def do_fill(self, seconds):
        self.shared_disk.full_until = self.world.now + float(seconds)

    def do_interrupt(self):
        self.interrupted = True
        self.scenario = replace(self.scenario, wild=True)  # the job does not end with code 0
        self.master.interrupt()

    def _write(self, line):
        line = line.replace(str(self.disk.folder), "DISK")
        self._record(line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ...")
        for waiting in list(self._waiting):
            text, deeds = waiting
            if text in line:
                self._waiting.remove(waiting)
                for deed in deeds.split(", "):
                    self.world.after(0.0, self._do, deed)

    def unheard(self):
        """Texts for which a command waited in vain."""
        bounds = dict(self._bounds)
        if self._is_past:
            del bounds["until"]
        return [*(text for text, _ in self._waiting), *bounds.values()]

    def _record(self, line):
        """Writes a line that is within the bounds, and a mark where others are left out."""
        first, last = self._bounds.get("from"), self._bounds.get("until")
        if self._is_past or (first is not None and first not in line):
            return
        if self._bounds.pop("from", None) is not None:
            self.log.append(CUT)
        self.log.append(line)
        if last is not None and last in line:
            self._is_past = True
            self.log.append(CUT)

    # --- what the master takes, and wants done ----------------------------------------------------

    def _name(self, peer):
        end = self.master.peers.get(peer)
        return end.process.name if end is not None else f"peer {peer}"

    def handles(self, event):
        self._event = None
        if isinstance(event, events.Received):
            self._callers[event.call] = self.master.peers[event.peer]
            if not isinstance(event.message, messages.Ask):
                self._write(f"{self._name(event.peer)}: {brief(event.message)}")
        elif isinstance(event, events.Answered):
            peer, message = self._asked.pop(event.order)
            if not isinstance(message, messages.Ask):
                what = f"{type(message).__name__}: {brief(event.answer)}"
                self._write(f"{peer} answers {what}")
        elif isinstance(event, events.Gone):
            self._write(f"{self._name(event.peer)} is gone: {event.why}")
        elif isinstance(event, WorkDone):
            error = "" if event.error is None else f": {event.error}"
            self._event = f"done: {self._works.pop(event.work)}{error}"
        elif isinstance(event, Tick):
            self._event = "time passes"
        else:
            self._event = {events.Started: "the master starts"}.get(type(event), "time passes")

    def performs(self, effect):
        line = self._shown(effect)
        if line is None:
            return
        if self._event is not None:
            self._write(self._event)
            self._event = None
        self._write(f"  {line}")

    def _shown(self, effect):
        """The line of an effect, or None if no other process sees the effect."""
        if isinstance(effect, QUIET):
            return None
        if isinstance(effect, effects.Send):
            return f"sends {self._name(effect.peer)}: {brief(effect.message)}"
        if isinstance(effect, effects.Order):
            peer = self._name(effect.peer)
            self._asked[effect.number] = peer, effect.message
            silent = isinstance(effect.message, messages.Ask)
            return None if silent else f"asks {peer}: {brief(effect.message)}"
        if isinstance(effect, Answering):
            caller = self._callers[effect.call]
            peer = caller.process.name if caller.is_open else "a peer that is gone"
            return f"answers {peer}: {brief(effect.answer)}"
        if isinstance(effect, effects.Journaled):
            return f"notes {effect.kind} {values_of(effect.data)}".rstrip()
        if isinstance(effect, effects.Say):
            return f"logs: {effect.text}"
        if isinstance(effect, Work):
            run = effect.run.func if isinstance(effect.run, partial) else effect.run
            self._works[effect.number] = name = run.__name__.strip("_")
            return f"begins: {name}"
        if isinstance(effect, effects.Close):
            return f"closes {self._name(effect.peer)}"
        return f"{type(effect).__name__} {values_of(fields_of(effect))}".rstrip()


def typed(plain, words):
    """The dataclass `plain` with the values of those of its fields that `words` names, as text."""
    values = {name: word for name, word in words.items() if hasattr(plain, name)}
    return replace(plain, **{n: value_of(word, getattr(plain, n)) for n, word in values.items()})


def value_of(word, plain):
    """The value that a word names, of the type of another one; a tuple is one of numbers."""
    if isinstance(plain, tuple):
        return tuple(map(float, word.split(",")))
    return type(plain)(word)


def fields_of(value):
    """The fields of a dataclass, by name."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def brief(message):
    """A message or an error in a few words."""
    if isinstance(message, Exception):
        return str(message)
    if not isinstance(message, Message):
        return type(message).__name__
    return f"{type(message).__name__} {values_of(fields_of(message))}".rstrip()


def values_of(fields):
    """Fields as text: the ones with a short value that means something."""
    words = {name: short_of(value) for name, value in fields.items() if name not in DULL}
    words |= {name: str(fields[name]) for name in WHICH if fields.get(name) in (0, -1)}
    return " ".join(f"{name.strip('_')}={word}" for name, word in words.items() if word)


def short_of(value):
    """A value as a word; empty if it has no meaning here, or would be too long."""
    if value is True or (isinstance(value, int | float | str) and value not in (False, "", -1)):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}({values_of(fields_of(value))})"
    if isinstance(value, dict):
        words = values_of(value)
        return f"({words})" if words else ""
    few = isinstance(value, list | tuple) and 0 < len(value) < 8
    if few and all(isinstance(entry, int) for entry in value):
        return f"[{','.join(map(str, value))}]"
    return ""


def read(path):
    """The comment of a life, its commands, and its log."""
    head, _, log = path.read_text().partition("----\n")
    lines = head.splitlines()
    about = [line for line in lines if line.startswith("#")]
    return about, [line for line in lines if line and line not in about], log.splitlines()


def live(commands):
    """Runs a life; its log, and the problems found."""
    life = Life(commands)
    outcome = life.run()
    unheard = [f"no line has {text!r}" for text in life.unheard()]
    return life.log, [*outcome.problems, *unheard]


def written(about, commands, log):
    """The text of a life."""
    return "\n".join([*about, *commands, "----", *log, ""])
