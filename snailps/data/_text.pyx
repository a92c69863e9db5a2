# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Tokens of texts: their counts and their ids.

    bytes -> WordCounter -> dump -> (another) WordCounter.merge -> words, counts
    bytes -> Lexicon.encode -> word ids, sentence by sentence
    names, any bytes -> NameTable -> counts, numbers          names -> hashes_of
    words with tails (PackedWords.with_tails) -> without_tails -> words, tails
    lines -> split_lines -> those that are trained, those that are held out
    rows of examples -> hashes_of_rows, by which they are split

Counts are exactly fastText's (version 0.9).  Must not know files (`files/`), which words a vocabulary has
(`vocabulary`), or subwords (`_subwords`).  The loops over text run without the GIL and never allocate; the
classes check, allocate and return.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memchr, memcpy, memset

import threading

import numpy as np

from snailps.abi._key_hash cimport GOLDEN, hash_key, mix64
from snailps.data.packed_words import PackedWords
from snailps.data.word_counts import HEADER_BYTES, pack, unpack
from snailps.errors import DataError

cdef extern from *:
    """
    #include <stdlib.h>
    #include <sys/mman.h>
    #ifdef MADV_HUGEPAGE    /* else each look-up hits another page, and walks the page tables too */
    #define snail_huge(start, size) ((void)madvise((start), (size), MADV_HUGEPAGE))
    #else
    #define snail_huge(start, size) ((void)0)
    #endif
    """
    int posix_memalign(void **taken, size_t alignment, size_t size)
    void huge "snail_huge"(void *start, size_t size) noexcept

cdef enum:
    HUGE_PAGE = 2 << 20
    MERGED_TOGETHER = 1 << 16   # words that room is made for at a time: most of them are known

DUMP_MAGIC = b"SNWC"

cdef int LINE_TOKENS_MAX = 1024     # fastText's MAX_LINE_SIZE: a sentence ends once it has *more*
# Eight bytes long, because the loops load eight bytes of any text at a time.
cdef const uint8_t *END_TEXT = b"</s>\0\0\0\0"
cdef Token END
read_token(END_TEXT, 4, &END)


# ---- the table's memory (with the GIL; the loops never allocate) ----

cdef int table_reserve(WordTable *table, int64_t words, uint64_t arena_bytes) except -1:
    """Make room for `words` more words and `arena_bytes` bytes; at least double what has to grow."""
    cdef void *memory
    cdef uint64_t size
    cdef int64_t words_max
    size = table.arena_used + arena_bytes
    if table.arena == NULL or size > table.arena_size:
        size = max(size, 2 * table.arena_size)
        memory = realloc(table.arena, size)
        if memory == NULL:
            raise MemoryError(f"no memory for {size} bytes of words")
        table.arena = <uint8_t *>memory
        table.arena_size = size
    if table.slots != NULL and table.words + words <= table.words_max:
        return 0
    if table.words + words >= (<int64_t>1 << 31) - 1:
        raise DataError("expected fewer than 2^31 different words, got more: split the input or "
                        "normalise its words")
    words_max = 1024
    while words_max < table.words + words:
        words_max *= 2
    memory = realloc(table.starts, (words_max + 1) * sizeof(uint64_t))
    if memory == NULL:
        raise MemoryError(f"no memory for a table of {words_max} words")
    table.starts = <uint64_t *>memory
    table.starts[0] = 0
    table.words_max = words_max
    slots_make(table)
    with nogil:
        fill_slots(table, True)
    return 0


cdef int slots_make(WordTable *table) except -1:
    """Replace the slots by empty ones for `words_max` words."""
    cdef uint64_t slots_num = 2
    cdef int64_t words_max
    cdef void *memory = NULL
    while slots_num < 2 * <uint64_t>table.words_max:
        slots_num *= 2
    # The old slots go first, to need less memory: all words are in `starts`.  If there is no memory for
    # new ones, `words_max` 0 says that the table has no room, and it is valid still.
    free(table.slots)
    table.slots = NULL
    if slots_num * sizeof(Slot) < 2 * HUGE_PAGE:
        memory = calloc(slots_num, sizeof(Slot))
    elif posix_memalign(&memory, HUGE_PAGE, slots_num * sizeof(Slot)) == 0:
        huge(memory, slots_num * sizeof(Slot))
        memset(memory, 0, slots_num * sizeof(Slot))
    if memory == NULL:
        words_max, table.words_max = table.words_max, 0
        raise MemoryError(f"no memory for a table of {words_max} words")
    table.slots = <Slot *>memory
    table.slot_mask = slots_num - 1
    return 0


cdef void table_cut(WordTable *table, int64_t words) noexcept nogil:
    """Forget all words but the first `words`; frees no memory."""
    table.words = words
    table.arena_used = table.starts[words]
    if table.slots != NULL:
        memset(table.slots, 0, (table.slot_mask + 1) * sizeof(Slot))
        fill_slots(table, True)


cdef void table_free(WordTable *table) noexcept nogil:
    free(table.slots)
    free(table.starts)
    free(table.arena)
    memset(table, 0, sizeof(WordTable))


cdef int copy_words(const WordTable *table, uint8_t[::1] text, uint64_t[::1] starts) except -1:
    """Copy the words' bytes and offsets."""
    if table.arena_used:
        memcpy(&text[0], table.arena, table.arena_used)
    memcpy(&starts[0], table.starts, (table.words + 1) * sizeof(uint64_t))
    return 0


# ---- counting ----

cdef int64_t count_tokens(WordTable *table, int64_t *counts, const uint8_t *data, Py_ssize_t size,
                          int64_t *position, uint64_t *arena_bytes, bint *ended,
                          int64_t *unread) noexcept nogil:
    """Count tokens to the end of the text, or until the table is out of room; how many were counted.

    `arena_bytes` becomes what the next batch may need in the arena, or 0 at the end.  `unread` grows by the
    words behind a `</s>` in their line; `ended`: the line has had one.  One writer at a time.
    """
    cdef Token tokens[BATCH]
    cdef int64_t before
    cdef int64_t counted = 0
    cdef int found, i
    arena_bytes[0] = 0
    while True:
        before = position[0]
        found = scan(data, size, position, &END, tokens)
        if found == 0:
            return counted
        # The batch's words are part of the scanned bytes, except that `</s>` stands for a newline.
        arena_bytes[0] = <uint64_t>(position[0] - before) + 4
        if (table.words + BATCH > table.words_max
                or table.arena_used + arena_bytes[0] > table.arena_size):
            position[0] = before
            return counted
        arena_bytes[0] = 0
        fetch_words(table, tokens, found)
        fetch_long_words(table, tokens, found)
        fetch_counts(table, counts, tokens, found)
        for i in range(found):
            counts[add_word(table, &tokens[i])] += 1
            if is_sentence_end(&tokens[i]):
                ended[0] = tokens[i].text != END_TEXT   # a newline's token has END_TEXT itself
            else:
                unread[0] += ended[0]
        counted += found


cdef void add_counts(WordTable *table, int64_t *counts, const uint8_t *arena,
                     const uint64_t *starts, const int64_t *more, int64_t words) noexcept nogil:
    """Add counts of other words, for which the table has room; one writer at a time."""
    cdef Token tokens[BATCH]
    cdef int64_t at = 0
    cdef int found, i
    while at < words:
        found = read_words(arena, starts + at, <int>min(<int64_t>BATCH, words - at), tokens)
        fetch_words(table, tokens, found)
        fetch_long_words(table, tokens, found)
        fetch_counts(table, counts, tokens, found)
        for i in range(found):
            counts[add_word(table, &tokens[i])] += more[at + i]
        at += found


cdef class WordCounter:
    """Counts the different tokens of any number of pieces of text.

    `tokens`: all tokens, `</s>` included; `unread`: words behind a `</s>` in their line, which a classifier
    does not read (not dumped).  Words are in order of first appearance.  Nothing is pruned, unlike in
    fastText: a different word takes 50 to 100 bytes plus its length.  Threads take turns; text is read
    without the GIL.
    """

    cdef WordTable table
    cdef object lock
    cdef object counts_array
    cdef int64_t[::1] count_of
    cdef readonly int64_t tokens
    cdef public int64_t unread

    def __cinit__(self):
        self.lock = threading.Lock()
        self.counts_array = np.zeros(0, dtype=np.int64)
        self.count_of = self.counts_array
        self._reserve(BATCH, 1024)

    def __dealloc__(self):
        table_free(&self.table)

    cdef int _reserve(self, int64_t words, uint64_t arena_bytes) except -1:
        table_reserve(&self.table, words, arena_bytes)
        if self.count_of.shape[0] < self.table.words_max:
            try:
                counts = np.zeros(self.table.words_max, dtype=np.int64)
            except MemoryError:
                self.table.words_max = self.count_of.shape[0]   # no more words than counts
                raise
            counts[:self.table.words] = self.counts_array[:self.table.words]
            self.counts_array = counts
            self.count_of = counts
        return 0

    def __len__(self):
        return self.table.words

    def count(self, const uint8_t[::1] data not None) -> int:
        """Count the tokens of a text that begins and ends between two tokens; how many it has.

        Each newline counts as one `</s>`.  DataError: 2^31 different words or more.
        """
        cdef int64_t position = 0
        cdef Py_ssize_t size = data.shape[0]
        cdef const uint8_t *text = &data[0] if size else NULL
        cdef uint64_t arena_bytes = 0
        cdef int64_t counted = 0
        cdef int64_t unread = 0
        cdef bint ended = False
        cdef int64_t *counts
        with self.lock:
            while True:
                counts = &self.count_of[0]
                with nogil:
                    counted += count_tokens(&self.table, counts, text, size, &position,
                                            &arena_bytes, &ended, &unread)
                if arena_bytes == 0:
                    break
                self._reserve(BATCH, arena_bytes)
            self.tokens += counted
            self.unread += unread
        return counted

    def words(self) -> snailps.data.packed_words.PackedWords:
        """The different words (`PackedWords`, a copy)."""
        with self.lock:
            text = np.empty(self.table.arena_used, dtype=np.uint8)
            starts = np.empty(self.table.words + 1, dtype=np.uint64)
            copy_words(&self.table, text, starts)
            return PackedWords(text, starts)

    def counts(self) -> NDArray[np.int64]:
        """Occurrences of each word (int64 (n,), a copy) in `words`' order."""
        with self.lock:
            return self.counts_array[:self.table.words].copy()

    @property
    def dump_bytes(self) -> int:
        """Length of `dump`."""
        return HEADER_BYTES + 16 * self.table.words + self.table.arena_used

    def dump(self) -> bytes:
        """The counter as bytes for `merge`, in the layout of `word_counts`."""
        with self.lock:
            # Views, so that `pack` makes the only copy; of a byte more, since an empty view is refused.
            text = np.asarray(<uint8_t[:self.table.arena_used + 1]>self.table.arena)
            text = text[:self.table.arena_used]
            starts = np.asarray(<uint64_t[:self.table.words + 1]>self.table.starts)
            return pack(DUMP_MAGIC, self.counts_array[:self.table.words], starts[1:], text,
                        self.tokens)

    def add(self, words: Sequence[bytes]) -> None:
        """Count each of these words once; DataError: one is empty or has a separator."""
        packed = PackedWords.of(words)
        ones = np.ones(len(packed), np.int64)
        ends = packed.starts[1:] - packed.starts[0]
        self.merge(pack(DUMP_MAGIC, ones, ends, packed.joined(), len(packed)))

    def merge(self, part: bytes) -> None:
        """Add the counts of another counter's `dump`; DataError: malformed.

        After an error the counter is as before, so the part may be merged again.
        """
        counts, ends, text, tokens = unpack(DUMP_MAGIC, part, complete=True)
        cdef const int64_t[::1] more = counts
        cdef const uint64_t[::1] start = np.concatenate((np.zeros(1, np.uint64), ends))
        cdef const uint8_t[::1] arena = text
        cdef int64_t words = more.shape[0]
        cdef int64_t at = 0
        cdef int64_t some, known
        if words == 0:
            return
        with self.lock:
            if self.tokens + tokens > 1 << 62:
                raise DataError("cannot merge word counts: their sum exceeds 2^62")
            # Most words of a later part are known: room is made step by step, not for all of them.
            known = self.table.words
            before = self.counts_array[:known].copy()
            some = MERGED_TOGETHER if known else words
            try:
                while at < words:
                    some = min(some, words - at)
                    self._reserve(some + BATCH, start[at + some] - start[at])
                    with nogil:
                        add_counts(&self.table, &self.count_of[0], &arena[0], &start[at],
                                   &more[at], some)
                    at += some
            except BaseException:
                self.counts_array[:known] = before
                self.counts_array[known:] = 0
                with nogil:
                    table_cut(&self.table, known)
                raise
            self.tokens += tokens


# ---- names ----

cdef int read_names(const uint8_t *text, const uint64_t *starts, int64_t at, int64_t stop,
                    const WordTable *table, Token *tokens) noexcept nogil:
    """Tokens of up to BATCH names from `at` to before `stop`; prefetches their slots."""
    cdef int found = read_words(text, starts + at, <int>min(<int64_t>BATCH, stop - at), tokens)
    fetch_words(table, tokens, found)
    fetch_long_words(table, tokens, found)
    return found


cdef class NameTable:
    """Counts names, which may be any bytes, and numbers them in order of first appearance.

    Any number of threads may call `numbers` at the same time, while none calls `add`.
    """

    cdef WordTable table
    cdef object counts_array

    def __cinit__(self):
        self.counts_array = np.zeros(0, np.int64)
        table_reserve(&self.table, BATCH, 1024)

    def __dealloc__(self):
        table_free(&self.table)

    def __len__(self):
        return self.table.words

    @property
    def letters(self) -> int:
        """Bytes of all names."""
        return self.table.arena_used

    def reserve(self, names: snailps.data.packed_words.PackedWords) -> None:
        """Make room for names that are known to be new, at once: a table that grows is filled anew."""
        table_reserve(&self.table, len(names), names.letters)

    def add(self, names: Sequence[bytes], counts: NDArray[np.int64] | None = None) -> None:
        """Count names, each once, or as often as `counts` says."""
        packed = PackedWords.of(names)
        cdef const uint8_t[::1] text = packed.text
        cdef const uint64_t[::1] starts = packed.starts
        cdef const int64_t[::1] more = np.zeros(0, np.int64) if counts is None else counts
        cdef bint each_once = counts is None
        cdef int64_t[::1] known
        cdef int64_t count = len(packed), at = 0, stop
        cdef const uint8_t *first = &text[0] if text.shape[0] else END_TEXT
        cdef Token tokens[BATCH]
        cdef int found, i
        if not each_once and more.shape[0] != count:
            raise ValueError(f"expected {count} counts, got {more.shape[0]}")
        while at < count:
            stop = min(at + MERGED_TOGETHER, count)     # most of them are known: little room
            table_reserve(&self.table, stop - at, starts[stop] - starts[at])
            if len(self.counts_array) < self.table.words_max:
                enlarged = np.zeros(self.table.words_max, np.int64)
                enlarged[:self.table.words] = self.counts_array[:self.table.words]
                self.counts_array = enlarged
            known = self.counts_array
            with nogil:
                while at < stop:
                    found = read_names(first, &starts[0], at, stop, &self.table, tokens)
                    for i in range(found):
                        known[add_word(&self.table, &tokens[i])] += \
                            1 if each_once else more[at + i]
                    at += found

    def numbers(self, names: Sequence[bytes]) -> NDArray[np.int64]:
        """Number of each name, int64 (n,); -1 for an unknown one."""
        packed = PackedWords.of(names)
        cdef const uint8_t[::1] text = packed.text
        cdef const uint64_t[::1] starts = packed.starts
        cdef int64_t count = len(packed), at = 0
        cdef const uint8_t *first = &text[0] if text.shape[0] else END_TEXT
        found_array = np.empty(count, np.int64)
        cdef int64_t[::1] out = found_array
        cdef Token tokens[BATCH]
        cdef int found, i
        with nogil:
            while at < count:
                found = read_names(first, &starts[0], at, count, &self.table, tokens)
                for i in range(found):
                    out[at + i] = find_word(&self.table, &tokens[i])
                at += found
        return found_array

    def names(self) -> snailps.data.packed_words.PackedWords:
        """The different names (a copy)."""
        text = np.empty(self.table.arena_used, dtype=np.uint8)
        starts = np.empty(self.table.words + 1, dtype=np.uint64)
        copy_words(&self.table, text, starts)
        return PackedWords(text, starts)

    def counts(self) -> NDArray[np.int64]:
        """How often each was added (int64 (n,), a copy)."""
        return self.counts_array[:self.table.words].copy()


cdef uint64_t hash_of_text(const uint8_t *text, uint64_t size, uint64_t seed) noexcept nogil:
    cdef uint64_t mixed = hash_key(seed ^ size), at = 0, piece
    while at < size:
        piece = 0
        memcpy(&piece, &text[at], 8 if size - at > 8 else size - at)
        mixed = mix64(mixed ^ piece) + GOLDEN
        at += 8
    return mix64(mixed)


def hashes_of(words: Sequence[bytes], uint64_t seed) -> NDArray[np.uint64]:
    """A hash of each word, uint64 (n,), that depends on its bytes and the seed alone."""
    packed = PackedWords.of(words)
    cdef const uint8_t[::1] text = packed.text
    cdef const uint64_t[::1] starts = packed.starts
    cdef int64_t count = len(packed), i
    hashes = np.empty(count, np.uint64)
    cdef uint64_t[::1] out = hashes
    with nogil:
        for i in range(count):
            out[i] = hash_of_text(&text[0] + starts[i], starts[i + 1] - starts[i], seed)
    return hashes


cdef Py_ssize_t without_runs(uint8_t *line, Py_ssize_t size) noexcept nogil:
    """Make a single blank of each run of blanks, none at either end; returns the new size."""
    cdef Py_ssize_t at, used = 0
    for at in range(size):
        if line[at] != c' ' or (used and line[used - 1] != c' '):
            line[used] = line[at]
            used += 1
    return used - (used > 0 and line[used - 1] == c' ')


def split_lines(const uint8_t[::1] data not None, uint64_t seed, uint64_t least, const uint8_t[::1] plain=None) \
        -> tuple[bytes, bytes]:
    """Split lines by a hash of their bytes: those below `least`, and the others; each in their order.

    Equal lines are on the same side, whatever block or file they are in.  Their newline does not count.
    `plain`: the text whose lines are hashed instead, with blanks for what does not count, and without runs of
    blanks, as what does not count may be of any length.
    """
    cdef Py_ssize_t size = data.shape[0], at = 0, end, below = 0, above = 0, length
    lower, upper = np.empty(size, np.uint8), np.empty(size, np.uint8)
    cdef uint8_t[::1] low = lower, high = upper, hashed
    cdef const uint8_t *newline
    cdef const uint8_t *line
    cdef bint is_plain = plain is not None
    if is_plain:
        if plain.shape[0] != size:
            raise ValueError(f"expected a plain text of {size} bytes, got {plain.shape[0]}")
        hashed = np.array(plain)
    with nogil:
        while at < size:
            newline = <const uint8_t *>memchr(&data[at], c'\n', size - at)
            end = size if newline == NULL else newline - &data[0] + 1
            line, length = &data[at], end - at - (newline != NULL)
            if is_plain:
                line, length = &hashed[at], without_runs(&hashed[at], length)
            if hash_of_text(line, length, seed) < least:
                memcpy(&low[below], &data[at], end - at)
                below += end - at
            else:
                memcpy(&high[above], &data[at], end - at)
                above += end - at
            at = end
    return lower[:below].tobytes(), upper[:above].tobytes()


def hashes_of_rows(const double[::1] labels not None, const int64_t[::1] ptr not None,
                   const uint64_t[::1] keys not None, const float[::1] values not None,
                   const int32_t[::1] fields not None, uint64_t seed) -> NDArray[np.uint64]:
    """A hash of each row of CSR, uint64 (n,), by its label, keys, values, and fields if there are any.

    ValueError: `ptr` refers to entries that the arrays lack.
    """
    cdef Py_ssize_t rows = labels.shape[0], entries = keys.shape[0], i
    cdef int64_t begin, size
    cdef uint64_t mixed
    cdef bint has_fields = fields.shape[0] > 0, fits = True
    if ptr.shape[0] != rows + 1 or values.shape[0] != entries or (has_fields and fields.shape[0] != entries):
        raise ValueError(f"expected {rows + 1} pointers and as many values and fields as keys, {entries}")
    hashes = np.empty(rows, np.uint64)
    cdef uint64_t[::1] out = hashes
    with nogil:
        for i in range(rows):
            begin = ptr[i]
            if not 0 <= begin <= ptr[i + 1] <= entries:
                fits = False
                break
            size = ptr[i + 1] - begin
            mixed = hash_of_text(<const uint8_t *>&labels[i], 8, seed)
            if size:
                mixed = hash_of_text(<const uint8_t *>&keys[begin], 8 * size, mixed)
                mixed = hash_of_text(<const uint8_t *>&values[begin], 4 * size, mixed)
                if has_fields:
                    mixed = hash_of_text(<const uint8_t *>&fields[begin], 4 * size, mixed)
            out[i] = mixed
    if not fits:
        raise ValueError(f"row {i}: expected ascending pointers to {entries} entries")
    return hashes


# ---- encoding ----

cdef struct Reading:
    int64_t position            # in the text
    Py_ssize_t used             # entries of the output
    int64_t tokens              # raw tokens read
    uint64_t known              # in-vocabulary tokens read: the counter of the random numbers
    int line_tokens             # in-vocabulary tokens of this sentence, kept or not
    bint open                   # this sentence has ids in the output


cdef bint encode_tokens(const WordTable *table, int64_t end_id, const uint8_t *data,
                        Py_ssize_t size, const float *keep, uint64_t stream, int32_t *out,
                        Py_ssize_t out_size, Reading *reading) noexcept nogil:
    """Encode to the end of the text; True: there was no room for more, call again with a larger output."""
    cdef Token tokens[BATCH]
    cdef Py_ssize_t used = reading.used
    cdef int64_t id
    cdef float draw
    cdef bint kept, more = True
    cdef int found, i
    while True:
        # A token gives at most its id and a mark; the last mark of all needs one entry more.
        if out_size - used < 2 * BATCH + 1:
            break
        found = scan(data, size, &reading.position, &END, tokens)
        if found == 0:
            more = False
            break
        reading.tokens += found
        fetch_words(table, tokens, found)
        fetch_long_words(table, tokens, found)
        for i in range(found):
            id = find_word(table, &tokens[i])
            if id < 0:
                continue
            reading.known += 1
            reading.line_tokens += 1
            kept = True
            if keep != NULL and keep[id] < 1:
                draw = <float>(mix64(stream + reading.known * GOLDEN) >> 40)
                kept = draw * <float>(1.0 / (1 << 24)) < keep[id]
            out[used] = <int32_t>id     # without a branch: the next token overwrites it unless kept
            used += kept
            reading.open |= kept
            if id == end_id or reading.line_tokens > LINE_TOKENS_MAX:
                out[used] = -1
                used += reading.open
                reading.open = False
                reading.line_tokens = 0
    if not more and reading.open:
        out[used] = -1
        used += 1
        reading.open = False
    reading.used = used
    return more


cdef class Lexicon:
    """Looks up ids, for whole blocks of text; any number of threads may encode at the same time.

    `words`: in the order of their ids, each once, not empty, without separators, else ValueError.  The
    memory of `PackedWords` is borrowed, not copied.
    """

    def __cinit__(self, words: Sequence[bytes]):
        cdef const uint8_t[::1] text
        cdef const uint64_t[::1] starts
        cdef int64_t faulty
        packed = PackedWords.of(words)
        self.packed = packed            # its memory is the table's
        text = packed.text
        starts = packed.starts
        self.table.arena = <uint8_t *>(&text[0] if text.shape[0] else END_TEXT)
        self.table.starts = <uint64_t *>&starts[0]
        self.table.words = self.table.words_max = starts.shape[0] - 1
        slots_make(&self.table)
        with nogil:
            faulty = fill_slots(&self.table, False)
        if faulty >= 0 and self.index(packed[faulty]) >= 0:
            raise ValueError(f"word {faulty}: {packed[faulty]!r} comes twice")
        if faulty >= 0:
            raise ValueError(f"word {faulty}: expected bytes without separators, "
                             f"got {packed[faulty]!r}")
        self.end_id = find_word(&self.table, &END)

    def __dealloc__(self):
        free(self.table.slots)          # the rest is borrowed

    def __len__(self):
        return self.table.words

    def index(self, bytes word not None) -> int:
        """Id of a word, -1 if it is unknown."""
        cdef Token token
        cdef Py_ssize_t length = PyBytes_GET_SIZE(word)
        if (length == 0 or read_token(<const uint8_t *>PyBytes_AS_STRING(word), length, &token)
                != length):
            return -1
        return find_word(&self.table, &token)

    def indices(self, words not None: Sequence[bytes]) -> NDArray[np.int64]:
        """Ids of many words (int64), -1 for unknown ones."""
        packed = PackedWords.of(words)
        cdef const uint8_t[::1] text = packed.text
        cdef const uint64_t[::1] starts = packed.starts
        ids = np.full(starts.shape[0] - 1, -1, dtype=np.int64)
        cdef int64_t[::1] out = ids
        cdef Py_ssize_t length
        cdef int64_t i
        cdef Token token
        with nogil:
            for i in range(out.shape[0]):
                length = starts[i + 1] - starts[i]
                if length and read_token(&text[starts[i]], length, &token) == length:
                    out[i] = find_word(&self.table, &token)
        return ids

    def encode(self, const uint8_t[::1] data not None, keep: NDArray[np.float32] | None = None,
               uint64_t seed=0) -> tuple[NDArray[np.int32], int]:
        """The ids of a text that begins and ends between two tokens, and the number of all tokens read.

        Ids are int32; -1 follows each sentence of which a token is kept.  A sentence ends as in fastText:
        after `</s>`, if that is a word of this lexicon, or once it has more than 1,024 known tokens.
        Unknown words are left out.  `keep` (float32 (n,)): the probability of keeping each word
        (`Vocabulary.keep_probability`); a dropped token still counts towards its sentence's length.  The
        draw for the n-th known token depends on (seed, n) only (SplitMix64), so a block is encoded alike
        wherever and however often it is.
        """
        cdef Py_ssize_t size = data.shape[0]
        cdef const uint8_t *text = &data[0] if size else NULL
        cdef const float[::1] keep_of
        cdef const float *keep_ptr = NULL
        cdef uint64_t stream = hash_key(seed)
        cdef Reading reading
        cdef int32_t[::1] out
        cdef int32_t *out_ptr
        cdef Py_ssize_t out_size
        cdef bint more
        if keep is not None:
            keep_of = keep
            if keep_of.shape[0] != self.table.words:
                raise ValueError(f"keep: expected {self.table.words} probabilities, "
                                 f"got {keep_of.shape[0]}")
            if keep_of.shape[0]:
                keep_ptr = &keep_of[0]
        memset(&reading, 0, sizeof(Reading))
        # English has an id every six bytes; denser text doubles the room.
        ids = np.empty(size // 4 + 4 * BATCH, dtype=np.int32)
        while True:
            out = ids
            out_ptr = &out[0]
            out_size = out.shape[0]
            with nogil:
                more = encode_tokens(&self.table, self.end_id, text, size, keep_ptr, stream,
                                     out_ptr, out_size, &reading)
            if not more:
                return ids[:reading.used], reading.tokens
            larger = np.empty(2 * out_size, dtype=np.int32)
            larger[:reading.used] = ids[:reading.used]
            ids = larger


def without_tails(const uint8_t[::1] data not None, Py_ssize_t at, Py_ssize_t count,
                  Py_ssize_t tail) -> tuple[PackedWords, NDArray[np.uint8]]:
    """Split words and tails: from byte `at` on each word ends at a NUL, with which its tail begins.

    Returns the words, and the tails of `tail` bytes (uint8 (n, tail)); n is `count`, or less if the data
    ends before.
    """
    starts, tails = np.zeros(count + 1, np.uint64), np.empty((count, tail), np.uint8)
    cdef uint64_t[::1] ends = starts
    cdef uint8_t[:, ::1] behind = tails
    cdef const uint8_t *word = &data[0] + at
    cdef const uint8_t *stop = &data[0] + data.shape[0]
    cdef const uint8_t *end
    cdef Py_ssize_t n = 0, i
    with nogil:
        while n < count:
            end = <const uint8_t *>memchr(word, 0, stop - word)
            if end == NULL or stop - end < tail:
                break
            ends[n + 1] = ends[n] + (end - word)
            memcpy(&behind[n, 0], end, tail)
            word = end + tail
            n += 1
    text = np.empty(ends[n] + 1, np.uint8)
    cdef uint8_t[::1] letters = text
    with nogil:
        for i in range(n):
            memcpy(&letters[ends[i]], &data[at + ends[i] + i * tail], ends[i + 1] - ends[i])
    return PackedWords(text[:ends[n]], starts[:n + 1]), tails[:n]
