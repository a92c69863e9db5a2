from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

def gathered(
    fds: int | Sequence[int],
    size: int,
    buffers: list[tuple[int, bytes]],
    ranges: NDArray[np.int64] | list[tuple[int, int, int]],
) -> bytes: ...
def first_falling(ptr: NDArray[np.int64]) -> int: ...
def first_not_finite(values: NDArray[np.float32]) -> int: ...
def wide_keys(
    keys: NDArray[Any], limit: int, hashed: bool, hash_bits: int
) -> tuple[NDArray[np.uint64], int]: ...
def hash_texts(
    seed: int, texts: Sequence[Any], out: NDArray[np.uint64], there: NDArray[np.uint8]
) -> int: ...
