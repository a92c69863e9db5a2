# The frame for compiled code: the same layout as frame.py, which explains it; and what is written or
# read of a body at both ends.
# tests/unit/test_frame.py compares both sides byte by byte.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

cdef enum:
    FRAME_MAGIC = 0x53504E53        # b"SNPS" read as little endian
    FRAME_VERSION = 2
    FRAME_HEADER_BYTES = 48
    DATA_BODY_MAX = 1 << 20
    HANDSHAKE_BODY_MAX = 4096
    ROW_BYTES_MAX = 256 << 10       # of weights
    STREAM_BODY_MAX = 8 << 20       # of a frame to a standby: keys written out, gradients of a batch
    PART_BYTES = 64 << 10           # what pulls and pushes are cut into
    SCAN_FRAGMENTS_MAX = 1024       # of a SCAN: empty ones cost the shard's turn, too

cdef enum:
    KIND_ERROR = 4
    KIND_HEARTBEAT = 5
    KIND_PULL = 16
    KIND_PULLED = 17
    KIND_PUSH = 18
    KIND_PUSHED = 19
    KIND_SCAN = 20
    KIND_SCANNED = 21
    KIND_FORWARD = 22
    KIND_PRODUCT = 23
    KIND_BACKWARD = 24
    KIND_STEPPED = 25
    KIND_SEAL = 26
    KIND_SEALED = 27
    KIND_REACH = 28
    KIND_REACHED = 29
    KIND_REPLICATE = 30
    KIND_REPLICATED = 31

cdef enum:
    FLAG_PACKED = 1                 # of control frames: data frames have no flags

cdef enum:                          # options of a PULL or PUSH: frame.Option explains them
    OPTION_STATE = 1 << 0
    OPTION_ASSIGN = 1 << 1          # PUSH: the values take the place of the rows
    OPTION_CLOCK = 1 << 5           # bits 2 to 4 are reserved, and 0
    OPTION_WIRE_SHIFT = 8           # two bits: how rows travel, WIRE_... of _wire_types.pxd
    OPTION_LR_SCALE = 1 << 10       # PUSH: the step size is scaled
    OPTION_KEY_SHIFT = 12           # three bits: bytes a key beyond the base, 0 = keys are whole
    OPTIONS_KNOWN = 0x23 | 7 << 8 | 7 << 12

cdef enum:                          # what a REPLICATE carries; docs/wire_format.md explains them
    REPLICA_BEGIN = 1
    REPLICA_STAGED = 2
    REPLICA_SLOTS = 3
    REPLICA_FRAGMENT = 4
    REPLICA_ROWS = 5
    REPLICA_WHOLE = 6
    REPLICA_SEEDED = 7
    REPLICA_ORDER = 8
    REPLICA_RESUME = 9
    REPLICA_RETENTION = 10

cdef enum:                          # options of a FORWARD or BACKWARD; see docs/wire_format.md
    PRODUCT_KEEP = 1 << 0
    PRODUCT_QUIET = 1 << 1
    PRODUCT_ONES = 1 << 2           # wire type and bytes a key are where OPTION_... have them
    PRODUCT_STORED = 1 << 3
    PRODUCT_OPTIONS_KNOWN = 15 | 3 << 8 | 7 << 12

cdef enum:                          # batches that a shard keeps for a connection
    BATCHES = 8                     # a batch's place is its number modulo this
    BATCHES_BYTES = 256 << 20
    EXAMPLE_ENTRIES_MAX = 65536     # entries of one example at one shard: they fit into a part

cdef enum:
    ERROR_BYTES_MAX = 1024          # of an ERROR that a shard writes
    SLOTS_MAX = 4096                # slots of one clock

cdef inline bint kind_keeps_order(uint8_t kind) noexcept nogil:
    """Whether nothing of a connection may overtake such a request where it waits."""
    return kind == KIND_PUSH or kind == KIND_FORWARD or kind == KIND_BACKWARD or kind == KIND_SEAL


cdef packed struct FrameHeader:
    uint32_t magic
    uint8_t version
    uint8_t kind
    uint16_t flags
    uint32_t table
    uint32_t epoch
    uint64_t job
    uint64_t incarnation
    uint64_t request
    uint64_t body_bytes


cdef inline void fill_head(FrameHeader *head, uint8_t kind, uint64_t request,
                           uint64_t body_bytes) noexcept nogil:
    """A header whose other fields are 0; a reply leaves them so: the requester knows them.

    Inline: some stores a frame.
    """
    memset(head, 0, FRAME_HEADER_BYTES)
    head.magic = FRAME_MAGIC
    head.version = FRAME_VERSION
    head.kind = kind
    head.request = request
    head.body_bytes = body_bytes


cdef inline bint head_is_known(const FrameHeader *head) noexcept nogil:
    """Whether a header begins as ours do; inline: two comparisons a frame."""
    return head.magic == FRAME_MAGIC and head.version == FRAME_VERSION


# Bodies of data frames.  Every one is padded with zero bytes to a multiple of 8, and so is the list
# of keys, so that keys and floats stay aligned in the receiver's buffer.
#
# PULL     GroupHead, [ClockHead, OPTION_CLOCK], keys
# PULLED   groups x uint64 (the asker's mark in that fragment), rows, one a key
# PUSH     GroupHead, [ClockHead, OPTION_CLOCK], [LrHead, OPTION_LR_SCALE], keys, values, one a key
# PUSHED   empty
# SCAN     ScanHead
# SCANNED  ScannedHead, keys x uint64, keys x dim x float32
# FORWARD  ProductHead, count x uint32 (entries of each example), padded, keys, values x float32
#          (absent with PRODUCT_ONES), padded
#          keys: entries x uint64; or, with bytes a key, uint64 base, that many bytes each, padded
# PRODUCT  count x row of Z, of this shard's entries alone; empty with PRODUCT_QUIET
#          float16 that would cut some: count x floats x float32, padded, 8 bytes of zeros
# BACKWARD ProductHead, count x row of dL/dZ
# STEPPED  empty
# SEAL     ClockHead, with `slots`
# SEALED   empty
# REACH    ClockHead, slot and slots 0
# REACHED  empty
# REPLICATE   ReplicaHead, then as `what` says; in a stream, where `request` counts frames from 1:
#   BEGIN     BeginHead, count x uint32 (fragments), padded, fenced x 2 uint64 (incarnations: first, last)
#   STAGED    StagedHead, count x uint64 (keys), runs x Group, count x floats x float32, padded
#   SLOTS     SlotsHead, count x (uint64 sealed by, uint64 refused to)
#   FRAGMENT  count x (uint64 incarnation, uint64 seq)
#   ROWS      RowsHead, count x row (key, floats, tick: as they lie in memory), padded
#   WHOLE     nothing
#   SEEDED    nothing
#   ORDER     count bytes of JSON, padded
#   RESUME    BeginHead
#   RETENTION count bytes: RetentionHead of _retention.pxd, counts
# REPLICATED  uint64 (bytes of the stream that are done); `request`: the last frame of them
# ERROR    JSON {"code": ..., "text": ...}; `request` names what it answers, 0 = the connection
#
# keys     groups x Group, keys x uint64
#          with bytes a key: groups x Group, uint64 base, keys x that many bytes (key - base)
# rows     float32, or as _wire_types.pxd has them, without gaps
cdef packed struct GroupHead:
    uint64_t seq                    # PUSH: number of this push; PULL: 0
    uint32_t keys                   # in all groups
    uint32_t groups                 # in ascending order of fragment, none twice
    uint32_t floats                 # a row (PULL) or value (PUSH), as the sender knows the table
    uint32_t options

cdef packed struct ClockHead:       # which contribution, or at which clock
    uint64_t clock
    uint32_t slot                   # PUSH, SEAL: below SLOTS_MAX; else 0
    uint32_t slots                  # SEAL: of this clock, 1 to SLOTS_MAX; else 0

cdef packed struct LrHead:          # of a PUSH
    float lr_scale                  # the access method's step size is multiplied by it
    uint32_t unused                 # 0

cdef packed struct Group:           # the next `keys` keys belong to `fragment`
    uint32_t fragment
    uint32_t keys

cdef packed struct ScanHead:        # of the fragments from `fragment` on, below `end`
    uint64_t cursor                 # in the first one, 0 = from the beginning
    uint32_t fragment
    uint32_t end                    # at most SCAN_FRAGMENTS_MAX more
    uint32_t keys_max
    uint32_t unused                 # 0

cdef packed struct ScannedHead:
    uint64_t cursor                 # where to go on in `fragment`, 0 = at its beginning
    uint32_t fragment               # `end` of the request: this was the end
    uint32_t keys
    uint32_t dim
    uint32_t unused                 # 0

cdef packed struct ProductHead:     # of a part: examples first..first + count - 1 of a batch
    uint64_t seq                    # BACKWARD: number of this push; FORWARD: 0
    uint64_t batch                  # its number, chosen by the client, not 0
    uint32_t examples               # of the whole batch
    uint32_t first
    uint32_t count
    uint32_t entries                # FORWARD: of these examples at this shard; BACKWARD: 0
    uint32_t floats                 # a row of Z, as the sender knows the table
    uint32_t options
    float scale                     # BACKWARD: dL/dZ is this times what travels; FORWARD: 0
    float lr_scale                  # BACKWARD: the step size is multiplied by it; FORWARD: 0

cdef packed struct ReplicaHead:
    uint32_t what                   # REPLICA_...
    uint32_t fragment               # FRAGMENT, ROWS, RETENTION, WHOLE; STAGED: the slot, NO_SLOT = summed already
    uint32_t table                  # STAGED, ROWS, RETENTION
    uint32_t floats                 # STAGED: a value; ROWS: weights and state
    uint64_t count

cdef enum:
    NO_SLOT = 0xFFFFFFFF

cdef packed struct BeginHead:
    uint64_t clock
    uint32_t tick
    uint32_t early                  # clocks are closed by a command
    uint32_t frag_num
    uint32_t fenced                 # spans of incarnations

cdef packed struct StagedHead:
    uint32_t runs
    uint32_t state                  # values are differences of weights and state
    float lr_scale                  # of the table's step in this clock
    uint32_t unused                 # 0

cdef packed struct SlotsHead:
    uint32_t slots                  # of the clock, as its seals say; 0 = none did
    uint32_t summed
    uint32_t broken
    uint32_t held                   # reserved, 0

cdef packed struct RowsHead:
    uint64_t version                # reserved, 0
    uint64_t deleted                # reserved, 0
    uint32_t track
    uint32_t row_bytes


# --- parts of bodies -----------------------------------------------------------------------------

cdef inline size_t narrow_keys_bytes(uint32_t n, uint32_t width) noexcept nogil:
    """Length of base and narrow keys, padded to a multiple of 8."""
    return (8 + <size_t>n * width + 7) & ~<size_t>7


cdef inline uint64_t wide_product_bytes(uint64_t count, uint64_t floats) noexcept nogil:
    """Length of a PRODUCT sent as float32 because float16 would clip it; no float16 PRODUCT has this length."""
    return ((4 * count * floats + 7) & ~<uint64_t>7) + 8


# Bytes a key beyond `base`, the smallest; 0 = whole keys serve better.
cdef uint32_t key_bytes(const uint64_t *keys, uint32_t n, uint64_t *base) noexcept nogil
# Writes narrow_keys_bytes() bytes.
cdef void write_narrow_keys(char *to, const uint64_t *keys, uint32_t n, uint64_t base,
                            uint32_t width) noexcept nogil
# The n keys of base and narrow keys at `inp`.
cdef void read_narrow_keys(const char *inp, uint64_t *keys, uint32_t n,
                           uint32_t width) noexcept nogil

# Writes the body of an ERROR, at most ERROR_BYTES_MAX; `text` is a format of ours with up to two numbers.
# Returns its length.
cdef uint64_t write_error(char *to, const char *code, const char *text, uint64_t a,
                          uint64_t b) noexcept nogil
