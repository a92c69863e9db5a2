"""The model of the simulation: its rows show which pushes they contain.

    SimModel                the class that the real master loads: one table, and a survey on demand
    Books                   pushes sent and acknowledged, by key and block -> invariants.py
    contribution(rows, ...) what a block adds in bsp: it depends on each bit of the rows

Own keys belong to one push alone, so a row other than 1 names the push that was lost or counted
twice.  Shared keys belong to many pushes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from snailps import AccessMethod, Rotation, Table, Worker, setting
from snailps.api.concurrency import ALL, Concurrency
from snailps.api.passes import EPOCHS_AUTO, Passes
from snailps.api.range_passes import RangePasses
from snailps.api.validation import Validation
from snailps.config import JobSettings, to_mapping

TABLE = "counts"
DIM = 2
SHARED = 24
"""Shared keys are 0 to 23."""
OWN = 1 << 40
UNITS = 5
"""Of each block."""


class Counted(AccessMethod):
    """Adds, and counts the pushes of each row in its state: weights without a push are a fault."""

    state_floats = 1

    def push(self, rows, values):
        """Each value is added to its row."""
        weights, pushes = rows[:, : self.dim], rows[:, self.dim :]
        if (weights.any(axis=1) & (pushes[:, 0] == 0)).any():
            raise ValueError("a row has weights, and no push made them")
        return np.hstack([weights + values, pushes + np.float32(1)])

    def assign(self, keys, values):
        """Each value takes the place of its row, as if one push had made it."""
        return np.hstack([values, np.ones((len(keys), 1), np.float32)])


class Joined:
    """Merges a survey: the numbers of its blocks, in the order of their parts."""

    def __init__(self):
        self._parts = []

    def add(self, part: bytes) -> None:
        """The number of a block."""
        self._parts.append(part)

    def result(self) -> bytes:
        """All numbers."""
        return b"".join(self._parts)


def survey_of(number):
    """What the survey of a block finds: its number."""
    return struct.pack("<I", number)


def blocks_of(summary):
    """The blocks that a summary is made of, in the order of their merge."""
    return [number for (number,) in struct.iter_unpack("<I", summary)]


def nothing_to_load(results):
    """A loader that does nothing: the simulated reader loads."""


def tested_by_the_reader(results):
    """A test that does nothing: the simulated reader tests."""


@dataclass(frozen=True, slots=True)
class SimSettings(JobSettings):
    """Of `SimModel`."""

    epochs: int = setting(0, **EPOCHS_AUTO)
    passes: int = setting(1, help="Epochs at most, where they are not set.", when="In tests.")
    rounds: int = setting(0, help="Rounds; 0: none.", when="In tests.")
    fraction: float = setting(1.0, help="Share of workers a round.", when="In tests.")
    deadline: float = setting(0.0, help="Seconds a round.", when="In tests.")
    survey: int = setting(0, help="1: a survey; 2: then rows are loaded.", when="In tests.")
    method: str = setting("", help="An access method in Python.", when="In tests.")
    expires: int = setting(0, help="Units that a row lives without a push.", when="In tests.")
    chunks: int = setting(0, help="Of a rotation's epoch; 0: none.", when="In tests.")
    most_parts: int = setting(1, help="Of a rotation.", when="In tests.")
    splits: int = setting(1, help="Passes of a rotation's epoch.", when="In tests.")
    keeps: int = setting(0, help="1: blocks are encoded once.", when="In tests.")
    ranges: int = setting(0, help="Of a pass over ranges; 0: none.", when="In tests.")
    seats: int = setting(0, help="Workers that train at a time.", when="In tests.")
    tests: int = setting(0, help="1: each epoch is tested.", when="In tests.")
    stop_after: int = setting(0, help="Epochs without a better figure.", when="In tests.")


class SimModel(Worker):
    """Counts pushes, or averages what workers push in rounds."""

    Settings = SimSettings

    @staticmethod
    def table(settings: Mapping[str, str]) -> Table:
        """The one table."""
        access = "average" if int(settings.get("rounds", "0")) else settings.get("method") or "add"
        track = "touch" if int(settings.get("expires", "0")) else ""
        return Table(TABLE, DIM, wire="float32", access=access, track=track)

    def tables(self):
        return [self.table(to_mapping(self.settings))]

    def train(self, block):
        raise NotImplementedError("scripted workers train")

    @classmethod
    def surveyor(cls, settings):
        return Joined() if settings.survey else None

    @classmethod
    def loader(cls, settings):
        return nothing_to_load if settings.survey == 2 else None

    @classmethod
    def expires(cls, settings):
        return settings.expires

    @classmethod
    def passes(cls, settings, files):
        return Passes(settings.passes, 1)

    @classmethod
    def workers_at_once(cls, settings, files):
        return Concurrency(settings.seats or ALL, "drawn")

    @classmethod
    def rotation(cls, settings, total_bytes, workers, summary):
        if not settings.chunks:
            return None
        s = settings
        return Rotation(s.chunks, s.most_parts, passes=s.splits, is_kept=bool(s.keeps))

    @classmethod
    def range_passes(cls, settings, summary):
        if not settings.ranges:
            return None
        return RangePasses(settings.ranges, settings.epochs, before=settings.ranges % 2)

    @classmethod
    def validation(cls, settings):
        return Validation(tested_by_the_reader, settings.stop_after) if settings.tests else None

    @classmethod
    def rounds(cls, settings):
        return settings.rounds

    @classmethod
    def fraction(cls, settings):
        return settings.fraction

    @classmethod
    def deadline(cls, settings):
        return settings.deadline

    @classmethod
    def after_round(cls, results: Any, round_: int) -> Mapping[str, Any]:
        raise NotImplementedError("the simulated reader looks")


@dataclass(slots=True)
class Push:
    """A push to one key, and when it was acknowledged; None: not yet.

    `reported` is the number of blocks done when it was made, by which rows are forgotten.
    """

    block: int
    drawn_at: float
    reported: int = 0
    acked_at: float | None = None


@dataclass
class Books:
    """The pushes of all workers of a run, and their acknowledgements.

    Attributes
    ----------
    own : dict
        Push of each own key.
    shared : dict
        Pushes by shared key.
    reported : set
        Blocks that a `Done` or a `Rejoin` has reported to the master.
    slots : dict
        (block, seed) by (clock, slot).
    parts : dict
        By part of a round: the seed of its lease.
    wrong : list
        Faults that were found while the job ran, in words.
    """

    own: dict = field(default_factory=dict)
    shared: dict = field(default_factory=dict)
    reported: set = field(default_factory=set)
    slots: dict = field(default_factory=dict)
    parts: dict = field(default_factory=dict)
    wrong: list = field(default_factory=list)
    _next: int = OWN

    def draw(self, number, own, now, more=(), *, shared=True):
        """A new push of a block: a `Push` for each key, the shared ones and `own` new ones."""
        mine = range(self._next, self._next + own)
        self._next += own
        done = len(self.reported)
        keys = shared_of(number) if shared else ()
        push = {key: Push(number, now, done) for key in (*keys, *more, *mine)}
        for key, part in push.items():
            if key >= OWN:
                self.own[key] = part
            else:
                self.shared.setdefault(key, []).append(part)
        return push

    def acked(self, push, keys, now):
        """A part of a push was acknowledged."""
        for key in keys:
            push[key].acked_at = now

    def go_on(self, done, clock):
        """A training begins where these blocks are trained; later clocks have no contributions."""
        self.reported = set(done)
        self.slots = {place: what for place, what in self.slots.items() if place[0] < clock}


def shared_of(number):
    """Shared keys of a block."""
    return sorted({(number * 7 + i * i) % SHARED for i in range(5)})


def contribution(keys, rows, number, seed):
    """What a block adds to its rows in bsp: float32, one row a key.

    It depends on the bits of the rows, so an earlier error shows in all later rows.
    """
    factor = np.float32((seed % 1000 + 1) / 977)
    return np.array(
        [
            [
                rows[key][0] * np.float32(0.25) + factor,
                rows[key][1] * np.float32(-0.5)
                + np.float32((number * 31 + key) % 97) / np.float32(7),
            ]
            for key in keys
        ],
        np.float32,
    )


def expected_rows(slots, micro_batches):
    """Rows after all clocks of a bsp job, from what each slot trained: plain float32 sums."""
    rows = {key: np.zeros(DIM, np.float32) for key in range(SHARED)}
    for clock in range(1 + max((clock for clock, _ in slots), default=-1)):
        sums = {}
        for slot in range(micro_batches):
            if (clock, slot) not in slots:
                continue
            number, seed = slots[clock, slot]
            keys = shared_of(number)
            for key, value in zip(keys, contribution(keys, rows, number, seed), strict=True):
                sums[key] = value if key not in sums else sums[key] + value
        for key, value in sums.items():
            rows[key] = rows[key] + value
    return rows


def weighted(keys, rows, number, seed):
    """What a part of a round adds: its values times its weight, and its weight."""
    weight = np.float32(1 + number % 3)
    values = contribution(keys, rows, number, seed) * weight
    return np.hstack([values, np.full((len(keys), 1), weight, np.float32)])


def expected_round(rows, parts, seeds):
    """Rows after a round of these parts, in the order of their slots, from those before it."""
    zeros = dict.fromkeys(range(SHARED), np.zeros(DIM, np.float32)) | rows
    sums = {}
    for number in parts:
        keys = shared_of(number)
        for key, value in zip(keys, weighted(keys, zeros, number, seeds[number]), strict=True):
            sums[key] = value if key not in sums else sums[key] + value
    return rows | {key: sum_[:DIM] / sum_[DIM] for key, sum_ in sums.items()}
