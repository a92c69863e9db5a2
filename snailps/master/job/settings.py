"""Makes the settings of a job: completes them from files that they name, and checks them.

worker class, RawConfig -> job_settings -> JobSettings, checked
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable

from snailps.api.plain_values import plain
from snailps.api.traits import Adopted, InRounds, Limited, is_clocked, trait_of
from snailps.api.worker import Worker
from snailps.config import JobSettings, RawConfig, settings_of
from snailps.config.fields import Settings
from snailps.config.raw import JOB
from snailps.config.settings import ROLE_CLASSES
from snailps.errors import ConfigError

log = logging.getLogger(__name__)

OF_BLOCKS = (
    "consistency", "staleness", "micro_batches", "assign", "block_bytes", "max_steps", "epochs",
)  # fmt: skip
"""Settings that jobs in rounds do not read, but `epochs` where the number of rounds is by it."""
_PLAIN = (bool, int, float, str, tuple, list)


def refuse_unread(cls: type[Worker], settings: JobSettings, raw: RawConfig) -> list[str]:
    """Refuse settings that the user set and this job does not read: they would be ignored in
    silence. ConfigError names the place.

    A value that is the default changes nothing and may stay. So may entries that other jobs read,
    too, and entries that ``--set`` or the environment has made unread; for each of these a sentence
    is returned, to be logged.
    """
    trait, notices = trait_of(cls, InRounds), []
    rounds = trait.rounds(settings)
    by_epochs = trait.rounds(dataclasses.replace(settings, epochs=settings.epochs + 1)) != rounds
    if foreign := raw.foreign([*(role for _, role in ROLE_CLASSES), cls.Settings]):
        name = cls.model_name(settings)
        why = f"{name} has no setting {foreign.key}, which is of another model"
        if not raw.overruled(foreign, [JOB]):
            raise ConfigError(f"{foreign.origin}: {why}: leave it out")
        notices.append(f"{foreign.origin}: {why}")
    for name, setting in settings_of(cls.Settings).items():
        entry = raw.explicit(name, cls.Settings)
        if entry is None or getattr(settings, name) == setting.default:
            continue
        why = "" if setting.is_read(settings) else setting.unread_text(settings)
        causes = setting.readers
        if rounds > 0 and name in OF_BLOCKS and not (name == "epochs" and by_epochs):
            why, causes = "has no effect in a job in rounds", [JOB]
        if why and not entry.shared and not raw.overruled(entry, causes, cls.Settings):
            raise ConfigError(f"{setting.place(entry.origin)} {why}. Leave it out")
        if why:
            notices.append(f"{setting.place(entry.origin)} {why}")
    return notices


def plain_settings(settings: JobSettings) -> JobSettings:
    """The settings that a model's class returned, with plain values in place of NumPy numbers and
    paths."""
    values = {name: getattr(settings, name) for name in settings_of(type(settings))}
    odd = {name: plain(value) for name, value in values.items() if type(value) not in _PLAIN}
    return dataclasses.replace(settings, **odd) if odd else settings


def output_prefix(cls: type[Worker], settings: JobSettings) -> str:
    """The prefix of the result files, where `output` is the name of one: ``out/m`` of
    ``out/m.npz``, for a model that would write ``out/m.npz.npz``."""
    output = settings.output
    for path in cls.result_files(settings) if output else ():
        ending = path.removeprefix(output)
        prefix = output.removesuffix(ending)
        if ending.startswith(".") and prefix.rpartition("/")[2]:
            output = prefix
            break
    return output


def job_settings(
    cls: type[Worker], raw: RawConfig, also_known: Iterable[type[Settings]] = ()
) -> JobSettings:
    """Settings of a job, completed from files that they name and must not contradict."""

    def explicit(name: str) -> str | None:
        entry = raw.explicit(name, cls.Settings)
        return None if entry is None else entry.origin

    built = raw.build(cls.Settings, also_known=also_known)
    settings = plain_settings(trait_of(cls, Adopted).adopt(built, explicit))
    settings = dataclasses.replace(settings, output=output_prefix(cls, settings))
    for notice in refuse_unread(cls, settings, raw):
        log.warning("%s", notice)
    cls.check(settings)
    if is_clocked(cls, settings) and trait_of(cls, Limited).expires(settings):
        raise ConfigError(
            "rows cannot expire in a job with clocks (consistency: bsp, or rounds): which rows do "
            "would depend on the speed of workers. Leave expire_after at 0, or use async or ssp"
        )
    return settings
