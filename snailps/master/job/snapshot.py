"""The state of a job: shared by checkpoints, the journal and a master that takes over.

    Job.snapshot -> JobSnapshot -> encode -> JSON, arrays -> decode -> JobSnapshot -> Job.begin_pass
    checkpoint: input and progress, in one file (pack, unpack)
    journal: input and first progress in `base` (pack, unpack); later progress as a state

One schema, one encoder, one decoder. A checkpoint includes a block only once *settled*
(`leases/records.py`), in step with the servers' rows. The journal includes all done blocks, as the
servers live on, and the `exact` state to continue from. Leases are not included: workers report
them when they come back (`Rejoin`). No files here.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data.array_archives import DAMAGED, arrays_of
from snailps.data.blocks import Block
from snailps.errors import CheckpointError
from snailps.master.leases.records import OUTCOME, RECORD


@dataclass(slots=True)
class JobSnapshot:
    """The state of a job beside its tables."""

    sources: list[tuple[str, int]]  # path and size of each input file
    blocks: list[Block]  # as the training was cut
    block_bytes: int  # size that blocks were cut by
    # checkpoint: `OUTCOME` of `Ledger.settled`; journal: `RECORD` of `BlockRecords.known`; in a
    # rotation from the first open chunk on
    records: NDArray[Any]
    summary: bytes | None  # of the survey
    clock: int = 0  # in bsp and in rounds: the rows are those of the beginning of this clock
    # ``lr``, ``survey_s``, ``train_s``, ``wall_s``, ``ticks``; of rounds ``rounds``, ``units``,
    # ``losses`` at the beginning of the present one; of a rotation ``rotation`` (cut, open chunks,
    # a checkpoint's ``metrics``); of drawn blocks ``order``, the seed
    figures: dict[str, Any] = field(default_factory=dict)
    # for JSON: state of ledger and metrics, and what ended or will end the training
    exact: dict[str, Any] | None = None
    # of the ledger's state, too large for JSON
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def done(self) -> list[int]:
        """Numbers of the blocks that need not be trained again."""
        numbers: list[int] = np.flatnonzero(self.records["state"]).tolist()
        return numbers

    @property
    def units(self) -> int:
        """Words or examples in these blocks, for a checkpoint."""
        if "rotation" in self.figures:
            return int(self.figures["rotation"]["metrics"]["units"])
        return int(self.records["units"].sum())


def encode(
    snapshot: JobSnapshot, *, with_input: bool = True
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """A snapshot as a value for JSON, and arrays; the input may be left out where it is known."""
    about: dict[str, Any] = {}
    arrays: dict[str, NDArray[Any]] = {}
    if with_input:
        paths = list(dict.fromkeys(block.path for block in snapshot.blocks))
        places = {path: at for at, path in enumerate(paths)}
        cuts = [(places[block.path], block.start, block.stop) for block in snapshot.blocks]
        about = {
            "sources": snapshot.sources,
            "paths": paths,
            "block_bytes": snapshot.block_bytes,
            "has_summary": snapshot.summary is not None,
        }
        arrays["cuts"] = np.array(cuts, "<i8").reshape(-1, 3)
    about |= {"clock": snapshot.clock, "figures": snapshot.figures}
    arrays["outcomes"] = snapshot.records
    if with_input:
        arrays["summary"] = np.frombuffer(snapshot.summary or b"", np.uint8)
    if snapshot.exact is not None:
        about["exact"] = snapshot.exact
    return about, {**arrays, **snapshot.arrays}


def decode(
    about: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    base: JobSnapshot | None = None,
) -> JobSnapshot:
    """Inverse of `encode`; `base` has an input that was left out. CheckpointError for other
    data."""
    try:
        if base is None:
            input_ = _input_of(about, arrays)
        else:
            input_ = (base.sources, base.blocks, base.block_bytes, base.summary)
        sources, blocks, block_bytes, summary = input_
        records = arrays["outcomes"]
        if records.dtype not in (OUTCOME, RECORD):
            raise ValueError(f"outcomes {records.dtype}")
        return JobSnapshot(
            sources,
            blocks,
            block_bytes,
            records,
            summary,
            int(about["clock"]),
            dict(about["figures"]),
            about.get("exact"),
            {name: arrays[name] for name in arrays if name not in _OWN},
        )
    except (ValueError, LookupError, TypeError) as error:
        raise _error(error) from None


_OWN = ("outcomes", "cuts", "summary", "about")


def _input_of(
    about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> tuple[list[tuple[str, int]], list[Block], int, bytes | None]:
    cuts, paths = arrays["cuts"], about["paths"]
    if cuts.shape != (len(cuts), 3):
        raise ValueError(f"cuts {cuts.shape}")
    sources = [(str(path), int(size)) for path, size in about["sources"]]
    blocks = [
        Block(number, str(paths[path]), start, stop)
        for number, (path, start, stop) in enumerate(cuts.tolist())
    ]
    summary = arrays["summary"].tobytes() if about["has_summary"] else None
    return sources, blocks, int(about["block_bytes"]), summary


def pack(snapshot: JobSnapshot) -> bytes:
    """A snapshot as an ``.npz``: `course.npz` of a checkpoint, `base` of a journal."""
    about, arrays = encode(snapshot)
    text = json.dumps(about).encode("utf-8", "surrogateescape")
    parts: dict[str, Any] = {"about": np.frombuffer(text, np.uint8), **arrays}
    file = io.BytesIO()
    np.savez(file, **parts)
    return file.getvalue()


def unpack(data: bytes) -> JobSnapshot:
    """Inverse of `pack`; CheckpointError for other data."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            arrays = arrays_of(archive, len(data))
        text = arrays["about"].tobytes().decode("utf-8", "surrogateescape")
        about = json.loads(text)
    except (OSError, *DAMAGED) as error:
        raise _error(error) from None
    return decode(about, arrays)


def _error(error: Exception) -> CheckpointError:
    return CheckpointError(f"no snapshot of a job: {error!r:.200}")
