/* Pages as near-duplicates are found by: words, 3-grams, keys, sets, and windows of benchmarks.
 *
 * bytes -> snail_read_words -> hashes of words, 128 bits of their sequence
 *     -> snail_grams -> 32-bit hashes of 3-grams -> snail_page_keys, snail_distinct
 *     -> snail_roll -> hashes of windows of words -> the least of a page; lines of benchmarks
 *
 * docs/duplicates.md publishes every definition: stored keys are compared by other releases, so no number
 * here may change without another format.  All of it is whole numbers: the bits are the same on each
 * processor.  One build will do: wider registers gain nothing where hashing the words and walking the windows
 * are chains of 64-bit multiplications (bench/duplicates.py).
 *
 * Must not know files, rows, or who keeps a page.
 */
#ifndef SNAILPS_DUPLICATES_PAGES_H
#define SNAILPS_DUPLICATES_PAGES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "words are hashed eight bytes at a time, as little-endian numbers"
#endif

#define SNAIL_NO_KEY (~(uint64_t)0)
#define SNAIL_EMPTY_BIN (~(uint32_t)0)
#define SNAIL_RADIX 0x9E3779B97F4A7C15u /* of windows: a sum of words times its powers */

static inline uint64_t snail_fold(uint64_t a, uint64_t b) {
    const unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* splitmix64's last step: one to one. */
static inline uint64_t snail_mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline uint64_t snail_key(uint64_t key) {
    return key == SNAIL_NO_KEY ? key - 1 : key;
}

static inline uint64_t snail_turn(uint64_t x, int bits) {
    return x << bits | x >> (64 - bits);
}

static inline uint32_t snail_mix32(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

/* What a page is worked on in; each array has room for the longest page of a batch. */
typedef struct snail_desk {
    uint8_t *low;     /* the text in lower case, and 64 bytes more: eight at a time are read */
    uint32_t *begins, *ends; /* of runs of letters */
    uint64_t *words;  /* hashes */
    uint64_t *sums;   /* of windows */
    uint32_t *grams;
    uint32_t *sorted; /* and counts of buckets after it */
    uint64_t exact[2];
} snail_desk;

static void snail_close_desk(snail_desk *desk) {
    free(desk->low);
    free(desk->begins);
    free(desk->ends);
    free(desk->words);
    free(desk->sums);
    free(desk->grams);
    free(desk->sorted);
}

/* 0, or -1: no memory. */
static int snail_open_desk(snail_desk *desk, int64_t bytes) {
    const size_t words = (size_t)bytes / 2 + 8; /* a word is a byte and a gap, or a character of three */
    desk->low = malloc((size_t)bytes + 192);
    desk->begins = malloc(4 * (words + 16));
    desk->ends = malloc(4 * (words + 16));
    desk->words = malloc(8 * words);
    desk->sums = malloc(8 * words);
    desk->grams = malloc(4 * words);
    desk->sorted = malloc(4 * 3 * words);
    return desk->low && desk->begins && desk->ends && desk->words && desk->sums && desk->grams && desk->sorted ? 0 : -1;
}

/* ---- words -------------------------------------------------------------------------------------------- */

/* Lower case of 64 bytes; one bit for each byte of a word.  *high: nonzero if a byte may begin a character of
 * a script without spaces.  E2 begins none, but quotes and dashes, which every language has. */
static inline uint64_t snail_classes(const uint8_t *restrict text, uint8_t *restrict low, uint8_t *restrict high) {
    uint8_t is[64], any = 0; /* the first bit of a byte of a word */
    uint64_t mask = 0;
    for (int i = 0; i < 64; i++) {
        const uint8_t c = text[i], upper = c | 0x20;
        const uint8_t letter = (uint8_t)(upper - 'a') < 26 ? 0x80 : 0, digit = (uint8_t)(c - '0') < 10 ? 0x80 : 0;
        low[i] = c | (letter >> 2);
        is[i] = letter | digit | c;
        any |= c >= 0xE0 && c != 0xE2;
    }
#ifdef __SSE2__
    for (int i = 0; i < 4; i++)
        mask |= (uint64_t)_mm_movemask_epi8(_mm_loadu_si128((const __m128i *)(is + 16 * i))) << (16 * i);
#else
    for (int i = 0; i < 8; i++) {
        uint64_t eight;
        memcpy(&eight, is + 8 * i, 8);
        mask |= (((eight >> 7 & 0x0101010101010101u) * 0x0102040810204080u) >> 56) << (8 * i);
    }
#endif
    *high |= any;
    return mask;
}

/* Masks of a word's first and second eight bytes: from [16 - length] and [24 - length] on. */
#define SNAIL_ALL (~(uint64_t)0)
static const uint64_t SNAIL_FIRST_BYTES[25] = {
    SNAIL_ALL, SNAIL_ALL, SNAIL_ALL, SNAIL_ALL, SNAIL_ALL, SNAIL_ALL, SNAIL_ALL, SNAIL_ALL, SNAIL_ALL,
    SNAIL_ALL >> 8, SNAIL_ALL >> 16, SNAIL_ALL >> 24, SNAIL_ALL >> 32, SNAIL_ALL >> 40, SNAIL_ALL >> 48, SNAIL_ALL >> 56,
    0, 0, 0, 0, 0, 0, 0, 0, 0,
};

/* One multiplication for sixteen bytes, and no branch on whether a word has more than eight: nothing foresees it. */
static inline uint64_t snail_word(const uint8_t *text, uint64_t length) {
    uint64_t first, second, hash = SNAIL_RADIX ^ length;
    for (; __builtin_expect(length > 16, 0); length -= 16, text += 16) {
        memcpy(&first, text, 8);
        memcpy(&second, text + 8, 8);
        hash = snail_fold(hash ^ first, 0xA0761D6478BD642Fu ^ second);
    }
    memcpy(&first, text, 8);
    memcpy(&second, text + 8, 8);
    return snail_fold(hash ^ (first & SNAIL_FIRST_BYTES[16 - length]),
                      0xE7037ED1A0B428DBu ^ (second & SNAIL_FIRST_BYTES[24 - length]));
}

/* Whether a character belongs to a script without spaces between words: by blocks of Unicode. */
static inline int snail_is_spaceless(uint32_t c) {
    return (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xF900 && c <= 0xFAFF) ||
           (c >= 0x20000 && c <= 0x3FFFF) || c == 0x3005 || c == 0x3007 || /* Han */
           (c >= 0x3041 && c <= 0x30FF) || (c >= 0x31F0 && c <= 0x31FF) || (c >= 0xFF66 && c <= 0xFF9F) ||
           (c >= 0x1B000 && c <= 0x1B16F) ||                                /* Hiragana, Katakana */
           (c >= 0x0E00 && c <= 0x0EFF) ||                                  /* Thai, Lao */
           (c >= 0x1780 && c <= 0x17FF) || (c >= 0x19E0 && c <= 0x19FF) ||  /* Khmer */
           (c >= 0x1000 && c <= 0x109F) || (c >= 0xA9E0 && c <= 0xA9FF) || (c >= 0xAA60 && c <= 0xAA7F); /* Myanmar */
}

/* Bytes of the character of such a script that begins here; 0: another one, or no well-formed UTF-8. */
static inline int snail_spaceless(const uint8_t *text, int64_t size) {
    const uint8_t first = text[0];
    if (first < 0xE0 || size < 3 || (text[1] & 0xC0) != 0x80 || (text[2] & 0xC0) != 0x80) return 0;
    uint32_t c = (text[1] & 0x3Fu) << 6 | (text[2] & 0x3Fu);
    if (first < 0xF0) return snail_is_spaceless((first & 0x0Fu) << 12 | c) ? 3 : 0;
    if (first > 0xF4 || size < 4 || (text[3] & 0xC0) != 0x80) return 0;
    c = (first & 0x07u) << 18 | c << 6 | (text[3] & 0x3Fu);
    return c >= 0x10000 && snail_is_spaceless(c) ? 4 : 0; /* below it: too long a form */
}

/* The words of a run of letters that may have such characters; how many. */
static int64_t snail_run_words(const uint8_t *text, int64_t size, uint64_t *words) {
    int64_t count = 0, begin = 0; /* where an ordinary word begins */
    int64_t at = 0;
    int length = snail_spaceless(text, size);
    while (at < size) {
        if (!length) {
            if (++at == size) words[count++] = snail_word(text + begin, (uint64_t)(at - begin));
            else if ((length = snail_spaceless(text + at, size - at)))
                words[count++] = snail_word(text + begin, (uint64_t)(at - begin));
            continue;
        }
        const int next = at + length < size ? snail_spaceless(text + at + length, size - at - length) : 0;
        words[count++] = snail_word(text + at, (uint64_t)(length + next));
        begin = at += length, length = next;
    }
    return count;
}

/* Where the runs of letters of a page begin and end; how many. *high as in snail_classes. */
static inline int64_t snail_find_runs(const uint8_t *text, int64_t size, snail_desk *desk, uint8_t *high) {
    uint32_t *restrict begins = desk->begins, *restrict ends = desk->ends;
    const uint64_t beyond = (uint64_t)1 << 63; /* of what is written too much: it is written over */
    int64_t begun = 0, ended = 0;
    uint64_t last = 0;
    for (int64_t at = 0; at < size; at += 64) {
        uint8_t tail[64];
        const uint8_t *block = text + at;
        if (size - at < 64) { /* nothing is read beyond a page: it may end where the memory does */
            memset(tail, 0, 64);
            memcpy(tail, block, (size_t)(size - at));
            block = tail;
        }
        const uint64_t mask = snail_classes(block, desk->low + at, high);
        const uint64_t before = mask << 1 | last;
        uint64_t begin = mask & ~before, end = before & ~mask;
        uint32_t *restrict to_begins = begins + begun, *restrict to_ends = ends + ended;
        last = mask >> 63;
        begun += __builtin_popcountll(begin);
        ended = begun - (int64_t)last;
        do { /* eight at a time, as how many there are is not foreseen */
            for (int k = 0; k < 8; k++) {
                to_begins[k] = (uint32_t)at + (uint32_t)__builtin_ctzll(begin | beyond);
                to_ends[k] = (uint32_t)at + (uint32_t)__builtin_ctzll(end | beyond);
                begin &= begin - 1;
                end &= end - 1;
            }
            to_begins += 8;
            to_ends += 8;
        } while (begin | end);
    }
    if (last) ends[ended++] = (uint32_t)size;
    return begun;
}

/* Adds two words to the 128 bits of a sequence.  Once two sequences differ in the second half they stay so while
 * their first halves agree. */
static inline void snail_add_words(uint64_t exact[2], uint64_t word, uint64_t next) {
    const unsigned __int128 product = (unsigned __int128)(exact[0] ^ word) * (0xD6E8FEB86659FD93u ^ next);
    exact[0] = (uint64_t)product ^ (uint64_t)(product >> 64);
    exact[1] = snail_turn(exact[1], 29) + (uint64_t)product;
}

/* Hashes of the words of a page, in `desk->words`, and two of no word; their number.  The sequence in
 * `desk->exact`. */
static int64_t snail_read_words(const uint8_t *text, int64_t size, snail_desk *desk) {
    uint64_t *restrict words = desk->words;
    uint8_t high = 0;
    const int64_t runs = snail_find_runs(text, size, desk, &high);
    const uint32_t *restrict begins = desk->begins, *restrict ends = desk->ends;
    const uint8_t *low = desk->low;
    uint64_t exact[2] = {SNAIL_RADIX, 0};
    int64_t count = 0, added = 0;
    memset(desk->low + size, 0, 16);
    if (high)
        for (int64_t i = 0; i < runs; i++)
            count += snail_run_words(low + begins[i], ends[i] - begins[i], words + count);
    else
        for (; count + 1 < runs; count += 2, added += 2) {
            words[count] = snail_word(low + begins[count], ends[count] - begins[count]);
            words[count + 1] = snail_word(low + begins[count + 1], ends[count + 1] - begins[count + 1]);
            snail_add_words(exact, words[count], words[count + 1]);
        }
    if (count < runs) words[count] = snail_word(low + begins[count], ends[count] - begins[count]), count++;
    words[count] = words[count + 1] = 0;
    for (; added < count; added += 2) snail_add_words(exact, words[added], words[added + 1]);
    desk->exact[0] = count ? snail_key(snail_mix(exact[0] ^ (uint64_t)count)) : 0; /* a key, too */
    desk->exact[1] = count ? snail_mix(exact[1] + (uint64_t)count) : 0;
    return count;
}

/* ---- 3-grams ------------------------------------------------------------------------------------------ */

/* 32-bit hashes of three words in a row, in `desk->grams`; one of all words where there are fewer.  Words are as
 * good as random, so their sum is; each is turned by its place. */
static int64_t snail_grams(snail_desk *desk, int64_t count) {
    const uint64_t *restrict words = desk->words;
    uint32_t *restrict grams = desk->grams;
    const int64_t many = count > 2 ? count - 2 : count > 0;
    for (int64_t i = 0; i < many; i++)
        grams[i] = (uint32_t)((words[i] + snail_turn(words[i + 1], 21) + snail_turn(words[i + 2], 42)) >> 32);
    return many;
}

#define SNAIL_ORDER(a, b)                    \
    do {                                     \
        const uint32_t x = a, y = b;         \
        a = x < y ? x : y;                   \
        b = x < y ? y : x;                   \
    } while (0)

/* Sorts hashes and removes repeated ones; how many stay.  They are put by their first bits into as many buckets as
 * there are hashes or more, so few are out of order, as hashes are random: most of these are put right two by two,
 * without a branch that nothing foresees, the others by insertion.  What repeats is removed by insertion too, so
 * that a page of one word does not take the square of its length. */
static int64_t snail_distinct(snail_desk *desk, int64_t count) {
    uint32_t *restrict grams = desk->grams, *restrict sorted = desk->sorted, *restrict places = sorted + count;
    int bits = 1;
    while (((int64_t)1 << bits) < count) bits++;
    const int shift = 32 - bits;
    memset(places, 0, (size_t)4 << bits);
    for (int64_t i = 0; i < count; i++) places[grams[i] >> shift]++;
    for (uint32_t bucket = 0, sum = 0; bucket < (uint32_t)1 << bits; bucket++) {
        const uint32_t size = places[bucket];
        places[bucket] = sum;
        sum += size;
    }
    for (int64_t i = 0; i < count; i++) sorted[places[grams[i] >> shift]++] = grams[i];
    for (int64_t i = 0; i + 1 < count; i += 2) SNAIL_ORDER(sorted[i], sorted[i + 1]);
    for (int64_t i = 1; i + 1 < count; i += 2) SNAIL_ORDER(sorted[i], sorted[i + 1]);
    int64_t used = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint32_t gram = sorted[i];
        if (!used || gram > grams[used - 1]) {
            grams[used++] = gram;
            continue;
        }
        int64_t to = used;
        while (to > 0 && grams[to - 1] > gram) to--;
        if (to > 0 && grams[to - 1] == gram) continue;
        for (int64_t k = used++; k > to; k--) grams[k] = grams[k - 1];
        grams[to] = gram;
    }
    return used;
}

/* The same where the second set is far larger: each of the first is looked for from the last one on, in steps that
 * double, then by halves. */
static int64_t snail_shared_few(const uint32_t *few, int64_t few_size, const uint32_t *many, int64_t many_size) {
    int64_t same = 0, from = 0;
    for (int64_t i = 0; i < few_size && from < many_size; i++) {
        int64_t step = 1, to = from;
        while (to < many_size && many[to] < few[i]) from = to + 1, to += step, step *= 2;
        if (to > many_size) to = many_size;
        while (from < to) { /* all before `from` are less, what is at `to` is not */
            const int64_t middle = from + (to - from) / 2;
            if (many[middle] < few[i]) from = middle + 1;
            else to = middle;
        }
        same += from < many_size && many[from] == few[i];
    }
    return same;
}

/* How many of a set are less than a value. */
static inline int64_t snail_below(const uint32_t *set, int64_t size, uint32_t value) {
    int64_t from = 0;
    while (from < size) {
        const int64_t middle = from + (size - from) / 2;
        if (set[middle] < value) from = middle + 1;
        else size = middle;
    }
    return from;
}

#define SNAIL_MERGE_STEP(i, j)         \
    do {                               \
        const uint32_t x = a[i], y = b[j]; \
        same += x == y;                \
        i += x <= y;                   \
        j += y <= x;                   \
    } while (0)

/* Size of the intersection of two sets, both ascending.  Two merges at a time, of what is below the middle of the
 * first set and of the rest: a step waits for the one before it. */
static int64_t snail_shared(const uint32_t *a, int64_t a_size, const uint32_t *b, int64_t b_size) {
    if (a_size < b_size / 16) return snail_shared_few(a, a_size, b, b_size);
    if (b_size < a_size / 16) return snail_shared_few(b, b_size, a, a_size);
    const int64_t a_end = a_size / 2, b_end = a_size ? snail_below(b, b_size, a[a_end]) : 0;
    int64_t i = 0, j = 0, k = a_end, l = b_end, same = 0;
    while (i < a_end && j < b_end && k < a_size && l < b_size) {
        SNAIL_MERGE_STEP(i, j);
        SNAIL_MERGE_STEP(k, l);
    }
    while (i < a_end && j < b_end) SNAIL_MERGE_STEP(i, j);
    while (k < a_size && l < b_size) SNAIL_MERGE_STEP(k, l);
    return same;
}

/* ---- windows ------------------------------------------------------------------------------------------ */

static inline uint64_t snail_power(int64_t exponent) {
    uint64_t power = 1;
    for (int64_t i = 0; i < exponent; i++) power *= SNAIL_RADIX;
    return power;
}

/* Sums of all windows of `size` words, in `desk->sums`: the first word times radix^(size - 1) ... the last
 * one.  `power`: radix^size.  How many windows. */
static int64_t snail_roll(snail_desk *desk, int64_t count, int64_t size, uint64_t power) {
    const uint64_t *restrict words = desk->words;
    uint64_t *restrict sums = desk->sums;
    if (count < size) return 0;
    uint64_t sum = 0;
    for (int64_t i = 0; i < size; i++) sum = sum * SNAIL_RADIX + words[i];
    sums[0] = sum;
    for (int64_t i = size; i < count; i++) {
        sum = sum * SNAIL_RADIX + (words[i] - words[i - size] * power);
        sums[i - size + 1] = sum;
    }
    return count - size + 1;
}

/* ---- keys --------------------------------------------------------------------------------------------- */

typedef struct snail_key_plan {
    int bands, rows, windows;
    int64_t window;
    uint32_t factor, term; /* the permutation of 3-grams */
    uint64_t order, power; /* of windows */
    uint32_t *bins;        /* of this page: bands x rows */
    const uint32_t *steps; /* where an empty bin looks for a full one */
} snail_key_plan;

/* Copies bins; an empty one gets the value of another, with the number of its looks mixed in: bins filled from
 * neighbours would be alike, and bands of them say little (Shrivastava, ICML 2017).  One bin is full. */
static void snail_copy_bins(uint32_t count, const uint32_t *steps, const uint32_t *bins, uint32_t *restrict filled) {
    memcpy(filled, bins, (size_t)4 * count);
    for (uint32_t bin = 0; bin < count; bin++)
        if (bins[bin] == SNAIL_EMPTY_BIN) {
            uint32_t other = bin, looks = 0;
            do {
                looks++;
                other += steps[bin];
                if (other >= count) other -= count;
            } while (bins[other] == SNAIL_EMPTY_BIN);
            filled[bin] = snail_mix32(bins[other] + looks);
        }
}

/* Each 3-gram falls into one bin, which keeps the least. */
static void snail_fill_bins(const snail_key_plan *plan, const uint32_t *grams, int64_t many) {
    const uint32_t count = (uint32_t)(plan->bands * plan->rows), factor = plan->factor, term = plan->term;
    uint32_t *restrict bins = plan->bins;
    memset(bins, 255, (size_t)4 * count);
    for (int64_t i = 0; i < many; i++) {
        const uint64_t place = (uint64_t)(grams[i] * factor + term) * count;
        const uint32_t bin = (uint32_t)(place >> 32), value = (uint32_t)place & ~(uint32_t)1; /* never empty's */
        bins[bin] = value < bins[bin] ? value : bins[bin];
    }
    snail_copy_bins(count, plan->steps, bins, bins + count);
}

/* Keeps a value if it is among the least `most` different ones, which ascend; how many there are. */
static inline int snail_offer(uint64_t *least, int most, int used, uint64_t value) {
    if (value >= least[most - 1]) return used; /* SNAIL_NO_KEY while there is room */
    int to = used;
    while (to > 0 && least[to - 1] > value) to--;
    if (to > 0 && least[to - 1] == value) return used;
    used += used < most;
    for (int k = used - 1; k > to; k--) least[k] = least[k - 1];
    least[to] = value;
    return used;
}

/* Writes the sums of windows (as in snail_roll, turned over by `order`) that are below `bound`; how many.  Two
 * walks at a time, each over a half of the windows, as a step waits for the one before it; without a branch. */
static int64_t snail_low_windows(const snail_key_plan *plan, const uint64_t *words, int64_t many, uint64_t bound,
                                 uint64_t *restrict low) {
    const int64_t size = plan->window, half = many / 2;
    const uint64_t power = plan->power, order = plan->order;
    uint64_t sum = 0, other = 0;
    int64_t used = 0;
    for (int64_t i = 0; i + 1 < size; i++) {
        sum = sum * SNAIL_RADIX + words[i];
        other = other * SNAIL_RADIX + words[half + i];
    }
    uint64_t gone = 0, other_gone = 0; /* the words that a window leaves */
    for (int64_t i = 0; i < half; i++) {
        sum = sum * SNAIL_RADIX + (words[i + size - 1] - gone * power);
        other = other * SNAIL_RADIX + (words[half + i + size - 1] - other_gone * power);
        gone = words[i];
        other_gone = words[half + i];
        low[used] = sum ^ order;
        used += (sum ^ order) < bound;
        low[used] = other ^ order;
        used += (other ^ order) < bound;
    }
    if (many % 2) { /* the last one, of the second walk */
        other = other * SNAIL_RADIX + (words[many + size - 2] - other_gone * power);
        low[used] = other ^ order;
        used += (other ^ order) < bound;
    }
    return used;
}

/* The least windows; how many.  A few times as many as are wanted lie below a bound that random sums would give;
 * where they do not, as in a page of one sentence, all are looked at. */
static int snail_least_windows(const snail_key_plan *plan, snail_desk *desk, int64_t count, uint64_t *least) {
    const int64_t many = count - plan->window + 1, wanted = 3 * (int64_t)plan->windows;
    if (many < 1) return 0;
    uint64_t bound = many > wanted ? SNAIL_NO_KEY / (uint64_t)many * (uint64_t)wanted : SNAIL_NO_KEY;
    for (int used = 0;; bound = SNAIL_NO_KEY) {
        const int64_t low = snail_low_windows(plan, desk->words, many, bound, desk->sums);
        for (int64_t i = 0; i < low; i++) used = snail_offer(least, plan->windows, used, desk->sums[i]);
        if (used == plan->windows || bound == SNAIL_NO_KEY) return used;
    }
}

/* The keys of a page of `count` words: bands, then windows in ascending order of their sums times `order`. */
static void snail_page_keys(const snail_key_plan *plan, snail_desk *desk, int64_t count, uint64_t *keys) {
    const int all = plan->bands + plan->windows;
    for (int k = 0; k < all; k++) keys[k] = SNAIL_NO_KEY;
    if (!count) return;
    snail_fill_bins(plan, desk->grams, snail_grams(desk, count));
    const uint32_t *bins = plan->bins + plan->bands * plan->rows;
    for (int band = 0; band < plan->bands; band++) {
        uint64_t hash = SNAIL_RADIX * (uint64_t)(band + 1);
        for (int row = 0; row < plan->rows; row += 2) { /* two of 32 bits at a time */
            const uint64_t next = row + 1 < plan->rows ? bins[row + 1] : 0;
            hash = snail_fold(hash ^ (bins[row] | next << 32), 0xA0761D6478BD642Fu + (uint64_t)row);
        }
        bins += plan->rows;
        keys[band] = snail_key(snail_mix(hash));
    }
    if (!plan->windows) return;
    uint64_t *least = keys + plan->bands;
    const int used = snail_least_windows(plan, desk, count, least);
    for (int k = 0; k < used; k++) least[k] = snail_key(snail_mix(least[k] + (uint64_t)plan->window));
}

/* ---- windows of benchmarks ---------------------------------------------------------------------------- */

typedef struct snail_line_window {
    uint64_t hash;
    uint32_t line, words; /* no words: free */
} snail_line_window;

typedef struct snail_benchmark {
    snail_line_window *cells; /* 2^cell_bits */
    uint64_t *filter;         /* 2^filter_bits words of 64 bits: two of one word are set for a window's beginning */
    uint8_t *lengths;         /* whether a window of so many words exists */
    int cell_bits, filter_bits;
    int64_t window, shortest, longest; /* longest: of the windows that exist */
    uint64_t power;           /* radix^shortest */
} snail_benchmark;

static inline uint64_t *snail_filter_place(const snail_benchmark *lines, uint64_t sum, uint64_t *bits) {
    const uint64_t hash = sum * 0xD6E8FEB86659FD93u;
    *bits = (uint64_t)1 << (hash >> 20 & 63) | (uint64_t)1 << (hash >> 26 & 63);
    return lines->filter + (hash >> (64 - lines->filter_bits));
}

/* The cell of a window, or the free one that it would get. */
static inline snail_line_window *snail_find_window(const snail_benchmark *lines, uint64_t sum, int64_t words) {
    const uint64_t hash = snail_mix(sum + (uint64_t)words), mask = ((uint64_t)1 << lines->cell_bits) - 1;
    uint64_t at = hash >> (64 - lines->cell_bits);
    while (lines->cells[at].words && (lines->cells[at].hash != hash || lines->cells[at].words != words))
        at = (at + 1) & mask;
    return lines->cells + at;
}

/* Adds the windows of a line of `count` words; the first line that has a window keeps it. */
static void snail_add_line(snail_benchmark *lines, const uint64_t *words, int64_t count, uint32_t line) {
    const int64_t length = count < lines->window ? count : lines->window;
    if (count < lines->shortest) return;
    lines->lengths[length] = 1;
    if (length > lines->longest) lines->longest = length;
    for (int64_t at = 0; at + length <= count; at++) {
        uint64_t sum = 0, bits;
        for (int64_t i = 0; i < length; i++) {
            sum = sum * SNAIL_RADIX + words[at + i];
            if (i + 1 == lines->shortest) *snail_filter_place(lines, sum, &bits) |= bits;
        }
        snail_line_window *cell = snail_find_window(lines, sum, length);
        if (!cell->words) *cell = (snail_line_window){snail_mix(sum + (uint64_t)length), line, (uint32_t)length};
    }
}

/* Words of a page of `count` words that lie inside windows of lines.  A line counts once a page: `stamps` has the
 * page that it counted for last, from 1 on. */
static int64_t snail_covered(const snail_benchmark *lines, snail_desk *desk, int64_t count, uint32_t page,
                             uint32_t *stamps, int64_t *hits) {
    const uint64_t *words = desk->words;
    const int64_t many = snail_roll(desk, count, lines->shortest, lines->power);
    int64_t covered = 0, end = 0;
    for (int64_t at = 0; at < many; at++) {
        uint64_t bits, sum = desk->sums[at];
        if ((*snail_filter_place(lines, sum, &bits) & bits) != bits) continue;
        for (int64_t length = lines->shortest; length <= lines->longest; length++) {
            if (length > lines->shortest) sum = sum * SNAIL_RADIX + words[at + length - 1];
            if (lines->lengths[length]) {
                const snail_line_window *cell = snail_find_window(lines, sum, length);
                if (cell->words) {
                    if (stamps[cell->line] != page) stamps[cell->line] = page, hits[cell->line]++;
                    const int64_t from = at > end ? at : end;
                    if (at + length > from) covered += at + length - from, end = at + length;
                }
            }
            if (at + length == count) break;
        }
    }
    return covered;
}

#endif
