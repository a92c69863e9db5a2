/* Lines of LIBSVM and LIBFFM.
 *
 *     label [qid:n] index:value index:value ...           LIBSVM
 *     label field:index:value field:index:value ...       LIBFFM
 *
 * Byte by byte: reads any line, and finds what is wrong with one.  This is the definition of a valid line;
 * _plain_lines.h is a faster reader for plain lines, which most files consist of.
 */
#ifndef SNAILPS_ENTRIES_H
#define SNAILPS_ENTRIES_H

#include "../abi/_key_hash.h"
#include "_example_lines.h"
#include "_plain_lines.h"

typedef struct {
    int has_fields; /* LIBFFM */
    int shift;      /* keys are the upper 64 - shift bits of their hash; 0: keys as written */
    snail_plain_reader plain; /* reads plain lines of LIBSVM; NULL: there is none */
} snail_entry_rules;

enum {
    SNAIL_LINES_LEAST = 8, /* lines read byte by byte before plain lines are tried again, doubled */
    SNAIL_LINES_MOST = 1024
};

static inline int snail_is_blank(uint8_t c) { return c == ' ' || c == '\t'; }

/* Reads one `index:value` or `field:index:value` into place `at`. */
static inline snail_fault snail_read_entry(const uint8_t **cursor, const snail_entry_rules *rules,
                                           int64_t at, snail_examples *out) {
    const uint8_t *p = *cursor;
    uint64_t key;
    if (rules->has_fields) {
        if (!snail_read_whole(&p, INT32_MAX, &key)) return SNAIL_FAULT_FIELD;
        *cursor = p;
        if (*p++ != ':') return SNAIL_FAULT_FEATURE;
        out->fields[at] = (int32_t)key;
    }
    const int found = snail_read_whole(&p, INT64_MAX, &key);
    *cursor = p;
    if (!found) return SNAIL_FAULT_INDEX;
    if (*p++ != ':') return SNAIL_FAULT_COLON;
    out->keys[at] = rules->shift ? snail_hash_key(key) >> rules->shift : key;
    *cursor = p;
    if (p[0] == '1' && (p[1] == ' ' || p[1] == '\n')) { /* most values of many data sets */
        out->values[at] = 1;
        *cursor = p + 1;
        return SNAIL_FAULT_NONE;
    }
    return snail_read_real(cursor, &out->values[at]) ? SNAIL_FAULT_NONE : SNAIL_FAULT_VALUE;
}

/* Reads the example that begins here, up to its newline or comment. */
static inline snail_fault snail_read_entry_line(const uint8_t **cursor,
                                                const snail_entry_rules *rules,
                                                snail_examples *out) {
    int64_t nnz = out->nnz;
    int first = 1;
    if (!snail_read_label(cursor, &out->labels[out->n])) return SNAIL_FAULT_LABEL;
    for (;;) {
        const uint8_t *p = *cursor;
        while (snail_is_blank(*p)) p++;
        const int apart = p > *cursor;
        *cursor = p;
        if (apart && snail_is_digit(*p)) {
            const snail_fault fault = snail_read_entry(cursor, rules, nnz, out);
            if (SNAIL_UNLIKELY(fault)) return fault;
            nnz++;
            first = 0;
            continue;
        }
        if (*p == '\n' || (*p == '\r' && p[1] == '\n')) break;
        if (!apart) return first ? SNAIL_FAULT_LABEL : SNAIL_FAULT_VALUE;
        if (*p == '#') break;
        if (first && memcmp(p, "qid:", 4) == 0) {
            *cursor = p + 4;
            if (!snail_is_digit(**cursor)) return SNAIL_FAULT_QID;
            while (snail_is_digit(**cursor)) ++*cursor; /* of any length: it is ignored */
            first = 0;
            continue;
        }
        return rules->has_fields ? SNAIL_FAULT_FIELD : SNAIL_FAULT_INDEX;
    }
    snail_add_example(out, nnz);
    return SNAIL_FAULT_NONE;
}

/* A line with an example, with a comment alone, or with nothing. */
static inline snail_fault snail_entry_line(const uint8_t **cursor, const uint8_t *stop,
                                           const void *rules, snail_examples *out,
                                           snail_trouble *trouble) {
    while (snail_is_blank(**cursor)) ++*cursor;
    const uint8_t *p = *cursor;
    if (*p != '\n' && *p != '#' && !(*p == '\r' && p[1] == '\n')) {
        const snail_fault fault = snail_read_entry_line(cursor, rules, out);
        p = *cursor;
        if (SNAIL_UNLIKELY(fault)) {
            trouble->at = p;
            return fault;
        }
    }
    *cursor = (*p == '\n' ? p : *p == '\r' ? p + 1 : snail_line_end(p, stop)) + 1;
    return SNAIL_FAULT_NONE;
}

static void snail_read_entries(const uint8_t *text, int64_t size, const void *of_format, int skip,
                               snail_examples *out, snail_trouble *trouble) {
    const snail_entry_rules *rules = of_format;
    const uint8_t *stop = text + size;
    int lines = SNAIL_LINES_LEAST;
    if (!rules->plain) {
        snail_read_lines(snail_entry_line, rules, skip, text, size, out, trouble);
        return;
    }
    while (text < stop) {
        const uint8_t *begin = text;
        text = rules->plain(text, stop, rules->shift, out);
        if (text == stop) return;
        /* A line that is not plain.  If no plain line came between, wait twice as long before the next try. */
        if (text > begin) lines = SNAIL_LINES_LEAST;
        else if (lines < SNAIL_LINES_MOST) lines *= 2;
        begin = text;
        text = snail_lines_end(text, stop, lines);
        snail_read_lines(snail_entry_line, rules, skip, begin, text - begin, out, trouble);
        if (trouble->fault && !skip) return;
    }
}

#endif
