/* The least value of each key that came more than once: two bit filters, then rows.
 *
 * keys -> snail_choose -> those that need a look -> snail_group -> one shard after the other, under its lock
 *
 * Nine of ten keys of pages come once and need no row.  The first filter says whether a key was seen, the
 * second whether it was seen again; the bits of a key lie in one line of 64 bytes of each.  A key that came
 * twice is never missed; one that came once may look repeated, and gets a row that nobody needs (one of sixty
 * at 8 bits a key).  The least value is kept whatever the order, and a push may come twice.
 *
 * Grouped by shard, the keys of a large batch find their lines in the processor's cache.
 */
#ifndef SNAILPS_DUPLICATES_LEAST_ROWS_H
#define SNAILPS_DUPLICATES_LEAST_ROWS_H

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_pages.h"

#define SNAIL_NO_VALUE (~(uint64_t)0)
#define SNAIL_LINE 8   /* words of 64 bits in a line */
#define SNAIL_PLACES 4 /* bits of a key in its line */
#define SNAIL_AHEAD 16 /* keys whose lines are fetched ahead */

typedef struct snail_cell {
    uint64_t hash, value; /* no value: free */
} snail_cell;

typedef struct snail_shard {
    _Alignas(64) pthread_mutex_t lock;
    snail_cell *cells; /* 2^bits, a quarter of them free; NULL before the first row */
    int bits;
    uint64_t used;
} snail_shard;

typedef struct snail_least_rows {
    snail_shard *shards;              /* 2^shard_bits */
    uint64_t *seen, *again;           /* lines of all shards, one shard after the other */
    uint64_t seen_lines, again_lines; /* of a shard */
    int shard_bits;
} snail_least_rows;

/* Keys of a batch; when they are grouped, in the order of shards, each from `begin` of its number on. */
typedef struct snail_chosen {
    uint64_t *hashes;
    int64_t *places; /* where each key stood in the batch; NULL: nobody asks */
} snail_chosen;

static inline uint64_t snail_shard_of(const snail_least_rows *table, uint64_t hash) {
    return hash >> (64 - table->shard_bits);
}

/* The line of a key among `count` of its shard. */
static inline uint64_t *snail_line_of(const snail_least_rows *table, uint64_t *lines, uint64_t count, uint64_t hash) {
    const uint64_t line = (uint64_t)((unsigned __int128)(hash << table->shard_bits) * count >> 64);
    return lines + SNAIL_LINE * (snail_shard_of(table, hash) * count + line);
}

/* Whether all bits of a key are set. */
static inline int snail_has_bits(const uint64_t *line, uint64_t hash) {
    uint64_t all = 1;
    for (int i = 0; i < SNAIL_PLACES; i++, hash >>= 9) all &= line[hash >> 6 & 7] >> (hash & 63);
    return (int)(all & 1);
}

static inline void snail_set_bits(uint64_t *line, uint64_t hash) {
    for (int i = 0; i < SNAIL_PLACES; i++, hash >>= 9) line[hash >> 6 & 7] |= (uint64_t)1 << (hash & 63);
}

/* Hashes of the keys but NO_KEY; with `again`, of those that were noted more than once: the second filter is read
 * without a lock, as nothing is noted while keys are pushed or pulled.  How many. */
static int64_t snail_choose(const snail_least_rows *table, const uint64_t *keys, int64_t count, int again,
                            snail_chosen *chosen) {
    int64_t used = 0;
    for (int64_t at = 0; at < count; at += SNAIL_AHEAD) {
        const int64_t many = count - at < SNAIL_AHEAD ? count - at : SNAIL_AHEAD;
        uint64_t hashes[SNAIL_AHEAD], *lines[SNAIL_AHEAD];
        for (int64_t i = 0; i < many; i++) {
            hashes[i] = snail_mix(keys[at + i]);
            if (!again) continue;
            lines[i] = snail_line_of(table, table->again, table->again_lines, hashes[i]);
            __builtin_prefetch(lines[i]);
        }
        for (int64_t i = 0; i < many; i++) {
            chosen->hashes[used] = hashes[i];
            if (chosen->places) chosen->places[used] = at + i;
            used += keys[at + i] != SNAIL_NO_KEY && (!again || snail_has_bits(lines[i], hashes[i]));
        }
    }
    return used;
}

/* Groups keys by shard; `begin`: 2^shard_bits + 1 places. */
static void snail_group(const snail_least_rows *table, const snail_chosen *chosen, int64_t count,
                        snail_chosen *grouped, int64_t *begin) {
    const int64_t shards = (int64_t)1 << table->shard_bits;
    memset(begin, 0, sizeof(int64_t) * (size_t)(shards + 1));
    for (int64_t i = 0; i < count; i++) begin[snail_shard_of(table, chosen->hashes[i]) + 1]++;
    for (int64_t shard = 0; shard < shards; shard++) begin[shard + 1] += begin[shard];
    for (int64_t i = 0; i < count; i++) {
        const int64_t to = begin[snail_shard_of(table, chosen->hashes[i])]++;
        grouped->hashes[to] = chosen->hashes[i];
        if (grouped->places) grouped->places[to] = chosen->places[i];
    }
    memmove(begin + 1, begin, sizeof(int64_t) * (size_t)shards); /* each had moved to the next one's beginning */
    begin[0] = 0;
}

static void snail_note(const snail_least_rows *table, const uint64_t *hashes, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (i + SNAIL_AHEAD < count)
            __builtin_prefetch(snail_line_of(table, table->seen, table->seen_lines, hashes[i + SNAIL_AHEAD]), 1);
        uint64_t *line = snail_line_of(table, table->seen, table->seen_lines, hashes[i]);
        if (snail_has_bits(line, hashes[i]))
            snail_set_bits(snail_line_of(table, table->again, table->again_lines, hashes[i]), hashes[i]);
        else snail_set_bits(line, hashes[i]);
    }
}

static inline uint64_t snail_cell_of(const snail_shard *shard, uint64_t hash, int shard_bits) {
    const uint64_t mask = ((uint64_t)1 << shard->bits) - 1;
    uint64_t at = (hash << shard_bits) >> (64 - shard->bits);
    while (shard->cells[at].value != SNAIL_NO_VALUE && shard->cells[at].hash != hash) at = (at + 1) & mask;
    return at;
}

/* Room for one more row; 0, or -1: no memory, and nothing has changed. */
static int snail_grow(snail_shard *shard, int shard_bits) {
    if (shard->cells && 4 * (shard->used + 1) <= (uint64_t)3 << shard->bits) return 0;
    snail_shard larger = *shard;
    larger.bits = shard->cells ? shard->bits + 1 : 4;
    larger.cells = malloc(sizeof(snail_cell) << larger.bits);
    if (!larger.cells) return -1;
    memset(larger.cells, 255, sizeof(snail_cell) << larger.bits);
    if (shard->cells)
        for (uint64_t i = 0; i < (uint64_t)1 << shard->bits; i++)
            if (shard->cells[i].value != SNAIL_NO_VALUE)
                larger.cells[snail_cell_of(&larger, shard->cells[i].hash, shard_bits)] = shard->cells[i];
    free(shard->cells);
    shard->cells = larger.cells;
    shard->bits = larger.bits;
    return 0;
}

static inline void snail_fetch_cell(const snail_least_rows *table, const snail_shard *shard, uint64_t hash) {
    __builtin_prefetch(shard->cells + ((hash << table->shard_bits) >> (64 - shard->bits)), 1);
}

/* 0, or -1: no memory; what was pushed stays. */
static int snail_push(const snail_least_rows *table, snail_shard *shard, const uint64_t *hashes,
                      const int64_t *places, int64_t count, const uint64_t *values) {
    for (int64_t i = 0; i < count; i++) {
        const uint64_t value = values[places[i]];
        if (value == SNAIL_NO_VALUE) continue;
        if (snail_grow(shard, table->shard_bits)) return -1;
        if (i + SNAIL_AHEAD < count) snail_fetch_cell(table, shard, hashes[i + SNAIL_AHEAD]);
        snail_cell *cell = shard->cells + snail_cell_of(shard, hashes[i], table->shard_bits);
        if (cell->value == SNAIL_NO_VALUE) cell->hash = hashes[i], shard->used++;
        if (value < cell->value) cell->value = value;
    }
    return 0;
}

static void snail_pull(const snail_least_rows *table, const snail_shard *shard, const uint64_t *hashes,
                       const int64_t *places, int64_t count, uint64_t *values) {
    if (!shard->cells) return;
    for (int64_t i = 0; i < count; i++) {
        if (i + SNAIL_AHEAD < count) snail_fetch_cell(table, shard, hashes[i + SNAIL_AHEAD]);
        values[places[i]] = shard->cells[snail_cell_of(shard, hashes[i], table->shard_bits)].value;
    }
}

#endif
