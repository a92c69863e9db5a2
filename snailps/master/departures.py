"""Carries out what the loss or departure of a member means for the cluster and its job.

    Gone, silence, Failed, Leaving, Bye -> Departures: `departure_cases.py` -> Outcome
        -> the job continues without the member, waits for a replacement, or ends

Owns the order in which things are done about a member that goes: its phase, its place among the
members, its fence, its blocks and shards. Must not know how blocks are released (`LeaseService`) or
shards change over (`ReplicationController`). `now` is monotonic seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from snailps.errors import EXIT_FAILED, EXIT_OK, EXIT_WRONG
from snailps.master.context import Context
from snailps.master.departure_cases import DepartureCases
from snailps.master.departure_rules import Cause, Outcome
from snailps.master.effects import Forget
from snailps.master.forming import Forming
from snailps.master.job.controller import JobController
from snailps.master.job.present import FailJob
from snailps.master.job.submissions import Submissions
from snailps.master.lifecycle import Lifecycle
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.master.phases import Stay
from snailps.master.replication.controller import ReplicationController
from snailps.master.session_rows import SessionRows
from snailps.master.stop_orders import StopOrders
from snailps.node.status import EventKind
from snailps.transport import messages

log = logging.getLogger(__name__)

_NO_CHECKPOINTS = (
    "There are no checkpoints (checkpoint_interval), so the same command starts from the beginning"
)


class Departures:
    def __init__(
        self,
        context: Context,
        members: Membership,
        lifecycle: Lifecycle,
        forming: Forming,
        stops: StopOrders,
        cases: DepartureCases,
        replication: ReplicationController,
        job_controller: JobController,
        session_rows: SessionRows,
        submissions: Submissions,
        fail_job: FailJob,
    ) -> None:
        self._out, self._members, self._lifecycle = context.out, members, lifecycle
        self._forming, self._stops, self._cases = forming, stops, cases
        self._outlives_drivers = context.life.outlives_drivers
        self._replication, self._shard_orders = replication, replication.shard_orders
        self._job_controller, self._session_rows = job_controller, session_rows
        self._transfers = job_controller.checkpoints.transfers
        self._submissions, self._fail_job = submissions, fail_job
        self._losses = self._loss_table()

    # --- losses --------------------------------------------------------------------------------

    def _event(self, kind: EventKind, member: Member, text: str) -> None:
        if member.role != "driver":
            name = member.short_name
            self._out.happened(kind, name, f"{name} {text}")

    def unready(self, member: Member, text: str, now: float) -> None:
        """Drop a member that cannot reach every server: it would fail at the first such row."""
        self._stops.send(member, f"{member.name} {text}")
        self._members.disconnect(member)
        self.lose(member, text, now)

    def expel(self, member: Member, why: str, now: float, after: str = "") -> None:
        """Declare a member lost that may still run, and order it to end.

        `why` and `after` (what follows on its loss) reach its own log, if it can still be reached.
        """
        after = after or ("start it again" if self._lifecycle.forming else "others do its work")
        if member.role == "driver":
            after = "it may connect again"
        text = f"the master declared it lost, {why}; {after}"
        self._stops.send(member, text)
        self._members.disconnect(member)
        self.lose(member, why, now)

    def lose(self, member: Member, why: str, now: float) -> None:
        """Handle a member that is gone: orderly after Bye, else lost.

        Called for a closed connection, silence, and every expulsion; only the first call counts.
        """
        outcome = self._cases.decide(Cause.LOST, member)
        if outcome is not Outcome.IGNORED:
            self._out.put(Forget(member.number))
            self._losses[outcome](member, why, now)

    def _loss_table(self) -> dict[Outcome, Callable[[Member, str, float], None]]:
        """Methods by outcome; each begins with the phase of the member."""
        return {
            Outcome.NOTED: lambda member, why, now: member.was_lost(),
            Outcome.MISSED: self._miss,
            Outcome.STILL_MISSED: lambda member, why, now: None,
            Outcome.SENT_AWAY: self._end_with_job,
            Outcome.DRIVER_GONE: self._lose_driver,
            Outcome.WAITED_FOR: self._form_on,
            Outcome.LEFT_FORMING: self._form_on_after_goodbye,
            Outcome.UNFORMED: self._end_forming,
            Outcome.NEWCOMER_GONE: self._lose_newcomer,
            Outcome.WORKER_LEFT: self._let_worker_leave,
            Outcome.WORKER_SPARED: self._spare_worker,
            Outcome.WORKER_LOST: self._lose_worker,
            Outcome.SERVER_LEFT: self._let_server_leave,
            Outcome.SERVER_LOST: self._lose_server,
            Outcome.JOB_ENDED: self._end_job,
            Outcome.CLUSTER_ENDED: self._end_cluster,
        }

    def _miss(self, member: Member, why: str, now: float) -> None:
        self._out.say(f"{member.name} is missed: {why}", logging.WARNING)
        member.was_missed(why)

    def _end_with_job(self, member: Member, why: str, now: float) -> None:
        member.was_lost()
        self._members.remove(member, lost=True)
        self._shard_orders.fence(member.number, now)

    def _lose_driver(self, member: Member, why: str, now: float) -> None:
        member.was_lost()
        self._members.remove(member, lost=True)
        # A driver that has declared no table can have pushed to none: no fence. While members
        # return, `Resumption` fences those that are gone.
        if member.declared and not (self._lifecycle.forming or self._members.returning):
            self._shard_orders.fence(member.number, now)
        self._submissions.driver_gone(member)
        if not (self._outlives_drivers or self._members.nodes("driver")):
            stop = partial(self._lifecycle.stop, EXIT_OK, "the driver is gone")
            self._session_rows.save_last(stop)

    def _form_on(self, member: Member, why: str, now: float) -> None:
        member.was_lost()
        self._event("lost", member, f"was lost ({why}); another one is waited for")
        self._forming.lost(member, f"is lost: {why}", now)

    def _form_on_after_goodbye(self, member: Member, why: str, now: float) -> None:
        member.was_lost()
        self._event("left", member, "left as asked; another one is waited for")
        self._forming.lost(member, "left as asked", now)

    def _end_forming(self, member: Member, why: str, now: float) -> None:
        member.was_lost()
        self._lifecycle.fail(
            f"{member.name} is lost while the cluster forms: {why}. {self._cases.why_not_replaced}"
        )

    def _lose_newcomer(self, member: Member, why: str, now: float) -> None:
        member.was_lost()
        self._members.remove(member)
        text = f"{member.name} is gone while it joined: {why}. The job goes on"
        self._out.say(text, logging.WARNING, reported=True)
        self._event("lost", member, f"was lost while it joined ({why}); the others go on")

    def _release(self, member: Member, now: float, *, lost: bool = True) -> int:
        """Remove a worker and give its blocks to the others; how many."""
        leases = self._job_controller.leases
        # Removed first: else what it gives back could be leased to it.
        self._members.remove(member, lost=lost)
        # Then fenced, as it may only be slow; even if it left in order: a repetition of its last
        # pushes may still be on a connection that broke. Whether its work also waits until all
        # shards have executed the fence is the schedule's to say (`Schedule.needs`): rotations and
        # ranges wait, as two writers of a row would tear it. Elsewhere a push that comes late is
        # like one from just before the loss: its block is trained again, so that part counts twice,
        # or it is dropped when another worker seals its slot.
        self._shard_orders.fence(member.number, now, leases.last_of(member))
        return leases.released(member, now)

    def _let_worker_leave(self, member: Member, why: str, now: float) -> None:
        member.was_lost()
        returned = self._release(member, now, lost=False)
        self._out.say(f"{member.name} left, {returned} blocks returned")
        self._event("left", member, "left; the others go on")

    def _spare_worker(self, member: Member, why: str, now: float) -> None:
        member.was_lost()
        self._release(member, now)
        text = f"is given up as the training ends: {why}"
        self._out.say(f"{member.name} {text}", logging.WARNING)
        self._event("lost", member, text)

    def _lose_worker(self, member: Member, why: str, now: float) -> None:
        """Release a worker's blocks to the others, and count the loss at the block it was at."""
        member.was_lost()
        # The block to blame is known only while the worker holds it.
        culprit = self._job_controller.leases.blame(member)
        returned = self._release(member, now)
        who = "The others go on" if self._members.nodes("worker") else "It was the last worker"
        leased = f"{returned} block{'' if returned == 1 else 's'} to be leased again"
        self._out.say(
            f"{member.name} is lost: {why}. {who}, {leased}", logging.WARNING, reported=True
        )
        what = "the others go on" if self._members.nodes("worker") else "another one is waited for"
        if returned:
            blocks = "its block" if returned == 1 else f"its {returned} blocks"
            what += f", {blocks} will be trained again"
        self._event("lost", member, f"was lost ({why}); {what}")
        if culprit:
            self._fail_job(culprit)

    def _let_server_leave(self, member: Member, why: str, now: float) -> None:
        member.was_lost()
        self._members.remove(member)
        self._out.say(f"{member.name} left")
        self._event("left", member, "left; other servers have its shards")
        self._without_server(member, "it left", "left", now)

    def _lose_server(self, member: Member, why: str, now: float) -> None:
        member.was_lost()
        heirs = self._replication.heirs_text(member.number)  # before the planner forgets the server
        self._members.remove(member)
        self._out.say(f"{member.name} is lost: {why}", logging.WARNING, reported=True)
        self._event("lost", member, f"was lost ({why}); {heirs}")
        self._without_server(member, why, why, now)

    def _without_server(self, server: Member, why: str, shards_why: str, now: float) -> None:
        """Fail or restart the checkpoints in which it takes part, and promote its standbys."""
        self._transfers.lost(server, why, now)
        self._replication.lost(server, shards_why, now)

    def _end_job(self, member: Member, why: str, now: float) -> None:
        text = self._lose_for_good(member, why, self._cases.why_job_ends)
        self._members.remove(member, lost=True)
        self._shard_orders.fence(member.number, now)
        self._out.say(text, logging.WARNING)
        if self._job_controller.job is not None:
            self._fail_job(text)

    def _end_cluster(self, member: Member, why: str, now: float) -> None:
        self.rows_lost(self._lose_for_good(member, why, self._cases.rule))

    def _lose_for_good(self, member: Member, why: str, rule: str) -> str:
        """Report a loss that ends the job or the cluster; the verdict."""
        asked = member.stay is Stay.LEAVING
        member.was_lost()
        what = "was asked to leave, and is gone" if asked else f"is lost: {why}"
        self._event("lost", member, f"{what}; {rule}")
        return f"{member.name} {what}. Its own log may say more; {rule}"

    def rows_lost(self, text: str) -> None:
        """End the cluster because rows are lost; the verdict says where a new run continues."""
        places = self._session_rows.checkpoints.place, self._job_controller.checkpoints.place
        advice = next(filter(None, (place.advice() for place in places)), _NO_CHECKPOINTS)
        self._lifecycle.fail(f"{text}. {advice}")

    # --- notes of members ----------------------------------------------------------------------

    def failed(self, member: Member, message: messages.Failed, now: float) -> None:
        """A worker reports a failure of the user's code, or of its settings: end the job.

        Only workers send this message: what fails in a server or a driver is noticed as its loss.
        """
        text = f"failed: {message.text}"
        # Another worker would fail likewise, so it is not replaced; `_failure_ends` has exceptions.
        outcome = self._cases.decide(Cause.FAILED, member)
        if outcome is Outcome.STOPPED:
            self._stop_alone(member, text, now)
        elif outcome is Outcome.JOB_FAILED:
            code = EXIT_WRONG if message.is_wrong else EXIT_FAILED
            self._fail_job(f"{member.name} {text}", code, message.trace)

    def _stop_alone(self, member: Member, text: str, now: float) -> None:
        self._event("lost", member, f"{text}; the others go on")
        self._stops.send_unhurried(member, text, now)
        self._members.remove(member)
        self._members.left.remove(member)
        self._shard_orders.fence(member.number, now)
        self._job_controller.leases.released(member, now)
        away = f"{member.name} is stopped, the others go on: {text}"
        self._out.say(away, logging.WARNING)
        self._out.put(Forget(member.number))
        member.was_lost()

    def bye(self, member: Member, message: messages.Bye, now: float) -> None:
        """Note that a member ends in order, and its last figures; its connection closes next."""
        member.said_bye(message.figures)

    def leave(self, member: Member, now: float) -> None:
        """SIGTERM at a member: a worker first finishes its block, a server's shards move away."""
        outcome = self._cases.decide(Cause.ASKED, member)
        if outcome is Outcome.DRAINED:
            self._replication.drain(member.number, now)
        elif outcome is Outcome.UNFORMED_AS_ASKED:
            self._lifecycle.fail(
                f"{member.name} was asked to leave (SIGTERM) while the cluster forms. "
                f"{self._cases.why_not_replaced}"
            )
        elif outcome is not Outcome.IGNORED:
            member.asked_to_leave()
            if outcome is not Outcome.WORKER_ENDS_BLOCK:
                self._members.send(member, messages.Stop(False, "left as asked"))
            if outcome is not Outcome.SERVER_LET_GO:
                self._job_controller.leases.leaving(member, now)
