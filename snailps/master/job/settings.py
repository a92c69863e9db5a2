"""Settings of a job: completed from files that they name, checked, those without effect reported.

worker class, RawConfig -> job_settings -> JobSettings, checked
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from snailps.api.plain_values import plain
from snailps.api.worker import Worker
from snailps.config import JobSettings, RawConfig, settings_of
from snailps.config.fields import Settings
from snailps.config.settings import SCHEDULE_SETTINGS
from snailps.errors import ConfigError

_PLAIN = (bool, int, float, str, tuple, list)


def without_effect(cls: type[Worker], settings: JobSettings, raw: RawConfig) -> list[str]:
    """Sentences on settings that the user made and that this job does not read."""
    in_rounds = cls.rounds(settings) > 0
    mode = "a job in rounds" if in_rounds else f"consistency {settings.consistency}"
    found = []
    for name, readers in {**SCHEDULE_SETTINGS, "consistency": (settings.consistency,)}.items():
        entry = raw.explicit(name, cls.Settings)
        if entry is not None and (in_rounds or settings.consistency not in readers):
            found.append(f"{entry.origin}: {name} has no effect in {mode}")
    return found


def plain_settings(settings: JobSettings) -> JobSettings:
    """Settings as a model's class returned them, NumPy numbers and paths in them made plain."""
    values = {name: getattr(settings, name) for name in settings_of(type(settings))}
    odd = {name: plain(held) for name, held in values.items() if type(held) not in _PLAIN}
    return dataclasses.replace(settings, **odd) if odd else settings


def job_settings(
    cls: type[Worker], raw: RawConfig, also_known: Iterable[type[Settings]] = ()
) -> JobSettings:
    """Settings of a job, completed from files that they name and must not contradict."""

    def explicit(name: str) -> str | None:
        entry = raw.explicit(name, cls.Settings)
        return None if entry is None else entry.origin

    settings = plain_settings(cls.adopt(raw.build(cls.Settings, also_known=also_known), explicit))
    cls.check(settings)
    if cls.clocked(settings) and cls.expires(settings):
        raise ConfigError(
            "rows cannot expire in a job with clocks (consistency: bsp, or rounds): which ones do "
            "would depend on who was how fast. Leave expire_after at 0, or use async or ssp"
        )
    return settings
