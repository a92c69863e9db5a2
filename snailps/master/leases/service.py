"""Answers the calls of workers for blocks, and takes their reports.

    Lease -> waits here -> answer -> Leased      Done, Durable, Finished -> Job, journal, schedule
    CheckOut -> waits here -> CheckedOut             CheckIn -> Job, schedule
    a worker leaves, or is lost -> its blocks go to others       comes back: `adoption.py`

Owns the calls of workers that wait for a block or an output partition, and names what they wait
for; `late_workers.py` decides how long one is waited for at the end. Must not know the phase of the
job (`job/controller.py`), which schedule it has, or connections: an answer has the number of its
call. `now` is monotonic seconds.

A call is answered at once, or waits in one of three places: `_asking` (to be examined in this turn
or the next), `_refused` (there is nothing for this worker until the schedule wakes it), or
`_checking_out`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from snailps.errors import ClusterError, ProtocolError, SnailError, explain
from snailps.master.context import Context
from snailps.master.effects import Broken
from snailps.master.job.ended_jobs import EndedJobs
from snailps.master.job.job import Job
from snailps.master.job.survey import PART_BYTES, PART_BYTES_MAX, PartTurns
from snailps.master.leases.adoption import note_cuts, note_done
from snailps.master.leases.late_workers import LateWorkers
from snailps.master.leases.parts import NO_MORE, NO_PART
from snailps.master.leases.schedule import Schedule
from snailps.master.leases.survey_parts import SurveyParts
from snailps.master.leases.waits import MASTER, Wait
from snailps.master.leases.worker_notes import WorkerNotes
from snailps.master.lifecycle import Lifecycle
from snailps.master.member import Expel, Member
from snailps.master.membership import Membership
from snailps.master.replication.shard_orders import ShardOrders
from snailps.node.effects import WorkDone
from snailps.outward import outward
from snailps.transport import messages
from snailps.transport.messages.terms import ChunkBlock, Step

log = logging.getLogger(__name__)

NAMES_S = 0.2
"""Least seconds between two updates of what workers wait for."""
ANSWERS_MAX = 256
"""Waiting workers examined in one turn, some milliseconds; the next turn continues there."""

Call = tuple[Member, str, int]
"""A worker that asks for a block, the pass that it asks for, and the number to answer."""


class LeaseService:
    """The leases of the present job, if any."""

    def __init__(
        self,
        context: Context,
        members: Membership,
        lifecycle: Lifecycle,
        shard_orders: ShardOrders,
        ended_jobs: EndedJobs,
        expel: Expel,
        retired: Callable[[float], None],  # a worker is gone, and its blocks are to be done again
    ) -> None:
        self.job: Job | None = None
        self._out, self._members, self._lifecycle = context.out, members, lifecycle
        self._shard_orders, self._ended_jobs = shard_orders, ended_jobs
        self._expel, self._retired = expel, retired
        self._asking: deque[Call] = deque()  # to be examined
        self._refused: dict[int, list[Call]] = {}  # by worker, until the schedule wakes it
        # State of the job when `_refused` was filled: once it differs, all may be answered.
        self._seen: tuple[Any, ...] = ()
        # Workers that wait for an output partition: member, number of its lease, the call.
        self._checking_out: list[tuple[Member, int, int]] = []
        self._hand_outs_due = False  # these were not examined, as a lost worker is being fenced
        self.notes = WorkerNotes(context.out, members)
        self.clocks_noted = False
        """The journal has noted that all shards stood at the first clock of the training."""
        self._name_at = 0.0
        self.late = LateWorkers(context.out, self._give_up, context.settings.request_timeout)
        self.over_at = 0.0
        """When the last block of the pass was done, and its workers were waited for; 0: before."""
        self._turns = PartTurns()

    def running(self) -> tuple[Job, Schedule]:
        """The job, and the schedule of its pass; ProtocolError without."""
        if self.job is None or not self.job.pass_:
            raise ProtocolError("there is no job")
        return self.job, self.job.schedule

    def close(self) -> None:
        """Refuse whatever still waits."""
        self._look_at_all()
        for _, _, call in self._asking:
            self._out.reply(call, ClusterError("the job is over"))
        self._asking.clear()
        for _, _, call in self._checking_out:
            self._out.reply(call, ClusterError("the job is over"))
        self._checking_out.clear()
        self._turns = PartTurns()
        self.late.forget()

    # --- what workers ask and say --------------------------------------------------------------

    def lease(self, member: Member, message: messages.Lease, call: int, now: float) -> None:
        """A worker wants a block: answer it with one now, as soon as there is one, or with -1 once
        it is certain that there will be none."""
        if member.dropped:
            self._out.reply(call, messages.Leased(-1))
            return
        job, _ = self.running()
        if message.held and message.pass_ == job.pass_ == "survey":
            self._turns.hold(member.number, message.held)
            member.counted(job.counted(member.number, now))
        if message.again:
            self._lease_again(job, member, message, call, now)
            return
        if message.back:
            # Only a member that has joined: the loss of a newcomer releases no lease, so the clock
            # of this one would stay open for ever.
            wanted = message.pass_ == job.pass_ and member.joined and not member.leaving
            lease = job.lease(member.number, now, back=True) if wanted else None
            self._out.reply(call, lease or messages.Leased(-1))
            return
        self._asking.append((member, message.pass_, call))
        self.answer(now)

    def _lease_again(
        self, job: Job, member: Member, message: messages.Lease, call: int, now: float
    ) -> None:
        """Lease a block whose encoded rows servers have lost to the worker that misses them, even
        while the training ends: the partition that it holds cannot be finished without them."""
        lease = None
        try:
            if message.pass_ == job.pass_ and self._ready(job, message.pass_):
                number, index = message.again
                lease = job.lease_again(number, index, member.number, now)
        except LookupError as error:
            self._out.reply(call, ClusterError(str(error)))
            return
        if lease is not None:
            assert isinstance(lease.terms, ChunkBlock)
            place = f"block {lease.terms.chunk_index} of chunk {lease.terms.chunk}"
            log.warning("%s encodes %s once more: servers have lost it", member.name, place)
        self._out.reply(call, lease or messages.Leased(-1))

    def done(self, member: Member, message: messages.Done, call: int, now: float) -> None:
        """A worker has finished a block: note it, then answer.

        The sequence is a promise: a worker forgets a block once it has the answer, so the journal
        must have the result before. ClusterError if the block is not leased to this worker.
        """
        if member.dropped:
            self._out.reply(call, messages.Enough())
            return
        job, schedule = self.running()
        if message.pass_ == job.pass_ == "survey":
            self._surveyed(job, schedule, member, message, call)
            return
        rounds = schedule.rounds
        void = rounds is not None and rounds.is_void(message.number)
        if job.done(message, member.number, now):
            note_done(self._out, message, member)
        elif not void and not member.resume_state:
            # (A worker of an earlier master may repeat a report that the journal has already.)
            raise ClusterError(f"block {message.number} is not leased to {member.name}")
        self.late.progress(now)
        self._was_done(member, message, call, now)

    def _surveyed(
        self, job: Job, schedule: Schedule, member: Member, message: messages.Done, call: int
    ) -> None:
        """A worker sends a part of the survey. It is merged beside the loop, as that calls the
        model's class, and the worker is answered when it is merged: a part that was answered and
        not merged would be lost with its worker."""
        numbers, parts = [*message.numbers, message.number], schedule.survey
        if parts is None or not parts.merge(numbers, member.number):
            blocks = ", ".join(map(str, sorted(numbers)[:4])) + ", ..." * (len(numbers) > 4)
            raise ClusterError(f"not all of the blocks {blocks} are leased to {member.name}")
        assert job.survey.merge is not None
        merge = partial(job.survey.merge.add, message.number, message.blob)
        then = partial(self._merged, job, schedule, parts, member, message, call)
        self._out.work(merge, then, "survey")

    def _was_done(self, member: Member, message: messages.Done, call: int, now: float) -> None:
        """Answer a worker whose block is done, and others that may continue now."""
        _, schedule = self.running()
        chunks = schedule.chunks
        # A block that was encoded is trained by all, in their partitions: it is counted there.
        encoded = chunks is not None and chunks.numbers.encodes(message.number)
        counts = not (message.numbers or encoded)  # a part of several blocks was counted before
        member.block_done(int(counts), now)
        if message.seconds > 0 and message.pass_ == "train" and not encoded:
            member.rate.trained(message.units, message.seconds, now)
        self._out.reply(call, messages.Enough() if schedule.drops else messages.Ok())
        self.answer(now)
        if member.number in self._refused and not member.waits:
            self._name_wait(schedule, member, now)  # it had asked while it still had this block

    def check_out(self, member: Member, message: messages.CheckOut, call: int, now: float) -> None:
        """A worker wants an output partition; answered when one is free, or none is left."""
        if member.dropped:
            self._out.reply(call, messages.CheckedOut(-1, ends=True))
            return
        self.running()
        self._checking_out.append((member, message.number, call))
        self._hand_out(now)

    def checked_in(self, member: Member, message: messages.CheckIn, now: float) -> None:
        """A worker checks in an output partition. A note on a partition that it does not
        hold is ignored: workers repeat notes after a takeover, and a training that ends takes back
        leases."""
        job = self.job
        if job is None or member.dropped or not job.checked_in(message, member.number, now):
            return
        if message.durable:
            fact = job.make_durable(message.number, member.number)
            if fact is not None:
                self._out.journal("checkouts", fact)
        if message.seconds > 0:
            member.counted(1)
            member.rate.trained(message.units, message.seconds, now, checkout=True)
        self.late.progress(now)
        self.answer(now)  # the speed of this worker may be known now, and let others begin

    def _hand_out(self, now: float) -> None:
        """Answer workers that want an output partition, where one is free."""
        job, self._hand_outs_due = self.job, False
        if job is None or not self._checking_out:
            return
        schedule = job.schedule
        if not (schedule.closed or self._ready(job, "train")):
            # Until a lost worker is fenced at every shard its partition may have two writers.
            self._hand_outs_due = True
            return
        checking_out, self._checking_out = self._checking_out, []
        for asking in checking_out:
            member, number, call = asking
            if member.number not in self._members.all:
                continue
            try:
                if schedule.checkouts is None:
                    raise LookupError("no partition can be checked out: this is no rotation")
                part = schedule.checkouts.check_out(number, member.number)
            except LookupError as error:
                self._out.reply(call, ClusterError(str(error)))
                continue
            if part is None:
                self._checking_out.append(asking)
                continue
            member.wait_for("", now)
            self._out.reply(call, messages.CheckedOut(max(part, NO_PART), ends=part == NO_MORE))

    def _merged(
        self,
        job: Job,
        schedule: Schedule,
        parts: SurveyParts,
        member: Member,
        message: messages.Done,
        call: int,
        done: WorkDone,
        now: float,
    ) -> None:
        """A part of the survey is merged, or cannot be: then its blocks are to be counted again."""
        self._end_turn(member)
        if self.job is not job or job.schedule is not schedule:
            self._out.reply(call, ClusterError("the job is over"))
            return
        if done.error is None:
            job.merged(message, now)
            self._was_done(member, message, call, now)
            return
        log.error(
            "the survey of block %d by %s cannot be merged",
            message.number, member.name, exc_info=done.error,
        )  # fmt: skip
        for number in (*message.numbers, message.number):
            parts.failed(number)
        if member.number in self._members.all:
            error = done.error if isinstance(done.error, Exception) else ClusterError("no memory")
            self._out.put(Broken(member.peer, error))
        else:
            schedule.release(member.number)  # the worker has left meanwhile: `failed` gave it these
            self.answer(now)

    def fetch(self, member: Member, message: messages.Fetch, call: int, now: float) -> None:
        """Send a block's bytes to a worker that cannot open its path; read beside the loop."""
        job, schedule = self.running()
        job.check_fetch(message.number, message.unit)
        read = partial(job.content, message.number, message.unit, message.text)
        self._out.work(read, partial(self._fetched, call), "fetch")
        member.block_fetched(outward(schedule.plan.entry(message.number).piece.path))

    def _fetched(self, call: int, done: WorkDone, now: float) -> None:
        if done.error is None:
            self._out.reply(call, messages.Content(done.result))
        elif isinstance(done.error, SnailError):
            self._out.reply(call, done.error)
        else:
            text = f"the master cannot read the block: {explain(done.error)}"
            self._out.reply(call, ClusterError(text))

    def durable(self, member: Member, message: messages.Durable, now: float) -> None:
        """Note blocks of which all pushes are acknowledged: a checkpoint may include them."""
        if self.job is not None:
            self._out.journal("durable", {"node": member.number, "numbers": message.numbers})
            self.job.schedule.records.make_durable(message.numbers, member.number)

    def finished(self, member: Member, message: messages.Finished, now: float) -> None:
        """Note that a worker has ended its part of the job: it does so when all of its pushes are
        acknowledged, so everything that it has done is durable."""
        if self.job is not None:
            self._out.journal("durable_all", {"node": member.number, "but": []})
            self.job.schedule.records.make_all_durable(member.number)
        member.part_ended(message.figures)
        if self.job is not None and self.job.schedule.drops:
            self.job.schedule.release(member.number)  # a block that it had prefetched and dropped
            self.job.withdraw_checkouts()
            self.answer(now)

    # --- who comes and goes --------------------------------------------------------------------

    def all_back(self, job: Job, now: float) -> None:
        """All members are back or given up: repeat what the lost master may not have sent.

        Each is harmless when it comes twice. `CameBack` has workers look for free slots of the open
        clock, which the lost master may have released without telling them.
        """
        self.answer(now)
        if job.schedule.clocks is not None:
            self.notes.send(messages.CameBack())
        self.notes.repeat()

    def leaving(self, member: Member, now: float) -> None:
        """Give a worker that leaves nothing more; it finishes the block that it trains, and what it
        has only prefetched is released when it is gone."""
        if self.job is not None:
            self._out.journal("leave", {"node": member.number})
            self.job.schedule.leave(member.number)
        self._asking.extend(self._refused.pop(member.number, ()))
        self.answer(now)

    def released(self, member: Member, now: float) -> int:
        """Release the blocks of a worker that is gone, which its fence was ordered for; how many.

        They may be leased before the fence is done where a push that comes late is harmless: like
        one from just before the loss. A schedule `needs` the fence where it is not (a rotation: two
        writers of a row; ranges: rows of an earlier pass).
        """
        job = self.job
        if job is None or not job.pass_:
            return 0
        self.notes.number_changed()
        self._refused.pop(member.number, None)
        self._end_turn(member)
        self._out.journal("retire", {"node": member.number})
        numbers = job.schedule.retire(member.number)
        job.withdraw_checkouts()
        if numbers:
            self._retired(now)
        self.answer(now)
        if numbers and job.schedule.clocks is not None:
            # All may hold later clocks only, and would wait for one that nobody trains.
            self.notes.send(messages.CameBack())
        return len(numbers)

    def last_of(self, member: Member) -> Step | None:
        """The step that a lost worker may have sealed at some shards only; see
        `ShardOrders.fence`."""
        slots = None if self.job is None else self.job.schedule.slots
        return None if slots is None else slots.last_of(member.number)

    def blame(self, member: Member) -> str:
        """Count the loss of a worker at the block that it trained. If that block has cost too many
        workers, return it in words: its bytes kill whoever trains it, and the job must end."""
        job = self.job
        if job is None:
            return ""
        before = job.schedule.losses
        number = job.schedule.blame(member.number)
        for entry in job.schedule.losses.items() - before.items():
            self._out.journal("loss", {"number": entry[0]})
        if number < 0:
            return ""
        piece = job.schedule.plan.entry(number).piece
        place = f" ({piece.path}, bytes {piece.start:,} to {piece.stop:,})" if piece.path else ""
        where = outward(place)
        cost = job.schedule.losses[number]
        return f"block {number}{where} has cost {cost} workers: look at its content"

    def wait_for_late(self, schedule: Schedule, workers: list[Member], now: float) -> bool:
        """Wait for workers whose part of the job is not finished while the training ends; whether
        there are any.

        A worker that has had a block is waited for once no further one is leased (`closed`), and
        given up by `late_workers.py`. A worker that has had none has nothing to lose, and is given
        up as soon as no worker has made progress for `DROP_S`.
        """
        slots = schedule.slots
        waits_for_copy = slots is not None and slots.waits_for_copy
        waits_for_master = waits_for_copy or self._members.returning
        if waits_for_master or (schedule.over and not self.over_at):
            self.late.progress(now)
        self.over_at = (self.over_at or now) if schedule.over else 0.0
        late = [member for member in workers if not member.work.over]
        begun = [member for member in late if member.work.begun] if schedule.closed else []
        ends = schedule.closed or schedule.over
        idle = [member for member in late if not member.work.begun] if ends else []
        if idle and self.late.quiet(now):
            for member in idle:  # it stays a member, and may take part in the next job
                member.given_up(self._ended_jobs.newest)
                log.warning("%s has not begun with the job, which ends without it", member.name)
        self.late.step(begun, now, staged=schedule.clocks is not None)
        return any(not member.work.over for member in late)

    def _give_up(self, member: Member, why: str, now: float) -> None:
        """End the training without what a worker has not finished. The worker is declared lost, so
        that it is fenced before the export reads rows: its late pushes would tear the model."""
        if self._lifecycle.stopping or member.work.over:
            return
        job, schedule = self.running()
        member.given_up(self._ended_jobs.newest)
        schedule.abandon(member.number)
        job.withdraw_checkouts()
        self._expel(member, why, now, after="the training has ended without it")

    # --- answers and notes ---------------------------------------------------------------------

    def answer(self, now: float) -> None:
        """Answer what can be answered now; the other calls wait for blocks that may come back.

        A refused worker is examined again when the schedule wakes it, and all of them when the
        job's state has changed. So a finished block costs as many looks as workers that it wakes:
        with a look at each of a thousand waiting workers it would cost the master milliseconds.
        """
        job = self.job
        if job is None:
            return
        schedule = job.schedule
        seen = (job.pass_, schedule, schedule.over or schedule.drops, schedule.held)
        if seen != self._seen:
            self._seen = seen
            self._look_at_all()
        for node in schedule.woken(self._refused):
            self._asking.extend(self._refused.pop(node, ()))
        if schedule.held is not None and self._refused:
            # It asked while it trained its last block of the epoch, which is done by now.
            for node in self._refused.keys() & schedule.pushing():
                self._asking.extend(self._refused.pop(node))
        not_ready: list[Call] = []  # to be examined once the shards are ready; in their sequence
        for _ in range(min(len(self._asking), ANSWERS_MAX)):
            call = self._asking.popleft()
            if not self._answer(job, schedule, call, now):
                not_ready.append(call)
        self._asking.extendleft(reversed(not_ready))
        self._hand_out(now)

    @property
    def busy(self) -> bool:
        """Whether calls remain that may be answered at once: the loop is not to sleep."""
        job = self.job
        due = self._asking or self._hand_outs_due
        return bool(due) and job is not None and self._ready(job, job.pass_)

    def _ready(self, job: Job, pass_: str) -> bool:
        """Whether the shards are ready for new leases: they have the clock, or the fence, that the
        schedule needs."""
        needs = job.schedule.needs
        return pass_ != "train" or not needs or not self._shard_orders.open(needs)

    def _end_turn(self, member: Member) -> None:
        """A worker's part is merged or lost: examine the workers that wait for their turn."""
        if self._turns.end(member.number):
            for node in [node for node in self._refused if self._turns.held(node)]:
                self._asking.extend(self._refused.pop(node))

    def _look_at_all(self) -> None:
        for calls in self._refused.values():
            self._asking.extend(calls)
        self._refused.clear()

    def _answer(self, job: Job, schedule: Schedule, asking: Call, now: float) -> bool:
        """Answer a worker, or have it wait; False: it waits until the shards are ready."""
        member, pass_, call = asking
        if member.number not in self._members.all:
            return True
        current = pass_ == job.pass_
        ready = self._ready(job, pass_)
        wanted = current and ready and member.takes_blocks
        held = self._turns.held(member.number) if wanted else 0
        sends = held >= PART_BYTES and self._turns.begin(member.number)
        lease = None
        if wanted and not sends and held < PART_BYTES_MAX:
            lease = job.lease(member.number, now)
        if lease is None and held and not sends:
            sends = self._turns.begin(member.number)
        if lease is not None:
            if schedule.clocks is not None and not self.clocks_noted:
                self.clocks_noted = True
                self._out.journal("clocks", {})
            note_cuts(self._out, schedule)
            # The lease itself is not noted: whoever holds it reports it to the next master
            # (`adoption.py`), so a fact for each would only make the journal longer.
            member.leased(pass_, now)
            self._out.reply(call, lease)
        elif sends or not (current and member.takes_blocks) or schedule.over or schedule.drops:
            member.wait_for("", now)
            self._out.reply(call, messages.Leased(-1))
        elif schedule.held is not None and member.number in schedule.pushing():
            member.wait_for("", now)
            self._out.reply(call, messages.Leased(-1, flushes=True))
        else:
            if not member.waits:
                self._name_wait(schedule, member, now)
            if not ready:
                return False
            self._refused.setdefault(member.number, []).append(asking)
        return True

    def _name_wait(self, schedule: Schedule, member: Member, now: float) -> None:
        """Name what a worker waits for, unless it still has a block to train."""
        if self._turns.held(member.number):
            member.wait_for(str(Wait((MASTER,), "merge the survey")), now)
        elif schedule.at_hold:
            member.wait_for(str(Wait((MASTER,), f"test epoch {schedule.held}")), now)
        elif not schedule.records.held_by(member.number):
            member.wait_for(str(schedule.wait_of(member.number)), now)

    def note_waits(self, job: Job, schedule: Schedule, workers: list[Member], now: float) -> None:
        """Name what workers without a block, or held up by a clock, wait for, and log it; less
        often where they are many."""
        if now < self._name_at:
            return
        self._name_at = now + max(NAMES_S, len(workers) / 500)
        calls = [*self._asking, *(call for calls in self._refused.values() for call in calls)]
        asking = {member.number for member, _, _ in calls}
        for member, _, _ in calls:
            self._name_wait(schedule, member, now)
        if (slots := schedule.slots) is not None:
            for member in workers:
                held_up = slots.held_up(member.number)
                if held_up is not None:
                    member.wait_for(str(held_up), now)
                elif member.number not in asking:
                    member.wait_for("", now)
        if (checkouts := schedule.checkouts) is not None:
            for member, number, _ in self._checking_out:
                if (wait := checkouts.wait_of(number, member.number)) is not None:
                    member.wait_for(str(wait), now)
        for member in workers:
            member.log_wait(now)
