"""Refuses a checkpoint that a job, or the tables of a session, cannot continue from.

    manifest of a candidate, record -> check_same, check_rows -> ConfigError, or nothing

A checkpoint of the same job has the same class, input files, and settings but `RESUMED_WITH`. Rows
of any job need the same fragments, and access methods that are admitted. Runs beside the loop.
"""

from __future__ import annotations

from snailps.api.tables import Table
from snailps.config.fields import settings_of
from snailps.errors import ConfigError
from snailps.master.job.record import MAY_DIFFER
from snailps.master.job.session import SESSION, Record, SessionJob
from snailps.master.membership import Membership
from snailps.master.services import Candidate

SHOWN_CHARS = 60
"""Length to which a setting is cut in an error."""
RESUMED_WITH = {
    *MAY_DIFFER,
    "input", "output", "test", "formats", "epochs", "max_steps", "max_seconds", "target_loss",
    "rounds", "target", "deadline",
}  # fmt: skip
"""Settings that may differ when a job resumes. Instead of `input` the files found are compared."""


class CheckpointMatch:
    def __init__(self, members: Membership) -> None:
        self._members = members  # for fragments, and for tables that are declared already

    def check_same(self, record: Record, candidate: Candidate) -> None:
        """Refuse the checkpoint of another job."""
        saved, present = candidate.manifest.job, record.identity(RESUMED_WITH)
        # A checkpoint of an earlier version lacks newer settings, which have no effect while they
        # are empty, and may have values of settings that this job does not read: neither makes
        # another job of it, and a value that is not read could not be given to match.
        declared = settings_of(type(record.settings))
        unread = {
            name for name, setting in declared.items() if not setting.is_read(record.settings)
        }
        names = [n for n in present if n not in unread and saved.get(n, "") != present[n]]
        if "worker_class" in names:  # the models have other settings, too
            names = ["worker_class"]
        differ = []
        if sorted(candidate.sources) != sorted(record.sources):
            differ.append("the input has other files, or files of other lengths")
            # settings that it completes itself
            names = [name for name in names if name not in record.completed]
        differ += [
            f"{name} is {present[name]:.{SHOWN_CHARS}} here and "
            f"{saved.get(name, 'not set'):.{SHOWN_CHARS}} there"
            for name in names
        ]
        differ += self._differs_in_fragments(candidate)
        if differ:
            # `--fresh` gives up checkpoints of jobs, or of sessions, but not of the other.
            is_other = SESSION in (saved.get("worker_class"), present["worker_class"])
            anew = "" if is_other and "worker_class" in names else ", or begin anew with --fresh"
            raise ConfigError(
                f"{candidate.path} is a checkpoint of another job: {'; '.join(differ[:3])}. Choose "
                f"another checkpoint_dir{anew}"
            )
        self._check_methods(record, candidate)

    def check_rows(self, record: SessionJob, candidate: Candidate) -> None:
        """Refuse rows that this cluster cannot take, of whichever job they are."""
        if differ := self._differs_in_fragments(candidate):
            raise ConfigError(
                f"{candidate.path}: {differ[0]}: fragments are fixed for the life of a model. "
                f"Start the master with frag_num={candidate.manifest.frag_num}"
            )
        self._check_methods(record, candidate)

    def _differs_in_fragments(self, candidate: Candidate) -> list[str]:
        here, there = self._members.frag_num, candidate.manifest.frag_num
        return [] if here == there else [f"frag_num is {here} here and {there} there"]

    def _check_methods(self, record: Record, candidate: Candidate) -> None:
        tables = [Table.from_dict(item["table"]) for item in candidate.manifest.tables]
        declared = [table for _, table in [*self._members.table_registry.tables.values()]]
        record.check_methods(tables, candidate.path, declared)
