# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Requests under way: what a caller gets for one, and the list of those that are not seen to yet.

    request -> send -> live, until its answer was seen -> wait -> rows, or the error

It owns requests from the moment they are made until nobody needs them: `Pending` frees its request,
`PendingRequests` keeps the arrays of those that shards may still be asked for.  It knows neither how
a request is made from arrays (`_request_builder.pyx`) nor how it travels (`_connections.pyx`).
"""

import threading

cimport cython
from cpython.exc cimport PyErr_CheckSignals

from snailps.errors import ConnectionLost, SnailError, WaitTimeout
from snailps.transport.frame import Frame, Kind
from snailps.transport.handshake import remote_error

from snailps.transport._frame cimport KIND_BACKWARD, KIND_FORWARD, KIND_PULL, KIND_PUSH, KIND_SEAL
from snailps.transport._posix cimport load_flag, now_s, store_flag
from snailps.transport.client._request cimport (
    KIND_RAW, request_changes, request_free, waits_for_clock,
)

cdef double SIGNALS_EVERY_S = 0.1   # a wait looks this often whether Ctrl-C was pressed
TOLD_S = 1.0                        # an open request of this age is told of by `waits`
TOLD_MAX = 3
PRUNE_ALWAYS_BELOW = 64             # looking through so few live requests costs a microsecond


@cython.no_gc_clear                 # __dealloc__ needs the connections
cdef class Pending:
    """A pull or push under way, or a batch through a table.

    Attributes
    ----------
    done : bool
        Whether it is answered, well or badly; `wait` then returns at once.
    rows : numpy.ndarray
        float32 (n, dim): the caller's values, or where the pulled rows go.  Of a forward: Z, once
        `wait` has returned it.
    """

    def __init__(self):
        raise TypeError("a Pending comes from Client.pull_async or Client.push_async")

    def __dealloc__(self):
        if self.request != NULL:
            request_free(&self.connections.core.pool, self.request)

    @property
    def done(self):
        return self.request != NULL and load_flag(&self.request.done) != 0

    def wait(self, timeout_s=None):
        """Waits for the answer and returns `rows`.

        Parameters
        ----------
        timeout_s : float, optional
            Limit, seconds; the client's own `timeout_s` if not given.

        Raises
        ------
        WaitTimeout
            Names the shards that have not answered.  The request goes on; wait again if you like.
        RemoteError
            A shard refused; its own words.
        ConnectionLost
            The cluster ended or a shard could not be reached again.
        """
        cdef double limit_s = self.requests.timeout_s if timeout_s is None else timeout_s
        cdef double until_s = now_s() + limit_s
        while not self.connections.wait_until(self.request,
                                              min(until_s, now_s() + SIGNALS_EVERY_S)):
            PyErr_CheckSignals()
            if now_s() >= until_s:
                raise WaitTimeout(
                    f"{self.what()} waited {limit_s:g} s for {self.connections.whom(self.request)}: "
                    "is that server alive, and is its port open from here?")
        if self.request.failed:
            self.told = True
            self.requests.settle(self)
            raise self._error()
        self.requests.settle(self)
        return self.rows

    def abandon(self):
        """Says that nobody waits for it any more.

        What of a pull was not sent yet is not sent; what was is answered some time, and until then
        the client keeps the arrays, which must not be used meanwhile.  `flush` does not wait for
        it.  A push is applied all the same.
        """
        self.abandoned = True
        store_flag(&self.request.abandoned, 1)

    cdef what(self):
        cdef Request *r = self.request
        if r.kind == KIND_RAW and r.clocked:
            return f"seal of slot {r.slot} of clock {r.clock}" if r.raw_kind == KIND_SEAL \
                else f"reach of clock {r.clock}"
        if r.kind == KIND_RAW:
            return f"{Kind(r.raw_kind).name} of table {r.table}"
        if r.product != NULL:
            name = "forward" if r.kind == KIND_FORWARD else "backward"
            return f"{name} of {r.product.examples:,} examples through table {r.table}"
        name = "pull" if r.kind == KIND_PULL else "push"
        when = ""
        if r.clocked:
            when = f" as of clock {r.clock}" if r.kind == KIND_PULL \
                else f" to slot {r.slot} of clock {r.clock}"
        return f"{name} of {len(self.rows):,} rows of table {r.table}{when}"

    cdef _error(self):
        if self.request.text != NULL:
            return remote_error(Frame(Kind.ERROR, self.request.text[:self.request.text_bytes]))
        return ConnectionLost(f"{self.what()}: {self.connections.why_ended() or 'out of memory'}")


@cython.no_gc_clear
cdef class Forward(Pending):
    """A batch on its way through a table whose shards do the product; what `wait` returns is Z."""

    def wait(self, timeout_s=None):
        """Waits for the products of all shards and returns their sum, float32 (m, dim).

        Added in the order of the shards, so that it does not depend on which was first.  Parameters
        and errors are those of `Pending.wait`.
        """
        Pending.wait(self, timeout_s)
        if self.slabs is not None:
            for slab in self.slabs[1:]:
                self.rows += slab
            self.slabs = None
        return self.rows


cdef class PendingRequests:
    """What was asked and is not seen to yet.

    Parameters
    ----------
    connections : Connections
    timeout_s : float
        Default limit of a wait, seconds.
    """

    def __cinit__(self, Connections connections, double timeout_s):
        self.connections, self.timeout_s = connections, timeout_s
        self.live = {}
        self.live_lock = threading.Lock()

    def flush(self, timeout_s=None):
        """Waits until every request so far is answered: see `Client.flush`."""
        cdef Pending pending
        cdef double until_s = now_s() + (self.timeout_s if timeout_s is None else timeout_s)
        first = None
        with self.live_lock:
            waiting = list(self.live)
        for pending in waiting:
            if waits_for_clock(pending.request) or (
                    pending.abandoned and not request_changes(pending.request)):
                continue
            try:
                pending.wait(max(0.0, until_s - now_s()))
            except WaitTimeout:
                raise
            except SnailError as error:     # of a pull: whoever waits for that one is told
                if first is None and request_changes(pending.request):
                    first = error
        if first is not None:
            raise first

    def open_pushes(self):
        """Pushes, and batches on their way back, that are not answered yet."""
        cdef Pending pending
        with self.live_lock:
            live = list(self.live)
        return [pending for pending in live
                if pending.request.kind in (KIND_PUSH, KIND_BACKWARD) and not pending.done]

    def waits(self):
        """The oldest requests that are not answered: see `Client.waits`."""
        cdef Pending pending
        cdef double now = now_s()
        found = []
        for pending in list(self.live):         # one step under the GIL; oldest first
            if len(found) == TOLD_MAX or now - pending.begun_s < TOLD_S:
                break
            if not pending.done and not pending.abandoned:
                found.append([pending.what(), self.connections.whom(pending.request), now - pending.begun_s])
        return found

    cdef Pending add(self, Pending pending, Request *r):
        """Makes a new pending the owner of a request."""
        pending.request = r
        pending.connections = self.connections
        pending.requests = self
        return pending

    cdef send(self, Pending pending):
        pending.begun_s = now_s()
        if pending.waits:
            self.live[pending] = None       # one step under the GIL, and so is its end
        else:
            with self.live_lock:
                if len(self.live) < PRUNE_ALWAYS_BELOW or len(self.live) >= self.prune_at:
                    self._prune()
                    self.prune_at = 2 * len(self.live)
                self.live[pending] = None
        self.connections.hand_in(pending.request, not pending.waits)

    cdef wait_alone(self, Pending pending):
        """Waits for a request of this caller alone; if it gives up, it stays in the list."""
        try:
            return pending.wait()
        finally:
            if load_flag(&pending.request.done):
                self.live.pop(pending, None)

    cdef settle(self, Pending pending):
        """Its answer was seen: it need not be kept any longer."""
        if pending.waits:
            return                          # `wait_alone` lets go of it
        with self.live_lock:
            self.live.pop(pending, None)

    cdef _prune(self):
        """Lets go of what is answered; failed pushes that nobody was told of stay until flush."""
        cdef Pending pending
        for pending in list(self.live):
            if load_flag(&pending.request.done) \
                    and not (pending.request.failed and request_changes(pending.request)):
                self.live.pop(pending, None)
