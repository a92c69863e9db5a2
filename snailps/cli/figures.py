"""Writes figures for people: counts, durations, sizes, small curves.

    float -> text        [float, ...] -> ▇▅▃▂▁

Must not know layout, colours or what a figure means.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

SPARKS = "▁▂▃▄▅▆▇█"
ASCII_SPARKS = "_.-=*#"


def count_text(count: float) -> str:
    """Write a count in three digits: ``950``, ``12.3 k``, ``1.23 M``, ``4.56 G``."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            scaled = count / limit
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f} {unit}"
    return f"{count:.0f}"


def seconds_text(seconds: float) -> str:
    """Write a duration in its two largest units: ``42 s``, ``3 min 05 s``, ``2 h 07 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def short_seconds_text(seconds: float) -> str:
    """Write a duration as `seconds_text` does, with tenths below ten seconds."""
    return f"{seconds:.1f} s" if seconds < 9.95 else seconds_text(seconds)


def size_text(size_bytes: float) -> str:
    """Write a size as file managers do: ``812 bytes``, ``8.2 MB``, ``1.4 GB`` (powers of 1000)."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size_bytes >= limit:
            scaled = size_bytes / limit
            return f"{scaled:.{1 if scaled < 100 else 0}f} {unit}"
    return f"{size_bytes:.0f} bytes"


def sparkline(values: Sequence[float], columns: int, signs: str = SPARKS) -> str:
    """Draw values in at most `columns` characters, each the mean of its part; empty below two."""
    if len(values) < 2 or columns < 2:
        return ""
    width = min(columns, len(values))
    edges = [column * len(values) // width for column in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(signs) - 1) / (high - low) if high > low else 0.0
    return "".join(signs[round((mean - low) * scale)] for mean in means)


def counted(count: int, what: str, more: str = "") -> str:
    """Write how many there are: "1 line", "1,234 lines"; `more` is the plural, if no s makes it."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {more or what + 's'}"
