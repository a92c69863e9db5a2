"""Settings in a file whose process does not read them: what each does, and where it belongs.

    entries, what a process reads, what others read -> misplaced -> [(important, sentence), ...]

A setting in a process's own file or from `--set` is a mistake: one important sentence each.  The
environment and files that other processes read too (imported, or naming the job) hold settings of
all roles on purpose: one unimportant sentence for all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from snailps.config.fields import Setting, Settings, settings_of
from snailps.config.files import Entry

JOB = "worker_class"
"""A file with this setting is the master's, even if other processes read it too."""


class Home(NamedTuple):
    """The place where the settings of a class are read."""

    place: str
    cls: type[Settings]


class Remark(NamedTuple):
    important: bool
    text: str


class _Stray(NamedTuple):
    entry: Entry
    setting: Setting
    place: str

    def sentence(self, reader: str) -> str:
        name, does = self.setting.name, self.setting.help.partition(". ")[0].rstrip(".")
        called = f", there called {name}" if name != self.entry.key else ""
        return (
            f'{self.entry.origin}: {self.entry.key} has no effect in {reader}: "'
            f'{does.replace("`", "")}". It belongs to {self.place}{called}'
        )


def misplaced(
    entries: Iterable[Entry], reader: str, own: Iterable[type[Settings]], homes: Iterable[Home]
) -> list[Remark]:
    """Remarks on settings that another process reads; ignores unknown ones.

    `reader` is a name such as ``a server``; the first of `homes` that has a setting counts, and
    `homes` is consumed only up to that one.
    """
    entries = list(entries)
    mine = {name for cls in own for one in settings_of(cls).values() for name in _names(one)}
    shared = {entry.source for entry in entries if entry.source and entry.key == JOB}
    shared |= {entry.source for entry in entries if entry.shared}
    strays: dict[tuple[str, str], _Stray] = {}
    read: list[Home] = []
    rest = iter(homes)
    for entry in entries:
        found = None if entry.key in mine else _home_of(entry, read, rest)
        if found is not None:  # of two assignments in one place the later one counts
            strays[entry.source if entry.source in shared else "", entry.key] = found
    remarks = [
        Remark(True, stray.sentence(reader)) for (file, _), stray in strays.items() if not file
    ]
    for file in sorted(shared):
        places: dict[str, list[str]] = {}
        for (where, key), stray in strays.items():
            if where == file and ("", key) not in strays:
                places.setdefault(stray.place, []).append(key)
        if places:
            told = "; ".join(f"{', '.join(keys)} from {place}" for place, keys in places.items())
            remarks.append(Remark(False, f"{file}: not read by {reader}, but {told}"))
    return remarks


def _names(setting: Setting) -> list[str]:
    return [setting.name, *(alias.name for alias in setting.aliases)]


def _home_of(entry: Entry, read: list[Home], rest: Iterator[Home]) -> _Stray | None:
    """Find the home of a setting, among `read` homes first."""
    for home in itertools.chain(tuple(read), _kept(rest, read)):
        for setting in settings_of(home.cls).values():
            if entry.key in _names(setting):
                return _Stray(entry, setting, home.place)
    return None


def _kept(rest: Iterator[Home], read: list[Home]) -> Iterator[Home]:
    for home in rest:
        read.append(home)
        yield home
