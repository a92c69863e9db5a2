# Contributions to the present clock of a shard: staged by slot, summed in the order of the slots,
# applied once a clock.
#
#   stage (clock, slot, incarnation): keys, values -> Staged, after the slot's others
#   seal (clock, slot) -> the slot is complete; the first incarnation that seals it counts
#   all slots sealed -> sums by key -> access method, each row once -> clock + 1
#
# The order of arrival does not matter: a slot is added only when it and all slots before it are sealed,
# and its parts are added in the order of their pushes.  Rows are made in the order of the sums: slot,
# push, key of the request.  So the rows of a `bsp` training depend on the contributions alone, to the bit.
#
# Two workers may contribute to one slot, if the first is slow and its block was leased again.  The
# seal decides: parts of other incarnations are dropped then, and later ones are not taken.
from libc.stdint cimport uint32_t, uint64_t

from snailps.store.tables cimport Shard, Table

cdef enum:
    STAGED_BYTES_MAX = 2 << 30      # of a shard, by default
    SPARE_PAGES = 32                # of the largest part whose memory is kept

cdef enum:
    NO_LR_SCALE = -1

cdef enum Stage:                    # what became of a contribution
    STAGE_OK = 0
    STAGE_DROPPED = 1               # not needed: another incarnation sealed the slot, or the clock is over
    STAGE_FUTURE = 2                # it is for a later clock
    STAGE_SEALED = 3                # its own incarnation has sealed the slot
    STAGE_SLOT = 4                  # the clock has no such slot
    STAGE_FULL = 5                  # over the limit of bytes
    STAGE_MEMORY = 6

cdef enum Seal:
    SEAL_OK = 0
    SEAL_AGAIN = 1                  # a repetition: nothing changed
    SEAL_CLOSED = 2                 # it was the last seal: the clock advanced
    SEAL_FUTURE = 3
    SEAL_SLOTS = 4                  # earlier seals of this clock gave another number of slots
    SEAL_REFUSED = 5                # a push of this incarnation to the slot was refused
    SEAL_BROKEN = 6                 # the sums could not be applied: see `broken`

cdef enum Broken:                   # why no clock can be closed any more: its sums are half applied
    BROKEN_NOT = 0
    BROKEN_MEMORY = 1
    BROKEN_METHOD = 2               # an access method in Python failed

cdef struct Run:                    # the next `keys` keys belong to `fragment`
    uint32_t fragment
    uint32_t keys

cdef struct Staged:                 # a part of a push; keys, runs and values follow in memory
    Staged *next
    Table *table
    uint64_t incarnation
    uint64_t bytes                  # counted for it in `Slots.bytes`
    uint32_t pages                  # of memory
    uint32_t key_num
    uint32_t run_num
    uint32_t floats
    bint state                      # values are differences of weights and state
    uint64_t *keys
    Run *runs
    float *values

cdef struct Slot:
    Staged *first                   # in the order of the pushes, of all incarnations
    Staged *last
    uint64_t sealed                 # by this incarnation; 0 = not yet
    uint64_t refused                # incarnation whose push was refused, or SEVERAL: it may not seal

cdef struct Sums:                   # of one table in the present clock
    Sums *next
    Table *table
    Staged *parts                   # parts in whose memory sums stand
    bint state
    float lr_scale                  # of all contributions; NO_LR_SCALE = none yet
    uint32_t floats
    uint32_t count
    uint32_t cap
    uint64_t *keys                  # in the order of their first contributions
    float **rows
    uint32_t *fragments
    uint32_t *index                 # of open addressing; NO_SUM = empty
    uint32_t mask

# Applies the sums of a table with an access method in Python; False = it failed.
ctypedef bint (*ApplySums)(void *door, Table *table, const Sums *sums) noexcept nogil

cdef struct Slots:
    uint64_t clock                  # the present one: all clocks below are applied
    uint32_t slots                  # of this clock, by its seals; 0 = none was sealed
    uint32_t cap
    Slot *slot
    uint32_t sealed                 # number of sealed slots
    uint32_t summed                 # slots 0 to summed - 1 are in the sums
    bint early                      # only a command closes clocks, maybe without some slots
    int broken                      # Broken
    uint64_t bytes                  # staged, sums included
    uint64_t bytes_max
    Staged *spare[SPARE_PAGES + 1]  # free parts, by pages
    uint64_t spare_bytes
    Sums *sums
    ApplySums apply_elsewhere
    void *door
    uint64_t dropped                # parts that did not count, since the start


# --- staging -------------------------------------------------------------------------------------

# Whether a contribution is to be staged: STAGE_OK, STAGE_DROPPED, STAGE_FUTURE, STAGE_SEALED (the caller
# knows whether it is a repetition) or STAGE_SLOT.
cdef int slots_check(const Slots *s, uint64_t clock, uint32_t slot,
                     uint64_t incarnation) noexcept nogil

# Returns a slot of the present clock; NULL = no memory.
cdef Slot *slot_at(Slots *s, uint32_t slot) noexcept nogil

# Returns the bytes of a part of `key_num` keys, with room for sums of all of them.
cdef uint64_t staged_bytes_of(uint32_t key_num, uint32_t run_num, uint32_t floats) noexcept nogil

# Makes a part, not counted in `Slots.bytes` yet; NULL = no memory.
cdef Staged *staged_new(Slots *s, uint32_t key_num, uint32_t run_num, uint32_t floats) noexcept nogil

# Frees a part: `staged_give` one that is not counted, `staged_free` one that is.  A limited amount of memory is
# kept for later parts.
cdef void staged_give(Slots *s, Staged *part) noexcept nogil
cdef void staged_free(Slots *s, Staged *part) noexcept nogil

# Sets the factor of the step size for the sums of a table.  NULL = no memory.  If the returned sums have another
# `lr_scale`, the contributions of this clock differ, and cannot be summed.
cdef Sums *slots_scale(Slots *s, Table *table, bint state, float lr_scale) noexcept nogil

# Appends a part, with its table, incarnation and contents, to the slot.
cdef void slots_stage(Slots *s, Slot *place, Staged *part) noexcept nogil

# Adds a counted part to the sums of its table.  The part is kept if some sums stand in it.  False = no memory,
# nothing was added.
cdef bint sum_part(Slots *s, Staged *part) noexcept nogil

# Notes a refused push: this incarnation must not seal the slot, whose contribution would be incomplete.
cdef void slots_refuse(Slots *s, uint32_t slot, uint64_t incarnation) noexcept nogil


# --- clocks --------------------------------------------------------------------------------------

# Seals a slot (below `slots`); with the last seal the clock is applied, unless a command closes clocks.  A Seal.
cdef int slots_seal(Slots *s, Shard *shard, uint64_t clock, uint32_t slot, uint32_t slots,
                    uint64_t incarnation) noexcept nogil

# Sums the sealed slots that are not summed yet, and applies the clock.  `counts`: for each slot whether it
# counts; NULL = all.  SEAL_CLOSED, or SEAL_BROKEN.
cdef int slots_end(Slots *s, Shard *shard, const unsigned char *counts) noexcept nogil

# Writes what the present clock waits for, in words.
cdef void slots_lack(const Slots *s, char *text, size_t room) noexcept nogil

# Begins anew at `clock`: nothing is staged, sealed or broken.
cdef void slots_set(Slots *s, uint64_t clock, bint early) noexcept nogil

# Drops contributions and sums of a table that is about to be dropped.
cdef void slots_forget(Slots *s, const Table *table) noexcept nogil

cdef void slots_free(Slots *s) noexcept nogil
