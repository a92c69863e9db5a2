"""Memory in pages of 2 MiB, where the kernel provides them: random access to rows costs less there.

    size -> private_memory -> zeros, whose pages are taken when they are first written
    a mapped file -> prefer_huge_pages
    release_memory: what this process has freed goes back to the system

The first two only advise the kernel: where it has no huge pages, the memory has 4 KiB pages, and
no error is raised.  A huge page needs 2 MiB, aligned, inside the mapping: smaller memory gains
nothing.

Must not know what is kept there.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
from contextlib import suppress


def private_memory(size: int, *, huge: bool = True) -> mmap.mmap:
    """Map `size` zeroed bytes, private because shared memory rarely gets huge pages.

    `huge` False: do not ask for huge pages, as for memory below 2 MiB.  MemoryError: there is none.
    """
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise MemoryError(f"{size:,} bytes cannot be allocated") from None
    if huge:
        prefer_huge_pages(memory)
    return memory


def prefer_huge_pages(memory: mmap.mmap) -> None:
    """Ask the kernel for huge pages, for a mapped file as well as for private memory."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)


def release_memory() -> None:
    """Collect garbage cycles and return free memory to the system; takes a few milliseconds.

    A process that keeps freed memory for its next block (`node.usage.keep_memory`) needs it when a
    part of its work is over.  A model with a reference cycle would otherwise stay until the
    collector's next full pass, which never comes in a process that only waits.
    """
    gc.collect()
    with suppress(AttributeError, OSError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)
