/* The normal form of a text: case, digits, addresses; forms of other words than ASCII come from a table.
 *
 * bytes -> snail_normalise -> bytes, or words whose forms are still missing
 *
 * Tokens are those of _tokens.h.  A token that begins with the prefix of labels stays as it is.  No form
 * makes a label or an end of line of a token that was none: such a token stays as it is, too.
 */
#ifndef SNAILPS_NORMAL_FORM_H
#define SNAILPS_NORMAL_FORM_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_tokens.h"

/* What is checked in bulk before a byte is looked at. */
enum { SNAIL_BLOCK = 64 };

typedef struct {
    uint8_t upper;         /* 26: upper case becomes lower case; 0: it stays */
    uint8_t digits;        /* 10: a digit becomes 0; 0: it stays */
    uint8_t is_special[256]; /* whether a token with this byte may need more than that */
    const uint8_t *prefix;
    int64_t prefix_size;
    int has_addresses; /* whether addresses of the web and of mail become one word */
    int has_forms;     /* whether tokens with other bytes than ASCII have forms in the table */
} snail_normal_rules;

typedef struct {
    uint8_t *data;
    int64_t used;
    int64_t size;
} snail_bytes;

typedef struct {
    snail_word_table *words;
    const uint8_t *text;  /* the form of word i is text[ends[i - 1] : ends[i]] */
    const int64_t *ends;
} snail_forms;

/* Makes room for `more` bytes; 0, or -1 without memory. */
static inline int snail_reserve(snail_bytes *bytes, int64_t more) {
    if (bytes->size - bytes->used >= more) return 0;
    int64_t size = bytes->used + more;
    if (size < 2 * bytes->size) size = 2 * bytes->size;
    uint8_t *data = (uint8_t *)realloc(bytes->data, (size_t)size);
    if (!data) return -1;
    bytes->data = data;
    bytes->size = size;
    return 0;
}

static inline void snail_append(snail_bytes *bytes, const void *data, int64_t length) {
    memcpy(bytes->data + bytes->used, data, (size_t)length);
    bytes->used += length;
}

static inline int snail_is_letter_or_digit(uint8_t c) {
    return (uint8_t)((c | 32) - 'a') < 26 || (uint8_t)(c - '0') < 10;
}

static inline uint8_t snail_normal_byte(const snail_normal_rules *rules, uint8_t c) {
    c = (uint8_t)(c - 'A') < rules->upper ? c | 32 : c;
    return (uint8_t)(c - '0') < rules->digits ? '0' : c;
}

/* Appends bytes whose tokens have no special ones, for which there is room. */
static inline void snail_append_plain(const snail_normal_rules *rules, const uint8_t *text,
                                      int64_t length, snail_bytes *out) {
    uint8_t *restrict to = out->data + out->used;
    const uint8_t upper = rules->upper, digits = rules->digits;
    for (int64_t i = 0; i < length; i++) { /* compilers make vectors of it */
        uint8_t c = text[i];
        c = (uint8_t)(c - 'A') < upper ? c | 32 : c;
        to[i] = (uint8_t)(c - '0') < digits ? '0' : c;
    }
    out->used += length;
}

/* The first special byte from `at` on; `stop` if there is none.  Dots are special after a W: `www.` */
static inline int64_t snail_next_special(const snail_normal_rules *rules, const uint8_t *data,
                                         int64_t at, int64_t stop) {
    const uint8_t label = rules->prefix[0];
    const uint8_t of_mail = rules->has_addresses ? '@' : '<';
    const uint8_t of_web = rules->has_addresses ? ':' : '<';
    while (at < stop) {
        if (at && stop - at >= SNAIL_BLOCK) {
            const uint8_t *text = data + at;
            uint8_t any = 0;
            for (int i = 0; i < SNAIL_BLOCK; i++) {
                const uint8_t c = text[i];
                any |= (c >> 7) | (c == label) | (c == '<') | (c == of_mail) | (c == of_web) |
                       ((c == '.') & ((text[i - 1] | 32) == 'w'));
            }
            if (!any) {
                at += SNAIL_BLOCK;
                continue;
            }
        }
        const int64_t end = stop - at < SNAIL_BLOCK ? stop : at + SNAIL_BLOCK;
        for (; at < end; at++) {
            const uint8_t c = data[at];
            if (rules->is_special[c] && (c != '.' || (at && (data[at - 1] | 32) == 'w')))
                return at;
        }
    }
    return stop;
}

/* Letters of the part of a mail address before its @; after it there are no _, % and +. */
static inline int snail_is_of_mailbox(uint8_t c) {
    return snail_is_letter_or_digit(c) || c == '.' || c == '-' || c == '_' || c == '%' || c == '+';
}

static inline int snail_is_of_host(uint8_t c) {
    return snail_is_letter_or_digit(c) || c == '.' || c == '-';
}

static inline int snail_begins(const uint8_t *text, int64_t left, const char *lower, int64_t length) {
    if (left < length) return 0;
    for (int64_t i = 0; i < length; i++) {
        const uint8_t c = text[i];
        if (((uint8_t)(c - 'A') < 26 ? c | 32 : c) != (uint8_t)lower[i]) return 0;
    }
    return 1;
}

/* Whether a web address begins here, with something after `http://`, `https://`, `ftp://` or `www.`. */
static inline int snail_begins_url(const uint8_t *token, int64_t at, int64_t length) {
    if (at && snail_is_letter_or_digit(token[at - 1])) return 0;
    const uint8_t *text = token + at;
    const int64_t left = length - at;
    return (left > 7 && snail_begins(text, left, "http://", 7)) ||
           (left > 8 && snail_begins(text, left, "https://", 8)) ||
           (left > 6 && snail_begins(text, left, "ftp://", 6)) ||
           (left > 4 && snail_begins(text, left, "www.", 4));
}

/* The end of a web address: before the punctuation at the token's end. */
static inline int64_t snail_url_end(const uint8_t *token, int64_t length) {
    while (memchr(".,;:!?'\")]}>", token[length - 1], 12)) length--;
    return length;
}

/* The mail address around the @ at `at`: its end, and `first` is its start; 0: there is none. */
static inline int64_t snail_mail_end(const uint8_t *token, int64_t at, int64_t least,
                                     int64_t length, int64_t *first) {
    int64_t start = at, end = at + 1;
    while (start > least && snail_is_of_mailbox(token[start - 1])) start--;
    while (end < length && snail_is_of_host(token[end])) end++;
    while (end > at + 1 && !snail_is_letter_or_digit(token[end - 1])) end--;
    const int64_t host = end - at - 1;
    if (start == at || host < 3 || !snail_is_letter_or_digit(token[at + 1]) ||
        !memchr(token + at + 1, '.', (size_t)host))
        return 0;
    *first = start;
    return end;
}

/* Appends a token with its addresses replaced, for which there is room but for their growth; -1 without
 * memory.  `left`: bytes of the text after the token, for which room stays. */
static inline int snail_append_replaced(const snail_normal_rules *rules, const uint8_t *token,
                                        int64_t length, int64_t left, snail_bytes *out) {
    int64_t copied = 0, first = 0;
    for (int64_t at = 0; at < length; at++) {
        const char *word = NULL;
        int64_t end = 0;
        if (token[at] == '@') {
            end = snail_mail_end(token, at, copied, length, &first);
            word = "<email>";
        } else if (snail_begins_url(token, at, length)) {
            end = snail_url_end(token, length);
            first = at;
            word = "<url>";
        }
        if (end <= first || !end) continue;
        /* A mailbox is found at its @: what is before it waits until then. */
        const int64_t size = (int64_t)strlen(word);
        if (snail_reserve(out, length - copied + size + left)) return -1;
        for (int64_t i = copied; i < first; i++) out->data[out->used++] = snail_normal_byte(rules, token[i]);
        snail_append(out, word, size);
        copied = end;
        at = end - 1;
    }
    if (snail_reserve(out, length - copied + left)) return -1;
    for (int64_t i = copied; i < length; i++) out->data[out->used++] = snail_normal_byte(rules, token[i]);
    return 0;
}

/* Whether a token's form is a label or an end of line. */
static inline int snail_is_reserved(const snail_normal_rules *rules, const uint8_t *form,
                                    int64_t length) {
    return (length == 4 && memcmp(form, "</s>", 4) == 0) ||
           (length >= rules->prefix_size &&
            memcmp(form, rules->prefix, (size_t)rules->prefix_size) == 0);
}

/* Appends the form of a token that has a special byte.  There is room for it and the `left` bytes after it as
 * they are, and stays for the latter; -1 without memory.  A word without a form in the table is written to
 * `missing`, with a newline. */
static inline int snail_append_token(const snail_normal_rules *rules, const snail_forms *forms,
                                     const uint8_t *token, int64_t length, int64_t left,
                                     snail_bytes *out, snail_bytes *missing) {
    const int64_t before = out->used;
    int is_ascii = 1;
    if (length >= rules->prefix_size &&
        memcmp(token, rules->prefix, (size_t)rules->prefix_size) == 0) {
        snail_append(out, token, length);
        return 0;
    }
    for (int64_t i = 0; i < length; i++) is_ascii &= token[i] < 128;
    if (!is_ascii && rules->has_forms) {
        snail_token word;
        snail_read_token(token, length, &word);
        const int64_t id = snail_find_word(forms->words, &word);
        if (id < 0) {
            if (snail_reserve(missing, length + 1)) return -1;
            snail_append(missing, token, length);
            missing->data[missing->used++] = '\n';
            return 0;
        }
        const int64_t begin = id ? forms->ends[id - 1] : 0;
        const int64_t bytes = forms->ends[id] - begin;
        if (snail_reserve(out, bytes + left)) return -1;
        snail_append(out, forms->text + begin, bytes);
        return 0;
    }
    if (rules->has_addresses) {
        if (snail_append_replaced(rules, token, length, left, out)) return -1;
    } else snail_append_plain(rules, token, length, out);
    if (snail_is_reserved(rules, out->data + before, out->used - before)) {
        out->used = before;
        snail_append(out, token, length);
    }
    return 0;
}

/* Appends the normal form of the text from `at` on, up to the first separator at or after `stop`; the place of
 * that, or -1 without memory.  If there are words in `missing`, `out` is to be thrown away. */
static inline int64_t snail_normalise(const snail_normal_rules *rules, const snail_forms *forms,
                                      const uint8_t *data, int64_t size, int64_t at, int64_t stop,
                                      snail_bytes *out, snail_bytes *missing) {
    if (stop > size) stop = size;
    while (stop < size && !snail_is_separator(data[stop])) stop++;
    if (snail_reserve(out, stop - at)) return -1;
    while (at < stop) { /* there is room for the rest up to `stop` as it is */
        int64_t end = snail_next_special(rules, data, at, stop), start = end;
        while (start > at && !snail_is_separator(data[start - 1])) start--;
        snail_append_plain(rules, data + at, start - at, out);
        while (end < stop && !snail_is_separator(data[end])) end++;
        if (end > start &&
            snail_append_token(rules, forms, data + start, end - start, stop - end, out, missing))
            return -1;
        at = end;
    }
    return at;
}

#endif
