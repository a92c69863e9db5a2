"""Folders that list which of their files are the table: Delta, Iceberg, datasets' save_to_disk.

    folder -> kind_of_folder -> "Delta", ...
    folder, kind -> files_of_table -> the files of the current version
    path -> columns_around -> the columns of its table, though older files lack some
    path -> refuse_listed_elsewhere -> DataError: only a list that is not here says if it counts

Such a folder keeps files of earlier versions, whose rows were removed or changed since: reading
them all would train on deleted rows.  deltalake and pyiceberg read the lists.  Refuses tables whose
rows are not simply what the files have: rows deleted by marks beside the files, renamed columns.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from snailps.errors import DataError, SnailError
from snailps.files.extras import optional_module

Kind = Literal[
    "Delta", "Iceberg", "Hudi", "Lance", "Paimon", "Hive ACID", "save_to_disk",
    "splits of save_to_disk",
]  # fmt: skip
NOT_READ = frozenset(("Hudi", "Lance", "Paimon", "Hive ACID"))
"""Kinds of tables that are recognised, and refused: nothing here reads their lists."""
_UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_LISTED_ELSEWHERE = (
    ("DuckLake", re.compile(f"ducklake-{_UUID}(-delete)?\\.(parquet|puffin)"),
     "write its rows by DuckDB, COPY (FROM the table) TO 'rows.parquet'"),
    ("Iceberg", re.compile(rf"[0-9]{{5}}-[0-9]+-{_UUID}(-[0-9]+)*(-deletes)?\.(parquet|orc)"),
     "bring its folder `metadata` here, or write its rows as Parquet"),
    ("Delta", re.compile(rf"deletion_vector_{_UUID}\.bin"),
     "bring its folder `_delta_log` here, or write its rows as Parquet"),
)  # fmt: skip
"""By the names of its files, a kind of table whose list is elsewhere, and what to do."""
_ACID = re.compile(r"(base_[0-9]+|(delete_)?delta_[0-9]+_[0-9]+)(_.*)?")
_METADATA = re.compile(r"v?([0-9]+)(-.*)?\.(gz\.)?metadata\.json(\.gz)?")


def kind_of_folder(folder: str) -> Kind | None:
    """The kind of list that a folder has; None: it has none."""
    place = Path(folder)
    # Folders above the input are asked too, and this user may not be allowed to list theirs.
    with suppress(PermissionError):
        if (place / "_delta_log").is_dir():
            return "Delta"
        if (place / "metadata").is_dir() and _metadata_of(place):
            return "Iceberg"
        if (place / ".hoodie").is_dir():
            return "Hudi"
        if (place / "_versions").is_dir() and any((place / "_versions").glob("*.manifest")):
            return "Lance"
        if (place / "snapshot").is_dir() and any((place / "schema").glob("schema-[0-9]*")):
            return "Paimon"
        if _ACID.fullmatch(place.name) and any(place.glob("bucket_[0-9]*")):
            return "Hive ACID"
        if (place / "dataset_dict.json").is_file():
            return "splits of save_to_disk"
        if (place / "state.json").is_file() and (place / "dataset_info.json").is_file():
            return "save_to_disk"
    return None


def files_of_table(folder: str, kind: Kind) -> list[str]:
    """Absolute paths of the files of the table's current version, sorted.

    DataError: it has no rows, its list is damaged, or its rows are not what its files have.
    """
    read: dict[str, Callable[[Path], list[str]]] = {
        "Delta": _delta, "Iceberg": _iceberg, "save_to_disk": _saved,
    }  # fmt: skip
    if kind in NOT_READ:
        raise DataError(
            f"{folder} is a {kind} table, a kind that is not read here: write its rows as Parquet, "
            "and name that folder"
        )
    if kind == "splits of save_to_disk":
        names = sorted(path.parent.name for path in Path(folder).glob("*/state.json"))
        raise DataError(
            f"{folder} has several datasets, written by datasets.DatasetDict.save_to_disk: name "
            f"one, such as {folder}/{names[0] if names else 'train'}; it has {', '.join(names)}"
        )
    try:
        files = sorted(read[kind](Path(folder)))
    except SnailError:
        raise
    except Exception as error:  # of deltalake, pyiceberg, or a list that is damaged
        raise DataError(f"cannot read the {kind} table {folder}: {error}") from error
    if not files:
        raise DataError(f"the {kind} table {folder} has no rows in its current version")
    return files


def refuse_listed_elsewhere(path: str) -> None:
    """DataError: by its name a file belongs to a table whose list is not in the folder.

    It may be of an earlier version, and a part of its rows may have been deleted.
    """
    name = path.rpartition("/")[2]
    for kind, pattern, cure in _LISTED_ELSEWHERE:
        if pattern.fullmatch(name):
            raise DataError(
                f"{path} is a file of {_article(kind)} table, and the list of the table's current "
                f"files is not here: {cure}. If all rows of the files are wanted, deleted ones "
                "too, rename the files"
            )


def columns_around(path: str) -> dict[str, Any]:
    """Columns, with their types as the list has them, of the table whose list has this file.

    A type is a text, or an object for a type with others in it (`fields_in`).

    Empty: no folder above it has a list that knows columns.  A file that was written before a
    column was added lacks it: the column is null there.  Needs neither deltalake nor pyiceberg, so
    that any worker can ask.
    """
    lists = {"Delta": "_delta_log", "Iceberg": "metadata"}
    for folder in Path(path).parents:
        if (kind := kind_of_folder(str(folder))) in lists:
            try:
                of_list = folder / lists[str(kind)]
                # Names and sizes, too: times alone are too coarse for two commits in a row.
                stats = [(entry.name, entry.stat()) for entry in of_list.iterdir()]
                version = frozenset((name, s.st_size, s.st_mtime_ns) for name, s in stats)
                return _columns_of(str(kind), folder, version)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise DataError(f"cannot read the {kind} table {folder}: {error}") from error
    return {}


@lru_cache(maxsize=16)
def _columns_of(
    kind: str, folder: Path, _version: frozenset[tuple[str, int, int]]
) -> dict[str, Any]:
    """Columns by the list of a table, read once a version: each of its files asks."""
    read = _delta_schema if kind == "Delta" else _iceberg_schema
    return {field["name"]: field["type"] for field in read(folder)}


def type_name(kind: Any) -> str:
    """The name of a column's type in `columns_around`."""
    return kind if isinstance(kind, str) else str(kind["type"])


def fields_in(kind: Any) -> dict[str, Any]:
    """Fields of a struct, by its type in `columns_around`; empty for another type."""
    fields = {} if isinstance(kind, str) else kind.get("fields", ())
    return {field["name"]: field["type"] for field in fields}


def _delta_schema(folder: Path) -> Any:
    """The fields of the newest schema in a Delta table's log."""
    log = folder / "_delta_log"
    checkpoints = sorted(log.glob("[0-9]*.checkpoint*.parquet"), reverse=True)
    oldest = checkpoints[0].name.partition(".")[0] if checkpoints else ""
    for path in sorted(log.glob("[0-9]*.json"), reverse=True):
        if path.name.partition(".")[0] < oldest:
            break
        for line in path.read_bytes().splitlines():
            if b'"metaData"' in line and (metadata := json.loads(line).get("metaData")):
                return json.loads(metadata["schemaString"])["fields"]
    parquet = optional_module("pyarrow.parquet", f"reading {folder}", "snailps[data]")
    for path in checkpoints:
        for metadata in parquet.read_table(path, columns=["metaData"])["metaData"].to_pylist():
            if metadata:
                return json.loads(metadata["schemaString"])["fields"]
    raise ValueError("its log has no schema")


def _iceberg_schema(folder: Path) -> Any:
    """The fields of the current schema in an Iceberg table's metadata."""
    raw = _metadata_of(folder)[0].read_bytes()
    metadata = json.loads(gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw)
    if "schemas" not in metadata:  # of version 1
        return metadata["schema"]["fields"]
    current = metadata["current-schema-id"]
    return next(s["fields"] for s in metadata["schemas"] if s["schema-id"] == current)


def _delta(folder: Path) -> list[str]:
    module = optional_module(
        "deltalake", f"{folder} is a Delta table, and reading its log", "snailps[lakes]"
    )
    table = module.DeltaTable(str(folder))
    metadata = table.metadata()
    # By the mode, not by the reader features: tables of reader version 2 list none.
    if (mode := metadata.configuration.get("delta.columnMapping.mode", "none")) != "none":
        raise _not_in_files(folder, "Delta", f"it maps columns by {mode}")
    if "deletionVectors" in (table.protocol().reader_features or ()) and _has_marks(table):
        raise _not_in_files(folder, "Delta", "it has deletionVectors of removed rows")
    files = [_local(str(uri), folder) for uri in table.file_uris()]
    columns = {*metadata.partition_columns}
    for file in files:
        if lacking := columns - {name.partition("=")[0] for name in map(unquote, Path(file).parts)}:
            why = f"column {min(lacking)!r} is in its log only"
            raise _not_in_files(folder, "Delta", why)
    return files


def _has_marks(table: Any) -> bool:
    """Whether a Delta table that may have deletion vectors has any: a compacted one has none."""
    if not hasattr(table, "deletion_vectors"):  # an older deltalake cannot tell
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
            f"{folder} is an Iceberg table, and only its catalog knows which metadata is newest: "
            f"{newest[0].name} or {newest[1].name}. Write its rows as Parquet"
        )
    table = module.StaticTable.from_metadata(str(newest[0]))
    # Files keep the names that columns had when they were written.
    current = {field.field_id: field.name for field in table.schema().fields}
    for schema in table.metadata.schemas:
        for field in schema.fields:
            if current.get(field.field_id) != field.name:
                raise _not_in_files(
                    folder, "Iceberg", f"its column {field.name!r} was renamed or dropped"
                )
            if getattr(field, "initial_default", None) is not None:
                why = f"older files lack its column {field.name!r}, whose default they have"
                raise _not_in_files(folder, "Iceberg", why)
    tasks = list(table.scan().plan_files())
    if any(task.delete_files for task in tasks):
        raise _not_in_files(folder, "Iceberg", "it has files of deleted rows")
    return [_local(str(task.file.file_path), folder) for task in tasks]


def _metadata_of(folder: Path) -> list[Path]:
    """The metadata files of an Iceberg table with the highest number.

    Several have it after two writers raced: the catalog chose one.
    """
    by_number: dict[int, list[Path]] = {}
    for path in (folder / "metadata").iterdir():
        if match := _METADATA.fullmatch(path.name):
            by_number.setdefault(int(match[1]), []).append(path)
    return sorted(by_number[max(by_number)]) if by_number else []


def _saved(folder: Path) -> list[str]:
    state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    if state.get("_indices_data_files") or state.get("_indices_files"):  # of datasets before 2
        raise _not_in_files(
            folder, "save_to_disk", "it selects rows by indices (flatten_indices() removes them)"
        )
    return [str(folder / Path(file["filename"]).name) for file in state["_data_files"]]


def _not_in_files(folder: Path, kind: Kind, why: str) -> DataError:
    return DataError(
        f"{folder} is {_article(kind)} table whose rows are not simply what its files have: {why}. "
        "Compact it, or write its rows as Parquet"
    )


def _article(kind: str) -> str:
    return f"an {kind}" if kind == "Iceberg" else f"a {kind}"


def _local(uri: str, folder: Path) -> str:
    """The path on this host of a listed file; lists have plain or quoted paths, or URIs."""
    path = unquote(urlsplit(uri).path) if uri.startswith("file:") else uri
    for name in (path, unquote(path)):
        if Path(name).is_file():
            file, base = Path(name).resolve(), folder.resolve()
            return str(folder / file.relative_to(base) if file.is_relative_to(base) else file)
    raise DataError(f"{folder}: its list names {uri}, which is no file on this host: mount it here")
