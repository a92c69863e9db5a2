# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Heartbeats: one thread, which never takes the GIL, sends to and listens to any number of peers.

    every interval_s: HEARTBEAT frame -> each socket        bytes of a socket -> time last heard

Owns authenticated sockets that carry nothing else.  A process whose Python code holds the GIL for
minutes, or whose loop hangs, still sends and hears heartbeats: only a process that is gone, stopped or
cut off falls silent.  Over TLS the relay between (`security/tls_relay.py`) does need the GIL.  Must not
know who the peers are (callers choose a number for each), nor what a missed heartbeat means.
"""

import threading

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from snailps.errors import MisuseError
from snailps.transport._awake import watch

from snailps.transport._awake cimport now_s, slept_s
from snailps.transport._frame cimport FRAME_HEADER_BYTES, KIND_HEARTBEAT, FrameHeader, fill_head
from snailps.transport._posix cimport (
    MSG_DONTWAIT, MSG_NOSIGNAL, POLLERR, POLLHUP, POLLIN, c_close, c_recv, c_send, load_flag,
    poll, pollfd, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t,
    pthread_mutex_unlock, store_flag,
)

cdef enum:
    TURN_MS = 50                # how soon a new peer gets its first heartbeat
    READS_MAX = 4               # of a peer in a turn: a peer that floods us must not delay the others
    STOP_S = 1                  # a shorter stop may be a wait for a core, and forgives nobody


cdef struct Peer:
    uint64_t number
    double heard                # time of the last byte from it
    double beaten               # time of the last heartbeat to it
    bint closed


cdef struct Heart:
    pthread_mutex_t lock        # guards the two arrays; never waited for with the GIL held: see `_lock`
    pollfd *fds
    Peer *peers
    uint32_t count
    uint32_t cap
    double interval_s
    double slept                # seconds for which this process was stopped so far
    int stop


cdef void _listen_to(Heart *heart, uint32_t i, double now) noexcept nogil:
    """Reads what a peer has sent; any byte counts as a heartbeat."""
    cdef char sink[4096]
    cdef ssize_t got
    cdef int reads = 0
    while reads < READS_MAX:
        got = c_recv(heart.fds[i].fd, sink, sizeof(sink), MSG_DONTWAIT)
        if got <= 0:
            if got == 0 or (errno != EAGAIN and errno != EINTR):
                heart.peers[i].closed = True
                heart.fds[i].fd = -1 - heart.fds[i].fd      # poll ignores negative descriptors
            return
        heart.peers[i].heard = now
        reads += 1


cdef double _waking(Heart *heart) noexcept nogil:
    """The time. After a stop of this process silences count from its waking: the others may have been stopped too."""
    cdef uint32_t i
    cdef double slept = slept_s()
    cdef double now = now_s()
    if slept - heart.slept >= STOP_S:
        for i in range(heart.count):
            heart.peers[i].heard = now
    heart.slept = slept
    return now


cdef void _turn(Heart *heart, const FrameHeader *beat) noexcept nogil:
    cdef uint32_t i
    cdef double now = _waking(heart)
    poll(heart.fds, heart.count, 0)
    for i in range(heart.count):
        if not heart.peers[i].closed and heart.fds[i].revents & (POLLIN | POLLERR | POLLHUP):
            _listen_to(heart, i, now)
        if not heart.peers[i].closed and now - heart.peers[i].beaten >= heart.interval_s:
            heart.peers[i].beaten = now
            # Never waits: a full socket means that the peer does not read, and it will miss us soon.
            c_send(heart.fds[i].fd, beat, FRAME_HEADER_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT)


cdef void _run(Heart *heart) noexcept nogil:
    cdef FrameHeader beat
    fill_head(&beat, KIND_HEARTBEAT, 0, 0)
    while not load_flag(&heart.stop):
        pthread_mutex_lock(&heart.lock)
        _turn(heart, &beat)
        pthread_mutex_unlock(&heart.lock)
        poll(NULL, 0, TURN_MS)      # sleeps without the lock, so that peers can be added


cdef class HeartbeatThread:
    """Sends heartbeats every `interval_s` seconds and notes when each peer was last heard. Thread-safe."""

    cdef Heart *heart
    cdef object thread
    cdef bint stopped

    def __cinit__(self, double interval_s):
        self.heart = <Heart *>calloc(1, sizeof(Heart))
        if self.heart == NULL:
            raise MemoryError
        pthread_mutex_init(&self.heart.lock, NULL)
        self.heart.interval_s = interval_s
        self.thread = threading.Thread(target=self._loop, name="snailps-pulse", daemon=True)

    def start(self) -> None:
        watch()
        self.heart.slept = slept_s()
        self.thread.start()

    def stop(self) -> None:
        """End the thread and close every socket; idempotent."""
        store_flag(&self.heart.stop, 1)
        if self.thread.ident is not None:
            self.thread.join()
        self._lock()
        self.stopped = True
        self._close_all()
        pthread_mutex_unlock(&self.heart.lock)

    def add(self, sock: socket.socket, uint64_t number, double silence_s=0.0) -> None:
        """Take over an authenticated socket, whose peer was last heard `silence_s` seconds ago.

        Closed sockets of that peer are forgotten.  MisuseError after `stop`: the caller still owns the
        socket.
        """
        cdef int fd = sock.fileno()
        cdef bint added = False
        sock.setblocking(False)
        self._lock()
        if not self.stopped:
            added = self._add(fd, number)
            if added:
                self.heart.peers[self.heart.count - 1].heard -= silence_s
                self._forget(number, only_closed=True)
        pthread_mutex_unlock(&self.heart.lock)
        if added:
            sock.detach()
        elif self.stopped:
            raise MisuseError("this heartbeat thread has stopped")
        else:
            raise MemoryError

    def remove(self, uint64_t number) -> None:
        """Close the sockets of a peer."""
        self._lock()
        self._forget(number, only_closed=False)
        pthread_mutex_unlock(&self.heart.lock)

    def silences(self) -> dict[int, float]:
        """Return the seconds since each peer was last heard, on any of its sockets, closed ones included."""
        cdef uint32_t i
        cdef double now
        cdef double silence
        result = {}
        self._lock()
        now = _waking(self.heart)
        for i in range(self.heart.count):
            silence = max(0.0, now - self.heart.peers[i].heard)
            number = self.heart.peers[i].number
            result[number] = min(silence, result.get(number, silence))
        pthread_mutex_unlock(&self.heart.lock)
        return result

    def closed(self) -> set[int]:
        """Return the numbers of peers without an open socket."""
        cdef uint32_t i
        closed, open_ = set(), set()
        self._lock()
        for i in range(self.heart.count):
            (closed if self.heart.peers[i].closed else open_).add(self.heart.peers[i].number)
        pthread_mutex_unlock(&self.heart.lock)
        return closed - open_

    cdef void _lock(self) noexcept:
        # A thread that holds the lock may need the GIL (a dict grows, a collection starts).  A thread that waited
        # for the lock with the GIL held would deadlock with it.
        with nogil:
            pthread_mutex_lock(&self.heart.lock)

    cdef bint _add(self, int fd, uint64_t number) noexcept:
        """Adds a peer; the caller holds the lock.  False = no memory."""
        cdef uint32_t cap = max(<uint32_t>16, self.heart.cap * 2)
        cdef uint32_t i = self.heart.count
        cdef void *grown
        if i == self.heart.cap:
            grown = realloc(self.heart.fds, cap * sizeof(pollfd))
            if grown == NULL:
                return False
            self.heart.fds = <pollfd *>grown
            grown = realloc(self.heart.peers, cap * sizeof(Peer))
            if grown == NULL:
                return False
            self.heart.peers = <Peer *>grown
            self.heart.cap = cap
        memset(&self.heart.fds[i], 0, sizeof(pollfd))
        memset(&self.heart.peers[i], 0, sizeof(Peer))
        self.heart.fds[i].fd = fd
        self.heart.fds[i].events = POLLIN
        self.heart.peers[i].number = number
        self.heart.peers[i].heard = now_s()
        self.heart.count += 1
        return True

    cdef void _forget(self, uint64_t number, bint only_closed) noexcept:
        """Closes and removes sockets of a peer; the caller holds the lock."""
        cdef uint32_t i = 0
        while i < self.heart.count:
            if self.heart.peers[i].number == number \
                    and (self.heart.peers[i].closed or not only_closed):
                self._close(i)
                self.heart.count -= 1
                self.heart.fds[i] = self.heart.fds[self.heart.count]
                self.heart.peers[i] = self.heart.peers[self.heart.count]
            else:
                i += 1

    cdef void _close(self, uint32_t i) noexcept:
        cdef int fd = self.heart.fds[i].fd
        c_close(fd if fd >= 0 else -1 - fd)

    cdef void _close_all(self) noexcept:
        cdef uint32_t i
        for i in range(self.heart.count):
            self._close(i)
        self.heart.count = 0

    def _loop(self):
        with nogil:
            _run(self.heart)

    def __dealloc__(self):
        if self.heart != NULL:
            self._close_all()
            pthread_mutex_destroy(&self.heart.lock)
            free(self.heart.fds)
            free(self.heart.peers)
            free(self.heart)
