"""``snailps doctor``: prints whether this host can join its cluster, before a job begins.

file -> settings -> Doctor -> findings, each with its remedy -> standard output, exit code 0 or 1
"""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from snailps.api.worker import load_class
from snailps.cli.known_classes import known_classes
from snailps.cli.options import ConfigOption, SetOption, read_config
from snailps.cli.printing import print_json
from snailps.config import JobSettings, MasterSettings, ServerSettings
from snailps.diagnostics.doctor import Diagnosis, Doctor
from snailps.errors import SnailError
from snailps.master.job.settings import job_settings
from snailps.node.checks import Finding

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


def command(
    config: ConfigOption = None,
    sets: SetOption = None,
    wait_s: Annotated[
        float, typer.Option("--wait", help="Seconds to wait for the other hosts.", min=0.0)
    ] = 10.0,
    hosts: Annotated[
        int,
        typer.Option(
            "--hosts", help="Number of hosts: stop waiting when all have answered.", min=0
        ),
    ] = 0,
    rows: Annotated[
        int,
        typer.Option("--rows", help="Expected rows per table, to check the memory.", min=0),
    ] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with all measurements.", metavar="")
    ] = False,
) -> None:
    """Check whether this host can join its cluster: names, ports, clocks, memory, disk.

    Run it on all hosts at the same time, with the .conf file of the job; on the master's host it
    prints the findings of all hosts. If a master is running, it checks the connection to that
    master. Exit code 1 if there is an error.

    For example: snailps doctor -c config/master.conf --hosts 4
    """
    raw = read_config(config, sets)
    known = known_classes(raw)
    settings = raw.build(MasterSettings, also_known=known)
    server = raw.build(ServerSettings, also_known=known)
    model, trouble = None, None
    entry = raw.explicit("worker_class", JobSettings)
    if entry is not None and entry.value:
        try:
            cls = load_class(entry.value, entry.origin)
            model = cls, job_settings(cls, raw, known)
        except SnailError as error:
            trouble = Finding("error", "job", str(error))

    def show(finding: Finding) -> None:
        if not as_json:
            _show("", finding)

    doctor = Doctor(settings, server, model, wait_s=wait_s, hosts=hosts, rows=rows, on_finding=show)
    if trouble is not None:
        doctor.add(trouble)
    diagnosis = doctor.run()
    if as_json:
        print_json(diagnosis.to_dict())
    else:
        _show_rest(diagnosis)
    raise typer.Exit(0 if diagnosis.ok else 1)


def _show_rest(diagnosis: Diagnosis) -> None:
    """Print findings of the other hosts, and the conclusion."""
    for host, findings in diagnosis.others.items():
        typer.echo(f"\n{host}:")
        for finding in findings:
            if finding["level"] != "ok":
                _show("  ", Finding(**finding))  # type: ignore[arg-type]
        typer.echo(f"  {sum(finding['level'] == 'ok' for finding in findings)} checks are good")
    typer.echo("")
    typer.echo("no errors" if diagnosis.ok else "errors: see the lines that begin with error")


def _show(indent: str, finding: Finding) -> None:
    """Print a finding, and its remedy in a second line; in colours on a terminal."""
    line = f"{indent}{finding.level:8}{finding.check:11}{finding.text}"
    cure = f"{indent}{'':19}-> {finding.cure}"
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        text = Text(line)
        text.stylize(_STYLES.get(finding.level, ""), len(indent), len(indent) + 8)
        console = Console(highlight=False)
        console.print(text, soft_wrap=True)
        if finding.cure:
            console.print(Text(cure, style="dim"), soft_wrap=True)
        return
    with contextlib.suppress(BrokenPipeError):
        print(line, flush=True)
        if finding.cure:
            print(cure, flush=True)
