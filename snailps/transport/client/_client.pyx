# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The fan-out client: pulls and pushes of many keys, spread over all shards at once.

    keys -> fragment (counting sort) -> parts of about 64 KiB -> one connection a shard
    replies, in any order -> scattered to their place in the caller's array
    sparse examples -> each shard its entries -> partial products, added up; dL/dZ -> all of them

Here are the calls; what they do:

    `_pending`           requests: made from arrays, kept until their caller has the answer
    `_connections`       connections: who serves them, how lost ones are made again; threads
    `_link`              one connection: requests, parts, sending, receiving; rows and bodies
      `_error_feedback`  residues: what rounding took from pushed values
    `_product_batch`     a batch through a table: sorting, bodies
    `_request`           a request, and its keys in order of shard and fragment

Everything but calls, checks and the start of threads runs without the GIL.  Must not know models or
the cluster: it is given a function that connects to a shard, and the route as an array.

What holds
----------
* Requests to a shard go out in the order of the calls, but for pulls with `ahead` or a clock.  A pull
  called after a push sees it.  A pull called before a push does not see it, unless it had to be sent
  again or waited at the shard; the mark that comes with a row says which pushes it contains
  (`Client.correct`).
* After a lost connection every unanswered part is sent again, in the original order and with its
  original number, before anything new: no push is lost, and none is applied twice.
* One loop sends and receives, and parts are built only when the socket takes them: memory does not
  grow with what is outstanding.
* A pull at a clock waits at the shards until the clock has come, and has no order among other
  requests.  Pushes to a slot of a clock and the seal after them keep their order.
* A batch that went forward with `keep` is kept until it has gone back: a shard that does not know it
  (any more) gets it again.
* Arrays given to an asynchronous call must not change until it is done.
"""

import itertools
import struct
from collections import deque

import numpy as np

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset

from snailps.errors import MisuseError, ProtocolError
from snailps.transport.client._pending import Forward, Pending  # re-exported

from snailps.transport._frame cimport (
    KIND_PULL, KIND_PUSH, KIND_REACH, KIND_SCAN, KIND_SEAL, OPTION_STATE, SCAN_FRAGMENTS_MAX,
)
from snailps.transport._posix cimport load_flag
from snailps.transport.client._connections cimport Connections
from snailps.transport.client._link cimport Core
from snailps.transport.client._pending cimport (
    Forward as CForward, Pending as CPending, PendingRequests, ask_all, ask_backward, ask_forward,
    ask_one, ask_rows, reply_of, take_rows,
)
from snailps.transport.client._request cimport Request, add_newer

_SCAN = struct.Struct("<QIIII")     # ScanHead and ScannedHead of _frame.pxd
_SCANNED = struct.Struct("<QIIII")
cdef object FLOAT32 = np.dtype(np.float32)

SCANS_AHEAD = 16
"""Ranges of fragments that `Client.scan` asks for at once: replies of up to 16 MiB."""


class _Walk:
    """The scan of the fragments from `fragment` on, below `end`, all of one shard."""

    __slots__ = ("fragment", "end", "cursor", "pending", "epoch", "seen", "known")

    def __init__(self, fragment, end):
        self.fragment, self.end, self.cursor = fragment, end, 0
        self.pending, self.epoch = None, 0
        self.seen = []              # keys of the pieces that `fragment`, begun, was in
        self.known = None           # keys that were yielded before the walk began it anew, or None

    def begin_anew(self):
        """Begin the fragment anew, and skip the rows that were yielded."""
        self.cursor = 0
        if self.seen:
            self.known = np.concatenate(self.seen)

    def go_on(self, fragment, cursor, keys):
        """Take the place after a piece with `keys`; return the number of fragments it has ended."""
        ended = fragment - self.fragment
        if ended:
            self.seen, self.known = [], None
        if cursor:
            self.seen.append(keys.copy())       # `keys` would keep all of its reply
        self.fragment, self.cursor = fragment, cursor
        return ended


def _walks(fragments, owner):
    """Return walks of ranges of all `fragments`, shards in turn."""
    wanted = np.sort(np.fromiter(fragments, np.int64))
    for fragment in wanted[(wanted < 0) | (wanted >= len(owner))]:
        raise MisuseError(f"no fragment {fragment}: the route has {len(owner)}")
    longest = min(-(-len(wanted) // SCANS_AHEAD), SCAN_FRAGMENTS_MAX)
    owners = owner[wanted]
    edges = np.flatnonzero((np.diff(wanted) != 1) | (np.diff(owners) != 0)) + 1
    of_shard = {}
    for run in np.split(wanted, edges):
        for first in range(0, len(run), longest or 1):
            begin = int(run[first])
            end = begin + min(longest, len(run) - first)
            of_shard.setdefault(owner[begin], []).append(_Walk(begin, end))
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*of_shard.values()))
    return [walk for walk in in_turn if walk is not None]


def _scanned(reply, walk, table, dim):
    """Return fragment, cursor, keys and rows of a SCANNED; the arrays are views of the reply."""
    head_bytes = _SCANNED.size
    if len(reply) < head_bytes:
        raise ProtocolError(f"SCANNED of {len(reply):,} bytes has no head", "length")
    cursor, fragment, n, width, _ = _SCANNED.unpack_from(reply)
    if width != dim:
        raise MisuseError(f"rows of table {table} have {width:,} floats, not {dim:,}")
    if len(reply) != (head_bytes + n * (8 + 4 * dim) + 7) & ~7:
        raise ProtocolError(f"SCANNED of {len(reply):,} bytes does not hold {n:,} rows of {dim:,} "
                            "floats", "length")
    is_within = walk.fragment <= fragment < walk.end or (fragment == walk.end and not cursor)
    if not is_within or (fragment, cursor) == (walk.fragment, walk.cursor):     # or would ask for ever
        raise ProtocolError(f"SCANNED goes on at fragment {fragment}, SCAN asked for {walk.fragment} "
                            f"to {walk.end - 1}", "fragment")
    return (fragment, cursor, np.frombuffer(reply, "<u8", n, head_bytes),
            np.frombuffer(reply, "<f4", n * dim, head_bytes + 8 * n).reshape(n, dim))


cdef class Client:
    """Pulls from and pushes to all shards of a cluster.  Thread-safe; calls of one thread keep
    their order.

    ``connect(shard)`` returns the descriptor of an authenticated socket, which the client then owns.
    It runs in helper threads, several at a time, and is called again until `failover_s` is over (0:
    the first failure ends the client), so it should give up soon.  `names`: of shards, for messages.
    `owner` uint32[frag_num]: the shard of each fragment.  `wire_ops`: of `abi.loops`; without
    it rows travel as float32 only.

    An incarnation has one client: shards know a push by (incarnation, number), and two clients would
    use the same numbers.
    """

    cdef Connections connections
    cdef PendingRequests requests
    cdef readonly list names  # type: list[str]
    cdef readonly double timeout_s

    def __cinit__(self, connect: Callable[[int], int], names: Sequence[str],
                  owner: NDArray[np.generic], uint32_t epoch, uint64_t job, uint64_t incarnation,
                  double timeout_s=60.0, wire_ops: object = None, double failover_s=0.0):
        self.names, self.timeout_s = list(names), timeout_s
        self.connections = Connections(connect, names, owner, epoch, job, incarnation, wire_ops,
                                       failover_s)
        self.requests = PendingRequests(self.connections, timeout_s)

    def start(self) -> None:
        """Connect to every shard, then serve requests.  If `connect` raises, nothing stays open."""
        self.connections.start(self.requests)

    def close(self) -> None:
        """End the threads and close the connections; open requests fail.  Idempotent."""
        self.connections.close()

    def fail(self, text: str) -> None:
        """Fail every request, now and later, with `ConnectionLost(text)`."""
        self.connections.fail(text)

    def reroute(self, uint32_t epoch, names: Sequence[str]) -> None:
        """Take a new route; `connect` must know its addresses already.

        Working connections stay as they are; lost ones are tried at once.
        """
        self.connections.reroute(epoch, names)
        self.names = list(names)

    def know_tables(self, tables: Mapping[int, tuple[str, bool]]) -> None:
        """Take declarations of tables: number -> (name, whether pushed values must be finite).

        Other tables are named by their numbers in messages, and take finite values only.
        """
        self.requests.tables.update(tables)

    def pull_async(self, uint32_t table, keys: NDArray[np.uint64], rows: NDArray[np.float32],
                   bint state=False, int wire=0, bint ahead=False, int64_t clock=-1) -> Pending:
        """Start a pull of `keys` (copied; may repeat) into `rows` float32[n, dim], contiguous, of
        any stride.

        `state`: rows are weights and optimiser state, dim + state wide, as float32 only.  `wire`: one
        of `abi.loops.WIRE_TYPES`.  `ahead`: overtake pushes that wait for the socket; `correct` then
        adds what the rows lack.  `clock` of 0 or more: the rows once all lower clocks are applied.
        The shards let such a pull wait; it may overtake pushes, and `flush` does not wait for it.  A
        clock that is over is refused (`RemoteError`, code ``late``), unless clocks are closed by
        command: then another incarnation has sealed the slot.
        """
        return ask_rows(self.requests, KIND_PULL, table, keys, rows, state, False, wire, False, True, False,
                        ahead, clock, 0, 1, False)

    def push_async(self, uint32_t table, keys: NDArray[np.uint64], values: NDArray[np.float32],
                   bint state=False, bint merge=False, int wire=0, bint feedback=True,
                   bint coarse=True, int64_t clock=-1, uint32_t slot=0, float lr_scale=1,
                   bint assign=False) -> Pending:
        """Start a push of `values` float32[n, dim], which must not change until it is done.

        Each value is applied exactly once.  `state`: differences of weights and state, as float32
        only.  `merge`: sum the values of a repeated key first; else they are applied one after the
        other.  `feedback`: add to a key's next push what rounding to `wire` took.  Values beyond the
        range of `wire` make the whole push float32; without `coarse` so does a row whose values are
        all below 2^-14, where float16 loses digits.  `clock` of 0 or more: a contribution to `slot`
        (0 to 4,095), kept until all slots are sealed; void if the clock is applied, or another
        incarnation has sealed the slot.  `lr_scale` multiplies the step size, and is equal in all
        contributions of a clock to a table; unless 1 it takes 8 bytes a part.  `assign`: the values
        replace the rows, the last one of a repeated key; float32, without a clock.  NotFinite: a
        value is NaN or infinite, and nothing was sent.
        """
        return ask_rows(self.requests, KIND_PUSH, table, keys, values, state, merge, wire, feedback,
                        coarse, False, False, clock, slot, lr_scale, assign)

    def pull(self, uint32_t table, keys: NDArray[np.uint64], rows: NDArray[np.float32],
             bint state=False, int wire=0, int64_t clock=-1) -> NDArray[np.float32]:
        """`pull_async` and `wait`, some microseconds faster."""
        return self.requests.wait_here(
            ask_rows(self.requests, KIND_PULL, table, keys, rows, state, False, wire, False, True, True,
                     False, clock, 0, 1, False))

    def push(self, uint32_t table, keys: NDArray[np.uint64], values: NDArray[np.float32],
             bint state=False, bint merge=False, int wire=0, bint feedback=True, bint coarse=True,
             int64_t clock=-1, uint32_t slot=0, float lr_scale=1) -> None:
        """`push_async` and `wait`, some microseconds faster."""
        self.requests.wait_here(
            ask_rows(self.requests, KIND_PUSH, table, keys, values, state, merge, wire, feedback, coarse,
                     True, False, clock, slot, lr_scale, False))

    def seal_async(self, int64_t clock, uint32_t slot, uint32_t slots) -> Pending:
        """Report to every shard that `slot` of `slots` (1 to 4,096) has all its contributions.

        At a shard the first incarnation that seals a slot counts; pushes of others to that slot are
        dropped.  The last seal applies the clock: contributions to a row are summed in the order of
        slots, and applied once.  Wait for the pushes first: a refused push is known only then.
        """
        return ask_all(self.requests, KIND_SEAL, clock, slot, slots)

    def reach_async(self, int64_t clock) -> Pending:
        """Start a wait until each shard has applied all clocks below `clock`; may overtake anything."""
        return ask_all(self.requests, KIND_REACH, clock, 0, 0)

    def forward_async(self, uint32_t table, ptr: NDArray[np.int64], keys: NDArray[np.uint64],
                      values: NDArray[np.float32] | None, uint32_t dim, int wire=0,
                      bint keep=True, bint stored=False) -> Forward:
        """Start ``Z[i] = sum of values[k] * W[keys[k]], k in ptr[i]..ptr[i + 1] - 1`` at the
        shards.

        CSR, copied: ptr int64[m + 1], keys uint64[nnz], values float32[nnz] or None for ones.  The
        access method must be a built-in one other than ``average``.  Rows that were never pushed
        count as their first value, with `stored` as 0.  The product sees all pushes called before.
        `keep`: shards keep the batch for `backward_async`, at most 8 batches of a client and 256 MiB.
        MisuseError: wrong arrays, or more than 65,536 entries of an example at a shard.  NotFinite:
        a value is NaN or infinite, with `keep`.
        """
        return ask_forward(self.requests, table, ptr, keys, values, dim, wire, keep,
                           stored)

    def backward_async(self, CForward forward, gradient: NDArray[np.float32], int wire=0,
                       float lr_scale=1) -> Pending:
        """Send dL/dZ float32[m, dim] of a kept `forward`, once; shards update the rows of the batch.

        The gradient of a row is summed over the batch and applied once, in the order of this client's
        pushes.  `gradient` must not change until done.  A narrow `wire` is scaled so that the largest
        magnitude is between 1 and 2.
        """
        return ask_backward(self.requests, forward, gradient, wire, lr_scale)

    def cork(self) -> None:
        """Hold back asynchronous calls of this thread until `uncork`; nests.

        They are sent when a caller waits, a reply comes, or the cork ends: several requests in one
        packet, and one wake-up of the client's thread.
        """
        self.requests.cork()

    def uncork(self) -> None:
        """End a `cork`; the last one sends what was held back."""
        if not self.requests.uncork():
            raise MisuseError("uncork() without cork()")

    def scan(self, uint32_t table, uint32_t dim, fragments: Iterable[int],
             ended: Callable[[int], object] | None = None) -> Iterator[tuple[
            NDArray[np.uint64], NDArray[np.float32]]]:
        """Yield (keys, rows) of all stored rows of fragments, in pieces of up to 1 MiB.

        Neighbouring fragments of a shard are read by one request; `SCANS_AHEAD` are open at once.
        `ended` is called after a piece with the number of fragments of which it was the last one.  A
        cursor is a place in one shard's memory, and means nothing at a promoted standby: with a new
        route a fragment begins anew, and rows that were yielded are skipped.
        """
        cdef Core *core = self.connections.core
        owner = (<const char *>core.order.owner)[:core.order.frag_num * sizeof(uint32_t)]
        to_begin = iter(_walks(fragments, np.frombuffer(owner, np.uint32)))
        under_way = deque()
        try:
            while True:
                if len(under_way) <= SCANS_AHEAD // 2:  # several at once: most ranges have few rows
                    self.cork()
                    try:
                        for walk in itertools.islice(to_begin, SCANS_AHEAD - len(under_way)):
                            under_way.append(self._ask_scan(walk, table))
                    finally:
                        self.uncork()
                if not under_way:
                    return
                walk = under_way.popleft()
                (<CPending>walk.pending).wait()
                fragment, cursor, keys, rows = _scanned(reply_of(walk.pending), walk, table, dim)
                if walk.epoch != self.connections.core.epoch and (cursor or walk.cursor):
                    walk.begin_anew()
                    under_way.append(self._ask_scan(walk, table))
                    continue
                if walk.known is not None:
                    fresh = ~np.isin(keys, walk.known)
                    keys, rows = keys[fresh], rows[fresh]
                fragments_ended = walk.go_on(fragment, cursor, keys)
                if walk.fragment < walk.end:
                    under_way.append(self._ask_scan(walk, table))
                if len(keys):
                    yield keys, rows
                if fragments_ended and ended is not None:
                    ended(fragments_ended)
        finally:
            for walk in under_way:
                walk.pending.abandon()

    def _ask_scan(self, walk, table):
        if not walk.cursor:                     # else the cursor is of the route that it came by
            walk.epoch = self.connections.core.epoch
        walk.pending = ask_one(self.requests, self.connections.core.order.owner[<uint32_t>walk.fragment],
                               KIND_SCAN, table,
                               _SCAN.pack(walk.cursor, walk.fragment, walk.end, 0xFFFFFFFF, 0))
        return walk

    def correct(self, CPending pull, CPending push, base: NDArray[np.float32] | None = None) -> int:
        """Add to pulled rows what a `push` of this client added after they were read; return their number.

        A reply has, for each fragment, the highest push of this client that its rows contain.  A key
        of `pull` that is in a later `push` gets the pushed value added, and so does its row of
        `base`, float32[n, dim], a copy of the pulled rows.  Only for access method `add`, for floats, and
        for pulls and pushes with state.  `pull` must be done; `push` came after it, or before a pull with
        `ahead`.  A hash join without the GIL; where no row lacks anything, it only compares marks.
        """
        cdef Request *a = pull.request
        cdef Request *b = push.request
        cdef Request where              # of `base`
        cdef char *second = NULL
        cdef size_t second_stride = 0
        cdef int64_t corrected
        if not load_flag(&a.done) or a.failed or a.kind != KIND_PULL or b.kind != KIND_PUSH \
                or a.table != b.table or a.dim != b.dim \
                or (a.options ^ b.options) & OPTION_STATE \
                or b.later != NULL or pull.rows.dtype != FLOAT32 \
                or pull.requests is not self.requests or push.requests is not self.requests:
            raise MisuseError("correct() wants a finished pull and a push of the same table of floats, "
                              "both of this client")
        if base is not None:
            if base.dtype != FLOAT32:
                raise MisuseError(f"base must be a float32 array, got one of {base.dtype}")
            memset(&where, 0, sizeof(Request))
            where.n = a.n
            take_rows(&where, base, True, True)
            if where.dim != a.dim:
                raise MisuseError(f"base has rows of {where.dim} floats, the pull of {a.dim}")
            second = where.rows
            second_stride = where.row_stride
        with nogil:
            corrected = add_newer(&self.connections.core.order, a, b, second, second_stride)
        if corrected < 0:
            raise MemoryError
        return corrected

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every request so far is answered; raise the first error of a push or seal.

        It does not wait for requests at a clock, nor for abandoned pulls.  `timeout_s` limits the
        whole wait; WaitTimeout then.
        """
        self.requests.flush(timeout_s)

    def open_pushes(self) -> list[Pending]:
        """Return unanswered pushes and batches on their way back."""
        return self.requests.open_pushes()

    def waits(self) -> list[list[Any]]:
        """Return [request, shards without an answer, seconds] of up to three requests older than a
        second, oldest first.  For any thread."""
        return self.requests.waits()

    def drop_residues(self) -> None:
        """Forget all rounding residues, of tables that get no more pushes."""
        self.connections.drop_residues()

    @property
    def residue_bytes(self) -> int:
        """Bytes of rounding residues of all tables."""
        return self.connections.residue_bytes

    @property
    def residue_bytes_max(self) -> int:
        """Limit of `residue_bytes`: beyond it the residues of the table used least recently go."""
        return self.connections.residue_bytes_max

    @residue_bytes_max.setter
    def residue_bytes_max(self, uint64_t most):
        self.connections.residue_bytes_max = most

    def goodput(self) -> tuple[int, float]:
        """Return bytes moved both ways, and seconds, of busy times long enough to measure a speed."""
        return self.connections.goodput()

    def counters(self) -> dict[str, Any]:
        """Return counts since the start: bytes, rows, parts, reconnects; and `open` requests now."""
        return self.connections.counters()

    def cut(self, uint32_t shard) -> None:
        """Break the connection to a shard; the next one goes to the address in the route."""
        self.connections.cut(shard)
