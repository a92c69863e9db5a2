# cython: language_level=3, embedsignature=True
"""One build of the kernels: their table (kernels/_table.h), compiled for one instruction set.

setup.py makes a copy of this file for each build.  `_kernels.Kernels` takes the table.
"""
from cpython.pycapsule cimport PyCapsule_New

from snailps.kernels._jobs cimport KernelTable

cdef extern from "kernels/_table.h":
    KernelTable snail_table


def table() -> object:
    """PyCapsule "snailps.kernels": pointer to this build's static table."""
    return PyCapsule_New(&snail_table, b"snailps.kernels", NULL)
