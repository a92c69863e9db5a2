"""Memory in pages of 2 MiB, where the kernel provides them: random access to rows costs less there.

    size -> private_memory -> zeros, whose pages are taken when they are first written
    a mapped file -> prefer_huge_pages

Both only advise the kernel: where it has no huge pages, the memory has 4 KiB pages, and no error
is raised.  A huge page needs 2 MiB, aligned, inside the mapping: smaller memory gains nothing.

Must not know what is kept there.
"""

from __future__ import annotations

import mmap
from contextlib import suppress


def private_memory(size: int, *, huge: bool = True) -> mmap.mmap:
    """Map `size` zeroed bytes, private because shared memory rarely gets huge pages.

    `huge` False: do not ask for huge pages, as for memory below 2 MiB.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge:
        prefer_huge_pages(memory)
    return memory


def prefer_huge_pages(memory: mmap.mmap) -> None:
    """Ask the kernel for huge pages, for a mapped file as well as for private memory."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
