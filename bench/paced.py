"""Logistic regression whose blocks take a set time, some longer: machines that are slow, or stall.

    train(block), then a wait until `pace` seconds are over, or `slowness` times as long: with
    `stalls` 0 all blocks of one worker, else that share of all workers' blocks

For consistency.py.  On few cores the workers of a benchmark share them, so that none can be slower
by a set factor; here most of a block is waiting, as if each worker had a machine of its own.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from snailps import Block, setting
from snailps.models.sparse.linear import Linear, LinearSettings


@dataclass(frozen=True, slots=True)
class PacedSettings(LinearSettings):
    """Settings with a pace."""

    pace: float = setting(0.04, help="Seconds of a block.", when="In benchmarks.", low=0.0)
    slowness: float = setting(1.0, help="Of what is slow.", when="In benchmarks.", low=1.0)
    stalls: float = setting(0.0, help="Share of slow blocks.", when="In benchmarks.", low=0.0)
    notes: str = setting("", help="Folder that gets a file a worker.", when="In benchmarks.")


class Paced(Linear):
    """Logistic regression at a set pace; the first worker is the slow one."""

    Settings = PacedSettings
    settings: PacedSettings

    def setup(self) -> None:
        """Finds out whether this is the slow worker."""
        super().setup()
        self._pace_s = self.settings.pace
        self._begun = time.monotonic()
        self._busy_s = 0.0
        self._blocks = 0
        with contextlib.suppress(FileExistsError):
            if not self.settings.stalls:
                (Path(self.settings.notes) / "slow").mkdir()
                self._pace_s *= self.settings.slowness

    def train(self, block: Block) -> Mapping[str, float]:
        """Trains, and waits until the pace is kept."""
        begin = time.monotonic()
        figures = super().train(block)
        pace_s = self._pace_s
        if block.seed / 2**64 < self.settings.stalls:
            pace_s *= self.settings.slowness
        time.sleep(max(0.0, begin + pace_s - time.monotonic()))
        self._busy_s += time.monotonic() - begin
        self._blocks += 1
        return figures

    def finish(self) -> None:
        """Writes this worker's times to a file."""
        super().finish()
        slow = self._pace_s > self.settings.pace
        note = {"slow": slow, "blocks": self._blocks, "busy_s": round(self._busy_s, 2)}
        path = Path(self.settings.notes) / f"{'slow' if slow else 'fast'}-{id(self):x}.json"
        path.write_text(json.dumps(note))
