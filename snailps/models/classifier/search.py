"""Which settings of a classifier are tried, and for how long: successive halving.

    number of lines, seed -> candidates of the first bracket: sets of features
    trials that were judged -> candidates of the next bracket: changes of the best ones
    candidates -> rungs: all for a short training -> the best third for a longer one -> ...

A bracket is a set of candidates and its rungs.  What is tried depends on the seed and on the scores
of earlier trials, never on time: the same scores give the same sequence.  Trains nothing.

References
----------
Jamieson, Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from snailps.config import settings_of
from snailps.dataclass import dataclass
from snailps.models.classifier.settings import ClassifierSettings

TUNED = ("lr", "epochs", "dim", "word_ngrams", "minn", "maxn")
"""Settings that a search chooses, unless they are fixed."""
FIRST = (
    (2.0, 1, 0, 0), (2.0, 2, 0, 0), (2.0, 1, 2, 4), (0.5, 1, 0, 0), (2.0, 2, 4, 4), (2.0, 3, 0, 0),
    (2.0, 1, 3, 5), (0.5, 1, 2, 4),
)  # fmt: skip
"""The first bracket: rate, longest n-grams of words, `minn`, `maxn`.  Short trainings with n-grams
need high rates; the likely ones come first, because time may end."""
GRAMS = ((0, 0), (2, 4), (4, 4), (3, 5), (3, 6), (2, 5), (1, 3))
"""Lengths of n-grams of characters that are tried."""
GRAMS_SHORTEST = 2
"""`minn` where only `maxn` is fixed."""
WORD_NGRAMS_MAX = 5
RATE_MIN, RATE_MAX = 0.02, 5.0
DIM, DIM_MIN, DIM_MAX = 32, 16, 256
DIM_UNIT = 16
"""Dimensions are multiples of a kernel's lanes: others take the time of the next one."""
VISITS = 600_000
"""Lines times epochs of a whole training of the first bracket."""
EPOCHS_MIN, EPOCHS_FIRST, EPOCHS_MAX = 4, 100, 300
"""Least and most epochs, and most in the first bracket."""
KEPT = 3
"""A rung hands on one candidate of this many, for as many times the epochs."""
RUNGS_FIRST, RUNGS = 3, 2
LATER = 6
"""Candidates of a later bracket, at least."""
PARENTS = 3
"""Trials whose settings later brackets change."""


def fixed_of(settings: ClassifierSettings, given: Iterable[str]) -> frozenset[str]:
    """Return which of the `given` settings a search must keep: all that are not ``auto``."""
    declared = settings_of(type(settings))
    return frozenset(
        name
        for name in given
        if not declared[name].auto or getattr(settings, name) != declared[name].automatic
    )


@dataclass(frozen=True, slots=True)
class Trial:
    """A training to judge.

    Attributes
    ----------
    number : int
        From 1, in the sequence of the search.
    settings : ClassifierSettings
    epochs : float
        How long it trains: `settings.epochs` in the last rung.  Below 1: on some of the lines.
    """

    number: int
    settings: ClassifierSettings
    epochs: float

    @property
    def is_whole(self) -> bool:
        """Whether it trains as long as its settings say."""
        return self.epochs == self.settings.epochs


@dataclass(frozen=True, slots=True)
class Judged:
    """A trial with its score; None: its training diverged."""

    trial: Trial
    score: float | None

    @property
    def rank(self) -> tuple[float, int]:
        """By score; of equal ones the earlier trial is better."""
        return (-1.0 if self.score is None else self.score), -self.trial.number

    def to_train(self, every: Iterable[Judged]) -> ClassifierSettings:
        """Return the settings of a whole training, if this is the best of the trials `every`.

        Its epochs are the trial's if more of them were tried; else more are better, as far as is
        known.
        """
        s, epochs = self.trial.settings, self.trial.epochs
        longest = max(one.trial.epochs for one in every if one.trial.settings == s)
        return replace(s, epochs=round(epochs)) if 1 <= epochs < longest else s


class Search:
    """A sequence of trials.

    Parameters
    ----------
    base : ClassifierSettings
        Values of settings that are not tuned, and of fixed ones.
    fixed : collection of str
        Settings of `TUNED` that keep the value of `base`.
    lines : int
        Of the training text.
    width : int
        Trials that run at the same time: a bracket has no fewer candidates.
    """

    def __init__(
        self, base: ClassifierSettings, fixed: Collection[str], lines: int, width: int
    ) -> None:
        self._base, self._fixed, self._width = base, frozenset(fixed), width
        self._epochs = int(np.clip(round(VISITS / max(1, lines)), EPOCHS_MIN, EPOCHS_FIRST))
        self._number = 0

    def run(
        self, judge: Callable[[Sequence[Trial]], Sequence[Judged]], goes_on: Callable[[], bool]
    ) -> None:
        """Give `judge` one rung after another, while `goes_on()`.

        `judge` returns the trials of the rung that were completed.
        """
        every: list[Judged] = []
        bracket = 0
        while goes_on():
            rungs = RUNGS if bracket else RUNGS_FIRST
            candidates = self._changed(every, bracket) if bracket else self._first()
            for rung in range(rungs):
                share = float(KEPT) ** (rung + 1 - rungs)
                judged = judge([self._trial(settings, share) for settings in candidates])
                every += judged
                if not goes_on():
                    return
                candidates = _best_features(judged)[: -(-len(candidates) // KEPT)]
            bracket += 1

    def _trial(self, settings: ClassifierSettings, share: float) -> Trial:
        self._number += 1
        epochs = settings.epochs * share
        return Trial(self._number, settings, float(round(epochs)) if epochs >= 1 else epochs)

    def _first(self) -> list[ClassifierSettings]:
        random = np.random.default_rng((self._base.seed, 0))
        made: list[ClassifierSettings] = []
        while len(made) < max(len(FIRST), self._width):
            for rate, word_ngrams, minn, maxn in FIRST:
                made.append(
                    self._candidate(
                        lr=rate * float(np.exp(random.normal(0, 0.2))),
                        epochs=self._epochs,
                        dim=DIM,
                        word_ngrams=word_ngrams,
                        minn=minn,
                        maxn=maxn,
                    )
                )
        return [*dict.fromkeys(made)]

    def _changed(self, every: Sequence[Judged], bracket: int) -> list[ClassifierSettings]:
        """Change the settings of the best trials."""
        random = np.random.default_rng((self._base.seed, bracket))
        parents = [*dict.fromkeys(one.to_train(every) for one in _ranked(every))][:PARENTS]
        tried = {judged.trial.settings for judged in every}
        made: list[ClassifierSettings] = []
        for number in range(10 * max(LATER, self._width)):
            parent = parents[number % len(parents)]
            s = self._candidate(
                lr=parent.lr * float(np.exp(random.normal(0, 0.5))),
                epochs=round(parent.epochs * random.choice((0.6, 1, 1, 1.7))),
                dim=round(parent.dim * random.choice((0.5, 1, 1, 1.5, 2)) / DIM_UNIT) * DIM_UNIT,
                **self._other_features(parent, random),
            )
            if s not in tried and s not in made:
                made.append(s)
            if len(made) == max(LATER, self._width):
                break
        return made or [self._base]

    @staticmethod
    def _other_features(parent: ClassifierSettings, random: np.random.Generator) -> dict[str, int]:
        ngrams, grams = parent.word_ngrams, (parent.minn, parent.maxn)
        what, step = random.random(), int(random.choice((-1, 1)))
        other = GRAMS[random.integers(len(GRAMS))]
        if what < 0.2:
            ngrams += step
        elif what < 0.4:
            grams = other
        return {"word_ngrams": ngrams, "minn": grams[0], "maxn": grams[1]}

    def _candidate(self, **values: Any) -> ClassifierSettings:
        """Make settings within their ranges; fixed ones keep their value."""
        values["lr"] = float(f"{np.clip(values['lr'], RATE_MIN, RATE_MAX):.2g}")
        values["epochs"] = int(np.clip(values["epochs"], 1, EPOCHS_MAX))
        values["dim"] = int(np.clip(values["dim"], DIM_MIN, DIM_MAX))
        values["word_ngrams"] = int(np.clip(values["word_ngrams"], 1, WORD_NGRAMS_MAX))
        chosen = {name: value for name, value in values.items() if name not in self._fixed}
        s = replace(self._base, **chosen)
        # A fixed length may not go with the other one.
        if s.maxn and "maxn" not in self._fixed:
            s = replace(s, maxn=max(s.maxn, s.minn if "minn" in self._fixed else 0))
        if "minn" not in self._fixed:
            s = replace(s, minn=min(s.minn or GRAMS_SHORTEST, s.maxn))
        return s


def _ranked(judged: Sequence[Judged]) -> list[Judged]:
    return sorted(judged, key=lambda one: one.rank, reverse=True)


def _best_features(judged: Sequence[Judged]) -> list[ClassifierSettings]:
    """Sort settings by score; of each set of features the best one before all others."""
    ranked = [one.trial.settings for one in _ranked(judged)]
    of_features = {(s.word_ngrams, s.minn, s.maxn): s for s in reversed(ranked)}
    first = [s for s in ranked if s in of_features.values()]
    return [*dict.fromkeys((*first, *ranked))]
