"""Decides when the model inspects its own tables: during the training, and after each round.

    due -> ModelAccess (numbers, tables, metrics) -> Work(services.reader ...) -> result

Makes what any reading of the tables needs, also for the export (`reading`); `model_reader.py` reads
them. `now` is monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from snailps.dataclass import replace
from snailps.master.effects import Outbox
from snailps.master.job.job import Job
from snailps.master.membership import Membership
from snailps.master.services import InspectionResult, ModelAccess, Reader
from snailps.node.effects import WorkDone

INSPECTIONS = 10
"""Inspections during one training."""
SHARE_MAX = 0.05
"""Share of the time of a training that its inspections take, but for the first two."""
NUMBERS = 3
"""Incarnations for one reading of the tables: an export connects up to three times."""
MAP_S = 3.0
"""Least seconds between two maps, whoever asks: each map connects to every shard."""
MAPPED_SHARDS_MAX = 64
"""Most shards of a cluster that draws maps."""
SHARP_FROM = 0.02
"""Share of the training after which the directions of rows are worth showing."""


class Inspection:
    def __init__(self, members: Membership, out: Outbox, reader: Reader) -> None:
        # reads the tables, beside the loop
        self._members, self._out, self._reader = members, out, reader
        self._begun = 0  # jobs begun; an older result is ignored
        self._count = 0  # inspections of this training so far; -1: none, nor the one at its start
        self._work = 0  # number of the work of an inspection; 0: none
        self._spent_s = -1.0  # by inspections of this job but the first; -1: before that
        self._mapping = False
        self.last_map: Mapping[str, Any] = {}  # of this job; empty before the first
        self._map_due = 0.0
        self._numbers: Iterator[int] | None = None  # of the connection that serves all rounds

    def begin(self, count: int = -1) -> None:
        """Begin a job, or resume it after `count` inspections."""
        self._begun += 1
        self._count, self._work = count, 0  # the result of another job's inspection is ignored
        self._spent_s = -1.0
        self.last_map = {}

    @property
    def running(self) -> bool:
        return bool(self._work)

    def reading(self, figures: dict[str, Any]) -> ModelAccess:
        """What a reading of the tables that begins now needs."""
        numbers = iter(self._members.reserve(NUMBERS))
        return ModelAccess(numbers, dict(self._members.table_registry.tables), figures)

    def step(self, job: Job, figures: dict[str, Any], now: float) -> None:
        """Have the model's inspector run, once for each tenth of the training, or less often where
        that would take too much of its time; its tester, which may have to read files first, at
        the start, too."""
        due = int(job.progress(now) * INSPECTIONS)
        if due <= self._count or self._work:
            return
        if self._spent_s > SHARE_MAX * job.clock.elapsed_s(now):
            return
        self._count = due
        if due or job.model.by_input.tester is not None:
            reading = self.reading(figures)
            inspect = partial(self._reader.inspect, job, reading, inspects=due > 0, tests=True)
            progress = round(job.progress(now), 3) if due else None
            done = partial(self._done, self._begun, job, progress)
            self._work = self._out.work(inspect, done)

    def _done(
        self, begun: int, job: Job, progress: float | None, done: WorkDone, now: float
    ) -> None:
        if begun != self._begun:
            return
        self._work = 0
        inspection: InspectionResult = done.result or InspectionResult()
        # The first one may have read files for the others.
        self._spent_s = 0.0 if self._spent_s < 0 else self._spent_s + inspection.seconds
        if inspection.tested and progress is not None:
            test = {"progress": progress, **inspection.tested}
            job.inspected = replace(job.inspected, tests=(*job.inspected.tests, (now, test)))

    def map(self, job: Job, then: Callable[[Mapping[str, Any]], None], now: float) -> None:
        """Place named rows in a map; `then` gets it, or the last map of this job if one is not due
        or the cluster has more than `MAPPED_SHARDS_MAX` shards."""
        shards = len(self._members.route.shards) if self._members.route is not None else 0
        if self._mapping or now < self._map_due or not 0 < shards <= MAPPED_SHARDS_MAX:
            then(self.last_map)
            return
        sharp = job.progress(now) >= SHARP_FROM
        read = partial(self._reader.landmarks, job, self.reading({}), sharp=sharp)

        begun = self._begun

        def mapped(done: WorkDone, now: float) -> None:
            self._mapping, self._map_due = False, now + MAP_S
            if done.error is None and begun == self._begun:
                self.last_map = done.result
            then(self.last_map)

        self._mapping = True
        self._out.work(read, mapped)

    def begin_rounds(self) -> None:
        """Prepare rounds: their first inspection connects."""
        self._numbers = None

    def after_round(
        self,
        job: Job,
        round_: int,
        figures: dict[str, Any],
        then: Callable[[WorkDone, float], None],
        now: float,
    ) -> None:
        """Have the model inspect its tables after a round."""
        if not job.model.rounds.inspects:
            then(WorkDone(0, {}), now)
            return
        if self._numbers is None:
            self._numbers = iter(self._members.reserve(NUMBERS))
        workers = len(self._members.nodes("worker"))
        more = {"train_s": round(job.clock.elapsed_s(now), 3), "workers": workers}
        tables = dict(self._members.table_registry.tables)
        reading = ModelAccess(self._numbers, tables, {**figures, **more})
        self._out.work(partial(self._reader.after_round, job, round_, reading), then)
