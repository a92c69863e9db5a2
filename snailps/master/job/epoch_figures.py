"""The figures of a model after each epoch, and which epoch is the best.

    test -> is_better, add -> best_test, is_enough          dump, load: state of the job

No files, sockets or time; `epoch_tests.py` makes the tests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from snailps.dataclass import dataclass, field
from snailps.node.status import FIGURED_AT


@dataclass(slots=True)
class EpochFigures:
    """The figures after each epoch, and which is best.

    A test has `epoch` (of a training that ended within one a fraction), `progress`, `at_s`, and
    figures, the deciding one first.  `kept` is the path of the best epoch's rows; empty: they are
    not kept.  `is_restored`: the servers have them again, at the end; None: they never lost them.
    """

    stop_after: int = 0
    better: str = "higher"
    tests: list[dict[str, Any]] = field(default_factory=list)
    best: int = -1
    kept: str = ""
    done: float = -1.0
    """Share of the training that was done at the last test; encoding a block adds nothing."""
    is_restored: bool | None = None

    def add(self, test: dict[str, Any], kept: str, done: float) -> None:
        self.done = done
        if self.is_better(test):
            self.best, self.kept = len(self.tests), kept
        self.tests.append(test)

    def is_better(self, test: Mapping[str, Any]) -> bool:
        """Whether a test is better than all so far; with NaN it never is."""
        figure = deciding(test)
        if self.best < 0:
            return not math.isnan(figure)
        best = deciding(self.tests[self.best])
        return figure > best if self.better == "higher" else figure < best

    @property
    def epochs(self) -> int:
        """Whole epochs that are tested."""
        return int(self.tests[-1]["epoch"]) if self.tests else 0

    def is_new(self, done: float) -> bool:
        """Whether anything was trained since the last test: this share in all."""
        return self.done != done

    @property
    def best_test(self) -> dict[str, Any]:
        return self.tests[self.best]

    @property
    def is_last_best(self) -> bool:
        return self.best < 0 or self.best == len(self.tests) - 1

    @property
    def is_enough(self) -> bool:
        """Whether no better figure came for so many epochs that the training is to end."""
        worse = len(self.tests) - 1 - max(0, self.best)
        return 0 < self.stop_after <= worse

    @property
    def figures(self) -> dict[str, Any]:
        """Figures of the run: the epoch whose rows are exported."""
        if not self.stop_after or self.best < 0:
            return {}
        saved = self.tests[-1] if self.is_restored is False else self.best_test
        return {"best_epoch": self.best_test["epoch"], "saved_epoch": saved["epoch"]}

    def dump(self) -> dict[str, Any]:
        best = {"best": self.best, "kept": self.kept}
        return {"tests": list(self.tests), **best, "done": self.done}

    def load(self, dumped: Mapping[str, Any]) -> None:
        self.tests, self.best = [dict(test) for test in dumped["tests"]], int(dumped["best"])
        self.kept, self.done = str(dumped["kept"]), float(dumped["done"])


def deciding(test: Mapping[str, Any]) -> float:
    """The figure of a test by which epochs are compared; NaN without one."""
    return deciding_in(test)[1]


def deciding_in(test: Mapping[str, Any]) -> tuple[str, float]:
    """The name and the value of that figure."""
    figures = ((name, float(value)) for name, value in test.items() if name not in FIGURED_AT)
    return next(figures, ("figure", math.nan))
