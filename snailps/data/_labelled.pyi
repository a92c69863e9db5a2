from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

GRAM_MAX: int

class Lines(NamedTuple):
    feature_ptr: NDArray[np.int64]
    features: NDArray[np.int32]
    label_ptr: NDArray[np.int64]
    labels: NDArray[np.int32]
    tokens: int
    unread: int

class LineReader:
    space: int
    def __init__(
        self,
        words: Sequence[bytes],
        labels: Sequence[bytes],
        *,
        label_prefix: bytes,
        word_ngrams: int = 1,
        minn: int = 0,
        maxn: int = 0,
        bucket: int = 0,
    ) -> None: ...
    def read(self, data: Buffer) -> Lines: ...

def number_rows(ids: NDArray[np.int32], place: NDArray[np.int32]) -> NDArray[np.int32]: ...
