"""Declares the lives of a cluster: whose jobs it runs, and what it outlives.

                       COMMAND          SESSION           LASTING
    a driver is        the command      a Python process  many Python processes
    a job comes from   its settings     its driver        any driver
    it ends after      its job          its driver        `Shutdown`, or a signal

A value, and the only place that knows more than one life. Other parts ask for what a life does, by
the name of a column, and never which life it is (docs/design/lives.md has the columns by event).
"""

from __future__ import annotations

from snailps.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Life:
    name: str

    drivers_work: bool
    """Drivers submit jobs, make tables and save rows; the journal has them, and a master that takes
    over waits for them. Else a driver only watches: its loss means nothing."""

    outlives_job: bool
    """The next job follows, whether a job ends well or fails. Rows stay until it begins, and its
    driver gets the error."""

    outlives_drivers: bool
    """The end of the last driver ends nothing. Somebody else started the processes and may start
    them again: so it has a journal, and waits for a replacement while the cluster forms."""

    job_waits: bool
    """A job without a worker waits for another one. Otherwise it fails: its driver is there, and
    may submit it again."""

    job_goes_on: bool
    """A master that takes over continues the job. Otherwise it cannot, as only the driver has the
    class of the job: the journal has the job's end alone, and the job fails with its master."""

    workers_restart: bool
    """A worker that is stopped with its job, or fails, restarts by itself and joins again."""

    forms_without_worker: bool
    """The cluster is complete without a worker: drivers' tables need servers only."""


COMMAND = Life(
    "command",
    drivers_work=False,
    outlives_job=False,
    outlives_drivers=True,
    job_waits=True,
    job_goes_on=True,
    workers_restart=False,
    forms_without_worker=False,
)
SESSION = Life(
    "session",
    drivers_work=True,
    outlives_job=True,
    outlives_drivers=False,
    job_waits=False,
    job_goes_on=False,
    workers_restart=False,
    forms_without_worker=True,
)
LASTING = Life(
    "lasting session",
    drivers_work=True,
    outlives_job=True,
    outlives_drivers=True,
    job_waits=False,
    job_goes_on=False,
    workers_restart=True,
    forms_without_worker=True,
)
LIVES = (COMMAND, SESSION, LASTING)
