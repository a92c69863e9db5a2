# What the compiled side of the transport needs from the system: sockets, epoll, clock, mutexes.
# Each is declared once, here.  A conversion of the clock and an atomic flag are the only code.
from libc.stdint cimport uint32_t, uint64_t

from snailps.transport._awake cimport slept_s

cdef extern from "<sys/epoll.h>" nogil:
    enum: EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL, EPOLL_CLOEXEC
    enum: EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP
    ctypedef union epoll_data_t:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event *event)
    int epoll_wait(int epfd, epoll_event *events, int maxevents, int timeout)

cdef extern from "<sys/eventfd.h>" nogil:
    enum: EFD_CLOEXEC, EFD_NONBLOCK
    int eventfd(unsigned int initval, int flags)

cdef extern from "<poll.h>" nogil:
    enum: POLLIN, POLLERR, POLLHUP
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long n, int timeout)

cdef extern from "<sys/socket.h>" nogil:
    enum: MSG_NOSIGNAL, MSG_DONTWAIT, SOCK_NONBLOCK, SOCK_CLOEXEC, SHUT_WR, SHUT_RDWR
    enum: SOL_SOCKET, SO_KEEPALIVE
    int accept4(int fd, void *addr, void *length, int flags)
    ssize_t c_recv "recv"(int fd, void *buf, size_t n, int flags)
    ssize_t c_send "send"(int fd, const void *buf, size_t n, int flags)
    int setsockopt(int fd, int level, int name, const void *value, unsigned int n)
    int shutdown(int fd, int how)

cdef extern from "<netinet/in.h>" nogil:
    enum: IPPROTO_TCP

cdef extern from "<netinet/tcp.h>" nogil:
    enum: TCP_NODELAY, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT

cdef extern from "<unistd.h>" nogil:
    int c_close "close"(int fd)
    ssize_t c_read "read"(int fd, void *buf, size_t n)
    ssize_t c_write "write"(int fd, const void *buf, size_t n)

cdef extern from "<sys/resource.h>" nogil:
    enum: RLIMIT_NOFILE
    struct rlimit:
        unsigned long rlim_cur
    int getrlimit(int what, rlimit *limits)

cdef extern from "<time.h>" nogil:
    enum: CLOCK_MONOTONIC
    struct timespec:
        long tv_sec
        long tv_nsec

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct pthread_condattr_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *m, void *attr)
    int pthread_mutex_destroy(pthread_mutex_t *m)
    int pthread_mutex_lock(pthread_mutex_t *m)
    int pthread_mutex_trylock(pthread_mutex_t *m)
    int pthread_mutex_unlock(pthread_mutex_t *m)
    int pthread_condattr_init(pthread_condattr_t *a)
    int pthread_condattr_setclock(pthread_condattr_t *a, int clock)
    int pthread_condattr_destroy(pthread_condattr_t *a)
    int pthread_cond_init(pthread_cond_t *c, pthread_condattr_t *a)
    int pthread_cond_destroy(pthread_cond_t *c)
    int pthread_cond_broadcast(pthread_cond_t *c)
    int pthread_cond_signal(pthread_cond_t *c)
    int pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const timespec *t)

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from *:
    """
    #define snail_flag_load(flag) __atomic_load_n((flag), __ATOMIC_ACQUIRE)
    #define snail_flag_store(flag, value) __atomic_store_n((flag), (value), __ATOMIC_RELEASE)
    """
    # A flag that another thread sets: what it wrote before is visible to a thread that sees the flag.
    int load_flag "snail_flag_load"(const int *flag) nogil
    void store_flag "snail_flag_store"(int *flag, int value) nogil


cdef inline void time_of(double when_s, timespec *t) noexcept nogil:
    """A time of `now_s` in the form that pthread wants: of the monotonic clock."""
    when_s += slept_s()
    t.tv_sec = <long>when_s
    t.tv_nsec = <long>((when_s - <double>t.tv_sec) * 1e9)
