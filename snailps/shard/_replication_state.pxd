# What a shard keeps of its standby, and a standby of its primary.
#
# Data only: `_primary.pxd` and `_standby.pxd` work with it.
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef enum:
    FRAGMENT_EXPECTED = 1           # it belongs to this shard,
    FRAGMENT_WHOLE = 2              # ... and all its rows have come


cdef struct Primary:                # of the present stream
    uint32_t *fragments             # of this shard, ascending
    uint32_t fragment_num
    uint32_t at                     # so many of them are copied
    bint partly                     # the next one is begun: copied are the tables below `table`,
    uint32_t table
    uint32_t number                 # ... and of that one the slots below this
    bint resumes                    # the standby has everything: it was the primary
    uint8_t *copied                 # by fragment, from its begin on: what changes it is forwarded
    uint64_t clock                  # the last one that is shown, or will be
    uint64_t clock_until            # the present clock is shown once this frame is acknowledged; 0 = now
    bint yielding                   # what changes rows waits, and will be done elsewhere


cdef struct Standby:
    uint8_t *expects                # by fragment: FRAGMENT_..., or 0; NULL = no route yet
    uint32_t expected               # how many do
    uint32_t whole                  # ... and have come
    bint begun                      # the stream has said whose it is
    bint seeded
    bint resigned                   # it was the primary, and yielded
    uint32_t filling                # the fragment that comes in
    # A group of a BACKWARD that came in pieces, until its last:
    uint64_t *keys
    float *values
    uint32_t pieces                 # keys so far
    uint32_t room                   # keys
    uint64_t room_floats
    uint32_t table
    uint32_t fragment
    uint64_t seq
