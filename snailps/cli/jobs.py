"""``snailps jobs``: lists this user's runs on this machine, the running and the last ended ones.

    RunRegistry -> runs; the masters' status -> lines of a table, or JSON -> standard output

Owns the words for a run: its title, how it ended, and the command that continues it.  `status`
uses them, too.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from snailps.cli.figures import count_text
from snailps.config.fields import current_folder, home_expanded
from snailps.errors import EXIT_INTERRUPTED, EXIT_LEFT, EXIT_OK, ConfigError
from snailps.node.phrases import phase_words
from snailps.node.run_registry import Run, RunRegistry

if TYPE_CHECKING:
    from snailps.node.status import Status

ASK_S = 1.0
"""Seconds for a master to answer; after them its line says "no answer"."""
OUTPUT_LEAST = 16
"""At least this many characters of an output are shown, even if the line then wraps."""


def command(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per run.", metavar="")
    ] = False,
) -> None:
    """List your jobs on this machine: the running ones, and the last 20 that ended.

    For details of one: `snailps status RUN`. Jobs of other users or machines are not listed; ask
    their master by `snailps status --set master_addr=HOST:PORT`.

    For example: snailps jobs --json
    """
    registry = RunRegistry()
    runs = registry.runs()
    if as_json:
        from snailps.cli.printing import print_json

        for run in runs:
            print_json(record_of(run, registry, status_or_reason(run, registry)[0]))
        return
    for trouble in registry.troubles():
        typer.echo(f"cannot look for jobs in {trouble}", err=True)
    if not runs:
        typer.echo("no jobs on this machine yet: snailps demo runs one", err=True)
        return
    typer.echo("\n".join(table_of(runs, registry, columns_here())))


def columns_here() -> int | None:
    """Return the width of the terminal; None if standard output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def status_or_reason(run: Run, registry: RunRegistry) -> tuple[Status | None, str]:
    """Ask a run's master for its status; None and the reason if there is none.

    The reason is empty if the run does not run.
    """
    if registry.state(run) != "running":
        return None, ""
    from snailps.cli.masters import ask, trust_of
    from snailps.errors import SnailError

    try:
        return ask(run.address, ASK_S, trust_of(run)), ""
    except SnailError as error:
        return None, str(error)


def table_of(runs: Sequence[Run], registry: RunRegistry, width: int | None = None) -> list[str]:
    """Write a line of titles and a line per run, the newest last.

    With a `width`, long outputs lose their first folders, so that each run is one line.
    """
    from snailps.cli.view import aligned

    rows = [("run", "job", "state", "speed", "began", "output")]
    for run in runs:
        status, reason = status_or_reason(run, registry)
        state = _state_text(run, registry, status, reason)
        began = f"{_age(time.time() - run.started)} ago"
        rows.append(
            (str(run.number), run.model, state, _speed_text(run, status), began, shown(run.output))
        )
    if width is not None:
        widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
        room = max(OUTPUT_LEAST, width - sum(widths) - 2 * len(widths))
        rows = [(*row[:-1], _end_of(row[-1], room)) for row in rows]
    return aligned(rows)


def record_of(run: Run, registry: RunRegistry, status: Status | None) -> dict[str, Any]:
    """Make the record of a run for programs (``--json``); its keys are stable."""
    state = registry.state(run)
    return {
        "run": run.number,
        "job": run.model,
        "state": {"running": "running", "killed": "killed"}.get(state) or _ending(run),
        "phase": status["phase"] if status else None,
        "progress": status["progress"] if status else None,
        "unit": status["unit"] if status else None,
        "units_per_s": status["units_per_s"] if status else None,
        "started": run.started,
        "ended": run.ended or None,
        "code": run.code if run.ended else None,
        "reason": run.verdict,
        "output": run.output,
        "address": run.address if state == "running" else "",
        "pid": run.pid,
        "folder": run.folder,
        "command": run.command,
        "figures": run.figures,
    }


def title_of(run: Run) -> str:
    """Name a run by its number, model and output."""
    output = f" to {shown(run.output)}" if run.output else ""
    return f"run {run.number} ({run.model}{output})"


def runs_like(incomplete: str) -> list[tuple[str, str]]:
    """Complete the number of a run, with its title; newest first."""
    runs = reversed(RunRegistry().runs())
    completions = [(str(run.number), title_of(run)) for run in runs]
    return [pair for pair in completions if pair[0].startswith(incomplete)]


def ended_lines(run: Run, registry: RunRegistry) -> list[str]:
    """Say how a finished run ended: figures and files, or the reason and how to continue."""
    if registry.restarts(run):
        return [
            f"the master of {title_of(run)} was killed and is being started again; the other "
            "processes wait for it. Ask again, or add --watch"
        ]
    if registry.state(run) == "killed":
        return [
            f"{title_of(run)} was killed before its end; it began {_ago(run.started)}",
            *_onward(run),
        ]
    took = f"after {_age(run.ended - run.started)}, {_ago(run.ended)}"
    ending = _ending(run)
    if ending == "done":
        lines = [f"{title_of(run)} was done {took}"]
        lines += [f"  {run.verdict}"] if run.verdict else []
        return lines + [f"  {line}" for line in figure_lines(run)]
    how = {
        "interrupted": "was interrupted",
        "left": "was left by its master (SIGTERM)",
    }.get(ending, "failed")
    lines = [f"{title_of(run)} {how} {took}"]
    lines += [f"  {run.verdict}"] if run.verdict else []
    more = figure_lines(run) if run.figures.get("files") else []
    return [*lines, *(f"  {line}" for line in more), *_onward(run)]


def figure_lines(run: Run) -> list[str]:
    """List figures and files of a successful run, its faults, and the next command to try."""
    from snailps.cli.printing import end_lines
    from snailps.cli.view import ending_of

    files = [str(path) for path in run.figures.get("files", [])]
    # `snailps demo` removes its files at its end, and users move theirs.
    kept = not files or any(map(os.path.lexists, files))
    figures = {**run.figures, "files": [shown(path) for path in files]}
    if "report" in figures:
        figures["report"] = shown(str(figures["report"]))
    last = cast("Status", run.last)
    lines = end_lines(ending_of(figures, job=run.model, status=last, kept=kept))
    return lines if kept else [*lines, "its files are no longer there"]


def shown(path: str) -> str:
    """Shorten a path to what can be typed here: relative, if it is below the current folder.

    Never with ~, which a shell does not expand in quotes.
    """
    if not path:
        return ""
    with contextlib.suppress(ValueError, OSError):
        return str(Path(path).relative_to(current_folder()))
    return path


def find(name: str, runs: Sequence[Run]) -> Run:
    """Find the newest run with this number, output or address; `ConfigError` if there is none."""
    wanted = str(Path(home_expanded(name)).absolute())
    for run in reversed(runs):
        if name in (str(run.number), run.address) or (run.output and wanted == run.output):
            return run
    for run in reversed(runs):  # a part of the output
        if run.output and name in (Path(run.output).name, *run.figures.get("files", [])):
            return run
    numbers = ", ".join(str(run.number) for run in runs)
    raise ConfigError(
        f"no run {name!r} on this machine: expected a number that snailps jobs lists"
        + (f" ({numbers})" if numbers else ", which lists none yet")
        + ", or the output of a run. For a master elsewhere: --set master_addr=HOST:PORT"
    )


def only_one(runs: Sequence[Run], how: str) -> Run | None:
    """Return the single run, or None; refuse several, and say by `how` to name one of them."""
    if len(runs) > 1:
        names = ", ".join(f"{run.number} at {run.address}" for run in runs)
        raise ConfigError(f"{len(runs)} jobs run on this machine ({names}): {how.format(runs[-1])}")
    return runs[0] if runs else None


def _end_of(path: str, room: int) -> str:
    """Shorten a path to as many of its last folders as fit."""
    if len(path) <= room:
        return path
    parts = path.split("/")
    while len(parts) > 1 and len("/".join(parts)) + 4 > room:
        parts.pop(0)
    return f".../{'/'.join(parts)}"


def _ending(run: Run) -> str:
    names = {EXIT_OK: "done", EXIT_INTERRUPTED: "interrupted", EXIT_LEFT: "left"}
    return names.get(run.code, "failed")


def _state_text(run: Run, registry: RunRegistry, status: Status | None, reason: str) -> str:
    state = registry.state(run)
    if state == "ended":
        return _ending(run)
    if state == "killed":
        return "starting again" if registry.restarts(run) else "killed"
    if status is None:
        return "no answer" if "within" in reason else "no access"
    shared = status["phase"] in ("survey", "training", "exporting")
    return phase_words(status) + (f" {int(100 * status['progress'])}%" if shared else "")


def _speed_text(run: Run, status: Status | None) -> str:
    if status is not None:
        if not status["units_per_s"]:
            return ""
        return f"{count_text(status['units_per_s'])} {status['unit']}/s"
    for unit in ("words", "examples"):
        if run.figures.get(f"{unit}_per_s"):
            return f"{count_text(run.figures[f'{unit}_per_s'])} {unit}/s"
    return ""


def _onward(run: Run) -> list[str]:
    """How to continue a run that has not ended well, and from where."""
    if not run.command:
        return []
    folder = "" if run.folder in ("", current_folder()) else f"cd {shlex.quote(run.folder)} && "
    line = f"{folder}{run.command}"
    newest = _newest_checkpoint(run.checkpoints)
    if run.journal and not run.launcher and _has_files(run.journal):
        later = f"from checkpoint {newest}, in {shown(run.checkpoints)}" if newest else "anew"
        return [
            f"  continue with: {line}",
            f"  its processes wait for that (master_time_out); without them it begins {later}",
        ]
    if newest:
        return [f"  continue from its newest checkpoint, in {shown(run.checkpoints)}: {line}"]
    return [f"  nothing was saved, so it has to begin again: {line}"]


def _newest_checkpoint(folder: str) -> int:
    """Find the checkpoint from which the same command continues: its number, or 0 for none."""
    if not folder:
        return 0
    from snailps.errors import CheckpointError
    from snailps.store.checkpoint.folder import CheckpointFolder

    with contextlib.suppress(CheckpointError):
        for one in CheckpointFolder(Path(folder)).candidates():
            if one.state == "good":
                return one.number
    return 0


def _has_files(folder: str) -> bool:
    with contextlib.suppress(OSError):
        return any(True for _ in os.scandir(folder))
    return False


def _age(seconds: float) -> str:
    """Write a duration in one unit: ``42 s``, ``5 min``, ``3 h``, ``2 days``."""
    seconds = max(0.0, seconds)
    for limit, unit_s, unit in ((90, 1, "s"), (5400, 60, "min"), (129_600, 3600, "h")):
        if seconds < limit:
            return f"{round(seconds / unit_s)} {unit}"
    return f"{round(seconds / 86_400)} days"


def _ago(at: float) -> str:
    return f"{_age(time.time() - at)} ago"
