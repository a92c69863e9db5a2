# Contributions to the present clock of a shard: staged by slot, summed in the order of the slots,
# applied once a clock.
#
#   stage (clock, slot, incarnation): keys, values -> Staged, behind the slot's others
#   seal (clock, slot) -> the slot is complete; the first incarnation to say so counts
#   all slots sealed -> sums by key -> access method, each row once -> clock + 1
#
# Sums do not depend on the order of arrival: a slot is added only when it and all slots before it are
# sealed, its parts in the order of their pushes.  Rows come into being in the order of the sums:
# slot, push, key of the request.
from libc.stdint cimport uint32_t, uint64_t

from snailps.store.tables cimport Shard, Table

cdef enum:
    STAGED_BYTES_MAX = 2 << 30      # of a shard, by default
    SPARE_PAGES = 32                # of the largest part whose memory is kept

cdef enum:
    NO_LR_SCALE = -1

cdef enum Stage:                    # what became of a contribution
    STAGE_OK = 0
    STAGE_DROPPED = 1               # another incarnation's counts, or applied already
    STAGE_FUTURE = 2                # of a later clock
    STAGE_SEALED = 3                # new values for a slot that its own incarnation had sealed
    STAGE_SLOT = 4                  # the clock has no such slot
    STAGE_FULL = 5                  # over the limit of bytes
    STAGE_MEMORY = 6

cdef enum Seal:
    SEAL_OK = 0
    SEAL_AGAIN = 1                  # sealed or applied before: nothing changed
    SEAL_CLOSED = 2                 # it was the last one: the clock advanced
    SEAL_FUTURE = 3
    SEAL_SLOTS = 4                  # earlier seals of this clock gave another number of slots
    SEAL_REFUSED = 5                # a push of this incarnation to the slot was refused
    SEAL_BROKEN = 6                 # the sums could not be applied: see `broken`

cdef enum Broken:                   # why no clock can be closed any more
    BROKEN_NOT = 0
    BROKEN_MEMORY = 1
    BROKEN_METHOD = 2               # an access method in Python failed

cdef struct Run:                    # the next `keys` keys belong to `fragment`
    uint32_t fragment
    uint32_t keys

cdef struct Staged:                 # a part of a push: keys, runs and values lie behind it
    Staged *next
    Table *table
    uint64_t incarnation
    uint64_t bytes                  # as counted
    uint32_t pages                  # as taken
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
    uint64_t refused                # incarnation whose push was refused; or SEVERAL

cdef struct Sums:                   # of one table in the present clock
    Sums *next
    Table *table
    Staged *parts                   # that hold sums
    bint state
    float lr_scale                  # of all contributions; NO_LR_SCALE = none yet
    uint32_t floats
    uint32_t count
    uint32_t cap
    uint64_t *keys                  # in the order in which they were first met
    float **rows
    uint32_t *fragments
    uint32_t *index                 # of open addressing; NO_SUM = empty
    uint32_t mask

# Applies the sums of a table whose access method is written elsewhere; False = it failed.
ctypedef bint (*ApplySums)(void *door, Table *table, const Sums *sums) noexcept nogil

cdef struct Slots:
    uint64_t clock                  # all clocks below were applied
    uint32_t slots                  # of this clock, by its seals; 0 = none yet
    uint32_t cap
    Slot *slot
    uint32_t sealed                 # slots sealed so far
    uint32_t summed                 # slots whose values are in the sums: 0 to summed - 1
    bint early                      # clocks are closed by a command, maybe without some slots
    int broken                      # Broken
    uint64_t bytes                  # staged, sums included
    uint64_t bytes_max
    Staged *spare[SPARE_PAGES + 1]  # free parts, by pages
    uint64_t spare_bytes
    Sums *sums
    ApplySums apply_elsewhere
    void *door
    uint64_t dropped                # parts that did not count


# --- staging -------------------------------------------------------------------------------------

# Whether a contribution is wanted: STAGE_OK, STAGE_DROPPED, STAGE_FUTURE, STAGE_SEALED (the caller
# knows whether it is a repetition) or STAGE_SLOT.
cdef int slots_check(const Slots *s, uint64_t clock, uint32_t slot,
                     uint64_t incarnation) noexcept nogil

# The slot of the present clock; NULL = no memory.
cdef Slot *slot_at(Slots *s, uint32_t slot) noexcept nogil

# Bytes of a part of `key_num` keys, with what its sums may take.
cdef uint64_t staged_bytes_of(uint32_t key_num, uint32_t run_num, uint32_t floats) noexcept nogil

# Room for a part, not counted yet; NULL = no memory.
cdef Staged *staged_new(Slots *s, uint32_t key_num, uint32_t run_num, uint32_t floats) noexcept nogil

# Frees a part: `staged_give` one that is not counted, `staged_free` one that is.  Keeps the memory for
# others, within bounds.
cdef void staged_give(Slots *s, Staged *part) noexcept nogil
cdef void staged_free(Slots *s, Staged *part) noexcept nogil

# Sets the step size, a factor of the table's, for the sums of a table.  NULL = no memory; sums with
# another `lr_scale` = contributions of one clock differ, which do not add up.
cdef Sums *slots_scale(Slots *s, Table *table, bint state, float lr_scale) noexcept nogil

# Appends a part, with its table, incarnation and contents, to the slot.
cdef void slots_stage(Slots *s, Slot *place, Staged *part) noexcept nogil

# Adds a counted part to the sums of its table, which keep it if some begin in it; False = no memory,
# nothing was added.
cdef bint sum_part(Slots *s, Staged *part) noexcept nogil

# A push was refused: what the incarnation has in this slot is not to be sealed.
cdef void slots_refuse(Slots *s, uint32_t slot, uint64_t incarnation) noexcept nogil


# --- clocks --------------------------------------------------------------------------------------

# A slot (below `slots`) is complete; with the last one the clock is applied, unless a command does
# that.  A Seal.
cdef int slots_seal(Slots *s, Shard *shard, uint64_t clock, uint32_t slot, uint32_t slots,
                    uint64_t incarnation) noexcept nogil

# Sums the sealed slots that are not summed yet and applies the clock.  `counts` says of each slot
# whether it does; NULL = all.  SEAL_CLOSED, or SEAL_BROKEN.
cdef int slots_end(Slots *s, Shard *shard, const unsigned char *counts) noexcept nogil

# What the present clock waits for, in words.
cdef void slots_lack(const Slots *s, char *text, size_t room) noexcept nogil

# Begins at `clock` anew: nothing is staged, sealed or broken.
cdef void slots_set(Slots *s, uint64_t clock, bint early) noexcept nogil

# Drops contributions and sums of a table that is about to be dropped.
cdef void slots_forget(Slots *s, const Table *table) noexcept nogil

cdef void slots_free(Slots *s) noexcept nogil
