"""The runs of this user on this machine: which masters run, and how the last ones ended.

    master -> Registration -> a small JSON file for each run -> runs() -> snailps status, jobs

The files are in $XDG_RUNTIME_DIR/snailps; without that variable in a folder of this user below the
temporary folder; if another user owns that, below the home folder. The newest `KEPT` ended runs
stay as records. The start time of a process distinguishes it from a later one with the same number,
so a killed master is recognised. Files appear and change by renaming, without locks. A run that
cannot write its file warns and goes on. The file has mode 600: while a cluster runs, it has the
secret that its launcher made. Must not know sockets or messages.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from snailps.config.output import is_own
from snailps.dataclass import asdict, dataclass, field, fields, replace
from snailps.earlier_names import RUN, translated

if TYPE_CHECKING:
    from snailps.config import ClusterSettings
    from snailps.transport.security.trust import Trust

log = logging.getLogger(__name__)

KEPT = 20
"""Ended runs that are kept."""
LOOK_S = 10.0
"""Period of checking that a run's file exists, which a login manager may remove."""
FILE_BYTES_MAX = 1 << 20
FIGURE_BYTES_MAX = 4096
"""Longer figures, of thousands of rounds say, are not kept."""

State = Literal["running", "ended", "killed"]
NOT_REGISTERED = (
    "cannot be written: snailps status, jobs and cluster drain do not find it. Have that folder "
    "removed, or set XDG_RUNTIME_DIR to one of yours"
)
Birth = Callable[[int], int | None]
"""Process number -> its start time in clock ticks since boot; None: there is no such process."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a cluster, as its master registered it."""

    # the run's name on this machine; a master that takes over has the number of the lost one
    number: int = 0
    pid: int = 0  # the master's process
    born: int = 0  # start time of the master's process
    boot: str = ""  # boot of the machine that `born` counts from
    cluster_id: str = ""  # as in the status
    address: str = ""  # where the master listens, host:port
    model: str = ""  # ``fasttext``, or the class; ``session`` for jobs from Python
    output: str = ""  # absolute path prefix of the result; empty without one
    folder: str = ""  # where the user called the command
    command: str = ""  # empty if unknown
    config: str = ""  # absolute path, like the next two; empty if not given
    secret_file: str = ""
    tls: str = ""
    secured: bool = False  # the master requires a secret or a certificate that the user has given
    # made by the launcher; empty if the user gave one
    secret: str = field(default="", repr=False)
    journal: str = ""  # folder from which a lost run continues
    checkpoints: str = ""  # folder of the job's checkpoints
    launcher: int = 0  # the master's parent process, if that restarts it; else 0
    launcher_born: int = 0
    started: float = 0.0  # seconds since 1970
    ended: float = 0.0  # seconds since 1970; 0 while unknown
    code: int = 0  # exit code
    verdict: str = ""  # why it ended; empty for the ordinary end
    figures: dict[str, Any] = field(default_factory=dict)  # of the finished run
    last: dict[str, Any] = field(default_factory=dict)  # of its last status: `events`, `checkpoint`

    @property
    def is_session(self) -> bool:
        """Whether it runs jobs that Python submits."""
        return self.model == "session"


def birth_of(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields_ = text.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields_[0] in ("Z", "X") else int(fields_[19])


def boot_of() -> str:
    """Id of this boot of the machine; empty where the kernel has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def folders(environ: Mapping[str, str] | None = None, uid: int | None = None) -> list[Path]:
    """Return the folders in which the files may be, the preferred one first."""
    environ = os.environ if environ is None else environ
    uid = os.getuid() if uid is None else uid
    runtime = Path(environ.get("XDG_RUNTIME_DIR", ""))
    temporary = Path(environ.get("TMPDIR", ""))
    places = [runtime / "snailps"] if runtime.is_absolute() else []
    temporary = temporary if temporary.is_absolute() else Path("/tmp")
    places.append(temporary / f"snailps-runs-{uid}")
    home = Path(environ.get("HOME", ""))
    if os.path.lexists(places[-1]) and _why_not(places[-1], uid) and home.is_absolute():
        # With the host's name: hosts may share a home.
        places.append(home / ".local/state/snailps" / f"runs-{os.uname().nodename}")
    return places


class RunRegistry:
    def __init__(
        self,
        places: Sequence[Path] | None = None,  # folders, the preferred one first; default `folders`
        *,
        birth: Birth = birth_of,
        boot: str | None = None,
        clock: Callable[[], float] = time.time,  # seconds since 1970
        uid: int | None = None,  # whose folders count
    ) -> None:
        self._uid = os.getuid() if uid is None else uid
        self._places = folders(uid=self._uid) if places is None else list(places)
        self._birth, self._clock = birth, clock
        self._boot = boot_of() if boot is None else boot

    def begin(self, run: Run) -> Run | None:
        """Register a run whose number, boot and times are not set; None if it cannot be written. It
        gets the number of the run whose cluster it continues, else the next one."""
        born = self._birth(run.pid) or 0
        launcher_born = (self._birth(run.launcher) or 0) if run.launcher else 0
        run = replace(
            run, born=born, launcher_born=launcher_born, boot=self._boot, started=self._clock()
        )
        registered = self.runs()
        for earlier in registered:
            is_same = (earlier.cluster_id, earlier.model) == (run.cluster_id, run.model)
            if run.cluster_id and is_same:
                run = replace(run, number=earlier.number, started=earlier.started)
                return run if self.write(run) else None
        number = 1 + max((earlier.number for earlier in registered), default=0)
        for place in self._places:
            if not self._made(place):
                continue
            for candidate in range(number, number + 100):  # others may begin at this moment
                claimed = replace(run, number=candidate)
                if self._put(place, claimed, new=True):
                    self.prune()
                    return claimed
                if not (place / _name(candidate)).exists():
                    break  # it cannot be written here
        return None

    def write_private(self, name: str, text: str) -> Path | None:
        """Write a text to a file that this user alone can read; None if there is no place."""
        for place in self._places:
            if self._made(place):
                with contextlib.suppress(OSError):
                    (place / name).unlink(missing_ok=True)
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                    with os.fdopen(os.open(place / name, flags, 0o600), "w") as file:
                        file.write(f"{text}\n")
                    return place / name
        return None

    def private_files(self, prefix: str) -> list[Path]:
        """Files of `write_private` whose names begin so."""
        places = [place for place in self._places if is_own(place, self._uid)]
        return [path for place in places for path in sorted(place.glob(f"{prefix}*"))]

    def troubles(self) -> list[str]:
        """Say why each folder before the usable one cannot be used."""
        troubles = []
        for place in filter(os.path.lexists, self._places):
            if not (why := _why_not(place, self._uid)):
                break
            troubles.append(f"{place}: {why}")
        return troubles

    def write(self, run: Run) -> bool:
        """Write a run's file again; where its folder is gone, in the next one."""
        for place in self._places:
            if (place / _name(run.number)).exists() and self._put(place, run):
                return True
        return any(self._made(place) and self._put(place, run) for place in self._places)

    def is_written(self, run: Run) -> bool:
        return any((place / _name(run.number)).exists() for place in self._places)

    def end(
        self,
        run: Run,
        code: int,
        verdict: str,
        figures: Mapping[str, Any],
        last: Mapping[str, Any] | None = None,
    ) -> Run:
        """Replace a running run's file by the record of its end; a session's is removed."""
        done = replace(run, ended=self._clock(), code=code, verdict=verdict, secret="")
        done = replace(done, figures=_plain(figures), last=_plain(last or {}))
        if run.is_session:
            self.forget(run)
        else:
            self.write(done)
            self.prune()
        return done

    def forget(self, run: Run) -> None:
        for place in self._places:
            with contextlib.suppress(OSError):
                (place / _name(run.number)).unlink()

    def runs(self) -> list[Run]:
        """Return all runs that have a file, the newest last; files of other users are ignored."""
        by_number: dict[int, Run] = {}
        for place in self._places:
            if not is_own(place, self._uid):
                continue
            with contextlib.suppress(OSError):
                for path in place.glob("*.json"):
                    run = _read(path)
                    if run is not None:
                        by_number.setdefault(run.number, run)
        return [by_number[number] for number in sorted(by_number)]

    def state(self, run: Run) -> State:
        if run.ended:
            return "ended"
        return "running" if self._lives(run, run.pid, run.born) else "killed"

    def running(self) -> list[Run]:
        """Runs whose master lives."""
        return [run for run in self.runs() if self.state(run) == "running"]

    def going_on(self) -> list[Run]:
        """Runs whose master lives, or was killed and is being started again."""
        return [run for run in self.runs() if self.state(run) == "running" or self.restarts(run)]

    def last(self) -> Run | None:
        """The run that ended last, or was killed; None without one."""
        over = [run for run in self.runs() if self.state(run) != "running" and not run.is_session]
        return max(over, key=lambda run: run.ended or run.started, default=None)

    def secret_at(self, address: str) -> bytes:
        """The secret of the current run at an address of this machine; empty for none."""
        # A running master has the address, not one that is to be started again.
        runs = [run for run in [*reversed(self.running()), *self.going_on()] if run.secret]
        return next((run.secret for run in runs if _is_at(run.address, address)), "").encode()

    def restarts(self, run: Run) -> bool:
        """Whether the master was killed, and the process lives that starts it again."""
        killed = bool(run.launcher) and self.state(run) == "killed"
        return killed and self._lives(run, run.launcher, run.launcher_born)

    def prune(self) -> None:
        """Remove all but the newest ended runs, and killed sessions."""
        over = [run for run in self.runs() if self.state(run) != "running"]
        for run in [run for run in over if run.is_session and not self.restarts(run)]:
            self.forget(run)
        records = [run for run in over if not run.is_session]
        for run in records[: max(0, len(records) - KEPT)]:
            self.forget(run)

    def _lives(self, run: Run, pid: int, born: int) -> bool:
        return run.boot == self._boot and pid > 0 and self._birth(pid) == born

    def _made(self, place: Path) -> bool:
        """Whether a folder exists, created if need be, and is this user's alone."""
        with contextlib.suppress(OSError):
            if place.parent.name == "snailps":  # below the home folder
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.mkdir(mode=0o700)
        return not _why_not(place, self._uid)

    def _put(self, place: Path, run: Run, *, new: bool = False) -> bool:
        """Write a file under another name and rename it; if `new`, only where none is."""
        path, draft = place / _name(run.number), place / f".{run.number}.{os.getpid()}"
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump(asdict(run), file)
            if new:
                os.link(draft, path)
            else:
                draft.replace(path)
        except FileExistsError:
            return False
        except (OSError, ValueError) as error:
            log.debug("%s: the run is not registered: %s", place, error)
            return False
        finally:
            with contextlib.suppress(OSError):
                draft.unlink()
        return True


class Registration:
    """A master's own entry, from the moment it listens until it ends. Nothing here raises: a run
    continues without an entry."""

    def __init__(self, registry: RunRegistry) -> None:
        self._registry = registry
        self._run: Run | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, run: Run) -> None:
        """Register the run, and keep its file in place."""
        with _debugged():
            self._run = self._registry.begin(run)
            troubles = self._registry.troubles()
            if troubles or self._run is None:
                why = "; ".join(troubles) or "no folder of this user can be written"
                what = NOT_REGISTERED if self._run is None else "is in another folder"
                log.warning("%s: the entry of this run %s", why, what)
            if self._run is not None:
                self._thread = threading.Thread(target=self._stay, name="registry", daemon=True)
                self._thread.start()

    def end(
        self,
        code: int,
        verdict: str,
        figures: Mapping[str, Any],
        last: Mapping[str, Any] | None = None,
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        with _debugged():
            if self._run is not None:
                self._registry.end(self._run, code, verdict, figures, last)

    def _stay(self) -> None:
        while not self._over.wait(LOOK_S):
            with _debugged():
                if self._run is not None and not self._registry.is_written(self._run):
                    self._registry.write(self._run)


def trust_at(address: str, settings: ClusterSettings) -> Trust:
    """Return how to connect to a master: by the settings, or with the secret of the user's own run
    at that address."""
    from snailps.transport.security.trust import Trust

    trust = Trust.of(settings)
    if trust.secret or trust.tls is not None:
        return trust
    return replace(trust, secret=RunRegistry().secret_at(address))


def _is_at(address: str, other: str) -> bool:
    """Whether both are one address, or name one port of this machine."""
    from snailps.config import parse_addr
    from snailps.transport.security.trust import is_loopback

    here, there = (parse_addr(one, "address") for one in (address, other))
    return here[1] == there[1] and (
        here[0] == there[0] or (is_loopback(here[0]) and is_loopback(there[0]))
    )


@contextlib.contextmanager
def _debugged() -> Any:
    try:
        yield
    except Exception:  # a run goes on without its entry
        log.debug("the run is not registered", exc_info=True)


def _why_not(place: Path, uid: int) -> str:
    """Why a folder cannot have the runs of a user; empty if it can."""
    try:
        status = place.lstat()
    except OSError as error:
        return error.strerror or str(error)
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a folder"
    if status.st_uid != uid:
        return f"it belongs to another user, with uid {status.st_uid}"
    if status.st_mode & 0o022:
        return "others can write to it: chmod go-w"
    return "" if os.access(place, os.W_OK | os.X_OK) else "it cannot be written"


def _name(number: int) -> str:
    return f"{number}.json"


def _read(path: Path) -> Run | None:
    """The run in a file; None if it is damaged, or of a version with other fields."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            return None
        values = translated(json.loads(path.read_text()), RUN)
        kinds = {member.name: type(member.default) for member in fields(Run)}
        kinds |= {"figures": dict, "last": dict}
        fitting = {
            name: value
            for name, value in values.items()
            if name in kinds and _fits(value, kinds[name])
        }
        run = Run(**fitting)
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    return run if _name(run.number) == path.name else None


def _fits(value: object, kind: type) -> bool:
    return isinstance(value, (int, float) if kind is float else kind)


def _plain(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics that JSON can hold, without long lists."""
    plain = {}
    for name, value in figures.items():
        if name == "validation":
            continue
        try:
            text = json.dumps(value)
        except (TypeError, ValueError):
            continue
        if len(text) <= FIGURE_BYTES_MAX:
            plain[name] = value
    return plain
