"""Evaluation at the master after each round: the loss on the test windows, and the files.

    tables -> loss                    -> metrics of the round
           -> OUTPUT.weights.npz, OUTPUT.embedding.txt, OUTPUT.history.jsonl   (all atomically)

A thread writes the files while the next round trains: the history of every round, the arrays once
a second and at the end.  What finds no room on the disk is written after a later round, or by
`finish`, which the master repeats.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.abi.quota import cores
from snailps.api.worker import Results
from snailps.data._float_text import rows_as_text
from snailps.errors import SnailError, is_full
from snailps.files.atomic import atomic_file
from snailps.models.fedavg import settings as files
from snailps.models.fedavg.network import Network, plain_output
from snailps.models.fedavg.plotting import read_history
from snailps.models.fedavg.settings import FedAvgSettings

log = logging.getLogger(__name__)

Floats = NDArray[np.float32]
_TOGETHER = 64
"""Windows scored together; more would only take more memory."""
_LINES = 4096
"""Rows converted to text at a time."""
FILES = ("weights.npz", "embedding.txt", "history.jsonl")
"""Suffixes of the files, after ``OUTPUT.``."""
SAVE_EVERY_S = 1.0
"""Least seconds of training between two writings of the arrays: learners need the core, too."""


class RoundEvaluator:
    """The test windows, a network that scores them, and the history of the run."""

    def __init__(self, settings: FedAvgSettings) -> None:
        self._settings = settings
        self._words = files.read_vocab(settings.data_dir)
        windows = files.read_test(settings.data_dir, self._words, settings.window)
        self._pieces = np.array_split(windows, cores())
        self._test_num = len(windows)
        self._network = Network(len(self._words), settings.dim, 1)
        self._scratches = [self._network.scratch(settings.window, _TOGETHER) for _ in self._pieces]
        self._pool = ThreadPoolExecutor(len(self._pieces), "snailps-judge")
        self._writer = ThreadPoolExecutor(1, "snailps-save")
        self._writing: Future[None] | None = None
        self._saved_s = -math.inf  # seconds of training at the last writing of the arrays
        # Not written yet, or in vain; the writer removes them, and nobody else while it writes.
        self._unsaved: tuple[int, Floats, Floats] | None = None  # round, its arrays
        self._history_due: Callable[[], None] | None = None
        self._has_saved = False  # arrays
        self._found_full = False
        self._history: list[dict[str, Any]] = []

    def inspect(self, results: Results, round_: int) -> dict[str, Any]:
        """Compute the round's figures, and start to write its files.

        Figures are mean loss, windows a learner, and seconds of training.
        """
        embedding, output = self._pull(results)
        s = self._settings
        if round_ and not self._history:
            self._go_on()
        self._history = [line for line in self._history if line["round"] < round_ + 1]
        figures = {
            "loss": self.loss(embedding, output),
            "windows_per_learner": self._windows(results.figures, round_),
            "seconds": results.figures["train_s"],
        }
        self._history.append({"round": round_ + 1, **figures})
        if not s.output:
            return figures
        try:
            self.wait()
        except SnailError as error:
            if not is_full(error):
                raise
            if not self._found_full:
                log.warning("%s. The training goes on, and it is tried after each round", error)
            self._found_full = True
        if math.isfinite(figures["loss"]):
            self._unsaved = round_ + 1, embedding, output
            labels = self._labels(results.figures)
            self._history_due = partial(self._save_history, self._history[:], labels)
            self._write(figures["seconds"])
        else:
            self._write(math.inf)
        return figures

    def _windows(self, figures: Mapping[str, Any], round_: int) -> int | float:
        """Windows that a learner has trained so far, a mean of all workers' learners: in a round
        only those train whose workers were drawn for it, and were not late."""
        s, workers = self._settings, max(1, figures.get("workers", 1))
        parts = figures.get("parts") or max(1, round(s.fraction * workers))
        before = self._history[-1] if self._history else {"round": 0, "windows_per_learner": 0}
        lacking = round_ - before["round"]  # rounds of which the history has no line
        share = min(1.0, parts / workers)
        windows = before["windows_per_learner"] + s.bpe * s.bs * share * (lacking + 1)
        return int(windows) if windows == int(windows) else round(windows, 3)

    def _write(self, seconds: float) -> None:
        """Start to write the history, and the arrays if they are due after `seconds` of training.

        Nothing is being written.
        """
        arrays = self._unsaved if seconds >= self._saved_s + SAVE_EVERY_S else None
        history = self._history_due

        def save() -> None:
            if arrays is not None:
                self._save(*arrays)
                self._unsaved, self._has_saved = None, True
                self._saved_s = seconds if math.isfinite(seconds) else -math.inf
            if history is not None:
                history()
                self._history_due = None
            self._found_full = False

        self._writing = self._writer.submit(save)

    def _pull(self, results: Results) -> tuple[Floats, Floats]:
        """Pull the rows of the embedding and of the output layer."""
        embedding = results.pull("embedding", np.arange(len(self._words), dtype=np.uint64))
        return embedding, results.pull("output", np.arange(self._network.panels, dtype=np.uint64))

    def _go_on(self) -> None:
        """Read the history of a run that continues from a checkpoint."""
        path = self._paths()["history.jsonl"]
        if self._settings.output and path.exists():
            _, self._history = read_history(path)

    def loss(self, embedding: Floats, output: Floats) -> float:
        """Mean loss on the test windows, for a network given as rows of its tables."""
        self._network.put_embedding(0, embedding)
        self._network.put_output(0, output)
        score = partial(
            kernels.cbow_loss,
            embedding=self._network.embedding[0],
            output=self._network.output[0],
            batch=_TOGETHER,
        )
        tasks = [
            self._pool.submit(score, piece, scratch=scratch)
            for piece, scratch in zip(self._pieces, self._scratches, strict=True)
        ]
        return sum(task.result() for task in tasks) / self._test_num

    def finish(self, results: Results) -> list[str]:
        """Write what is not written yet; returns the paths of the files.

        If this process has seen no round, the tables hold the last round's weights.
        """
        with contextlib.suppress(SnailError):  # it is written again here
            self.wait()
        if self._settings.output and self._unsaved is None and not self._has_saved:
            # From the figures, not from the file, which may belong to another run.
            self._history = [dict(line) for line in results.figures.get("by_round", ())]
            if self._history:
                self._unsaved = self._history[-1]["round"], *self._pull(results)
                labels = self._labels(results.figures)
                self._history_due = partial(self._save_history, self._history[:], labels)
        self._write(math.inf)
        self.wait()
        return [str(path) for path in self._paths().values()] if self._history else []

    def wait(self) -> None:
        """Wait until nothing is being written; raises what the writing failed with."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _labels(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Properties of the run, for the legend of a plot."""
        s = self._settings
        return {
            "data_name": s.data_name,
            "learners": s.learners,
            "pipelines": s.pipelines,
            "workers": figures.get("workers", 0),
            "bpe": s.bpe,
            "bs": s.bs,
            "lr": s.lr,
            "target": s.target_loss,
        }

    def _paths(self) -> dict[str, Path]:
        return {name: Path(f"{self._settings.output}.{name}") for name in FILES}

    def _save(self, round_: int, embedding: Floats, output: Floats) -> None:
        paths = self._paths()
        weights, biases = plain_output(output, len(self._words), self._settings.dim)
        with atomic_file(paths["weights.npz"]) as file:
            np.savez(
                file,
                words=np.frombuffer(b"\n".join(self._words), np.uint8),
                embedding=embedding,
                output=weights,
                bias=biases,
                round=np.int64(round_),
            )
        with atomic_file(paths["embedding.txt"]) as file:
            for at in range(0, len(embedding), _LINES):
                file.write(rows_as_text(embedding[at : at + _LINES]))

    def _save_history(self, history: list[dict[str, Any]], labels: dict[str, Any]) -> None:
        with atomic_file(self._paths()["history.jsonl"]) as file:
            file.write(json.dumps(labels).encode() + b"\n")
            for line in history:
                file.write(json.dumps(line).encode() + b"\n")


@functools.lru_cache(maxsize=1)
def judge_of(settings: FedAvgSettings) -> RoundEvaluator:
    """Get the evaluator of a job: made when its settings are checked, used after each round."""
    return RoundEvaluator(settings)
