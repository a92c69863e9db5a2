"""What the master tells of the run: a `Status` for whoever asks, records for `json_log`.

    Membership, JobController, ReplicationController, heartbeats
        -> status() -> Report, display      -> json_log

It reads what the others own and changes none of it.  Workers that are long at a block are asked
for whom they wait before an answer goes out; nobody is asked anything while nobody asks us.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from snailps._version import __version__
from snailps.config import MasterSettings
from snailps.errors import ConfigError, SnailError
from snailps.master.job.controller import JobController
from snailps.master.loop_latency import LoopLatency
from snailps.master.member import Member, Reply
from snailps.master.membership import Membership
from snailps.master.replication.controller import ReplicationController
from snailps.node.status import BlockCounts, NodeStatus, Phase, ShardStatus, Status, WaitStatus
from snailps.transport import messages
from snailps.transport.control import show

log = logging.getLogger(__name__)

LONG_S = 2.0
"""At a block for so long, a worker is asked what it waits for."""
ASKED_MAX = 64
"""Workers that are asked for one answer: where more are stuck, these say why."""
ANSWER_S = 0.3
"""How long an answer waits for what they say."""
SILENT_BEATS = 3
"""Heartbeats that a node is late with when that is told as a wait."""
LAG_S = 1.0
"""A standby that is so far behind is waited for."""
_MASTERS_WORK = ("preparing", "restoring", "loading", "exporting")


class StatusReport:
    """The run as a picture.

    Parameters
    ----------
    settings : MasterSettings
    members, course, replication
        Of the master.
    silences : callable
        Seconds since each member was last heard, by number.
    address : str
        Where the master listens.
    times : LoopLatency
        Of the master's loop.
    """

    def __init__(
        self,
        settings: MasterSettings,
        members: Membership,
        job_controller: JobController,
        replication: ReplicationController,
        *,
        silences: Callable[[], dict[int, float]],
        address: str,
        times: LoopLatency,
    ) -> None:
        self._settings, self._members = settings, members
        self._job_controller, self._replication = job_controller, replication
        self._silences, self._address, self._times = silences, address, times
        self._begun = self._phase_since = time.monotonic()
        self._phase: Phase = "forming"
        self._asked: dict[int, float] = {}  # when; workers that have not answered yet
        self._replies: list[tuple[float, Reply]] = []
        self._log_file: TextIO | None = None
        self._log_at = 0.0
        self._logged: dict[str, list[tuple[str, float]]] = {}

    def step(self, phase: Phase, message: str) -> None:
        """Answers who has waited long enough.  Of the master's loop."""
        now = time.monotonic()
        self._note_phase(phase, now)
        if self._replies and (not self._asked or now >= self._replies[0][0]):
            report = messages.Report(dict(self.status(phase, message)))
            replies, self._replies = self._replies, []
            self._asked.clear()
            for _, reply in replies:
                reply(report)

    def ask(self, reply: Reply) -> None:
        """Answers soon with the status; workers that are long at a block tell first why."""
        now = time.monotonic()
        self._replies.append((now + ANSWER_S, reply))
        for member in self._members.nodes("worker"):
            if len(self._asked) >= ASKED_MAX:
                return
            long = member.block_since and now - member.block_since > LONG_S
            idle = member.waits or member.finished or member.number in self._asked
            if long and not idle:
                self._asked[member.number] = now
                self._members.call(member, messages.Ask("stats"), self._heard(member))

    def _heard(self, member: Member) -> Callable[[messages.Message | SnailError], None]:
        def heard(answer: messages.Message | SnailError) -> None:
            self._asked.pop(member.number, None)
            if isinstance(answer, messages.Report):
                member.take_stats(answer.data)

        return heard

    def _note_phase(self, phase: Phase, now: float) -> None:
        if phase != self._phase:
            self._phase, self._phase_since = phase, now

    # --- the picture ---------------------------------------------------------------------------

    def status(self, phase: Phase, message: str) -> Status:
        """A picture of the run as it is now."""
        now = time.monotonic()
        self._note_phase(phase, now)
        job = self._job_controller.job
        ledger = job.ledger if job is not None else None
        blocks: BlockCounts = {"left": 0, "leased": 0, "done": 0}
        leased: dict[int, list[int]] = {}
        if ledger is not None:
            leased = ledger.holders()
            blocks = {
                "left": ledger.size - ledger.finished - ledger.leased,
                "leased": ledger.leased,
                "done": ledger.finished,
            }
        silences = self._silences()
        route, missing = self._members.route, self._members.missing()
        shards, told = self._shards(), self._job_controller.exporting
        share = job.progress if job is not None and ledger is not None else 0.0
        doing = job.pass_text() if job is not None else ""
        if told is not None:
            share, doing = told.share, told.text
        nodes = [
            self._node(
                member,
                silences.get(member.number),
                len(leased.get(member.number, ())),
                ledger.clock_of(member.number) if ledger is not None else None,
                now,
            )
            for member in self._members.all.values()
        ]
        return {
            "version": __version__,
            "address": self._address,
            "life": f"{self._members.life:016x}",
            "epoch": route.epoch if route is not None else 0,
            "phase": phase,
            "waiting_for": missing
            if phase == "forming"
            else self._job_controller.worker_wait.lacks,
            "progress": share,
            "pass_": doing,
            "unit": job.cls.counts if job is not None else "examples",
            "units": job.units if job is not None else 0,
            "units_per_s": job.rate() if job is not None and ledger is not None else 0.0,
            "loss": job.loss if job is not None else None,
            "lr": job.lr if job is not None else None,
            "eta_s": told.eta_s if told is not None else None,
            "elapsed_s": now - self._begun,
            "blocks": blocks,
            "nodes": nodes,
            "shards": shards,
            "waits": self._waits(phase, nodes, shards, now),
            "requests_per_s": sum(s["pulls_per_s"] + s["pushes_per_s"] for s in shards),
            "checkpoint": self._job_controller.checkpoints.status(),
            "loop": self._times.status(),
            "message": message or self._job_controller.failed,
            "validation": job.validation if job is not None else {},
            "figures": dict(self._job_controller.figures),
        }

    def _node(
        self, member: Member, silence_s: float | None, leased: int, clock: int | None, now: float
    ) -> NodeStatus:
        heard = silence_s is not None and math.isfinite(silence_s)
        busy = leased and member.block_since and not member.finished
        return {
            "role": member.role,
            "id": member.number,
            "host": member.host,
            "pid": member.pid,
            "address": show(member.peer.address) if member.peer.address[0] else "",
            "endpoints": [show(endpoint) for endpoint in member.endpoints],
            "heartbeat_s": silence_s if heard else None,
            "epoch": member.epoch,
            "state": member.state,
            "waits": member.waits,
            "waits_s": member.waits_s,
            "clock": clock,
            "rate": member.rate,
            "done": member.done,
            "leased": leased,
            "block_s": now - member.block_since if busy else None,
            "fetched": member.fetched,
            "lacks": member.lacks,
        }

    def _shards(self) -> list[ShardStatus]:
        """The shards, with what their servers told last."""
        told: dict[tuple[int, int], tuple[dict[str, Any], float, float]] = {}
        for member in self._members.nodes("server"):
            before = {s["shard"]: s for s in member.stats_before.get("shards", [])}
            for shard in member.stats.get("shards", []):
                former = before.get(shard["shard"])
                told[member.number, shard["shard"]] = (
                    shard,
                    _rate("pulls", shard, former, member.stats_s),
                    _rate("pushes", shard, former, member.stats_s),
                )
        route = self._members.route
        found: list[ShardStatus] = []
        for one in self._replication.status():
            stats, pulls_per_s, pushes_per_s = told.get(
                (one["primary"], one["shard"]), ({}, 0.0, 0.0)
            )
            replica = stats.get("replica") or {}
            where = route.shards[one["shard"]] if route is not None else None
            found.append(
                {
                    "shard": one["shard"],
                    "primary": one["primary"],
                    "standby": one["standby"],
                    "state": one["state"],
                    "seeded": one["seeded"],
                    "address": show((where.host, where.port)) if where is not None else "",
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
        return found

    def _waits(
        self, phase: Phase, nodes: list[NodeStatus], shards: list[ShardStatus], now: float
    ) -> list[WaitStatus]:
        """Everybody who waits, the longest first."""
        found: list[tuple[str, str, float]] = []
        if phase == "forming" and (missing := self._members.missing()):
            found.append(("the master", missing, now - self._members.waits_since))
        if self._job_controller.worker_wait.lacks:
            found.append(
                (
                    "the job",
                    self._job_controller.worker_wait.lacks,
                    now - self._job_controller.worker_wait.since,
                )
            )
        if phase in _MASTERS_WORK:
            found.append(("everybody", f"the master, {phase}", now - self._phase_since))
        silent_s = SILENT_BEATS * self._settings.heartbeat_interval
        for node in nodes:
            name = f"{node['role']} {node['id']}"
            member = self._members.all[node["id"]]
            if node["waits"]:
                found.append((name, node["waits"], node["waits_s"]))
            if node["state"] == "connecting":
                waited_s = now - max(member.since, self._members.waits_since)
                found.append((name, "its connections to every shard", waited_s))
            if node["heartbeat_s"] is not None and node["heartbeat_s"] > silent_s:
                found.append(("the master", f"a sign of life of {name}", node["heartbeat_s"]))
            if node["role"] == "worker" and member.stats_at > member.block_since:
                age_s = now - member.stats_at
                found += [  # the oldest is enough: others wait behind it
                    (name, f"{whom} ({what})", seconds + age_s)
                    for what, whom, seconds in member.stats.get("waits", [])[:1]
                ]
        for shard in shards:
            if shard["standby"] and shard["lag_s"] >= LAG_S:
                lag_mb, number = shard["lag_bytes"] / 1e6, shard["shard"]
                whom = f"server {shard['standby']} to take {lag_mb:.1f} MB of shard {number}"
                found.append((f"server {shard['primary']}", whom, shard["lag_s"]))
            if shard["parked"] and shard["waits"]:
                who = f"{shard['parked']} requests at shard {shard['shard']}"
                found.append((who, shard["waits"], 0.0))
        found.sort(key=lambda wait: -wait[2])
        return [{"who": who, "whom": whom, "seconds": seconds} for who, whom, seconds in found]

    # --- the log ---------------------------------------------------------------------------------

    def open_log(self, path: str) -> None:
        """Writes records to `path` from now on.

        Raises
        ------
        ConfigError
            It cannot be written.
        """
        try:
            self._log_file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 - closed by close
        except OSError as error:
            raise ConfigError(f"json_log: cannot write {path}: {error.strerror}") from None

    def log_if_due(self, phase: Phase, message: str) -> None:
        """Writes a record when it is time to, or the model's inspector has seen something."""
        job = self._job_controller.job
        news = job is not None and job.validation is not self._logged
        now = time.monotonic()
        if self._log_file is not None and (now >= self._log_at or news):
            self._log_at = now + self._settings.json_log_interval
            self._logged = job.validation if job is not None else {}
            self.log_now(phase, message)

    def log_now(self, phase: Phase, message: str) -> None:
        """Writes a record, where there is a log."""
        if self._log_file is None:
            return
        status = self.status(phase, message)
        record = {key: value for key, value in status.items() if key != "nodes"}
        try:
            self._log_file.write(json.dumps(_finite({"time": time.time(), **record})) + "\n")
            self._log_file.flush()
        except OSError as error:
            log.error("json_log: cannot write: %s; no more records", error.strerror)
            self._log_file = None

    def close(self) -> None:
        """Closes the log."""
        if self._log_file is not None:
            self._log_file.close()
            self._log_file = None


def _rate(kind: str, now: dict[str, Any], before: dict[str, Any] | None, seconds: float) -> float:
    """Requests a second between two reports of a shard."""
    if before is None or seconds <= 0:
        return 0.0
    return max(0.0, float(now[kind] - before[kind]) / seconds)  # a shard that moved counts anew


def _finite(value: Any) -> Any:
    """The same with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
