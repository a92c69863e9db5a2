"""Where the command ``snailps`` begins: ready for Ctrl-C before anything slow is imported.

SIGINT -> exit code 130, silently, until a command that has something to save catches it

And before NumPy is: its BLAS gets one thread, unless the environment says otherwise.  A worker has
threads of its own; more of them, that spin while they wait, take the cores from these.
"""

from __future__ import annotations

import os
import signal
import sys
import types

EXIT_INTERRUPTED = 130
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def main() -> None:
    """Entry point."""
    # SystemExit, because Typer would turn a KeyboardInterrupt into "Aborted." and code 1.
    # A process that ignores SIGINT (nohup, a shell's background job) is not to be interrupted.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    for name in BLAS_THREADS:
        os.environ.setdefault(name, "1")
    from snailps.cli.main import main as run

    run()


def _leave(number: int, frame: types.FrameType | None) -> None:
    sys.exit(EXIT_INTERRUPTED)
