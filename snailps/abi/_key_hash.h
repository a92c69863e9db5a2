/* The one hash of keys that is the same everywhere: used by clients and shards (which fragment) and the
 * initialisers (a row's first value); tables in memory have `_table_hash.h`.  SplitMix64's finaliser:
 * G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
 *
 * Part of the formats: a frame's fragments, a checkpoint's sections and the first value of every row follow
 * from it.  It may change only with a new version of the wire and of the checkpoints.
 */
#ifndef SNAILPS_KEY_HASH_H
#define SNAILPS_KEY_HASH_H

#include <stdint.h>

#define SNAIL_GOLDEN UINT64_C(0x9E3779B97F4A7C15)

/* A bijection on 64 bits in which every input bit reaches every output bit. */
static inline uint64_t snail_mix64(uint64_t x) {
    x ^= x >> 30;
    x *= UINT64_C(0xBF58476D1CE4E5B9);
    x ^= x >> 27;
    x *= UINT64_C(0x94D049BB133111EB);
    x ^= x >> 31;
    return x;
}

/* Hash of a key; the golden-ratio step keeps key 0 off the fixed point of mix64. */
static inline uint64_t snail_hash_key(uint64_t key) { return snail_mix64(key + SNAIL_GOLDEN); }

/* Fragment of a hashed key: the *high* 32 bits scaled to 0..frag_num-1. */
static inline uint32_t snail_fragment_of_hash(uint64_t hashed, uint32_t frag_num) {
    return (uint32_t)(((hashed >> 32) * frag_num) >> 32);
}

#endif
