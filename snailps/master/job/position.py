"""How far a job is: what a checkpoint keeps of it beside the tables, and what it goes on from.

    Done, Settled -> Outcomes (what became of each block of the training)
    Job -> Position -> pack -> course.npz in the checkpoint -> unpack -> Position -> Job.resume

A block counts as trained in a checkpoint only if every push of it is in there: from the moment at
which its worker has seen them all acknowledged it is *settled*.  No files and no connections here.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data.blocks import Block
from snailps.errors import CheckpointError

_DONE, _SETTLED = 1, 2
OUTCOME = np.dtype(
    [
        ("state", "<u4"),
        ("node", "<u4"),
        ("units", "<i8"),
        ("loss", "<f8"),
        ("examples", "<f8"),
        ("bad_lines", "<i8"),
    ]
)


class Outcomes:
    """What became of each block of the training.

    Parameters
    ----------
    size : int
        Entries of the ledger.

    Notes
    -----
    40 bytes an entry, touched when an entry is done; as many again once `known` was asked for.
    """

    def __init__(self, size: int) -> None:
        self._all = np.zeros(size, OUTCOME)
        self._end = 0
        self._known: NDArray[Any] | None = None  # what `known` gave last
        self._changed = (0, 0)  # since then: from, to

    def done(
        self, number: int, node: int, units: int, loss: float, examples: float, bad_lines: int
    ) -> None:
        """An entry is trained; pushes of it may be under way."""
        self._all[number] = (_DONE, node, units, loss, examples, bad_lines)
        self._end = max(self._end, number + 1)
        self._change(number, number + 1)

    def settle(self, numbers: Iterable[int], node: int) -> None:
        """All pushes of these entries, trained by a node, are acknowledged; others are left out."""
        for number in numbers:
            if 0 <= number < self._end:
                entry = self._all[number]
                if entry["state"] == _DONE and entry["node"] == node:
                    entry["state"] = _SETTLED
                    self._change(number, number + 1)

    def settle_all(self, node: int, but: Iterable[int] = ()) -> None:
        """The same of every entry that a node has trained so far, except these."""
        known = self._all[: self._end]
        theirs = (known["state"] == _DONE) & (known["node"] == node)
        theirs[[number for number in but if 0 <= number < self._end]] = False
        known["state"][theirs] = _SETTLED
        found = np.flatnonzero(theirs)
        if len(found):
            self._change(int(found[0]), int(found[-1]) + 1)

    def settled(self) -> NDArray[Any]:
        """Every entry up to the last one that is known; those that are not settled are zero."""
        found: NDArray[Any] = self._all[: self._end].copy()
        found[found["state"] != _SETTLED] = 0
        return found

    def known(self) -> NDArray[Any]:
        """Every entry up to the last one that is known, settled or not; until the next call.

        Copies what has changed since the last one, some milliseconds in a job of any length.
        """
        if self._known is None:
            self._known = np.zeros_like(self._all)
        changed = slice(*self._changed)
        self._known[changed] = self._all[changed]
        self._changed = (0, 0)
        return self._known[: self._end]

    def first(self, count: int) -> NDArray[Any]:
        """The first `count` entries, all of which are done."""
        found: NDArray[Any] = self._all[:count].copy()
        found["state"] = _SETTLED
        return found

    def resume(self, settled: NDArray[Any]) -> None:
        """Takes what `settled` or `known` gave, as far as there are such entries."""
        self._end = min(len(settled), len(self._all))
        self._all[: self._end] = settled[: self._end]
        self._known, self._changed = self._all.copy(), (0, 0)

    def _change(self, start: int, stop: int) -> None:
        first, last = self._changed
        self._changed = (min(first, start), max(last, stop)) if last else (start, stop)


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
        `OUTCOME` of each entry of the ledger, as `Outcomes.settled` gives it; for a master that
        takes over, and has the pushes that are under way with it, as `Outcomes.known` does.
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
