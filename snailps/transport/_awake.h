/* The clock of waits: see `_awake.pyx`.  Included by that module only: there is one state in a process. */
#ifndef SNAIL_AWAKE_H
#define SNAIL_AWAKE_H
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <time.h>

#define SNAIL_TICK_MS 50
/* A gap of this length between two ticks is a stop of the process.  A thread that waits for a core is rarely as late;
   when it is, limits last longer by that much. */
#define SNAIL_GAP_S 0.25

typedef struct {
    double at;    /* monotonic time of the last tick */
    double slept; /* seconds of all stops until then */
} snail_tick;

/* Two, written in turn: a reader takes the one that the version names, and the other one is not written for a tick. */
static struct {
    snail_tick ticks[2];
    uint64_t version;
    int watched; /* a thread ticks */
    int prepared;
} snail_clock;

static double snail_monotonic_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Seconds of stops until now; `now` gets the monotonic time.  A stop that no tick has noticed yet counts already:
   after it, any thread may be the first to run. */
static double snail_slept_s(double *now) {
    uint64_t version;
    snail_tick tick;
    double gap;
    do {
        version = __atomic_load_n(&snail_clock.version, __ATOMIC_ACQUIRE);
        __atomic_load(&snail_clock.ticks[version & 1].at, &tick.at, __ATOMIC_RELAXED);
        __atomic_load(&snail_clock.ticks[version & 1].slept, &tick.slept, __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        *now = snail_monotonic_s();
    } while (version != __atomic_load_n(&snail_clock.version, __ATOMIC_RELAXED));
    gap = *now - tick.at;
    if (gap > SNAIL_GAP_S && __atomic_load_n(&snail_clock.watched, __ATOMIC_RELAXED))
        tick.slept += gap - SNAIL_GAP_S;
    return tick.slept;
}

static void snail_put_tick(double at, double slept) {
    uint64_t version = snail_clock.version + 1;
    __atomic_store(&snail_clock.ticks[version & 1].at, &at, __ATOMIC_RELAXED);
    __atomic_store(&snail_clock.ticks[version & 1].slept, &slept, __ATOMIC_RELAXED);
    __atomic_store_n(&snail_clock.version, version, __ATOMIC_RELEASE);
}

static void *snail_keep_ticking(void *nothing) {
    double now, slept;
    for (;;) {
        slept = snail_slept_s(&now);
        snail_put_tick(now, slept);
        poll(NULL, 0, SNAIL_TICK_MS);
    }
    return nothing;
}

/* A fork has no thread that ticks, and counts on without one. */
static void snail_forked(void) {
    __atomic_store_n(&snail_clock.watched, 0, __ATOMIC_RELAXED);
}

/* Has a thread tick, if none does.  Without one the clock is the monotonic one.  The caller holds the GIL. */
static void snail_watch(void) {
    pthread_t thread;
    sigset_t all, before;
    double now, slept;
    if (__atomic_load_n(&snail_clock.watched, __ATOMIC_RELAXED))
        return;
    if (!snail_clock.prepared) {
        snail_clock.prepared = 1;
        pthread_atfork(NULL, NULL, snail_forked);
    }
    slept = snail_slept_s(&now);
    snail_put_tick(now, slept);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for Python's threads */
    if (pthread_create(&thread, NULL, snail_keep_ticking, NULL) == 0) {
        pthread_detach(thread);
        __atomic_store_n(&snail_clock.watched, 1, __ATOMIC_RELAXED);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
#endif
