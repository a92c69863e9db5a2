"""A filter on a cluster: a block is a task of the input, whose output is written, not pushed.

    list of tasks -> leases of the master -> Filter.train -> an output file and its counts, each

A worker that is lost leaves an unfinished, hidden file, and its task is leased again.  All hosts
have the folders of inputs, models and outputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from snailps.api.block import Block
from snailps.api.traits import Cut
from snailps.api.worker import Worker
from snailps.config import JobSettings, setting
from snailps.data.blocks import Source
from snailps.data.reading import Reading
from snailps.dataclass import dataclass
from snailps.filtering.job import Command, FilterJob
from snailps.filtering.tasks import Task


@dataclass(frozen=True, slots=True)
class FilterSettings(JobSettings):
    """Settings of `Filter`; `snailps.filter` gives them."""

    column: str = setting("", help="Column of the texts.", when="The input is tables.")
    models: str = setting("", help="Paths by name, as JSON.", when="Always.")
    keep: str = setting("", help="Condition of the texts that are kept.", when="Always.")
    add: str = setting("[]", help="Scores that become columns, as JSON.", when="They are wanted.")
    folder: str = setting("", help="Folder of the outputs.", when="Always.", unit="path")
    key: str = setting("", help="Of the command whose results these are.", when="Always.")
    scores: str = setting("", help="Folder of kept scores.", when="They are kept.", unit="path")


class Filter(Worker, Cut):
    """Keeps texts; its input is `Results.list_path`, a task a line."""

    Settings = FilterSettings
    settings: FilterSettings

    @classmethod
    def reading(cls, settings: JobSettings) -> Reading:
        """Read no tables: the job's input is the list of tasks."""
        return Reading()

    @classmethod
    def pieces(
        cls, settings: JobSettings, sources: Sequence[Source], workers: int
    ) -> list[tuple[str, int, int]]:
        """A block is a task, as a status counts blocks."""
        path = sources[0].path
        with Path(path).open("rb") as file:
            return [(path, *piece) for piece in pairwise([0, *accumulate(map(len, file))])]

    def setup(self) -> None:
        """Open the models."""
        s = self.settings
        models, add = json.loads(s.models), tuple(json.loads(s.add))
        command = Command((), s.column, models, s.keep, add, s.folder, s.scores)
        self._job = FilterJob(command, s.key)

    def train(self, block: Block) -> Mapping[str, float]:
        """Write the output of a task, unless another worker has."""
        path, name, groups, size, version = json.loads(block.data)
        task = Task(path, name, tuple(groups) if groups else None, size, version)
        if self._job.results.done(task) is None:
            self._job.run([task], self.threads)
        done = self._job.results.done(task)
        return {"units": float(done.counts.rows if done is not None else 0)}
