# Tokens and words, for Cython (documented in the C header), and a class that other loops use.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "data/_tokens.h" nogil:
    enum:
        BATCH "SNAIL_BATCH"
    ctypedef struct Token "snail_token":
        const uint8_t *text
        int64_t length
    ctypedef struct Slot "snail_word_slot":
        pass
    ctypedef struct WordTable "snail_word_table":
        Slot *slots
        uint64_t slot_mask
        uint8_t *arena
        uint64_t arena_used
        uint64_t arena_size
        uint64_t *starts
        int64_t words
        int64_t words_max

    int64_t read_token "snail_read_token"(const uint8_t *text, int64_t left, Token *token) noexcept
    int scan "snail_scan"(const uint8_t *data, int64_t size, int64_t *position,
                          const Token *sentence_end, Token *tokens) noexcept
    int read_words "snail_read_words"(const uint8_t *arena, const uint64_t *starts, int words,
                                      Token *tokens) noexcept
    void fetch_counts "snail_fetch_counts"(const WordTable *table, const int64_t *counts,
                                           const Token *tokens, int found) noexcept
    void fetch_words "snail_fetch_words"(const WordTable *table, const Token *tokens,
                                         int found) noexcept
    void fetch_long_words "snail_fetch_long_words"(const WordTable *table, const Token *tokens,
                                                   int found) noexcept
    bint is_sentence_end "snail_is_sentence_end"(const Token *token) noexcept
    int64_t find_word "snail_find_word"(const WordTable *table, const Token *token) noexcept
    int64_t add_word "snail_add_word"(WordTable *table, const Token *token) noexcept
    int64_t fill_slots "snail_fill_slots"(WordTable *table, bint names) noexcept


# Room for more words, with the GIL; a table of zeros has none.
cdef int table_reserve(WordTable *table, int64_t words, uint64_t arena_bytes) except -1
cdef void table_free(WordTable *table) noexcept nogil


cdef class Lexicon:
    cdef WordTable table
    cdef object packed          # keeps alive what the table borrows
    cdef int64_t end_id         # of `</s>`, -1 if it is no word
