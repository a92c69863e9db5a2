# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The fan-out client: pulls and pushes of many keys, spread over all shards at once.

    keys -> fragment (counting sort) -> parts of about 64 KiB -> one connection a shard
    replies, in any order -> scattered to their place in the caller's array
    sparse examples -> each shard its entries -> partial products, added up; dL/dZ -> all of them

Here are the calls; what they do:

    `_pending`           requests made from arrays, kept until their answer was seen
    `_connections`       connections, served in turns, made again when they are lost; threads
    `_link`              one connection: its requests, their parts, sending, receiving; rows and bodies
      `_error_feedback`  what rounding took from pushed values
    `_product_batch`     a batch through a table: sorting, bodies
    `_request`           a request, and its keys in order of shard and fragment

All but calls, checks and threads run without the GIL.  The client knows no models and no cluster:
how to (re)connect is a function it is given, the route an array.

What holds
----------
* Requests go out in the order of the calls, per shard, but for pulls that may go ahead.  A pull
  called after a push sees it; a pull called before a push does not, unless the shard had to be
  asked again or let it wait (the mark that comes with a row says which pushes it contains: see
  `Client.correct`).
* Nothing is forgotten before it is answered: after a lost connection every open part is sent
  again, in the original order and with its original number, before anything new.
* Sending never stops receiving: one epoll loop does both, and parts are built only when the
  socket takes them, so that memory does not grow with what is outstanding.
* A pull as of a clock waits at the shards until the clock has come and is ordered with nothing else;
  pushes to a slot of a clock, and the seal behind them, keep their order.
* A batch that went forward to be trained on is kept until it has gone back: a shard that does not
  know it (any more) gets it again.
* Arrays given to an asynchronous call must not change until it is done.
"""

import struct
from collections import deque

import numpy as np

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset

from snailps.errors import MisuseError, ProtocolError
from snailps.transport.client._pending import Forward, Pending  # re-exported

from snailps.transport._frame cimport (
    KIND_PULL, KIND_PUSH, KIND_REACH, KIND_SCAN, KIND_SEAL, OPTION_STATE,
)
from snailps.transport._posix cimport load_flag
from snailps.transport.client._connections cimport Connections
from snailps.transport.client._pending cimport (
    Forward as CForward, Pending as CPending, PendingRequests, ask_all, ask_backward, ask_forward,
    ask_one, ask_rows, reply_of, take_rows,
)
from snailps.transport.client._request cimport Request, add_newer

_SCAN = struct.Struct("<QII")       # ScanHead and ScannedHead of _frame.pxd
_SCANNED = struct.Struct("<QII")

SCANS_AHEAD = 16
"""Fragments that `Client.scan` asks for at once: replies of up to 16 MiB."""


class _Walk:
    """A fragment on its way through `Client.scan`."""

    __slots__ = ("fragment", "pending", "epoch", "seen", "known")

    def __init__(self, fragment):
        self.fragment, self.pending, self.epoch = fragment, None, 0
        self.seen = []              # keys of the pieces so far, where more are to come
        self.known = None           # of those before it began anew, or None

    def begin_anew(self):
        """All that was seen is not to come again."""
        if self.seen:
            self.known = np.concatenate(self.seen)


def _scanned(reply, table, dim):
    """Cursor, keys and rows of a SCANNED; the arrays are views of it."""
    cursor, n, width = _SCANNED.unpack_from(reply) if len(reply) >= 16 else (0, 0, dim)
    if width != dim:
        raise MisuseError(f"rows of table {table} have {width:,} floats, not {dim:,}")
    if len(reply) != (_SCANNED.size + n * (8 + 4 * dim) + 7) & ~7:
        raise ProtocolError(f"SCANNED of {len(reply):,} bytes does not hold {n:,} rows of {dim:,} "
                            "floats", "length")
    return (cursor, np.frombuffer(reply, "<u8", n, 16),
            np.frombuffer(reply, "<f4", n * dim, 16 + 8 * n).reshape(n, dim))


cdef class Client:
    """Pulls from and pushes to all shards of a cluster.

    Parameters
    ----------
    connect : callable
        ``connect(shard: int) -> int``: a connected, authenticated socket's descriptor, which the
        client owns from then on.  Called in helper threads of the client, for several shards at a
        time; an exception raised there ends the client, once `failover_s` is over.  Should give up
        soon: it is called again, and may then know another address.
    names : list of str
        What to call each shard in messages.
    owner : numpy.ndarray
        uint32 (frag_num,): shard of each fragment.
    epoch, job, incarnation : int
        Route epoch; life of the cluster; life of this process.  A push's number is unique only
        together with the incarnation, so use one client an incarnation.
    timeout_s : float
        Default limit of a wait, seconds.
    wire_ops : PyCapsule, optional
        What `snailps.kernels.wire_ops()` returns; without it rows travel as float32 only.
    failover_s : float
        How long a shard may be out of reach, seconds, until the client ends.  Until then `connect` is
        called again and again, and a shard that says that another has its place is left.  0: the
        first connection that cannot be made again is the end.

    Notes
    -----
    Thread-safe.  Calls made by one thread keep their order.
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
        """Connects to every shard, then serves requests.

        Raises
        ------
        SnailError
            Whatever `connect` raises for a shard that cannot be reached; nothing stays open then.
        """
        self.connections.start(self.requests)

    def close(self) -> None:
        """Ends the threads and closes the connections.  Open requests fail.  Twice is harmless."""
        self.connections.close()

    def fail(self, text: str) -> None:
        """Ends every request, now and later, with `ConnectionLost(text)`."""
        self.connections.fail(text)

    def reroute(self, uint32_t epoch, names: Sequence[str]) -> None:
        """The route is another from now on: its epoch, and what to call its shards.

        `connect` must know the new addresses when this is called.  Connections that hold stay as
        they are; those that are lost are made again at once.
        """
        self.connections.reroute(epoch, names)
        self.names = list(names)

    def know_tables(self, tables: Mapping[int, tuple[str, bool]]) -> None:
        """Takes declarations: number -> (name, whether pushed values must be finite).

        Tables that were not declared here are called by their number, and take finite values only.
        """
        self.requests.tables.update(tables)

    def pull_async(self, uint32_t table, keys: NDArray[np.uint64], rows: NDArray[np.float32],
                   bint state=False, int wire=0, bint ahead=False, int64_t clock=-1) -> Pending:
        """Starts a pull of the rows of `keys` into `rows`.

        Parameters
        ----------
        table : int
            Table number.
        keys : numpy.ndarray
            uint64 (n,).  Repeated keys are allowed.  Copied: may change at once.
        rows : numpy.ndarray
            float32 (n, dim), written in place; rows contiguous, their stride free.
        state : bool
            Pull weights and the optimiser's state: `rows` are dim + state wide.  As float32 only.
        wire : int
            Type of the rows while they travel, a value of `snailps.kernels.WIRE_TYPES`.
        ahead : bool
            Overtake pushes that still wait for the socket, so that rows come in while values go
            out; `correct` then adds what the rows lack.
        clock : int
            0 or more: rows as they are when all clocks below are applied.  Each shard lets its part
            wait until then.  Ordered with nothing: it may overtake pushes, and `flush` does not
            wait for it.  -1: rows as they are.  A clock that is over is refused (`RemoteError` with
            the code ``late``), unless clocks are closed by command: the slot is then
            already sealed by another incarnation, at that shard.

        Returns
        -------
        Pending
        """
        return ask_rows(self.requests, KIND_PULL, table, keys, rows, state, False, wire, False, False,
                        ahead, clock, 0, 1)

    def push_async(self, uint32_t table, keys: NDArray[np.uint64], values: NDArray[np.float32],
                   bint state=False, bint merge=False, int wire=0, bint feedback=True,
                   int64_t clock=-1, uint32_t slot=0, float lr_scale=1) -> Pending:
        """Starts a push of `values` to the rows of `keys`; applied exactly once each.

        Parameters
        ----------
        table : int
            Table number.
        keys : numpy.ndarray
            uint64 (n,).  Copied.
        values : numpy.ndarray
            float32 (n, dim); rows contiguous, their stride free.  Must not change until done.
        state : bool
            `values` are differences of weights and state, dim + state wide.  As float32 only.
        merge : bool
            Sum the values of a repeated key first.  By default they are applied one after the
            other, which is the same where what a push does is linear in its value.
        wire : int
            Type of the values while they travel, a value of `snailps.kernels.WIRE_TYPES`.
        feedback : bool
            Keep what rounding to `wire` took from a key's value and add it to the key's next push.
        clock : int
            0 or more: a contribution to a slot of this clock, which the shards keep until all slots
            are sealed (`seal_async`).  Without effect if the clock was applied already, or the slot
            was sealed by another incarnation.  -1: applied when it comes.
        slot : int
            0 to 4,095; with `clock`.
        lr_scale : float
            The access method's step size is multiplied by it for this push, 0 or more; the same in
            all contributions of a clock to a table.  Costs 8 bytes a part, if not 1.

        Returns
        -------
        Pending

        Raises
        ------
        NotFinite
            A value is NaN or infinite, and the table takes none (`know_tables`): nothing was sent.

        Notes
        -----
        Values beyond the range of `wire` travel as float32, all of the push.
        """
        return ask_rows(self.requests, KIND_PUSH, table, keys, values, state, merge, wire, feedback,
                        False, False, clock, slot, lr_scale)

    def pull(self, uint32_t table, keys: NDArray[np.uint64], rows: NDArray[np.float32],
             bint state=False, int wire=0, int64_t clock=-1) -> NDArray[np.float32]:
        """`pull_async` and its `wait`, some microseconds faster; returns `rows`."""
        return self.requests.wait_alone(
            ask_rows(self.requests, KIND_PULL, table, keys, rows, state, False, wire, False, True, False,
                     clock, 0, 1))

    def push(self, uint32_t table, keys: NDArray[np.uint64], values: NDArray[np.float32],
             bint state=False, bint merge=False, int wire=0, bint feedback=True, int64_t clock=-1,
             uint32_t slot=0, float lr_scale=1) -> None:
        """`push_async` and its `wait`, some microseconds faster."""
        self.requests.wait_alone(
            ask_rows(self.requests, KIND_PUSH, table, keys, values, state, merge, wire, feedback, True,
                     False, clock, slot, lr_scale))

    def seal_async(self, int64_t clock, uint32_t slot, uint32_t slots) -> Pending:
        """Says to every shard that a slot has all its contributions: those pushed before.

        The first incarnation that seals a slot at a shard is the one that counts there; what others
        pushed to it is dropped.  With the last of its `slots` a clock is applied: the contributions
        to each row are summed in the order of the slots, and handed to the access method once.

        Parameters
        ----------
        clock : int
            The clock that the shards have reached (`reach_async`), 0 or more.
        slot, slots : int
            0 to slots - 1; 1 to 4,096, the same in all seals of a clock.

        Returns
        -------
        Pending
            Done when all shards have it.  Wait for the pushes first: one that was refused is known
            only then.  Sent again after a lost connection, behind what was pushed before.
        """
        return ask_all(self.requests, KIND_SEAL, clock, slot, slots)

    def reach_async(self, int64_t clock) -> Pending:
        """Asks every shard to answer when it has applied all clocks below `clock`.

        Returns
        -------
        Pending
            Overtakes what waits to be sent; `flush` does not wait for it.
        """
        return ask_all(self.requests, KIND_REACH, clock, 0, 0)

    def forward_async(self, uint32_t table, ptr: NDArray[np.int64], keys: NDArray[np.uint64],
                      values: NDArray[np.float32] | None, uint32_t dim, int wire=0,
                      bint keep=True) -> Forward:
        """Starts ``Z[i] = sum of values[k] * W[keys[k]], k in ptr[i]..ptr[i + 1] - 1`` at the shards.

        Each shard gets its entries of the batch and answers with its part of the product; rows
        that were never pushed count as their first value.  Sees all pushes called before.

        Parameters
        ----------
        table : int
            Table number; its access method must be a built-in one other than ``average``.
        ptr, keys, values : numpy.ndarray
            Examples as CSR: int64 (m + 1,), uint64 (nnz,), float32 (nnz,) or None if all are 1.
            Copied: may change at once.
        dim : int
            Floats of a row of W, and of Z.
        wire : int
            Type of Z's rows while they travel, a value of `snailps.kernels.WIRE_TYPES`.
        keep : bool
            A `backward_async` of this batch will follow: the shards keep it, 8 batches of a client
            and 256 MiB at most.  Not for prediction.

        Returns
        -------
        Forward

        Raises
        ------
        MisuseError
            Arrays of another type or shape, or an example with more than 65,536 entries at a shard.
        NotFinite
            A value is NaN or infinite, and a gradient is to go back through it.
        """
        return ask_forward(self.requests, table, ptr, keys, values, dim, wire, keep)

    def backward_async(self, CForward forward, gradient: NDArray[np.float32], int wire=0,
                       float lr_scale=1) -> Pending:
        """Starts the way back of a batch: dL/dZ to the shards, which step the rows that it touched.

        Each shard sums the gradient of every row over the whole batch and hands it to the table's
        access method once, in the order of this client's pushes and exactly once.

        Parameters
        ----------
        forward : Forward
            What `forward_async` returned with `keep`, waited for; goes back once.
        gradient : numpy.ndarray
            float32 (m, dim), C-contiguous: dL/dZ.  Must not change until done.
        wire : int
            Type of its rows while they travel.  A narrow one is scaled so that the largest value
            is between 1 and 2: small gradients do not vanish.
        lr_scale : float
            As of `push_async`.

        Returns
        -------
        Pending

        Raises
        ------
        MisuseError
            Another shape, or a batch that cannot go back.
        NotFinite
            As of `push_async`.
        """
        return ask_backward(self.requests, forward, gradient, wire, lr_scale)

    def cork(self) -> None:
        """From here to `uncork` this thread's asynchronous calls wake no thread to send them at once.

        They are sent with what follows: when a caller waits, be it for what is there already, when a
        reply comes, or the cork is drawn.  So a shard gets several requests in one packet, and both
        sides are woken once.  May be nested.
        """
        self.requests.cork()

    def uncork(self) -> None:
        """Ends a `cork`; with the last one, what has not been sent is sent."""
        if not self.requests.uncork():
            raise MisuseError("uncork() without cork()")

    def scan(self, uint32_t table, uint32_t dim, fragments: Iterable[int],
             ended: Callable[[], object] | None = None) -> Iterator[tuple[
            NDArray[np.uint64], NDArray[np.float32]]]:
        """Yields all stored rows of some fragments, in pieces of up to 1 MiB.

        Up to `SCANS_AHEAD` fragments are asked for at once, so give them in turns of their shards.
        What is held is a reply of each, and the keys seen so far of those that come in several.

        Parameters
        ----------
        table, dim : int
            Table number, floats of a row.
        fragments : iterable of int
        ended : callable, optional
            Called without arguments behind the last piece of each fragment.

        Yields
        ------
        keys : numpy.ndarray
            uint64 (n,).
        rows : numpy.ndarray
            float32 (n, dim).

        Raises
        ------
        MisuseError
            No such fragment, or the table's rows are not `dim` wide.

        Notes
        -----
        A cursor counts the places of one shard's memory.  A standby that was promoted meanwhile may
        have the same rows in other places, so fragments that are under way at a new route begin
        anew, without the rows that were yielded already.
        """
        left = iter(fragments)
        under_way = deque()
        try:
            while True:
                while len(under_way) < SCANS_AHEAD and (fragment := next(left, None)) is not None:
                    under_way.append(self._begin_scan(_Walk(fragment), table))
                if not under_way:
                    return
                walk = under_way.popleft()
                (<CPending>walk.pending).wait()
                cursor, keys, rows = _scanned(reply_of(walk.pending), table, dim)
                if walk.epoch != self.connections.core.epoch and (cursor or walk.seen):
                    walk.begin_anew()
                    under_way.append(self._begin_scan(walk, table))
                    continue
                if walk.known is not None:
                    fresh = ~np.isin(keys, walk.known)
                    keys, rows = keys[fresh], rows[fresh]
                if cursor:
                    walk.seen.append(keys.copy())       # `keys` would keep all of its reply
                    self._ask_scan(walk, table, cursor)
                    under_way.append(walk)
                if len(keys):
                    yield keys, rows
                if not cursor and ended is not None:
                    ended()
        finally:
            for walk in under_way:
                walk.pending.abandon()

    def _begin_scan(self, walk, table):
        walk.epoch = self.connections.core.epoch
        self._ask_scan(walk, table, 0)
        return walk

    def _ask_scan(self, walk, table, cursor):
        cdef uint32_t fragment
        if not 0 <= walk.fragment < self.connections.core.order.frag_num:
            raise MisuseError(f"no fragment {walk.fragment}: the route has "
                              f"{self.connections.core.order.frag_num}")
        fragment = walk.fragment
        walk.pending = ask_one(self.requests, self.connections.core.order.owner[fragment], KIND_SCAN,
                               table, _SCAN.pack(cursor, fragment, 0xFFFFFFFF))

    def correct(self, CPending pull, CPending push, base: NDArray[np.float32] | None = None) -> int:
        """Adds to pulled rows what an own push added after they were read.

        A prefetched row may lack a delta of this very client that was still on its way.  The reply
        says, per fragment, the highest own push that it contains; for every key of `pull` that
        `push` carries with a higher number, the pushed value is added to the pulled row (and to
        `base`, its untouched copy).  Only right for access method `add`, and for pulls and pushes
        with state.

        Parameters
        ----------
        pull, push : Pending
            Of the same table and client; `pull` done, `push` submitted after it, or before it if the
            pull went ahead.
        base : numpy.ndarray, optional
            float32 (n, dim) beside `pull.rows`.

        Returns
        -------
        int
            Rows corrected.

        Raises
        ------
        MisuseError
            Not such a pair, or a `base` of another shape.

        Notes
        -----
        A hash join, fragment by fragment; nothing but a look at the marks where no row lacks
        anything.  Releases the GIL.
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
                or b.later != NULL \
                or pull.requests is not self.requests or push.requests is not self.requests:
            raise MisuseError("correct() wants a finished pull and a push of the same table, "
                              "both of this client")
        if base is not None:
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
        """Waits until every request so far is answered; raises the first error of a push or seal.

        Not for what waits for a clock, nor for what was abandoned.

        Parameters
        ----------
        timeout_s : float, optional
            Limit for all of them together, seconds; the client's own `timeout_s` if not given.
        """
        self.requests.flush(timeout_s)

    def open_pushes(self) -> list[Pending]:
        """Pushes, and batches on their way back, that are not answered yet: a list of `Pending`."""
        return self.requests.open_pushes()

    def waits(self) -> list[list[Any]]:
        """The oldest requests of more than a second that are not answered: request, shards, seconds.

        A list of [str, str, float], the oldest first, at most three.  From any thread.
        """
        return self.requests.waits()

    def drop_residues(self) -> None:
        """Forgets what narrow pushes have rounded away: their tables are not pushed to any more."""
        self.connections.drop_residues()

    @property
    def residue_bytes(self) -> int:
        """Bytes of what narrow pushes have rounded away, of all tables."""
        return self.connections.residue_bytes

    @property
    def residue_bytes_max(self) -> int:
        """Beyond that, residues of the table that is longest out of use are dropped."""
        return self.connections.residue_bytes_max

    @residue_bytes_max.setter
    def residue_bytes_max(self, uint64_t most):
        self.connections.residue_bytes_max = most

    def goodput(self) -> tuple[int, float]:
        """Bytes moved both ways, and the seconds during which something was under way.

        Only of times that moved enough to tell the speed of the network from its delays.
        """
        return self.connections.goodput()

    def counters(self) -> dict[str, Any]:
        """Counts since the start, as a dict of numbers."""
        return self.connections.counters()

    def cut(self, uint32_t shard) -> None:
        """Breaks the connection to a shard, as a network would.  For tests of recovery."""
        self.connections.cut(shard)
