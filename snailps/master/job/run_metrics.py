"""Sums the metrics of a run over its job, its members and its shards.

figures of the job, its export, checkpoints, members and standbys -> run_figures -> a mapping
"""

from __future__ import annotations

from typing import Any

from snailps.master.job.controller import JobController
from snailps.master.job.ending import figures_of
from snailps.master.job.job import Job
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.master.replication.controller import ReplicationController
from snailps.master.replication.shard_reports import ShardReports


def run_figures(
    members: Membership,
    replication: ReplicationController,
    shard_reports: ShardReports,
    controller: JobController,
    own_rss_mb: float,  # peak resident size of the master's process
    now: float,
) -> dict[str, Any]:
    """Metrics of the run so far, with the metrics of its export if that has ended."""
    job, _ = controller.leases.running()
    everyone = [*members.all.values(), *members.left]
    reported = [member.figures for member in everyone]
    sums = {
        key: float(sum(figures.get(key, 0) for figures in reported))
        for key in ("bytes_in", "bytes_out", "peak_rss_mb")
    }
    sums["peak_rss_mb"] += own_rss_mb
    sums["peak_rss_mb"] += sum(
        float(member.reports.stats.get("peak_rss_mb", 0.0))
        for member in everyone
        if "peak_rss_mb" not in member.figures
    )
    expired = replication.shard_orders.expired
    return {
        **figures_of(job, sums, now),
        **controller.present.figures,
        "rows": shard_reports.sum("rows"),
        **({"expired": expired} if expired else {}),
        **controller.checkpoints.place.figures(),
        "servers": len(members.nodes("server")),
        "workers": sum(member.role == "worker" for member in everyone),
        **_waited(job, everyone),
        **work_share(everyone),
        **replication.figures(),
    }


def _waited(job: Job, everyone: list[Member]) -> dict[str, Any]:
    """Seconds that each worker waited for others, if the schedule has workers wait."""
    clocks, pace = job.schedule.clocks, job.schedule.pace
    if clocks is None and (pace is None or not pace.is_bound):
        return {}
    workers = [member for member in everyone if member.role == "worker"]
    return {
        "waited_s": {
            f"worker {m.number}": round(max(m.waited_s, m.figures.get("waited_s", 0.0)), 2)
            for m in workers
        }
    }


def work_share(everyone: list[Member]) -> dict[str, float]:
    """Share of the workers' processor time in the training that a single worker would need, too,
    and how many workers have reported it: a lost one has not, the one that replaced it has.

    The rest moves rows and coordinates.  Not known of models that do not count their kernels' time.
    """
    counted = [member.figures for member in everyone if "cpu_s" in member.figures]
    work_s, cpu_s = (sum(float(figures[key]) for figures in counted) for key in ("work_s", "cpu_s"))
    return {"work_share": round(work_s / cpu_s, 3), "workers_timed": len(counted)} if work_s else {}
