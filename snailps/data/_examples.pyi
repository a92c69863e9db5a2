from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps.data.columns import Column

FAULTS: dict[int, str]
BUILDS: tuple[str, ...]

class Examples(NamedTuple):
    labels: NDArray[np.float64]
    ptr: NDArray[np.int64]
    keys: NDArray[np.uint64]
    values: NDArray[np.float32]
    fields: NDArray[np.int32]
    bad: int
    weights: NDArray[np.float32] = ...
    cells: Sequence[list[bytes]] = ...

class Fault(NamedTuple):
    kind: str
    offset: int
    line: int
    column: int
    cells: int

class EntryReader:
    def __init__(self, has_fields: bool, hash_bits: int, skip: bool, build: str = ...) -> None: ...
    def read(
        self, data: bytes, begin: int = 0, end: int | None = None
    ) -> tuple[Examples, Fault | None]: ...

class RowReader:
    def __init__(
        self,
        columns: Sequence[Column],
        separator: bytes,
        quotes: int,
        hash_bits: int,
        skip: bool,
    ) -> None: ...
    def read(
        self, data: bytes, begin: int = 0, end: int | None = None
    ) -> tuple[Examples, Fault | None]: ...

def first_row(data: bytes, separator: bytes, quotes: int) -> tuple[list[bytes], int]: ...
def rows_end(data: bytes, separator: bytes, quotes: int) -> int: ...
def hash_bytes(seed: int, text: bytes) -> int: ...
