"""What takes long, does I/O or runs the model's class: run as a `Work`, beside the loop.

    core -> Work(services.reader.export ...) -> process.py calls it in a thread -> WorkDone

The core calls none of these itself.  `process.py` has the real ones (files, connections, threads),
tests have their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from snailps.api.export_progress import ExportProgress
from snailps.api.results import Results
from snailps.api.tables import Table
from snailps.config import JobSettings
from snailps.master.job.snapshot import JobSnapshot
from snailps.store.checkpoint.manifest import Manifest

if TYPE_CHECKING:
    from snailps.master.job.job import Job


@dataclass(frozen=True, slots=True)
class Candidate:
    """A good checkpoint that is there."""

    number: int
    path: str
    manifest: Manifest
    snapshot: JobSnapshot


@dataclass(frozen=True, slots=True)
class Opened:
    """The folder of a job's checkpoints, and the good ones, newest first.

    `taken`: the number of this use of it, for `Files.release`.
    """

    taken: int
    path: str
    candidates: list[Candidate]


@dataclass(frozen=True, slots=True)
class Begun:
    """A checkpoint that is being written to the folder `part`."""

    number: int
    part: str
    saved_at: str


@dataclass(frozen=True, slots=True)
class Completed:
    """A complete checkpoint."""

    path: str
    rows: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reading of tables needs of the cluster.

    Attributes
    ----------
    numbers : iterator of int
        Incarnations for the connections that it makes.
    tables : mapping
        Number and table, by name.
    figures : dict
        Of the run so far, which the model's class may see.
    """

    numbers: Iterator[int]
    tables: Mapping[str, tuple[int, Table]]
    figures: dict[str, Any]


class Files(Protocol):
    """See `checkpoint_files.CheckpointFiles`."""

    def open(self, settings: JobSettings, *, resumes: bool) -> Opened | None:
        """Takes the folder of a job's checkpoints."""

    def clear(self) -> None:
        """Removes what an earlier master left half written."""

    def begin(self, above: int, life: int, needed_bytes: int) -> Begun:
        """Begins a checkpoint."""

    def complete(
        self,
        begun: Begun,
        files: Sequence[dict[str, Any]],
        snapshot: JobSnapshot,
        *,
        life: int,
        frag_num: int,
        tables: tuple[dict[str, Any], ...],
        about: dict[str, Any],
        kept: int,
    ) -> Completed:
        """Makes it whole."""

    def drop(self, begun: Begun) -> None:
        """Removes one that failed."""

    def release(self, taken: int, why: str) -> None:
        """Lets go of the folder; nothing goes on from its checkpoints; empty `why`: it may."""


class Reader(Protocol):
    """See `job.model_reader.ModelReader`."""

    def inspect(self, job: Job, reading: Reading) -> None:
        """Has the model's inspector look."""

    def after_round(self, job: Job, round_: int, reading: Reading) -> Mapping[str, Any]:
        """Has the model look at itself after a round."""

    def landmarks(self, job: Job, reading: Reading, *, sharp: bool) -> Mapping[str, Any]:
        """Places of named rows in a map of the model; empty where it has none."""

    def load(
        self,
        job: Job,
        work: Callable[[Results], Any],
        reading: Reading,
        told: ExportProgress | None = None,
    ) -> Any:
        """Calls `work` on the tables of the job; `told` gets how far it is."""

    def export(self, job: Job, reading: Reading, told: ExportProgress) -> dict[str, Any]:
        """Judges the model and writes it."""


class Services(Protocol):
    """All work of a core beside the loop."""

    @property
    def files(self) -> Files:
        """Checkpoints on disk."""

    @property
    def reader(self) -> Reader:
        """The master's own reading of tables."""

    def load_job(
        self, settings: Mapping[str, str], now: float, source: bytes = b"", key: str = ""
    ) -> Job:
        """The job that a driver submits: loads the model's class, from its source if there is."""

    def keep_base(self, snapshot: JobSnapshot) -> None:
        """Keeps the snapshot at which the training begins, beside the journal, safe on disk."""
