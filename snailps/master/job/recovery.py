"""What an earlier master of this life had noted of its job: a new one goes on from there.

    facts of the journal -> JobRecovery.go_on -> the same calls of Job and Ledger, in order

It owns the meaning of the job's facts, and which orders to servers a new master gives again, for
the one that was lost may not have given them to all: each is harmless when it comes twice.  What
workers have leased, and told in the last moments, they say themselves when they come back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snailps.config import CHECKPOINT_SETTINGS, MasterSettings, to_mapping
from snailps.errors import ConfigError
from snailps.master.job.job import Job
from snailps.master.job.position import Position, unpack
from snailps.master.journal import Fact, Journal
from snailps.master.leases import BspLedger, RoundLedger
from snailps.master.membership import Membership
from snailps.store.route import Route
from snailps.transport import messages
from snailps.transport.sockets import is_there

if TYPE_CHECKING:
    from snailps.master.job.controller import JobController

log = logging.getLogger(__name__)


_MAY_DIFFER = {*CHECKPOINT_SETTINGS, "scratch_dir", "scratch_bytes"}
"""Settings of a job that are the master's own affair."""


def journal_path(settings: MasterSettings, job: Job) -> Path | None:
    """Folder of a job's journal; None where there is none."""
    path = settings.journal_dir or (f"{job.settings.output}.journal" if job.settings.output else "")
    return Path(path).expanduser().absolute() if path else None


def life_of(life: int, job: Job, frag_num: int) -> Fact:
    """The first fact of a run."""
    about = {"life": life, "at": time.time(), "job": _identity(job, frag_num)}
    return Fact("life", about)


def unended(journal: Journal, job: Job, frag_num: int) -> list[Fact]:
    """Takes a journal; the facts of its run, if that is to be taken over.

    Raises
    ------
    SnailError
        The journal is in use, damaged, or of another job that still runs.
    """
    there = journal.take()
    if there and job.settings.fresh:
        log.warning("%s: begun anew with --fresh: the run before is given up", journal.path)
    facts = [] if job.settings.fresh else journal.read()
    if not facts:
        return []
    kinds = {fact.kind for fact in facts}
    if "stopped" in kinds and "exported" not in kinds:
        return []
    routes = [fact.data["route"] for fact in facts if fact.kind == "route"]
    if routes and "exported" not in kinds:
        places = [(shard.host, shard.port) for shard in Route.from_dict(routes[-1]).shards]
        if not any(is_there(place) for place in places):
            log.warning(
                "%s: of the run before nobody is left, and its rows are gone: a new one begins",
                journal.path,
            )
            return []
    theirs, ours = facts[0].data["job"], _identity(job, frag_num)
    differ = [
        f"{name} is {ours.get(name)} here and {theirs.get(name)} there"
        for name in sorted({*ours, *theirs})
        if theirs.get(name) != ours.get(name)
    ]
    if differ and not routes:
        return []  # it had not even formed its cluster
    if differ:
        raise ConfigError(
            f"{journal.path} is the journal of another job, which has not ended: "
            f"{'; '.join(differ[:3])}. Start it with its own settings, or begin anew with --fresh"
        )
    journal.check(facts)
    log.warning("%s: a run has not ended: taking it over", journal.path)
    return facts


def _identity(job: Job, frag_num: int) -> dict[str, str]:
    settings = to_mapping(job.settings)
    return {
        "worker_class": job.worker_class,
        "frag_num": str(frag_num),
        **{name: text for name, text in settings.items() if name not in _MAY_DIFFER},
    }


class JobRecovery:
    """The facts of a life that began under another master.

    Parameters
    ----------
    facts : sequence of Fact
        None: this master is the first.
    members : Membership
    """

    def __init__(self, facts: Sequence[Fact], members: Membership) -> None:
        self._facts = list(facts)
        self._members = members
        self.known = bool(facts)
        self.begun = any(fact.kind in ("survey", "train") for fact in facts)
        """Whether the job had begun with something that must not be done again."""

    def go_on(self, controller: JobController, job: Job) -> None:
        """Brings a prepared job to where it was; all members that come back are back.

        Raises
        ------
        SnailError
            The input has changed, or the journal is damaged.
        """
        self.begun = False
        self._members.table_registry.remake()
        controller.checkpoints.forget_others()
        now = time.time()
        train, exported = self._last("train"), self._last("exported")
        job_s = max(0.0, now - self._last("life")["at"])
        if train:
            self._train(controller, job, train)
            job.began(job_s, max(0.0, now - train["at"]))
        else:
            controller.begin_survey(job)
            job.began(job_s, 0.0)
            if any(fact.kind == "summary" for fact in self._facts):
                job.adopt(self._base(job))
                controller.summarised()
        if exported:
            job.end_pass()
            controller.ended(exported["figures"])
        self._facts.clear()  # they may be many, and have said all
        share, what = job.progress, "training" if job.pass_ == "train" else "survey"
        log.warning("took over from the master before: %.0f%% of the %s done", 100 * share, what)

    def _last(self, kind: str) -> dict[str, Any]:
        """The last fact of a kind; empty: none."""
        return next((fact.data for fact in reversed(self._facts) if fact.kind == kind), {})

    def _base(self, job: Job) -> Position:
        """The position at which the training began."""
        position = unpack(self._members.journal.base())
        if sorted(position.sources) != sorted(job.input.sources):
            raise ConfigError(
                f"{self._members.journal.path}: the input has other files, or files of other "
                "lengths, than the run had that is to be taken over. Put them back, or begin anew "
                "with --fresh"
            )
        return position

    def _train(self, controller: JobController, job: Job, train: dict[str, Any]) -> None:
        position = self._base(job)
        ticks = [int(tick) for tick in position.figures.get("ticks", [0])]
        state = self._last("state")
        if state:
            arrays = self._members.journal.state_arrays()
            began = replace(position, outcomes=arrays["outcomes"])
            controller.begin_training(job, train["nodes"], began)
            job.resume(state["job"], arrays)
            ticks = [int(tick) for tick in state["ticks"]]
        else:
            controller.begin_training(job, train["nodes"], position)
        controller.checkpoints.continued_from = train["restored"]
        closing: list[int] = []
        stands = False
        begin = "state" if state else "train"
        at = max(at for at, fact in enumerate(self._facts) if fact.kind == begin)
        for fact in self._facts[at + 1 :]:
            if fact.kind == "tick":
                ticks.append(fact.data["tick"])
            elif fact.kind == "close":
                closing = fact.data["parts"]
                assert isinstance(job.ledger, RoundLedger)
                job.ledger.only(closing)
            elif fact.kind == "round":
                assert isinstance(job.ledger, RoundLedger)
                job.round_done(fact.data["figures"])
                job.ledger.advance()
                job.begin_round()
                closing = []
            elif fact.kind == "early":
                self._early(controller, job, **fact.data)
            else:
                stands = stands or fact.kind == "clocks"
                _replay(job, fact)
        controller.expiry.resume(ticks)
        controller.leases.clocks_noted = stands
        if job.clocked and not stands:
            controller.set_clock(job, position.clock)
        if closing and controller.round is not None:
            controller.round.close(closing)
        self._fence(job)

    def _early(self, controller: JobController, job: Job, why: str, size: int) -> None:
        """The training was to end early."""
        job.ended_by = why
        if isinstance(job.ledger, BspLedger):
            job.ledger.end_after(-(-size // job.ledger.micro_batches) - 1)
        elif job.ledger is not None:
            job.ledger.close()
        controller.ends_early(interrupted=why == "interrupt")

    def _fence(self, job: Job) -> None:
        """Shuts out again whoever was lost before; and seals what it had pushed whole."""
        for number, lost in self._members.gone.items():
            if lost:
                ledger = job.ledger
                last = ledger.last_of(number) if isinstance(ledger, BspLedger) else None
                self._members.rows.fence(number, last)


def _replay(job: Job, fact: Fact) -> None:
    """Does with a job what was done with it; facts that are not of the training are left out."""
    ledger, data = job.ledger, fact.data
    assert ledger is not None
    if fact.kind == "done":
        node = data["node"]
        fields = {name: value for name, value in data.items() if name != "node"}
        job.replay(messages.Done("train", **fields), node)
    elif fact.kind == "settled":
        job.outcomes.settle(data["numbers"], data["node"])
    elif fact.kind == "settled_all":
        job.outcomes.settle_all(data["node"], data["but"])
    elif fact.kind == "join":
        ledger.join(data["node"])
    elif fact.kind == "leave":
        ledger.leave(data["node"])
    elif fact.kind == "retire":
        ledger.retire(data["node"])
    elif fact.kind == "loss":
        ledger.count_loss(data["number"])
