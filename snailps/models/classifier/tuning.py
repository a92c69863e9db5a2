"""Chooses the settings of a classifier: short trainings on this machine's cores, judged on held-out
lines.

    settings of a job, Metric, Effort -> Tuner -> run -> Tuning: trials, the best one's settings

Owns time, threads and what is kept of a trial.  `models.classifier.search` says what is tried,
`models.classifier.trials` trains it, `vectors.label_metrics` judges it; whoever asks trains the
final model by a job.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from numbers import Real
from typing import Any, TypeAlias

import numpy as np

from snailps import kernels
from snailps.data.arguments import whole_number
from snailps.dataclass import dataclass, field, replace
from snailps.errors import DataError
from snailps.models.classifier.held_out import check, has_held_out, held_out_texts
from snailps.models.classifier.lines import Floats
from snailps.models.classifier.search import TUNED, VISITS, Judged, Search, Trial, fixed_of
from snailps.models.classifier.settings import ClassifierSettings
from snailps.models.classifier.trials import (
    Diverged,
    Stopped,
    TrialLines,
    TrialText,
    as_model,
    predicted,
    trained,
    trained_texts,
)
from snailps.vectors.fasttext_bin import BinModel
from snailps.vectors.label_metrics import F1, LOSS, MACRO_F1, Answers, Metric
from snailps.vectors.label_prediction import LabelModel
from snailps.vectors.quantising import SizeError
from snailps.vectors.words import to_text

log = logging.getLogger(__name__)

Shrink: TypeAlias = "Callable[[BinModel, Callable[[], Iterable[bytes]]], BinModel]"
TEXT_BYTES = 1 << 28
"""Bytes of a text that trials train on; of a longer one, pieces spread over all of it."""
THREADS_MAX = 256
WAIT_S = 3600.0
"""Longest wait for a trial at a time; a longer one may be beyond what the system can wait."""
_FROM_FILES = ("pretrained", "continue_from")
_ALL = (
    "where each line gets all labels, F1 depends on the lines alone, and all trials have the same. "
    "Give fewer, or a metric such as precision-at-recall:0.9"
)
_COUNTED = (F1, MACRO_F1)
HALVINGS = 8
"""Rates that are tried where the whole training of every trial's settings diverges."""
FEATURE_FLOATS = 32
"""What a feature costs besides its row's floats, in floats: for estimates of time."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a search goes on.

    Attributes
    ----------
    seconds : float
        Above 0.  No trial is begun that would probably end later.
    trials : int
        0: no limit.  With a limit that is reached in time, the result depends on the seed alone.
    threads : int
        Trials at the same time, at most 256; 0: one per core.
    """

    seconds: float = 300.0
    trials: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        if not (isinstance(self.seconds, Real) and 0 < self.seconds < float("inf")):
            raise DataError(f"seconds: expected a number above 0, got {self.seconds!r:.80}")
        whole_number(self.trials, 0, "trials: expected 0, for no limit, or a whole number above it")
        expected = f"threads: expected 0, for one a core, or a whole number up to {THREADS_MAX}"
        whole_number(self.threads, 0, expected, THREADS_MAX)


@dataclass(frozen=True, slots=True)
class TrialReport:
    """A trial that was completed.

    Attributes
    ----------
    number : int
        From 1, in the sequence of the search.
    score : float or None
        Of the metric, 0 to 1; None: the training diverged or found no memory, or no such model has
        the size that is asked for.
    epochs : float
        How long it trained; below 1: on some of the lines.
    settings : dict
        What was tried: lr, epochs, dim, word_ngrams, minn, maxn.
    seconds : float
        Of a thread.
    """

    number: int
    score: float | None
    epochs: float
    settings: Mapping[str, Any]
    seconds: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """The result of a search.

    Attributes
    ----------
    metric : str
    score : float
        Of the best trial.
    settings : dict
        Its settings; `snailps train classifier` trains the final model with them.  `epochs` are
        those of the trial if more of them were tried, too.
    trials : list of TrialReport
        In the order in which they were completed.
    ended : {"time", "trials", "interrupted"}
        Why the search ended.
    seconds : float
    """

    metric: str
    score: float
    settings: Mapping[str, Any]
    trials: Sequence[TrialReport]
    ended: str
    seconds: float


@dataclass(slots=True)
class SearchProgress:
    """Where a search is; `Tuner` changes it, any thread may read it."""

    began: float = field(default_factory=time.monotonic)
    trials: int = 0
    best: float | None = None
    final_s: float = 0.0
    """Seconds that the final training would take in one thread."""

    def line(self, effort: Effort) -> str:
        """Describe it in a line."""
        left = max(0.0, effort.seconds - (time.monotonic() - self.began))
        done = f"{self.trials:,} trials"
        if effort.trials:
            done = f"{self.trials:,} of {effort.trials:,} trials"
        best = "" if self.best is None else f", best {self.best:.4f}"
        final = f" of some {self.final_s:,.0f} s" if self.final_s >= 1 else ""
        return f"{done}{best}, {left:,.0f} s left at most, then the final training{final}"


def sampled(pieces: Iterable[bytes], most: int = TEXT_BYTES) -> list[bytes]:
    """Keep up to `most` bytes of a text: all pieces, or every second, fourth, ... of them."""
    kept: list[bytes] = []
    step, size = 1, 0
    for number, piece in enumerate(pieces):
        if number % step == 0:
            kept.append(piece)
            size += len(piece)
        while size > most and len(kept) > 1:
            kept, step = kept[::2], 2 * step
            size = sum(map(len, kept))
    return kept


class Tuner:
    """A search of settings.

    Parameters
    ----------
    base : ClassifierSettings
        Input, and `validation` or `held_out`; settings that are not tuned, and the values of those
        in `fixed`.
    fixed : collection of str
        Tuned settings that keep their value in `base`, unless that is ``auto``.
    metric : Metric
    predictions : int
        Labels predicted for each line, -1: all; 0: as the metric needs.
    effort : Effort
    shrink : callable, optional
        Makes of a trial's model, and pieces of the training text, the smaller model that is
        judged.
    """

    def __init__(
        self,
        base: ClassifierSettings,
        fixed: Collection[str],
        metric: Metric,
        predictions: int = 0,
        effort: Effort = Effort(),  # noqa: B008
        shrink: Shrink | None = None,
    ) -> None:
        if not has_held_out(base):
            raise DataError(
                "autotune: expected lines to judge trials by: give validation, a file of labelled "
                "lines, or held_out, a share of the input"
            )
        if base.has_weights and shrink is not None:
            raise DataError(
                "autotune: expected no size where texts or labels have weights (soft_labels, "
                "weight_column), without which a quantised model is judged. Leave size out"
            )
        if metric.name == LOSS:
            raise DataError(
                "metric: expected a figure of 0 to 1, such as f1 or macro-f1; loss is for stop_by"
            )
        if metric.name in _COUNTED and predictions == -1:
            raise DataError(
                f"autotune: expected 1 or more predictions (-k) with {metric.name}, got -1: {_ALL}"
            )
        for name in _FROM_FILES:
            if getattr(base, name):
                raise DataError(
                    f"{name}: a search starts all trials from random rows: leave it out, and train "
                    f"with the settings that it finds and {name}"
                )
        expected = "predictions: expected a whole number of labels a line, or -1 for all"
        predictions = whole_number(predictions, -1, expected)
        self._base, self._metric, self._effort = base, metric, effort
        self._fixed = fixed_of(base, fixed)
        self._shrink = shrink
        self._predictions = predictions or metric.predictions
        self._threads = effort.threads or kernels.cores()
        self._stop = threading.Event()
        self._interrupted = False
        self._failure = ""
        self._reports: list[TrialReport] = []
        self._judged: list[Judged] = []
        self._costs: dict[tuple[int, int, int], int] = {}
        self._paid: list[tuple[float, float]] = []
        self._checked: dict[ClassifierSettings, bool] = {}
        self.progress = SearchProgress()

    def interrupt(self) -> None:
        """End the search soon; the best trial so far counts."""
        self._interrupted = True
        self._stop.set()

    def run(self) -> Tuning:
        """Search until the effort is spent, or until Ctrl-C or `interrupt`.

        Raises
        ------
        DataError
            A text has no labels or no words, the validation has none that the input has, or no
            trial was completed.
        KeyboardInterrupt
            It was interrupted before a trial was completed.
        """
        check(self._base)
        began = self.progress.began = time.monotonic()
        texts = trained_texts(self._base), held_out_texts(self._base)
        train, held_out = map(sampled, texts)
        text = TrialText(self._base, train, held_out, self._threads)
        search = Search(self._base, self._fixed, text.lines, self._threads)
        with (
            ThreadPoolExecutor(self._threads, "snailps-trial") as trials,
            ThreadPoolExecutor(self._threads, "snailps-kernel") as kernel_pool,
        ):

            def judge(rung: Sequence[Trial]) -> list[Judged]:
                return self._judge(rung, trials, lambda one: self._one(one, text, kernel_pool))

            try:
                search.run(judge, lambda: not self._is_over)
            except KeyboardInterrupt:
                self.interrupt()
            finally:
                self._stop.set()  # else the pools would wait for trials of minutes
            if not self._judged and self._interrupted:
                raise KeyboardInterrupt
            best, settings = self._best(text, kernel_pool)
        if best is None or best.score is None or settings is None:
            raise DataError(
                f"autotune: no trial was completed in {self._effort.seconds:g} s: give more time"
                if not self._judged
                else f"autotune: {self._failure or 'every training diverged: give a lower lr'}"
            )
        ended = "trials" if self._is_full else "interrupted" if self._interrupted else "time"
        return Tuning(
            str(self._metric),
            best.score,
            {name: getattr(settings, name) for name in TUNED},
            sorted(self._reports, key=lambda one: one.number),
            ended,
            time.monotonic() - began,
        )

    def _best(
        self, text: TrialText, pool: ThreadPoolExecutor
    ) -> tuple[Judged | None, ClassifierSettings | None]:
        """Return the best trial whose settings do not diverge when they are trained as a whole.

        If all do, the rate of the best one is halved, unless it is fixed.
        """
        ranked = sorted(self._judged, key=lambda one: one.rank, reverse=True)
        good = [judged for judged in ranked if judged.score is not None]
        candidates = [(judged, judged.to_train(self._judged)) for judged in good]
        halves = () if "lr" in self._fixed else (2.0**-power for power in range(1, HALVINGS))
        lower = [(*candidates[0], half) for half in halves if candidates]
        for judged, settings, factor in [(*one, 1.0) for one in candidates] + lower:
            s = replace(settings, lr=float(f"{settings.lr * factor:.2g}"))
            is_known = factor == 1 and judged.trial.epochs >= settings.epochs
            if is_known or self._goes_well(s, text, pool):
                if factor < 1:
                    log.warning(
                        "with lr %g the whole training diverges: lr %g is chosen", settings.lr, s.lr
                    )
                return judged, s
        return None, None

    def _goes_well(self, s: ClassifierSettings, text: TrialText, pool: ThreadPoolExecutor) -> bool:
        """Whether the beginning of a whole training does not diverge: a short trial has high rates
        for a shorter time."""
        if s not in self._checked:
            share = min(1.0, VISITS / max(1, text.lines * s.epochs))
            try:
                trained(text.examples(s), s, s.epochs, pool, threading.Event(), share)
            except (Diverged, MemoryError):
                self._checked[s] = False
            else:
                self._checked[s] = True
        return self._checked[s]

    @property
    def _left(self) -> float:
        return self._effort.seconds - (time.monotonic() - self.progress.began)

    @property
    def _is_full(self) -> bool:
        return 0 < self._effort.trials <= len(self._reports)

    @property
    def _is_over(self) -> bool:
        return self._is_full or self._stop.is_set() or self._left <= 0

    def _judge(
        self,
        rung: Sequence[Trial],
        pool: ThreadPoolExecutor,
        one: Callable[[Trial], TrialReport],
    ) -> list[Judged]:
        """Run the trials of a rung, as many at a time as there are threads."""
        room = self._effort.trials - len(self._reports) if self._effort.trials else len(rung)
        waiting, judged = list(rung[:room]), list[Judged]()
        running: dict[Future[TrialReport], Trial] = {}
        while running or (waiting and not self._is_over):
            while waiting and len(running) < self._threads and not self._is_over:
                trial = waiting.pop(0)
                if self._seconds_of(trial) <= self._left:
                    running[pool.submit(one, trial)] = trial
            if not running:
                break
            left = self._left
            done, _ = wait(running, min(left, WAIT_S) if left > 0 else None, FIRST_COMPLETED)
            for future in done:
                trial = running.pop(future)
                with suppress(Stopped):
                    report = future.result()
                    self._reports.append(report)
                    judged.append(Judged(trial, report.score))
                    self._judged.append(judged[-1])
            self._note()
            if self._left <= 0:
                self._stop.set()
        if not judged:
            self._stop.set()  # nothing of this rung fits into the time that is left
        return judged

    def _note(self) -> None:
        self.progress.trials = len(self._reports)
        best = max(self._judged, key=lambda one: one.rank, default=None)
        if best is not None:
            s = best.to_train(self._judged)
            self.progress.best = best.score
            self.progress.final_s = self._seconds_of(Trial(0, s, s.epochs))

    def _one(self, trial: Trial, text: TrialText, pool: ThreadPoolExecutor) -> TrialReport:
        began = time.monotonic()
        score: float | None = None
        try:
            score = self._score_of(trial, text, pool)
        except SizeError as error:
            self._failure = str(error)
        except MemoryError:  # of this trial: others may be smaller, and their scores are kept
            self._failure = (
                "a training needs more memory than there is: set a smaller dim or bucket"
            )
        settings = {name: getattr(trial.settings, name) for name in TUNED}
        return TrialReport(trial.number, score, trial.epochs, settings, time.monotonic() - began)

    def _score_of(self, trial: Trial, text: TrialText, pool: ThreadPoolExecutor) -> float | None:
        """Train and judge; None: the training diverged."""
        s, examples = trial.settings, text.examples(trial.settings)
        if self._metric.name in _COUNTED and len(examples.labels) <= self._predictions:
            raise DataError(
                f"autotune: expected fewer predictions (-k) with {self._metric.name} than the "
                f"input has labels, {len(examples.labels):,}; got {self._predictions:,}: {_ALL}"
            )
        labels = [to_text(label) for label in examples.labels.words]
        self._metric.check(labels)
        none = np.zeros((len(examples.held_out.label_ptr) - 1, 1), np.int32)
        Metric().value(labels, [(examples.held_out, (none, none.astype(np.float32)))])
        began = time.monotonic()
        try:
            rows = trained(examples, s, trial.epochs, pool, self._stop)
        except Diverged:
            return None
        seconds = time.monotonic() - began
        self._costs[_features_of(trial)] = examples.features
        self._paid.append((seconds, self._work_of(trial)))
        return self._metric.value(labels, self._answers(examples, s, rows, text))

    def _answers(
        self,
        examples: TrialLines,
        s: ClassifierSettings,
        rows: tuple[Floats, Floats],
        text: TrialText,
    ) -> Answers:
        """Label the held-out lines."""
        if self._shrink is None:
            return predicted(rows, s, examples, self._predictions)
        small = self._shrink(as_model(examples, s, rows), lambda: text.train)
        return LabelModel.of_model(small).answers(text.held_out, self._predictions, "validation")

    def _work_of(self, trial: Trial) -> float:
        """Estimate the work of a trial; 0: its features are not read yet."""
        floats = trial.settings.dim + FEATURE_FLOATS
        return self._costs.get(_features_of(trial), 0) * trial.epochs * floats

    def _seconds_of(self, trial: Trial) -> float:
        paid = list(self._paid)  # other threads append to it
        work = sum(work for _, work in paid)
        seconds = sum(seconds for seconds, _ in paid)
        return seconds / work * self._work_of(trial) if work else 0.0


def _features_of(trial: Trial) -> tuple[int, int, int]:
    return trial.settings.word_ngrams, trial.settings.minn, trial.settings.maxn
