"""Memory in pages of 2 MiB, where the system has some: rows at random cost less there.

    size -> private_memory -> zeros, whose pages are taken when they are first written
    a mapped file -> prefer_huge_pages

Must not know what is kept there.
"""

from __future__ import annotations

import mmap
from contextlib import suppress


def private_memory(size: int, *, huge: bool = True) -> mmap.mmap:
    """Zeroed memory of this process: shared memory commonly gets no huge pages."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge:
        prefer_huge_pages(memory)
    return memory


def prefer_huge_pages(memory: mmap.mmap) -> None:
    """Advise the system, which then reads what is mapped of a file in such pages, too."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
