import numpy as np
from numpy.typing import NDArray

def rows_as_text(rows: NDArray[np.float32]) -> bytes:
    """A line a row, numbers with six decimals and one blank between; 0.02 us a number.

    Raises
    ------
    ValueError
        A number is not finite or not below 1e9, or there are no columns.
    """
