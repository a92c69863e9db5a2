# The frame for compiled code: the same layout as frame.py, which explains it.
# tests/test_frame.py compares both sides byte by byte.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    FRAME_MAGIC = 0x53504E53        # b"SNPS" read as little endian
    FRAME_VERSION = 1
    FRAME_HEADER_BYTES = 48
    DATA_BODY_MAX = 1 << 20
    HANDSHAKE_BODY_MAX = 4096
    SUBFRAME_BYTES = 256 << 10

cdef enum:
    KIND_ERROR = 4
    KIND_HEARTBEAT = 5
    KIND_PULL = 16
    KIND_PULLED = 17
    KIND_PUSH = 18
    KIND_PUSHED = 19
    KIND_SCAN = 20
    KIND_SCANNED = 21

cdef enum:                          # options of a PULL or PUSH
    OPTION_STATE = 1                # rows are weights and the optimiser's state

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

# Bodies of data frames.  Every one is padded with zero bytes to a multiple of 8, so that keys stay
# aligned in the receiver's buffer.
#
# PULL     GroupHead, groups x Group, keys x uint64
# PULLED   groups x uint64 (the asker's mark in that fragment), keys x floats x float32
# PUSH     GroupHead, groups x Group, keys x uint64, keys x floats x float32
# PUSHED   empty
# SCAN     ScanHead
# SCANNED  ScannedHead, keys x uint64, keys x dim x float32
# ERROR    JSON {"code": ..., "text": ...}; `request` names what it answers, 0 = the connection
cdef packed struct GroupHead:
    uint64_t seq                    # PUSH: number of this push; PULL: 0
    uint32_t keys                   # in all groups
    uint32_t groups                 # in ascending order of fragment, none twice
    uint32_t floats                 # a row (PULL) or value (PUSH), as the sender knows the table
    uint32_t options

cdef packed struct Group:           # the next `keys` keys belong to `fragment`
    uint32_t fragment
    uint32_t keys

cdef packed struct ScanHead:
    uint64_t cursor                 # 0 = from the beginning
    uint32_t fragment
    uint32_t keys_max

cdef packed struct ScannedHead:
    uint64_t cursor                 # where to go on, 0 = this was the end
    uint32_t keys
    uint32_t dim
