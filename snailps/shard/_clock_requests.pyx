# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Requests that belong to a clock: contributions, seals, and requests that wait for them.

    PUSH with a clock -> marks, limits -> store: staged         SEAL -> store: sums, rows, next clock
    PULL with a clock, REACH -> answered now, or parked until the clock has come

A contribution is recognised by its number, like any push: its fragments' marks rise when it is staged.
So a part that is sent again is not staged twice, whether its slot is sealed or not.  Owns no state; the
slots belong to store/core/_clock_buffer.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from snailps.abi._wire_types cimport WIRE_FLOAT32
from snailps.shard._context cimport WAITS_BYTES, Context, RowRequest, is_repeated, refuse
from snailps.store.core._clock_buffer cimport (
    BROKEN_MEMORY, SEAL_BROKEN, SEAL_CLOSED, SEAL_FUTURE, SEAL_OK, SEAL_REFUSED, SEAL_SLOTS,
    STAGE_FUTURE, STAGE_OK, STAGE_SEALED, STAGE_SLOT, Slot, Slots, Staged, Sums, slot_at, slots_check,
    slots_lack, slots_refuse, slots_scale, slots_seal, slots_stage, staged_bytes_of, staged_give,
    staged_new,
)
from snailps.store.tables cimport Table, store_set_mark
from snailps.transport._frame cimport (
    KIND_REACHED, KIND_SEALED, OPTION_CLOCK, OPTIONS_KNOWN, SLOTS_MAX, ClockHead, FrameHeader,
    GroupHead,
)
from snailps.transport.loop._handler cimport OUTCOME_PARK, OUTCOME_REPLY, Outcome, Reply
from snailps.transport.loop._replication_stream cimport stream_has


# --- waiting -------------------------------------------------------------------------------------

cdef const char *_waits_for(Context *me) noexcept nogil:
    """Returns what the present clock lacks, in a buffer that stays right while requests point to it."""
    cdef const Slots *s = me.slots
    if me.waits_clock != s.clock or me.waits_sealed != s.sealed + 1:
        me.waits_clock = s.clock
        me.waits_sealed = s.sealed + 1
        slots_lack(s, me.waits, WAITS_BYTES)
    return me.waits


cdef const char *clock_not_shown() noexcept nogil:
    """Returns what a request waits for while clients may not see the present clock yet."""
    return b"the standby of this shard, which has not acknowledged the end of the clock before"


cdef bint _reached(Context *me, uint64_t clock, Reply *reply) noexcept nogil:
    """Whether all lower clocks are applied, here and at the standby; else `reply` says what is waited for.

    A client that sees a clock pushes to it, so no client may see a clock before the standby has it.  A
    standby promoted without the end of the clock before would park such a push, and after it the seal
    of a worker that the clock before still needs: nothing would ever go on.
    """
    reply.limit_s = me.clock_limit_s
    if clock > me.slots.clock:
        reply.reason = _waits_for(me)
    elif stream_has(me.stream, me.primary.clock_until):
        return True
    else:
        reply.reason = clock_not_shown()
    return False


cdef void refuse_broken(Context *me, char *out, Reply *reply) noexcept nogil:
    """Refuses a request because no clock can be applied any more; a caller may add the reason."""
    refuse(out, reply, b"memory" if me.slots.broken == BROKEN_MEMORY else b"access",
           b"clock %llu could not be applied, so no other can be: the server has no memory left, "
           b"or an access method failed", me.slots.clock, 0)


cdef bint awaits_clock(Context *me, const FrameHeader *head, const char *body,
                       Reply *reply) noexcept nogil:
    """Whether a PULL has to wait for its clock; then `reply` says for what."""
    cdef uint32_t options
    if head.body_bytes < sizeof(GroupHead) + sizeof(ClockHead):
        return False
    options = (<const GroupHead *>body).options
    if not options & OPTION_CLOCK or options & ~<uint32_t>OPTIONS_KNOWN:
        return False
    return not _reached(me, (<const ClockHead *>(body + sizeof(GroupHead))).clock, reply)


cdef bint came_late(Context *me, const RowRequest *asked, char *out, Reply *reply) noexcept nogil:
    """Whether the clock of a PULL is over, so that its rows have changed; then `reply` is a refusal.

    If clocks may be closed without some slots, a late pull gets the present rows: a contribution
    computed from them does not count anyway.
    """
    if not asked.options & OPTION_CLOCK or asked.clock >= me.slots.clock or me.slots.early:
        return False
    refuse(out, reply, b"late", b"the rows of clock %llu have changed, this is clock %llu: another "
           b"incarnation has sealed the slot that needed them", asked.clock, me.slots.clock)
    return True


cdef Outcome reach(Context *me, const FrameHeader *head, const char *body, char *out,
                   Reply *reply) noexcept nogil:
    cdef const ClockHead *ask = <const ClockHead *>body
    if head.body_bytes != sizeof(ClockHead):
        return refuse(out, reply, b"length", b"REACH body of %llu bytes, %llu expected",
                      head.body_bytes, sizeof(ClockHead))
    if ask.slot or ask.slots:
        return refuse(out, reply, b"clock", b"REACH names a clock and no slot: got slot %llu of %llu",
                      ask.slot, ask.slots)
    if not _reached(me, ask.clock, reply):
        return OUTCOME_PARK
    reply.kind = KIND_REACHED
    return OUTCOME_REPLY


# --- contributions -------------------------------------------------------------------------------

cdef bint _is_new(Context *me, const RowRequest *asked, uint64_t incarnation,
                  uint32_t *keys, uint32_t *groups) noexcept nogil:
    """Counts keys and groups of fragments that lack this part; False: it is a repetition."""
    cdef uint32_t g
    keys[0] = groups[0] = 0
    for g in range(asked.group_num):
        if not is_repeated(me, asked.groups[g].fragment, incarnation, asked.seq):
            keys[0] += asked.groups[g].keys
            groups[0] += 1
    return groups[0] > 0


cdef bint _is_wanted(Context *me, const FrameHeader *head, const RowRequest *asked, bint new,
                     char *out, Reply *reply) noexcept nogil:
    """Whether a contribution is to be staged.  If not, `reply` is a refusal, or unchanged: no error."""
    cdef int code = slots_check(me.slots, asked.clock, asked.slot, head.incarnation)
    if code == STAGE_FUTURE:
        refuse(out, reply, b"clock", b"a push to clock %llu, which has not come (this is clock %llu): "
               b"wait with reach() before training", asked.clock, me.slots.clock)
    elif code == STAGE_SLOT:
        refuse(out, reply, b"clock", b"a push to slot %llu of a clock of %llu slots", asked.slot,
               me.slots.slots)
    elif code == STAGE_SEALED and new:
        refuse(out, reply, b"clock", b"a push to slot %llu of clock %llu after its seal: push first, "
               b"then seal", asked.slot, asked.clock)
    elif code == STAGE_OK and new:
        return True
    elif new:
        me.slots.dropped += 1
    else:
        me.repeated += 1
    return False


cdef void _fill_part(Context *me, const RowRequest *asked, uint64_t incarnation,
                     Staged *part) noexcept nogil:
    """Copies the groups whose fragments lack this part, values as float32."""
    cdef const char *values = asked.values
    cdef uint64_t *keys = part.keys
    cdef float *to = part.values
    cdef uint32_t at = 0
    cdef uint32_t run = 0
    cdef uint32_t g, n, i
    for g in range(asked.group_num):
        n = asked.groups[g].keys
        if not is_repeated(me, asked.groups[g].fragment, incarnation, asked.seq):
            part.runs[run].fragment = asked.groups[g].fragment
            part.runs[run].keys = n
            run += 1
            memcpy(keys, asked.keys + at, n * <uint64_t>8)
            keys += n
            if asked.wire == WIRE_FLOAT32:
                memcpy(to, values, n * <uint64_t>asked.row_bytes)
            else:
                for i in range(n):
                    me.wire.widen[asked.wire](values + i * <uint64_t>asked.row_bytes,
                                              to + i * <uint64_t>asked.floats, asked.floats)
            to += n * <uint64_t>asked.floats
        at += n
        values += n * <uint64_t>asked.row_bytes


cdef bint _no_room(Context *me, const FrameHeader *head, const RowRequest *asked, uint64_t need,
                   char *out, Reply *reply) noexcept nogil:
    """Refuses a part that does not fit, and has its slot refuse a seal: the contribution is incomplete."""
    slots_refuse(me.slots, asked.slot, head.incarnation)
    if need == 0:
        refuse(out, reply, b"memory", b"the server has no memory left for slot %llu of clock %llu",
               asked.slot, asked.clock)
    else:
        refuse(out, reply, b"staged", b"%llu bytes would be staged for one clock, limit %llu a shard: "
               b"use smaller micro-batches or fewer a clock, or more shards",
               me.slots.bytes + need, me.slots.bytes_max)
    return False


cdef bint stage(Context *me, Table *table, const FrameHeader *head, const RowRequest *asked,
                bint state, char *out, Reply *reply) noexcept nogil:
    """Stages a contribution until its clock is closed; False = `reply` is a refusal."""
    cdef Staged *part
    cdef Slot *slot
    cdef Sums *sums
    cdef uint32_t keys, groups, g
    cdef uint64_t need
    if not _is_wanted(me, head, asked, _is_new(me, asked, head.incarnation, &keys, &groups), out, reply):
        return reply.body_bytes == 0
    need = staged_bytes_of(keys, groups, asked.floats)
    if me.slots.bytes + need > me.slots.bytes_max:
        return _no_room(me, head, asked, need, out, reply)
    sums = slots_scale(me.slots, table, state, asked.lr_scale)
    if sums == NULL:
        return _no_room(me, head, asked, 0, out, reply)
    if sums.lr_scale != asked.lr_scale:
        slots_refuse(me.slots, asked.slot, head.incarnation)
        refuse(out, reply, b"clock", b"contributions to table %llu in clock %llu scale its step size by "
               b"different numbers: it takes one step a clock", head.table, asked.clock)
        return False
    slot = slot_at(me.slots, asked.slot)
    part = staged_new(me.slots, keys, groups, asked.floats)
    if slot == NULL or part == NULL:
        if part != NULL:
            staged_give(me.slots, part)
        return _no_room(me, head, asked, 0, out, reply)
    _fill_part(me, asked, head.incarnation, part)
    part.table = table
    part.incarnation = head.incarnation
    part.state = state
    for g in range(asked.group_num):
        if store_set_mark(me.shard, asked.groups[g].fragment, head.incarnation, asked.seq) < 0:
            staged_give(me.slots, part)
            return _no_room(me, head, asked, 0, out, reply)
    slots_stage(me.slots, slot, part)
    return True


# --- seals ---------------------------------------------------------------------------------------

cdef int seal(Context *me, const FrameHeader *head, const char *body, char *out,
              Reply *reply) noexcept nogil:
    """Seals a slot; returns the result of `slots_seal`.  A caller may add to a refusal with SEAL_BROKEN."""
    cdef const ClockHead *ask = <const ClockHead *>body
    cdef int code
    if head.body_bytes != sizeof(ClockHead):
        refuse(out, reply, b"length", b"SEAL body of %llu bytes, %llu expected", head.body_bytes,
               sizeof(ClockHead))
        return SEAL_OK
    if ask.slot >= ask.slots or ask.slots > SLOTS_MAX or head.incarnation == 0:
        refuse(out, reply, b"clock", b"a seal of slot %llu of %llu: slots are numbered from 0, a clock "
               b"has 1 to 4096, and a seal an incarnation", ask.slot, ask.slots)
        return SEAL_OK
    code = slots_seal(me.slots, me.shard, ask.clock, ask.slot, ask.slots, head.incarnation)
    if code == SEAL_FUTURE:
        refuse(out, reply, b"clock", b"a seal of clock %llu, which has not come: this is clock %llu",
               ask.clock, me.slots.clock)
    elif code == SEAL_SLOTS:
        refuse(out, reply, b"clock", b"a seal says that the clock has %llu slots, others said %llu (0: "
               b"pushes named higher ones)", ask.slots, me.slots.slots)
    elif code == SEAL_REFUSED:
        refuse(out, reply, b"clock", b"slot %llu of clock %llu cannot be sealed: a push to it was "
               b"refused", ask.slot, ask.clock)
    elif code == SEAL_BROKEN:
        refuse_broken(me, out, reply)
    else:
        reply.kind = KIND_SEALED
        reply.wake = code == SEAL_CLOSED
    return code
