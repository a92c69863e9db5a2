"""Lives of clusters as text: what happens to one, and all that its master takes and wants done.

    lives/*.txt: commands -> Life -> events of the master, effects of each -> compared with the text

    # what the life is about
    cluster servers=2 workers=1 blocks=3       the scenario, and the plan of the job
    start master server server worker          in this order
    when TEXT: kill server-1                   as soon as a line of the log has the text
    ----
    > kill server-1                            a command
    worker-1: Lease train                      an event
      answers worker-1: Leased ...             its effects, in order

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
EACH_TIME = "inspect"
"""The work that follows each report: a look at what the rows are."""
DULL = {
    "host", "pid", "cores", "endpoints", "address", "job", "interval_s", "timeout_s", "patience_s",
    "incarnation", "frag_num", "settings", "usage", "path", "worker_class", "life", "peak_rss_mb",
    "seconds", "seed", "at", "now", "piece", "layout", "progress", "metrics", "units", "whole",
    "table", "tables", "job_s", "pass_s", "first", "port", "sync", "paced", "figures", "late",
}  # fmt: skip
"""Fields that are the same in each life, or differ without a reason."""
WHICH = ("number", "shard", "part")
"""Fields that are shown though they are 0, or -1: none."""
WIDTH = 110
COMMAND = re.compile(r"(?P<what>cluster|start|when) (?P<rest>.+)")


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
    """One cluster that lives as its commands say.

    Attributes
    ----------
    log : list of str
        What has happened.
    """

    numbers = Steady

    def __init__(self, commands):
        self._fields, self._starts, self._waiting = {}, [], []
        for line in commands:
            what, rest = COMMAND.fullmatch(line).group("what", "rest")
            if what == "cluster":
                self._fields |= dict(pair.split("=") for pair in rest.split())
            elif what == "start":
                self._starts += rest.split()
            else:
                self._waiting.append(tuple(rest.rsplit(": ", 1)))
        self.log, self._event = [], None
        self._callers, self._asked, self._works = {}, {}, {}
        super().__init__(1)

    def draw(self, seed):
        kinds = {field.name: field.type for field in dataclasses.fields(JobPlan)}
        values = {
            name: {"int": int, "float": float, "str": str, "bool": bool}[
                kinds.get(name) or type(getattr(PLAIN, name)).__name__
            ](value)
            for name, value in self._fields.items()
        }
        s = replace(PLAIN, **{n: v for n, v in values.items() if hasattr(PLAIN, n)})
        plan = JobPlan(s.consistency, s.staleness, s.micro_batches, s.blocks, s.epochs)
        return s, [replace(plan, **{n: v for n, v in values.items() if n in kinds})]

    def begin(self):
        for what in self._starts:
            self._do("start", what)

    def think_s(self):
        return self.scenario.think_s

    def work_s(self, *, disk=False):
        return 0.01

    # --- commands ---------------------------------------------------------------------------------

    def _do(self, deed, what):
        self._write(f"> {deed} {what}")
        if deed == "kill":
            processes = {process.name: process for process in (*self.masters, *self.nodes)}
            processes[what].hurt = "killed"
            processes[what].die("killed")
        elif deed == "leave":
            {node.name: node for node in self.nodes}[what].asked_to_leave()
        elif what == "master":
            self.start_master()
        else:
            self.start_node(what)

    def _write(self, line):
        self.log.append(line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ...")
        for waiting in list(self._waiting):
            text, deeds = waiting
            if text in line:
                self._waiting.remove(waiting)
                for deed in deeds.split(", "):
                    self.world.after(0.0, self._do, *deed.split())

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
        """A line of an effect; None: it is of no interest."""
        if isinstance(effect, QUIET):
            return None
        if isinstance(effect, effects.Send):
            return f"tells {self._name(effect.peer)}: {brief(effect.message)}"
        if isinstance(effect, effects.Order):
            peer = self._name(effect.peer)
            self._asked[effect.number] = peer, effect.message
            silent = isinstance(effect.message, messages.Ask)
            return None if silent else f"asks {peer}: {brief(effect.message)}"
        if isinstance(effect, Answering):
            caller = self._callers[effect.call]
            peer = caller.process.name if caller.is_open else "one that is gone"
            return f"answers {peer}: {brief(effect.answer)}"
        if isinstance(effect, effects.Note):
            return f"notes {effect.kind} {values_of(effect.data)}".rstrip()
        if isinstance(effect, effects.Say):
            return f"says: {effect.text}"
        if isinstance(effect, Work):
            run = effect.run.func if isinstance(effect.run, partial) else effect.run
            self._works[effect.number] = name = run.__name__.strip("_")
            return None if name == EACH_TIME else f"begins: {name}"
        if isinstance(effect, effects.Close):
            return f"closes {self._name(effect.peer)}"
        return f"{type(effect).__name__} {values_of(fields_of(effect))}".rstrip()


def fields_of(value):
    """The fields of a dataclass, by name."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def brief(message):
    """A message, or an error, in a few words."""
    if not isinstance(message, Message):
        return str(message)
    return f"{type(message).__name__} {values_of(fields_of(message))}".rstrip()


def values_of(fields):
    """Fields that say something in a few characters."""
    words = {name: short_of(value) for name, value in fields.items() if name not in DULL}
    words |= {name: str(fields[name]) for name in WHICH if fields.get(name) in (0, -1)}
    return " ".join(f"{name.strip('_')}={word}" for name, word in words.items() if word)


def short_of(value):
    """A value as a word; empty: it says nothing, or too much."""
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
    """The words about a life, its commands, and its log."""
    head, _, log = path.read_text().partition("----\n")
    lines = head.splitlines()
    about = [line for line in lines if line.startswith("#")]
    return about, [line for line in lines if line and line not in about], log.splitlines()


def live(commands):
    """The log of a life, and what is wrong with it."""
    life = Life(commands)
    outcome = life.run()
    unheard = [f"no line has {text!r}" for text, _ in life._waiting]
    return life.log, [*outcome.problems, *unheard]


def written(about, commands, log):
    """The text of a life."""
    return "\n".join([*about, *commands, "----", *log, ""])
