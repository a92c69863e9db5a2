/* Skip-gram pairs of a text, sorted by the part and the word that train them.
 *
 * tokens, parts of words -> count_pairs -> how many bundles each part has
 *                        -> place_pairs -> bundles: a centre word and a few of its contexts
 *
 * A counting sort: both walk over the same windows, the first to count the pairs of each *key* (a centre
 * word that is resident here, and the visiting part of the context), the second to put each context
 * where its bundle is.  The order of bundles is drawn before, so a context is written once.
 *
 * The reach of a window is a function of (seed, place in the text) alone: whoever sorts the same text
 * for another part, meets the same windows.
 */
#ifndef SNAILPS_PAIR_SORTER_H
#define SNAILPS_PAIR_SORTER_H

#include <stdint.h>
#include <string.h>

#include "_jobs.h"
#include "_word_vectors.h"

enum { SNAIL_PAIRS_AHEAD = 8 }; /* centres whose keys are asked for ahead */

/* Where the draws of the order of bundles begin: behind those of all places of a text. */
#define SNAIL_ORDER_DRAWS (UINT64_C(1) << 40)

SNAIL_INLINE int snail_reach_at(const snail_sort_job *job, int64_t at) {
    return 1 + (int)snail_below(snail_draw(job->stream, (uint64_t)at), (uint64_t)job->window);
}

/* The contexts of the word at `at`: tokens begin..end-1 without itself. */
SNAIL_INLINE void snail_window_at(const snail_sort_job *job, int64_t at, int64_t *begin,
                                  int64_t *end) {
    const int64_t reach = snail_reach_at(job, at);
    const int64_t first = at < reach ? 0 : at - reach;
    const int64_t last = job->token_num - at <= reach ? job->token_num : at + reach + 1;
    int64_t left = at, right = at + 1;
    while (left > first && job->tokens[left - 1] >= 0) left--;
    while (right < last && job->tokens[right] >= 0) right++;
    *begin = left;
    *end = right;
}

SNAIL_INLINE int64_t snail_number_of(const snail_sort_job *job, int32_t word) {
    return job->numbers ? job->numbers[word] : word;
}

/* Numbers the resident words; returns how many there are. */
static int64_t snail_number_residents(const snail_sort_job *job) {
    int32_t found = 0;
    if (!job->resident) return job->word_num;
    for (int64_t w = 0; w < job->word_num; w++) {
        job->numbers[w] = found;
        found += job->resident[w] == job->part;
    }
    return found;
}

/* Places of the resident centres, in the order of the text; returns how many there are.
 *
 * The one loop that runs over all words for each part: no branch in it. */
static int64_t snail_find_centres(const snail_sort_job *job) {
    int64_t found = 0;
    if (!job->resident)
        for (int64_t i = 0; i < job->token_num; i++) {
            job->places[found] = (int32_t)i;
            found += job->tokens[i] >= 0;
        }
    else
        for (int64_t i = 0; i < job->token_num; i++) {
            const int32_t word = job->tokens[i];
            job->places[found] = (int32_t)i;
            found += (word >= 0) & (job->resident[word < 0 ? 0 : word] == job->part);
        }
    return found;
}

/* Pairs of each key into `counts`, zeros before; returns their sum. */
static int64_t snail_count_pairs(const snail_sort_job *job, int64_t centre_num) {
    int64_t total = 0, begin, end;
    for (int64_t c = 0; c < centre_num; c++) {
        const int64_t at = job->places[c];
        uint32_t *counts = job->counts + snail_number_of(job, job->tokens[at]) * job->parts;
        snail_window_at(job, at, &begin, &end);
        total += end - begin - 1;
        if (job->parts == 1) {
            counts[0] += (uint32_t)(end - begin - 1);
            continue;
        }
        for (int64_t i = begin; i < at; i++) counts[job->visiting[job->tokens[i]]]++;
        for (int64_t i = at + 1; i < end; i++) counts[job->visiting[job->tokens[i]]]++;
    }
    return total;
}

/* Bundles of each visiting part: `bounds`, parts + 1 of them. */
static void snail_bound_bundles(const snail_sort_job *job, int64_t resident_num) {
    const uint32_t most = (uint32_t)job->most;
    memset(job->bounds, 0, (size_t)(job->parts + 1) * sizeof *job->bounds);
    for (int64_t n = 0; n < resident_num; n++)
        for (int j = 0; j < job->parts; j++)
            job->bounds[j + 1] += (job->counts[n * job->parts + j] + most - 1) / most;
    for (int j = 0; j < job->parts; j++) job->bounds[j + 1] += job->bounds[j];
}

/* The order in which the bundles of a part are trained: places first..last-1 at random. */
static void snail_shuffle_bundles(const snail_sort_job *job, int64_t first, int64_t last) {
    int32_t *order = job->order;
    for (int64_t b = first; b < last; b++) order[b] = (int32_t)b;
    for (int64_t b = last - 1; b > first; b--) {
        const uint64_t draw = snail_draw(job->stream, SNAIL_ORDER_DRAWS + (uint64_t)b);
        const int64_t other = first + (int64_t)snail_below(draw, (uint64_t)(b - first + 1));
        const int32_t swap = order[b];
        order[b] = order[other];
        order[other] = swap;
    }
}

/* Gives each key its bundles, of sizes as equal as can be. */
static void snail_lay_out_bundles(const snail_sort_job *job) {
    const uint32_t most = (uint32_t)job->most;
    for (int j = 0; j < job->parts; j++) {
        int64_t next = job->bounds[j], number = 0;
        snail_shuffle_bundles(job, next, job->bounds[j + 1]);
        for (int64_t w = 0; w < job->word_num; w++) {
            if (job->resident && job->resident[w] != job->part) continue;
            const int64_t key = number++ * job->parts + j;
            const uint64_t pairs = job->counts[key], bundles = (pairs + most - 1) / most;
            job->cursors[key].bundle = (int32_t)next;
            job->cursors[key].left = 0;
            for (uint64_t b = 0; b < bundles; b++) {
                const int64_t at = job->order[next++];
                job->centres[at] = (int32_t)w;
                job->starts[at + 1] =
                    (int64_t)(pairs * (b + 1) / bundles - pairs * b / bundles);
            }
        }
    }
    job->starts[0] = 0;
    for (int64_t b = 0; b < job->bounds[job->parts]; b++) job->starts[b + 1] += job->starts[b];
}

SNAIL_INLINE void snail_place_pair(const snail_sort_job *job, snail_sort_cursor *cursor,
                                   int32_t context) {
    if (cursor->left == 0) {
        const int64_t bundle = job->order[cursor->bundle++];
        cursor->at = (int32_t)job->starts[bundle];
        cursor->left = (int32_t)(job->starts[bundle + 1] - job->starts[bundle]);
    }
    cursor->left--;
    job->contexts[cursor->at++] = context;
}

/* Everything that follows the counts. */
static void snail_place_pairs(const snail_sort_job *job, int64_t centre_num) {
    const int32_t *tokens = job->tokens;
    int64_t begin, end;
    snail_lay_out_bundles(job);
    for (int64_t c = 0; c < centre_num; c++) {
        const int64_t at = job->places[c];
        snail_sort_cursor *cursors = job->cursors + snail_number_of(job, tokens[at]) * job->parts;
        if (c + SNAIL_PAIRS_AHEAD < centre_num) {
            const int32_t ahead = tokens[job->places[c + SNAIL_PAIRS_AHEAD]];
            __builtin_prefetch(job->cursors + snail_number_of(job, ahead) * job->parts, 1, 3);
        }
        snail_window_at(job, at, &begin, &end);
        if (job->parts == 1) {
            for (int64_t i = begin; i < at; i++) snail_place_pair(job, cursors, tokens[i]);
            for (int64_t i = at + 1; i < end; i++) snail_place_pair(job, cursors, tokens[i]);
        } else {
            for (int64_t i = begin; i < at; i++)
                snail_place_pair(job, cursors + job->visiting[tokens[i]], tokens[i]);
            for (int64_t i = at + 1; i < end; i++)
                snail_place_pair(job, cursors + job->visiting[tokens[i]], tokens[i]);
        }
    }
}

#endif
