"""worker.blas_threads: NumPy's own library gets the number of threads."""

import subprocess
import sys

import pytest
from processes import PACKAGE

ASKED = """
import ctypes
import numpy
from snailps.worker import blas_threads as blas

def threads():
    for path in blas._loaded():
        library = ctypes.CDLL(path)
        for name in blas._SETTERS:
            getter = getattr(library, name.replace("set_num", "get_num"), None)
            if getter is not None:
                return getter()
    return None

if threads() is None:
    print("none")
else:
    told = []
    for number in (2, 1):
        assert blas.set_threads(number)
        told.append(threads())
    print(told)
"""


def test_set_threads_tells_the_library_that_numpy_uses():
    done = subprocess.run(
        [sys.executable, "-c", ASKED],
        cwd=PACKAGE, capture_output=True, text=True, timeout=150, check=True,
    )  # fmt: skip
    if done.stdout.strip() == "none":
        pytest.skip("NumPy's BLAS is none whose threads we know how to set")
    assert done.stdout.strip() == "[2, 1]"
