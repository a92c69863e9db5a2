"""Declares the work that takes long, does I/O or runs the model's class.

    core -> Work(services.reader.export ...) -> process.py calls it in a thread -> WorkDone

The core must not call any of it: it only puts it into a `Work`. `process.py` has the real services
(files, connections, threads), tests have their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from snailps.api.export_progress import ExportProgress
from snailps.api.results import Results
from snailps.api.tables import Table
from snailps.config import CheckpointSettings, JobSettings
from snailps.dataclass import dataclass
from snailps.master.job.state import JobState
from snailps.store.checkpoint.manifest import Manifest

if TYPE_CHECKING:
    from snailps.master.job.job import Job
    from snailps.master.job.model_class import Look


@dataclass(frozen=True, slots=True)
class Candidate:
    number: int
    path: str
    manifest: Manifest
    sources: list[tuple[str, int]]  # of its job: path and length of each file of the input


@dataclass(frozen=True, slots=True)
class Opened:
    """A job's checkpoint folder and its good checkpoints, newest first. `taken` is the number of
    this use of the folder, for `Files.release`."""

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
    path: str
    rows: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """What the model's class needs to read its rows: connections, tables, figures."""

    numbers: Iterator[int]  # incarnations for its connections
    tables: Mapping[str, tuple[int, Table]]  # number and table, by name
    figures: dict[str, Any]  # of the run so far, which the model's class may see
    clock: int = 0  # all clocks below it are to be applied before it begins


class Files(Protocol):
    """See `checkpoint_files.CheckpointFiles`."""

    def open(
        self,
        settings: CheckpointSettings,
        *,
        resumes: bool,
        anyway: bool = False,
        of_session: bool = False,
    ) -> Opened | None:
        """Open a job's checkpoint folder; `anyway`: also of a job that makes no checkpoints."""

    def path_of(self, settings: CheckpointSettings) -> str:
        """Path of a job's checkpoint folder."""

    def find(self, folder: str) -> Opened:
        """The good checkpoints in a folder, of whichever job; nothing is written to it."""

    def read_state(self, candidate: Candidate) -> JobState:
        """Read the state of a checkpoint's job, a summary of up to 255 MiB in it."""

    def clear(self) -> None:
        """Remove what an earlier master left incomplete."""

    def begin(self, above: int, cluster_id: int, needed_bytes: int) -> Begun:
        """Begin a checkpoint with a number above `above`."""

    def complete(
        self,
        begun: Begun,
        files: Sequence[dict[str, Any]],
        state: JobState,
        *,
        cluster_id: int,
        frag_num: int,
        tables: tuple[dict[str, Any], ...],
        about: dict[str, Any],
        kept: int,
    ) -> Completed:
        """Give a complete checkpoint its name."""

    def drop(self, begun: Begun) -> None:
        """Remove a failed checkpoint."""

    def open_best(self, settings: JobSettings, name: str) -> Opened:
        """Open the folder of the rows of a job's best epoch; `name` is the job's, among all."""

    def discard_best(self, taken: int, settings: JobSettings, name: str) -> None:
        """Close the folder of the best rows, and remove it with all that is in it."""

    def release(self, taken: int, why: str) -> None:
        """Close the folder; with a `why`, no job may resume from its checkpoints any more."""


class Reader(Protocol):
    """See `job.model_reader.ModelReader`."""

    @property
    def looks(self) -> tuple[Look, ...]:
        """Looks of who looks on, whatever the model's class is."""

    def look(
        self,
        job: Job,
        looks: Sequence[Look],
        number: int,
        reading: ModelAccess,
        *,
        stays: bool = False,
    ) -> list[Mapping[str, Any]]:
        """What each look sees, of those that did not fail; `stays`: the next one of this job has
        the same connection."""

    def landmarks(self, job: Job, reading: ModelAccess, *, sharp: bool) -> Mapping[str, Any]:
        """Places of named rows in a map of the model; empty where it has none."""

    def load(
        self,
        job: Job,
        work: Callable[[Results], Any],
        reading: ModelAccess,
        progress: ExportProgress | None = None,
    ) -> Any:
        """Call `work` on the tables of the job; `progress` is kept up to date."""

    def export(self, job: Job, reading: ModelAccess, progress: ExportProgress) -> dict[str, Any]:
        """Evaluate the model and write it."""


class Services(Protocol):
    """All work of a core beside the loop."""

    @property
    def files(self) -> Files:
        """Checkpoints on disk."""

    def more_files(self) -> Files:
        """Files for another folder, open at the same time as the job's."""

    @property
    def reader(self) -> Reader:
        """The master's own reading of tables."""

    def load_job(
        self, settings: Mapping[str, str], now: float, source: bytes = b"", key: str = ""
    ) -> Job:
        """The job that a driver submits; loads the model's class, from `source` if given."""

    def sync_journal(self) -> None:
        """Have all facts that were noted so far on disk."""

    def keep_base(self, state: JobState) -> None:
        """Keep the state at which the training begins beside the journal, synced to disk."""
