import numpy as np
from numpy.typing import NDArray

class KeyNumbers:
    def __init__(self) -> None: ...
    def number(
        self, keys: NDArray[np.uint64]
    ) -> tuple[NDArray[np.uint64], NDArray[np.int32]]: ...

def number_keys(keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int32]]: ...
