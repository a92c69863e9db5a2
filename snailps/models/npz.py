"""Arrays in an ``.npz`` file: written whole or not at all, and always the same bytes.

arrays by name -> write_arrays -> file            numpy.load reads it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from snailps.vectors.npz import npz_file


def write_arrays(path: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Writes arrays by name; returns the path.

    Raises
    ------
    ModelFileError
        The folder is missing or not writable, or the disk is full.  No half a file is left.
    """
    with npz_file(path) as file:
        for name, array in arrays.items():
            file.add(name, array)
    return path
