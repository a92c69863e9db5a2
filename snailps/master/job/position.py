"""How far a job is: what a checkpoint keeps of it beside the tables, and what it goes on from.

    Job -> Position -> pack -> course.npz in the checkpoint -> unpack -> Position -> Job.begin_pass

A checkpoint includes a block only with all its pushes, that is when it is *settled*
(`leases/records.py`).  No files and no connections here.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data.blocks import Block
from snailps.errors import CheckpointError
from snailps.master.leases.records import OUTCOME


@dataclass(slots=True)
class Position:
    """What a job needs to go on beside its tables.

    Attributes
    ----------
    sources : list of (path, bytes)
        Its input.
    blocks : list of Block
        As the training was cut.
    block_bytes : int
        What they were cut by.
    outcomes : numpy.ndarray
        `OUTCOME` of each entry of the ledger, as `BlockRecords.settled` returns it; for a master
        that takes over, with the servers' rows as they are, as `BlockRecords.known` does.
    summary : bytes or None
        Of the survey.
    clock : int
        In bsp and in rounds: the clock at whose beginning the tables were like this.
    figures : dict
        ``lr``, ``survey_s``, ``train_s``, ``wall_s``, ``ticks``: of the job and of its course.
    """

    sources: list[tuple[str, int]]
    blocks: list[Block]
    block_bytes: int
    outcomes: NDArray[Any]
    summary: bytes | None
    clock: int = 0
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> list[int]:
        """Numbers of the entries that need not be trained again."""
        numbers: list[int] = np.flatnonzero(self.outcomes["state"]).tolist()
        return numbers

    @property
    def units(self) -> int:
        """Words or examples that these held."""
        return int(self.outcomes["units"].sum())


def pack(position: Position) -> bytes:
    """A position as the bytes of an ``.npz``."""
    paths = list(dict.fromkeys(block.path for block in position.blocks))
    places = {path: at for at, path in enumerate(paths)}
    cuts = [(places[block.path], block.start, block.stop) for block in position.blocks]
    text = json.dumps(
        {
            "sources": position.sources,
            "paths": paths,
            "block_bytes": position.block_bytes,
            "has_summary": position.summary is not None,
            "clock": position.clock,
            "figures": position.figures,
        }
    )
    file = io.BytesIO()
    np.savez(
        file,
        about=np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8),
        cuts=np.array(cuts, "<i8").reshape(-1, 3),
        outcomes=position.outcomes,
        summary=np.frombuffer(position.summary or b"", np.uint8),
    )
    return file.getvalue()


def unpack(data: bytes) -> Position:
    """The position that `pack` gave the bytes of.

    Raises
    ------
    CheckpointError
        The bytes are something else.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            about = json.loads(arrays["about"].tobytes().decode("utf-8", "surrogateescape"))
            cuts, outcomes = arrays["cuts"], arrays["outcomes"]
            summary = arrays["summary"].tobytes()
        if outcomes.dtype != OUTCOME or cuts.shape != (len(cuts), 3):
            raise ValueError(f"outcomes {outcomes.dtype}, cuts {cuts.shape}")
        paths = about["paths"]
        blocks = [
            Block(number, str(paths[path]), start, stop)
            for number, (path, start, stop) in enumerate(cuts.tolist())
        ]
        return Position(
            [(str(path), int(size)) for path, size in about["sources"]],
            blocks,
            int(about["block_bytes"]),
            outcomes,
            summary if about["has_summary"] else None,
            int(about["clock"]),
            dict(about["figures"]),
        )
    except (OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"no position of a job: {error!r:.200}") from None
