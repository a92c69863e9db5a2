from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def rows_as_text(rows: NDArray[np.float32]) -> bytes:
    """A line a row: numbers with six decimals, a blank between; ValueError from 1e9 on."""

def word_lines(words: Sequence[bytes], rows: NDArray[np.float32]) -> memoryview:
    """A line a word: the word and its row (float32 (n, dim), contiguous), as printf's ``%.5g``."""

def read_word_lines(lines: list[bytes], rows: NDArray[np.float32]) -> list[bytes] | None:
    """Read what `word_lines` writes into `rows` (float32 (n, dim), nearest values); the words.

    None for other lines: `rows` is then undefined.  Each line has its newline.
    """
