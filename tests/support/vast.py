"""Arrays of more rows than memory holds: zeros that take no page until one is written.

For what is refused, or found, by the length of an array alone.
"""

import math
import mmap

import numpy as np

NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.13 has the name; Linux' own number


def vast(kind, *shape):
    """Zeros of this type and shape."""
    size = np.dtype(kind).itemsize * math.prod(shape)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
    return np.frombuffer(mmap.mmap(-1, size, flags), kind).reshape(shape)
