#!/usr/bin/env python3
"""What N workers learn beside one: every model, optimiser and loss, in every schedule.

    tests/support/alike.py: cases -> a training of 1, 2, 3, 8 workers each, by several processes
        -> a line of JSON each (--out) -> a table (--table), a picture (--picture)

    bench/alike.py --out build/alike.jsonl --table --picture docs/workers-alike.svg
    bench/alike.py --out build/alike.jsonl -k transe -k "mf pairwise" --jobs 2

Workers are emulated in one process, so the same commit gives the same figures.  Cases in `--out`
are not run again.  Exit 1: a figure is more than `alike.WITHIN` below one worker, or bits differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "unit"), str(ROOT)]

from alike import BY_NAME, CASES, SCHEDULES, WITHIN, WORKERS

from snailps.errors import SnailError

CELL, LINE, LEFT, TOP = 46, 16, 250, 52
COLOURS = ((0.0, "#1b7837"), (-0.02, "#7fbf7b"), (-WITHIN, "#d9f0d3"), (-2.0, "#d55e00"))
"""Down to such a difference from one worker's figure."""
UNKNOWN, INK, PAPER = "#eeeeee", "#222222", "#ffffff"

Key = tuple[str, str, int]


def run_one(name: str, schedule: str, workers: int) -> dict[str, Any]:
    """A line of the result file."""
    begun = time.process_time()
    line: dict[str, Any] = {"case": name, "schedule": schedule, "workers": workers}
    with tempfile.TemporaryDirectory() as folder:
        try:
            figure, rows = BY_NAME[name].run(Path(folder), workers, schedule)
            line["figure"] = round(figure, 4)
            line["at_once"] = BY_NAME[name].at_once(Path(folder), workers, schedule)
            line["bits"] = hashlib.sha256(repr(sorted(rows.items())).encode()).hexdigest()[:16]
        except SnailError as error:
            line["refused"] = str(error)[:300]
    return {**line, "cpu_s": round(time.process_time() - begun, 2)}


def read(path: Path) -> dict[Key, dict[str, Any]]:
    """What an earlier run has written."""
    lines = path.read_text().splitlines() if path.exists() else []
    read = map(json.loads, lines)
    return {(line["case"], line["schedule"], line["workers"]): line for line in read}


def run_all(keys: Sequence[Key], jobs: int, out: Path) -> None:
    """Trains the chosen cases, and appends their lines."""
    with ProcessPoolExecutor(jobs) as pool, out.open("a") as file:
        tasks = [pool.submit(run_one, *key) for key in keys]
        for number, task in enumerate(as_completed(tasks), 1):
            print(json.dumps(task.result()), file=file, flush=True)
            print(f"\r{number} of {len(tasks)}", end="", file=sys.stderr)


def schedules(lines: dict[Key, dict[str, Any]]) -> list[str]:
    """Schedules that there are figures of."""
    there = {schedule for _, schedule, _ in lines}
    return [schedule for schedule in SCHEDULES if schedule in there]


def several(lines: dict[Key, dict[str, Any]]) -> list[int]:
    """Numbers of workers beside one that there are figures of."""
    return sorted({workers for _, _, workers in lines} - {1})


def differences(lines: dict[Key, dict[str, Any]], name: str) -> Iterator[tuple[str, int, Any]]:
    """Of each schedule and number of workers: the figure less one worker's (of large graphs as a
    share of it), bits, or a refusal."""
    for schedule in schedules(lines):
        alone = lines.get((name, schedule, 1), {})
        for workers in several(lines):
            line = lines.get((name, schedule, workers), {})
            if "refused" in line:
                yield schedule, workers, "refused"
            elif schedule == "bsp":
                same = line.get("bits") == alone.get("bits")
                yield schedule, workers, None if not line else "same bits" if same else "differs"
            else:
                figure, best = line.get("figure"), alone.get("figure")
                measured = figure is not None and best is not None
                yield schedule, workers, -BY_NAME[name].below(figure, best) if measured else None


def wrong(value: Any) -> bool:
    return value == "differs" or (isinstance(value, float) and not value >= -WITHIN)


def table(lines: dict[Key, dict[str, Any]], names: Sequence[str]) -> Iterator[str]:
    """In Markdown: figures of async and ssp, how many workers train at a time where not all do, and
    whether bsp has one worker's bits."""
    counts = ", ".join(map(str, several(lines)))
    yield f"| model, loss, optimiser | one worker | async: {counts} | ssp: {counts} | bsp |"
    yield "|---|---|---|---|---|"
    for name in names:
        cells: dict[str, list[str]] = {schedule: [] for schedule in SCHEDULES}
        for schedule, workers, value in differences(lines, name):
            figure = lines.get((name, schedule, workers), {}).get("figure")
            text = value if isinstance(value, str) else "" if figure is None else f"{figure:.3f}"
            trained = lines.get((name, schedule, workers), {}).get("at_once", workers)
            text += f" ({trained})" if trained != workers and schedule != "bsp" else ""
            cells[schedule].append(f"**{text}**" if wrong(value) else text)
        alone = lines.get((name, "async", 1), {}).get("figure")
        bits = sorted(set(cells["bsp"]))
        free, bounded = (", ".join(cells[schedule]) for schedule in ("async", "ssp"))
        figure = "" if alone is None else f"{alone:.3f}"
        yield f"| {name} | {figure} | {free} | {bounded} | {', '.join(bits)} |"


def picture(lines: dict[Key, dict[str, Any]], names: Sequence[str]) -> str:
    """A square for each schedule and number of workers, by its distance from one worker."""
    columns = [(schedule, workers) for schedule in schedules(lines) for workers in several(lines)]
    width, height = LEFT + CELL * len(columns) + 20, TOP + LINE * len(names) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="11" fill="{INK}">',
        "<title>What several workers learn beside one</title>",
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
    ]
    for at, (schedule, workers) in enumerate(columns):
        x = LEFT + CELL * at + CELL / 2
        parts.append(f'<text x="{x:.0f}" y="{TOP - 8}" text-anchor="middle">{workers}</text>')
        counts = several(lines)
        if at % len(counts) == len(counts) // 2:
            parts.append(f'<text x="{x:.0f}" y="{TOP - 26}" text-anchor="middle">{schedule}</text>')
    for row, name in enumerate(names):
        y = TOP + LINE * row
        parts.append(f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
        for at, (_, _, value) in enumerate(differences(lines, name)):
            parts.append(
                f'<rect x="{LEFT + CELL * at + 1}" y="{y + 1}" width="{CELL - 2}" '
                f'height="{LINE - 2}" fill="{colour(value)}"/>'
            )
            if isinstance(value, float):
                parts.append(
                    f'<text x="{LEFT + CELL * at + CELL / 2:.0f}" y="{y + 12}" '
                    f'text-anchor="middle" font-size="9">{value:+.3f}</text>'
                )
    parts.append(
        f'<text x="8" y="{height - 12}">Figure on held-out lines minus the figure of one worker ('
        "async, ssp); green in bsp: one worker's bits</text>"
    )
    return "\n".join([*parts, "</svg>", ""])


def colour(value: Any) -> str:
    if isinstance(value, float):
        return next((colour for least, colour in COLOURS if value >= least), COLOURS[-1][1])
    return {"same bits": COLOURS[0][1], "differs": COLOURS[-1][1]}.get(value, UNKNOWN)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "alike.jsonl")
    parser.add_argument("-k", action="append", help="cases whose name has these words")
    parser.add_argument("--schedule", action="append", choices=SCHEDULES)
    parser.add_argument("--workers", type=int, action="append")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--again", action="store_true", help="also what --out has")
    parser.add_argument("--table", action="store_true", help="print it, in Markdown")
    parser.add_argument("--picture", type=Path, help="an SVG to write")
    chosen = parser.parse_args(words)
    names = [
        case.name for case in CASES
        if not chosen.k or any(set(word.split()) <= set(case.name.split()) for word in chosen.k)
    ]  # fmt: skip
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    trained = {} if chosen.again else read(chosen.out)
    keys = [
        (name, schedule, workers)
        for name in names
        for schedule in chosen.schedule or SCHEDULES
        for workers in chosen.workers or WORKERS
    ]
    run_all([key for key in keys if key not in trained], chosen.jobs, chosen.out)
    lines = read(chosen.out)
    if chosen.table:
        print(*table(lines, names), sep="\n")
    if chosen.picture:
        chosen.picture.write_text(picture(lines, names))
    bad = [
        f"{name}, {schedule}, {workers} workers: {value}"
        for name in names
        for schedule, workers, value in differences(lines, name)
        if wrong(value)
    ]
    print(*bad, sep="\n", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
