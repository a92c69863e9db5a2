"""What a process uses of its machine, and what it gives back."""

import gc
import weakref

from snailps.abi.memory import release_memory
from snailps.node.usage import rss_bytes

PIECES, PIECE_BYTES = 40_000, 1_000  # too large for Python's own allocator, too small for mmap


class Owner:
    """An object in a cycle, which only the collector frees."""

    def __init__(self):
        self.itself = self
        self.pieces = [bytes(PIECE_BYTES) for _ in range(PIECES)]


def test_release_memory_frees_cycles_and_shrinks_the_process():
    gc.disable()
    try:
        owner = Owner()
        behind = bytes(PIECE_BYTES)  # above the others in the heap, which cannot shrink by itself
        gone, full = weakref.ref(owner), rss_bytes()
        del owner
        assert gone() is not None
        release_memory()
    finally:
        gc.enable()
    assert gone() is None
    assert full - rss_bytes() > PIECES * PIECE_BYTES / 2
    assert len(behind) == PIECE_BYTES
