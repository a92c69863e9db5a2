"""Sets how many threads NumPy's BLAS library uses, through the library's own functions.

Repeatable runs need it: the number of threads may change the order of sums.
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
    """Set the threads (>= 1) of every BLAS library of this process; False if there is none."""
    found = False
    for path in _loaded():
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path)
            for name in _SETTERS:
                setter = getattr(library, name, None)
                if setter is not None:
                    setter(ctypes.c_int(number))
                    found = True
                    break
    return found


def _loaded() -> Iterator[str]:
    """Paths of BLAS libraries in this process."""
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
