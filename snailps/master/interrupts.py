"""Decides what signals at the master or at a member, and a driver that ends it, mean for the job.

    signal(number), SIGINT at a member, all servers leaving -> Interrupts
        -> the training ends early and is exported, the master leaves, or the cluster ends

    SIGINT, SIGHUP (a terminal is closed)  end the training early and save the model
    SIGTERM                                leave: the job goes on when this master is started again.
                                           Where nothing could go on (no journal, or servers and
                                           workers end with this process), the same as SIGINT
    one of each                            the last one counts
    a second SIGINT before the export      ends the cluster without a result
    the first one during the export        nothing: the model is being saved already
    one more during the export             ends the export; the master leaves if it can
    each while it takes a run over         leave: servers have the rows, and the journal stays.
                                           Where nobody could go on, it waits for the members

docs/operations.md has the table, which `tests/cluster/test_signals.py` plays with real processes.
`now` is monotonic seconds.
"""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Callable
from functools import partial
from typing import cast

from snailps.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_LEFT, EXIT_OK, ClusterError
from snailps.master.context import Context
from snailps.master.job.controller import JobController
from snailps.master.lifecycle import Lifecycle
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.master.phases import JobPhase
from snailps.node.phrases import PHASE_WORDS
from snailps.node.status import Phase
from snailps.transport import messages

log = logging.getLogger(__name__)

LEAVE_S = 3.0
"""Seconds from SIGTERM until the master leaves. If all servers get SIGTERM meanwhile, the whole
cluster is being removed (`docker stack rm`, `kubectl delete`) and nothing could go on, so the model
is saved instead. Another SIGTERM in this time counts as the same one: Slurm sends it to each
process of a batch script, and the script passes it on."""


class Interrupts:
    def __init__(
        self,
        context: Context,
        lifecycle: Lifecycle,
        job_controller: JobController,
        members: Membership,
        save_last: Callable[[Callable[[], None]], None],  # a session's rows, before it ends
    ) -> None:
        self._out, self._nodes_stay = context.out, context.nodes_stay
        self._drivers_work = context.life.drivers_work
        self._lifecycle, self._job_controller = lifecycle, job_controller
        self._members, self._save_last = members, save_last
        self._wait_s = context.settings.master_time_out  # seconds that nodes wait for a master
        self._code = EXIT_INTERRUPTED  # exit code if the master leaves, by the last signal
        self._leave_at: float | None = None  # when the master leaves, after SIGTERM
        self._terminated_at = -math.inf  # when the last SIGTERM came
        self._servers_leave = ""  # why the cluster ends, once all servers are to leave
        self.forget()

    def forget(self) -> None:
        """Reset for the next job."""
        self._signals = 0
        self._stops = 0  # signals that ask for the end of the job
        self._early = 0  # signals before the export began
        self._asked = False  # a member has had SIGINT
        self._is_noted = False  # the log has said that the export goes on

    @property
    def may_leave(self) -> bool:
        """Whether another master could continue: there is a journal, and the nodes stay."""
        return self._nodes_stay and self._out.kept

    def signal(self, number: int, now: float) -> None:
        """Take a signal at this process; `step` acts on it."""
        if number == signal.SIGTERM:
            again, self._terminated_at = now - self._terminated_at < LEAVE_S, now
            if again:
                return
        self._signals += 1
        leaves = number == signal.SIGTERM and self.may_leave
        self._code = EXIT_LEFT if leaves else EXIT_INTERRUPTED
        if not leaves:
            self._stops += 1
            self._leave_at = None  # the last signal counts
        elif self._job_controller.phase is not JobPhase.EXPORTING:
            self._leave_at = now + LEAVE_S

    def ask(self) -> None:
        """Take SIGINT at a member: one signal, however many members get it (Ctrl-C reaches all
        processes of a terminal)."""
        self._asked, self._leave_at = True, None

    def shut_down(self, member: Member, message: messages.Shutdown, call: int, now: float) -> None:
        """A driver ends the session."""
        if not self._drivers_work:
            raise ClusterError("this cluster ends with its own job: interrupt its master")
        self._out.reply(call, messages.Ok())
        self._save_last(partial(self._lifecycle.stop, EXIT_OK, "ended by the driver"))

    def step(self, now: float) -> None:
        """Act on the signals received."""
        leaves = self._leave_at is not None
        if self._lifecycle.ending or not (
            self._signals or self._asked or leaves or self._servers_leave
        ):
            return
        if self._members.returning:
            due = self._stops if self._leave_at is None else now >= self._leave_at
            if due and self.may_leave:
                self.leave("interrupted while it took the run over")
            return
        phase = self._job_controller.phase
        if phase is JobPhase.EXPORTING:
            self._step_export(now)
            return
        self._early = self._signals
        leaves = leaves and self.may_leave  # the journal may have failed since
        if self._servers_leave and phase is not JobPhase.TRAINING and self._stops < 2:
            if phase is JobPhase.IDLE:  # of a session; its job has ended for this
                self._end_without_servers()
            return
        if leaves and not self._servers_leave:
            if now >= cast(float, self._leave_at):
                self.leave("left by SIGTERM")
        elif phase is JobPhase.IDLE and not self._lifecycle.forming:
            stop = partial(self._lifecycle.stop, EXIT_OK, "the session was ended by a signal")
            if self._stops > 1:
                stop()
            else:
                self._save_last(stop)
        elif self._stops > 1 or phase is not JobPhase.TRAINING:
            now_in = "forming" if self._lifecycle.forming else phase.value
            doing = PHASE_WORDS[cast(Phase, now_in)]
            self._lifecycle.fail(f"interrupted while {doing}; nothing was saved", EXIT_INTERRUPTED)
        else:
            self._job_controller.training.interrupt(now)

    def leave(self, why: str, code: int | None = None) -> None:
        """End this process alone; another master continues from the journal. The exit code is by
        the last signal, unless given."""
        text = (
            f"{why}. Servers and workers keep what they have: within {self._wait_s:.0f} s "
            "(master_time_out) the same command goes on"
        )
        self._lifecycle.leave(self._code if code is None else code, text)

    def _step_export(self, now: float) -> None:
        """Signals during the export: the first one asks for what is being done; one more cancels
        the export; the next one ends the cluster, or this master, at once."""
        export = self._job_controller.exporting.export
        later_signals = self._signals - max(1, self._early)
        if later_signals > 1 and self.may_leave:
            self.leave(export.verdict())
        elif later_signals > 1:
            self._lifecycle.fail(export.verdict(), EXIT_INTERRUPTED)
        elif later_signals == 1 and not export.cancelled:
            export.cancel(now)
        elif later_signals == 0 and not self._early and not self._is_noted:
            self._is_noted = True
            log.warning("the model is being saved, and that continues: interrupt again to stop it")

    def all_servers_leave(self, text: str, now: float) -> None:
        """All servers are to leave, and all rows with them: save the model first, if there is
        one."""
        self._servers_leave = text
        if self._job_controller.phase is JobPhase.TRAINING:
            log.warning("%s", text)
            self._job_controller.training.interrupt(now)
        # During an export servers stay until it ends.
        elif self._job_controller.phase is not JobPhase.EXPORTING:
            self._end_without_servers()

    def _end_without_servers(self) -> None:
        # An idle session ends as it does by a signal at its master.
        idle = self._job_controller.phase is JobPhase.IDLE and not self._lifecycle.forming
        code = EXIT_INTERRUPTED if idle else EXIT_FAILED
        self._save_last(partial(self._lifecycle.fail, self._servers_leave, code))
