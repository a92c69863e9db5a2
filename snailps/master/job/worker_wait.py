"""Owns how long a job without a worker waits for one, and says so to users.

the last worker is gone -> step ... -> another one joins: `over`; or the limit: `fail_job`
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from snailps.master.context import Context
from snailps.master.forming import NOTICE_S

log = logging.getLogger(__name__)


class WorkerWait:
    """The wait for a worker, of `master_time_out` at most. With `on_node_loss: stop`, and in a life
    whose jobs do not wait, the job fails without a wait."""

    def __init__(
        self,
        context: Context,
        advice: Callable[[], str],  # what the user should know of checkpoints; may be empty
        fail_job: Callable[[str], None],
    ) -> None:
        settings = context.settings
        self._advice, self._fail_job = advice, fail_job
        waits = settings.on_node_loss == "recover" and context.life.job_waits
        self._limit_s = settings.master_time_out if waits else 0.0
        self._notice_at = 0.0
        self.lacks, self.since = "", 0.0
        """What the whole job waits for, in words, and since when; empty and 0 while it does not."""

    def over(self) -> None:
        """Stop waiting: a worker has joined."""
        self.lacks, self.since = "", 0.0

    def stood_still(self, seconds: float) -> None:
        if self.since:
            self.since += seconds

    def step(self, work: str, now: float) -> None:
        """The job has `work` left, in words, and no worker: wait, or fail it once time is up."""
        if not self.since:
            self.since, self._notice_at = now, now
        left_s = self._limit_s - (now - self.since)
        if left_s <= 0:
            within = f", none came within {self._limit_s:.0f} s (master_time_out)"
            text = f"every worker has left before the work was done: {work} left"
            text += within if self._limit_s else ""
            self._fail_job(f"{text}. {self._advice()}".rstrip(". "))
        elif now >= self._notice_at:
            self._notice_at = now + NOTICE_S
            hint = " (snailps worker -c FILE starts another)" if self.lacks else ""
            self.lacks = "a worker: the last one is gone"
            log.warning("waiting for %s%s, %.0f s left; %s to do", self.lacks, hint, left_s, work)
