"""The state of a job: what a checkpoint, the journal and a master that takes over share.

    Job.snapshot -> JobSnapshot -> encode -> JSON, arrays -> decode -> JobSnapshot -> Job.begin_pass
        checkpoint: input and progress, in one file (pack, unpack)
        journal: input and first progress in `base` (pack, unpack); later progress as a state

One schema, one encoder, one decoder.  A checkpoint includes a block only with all its pushes, that
is when it is *settled* (`leases/records.py`); the rows of the servers are those of the checkpoint.
In the journal it includes all blocks that are done, for the servers live on, and in addition the
`exact` state, which a new master needs to continue as the lost one would have.  What each worker
holds is not included: it reports that itself when it comes back (`Rejoin`).  No files here.
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
    """The state of a job beside its tables.

    Attributes
    ----------
    sources : list of (path, bytes)
        Its input.
    blocks : list of Block
        As the training was cut.
    block_bytes : int
        Size that they were cut by.
    records : numpy.ndarray
        For a checkpoint `OUTCOME` of each block, as `Ledger.settled` returns it; for the journal
        `RECORD`, as `BlockRecords.known` returns it.  In a rotation from the first open chunk on.
    summary : bytes or None
        Of the survey.
    clock : int
        In bsp and in rounds: the rows are those of the beginning of this clock.
    figures : dict
        ``lr``, ``survey_s``, ``train_s``, ``wall_s``, ``ticks`` of the job; of one in rounds also
        ``rounds``, ``units``, ``losses``, as of the beginning of the present round; of a rotation
        ``rotation``: how it is cut, which chunks are open, and for a checkpoint the ``metrics``;
        of one whose blocks are drawn ``order``, the seed.
    exact : dict or None
        For JSON: state of ledger and metrics, and what ended or will end the training.
    arrays : dict of str to numpy.ndarray
        Of the ledger's state, what is too large for JSON.
    """

    sources: list[tuple[str, int]]
    blocks: list[Block]
    block_bytes: int
    records: NDArray[Any]
    summary: bytes | None
    clock: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    exact: dict[str, Any] | None = None
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def done(self) -> list[int]:
        """Numbers of the blocks that need not be trained again."""
        numbers: list[int] = np.flatnonzero(self.records["state"]).tolist()
        return numbers

    @property
    def units(self) -> int:
        """Words or examples that these held, for a checkpoint."""
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
    """The snapshot that `encode` returned these of; `base` has the input if it was left out.

    Raises
    ------
    CheckpointError
        They are something else.
    """
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
    """A snapshot as the bytes of an ``.npz``: `course.npz` of a checkpoint, `base` of a journal."""
    about, arrays = encode(snapshot)
    text = json.dumps(about).encode("utf-8", "surrogateescape")
    parts: dict[str, Any] = {"about": np.frombuffer(text, np.uint8), **arrays}
    file = io.BytesIO()
    np.savez(file, **parts)
    return file.getvalue()


def unpack(data: bytes) -> JobSnapshot:
    """The snapshot that `pack` returned the bytes of.

    Raises
    ------
    CheckpointError
        The bytes are something else.
    """
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
