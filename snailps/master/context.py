"""The core as its parts see it: what it was given, and the other parts.

    MasterCore -> Context -> each part, which asks it for another one when it acts

So no part is handed callbacks, and the order in which they are made does not matter. Declarations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from snailps.config import MasterSettings
from snailps.errors import EXIT_FAILED

if TYPE_CHECKING:
    from snailps.master.departures import Departures
    from snailps.master.effects import Outbox
    from snailps.master.heartbeats import HeartbeatMonitor
    from snailps.master.interrupts import Interrupts
    from snailps.master.job.controller import JobController
    from snailps.master.lifecycle import Lifecycle
    from snailps.master.member import Member
    from snailps.master.membership import Membership
    from snailps.master.replication.controller import ReplicationController
    from snailps.master.services import Services


class Context(Protocol):
    settings: MasterSettings
    services: Services  # work beside the loop
    cluster_id: int  # number of this forming of the cluster; nodes of another one are refused
    session: bool  # jobs are submitted
    lasting: bool  # the session outlives its drivers; workers of a failed job begin anew
    begun: float  # monotonic seconds
    own_rss_mb: Callable[[], float]  # peak resident size of the master's process, MB
    out: Outbox
    lifecycle: Lifecycle
    members: Membership
    heartbeats: HeartbeatMonitor
    job_controller: JobController
    interrupts: Interrupts
    replication: ReplicationController
    departures: Departures

    @property
    def is_idle(self) -> bool:
        """Whether no job is at work, nor the class of one being loaded."""

    def ready(self, member: Member, now: float) -> None:
        """A member took the route."""

    def fail_job(self, text: str, code: int = EXIT_FAILED, trace: str = "") -> None:
        """Fail the job of a session, else the cluster."""

    def export_cancelled(self, text: str) -> None:
        """The export was ended before the result was complete."""

    def job_ended(self, now: float) -> None:
        """The result is written."""

    def save_last(self, then: Callable[[], None]) -> None:
        """Save the rows of a session, where it makes checkpoints, and end it by `then`."""

    def server_lost(self, member: Member, why: str, now: float) -> None:
        """A server is gone, and what it saved or loaded with it."""

    def driver_gone(self, driver: Member) -> None:
        """A driver has left or is lost."""
