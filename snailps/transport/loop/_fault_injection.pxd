# Faults for tests: what a shard leaves out, and where its process dies, as by kill -9.
#
# `ShardCore.set_faults` sets them, in builds in place alone: in wheels SNAIL_FAULTS is 0, and the
# compiler drops each look.
from libc.stdint cimport int64_t, uint32_t

cdef extern from *:
    """
    #ifndef SNAIL_FAULTS
    #define SNAIL_FAULTS 0
    #endif
    """
    const bint SNAIL_FAULTS

cdef extern from "<signal.h>" nogil:
    enum: SIGKILL
    int kill(int process, int signal)

cdef extern from "<unistd.h>" nogil:
    int getpid()

cdef enum Fault:                    # what is left out
    FAULT_NO_HOLD = 1               # replies do not wait for the standby
    FAULT_NO_MARKS = 2              # pushes are applied as often as they come
    FAULT_NO_FENCE = 4              # fenced incarnations are served all the same

cdef enum Point:                    # where the process dies
    POINT_NONE = 0
    POINT_MID_SEND = 1              # in the middle of a frame to the standby
    POINT_APPLIED = 2               # a push is applied, and neither forwarded nor acknowledged
    POINT_ACKNOWLEDGED = 3          # replies have gone out that waited for the standby
    POINT_REPLAYED = 4              # at the standby: applied, and not acknowledged
    POINT_PROMOTED = 5              # at the standby: about to serve

cdef struct Faults:
    uint32_t left_out
    int point
    int64_t passings                # that are left before it dies


cdef inline bint leaves_out(const Faults *faults, uint32_t fault) noexcept nogil:
    return SNAIL_FAULTS and (faults.left_out & fault) != 0


cdef inline bint due(Faults *faults, int point) noexcept nogil:
    """Whether this passing of a point is the last one."""
    if not SNAIL_FAULTS or faults.point != point:
        return False
    faults.passings -= 1
    return faults.passings <= 0


cdef inline void die() noexcept nogil:
    kill(getpid(), SIGKILL)


cdef inline void passes(Faults *faults, int point) noexcept nogil:
    if due(faults, point):
        die()
