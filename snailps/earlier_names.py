"""Names in files of snailps 0.1 that this version calls otherwise: the only place that has both.

    values of a file -> translated(values, MANIFEST) -> the values under the names of this version

Readers translate as they read; nothing writes an earlier name.  A journal of 0.1 is known by its
first record, which says that another version wrote it: its other facts are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MANIFEST = {"life": "cluster_id"}
"""Of a checkpoint's manifest."""
RUN = {"life": "cluster_id"}
"""Of a run's file in the registry of this machine's runs."""
FIRST_FACT = "life"
"""Kind of the first record of a journal."""
JOURNAL_COPY = "life"
"""File beside a journal's facts with a copy of their first record."""


def translated(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The values, each under the name of this version."""
    return {names.get(name, name): value for name, value in values.items()}
