"""Starts processes of the command: new Python processes, or forks that have their parent's modules.

    start -> Popen (pipes, fork) -> become -> main(), as in a new Python process -> exit code

A fork saves the imports, which are most of the cost of a process's start.  Must not know clusters;
`main` is the command.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from snailps.abi.numa import ANYWHERE, keep_thread_on
from snailps.api import class_loading
from snailps.errors import EXIT_INTERRUPTED
from snailps.local import LAUNCHED

PROGRAM = (sys.executable, str(Path(__file__).absolute().parents[1] / "__main__.py"))
"""The command as a new process.  By path, because ``-m`` imports from the current folder first."""
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_ARG_START, _ARG_END = 47, 48
"""Fields of /proc/PID/stat, from 0: start and end of the command line in memory."""


def may_fork() -> bool:
    """Whether this process has a single thread, so that a fork cannot inherit a lock that another
    thread, of a library too, holds: the child would wait for it forever."""
    return sum(1 for _ in Path("/proc/self/task").iterdir()) == 1


def end_with_parent(number: int) -> None:
    """In a child, before exec: let the kernel send it a signal when its parent's thread ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, number)


def start(
    role: str,
    arguments: Mapping[str, Any],
    files: Mapping[str, int],
    *,
    main: Callable[[], None] | None = None,
    cpus: frozenset[int] = ANYWHERE,
    prints: bool = False,
    errors: int | None = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """Start ``snailps ROLE`` as a child that ends with this thread.

    With `main`, the command, it is a fork of this process, which must have a single thread.
    `arguments` are passed as JSON, so that no command line is parsed; `files` are arguments, too:
    descriptors that stay open in it.  Standard output is a pipe if it `prints`, else the same as
    standard error, which is `errors`.
    """
    kept = tuple(files.values())
    words = [role, LAUNCHED, json.dumps({**files, **arguments})]

    def begin() -> None:
        end_with_parent(signal.SIGKILL)
        # Without its own session Ctrl-C would reach every process at once, and end the job by
        # force instead of through the master.
        os.setsid()
        keep_thread_on(cpus)
        if not prints:  # a model's prints are lines of its process
            os.dup2(2, 1)
        if main is not None:
            become(main, words, kept)

    if main is not None:
        sys.stdout.flush()  # the fork has a copy of the buffer, and would write it again
    return subprocess.Popen(
        [*PROGRAM, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if prints else None,
        stderr=errors,
        text=True,
        errors="replace",
        preexec_fn=begin,
        pass_fds=kept,
        restore_signals=main is None,
    )


def become(main: Callable[[], None], words: Sequence[str], kept: Sequence[int]) -> None:
    """Run ``snailps WORDS`` in a forked child; never returns.

    Called as the `preexec_fn` of `subprocess.Popen`, which has connected the pipes.  Signals get
    the handlers of a new Python process; only descriptors 0, 1, 2 and `kept` stay open.
    """
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
        # As exec would.  Popen in the parent waits until the pipe among these is closed.
        for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if descriptor > 2 and descriptor not in kept:
                with contextlib.suppress(OSError):  # the descriptor of the listing itself
                    os.close(descriptor)
        show([*PROGRAM, *words])
        # The parent's stream objects have its buffers and encoding: make new ones.
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
        sys.argv[1:] = words
        # Else all forks would draw the same numbers.  NumPy before 2 imports it with itself.
        if (numpy_random := sys.modules.get("numpy.random")) is not None:
            numpy_random.seed()
        class_loading.inherit()
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)


def show(words: Sequence[str]) -> None:
    """Overwrite this process's command line as `ps` shows it, as far as the old one has room."""
    with contextlib.suppress(OSError, ValueError):
        # The second field is the file's name in parentheses, which may hold blanks.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = (int(fields[field - 2]) for field in (_ARG_START, _ARG_END))
        text = "\0".join(words).encode(errors="replace")[: end - start - 1]
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
