"""Run one program and watch its clock and its memory, with all its children.

    command -> Watched(exit code, standard output, wall seconds, peak memory)

Linux only.  Memory is read from /proc every `SAMPLE_S` seconds and summed over the process tree:
PSS where the kernel reports it (a page shared by n processes counts 1/n for each), else each
process's high-water mark (VmHWM), which counts shared pages once a process and adds up peaks
that need not have come together.  A PSS peak shorter than a sample may be missed.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

SAMPLE_S = 0.25
TERM_WAIT_S = 10.0


@dataclass
class Watched:
    """Result of one program.  `rows` pairs each line of its output with its time."""

    code: int = 0
    wall_s: float = 0.0
    peak_mb: float = 0.0
    memory_by: str = ""
    processes_max: int = 0
    rows: list[tuple[float, str]] = field(default_factory=list)


class MemoryPeak:
    """Samples the memory of a process tree, in a thread, until `stop`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_kb = 0
        self.by = "PSS"
        self.processes_max = 0
        self._thread.start()

    def stop(self) -> None:
        """Ends the sampling."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self._sample()
            if self._stop.wait(SAMPLE_S):
                return

    def _sample(self) -> None:
        pids = tree_of(self._pid)
        total_kb = 0
        for pid in pids:
            kb = _field_kb(pid, "smaps_rollup", "Pss:")
            if kb is None:
                kb = _field_kb(pid, "status", "VmHWM:") or 0
                if kb:  # a process that has just ended has neither
                    self.by = "VmHWM"
            total_kb += kb
        self.peak_kb = max(self.peak_kb, total_kb)
        self.processes_max = max(self.processes_max, len(pids))


def tree_of(root: int) -> list[int]:
    """The process ids of `root` and of its descendants that still run."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # pid (name) state ppid ...: a name may hold spaces and brackets
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [root] if Path(f"/proc/{root}").exists() else []
    for pid in found:  # grows while it is walked
        found.extend(children.get(pid, []))
    return found


def run(
    command: list[str], *, log: Path, limit_s: float, ends_at_result: bool, env: dict | None = None
) -> Watched:
    """Run `command` to its end.

    Parameters
    ----------
    command : list of str
        Program and arguments.
    log : Path
        Receives its standard error.
    limit_s : float
        After this many seconds the program and its children are ended, with code -15 or -9.
    ends_at_result : bool
        Stop the clock and the memory watch at the first line of output that starts with ``{``
        instead of at the end of the program: what follows is conversion for our evaluation.
    env : dict, optional
        Its environment, default ours.  In both, Python may write compiled modules: a package that
        pip has installed has them, a checkout whose first run may not write them never does.

    Returns
    -------
    Watched
    """
    watched = Watched()
    environment = {**(os.environ if env is None else env)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begin_s = time.monotonic()
    with open(log, "wb") as errors:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
            text=True, start_new_session=True, env=environment,
        )  # fmt: skip
    memory = MemoryPeak(child.pid)
    watchdog = threading.Timer(limit_s, _end_group, [child.pid])
    watchdog.daemon = True
    watchdog.start()
    try:
        assert child.stdout is not None
        for line in child.stdout:
            now_s = time.monotonic() - begin_s
            watched.rows.append((now_s, line.rstrip("\n")))
            if ends_at_result and not watched.wall_s and line.startswith("{"):
                watched.wall_s = now_s
                memory.stop()
        watched.code = child.wait()
    except BaseException:
        _end_group(child.pid)
        child.wait()
        raise
    finally:
        watchdog.cancel()
        memory.stop()
    watched.wall_s = watched.wall_s or time.monotonic() - begin_s
    watched.peak_mb = memory.peak_kb / 1024
    watched.memory_by = f"{memory.by} summed over all processes, every {SAMPLE_S} s"
    watched.processes_max = memory.processes_max
    return watched


def _end_group(group: int) -> None:
    """Ends a program and all its children: SIGTERM, then SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        until_s = time.monotonic() + TERM_WAIT_S
        while time.monotonic() < until_s and not _has_ended(group):
            time.sleep(0.1)
        os.killpg(group, signal.SIGKILL)


def _has_ended(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def _field_kb(pid: int, file: str, name: str) -> int | None:
    """One ``Name:  123 kB`` field of a file in /proc/PID, or None."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return None
