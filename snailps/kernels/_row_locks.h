/* Locks of rows that several threads add to: one thread at a time.
 *
 * address of a row -> one of a few locks -> taken or not
 *
 * Two threads that add a copy's differences to one row at once lose those of one of them: of every
 * example since its last exchange.  A lock is held for some 100 instructions; rows share locks, so
 * `snail_row_try` may fail though no thread adds to this row.  A thread holds one lock at a time.
 */
#ifndef SNAILPS_ROW_LOCKS_H
#define SNAILPS_ROW_LOCKS_H

#include <sched.h>
#include <stdint.h>

#define SNAIL_LOCK_NUM 64 /* a cache line each */

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
    while (!snail_row_try(row)) sched_yield(); /* its holder may wait for this very core */
}

static inline void snail_row_give(const float *row) {
    __atomic_clear(snail_row_lock_of(row), __ATOMIC_RELEASE);
}

#endif
