"""A condition applied to rows: a model scores only rows that no earlier clause has decided.

    rows, condition, models -> decide -> Decision: rows to keep, added columns, counts

Owns the order of evaluation: clauses on columns alone first, since they cost nothing, then the
others as written, those on copies last.  What is known of copies comes from `copies`.  A row
without a text is never kept.  A score read from a `ScoreFolder` is not computed again.
Must not know files.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from snailps.dataclass import dataclass, field
from snailps.filtering.expression import BENCHMARKS, COPIES, TOP, Condition, Score
from snailps.filtering.rows import TextRows
from snailps.filtering.values import Column, Mask
from snailps.vectors.label_prediction import LabelModel
from snailps.vectors.words import to_text

if TYPE_CHECKING:
    from snailps.filtering.benchmarks import Benchmarks

BINS = 50
"""Bars of the histogram of a probability."""
SHOWN = 20
"""Examples on each side of a bound, in the report."""
LETTERS_SHOWN = 300
"""Characters of an example's text, in the report."""
SCORES_MAX = 1 << 20
"""Probabilities of all labels computed at once: 4 MB, however many labels a model has."""


@dataclass(slots=True)
class Near:
    """A text whose score is near a bound, for the report."""

    distance: float
    task: str
    row: int
    scores: dict[str, float | str]
    text: str

    @property
    def order(self) -> tuple[float, str, int]:
        """Nearest first; equal distances in the order of tasks and rows, so that the report does
        not depend on the threads."""
        return self.distance, self.task, self.row


@dataclass(slots=True)
class RowCounts:
    """Counts over rows; `add` sums two.

    `refused`: rows by the first clause that refuses them; `bins`: rows by probability, `BINS` of
    equal width from 0 to 1; `labels`: rows by best label; `near`: for each bound, examples that it
    kept and examples that it refused; `unread`: by model, words after the word ``</s>``, which
    fastText's models do not read; `scored`: by model, texts that it scored in this run, without
    those whose scores were read from a `ScoreFolder`; `bad_lines`: malformed lines that were left
    out and are no rows, and `first_bad` what the first one was; `hits`: by number of a benchmark's
    line, rows that have a part of it; `texts`: by file and row, texts that the report shows
    beside others.
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
    bad_lines: int = 0
    first_bad: str = ""
    hits: dict[str, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def none(cls, clauses: int) -> RowCounts:
        return cls(0, 0, 0, [0] * clauses, {}, {}, {})

    def add(self, other: RowCounts) -> None:
        self.rows += other.rows
        self.kept += other.kept
        self.without_text += other.without_text
        self.bad_lines += other.bad_lines
        self.first_bad = self.first_bad or other.first_bad
        self.refused = [a + b for a, b in zip(self.refused, other.refused, strict=True)]
        for totals, counts in (
            (self.unread, other.unread), (self.scored, other.scored), (self.hits, other.hits),
        ):  # fmt: skip
            _add_counts(totals, counts)
        self.texts |= other.texts
        for name, bins in other.bins.items():
            total = self.bins.setdefault(name, [0] * BINS)
            self.bins[name] = [a + b for a, b in zip(total, bins, strict=True)]
        for name, labels in other.labels.items():
            _add_counts(self.labels.setdefault(name, {}), labels)
        for name, sides in other.near.items():
            both = self.near.setdefault(name, ([], []))
            for side, texts in zip(both, sides, strict=True):
                side.extend(texts)
                side.sort(key=lambda near: near.order)
                del side[SHOWN:]


def _add_counts(totals: dict[str, int], counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        totals[name] = totals.get(name, 0) + count


@dataclass(slots=True)
class ModelScores:
    """A model's scores of the rows of a batch; only rows in `asked` have any.

    `best`: number of the best label, -1 if there is none; `of_best`: its probability; `of_labels`:
    the probabilities of the labels that the command uses, by number; NaN if there is none.
    `unread`: words of these texts that the model does not read.
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
    """The rows of a batch to keep, ascending; `added`: further columns of them (float32, bool or
    object).

    `scores`: by model, all that is now known, including scores read from a `ScoreFolder`.
    """

    rows: NDArray[np.int64]
    added: dict[str, NDArray[Any]]
    counts: RowCounts
    scores: dict[str, ModelScores]


class ConditionJudge:
    """A condition and its models; immutable after construction, so threads may share it.

    `added`: scores that become columns, by column name; `benchmarks`: what `bench.overlap` is of.
    """

    def __init__(
        self,
        condition: Condition,
        models: Mapping[str, LabelModel],
        added: Mapping[str, Score] = MappingProxyType({}),
        benchmarks: Benchmarks | None = None,
    ) -> None:
        self.condition, self.models, self.added = condition, models, added
        self.benchmarks = benchmarks
        self.names = {
            name: [to_text(label) for label in model.labels] for name, model in models.items()
        }
        self.columns: dict[str, list[int]] = {}
        """The models that the command uses, and the numbers of the labels it asks each for."""
        self.computed: set[str] = set()
        """What the command asks that no model knows: `COPIES`, `BENCHMARKS`."""
        for score in dict.fromkeys((*condition.scores, *added.values())):
            if score.is_computed:
                self.computed.add(score.model)
                continue
            labels = self.columns.setdefault(score.model, [])
            if score.label is not None:
                labels.append(self.number(score))

    def column_types(self) -> dict[str, type]:
        kinds = {TOP: str, "of": str, "exact": bool}
        return {name: kinds.get(score.of_best, float) for name, score in self.added.items()}

    def number(self, score: Score) -> int:
        """The number of a score's label in its model."""
        return self.names[score.model].index(str(score.label))

    def decide(
        self,
        batch: TextRows,
        task: str = "",
        known: Mapping[str, ModelScores] = MappingProxyType({}),
        copies: Mapping[str, NDArray[Any]] | None = None,
    ) -> Decision:
        """Decide which rows to keep.

        `known`: by model, scores read from a `ScoreFolder`, which are not computed again; newly
        computed ones are written into the same arrays.  `copies`: what a search has found of each
        row; None: it is still to come, so clauses on copies, and columns, wait.  ConfigError or
        DataError: a column is missing, or its type does not fit the comparison.
        """
        scores = {
            name: known.get(name) or ModelScores.none(batch.rows, columns)
            for name, columns in self.columns.items()
        }
        values = _BatchValues(self, batch, scores, copies or {})
        waits = copies is None and COPIES in self.computed
        missing = batch.is_missing()
        rows = np.flatnonzero(~missing)
        counts = RowCounts.none(len(self.condition.clauses))
        counts.rows, counts.without_text = batch.rows, int(missing.sum())
        for number in self.condition.order:
            clause = self.condition.clauses[number]
            if waits and clause.judges_copies:
                break  # those on copies are the last ones
            values.rows = rows
            passed = clause.test(values).yes
            counts.refused[number] = int(len(rows) - passed.sum())
            for score, bound in clause.bounds:
                name = f"{score} {bound!r}"
                # A bound may occur in several clauses: the first one sees the most rows.
                if name not in counts.near:
                    counts.near[name] = self._near(values, score, bound, passed, task)
            rows = rows[passed]
        values.rows = rows
        counts.kept = len(rows)
        added = {
            name: self._column(values, score)
            for name, score in (self.added.items() if not waits else ())
        }
        values.count(counts)
        counts.unread = {name: by_model.unread for name, by_model in scores.items()
                         if by_model.unread}  # fmt: skip
        counts.scored = dict(values.scored)
        counts.hits = values.hits
        return Decision(rows, added, counts, scores)

    def keeps(self, copies: Mapping[str, NDArray[Any]]) -> Mask:
        """Which rows pass all clauses on copies, by what is known of their copies alone."""
        values, passed = _CopyValues(copies), np.ones(len(copies["near"]), bool)
        for clause in self.condition.clauses:
            if clause.judges_copies:
                passed &= clause.test(values).yes
        return passed

    def _column(self, values: _BatchValues, score: Score) -> NDArray[Any]:
        scores: NDArray[Any] = values.score(score)
        if score.of_best != TOP:
            return scores
        # Number -1, no label, wraps to the last element: None.
        names: NDArray[Any] = np.array([*self.names[score.model], None], object)
        return names.take(scores, mode="wrap")

    def _near(
        self, values: _BatchValues, score: Score, bound: float, passed: NDArray[np.bool_], task: str
    ) -> tuple[list[Near], list[Near]]:
        chances = values.wanted_only(score).astype(np.float64)
        distance = np.abs(chances - bound)
        sides: list[list[Near]] = []
        for is_kept in (True, False):
            nearest = np.flatnonzero((passed == is_kept) & ~np.isnan(chances))
            nearest = nearest[np.lexsort((nearest, distance[nearest]))[:SHOWN]]
            texts = values.batch.shown_texts(values.rows[nearest]) if len(nearest) else []
            sides.append([
                Near(
                    float(distance[place]), task, values.batch.first + int(values.rows[place]),
                    values.shown(place), text[:LETTERS_SHOWN],
                )
                for place, text in zip(nearest.tolist(), texts, strict=True)
            ])  # fmt: skip
        return sides[0], sides[1]


class _CopyValues:
    """`expression.Values` of rows of which nothing else is asked: a clause on copies is about these
    alone."""

    def __init__(self, copies: Mapping[str, NDArray[Any]]) -> None:
        self._copies = copies

    def score(self, score: Score) -> NDArray[Any]:
        return self._copies[score.of_best]

    def column(self, name: str) -> Column:
        raise AssertionError(f"a clause on copies read the column {name}")

    def of(self, rows: Mask) -> _CopyValues:
        return _CopyValues({name: values[rows] for name, values in self._copies.items()})


class _BatchValues:
    """Scores and columns of the rows of a batch that no clause has refused so far (`rows`).

    Implements `expression.Values`: a test that reads a score makes the model compute it, for
    `rows` alone.  `of` narrows to fewer rows; copies share the scores, so none is computed twice.
    """

    def __init__(
        self,
        judge: ConditionJudge,
        batch: TextRows,
        scores: dict[str, ModelScores],
        copies: Mapping[str, NDArray[Any]],
    ) -> None:
        self.batch = batch
        self.rows: NDArray[np.int64] = np.arange(batch.rows)
        self.scored = dict.fromkeys(scores, 0)
        self.hits: dict[str, int] = {}
        self._judge, self._scores, self._copies = judge, scores, copies
        self._overlap = np.full(batch.rows, np.nan, np.float32)  # NaN: not searched yet
        # Counts and examples are the same with and without a ScoreFolder: they cover the rows that
        # this condition asks about, not all whose scores happen to be there.
        names = (*scores, *judge.computed)
        self._wanted = {name: np.zeros(batch.rows, bool) for name in names}

    def of(self, rows: Mask) -> _BatchValues:
        narrowed = copy.copy(self)
        narrowed.rows = self.rows[rows]
        return narrowed

    def score(self, score: Score) -> NDArray[Any]:
        if score.is_computed:
            if score.model == BENCHMARKS:
                self._search(self.rows[np.isnan(self._overlap[self.rows])])
        elif not (asked := self._scores[score.model].asked[self.rows]).all():
            self._ask(score.model, self.rows[~asked])
        self._wanted[score.model][self.rows] = True
        return self._values(score)[self.rows]

    def column(self, name: str) -> Column:
        return self.batch.column(name).at(self.rows)

    def wanted_only(self, score: Score) -> NDArray[np.float32]:
        """Probabilities of `rows`; NaN in rows that no clause has asked about."""
        wanted = self._wanted[score.model][self.rows]
        return np.where(wanted, self._values(score)[self.rows], np.float32(np.nan))

    def _values(self, score: Score) -> NDArray[Any]:
        """A score of all rows of the batch."""
        if score.is_computed:
            return self._overlap if score.model == BENCHMARKS else self._copies[score.of_best]
        by_model = self._scores[score.model]
        if score.label is not None:
            return by_model.of_labels[self._judge.number(score)]
        return by_model.best if score.of_best == TOP else by_model.of_best

    def _search(self, rows: NDArray[np.int64]) -> None:
        """Search these rows for lines of benchmarks."""
        if len(rows) and self._judge.benchmarks is not None:
            self._overlap[rows], hits = self._judge.benchmarks.search(self.batch.texts(rows))
            _add_counts(self.hits, hits)

    def _ask(self, name: str, rows: NDArray[np.int64]) -> None:
        """Have a model score these rows; one thread, since batches already use all of them."""
        judge, by_model = self._judge, self._scores[name]
        model, unread = judge.models[name], list[int]()
        texts = self.batch.texts(rows)
        if not by_model.of_labels:  # the best label alone: a model with a tree need not score all
            labels, chances = model.predict_arrays(texts, threads=1, unread=unread.append)
            by_model.best[rows], by_model.of_best[rows] = labels[:, 0], chances[:, 0]
        else:
            at_once = max(1, SCORES_MAX // len(judge.names[name]))
            for first in range(0, len(rows), at_once):
                part = rows[first : first + at_once]
                best, chances = model.best_and_probabilities(
                    texts[first : first + at_once], threads=1, unread=unread.append
                )
                by_model.best[part] = best
                of_best = chances[np.arange(len(part)), best]
                by_model.of_best[part] = np.where(best < 0, np.nan, of_best)
                for label, of_label in by_model.of_labels.items():
                    of_label[part] = chances[:, label]
        by_model.asked[rows] = True
        by_model.unread += sum(unread)
        self.scored[name] += len(rows)

    def shown(self, place: int) -> dict[str, float | str]:
        """The scores of one of `rows` that clauses have asked for so far, by name."""
        row = int(self.rows[place])
        shown: dict[str, float | str] = {}
        for score in self._judge.condition.scores:
            if not self._wanted[score.model][row]:
                continue
            value = self._values(score)[row]
            if score.of_best != TOP:
                shown[str(score)] = float(value)
            else:
                shown[str(score)] = self._judge.names[score.model][value] if value >= 0 else ""
        return shown

    def count(self, counts: RowCounts) -> None:
        """Count rows by each score that a clause or an added column has asked for."""
        scores = dict.fromkeys((*self._judge.condition.scores, *self._judge.added.values()))
        for score in scores:
            wanted = self._wanted[score.model]
            if not wanted.any():
                continue
            values = self._values(score)[wanted]
            if score.is_computed and score.of_best in ("exact", "of"):
                continue  # a clause counts the first, and the second is a name
            if score.of_best == TOP:
                labels, numbers = np.unique(values[values >= 0], return_counts=True)
                names = self._judge.names[score.model]
                by_label = zip(labels.tolist(), numbers.tolist(), strict=True)
                counts.labels[str(score)] = {names[label]: number for label, number in by_label}
            else:
                chances = values[~np.isnan(values)].astype(np.float64)
                bins = np.minimum((chances * BINS).astype(np.int64), BINS - 1)
                counts.bins[str(score)] = np.bincount(bins, minlength=BINS).tolist()
