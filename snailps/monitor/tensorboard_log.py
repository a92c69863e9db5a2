"""A training for TensorBoard: curves, histograms of the rows' norms, and the vectors at the end.

    Status (of the loop)                 -> scalars           ┐
    Results (beside the loop)           -> norms of rows     ┼-> queue -> thread -> event files
    files of the export                 -> words and vectors ┘

The loop only puts numbers into a queue, which a thread writes; what cannot be written is dropped
with a warning and never ends a run. A step is the number of words or examples so far, so a resumed
training continues its curves. It reports the step at which it resumes, so that TensorBoard drops
the points that the earlier run drew after that step.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.results import Results
from snailps.errors import ConfigError, SnailError, explain
from snailps.files.extras import optional_module
from snailps.node.background import Backlog
from snailps.node.status import FIGURED_AT, Status, job_number
from snailps.outward import printable

if TYPE_CHECKING:
    from snailps.vectors.files import Float32

log = logging.getLogger(__name__)

ROWS_MAX = 20_000
"""Rows of a table whose norms are read: shards have rows by hash, so any are a fair sample."""
WORDS_MAX = 10_000
"""Vectors for the projector, which a browser must hold; the most frequent words."""
QUEUE_MAX = 1000
END_S = 20.0
"""Seconds that the end of the master waits for the queue."""
FILE_BYTES_MAX = 256 << 20
"""A larger file is not loaded; of a ``.vec`` only the first lines are read."""
_VECTORS = (".vec", ".npz", ".bin")

Write = Callable[[Any], None]
"""Writes something with a `tensorboardX.SummaryWriter`."""


class TensorboardLog:
    """Writes a folder that ``tensorboard --logdir`` shows. ConfigError if tensorboardX is not
    installed, or the folder cannot be made."""

    def __init__(self, folder: str) -> None:
        self._module = optional_module("tensorboardX", "tensorboard", "snailps[tensorboard]")
        # of the first job; later ones of a session have ``job-2``, ... in it
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"tensorboard: cannot make {folder}: {error.strerror}") from None
        self._job, self._step = 1, 0
        self._tests: tuple[int, int] = 1, 0  # a job, and how many of its tests are written
        self._first: tuple[int, int | None] = -1, None
        """A job, and the step at which this process has begun with it."""
        self._steps: dict[str, tuple[int, int]] = {}
        """Job and step of the last point of each tag.  A tag gets one point per step, as readers of
        the files expect, even if several statuses come at the same step."""
        self._points = Backlog("snailps-tensorboard", self._write_all, QUEUE_MAX)

    # --- the master's loop -----------------------------------------------------------------------

    def on_status(self, status: Status) -> None:
        """Add a point to the curves of this job."""
        self._job = job_number(status)
        self._step = step = status["units"]
        if self._first[0] != self._job and status["phase"] == "training":
            self._first = self._job, step
        points: dict[str, float | None] = {
            "training/loss": status["loss"],
            "training/learning_rate": status["lr"],
            "training/progress": status["progress"],
            f"speed/{status['unit']}_per_second": status["units_per_s"],
            "speed/requests_per_second": status["requests_per_s"],
            "cluster/longest_wait_seconds": max(
                (w["seconds"] for w in status["waits"]), default=0.0
            ),
            "cluster/waits": len(status["waits"]),
            "cluster/servers": sum(node["role"] == "server" for node in status["nodes"]),
            "cluster/workers": sum(node["role"] == "worker" for node in status["nodes"]),
            **self._new_test(status),
        }

        new = {
            name: value
            for name, value in points.items()
            if value is not None and self._is_new(name, step)
        }

        def scalars(writer: Any) -> None:
            for name, value in new.items():
                writer.add_scalar(name, value, step)

        if new:
            self._put(scalars)

    def _new_test(self, status: Status) -> dict[str, float | None]:
        """The figures of a test that the last status did not have."""
        tests = status["tests"]
        before, self._tests = self._tests, (self._job, len(tests))
        if not tests or before == self._tests:
            return {}
        return {
            f"test/{name}": value for name, value in tests[-1].items() if name not in FIGURED_AT
        }

    def _is_new(self, tag: str, step: int) -> bool:
        """Whether a tag has no point at a step yet; notes that it gets one."""
        before, self._steps[tag] = self._steps.get(tag), (self._job, step)
        return before != (self._job, step)

    # --- beside the loop -------------------------------------------------------------------------

    def read(self, results: Results) -> None:
        """Note the norms of rows of all tables, which takes as long as reading these."""
        step = self._step
        for name in results.tables:
            if not self._is_new(f"row_norms/{name}", step):
                continue
            found, count = [], 0
            for _, rows in results.scan(name):
                found.append(np.linalg.norm(rows.astype(np.float64), axis=1))
                count += len(rows)
                if count >= ROWS_MAX:
                    break
            norms = np.concatenate(found)[:ROWS_MAX] if found else np.empty(0)
            norms = norms[np.isfinite(norms)]
            if len(norms):
                self._put(partial(_histogram, f"row_norms/{name}", norms, step))

    def exported(self, files: Sequence[str]) -> None:
        """Note the vectors of exported files, if they are vectors of words."""
        known = sorted(
            (_VECTORS.index(suffix), file)
            for file in files
            if (suffix := Path(file).suffix) in _VECTORS
        )
        found = _first_vectors(known[0][1]) if known else None
        if found is None:
            return
        (words, rows), step = found, self._step
        words = [_cell(word) for word in words]
        about = {"metadata": words, "tag": "words", "global_step": step}
        self._put(lambda writer: writer.add_embedding(rows, **about))

    # --- the thread ------------------------------------------------------------------------------

    def _put(self, write: Write) -> None:
        purged = self._first[1] if self._first[0] == self._job else None
        point = self._job, purged, write
        if not self._points.put(point):  # a disk that hangs must not stop the run
            log.debug("tensorboard: the disk is behind, a point is left out")

    def _write_all(self, points: Iterator[tuple[int, int | None, Write]]) -> None:
        writers: dict[int, Any] = {}
        failed = False
        for job, purged, write in points:
            try:
                if job not in writers:
                    folder = self._folder if job <= 1 else self._folder / f"job-{job}"
                    writers[job] = self._module.SummaryWriter(
                        str(folder), flush_secs=5, purge_step=purged,
                        filename_suffix=f".{secrets.token_hex(4)}",  # files of one second differ
                    )  # fmt: skip
                write(writers[job])
            except Exception as error:  # of the package, the disk
                if not failed:
                    log.warning("tensorboard: cannot write %s: %s", self._folder, explain(error))
                failed = True
        for writer in writers.values():
            try:
                writer.close()
            except Exception as error:
                log.warning("tensorboard: cannot write %s: %s", self._folder, explain(error))

    def close(self) -> None:
        self._points.close(END_S)


def _histogram(tag: str, norms: NDArray[np.float64], step: int, writer: Any) -> None:
    writer.add_histogram(tag, norms, step)


def _cell(word: str) -> str:
    """A word as a line of one cell, in UTF-8."""
    text = printable(word).replace("\n", "\\n").replace("\t", "\\t")
    return text.encode("utf-8", "replace").decode()


def _first_vectors(path: str) -> tuple[list[str], Float32] | None:
    """The first words of a file, with their vectors; None where it is a model of another kind."""
    if path.endswith(".vec"):
        return _first_lines(path)
    if Path(path).stat().st_size > FILE_BYTES_MAX:
        log.info("tensorboard: %s is too large for the projector", path)
        return None
    # Here, because every master imports this module: a seventh of its imports.
    from snailps.vectors.files import load

    try:
        vectors: Any = load(path)
        words = list(itertools.islice(vectors.words, WORDS_MAX))
        return words, np.array(vectors.vectors[: len(words)], np.float32)
    except (SnailError, AttributeError, TypeError):
        return None


def _first_lines(path: str) -> tuple[list[str], Float32]:
    """Read the first words and vectors of a ``.vec`` of any size: its first lines only."""
    words, rows = [], []
    with open(path, encoding="utf-8", errors="replace") as file:
        columns = int(next(file, "0 0").split()[1])
        for line in itertools.islice(file, WORDS_MAX):
            word, *numbers = line.rstrip().rsplit(" ", columns)  # a word may have blanks
            words.append(word)
            rows.append(np.array(numbers, np.float32))
    return words, np.array(rows, np.float32)
