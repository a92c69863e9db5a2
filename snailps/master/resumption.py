"""Ends the return of an earlier master's members: what they had goes on, or ends, in one step.

    all are back, or given up -> cuts of chunks -> what each worker holds -> losses -> the job

Until then losses are only noted, and messages about the job wait. Whether there is a run to take
over is `takeover.py`'s to say, who comes back `membership.py`'s.
"""

from __future__ import annotations

from functools import partial

from snailps.master.context import Context
from snailps.master.departures import Departures
from snailps.master.effects import Broken
from snailps.master.job.controller import JobController
from snailps.master.job.ended_jobs import MASTER_DIED
from snailps.master.leases.adoption import learn_cuts
from snailps.master.lifecycle import Lifecycle
from snailps.master.membership import Membership
from snailps.master.phases import JobPhase, Stay
from snailps.master.replication.controller import ReplicationController
from snailps.master.stop_orders import StopOrders

_BEFORE = (JobPhase.IDLE, JobPhase.PREPARING, JobPhase.READY)


class Resumption:
    def __init__(
        self,
        context: Context,
        members: Membership,
        lifecycle: Lifecycle,
        stops: StopOrders,
        departures: Departures,
        replication: ReplicationController,
        job_controller: JobController,
    ) -> None:
        self._out, self._job_goes_on = context.out, context.life.job_goes_on
        self._members, self._lifecycle = members, lifecycle
        self._stops, self._departures = stops, departures
        self._shard_orders, self._job_controller = replication.shard_orders, job_controller

    @property
    def is_due(self) -> bool:
        """Whether members have returned, and what they were at is there again: the job is replayed,
        or, where no job goes on, the cluster is formed."""
        if not self._members.returning or self._lifecycle.stopping:
            return False
        if not self._job_goes_on:
            return not self._lifecycle.forming
        return self._job_controller.job is not None and self._job_controller.phase not in _BEFORE

    def go_on(self, now: float) -> None:
        """Resume the job with the members that are back. Messages that came meanwhile are next."""
        self._members.returning = False
        if not self._job_goes_on:
            self._end_job(now)
        here = [m for m in self._members.joined("worker") if m.stay in (Stay.HERE, Stay.LEAVING)]
        back = [member for member in here if member.resume_state]
        # Cuts first, of all workers: what one has done in a chunk is meaningless without its cut,
        # which another one may have.
        job = self._job_controller.job
        if job is not None and job.pass_:
            for member in back:
                self._out.contain(member.peer, partial(learn_cuts, self._out, job, member))
        # Then leases, before any loss is judged: a loss releases blocks, and one that a worker
        # still holds, but has not reported, would go to another.
        for member in here:
            if member.resume_state:
                try:
                    self._job_controller.handout.came_back(member, now)
                except Exception as error:  # in the state that it reported
                    self._out.put(Broken(member.peer, error))
            elif member.has_route:
                self._job_controller.handout.start(member)
        for member in [m for m in self._members.nodes() if m.missed]:
            self._departures.lose(member, member.missed, now)
        self._job_controller.all_back(now)

    def _end_job(self, now: float) -> None:
        """Repeat orders that the lost master may not have given to all servers, and end its job.

        Workers that were at work restart: nobody waits for their results.
        """
        registry = self._members.table_registry
        if registry.drop_strange(now):
            self._job_controller.ended_jobs.forget_tables()
        registry.remake(now)
        gone = list(self._members.numbers.gone)
        if gone:  # one fence names all others (`Fence.gone`)
            self._shard_orders.fence(gone[-1][1], now)
        self._job_controller.checkpoints.transfers.stop_all()
        if self._job_controller.ended_jobs.cut_short:
            here = [m for m in self._members.joined("worker") if not m.missed]
            workers = [member for member in here if member.resume_state.get("started")]
            self._stops.send_away(workers, MASTER_DIED, now)
