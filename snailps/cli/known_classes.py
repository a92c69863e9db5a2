"""Lists the classes whose settings one .conf file may hold: roles, the user's model, all models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from snailps import models
from snailps.api.worker import load_class
from snailps.config import JobSettings, MasterSettings, RawConfig, ServerSettings, WorkerSettings
from snailps.config.fields import Settings


class KnownClasses:
    """Classes whose keys may be in a file, for a search that stops when it has found a key.

    The classes of the process come `first`; the models', whose import costs time, come after them.
    """

    def __init__(self, first: Sequence[type[Settings]]) -> None:
        self._first = tuple(first)

    def __iter__(self) -> Iterator[type[Settings]]:
        yield from self._first
        yield from models.SETTINGS.values()


def known_classes(raw: RawConfig) -> KnownClasses:
    """Return every class whose keys may be in a file of this job."""
    classes: list[type[Settings]] = [MasterSettings, ServerSettings, WorkerSettings, JobSettings]
    entry = raw.explicit("worker_class", JobSettings)
    if entry is not None and entry.value:
        classes.append(load_class(entry.value, entry.origin).Settings)
    return KnownClasses(classes)
