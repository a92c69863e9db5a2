"""Entry point of the command ``snailps``: handles Ctrl-C before anything slow is imported.

SIGINT -> exit code 130, silently, until a command that has something to save catches it

The garbage collector does not run during the imports, as it finds nothing, and never walks over
what they made, not at the end either (a fifth of `snailps nn`).
Over what a user's code makes it does: files are to be written, and temporary ones removed.
BLAS is limited to one thread before NumPy is imported, unless the environment sets another number:
a worker has its own threads, and BLAS threads, which spin while idle, take cores from them.
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
    _open_streams()
    sys.excepthook = _report
    threading.excepthook = _report_of_thread
    gc.disable()  # until `run` calls the command
    from snailps.cli.main import main as run

    run()


def _open_streams() -> None:
    """Take descriptors that the caller has closed, before a socket does, and its encoding as it is.

    A character that standard output cannot encode is escaped, as standard error does anyway.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest that is free
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode))  # noqa: SIM115 (for good)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _report(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    """Show a bug's traceback, which may quote addresses of the input, and texts of peers."""
    import traceback

    from snailps.outward import outward

    sys.stderr.write(outward("".join(traceback.format_exception(kind, error, trace))))


def _report_of_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is not SystemExit:
        sys.excepthook(args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)


def _leave(number: int, frame: types.FrameType | None) -> None:
    sys.exit(EXIT_INTERRUPTED)
