"""Entry point of the command ``snailps``: sets up the process before anything slow is imported.

SIGINT -> exit code 130, silently, until a command that has something to save catches it

The garbage collector is off during the imports, because it would find nothing, and what they have
made is frozen, so that no later collection walks over it, not even at exit (a fifth of the time of
`snailps nn`).  Objects of a user's code are collected as usual: their finalizers may write files.

BLAS is limited to one thread before NumPy is imported, unless the environment sets another number:
a worker has training threads of its own, and idle BLAS threads spin on the cores that these need.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import threading
import types

EXIT_INTERRUPTED = 130
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def main() -> None:
    # SystemExit, because Typer would turn a KeyboardInterrupt into "Aborted." and code 1.
    # A process that ignores SIGINT (nohup, a shell's background job) must not be interrupted.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    for name in BLAS_THREADS:
        os.environ.setdefault(name, "1")
    open_streams()
    sys.excepthook = report_error
    threading.excepthook = report_error_of_thread
    gc.disable()  # until `run` calls the command
    from snailps.cli.main import main as run

    run()


def open_streams() -> None:
    """Open descriptors 0 to 2 if the caller has closed them: else a socket would get that number,
    and prints would go to a peer.

    Standard output keeps its encoding; a character that it lacks is escaped, as on standard error.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest that is free
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode))  # noqa: SIM115 (for good)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def report_error(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    """Show the traceback of a bug without secrets: it may quote addresses and texts of peers."""
    import traceback

    from snailps.outward import outward

    sys.stderr.write(outward("".join(traceback.format_exception(kind, error, trace))))


def report_error_of_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is not SystemExit:
        sys.excepthook(args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)


def _leave(number: int, frame: types.FrameType | None) -> None:
    sys.exit(EXIT_INTERRUPTED)
