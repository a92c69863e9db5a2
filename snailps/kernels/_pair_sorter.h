/* Skip-gram pairs of a text, sorted by the part and the word that train them.
 *
 * tokens, parts of words -> count_pairs  -> pairs of each key, bundles of each part
 *                        -> place_pairs  -> contexts, sorted by key
 *                        -> order_bundles -> bundles (a centre word, a few of its contexts), in the
 *                                            order of training: 16 shuffled runs side by side
 *
 * A counting sort.  A *key* is an output partition of contexts and a centre word of this input one.
 * The reach of a window is a function of (seed, place in the text) alone: a text sorted for another
 * part has the same windows.  The order in an output partition is one of (seed, it): it is the same
 * where pairs of other parts are left out.
 */
#ifndef SNAILPS_PAIR_SORTER_H
#define SNAILPS_PAIR_SORTER_H

#include <stdint.h>
#include <string.h>

#include "_jobs.h"
#include "_word_vectors.h"

enum {
    SNAIL_PAIRS_AHEAD = 8, /* centres or bundles whose places are asked for ahead */
    SNAIL_RUNS_AHEAD = 8   /* runs among which one is looked for whose word is not at work */
};

/* Where the draws of the order of bundles begin: behind those of all places of a text; and those of
 * each part, behind those of all bundles of the one before. */
#define SNAIL_ORDER_DRAWS (UINT64_C(1) << 40)
#define SNAIL_ORDER_DRAWS_OF_PART (UINT64_C(1) << 31)

SNAIL_INLINE int snail_reach_at(const snail_sort_job *job, int64_t at) {
    return 1 + (int)snail_below(snail_draw(job->stream, (uint64_t)at), (uint64_t)job->window);
}

typedef struct { /* the contexts of a word: tokens begin..end-1 without itself */
    int64_t begin, end;
    int64_t sentence, next; /* its sentence: tokens sentence..next-1 */
} snail_window;

/* The window of the word at `at`, which is behind that of the call before. */
SNAIL_INLINE void snail_slide(const snail_sort_job *job, int64_t at, snail_window *w) {
    const int64_t reach = snail_reach_at(job, at);
    if (at >= w->next) {
        w->sentence = at;
        while (w->sentence > w->next && job->tokens[w->sentence - 1] >= 0) w->sentence--;
        w->next = at + 1;
        while (w->next < job->token_num && job->tokens[w->next] >= 0) w->next++;
    }
    w->begin = at - reach > w->sentence ? at - reach : w->sentence;
    w->end = at + reach + 1 < w->next ? at + reach + 1 : w->next;
}

SNAIL_INLINE int64_t snail_number_of(const snail_sort_job *job, int32_t word) {
    return job->numbers ? job->numbers[word] : word;
}

/* Numbers the words of the input partition; returns how many there are. */
static int64_t snail_number_inputs(const snail_sort_job *job) {
    int32_t found = 0;
    if (!job->inputs) return job->word_num;
    for (int64_t w = 0; w < job->word_num; w++) {
        job->numbers[w] = found;
        found += job->inputs[w] == job->part;
    }
    return found;
}

/* Places of its centres, in the order of the text; returns how many there are.
 *
 * The one loop that runs over all words for each part: no branch in it. */
static int64_t snail_find_centres(const snail_sort_job *job) {
    int64_t found = 0;
    if (!job->inputs)
        for (int64_t i = 0; i < job->token_num; i++) {
            job->places[found] = (int32_t)i;
            found += job->tokens[i] >= 0;
        }
    else
        for (int64_t i = 0; i < job->token_num; i++) {
            const int32_t word = job->tokens[i];
            job->places[found] = (int32_t)i;
            found += (word >= 0) & (job->inputs[word < 0 ? 0 : word] == job->part);
        }
    return found;
}

/* Pairs of each key into `counts`, zeros before; those that are left out, too. */
static void snail_count_pairs(const snail_sort_job *job, int64_t centre_num) {
    snail_window w = {0};
    for (int64_t c = 0; c < centre_num; c++) {
        const int64_t at = job->places[c];
        uint32_t *counts = job->counts + snail_number_of(job, job->tokens[at]) * job->parts;
        snail_slide(job, at, &w);
        if (job->parts == 1) {
            counts[0] += (uint32_t)(w.end - w.begin - 1);
            continue;
        }
        for (int64_t i = w.begin; i < at; i++) counts[job->outputs[job->tokens[i]]]++;
        for (int64_t i = at + 1; i < w.end; i++) counts[job->outputs[job->tokens[i]]]++;
    }
}

/* Pairs of each output partition, and its bundles: `bounds`, parts + 1 of them. */
static void snail_bound_bundles(const snail_sort_job *job, int64_t input_num) {
    const uint32_t most = (uint32_t)job->most;
    memset(job->bounds, 0, (size_t)(job->parts + 1) * sizeof *job->bounds);
    memset(job->pairs, 0, (size_t)job->parts * sizeof *job->pairs);
    for (int64_t n = 0; n < input_num; n++)
        for (int j = 0; j < job->parts; j++) {
            uint32_t *count = job->counts + n * job->parts + j;
            job->pairs[j] += *count;
            *count *= job->kept[j];
            job->bounds[j + 1] += (*count + most - 1) / most;
        }
    for (int j = 0; j < job->parts; j++) job->bounds[j + 1] += job->bounds[j];
}

/* Gives each key its place among the sorted contexts, and its bundles, of sizes as equal as can be.
 * Counts become cursors: where the next context of a key goes; all that are left out go behind the
 * last one. */
static void snail_lay_out_bundles(const snail_sort_job *job) {
    const uint32_t most = (uint32_t)job->most;
    snail_sorted_bundle *next = job->bundles;
    uint32_t first = 0, all = 0;
    for (int j = 0; j < job->parts; j++) all += (uint32_t)job->pairs[j] * job->kept[j];
    for (int j = 0; j < job->parts; j++) {
        uint32_t *key = job->counts + j;
        for (int64_t w = 0; w < job->word_num; w++) {
            if (job->inputs && job->inputs[w] != job->part) continue;
            const uint64_t pairs = *key, num = (pairs + most - 1) / most;
            for (uint64_t b = 0; b < num; b++, next++) {
                next->first = (int32_t)(first + pairs * b / num);
                next->centre = (int32_t)w;
            }
            *key = job->kept[j] ? first : all;
            first += (uint32_t)pairs;
            key += job->parts;
        }
    }
    next->first = (int32_t)first;
}

/* Puts a context where its key's next one goes; one that is left out is written over. */
SNAIL_INLINE void snail_place(const snail_sort_job *job, uint32_t *cursors, int32_t word) {
    const int part = job->outputs[word];
    job->sorted[cursors[part]] = word;
    cursors[part] += job->kept[part];
}

/* Puts each context where its key's next one goes. */
static void snail_place_pairs(const snail_sort_job *job, int64_t centre_num) {
    const int32_t *tokens = job->tokens;
    snail_window w = {0};
    snail_lay_out_bundles(job);
    for (int64_t c = 0; c < centre_num; c++) {
        const int64_t at = job->places[c];
        uint32_t *cursors = job->counts + snail_number_of(job, tokens[at]) * job->parts;
        if (c + 2 * SNAIL_PAIRS_AHEAD < centre_num) {
            const int32_t far = tokens[job->places[c + 2 * SNAIL_PAIRS_AHEAD]];
            const int32_t near = tokens[job->places[c + SNAIL_PAIRS_AHEAD]];
            __builtin_prefetch(job->counts + snail_number_of(job, far) * job->parts, 1, 3);
            __builtin_prefetch(
                job->sorted + job->counts[snail_number_of(job, near) * job->parts], 1, 3);
        }
        snail_slide(job, at, &w);
        if (job->parts == 1) {
            int32_t *to = job->sorted + cursors[0];
            const int64_t end = w.end == at + 1 ? at : w.end; /* the last one is a context */
            cursors[0] += (uint32_t)(w.end - w.begin - 1);
            for (int64_t i = w.begin; i < end; i++) {
                *to = tokens[i];
                to += i != at;
            }
            continue;
        }
        for (int64_t i = w.begin; i < at; i++) snail_place(job, cursors, tokens[i]);
        for (int64_t i = at + 1; i < w.end; i++) snail_place(job, cursors, tokens[i]);
    }
}

SNAIL_INLINE void snail_swap(int32_t *x, int64_t a, int64_t b) {
    const int32_t swap = x[a];
    x[a] = x[b];
    x[b] = swap;
}

/* First bundles of the runs among first..last-1, into `runs`, at random; returns how many. */
static int64_t snail_shuffle_runs(const snail_sort_job *job, int part, int64_t first, int64_t last,
                                  int32_t *runs) {
    const uint64_t draws = SNAIL_ORDER_DRAWS + SNAIL_ORDER_DRAWS_OF_PART * (uint64_t)part;
    int64_t num = 0, begin = first;
    for (int64_t b = first; b < last; b++) {
        const int same = b > first && job->bundles[b].centre == job->bundles[b - 1].centre;
        if (same && b - begin < job->run) continue;
        runs[num++] = (int32_t)b;
        begin = b;
    }
    for (int64_t r = num - 1; r > 0; r--) {
        const uint64_t draw = snail_draw(job->stream, draws + (uint64_t)r);
        snail_swap(runs, r, (int64_t)snail_below(draw, (uint64_t)(r + 1)));
    }
    return num;
}

/* The order in which the bundles of a part are trained: 16 runs side by side, each followed by the
 * next one of `runs` whose word is none of the other 15. */
static void snail_order_part(const snail_sort_job *job, int part, int64_t first, int64_t last) {
    int32_t *order = job->order + first, *runs = order + job->bounds[job->parts];
    const int64_t num = snail_shuffle_runs(job, part, first, last, runs);
    int64_t at[SNAIL_GROUP], end[SNAIL_GROUP], next = 0, done = 0;
    int32_t word[SNAIL_GROUP];
    for (int i = 0; i < SNAIL_GROUP; i++) at[i] = end[i] = word[i] = -1;
    while (done < last - first)
        for (int i = 0; i < SNAIL_GROUP; i++) {
            if (at[i] == end[i]) {
                word[i] = -1;
                for (int64_t r = next; r < snail_least64(num, next + SNAIL_RUNS_AHEAD); r++) {
                    const int32_t centre = job->bundles[runs[r]].centre;
                    int met = 0;
                    for (int k = 0; k < SNAIL_GROUP; k++) met |= word[k] == centre;
                    if (met) continue;
                    snail_swap(runs, r, next);
                    at[i] = end[i] = runs[next++];
                    while (end[i] < last && end[i] - at[i] < job->run &&
                           job->bundles[end[i]].centre == centre)
                        end[i]++;
                    word[i] = centre;
                    break;
                }
            }
            if (at[i] < end[i]) order[done++] = (int32_t)at[i]++;
        }
}

/* Copies the sorted bundles, part by part, in the order of training. */
static void snail_order_bundles(const snail_sort_job *job) {
    const int64_t num = job->bounds[job->parts];
    const int32_t *order = job->order;
    int32_t *to = job->contexts;
    for (int j = 0; j < job->parts; j++)
        snail_order_part(job, j, job->bounds[j], job->bounds[j + 1]);
    for (int64_t b = 0; b < num; b++) {
        if (b + 2 * SNAIL_PAIRS_AHEAD < num) {
            __builtin_prefetch(job->bundles + order[b + 2 * SNAIL_PAIRS_AHEAD], 0, 3);
            __builtin_prefetch(job->sorted + job->bundles[order[b + SNAIL_PAIRS_AHEAD]].first, 0, 3);
        }
        const snail_sorted_bundle *bundle = job->bundles + order[b];
        const int32_t *from = job->sorted + bundle[0].first, *end = job->sorted + bundle[1].first;
        job->centres[b] = bundle->centre;
        job->starts[b] = to - job->contexts;
        int32_t *next = to + (end - from);
        do { /* what is copied too much is written over */
            memcpy(to, from, SNAIL_BUNDLE_COPY * sizeof *to);
            to += SNAIL_BUNDLE_COPY;
            from += SNAIL_BUNDLE_COPY;
        } while (from < end);
        to = next;
    }
    job->starts[num] = to - job->contexts;
}

#endif
