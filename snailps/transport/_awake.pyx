# cython: language_level=3
"""The clock by which waits are judged: monotonic seconds, less those in which this process was stopped.

    docker pause, Slurm's suspend, Ctrl-Z, a debugger -> no thread ticks -> the gap counts as 0.25 s

Owns the one rule for a process's own sleep: who has slept himself has not waited.  Without it, a cluster that was
stopped as a whole ends when it is resumed: each process takes its own sleep for the silence of the others.  A suspended
machine needs no rule, as the monotonic clock stops with it.  Must not know who waits, or for what.

A thread without the GIL ticks, once `watch` was called; before that, and in a fork, the clock is the monotonic one.
"""

cdef extern from "transport/_awake.h" nogil:
    double snail_slept_s(double *now)
    void snail_watch()


cdef double now_s() noexcept nogil:
    cdef double now
    cdef double slept = snail_slept_s(&now)
    return now - slept


cdef double slept_s() noexcept nogil:
    cdef double now
    return snail_slept_s(&now)


def awake_s() -> float:
    """Return the time in seconds; only differences have a meaning."""
    return now_s()


def watch() -> None:
    """Have stops of this process noticed from now on; idempotent."""
    snail_watch()
