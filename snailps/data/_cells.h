/* Rows of CSV, TSV and cells separated by blanks, by declared columns: the one rule from a cell to an entry.
 *
 * row -> cells -> snail_column (what to do with this one) -> label | key, value, field | the cell
 *
 * table in memory -> snail_add_number, snail_add_text -> the same
 *
 * Keys are hashes of a column's name and a cell's text (snail_hash_text).  All tables, in files and in memory,
 * come to snail_add_number and snail_add_text, so the same cell has the same key wherever it comes from.
 */
#ifndef SNAILPS_CELLS_H
#define SNAILPS_CELLS_H

#include <math.h>
#include <string.h>

#include "../abi/_key_hash.h"
#include "_example_lines.h"

typedef enum { /* columns.Kind */
    SNAIL_IGNORE,
    SNAIL_LABEL,
    SNAIL_TEXT,
    SNAIL_NUMERIC,
    SNAIL_BUCKET,
    SNAIL_CATEGORICAL,
    SNAIL_HASHED
} snail_column_kind;

typedef struct {
    snail_column_kind kind;
    int log;           /* numbers become sign(x) log(1 + |x|) */
    int32_t field;     /* TEXT: its number among the columns of that kind */
    int bits;          /* HASHED: how many of the cell's hash are used */
    uint64_t seed;     /* hash of the column's name */
    uint64_t key;      /* NUMERIC: the key of all its entries */
    int64_t bound;     /* BUCKET: where its bounds begin, and how many there are */
    int64_t bound_num;
    int64_t bucket;    /* ... and where the keys of its bound_num + 1 buckets begin */
} snail_column;

typedef struct {
    const snail_column *columns;
    int64_t column_num;
    const double *bounds;
    const uint64_t *bucket_keys;
    int64_t text_num;  /* columns of kind TEXT */
    int shift;         /* keys are the upper 64 - shift bits of a hash */
    uint8_t separator; /* a blank stands for any number of blanks */
    int quotes;        /* cells may be quoted: 1 within a line, 2 across lines */
} snail_cell_rules;

/* Hash of a text: 8 bytes a step, little endian, the last chunk padded with zeros.
 *
 * h = seed + size * golden, then h = mix64(h ^ chunk) for each chunk; at least one chunk.
 * Eight bytes from `text` + `size` on must be readable. */
static inline uint64_t snail_hash_text(uint64_t seed, const uint8_t *text, int64_t size) {
    uint64_t h = seed + (uint64_t)size * SNAIL_GOLDEN;
    for (; size >= 8; text += 8) {
        h = snail_mix64(h ^ snail_eight(text));
        size -= 8;
        if (size == 0) return h;
    }
    return snail_mix64(h ^ (snail_eight(text) & ((UINT64_C(1) << (8 * size)) - 1)));
}

/* snail_hash_text of a cell in which `""` stands for `"`. */
static uint64_t snail_hash_doubled(uint64_t seed, const uint8_t *text, const uint8_t *stop) {
    int64_t size = 0;
    int filled = 0;
    for (const uint8_t *p = text; p < stop; p += *p == '"' ? 2 : 1) size++;
    uint64_t h = seed + (uint64_t)size * SNAIL_GOLDEN, chunk = 0;
    for (const uint8_t *p = text; p < stop;) {
        chunk |= (uint64_t)*p << (8 * filled++);
        p += *p == '"' ? 2 : 1;
        if (filled == 8 && p < stop) {
            h = snail_mix64(h ^ chunk);
            chunk = 0;
            filled = 0;
        }
    }
    return snail_mix64(h ^ chunk);
}

/* High bits of the bytes that are 0.  Only the lowest one is exact: a borrow may set others above it. */
static inline uint64_t snail_zero_bytes(uint64_t chunk) {
    return (chunk - UINT64_C(0x0101010101010101)) & ~chunk & UINT64_C(0x8080808080808080);
}

/* The next separator or newline. */
static inline const uint8_t *snail_cell_end(const uint8_t *p, uint8_t separator) {
    const uint64_t separators = separator * UINT64_C(0x0101010101010101);
    for (;; p += 8) {
        const uint64_t chunk = snail_eight(p);
        const uint64_t found = snail_zero_bytes(chunk ^ separators) |
                               snail_zero_bytes(chunk ^ UINT64_C(0x0A0A0A0A0A0A0A0A));
        if (found) return p + (SNAIL_LOWEST_BIT(found) >> 3);
    }
}

/* Reads a quoted cell from its opening quote on; whether it is closed.  The cursor ends after the closing
 * quote, or, if there is none, at the newline that it must not contain, or at the last newline before `end`. */
static inline int snail_read_quoted(const uint8_t **cursor, const uint8_t *end, int over_lines,
                                    snail_cell *cell) {
    const uint8_t *p = *cursor + 1;
    cell->text = p;
    cell->doubled = 0;
    for (;; p++) {
        p = snail_cell_end(p, '"');
        if (*p == '\n') {
            if (over_lines && p + 1 < end) continue;
            *cursor = p;
            return 0;
        }
        if (p[1] != '"') break;
        cell->doubled = 1;
        p++;
    }
    cell->stop = p;
    *cursor = p + 1;
    return 1;
}

/* Reads a cell without the spaces around it.  The cursor ends at the separator or newline; after a fault,
 * before the newline that ends the row. */
static inline __attribute__((always_inline)) snail_fault
snail_next_cell(const uint8_t **cursor, const uint8_t *end, const snail_cell_rules *rules,
                snail_cell *cell) {
    const uint8_t *p = *cursor;
    while (*p == ' ') p++;
    if (rules->quotes && *p == '"') {
        const int closed = snail_read_quoted(&p, end, rules->quotes > 1, cell);
        while (*p == ' ') p++;
        p += *p == '\r' && p[1] == '\n';
        *cursor = p;
        return closed && (*p == rules->separator || *p == '\n') ? SNAIL_FAULT_NONE
                                                                 : SNAIL_FAULT_QUOTE;
    }
    const uint8_t *stop = snail_cell_end(p, rules->separator), *next = stop;
    if (*stop == ' ') { /* the separator is blanks: skip to the last one, or to the newline after them */
        while (*next == ' ') next++;
        next += *next == '\r' && next[1] == '\n';
        next -= *next != '\n';
    }
    *cursor = next;
    cell->text = p;
    cell->doubled = 0;
    if (*stop == '\n' && stop > p && stop[-1] == '\r') stop--;
    while (stop > p && stop[-1] == ' ') stop--;
    cell->stop = stop;
    return SNAIL_FAULT_NONE;
}

/* Reads true and false as 1 and 0, as JSON, pandas and spreadsheets spell them. */
static int snail_truth(const snail_cell *cell, float *out) {
    static const char *const words[] = {"false", "true",  "False",
                                        "True",  "FALSE", "TRUE"};
    const size_t size = (size_t)(cell->stop - cell->text);
    for (int i = 0; i < 6; i++) {
        if (size == strlen(words[i]) && !memcmp(cell->text, words[i], size)) {
            *out = (float)(i & 1);
            return 1;
        }
    }
    return 0;
}

/* Whether a cell that is no number stands for a missing value, as R, pandas and SQL write it (\N: files of
   PostgreSQL, MySQL and Hive). */
static int snail_is_missing(const snail_cell *cell) {
    static const char *const words[] = {"NA",  "N/A",  "n/a",  "#N/A", "<NA>",
                                        "NaN", "nan",  "NULL", "null", "None",
                                        "\\N"}; /* columns.MISSING */
    const size_t size = (size_t)(cell->stop - cell->text);
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
        if (size == strlen(words[i]) && !memcmp(cell->text, words[i], size)) return 1;
    return 0;
}

/* The whole cell as a number. */
static inline int snail_whole_number(const snail_cell *cell, float *out) {
    const uint8_t *p = cell->text;
    return (snail_read_real(&p, out) && p == cell->stop) || snail_truth(cell, out);
}

static inline int snail_whole_label(const snail_cell *cell, double *out) {
    const uint8_t *p = cell->text;
    if (snail_read_label(&p, out) && p == cell->stop) return 1;
    float truth;
    const int found = snail_truth(cell, &truth);
    if (found) *out = truth;
    return found;
}

/* Write the entry of a number, and of a text: the rule for the cells of all tables. */
static inline __attribute__((always_inline)) void
snail_add_number(float number, const snail_column *column, const snail_cell_rules *rules,
                 int64_t *nnz, snail_examples *out) {
    const int64_t at = (*nnz)++;
    if (column->log)
        number = (float)(number >= 0 ? log1p((double)number) : -log1p(-(double)number));
    out->fields[at] = column->field;
    if (column->kind == SNAIL_NUMERIC) {
        out->keys[at] = column->key;
        out->values[at] = number;
        return;
    }
    int64_t i = 0;
    while (i < column->bound_num && number >= rules->bounds[column->bound + i]) i++;
    out->keys[at] = rules->bucket_keys[column->bucket + i];
    out->values[at] = 1;
}

static inline __attribute__((always_inline)) void
snail_add_text(const snail_cell *cell, const snail_column *column, const snail_cell_rules *rules,
               int64_t *nnz, snail_examples *out) {
    const int64_t at = (*nnz)++;
    uint64_t hashed = SNAIL_UNLIKELY(cell->doubled)
                          ? snail_hash_doubled(column->seed, cell->text, cell->stop)
                          : snail_hash_text(column->seed, cell->text, cell->stop - cell->text);
    if (column->kind == SNAIL_HASHED) {
        hashed >>= 64 - column->bits;
        hashed = snail_hash_text(column->seed, (const uint8_t *)&hashed, 8);
    }
    out->keys[at] = hashed >> rules->shift;
    out->values[at] = 1;
    out->fields[at] = column->field;
}

/* Writes what a cell adds to the example: its label, an entry, or nothing. */
static inline snail_fault snail_add_cell(const snail_cell *cell, const snail_column *column,
                                         const snail_cell_rules *rules, int64_t *nnz,
                                         snail_examples *out) {
    if (column->kind < SNAIL_NUMERIC) {
        if (column->kind == SNAIL_LABEL)
            return snail_whole_label(cell, &out->labels[out->n]) ? SNAIL_FAULT_NONE
                                                                  : SNAIL_FAULT_LABEL;
        if (column->kind == SNAIL_TEXT)
            out->cells[out->n * rules->text_num + column->field] = *cell;
        return SNAIL_FAULT_NONE;
    }
    if (cell->text == cell->stop) return SNAIL_FAULT_NONE;
    if (column->kind == SNAIL_CATEGORICAL || column->kind == SNAIL_HASHED) {
        snail_add_text(cell, column, rules, nnz, out);
        return SNAIL_FAULT_NONE;
    }
    float number;
    if (SNAIL_UNLIKELY(!snail_whole_number(cell, &number)))
        return snail_is_missing(cell) ? SNAIL_FAULT_NONE : SNAIL_FAULT_CELL;
    snail_add_number(number, column, rules, nnz, out);
    return SNAIL_FAULT_NONE;
}

/* Finds the end of a row with a fault, and how many cells it has.  A wrong number of cells is reported before
 * any other fault but a quote's: it is what usually causes them. */
static snail_fault snail_row_fault(snail_fault fault, const uint8_t **cursor, const uint8_t *stop,
                                   const snail_cell_rules *rules, snail_trouble *trouble) {
    const uint8_t *p = trouble->line, *edge = NULL;
    for (trouble->cells = 1;; trouble->cells++, p++) {
        snail_cell cell;
        if (snail_next_cell(&p, stop, rules, &cell)) break;
        if (trouble->cells == rules->column_num || (*p == '\n' && !edge)) edge = p;
        if (*p == '\n') {
            if (fault == SNAIL_FAULT_QUOTE || trouble->cells == rules->column_num) break;
            fault = SNAIL_FAULT_CELLS;
            trouble->at = edge;
            break;
        }
    }
    *cursor = p;
    return fault;
}

/* A row with an example, or an empty line. */
static inline snail_fault snail_row_line(const uint8_t **cursor, const uint8_t *stop,
                                         const void *of_format, snail_examples *out,
                                         snail_trouble *trouble) {
    const snail_cell_rules *rules = of_format;
    int64_t nnz = out->nnz;
    if (rules->separator == ' ')
        while (**cursor == ' ') ++*cursor;
    if (**cursor == '\n' || (**cursor == '\r' && (*cursor)[1] == '\n')) {
        *cursor += **cursor == '\n' ? 1 : 2;
        return SNAIL_FAULT_NONE;
    }
    for (int64_t i = 0; i < rules->column_num; i++) {
        snail_cell cell;
        snail_fault fault = snail_next_cell(cursor, stop, rules, &cell);
        if (!fault) fault = snail_add_cell(&cell, &rules->columns[i], rules, &nnz, out);
        if (!fault && (**cursor == '\n') != (i + 1 == rules->column_num)) fault = SNAIL_FAULT_CELLS;
        if (SNAIL_UNLIKELY(fault)) {
            trouble->column = i;
            trouble->at = cell.text - (fault == SNAIL_FAULT_QUOTE);
            return snail_row_fault(fault, cursor, stop, rules, trouble);
        }
        ++*cursor;
    }
    snail_add_example(out, nnz);
    return SNAIL_FAULT_NONE;
}

/* The end of the last complete row of whole lines: a quoted cell may continue on lines that come later. */
static int64_t snail_rows_end(const uint8_t *text, int64_t size, const snail_cell_rules *rules) {
    const uint8_t *p = text, *row = text, *stop = text + size;
    while (p < stop) {
        snail_cell cell;
        if (snail_next_cell(&p, stop, rules, &cell)) {
            if (p + 1 == stop) break;
            p = snail_line_end(p, stop);
        }
        if (*p++ == '\n') row = p;
    }
    return row - text;
}

static void snail_read_rows(const uint8_t *text, int64_t size, const void *rules, int skip,
                            snail_examples *out, snail_trouble *trouble) {
    snail_read_lines(snail_row_line, rules, skip, text, size, out, trouble);
}

#endif
