"""Counts over a training, such as clipped values, and the model's judgement of them.

metrics ``count NAME`` of `Worker.train` -> sums at the master -> Reported.counted -> Counted
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from snailps.config import JobSettings

COUNT = "count "
"""Prefix of the metrics that are added up over all blocks."""


class Counted(NamedTuple):
    """A model's judgement of its counts.

    `settings` are the finished model's, `figures` are added to the run's, and `refused` says
    why the job must not go on (empty: it may).
    """

    settings: JobSettings
    figures: Mapping[str, Any] = {}
    refused: str = ""
