"""Decides what the end of a job, well or not, means for the cluster, and when the cluster is over.

    the result is written, a failure -> Endings -> the next job may come, the master leaves, or
        all members get the order to end -> they have left, or time is up -> over

What a loss ends is `departure_rules.py`'s, what a signal ends `interrupts.py`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from snailps.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_WRONG
from snailps.master.context import Context
from snailps.master.interrupts import Interrupts
from snailps.master.job.controller import JobController
from snailps.master.job.run_metrics import run_figures
from snailps.master.lifecycle import Lifecycle
from snailps.master.member import NO_PEER, names_of
from snailps.master.membership import Membership
from snailps.master.phases import AT_WORK, JobPhase
from snailps.master.replication.controller import ReplicationController
from snailps.master.replication.shard_reports import ShardReports
from snailps.master.stop_orders import StopOrders
from snailps.node.limits import GOODBYE_S
from snailps.transport import messages

log = logging.getLogger(__name__)

DRIVERS_S = 1.0
"""Seconds that drivers have to hear that the cluster ends."""
_BEGUN = (*AT_WORK, JobPhase.EXPORTING)


class Endings:
    def __init__(
        self,
        context: Context,
        members: Membership,
        lifecycle: Lifecycle,
        stops: StopOrders,
        replication: ReplicationController,
        shard_reports: ShardReports,
        job_controller: JobController,
        interrupts: Interrupts,
        own_rss_mb: Callable[[], float],  # peak resident size of this process, MB
    ) -> None:
        self._life, self._members, self._lifecycle = context.life, members, lifecycle
        self._stops, self._interrupts = stops, interrupts
        self._replication, self._shard_reports = replication, shard_reports
        self._job_controller, self._own_rss_mb = job_controller, own_rss_mb

    # --- of a job ------------------------------------------------------------------------------

    def job_ended(self, now: float) -> None:
        """The result is written."""
        job_controller = self._job_controller
        if self._life.outlives_job:
            self._collect_figures(now)
            job_controller.remember()
            job_controller.end()
            self._interrupts.forget()
        elif job_controller.present.interrupted:
            job = job_controller.job
            share = job.schedule.progress if job is not None else 0.0
            text = f"interrupted after {share:.0%} of the training"
            if job_controller.present.figures.get("files", True):  # a model need not list them
                text += "; the model so far is saved"
            self._lifecycle.stop(EXIT_INTERRUPTED, text)
        else:
            self._lifecycle.stop(EXIT_OK, "")

    def fail_job(self, text: str, code: int = EXIT_FAILED, trace: str = "") -> None:
        """Fail the job, and the cluster unless it outlives the job.

        Then the job's workers are stopped, as user code may hang or requests wait for a
        clock. The next job begins when the old ones are gone and fenced.
        """
        job_controller = self._job_controller
        if self._members.returning and self._interrupts.may_leave:
            # Nothing of the run is lost: servers have its rows, and the journal the rest.
            self._interrupts.leave(text, code)
            return
        if not self._life.outlives_job or job_controller.job is None or self._lifecycle.forming:
            self._lifecycle.fail(text, code)
            return
        if self._lifecycle.stopping:
            return
        log.warning("the job has failed: %s", text)
        begun = job_controller.phase in _BEGUN
        workers = [m for m in self._members.nodes("worker") if begun and not m.finished]
        # Before `abandon` refuses their requests: a worker's log should name the failure, and not
        # the refusal that follows from it.
        self._stops.send_away(workers, text, self._lifecycle.now)
        job_controller.abandon(text, self._lifecycle.now, trace, is_wrong=code == EXIT_WRONG)
        self._replication.figures()  # metrics of this job are not the next one's
        self._interrupts.forget()

    def export_cancelled(self, text: str, code: int | None = None) -> None:
        # Where a job goes on, another master can export: servers keep the rows that long.
        if self._interrupts.may_leave and self._life.job_goes_on:
            self._interrupts.leave(text, code)
        else:
            self.fail_job(text, EXIT_INTERRUPTED if code is None else code)

    def rows_unsaved(self, text: str) -> None:
        """End a session whose rows cannot be saved: they stay with the servers for another master,
        if one can go on."""
        if self._interrupts.may_leave:
            self._interrupts.leave(text, EXIT_FAILED)
        else:
            self._lifecycle.fail(text)

    def _collect_figures(self, now: float) -> None:
        self._job_controller.present.figures = run_figures(
            self._members, self._replication, self._shard_reports, self._job_controller,
            self._own_rss_mb(), now,
        )  # fmt: skip

    # --- of the cluster ------------------------------------------------------------------------

    def send_stop(self, broken: bool, text: str) -> None:
        """Order all members to end."""
        self._job_controller.looks.close()
        stop = messages.Stop(broken, text)
        for member in list(self._members.all.values()):
            member.stopped()
            self._members.send(member, stop)

    def step(self, now: float) -> None:
        """End once all members have left, or `GOODBYE_S` after they got the order to end."""
        stopped_at = self._lifecycle.stopped_at
        here = [member for member in self._members.all.values() if member.peer != NO_PEER]
        assert stopped_at is not None
        nodes = [member for member in here if member.role != "driver"]  # a driver may never look
        limit_s = GOODBYE_S if nodes else DRIVERS_S
        if self._lifecycle.over or (here and now - stopped_at < limit_s):
            return
        if nodes:
            log.warning(
                "%s did not end within %.0f s: see whether they still run",
                names_of(nodes), GOODBYE_S,
            )  # fmt: skip
        job = self._job_controller.job
        if job is not None and job.pass_ == "train" and not self._lifecycle.failed:
            # Now, and not when the order went out: `Bye` has brought the members' last counters.
            self._collect_figures(now)
        self._lifecycle.end()
