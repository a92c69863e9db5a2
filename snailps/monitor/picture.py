"""A run as plain values for JSON: what a page shows.

    Status -> trimmed -> users' words, columns and rows, numbers of five digits, times of
    milliseconds -> page, report

Processes and shards are columns and rows: a third of the bytes of objects at 1,000 workers.
Must not know sockets, clocks or threads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from snailps.node.phrases import phase_words, share_done, state_words
from snailps.node.status import Status

DIGITS = 5
_TABLES = ("nodes", "shards")
_LEFT_OUT = ("counts", "cpu_counts")
"""Histograms of the master's loop: half of a small status, and only programs read them."""


def trimmed(status: Status) -> dict[str, Any]:
    """Reduce a status to what a page shows; `nodes` and `shards` become columns and rows.

    Adds `phase_words`, and `words` and `mood` of each process: their states in users' words.
    """
    page = {
        key: plain(value, key) for key, value in status.items() if key not in (*_TABLES, "loop")
    }
    loop = status.get("loop")
    if loop:
        page["loop"] = plain({k: v for k, v in loop.items() if k not in _LEFT_OUT})
    page["phase_words"] = phase_words(status)
    page["progress"] = plain(share_done(status))
    page["nodes"] = table(
        [{**node, **dict(zip(("words", "mood"), state_words(node), strict=True))}
         for node in status["nodes"]]
    )  # fmt: skip
    page["shards"] = table(status["shards"])
    return page


def table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns = list(rows[0]) if rows else []
    return {
        "columns": columns,
        "rows": [[plain(row.get(name), name) for name in columns] for row in rows],
    }


def plain(value: Any, name: str = "") -> Any:
    """Prepare a value for JSON: floats of five digits, None for NaN and infinity, valid UTF-8.

    Times, by their `name`, keep milliseconds: with five digits a date is hours off, and the events
    of a run of two days lie ten seconds beside each other.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        if abs(value) >= 10.0**DIGITS / 1e3 and is_time(name):
            return round(value, 3)
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, name) for item in value]
    return value


def is_time(name: str) -> bool:
    """Whether a value of this name is in seconds: ``began_s``, but not ``units_per_s``."""
    return name.endswith("_s") and not name.endswith("per_s")


def packed(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
