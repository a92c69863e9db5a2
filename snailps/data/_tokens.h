/* Tokens of a text, and a hash table of words.
 *
 * bytes -> snail_scan -> snail_token (place, length, hash) -> snail_find_word | snail_add_word -> id
 *
 * A token is what fastText's reader makes of a text: bytes between separators (space, newline, carriage
 * return, tab, vertical tab, form feed, NUL), and one `</s>` for every newline.  A name may be any bytes.
 * A token of up to eight bytes is identified by these, padded with zeros, and its length: most words of a
 * text are compared by two integers.  Little-endian machines only, like all of snailps.
 *
 * Nothing here allocates, or reads beyond the end of a text.
 */
#ifndef SNAILPS_TOKENS_H
#define SNAILPS_TOKENS_H

#include <stdint.h>
#include <string.h>

#include "../abi/_table_hash.h"

enum {
    /* Tokens that are scanned, and whose slots are prefetched, before the first one is looked up: enough
     * to hide a cache miss, few enough that the batch stays in the first cache. */
    SNAIL_BATCH = 64
};

typedef struct {
    uint64_t prefix; /* first 8 bytes, padded with zeros */
    uint64_t hash;
    const uint8_t *text;
    int64_t length;
} snail_token;

typedef struct {
    uint64_t prefix;
    uint32_t tag;      /* hash bits, and in the last four the length, 9 if it is more than 8 */
    int32_t id_plus_1; /* 0: an empty slot */
} snail_word_slot;

typedef struct {
    snail_word_slot *slots; /* slot_mask + 1 of them, at most half of them full */
    uint64_t slot_mask;
    uint8_t *arena; /* the words' bytes, in id order */
    uint64_t arena_used;
    uint64_t arena_size;
    uint64_t *starts; /* word i is arena[starts[i] : starts[i + 1]] */
    int64_t words;
    int64_t words_max; /* room in `starts`, and half of the slots */
} snail_word_table;

/* ---- tokens ------------------------------------------------------------------------------------ */

static inline int snail_is_separator(uint32_t c) {
    return c == ' ' || (c >= '\t' && c <= '\r') || c == 0;
}

/* The next 8 bytes; if only `left` bytes are left, these and zeros. */
static inline uint64_t snail_load8(const uint8_t *text, int64_t left) {
    uint64_t chunk = 0;
    if (left >= 8) memcpy(&chunk, text, 8);
    else if (left > 0) memcpy(&chunk, text, (size_t)left);
    return chunk;
}

/* Index of the first separator among 8 bytes; 8 if there is none. */
static inline int snail_separator_in(uint64_t chunk) {
    /* Sets the high bit of every byte below 33, and, by a borrow, of some above: all separators are among
     * them, and the exact test decides. */
    uint64_t below =
        (chunk - UINT64_C(0x2121212121212121)) & ~chunk & UINT64_C(0x8080808080808080);
    for (; below; below &= below - 1) {
        const int k = __builtin_ctzll(below) >> 3;
        if (snail_is_separator((chunk >> (8 * k)) & 255)) return k;
    }
    return 8;
}

/* Reads the token that starts at `text` and ends at a separator or after `left` bytes; its length. */
static inline int64_t snail_read_token(const uint8_t *text, int64_t left, snail_token *token) {
    uint64_t chunk = snail_load8(text, left), h = snail_secret[0];
    int64_t length = 0;
    int k = snail_separator_in(chunk);
    token->prefix = chunk;
    for (; k == 8; k = snail_separator_in(chunk)) {
        h = snail_table_stir(h, chunk);
        length += 8;
        chunk = snail_load8(text + length, left - length);
    }
    if (k) {
        chunk &= (UINT64_C(1) << (8 * k)) - 1;
        h = snail_table_stir(h, chunk);
        if (length == 0) token->prefix = chunk;
        length += k;
    }
    token->hash = h;
    token->text = text;
    token->length = length;
    return length;
}

/* The token of a name, which may be any bytes.  A word, which has no separator, gets the same as above. */
static inline void snail_name_token(const uint8_t *text, int64_t length, snail_token *token) {
    uint64_t h = snail_secret[0];
    token->prefix = snail_load8(text, length);
    for (int64_t at = 0; at < length; at += 8)
        h = snail_table_stir(h, snail_load8(text + at, length - at));
    token->hash = h;
    token->text = text;
    token->length = length;
}

/* Reads up to SNAIL_BATCH tokens from `position` on, which moves past the last one.  0: no more. */
static inline int snail_scan(const uint8_t *data, int64_t size, int64_t *position,
                             const snail_token *sentence_end, snail_token *tokens) {
    int64_t p = *position;
    int found = 0;
    while (found < SNAIL_BATCH && p < size) {
        const uint32_t c = data[p];
        if (!snail_is_separator(c)) p += snail_read_token(data + p, size - p, &tokens[found++]);
        else {
            p++;
            if (c == '\n') tokens[found++] = *sentence_end;
        }
    }
    *position = p;
    return found;
}

/* Whether it is `</s>`: a newline's, whose text is `sentence_end`'s, or one that is written in the text. */
static inline int snail_is_sentence_end(const snail_token *token) {
    return token->length == 4 && memcmp(token->text, "</s>", 4) == 0;
}

/* Reads `words` words or names of an arena; word i is arena[starts[i] : starts[i + 1]]. */
static inline int snail_read_words(const uint8_t *arena, const uint64_t *starts, int words,
                                   snail_token *tokens) {
    for (int i = 0; i < words; i++)
        snail_name_token(arena + starts[i], (int64_t)(starts[i + 1] - starts[i]), &tokens[i]);
    return words;
}

/* ---- words ------------------------------------------------------------------------------------- */

static inline void snail_fetch_words(const snail_word_table *table, const snail_token *tokens,
                                     int found) {
    for (int i = 0; i < found; i++)
        __builtin_prefetch(&table->slots[tokens[i].hash & table->slot_mask], 0, 3);
}

/* Prefetches two steps further, once the slots have come: where their long words begin, then the bytes of
 * these words.  For tables larger than any cache. */
static inline void snail_fetch_long_words(const snail_word_table *table, const snail_token *tokens,
                                          int found) {
    int32_t ids[SNAIL_BATCH];
    int count = 0;
    for (int i = 0; i < found; i++) {
        const int32_t id_plus_1 = table->slots[tokens[i].hash & table->slot_mask].id_plus_1;
        ids[count] = id_plus_1 - 1;
        count += tokens[i].length > 8 && id_plus_1 > 0;
    }
    for (int i = 0; i < count; i++) __builtin_prefetch(&table->starts[ids[i]], 0, 3);
    for (int i = 0; i < count; i++)
        __builtin_prefetch(table->arena + table->starts[ids[i]], 0, 3);
}

/* Prefetches the counts of the words in the slots. */
static inline void snail_fetch_counts(const snail_word_table *table, const int64_t *counts,
                                      const snail_token *tokens, int found) {
    for (int i = 0; i < found; i++) {
        const int32_t id_plus_1 = table->slots[tokens[i].hash & table->slot_mask].id_plus_1;
        if (id_plus_1) __builtin_prefetch(&counts[id_plus_1 - 1], 1, 3);
    }
}

static inline uint32_t snail_tag_of(const snail_token *token) {
    return ((uint32_t)(token->hash >> 32) & UINT32_C(0xFFFFFFF0)) |
           (token->length > 8 ? 9 : (uint32_t)token->length);
}

/* Whether two words of the same length, more than 8 bytes, whose first 8 bytes are equal, are equal. */
static inline int snail_have_equal_rest(const uint8_t *one, const uint8_t *other, int64_t length) {
    uint64_t a, b;
    if (length > 16) return memcmp(one + 8, other + 8, (size_t)length - 8) == 0;
    memcpy(&a, one + length - 8, 8);
    memcpy(&b, other + length - 8, 8);
    return a == b;
}

/* The slot that holds this word, or the empty one where it belongs. */
static inline snail_word_slot *snail_slot_of(const snail_word_table *table,
                                             const snail_token *token) {
    const uint32_t tag = snail_tag_of(token);
    for (uint64_t at = token->hash & table->slot_mask;; at = (at + 1) & table->slot_mask) {
        snail_word_slot *slot = &table->slots[at];
        if (slot->id_plus_1 == 0) return slot;
        if (slot->prefix == token->prefix && slot->tag == tag) {
            if (token->length <= 8) return slot;
            const uint64_t start = table->starts[slot->id_plus_1 - 1];
            if (table->starts[slot->id_plus_1] - start == (uint64_t)token->length &&
                snail_have_equal_rest(table->arena + start, token->text, token->length))
                return slot;
        }
    }
}

/* Enters a word into its empty slot. */
static inline void snail_fill_slot(snail_word_slot *slot, const snail_token *token, int64_t id) {
    *slot = (snail_word_slot){token->prefix, snail_tag_of(token), (int32_t)(id + 1)};
}

/* Id of a word; -1: unknown.  Any number of threads may ask while none adds words. */
static inline int64_t snail_find_word(const snail_word_table *table, const snail_token *token) {
    return (int64_t)snail_slot_of(table, token)->id_plus_1 - 1;
}

/* Id of a word, which is added if it is new: the caller has made room for it.  One writer at a time. */
static inline int64_t snail_add_word(snail_word_table *table, const snail_token *token) {
    snail_word_slot *slot = snail_slot_of(table, token);
    if (slot->id_plus_1 == 0) {
        memcpy(table->arena + table->arena_used, token->text, (size_t)token->length);
        table->arena_used += (uint64_t)token->length;
        snail_fill_slot(slot, token, table->words++);
        table->starts[table->words] = table->arena_used;
    }
    return slot->id_plus_1 - 1;
}

/* Enters all words into empty slots; -1, or the index of the first bad one: it is repeated or, unless they
 * are `names`, is empty or contains a separator. */
static int64_t snail_fill_slots(snail_word_table *table, int names) {
    snail_token tokens[SNAIL_BATCH], word;
    for (int64_t at = 0; at < table->words; at += SNAIL_BATCH) {
        const int64_t left = table->words - at;
        const int found = snail_read_words(table->arena, table->starts + at,
                                           left < SNAIL_BATCH ? (int)left : SNAIL_BATCH, tokens);
        snail_fetch_words(table, tokens, found);
        for (int i = 0; i < found; i++) {
            const int64_t length = tokens[i].length;
            if (!names &&
                (length == 0 || snail_read_token(tokens[i].text, length, &word) != length))
                return at + i;
            snail_word_slot *slot = snail_slot_of(table, &tokens[i]);
            if (slot->id_plus_1) return at + i;
            snail_fill_slot(slot, &tokens[i], at + i);
        }
    }
    return -1;
}

#endif
