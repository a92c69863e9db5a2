import numpy as np
from numpy.typing import NDArray

def add_to_rows(
    gradient: NDArray[np.float32],
    places: NDArray[np.int32],
    rows: NDArray[np.float32],
    offsets: NDArray[np.int64] | None = None,
    weights: NDArray[np.float32] | None = None,
) -> None: ...
