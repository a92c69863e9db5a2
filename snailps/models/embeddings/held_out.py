"""Held-out lines: which lines of its input a training leaves out, to be tested on them.

    settings -> HeldOut: how many, by what
    blocks -> LineKeys: user, item, key of each line -> DrawnLines at the master -> Split.dump
    end of the survey's summary -> Split.held(lines) -> workers train the others, `judge` tests them

`line` and a bound of time are rules: each reader decides by the line alone.  What depends on the
other lines of a user, or on the times of all, is decided once, by the master at the end of the
survey, and travels in the summary.  A pair of user and item is held out whole, however often it
comes; by a time, single lines are.  Names, counts and moments are those of the lines that are
trained, so a training learns what it learns from a file without the held-out lines.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from snailps.abi.key_hash import MASK64, mix64
from snailps.data._text import hashes_of
from snailps.data.held_out import least_draw, lines_of_share
from snailps.data.name_columns import Columns, NameCounts, Names, ValueMoments, times_of
from snailps.dataclass import dataclass
from snailps.errors import ConfigError, DataError
from snailps.models.rows import Ids

By = Literal["line", "user", "user_time", "user_order", "time"]
TIMED = ("time", "user_time")
_ITEM_SEED = 0x68656C64
_BOUND = struct.Struct("<d")
_HEAD = struct.Struct("<QBB")
_NEVER = float("inf")

Draws = NDArray[np.uint64]
Floats = NDArray[np.float64]
_NO_DRAWS = np.zeros(0, np.uint64)


@dataclass(frozen=True, slots=True)
class HeldOutRule:
    """How many lines are held out, and by what.

    `amount` below 1 is a share, else lines of each user; 0: those from time `since` on.
    """

    amount: float
    by: By
    since: float
    seed: int

    @classmethod
    def of(cls, settings: Any) -> HeldOutRule | None:
        """The choice of settings; None: all lines are trained.  `ConfigError`: a contradiction."""
        amount, since = settings.held_out, settings.held_out_from
        goes_on = settings.continue_from
        adopted = (
            f". {goes_on} has its own: held_out: 0 and an empty held_out_from replace them"
            if goes_on
            else ""
        )
        if not amount and not since:
            return None
        if since and settings.held_out_by != "line" and not goes_on:
            raise ConfigError(
                f"held_out_from: expected no held_out_by beside it, got {settings.held_out_by}: a "
                "time decides by the line. Leave one of them out"
            )
        if settings.test:
            raise ConfigError(
                "held_out: expected none beside test, got both: lines are either held out of the "
                f"input, or come from files of their own. Leave one of them out{adopted}"
            )
        if amount and since:
            raise ConfigError(
                f"held_out_from: expected none beside held_out, got {since!r} and {amount:g}: give "
                f"the time from which lines are held out, or how many of the last ones{adopted}"
            )
        if amount >= 1 and (amount != int(amount) or settings.held_out_by in ("line", "time")):
            raise ConfigError(
                f"held_out: expected a share below 1, or with held_out_by user, user_time or "
                f"user_order a whole number of lines of each user, got {amount:g} with held_out_by "
                f"{settings.held_out_by}"
            )
        bound = times_of([since.encode()]) if since else np.zeros(1)
        if not len(bound):
            raise ConfigError(
                "held_out_from: expected a time, a number or a date such as 2024-05-31, got "
                f"{since!r:.60}"
            )
        by: By = "time" if since else settings.held_out_by
        return cls(float(amount), by, float(bound[0]) if since else _NEVER, settings.seed)

    @property
    def reads_times(self) -> bool:
        return self.by in TIMED

    @property
    def is_rule(self) -> bool:
        """Whether a line alone shows if it is held out."""
        return self.by == "line" or not self.amount

    @property
    def none_left(self) -> str:
        """Why a rule left no line to train, and what to do."""
        if self.by == "line":
            return f"held_out: {self.amount:.9g} left no line to train: hold out fewer"
        return (
            f"held_out_from: no line has a time before {self.since:.15g}, so none is left to train."
            " Numbers are compared with the numbers of the input, and dates as seconds since 1970: "
            "2024 is a number, 2024-01-01 a date"
        )

    @property
    def split(self) -> HeldOutSplit:
        """The split of a rule."""
        least = least_draw(self.amount) if self.by == "line" else None
        return HeldOutSplit(self.seed, least, self.since, _NO_DRAWS)


@dataclass(frozen=True, slots=True)
class HeldOutSplit:
    """Divides lines: held out are those whose draw is at least `least` (None: none by their draw),
    from time `since` on, or of a pair in `pairs`, draws in ascending order."""

    seed: int
    least: int | None
    since: float
    pairs: Draws

    @classmethod
    def of(cls, held_out: HeldOutRule | None, rest: bytes) -> HeldOutSplit | None:
        """The split that a survey has decided, from the end of its summary; None: no line is held
        out."""
        if held_out is None or held_out.is_rule:
            return None if held_out is None else held_out.split
        try:
            (since,) = _BOUND.unpack_from(rest)
            pairs = np.frombuffer(rest, np.uint64, offset=_BOUND.size)
        except (ValueError, struct.error):
            raise DataError("a survey's summary lacks the held-out lines") from None
        return cls(held_out.seed, None, since, pairs)

    def dump(self) -> bytes:
        """What a survey has decided, as bytes for `of`."""
        return _BOUND.pack(self.since) + self.pairs.tobytes()

    def held(self, lines: Columns) -> NDArray[np.bool_]:
        """Which lines are held out, bool (n,)."""
        by_draw = self.least is not None or len(self.pairs) > 0
        draws = draws_of(lines, self.seed) if by_draw else _NO_DRAWS
        return self.held_by(draws, lines.times, len(lines))

    def held_by(self, draws: Draws, times: Floats, count: int) -> NDArray[np.bool_]:
        """Which of `count` lines are held out, bool (count,); each array has a number a line, and
        may be empty if the split does not read it."""
        held = np.zeros(count, bool)
        if self.since < _NEVER:
            held |= times >= self.since
        if self.least is not None:
            held |= draws >= np.uint64(self.least)
        if len(self.pairs):
            places = np.minimum(np.searchsorted(self.pairs, draws), len(self.pairs) - 1)
            held |= self.pairs[places] == draws
        return held

    def trained(self, lines: Columns) -> Columns:
        """The lines that are not held out."""
        return lines.take(~self.held(lines))


def draws_of(lines: Columns, seed: int) -> Draws:
    """A number of each line's user and item, as if drawn, uint64 (n,)."""
    users, items = lines.names
    of_users = hashes_of(users, seed & MASK64)
    of_items = hashes_of(items, (seed ^ _ITEM_SEED) & MASK64)
    # Mixed after they are combined. The draws that are held out are the largest: a leading bit that
    # is one of the user and one of the item, combined, would hold out blocks of users x items.
    return mix64(mix64(of_users) + of_items)


@dataclass(frozen=True, slots=True)
class LineKeys:
    """Lines of a survey: numbers of users and items, draws, and, or empty, places in the order by
    which the last ones are held out, and values."""

    users: Ids
    items: Ids
    draws: Draws
    order: Floats
    values: Floats

    @classmethod
    def joined(cls, parts: Sequence[LineKeys]) -> LineKeys:
        columns = zip(*map(cls._columns, parts), strict=True)
        return cls(*map(np.concatenate, columns))

    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self.users, self.items, self.draws, self.order, self.values

    @property
    def size_bytes(self) -> int:
        return sum(column.nbytes for column in self._columns())

    def numbered(self, users: NDArray[np.int64], items: NDArray[np.int64]) -> LineKeys:
        """The lines with other numbers of their names: number i becomes ``users[i]``."""
        return LineKeys(
            users[self.users].astype(np.int32), items[self.items].astype(np.int32),
            self.draws, self.order, self.values,
        )  # fmt: skip

    def dump(self) -> bytes:
        """The lines as bytes for `load`."""
        head = _HEAD.pack(len(self.users), len(self.order) > 0, len(self.values) > 0)
        return head + b"".join(column.tobytes() for column in self._columns())

    @classmethod
    def load(cls, dumped: bytes, names: Names) -> LineKeys:
        """The lines of another process; DataError: malformed, or with other names."""
        try:
            count, *more = _HEAD.unpack_from(dumped)
            offset, columns = _HEAD.size, list[Any]()
            count = min(count, len(dumped))
            kinds = ((np.int32, 1), (np.int32, 1), (np.uint64, 1), (np.float64, more[0]))
            for dtype, has in (*kinds, (np.float64, more[1])):
                length = count * bool(has)
                columns.append(np.frombuffer(dumped, dtype, length, offset))
                offset += columns[-1].nbytes
            for numbers, of_kind in zip(columns, names.names, strict=False):
                if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(of_kind):
                    raise ValueError
        except (ValueError, struct.error):
            raise DataError("a survey's part has malformed lines") from None
        return cls(*columns)


class DrawnLines:
    """Collects the lines of a survey, and decides which are held out."""

    def __init__(self, held_out: HeldOutRule) -> None:
        self._held_out, self._parts = held_out, list[LineKeys]()

    def add(self, part: Names, counts: NameCounts) -> None:
        """Add the lines of a part, whose names are merged in `counts`."""
        lines = LineKeys.load(part.rest, part)
        users, items = (
            table.numbers(names) for table, names in zip(counts.counts, part.names, strict=True)
        )
        self._parts.append(lines.numbered(users, items))

    def decide(self, counts: NameCounts) -> tuple[NameCounts, HeldOutSplit]:
        """Return the names of the lines that are trained, and the split.

        DataError: no line is left to train, or to test on.
        """
        lines = LineKeys.joined(self._parts)
        self._parts.clear()
        split = self._decided(lines)
        held = split.held_by(lines.draws, lines.order, len(lines.users))
        if not held.any() or held.all():
            raise DataError(
                f"held_out: {'all' if held.any() else 'none'} of {len(held):,} lines would be held "
                f"out by held_out_by: {self._held_out.by}, got held_out: "
                f"{self._held_out.amount:g}. {_CURES[self._held_out.by]}"
            )
        fewer = [
            np.bincount(numbers[held], minlength=len(table)).astype(np.int64)
            for numbers, table in zip((lines.users, lines.items), counts.counts, strict=True)
        ]
        trained = counts.less(fewer)
        if len(lines.values):
            trained.values = ValueMoments.of(lines.values[~held])
        return trained, split

    def _decided(self, lines: LineKeys) -> HeldOutSplit:
        rule = self._held_out
        if rule.by == "time":
            times = np.sort(lines.order)
            count = np.array([len(times)])
            since = float(times[len(times) - max(1, int(lines_of_share(rule.amount, count)[0]))])
            return HeldOutSplit(rule.seed, None, since, _NO_DRAWS)
        pairs = pairs_held_out(lines.users, lines.draws, lines.order, rule.amount)
        return HeldOutSplit(rule.seed, None, _NEVER, pairs)


_CURES: Mapping[str, str] = {
    **dict.fromkeys(
        ("user", "user_time", "user_order"),
        "Users with a single item are trained on all they have: hold out by line or time",
    ),
    "time": "Lines of the same time stay together: hold out by user_time",
}


def pairs_held_out(users: Ids, draws: Draws, order: Floats, amount: float) -> Draws:
    """Choose the held-out pairs of each user: those with the largest draws, or, if there is an
    `order`, the last ones.

    Of n pairs a share is rounded down, but at least one is held out and one is trained, as in
    RecBole's splits; a user with a single pair has none.  A pair that comes several times is as
    late as the last of its lines.  Returns their draws, ascending.
    """
    late = order if len(order) else np.zeros(len(users))
    by = np.lexsort((late, draws, users))
    users, draws, late = users[by], draws[by], late[by]
    is_last = np.ones(len(users), bool)  # of the lines of a pair
    is_last[:-1] = (users[1:] != users[:-1]) | (draws[1:] != draws[:-1])
    users, draws, late = users[is_last], draws[is_last], late[is_last]
    by = np.lexsort((draws, late, users))
    users, draws = users[by], draws[by]
    begins = np.flatnonzero(np.concatenate([[True], users[1:] != users[:-1]])[: len(users)])
    counts = np.diff(np.append(begins, len(users)))
    wanted = lines_of_share(amount, counts) if amount < 1 else np.full(len(counts), int(amount))
    chosen = np.minimum(np.maximum(1, wanted), counts - 1)
    from_end = np.repeat(counts, counts) - (np.arange(len(users)) - np.repeat(begins, counts))
    return np.sort(draws[from_end <= np.repeat(chosen, counts)])
