"""What workers count over a training, and what it means to the model.

metrics of `Worker.train` named ``count NAME`` -> sums at the master -> Reported.counted -> Counted
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from snailps.config import JobSettings

COUNT = "count "
"""Begins the names of metrics that are added up over all blocks."""


class Counted(NamedTuple):
    """A model's judgement of its counts: the settings of the finished model, further figures of the
    run, and why it must not go on; empty: it may."""

    settings: JobSettings
    figures: Mapping[str, Any] = {}
    refused: str = ""
