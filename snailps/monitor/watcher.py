"""Asks a master for its status at intervals, and keeps the newest picture of the run.

    Ask -> master -> Status -> trimmed, Series -> Watcher.picture -> JSON for pages

One thread per run.  It asks once a second while a page is open, else every five seconds, and less
often if answers are large, so that the master spends less than two percent of a core on them.  Must
not know HTTP.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from snailps.config import parse_addr
from snailps.dataclass import dataclass, field
from snailps.errors import EXIT_INTERRUPTED, EXIT_LEFT, ProtocolError, SnailError
from snailps.monitor.picture import packed, plain, trimmed
from snailps.monitor.series import Series
from snailps.node.phrases import PHASE_WORDS, share_done
from snailps.node.status import Phase, Status
from snailps.transport import messages
from snailps.transport.control import ControlClient, Trust, visit

log = logging.getLogger(__name__)

DIAL_S = 5.0
LOOK_S = 1.0
"""Seconds between questions while a page is open."""
IDLE_S = 5.0
"""Seconds between questions while none is."""
LOOKED_S = 15.0
"""A page that has not asked for this long counts as closed or hidden."""
NODES_PER_S = 2000
"""Bound on the rows of processes and shards asked for per second, in large clusters."""
DETAILS_S = 5.0
"""Seconds between questions for log lines and settings."""
AGAIN_S = 1.0
"""Pause before a master is dialled again."""
ENDING_TRIES, ENDING_S = 20, 0.1
"""When a live master hangs up, its ending is looked up this often, with these pauses: it closes its
port before it has written its report and recorded how it ended."""


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run that can be shown: where its master listens, and its names."""

    name: str
    address: str
    trust: Trust
    title: str = ""
    output: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended: exit code of its master, reason if it was not as planned, figures."""

    code: int
    text: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)


class Watcher:
    """Keeps the newest picture of one run, in a thread of its own.

    `ending(run)` says how the run ended, None while that is not known; it is asked when the master
    does not answer.  `clock` gives steady seconds.
    """

    def __init__(
        self,
        run: ShownRun,
        *,
        ending: Callable[[ShownRun], Ending | None] = lambda run: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run = run
        self._ending, self._clock = ending, clock
        self._changed = threading.Condition()
        self._version = 0
        self._packed = b""
        self._status: dict[str, Any] = {}
        self._state, self._why = "connecting", ""
        self._series = Series()
        self._extra: dict[str, Any] = {"settings": [], "log": [], "words": None}
        self._maps = 0
        self._closed = threading.Event()
        self._wanted = threading.Event()
        self._looked_at = self._details_at = -1e9
        self._thread = threading.Thread(target=self._watch, name="snailps-watcher", daemon=True)

    def start(self) -> None:
        """Start asking; counts as if a page had asked."""
        self._looked_at = self._clock()
        self._thread.start()

    def close(self, limit_s: float = 1.0) -> None:
        self._closed.set()
        self._wanted.set()
        self._thread.join(limit_s)

    def end(self, why: str) -> None:
        """Tell open pages that nothing new will come; the last picture remains."""
        ending = self._ending(self.run)
        with self._changed:
            self._state, self._why = "ended", why
            if ending is not None:
                self._take(ending)
        self._renew()

    def _take(self, ending: Ending) -> None:
        """Turn the last picture into the picture of the end."""
        self._state, self._why = "ended", plain(ending.text) or self._why
        if not self._status:
            return
        phase: Phase = "failed" if ending.code else "done"
        phase = "left" if ending.code == EXIT_LEFT else phase
        self._status = {
            **self._status,
            "phase": phase,
            "phase_words": PHASE_WORDS[phase] if ending.code != EXIT_INTERRUPTED else "interrupted",
            "message": plain(ending.text),
            "figures": plain(ending.figures) or self._status["figures"],
            "waits": [],
            "waiting_for": "",
        }
        self._status["progress"] = plain(share_done(cast(Status, self._status)))

    def idle_s(self) -> float:
        return self._clock() - self._looked_at

    def picture(self, after: int = 0, limit_s: float = 0.0) -> bytes:
        """Return the newest picture as JSON; wait up to `limit_s` for one newer than `after`.

        Thread-safe; counts as a look of a page.
        """
        self._looked_at = self._clock()
        self._wanted.set()
        until = self._clock() + limit_s
        with self._changed:
            while self._version <= after and not self._closed.is_set():
                left_s = until - self._clock()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            self._looked_at = self._clock()
            return self._packed or self._pack()

    # --- the thread ------------------------------------------------------------------------------

    def _watch(self) -> None:
        control: ControlClient | None = None
        while not self._closed.is_set():
            begin = self._clock()
            try:
                if control is None:
                    address = parse_addr(self.run.address, "the master's address")
                    control = visit(address, DIAL_S, self.run.trust)
                self.look_once(control)
            except SnailError as error:
                self.note_lost(error)
                if control is not None:
                    control.close()
                    control = None
            except Exception:
                log.exception("cannot read the answer of the master at %s", self.run.address)
                self.note_lost(ProtocolError("the master's answer cannot be read here"))
            took_s = self._clock() - begin
            self._pause(max(AGAIN_S if control is None else 0.0, self.period_s() - took_s))
        if control is not None:
            control.close()

    def _pause(self, seconds: float) -> None:
        """Sleep; a page that is opened ends a long pause at once."""
        idle = self.idle_s() > LOOKED_S
        if not idle:
            self._closed.wait(seconds)
            return
        self._wanted.clear()
        self._wanted.wait(seconds)

    def period_s(self) -> float:
        nodes = self._status.get("nodes", {}).get("rows", [])
        shards = self._status.get("shards", {}).get("rows", [])
        least_s = (len(nodes) + len(shards)) / NODES_PER_S
        return max(least_s, IDLE_S if self.idle_s() > LOOKED_S else LOOK_S)

    def look_once(self, control: ControlClient) -> None:
        status = self._ask(control, "status", 2 * DIAL_S)
        with self._changed:
            self._series.add(status, self._clock() - status["elapsed_s"])
        fresh = trimmed(status)
        if self._state != "live" or self._status.get("cluster_id") != fresh["cluster_id"]:
            history = self._ask(control, "history")
            with self._changed:
                self._series.replace(history)
        now = self._clock()
        if now - self._details_at >= DETAILS_S and self.idle_s() <= LOOKED_S:
            self._details_at = now
            self._extra["settings"] = plain(self._ask(control, "settings")["settings"])
            self._extra["log"] = plain(self._ask(control, "log")["lines"])
            if fresh["phase"] == "training":
                self._take_map(self._ask(control, "map"))
        with self._changed:
            self._status, self._state, self._why = fresh, "live", ""
        self._renew()

    def _take_map(self, answer: Mapping[str, Any]) -> None:
        """Take a newer map of words; an empty answer keeps the previous one."""
        if answer.get("words"):
            self._maps += 1
            self._extra["words"] = {**plain(answer), "number": self._maps}

    def _ask(self, control: ControlClient, what: str, limit_s: float = DIAL_S) -> Any:
        answer = control.call(messages.Ask(what), limit_s)
        if not isinstance(answer, messages.Report):
            raise ProtocolError(f"expected a Report, got {type(answer).__name__}")
        return answer.data

    def note_lost(self, error: SnailError) -> None:
        """Record that the master does not answer; keep the last picture, or show the end."""
        ending = self._ending(self.run)
        for _ in range(ENDING_TRIES if self._state == "live" else 0):
            if ending is not None or self._closed.wait(ENDING_S):
                break
            ending = self._ending(self.run)
        with self._changed:
            if self._state == "ended":
                return
            self._state = "lost" if self._status else "connecting"
            self._why = str(error)
            self._details_at = -1e9
            if ending is not None:
                self._take(ending)
        self._renew()

    def _renew(self) -> None:
        with self._changed:
            self._version += 1
            self._packed = self._pack()
            self._changed.notify_all()

    def _pack(self) -> bytes:
        run = self.run
        return packed(
            {
                "version": self._version,
                "state": self._state,
                "why": plain(self._why),
                "run": plain(
                    {
                        "name": run.name,
                        "address": run.address,
                        "title": run.title,
                        "output": run.output,
                    }
                ),
                "status": self._status or None,
                "series": self._series.columns(),
                **self._extra,
            }
        )
