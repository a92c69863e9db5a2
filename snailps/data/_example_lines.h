/* What the parsers of sparse examples share: their output, their faults, the loop over lines.
 *
 * whole lines -> snail_read_lines, with one format's parser of a line -> snail_examples
 *
 * The formats are in _entries.h (LIBSVM, LIBFFM) and _cells.h (CSV, TSV).  The caller gives the output room
 * for every line and every entry that the text can have: the loops check no bounds.
 */
#ifndef SNAILPS_EXAMPLE_LINES_H
#define SNAILPS_EXAMPLE_LINES_H

#include <stdint.h>
#include <string.h>

#include "_number_parsing.h"

typedef enum {
    SNAIL_FAULT_NONE,
    SNAIL_FAULT_LABEL,
    SNAIL_FAULT_INDEX,
    SNAIL_FAULT_COLON,
    SNAIL_FAULT_VALUE,
    SNAIL_FAULT_FIELD,
    SNAIL_FAULT_FEATURE,
    SNAIL_FAULT_QID,
    SNAIL_FAULT_CELLS,
    SNAIL_FAULT_QUOTE,
    SNAIL_FAULT_CELL
} snail_fault;

typedef struct {
    const uint8_t *text;
    const uint8_t *stop;
    int doubled; /* has doubled quotes */
} snail_cell;

typedef struct {
    double *labels;
    int64_t *ptr; /* ptr[0] is 0 */
    uint64_t *keys;
    float *values;
    int32_t *fields;
    int64_t n;   /* examples written */
    int64_t nnz; /* entries written */
    int64_t bad; /* lines skipped */
    snail_cell *cells; /* of columns of kind TEXT, example by example */
} snail_examples;

typedef struct { /* the first fault of a text */
    snail_fault fault;
    const uint8_t *line; /* where the line begins */
    const uint8_t *at;   /* the first byte that is not as expected */
    int64_t column;      /* in a table: the column of the fault, from 0 */
    int64_t cells;       /* ... and how many cells the line has */
} snail_trouble;

static inline const uint8_t *snail_line_end(const uint8_t *p, const uint8_t *stop) {
    return memchr(p, '\n', (size_t)(stop - p));
}

/* The end of `lines` lines, or `stop`; the text ends with a newline. */
static inline const uint8_t *snail_lines_end(const uint8_t *p, const uint8_t *stop, int lines) {
    while (p < stop && lines-- > 0) p = snail_line_end(p, stop) + 1;
    return p;
}

/* Completes an example with the entries up to `nnz`. */
static inline void snail_add_example(snail_examples *out, int64_t nnz) {
    out->n++;
    out->ptr[out->n] = nnz;
    out->nnz = nnz;
}

/* Reads a line, or skips one without an example; moves the cursor past its newline.  After a fault nothing
 * is added to `out`, `trouble` says where it is, and the next newline ends the line. */
typedef snail_fault (*snail_line_parser)(const uint8_t **cursor, const uint8_t *stop,
                                         const void *rules, snail_examples *out,
                                         snail_trouble *trouble);

/* Reads whole lines.  The last one has its newline, and 8 readable bytes after it.  Stops at the first
 * malformed line, unless such lines are skipped (`skip`). */
static inline __attribute__((always_inline)) void
snail_read_lines(snail_line_parser parse, const void *rules, int skip, const uint8_t *text,
                 int64_t size, snail_examples *out, snail_trouble *trouble) {
    const uint8_t *p = text, *stop = text + size;
    snail_trouble here = {SNAIL_FAULT_NONE, NULL, NULL, 0, 0};
    while (p < stop) {
        here.line = p;
        here.fault = parse(&p, stop, rules, out, &here);
        if (SNAIL_UNLIKELY(here.fault)) {
            if (!trouble->fault) *trouble = here;
            if (!skip) return;
            out->bad++;
            p = snail_line_end(p, stop) + 1;
        }
    }
}

#endif
