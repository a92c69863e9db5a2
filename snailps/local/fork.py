"""A child that is a copy of this process: what it would import, this one has imported already.

    Popen (pipes, fork) -> become -> main(), as if Python had been started anew -> exit code

Imports are most of what starting a process costs.  It knows no cluster; `main` is the command's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from snailps.api import class_loading

EXIT_INTERRUPTED = 130
_ARG_START, _ARG_END = 47, 48
"""Fields of /proc/PID/stat, from 0: where the words of the command line lie."""


def may_fork() -> bool:
    """Whether this process has one thread only, of any library: a copy of more may hang."""
    return sum(1 for _ in Path("/proc/self/task").iterdir()) == 1


def become(main: Callable[[], None], words: Sequence[str], kept: Sequence[int]) -> None:
    """Does in a copy what ``python -m snailps WORDS`` does in a process of its own; never returns.

    To be called by `subprocess.Popen`, as its `preexec_fn`, with the pipes in their places.  Once
    that has started the child, signals do there what they do in a new Python.

    Parameters
    ----------
    main : callable
        Looks at `sys.argv`, and raises SystemExit.
    words : sequence of str
        The command line.
    kept : sequence of int
        Descriptors that stay open, besides 0, 1 and 2.
    """
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # As exec would.  Popen waits for it, at a pipe that is among those that are closed.
        for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if descriptor > 2 and descriptor not in kept:
                with contextlib.suppress(OSError):  # that of the listing itself
                    os.close(descriptor)
        _show([sys.executable, "-m", "snailps", *words])
        sys.argv[1:] = words
        class_loading.inherit()
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)


def _show(words: Sequence[str]) -> None:
    """Writes another command line over this process's own, as far as there is room: for `ps`."""
    with contextlib.suppress(OSError, ValueError):
        # The second field is the file's name in parentheses, which may hold blanks.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = (int(fields[field - 2]) for field in (_ARG_START, _ARG_END))
        text = "\0".join(words).encode(errors="replace")[: end - start - 1]
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
