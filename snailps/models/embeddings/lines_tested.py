"""Lines that a factorisation is tested on, and those that its lists leave out.

    settings, names -> LinesTested.read: lines of `test` files, or held out of the input
    LinesTested.sample -> the lines of some users, for figures during the training

Reads the input again, at the master; `factor_losses` makes the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from snailps.api.export_progress import ExportProgress
from snailps.data.name_columns import Columns, NameColumns, Names
from snailps.dataclass import dataclass, replace
from snailps.models.embeddings.files import LineIds, LineNumbering, columns_of
from snailps.models.embeddings.held_out import HeldOutSplit
from snailps.models.rows import Ids


@dataclass(frozen=True, slots=True)
class LineReading:
    """How a model reads its lines: columns, kinds of their names, which lines of the input it
    learns from.

    `ranks`: it is tested on choices, and its lists leave out the pairs of the training.
    """

    columns: NameColumns
    input_columns: NameColumns
    kinds: Sequence[int]
    learnt: Callable[[Columns], Columns]
    ranks: bool


@dataclass(frozen=True, slots=True)
class LinesTested:
    """Lines to test on; an unknown name is -1.  `seen`: pairs of the training, of a ranking."""

    lines: LineIds
    seen: Ids

    @classmethod
    def read(
        cls,
        reading: LineReading,
        settings: Any,
        names: Names,
        split: HeldOutSplit | None,
        progress: ExportProgress,
    ) -> LinesTested:
        """Read the lines of `test` files, or what `split` holds out of the input.

        `progress` gets a stage for each of both.
        """
        more = settings.scratch_dir, settings.scratch_bytes, progress
        tested = LineNumbering(reading.kinds, names, keep_unknown=True)
        trained = LineNumbering(reading.kinds, names)

        def test(lines: Columns) -> None:
            tested.add(lines.choices() if reading.ranks else lines)

        for lines, _ in columns_of(reading.columns, settings.test, *more):
            test(lines)
        paths = settings.input if reading.ranks or split is not None else ()
        for lines, _ in columns_of(reading.input_columns, paths, *more):
            learnt = reading.learnt(lines)
            if split is not None:
                is_held = split.held(learnt)
                test(learnt.take(is_held))
                learnt = learnt.take(~is_held)
            if reading.ranks:
                trained.add(learnt)
        return cls(tested.lines(), trained.lines().ids)

    def sample(self, users_max: int, lines_max: int, seed: int) -> LinesTested:
        """The lines of some users whose names are known, drawn by `seed`: of `users_max` users, or
        of as many as have about `lines_max` lines."""
        ids = self.lines.ids
        is_known = ids[0] >= 0
        users, counts = np.unique(ids[0][is_known], return_counts=True)
        order = np.random.default_rng(seed).permutation(len(users))
        fits = np.searchsorted(np.cumsum(counts[order]), lines_max, side="right")
        drawn = users[order[: max(1, min(users_max, int(fits)))]]
        wanted = is_known & np.isin(ids[0], drawn)
        values = self.lines.values[wanted] if len(self.lines.values) else self.lines.values
        unknown = int((ids[:, wanted] < 0).any(0).sum())
        seen = self.seen[:, np.isin(self.seen[0], drawn)]
        return LinesTested(LineIds(ids[:, wanted], values, unknown), seen)

    def of_users(self) -> tuple[Ids, LinesTested]:
        """Number the users of the lines from 0 on; returns their numbers so far, ascending."""
        users, places = np.unique(self.lines.ids[0], return_inverse=True)
        ids = np.stack([places.astype(np.int32), self.lines.ids[1]])
        seen = np.stack([np.searchsorted(users, self.seen[0]).astype(np.int32), self.seen[1]])
        return users, LinesTested(replace(self.lines, ids=ids), seen)
