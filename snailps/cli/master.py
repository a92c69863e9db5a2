"""``snailps master``: forms the cluster, leases the blocks, writes the result."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sys
from typing import Annotated

import typer

from snailps.cli.common import (
    ConfigOption,
    FreshOption,
    JsonLogOption,
    SetOption,
    fresh_override,
    json_log_override,
    known_classes,
    read_config,
    role_settings,
)
from snailps.cli.printing import print_json
from snailps.config import MasterSettings
from snailps.master.process import Master
from snailps.node.status import Status
from snailps.transport.control import show

log = logging.getLogger("snailps")


def command(
    config: ConfigOption = None,
    sets: SetOption = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the run's figures as one JSON object at the end.", metavar=""
        ),
    ] = False,
    json_log: JsonLogOption = None,
    fresh: FreshOption = False,
    ready_fd: Annotated[int, typer.Option("--ready-fd", hidden=True)] = -1,
    session: Annotated[
        bool,
        typer.Option(
            "--session",
            help="Take jobs from Python (snailps.connect), until Ctrl-C, instead of the file's.",
            metavar="",
        ),
    ] = False,
    with_driver: Annotated[bool, typer.Option("--ends-with-driver", hidden=True)] = False,
) -> None:
    """Forms the cluster, leases blocks to workers, replaces lost processes, writes the result.

    The file names the job: worker_class, input, output, and the model's settings. Ctrl-C once
    ends the training and saves the model; twice ends at once.

    For example: snailps master -c config/master.conf --set expected_node_num=4
    """
    overrides = [*(sets or []), *json_log_override(json_log), *fresh_override(fresh)]
    raw = read_config(config, overrides)
    settings = role_settings(raw, MasterSettings, launched=ready_fd >= 0)
    # Only the process that reads `ready_fd` learns it: other users of this machine may connect.
    source_key = secrets.token_hex(16) if with_driver else ""
    progress = None
    if ready_fd < 0:  # else a launcher asks for the status and shows it
        from snailps.cli.progress import Progress

        progress = Progress(sys.stderr, terminal=sys.stderr.isatty())

    def listening(host: str, port: int) -> None:
        if ready_fd >= 0:
            # The parent may have given up and stopped reading; then it also sends a signal.
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
        known_classes(raw),
        session=session,
        lasting=session and not with_driver,
        source_key=source_key,
        any_port=ready_fd >= 0,
        on_listening=listening,
        on_status=None if progress is None else draw,
    )
    master.catch_signals()
    try:
        code = master.run()
        if progress is not None:
            progress.validate(master.figures.get("validation", {}))
    finally:
        if progress is not None:
            progress.close()
    if master.verdict:
        log.log(logging.WARNING if code else logging.INFO, "%s", master.verdict)
    if as_json:
        print_json(master.figures)
    raise typer.Exit(code)
