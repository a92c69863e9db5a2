"""``snailps filter``: keep texts that satisfy a condition; parses options, prints progress.

`snailps.filtering` owns the work: reading, scoring, writing, continuing after a kill.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snailps.cli.figures import counted, short_seconds_text
from snailps.cli.printing import is_live, live_line, print_json
from snailps.cli.signals import exits_by_signals
from snailps.cli.signatures import options_of
from snailps.errors import ConfigError

if TYPE_CHECKING:
    from snailps.filtering.job import FilterJob
    from snailps.filtering.scores import RowCounts
    from snailps.filtering.tasks import Task


@options_of("snailps.filtering.job:filter", without=("begun", "note"))
def command(
    input: Annotated[
        list[str],
        typer.Option(
            help="Parquet, Arrow, ORC, JSON lines or text: files, folders, globs or URLs.",
            metavar="FILE...",
        ),
    ],
    models: Annotated[
        list[str],
        typer.Option(
            "--model",
            help="A classifier, and the name by which --keep refers to it. May be given several "
            "times; not needed for dup and bench.",
            default_factory=list,
            show_default=False,
            metavar="NAME=FILE",
        ),
    ],
    add: Annotated[
        str,
        typer.Option(
            help='Scores to add as columns, by commas: lang.top,lang.p,hq["__label__hq"],dup.of; '
            "lang stands for lang.top,lang.p; good=SCORE names the column good.",
            metavar="SCORES",
        ),
    ] = "",
    benchmarks: Annotated[
        list[str] | None,
        typer.Option(
            help="Lines for bench.overlap, such as evals/*.jsonl: text, JSON lines or tables. Each "
            "text of a row, in any column, is a line.",
            metavar="FILE...",
        ),
    ] = None,
    cluster: Annotated[
        str,
        typer.Option(
            help="Master of a cluster that was started with snailps master --session: its workers "
            "filter, a file at a time each. All hosts must see the same folders.",
            metavar="HOST:PORT",
        ),
    ] = "",
    secret_file: Annotated[
        str, typer.Option(help="With --cluster: file with the secret.", metavar="PATH")
    ] = "",
    tls: Annotated[
        str, typer.Option(help="With --cluster: folder with certificates.", metavar="FOLDER")
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the manifest as JSON.", metavar="")
    ] = False,
    **values: Any,
) -> None:
    """Keep the texts that satisfy a condition, in files of the same format.

    The condition is about scores of classifiers, columns, copies among the texts (dup), and lines
    of benchmarks in them (bench).

    Other columns are copied unchanged. After a kill the same command continues: finished files
    stay, and no file is ever there in part.

    For example: snailps filter --input 'crawl/*.parquet' --column text --model hq=quality.bin
    --keep 'hq["__label__hq"] >= .5' --output kept

    With two models, the second one scores only what the first one keeps: --model hq=quality.bin
    --model lang=lid.bin --keep 'hq["__label__hq"] >= .5 and lang.top == "__label__en"' --add lang

    Without near-duplicates: --keep 'not (dup.contained >= .98 or dup.near >= .85)'
    """
    from snailps.filtering.expression import split_added
    from snailps.filtering.job import filter as filter_files

    paths: dict[str, str] = {}
    for text in models:
        name, equals, path = text.partition("=")
        if not equals or not path:
            file = "quality.bin" if equals or not text else text
            raise ConfigError(f"--model {text}: expected NAME=FILE, as in hq={file}")
        if name in paths:
            raise ConfigError(
                f"--model {text}: the name {name} is given twice: name each model differently"
            )
        paths[name] = path
    progress = _FilterProgress()
    with ExitStack() as stack:
        stack.enter_context(exits_by_signals())
        joined = None
        if cluster:
            from snailps.local.cluster import connect

            joined = stack.enter_context(connect(cluster, secret_file=secret_file, tls=tls))
        else:
            stack.enter_context(live_line(progress.line))
        done = filter_files(
            input, models=paths, add=split_added(add), benchmarks=benchmarks or (),
            cluster=joined, begun=_say_what_is_finished, note=progress.note, **values,
        )  # fmt: skip
    output, against, keep_scores = (values[name] for name in ("output", "against", "keep_scores"))
    if as_json:
        print_json(done)
        return
    typer.echo(f"{done['kept']:,} of {done['rows']:,} texts kept, in {output}")
    for refusal in done["refused"]:
        typer.echo(f"  {refusal['texts']:,} refused by {refusal['clause']}")
    if done["without_text"]:
        typer.echo(f"  {done['without_text']:,} have no text")
    if bad_lines := done.get("bad_lines"):  # a manifest of an earlier version has none
        lines = counted(bad_lines, "malformed line was", "malformed lines were")
        typer.echo(f"  {lines} left out")
    if met := done.get("benchmarks"):
        typer.echo(f"  {met['met']:,} of {met['lines']:,} lines of benchmarks were met")
    if index := done.get("index"):
        typer.echo(
            f"  {done['copies']['removed_by_index']:,} are copies of texts in {against}; those "
            f"kept are appended to it as {Path(index['segment']).name}"
        )
    if keep_scores:
        for name, count in done["scored"].items():
            typer.echo(
                f"  {count:,} scored by {name}; the other scores were read from {keep_scores}"
            )
    if (report := output / "_report.html").is_file():
        typer.echo(f"  {report} shows the scores, and texts near the thresholds")


def _say_what_is_finished(job: FilterJob) -> None:
    clear = "\r\033[K" if is_live(sys.stderr) else ""  # of the live line
    job.says = lambda words: typer.echo(clear + words, err=True)
    finished, files = len(job.tasks) - len(job.left), len(job.tasks)
    if finished:
        words = "continuing with the others" if job.left else "nothing is left to do"
        typer.echo(f"{finished:,} of {files:,} files are already finished: {words}", err=True)


class _FilterProgress:
    """How far it is: bytes of finished tasks, rows of all."""

    def __init__(self) -> None:
        self._job: FilterJob | None = None
        self._begin("")

    def _begin(self, phase: str) -> None:
        self._begun, self._phase = time.monotonic(), phase
        self._rows = self._kept = self._done_bytes = self._at = 0
        self._task: Task | None = None

    def note(self, job: FilterJob, task: Task, counts: RowCounts | None) -> None:
        if job.phase != self._phase:
            self._begin(job.phase)
        if counts is not None:
            self._rows += counts.rows
            self._kept += counts.kept
            return
        self._job = job
        if self._task is not None:
            self._done_bytes += self._task.bytes
        self._task, self._at = task, self._at + 1

    def line(self) -> str:
        spent = max(time.monotonic() - self._begun, 1e-9)
        speed = f"{self._rows / spent:,.0f} a second"
        if self._job is not None and self._job.phase == "comparing":
            return f"comparing texts, {short_seconds_text(spent)}"
        kept = "may stay" if self._phase == "reading" else "kept"
        words = f"{counted(self._rows, 'text')}, {speed}, {self._kept:,} {kept}"
        return words + self._left(spent)

    def _left(self, spent: float) -> str:
        if self._job is None or self._task is None:
            return ""
        left = sum(task.bytes for task in self._job.under_way) - self._done_bytes
        words = f", file {self._at:,} of {len(self._job.under_way):,}"
        if self._done_bytes and left > 0:
            words += f", {short_seconds_text(left * spent / self._done_bytes)} left"
        return words
