"""What a run trains: one job, drawn from the seed, and what the run knows of it.

    seed -> JobPlan -> settings for the master      workers, master -> JobRun -> invariants.py

It owns the plan of a job and the books about it: pushes, blocks, rounds, the result.  Rounds are
checked here while they are closed, because what a round lacks is known at that moment only.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

from snailps.master.job.metrics import FLAT_EPOCHS, RECENT_BLOCKS
from snailps.master.leases import CLOCKS_AHEAD
from snailps.transport.messages.terms import PassRange, Step
from tests.sim.checkpoints import History
from tests.sim.model import UNITS, Books, blocks_of, expected_round, expected_rows
from tests.sim.staleness import Staleness
from tests.support.without import is_there

LINE = b"1234567\n"
METHOD = "tests.sim.model:Counted"
CHECKPOINT_S = 0.3
"""Between two checkpoints of a session's job."""


@dataclass(frozen=True)
class JobPlan:
    """What a job is, before anything happens."""

    consistency: str
    staleness: int
    micro_batches: int
    blocks: int
    epochs: int
    rounds: int = 0
    fraction: float = 1.0
    deadline: float = 0.0
    survey: int = 0
    merges_survey: bool = False
    method: str = ""
    expires: int = 0
    chunks: int = 0
    most_parts: int = 1
    splits: int = 1
    """In a rotation: passes of an epoch, each of which splits the rows anew."""
    keeps: bool = False
    """In a rotation: what is encoded of a block serves all passes and epochs."""
    ranges: int = 0
    """Of each pass that waits for the one before; 0: there are none."""
    durable: float = 0.0
    """In a rotation: how often a checkout is durable."""
    target: bool = False
    """The training ends once it has enough losses, all of which are alike."""
    flat: bool = False
    """... or once the loss stops falling, which it never does."""
    limit_s: float = 0.0
    """... or after so long."""
    own: bool = False
    """Without a bound on how far workers may be apart, each has blocks of its own."""
    seats: int = 0
    """Workers that train at a time; 0: all."""
    figures: tuple = ()
    """The figure of each epoch, which is tested after it; higher is better."""
    stop_after: int = 0
    """The training ends after so many epochs without a better figure, with the best rows."""
    checkpoints: str = ""
    """Folder of a session's job that makes checkpoints."""

    @property
    def clocked(self):
        """Whether pushes wait for a clock."""
        return self.consistency == "bsp" or self.rounds > 0

    @property
    def bounded(self):
        """Whether a worker is at most `staleness` blocks ahead."""
        return self.consistency == "ssp" and not self.rounds

    @property
    def ends_by_loss(self):
        """Whether its losses may end it."""
        return self.target or self.flat

    def usual_s(self, think_s, workers):
        """Roughly how long it takes without faults, seconds."""
        each = self.rounds or self.blocks * self.epochs * self.splits / workers
        return 1.5 + 2 * each * think_s

    def settings(self, folder, number):
        """As a master reads them."""
        values = {
            "worker_class": "tests.sim.model:SimModel",
            "output": str(folder / f"out-{number}"),
            "survey": str(self.survey),
            "method": self.method,
            "expires": str(self.expires),
            "chunks": str(self.chunks),
            "most_parts": str(self.most_parts),
            "splits": str(self.splits),
            "keeps": str(int(self.keeps)),
            "ranges": str(self.ranges),
            "seats": str(self.seats),
            "tests": str(int(bool(self.figures))),
            "stop_after": str(self.stop_after),
            "checkpoint_dir": self.checkpoints,
            "checkpoint_interval": str(CHECKPOINT_S if self.checkpoints else 0.0),
        }
        if self.rounds:
            values |= {
                "rounds": str(self.rounds),
                "fraction": str(self.fraction),
                "deadline": str(self.deadline),
            }
            return values
        values |= {
            "consistency": self.consistency,
            "input": str(folder / f"in-{self.blocks}.txt"),
            "block_bytes": str(len(LINE)),
            "epochs": "auto" if self.flat else str(self.epochs),
            "passes": str(self.epochs),
        }
        if self.bounded:
            values["staleness"] = str(self.staleness)
        if self.consistency == "bsp":
            values["micro_batches"] = str(self.micro_batches)
        if self.target:
            values["target_loss"] = "1.0"
        if self.limit_s:
            values["max_seconds"] = str(self.limit_s)
        if self.own:
            values["assign"] = "own"
        return values

    def tested_epochs(self):
        """The epochs that are trained until the tests end the training."""
        best = -1
        for epoch, figure in enumerate(self.figures):
            if best < 0 or figure > self.figures[best]:
                best = epoch
            elif self.stop_after and epoch - best >= self.stop_after:
                return epoch + 1
        return self.epochs

    def least(self, blocks):
        """The entries that are trained whatever happens; in `bsp` no others are."""
        epochs = self.tested_epochs() if self.figures else self.epochs
        entries = blocks * (1 if self.keeps else epochs * self.splits)
        if self.ranges:
            return blocks + (self.epochs + self.ranges % 2) * self.ranges
        if self.rounds or self.limit_s:
            return 0
        if not self.ends_by_loss:
            return entries
        enough = min(RECENT_BLOCKS, blocks) if self.target else (FLAT_EPOCHS + 1) * blocks
        if self.consistency != "bsp":
            return min(enough, entries)
        clock = -(-enough // self.micro_batches) - 1
        return min(entries, (clock + 1 + CLOCKS_AHEAD) * self.micro_batches)

    def write_input(self, folder):
        """Makes the file that its blocks are cut from."""
        if not self.rounds:
            (folder / f"in-{self.blocks}.txt").write_bytes(LINE * self.blocks)


def draw_plan(seed, plain, think_s):
    """The plan of a seed's job: mostly the plain one, else one in rounds or with a survey.

    It draws from numbers of its own, so that other seeds stay what they are.  Options that are gone
    (`without.py`) are not drawn.
    """
    rng = random.Random(f"job {seed}")
    kind = rng.random()
    if kind < 0.2 and is_there("rounds"):
        return draw_rounds(rng, plain, think_s)
    if kind < 0.4:
        merges = plain.consistency != "bsp" and random.Random(f"merges {seed}").random() < 0.6
        plain = replace(plain, survey=rng.choice((1, 1, 2)), merges_survey=merges)
    return draw_ranges(seed, draw_rotation(seed, draw_table(rng, plain)))


def draw_seats(seed, plan):
    """The same plan, which may have some workers wait for others that leave."""
    rng = random.Random(f"seats {seed}")
    if plan.clocked or plan.chunks or plan.ranges or rng.random() > 0.25:
        return plan
    return replace(plan, seats=rng.choice((1, 1, 2, 3)))


def draw_end(seed, plan):
    """The same plan, which may end early, or give each worker blocks of its own."""
    plan, rng = draw_seats(seed, plan), random.Random(f"early {seed}")
    if plan.chunks and random.Random(f"cut {seed}").random() < 0.3:
        return replace(plan, limit_s=round(rng.uniform(0.3, 3.0), 2))
    if plan.rounds or plan.chunks or plan.ranges or plan.expires:
        return plan
    flat = random.Random(f"flat {seed}")
    if flat.random() < 0.07:
        epochs = FLAT_EPOCHS + flat.choice((1, 2, 4))
        return replace(plan, flat=True, epochs=epochs, blocks=-(-plan.blocks // 3))
    if rng.random() > 0.15:
        return plan
    own = plan.consistency == "async" and rng.random() < 0.5
    kind = rng.choice(("target", "limit", "neither" if own else "target"))
    limit_s = round(rng.uniform(0.3, 3.0), 2) if kind == "limit" else 0.0
    return replace(plan, target=kind == "target", limit_s=limit_s, own=own)


def draw_tests(seed, plan):
    """The same plan, whose epochs may be tested."""
    rng = random.Random(f"figures {seed}")
    may_be = not (plan.rounds or plan.expires or plan.ends_by_loss or plan.limit_s)
    if not may_be or plan.chunks or plan.ranges or rng.random() > 0.2:
        return plan
    if not is_there("tests_in_training"):
        return plan
    epochs = max(2, plan.epochs)
    figures = tuple(round(rng.random(), 3) for _ in range(epochs))
    return replace(plan, epochs=epochs, figures=figures, stop_after=rng.choice((0, 1, 1, 2)))


def draw_rotation(seed, plan):
    """The same plan, which may rotate: its rows do not expire then."""
    rng = random.Random(f"rotation {seed}")
    if plan.consistency != "async" or rng.random() > 0.4 or not is_there("rotation"):
        return plan
    chunks = rng.choice((1, 2, 3, 4, 6))
    most_parts = rng.choice((1, 2, 3, 8, 8))
    durable = random.Random(f"settles {seed}").choice((0.0, 0.2, 0.5))
    splits = random.Random(f"splits {seed}").choice((1, 1, 2, 3))
    keeps = random.Random(f"keeps {seed}").random() < 0.5
    cut = {"chunks": chunks, "most_parts": most_parts, "splits": splits, "keeps": keeps}
    return replace(plan, expires=0, durable=durable, **cut)


def draw_ranges(seed, plan):
    """The same plan, which may go over ranges of names, pass after pass."""
    rng = random.Random(f"ranges {seed}")
    if plan.consistency != "async" or plan.chunks or plan.expires or rng.random() > 0.2:
        return plan
    if not is_there("ranges"):
        return plan
    return replace(plan, ranges=rng.choice((1, 2, 3, 5)))


def draw_table(rng, plan):
    """The same plan, whose table may have an access method in Python, or forget rows."""
    kind = rng.random()
    if kind < 0.1:
        return replace(plan, method=METHOD)
    if kind < 0.25 and plan.consistency == "async":
        units = UNITS * plan.blocks * plan.epochs
        return replace(plan, expires=rng.randint(UNITS, max(UNITS, units)))
    return plan


def alike(rows, others):
    """Whether rows are equal to the last bit; rows of zeros count as none."""
    first, second = (
        {key: row.tobytes() for key, row in some.items() if row.any()} for some in (rows, others)
    )
    return first == second


def draw_rounds(rng, plain, think_s):
    """A plan in rounds."""
    return replace(
        plain, rounds=rng.randint(2, 12), fraction=rng.choice((1.0, 1.0, 0.6, 0.34)),
        deadline=rng.choice((0.0, 0.0, 0.0, 0.7, 3.0)) * think_s,
    )  # fmt: skip


@dataclass
class Round:
    """A round that was closed.

    Attributes
    ----------
    slots : tuple of int
        The slots in the order to the shards.
    parts : list of int
        Numbers of the parts, in the order of the slots.
    """

    slots: tuple
    parts: list


class Durable:
    """The durable checkouts: which the workers have reported, and which the journal has.

    Attributes
    ----------
    wrong : list of str
        Faults found, in words; a list of the books.
    """

    def __init__(self, wrong):
        self._told, self._noted, self.wrong = {}, {}, wrong

    def begin(self):
        """A training begins; a checkpoint has no checkouts."""
        self._told.clear()
        self._noted.clear()

    def tell(self, number, parts):
        """A worker reports durable checkouts; the message may be lost."""
        self._told.setdefault(number, set()).update(parts)

    def note(self, number, parts):
        """The master notes durable checkouts."""
        if not self._told.get(number, set()).issuperset(parts):
            self.wrong.append(
                f"checkouts {parts} of partition {number} count as durable, and are not"
            )
        noted = self._noted.setdefault(number, set())
        if noted & set(parts):
            self.wrong.append(f"checkouts {parts} of partition {number} are durable twice")
        noted.update(parts)

    def lease(self, number, had, safe):
        """A partition is leased without the checkouts `had`; `safe`: the journal lost nothing."""
        if not self._told.get(number, set()).issuperset(had):
            self.wrong.append(
                f"partition {number} is without checkouts {sorted(had)}: they are lost"
            )
        if safe and not self._noted.get(number, set()).issubset(had):
            self.wrong.append(
                f"partition {number} has durable checkouts to train again: {sorted(had)}"
            )


@dataclass
class JobRun:
    """One job of a run, and what all of it must come to.

    Attributes
    ----------
    blocks : int
        How many the master has cut the input into.
    exported : dict or None
        Row by key, read by the export.
    leased : dict
        By round: the worker of each part.
    begun : dict
        By round: when its first part was leased.
    told : str or None
        The message that the driver of a session got at the end of the job; empty: it ended well.
    excuses : list of str
        Events that may end a session's job.
    summary : bytes or None
        The summary that the workers got.
    loaded : bool
        Whether the loader has loaded, before which nobody may push.
    closed : list of Round
    parts : dict
        In a rotation: number of partitions by chunk.
    tenants : set
        In a rotation: workers with a lease, now or earlier.
    durable : Durable
        In a rotation: checkouts that need not be trained again.
    rows : dict
        The expected rows after the closed rounds.
    snapshots : dict
        By epoch: all rows, as its test has read them.
    figures_of_tests : dict
        What the training has reported of its tests at the export.
    """

    plan: JobPlan
    number: int = 0
    books: Books = field(default_factory=Books)
    history: History = field(default_factory=History)
    blocks: int = 0
    exported: dict | None = None
    told: str | None = None
    figures: dict | None = None
    excuses: list = field(default_factory=list)
    summary: bytes | None = None
    loaded: bool = False
    leased: dict = field(default_factory=dict)
    begun: dict = field(default_factory=dict)
    closed: list = field(default_factory=list)
    parts: dict = field(default_factory=dict)
    tenants: set = field(default_factory=set)
    durable: Durable = None
    rows: dict = field(default_factory=dict)
    snapshots: dict = field(default_factory=dict)
    figures_of_tests: dict = field(default_factory=dict)

    def __post_init__(self):
        self.durable = Durable(self.books.wrong)
        self._begin()

    def _begin(self):
        self.staleness = Staleness(self.plan.staleness) if self.plan.bounded else None

    def go_on(self, done, clock):
        """A training begins with these blocks trained, and with other workers."""
        self._begin()
        self.tenants.clear()
        self.durable.begin()
        self.summary = None
        self.books.go_on(done, clock)

    # --- what the master hears and says -----------------------------------------------------------

    def report(self, number, node):
        """The master hears that a block is done."""
        self.books.reported.add(number)
        if self.staleness is not None:
            self.staleness.report(node, number)

    def lease(self, lease, node, schedule, cluster):
        """The master gives a worker a block, or a part of a round."""
        step = lease.terms
        if isinstance(step, Step) and step.index >= 0:
            self.leased.setdefault(step.clock, {})[lease.number] = node
            self.begun.setdefault(step.clock, cluster.world.now)
        if isinstance(step, PassRange) and not cluster.powerless:
            before = schedule.plan.numbers_of(step.pass_index).start
            if missing := set(range(before)) - self.books.reported:
                self.books.wrong.append(
                    f"pass {step.pass_index} begins before entries {sorted(missing)} are done"
                )
        if self.plan.seats:
            here = {node.number for node in cluster.nodes if node.alive and not node.leaves}
            training = here.intersection(schedule.records.holders())
            if len(training) > self.plan.seats and not cluster.powerless:
                self.books.wrong.append(
                    f"workers {sorted(training)} train at a time, not {self.plan.seats} of them"
                )
        if self.staleness is not None:
            wrong = self.staleness.lease(node, lease.number, schedule)
            if wrong and not cluster.powerless and not cluster.disk.was_full:
                self.books.wrong.append(wrong)

    def may_forget(self, push):
        """Whether the row of a push was untouched for long enough to be forgotten."""
        units = UNITS * (len(self.books.reported) - push.reported)
        return self.plan.expires and (units >= self.plan.expires or bool(self.history.restored))

    def summarised(self, summary, cluster):
        """A worker gets the summary of the survey."""
        merged, blocks = blocks_of(summary), list(range(self.blocks))
        if sorted(merged) != blocks or (self.plan.consistency == "bsp" and merged != blocks):
            self.books.wrong.append(f"the survey of {len(blocks)} blocks is of {merged}")
        if self.summary not in (None, summary) and not cluster.powerless:
            self.books.wrong.append("workers got different summaries")
        self.summary = summary

    # --- tests of epochs --------------------------------------------------------------------------

    def tested(self, epoch, rows, again, cluster):
        """An epoch is tested: `rows` at the beginning of its test, and `again` at its end."""
        safe = cluster.acknowledgements_hold()
        if safe and not alike(rows, again):
            self.books.wrong.append(f"rows change while epoch {epoch:g} is tested")
        if self.plan.clocked:
            expected = expected_rows(self.books.slots, self.plan.micro_batches)
            if not alike({key: row for key, row in expected.items() if row.any()}, rows):
                self.books.wrong.append(f"epoch {epoch:g} is tested on the rows of another clock")
        elif safe and self.plan.stop_after == 0 and not self.history.all:
            lacking = [
                key for key, push in self.books.own.items()
                if push.acked_at is not None and key not in rows
            ]  # fmt: skip
            if lacking and not self.history.restored[1:]:
                self.books.wrong.append(f"epoch {epoch:g} is tested without {len(lacking)} pushes")
        self.snapshots[epoch] = again
        if self.staleness is not None:
            self.staleness.level()
        return self.plan.figures[min(len(self.plan.figures), math.ceil(epoch)) - 1]

    # --- rounds -----------------------------------------------------------------------------------

    def close(self, clock, slots, schedule, cluster):
        """The master orders a server to close a round; each server gets the order, maybe twice."""
        if clock < len(self.closed):
            if self.closed[clock].slots != slots and not cluster.powerless:
                self.books.wrong.append(
                    f"round {clock} is closed with slots {slots}, and was with "
                    f"{self.closed[clock].slots}"
                )
            return
        if clock > len(self.closed):
            self.books.wrong.append(f"round {clock} is closed before round {len(self.closed)}")
            return
        by_slot = {schedule.rounds.entry(n).terms.slot: n for n in schedule.records.done().tolist()}
        parts = [by_slot[slot] for slot in slots]
        if len(set(parts)) < len(parts):
            self.books.wrong.append(f"round {clock} counts a part twice: {parts}")
        self._check_lacking(clock, set(parts), cluster)
        self.closed.append(Round(slots, parts))
        self.rows = expected_round(self.rows, parts, self.books.parts)

    def _check_lacking(self, clock, parts, cluster):
        """Checks that a round has the part of each healthy worker that began it in time."""
        plan, now = self.plan, cluster.world.now
        late = plan.deadline and now >= self.begun[clock] + plan.deadline
        if cluster.interrupted or late:
            return
        healthy = {node.number for node in cluster.nodes if node.alive and not node.hurt}
        before, here = self.leased.get(clock - 1, {}), self.leased[clock]
        for number, node in here.items():
            if node in healthy and number not in parts:
                self.books.wrong.append(f"round {clock} lacks part {number} of worker {node}")
        if plan.fraction == 1.0:
            for node in set(before.values()) & healthy - set(here.values()):
                self.books.wrong.append(f"round {clock} goes on without worker {node}")

    def look(self, clock, rows):
        """The master has read rows after a round."""
        for key, row in rows.items():
            must = self.rows.get(key)
            if (must.tolist() if must is not None else [0.0] * len(row)) != row.tolist():
                self.books.wrong.append(
                    f"row {key} is {row.tolist()} after round {clock}, not {must}"
                )
                return
