"""Chooses the words for a run, for the live display, plain lines and the page of the status.

    Status, seconds left -> view_of -> View -> a line, or live_picture
    Status -> page_of -> View.line, Sections -> page_lines, page_picture
    figures of the end, last Status -> ending_of -> Ending -> end_lines, end_picture

Owns the wording and order of what is shown.  `node/phrases.py` has the words of phases and states,
`printing.py` draws.  Looks up sizes of files; must not know sockets, clocks or streams.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snailps.cli import FAULTS, FAULTS_MAX
from snailps.cli.figures import count_text, counted, seconds_text, short_seconds_text, size_text
from snailps.dataclass import dataclass, field
from snailps.models import MODELS
from snailps.node.phrases import (
    EARLY_ENDS,
    WHOLE_ENDS,
    Mood,
    few_words,
    lasts,
    left_out,
    not_done,
    phase_words,
    process_name,
    state_words,
    untested,
)
from snailps.node.status import FIGURED_AT, NodeStatus, Phase, Status

SHARED: tuple[Phase, ...] = ("survey", "loading", "restoring", "training", "exporting")
"""Phases whose progress is shown as a share."""
LOOP_MS, LOOP_SHARE = 50.0, 0.2
"""A master is reported as busy above this 99.9th percentile of a turn and this share of time."""
LOOP_TURNS = 10_000
"""A busy master is reported only after this many turns: before, the slow ones in a thousand are
those at the start of the job."""
ADVISED_S = 2.0
"""In a shorter training the number of workers matters to nobody."""
TESTS_MAX = 4
OWN_MAX = 12
"""At most this many figures of a user's own `judge` are shown."""
_TABLE_COLUMNS = ("table", "rows", "MB", "bytes a row", "not admitted", "evicted", "expired")
_SPARE = ("address", "at", "step", "heard", "MB", "at work", "host:pid", "behind", "blocks done")
"""Columns that a narrow terminal omits, in this order."""


@dataclass(frozen=True, slots=True)
class Process:
    """A server or worker in words: what it does, its speed or rows, and what it waits for."""

    node: NodeStatus
    name: str
    words: str
    mood: Mood
    rate: str
    figure: str
    """A worker's speed with its unit, or the rows that a server holds."""
    waits: str
    is_waiting: bool
    """Whether the wait is worth showing: short waits between processes are normal."""

    @property
    def where(self) -> str:
        return f"{self.node['host']}, process {self.node['pid']}"


@dataclass(frozen=True, slots=True)
class View:
    """Words for what a run does now; a text is empty if there is nothing to say."""

    phase: Phase
    progress: float
    elapsed: str
    doing: str
    step: str
    share: str
    left: str
    figures: tuple[str, ...]
    lr: str
    blocks: str
    waits: str
    message: str
    processes: tuple[Process, ...]

    def line(self, *, verbose: bool = False) -> str:
        """Write everything except the processes as one line, without a line break."""
        doing = f"[{self.elapsed}] {self.doing} {self.share}".rstrip()
        blocks = self.blocks if verbose else ""
        parts = (doing, self.step, self.waits, *self.figures, self.left, self.lr, blocks)
        return ", ".join(part for part in (*parts, self.message) if part)


def view_of(status: Status, eta_s: float | None) -> View:
    """Make the view of a status; `eta_s` are the seconds left, None if unknown."""
    phase, unit, lr = status["phase"], status["unit"], status["lr"]
    counts, figures = phase in ("survey", "training"), []
    if counts and status["units_per_s"] > 0:
        figures.append(f"{count_text(status['units_per_s'])} {unit}/s")
    if counts and status["loss"] is not None:
        figures.append(f"loss {status['loss']:.4f}")
    if counts and (tests := status.get("tests")):
        figures.append(f"test {figures_text(tests[-1], 1)}")
    blocks = status["blocks"]
    most = "at most " if "at most" in status["pass_"] else ""
    is_shared = phase in SHARED and (status["progress"] or phase == "training")
    return View(
        phase=phase,
        progress=status["progress"],
        elapsed=seconds_text(status["elapsed_s"]),
        doing=phase_words(status),
        step=status["pass_"],
        # Cut, not rounded: 100.0% must appear only when everything is done.
        share=f"{int(status['progress'] * 1000) / 10:.1f}%" if is_shared else "",
        left="" if eta_s is None else f"{most}{seconds_text(eta_s)} left",
        figures=tuple(figures),
        lr=f"learning rate {lr:.3g}" if phase == "training" and lr is not None else "",
        blocks=f"blocks: {blocks['done']} done {blocks['leased']} at work {blocks['left']} left"
        if counts
        else "",
        waits=f"waits for {status['waiting_for']}" if status["waiting_for"] else "",
        message=status["message"],
        processes=_processes(status),
    )


def figures_text(test: Mapping[str, float], most: int = TESTS_MAX) -> str:
    """Write the figures of a test during the training: ``rmse 0.9131``."""
    names = [name for name in test if name not in FIGURED_AT]
    return ", ".join(_figure(name, float(test[name])) for name in names[:most])


def _processes(status: Status) -> tuple[Process, ...]:
    held: dict[int, list[int]] = {}
    for shard in status.get("shards", ()):
        sums = held.setdefault(shard["primary"], [0, 0])
        sums[0] += shard["rows"]
        sums[1] += shard["bytes"]
    processes = []
    for node in status["nodes"]:
        rate = "" if node["rate"] is None else count_text(node["rate"])
        figure = f"{rate} {status['unit']}/s" if rate else ""
        if node["role"] == "server":
            rows, size = held.get(node["id"], (0, 0))
            figure = f"{count_text(rows)} rows, {size_text(size)}" if rows else ""
        long = bool(node["waits"]) and lasts(node["waits_s"])
        waits = f"waits for {node['waits']}" if node["waits"] else ""
        processes.append(
            Process(
                node,
                process_name(node["role"], node["id"]),
                *state_words(node),
                rate=rate,
                figure=figure,
                waits=waits + (f", for {node['waits_s']:.0f} s now" if long else ""),
                is_waiting=long or bool(waits and status["phase"] != "training"),
            )
        )
    return tuple(processes)


def cluster_words(status: Status) -> str:
    """Say how large the cluster is: ``cluster of 1 server, 2 workers``."""
    roles = [node["role"] for node in status["nodes"]]
    counts = [(roles.count(role), role) for role in ("server", "worker")]
    return "cluster of " + ", ".join(f"{n} {role}{'' if n == 1 else 's'}" for n, role in counts)


# --- the page of the status -----------------------------------------------------------------------


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows to lines, each column as wide as its longest text."""
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=False))[:-1]]
    return [
        "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[-1]])
        .rstrip()
        for row in rows
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class StatusSection:
    """A part of the page of the status: plain lines, or rows in columns."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    @property
    def is_long(self) -> bool:
        return self.columns[:1] in (("process",), ("shard",))

    def lines(self) -> list[str]:
        return aligned([self.columns, *self.rows] if self.columns else self.rows)

    def cut(self, rows_max: int) -> StatusSection:
        """Return the section with at most `rows_max` rows; the last one counts the omitted ones."""
        if len(self.rows) <= rows_max:
            return self
        left = len(self.rows) - rows_max + 1
        more = (f"... {left} more", *("" for _ in self.columns[1:]))
        return StatusSection(self.columns, [*self.rows[: rows_max - 1], more])

    def fitted(self, width: int) -> StatusSection:
        """Return the section without the columns that do not fit on a screen of this width."""
        spare = [name for name in _SPARE if name in self.columns]
        section = self
        while spare and max(map(len, section.lines())) > width:
            section = section.without(spare.pop(0))
        return section

    def without(self, *names: str) -> StatusSection:
        """Return the section without the columns of these names."""
        indices = [index for index, name in enumerate(self.columns) if name not in names]
        rows = [tuple(row[index] for index in indices) for row in self.rows]
        return StatusSection(tuple(self.columns[index] for index in indices), rows)

    def filled(self) -> StatusSection:
        """Return the section without empty columns."""
        empty = [
            name
            for index, name in enumerate(self.columns)
            if not any(row[index] for row in self.rows)
        ]
        return self.without(*empty) if empty else self


def eta_of(status: Status) -> float | None:
    """Estimate the seconds left from a single status, at its present speed."""
    if status["eta_s"] is not None or status["phase"] != "training" or status["waiting_for"]:
        return status["eta_s"]
    remaining = (1.0 - status["progress"]) * (status["total_units"] or 0)
    return remaining / status["units_per_s"] if remaining and status["units_per_s"] > 0 else None


def page_of(status: Status, *, tables: bool = False) -> tuple[list[str], list[StatusSection]]:
    """Make the page of the status: a line on the progress, one on job and cluster, sections.

    The sections are processes, shards, tables, waits and notes; empty ones are left out.
    """
    view = view_of(status, eta_of(status))
    output = f" to {status['output']}" if status["output"] else ""
    parts = [
        *([f"{status['job_name']}{output}"] if status["job_name"] else []),
        f"master {status['address']}",
        f"{len(status['nodes'])} processes",
        f"{count_text(status['requests_per_s'])} requests/s",
    ]
    waits: list[tuple[str, ...]] = [
        (wait["who"], seconds_text(wait["seconds"]) if lasts(wait["seconds"]) else "", wait["whom"])
        for wait in status["waits"]
        if lasts(wait["seconds"]) or status["phase"] != "training"
    ]
    columns = ("process", "host:pid", "address", "heard", "state", "blocks done", "at work", "step")
    processes = StatusSection(
        (*columns, f"{status['unit']}/s"), list(map(_process_row, view.processes))
    )
    if len({node["host"] for node in status["nodes"]}) < 2:
        processes = processes.without("address")  # on one machine all addresses are equal
    shards = ("shard", "primary", "at", "standby", "state", "rows", "MB", "pulls/s", "pushes/s")
    sections = [
        processes,
        StatusSection((*shards, "behind"), _shard_rows(status)),
        StatusSection(_TABLE_COLUMNS, _table_rows(status) if tables else []),
        StatusSection(("waiting process", "since", "waits for"), waits),
        StatusSection((), [(line,) for line in _notes(status)]),
    ]
    shown = [section.filled() for section in sections if section.rows]
    return [view.line(), ", ".join(parts)], shown


def _process_row(process: Process) -> tuple[str, ...]:
    node = process.node
    heard, block_s = node["heartbeat_s"], node["block_s"]
    works = node["role"] == "worker"
    at_block = "" if block_s is None or block_s < 1 else f", {seconds_text(block_s)} at this block"
    return (
        f"{node['role']} {node['id']}",
        f"{node['host']}:{node['pid']}",
        node["address"].rpartition(":")[0],
        "never" if heard is None else f"{heard:.1f} s ago",
        process.words + at_block,
        str(node["done"]) if works else "",
        str(node["leased"]) if works else "",
        "" if node["clock"] is None else str(node["clock"]),
        process.rate,
    )


def _shard_rows(status: Status) -> list[tuple[str, ...]]:
    return [
        (
            str(shard["shard"]),
            f"server {shard['primary']}",
            shard["address"],
            f"server {shard['standby']}" if shard["standby"] else "none",
            f"copying, {shard['seeded']:.0%}" if shard["state"] == "seeding" else shard["state"],
            f"{shard['rows']:,}",
            f"{shard['bytes'] / 1e6:,.1f}",
            count_text(shard["pulls_per_s"]),
            count_text(shard["pushes_per_s"]),
            f"{lag / 1e6:.1f} MB, {shard['lag_s']:.1f} s" if (lag := shard["lag_bytes"]) else "",
        )
        for shard in status["shards"]
    ]


def _table_rows(status: Status) -> list[tuple[str, ...]]:
    return [
        (
            table["name"],
            f"{table['rows']:,}",
            f"{table['bytes'] / 1e6:,.1f}",
            f"{table['bytes'] / table['rows']:.0f}" if table["rows"] else "",
            *(f"{n:,}" * (n > 0) for n in (table["refused"], table["evicted"], table["expired"])),
        )
        for table in status["tables"]
    ]


def _notes(status: Status) -> list[str]:
    """Write lines on the checkpoint, a busy master, and workers that read through the master."""
    notes = []
    checkpoint = status["checkpoint"]
    if checkpoint is not None:
        age_s = checkpoint["age_s"]
        when = "from an earlier run" if age_s is None else f"{seconds_text(age_s)} ago"
        is_training = status["session"] is None or status["session"]["job"]
        share = f"{checkpoint['progress']:.0%} of the training, " if is_training else ""
        line = (
            f"checkpoint {checkpoint['number']}, {share}{when}, in {checkpoint['path']}"
            if checkpoint["number"]
            else f"no checkpoint yet in {checkpoint['path']}"
        )
        notes.append(line + ("; another is being written" if checkpoint["writing"] else ""))
    loop = status["loop"]
    busy = loop["busy_s"] > LOOP_SHARE * status["elapsed_s"]
    if busy and loop["turns"] >= LOOP_TURNS and loop["busy_ms_p999"] > LOOP_MS:
        notes.append(
            "the master's loop is busy and delays all processes: one turn in 1,000 takes "
            f"{loop['busy_ms_p999']:.0f} ms or more, the longest {loop['busy_ms_max']:.0f} ms; "
            "give it a core of its own"
        )
    return notes + [
        f"worker {node['id']} gets its input from the master, {node['fetched']} blocks so far, "
        f"because {node['host']} cannot open {node['lacks']}"
        for node in status["nodes"]
        if node["fetched"]
    ]


# --- the end --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EndingText:
    """How a run ended: a title, `mood` (`phrases.Mood`), and facts: label -> lines.

    `losses`, the curve of the loss, are drawn after the fact "loss".
    """

    title: str
    mood: Mood
    facts: list[tuple[str, list[str]]]
    losses: Sequence[float] = field(default=())


def ending_of(
    figures: Mapping[str, Any],
    *,
    job: str = "",
    status: Status | None = None,
    losses: Sequence[float] = (),
    kept: bool = True,
    why: str = "",
) -> EndingText:
    """Make the view of a run's end.

    `figures` come from the master, and are empty if it ended without any; `status` is the last one
    seen.  `job` is a `Status.job_name`, or empty.  `why` is the reason of a run that failed, or was
    interrupted before a model was saved.  Without `kept`, the run's files are gone: none is named.
    """
    unit = "words" if "words" in figures else "examples"
    files = [str(path) for path in figures.get("files", [])] if kept else []
    by, name = figures.get("ended_by"), job or "the model"
    if by == "interrupt" and not figures.get("files"):
        why = why or "interrupted; nothing was saved"
    if why:
        mood: Mood = "waits" if "interrupted" in why else "bad"
        title = f"{name}: {'interrupted' if mood == 'waits' else 'failed'}"
    else:
        mood = "waits" if by == "interrupt" else "good"
        title = f"{name} is trained" + (f": {EARLY_ENDS[by]}" if by in EARLY_ENDS else "")
        if by in WHOLE_ENDS:
            title += f", after {figures['epochs']} epochs"
        elif by in EARLY_ENDS and figures.get("progress") is not None:
            title += f", {figures['progress']:.0%} done"
    report = figures.get("report") if kept else None
    words, bad, wall_s = (figures.get(key) for key in ("vocabulary", "bad_lines", "wall_s"))
    repeated = figures.get("repeated")
    again = ""
    if repeated:
        again = counted(repeated, "line has", "lines have")
        again += f" the pair of an earlier one, and {'counts' if repeated == 1 else 'count'} too"
    moved = figures.get(f"bytes_per_{unit[:-1]}") if figures.get("servers") else None
    sent = "" if moved is None else f"{moved:,.{0 if moved >= 10 else 1}f} bytes"
    one = "a word" if unit == "words" else "an example"
    newest = figures.get("checkpoint") or (None if status is None else status.get("checkpoint"))
    # The reason of a failed export has that option: it says itself where the rows are saved.
    says_saved = bool(why) and "--set checkpoint_dir=" not in why
    facts = [
        ("why", [why]),
        ("wrote", [_file_line(path) for path in files]),
        ("report", [f"{_file_line(str(report))}: open it in a browser" if report else ""]),
        ("trained", _trained(figures, unit)),
        ("chosen", [", ".join(f"{name} {v:.3g}" for name, v in figures.get("chosen", {}).items())]),
        ("loss", [] if why else _loss(figures)),
        ("validation", _validation(figures)),
        ("few words", _few_words(figures)),
        ("vocabulary", [counted(words, "word") if words else ""]),
        ("quality", _quality(figures)),
        ("reliability", _reliability(figures.get("test"))),
        ("clipped", _clipped(figures.get("clipped", {}), figures.get(unit, 0))),
        ("repeated", [again]),
        ("left out", [f"{counted(bad, 'malformed line')} of the input" if bad else ""]),
        ("network", [f"{sent} {one} sent" if sent else ""]),
        ("workers", _workers(figures)),
        ("faults" if why else "survived", _faults(status)),
        ("saved", _saved(newest, bool(files)) if says_saved or by == "interrupt" else []),
        ("time", [] if wall_s is None else [_times(figures, wall_s)]),
        ("next", _next(job, files)),
    ]
    return EndingText(title, mood, [(label, texts) for label, texts in facts if any(texts)], losses)


def _file_line(path: str) -> str:
    try:
        return f"{path} ({size_text(Path(path).stat().st_size)})"
    except OSError:  # the file is on the master's host, or was moved
        return path


def _trained(figures: Mapping[str, Any], unit: str) -> list[str]:
    speed = figures.get(f"{unit}_per_s")
    if not speed:
        return []
    text = f"{counted(figures[unit], unit[:-1])} in {short_seconds_text(figures['train_s'])}"
    return [f"{text}, {speed:,.0f} {unit}/s"]


def _few_words(figures: Mapping[str, Any]) -> list[str]:
    text = few_words(figures)
    return [f"{text}: train more, as --set epochs={figures['wants_epochs']}"] if text else []


def _workers(figures: Mapping[str, Any]) -> list[str]:
    """Say it where a single worker would have trained as fast."""
    workers, share = figures.get("workers_timed", 0), figures.get("work_share", 0.0)
    if not workers * share < 1 < workers or figures["train_s"] < ADVISED_S:
        return []
    return [
        f"{share:.0%} of the processor time of {workers} trained, the rest moved rows and "
        "coordinated: one worker with as many threads trains this input as fast"
    ]


def _loss(figures: Mapping[str, Any]) -> list[str]:
    by_epoch = figures.get("loss_by_epoch") or [figures.get("train_loss")]
    course = [loss for loss in by_epoch if loss is not None]
    if not course:
        return []
    falls = figures.get("loss_falls")
    more = [f"still falling {falls:.0%} an epoch: more epochs would help"] if falls else []
    if falls and (epochs := figures.get("epochs")):
        more[0] += f", as --set epochs={2 * epochs}"
    if figures.get("by_heart"):
        more.append(
            f"{figures['epochs']} epochs, chosen by size, may have learnt the lines by heart: "
            "--set held_out=.1 --set stop_after=3 lets lines that are held out decide"
        )
    constant = figures.get("constant_loss")
    if constant:
        more.append(f"a constant's is {constant:.4f}: check labels and columns")
    if len(course) == 1 or f"{course[0]:.4f}" == f"{course[-1]:.4f}":
        return [f"{course[-1]:.4f}", *more]
    return [f"{course[0]:.4f} → {course[-1]:.4f}", *more]


def _clipped(counts: Mapping[str, int], units: int) -> list[str]:
    """Count the values of each column that were clipped to its scale."""
    columns = ", ".join(f"{count:,} of {name}" for name, count in counts.items())
    text = f"values beyond 64 times their scale, in {counted(units, 'example')}: {columns}"
    return [text] if columns else []


def _validation(figures: Mapping[str, Any]) -> list[str]:
    """Write the figures of the epoch whose rows are saved."""
    tests = [test for test in figures.get("tests", ()) if "epoch" in test]
    if not tests:
        return []
    saved = figures.get("saved_epoch", tests[-1]["epoch"])
    test = next(test for test in reversed(tests) if test["epoch"] == saved)
    best = figures.get("best_epoch")
    words = ""
    if best is not None:
        by = next((name for name in test if name not in FIGURED_AT), "")
        words = f", the best one by {_spoken(by)}" if by else ", the best one"
        if best != saved:
            words = f"; epoch {best:g} was better, and is lost"
    return [f"{figures_text(test)}: saved is epoch {saved:g}{words} ({len(tests):,} tested)"]


def _quality(figures: Mapping[str, Any]) -> list[str]:
    if whys := not_done(figures):
        return whys
    test, texts = figures.get("test"), []
    if isinstance(test, Mapping):
        if why := untested(test):
            return [f"not tested: {why}"]
        values = [(name, value) for name, value in test.items() if isinstance(value, float)]
        texts = [_figure(*one) for one in values[:TESTS_MAX]]
    names = figures.get("judged")
    if isinstance(names, (int, float, str)):  # the user's own figure, in the place of the names
        names = ["judged"]
    names = [name for name in names or () if isinstance(name, str) and name in figures]
    judged = [_figure(name, figures[name]) for name in names]
    if len(judged) > OWN_MAX:
        judged[OWN_MAX:] = [f"{len(judged) - OWN_MAX} more with --json"]
    return [", ".join([*texts, *judged]), *_judged(test)] if texts or judged else []


def _judged(test: Any) -> list[str]:
    """Say of how many users the figures of a test are, and which lines are in none of them."""
    counts = test if isinstance(test, Mapping) else {}
    texts = left_out(counts)
    if users := counts.get("users", 0):
        others = counts.get("users_without", 0)
        more = f", {others:,} more had nothing to find" if others else ""
        texts.insert(0, f"of {counted(users, 'user')}{more}")
    return ["; ".join(texts)] if texts else []


def _figure(name: str, value: float | str) -> str:
    """Write a figure of quality, such as ``log loss 0.3142``."""
    text = f"{value:.4g}" if isinstance(value, float) else f"{value}"
    return f"{_spoken(name)} {text:.60}"


def _spoken(name: str) -> str:
    """Write a figure's name in words; a label in it (``f1:__label__spam``) stays as it is."""
    figure, colon, label = name.partition(":")
    return figure.replace("_", " ") + colon + label


def _reliability(test: Any) -> list[str]:
    """Write predicted and observed shares of yes, by groups with similar predictions."""
    parts = test.get("reliability") if isinstance(test, Mapping) else None
    if not parts:
        return []
    names = ("predicted", "observed")
    rows = [" ".join(f"{part[name]:.2f}" for part in parts) for name in names]
    head = f"shares of yes, {len(parts)} parts of the test from low to high"
    return [head, *(f"{name:9} {row}" for name, row in zip(names, rows, strict=True))]


def _faults(status: Status | None) -> list[str]:
    if status is None:
        return []
    texts = [event["text"] for event in status.get("events", ()) if event["kind"] in FAULTS]
    if len(texts) > FAULTS_MAX:
        return [f"{len(texts) - FAULTS_MAX + 1} earlier faults", *texts[1 - FAULTS_MAX :]]
    return texts


def _saved(checkpoint: Mapping[str, Any] | None, wrote: bool) -> list[str]:
    if checkpoint is not None and checkpoint["number"]:
        return [
            f"checkpoint {checkpoint['number']} ({checkpoint['progress']:.0%} of the training) in "
            f"{checkpoint['path']}: the same command continues from there"
        ]
    if wrote:
        return ["the model so far, but no checkpoint to continue from (checkpoint_interval)"]
    return ["nothing: there is no checkpoint (checkpoint_interval)"]


def _times(figures: Mapping[str, Any], wall_s: float) -> str:
    parts = [
        ("counting", "survey_s"), ("training", "train_s"), ("testing", "test_s"),
        ("saving", "export_s"),
    ]  # fmt: skip
    took = [f"{name} {short_seconds_text(figures[key])}" for name, key in parts if figures.get(key)]
    whole = f"{short_seconds_text(wall_s)} in all"
    return f"{whole}: {', '.join(took)}" if took else whole


def _next(job: str, files: Sequence[str]) -> list[str]:
    """Name the command to try next, by the kind of model."""
    best = next((path for path in files if path.endswith((".bin", ".npz"))), (*files, "")[0])
    if not best or job not in MODELS or (job in ("logistic", "fm") and not best.endswith(".npz")):
        return []
    return [f"snailps {MODELS[job].ask.format(shlex.quote(best))}"]
