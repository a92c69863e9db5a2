"""Settings with their values and where these come from, for people.

    settings object, RawConfig -> with_origins -> (name, value, origin) ... -> status page, report

The cluster's secret is a file or in the environment, and no setting.  What could still be one here,
a password in an address of the input, a user's own setting of such a name, is left out.
"""

from __future__ import annotations

import re

from snailps.config.fields import Settings
from snailps.config.raw import RawConfig, to_mapping

Origin = tuple[str, str, str]
"""Name of a setting, its value as text, and where that comes from: "default" where not set."""
HIDDEN = "(not shown)"
CHARS_MAX = 1000
"""Of a value; what a model has found out of 4,096 columns has 100,000."""

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
_SECRET = re.compile(r"(secret|token|password|credential)s?$")


def with_origins(settings: Settings, raw: RawConfig) -> list[Origin]:
    """All settings of an object that was built from these entries."""
    found: list[Origin] = []
    for name, value in to_mapping(settings).items():
        entry = raw.explicit(name, type(settings))
        origin = _place(entry.origin) if entry is not None else "default"
        found.append((name, _shown(name, value), origin))
    return found


def _shown(name: str, value: str) -> str:
    if value and _SECRET.search(name):
        return HIDDEN
    shown = _CREDENTIALS.sub("", value)
    more = len(shown) - CHARS_MAX
    return f"{shown[:CHARS_MAX]}... ({more:,} more characters)" if more > 0 else shown


def _place(origin: str) -> str:
    """An origin without the value: that of an override repeats it."""
    return origin.partition("=")[0] if origin.startswith("--") else origin
