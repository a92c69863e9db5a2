"""Which faults come when: drawn from a seed, so that a run that failed can be repeated.

    Schedule(seed, number, kinds) -> Fault, Fault, ...

Faults are counted in acknowledged pushes, not in seconds: what a busy machine does slowly, it does
at the same place of the run.  Pure: it knows no process and no proxy.
"""

import random
from dataclasses import dataclass

PROCESSES = ("server", "worker", "master")
KILLS = tuple(f"kill {role}" for role in PROCESSES)
PAUSES = tuple(f"pause {role}" for role in PROCESSES)
FREEZES = ("freeze server", "freeze worker")
ISOLATIONS = ("isolate server", "isolate worker")
LINKS = ("cut data", "tear data", "slow data", "delay data", "silence data")
CONTROL = tuple(f"{what} {role}'s-control" for what in ("cut", "silence") for role in PROCESSES[:2])
DISK = ("fill disk",)
STORMS = (
    *(f"storm {role}" for role in PROCESSES),
    "storm server+worker", "storm server+master", "storm worker+master", "storm worker+worker",
    "storm master+master", "storm server+joiner", "storm worker+joiner", "storm master+joiner",
    "storm server+replacement",
)  # fmt: skip
"""Kills while a worker or a server joins, one or two within 0.1 s, at any moment of its moves.
``master+master``: the second one while it takes over; ``server+replacement``: the server that was
started in place of the first one, while it joins.  Two servers that belong to the cluster are never
killed at once: with one standby a shard nothing is promised then; so with ``server+joiner`` it is a
worker that joins."""
STALLS = ("stall server", "stall worker", "stall master", "stall worker+server")
"""SIGSTOP for 1 to 20 s, far beyond heartbeat_timeout: who was taken for lost is replaced.  With
``+server`` a server is killed meanwhile."""

_HOST = "snailps.server.shard_host:ShardHost"
PLACES = {
    "mid-send": {"point": "mid-send"},
    "applied": {"point": "applied"},
    "acknowledged": {"point": "acknowledged"},
    "replayed": {"point": "replayed"},
    "yielding": {"die": f"{_HOST}._yield_begun", "when": "before"},
    "yielded": {"die": f"{_HOST}._yielded", "when": "before"},
    "noting": {"die": "snailps.master.journal:Journal.note", "when": "before"},
    "noted": {"die": "snailps.master.journal:Journal.note", "when": "after"},
    "compacting": {"die": "snailps.master.journal:Journal._replace", "when": "before"},
    "compacted": {"die": "snailps.master.journal:Journal._replace", "when": "after"},
    "manifest": {
        "die": "snailps.store.checkpoint.folder:CheckpointFolder.complete",
        "when": "before",
    },
    "saved": {"die": "snailps.store.checkpoint.folder:CheckpointFolder.complete", "when": "after"},
}
"""Where a process dies by itself (`hurt.py`): in the middle of a frame to the standby; a push
applied and not yet forwarded; replies gone out; applied at the standby and not acknowledged;
a primary that has begun to yield, and one that has yielded before the master hears of it; a fact of
the journal, a compacted one and a checkpoint about to be given their names, and after."""
AIMS = tuple(f"aim server:{place}" for place in list(PLACES)[:4])
CUT_OVERS = ("aim server:yielding", "aim server:yielded")
COMPACTIONS = ("aim master:compacting", "aim master:compacted")
MASTER_AIMS = ("aim master:noting", "aim master:noted", *COMPACTIONS)
MANIFESTS = ("aim master:manifest", "aim master:saved")

STALL_S = (1.0, 20.0)
BRIEF_S = (0.05, 0.8)
"""How long a fault lasts that need not be noticed; far below heartbeat_timeout."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes
    ----------
    kind : str
        The fault and its target.  ``kill``: SIGKILL; ``pause``: SIGSTOP, and SIGCONT soon enough;
        ``freeze``: SIGSTOP until it is taken for lost, then SIGCONT; ``isolate``: the master does
        not hear of it until it is taken for lost, all others do; ``cut``: connections are reset;
        ``tear``: one is closed in the middle of a frame; ``slow``, ``delay``, ``silence``: for a
        while; ``fill``: the disk is full for a while; ``aim``: dies at one of `PLACES`.  ``data``:
        all connections into a server.
    index : int
        Which of those that are alive, modulo their number.
    after : int
        Acknowledged pushes before it, counted from when the last fault was repaired.
    lasts_s : float
        Of those that last.
    bytes : int
        Of ``tear``: how many pass until it comes.
    """

    kind: str
    index: int = 0
    after: int = 20
    lasts_s: float = 0.3
    bytes: int = 0

    @property
    def what(self):
        return self.kind.split()[0]

    @property
    def whom(self):
        return self.kind.split()[1]

    @property
    def kills(self):
        """How many processes it kills."""
        if self.what == "storm":
            return 1 + self.whom.count("+")
        return int(self.what == "kill") + self.whom.count("+")

    @property
    def share(self):
        """A number from 0 to 1 of its own."""
        return self.bytes % 1000 / 1000


class Schedule:
    """A row of faults.

    Parameters
    ----------
    seed : int
    number : int
        How many.
    kinds : sequence of str
        Which there may be; each is as likely as the others, and each comes once before any comes
        twice.
    every : int
        Mean number of acknowledged pushes between two.
    """

    def __init__(self, seed, number, kinds, every=40):
        self.seed, self.kinds, self.every = seed, tuple(kinds), every
        draw = random.Random(f"{seed} {number} {every} {' '.join(kinds)}")
        self.faults = []
        bag = []
        for _ in range(number):
            if not bag:
                bag = list(kinds)
                draw.shuffle(bag)
            self.faults.append(
                Fault(
                    bag.pop(),
                    draw.randrange(64),
                    draw.randrange(max(1, every // 4), 2 * every),
                    round(draw.uniform(*BRIEF_S), 3),
                    draw.randrange(1, 200_000),
                )
            )

    def __iter__(self):
        return iter(self.faults)

    def __len__(self):
        return len(self.faults)

    def __str__(self):
        lines = [
            f"Schedule({self.seed}, {len(self)}, {list(self.kinds)}, every={self.every})",
            *(f"  {number}: {fault}" for number, fault in enumerate(self.faults)),
        ]
        return "\n".join(lines)
