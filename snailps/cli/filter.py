"""``snailps filter``: texts that classifiers keep, from files to files of the same format."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snailps.cli.figures import short_seconds_text
from snailps.cli.printing import live_line, print_json
from snailps.cli.signals import exits_by_signals
from snailps.errors import ConfigError

if TYPE_CHECKING:
    from snailps.filtering.job import FilterJob
    from snailps.filtering.scores import Counts
    from snailps.filtering.tasks import Task


def command(
    input: Annotated[
        list[str],
        typer.Option(
            help="Parquet, Arrow, ORC, JSON lines or text: files, folders, patterns or URLs.",
            metavar="FILE...",
        ),
    ],
    model: Annotated[
        list[str],
        typer.Option(help="A classifier, and its name in the condition.", metavar="NAME=FILE"),
    ],
    keep: Annotated[
        str,
        typer.Option(
            help='Which texts: NAME["LABEL"], NAME.p, NAME.top and columns, compared with numbers '
            "or labels, and joined by and, or, not, in.",
            metavar="CONDITION",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            help="Folder: a file for each of the input, _manifest.json and _report.html.",
            metavar="FOLDER",
        ),
    ],
    column: Annotated[
        str, typer.Option(help="Column of tables that has the texts.", metavar="NAME")
    ] = "",
    add: Annotated[
        str,
        typer.Option(
            help='Scores that become columns: lang.top,lang.p or lang for both, hq["__label__hq"]; '
            "good=SCORE gives another name. Separated by commas.",
            metavar="SCORES",
        ),
    ] = "",
    keep_scores: Annotated[
        str,
        typer.Option(
            help="Folder that keeps the scores of these texts: another condition on the same "
            "labels takes them from there.",
            metavar="FOLDER",
        ),
    ] = "",
    threads: Annotated[
        int, typer.Option(help="0: one a core. Outputs do not depend on it.", min=0)
    ] = 0,
    cluster: Annotated[
        str,
        typer.Option(
            help="Master of a cluster, begun with snailps master --session: its workers filter, "
            "each a file at a time. All hosts have the folders.",
            metavar="HOST:PORT",
        ),
    ] = "",
    secret_file: Annotated[
        str, typer.Option(help="With --cluster: its secret's file.", metavar="PATH")
    ] = "",
    tls: Annotated[
        str, typer.Option(help="With --cluster: the folder of its certificates.", metavar="FOLDER")
    ] = "",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace another command's output.", metavar="")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the manifest.", metavar="")
    ] = False,
) -> None:
    """Keep the texts of files that classifiers say to keep; in files of the same format.

    Other columns stay as they are. A run that was ended goes on by the same command: what is
    finished stays, and each file is complete or not there.

    For example: snailps filter --input 'crawl/*.parquet' --column text --model hq=quality.bin
    --keep 'hq["__label__hq"] >= .5' --output kept

    Two models, of which the second one sees what the first one keeps: --model hq=quality.bin
    --model lang=lid.bin --keep 'hq["__label__hq"] >= .5 and lang.top == "__label__en"' --add lang
    """
    from snailps.filtering.expression import split_added
    from snailps.filtering.job import filter as filter_files

    models: dict[str, str] = {}
    for one in model:
        name, equals, path = one.partition("=")
        if not equals or not path:
            raise ConfigError(f"--model {one}: expected NAME=FILE, as in hq={one or 'quality.bin'}")
        if name in models:
            raise ConfigError(f"--model {one}: there are two models {name}")
        models[name] = path
    progress = _Progress()
    with ExitStack() as stack:
        stack.enter_context(exits_by_signals())
        joined = None
        if cluster:
            from snailps.local.cluster import connect

            joined = stack.enter_context(connect(cluster, secret_file=secret_file, tls=tls))
        else:
            stack.enter_context(live_line(progress.line))
        done = filter_files(
            input, output=output, models=models, keep=keep, column=column,
            add=split_added(add), keep_scores=keep_scores, threads=threads, overwrite=overwrite,
            cluster=joined, begun=_say_what_is_finished, note=progress.note,
        )  # fmt: skip
    if as_json:
        print_json(done)
        return
    typer.echo(f"{done['kept']:,} of {done['rows']:,} texts kept, in {output}")
    for one in done["refused"]:
        typer.echo(f"  {one['texts']:,} refused by {one['clause']}")
    if done["without_text"]:
        typer.echo(f"  {done['without_text']:,} have no text")
    if keep_scores:
        for name, count in done["scored"].items():
            typer.echo(f"  {count:,} scored by {name}; other scores are of {keep_scores}")
    if (report := output / "_report.html").is_file():
        typer.echo(f"  {report} shows scores, and texts near the bounds")


def _say_what_is_finished(job: FilterJob) -> None:
    finished, files = len(job.tasks) - len(job.left), len(job.tasks)
    if finished:
        words = "goes on with the others" if job.left else "nothing is left to do"
        typer.echo(f"{finished:,} of {files:,} files are finished: {words}", err=True)


class _Progress:
    """How far it is: bytes of finished tasks, rows of all."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._job: FilterJob | None = None
        self._rows = self._kept = self._done_bytes = self._at = 0
        self._task: Task | None = None

    def note(self, job: FilterJob, task: Task, counts: Counts | None) -> None:
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
        words = f"{self._rows:,} texts, {self._rows / spent:,.0f} a second, {self._kept:,} kept"
        return words + self._left(spent)

    def _left(self, spent: float) -> str:
        if self._job is None or self._task is None:
            return ""
        left = sum(task.bytes for task in self._job.left) - self._done_bytes
        words = f", file {self._at:,} of {len(self._job.left):,}"
        if self._done_bytes and left > 0:
            words += f", {short_seconds_text(left * spent / self._done_bytes)} left"
        return words
