"""Measures the memory of a call, and makes system calls fail."""

import os
import tracemalloc


def fails(number):
    """A function that raises this OSError for any arguments."""

    def call(*_, **__):
        raise OSError(number, os.strerror(number))

    return call


def peak_bytes(work):
    """Peak of the bytes that Python allocates while `work` runs."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
