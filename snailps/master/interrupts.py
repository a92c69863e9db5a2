"""Interrupts: what signals at the master, or at a member, mean for the job.

    Signal, SIGINT at a member, all servers leaving -> Interrupts
        -> the training ends early and is exported, the export is cancelled, or the cluster ends

The first signal ends a training cleanly, a second one at once; a new one during the export cancels
it.  `now` is monotonic seconds.
"""

from __future__ import annotations

import logging
from typing import cast

from snailps.errors import EXIT_INTERRUPTED, EXIT_OK
from snailps.master.job.controller import JobController
from snailps.master.lifecycle import Lifecycle
from snailps.master.phases import JobPhase
from snailps.node.phrases import PHASE_WORDS
from snailps.node.status import Phase

log = logging.getLogger(__name__)


class Interrupts:
    def __init__(self, lifecycle: Lifecycle, job_controller: JobController) -> None:
        self._lifecycle, self._job_controller = lifecycle, job_controller
        self.forget()

    def forget(self) -> None:
        """Reset for the next job."""
        self._signals = 0
        self._handled = 0  # signals that the training or the export has acted on
        self._asked = False

    def signal(self) -> None:
        self._signals += 1

    def ask(self) -> None:
        """SIGINT at a member; counts as one signal, however often it comes."""
        self._asked = True

    def step(self, now: float) -> None:
        """Act on signals received."""
        if self._lifecycle.stopping or not (self._signals or self._asked):
            return
        phase = self._job_controller.phase
        if phase is JobPhase.EXPORTING:
            self._interrupt_export(now)
        elif phase is JobPhase.IDLE and not self._lifecycle.forming:
            self._lifecycle.stop(EXIT_OK, "the session was ended by a signal")
        elif self._signals > 1 or phase is not JobPhase.TRAINING:
            now_in = "forming" if self._lifecycle.forming else phase.value
            doing = PHASE_WORDS[cast(Phase, now_in)]
            self._lifecycle.fail(f"interrupted while {doing}; nothing was saved", EXIT_INTERRUPTED)
        else:
            self._handled = self._signals
            self._job_controller.interrupt(now)

    def _interrupt_export(self, now: float) -> None:
        """The first signal since the export began ends it cleanly, a second one at once."""
        if self._signals == self._handled:
            return  # it ended the training: the model is being exported
        self._handled = self._signals
        export = self._job_controller.export
        if export.cancelled:
            self._lifecycle.fail(export.verdict(), EXIT_INTERRUPTED)
        else:
            export.cancel(now)

    def all_servers_leave(self, text: str, now: float) -> None:
        """All servers are to leave, with all rows: save the model first, if there is one."""
        if self._job_controller.phase is JobPhase.TRAINING:
            log.warning("%s", text)
            self._job_controller.interrupt(now)
        # else they stay until the export ends
        elif self._job_controller.phase is not JobPhase.EXPORTING:
            self._lifecycle.fail(text)
