from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

SENTENCE_END: bytes

def check_settings(minn: int, maxn: int, bucket: int, nwords: int) -> None: ...
def ngram_hash(ngram: Buffer) -> int: ...
def subword_ids(
    word: bytes, minn: int, maxn: int, bucket: int, nwords: int
) -> NDArray[np.int32]: ...
def subwords_csr(
    words: Sequence[bytes], minn: int, maxn: int, bucket: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]: ...
