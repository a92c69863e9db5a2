"""Arrays in an ``.npz`` file: written whole or not at all, and always the same bytes.

arrays by name -> write_arrays -> file            numpy.load reads it
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.vectors.atomic import atomic_file


def write_arrays(path: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Writes arrays by name; returns the path.

    Raises
    ------
    ModelFileError
        The folder is missing or not writable, or the disk is full.  No half a file is left.
    """
    with atomic_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            # A fixed date: the same model is the same file.
            info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
    return path
