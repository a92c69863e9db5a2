"""Words for a run's phases and states: one table for terminal, status and page.

    Status.phase, NodeStatus.state -> PHASE_WORDS, STATE_WORDS -> what people read

The program's own words stay in `--json`, `json_log` and with `--verbose`. No layout here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from snailps.api.export_progress import TESTING
from snailps.node.status import NodeStatus, Phase, Status

NAME_MARK = "\x1e"
"""Begins the line in which a process reports its name to its launcher."""

OWN_ERROR = "snailps: error: "
"""Begins the line in which a process reports why it failed."""

Mood = Literal["good", "idle", "waits", "bad"]
"""Meaning of a state to a user: the colour of its text."""

BRIEF_S = 1.0
"""Shorter waits of a training are not shown."""

PHASE_WORDS: dict[Phase, str] = {
    "forming": "starting the cluster",
    "preparing": "opening the input",
    "ready": "ready",
    "idle": "waiting for a job",
    "restoring": "loading the checkpoint",
    "survey": "counting",
    "loading": "loading the model",
    "training": "training",
    "exporting": "saving the model",
    "stopping": "ending",
    "left": "waiting for the master to be started again",
    "done": "done",
    "failed": "failed",
}
"""Phase -> words; "survey" is followed by what is counted, see `phase_words`."""

EARLY_ENDS = {
    "interrupt": "ended early by Ctrl-C",
    "converged": "the loss has stopped falling",
    "target_loss": "target_loss is reached",
    "max_steps": "max_steps is reached",
    "max_seconds": "max_seconds is reached",
    "stop_after": "no better figure on the validation data",
}
"""`ended_by` -> why the training ended before its last epoch."""

WHOLE_ENDS = ("converged", "stop_after")
"""Early ends of a training that is complete: `epochs` was only an upper limit."""

STATE_WORDS: dict[str, tuple[str, Mood]] = {
    "registered": ("starting", "idle"),
    "connecting": ("connecting", "waits"),
    "ready": ("ready", "good"),
    "counting": ("counting", "good"),
    "training": ("training", "good"),
    "finished": ("finished", "idle"),
    "waiting for the export": ("done", "idle"),
    "asked for its counters": ("to tell its counters", "waits"),
    "leaving": ("moving its shards away", "waits"),
    "back": ("back with the master", "good"),
    "missed": ("lost", "bad"),
    "gone": ("lost", "bad"),
    "lost": ("lost", "bad"),
    "bye": ("ended", "idle"),
    "stopping": ("ending", "idle"),
}
"""State of a process -> words, and meaning."""


def phase_words(status: Status) -> str:
    """Say what the run does now: ``training``, ``counting words``."""
    words = PHASE_WORDS.get(status["phase"], status["phase"])
    if status["phase"] == "survey":
        return f"{words} {'words' if status['unit'] == 'words' else 'features'}"
    if status["phase"] == "exporting" and status["pass_"].startswith(TESTING):
        return "testing the model"
    if status["phase"] == "done" and (end := status["figures"].get("ended_by")) in EARLY_ENDS:
        return EARLY_ENDS[end] if end == "interrupt" else f"{words}: {EARLY_ENDS[end]}"
    return words


def share_done(status: Status) -> float:
    """Share of the run to show: of a run that is over, what it has trained of its epochs."""
    if status["phase"] != "done":
        return status["progress"]
    figures = status["figures"]
    is_partial = figures.get("ended_by") in EARLY_ENDS.keys() - set(WHOLE_ENDS)
    share = figures.get("progress") if is_partial else None
    return share if isinstance(share, float) else 1.0


def process_name(role: str, number: int) -> str:
    """A process's name, the same everywhere: ``server 2``; of the master ``the master``."""
    return "the master" if role == "master" else f"{role} {number}"


def lasts(seconds: float) -> bool:
    """Whether a wait is long enough to show: processes wait for each other all the time."""
    return seconds >= BRIEF_S


def state_words(node: NodeStatus) -> tuple[str, Mood]:
    """Say what a process does now, and what that means."""
    words, mood = STATE_WORDS.get(node["state"], (node["state"], "good"))
    if node["role"] == "server" and node["state"] in ("ready", "back"):
        words = "serving"
    if node["waits"] and lasts(node["waits_s"]) and mood == "good":
        mood = "waits"
    return words, mood


def not_done(figures: Mapping[str, Any]) -> list[str]:
    """Why things that the user asked for were not done, such as ``not tested: no such file``."""
    return [
        f"{name.replace('_', ' ')}: {why}"
        for name in ("not_tested", "not_calibrated")
        if isinstance(why := figures.get(name), str)
    ]


def few_words(figures: Mapping[str, Any]) -> str:
    """Why word vectors are of no use yet, where few words were trained; else empty."""
    if not figures.get("wants_epochs") or figures.get("ended_by") != "epochs":
        return ""
    return f"after {figures['words']:,} words in all epochs vectors of unlike words are still alike"


def untested(figures: Mapping[str, Any]) -> str:
    """Why there are no figures of the lines of a test of names; empty if there are some."""
    if figures.keys() - {"unknown", "seen", "held_out"}:
        return ""
    if figures.get("held_out") == 0:
        return "no line was held out"
    return f"nothing is left: {' and '.join(left_out(figures)) or 'it has no lines'}"


def left_out(figures: Mapping[str, Any]) -> list[str]:
    """Which lines of a test of names are in no figure, or count as average, and why."""
    reasons = {
        "unknown": ("has unknown names", "have unknown names"),
        "seen": ("is in the training, and left out", "are in the training, and left out"),
    }
    counts = [(figures.get(name, 0), reason) for name, reason in reasons.items()]
    return [f"{count:,} of its lines {reason[count > 1]}" for count, reason in counts if count]
