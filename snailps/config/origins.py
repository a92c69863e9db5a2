"""Lists settings with their values and origins, for people.

    settings object, RawConfig -> with_origins -> (name, value, origin) ... -> status page, report

Hides possible secrets: passwords and queries of addresses, settings with a name like a secret's.
"""

from __future__ import annotations

import re

from snailps.config.fields import Settings
from snailps.config.raw import RawConfig, to_mapping
from snailps.outward import without_secrets

Origin = tuple[str, str, str]
"""Name of a setting, its value as text, and its origin ("default" where not set)."""
HIDDEN = "(not shown)"
CHARS_MAX = 1000
"""At most this many characters of a value are shown."""

_SECRET = re.compile(r"(secret|token|password|credential)s?$")


def with_origins(settings: Settings, raw: RawConfig) -> list[Origin]:
    listed: list[Origin] = []
    for name, value in to_mapping(settings).items():
        entry = raw.explicit(name, type(settings))
        origin = _place(entry.origin) if entry is not None else "default"
        listed.append((name, _shown(name, value), origin))
    return listed


def _shown(name: str, value: str) -> str:
    if value and _SECRET.search(name):
        return HIDDEN
    shown = without_secrets(value)
    more = len(shown) - CHARS_MAX
    return f"{shown[:CHARS_MAX]}... ({more:,} more characters)" if more > 0 else shown


def _place(origin: str) -> str:
    """Cut the value off an origin: the origin of an override repeats it, secrets included."""
    return origin.partition("=")[0] if origin.startswith("--") else origin
