/* Where a key lies in a hash table in memory.  Keyed by a secret of this process, so that keys which a
 * stranger chooses (ids of a log, words of a text) cannot be made to collide, which would slow the table down.
 * The hash differs from process to process: it must never decide what is in a file, on the wire, or the order
 * of a result.  Use `snail_hash_key` for those.
 */
#ifndef SNAILPS_TABLE_HASH_H
#define SNAILPS_TABLE_HASH_H

#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>

#include "_key_hash.h"

static uint64_t snail_secret[2];

/* From the random bytes that the kernel gives each process: all modules must have the same secret, as they
 * share tables. */
__attribute__((constructor)) static void snail_draw_secret(void) {
    const void *drawn = (const void *)getauxval(AT_RANDOM);
    if (drawn != NULL) memcpy(snail_secret, drawn, sizeof snail_secret);
    snail_secret[0] = snail_hash_key(snail_secret[0] ^ snail_hash_key(snail_secret[1]));
    snail_secret[1] = snail_hash_key(snail_secret[1] ^ snail_secret[0]) | 1;
}

/* The two halves of a product, combined: every bit of either factor reaches every bit. */
static inline uint64_t snail_fold(uint64_t a, uint64_t b) {
    const __uint128_t product = (__uint128_t)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* One step of a hash of many words. */
static inline uint64_t snail_table_stir(uint64_t hash, uint64_t word) {
    return snail_fold(hash ^ word, snail_secret[1]);
}

/* The second product spreads regular keys (0, 1, 2, ...) even if the secret is unlucky. */
static inline uint64_t snail_table_hash(uint64_t key) {
    return snail_fold(snail_table_stir(snail_secret[0], key), SNAIL_GOLDEN);
}

#endif
