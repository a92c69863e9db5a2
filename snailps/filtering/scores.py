"""A condition applied to some rows: a model is asked for rows that nothing before it has decided.

    batch, condition, models -> decide -> Decision: rows that are kept, added columns, counts

Clauses on columns alone come first, the others in their order.  A text that is missing is never
kept.  Scores that are known already are not asked for.  Must not know files.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.dataclass import dataclass, field
from snailps.filtering.expression import TOP, Condition, Score
from snailps.filtering.rows import Batch
from snailps.filtering.values import Column, Mask
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
    `unread`: words after the word ``</s>`` that a model has not read; `scored`: texts that it was
    given, which other scores were kept of.
    """

    rows: int
    kept: int
    without_text: int
    refused: list[int]
    bins: dict[str, list[int]]
    labels: dict[str, dict[str, int]]
    near: dict[str, tuple[list[Near], list[Near]]]
    unread: dict[str, int] = field(default_factory=dict)
    scored: dict[str, int] = field(default_factory=dict)

    @classmethod
    def none(cls, clauses: int) -> Counts:
        return cls(0, 0, 0, [0] * clauses, {}, {}, {})

    def add(self, other: Counts) -> None:
        self.rows += other.rows
        self.kept += other.kept
        self.without_text += other.without_text
        self.refused = [a + b for a, b in zip(self.refused, other.refused, strict=True)]
        for here, more in ((self.unread, other.unread), (self.scored, other.scored)):
            for name, count in more.items():
                here[name] = here.get(name, 0) + count
        for name, bins in other.bins.items():
            so_far = self.bins.setdefault(name, [0] * BINS)
            self.bins[name] = [a + b for a, b in zip(so_far, bins, strict=True)]
        for name, labels in other.labels.items():
            here_labels = self.labels.setdefault(name, {})
            for label, count in labels.items():
                here_labels[label] = here_labels.get(label, 0) + count
        for name, sides in other.near.items():
            both = self.near.setdefault(name, ([], []))
            for side, texts in zip(both, sides, strict=True):
                side.extend(texts)
                side.sort(key=lambda one: one.place)
                del side[SHOWN:]


@dataclass(slots=True)
class ModelScores:
    """What a model says of the rows of a batch that it was `asked` about.

    `best`: number of the best label, -1: none; `of_best`: its probability; `of_labels`: that of
    some labels, by their numbers; NaN where there is none.  `unread`: words that were not read.
    """

    asked: Mask
    best: NDArray[np.int32]
    of_best: NDArray[np.float32]
    of_labels: dict[int, NDArray[np.float32]]
    unread: int = 0

    @classmethod
    def none(cls, rows: int, labels: Sequence[int]) -> ModelScores:
        return cls(
            np.zeros(rows, bool), np.full(rows, -1, np.int32), np.full(rows, np.nan, np.float32),
            {label: np.full(rows, np.nan, np.float32) for label in labels},
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Decision:
    """Rows of a batch that are kept, rising; `added`: columns of these, float32 or object.

    `scores` of each model that was needed, with what was known before.
    """

    rows: NDArray[np.int64]
    added: dict[str, NDArray[Any]]
    counts: Counts
    scores: dict[str, ModelScores]


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
        self.columns: dict[str, list[int]] = {}
        """Models that are needed, with the labels that are asked for."""
        for score in dict.fromkeys((*condition.scores, *added.values())):
            labels = self.columns.setdefault(score.model, [])
            if score.label is not None:
                labels.append(self.number(score))

    def column_types(self) -> dict[str, type]:
        return {name: str if score.of_best == TOP else float for name, score in self.added.items()}

    def number(self, score: Score) -> int:
        """Number of a score's label."""
        return self.names[score.model].index(str(score.label))

    def decide(
        self, batch: Batch, task: str = "", known: Mapping[str, ModelScores] = MappingProxyType({})
    ) -> Decision:
        """Decide which rows are kept; DataError: a column that is missing, or of another type.

        `known`: scores of models that need not be asked for again; more of them are noted in it.
        """
        scores = {
            name: known.get(name) or ModelScores.none(batch.rows, columns)
            for name, columns in self.columns.items()
        }
        values = _Values(self, batch, scores)
        missing = batch.is_missing()
        rows = np.flatnonzero(~missing)
        counts = Counts.none(len(self.condition.clauses))
        counts.rows, counts.without_text = batch.rows, int(missing.sum())
        for number in self.condition.order:
            clause = self.condition.clauses[number]
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
        counts.unread = {name: one.unread for name, one in scores.items() if one.unread}
        counts.scored = dict(values.scored)
        return Decision(rows, added, counts, scores)

    def _column(self, values: _Values, score: Score) -> NDArray[Any]:
        found: NDArray[Any] = values.score(score)
        if score.of_best != TOP:
            return found
        names: NDArray[Any] = np.array([*self.names[score.model], None], object)
        return names.take(found, mode="wrap")

    def _near(
        self, values: _Values, score: Score, bound: float, passed: NDArray[np.bool_], task: str
    ) -> tuple[list[Near], list[Near]]:
        found = values.known(score).astype(np.float64)
        distance = np.abs(found - bound)
        sides: list[list[Near]] = []
        for is_kept in (True, False):
            here = np.flatnonzero((passed == is_kept) & ~np.isnan(found))
            here = here[np.lexsort((here, distance[here]))[:SHOWN]]
            texts = values.batch.some_texts(values.rows[here]) if len(here) else []
            sides.append([
                Near(
                    float(distance[at]), task, values.batch.first + int(values.rows[at]),
                    values.shown(at), text[:LETTERS_SHOWN],
                )
                for at, text in zip(here.tolist(), texts, strict=True)
            ])  # fmt: skip
        return sides[0], sides[1]


class _Values:
    """Scores and columns of the rows of a batch that are still in question."""

    def __init__(self, judge: Judge, batch: Batch, scores: dict[str, ModelScores]) -> None:
        self.batch = batch
        self.rows: NDArray[np.int64] = np.arange(batch.rows)
        self.scored = dict.fromkeys(scores, 0)
        self._judge, self._scores = judge, scores
        self._wanted = {name: np.zeros(batch.rows, bool) for name in scores}

    def of(self, rows: Mask) -> _Values:
        some = copy.copy(self)
        some.rows = self.rows[rows]
        return some

    def score(self, score: Score) -> NDArray[Any]:
        there = self._scores[score.model]
        if not (asked := there.asked[self.rows]).all():
            self._ask(score.model, self.rows[~asked])
        self._wanted[score.model][self.rows] = True
        return self._values(score)[self.rows]

    def column(self, name: str) -> Column:
        return self.batch.column(name).at(self.rows)

    def known(self, score: Score) -> NDArray[np.float32]:
        """Probabilities, NaN in rows that no clause has wanted them of."""
        wanted = self._wanted[score.model][self.rows]
        return np.where(wanted, self._values(score)[self.rows], np.float32(np.nan))

    def _values(self, score: Score) -> NDArray[Any]:
        """A score of all rows of the batch."""
        there = self._scores[score.model]
        if score.label is not None:
            return there.of_labels[self._judge.number(score)]
        return there.best if score.of_best == TOP else there.of_best

    def _ask(self, name: str, rows: NDArray[np.int64]) -> None:
        """Have some rows judged by a model."""
        judge, there = self._judge, self._scores[name]
        model, unread = judge.models[name], list[int]()
        texts = self.batch.texts(rows)
        if not there.of_labels:
            found, chances = model.predict_arrays(texts, threads=1, unread=unread.append)
            there.best[rows], there.of_best[rows] = found[:, 0], chances[:, 0]
        else:
            together = max(1, SCORES_MAX // len(judge.names[name]))
            for at in range(0, len(rows), together):
                here = rows[at : at + together]
                top, some = model.best_and_probabilities(
                    texts[at : at + together], threads=1, unread=unread.append
                )
                there.best[here] = top
                there.of_best[here] = np.where(top < 0, np.nan, some[np.arange(len(here)), top])
                for label, of_label in there.of_labels.items():
                    of_label[here] = some[:, label]
        there.asked[rows] = True
        there.unread += sum(unread)
        self.scored[name] += len(rows)

    def shown(self, at: int) -> dict[str, float | str]:
        """Scores of a row in question that were wanted so far."""
        row = int(self.rows[at])
        found: dict[str, float | str] = {}
        for score in self._judge.condition.scores:
            if not self._wanted[score.model][row]:
                continue
            value = self._values(score)[row]
            if score.of_best != TOP:
                found[str(score)] = float(value)
            else:
                found[str(score)] = self._judge.names[score.model][value] if value >= 0 else ""
        return found

    def count(self, counts: Counts) -> None:
        """Count rows by each score that was wanted."""
        scores = dict.fromkeys((*self._judge.condition.scores, *self._judge.added.values()))
        for score in scores:
            wanted = self._wanted[score.model]
            if not wanted.any():
                continue
            values = self._values(score)[wanted]
            if score.of_best == TOP:
                labels, numbers = np.unique(values[values >= 0], return_counts=True)
                names = self._judge.names[score.model]
                both = zip(labels.tolist(), numbers.tolist(), strict=True)
                counts.labels[str(score)] = {names[label]: number for label, number in both}
            else:
                chances = values[~np.isnan(values)].astype(np.float64)
                place = np.minimum((chances * BINS).astype(np.int64), BINS - 1)
                counts.bins[str(score)] = np.bincount(place, minlength=BINS).tolist()
