"""Makes the case of a member that is lost, fails or is asked to leave, and asks the rules.

    cause, member -> DepartureCases -> Case -> `departure_rules.decide` -> Outcome

Owns what cannot go on without the member: nothing, its job, or the cluster. Must not change
anything: `departures.py` carries the outcome out.
"""

from __future__ import annotations

from snailps.master.context import Context
from snailps.master.departure_rules import Case, Cause, Ends, Moment, Outcome, decide
from snailps.master.job.controller import JobController
from snailps.master.lifecycle import Lifecycle
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.master.phases import AT_WORK, JobPhase


class DepartureCases:
    def __init__(
        self,
        context: Context,
        members: Membership,
        lifecycle: Lifecycle,
        job_controller: JobController,
    ) -> None:
        self._members, self._lifecycle = members, lifecycle
        self._job_controller, self._life = job_controller, context.life
        self._recovers = context.settings.on_node_loss == "recover"
        # Whether another process may come for one that goes while the cluster forms.
        self._is_replaced = self._recovers and self._life.outlives_drivers
        self.rule = f"on_node_loss is '{context.settings.on_node_loss}'"
        """Why a loss ends what it ends, for the verdict."""
        not_replaced = (
            "the processes of a session are not replaced" if self._recovers else self.rule
        )
        self.why_not_replaced = f"Its own log may say more; {not_replaced}"
        self.why_job_ends = "no other worker is left" if self._recovers else self.rule

    def decide(self, cause: Cause, member: Member) -> Outcome:
        ends = self._failure_ends(member) if cause is Cause.FAILED else self._loss_ends(member)
        return decide(
            Case(cause, self._moment, member.role, member.joined, member.stay, member.dropped, ends)
        )

    @property
    def _moment(self) -> Moment:
        if self._lifecycle.stopping:
            return Moment.STOPPING
        # The cluster may form meanwhile, too. While members come back a loss is not judged: what
        # the member had is in the reports of others, which are not all here.
        if self._members.returning:
            return Moment.RETURNING
        if self._lifecycle.forming:
            return Moment.FORMING
        return Moment.AT_WORK if self._job_controller.phase in AT_WORK else Moment.FORMED

    def _loss_ends(self, member: Member) -> Ends:
        """What cannot go on without a member that is lost."""
        if self._lifecycle.forming:
            return Ends.NOTHING if self._is_replaced else Ends.CLUSTER
        workers = (other for other in self._members.all.values() if other.role == "worker")
        goes_on = self._recovers and (
            # The planner calls `rows_lost` if it had a shard's only copy.
            member.role == "server"
            or self._job_controller.phase is JobPhase.EXPORTING  # the servers have the model
            or any(other.joined and other is not member for other in workers)
            or (self._job_controller.can_wait and self._life.job_waits)
        )
        if goes_on:
            return Ends.NOTHING
        # A worker has no rows: only a job ends with the last one, where the cluster outlives jobs.
        outlives_it = self._life.outlives_job and member.role == "worker"
        return Ends.JOB if outlives_it else Ends.CLUSTER

    def _failure_ends(self, member: Member) -> Ends:
        """What cannot go on after a worker's failure: nothing, if only that worker is concerned."""
        at_work = self._job_controller.phase in (JobPhase.RESTORING, *AT_WORK, JobPhase.EXPORTING)
        is_alone = (
            member.dropped  # the training ends without it
            # A newcomer that has trained nothing: the others have shown that the code works.
            or (member.late and not member.work.begun)
            or (self._life.outlives_job and not (at_work or self._lifecycle.forming))
        )
        return Ends.NOTHING if is_alone else Ends.JOB
