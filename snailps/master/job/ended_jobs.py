"""Owns the results of a session's ended jobs, for the drivers that ask for them.

    keep(number, EndedJob) <- the master    ended_jobs[number].report() -> an answer

    facts of an earlier master -> replay: the job that was at work has failed with that master,
                                          and may be repeated if nothing would be pushed twice

Keeps the last `ENDED_MAX`, and the calls that wait for the present job. Must not know phases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from snailps.api.tables import Table
from snailps.dataclass import dataclass
from snailps.errors import ClusterError
from snailps.master.effects import Fact, Outbox
from snailps.outward import outward, without_secrets
from snailps.transport import messages
from snailps.transport.control.encoded import Encoded

ENDED_MAX = 16
"""Ended jobs that are kept: drivers may ask late."""
MASTER_DIED = (
    "the master was lost while the job ran, and was started again: what the job had trained is "
    "dropped, unless it has checkpoints. Submit it again"
)
SHARED = (
    "the master was lost while the job ran, and was started again. Tables of the session ({}) keep "
    "what the job may have pushed to them, and the job is not repeated, as that would apply these "
    "pushes twice. Submit it again if it only reads these tables, or once they are as they were "
    "(`Cluster.load`); a job that makes checkpoints goes on from its newest one"
)


@dataclass(slots=True)
class EndedJob:
    """What a job of a session leaves: figures, failure, tables."""

    settings: Mapping[str, str]
    figures: Mapping[str, Any]
    failure: str = ""  # why it failed; empty if it ended well
    trace: str = ""  # where in the user's code it failed
    # None if the job failed, or once the next job has begun and these are dropped
    tables: Mapping[str, tuple[int, Table]] | None = None
    summary: Encoded | None = None
    again: bool = False  # it failed with the master: the same job may be submitted again
    is_wrong: bool = False  # it failed for its input or a setting

    def report(self) -> messages.Report:
        numbered = None
        if self.tables is not None:
            numbered = [[number, table.to_dict()] for number, table in self.tables.values()]
        return messages.Report(
            {
                "settings": dict(self.settings),
                "figures": dict(self.figures),
                "failure": self.failure,
                "trace": self.trace,
                "tables": numbered,
                "again": self.again,
                "is_wrong": self.is_wrong,
            }
        )

    @classmethod
    def of_report(cls, data: Mapping[str, Any]) -> EndedJob:
        """The inverse of `report`, without a summary."""
        tables = {}
        for number, item in data["tables"] or ():
            table = Table.from_dict(item)
            tables[table.name] = (number, table)
        return cls(
            data["settings"], data["figures"], data["failure"], data["trace"],
            None if data["tables"] is None else tables, None, data["again"],
            data.get("is_wrong", False),
        )  # fmt: skip


class EndedJobs:
    """The last ended jobs, by number."""

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._jobs: dict[int, EndedJob] = {}
        self._calls: list[int] = []  # that ask for the present job, answered at its end
        self.newest = 0
        """The job that began last."""
        self.cut_short = False
        """A job was at work when the earlier master died."""
        # Tables of the session that the newest job's workers have declared; and tables that its
        # newest checkpoint restores.
        self._shared: set[str] = set()
        self._restored: set[str] = set()

    def __contains__(self, number: int) -> bool:
        return number in self._jobs

    def __getitem__(self, number: int) -> EndedJob:
        ended = self._jobs.get(number)
        if ended is None:
            raise ClusterError(
                f"no job {number} is known to have ended: the master remembers the last {ENDED_MAX}"
            )
        return ended

    def note(self, settings: Mapping[str, str]) -> None:
        """Note the job that has just begun."""
        shown = outward(settings, without_secrets)
        self._out.journal("job", {"number": self.newest, "settings": shown})
        self._shared, self._restored = set(), set()

    def share(self, tables: Iterable[str]) -> None:
        """Note that the newest job may push to these tables of the session, before it does."""
        if not self._shared.issuperset(names := {*tables}):
            self._shared |= names
            self._out.journal("shared", {"job": self.newest, "tables": sorted(self._shared)})

    def saved(self, tables: Iterable[str]) -> None:
        """Note that the newest job goes on from a checkpoint with these tables."""
        if self._restored != (names := {*tables}):
            self._restored = names
            self._out.journal("restores", {"job": self.newest, "tables": sorted(names)})

    def replay(self, fact: Fact) -> None:
        """Take a fact of an earlier master; facts of other subjects are skipped."""
        if fact.kind == "job":
            self.newest, self.cut_short = fact.data["number"], True
            failed = EndedJob(fact.data["settings"], {}, MASTER_DIED, again=True)
            self._jobs[self.newest] = failed
            self._shared, self._restored = set(), set()
        elif fact.kind in ("shared", "restores") and fact.data["job"] == self.newest:
            tables = set(fact.data["tables"])
            self._shared, self._restored = (
                (tables, self._restored) if fact.kind == "shared" else (self._shared, tables)
            )
            if self.cut_short:
                twice = sorted(self._shared - self._restored)
                failed = self._jobs[self.newest]
                failed.again = not twice
                failed.failure = SHARED.format(", ".join(twice)) if twice else MASTER_DIED
        elif fact.kind == "ended":
            self.cut_short = False
            self._jobs[fact.data["number"]] = EndedJob.of_report(fact.data["job"])

    def keep(self, ended: EndedJob) -> None:
        """Keep the newest job, which has just ended, and answer the calls that wait for it."""
        self._jobs[self.newest] = ended
        job = outward(ended.report().data, without_secrets)
        self._out.journal("ended", {"number": self.newest, "job": job})
        for old in list(self._jobs)[:-ENDED_MAX]:
            del self._jobs[old]
        for call in self._calls:
            self._out.reply(call, ended.report())
        self._calls.clear()

    def wait(self, call: int) -> None:
        """Answer a call once the present job has ended."""
        self._calls.append(call)

    def forget_tables(self) -> None:
        """Forget tables and summaries, which are gone once the next job begins."""
        for ended in self._jobs.values():
            ended.tables = ended.summary = None
