"""A filter on a cluster: a block is a task, and its result is a file, not a push.

    list of tasks -> leases of the master -> Filter.train -> for each task, an output and its counts

A lost worker leaves an unfinished file under a hidden name; the master leases its task again, and
two workers that run the same task write the same bytes.  All hosts share the folders of inputs,
models and outputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Literal

from snailps.api.block import Block
from snailps.api.range_passes import PassRange, RangePasses
from snailps.api.tables import Table
from snailps.api.traits import Cut, Ranged
from snailps.api.worker import Worker
from snailps.config import JobSettings, setting
from snailps.dataclass import dataclass
from snailps.duplicates.search import TABLE_PASSES
from snailps.errors import DataError
from snailps.files.blocks import InputFile
from snailps.files.reading import Reading
from snailps.filtering.job import FilterCommand, FilterJob
from snailps.filtering.served_keys import ServedKeys
from snailps.filtering.tasks import task_of


@dataclass(frozen=True, slots=True)
class FilterSettings(JobSettings):
    """Settings of `Filter`; `snailps.filter` sets them."""

    column: str = setting("", help="Column of the texts.", when="The input is tables.")
    models: str = setting("", help="Model paths by name, as JSON.", when="Always.")
    keep: str = setting("", help="Condition for the texts to keep.", when="Always.")
    add: str = setting("[]", help="Scores to add as columns, as JSON.", when="You want them.")
    folder: str = setting("", help="Folder of the outputs.", when="Always.", unit="path")
    key: str = setting("", help="Key of the command whose results these are.", when="Always.")
    scores: str = setting("", help="Folder of kept scores.", when="You keep scores.", unit="path")
    on_bad_line: Literal["stop", "skip"] = setting(
        "stop", help="What to do with a line without an object.", when="Some lines are damaged."
    )
    phase: Literal["pairs", "overlaps", "writing"] = setting(
        "writing",
        help="Find pairs of copies, compare them, or write outputs.",
        when="Copies are searched.",
    )
    searched: int = setting(0, help="Tasks that are searched.", when="Copies are searched.", low=0)
    digest: str = setting("", help="SHA-256 of the benchmarks' lines.", when="You search them.")
    against: str = setting("", help="Folder of an index.", when="You have one.", unit="path")
    benchmarks: str = setting("[]", help="Paths of benchmarks, as JSON.", when="You search them.")


class Filter(Worker, Cut, Ranged):
    """Filters texts.  Its input is a list of tasks, one per line.

    A search for copies goes over all tasks in passes, each of which waits for the one before: keys
    and `TABLE_PASSES` in the phase "pairs"; sets, and what pairs share, in "overlaps".  All of it
    may be repeated.
    """

    Settings = FilterSettings
    settings: FilterSettings

    @classmethod
    def reading(cls, settings: JobSettings) -> Reading:
        """How the input is read: as lines, since it is the list of tasks and not the texts."""
        return Reading()

    @classmethod
    def pieces(
        cls, settings: JobSettings, sources: Sequence[InputFile], workers: int
    ) -> list[tuple[str, int, int]]:
        """One block per task, so that `snailps status` counts tasks."""
        path = sources[0].path
        with Path(path).open("rb") as file:
            return [(path, *piece) for piece in pairwise([0, *accumulate(map(len, file))])]

    @classmethod
    def range_passes(cls, settings: FilterSettings, summary: bytes) -> RangePasses | None:
        if settings.phase == "writing":
            return None
        passes = len(TABLE_PASSES) if settings.phase == "pairs" else 1
        return RangePasses(settings.searched, passes, per_epoch=passes)

    def tables(self) -> Sequence[Table]:
        return ServedKeys.TABLES if self.settings.phase == "pairs" else ()

    def setup(self) -> None:
        s = self.settings
        models, add = json.loads(s.models), tuple(json.loads(s.add))
        places = s.folder, s.scores
        evals = tuple(json.loads(s.benchmarks))
        command = FilterCommand(
            (), s.column, models, s.keep, add, *places, s.on_bad_line, evals, against=s.against
        )
        self._job = FilterJob(command, s.key)
        self._keys: ServedKeys | None = None
        self._job.join_search()
        benchmarks = self._job.judge.benchmarks
        if benchmarks is not None and benchmarks.digest != s.digest:
            raise DataError(
                f"{', '.join(evals)}: not the lines that the command has read: hosts see different "
                "files, or one was changed. Run it again"
            )

    def train(self, block: Block) -> Mapping[str, float]:
        """Run the task, unless its output is there: a lease may be repeated after a lost worker."""
        if isinstance(block.terms, PassRange):
            return self._search(block, block.terms)
        task = task_of(bytes(block.data))
        if self._job.results.done(task) is None:
            self._job.run([task], self.threads)
        done = self._job.results.done(task)
        return {"units": float(done.counts.rows if done is not None else 0)}

    def _search(self, block: Block, terms: PassRange) -> Mapping[str, float]:
        job, number, pass_ = self._job, terms.range_index, terms.pass_index
        search = job.search
        assert search is not None
        if self.settings.phase == "overlaps":
            if pass_:
                search.write_overlaps(number, self.threads)
            else:
                search.write_sets(number, job.source, self.threads)
        elif pass_:
            if self._keys is None:
                self._keys = ServedKeys(self, search.keys)
            search.pass_over(number, pass_ - 1, self._keys, self.threads)
        elif not search.has_keys(search.tasks[number]):
            job.read_keys([search.tasks[number]], self.threads)
        return {"units": 0.0 if pass_ else float(search.rows_of(search.tasks[number]))}
