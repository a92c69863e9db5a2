"""Owns the form of a job's state beside its rows, for checkpoints, journal and takeover.

    JobRecord.dump -> JobState -> JSON, arrays -> decode -> JobState -> JobRecord.load
    checkpoint: input and progress, in one file (pack, unpack)
    journal: input and first progress in `base` (pack, unpack); later progress as a state

docs/design/job-state.md has its keys, writers and readers. Must not know files; what it reads may
be a stranger's, so every key is checked, and a `CheckpointError` raised for other data.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.dataclass import dataclass
from snailps.errors import CheckpointError
from snailps.files.array_archives import DAMAGED, arrays_of
from snailps.master.leases.records import OUTCOME, RECORD
from snailps.outward import distinct_names, without_secrets
from snailps.pieces import Piece


@dataclass(slots=True)
class JobState:
    """The state of a job beside its rows."""

    about: dict[str, Any]  # for JSON
    arrays: dict[str, NDArray[Any]]
    blocks: Sequence[Piece] = ()  # of the input, where the state includes it

    @property
    def records(self) -> NDArray[Any]:
        """`OUTCOME` of `Schedule.durable`, or `RECORD` of `Schedule.known`."""
        return self.arrays["outcomes"]

    @property
    def figures(self) -> dict[str, Any]:
        figures: dict[str, Any] = self.about["figures"]
        return figures

    @property
    def clock(self) -> int:
        """In bsp and in rounds: the clock at whose beginning the rows were copied; else 0."""
        return int(self.about["clock"])

    @property
    def sources(self) -> list[tuple[str, int]]:
        """Name, without passwords and signatures, and size of each input file."""
        names = self._names_of_sources
        return [(names[str(path)], int(size)) for path, size in self.about["sources"]]

    @property
    def _names_of_sources(self) -> dict[str, str]:
        return distinct_names(str(path) for path, _ in self.about["sources"])

    @property
    def names(self) -> list[tuple[str, str]]:
        """Each path of the input's blocks, an address in earlier versions, and its name."""
        names = self._names_of_sources
        paths = map(str, self.about["paths"])
        return [(path, names.get(path) or without_secrets(path)) for path in paths]

    @property
    def summary(self) -> bytes | None:
        """Summary of the survey."""
        return self.arrays["summary"].tobytes() if self.about["has_summary"] else None

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


def decode(
    about: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    base: JobState | None = None,
) -> JobState:
    """A state as it was read, with the input of `base` if it has none. CheckpointError for other
    data."""
    try:
        state = JobState({**about}, {**arrays})
        if base is None:
            cuts, paths = arrays["cuts"], about["paths"]
            if cuts.shape != (len(cuts), 3):
                raise ValueError(f"cuts {cuts.shape}")
            state.blocks = [
                Piece(str(paths[path]), start, stop) for path, start, stop in cuts.tolist()
            ]
        else:
            state = JobState(base.about | state.about, base.arrays | state.arrays, base.blocks)
        if state.records.dtype not in (OUTCOME, RECORD):
            raise ValueError(f"outcomes {state.records.dtype}")
        _ = state.clock, state.sources, state.summary, dict(state.figures)
        _ = int(state.about["block_bytes"])
        return state
    except (ValueError, LookupError, TypeError) as error:
        raise _error(error) from None


def pack(state: JobState) -> bytes:
    """A state as an ``.npz``: `course.npz` of a checkpoint, `base` of a journal."""
    text = json.dumps(state.about).encode("utf-8", "surrogateescape")
    parts: dict[str, Any] = {"about": np.frombuffer(text, np.uint8), **state.arrays}
    file = io.BytesIO()
    np.savez(file, **parts)
    return file.getvalue()


def unpack(data: bytes) -> JobState:
    """Inverse of `pack`; CheckpointError for other data."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            arrays = arrays_of(archive, len(data))
        text = arrays.pop("about").tobytes().decode("utf-8", "surrogateescape")
        about = json.loads(text)
    except (OSError, *DAMAGED) as error:
        raise _error(error) from None
    return decode(about, arrays)


def _error(error: Exception) -> CheckpointError:
    return CheckpointError(f"no snapshot of a job: {error!r:.200}")
