/* Skip-gram pairs of a text, sorted by the part and the word that train them.
 *
 * tokens, parts of words -> sort_centres  -> places in the text, by centre word
 *                        -> split_pairs   -> contexts of each output partition, by centre word
 *         of a partition -> order_bundles -> bundles (a centre word, a few of its contexts), in the
 *                                            order of training: 16 shuffled runs side by side
 *
 * Only places are sorted, each with a window of contexts; contexts are then written sequentially.
 *
 * What holds, so that a block has the same pairs whoever sorts it: the reach of a window depends only on
 * (seed, place in the text), also if the text is sorted for another part, or without the tokens that no
 * window of this part has.  The order in an output partition depends only on (seed, partition), also if
 * pairs of other parts are left out.  Nothing here is shared between threads.
 */
#ifndef SNAILPS_PAIR_SORTER_H
#define SNAILPS_PAIR_SORTER_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_jobs.h"
#include "_word_vectors.h"

enum {
    SNAIL_PAIRS_AHEAD = 8, /* how many windows or bundles ahead are prefetched */
    SNAIL_RUNS_AHEAD = 8   /* runs among which one is sought whose word is in no other lane */
};

/* Numbers of random draws.  Draws of the order of bundles begin after the draws of all places of a text,
 * and draws of a part after those of all bundles of the part before, so that no draw is used twice. */
#define SNAIL_ORDER_DRAWS (UINT64_C(1) << 40)
#define SNAIL_ORDER_DRAWS_OF_PART (UINT64_C(1) << 31)

SNAIL_INLINE int snail_reach_at(const snail_sort_job *job, int64_t at) {
    const uint64_t place = (uint64_t)(job->origins ? job->origins[at] : at);
    const uint64_t reaches = (uint64_t)(job->window - job->reach_min + 1);
    return job->reach_min + (int)snail_below(snail_draw(job->stream, place), reaches);
}

typedef struct { /* of a place: its sentence, tokens begin..end-1 */
    int64_t begin, end;
} snail_sentence;

/* The window of the word at `at`.  Places must ascend from call to call: `s` has the last sentence. */
SNAIL_INLINE snail_window snail_window_at(const snail_sort_job *job, int64_t at, snail_sentence *s) {
    const int64_t reach = snail_reach_at(job, at);
    if (at >= s->end) {
        s->begin = at;
        while (s->begin > s->end && job->tokens[s->begin - 1] >= 0) s->begin--;
        s->end = at + 1;
        while (s->end < job->token_num && job->tokens[s->end] >= 0) s->end++;
    }
    const snail_window found = {
        (int32_t)at,
        (uint16_t)snail_least64(reach, at - s->begin),
        (uint16_t)snail_least64(reach, s->end - 1 - at),
    };
    return found;
}

/* Numbers the words of the input partition; returns how many there are: `input_num`. */
static int64_t snail_number_inputs(const snail_sort_job *job) {
    int32_t found = 0;
    for (int64_t w = 0; w < job->word_num; w++) {
        job->words[found] = (int32_t)w;
        job->numbers[w] = found;
        found += !job->inputs || job->inputs[w] == job->part;
    }
    return found;
}

/* Collects the places of the part's centres, in the order of the text; returns how many there are.
 *
 * It has no branch, because it is the only loop that runs over all words for each part.  A place is
 * written at the end of the list in any case, and counted only if it is a centre. */
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

/* Sorts the windows of these places by the number of their word; windows of a word stay in the order of
 * the text.  Word n has ``sorted[first[n]..first[n + 1] - 1]``. */
static void snail_sort_centres(const snail_sort_job *job, int64_t centre_num) {
    const int64_t input_num = job->input_num;
    snail_sentence sentence = {0};
    int32_t *next = job->first;
    memset(next, 0, (size_t)(input_num + 1) * sizeof *next);
    for (int64_t c = 0; c < centre_num; c++) next[job->numbers[job->tokens[job->places[c]]]]++;
    for (int64_t n = 0, before = 0; n <= input_num; n++) {
        const int32_t found = next[n];
        next[n] = (int32_t)before;
        before += found;
    }
    for (int64_t c = 0; c < centre_num; c++) {
        const int32_t at = job->places[c];
        job->sorted[next[job->numbers[job->tokens[at]]]++] = snail_window_at(job, at, &sentence);
    }
    memmove(next + 1, next, (size_t)input_num * sizeof *next); /* the starts have moved on to ends */
    next[0] = 0;
}

/* Makes room for `more` contexts; false: there is no memory. */
static int snail_reserve(snail_contexts *found, int64_t more) {
    if (found->size + more <= found->room) return 1;
    const int64_t room = found->size + more + found->room / 2;
    int32_t *grown =
        (int32_t *)realloc(found->words, (size_t)(room + SNAIL_BUNDLE_COPY) * sizeof *grown);
    if (!grown) return 0;
    found->words = grown;
    found->room = room;
    return 1;
}

/* Appends the contexts of a window to their parts, which end at `ends`. */
SNAIL_INLINE void snail_split_window(const snail_sort_job *job, snail_window w, int32_t **ends) {
    const int32_t *at = job->tokens + w.at, *end = at + w.right;
    if (!job->outputs) {
        int32_t *to = ends[0];
        for (const int32_t *word = at - w.left; word <= end; word++) {
            *to = *word;
            to += word != at;
        }
        ends[0] = to;
        return;
    }
    for (const int32_t *word = at - w.left; word <= end; word++) {
        const int part = job->outputs[*word];
        int32_t *to = ends[part];
        *to = *word;
        ends[part] = to + (word != at);
    }
}

/* Writes the contexts of each output partition, by centre word, into `split`, and their number per word
 * into `counts`; `pairs` also counts pairs that are left out.  False: there is no memory. */
static int snail_split_pairs(const snail_sort_job *job) {
    const int64_t input_num = job->input_num;
    const snail_window *w = job->sorted, *last = w + job->first[input_num];
    int64_t all = 0;
    for (const snail_window *one = w; one < last; one++) all += one->left + one->right;
    memset(job->pairs, 0, (size_t)job->parts * sizeof *job->pairs);
    for (int j = 0; j < job->parts; j++) /* parts are about as large as each other */
        if (!snail_reserve(job->split + j, 1 + all * job->kept[j] / job->parts)) return 0;
    for (int64_t n = 0; n < input_num; n++) {
        const snail_window *end = job->sorted + job->first[n + 1];
        int64_t most = 1;
        for (const snail_window *one = w; one < end; one++) most += one->left + one->right;
        for (int j = 0; j < job->parts; j++) {
            if (!snail_reserve(job->split + j, most)) return 0;
            job->ends[j] = job->split[j].words + job->split[j].size;
        }
        for (; w < end; w++) {
            if (last - w > SNAIL_PAIRS_AHEAD)
                __builtin_prefetch(job->tokens + w[SNAIL_PAIRS_AHEAD].at, 0, 3);
            snail_split_window(job, *w, job->ends);
        }
        for (int j = 0; j < job->parts; j++) {
            snail_contexts *found = job->split + j;
            const int64_t count = job->ends[j] - found->words - found->size;
            job->pairs[j] += count;
            found->size += count * job->kept[j];
            job->counts[j * input_num + n] = (uint32_t)(count * job->kept[j]);
        }
    }
    return 1;
}

/* Counts the bundles of a part. */
static int64_t snail_count_bundles(const snail_sort_job *job, int part) {
    const uint32_t most = (uint32_t)job->most, *counts = job->counts + part * job->input_num;
    int64_t found = 0;
    for (int64_t n = 0; n < job->input_num; n++) found += (counts[n] + most - 1) / most;
    return found;
}

/* Cuts the contexts of a part into bundles of sizes that are as equal as possible. */
static void snail_lay_out_bundles(const snail_sort_job *job, int part) {
    const uint32_t most = (uint32_t)job->most, *counts = job->counts + part * job->input_num;
    snail_sorted_bundle *next = job->bundles;
    uint32_t first = 0;
    for (int64_t n = 0; n < job->input_num; n++) {
        const uint64_t pairs = counts[n], num = (pairs + most - 1) / most;
        for (uint64_t b = 0; b < num; b++, next++) {
            next->first = (int32_t)(first + pairs * b / num);
            next->centre = job->words[n];
        }
        first += (uint32_t)pairs;
    }
    next->first = (int32_t)first;
}

SNAIL_INLINE void snail_swap(int32_t *x, int64_t a, int64_t b) {
    const int32_t swap = x[a];
    x[a] = x[b];
    x[b] = swap;
}

/* Writes the first bundle of each run of a part into `runs`, in random order; returns their number. */
static int64_t snail_shuffle_runs(const snail_sort_job *job, int part, int64_t bundle_num,
                                  int32_t *runs) {
    const uint64_t draws = SNAIL_ORDER_DRAWS + SNAIL_ORDER_DRAWS_OF_PART * (uint64_t)part;
    int64_t num = 0, begin = 0;
    for (int64_t b = 0; b < bundle_num; b++) {
        const int same = b > 0 && job->bundles[b].centre == job->bundles[b - 1].centre;
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

/* Decides the order in which the bundles of a part are trained: 16 runs side by side, one a lane.  A run
 * that ends is followed by the next of `runs` whose word is in none of the other 15 lanes, because a group
 * must not have a word twice.  If the next SNAIL_RUNS_AHEAD runs all clash, the lane stays empty. */
static void snail_order_part(const snail_sort_job *job, int part, int64_t bundle_num) {
    int32_t *order = job->order, *runs = order + bundle_num;
    const int64_t num = snail_shuffle_runs(job, part, bundle_num, runs);
    int64_t at[SNAIL_GROUP], end[SNAIL_GROUP], next = 0, done = 0;
    int32_t word[SNAIL_GROUP];
    for (int i = 0; i < SNAIL_GROUP; i++) at[i] = end[i] = word[i] = -1;
    while (done < bundle_num)
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
                    while (end[i] < bundle_num && end[i] - at[i] < job->run &&
                           job->bundles[end[i]].centre == centre)
                        end[i]++;
                    word[i] = centre;
                    break;
                }
            }
            if (at[i] < end[i]) order[done++] = (int32_t)at[i]++;
        }
}

/* Copies the `num` bundles of a part in the order of training. */
static void snail_order_bundles(const snail_sort_job *job, int part, int64_t num) {
    const int32_t *order = job->order, *words = job->split[part].words;
    int32_t *to = job->contexts;
    snail_lay_out_bundles(job, part);
    snail_order_part(job, part, num);
    for (int64_t b = 0; b < num; b++) {
        if (b + 2 * SNAIL_PAIRS_AHEAD < num) {
            __builtin_prefetch(job->bundles + order[b + 2 * SNAIL_PAIRS_AHEAD], 0, 3);
            __builtin_prefetch(words + job->bundles[order[b + SNAIL_PAIRS_AHEAD]].first, 0, 3);
        }
        const snail_sorted_bundle *bundle = job->bundles + order[b];
        const int32_t *from = words + bundle[0].first, *end = words + bundle[1].first;
        job->centres[b] = bundle->centre;
        job->starts[b] = to - job->contexts;
        int32_t *next = to + (end - from);
        do { /* whole blocks are copied: the next bundle overwrites what is too much */
            memcpy(to, from, SNAIL_BUNDLE_COPY * sizeof *to);
            to += SNAIL_BUNDLE_COPY;
            from += SNAIL_BUNDLE_COPY;
        } while (from < end);
        to = next;
    }
    job->starts[num] = to - job->contexts;
}

#endif
