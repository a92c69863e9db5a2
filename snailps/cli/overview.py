"""The page of `snailps status`: sections of a title, columns and rows, as lines or for a terminal.

    Status -> sections -> lines_of -> standard output      -> picture_of -> rich, cut to the screen

Owns the wording and the order of the page; must not know sockets or clocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.text import Text

from snailps.cli.progress import count_text, line_of, seconds_text
from snailps.node.phrases import lasts, state_words
from snailps.node.status import NodeStatus, Status

LOOP_MS, LOOP_SHARE = 50.0, 0.2
"""Share of time and 99.9th percentile of a turn from which a busy master is reported."""
LOOP_TURNS = 10_000
"""With fewer turns, a slow one in a thousand is the start of the job."""
_HEAD_LINES = 8
"""Lines of a page on a terminal for titles, blank lines and the head."""
_TABLE_COLUMNS = ("table", "rows", "MB", "bytes a row", "not admitted", "evicted", "expired")
_SPARE = ("address", "at", "step", "heard", "MB", "at work", "host:pid", "behind", "blocks done")
"""Columns that a narrow terminal does not show, the first one first."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: plain lines, or rows in columns; empty parts are not shown."""

    title: str
    columns: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def cut(self, rows_max: int) -> Section:
        """The section with at most `rows_max` rows; the last one says how many are omitted."""
        if len(self.rows) <= rows_max:
            return self
        left = len(self.rows) - rows_max + 1
        more = (f"... {left} more", *("" for _ in self.columns[1:]))
        return Section(self.title, self.columns, [*self.rows[: rows_max - 1], more])

    def fitted(self, width: int) -> Section:
        """The section without columns that do not fit on a screen of `width` columns."""
        spare = [name for name in _SPARE if name in self.columns]
        section = self
        while spare and max(map(len, _columns(section))) > width:
            section = section.without(spare.pop(0))
        return section

    def without(self, column: str) -> Section:
        at = self.columns.index(column)
        rows = [(*row[:at], *row[at + 1 :]) for row in self.rows]
        return Section(self.title, (*self.columns[:at], *self.columns[at + 1 :]), rows)

    def filled(self) -> Section:
        """The section without empty columns."""
        section = self
        for at, name in enumerate(self.columns):
            if not any(row[at] for row in self.rows):
                section = section.without(name)
        return section


def sections_of(status: Status, *, tables: bool = False) -> list[Section]:
    """The page's sections in order: processes, shards, tables (if wanted), waits, notes."""
    waits: list[tuple[str, ...]] = [
        (wait["who"], seconds_text(wait["seconds"]) if lasts(wait["seconds"]) else "", wait["whom"])
        for wait in status["waits"]
        if lasts(wait["seconds"]) or status["phase"] != "training"
    ]
    unit = f"{status['unit']}/s"
    columns = ("process", "host:pid", "address", "heard", "state", "blocks done", "at work")
    processes = Section("", (*columns, "step", unit), [_row(node) for node in status["nodes"]])
    if len({node["host"] for node in status["nodes"]}) < 2:
        processes = processes.without("address")  # one machine: all addresses are equal
    shards = ("shard", "primary", "at", "standby", "state", "rows", "MB", "pulls/s", "pushes/s")
    found = [
        processes,
        Section("", (*shards, "behind"), _shards(status)),
        Section("", _TABLE_COLUMNS, _tables(status) if tables else []),
        Section("", ("waiting process", "since", "waits for"), waits),
        Section("", (), [(line,) for line in _notes(status)]),
    ]
    return [section.filled() for section in found if section.rows]


def head_of(status: Status) -> list[str]:
    """A line on the progress, and one on the job and the cluster."""
    output = f" to {status['output']}" if status["output"] else ""
    parts = [
        *([f"{status['job_name']}{output}"] if status["job_name"] else []),
        f"master {status['address']}",
        f"{len(status['nodes'])} processes",
        f"{count_text(status['requests_per_s'])} requests/s",
    ]
    return [line_of(status, eta_of(status)), ", ".join(parts)]


def eta_of(status: Status) -> float | None:
    """Seconds left by the status alone, at the present speed."""
    left = (1.0 - status["progress"]) * (status["total_units"] or 0)
    if status["eta_s"] is not None or status["phase"] != "training" or status["waiting_for"]:
        return status["eta_s"]
    return left / status["units_per_s"] if left and status["units_per_s"] > 0 else None


def lines_of(status: Status, *, tables: bool = False) -> list[str]:
    lines = head_of(status)
    for section in sections_of(status, tables=tables):
        lines += ["", *_columns(section)]
    return lines


def picture_of(status: Status, height: int, width: int = 80) -> RenderableType:
    """The page for a terminal of `height` lines; rows and columns that do not fit are omitted."""
    sections = sections_of(status)
    # Notes and waits are short and matter most; processes and shards share the remaining lines.
    fixed = sum(len(s.cut(height // 3).rows) for s in sections if not _is_long(s))
    long = sum(_is_long(s) for s in sections)
    room = max(4, (height - _HEAD_LINES - fixed) // max(1, long) - 2)
    parts = [Text(line) for line in head_of(status)]
    for section in sections:
        shown = section.cut(room if _is_long(section) else max(2, height // 3)).fitted(width)
        lines = _columns(shown)
        head = 1 if section.columns else 0
        parts += [Text(""), *(Text(line, style="dim") for line in lines[:head])]
        parts += [Text(line, style="" if head else "yellow") for line in lines[head:]]
        for part in parts[-len(lines) :] if _is_long(section) else ():  # a row is one line
            part.no_wrap, part.overflow = True, "ellipsis"
    return Group(*parts)


def _is_long(section: Section) -> bool:
    return section.columns[:1] in (("process",), ("shard",))


def _columns(section: Section) -> list[str]:
    rows = [section.columns, *section.rows] if section.columns else section.rows
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]
    return [
        "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[-1]])
        .rstrip()
        for row in rows
    ]  # fmt: skip


def _row(node: NodeStatus) -> tuple[str, ...]:
    heard, block_s = node["heartbeat_s"], node["block_s"]
    works = node["role"] == "worker"
    state, _ = state_words(node)
    if block_s is not None and block_s >= 1:
        state += f", {seconds_text(block_s)} at this block"
    return (
        f"{node['role']} {node['id']}",
        f"{node['host']}:{node['pid']}",
        node["address"].rpartition(":")[0],
        "never" if heard is None else f"{heard:.1f} s ago",
        state,
        str(node["done"]) if works else "",
        str(node["leased"]) if works else "",
        "" if node["clock"] is None else str(node["clock"]),
        "" if node["rate"] is None else count_text(node["rate"]),
    )


def _shards(status: Status) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for shard in status["shards"]:
        state = shard["state"]
        if state == "seeding":
            state = f"copying, {shard['seeded']:.0%}"
        lag = shard["lag_bytes"]
        rows.append(
            (
                str(shard["shard"]),
                f"server {shard['primary']}",
                shard["address"],
                f"server {shard['standby']}" if shard["standby"] else "none",
                state,
                f"{shard['rows']:,}",
                f"{shard['bytes'] / 1e6:,.1f}",
                count_text(shard["pulls_per_s"]),
                count_text(shard["pushes_per_s"]),
                f"{lag / 1e6:.1f} MB, {shard['lag_s']:.1f} s" if lag else "",
            )
        )
    return rows


def _tables(status: Status) -> list[tuple[str, ...]]:
    def told(count: int) -> str:
        return f"{count:,}" if count else ""

    return [
        (
            table["name"],
            f"{table['rows']:,}",
            f"{table['bytes'] / 1e6:,.1f}",
            f"{table['bytes'] / table['rows']:.0f}" if table["rows"] else "",
            told(table["refused"]),
            told(table["evicted"]),
            told(table["expired"]),
        )
        for table in status["tables"]
    ]


def _notes(status: Status) -> list[str]:
    """Lines on the checkpoint, a busy master, and workers that read through the master."""
    notes = []
    checkpoint = status["checkpoint"]
    if checkpoint is not None:
        age_s = checkpoint["age_s"]
        when = "of an earlier run" if age_s is None else f"{seconds_text(age_s)} ago"
        line = (
            f"checkpoint {checkpoint['number']}, {checkpoint['progress']:.0%} of the training, "
            f"{when}, in {checkpoint['path']}"
            if checkpoint["number"]
            else f"no checkpoint yet in {checkpoint['path']}"
        )
        notes.append(line + ("; another is being written" if checkpoint["writing"] else ""))
    loop = status["loop"]
    busy = loop["busy_s"] > LOOP_SHARE * status["elapsed_s"]
    if busy and loop["turns"] >= LOOP_TURNS and loop["busy_ms_p999"] > LOOP_MS:
        notes.append(
            f"the master's loop is busy: {loop['busy_ms_p999']:.0f} ms in one turn of 1,000, "
            f"{loop['busy_ms_max']:.0f} ms at most; give it a core of its own"
        )
    for node in status["nodes"]:
        if node["fetched"]:
            notes.append(
                f"worker {node['id']} reads through the master, {node['fetched']} blocks so far: "
                f"{node['host']} cannot open {node['lacks']}"
            )
    return notes
