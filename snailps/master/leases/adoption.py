"""Adopts what a worker of an earlier master brings back: cuts of chunks, results, leases.

    Rejoin.state of all workers -> learn_cuts, of all -> adopt, of each -> journal, job, schedule

The journal has results but no leases, and a power cut may have taken its last facts. Must not know
connections, or what waits for a block (`service.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from snailps.master.effects import Outbox
from snailps.master.job.job import Job
from snailps.master.job.record import JobRecord
from snailps.master.leases.schedule import Schedule
from snailps.master.member import Member
from snailps.transport import messages

log = logging.getLogger(__name__)

UNDECIDED = (
    "partition %d is reported as done, but how its chunk was cut is unknown: the journal has lost "
    "that, as in a power cut. The partition is trained once more"
)


def learn_cuts(out: Outbox, job: Job, member: Member) -> None:
    """Learn from a worker how the chunks of its partitions are cut, and note it.

    Done for all workers before anything else of any: where a power cut took the fact from the
    journal, there is no place to record what the others have done in these chunks.
    """
    _claim(job.schedule, member, ())
    note_cuts(out, job.schedule)


def note_cuts(out: Outbox, schedule: Schedule) -> None:
    """Note how chunks were cut since the last call. Before the lease that follows from it is sent:
    a partition is meaningless to a master that does not know the cut."""
    for chunk, parts, sizes in schedule.chunks.decided() if schedule.chunks else ():
        out.journal("chunk", {"chunk": chunk, "parts": parts, "sizes": sizes})


def note_done(out: Outbox, message: messages.Done, member: Member) -> None:
    if message.pass_ == "train":
        out.journal("done", {"node": member.number, **message.result()})


def adopt(out: Outbox, job: Job, member: Member, now: float) -> None:
    """Adopt what a worker has reported and leased.

    Results come first, then what is durable, then leases: a block that is done must not be leased
    again, and a block that it still holds cannot be durable.
    """
    node, resume_state = member.number, member.resume_state
    member.resumed(job.pass_)
    if job.pass_ == "train":
        for fields in resume_state["reported"]:
            done = messages.Done.of_result(fields)
            if JobRecord(job).replay(done, node, now):
                note_done(out, done, member)
            elif (chunks := job.schedule.chunks) and chunks.is_undecided(done.number):
                log.warning(UNDECIDED, done.number)
        # A block that it holds may be noted as done: the lost master noted the result, and died
        # before it answered. Its pushes are complete, but not all acknowledged.
        held = [number for pass_, number in resume_state["held"] if pass_ == "train"]
        but = sorted({*resume_state["not_durable"], *held})
        job.schedule.records.make_all_durable(node, but)
        out.journal("durable_all", {"node": node, "but": but})
    if resume_state["finished"] is not None:
        member.part_ended(resume_state["finished"])
        return
    schedule = job.schedule
    if job.pass_ == "train":  # the journal may have lost that it got the job
        out.journal("join", {"node": node})
        schedule.join(node)
    held = [number for pass_, number in resume_state["held"] if pass_ == job.pass_]
    _claim(schedule, member, held)


def _claim(schedule: Schedule, member: Member, held: Iterable[int]) -> None:
    """Lease to a worker the blocks that it reports to hold, and adopt its checkouts. What another
    worker has by now stays there."""
    node, partitions = member.number, member.resume_state.get("partitions", ())
    if schedule.chunks is not None:
        schedule.chunks.learn(partitions)
    for number in held:
        schedule.claim(number, node)
    if schedule.checkouts is not None:
        schedule.checkouts.adopt(node, partitions)
