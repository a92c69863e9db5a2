"""Makes the status of the run: a `Status` for the display, `snailps status` and `json_log`.

    Membership, JobController, ReplicationController, HeartbeatMonitor
    with events, usage and turns of this process -> status(), progress() -> Report, Observers

Reads the core from outside, and must not change anything of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from snailps._version import __version__
from snailps.api.export_progress import ExportProgress
from snailps.config.addresses import format_addr
from snailps.master.checkpoints import CheckpointController
from snailps.master.core import MasterCore
from snailps.master.effects import Fact
from snailps.master.event_log import EVENT, EventLog
from snailps.master.job.job import Job
from snailps.master.job.stop_rules import least_epochs
from snailps.master.loop_latency import LoopLatency
from snailps.master.member import Member, cpu_share
from snailps.master.phases import JobPhase, Reach, Stay, Work
from snailps.node.status import (
    BlockCounts,
    MasterStatus,
    NodeStatus,
    Phase,
    ProgressStatus,
    SessionStatus,
    ShardStatus,
    Status,
    TableStatus,
    Usage,
    WaitStatus,
)

SILENT_BEATS = 3
"""Missing heartbeats from which a silence is shown as a wait."""
LAG_S = 1.0
"""Seconds by which a standby lags from which that is shown as a wait."""
_COUNTS: tuple[Literal["rows", "bytes", "made", "refused", "evicted", "expired"], ...] = (
    "rows", "bytes", "made", "refused", "evicted", "expired",
)  # fmt: skip
_MASTERS_WORK = ("preparing", "restoring", "loading", "exporting")
_HERE = Stay.HERE
_STAY_WORDS = {
    Stay.SENT_AWAY: "stopping",
    Stay.STOPPING: "stopping",
    Stay.LEFT: "bye",
    Stay.ENDED: "bye",
    Stay.MISSED: "missed",
    Stay.GONE: "gone",
}
_REACH_WORDS = {
    Reach.AWAY: "not back yet",
    Reach.BACK: "back",
    Reach.RECONNECTING: "connecting",
    Reach.REGISTERED: "registered",
    Reach.CONNECTING: "connecting",
}
_WORK_WORDS = {
    Work.IDLE: "ready",
    Work.STARTING: "starting",
    Work.COUNTING: "counting",
    Work.TRAINING: "training",
    Work.FINISHED: "finished",
    Work.SPARED: "finished",
    Work.GIVEN_UP: "ready",  # for the next job
}


class StatusReport:
    def __init__(
        self,
        core: MasterCore,
        note: Callable[[str, dict[str, Any]], None],  # a fact for the journal
        *,
        wall_s: float = 0.0,  # seconds since 1970 at monotonic time 0
        facts: Iterable[Fact] = (),  # of an earlier master
        address: str = "",  # where the master listens
        place: tuple[str, int] = ("", 0),  # its host and process id
    ) -> None:
        self._core, self._members, self._job_controller = core, core.members, core.job_controller
        self._address, self._place, self._wall_s = address, place, wall_s
        earlier = (fact.data for fact in facts if fact.kind == EVENT)
        self.events, self.times = EventLog(note, core.context.begun, wall_s, earlier), LoopLatency()
        self.metrics = ""  # address of the metrics
        self._usage: tuple[Usage, Usage] = ({}, {})
        self._phase_since = core.context.begun
        self._phase: Phase = "forming"

    def take_usage(self, usage: Usage) -> None:
        self._usage = (self._usage[1], usage)

    def note_phase(self, now: float) -> Phase:
        """The phase that users see; notes when it changes, as all nodes may wait for the master."""
        if self._core.reported_phase != self._phase:
            self._phase, self._phase_since = self._core.reported_phase, now
        return self._phase

    def progress(self, now: float) -> ProgressStatus:
        job = self._job_controller.job
        return {
            "units": job.metrics.units if job is not None else 0,
            "units_per_s": job.metrics.rate(job.clock.pass_begun, now) if job is not None else 0.0,
            "loss": job.metrics.loss if job is not None else None,
            "elapsed_s": now - self._core.context.begun,
            "session": self._of_session() if self._core.context.life.drivers_work else None,
        }

    def status(self, now: float) -> Status:
        phase = self.note_phase(now)
        job = self._job_controller.job
        schedule = job.schedule if job is not None else None
        blocks: BlockCounts = {"left": 0, "leased": 0, "done": 0}
        if schedule is not None:
            blocks = {
                "left": schedule.size - schedule.finished - schedule.records.leased,
                "leased": schedule.records.leased,
                "done": schedule.finished,
            }
        route, missing = self._members.route, self._core.forming.missing()
        shards, files = self.shards(), self._files
        share = job.progress(now) if job is not None else 0.0
        doing = pass_text(job) if job is not None else ""
        if doing and (text := self._job_controller.looks.text):
            doing = f"{doing}: {text}"
        eta_s = None
        if files is not None:
            share, doing, eta_s = files.share, files.text, files.eta_s
        elif phase == "restoring":
            share, doing, eta_s = self._checkpoints.restorer.progress(now)
        nodes = [
            self._node(
                member,
                self._core.heartbeats.silence_s(member.number, now),
                schedule.records.count_of(member.number) if schedule is not None else 0,
                schedule.clock_of(member.number) if schedule is not None else None,
                now,
            )
            for member in self._members.all.values()
        ]
        return {
            "version": __version__,
            "address": self._address,
            "began_s": round(self._wall_s + self._core.context.begun, 3),
            "cluster_id": f"{self._members.cluster_id:016x}",
            "epoch": route.epoch if route is not None else 0,
            "phase": phase,
            "waiting_for": missing
            if phase == "forming"
            else self._job_controller.worker_wait.lacks,
            "progress": share,
            "pass_": doing,
            "unit": job.model.counts if job is not None else "examples",
            **self.progress(now),
            "lr": job.metrics.lr if job is not None else None,
            "eta_s": eta_s,
            "blocks": blocks,
            "nodes": nodes,
            "shards": shards,
            "tables": self.tables(),
            "waits": self._waits(phase, nodes, shards, now),
            "requests_per_s": sum(s["pulls_per_s"] + s["pushes_per_s"] for s in shards),
            "checkpoint": self._checkpoints.place.status(
                now, writing=self._checkpoints.saver.running
            ),
            "loop": self.times.status(),
            "message": self._core.lifecycle.verdict or self._job_controller.present.failure,
            "validation": dict(job.inspected.validation) if job is not None else {},
            "tests": self._tests(job) if job is not None else [],
            "figures": dict(self._job_controller.present.figures),
            "events": self.events.listed(),
            "master": self._of_master(),
            "job_name": job.model.name if job is not None else "",
            "output": job.settings.output if job is not None else "",
            "epochs": job.settings.epochs if job is not None else 0,
            "total_units": total_units(job) if job is not None else None,
        }

    def _tests(self, job: Job) -> list[Mapping[str, float]]:
        begun = self._core.context.begun
        return [{**test, "at_s": round(at - begun, 3)} for at, test in job.inspected.tests]

    @property
    def _checkpoints(self) -> CheckpointController:
        """Checkpoints of the job, or of the session between its jobs."""
        if self._job_controller.job is None:
            return self._core.rows.checkpoints
        return self._job_controller.checkpoints

    def _of_master(self) -> MasterStatus:
        before, now = self._usage
        return {
            "host": self._place[0],
            "pid": self._place[1],
            "cpu": cpu_share(now, before),
            "rss_bytes": _bytes(now),
            "metrics": self.metrics,
        }

    def _of_session(self) -> SessionStatus:
        controller = self._job_controller
        return {
            "jobs": controller.ended_jobs.newest,
            "job": controller.ended_jobs.newest if controller.job is not None else 0,
            "coming": self._core.stops.coming,
            "tables": self._members.table_registry.count,
        }

    @property
    def _files(self) -> ExportProgress | None:
        """Progress of the export, or of loading first rows, where one is under way."""
        phase = self._job_controller.phase
        if phase is JobPhase.LOADING:
            return self._job_controller.survey.loading
        return (
            self._job_controller.exporting.export.progress if phase is JobPhase.EXPORTING else None
        )

    def _node(
        self, member: Member, silence_s: float | None, leased: int, clock: int | None, now: float
    ) -> NodeStatus:
        heard = silence_s is not None and math.isfinite(silence_s)
        busy = leased and member.block_since and not member.finished
        reports = member.reports
        return {
            "role": member.role,
            "id": member.number,
            "host": member.host,
            "pid": member.pid,
            "address": format_addr(*member.address) if member.address[0] else "",
            "endpoints": [format_addr(*endpoint) for endpoint in member.endpoints],
            "heartbeat_s": silence_s if heard else None,
            "epoch": member.epoch,
            "state": self._state_of(member),
            "waits": member.waits,
            "waits_s": member.waits_s(now),
            "clock": clock,
            "rate": member.rate.per_s(now),
            "done": member.done,
            "leased": leased,
            "block_s": now - member.block_since if busy else None,
            "fetched": member.fetched,
            "lacks": member.lacks,
            "cpu": cpu_share(reports.usage, reports.usage_before),
            "rss_bytes": _bytes(reports.usage),
            "metrics": reports.metrics,
        }

    def _state_of(self, member: Member) -> str:
        """What a member does, in a word or two: that it leaves, that the job waits for it, how far
        it is."""
        if member.stay is not _HERE:
            if words := _STAY_WORDS.get(member.stay):
                return words
            if member.role == "server":
                return "leaving"
        if not member.has_route:
            return _REACH_WORDS[member.reach]
        if self._job_controller.phase is JobPhase.EXPORTING and member.role != "driver":
            unreported = self._job_controller.exporting.export.unreported
            is_asked = member.number in unreported
            return "asked for its counters" if is_asked else "waiting for the export"
        if self._members.returning and member.resume_state and member.work is Work.IDLE:
            return "back"
        return _WORK_WORDS[member.work]

    def shards(self) -> list[ShardStatus]:
        """The shards, with the last reports of their servers."""
        reported: dict[int, tuple[dict[str, Any], float, float]] = {}
        for member, shard in self._core.shard_reports.latest():
            before = {s["shard"]: s for s in member.reports.stats_before.get("shards", [])}
            previous = before.get(shard["shard"])
            reported[shard["shard"]] = (
                shard,
                _rate("pulls", shard, previous, member.reports.stats_s),
                _rate("pushes", shard, previous, member.reports.stats_s),
            )
        route = self._members.route
        shards: list[ShardStatus] = []
        for placed in self._core.replication.status():
            stats, pulls_per_s, pushes_per_s = reported.get(placed["shard"], ({}, 0.0, 0.0))
            replica = (stats.get("replica") or {}) if placed["standby"] else {}
            address = route.shards[placed["shard"]] if route is not None else None
            shards.append(
                {
                    "shard": placed["shard"],
                    "primary": placed["primary"],
                    "standby": placed["standby"],
                    "state": placed["state"],
                    "seeded": placed["seeded"],
                    "address": format_addr(address.host, address.port)
                    if address is not None
                    else "",
                    "lag_bytes": int(replica.get("lag_bytes", 0)),
                    "lag_s": float(replica.get("lag_s", 0.0)),
                    "fragments": int(stats.get("fragments", 0)),
                    "rows": int(stats.get("rows", 0)),
                    "bytes": int(stats.get("bytes", 0)),
                    "pulls_per_s": pulls_per_s,
                    "pushes_per_s": pushes_per_s,
                    "connections": int(stats.get("connections", 0)),
                    "parked": int(stats.get("parked", 0)),
                    "clock": int(stats.get("clock", 0)),
                    "waits": str(stats.get("waits_for") or ""),
                }
            )
        return shards

    def tables(self) -> list[TableStatus]:
        """The tables, with the last reports of their primaries' servers."""
        tables: dict[int, TableStatus] = {}
        for _, shard in self._core.shard_reports.latest():
            for number, counts in shard.get("tables", {}).items():
                table = tables.setdefault(
                    int(number),
                    {
                        "table": int(number), "name": str(counts.get("name", number)),
                        "rows": 0, "bytes": 0, "made": 0, "refused": 0, "evicted": 0,
                        "expired": 0,
                    },
                )  # fmt: skip
                for key in _COUNTS:
                    table[key] += int(counts.get(key, 0))
        return [tables[number] for number in sorted(tables)]

    def _waits(
        self, phase: Phase, nodes: list[NodeStatus], shards: list[ShardStatus], now: float
    ) -> list[WaitStatus]:
        waits_found: list[tuple[str, str, float]] = []
        if phase == "forming" and (missing := self._core.forming.missing()):
            waits_found.append(("the master", missing, now - self._core.forming.since))
        if self._job_controller.worker_wait.lacks:
            waits_found.append(
                (
                    "the job",
                    self._job_controller.worker_wait.lacks,
                    now - self._job_controller.worker_wait.since,
                )
            )
        if phase in _MASTERS_WORK:
            waits_found.append(("all nodes", f"the master, {phase}", now - self._phase_since))
        silent_s = SILENT_BEATS * self._core.context.settings.heartbeat_interval
        over_at = self._job_controller.leases.over_at if phase == "training" else 0.0
        for node in nodes:
            name = f"{node['role']} {node['id']}"
            member = self._members.all[node["id"]]
            if node["waits"]:
                waits_found.append((name, node["waits"], node["waits_s"]))
            if over_at and node["role"] == "worker" and not member.work.over:
                waits_found.append(("the job", f"the end of {name}'s part", now - over_at))
            if node["state"] == "connecting":
                waited_s = now - max(member.since, self._core.forming.since)
                waits_found.append((name, "its connections to every shard", waited_s))
            if node["heartbeat_s"] is not None and node["heartbeat_s"] > silent_s:
                waits_found.append(("the master", f"a heartbeat of {name}", node["heartbeat_s"]))
            reports = member.reports
            if node["role"] == "worker" and reports.stats_at > member.block_since:
                age_s = now - reports.stats_at
                waits = reports.stats.get("waits", [])[:1]
                waits_found += [  # the oldest is enough: the others wait for it
                    (name, f"{peer} ({what})", seconds + age_s) for what, peer, seconds in waits
                ]
                if (place := reports.stats.get("at")) and node["block_s"] is not None:
                    waits_found.append((name, f"its own code, at {place}", node["block_s"]))
        for shard in shards:
            if shard["standby"] and shard["lag_s"] >= LAG_S:
                lag_mb, number = shard["lag_bytes"] / 1e6, shard["shard"]
                cause = f"server {shard['standby']} to take {lag_mb:.1f} MB of shard {number}"
                waits_found.append((f"server {shard['primary']}", cause, shard["lag_s"]))
            if shard["parked"] and shard["waits"]:
                who = f"{shard['parked']} requests at shard {shard['shard']}"
                waits_found.append((who, shard["waits"], 0.0))
        waits_found.sort(key=lambda wait: -wait[2])
        return [
            {"who": who, "whom": cause, "seconds": seconds} for who, cause, seconds in waits_found
        ]


def _bytes(usage: Usage) -> int | None:
    """Resident memory, where a process has reported it."""
    return int(usage["rss_bytes"]) if usage else None


def _rate(kind: str, now: dict[str, Any], before: dict[str, Any] | None, seconds: float) -> float:
    """Requests per second between two reports of a shard."""
    if before is None or seconds <= 0:
        return 0.0
    # A shard that moved counts from 0 again: not a negative rate.
    return max(0.0, float(now[kind] - before[kind]) / seconds)


def pass_text(job: Job) -> str:
    """Progress of the training in words; empty outside it."""
    if job.pass_ != "train" or job.schedule.over:
        return ""
    if (rounds := job.schedule.rounds) is not None:
        return rounds.stage()
    epochs = job.settings.epochs  # a bound, where the loss may end the training
    least = least_epochs(job.settings, job.model.by_input.passes)
    of = ", at most" if least < epochs or job.tested.stop_after else " of"
    return f"epoch {min(job.schedule.epoch + 1, epochs)}{of} {epochs}"


def total_units(job: Job) -> int | None:
    """About how many units the training has; None before its first block is done."""
    share = job.schedule.progress if job.pass_ == "train" else 0.0
    return round(job.metrics.units / share) if share and job.metrics.units else None
