"""Entry point of the command ``snailps``: handles Ctrl-C before anything slow is imported.

SIGINT -> exit code 130, silently, until a command that has something to save catches it

The garbage collector does not run during the imports, as it finds nothing.  BLAS is limited to one
thread before NumPy is imported, unless the environment sets another number: a worker has its own
threads, and BLAS threads, which spin while idle, take cores from them.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
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
    gc.disable()  # until `run` calls the command
    from snailps.cli.main import main as run

    run()


def _leave(number: int, frame: types.FrameType | None) -> None:
    sys.exit(EXIT_INTERRUPTED)
