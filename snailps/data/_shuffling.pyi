from typing import Any

import numpy as np
from numpy.typing import NDArray

def shuffled(
    seed: int,
    ptrs: list[NDArray[np.int64]],
    by_row: list[list[NDArray[Any]]],
    by_entry: list[list[NDArray[Any]]],
) -> tuple[
    list[NDArray[np.int64]], list[list[NDArray[Any]]], list[list[NDArray[Any]]]
]: ...
