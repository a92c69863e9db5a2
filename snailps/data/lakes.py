"""Folders whose own list says which of their files are the table: Delta, Iceberg, save_to_disk.

    folder -> kind_of_folder -> "Delta", ...     its files, kind -> files_of_table -> those of today

Such a folder keeps files of earlier versions, with rows that were removed or changed since.
deltalake and pyiceberg read the lists, where they are installed.  Rows that are removed by marks
beside the files, and columns that were renamed, are refused: no file has the table's rows then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from snailps.data.extras import optional_module
from snailps.errors import DataError, SnailError

Kind = Literal["Delta", "Iceberg", "Hudi", "save_to_disk", "splits of save_to_disk"]
_METADATA = re.compile(r"v?([0-9]+)(-.*)?\.(gz\.)?metadata\.json(\.gz)?")


def kind_of_folder(folder: str) -> Kind | None:
    """What list a folder has, if any."""
    place = Path(folder)
    # A folder above the input may have a `metadata` that its user may not list.
    with suppress(PermissionError):
        if (place / "_delta_log").is_dir():
            return "Delta"
        if (place / "metadata").is_dir() and _metadata_of(place):
            return "Iceberg"
        if (place / ".hoodie").is_dir():
            return "Hudi"
        if (place / "dataset_dict.json").is_file():
            return "splits of save_to_disk"
        if (place / "state.json").is_file() and (place / "dataset_info.json").is_file():
            return "save_to_disk"
    return None


def files_of_table(folder: str, kind: Kind) -> list[str]:
    """Absolute paths of the files that are the table now, sorted; DataError if none are."""
    read: dict[str, Callable[[Path], list[str]]] = {
        "Delta": _delta, "Iceberg": _iceberg, "save_to_disk": _saved,
    }  # fmt: skip
    if kind == "Hudi":
        raise DataError(
            f"{folder} is a Hudi table, which is not read here: write its rows as Parquet, or name "
            "a folder of such files"
        )
    if kind == "splits of save_to_disk":
        names = sorted(path.parent.name for path in Path(folder).glob("*/state.json"))
        raise DataError(
            f"{folder} has several datasets, as datasets.DatasetDict.save_to_disk writes them: "
            f"name one, {folder}/{names[0] if names else 'train'}; it has {', '.join(names)}"
        )
    try:
        files = sorted(read[kind](Path(folder)))
    except SnailError:
        raise
    except Exception as error:  # of deltalake, pyiceberg, or a list that is damaged
        raise DataError(f"cannot read the {kind} table {folder}: {error}") from error
    if not files:
        raise DataError(f"the {kind} table {folder} has no rows now")
    return files


def _delta(folder: Path) -> list[str]:
    module = optional_module(
        "deltalake", f"{folder} is a Delta table, and reading its log", "snailps[lakes]"
    )
    table = module.DeltaTable(str(folder))
    about = table.metadata()
    # By the mode: version 2 of readers lists no features.
    if (mode := about.configuration.get("delta.columnMapping.mode", "none")) != "none":
        raise _not_in_files(folder, "Delta", f"it maps columns by {mode}")
    if "deletionVectors" in (table.protocol().reader_features or ()) and _has_marks(table):
        raise _not_in_files(folder, "Delta", "it has deletionVectors of removed rows")
    files = [_local(str(uri), folder) for uri in table.file_uris()]
    columns = {*about.partition_columns}
    for file in files:
        if lacking := columns - {name.partition("=")[0] for name in map(unquote, Path(file).parts)}:
            why = f"column {min(lacking)!r} is in its log alone"
            raise _not_in_files(folder, "Delta", why)
    return files


def _has_marks(table: Any) -> bool:
    """Whether a Delta table that may have deletion vectors has some: a compacted one has not."""
    if not hasattr(table, "deletion_vectors"):  # of older releases of deltalake: unknown
        return True
    return any(batch.num_rows for batch in table.deletion_vectors())


def _iceberg(folder: Path) -> list[str]:
    module = optional_module(
        "pyiceberg.table", f"{folder} is an Iceberg table, and reading its metadata",
        "snailps[lakes]",
    )  # fmt: skip
    newest = _metadata_of(folder)
    if len(newest) > 1:
        raise DataError(
            f"{folder} is an Iceberg table whose catalog alone knows which metadata is the newest: "
            f"{newest[0].name} or {newest[1].name}. Write its rows as Parquet"
        )
    table = module.StaticTable.from_metadata(str(newest[0]))
    now = {field.field_id: field.name for field in table.schema().fields}
    for schema in table.metadata.schemas:
        for field in schema.fields:
            if now.get(field.field_id) != field.name:
                raise _not_in_files(
                    folder, "Iceberg", f"its column {field.name!r} was renamed or dropped"
                )
    tasks = list(table.scan().plan_files())
    if any(task.delete_files for task in tasks):
        raise _not_in_files(folder, "Iceberg", "it has files of deleted rows")
    return [_local(str(task.file.file_path), folder) for task in tasks]


def _metadata_of(folder: Path) -> list[Path]:
    """The newest metadata of an Iceberg table; several have the same number."""
    found: dict[int, list[Path]] = {}
    for path in (folder / "metadata").iterdir():
        if match := _METADATA.fullmatch(path.name):
            found.setdefault(int(match[1]), []).append(path)
    return sorted(found[max(found)]) if found else []


def _saved(folder: Path) -> list[str]:
    state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    if state.get("_indices_data_files") or state.get("_indices_files"):  # by releases before 2
        raise _not_in_files(folder, "save_to_disk", "it has indices of rows. Flatten them")
    return [str(folder / Path(file["filename"]).name) for file in state["_data_files"]]


def _not_in_files(folder: Path, kind: Kind, why: str) -> DataError:
    return DataError(
        f"{folder} is {_article(kind)} table whose rows are not what its files have: {why}. "
        "Compact it, or write its rows as Parquet"
    )


def _article(kind: str) -> str:
    return f"an {kind}" if kind == "Iceberg" else f"a {kind}"


def _local(uri: str, folder: Path) -> str:
    """The path of a file of a table on this host; the list has it as a URI, or quoted."""
    path = unquote(urlsplit(uri).path) if uri.startswith("file:") else uri
    for name in (path, unquote(path)):
        if Path(name).is_file():
            file, base = Path(name).resolve(), folder.resolve()
            return str(folder / file.relative_to(base) if file.is_relative_to(base) else file)
    raise DataError(f"{folder}: its list names {uri}, which is no file on this host")
