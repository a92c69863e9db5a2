# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled half of a shard: its store, the state of its C code, and single steps of replication.

    ShardLoop -> Handler -> `_requests`, `_standby`, `_primary` -> store
    Shard (Python) -> ShardCore -> the same structs

Owns the store, the `Context` and their memory.  `shard.py` decides what a role or a stream means for
them.  One thread calls all of it.
"""

import numpy as np

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from snailps.abi._row_ops cimport ACCESS_PYTHON
from snailps.abi._wire_types cimport WireOps
from snailps.shard._clock_requests cimport clock_not_shown
from snailps.shard._connection_memory cimport columns_free
from snailps.shard._context cimport (
    FRAGMENT_EXPECTED, FRAGMENT_WHOLE, ROLE_PRIMARY, ROLE_STANDBY, ROLE_YIELDED,
    ROOM_BYTES, Context, Primary, Standby,
)
from snailps.shard._fences cimport (
    FENCED_MAX, Fences, fences_add, fences_before, fences_room,
)
from snailps.shard._primary cimport (
    force_sync, held_until, replicate_order, replicate_retention, replicate_rows, seed, show_clock,
    unpin,
)
from snailps.shard._python_methods cimport PythonMethods, python_sums
from snailps.shard._requests cimport forget, handle
from snailps.shard._standby cimport replay, standby_free
from snailps.store._store cimport ShardStore
from snailps.store.tables cimport (
    Table, store_table, store_unmark,
)
from snailps.transport._frame cimport ROW_BYTES_MAX
from snailps.transport.loop._fault_injection cimport (
    FAULT_NO_FENCE, FAULT_NO_HOLD, FAULT_NO_MARKS, POINT_ACKNOWLEDGED, POINT_APPLIED, POINT_MID_SEND,
    POINT_NONE, POINT_PROMOTED, POINT_REPLAYED, SNAIL_FAULTS, Faults, leaves_out, passes,
)
from snailps.transport.loop._handler cimport Handler
from snailps.transport.loop._loop cimport ShardLoop
from snailps.transport.loop._replication_stream cimport (
    STREAM_LOST, STREAM_NONE, STREAM_READY, STREAM_SEEDING, Stream, stream_has, stream_waiting,
)

from snailps.errors import MisuseError, SnailError
from snailps.registry import fill
from snailps.store._store import checked
from snailps.store.checkpoint._sections import put_section, read_section

fill("server_products")                 # now: a request comes without the GIL

ROW_FLOATS_MAX = ROW_BYTES_MAX // 4
STATE_FLOATS_MAX = 2 * ROW_FLOATS_MAX + 1   # a row with its state is still one body
ROLES = {ROLE_PRIMARY: "primary", ROLE_STANDBY: "standby", ROLE_YIELDED: "yielded"}
ROLE_NUMBERS = {name: number for number, name in ROLES.items()}
STATES = {STREAM_NONE: "none", STREAM_SEEDING: "seeding", STREAM_READY: "ready",
          STREAM_LOST: "lost"}
FAULTS = {"no-hold": FAULT_NO_HOLD, "no-marks": FAULT_NO_MARKS, "no-fence": FAULT_NO_FENCE}
POINTS = {"": POINT_NONE, "mid-send": POINT_MID_SEND, "applied": POINT_APPLIED,
          "acknowledged": POINT_ACKNOWLEDGED, "replayed": POINT_REPLAYED, "promoted": POINT_PROMOTED}


cdef class ShardCore:
    """The store of one shard, its role, and the state of its C code.

    `loop` serves it, and keeps it alive until the loop has ended.  `obey` is called with each order
    in a primary's stream.
    """

    def __init__(self, ShardLoop loop, row_ops: object, wire_ops: object, int frag_num,
                 double clock_limit_s, staged_bytes_max: int, bint standby,
                 obey: Callable[[bytes], None]):
        self.loop = loop
        self.store = ShardStore(frag_num, row_ops)
        self.store.limit_staged(staged_bytes_max)
        self.methods = PythonMethods()
        self.methods.store = self.store
        self.methods.obey = obey
        self.methods.context = &self.context
        self.store.slots.apply_elsewhere = python_sums
        self.store.slots.door = <void *>self.methods
        memset(&self.context, 0, sizeof(Context))
        self.context.methods = <void *>self.methods
        self.context.stream = loop.stream()
        self.context.faults = loop.faults()
        self.context.shard = self.store.shard
        self.context.slots = &self.store.slots
        self.context.clock_limit_s = clock_limit_s
        self.context.frag_num = frag_num
        self.context.role = ROLE_STANDBY if standby else ROLE_PRIMARY
        self.context.all_new = standby
        self.wire_ops = wire_ops
        self.context.wire = <const WireOps *>PyCapsule_GetPointer(wire_ops, "snailps.wire_ops")
        self.context.keys = <uint64_t *>malloc(ROOM_BYTES)
        self.context.rows = <float *>malloc(ROOM_BYTES)
        self.context.first = <float *>malloc(ROOM_BYTES)
        if self.context.keys == NULL or self.context.rows == NULL or self.context.first == NULL:
            raise MemoryError
        self.handler.context = &self.context
        self.handler.handle = handle
        self.handler.forget = forget
        self.handler.replay = replay
        self.handler.seed = seed
        loop.set_handler(&self.handler, self)

    def __dealloc__(self):
        free(self.context.keys)
        free(self.context.rows)
        free(self.context.first)
        columns_free(&self.context.columns)
        free(self.context.fenced.spans)
        free(self.context.primary.fragments)
        free(self.context.primary.copied)
        standby_free(&self.context.standby)

    def close(self) -> None:
        """Execute no further order of a stream.

        It breaks the reference cycle, so that the rows are freed with the last reference and not by a
        garbage collection some time later.
        """
        self.methods.obey = None

    # --- tables and clocks

    def add_table(self, number: int, dim: int, access: int, init: int, scale: float, seed: int,
                  hyper: Sequence[float], track: int = 0,
                  retention: tuple[int, int, int, int] = (0, 0, 0, 0), finite: bool = True,
                  method: snailps.api.access_method.AccessMethod | None = None) -> None:
        """Add a table; `method`: for an access method in Python, an instance for this shard alone.

        MisuseError: rows wider than a part of a pull or push, or `method` missing or not needed.
        """
        if not 1 <= dim <= ROW_FLOATS_MAX:
            raise MisuseError(f"rows of {dim:,} floats, 1 to {ROW_FLOATS_MAX:,} expected")
        if (access == ACCESS_PYTHON) != (method is not None):
            raise MisuseError(f"table {number}: only access method {ACCESS_PYTHON} needs "
                              f"an AccessMethod, got access {access} and {method!r}")
        state_floats = 0 if method is None else method.state_floats
        if type(state_floats) is not int or not 0 <= state_floats <= STATE_FLOATS_MAX:
            raise MisuseError(f"{type(method).__qualname__}.state_floats must be an integer from 0 "
                              f"to {STATE_FLOATS_MAX:,}, got {state_floats!r}")
        self.store.add_table(number, dim, access, init, scale, seed, hyper, track, retention, finite,
                             state_floats)
        if method is not None:
            self.methods.add(number, method)

    def drop_tables(self, numbers: Sequence[int]) -> None:
        """Drop tables with their rows.  Not forwarded: primary and standby get the order separately."""
        self.store.drop_tables(numbers)
        for number in numbers:
            self.methods.drop(number)

    @property
    def clock_error(self) -> Exception | None:
        """The error that an access method in Python raised when a clock was applied, or None."""
        return self.methods.clock_error

    def apply_clock(self, clock: int, early: bool) -> None:
        """Begin at `clock`: forget contributions, seals and `clock_error`."""
        self.methods.clock_error = None
        self.context.waits_sealed = 0       # `waits` describes the old clock: write it anew
        self.store.set_clock(clock, early)

    def apply_fence(self, incarnation: int, gone: Sequence[tuple[int, int]] = ()) -> None:
        """Refuse this incarnation, and all from `first` to `last` of each pair of `gone`, from now on,
        and drop their marks."""
        cdef Fences *fenced = &self.context.fenced
        cdef uint64_t first, last, unfenced
        cdef uint32_t i
        for pair in [(incarnation, incarnation), *gone]:
            first = unfenced = checked("incarnation", pair[0], 1, 2**63 - 1)
            last = checked("incarnation", pair[1], first, 2**63 - 1)
            if fenced.num >= FENCED_MAX:
                raise SnailError(f"{FENCED_MAX:,} spans of lost processes are fenced already: start the "
                                 "cluster anew, from a checkpoint")
            if fences_room(fenced) < 0:
                raise MemoryError("no memory left for fenced incarnations")
            with nogil:
                # Those fenced before have no marks, and may be many: `gone` names them each time.
                for i in range(fences_before(fenced, first), fenced.num):
                    if fenced.spans[i].first > last:
                        break
                    if fenced.spans[i].first > unfenced:
                        store_unmark(self.context.shard, unfenced, fenced.spans[i].first - 1)
                    unfenced = fenced.spans[i].last + 1
                if unfenced <= last:
                    store_unmark(self.context.shard, unfenced, last)
                fences_add(fenced, first, last)

    @property
    def fenced(self) -> list[tuple[int, int]]:
        """The fenced incarnations: the first and the last of each span, ascending."""
        cdef uint32_t i
        cdef Fences *fenced = &self.context.fenced
        return [(fenced.spans[i].first, fenced.spans[i].last) for i in range(fenced.num)]

    # --- its role

    @property
    def role(self) -> str:
        """"primary", "standby" or "yielded"."""
        return ROLES[self.context.role]

    @role.setter
    def role(self, name: str):
        self.context.role = ROLE_NUMBERS[name]

    def set_epoch(self, uint32_t epoch, bint promoted=False) -> None:
        """Take the epoch of a route.  `promoted`: it made this shard primary, so older epochs are refused."""
        self.context.epoch = epoch
        if promoted:
            self.context.epoch_min = epoch

    @property
    def yielding(self) -> bool:
        """Whether changes of rows wait, for the standby to execute them."""
        return bool(self.context.primary.yielding)

    @yielding.setter
    def yielding(self, bint yielding):
        self.context.primary.yielding = yielding

    # --- the stream to the standby

    @property
    def stream_state(self) -> str:
        """"none", "seeding", "ready" or "lost"."""
        return STATES[self.context.stream.state]

    @property
    def stream_begun(self) -> bool:
        """Whether changes of rows are forwarded."""
        return bool(self.context.stream.begun)

    @property
    def stream_idle(self) -> bool:
        """Whether the standby has acknowledged all frames."""
        return self.context.stream.sent == self.context.stream.acked

    def stream_waiting(self) -> int:
        """Return the bytes that the connection to the standby has not taken."""
        return stream_waiting(self.context.stream)

    def pace(self, bint paced) -> None:
        """Set whether copying gives way to clients' requests."""
        self.context.stream.paced = paced
        self.loop.wake()

    def begin_copy(self, bint resumes) -> None:
        """Prepare the next stream, which copies all fragments; with `resumes` none."""
        cdef Primary *mine = &self.context.primary
        cdef uint32_t i
        owned = self.store.fragments().tolist()
        free(mine.fragments)
        free(mine.copied)
        mine.fragments = <uint32_t *>malloc(4 * (<size_t>len(owned) + 1))
        mine.copied = <uint8_t *>calloc(self.context.frag_num, 1)
        if mine.fragments == NULL or mine.copied == NULL:
            raise MemoryError
        for i, fragment in enumerate(owned):
            mine.fragments[i] = fragment
        mine.fragment_num = <uint32_t>len(owned)
        mine.at = mine.fragment_num if resumes else 0
        if resumes:
            memset(mine.copied, True, self.context.frag_num)
        mine.resumes = resumes
        mine.partly = mine.pinned = False
        mine.clock_until = 0

    def is_copied(self, uint32_t fragment) -> bool:
        """Whether the present stream has begun to copy a fragment, so that changes to it are forwarded."""
        return bool(self.context.primary.copied[fragment])

    def put_section(self, section: NDArray[Any], tables: Mapping[int, int]) -> int:
        """Put a section of a checkpoint, here and at the standby; return the number of rows."""
        cdef const uint8_t[::1] view = section
        cdef Table *table
        cdef uint32_t fragment
        cdef uint64_t at, count
        rows = put_section(self.store, section, tables)
        content = read_section(section)
        fragment = content.fragment
        for piece in content.tables:
            if piece.table not in tables:
                continue
            table = store_table(self.context.shard, tables[piece.table])
            at, count = piece.at, piece.rows
            with nogil:
                replicate_rows(&self.context, table, fragment, <const char *>&view[at], count)
            if piece.counts_bytes and table.slab.retains:
                replicate_retention(&self.context, table, fragment)
        self.loop.wake()
        return rows

    def unpin(self) -> None:
        """Copy the rest of the pinned tables now: a clock is about to be applied, and changes them."""
        with nogil:
            unpin(&self.context)

    def append_order(self, bytes order) -> None:
        """Append an executed order, as JSON, to the stream."""
        replicate_order(&self.context, order, len(order))

    def show_clock(self) -> None:
        """Have clients see a clock that an order has ended, once the standby has the order."""
        if self.context.slots.clock != self.context.primary.clock:
            force_sync(&self.context)
            show_clock(&self.context, held_until(&self.context))

    # --- the stream of a primary

    @property
    def followed(self) -> bool:
        """Whether a primary's stream has begun here."""
        return bool(self.context.standby.begun)

    @property
    def seeded(self) -> bool:
        """Whether everything has come from the primary."""
        return bool(self.context.standby.seeded)

    @property
    def whole(self) -> tuple[int, int]:
        """The number of fragments that have come from the primary, and of all its fragments."""
        return self.context.standby.whole, self.context.standby.expected

    def expect(self, fragments: ArrayLike) -> None:
        """Set the fragments of a standby; it owns each once its copy has begun."""
        cdef Standby *mine = &self.context.standby
        cdef uint32_t fragment
        numbers = np.asarray(fragments, np.int64).ravel().tolist()
        if not all(0 <= f < self.context.frag_num for f in numbers):
            raise SnailError(f"a cluster with frag_num {self.context.frag_num} has no fragment "
                             f"{max(numbers)}")
        if mine.expects == NULL:
            mine.expects = <uint8_t *>calloc(self.context.frag_num, 1)
            if mine.expects == NULL:
                raise MemoryError
            for fragment in numbers:
                mine.expects[fragment] = FRAGMENT_EXPECTED
            mine.expected = <uint32_t>len(numbers)
        elif len(numbers) != mine.expected or not all([mine.expects[<uint32_t>f] for f in numbers]):
            raise MisuseError("a standby's fragments do not change: make another one")

    def follow_successor(self) -> None:
        """Make this primary a standby that has everything."""
        cdef Standby *mine = &self.context.standby
        fragments = self.store.fragments().tolist()
        memset(mine, 0, sizeof(Standby))
        self.expect(fragments)
        for fragment in fragments:
            mine.expects[<uint32_t>fragment] = FRAGMENT_WHOLE
        mine.whole = mine.expected
        mine.seeded = mine.resigned = True
        self.context.all_new = True
        self.context.role = ROLE_STANDBY

    def serve(self) -> None:
        """Make this standby, which has everything, a primary."""
        passes(self.context.faults, POINT_PROMOTED)
        self.context.role = ROLE_PRIMARY
        self.context.all_new = leaves_out(self.context.faults, FAULT_NO_MARKS)
        standby_free(&self.context.standby)
        self.context.standby.resigned = False

    # --- for people and tests

    def counters(self) -> dict[str, Any]:
        """Return counters of requests and store."""
        clock = self.store.clock_stats()
        if not stream_has(self.context.stream, self.context.primary.clock_until):
            clock["waits_for"] = clock_not_shown().decode()
        return {
            **self.store.stats(),
            **clock,
            "epoch": self.context.epoch,
            "pulls": self.context.pulls,
            "pushes": self.context.pushes,
            "repeated": self.context.repeated,
            "rows_pulled": self.context.rows_pulled,
            "rows_pushed": self.context.rows_pushed,
            "pull_bytes": self.context.pull_bytes,
            "push_bytes": self.context.push_bytes,
            "rows_scanned": self.context.rows_scanned,
            "products": self.context.products,
            "entries_summed": self.context.entries_summed,
            "rows_stepped": self.context.rows_stepped,
            "batches_unknown": self.context.batches_unknown,
        }

    def stream_stats(self, double now) -> dict[str, Any]:
        """Return counters of the stream to the standby; `now` in monotonic seconds."""
        cdef Stream *s = self.context.stream
        cdef Primary *mine = &self.context.primary
        return {
            "sync": bool(s.sync),
            "sent": s.sent,
            "acknowledged": s.acked,
            "lag_bytes": s.sent_bytes - s.acked_bytes,
            "lag_s": max(s.lag_s, now - s.probe_at if s.probe else 0.0),
            "held": s.held_num,
            "copied": <double>mine.at / max(1, mine.fragment_num),
        }

    def set_faults(self, left_out: Sequence[str], point: str, int passings) -> None:
        """Leave out a step that protects acknowledged pushes, or die at a point: for tests of recovery.

        `left_out`: "no-hold" (replies do not wait for the standby), "no-marks" (pushes are applied
        as often as they come), "no-fence" (fenced incarnations are served).  `point`: of a kill -9,
        at its passing number `passings`: "mid-send", "applied", "acknowledged" (primary),
        "replayed", "promoted" (standby).  MisuseError in wheels, which are built without.
        """
        if not SNAIL_FAULTS:
            raise MisuseError("this build of snailps injects no faults: build it in place")
        self.context.faults.left_out = sum([FAULTS[name] for name in left_out])
        self.context.faults.point = POINTS[point]
        self.context.faults.passings = passings
        if self.context.role != ROLE_STANDBY:
            self.context.all_new = "no-marks" in left_out
