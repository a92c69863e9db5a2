"""``snailps master``: runs a master, registers its run, shows its progress, writes its report.

`snailps.master` owns the job; this module owns what a user sees of it: the display, the entry in
the registry of runs (`snailps jobs`), the page, the report and the exit code.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from snailps.cli import FAULTS, FAULTS_MAX
from snailps.cli.common import (
    hide_reported,
    log_as_set,
    log_begin,
    log_end,
    read_document,
    role_settings,
    show_prints,
)
from snailps.cli.json_lines import EVENTS
from snailps.cli.known_classes import known_classes
from snailps.cli.options import (
    ConfigOption,
    DocumentFdOption,
    SetOption,
    command_line,
    short_options,
)
from snailps.cli.page_process import PageProcess, UiOption
from snailps.cli.printing import is_live, print_json
from snailps.config import MasterSettings
from snailps.config.fields import current_folder
from snailps.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, FAILURES, SnailError
from snailps.master.checkpoint_files import folder_of, newest_of
from snailps.master.life import COMMAND, LASTING, SESSION
from snailps.master.observers import PHASES, Observer
from snailps.master.process import Launch, Master
from snailps.node.run_registry import Registration, Run, RunRegistry
from snailps.node.status import Status
from snailps.transport.control import show

if TYPE_CHECKING:
    from snailps.cli.progress import Progress

log = logging.getLogger("snailps")
events = logging.getLogger(EVENTS)
DISPLAY_S = 0.2
"""Period of the status for the display."""
CURVES_S = 1.0
"""Period of points of TensorBoard's curves."""
CURVE_NODES_PER_S = 100
"""What `NODES_PER_S` is for the display, for TensorBoard's curves."""
BUG = (
    "it ended with an unexpected error, a bug in snailps or in the model: its log has the traceback"
)


@short_options
def command(
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the figures as JSON at the end.", metavar=""),
    ] = False,
    ui: UiOption = False,
    ready_fd: Annotated[int, typer.Option("--ready-fd", hidden=True)] = -1,
    session: Annotated[
        bool,
        typer.Option(
            "--session",
            help="Run jobs from Python until Ctrl-C. They connect by snailps.connect().",
            metavar="",
        ),
    ] = False,
    with_driver: Annotated[bool, typer.Option("--ends-with-driver", hidden=True)] = False,
    called: Annotated[str, typer.Option("--called", hidden=True)] = "",
    document_fd: DocumentFdOption = -1,
) -> None:
    """Form the cluster, lease blocks to workers, replace lost processes, write the result.

    The file describes the job: worker_class, input, output and the model's settings. Ctrl-C once
    ends the training early and saves the model; twice ends at once. SIGTERM ends this process
    alone: start it again with the same command, and it continues the job.

    For example: snailps master -c config/master.conf --set expected_node_num=4
    """
    life = COMMAND if not session else SESSION if with_driver else LASTING
    if session:
        show_prints()
    document = read_document(config, sets, document_fd)
    raw, secret = document.raw, document.secret
    log_as_set(raw, "the master")
    settings = role_settings(raw, MasterSettings, launched=ready_fd >= 0, session=session)
    log_begin("the master")
    if ready_fd >= 0 and not session:  # without a launcher nothing else shows these events
        hide_reported()
    # Permission to send source code.  It goes to the launcher alone, through `ready_fd`: every
    # process that knows the cluster's secret can connect.
    source_key = secrets.token_hex(16) if with_driver else ""
    progress = None
    if ready_fd < 0:  # a launcher asks for the status and shows it itself
        from snailps.cli.progress import Progress

        progress = Progress(sys.stderr, terminal=is_live(sys.stderr))

    registration = Registration(RunRegistry())
    begun: list[Run] = []
    pages: list[PageProcess] = []

    def listening(host: str, port: int) -> None:
        with contextlib.suppress(OSError):  # the current folder may be gone
            command = called or ("" if with_driver else command_line(sys.argv[1:]))
            run = run_of(master, settings, config, command, show(reachable_here(host, port)))
            launcher = os.getppid() if called else 0
            begun.append(run)
            # Only a secret that snailps made for this cluster: a user's own has its own file.
            made_secret = secret.decode() if master.trust.secret == secret else ""
            cluster_id = f"{master.cluster_id:x}"
            registration.begin(
                replace(run, cluster_id=cluster_id, launcher=launcher, secret=made_secret)
            )
        if ui:
            pages.append(PageProcess(show(reachable_here(host, port)), settings, secret))
            pages[0].report(lambda text: typer.echo(text, err=True))
        if ready_fd >= 0:
            # A launcher that no longer reads is ending, and ends this process by a signal.
            with contextlib.suppress(BrokenPipeError), os.fdopen(ready_fd, "w") as ready:
                ready.write(f"{show((host, port))} {source_key}".strip() + "\n")

    def draw(status: Status) -> None:
        if progress is not None and status["phase"] in (
            "survey",
            "loading",
            "training",
            "exporting",
        ):
            progress.update(status)

    master = Master(
        settings,
        raw,
        Launch(
            life,
            nodes_stay=document_fd < 0,  # a launcher ends its children
            any_port=ready_fd >= 0,
            source_key=source_key,
            secret=secret,
        ),
        known_classes(raw),
        on_listening=listening,
        observers=lambda: observers_of(settings, None if progress is None else draw),
    )
    master.catch_signals()
    code, verdict = EXIT_FAILED, BUG
    try:
        code = master.run()
        verdict = master.verdict
        if settings.report and master.figures.get("files") and not session:
            _write_report(master)
        if progress is not None:
            progress.validate(master.figures.get("validation", {}))
    except SnailError as error:
        code, verdict = error.exit_code, str(error)
        log_end("the master", code)
        raise
    finally:
        saved = code == EXIT_INTERRUPTED and master.figures.get("files")
        figures = absolute(master.figures) if code == EXIT_OK or saved else {}
        last = last_of(master) if begun else {}
        if progress is not None:
            close(progress, master, code, verdict, figures, last)
        registration.end(code, verdict, figures, last)
        fields = {"event": "end", "code": code, "figures": figures}
        text = verdict or "the job is done"
        events.log(logging.ERROR if code in FAILURES else logging.INFO, "%s", text, extra=fields)
        for page in pages:
            page.close()
    if master.verdict:
        log.log(logging.WARNING if code else logging.INFO, "%s", master.verdict)
    log_end("the master", code)
    if as_json:
        print_json(master.figures)
    raise typer.Exit(code)


def observers_of(
    settings: MasterSettings, draw: Callable[[Status], None] | None
) -> Iterator[Observer]:
    """Who looks on in the master's process: files that the settings name, and the display."""
    if settings.json_log:
        from snailps.monitor.json_log import JsonLog

        log = JsonLog(settings.json_log)
        yield Observer(log.on_status, PHASES, settings.json_log_interval, close=log.close)
    if settings.tensorboard:
        from snailps.monitor.tensorboard_log import TensorboardLog

        board = TensorboardLog(settings.tensorboard)
        yield Observer(
            board.on_status, ("training",), CURVES_S, CURVE_NODES_PER_S, board.close, results=board
        )
    if draw is not None:
        yield Observer(draw, PHASES, DISPLAY_S)


def _write_report(master: Master) -> None:
    from snailps.monitor.report import Story, write_report

    output = master.job.settings.output if master.job is not None else ""
    if output:
        now = time.strftime("%Y-%m-%d %H:%M:%S %z")
        path = write_report(output, Story(**master.recorded()), now)
        if path:
            master.figures["report"] = path


def run_of(
    master: Master, settings: MasterSettings, config: Path | None, command: str, address: str
) -> Run:
    """Make a run's entry in the registry: what other commands need to find and to continue it."""
    job = master.job
    saved = job or master.session
    run = Run(
        pid=os.getpid(),
        address=address,
        model="session",
        folder=current_folder(),
        command=command,
        config=_absolute(config),
        secret_file=_absolute(settings.secret_file),
        tls=_absolute(settings.tls),
        secured=bool(settings.tls or settings.secret_file or os.environ.get("SNAILPS_SECRET")),
        journal=_absolute(master.journal_path(job) or ""),
        checkpoints=str(folder_of(saved.settings)) if saved.settings.saves_checkpoints else "",
    )
    if job is None:
        return run
    return replace(run, model=job.model.name, output=_absolute(job.settings.output))


def last_of(master: Master) -> dict[str, Any]:
    """Take faults and newest checkpoint from the last status, for the registry and the end."""
    status = master.status()
    events = [event for event in status["events"] if event["kind"] in FAULTS]
    checkpoint = status["checkpoint"]
    if checkpoint is None and master.job is not None:  # it had not opened their folder yet
        with contextlib.suppress(SnailError, OSError):
            checkpoint = newest_of(master.job.settings)
    return {"events": events[-2 * FAULTS_MAX :], "checkpoint": checkpoint}


def close(
    progress: Progress,
    master: Master,
    code: int,
    verdict: str,
    figures: Mapping[str, Any],
    last: Mapping[str, Any],
) -> None:
    """End the display: with the job's figures or, if the job failed, with what was saved."""
    from snailps.cli.printing import end_lines
    from snailps.cli.view import ending_of

    master_job = master.job if last else None
    if master_job and not master.left:
        ending = ending_of(
            figures,
            job=master_job.model.name,
            status=cast("Status", last),
            losses=progress.losses,
            why=(verdict or BUG) if code else "",
        )
        if code == EXIT_OK:
            progress.close(ending)
            return
        for line in end_lines(ending):
            progress.say(line)
    progress.close()


def absolute(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Make the paths in figures absolute: `snailps jobs` reads them in another folder."""
    result = {**figures, "files": [_absolute(path) for path in figures.get("files", [])]}
    if "report" in figures:
        result["report"] = _absolute(figures["report"])
    return result if result["files"] else dict(figures)


def reachable_here(host: str, port: int) -> tuple[str, int]:
    """Return the address at which this machine reaches a listener that may be on all networks."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port


def _absolute(path: object) -> str:
    return str(Path(str(path)).absolute()) if path else ""
