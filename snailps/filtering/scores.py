"""A condition applied to some rows: each model is asked for rows that all clauses before keep.

    batch, condition, models -> decide -> Decision: rows that are kept, added columns, counts

A text that is missing is never kept.  Must not know files.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.dataclass import dataclass, field
from snailps.filtering.expression import CHANCE, TOP, Condition, Score
from snailps.filtering.formats import Batch
from snailps.vectors.label_prediction import LabelModel
from snailps.vectors.words import to_text

BINS = 50
SHOWN = 20
"""Examples of each side of a bound."""
LETTERS_SHOWN = 300
SCORES_MAX = 1 << 20
"""Probabilities of all labels that are kept at once: 4 MB."""


@dataclass(slots=True)
class Near:
    """A text whose score is near a bound, to look at."""

    distance: float
    task: str
    row: int
    scores: dict[str, float | str]
    text: str

    @property
    def place(self) -> tuple[float, str, int]:
        return self.distance, self.task, self.row


@dataclass(slots=True)
class Counts:
    """Counts of some rows; those of several add up.

    `refused`: rows by the first clause that refuses them; `bins`: rows by a probability, of equal
    width from 0 to 1; `labels`: rows by best label; `near`: of each bound those it kept, and not;
    `unread`: words behind the word ``</s>`` that a model has not read.
    """

    rows: int
    kept: int
    without_text: int
    refused: list[int]
    bins: dict[str, list[int]]
    labels: dict[str, dict[str, int]]
    near: dict[str, tuple[list[Near], list[Near]]]
    unread: dict[str, int] = field(default_factory=dict)

    @classmethod
    def none(cls, clauses: int) -> Counts:
        return cls(0, 0, 0, [0] * clauses, {}, {}, {})

    def add(self, other: Counts) -> None:
        self.rows += other.rows
        self.kept += other.kept
        self.without_text += other.without_text
        self.refused = [a + b for a, b in zip(self.refused, other.refused, strict=True)]
        for name, words in other.unread.items():
            self.unread[name] = self.unread.get(name, 0) + words
        for name, bins in other.bins.items():
            here = self.bins.setdefault(name, [0] * BINS)
            self.bins[name] = [a + b for a, b in zip(here, bins, strict=True)]
        for name, labels in other.labels.items():
            here_labels = self.labels.setdefault(name, {})
            for label, count in labels.items():
                here_labels[label] = here_labels.get(label, 0) + count
        for name, sides in other.near.items():
            both = self.near.setdefault(name, ([], []))
            for side, more in zip(both, sides, strict=True):
                side.extend(more)
                side.sort(key=lambda one: one.place)
                del side[SHOWN:]


@dataclass(frozen=True, slots=True)
class Decision:
    """Rows of a batch that are kept, rising; `added`: columns of these, float32 or object."""

    rows: NDArray[np.int64]
    added: dict[str, NDArray[Any]]
    counts: Counts


class Judge:
    """A condition and its models; threads may ask at once.

    `added`: scores that become columns, by the names of these.
    """

    def __init__(
        self,
        condition: Condition,
        models: Mapping[str, LabelModel],
        added: Mapping[str, Score] = MappingProxyType({}),
    ) -> None:
        self.condition, self.models, self.added = condition, models, added
        self.names = {
            name: [to_text(label) for label in model.labels] for name, model in models.items()
        }
        asked = [score for score in (*condition.scores, *added.values()) if score.label is not None]
        self.columns: dict[str, list[int]] = {}
        for score in dict.fromkeys(asked):
            at = self.names[score.model].index(str(score.label))
            self.columns.setdefault(score.model, []).append(at)

    def column_types(self) -> dict[str, type]:
        return {name: str if score.of_best == TOP else float for name, score in self.added.items()}

    def decide(self, batch: Batch, task: str = "") -> Decision:
        """Decide which rows are kept; DataError: a column that is missing, or of another type."""
        values = _Values(self, batch)
        missing = batch.is_missing()
        rows = np.flatnonzero(~missing)
        counts = Counts.none(len(self.condition.clauses))
        counts.rows, counts.without_text = batch.rows, int(missing.sum())
        for number, clause in enumerate(self.condition.clauses):
            values.rows = rows
            passed = clause.test(values).yes
            counts.refused[number] = int(len(rows) - passed.sum())
            for score, bound in clause.bounds:
                name = f"{score} {bound!r}"
                if name not in counts.near:  # an earlier clause's are of more rows
                    counts.near[name] = self._near(values, score, bound, passed, task)
            rows = rows[passed]
        values.rows = rows
        counts.kept = len(rows)
        added = {name: self._column(values, score) for name, score in self.added.items()}
        values.count(counts)
        counts.unread = {name: sum(words) for name, words in values.unread.items() if sum(words)}
        return Decision(rows, added, counts)

    def _column(self, values: _Values, score: Score) -> NDArray[Any]:
        found: NDArray[Any] = values.score(score)
        if score.of_best != TOP:
            return found
        names: NDArray[Any] = np.array([*self.names[score.model], None], object)
        return names.take(found, mode="wrap")

    def _near(
        self, values: _Values, score: Score, bound: float, passed: NDArray[np.bool_], task: str
    ) -> tuple[list[Near], list[Near]]:
        found = values.score(score).astype(np.float64)
        distance = np.abs(found - bound)
        sides: list[list[Near]] = []
        for is_kept in (True, False):
            here = np.flatnonzero((passed == is_kept) & ~np.isnan(found))
            here = here[np.lexsort((here, distance[here]))[:SHOWN]]
            texts = values.batch.some_texts(values.rows[here]) if len(here) else []
            sides.append([
                Near(
                    float(distance[at]), task, values.batch.first + int(values.rows[at]),
                    values.known(at), text[:LETTERS_SHOWN],
                )
                for at, text in zip(here.tolist(), texts, strict=True)
            ])  # fmt: skip
        return sides[0], sides[1]


class _Values:
    """Scores and columns of the rows of a batch that are still in question."""

    def __init__(self, judge: Judge, batch: Batch) -> None:
        self.batch = batch
        self.rows: NDArray[np.int64] = np.arange(batch.rows)
        self._judge = judge
        self._chances: dict[Score, NDArray[np.float32]] = {}
        self._best: dict[str, NDArray[np.int32]] = {}
        self.unread: dict[str, list[int]] = {}

    def score(self, score: Score) -> NDArray[Any]:
        if score.model not in self._best:
            self._ask(score.model)
        if score.of_best == TOP:
            return self._best[score.model][self.rows]
        return self._chances[score][self.rows]

    def column(self, name: str) -> NDArray[Any]:
        found = self.batch.column(name)
        return found[self.rows]

    def _ask(self, name: str) -> None:
        """Have the rows in question judged by a model; later ones are among them."""
        judge, rows = self._judge, self.rows
        model, columns = judge.models[name], judge.columns.get(name, [])
        texts, unread = self.batch.texts(rows), self.unread.setdefault(name, []).append
        best = np.full(self.batch.rows, -1, np.int32)
        of_best = np.full(self.batch.rows, np.nan, np.float32)
        if not columns:
            found, chances = model.predict_arrays(texts, threads=1, unread=unread)
            best[rows], of_best[rows] = found[:, 0], chances[:, 0]
        else:
            of_labels = {column: np.full(self.batch.rows, np.nan, np.float32) for column in columns}
            together = max(1, SCORES_MAX // len(judge.names[name]))
            for at in range(0, len(rows), together):
                here = rows[at : at + together]
                top, some = model.best_and_probabilities(
                    texts[at : at + together], threads=1, unread=unread
                )
                best[here] = top
                of_best[here] = np.where(top < 0, np.nan, some[np.arange(len(here)), top])
                for column in columns:
                    of_labels[column][here] = some[:, column]
            for column, of_label in of_labels.items():
                self._chances[Score(name, judge.names[name][column])] = of_label
        self._best[name], self._chances[Score(name, None, CHANCE)] = best, of_best

    def known(self, at: int) -> dict[str, float | str]:
        """Scores of a row in question that were asked for so far."""
        row = int(self.rows[at])
        scores = self._judge.condition.scores
        found: dict[str, float | str] = {}
        for score in scores:
            if score.model not in self._best:
                continue
            if score.of_best == TOP:
                label = int(self._best[score.model][row])
                found[str(score)] = self._judge.names[score.model][label] if label >= 0 else ""
            else:
                found[str(score)] = float(self._chances[score][row])
        return found

    def count(self, counts: Counts) -> None:
        """Count rows by each score that was asked for."""
        scores = dict.fromkeys((*self._judge.condition.scores, *self._judge.added.values()))
        for score in scores:
            if score.model not in self._best:
                continue
            if score.of_best == TOP:
                best = self._best[score.model]
                labels, numbers = np.unique(best[best >= 0], return_counts=True)
                names = self._judge.names[score.model]
                both = zip(labels.tolist(), numbers.tolist(), strict=True)
                counts.labels[str(score)] = {names[label]: number for label, number in both}
            else:
                chances = self._chances[score]
                chances = chances[~np.isnan(chances)].astype(np.float64)
                place = np.minimum((chances * BINS).astype(np.int64), BINS - 1)
                counts.bins[str(score)] = np.bincount(place, minlength=BINS).tolist()
