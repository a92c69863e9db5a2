/* A sketch of a set: bins, each of which keeps the least of the values that fall into it.
 *
 * bytes of a value -> snail_value_hash -> snail_put -> bins -> snail_copy_bins (_pages.h): none is empty
 *
 * One permutation serves all bins (Li, Owen, Zhang, NIPS 2012): a value costs one hash, however many bins there are.
 */
#ifndef SNAILPS_DUPLICATES_BINS_H
#define SNAILPS_DUPLICATES_BINS_H

#include "_pages.h"

/* The hash of docs/duplicates.md for a word, of bytes that nothing need follow. */
static inline uint64_t snail_value_hash(const uint8_t *bytes, uint64_t length) {
    uint64_t pieces[2] = {0, 0}, first, second, hash = SNAIL_RADIX ^ length;
    for (; length > 16; length -= 16, bytes += 16) {
        memcpy(&first, bytes, 8);
        memcpy(&second, bytes + 8, 8);
        hash = snail_fold(hash ^ first, 0xA0761D6478BD642Fu ^ second);
    }
    if (length >= 8) { /* the last eight bytes overlap the first ones */
        memcpy(pieces, bytes, 8);
        memcpy(pieces + 1, bytes + length - 8, 8);
        pieces[1] = length == 8 ? 0 : pieces[1] >> (8 * (16 - length));
    } else {
        for (uint64_t i = 0; i < length; i++) pieces[0] |= (uint64_t)bytes[i] << (8 * i);
    }
    return snail_fold(hash ^ pieces[0], 0xE7037ED1A0B428DBu ^ pieces[1]);
}

/* Puts a hash into its bin; `turn`: of the sketch's seed. */
static inline void snail_put(uint32_t *bins, uint32_t count, uint64_t turn, uint64_t hash) {
    const uint64_t x = snail_mix(hash ^ turn);
    const uint32_t bin = (uint32_t)((x >> 32) * count >> 32), value = (uint32_t)x & ~(uint32_t)1; /* never empty's */
    bins[bin] = value < bins[bin] ? value : bins[bin];
}

#endif
