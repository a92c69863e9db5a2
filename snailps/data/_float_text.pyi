from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def rows_as_text(rows: NDArray[np.float32]) -> bytes:
    """A line a row, numbers with six decimals and one blank between; 0.02 us a number.

    Raises
    ------
    ValueError
        A number is not finite or not below 1e9, or there are no columns.
    """

def word_lines(words: Sequence[bytes], rows: NDArray[np.float32]) -> memoryview:
    """A line a word: the word and the numbers of its row, a blank before each.

    Parameters
    ----------
    words : sequence of bytes
    rows : numpy.ndarray
        float32 (len(words), dim), contiguous.

    Returns
    -------
    memoryview
        Numbers as printf's ``%.5g`` writes them, correctly rounded; 0.02 us each.

    Raises
    ------
    ValueError
        There are not as many words as rows.
    """

def read_word_lines(lines: list[bytes], rows: NDArray[np.float32]) -> list[bytes] | None:
    """Reads what `word_lines` writes; 0.02 us a number.

    Parameters
    ----------
    lines : list of bytes
        Each with its newline.
    rows : numpy.ndarray
        float32 (len(lines), dim), contiguous: gets the numbers, each the nearest float32.

    Returns
    -------
    list of bytes or None
        The words.  None: a line is not a word, a blank and `dim` finite decimal numbers between
        blanks; `rows` then holds anything.
    """
