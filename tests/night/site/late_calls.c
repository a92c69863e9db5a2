/* Calls to the system that are late: LD_PRELOAD in rounds of `make test-night`.

   NIGHT_LATE=seed:ms -> send, sendto, sendmsg, writev, fsync, fdatasync -> now and then a pause
   before them: what a shard, a client, a heartbeat sends, and what goes to the disk.

   A thread pauses at one call of 50 (at each third fsync), by up to so many milliseconds, and at most
   half of its time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static __thread uint64_t state, begun_ns, slept_ns;
static uint64_t seed, most_ns;

__attribute__((constructor)) static void read_settings(void) {
    const char *text = getenv("NIGHT_LATE");
    unsigned long first, ms;
    if (text && sscanf(text, "%lu:%lu", &first, &ms) == 2) {
        seed = first;
        most_ns = ms * 1000000u;
    }
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t draw(void) { /* xorshift64* */
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (state * 2685821657736338717u) >> 33;
}

static void late(unsigned one_of) {
    int kept = errno;
    if (!most_ns)
        return;
    if (!state) {
        state = (seed + 1) * 0x9E3779B97F4A7C15u ^ (uint64_t)gettid() << 20;
        begun_ns = now_ns();
    }
    if (draw() % one_of == 0) {
        uint64_t ns = draw() % most_ns;
        if (slept_ns + ns <= 500000000u + (now_ns() - begun_ns) / 2) {
            struct timespec pause = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
            slept_ns += ns;
            nanosleep(&pause, NULL);
        }
    }
    errno = kept;
}

#define LATE(one_of, type, name, parameters, arguments)                                             \
    type name parameters {                                                                          \
        static type(*real) parameters;                                                              \
        if (!real)                                                                                  \
            real = (type(*) parameters)dlsym(RTLD_NEXT, #name);                                     \
        late(one_of);                                                                               \
        return real arguments;                                                                      \
    }

LATE(50, ssize_t, send, (int fd, const void *data, size_t size, int flags), (fd, data, size, flags))
LATE(50, ssize_t, sendto,
     (int fd, const void *data, size_t size, int flags, const struct sockaddr *to, socklen_t length),
     (fd, data, size, flags, to, length))
LATE(50, ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
LATE(50, ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))
LATE(3, int, fsync, (int fd), (fd))
LATE(3, int, fdatasync, (int fd), (fd))
