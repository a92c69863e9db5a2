# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A shard as primary or standby: the doors of replication, and orders, which are done at both.

    back_up(socket) -> all fragments, then all that changes -> standby -> "ready"
    order -> done here -> forwarded -> done there          promote, yield_ -> who serves

It owns the order of these things; what the stream carries is `_primary.pxd` and `_standby.pxd`, how it
is sent transport/loop/_replication_stream.pxd.  It knows no master and no cluster: who stands by
for whom, it is told.
"""

import contextlib
import os
import threading
import time

import numpy as np

from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from snailps.shard._clock_requests cimport keep_in_step, show_clock
from snailps.shard._primary cimport tell_again
from snailps.shard._replication_state cimport FRAGMENT_EXPECTED, FRAGMENT_WHOLE, Primary, Standby
from snailps.shard._row_request cimport ROLE_PRIMARY, ROLE_STANDBY, ROLE_YIELDED, held_until
from snailps.shard._standby cimport standby_free
from snailps.transport.loop._fault_injection cimport *
from snailps.transport.loop._replication_stream cimport (
    STREAM_BYTES_MAX, STREAM_LOST, STREAM_NONE, STREAM_READY, STREAM_SEEDING, Stream,
    stream_waiting,
)

from snailps.errors import ConnectionLost, MisuseError, SnailError, WaitTimeout

RESTORE_LIMIT_S = 60.0      # how long one section waits for the standby to take those before
LOOK_S = 0.001
ROLES = {ROLE_PRIMARY: "primary", ROLE_STANDBY: "standby", ROLE_YIELDED: "yielded"}
STATES = {STREAM_NONE: "none", STREAM_SEEDING: "seeding", STREAM_READY: "ready",
          STREAM_LOST: "lost"}
FAULTS = {"no-hold": FAULT_NO_HOLD, "no-marks": FAULT_NO_MARKS, "no-fence": FAULT_NO_FENCE}
POINTS = {"": POINT_NONE, "mid-send": POINT_MID_SEND, "applied": POINT_APPLIED,
          "acknowledged": POINT_ACKNOWLEDGED, "replayed": POINT_REPLAYED, "promoted": POINT_PROMOTED}


cdef class ReplicatedShard:
    """A shard's part in replication; `ShardThread` is what is used."""

    def __dealloc__(self):
        free(self.context.primary.fragments)
        free(self.context.primary.copied)
        standby_free(&self.context.standby)

    # --- orders, done here and at the standby

    def post(self, work, bint at_standby=False):
        """Has `work()` done in the shard's thread, where this shard's methods may be called.

        Does not wait.  What is posted is done in its order; nothing waits behind an order that waits
        for the standby, so that what ends that wait is heard.

        Parameters
        ----------
        work : callable
        at_standby : bool
            It gives orders: they count as done once the standby has them, or will not be promoted.

        Returns
        -------
        concurrent.futures.Future
            What `work` returned or raised; `ConnectionLost` where the shard serves no more.
        """
        return self.loop.post(work, at_standby)

    def _order(self, order, bint wait=True):
        """Does an order; returns, if it is to `wait`, once the standby has it, or will not be promoted.
        In the shard's thread, which cannot wait, that is up to `post`."""
        def begin():
            if self.context.role != ROLE_PRIMARY or self.context.primary.yielding:
                raise ConnectionLost(
                    f"this shard has yielded to another: {order['do']} is for that one")
            return self._carry_out(order)
        return self.loop.submit(begin, at_standby=wait)

    def _carry_out(self, order):
        """Does an order here, in the shard's thread, and forwards it; its result."""
        try:
            result = self.methods.execute(order)
        finally:
            self.loop.wake()
        self._forward(order)
        return result

    def _let_go(self):
        """Lets clocks go on.  One that cannot be applied is told to all who wait for it, not here."""
        with contextlib.suppress(SnailError):
            self._carry_out({"do": "thaw"})

    def _forward(self, order):
        """Appends an order to the stream, as far as it concerns what is copied.  A clock that came with
        it is shown once the standby has that."""
        if self.context.stream.begun:
            self.methods.tell(order)
        if self.context.slots.clock != self.context.primary.clock:
            keep_in_step(&self.context)
            show_clock(&self.context, held_until(&self.context))

    def _put_again(self, uint32_t fragment):
        """A fragment's rows were replaced: copies it again, if it was copied."""
        if self.context.stream.begun and self.context.primary.copied[fragment]:
            with nogil:
                tell_again(&self.context, fragment)

    def _wait_for_room(self):
        """Waits until the standby has taken some of what was put."""
        self._until(lambda: stream_waiting(self.context.stream) < STREAM_BYTES_MAX // 2,
                    RESTORE_LIMIT_S)

    def _until(self, condition, double limit_s):
        """Waits until a condition, looked at in the shard's thread, holds; whether it does."""
        until = time.monotonic() + limit_s
        while not self.loop.submit(condition):
            if time.monotonic() > until or threading.get_ident() == self.thread.ident:
                return False
            time.sleep(LOOK_S)
        return True

    # --- the primary's side

    def back_up(self, int fd, *, bint sync, bint paced=False, bint resume=False, tell):
        """Streams everything to a standby, over a socket that is connected to it and has shaken hands
        as `Role.SERVER`.

        Forgets the standby that there was, as `alone` does.  Does not wait.

        Parameters
        ----------
        fd : int
            Descriptor of the socket; owned from now on, and closed if this fails.
        sync : bool
            Once the standby has all, a push, a seal or a batch is acknowledged when it has them, too.
            Otherwise at once, unless 64 MiB are on the way.
        paced : bool
            The copying gives way to clients' requests, and takes several times as long beside them.
        resume : bool
            The standby was the primary until it yielded to this shard, which has yet to be promoted: it
            has everything, and nothing is copied.
        tell : callable
            ``tell(state, why)``: "ready" once, when the standby has everything; "lost" once, when it
            cannot be reached (any more).  Called in the shard's thread: must not wait.

        Returns
        -------
        concurrent.futures.Future
            Done once the stream has begun; `MisuseError` where this is neither a primary nor a standby
            that has everything.

        Notes
        -----
        A standby that was lost after "ready" may be promoted at any time: until `alone` says that it
        will not, nothing is acknowledged, while pulls and pushes go on.
        """
        cdef Primary *mine = &self.context.primary

        def begin():
            cdef uint32_t i
            if self.context.role == ROLE_YIELDED \
                    or self.context.role == ROLE_STANDBY and not self.context.standby.seeded:
                raise MisuseError("only a shard that has everything, and has not yielded, has a standby")
            self.loop.end_stream()
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
            mine.at = mine.fragment_num if resume else 0
            if resume:
                memset(mine.copied, True, self.context.frag_num)
            mine.resumes = resume
            mine.partly = False
            mine.clock_until = 0
            self.loop.open_stream(fd, sync, paced, tell)

        def end(command):
            if command.cancelled() or command.exception() is not None:
                os.close(fd)

        command = self.loop.post(begin)
        command.add_done_callback(end)
        return command

    def pace(self, bint paced):
        """The copying that goes on gives way to clients' requests, or does so no more.  Does not wait."""
        def change():
            self.context.stream.paced = paced
            self.loop.wake()
        self.loop.post(change)

    def alone(self):
        """Has no standby (any more): what waited for it is acknowledged."""
        self.loop.submit(self.loop.end_stream)

    def yield_(self, double timeout_s, bint stay=False):
        """Hands everything over to the standby and serves no more; to `stay` it stands by from then on.

        What changes rows waits meanwhile, and is done at the standby: connections are closed, clients
        send again what was not acknowledged.

        Raises
        ------
        MisuseError
            There is no ready standby.
        WaitTimeout
            It did not acknowledge everything in time; this shard goes on serving.
        ConnectionLost
            It was lost meanwhile, or this shard is promoted; it goes on serving.
        """
        def begin():
            if self.context.role != ROLE_PRIMARY or self.context.stream.state != STREAM_READY:
                raise MisuseError("only a primary with a ready standby can yield")
            self.context.primary.yielding = True

        def end():
            if not self.context.primary.yielding:
                raise ConnectionLost("the shard was told to go on")
            if self.context.stream.state != STREAM_READY:
                raise ConnectionLost("the standby to yield to was lost")
            if self.context.stream.sent != self.context.stream.acked:
                return False
            if stay:
                self._stand_by()
            else:
                self.context.role = ROLE_YIELDED
            self.loop.close_connections()
            return True

        def go_on():
            self.context.primary.yielding = False
            self.loop.wake()

        self.loop.submit(begin)
        try:
            if not self._until(end, timeout_s):
                raise WaitTimeout(f"the standby did not acknowledge all pushes in {timeout_s:g} s: "
                                  "this shard goes on serving")
        finally:
            self.loop.submit(go_on)

    # --- the standby's side

    def _expect(self, fragments):
        """A standby's fragments; they are owned when they have come."""
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

    def _stand_by(self):
        """Makes this primary a standby that has everything.

        Its own stream stays: should its successor not be promoted, it goes on as it was.
        """
        cdef Standby *mine = &self.context.standby
        fragments = self.store.fragments().tolist()
        memset(mine, 0, sizeof(Standby))
        self._expect(fragments)
        for fragment in fragments:
            mine.expects[<uint32_t>fragment] = FRAGMENT_WHOLE
        mine.whole = mine.expected
        mine.seeded = mine.resigned = True
        self.context.all_new = True
        self.context.role = ROLE_STANDBY
        self.loop.await_primary()

    def promote(self, uint32_t epoch):
        """Makes this standby the primary, from a route epoch on; older ones are refused.

        One that has yielded is the primary again, with its standby if that is there: its successor was
        not promoted, or is gone before anybody asked it.

        Its former primary's connection is closed, so that nothing can be acknowledged there that is
        not here.  Without effect on a primary but for the epoch.

        Raises
        ------
        MisuseError
            The former primary had not told everything.
        """
        def serve():
            served = self.context.role == ROLE_PRIMARY
            self.context.primary.yielding = False
            if self.context.role == ROLE_STANDBY and self.context.standby.begun \
                    and self.context.stream.state == STREAM_LOST:
                # Of one that has followed another.  One that has only yielded may still have its
                # standby for all that the master knows: then nothing is acknowledged before `alone`.
                self.loop.end_stream()
            if self.context.role == ROLE_YIELDED:
                self.context.role = ROLE_PRIMARY
            if self.context.role == ROLE_STANDBY:
                self.loop.end_following()
                if not self.context.standby.seeded:
                    raise MisuseError(
                        f"only {self.context.standby.whole} of {self.context.standby.expected} "
                        "fragments have come from the primary: it cannot be replaced by this standby")
                passes(self.context.faults, POINT_PROMOTED)
                self.context.role = ROLE_PRIMARY
                self.context.all_new = bool(self.context.faults.left_out & FAULT_NO_MARKS)
                standby_free(&self.context.standby)
                self.context.standby.resigned = False
            self.context.epoch = self.context.epoch_min = epoch
            if not served:              # a checkpoint that held it is of the primary that was
                self._let_go()
            self.loop.wake()
        self.loop.submit(serve)

    # --- for people and tests

    def _replica(self):
        cdef Stream *s = self.context.stream
        cdef Primary *mine = &self.context.primary
        cdef Standby *theirs = &self.context.standby
        state, seeded = STATES[s.state], mine.at / max(1, mine.fragment_num)
        if self.context.role == ROLE_STANDBY:
            seeded = theirs.whole / max(1, theirs.expected)
            state = "none" if not theirs.begun else "lost" if not self.loop.following() \
                else "ready" if theirs.seeded else "seeding"
        return {
            "role": ROLES[self.context.role],
            "state": state,
            "sync": bool(s.sync),
            "sent": s.sent,
            "acknowledged": s.acked,
            "lag_bytes": s.sent_bytes - s.acked_bytes,
            "lag_s": max(s.lag_s, time.monotonic() - s.probe_at if s.probe else 0.0),
            "held": s.held_num,
            "relayed": mine.at / max(1, mine.fragment_num) if s.state != STREAM_NONE else 0.0,
            "seeded": seeded if state != "none" else 0.0,
        }

    def test_faults(self, left_out=(), point="", int passings=1):
        """Leaves out what keeps acknowledged pushes safe, or dies at a point.  For tests of recovery.

        Parameters
        ----------
        left_out : sequence of str
            "no-hold": replies do not wait for the standby; "no-marks": pushes are applied as often as
            they come; "no-fence": who was given up is served.
        point : str
            Where the process dies as by kill -9: "mid-send", "applied", "acknowledged" (primary),
            "replayed", "promoted" (standby).
        passings : int
            At which passing of that point.
        """
        def set_up():
            self.context.faults.left_out = sum([FAULTS[name] for name in left_out])
            self.context.faults.point = POINTS[point]
            self.context.faults.passings = passings
            if self.context.role != ROLE_STANDBY:
                self.context.all_new = "no-marks" in left_out
        self.loop.submit(set_up)
