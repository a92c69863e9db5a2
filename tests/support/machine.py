"""The machine, as tests want it: memory that a call takes, calls of the system that fail."""

import os
import tracemalloc


def fails(number):
    """A function that ends with this error of the system, whatever it is given."""

    def call(*_, **__):
        raise OSError(number, os.strerror(number))

    return call


def peak_bytes(work):
    """The most that Python allocates at once while `work` runs."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
