"""The invariants: what must hold in every run, one function each, the reason in its docstring.

    check(cluster) -> problems of a finished run, in words        watch(cluster): while it runs

A run that is not `wild` had only faults that a cluster promises to survive, so its job must end
well.  A wild run may fail with a verdict, but it must end, and what it wrote must be right.
"""

from __future__ import annotations

import numpy as np

from snailps.master.job.controller import JobPhase
from snailps.transport import messages
from snailps.transport.frame import HEADER, Kind
from snailps.transport.handshake import Role
from snailps.transport.messages.terms import ChunkBlock, Partition
from tests.sim.jobs import alike
from tests.sim.model import OWN, expected_rows
from tests.sim.rotation import expected_numbers

ALL_KILLED = "all processes were killed"
STANDSTILL_S = 90.0
"""How long the training may stand still while nothing is wrong: longer than any limit of a part."""
UNNAMED_S = 5.0
"""How long a worker may wait for a lease before the status must name what it waits for."""


def acknowledgements_hold(cluster):
    """Whether every acknowledged push must survive: with `async` not if a server was lost."""
    return cluster.scenario.replication == "sync" or not any(
        node.role == Role.SERVER and node.hurt not in ("", ALL_KILLED) for node in cluster.nodes
    )


def results(cluster):
    """The jobs that ended well and were exported: in most runs the only one."""
    for job in cluster.jobs:
        if cluster.session:
            well = job.told == ""
        else:
            well = cluster.verdict is not None and cluster.verdict[0] == 0
        if well and job.exported is not None:
            yield job


def ended_well(cluster):
    """The job ends with code 0, because every fault of the run is one that the cluster survives."""
    if not cluster.strict() or _refused_rightly(cluster):
        return
    if cluster.verdict is None:
        yield f"no master has ended: {cluster.master_refused or 'the last one was killed'}"
    elif cluster.verdict[0] != 0:
        yield f"the job ended with code {cluster.verdict[0]}: {cluster.verdict[1]}"
    elif not cluster.session and cluster.job.exported is None:
        yield "the job ended well without a result"


def session_keeps_its_promises(cluster):
    """A session outlives failed jobs, each has a reason, and the driver hears of each end once."""
    driver = cluster.driver
    if driver is None or not cluster.strict():
        return
    yield from driver.problems
    for job in cluster.jobs:
        # A loss may be noticed when the next job is under way.
        if job.told and not any(other.excuses for other in cluster.jobs[: job.number + 1]):
            yield f"job {job.number} failed without a reason: {job.told}"
    if not driver.done and not driver.hurt:
        yield f"the driver ended before its jobs did, with {driver.code}"


def nobody_healthy_expelled(cluster):
    """Only a process that had a fault is given up: the loss of a neighbour is none."""
    for node, text in cluster.expelled.items():
        if not node.hurt and cluster.strict(node):
            yield f"{node.name} is healthy and was expelled: {text}"


def nobody_gives_up(cluster):
    """No healthy worker fails for lack of an answer: limits exceed what they wait for."""
    for node, text in cluster.gave_up.items():
        if not node.hurt and cluster.strict(node):
            yield f"{node.name} is healthy and gave up: {text}"


def nothing_unhandled(cluster):
    """The master can handle every message that a process sends.

    Not after a power cut, which takes facts that were not synced: a master that no longer knows its
    job refuses messages about it.
    """
    if cluster.powerless:
        return
    for who, error in cluster.broken:
        yield f"the master cannot handle what {who} said: {error!r}"


def pushes_counted_once(cluster):
    """An acknowledged push is in the result once, any other at most once (invariants 3, 4)."""
    for job in results(cluster):
        if not (job.plan.clocked or job.plan.stop_after):
            yield from _counted_once(cluster, job)


def _counted_once(cluster, job):
    rows, books = job.exported, job.books
    safe = acknowledgements_hold(cluster)
    lost = doubled = 0
    example = ""
    for key, push in books.own.items():
        there = float(rows[key][0]) if key in rows else 0.0
        least, most = job.history.fate(push.drawn_at, push.acked_at)
        if job.may_forget(push):
            least = 0
        if there not in (0.0, 1.0) or there > most or (safe and there < least):
            lost += there < least
            doubled += there > most
            example = example or (
                f"key {key - OWN} of block {push.block} is {there:g}, expected {least} to {most}: "
                f"sent at {push.drawn_at - 1000:.4f}, acknowledged at "
                f"{push.acked_at and push.acked_at - 1000}"
            )
    if lost or doubled:
        yield f"{lost} acknowledged pushes lost, {doubled} counted too often: {example}"
    for key, pushes in books.shared.items():
        there = float(rows[key][0]) if key in rows else 0.0
        fates = [job.history.fate(push.drawn_at, push.acked_at) for push in pushes]
        least = sum(least for least, _ in fates) if safe and not job.plan.expires else 0
        most = sum(most for _, most in fates)
        if not least <= there <= most:
            yield f"shared key {key} is {there:g}: expected {least} to {most}"
            return


def blocks_trained(cluster):
    """A job that ended well had every block trained: each was reported by a worker that held it."""
    for job in results(cluster):
        plan, reported = job.plan, job.books.reported
        if cluster.interrupted or (plan.limit_s and job.tenants):
            continue
        least = plan.least(job.blocks)
        numbers = expected_numbers(job) if job.tenants else range(least)
        missing = [number for number in numbers if number not in reported]
        if plan.ends_by_loss and not plan.clocked:  # whichever come first
            missing = [] if len(reported) >= least else missing
        if missing:
            yield f"blocks {missing[:5]} were never reported"
        if plan.ends_by_loss and plan.clocked and max(reported) >= least:
            yield f"block {max(reported)} is trained after the end of the training at {least}"


def bits_equal(cluster):
    """In bsp and in rounds each bit depends on the contributions alone, not on who made them."""
    for job in results(cluster):
        if job.plan.clocked and not (cluster.interrupted or job.plan.stop_after):
            yield from _bits_equal(job)


def _bits_equal(job):
    if job.plan.rounds:
        expected = job.rows
        if len(job.closed) != job.plan.rounds:
            yield f"{len(job.closed)} of {job.plan.rounds} rounds were closed"
    else:
        slots, number = job.books.slots, job.plan.micro_batches
        if job.plan.limit_s:  # of the last step slots may lack, if no worker was left
            last = max(clock for clock, _ in slots) if slots else 0
            numbers = range(min(number, job.blocks * job.plan.epochs - last * number))
            whole = all(
                (last, slot) in slots and slots[last, slot][0] in job.books.reported
                for slot in numbers
            )
            slots = {place: made for place, made in slots.items() if whole or place[0] < last}
        expected = expected_rows(slots, number)
    for key, row in expected.items():
        exported = job.exported.get(key, np.zeros(2, np.float32))
        if exported.tobytes() != row.tobytes():
            yield f"row {key} is {exported.tolist()}, expected {row.tolist()}"
            return


def saved_rows_are_those_tested(cluster):
    """The result has the rows of the epoch that the run reports as saved, as its test read them:
    the best one, where nothing went wrong."""
    for job in results(cluster):
        figures = job.figures_of_tests
        if not figures or not acknowledgements_hold(cluster):
            continue
        best, saved = figures["best_epoch"], figures["saved_epoch"]
        if not alike(job.exported, job.snapshots[saved]):
            yield f"the result has not the rows of epoch {saved:g}, which are said to be saved"
        if best != saved and not cluster.faults.count:
            yield f"the best epoch is {best:g}, and the rows of {saved:g} are saved"


def nothing_wrong_seen(cluster):
    """The checks made while the job ran found nothing: slots, rounds, the bound of ssp."""
    verdict = cluster.verdict
    if verdict is not None and (verdict[0] == 0 or not cluster.scenario.wild):
        for job in cluster.jobs:
            yield from job.books.wrong[:3]


def exits_are_right(cluster):
    """After a job that ended well a healthy process exits with 0."""
    if cluster.verdict is None or cluster.verdict[0] != 0:
        return
    right = (0, None, 3) if any(job.told for job in cluster.jobs) else (0, None)
    for node in cluster.nodes:
        healthy = not node.hurt and cluster.strict(node) and node.welcome is not None
        if healthy and node.code not in right:
            yield f"{node.name} is healthy and exited with {node.code}"


def newest_checkpoint_used(cluster):
    """A run continues from the newest whole checkpoint: otherwise training is lost."""
    for job in cluster.jobs:
        yield from job.history.problems


CHECKS = (
    ended_well, nobody_healthy_expelled, nobody_gives_up, nothing_unhandled, pushes_counted_once,
    blocks_trained, bits_equal, saved_rows_are_those_tested, nothing_wrong_seen, exits_are_right,
    newest_checkpoint_used, session_keeps_its_promises,
)  # fmt: skip


def check(cluster):
    """All problems of a finished run."""
    return [f"{holds.__name__}: {text}" for holds in CHECKS for text in holds(cluster)]


def watch(cluster):
    """The status names what each worker without a lease waits for, while the master runs."""
    master, now = cluster.master, cluster.world.now
    if master.core.members.returning:
        cluster.unnamed.clear()  # a master that takes over has just begun to look
        return
    if now < cluster.watch_at:
        return
    cluster.watch_at = now + 1.0
    _watch_progress(cluster, now)
    for node in cluster.nodes:
        if node.role != Role.WORKER or not node.alive or node.control.away or node.hurt:
            continue
        if not node.at_work:  # it has finished, and does not need the block that it asked for ahead
            cluster.unnamed.pop(node, None)
            continue
        member = master.core.members.all.get(node.number)
        asks = node.control.oldest_call(messages.Lease)
        job = master.core.job_controller.job
        named = (
            member is None
            or bool(member.waits)
            or (
                job is not None
                and job.schedule is not None
                and job.schedule.records.held_by(node.number)
            )
        )
        if not asks or named or not node.runs or cluster.unnamed.get(node, (asks,))[0] != asks:
            cluster.unnamed.pop(node, None)
        elif now - cluster.unnamed.setdefault(node, (asks, now))[1] > UNNAMED_S:
            raise AssertionError(
                f"{node.name} waits for a lease for {UNNAMED_S:g} s, the status names no cause: "
                f"{member.name} is {member.work.name}, phase {master.core.reported_phase}"
            )


def _watch_progress(cluster, now):
    """The training goes on, while every process runs and reaches the others."""
    everybody = [process for process in (*cluster.masters, *cluster.nodes) if process.alive]
    state = (
        cluster.master, cluster.master.core.reported_phase, cluster.faults.count, len(everybody),
        len(cluster.job.books.reported), len(cluster.job.closed),
    )  # fmt: skip
    disturbed = (
        cluster.master.core.job_controller.phase is not JobPhase.TRAINING
        or cluster.shared_disk.slow_until > now
        or cluster.network.is_cut
        or not all(process.runs for process in everybody)
        or not any(process.role == Role.WORKER for process in everybody)
    )
    if disturbed or state != cluster.progress[0]:
        cluster.progress = state, now
    elif now - cluster.progress[1] > STANDSTILL_S:
        raise AssertionError(f"nothing moves for {STANDSTILL_S:g} s: {who_waits(cluster)}")


def is_fenced_push(shard, data):
    """Whether a frame is a push of a worker whose fence is done at the shard.

    A fence is done once the standby has it, too, so it holds at any server that serves the shard.
    """
    cluster = shard.server.cluster
    master = cluster.master
    if master.core is None or shard.server.number not in master.core.members.all:
        return False  # it is lost and does not know: no client gets its acknowledgements
    if not cluster.fenced or data[5] != Kind.PUSH or shard.shard.role != "primary":
        return False
    served = shard.server.core.host.primaries
    number = next((n for n, handle in served.items() if handle == shard.handle), -1)
    return (HEADER.unpack_from(data)[7], number) in cluster.fenced


def push_is_not_taken(shard, data, before, after):
    """A shard takes no push of a worker once its fence is done: others have its blocks."""
    if any(after[count] > before[count] for count in ("pushes", "repeated")):
        raise AssertionError(
            f"{shard.server.name} takes a push of worker {HEADER.unpack_from(data)[7]}, which is "
            f"fenced at shard {shard.number}"
        )


def watch_out(master, answer):
    """In a rotation no partition has two writers.

    What the master leases or checks out may have been a lost worker's, which may still run and
    push.  So every shard must have answered the fence of that worker before.
    """
    leased = isinstance(answer, messages.Leased) and isinstance(
        answer.terms, ChunkBlock | Partition
    )
    if not leased and not (isinstance(answer, messages.CheckedOut) and answer.part >= 0):
        return
    members, cluster = master.core.members, master.cluster
    for number in cluster.job.tenants:
        if not members.gone_nodes.get(number):
            continue
        for shard in range(len(members.route.shards)):
            if (number, shard) not in cluster.fenced:
                raise AssertionError(
                    f"{answer} is given while worker {number}, which is lost, may still push to "
                    f"shard {shard}"
                )


def who_waits(cluster):
    """What each process of a run that does not end waits for."""
    lines = []
    for process in (*cluster.masters, *cluster.nodes):
        if not process.alive:
            continue
        about = f"{process.name} ({process.hurt or 'healthy'})"
        if getattr(process, "core", None) is not None and process in cluster.masters:
            core = process.core
            members = [(m.name[:12], m.work.name, m.waits) for m in core.members.all.values()]
            about += f": {core.reported_phase} {members}"
        elif getattr(process, "control", None) is not None:
            calls = [type(call).__name__ for call in process.control.open_calls()]
            client = getattr(process, "client", None)
            about += f": calls {calls}, {client.waits()[:3] if client else ''}"
        lines.append(about)
    return "; ".join(lines)


def _refused_rightly(cluster):
    """All checkpoints are damaged, and the master says so."""
    text = cluster.verdict[1] if cluster.verdict is not None else ""
    return cluster.history.refusable and "checkpoint" in text
