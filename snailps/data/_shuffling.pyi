from typing import Any

import numpy as np
from numpy.typing import NDArray

def drawn_order(seed: int, n: int) -> NDArray[np.uint32]: ...
def pointers_in_order(ptr: NDArray[np.int64], order: NDArray[np.uint32]) -> NDArray[np.int64]: ...
def entries_in_order(
    array: NDArray[Any], ptr: NDArray[np.int64], order: NDArray[np.uint32]
) -> NDArray[Any]: ...
