"""Groups of processes with a share of the processor: cgroups, version 1 or 2.

    cores, period -> quota -> Groups.add(name, cores) -> enter(name) in a child; stat(name)

Groups are folders below one of this process, and are removed when the ``with`` block ends.  Those
of a run that was killed are removed by the next one.  No processes are started here.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

PREFIX = "snailps-hosts-"
QUOTA_US_MIN = 1000
"""The kernel refuses less."""
PERIOD_US_MAX = 1_000_000
REMOVE_S = 5.0
UNLIMITED = 0.0


class NoQuota(Exception):
    """This machine or user cannot limit processor time; the text has the reason and the remedy."""


def quota(cores: float, period_ms: float) -> tuple[int, int]:
    """Microseconds of processor time, and the period in which they may be used.

    The period is longer than asked for where the kernel would refuse so small a quota.

    Raises
    ------
    ValueError
        So small a share needs a period that the kernel refuses, too.
    """
    if not cores > 0 or not period_ms > 0:
        raise ValueError(f"expected cores and a period above 0, got {cores:g} and {period_ms:g} ms")
    period_us = max(period_ms * 1000, QUOTA_US_MIN / cores, QUOTA_US_MIN)
    if period_us > PERIOD_US_MAX:
        raise ValueError(
            f"{cores:g} of a core in periods of {period_us / 1e6:g} s: the kernel allows periods "
            f"of {PERIOD_US_MAX / 1e6:g} s, so at least {QUOTA_US_MIN / PERIOD_US_MAX:g} of a core"
        )
    return round(cores * period_us), round(period_us)


@dataclass(frozen=True)
class Hierarchy:
    """Where cgroups are made.  `version`: 1 or 2."""

    version: int
    root: Path

    def files(self, cores: float, period_ms: float) -> dict[str, str]:
        """Contents of a group's files that set its share."""
        quota_us, period_us = quota(cores, period_ms)
        if self.version == 2:
            return {"cpu.max": f"{quota_us} {period_us}"}
        return {"cpu.cfs_period_us": str(period_us), "cpu.cfs_quota_us": str(quota_us)}


def hierarchy(mounts: str, controllers: Callable[[Path], str]) -> Hierarchy:
    """The hierarchy that has the controller `cpu`.

    Parameters
    ----------
    mounts : str
        Text of /proc/mounts.
    controllers : callable
        Text of `cgroup.controllers` in the root of a hierarchy of version 2.

    Raises
    ------
    NoQuota
    """
    seen = []
    for line in mounts.splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup" and "cpu" in options.split(","):
            return Hierarchy(1, Path(place))
        if kind == "cgroup2":
            if "cpu" in controllers(Path(place)).split():
                return Hierarchy(2, Path(place))
            seen.append(f"{place} (version 2) lacks the controller cpu")
        elif kind == "cgroup":
            seen.append(f"{place} (version 1) has others")
    told = "; ".join(seen) or "no cgroups are mounted"
    raise NoQuota(
        f"no cgroups with the controller cpu: {told}. Without a limit: --core 0; or mount them: "
        "mount -t cgroup2 none FOLDER"
    )


class Groups:
    """Cgroups of this process, named; for as long as the ``with`` block lasts.

    Raises
    ------
    NoQuota
        Not root, or the kernel cannot.
    """

    def __init__(self, period_ms: float) -> None:
        self._period_ms = period_ms
        self._made: list[Path] = []
        self._found = hierarchy(Path("/proc/mounts").read_text(), _controllers)
        self._top = self._found.root / f"{PREFIX}{os.getpid()}"

    @property
    def version(self) -> int:
        """Of the cgroups: 1 or 2."""
        return self._found.version

    def __enter__(self) -> "Groups":
        remove_orphans(self._found.root)
        try:
            self._make(self._top)
            if self.version == 2:
                for folder in (self._found.root, self._top):
                    _write(folder / "cgroup.subtree_control", "+cpu")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._remove()

    def add(self, name: str, cores: float) -> None:
        """Makes a group with this share of all cores together; `UNLIMITED`: with none."""
        folder = self._top / name
        self._make(folder)
        if cores != UNLIMITED:
            for file, text in self._found.files(cores, self._period_ms).items():
                _write(folder / file, text)

    def enter(self, name: str) -> Callable[[], None]:
        """What a child calls to enter a group."""
        file = str(self._top / name / "cgroup.procs")

        def move() -> None:
            fd = os.open(file, os.O_WRONLY)
            os.write(fd, b"0")
            os.close(fd)

        return move

    def stat(self, name: str) -> dict[str, int]:
        """Counters of a group's cpu.stat: `nr_periods`, `nr_throttled` and others."""
        return parse_stat((self._top / name / "cpu.stat").read_text())

    def remove(self, name: str) -> None:
        """Removes a group whose processes have ended."""
        folder = self._top / name
        _remove_folder(folder)
        self._made.remove(folder)

    def _make(self, folder: Path) -> None:
        try:
            folder.mkdir()
        except OSError as error:
            raise NoQuota(f"cannot make {folder}: {error.strerror}. {REMEDY}") from None
        self._made.append(folder)

    def _remove(self) -> None:
        while self._made:
            _remove_folder(self._made.pop())


REMEDY = "A share of the processor takes root; without a limit: --core 0"


def parse_stat(text: str) -> dict[str, int]:
    """Counters by name, of lines of a name and a number."""
    pairs = (line.split() for line in text.splitlines())
    return {name: int(value) for name, value in pairs}


def orphans(names: Iterable[str], alive: Callable[[int], bool]) -> Iterator[str]:
    """Those of these folders' names whose process has ended."""
    for name in names:
        number = name.removeprefix(PREFIX)
        if number != name and number.isdigit() and not alive(int(number)):
            yield name


def remove_orphans(root: Path) -> None:
    """Removes groups of benches that have ended without doing so; none has processes, because
    these end with their bench."""
    names = [entry.name for entry in root.iterdir()]
    for name in orphans(names, lambda pid: Path(f"/proc/{pid}").exists()):
        with contextlib.suppress(OSError):
            for folder in [*(e for e in (root / name).iterdir() if e.is_dir()), root / name]:
                folder.rmdir()


def _controllers(root: Path) -> str:
    with contextlib.suppress(OSError):
        return (root / "cgroup.controllers").read_text()
    return ""


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        raise NoQuota(f"cannot write {text!r} to {file}: {error.strerror}. {REMEDY}") from None


def _remove_folder(folder: Path) -> None:
    """Removes a group; a process that has just ended may hold it for a moment."""
    until = time.monotonic() + REMOVE_S
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > until:
                return  # the next run removes it
            time.sleep(0.05)
        else:
            return
