/* Locks for rows to which several threads add: one thread at a time.
 *
 * address of a row -> one of a few locks -> taken or not
 *
 * Without a lock, two threads that add the differences of their copies to one row at the same time would
 * lose the differences of one thread: all steps since its last exchange, not only one as in Hogwild.
 *
 * Take is an acquire and give a release, so the holder sees every addition made under the same lock before.
 * A lock is held for some 100 instructions.  Rows share locks, so `snail_row_try` may fail although no
 * thread adds to this row.  A thread holds one lock at a time, so there is no deadlock.
 */
#ifndef SNAILPS_ROW_LOCKS_H
#define SNAILPS_ROW_LOCKS_H

#include <sched.h>
#include <stdint.h>

#define SNAIL_LOCK_NUM 64 /* 2^6: the hash below keeps 6 bits.  A cache line each: no false sharing */

static struct {
    _Alignas(64) unsigned char taken;
} snail_row_locks[SNAIL_LOCK_NUM];

static inline unsigned char *snail_row_lock_of(const float *row) {
    const uint64_t line = (uint64_t)(uintptr_t)row >> 6;
    return &snail_row_locks[(line * 0x9E3779B97F4A7C15u) >> 58].taken;
}

static inline int snail_row_try(const float *row) {
    return !__atomic_test_and_set(snail_row_lock_of(row), __ATOMIC_ACQUIRE);
}

static inline void snail_row_take(const float *row) {
    /* Not a busy loop: the holder may be a thread that waits for this very core. */
    while (!snail_row_try(row)) sched_yield();
}

static inline void snail_row_give(const float *row) {
    __atomic_clear(snail_row_lock_of(row), __ATOMIC_RELEASE);
}

#endif
