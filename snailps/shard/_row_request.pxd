# cython: cdivision=True
# What a PULL or PUSH asks for: its body, checked, with the keys as the store wants them.
#
#   body -> options, clock, groups, keys (whole, remembered or narrow), values -> RowRequest
#
# A peer's body is never trusted: counts are compared with lengths before anything is read, and
# every key with the fragment that it claims; only a list that passed is remembered.  Knows no
# tables: how wide rows are, it is told.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf

from snailps.abi._key_hash cimport fragment_of_hash, hash_key
from snailps.abi._wire_types cimport WireOps, wire_row_bytes
from snailps.shard._connection_memory cimport Columns
from snailps.shard._key_list_cache cimport AllLists, KeyList, KeyLists, recall, remember
from snailps.shard._replication_state cimport Primary, Standby
from snailps.store.core._clock_buffer cimport Slots
from snailps.store.core._marks cimport Marks
from snailps.store.tables cimport Shard, store_mark, store_owns
from snailps.transport._frame cimport *
from snailps.transport._key_coding cimport keys_digest, narrow_keys_bytes, read_narrow_keys
from snailps.transport.loop._fault_injection cimport FAULT_NO_HOLD, Faults
from snailps.transport.loop._handler cimport OUTCOME_REPLY, Outcome, Reply
from snailps.transport.loop._replication_stream cimport Stream, hold_until

cdef enum:
    ROOM_BYTES = 4 << 20            # keys, or rows as float32, of the largest part: int8 to float32
    FENCED_MAX = 1 << 19            # incarnations that are shut out in a life: 4 MiB of a BEGIN
    WAITS_BYTES = 256

cdef enum:                          # what a shard is to those that ask it
    ROLE_PRIMARY = 0                # it serves
    ROLE_STANDBY = 1                # it follows a primary; who asks it waits for its promotion
    ROLE_YIELDED = 2                # it was a primary, and another shard is in its place


cdef struct Context:
    Shard *shard
    Slots *slots                # what is staged, by clock and slot
    double clock_limit_s        # how long a request may wait for a clock
    char waits[WAITS_BYTES]     # for what: "slot 3 of clock 17"
    uint64_t waits_clock        # ... as of this clock
    uint32_t waits_sealed       # ... with so many slots sealed, + 1
    Marks fenced                # incarnations whose frames are refused, each with the number 1
    void *door                  # the ShardThread, for tables with a Python access method
    const WireOps *wire
    uint64_t *keys              # ROOM_BYTES: narrow keys made whole
    float *rows                 # ROOM_BYTES: rows before or after another type
    float *first                # ROOM_BYTES: first values of rows that are not there
    Columns columns             # of the batch that is being stepped
    uint32_t frag_num
    uint32_t epoch
    uint32_t epoch_min          # of the route that made it a primary: older ones name another shard
    int role                    # ROLE_...
    bint all_new                # no push is taken for a repetition: at a standby, whose primary looked
    Stream *stream              # to the standby
    Primary primary
    Standby standby
    Faults *faults
    uint64_t pulls
    uint64_t pushes
    uint64_t repeated           # groups of pushes skipped because their mark is not lower
    uint64_t rows_pulled
    uint64_t rows_pushed
    uint64_t rows_scanned
    uint64_t lists_recalled     # parts whose keys did not travel
    AllLists lists              # what is kept of them, for all connections
    uint64_t life               # of batches kept so far: another number forgets them all
    uint64_t products           # parts that went forward
    uint64_t entries_summed     # ... and their entries
    uint64_t rows_stepped       # by batches that went back
    uint64_t batches_unknown    # connections ended because a batch was not known


cdef struct RowRequest:
    uint64_t seq
    uint32_t options
    int wire
    uint32_t floats
    uint32_t row_bytes          # of a row as it travels
    uint32_t key_num
    uint32_t group_num
    uint64_t clock              # with OPTION_CLOCK
    uint32_t slot
    const Group *groups
    const uint64_t *keys        # those of the first group, then of the second, ...
    const char *values          # of a PUSH


cdef inline uint64_t padded(uint64_t n) noexcept nogil:
    return (n + 7) & ~<uint64_t>7


cdef inline Outcome refuse(char *out, Reply *reply, const char *code, const char *text,
                           uint64_t a, uint64_t b) noexcept nogil:
    """Writes an ERROR body; `text` is a format of ours with up to two numbers."""
    cdef int n = snprintf(out, 1024, b'{"code":"%s","text":"', code)
    n += snprintf(out + n, 900, text, <unsigned long long>a, <unsigned long long>b)
    n += snprintf(out + n, 16, b'"}')
    reply.kind = KIND_ERROR
    reply.body_bytes = n
    return OUTCOME_REPLY


cdef inline bint is_repeated(const Context *me, uint32_t fragment, uint64_t incarnation,
                             uint64_t seq) noexcept nogil:
    """Whether the fragment has had this push."""
    return not me.all_new and store_mark(me.shard, fragment, incarnation) >= seq


cdef inline uint64_t held_until(const Context *me) noexcept nogil:
    """The frame that the standby must have before what is done by now is told; 0 = none."""
    return 0 if me.faults.left_out & FAULT_NO_HOLD else hold_until(me.stream)


cdef inline void hold(const Context *me, Reply *reply) noexcept nogil:
    """Lets a reply wait until the standby has what it acknowledges."""
    reply.hold = held_until(me)


cdef inline bint is_served(const Context *me, uint32_t fragment, bint clocked) noexcept nogil:
    """Whether the fragment is here; at a standby contributions to clocks come before it does."""
    return fragment < me.frag_num and (store_owns(me.shard, fragment) or (
        clocked and me.standby.expects != NULL and me.standby.expects[fragment]))


cdef inline bint groups_are_good(Context *me, const RowRequest *asked, bint new_list, char *out,
                                 Reply *reply) noexcept nogil:
    """Checks order, ownership and counts of groups; of a list not seen before, the keys too."""
    cdef const Group *groups = asked.groups
    cdef uint64_t total = 0
    cdef uint32_t g, i, fragment
    for g in range(asked.group_num):
        fragment = groups[g].fragment
        if g and fragment <= groups[g - 1].fragment:    # twice in one push: it would be dropped
            refuse(out, reply, b"order", b"fragment %llu stands behind fragment %llu",
                   fragment, groups[g - 1].fragment)
            return False
        if not is_served(me, fragment, asked.options & OPTION_CLOCK):
            refuse(out, reply, b"stale-route",
                   b"fragment %llu is not here (route epoch %llu): fetch the new route",
                   fragment, me.epoch)
            return False
        if groups[g].keys > asked.key_num - total:
            refuse(out, reply, b"length", b"groups have more than %llu keys", asked.key_num, 0)
            return False
        if new_list:
            for i in range(groups[g].keys):
                if fragment_of_hash(hash_key(asked.keys[total + i]), me.frag_num) != fragment:
                    refuse(out, reply, b"fragment", b"key %llu is not of fragment %llu",
                           asked.keys[total + i], fragment)
                    return False
        total += groups[g].keys
    if total != asked.key_num:
        refuse(out, reply, b"length", b"groups have %llu keys, the body %llu",
               total, asked.key_num)
        return False
    return True


cdef inline bint read_list(Context *me, KeyLists **lists, RowRequest *asked, const char **at,
                           const char *end, char *out, Reply *reply) noexcept nogil:
    """Reads the list of keys at `at` and moves it behind; False = `reply` is a refusal."""
    cdef uint32_t width = asked.options >> OPTION_KEY_SHIFT & 7
    cdef bint named = asked.options & (OPTION_REMEMBER | OPTION_RECALL)
    cdef const ListHead *list = <const ListHead *>at[0]
    cdef uint64_t need
    cdef KeyList *found
    if named:
        at[0] += sizeof(ListHead)
        if at[0] > end or list.place >= LISTS or list.digest == 0:
            refuse(out, reply, b"list", b"there is no place %llu for a list of keys, only %llu",
                   0 if at[0] > end else list.place, LISTS)
            return False
    if named and asked.key_num == 0:
        refuse(out, reply, b"list", b"a list for place %llu has no keys: name only lists that have some",
               list.place, 0)
        return False
    if asked.options & OPTION_RECALL:
        found = recall(lists[0], list.place, list.digest)
        if found == NULL or found.keys != asked.key_num or found.groups != asked.group_num:
            refuse(out, reply, b"list", b"the keys of place %llu are not (or no longer) known here",
                   list.place, 0)
            return False
        asked.groups = <const Group *>found.data
        asked.keys = <const uint64_t *>(found.data + 8 * <uint64_t>found.groups)
        me.lists_recalled += 1
        return groups_are_good(me, asked, False, out, reply)
    need = asked.group_num * <uint64_t>sizeof(Group)
    need += narrow_keys_bytes(asked.key_num, width) if width else asked.key_num * <uint64_t>8
    if need > <uint64_t>(end - at[0]):
        refuse(out, reply, b"length", b"%llu keys do not fit into the body", asked.key_num, 0)
        return False
    asked.groups = <const Group *>at[0]
    at[0] += need
    asked.keys = <const uint64_t *>(asked.groups + asked.group_num)
    if width:
        read_narrow_keys(<const char *>asked.keys, me.keys, asked.key_num, width)
        asked.keys = me.keys
    if not groups_are_good(me, asked, True, out, reply):
        return False
    if not named:
        return True
    if keys_digest(asked.keys, asked.key_num) != list.digest:
        refuse(out, reply, b"list", b"the keys of place %llu have another digest", list.place, 0)
        return False
    reply.unkept = not remember(&me.lists, lists, list.place, list.digest, asked.groups,
                                asked.group_num, asked.keys, asked.key_num)
    return True


cdef inline bint read_clock(RowRequest *asked, bint push, const char **at, const char *end, char *out,
                            Reply *reply) noexcept nogil:
    """Reads the clock at `at` and moves it behind; False = `reply` is a refusal."""
    cdef const ClockHead *head = <const ClockHead *>at[0]
    at[0] += sizeof(ClockHead)
    if at[0] > end:
        refuse(out, reply, b"length", b"the body ends before the clock", 0, 0)
        return False
    if head.slot >= <uint32_t>(SLOTS_MAX if push else 1) or head.slots:
        refuse(out, reply, b"clock", b"slot %llu of %llu: a push has a slot below 4096, a pull slot 0,"
               b" and neither has a number of slots", head.slot, head.slots)
        return False
    asked.clock = head.clock
    asked.slot = head.slot
    return True


cdef inline bint read_asked(Context *me, KeyLists **lists, const FrameHeader *head,
                            const char *body, uint64_t floats, RowRequest *asked, char *out,
                            Reply *reply) noexcept nogil:
    """Reads and checks a PULL or PUSH of rows of `floats`; False = `reply` is a refusal."""
    cdef const GroupHead *top = <const GroupHead *>body
    cdef bint push = head.kind == KIND_PUSH
    cdef const char *at = body + sizeof(GroupHead)
    cdef const char *end = body + head.body_bytes
    cdef uint64_t rest = 0
    if head.body_bytes < sizeof(GroupHead):
        refuse(out, reply, b"length", b"body of %llu bytes, at least %llu expected",
               head.body_bytes, sizeof(GroupHead))
        return False
    asked.seq = top.seq
    asked.options = top.options
    asked.wire = top.options >> OPTION_WIRE_SHIFT & 3
    asked.key_num = top.keys
    asked.group_num = top.groups
    asked.floats = top.floats
    asked.row_bytes = wire_row_bytes(asked.wire, top.floats)
    if top.options & ~<uint32_t>OPTIONS_KNOWN \
            or (asked.wire and top.options & OPTION_STATE):
        refuse(out, reply, b"option", b"options %llu are not known or do not go together, known "
               b"are %llu", top.options, OPTIONS_KNOWN)
        return False
    if top.floats != floats:
        refuse(out, reply, b"dim", b"rows of %llu floats here, the request is for %llu",
               floats, top.floats)
        return False
    # Before any room is used: the rows of all keys fit into one body, there or back.
    if top.keys * <uint64_t>asked.row_bytes > DATA_BODY_MAX:
        refuse(out, reply, b"too-long", b"rows of %llu bytes, limit %llu",
               top.keys * <uint64_t>asked.row_bytes, DATA_BODY_MAX)
        return False
    if asked.options & OPTION_CLOCK and not read_clock(asked, push, &at, end, out, reply):
        return False
    if not read_list(me, lists, asked, &at, end, out, reply):
        return False
    asked.values = at
    if push:
        rest = asked.key_num * <uint64_t>asked.row_bytes
    if padded(rest) != <uint64_t>(end - at):
        refuse(out, reply, b"length", b"body of %llu bytes, its counts make %llu",
               head.body_bytes, (at - body) + padded(rest))
        return False
    return True
