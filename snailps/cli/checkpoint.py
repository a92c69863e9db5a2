"""``snailps checkpoint list|verify|export``: reads checkpoints on disk, without a cluster.

    folder -> CheckpointFolder.found -> rows           folder -> verify -> rows, exit code
    checkpoint -> offline_export.export -> the model's files | export_tables -> keys and rows

Parses and prints; `store.checkpoint.folder` and `local.offline_export` do the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snailps.api.class_loading import search_here
from snailps.api.export_progress import ExportProgress
from snailps.cli.options import OverwriteOption
from snailps.cli.printing import Cell, JsonObjectOption, live_line, print_json, print_rows
from snailps.config.fields import home_expanded
from snailps.config.output import check_output, sizes_text
from snailps.errors import CheckpointError, ConfigError
from snailps.local.offline_export import CheckpointSource, export
from snailps.local.table_export import Format, export_tables
from snailps.store.checkpoint.folder import (
    Checkpoint,
    CheckpointFolder,
    found_at,
    refuse_no_folder,
    verify,
)

app = typer.Typer(no_args_is_help=True, help="List, verify or export checkpoints on disk.")
COLUMNS = ("number", "state", "saved_at", "progress", "rows", "MB", "worker_class", "why")
FolderArgument = Annotated[
    Path, typer.Argument(help="Folder of checkpoints, such as OUTPUT.checkpoints.")
]
EitherArgument = Annotated[
    Path, typer.Argument(help="Folder of checkpoints, or of one checkpoint.")
]


@app.command("list")
def list_(folder: FolderArgument, as_json: JsonObjectOption = False) -> None:
    """List the checkpoints in a folder: number, whether it is good, progress of the training.

    Checks manifests, lengths and indices; `verify` also reads every row.

    For example: snailps checkpoint list out/corpus.checkpoints
    """
    refuse_no_folder(folder)
    checkpoints = CheckpointFolder(folder).found()
    if not checkpoints:
        typer.echo(
            f"no checkpoints in {folder}: expected folders named checkpoint-000001, ...", err=True
        )
    _print(checkpoints, f"{folder}", as_json)


@app.command("verify")
def verify_(path: EitherArgument, as_json: JsonObjectOption = False) -> None:
    """Read every byte of the checkpoints and check its checksum. Exit code 1 if one is damaged.

    For example: snailps checkpoint verify out/corpus.checkpoints
    """
    checkpoints = [_verified(checkpoint) for checkpoint in found_at(path)]
    _print(checkpoints, f"{path}, every byte read", as_json)
    if any(checkpoint.state != "good" for checkpoint in checkpoints):
        raise typer.Exit(1)


@app.command("export")
def export_(
    path: EitherArgument,
    output: Annotated[str, typer.Option(help="Prefix of the paths of the result files.")],
    tables: Annotated[
        bool,
        typer.Option(
            "--tables",
            help="Write all tables to OUTPUT.npz instead of the model's files.",
            metavar="",
        ),
    ] = False,
    format: Annotated[
        Format | None,
        typer.Option(help="Write tables in this format instead of the model's files."),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            help="With --format: write this table, by default all. May be given several times."
        ),
    ] = None,
    state: Annotated[
        bool,
        typer.Option("--state", help="With --format: also the optimizer's state.", metavar=""),
    ] = False,
    allow_module: Annotated[
        list[str] | None,
        typer.Option(
            help="Allow this module to be imported for the classes that the checkpoint names. May "
            "be given several times.",
            metavar="NAME",
        ),
    ] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Write the model's files from a checkpoint, as the training would write them at its end.

    Given a folder of checkpoints, takes the newest good one. --format works for every model and
    writes the keys (ascending) and weights of each table in constant memory: OUTPUT.npz or
    OUTPUT.safetensors (TABLE.keys, TABLE.rows), or one OUTPUT.TABLE.parquet (key, row) per table,
    which needs pyarrow. Existing files are replaced only with --overwrite.

    For example: snailps checkpoint export out/ads.checkpoints --output out/ads --format parquet
    """
    if not output:
        raise ConfigError("--output: expected a prefix of the result files' paths, got nothing")
    if (table or state) and not (tables or format):
        raise ConfigError("--table and --state choose what tables are written: add --format")
    checkpoints = found_at(path)
    good = [checkpoint for checkpoint in checkpoints if checkpoint.state == "good"]
    if not good:
        raise CheckpointError(
            f"{path}: there is no good checkpoint: snailps checkpoint list says what is wrong "
            "with each"
        )
    for newer in checkpoints[checkpoints.index(good[-1]) + 1 :]:
        if newer.state == "damaged":
            _say_instead(newer, good[-1], newer.why)
    for module in allow_module or ():  # the current folder may have it, as in training
        search_here(module)
    modules = allow_module or ()
    output = home_expanded(output)
    check_output(output)

    def write(checkpoint: Checkpoint, overwrite: bool) -> list[str]:
        progress = ExportProgress()
        with live_line(progress.line):
            if not (tables or format):
                return export(
                    checkpoint.path, output, overwrite=overwrite, progress=progress,
                    modules=modules,
                )  # fmt: skip
            return export_tables(
                CheckpointSource(checkpoint.path, modules), output, format or "npz",
                tables=table, state=state, overwrite=overwrite, how="add --overwrite",
                progress=progress,
            )  # fmt: skip

    is_again = False
    while True:
        newest = good.pop()
        try:
            # A checkpoint that turns out to be damaged has left files, so the export of the next
            # older one may replace them.
            files = write(newest, overwrite or is_again)
            break
        except CheckpointError as error:  # damage that only reading the rows reveals
            if not good:
                raise
            _say_instead(newest, good[-1], str(error))
            is_again = True
    for file in files:
        typer.echo(file)
    sizes = {file: Path(file).stat().st_size for file in files}
    typer.echo(f"wrote {sizes_text(sizes) if sizes else 'no file'}", err=True)


def _say_instead(damaged: Checkpoint, other: Checkpoint, why: str) -> None:
    instead = f"checkpoint {other.number} is exported instead"
    typer.echo(f"checkpoint {damaged.number} is damaged, {instead}: {why}", err=True)


def _verified(checkpoint: Checkpoint) -> Checkpoint:
    """Read a checkpoint's rows; return it, or as damaged if a checksum differs."""
    if checkpoint.state != "good":
        return checkpoint
    try:
        verify(checkpoint.path)
    except CheckpointError as error:
        return Checkpoint(checkpoint.number, checkpoint.path, "damaged", str(error))
    return checkpoint


def _print(checkpoints: list[Checkpoint], title: str, as_json: bool) -> None:
    rows = [_row(checkpoint) for checkpoint in checkpoints]
    if as_json:
        print_json({"checkpoints": [dict(zip(COLUMNS, row, strict=True)) for row in rows]})
    else:
        print_rows(COLUMNS, rows, title=title)


def _row(checkpoint: Checkpoint) -> tuple[Cell, ...]:
    """The cells of `COLUMNS`; None for what only a readable manifest would tell."""
    if checkpoint.manifest is None:
        why = checkpoint.why
        return (checkpoint.number, checkpoint.state, None, None, None, None, None, why)
    manifest = checkpoint.manifest
    return (
        checkpoint.number,
        checkpoint.state,
        manifest.saved_at,
        float(manifest.job.get("progress", 0.0)),
        manifest.rows,
        round(manifest.total_bytes / 1e6, 1),
        str(manifest.job.get("worker_class", "")),
        "",
    )
