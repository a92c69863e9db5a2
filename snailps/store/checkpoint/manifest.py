"""The manifest of a checkpoint: the file ``manifest.json``, written after all others.

    Manifest -> to_bytes -> manifest.json -> from_bytes -> Manifest, every value checked

Owns the manifest's JSON and its checksum (docs/checkpoint_format.md).  A job or a table is a plain
value here; its owner reads it.  Must not know folders or a clock.

Manifests of 0.1 are read: `earlier_names` has the one key that is called otherwise there
(``cluster_id``), and `shard_file.FORMATS` the formats of the shards' files.
"""

from __future__ import annotations

import json
from typing import Any

from snailps.dataclass import dataclass
from snailps.earlier_names import MANIFEST, translated
from snailps.errors import CheckpointError
from snailps.store.checkpoint._crc32c import crc32c
from snailps.store.checkpoint.shard_file import FORMAT, FORMATS, FileEntry
from snailps.store.route import FRAG_NUM_MAX

NAME = "manifest.json"
BEST_ROWS = "best_rows"
"""Key in `Manifest.job`: path of the checkpoint with the rows of the best epoch so far."""
_NO_SUM = '"crc32c": "00000000"'


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a finished checkpoint.

    `cluster_id`: the cluster that wrote it, and whose pushes its marks number.  `saved_at`: when it
    was begun, ISO 8601 in UTC.  Each of `tables` has ``number`` and ``table``, a declaration.
    `files`: the shards' files, which together hold every fragment once.  `job`: which job, and how
    far it was.  `course`: the file with the job's own state; its index_crc32c covers the whole
    file.
    """

    number: int
    cluster_id: int
    saved_at: str
    frag_num: int
    tables: tuple[dict[str, Any], ...]
    files: tuple[FileEntry, ...]
    job: dict[str, Any]
    course: FileEntry
    format_: int = FORMAT

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def total_bytes(self) -> int:
        return sum(file.bytes for file in self.files) + self.course.bytes

    def to_bytes(self) -> bytes:
        plain = {
            "format": self.format_,
            "crc32c": "00000000",
            "number": self.number,
            "cluster_id": self.cluster_id,
            "saved_at": self.saved_at,
            "frag_num": self.frag_num,
            "tables": list(self.tables),
            "files": [file.to_dict() for file in self.files],
            "job": self.job,
            "course": self.course.to_dict(),
        }
        text = json.dumps(plain, indent=1) + "\n"
        assert text.count(_NO_SUM) >= 1
        return text.replace(_NO_SUM, _sum_of(text), 1).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Manifest:
        """Parse and check a manifest; `where` is its path, for messages."""
        try:
            text = data.decode()
            plain = json.loads(text)
            found = int(plain["format"])
            plain = translated(plain, MANIFEST)
            stated = f'"crc32c": "{plain["crc32c"]}"'
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise CheckpointError(f"{where}: no manifest of a checkpoint: {error!r:.200}") from None
        if found not in FORMATS:
            raise CheckpointError(
                f"{where}: checkpoint format {found}, this version reads {FORMATS[0]} to {FORMAT}"
            )
        if stated != _sum_of(text.replace(stated, _NO_SUM, 1)):
            raise CheckpointError(f"{where}: its checksum is wrong: it was damaged or changed")
        try:
            manifest = cls(
                _whole(plain["number"], 1),
                _whole(plain["cluster_id"], 0),
                str(plain["saved_at"]),
                _whole(plain["frag_num"], 1, FRAG_NUM_MAX),
                tuple(_table(item) for item in plain["tables"]),
                tuple(FileEntry.from_dict(item, where) for item in plain["files"]),
                dict(plain["job"]),
                FileEntry.from_dict(plain["course"], where),
                found,
            )
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{where}: cannot be understood: {error!r:.200}") from None
        if sum(file.fragments for file in manifest.files) != manifest.frag_num:
            raise CheckpointError(f"{where}: its files do not hold every fragment once")
        return manifest


def _sum_of(text: str) -> str:
    return f'"crc32c": "{crc32c(text.encode()):08x}"'


def _whole(value: object, lowest: int, highest: int = (1 << 64) - 1) -> int:
    if type(value) is not int or not lowest <= value <= highest:
        raise ValueError(f"expected a whole number of {lowest} to {highest}, got {value!r:.80}")
    return value


def _table(item: Any) -> dict[str, Any]:
    return {"number": _whole(item["number"], 0, (1 << 32) - 1), "table": dict(item["table"])}
