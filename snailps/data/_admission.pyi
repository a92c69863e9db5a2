import numpy as np
from numpy.typing import NDArray

MIN_COUNT_MAX: int

class Admission:
    min_count: int
    lines: int
    counted: int
    def __init__(self, min_count: int, keys_expected: int) -> None: ...
    def count(self, keys: NDArray[np.uint64]) -> None: ...
    def verdict(self) -> bytes: ...

class Admitted:
    lines: int
    def __init__(self, part: bytes) -> None: ...
    def admit(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]: ...
