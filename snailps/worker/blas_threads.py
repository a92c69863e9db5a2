"""Sets how many threads NumPy's BLAS library uses, through the library's own functions.

Jobs with clocks need it to give the same bits on any host: the number of threads may change the
order of sums.  The environment variables of BLAS would have to be set before NumPy is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
    "MKL_Set_Num_Threads",
    "bli_thread_set_num_threads",
)
_NAMES = ("openblas", "libblas", "mkl_rt", "libblis")


def set_threads(number: int) -> bool:
    """Set the threads (>= 1) of each BLAS library of this process; False: none is loaded."""
    has_set = False
    for path in _loaded():
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path)
            for name in _SETTERS:
                setter = getattr(library, name, None)
                if setter is not None:
                    setter(ctypes.c_int(number))
                    has_set = True
                    break
    return has_set


def _loaded() -> Iterator[str]:
    """Paths of the BLAS libraries that this process has mapped."""
    seen: set[str] = set()
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        path = line[line.find("/") :] if "/" in line else ""
        if path not in seen and any(name in Path(path).name for name in _NAMES):
            seen.add(path)
            yield path
