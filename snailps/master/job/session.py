"""Owns what a session is to its journal and its checkpoints: a job whose schedule is empty.

    the master's settings -> SessionJob -> identity, state, tables that it admits
                                        -> takeover.py, checkpoints.py

Its rows are its drivers' tables; it has no blocks. Must not know connections.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from snailps.api.tables import Table
from snailps.config import CheckpointSettings, RawConfig
from snailps.errors import ConfigError
from snailps.master.job.record import JobRecord
from snailps.master.job.state import JobState
from snailps.master.leases.schedule import NO_RECORDS
from snailps.master.leases.shared import no_schedule
from snailps.master.table_registry import admits

SESSION = "session"
"""In place of a job's class in journals and manifests."""


class SessionJob:
    """What journal and checkpoints use, like the `JobRecord` of a job."""

    unit = "rows"
    goes_on = "the session goes on"
    sources: tuple[tuple[str, int], ...] = ()  # no file is read
    completed: tuple[str, ...] = ()

    def __init__(
        self,
        raw: RawConfig,
        also_known: Iterable[type[Any]] = (),
        modules: Collection[str] = (),  # whose access methods its tables may name
    ) -> None:
        self.settings = raw.build(CheckpointSettings, also_known=also_known)
        self.schedule = no_schedule()
        self._modules = modules

    @property
    def output(self) -> str:
        """Nothing is written."""
        return ""

    def plain_settings(self) -> Mapping[str, str]:
        """Settings for a manifest. The settings of its checkpoints are not among them: they belong
        to the place where rows are saved, not to the rows."""
        return {"worker_class": SESSION}

    def identity(self, may_differ: Collection[str]) -> dict[str, str]:
        return {"worker_class": SESSION}

    def dump(self, now: float, *, clock: int = -1) -> JobState:
        about = {"clock": 0, "figures": {}, "block_bytes": 0, "has_summary": False}
        about |= {"sources": [], "paths": []}
        return JobState(about, {"outcomes": NO_RECORDS, "cuts": np.zeros((0, 3), np.int64)})

    def describe_share(self, share: float) -> str:
        return "the tables of the session"

    def check_methods(
        self, tables: Iterable[Table], where: str, known: Iterable[Table] = ()
    ) -> None:
        """Refuse tables of a file with classes that neither `modules` nor `known` tables name."""
        admitted = {table.access for table in known}
        for table in tables:
            if (
                table.in_python
                and table.access not in admitted
                and not admits(table, self._modules)
            ):
                raise ConfigError(
                    f"{where}: table {table.name!r} has the access method {table.access}. A file "
                    "alone imports no module: add this module to 'modules' at the master"
                )


Record = JobRecord | SessionJob
"""What a journal or a checkpoint is of."""
